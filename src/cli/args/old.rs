//! Names that commands and options had, and what is used in their place.

/// A command that there was, and the command line that does the same now.
const COMMANDS: [(&str, &str); 13] = [
    ("attach", "status --wait"),
    ("attempts", "show CELL --attempts"),
    ("baseline", "gate --write FILE"),
    ("clean", "cache clean"),
    ("completions", "print completions"),
    ("explain", "show CELL --stale"),
    ("graph", "print graph"),
    ("image", "container"),
    ("render", "show CELL --launch"),
    ("schema", "print schema"),
    ("shell", "container shell"),
    ("version", "--version"),
    ("watch", "build --detach"),
];

/// The same of options.
const OPTIONS: [(&str, &str); 11] = [
    ("--details", "compare --details"),
    ("--keep-going", "build"),
    ("--locked", "build --require=locked"),
    ("--profile", "build --set experiment.profiling=nsys"),
    ("--remeasure", "build --force=measured"),
    ("--remote", "build --set paths.remote=ADDRESS"),
    ("--remote-required", "build --require=remote"),
    ("--require-complete", "build --require=complete"),
    ("--retry-failed", "build --force=failed"),
    (
        "--together",
        "build --force=measured --only CELL --only CELL",
    ),
    ("--within-allocation", "build --executor allocation"),
];

/// What is used in place of a command or an option that there was, as the command line that does it.
pub fn in_place_of(name: &str) -> Option<String> {
    let mut all = COMMANDS.iter().chain(&OPTIONS);
    let (_, now) = all.find(|(old, _)| *old == name)?;
    Some(format!("tprimat {now}"))
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser, error::ErrorKind};

    use super::*;
    use crate::cli::args::Cli;

    #[test]
    fn what_is_named_in_place_of_an_old_name_exists() {
        for (old, now) in COMMANDS.iter().chain(&OPTIONS) {
            let words = ["tprimat"].into_iter().chain(now.split(' '));
            if let Err(error) = Cli::try_parse_from(words) {
                let is_name = matches!(
                    error.kind(),
                    ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand
                );
                assert!(!is_name, "{old}: {error}");
            }
        }
        for (old, _) in COMMANDS {
            assert!(Cli::command().find_subcommand(old).is_none(), "{old}");
        }
    }
}
