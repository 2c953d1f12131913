//! Which files of the project a command names: its words, and those of the scripts among its words
//! (`bash -c "…"`).
//!
//! A small tokenizer knows quotes, shell operators and redirections; it expands the project's own
//! folder, and the variables that the cell itself sets, by which an axis may choose a file. What it takes for an input that is not one is told by `check`, as is what it
//! cannot follow, and a run that writes such a file says so.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    path::{Component, Path, PathBuf},
};

use serde_json::Value;

use crate::{
    config::strings,
    error::{Error, Result},
    files::{ReadSet, is_leftover, is_own},
};

/// Scripts within words of scripts.
const DEEPEST: usize = 4;
/// No shell and no file system takes a longer name; a longer word is a script.
const LONGEST: usize = 1024;

/// What the words of a command are, by their paths from the project's root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Named {
    /// Files that are there.
    pub files: Vec<String>,
    /// Words that may become files: a run that makes one of them has written it.
    pub absent: Vec<String>,
    /// Words that may name files and are not followed: folders, patterns (what they match may be what
    /// runs wrote), and paths with a variable that only the shell of the run knows.
    pub unfollowed: Vec<String>,
}

/// The files of the project that a command names and does not say that it writes. `env`: what the
/// cell sets of its run's environment.
pub(super) fn named_by(
    root: &Path,
    command: &Value,
    env: &BTreeMap<String, String>,
    reads: &ReadSet,
) -> Result<Named> {
    let mut reader = CommandScanner {
        root,
        env,
        reads,
        folders: vec![PathBuf::new()],
        assigned: BTreeSet::new(),
        named: Named::default(),
    };
    match command {
        Value::String(script) => reader.script(script, 1)?,
        list => {
            let words = strings(list).into_iter().map(Token::of_list);
            let words: Vec<Token> = words.collect();
            reader.assigned.extend(assigned(&words));
            reader.tokens(words, 0)?;
        }
    }
    Ok(reader.named)
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Operator(String),
}

impl Token {
    /// A word of a list is given to the program as it is, but one like `>` can only be meant for a
    /// shell.
    fn of_list(word: &str) -> Self {
        let is_operator = !word.is_empty() && word.chars().all(|c| ";&|<>".contains(c));
        if is_operator {
            Self::Operator(word.to_owned())
        } else {
            Self::Word(word.to_owned())
        }
    }
}

struct CommandScanner<'a> {
    root: &'a Path,
    env: &'a BTreeMap<String, String>,
    reads: &'a ReadSet,
    /// Where words may begin: the root, and whatever a `cd` leads to.
    folders: Vec<PathBuf>,
    /// Variables that the command sets itself, for the scripts in it as well.
    assigned: BTreeSet<String>,
    named: Named,
}

/// What there is at a place that a word may mean.
enum Found {
    Input,
    /// A file elsewhere that is a link or somebody else's: whoever wrote the project must not choose
    /// which files of others the caller reads.
    Refused,
    /// What comes with an interpreter or the host, which other facts name.
    OfHost,
    Nothing,
}

impl CommandScanner<'_> {
    fn script(&mut self, text: &str, depth: usize) -> Result<()> {
        let tokens = tokens(text);
        self.assigned.extend(assigned(&tokens));
        let expanded = |token| match token {
            Token::Word(word) => Token::Word(self.expanded(word)),
            operator @ Token::Operator(_) => operator,
        };
        self.tokens(tokens.into_iter().map(expanded).collect(), depth)
    }

    /// A word of a script with what the cell sets in place of `$NAME` and `${NAME}`, unless the command
    /// sets NAME itself.
    fn expanded(&self, word: String) -> String {
        if !word.contains('$') {
            return word;
        }
        let mut text = String::new();
        let mut rest = word.as_str();
        while let Some((before, after)) = rest.split_once('$') {
            text.push_str(before);
            let braced = after.strip_prefix('{');
            let from = braced.unwrap_or(after);
            let end = from.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let (name, mut behind) = from.split_at(end.unwrap_or(from.len()));
            if braced.is_some() {
                behind = behind.strip_prefix('}').unwrap_or_default();
            }
            let is_whole =
                braced.is_none() || from.strip_prefix(name) == Some(&format!("}}{behind}"));
            match self
                .env
                .get(name)
                .filter(|_| is_whole && !self.assigned.contains(name))
            {
                Some(value) => {
                    text.push_str(value);
                    rest = behind;
                }
                None => {
                    text.push('$');
                    rest = after;
                }
            }
        }
        text + rest
    }

    fn tokens(&mut self, tokens: Vec<Token>, depth: usize) -> Result<()> {
        let (mut program, mut before, mut redirected) = (String::new(), String::new(), None);
        for token in tokens {
            let word = match token {
                Token::Operator(operator) if is_redirection(&operator) => {
                    redirected = Some(operator);
                    continue;
                }
                Token::Operator(_) => {
                    (program, before, redirected) = (String::new(), String::new(), None);
                    continue;
                }
                Token::Word(word) => word,
            };
            if let Some(operator) = redirected.take() {
                // `<` reads the file; `<<` and `<<<` are followed by text, and all others write.
                if operator == "<" {
                    self.word(&word, depth)?;
                }
                continue;
            }
            if program.is_empty() && !is_prelude(&word) {
                program = word.rsplit('/').next().unwrap_or_default().to_owned();
            } else if ["cd", "pushd"].contains(&program.as_str()) {
                self.enter(&word);
            }
            if program == "tee" || is_written(&before) {
                before.clear();
                continue;
            }
            // `--save=x` has its value: the next word is another matter.
            let (option, value) = word
                .split_once('=')
                .map_or((word.as_str(), None), |(o, v)| (o, Some(v)));
            match value {
                Some(_) if is_written(option) => {}
                Some(value) => {
                    self.word(value, depth)?;
                    // What is not followed was told of the value.
                    let told = self.named.unfollowed.len();
                    self.word(&word, depth)?;
                    self.named.unfollowed.truncate(told);
                }
                None if before == "-m" => {
                    let module = word.replace('.', "/");
                    self.word(&format!("{module}.py"), depth)?;
                    let found = self.named.files.len();
                    self.word(&format!("{module}/__main__.py"), depth)?;
                    if self.named.files.len() > found {
                        // Its other modules are in a folder like any other.
                        add(&mut self.named.unfollowed, module);
                    }
                }
                None => self.word(&word, depth)?,
            }
            before = if value.is_some() { String::new() } else { word };
        }
        Ok(())
    }

    /// A file; else, where it looks like one, a script.
    fn word(&mut self, word: &str, depth: usize) -> Result<()> {
        let is_script = word.contains(|c: char| c.is_whitespace() || ";&|<>()`".contains(c));
        let (mut is_found, mut is_refused, mut candidates) = (false, false, Vec::new());
        for folder in self.folders.clone() {
            let Some(name) = self.place_of(&folder, word) else {
                continue;
            };
            match self.found_at(&name)? {
                Found::Input => {
                    is_found = true;
                    add(&mut self.named.files, name);
                }
                Found::Refused => is_refused = true,
                Found::OfHost => {}
                Found::Nothing if self.is_package(&name)? => {
                    is_found = true;
                    add(&mut self.named.files, format!("{name}/__main__.py"));
                    add(&mut self.named.unfollowed, word.to_owned());
                }
                Found::Nothing => candidates.push(name),
            }
        }
        if is_found {
            return Ok(());
        }
        // `a.json,b.json`: of a list each part may be a file.
        for part in word.split(',').filter(|part| part.len() < word.len()) {
            for folder in self.folders.clone() {
                if let Some(name) = self.place_of(&folder, part)
                    && self.is_there(&name)?
                {
                    add(&mut self.named.files, name);
                }
            }
        }
        if is_refused || !is_script && self.is_unfollowed(word, &candidates) {
            add(&mut self.named.unfollowed, word.to_owned());
        }
        if is_script {
            return if depth < DEEPEST {
                self.script(word, depth + 1)
            } else {
                Ok(())
            };
        }
        if !word.starts_with('-') && word.parse::<f64>().is_err() {
            candidates
                .into_iter()
                .for_each(|name| add(&mut self.named.absent, name));
        }
        Ok(())
    }

    /// The path of a word from the root, if it may be a file of the project's, or one beside it
    /// that is named by `..`; a file elsewhere keeps its absolute path.
    fn place_of(&self, folder: &Path, word: &str) -> Option<String> {
        if word.is_empty() || word.len() > LONGEST || word.contains('\0') {
            return None;
        }
        let word = own_folder(word.trim_start_matches('@'));
        let path = match word.strip_prefix('/') {
            None => folder.join(&*word),
            Some(_) => {
                let word = Path::new(&*word);
                word.strip_prefix(self.root).unwrap_or(word).to_owned()
            }
        };
        let name = simplified(&path);
        let is_place = |part| !matches!(part, Component::CurDir | Component::Prefix(_));
        let is_file = matches!(name.components().next_back(), Some(Component::Normal(_)));
        let full = self.root.join(&name);
        let is_made = self.reads.is_made(&full) || name.iter().any(is_leftover);
        (is_file && name.components().all(is_place) && !is_made && !is_of_host(&name))
            .then(|| name.to_str().map(str::to_owned))
            .flatten()
    }

    /// `python pkg` runs `pkg/__main__.py`.
    fn is_package(&self, name: &str) -> Result<bool> {
        self.is_there(&format!("{name}/__main__.py"))
    }

    /// Might a word that is no file stand for files all the same?
    fn is_unfollowed(&self, word: &str, candidates: &[String]) -> bool {
        let has_variable =
            word.contains('$') && !word.contains("$TPRIMAT_") && !word.contains("${TPRIMAT_");
        let is_path = word.contains('/') || word.contains('.');
        // Not what is data: `{"lr":0.1}`, `{lr:0.1,beta:0.9}`.
        let is_data = word.contains(['"', '\'']);
        let has_choice = word.contains('{')
            && (word.contains(',') || word.contains(".."))
            && !word.contains(':');
        let is_pattern =
            (word.contains(['*', '?']) || has_choice) && !is_data && !word.contains('$');
        let is_address = word.contains("://") && !word.starts_with("file://");
        let is_folder = |name: &String| !name.is_empty() && self.root.join(name).is_dir();
        (has_variable || is_pattern || word.starts_with('~')) && is_path && !is_address
            || candidates.iter().any(is_folder)
            || self.is_script_in_bin(word)
    }

    /// A file elsewhere that lies where programs are installed, and has the name of a script.
    fn is_script_in_bin(&self, word: &str) -> bool {
        let path = Path::new(word);
        let extension = path.extension().and_then(OsStr::to_str);
        extension.is_some_and(|e| e.chars().all(|c| c.is_ascii_alphabetic()))
            && is_of_host(path)
            && !is_of_system(path)
            && !path.starts_with(self.root)
            && path.is_file()
    }

    fn is_there(&self, name: &str) -> Result<bool> {
        Ok(matches!(self.found_at(name)?, Found::Input))
    }

    fn found_at(&self, name: &str) -> Result<Found> {
        let full = self.root.join(name);
        if name.starts_with("../") || name.starts_with('/') {
            return Ok(match is_own(&full) {
                true if self.reads.is_file(&full).is_ok_and(|is_file| is_file) => Found::Input,
                false if full.is_file() && is_of_system(&full) => Found::OfHost,
                false if full.is_file() => Found::Refused,
                _ => Found::Nothing,
            });
        }
        let refused = Error::io("cannot look for the input that the command names,", &full);
        Ok(match self.reads.is_file(&full).map_err(refused)? {
            true if self.is_of_environment(Path::new(name))? => Found::OfHost,
            true => Found::Input,
            false => Found::Nothing,
        })
    }

    /// An interpreter is a fact of the host, wherever it lies.
    fn is_of_environment(&self, name: &Path) -> Result<bool> {
        for folder in name
            .ancestors()
            .skip(1)
            .filter(|folder| *folder != OsStr::new(""))
        {
            let mark = self.root.join(folder).join("pyvenv.cfg");
            if self
                .reads
                .read(&mark)
                .map_err(Error::io("cannot read", &mark))?
                .is_some()
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn enter(&mut self, word: &str) {
        let word = own_folder(word);
        for folder in self.folders.clone() {
            let place = match Path::new(&*word).strip_prefix(self.root) {
                Ok(below) => below.to_owned(),
                Err(_) => simplified(&folder.join(&*word)),
            };
            if !place.is_absolute()
                && !self.folders.contains(&place)
                && self.folders.len() < DEEPEST * 2
            {
                self.folders.push(place);
            }
        }
    }
}

/// Is a file elsewhere a fact of the host: an installed program, as interpreters are, or what the
/// kernel shows as a file?
fn is_of_host(name: &Path) -> bool {
    let folder = name.parent().and_then(Path::file_name);
    let is_installed = folder.is_some_and(|folder| folder == "bin" || folder == "sbin");
    let is_kernels = ["/proc", "/sys"].iter().any(|top| name.starts_with(top));
    name.is_absolute() && (is_installed || is_kernels)
}

/// Is it below a folder of the system, whose files come with the host?
fn is_of_system(path: &Path) -> bool {
    const FOLDERS: [&str; 9] = [
        "/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/dev", "/proc", "/sys",
    ];
    FOLDERS.iter().any(|folder| path.starts_with(folder))
}

/// The variables that a script sets or takes away: `NAME=…`, `for NAME in …`, `read -r NAME`.
fn assigned(tokens: &[Token]) -> BTreeSet<String> {
    const SET: [&str; 7] = [
        "for",
        "select",
        "read",
        "unset",
        "local",
        "mapfile",
        "readarray",
    ];
    let mut found = BTreeSet::new();
    let mut is_set = false;
    for token in tokens {
        match token {
            Token::Operator(_) => is_set = false,
            Token::Word(word) => {
                let set = word.split_once('=');
                let set = set.filter(|(name, value)| !is_value_of(value, name));
                let name = set.map(|(name, _)| name);
                let name = name.or(Some(word.as_str()).filter(|_| is_set));
                found.extend(name.map(str::to_owned));
                is_set |= SET.contains(&word.as_str());
            }
        }
    }
    found
}

/// `$NAME`, `${NAME}`, `${NAME:-default}`: what a variable that is set has anyway.
fn is_value_of(value: &str, name: &str) -> bool {
    let after = |prefix: &str| value.strip_prefix(prefix)?.strip_prefix(name);
    let braced = after("${").and_then(|rest| rest.strip_suffix('}'));
    after("$") == Some("")
        || braced.is_some_and(|rest| rest.is_empty() || rest.starts_with([':', '-', '=']))
}

fn add(names: &mut Vec<String>, name: String) {
    if !names.contains(&name) {
        names.push(name);
    }
}

/// What a shell does not take for the name of a program: an assignment, a keyword, a program that
/// starts another one.
fn is_prelude(word: &str) -> bool {
    const WORDS: [&str; 16] = [
        "if", "then", "else", "elif", "do", "while", "until", "!", "{", "exec", "time", "nohup",
        "env", "sudo", "command", "stdbuf",
    ];
    WORDS.contains(&word)
        || word.starts_with('-')
        || word
            .split_once('=')
            .is_some_and(|(name, _)| !name.contains('/'))
}

fn is_redirection(operator: &str) -> bool {
    operator.contains(['<', '>'])
}

/// Does a command surely write what follows this word? `-o`, `--output`, `--save-dir`,
/// `--log-file`; not `--output-config`. Of all others (`--checkpoint`, `--log-config`, `--trace`) a
/// file that is there may be read, so it is an input until somebody says otherwise.
fn is_written(word: &str) -> bool {
    const OUTPUTS: [&str; 10] = [
        "o", "out", "output", "outputs", "outfile", "save", "result", "results", "logfile",
        "saveto",
    ];
    const READ: [&str; 11] = [
        "config", "conf", "cfg", "template", "schema", "from", "in", "input", "init", "load",
        "resume",
    ];
    let name = word.trim_start_matches('-').to_lowercase();
    let parts: Vec<&str> = name.split(['-', '_']).collect();
    let is_output =
        OUTPUTS.contains(&parts[0]) || matches!(parts[..], ["log", "file" | "path" | "dir"]);
    word.starts_with('-') && is_output && !parts.iter().any(|part| READ.contains(part))
}

/// A word that begins with the project's folder, in the spellings that scripts have for it, from
/// that folder.
fn own_folder(word: &str) -> Cow<'_, str> {
    for variable in ["TPRIMAT_PROJECT_DIR", "PWD"] {
        if let Some(rest) = word
            .strip_prefix('$')
            .and_then(|word| word.strip_prefix(variable))
            && !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_')
        {
            return format!(".{rest}").into();
        }
        if let Some(rest) = word
            .strip_prefix("${")
            .and_then(|word| word.strip_prefix(variable))
            && let Some((modifier, rest)) = rest.split_once('}')
            && (modifier.is_empty() || modifier.starts_with(':'))
        {
            return format!(".{rest}").into();
        }
    }
    word.into()
}

/// Without `.` and, as far as there is something to go back from, without `..`.
fn simplified(path: &Path) -> PathBuf {
    let mut simple = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir
                if matches!(simple.components().next_back(), Some(Component::Normal(_))) =>
            {
                simple.pop();
            }
            other => simple.push(other),
        }
    }
    simple
}

/// The words of the command that a script surely starts first, without what only sets the shell up
/// (`set -e`, `export A=b`) and what stands before a command (`exec`, `A=b`). None where another command
/// may take over what fails (`||`).
pub(crate) fn first_command(script: &str) -> Option<Vec<String>> {
    if script.contains("||") {
        return None;
    }
    let mut words: Vec<String> = Vec::new();
    for token in tokens(script) {
        match token {
            Token::Word(word) if words.is_empty() && (word == "exec" || is_assignment(&word)) => {}
            Token::Word(word) => words.push(word),
            Token::Operator(operator) => {
                let sets_up = |first: &String| ["set", "export", "ulimit"].contains(&&**first);
                let is_end = ["\n", ";", "&"].contains(&&*operator);
                if !is_end || !words.first().is_none_or(sets_up) {
                    break;
                }
                words.clear();
            }
        }
    }
    Some(words)
}

fn is_assignment(word: &str) -> bool {
    let name = word.split_once('=').map(|(name, _)| name);
    name.is_some_and(|name| !name.is_empty() && !name.contains(['/', '-']))
}

/// A script as a shell splits it, as far as that tells its words.
fn tokens(script: &str) -> Vec<Token> {
    let script = script.replace("$(pwd)", ".").replace("`pwd`", ".");
    let mut lexer = Lexer::default();
    let mut rest = script.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\'' => {
                lexer
                    .word()
                    .extend(rest.by_ref().take_while(|c| *c != '\''));
            }
            '"' => {
                lexer.word();
                while let Some(c) = rest.next().filter(|c| *c != '"') {
                    let next = rest
                        .peek()
                        .copied()
                        .filter(|next| c == '\\' && "$`\"\\\n".contains(*next));
                    lexer.word().push(if next.is_some() {
                        rest.next().unwrap_or(c)
                    } else {
                        c
                    });
                }
            }
            '\\' => lexer
                .word()
                .extend(rest.next().filter(|next| *next != '\n')),
            '#' if lexer.word.is_none() => while rest.next_if(|c| *c != '\n').is_some() {},
            '$' if rest.peek() == Some(&'(') => lexer.end(),
            '<' | '>' => {
                let mut operator = String::from(c);
                while let Some(next) = rest.next_if(|c| "<>|&".contains(*c)) {
                    operator.push(next);
                }
                lexer.redirect(operator);
            }
            '&' if rest.peek() == Some(&'>') => lexer.end(),
            ';' | '&' | '|' | '(' | ')' | '`' | '\n' => lexer.operator(c.to_string()),
            c if c.is_whitespace() => lexer.end(),
            c => lexer.word().push(c),
        }
    }
    lexer.end();
    lexer.tokens
}

#[derive(Default)]
struct Lexer {
    tokens: Vec<Token>,
    /// The word that has not ended yet; one in quotes may be empty.
    word: Option<String>,
}

impl Lexer {
    fn word(&mut self) -> &mut String {
        self.word.get_or_insert_default()
    }

    fn end(&mut self) {
        self.tokens.extend(self.word.take().map(Token::Word));
    }

    fn operator(&mut self, operator: String) {
        self.end();
        self.tokens.push(Token::Operator(operator));
    }

    /// The digits before a redirection are a descriptor.
    fn redirect(&mut self, operator: String) {
        let is_descriptor = |word: &String| word.chars().all(|c| c.is_ascii_digit());
        self.word.take_if(|word| is_descriptor(word));
        self.operator(operator);
    }
}

#[cfg(test)]
mod tests;
