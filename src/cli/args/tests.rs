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
        .split("; ")
        .next()?
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
            // What is not written there is a cell, a range of versions, or another value.
            let words: Vec<&str> = given
                .map(|word| match word.strip_prefix('"') {
                    Some(written) => written.trim_matches('"'),
                    None if word == "&range" => "torch==2.9.0..2.11.0",
                    None => "a/b/c/d",
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
            let Some(words) = words(&found[1]).filter(|words| !words[1].starts_with("__")) else {
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
