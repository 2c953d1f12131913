//! Changes of a task's pre-image in the words that a user knows: `driver 580.159 → 590.11`, `TP 2 →
//! 4`, `train.py edited`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::{
    figures::ChangedSetting,
    job::Job,
    plan::preimage::{ANALYSIS, Change, unescaped},
    words::secret::public_value,
};

/// What a field of a pre-image is about. Changes are told in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// A field of the job: what the trainer is asked to do.
    Setting,
    /// Hardware, driver, packages and checkouts, as tprimat.lock has them.
    Fact,
    Variable,
    /// A file, or something else that is known by its digest.
    Content,
}

/// Fields that are named after a file.
const FILES: [&str; 4] = ["input.", "recipe.", "template.", "rendered."];

/// A field as a user knows it.
struct Field {
    kind: Kind,
    name: String,
}

/// Each change once, under the name that the user gave it. `default`: the job with all fields at
/// their defaults, which pre-images leave out.
#[must_use]
pub fn worded(changes: &[Change], default: &Value) -> Vec<ChangedSetting> {
    let has = |name: &str| changes.iter().any(|change| change.field == name);
    let mut found: Vec<(Kind, ChangedSetting)> = Vec::new();
    for change in changes {
        let Some(Field { kind, name }) = field(&change.field) else {
            continue;
        };
        if follows(&change.field, &has, changes) {
            continue;
        }
        let side = |value: &Option<String>| match (value, change.field.strip_prefix("job.")) {
            (Some(value), _) => Some(readable(&name, value)),
            (None, Some(path)) => default_of(default, path),
            (None, None) => None,
        };
        let (old, new) = (side(&change.old), side(&change.new));
        if kind != Kind::Content && old == new {
            continue;
        }
        let how = (kind == Kind::Content).then(|| match (&change.old, &change.new) {
            (None, _) => "added".to_owned(),
            (_, None) => "removed".to_owned(),
            // A file is edited; a dataset, an image or a result is another one.
            _ if FILES.iter().any(|prefix| change.field.starts_with(prefix)) => "edited".to_owned(),
            _ => "changed".to_owned(),
        });
        let (old, new) = if how.is_some() {
            (None, None)
        } else {
            (old, new)
        };
        let changed = ChangedSetting {
            what: name,
            how,
            old,
            new,
        };
        if !found
            .iter()
            .any(|(_, known)| known.what == changed.what && known.how == changed.how)
        {
            found.push((kind, changed));
        }
    }
    found.sort_by(|(a, x), (b, y)| a.cmp(b).then_with(|| x.what.cmp(&y.what)));
    found.into_iter().map(|(_, changed)| changed).collect()
}

/// The same, against the defaults of this tprimat's job. A field that has no name of its own is
/// told as the key has it, for nothing that changed may be kept back.
#[must_use]
pub fn worded_of_task(changes: &[Change]) -> Vec<ChangedSetting> {
    let changes: Vec<Change> = changes.iter().flat_map(entries).collect();
    let told = worded(&changes, &json!(Job::default()));
    if !told.is_empty() {
        return told;
    }
    let raw = |change: &Change| ChangedSetting {
        what: change.field.clone(),
        how: None,
        old: change
            .old
            .as_deref()
            .map(|value| readable(&change.field, value)),
        new: change
            .new
            .as_deref()
            .map(|value| readable(&change.field, value)),
    };
    changes.iter().map(raw).collect()
}

/// A change of a table, such as `statistics`, as changes of its entries that differ; any other as it
/// is.
fn entries(change: &Change) -> Vec<Change> {
    let table = |side: &Option<String>| -> Option<BTreeMap<String, Value>> {
        serde_json::from_str(side.as_deref()?).ok()
    };
    let (Some(old), Some(new), false) = (
        table(&change.old),
        table(&change.new),
        change.field.contains('.'),
    ) else {
        return vec![change.clone()];
    };
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let differ = names
        .into_iter()
        .filter(|name| old.get(*name) != new.get(*name));
    let text = |side: &BTreeMap<String, Value>, name| side.get(name).map(Value::to_string);
    differ
        .map(|name| Change {
            field: format!("{}.{name}", change.field),
            old: text(&old, name),
            new: text(&new, name),
        })
        .collect()
}

/// `TP 2 → 4 (and 2 more changes)`
#[must_use]
pub fn first_of(changes: &[ChangedSetting]) -> String {
    match changes {
        [] => String::new(),
        [one] => one.words(),
        [one, _] => format!("{} (and 1 more change)", one.words()),
        [one, rest @ ..] => format!("{} (and {} more changes)", one.words(), rest.len()),
    }
}

/// None of a field that tells repeats apart.
fn field(path: &str) -> Option<Field> {
    let named = |kind, name: &str| {
        Some(Field {
            kind,
            name: unescaped(name),
        })
    };
    if let Some(rest) = path.strip_prefix("job.") {
        return named(Kind::Setting, &setting(rest));
    }
    if let Some(rest) = path.strip_prefix("fact.") {
        return named(Kind::Fact, &fact(rest));
    }
    if let Some(name) = path.strip_prefix("env.") {
        return named(Kind::Variable, name);
    }
    for prefix in FILES {
        if let Some(file) = path.strip_prefix(prefix) {
            return named(Kind::Content, file);
        }
    }
    for (prefix, what) in [
        ("output.", "the run's"),
        ("cell.", "the results of"),
        ("result.", "the result of repeat"),
        ("compare.", "the comparison's"),
        ("plot.", "the picture"),
    ] {
        if let Some(name) = path.strip_prefix(prefix) {
            return named(Kind::Content, &format!("{what} {name}"));
        }
    }
    match path {
        "repeat" => None,
        "train_key" => named(Kind::Content, "an input that the files do not name"),
        "attempt" => named(Kind::Content, "the run that counts"),
        ANALYSIS => named(Kind::Content, "tprimat's own analysis"),
        "launch_files" => named(Kind::Setting, "names of the launch files"),
        "log" => named(Kind::Content, "[log] of recipe.toml"),
        "order" => named(Kind::Content, "the list of cells"),
        "image" => named(Kind::Content, "the container's image"),
        "command" => named(Kind::Setting, "command"),
        "num_gpus" => named(Kind::Setting, "GPUs"),
        "program.tprimat-native" => named(Kind::Content, "the source of tprimat-native"),
        "dataset" => named(Kind::Content, "the dataset"),
        "tokenizer" => named(Kind::Content, "the tokenizer"),
        "launch_abi" => named(Kind::Setting, "how tprimat launches the recipe"),
        // A job whose text is gone from the cache.
        "job" => named(Kind::Content, "the job's settings"),
        other => named(Kind::Setting, other),
    }
}

/// `TP`, `seq_length`, `init_std`: as in config.yaml, without the path that leads there.
fn setting(path: &str) -> String {
    let known = match path {
        "parallelism.tensor_model_parallel_size" => "TP",
        "parallelism.pipeline_model_parallel_size" => "PP",
        "parallelism.context_parallel_size" => "CP",
        "parallelism.data_parallel_size" => "DP",
        "parallelism.expert_model_parallel_size" => "EP",
        "parallelism.num_gpus" => "GPUs",
        "initialisation.std" => "init_std",
        "optimizer.type" => "optimizer",
        _ => path
            .strip_prefix("framework.")
            .unwrap_or_else(|| path.rsplit('.').next().unwrap_or(path)),
    };
    known.to_owned()
}

/// `torch`, `driver`, `power cap`, `PRIMUS_PATH commit`
fn fact(path: &str) -> String {
    if let Some(package) = path.strip_prefix("package.") {
        return package.to_owned();
    }
    if let Some(checkout) = path.strip_prefix("checkout.") {
        return checkout.replace('.', " ");
    }
    if path == "count" {
        "devices of the host".to_owned()
    } else {
        path.replace('_', " ")
    }
}

/// What follows from another change says nothing new.
fn follows(path: &str, has: &impl Fn(&str) -> bool, changes: &[Change]) -> bool {
    let has_any = |names: &[&str]| names.iter().any(|name| has(&format!("job.{name}")));
    match path {
        "job.data.gradient_accumulation_steps" => has_any(&[
            "data.micro_batch_size",
            "data.global_batch_size",
            "parallelism.data_parallel_size",
        ]),
        "job.parallelism.data_parallel_size" => has_any(&[
            "parallelism.tensor_model_parallel_size",
            "parallelism.pipeline_model_parallel_size",
            "parallelism.context_parallel_size",
            "parallelism.num_gpus",
        ]),
        "job.model.num_parameters" => changes
            .iter()
            .any(|c| c.field.starts_with("job.model.") && c.field != "job.model.num_parameters"),
        // A train key differs in whatever was changed.
        "train_key" => changes.len() > 1,
        _ => false,
    }
}

fn default_of(default: &Value, path: &str) -> Option<String> {
    let value = path
        .split('.')
        .try_fold(default, |value, part| value.get(part))?;
    let is_unset = value.is_null() || value.as_str() == Some("");
    (!is_unset).then(|| readable(path, &value.to_string()))
}

/// A JSON value as people write it; a digest by its beginning, and of a variable only what may be
/// shown.
fn readable(name: &str, json: &str) -> String {
    const MOST: usize = 60;
    let text = match serde_json::from_str::<Value>(json) {
        Ok(Value::String(text)) => text,
        Ok(Value::Array(items)) => {
            let word = |item: &Value| {
                item.as_str()
                    .map_or_else(|| item.to_string(), str::to_owned)
            };
            items.iter().map(word).collect::<Vec<_>>().join(" ")
        }
        _ => json.to_owned(),
    };
    let text = public_value(name, &text).into_owned();
    if text.len() >= 40 && text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return text.chars().take(12).collect();
    }
    if text.chars().count() > MOST {
        text.chars().take(MOST - 1).chain(['…']).collect()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn change(field: &str, old: Option<&str>, new: Option<&str>) -> Change {
        Change {
            field: field.to_owned(),
            old: old.map(str::to_owned),
            new: new.map(str::to_owned),
        }
    }

    fn words(changes: &[Change]) -> String {
        let default = json!({ "parallelism": { "tensor_model_parallel_size": 1 }, "model": { "dataset": null } });
        worded(changes, &default)
            .iter()
            .map(ChangedSetting::words)
            .collect::<Vec<_>>()
            .join("; ")
    }

    #[test]
    fn of_a_table_the_entries_that_differ_are_told() {
        let statistics = change(
            "statistics",
            Some(r#"{"warmup_steps":5,"peak":1}"#),
            Some(r#"{"warmup_steps":3,"peak":1}"#),
        );
        let told = worded_of_task(&[statistics]);
        assert_eq!(first_of(&told), "statistics.warmup_steps 5 → 3");
    }

    #[test]
    fn changes_have_the_names_that_users_know() {
        let digest = |n: u8| format!("\"{}\"", format!("{n:02x}").repeat(32));
        let changes = [
            change("env.NCCL_DEBUG", None, Some("\"INFO\"")),
            change(
                "env.HF_TOKEN",
                Some("\"hf_abcdefghijklmnop\""),
                Some("\"hf_qrstuvwxyzabcdef\""),
            ),
            change("fact.driver", Some("\"580.159\""), Some("\"590.11\"")),
            change("fact.package.torch", Some("\"2.11.0\""), Some("\"2.12.0\"")),
            change(
                "fact.checkout.PRIMUS_PATH.commit",
                Some(&format!("\"{}\"", "a".repeat(40))),
                Some(&format!("\"{}\"", "b".repeat(40))),
            ),
            change("input.train.py", Some(&digest(1)), Some(&digest(2))),
            change("recipe.lib%2Dx.py", None, Some(&digest(2))),
            change("job.parallelism.data_parallel_size", Some("8"), Some("4")),
            change(
                "job.parallelism.tensor_model_parallel_size",
                None,
                Some("2"),
            ),
            change("job.data.seq_length", Some("2048"), Some("4096")),
            change("job.model.dataset", None, Some("\"wiki\"")),
            change("repeat", Some("1"), Some("2")),
        ];
        assert_eq!(
            words(&changes),
            "TP 1 → 2; dataset not set → wiki; seq_length 2048 → 4096; PRIMUS_PATH commit aaaaaaaaaaaa → bbbbbbbbbbbb; \
             driver 580.159 → 590.11; torch 2.11.0 → 2.12.0; NCCL_DEBUG not set → INFO; lib%2Dx.py added; train.py edited"
        );
    }

    #[test]
    fn what_follows_from_another_change_is_not_told() {
        let mbs = change("job.data.micro_batch_size", Some("1"), Some("2"));
        let ga = change("job.data.gradient_accumulation_steps", Some("8"), Some("4"));
        assert_eq!(words(&[ga.clone(), mbs]), "micro_batch_size 1 → 2");
        assert_eq!(words(&[ga]), "gradient_accumulation_steps 8 → 4");
        let devices = [
            change("num_gpus", Some("4"), Some("8")),
            change("job.parallelism.num_gpus", Some("4"), Some("8")),
        ];
        assert_eq!(words(&devices), "GPUs 4 → 8");
    }
}
