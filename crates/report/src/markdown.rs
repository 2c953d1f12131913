//! A comparison as a comment on a pull request: the sentences first, a table a group, details
//! folded away. Never longer than GitHub takes; what is left out is said.

use std::fmt::Write;
use tprimat_words::part;

use tprimat_figures::{Comparison, Judged};
use tprimat_words::plain::{counted, is_active};

use super::{
    document::Document,
    headline::headlines,
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
    let told = headlines(comparison);
    let document = Document::of(comparison, &Judged::of_comparison(comparison), &told);
    out.always("### Benchmark comparison\n\n");
    for headline in &document.refused {
        let text = escaped(&headline.text);
        out.add("sentence", &format!("> **{text}**\n>\n"));
    }
    if document.refused_untold > 0 {
        let text = format!(
            "> **and {} more that may not be compared: see the notes**\n",
            document.refused_untold
        );
        out.add("sentence", &text);
    }
    out.always("\n");
    for group in &document.groups {
        out.add("title", &format!("#### {}\n\n", escaped(&group.title)));
        if let Some(text) = &group.ranking {
            out.add("sentence", &format!("**{}**\n\n", escaped(text)));
        }
        for headline in &group.leading {
            out.add("sentence", &format!("**{}**\n\n", escaped(&headline.text)));
        }
        if let Some(more) = &group.more {
            out.add("sentence", &format!("{more}.\n\n"));
        }
        out.table(&group.figures);
        for line in &group.steady_state {
            out.add("note", &format!("{}\n\n", escaped(line)));
        }
        if let Some(cost) = &group.cost {
            out.folded("Cost and efficiency", |out| out.table(cost));
        }
    }
    if comparison.groups.is_empty() {
        out.always("No cell has figures.\n\n");
    }
    if !comparison.absent.is_empty() {
        let mut sheet = Sheet::default();
        ["cell", "state", "reason"]
            .into_iter()
            .for_each(|name| sheet.column(name, false));
        sheet.rows.extend(comparison.absent.iter().map(|absent| {
            let name = format!("{}{}", absent.cell, crate::mark(&absent.imported));
            [name, absent.state.to_string(), absent.reason.text.clone()]
                .map(Word::plain)
                .to_vec()
        }));
        out.folded(
            &format!("Cells without figures ({})", comparison.absent.len()),
            |out| out.table(&sheet),
        );
    }
    if !document.environments.is_empty() {
        out.folded("Environments that are not the same", |out| {
            for found in &document.environments {
                let mark = if found.is_dangerous { "**" } else { "" };
                let text = format!("- {mark}{}{mark}\n", escaped(&found.text));
                out.add("environment", &text);
            }
            out.always("\n");
        });
    }
    if !document.notes.is_empty() {
        out.folded(&format!("Notes ({})", document.notes.len()), |out| {
            for note in &document.notes {
                out.add("note", &format!("- {}\n", escaped(&note.text)));
            }
            out.always("\n");
        });
    }
    out.finish()
}

/// Text of a bounded length, and what did not fit.
#[derive(Default)]
struct Budget {
    text: String,
    left_out: Vec<(String, usize)>,
}

impl Budget {
    fn always(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// All of it or nothing. Once something of a kind is left out, the rest of that kind is too.
    fn add(&mut self, kind: &str, text: &str) {
        let known = self.left_out.iter_mut().find(|(k, _)| k == kind);
        match known {
            Some((_, count)) => *count += 1,
            None if self.text.len() + text.len() > MOST_BYTES => {
                self.left_out.push((kind.to_owned(), 1))
            }
            None => self.text.push_str(text),
        }
    }

    fn table(&mut self, sheet: &Sheet) {
        let head: Vec<String> = sheet.columns.iter().map(|c| escaped(&c.name)).collect();
        let rule: Vec<&str> = sheet
            .columns
            .iter()
            .map(|c| if c.figures { "---:" } else { ":---" })
            .collect();
        let head = format!("| {} |\n| {} |\n", head.join(" | "), rule.join(" | "));
        // A head alone is no table.
        if self.text.len() + head.len() > MOST_BYTES
            || self.left_out.iter().any(|(kind, _)| kind == "row")
        {
            self.left_out_rows(sheet.rows.len());
            return;
        }
        self.text.push_str(&head);
        for row in &sheet.rows {
            let words = row.iter().enumerate().map(|(i, word)| match i {
                0 => format!("<code>{}</code>", escaped(&word.text)),
                _ => escaped(&word.text),
            });
            self.add(
                "row",
                &format!("| {} |\n", words.collect::<Vec<_>>().join(" | ")),
            );
        }
        self.text.push('\n');
    }

    fn left_out_rows(&mut self, count: usize) {
        match self.left_out.iter_mut().find(|(kind, _)| kind == "row") {
            Some((_, known)) => *known += count,
            None => self.left_out.push(("row".to_owned(), count)),
        }
    }

    /// A section that a reader opens; left out as a whole where not even its title fits.
    fn folded(&mut self, title: &str, content: impl FnOnce(&mut Self)) {
        let head = format!("<details><summary>{title}</summary>\n\n");
        if self.text.len() + head.len() > MOST_BYTES {
            self.left_out.push((format!("section “{title}”"), 1));
            return;
        }
        self.text.push_str(&head);
        content(self);
        self.text.push_str("</details>\n\n");
    }

    fn finish(mut self) -> String {
        if !self.left_out.is_empty() {
            let parts = self.left_out.iter();
            let parts = parts.map(|(kind, count)| counted(*count, kind));
            let parts = parts.take(10).collect::<Vec<_>>().join(", ");
            _ = writeln!(
                self.text,
                "**Too long for a comment, left out: {parts}. `compare.json` has all.**"
            );
        }
        self.text.truncate(self.text.trim_end().len());
        self.text.push('\n');
        self.text
    }
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
