//! Arguments → a request → an exit code. One file a subcommand.
/// In place of the standard one, in all of `cli`: what is said may quote strangers.
macro_rules! eprintln {
    ($($argument:tt)*) => { $crate::cli::output::say(&format!($($argument)*)) };
}

mod args;
mod attempts;
mod baseline;
mod blocked;
mod build;
mod check;
mod clean;
mod compare;
mod config;
mod data;
mod detached;
mod doctor;
mod explain;
mod fit;
mod flags;
mod gate;
mod graph;
mod history;
mod image;
mod import;
mod init;
mod list;
mod lock;
mod logs;
mod memo;
mod output;
mod parse;
mod plan;
mod profile;
mod project;
mod recipe;
mod render;
mod report;
mod schema;
mod show;
mod targets;

use std::{path::Path, process::ExitCode};

use clap::{CommandFactory, Parser};

use crate::{
    error::{Error, exit},
    execute,
};
use args::{Cli, Command};

/// Parses the arguments, runs the subcommand, renders its error.
#[must_use]
pub fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    // The hidden half of tprimat: the supervisor of one run, below a build or in a batch job.
    let hidden: Option<fn(&Path) -> i32> = match arguments.next() {
        Some(word) if word == execute::SUPERVISE_ARGUMENT => Some(execute::supervise),
        Some(word) if word == execute::JOB_ARGUMENT => Some(execute::supervise_job),
        _ => None,
    };
    if let Some(supervise) = hidden {
        return exit_code(arguments.next().map_or(exit::USAGE, |dir| supervise(dir.as_ref())));
    }
    execute::explain_cut_files();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return exit_code(if error.use_stderr() { exit::USAGE } else { exit::OK });
        }
    };
    let as_json = cli.command.as_json();
    match run(cli) {
        Ok(code) => exit_code(code),
        Err(error) => {
            output::report(&error, as_json);
            exit_code(error.exit_code())
        }
    }
}

fn run(cli: Cli) -> Result<i32, Error> {
    let at = cli.directory.as_deref();
    match cli.command {
        Command::Build(args) if args.dry_run => plan::run(at, &args.into_plan()),
        Command::Build(args) => build::run(at, &args),
        Command::Plan(args) => plan::run(at, &args),
        Command::Explain(args) => explain::run(at, &args),
        Command::Fit(args) => fit::run(at, &args),
        Command::List(args) => list::run(at, &args),
        Command::Show(args) => show::run(at, &args),
        Command::Attempts(args) => attempts::run(at, &args),
        Command::History(args) => history::run(at, &args),
        Command::Render(args) => render::run(at, &args),
        Command::Logs(args) => logs::run(at, &args),
        Command::Doctor(args) => doctor::run(at, &args),
        Command::Status(args) => detached::status(at, &args),
        Command::Attach(args) => detached::attach(at, &args),
        Command::Stop(args) => detached::stop(at, &args),
        Command::Compare(args) => compare::run(at, &args),
        Command::Baseline(args) => baseline::run(at, &args),
        Command::Gate(args) => gate::run(at, &args),
        Command::Report(args) => report::run(at, &args),
        Command::Import(args) => import::run(at, &args),
        Command::Parse(args) => parse::run(&args),
        Command::Check(args) => check::run(at, &args),
        Command::Config(args) => config::run(at, &args),
        Command::Recipe(args) => recipe::run(at, &args),
        Command::Graph(args) => graph::run(at, &args),
        Command::Data(args) => data::run(&args),
        Command::Lock(args) => lock::run(at, &args),
        Command::Image(args) => image::run(at, &args),
        Command::Shell(args) => image::shell(at, &args),
        Command::Clean(args) => clean::run(at, &args),
        Command::Init(args) => init::run(at, &args),
        Command::Schema(args) => schema::run(&args),
        Command::Completions(args) => {
            let mut script = Vec::new();
            clap_complete::generate(args.shell, &mut Cli::command(), "tprimat", &mut script);
            output::print(&String::from_utf8_lossy(&script))?;
            Ok(exit::OK)
        }
    }
}

fn exit_code(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
