//! Follows a log while it grows and hands on its complete lines. Knows nothing of what they mean.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use crate::files::open_regular_no_link;

/// A longer line is passed over: progress is never that long, and memory stays bounded.
const LINE_LIMIT: usize = 64 << 10;

/// A file that grows: hands on its bytes as they come, each once.
#[derive(Debug)]
pub struct Growing {
    path: PathBuf,
    /// `None` until the file is there.
    file: Option<File>,
}

impl Growing {
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            file: None,
        }
    }

    /// Hands on what was appended since the last call. A file that is not there yet has nothing.
    pub fn poll(&mut self, on_bytes: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        let mut file = match self.file.take() {
            Some(file) => file,
            None => match open_regular_no_link(&self.path) {
                Ok((file, _)) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(error) => return Err(error),
            },
        };
        // Cut back behind our position: go on from its new end.
        let length = file.metadata()?.len();
        if file.stream_position()? > length {
            file.seek(SeekFrom::Start(length))?;
        }
        let mut buffer = vec![0; 64 << 10];
        // Only what is there now: a log that grows faster than it is read must not keep us here.
        let mut left = length.saturating_sub(file.stream_position()?);
        while left > 0 {
            let most = usize::try_from(left)
                .unwrap_or(usize::MAX)
                .min(buffer.len());
            let read = file.read(&mut buffer[..most])?;
            if read == 0 {
                break;
            }
            left -= read as u64;
            on_bytes(&buffer[..read]);
        }
        self.file = Some(file);
        Ok(())
    }
}

/// The lines of a log that is being written.
#[derive(Debug)]
pub struct Tail {
    bytes: Growing,
    lines: Lines,
}

#[derive(Debug, Default)]
struct Lines {
    /// The line that has not ended yet.
    partial: Vec<u8>,
    /// The line that has not ended yet is too long, and forgotten.
    overlong: bool,
}

impl Tail {
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self {
            bytes: Growing::new(path),
            lines: Lines::default(),
        }
    }

    /// Hands on the lines that were completed since the last call; a carriage return ends a line
    /// too (progress bars), and empty lines are left out. A file that is not there yet has none.
    pub fn poll(&mut self, on_line: &mut dyn FnMut(&str)) -> io::Result<()> {
        let Self { bytes, lines } = self;
        bytes.poll(&mut |bytes| lines.feed(bytes, on_line))
    }
}

impl Lines {
    fn feed(&mut self, bytes: &[u8], on_line: &mut dyn FnMut(&str)) {
        for piece in bytes.split_inclusive(|&b| b == b'\n' || b == b'\r') {
            let (text, ends) = match piece.split_last() {
                Some((b'\n' | b'\r', text)) => (text, true),
                _ => (piece, false),
            };
            if self.partial.len() + text.len() > LINE_LIMIT {
                self.partial.clear();
                self.overlong = true;
            }
            if !self.overlong {
                self.partial.extend_from_slice(text);
            }
            if ends {
                if !self.overlong && !self.partial.is_empty() {
                    on_line(&String::from_utf8_lossy(&self.partial));
                }
                self.partial.clear();
                self.overlong = false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::OpenOptions, io::Write};

    use proptest::prelude::*;

    use super::*;

    fn fed(chunks: &[&[u8]]) -> Vec<String> {
        let mut tail = Lines::default();
        let mut lines = Vec::new();
        for chunk in chunks {
            tail.feed(chunk, &mut |line| lines.push(line.to_owned()));
        }
        lines
    }

    #[test]
    fn lines_come_once_and_only_when_complete() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut tail = Tail::new(&path);
        let mut poll = || {
            let mut lines = Vec::new();
            tail.poll(&mut |line| lines.push(line.to_owned())).unwrap();
            lines
        };
        assert!(poll().is_empty(), "the file is not there yet");
        let mut log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .unwrap();
        log.write_all(b"step 1\r\nste").unwrap();
        assert_eq!(poll(), ["step 1"]);
        assert!(poll().is_empty());
        log.write_all(b"p 2\n 10%\r 20%\r").unwrap();
        assert_eq!(poll(), ["step 2", " 10%", " 20%"]);
    }

    #[test]
    fn a_line_without_end_takes_bounded_memory_and_the_next_one_is_read() {
        let mut tail = Lines::default();
        let mut lines = Vec::new();
        for _ in 0..100 {
            tail.feed(&[b'x'; 10_000], &mut |line| lines.push(line.to_owned()));
            assert!(tail.partial.len() <= LINE_LIMIT);
        }
        tail.feed(b"\nstep 3\n", &mut |line| lines.push(line.to_owned()));
        assert_eq!(lines, ["step 3"]);
    }

    proptest! {
        #[test]
        fn how_the_bytes_arrive_does_not_matter(bytes in prop::collection::vec(prop_oneof![Just(b'\n'), Just(b'\r'), any::<u8>()], 0..200), cut in 0_usize..200) {
            let (a, b) = bytes.split_at(cut.min(bytes.len()));
            let whole: Vec<String> = match bytes.iter().rposition(|b| b"\r\n".contains(b)) {
                Some(end) => bytes[..end].split(|b| b"\r\n".contains(b)).filter(|l| !l.is_empty()).map(|l| String::from_utf8_lossy(l).into_owned()).collect(),
                None => Vec::new(),
            };
            prop_assert_eq!(fed(&[a, b]), whole);
        }
    }
}
