//! The append-only files that hold records.
//!
//! A writing process owns one segment at a time, by a lock that ends with the process: it adopts a
//! free one or makes a new one, so there are as many segments as there ever were writers at once.
//! Hence appends of different processes never meet, nobody waits for another's sync, and only the
//! owner cuts a torn tail back. Where the file system has no locks, every writer makes its own
//! segment.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Write},
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use serde::Serialize;

use super::{
    frame::{self, Mark},
    index::{Index, Place},
};

/// Where segments lie within the cache's folder.
const FOLDER: &str = "segments/";
const ENDING: &str = ".seg";

/// All segments as this process has read them, and the records past the snapshot.
#[derive(Default)]
pub(super) struct Segments {
    folder: PathBuf,
    list: Vec<Segment>,
    pub index: Index,
    /// Bytes of records that the snapshot does not cover.
    pub past_snapshot: u64,
    /// Bytes past the snapshot that cannot be read as a record, although records follow them.
    pub damaged: u64,
    /// Records that were read since the cache was opened: what others recorded meanwhile.
    pub of_others: usize,
}

/// A stretch of a segment that held records and cannot be read any more, or is gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DamagedRecords {
    /// Within the cache's folder.
    pub file: String,
    pub offset: u64,
    pub bytes: u64,
}

pub(super) struct Segment {
    pub name: String,
    /// The last record read; everything before its end has been.
    pub mark: Mark,
    /// Opened by the first look at a record.
    reader: OnceLock<Arc<File>>,
}

impl Segments {
    pub fn new(folder: PathBuf, covered: &[(String, Mark)]) -> Self {
        let list = covered
            .iter()
            .map(|(name, mark)| Segment::new(name.clone(), *mark))
            .collect();
        Self {
            folder,
            list,
            ..Self::default()
        }
    }

    pub fn list(&self) -> &[Segment] {
        &self.list
    }

    /// The segments that hold records, by name, each with the last record that was read of it.
    pub fn known(&self) -> Vec<(&str, Mark)> {
        let segments = self.list.iter().filter(|segment| segment.mark.end > 0);
        let mut known: Vec<_> = segments
            .map(|segment| (segment.name.as_str(), segment.mark))
            .collect();
        known.sort_unstable_by_key(|(name, _)| *name);
        known
    }

    /// Forgets everything but which segments there are, in their order.
    pub fn forget_records(&mut self) {
        for segment in &mut self.list {
            segment.mark = Mark::default();
        }
        (self.index, self.past_snapshot, self.damaged) = (Index::default(), 0, 0);
    }

    /// Reads what this process or others appended since the last time.
    pub fn refresh(&mut self) -> io::Result<()> {
        for name in names(&self.folder)? {
            let number = self.number_of(name);
            let path = self.path(number);
            match fs::metadata(&path) {
                Ok(meta) if meta.is_file() && meta.len() > self.list[number].mark.end => {
                    let file = File::open(&path)?;
                    self.read_on(number, &file)?;
                }
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn number_of(&mut self, name: String) -> usize {
        let known = self.list.iter().position(|segment| segment.name == name);
        known.unwrap_or_else(|| {
            self.list.push(Segment::new(name, Mark::default()));
            self.list.len() - 1
        })
    }

    fn read_on(&mut self, number: usize, file: &File) -> io::Result<()> {
        let segment = &mut self.list[number];
        frame::scan(file, segment.mark.end, |mark, body| {
            let between = mark.offset - segment.mark.end;
            if between >= frame::SMALLEST {
                self.damaged += between;
            }
            segment.mark = mark;
            self.past_snapshot += mark.end - mark.offset;
            self.of_others += 1;
            self.index.add(body, place(number, &mark));
        })
    }

    /// The stretches of all segments that are no record. What follows the last record may be one that
    /// a power cut tore, or that another process is writing: it is damage only as far as `known`, the
    /// prefixes that a snapshot covers, says that records were there.
    pub fn damaged_stretches(&self, known: &[(String, Mark)]) -> io::Result<Vec<DamagedRecords>> {
        let mut all = names(&self.folder)?;
        all.extend(known.iter().map(|(name, _)| name.clone()));
        all.sort_unstable();
        all.dedup();
        let mut found = Vec::new();
        for name in all {
            let file = if_there(File::open(self.folder.join(&name)))?;
            found.extend(damaged_in(&name, file.as_ref(), known)?);
        }
        Ok(found)
    }

    /// Overwrites the damaged stretches of the files that `found` names with frames that say nothing,
    /// and returns what was damaged. No record is moved, so that whoever knows the place of one still
    /// finds it. Where a file was cut short there is nothing to overwrite: the next snapshot no longer
    /// covers what is gone, and the next writer cuts a torn end off.
    ///
    /// `found` only says which files to look at: until this process has locked them all, another one
    /// may adopt one, cut it and append to it. `None`, and nothing is changed, where one of them cannot
    /// be locked: then another process may be writing there.
    pub fn cut_out(
        &mut self,
        found: &[DamagedRecords],
        known: &[(String, Mark)],
        lock: impl Fn(&File) -> Result<(), TryLockError>,
    ) -> io::Result<Option<Vec<DamagedRecords>>> {
        let mut names: Vec<&str> = found.iter().map(DamagedRecords::segment).collect();
        names.dedup();
        let mut locked = Vec::new();
        for name in names {
            let path = self.folder.join(name);
            let file = if_there(OpenOptions::new().read(true).write(true).open(path))?;
            if file.as_ref().is_some_and(|file| lock(file).is_err()) {
                return Ok(None);
            }
            locked.push((name, file));
        }
        let mut cut = Vec::new();
        for (name, file) in &locked {
            let damaged = damaged_in(name, file.as_ref(), known)?;
            // The last record that this process knew may have been a damaged one.
            let number = self.number_of((*name).to_owned());
            self.list[number].mark = Mark::default();
            if let Some(file) = file {
                let length = file.metadata()?.len();
                for stretch in &damaged {
                    if stretch.offset + stretch.bytes <= length {
                        file.write_all_at(&frame::fillers(stretch.bytes), stretch.offset)?;
                    }
                }
                file.sync_data()?;
                self.read_on(number, file)?;
            }
            cut.extend(damaged);
        }
        Ok(Some(cut))
    }

    /// How many bytes of `known` lie behind the last record that was read.
    pub fn lacking(&self, known: &[(String, Mark)]) -> u64 {
        let lacking = known.iter().map(|(name, known)| {
            let read = self.list.iter().find(|segment| segment.name == *name);
            known
                .end
                .saturating_sub(read.map_or(0, |segment| segment.mark.end))
        });
        lacking.sum()
    }

    fn path(&self, number: usize) -> PathBuf {
        self.folder.join(&self.list[number].name)
    }

    /// The file of a segment, to read a record from.
    pub fn reader(&self, number: u32) -> Option<Arc<File>> {
        let segment = self.list.get(number as usize)?;
        if let Some(file) = segment.reader.get() {
            return Some(file.clone());
        }
        let file = Arc::new(File::open(self.path(number as usize)).ok()?);
        Some(segment.reader.get_or_init(|| file).clone())
    }

    /// Makes this process the owner of a segment whose tail is whole.
    pub fn own_one(&mut self) -> io::Result<Writer> {
        self.refresh()?;
        for number in 0..self.list.len() {
            if let Some(writer) = self.adopt(number)? {
                return Ok(writer);
            }
        }
        loop {
            let (file, name) = create(&self.folder)?;
            let number = self.number_of(name);
            match file.try_lock() {
                // Another process was quicker to adopt it.
                Err(TryLockError::WouldBlock) => {}
                // No locks here: then nobody else can adopt it either.
                Ok(()) | Err(TryLockError::Error(_)) => {
                    return Ok(Writer::new(number, file, true));
                }
            }
        }
    }

    fn adopt(&mut self, number: usize) -> io::Result<Option<Writer>> {
        // An append-only file is no business of `files`, which writes whole ones.
        let Ok(file) = OpenOptions::new()
            .read(true)
            .append(true)
            .open(self.path(number))
        else {
            return Ok(None);
        };
        if file.try_lock().is_err() {
            return Ok(None);
        }
        let known = self.list[number].mark;
        if known.end > 0 && !frame::is_at(&known, &file) {
            // Cut or replaced behind our back: what we remember of it is wrong, so leave it alone.
            return Ok(None);
        }
        self.read_on(number, &file)?;
        let end = self.list[number].mark.end;
        if file.metadata()?.len() > end {
            file.set_len(end)?;
        }
        Ok(Some(Writer::new(number, file, false)))
    }

    /// Appends frames in one write; on failure the segment is as it was, or no longer `writer`'s to
    /// use.
    pub fn append(&mut self, writer: &Writer, bodies: &[Vec<u8>]) -> io::Result<()> {
        let mut buffer = Vec::with_capacity(bodies.iter().map(|body| body.len() + 32).sum());
        let marks: Vec<Mark> = bodies
            .iter()
            .map(|body| frame::push(&mut buffer, body))
            .collect();
        let start = self.list[writer.number].mark.end;
        if let Err(e) = (&writer.owned.file).write_all(&buffer) {
            writer.owned.file.set_len(start)?;
            return Err(e);
        }
        for (mark, body) in marks.into_iter().zip(bodies) {
            let mark = mark.shifted(start);
            self.list[writer.number].mark = mark;
            self.index.add(body, place(writer.number, &mark));
        }
        self.past_snapshot += buffer.len() as u64;
        Ok(())
    }

    /// Is the segment as its owner left it, and still the file of its name? Where another file has
    /// taken its place, what is appended here would be gone with the last process that has it open.
    pub fn is_intact(&self, writer: &Writer) -> bool {
        let Some(segment) = self.list.get(writer.number) else {
            return false;
        };
        let named = fs::metadata(self.folder.join(&segment.name));
        let (Ok(owned), Ok(named)) = (writer.owned.file.metadata(), named) else {
            return false;
        };
        owned.len() == segment.mark.end && (owned.dev(), owned.ino()) == (named.dev(), named.ino())
    }
}

impl Segment {
    fn new(name: String, mark: Mark) -> Self {
        Self {
            name,
            mark,
            reader: OnceLock::new(),
        }
    }
}

/// This process's right to append to one segment; given up when dropped.
pub(super) struct Writer {
    number: usize,
    owned: Arc<OwnedSegment>,
}

impl Writer {
    fn new(number: usize, file: File, is_new: bool) -> Self {
        let owned = OwnedSegment {
            file,
            is_new: AtomicBool::new(is_new),
        };
        Self {
            number,
            owned: Arc::new(owned),
        }
    }

    /// The segment, to bring it to disk while others append to it.
    pub fn segment(&self) -> Arc<OwnedSegment> {
        self.owned.clone()
    }
}

pub(super) struct OwnedSegment {
    file: File,
    /// The folder's entry for it may not be on disk yet.
    is_new: AtomicBool,
}

impl OwnedSegment {
    /// Returns when all that was appended before is on disk.
    pub fn sync(&self, folder: &Path) -> io::Result<()> {
        self.file.sync_data()?;
        if self.is_new.load(Ordering::Relaxed) {
            File::open(folder)?.sync_all()?;
            self.is_new.store(false, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl DamagedRecords {
    pub(super) fn segment(&self) -> &str {
        self.file.strip_prefix(FOLDER).unwrap_or(&self.file)
    }

    /// Do both have a byte in common?
    pub(super) fn meets(&self, other: &Self) -> bool {
        self.file == other.file
            && self.offset < other.offset + other.bytes
            && other.offset < self.offset + self.bytes
    }
}

/// The damaged stretches of one segment; see [`Segments::damaged_stretches`].
fn damaged_in(
    name: &str,
    file: Option<&File>,
    known: &[(String, Mark)],
) -> io::Result<Vec<DamagedRecords>> {
    let mut found = Vec::new();
    let mut damaged = |from: u64, to: u64| {
        if from + frame::SMALLEST <= to {
            found.push(DamagedRecords {
                file: format!("{FOLDER}{name}"),
                offset: from,
                bytes: to - from,
            });
        }
    };
    let mut end = 0;
    if let Some(file) = file {
        frame::scan(file, 0, |mark, _| {
            damaged(end, mark.offset);
            end = mark.end;
        })?;
    }
    let known = known.iter().filter(|(known, _)| known == name);
    damaged(end, known.map(|(_, mark)| mark.end).max().unwrap_or(0));
    Ok(found)
}

fn if_there<T>(opened: io::Result<T>) -> io::Result<Option<T>> {
    match opened {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

fn place(number: usize, mark: &Mark) -> Place {
    Place {
        segment: number as u32,
        offset: mark.offset,
        body_length: mark.body_length(),
    }
}

/// Names of the segments in a folder, sorted; none if there is no folder.
/// Is it the path of a segment below the cache, and of nothing elsewhere? Records may be from others.
pub(super) fn is_segment(file: &str) -> bool {
    file.strip_prefix(FOLDER).is_some_and(is_segment_name)
}

/// The same of a name in the folder of segments. Snapshots may be from others as well.
pub(super) fn is_segment_name(name: &str) -> bool {
    name.ends_with(ENDING) && !name.contains(['/', '\0'])
}

pub(super) fn names(folder: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Err(e)
            if matches!(
                e.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            return Ok(Vec::new());
        }
        other => other?,
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(
            entry?
                .file_name()
                .into_string()
                .ok()
                .filter(|name| is_segment_name(name)),
        );
    }
    names.sort_unstable();
    Ok(names)
}

/// A new segment: a number for people to sort by, random letters against other hosts.
fn create(folder: &Path) -> io::Result<(File, String)> {
    let number = |name: &String| name.split('-').next().and_then(|n| n.parse::<u64>().ok());
    let next = names(folder)?
        .iter()
        .filter_map(number)
        .max()
        .map_or(1, |n| n.saturating_add(1));
    let (file, path) = tempfile::Builder::new()
        .prefix(&format!("{next:04}-"))
        .suffix(".seg")
        .rand_bytes(8)
        .make_in(folder, |path| {
            OpenOptions::new()
                .read(true)
                .append(true)
                .create_new(true)
                .open(path)
        })?
        .keep()
        .map_err(|e| e.error)?;
    let name = path
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    Ok((file, name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cache, snapshot::Snapshot};

    /// A cache whose snapshot knows of ten records, of which the last one is cut off, and that segment.
    fn cut_short() -> (tempfile::TempDir, Cache, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(&folder.path().join("cache")).unwrap();
        for number in 0..10 {
            cache.record_preimage(&format!("text {number}")).unwrap();
        }
        cache.write_snapshot().unwrap();
        let root = cache.root().to_owned();
        drop(cache);
        let segments = root.join(FOLDER);
        let path = segments.join(&names(&segments).unwrap()[0]);
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len(file.metadata().unwrap().len() / 10 * 9)
            .unwrap();
        (folder, Cache::open(&root).unwrap(), path)
    }

    #[test]
    fn what_was_recorded_since_the_damage_was_found_stays() {
        for text in ["x", "a text longer than the one that was lost there"] {
            let (_folder, cache, _) = cut_short();
            let snapshot = Snapshot::open(&cache.root().join("snapshot")).unwrap();
            let known = snapshot.segments();
            let found = cache.segments().damaged_stretches(known).unwrap();
            assert_eq!(found.len(), 1);
            let other = Cache::open(cache.root()).unwrap();
            let digest = other.record_preimage(text).unwrap();
            drop(other);
            let cut = cache
                .segments_mut()
                .cut_out(&found, known, File::try_lock)
                .unwrap();
            assert!(cut.is_some());
            let seen = Cache::open(cache.root()).unwrap().preimage(&digest);
            assert_eq!(seen.as_deref(), Some(text));
        }
    }

    #[test]
    fn nothing_is_cut_out_where_there_are_no_locks() {
        let (_folder, cache, path) = cut_short();
        let damage = File::options().write(true).open(&path).unwrap();
        damage.write_all_at(&[0; 2], 0).unwrap();
        let before = fs::read(&path).unwrap();
        let found = cache.segments().damaged_stretches(&[]).unwrap();
        let no_locks = |_: &File| Err(TryLockError::Error(io::ErrorKind::Unsupported.into()));
        let mut segments = cache.segments_mut();
        assert_eq!(segments.cut_out(&found, &[], no_locks).unwrap(), None);
        assert_eq!(fs::read(&path).unwrap(), before);
    }
}
