//! Builds without a terminal: started, looked at, followed, ended.

use std::{os::unix::process::CommandExt, process::Stdio};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::kept::CELL;
use crate::support::{CONFIG, ONE_RUN, Project, TRAINER, mock, until};

/// Trains once there is a file `go`.
fn project() -> Project {
    let project = Project::new(ONE_RUN);
    let wait = "echo up > \"$TPRIMAT_PROJECT_DIR/up\"\nuntil [ -e \"$TPRIMAT_PROJECT_DIR/go\" ]; do sleep 0.02; done\n";
    project.write("trainer.sh", &format!("{wait}{TRAINER}"));
    project
}

fn waited(project: &Project) -> crate::support::Ran {
    project.run(&["status", "--wait"])
}

fn state(project: &Project) -> serde_json::Value {
    project.run(&["status", "--json"]).ends_with(0).json()["builds"][0].clone()
}

#[test]
fn a_detached_build_outlives_its_terminal_and_is_waited_for() {
    let project = project();
    // In a session of its own, which is then hung up as a closed terminal is.
    let mut terminal = project.tprimat(&["build", "--detach"]);
    let started: crate::support::Ran = terminal.process_group(0).output().unwrap().into();
    assert!(started.ends_with(0).stderr.contains("tprimat stop"));
    until("the trainer is up", || project.path("up").exists());
    let now = state(&project);
    assert_eq!(
        (now["state"].as_str(), now["exit_code"].as_i64()),
        (Some("running"), None),
        "{now}"
    );
    let text = project.run(&["status"]).ends_with(0).stdout;
    assert!(
        text.contains("running for") && text.contains("cpu/cmd/tiny/single#1"),
        "{text}"
    );
    let waiting = project
        .tprimat(&["status", "--wait"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    project.write("go", "");
    let waited: crate::support::Ran = waiting.wait_with_output().unwrap().into();
    let told = waited.ends_with(0).stdout;
    assert!(
        told.contains("done ") && told.contains(" tasks done\n"),
        "{told}"
    );
    let now = state(&project);
    assert_eq!(
        (now["state"].as_str(), now["exit_code"].as_i64()),
        (Some("ended"), Some(0)),
        "{now}"
    );
    let log = std::fs::read_to_string(now["log"].as_str().unwrap()).unwrap();
    assert!(
        log.contains("1 of 1 selected cell measured; 1 run made in "),
        "{log}"
    );
    assert_eq!(project.launches(), 1);
}

#[test]
fn a_detached_build_is_stopped_and_leaves_nothing() {
    let project = project();
    project.run(&["build", "matrix", "--detach"]).ends_with(0);
    until("the trainer is up", || project.path("up").exists());
    let status = project.run(&["status"]).ends_with(0).stdout;
    assert!(status.contains("\n  tprimat build matrix\n"), "{status}");
    let stopped = project.run(&["stop"]).ends_with(0).stderr;
    assert!(
        stopped.starts_with("stopped the build; what it measured is kept\n")
            && stopped.contains(
                "it stopped with 1 run to do; `tprimat build matrix` goes on where it was"
            ),
        "{stopped}"
    );
    assert_eq!(project.processes(), []);
    let now = state(&project);
    assert_eq!(
        (now["state"].as_str(), now["exit_code"].as_i64()),
        (Some("ended"), Some(143)),
        "{now}"
    );
    assert!(
        project
            .run(&["stop"])
            .ends_with(0)
            .stderr
            .contains("has already ended")
    );
}

/// A build that was stopped is told of until what it left undone is done, with how to go on where it
/// was: not as it was typed, if that measures anew.
#[test]
fn what_a_stopped_build_left_undone_is_told_after_another_build() {
    let project = project();
    project.edit("matrix.toml", "repeats = 1", "repeats = 2");
    let other = project.read("matrix.toml").replace("\"one\"", "\"other\"");
    let other = other.replace("repeats = 2", "repeats = 1");
    project.write("pipelines/other.toml", &other.replace("tiny", "wide"));
    let stopped = ["build", "matrix", "--force=measured", "--detach"];
    project.run(&stopped).ends_with(0);
    until("the trainer is up", || project.path("up").exists());
    let told = project.run(&["stop"]).ends_with(0).stderr;
    let again = "`tprimat build matrix --force=measured` measures all of it anew; without `--force=measured` it goes on where it was";
    assert!(told.contains(again), "{told}");
    let told = format!("\n  it stopped with 2 runs to do; {again}\n");
    let status = project.run(&["status"]).ends_with(0).stdout;
    assert!(status.contains(&told), "{status}");
    project.write("trainer.sh", crate::support::TRAINER);
    project.run(&["build", "other", "--detach"]).ends_with(0);
    waited(&project).ends_with(0);
    let status = project.run(&["status"]).ends_with(0).stdout;
    assert!(
        status.contains("\n  tprimat build other\n") && status.contains(&told),
        "{status}"
    );
    let left = project.run(&["status", "--json"]).ends_with(0).json()["builds"][1]["left"].clone();
    assert_eq!(left.as_array().map(Vec::len), Some(2), "{left}");
    // Any build takes it up.
    project.run(&["build", "matrix"]).ends_with(0);
    let status = project.run(&["status"]).ends_with(0).stdout;
    assert!(!status.contains("to do"), "{status}");
}

#[test]
fn what_is_wrong_is_told_before_the_terminal_is_let_go_and_a_death_is_told_later() {
    let project = project();
    assert!(
        project
            .run(&["status", "--wait"])
            .ends_with(4)
            .stderr
            .contains("no build was detached here")
    );
    project.edit("matrix.toml", "model = \"tiny\"", "model = \"tyni\"");
    let refused = project.run(&["build", "--detach"]).ends_with(2);
    assert!(
        refused.stderr.contains("did you mean"),
        "{}",
        refused.stderr
    );
    project.edit("matrix.toml", "model = \"tyni\"", "model = \"tiny\"");
    project.run(&["build", "--detach"]).ends_with(0);
    until("the trainer is up", || project.path("up").exists());
    let pid = i32::try_from(state(&project)["pid"].as_i64().unwrap()).unwrap();
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(pid),
        nix::sys::signal::Signal::SIGKILL,
    )
    .unwrap();
    until("its death is seen", || state(&project)["state"] == "died");
    let died = waited(&project).ends_with(1).stderr;
    assert!(
        died.contains("died without a word") && died.contains("`tprimat build` goes on"),
        "{died}"
    );
    let told = project.run(&["status"]).ends_with(0).stdout;
    assert!(
        told.contains("died without a word") && told.contains("it stopped with 1 run to do"),
        "{told}"
    );
}

/// A cache may be on a file system of several hosts, each of which has its own processes.
#[test]
fn a_build_of_another_host_is_not_stopped_here() {
    let project = project();
    project.run(&["build", "--detach"]).ends_with(0);
    until("the trainer is up", || project.path("up").exists());
    let folder = project.names_in("cache/detached");
    let folder = folder.iter().find(|name| name.ends_with('Z')).unwrap();
    let file = format!("cache/detached/{folder}/started.json");
    let written: serde_json::Value = serde_json::from_str(&project.read(&file)).unwrap();
    let with = |key: &str, value: serde_json::Value| {
        let mut started = written.clone();
        started[key] = value;
        project.write(&file, &started.to_string());
    };
    with("host", "login2".into());
    let refused = project.run(&["stop"]).ends_with(1).stderr;
    assert!(
        refused.contains("was started on login2")
            && refused.contains(&format!("run `tprimat stop {folder}` on login2")),
        "{refused}"
    );
    let pid = &written["pid"];
    let status = project.run(&["status"]).ends_with(0).stdout;
    let shown = format!("process {pid} on login2");
    assert!(status.contains(&shown), "{status}");
    assert_eq!(state(&project)["host"], "login2");
    // Another process has its pid by now, or it is in another container of this host.
    with("process_start", 1.into());
    let refused = project.run(&["stop"]).ends_with(1).stderr;
    assert!(
        refused.contains("its process is not seen here"),
        "{refused}"
    );
    assert_eq!(state(&project)["state"], "running");
    project.write(&file, &written.to_string());
    project.run(&["stop"]).ends_with(0);
    assert_eq!(state(&project)["state"], "ended");
}

/// A browser that shows the page sees it grow, and stops to load it again when the build is over,
/// however it ends.
#[test]
fn the_report_page_is_written_between_runs_and_refreshes_itself_until_the_build_is_over() {
    const REFRESH: &str = "http-equiv=\"refresh\"";
    let project = Project::new(&ONE_RUN.replace("repeats = 1", "repeats = 3"));
    // One run for each `go`.
    let waits = "cd \"$TPRIMAT_PROJECT_DIR\"\necho up >> ups\nuntil [ -e go ]; do sleep 0.02; done\nrm go\n";
    project.write("trainer.sh", &format!("{waits}{TRAINER}"));
    let page = || project.read("output/report.html");
    let up = |runs| {
        let ups = || std::fs::read_to_string(project.path("ups")).unwrap_or_default();
        until("a trainer is up", || ups().lines().count() == runs);
    };
    project.run(&["build", "--detach"]).ends_with(0);
    up(1);
    let first = page();
    assert!(
        first.contains(REFRESH) && first.contains("0 of 3 runs over"),
        "{first}"
    );
    project.write("go", "");
    up(2);
    let second = page();
    for part in [REFRESH, "1 of 3 runs over", "tokens/s"] {
        assert!(second.contains(part), "{second}");
    }
    // Killed, a build cannot say on its page that it is over; stopped, it can.
    let pid = i32::try_from(state(&project)["pid"].as_i64().unwrap()).unwrap();
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    until("its death is seen", || state(&project)["state"] == "died");
    assert_eq!(page(), second);
    project.run(&["build", "--detach"]).ends_with(0);
    up(3);
    assert!(page().contains("0 of 2 runs over"));
    project.run(&["stop"]).ends_with(0);
    assert!(!page().contains(REFRESH) && page().contains("tokens/s"));
    project.write("trainer.sh", TRAINER);
    project.run(&["build"]).ends_with(0);
    assert!(!page().contains(REFRESH) && page().contains("Pictures"));
    assert!(!project.path("output/earlier").exists(), "nobody edited it");
    let idle = project.run(&["build"]).ends_with(0).stderr;
    assert!(idle.contains("nothing to do"), "{idle}");
}

/// Where nothing can be measured, nothing is ok.
#[test]
fn the_doctor_says_what_cells_wait_for() {
    let project = Project::empty();
    project
        .run(&["init", "--example", "amd-vs-nvidia"])
        .ends_with(0);
    let page = project.run(&["doctor"]).ends_with(0).stdout;
    let cells = page
        .split("\ncells")
        .nth(1)
        .unwrap()
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    assert!(
        cells.starts_with("- none of ") && cells.contains("needs an AMD GPU, this host has none"),
        "{page}"
    );
}

#[test]
fn what_a_detached_build_left_is_known_to_the_next_one() {
    let project = project();
    project.write("go", "");
    project.run(&["build", "--detach"]).ends_with(0);
    until("the build is over", || state(&project)["state"] == "ended");
    let next = project.run(&["build"]).ends_with(0);
    assert!(next.stderr.contains("nothing to do"), "{}", next.stderr);
}

/// The terminal may go before the process that it started is known to anybody: the build itself
/// says who it is.
#[test]
fn a_detached_build_says_itself_that_it_goes_on() {
    let project = project();
    project.write("go", "");
    let folder = project.path("cache/detached/20260101T000000.000Z");
    std::fs::create_dir_all(&folder).unwrap();
    let lock = std::fs::File::create_new(folder.join("lock")).unwrap();
    lock.lock().unwrap();
    let mut command = project.tprimat(&["build", "--events"]);
    command
        .arg(folder.join("events.jsonl"))
        .env("TPRIMAT_DETACHED", &folder)
        .stdin(lock);
    let mut child = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let pid = child.id();
    drop(command);
    child.wait().unwrap();
    let now = state(&project);
    assert_eq!(
        (now["state"].as_str(), now["pid"].as_u64()),
        (Some("ended"), Some(u64::from(pid))),
        "{now}"
    );
    assert_eq!(now["arguments"], serde_json::json!(["build"]));
}

#[test]
fn the_doctor_names_what_is_missing_and_starts_nothing() {
    let project = project();
    let page = project.run(&["doctor"]).ends_with(0).stdout;
    assert!(
        page.contains("containers")
            && page.contains(
                "1 of 1 cell can be measured on this host now; what is marked with ? was not"
            ),
        "{page}"
    );
    let line = page.lines().find(|line| line.contains("cmd: ")).unwrap();
    assert!(line.starts_with("  ?  "), "nobody has looked: {page}");
    project.write("go", "");
    project.run(&["build"]).ends_with(0);
    let lock = project.read("tprimat.lock");
    let cores = lock
        .lines()
        .find(|line| line.starts_with("cores = "))
        .expect("cores are pinned");
    project.edit("tprimat.lock", cores, "cores = 4096");
    let found = project.run(&["doctor", "--json"]).ends_with(0).json()["findings"].clone();
    let problem = found
        .as_array()
        .unwrap()
        .iter()
        .find(|f| f["topic"] == "cells" && f["state"] == "problem");
    let problem = problem.unwrap_or_else(|| panic!("{found}"));
    assert!(
        problem["help"]
            .as_str()
            .is_some_and(|help| help.contains("lock --update")),
        "{problem}"
    );
    assert_eq!(project.launches(), 1);
    // A host whose kernel has NVIDIA's name has not its runtime: a stand-in for docker says what
    // Docker says there.
    let bin = project.path("bin");
    std::fs::create_dir(&bin).unwrap();
    let docker = |runtimes: &str| {
        let info = "echo ' Kernel Version: 6.8.0-1013-nvidia'";
        let script =
            format!("#!/bin/sh\ncase \"$*\" in *Runtimes*) echo '{runtimes}';; *) {info};; esac\n");
        mock::program(&bin.join("docker"), script);
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
        let ran: crate::support::Ran = project
            .tprimat(&["doctor"])
            .env("PATH", path)
            .output()
            .unwrap()
            .into();
        ran.stdout
    };
    let has_cdi = ["/etc/cdi/nvidia.yaml", "/var/run/cdi/nvidia.yaml"]
        .iter()
        .any(|p| std::path::Path::new(p).exists());
    let page = docker(r#"{"runc":{"path":"runc"}}"#);
    assert_eq!(
        page.contains("docker: answers, hands out NVIDIA GPUs"),
        has_cdi,
        "{page}"
    );
    let page = docker(r#"{"runc":{"path":"runc"},"nvidia":{"path":"nvidia-container-runtime"}}"#);
    assert!(
        page.contains("docker: answers, hands out NVIDIA GPUs"),
        "{page}"
    );
    // Without a project the host alone is looked at.
    let nowhere = Project::empty();
    assert!(
        nowhere
            .run(&["doctor"])
            .ends_with(0)
            .stdout
            .contains("tprimat init")
    );
}

#[test]
fn the_doctor_says_once_what_is_so_for_several_frameworks() {
    let project = Project::new(&ONE_RUN.replace("\"cmd\"", "[\"fsdp\", \"tran\"]"));
    project.edit(
        "config.yaml",
        "  cmd: {",
        "  fsdp: {}\n  tran: {}\n  cmd: {",
    );
    project.write("python.sh", "#!/bin/sh\n");
    let set = "paths.python=python.sh";
    let page = project.run(&["doctor", "--set", set]).ends_with(0).stdout;
    assert_eq!(page.matches("its files do not show").count(), 1, "{page}");
    assert!(page.contains("fsdp, tran: "), "{page}");
}

/// What nobody asks for is only absent; what the cells need comes with the command that brings it.
#[test]
fn the_doctor_says_how_to_get_what_the_configuration_asks_for() {
    let project = project();
    let doctor = |more: &str| {
        project.write("config.yaml", &format!("{CONFIG}{more}"));
        let ran = project
            .tprimat(&["doctor", "--json"])
            .env("PATH", project.folder())
            .output()
            .unwrap();
        let ran = crate::support::Ran::from(ran).ends_with(0);
        ran.json()["findings"].clone()
    };
    let of = |findings: &serde_json::Value, topic: &str, word: &str| {
        let all = findings.as_array().unwrap().iter();
        let mut found = all.filter(|found| {
            found["topic"] == topic && found["what"].as_str().unwrap().contains(word)
        });
        let found = found
            .next()
            .unwrap_or_else(|| panic!("{topic} {word}: {findings}"));
        let text = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
        (text("state"), text("help"))
    };
    let nothing = doctor("");
    let absent = ("absent".to_owned(), String::new());
    assert_eq!(of(&nothing, "containers", "docker"), absent);
    assert_eq!(of(&nothing, "slurm", "sinfo"), absent);
    for (executor, engine, command) in [
        ("container", "docker", "apt-get install -y docker.io"),
        ("podman", "podman", "apt-get install -y podman"),
        ("apptainer", "apptainer", "apt-get install -y apptainer"),
    ] {
        let found = doctor(&format!("execution:\n  cpu: {{ executor: {executor} }}\n"));
        let (state, help) = of(&found, "containers", engine);
        assert_eq!(state, "problem", "{executor}");
        assert!(help.contains(command), "{executor}: {help}");
    }
    let found = doctor("execution:\n  cpu: { executor: slurm }\n");
    let (state, help) = of(&found, "slurm", "sinfo");
    assert_eq!(state, "problem");
    assert!(
        help.contains("login node") && help.contains("slurm-client"),
        "{help}"
    );
}

#[test]
fn a_run_that_is_ended_with_its_build_has_not_failed() {
    let project = project();
    project.run(&["build", "--detach"]).ends_with(0);
    until("the trainer is up", || project.path("up").exists());
    project.run(&["stop"]).ends_with(0);
    let now = state(&project);
    assert_eq!(
        (now["state"].as_str(), now["ok"].as_u64()),
        (Some("ended"), Some(1)),
        "{now}"
    );
    assert_eq!(now["failed"], serde_json::json!([]), "{now}");
    assert_eq!(now["interrupted"], 1, "{now}");
    let text = project.run(&["status"]).ends_with(0).stdout;
    assert!(
        !text.contains("failed") && text.contains("done, 1 interrupted"),
        "{text}"
    );
    for command in [
        &["show", CELL][..],
        &["show", "--attempts", CELL],
        &["history", CELL],
        &["plan"],
        &["compare"],
        &["list"],
    ] {
        // What was interrupted has no figures to compare.
        let code = i32::from(command == ["compare"]);
        let told = project.run(command).ends_with(code).stdout;
        let words = ["failed", "transient", "killed", "memory"];
        assert!(
            !words.iter().any(|word| told.contains(word)),
            "{command:?}: {told}"
        );
        assert!(
            told.contains("interrupted") || command == ["list"],
            "{command:?}: {told}"
        );
    }
    let told = project.run(&["-C", ".", "show", CELL]).ends_with(0).stdout;
    let again =
        format!("`tprimat -C . build --only {CELL}` runs it again; `tprimat -C . logs --attempt ");
    assert!(told.contains(&again), "{told}");
    let ran = project.run(&["list", "--failed"]);
    assert!(ran.stderr.contains("no cell's last run failed"), "{ran:?}");
    // What a detached build leaves in the cache is known to be of a cache, also without its mark.
    std::fs::remove_file(project.path("cache/CACHEDIR.TAG")).unwrap();
    project.run(&["plan"]).ends_with(0);
    let events = project.names_in("cache/detached");
    let events = project.read(&format!("cache/detached/{}/events.jsonl", events[0]));
    assert!(events.contains("\"outcome\":\"interrupted\""), "{events}");
}

#[test]
fn logs_without_a_cell_follow_the_run_that_goes_on() {
    let project = project();
    project.edit("matrix.toml", "\"tiny\"", "[\"tiny\", \"wide\"]");
    let follow = ["logs", "-f"];
    let none = project.run(&follow).ends_with(4).stderr;
    assert!(
        none.contains("no run goes on now") && none.contains("`tprimat logs CELL`"),
        "{none}"
    );
    project.run(&["build", "--detach"]).ends_with(0);
    until("the trainer is up", || project.path("up").exists());
    let following = project
        .tprimat(&follow)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    project.write("go", "");
    let followed: crate::support::Ran = following.wait_with_output().unwrap().into();
    let followed = followed.ends_with(0);
    assert!(
        followed.stderr.contains("following cpu/cmd/")
            && followed.stdout.contains("\"event\":\"end\""),
        "{followed:?}"
    );
    waited(&project).ends_with(0);
}

#[test]
fn a_mistake_in_the_configuration_does_not_hide_a_build_nor_makes_another_cache() {
    let project = project();
    let with_cache = format!("{CONFIG}paths: {{ cache: elsewhere }}\n");
    project.write("config.yaml", &with_cache);
    project.run(&["build", "--detach"]).ends_with(0);
    until("the trainer is up", || project.path("up").exists());
    project.write("config.yaml", &format!("{with_cache}trainning: {{}}\n"));
    assert_eq!(state(&project)["state"], "running");
    project.run(&["stop"]).ends_with(0);
    assert_ne!(state(&project)["state"], "running");
    let refused = project.run(&["build", "--detach"]).ends_with(2);
    assert!(refused.stderr.contains("trainning"), "{}", refused.stderr);
    assert!(!project.path("cache").exists());
}

#[test]
fn of_two_detached_builds_none_hides_the_other() {
    let project = project();
    project.write(
        "pipelines/other.toml",
        &ONE_RUN.replace("\"one\"", "\"other\""),
    );
    let first = ["build", "matrix", "--detach"];
    project.run(&first).ends_with(0);
    let name = |at: usize| {
        let state = project.run(&["status", "--json"]).ends_with(0).json();
        let mut names: Vec<String> = state["builds"]
            .as_array()
            .unwrap()
            .iter()
            .map(|build| build["name"].as_str().unwrap().to_owned())
            .collect();
        names.sort();
        names.swap_remove(at)
    };
    let running = name(0);
    let second = project.run(&["build", "other", "--detach"]).ends_with(0);
    let told = format!("the detached build {running} (`tprimat build matrix`) goes on as well");
    assert!(second.stderr.contains(&told), "{second:?}");
    let unclear = project.run(&["stop"]).ends_with(2).stderr;
    assert!(
        unclear.contains("2 builds go on") && unclear.contains(&running),
        "{unclear}"
    );
    project.run(&["stop", &running]).ends_with(0);
    project.run(&["stop"]).ends_with(0);
}

#[test]
fn a_command_is_run_when_a_build_is_over_and_holds_up_nobody_who_waits_for_the_build() {
    let project = project();
    let notify = "until [ -e enough ]; do sleep 0.02; done; echo \"$TPRIMAT_EXIT_CODE [$TPRIMAT_DETACHED]\" > notified";
    project.write("go", "");
    let detach = ["build", "--detach", "--notify", notify];
    project.run(&detach).ends_with(0);
    waited(&project).ends_with(0);
    assert_eq!(state(&project)["state"], "ended");
    assert!(!project.path("notified").exists());
    project.write("enough", "");
    let has_run =
        || std::fs::read_to_string(project.path("notified")).is_ok_and(|text| text == "0 []\n");
    until("the command has run", has_run);
    // Also of a build that could not begin.
    project
        .run(&["build", "--notify", notify, "--set", "nonsense=1"])
        .ends_with(2);
    assert_eq!(project.read("notified"), "2 []\n");
}
