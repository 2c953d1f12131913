//! A line with named places, `step <step> loss <loss>`, as a pattern.

use super::fields::Field;

/// A number as trainers print it: `0.48`, `12,345`, `12'345`, `3e-4`, `41.2k`, `nan`.
const NUMBER: &str = r"[-+]?(?:\.?\d(?:[\d.,]*\d|['\x{2019}\x{a0}\x{2009}\x{202f}]\d{3})*(?:[eE][-+]?\d+)?[kKM]?|(?i:nan|inf(?:inity)?))";

/// The pattern that such a line stands for; a text that is a pattern already comes back as it is.
///
/// The text between the places must be in the log as it stands, with any number of blanks where it
/// has some.
pub fn pattern_of(text: &str) -> String {
    let has_groups = ["(?P<", "(?<"].iter().any(|sign| text.contains(sign));
    if has_groups || place(text).is_none() {
        return text.to_owned();
    }
    let (mut pattern, mut rest) = (String::new(), text);
    while let Some((before, name, behind)) = place(rest) {
        literal(before, &mut pattern);
        let what = match Field::named(name) {
            Some(Field::Step) => r"\d+",
            Some(Field::Effective(_)) => r"\S+",
            _ => NUMBER,
        };
        pattern.push_str(&format!("(?P<{name}>{what})"));
        rest = behind;
    }
    literal(rest, &mut pattern);
    pattern
}

/// The first `<name>` of a text, with what stands before and behind it.
fn place(text: &str) -> Option<(&str, &str, &str)> {
    let is_name = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_lowercase())
            && name
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    text.match_indices('<').find_map(|(at, _)| {
        let (before, rest) = text.split_at_checked(at)?;
        let (name, behind) = rest.strip_prefix('<')?.split_once('>')?;
        is_name(name).then_some((before, name, behind))
    })
}

fn literal(text: &str, pattern: &mut String) {
    let mut is_blank = false;
    for c in text.chars() {
        if !c.is_whitespace() {
            pattern.push_str(&regex::escape(c.encode_utf8(&mut [0; 4])));
        } else if !is_blank {
            pattern.push_str(r"\s+");
        }
        is_blank = c.is_whitespace();
    }
}
