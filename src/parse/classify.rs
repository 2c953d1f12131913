//! Why did a run fail? Its exit status and the end of its log → a class and the lines that say so.

use super::{
    Failure, FailureClass,
    lines::{cut, for_each_line},
    parse_any,
};

/// How much of a log's end is searched.
const SEARCHED: usize = 8 << 20;
/// Lines of evidence kept, and characters of each.
const LINES: usize = 5;
const CHARS: usize = 300;

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

/// Classes in order of how much they explain: when a GPU is lost or memory runs out on one rank, the
/// others end with NCCL errors and signals, so those come after.
const PATTERNS: &[(FailureClass, &[&str])] = &[
    (
        FailureClass::Node,
        &[
            "NVRM: Xid",
            "Xid (PCI",
            "uncorrectable ECC error",
            "GPU has fallen off the bus",
            "GPU is lost",
            "Unable to determine the device handle for GPU",
            "GPU Hang",
        ],
    ),
    (
        FailureClass::Oom,
        &[
            "CUDA out of memory",
            "HIP out of memory",
            "XPU out of memory",
            "OutOfMemoryError",
            "CUDA error: out of memory",
            "HIP error: out of memory",
            "hipErrorOutOfMemory",
            "cudaErrorMemoryAllocation",
            "CUBLAS_STATUS_ALLOC_FAILED",
            "DefaultCPUAllocator: can't allocate memory",
            "DefaultCPUAllocator: not enough memory",
            "std::bad_alloc",
            "Cannot allocate memory",
            "oom_kill event",
        ],
    ),
    (FailureClass::Port, &["Address already in use", "EADDRINUSE", "failed to listen on any local network address"]),
    (
        FailureClass::Nan,
        &[
            "loss is nan",
            "loss is NaN",
            "Loss is NaN",
            "found NaN in",
            "Found NaN in",
            "Detected NaN",
            "NaN detected",
            "NaN loss detected",
            "non-finite loss",
            "Non-finite loss",
            "Current loss scale already at minimum",
        ],
    ),
    (
        FailureClass::Nccl,
        &[
            "Watchdog caught collective operation timeout",
            "detected by watchdog at work",
            "NCCL operations have failed or timed out",
            "DistBackendError",
            "NCCL error",
            "NCCL Error",
            "RCCL error",
            "ncclUnhandledCudaError",
            "ncclSystemError",
            "ncclInternalError",
            "ncclRemoteError",
            "ncclInvalidUsage",
            "connectFullMesh failed",
            "Connection closed by peer",
            "Connection closed by remote peer",
        ],
    ),
];

/// Classes that only explain a run which never got as far as a step: libraries also print such lines and go on.
const AT_START: [FailureClass; 2] = [FailureClass::Import, FailureClass::Port];

/// torchrun tells every rank that it ended itself; these are consequences.
const CONSEQUENCES: &[&str] =
    &["closing signal SIGTERM", "Signal 15 (SIGTERM)", "exitcode  : -15", "destroy_process_group() was not called"];

/// `log` is the run's whole output or its end; `status` how the run ended. Call it for failed runs only.
#[must_use]
pub fn classify(log: &[u8], status: &ExitSummary) -> Failure {
    let log = &log[log.len().saturating_sub(SEARCHED)..];
    if let Some(error) = &status.launch_error {
        return Failure { class: FailureClass::Launch, evidence: vec![cut(error, CHARS)] };
    }
    let trace = parse_any(log);
    let said_by_trainer = trace.failure.clone();
    if let Some(said) = said_by_trainer.as_ref().filter(|f| f.class != FailureClass::Unknown) {
        return said.clone();
    }
    let stepped = !trace.steps.is_empty();
    let evidence = Evidence::gather(log);

    let text_says = |class| !evidence.of(class).is_empty() && (!stepped || !AT_START.contains(&class));
    let order = [Class::Node, Class::Oom, Class::Import, Class::Port, Class::Nan, Class::Nccl];
    if let Some(class) = order.into_iter().find(|c| text_says(*c)) {
        return evidence.failure(class);
    }
    if status.timed_out {
        return Failure { class: Class::Timeout, evidence: evidence.tail };
    }
    let killed_by = status.signal.or(status.code.filter(|c| [137, 143].contains(c)).map(|c| c - 128));
    if killed_by.is_some_and(|s| [9, 15].contains(&s)) || !evidence.of(Class::Killed).is_empty() {
        let mut failure = evidence.failure(Class::Killed);
        if let Some(signal) = killed_by.filter(|_| failure.evidence.is_empty()) {
            failure.evidence.push(format!("ended by signal {signal}; the log ends with:"));
            failure.evidence.extend(evidence.tail.last().cloned());
        }
        return failure;
    }
    if status.code.is_some_and(|c| [126, 127].contains(&c)) {
        let said = evidence.failure(Class::Launch);
        return if said.evidence.is_empty() { Failure { evidence: evidence.tail, ..said } } else { said };
    }
    if let Some(said) = said_by_trainer.filter(|f| !f.evidence.is_empty()) {
        return said;
    }
    // The last exceptions say most; without one, the last lines.
    let said = evidence.failure(Class::Unknown);
    if said.evidence.is_empty() { Failure { evidence: evidence.tail, ..said } } else { said }
}

use FailureClass as Class;

#[derive(Default)]
struct Evidence {
    found: Vec<(Class, Vec<String>)>,
    tail: Vec<String>,
}

impl Evidence {
    fn gather(log: &[u8]) -> Self {
        let mut all = Self::default();
        for_each_line(log, |line| all.line(line.text.trim()));
        all
    }

    fn line(&mut self, text: &str) {
        if text.is_empty() || CONSEQUENCES.iter().any(|c| text.contains(c)) {
            return;
        }
        if let Some(class) = class_of(text) {
            self.add(class, text);
        }
        if self.tail.len() == LINES {
            self.tail.remove(0);
        }
        self.tail.push(cut(text, CHARS));
    }

    fn add(&mut self, class: Class, text: &str) {
        let at = self.found.iter().position(|(c, _)| *c == class).unwrap_or_else(|| {
            self.found.push((class, Vec::new()));
            self.found.len() - 1
        });
        let kept = &mut self.found[at].1;
        // Every rank says the same; the first lines of a cause are kept, but the last exceptions.
        let text = cut(text, CHARS);
        if kept.iter().any(|k| message(k) == message(&text)) {
            return;
        }
        if kept.len() < LINES {
            kept.push(text);
        } else if class == Class::Unknown {
            kept.remove(0);
            kept.push(text);
        }
    }

    fn of(&self, class: Class) -> &[String] {
        self.found.iter().find(|(c, _)| *c == class).map_or(&[], |(_, lines)| lines)
    }

    fn failure(&self, class: Class) -> Failure {
        Failure { class, evidence: self.of(class).to_vec() }
    }
}

/// What one line is evidence of; `Unknown` = an exception of no known class.
fn class_of(line: &str) -> Option<Class> {
    if let Some((class, _)) = PATTERNS.iter().find(|(_, words)| words.iter().any(|w| line.contains(w))) {
        return Some(*class);
    }
    let text = message(line);
    if ["ModuleNotFoundError:", "ImportError:"].iter().any(|e| text.starts_with(e)) {
        return Some(Class::Import);
    }
    if text.starts_with("MemoryError") {
        return Some(Class::Oom);
    }
    if ["exitcode  : -9", "Signal 9 (SIGKILL)"].iter().any(|w| line.contains(w)) {
        return Some(Class::Killed);
    }
    if ["command not found", "Exec format error", "cannot execute"].iter().any(|w| line.contains(w)) {
        return Some(Class::Launch);
    }
    let name = text.split([':', ' ']).next().unwrap_or("");
    let last = name.rsplit('.').next().unwrap_or("");
    let is_exception = (last.ends_with("Error") || last.ends_with("Exception")) && last != "ChildFailedError";
    is_exception.then_some(Class::Unknown)
}

/// A line without the prefixes that launchers and loggers put before it: `[rank3]: `, `[default0]:`, `3: `.
fn message(line: &str) -> &str {
    let mut text = line.trim_start();
    loop {
        let rest = if let Some(inner) = text.strip_prefix('[') {
            inner.split_once(']').map(|(_, rest)| rest.strip_prefix(':').unwrap_or(rest))
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn exit(code: i32) -> ExitSummary {
        ExitSummary { code: Some(code), ..ExitSummary::default() }
    }
    fn signal(signal: i32) -> ExitSummary {
        ExitSummary { signal: Some(signal), ..ExitSummary::default() }
    }

    #[test]
    fn each_class_by_its_own_words() {
        for (line, status, class) in [
            (
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB. GPU 0 has a total",
                exit(1),
                Class::Oom,
            ),
            ("RuntimeError: CUDA out of memory. Tried to allocate 20 MiB (GPU 0; 79 GiB total", exit(1), Class::Oom),
            ("torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2 GiB", exit(1), Class::Oom),
            (
                "RuntimeError: [enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory",
                exit(1),
                Class::Oom,
            ),
            ("terminate called after throwing an instance of 'std::bad_alloc'", signal(6), Class::Oom),
            (
                "[rank0]:[E321 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: W",
                signal(6),
                Class::Nccl,
            ),
            ("[E ProcessGroupNCCL.cpp:495] Some NCCL operations have failed or timed out.", signal(6), Class::Nccl),
            ("[rank1]: ModuleNotFoundError: No module named 'transformers'", exit(1), Class::Import),
            ("ImportError: cannot import name 'x' from 'y'", exit(1), Class::Import),
            (
                "RuntimeError: The server socket has failed to listen on any local network address.",
                exit(1),
                Class::Port,
            ),
            ("OSError: [Errno 98] Address already in use", exit(1), Class::Port),
            ("AssertionError: found NaN in local forward loss calculation. Device: 0", exit(1), Class::Nan),
            ("RuntimeError: CUDA error: uncorrectable ECC error encountered", exit(1), Class::Node),
            ("kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.", exit(1), Class::Node),
            ("bash: line 3: torchrun: command not found", exit(127), Class::Launch),
            ("", exit(126), Class::Launch),
            ("step 3 of 10", signal(9), Class::Killed),
            ("step 3 of 10", exit(137), Class::Killed),
            ("ValueError: heads must divide", exit(1), Class::Unknown),
            ("", exit(3), Class::Unknown),
        ] {
            let failure = classify(format!("loading\n{line}\n").as_bytes(), &status);
            assert_eq!(failure.class, class, "{line}");
            assert!(line.is_empty() || failure.evidence.iter().any(|e| e == line), "{line}: {:?}", failure.evidence);
        }
    }

    #[test]
    fn the_tree_of_a_launcher_has_one_cause() {
        let log = b"\
[rank2]:[E ProcessGroupNCCL.cpp:607] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)
[rank4]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 200.00 MiB.
[rank5]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 200.00 MiB.
W0519 api.py:1014] Sending process 1086033 closing signal SIGTERM
  exitcode  : -15 (pid: 1086033)  (SIGTERM)
  traceback : Signal 15 (SIGTERM) received by PID 1086033
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
";
        let failure = classify(log, &exit(1));
        assert_eq!(failure.class, Class::Oom);
        assert_eq!(failure.evidence.len(), 1, "ranks that say the same count once: {:?}", failure.evidence);
        let only_terminated = b"Sending process 7 closing signal SIGTERM\n  exitcode  : -15 (pid: 7)  (SIGTERM)\nbye\n";
        assert_eq!(classify(only_terminated, &exit(1)).class, Class::Unknown);
        let root_killed = b"  exitcode  : -9 (pid: 7)\n  traceback : Signal 9 (SIGKILL) received by PID 7\n";
        assert_eq!(classify(root_killed, &exit(1)).class, Class::Killed);
    }

    #[test]
    fn a_warning_that_training_survived_is_not_the_cause() {
        let log = b"ImportError: apex is missing, using the slow path\n{\"event\":\"step\",\"step\":1}\nhanging\n";
        let timed_out = ExitSummary { signal: Some(9), timed_out: true, ..ExitSummary::default() };
        let failure = classify(log, &timed_out);
        assert_eq!(failure.class, Class::Timeout);
        assert_eq!(failure.evidence.last().unwrap(), "hanging");
    }

    #[test]
    fn the_trainers_own_word_and_a_failed_start_come_first() {
        let log = b"CUDA out of memory\n{\"event\":\"step\",\"step\":1}\n{\"event\":\"error\",\"class\":\"nan\",\"message\":\"loss is nan\"}\n";
        assert_eq!(classify(log, &exit(1)).class, Class::Nan);
        let not_started = ExitSummary { launch_error: Some("no such file".into()), ..ExitSummary::default() };
        assert_eq!(
            classify(b"", &not_started),
            Failure { class: Class::Launch, evidence: vec!["no such file".into()] }
        );
    }

    proptest! {
        #[test]
        fn never_panics_and_evidence_is_short(log in proptest::collection::vec(any::<u8>(), 0..600), code in any::<Option<i32>>(), signal in any::<Option<i32>>()) {
            let failure = classify(&log, &ExitSummary { code, signal, ..ExitSummary::default() });
            prop_assert!(failure.evidence.len() <= LINES && failure.evidence.iter().all(|e| e.chars().count() <= CHARS + 1));
        }
    }
}
