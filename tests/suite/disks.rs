//! A disk that is full, and one that cannot be written.

use std::fs;

use crate::support::{ONE_RUN, Project, Ran, files_below};
use serde_json::Value;

/// Runs a script with mounts of its own.
fn with_mounts(project: &Project, script: &str) -> Ran {
    let mut command = project.command("unshare");
    command
        .args(["--mount", "--user", "--map-root-user", "bash", "-c", script])
        .env("T", crate::support::TPRIMAT);
    let ran = Ran::from(command.output().unwrap());
    assert!(!ran.stderr.contains("unshare:"), "{ran:?}");
    ran
}

/// The parts of a script's output, each after a line `== name`.
fn parts(text: &str) -> Vec<(&str, &str)> {
    text.split("== ")
        .skip(1)
        .map(|part| part.split_once('\n').unwrap())
        .collect()
}

#[test]
#[ignore = "mounts disks, which needs user namespaces: `make test-services`"]
fn a_full_disk_is_said_and_nothing_is_lost() {
    let project = Project::new(ONE_RUN);
    fs::create_dir(project.path("cache")).unwrap();
    let fills = "[ -e \"$TPRIMAT_PROJECT_DIR/fill\" ] && head -c 64m /dev/zero > \"$TPRIMAT_PROJECT_DIR/cache/.fill\" 2>/dev/null\njob()";
    project.edit("trainer.sh", "job()", fills);
    let script = r#"
        mount -t tmpfs -o mode=755,size=24m none cache
        echo "== full before"; head -c 12m /dev/zero > cache/.fill; $T build 2>&1; echo $?
        rm cache/.fill; touch fill
        echo "== full while it trains"; $T build 2>&1; echo $?
        rm cache/.fill fill
        echo "== space again"; $T build --json 2>/dev/null; echo "exit $?"; wc -l < launches; ls cache/runs
    "#;
    let ran = with_mounts(&project, script);
    let parts = parts(&ran.stdout);
    let [(_, before), (_, during), (_, after)] = parts[..] else {
        panic!("{ran:?}")
    };
    assert!(
        before.starts_with("error: cannot write to the cache")
            && before.ends_with("needs 16 MiB\n2\n"),
        "{before}"
    );
    assert!(
        during.contains("No space left on device") && during.ends_with("\n1\n"),
        "{during}"
    );
    assert_eq!(during.matches("error:").count(), 1, "{during}");
    let (json, rest) = after.split_once("exit ").unwrap();
    let value: Value = serde_json::from_str(json).unwrap();
    assert_eq!(
        (&value["summary"]["failed"], &value["incomplete"]),
        (&0.into(), &0.into())
    );
    // The run that could not be recorded, and the one that was.
    assert_eq!(rest, "0\n2\n", "{after}");
    assert!(project.path("output/compare.json").exists());
}

#[test]
#[ignore = "mounts disks, which needs user namespaces: `make test-services`"]
fn a_read_only_cache_serves_what_it_has() {
    let project = Project::new(ONE_RUN);
    project.run(&["build"]).ends_with(0);
    let before = files_below(&project.path("cache"));
    let script = r#"
        mount --bind cache cache && mount -o remount,bind,ro cache
        for command in plan "show cpu/cmd/tiny/single" compare build "show --stale cpu/cmd/tiny/single"; do
            echo "== $command"; $T $command > /dev/null; echo $?
        done
        echo "== build with work"; $T build --repeats 2 2>&1; echo $?
    "#;
    let ran = with_mounts(&project, script);
    let parts = parts(&ran.stdout);
    assert_eq!(parts.len(), 6, "{ran:?}");
    for (name, result) in &parts[..5] {
        assert_eq!(*result, "0\n", "{name}: {}", ran.stderr);
    }
    let refused = format!(
        "error: cannot write to the cache {}: Read-only file system (os error 30)\n2\n",
        project.path("cache").display()
    );
    assert_eq!(parts[5].1, refused);
    assert_eq!(project.launches(), 1);
    assert_eq!(files_below(&project.path("cache")), before);
}

/// The disk fills up with the last line of a log. The run is whole, so it counts as soon as there is
/// room to take it in.
#[test]
#[ignore = "mounts disks, which needs user namespaces: `make test-services`"]
fn a_run_that_ends_well_on_a_full_disk_counts() {
    let project = Project::new(ONE_RUN);
    fs::create_dir(project.path("cache")).unwrap();
    let trainer = project.read("trainer.sh");
    let fills = r#"
if [ ! -e "$TPRIMAT_PROJECT_DIR/filled" ]; then
    touch "$TPRIMAT_PROJECT_DIR/filled"
    cat /dev/zero > "$TPRIMAT_PROJECT_DIR/cache/.fill" 2>/dev/null
    for number in $(seq 1000); do : > "$TPRIMAT_PROJECT_DIR/cache/.fill-$number" || break; done 2>/dev/null
fi
exit 0
"#;
    project.write("trainer.sh", &(trainer + fills));
    let script = r#"
        mount -t tmpfs -o mode=755,size=24m,nr_inodes=600 none cache
        echo "== full"; $T build 2>&1; echo $?
        rm cache/.fill*
        echo "== space again"; $T build --json 2>/dev/null; echo "exit $?"; wc -l < launches; ls cache/runs
    "#;
    let ran = with_mounts(&project, script);
    let parts = parts(&ran.stdout);
    let [(_, full), (_, after)] = parts[..] else {
        panic!("{ran:?}")
    };
    assert!(
        full.contains("No space left on device") && full.ends_with("\n1\n"),
        "{full}"
    );
    let (json, rest) = after.split_once("exit ").unwrap();
    let value: Value = serde_json::from_str(json).unwrap();
    assert_eq!(value["incomplete"], 0, "{after}");
    assert_eq!(rest, "0\n1\n", "{after}\n{full}");
}
