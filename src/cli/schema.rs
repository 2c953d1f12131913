//! `schema WHAT`: the JSON schema of a format.

use schemars::schema_for;
use serde_json::{Value, json};

use super::{
    args::SchemaArgs,
    output::{json_text, print_document},
};
use crate::{
    config,
    error::{Error, Problem, Result, did_you_mean, exit},
    figures, logs, matrix, plan, recipe,
};

const NAMES: [&str; 13] = [
    "job",
    "events",
    "trace",
    "result",
    "summary",
    "comparison",
    "history",
    "baseline",
    "gate",
    "config",
    "matrix",
    "recipe",
    "fit",
];

/// The schemas of the files that people write, by the names of their files in the folder `schemas`
/// of a project: editors find them by the first line of config.yaml, of a matrix and of a recipe.
pub fn for_editors() -> Result<Vec<(String, Vec<u8>)>> {
    let mut files = Vec::new();
    for name in ["config", "matrix", "recipe"] {
        let text = json_text(&schema(name)?)?;
        files.push((format!("schemas/{name}.json"), text.into_bytes()));
    }
    Ok(files)
}

pub fn run(args: &SchemaArgs) -> Result<i32> {
    print_document(&schema(&args.what)?)?;
    Ok(exit::OK)
}

fn schema(name: &str) -> Result<Value> {
    Ok(match name {
        "job" => json!(schema_for!(crate::job::Job)),
        "events" => logs::events_schema(),
        "trace" => json!(schema_for!(logs::Trace)),
        "result" => json!(schema_for!(crate::results::RunResult)),
        "summary" => json!(schema_for!(figures::Summary)),
        "comparison" => json!(schema_for!(figures::ComparisonDocument<'_>)),
        "history" => json!(schema_for!(figures::History)),
        "fit" => json!(schema_for!(plan::fit::MemoryFit)),
        "baseline" => json!(schema_for!(figures::Baseline)),
        "gate" => json!(schema_for!(figures::GateReport)),
        "config" => {
            let mut schema = json!(schema_for!(config::schema::ConfigFile));
            with_aliases(&mut schema);
            schema
        }
        "matrix" => json!(schema_for!(matrix::MatrixSchema)),
        "recipe" => json!(schema_for!(recipe::RecipeFile)),
        other => {
            let problem = Problem::new(format!("there is no schema `{other}`"));
            let help = did_you_mean(other, NAMES)
                .unwrap_or_else(|| format!("expected one of: {}", NAMES.join(", ")));
            return Err(Error::invalid(problem.help(help)));
        }
    })
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
