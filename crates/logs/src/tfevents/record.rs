//! TFRecord: length (8 bytes), its masked CRC-32C (4), data, the data's masked CRC-32C (4), all
//! little-endian.

use crate::builder::Notes;

/// Length and its checksum.
pub const HEADER: usize = 12;
const CHECK: usize = 4;
/// Scalars take less than 100 bytes; longer records are pictures and histograms, passed over
/// without being kept.
const MAX_RECORD: usize = 1 << 20;
/// A length above this is damage, whatever its checksum says.
const MAX_LENGTH: u64 = 1 << 40;

/// Is this the beginning of a file of records?
pub fn begins(bytes: &[u8]) -> bool {
    length(bytes).is_some()
}

/// The length that `bytes` begins with, if it is one by its checksum.
fn length(bytes: &[u8]) -> Option<u64> {
    let length: [u8; 8] = bytes.get(..8)?.try_into().ok()?;
    let check: [u8; 4] = bytes.get(8..HEADER)?.try_into().ok()?;
    (masked_crc(&length) == u32::from_le_bytes(check))
        .then_some(u64::from_le_bytes(length))
        .filter(|n| *n < MAX_LENGTH)
}

/// Cuts chunks of a file into records, in memory that does not grow with the file.
#[derive(Default)]
pub struct Records {
    pending: Vec<u8>,
    /// Bytes of a long record that are still to come.
    skip: u64,
    /// Bytes that were passed over since the last good record.
    lost: u64,
    /// Where `pending` begins in the file.
    at: u64,
}

impl Records {
    pub fn feed(&mut self, mut chunk: &[u8], notes: &mut Notes, mut take: impl FnMut(&[u8])) {
        let skipped = usize::try_from(self.skip)
            .unwrap_or(usize::MAX)
            .min(chunk.len());
        chunk = &chunk[skipped..];
        self.skip -= skipped as u64;
        self.at += skipped as u64;
        self.pending.extend_from_slice(chunk);
        let mut start = 0;
        while let Some(rest) = self
            .pending
            .get(start..)
            .filter(|rest| rest.len() >= HEADER)
        {
            let Some(length) = length(rest) else {
                // Damage: the next place where a length has its checksum.
                self.lost += 1;
                start += 1;
                continue;
            };
            let here = rest.len() as u64;
            tell_lost(&mut self.lost, self.at + start as u64, notes);
            let whole = HEADER as u64 + length + CHECK as u64;
            if length > MAX_RECORD as u64 {
                notes.add("record_passed_over", || {
                    format!("{length} bytes, more than a scalar needs")
                });
                self.skip = whole.saturating_sub(here);
                start += usize::try_from(whole.min(here)).unwrap_or(rest.len());
                continue;
            }
            #[expect(clippy::cast_possible_truncation, reason = "at most MAX_RECORD")]
            let (length, whole) = (length as usize, whole as usize);
            if rest.len() < whole {
                break;
            }
            let (data, check) = rest[HEADER..whole].split_at(length);
            if check == masked_crc(data).to_le_bytes() {
                take(data);
            } else {
                let at = self.at + start as u64;
                notes.add("damaged_record", || {
                    format!("the record at byte {at} does not match its checksum")
                });
            }
            start += whole;
        }
        self.pending.drain(..start);
        self.at += start as u64;
    }

    pub fn finish(&mut self, notes: &mut Notes) {
        let rest = self.pending.len() as u64;
        if self.lost > 0 {
            self.lost += rest;
            tell_lost(&mut self.lost, self.at + rest, notes);
        } else if rest > 0 || self.skip > 0 {
            notes.add("truncated", || {
                format!("the last record, {rest} bytes of which are there")
            });
        }
    }
}

fn tell_lost(lost: &mut u64, end: u64, notes: &mut Notes) {
    let lost = std::mem::take(lost);
    if lost > 0 {
        notes.add("damaged_record", || {
            format!("{lost} bytes from byte {} on are not records", end - lost)
        });
    }
}

pub(super) fn masked_crc(data: &[u8]) -> u32 {
    let crc = crc32c(data);
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// CRC-32C (Castagnoli), byte by byte.
fn crc32c(data: &[u8]) -> u32 {
    !data.iter().fold(!0u32, |crc, byte| {
        (crc >> 8) ^ TABLE[usize::from(crc.to_le_bytes()[0] ^ byte)]
    })
}

const TABLE: [u32; 256] = {
    let mut table = [0u32; 256];
    let mut n = 0;
    while n < 256 {
        #[expect(clippy::cast_possible_truncation, reason = "below 256")]
        let mut crc = n as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 {
                (crc >> 1) ^ 0x82f6_3b78
            } else {
                crc >> 1
            };
            bit += 1;
        }
        table[n] = crc;
        n += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_of_the_standards_examples() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    }

    #[test]
    fn files_that_tensorboard_writes_begin_like_this() {
        // The first record names the version, in 24 bytes.
        let header = [24, 0, 0, 0, 0, 0, 0, 0, 0xa3, 0x7f, 0x4b, 0x22];
        assert!(begins(&header));
        assert!(!begins(&header[1..]) && !begins(&header[..11]) && !begins(&[0; 12]));
    }
}
