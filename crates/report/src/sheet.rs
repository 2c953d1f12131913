//! Text for a terminal or a file: paragraphs, and rows and columns of words in a given width (one line a
//! row, broken cells, several tables, or a list).

use std::{collections::BTreeSet, ops::Range};

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

/// Where a sheet may be shown without all of its columns.
#[derive(Clone, Debug)]
pub(super) enum Layout {
    /// A frame around every column, in the roomiest way that fits.
    Framed,
    /// As framed; columns that do not fit go into further tables below, each with the rows' names.
    Parts,
    /// Spaces between columns and no frame. Where there is no room, the last columns are left out, but
    /// never the first `least`, and a line says which. An empty line follows each row whose number
    /// (from 1) is in `breaks`.
    Bare {
        least: usize,
        breaks: BTreeSet<usize>,
    },
    /// As bare; columns that do not fit go into further tables below, each with the first `axes`.
    Stacked { axes: usize },
}

/// A table of words. The first column names the row.
#[derive(Clone, Debug)]
pub(super) struct Sheet {
    /// Each with whether it has figures, which stand to the right.
    pub columns: Vec<(String, bool)>,
    pub rows: Vec<Vec<Word>>,
    pub layout: Layout,
}

/// Columns of text in a cell before it is broken: between words, or after a slash.
const ROOMS: [usize; 7] = [usize::MAX, 60, 40, 32, 28, 20, 14];
/// In no more room than this a figure and its parenthesis stand below each other.
const NARROW: usize = 28;

impl Sheet {
    pub fn new(columns: &[(&str, bool)], layout: Layout) -> Self {
        let column = |(name, is_figure): &(&str, bool)| ((*name).to_owned(), *is_figure);
        Self {
            columns: columns.iter().map(column).collect(),
            rows: Vec::new(),
            layout,
        }
    }

    /// The figures of a table behind the names of its rows.
    pub fn of(
        head: &str,
        names: impl IntoIterator<Item = String>,
        table: &Table,
        layout: Layout,
    ) -> Self {
        let mut sheet = Self::new(&[(head, false)], layout);
        sheet.columns.extend(table.heads.iter().cloned());
        let row = |(name, figures): (String, &Vec<Shown>)| {
            let figures = figures.iter().map(Word::from);
            std::iter::once(Word::plain(name)).chain(figures).collect()
        };
        sheet.rows = names.into_iter().zip(&table.rows).map(row).collect();
        sheet
    }

    pub fn show(&self, page: &Page) -> String {
        let found = match &self.layout {
            Layout::Framed => self.framed(page, &ROOMS),
            Layout::Parts => self.in_parts(page),
            Layout::Bare { least, breaks } => self.bare(page, *least, breaks),
            Layout::Stacked { axes } => Some(self.stacked(page, *axes)),
        };
        found.unwrap_or_else(|| self.list(page))
    }

    fn in_parts(&self, page: &Page) -> Option<String> {
        let figures = self.columns.len().saturating_sub(1);
        (1..=figures.div_ceil(2)).find_map(|parts| {
            let each = figures.div_ceil(parts);
            let tables = (1..self.columns.len()).step_by(each).map(|from| {
                let some = self.part(1, from..(from + each).min(self.columns.len()));
                some.framed(page, &ROOMS[..6])
            });
            Some(tables.collect::<Option<Vec<String>>>()?.join("\n"))
        })
    }

    /// The first columns and some of the others.
    fn part(&self, first: usize, some: Range<usize>) -> Self {
        let rows = self.rows.iter();
        let rows = rows.map(|row| [&row[..first], &row[some.clone()]].concat());
        Self {
            rows: rows.collect(),
            columns: [&self.columns[..first], &self.columns[some.clone()]].concat(),
            layout: self.layout.clone(),
        }
    }

    fn framed(&self, page: &Page, rooms: &[usize]) -> Option<String> {
        // Each word has a space on either side, and there is a rule around each column.
        let fits = |room: &&usize| self.width(**room, 3) < page.width;
        rooms
            .iter()
            .find(fits)
            .map(|room| self.grid(*room, page.paint))
    }

    /// What the columns take, with so much between them.
    fn width(&self, room: usize, between: usize) -> usize {
        let wide = |text: &str| {
            let text = broken(text, room);
            text.lines()
                .map(console::measure_text_width)
                .max()
                .unwrap_or(0)
        };
        let column = |(at, (name, _)): (usize, &(String, bool))| {
            let words = self.rows.iter().map(|row| wide(&row[at].text));
            words.max().unwrap_or(0).max(wide(name)) + between
        };
        self.columns.iter().enumerate().map(column).sum()
    }

    fn grid(&self, room: usize, paint: Paint) -> String {
        let mut builder = Builder::default();
        builder.push_record(self.columns.iter().map(|(name, _)| broken(name, room)));
        for row in &self.rows {
            builder.push_record(row.iter().map(|word| broken(&word.text, room)));
        }
        let mut table = builder.build();
        let heads = match &self.layout {
            Layout::Bare { .. } | Layout::Stacked { .. } => {
                table
                    .with(Style::empty())
                    .with(Padding::new(INDENT.len(), 0, 0, 0));
                Ink::Dim
            }
            _ if room == usize::MAX => {
                table.with(Style::rounded());
                Ink::Plain
            }
            _ => {
                table.with(Style::modern_rounded());
                Ink::Plain
            }
        };
        for (at, _) in self
            .columns
            .iter()
            .enumerate()
            .filter(|(_, (_, is_figure))| *is_figure)
        {
            table.modify(
                Columns::one(at),
                (Alignment::right(), AlignmentStrategy::PerLine),
            );
        }
        let heads = vec![heads; self.columns.len()];
        let inks = self
            .rows
            .iter()
            .map(|row| row.iter().map(|word| word.ink).collect());
        for (y, row) in std::iter::once(heads).chain(inks).enumerate() {
            for (x, ink) in row.into_iter().enumerate() {
                if paint == Paint::Colour && ink != Ink::Plain {
                    let (on, off) = ink.codes();
                    table.modify((y, x), Color::new(on, off));
                }
            }
        }
        table.to_string()
    }

    fn bare(&self, page: &Page, least: usize, breaks: &BTreeSet<usize>) -> Option<String> {
        let first = |count: usize| self.part(1, 1..count);
        let width = |sheet: &Self| sheet.width(usize::MAX, INDENT.len());
        let shown =
            (least..=self.columns.len()).rfind(|count| width(&first(*count)) <= page.width)?;
        let mut text = Text::new(page);
        let grid = first(shown).grid(usize::MAX, page.paint);
        for (number, line) in grid.lines().enumerate() {
            text.raw(line.trim_end());
            if breaks.contains(&number) {
                text.gap();
            }
        }
        if shown < self.columns.len() {
            let names: Vec<&str> = self.columns[shown..]
                .iter()
                .map(|(name, _)| name.as_str())
                .collect();
            let said = format!(
                "Left out for want of room: {}; a terminal of {} columns shows all.",
                names.join(", "),
                width(self)
            );
            text.item(INDENT, Ink::Dim, &said);
        }
        Some(text.out)
    }

    fn stacked(&self, page: &Page, axes: usize) -> String {
        let mut tables: Vec<Range<usize>> = Vec::new();
        for at in axes..self.columns.len() {
            let fits = |last: &Range<usize>| {
                let wider = self.part(axes, last.start..at + 1);
                wider.width(usize::MAX, INDENT.len()) <= page.width
            };
            match tables.last_mut() {
                Some(last) if fits(last) => last.end = at + 1,
                _ => tables.push(at..at + 1),
            }
        }
        let mut text = Text::new(page);
        for some in tables {
            let grid = self.part(axes, some).grid(usize::MAX, page.paint);
            grid.lines().for_each(|line| text.raw(line.trim_end()));
        }
        text.out
    }

    /// Each row's name, and below it what is known of it, a line each.
    fn list(&self, page: &Page) -> String {
        let mut text = Text::new(page);
        for row in &self.rows {
            let ink = row[0].ink;
            text.item(
                "",
                if ink == Ink::Plain { Ink::Strong } else { ink },
                &row[0].text,
            );
            let known = self.columns.iter().zip(row).skip(1);
            for ((name, _), word) in known.filter(|(_, word)| word.text != MISSING) {
                text.item("    ", word.ink, &format!("{name}: {}", word.text));
            }
        }
        text.out
    }
}

const INDENT: &str = "  ";

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
