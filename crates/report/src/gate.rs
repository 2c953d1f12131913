//! A gate's verdicts as text, as Markdown and as annotations of a CI system.

use std::fmt::Write;

use tprimat_numbers::figures::{GateCell, GateReport, GateVerdict, rate_unit_of};
use tprimat_numbers::results::words::few;

use super::{format::number, markdown::escaped, sheet::clean};

/// How a verdict is called.
#[must_use]
pub fn verdict_name(verdict: GateVerdict) -> &'static str {
    match verdict {
        GateVerdict::Pass => "pass",
        GateVerdict::Fail => "FAIL",
        GateVerdict::Inconclusive => "inconclusive",
        GateVerdict::New => "new",
        GateVerdict::NotSelected => "not selected",
    }
}

/// `gate: FAIL: 1 pass, 1 FAIL; the limit is −3.00 % tokens/s/GPU`
#[must_use]
pub fn gate_headline(report: &GateReport) -> String {
    use GateVerdict::{Fail, Inconclusive, New, NotSelected, Pass};
    let count = |verdict| report.cells.iter().filter(|c| c.verdict == verdict).count();
    let counts: Vec<String> = [Pass, Fail, Inconclusive, New, NotSelected]
        .into_iter()
        .filter(|verdict| count(*verdict) > 0)
        .map(|verdict| format!("{} {}", count(verdict), verdict_name(verdict)))
        .collect();
    let counts = if counts.is_empty() {
        "no cell".to_owned()
    } else {
        counts.join(", ")
    };
    let limit = report.max_regression * 100.0;
    format!(
        "gate: {}: {counts}; the limit is −{limit:.2} % {}",
        verdict_name(report.verdict),
        unit(report)
    )
}

/// `1,000 → 900 tokens/s/GPU`, where both are known.
fn rates(cell: &GateCell) -> Option<String> {
    let (then, now) = cell.then.zip(cell.now)?;
    let repeats = cell
        .n_then
        .zip(cell.n_now)
        .map(|(then, now)| format!(", n {then} → {now}"));
    Some(format!(
        "{} → {} {}{}",
        number(then),
        number(now),
        rate_unit_of([cell.cell.as_str()]),
        repeats.unwrap_or_default()
    ))
}

/// Lines for a terminal or a log.
#[must_use]
pub fn gate_text(report: &GateReport) -> String {
    // Those that were not selected have one reason, and nothing else to say.
    let is_judged = |cell: &GateCell| cell.verdict != GateVerdict::NotSelected;
    let judged = report.cells.iter().filter(|cell| is_judged(cell));
    let width = judged.map(|cell| cell.cell.chars().count()).max();
    let width = width.unwrap_or(0);
    // What all of them have is said once, below.
    let mut judged = report.cells.iter().filter(|cell| is_judged(cell));
    let mut shared: Vec<String> = match (judged.next(), judged.clone().next()) {
        (Some(first), Some(_)) => first.notes.iter().map(ToString::to_string).collect(),
        _ => Vec::new(),
    };
    shared.retain(|note| {
        judged
            .clone()
            .all(|cell| cell.notes.iter().any(|of| of.to_string() == *note))
    });
    let mut text = String::new();
    for cell in report.cells.iter().filter(|cell| is_judged(cell)) {
        let reason = clean(&cell.reason.text)
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        _ = writeln!(
            text,
            "{:<12}  {:<width$}  {reason}",
            verdict_name(cell.verdict),
            clean(&cell.cell)
        );
        let notes = cell.notes.iter().map(ToString::to_string);
        let notes = notes.filter(|note| !shared.contains(note));
        for line in rates(cell).into_iter().chain(notes) {
            _ = writeln!(text, "{:<12}  - {}", "", clean(&line));
        }
    }
    let others = report.cells.iter().filter(|cell| !is_judged(cell));
    let others: Vec<&str> = others.map(|cell| cell.cell.as_str()).collect();
    if !others.is_empty() {
        let word = verdict_name(GateVerdict::NotSelected);
        _ = writeln!(text, "{word:<12}  {}", clean(&few(&others)));
    }
    for note in shared {
        _ = writeln!(text, "{:<12}  - {}", "all judged", clean(&note));
    }
    _ = writeln!(text, "{}", gate_headline(report));
    text
}

/// For a comment on a pull request.
#[must_use]
pub fn gate_markdown(report: &GateReport) -> String {
    let mut text = format!("**{}**\n\n", escaped(&gate_headline(report)));
    if !report.cells.is_empty() {
        text.push_str("| verdict | cell | then | now | why |\n|---|---|--:|--:|---|\n");
    }
    for cell in &report.cells {
        let rate = |rate: Option<f64>| rate.map_or_else(|| "–".to_owned(), number);
        let why = std::iter::once(&cell.reason).chain(&cell.notes);
        let why: Vec<String> = why.map(|why| escaped(&why.text)).collect();
        _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} |",
            verdict_name(cell.verdict),
            escaped(&cell.cell),
            rate(cell.then),
            rate(cell.now),
            why.join("<br>")
        );
    }
    _ = writeln!(
        text,
        "\n{}: geometric means over repeats (sessions or hosts, where there are several); intervals are 95 %, Welch's t on logarithms.",
        unit(report)
    );
    text
}

fn unit(report: &GateReport) -> &'static str {
    rate_unit_of(report.cells.iter().map(|cell| cell.cell.as_str()))
}

/// Commands of GitHub Actions, one a cell that did not pass, and one for a gate that is not to be
/// believed at all. Escapes as in the toolkit of GitHub's runner: `%`, CR and LF everywhere, `:`
/// and `,` in properties.
#[must_use]
pub fn gate_annotations(report: &GateReport) -> String {
    let data = |text: &str| {
        text.replace('%', "%25")
            .replace('\r', "%0D")
            .replace('\n', "%0A")
    };
    let property = |text: &str| data(text).replace(':', "%3A").replace(',', "%2C");
    let mut out = String::new();
    let mut say = |level: &str, cell: &str, text: &str| {
        _ = writeln!(
            out,
            "::{level} title={}::{}",
            property(&format!("tprimat gate: {cell}")),
            data(text)
        );
    };
    for cell in &report.cells {
        let level = match cell.verdict {
            GateVerdict::Fail => "error",
            GateVerdict::Inconclusive => "warning",
            _ => continue,
        };
        say(
            level,
            &cell.cell,
            &format!("{}: {}", cell.cell, cell.reason),
        );
    }
    if report.verdict == GateVerdict::Inconclusive && out.is_empty() {
        let headline = data(&gate_headline(report));
        return format!("::warning title=tprimat gate::{headline}\n");
    }
    out
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    /// A report with every verdict, and names that mean something to every format.
    pub fn report(names: [&str; 4]) -> GateReport {
        let reason = |text: &str| json!({ "code": "told", "severity": "beside", "text": text });
        let cell = |name: &str, verdict: &str, text: &str| json!({ "cell": name, "verdict": verdict, "reason": reason(text) });
        let mut failed = cell(
            names[0],
            "fail",
            "-10.00 % (-10.50 to -9.50): slower\nthan allowed",
        );
        failed["then"] = 1000.0.into();
        failed["now"] = 900.0.into();
        failed["n_then"] = 5.into();
        failed["n_now"] = 4.into();
        failed["notes"] = json!([reason("torch: 2.9, not 2.8 <b>|")]);
        let cells = json!([
            failed,
            cell(names[1], "inconclusive", "1 now and 5 then"),
            cell(names[2], "pass", "+0.10 %"),
            cell(names[3], "new", "not in the baseline"),
        ]);
        let report = json!({ "schema_version": "tprimat.gate/1", "verdict": "fail", "metric": "tokens_per_second_per_gpu",
            "max_regression": 0.03, "cells": cells });
        serde_json::from_value(report).unwrap()
    }

    const PLAIN: [&str; 4] = [
        "nvd/nemo/llama/a",
        "nvd/nemo/llama/b",
        "nvd/nemo/llama/c",
        "nvd/nemo/llama/d@x=1",
    ];

    #[test]
    fn as_text() {
        insta::assert_snapshot!(gate_text(&report(PLAIN)));
    }

    #[test]
    fn as_markdown() {
        insta::assert_snapshot!(gate_markdown(&report([
            "a|b*c",
            "d`e_f\n| x",
            "<script>",
            "@someone & co"
        ])));
    }

    #[test]
    fn as_annotations() {
        insta::assert_snapshot!(gate_annotations(&report([
            "a:b,c%d\r\n::error::x",
            PLAIN[1],
            PLAIN[2],
            PLAIN[3]
        ])));
        let mut nothing = report(PLAIN);
        nothing.cells.truncate(0);
        nothing.verdict = GateVerdict::Inconclusive;
        assert!(
            gate_annotations(&nothing)
                .starts_with("::warning title=tprimat gate::gate: inconclusive: no cell;")
        );
    }
}
