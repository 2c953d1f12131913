//! What may come next on a command line: clap_complete answers the shell, and is told here what the
//! project's cells and matrices are.

use std::{
    collections::BTreeSet,
    env,
    ffi::{OsStr, OsString},
    path::PathBuf,
    sync::Arc,
};

use clap::{ArgMatches, Command, CommandFactory};
use clap_complete::{
    ArgValueCompleter, CompleteEnv, CompletionCandidate, Shell,
    engine::{PathCompleter, ValueCompleter},
    env::Shells,
};

use super::{
    args::{Cli, Globals},
    detached, project,
};
use crate::{
    cache::Cache,
    execute::reading::cells_with_attempts,
    import::Imports,
    matrix,
    plan::{Plan, PlanRequest},
    results,
    words::plain::is_active,
};

/// A shell that completes a line names itself in this variable, and gives the line behind `--`.
const VARIABLE: &str = "_TPRIMAT_COMPLETE";

/// Answers a shell that asks what may come next. False if none does. Nobody reads an error while a
/// line is completed: nothing is offered then.
#[must_use]
pub fn is_answered() -> bool {
    let line = env::args_os().skip_while(|word| word != "--").skip(1);
    let line: Vec<OsString> = line.collect();
    let completed = CompleteEnv::with_factory(|| with_names(Cli::command(), &Line::read(&line)))
        .var(VARIABLE)
        .try_complete(env::args_os(), env::current_dir().ok().as_deref());
    completed.unwrap_or(true)
}

/// The script that makes a shell complete tprimat's command lines.
#[must_use]
pub fn script(shell: Shell) -> String {
    let called = PathBuf::from(env::args_os().next().unwrap_or_default());
    // The shell may be in another folder by then; a bare name is looked up in PATH.
    let program = match (called.components().count(), env::current_dir()) {
        (2.., Ok(here)) => here.join(called),
        _ => called,
    };
    let mut script = Vec::new();
    if let Some(shell) = Shells::builtins().completer(&shell.to_string()) {
        let program = program.to_string_lossy();
        shell
            .write_registration(VARIABLE, "tprimat", "tprimat", &program, &mut script)
            .expect("memory takes all that is written");
    }
    String::from_utf8_lossy(&script).into_owned()
}

/// The command, with names of the project for each argument that its help calls by one of these
/// words.
fn with_names(command: Command, line: &Arc<Line>) -> Command {
    let named = |arg: clap::Arg| {
        let called = called(&arg);
        let words = called.split(|c: char| !c.is_ascii_uppercase());
        let words: Vec<String> = words.map(str::to_owned).collect();
        if !words.iter().any(|word| NAMES.contains(&word.as_str())) {
            return arg;
        }
        let line = line.clone();
        arg.add(ArgValueCompleter::new(move |begun: &OsStr| {
            let mut found: Vec<_> = line.names(&words, &begun.to_string_lossy());
            if words.iter().any(|word| word == "PATH") {
                found.extend(PathCompleter::any().complete(begun));
            }
            found
        }))
    };
    command
        .mut_args(named)
        .mut_subcommands(|sub| with_names(sub, line))
}

const NAMES: [&str; 4] = ["MATRIX", "CELL", "FIELD", "BUILD"];

/// `MATRIX|CELL`
fn called(arg: &clap::Arg) -> String {
    let names = arg.get_value_names().unwrap_or_default();
    names.join(" ")
}

/// What a line that is not finished says of the project and the matrix.
#[derive(Default)]
struct Line {
    globals: Globals,
    matrix: Option<String>,
}

impl Line {
    /// The last word is the one that is completed.
    fn read(words: &[OsString]) -> Arc<Self> {
        let mut line = Self::default();
        let begun = words.split_last().map_or(words, |(_, before)| before);
        let root = Cli::command().ignore_errors(true);
        if let Ok(matches) = root.clone().try_get_matches_from(begun) {
            line.take(&root, &matches);
        }
        Arc::new(line)
    }

    fn take(&mut self, command: &Command, matches: &ArgMatches) {
        for arg in command.get_arguments() {
            let values = matches.try_get_raw(arg.get_id().as_str()).ok().flatten();
            let Some(value) = values.and_then(|mut values| values.next()) else {
                continue;
            };
            let value = value.to_string_lossy();
            if arg.get_id() == "directory" {
                self.globals.directory = Some(value.as_ref().into());
            } else if called(arg).contains("MATRIX") && super::flags::is_matrix(&value) {
                self.matrix = Some(value.into_owned());
            }
        }
        if let Some((name, matches)) = matches.subcommand()
            && let Some(command) = command.find_subcommand(name)
        {
            self.take(command, matches);
        }
    }

    /// Names that begin so.
    fn names(&self, words: &[String], begun: &str) -> Vec<CompletionCandidate> {
        let found: BTreeSet<String> = words
            .iter()
            .filter_map(|word| self.named(word))
            .flatten()
            .collect();
        found
            .into_iter()
            // A name that would command the terminal was not made to be typed.
            .filter(|name| name.starts_with(begun) && !name.contains(is_active))
            .map(CompletionCandidate::new)
            .collect()
    }

    fn named(&self, word: &str) -> Option<Vec<String>> {
        Some(match word {
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
