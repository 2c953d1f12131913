//! The end of a log, for a person who wants to know why a run failed.

use super::lines::Splitter;

const LINES: usize = 40;
/// Bytes that are looked at.
const BYTES: usize = 64 << 10;
/// Characters of a line that are kept.
const WIDTH: usize = 400;

/// The last lines, without ANSI sequences and control characters.
#[must_use]
pub fn tail(log: &[u8]) -> Vec<String> {
    let mut lines = std::collections::VecDeque::new();
    let mut take = |text: &str| {
        if lines.len() == LINES {
            lines.pop_front();
        }
        lines.push_back(
            text.chars()
                .filter(|c| !c.is_control())
                .take(WIDTH)
                .collect::<String>(),
        );
    };
    let mut splitter = Splitter::default();
    splitter.feed(&log[log.len().saturating_sub(BYTES)..], |line| {
        take(&line.text)
    });
    splitter.finish(|line| take(&line.text));
    lines.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_whatever_the_bytes_are() {
        let mut log: Vec<u8> = (0..100)
            .flat_map(|i| format!("line {i}\n").into_bytes())
            .collect();
        log.extend_from_slice(b"\x1b[31mError\x1b[0m: \xff\x07 boom");
        let tail = tail(&log);
        assert_eq!((tail.len(), tail[0].as_str()), (LINES, "line 61"));
        assert_eq!(tail.last().unwrap(), "Error: \u{fffd} boom");
        assert_eq!(super::tail(b""), Vec::<String>::new());
    }
}
