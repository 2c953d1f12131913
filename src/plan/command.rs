//! The commands that messages suggest: each names what its user named, so that pasting it does what
//! is meant.

use std::path::PathBuf;

use super::{Plan, PlanRequest};

/// What a command line said of the project, its matrix and its measurements, apart from the cells.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    pub directory: Option<PathBuf>,
    pub matrix: Option<String>,
    pub sets: Vec<String>,
    pub repeats: Option<u32>,
    pub allow_drift: bool,
    pub executor: Option<String>,
}

/// Commands that take a matrix and its settings, and neither `--repeats` nor `--executor`.
const OF_SETTINGS: &[&str] = &[
    "cache restore",
    "cache set-aside",
    "doctor",
    "fit",
    "print graph",
    "history",
    "lock",
];

/// Commands that take a cell in the first place.
const OF_A_CELL: &[&str] = &["logs", "show"];

impl Asked {
    pub fn of(request: &PlanRequest) -> Self {
        Self {
            directory: request.directory.clone(),
            matrix: request.matrix.clone(),
            sets: request.sets.clone(),
            repeats: request.repeats,
            allow_drift: request.allow_drift,
            executor: request.executor.clone(),
        }
    }

    /// A command of the project, whatever its matrices.
    #[must_use]
    pub fn of_project(&self, words: &[&str]) -> String {
        let directory = self.directory.as_ref().map(|path| path.to_string_lossy());
        let directory = directory.iter().flat_map(|path| ["-C", &**path]);
        let all = ["tprimat"].into_iter().chain(directory);
        command_line(all.chain(words.iter().copied()))
    }

    /// tprimat NAME MATRIX WORDS, with the options that it needs to mean the same matrix and the
    /// same measurements. Behind a cell the matrix is named by `--matrix`, which every command
    /// takes.
    #[must_use]
    pub fn command(&self, name: &str, words: &[&str]) -> String {
        let directory = self.directory.as_ref().map(|path| path.to_string_lossy());
        let mut all = vec!["tprimat"];
        all.extend(directory.iter().flat_map(|path| ["-C", &**path]));
        all.extend(name.split(' '));
        let is_of_cells =
            OF_A_CELL.contains(&name) || words.first().is_some_and(|word| !word.starts_with('-'));
        match self.matrix.as_deref() {
            Some(matrix) if is_of_cells => {
                let (cells, options) = words.split_at(
                    words
                        .iter()
                        .position(|word| word.starts_with('-'))
                        .unwrap_or(words.len()),
                );
                all.extend(cells);
                all.extend(["--matrix", matrix]);
                all.extend(options);
            }
            matrix => {
                all.extend(matrix);
                all.extend(words);
            }
        }
        all.extend(self.sets.iter().flat_map(|set| ["--set", set]));
        let repeats = self.repeats.map(|n| n.to_string());
        if !OF_SETTINGS.contains(&name) {
            // A search makes as many runs as it takes.
            let repeats = repeats.iter().filter(|_| name != "blame");
            all.extend(repeats.flat_map(|n| ["--repeats", n]));
            all.extend(self.allow_drift.then_some("--allow-drift"));
            let executor = self.executor.as_deref();
            all.extend(executor.iter().flat_map(|word| ["--executor", word]));
        }
        command_line(all)
    }
}

/// Words as a shell takes them. Of `--option=value` only the value is quoted, and only where it has
/// to be.
#[must_use]
pub fn command_line<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    let quoted = |text: &str| shlex::try_quote(text).map_or_else(|_| text.to_owned(), Into::into);
    let word = |word: &str| match word.split_once('=') {
        Some((option, value)) if option.starts_with("--") => {
            format!("{}={}", quoted(option), quoted(value))
        }
        _ => quoted(word),
    };
    let words: Vec<String> = words.into_iter().map(word).collect();
    words.join(" ")
}

impl Plan {
    /// A command about this plan's matrix; see [`Asked::command`].
    #[must_use]
    pub fn command(&self, name: &str, words: &[&str]) -> String {
        self.asked.command(name, words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suggested_command_names_what_was_named() {
        let none = Asked::default();
        assert_eq!(none.command("build", &[]), "tprimat build");
        assert_eq!(
            none.command("show", &["a/b/c/d@lr=0.1"]),
            "tprimat show 'a/b/c/d@lr=0.1'"
        );
        let other = Asked {
            matrix: Some("my other.toml".into()),
            sets: vec!["training.seed=2".into()],
            repeats: Some(5),
            ..Asked::default()
        };
        assert_eq!(
            other.command("gate", &["--write", "FILE"]),
            "tprimat gate 'my other.toml' --write FILE --set 'training.seed=2' --repeats 5"
        );
        assert_eq!(
            other.command("logs", &["a/b/c/d", "--stacks"]),
            "tprimat logs a/b/c/d --matrix 'my other.toml' --stacks --set 'training.seed=2' --repeats 5"
        );
        let there = Asked {
            directory: Some("/a b".into()),
            matrix: Some("m".into()),
            repeats: Some(5),
            ..Asked::default()
        };
        assert_eq!(
            there.command("cache restore", &["1ab"]),
            "tprimat -C '/a b' cache restore 1ab --matrix m"
        );
    }
}
