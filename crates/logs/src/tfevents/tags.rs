//! Tags of several trainers → what their values are.

use std::{collections::HashMap, sync::LazyLock};

use crate::fields::{Field, TOTAL_RATE};

/// Tags whose event's `step` is no step: Megatron writes its curves once more over samples.
const OVER_SOMETHING_ELSE: &[&str] = &[" vs samples", " vs steps", "-vs-samples", " vs tokens"];

static KNOWN: LazyLock<HashMap<String, Field>> = LazyLock::new(|| {
    let names: HashMap<String, String> =
        toml::from_str(include_str!("tags.toml")).expect("tags.toml is right");
    let named = |name: &str| Field::named(name).expect("tags.toml names fields");
    let fields = names.into_iter().map(|(tag, name)| (tag, named(&name)));
    fields.collect()
});

/// Is it something that a training step says of itself?
pub fn is_of_step(field: &Field) -> bool {
    match field {
        Field::Other(name) => name == TOTAL_RATE,
        field => !matches!(
            field,
            Field::Evaluation(_) | Field::Total(_) | Field::Effective(_)
        ),
    }
}

pub fn field(tag: &str) -> Option<Field> {
    if OVER_SOMETHING_ELSE.iter().any(|end| tag.ends_with(end)) {
        return None;
    }
    if let Some(known) = KNOWN.get(tag) {
        return Some(known.clone());
    }
    let evaluation =
        tag.starts_with("eval/") || tag.ends_with(" validation") || tag.starts_with("val_");
    let kind = if evaluation {
        Field::Evaluation
    } else {
        Field::Other
    };
    Some(kind(tag.to_owned()))
}
