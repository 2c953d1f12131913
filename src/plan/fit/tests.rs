use serde_json::{Value, json};

use super::*;
use crate::shipped::shipped_file;

/// The recipe.toml of a shipped recipe.
pub fn shipped(id: &str) -> RecipeFile {
    let bytes = shipped_file(&format!("recipes/{id}/recipe.toml")).unwrap();
    toml::from_str(std::str::from_utf8(bytes).unwrap()).unwrap()
}

fn fixture() -> Value {
    serde_json::from_str(include_str!("../../../tests/fixtures/memory.json")).unwrap()
}

fn job_of(fixture: &Value, model: &str, job: &Value) -> Job {
    let mut job = job.clone();
    job["model"] = fixture["models"][model].clone();
    serde_json::from_value(job).unwrap()
}

/// One H100, Llama 3.2 1B, MBS 4, GBS 8, T 2048; and what `change` makes of it.
pub fn one_gpu(change: impl FnOnce(&mut Job)) -> Job {
    let fixture = fixture();
    let run = fixture["runs"]
        .as_array()
        .unwrap()
        .iter()
        .find(|r| r["framework"] == "tran" && r["job"]["data"]["micro_batch_size"] == 4);
    let mut job = job_of(&fixture, "llama-1b", &run.unwrap()["job"]);
    job.compile = false;
    change(&mut job);
    job
}

fn peak(recipe: &str, job: &Job) -> f64 {
    memory(&shipped(recipe), job).unwrap().peak_allocated_bytes as f64
}

/// How far predictions may be from measured peaks: eager runs of formulas that were derived one by
/// one, then the rest.
#[test]
fn measured_peaks_are_predicted() {
    let fixture = fixture();
    let mut compared = 0;
    for run in fixture["runs"].as_array().unwrap() {
        let (framework, measured) = (
            run["framework"].as_str().unwrap(),
            run["bytes"].as_f64().unwrap(),
        );
        let job = job_of(&fixture, run["model"].as_str().unwrap(), &run["job"]);
        let predicted = peak(framework, &job);
        let error = predicted / measured - 1.0;
        if job.compile && framework == "titan" {
            println!("{}: at most {predicted}, measured {measured}", run["run"]);
            assert!(error > 0.0, "what is counted is an upper bound");
            continue;
        }
        println!(
            "{} {}: predicted {predicted}, measured {measured}, {:+.2} %",
            run["run"],
            run["kind"],
            100.0 * error
        );
        if run["kind"] == "peak_reserved" {
            // What is reserved is at least what is allocated.
            assert!(
                (-0.10..=0.0).contains(&error),
                "{}: {predicted} {measured} {error}",
                run["run"]
            );
            continue;
        }
        let tolerance = if job.compile && framework == "tran" {
            0.05
        } else {
            0.01
        };
        assert!(
            error.abs() < tolerance,
            "{}: {predicted} {measured} {error}",
            run["run"]
        );
        compared += 1;
    }
    assert_eq!(compared, 22);
}

/// Peaks of the same programs on tensors without storage, every allocation counted
/// (docs/METRICS.md); with the cuBLAS workspaces that such tensors do not need. They reach settings
/// that no GPU has measured.
#[test]
fn counted_peaks_of_other_settings_are_predicted() {
    let qwen = json!({
        "architecture": "qwen2", "num_layers": 24, "hidden_size": 896, "ffn_hidden_size": 4864, "num_attention_heads": 14,
        "num_kv_heads": 2, "head_dim": 64, "vocab_size": 151_936, "tie_embeddings": true, "qkv_bias": true,
    });
    let small = |job: &mut Job| {
        job.model = serde_json::from_value(qwen.clone()).unwrap();
        (job.data.micro_batch_size, job.data.seq_length) = (8, 1024);
    };
    let recompute = |job: &mut Job| job.activation_checkpointing = true;
    let counted = |bytes: f64, job: Job| {
        // In the first step there are no moments yet.
        let moments = 2.0 * 4.0 * tprimat_job::count_parameters(&job.model).unwrap() as f64;
        let error = (peak("tran", &job) - moments - WORKSPACES.1) / bytes - 1.0;
        assert!(error.abs() < 0.01, "{bytes}: {error}");
    };
    counted(42_064_284_160.0, one_gpu(|_| ()));
    counted(32_998_630_912.0, one_gpu(small));
    counted(
        31_022_499_840.0,
        one_gpu(|job| {
            small(job);
            job.data.gradient_accumulation_steps = 1;
        }),
    );
    counted(24_262_609_408.0, one_gpu(recompute));
    counted(
        19_319_351_808.0,
        one_gpu(|job| {
            recompute(job);
            job.data.gradient_accumulation_steps = 1;
        }),
    );
}

/// Experts are whole in the state, and a token's few in the activations; EP shares them out, and
/// with them the work of their optimiser.
#[test]
fn experts_are_held_whole_and_shared_out_by_ep() {
    let mixture = |job: &mut Job| {
        job.model.architecture = "mixtral".into();
        job.model.num_experts = 8;
        job.model.num_experts_per_tok = 2;
        job.model.moe_intermediate_size = job.model.ffn_hidden_size;
        job.parallelism.data_parallel_size = 8;
    };
    let dense = one_gpu(|job| job.parallelism.data_parallel_size = 8);
    let experts = one_gpu(mixture);
    let count = |job: &Job| tprimat_job::count_parameters(&job.model).unwrap() as f64;
    let grown = count(&experts) - count(&dense);
    // bf16 weights and moments, or fp32 weights, gradients and moments: state alone.
    for (recipe, bytes) in [
        ("tran", 12.0),
        ("fsdp", 12.0 / 8.0),
        ("mlm", 6.0 + 12.0 / 8.0),
    ] {
        let more = peak(recipe, &experts) - peak(recipe, &dense);
        assert!(
            more > bytes * grown && more < (bytes + 24.0) * grown,
            "{recipe}"
        );
    }
    let with_ep = |ep| {
        let mut job = one_gpu(mixture);
        job.parallelism.expert_model_parallel_size = ep;
        memory(&shipped("mlm"), &job).unwrap()
    };
    let [one, eight] = [1, 8].map(with_ep);
    let layers = 16.0 * 8.0 * 3.0 * 2048.0 * 8192.0;
    // Each rank has an eighth, and all of its optimiser's state.
    let saved = (6.0 + 12.0 / 8.0) * layers - (6.0 + 12.0) * layers / 8.0;
    let less = (one.peak_allocated_bytes - eight.peak_allocated_bytes) as f64;
    assert!((less / saved - 1.0).abs() < 1e-6, "{less} {saved}");
    assert!(!eight.is_checked);
}

#[test]
fn each_setting_moves_the_peak_as_it_should() {
    let base = |recipe| peak(recipe, &one_gpu(|_| ()));
    for recipe in ["native", "tran", "fsdp"] {
        let less = peak(recipe, &one_gpu(|job| job.activation_checkpointing = true));
        let half = peak(
            recipe,
            &one_gpu(|job| {
                job.activation_checkpointing = true;
                job.sac_frequency = 2;
            }),
        );
        assert!(less < half && half < base(recipe), "{recipe}");
        let bf16 = peak(
            recipe,
            &one_gpu(|job| job.optimizer.state_precision = "bf16".into()),
        );
        assert!(bf16 < base(recipe), "{recipe}");
        let more = peak(recipe, &one_gpu(|job| job.data.micro_batch_size = 8));
        assert!(more > 1.2 * base(recipe), "{recipe}");
    }
    let over = |dp: u64| {
        peak(
            "fsdp",
            &one_gpu(|job| job.parallelism.data_parallel_size = dp),
        )
    };
    assert!(over(8) < over(1));
    let offloaded = peak("fsdp", &one_gpu(|job| job.offload = true));
    assert!(base("fsdp") - offloaded > 12.0 * 1.2e9);
    let stages = peak(
        "mega",
        &one_gpu(|job| job.parallelism.pipeline_model_parallel_size = 4),
    );
    assert!(stages < base("mega"));
}

#[test]
fn what_is_not_described_has_no_figure() {
    let why = |recipe: &str, job: &Job| memory(&shipped(recipe), job).unwrap_err();
    assert!(why("cmd", &one_gpu(|_| ())).contains("not known"));
    assert!(why("tran", &one_gpu(|job| job.precision = "fp8".into())).contains("fp8"));
    assert!(
        why(
            "tran",
            &one_gpu(|job| job.model.architecture = "gpt2".into())
        )
        .contains("gpt2")
    );
    assert!(why("tran", &one_gpu(|job| job.vendor = Vendor::Cpu)).contains("CPU"));
    assert!(
        why(
            "native",
            &one_gpu(|job| job.parallelism.tensor_model_parallel_size = 2)
        )
        .contains("TP")
    );
    let sharded_by_autograd = one_gpu(|job| {
        (job.parallelism.data_parallel_size, job.parallelism.sharding) =
            (2, "full_shard".to_owned());
        job.framework.insert("step".to_owned(), "autograd".into());
    });
    assert!(why("native", &sharded_by_autograd).contains("own kernels"));
    assert!(why("fsdp", &one_gpu(|job| job.data.seq_length = 0)).contains("incomplete"));
    assert!(
        memory(
            &shipped("fsdp"),
            &one_gpu(|job| job.data.seq_length = u64::MAX)
        )
        .is_ok(),
        "absurd, but no panic"
    );
}

#[test]
fn parts_add_up_and_the_verdict_follows() {
    let memory = memory(&shipped("fsdp"), &one_gpu(|_| ())).unwrap();
    assert_eq!(
        memory.components.iter().map(|c| c.bytes).sum::<u64>(),
        memory.peak_allocated_bytes
    );
    let verdict = |gb: u64| {
        let capacity = Capacity {
            bytes: gb * 1_000_000_000,
            source: "test".into(),
        };
        let fit = MemoryFit::of("cell", Ok(memory.clone()), Some(capacity));
        (fit.verdict.unwrap(), fit.withheld().is_some())
    };
    // 47.4 GB allocated, 49.8 GB of the device.
    assert_eq!(verdict(80), (FitVerdict::Fits, false));
    assert_eq!(verdict(52), (FitVerdict::Tight, false));
    assert_eq!(verdict(46), (FitVerdict::MayNotFit, false));
    assert_eq!(verdict(43), (FitVerdict::DoesNotFit, true));
    let warning = |gb: u64| {
        let capacity = Capacity {
            bytes: gb * 1_000_000_000,
            source: "test".into(),
        };
        MemoryFit::of("cell", Ok(memory.clone()), Some(capacity)).warning()
    };
    assert_eq!((warning(80), warning(52)), (None, None));
    assert!(
        warning(46)
            .unwrap()
            .starts_with("may not fit: needs 46.4 GiB a GPU, which has 42.8 GiB (test); it runs")
    );
    assert!(warning(43).unwrap().starts_with(
        "will not fit: needs 46.4 GiB a GPU, which has 40.0 GiB (test); --force=memory"
    ));
    // A model that was never compared with a measurement may err by more, but not by this much.
    let by_an_unchecked = Memory {
        is_checked: false,
        ..memory.clone()
    };
    let unchecked = |gb: u64| {
        let capacity = Capacity {
            bytes: gb * 1_000_000_000,
            source: "test".into(),
        };
        MemoryFit::of("cell", Ok(by_an_unchecked.clone()), Some(capacity))
    };
    let (noted, held) = (unchecked(40), unchecked(20));
    assert_eq!(
        (noted.verdict, noted.withheld()),
        (Some(FitVerdict::MayNotFit), None)
    );
    assert!(
        noted.warning().unwrap().contains("may not fit"),
        "{noted:?}"
    );
    assert_eq!(held.verdict, Some(FitVerdict::DoesNotFit));
    assert!(
        held.withheld().unwrap().contains("will not fit"),
        "{held:?}"
    );
    let unknown = MemoryFit::of("cell", Ok(memory), None);
    assert!(unknown.verdict.is_none() && unknown.withheld().is_none() && unknown.unknown.is_some());
}
