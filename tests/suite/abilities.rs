//! tests/abilities.md: what shows an ability exists, and the program has no command and no option
//! that the list leaves out.

use std::{collections::BTreeSet, fs, path::Path};

use crate::support::Project;

const LIST: &str = include_str!("../abilities.md");

/// The lines of what there is, and the section of what was given up.
fn sections() -> (Vec<&'static str>, &'static str) {
    let (there, given_up) = LIST.split_once("\n## Given up\n").unwrap();
    let lines = there.lines().filter_map(|line| line.strip_prefix("- "));
    (lines.collect(), given_up)
}

/// What stands between backticks.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// `--force` of `--force=measured`.
fn name_of(option: &str) -> &str {
    option.split('=').next().unwrap_or(option)
}

/// Is this function of a source file a test?
fn is_test(source: &str, function: &str) -> bool {
    let declared = format!("fn {function}(");
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let at = lines.iter().position(|line| line.starts_with(&declared));
    at.is_some_and(|at| {
        let above = lines[..at].iter().rev();
        let mut attributes =
            above.take_while(|line| line.starts_with("#[") || line.starts_with("//"));
        attributes.any(|line| *line == "#[test]")
    })
}

#[test]
fn every_ability_names_what_shows_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let makefile = fs::read_to_string(root.join("Makefile")).unwrap();
    let (abilities, _) = sections();
    assert!(abilities.len() > 100, "{} abilities", abilities.len());
    let (mut wrong, mut by_hand) = (Vec::new(), Vec::new());
    for ability in abilities {
        let shown_by = ability
            .rsplit_once(" → ")
            .map_or("", |(_, shown_by)| shown_by);
        if code(shown_by).next().is_none() {
            wrong.push(format!("nothing shows it: {ability}"));
        }
        for shown_by in code(shown_by) {
            match shown_by.split_once(".rs::") {
                Some((file, function)) => {
                    let source = fs::read_to_string(root.join(format!("{file}.rs")));
                    if !source.is_ok_and(|source| is_test(&source, function)) {
                        wrong.push(format!("no such test: {shown_by}"));
                    }
                }
                None => {
                    by_hand.push(shown_by);
                    let is_target = |target| makefile.contains(&format!("\n{target}: "));
                    let is_command = match shown_by.split_once(' ') {
                        Some(("make", target)) => is_target(target),
                        // The test below tries it.
                        Some(("tprimat", _)) => true,
                        _ => false,
                    };
                    if !is_command {
                        wrong.push(format!("neither a test nor a command: {shown_by}"));
                    }
                }
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "tests/abilities.md:\n{}",
        wrong.join("\n")
    );
    assert!(
        by_hand.len() < 10,
        "few are to be tried by hand: {by_hand:?}"
    );
}

/// A command and what its help says.
struct Command {
    words: Vec<String>,
    help: String,
}

impl Command {
    /// The program itself, and all commands below it.
    fn all(project: &Project) -> Vec<Self> {
        let mut found = Vec::new();
        let mut open: Vec<Vec<String>> = vec![Vec::new()];
        while let Some(words) = open.pop() {
            let asked: Vec<&str> = words.iter().map(String::as_str).chain(["--help"]).collect();
            let help = project.run(&asked).ends_with(0).stdout;
            let list = help.split_once("Commands:\n").map_or("", |(_, list)| list);
            let rows = list.lines().take_while(|line| !line.is_empty());
            // A description that goes on stands further to the right.
            let names = rows
                .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
                .filter_map(|line| line.split_whitespace().next());
            for name in names.filter(|name| *name != "help") {
                open.push(words.iter().cloned().chain([name.to_owned()]).collect());
            }
            found.push(Self { words, help });
        }
        found
    }

    fn name(&self) -> String {
        format!("tprimat {}", self.words.join(" "))
    }

    /// The long options. What is said of them stands further to the right.
    fn options(&self) -> impl Iterator<Item = &str> {
        let indent = |line: &str| line.len() - line.trim_start().len();
        let lines = self
            .help
            .lines()
            .filter(move |line| (2..8).contains(&indent(line)));
        lines
            .filter(|line| line.trim_start().starts_with('-'))
            // What is said of an option stands behind it where all of a list are short.
            .filter_map(|line| line.trim_start().split("  ").next())
            .flat_map(|option| option.split([' ', ',', '=', '[']))
            .filter(|word| word.starts_with("--") && *word != "--help")
    }
}

#[test]
fn every_command_and_option_that_is_named_is_one() {
    let project = Project::empty();
    let (abilities, _) = sections();
    let (mut seen, mut wrong) = (0, Vec::new());
    for ability in abilities {
        let mut last = String::new();
        for code in code(ability) {
            let words = shlex::split(code).unwrap();
            let asked = match &words[..] {
                [program, rest @ ..] if program == "tprimat" && !rest.is_empty() => rest.to_vec(),
                // An option alone is one of the command that the line names before it.
                [option, ..] if option.starts_with("--") => {
                    if !last.contains(name_of(option)) {
                        wrong.push(format!("`{code}`: no option of that command: {ability}"));
                    }
                    continue;
                }
                _ => continue,
            };
            seen += 1;
            // clap stops at the first word that it does not know, else at the last one.
            let asked: Vec<&str> = asked.iter().map(String::as_str).chain(["--help"]).collect();
            let ran = project.run(&asked);
            if ran.code != Some(0) {
                wrong.push(format!(
                    "`{code}`: {}",
                    ran.stderr.lines().next().unwrap_or("")
                ));
            }
            last = ran.stdout;
        }
    }
    assert!(seen > 60, "{seen} commands");
    assert!(
        wrong.is_empty(),
        "tests/abilities.md:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn every_command_and_option_of_the_program_has_a_line() {
    let project = Project::empty();
    let words = |code: &str| shlex::split(code).unwrap();
    let named: Vec<Vec<String>> = code(LIST).map(words).collect();
    let options: BTreeSet<&str> = named.iter().flatten().map(|word| name_of(word)).collect();
    let mut absent = BTreeSet::new();
    for command in Command::all(&project) {
        let is_named = |words: &Vec<String>| {
            words.first().is_some_and(|program| program == "tprimat")
                && words[1..].starts_with(&command.words)
        };
        let has_commands = command.help.contains("Commands:\n");
        if !has_commands && !named.iter().any(is_named) {
            absent.insert(format!("`{}`", command.name()));
        }
        for option in command.options().filter(|option| !options.contains(option)) {
            absent.insert(format!("`{option}` of `{}`", command.name()));
        }
    }
    let absent: Vec<String> = absent.into_iter().collect();
    assert!(
        absent.is_empty(),
        "tests/abilities.md has no line for:\n{}",
        absent.join("\n")
    );
}
