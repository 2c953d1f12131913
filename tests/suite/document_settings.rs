//! Settings in documents and messages are those that config.yaml takes, spelled as it takes them.

use crate::documents::{code_of, pages};

/// A line of docs/config.md: "- `PATH` (TYPE; default VALUE): MEANING".
struct Key {
    path: Vec<&'static str>,
    kind: &'static str,
    meaning: &'static str,
}

static KEYS: std::sync::LazyLock<Vec<Key>> = std::sync::LazyLock::new(|| {
    let rows = include_str!("../../docs/config.md")
        .lines()
        .filter_map(|line| line.strip_prefix("- `")?.split_once("` ("));
    let key = |(path, rest): (&'static str, &'static str)| {
        let (kind, meaning) = rest.split_once("): ").expect("a meaning behind the type");
        Key {
            path: path.split('.').collect(),
            kind: kind.split("; default ").next().unwrap_or(kind),
            meaning,
        }
    };
    rows.map(key).collect()
});

impl Key {
    /// Names of the user's, and of what is shipped, stand where the page has <id>.
    fn begins(&self, path: &[&str]) -> bool {
        self.path.len() <= path.len()
            && self
                .path
                .iter()
                .zip(path)
                .all(|(a, b)| a == b || a.starts_with('<'))
    }

    /// The words that its value may be, where these are all.
    fn words(&self) -> Option<Vec<&str>> {
        if self.kind.contains('"') {
            let words = self.kind.split(", ").map(|word| word.trim_matches('"'));
            return Some(words.collect());
        }
        (self.path.last() == Some(&"sharding"))
            .then(|| self.meaning.split('`').skip(1).step_by(2).collect())
    }

    fn takes(&self, value: &str) -> bool {
        match (self.words(), self.kind) {
            (Some(words), _) => words.contains(&value.trim_matches('"')),
            (None, "boolean") => ["true", "false"].contains(&value),
            (None, "integer" | "number") => value.parse::<f64>().is_ok(),
            _ => true,
        }
    }
}

/// A key that a page names exists, and takes the value that the page gives it.
#[test]
fn settings_in_documents_are_those_of_config_yaml() {
    let form = regex::Regex::new(r"^([a-z_]+(?:\.[A-Za-z0-9_<>-]+)*)(?:(?:: |=)([^\s{}\[\],]+))?$")
        .unwrap();
    let (mut wrong, mut values) = (Vec::new(), 0);
    for (page, text) in pages() {
        for code in code_of(&text) {
            let Some(found) = form.captures(&code) else {
                continue;
            };
            let path: Vec<&str> = found[1].split('.').collect();
            let is_file = [".yaml", ".rs"]
                .iter()
                .any(|ending| found[1].ends_with(ending));
            let is_whole =
                path.len() > 1 && !is_file && KEYS.iter().any(|key| key.path[0] == path[0]);
            let named: Vec<&Key> = match is_whole {
                true => KEYS
                    .iter()
                    .filter(|key| key.begins(&path) || key.path.starts_with(&path))
                    .collect(),
                false => KEYS
                    .iter()
                    .filter(|key| key.path.ends_with(&path))
                    .collect(),
            };
            if is_whole && named.is_empty() {
                wrong.push(format!(
                    "{page}: `{code}`: docs/config.md has no {}",
                    &found[1]
                ));
            }
            let Some(value) = found
                .get(2)
                .map(|value| value.as_str())
                .filter(|_| !named.is_empty())
            else {
                continue;
            };
            values += 1;
            if !named.iter().any(|key| key.takes(value)) {
                wrong.push(format!(
                    "{page}: `{code}`: {} does not take {value}",
                    named[0].path.join(".")
                ));
            }
        }
    }
    assert!(
        wrong.is_empty() && values >= 10,
        "{values} values\n{}",
        wrong.join("\n")
    );
}

/// A word that is a value of config.yaml but for its spelling is a mistake: `zero_1` for `zero1`.
#[test]
fn words_of_settings_are_spelled_as_config_yaml_takes_them() {
    let plain = |word: &str| word.to_lowercase().replace(['-', '_'], "");
    let words: std::collections::BTreeSet<&str> =
        KEYS.iter().filter_map(Key::words).flatten().collect();
    assert!(
        words.contains("zero1") && words.contains("reduce-overhead"),
        "{words:?}"
    );
    let mut wrong = Vec::new();
    for (page, text) in pages() {
        for code in code_of(&text)
            .iter()
            .filter(|code| !words.contains(code.as_str()))
        {
            let near = words.iter().find(|word| plain(word) == plain(code));
            wrong.extend(near.map(|word| format!("{page}: `{code}` is written `{word}`")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
