//! Words in pixels: how wide they are, where they break, how they are shortened.

use std::sync::LazyLock;

use ab_glyph::{Font, FontRef, PxScale, ScaleFont, point};
use plotters::{prelude::*, style::register_font};

/// Under this name the font is embedded for layout and PNG; in an SVG it is a list that a viewer
/// goes through.
pub const FONT: &str = "DejaVu Sans, Verdana, sans-serif";

pub fn font(size: i32) -> FontDesc<'static> {
    // Where the font could not be read, drawing tells so.
    static REGISTERED: LazyLock<()> = LazyLock::new(|| {
        _ = register_font(FONT, FontStyle::Normal, dejavu::sans::regular());
    });
    LazyLock::force(&REGISTERED);
    (FONT, size).into_font()
}

/// How far below the upper edge letters stand, as a share of their size: where plotters has them in an SVG,
/// 0.76 of an em, which is the size ÷ 1.24.
const BASELINE: f32 = 0.76 / 1.24;

/// Sets words letter by letter, to fractions of a pixel and with the font's kerning, and gives each pixel
/// that they touch with the share that is covered. `back`: by how much of its width the line begins left of
/// `at`.
pub fn set(
    words: &str,
    at: (i32, i32),
    size: i32,
    back: f32,
    mut dot: impl FnMut((i32, i32), f64),
) {
    static SANS: LazyLock<Option<FontRef<'static>>> =
        LazyLock::new(|| FontRef::try_from_slice(dejavu::sans::regular()).ok());
    let Some(sans) = &*SANS else {
        return;
    };
    let scale = PxScale::from(size as f32);
    let font = sans.as_scaled(scale);
    let (mut x, mut last, mut letters) = (0.0, None, Vec::new());
    for ch in words.chars() {
        let letter = font.glyph_id(ch);
        x += last.map_or(0.0, |last| font.kern(last, letter));
        letters.push((letter, x));
        x += font.h_advance(letter);
        last = Some(letter);
    }
    let from = point(at.0 as f32 - back * x, at.1 as f32 + BASELINE * size as f32);
    for (letter, x) in letters {
        let glyph = letter.with_scale_and_position(scale, point(from.x + x, from.y));
        if let Some(outline) = sans.outline_glyph(glyph) {
            let corner = outline.px_bounds().min;
            let corner = (corner.x as i32, corner.y as i32);
            outline.draw(|x, y, share| {
                if share > 0.0 {
                    dot(
                        (corner.0 + x as i32, corner.1 + y as i32),
                        f64::from(share.min(1.0)),
                    );
                }
            });
        }
    }
}

/// Width in pixels of `words`, without kerning, which could only make them narrower by a pixel or
/// two.
pub fn width_of(words: &str, size: i32) -> i32 {
    static ASCII: LazyLock<[f64; 128]> =
        LazyLock::new(|| std::array::from_fn(|code| advance(code as u8 as char)));
    let known = |ch: char| ASCII.get(ch as usize).copied();
    let widths = words
        .chars()
        .map(|ch| known(ch).unwrap_or_else(|| advance(ch)));
    (widths.sum::<f64>() * f64::from(size)).ceil() as i32
}

/// The width of one character at a font size of 1.
fn advance(ch: char) -> f64 {
    const LARGE: i32 = 2048;
    let size = font(LARGE).box_size(ch.encode_utf8(&mut [0; 4]));
    f64::from(size.map_or(0, |(width, _)| width)) / f64::from(LARGE)
}

/// One line of characters that XML can hold: whatever else a log or a name may have becomes a
/// space.
pub fn clean(words: &str) -> String {
    let is_unfit = |ch: char| {
        ch.is_control() || matches!(ch, '\u{fffe}' | '\u{ffff}' | '\u{2028}' | '\u{2029}')
    };
    words.replace(is_unfit, " ")
}

/// `words` with an ellipsis in place of what does not fit into `room` pixels; `head` of what stays
/// is from the start.
pub fn elide(words: &str, size: i32, room: i32, head: f64) -> String {
    if width_of(words, size) <= room {
        return words.to_owned();
    }
    let all: Vec<char> = words.chars().collect();
    let cut = |kept: usize| {
        let first = ((kept as f64 * head).round() as usize).min(kept);
        let (start, end) = (&all[..first], &all[all.len() - (kept - first)..]);
        start.iter().chain(&['…']).chain(end).collect::<String>()
    };
    let counts: Vec<usize> = (1..all.len()).collect();
    cut(counts.partition_point(|kept| width_of(&cut(*kept), size) <= room))
}

/// Each name in its `room` pixels, shortened in the middle; two that differ stay different.
pub fn elide_names(names: &[String], size: i32, room: impl Fn(usize) -> i32) -> Vec<String> {
    let cut = |head: &f64| -> Vec<String> {
        let elided = |(i, name): (usize, &String)| elide(name, size, room(i), *head);
        names.iter().enumerate().map(elided).collect()
    };
    let are_told_apart = |cut: &Vec<String>| {
        let mut pairs: Vec<_> = cut.iter().zip(names).collect();
        pairs.sort_unstable();
        let mut neighbours = pairs.windows(2);
        neighbours.all(|w| w[0].0 != w[1].0 || w[0].1 == w[1].1)
    };
    let ways = [0.5, 0.3, 0.7, 0.1, 0.9, 0.0, 1.0];
    let found = ways.iter().map(cut).find(are_told_apart);
    found.unwrap_or_else(|| cut(&0.5))
}

/// Lines no wider than `room`, broken between words; a word that is wider is shortened.
pub fn wrap(words: &str, size: i32, room: i32) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in words.split_whitespace() {
        let word = elide(word, size, room, 0.5);
        if let Some(line) = lines.last_mut() {
            let longer = format!("{line} {word}");
            if width_of(&longer, size) <= room {
                *line = longer;
                continue;
            }
        }
        lines.push(word);
    }
    lines
}
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_different_wherever_they_differ() {
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
