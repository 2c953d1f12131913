//! The native trainer as several processes, on the CPU: the same figures as one, and one end for
//! all.
#![allow(
    clippy::disallowed_methods,
    reason = "plays tprimat, which writes the job"
)]

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

/// A tiny Llama in fp32 with a global batch of 8.
fn job(ranks: u64, steps: u64) -> Value {
    json!({
        "model": {
            "architecture": "llama", "num_layers": 2, "hidden_size": 32, "ffn_hidden_size": 64,
            "num_attention_heads": 4, "num_kv_heads": 2, "head_dim": 8, "vocab_size": 64, "rope_theta": 1e4, "norm_eps": 1e-5
        },
        "data": {
            "micro_batch_size": 2, "global_batch_size": 8, "gradient_accumulation_steps": 4 / ranks, "seq_length": 16
        },
        "train_iters": steps,
        "optimizer": { "type": "adamw", "learning_rate": 1e-2, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8,
                       "weight_decay": 0.1, "clip_grad": 1.0, "state_precision": "fp32" },
        "precision": "fp32",
        "seed": 7,
        "parallelism": { "data_parallel_size": ranks, "num_gpus": ranks }
    })
}

fn trainer(folder: &Path, job: &Value) -> Command {
    let file = folder.join("job.json");
    fs::write(&file, job.to_string()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tprimat-native"));
    command
        .arg("--job")
        .arg(file)
        .env("OMP_NUM_THREADS", "1")
        .stdin(Stdio::null());
    command
}

fn run(job: &Value) -> Output {
    let folder = tempfile::tempdir().unwrap();
    trainer(folder.path(), job).output().unwrap()
}

fn events(stdout: &[u8]) -> Vec<Value> {
    String::from_utf8_lossy(stdout)
        .lines()
        .map(|line| serde_json::from_str(line).expect(line))
        .collect()
}

#[test]
fn ranks_print_once_and_train_what_one_process_does() {
    let alone = events(&run(&job(1, 8)).stdout);
    for ranks in [2, 4] {
        let output = run(&job(ranks, 8));
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let together = events(&output.stdout);
        assert_eq!(
            together.len(),
            alone.len(),
            "one rank prints: start, eight steps, end"
        );
        let effective = &together[0]["effective"];
        for (field, value) in [
            ("num_gpus", ranks),
            ("data_parallel_size", ranks),
            ("global_batch_size", 8),
        ] {
            assert_eq!(effective[field], value, "{field}");
        }
        assert_eq!(effective["sharding"], "none");
        assert_eq!(together[0]["device"]["count"], ranks);
        for (one, many) in alone
            .iter()
            .zip(&together)
            .filter(|(one, _)| one["event"] == "step")
        {
            assert_eq!(one["tokens"], many["tokens"]);
            for field in ["loss", "grad_norm"] {
                let [one, many] = [one, many].map(|step| step[field].as_f64().unwrap());
                assert!(
                    (many / one - 1.0).abs() < 1e-4,
                    "{ranks} ranks: {field} {many}, one process: {one}"
                );
            }
        }
    }
}

#[test]
fn a_refusal_is_said_before_any_rank_is_started() {
    let mut job = job(2, 1);
    job["parallelism"]["sharding"] = "zero1".into();
    let output = run(&job);
    assert_eq!(output.status.code(), Some(2));
    let events = events(&output.stdout);
    assert_eq!(events.len(), 1);
    assert!(
        events[0]["message"]
            .as_str()
            .unwrap()
            .contains("full_shard"),
        "{events:?}"
    );
}

#[test]
fn nobody_is_a_rank_by_hand() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = trainer(folder.path(), &job(2, 1));
    command.args([
        "--rank",
        "0",
        "--ranks",
        "2",
        "--next",
        "7",
        "--previous",
        "8",
        "--parent",
        "1",
    ]);
    let output = command.output().unwrap();
    assert_eq!(
        output.status.code(),
        Some(2),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
}

/// A run that goes on until something ends it, after its first step, and the processes of its ranks
/// in order.
fn endless(folder: &Path, ranks: u64) -> (Child, Vec<Pid>, BufReader<std::process::ChildStdout>) {
    let mut child = trainer(folder, &job(ranks, 1_000_000))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("\"step\",") {
        line.clear();
        assert!(
            lines.read_line(&mut line).unwrap() > 0,
            "it ended before its first step"
        );
    }
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id())).unwrap();
    let mut pids: Vec<i32> = children
        .split_whitespace()
        .map(|pid| pid.parse().unwrap())
        .collect();
    pids.sort_by_key(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap();
        let words: Vec<_> = line
            .split(|byte| *byte == 0)
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .collect();
        words[words.iter().position(|word| word == "--rank").unwrap() + 1]
            .parse::<u64>()
            .unwrap()
    });
    assert_eq!(pids.len() as u64, ranks);
    (child, pids.into_iter().map(Pid::from_raw).collect(), lines)
}

fn is_gone(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_none_or(|(_, state)| state.starts_with('Z'))
}

fn assert_gone(pids: &[Pid]) {
    let start = Instant::now();
    while !pids.iter().all(|pid| is_gone(*pid)) {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "ranks outlive their run"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_rank_that_is_killed_ends_the_others_and_the_log_says_which() {
    for victim in [0, 2] {
        let folder = tempfile::tempdir().unwrap();
        let (mut child, pids, lines) = endless(folder.path(), 4);
        kill(pids[victim], Signal::SIGKILL).unwrap();
        let rest: Vec<String> = lines.lines().map(Result::unwrap).collect();
        let status = child.wait().unwrap();
        assert_eq!(status.code(), Some(1));
        let last: Value = serde_json::from_str(rest.last().unwrap()).unwrap();
        assert_eq!(last["event"], "error");
        let message = last["message"].as_str().unwrap();
        assert!(
            message.starts_with(&format!(
                "rank {victim} of 4 was ended by signal 9 (SIGKILL)"
            )),
            "{message}"
        );
        let errors = rest
            .iter()
            .filter(|line| line.contains("\"error\""))
            .count();
        assert_eq!(
            errors, 1,
            "the others say nothing of their lost connections: {rest:?}"
        );
        assert_gone(&pids);
    }
}

#[test]
fn ranks_end_with_the_process_that_started_them() {
    let folder = tempfile::tempdir().unwrap();
    let (mut child, pids, _lines) = endless(folder.path(), 2);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_gone(&pids);
}
