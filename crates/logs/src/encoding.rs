//! The bytes of a file → those of its text: compressed logs are unpacked, UTF-16 becomes UTF-8, and what Docker keeps as JSON
//! becomes lines again.

use std::io::Write as _;

use flate2::write::MultiGzDecoder;

/// Bytes by which the beginning of a file is known.
const KNOWN_BY: usize = DOCKER.len();
/// How every line of Docker's json-file begins.
const DOCKER: &[u8] = b"{\"log\":\"";
/// Docker parts what a process writes into pieces of 16 KiB; a longer line is none of its own.
const MAX_ENTRY: usize = 1 << 20;

/// Decodes a file that comes in chunks; what it is, its first bytes say.
pub enum Decoder {
    Unknown(Vec<u8>),
    Plain,
    /// Nothing more of it can be read.
    Broken,
    Gzip(Box<MultiGzDecoder<Vec<u8>>>),
    /// Bytes of a character that is not whole yet, and which of two comes first.
    Utf16 {
        rest: Vec<u8>,
        is_big: bool,
    },
    /// Bytes of an entry that is not whole yet, and whether the next one begins a line of the process.
    Docker {
        rest: Vec<u8>,
        begins_line: bool,
    },
}

impl Default for Decoder {
    fn default() -> Self {
        Self::Unknown(Vec::new())
    }
}

impl Decoder {
    pub fn feed(&mut self, chunk: &[u8], mut take: impl FnMut(&[u8])) {
        match self {
            Self::Plain => take(chunk),
            Self::Broken => {}
            Self::Unknown(first) => {
                first.extend_from_slice(chunk);
                if first.len() >= KNOWN_BY {
                    let first = std::mem::take(first);
                    *self = Self::of(&first);
                    self.feed(&first, take);
                }
            }
            Self::Gzip(decoder) => {
                // A file that is cut off or damaged says what it says up to there.
                let is_sound = decoder.write_all(chunk).is_ok();
                take(decoder.get_ref());
                decoder.get_mut().clear();
                if !is_sound {
                    *self = Self::Broken;
                }
            }
            Self::Utf16 { rest, is_big } => {
                rest.extend_from_slice(chunk);
                let text = utf16(rest, *is_big);
                take(text.as_bytes());
            }
            Self::Docker { rest, begins_line } => {
                rest.extend_from_slice(chunk);
                let whole = memchr::memrchr(b'\n', rest).map_or(0, |end| end + 1);
                let whole = if rest.len() > MAX_ENTRY {
                    rest.len()
                } else {
                    whole
                };
                let mut text = String::new();
                for line in rest[..whole].split(|byte| *byte == b'\n') {
                    unwrap(line, begins_line, &mut text);
                }
                rest.drain(..whole);
                take(text.as_bytes());
            }
        }
    }

    /// The last bytes, of a file that has hardly any.
    pub fn finish(&mut self, mut take: impl FnMut(&[u8])) {
        match std::mem::replace(self, Self::Plain) {
            Self::Unknown(first) => take(&first),
            Self::Gzip(mut decoder) => {
                let _ = decoder.try_finish();
                take(decoder.get_ref());
            }
            // An entry that was cut off may lack digits of its last number.
            Self::Plain | Self::Broken | Self::Utf16 { .. } | Self::Docker { .. } => {}
        }
    }

    fn of(first: &[u8]) -> Self {
        match first {
            [0x1f, 0x8b, ..] => Self::Gzip(Box::new(MultiGzDecoder::new(Vec::new()))),
            [0xff, 0xfe, ..] => Self::Utf16 {
                rest: Vec::new(),
                is_big: false,
            },
            [0xfe, 0xff, ..] => Self::Utf16 {
                rest: Vec::new(),
                is_big: true,
            },
            _ if first.starts_with(DOCKER) => Self::Docker {
                rest: Vec::new(),
                begins_line: true,
            },
            _ => Self::Plain,
        }
    }
}

/// An entry of Docker's json-file → what the process wrote, with its date before each line.
fn unwrap(entry: &[u8], begins_line: &mut bool, text: &mut String) {
    #[derive(serde::Deserialize)]
    struct Entry {
        log: String,
        time: String,
    }
    let Ok(Entry { log, time }) = serde_json::from_slice(entry) else {
        return;
    };
    if *begins_line {
        text.extend([&*time, " "]);
    }
    text.push_str(&log);
    *begins_line = log.ends_with('\n');
}

/// Takes the whole characters out of `bytes`; the mark at the beginning of a file is none.
fn utf16(bytes: &mut Vec<u8>, is_big: bool) -> String {
    let unit = |pair: &[u8]| {
        let pair = [pair[0], pair[1]];
        if is_big {
            u16::from_be_bytes(pair)
        } else {
            u16::from_le_bytes(pair)
        }
    };
    let units: Vec<u16> = bytes.chunks_exact(2).map(unit).collect();
    let is_half = units
        .last()
        .is_some_and(|last| (0xd800..0xdc00).contains(last));
    let whole = &units[..units.len() - usize::from(is_half)];
    let text = char::decode_utf16(whole.iter().copied())
        .map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER))
        .filter(|c| *c != '\u{feff}')
        .collect();
    bytes.drain(..2 * whole.len());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(file: &[u8], size: usize) -> String {
        let (mut decoder, mut text) = (Decoder::default(), Vec::new());
        for chunk in file.chunks(size) {
            decoder.feed(chunk, |bytes| text.extend_from_slice(bytes));
        }
        decoder.finish(|bytes| text.extend_from_slice(bytes));
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn a_file_says_the_same_in_every_encoding_and_in_chunks_of_any_size() {
        let text = "step 1 | ▏ loss 2.5 😀\r\nstep 2\n".repeat(9);
        let units = || std::iter::once(0xfeff).chain(text.encode_utf16());
        let little: Vec<u8> = units().flat_map(u16::to_le_bytes).collect();
        let big: Vec<u8> = units().flat_map(u16::to_be_bytes).collect();
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(text.as_bytes()).unwrap();
        let packed = packed.finish().unwrap();
        for file in [text.as_bytes(), &little, &big, &packed] {
            for size in [1, 3, 1000] {
                assert_eq!(decoded(file, size), text);
            }
        }
        assert_eq!(
            (decoded(b"", 1), decoded(b"x", 1)),
            (String::new(), "x".to_owned())
        );
        let entry = |log: &str, at: u64| {
            let log = serde_json::Value::from(log);
            format!(
                "{{\"log\":{log},\"stream\":\"stderr\",\"time\":\"2026-08-04T10:00:0{at}.5Z\"}}\n"
            )
        };
        let docker = entry("step 1 \"▏\"\n", 1)
            + &entry("st", 2)
            + &entry("ep 2\r\n", 3)
            + "{\"log\":\"step";
        for size in [1, 3, 1000] {
            assert_eq!(
                decoded(docker.as_bytes(), size),
                "2026-08-04T10:00:01.5Z step 1 \"▏\"\n2026-08-04T10:00:02.5Z step 2\r\n"
            );
        }
        let half = decoded(&packed[..packed.len() - 12], 7);
        assert!(text.starts_with(&half), "{half}");
        let _ = decoded(b"\x1f\x8bnothing of the kind", 5);
    }
}
