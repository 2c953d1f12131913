//! Settings that trainers state and that the table of [`settings`](super::settings) does not have:
//! what each of them means for a comparison, as `settings.toml` says by the words of its name.

use std::{
    collections::HashMap,
    sync::{LazyLock, Mutex, PoisonError},
};

use serde::Deserialize;
use serde_json::Value;

use super::settings::{NUM_EXPERTS, Tier, is_called, is_off};

/// What two different values of a setting mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Work,
    Precision,
    Execution,
    Harmless,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    kind: Kind,
    why: String,
    names: Vec<Name>,
    /// Are the FLOPs of a token those of the model's shape all the same?
    #[serde(default = "yes")]
    model_flops: bool,
    /// Does it follow from the model, so that it says nothing where one log alone states it?
    #[serde(default)]
    of_models: bool,
}

fn yes() -> bool {
    true
}

/// Words that stand in a name, one after the other.
#[derive(Deserialize)]
#[serde(from = "String")]
struct Name {
    words: Vec<Word>,
    is_begin: bool,
    is_end: bool,
}

struct Word {
    text: String,
    /// Every word that begins so.
    is_start: bool,
}

impl From<String> for Name {
    fn from(text: String) -> Self {
        let inner = text.trim_start_matches('^').trim_end_matches('$');
        let word = |text: &str| Word {
            text: text.trim_end_matches('*').to_owned(),
            is_start: text.ends_with('*'),
        };
        Self {
            words: inner.split(' ').map(word).collect(),
            is_begin: text.starts_with('^'),
            is_end: text.ends_with('$'),
        }
    }
}

impl Name {
    fn fits(&self, name: &[&str]) -> bool {
        let is_it = |(wanted, word): (&Word, &&str)| match wanted.is_start {
            true => word.starts_with(&wanted.text),
            false => *word == wanted.text,
        };
        let last = name.len().saturating_sub(self.words.len());
        let mut places = name.windows(self.words.len()).enumerate();
        places.any(|(at, words)| {
            (!self.is_begin || at == 0)
                && (!self.is_end || at == last)
                && self.words.iter().zip(words).all(is_it)
        })
    }
}

static ROWS: LazyLock<Vec<Row>> = LazyLock::new(|| {
    #[derive(Deserialize)]
    struct File {
        setting: Vec<Row>,
    }
    let file: File = toml::from_str(include_str!("settings.toml")).expect("a test reads it");
    file.setting
});

/// Logs state the same few names in every cell.
static FOUND: LazyLock<Mutex<HashMap<String, Option<&'static Row>>>> =
    LazyLock::new(Mutex::default);
const MOST_FOUND: usize = 4096;

fn row(name: &str) -> Option<&'static Row> {
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(row) = found.get(name) {
        return *row;
    }
    let row = first_row(name);
    if found.len() < MOST_FOUND {
        found.insert(name.to_owned(), row);
    }
    row
}

fn words_of(name: &str) -> Vec<&str> {
    name.split(['_', '-', '.', ' ']).collect()
}

/// Does an entry have this name, and not only words of it?
#[must_use]
pub fn has_whole_name(name: &str) -> bool {
    row(name).is_some_and(|row| {
        let name = name.to_lowercase();
        let whole = row
            .names
            .iter()
            .filter(|known| known.is_begin && known.is_end);
        whole.into_iter().any(|known| known.fits(&words_of(&name)))
    })
}

fn first_row(name: &str) -> Option<&'static Row> {
    let name = name.to_lowercase();
    let words = words_of(&name);
    let is_its = |row: &&Row| row.names.iter().any(|name| name.fits(&words));
    ROWS.iter().find(is_its)
}

/// How much hangs on the setting; none where it is harmless or unknown.
pub(super) fn tier(name: &str) -> Option<Tier> {
    match row(name)?.kind {
        Kind::Work | Kind::Precision => Some(Tier::Workload),
        Kind::Execution => Some(Tier::Execution),
        Kind::Harmless => None,
    }
}

/// Is it about the formats of the arithmetic, as the setting `precision` is?
#[must_use]
pub fn is_of_precision(name: &str) -> bool {
    row(name).is_some_and(|row| row.kind == Kind::Precision)
}

/// Does it decide nothing of the work or its speed, whatever its value?
#[must_use]
pub fn is_harmless(name: &str) -> bool {
    let is_it = |name: &str| row(name).is_some_and(|row| row.kind == Kind::Harmless);
    // `checkpoint.folder` of a whole configuration.
    is_it(name)
        || name
            .rsplit_once('.')
            .is_some_and(|(_, last)| row(name).is_none() && is_it(last))
}

/// Does every model have one or another of its values?
#[must_use]
pub fn is_of_models(name: &str) -> bool {
    row(name).is_some_and(|row| row.of_models)
}

/// Why a token costs other FLOPs than those of the model's shape, where the setting has this value.
#[must_use]
pub fn other_flops(name: &str, value: &Value) -> Option<&'static str> {
    let row = row(name).filter(|row| !row.model_flops)?;
    (!is_usual(name, value)).then_some(&row.why)
}

/// Does the value say that there is no such thing? One expert is a dense model, and a window below 0 is
/// none.
#[must_use]
pub fn is_usual(name: &str, value: &Value) -> bool {
    let is_one_expert = || is_count_of_experts(name) && value.as_u64() == Some(1);
    is_off(value) || value.as_f64().is_some_and(|n| n < 0.0) || is_one_expert()
}

/// Is it the number of experts of a layer?
#[must_use]
pub fn is_count_of_experts(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    is_called(NUM_EXPERTS, &last.to_lowercase())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    #[test]
    fn names_mean_what_trainers_mean_by_them() {
        let kind = |name: &str| row(name).map(|row| row.kind);
        for name in [
            "lora_rank",
            "peft.r",
            "use_peft",
            "freeze_layers",
            "sliding_window",
            "num_local_experts",
            "moe_router_topk",
            "main_params_dtype",
            "exp_avg_dtype",
            "grad_reduce_in_fp32",
            "attention_dropout",
            "loss_mask",
            "assistant_only_loss",
            "sample_packing",
            "reset_attention_mask",
            "mtp_num_layers",
            "quantization",
            "load_in_4bit",
            "trainable_parameters",
            "train_on_inputs",
            "max_seq_length",
            "cutoff_len",
            "optim",
            "optimizer_8bit",
            "z_loss",
            "task",
        ] {
            assert_eq!(kind(name), Some(Kind::Work), "{name}");
        }
        for name in ["fp8", "fp8_format", "allow_tf32", "float8.recipe"] {
            assert_eq!(kind(name), Some(Kind::Precision), "{name}");
        }
        for name in [
            "recompute_granularity",
            "expert_model_parallel_size",
            "loss_scale_window",
            "data_path",
            "tokenizer_type",
        ] {
            assert_eq!(kind(name), Some(Kind::Execution), "{name}");
        }
        for name in [
            "output_dir",
            "master_port",
            "wandb_project",
            "log_interval",
            "Logging_Steps",
        ] {
            assert_eq!(kind(name), Some(Kind::Harmless), "{name}");
        }
        for name in [
            "report_to",
            "learning_rate_scale",
            "batch_size",
            "model_path",
            "",
        ] {
            assert_eq!(kind(name), None, "{name}");
        }
    }

    #[test]
    fn every_row_has_a_reason_and_no_name_stands_twice() {
        let names: Vec<String> = ROWS
            .iter()
            .flat_map(|row| &row.names)
            .map(|name| {
                let words: Vec<&str> = name.words.iter().map(|word| word.text.as_str()).collect();
                format!("{}{words:?}{}", name.is_begin, name.is_end)
            })
            .collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
        assert!(
            ROWS.iter()
                .all(|row| !row.why.is_empty() && !row.names.is_empty())
        );
    }

    #[test]
    fn what_is_switched_off_takes_no_flops_away() {
        assert!(other_flops("lora_rank", &json!(16)).is_some());
        for (name, value) in [
            ("lora_rank", json!(0)),
            ("quantization", json!("none")),
            ("num_experts", json!(1)),
            ("sliding_window", json!(-1)),
            ("sliding_window", json!(null)),
            ("recompute_granularity", json!("full")),
        ] {
            assert_eq!(other_flops(name, &value), None, "{name} {value}");
        }
    }
}
