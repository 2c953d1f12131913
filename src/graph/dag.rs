//! The DAG: which tasks there are and what each waits for.
//!
//! Per cell `render`; per repeat `train → parse`; per cell `aggregate`; then `compare → plot → report`.

use petgraph::{
    algo::toposort,
    graph::{DiGraph, NodeIndex},
};

use crate::{
    cache::TaskKind,
    error::{Error, Problem, Result},
    plan::{Plan, Support},
};

/// One task. `cell` and `repeat` are 0 where the kind has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Task {
    pub kind: TaskKind,
    pub cell: u32,
    /// Counted from 1.
    pub repeat: u32,
}

pub struct Dag {
    pub graph: DiGraph<Task, ()>,
    /// Every task after all that it waits for.
    pub order: Vec<NodeIndex>,
    /// Of each cell, the node of its render; its aggregate, and train and parse of each repeat, follow.
    first: Vec<NodeIndex>,
}

impl Dag {
    pub fn new(plan: &Plan) -> Result<Self> {
        let per_cell = plan.cells.first().map_or(1, |c| 2 + 2 * c.repeats as usize);
        let mut graph = DiGraph::with_capacity(plan.cells.len() * per_cell + 3, plan.cells.len() * per_cell + 3);
        let mut first = Vec::with_capacity(plan.cells.len());
        let add = |graph: &mut DiGraph<Task, ()>, kind, cell, repeat| graph.add_node(Task { kind, cell, repeat });
        let compare = add(&mut graph, TaskKind::Compare, 0, 0);
        for (cell, plan) in (0u32..).zip(&plan.cells) {
            let render = add(&mut graph, TaskKind::Render, cell, 0);
            first.push(render);
            if matches!(plan.support, Support::Unsupported(_)) {
                continue;
            }
            let aggregate = add(&mut graph, TaskKind::Aggregate, cell, 0);
            for repeat in 1..=plan.repeats {
                let train = add(&mut graph, TaskKind::Train, cell, repeat);
                let parse = add(&mut graph, TaskKind::Parse, cell, repeat);
                graph.add_edge(render, train, ());
                graph.add_edge(train, parse, ());
                graph.add_edge(parse, aggregate, ());
            }
            graph.add_edge(aggregate, compare, ());
        }
        let plot = add(&mut graph, TaskKind::Plot, 0, 0);
        let report = add(&mut graph, TaskKind::Report, 0, 0);
        graph.add_edge(compare, plot, ());
        graph.add_edge(compare, report, ());
        graph.add_edge(plot, report, ());
        let order = toposort(&graph, None).map_err(|cycle| {
            let label = label(plan, &graph[cycle.node_id()]);
            Error::invalid(Problem::new(format!("task `{label}` waits for itself")))
        })?;
        Ok(Self { graph, order, first })
    }

    /// # Panics
    /// If the plan does not have this task.
    #[must_use]
    pub fn node(&self, kind: TaskKind, cell: u32, repeat: u32) -> NodeIndex {
        let in_cell = |offset: u32| self.first[cell as usize].index() + offset as usize;
        let node = NodeIndex::new(match kind {
            TaskKind::Compare => 0,
            TaskKind::Render => in_cell(0),
            TaskKind::Aggregate => in_cell(1),
            TaskKind::Train => in_cell(2 * repeat),
            TaskKind::Parse => in_cell(2 * repeat + 1),
            TaskKind::Plot => self.graph.node_count() - 2,
            TaskKind::Report => self.graph.node_count() - 1,
        });
        assert_eq!(self.graph[node], Task { kind, cell, repeat }, "the plan has no such task");
        node
    }

    #[must_use]
    pub fn task(&self, node: NodeIndex) -> Task {
        self.graph[node]
    }
}

/// A task's name: `train cpu/native/llama-tiny/single#2`.
#[must_use]
pub fn label(plan: &Plan, task: &Task) -> String {
    let kind = super::key::kind_name(task.kind);
    match task.kind {
        TaskKind::Render | TaskKind::Aggregate => format!("{kind} {}", plan.cells[task.cell as usize].id),
        TaskKind::Train | TaskKind::Parse => {
            format!("{kind} {}#{}", plan.cells[task.cell as usize].id, task.repeat)
        }
        TaskKind::Compare | TaskKind::Plot | TaskKind::Report => format!("{kind} {}", plan.matrix.name),
    }
}
