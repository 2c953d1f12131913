//! Where in config.yaml each path stands: byte ranges, from the events of the YAML parser.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Range,
};

use saphyr_parser::{Event, Parser, ScalarStyle};

use super::nested::join;

/// Aliases of aliases grow without end: what is beyond so many paths has the place of a table above.
const MOST_PATHS: usize = 100_000;

/// Where one key and its value stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub key: Range<usize>,
    pub value: Range<usize>,
    pub is_table: bool,
    /// Written without quotes.
    pub is_plain: bool,
}

impl Place {
    /// What a caret should point at: the value, or the key of a table or of nothing.
    pub fn caret(&self) -> Range<usize> {
        if self.is_table || self.value.is_empty() {
            self.key.clone()
        } else {
            self.value.clone()
        }
    }
}

/// A key that stands twice in one table.
#[derive(Debug)]
pub(super) struct Duplicate {
    pub key: String,
    pub first: Range<usize>,
    pub second: Range<usize>,
}

#[derive(Debug, Default)]
pub(super) struct Places {
    by_path: BTreeMap<String, Place>,
    pub duplicates: Vec<Duplicate>,
}

/// A list or a table that has begun.
struct Open {
    path: String,
    is_table: bool,
    begin: Range<usize>,
    /// Where what it holds so far ends.
    end: usize,
    /// The key that waits for its value.
    key: Option<(String, Range<usize>)>,
    seen: HashMap<String, Range<usize>>,
    items: usize,
    /// Does it have a key `<<`?
    is_merged: bool,
}

/// What an anchor names.
#[derive(Clone)]
struct Anchored {
    path: String,
    is_plain: bool,
}

struct PlaceReader<'a> {
    text: &'a str,
    places: Places,
    open: Vec<Open>,
    anchors: HashMap<usize, Anchored>,
}

impl Places {
    /// Reads as far as the text is YAML.
    pub fn of(text: &str) -> Self {
        let mut reader = PlaceReader {
            text,
            places: Self::default(),
            open: Vec::new(),
            anchors: HashMap::new(),
        };
        let offsets = byte_offsets(text);
        let at = |character: usize| match &offsets {
            None => character.min(text.len()),
            Some(offsets) => offsets.get(character).copied().unwrap_or(text.len()),
        };
        let mut parser = Parser::new_from_str(text);
        while let Some(Ok((event, span))) = parser.next_event() {
            if event == Event::DocumentEnd {
                break;
            }
            reader.event(event, at(span.start.index())..at(span.end.index()));
        }
        reader.places
    }

    pub fn find(&self, path: &str) -> Option<&Place> {
        self.by_path.get(path)
    }

    /// Gives what is below `to` the places of what is below `from`, as far as it has none of its own.
    fn copy(&mut self, from: &str, to: &str) {
        let from = format!("{from}.");
        let below = self.by_path.range(from.clone()..);
        let below = below.take_while(|(path, _)| path.starts_with(&from));
        let copies: Vec<(String, Place)> = below
            .filter_map(|(path, place)| Some((join(to, path.strip_prefix(&from)?), place.clone())))
            .collect();
        for (path, place) in copies {
            if self.by_path.len() < MOST_PATHS {
                self.by_path.entry(path).or_insert(place);
            }
        }
    }
}

impl PlaceReader<'_> {
    fn event(&mut self, event: Event<'_>, range: Range<usize>) {
        match event {
            Event::Scalar(text, style, anchor, _) => {
                let range = trim(self.text, range);
                if let Some(table) = self.open.last_mut().filter(|open| open.is_table)
                    && table.key.is_none()
                {
                    let key = text.into_owned();
                    if let Some(first) = table.seen.get(&key) {
                        self.places.duplicates.push(Duplicate {
                            key: key.clone(),
                            first: first.clone(),
                            second: range.clone(),
                        });
                    } else {
                        table.seen.insert(key.clone(), range.clone());
                    }
                    table.key = Some((key, range));
                    return;
                }
                let is_plain = style == ScalarStyle::Plain;
                self.name(anchor, is_plain);
                self.value(range, false, is_plain);
            }
            Event::Alias(anchor) => {
                let path = self.path_of_next();
                let named = self.anchors.get(&anchor).cloned();
                let is_plain = named.as_ref().is_some_and(|named| named.is_plain);
                self.value(trim(self.text, range), false, is_plain);
                if let Some(named) = named {
                    self.places.copy(&named.path, &path);
                }
            }
            Event::SequenceStart(anchor, _) => self.begin(range, anchor, false),
            Event::MappingStart(anchor, _) => self.begin(range, anchor, true),
            Event::SequenceEnd | Event::MappingEnd => self.end(range.start),
            _ => {}
        }
    }

    /// The path of the value that comes next. Tables of a list that is merged count as one; the items
    /// of other lists have paths that nobody asks for.
    fn path_of_next(&self) -> String {
        let Some(open) = self.open.last() else {
            return String::new();
        };
        match &open.key {
            Some((key, _)) => join(&open.path, key),
            None if open.path.ends_with("<<") => open.path.clone(),
            None => join(&open.path, &format!("\0{}", open.items)),
        }
    }

    fn name(&mut self, anchor: usize, is_plain: bool) {
        let path = self.path_of_next();
        if anchor != 0 {
            self.anchors.insert(anchor, Anchored { path, is_plain });
        }
    }

    fn begin(&mut self, begin: Range<usize>, anchor: usize, is_table: bool) {
        self.name(anchor, false);
        self.open.push(Open {
            path: self.path_of_next(),
            is_table,
            end: begin.start,
            begin,
            key: None,
            seen: HashMap::new(),
            items: 0,
            is_merged: false,
        });
    }

    /// Ends a list or table: a flow one at its bracket, a block one with what it last holds, for its
    /// end event comes only where the next thing begins.
    fn end(&mut self, bracket: usize) {
        let Some(done) = self.open.pop() else { return };
        if done.is_merged {
            let merged = join(&done.path, "<<");
            self.places.copy(&merged, &done.path);
        }
        // An anchor, too, is a part of where it begins: `b: &anchor` above a block.
        let opens = self.text.get(done.begin.clone());
        let is_flow = opens.is_some_and(|begin| begin.contains(['[', '{']))
            && matches!(self.text.as_bytes().get(bracket), Some(b']' | b'}'));
        let end = if is_flow { bracket + 1 } else { done.end };
        self.value(done.begin.start..end, done.is_table, false);
    }

    /// A value is complete: it has its place below the list or table that holds it.
    fn value(&mut self, value: Range<usize>, is_table: bool, is_plain: bool) {
        let path = self.path_of_next();
        let Some(holder) = self.open.last_mut() else {
            return;
        };
        holder.end = value.end;
        holder.items += 1;
        // A key that is itself a list or a table: the reader refuses it by its own means.
        if holder.is_table && holder.key.is_none() {
            holder.key = Some((String::new(), 0..0));
            return;
        }
        if let Some((name, key)) = holder.key.take() {
            holder.end = value.end.max(key.end);
            holder.is_merged |= name == "<<";
            let place = Place {
                key,
                value,
                is_table,
                is_plain,
            };
            self.places.by_path.entry(path).or_insert(place);
        }
    }
}

/// The range of a value without what follows it: blanks, and after a quoted one a comment as well.
fn trim(text: &str, range: Range<usize>) -> Range<usize> {
    let shown = text.get(range.clone()).unwrap_or("");
    let mut characters = shown.char_indices();
    let Some((_, quote @ ('"' | '\''))) = characters.next() else {
        return range.start..range.start + shown.trim_end().len();
    };
    while let Some((at, c)) = characters.next() {
        let is_doubled = c == '\''
            && quote == '\''
            && characters
                .clone()
                .next()
                .is_some_and(|(_, next)| next == quote);
        if c == '\\' && quote == '"' || is_doubled {
            characters.next();
        } else if c == quote {
            return range.start..range.start + at + 1;
        }
    }
    range.start..range.start + shown.trim_end().len()
}

/// Where each character of a text begins, for the parser counts characters; none where those are
/// bytes.
fn byte_offsets(text: &str) -> Option<Vec<usize>> {
    (!text.is_ascii()).then(|| text.char_indices().map(|(at, _)| at).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: &str = "a: 1\nb:\n  é: [1, 2]   # x\n  d: {x: 1, y: 2}\n  'q r': |\n    block\n    text\n  e:\n  \
        f: plain  text # c\nl:\n  - 1\n  - two\nllama-3.1:\n  n: \"quoted\"\nbase: &base {k: v}\nsame: *base\n\
        more:\n  <<: [*base]\n  z: end";

    #[test]
    fn every_path_has_its_bytes() {
        let places = Places::of(TEXT);
        let quoted = "q: \"a # \\\" b\" # c\ns: 'it''s' # d\nt: x\n";
        for (path, caret) in [("q", "\"a # \\\" b\""), ("s", "'it''s'"), ("t", "x")] {
            assert_eq!(
                &quoted[Places::of(quoted).find(path).unwrap().caret()],
                caret,
                "{path}"
            );
        }
        let cases = [
            ("a", "1"),
            ("b.é", "[1, 2]"),
            ("b.d", "d"),
            ("b.d.y", "2"),
            ("b.q r", "block\n    text"),
            ("b.e", "e"),
            ("b.f", "plain  text"),
            ("l", "- 1\n  - two"),
            ("llama-3.1.n", "\"quoted\""),
            ("same.k", "v"),
            ("more.k", "v"),
            ("more.z", "end"),
        ];
        for (path, caret) in cases {
            assert_eq!(&TEXT[places.find(path).unwrap().caret()], caret, "{path}");
        }
        assert_eq!(places.find("b.none"), None);
        assert!(places.find("b.f").unwrap().is_plain);
        assert!(!places.find("llama-3.1.n").unwrap().is_plain);
    }

    proptest! {
        /// Whatever stands before, in or behind a value, no range ends within a character.
        #[test]
        fn ranges_end_where_characters_do(pieces in prop::collection::vec(prop::sample::select(PIECES.to_vec()), 0..16)) {
            let text = pieces.concat();
            let places = Places::of(&text);
            let keys = places.duplicates.iter().map(|duplicate| &duplicate.second);
            let ranges = places.by_path.values().flat_map(|place| [&place.key, &place.value]);
            for range in keys.chain(ranges) {
                prop_assert!(text.get(range.clone()).is_some(), "{range:?} of {text:?}");
            }
        }
    }

    /// What random texts are put together from, so that most of them are YAML.
    const PIECES: [&str; 20] = [
        "a: ",
        "é: ",
        "- ",
        "\n",
        "\n  ",
        "\n    ",
        "{",
        "}",
        "[",
        "]",
        ", ",
        "'é'",
        "\"€\\\"😀\"",
        "'",
        "\"",
        "ü # ö\n",
        "&x ",
        "*x",
        "|\n  é\n",
        "? ",
    ];

    #[test]
    fn the_caret_of_a_quoted_value_with_wide_characters_is_the_value() {
        for value in ["'é'", "'a''é€'", "\"😀\\\"é\"", "'é' ", "é"] {
            let text = format!("ü: {value} # ö\n");
            let caret = Places::of(&text).find("ü").unwrap().caret();
            assert_eq!(&text[caret], value.trim_end());
        }
    }

    #[test]
    fn duplicate_keys_are_found_at_any_depth() {
        let places = Places::of("a: 1\nb: {x: 1, x: 2}\na: 3\n");
        let keys: Vec<_> = places
            .duplicates
            .iter()
            .map(|d| (d.key.as_str(), d.second.start))
            .collect();
        assert_eq!(keys, [("x", 15), ("a", 21)]);
    }

    #[test]
    fn cycles_of_merges_end() {
        assert_eq!(Places::of("a: &a\n  <<: *a\n").find("a.b"), None);
    }
}
