//! `tprimat parse` on whole logs: our own ones of every format, values against what they say,
//! streams, and failures.

use std::{
    io::Write,
    path::Path,
    process::{Command, Output, Stdio},
};

use serde_json::Value;

fn parse(arguments: &[&str], log: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tprimat"))
        .arg("parse")
        .args(arguments)
        .arg("-")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(log).unwrap();
    child.wait_with_output().unwrap()
}

fn trace(log: &[u8]) -> Value {
    let output = parse(&["--json"], log);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/fixtures/logs")
            .join(name),
    )
    .unwrap()
}

fn kinds(trace: &Value) -> Vec<&str> {
    let anomalies = trace["anomalies"].as_array();
    anomalies
        .into_iter()
        .flatten()
        .map(|a| a["kind"].as_str().unwrap())
        .collect()
}

/// Holds a folder of logs against its expected.json, by the script that people run over folders of
/// their own: its exit code and what it says.
fn agreement(folder: &Path, more: &[&str]) -> (Option<i32>, String) {
    let output = Command::new("python3")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/agreement.py"))
        .arg(folder)
        .args(["--tprimat", env!("CARGO_BIN_EXE_tprimat")])
        .args(more)
        .output()
        .expect("python3 is a prerequisite");
    let said = [output.stdout, output.stderr].concat();
    (
        output.status.code(),
        String::from_utf8_lossy(&said).into_owned(),
    )
}

#[test]
fn fixtures_are_read_as_they_say() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/logs");
    let (code, said) = agreement(&fixtures, &["--quiet"]);
    assert_eq!(code, Some(0), "{said}");
}

/// The script itself notices a value that is off by one in its last digit, a missing step and a
/// made-up loss.
#[test]
fn disagreements_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let log = " iteration 7/ 9 | consumed samples: 70 | elapsed time per iteration (ms): 812.4 | lm loss: 2.5E+00 |\n";
    let expected = r#"{"a.log": {"first": 7, "last": 8, "distinct": 1, "lines": 1, "steps":
        {"7": {"ms": "812.5", "total": 9}, "8": {"ms": "1.0"}}}}"#;
    for (name, text) in [("a.log", log), ("expected.json", expected)] {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let (code, said) = agreement(folder.path(), &[]);
    assert_eq!(code, Some(1), "{said}");
    let wrong: Vec<_> = said.lines().filter(|l| l.starts_with("DISAGREE")).collect();
    assert_eq!(wrong.len(), 4, "last, time, loss, step 8: {said}");
}

/// Figures that stand under each other's names are not the same figures.
#[test]
fn swapped_kinds_of_memory_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let said = "global_step: 3 | reduced_train_loss: 2.5 | train_step_timing in s: 1.5 | max_memory_allocated: 2000 | max_memory_reserved: 3000";
    let swapped = said
        .replace("2000", "#")
        .replace("3000", "2000")
        .replace('#', "3000");
    let titan =
        "step: 3  loss:  2.5000  memory: 40.00GiB(50.00%)  tps: 1,024  tflops: 60.50  mfu: 6.10%";
    let expected = |nemo: &str| {
        format!(
            r#"{{"nemo.log": {{"first": [0, 3], "last": [0, 3], "distinct": 1, "lines": 1, "steps": {{"(0, 3)": [9, "{nemo}"]}}}},
                "titan.log": {{"first": 3, "last": 3, "distinct": 1, "lines": 1, "steps": {{"3": ["2.5000", "memory: 40.00GiB(50.00%)"]}}}}}}"#
        )
    };
    std::fs::write(
        folder.path().join("nemo.log"),
        format!("Training epoch 0, iteration 3/9 | {said}\n"),
    )
    .unwrap();
    std::fs::write(
        folder.path().join("titan.log"),
        format!("[titan] - root - INFO - {titan}\n"),
    )
    .unwrap();
    let run = |expected: String| {
        std::fs::write(folder.path().join("expected.json"), expected).unwrap();
        agreement(folder.path(), &[]).1
    };
    let agrees = run(expected(said));
    assert!(
        agrees.contains("(peak_allocated)") && !agrees.contains("DISAGREE"),
        "{agrees}"
    );
    let wrong = run(expected(&swapped));
    assert_eq!(
        wrong
            .lines()
            .filter(|l| l.starts_with("DISAGREE") && l.contains("max_memory"))
            .count(),
        2,
        "{wrong}"
    );
}

#[test]
fn megatron_settings_memory_and_what_is_odd() {
    let trace = trace(&fixture("megatron-ranks.log"));
    assert_eq!(trace["format"], "megatron");
    assert_eq!(trace["finished"], true);
    let effective = &trace["effective"];
    for (name, value) in [
        ("num_gpus", 16.into()),
        ("tensor_model_parallel_size", 2.into()),
        ("pipeline_model_parallel_size", 4.into()),
        ("data_parallel_size", 2.into()),
        ("global_batch_size", 48.into()),
        ("train_iters", 60.into()),
        ("num_kv_heads", 6.into()),
        ("tie_embeddings", true.into()),
        ("precision", "bf16".into()),
        ("optimizer", "adamw".into()),
        ("data", "real".into()),
        ("vocab_size", Value::from(30_001)),
        ("padded_vocab_size", Value::from(30_208)),
    ] {
        assert_eq!(effective[name], value, "{name}");
    }
    assert_eq!(
        trace["num_parameters"],
        Value::Null,
        "ranks hold parts of it only"
    );
    assert_eq!(trace["num_parameters_per_rank"], 52_004_864);
    assert_eq!(
        trace["totals"]["theoretical_weight_and_optimizer_mib"],
        893.5
    );
    let memory = trace["memory"].as_array().unwrap();
    assert_eq!(
        (memory.len(), &trace["memory_lines"]),
        (3, &2.into()),
        "two ranks share a line"
    );
    assert_eq!(memory[1]["rank"], 5);
    assert_eq!(memory[1]["figures"][1]["bytes"], 3072u64 << 20);
    let evaluation = &trace["evaluations"][0];
    assert_eq!(
        (&evaluation["step"], &evaluation["value"]),
        (&20.into(), &6.25.into())
    );
    let averaged: Vec<_> = trace["steps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| s["steps_averaged"].as_u64())
        .collect();
    assert_eq!(
        averaged,
        [Some(10); 5],
        "the last one has a line missing before it"
    );
    let told = kinds(&trace);
    for kind in [
        "skipped_iterations",
        "checkpoint_in_interval",
        "missing_steps",
    ] {
        assert!(told.contains(&kind), "{kind} in {told:?}");
    }
}

#[test]
fn the_line_after_the_first_is_a_mean_since_core_016() {
    let line = |stamp: &str, n: u64, ms: f64| {
        format!(
            "[{stamp}] iteration {n:8}/      30 | elapsed time per iteration (ms): {ms:.1} | lm loss: 3.1E+00 |\n"
        )
    };
    let log = |stamp: &str, steps: [u64; 4]| -> String {
        steps.iter().map(|n| line(stamp, *n, 500.0)).collect()
    };
    let averaged = |log: String| -> Vec<Option<u64>> {
        let trace = trace(log.as_bytes());
        trace["steps"]
            .as_array()
            .unwrap()
            .iter()
            .map(|s| s["steps_averaged"].as_u64())
            .collect()
    };
    let (old, new) = ("2025-01-02 03:04:05", "2026-01-02 03:04:05.678901");
    assert_eq!(
        averaged(log(new, [1, 2, 3, 4])),
        [None, Some(2), None, None]
    );
    assert_eq!(
        averaged(log(new, [1, 10, 20, 30])),
        [None, Some(10), Some(10), Some(10)]
    );
    assert_eq!(averaged(log(old, [1, 2, 3, 4])), [None; 4]);
    assert_eq!(
        averaged(log(new, [5, 6, 7, 8])),
        [None; 4],
        "a piece of a log"
    );
    let resumed = format!(
        "[before the start of training step] datetime: {new}\n{}",
        log(new, [5, 6, 7, 8])
    );
    assert_eq!(averaged(resumed), [None, Some(2), None, None]);
}

#[test]
fn a_nan_loss_is_absent_and_ends_the_run() {
    let trace = trace(&fixture("megatron-deepspeed-nan.log"));
    assert!(
        trace["steps"]
            .as_array()
            .unwrap()
            .iter()
            .skip(1)
            .all(|s| s.get("loss").is_none())
    );
    assert!(kinds(&trace).contains(&"nan_loss") && kinds(&trace).contains(&"nan_grad_norm"));
    assert_eq!(trace["failure"]["class"], "nan");
}

/// Whatever the format, and whether it writes NaN, null or nothing.
#[test]
fn a_log_that_ends_in_nan_losses_failed_whatever_its_format() {
    type Write = fn(u32, bool) -> String;
    let many = |line: Write, nan: std::ops::RangeInclusive<u32>| -> String {
        (1..=6).map(|n| line(n, nan.contains(&n)) + "\n").collect()
    };
    // Each with what its evidence has of step 4.
    let formats: [(&str, &str, Write); 7] = [
        ("megatron", "iteration 4/", |n, nan| {
            let loss = if nan { "" } else { "lm loss: 2.5E+00 | " };
            let norm = if nan { "nan" } else { "1.0" };
            format!(
                " iteration {n}/ 9 | elapsed time per iteration (ms): 5.0 | {loss}grad norm: {norm} | number of skipped iterations: 0 |"
            )
        }),
        ("torchtitan", "step: 4 ", |n, nan| {
            let loss = if nan { "nan" } else { "2.5000" };
            format!(
                "[rank0]:[titan] - root - INFO - step: {n}  loss:  {loss}  memory: 40.00GiB(50.00%)  tps: 1,024  tflops: 60.50  mfu: 6.10%"
            )
        }),
        ("hf-trainer", "nan_loss: step 4:", |n, nan| {
            let loss = if nan { "nan" } else { "2.5" };
            format!(
                "{{'loss': {loss}, 'grad_norm': 1.5, 'learning_rate': {n}e-06, 'epoch': 0.{n}}}"
            )
        }),
        ("hf-trainer", "divergence: step 4:", |n, nan| {
            let said = if nan {
                "'loss': 0.0, 'grad_norm': nan"
            } else {
                "'loss': 2.5, 'grad_norm': 1.5"
            };
            format!("{{{said}, 'learning_rate': {n}e-06, 'epoch': 0.{n}}}")
        }),
        ("nanogpt", "iter 4:", |n, nan| {
            let loss = if nan { "nan" } else { "2.5000" };
            format!("iter {n}: loss {loss}, time 135.20ms, mfu 30.10%")
        }),
        ("composer", "nan_loss: step 4:", |n, nan| {
            let loss = if nan { "nan" } else { "2.5000" };
            format!(
                "[batch={n}/9]:\n\t Train time/batch: {}\n\t Train loss/train/total: {loss}",
                n - 1
            )
        }),
        ("tprimat", "\"step\\\": 4", |n, nan| {
            let loss = if nan { "NaN" } else { "2.5" };
            format!("{{\"event\": \"step\", \"step\": {n}, \"loss\": {loss}}}")
        }),
    ];
    for (name, fourth, line) in formats {
        let start = if name == "tprimat" {
            "{\"event\": \"start\", \"schema\": \"tprimat.events/1\"}\n"
        } else {
            ""
        };
        let said = |nan| trace(format!("{start}{}", many(line, nan)).as_bytes());
        let diverged = said(4..=6);
        assert_eq!(
            (&diverged["format"], &diverged["failure"]["class"]),
            (&name.into(), &"nan".into())
        );
        let evidence = diverged["failure"]["evidence"].to_string();
        assert!(
            evidence.contains(fourth) && evidence.contains(&fourth.replace('4', "6")),
            "{name}: {evidence}"
        );
        for survived in [2..=4, 6..=6] {
            assert_eq!(said(survived)["failure"], Value::Null, "{name}");
        }
    }
}

#[test]
fn bridge_adds_its_rates_to_the_iterations_they_belong_to() {
    let paired = trace(&fixture("bridge.log"));
    assert_eq!(paired["format"], "megatron-bridge");
    let rates: Vec<_> = paired["steps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| s["tflops_per_gpu"].as_f64())
        .collect();
    assert_eq!(
        rates,
        [None, Some(612.5), Some(618.0)],
        "the first one is impossible"
    );
    assert!(kinds(&paired).contains(&"absurd_value"));
    assert_eq!(
        paired["memory"][0]["figures"][0]["bytes"], 41_250_000_000u64,
        "its GB are 10⁹ bytes"
    );
    let alone = trace(b"Step Time : 9.50s GPU utilization: 40.0MODEL_TFLOP/s/GPU\nStep Time : 2.25s GPU utilization: 80.5MODEL_TFLOP/s/GPU\n");
    assert_eq!(alone["steps"][1]["step_time_seconds"], 2.25);
    assert_eq!(kinds(&alone), ["counted_steps"]);
}

#[test]
fn neox_keeps_both_clocks() {
    let trace = trace(&fixture("neox.log"));
    assert_eq!(trace["format"], "gpt-neox");
    let step = &trace["steps"][1];
    assert_eq!(
        (
            &step["step_time_seconds"],
            &step["other"]["iter_time_seconds"]
        ),
        (&1.9055.into(), &0.402.into())
    );
    assert!(kinds(&trace).contains(&"checkpoint_in_interval"));
    assert_eq!(trace["num_parameters"], 19_204_096);
}

/// The chunks in which a log comes change nothing, nor does where in it the first known line is.
#[test]
fn detection_does_not_depend_on_what_comes_before() {
    let log = fixture("primus.log");
    let plain = trace(&log);
    let mut late =
        b"nothing to see on this line, nor on any of the others before the log\n".repeat(400_000);
    late.extend_from_slice(&log);
    let late = trace(&late);
    assert_eq!(late["format"], "primus");
    assert_eq!(late["steps"], plain["steps"]);
    assert_eq!(late["effective"], plain["effective"]);
    assert!(kinds(&late).contains(&"late_start"));
}

#[test]
fn garbage_ends_with_a_clear_message() {
    for garbage in [
        vec![0u8; 3 << 20],
        vec![b'x'; 10 << 20],
        b"\xff\xfe\n".repeat(100_000),
    ] {
        let output = parse(&[], &garbage);
        assert_eq!(output.status.code(), Some(2));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            said.contains("no log format recognised") && said.contains("megatron"),
            "{said}"
        );
    }
    let mut long = vec![b'x'; 10 << 20];
    long.extend_from_slice(
        b"\n iteration 1/ 2 | elapsed time per iteration (ms): 5.0 | lm loss: 2.0E+00 |\n",
    );
    assert!(kinds(&trace(&long)).contains(&"long_line"));
}

mod failures {
    use super::*;

    fn failure(log: &str) -> Option<(String, String)> {
        let output = parse(&["--json"], log.as_bytes());
        let trace: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let failure = trace.get("failure")?;
        Some((
            failure["class"].as_str().unwrap().to_owned(),
            failure["evidence"].to_string(),
        ))
    }

    fn class(log: &str) -> Option<String> {
        failure(log).map(|(class, _)| class)
    }

    const STEP: &str =
        " iteration 3/ 9 | elapsed time per iteration (ms): 5.0 | lm loss: 2.0E+00 |\n";
    const LAST: &str =
        " iteration 9/ 9 | elapsed time per iteration (ms): 5.0 | lm loss: 2.0E+00 |\n";

    #[test]
    fn are_told_without_an_exit_status() {
        let traced = |message: &str| {
            format!("{STEP}Traceback (most recent call last):\n  File \"x.py\"\n{message}\n")
        };
        for (log, expected) in [
            (
                "bash: ./launch.sh: No such file or directory\n".to_owned(),
                "launch",
            ),
            (
                "run.sh: line 7: torchrun: command not found\n".to_owned(),
                "launch",
            ),
            ("/bin/sh: 1: srun: not found\n".to_owned(), "launch"),
            (
                traced("huggingface_hub.errors.GatedRepoError: 403 Client Error. (Request ID: a)"),
                "launch",
            ),
            (
                traced("OSError: 401 Client Error: Unauthorized for url: https://x"),
                "launch",
            ),
            (
                traced(
                    "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 9.00 GiB. GPU 1 has",
                ),
                "oom",
            ),
            (
                traced(
                    "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 9 GiB total",
                ),
                "oom",
            ),
            (
                traced("AssertionError: Rank 3: found NaN in local grad norm in backward pass"),
                "nan",
            ),
            (
                traced(
                    "Exception: Current loss scale already at minimum - cannot decrease scale anymore.",
                ),
                "nan",
            ),
            (traced("ModuleNotFoundError: No module named 'x'"), "import"),
            (traced("ValueError: heads"), "unknown"),
            (
                format!(
                    "{STEP}[E ProcessGroupNCCL.cpp:1] [Rank 1] Caught collective operation timeout: WorkNCCL(SeqNum=5,"
                ),
                "nccl",
            ),
            (
                format!(
                    "{STEP}[rank2]:[E1 ProcessGroupNCCL.cpp:2] [PG ID 0 Rank 2] Watchdog caught collective operation timeout: W"
                ),
                "nccl",
            ),
            (
                format!(
                    "{STEP}slurmstepd: error: *** JOB 5 ON a CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***"
                ),
                "timeout",
            ),
        ] {
            assert_eq!(class(&log).as_deref(), Some(expected), "{log}");
        }
    }

    #[test]
    fn the_launcher_names_the_rank_where_no_traceback_is() {
        let report = |rank: u64, code: i64, said: &str| {
            format!(
                "[{rank}]:\n  time      : now\n  host      : node3\n  rank      : {rank} (local_rank: 1)\n  exitcode  : {code} (pid: 77)\n  error_file: <N/A>\n  traceback : {said}\n"
            )
        };
        let log = format!(
            "{STEP}torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\nFailures:\n{}Root Cause (first observed failure):\n{}",
            report(2, -15, "Signal 15 (SIGTERM) received by PID 76"),
            report(9, 1, "To enable traceback see: a page")
        );
        let (class, evidence) = failure(&log).unwrap();
        assert_eq!(class, "unknown");
        assert!(
            evidence.contains("rank 9")
                && evidence.contains("exit code 1")
                && !evidence.contains("SIGTERM"),
            "{evidence}"
        );
        let killed = log.replace("exitcode  : 1 ", "exitcode  : -9 ");
        assert_eq!(failure(&killed).unwrap().0, "killed");
    }

    #[test]
    fn are_not_invented_for_healthy_logs() {
        for log in [
            format!("ImportError: apex is not there, going on\n{STEP}"),
            format!(
                "Traceback (most recent call last):\n  File \"x\"\nImportError: no apex\nusing the slow path\n{STEP}"
            ),
            format!("/set_env.sh: line 16: lspci: command not found\n{STEP}"),
            format!(
                "{STEP}[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 8, reducing to 4\n"
            ),
            format!(
                "{LAST}[rank0]:[E1 ProcessGroupNCCL.cpp:2] [Rank 0] Watchdog caught collective operation timeout: W\n"
            ),
            format!(
                "{LAST}[rank0]:[W1 ProcessGroupNCCL.cpp:3] Warning: destroy_process_group() was not called before exit\n"
            ),
            format!(
                "WARNING: Retrying after connection broken by 'NewConnectionError(x: Failed to establish)'\n{STEP}"
            ),
            format!("{STEP}torchrun exited with code 0\n"),
            // A crash, and a restart that goes on.
            format!(
                "Traceback (most recent call last):\nException: crash\nfailed (exitcode: 1) local_rank: 2\n{STEP}"
            ),
        ] {
            assert_eq!(failure(&log), None, "{log}");
        }
    }
}
