//! W&B's tables of one run: what `run.history().to_csv()` writes, what its page exports of a panel, and `wandb-summary.json`. A
//! row's values are read by the tags that TensorBoard's event files have as well.

use super::{
    CoarseClock,
    builder::{Builder, MAX_STEPS},
    format::{Evidence, Reader},
    lines::{Line, cut},
    numbers::{as_count, whole_text_number},
    tfevents::{Scalar, Scalars, field, is_of_step},
    values::has,
};

/// Columns that number a row's step, the trainer's own before W&B's, which counts the calls of `log`.
const STEPS: &[&str] = &[
    "train/global_step",
    "trainer/global_step",
    "global_step",
    "train/step",
    "step",
    "iteration",
    "iter",
    CALLS,
    PANEL,
];
const CALLS: &str = "_step";
/// What the first column of a panel's export is called.
const PANEL: &str = "Step";
const DATE: &str = "_timestamp";
const SECONDS: &str = "_runtime";
/// A run's name and a metric, in the head of a panel's export.
const OF_RUN: &str = " - ";

pub fn evidence(line: &str) -> Evidence {
    Evidence::Strong.only_if(head(line).is_some() || summary(line).is_some())
}

#[derive(Default)]
pub struct Wandb {
    columns: Vec<String>,
    scalars: Scalars,
    /// Steps, and the seconds since the run's beginning at which their row was written.
    ends: Vec<(u64, f64)>,
    is_torn: bool,
}

impl Reader for Wandb {
    fn line(&mut self, line: &Line<'_>, out: &mut Builder) {
        let text = &*line.text;
        if let Some(columns) = head(text) {
            self.columns = columns;
        } else if let Some(row) = summary(text) {
            self.row(counter(row.iter().map(|(name, _)| name)), &row, out);
        } else if !self.columns.is_empty()
            && let Some(cells) = cells(text)
        {
            // The last cell of a file that was cut off may lack digits.
            let whole = cells.len() - usize::from(!line.ended);
            if whole + 1 < self.columns.len() {
                out.notes.add("truncated", || cut(text, 80));
                return;
            }
            let columns = std::mem::take(&mut self.columns);
            let cells = columns.iter().zip(&cells[..whole]);
            let row: Vec<(&String, f64)> = cells
                .filter_map(|(name, cell)| Some((name, whole_text_number(cell)?)))
                .collect();
            self.row(counter(columns.iter()), &row, out);
            self.columns = columns;
        }
    }

    fn end(&mut self, out: &mut Builder) {
        self.scalars.end(out);
        if self.ends.len() > 1 && !self.is_torn {
            out.trace.clock = Some(CoarseClock::new(&self.ends));
        }
    }
}

/// The column that numbers the steps. It is one for the whole table: a row without it is of no step.
fn counter<'a>(columns: impl Iterator<Item = &'a String>) -> Option<&'static str> {
    let columns: Vec<&String> = columns.collect();
    let is_there = |name: &&&str| columns.iter().any(|column| *column == **name);
    STEPS.iter().find(is_there).copied()
}

impl Wandb {
    fn row<N: AsRef<str>>(
        &mut self,
        counter: Option<&'static str>,
        row: &[(N, f64)],
        out: &mut Builder,
    ) {
        let value = |name: &str| {
            let found = row.iter().find(|(known, _)| known.as_ref() == name);
            found.map(|(_, value)| *value)
        };
        let time = |name: &str| value(name).filter(|time| time.is_finite() && *time > 0.0);
        let stated = counter.and_then(|name| Some((name, value(name)?)));
        let Some((counter, stated)) = stated else {
            return;
        };
        let Some(step) = as_count(stated) else {
            out.notes
                .add("unreadable_line", || format!("step number {stated}"));
            return;
        };
        // Who logs every tenth step without a number has calls that are ten steps each.
        let is_own = ![CALLS, PANEL].contains(&counter);
        let mut is_step = false;
        for (tag, value) in row {
            let tag = tag.as_ref();
            // Megatron's `throughput` is of FLOPs; who else uses the word does not say of what.
            if STEPS.contains(&tag) || tag.starts_with('_') || tag == "throughput" {
                continue;
            }
            is_step |= field(tag).is_some_and(|field| is_of_step(&field));
            let scalar = Scalar {
                step: step.cast_signed(),
                tag: tag.to_owned(),
                value: *value,
                time: time(DATE),
            };
            self.scalars.scalar(scalar, out);
        }
        out.trace.steps_assumed |= is_step && !is_own;
        let Some(seconds) = time(SECONDS).filter(|_| is_own && is_step) else {
            return;
        };
        match self.ends.last() {
            // Steps come again: a process began between, and the seconds of its start-up are not known.
            Some((last, _)) if step < *last => self.is_torn = true,
            Some((last, before)) if step == *last || seconds <= *before => {}
            _ if self.ends.len() >= MAX_STEPS => self.is_torn = true,
            _ => self.ends.push((step, seconds)),
        }
    }
}

/// The columns that a table begins with; of a panel's export, without the name of the run.
fn head(text: &str) -> Option<Vec<String>> {
    let is_history = has(text, CALLS) && (has(text, DATE) || has(text, SECONDS));
    if !is_history && !has(text, "__MIN") {
        return None;
    }
    let columns = cells(text)?;
    if is_history {
        let is_there = |name: &str| columns.iter().any(|column| column == name);
        return (is_there(CALLS) && (is_there(DATE) || is_there(SECONDS))).then_some(columns);
    }
    // The step, and for each metric its mean, least and greatest value. Of several runs, which is which is not known.
    let (first, metrics) = columns.split_first()?;
    let mut runs = metrics.iter().filter_map(|name| name.rsplit_once(OF_RUN));
    let (run, _) = runs.next()?;
    if !STEPS.contains(&first.as_str()) || runs.any(|(other, _)| other != run) {
        return None;
    }
    let metrics = metrics.iter().map(|name| {
        let metric = name.rsplit_once(OF_RUN).map_or("", |(_, metric)| metric);
        let is_mean = !["__MIN", "__MAX"].iter().any(|end| metric.ends_with(end));
        // A name that begins with `_` is W&B's own, and read as no metric.
        format!("{}{metric}", if is_mean { "" } else { "_" })
    });
    Some([first.clone()].into_iter().chain(metrics).collect())
}

fn cells(text: &str) -> Option<Vec<String>> {
    let mut rows = csv::ReaderBuilder::new();
    let mut rows = rows.has_headers(false).from_reader(text.as_bytes());
    let row = rows.records().next()?.ok()?;
    Some(row.iter().map(|cell| cell.trim().to_owned()).collect())
}

/// The numbers of `wandb-summary.json`: the newest value of each metric.
fn summary(text: &str) -> Option<Vec<(String, f64)>> {
    let text = text.trim();
    if !text.starts_with('{') || !has(text, "\"_runtime\"") || !has(text, "\"_step\"") {
        return None;
    }
    let object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(text).ok()?;
    let numbers = object.into_iter();
    Some(
        numbers
            .filter_map(|(name, value)| Some((name, value.as_f64()?)))
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use crate::{LogSection, parse_any, testing};

    const HISTORY: &str = "\
,train/loss,train/global_step,_runtime,_timestamp,_step,train/learning_rate,eval/loss,train/train_runtime
0,10.5,10,14.5,1764000014.5,0,0.001,,
1,9.5,20,24.5,1764000024.5,1,0.002,,
2,,20,31.5,1764000031.5,2,,9.75,
3,8.5,30,41.5,1764000041.5,3,0.003,,
4,,30,42.5,1764000042.5,4,,,40.25
5,7.5,,43.5,1764000043.5,57,,,
";

    #[test]
    fn a_history_is_numbered_by_the_trainer_and_dated_by_its_rows() {
        let trace = parse_any(HISTORY.as_bytes());
        assert_eq!((&*trace.format, trace.steps_assumed), ("wandb", false));
        let steps = trace.steps.iter();
        let steps: Vec<_> = steps
            .map(|s| (s.step, s.loss, s.learning_rate, s.ended_at))
            .collect();
        assert_eq!(
            steps,
            [
                (10, Some(10.5), Some(0.001), Some(1_764_000_014.5)),
                (20, Some(9.5), Some(0.002), Some(1_764_000_024.5)),
                (30, Some(8.5), Some(0.003), Some(1_764_000_041.5)),
            ]
        );
        let evaluation = &trace.evaluations[0];
        assert_eq!((evaluation.step, evaluation.value), (Some(20), 9.75));
        let clock = trace.clock.as_ref().unwrap();
        assert_eq!(clock.ends, [(10, 14.5), (20, 24.5), (30, 41.5)]);
        assert_eq!(trace.totals["train_runtime_seconds"], 40.25);
    }

    #[test]
    fn steps_that_come_again_have_no_clock() {
        let again = "5,8.5,30,91.5,1764000091.5,5,0.003,,\n6,8.25,40,99.5,1764000099.5,6,0.003,,\n";
        let torn = HISTORY.replace("3,8.5,30,", "3,8.5,40,") + again;
        assert!(parse_any(torn.as_bytes()).clock.is_none());
        assert!(
            parse_any((HISTORY.to_owned() + again).as_bytes())
                .clock
                .is_some()
        );
    }

    #[test]
    fn calls_of_log_are_no_steps() {
        let log = "_step,_runtime,loss,tokens/s\n0,1.5,3.5,4096\n1,2.5,3.25,4100\n";
        let trace = parse_any(log.as_bytes());
        assert!(trace.steps_assumed && trace.clock.is_none());
        assert_eq!(trace.steps[1].other[crate::TOTAL_RATE], 4100.0);
    }

    #[test]
    fn a_panel_of_one_run_is_read_and_one_of_two_is_not() {
        let panel = "\"Step\",\"fine-sun-3 - train/loss\",\"fine-sun-3 - train/loss__MIN\",\"fine-sun-3 - train/loss__MAX\"\n\
                     \"1\",\"3.5\",\"3.5\",\"3.5\"\n\"2\",\"3.25\",\"3.25\",\"3.25\"\n";
        let trace = parse_any(panel.as_bytes());
        assert_eq!(trace.format, "wandb");
        assert_eq!(trace.steps[1].loss, Some(3.25));
        assert!(trace.steps[1].other.is_empty());
        let two = panel.replacen(
            "fine-sun-3 - train/loss__MAX",
            "dark-moon-4 - train/loss",
            1,
        );
        assert_eq!(parse_any(two.as_bytes()).format, "unknown");
    }

    #[test]
    fn a_summary_is_the_newest_step() {
        let summary = r#"{"_step": 99, "_runtime": 81.5, "_timestamp": 1764000081.5, "step": 100, "loss": 2.5, "tokens_per_second": 5120, "_wandb": {"runtime": 81}}"#;
        let trace = parse_any(summary.as_bytes());
        let last = &trace.steps[0];
        assert_eq!((last.step, last.loss), (100, Some(2.5)));
        assert_eq!(last.other[crate::TOTAL_RATE], 5120.0);
    }

    testing::damaged!("wandb", HISTORY);
}
