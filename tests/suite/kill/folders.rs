//! What a cut leaves of a run's folder: torn, unreadable or half removed.

use super::*;

#[test]
fn a_run_folder_that_was_half_made_or_half_removed_goes_away() {
    let project = Project::new(ONE_RUN);
    project.run(&["build"]).ends_with(0);
    for half in [
        "cache/runs/20260101T000000Z-made/cmd.sh",
        "cache/runs/.gone-20260101T000000Z-removed/owner.lock",
    ] {
        project.write(half, "");
    }
    project.edit("trainer.sh", "sleep 0.005", "sleep 0.006");
    project.run(&["build"]).ends_with(0);
    assert_eq!(project.names_in("cache/runs"), [".making.lock"]);
}

#[test]
fn a_run_folder_without_a_description_goes_away_or_is_named() {
    let project = Project::new(ONE_RUN);
    project.run(&["build"]).ends_with(0);
    let folder = |name: &str| format!("cache/runs/20260101T000000Z-{name}");
    let plant = |name: &str, files: &[(&str, &str)]| {
        for (file, text) in files
            .iter()
            .chain(&[("owner.lock", ""), ("log", "step 1\n")])
        {
            project.write(&format!("{}/{file}", folder(name)), text);
        }
    };
    // As power cuts leave them: nothing of them ended, and what they had begun is made again.
    plant("lost", &[]);
    plant("empty", &[("spec.json", "")]);
    plant("zeros", &[("spec.json", "\0\0\0")]);
    // Somebody else's doing: the run ended, or says something.
    plant("ended", &[("exit.json", "{}")]);
    plant("strange", &[("spec.json", "{\"run\": 7}")]);
    // Its owner is about to write it.
    plant("owned", &[]);
    let lock = fs::File::open(project.path(&format!("{}/owner.lock", folder("owned")))).unwrap();
    lock.lock().unwrap();
    let mut said = String::new();
    for _ in 0..2 {
        project.edit(
            "trainer.sh",
            "echo '{\"event\":\"end\"",
            "sleep 0.001; echo '{\"event\":\"end\"",
        );
        said = project.run(&["build"]).ends_with(0).stderr;
        let mut left = project.names_in("cache/runs");
        left.sort();
        let names = ["ended", "owned", "strange"].map(|name| format!("20260101T000000Z-{name}"));
        assert_eq!(left[1..], names);
    }
    for name in ["ended", "strange"] {
        let told = format!(
            "nobody knows which run {}",
            project.path(&folder(name)).display()
        );
        assert!(said.contains(&told), "{said}");
    }
    assert!(!said.contains("-owned"), "{said}");
}

/// What a run folder says of its measurement besides what these tests are about.
fn rest_of_meta() -> String {
    let job = serde_json::to_string(&tprimat::job::Job::default()).unwrap();
    format!(
        r#""log_section":{{"format":"tprimat"}},"repeats_planned":null,"statistics":{{"warmup_steps":0}},"job":{job}"#
    )
}

#[test]
fn a_run_that_cannot_be_taken_in_now_is_left_alone_and_ends_no_build() {
    let project = Project::new(ONE_RUN);
    let plant = |id: &str, meta: &str| {
        let dir = project.path("cache/runs").join(id);
        let spec = format!(
            r#"{{"run_id":"{id}","dir":{dir:?},"argv":["true"],"cwd":"/","timeout_seconds":null,"grace_seconds":1.0,
            "devices":["cpu"],"exclusive":true,"lock_dir":"/tmp","meta":{meta}}}"#
        );
        let exit = r#"{"status":{"code":0},"started_at":1.0,"ended_at":2.0,"waited_seconds":0.0,"leftover":0,"survivors":0}"#;
        for (name, text) in [
            ("spec.json", &*spec),
            ("exit.json", exit),
            ("log", "x"),
            ("owner.lock", ""),
            ("supervisor.lock", ""),
        ] {
            project.write(&format!("cache/runs/{id}/{name}"), text);
        }
        dir
    };
    project.run(&["build"]).ends_with(0);
    let unreadable = plant("01unreadable", r#"{"key":7}"#);
    let built = project.run(&["build"]).ends_with(0);
    assert!(
        built.stderr.contains("left alone: the run folder"),
        "{}",
        built.stderr
    );
    assert!(unreadable.is_dir());
    // Where the log of the second one belongs, there is something that cannot be replaced.
    let key = Digest::of("x");
    let meta = format!(
        r#"{{"key":"{key}","task":"train a#1","preimage":"x","generation":0,{}}}"#,
        rest_of_meta()
    );
    let readable = plant("02readable", &meta);
    let object = Digest::of("x").to_string();
    project.write(
        &format!("cache/objects/{}/{}/in-the-way", &object[..2], &object[2..]),
        "",
    );
    let built = project.run(&["build"]).ends_with(0);
    assert!(
        built
            .stderr
            .contains("is a folder where the cache keeps a file"),
        "{}",
        built.stderr
    );
    assert!(readable.is_dir(), "what it measured is not lost");
    let in_the_way = format!("cache/objects/{}/{}", &object[..2], &object[2..]);
    fs::remove_dir_all(project.path(&in_the_way)).unwrap();
    let built = project.run(&["build"]).ends_with(0);
    assert!(
        built.stderr.contains("took in a run") && !readable.exists(),
        "{}",
        built.stderr
    );
    // Nothing is recorded of a run that ended before its trainer started, so nothing is taken in.
    let unbegun = plant("03unbegun", &meta);
    project.write(
        "cache/runs/03unbegun/exit.json",
        r#"{"status":"interrupted","started_at":2.0,"ended_at":2.0,"waited_seconds":0.0,"survivors":0}"#,
    );
    project.remove("cache/runs/03unbegun/log");
    let built = project.run(&["build"]).ends_with(0);
    assert!(
        !built.stderr.contains("took in a run") && !unbegun.exists(),
        "{}",
        built.stderr
    );
}

/// How a run ended is recorded once its log and its description are on disk.
#[test]
fn what_a_power_cut_leaves_of_a_run_is_not_taken_for_the_whole() {
    let mut project = Project::new(ONE_RUN);
    let token = ("HF_TOKEN", "a-secret-token".to_owned());
    project.environment.push(token);
    let plant = |id: &str| {
        let key = Digest::of(id);
        let spec = format!(
            r#"{{"run_id":"{id}","dir":"/","argv":["true"],"cwd":"/","timeout_seconds":null,"grace_seconds":1.0,
            "devices":["cpu"],"exclusive":true,"lock_dir":"/tmp",
            "meta":{{"key":"{key}","task":"train a#1","preimage":"{id}","generation":0,{}}}}}"#,
            rest_of_meta()
        );
        let exit = r#"{"status":{"code":0},"started_at":1.0,"ended_at":2.0,"waited_seconds":0.0,"survivors":0}"#;
        for (name, text) in [
            ("spec.json", &*spec),
            ("exit.json", exit),
            ("log", "whole"),
            ("times", ""),
            ("owner.lock", ""),
            ("supervisor.lock", ""),
        ] {
            project.write(&format!("cache/runs/{id}/{name}"), text);
        }
        key
    };
    let file = |name: &str, text: &str| project.write(&format!("cache/runs/{name}"), text);
    let whole = plant("01whole");
    let no_record = plant("03norecord");
    file("03norecord/exit.json", "\0\0\0");
    plant("04nospec");
    file("04nospec/spec.json", "");
    project.remove("cache/runs/04nospec/exit.json");
    // Where the end was on disk, so was the description: somebody else took it.
    plant("05taken");
    file("05taken/spec.json", "");
    // Its log has a word that only whoever takes it in knows as a secret, and cannot be stored at once.
    let secret = plant("06secret");
    file("06secret/log", "a-secret-token");
    let masked = Digest::of("**************").to_string();
    let in_the_way = format!("cache/objects/{}/{}", &masked[..2], &masked[2..]);
    project.write(&format!("{in_the_way}/file"), "");
    project.run(&["build"]).ends_with(0);
    fs::remove_dir_all(project.path(&in_the_way)).unwrap();
    let built = project.run(&["build"]).ends_with(0);
    let cache = Cache::open(&project.path("cache")).unwrap();
    let outcome = |key: &Digest| match &cache.attempts(key)[..] {
        [attempt] => attempt.outcome.clone(),
        others => panic!("{others:?}: {built:?}"),
    };
    for key in [whole, secret] {
        assert_eq!(outcome(&key), RunOutcome::Ok, "{built:?}");
    }
    let RunOutcome::Failed { status, .. } = outcome(&no_record) else {
        panic!("{built:?}")
    };
    assert_eq!(status, "unknown");
    assert_eq!(project.names_in("cache/runs"), [".making.lock", "05taken"]);
}

#[test]
fn a_run_folder_that_cannot_be_read_now_is_neither_removed_nor_run_again() {
    let project = Project::new(ONE_RUN);
    let id = "01left";
    let key = Digest::of("x");
    let spec = format!(
        r#"{{"run_id":"{id}","dir":"/","argv":["true"],"cwd":"/","timeout_seconds":null,"grace_seconds":1.0,
        "devices":["cpu"],"exclusive":true,"lock_dir":"/tmp",
        "meta":{{"key":"{key}","task":"train a#1","preimage":"x","generation":0,{}}}}}"#,
        rest_of_meta()
    );
    for (name, text) in [
        ("spec.json", &*spec),
        ("log", "x"),
        ("owner.lock", ""),
        ("supervisor.lock", ""),
    ] {
        project.write(&format!("cache/runs/{id}/{name}"), text);
    }
    let file = |name: &str| project.path(&format!("cache/runs/{id}/{name}"));
    // Stands for a disk that fails: a file of this size is never read.
    let unreadable = |name: &str| {
        let file = fs::File::create(file(name)).unwrap();
        file.set_len(1 << 40).unwrap();
    };
    // How it ended is not known, so it is not filed as killed, and what it measured stays.
    unreadable("exit.json");
    let built = project.run(&["build"]).ends_with(0);
    assert!(
        built.stderr.contains("is left alone: cannot read") && built.stderr.contains("exit.json"),
        "{}",
        built.stderr
    );
    assert!(file("log").exists());
    // What it runs is not known, so it may be the very training that is wanted.
    unreadable("spec.json");
    project.edit("trainer.sh", "sleep 0.005", "sleep 0.006");
    // No run was made, so none is followed by a pause.
    project
        .edit("matrix.toml", "repeats = 1", "repeats = 2")
        .edit(
            "config.yaml",
            "cooldown_seconds: 0",
            "cooldown_seconds: 3600",
        );
    let built = project.run(&["build"]);
    assert_ne!(built.code, Some(0));
    // Two trainings do not run for the same reason, which is said once.
    let told = built.stderr.matches("no run is started while").count();
    assert!(
        told == 1 && built.stderr.contains("spec.json"),
        "{}",
        built.stderr
    );
    assert_eq!(project.launches(), 1);
    assert!(file("log").exists());
}
