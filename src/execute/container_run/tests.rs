use std::{
    fs,
    process::{Command, Stdio},
};

use super::*;
use crate::mock;

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

#[test]
fn names_that_a_shell_would_not_set_are_told() {
    for (name, is_one) in [
        ("A", true),
        ("_a1", true),
        ("1A", false),
        ("A-B", false),
        ("", false),
        ("A B", false),
    ] {
        assert_eq!(is_variable(name), is_one, "{name}");
    }
}

#[test]
fn a_guard_acts_when_its_supervisor_is_gone_and_not_before() {
    let folder = tempfile::tempdir().unwrap();
    let engine = folder.path().join("docker");
    let said = folder.path().join("said");
    let script = format!("#!/bin/sh\necho \"$@\" > {}\n", said.display());
    mock::program(&engine, script);
    let contained = Contained {
        engine: ContainerEngine {
            kind: EngineKind::Docker,
            program: engine,
        },
        environment: BTreeMap::from([("PATH".into(), "/usr/bin:/bin".into())]),
        name: "tprimat-x".into(),
    };
    drop(contained.guard(Path::new("x"), &[]).unwrap());
    assert!(!said.exists(), "an orderly end leaves nothing to do");
    let mut guard = contained.guard(Path::new("x"), &[]).unwrap();
    let (end, lifeline) = io::pipe().unwrap();
    drop(end);
    // As the kernel does when the supervisor is killed.
    drop(std::mem::replace(&mut guard._lifeline, lifeline));
    guard.wait();
    assert_eq!(
        fs::read_to_string(&said).unwrap(),
        "rm --force --volumes tprimat-x\n"
    );
}

#[test]
fn an_engine_that_cannot_hold_a_run_to_its_job_is_named_before_anything_runs() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["docker", "apptainer", "srun"] {
        mock::program(&folder.path().join(name), "#!/bin/sh\n");
    }
    let env = BTreeMap::from([("PATH".to_owned(), folder.path().display().to_string())]);
    let why = |engine, place, vendor, nodes| {
        let container = Container {
            engine: Some(engine),
            image: "image".into(),
            python: "python3".into(),
            mounts: Vec::new(),
            options: Vec::new(),
        };
        let mut job = Job {
            vendor,
            ..Job::default()
        };
        job.parallelism.num_nodes = nodes;
        engine_for(&container, place, &job, &env)
            .err()
            .map(|problem| problem.message)
    };
    let (docker, pyxis) = (EngineKind::Docker, EngineKind::Pyxis);
    let outside = why(docker, Place::Slurm, Vendor::Nvd, 1).unwrap();
    assert!(outside.contains("outside its Slurm job"), "{outside}");
    assert_eq!(why(docker, Place::Local, Vendor::Nvd, 1), None);
    assert_eq!(why(docker, Place::Slurm, Vendor::Cpu, 1), None);
    assert_eq!(why(pyxis, Place::Slurm, Vendor::Nvd, 1), None);
    let nodes = why(pyxis, Place::Slurm, Vendor::Nvd, 2).unwrap();
    assert!(nodes.contains("containers of pyxis"), "{nodes}");
    assert_eq!(
        why(EngineKind::Apptainer, Place::Slurm, Vendor::Nvd, 2),
        None
    );
    let absent = why(EngineKind::Podman, Place::Slurm, Vendor::Cpu, 1).unwrap();
    assert!(absent.contains("there is no podman in PATH"), "{absent}");
}
