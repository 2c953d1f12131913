//! What caches share: records by their names, and what each of them names.

use std::{
    collections::BTreeSet,
    io::{self, Cursor, Read},
};

use serde::Serialize;
use tprimat_base::{
    digest::Digest,
    error::{Error, Result},
    files::{self, Durability},
};

use crate::cache::{
    entry::{Attempt, IMPORT, Output},
    names::{Name, RECORDS, TEXTS, digest_of},
    objects::{check_expected, decoded},
    records::{Decision, read_record},
    sealed,
    store::Cache,
};

/// The most that one file may take, compressed. It is held in memory while it is sent or checked.
pub(super) const MOST_BYTES: u64 = 1 << 30;
/// No output of a run is larger.
const MOST_OBJECT: u64 = 16 << 30;
const MOST_OUTPUTS: usize = 10_000;
/// How far another host's clock may be ahead. A record from the far future would count as the last
/// one for ever.
const AHEAD_NANOSECONDS: u64 = 24 * 60 * 60 * 1_000_000_000;

/// A record that caches share, by its name: an attempt, or what somebody decided of one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shared {
    /// The train key that it belongs to.
    pub key: Digest,
    name: Name,
}

impl Shared {
    pub(super) fn parse(name: &str) -> Option<Self> {
        let (key, name) = name
            .strip_prefix(RECORDS)?
            .strip_prefix('/')?
            .split_once('/')?;
        Some(Self {
            key: digest_of(key)?,
            name: Name::parse(name)?,
        })
    }

    /// Where it lies in every cache.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{RECORDS}/{}/{}", self.key, self.name.file())
    }

    /// Are these bytes of a record of this name?
    pub(crate) fn is_sound(&self, bytes: &[u8]) -> bool {
        Content::read(self, bytes).is_some()
    }

    fn is_import(&self) -> bool {
        self.run().is_some_and(|id| id.starts_with(IMPORT))
    }

    /// The run's id, unless it is a decision.
    #[must_use]
    pub fn run(&self) -> Option<&str> {
        match &self.name {
            Name::Attempt(id) => Some(id),
            _ => None,
        }
    }
}

/// How many records of each kind were new.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    pub runs: usize,
    pub imports: usize,
    /// Runs and imports that were set aside or restored, and keys that are measured anew.
    pub decisions: usize,
}

impl Counts {
    pub(super) fn add(&mut self, record: &Shared) {
        let count = match record.run() {
            None => &mut self.decisions,
            Some(_) if record.is_import() => &mut self.imports,
            Some(_) => &mut self.runs,
        };
        *count += 1;
    }
}

pub(super) fn object_name(digest: &Digest) -> String {
    let hex = digest.to_string();
    let (folder, name) = hex.split_at(2);
    format!("objects/{folder}/{name}")
}

pub(super) fn text_name(digest: &Digest) -> String {
    format!("{TEXTS}/{digest}")
}

/// What a record names.
#[derive(Default)]
pub(super) struct Content {
    pub(super) outputs: Vec<Output>,
    pub(super) texts: Vec<Digest>,
    recorded: u64,
}

impl Content {
    /// `None`: the bytes are not those of a record of this name.
    fn read(record: &Shared, bytes: &[u8]) -> Option<Self> {
        let Name::Attempt(id) = &record.name else {
            let decision: Decision = sealed::unseal(bytes)?;
            let is_it = decision.key == record.key && decision.of == record.name.said();
            return is_it.then(Self::default);
        };
        let attempt: Attempt = sealed::unseal(bytes)?;
        let is_it = attempt.key == record.key
            && attempt.id == *id
            && Digest::of(&attempt.preimage) == attempt.key;
        is_it.then(|| Self {
            texts: digests_in(&attempt.preimage),
            outputs: attempt.outputs,
            recorded: attempt.recorded,
        })
    }

    /// Whatever wrote it, a record that is taken in is one that a build could have written.
    pub(super) fn of_stranger(record: &Shared, bytes: &[u8]) -> Result<Self, String> {
        let content =
            Self::read(record, bytes).ok_or("is damaged, or is not what its name says")?;
        if content.recorded > (files::unix_now() * 1e9) as u64 + AHEAD_NANOSECONDS {
            return Err("was recorded in the future, by its own account".into());
        }
        let is_large = |output: &Output| output.size > MOST_OBJECT;
        if content.outputs.len() > MOST_OUTPUTS || content.outputs.iter().any(is_large) {
            return Err("names more, or larger, files than a run leaves".into());
        }
        if let Some(output) = content.outputs.iter().find(|o| !is_plain_name(&o.name)) {
            return Err(format!(
                "names a file `{}`, which leads elsewhere",
                output.name
            ));
        }
        Ok(content)
    }
}

/// Are these the stored bytes of the file?
pub(super) fn check(stored: &[u8], output: &Output) -> Result<(), String> {
    let raw = decoded(stored).map_err(|e| format!("cannot be read: {e}"))?;
    check_expected(raw, output).map_err(|e| e.to_string())
}

/// A relative path that stays below its folder.
fn is_plain_name(name: &str) -> bool {
    name.len() <= 1000
        && !name.contains(|c: char| c.is_control() || c == '\\')
        && name
            .split('/')
            .all(|part| !part.is_empty() && part != "." && part != "..")
}

/// Every digest that a pre-image quotes.
fn digests_in(text: &str) -> Vec<Digest> {
    let words = text.split(|c: char| !c.is_ascii_hexdigit());
    words.filter_map(digest_of).collect()
}

impl Cache {
    /// Every record that caches share, of these keys or of all, decisions first: wherever a copy breaks
    /// off, no run counts that was set aside. None is read.
    #[must_use]
    pub fn shared_records(&self, keys: Option<&BTreeSet<Digest>>) -> Vec<Shared> {
        let keys = keys.map_or_else(|| self.keys(), |keys| keys.iter().copied().collect());
        let of_key = |key: Digest| {
            let names = self.names_of(&key, &mut None).into_iter();
            names.map(move |name| Shared { key, name })
        };
        let mut records: Vec<Shared> = keys.into_iter().flat_map(of_key).collect();
        records.sort_by_key(|record| record.run().is_some());
        records
    }

    /// Is the record here, with all the files that it names? Their bytes are not read.
    #[must_use]
    pub fn is_whole(&self, record: &Shared) -> bool {
        let Some((_, content)) = self.content(record) else {
            return false;
        };
        // A key names more digests than texts that were kept, so one that is not there is none.
        let is_damaged = |digest: &&Digest| {
            let path = self.root().join(text_name(digest));
            path.symlink_metadata().is_ok() && self.text(digest).is_none()
        };
        content.outputs.iter().all(|o| self.has(&o.digest))
            && !content.texts.iter().any(|digest| is_damaged(&digest))
    }

    fn content(&self, record: &Shared) -> Option<(Vec<u8>, Content)> {
        let bytes = read_record(&self.root().join(record.name())).ok()?;
        let content = Content::read(record, &bytes)?;
        Some((bytes, content))
    }

    /// Hands a record to `put`, after all that it names: each with its name and its stored bytes. Was
    /// the record new there? `None`: it is damaged here, or a file of the run is lost.
    pub(super) fn give(
        &self,
        record: &Shared,
        put: &dyn Fn(&str, Vec<u8>) -> io::Result<bool>,
        lost: &dyn Fn(io::Error) -> Error,
    ) -> Result<Option<bool>> {
        let Some((bytes, content)) = self.content(record) else {
            return Ok(None);
        };
        for output in &content.outputs {
            let path = self.object_path(&output.digest);
            let is_small = path.metadata().is_ok_and(|meta| meta.len() <= MOST_BYTES);
            // What cannot be read now is left out, as what is lost is.
            if !is_small || !self.is_sound(&output.digest).unwrap_or(false) {
                return Ok(None);
            }
        }
        for digest in &content.texts {
            if let Some(text) = self.text(digest) {
                put(&text_name(digest), text).map_err(lost)?;
            }
        }
        for output in &content.outputs {
            let path = self.object_path(&output.digest);
            let (mut file, _) =
                files::open_regular_no_link(&path).map_err(Error::io("cannot read", &path))?;
            let mut stored = Vec::new();
            file.read_to_end(&mut stored)
                .map_err(Error::io("cannot read", &path))?;
            put(&object_name(&output.digest), stored).map_err(lost)?;
        }
        put(&record.name(), bytes).map(Some).map_err(lost)
    }

    /// Stores a file that was checked.
    pub(super) fn put_expected(&self, stored: &[u8], output: &Output) -> Result<()> {
        let path = self.object_path(&output.digest);
        let mut raw = decoded(Cursor::new(stored)).map_err(Error::io("cannot read", &path))?;
        self.put_stream((&mut raw, &path), Durability::Plain, 0o444)
            .map(drop)
    }

    /// Records what came whole. Was it new here?
    pub(super) fn admit(&self, record: &Shared, bytes: &[u8]) -> Result<bool> {
        let is_new = self.write_record(&record.key, &record.name, bytes)?;
        if !is_new {
            let path = self.root().join(record.name());
            self.mend_record(&path, bytes, |found| record.is_sound(found))?;
        }
        Ok(is_new)
    }
}
