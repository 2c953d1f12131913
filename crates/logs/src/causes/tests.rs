use super::*;

fn verdict(line: &str) -> Option<Failure> {
    let mut causes = Causes::default();
    causes.line(line);
    causes.verdict(&Trace::default())
}

#[test]
fn a_launcher_says_that_a_process_failed_unless_its_code_is_0() {
    let launchers = TABLE.groups.iter().filter(|g| g.says == Says::Launcher);
    for word in launchers.flat_map(|group| &group.words) {
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

/// Running out of resources is no fault of the device: the same run would end so again.
#[test]
fn what_amd_says_of_a_fault_is_told_from_what_it_says_of_memory() {
    for (line, class) in [
        (
            "Memory access fault by GPU node-4 (Agent handle: 0x55) on address 0x7f00. Reason: Unknown.",
            Class::Node,
        ),
        (
            "HW Exception by GPU node-1 (Agent handle: 0x55) reason :GPU Hang",
            Class::Node,
        ),
        (
            "Queue 0x7f aborting with error : HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION: The agent attempted to access memory",
            Class::Node,
        ),
        (
            "Queue 0x7f aborting with error : HSA_STATUS_ERROR_OUT_OF_RESOURCES: The runtime failed to allocate the necessary resources",
            Class::Oom,
        ),
        (
            "[PG ID 0 Rank 3] Received a dump signal from this local rank and will start to dump the debug info.",
            Class::Nccl,
        ),
    ] {
        assert_eq!(verdict(line).map(|f| f.class), Some(class), "{line}");
    }
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
