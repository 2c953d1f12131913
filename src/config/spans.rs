//! Where in config.yaml a path stands: an index of byte ranges, made only when someone asks.

use std::{collections::HashMap, ops::Range};

use saphyr_parser::{Event, Parser, ScalarStyle};

/// Anchors may refer to anchors, this deep.
const MAX_DEPTH: usize = 8;

#[derive(Debug, Default)]
pub(super) struct Spans {
    nodes: Vec<Node>,
    anchors: HashMap<usize, usize>,
    /// Keys that stand twice in one table.
    pub duplicates: Vec<Duplicate>,
}

#[derive(Debug)]
pub(super) struct Duplicate {
    pub key: String,
    pub first: Range<usize>,
    pub second: Range<usize>,
}

#[derive(Debug)]
struct Node {
    range: Range<usize>,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Scalar { plain: bool },
    List(Vec<usize>),
    Table(Vec<Entry>),
    Alias(usize),
}

#[derive(Debug)]
struct Entry {
    key: String,
    key_range: Range<usize>,
    value: usize,
}

/// A key that waits for its value.
type Key = (String, Range<usize>);

/// One key and its value.
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

impl Spans {
    /// Reads as far as the text is YAML.
    pub fn of(text: &str) -> Self {
        let mut spans = Self::default();
        let bytes = ByteOffsets::of(text);
        let mut open: Vec<(usize, Option<Key>)> = Vec::new();
        let mut parser = Parser::new_from_str(text);
        while let Some(Ok((event, span))) = parser.next_event() {
            let range = bytes.at(span.start.index())..bytes.at(span.end.index());
            let (kind, anchor) = match event {
                Event::Scalar(value, style, anchor, _) => {
                    if let Some((top, key @ None)) = open.last_mut()
                        && matches!(spans.nodes[*top].kind, Kind::Table(_))
                    {
                        *key = Some((value.into_owned(), trim(text, range)));
                        continue;
                    }
                    (
                        Kind::Scalar {
                            plain: style == ScalarStyle::Plain,
                        },
                        anchor,
                    )
                }
                Event::Alias(anchor) => (Kind::Alias(anchor), 0),
                Event::SequenceStart(anchor, _) => (Kind::List(Vec::new()), anchor),
                Event::MappingStart(anchor, _) => (Kind::Table(Vec::new()), anchor),
                Event::SequenceEnd | Event::MappingEnd => {
                    if let Some((done, _)) = open.pop() {
                        spans.close(text, done, range.start);
                    }
                    continue;
                }
                Event::DocumentEnd => break,
                _ => continue,
            };
            let nests = matches!(kind, Kind::List(_) | Kind::Table(_));
            let id = spans.nodes.len();
            spans.nodes.push(Node {
                range: if nests { range } else { trim(text, range) },
                kind,
            });
            if anchor != 0 {
                spans.anchors.insert(anchor, id);
            }
            if let Some((parent, key)) = open.last_mut() {
                match (&mut spans.nodes[*parent].kind, key.take()) {
                    (Kind::Table(entries), Some((key, key_range))) => entries.push(Entry {
                        key,
                        key_range,
                        value: id,
                    }),
                    // A key that is itself a list or a table: the reader refuses it by its own
                    // means.
                    (Kind::Table(_), None) => *key = Some((String::new(), 0..0)),
                    (Kind::List(items), _) => items.push(id),
                    (Kind::Scalar { .. } | Kind::Alias(_), _) => {}
                }
            }
            if nests {
                open.push((id, None));
            }
        }
        spans
    }

    /// Ends a list or table: a flow one at its bracket, a block one with what it last holds, for
    /// its end event comes only where the next thing begins.
    fn close(&mut self, text: &str, id: usize, bracket: usize) {
        let Node { range, kind } = &self.nodes[id];
        // An anchor, too, is a part of where it begins: `b: &anchor` above a block.
        let opens = text
            .get(range.clone())
            .is_some_and(|s| s.contains(['[', '{']));
        let is_flow = opens && matches!(text.as_bytes().get(bracket), Some(b']' | b'}'));
        let last = match kind {
            Kind::Table(entries) => entries
                .last()
                .map(|e| self.nodes[e.value].range.end.max(e.key_range.end)),
            Kind::List(items) => items.last().map(|item| self.nodes[*item].range.end),
            Kind::Scalar { .. } | Kind::Alias(_) => None,
        };
        let end = if is_flow {
            bracket + 1
        } else {
            last.unwrap_or(range.start)
        };
        if let Kind::Table(entries) = kind {
            let mut seen: HashMap<&str, &Range<usize>> = HashMap::new();
            for entry in entries {
                let first = *seen.entry(&entry.key).or_insert(&entry.key_range);
                if *first != entry.key_range {
                    self.duplicates.push(Duplicate {
                        key: entry.key.clone(),
                        first: first.clone(),
                        second: entry.key_range.clone(),
                    });
                }
            }
        }
        self.nodes[id].range.end = end;
    }

    pub fn find(&self, path: &str) -> Option<Place> {
        self.find_below(0, path, 0)
    }

    fn find_below(&self, table: usize, rest: &str, depth: usize) -> Option<Place> {
        let Kind::Table(entries) = &self.target(table)?.kind else {
            return None;
        };
        let below = |entry: &Entry| {
            let after = rest.strip_prefix(entry.key.as_str())?;
            if after.is_empty() {
                return Some(self.place(entry));
            }
            self.find_below(entry.value, after.strip_prefix('.')?, depth)
        };
        if let Some(place) = entries.iter().find_map(below) {
            return Some(place);
        }
        if depth == MAX_DEPTH {
            return None;
        }
        let merged = entries.iter().find(|entry| entry.key == "<<")?.value;
        match &self.target(merged)?.kind {
            Kind::List(items) => items
                .iter()
                .find_map(|item| self.find_below(*item, rest, depth + 1)),
            _ => self.find_below(merged, rest, depth + 1),
        }
    }

    fn place(&self, entry: &Entry) -> Place {
        let node = &self.nodes[entry.value];
        Place {
            key: entry.key_range.clone(),
            value: node.range.clone(),
            is_table: matches!(node.kind, Kind::Table(_)),
            is_plain: matches!(
                self.target(entry.value).map(|n| &n.kind),
                Some(Kind::Scalar { plain: true })
            ),
        }
    }

    /// The node itself, or what it is an alias of.
    fn target(&self, id: usize) -> Option<&Node> {
        let node = self.nodes.get(id)?;
        match node.kind {
            Kind::Alias(anchor) => self.anchors.get(&anchor).and_then(|id| self.nodes.get(*id)),
            _ => Some(node),
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

/// The YAML parser counts characters; carets want bytes.
enum ByteOffsets {
    Same(usize),
    Of(Vec<usize>),
}

impl ByteOffsets {
    fn of(text: &str) -> Self {
        if text.is_ascii() {
            return Self::Same(text.len());
        }
        Self::Of(
            text.char_indices()
                .map(|(at, _)| at)
                .chain([text.len()])
                .collect(),
        )
    }
    fn at(&self, character: usize) -> usize {
        match self {
            Self::Same(end) => character.min(*end),
            Self::Of(offsets) => offsets
                .get(character)
                .or(offsets.last())
                .copied()
                .unwrap_or(0),
        }
    }
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
        let spans = Spans::of(TEXT);
        let quoted = "q: \"a # \\\" b\" # c\ns: 'it''s' # d\nt: x\n";
        for (path, caret) in [("q", "\"a # \\\" b\""), ("s", "'it''s'"), ("t", "x")] {
            assert_eq!(
                &quoted[Spans::of(quoted).find(path).unwrap().caret()],
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
            assert_eq!(&TEXT[spans.find(path).unwrap().caret()], caret, "{path}");
        }
        assert_eq!(spans.find("b.none"), None);
        assert!(spans.find("b.f").unwrap().is_plain);
        assert!(!spans.find("llama-3.1.n").unwrap().is_plain);
    }

    proptest! {
        /// Whatever stands before, in or behind a value, no range ends within a character.
        #[test]
        fn ranges_end_where_characters_do(pieces in prop::collection::vec(prop::sample::select(PIECES.to_vec()), 0..16)) {
            let text = pieces.concat();
            let spans = Spans::of(&text);
            let keys = spans.duplicates.iter().map(|duplicate| &duplicate.second);
            let entries = spans.nodes.iter().filter_map(|node| match &node.kind {
                Kind::Table(entries) => Some(entries),
                _ => None,
            });
            let ranges = spans.nodes.iter().map(|node| &node.range);
            for range in keys.chain(ranges).chain(entries.flatten().map(|entry| &entry.key_range)) {
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
            let caret = Spans::of(&text).find("ü").unwrap().caret();
            assert_eq!(&text[caret], value.trim_end());
        }
    }

    #[test]
    fn duplicate_keys_are_found_at_any_depth() {
        let spans = Spans::of("a: 1\nb: {x: 1, x: 2}\na: 3\n");
        let keys: Vec<_> = spans
            .duplicates
            .iter()
            .map(|d| (d.key.as_str(), d.second.start))
            .collect();
        assert_eq!(keys, [("x", 15), ("a", 21)]);
    }

    #[test]
    fn cycles_of_merges_end() {
        assert_eq!(Spans::of("a: &a\n  <<: *a\n").find("a.b"), None);
    }
}
