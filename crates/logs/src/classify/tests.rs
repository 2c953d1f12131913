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
    let only_terminated =
        b"Sending process 7 closing signal SIGTERM\n  exitcode  : -15 (pid: 7)  (SIGTERM)\nbye\n";
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
    let traceback =
        "Traceback (most recent call last):\n  File \"t.py\", line 3, in <module>\n    main()\n";
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
