//! Checkpoints of the native trainer: a resumed run goes on as if it had never stopped, and what is
//! not a whole checkpoint of the job is refused with one sentence.
#![allow(
    clippy::disallowed_methods,
    reason = "plays tprimat, which writes the job, and breaks files"
)]

use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
};

use safetensors::SafeTensors;
use serde_json::{Value, json};

const STEPS: u64 = 7;

fn job(state_precision: &str) -> Value {
    json!({
        "model": {
            "architecture": "llama", "num_layers": 2, "hidden_size": 32, "ffn_hidden_size": 64,
            "num_attention_heads": 4, "num_kv_heads": 2, "head_dim": 8, "vocab_size": 64, "rope_theta": 1e4, "norm_eps": 1e-5
        },
        "data": { "micro_batch_size": 2, "global_batch_size": 4, "gradient_accumulation_steps": 2, "seq_length": 16 },
        "train_iters": STEPS,
        "optimizer": { "type": "adamw", "learning_rate": 1e-2, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8,
                       "weight_decay": 0.1, "clip_grad": 1.0, "state_precision": state_precision },
        "precision": "bf16",
        "seed": 7,
        "framework": { "checkpoint_every": 3 }
    })
}

fn run(folder: &Path, job: &Value, arguments: &[&str]) -> Output {
    fs::write(folder.join("job.json"), job.to_string()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tprimat-native"));
    command
        .current_dir(folder)
        .args(["--job", "job.json"])
        .args(arguments);
    command
        .env("OMP_NUM_THREADS", "1")
        .env_remove("TPRIMAT_CHECKPOINTS")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn events(output: &Output) -> Vec<Value> {
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).expect(line))
        .collect()
}

/// Loss, gradient norm and learning rate of each step, by its number.
fn curve(events: &[Value]) -> Vec<[Value; 4]> {
    let steps = events.iter().filter(|event| event["event"] == "step");
    steps
        .map(|event| {
            ["step", "loss", "grad_norm", "learning_rate"].map(|field| event[field].clone())
        })
        .collect()
}

#[test]
fn a_resumed_run_goes_on_with_the_same_bits() {
    for state_precision in ["fp32", "bf16"] {
        let folder = tempfile::tempdir().unwrap();
        let job = job(state_precision);
        let whole = events(&run(folder.path(), &job, &[]));
        let written: Vec<&Value> = whole
            .iter()
            .filter(|event| event["event"] == "checkpoint")
            .collect();
        let steps: Vec<_> = written
            .iter()
            .map(|event| event["step"].as_u64().unwrap())
            .collect();
        assert_eq!(steps, [3, 6, STEPS], "every third one, and the last");
        for (step, event) in steps.iter().zip(written) {
            assert_eq!(event["path"], format!("checkpoints/step-{step}"));
        }
        let names = |path: &str| {
            let entries = folder.path().join(path).read_dir().unwrap();
            let mut names: Vec<_> = entries
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        assert_eq!(
            names("checkpoints"),
            ["step-3", "step-6", "step-7"],
            "nothing half written is left"
        );
        assert_eq!(
            names("checkpoints/step-3"),
            [
                "config.json",
                "model.safetensors",
                "optimizer.safetensors",
                "trainer.json"
            ]
        );
        for step in [3, 6] {
            let from = format!("checkpoints/step-{step}");
            let rest = events(&run(
                folder.path(),
                &job,
                &["--resume", &from, "--checkpoints", "elsewhere"],
            ));
            assert_eq!(rest[0]["resumed"], json!({ "step": step, "changed": [] }));
            assert_eq!(rest[0]["effective"]["initialisation"], "checkpoint");
            assert_eq!(rest.last().unwrap()["steps"], STEPS - step);
            assert_eq!(
                curve(&rest),
                curve(&whole)[step as usize..],
                "from step {step}, state in {state_precision}"
            );
        }
        // The same weights, moments and numbers of steps, so the same files.
        for file in ["model.safetensors", "optimizer.safetensors", "trainer.json"] {
            let read =
                |path: &str| fs::read(folder.path().join(path).join("step-7").join(file)).unwrap();
            assert!(read("checkpoints") == read("elsewhere"), "{file}");
        }
    }
}

/// Hugging Face writes large models as several files and an index of their tensors.
#[test]
fn weights_in_several_files_are_those_of_one() {
    let folder = tempfile::tempdir().unwrap();
    let job = job("fp32");
    events(&run(folder.path(), &job, &[]));
    let model = "checkpoints/step-3/model.safetensors";
    let bytes = fs::read(folder.path().join(model)).unwrap();
    let all = SafeTensors::deserialize(&bytes).unwrap();
    let parts = folder.path().join("parts");
    fs::create_dir(&parts).unwrap();
    let mut map = serde_json::Map::new();
    for part in [0, 1] {
        // Every other name: a model's order goes from file to file and back.
        let names = all.names().into_iter().enumerate();
        let tensors: Vec<_> = names
            .filter(|(at, _)| at % 2 == part)
            .map(|(_, name)| (name.to_owned(), all.tensor(name).unwrap()))
            .collect();
        let file = format!("model-{}-of-2.safetensors", part + 1);
        for (name, _) in &tensors {
            map.insert(name.clone(), json!(file));
        }
        safetensors::serialize_to_file(tensors, &None, &parts.join(file)).unwrap();
    }
    let index = parts.join("model.safetensors.index.json");
    let write = |map: &serde_json::Map<String, Value>| {
        fs::write(&index, json!({ "weight_map": map }).to_string()).unwrap();
    };
    write(&map);
    let started = |weights: &str| {
        let arguments = ["--weights", weights, "--checkpoints", "elsewhere"];
        events(&run(folder.path(), &job, &arguments))
    };
    let whole = curve(&started(model));
    assert_eq!(curve(&started("parts")), whole);
    assert_eq!(curve(&started("parts/model.safetensors.index.json")), whole);
    assert_eq!(curve(&started("checkpoints/step-3")), whole);

    let refusal = |weights: &str| {
        let output = run(folder.path(), &job, &["--weights", weights]);
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let outside = refusal("checkpoints");
    assert!(
        outside.contains("neither model.safetensors nor"),
        "{outside}"
    );
    let gone = map.remove("model.norm.weight").unwrap();
    write(&map);
    let less = refusal("parts");
    assert!(less.contains("no tensor model.norm.weight"), "{less}");
    map.insert("model.norm.weight".into(), "../model.safetensors".into());
    write(&map);
    let outside = refusal("parts");
    assert!(outside.contains("no file beside it"), "{outside}");
    map.insert("model.norm.weight".into(), gone);
    map.insert("model.gorm.weight".into(), map["model.norm.weight"].clone());
    write(&map);
    let more = refusal("parts");
    assert!(
        more.contains("has no parameter model.gorm.weight"),
        "{more}"
    );
}

/// A checkpoint stands between two steps, and what it takes is in the time of neither.
#[test]
fn writing_a_checkpoint_is_in_the_time_of_no_step() {
    let folder = tempfile::tempdir().unwrap();
    let all = events(&run(folder.path(), &job("fp32"), &[]));
    let number = |event: &Value, field: &str| event[field].as_f64().unwrap();
    let mut between = 0;
    for three in all.windows(3) {
        if three[1]["event"] != "checkpoint" {
            continue;
        }
        assert_eq!(three[0]["event"], "step");
        assert_eq!(three[0]["step"], three[1]["step"]);
        if three[2]["event"] == "step" {
            between += 1;
            let passed = number(&three[2], "time") - number(&three[0], "time");
            let stated = number(&three[1], "seconds") + number(&three[2], "step_time_seconds");
            assert!(
                passed > stated - 1e-4,
                "{passed} s, of which {stated} are stated"
            );
        }
    }
    assert_eq!(between, 2);
}

#[test]
fn what_is_not_a_whole_checkpoint_of_the_job_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let written = job("fp32");
    events(&run(folder.path(), &written, &[]));
    let checkpoint = folder.path().join("checkpoints/step-3");
    let refusal = |job: &Value, from: &str| {
        let output = run(folder.path(), job, &["--resume", from]);
        assert_eq!(output.status.code(), Some(2), "{from}");
        let last = String::from_utf8_lossy(&output.stdout)
            .lines()
            .last()
            .map(str::to_owned)
            .unwrap();
        let event: Value = serde_json::from_str(&last).unwrap();
        event["message"].as_str().unwrap().to_owned()
    };
    let from = "checkpoints/step-3";
    for (path, value, words) in [
        (
            "/model/num_layers",
            json!(3),
            "differs from this one in model.num_layers",
        ),
        ("/seed", json!(8), "differs from this one in seed"),
        (
            "/data/seq_length",
            json!(8),
            "differs from this one in data.seq_length",
        ),
        ("/train_iters", json!(3), "nothing is left to train"),
    ] {
        let mut job = written.clone();
        *job.pointer_mut(path).unwrap() = value;
        let message = refusal(&job, from);
        assert!(
            message.contains(words) && message.contains(from),
            "{message}"
        );
    }
    let message = refusal(&written, "checkpoints");
    assert!(
        message.contains("the last one is checkpoints/step-7"),
        "{message}"
    );
    let message = refusal(&written, "nowhere");
    assert!(message.contains("not a checkpoint"), "{message}");

    let broken = |file: &str, change: &dyn Fn(&[u8]) -> Vec<u8>, words: &str| {
        let path = checkpoint.join(file);
        let whole = fs::read(&path).unwrap();
        fs::write(&path, change(&whole)).unwrap();
        let message = refusal(&written, from);
        assert!(
            message.contains(words) && message.contains(file),
            "{message}"
        );
        fs::write(&path, whole).unwrap();
    };
    let replaced = |from: &'static str, to: &'static str| {
        move |bytes: &[u8]| {
            // Names are within the header; both are of one length.
            let at = bytes
                .windows(from.len())
                .position(|window| window == from.as_bytes())
                .unwrap();
            [&bytes[..at], to.as_bytes(), &bytes[at + from.len()..]].concat()
        }
    };
    for file in ["model.safetensors", "optimizer.safetensors"] {
        broken(file, &|bytes| bytes[..bytes.len() - 1].to_vec(), "cut off");
        broken(file, &|bytes| bytes[..4].to_vec(), "cut off");
        broken(file, &|_| Vec::new(), "it is empty");
        broken(file, &|bytes| [bytes, b"more"].concat(), "cut off");
        broken(
            file,
            &|_| b"<!DOCTYPE html> not a file of tensors".to_vec(),
            "not a safetensors file",
        );
    }
    broken(
        "model.safetensors",
        &replaced("model.norm.weight", "model.gorm.weight"),
        "no tensor model.norm.weight",
    );
    broken(
        "model.safetensors",
        &replaced("[64,32]", "[32,64]"),
        "is [32, 64], the model needs [64, 32]",
    );
    broken(
        "trainer.json",
        &|bytes| bytes[..bytes.len() / 2].to_vec(),
        "EOF",
    );
    broken(
        "trainer.json",
        &replaced("checkpoint/1", "checkpoint/9"),
        "this trainer reads",
    );
    events(&run(folder.path(), &written, &["--resume", from]));
}
