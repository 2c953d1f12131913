//! What the logs of two cells leave open: settings of the work that only one of them states, or
//! neither.

use std::collections::BTreeMap;

use crate::results::{
    Contract, FieldDifference, Reason, Tier, differences,
    settings::{DETERMINISTIC, LORA_RANK, TASK, agree, is_further, is_in_table, is_off, show},
    unlisted::{is_harmless, is_of_models, is_usual, other_flops},
};
use serde_json::Value;

use super::codes::WORKLOADS_MAY_DIFFER;

/// Settings without which a rate has no meaning, in the order in which they are named.
pub const CORE: [&str; 6] = [
    "precision",
    "optimizer",
    "data",
    "global_batch_size",
    "seq_length",
    "num_gpus",
];

/// Settings that decide the work or the data, and that are always named where only one side states
/// them.
const NAMED: [&str; 7] = [
    "packing",
    "attention_mask",
    "dropout",
    "optimizer_state_precision",
    "dataset",
    "tokenizer_name",
    "tokenizer_model",
];

/// Settings that most logs do not mention, because their runs train all weights on plain text. Where only one of
/// two logs states such a setting, the other run may have it as well.
const SELDOM: [&str; 2] = [TASK, LORA_RANK];

/// Settings of the work that two contracts leave open, core settings first.
#[derive(Clone, Debug, Default)]
pub struct Gaps {
    pub only_a: Vec<Stated>,
    pub only_b: Vec<Stated>,
    /// Core settings only: of the others, hardly any log states all.
    pub neither: Vec<String>,
}

/// A setting that one side states.
#[derive(Clone, Debug)]
pub struct Stated {
    pub field: String,
    pub value: String,
}

impl Gaps {
    #[must_use]
    pub fn of(a: &Contract, b: &Contract) -> Self {
        let neither = CORE
            .into_iter()
            .filter(|field| a.get(field).is_none() && b.get(field).is_none());
        let is_meant = |d: &FieldDifference| {
            let is_of_work = is_in_table(&d.field) && d.tier == Tier::Workload;
            is_of_work || NAMED.contains(&&*d.field) || is_other_work(d)
        };
        Self {
            neither: neither.map(str::to_owned).collect(),
            ..Self::of_fields(a, b, is_meant)
        }
    }

    /// Settings that may explain a difference in speed and that only one of two logs states: how the
    /// work is done, and what changes the work and is not in tprimat's table.
    #[must_use]
    pub fn of_speed(a: &Contract, b: &Contract) -> Self {
        let is_meant = |d: &FieldDifference| {
            (d.tier == Tier::Execution || !is_in_table(&d.field))
                && !NAMED.contains(&&*d.field)
                && !is_other_work(d)
        };
        let mut gaps = Self::of_fields(a, b, is_meant);
        let all = differences(a, b);
        let on_one_device = [a, b].map(|of| of.count("num_gpus")) == [Some(1); 2];
        for (one, side) in [(a, &mut gaps.only_a), (b, &mut gaps.only_b)] {
            // Trainers that do not pad, or have no such mode, say nothing of it.
            let is_usual = |field: &str| match field {
                "padded_vocab_size" => one.get(field) == one.get("vocab_size"),
                DETERMINISTIC => one.get(field).is_some_and(is_off),
                // On one device there is nothing to shard, so it does not matter which log says how.
                "sharding" => on_one_device,
                "tensor_model_parallel_size"
                | "pipeline_model_parallel_size"
                | "context_parallel_size"
                | "expert_model_parallel_size" => one.count(field) == Some(1),
                _ if is_in_table(field) => false,
                _ if is_of_models(field) => true,
                _ => (one.get(field)).is_some_and(|value| is_usual(field, value)),
            };
            side.retain(|stated| !is_usual(&stated.field) && !follows(&stated.field, &all));
        }
        gaps
    }

    fn of_fields(a: &Contract, b: &Contract, is_meant: impl Fn(&FieldDifference) -> bool) -> Self {
        let mut gaps = Self::default();
        for found in differences(a, b)
            .into_iter()
            .filter(|d| !d.is_known() && is_meant(d))
        {
            let value = show(found.a.as_ref().or(found.b.as_ref()));
            let side = if found.a.is_some() {
                &mut gaps.only_a
            } else {
                &mut gaps.only_b
            };
            side.push(Stated {
                field: found.field,
                value,
            });
        }
        for side in [&mut gaps.only_a, &mut gaps.only_b] {
            side.sort_by_key(|stated| rank(&stated.field));
        }
        gaps
    }

    /// `only A states precision (fp8), dropout (0); neither states optimizer`
    #[must_use]
    pub fn words(&self, a: &str, b: &str) -> String {
        let mut parts = Vec::new();
        for (name, side) in [(a, &self.only_a), (b, &self.only_b)] {
            if !side.is_empty() {
                parts.push(format!("only {name} states {}", stated(side)));
            }
        }
        if !self.neither.is_empty() {
            parts.push(format!("neither states {}", self.neither.join(", ")));
        }
        parts.join("; ")
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.only_a.is_empty() && self.only_b.is_empty() && self.neither.is_empty()
    }

    /// Core settings that only one side states.
    pub(super) fn core_of_one(&self) -> Vec<&str> {
        let one = self
            .only_a
            .iter()
            .chain(&self.only_b)
            .map(|stated| &*stated.field);
        let is_core = |field: &&str| {
            let is_seldom = SELDOM.contains(field) || is_further(field) || !is_in_table(field);
            rank(field) < CORE.len() || is_seldom
        };
        let mut core: Vec<&str> = one.filter(is_core).collect();
        core.sort_by_key(|field| rank(field));
        core
    }

    /// Core settings that are not known of both sides: whether the two did the same work is
    /// unknown.
    pub(super) fn core(&self) -> Vec<&str> {
        let mut core = self.core_of_one();
        core.extend(self.neither.iter().map(String::as_str));
        core.sort_by_key(|field| rank(field));
        core
    }
}

/// Why it is unknown whether two cells did the same work.
pub(super) fn work_not_known(a: &Contract, b: &Contract) -> Option<Reason> {
    let gaps = Gaps::of(a, b);
    let fields: Vec<String> = gaps.core().into_iter().map(str::to_owned).collect();
    let text = || format!("the workloads may differ in {}", fields.join(", "));
    let why = (!fields.is_empty()).then(|| Reason::no_verdict(WORKLOADS_MAY_DIFFER, text()));
    why.map(|why| why.with("fields", fields))
}

/// Does a setting follow from others that differ as well, so that naming it says nothing new?
#[must_use]
pub fn follows(field: &str, all: &[FieldDifference]) -> bool {
    let from: &[&str] = match field {
        "gradient_accumulation_steps" => &["micro_batch_size", "data_parallel_size"],
        "data_parallel_size" => &[
            "tensor_model_parallel_size",
            "pipeline_model_parallel_size",
            "context_parallel_size",
            "num_gpus",
        ],
        // Stated only where the setting that they belong to is on.
        "compile_mode" => &["compile"],
        "sac_frequency" => &["activation_checkpointing"],
        "fp8_hybrid" | "fp8_param" => &["precision"],
        "num_nodes" => &["num_gpus"],
        _ => &[],
    };
    all.iter().any(|d| from.contains(&&*d.field))
}

/// Is it something that few runs have, that a token costs other FLOPs with, and that is not in tprimat's table: frozen
/// weights, adapters, quantized ones?
fn is_other_work(found: &FieldDifference) -> bool {
    let value = found.a.as_ref().or(found.b.as_ref());
    !is_in_table(&found.field)
        && value.is_some_and(|value| other_flops(&found.field, value).is_some())
}

/// Every core setting and every other that is always named, and the first few of the rest.
fn stated(side: &[Stated]) -> String {
    const MOST: usize = 3;
    let always = side
        .iter()
        .filter(|stated| rank(&stated.field) < UNRANKED)
        .count();
    let (named, more) = side.split_at(side.len().min(always + MOST));
    let mut words: Vec<String> = named
        .iter()
        .map(|s| format!("{} ({})", s.field, s.value))
        .collect();
    if !more.is_empty() {
        words.push(format!("{} more", more.len()));
    }
    words.join(", ")
}

const UNRANKED: usize = CORE.len() + NAMED.len();

fn rank(field: &str) -> usize {
    let place = CORE.iter().chain(&NAMED).position(|of| *of == field);
    place.unwrap_or(UNRANKED - usize::from(!is_in_table(field)))
}

/// Settings that both logs state, with other values, and of which nobody here knows what they mean.
#[must_use]
pub fn unknown_differences(
    a: &BTreeMap<String, Value>,
    b: &BTreeMap<String, Value>,
) -> Vec<FieldDifference> {
    let both = a
        .iter()
        .filter_map(|(name, of_a)| Some((name, of_a, b.get(name)?)));
    both.filter(|(name, of_a, of_b)| !agree(of_a, of_b) && !is_harmless(name))
        .map(|(name, of_a, of_b)| FieldDifference {
            field: name.clone(),
            tier: Tier::Execution,
            a: Some(of_a.clone()),
            b: Some(of_b.clone()),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::figures::stand_ins::trace;
    use crate::results::Claim;

    fn contract(stated: serde_json::Value) -> Contract {
        Contract::of(&trace(stated, None), &Claim::of_model(None))
    }

    #[test]
    fn core_settings_come_first_and_are_never_left_out() {
        let a = contract(
            json!({"packing": "none", "dropout": 0, "num_layers": 2, "hidden_size": 64, "vocab_size": 256,
            "precision": "fp8", "optimizer": "adamw", "seq_length": 128}),
        );
        let b = contract(json!({"seq_length": 128, "global_batch_size": 8}));
        let gaps = Gaps::of(&a, &b);
        assert_eq!(
            gaps.core(),
            [
                "precision",
                "optimizer",
                "data",
                "global_batch_size",
                "num_gpus"
            ]
        );
        assert_eq!(
            gaps.core_of_one(),
            ["precision", "optimizer", "global_batch_size"]
        );
        assert_eq!(
            gaps.words("A", "B"),
            "only A states precision (fp8), optimizer (adamw), packing (none), dropout (0), num_layers (2), hidden_size (64), vocab_size (256); \
             only B states global_batch_size (8); neither states data, num_gpus"
        );
    }

    /// Text that is cut into other tokens has other losses, and another length.
    #[test]
    fn a_tokenizer_that_one_side_names_is_named() {
        let all = json!({"precision": "bf16", "optimizer": "adamw", "data": "real", "global_batch_size": 8, "seq_length": 128,
            "num_gpus": 1, "num_layers": 2});
        let mut other = all.clone();
        other["tokenizer_model"] = "llama.model".into();
        let [a, b] = [contract(other), contract(all)];
        assert_eq!(
            Gaps::of(&a, &b).words("A", "B"),
            "only A states tokenizer_model (llama.model)"
        );
        assert!(Gaps::of_speed(&a, &b).is_empty());
    }

    #[test]
    fn what_few_runs_have_is_asked_of_both() {
        let silent = contract(json!({"precision": "bf16"}));
        for (stated, is_core) in [
            (json!({"freeze": true}), true),
            (json!({"quantization": "nf4"}), true),
            (json!({"sliding_window": 512}), true),
            (
                json!({"freeze": false, "sliding_window": 0, "swiglu": true, "normalization": "rmsnorm"}),
                false,
            ),
            (json!({"grad_reduce_in_fp32": true}), false),
        ] {
            let mut all = stated.clone();
            all["precision"] = "bf16".into();
            let gaps = Gaps::of(&contract(all), &silent);
            assert_eq!(!gaps.core_of_one().is_empty(), is_core, "{stated}");
        }
    }

    #[test]
    fn what_both_state_is_no_gap_whatever_the_values() {
        let all = json!({"precision": "bf16", "optimizer": "adamw", "data": "random", "global_batch_size": 8,
            "seq_length": 128, "num_gpus": 1, "compile": true});
        let mut other = all.clone();
        (other["precision"], other["compile"]) = ("fp8".into(), json!(null));
        assert!(Gaps::of(&contract(all.clone()), &contract(other.clone())).is_empty());
        assert_eq!(
            Gaps::of_fields(&contract(other), &contract(all), |d| d.tier
                == Tier::Execution)
            .words("A", "B"),
            "only B states compile (true)"
        );
    }
}
