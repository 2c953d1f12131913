//! A comparison as a comment on a pull request: the sentences first, a table a group, details
//! folded away. Never longer than GitHub takes; what is left out is said.

use std::fmt::Write;

use indexmap::IndexMap;
use tprimat_base::words::{
    part,
    plain::{counted, is_active},
};
use tprimat_numbers::figures::Comparison;

use super::{
    document::{Medium, tell},
    paint::Ink,
    sheet::{Sheet, Word},
};

/// GitHub refuses comments of more than 65,536 characters; counted in bytes, with room for what
/// closes the text.
const MOST_BYTES: usize = 64_000;
/// The most characters of one cell of a table, or of one note.
const MOST_CHARS: usize = 1_500;

#[must_use]
pub fn markdown(comparison: &Comparison) -> String {
    let mut out = Budget::default();
    out.text.push_str("### Benchmark comparison\n\n");
    tell(comparison, None, &mut out);
    out.finish()
}

/// Text of a bounded length, and how much of each kind did not fit.
#[derive(Default)]
struct Budget {
    text: String,
    left_out: IndexMap<String, usize>,
}

impl Budget {
    /// All of it or nothing. Once something of a kind is left out, the rest of that kind is too.
    fn add(&mut self, kind: &str, text: &str) {
        if self.left_out.contains_key(kind) || self.text.len() + text.len() > MOST_BYTES {
            *self.left_out.entry(kind.to_owned()).or_default() += 1;
        } else {
            self.text.push_str(text);
        }
    }

    fn finish(mut self) -> String {
        if !self.left_out.is_empty() {
            let parts = self.left_out.iter().take(10);
            let parts: Vec<String> = parts.map(|(kind, count)| counted(*count, kind)).collect();
            _ = writeln!(
                self.text,
                "**Too long for a comment, left out: {}. `compare.json` has all.**",
                parts.join(", ")
            );
        }
        self.text.truncate(self.text.trim_end().len());
        self.text.push('\n');
        self.text
    }
}

impl Medium for Budget {
    fn title(&mut self, text: &str) {
        self.add("title", &format!("#### {}\n\n", escaped(text)));
    }

    fn sentence(&mut self, _: Ink, text: &str) {
        self.add("sentence", &format!("**{}**\n\n", escaped(text)));
    }

    fn remark(&mut self, text: &str) {
        self.add("remark", &format!("{}\n\n", escaped(text)));
    }

    fn item(&mut self, ink: Ink, text: &str) {
        let is_weighty = [Ink::Bad, Ink::Alarm].contains(&ink);
        let mark = if is_weighty { "**" } else { "" };
        self.add("note", &format!("- {mark}{}{mark}\n", escaped(text)));
    }

    fn sheet(&mut self, sheet: &Sheet) {
        let heads = sheet.columns.iter().map(|(name, _)| escaped(name));
        let rule = |(_, is_figure): &(String, bool)| if *is_figure { "---:" } else { ":---" };
        let rules: Vec<&str> = sheet.columns.iter().map(rule).collect();
        let heads = heads.collect::<Vec<_>>().join(" | ");
        let head = format!("| {heads} |\n| {} |\n", rules.join(" | "));
        // A head alone is no table.
        if self.text.len() + head.len() > MOST_BYTES || self.left_out.contains_key("row") {
            *self.left_out.entry("row".to_owned()).or_default() += sheet.rows.len();
            return;
        }
        self.text.push_str(&head);
        for row in &sheet.rows {
            let word = |(at, word): (usize, &Word)| match at {
                0 => format!("<code>{}</code>", escaped(&word.text)),
                _ => escaped(&word.text),
            };
            let words: Vec<String> = row.iter().enumerate().map(word).collect();
            self.add("row", &format!("| {} |\n", words.join(" | ")));
        }
        self.text.push('\n');
    }

    /// A section that a reader opens; left out as a whole where not even its title fits.
    fn section(&mut self, title: &str, write: impl FnOnce(&mut Self)) {
        let head = format!("<details><summary>{title}</summary>\n\n");
        if self.text.len() + head.len() > MOST_BYTES {
            self.left_out.insert(format!("section “{title}”"), 1);
            return;
        }
        self.text.push_str(&head);
        write(self);
        self.text.truncate(self.text.trim_end().len());
        self.text.push_str("\n\n</details>\n\n");
    }

    fn end(&mut self) {}
}

/// Text that stays text: no markup, no table cell's end, no mention, no reference to an issue, no
/// link.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::new();
    let mut previous = ' ';
    for (i, (at, c)) in text.char_indices().enumerate() {
        if i == MOST_CHARS {
            out.push('…');
            break;
        }
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '|' | '`' | '*' | '_' | '[' | ']' | '\\' | '~' | '$' | '"' => {
                _ = write!(out, "&#{};", c as u32)
            }
            // Numbered references and mentions are found after entities are read: only another
            // character parts them.
            '#' => out.push_str("#\u{200b}"),
            // Nobody is called by a name, and an address of mail is no link.
            '@' if !previous.is_alphanumeric() || is_domain(part(text, at + 1..)) => {
                out.push_str("@\u{200b}")
            }
            // `GH-1` is a reference as well.
            '-' if out.ends_with("GH") || out.ends_with("gh") => out.push_str("-\u{200b}"),
            // `://` and `www.` begin links of their own.
            ':' if part(text, at..).starts_with("://") => out.push_str("&#58;"),
            '.' if out.ends_with("www") => out.push_str("&#46;"),
            c if c.is_control() => out.push(' '),
            // Characters that reorder what is read.
            c if is_active(c) => {}
            c => out.push(c),
        }
        previous = c;
    }
    out
}

/// Does the text begin as the part of a mail address after its `@`?
fn is_domain(text: &str) -> bool {
    text.chars()
        .take_while(|c| c.is_alphanumeric() || "-_.".contains(*c))
        .any(|c| c == '.')
}
