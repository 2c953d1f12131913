use std::process::{Command, Stdio};

use super::*;

#[test]
fn what_an_engine_says_is_a_stage() {
    let exited = |code, out_of_memory| {
        Ok(Stage::Exited {
            code,
            out_of_memory,
        })
    };
    assert_eq!(stage_of("exited 3 false\n"), exited(3, false));
    assert_eq!(stage_of("exited 137 true\n"), exited(137, true));
    assert_eq!(stage_of("running 0 false\n"), Ok(Stage::Running));
    assert_eq!(stage_of("paused 0 false\n"), Ok(Stage::Running));
    assert_eq!(stage_of("created 128 false\n"), Ok(Stage::Created));
    assert!(stage_of("").is_err() && stage_of("exited x false").is_err());
    assert_eq!(
        (exit_of(0), exit_of(1), exit_of(139)),
        (ExitKind::Code(0), ExitKind::Code(1), ExitKind::Signal(11))
    );
}

#[test]
fn any_value_enters_as_it_is() {
    let env = BTreeMap::from([
        ("A".to_owned(), "it's $HOME `x` \"y\" \\ \n two".to_owned()),
        ("B_2".to_owned(), String::new()),
    ]);
    let mut shell = Command::new("/bin/sh");
    shell.args([
        "-c",
        ENTER,
        "tprimat",
        "/bin/sh",
        "-c",
        "printf '%s|%s|' \"$A\" \"$B_2\"; cat",
    ]);
    let mut child = shell
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    io::Write::write_all(
        &mut child.stdin.take().unwrap(),
        &ContainerSpec::input(&env),
    )
    .unwrap();
    let said = child.wait_with_output().unwrap();
    assert_eq!(
        String::from_utf8(said.stdout).unwrap(),
        format!("{}||", env["A"])
    );
}
