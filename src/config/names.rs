//! Names that mean the same: frameworks. Those of vendors are in `tprimat_job`.

use serde_json::Value;
pub use tprimat_job::{vendor_named, vendor_names};

/// Shipped frameworks: the id first, then the names that people know them by.
const FRAMEWORKS: [&[&str]; 11] = [
    &["native"],
    &["tran", "transformers", "huggingface", "hf"],
    &["fsdp", "fsdp2", "pytorch-fsdp"],
    &["deep", "deepspeed"],
    &["mega", "megatron", "megatron-core"],
    &["mlm", "megatron-lm", "megatron_lm"],
    &["nemo"],
    &["prim", "primus"],
    &["mgds", "megatron-deepspeed", "megatron_deepspeed"],
    &["titan", "torchtitan"],
    &["cmd"],
];

/// A value for people: a text without quotes.
#[must_use]
pub fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A text, or the texts of a list.
#[must_use]
pub fn strings(value: &Value) -> Vec<&str> {
    match value {
        Value::String(one) => vec![one],
        Value::Array(many) => many.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

/// `NeMo` is what people write.
fn is_among(name: &str, names: &[&str]) -> bool {
    names.iter().any(|known| known.eq_ignore_ascii_case(name))
}

/// Everything a shipped framework is called, its id first; empty for a user's own.
#[must_use]
pub fn framework_names(name: &str) -> &'static [&'static str] {
    FRAMEWORKS.iter().find(|names| is_among(name, names)).copied().unwrap_or(&[])
}

/// The id of a shipped framework, whichever of its names is given.
#[must_use]
pub fn framework_named(name: &str) -> Option<&'static str> {
    framework_names(name).first().copied()
}

/// May `name` stand in a cell's id, `a/b/c/d@axis=value,axis=value`, without being taken apart?
#[must_use]
pub fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(|c: char| c.is_whitespace() || c.is_control() || "/\\,@#{}*?[]!\"'".contains(c))
}
