//! What in a log speaks of a failure, gathered line by line while the log is read.
//!
//! A *sign* is a line that explains a failure once there is one; it is *fatal* where it alone says
//! that a process ended: an exception below a traceback, a watchdog's abort. Training that goes on
//! afterwards takes that back.

mod same;

use std::sync::LazyLock;
use tprimat_words::part;

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use memchr::memmem::Finder;

use super::{
    Failure, FailureClass as Class, Trace,
    classify::CRASHES,
    launcher::Root,
    lines::cut,
    words::{CONSEQUENCES, EXCEPTIONS, LAUNCHERS, SIGNS, Sign},
};
pub use same::same_failure;

/// Lines of evidence kept, and characters of each.
pub const LINES: usize = 5;
pub const CHARS: usize = 300;
/// Output of the same process may be buffered: steps so few bytes after a fatal line may be older
/// than it.
const BUFFERED: u64 = 32 << 10;
/// Lines from a traceback's head to its exception, and from the exception to the log's end.
const TRACEBACK: u64 = 400;
const POST_MORTEM: u64 = 300;
/// Shells complain of many a command that nobody needs: only one at the log's very end is its end.
const AT_END: u64 = 20;

#[derive(Clone, Copy)]
enum Meaning {
    Sign(usize),
    Exception,
    Traceback,
    Consequence,
    Launcher,
    Root,
}

static WORDS: LazyLock<(AhoCorasick, Vec<(&'static str, Meaning)>)> = LazyLock::new(|| {
    let signs = SIGNS
        .iter()
        .enumerate()
        .map(|(i, (word, ..))| (*word, Meaning::Sign(i)));
    let others = [
        (EXCEPTIONS, Meaning::Exception),
        (CONSEQUENCES, Meaning::Consequence),
        (LAUNCHERS, Meaning::Launcher),
        (&["Traceback (most recent call last)"], Meaning::Traceback),
        (&["Root Cause (first observed failure)"], Meaning::Root),
    ];
    let others = others
        .into_iter()
        .flat_map(|(words, word)| words.iter().map(move |w| (*w, word)));
    let all: Vec<_> = signs.chain(others).collect();
    let automaton = AhoCorasick::builder()
        .match_kind(MatchKind::LeftmostFirst)
        .kind(Some(AhoCorasickKind::DFA))
        .build(all.iter().map(|(word, _)| word))
        .expect("a few short words");
    (automaton, all)
});

static ERROR: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("Error"));

/// Which four bytes a word may begin with, hashed: most lines hold none of them, and this is told
/// faster than by the automaton.
static BEGINNINGS: LazyLock<Box<[u64; 1024]>> = LazyLock::new(|| {
    let mut bits = Box::new([0; 1024]);
    for (word, _) in &WORDS.1 {
        let slot = slot(word.as_bytes().first_chunk().expect("longer words only"));
        bits[slot >> 6] |= 1 << (slot & 63);
    }
    bits
});

fn slot(bytes: &[u8; 4]) -> usize {
    (u32::from_le_bytes(*bytes).wrapping_mul(0x9E37_79B1) >> 16) as usize
}

fn may_have_word(text: &str) -> bool {
    let bits = &**BEGINNINGS;
    text.as_bytes().windows(4).any(|window| {
        let slot = slot(window.first_chunk().expect("of four"));
        bits[slot >> 6] >> (slot & 63) & 1 == 1
    })
}

#[derive(Default)]
pub struct Causes {
    found: Vec<Found>,
    last_lines: Ring,
    root: Root,
    /// The place where a launcher said that a process failed.
    launcher_at: Option<u64>,
    launcher_says: Option<String>,
    /// Bytes and lines so far.
    at: u64,
    lines: u64,
    traceback: Option<u64>,
    /// Between the head of a traceback and its exception.
    in_frames: bool,
    step_at: Option<u64>,
    /// The last complaint of a shell: in which line, and what.
    shell: Option<(u64, String)>,
}

struct Found {
    class: Class,
    lines: Vec<String>,
    /// The line in which the last of them stands.
    at: u64,
    /// Those that are fatal; where the last of them stands, in bytes and lines.
    fatal: Vec<String>,
    fatal_at: (u64, u64),
}

impl Causes {
    /// A line that states a step. Hardly anything but numbers is in it, so it is searched only
    /// where something is glued on.
    pub fn step_line(&mut self, text: &str) {
        if ERROR.find(text.as_bytes()).is_some() {
            self.line(text);
        } else {
            self.at += text.len() as u64 + 1;
            self.plain(text.trim_ascii());
        }
        self.step_at = Some(self.at);
    }

    pub fn line(&mut self, text: &str) {
        self.at += text.len() as u64 + 1;
        let (automaton, words) = &*WORDS;
        let is_below_frames = self.in_frames && ends_frames(text);
        let text = text.trim_ascii();
        if is_below_frames {
            self.in_frames = false;
            // Any name may stand there: `SystemExit`, `KeyboardInterrupt`, an exception of the
            // trainer's own.
            if !may_have_word(text) || automaton.find(text).is_none() {
                self.plain(text);
                return self.add(Class::Unknown, text, true);
            }
        }
        match Some(text)
            .filter(|text| may_have_word(text))
            .and_then(|text| automaton.find(text))
        {
            None => self.plain(text),
            Some(first) => {
                let rest = automaton.find_iter(part(text, first.end()..));
                self.telling(
                    text,
                    std::iter::once(first)
                        .chain(rest)
                        .map(|m| words[m.pattern().as_usize()].1),
                );
            }
        }
    }

    fn plain(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        self.lines += 1;
        self.root.line(text);
        self.last_lines.push(text);
    }

    /// A line with at least one of the words.
    fn telling(&mut self, text: &str, words: impl Iterator<Item = Meaning>) {
        let (mut sign, mut exception) = (None::<usize>, false);
        // Asked once: a line may hold the word ten thousand times.
        let failed = std::cell::LazyCell::new(|| says_failure(text));
        for word in words {
            match word {
                Meaning::Sign(i) => sign = Some(sign.map_or(i, |best| best.min(i))),
                Meaning::Exception => exception = true,
                Meaning::Traceback => {
                    self.traceback = Some(self.lines);
                    self.in_frames = true;
                }
                Meaning::Launcher if *failed => {
                    self.launcher_at = Some(self.at);
                    self.launcher_says.get_or_insert_with(|| cut(text, CHARS));
                }
                Meaning::Launcher => {}
                Meaning::Root => self.root.begins(),
                // Ranks that were ended by the launcher are not the cause.
                Meaning::Consequence => return,
            }
        }
        self.plain(text);
        let raised = (exception || sign.is_some()) && is_exception(text);
        let traced = raised
            && self
                .traceback
                .is_some_and(|head| self.lines - head < TRACEBACK);
        match sign.map(|i| SIGNS[i]) {
            Some((_, class, Sign::Fatal)) => self.add(class, text, true),
            Some((_, class, Sign::Raised)) => self.add(class, text, raised),
            Some((_, class, Sign::Hint)) => self.add(class, text, false),
            Some((_, class, Sign::Interpreter)) if is_of_python(text) => {
                self.add(class, text, false);
            }
            Some((_, class, Sign::Shell)) if is_shell(text) => {
                self.add(class, text, false);
                self.shell = Some((self.lines, cut(text, CHARS)));
            }
            _ if raised => match last_name(text) {
                "ModuleNotFoundError" | "ImportError" => self.add(Class::Import, text, traced),
                "MemoryError" => self.add(Class::Oom, text, traced),
                "ChildFailedError" => {}
                _ => self.add(Class::Unknown, text, traced),
            },
            _ => {}
        }
    }

    fn add(&mut self, class: Class, text: &str, fatal: bool) {
        let at = self
            .found
            .iter()
            .position(|f| f.class == class)
            .unwrap_or_else(|| {
                self.found.push(Found {
                    class,
                    lines: Vec::new(),
                    at: 0,
                    fatal: Vec::new(),
                    fatal_at: (0, 0),
                });
                self.found.len() - 1
            });
        let survived = self.went_on(self.found[at].fatal_at.0, BUFFERED);
        let found = &mut self.found[at];
        let text = cut(text, CHARS);
        keep(&mut found.lines, &text, class);
        found.at = self.lines;
        if fatal {
            if survived {
                found.fatal.clear();
            }
            keep(&mut found.fatal, &text, class);
            found.fatal_at = (self.at, self.lines);
        }
    }

    /// Were there steps more than `slack` bytes after `at`?
    fn went_on(&self, at: u64, slack: u64) -> bool {
        self.step_at.is_some_and(|step| step > at + slack)
    }

    pub fn of(&self, class: Class) -> &[String] {
        self.found
            .iter()
            .find(|f| f.class == class)
            .map_or(&[], |f| &f.lines)
    }

    pub fn failure(&self, class: Class) -> Failure {
        Failure {
            class,
            evidence: self.of(class).to_vec(),
        }
    }

    /// The exceptions of no known class, or what the launcher says of the rank that failed first.
    pub fn unexplained(&self) -> Failure {
        let mut failure = self.with_root(self.failure(Class::Unknown));
        if failure.evidence.is_empty() {
            let tail = self.tail();
            // What the trainer said after its last event, as `raise SystemExit("boom")` does.
            let spoken = tail
                .iter()
                .rposition(|line| is_event(line))
                .map_or(0, |at| at + 1);
            failure.evidence = match tail.last() {
                Some(last) if spoken == tail.len() => {
                    vec![cut(
                        &format!("Its log has nothing but events; the last one: {last}"),
                        CHARS,
                    )]
                }
                _ => tail[spoken..].to_vec(),
            };
        }
        failure
    }

    /// The log's last line that says anything.
    pub fn last(&self) -> Option<String> {
        let tail = self.tail();
        tail.iter()
            .rev()
            .find(|line| !is_event(line))
            .or(tail.last())
            .cloned()
    }

    pub fn tail(&self) -> Vec<String> {
        self.last_lines.all()
    }

    fn with_root(&self, mut failure: Failure) -> Failure {
        let root = self.root.says().or_else(|| self.launcher_says.clone());
        failure.evidence.truncate(LINES - 1);
        failure.evidence.extend(root);
        failure
    }

    /// What the log alone says of its end: `None` where training came to its end, or went on after
    /// what was said.
    pub fn verdict(&self, trace: &Trace) -> Option<Failure> {
        // A launcher speaks when its processes are gone: steps after that are those of a restart.
        let told = self.launcher_at.is_some_and(|at| !self.went_on(at, 0));
        if !told && trace.ended() {
            return None;
        }
        let order = [
            Class::Node,
            Class::Oom,
            Class::Import,
            Class::Port,
            Class::Nan,
            Class::Launch,
            Class::Nccl,
            Class::Timeout,
            Class::Killed,
            Class::Unknown,
        ];
        let said = |class: Class| {
            self.found
                .iter()
                .find(|f| f.class == class)
                .and_then(|f| self.said(f, told))
        };
        if let Some((class, evidence)) = order
            .into_iter()
            .find_map(|class| Some((class, said(class)?)))
        {
            let class = if class == Class::Unknown && told {
                self.root.class().unwrap_or(class)
            } else {
                class
            };
            return Some(self.with_root(Failure { class, evidence }));
        }
        if told {
            let class = self.root.class().unwrap_or(Class::Unknown);
            return Some(self.with_root(Failure {
                class,
                evidence: Vec::new(),
            }));
        }
        let (_, shell) = self
            .shell
            .as_ref()
            .filter(|(line, _)| trace.steps.is_empty() && self.lines - line < AT_END)?;
        Some(Failure {
            class: Class::Launch,
            evidence: vec![shell.clone()],
        })
    }

    /// Did a process end with an exception of this class after the last step?
    pub fn is_end(&self, class: Class) -> bool {
        self.found.iter().any(|found| {
            found.class == class
                && !found.fatal.is_empty()
                && self.lines - found.fatal_at.1 < POST_MORTEM
                && !self.went_on(found.fatal_at.0, 0)
        })
    }

    /// The lines of a class that explain the end of the log.
    fn said(&self, found: &Found, told: bool) -> Option<Vec<String>> {
        let vague = matches!(found.class, Class::Unknown | Class::Import | Class::Launch);
        let slack = if vague && !told { 0 } else { BUFFERED };
        let recent = !vague || self.lines - found.fatal_at.1 < POST_MORTEM;
        if !found.fatal.is_empty() && recent && !self.went_on(found.fatal_at.0, slack) {
            return Some(found.fatal.clone());
        }
        let hints =
            told && !vague && found.class != Class::Port && self.lines - found.at < POST_MORTEM;
        hints.then(|| found.lines.clone())
    }
}

/// Every rank says the same: it counts once. The first lines of a cause are kept, but the last
/// exceptions.
fn keep(kept: &mut Vec<String>, text: &str, class: Class) {
    if kept.iter().any(|k| message(k) == message(text)) {
        return;
    }
    if kept.len() < LINES {
        kept.push(text.to_owned());
    } else if class == Class::Unknown {
        kept.remove(0);
        kept.push(text.to_owned());
    }
}

/// `torch.OutOfMemoryError: …` → `OutOfMemoryError`.
fn last_name(text: &str) -> &str {
    message(text)
        .split([':', ' '])
        .next()
        .and_then(|name| name.rsplit('.').next())
        .unwrap_or("")
}

fn is_exception(text: &str) -> bool {
    let name = last_name(text);
    let is_name = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    is_name && (name.ends_with("Error") || name.ends_with("Exception"))
        || text.contains("terminate called after throwing")
}

/// `/usr/bin/python3.11: No module named x`.
fn is_of_python(text: &str) -> bool {
    let program = message(text).split(": ").next().unwrap_or_default();
    let name = program.rsplit('/').next().unwrap_or_default();
    name.starts_with("python") && !name.contains(' ')
}

/// `bash: x: command not found`, `/bin/sh: 1: x: not found`, `run.sh: line 3: …`, `slurmstepd:
/// error: execve(): …`.
fn is_shell(text: &str) -> bool {
    let text = message(text);
    let program = text
        .split(':')
        .next()
        .unwrap_or("")
        .rsplit('/')
        .next()
        .unwrap_or("");
    [
        "bash",
        "sh",
        "dash",
        "zsh",
        "env",
        "nohup",
        "python",
        "python3",
        "srun",
        "slurmstepd",
        "exec",
        "docker",
    ]
    .contains(&program)
        || program.ends_with(".sh")
}

/// A line of tprimat's own events.
fn is_event(line: &str) -> bool {
    line.starts_with("{\"event\"")
}

/// Does the line end a traceback's frames, which are indented? A launcher puts `[rank0]: ` before
/// each line.
fn ends_frames(line: &str) -> bool {
    let own = line
        .strip_prefix("[rank")
        .and_then(|rest| rest.split_once("]:"))
        .map_or(line, |(_, rest)| rest.strip_prefix(' ').unwrap_or(rest));
    let name = own.trim_ascii_end().split(':').next().unwrap_or_default();
    let is_name = name
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'.');
    is_name && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
}

/// `exited with code 0` is no failure.
fn says_failure(text: &str) -> bool {
    let Some((_, code)) = text.rsplit_once("code") else {
        return true;
    };
    let digits: String = code
        .chars()
        .skip_while(|c| !c.is_ascii_digit())
        .take_while(char::is_ascii_digit)
        .collect();
    digits.parse::<u64>() != Ok(0)
}

/// A line without the prefixes that launchers and loggers put before it: `[rank3]: `,
/// `[default0]:`, `3: `.
pub fn message(line: &str) -> &str {
    let mut text = line.trim_start();
    if let Some(at) = text.find("[rank").filter(|at| *at < 80) {
        text = part(text, at..);
    }
    loop {
        let rest = if let Some(inner) = text.strip_prefix('[') {
            inner
                .split_once(']')
                .map(|(_, rest)| rest.strip_prefix(':').unwrap_or(rest))
        } else if let Some(rest) = text.strip_prefix([':', '>']) {
            Some(rest)
        } else {
            text.split_once(": ")
                .filter(|(rank, _)| !rank.is_empty() && rank.bytes().all(|b| b.is_ascii_digit()))
                .map(|(_, rest)| rest)
        };
        match rest {
            Some(rest) => text = rest.trim_start(),
            None => return text,
        }
    }
}

/// The last lines, without an allocation for each.
#[derive(Default)]
struct Ring {
    lines: [String; LINES],
    next: usize,
}

impl Ring {
    fn push(&mut self, text: &str) {
        let mut end = text.len().min(CHARS * 4 + 4);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let slot = &mut self.lines[self.next];
        slot.clear();
        slot.push_str(part(text, ..end));
        self.next = (self.next + 1) % LINES;
    }

    fn all(&self) -> Vec<String> {
        let order = (0..LINES).map(|i| &self.lines[(self.next + i) % LINES]);
        order
            .filter(|line| !line.is_empty())
            .map(|line| cut(line, CHARS))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(line: &str) -> Option<Failure> {
        let mut causes = Causes::default();
        causes.line(line);
        causes.verdict(&Trace::default())
    }

    #[test]
    fn a_launcher_says_that_a_process_failed_unless_its_code_is_0() {
        for word in LAUNCHERS {
            let failure = verdict(&format!("{word} 1")).unwrap_or_else(|| panic!("{word}"));
            assert_eq!(
                (failure.class, failure.evidence),
                (Class::Unknown, vec![format!("{word} 1")])
            );
        }
        for line in [
            "torchrun exited with code 0",
            "srun: Exited with exit code 0",
            "x exits with return code = 0",
        ] {
            assert_eq!(verdict(line), None, "{line}");
        }
        let several = "process returned a non-zero exit code; torchrun exited with code 0";
        assert_eq!(
            verdict(several),
            None,
            "the last code counts for all of the line's words"
        );
    }

    /// The code is looked for once a line: at each of its words it would take minutes here.
    #[test]
    fn a_line_full_of_launchers_words_is_asked_once() {
        let line = "torchrun exited with code ".repeat((1 << 20) / 26);
        assert_eq!(verdict(&format!("{line}0")), None);
        assert_eq!(
            verdict(&format!("{line}1")).map(|f| f.evidence.len()),
            Some(1)
        );
        let plain = "ChildFailedError ".repeat((1 << 20) / 17);
        assert!(verdict(&plain).is_some());
    }
}
