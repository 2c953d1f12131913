//! A trainer that prints what it was given publishes nothing: its tokens and passwords are in no
//! file and on no screen.

use std::{fs, io::Read};

use crate::{
    arena::Arena,
    support::{CONFIG, Ran, files_below},
};

const TOKEN: &str = "hf_SuperSecret123";
const KEY: &str = "wandb-SuperSecret456";
const PASSWORD: &str = "pgSuperSecret789";
const ENV: [(&str, &str); 3] = [
    ("HF_TOKEN", TOKEN),
    ("WANDB_API_KEY", KEY),
    ("DATABASE", "postgres://me:pgSuperSecret789@db/x"),
];

/// Fails as a trainer does that cannot fetch its model, and prints all that it knows.
const TALKATIVE: &str = r#"
env
echo "fatal: could not clone https://user:$HF_TOKEN@huggingface.co/x: 401" >&2
echo "wandb: $WANDB_API_KEY; $DATABASE" >&2
exit 1
"#;

#[track_caller]
fn nothing_in(ran: &Ran) {
    for secret in [TOKEN, KEY, PASSWORD] {
        assert!(
            !ran.stdout.contains(secret) && !ran.stderr.contains(secret),
            "{secret}: {ran:?}"
        );
    }
}

/// A file's bytes, and those that it has compressed.
fn contents(path: &std::path::Path) -> Vec<u8> {
    let mut bytes = fs::read(path).unwrap();
    if bytes.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        let packed = std::mem::take(&mut bytes);
        zstd::Decoder::new(&packed[..])
            .unwrap()
            .read_to_end(&mut bytes)
            .unwrap();
    }
    bytes
}

#[test]
fn what_a_trainer_prints_of_its_secrets_is_nowhere() {
    let arena = Arena::new();
    let root = arena.project("project");
    let declared = "cpu: { vendor: cpu, num_gpus: 1, \
        env: { WANDB_API_KEY: \"${WANDB_API_KEY}\", DATABASE: \"${DATABASE}\", GREETING: hello } }";
    arena.write(
        "project/config.yaml",
        &CONFIG.replace("cpu: { vendor: cpu, num_gpus: 1 }", declared),
    );
    let trainer = fs::read_to_string(root.join("trainer.sh")).unwrap();
    arena.write("project/trainer.sh", &format!("{trainer}{TALKATIVE}"));

    let ran = arena.run_with(&root, &["build"], &ENV);
    nothing_in(&ran);
    assert!(
        ran.stderr.contains("could not clone https://user:****"),
        "the evidence is quoted: {ran:?}"
    );
    let cell = "cpu/cmd/tiny/single";
    for command in [
        &["plan", "--force=failed"] as &[&str],
        &["show", "--stale", "cpu/cmd/tiny/single#1", "--force=failed"],
        &["show", cell],
    ] {
        nothing_in(&arena.run_with(&root, command, &ENV));
    }
    let log = arena.run_with(&root, &["logs", cell], &ENV);
    nothing_in(&log);
    assert!(
        log.stdout.contains("GREETING=hello")
            && log.stdout.contains("HF_TOKEN=*****************\n"),
        "{log:?}"
    );
    let mut looked_at = 0;
    for path in files_below(&root) {
        let bytes = contents(&path);
        for secret in [TOKEN, KEY, PASSWORD] {
            assert!(
                !bytes.windows(secret.len()).any(|w| w == secret.as_bytes()),
                "{secret} is in {}",
                path.display()
            );
        }
        looked_at += 1;
    }
    assert!(looked_at > 10, "the build left its files");
}

#[test]
fn who_follows_a_log_sees_no_secret_either() {
    let arena = Arena::new();
    let root = arena.project("project");
    let waits = "echo \"token $HF_TOKEN\"; while [ ! -e \"$TPRIMAT_PROJECT_DIR/go\" ]; do sleep 0.02; done\n";
    let trainer = fs::read_to_string(root.join("trainer.sh")).unwrap();
    arena.write("project/trainer.sh", &format!("{waits}{trainer}"));
    let start = |arguments: &[&str]| {
        let mut command = std::process::Command::new(crate::support::TPRIMAT);
        command
            .args(arguments)
            .current_dir(&root)
            .envs(ENV)
            .env("TPRIMAT_LOCK_DIR", arena.path("device-locks"));
        command
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap()
    };
    let build = start(&["build"]);
    crate::support::until("the trainer has printed its token", || {
        files_below(&root.join("cache/runs"))
            .iter()
            .any(|path| path.ends_with("log") && !fs::read(path).unwrap().is_empty())
    });
    let mut logs = start(&["logs", "cpu/cmd/tiny/single", "-f"]);
    let mut first = [0; 10];
    logs.stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut first)
        .unwrap();
    fs::write(root.join("go"), "").unwrap();
    let rest = logs.wait_with_output().unwrap();
    assert!(build.wait_with_output().unwrap().status.success());
    let all = [&first[..], &rest.stdout].concat();
    let all = String::from_utf8_lossy(&all);
    assert!(
        all.starts_with("token *****************\n") && !all.contains(TOKEN),
        "{all}"
    );
}

#[test]
fn a_killed_run_shows_no_secret_to_somebody_without_it() {
    use nix::{
        sys::signal::{Signal, kill},
        unistd::Pid,
    };
    let arena = Arena::new();
    let root = arena.project("project");
    let says = "echo \"token $HF_TOKEN at https://me:$HF_TOKEN@hub\"; touch \"$TPRIMAT_PROJECT_DIR/said\"; sleep 600\n";
    let trainer = fs::read_to_string(root.join("trainer.sh")).unwrap();
    arena.write("project/trainer.sh", &format!("{says}{trainer}"));
    let mut command = std::process::Command::new(crate::support::TPRIMAT);
    command
        .arg("build")
        .current_dir(&root)
        .envs(ENV)
        .env("TPRIMAT_LOCK_DIR", arena.path("device-locks"));
    command
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null());
    let mut build = command.spawn().unwrap();
    crate::support::until("the trainer has printed its token", || {
        root.join("said").exists()
    });
    let of_run = || -> Vec<i32> {
        let pids = fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
        let text = |pid: &i32, file| {
            String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default())
                .into_owned()
        };
        let place = root.to_str().unwrap().to_owned();
        let is_of_run = |pid: &i32| {
            text(pid, "environ").contains(&place) || text(pid, "cmdline").contains(&place)
        };
        pids.filter(is_of_run).collect()
    };
    // Stopped, the build cannot take the run in; killed, the supervisor cannot mask the log.
    let of_build = Pid::from_raw(build.id().cast_signed());
    kill(of_build, Signal::SIGSTOP).unwrap();
    crate::support::until("nobody of the run is left", || {
        let mut left = of_run();
        left.retain(|pid| *pid != of_build.as_raw());
        for pid in &left {
            // It may have ended in between.
            let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
        }
        left.is_empty()
    });
    build.kill().unwrap();
    build.wait().unwrap();
    let cell = "cpu/cmd/tiny/single";
    let masked = "token ***************** at https://me:*****************@hub\n";
    let taken = arena.run_with(&root, &["build", "--cached-only"], &[]);
    assert!(
        taken
            .stderr
            .contains("took in a run that an earlier build left"),
        "{taken:?}"
    );
    let log = arena.run_with(&root, &["logs", cell], &[]);
    assert!(log.stdout.starts_with(masked), "{log:?}");
    nothing_in(&taken);
    nothing_in(&log);
    for path in files_below(&root.join("cache")) {
        let is_there = contents(&path)
            .windows(TOKEN.len())
            .any(|w| w == TOKEN.as_bytes());
        assert!(!is_there, "{}", path.display());
    }
}

#[test]
fn a_new_token_or_password_voids_no_measurement() {
    let arena = Arena::new();
    let root = arena.project("project");
    let declared = "cpu: { vendor: cpu, num_gpus: 1, \
        env: { WANDB_API_KEY: \"${WANDB_API_KEY}\", DATABASE: \"${DATABASE}\" } }";
    arena.write(
        "project/config.yaml",
        &CONFIG.replace("cpu: { vendor: cpu, num_gpus: 1 }", declared),
    );
    let ran = arena.run_with(&root, &["build"], &ENV);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let plan = |database: &str| {
        let env = [
            ("WANDB_API_KEY", "another-SuperSecret"),
            ("DATABASE", database),
        ];
        arena.run_with(&root, &["plan", "--exit-code"], &env)
    };
    assert_eq!(plan("postgres://me:newPassword9@db/x").code, Some(0));
    let moved = plan("postgres://me:newPassword9@elsewhere/x");
    assert_eq!(
        moved.code,
        Some(5),
        "what is no secret is in the key: {moved:?}"
    );
    assert!(!moved.stdout.contains("newPassword9"), "{moved:?}");
}
