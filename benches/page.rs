//! What the page of a report costs, by the number of cells: `cargo bench --bench page`. With a
//! folder as argument, the pages are left there, to be looked at: `cargo bench --bench page --
//! FOLDER`.

use std::time::Instant;

use common::{folder, leave, samples};
use serde_json::{Value, json};
use tprimat::{
    figures::Comparison,
    report::{Meta, PagePicture, bytes, html, pictures},
};

mod common;

fn main() {
    let folder = folder();
    for (name, sample) in samples() {
        let comparison: Comparison =
            serde_json::from_value(told(sample.json())).expect("the sample is a comparison");
        let start = Instant::now();
        let all = pictures(&comparison).expect("pictures");
        let drawing = start.elapsed().as_secs_f64();
        let drawn: Vec<PagePicture> = all
            .drawn
            .into_iter()
            .map(|p| PagePicture::new(&p.file(), p.svg))
            .collect();
        let svg: usize = drawn.iter().map(|p| p.svg.len()).sum();
        let start = Instant::now();
        let page = html(
            &comparison,
            &drawn,
            &Meta {
                matrix: name.to_owned(),
                left_out: all.left_out,
            },
        )
        .expect("a page");
        let seconds = start.elapsed().as_secs_f64();
        println!(
            "{name} cells: page in {seconds:.3} s, pictures in {drawing:.3} s; {} of which pictures {}",
            bytes(page.len() as u64),
            bytes(svg as u64)
        );
        if let Some(folder) = &folder {
            leave(folder, name, ".html", page.as_bytes());
        }
    }
}

/// The sample with as much to tell of each cell as a real one has.
fn told(mut sample: Value) -> Value {
    let baselines: Vec<Value> = sample["groups"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|g| g["baseline"].clone())
        .collect();
    let tail: Vec<String> = (0..40)
        .map(|i| {
            format!(
                "[rank{i}]: Traceback <module> & more, line {i}: {}",
                "word ".repeat(20)
            )
        })
        .collect();
    let (mut speedups, mut notes, mut environment) = (Vec::new(), Vec::new(), Vec::new());
    for (i, row) in sample["rows"]
        .as_array_mut()
        .into_iter()
        .flatten()
        .enumerate()
    {
        let settings = (0..45).map(|s| format!("setting_number_{s}"));
        let tier = |s: usize| ["workload", "execution", "convergence"][s % 3];
        let contract: Vec<Value> = settings
            .clone()
            .enumerate()
            .map(|(s, field)| json!({"field": field, "tier": tier(s), "value": s * 128, "source": "effective"}))
            .collect();
        row["contract"]
            .as_array_mut()
            .expect("a contract")
            .extend(contract);
        let fields: Vec<Value> = settings
            .enumerate()
            .map(|(s, field)| {
                json!({"field": field, "declared": s * 128, "effective": s * 128, "status": "attested",
                    "arithmetic": (s % 15 == 0).then_some("65,536 tokens/s × 0.5 s ÷ 8 devices = 4,096")})
            })
            .collect();
        row["attested"] = json!({"status": "attested", "fields": fields});
        row["versions"] = json!({"torch": "2.11.0+cu130", "transformers": "5.17.0", "nccl": "2.28.3", "cuda": "13.0"});
        row["environment"]["variables"] = json!({"NCCL_DEBUG": "WARN", "OMP_NUM_THREADS": "8"});
        for repeat in row["repeats"].as_array_mut().into_iter().flatten() {
            if repeat["status"]["status"] == "failed" {
                repeat["log_tail"] = json!(tail);
            }
        }
        let (cell, baseline) = (
            row["cell"].clone(),
            &baselines[row["group"].as_u64().unwrap_or(1) as usize - 1],
        );
        notes.push(json!({"kind": "remark", "cell": cell, "text": "2 of 5 repeats count"}));
        if cell != *baseline {
            let ratio = 0.8 + 0.05 * (i % 13) as f64;
            let verdict = [Some(true), Some(false), None][i % 3];
            speedups.push(json!({"a": cell, "b": baseline, "ratio": ratio,
                "interval": {"low": ratio * 0.98, "high": ratio * 1.02, "confidence": 0.975}, "significant": verdict, "n_a": 5, "n_b": 5, "labels": row["labels"],
                "reason": verdict.is_none().then_some("2 repeats: significance needs 3")}));
            environment
                .push(json!({"cell_a": cell, "cell_b": baseline, "kind": "variable", "name": "CUDA_LAUNCH_BLOCKING",
                "a": (i % 5 == 1).then_some("1"), "b": "0", "dangerous": "every kernel waits for the one before"}));
        }
    }
    sample["speedups"] = json!(speedups);
    sample["notes"] = json!(notes);
    sample["environment"] = json!(environment);
    if let [a, b] = &baselines[..] {
        sample["differences"] = json!([{"cell_a": b, "cell_b": a, "field": "seq_length", "tier": "workload",
            "a": 2048, "b": 1024, "refused": true}]);
    }
    sample
}
