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
    ("watch", "status"),
];

/// An option that there was, and what says the same now to the commands that have it.
const OPTIONS: [(&str, &str); 9] = [
    ("--locked", "--require=locked"),
    ("--profile", "--set experiment.profiling=nsys"),
    ("--remeasure", "--force=measured"),
    ("--remote", "--set paths.remote=ADDRESS"),
    ("--remote-required", "--require=remote"),
    ("--require-complete", "--require=complete"),
    ("--retry-failed", "--force=failed"),
    ("--together", "--force=measured --only CELL --only CELL"),
    ("--within-allocation", "--executor allocation"),
];

/// What is said of a command or an option that there was.
pub fn told(name: &str) -> Option<String> {
    let now = match name {
        "--details" => "tprimat compare --details".to_owned(),
        name => {
            let command = COMMANDS.iter().find(|(old, _)| *old == name);
            let command = command.map(|(_, now)| format!("tprimat {now}"));
            let option = OPTIONS.iter().find(|(old, _)| *old == name);
            command.or_else(|| option.map(|(_, now)| (*now).to_owned()))?
        }
    };
    Some(format!("`{name}` is now `{now}`"))
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser, error::ErrorKind};

    use super::*;
    use crate::cli::args::Cli;

    #[test]
    fn what_is_named_in_place_of_an_old_name_exists() {
        let options = OPTIONS
            .iter()
            .map(|(old, now)| (old, format!("build {now}")));
        let commands = COMMANDS.iter().map(|(old, now)| (old, (*now).to_owned()));
        for (old, now) in commands.chain(options) {
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
