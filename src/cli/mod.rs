//! Arguments → a request → an exit code. One file a subcommand.
/// In place of the standard one, in all of `cli`: what is said may quote strangers, and `--quiet`
/// leaves it out.
macro_rules! eprintln {
    ($($argument:tt)*) => { $crate::cli::output::note(&format!($($argument)*)) };
}

mod args;
mod baseline;
mod blame;
mod blocked;
mod build;
mod cache;
mod check;
mod clean;
mod compare;
mod complete;
mod config;
mod container;
mod data;
mod detached;
mod doctor;
mod fit;
mod flags;
mod gate;
mod help;
mod history;
mod import;
mod init;
mod list;
mod lock;
mod logs;
mod output;
mod parse;
mod plan;
mod print;
mod project;
mod recipe;
mod remote;
mod report;
mod session;
mod set_aside;
mod show;
mod targets;
mod train_host;
mod verbosity;
mod why;

use std::{path::Path, process::ExitCode};

use clap::{
    CommandFactory, FromArgMatches,
    error::{ContextKind, ContextValue, ErrorKind},
};

use crate::{
    error::{Error, Problem, exit},
    execute, run,
};
use args::{Cli, Command, CompareFormat};
use flags::Force;

/// Parses the arguments, runs the subcommand, renders its error.
#[must_use]
pub fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    // The hidden half of tprimat: the supervisor of a run, below a build, in a batch job or on a node.
    if arguments
        .next()
        .is_some_and(|word| word == run::RUN_ARGUMENT)
    {
        let Some(dir) = arguments.next() else {
            return exit_code(exit::USAGE);
        };
        let role = arguments
            .next()
            .map(|role| role.to_string_lossy().into_owned());
        return exit_code(run::supervise(Path::new(&dir), role.as_deref()));
    }
    if complete::is_answered() {
        return exit_code(exit::OK);
    }
    execute::explain_cut_files();
    let command = Cli::command().color(verbosity::choose_colours());
    let parsed = command.try_get_matches();
    let cli = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(mut cli) => {
            cli.command.in_order();
            verbosity::set(&cli.globals);
            cli
        }
        Err(error) => {
            if let Some(error) = given_up(&error) {
                output::report(&error, false);
                return exit_code(error.exit_code());
            }
            let _ = error.print();
            return exit_code(if error.use_stderr() {
                exit::USAGE
            } else {
                exit::OK
            });
        }
    };
    let as_json = cli.globals.json
        || matches!(&cli.command, Command::Compare(args) if args.format == CompareFormat::Json);
    match run(cli) {
        Ok(code) => exit_code(code),
        Err(error) => {
            output::report(&error, as_json);
            exit_code(error.exit_code())
        }
    }
}

fn run(cli: Cli) -> Result<i32, Error> {
    let globals = &cli.globals;
    if globals.quiet && globals.verbose {
        return Err(Error::refused(
            "--quiet and --verbose ask for opposite things",
            "leave one of them out",
        ));
    }
    if globals.json && cli.command.is_without_json() {
        return Err(Error::refused(
            "this command prints no JSON",
            "leave out --json",
        ));
    }
    match cli.command {
        Command::Build(mut args) => {
            // Whoever names the cells that failed wants them run again, also those whose failure
            // would be the same.
            args.overrides
                .force
                .extend(args.last.failed.then_some(Force::Failed));
            if args.dry_run {
                plan::run(globals, &args.into_plan())
            } else {
                build::run(globals, &args)
            }
        }
        Command::Plan(mut args) => {
            args.overrides
                .force
                .extend(args.last.failed.then_some(Force::Failed));
            plan::run(globals, &args)
        }
        Command::List(args) => list::run(globals, &args),
        Command::Show(args) => show::run(globals, &args),
        Command::Logs(args) => logs::run(globals, &args),
        Command::History(args) => history::run(globals, &args),
        Command::Compare(args) => compare::run(globals, &args),
        Command::Report(args) => report::run(globals, &args),
        Command::Gate(args) => gate::run(globals, &args),
        Command::Check(args) => check::run(globals, &args),
        Command::Init(args) => init::run(globals, &args),
        Command::Fit(args) => fit::run(globals, &args),
        Command::Doctor(args) => doctor::run(globals, &args),
        Command::Config(args) => config::run(globals, &args),
        Command::Recipe(command) => recipe::run(globals, &command),
        Command::Import(args) => import::run(globals, &args),
        Command::Parse(args) => parse::run(globals, &args),
        Command::Why(args) => why::run(globals, &args),
        Command::Blame(args) => blame::run(globals, &args),
        Command::Lock(args) => lock::run(globals, &args),
        Command::Cache(command) => cache::run(globals, &command),
        Command::Container(command) => container::run(globals, &command),
        Command::Status(args) => detached::status(globals, &args),
        Command::Stop(args) => detached::stop(globals, &args),
        Command::Data(command) => data::run(globals, &command),
        Command::Print(command) => print::run(globals, &command),
        Command::Help(args) => help::run(&args),
    }
}

/// The error of a command or an option that there was, with what to use now.
fn given_up(error: &clap::Error) -> Option<Error> {
    let kinds = [ContextKind::InvalidSubcommand, ContextKind::InvalidArg];
    let name = kinds.into_iter().find_map(|kind| match error.get(kind) {
        Some(ContextValue::String(name)) => Some(name),
        _ => None,
    })?;
    let is_valueless = error.kind() == ErrorKind::InvalidValue && name.starts_with("--force");
    if is_valueless && error.get(ContextKind::SuggestedValue).is_none() {
        return Some(Error::refused(
            "--force says what is run: measured, failed, memory or unpriced",
            "did you mean `--force=measured`, which measures the selected cells anew?",
        ));
    }
    let is_unknown = matches!(
        error.kind(),
        ErrorKind::InvalidSubcommand | ErrorKind::UnknownArgument
    );
    let told = args::told(name).filter(|_| is_unknown)?;
    Some(Error::invalid(Problem::new(told)))
}

fn exit_code(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
