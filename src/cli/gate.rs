//! `gate`: has any cell become slower than a baseline? Trains nothing: what is stale fails.

use std::{collections::BTreeSet, path::Path};

use tprimat_words::part;

use serde_json::Value;

use super::{
    args::{Annotations, GateArgs, Globals},
    output::{print, print_commands, print_document},
    project,
    session::Session,
    targets,
};
use crate::{
    error::{Error, Problem, Result, Source, exit, nearest},
    execute::history,
    figures::{
        self, BASELINE_SCHEMA, Baseline, GateCell, GateInput, GateNote, GateReason, GateReport,
        GateVerdict,
    },
    files::{Durability, read_to_string, write_atomically},
    report, sentences,
};

pub fn run(globals: &Globals, args: &GateArgs) -> Result<i32> {
    let limit = share(&args.max_regression)?;
    let baseline = read_baseline(&args.baseline)?;
    let session = Session::open(project::matrix_request(globals, &args.selection)?)?;
    let files = [
        ("--junit", args.junit.as_deref()),
        ("--markdown", args.markdown.as_deref()),
    ];
    targets::refuse_files(&session.plan, &files, &[&args.baseline])?;
    let inputs = session.gate_inputs()?;
    let mut gate = figures::gate(&baseline, &inputs, limit);
    add_changed_inputs(&mut gate, &baseline, &inputs, &session);
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
        print(&origin(&args.baseline, &baseline))?;
        print(&advice(&gate))?;
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
            gate.cells[*at].notes.push(GateNote::Changed(changes));
        }
    }
}

/// `baseline: b.json, measured 2026-03-01 to 2026-03-02 on node1`
fn origin(path: &Path, baseline: &Baseline) -> String {
    let times = || baseline.cells.iter().filter_map(|cell| cell.measured);
    let first = times().map(|[first, _]| first).reduce(f64::min);
    let last = times().map(|[_, last]| last).reduce(f64::max);
    let day = |seconds: f64| {
        let time = jiff::Timestamp::from_second(seconds as i64).ok()?;
        Some(time.strftime("%Y-%m-%d").to_string())
    };
    let mut text = format!("baseline: {}", path.display());
    if let (Some(first), Some(last)) = (first.and_then(day), last.and_then(day)) {
        text += &format!(", measured {first}");
        if last != first {
            text += &format!(" to {last}");
        }
    }
    let hosts: BTreeSet<&str> = baseline
        .cells
        .iter()
        .flat_map(|cell| &cell.hosts)
        .map(String::as_str)
        .filter(|host| !host.is_empty())
        .collect();
    if !hosts.is_empty() {
        let hosts: Vec<&str> = hosts.into_iter().collect();
        text += &format!(" on {}", sentences::few(&hosts));
    }
    text + "\n"
}

/// What to do about the first cell that failed.
fn advice(gate: &GateReport) -> String {
    let is_slower = |cell: &&GateCell| matches!(cell.reason, GateReason::Slower { .. });
    gate.cells
        .iter()
        .find(is_slower)
        .map_or_else(String::new, |cell| {
            format!(
                "`tprimat history {}` shows what changed; `tprimat baseline -o FILE` accepts the new speed\n",
                cell.cell
            )
        })
}

/// `3%` or `0.03` → 0.03.
fn share(text: &str) -> Result<f64> {
    let (number, unit) = match text.trim().strip_suffix('%') {
        Some(percent) => (percent.trim_end(), 100.0),
        None => (text.trim(), 1.0),
    };
    match number.parse::<f64>().map(|n| n / unit) {
        Ok(share) if (0.0..1.0).contains(&share) => Ok(share),
        _ => {
            let problem = Problem::new(format!(
                "--max-regression {text}: not a share between 0 and 1"
            ));
            Err(Error::invalid(
                problem.help("three percent is `3%` or `0.03`"),
            ))
        }
    }
}

/// A baseline that can be believed as far as its figures go.
fn read_baseline(path: &Path) -> Result<Baseline> {
    const HELP: &str = "`tprimat baseline -o FILE` writes one";
    let text = read_to_string(path)?;
    let name = path.display().to_string();
    let value: Value = serde_json::from_str(&text).map_err(|error| {
        let source = Source::new(name.as_str(), text.as_str());
        // Its line and column count from 1, and the column counts bytes.
        let line_start: usize = text
            .split_inclusive('\n')
            .take(error.line().saturating_sub(1))
            .map(str::len)
            .sum();
        let mut at = (line_start + error.column().saturating_sub(1)).min(text.len());
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        let end = part(&text, at..)
            .chars()
            .next()
            .map_or(at, |c| at + c.len_utf8());
        Error::invalid(
            Problem::new("the baseline is not JSON")
                .at(&source, at..end, error.to_string())
                .help(HELP),
        )
    })?;
    let wrong = |what: String, help: &str| {
        Error::invalid(Problem::new(format!("{name} {what}")).help(help))
    };
    match value.get("schema_version").and_then(Value::as_str) {
        Some(BASELINE_SCHEMA) => {}
        Some(other) if other.starts_with("tprimat.baseline/") => {
            let what = format!("is a `{other}`; this tprimat reads `{BASELINE_SCHEMA}`");
            return Err(wrong(
                what,
                "write it again with this version: `tprimat baseline -o FILE`",
            ));
        }
        Some(other) => return Err(wrong(format!("is not a baseline, but a `{other}`"), HELP)),
        None => {
            let near = value
                .as_object()
                .and_then(|o| nearest("schema_version", o.keys().map(String::as_str)));
            let help = near.map_or_else(
                || HELP.to_owned(),
                |near| format!("it has `{near}`, not `schema_version`"),
            );
            return Err(wrong(
                "is not a baseline: it has no `schema_version`".to_owned(),
                &help,
            ));
        }
    }
    let baseline: Baseline = serde_json::from_value(value)
        .map_err(|error| wrong(format!("is a damaged baseline: {error}"), HELP))?;
    match baseline.fault() {
        Some(fault) => Err(wrong(
            format!("is a damaged baseline: {}", sentences::fault(&fault)),
            HELP,
        )),
        None => Ok(baseline),
    }
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
