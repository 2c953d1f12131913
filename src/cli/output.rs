//! Data to stdout, everything said beside it to stderr; errors are rendered here and nowhere else.

use std::{
    borrow::Cow,
    io::{self, IsTerminal, Write},
    os::fd::AsFd,
    time::{Duration, Instant},
};

use miette::{LabeledSpan, MietteDiagnostic, NamedSource};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    args::Globals,
    verbosity::{Verbosity, verbosity},
};
use crate::{
    error::{Error, Problem, Result, Source},
    report::{Ink, Page, Paint},
    secrets::masked,
    words::{part, plain},
};

/// Prints data, in which whatever a stranger wrote is harmless and no secret of the caller's
/// environment is seen.
pub fn print(text: &str) -> Result<()> {
    let colours = match page().paint {
        Paint::Colour => Ink::all_codes(),
        Paint::Plain => Vec::new(),
    };
    print_commands(&quiet(&masked(&plain::coloured(text, &colours))))
}

/// Prints text that is to be obeyed, by a CI system; whoever made it has escaped what is quoted in
/// it. A closed pipe ends the program quietly: the reader has all it wanted.
pub fn print_commands(text: &str) -> Result<()> {
    write(text.as_bytes())
}

/// Prints bytes as they are.
pub fn write(bytes: &[u8]) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        other => other.map_err(Error::io("cannot write to", "stdout")),
    }
}

/// Waits before the next look at what is followed; false where nobody reads standard output any more,
/// since the terminal was closed or the other end of the pipe is gone. A hang-up need not come as a
/// signal (`nohup`), and a quiet log has no write that would fail.
#[must_use]
pub fn wait_while_read(at_most: Duration) -> bool {
    let stdout = io::stdout();
    // No event is asked for, so only what cannot be left out is told: an error or a hang-up.
    let mut looked_at = [PollFd::new(stdout.as_fd(), PollFlags::empty())];
    let began = Instant::now();
    let timeout = PollTimeout::try_from(at_most).unwrap_or(PollTimeout::MAX);
    if poll(&mut looked_at, timeout).is_ok_and(|ready| ready > 0) {
        let gone = PollFlags::POLLERR | PollFlags::POLLHUP;
        let told = looked_at[0].revents();
        if told.is_some_and(|told| told.intersects(gone)) {
            return false;
        }
    }
    // A signal may have ended the wait, and a closed standard output ends it at once.
    std::thread::sleep(at_most.saturating_sub(began.elapsed()));
    true
}

/// Prints one JSON object, named by `schema_version`: `tprimat.<form>/1`. A change that breaks its
/// readers raises the number.
pub fn print_json(form: &str, value: &impl Serialize) -> Result<()> {
    print_document(&Versioned {
        schema_version: format!("tprimat.{form}/1"),
        value,
    })
}

#[derive(Serialize)]
struct Versioned<'a, T> {
    schema_version: String,
    #[serde(flatten)]
    value: &'a T,
}

/// Prints a result: as JSON of that form where the caller asked for it, else as text.
pub fn answer(
    globals: &Globals,
    form: &str,
    value: &impl Serialize,
    text: impl FnOnce() -> String,
) -> Result<()> {
    if globals.json {
        print_json(form, value)
    } else {
        print(&text())
    }
}

/// Prints one JSON value that names its own form, or has none, like a setting's value.
pub fn print_document(value: &impl Serialize) -> Result<()> {
    print(&json_text(value)?)
}

/// One JSON value as it is printed or written to a file.
pub fn json_text(value: &impl Serialize) -> Result<String> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|e| Error::Internal(format!("cannot print JSON: {e}")))?;
    Ok(plain::json(&text).into_owned() + "\n")
}

/// Says what a caller who asked for quiet need not know.
pub fn note(text: &str) {
    if verbosity() > Verbosity::Quiet {
        say(text);
    }
}

/// Says what only a caller who asked for more wants to know.
pub fn detail(text: &str) {
    if verbosity() == Verbosity::Verbose {
        say(text);
    }
}

/// Says something to the caller, on stderr, which cannot be written to any more if this fails.
pub fn say(text: &str) {
    let _ = writeln!(io::stderr(), "{}", quiet(&masked(&plain::lines(text))));
}

/// Names an import that cannot be read, and lets the command go on with the others.
pub fn leave_out(name: &str, error: Error) -> Result<()> {
    say(&format!("warning: the import {name} is left out: {error}"));
    Ok(())
}

/// Asks the person at the terminal; without one, `command` needs --yes.
pub fn confirmed(command: &str, question: &str) -> Result<bool> {
    if !io::stdin().is_terminal() {
        return Err(Error::refused(
            format!("`{command}` asks first, and there is no terminal"),
            "pass --yes",
        ));
    }
    let _ = write!(io::stderr(), "{question} [y/N] ");
    let mut line = String::new();
    io::stdin()
        .read_line(&mut line)
        .map_err(Error::io("cannot read", "stdin"))?;
    Ok(matches!(line.trim(), "y" | "Y" | "yes"))
}

/// On a CI system no line is a command to it.
fn quiet(text: &str) -> Cow<'_, str> {
    let is_ci = ["GITHUB_ACTIONS", "TF_BUILD"]
        .iter()
        .any(|name| std::env::var_os(name).is_some());
    if is_ci {
        plain::without_commands(text)
    } else {
        Cow::Borrowed(text)
    }
}

/// How stdout shows tables: as wide as `$COLUMNS`, the terminal, or a file; in the colours that
/// [`super::verbosity`] decided.
#[must_use]
pub fn page() -> Page {
    let is_terminal = io::stdout().is_terminal();
    let columns = std::env::var("COLUMNS").ok().and_then(|c| c.parse().ok());
    let file = Page::file();
    let width = columns
        .or_else(|| is_terminal.then(terminal_columns).flatten())
        .unwrap_or(file.width);
    let paint = if console::colors_enabled() {
        Paint::Colour
    } else {
        Paint::Plain
    };
    Page {
        width,
        paint,
        most_notes: if is_terminal {
            Some(12)
        } else {
            file.most_notes
        },
    }
}

fn terminal_columns() -> Option<usize> {
    let (_, columns) = console::Term::stdout().size_checked()?;
    Some(columns.into())
}

/// Rows of words in columns, each as wide as its longest word.
pub fn columns<const N: usize>(rows: &[[String; N]]) -> String {
    let length = |row: &[String; N], column: usize| row[column].chars().count();
    let widths: Vec<usize> = (0..N)
        .map(|column| {
            rows.iter()
                .map(|row| length(row, column))
                .max()
                .unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for row in rows {
        let words = row.iter().zip(&widths);
        let line: String = words
            .map(|(word, width)| format!("{word:<width$}  "))
            .collect();
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// Renders an error: for people on stderr with carets, or as the one JSON value on stdout.
pub fn report(error: &Error, as_json: bool) {
    if as_json {
        let _ = print_json("error", &to_json(error));
        return;
    }
    match error {
        Error::Invalid(problems) => {
            let mut err = io::stderr().lock();
            for problem in problems {
                // Its colours are miette's own, so what it quotes is made harmless before.
                let text = format!("{:?}", drawn(harmless(problem)));
                let _ = writeln!(err, "{}", quiet(&masked(&text)));
            }
            if problems.len() > 1 {
                let _ = writeln!(err, "{} problems; nothing was run", problems.len());
            }
        }
        other => {
            say(&format!("error: {other}"));
            if let Some(help) = other.help() {
                say(&format!("  help: {help}"));
            }
        }
    }
}

/// Characters of a message, and bytes of the lines that are quoted below it. What is longer was not
/// written by people, and nobody would find the rest of the message behind it.
const LONGEST_MESSAGE: usize = 4000;

/// Every place stays where it is, for what is replaced keeps its length.
fn harmless(problem: &Problem) -> Problem {
    let lines = |text: &str| {
        let text = match text.char_indices().nth(LONGEST_MESSAGE) {
            Some((end, _)) => Cow::Owned(format!("{} …", part(text, ..end))),
            None => Cow::Borrowed(text),
        };
        plain::lines(&text).into_owned()
    };
    let quoted = problem.place.as_ref().filter(|(source, span)| {
        let (before, behind) = (
            part(&source.text, ..span.start),
            part(&source.text, span.end..),
        );
        let before = before.rsplit('\n').take(2).map(str::len).sum::<usize>();
        let behind = behind.split('\n').take(2).map(str::len).sum::<usize>();
        before + span.len() + behind <= LONGEST_MESSAGE
    });
    if let (Some(_), None) = (&problem.place, quoted) {
        let label = Some(&*problem.label).filter(|label| !label.is_empty());
        let label = label.map_or_else(String::new, |label| format!(" ({label})"));
        return Problem {
            message: lines(&format!("{problem}{label}")),
            help: problem.help.as_deref().map(lines),
            ..Problem::new("")
        };
    }
    let place = quoted.map(|(source, span)| {
        let lines = |text: &str| plain::lines(text).into_owned();
        let source = Source::new(plain::line(&source.name), lines(&source.text));
        (source, span.clone())
    });
    Problem {
        message: lines(&problem.message),
        place,
        label: plain::line(&problem.label).into_owned(),
        help: problem.help.as_deref().map(lines),
    }
}

fn to_json(error: &Error) -> Value {
    let problems: Vec<Value> = match error {
        Error::Invalid(problems) => problems.iter().map(problem_json).collect(),
        other => vec![json!({ "message": other.to_string(), "help": other.help() })],
    };
    json!({ "error": { "message": error.to_string(), "exit_code": error.exit_code(), "problems": problems } })
}

fn problem_json(problem: &Problem) -> Value {
    let position = problem.position();
    json!({
        "message": problem.message,
        "file": position.as_ref().map(|p| &p.0),
        "line": position.as_ref().map(|p| p.1),
        "column": position.as_ref().map(|p| p.2),
        "label": problem.label,
        "help": problem.help,
    })
}

/// A problem as miette draws it, with the text that it is in under its name.
fn drawn(problem: Problem) -> miette::Report {
    let mut diagnostic = MietteDiagnostic::new(problem.message);
    diagnostic.help = problem.help;
    let Some((source, span)) = problem.place else {
        return diagnostic.into();
    };
    let label = LabeledSpan::new(Some(problem.label), span.start, span.len());
    let source = NamedSource::new(&source.name, source.text.clone());
    miette::Report::new(diagnostic.with_label(label)).with_source_code(source)
}
