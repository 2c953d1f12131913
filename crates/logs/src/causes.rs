//! What in a log speaks of a failure, gathered line by line while the log is read.
//!
//! A *sign* is a line that explains a failure once there is one; it is *fatal* where it alone says
//! that a process ended: an exception below a traceback, a watchdog's abort. Training that goes on
//! afterwards takes that back.

mod same;
#[cfg(test)]
mod tests;
mod words;

use std::{cell::LazyCell, collections::VecDeque};

use memchr::memmem;
use tprimat_base::words::part;

use super::{Failure, FailureClass as Class, Trace, launcher::Root, lines::cut};
pub use same::{same_failure, same_fault};
use words::{BELOW_FRAMES, OF_PYTHON, OF_SHELL, Says, TABLE, exception, message};

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

/// Classes in order of how much they explain.
const ORDER: [Class; 10] = [
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

#[derive(Default)]
pub struct Causes {
    found: Vec<Found>,
    /// The newest lines, the oldest first.
    last_lines: VecDeque<String>,
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
    /// The place behind which a process began.
    begun_at: Option<u64>,
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
        let is_glued = |words: &[u8]| memmem::find(text.as_bytes(), words).is_some();
        if is_glued(b"Error") || is_glued(b"access fault") || is_glued(b"HSA_STATUS") {
            self.line(text);
        } else {
            self.at += text.len() as u64 + 1;
            self.plain(text.trim_ascii());
        }
        self.step_at = Some(self.at);
    }

    pub fn line(&mut self, text: &str) {
        self.at += text.len() as u64 + 1;
        let is_below_frames = self.in_frames && BELOW_FRAMES.is_match(text);
        self.in_frames &= !is_below_frames;
        let text = text.trim_ascii();
        let mut groups = words::groups_in(text).peekable();
        if groups.peek().is_some() {
            return self.telling(text, groups);
        }
        self.plain(text);
        if is_below_frames {
            // Any name may stand there: `SystemExit`, `KeyboardInterrupt`, an exception of the
            // trainer's own.
            self.add(Class::Unknown, text, true);
        }
    }

    fn plain(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        self.lines += 1;
        self.root.line(text);
        // The oldest line's memory is used again: every line of a log comes by here.
        let is_full = self.last_lines.len() == LINES;
        let oldest = is_full.then(|| self.last_lines.pop_front()).flatten();
        let mut line = oldest.unwrap_or_default();
        line.clear();
        line.push_str(part(text, ..text.floor_char_boundary(CHARS * 4 + 4)));
        self.last_lines.push_back(line);
    }

    /// A line with at least one of the words.
    fn telling(&mut self, text: &str, groups: impl Iterator<Item = usize>) {
        let (mut sign, mut may_raise) = (None::<usize>, false);
        // Asked once: a line may hold the word ten thousand times.
        let failed = LazyCell::new(|| words::says_failure(text));
        for group in groups {
            match TABLE.groups[group].says {
                Says::Exception => may_raise = true,
                Says::Traceback => (self.traceback, self.in_frames) = (Some(self.lines), true),
                Says::Launcher if *failed => {
                    self.launcher_at = Some(self.at);
                    self.launcher_says.get_or_insert_with(|| cut(text, CHARS));
                }
                Says::Launcher => {}
                Says::Root => self.root.begins(),
                // Ranks that were ended by the launcher are not the cause.
                Says::Consequence => return,
                _ => sign = Some(sign.map_or(group, |best| best.min(group))),
            }
        }
        self.plain(text);
        let raised = exception(text).filter(|_| may_raise || sign.is_some());
        if let Some((class, fatal)) = sign.and_then(|sign| self.sign(sign, text, raised.is_some()))
        {
            return self.add(class, text, fatal);
        }
        let class = match raised {
            None | Some("ChildFailedError") => return,
            Some("ModuleNotFoundError" | "ImportError") => Class::Import,
            Some("MemoryError") => Class::Oom,
            Some(_) => Class::Unknown,
        };
        let is_recent = |head| self.lines - head < TRACEBACK;
        self.add(class, text, self.traceback.is_some_and(is_recent));
    }

    /// What a sign says: its class, and whether a process ended; `None` if the line only has the
    /// words.
    fn sign(&mut self, group: usize, text: &str, raised: bool) -> Option<(Class, bool)> {
        let group = &TABLE.groups[group];
        let fatal = match group.says {
            Says::Fatal => true,
            Says::Raised => raised,
            Says::Interpreter if !OF_PYTHON.is_match(message(text)) => return None,
            Says::Shell if !OF_SHELL.is_match(message(text)) => return None,
            _ => false,
        };
        if group.says == Says::Shell {
            self.shell = Some((self.lines, cut(text, CHARS)));
        }
        Some((group.class?, fatal))
    }

    fn add(&mut self, class: Class, text: &str, fatal: bool) {
        let known = self.found.iter().position(|f| f.class == class);
        let at = known.unwrap_or_else(|| {
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

    /// A process begins behind the line that was read last.
    pub fn begins(&mut self) {
        self.begun_at = Some(self.at);
    }

    /// Were there steps more than `slack` bytes after `at`, or of a process that began there?
    fn went_on(&self, at: u64, slack: u64) -> bool {
        let began = self.begun_at.filter(|began| *began >= at);
        self.step_at
            .is_some_and(|step| step > at + slack || began.is_some_and(|began| step > began))
    }

    fn found(&self, class: Class) -> Option<&Found> {
        self.found.iter().find(|found| found.class == class)
    }

    /// The lines of a class; none where nothing speaks of it.
    pub fn failure(&self, class: Class) -> Failure {
        let lines = self.found(class).map(|found| found.lines.clone());
        Failure {
            class,
            evidence: lines.unwrap_or_default(),
        }
    }

    /// The exceptions of no known class, or what the launcher says of the rank that failed first.
    pub fn unexplained(&self) -> Failure {
        let mut failure = self.with_root(self.failure(Class::Unknown));
        if failure.evidence.is_empty() {
            let mut tail = self.tail();
            // What the trainer said after its last event, as `raise SystemExit("boom")` does.
            let events = tail.iter().rposition(|line| is_event(line));
            let mut spoken = tail.split_off(events.map_or(0, |at| at + 1));
            // Above the error of its arguments a program lists all that it takes.
            let usage = spoken.iter().position(|line| line.starts_with("usage: "));
            let error = spoken.iter().rposition(|line| line.contains(": error: "));
            if let (Some(usage), Some(error)) = (usage, error) {
                spoken.drain(usage.min(error)..error);
            }
            failure.evidence = match tail.pop().filter(|_| spoken.is_empty()) {
                Some(last) => {
                    let what = format!("Its log has nothing but events; the last one: {last}");
                    vec![cut(&what, CHARS)]
                }
                None => spoken,
            };
        }
        failure
    }

    /// The signal, and the log's last line that says anything.
    pub fn ended_by(&self, signal: &str) -> String {
        let tail = self.tail();
        let spoken = tail.iter().rev().find(|line| !is_event(line));
        let last = spoken.or(tail.last());
        let last = last.map(|line| format!(" The last line of its log: {line}"));
        let last = last.unwrap_or_default();
        cut(&format!("The run was ended by {signal}.{last}"), CHARS)
    }

    pub fn tail(&self) -> Vec<String> {
        self.last_lines.iter().map(|l| cut(l, CHARS)).collect()
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
        let said = |class| Some((class, self.said(self.found(class)?, told)?));
        let said = ORDER.into_iter().find_map(said);
        if let Some((mut class, evidence)) = said.or(told.then_some((Class::Unknown, Vec::new()))) {
            if class == Class::Unknown && told {
                class = self.root.class().unwrap_or(class);
            }
            return Some(self.with_root(Failure { class, evidence }));
        }
        let (line, shell) = self.shell.as_ref()?;
        let is_end = trace.steps.is_empty() && self.lines - line < AT_END;
        is_end.then(|| Failure {
            class: Class::Launch,
            evidence: vec![shell.clone()],
        })
    }

    /// Did a process end with an exception of this class after the last step?
    pub fn is_end(&self, class: Class) -> bool {
        self.found(class).is_some_and(|found| {
            !found.fatal.is_empty()
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
        let may_hint = told && !vague && found.class != Class::Port;
        let hints = may_hint && self.lines - found.at < POST_MORTEM;
        hints.then(|| found.lines.clone())
    }
}

/// Every rank says the same: it counts once. The first lines of a cause are kept, but the last
/// exceptions.
fn keep(kept: &mut Vec<String>, text: &str, class: Class) {
    if kept.iter().any(|k| message(k) == message(text)) {
        return;
    }
    if kept.len() == LINES && class == Class::Unknown {
        kept.remove(0);
    }
    if kept.len() < LINES {
        kept.push(text.to_owned());
    }
}

/// A line of tprimat's own events.
fn is_event(line: &str) -> bool {
    line.starts_with("{\"event\"")
}
