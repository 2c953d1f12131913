//! Taking over what another cache has: its records as they are, with their times, and the objects
//! that they name.

use std::{collections::BTreeSet, fs::File};

use tprimat_base::{
    digest::Digest,
    error::{Error, Result},
    files::Durability,
};

use super::{encode, entry::Output, frame, segment, store::Cache, upkeep::is_of_losses};

/// Records that are appended in one write.
const BATCH: usize = 1000;

/// What was new in another cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Adopted {
    /// Runs.
    pub attempts: usize,
    /// Records of any kind, runs included.
    pub records: usize,
    pub objects: usize,
}

impl Cache {
    /// Copies what `other` has and this cache lacks; the other one is only read. Of the key `list`
    /// only the objects are copied: of two lists under one key the later one would hide the other,
    /// so the caller merges them.
    pub fn adopt(&self, other: &Self, list: &Digest) -> Result<Adopted> {
        let own: BTreeSet<Digest> = self.bodies()?.iter().map(Digest::of).collect();
        let mut adopted = Adopted::default();
        let mut bodies = Vec::new();
        for body in other.bodies()? {
            if own.contains(&Digest::of(&body)) {
                continue;
            }
            let attempt = encode::decode_attempt(&body);
            let entry = encode::decode_entry(&body);
            // What the other one has lost is another list than what this one has.
            if entry.as_ref().is_some_and(|entry| is_of_losses(&entry.key)) {
                continue;
            }
            let outputs = attempt
                .iter()
                .flat_map(|a| &a.outputs)
                .chain(entry.iter().flat_map(|e| &e.outputs));
            for output in outputs {
                adopted.objects += usize::from(self.adopt_object(other, output)?);
            }
            if entry.is_some_and(|entry| entry.key == *list) {
                continue;
            }
            adopted.attempts += usize::from(attempt.is_some());
            bodies.push(body);
        }
        adopted.records = bodies.len();
        // After the objects, so that no record names what is not there yet.
        for batch in bodies.chunks(BATCH) {
            self.append(Durability::Synced, |_| batch.to_vec())?;
        }
        Ok(adopted)
    }

    /// Was it new? What the other cache has lost stays lost.
    fn adopt_object(&self, other: &Self, output: &Output) -> Result<bool> {
        Ok(!self.has(&output.digest) && self.copy_from(other, &output.digest)?)
    }

    /// Every whole record of every segment.
    pub(super) fn bodies(&self) -> Result<Vec<Vec<u8>>> {
        let folder = self.root().join("segments");
        let mut bodies = Vec::new();
        for name in segment::names(&folder).map_err(Error::io("cannot read the cache", &folder))? {
            let path = folder.join(name);
            let read = File::open(&path).and_then(|file| {
                frame::scan(&file, 0, |_, body| {
                    if !frame::is_filler(body) {
                        bodies.push(body.to_vec());
                    }
                })
            });
            read.map_err(Error::io("cannot read the cache", &path))?;
        }
        Ok(bodies)
    }
}
