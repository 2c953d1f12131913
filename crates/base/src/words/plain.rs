//! Text of strangers, made harmless before anybody sees it: names of files, values of settings and
//! lines of logs may hold commands for a terminal, for a CI system, or characters that turn the
//! direction of reading.

use std::borrow::Cow;

/// Does the character do something other than being seen? Controls, and marks and overrides of the
/// direction of writing.
#[must_use]
pub fn is_active(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// `1 cell`, `2 cells`; for nouns whose plural ends in s.
#[must_use]
pub fn counted(count: usize, noun: &str) -> String {
    let ending = if noun.ends_with('s') { "es" } else { "s" };
    match count {
        1 => format!("1 {noun}"),
        count => format!("{count} {noun}{ending}"),
    }
}

/// Text of several lines. What is replaced keeps its length in bytes, so places in a text stay
/// where they are.
#[must_use]
pub fn lines(text: &str) -> Cow<'_, str> {
    replaced(text, |c| matches!(c, '\n' | '\t'))
}

/// The same in one line.
#[must_use]
pub fn line(text: &str) -> Cow<'_, str> {
    replaced(text, |_| false)
}

fn replaced(text: &str, is_kept: fn(char) -> bool) -> Cow<'_, str> {
    let is_harmless = |c: char| !is_active(c) || is_kept(c);
    if text.chars().all(is_harmless) {
        return Cow::Borrowed(text);
    }
    let substitute = |c: char| match c.len_utf8() {
        1 if c.is_ascii_whitespace() => ' ',
        1 => '?',
        2 => '\u{b7}',
        _ => '\u{fffd}',
    };
    Cow::Owned(
        text.chars()
            .map(|c| if is_harmless(c) { c } else { substitute(c) })
            .collect(),
    )
}

/// Lines that hold tprimat's own colours as well, which are the only escapes that stay.
#[must_use]
pub fn coloured(text: &str, colours: &[&str]) -> String {
    let mut out = String::with_capacity(text.len());
    let mut pieces = text.split('\u{1b}');
    out.push_str(&lines(pieces.next().unwrap_or_default()));
    for piece in pieces {
        let escape = format!("\u{1b}{piece}");
        match colours.iter().find(|colour| escape.starts_with(**colour)) {
            Some(colour) => {
                out.push_str(colour);
                out.push_str(&lines(crate::words::part(&escape, colour.len()..)));
            }
            None => out.push_str(&lines(&escape)),
        }
    }
    out
}

/// JSON, whose strings may hold any character: what is active is written as an escape, which is the
/// same value.
#[must_use]
pub fn json(text: &str) -> Cow<'_, str> {
    let is_active = |c: char| is_active(c) && c != '\n';
    if !text.contains(is_active) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match is_active(c) {
            true => out.push_str(&format!("\\u{:04x}", c as u32)),
            false => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// Lines of which a CI system takes none for a command of its own (`::error::…`, `##[group]…`): it
/// looks at the beginning of each line, behind blanks.
#[must_use]
pub fn without_commands(text: &str) -> Cow<'_, str> {
    let is_command = |line: &str| {
        let line = line.trim_start();
        line.starts_with("::") || line.starts_with("##[") || line.starts_with("##vso[")
    };
    if !text.lines().any(is_command) {
        return Cow::Borrowed(text);
    }
    let quoted = |line: &str| {
        if is_command(line) {
            format!("| {line}")
        } else {
            line.to_owned()
        }
    };
    Cow::Owned(text.split_inclusive('\n').map(quoted).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NASTY: &str = "a\u{1b}]0;title\u{7}b\u{9b}2Jc\u{202e}d\re\tf\ng\u{7f}";

    #[test]
    fn what_moves_a_cursor_or_turns_the_reading_is_replaced() {
        assert_eq!(lines(NASTY), "a?]0;title?b·2Jc\u{fffd}d e\tf\ng?");
        assert_eq!(line(NASTY), "a?]0;title?b·2Jc\u{fffd}d e f g?");
        assert_eq!(lines("schön 日本 é́\n"), "schön 日本 é́\n");
        let colours = ["\u{1b}[1;31m", "\u{1b}[39m"];
        let shown = coloured(
            "\u{1b}[1;31mred\u{1b}[39m \u{1b}[8mhidden \u{1b}[2J\u{1b}",
            &colours,
        );
        assert_eq!(shown, "\u{1b}[1;31mred\u{1b}[39m ?[8mhidden ?[2J?");
    }

    #[test]
    fn json_keeps_its_values() {
        let value = serde_json::json!({ NASTY: [NASTY, "ü"] });
        let shown = json(&serde_json::to_string_pretty(&value).unwrap()).into_owned();
        assert!(
            !shown.chars().any(|c| is_active(c) && c != '\n'),
            "{shown:?}"
        );
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&shown).unwrap(),
            value
        );
    }

    #[test]
    fn no_line_is_a_command() {
        let text = "fine\n::error::x\n \t::add-mask::y\n##[group]z\na::b\n##vso[x]";
        let shown = without_commands(text);
        assert_eq!(
            shown,
            "fine\n| ::error::x\n|  \t::add-mask::y\n| ##[group]z\na::b\n| ##vso[x]"
        );
        assert_eq!(without_commands("## heading\n"), "## heading\n");
    }

    proptest! {
        #[test]
        fn lengths_stay_and_nothing_active_is_left(text in any::<String>()) {
            let shown = lines(&text);
            prop_assert_eq!(shown.len(), text.len());
            prop_assert!(!shown.chars().any(|c| is_active(c) && c != '\n' && c != '\t'));
            prop_assert!(!line(&text).chars().any(is_active));
        }
    }
}
