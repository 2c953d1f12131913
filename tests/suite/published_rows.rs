//! Published rates as cells: a project states each, plans it, and computes the publisher's TFLOP/s
//! from its rate. tests/fixtures/published-rows/rows.toml has the rows and their sources.

use std::{collections::BTreeMap, fs};

use serde::Deserialize;
use tprimat::{
    figures::{Peaks, mfu},
    job::Job,
    logs::Trace,
    plan::{Plan, PlanRequest, Support},
    results::{fitting_convention, flops_per_token},
};

#[derive(Deserialize)]
struct Tables {
    table: Vec<Table>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    publisher: String,
    source: String,
    convention: String,
    #[serde(default)]
    further: BTreeMap<String, String>,
    #[serde(default = "pretrain")]
    task: String,
    /// Why no convention here meets the table.
    unlike: Option<String>,
    rows: Vec<Row>,
}

fn pretrain() -> String {
    "pretrain".to_owned()
}

/// Model, card, GPUs, precision, global batch, micro-batch, sequence length, TP, PP, CP, EP, tokens/s
/// and TFLOP/s of a GPU.
type Row = (
    String,
    String,
    u64,
    String,
    u64,
    u64,
    u64,
    u64,
    u64,
    u64,
    u64,
    f64,
    f64,
);

/// The job of the row's cell, as a project with this config.yaml plans it.
fn planned(table: &Table, row: &Row) -> Job {
    let (model, card, gpus, precision, gbs, mbs, length, tp, pp, cp, ep, ..) = row;
    let further = table.further.get(model).map_or("", String::as_str);
    let rank = if table.task == "lora" { 16 } else { 0 };
    let config = format!(
        r#"
hardware: {{ platforms: {{ card: {{ vendor: nvd, gpu_model: "{card}", num_gpus: {gpus} }} }} }}
models: {{ model: {{ name: "{model}", {further} }} }}
training:
  data: {{ global_batch_size: {gbs}, micro_batch_size: {mbs}, seq_length: {length} }}
  duration: {{ train_iters: 50 }}
  precision: {{ default: {precision} }}
  task: {task}
  lora_rank: {rank}
parallelism:
  published:
    {{ tensor_model_parallel_size: {tp}, pipeline_model_parallel_size: {pp}, context_parallel_size: {cp},
      expert_model_parallel_size: {ep} }}
frameworks: {{ cmd: {{ command: ["train"], inputs: [] }} }}
"#,
        task = table.task
    );
    let matrix = "[matrix]\nplatform = [\"card\"]\nframework = [\"cmd\"]\nmodel = [\"model\"]\n\
                  parallelism = [\"published\"]\n";
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("config.yaml"), config).unwrap();
    fs::write(root.path().join("matrix.toml"), matrix).unwrap();
    let request = PlanRequest {
        root: root.path().into(),
        ..PlanRequest::default()
    };
    let plan =
        Plan::load(&request).unwrap_or_else(|problem| panic!("{model} on {card}: {problem}"));
    let (_, cell) = plan.cells.with_ids().next().unwrap();
    match &cell.support {
        Support::Ready(prepared) => prepared.job().clone(),
        Support::Unsupported(why) => panic!("{model} on {card}: {why:?}"),
    }
}

#[test]
fn published_tflops_follow_from_published_rates() {
    const TOLERANCE: f64 = 0.02;
    const OWN: &str = "6·(N − N_embedding) + 6·L·H·Q·T, causal-halved";
    let text = include_str!("../fixtures/published-rows/rows.toml");
    let tables: Tables = toml::from_str(text).unwrap();
    let mut agreeing = 0;
    for table in &tables.table {
        assert!(!table.source.is_empty());
        for row in &table.rows {
            let (card, precision, length) = (&row.1, &row.3, row.6);
            let (rate, tflops) = (row.11, row.12);
            let job = planned(table, row);
            let claimed = tflops * 1e12 / rate;
            let own = flops_per_token(&job.model, job.task, length).unwrap();
            let (name, counted, _) =
                fitting_convention(&Trace::default(), &job.model, length, claimed).unwrap();
            let told = format!(
                "{}: {} on {card}: {:.1} G a token claimed, {:.1} G by {name}, {:.1} G by tprimat",
                table.publisher,
                row.0,
                claimed / 1e9,
                counted / 1e9,
                own.value / 1e9
            );
            println!("{told}");
            // Conventions may coincide for a model, so tprimat's own is held by its value.
            let is_near = |flops: f64| (flops / claimed - 1.0).abs() < TOLERANCE;
            let is_met = match table.convention.as_str() {
                OWN => is_near(own.value),
                other => name == other && is_near(counted),
            };
            assert_eq!(is_met, table.unlike.is_none(), "{told}");
            agreeing += usize::from(is_met);
            let peak = Peaks::default().of("card", Some(&format!("NVIDIA {card}")), precision);
            let mfu = mfu(rate, Some(&own), peak, "the device can do").value();
            assert!(
                mfu.is_some_and(|mfu| mfu > 0.1 && mfu < 0.7),
                "{told}: {mfu:?}"
            );
        }
    }
    assert!(agreeing >= 20, "{agreeing}");
}
