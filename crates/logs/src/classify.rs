//! Why did a run fail? Its exit status and the end of its log → a class and the lines that say so.

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
    let (trace, causes) = parser.end();
    let said_by_trainer = trace.failure.clone();
    if let Some(said) = said_by_trainer
        .as_ref()
        .filter(|f| f.class != Class::Unknown)
    {
        return said.clone();
    }
    let stepped = !trace.steps.is_empty();
    let ended_itself = status.signal.is_none() && !status.timed_out;
    let explains =
        |class| !stepped || !AT_START.contains(&class) || ended_itself && causes.is_end(class);
    let text_says = |class| !causes.of(class).is_empty() && explains(class);
    let order = [
        Class::Node,
        Class::Oom,
        Class::Import,
        Class::Port,
        Class::Nan,
        Class::Nccl,
    ];
    if let Some(class) = order.into_iter().find(|c| text_says(*c)) {
        return causes.failure(class);
    }
    let verdict = causes.verdict(&trace);
    if let Some(said) = verdict.filter(|f| matches!(f.class, Class::Launch | Class::Timeout)) {
        return said;
    }
    if status.timed_out {
        return Failure {
            class: Class::Timeout,
            evidence: causes.tail(),
        };
    }
    let killed_by = status.signal.or(status
        .code
        .filter(|c| [137, 143].contains(c))
        .map(|c| c - 128));
    if killed_by.is_some_and(|s| [9, 15].contains(&s)) || !causes.of(Class::Killed).is_empty() {
        let mut failure = causes.failure(Class::Killed);
        if let Some(signal) = killed_by.filter(|_| failure.evidence.is_empty()) {
            let name = if signal == 9 { "SIGKILL" } else { "SIGTERM" };
            let last = causes
                .last()
                .map(|line| format!(" The last line of its log: {line}"))
                .unwrap_or_default();
            failure
                .evidence
                .push(cut(&format!("The run was ended by {name}.{last}"), CHARS));
        }
        return failure;
    }
    if status.code.is_some_and(|c| [126, 127].contains(&c)) {
        let said = causes.failure(Class::Launch);
        return if said.evidence.is_empty() {
            Failure {
                evidence: causes.tail(),
                ..said
            }
        } else {
            said
        };
    }
    let crashed = killed_by.or(status.code.map(|code| code - 128));
    if let Some((_, name)) = CRASHES.iter().find(|(signal, _)| crashed == Some(*signal)) {
        return crash(name, said_by_trainer, &causes);
    }
    if let Some(said) = said_by_trainer.filter(|f| !f.evidence.is_empty()) {
        return said;
    }
    causes.unexplained()
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

/// What was said before the signal explains it best, else the signal and where the log ends.
fn crash(signal: &str, said: Option<Failure>, causes: &Causes) -> Failure {
    let said = said.map(|failure| failure.evidence).unwrap_or_default();
    let mut evidence = [said, causes.failure(Class::Unknown).evidence]
        .into_iter()
        .find(|lines| !lines.is_empty())
        .unwrap_or_default();
    if evidence.is_empty() {
        let last = causes
            .last()
            .map(|line| format!(" The last line of its log: {line}"))
            .unwrap_or_default();
        evidence.push(cut(&format!("The run was ended by {signal}.{last}"), CHARS));
    }
    Failure {
        class: Class::Crash,
        evidence,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{
        super::causes::{CHARS, LINES},
        *,
    };

    fn exit(code: i32) -> ExitSummary {
        ExitSummary {
            code: Some(code),
            ..ExitSummary::default()
        }
    }
    fn signal(signal: i32) -> ExitSummary {
        ExitSummary {
            signal: Some(signal),
            ..ExitSummary::default()
        }
    }

    #[test]
    fn each_class_by_its_own_words() {
        for (line, status, class) in [
            (
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB. GPU 0 has a total",
                exit(1),
                Class::Oom,
            ),
            (
                "RuntimeError: CUDA out of memory. Tried to allocate 20 MiB (GPU 0; 79 GiB total",
                exit(1),
                Class::Oom,
            ),
            (
                "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2 GiB",
                exit(1),
                Class::Oom,
            ),
            (
                "RuntimeError: [enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory",
                exit(1),
                Class::Oom,
            ),
            (
                "terminate called after throwing an instance of 'std::bad_alloc'",
                signal(6),
                Class::Oom,
            ),
            (
                "[rank0]:[E321 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: W",
                signal(6),
                Class::Nccl,
            ),
            (
                "[E ProcessGroupNCCL.cpp:495] Some NCCL operations have failed or timed out.",
                signal(6),
                Class::Nccl,
            ),
            (
                "[rank1]: ModuleNotFoundError: No module named 'transformers'",
                exit(1),
                Class::Import,
            ),
            (
                "ImportError: cannot import name 'x' from 'y'",
                exit(1),
                Class::Import,
            ),
            (
                "/usr/bin/python3.11: No module named trian",
                exit(1),
                Class::Import,
            ),
            ("checked: No module named apex", exit(1), Class::Unknown),
            (
                "RuntimeError: The server socket has failed to listen on any local network address.",
                exit(1),
                Class::Port,
            ),
            (
                "OSError: [Errno 98] Address already in use",
                exit(1),
                Class::Port,
            ),
            (
                "AssertionError: found NaN in local forward loss calculation. Device: 0",
                exit(1),
                Class::Nan,
            ),
            (
                "RuntimeError: CUDA error: uncorrectable ECC error encountered",
                exit(1),
                Class::Node,
            ),
            (
                "kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.",
                exit(1),
                Class::Node,
            ),
            (
                "bash: line 3: torchrun: command not found",
                exit(127),
                Class::Launch,
            ),
            ("", exit(126), Class::Launch),
            ("step 3 of 10", signal(9), Class::Killed),
            ("step 3 of 10", exit(137), Class::Killed),
            ("step 3 of 10", signal(11), Class::Crash),
            ("step 3 of 10", exit(139), Class::Crash),
            (
                "terminate called after throwing an instance of 'std::runtime_error'",
                signal(6),
                Class::Crash,
            ),
            ("ValueError: heads must divide", exit(1), Class::Unknown),
            ("", exit(3), Class::Unknown),
        ] {
            let failure = classify(format!("loading\n{line}\n").as_bytes(), &status);
            assert_eq!(failure.class, class, "{line}");
            assert!(
                failure.evidence.iter().any(|e| e.ends_with(line)) || line.is_empty(),
                "{line}: {failure:?}"
            );
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
        assert_eq!(
            failure.evidence.len(),
            1,
            "ranks that say the same count once: {:?}",
            failure.evidence
        );
        let only_terminated = b"Sending process 7 closing signal SIGTERM\n  exitcode  : -15 (pid: 7)  (SIGTERM)\nbye\n";
        assert_eq!(classify(only_terminated, &exit(1)).class, Class::Unknown);
        let root_killed =
            b"  exitcode  : -9 (pid: 7)\n  traceback : Signal 9 (SIGKILL) received by PID 7\n";
        assert_eq!(classify(root_killed, &exit(1)).class, Class::Killed);
    }

    #[test]
    fn a_warning_that_training_survived_is_not_the_cause() {
        let log = b"ImportError: apex is missing, using the slow path\n{\"event\":\"step\",\"step\":1}\nhanging\n";
        let timed_out = ExitSummary {
            signal: Some(9),
            timed_out: true,
            ..ExitSummary::default()
        };
        let failure = classify(log, &timed_out);
        assert_eq!(failure.class, Class::Timeout);
        assert_eq!(failure.evidence.last().unwrap(), "hanging");
    }

    #[test]
    fn a_module_or_a_port_that_a_later_step_lacks_is_the_cause() {
        let step = "{\"event\":\"step\",\"step\":1}\n";
        let frames = "Traceback (most recent call last):\n  File \"train.py\", line 9, in <module>\n    save()\n";
        for (error, class) in [
            (
                "ModuleNotFoundError: No module named 'safetensors'",
                Class::Import,
            ),
            ("OSError: [Errno 98] Address already in use", Class::Port),
        ] {
            let log = format!("{step}{frames}{error}\n");
            let failure = classify(log.as_bytes(), &exit(1));
            assert_eq!(failure.class, class, "{failure:?}");
            assert_eq!(failure.evidence, [error]);
            // Printed by a library, and training went on.
            let survived = format!("{log}{step}ValueError: another\n");
            let failure = classify(
                survived.replace("\"step\":1", "\"step\":2").as_bytes(),
                &exit(1),
            );
            assert_eq!(failure.class, Class::Unknown, "{failure:?}");
            assert_eq!(classify(log.as_bytes(), &signal(9)).class, Class::Killed);
        }
    }

    #[test]
    fn the_trainers_own_word_and_a_failed_start_come_first() {
        let log = b"CUDA out of memory\n{\"event\":\"step\",\"step\":1}\n{\"event\":\"error\",\"class\":\"nan\",\"message\":\"loss is nan\"}\n";
        assert_eq!(classify(log, &exit(1)).class, Class::Nan);
        let not_started = ExitSummary {
            launch_error: Some("no such file".into()),
            ..ExitSummary::default()
        };
        assert_eq!(
            classify(b"", &not_started),
            Failure {
                class: Class::Launch,
                evidence: vec!["no such file".into()]
            }
        );
    }

    #[test]
    fn what_is_shown_first_says_what_happened() {
        let first =
            |log: &str, status: &ExitSummary| classify(log.as_bytes(), status).evidence.remove(0);
        let events = "{\"event\":\"start\"}\n{\"event\":\"step\",\"step\":1}\n";
        let killed = first(&format!("{events}step 3 of 10\n"), &signal(9));
        assert_eq!(
            killed,
            "The run was ended by SIGKILL. The last line of its log: step 3 of 10"
        );
        assert_eq!(first("", &signal(15)), "The run was ended by SIGTERM.");
        // `raise SystemExit("boom")` prints its message alone; below a traceback any name may
        // stand.
        assert_eq!(first(&format!("{events}boom\n"), &exit(1)), "boom");
        let traceback = "Traceback (most recent call last):\n  File \"t.py\", line 3, in <module>\n    main()\n";
        for said in [
            "SystemExit: boom",
            "KeyboardInterrupt",
            "my.Trouble: no luck",
            "ValueError: heads must divide",
        ] {
            assert_eq!(
                first(&format!("{events}{traceback}{said}\n{events}"), &exit(1)),
                said
            );
            let of_rank: String = format!("{traceback}{said}\n")
                .lines()
                .map(|l| format!("[rank0]: {l}\n"))
                .collect();
            assert_eq!(
                first(&format!("{events}{of_rank}bye\n"), &exit(1)),
                format!("[rank0]: {said}")
            );
        }
        // Events alone say nothing of the cause, but are better than nothing.
        assert_eq!(
            first("{\"event\":\"start\"}\n", &exit(1)),
            "Its log has nothing but events; the last one: {\"event\":\"start\"}"
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
