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
