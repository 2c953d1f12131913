//! Logs as people keep them, each with what is right of it: tests/fixtures/field/*/expected.toml.

use std::{fs, path::Path};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::support::Project;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    /// Places in what `parse --json` says, and their values.
    #[serde(default)]
    parse: serde_json::Map<String, Value>,
    import: Option<Import>,
}

/// What `import` and `show` say.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Import {
    #[serde(default)]
    set: Vec<String>,
    /// Tokens per second of one device.
    rate: Option<f64>,
    #[serde(default)]
    said: Vec<String>,
    #[serde(default)]
    not_said: Vec<String>,
}

/// Rates are means of times that vary a little.
const NEAR: f64 = 0.005;

fn is_near(a: f64, b: f64) -> bool {
    (a - b).abs() <= NEAR * a.abs().max(b.abs())
}

#[test]
fn logs_of_the_field_say_what_is_right() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/field");
    let mut wrong = Vec::new();
    for entry in fs::read_dir(fixtures).unwrap() {
        let folder = entry.unwrap().path();
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let expected = fs::read_to_string(folder.join("expected.toml")).unwrap();
        let expected: Expected = toml::from_str(&expected).unwrap();
        let mut tell = |what: String| wrong.push(format!("{name}: {what}"));
        let project = Project::empty();
        fs::copy(folder.join("log"), project.path("run.log")).unwrap();
        let parsed = project
            .run(&["parse", "--json", "run.log"])
            .ends_with(0)
            .json();
        for (place, right) in &expected.parse {
            let found = parsed.pointer(place).unwrap_or(&Value::Null);
            let are_near = || Some(is_near(found.as_f64()?, right.as_f64()?));
            if found != right && are_near() != Some(true) {
                tell(format!("{place} is {found}, not {right}"));
            }
        }
        let Some(import) = &expected.import else {
            continue;
        };
        let facts = import.set.iter().flat_map(|fact| ["--set", fact]);
        let words: Vec<&str> = ["import", "run.log"].into_iter().chain(facts).collect();
        let told = project.run(&words).ends_with(0).stdout;
        let cell = project.run(&["list"]).ends_with(0).stdout;
        let cell = cell.split_whitespace().next().unwrap_or_default();
        let said = told + &project.run(&["show", cell]).ends_with(0).stdout;
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        for words in import.said.iter().filter(|words| !said.contains(&***words)) {
            tell(format!("`{words}` is not said: {said}"));
        }
        for words in import
            .not_said
            .iter()
            .filter(|words| said.contains(&***words))
        {
            tell(format!("`{words}` is said: {said}"));
        }
        let shown = project.run(&["show", cell, "--json"]).ends_with(0).json();
        let rate = shown
            .pointer("/tokens_per_second_per_gpu/value")
            .and_then(Value::as_f64);
        let is_right = match (rate, import.rate) {
            (Some(rate), Some(right)) => is_near(rate, right),
            (rate, right) => rate == right,
        };
        if !is_right {
            tell(format!("the rate is {rate:?}, not {:?}", import.rate));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The log of a run of the starter's model: 40 steps of about `seconds`, with other settings than usual where `patch` has some.
fn events(repeat: u32, seconds: f64, patch: &Value, time_of: impl Fn(u32, f64) -> f64) -> String {
    let mut effective = json!({
        "global_batch_size": 128, "micro_batch_size": 1, "seq_length": 8192, "num_gpus": 8, "precision": "bf16",
        "architecture": "llama", "num_layers": 32, "hidden_size": 4096, "ffn_hidden_size": 14336,
        "num_attention_heads": 32, "num_kv_heads": 8, "head_dim": 128, "qkv_bias": false, "vocab_size": 128_256,
        "tie_embeddings": false, "optimizer": "adamw", "optimizer_state_precision": "fp32", "data": "random",
        "activation_checkpointing": false, "dropout": 0.0, "packing": "none"
    });
    for (name, value) in patch.as_object().unwrap() {
        effective[name] = value.clone();
    }
    let device = json!({"type": "cuda", "name": "NVIDIA H100 80GB HBM3", "count": 8});
    let start = json!({"event": "start", "schema": "tprimat.events/1", "trainer": "stub",
        "effective": effective, "device": device});
    let mut log = vec![start];
    for step in 1..=40u32 {
        let noise = f64::from((step * 7 + repeat * 3) % 11) * 2e-4 + f64::from(repeat) * 1e-3;
        let seconds = time_of(step, seconds * (1.0 + noise));
        let loss = 11.8 - 0.01 * f64::from(step) - 1e-4 * f64::from(repeat);
        log.push(
            json!({"event": "step", "step": step, "step_time_seconds": seconds, "loss": loss}),
        );
    }
    log.push(json!({"event": "end", "status": "ok", "steps": 40}));
    let lines: Vec<String> = log.iter().map(Value::to_string).collect();
    lines.join("\n") + "\n"
}

/// Beside a run that is whole and plain: what is said of one that does other work, contradicts itself, or was disturbed.
#[test]
fn no_verdict_hides_what_two_logs_state() {
    let plain = |_: u32, seconds: f64| seconds;
    let paused = |step: u32, seconds: f64| if step == 20 { 90.0 } else { seconds };
    let project = Project::empty();
    let import = |cell: &str, repeats: u32, log: &dyn Fn(u32) -> String| {
        for repeat in 1..=repeats {
            let file = format!("{}-{repeat}.jsonl", cell.replace('/', "-"));
            project.write(&file, &log(repeat));
            project.run(&["import", cell, "--log", &file]).ends_with(0);
        }
    };
    import("nvd/cmd/llama/ref", 3, &|n| {
        events(n, 12.27, &json!({"lora_rank": 0, "fp8": false}), plain)
    });
    let mut wrong = Vec::new();
    for (at, (patch, words)) in [
        (
            json!({"lora_rank": 16, "fp8": false}),
            &["may not be compared", "lora_rank: 16, not 0"][..],
        ),
        (
            json!({"lora_rank": 0, "fp8": true}),
            &["may not be compared", "fp8: true, not false"],
        ),
        (
            json!({"freeze_layers": 30}),
            &["no verdict", "states freeze_layers (30)"],
        ),
        (
            json!({"num_experts": 8}),
            &["not counted", "mixture of experts", "dense architecture"],
        ),
        (
            json!({"world_size": 16}),
            &["not counted", "num_gpus 8 and world_size 16"],
        ),
        (
            json!({"dtype": "fp8"}),
            &["not counted", "precision bf16 and dtype fp8"],
        ),
        (
            json!({"model_type": "mixtral"}),
            &["not counted", "architecture llama and model_type mixtral"],
        ),
        (
            json!({"sequence_length": 4096}),
            &["not counted", "seq_length 8192 and sequence_length 4096"],
        ),
        (
            json!({"tensor_model_parallel_size": 2, "data_parallel_size": 8}),
            &["not counted", "TP 2 × DP 8 = 16, and num_gpus is 8"],
        ),
        (
            json!({"seconds": 12_270.0}),
            &["no verdict", "are its step times in milliseconds?"],
        ),
        (
            json!({"seconds": 12.0, "is_paused": true}),
            &["in doubt", "! "],
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let cell = format!("nvd/cmd/llama/{at}");
        let mut patch = patch;
        let settings = patch.as_object_mut().unwrap();
        let seconds = settings
            .remove("seconds")
            .and_then(|s| s.as_f64())
            .unwrap_or(11.0);
        let is_paused = settings.remove("is_paused").is_some();
        // A verdict takes three repeats; a contradiction shows in one.
        let repeats = if settings.is_empty() { 3 } else { 1 };
        import(&cell, repeats, &|n| match is_paused {
            true => events(n, seconds, &patch, paused),
            false => events(n, seconds, &patch, plain),
        });
        let said = project.run(&["compare", "nvd/cmd/llama/ref", &cell]).stdout;
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        if said.contains("Same workload.") && !is_paused && seconds < 1e3 {
            wrong.push(format!("{patch}: it is the same workload: {said}"));
        }
        for words in words.iter().filter(|words| !said.contains(**words)) {
            wrong.push(format!("{patch}: `{words}` is not said: {said}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
