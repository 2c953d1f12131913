//! Other sources of tprimat itself: their digests are in keys.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;
use tprimat::{
    cache::TaskKind,
    execute::{self, BuildOptions, EventSink, TrainHost},
    graph::{CodeDigests, Dag, Engine, Options, State, TaskId, Verdicts, label},
    plan::{CompareConfig, Plan, PlanRequest},
    run,
};

use crate::support::{Project, TPRIMAT, tasks::SMALL};

/// A project through the library, where the digests of tprimat's own sources may be others.
fn with_engine<T>(project: &Project, code: CodeDigests, look: impl FnOnce(&Engine) -> T) -> T {
    let plan = Plan::load(&PlanRequest {
        root: project.root().to_owned(),
        ..PlanRequest::default()
    })
    .unwrap();
    let (dag, cache) = (Dag::new(&plan).unwrap(), project.cache());
    look(&Engine {
        plan: &plan,
        dag: &dag,
        cache: &cache,
        code,
        options: Options::default(),
        compare_settings: json!(CompareConfig::of(&plan)),
        trainings: std::sync::OnceLock::new(),
        written: std::sync::OnceLock::new(),
        earlier: std::sync::OnceLock::new(),
        measured: std::collections::BTreeMap::new(),
        verdicts: Verdicts::default(),
    })
}

fn stale_with(project: &Project, code: CodeDigests) -> BTreeSet<String> {
    with_engine(project, code, |engine| {
        let statuses = engine.evaluate_all().unwrap();
        let is_stale = |n: &petgraph::graph::NodeIndex| statuses.get(*n).state == State::Stale;
        engine
            .dag
            .graph
            .node_indices()
            .filter(is_stale)
            .map(|n| label(engine.plan, &engine.dag.task(n)))
            .collect()
    })
}

/// With an analysis that has this name instead of the present digest.
fn analysis(name: &str) -> CodeDigests {
    CodeDigests {
        analysis: name.to_owned(),
        ..CodeDigests::default()
    }
}

fn kinds(labels: &BTreeSet<String>) -> String {
    let kinds: BTreeSet<&str> = labels
        .iter()
        .filter_map(|id| id.split(' ').next())
        .collect();
    kinds.into_iter().collect::<Vec<_>>().join(" ")
}

#[test]
fn another_analysis_makes_all_again_that_was_derived() {
    let project = Project::built();
    let stale = |code| kinds(&stale_with(&project, code));
    assert_eq!(stale(CodeDigests::default()), "");
    assert_eq!(
        stale(analysis("other")),
        "aggregate compare parse plot render report"
    );
    // The trainer of these runs is another one.
    let native = CodeDigests {
        native: "other".into(),
        ..CodeDigests::default()
    };
    assert_eq!(stale(native), "");
}

#[test]
fn what_changed_is_named_after_the_analysis() {
    let project = Project::built();
    let why = with_engine(&project, analysis("other"), |engine| {
        let statuses = engine.evaluate_all().unwrap();
        let is_parse = |of: &TaskId| engine.dag.task(*of).kind == TaskKind::Parse;
        let node = engine.dag.order.iter().copied().find(is_parse).unwrap();
        let task = label(engine.plan, &engine.dag.task(node));
        let reason = statuses.get(node).reason.clone().unwrap();
        reason.describe(engine, TaskKind::Parse, &task, || {
            engine.present(node, &statuses)
        })
    });
    assert_eq!(why, "tprimat's own analysis changed");
}

/// Makes what is stale with these digests.
fn build_with(project: &Project, code: CodeDigests) {
    with_engine(project, code, |engine| {
        let host = TrainHost {
            project: project.root().to_owned(),
            runs: project.path("cache/runs"),
            lock_dir: project.path("locks"),
            tprimat: TPRIMAT.into(),
            native: None,
            native_seen: std::sync::OnceLock::new(),
            hostname: String::new(),
            caller_env: BTreeMap::new(),
            grace_seconds: 1.0,
            gpus: Vec::new(),
            systems: run::Systems::default(),
            folders: execute::Folders::default(),
            sharing: None,
        };
        let (options, sink) = (
            BuildOptions {
                jobs: 2,
                fail_fast: false,
            },
            EventSink::default(),
        );
        let interrupts = execute::install_interrupt_handler().unwrap();
        let mut statuses = engine.evaluate_all().unwrap();
        let built = execute::build(engine, &mut statuses, &options, &host, interrupts, &sink);
        built.unwrap();
    });
}

#[test]
fn another_analysis_reads_the_logs_again_and_trains_nothing() {
    let project = Project::built();
    assert_eq!(stale_with(&project, analysis("other")).len(), 2 + 4 + 2 + 3);
    build_with(&project, analysis("other"));
    assert_eq!(project.launches(), 4);
    assert_eq!(stale_with(&project, analysis("other")), BTreeSet::new());
    // What the first one made is there as well. Published files say of which summary they are.
    project.expect(&["report m"], &["report m"]);
}

/// Nobody wants to train again because tprimat was updated.
#[test]
fn where_a_log_is_lost_the_result_of_another_analysis_stands() {
    let project = Project::built();
    let first = format!("{SMALL}#1");
    project.lose_log(&first);
    let stale = stale_with(&project, analysis("other"));
    assert_eq!(kinds(&stale), "aggregate compare parse plot render report");
    assert!(!stale.contains(&format!("parse {first}")), "{stale:?}");
    build_with(&project, analysis("other"));
    assert_eq!(project.launches(), 4);
    assert_eq!(stale_with(&project, analysis("other")), BTreeSet::new());
    // Where the result is lost too, the last summary that was made of it.
    project.lose_result(&first);
    let stale = stale_with(&project, analysis("third"));
    assert!(!stale.contains(&format!("aggregate {SMALL}")), "{stale:?}");
    assert!(!kinds(&stale).contains("train"), "{stale:?}");
    build_with(&project, analysis("third"));
    assert_eq!(project.launches(), 4);
    assert_eq!(stale_with(&project, analysis("third")), BTreeSet::new());
}

/// What another analysis read of another job, or of another attempt, is no result of this one.
#[test]
fn a_lost_log_is_measured_again_when_nothing_was_read_from_it_for_this_job() {
    let project = Project::built();
    let first = format!("{SMALL}#1");
    project
        .lose_log(&first)
        .lose_result(&first)
        .lose_summary(SMALL);
    let stale = stale_with(&project, analysis("other"));
    let trains = stale.iter().filter(|id| id.starts_with("train "));
    assert_eq!(trains.collect::<Vec<_>>(), [&format!("train {first}")]);
}
