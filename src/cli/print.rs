//! `print`: the task graph as DOT or Mermaid, the JSON schema of a format, a shell's completions.

use std::fmt::Write as _;

use schemars::schema_for;
use serde_json::{Value, json};

use super::{
    args::{Globals, GraphArgs, PrintCommand, SchemaName},
    complete,
    flags::Measured,
    output::{json_text, print, print_document},
    project,
    session::Session,
};
use crate::{
    config,
    error::{Result, exit},
    figures,
    graph::label,
    logs, matrix, plan, recipe,
};

pub fn run(globals: &Globals, command: &PrintCommand) -> Result<i32> {
    match command {
        PrintCommand::Graph(args) => graph(globals, args)?,
        PrintCommand::Schema { what } => print_document(&schema(*what))?,
        PrintCommand::Completions { shell } => print(&complete::script(*shell))?,
    }
    Ok(exit::OK)
}

fn graph(globals: &Globals, args: &GraphArgs) -> Result<()> {
    let measured = Measured {
        repeats: args.repeats.clone(),
        ..Measured::default()
    };
    let Session { plan, dag, .. } = Session::open(project::request(
        globals,
        &args.common,
        Some(&args.cells),
        &measured,
    )?)?;
    let is_shown = |node| {
        let task = dag.task(node);
        task.kind.is_over_all() || plan.cells[task.cell].selected
    };
    let mut text = String::from("digraph tprimat {\n  rankdir=LR;\n  node [shape=box];\n");
    for node in dag.graph.node_indices().filter(|n| is_shown(*n)) {
        let name = label(&plan, &dag.task(node));
        let _ = writeln!(text, "  n{} [label={name:?}];", node.index());
    }
    let ends = |edge| dag.graph.edge_endpoints(edge);
    for (from, to) in dag.graph.edge_indices().filter_map(ends) {
        if is_shown(from) && is_shown(to) {
            let _ = writeln!(text, "  n{} -> n{};", from.index(), to.index());
        }
    }
    text.push_str("}\n");
    print(&text)
}

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
        SchemaName::Blame => json!(schema_for!(figures::blame::Blame)),
        SchemaName::Config => {
            let mut schema = json!(schema_for!(config::schema::ConfigFile));
            with_aliases(&mut schema);
            schema
        }
        SchemaName::Matrix => {
            serde_json::from_str(matrix::SCHEMA).expect("schemas/matrix.json is JSON")
        }
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
