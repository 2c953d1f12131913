//! Other sources of tprimat itself: the digests of the code are in keys.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;
use tprimat::{
    execute::{self, BuildOptions, EventSink, TrainHost},
    graph::{CodeDigests, Dag, Engine, Options, State, Verdicts, label},
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

#[test]
fn the_source_of_a_stage_is_read_by_it_and_later() {
    let project = Project::built();
    let now = CodeDigests::default;
    let kinds = |code: CodeDigests| -> String {
        let kinds: BTreeSet<String> = stale_with(&project, code)
            .iter()
            .map(|id| id.split(' ').next().unwrap().to_owned())
            .collect();
        kinds.into_iter().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(kinds(now()), "");
    assert_eq!(
        kinds(CodeDigests {
            parse: "other".into(),
            ..now()
        }),
        "aggregate compare parse plot report"
    );
    assert_eq!(
        kinds(CodeDigests {
            aggregate: "other".into(),
            ..now()
        }),
        "aggregate compare plot report"
    );
    assert_eq!(
        kinds(CodeDigests {
            compare: "other".into(),
            ..now()
        }),
        "compare plot report"
    );
    assert_eq!(
        kinds(CodeDigests {
            plot: "other".into(),
            ..now()
        }),
        "plot report"
    );
    assert_eq!(
        kinds(CodeDigests {
            report: "other".into(),
            ..now()
        }),
        "report"
    );
    // It renders the same bytes, so nothing is launched that was not.
    assert_eq!(
        kinds(CodeDigests {
            render: "other".into(),
            ..now()
        }),
        "render"
    );
}

#[test]
fn another_cargo_lock_trains_nothing_even_where_logs_are_lost() {
    let project = Project::built();
    project.lose_log(&format!("{SMALL}#1"));
    // All digests that cover libraries.
    let other = || "other".to_owned();
    let code = CodeDigests {
        render: other(),
        compare: other(),
        plot: other(),
        report: other(),
        ..CodeDigests::default()
    };
    let stale = stale_with(&project, code);
    let kinds: BTreeSet<&str> = stale.iter().filter_map(|id| id.split(' ').next()).collect();
    assert_eq!(
        kinds.into_iter().collect::<Vec<_>>(),
        ["compare", "plot", "render", "report"],
        "{stale:?}"
    );
}

#[test]
fn another_parser_reads_the_logs_again_and_trains_nothing() {
    let project = Project::built();
    let code = || CodeDigests {
        parse: "other".into(),
        ..CodeDigests::default()
    };
    assert_eq!(stale_with(&project, code()).len(), 4 + 2 + 3);
    let summary = with_engine(&project, code(), |engine| {
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
            slurm: run::Commands::new(BTreeMap::new()),
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
        execute::build(engine, &mut statuses, &options, &host, interrupts, &sink).unwrap()
    });
    // It reads the same in them, so nothing after it runs.
    assert_eq!((summary.ran, project.launches()), (4, 4));
    assert_eq!(stale_with(&project, code()), BTreeSet::new());
    // The results of the first parser are there as well.
    project.expect_nothing();
}

#[test]
fn a_lost_log_is_measured_again_when_another_parser_needs_it() {
    let project = Project::built();
    project.lose_log(&format!("{SMALL}#1"));
    project.expect_nothing();
    let stale = stale_with(
        &project,
        CodeDigests {
            parse: "other".into(),
            ..CodeDigests::default()
        },
    );
    let trains: Vec<_> = stale
        .into_iter()
        .filter(|id| id.starts_with("train "))
        .collect();
    assert_eq!(trains, [format!("train {SMALL}#1")]);
}
