//! Records ⇄ bytes: a head that every record shares, then fields in a fixed order.
//!
//! New fields may be added at a record's end, and new tags beside the old ones: a reader ignores
//! the bytes behind the fields it knows, and skips tags it does not know.

use serde::{Deserialize, Serialize};
use tprimat_base::digest::Digest;
use tprimat_job::RunOutcome;

use super::entry::{Attempt, Entry, Output, SetAside, TaskKind, Undeclared};

const ENTRY: u8 = 1;
const ATTEMPT: u8 = 2;
const GENERATION: u8 = 3;
const PREIMAGE: u8 = 4;
const VERDICT: u8 = 5;

/// Orders records across segments: nanoseconds since 1970, but always later than what the writer
/// has seen.
pub(super) type Stamp = u64;

fn head(tag: u8, stamp: Stamp, key: &Digest) -> Vec<u8> {
    let mut body = vec![tag];
    body.extend_from_slice(&stamp.to_le_bytes());
    body.extend_from_slice(&key.0);
    body
}

// Lengths fit u32: bodies over frame::MAX_BODY are refused before they are written.
fn put_text(body: &mut Vec<u8>, text: &str) {
    body.extend_from_slice(&(text.len() as u32).to_le_bytes());
    body.extend_from_slice(text.as_bytes());
}

fn put_outputs(body: &mut Vec<u8>, outputs: &[Output]) {
    body.extend_from_slice(&(outputs.len() as u32).to_le_bytes());
    for output in outputs {
        body.extend_from_slice(&output.digest.0);
        body.extend_from_slice(&output.size.to_le_bytes());
        put_text(body, &output.name);
    }
}

/// Takes fields off the front of foreign bytes; `None` where they end too early.
#[derive(Default)]
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }
    fn u8(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }
    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }
    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
    fn digest(&mut self) -> Option<Digest> {
        self.array().map(Digest)
    }
    fn text(&mut self) -> Option<&'a str> {
        let length = self.u32()? as usize;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        std::str::from_utf8(text).ok()
    }
    fn output(&mut self) -> Option<OutputRef<'a>> {
        Some(OutputRef {
            digest: self.digest()?,
            size: self.u64()?,
            name: self.text()?,
        })
    }
    fn outputs(&mut self) -> Option<Vec<Output>> {
        let count = self.u32()?;
        (0..count)
            .map(|_| self.output().map(|output| output.to_owned()))
            .collect()
    }
}

/// One output of an entry, still in the cache's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputRef<'a> {
    pub name: &'a str,
    pub digest: Digest,
    /// Bytes, uncompressed.
    pub size: u64,
}

impl OutputRef<'_> {
    #[must_use]
    pub fn to_owned(&self) -> Output {
        Output {
            name: self.name.to_owned(),
            digest: self.digest,
            size: self.size,
        }
    }
}

fn kind_code(kind: TaskKind) -> u8 {
    match kind {
        TaskKind::Render => 1,
        TaskKind::Train => 2,
        TaskKind::Parse => 3,
        TaskKind::Aggregate => 4,
        TaskKind::Compare => 5,
        TaskKind::Plot => 6,
        TaskKind::Report => 7,
    }
}

fn kind_of(code: u8) -> Option<TaskKind> {
    Some(match code {
        1 => TaskKind::Render,
        2 => TaskKind::Train,
        3 => TaskKind::Parse,
        4 => TaskKind::Aggregate,
        5 => TaskKind::Compare,
        6 => TaskKind::Plot,
        7 => TaskKind::Report,
        _ => return None,
    })
}

/// What "what ran last under this name" is filed under.
pub(super) fn task_id(kind: TaskKind, task: &str) -> Digest {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&[kind_code(kind)]).update(task.as_bytes());
    Digest(*hasher.finalize().as_bytes())
}

pub(super) fn entry(stamp: Stamp, entry: &Entry) -> Vec<u8> {
    let mut body = head(ENTRY, stamp, &entry.key);
    body.push(kind_code(entry.kind));
    put_text(&mut body, &entry.task);
    put_outputs(&mut body, &entry.outputs);
    put_text(&mut body, &entry.preimage);
    body
}

/// The fields of an attempt that may grow: named, so that any mix of versions reads any other's.
#[derive(Serialize, Deserialize)]
struct AttemptTail {
    #[serde(flatten)]
    outcome: RunOutcome,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    suspect: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    repeats_planned: Option<u32>,
    #[serde(default, skip_serializing_if = "Undeclared::is_nothing")]
    undeclared: Undeclared,
}

pub(super) fn attempt(stamp: Stamp, attempt: &Attempt) -> Vec<u8> {
    let mut body = head(ATTEMPT, stamp, &attempt.key);
    body.extend_from_slice(&attempt.generation.to_le_bytes());
    put_text(&mut body, &attempt.task);
    put_outputs(&mut body, &attempt.outputs);
    put_text(&mut body, &attempt.preimage);
    put_text(&mut body, &attempt.id);
    put_text(&mut body, &attempt.host);
    body.extend_from_slice(&attempt.started_at.to_bits().to_le_bytes());
    body.extend_from_slice(&attempt.ended_at.to_bits().to_le_bytes());
    let tail = AttemptTail {
        outcome: attempt.outcome.clone(),
        suspect: attempt.suspect.clone(),
        repeats_planned: attempt.repeats_planned,
        undeclared: attempt.undeclared.clone(),
    };
    put_text(&mut body, &serde_json::to_string(&tail).unwrap_or_default());
    body
}

pub(super) fn generation(stamp: Stamp, key: &Digest, generation: u32) -> Vec<u8> {
    let mut body = head(GENERATION, stamp, key);
    body.extend_from_slice(&generation.to_le_bytes());
    body
}

pub(super) fn preimage(stamp: Stamp, digest: &Digest, text: &str) -> Vec<u8> {
    let mut body = head(PREIMAGE, stamp, digest);
    put_text(&mut body, text);
    body
}

/// What somebody decided of the attempt `id` at a key: that it is set aside, or (`None`) that it
/// counts again.
pub(super) fn verdict(
    stamp: Stamp,
    key: &Digest,
    id: &str,
    set_aside: Option<&SetAside>,
) -> Vec<u8> {
    let mut body = head(VERDICT, stamp, key);
    put_text(&mut body, id);
    put_text(
        &mut body,
        &serde_json::to_string(&set_aside).unwrap_or_default(),
    );
    body
}

/// Key, stamp, attempt and what was decided of it.
pub(super) fn decode_verdict(body: &[u8]) -> Option<(Digest, Stamp, String, Option<SetAside>)> {
    let mut fields = Fields(body);
    let (VERDICT, stamp, key) = (fields.u8()?, fields.u64()?, fields.digest()?) else {
        return None;
    };
    Some((
        key,
        stamp,
        fields.text()?.to_owned(),
        serde_json::from_str(fields.text()?).ok()?,
    ))
}

/// What an index needs of a record; the rest stays in the segment until someone asks.
pub(super) struct Glance<'a> {
    pub stamp: Stamp,
    pub key: Digest,
    pub what: What<'a>,
}

pub(super) enum What<'a> {
    /// `head` is the body up to and with the outputs.
    Entry {
        kind: TaskKind,
        task: &'a str,
        head: &'a [u8],
    },
    Attempt {
        generation: u32,
        task: &'a str,
    },
    Generation(u32),
    Preimage,
    Verdict,
}

/// `None` for a record of another version of tprimat that this one cannot read.
pub(super) fn glance(body: &[u8]) -> Option<Glance<'_>> {
    let mut fields = Fields(body);
    let (tag, stamp, key) = (fields.u8()?, fields.u64()?, fields.digest()?);
    let what = match tag {
        ENTRY => {
            let (kind, task) = (kind_of(fields.u8()?)?, fields.text()?);
            for _ in 0..fields.u32()? {
                fields.output()?;
            }
            What::Entry {
                kind,
                task,
                head: &body[..body.len() - fields.0.len()],
            }
        }
        ATTEMPT => What::Attempt {
            generation: fields.u32()?,
            task: fields.text()?,
        },
        GENERATION => What::Generation(fields.u32()?),
        PREIMAGE => What::Preimage,
        VERDICT => What::Verdict,
        _ => return None,
    };
    Some(Glance { stamp, key, what })
}

pub(super) fn decode_entry(body: &[u8]) -> Option<Entry> {
    let mut fields = Fields(body);
    let (ENTRY, _stamp) = (fields.u8()?, fields.u64()?) else {
        return None;
    };
    let (key, kind) = (fields.digest()?, kind_of(fields.u8()?)?);
    let (task, outputs, preimage) = (
        fields.text()?.to_owned(),
        fields.outputs()?,
        fields.text()?.to_owned(),
    );
    Some(Entry {
        key,
        kind,
        task,
        preimage,
        outputs,
    })
}

pub(super) fn decode_attempt(body: &[u8]) -> Option<Attempt> {
    let mut fields = Fields(body);
    let (ATTEMPT, recorded) = (fields.u8()?, fields.u64()?) else {
        return None;
    };
    let (key, generation) = (fields.digest()?, fields.u32()?);
    let (task, outputs, preimage) = (
        fields.text()?.to_owned(),
        fields.outputs()?,
        fields.text()?.to_owned(),
    );
    let (id, host) = (fields.text()?.to_owned(), fields.text()?.to_owned());
    let (started_at, ended_at) = (f64::from_bits(fields.u64()?), f64::from_bits(fields.u64()?));
    let AttemptTail {
        outcome,
        suspect,
        repeats_planned,
        undeclared,
    } = serde_json::from_str(fields.text()?).ok()?;
    Some(Attempt {
        id,
        key,
        task,
        preimage,
        generation,
        outcome,
        outputs,
        started_at,
        ended_at,
        host,
        suspect,
        repeats_planned,
        set_aside: None,
        undeclared,
        recorded,
    })
}

pub(super) fn decode_preimage(body: &[u8]) -> Option<&str> {
    let mut fields = Fields(body);
    let (PREIMAGE, _stamp, _digest) = (fields.u8()?, fields.u64()?, fields.digest()?) else {
        return None;
    };
    fields.text()
}

/// The parts of an entry's head.
pub(super) struct Head<'a> {
    pub stamp: Stamp,
    pub kind: TaskKind,
    pub task: &'a str,
    pub outputs: Outputs<'a>,
}

pub(super) fn decode_head(head: &[u8]) -> Option<Head<'_>> {
    let mut fields = Fields(head);
    let (ENTRY, stamp, _key) = (fields.u8()?, fields.u64()?, fields.digest()?) else {
        return None;
    };
    let (kind, task, left) = (kind_of(fields.u8()?)?, fields.text()?, fields.u32()?);
    Some(Head {
        stamp,
        kind,
        task,
        outputs: Outputs {
            left,
            fields: Fields(fields.0),
        },
    })
}

/// The outputs of an entry, in the order in which they were recorded.
#[derive(Default)]
pub struct Outputs<'a> {
    left: u32,
    fields: Fields<'a>,
}

impl<'a> Iterator for Outputs<'a> {
    type Item = OutputRef<'a>;
    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        self.fields.output()
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.left as usize))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tprimat_job::FailureClass;

    use super::*;

    fn outputs() -> impl Strategy<Value = Vec<Output>> {
        let output = (".{0,12}", any::<[u8; 32]>(), any::<u64>());
        let output = output.prop_map(|(name, digest, size)| Output {
            name,
            digest: Digest(digest),
            size,
        });
        proptest::collection::vec(output, 0..4)
    }

    proptest! {
        #[test]
        fn entries_come_back(key in any::<[u8; 32]>(), task in ".{0,20}", text in ".{0,40}", outputs in outputs(), more in any::<[u8; 3]>()) {
            let written = Entry { key: Digest(key), kind: TaskKind::Parse, task, preimage: text, outputs };
            let mut body = entry(7, &written);
            body.extend_from_slice(&more); // a field of a later version
            let read = decode_entry(&body);
            prop_assert_eq!(read.as_ref(), Some(&written));
            let glance = glance(&body).unwrap();
            let What::Entry { head, task, .. } = glance.what else { panic!("an entry") };
            prop_assert_eq!(task, &written.task);
            let head = decode_head(head).unwrap();
            prop_assert_eq!(head.stamp, 7);
            prop_assert_eq!(head.outputs.map(|o| o.to_owned()).collect::<Vec<_>>(), written.outputs);
        }

        #[test]
        fn attempts_come_back(
            key in any::<[u8; 32]>(), id in ".{0,20}", outputs in outputs(), started_at in any::<f64>(),
            suspect in proptest::option::of(".{0,9}"), evidence in proptest::option::of(proptest::collection::vec(".{0,20}", 0..3)),
            repeats_planned in any::<Option<u32>>(),
        ) {
            let outcome = evidence.map_or(RunOutcome::Ok, |evidence| RunOutcome::Failed {
                class: FailureClass::Oom, evidence, status: "exit 1".into(),
            });
            let written = Attempt {
                id, key: Digest(key), task: "train a".into(), preimage: "p".into(), generation: 3, outcome, outputs,
                started_at, ended_at: f64::NAN, host: "h".into(), suspect, repeats_planned, set_aside: None,
                undeclared: Undeclared { changed: vec!["a".into()], made: Vec::new() }, recorded: 1,
            };
            let read = decode_attempt(&attempt(1, &written)).unwrap();
            prop_assert_eq!(read.started_at.to_bits(), written.started_at.to_bits());
            prop_assert_eq!(format!("{read:?}"), format!("{written:?}"));
        }

        #[test]
        fn foreign_bytes_never_panic(tag in 0u8..7, rest in proptest::collection::vec(any::<u8>(), 0..120)) {
            let body = [&[tag][..], &rest].concat();
            let _ = (decode_entry(&body), decode_attempt(&body), decode_preimage(&body), decode_verdict(&body));
            if let Some(Glance { what: What::Entry { head, .. }, .. }) = glance(&body) {
                prop_assert!(decode_head(head).is_some());
            }
        }
    }
}
