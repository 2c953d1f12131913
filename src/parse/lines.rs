//! A log's bytes → its lines, whatever the bytes are.

use std::borrow::Cow;

/// Bytes of one line that are looked at; the rest of a longer line is passed over.
pub const MAX_LINE: usize = 1 << 20;

#[derive(Debug)]
pub struct Line<'a> {
    /// Without line end and ANSI sequences; bytes that are not UTF-8 are replaced.
    pub text: Cow<'a, str>,
    /// False only for a last line that has no line end: the writer may have been cut off in it.
    pub ended: bool,
}

/// The non-empty lines of `log`. A carriage return ends a line too: progress bars redraw with it.
pub fn lines(log: &[u8]) -> impl Iterator<Item = Line<'_>> {
    let mut rest = log;
    std::iter::from_fn(move || {
        while !rest.is_empty() {
            let (line, ended) = match rest.iter().position(|b| matches!(b, b'\n' | b'\r')) {
                Some(at) => {
                    let line = &rest[..at];
                    rest = &rest[at + 1..];
                    (line, true)
                }
                None => (std::mem::take(&mut rest), false),
            };
            if !line.is_empty() {
                let text = String::from_utf8_lossy(&line[..line.len().min(MAX_LINE)]);
                return Some(Line { text: without_ansi(text), ended });
            }
        }
        None
    })
}

/// Drops terminal escape sequences (colours, cursor moves, titles).
fn without_ansi(text: Cow<'_, str>) -> Cow<'_, str> {
    if !text.contains('\x1b') {
        return text;
    }
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '\x1b' {
            out.push(c);
            continue;
        }
        match chars.peek() {
            // CSI: parameters, then one final byte.
            Some('[') => {
                chars.next();
                while chars.next_if(|c| matches!(c, ' '..='?')).is_some() {}
                chars.next_if(|c| matches!(c, '@'..='~'));
            }
            // OSC: up to BEL; without one the rest of the line belongs to it.
            Some(']') => while chars.next().is_some_and(|c| c != '\x07') {},
            _ => {}
        }
    }
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
    use super::*;

    fn texts(log: &[u8]) -> Vec<String> {
        lines(log).map(|l| l.text.into_owned()).collect()
    }

    #[test]
    fn line_ends_colours_and_broken_utf8() {
        assert_eq!(texts(b"a\r\n\r10%|#\r\x1b[1;32mok\x1b[0m\n\xff"), ["a", "10%|#", "ok", "\u{fffd}"]);
        assert_eq!(lines(b"a\nb").map(|l| l.ended).collect::<Vec<_>>(), [true, false]);
        assert_eq!(texts(b"\x1b]0;title\x07x\n\x1b[\n\x1b"), ["x", "", ""]);
    }

    #[test]
    fn an_endless_line_is_cut() {
        let log = vec![b'x'; MAX_LINE + 10];
        assert_eq!(lines(&log).map(|l| l.text.len()).collect::<Vec<_>>(), [MAX_LINE]);
    }
}
