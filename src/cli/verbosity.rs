//! How much a command says beside its result (`-q`, `-v`), and whether in colours (`--color`).

use std::{env, ffi::OsString, sync::OnceLock};

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
    let is_forbidden = || env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let wanted = match asked {
        Coloured::Auto => is_forbidden().then_some(false),
        asked => Some(asked == Coloured::Always),
    };
    // Where nobody says it, console looks at each stream, and at CLICOLOR, CLICOLOR_FORCE and TERM.
    if let Some(wanted) = wanted {
        console::set_colors_enabled(wanted);
        console::set_colors_enabled_stderr(wanted);
    }
    let stderr = console::colors_enabled_stderr();
    let _ = miette::set_hook(Box::new(move |_| {
        Box::new(miette::MietteHandlerOpts::new().color(stderr).build())
    }));
    match asked {
        // As console does.
        Coloured::Auto => ColorChoice::Auto,
        Coloured::Always => ColorChoice::Always,
        Coloured::Never => ColorChoice::Never,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
