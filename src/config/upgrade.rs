//! config.yaml in today's spelling: the text with the keys of older suites rewritten, everything
//! else as it was.
#![cfg_attr(
    not(test),
    expect(
        clippy::string_slice,
        reason = "a wrong range has to stop the rewriting, not to drop a part of somebody's file"
    )
)]

use std::ops::Range;

use serde_yaml::Value as Yaml;

use super::{
    layers::{Config, Translation},
    places::{Place, Places},
};

/// Above keys that set nothing: figures of devices without a source.
const UNUSED: &str =
    "not used: tprimat has the data sheet's figures; to use others, state a `source` beside them";

struct Edit {
    range: Range<usize>,
    text: String,
}

impl Config {
    /// The file with today's keys. Comments stay; what has no effect is commented out.
    #[must_use]
    pub fn upgraded(&self) -> String {
        let text = &self.source.text;
        let (mut edits, mut paths) = (Vec::new(), Vec::new());
        for translation in &self.translations {
            if let Some(place) = self.places().find(&translation.from) {
                self.rewrite(translation, place, &mut edits, &mut paths);
            }
        }
        let max_steps = self.places().find("training.duration.max_steps");
        match (
            max_steps,
            self.places().find("training.duration.train_iters"),
        ) {
            (Some(old), Some(_)) => edits.push(removal(text, old)),
            (Some(old), None) => edits.push(Edit {
                range: old.key.clone(),
                text: "train_iters".into(),
            }),
            (None, _) => {}
        }
        for (canonical, spelled) in &self.spelled {
            let names = canonical
                .strip_prefix("frameworks.")
                .zip(spelled.strip_prefix("frameworks."));
            if let Some((name, old)) = names
                && !old.contains('.')
                && let Some(place) = self.places().find(spelled)
            {
                edits.push(Edit {
                    range: place.key.clone(),
                    text: name.to_owned(),
                });
            }
        }
        if let Some(place) = self.places().find("training.optimizer.type")
            && text[place.value.clone()].trim_matches(['"', '\'']) == "adam"
        {
            edits.push(Edit {
                range: place.value.clone(),
                text: "adamw".into(),
            });
        }
        with_paths(&applied(text, edits), &paths)
    }

    fn rewrite(
        &self,
        translation: &Translation,
        place: &Place,
        edits: &mut Vec<Edit>,
        paths: &mut Vec<[String; 3]>,
    ) {
        let text = &self.source.text;
        let parent = translation
            .from
            .rsplit_once('.')
            .map_or("", |(parent, _)| parent);
        let value = &text[place.value.clone()];
        let Some((first, _)) = translation.settings.first() else {
            return edits.push(commented_out(text, place));
        };
        if first.join(".") == parent
            && let Some(whole) = self.places().find(parent)
        {
            let key = &text[whole.key.clone()];
            return edits.push(Edit {
                range: whole.key.start..whole.value.end,
                text: format!("{key}: {value}"),
            });
        }
        let depth = parent.split('.').count();
        let is_beside = |to: &[String]| to.len() > depth && to[..depth].join(".") == parent;
        if translation.settings.iter().all(|(to, _)| is_beside(to)) {
            let entries: Vec<String> = translation
                .settings
                .iter()
                .map(|(to, value)| nested(&to[depth..], &scalar(value)))
                .collect();
            let between = if is_block(text, place) {
                format!("\n{}", indent(text, place))
            } else {
                ", ".to_owned()
            };
            return edits.push(Edit {
                range: place.key.start..place.value.end,
                text: entries.join(&between),
            });
        }
        for (to, _) in &translation.settings {
            let key = to.last().cloned().unwrap_or_default();
            paths.push([key, value.to_owned(), comment_after(text, place).to_owned()]);
        }
        edits.push(removal(text, place));
    }
}

/// `a: { b: value }`.
fn nested(keys: &[String], value: &str) -> String {
    match keys {
        [] => value.to_owned(),
        [key] => format!("{key}: {value}"),
        [key, below @ ..] => format!("{key}: {{ {} }}", nested(below, value)),
    }
}

fn scalar(value: &Yaml) -> String {
    serde_yaml::to_string(value)
        .unwrap_or_default()
        .trim()
        .to_owned()
}

fn line_of(text: &str, place: &Place) -> Range<usize> {
    let start = text[..place.key.start].rfind('\n').map_or(0, |at| at + 1);
    let end = text[place.value.end..]
        .find('\n')
        .map_or(text.len(), |at| place.value.end + at + 1);
    start..end
}

fn indent<'a>(text: &'a str, place: &Place) -> &'a str {
    &text[line_of(text, place).start..place.key.start]
}

/// Does the entry have its lines to itself?
fn is_block(text: &str, place: &Place) -> bool {
    let after = text[place.value.end..line_of(text, place).end].trim();
    indent(text, place).trim().is_empty() && (after.is_empty() || after.starts_with('#'))
}

/// The comment at the end of the entry's last line.
fn comment_after<'a>(text: &'a str, place: &Place) -> &'a str {
    if is_block(text, place) {
        text[place.value.end..line_of(text, place).end].trim()
    } else {
        ""
    }
}

fn removal(text: &str, place: &Place) -> Edit {
    if is_block(text, place) {
        return Edit {
            range: line_of(text, place),
            text: String::new(),
        };
    }
    // In `{ a: 1, b: 2 }` a comma goes with it: the one after it, else the one before it.
    let after = text[place.value.end..]
        .find(|c: char| !c.is_whitespace())
        .map_or(text.len(), |at| place.value.end + at);
    let range = if text[after..].starts_with(',') {
        let next = text[after + 1..]
            .find(|c: char| !c.is_whitespace())
            .unwrap_or(0);
        place.key.start..after + 1 + next
    } else {
        let before = text[..place.key.start].trim_end();
        before.strip_suffix(',').map_or(place.key.start, str::len)..place.value.end
    };
    Edit {
        range,
        text: String::new(),
    }
}

fn commented_out(text: &str, place: &Place) -> Edit {
    if !is_block(text, place) {
        return removal(text, place);
    }
    let range = line_of(text, place);
    let mut commented = format!("{}# {UNUSED}\n", indent(text, place));
    for line in text[range.clone()].split_inclusive('\n') {
        let (blank, rest) = line.split_at(line.len() - line.trim_start().len());
        commented += &format!("{blank}# {rest}");
    }
    Edit {
        range,
        text: commented,
    }
}

fn applied(text: &str, mut edits: Vec<Edit>) -> String {
    edits.sort_by_key(|edit| edit.range.start);
    let (mut new, mut at) = (String::with_capacity(text.len()), 0);
    for edit in edits {
        // An edit inside another one is a part of it.
        if edit.range.start >= at {
            new += &text[at..edit.range.start];
            new += &edit.text;
            at = edit.range.end;
        }
    }
    new + &text[at..]
}

/// Adds keys to the table `paths`: key, value, comment.
fn with_paths(text: &str, entries: &[[String; 3]]) -> String {
    if entries.is_empty() {
        return text.to_owned();
    }
    let line = |[key, value, comment]: &[String; 3], indent: &str| {
        let comment = if comment.is_empty() {
            String::new()
        } else {
            format!(" {comment}")
        };
        format!("{indent}{key}: {value}{comment}\n")
    };
    let places = Places::of(text);
    let place = places
        .find("paths")
        .filter(|place| place.is_table && !place.value.is_empty());
    let Some(place) = place else {
        let below: String = entries.iter().map(|entry| line(entry, "  ")).collect();
        return format!("{}\n\npaths:\n{below}", text.trim_end());
    };
    if text[place.value.start..].starts_with('{') {
        let below: Vec<String> = entries
            .iter()
            .map(|[key, value, _]| format!("{key}: {value}"))
            .collect();
        let at = place.value.start + 1;
        let comments: String = entries
            .iter()
            .filter(|[.., c]| !c.is_empty())
            .map(|[.., comment]| format!("{comment}\n"))
            .collect();
        let comma = if text[at..].trim_start().starts_with('}') {
            ""
        } else {
            ","
        };
        let (above, head) = text[..at].split_at(place.key.start);
        return format!(
            "{above}{comments}{head} {}{comma}{}",
            below.join(", "),
            &text[at..]
        );
    }
    let at = text[..place.value.start].rfind('\n').map_or(0, |at| at + 1);
    let indent = &text[at..place.value.start];
    let below: String = entries.iter().map(|entry| line(entry, indent)).collect();
    format!("{}{below}{}", &text[..at], &text[at..])
}
