//! For `orchestration.py`: records one finished attempt for every training of a matrix that has
//! none, as if its trainer had run. Everything after that is left to a real `tprimat build`.
//!
//! `fill PROJECT`: plans PROJECT's default matrix. Knows nothing of what later tasks make of the
//! logs.

use std::{fmt::Write as _, path::PathBuf};

use serde_json::json;
use tprimat::{
    cache::{Attempt, Cache, Output, TaskKind},
    digest::Digest,
    error::Result,
    files::Durability,
    graph::{CodeDigests, Dag, Engine, Options, State, Verdicts, label},
    job::Job,
    plan::{Plan, PlanRequest},
};

fn main() -> std::process::ExitCode {
    let Some(root) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: fill PROJECT");
        return 2.into();
    };
    match fill(root) {
        Ok(count) => {
            println!("{count}");
            0.into()
        }
        Err(error) => {
            eprintln!("fill: {error}");
            1.into()
        }
    }
}

fn fill(root: PathBuf) -> Result<usize> {
    let plan = Plan::load(&PlanRequest {
        root,
        ..PlanRequest::default()
    })?;
    // As the first build does, whose trainings these stand for.
    plan.facts.write_missing(&plan.reads)?;
    let cache = Cache::open(&plan.root.join("cache"))?;
    let dag = Dag::new(&plan)?;
    let engine = Engine {
        plan: &plan,
        dag: &dag,
        cache: &cache,
        code: CodeDigests::default(),
        options: Options::default(),
        compare_settings: json!({}),
        trainings: std::sync::OnceLock::new(),
        measured: std::collections::BTreeMap::new(),
        verdicts: Verdicts::default(),
        written: std::sync::OnceLock::new(),
        earlier: std::sync::OnceLock::new(),
    };
    let statuses = engine.evaluate_all()?;
    let mut count = 0;
    for &node in &dag.order {
        let (task, status) = (dag.task(node), statuses.get(node));
        if task.kind != TaskKind::Train || status.state != State::Stale {
            continue;
        }
        let (Some(key), Some(preimage)) = (status.key, engine.preimage(node, &statuses)) else {
            continue;
        };
        let prepared = plan.prepared(task.cell).expect("a stale cell is supported");
        let log = log(prepared.job(), &key);
        let digest = cache.put(log.as_bytes(), Durability::Plain)?;
        let started_at = 1.7e9 + task.cell.place() as f64 * 60.0 + f64::from(task.repeat);
        cache.record_preimage(prepared.job_text())?;
        let output = Output {
            name: "log".into(),
            digest,
            size: log.len() as u64,
        };
        let id = format!("20231114T221320.{count:06}Z-0000000000000000");
        cache.record_attempt(&Attempt {
            started_at,
            ended_at: started_at + 60.0,
            host: "bench".into(),
            ..Attempt::ok(id, label(&plan, &task), preimage, vec![output])
        })?;
        count += 1;
    }
    Ok(count)
}

/// What a trainer of this job would print; step times differ by training, so that every log is an
/// object of its own.
fn log(job: &Job, key: &Digest) -> String {
    let effective = json!({
        "micro_batch_size": job.data.micro_batch_size,
        "global_batch_size": job.data.global_batch_size,
        "seq_length": job.data.seq_length,
        "precision": job.precision,
        "seed": job.seed,
    });
    let start = json!({ "event": "start", "schema": "tprimat.events/1", "effective": effective });
    let mut text = format!("{start}\n");
    for step in 1..=job.train_iters {
        let seconds = 0.05 + f64::from(key.0[step as usize % 32]) * 1e-5;
        let event = json!({ "event": "step", "step": step, "step_time_seconds": seconds, "loss": 8.0 - step as f64 / 100.0 });
        let _ = writeln!(text, "{event}");
    }
    let _ = writeln!(
        text,
        "{}",
        json!({ "event": "end", "status": "ok", "steps": job.train_iters })
    );
    text
}
