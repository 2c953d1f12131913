//! How much a command says beside its result (`-q`, `-v`), and whether in colours (`--color`).

use std::{
    env,
    ffi::OsString,
    io::{self, IsTerminal},
    sync::OnceLock,
};

use clap::{ColorChoice, ValueEnum};

use super::args::Globals;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Coloured {
    /// On a terminal, unless NO_COLOR or CLICOLOR=0 forbids it; CLICOLOR_FORCE=1 colours files too
    #[default]
    Auto,
    Always,
    Never,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verbosity {
    /// Failures only.
    Quiet,
    Normal,
    /// Also which files are read, and every task with its reason.
    Verbose,
}

static VERBOSITY: OnceLock<Verbosity> = OnceLock::new();

pub fn verbosity() -> Verbosity {
    VERBOSITY.get().copied().unwrap_or(Verbosity::Normal)
}

/// Keeps what the caller asked for; called once, before anything is said.
pub fn set(globals: &Globals) {
    let verbosity = match (globals.quiet, globals.verbose) {
        (true, _) => Verbosity::Quiet,
        (_, true) => Verbosity::Verbose,
        _ => Verbosity::Normal,
    };
    let _ = VERBOSITY.set(verbosity);
}

/// `--color` as it was typed: help and errors of the command line are shown before clap has parsed
/// it.
fn asked(arguments: impl Iterator<Item = OsString>) -> Coloured {
    let mut words = arguments.take_while(|word| word != "--");
    let mut asked = Coloured::Auto;
    while let Some(word) = words.next() {
        let value = match word.to_str() {
            Some("--color") => words.next(),
            Some(word) => word.strip_prefix("--color=").map(OsString::from),
            None => None,
        };
        let known = value.and_then(|value| Coloured::from_str(value.to_str()?, false).ok());
        asked = known.unwrap_or(asked);
    }
    asked
}

/// Decides the colours of stdout and stderr for everybody who paints, and returns clap's part.
pub fn choose_colours() -> ColorChoice {
    let asked = asked(env::args_os().skip(1));
    let stdout = is_coloured(asked, io::stdout().is_terminal(), &variable);
    let stderr = is_coloured(asked, io::stderr().is_terminal(), &variable);
    console::set_colors_enabled(stdout);
    console::set_colors_enabled_stderr(stderr);
    let _ = miette::set_hook(Box::new(move |_| {
        Box::new(miette::MietteHandlerOpts::new().color(stderr).build())
    }));
    match asked {
        // clap looks at each stream, and at the same variables.
        Coloured::Auto => ColorChoice::Auto,
        Coloured::Always => ColorChoice::Always,
        Coloured::Never => ColorChoice::Never,
    }
}

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// As no-color.org and bixense.com/clicolors have it; a variable that is empty counts as not set.
fn is_coloured(
    asked: Coloured,
    is_terminal: bool,
    variable: &impl Fn(&str) -> Option<String>,
) -> bool {
    match asked {
        Coloured::Always => true,
        Coloured::Never => false,
        Coloured::Auto if variable("NO_COLOR").is_some() => false,
        Coloured::Auto if variable("CLICOLOR_FORCE").is_some_and(|value| value != "0") => true,
        Coloured::Auto => {
            is_terminal
                && variable("CLICOLOR").as_deref() != Some("0")
                && variable("TERM").as_deref() != Some("dumb")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_decided_by_the_option_then_by_the_environment_then_by_the_terminal() {
        let decided = |asked, is_terminal, set: &[(&str, &str)]| {
            is_coloured(asked, is_terminal, &|name: &str| {
                let found = set.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| (*value).to_owned())
            })
        };
        use Coloured::{Always, Auto, Never};
        assert!(decided(Auto, true, &[]));
        assert!(!decided(Auto, false, &[]));
        assert!(!decided(Auto, true, &[("NO_COLOR", "1")]));
        assert!(!decided(Auto, true, &[("CLICOLOR", "0")]));
        assert!(!decided(Auto, true, &[("TERM", "dumb")]));
        assert!(decided(Auto, false, &[("CLICOLOR_FORCE", "1")]));
        assert!(!decided(Auto, false, &[("CLICOLOR_FORCE", "0")]));
        assert!(!decided(
            Auto,
            true,
            &[("NO_COLOR", "1"), ("CLICOLOR_FORCE", "1")]
        ));
        assert!(decided(Always, false, &[("NO_COLOR", "1")]));
        assert!(!decided(Never, true, &[("CLICOLOR_FORCE", "1")]));
    }

    #[test]
    fn the_option_is_known_before_the_rest_of_the_line_is() {
        let asked = |words: &[&str]| asked(words.iter().map(OsString::from));
        assert_eq!(asked(&["plan", "--color=never"]), Coloured::Never);
        assert_eq!(
            asked(&["--color", "always", "no-command"]),
            Coloured::Always
        );
        assert_eq!(asked(&["--color=nonsense"]), Coloured::Auto);
        assert_eq!(
            asked(&["shell", "nvd", "--", "--color=always"]),
            Coloured::Auto
        );
    }
}
