//! Facts of a run that its file lacks and whoever imports it knows: labels like those of a result
//! file, which are marked wherever a figure rests on them.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{ImportedRun, OldResult, result};
use crate::{
    config::choice,
    error::{Error, Problem, Result, did_you_mean},
    job::PRECISIONS,
    results::{
        AttestationStatus,
        settings::{PRECISION, show},
    },
};

/// Values by the job's names.
pub type Facts = BTreeMap<String, Value>;

/// What `--set NAME=VALUE` says.
pub fn facts(words: &[String]) -> Result<Facts> {
    let read = |word: &String| {
        let refused = |message: String, help: String| Problem::new(message).help(help);
        let Some((name, text)) = word.split_once('=') else {
            let message = format!("`--set {word}` has no `=`");
            return Err(refused(message, "as in `--set seq_length=4096`".to_owned()));
        };
        let names: Vec<&str> = result::label_names().collect();
        let Some(label) = result::label_named(name) else {
            let near = did_you_mean(name, names.iter().copied());
            let all = || format!("expected {}", names.join(", "));
            let message = format!("`{name}` is not a setting that an import takes");
            return Err(refused(message, near.unwrap_or_else(all)));
        };
        let text = text.trim();
        let value = serde_json::from_str(text).unwrap_or_else(|_| Value::from(text));
        if label == PRECISION {
            return match choice(&PRECISIONS, text) {
                Some(precision) => Ok((label.to_owned(), precision.into())),
                None => {
                    let message = format!("`--set {word}`: {text} is not a precision");
                    let near = did_you_mean(text, PRECISIONS);
                    let all = || format!("expected {}", PRECISIONS.join(", "));
                    Err(refused(message, near.unwrap_or_else(all)))
                }
            };
        }
        match result::label_value(label, &value) {
            Ok(value) => Ok((label.to_owned(), value)),
            Err(expected) => Err(refused(
                format!("`--set {word}`: {text} is not {expected}"),
                format!("{name} is {expected}"),
            )),
        }
    };
    let (facts, problems): (Vec<_>, Vec<_>) = words.iter().map(read).partition(|read| read.is_ok());
    let problems: Vec<Problem> = problems.into_iter().filter_map(|read| read.err()).collect();
    if problems.is_empty() {
        Ok(facts.into_iter().flatten().collect())
    } else {
        Err(Error::Invalid(problems))
    }
}

/// `num_gpus=8, seq_length=4096`
#[must_use]
pub fn listed<'a>(facts: impl IntoIterator<Item = (&'a String, &'a Value)>) -> String {
    let facts = facts.into_iter();
    let words: Vec<String> = facts
        .map(|(name, value)| format!("{name}={}", show(Some(value))))
        .collect();
    words.join(", ")
}

/// Which facts the file says otherwise, with both values. `alone`: the file and the run without them.
#[must_use]
pub fn contradictions(
    facts: &Facts,
    with: &ImportedRun,
    alone: (&OldResult, &ImportedRun),
) -> Vec<String> {
    let (file, without) = alone;
    let labels = facts.iter().filter_map(|(name, value)| {
        let (_, label) = file.labels.iter().find(|(label, _)| label == name)?;
        let both = (show(Some(value)), show(Some(label)));
        (both.0 != both.1).then(|| {
            format!(
                "{name} is said to be {}, and the file is labelled {}",
                both.0, both.1
            )
        })
    });
    let known: Vec<&str> = without
        .result
        .attestation
        .contradicted()
        .map(|f| &*f.field)
        .collect();
    let fields = with.result.attestation.contradicted();
    let fields = fields
        .filter(|field| !known.contains(&&*field.field))
        .map(|field| {
            let (said, found) = (
                show(field.declared.as_ref()),
                show(field.effective.as_ref()),
            );
            match &field.arithmetic {
                Some(arithmetic) if !facts.contains_key(&field.field) => {
                    format!("with {}: {arithmetic}", listed(facts))
                }
                // A cell that the run is filed under says otherwise; the log says nothing.
                _ if facts.get(&field.field).map(|fact| show(Some(fact)))
                    == Some(found.clone()) =>
                {
                    format!(
                        "{} is {said} in the cell, and --set says {found}",
                        field.field
                    )
                }
                _ => format!(
                    "{} is said to be {said}, and the log says {found}",
                    field.field
                ),
            }
        });
    labels.chain(fields).collect()
}

impl ImportedRun {
    /// The facts that the file does not confirm.
    pub fn supplied(&self) -> Facts {
        let is_stated = |name: &str| {
            let mut fields = self.result.attestation.fields.iter();
            fields.any(|field| field.field == name && field.status == AttestationStatus::Attested)
        };
        let facts = self.recorded.facts.clone().into_iter();
        facts.filter(|(name, _)| !is_stated(name)).collect()
    }
}
