//! `schema WHAT`: the JSON schema of a format.

use schemars::schema_for;
use serde_json::{Value, json};

use super::{args::SchemaArgs, output::print_json};
use crate::{
    analyze, config,
    error::{Error, Problem, Result, exit, nearest},
    parse, plan, recipe,
};

const NAMES: [&str; 12] = [
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
    "recipe",
    "fit",
];

pub fn run(args: &SchemaArgs) -> Result<i32> {
    let schema: Value = match args.what.as_str() {
        "job" => json!(schema_for!(plan::Job)),
        "events" => parse::events_schema(),
        "trace" => json!(schema_for!(parse::Trace)),
        "result" => json!(schema_for!(analyze::RunResult)),
        "summary" => json!(schema_for!(analyze::Summary)),
        "comparison" => json!(schema_for!(analyze::Comparison)),
        "history" => json!(schema_for!(analyze::History)),
        "fit" => json!(schema_for!(plan::fit::MemoryFit)),
        "baseline" => json!(schema_for!(analyze::Baseline)),
        "gate" => json!(schema_for!(analyze::GateReport)),
        "config" => json!(schema_for!(config::schema::ConfigFile)),
        "recipe" => json!(schema_for!(recipe::RecipeFile)),
        other => {
            let problem = Problem::new(format!("there is no schema `{other}`"));
            let help = match nearest(other, NAMES) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("expected one of: {}", NAMES.join(", ")),
            };
            return Err(Error::invalid(problem.help(help)));
        }
    };
    print_json(&schema)?;
    Ok(exit::OK)
}
