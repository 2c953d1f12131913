//! `schema WHAT`: the JSON schema of a format.

use schemars::schema_for;
use serde_json::{Value, json};

use super::{
    args::{SchemaArgs, SchemaName},
    output::{json_text, print_document},
};
use crate::{
    config,
    error::{Result, exit},
    figures, logs, matrix, plan, recipe,
};

/// The schemas of the files that people write, by the names of their files in the folder `schemas`
/// of a project: editors find them by the first line of config.yaml, of a matrix and of a recipe.
pub fn for_editors() -> Result<Vec<(String, Vec<u8>)>> {
    let mut files = Vec::new();
    for (name, what) in [
        ("config", SchemaName::Config),
        ("matrix", SchemaName::Matrix),
        ("recipe", SchemaName::Recipe),
    ] {
        let text = json_text(&schema(what))?;
        files.push((format!("schemas/{name}.json"), text.into_bytes()));
    }
    Ok(files)
}

pub fn run(args: &SchemaArgs) -> Result<i32> {
    print_document(&schema(args.what))?;
    Ok(exit::OK)
}

fn schema(name: SchemaName) -> Value {
    match name {
        SchemaName::Job => json!(schema_for!(crate::job::Job)),
        SchemaName::Events => logs::events_schema(),
        SchemaName::Trace => json!(schema_for!(logs::Trace)),
        SchemaName::Result => json!(schema_for!(crate::results::RunResult)),
        SchemaName::Summary => json!(schema_for!(figures::Summary)),
        SchemaName::Comparison => json!(schema_for!(figures::ComparisonDocument<'_>)),
        SchemaName::History => json!(schema_for!(figures::History)),
        SchemaName::Fit => json!(schema_for!(plan::fit::MemoryFit)),
        SchemaName::Baseline => json!(schema_for!(figures::Baseline)),
        SchemaName::Gate => json!(schema_for!(figures::GateReport)),
        SchemaName::Config => {
            let mut schema = json!(schema_for!(config::schema::ConfigFile));
            with_aliases(&mut schema);
            schema
        }
        SchemaName::Matrix => json!(schema_for!(matrix::MatrixSchema)),
        SchemaName::Recipe => json!(schema_for!(recipe::RecipeFile)),
    }
}

/// Every other spelling of a key (`x-aliases`) as a property of its own, since no validator knows
/// that keyword.
fn with_aliases(schema: &mut Value) {
    let Some(object) = schema.as_object_mut() else {
        if let Some(list) = schema.as_array_mut() {
            list.iter_mut().for_each(with_aliases);
        }
        return;
    };
    if let Some(properties) = object.get_mut("properties").and_then(Value::as_object_mut) {
        let mut spellings = Vec::new();
        for property in properties.values() {
            let aliases = property["x-aliases"].as_array().into_iter().flatten();
            for alias in aliases.filter_map(Value::as_str) {
                spellings.push((alias.to_owned(), property.clone()));
            }
        }
        for (alias, property) in spellings {
            properties.entry(alias).or_insert(property);
        }
    }
    object.values_mut().for_each(with_aliases);
}
