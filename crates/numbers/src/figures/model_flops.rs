//! Whether the FLOPs of a token are those of the model's shape: not where the log says that a part of
//! that work is not done.

use crate::results::{
    ContractField, FlopsPerToken, Reason,
    settings::{LORA_RANK, TASK, is_in_table, is_off, show},
    unlisted::other_flops,
    work::ALL_PARAMETERS,
};

use super::{Summary, codes::FLOPS_NOT_KNOWN};

/// Masks under which a token attends to all before it.
const WHOLE_MASKS: [&str; 5] = ["causal", "full", "padding", "true", "bidirectional"];

/// FLOPs of a token, or why they are not known.
pub(super) fn flops_of(summary: &Summary) -> Result<&FlopsPerToken, Reason> {
    let fields = summary.contract.0.iter();
    let mut reasons = fields.filter_map(|field| Some((field, why_other(summary, field)?)));
    if let Some((field, why)) = reasons.next() {
        let value = show(Some(&field.value));
        let text = format!(
            "the log states {} {value} ({why}): the FLOPs of a token are not those of the model",
            field.field
        );
        let reason = Reason::detail("other_flops", text).with("setting", &*field.field);
        return Err(reason);
    }
    summary.flops_per_token().ok_or_else(flops_not_known)
}

pub(super) fn flops_not_known() -> Reason {
    let text = "FLOPs per token of this model are not known";
    Reason::detail(FLOPS_NOT_KNOWN, text)
}

/// Why a setting takes a part of the model's work away.
fn why_other(summary: &Summary, field: &ContractField) -> Option<&'static str> {
    let (name, value) = (&*field.field, &field.value);
    if name == "reset_attention_mask" {
        return (!is_off(value)).then_some("no token attends to another document");
    }
    if name == TASK {
        let has_rank = summary.contract.get(LORA_RANK).is_some();
        return (value == "lora" && !has_rank).then_some("only adapters are trained");
    }
    if ["attention_mask", "attn_mask_type"].contains(&name) {
        let word = value.as_str()?;
        let is_whole = is_off(value) || WHOLE_MASKS.contains(&word);
        return (!is_whole).then_some("a token does not attend to all before it");
    }
    if is_in_table(name) {
        let is_unknown = summary.flops_per_token().is_none();
        return other_flops(name, value).filter(|_| is_unknown);
    }
    // What an adapter's settings are besides its rank.
    const OF_ADAPTERS: [&str; 4] = ["lora", "adapter", "peft", "trainable"];
    let is_lora = summary
        .contract
        .get(TASK)
        .is_some_and(|task| task == "lora");
    if is_lora && OF_ADAPTERS.iter().any(|word| name.contains(word)) {
        return None;
    }
    let why = other_flops(name, value)?;
    let number = value.as_f64();
    let length = summary.contract.count("seq_length");
    let parameters = summary.workload.as_ref().and_then(|w| w.num_parameters);
    let reaches = |of: Option<u64>, part: f64| {
        number
            .zip(of)
            .is_some_and(|(number, of)| number >= part * of as f64)
    };
    let is_whole = match name {
        _ if name.contains("window") => reaches(length, 1.0),
        _ if name.contains("trainable") => {
            reaches(parameters, ALL_PARAMETERS)
                || value.as_bool() == Some(true)
                || value
                    .as_str()
                    .is_some_and(|word| ["all", "full"].contains(&word))
        }
        _ => false,
    };
    (!is_whole).then_some(why)
}

/// Why it is not known whose peak holds: the log states another format of the products beside the
/// precision.
pub(super) fn other_format(summary: &Summary) -> Option<Reason> {
    const NAMES: [&str; 9] = [
        "fp8",
        "use_fp8",
        "enable_fp8",
        "fp8_format",
        "float8",
        "enable_float8",
        "fp4",
        "mxfp8",
        "nvfp4",
    ];
    let precision = summary.workload.as_ref().map_or("", |w| &w.precision);
    if !["bf16", "fp16", "fp32", "tf32"].contains(&precision) {
        return None;
    }
    let mut fields = summary.contract.0.iter();
    let other = fields.find(|f| NAMES.contains(&&*f.field) && !is_off(&f.value))?;
    let value = show(Some(&other.value));
    let text = format!(
        "the log states {} {value} beside precision {precision}, so which peak holds is not known",
        other.field
    );
    Some(Reason::detail("other_format", text))
}
