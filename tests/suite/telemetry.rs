//! What is recorded beside a run: samples of its devices, from a mocked tool to the energy in the
//! summary, and how many repeats were planned.

use std::{collections::BTreeMap, fs, path::Path, thread, time::Duration};

use crate::support::{
    Project, TPRIMAT,
    mock::program,
    tasks::{IMPORT_ERROR, LARGE, SAMPLED, SHARED, SMALL},
};
use nix::{sys::stat::Mode, unistd::mkfifo};
use serde_json::{Value, json};
use tprimat::{
    cache::{Attempt, Output, TaskKind},
    files::{Durability, write_atomically},
    host::EngineKind,
    job::Vendor,
    results::{Reason, Samples},
    run::{self, ContainerSpec, ExitKind, Run, RunExit, RunSpec, Running},
};

/// A mock of amd-smi: one device, which draws 1000 W by its counter (a joule a millisecond) and 900
/// W by its power.
const MOCK_AMD_SMI: &str = r#"#!/bin/sh
printf '[{"gpu": 0, "power": {"socket_power": {"value": 900, "unit": "W"}},
  "energy": {"total_energy_consumption": {"value": %s, "unit": "J"}},
  "mem_usage": {"used_vram": {"value": 2, "unit": "MB"}}}]\n' $(($(date +%s%N) / 1000000))
"#;

/// `script` as a trainer on an AMD device, beside which `amd_smi` is asked.
fn spec(folder: &Path, amd_smi: &str, exclusive: bool, script: &str) -> RunSpec {
    let tool = folder.join("bin/amd-smi");
    program(&tool, amd_smi);
    let path = format!("{}/bin:/usr/local/bin:/usr/bin:/bin", folder.display());
    RunSpec {
        run_id: format!(
            "telemetry-{}",
            folder.file_name().unwrap().to_string_lossy()
        ),
        dir: folder.join("runs/one"),
        argv: ["/bin/sh", "-c", script].map(str::to_owned).into(),
        env: BTreeMap::from([("PATH".to_owned(), path)]),
        container: None,
        job: None,
        cwd: folder.to_owned(),
        timeout_seconds: Some(60.0),
        hang: None,
        grace_seconds: 5.0,
        devices: vec!["gpu-amd-0".into()],
        sampled: Some(Vendor::Amd),
        exclusive,
        lock_dir: folder.join("locks"),
        watched: Vec::new(),
        meta: serde_json::Value::Null,
    }
}

fn start(spec: &RunSpec) -> Running {
    run::start(spec, Path::new(TPRIMAT)).unwrap()
}

fn run(folder: &Path, amd_smi: &str, exclusive: bool, script: &str) -> (RunSpec, RunExit) {
    let spec = spec(folder, amd_smi, exclusive, script);
    let exit = start(&spec).wait().unwrap();
    (spec, exit)
}

/// Live processes of the run.
fn alive(run_id: &str) -> usize {
    let mark = format!("TPRIMAT_RUN_ID={run_id}").into_bytes();
    let processes = fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .map(|e| fs::read(e.path().join("environ")));
    processes
        .filter(|e| {
            e.as_ref()
                .is_ok_and(|e| e.split(|&b| b == 0).any(|entry| entry == mark))
        })
        .count()
}

fn said(why: &Reason) -> &str {
    assert!(why.is("sampler"), "{why:?} is not the sampler's");
    &why.text
}

#[test]
fn a_supervised_run_is_sampled_by_its_vendors_tool() {
    let folder = tempfile::tempdir().unwrap();
    // The tool is asked every five seconds.
    let (spec, exit) = run(folder.path(), MOCK_AMD_SMI, true, "sleep 6");
    assert_eq!((&exit.status, exit.note), (&ExitKind::Code(0), None));
    let text = fs::read(spec.dir.join("telemetry.jsonl")).unwrap();
    let samples = Samples::read(&text);
    assert_eq!(
        (
            samples.source.as_str(),
            samples.unavailable.as_ref(),
            samples.devices
        ),
        ("amd-smi", None, 1)
    );
    let point = samples
        .points
        .last()
        .unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(&text)));
    let seconds = point.time - samples.begin.unwrap();
    let watts = samples
        .points
        .iter()
        .map(|p| p.counter_joules.unwrap())
        .sum::<f64>()
        / seconds;
    // Sampled in the middle of a command that takes a while.
    assert!((watts / 1000.0 - 1.0).abs() < 0.1, "{watts} W");
    assert!((point.integrated_joules.unwrap() / seconds - 900.0).abs() < 1.0);
    assert_eq!(point.max_memory_used_bytes, Some(2 << 20));
    assert_eq!(alive(&spec.run_id), 0);
}

/// The trainer has the container's variables, without the host's PATH; the tool is one of the host.
#[test]
fn a_run_in_a_container_is_sampled_by_the_tool_of_its_host() {
    let folder = tempfile::tempdir().unwrap();
    let outside = spec(folder.path(), MOCK_AMD_SMI, true, "exec /bin/sleep 6");
    let spec = RunSpec {
        env: BTreeMap::new(),
        // A mock of Apptainer, which starts the command as it is.
        container: Some(ContainerSpec {
            engine: EngineKind::Apptainer,
            program: "/usr/bin/env".into(),
            arguments: Vec::new(),
            environment: outside.env.clone(),
        }),
        ..outside
    };
    let exit = start(&spec).wait().unwrap();
    assert_eq!(exit.status, ExitKind::Code(0));
    let samples = Samples::read(&fs::read(spec.dir.join("telemetry.jsonl")).unwrap());
    assert_eq!(
        (samples.source.as_str(), samples.unavailable.as_ref()),
        ("amd-smi", None)
    );
}

#[test]
fn a_tool_that_hangs_or_fails_is_no_matter_for_the_run() {
    for (script, why) in [
        ("exec sleep 60", "does not answer"),
        ("exit 1", "does not answer"),
        ("yes '{'", "does not"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (spec, exit) = run(
            folder.path(),
            &format!("#!/bin/sh\n{script}\n"),
            true,
            "sleep 0.3; echo done; exit 3",
        );
        assert_eq!(
            (&exit.status, exit.survivors),
            (&ExitKind::Code(3), 0),
            "{script}"
        );
        assert_eq!(fs::read_to_string(spec.dir.join("log")).unwrap(), "done\n");
        let samples = Samples::read(&fs::read(spec.dir.join("telemetry.jsonl")).unwrap());
        assert!(
            samples
                .unavailable
                .is_some_and(|told| said(&told).contains(why)),
            "{script}"
        );
        assert_eq!(alive(&spec.run_id), 0, "{script}");
    }
}

/// A sampler that hangs: its file is a pipe that nobody reads. What waits for it comes after
/// SIGTERM, and has an end.
#[test]
fn a_sampler_that_hangs_delays_no_kill() {
    let folder = tempfile::tempdir().unwrap();
    let script = "trap 'echo > ended; exit' TERM; echo up; while :; do sleep 0.05; done";
    let spec = spec(folder.path(), MOCK_AMD_SMI, false, script);
    write_atomically(&spec.dir.join("launch"), b"", Durability::Plain).unwrap();
    mkfifo(&spec.dir.join("telemetry.jsonl"), Mode::S_IRWXU).unwrap();
    let running = start(&spec);
    while !fs::read(spec.dir.join("log")).is_ok_and(|log| log == b"up\n") {
        thread::sleep(Duration::from_millis(5));
    }
    running.terminate();
    let exit = running.wait().unwrap();
    assert_eq!((exit.status, exit.survivors), (ExitKind::Interrupted, 0));
    let written = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
    let after = written(&spec.dir.join("exit.json"))
        .duration_since(written(&folder.path().join("ended")))
        .unwrap();
    assert!(
        after > Duration::from_secs(1),
        "the trainer was told only after the sampler was waited for: {after:?}"
    );
}

#[test]
fn devices_that_others_may_use_as_well_say_nothing_of_a_run() {
    let folder = tempfile::tempdir().unwrap();
    let (spec, _) = run(folder.path(), MOCK_AMD_SMI, false, "sleep 0.2");
    let samples = Samples::read(&fs::read(spec.dir.join("telemetry.jsonl")).unwrap());
    assert!(
        samples
            .unavailable
            .is_some_and(|told| said(&told).contains("share"))
    );
}

/// The step times of a log of the stub trainer, and where each step's line ends in it.
fn steps(log: &[u8]) -> Vec<(f64, usize)> {
    let mut at = 0;
    let lines = log.split_inclusive(|b| *b == b'\n').map(|line| {
        at += line.len();
        (serde_json::from_slice::<Value>(line).unwrap(), at)
    });
    lines
        .filter_map(|(event, at)| Some((event["step_time_seconds"].as_f64()?, at)))
        .collect()
}

#[test]
fn samples_of_an_attempt_become_the_energy_of_its_measured_steps() {
    let project = Project::built();
    assert_eq!(
        project.json(&["show", SMALL])["repeats"][0].get("telemetry"),
        None,
        "a cpu has none"
    );
    let cache = project.cache();
    let key = cache
        .last_of(TaskKind::Train, &format!("train {SMALL}#1"))
        .unwrap()
        .key;
    let attempt = cache.attempts(&key).remove(0);
    // The same run, as it would be with a device of 400 W: a sample every 0.01 s.
    let log = cache.get(&attempt.log().unwrap().digest).unwrap().unwrap();
    let (mut now, mut times) = (1000.0, String::from("1000.0 0\n"));
    for (seconds, at) in steps(&log) {
        now += seconds;
        times += &format!("{now:.6} {at}\n");
    }
    let mut telemetry =
        json!({"schema": "tprimat.telemetry/1", "source": "nvml", "interval_seconds": 0.01, "devices": ["gpu-a"]})
            .to_string();
    for sample in 0..40 {
        let at = f64::from(sample) / 100.0;
        let device = json!({"energy_joules": 5e6 + 400.0 * at, "power_watts": 1.0, "throttled": ["sw_power_cap"]});
        telemetry += &format!("\n{}", json!({"time": 1000.0 + at, "devices": [device]}));
    }
    let put = |name: &str, bytes: &[u8]| {
        let digest = cache.put(bytes, Durability::Synced).unwrap();
        Output {
            name: name.into(),
            digest,
            size: bytes.len() as u64,
        }
    };
    let outputs = vec![
        attempt.log().unwrap().clone(),
        put("times", times.as_bytes()),
        put("telemetry.jsonl", telemetry.as_bytes()),
    ];
    let sampled = |id: &str, generation, outputs| Attempt {
        id: id.into(),
        generation,
        outputs,
        ..attempt.clone()
    };
    cache
        .record_attempt(&sampled("a", 1, outputs.clone()))
        .unwrap();
    // The parse key covers the samples; nothing is trained for them.
    project.expect(
        &[
            &format!("parse {SMALL}#1"),
            &format!("aggregate {SMALL}"),
            "{compare,plot,report} m",
        ],
        &[
            &format!("parse {SMALL}#1"),
            &format!("aggregate {SMALL}"),
            "{compare,plot,report} m",
        ],
    );
    let summary = project.json(&["show", SMALL]);
    let found = &summary["repeats"][0]["telemetry"];
    let measured: f64 = steps(&log).iter().skip(1).map(|(seconds, _)| seconds).sum();
    let about =
        |value: &Value, expected: f64| (value.as_f64().unwrap() / expected - 1.0).abs() < 1e-3;
    assert!(
        about(&found["seconds"], measured) && about(&found["energy"]["joules"], 400.0 * measured),
        "{found:#}"
    );
    assert_eq!(
        (&found["energy"]["method"], &found["source"]),
        (&json!("counter"), &json!("nvml"))
    );
    let notes = summary["notes"].as_array().unwrap();
    assert!(
        has_remark(
            notes,
            "ran at its power cap in 100 % of the samples of 1 of 2 repeats"
        ),
        "{notes:#?}"
    );
    // Samples that were lost are missing, and said to be.
    cache
        .record_attempt(&sampled("b", 2, outputs.clone()))
        .unwrap();
    project.lose(outputs[2].digest);
    assert_eq!(project.build(&[]).code, 0);
    let summary = project.json(&["show", SMALL]);
    assert_eq!(summary["repeats"][0].get("telemetry"), None);
    assert!(has_remark(
        summary["notes"].as_array().unwrap(),
        "repeat 1: no telemetry: telemetry.jsonl is gone from the cache"
    ));
}

fn has_remark(notes: &[Value], text: &str) -> bool {
    notes
        .iter()
        .any(|note| note["kind"] == "remark" && note["text"] == text)
}

/// What a trainer of `small` lives through: NVML sees `seen` beside it.
fn beside_small(seen: &str) -> String {
    format!("{seen}\nif [[ $vocab == 32 ]]; then {SAMPLED}\nfi")
}

#[test]
fn progress_tells_the_power_of_the_last_sample() {
    let project = Project::of_two();
    let sampled =
        beside_small(r#"seen='{"power_watts":412.6}'"#).replace("exit 0", "sleep 1; exit 0");
    project.write("mood", &sampled);
    project.run(&[
        "build",
        "--only",
        SMALL,
        "--repeats",
        "1",
        "--events",
        "events.jsonl",
    ]);
    let events: Vec<Value> = project
        .read("events.jsonl")
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let steps: Vec<&Value> = events
        .iter()
        .filter(|event| event["event"] == "step")
        .collect();
    assert!(
        steps.iter().any(|step| step["power_watts"] == json!(412.6)),
        "{steps:?}"
    );
}

#[test]
fn a_build_of_which_nothing_counts_says_how_many_runs_were_disturbed() {
    let project = Project::of_two();
    let fails = "\necho 'torch.OutOfMemoryError: CUDA out of memory.'; exit 1";
    project.write("mood", &(beside_small(SHARED) + fails));
    let said = project.run(&["build", "--only", SMALL]).ends_with(1).stderr;
    assert!(
        said.contains("nothing of this build counts: every run was disturbed"),
        "{said}"
    );
    let said = project.run(&["build"]).ends_with(1).stderr;
    assert!(
        said.contains("nothing of this build counts: 2 runs were disturbed"),
        "{said}"
    );
}

#[test]
fn a_disturbed_run_is_kept_not_counted_and_replaced_twice_at_most() {
    let project = Project::of_two();
    project.write("mood", &beside_small(SHARED));
    let built = project.build(&[]);
    let why = "its GPU gpu-0 was also used by process 4711 (python3)";
    assert_eq!(
        (
            built.code,
            &built.says["suspect"],
            &built.says["incomplete"]
        ),
        (0, &json!(2), &json!(1))
    );
    assert!(
        built.stderr.contains(&format!("    {why}\n")),
        "{}",
        built.stderr
    );
    // Who only reads finds what the build found.
    let told = || {
        let summary = project.json(&["show", SMALL]);
        let compared = project.json(&["compare"]);
        let absent = compared["absent"]
            .as_array()
            .unwrap()
            .iter()
            .map(|a| (a["cell"].clone(), a["state"].clone()));
        (
            summary["n"].clone(),
            summary["repeats"][1]["status"].clone(),
            absent.collect::<Vec<_>>(),
        )
    };
    let expected = (
        json!(0),
        json!({"status": "suspect", "reason": why}),
        vec![(json!(SMALL), json!("suspect"))],
    );
    assert_eq!(told(), expected);
    let note = project.json(&["show", SMALL])["notes"][0].clone();
    assert_eq!(
        (&note["kind"], &note["values"]["repeats"]),
        (&json!("suspect"), &json!([1, 2]))
    );
    // Nobody is made to measure again who does not ask for it.
    let calls: [&[&str]; 2] = [&["--cached-only"], &["--only", LARGE]];
    for call in calls {
        assert_eq!(
            (project.build(call).code, project.launches(), told()),
            (0, 4, expected.clone()),
            "{call:?}"
        );
    }
    assert_eq!(
        project.build(&["--cached-only", "--require=complete"]).code,
        5
    );
    for replacement in [1, 2] {
        let planned = &project.plan(&[])[&format!("train {SMALL}#2")];
        let reason = format!(
            "the last attempt was disturbed: {why}; this is replacement {replacement} of 2"
        );
        assert_eq!(
            (planned.state.as_str(), &planned.reason),
            ("stale", &reason)
        );
        let explained = project.run(&["show", "--stale", SMALL]);
        assert!(
            explained.code == Some(0) && explained.stdout.contains(&reason),
            "{explained:?}"
        );
        let built = project.build(&[]);
        assert_eq!((built.code, project.launches()), (1, 4 + 2 * replacement));
        assert!(
            built.stderr.contains("nothing of this build counts"),
            "{}",
            built.stderr
        );
    }
    // What is there stands, and says so.
    let planned = &project.plan(&[])[&format!("train {SMALL}#2")];
    let reason = format!("disturbed, so not counted: {why}; replaced 2 of 2 times");
    assert_eq!(
        (planned.state.as_str(), &planned.reason),
        ("fresh", &reason)
    );
    let again = project.build(&[]);
    assert_eq!(
        (again.code, again.ran, project.launches(), told()),
        (0, Default::default(), 8, expected)
    );
    // Unless it is asked for.
    project.remove("mood");
    assert_eq!(
        (
            project.build(&["--force=measured", "--only", SMALL]).code,
            project.launches()
        ),
        (0, 10)
    );
    assert_eq!(project.json(&["show", SMALL])["n"], 2);
    project.expect_nothing();
}

#[test]
fn a_replacement_counts_in_place_of_what_was_disturbed() {
    let project = Project::of_two();
    project.write("mood", &beside_small(SHARED));
    assert_eq!(project.build(&[]).code, 0);
    // A replacement that cannot run is a failure like any other, and is not tried for ever.
    project.write("mood", IMPORT_ERROR);
    assert_eq!((project.build(&[]).code, project.launches()), (1, 6));
    assert_eq!((project.build(&[]).code, project.launches()), (1, 6));
    project.remove("mood");
    assert_eq!(
        (project.build(&["--force=failed"]).code, project.launches()),
        (0, 8)
    );
    let summary = project.json(&["show", SMALL]);
    assert_eq!(
        (&summary["n"], &summary["repeats"][0]["status"]),
        (&json!(2), &json!({"status": "ok"}))
    );
    project.expect_nothing();
}

#[test]
fn a_power_cap_disturbs_nobody_and_heat_does() {
    let project = Project::of_two();
    project.write(
        "mood",
        &beside_small(r#"seen='{"throttled":["sw_power_cap"],"other_processes":[]}'"#),
    );
    assert_eq!(project.build(&[]).says["suspect"], 0);
    let summary = project.json(&["show", SMALL]);
    let telemetry = &summary["repeats"][0]["telemetry"];
    assert_eq!(
        (&summary["n"], &telemetry["throttled_share"]["sw_power_cap"]),
        (&json!(2), &json!(1.0)),
        "{summary:#}"
    );
    // At every sample of the measured steps, and those that end its first piece of time.
    assert!(
        telemetry["processes_known"].as_u64().unwrap() >= 3
            && summary["repeats"][0]["devices"] == json!(["gpu-0"])
    );
    project.write(
        "mood",
        &beside_small(r#"seen='{"throttled":["sw_power_cap","sw_thermal_slowdown"]}'"#),
    );
    assert_eq!(project.build(&["--force=measured"]).says["suspect"], 2);
    let summary = project.json(&["show", SMALL]);
    let reason = "clocks were lowered (sw_thermal_slowdown) in 100 % of the samples";
    assert_eq!(summary["repeats"][0]["status"]["reason"], reason);
    assert_eq!(
        summary["repeats"][0]["telemetry"].get("processes_known"),
        None,
        "nobody looked for processes"
    );
}

/// An attempt that was found undisturbed stands, whatever another tprimat finds in its samples.
#[test]
fn a_judgement_is_of_the_time_of_the_run() {
    let project = Project::of_two();
    project.write("mood", &beside_small(SHARED));
    assert_eq!(project.build(&[]).code, 0);
    let cache = project.cache();
    for repeat in [1, 2] {
        let key = cache
            .last_of(TaskKind::Train, &format!("train {SMALL}#{repeat}"))
            .unwrap()
            .key;
        let attempt = cache.attempts(&key).remove(0);
        assert!(attempt.suspect.is_some());
        cache
            .record_attempt(&Attempt {
                id: "older".into(),
                generation: 1,
                suspect: None,
                ..attempt
            })
            .unwrap();
    }
    drop(cache);
    let before = project.launches();
    let built = project.build(&[]);
    assert_eq!(
        (built.code, project.launches(), &built.says["suspect"]),
        (0, before, &json!(0)),
        "{}",
        built.stderr
    );
    assert_eq!(project.json(&["show", SMALL])["n"], 2);
}

/// What is noted of `small`, and the flags of the rows `small` and `large`.
fn repeats_told(project: &Project) -> (Vec<String>, Vec<bool>) {
    let notes = project.json(&["show", SMALL])["notes"].clone();
    let notes = notes
        .as_array()
        .unwrap()
        .iter()
        .map(|n| n["text"].as_str().unwrap().to_owned());
    let compared: Value = serde_json::from_str(&project.read("output/compare.json")).unwrap();
    let rows = compared["rows"].as_array().unwrap();
    let flags = rows
        .iter()
        .map(|r| r.get("repeats_added_later").is_some_and(|f| f == true))
        .collect();
    (notes.filter(|n| n.contains("added after")).collect(), flags)
}

#[test]
fn repeats_that_were_added_after_a_look_are_told() {
    let project = Project::of_two();
    assert_eq!(
        project
            .build(&["--repeats", "3", "--only", "cpu/cmd/small"])
            .code,
        0
    );
    project.edit("matrix.toml", "repeats = 2", "repeats = 5");
    // The first three are taken as they are; all five of `large` were planned at once.
    assert_eq!(
        (project.build(&[]).code, project.launches()),
        (0, 3 + 2 + 5)
    );
    let note = "repeats 4, 5 were added after the results of 3 were seen: \
                intervals assume that the number was fixed beforehand";
    assert_eq!(
        repeats_told(&project),
        (vec![note.to_owned()], vec![true, false])
    );
    // Fewer than were planned at first are no addition, and all of a new generation were planned at
    // once.
    project.edit("matrix.toml", "repeats = 5", "repeats = 3");
    assert_eq!(project.build(&[]).code, 0);
    assert_eq!(repeats_told(&project), (vec![], vec![false, false]));
    project.edit("matrix.toml", "repeats = 3", "repeats = 5");
    assert_eq!(project.build(&["--force=measured"]).code, 0);
    assert_eq!(repeats_told(&project), (vec![], vec![false, false]));
}
