//! Rows and columns of words in a given width: one line a row, broken cells, several tables, or a
//! list.

use std::{collections::BTreeSet, fmt::Write};

use tabled::{
    builder::Builder,
    settings::{Alignment, Color, Style, formatting::AlignmentStrategy, object::Columns},
};
use tprimat_words::plain::is_active;

use super::{
    format::MISSING,
    paint::{Ink, Page, Paint},
};

#[derive(Clone, Debug)]
pub(super) struct Word {
    pub text: String,
    pub ink: Ink,
}

impl Word {
    pub fn plain(text: impl Into<String>) -> Self {
        Self {
            text: clean(&text.into()),
            ink: Ink::Plain,
        }
    }
    pub fn inked(text: impl Into<String>, ink: Ink) -> Self {
        Self {
            text: clean(&text.into()),
            ink,
        }
    }
    pub fn missing() -> Self {
        Self::inked(MISSING, Ink::Dim)
    }
}

/// Words of logs reach a terminal without their escapes and controls.
pub(super) fn clean(text: &str) -> String {
    text.chars()
        .map(|c| if is_active(c) { ' ' } else { c })
        .collect()
}

#[derive(Clone, Debug)]
pub(super) struct Column {
    pub name: String,
    /// Figures stand to the right.
    pub figures: bool,
}

/// The first column names the row.
#[derive(Clone, Debug, Default)]
pub(super) struct Sheet {
    pub columns: Vec<Column>,
    pub rows: Vec<Vec<Word>>,
}

/// Columns of text in a cell before it is broken: between words, or after a slash.
const ROOMS: [usize; 7] = [usize::MAX, 60, 40, 32, 28, 20, 14];
/// In no more room than this a figure and its parenthesis stand below each other.
const NARROW: usize = 28;

impl Sheet {
    pub fn column(&mut self, name: impl Into<String>, figures: bool) {
        self.columns.push(Column {
            name: name.into(),
            figures,
        });
    }

    /// The roomiest layout that fits.
    pub fn show(&self, page: &Page) -> String {
        self.whole(page, &ROOMS).unwrap_or_else(|| self.list(page))
    }

    /// As `show`, but columns that do not fit go into further tables below, each with the rows'
    /// names.
    pub fn show_in_parts(&self, page: &Page) -> String {
        let figures = self.columns.len().saturating_sub(1);
        for parts in 1..=figures.div_ceil(2) {
            let each = figures.div_ceil(parts);
            let tables = (1..self.columns.len()).step_by(each).map(|from| {
                let some = self.part(from, (from + each).min(self.columns.len()));
                some.whole(page, &ROOMS[..6])
            });
            if let Some(tables) = tables.collect::<Option<Vec<String>>>() {
                return tables.join("\n");
            }
        }
        self.list(page)
    }

    fn part(&self, from: usize, to: usize) -> Self {
        let columns = [&self.columns[..1], &self.columns[from..to]].concat();
        let rows = self
            .rows
            .iter()
            .map(|row| [&row[..1], &row[from..to]].concat())
            .collect();
        Self { columns, rows }
    }

    fn whole(&self, page: &Page, rooms: &[usize]) -> Option<String> {
        let room = rooms
            .iter()
            .copied()
            .find(|room| self.width(*room) <= page.width)?;
        Some(self.grid(room, page.paint))
    }

    /// Columns that the grid takes: each word with a space on either side, and a rule around each
    /// column.
    fn width(&self, room: usize) -> usize {
        let wide = |text: &str| {
            broken(text, room)
                .lines()
                .map(console::measure_text_width)
                .max()
                .unwrap_or(0)
        };
        let column = |(at, column): (usize, &Column)| {
            let words = self
                .rows
                .iter()
                .filter_map(|row| Some(wide(&row.get(at)?.text)));
            words.chain([wide(&column.name)]).max().unwrap_or(0) + 3
        };
        1 + self.columns.iter().enumerate().map(column).sum::<usize>()
    }

    fn grid(&self, room: usize, paint: Paint) -> String {
        let mut builder = Builder::default();
        builder.push_record(self.columns.iter().map(|c| broken(&c.name, room)));
        for row in &self.rows {
            builder.push_record(row.iter().map(|word| broken(&word.text, room)));
        }
        let mut table = builder.build();
        if room == usize::MAX {
            table.with(Style::rounded());
        } else {
            table.with(Style::modern_rounded());
        }
        for (i, _) in self.columns.iter().enumerate().filter(|(_, c)| c.figures) {
            table.modify(
                Columns::one(i),
                (Alignment::right(), AlignmentStrategy::PerLine),
            );
        }
        if paint == Paint::Colour {
            for (y, row) in self.rows.iter().enumerate() {
                for (x, word) in row
                    .iter()
                    .enumerate()
                    .filter(|(_, word)| word.ink != Ink::Plain)
                {
                    let (on, off) = word.ink.codes();
                    table.modify((y + 1, x), Color::new(on, off));
                }
            }
        }
        table.to_string()
    }

    /// Columns with spaces between them and no frame, and an empty line after each row whose number
    /// (from 1) is in `breaks`. Where there is no room, the last columns are left out, but never
    /// the first `least`, and a line says which.
    pub fn bare(&self, page: &Page, least: usize, breaks: &BTreeSet<usize>) -> String {
        const INDENT: &str = "  ";
        let width = |at: usize| {
            let words = self.rows.iter().map(|row| row[at].text.chars().count());
            words
                .chain([self.columns[at].name.chars().count()])
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let room = |shown: usize| {
            widths[..shown]
                .iter()
                .map(|width| width + INDENT.len())
                .sum::<usize>()
        };
        let shown = (least..=self.columns.len()).rfind(|shown| room(*shown) <= page.width);
        let Some(shown) = shown else {
            return self.list(page).trim_end().to_owned() + "\n";
        };
        let line = |words: Vec<(&str, Ink)>| {
            let mut line = String::new();
            for (at, (text, ink)) in words.into_iter().enumerate().take(shown) {
                let pad = " ".repeat(widths[at].saturating_sub(text.chars().count()));
                let text = page.paint.ink(ink, text);
                line.push_str(INDENT);
                line.push_str(&if self.columns[at].figures {
                    format!("{pad}{text}")
                } else {
                    format!("{text}{pad}")
                });
            }
            line.trim_end().to_owned() + "\n"
        };
        let mut out = line(
            self.columns
                .iter()
                .map(|column| (column.name.as_str(), Ink::Dim))
                .collect(),
        );
        for (number, row) in (1..).zip(&self.rows) {
            out.push_str(&line(
                row.iter()
                    .map(|word| (word.text.as_str(), word.ink))
                    .collect(),
            ));
            if breaks.contains(&number) && number < self.rows.len() {
                out.push('\n');
            }
        }
        if shown < self.columns.len() {
            let names: Vec<&str> = self.columns[shown..]
                .iter()
                .map(|column| column.name.as_str())
                .collect();
            let said = format!(
                "Left out for want of room: {}; a terminal of {} columns shows all.",
                names.join(", "),
                room(self.columns.len())
            );
            paragraph(&mut out, INDENT, &said, page, Ink::Dim);
        }
        out
    }

    /// Each row's name, and below it what is known of it, some to a line.
    fn list(&self, page: &Page) -> String {
        let mut out = String::new();
        for row in &self.rows {
            let (name, words) = row.split_first().expect("a row has a name");
            _ = writeln!(
                out,
                "{}",
                page.paint.ink(
                    if name.ink == Ink::Plain {
                        Ink::Strong
                    } else {
                        name.ink
                    },
                    &name.text
                )
            );
            let known = self.columns[1..]
                .iter()
                .zip(words)
                .filter(|(_, word)| word.text != MISSING);
            let parts: Vec<Word> = known
                .map(|(c, word)| Word::inked(format!("{}: {}", c.name, word.text), word.ink))
                .collect();
            flow(&mut out, "    ", &parts, page);
        }
        out.trim_end().to_owned()
    }
}

/// Parts with dots between them, in lines that are broken between parts where they can be.
pub(super) fn flow(out: &mut String, indent: &str, parts: &[Word], page: &Page) {
    const DOT: &str = " · ";
    let (mut line, mut used) = (String::new(), 0);
    for part in parts {
        let length = part.text.chars().count();
        let room = page.width.saturating_sub(indent.len());
        if used > 0 && used + DOT.chars().count() + length > room {
            _ = writeln!(out, "{indent}{line}");
            (line, used) = (String::new(), 0);
        }
        if used == 0 && length > room {
            for piece in wrapped(indent, &part.text, page.width) {
                let words = piece.trim_start();
                _ = writeln!(
                    out,
                    "{}{}",
                    piece.strip_suffix(words).unwrap_or_default(),
                    page.paint.ink(part.ink, words)
                );
            }
            continue;
        }
        if used > 0 {
            line.push_str(DOT);
            used += DOT.chars().count();
        }
        line.push_str(&page.paint.ink(part.ink, &part.text));
        used += length;
    }
    if used > 0 {
        _ = writeln!(out, "{indent}{line}");
    }
}

/// A figure and the parenthesis after it on two lines, and no line longer than `room` where it can
/// be helped.
fn broken(text: &str, room: usize) -> String {
    if room == usize::MAX {
        return text.to_owned();
    }
    let mut lines: Vec<String> = Vec::new();
    let mut line = String::new();
    let text = if room <= NARROW {
        text.replacen(" (", "\n(", 1)
    } else {
        text.to_owned()
    };
    for piece in text.split_inclusive([' ', '/', '\n', '@', '–']) {
        if !line.is_empty() && line.chars().count() + piece.trim_end().chars().count() > room {
            lines.push(std::mem::take(&mut line));
        }
        line.push_str(piece);
        if piece.ends_with('\n') {
            lines.push(std::mem::take(&mut line));
        }
    }
    lines.push(line);
    lines
        .iter()
        .map(|l| l.trim_end())
        .collect::<Vec<_>>()
        .join("\n")
}

/// Words in lines of at most `width` columns; all but the first are indented as far as `bullet`.
#[must_use]
pub fn wrapped(bullet: &str, text: &str, width: usize) -> Vec<String> {
    let indent = " ".repeat(bullet.chars().count());
    let (mut lines, mut line, mut empty) = (Vec::new(), bullet.to_owned(), true);
    // A number and its per cent sign stay together.
    let text = text.replace(" %", "\u{a0}%");
    for word in text
        .split(|c: char| c.is_ascii_whitespace())
        .filter(|word| !word.is_empty())
    {
        if !empty && line.chars().count() + 1 + word.chars().count() > width {
            lines.push(std::mem::replace(&mut line, indent.clone()));
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line.push_str(&word.replace('\u{a0}', " "));
        empty = false;
    }
    lines.push(line);
    lines
}

pub(super) fn paragraph(out: &mut String, bullet: &str, text: &str, page: &Page, ink: Ink) {
    for line in wrapped(bullet, &clean(text), page.width) {
        _ = writeln!(out, "{}", page.paint.ink(ink, &line));
    }
}
