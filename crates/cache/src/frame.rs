//! How records lie in a segment: magic, length, checksum, body. Unaware of what a body means.
//!
//! Reading never fails on damage: it goes on at the next frame whose checksum holds. What follows
//! the last such frame is a torn tail.

use std::{fs::File, io, ops::Range, os::unix::fs::FileExt};

/// Not UTF-8, so no text inside a body can look like the start of a frame.
const MAGIC: [u8; 4] = [0xf7, b't', b'p', 0xfb];
const HEADER: usize = 16;
/// No record comes near this; a longer length is damage.
pub(super) const MAX_BODY: usize = 64 << 20;
const CHUNK: usize = 1 << 20;
/// Bytes of the smallest frame: fewer than that were never a record.
pub(super) const SMALLEST: u64 = HEADER as u64;

type Checksum = [u8; 8];

/// The last frame of a prefix of a segment: enough to know the prefix again without reading it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark {
    pub offset: u64,
    pub checksum: Checksum,
    /// Where the frame ends, and with it the prefix.
    pub end: u64,
}

fn checksum(body: &[u8]) -> Checksum {
    let mut short = Checksum::default();
    short.copy_from_slice(&blake3::hash(body).as_bytes()[..8]);
    short
}

/// Appends the frame of `body` to `buffer`; the mark counts from the buffer's start.
pub(super) fn push(buffer: &mut Vec<u8>, body: &[u8]) -> Mark {
    let mark = Mark {
        offset: buffer.len() as u64,
        checksum: checksum(body),
        end: (buffer.len() + HEADER + body.len()) as u64,
    };
    buffer.extend_from_slice(&MAGIC);
    // Callers refuse bodies over MAX_BODY, which fits.
    buffer.extend_from_slice(&(body.len() as u32).to_le_bytes());
    buffer.extend_from_slice(&mark.checksum);
    buffer.extend_from_slice(body);
    mark
}

enum Parsed {
    Body(Range<usize>, Checksum),
    Short,
    Damaged,
}

fn parse(bytes: &[u8]) -> Parsed {
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER>() else {
        return if MAGIC.starts_with(&bytes[..bytes.len().min(4)]) {
            Parsed::Short
        } else {
            Parsed::Damaged
        };
    };
    let [m0, m1, m2, m3, l0, l1, l2, l3, sum @ ..] = *header;
    let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    if [m0, m1, m2, m3] != MAGIC || length > MAX_BODY {
        return Parsed::Damaged;
    }
    match rest.get(..length) {
        None => Parsed::Short,
        Some(body) if checksum(body) == sum => Parsed::Body(HEADER..HEADER + length, sum),
        Some(_) => Parsed::Damaged,
    }
}

/// Frames that say nothing to any reader and fill a stretch of at least [`SMALLEST`] bytes. They take
/// the place of damaged ones, so that every other frame stays where it is.
pub(super) fn fillers(bytes: u64) -> Vec<u8> {
    let mut left = bytes as usize;
    let mut buffer = Vec::with_capacity(left);
    while left >= HEADER {
        let mut length = left.min(HEADER + MAX_BODY);
        // What remains must hold a frame of its own.
        if (1..HEADER).contains(&(left - length)) {
            length -= HEADER;
        }
        // No record begins with a zero.
        push(&mut buffer, &vec![0; length - HEADER]);
        left -= length;
    }
    buffer
}

/// Is this the body of one of [`fillers`], and no record?
pub(super) fn is_filler(body: &[u8]) -> bool {
    body.iter().all(|byte| *byte == 0)
}

/// Calls `each(mark, body)` for every whole frame at or after `from`, which is where a frame begins.
/// Where a frame begins later than the one before it ended, the bytes in between are damaged.
pub(super) fn scan(file: &File, from: u64, mut each: impl FnMut(Mark, &[u8])) -> io::Result<()> {
    let mut buffer = Vec::new();
    // Position in the file of the buffer's first byte, and where in the buffer we are.
    let (mut base, mut at) = (from, 0);
    let mut at_end = false;
    loop {
        match parse(&buffer[at..]) {
            Parsed::Body(range, checksum) => {
                let (offset, end) = (base + at as u64, base + (at + range.end) as u64);
                each(
                    Mark {
                        offset,
                        checksum,
                        end,
                    },
                    &buffer[at + range.start..at + range.end],
                );
                at += range.end;
            }
            Parsed::Short if !at_end => {
                buffer.drain(..at);
                base += at as u64;
                at = 0;
                at_end = !fill(file, &mut buffer, base)?;
            }
            // A frame that is cut short may also be damage that claims to be long: look behind it.
            Parsed::Short if at >= buffer.len() => return Ok(()),
            Parsed::Short | Parsed::Damaged => {
                let rest = &buffer[at + 1..];
                at += 1 + rest
                    .iter()
                    .position(|byte| *byte == MAGIC[0])
                    .unwrap_or(rest.len());
            }
        }
    }
}

/// Reads one more chunk to the buffer's end; false at the end of the file.
fn fill(file: &File, buffer: &mut Vec<u8>, base: u64) -> io::Result<bool> {
    let filled = buffer.len();
    buffer.resize(filled + CHUNK, 0);
    let read = loop {
        match file.read_at(&mut buffer[filled..], base + filled as u64) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            other => break other,
        }
    };
    buffer.truncate(filled + *read.as_ref().unwrap_or(&0));
    Ok(read? > 0)
}

/// The body of one frame, if it is still there and sound.
pub(super) fn read(file: &File, offset: u64, body_length: u32) -> Option<Vec<u8>> {
    let mut bytes = vec![0; HEADER + body_length as usize];
    file.read_exact_at(&mut bytes, offset).ok()?;
    match parse(&bytes) {
        Parsed::Body(range, _) if range.end == bytes.len() => Some(bytes.split_off(range.start)),
        _ => None,
    }
}

/// Does the file still begin with the prefix that this mark ends? One small read.
pub(super) fn is_at(mark: &Mark, file: &File) -> bool {
    let mut header = [0; HEADER];
    let holds = |len: u64| len >= mark.end;
    file.metadata().is_ok_and(|meta| holds(meta.len()))
        && file.read_exact_at(&mut header, mark.offset).is_ok()
        && header[..4] == MAGIC
        && header[8..] == mark.checksum
}

impl Mark {
    pub(super) fn body_length(&self) -> u32 {
        u32::try_from(self.end - self.offset)
            .unwrap_or(u32::MAX)
            .saturating_sub(HEADER as u32)
    }
    pub(super) fn shifted(self, by: u64) -> Self {
        Self {
            offset: self.offset + by,
            end: self.end + by,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;

    fn file_of(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    fn bodies(bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        let file = file_of(bytes);
        scan(&file, 0, |mark, body| {
            assert_eq!(
                read(&file, mark.offset, mark.body_length()).as_deref(),
                Some(body)
            );
            assert!(is_at(&mark, &file));
            found.push(body.to_vec());
        })
        .unwrap();
        found
    }

    proptest! {
        #[test]
        fn foreign_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(bodies(&bytes).is_empty());
        }

        #[test]
        fn a_cut_loses_only_what_it_touches(
            written in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..50), 1..8), cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = Vec::new();
            let marks: Vec<_> = written.iter().map(|body| push(&mut bytes, body)).collect();
            let cut = cut.index(bytes.len() + 1);
            let whole = marks.iter().filter(|mark| mark.end <= cut as u64).count();
            prop_assert_eq!(bodies(&bytes[..cut]), &written[..whole]);
        }

        #[test]
        fn damage_in_the_middle_loses_one_frame(
            written in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..50), 1..8),
            place in any::<prop::sample::Index>(), flip in 1u8..,
        ) {
            let mut bytes = Vec::new();
            let marks: Vec<_> = written.iter().map(|body| push(&mut bytes, body)).collect();
            let place = place.index(bytes.len());
            bytes[place] ^= flip;
            let expected: Vec<_> = written
                .iter()
                .zip(&marks)
                .filter(|(_, mark)| !(mark.offset..mark.end).contains(&(place as u64)))
                .map(|(body, _)| body.clone())
                .collect();
            prop_assert_eq!(bodies(&bytes), expected);
        }
    }

    #[test]
    fn frames_may_span_chunks() {
        let mut bytes = b"noise before".to_vec();
        let written = vec![
            vec![1; CHUNK - 40],
            vec![2; 3 * CHUNK],
            vec![],
            vec![3; 100],
        ];
        for body in &written {
            push(&mut bytes, body);
        }
        bytes.extend_from_slice(&MAGIC);
        assert_eq!(bodies(&bytes), written);
    }
}
