//! Words in pixels: how wide they are, where they break, how they are shortened.

use std::sync::LazyLock;

use plotters::{prelude::*, style::register_font};
use tprimat_base::error::{Error, Result};

/// Under this name the font is embedded for layout and PNG; in an SVG it is a list that a viewer
/// goes through.
pub const FONT: &str = "DejaVu Sans, Verdana, sans-serif";

pub fn register_fonts() -> Result<()> {
    register_font(FONT, FontStyle::Normal, dejavu::sans::regular())
        .map_err(|_| Error::failed("the embedded font cannot be read"))
}

/// Width in pixels of `words`, without kerning, which could only make them narrower by a pixel or
/// two.
pub fn width_of(words: &str, size: i32) -> i32 {
    static ASCII: LazyLock<[f64; 128]> = LazyLock::new(|| {
        // Widths of a font that is not there yet would be 0 for good.
        _ = register_fonts();
        std::array::from_fn(|code| advance(code as u8 as char))
    });
    let width: f64 = words
        .chars()
        .map(|ch| {
            ASCII
                .get(ch as usize)
                .copied()
                .unwrap_or_else(|| advance(ch))
        })
        .sum();
    (width * f64::from(size)).ceil() as i32
}

/// The width of one character at a font size of 1.
fn advance(ch: char) -> f64 {
    const LARGE: u32 = 2048;
    let width = (FONT, LARGE)
        .into_font()
        .box_size(ch.encode_utf8(&mut [0; 4]))
        .map_or(0, |(width, _)| width);
    f64::from(width) / f64::from(LARGE)
}

/// One line of characters that XML can hold: whatever else a log or a name may have becomes a
/// space.
pub fn clean(words: &str) -> String {
    let is_fit = |ch: char| {
        !ch.is_control() && !matches!(ch, '\u{fffe}' | '\u{ffff}' | '\u{2028}' | '\u{2029}')
    };
    words
        .chars()
        .map(|ch| if is_fit(ch) { ch } else { ' ' })
        .collect()
}

/// The most characters, by `cut`, that fit into `room`; `cut(n)` has n of `all` characters.
fn longest(all: usize, size: i32, room: i32, cut: impl Fn(usize) -> String) -> String {
    let (mut fits, mut too_many) = (0, all);
    while fits + 1 < too_many {
        let middle = usize::midpoint(fits, too_many);
        if width_of(&cut(middle), size) <= room {
            fits = middle
        } else {
            too_many = middle
        }
    }
    cut(fits)
}

/// `words` with an ellipsis in place of what does not fit into `room` pixels; `head` of what stays
/// is from the start.
pub fn elide(words: &str, size: i32, room: i32, head: f64) -> String {
    if width_of(words, size) <= room {
        return words.to_owned();
    }
    let all: Vec<char> = words.chars().collect();
    longest(all.len(), size, room, |n| {
        let first = ((n as f64 * head).round() as usize).min(n);
        let mut cut: String = all[..first].iter().collect();
        cut.push('…');
        cut.extend(&all[all.len() - (n - first)..]);
        cut
    })
}

/// Each name in its `room` pixels, shortened in the middle; two that differ stay different.
pub fn elide_names(names: &[String], size: i32, room: impl Fn(usize) -> i32) -> Vec<String> {
    let cut = |head| {
        names
            .iter()
            .enumerate()
            .map(|(i, name)| elide(name, size, room(i), head))
            .collect::<Vec<_>>()
    };
    let are_told_apart = |cut: &[String]| {
        let mut pairs: Vec<_> = cut.iter().zip(names).collect();
        pairs.sort_unstable();
        pairs
            .windows(2)
            .all(|w| w[0].0 != w[1].0 || w[0].1 == w[1].1)
    };
    let ways = [0.5, 0.3, 0.7, 0.1, 0.9, 0.0, 1.0];
    ways.iter()
        .map(|head| cut(*head))
        .find(|names| are_told_apart(names))
        .unwrap_or_else(|| cut(0.5))
}

/// Lines no wider than `room`, broken between words; a word that is wider is shortened.
pub fn wrap(words: &str, size: i32, room: i32) -> Vec<String> {
    let space = width_of("n n", size) - width_of("nn", size);
    let (mut lines, mut line, mut width) = (Vec::new(), String::new(), 0);
    for word in words.split_whitespace() {
        let word = elide(word, size, room, 0.5);
        let wide = width_of(&word, size);
        if !line.is_empty() && width + space + wide + 1 > room {
            lines.push(std::mem::take(&mut line));
            width = 0;
        }
        if !line.is_empty() {
            line.push(' ');
            width += space;
        }
        line.push_str(&word);
        width += wide + 1;
    }
    if !line.is_empty() {
        lines.push(line);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_different_wherever_they_differ() {
        register_fonts().unwrap();
        let long = "a-model-with-a-very-long-name".repeat(4);
        for names in [
            [format!("one/{long}"), format!("two/{long}")],
            [format!("{long}/one"), format!("{long}/two")],
            [format!("nvd/tran/{long}/x"), format!("nvd/fsdp/{long}/x")],
        ] {
            let cut = elide_names(&names, 15, |_| 200);
            assert_ne!(cut[0], cut[1]);
            assert!(
                cut.iter()
                    .all(|name| name.contains('…') && width_of(name, 15) <= 200),
                "{cut:?}"
            );
        }
        assert_eq!(
            elide_names(&["a/b".into(), "a/b".into()], 15, |_| 200),
            ["a/b", "a/b"]
        );
    }

    #[test]
    fn no_line_is_wider_than_its_room_and_no_word_is_lost() {
        register_fonts().unwrap();
        let words =
            "precision: fp8, not bf16; recompute: full, not none; micro_batch_size: 4, not 2";
        let lines = wrap(words, 14, 150);
        assert!(
            lines.len() > 2 && lines.iter().all(|line| width_of(line, 14) <= 150),
            "{lines:?}"
        );
        assert_eq!(lines.join(" "), words);
        assert!(
            wrap(&"x".repeat(500), 14, 150)
                .iter()
                .all(|line| width_of(line, 14) <= 150)
        );
        assert!(wrap("", 14, 150).is_empty());
    }
}
