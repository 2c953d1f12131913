//! A gate's verdicts as JUnit XML: a test case a cell; what is inconclusive is an error, for it is
//! no pass.

use std::fmt::Write;

use tprimat_numbers::figures::{GateReport, GateVerdict, texts};

use super::gate::{gate_headline, verdict_name};

#[must_use]
pub fn gate_junit(report: &GateReport) -> String {
    use GateVerdict::{Fail, Inconclusive, New, NotSelected, Pass};
    let count = |wanted: &[GateVerdict]| {
        report
            .cells
            .iter()
            .filter(|c| wanted.contains(&c.verdict))
            .count()
    };
    let mut cases = String::new();
    for cell in &report.cells {
        let name = text(&cell.cell);
        let (reason, notes) = (
            text(&cell.reason.text),
            text(&texts(&cell.notes).join("\n")),
        );
        let inside = match cell.verdict {
            Pass => format!("<system-out>{reason}\n{notes}</system-out>"),
            Fail => {
                // What is missing or another workload has not become slower.
                let kind = if cell.now.is_some() {
                    "regression"
                } else {
                    "not_compared"
                };
                format!("<failure type=\"{kind}\" message=\"{reason}\">{notes}</failure>")
            }
            Inconclusive => {
                format!("<error type=\"inconclusive\" message=\"{reason}\">{notes}</error>")
            }
            New | NotSelected => format!(
                "<skipped message=\"{}: {reason}\"/>",
                verdict_name(cell.verdict)
            ),
        };
        _ = writeln!(
            cases,
            "    <testcase classname=\"tprimat.gate\" name=\"{name}\">{inside}</testcase>"
        );
    }
    let (mut errors, mut tests) = (count(&[Inconclusive]), report.cells.len());
    if report.verdict == Inconclusive && errors == 0 {
        // Nothing was gated: that must not look like success.
        let message = text(&gate_headline(report));
        let error = format!("<error type=\"inconclusive\" message=\"{message}\"/>");
        _ = writeln!(
            cases,
            "    <testcase classname=\"tprimat.gate\" name=\"gate\">{error}</testcase>"
        );
        (errors, tests) = (1, tests + 1);
    }
    let (failures, skipped) = (count(&[Fail]), count(&[New, NotSelected]));
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n  <testsuite name=\"tprimat gate\" tests=\"{tests}\" \
         failures=\"{failures}\" errors=\"{errors}\" skipped=\"{skipped}\">\n{cases}  </testsuite>\n</testsuites>\n"
    )
}

/// Any text in an attribute or an element; what XML 1.0 has no character for is U+FFFD.
fn text(any: &str) -> String {
    let mut out = String::with_capacity(any.len());
    for c in any.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\t' | '\n' | '\r' => _ = write!(out, "&#{};", c as u32),
            '\0'..'\u{20}' | '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::tests::report;

    #[test]
    fn a_case_a_cell() {
        insta::assert_snapshot!(gate_junit(&report([
            "a/b/c/d",
            "a/b/c/e\"<&>'",
            "a/b/c/\u{0}\u{1b}[31m\u{ffff}\r\n",
            "a/b/c/g"
        ])));
    }

    /// A cell without a rate now, or of another workload, has not become slower.
    #[test]
    fn what_could_not_be_compared_is_no_regression() {
        let mut report = report(["a", "b", "c", "d"]);
        let types = |report: &GateReport| {
            let xml = gate_junit(report);
            ["regression", "not_compared"]
                .map(|t| xml.matches(&format!("<failure type=\"{t}\"")).count())
        };
        assert_eq!(types(&report), [1, 0]);
        report.cells[0].now = None;
        assert_eq!(types(&report), [0, 1]);
    }

    #[test]
    fn a_gate_of_nothing_is_an_error() {
        let mut nothing = report(["a", "b", "c", "d"]);
        nothing.cells.truncate(0);
        nothing.verdict = GateVerdict::Inconclusive;
        assert!(gate_junit(&nothing).contains("tests=\"1\" failures=\"0\" errors=\"1\""));
    }
}
