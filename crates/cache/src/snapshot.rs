//! One disposable, memory-mapped index of the segments, so that opening a large cache reads none of
//! them.
//!
//! It says which prefix of which segment it covers. The header is checked at open; everything else
//! once, before the first lookup. Whatever is wrong with it, losing it costs only time.
//!
//! Invariant of the mapping: a snapshot is replaced by rename and never changed or cut in place, so
//! the mapped bytes stay. Segments, which are cut back, are never mapped.

use std::{fs::File, ops::Range, path::Path};

use memmap2::Mmap;
use tprimat_base::digest::Digest;

use super::{encode::Stamp, frame::Mark, index::Place, segment::is_segment_name};

const MAGIC: [u8; 8] = *b"tprimat2";
/// Magic, header length, header digest.
const PREFIX: usize = 8 + 4 + 32;
const ROW: usize = 32 + 4 + 4 + 8 + 8;

#[derive(Clone, Copy)]
pub(super) enum Table {
    Entries,
    Attempts,
    Generations,
    Tasks,
    Preimages,
}
const TABLES: usize = 5;

/// One line of a table; rows are sorted by key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub key: Digest,
    pub place: Place,
    /// Entries: where in the body the head lies. Generations: the number. Tasks: the stamp.
    pub extra: u64,
}

pub(super) struct Snapshot {
    map: Mmap,
    header: Header,
}

struct Header {
    body: Range<usize>,
    body_digest: Digest,
    last_stamp: Stamp,
    tables: [Extent; TABLES],
    segments: Vec<(String, Mark)>,
}

/// A table within the body: `starts[p]..starts[p + 1]` are the rows whose key begins with the bits
/// of p.
#[derive(Clone, Copy, Default)]
struct Extent {
    rows: u64,
    count: u64,
    starts: u64,
    bits: u32,
}

impl Snapshot {
    /// `None` if there is none, or if its header is not whole.
    pub fn open(path: &Path) -> Option<Self> {
        let file = File::open(path).ok()?;
        // SAFETY: the file is never changed or cut in place; see the module's invariant.
        let map = unsafe { Mmap::map(&file) }.ok()?;
        let header = Header::decode(&map)?;
        Some(Self { map, header })
    }

    /// Segments and the prefixes of them that this covers; places number them in this order.
    pub fn segments(&self) -> &[(String, Mark)] {
        &self.header.segments
    }

    pub fn last_stamp(&self) -> Stamp {
        self.header.last_stamp
    }

    /// Checks every byte: some milliseconds for a large one.
    pub fn is_sound(&self) -> bool {
        Digest::of(self.body()) == self.header.body_digest
    }

    fn body(&self) -> &[u8] {
        &self.map[self.header.body.clone()]
    }

    pub fn rows(&self, table: Table) -> impl Iterator<Item = Row> {
        let extent = &self.header.tables[table as usize];
        (0..extent.count).map_while(move |i| self.row(extent, i))
    }

    pub fn lookup(&self, table: Table, key: &Digest) -> impl Iterator<Item = Row> {
        let extent = &self.header.tables[table as usize];
        let (first, end) = self.bucket(extent, key).unwrap_or((0, 0));
        let (mut low, mut high) = (first, end);
        while low < high {
            let middle = low.midpoint(high);
            match self.key(extent, middle) {
                Some(found) if *found < key.0 => low = middle + 1,
                _ => high = middle,
            }
        }
        (low..end)
            .map_while(move |i| self.row(extent, i))
            .take_while(move |row| row.key == *key)
    }

    fn bucket(&self, extent: &Extent, key: &Digest) -> Option<(u64, u64)> {
        let prefix = prefix(key, extent.bits);
        let start =
            |p: u64| Some(u64::from(u32_at(self.body(), extent.starts + 4 * p)?).min(extent.count));
        Some((start(prefix)?, start(prefix + 1)?))
    }

    fn key(&self, extent: &Extent, i: u64) -> Option<&[u8; 32]> {
        at(self.body(), extent.rows + i * ROW as u64)
    }

    fn row(&self, extent: &Extent, i: u64) -> Option<Row> {
        let row: &[u8; ROW] = at(self.body(), extent.rows + i * ROW as u64)?;
        Some(Row {
            key: Digest(*at(row, 0)?),
            place: Place {
                segment: u32_at(row, 32)?,
                body_length: u32_at(row, 36)?,
                offset: u64_at(row, 40)?,
            },
            extra: u64_at(row, 48)?,
        })
    }

    /// The head of an entry's row.
    pub fn head(&self, row: &Row) -> Option<&[u8]> {
        let length = u32_at(self.body(), row.extra)?;
        let start = usize::try_from(row.extra).ok()?.checked_add(4)?;
        self.body().get(start..start.checked_add(length as usize)?)
    }
}

fn prefix(key: &Digest, bits: u32) -> u64 {
    let [a, b, c, d, ..] = key.0;
    u64::from(u32::from_be_bytes([a, b, c, d])) >> (32 - bits)
}

fn at<const N: usize>(bytes: &[u8], offset: u64) -> Option<&[u8; N]> {
    bytes.get(usize::try_from(offset).ok()?..)?.first_chunk()
}
fn u32_at(bytes: &[u8], offset: u64) -> Option<u32> {
    at(bytes, offset).copied().map(u32::from_le_bytes)
}
fn u64_at(bytes: &[u8], offset: u64) -> Option<u64> {
    at(bytes, offset).copied().map(u64::from_le_bytes)
}

impl Header {
    fn decode(bytes: &[u8]) -> Option<Self> {
        let length = u32_at(bytes, 8)? as usize;
        let header = bytes.get(PREFIX..PREFIX.checked_add(length)?)?;
        if at::<8>(bytes, 0)? != &MAGIC || Digest(*at(bytes, 12)?) != Digest::of(header) {
            return None;
        }
        let mut rest = header;
        let mut take = |n: usize| {
            let (first, tail) = rest.split_at_checked(n)?;
            rest = tail;
            Some(first)
        };
        let body_digest = Digest(*take(32)?.first_chunk()?);
        let body = PREFIX + length..bytes.len();
        if u64_at(take(8)?, 0)? != body.len() as u64 {
            return None;
        }
        let last_stamp = u64_at(take(8)?, 0)?;
        let mut tables = [Extent::default(); TABLES];
        for table in &mut tables {
            let fields = take(28)?;
            *table = Extent {
                rows: u64_at(fields, 0)?,
                count: u64_at(fields, 8)?,
                starts: u64_at(fields, 16)?,
                bits: u32_at(fields, 24)?.min(32),
            };
        }
        let count = u32_at(take(4)?, 0)?;
        let mut segments = Vec::new();
        for _ in 0..count {
            let mark = take(24)?;
            let mark = Mark {
                offset: u64_at(mark, 0)?,
                checksum: *at(mark, 8)?,
                end: u64_at(mark, 16)?,
            };
            let name_length = u32_at(take(4)?, 0)? as usize;
            let name = String::from_utf8(take(name_length)?.to_vec()).ok();
            segments.push((name.filter(|name| is_segment_name(name))?, mark));
        }
        Some(Self {
            body,
            body_digest,
            last_stamp,
            tables,
            segments,
        })
    }
}

/// What goes into a snapshot; rows may come in any order and repeatedly.
#[derive(Default)]
pub(super) struct Contents<'a> {
    pub segments: Vec<(&'a str, Mark)>,
    pub last_stamp: Stamp,
    /// With their heads; `extra` is the stamp, and the latest one of a key is kept.
    pub entries: Vec<(Row, &'a [u8])>,
    pub attempts: Vec<Row>,
    pub generations: Vec<Row>,
    pub tasks: Vec<Row>,
    pub preimages: Vec<Row>,
}

impl Contents<'_> {
    pub fn encode(mut self) -> Vec<u8> {
        let mut body = Vec::new();
        // Among rows with one key, the one with the highest `extra` comes first and is kept.
        let order = |row: &Row| (row.key, std::cmp::Reverse(row.extra), row.place);
        self.entries.sort_unstable_by_key(|(row, _)| order(row));
        self.entries.dedup_by_key(|(row, _)| row.key);
        for (row, head) in &mut self.entries {
            row.extra = body.len() as u64;
            body.extend_from_slice(&(head.len() as u32).to_le_bytes());
            body.extend_from_slice(head);
        }
        for table in [&mut self.generations, &mut self.tasks, &mut self.preimages] {
            table.sort_unstable_by_key(order);
            table.dedup_by_key(|row| row.key);
        }
        self.attempts.sort_unstable_by_key(order);
        self.attempts.dedup();

        let entries: Vec<Row> = self.entries.iter().map(|(row, _)| *row).collect();
        // In the order of `Table`.
        let tables = [
            entries,
            self.attempts,
            self.generations,
            self.tasks,
            self.preimages,
        ];
        let extents = tables.map(|rows| put_table(&mut body, &rows));

        let mut header = Digest::of(&body).0.to_vec();
        header.extend_from_slice(&(body.len() as u64).to_le_bytes());
        header.extend_from_slice(&self.last_stamp.to_le_bytes());
        for Extent {
            rows,
            count,
            starts,
            bits,
        } in extents
        {
            for field in [rows, count, starts] {
                header.extend_from_slice(&field.to_le_bytes());
            }
            header.extend_from_slice(&bits.to_le_bytes());
        }
        header.extend_from_slice(&(self.segments.len() as u32).to_le_bytes());
        for (name, mark) in &self.segments {
            header.extend_from_slice(&mark.offset.to_le_bytes());
            header.extend_from_slice(&mark.checksum);
            header.extend_from_slice(&mark.end.to_le_bytes());
            header.extend_from_slice(&(name.len() as u32).to_le_bytes());
            header.extend_from_slice(name.as_bytes());
        }

        let mut file = MAGIC.to_vec();
        file.extend_from_slice(&(header.len() as u32).to_le_bytes());
        file.extend_from_slice(&Digest::of(&header).0);
        file.extend_from_slice(&header);
        file.extend_from_slice(&body);
        file
    }
}

fn put_table(body: &mut Vec<u8>, rows: &[Row]) -> Extent {
    // About one row a bucket: keys are digests, so their first bits spread evenly.
    let bits = (rows.len() as u64 + 1).ilog2().min(20);
    let extent = Extent {
        rows: body.len() as u64,
        count: rows.len() as u64,
        starts: 0,
        bits,
    };
    for Row { key, place, extra } in rows {
        body.extend_from_slice(&key.0);
        body.extend_from_slice(&place.segment.to_le_bytes());
        body.extend_from_slice(&place.body_length.to_le_bytes());
        body.extend_from_slice(&place.offset.to_le_bytes());
        body.extend_from_slice(&extra.to_le_bytes());
    }
    let starts = body.len() as u64;
    let mut row = 0;
    for p in 0..=1u64 << bits {
        while rows.get(row).is_some_and(|r| prefix(&r.key, bits) < p) {
            row += 1;
        }
        body.extend_from_slice(&(row as u32).to_le_bytes());
    }
    Extent { starts, ..extent }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, io::Write};

    use proptest::prelude::*;

    use super::*;

    fn open(bytes: &[u8]) -> Option<Snapshot> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        Snapshot::open(file.path())
    }

    fn row(seed: u16, extra: u64) -> Row {
        let place = Place {
            segment: 1,
            offset: extra * 3,
            body_length: 9,
        };
        Row {
            key: Digest::of(seed.to_le_bytes()),
            place,
            extra,
        }
    }

    fn encoded(seeds: &[u16]) -> Vec<u8> {
        let rows = || (0..).zip(seeds).map(|(i, seed)| row(*seed, i));
        let segments = vec![(
            "a.seg",
            Mark {
                offset: 1,
                checksum: [2; 8],
                end: 3,
            },
        )];
        let entries = rows().map(|row| (row, &b"head"[..])).collect();
        let (tasks, attempts) = (rows().collect(), rows().collect());
        Contents {
            segments,
            last_stamp: 5,
            entries,
            tasks,
            attempts,
            ..Contents::default()
        }
        .encode()
    }

    #[test]
    fn a_snapshot_covers_segments_of_its_own_cache_alone() {
        let of = |name: &str| {
            let segments = vec![(name, Mark::default())];
            let contents = Contents {
                segments,
                ..Contents::default()
            };
            open(&contents.encode()).is_some()
        };
        assert!(of("a.seg"));
        for elsewhere in ["/tmp/a.seg", "../a.seg", "b/a.seg", "a"] {
            assert!(!of(elsewhere), "{elsewhere}");
        }
    }

    proptest! {
        #[test]
        fn finds_what_a_map_finds(seeds in proptest::collection::vec(0u16..300, 0..200)) {
            let snapshot = open(&encoded(&seeds)).unwrap();
            prop_assert!(snapshot.is_sound());
            prop_assert_eq!(snapshot.segments(), &[("a.seg".to_owned(), Mark { offset: 1, checksum: [2; 8], end: 3 })]);
            let mut latest = BTreeMap::new();
            let mut count = BTreeMap::new();
            for (i, seed) in (0..).zip(&seeds) {
                latest.insert(*seed, i);
                *count.entry(*seed).or_insert(0) += 1;
            }
            for seed in 0..300 {
                let key = row(seed, 0).key;
                let found: Vec<u64> = snapshot.lookup(Table::Tasks, &key).map(|row| row.extra).collect();
                prop_assert_eq!(found, Vec::from_iter(latest.get(&seed).copied()));
                prop_assert_eq!(snapshot.lookup(Table::Attempts, &key).count(), count.get(&seed).copied().unwrap_or(0));
                let entry = snapshot.lookup(Table::Entries, &key).next();
                prop_assert_eq!(entry.is_some(), latest.contains_key(&seed));
                prop_assert!(entry.is_none_or(|row| snapshot.head(&row) == Some(b"head")));
                prop_assert!(snapshot.lookup(Table::Preimages, &key).next().is_none());
            }
            prop_assert_eq!(snapshot.rows(Table::Entries).count(), latest.len());
        }

        #[test]
        fn damage_is_noticed_and_never_panics(place in any::<prop::sample::Index>(), flip in 1u8.., cut in any::<prop::sample::Index>()) {
            let good = encoded(&[1, 2, 3, 2]);
            let mut bad = good.clone();
            let place = place.index(bad.len());
            bad[place] ^= flip;
            prop_assert!(open(&bad).is_none_or(|snapshot| !snapshot.is_sound()));
            if let Some(snapshot) = open(&bad) {
                for row in snapshot.rows(Table::Entries) {
                    let _ = (snapshot.head(&row), snapshot.lookup(Table::Tasks, &row.key).count());
                }
            }
            prop_assert!(open(&good[..cut.index(good.len())]).is_none());
        }
    }
}
