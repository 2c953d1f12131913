//! A log's bytes → its lines, whatever the bytes are, in memory that does not grow with the log.

use std::borrow::Cow;
use tprimat_base::words::part;

/// Bytes of one line that are looked at; the rest of a longer line is passed over.
pub const MAX_LINE: usize = 1 << 20;

#[derive(Debug)]
pub struct Line<'a> {
    /// The line without its end and ANSI sequences; bytes that are not UTF-8 are replaced.
    pub text: Cow<'a, str>,
    /// As an editor counts: from 1, by line feeds, with the empty ones.
    pub number: u64,
    /// False only for a last line that has no line end: the writer may have been cut off in it.
    pub ended: bool,
}

/// Cuts chunks of a log into lines. A carriage return ends a line too: progress bars redraw with
/// it.
#[derive(Debug, Default)]
pub struct Splitter {
    /// The beginning of a line whose end is in a chunk to come; at most [`MAX_LINE`] bytes of it.
    pending: Vec<u8>,
    /// Lines that were longer than [`MAX_LINE`].
    pub cut: u64,
    /// Line feeds before the line that comes next.
    pub feeds: u64,
}

impl Splitter {
    /// Hands every line that `chunk` ends to `take`; empty ones are left out.
    pub fn feed(&mut self, chunk: &[u8], mut take: impl FnMut(&Line<'_>)) {
        let mut start = 0;
        for end in memchr::memchr2_iter(b'\n', b'\r', chunk) {
            let piece = &chunk[start..end];
            start = end + 1;
            if self.pending.is_empty() {
                self.line(piece, true, &mut take);
            } else {
                self.keep(piece);
                let whole = std::mem::take(&mut self.pending);
                self.line(&whole, true, &mut take);
                self.pending = whole;
                self.pending.clear();
            }
            self.feeds += u64::from(chunk[end] == b'\n');
        }
        self.keep(&chunk[start..]);
    }

    /// The last line, if it has no line end.
    pub fn finish(&mut self, mut take: impl FnMut(&Line<'_>)) {
        let rest = std::mem::take(&mut self.pending);
        self.line(&rest, false, &mut take);
    }

    /// One byte more than is looked at, so that a line that was cut is known as such.
    fn keep(&mut self, piece: &[u8]) {
        let room = (MAX_LINE + 1).saturating_sub(self.pending.len());
        self.pending
            .extend_from_slice(&piece[..piece.len().min(room)]);
    }

    fn line(&mut self, bytes: &[u8], ended: bool, take: &mut impl FnMut(&Line<'_>)) {
        if bytes.is_empty() {
            return;
        }
        self.cut += u64::from(bytes.len() > MAX_LINE);
        let bytes = &bytes[..bytes.len().min(MAX_LINE)];
        // The check alone is much faster than the repair.
        let text = std::str::from_utf8(bytes)
            .map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed);
        take(&Line {
            text: without_ansi(text),
            number: self.feeds + 1,
            ended,
        });
    }
}

/// The non-empty lines of a log that is in memory.
pub fn for_each_line(log: &[u8], mut take: impl FnMut(&Line<'_>)) {
    let mut splitter = Splitter::default();
    splitter.feed(log, &mut take);
    splitter.finish(&mut take);
}

/// Drops terminal escape sequences (colours, cursor moves, titles).
fn without_ansi(text: Cow<'_, str>) -> Cow<'_, str> {
    if memchr::memchr(b'\x1b', text.as_bytes()).is_none() {
        return text;
    }
    let (mut out, mut rest) = (String::with_capacity(text.len()), &*text);
    while let Some(at) = memchr::memchr(b'\x1b', rest.as_bytes()) {
        out.push_str(part(rest, ..at));
        rest = part(rest, at + 1..);
        let bytes = rest.as_bytes();
        let length = match bytes.first() {
            // CSI: parameters, then one final byte.
            Some(b'[') => {
                let end = 1 + bytes[1..]
                    .iter()
                    .take_while(|b| matches!(b, b' '..=b'?'))
                    .count();
                end + usize::from(matches!(bytes.get(end), Some(b'@'..=b'~')))
            }
            // OSC: up to BEL; without one the rest of the line belongs to it.
            Some(b']') => memchr::memchr(b'\x07', bytes).map_or(bytes.len(), |end| end + 1),
            _ => 0,
        };
        rest = part(rest, length..);
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// At most `chars` characters of `text`, without what would break a line or a terminal.
pub fn cut(text: &str, chars: usize) -> String {
    let mut clean = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut out: String = clean.by_ref().take(chars).collect();
    if clean.next().is_some() {
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn texts(log: &[u8]) -> Vec<String> {
        let mut all = Vec::new();
        for_each_line(log, |line| all.push(line.text.clone().into_owned()));
        all
    }

    #[test]
    fn line_ends_colours_and_broken_utf8() {
        assert_eq!(
            texts(b"a\r\n\r10%|#\r\x1b[1;32mok\x1b[0m\n\xff"),
            ["a", "10%|#", "ok", "\u{fffd}"]
        );
        let mut ended = Vec::new();
        for_each_line(b"a\nb", |line| ended.push(line.ended));
        assert_eq!(ended, [true, false]);
        let mut numbers = Vec::new();
        for_each_line(b"a\r\n\n10%\r20%\nb", |line| numbers.push(line.number));
        assert_eq!(numbers, [1, 3, 3, 4]);
        assert_eq!(texts(b"\x1b]0;title\x07x\n\x1b[\n\x1b"), ["x", "", ""]);
    }

    #[test]
    fn an_endless_line_is_cut_and_the_next_one_is_read() {
        let mut log = vec![b'x'; MAX_LINE + 10];
        log.extend_from_slice(b"\nnext");
        let mut splitter = Splitter::default();
        let mut lengths = Vec::new();
        for chunk in log.chunks(1000) {
            splitter.feed(chunk, |line| lengths.push(line.text.len()));
        }
        splitter.finish(|line| lengths.push(line.text.len()));
        assert_eq!((lengths, splitter.cut), (vec![MAX_LINE, 4], 1));
    }

    proptest! {
        #[test]
        fn chunks_change_nothing(log in "[ab\n\r\u{1b}\\[0m]{0,200}", size in 1usize..40) {
            let mut splitter = Splitter::default();
            let mut all = Vec::new();
            for chunk in log.as_bytes().chunks(size) {
                splitter.feed(chunk, |line| all.push(line.text.clone().into_owned()));
            }
            splitter.finish(|line| all.push(line.text.clone().into_owned()));
            prop_assert_eq!(all, texts(log.as_bytes()));
        }
    }
}
