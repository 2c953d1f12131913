//! The DAG: which tasks there are and what each waits for.
//!
//! Per cell `render`; per repeat `train → parse`; per cell `aggregate`; then `compare → plot →
//! report`.

use petgraph::{
    algo::toposort,
    graph::{DiGraph, NodeIndex},
};

use crate::{
    cache::TaskKind,
    error::{Error, Problem, Result},
    matrix::{CellId, PerCell},
    plan::{Plan, Support},
};

/// A task, by its node.
pub type TaskId = NodeIndex;

/// One task. A task of the whole matrix (compare, plot, report) has the first cell and repeat 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Task {
    pub kind: TaskKind,
    pub cell: CellId,
    /// Counted from 1.
    pub repeat: u32,
}

pub struct Dag {
    pub graph: DiGraph<Task, ()>,
    /// Every task after all that it waits for.
    pub order: Vec<TaskId>,
    /// The node of each cell's render; the cell's aggregate, and train and parse of each repeat, follow
    /// it.
    first: PerCell<TaskId>,
}

impl Dag {
    pub fn new(plan: &Plan) -> Result<Self> {
        let per_cell = plan.cells.first().map_or(1, |c| 2 + 2 * c.repeats as usize);
        let mut graph = DiGraph::with_capacity(
            plan.cells.len() * per_cell + 3,
            plan.cells.len() * per_cell + 3,
        );
        let mut first = Vec::with_capacity(plan.cells.len());
        let add = |graph: &mut DiGraph<Task, ()>, kind, cell, repeat| {
            graph.add_node(Task { kind, cell, repeat })
        };
        let over_all = |graph: &mut _, kind| add(graph, kind, CellId::default(), 0);
        let compare = over_all(&mut graph, TaskKind::Compare);
        for (cell, plan) in plan.cells.with_ids() {
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
        let plot = over_all(&mut graph, TaskKind::Plot);
        let report = over_all(&mut graph, TaskKind::Report);
        graph.add_edge(compare, plot, ());
        graph.add_edge(compare, report, ());
        graph.add_edge(plot, report, ());
        let order = toposort(&graph, None).map_err(|cycle| {
            let label = label(plan, &graph[cycle.node_id()]);
            Error::invalid(Problem::new(format!("task `{label}` waits for itself")))
        })?;
        Ok(Self {
            graph,
            order,
            first: first.into(),
        })
    }

    /// # Panics
    /// If the plan does not have this task.
    #[must_use]
    pub fn node(&self, kind: TaskKind, cell: CellId, repeat: u32) -> TaskId {
        self.find(kind, cell, repeat)
            .expect("the plan does not have this task")
    }

    /// `None`: the plan does not have this task, since its cell cannot be measured.
    #[must_use]
    pub fn find(&self, kind: TaskKind, cell: CellId, repeat: u32) -> Option<TaskId> {
        let in_cell = |offset: u32| self.first[cell].index() + offset as usize;
        let node = NodeIndex::new(match kind {
            TaskKind::Compare => 0,
            TaskKind::Render => in_cell(0),
            TaskKind::Aggregate => in_cell(1),
            TaskKind::Train => in_cell(2 * repeat),
            TaskKind::Parse => in_cell(2 * repeat + 1),
            TaskKind::Plot => self.graph.node_count() - 2,
            TaskKind::Report => self.graph.node_count() - 1,
        });
        let task = Task { kind, cell, repeat };
        (self.graph.node_weight(node) == Some(&task)).then_some(node)
    }

    /// The one task of a kind that there is once for the whole matrix.
    #[must_use]
    pub fn over_all(&self, kind: TaskKind) -> TaskId {
        self.node(kind, CellId::default(), 0)
    }

    #[must_use]
    pub fn task(&self, node: TaskId) -> Task {
        self.graph[node]
    }
}

/// A task's name: `train cpu/native/llama-tiny/single#2`.
#[must_use]
pub fn label(plan: &Plan, task: &Task) -> String {
    let kind = task.kind.name();
    match task.kind {
        TaskKind::Render | TaskKind::Aggregate => format!("{kind} {}", plan.cells[task.cell].id),
        TaskKind::Train | TaskKind::Parse => {
            format!("{kind} {}#{}", plan.cells[task.cell].id, task.repeat)
        }
        TaskKind::Compare | TaskKind::Plot | TaskKind::Report => {
            format!("{kind} {}", plan.matrix.name)
        }
    }
}
