//! Bundles: measurements as one tar.zst, to send to another cache.
//!
//! ```text
//! tprimat-bundle-1       an empty file that says what this is
//! records/DIGEST         attempts, what was decided of them, and lists of imports
//! texts/DIGEST           texts that the attempts' pre-images name
//! objects/DIGEST         the files that the records name, raw
//! ```
//!
//! In this order, so that a reader knows before each object whether a record names it, and how long
//! it is. A member's name is read as a kind and a digest and never becomes a path, so a bundle
//! writes nothing anywhere but checked objects into the cache.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fs::File,
    io::{self, BufRead, BufReader, Read, Write},
    os::fd::AsFd,
};

use tar::{EntryType, Header};
use tprimat_base::{
    digest::Digest,
    error::{Error, Result},
    files::{self, Durability},
};

use super::{
    encode::{self, Stamp},
    entry::{Attempt, Output},
    error::{CacheError, bundle_fault},
    frame,
    objects::check_expected,
    store::Cache,
};

const MARK: &str = "tprimat-bundle-1";
const LEVEL: i32 = 3;
/// The most that all records and texts of a bundle may take: they are held in memory.
const MOST_RECORDS: u64 = 1 << 30;
/// No output of a run is larger.
const MOST_OBJECT: u64 = 16 << 30;
const MOST_OUTPUTS: usize = 10_000;
/// Nobody measures one key anew so often.
const MOST_GENERATION: u32 = 1_000_000;
/// How far another host's clock may be ahead. A record from the far future would count as the last
/// one for ever.
const AHEAD_NANOSECONDS: u64 = 24 * 60 * 60 * 1_000_000_000;
/// Records that are appended in one write.
const BATCH: usize = 1000;

/// A record that caches share, by the digest of its bytes: an attempt, or what somebody decided of
/// one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedRecord {
    /// The train key that it belongs to.
    pub key: Digest,
    pub digest: Digest,
    body: Vec<u8>,
}

impl SharedRecord {
    /// `None` for a record of another kind: what is derived from attempts is made again elsewhere.
    fn of(body: Vec<u8>) -> Option<Self> {
        let attempt = encode::decode_attempt(&body).map(|attempt| attempt.key);
        let key = attempt.or_else(|| Some(encode::decode_verdict(&body)?.0))?;
        Some(Self {
            key,
            digest: Digest::of(&body),
            body,
        })
    }

    /// The run, unless the record is a decision.
    #[must_use]
    pub fn attempt(&self) -> Option<Attempt> {
        encode::decode_attempt(&self.body)
    }
}

/// Records of a bundle whose objects are stored. [`Cache::admit`] records them.
#[derive(Debug, Default)]
pub struct Received {
    bodies: Vec<Vec<u8>>,
    texts: Vec<String>,
    objects: usize,
}

impl Received {
    /// The files of the list of imports, which the caller merges with its own.
    pub fn take_list(&mut self, list: &Digest) -> Vec<Output> {
        let mut outputs = Vec::new();
        self.bodies.retain(|body| match encode::decode_entry(body) {
            Some(entry) if entry.key == *list => {
                outputs.extend(entry.outputs);
                false
            }
            _ => true,
        });
        outputs
    }

    /// Do all of its runs, and decisions on runs, belong to this key?
    #[must_use]
    pub fn is_of(&self, key: &Digest) -> bool {
        let keys = self
            .bodies
            .iter()
            .map(|body| encode::glance(body).map(|glance| glance.key));
        keys.into_iter().all(|found| found == Some(*key))
    }
}

/// What a bundle brought, or what was written into one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub runs: usize,
    /// Runs of which the cache has lost a file; they are left out.
    pub incomplete: usize,
    /// Those of them of which [`Cache::repair`] noted every lost file.
    pub given_up: usize,
    /// Files of imports that the cache has lost; they are left out.
    pub lost_of_imports: usize,
    pub objects: usize,
}

/// Which records a reader expects.
#[derive(Clone, Copy, Debug)]
pub enum Expected {
    /// This one and no other, with all of its objects.
    One(Digest),
    /// Any number of runs and decisions, and the list of imports under this key.
    Any { list: Digest },
}

impl Cache {
    /// Every run that was recorded here, and every decision on one.
    pub fn shared_records(&self) -> Result<Vec<SharedRecord>> {
        let bodies = self.bodies()?;
        Ok(bodies.into_iter().filter_map(SharedRecord::of).collect())
    }

    /// Are all files of the run here? Their bytes are not read.
    #[must_use]
    pub fn is_whole(&self, record: &SharedRecord) -> bool {
        self.has_outputs(&record.body)
    }

    /// Writes one record with what it names. False: a file of the run is lost, and the bundle is
    /// not to be used.
    pub fn pack_record(&self, record: &SharedRecord, bundle: impl Write) -> Result<bool> {
        let counts = self.write_bundle(vec![record.body.clone()], None, bundle)?;
        Ok(counts.incomplete == 0)
    }

    /// Writes every run and every import that this cache has.
    pub fn export(&self, list: &Digest, bundle: impl Write) -> Result<Counts> {
        let records = self.shared_records()?;
        self.write_bundle(
            records.into_iter().map(|record| record.body).collect(),
            self.list_record(list)?,
            bundle,
        )
    }

    /// The latest record of a list.
    fn list_record(&self, list: &Digest) -> Result<Option<Vec<u8>>> {
        let bodies = self.bodies()?;
        let of_list = bodies
            .into_iter()
            .filter(|body| encode::decode_entry(body).is_some_and(|entry| entry.key == *list));
        Ok(of_list.max_by_key(|body| encode::glance(body).map(|glance| glance.stamp)))
    }

    fn write_bundle(
        &self,
        bodies: Vec<Vec<u8>>,
        list: Option<Vec<u8>>,
        bundle: impl Write,
    ) -> Result<Counts> {
        let mut counts = Counts::default();
        let (mut texts, mut objects) = (BTreeSet::new(), BTreeMap::new());
        let mut taken = Vec::with_capacity(bodies.len());
        let noted = self.noted_as_lost();
        for body in bodies {
            if let Some(attempt) = encode::decode_attempt(&body) {
                if !self.are_sound(&attempt.outputs)? {
                    counts.incomplete += 1;
                    let is_noted = |lost: &Output| noted.iter().any(|n| n.digest == lost.digest);
                    let mut lost = attempt.outputs.iter().filter(|o| !self.has(&o.digest));
                    counts.given_up += usize::from(lost.all(is_noted));
                    continue;
                }
                counts.runs += 1;
                texts.extend(digests_in(&attempt.preimage));
                objects.extend(attempt.outputs.iter().map(|o| (o.digest, o.size)));
            }
            taken.push(body);
        }
        if let Some(entry) = list.as_deref().and_then(encode::decode_entry) {
            for output in entry.outputs {
                if self.is_stored(&output.digest, Durability::Plain)? {
                    objects.insert(output.digest, output.size);
                } else {
                    counts.lost_of_imports += 1;
                }
            }
        }
        let refused = || |e| CacheError::Bundle(format!("cannot be written: {e}"));
        let mut tar = tar::Builder::new(zstd::Encoder::new(bundle, LEVEL).map_err(refused())?);
        add(&mut tar, MARK, 0, io::empty()).map_err(refused())?;
        for body in taken.iter().chain(&list) {
            let name = format!("records/{}", Digest::of(body));
            add(&mut tar, &name, body.len() as u64, &body[..]).map_err(refused())?;
        }
        for (digest, text) in texts.iter().filter_map(|d| Some((d, self.preimage(d)?))) {
            let name = format!("texts/{digest}");
            add(&mut tar, &name, text.len() as u64, text.as_bytes()).map_err(refused())?;
        }
        for (digest, size) in &objects {
            let Some(reader) = self.reader(digest)? else {
                return Err(CacheError::Bundle(format!("{} is gone", digest.short())).into());
            };
            add(&mut tar, &format!("objects/{digest}"), *size, reader).map_err(refused())?;
            counts.objects += 1;
        }
        let encoder = tar.into_inner().map_err(refused())?;
        encoder.finish().map_err(refused())?;
        Ok(counts)
    }

    fn are_sound(&self, outputs: &[Output]) -> Result<bool> {
        for output in outputs {
            if !self.is_stored(&output.digest, Durability::Plain)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Checks a bundle and stores its objects. Nothing counts before [`Cache::admit`].
    pub fn receive(&self, bundle: impl Read, expected: Expected) -> Result<Received> {
        let mut stored = 0;
        let mut reading = read_bundle(bundle, expected, |mut member, digest, size| {
            // Bytes that are known to be right mend what is damaged here, or cannot be read.
            if !self.is_sound(digest).unwrap_or(false) {
                self.put_expected(&mut member, digest, size)?;
                stored += 1;
            }
            Ok(())
        })?;
        reading.received.objects = stored;
        self.complete(reading)
    }

    /// Leaves out, or refuses, runs whose files did not all come and are not here.
    fn complete(&self, reading: Reading) -> Result<Received> {
        let Reading {
            expected,
            mut received,
            ..
        } = reading;
        if let Expected::One(digest) = expected {
            let whole = received.bodies.iter().all(|body| self.has_outputs(body));
            if received.bodies.is_empty() || !whole {
                return Err(CacheError::Bundle(incomplete(&digest)).into());
            }
        }
        received.bodies.retain(|body| self.has_outputs(body));
        Ok(received)
    }

    fn has_outputs(&self, body: &[u8]) -> bool {
        let attempt = encode::decode_attempt(body);
        attempt.is_none_or(|attempt| attempt.outputs.iter().all(|o| self.has(&o.digest)))
    }

    /// Records what was received and is new here, after its objects are on disk.
    pub fn admit(&self, received: impl IntoIterator<Item = Received>) -> Result<Counts> {
        let mut known: HashSet<Digest> = self.bodies()?.iter().map(Digest::of).collect();
        let mut counts = Counts::default();
        let mut bodies = Vec::new();
        for one in received {
            counts.objects += one.objects;
            for text in &one.texts {
                self.record_preimage(text)?;
            }
            for body in one.bodies {
                if known.insert(Digest::of(&body)) {
                    counts.runs += usize::from(encode::decode_attempt(&body).is_some());
                    bodies.push(body);
                }
            }
        }
        if bodies.is_empty() {
            return Ok(counts);
        }
        // One call for all objects, in place of three for each.
        let root = File::open(self.root()).map_err(self.refused())?;
        nix::unistd::syncfs(root.as_fd()).map_err(|e| self.refused()(e.into()))?;
        for batch in bodies.chunks(BATCH) {
            self.append(Durability::Synced, |_| batch.to_vec())?;
        }
        Ok(counts)
    }
}

/// Reads the whole bundle of one record, every file included, and stores nothing.
///
/// # Errors
/// In words, why the bundle is not that record of that key with all of its files.
pub fn check_bundle(bundle: impl Read, key: &Digest, record: Digest) -> Result<(), String> {
    let reading = read_bundle(bundle, Expected::One(record), |member, digest, size| {
        check_expected(member, digest, size)
    });
    let reading =
        reading.map_err(|error| bundle_fault(error).unwrap_or_else(|other| other.to_string()))?;
    if reading.received.bodies.is_empty() || !reading.objects.is_empty() {
        return Err(incomplete(&record));
    }
    if !reading.received.is_of(key) {
        return Err(OTHER_KEY.into());
    }
    Ok(())
}

/// Said of a bundle that lies under the name of a key that its run does not have.
pub const OTHER_KEY: &str = "its run has another key";

fn incomplete(record: &Digest) -> String {
    format!("does not hold all of the run {}", record.short())
}

/// Reads a bundle; `take` gets each object that a record names, with its digest and size.
fn read_bundle(
    bundle: impl Read,
    expected: Expected,
    mut take: impl FnMut(&mut dyn Read, &Digest, u64) -> Result<()>,
) -> Result<Reading> {
    let bad = |e: io::Error| CacheError::Bundle(format!("cannot be read: {e}"));
    let mut bundle = BufReader::with_capacity(1 << 16, bundle);
    if bundle.fill_buf().map_err(bad)?.is_empty() {
        return Err(CacheError::Bundle("is empty".into()).into());
    }
    let decoder = zstd::Decoder::with_buffer(bundle).map_err(bad)?;
    let mut archive = tar::Archive::new(decoder);
    let mut reading = Reading::new(expected);
    let mut is_marked = false;
    // Raw: long names and other extensions are members of a kind that is refused.
    for (number, member) in archive.entries().map_err(bad)?.raw(true).enumerate() {
        let mut member = member.map_err(bad)?;
        let name = String::from_utf8_lossy(&member.path_bytes()).into_owned();
        let refused = |why: &str| CacheError::Bundle(format!("has a member `{name}` that {why}"));
        let header = member.header();
        if header.entry_type() != EntryType::Regular {
            return Err(refused("is not a regular file").into());
        }
        let size = header.entry_size().map_err(bad)?;
        if number == 0 {
            if name != MARK || size != 0 {
                return Err(CacheError::Bundle("is not one of tprimat".into()).into());
            }
            is_marked = true;
            continue;
        }
        let (kind, digest) = kind_and_digest(&name)
            .ok_or_else(|| refused("has a name that no bundle of tprimat has"))?;
        if kind == Kind::Object {
            reading
                .expect_object(&digest, size)
                .map_err(|why| refused(&why))?;
            take(&mut member, &digest, size).map_err(|why| match why {
                Error::Io { source, .. } => refused(&source.to_string()).into(),
                other => other,
            })?;
            continue;
        }
        reading
            .expect_small(kind, size)
            .map_err(|why| refused(&why))?;
        let mut bytes = Vec::new();
        member.read_to_end(&mut bytes).map_err(bad)?;
        if bytes.len() as u64 != size || Digest::of(&bytes) != digest {
            return Err(refused("is not what its digest says").into());
        }
        reading
            .take(kind, digest, bytes)
            .map_err(|why| refused(&why))?;
    }
    // An archive of nothing, or a file of zeros, ends before its first member.
    if !is_marked {
        return Err(CacheError::Bundle("is not one of tprimat".into()).into());
    }
    Ok(reading)
}

/// How far a bundle was read.
struct Reading {
    expected: Expected,
    /// What the records name and the bundle has not brought yet, with sizes.
    objects: BTreeMap<Digest, u64>,
    texts: BTreeSet<Digest>,
    /// Bytes of records and texts so far.
    small: u64,
    last: Kind,
    latest: Stamp,
    received: Received,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Record,
    Text,
    Object,
}

impl Reading {
    fn new(expected: Expected) -> Self {
        Self {
            expected,
            objects: BTreeMap::new(),
            texts: BTreeSet::new(),
            small: 0,
            last: Kind::Record,
            latest: (files::unix_now() * 1e9) as Stamp + AHEAD_NANOSECONDS,
            received: Received::default(),
        }
    }

    fn in_order(&mut self, kind: Kind) -> Result<(), String> {
        if kind < self.last {
            return Err("stands behind members that come after it".into());
        }
        self.last = kind;
        Ok(())
    }

    fn expect_small(&mut self, kind: Kind, size: u64) -> Result<(), String> {
        self.in_order(kind)?;
        self.small = self.small.saturating_add(size);
        if size > frame::MAX_BODY as u64 || self.small > MOST_RECORDS {
            return Err("is larger than any record".into());
        }
        Ok(())
    }

    fn expect_object(&mut self, digest: &Digest, size: u64) -> Result<(), String> {
        self.in_order(Kind::Object)?;
        match self.objects.remove(digest) {
            Some(stated) if stated == size => Ok(()),
            Some(stated) => Err(format!(
                "has {size} bytes, and the record that names it says {stated}"
            )),
            None => Err("is named by no record, or is there twice".into()),
        }
    }

    fn take(&mut self, kind: Kind, digest: Digest, bytes: Vec<u8>) -> Result<(), String> {
        if kind == Kind::Text {
            let text = String::from_utf8(bytes).map_err(|_| "is not a text")?;
            if !self.texts.remove(&digest) {
                return Err("is named by no record, or is there twice".into());
            }
            self.received.texts.push(text);
            return Ok(());
        }
        if let Expected::One(one) = self.expected
            && one != digest
        {
            return Err("is not the record that was asked for".into());
        }
        let glance = encode::glance(&bytes).ok_or("is not a record")?;
        if glance.stamp > self.latest {
            return Err("was recorded in the future, by its own account".into());
        }
        let entry = encode::decode_entry(&bytes);
        let list = match (&entry, self.expected) {
            (Some(entry), Expected::Any { list }) if entry.key == list => Some(&entry.outputs),
            _ => None,
        };
        if let Some(attempt) = encode::decode_attempt(&bytes) {
            check_attempt(&attempt)?;
            self.texts.extend(digests_in(&attempt.preimage));
            self.objects
                .extend(attempt.outputs.iter().map(|o| (o.digest, o.size)));
        } else if let Some(outputs) = list {
            check_sizes(outputs)?;
            self.objects
                .extend(outputs.iter().map(|o| (o.digest, o.size)));
        } else {
            let verdict = encode::decode_verdict(&bytes);
            let (_, _, id, _) = verdict.ok_or("is a record that no bundle has")?;
            check_id(&id)?;
        }
        self.received.bodies.push(bytes);
        Ok(())
    }
}

/// Whatever wrote it, an attempt that is taken in is one that a build could have recorded.
fn check_attempt(attempt: &Attempt) -> Result<(), String> {
    if Digest::of(&attempt.preimage) != attempt.key {
        return Err("is filed under a key that is not the digest of its inputs".into());
    }
    if attempt.generation > MOST_GENERATION {
        return Err("has a generation that nobody reaches".into());
    }
    check_id(&attempt.id)?;
    if let Some(output) = attempt.outputs.iter().find(|o| !is_plain_name(&o.name)) {
        return Err(format!(
            "names a file `{}`, which leads elsewhere",
            output.name
        ));
    }
    check_sizes(&attempt.outputs)
}

fn check_sizes(outputs: &[Output]) -> Result<(), String> {
    if outputs.len() > MOST_OUTPUTS || outputs.iter().any(|o| o.size > MOST_OBJECT) {
        return Err("names more, or larger, files than a run leaves".into());
    }
    Ok(())
}

fn check_id(id: &str) -> Result<(), String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
    if id.is_empty() || id.len() > 100 || id.starts_with('.') || !id.chars().all(is_plain) {
        return Err("has an id that no run has".into());
    }
    Ok(())
}

/// A relative path that stays below its folder.
fn is_plain_name(name: &str) -> bool {
    name.len() <= 1000
        && !name.contains(|c: char| c.is_control() || c == '\\')
        && name
            .split('/')
            .all(|part| !part.is_empty() && part != "." && part != "..")
}

fn kind_and_digest(name: &str) -> Option<(Kind, Digest)> {
    let (folder, hex) = name.split_once('/')?;
    let kind = match folder {
        "records" => Kind::Record,
        "texts" => Kind::Text,
        "objects" => Kind::Object,
        _ => return None,
    };
    let digest: Digest = hex.parse().ok()?;
    (digest.to_string() == hex).then_some((kind, digest))
}

/// Every digest that a pre-image quotes.
fn digests_in(text: &str) -> Vec<Digest> {
    let words = text.split(|c: char| !c.is_ascii_hexdigit());
    words
        .filter(|word| word.len() == 64)
        .filter_map(|word| word.parse().ok())
        .collect()
}

fn add<W: Write>(
    tar: &mut tar::Builder<W>,
    name: &str,
    size: u64,
    content: impl Read,
) -> io::Result<()> {
    // No time, owner or mode of this host: the same content gives the same bundle.
    let mut header = Header::new_ustar();
    header.set_path(name)?;
    header.set_size(size);
    header.set_mode(0o644);
    header.set_entry_type(EntryType::Regular);
    header.set_cksum();
    let mut counted = Counted(content, 0);
    tar.append(&header, &mut counted)?;
    if counted.1 != size {
        let why = format!("{name} has {} bytes, and its record says {size}", counted.1);
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    Ok(())
}

struct Counted<R>(R, u64);

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.0.read(buffer)?;
        self.1 += read as u64;
        Ok(read)
    }
}
