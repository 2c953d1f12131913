//! Recording what was done under which key, and looking it up.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, atomic::Ordering},
};

use tprimat_base::{
    digest::Digest,
    error::{Error, Result},
    files::{self, Durability},
};

use super::Output;
use super::{
    encode::{self, Outputs, Stamp},
    entry::{Attempt, Entry, SetAside, TaskKind},
    error::CacheError,
    frame,
    index::{Index, Place},
    segment::{DamagedRecords, OwnedSegment},
    snapshot::{Contents, Row, Snapshot, Table},
    store::Cache,
};

/// Reading this much costs about as much as opening; past it, a new snapshot is worth writing.
const SNAPSHOT_AFTER: u64 = 256 << 10;
/// A small cache has one sooner, since it is also what shows that a segment was cut: past this, and
/// half of what the last one covers.
const SMALL_SNAPSHOT_AFTER: u64 = 4 << 10;

/// An entry as the cache holds it, of which the outputs are read.
pub struct EntryRef<'a> {
    head: Bytes<'a>,
    stamp: Stamp,
}

enum Bytes<'a> {
    Mapped(&'a [u8]),
    Shared(Arc<[u8]>),
}

impl Bytes<'_> {
    fn decode(&self) -> Option<encode::Head<'_>> {
        encode::decode_head(match self {
            Bytes::Mapped(bytes) => bytes,
            Bytes::Shared(bytes) => bytes,
        })
    }
}

impl<'a> EntryRef<'a> {
    fn new(head: Bytes<'a>) -> Option<Self> {
        let stamp = head.decode()?.stamp;
        Some(Self { head, stamp })
    }
    pub fn outputs(&self) -> Outputs<'_> {
        self.head
            .decode()
            .map_or_else(Outputs::default, |head| head.outputs)
    }
}

impl Cache {
    /// The latest entry under a key.
    #[must_use]
    pub fn entry(&self, key: &Digest) -> Option<EntryRef<'_>> {
        let (snapshot, segments) = self.known();
        let mapped = snapshot.and_then(|snapshot| {
            let row = snapshot.lookup(Table::Entries, key).next()?;
            EntryRef::new(Bytes::Mapped(snapshot.head(&row)?))
        });
        match segments.index.entries.get(key) {
            Some(indexed)
                if mapped
                    .as_ref()
                    .is_none_or(|mapped| mapped.stamp < indexed.stamp) =>
            {
                EntryRef::new(Bytes::Shared(indexed.head.clone()))
            }
            _ => mapped,
        }
    }

    /// What the latest entry under a key left; `None` if there is no entry.
    #[must_use]
    pub fn outputs(&self, key: &Digest) -> Option<Vec<Output>> {
        Some(
            self.entry(key)?
                .outputs()
                .map(|output| output.to_owned())
                .collect(),
        )
    }

    /// What ran last under a task's name, for "what changed". A training's is its last attempt.
    #[must_use]
    pub fn last_of(&self, kind: TaskKind, task: &str) -> Option<Entry> {
        let id = encode::task_id(kind, task);
        let body = self.body(|snapshot, index| {
            let mapped = snapshot.and_then(|snapshot| snapshot.lookup(Table::Tasks, &id).next());
            let mapped = mapped.map(|row| (row.extra, row.place));
            let (_, place) = mapped
                .into_iter()
                .chain(index.tasks.get(&id).copied())
                .max_by_key(|last| last.0)?;
            Some(place)
        })?;
        encode::decode_entry(&body).or_else(|| {
            let Attempt {
                key,
                task,
                preimage,
                outputs,
                ..
            } = encode::decode_attempt(&body)?;
            Some(Entry {
                key,
                kind: TaskKind::Train,
                task,
                preimage,
                outputs,
            })
        })
    }

    /// All attempts at a key: the highest generation first, then by id.
    #[must_use]
    pub fn attempts(&self, key: &Digest) -> Vec<Attempt> {
        let places: Vec<Place> = {
            let (snapshot, segments) = self.known();
            let mapped = snapshot
                .into_iter()
                .flat_map(|snapshot| snapshot.lookup(Table::Attempts, key));
            let indexed = segments.index.attempts.get(key).into_iter().flatten();
            mapped
                .map(|row| row.place)
                .chain(indexed.copied())
                .collect()
        };
        self.attempts_at(places)
    }

    /// Every attempt of every key, in the order in which they were recorded.
    #[must_use]
    pub fn all_attempts(&self) -> Vec<Attempt> {
        let places: Vec<Place> = {
            let (snapshot, segments) = self.known();
            let mapped = snapshot
                .into_iter()
                .flat_map(|snapshot| snapshot.rows(Table::Attempts));
            mapped
                .map(|row| row.place)
                .chain(segments.index.attempts.values().flatten().copied())
                .collect()
        };
        let mut attempts = self.attempts_at(places);
        attempts.sort_by_key(|attempt| attempt.recorded);
        attempts
    }

    /// The attempts among the records at `places`, each with what was decided of it last.
    fn attempts_at(&self, places: Vec<Place>) -> Vec<Attempt> {
        let mut attempts = Vec::new();
        let mut verdicts: HashMap<(Digest, String), (Stamp, Option<SetAside>)> = HashMap::new();
        for place in places {
            let Some(body) = self.body(|_, _| Some(place)) else {
                continue;
            };
            if let Some(attempt) = encode::decode_attempt(&body) {
                attempts.push(attempt);
            } else if let Some((key, stamp, id, verdict)) = encode::decode_verdict(&body) {
                let last = verdicts.entry((key, id)).or_insert((stamp, None));
                if last.0 <= stamp {
                    *last = (stamp, verdict);
                }
            }
        }
        for attempt in &mut attempts {
            let verdict = verdicts.get(&(attempt.key, attempt.id.clone()));
            attempt.set_aside = verdict.and_then(|(_, set_aside)| set_aside.clone());
        }
        // Stable: of one id recorded twice, the record that was read first stays.
        attempts.sort_by(|a, b| {
            b.generation
                .cmp(&a.generation)
                .then_with(|| a.id.cmp(&b.id))
                .then_with(|| a.key.cmp(&b.key))
        });
        attempts.dedup_by(|a, b| (a.generation, &a.id, a.key) == (b.generation, &b.id, b.key));
        attempts
    }

    /// Sets an attempt aside, or with `None` lets it count again. Nothing is deleted: it is one
    /// more record.
    pub fn set_aside(&self, attempt: &Attempt, verdict: Option<&SetAside>) -> Result<()> {
        // It must come after what others decided before.
        self.refresh()?;
        self.append(Durability::Synced, |stamp| {
            vec![encode::verdict(stamp, &attempt.key, &attempt.id, verdict)]
        })
    }

    /// The latest entry of each key of a kind whose task's name is wanted, in the order in which
    /// they were recorded.
    #[must_use]
    pub fn entries_named(&self, kind: TaskKind, is_wanted: impl Fn(&str) -> bool) -> Vec<Entry> {
        let mut found: Vec<(Stamp, Place)> = Vec::new();
        {
            let (snapshot, segments) = self.known();
            let mut look = |head: &[u8], place: Place| {
                let head = encode::decode_head(head)
                    .filter(|head| head.kind == kind && is_wanted(head.task));
                found.extend(head.map(|head| (head.stamp, place)));
            };
            for row in snapshot
                .into_iter()
                .flat_map(|snapshot| snapshot.rows(Table::Entries))
            {
                if let Some(head) = snapshot.and_then(|snapshot| snapshot.head(&row)) {
                    look(head, row.place);
                }
            }
            segments
                .index
                .entries
                .values()
                .for_each(|entry| look(&entry.head, entry.place));
        }
        found.sort_unstable();
        found
            .into_iter()
            .filter_map(|(_, place)| encode::decode_entry(&self.body(|_, _| Some(place))?))
            .collect()
    }

    /// The highest generation that was opened, or measured in; 0 at first.
    #[must_use]
    pub fn generation(&self, key: &Digest) -> u32 {
        let (snapshot, segments) = self.known();
        let mapped = snapshot.and_then(|snapshot| snapshot.lookup(Table::Generations, key).next());
        let mapped = mapped.and_then(|row| u32::try_from(row.extra).ok());
        segments
            .index
            .generations
            .get(key)
            .copied()
            .max(mapped)
            .unwrap_or(0)
    }

    /// Opens the next generation. Processes that must not open the same one hold the key's lock.
    pub fn open_generation(&self, key: &Digest) -> Result<u32> {
        self.refresh()?;
        let Some(next) = self.generation(key).checked_add(1) else {
            return Err(CacheError::NoGenerationLeft(*key).into());
        };
        self.append(Durability::Synced, |stamp| {
            vec![encode::generation(stamp, key, next)]
        })?;
        Ok(next)
    }

    pub fn record_entry(&self, entry: &Entry) -> Result<()> {
        self.record_entries(std::slice::from_ref(entry))
    }

    /// Records a batch in one write.
    pub(super) fn record_entries(&self, entries: &[Entry]) -> Result<()> {
        self.append(Durability::Plain, |first| {
            (first..)
                .zip(entries)
                .map(|(stamp, e)| encode::entry(stamp, e))
                .collect()
        })
    }

    /// Returns when the attempt is on disk with the outputs that it names, and with all records
    /// before it. What it was made of may go then, and not before: whoever finds both takes the run
    /// in once more, and a power cut in between loses nothing.
    pub fn record_attempt(&self, attempt: &Attempt) -> Result<()> {
        let segment = self.append_unsynced(|stamp| vec![encode::attempt(stamp, attempt)])?;
        let outputs: Vec<&Digest> = attempt.outputs.iter().map(|one| &one.digest).collect();
        self.sync_objects(&outputs)?;
        self.sync_segment(&segment)
    }

    /// A text that pre-images name by its digest.
    #[must_use]
    pub fn preimage(&self, digest: &Digest) -> Option<String> {
        let body = self.body(|snapshot, index| preimage_place(snapshot, index, digest))?;
        let text = encode::decode_preimage(&body)?.to_owned();
        (Digest::of(&text) == *digest).then_some(text)
    }

    pub fn record_preimage(&self, text: &str) -> Result<Digest> {
        let digest = Digest::of(text);
        // The snapshot may know the place of a record that was damaged since.
        if self.preimage(&digest).is_none() {
            self.append(Durability::Plain, |stamp| {
                vec![encode::preimage(stamp, &digest, text)]
            })?;
        }
        Ok(digest)
    }

    /// The record at the place that `find` says.
    fn body(
        &self,
        find: impl FnOnce(Option<&Snapshot>, &Index) -> Option<Place>,
    ) -> Option<Vec<u8>> {
        let (snapshot, segments) = self.known();
        let place = find(snapshot, &segments.index)?;
        let file = segments.reader(place.segment)?;
        drop(segments);
        let body = frame::read(&file, place.offset, place.body_length);
        if body.is_none() {
            self.note_damage(place);
        }
        body
    }

    /// Appends records to this process's segment; `encode` gets the first of their stamps.
    pub(super) fn append(
        &self,
        durability: Durability,
        encode: impl FnOnce(Stamp) -> Vec<Vec<u8>>,
    ) -> Result<()> {
        let segment = self.append_unsynced(encode)?;
        match durability {
            Durability::Synced => self.sync_segment(&segment),
            Durability::Plain => Ok(()),
        }
    }

    /// Nobody waits for the disk with a lock of the cache held.
    fn sync_segment(&self, segment: &OwnedSegment) -> Result<()> {
        let synced = segment.sync(&self.root.join("segments"));
        if synced.is_err() {
            // What is on disk of it is not known any more.
            *self.writer() = None;
        }
        synced.map_err(self.refused())
    }

    /// The segment that the records were appended to.
    fn append_unsynced(
        &self,
        encode: impl FnOnce(Stamp) -> Vec<Vec<u8>>,
    ) -> Result<Arc<OwnedSegment>> {
        self.keep_witness()?;
        let mut writer = self.writer();
        if writer
            .as_ref()
            .is_none_or(|writer| !self.segments().is_intact(writer))
        {
            *writer = None;
            *writer = Some(self.in_layout(|| self.segments_mut().own_one())?);
        }
        let Some(owned) = writer.as_ref() else {
            return Err(Error::Internal(
                "the cache has no segment of its own".into(),
            ));
        };
        let mut segments = self.segments_mut();
        let seen = segments.index.last_stamp.max(self.snapshot_stamp());
        let now = (files::unix_now() * 1e9) as Stamp;
        let bodies = encode(now.max(seen.saturating_add(1)));
        if bodies.iter().any(|body| body.len() > frame::MAX_BODY) {
            return Err(CacheError::RecordTooLarge {
                most_mib: frame::MAX_BODY >> 20,
            }
            .into());
        }
        let appended = segments.append(owned, &bodies).map(|()| owned.segment());
        if appended.is_err() {
            // The next owner cuts back what this write may have left.
            *writer = None;
        }
        appended.map_err(self.refused())
    }

    /// Writes an index of everything known, for faster opening.
    pub fn write_snapshot(&self) -> Result<()> {
        let (old, segments) = self.known();
        let index = &segments.index;
        let mut contents = Contents {
            segments: segments
                .list()
                .iter()
                .map(|segment| (segment.name.as_str(), segment.mark))
                .collect(),
            last_stamp: index.last_stamp.max(self.snapshot_stamp()),
            ..Contents::default()
        };
        let cut_out = self.cut_out.lock().unwrap_or_else(PoisonError::into_inner);
        let is_there = |row: &Row| {
            let name = segments.list().get(row.place.segment as usize);
            let is_in = |cut: &DamagedRecords| {
                name.is_some_and(|segment| segment.name == cut.segment())
                    && (cut.offset..cut.offset + cut.bytes).contains(&row.place.offset)
            };
            !cut_out.iter().any(is_in)
        };
        if let Some(old) = old {
            // What is needed of an entry is its head, which is kept here, also where its record is gone.
            for row in old.rows(Table::Entries) {
                let Some(head) = old.head(&row) else { continue };
                let Some(decoded) = encode::decode_head(head) else {
                    continue;
                };
                contents.entries.push((
                    Row {
                        extra: decoded.stamp,
                        ..row
                    },
                    head,
                ));
            }
            let there = |table| old.rows(table).filter(is_there);
            contents.attempts.extend(there(Table::Attempts));
            contents.generations.extend(old.rows(Table::Generations));
            contents.tasks.extend(there(Table::Tasks));
            // A text that was damaged may have been recorded again since.
            let is_old = |row: &Row| !index.preimages.contains_key(&row.key);
            let preimages = there(Table::Preimages).filter(is_old);
            contents.preimages.extend(preimages);
        }
        let row = |key: &Digest, place: Place, extra| Row {
            key: *key,
            place,
            extra,
        };
        contents.entries.extend(
            index
                .entries
                .iter()
                .map(|(key, e)| (row(key, e.place, e.stamp), &*e.head)),
        );
        contents.attempts.extend(
            index
                .attempts
                .iter()
                .flat_map(|(key, places)| places.iter().map(move |place| row(key, *place, 0))),
        );
        let nowhere = Place {
            segment: 0,
            offset: 0,
            body_length: 0,
        };
        contents.generations.extend(
            index
                .generations
                .iter()
                .map(|(key, n)| row(key, nowhere, u64::from(*n))),
        );
        contents.tasks.extend(
            index
                .tasks
                .iter()
                .map(|(id, (stamp, place))| row(id, *place, *stamp)),
        );
        contents.preimages.extend(
            index
                .preimages
                .iter()
                .map(|(digest, place)| row(digest, *place, 0)),
        );
        self.write_file("snapshot", &[&contents.encode()])
    }
}

fn preimage_place(snapshot: Option<&Snapshot>, index: &Index, digest: &Digest) -> Option<Place> {
    let mapped = || snapshot?.lookup(Table::Preimages, digest).next();
    index
        .preimages
        .get(digest)
        .copied()
        .or_else(|| Some(mapped()?.place))
}

impl Drop for Cache {
    fn drop(&mut self) {
        let (past_snapshot, damaged) = {
            let segments = self.segments();
            (segments.past_snapshot, segments.damaged)
        };
        let is_worth_it = if damaged + self.lost_bytes == 0 {
            let covered = self.snapshot_covers();
            past_snapshot > (covered / 2).clamp(SMALL_SNAPSHOT_AFTER, SNAPSHOT_AFTER)
        } else {
            // A snapshot over damage keeps later commands from reading it and warning of it again,
            // so it waits until somebody was warned. One that knows of lost records is the only
            // witness of them: it stays until something new is recorded.
            self.is_damage_told.load(Ordering::Relaxed)
                && (self.lost_bytes == 0 || self.writer().is_some())
        };
        if is_worth_it {
            if self.lost_bytes > 0 && self.keep_witness().is_err() {
                return;
            }
            // Only a matter of speed: a read-only cache lives without.
            let _ = self.write_snapshot();
        }
    }
}
