//! What a recipe cannot do, as data: conditions over the job, each with the reason.

use std::collections::BTreeMap;
use tprimat_base::words::part;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// `[[unsupported]]` of recipe.toml: all conditions of `when` hold → the cell is unsupported
/// because of `reason`.
///
/// A condition names a field of the job by its dotted path and gives a value (equal), a list (any
/// of them), `">n"` / `"<n"` (a number beyond it), `"*"` (present and not empty), `""` (absent or
/// empty), or `{ not = … }` with any of these.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Constraint {
    pub when: BTreeMap<String, Value>,
    pub reason: String,
}

impl Constraint {
    #[must_use]
    pub fn applies(&self, job: &Value) -> bool {
        !self.when.is_empty()
            && self
                .when
                .iter()
                .all(|(path, condition)| holds(lookup(job, path), condition))
    }

    /// The part of a condition that can never hold, whatever the field is.
    pub(super) fn unreadable(condition: &Value) -> Option<String> {
        match condition {
            Value::Object(table) => match table.get("not") {
                Some(inner) if table.len() == 1 => Self::unreadable(inner),
                _ => table.keys().find(|key| *key != "not").cloned(),
            },
            Value::Array(any) => any.iter().find_map(Self::unreadable),
            Value::String(text) => text
                .strip_prefix(['>', '<'])
                .is_some_and(|limit| limit.trim().parse::<f64>().is_err())
                .then(|| text.clone()),
            _ => None,
        }
    }
}

fn lookup<'a>(job: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.')
        .try_fold(job, |value, part| value.get(part))
        .filter(|v| !v.is_null())
}

fn holds(actual: Option<&Value>, condition: &Value) -> bool {
    match condition {
        Value::Object(table) => table
            .get("not")
            .is_some_and(|condition| !holds(actual, condition)),
        Value::Array(any) => any.iter().any(|one| holds(actual, one)),
        Value::String(s) if s == "*" => !is_empty(actual),
        Value::String(s) if s.is_empty() => is_empty(actual),
        Value::String(s) if s.starts_with(['>', '<']) => {
            let (Some(actual), Ok(limit)) = (
                actual.and_then(Value::as_f64),
                part(s, 1..).trim().parse::<f64>(),
            ) else {
                return false;
            };
            if s.starts_with('>') {
                actual > limit
            } else {
                actual < limit
            }
        }
        Value::Number(n) => actual.and_then(Value::as_f64) == n.as_f64(),
        other => actual == Some(other),
    }
}

fn is_empty(value: Option<&Value>) -> bool {
    value.is_none_or(|v| v.as_str() == Some("") || v.as_array().is_some_and(Vec::is_empty))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn applies(when: Value) -> bool {
        let job = json!({"compile": true, "precision": "fp8", "parallelism": {"num_gpus": 8, "sharding": ""}, "model": {"dataset": null}});
        Constraint {
            when: serde_json::from_value(when).unwrap(),
            reason: String::new(),
        }
        .applies(&job)
    }

    #[test]
    fn conditions_are_conjunctions_over_the_job() {
        assert!(applies(json!({"compile": true, "precision": "fp8"})));
        assert!(!applies(json!({"compile": true, "precision": "bf16"})));
        assert!(applies(json!({"precision": ["bf16", "fp8"]})));
        assert!(applies(json!({"parallelism.num_gpus": ">1"})));
        assert!(!applies(json!({"parallelism.num_gpus": ">8"})));
        assert!(applies(json!({"parallelism.num_gpus": 8.0})));
        assert!(!applies(json!({"model.dataset": "*"})));
        assert!(!applies(json!({"parallelism.sharding": "*"})));
        assert!(applies(json!({"framework.command": ""})));
        assert!(
            applies(json!({"precision": {"not": ["bf16", "fp32"]}}))
                && applies(json!({"model.dataset": {"not": "*"}}))
        );
        assert!(
            !applies(json!({"precision": {"not": "fp8"}}))
                && !applies(json!({"precision": {"nor": "bf16"}}))
        );
        assert!(
            !applies(json!({})),
            "an empty condition must not switch a recipe off"
        );
    }
}
