//! Why did a run fail? Its exit status and the end of its log → a class and the lines that say so.

#[cfg(test)]
mod tests;

use super::{
    Failure,
    FailureClass::{self as Class},
    causes::{CHARS, Causes},
    lines::cut,
    parser::Parser,
};

/// How much of a log's end is searched.
const SEARCHED: usize = 8 << 20;

/// How a process ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExitSummary {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    /// Ended by its time limit.
    pub timed_out: bool,
    /// It could not be started at all.
    pub launch_error: Option<String>,
}

/// Signals by which a process ends itself.
pub(crate) const CRASHES: [(i32, &str); 6] = [
    (4, "SIGILL"),
    (5, "SIGTRAP"),
    (6, "SIGABRT"),
    (7, "SIGBUS"),
    (8, "SIGFPE"),
    (11, "SIGSEGV"),
];

/// Signals by which others end a process.
const KILLS: [(i32, &str); 2] = [(9, "SIGKILL"), (15, "SIGTERM")];

/// Classes that a line of the log decides, in order of how much they explain.
const BY_WORDS: [Class; 6] = [
    Class::Node,
    Class::Oom,
    Class::Import,
    Class::Port,
    Class::Nan,
    Class::Nccl,
];

/// Libraries also print lines of these classes and go on: after the first step they explain a run
/// only where they are its end.
const AT_START: [Class; 2] = [Class::Import, Class::Port];

/// `log` is the run's whole output or its end; `status` how the run ended. Call it for failed runs
/// only.
#[must_use]
pub fn classify(log: &[u8], status: &ExitSummary) -> Failure {
    if let Some(error) = &status.launch_error {
        return Failure {
            class: Class::Launch,
            evidence: vec![cut(error, CHARS)],
        };
    }
    let mut parser = Parser::detecting();
    parser.feed(&log[log.len().saturating_sub(SEARCHED)..]);
    let (mut trace, causes) = parser.end();
    let said_by_trainer = trace.failure.take();
    if let Some(said) = said_by_trainer
        .as_ref()
        .filter(|f| f.class != Class::Unknown)
    {
        return said.clone();
    }
    let ended_itself = status.signal.is_none() && !status.timed_out;
    let explains = |class| {
        trace.steps.is_empty() || !AT_START.contains(&class) || ended_itself && causes.is_end(class)
    };
    let by_words = BY_WORDS.into_iter().filter(|class| explains(*class));
    let mut by_words = by_words.map(|class| causes.failure(class));
    if let Some(failure) = by_words.find(|failure| !failure.evidence.is_empty()) {
        return failure;
    }
    let verdict = causes.verdict(&trace);
    verdict
        .filter(|f| matches!(f.class, Class::Launch | Class::Timeout))
        .or_else(|| by_status(status, said_by_trainer.as_ref(), &causes))
        .or(said_by_trainer.filter(|f| !f.evidence.is_empty()))
        .unwrap_or_else(|| causes.unexplained())
}

/// What the exit status says of a failure that no words explain.
fn by_status(status: &ExitSummary, said: Option<&Failure>, causes: &Causes) -> Option<Failure> {
    let failure = |class| Some(causes.failure(class));
    if status.timed_out {
        return Some(Failure {
            class: Class::Timeout,
            evidence: causes.tail(),
        });
    }
    // A shell exits with 128 + n where its command was ended by signal n.
    let signal = status.signal.or(status.code.map(|code| code - 128));
    let named = |signals: &[(i32, &'static str)]| {
        let known = signals.iter().find(|(n, _)| signal == Some(*n));
        known.map(|(_, name)| *name)
    };
    let killed = failure(Class::Killed).filter(|f| !f.evidence.is_empty());
    if let Some(signal) = named(&KILLS).filter(|_| killed.is_none()) {
        return Some(Failure {
            class: Class::Killed,
            evidence: vec![causes.ended_by(signal)],
        });
    }
    if killed.is_some() {
        return killed;
    }
    if matches!(status.code, Some(126 | 127)) {
        let mut launch = causes.failure(Class::Launch);
        if launch.evidence.is_empty() {
            launch.evidence = causes.tail();
        }
        return Some(launch);
    }
    // What was said before the signal explains it best, else the signal and where the log ends.
    let signal = named(&CRASHES)?;
    let said = said.map(|failure| failure.evidence.clone());
    let spoken = said.filter(|lines| !lines.is_empty());
    let mut evidence = spoken.unwrap_or_else(|| causes.failure(Class::Unknown).evidence);
    if evidence.is_empty() {
        evidence.push(causes.ended_by(signal));
    }
    Some(Failure {
        class: Class::Crash,
        evidence,
    })
}
