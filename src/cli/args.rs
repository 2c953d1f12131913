//! The command line, as clap sees it.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use super::verbosity::Coloured;

mod cache;
mod cells;
mod containers;
mod data;
mod project;
mod results;
mod running;

pub use cache::{
    BundleArgs, CacheArgs, CacheCommand, CacheVerifyArgs, ExportArgs, GcArgs, PushArgs, RemoteArgs,
};
pub use cells::{
    AttemptsArgs, AttemptsCommand, CheckArgs, ExplainArgs, FitArgs, HistoryArgs, ListArgs,
    LogsArgs, RenderArgs, RestoreArgs, SetAsideArgs, ShowArgs,
};
pub use containers::{
    ImageArgs, ImageBuildArgs, ImageCommand, ImageListArgs, ImagePullArgs, ShellArgs,
};
pub use data::{DataArgs, DataCommand, FingerprintArgs, VerifyArgs};
pub use project::{
    CleanArgs, CompletionsArgs, ConfigArgs, GraphArgs, GraphFormat, InitArgs, LockArgs, RecipeArgs,
    RecipeCommand, RecipeCopyArgs, RecipeShowArgs, SchemaArgs, SchemaName,
};
pub use results::{
    Annotations, BaselineArgs, CompareArgs, CompareFormat, GateArgs, ImportArgs, ParseArgs,
    ReportArgs,
};
pub use running::{BuildArgs, DoctorArgs, PlanArgs, StatusArgs, StopArgs};

/// What commands exit with, below their help. docs/ci.md has the whole table.
mod exit_codes {
    pub const BUILD: &str = "Exit codes: 0 done; 1 a run failed, or its log contradicts its job; 2 wrong input, or refused by --locked or \
                             --max-gpu-hours; 4 no cell selected; 5 incomplete (--require-complete)";
    pub const PLAN: &str = "Exit codes: 0 planned; 2 wrong input, or beyond --max-gpu-hours; 4 no cell selected; 5 something is stale (--exit-code)";
    pub const COMPARE: &str = "Exit codes: 0 compared; 1 cells that were named cannot be compared; 2 wrong input; 4 no cell selected";
    pub const GATE: &str = "Exit codes: 0 pass; 2 wrong input; 3 a cell is slower than allowed, or failed; 4 no cell selected; 6 undecided";
}

/// A build system for LLM-training benchmarks: declare the matrix once, get numbers that may
/// honestly be compared, and re-run only what is stale.
#[derive(Parser)]
#[command(version, max_term_width = 110)]
pub struct Cli {
    #[command(flatten)]
    pub globals: Globals,
    #[command(subcommand)]
    pub command: Command,
}

// No doc comment: clap would print it in place of the program's own description.
#[derive(Args, Clone, Debug, Default)]
pub struct Globals {
    /// The project: this folder or its nearest ancestor with a config.yaml.
    #[arg(short = 'C', long, value_name = "DIR", global = true)]
    pub directory: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,
    /// Say nothing beside the result but what went wrong
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Say more: which files are read, and every task of a build with the reason why it runs
    #[arg(short, long, global = true)]
    pub verbose: bool,
    /// Whether to use colours
    #[arg(
        long,
        global = true,
        value_enum,
        value_name = "WHEN",
        default_value = "auto",
        hide_possible_values = true
    )]
    pub color: Coloured,
}

#[derive(Subcommand)]
pub enum Command {
    /// Run what is stale, then compare and publish
    #[command(after_help = exit_codes::BUILD)]
    Build(BuildArgs),
    /// Show what a build would run, and why; run nothing
    #[command(after_help = exit_codes::PLAN)]
    Plan(PlanArgs),
    /// Say why a cell's tasks are stale, field by field
    Explain(ExplainArgs),
    /// Predict the memory that each cell needs on a GPU, against what there is
    Fit(FitArgs),
    /// List the cells of the matrix
    List(ListArgs),
    /// Show a cell's summary, or one repeat's result (CELL#2)
    Show(ShowArgs),
    /// List every run of a cell that was ever made, and say which one counts; set one aside
    Attempts(AttemptsArgs),
    /// Show how a cell's speed changed over time, and what was changed before it did
    History(HistoryArgs),
    /// Show what a cell would launch: its settings with their origins, and its launch files
    Render(RenderArgs),
    /// Print the log of a cell's run
    Logs(LogsArgs),
    /// Check this host for devices, containers, Slurm, Python and disk space
    Doctor(DoctorArgs),
    /// Show detached builds and their progress
    Status(StatusArgs),
    /// End a detached build as Ctrl-C would
    Stop(StopArgs),
    /// Show the comparison of a matrix, or of some of its cells
    #[command(after_help = exit_codes::COMPARE)]
    Compare(CompareArgs),
    /// Write what the cells measured to a file that `gate` compares with
    Baseline(BaselineArgs),
    /// Fail (exit 3) if a cell is slower than a baseline; exit 6 if that cannot be decided
    #[command(after_help = exit_codes::GATE)]
    Gate(GateArgs),
    /// Write the report of a matrix, or of some of its cells, from what the cache has; run nothing
    Report(ReportArgs),
    /// Import logs and results that were measured elsewhere; they stay marked (imported)
    Import(ImportArgs),
    /// Show what tprimat reads from a log
    Parse(ParseArgs),
    /// Validate config, matrix, recipes and templates
    Check(CheckArgs),
    /// List the recipes, print one, or copy one into the project
    Recipe(RecipeArgs),
    /// Show every effective setting and where it comes from
    Config(ConfigArgs),
    /// Print the task graph
    Graph(GraphArgs),
    /// Verify or fingerprint token files (Megatron's .bin/.idx)
    Data(DataArgs),
    /// Share the runs of the cache, show what it holds, verify it, tidy it
    Cache(CacheArgs),
    /// Show or update what tprimat.lock pins
    Lock(LockArgs),
    /// Build a framework's container image
    Image(ImageArgs),
    /// Open a shell in a framework's container, with the project and the GPUs
    Shell(ShellArgs),
    /// Remove published output, or the whole cache
    Clean(CleanArgs),
    /// Write a starter project into a folder; a config.yaml that is there is kept
    Init(InitArgs),
    /// Print the JSON schema of a format
    Schema(SchemaArgs),
    /// Print a shell's completions
    Completions(CompletionsArgs),
    /// Print the version
    Version,
}

/// What to use in place of a command that there was.
pub fn instead_of(command: &str) -> Option<&'static str> {
    Some(match command {
        "attach" => {
            "`tprimat status --wait` waits for a detached build and exits as it does; `tprimat logs -f` shows the log of the run that \
             goes on, and `tprimat status` names the build's own log"
        }
        "watch" => {
            "report.html in the output folder is written again while a build goes on, and the browser loads it anew; from another \
             host: `python3 -m http.server -d output` here"
        }
        _ => return None,
    })
}

impl Command {
    /// A cell comes before its matrix; who writes them the other way round means the same.
    pub fn in_order(&mut self) {
        match self {
            Self::Explain(args) => args.common.in_order(&mut args.cell),
            Self::Show(args) => args.common.in_order(&mut args.cell),
            Self::Render(args) => args.common.in_order(&mut args.cell),
            Self::Logs(LogsArgs { cell, common, .. }) => {
                cell.iter_mut().for_each(|cell| common.in_order(cell));
            }
            Self::Attempts(AttemptsArgs {
                command,
                cell,
                common,
                ..
            }) => match command {
                Some(AttemptsCommand::SetAside(args)) => args.common.in_order(&mut args.id),
                Some(AttemptsCommand::Restore(args)) => args.common.in_order(&mut args.id),
                None => cell.iter_mut().for_each(|cell| common.in_order(cell)),
            },
            _ => {}
        }
    }

    /// Has the command nothing to say in JSON?
    pub fn is_without_json(&self) -> bool {
        match self {
            Self::Logs(_)
            | Self::Stop(_)
            | Self::Graph(_)
            | Self::Shell(_)
            | Self::Clean(_)
            | Self::Init(_)
            | Self::Schema(_)
            | Self::Completions(_) => true,
            Self::Attempts(args) => args.command.is_some(),
            Self::Image(args) => !matches!(args.command, ImageCommand::List(_)),
            Self::Recipe(args) => !matches!(args.command, RecipeCommand::List),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        path::{Path, PathBuf},
    };

    use clap::{CommandFactory, error::ErrorKind};
    use regex::Regex;

    use super::*;

    fn texts(folder: &Path, found: &mut Vec<PathBuf>) {
        for path in fs::read_dir(folder)
            .unwrap()
            .flatten()
            .map(|entry| entry.path())
        {
            match path.extension().and_then(|e| e.to_str()) {
                _ if path.is_dir() => texts(&path, found),
                Some("rs" | "md" | "html" | "yaml") => found.push(path),
                _ => {}
            }
        }
    }

    /// The words of a command as a sentence has it: placeholders are words, and what follows it in
    /// a shell is none of it.
    fn words(command: &str) -> Option<Vec<String>> {
        let joined = Regex::new(r"\\?\n\s*(//[/!]?\s*)?")
            .unwrap()
            .replace_all(command, " ");
        let filled = Regex::new(r"\{[^{},]*\}")
            .unwrap()
            .replace_all(&joined, "X")
            .replace("\\\"", "\"")
            .replace('…', "X");
        let own = filled
            .split(" || ")
            .next()?
            .split(" && ")
            .next()?
            .split(" | ")
            .next()?;
        shlex::split(&own.replace(['[', ']'], "").replace("'{}'", "X"))
    }

    fn below(command: &clap::Command, path: &str, found: &mut Vec<(String, clap::Command)>) {
        let path = format!("{path} {}", command.get_name());
        found.push((path.clone(), command.clone()));
        let subs = command.get_subcommands();
        subs.for_each(|sub| below(sub, &path, found));
    }

    /// One order of words for all commands: cells, then the matrix, which `--matrix` names in any
    /// place.
    #[test]
    fn every_command_names_its_matrix_in_one_way() {
        let (mut commands, mut seen) = (Vec::new(), 0);
        below(&Cli::command(), "", &mut commands);
        for (path, command) in commands {
            let words = |arg: &&clap::Arg| arg.is_positional() && !arg.is_last_set();
            let name = |arg: &clap::Arg| match arg.get_value_names() {
                Some([name]) => name.to_string(),
                _ => String::new(),
            };
            let positional: Vec<String> = command.get_arguments().filter(words).map(name).collect();
            let takes = positional.iter().any(|word| word.contains("MATRIX"));
            if !takes {
                continue;
            }
            seen += 1;
            let last = positional.last().unwrap();
            assert!(last.contains("MATRIX"), "{path}: {positional:?}");
            let named = command
                .get_arguments()
                .any(|arg| arg.get_long() == Some("matrix"));
            assert!(named, "{path} has no --matrix");
        }
        assert!(seen > 14, "{seen} commands");
    }

    #[test]
    fn a_matrix_may_stand_before_its_cell() {
        let parsed = |words: &[&str]| {
            let mut cli = Cli::try_parse_from([&["tprimat"], words].concat()).unwrap();
            cli.command.in_order();
            match cli.command {
                Command::Show(args) => (args.cell.clone(), args.common.matrix().cloned()),
                _ => unreachable!(),
            }
        };
        let expected = ("a/b/c/d".to_owned(), Some("m".to_owned()));
        for words in [
            ["show", "a/b/c/d", "m"].as_slice(),
            &["show", "m", "a/b/c/d"],
            &["show", "a/b/c/d", "--matrix", "m"],
            &["show", "--matrix", "m", "a/b/c/d"],
        ] {
            assert_eq!(parsed(words), expected, "{words:?}");
        }
        let (cell, matrix) = parsed(&["show", "p/m.toml", "a/b/c/d"]);
        assert_eq!(
            (cell.as_str(), matrix.as_deref()),
            ("a/b/c/d", Some("p/m.toml"))
        );
        // One word alone is a cell, also where it is a part of a name only.
        assert_eq!(parsed(&["show", "native"]), ("native".to_owned(), None));
    }

    /// Commands that messages compose with what their user named take all of it.
    #[test]
    fn every_command_that_is_composed_takes_what_it_is_given() {
        let asked = crate::plan::Asked {
            directory: Some("/project".into()),
            matrix: Some("m".into()),
            sets: vec!["training.seed=2".into()],
            repeats: Some(5),
            allow_drift: true,
            executor: Some("local".into()),
        };
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut files = Vec::new();
        texts(&root.join("src"), &mut files);
        let composed = Regex::new(r#"\.command\(\s*"([a-z -]+)",\s*(&?\[[^\]]*\])"#).unwrap();
        let mut seen = 0;
        for path in files {
            let text = fs::read_to_string(&path).unwrap();
            for found in composed.captures_iter(&text) {
                seen += 1;
                let given = found[2].trim_matches(['&', '[', ']']).split(',');
                let given = given.map(str::trim).filter(|word| !word.is_empty());
                // What is not written there is a cell, or another value.
                let words: Vec<&str> = given
                    .map(|word| {
                        word.strip_prefix('"')
                            .map_or("a/b/c/d", |w| w.trim_matches('"'))
                    })
                    .collect();
                // Imports are of no matrix.
                if words == ["--imported"] {
                    continue;
                }
                let command = shlex::split(&asked.command(&found[1], &words)).unwrap();
                let parsed = Cli::try_parse_from(&command);
                assert!(parsed.is_ok(), "{}: {command:?}", path.display());
            }
        }
        assert!(seen > 20, "{seen} commands");
    }

    #[test]
    fn every_command_that_a_sentence_names_is_one() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut files = [
            "README.md",
            "MIGRATING.md",
            "CONTRIBUTING.md",
            "config.yaml",
        ]
        .map(|name| root.join(name))
        .to_vec();
        ["src", "crates", "docs"]
            .iter()
            .for_each(|folder| texts(&root.join(folder), &mut files));
        let quoted = Regex::new(r"`(tprimat [^`]+)`").unwrap();
        let (mut seen, mut wrong) = (0, Vec::new());
        for path in files {
            let text = fs::read_to_string(&path).unwrap();
            for found in quoted.captures_iter(&text) {
                let Some(words) = words(&found[1]).filter(|words| !words[1].starts_with("__"))
                else {
                    continue;
                };
                seen += 1;
                let error = match Cli::try_parse_from(&words) {
                    Ok(_) => continue,
                    Err(error) => error,
                };
                // A sentence may leave arguments out, and a placeholder is no value.
                let is_name = matches!(
                    error.kind(),
                    ErrorKind::UnknownArgument
                        | ErrorKind::InvalidSubcommand
                        | ErrorKind::ArgumentConflict
                );
                if is_name {
                    let name = path.strip_prefix(root).unwrap_or(&path).display();
                    wrong.push(format!(
                        "{name}: {}\n    {}",
                        &found[1],
                        error.to_string().lines().next().unwrap_or("")
                    ));
                }
            }
        }
        assert!(seen > 150, "{seen} commands");
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
