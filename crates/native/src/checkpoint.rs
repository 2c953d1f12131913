//! Checkpoints: folders that Hugging Face's libraries load, with what a run needs to go on beside
//! the weights.
//!
//! ```text
//! step-200/model.safetensors      master weights under Hugging Face's names
//!          config.json            the model's shape in Hugging Face's words
//!          optimizer.safetensors  AdamW's moments: exp_avg.NAME, exp_avg_sq.NAME
//!          trainer.json           steps done, samples seen, and the job
//! ```
//!
//! A checkpoint has its name only once all of it is on disk. Tensors are whole also where ranks
//! hold parts of them, so a run may go on with another number of GPUs. Everything else that a step
//! depends on, such as its tokens and the seed of stochastic rounding, follows from the job and the
//! step's number.
#![expect(
    clippy::disallowed_methods,
    reason = "this program writes its own files, and calls no crate that does"
)]

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value, json};
use tch::Device;
use tprimat_job::{Job, ModelShape};

use crate::{
    parameters::{Parameters, State, Whole},
    ranks::Group,
    stop::Stop,
    tensor_file::{self, Entry, TensorFile},
};

const SCHEMA: &str = "tprimat.checkpoint/1";
const MODEL: &str = "model.safetensors";
const CONFIG: &str = "config.json";
const OPTIMIZER: &str = "optimizer.safetensors";
const TRAINER: &str = "trainer.json";
const MOMENTS: [State; 2] = [State::FirstMoments, State::SecondMoments];
/// Fields of a job without which a checkpoint's tensors or its place in the data mean something
/// else.
const FIXED: [&str; 5] = [
    "model.",
    "data.seq_length",
    "data.global_batch_size",
    "seed",
    "optimizer.state_precision",
];

/// Where a run writes checkpoints, and when.
pub struct Checkpoints {
    pub folder: PathBuf,
    /// After every so many steps, and after the last one.
    pub every: u64,
}

impl Checkpoints {
    pub fn is_due(&self, step: u64, last: u64) -> bool {
        step == last || step.is_multiple_of(self.every)
    }

    /// Writes a checkpoint of a run that has done `step` steps; its path. Every rank must call
    /// this, and rank 0 writes.
    pub fn write(
        &self,
        job: &Job,
        parameters: &Parameters,
        ranks: Option<&dyn Group>,
        step: u64,
    ) -> Result<PathBuf, Stop> {
        let path = self.folder.join(format!("step-{step}"));
        let mut whole = Whole::new(parameters, ranks);
        match ranks {
            Some(ranks) if ranks.rank() > 0 => {
                for state in [State::Weights].iter().chain(&MOMENTS) {
                    (0..parameters.list.len())
                        .try_for_each(|index| whole.of(*state, index).map(drop))?;
                }
            }
            _ => self.write_whole(job, parameters, &mut whole, step, &path)?,
        }
        if let Some(ranks) = ranks {
            // A rank that ended, or went on, earlier would leave rank 0 waiting for its parts.
            let written = parameters.groups[0]
                .exp_avg
                .f_narrow(0, 0, 1)?
                .f_zeros_like()?;
            ranks.wait(ranks.all_reduce(&written)?)?;
            let _ = written.f_to_device(Device::Cpu)?;
        }
        Ok(path)
    }

    fn write_whole(
        &self,
        job: &Job,
        parameters: &Parameters,
        whole: &mut Whole,
        step: u64,
        path: &Path,
    ) -> Result<(), Stop> {
        let partial = self.folder.join(format!("step-{step}.partial"));
        let failed = |source: std::io::Error| Stop::File {
            what: "cannot write the checkpoint",
            path: partial.clone(),
            source: source.into(),
        };
        if partial.exists() {
            fs::remove_dir_all(&partial).map_err(failed)?;
        }
        fs::create_dir_all(&partial).map_err(failed)?;
        let entries: Vec<Entry> = parameters
            .list
            .iter()
            .map(|p| (p.name.clone(), p.value.size()))
            .collect();
        let kind = parameters.state_kind();
        tensor_file::write(&partial.join(MODEL), kind, &entries, |index| {
            whole.of(State::Weights, index)
        })?;
        let named = |state: State| {
            entries
                .iter()
                .map(move |(name, size)| (format!("{}.{name}", state.name()), size.clone()))
        };
        let both: Vec<Entry> = MOMENTS.into_iter().flat_map(named).collect();
        tensor_file::write(&partial.join(OPTIMIZER), kind, &both, |index| {
            whole.of(MOMENTS[index / entries.len()], index % entries.len())
        })?;
        let state = json!({
            "schema": SCHEMA,
            "step": step,
            "samples": step * job.data.global_batch_size,
            "job": job,
        });
        let texts = [
            (
                CONFIG,
                config(
                    &job.model,
                    job.data.seq_length,
                    job.initialisation.std,
                    &job.optimizer.state_precision,
                ),
            ),
            (TRAINER, state),
        ];
        for (name, value) in texts {
            let mut file = File::create_new(partial.join(name)).map_err(failed)?;
            file.write_all(format!("{value:#}\n").as_bytes())
                .and_then(|()| file.sync_all())
                .map_err(failed)?;
        }
        let sync = |folder: &Path| File::open(folder)?.sync_all();
        sync(&partial).map_err(failed)?;
        // One of the same name is from a run that was resumed before it, and has the same steps
        // behind it.
        if path.exists() {
            fs::remove_dir_all(path).map_err(failed)?;
        }
        fs::rename(&partial, path)
            .and_then(|()| sync(&self.folder))
            .map_err(failed)
    }
}

/// Where a run was left.
pub struct Resumed {
    /// Steps done.
    pub step: u64,
    /// Fields of the job that were different then.
    pub changed: Vec<String>,
}

/// Sets weights and moments to those of a checkpoint.
pub fn resume(parameters: &mut Parameters, job: &Job, folder: &Path) -> Result<Resumed, Stop> {
    let path = folder.join(TRAINER);
    let fail = |path: &Path, source: Box<dyn std::error::Error + Send + Sync>| Stop::File {
        what: "cannot resume from",
        path: path.to_owned(),
        source,
    };
    let bytes = fs::read(&path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => fail(folder, not_a_checkpoint(folder).into()),
        _ => fail(&path, error.into()),
    })?;
    let state: Value = serde_json::from_slice(&bytes).map_err(|error| fail(&path, error.into()))?;
    if state["schema"] != SCHEMA {
        return Err(fail(
            &path,
            format!(
                "its schema is {}, this trainer reads {SCHEMA:?}",
                state["schema"]
            )
            .into(),
        ));
    }
    let Some(step) = state["step"].as_u64().filter(|step| *step > 0) else {
        return Err(fail(
            &path,
            format!("its step is {}, not a positive number", state["step"]).into(),
        ));
    };
    let mut changed = Vec::new();
    differing("", &state["job"], &json!(job), &mut changed);
    let fixed: Vec<&str> = changed
        .iter()
        .map(String::as_str)
        .filter(|name| FIXED.iter().any(|fixed| name.starts_with(fixed)))
        .collect();
    if !fixed.is_empty() {
        return Err(fail(
            folder,
            format!("its job differs from this one in {}", fixed.join(", ")).into(),
        ));
    }
    if step >= job.train_iters {
        let message = format!(
            "it has {step} steps behind it, and the job has {}: nothing is left to train",
            job.train_iters
        );
        return Err(fail(folder, message.into()));
    }
    let (model, optimizer) = (folder.join(MODEL), folder.join(OPTIMIZER));
    for (path, states) in [(model, &[State::Weights][..]), (optimizer, &MOMENTS)] {
        let file = TensorFile::open(&path).map_err(|error| fail(&path, error))?;
        for state in states {
            for index in 0..parameters.list.len() {
                let parameter = &parameters.list[index];
                let name = match state {
                    State::Weights => parameter.name.clone(),
                    _ => format!("{}.{}", state.name(), parameter.name),
                };
                let tensor = file
                    .tensor(&name, &parameter.value.size())
                    .map_err(|error| fail(&path, error))?;
                parameters.write(*state, index, &tensor)?;
            }
        }
    }
    parameters.resume(step)?;
    Ok(Resumed { step, changed })
}

/// What to name instead of a folder that has no `trainer.json`.
fn not_a_checkpoint(folder: &Path) -> String {
    let names = folder
        .read_dir()
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name());
    let steps = names.filter_map(|name| name.to_str()?.strip_prefix("step-")?.parse::<u64>().ok());
    match steps.max() {
        Some(step) => format!(
            "it holds checkpoints and is none; the last one is {}",
            folder.join(format!("step-{step}")).display()
        ),
        None => format!("it is not a checkpoint: there is no {TRAINER}"),
    }
}

/// Names the leaves in which two JSON values differ.
fn differing(name: &str, one: &Value, other: &Value, names: &mut Vec<String>) {
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => {
            let mut all: Vec<&String> = one
                .keys()
                .chain(other.keys().filter(|key| !one.contains_key(*key)))
                .collect();
            all.sort();
            for key in all {
                let name = if name.is_empty() {
                    key.clone()
                } else {
                    format!("{name}.{key}")
                };
                let at = |map: &Map<String, Value>| map.get(key).cloned().unwrap_or_default();
                differing(&name, &at(one), &at(other), names);
            }
        }
        _ if one != other => names.push(name.to_owned()),
        _ => {}
    }
}

/// The model in the words of Hugging Face's config.json.
fn config(model: &ModelShape, length: u64, std: f64, precision: &str) -> Value {
    let dtype = if precision == "bf16" {
        "bfloat16"
    } else {
        "float32"
    };
    let positions = if model.max_position_embeddings > 0 {
        model.max_position_embeddings
    } else {
        length
    };
    let (class, name) = match model.architecture.as_str() {
        "gpt2" => ("GPT2LMHeadModel", "gpt2"),
        "qwen2" => ("Qwen2ForCausalLM", "qwen2"),
        "mistral" => ("MistralForCausalLM", "mistral"),
        "qwen3" => ("Qwen3ForCausalLM", "qwen3"),
        _ => ("LlamaForCausalLM", "llama"),
    };
    let mut config = json!({
        "architectures": [class],
        "model_type": name,
        "dtype": dtype,
        "torch_dtype": dtype,
        "vocab_size": model.vocab_size,
        "tie_word_embeddings": model.tie_embeddings,
        "initializer_range": std,
        "bos_token_id": null,
        "eos_token_id": null,
    });
    let own = if name == "gpt2" {
        json!({
            "n_layer": model.num_layers,
            "n_embd": model.hidden_size,
            "n_inner": model.ffn_hidden_size,
            "n_head": model.num_attention_heads,
            "n_positions": positions,
            "layer_norm_epsilon": model.norm_eps,
            "activation_function": "gelu_new",
        })
    } else {
        let scaling = model.rope_scaling.as_ref().map(|scaling| {
            let mut scaling = json!(scaling);
            scaling["rope_type"] = "llama3".into();
            scaling
        });
        json!({
            "num_hidden_layers": model.num_layers,
            "hidden_size": model.hidden_size,
            "intermediate_size": model.ffn_hidden_size,
            "num_attention_heads": model.num_attention_heads,
            "num_key_value_heads": model.num_kv_heads,
            "head_dim": if model.head_dim > 0 { model.head_dim } else { model.hidden_size / model.num_attention_heads },
            "max_position_embeddings": positions,
            "rms_norm_eps": model.norm_eps,
            "rope_theta": model.rope_theta,
            "rope_scaling": scaling,
            "hidden_act": "silu",
            "sliding_window": null,
        })
    };
    if let (Value::Object(config), Value::Object(own)) = (&mut config, own) {
        config.extend(own);
    }
    config
}
