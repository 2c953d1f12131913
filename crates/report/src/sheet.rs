//! Text for a terminal or a file: paragraphs, and rows and columns of words in a given width.

use std::ops::Range;

use tabled::{
    builder::Builder,
    settings::{Alignment, Color, Padding, Style, formatting::AlignmentStrategy, object::Columns},
};
use tprimat_base::words::plain::is_active;

use super::{
    columns::Table,
    format::MISSING,
    paint::{Ink, Page, Paint},
    shown::Shown,
};

#[derive(Clone, Debug)]
pub(super) struct Word {
    pub text: String,
    pub ink: Ink,
}

impl Word {
    pub fn plain(text: impl Into<String>) -> Self {
        Self::inked(text, Ink::Plain)
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

impl From<&Shown> for Word {
    fn from(shown: &Shown) -> Self {
        Self::inked(shown.line(), shown.ink)
    }
}

/// Words of logs reach a terminal without their escapes and controls.
pub(super) fn clean(text: &str) -> String {
    text.chars()
        .map(|c| if is_active(c) { ' ' } else { c })
        .collect()
}

/// A table of words. Where it is wider than the page, its columns go into several tables below each
/// other, each with the names of the rows.
#[derive(Clone, Debug)]
pub(super) struct Sheet {
    /// Each with whether it has figures, which stand to the right.
    pub columns: Vec<(String, bool)>,
    pub rows: Vec<Vec<Word>>,
    /// How many of the first columns name a row.
    pub names: usize,
}

/// What stands left of each column.
const INDENT: &str = "  ";

impl Sheet {
    pub fn new(columns: &[(&str, bool)], names: usize) -> Self {
        let column = |(name, is_figure): &(&str, bool)| ((*name).to_owned(), *is_figure);
        Self {
            columns: columns.iter().map(column).collect(),
            rows: Vec::new(),
            names,
        }
    }

    /// The figures of a table behind the names of its rows.
    pub fn of(head: &str, names: impl IntoIterator<Item = String>, table: &Table) -> Self {
        let mut sheet = Self::new(&[(head, false)], 1);
        sheet.columns.extend(table.heads.iter().cloned());
        let row = |(name, figures): (String, &Vec<Shown>)| {
            let figures = figures.iter().map(Word::from);
            std::iter::once(Word::plain(name)).chain(figures).collect()
        };
        sheet.rows = names.into_iter().zip(&table.rows).map(row).collect();
        sheet
    }

    pub fn show(&self, page: &Page) -> String {
        let half = (page.width / 2).saturating_sub(INDENT.len()).max(1);
        let names = self.rooms(0..self.names, half);
        let taken: usize = names.iter().map(|room| room + INDENT.len()).sum();
        let most = page.width.saturating_sub(taken + INDENT.len()).max(1);
        let rooms = self.rooms(self.names..self.columns.len(), most);
        let mut tables: Vec<Range<usize>> = Vec::new();
        let mut used = 0;
        for (at, room) in (self.names..).zip(&rooms) {
            let width = room + INDENT.len();
            match tables.last_mut() {
                Some(last) if taken + used + width <= page.width => {
                    last.end = at + 1;
                    used += width;
                }
                _ => {
                    tables.push(at..at + 1);
                    used = width;
                }
            }
        }
        let rooms = [names, rooms].concat();
        let mut text = Text::new(page);
        for some in tables {
            let shown: Vec<usize> = (0..self.names).chain(some).collect();
            if !text.out.is_empty() {
                text.gap();
            }
            let grid = self.grid(&shown, &rooms, page.paint);
            grid.lines().for_each(|line| text.raw(line.trim_end()));
        }
        text.out
    }

    /// What each of these columns takes where none has more than `most`.
    fn rooms(&self, columns: Range<usize>, most: usize) -> Vec<usize> {
        let width = |text: &str| {
            let broken = broken(text, most);
            broken.lines().map(console::measure_text_width).max()
        };
        let room = |at: usize| {
            let words = self.rows.iter().map(|row| row[at].text.as_str());
            let all = words.chain([self.columns[at].0.as_str()]);
            all.filter_map(width).max().unwrap_or(0)
        };
        columns.map(room).collect()
    }

    /// Some of the columns, none wider than it has room.
    fn grid(&self, shown: &[usize], rooms: &[usize], paint: Paint) -> String {
        let mut builder = Builder::default();
        let head = |at: &usize| broken(&self.columns[*at].0, rooms[*at]);
        builder.push_record(shown.iter().map(head));
        for row in &self.rows {
            let word = |at: &usize| broken(&row[*at].text, rooms[*at]);
            builder.push_record(shown.iter().map(word));
        }
        let mut table = builder.build();
        table
            .with(Style::empty())
            .with(Padding::new(INDENT.len(), 0, 0, 0));
        for (x, at) in shown.iter().enumerate() {
            if self.columns[*at].1 {
                let right = (Alignment::right(), AlignmentStrategy::PerLine);
                table.modify(Columns::one(x), right);
            }
            let inks = self.rows.iter().map(|row| row[*at].ink);
            for (y, ink) in std::iter::once(Ink::Dim).chain(inks).enumerate() {
                if paint == Paint::Colour && ink != Ink::Plain {
                    let (on, off) = ink.codes();
                    table.modify((y, x), Color::new(on, off));
                }
            }
        }
        table.to_string()
    }
}

/// Text in lines that are no longer than `room` where it can be helped.
fn broken(text: &str, room: usize) -> String {
    let mut lines = vec![String::new()];
    for piece in text.split_inclusive([' ', '/', '@', '–']) {
        let line = lines.last_mut().expect("there is one from the beginning");
        let width = line.chars().count() + piece.trim_end().chars().count();
        if line.is_empty() || width <= room {
            line.push_str(piece);
        } else {
            lines.push(piece.to_owned());
        }
    }
    let lines: Vec<&str> = lines.iter().map(|line| line.trim_end()).collect();
    lines.join("\n")
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

/// Text for a terminal or a file, made paragraph by paragraph.
pub(super) struct Text<'a> {
    pub out: String,
    pub page: &'a Page,
}

impl<'a> Text<'a> {
    pub fn new(page: &'a Page) -> Self {
        let out = String::new();
        Self { out, page }
    }

    pub fn say(&mut self, text: &str) {
        self.item("", Ink::Plain, text);
    }

    pub fn inked(&mut self, ink: Ink, text: &str) {
        self.item("", ink, text);
    }

    /// A paragraph behind a bullet, as far as which all of its lines but the first are indented.
    pub fn item(&mut self, bullet: &str, ink: Ink, text: &str) {
        for line in wrapped(bullet, &clean(text), self.page.width) {
            self.raw(&self.page.paint.ink(ink, &line));
        }
    }

    pub fn sheet(&mut self, sheet: &Sheet) {
        self.raw(&sheet.show(self.page));
    }

    /// Lines as they are.
    pub fn raw(&mut self, lines: &str) {
        self.out.push_str(lines.trim_end_matches('\n'));
        self.out.push('\n');
    }

    /// An empty line.
    pub fn gap(&mut self) {
        self.out.push('\n');
    }

    /// The text without what is empty at its end.
    pub fn finish(self) -> String {
        self.out.trim_end().to_owned() + "\n"
    }
}
