//! What may come next on a command line: the scripts of `completions` ask for it with a hidden
//! command, so that shells know a project's cells and matrices.

use std::collections::BTreeSet;

use super::{
    args::{Cli, Globals},
    detached, project,
};
use crate::{
    cache::Cache,
    execute::history::cells_with_attempts,
    import::Imports,
    matrix,
    plan::{Plan, PlanRequest},
    results,
};
use clap::{Arg, Command, CommandFactory, builder::ValueRange};
use clap_complete::Shell;

/// The hidden command: the words behind it are those behind `tprimat`, up to the cursor.
pub const ARGUMENT: &str = "__complete";
/// From this many names on, only their next segments are offered.
const MANY: usize = 60;

/// The script that makes a shell complete tprimat's command lines.
pub fn script(shell: Shell) -> String {
    match shell {
        Shell::Bash => include_str!("completions/tprimat.bash").to_owned(),
        Shell::Zsh => include_str!("completions/tprimat.zsh").to_owned(),
        Shell::Fish => include_str!("completions/tprimat.fish").to_owned(),
        other => {
            let mut script = Vec::new();
            clap_complete::generate(other, &mut Cli::command(), "tprimat", &mut script);
            String::from_utf8_lossy(&script).into_owned()
        }
    }
}

/// The words that may stand in place of the last one, each with what it means, one a line.
pub fn candidates(words: &[String]) -> String {
    let mut root = Cli::command();
    root.build();
    let line = Line::read(&root, words);
    let mut found = line.candidates();
    // A word that is whole stands beside those that it begins, or a shell would write on.
    found.retain(|(word, _)| word.starts_with(line.last));
    let found = by_segments(found, line.last);
    let line = |(word, meaning): (String, String)| {
        if meaning.is_empty() {
            format!("{word}\n")
        } else {
            format!("{word}\t{meaning}\n")
        }
    };
    found.into_iter().map(line).collect()
}

/// Where there are very many names, only the part of each up to the next slash.
fn by_segments(found: Vec<(String, String)>, typed: &str) -> Vec<(String, String)> {
    if found.len() < MANY {
        return found;
    }
    let mut parts: Vec<(String, String)> = Vec::new();
    for (word, meaning) in found {
        let rest = word.strip_prefix(typed).unwrap_or(&word);
        let next = match rest.split_once('/') {
            Some((segment, _)) => (format!("{typed}{segment}/"), String::new()),
            None => (word, meaning),
        };
        if parts.last() != Some(&next) {
            parts.push(next);
        }
    }
    parts
}

/// A command line as far as it is written.
struct Line<'a> {
    command: &'a Command,
    last: &'a str,
    /// The option whose value the last word is.
    option: Option<&'a Arg>,
    /// Positional arguments before the last word.
    positional: usize,
    globals: Globals,
    matrix: Option<String>,
}

impl<'a> Line<'a> {
    fn read(root: &'a Command, words: &'a [String]) -> Self {
        let (last, before) = words
            .split_last()
            .map_or(("", words), |(last, before)| (last.as_str(), before));
        let mut line = Self {
            command: root,
            last,
            option: None,
            positional: 0,
            globals: Globals::default(),
            matrix: None,
        };
        for word in before {
            line.take(word);
        }
        if last.starts_with('-') {
            line.option = None;
        }
        line
    }

    fn take(&mut self, word: &'a str) {
        let is_option = word.starts_with('-') && word.len() > 1;
        if let Some(option) = self.option.filter(|_| !is_option) {
            self.value(option, word);
            if option.get_num_args().is_none_or(|n| n.max_values() <= 1) {
                self.option = None;
            }
            return;
        }
        self.option = None;
        if is_option {
            let (name, value) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (word, None),
            };
            let found = self
                .command
                .get_arguments()
                .find(|arg| match name.strip_prefix("--") {
                    Some(long) => arg.get_long() == Some(long),
                    None => name.chars().nth(1) == arg.get_short(),
                });
            let found = found.filter(|arg| arg.get_action().takes_values());
            match (found, value) {
                (Some(option), Some(value)) => self.value(option, value),
                (found, None) => self.option = found,
                (None, Some(_)) => {}
            }
        } else if let Some(sub) = self
            .command
            .find_subcommand(word)
            .filter(|_| self.positional == 0)
        {
            self.command = sub;
        } else {
            if self
                .argument()
                .is_some_and(|arg| names(arg).contains("MATRIX"))
                || word.ends_with(".toml")
            {
                self.may_be_matrix(word);
            }
            self.positional += 1;
        }
    }

    fn value(&mut self, option: &Arg, value: &str) {
        match option.get_long() {
            Some("directory") => self.globals.directory = Some(value.into()),
            Some("matrix") => self.matrix = Some(value.to_owned()),
            _ => {}
        }
    }

    fn may_be_matrix(&mut self, word: &str) {
        if super::flags::is_matrix(word) {
            self.matrix.get_or_insert_with(|| word.to_owned());
        }
    }

    /// The positional argument that comes next; the last one may take many words.
    fn argument(&self) -> Option<&'a Arg> {
        let all: Vec<&Arg> = self
            .command
            .get_positionals()
            .filter(|arg| !arg.is_last_set())
            .collect();
        let takes_many = |arg: &&&Arg| {
            let count = arg.get_num_args().unwrap_or(ValueRange::SINGLE);
            count.max_values() > 1
        };
        all.get(self.positional)
            .or_else(|| all.last().filter(takes_many))
            .copied()
    }

    fn candidates(&self) -> Vec<(String, String)> {
        if let Some(option) = self.option {
            return self.values(option);
        }
        if self.last.starts_with('-') {
            return self.options();
        }
        let subcommands = self.command.get_subcommands();
        let mut found: Vec<(String, String)> = subcommands
            .filter(|sub| self.positional == 0 && !sub.is_hide_set())
            .map(|sub| (sub.get_name().to_owned(), first_line(sub.get_about())))
            .collect();
        found.extend(
            self.argument()
                .map(|arg| self.values(arg))
                .unwrap_or_default(),
        );
        found
    }

    fn options(&self) -> Vec<(String, String)> {
        if let Some((name, _)) = self.last.split_once('=') {
            let option = self
                .command
                .get_arguments()
                .find(|arg| arg.get_long() == name.strip_prefix("--"));
            let values = option.map(|option| self.values(option)).unwrap_or_default();
            let whole = |(value, meaning)| (format!("{name}={value}"), meaning);
            return values.into_iter().map(whole).collect();
        }
        let shown = self
            .command
            .get_arguments()
            .filter(|arg| !arg.is_hide_set());
        shown
            .filter_map(|arg| Some((format!("--{}", arg.get_long()?), first_line(arg.get_help()))))
            .collect()
    }

    /// What an argument may be, by the name that its help gives it.
    fn values(&self, arg: &Arg) -> Vec<(String, String)> {
        let possible = arg.get_possible_values();
        if !possible.is_empty() {
            let shown = possible.iter().filter(|value| !value.is_hide_set());
            return shown
                .map(|value| (value.get_name().to_owned(), first_line(value.get_help())))
                .collect();
        }
        let mut found = BTreeSet::new();
        let names = names(arg);
        for name in names.split(|c: char| !c.is_ascii_uppercase()) {
            found.extend(self.named(name).unwrap_or_default());
        }
        found
            .into_iter()
            .map(|word| (word, String::new()))
            .collect()
    }

    fn named(&self, name: &str) -> Option<Vec<String>> {
        Some(match name {
            "MATRIX" => matrix::files(&project::root(&self.globals).ok()?),
            "FIELD" => results::fields().map(str::to_owned).collect(),
            "BUILD" => detached::names(&self.globals),
            "CELL" => {
                let plan = self.plan()?;
                let mut cells: Vec<String> =
                    plan.cells.iter().map(|cell| cell.id.clone()).collect();
                if let Ok(cache) = Cache::open(&plan.cache_dir()) {
                    cells.extend(Imports::of(&cache).cells().map(str::to_owned));
                    cells.extend(cells_with_attempts(&cache));
                }
                cells
            }
            "AXIS" => {
                let plan = self.plan()?;
                let axes = plan.matrix.cells.iter().flat_map(|cell| &cell.axes);
                axes.map(|(axis, value)| format!("{axis}={value}"))
                    .collect()
            }
            "PLATFORM" => {
                let plan = self.plan()?;
                let platforms = &plan.config.settings().hardware.platforms;
                platforms.keys().cloned().collect()
            }
            "FRAMEWORK" => {
                let plan = self.plan()?;
                let frameworks = &plan.config.settings().frameworks;
                let mut found: Vec<String> = frameworks.keys().cloned().collect();
                found.extend(plan.recipes.recipes.keys().cloned());
                found
            }
            "RECIPE" => self.plan()?.recipes.recipes.keys().cloned().collect(),
            _ => return None,
        })
    }

    fn plan(&self) -> Option<Plan> {
        let request = PlanRequest {
            root: project::root(&self.globals).ok()?,
            matrix: self.matrix.clone(),
            env: project::environment(),
            ..PlanRequest::default()
        };
        Plan::load(&request).ok()
    }
}

/// `MATRIX|CELL`
fn names(arg: &Arg) -> String {
    let names = arg.get_value_names().unwrap_or_default();
    names
        .iter()
        .map(|name| name.as_str())
        .collect::<Vec<_>>()
        .join(" ")
}

fn first_line(text: Option<&clap::builder::StyledStr>) -> String {
    let text = text.map(ToString::to_string).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered(line: &str) -> Vec<String> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let found = candidates(&words);
        found
            .lines()
            .map(|line| line.split('\t').next().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn commands_and_options_are_offered_where_they_may_stand() {
        assert_eq!(offered("expl"), ["explain"]);
        assert_eq!(offered("--color never hist"), ["history"]);
        assert_eq!(offered("build --max-g"), ["--max-gpu-hours"]);
        assert_eq!(offered("attempts set"), ["set-aside"]);
        assert_eq!(offered("compare --format m"), ["markdown"]);
        assert_eq!(offered("compare --format=m"), ["--format=markdown"]);
        assert_eq!(offered("compare --across seq_l"), ["seq_length"]);
        // A number, of which nothing is known.
        assert_eq!(offered("build --jobs "), Vec::<String>::new());
        assert!(offered("").contains(&"build".to_owned()));
        assert!(
            offered("plan --qui").contains(&"--quiet".to_owned()),
            "global"
        );
    }

    #[test]
    fn of_very_many_cells_the_next_segments_are_offered() {
        let cell = |i| (format!("cpu/cmd/m{i}/single"), String::new());
        let parts = by_segments((0..100).map(cell).collect(), "cpu/");
        assert_eq!(parts, [("cpu/cmd/".to_owned(), String::new())]);
        let few: Vec<_> = (0..9).map(cell).collect();
        assert_eq!(by_segments(few.clone(), "cpu/"), few);
    }
}
