//! What a build says at its end: how it went, the figures, where they are.

use std::{path::Path, sync::Arc};

use serde_json::{Value, json};

use super::counts::{RepeatCounts, cells};
use crate::{
    cache::{TaskKind, is_of_one_file},
    cli::{
        args::{BuildArgs, Globals, Require},
        blocked::Coverage,
        compare,
        flags::Cells,
        output::{page, print, print_json},
        plan::{Row, rows},
    },
    error::{Result, exit},
    execute::{self, BuildSummary, Event, EventSink, reading},
    figures::{Comparison, failure_class},
    graph::{Engine, State, Statuses},
    job::FailureClass,
    plan::{CompareConfig, Plan, PlanRequest},
    publish,
    words::plain::counted,
};

/// A build that has run all it could.
pub(super) struct Ended<'a> {
    pub engine: &'a Engine<'a>,
    pub statuses: &'a Statuses,
    pub summary: BuildSummary,
    pub seconds: f64,
    /// Nothing is left to be pushed to the remote cache.
    pub is_shared: bool,
    /// What `--decide` came to: for people, and for `--json`.
    pub goal: Option<(String, Value)>,
    /// What was shared with it, for `--json`.
    pub remote: Value,
}

/// Says how the build ended and shows its figures; its exit code.
pub(super) fn finish(
    globals: &Globals,
    ended: &Ended,
    args: &BuildArgs,
    request: &PlanRequest,
    events: &EventSink,
) -> Result<i32> {
    let Ended {
        engine,
        statuses,
        summary,
        seconds,
        is_shared,
        goal,
        remote,
    } = ended;
    let after = rows(engine, statuses);
    // As the events have it, a task waits where another one failed that it needs.
    let stands = |row: &Row| match row.state {
        State::Failed if row.is_not_started => State::Waiting,
        state => state,
    };
    let count = |state| after.iter().filter(|row| stands(row) == state).count();
    let (comparison, is_unread) = match comparison(engine, statuses)? {
        Ok(comparison) => (comparison, false),
        Err(error) => {
            let message = error.to_string();
            events.report(&Event::Note { message });
            (None, true)
        }
    };
    let verdict = RepeatCounts::of(engine, comparison.as_deref());
    let (contradicted, incomplete) = (verdict.uncounted.contradicted, verdict.incomplete);
    let failed = count(State::Failed);
    let has_nothing_to_do = summary.ran == 0
        && count(State::Fresh) + count(State::Unsupported) == after.len()
        && incomplete == 0
        && *is_shared
        && !args.last.failed;
    let (mut nan, mut log_failed) = (0, 0);
    for run in reading::uncounted_runs(engine, statuses)? {
        match failure_class(&run.why) {
            Some(FailureClass::Nan) => nan += 1,
            Some(_) => log_failed += 1,
            None => {}
        }
    }
    events.report(&Event::BuildFinished {
        ok: count(State::Fresh),
        failed,
        cells: cells(engine, statuses, comparison.as_deref()),
        runs: summary.runs,
        waiting: count(State::Waiting) + count(State::Blocked),
        unsupported: count(State::Unsupported),
        nan,
        log_failed,
        contradicted,
        suspect: verdict.uncounted.suspect,
        unmeasured: verdict.uncounted.unmeasured,
        seconds: *seconds,
        output: Some(publish::output_dir(engine.plan)),
    });
    let coverage = Coverage::of(engine, statuses, comparison.as_deref());
    let in_vain = verdict.uncounted.suspect > 0 && coverage.has_no_results()
        || summary.disturbed > 0 && summary.counted == 0 && summary.failed == 0;
    let code = if after.iter().any(|row| row.state == State::Failed)
        || is_unread
        || verdict.is_bad()
        || in_vain
        || (coverage.is_nothing() && (!args.cached_only || coverage.selected == 0))
        || (args.requires(Require::Remote) && !is_shared)
    {
        exit::FAILED
    } else if args.requires(Require::Complete) && incomplete > 0 {
        exit::STALE
    } else {
        exit::OK
    };
    if in_vain {
        let then = if summary.runs > 0 {
            ", and build again"
        } else {
            ""
        };
        let disturbed = verdict.uncounted.suspect.max(summary.disturbed);
        let what = if verdict.is_bad() || summary.failed > 0 {
            let was = if disturbed == 1 { "was" } else { "were" };
            format!("{} {was} disturbed", counted(disturbed, "run"))
        } else {
            "every run was disturbed".to_owned()
        };
        let message = format!("nothing of this build counts: {what}; see the reasons above{then}");
        events.report(&Event::Note { message });
    }
    let counts: serde_json::Map<String, Value> = State::ALL
        .into_iter()
        .map(|state| (state.name().to_owned(), count(state).into()))
        .collect();
    let of = &verdict.uncounted;
    let mut value = json!({
        "matrix": engine.plan.matrix.name, "ran": summary.ran, "runs_made": summary.runs, "summary": counts,
        "failed_repeats": of.failed, "nan": nan, "log_failed": log_failed, "contradicted": contradicted,
        "suspect": of.suspect, "unmeasured": of.unmeasured, "incomplete": incomplete,
        "blocked": coverage.blocked, "output": publish::output_dir(engine.plan), "remote": remote,
    });
    // What was asked for stands above the figures.
    if let Some((text, _)) = goal.as_ref().filter(|_| !globals.json) {
        print(text)?;
    }
    if globals.json {
        if let Some((_, decided)) = goal {
            value["decided"] = decided.clone();
        }
        print_json("build", &value)?;
    } else if has_nothing_to_do && code == exit::OK && goal.is_none() {
        let (matrix, fresh) = (&engine.plan.matrix.name, count(State::Fresh));
        eprintln!("{matrix}: nothing to do, {fresh} tasks are fresh");
    } else if args.events.as_deref() != Some(Path::new("-")) {
        let of_part = comparison.as_ref().map(|_| of_selected(engine, statuses));
        let shown = of_part.transpose()?.flatten();
        show(
            args,
            engine.plan,
            shown.as_ref().or(comparison.as_deref()),
            &coverage,
        )?;
        let figures = (comparison.as_deref(), is_unread);
        eprintln!("{}", published(engine, statuses, request, figures));
    }
    Ok(code)
}

/// The comparison of the selected cells alone, where others are up to date as well: who builds a part
/// asks for no table of the rest.
fn of_selected(engine: &Engine, statuses: &Statuses) -> Result<Option<Comparison>> {
    let cells = &engine.plan.cells;
    if cells.iter().all(|cell| cell.selected || cell.left_out) {
        return Ok(None);
    }
    let seeds = execute::derived::cell_seeds(engine, statuses)
        .into_iter()
        .zip(cells.iter());
    let seeds = seeds.filter(|(_, cell)| cell.selected || cell.left_out);
    let seeds = seeds.map(|(seed, _)| seed);
    let settings = CompareConfig::of(engine.plan);
    let skip = |_: &str, error| Err(error);
    execute::derived::compare_cells(seeds, &settings, engine.cache, skip).map(Some)
}

/// Prints the figures of a build that cannot go on, as far as it got to them.
pub(super) fn show_measured(args: &BuildArgs, engine: &Engine, statuses: &Statuses) -> Result<()> {
    let state = statuses.get(engine.dag.over_all(TaskKind::Compare)).state;
    let Ok(Ok(Some(comparison))) = comparison(engine, statuses) else {
        return Ok(());
    };
    if state != State::Fresh || args.events.as_deref() == Some(Path::new("-")) {
        return Ok(());
    }
    let coverage = Coverage::of(engine, statuses, Some(&comparison));
    show(args, engine.plan, Some(&comparison), &coverage)
}

/// Prints the figures, and which cells have none.
fn show(
    args: &BuildArgs,
    plan: &Plan,
    comparison: Option<&Comparison>,
    coverage: &Coverage,
) -> Result<()> {
    if let Some(comparison) = comparison {
        let Cells {
            only, skip, where_, ..
        } = &args.selection.cells;
        let filters = [("--only", only), ("--skip", skip), ("--where", where_)];
        let filters = filters
            .iter()
            .flat_map(|(option, values)| values.iter().flat_map(|value| [*option, value.as_str()]));
        let details: Vec<&str> = filters.chain(["--details"]).collect();
        let commands = crate::report::Commands {
            details: plan.command("compare", &details),
            build: plan.command("build", &[]),
            // What this build did not measure, the same build would not measure either.
            can_run: args.cached_only.then(|| compare::can_run(plan, comparison)),
            plan: plan.command("plan", &[]),
        };
        print(&crate::report::glance(
            comparison,
            false,
            &commands,
            &page(),
        ))?;
    }
    if let Some(text) = coverage.text(&plan.command("plan", &[])) {
        eprintln!("{}", text.trim_end());
    }
    Ok(())
}

/// What stands in the output folder now.
fn published(
    engine: &Engine,
    statuses: &Statuses,
    request: &PlanRequest,
    (comparison, is_unread): (Option<&Comparison>, bool),
) -> String {
    let folder = publish::output_dir(engine.plan);
    let output = folder
        .strip_prefix(&request.root)
        .unwrap_or(&folder)
        .display();
    let report = statuses.get(engine.dag.over_all(TaskKind::Report));
    if report.state == State::Fresh && report.outputs().is_empty() {
        let stays = if folder.join(publish::NOTICE).is_file() {
            "keeps the figures of an earlier build, marked as outdated"
        } else {
            "stays as it was"
        };
        format!("nothing was published, since no cell has figures now; {output} {stays}")
    } else if is_unread || report.state == State::Failed {
        format!("nothing was published; {output} stays as it was")
    } else if comparison.is_none_or(|comparison| comparison.rows.is_empty()) {
        format!("a page that says what is not measured: {output}")
    } else {
        format!(
            "results, table and picture: {output}; the page: {output}/{}",
            crate::report::PAGE
        )
    }
}

/// What compare left, if it left anything; the inner error is a file that is damaged or gone.
fn comparison(engine: &Engine, statuses: &Statuses) -> Result<Result<Option<Arc<Comparison>>>> {
    let status = statuses.get(engine.dag.over_all(TaskKind::Compare));
    let Some(stored) = status.outputs().first() else {
        return Ok(Ok(None));
    };
    match execute::derived::read_comparison(engine.cache, Some(stored)) {
        Err(error) if !is_of_one_file(&error) => Err(error),
        read => Ok(read.map(Some)),
    }
}
