//! `gate`: has any cell become slower than a baseline? Trains nothing without --decide: what is stale fails.

use std::path::Path;

use serde_json::Value;

use super::{
    args::{self, Annotations, GateArgs, Globals},
    baseline, build,
    output::{print, print_commands, print_document},
    project,
    session::Session,
    targets,
};
use crate::{
    error::{Error, Problem, Result, exit, nearest},
    execute::history,
    figures::{
        self, AbsentState, BASELINE_SCHEMA, Baseline, ChangedSetting, GateCell, GateInput,
        GateReport, GateVerdict, all_hosts,
        codes::{CONTRADICTED, FAILED, SLOWER},
    },
    files::{Durability, read_to_string, write_atomically},
    plan::{Asked, Plan, Prepared, UNWATCHED},
    recipe::COMMAND,
    report,
    results::{Reason, words::few},
};

pub fn run(globals: &Globals, args: &GateArgs) -> Result<i32> {
    let path = match (&args.write, &args.baseline) {
        (Some(path), _) => return baseline::write(globals, &args.selection, path),
        (None, Some(path)) => path,
        (None, None) => return Err(Error::Internal("clap asks for one of the two".to_owned())),
    };
    let limit = share(&args.max_regression)?;
    let mut request = project::matrix_request(globals, &args.selection)?;
    // With --decide the runs that a cell may have, not those that are compared.
    request.repeats.take_if(|_| args.decide);
    let file = path.display().to_string();
    let asked = Asked::of(&request);
    let baseline = read_baseline(path, &asked)?;
    let write_one = asked.command("gate", &["--write", &file]);
    if args.decide {
        build::until_gated(globals, args, &baseline, limit)?;
    }
    let session = Session::open(request)?;
    let files = [
        ("--junit", args.junit.as_deref()),
        ("--markdown", args.markdown.as_deref()),
    ];
    targets::refuse_files(&session.plan, &files, &[path.as_path()])?;
    let inputs = session.gate_inputs()?;
    let mut gate = figures::gate(&baseline, &inputs, limit);
    add_changed_inputs(&mut gate, &baseline, &inputs, &session);
    add_unwatched(&mut gate, &session.plan);
    let write =
        |path: &Path, text: String| write_atomically(path, text.as_bytes(), Durability::Plain);
    if let Some(path) = &args.junit {
        write(path, report::gate_junit(&gate))?;
    }
    if let Some(path) = &args.markdown {
        write(path, report::gate_markdown(&gate))?;
    }
    if globals.json {
        print_document(&gate)?;
    } else {
        print(&report::gate_text(&gate))?;
        print(&origin(path, &baseline))?;
        print(&advice(&gate, &session.plan, &write_one))?;
    }
    match args.annotations {
        Some(Annotations::Github) if globals.json => eprint!("{}", report::gate_annotations(&gate)),
        Some(Annotations::Github) => print_commands(&report::gate_annotations(&gate))?,
        None => {}
    }
    Ok(match gate.verdict {
        GateVerdict::Fail => exit::REGRESSION,
        GateVerdict::Pass => exit::OK,
        _ => exit::INCONCLUSIVE,
    })
}

/// Which files were edited since the baseline, where the cache still has its runs: they may change
/// what a cell does as well as how fast it does it.
fn add_changed_inputs(
    gate: &mut GateReport,
    baseline: &Baseline,
    inputs: &[GateInput],
    session: &Session,
) {
    let now = Baseline::of(&baseline.matrix, inputs);
    let first = |baseline: &'_ Baseline, cell: &str| {
        let of = baseline.cells.iter().find(|of| of.cell == cell)?;
        of.attempts.first().cloned()
    };
    let compared: Vec<(usize, String, String)> = gate
        .cells
        .iter()
        .enumerate()
        .filter(|(_, cell)| cell.ratio.is_some() && !cell.same_measurements)
        .filter_map(|(at, cell)| Some((at, first(baseline, &cell.cell)?, first(&now, &cell.cell)?)))
        .collect();
    if compared.is_empty() {
        return;
    }
    let pairs: Vec<(&str, &str, &str)> = compared
        .iter()
        .map(|(at, then, now)| (gate.cells[*at].cell.as_str(), then.as_str(), now.as_str()))
        .collect();
    let changed = history::changed_inputs(&session.cache, &pairs);
    for ((at, ..), changes) in compared.iter().zip(changed) {
        if !changes.is_empty() {
            let changes: Vec<String> = changes.iter().map(ChangedSetting::words).collect();
            let text = format!("changed since the baseline: {}", changes.join(", "));
            gate.cells[*at].notes.push(Reason::beside("changed", text));
        }
    }
    let key = |baseline: &Baseline, cell: &str| {
        let of = baseline.cells.iter().find(|of| of.cell == cell)?;
        of.key.clone()
    };
    const TOLD: [&str; 4] = ["changed", "field", "environment", "device"];
    for (at, ..) in compared {
        let cell = &mut gate.cells[at];
        let keys = key(baseline, &cell.cell).zip(key(&now, &cell.cell));
        let is_told = cell
            .notes
            .iter()
            .any(|note| TOLD.iter().any(|code| note.is(code)));
        if !is_told && keys.is_some_and(|(then, now)| then != now) {
            let text = "something that its runs depend on was changed since the baseline, whose runs are not in this cache";
            cell.notes.push(Reason::beside("changed", text));
        }
    }
}

/// A cell that was not measured since the baseline passes only as far as tprimat knows what its runs
/// read.
fn add_unwatched(gate: &mut GateReport, plan: &Plan) {
    for cell in gate.cells.iter_mut().filter(|cell| cell.same_measurements) {
        let prepared = plan.find(&cell.cell).ok().and_then(|id| plan.prepared(id));
        let is_open = |of: &&Prepared| {
            of.job().framework.contains_key(COMMAND) && of.resolved.inputs.is_none()
        };
        if prepared.filter(is_open).is_some() {
            cell.notes.push(Reason::beside("unwatched", UNWATCHED));
        }
        let outside = prepared.and_then(|of| of.inputs.unwatched_outside());
        cell.notes
            .extend(outside.map(|text| Reason::beside("unwatched_outside", text)));
    }
}

/// `baseline: b.json, measured 2026-03-01 on node1`
fn origin(path: &Path, baseline: &Baseline) -> String {
    let ends = baseline.cells.iter().filter_map(|cell| cell.measured);
    let last = ends.map(|[_, last]| last).reduce(f64::max);
    let last = last.and_then(|seconds| jiff::Timestamp::from_second(seconds as i64).ok());
    let mut text = format!("baseline: {}", path.display());
    if let Some(last) = last {
        text += &format!(", measured {}", last.strftime("%Y-%m-%d"));
    }
    let hosts = baseline.cells.iter().flat_map(|cell| &cell.hosts);
    if let Some(hosts) = all_hosts(hosts).filter(|hosts| !hosts.is_empty()) {
        let hosts: Vec<&str> = hosts.into_iter().collect();
        text += &format!(" on {}", few(&hosts));
    }
    text + "\n"
}

/// What to do about the cells that did not pass, a line for each kind of reason. `write_one`: the
/// command that writes this baseline anew.
fn advice(gate: &GateReport, plan: &Plan, write_one: &str) -> String {
    let of = |is: fn(&GateCell) -> bool| -> Vec<&str> {
        let cells = gate.cells.iter().filter(|cell| is(cell));
        cells.map(|cell| cell.cell.as_str()).collect()
    };
    let mut lines = Vec::new();
    let slower = of(|cell| cell.reason.is(SLOWER));
    if let [first, ..] = slower[..] {
        let history = plan.command("history", &[first]);
        lines.push(format!(
            "`{history}` shows what changed; `{write_one}` accepts the new speed"
        ));
    }
    let bad = of(|cell| cell.reason.is(FAILED) || cell.reason.is(CONTRADICTED));
    if let [first, ..] = bad[..] {
        let show = plan.command("show", &[first]);
        lines.push(format!("`{show}` says what went wrong and what to do"));
    }
    // They have no figures as they are configured now, and a build would measure them.
    let missing = of(|cell| {
        let state = AbsentState::Missing.name();
        cell.reason
            .values
            .get("state")
            .is_some_and(|own| own == state)
    });
    if !missing.is_empty() {
        lines.push(plan.told_measuring(&missing));
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}

fn share(text: &str) -> Result<f64> {
    let refused = || {
        Error::refused(
            format!("--max-regression {text}: not a share between 0 and 1"),
            "three percent is `3%` or `0.03`",
        )
    };
    args::share(text).ok_or_else(refused)
}

/// A baseline that can be believed as far as its figures go.
pub(super) fn read_baseline(path: &Path, asked: &Asked) -> Result<Baseline> {
    let name = path.display().to_string();
    let write_to = |file: &str| asked.command("gate", &["--write", file]);
    // What is there and is not a baseline may be needed, so no command that replaces it is named.
    let (help, anew) = (
        format!("`{}` writes one", write_to("FILE")),
        format!("`{}` writes it anew", write_to(&name)),
    );
    if !path.exists() {
        let near = beside(path).map(|near| format!("did you mean `{near}`? "));
        let problem = Problem::new(format!("there is no baseline `{name}`"));
        return Err(Error::invalid(problem.help(format!(
            "{}`{}` writes one",
            near.unwrap_or_default(),
            write_to(&name)
        ))));
    }
    let text = read_to_string(path)?;
    let wrong = |what: String, help: &str| {
        Error::invalid(Problem::new(format!("{name} {what}")).help(help))
    };
    let value: Value = serde_json::from_str(&text)
        .map_err(|error| wrong(format!("is not JSON: {error}"), &help))?;
    match value.get("schema_version").and_then(Value::as_str) {
        Some(BASELINE_SCHEMA) => {}
        Some(other) if other.starts_with("tprimat.baseline/") => {
            let what = format!("is a `{other}`; this tprimat reads `{BASELINE_SCHEMA}`");
            return Err(wrong(
                what,
                &format!("write it again with this version: `{}`", write_to(&name)),
            ));
        }
        Some(other) => return Err(wrong(format!("is not a baseline, but a `{other}`"), &help)),
        None => {
            return Err(wrong(
                "is not a baseline: it has no `schema_version`".to_owned(),
                &help,
            ));
        }
    }
    let baseline: Baseline = serde_json::from_value(value)
        .map_err(|error| wrong(format!("is a damaged baseline: {error}"), &anew))?;
    match baseline.fault() {
        Some(fault) => Err(wrong(format!("is a damaged baseline: {fault}"), &anew)),
        None => Ok(baseline),
    }
}

/// The JSON file of the same folder whose name is the nearest.
fn beside(path: &Path) -> Option<String> {
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    let files = std::fs::read_dir(folder.unwrap_or(Path::new("."))).ok()?;
    let names: Vec<String> = files
        .flatten()
        .filter_map(|file| file.file_name().into_string().ok())
        .filter(|name| name.ends_with(".json"))
        .collect();
    let near = nearest(
        path.file_name()?.to_str()?,
        names.iter().map(String::as_str),
    )?;
    Some(folder.map_or_else(
        || near.to_owned(),
        |folder| folder.join(near).display().to_string(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_read_as_people_write_them() {
        for (text, wanted) in [
            ("3%", 0.03),
            ("0.03", 0.03),
            (" 3 % ", 0.03),
            ("0", 0.0),
            ("0.5%", 0.005),
            ("99%", 0.99),
        ] {
            assert!((share(text).unwrap() - wanted).abs() < 1e-12, "{text}");
        }
        for text in [
            "3",
            "",
            "%",
            "-1%",
            "100%",
            "nan",
            "inf",
            "NaN%",
            "3 percent",
            "1e999",
        ] {
            assert!(share(text).is_err(), "{text}");
        }
    }
}
