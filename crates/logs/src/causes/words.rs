//! The words by which logs tell of failures: `words.toml` and the shapes of lines.

use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use serde::Deserialize;

use crate::{FailureClass as Class, pattern::Pattern};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Says {
    Fatal,
    Raised,
    Hint,
    Shell,
    Interpreter,
    Exception,
    Traceback,
    Consequence,
    Launcher,
    Root,
}

#[derive(Deserialize)]
pub struct Group {
    pub says: Says,
    pub class: Option<Class>,
    pub words: Vec<String>,
}

#[derive(Deserialize)]
pub struct Table {
    pub passing: Vec<String>,
    pub of_others: Vec<String>,
    #[serde(rename = "group")]
    pub groups: Vec<Group>,
}

pub static TABLE: LazyLock<Table> =
    LazyLock::new(|| toml::from_str(include_str!("words.toml")).expect("a table of our own"));

/// Finds the words of all groups; the group of each.
static FINDER: LazyLock<(AhoCorasick, Vec<usize>)> = LazyLock::new(|| {
    let groups = TABLE.groups.iter().enumerate();
    let all = groups.flat_map(|(at, group)| group.words.iter().map(move |word| (at, word)));
    let (groups, words): (Vec<_>, Vec<_>) = all.unzip();
    let finder = AhoCorasick::builder()
        .match_kind(MatchKind::LeftmostFirst)
        .kind(Some(AhoCorasickKind::DFA))
        .build(words);
    (finder.expect("a few short words"), groups)
});

/// The groups of the words in a line, in their order.
pub fn groups_in(text: &str) -> impl Iterator<Item = usize> {
    let (finder, groups) = &*FINDER;
    let words = finder.find_iter(text);
    words.map(|word| groups[word.pattern().as_usize()])
}

/// `[rank3]: `, `[default0]:`, `3: ` and the like, which launchers and loggers put before a line.
static PREFIXES: Pattern = Pattern::new(r"^(?:(?:\[[^\]]*\]:?|[:>]|[0-9]+: )\s*)+");

/// A line without the prefixes that launchers and loggers put before it.
pub fn message(line: &str) -> &str {
    let text = line.trim_start();
    let of_rank = text.find("[rank").filter(|at| *at < 80).unwrap_or(0);
    let text = text.split_at(of_rank).1;
    let prefixes = PREFIXES.find(text).map_or(0, |found| found.end());
    text.split_at(prefixes).1
}

static EXCEPTION: Pattern =
    Pattern::new(r"^(?:[^: ]*\.)?([A-Za-z0-9_]*(?:Error|Exception))(?:[: ]|$)");

/// What a line raises: `torch.OutOfMemoryError: …` → `OutOfMemoryError`.
pub fn exception(text: &str) -> Option<&str> {
    let is_cpp = || text.contains("terminate called after throwing");
    let raised = EXCEPTION.groups(message(text)).map(|[name]| name);
    raised.or_else(|| is_cpp().then_some("terminate"))
}

/// `/usr/bin/python3.11: No module named x`.
pub static OF_PYTHON: Pattern = Pattern::new(r"^(?:[^:]*/)?python[^ /:]*(?:: |$)");

/// `bash: x: command not found`, `/bin/sh: 1: x: not found`, `run.sh: line 3: …`, `slurmstepd:
/// error: execve(): …`.
pub static OF_SHELL: Pattern = Pattern::new(
    r"^(?:[^:]*/)?(?:bash|sh|dash|zsh|env|nohup|python|python3|srun|slurmstepd|exec|docker|[^:/]*\.sh)(?::|$)",
);

/// A line that ends a traceback's frames, which are indented. A launcher puts `[rank0]: ` before
/// each line.
pub static BELOW_FRAMES: Pattern =
    Pattern::new(r"^(?:\[rank.*?\]: ?)?[A-Za-z_][A-Za-z0-9_.]*(?::|\s*$)");

static ZERO: Pattern = Pattern::new(r"^[^0-9]*0+(?:[^0-9]|$)");

/// `exited with code 0` is no failure.
pub fn says_failure(text: &str) -> bool {
    let code = text.rsplit_once("code").map(|(_, code)| code);
    code.is_none_or(|code| !ZERO.is_match(code))
}
