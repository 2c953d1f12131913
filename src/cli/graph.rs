//! `graph`: the DAG as DOT or Mermaid.

use std::fmt::Write as _;

use super::{
    args::{Globals, GraphArgs, GraphFormat},
    flags::Measured,
    output::print,
    project,
    session::Session,
};
use crate::{
    error::{Result, exit},
    graph::label,
};

pub fn run(globals: &Globals, args: &GraphArgs) -> Result<i32> {
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
    let mut text = String::from(match args.format {
        GraphFormat::Dot => "digraph tprimat {\n  rankdir=LR;\n  node [shape=box];\n",
        GraphFormat::Mermaid => "graph LR\n",
    });
    for node in dag.graph.node_indices().filter(|n| is_shown(*n)) {
        let name = label(&plan, &dag.task(node));
        let _ = match args.format {
            GraphFormat::Dot => writeln!(text, "  n{} [label={:?}];", node.index(), name),
            GraphFormat::Mermaid => {
                writeln!(text, "  n{}[\"{}\"]", node.index(), mermaid(&name))
            }
        };
    }
    for edge in dag.graph.edge_indices() {
        if let Some((from, to)) = dag
            .graph
            .edge_endpoints(edge)
            .filter(|(a, b)| is_shown(*a) && is_shown(*b))
        {
            let arrow = if matches!(args.format, GraphFormat::Dot) {
                "->"
            } else {
                "-->"
            };
            let end = if matches!(args.format, GraphFormat::Dot) {
                ";"
            } else {
                ""
            };
            let _ = writeln!(text, "  n{} {arrow} n{}{end}", from.index(), to.index());
        }
    }
    if matches!(args.format, GraphFormat::Dot) {
        text.push_str("}\n");
    }
    print(&text)?;
    Ok(exit::OK)
}

/// A text as Mermaid shows it: `#` begins its escapes, so it goes first.
fn mermaid(text: &str) -> String {
    text.replace('#', "#35;").replace('"', "#quot;")
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_quote_is_escaped_once() {
        assert_eq!(super::mermaid("a\"b#2"), "a#quot;b#35;2");
    }
}
