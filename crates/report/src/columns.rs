//! What is shown of a cell with figures: the one list of columns that the terminal's tables, Markdown
//! and the page are written from, and the list of values that files have.

use std::collections::BTreeSet;

use crate::plot::loss_apart;
use serde_json::Value;
use tprimat_numbers::figures::{
    Comparison, EnvironmentDifference, Estimate, Figure, Group, Memory, Metric, Row, Speedup, Unit,
    apart_words, codes::SUPPLIED, dropped_words, environment_words, is_crossed, rate_unit, texts,
    varied_for_losses,
};
use tprimat_numbers::results::{AttestationStatus, words::few};

use super::{
    format::{MISSING, bytes, metric as in_unit, number, percent, seconds},
    headline::{SpeedVerdict, at_most, interval, ratio_intervals, times},
    paint::Ink,
    shown::Shown,
};

/// A cell with figures, and what else the comparison has of it.
#[derive(Clone, Copy)]
pub(super) struct Of<'a> {
    pub row: &'a Row,
    /// Its place among the comparison's rows.
    pub at: usize,
    pub group: &'a Group,
    pub baseline: Option<&'a Row>,
    pub environment: &'a [EnvironmentDifference],
    pub speedup: Option<&'a Speedup>,
}

impl<'a> Of<'a> {
    /// Every cell with figures, in matrix order.
    pub fn all(comparison: &'a Comparison) -> Vec<Self> {
        let rows = comparison.rows_by_cell();
        let speedups = comparison.speedups_by_cell();
        let environment = comparison.environment_by_cell();
        let named = |cell: &str| rows.get(cell).copied();
        let of = |(at, row): (usize, &'a Row)| {
            let group = &comparison.groups[row.group];
            Self {
                row,
                at,
                group,
                baseline: named(&group.baseline),
                environment: environment.get(&*row.cell).copied().unwrap_or_default(),
                speedup: speedups.get(&*row.cell).copied(),
            }
        };
        comparison.rows.iter().enumerate().map(of).collect()
    }

    /// The same, a list for each workload.
    pub fn by_group(comparison: &'a Comparison) -> Vec<Vec<Self>> {
        let mut groups = vec![Vec::new(); comparison.groups.len()];
        for of in Self::all(comparison) {
            groups[of.row.group].push(of);
        }
        groups
    }

    pub fn is_baseline(&self) -> bool {
        self.row.cell == self.group.baseline
    }

    /// By which rows are ordered: a rate that cannot be is not the fastest one.
    pub fn speed(&self) -> f64 {
        self.rate().map_or(f64::NEG_INFINITY, |rate| rate.value)
    }

    /// The rate, unless it is impossible; `mfu_absent` says why then.
    fn rate(&self) -> Option<&'a Estimate> {
        Some(&self.row.tokens_per_second_per_gpu).filter(|_| self.row.impossible().is_none())
    }

    /// Something of the rate; null where that is impossible.
    fn rated<T: Into<Value>>(&self, read: impl Fn(&Estimate) -> Option<T>) -> Value {
        self.rate()
            .and_then(read)
            .map(Into::into)
            .unwrap_or_default()
    }

    /// Something of the comparison with the baseline.
    fn compared<T: Into<Value>>(&self, read: impl Fn(&Speedup) -> Option<T>) -> Value {
        self.speedup
            .and_then(read)
            .map(Into::into)
            .unwrap_or_default()
    }

    fn has_loss_of_baseline(&self) -> Value {
        let group = self.baseline.map(|base| base.loss_group);
        group.map(|group| group == self.row.loss_group).into()
    }
}

pub(super) fn rows_of<'a>(all: &[Of<'a>]) -> Vec<&'a Row> {
    all.iter().map(|of| of.row).collect()
}

/// How a value is read, for files.
type Read = fn(&Of<'_>) -> Value;

/// A cell's values by their names in files. What is not known is null. Axes stand behind the first five
/// in a file; memory, metrics and `metrics_absent` follow where a cell has figures.
pub(super) const VALUES: [(&str, Read); 55] = [
    ("cell", |of| text(&of.row.cell)),
    ("platform", |of| text(&of.row.platform)),
    ("framework", |of| text(&of.row.framework)),
    ("model", |of| text(&of.row.model)),
    ("parallelism", |of| text(&of.row.parallelism)),
    ("state", |_| text("ok")),
    ("reason", |_| Value::Null),
    ("imported_from", |of| list(&of.row.imported)),
    ("group", |of| (of.row.group + 1).into()),
    ("workload", |of| of.group.workload.clone().into()),
    ("identical_config", |of| of.group.identical_config.into()),
    ("baseline", |of| text(&of.group.baseline)),
    ("labels", |of| list(&texts(&of.row.labels))),
    ("warnings", |of| list(&texts(&of.row.warnings))),
    ("same_launch_as", |of| of.row.same_launch_as.clone().into()),
    ("same_runs_as", |of| of.row.same_runs_as.clone().into()),
    ("environment", |of| {
        environment_words(of.environment, &of.group.baseline).into()
    }),
    ("attestation", |of| attestation(of.row.attestation)),
    ("declared_only", |of| list(&of.row.declared_only)),
    ("precision", |of| text(&of.row.precision)),
    ("device", |of| of.row.device.clone().into()),
    ("n", |of| of.row.n.into()),
    ("repeats_wanted", |of| of.row.repeats_wanted.into()),
    ("failed", |of| of.row.uncounted.failed.into()),
    ("contradicted", |of| of.row.uncounted.contradicted.into()),
    ("suspect", |of| of.row.uncounted.suspect.into()),
    ("unmeasured", |of| of.row.uncounted.unmeasured.into()),
    ("standing", |of| list(&of.row.standing.words())),
    ("repeats_added_later", |of| {
        of.row.repeats_added_later.into()
    }),
    ("dropped", |of| list(&dropped_words(&of.row.dropped))),
    ("tokens_per_second_per_gpu", |of| {
        of.rated(|r| Some(r.value))
    }),
    ("tokens_per_second_per_gpu_ci95_low", |of| {
        of.rated(|r| Some(r.ci95?[0]))
    }),
    ("tokens_per_second_per_gpu_ci95_high", |of| {
        of.rated(|r| Some(r.ci95?[1]))
    }),
    ("tokens_per_second", |of| {
        of.rated(|_| of.row.tokens_per_second)
    }),
    ("tokens_per_step", |of| of.row.tokens_per_step.into()),
    ("step_time_mean_seconds", |of| {
        of.row.step_time.mean_seconds.into()
    }),
    ("step_time_median_seconds", |of| {
        of.row.step_time.median_seconds.into()
    }),
    ("step_time_p95_seconds", |of| {
        of.row.step_time.p95_seconds.into()
    }),
    ("step_time_sd_seconds", |of| {
        of.row.step_time.sd_seconds.into()
    }),
    ("step_time_cv", |of| of.row.step_time.cv.into()),
    ("loss_at_end", |of| of.row.loss_at_end.into()),
    // Losses may be compared where both numbers agree, this one and `group`.
    ("loss_group", |of| (of.row.loss_group + 1).into()),
    ("loss_comparable_with_baseline", |of| {
        of.has_loss_of_baseline()
    }),
    ("last_step", |of| of.row.last_step.into()),
    ("speedup", |of| of.compared(|s| Some(s.ratio))),
    ("speedup_interval_low", |of| {
        of.compared(|s| Some(s.interval?.low))
    }),
    ("speedup_interval_high", |of| {
        of.compared(|s| Some(s.interval?.high))
    }),
    ("speedup_interval_confidence", |of| {
        of.compared(|s| Some(s.interval?.confidence))
    }),
    ("speedup_significant", |of| of.compared(|s| s.significant)),
    ("speedup_p_value", |of| of.compared(|s| s.p_value)),
    ("cost_ratio", |of| of.compared(|s| s.cost_ratio.value())),
    ("speedup_same_as", |of| of.compared(|s| s.same_as.clone())),
    ("speedup_reason", |of| {
        of.compared(|s| s.reason.as_ref().map(|why| why.text.clone()))
    }),
    ("mfu", |of| of.row.mfu.value().into()),
    ("mfu_absent", |of| why_absent(&of.row.mfu).into()),
];

fn text(text: &str) -> Value {
    Some(text).filter(|text| !text.is_empty()).into()
}

pub(super) fn list(parts: &[impl AsRef<str>]) -> Value {
    let parts: Vec<&str> = parts.iter().map(AsRef::as_ref).collect();
    text(&parts.join("; "))
}

fn attestation(status: AttestationStatus) -> Value {
    serde_json::to_value(status).unwrap_or_default()
}

/// Why there is no figure; none where there is one.
pub(super) fn why_absent(figure: &Figure) -> Option<String> {
    match figure {
        Figure::Ok { .. } => None,
        Figure::Absent { reason } => Some(reason.text.clone()),
        Figure::Error { reason } => Some(format!("impossible: {}", reason.text.clone())),
    }
}

/// Where figures are shown, which decides how much is said of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The summary of a screen.
    Glance,
    /// Every figure, as text.
    Table,
    /// A table of the page, where marks stand beside a cell's name.
    Page,
    /// The details of one cell.
    Cell,
}

/// What all rows of a table share.
pub(super) struct View {
    place: Place,
    /// What its head says of the intervals of ratios.
    intervals: &'static str,
    /// Where cells differ in precision, their shares are of different peaks, and each says of which.
    has_several_precisions: bool,
}

/// A column for people: its title, whether its words are figures (which stand to the right), whether a
/// glance has it, and what it shows.
type Column = (&'static str, bool, bool, fn(&Of<'_>, &View) -> Shown);

const COLUMNS: [Column; 7] = [
    ("{unit} (95 % CI)", true, true, rate),
    ("{against} ({intervals})", false, true, against),
    ("repeats", false, true, repeats),
    ("step time (cv)", true, false, step_time),
    ("MFU", true, true, mfu),
    ("peak memory", true, true, memory),
    (LOSS, true, false, loss),
];
const LOSS: &str = "loss at end";

/// Does the matrix vary what the loss depends on, as a sweep over the learning rate does?
pub(super) fn asks_for_losses(rows: &[&Row]) -> bool {
    let with_axes = rows.iter().filter(|row| !row.axes.is_empty());
    let contracts = with_axes.map(|row| (&*row.cell, &row.contract));
    !varied_for_losses(contracts).is_empty()
}

/// Heads, with whether the column has figures, and the figures of each row.
#[derive(Default)]
pub(super) struct Table {
    pub heads: Vec<(String, bool)>,
    pub rows: Vec<Vec<Shown>>,
}

impl Table {
    /// Without columns in which no row has anything.
    fn without_empty(mut self) -> Self {
        let has_any = |at: &usize| self.rows.iter().any(|row| row[*at].text != MISSING);
        let kept: BTreeSet<usize> = (0..self.heads.len()).filter(has_any).collect();
        let mut at = 0..;
        self.heads
            .retain(|_| at.next().is_some_and(|at| kept.contains(&at)));
        for row in &mut self.rows {
            let mut at = 0..;
            row.retain(|_| at.next().is_some_and(|at| kept.contains(&at)));
        }
        self
    }
}

/// The first figures of some cells. `against`: what their ratios are against.
pub(super) fn figures(all: &[Of<'_>], place: Place, against: &str) -> Table {
    let with_mfu = all.iter().filter(|of| of.row.mfu.value().is_some());
    let precisions: BTreeSet<&str> = with_mfu.map(|of| &*of.row.precision).collect();
    let view = View {
        place,
        intervals: ratio_intervals(all.iter().filter_map(|of| of.speedup)),
        has_several_precisions: precisions.len() > 1,
    };
    let unit = rate_unit(all.iter().map(|of| of.row));
    let has_losses = asks_for_losses(&rows_of(all));
    let is_shown = |(title, _, in_glance, _): &&Column| {
        *in_glance || place != Place::Glance || (*title == LOSS && has_losses)
    };
    let mut shown: Vec<&Column> = COLUMNS.iter().filter(is_shown).collect();
    if has_losses && place == Place::Glance {
        // Before what a narrow screen leaves out.
        shown[1..].rotate_right(1);
    }
    let columns = || shown.iter().copied();
    let head = |(title, is_figure, ..): &Column| {
        let title = title.replace("{unit}", unit).replace("{against}", against);
        (title.replace("{intervals}", view.intervals), *is_figure)
    };
    let row = |of: &Of<'_>| columns().map(|(.., shown)| shown(of, &view)).collect();
    let table = Table {
        heads: columns().map(head).collect(),
        rows: all.iter().map(row).collect(),
    };
    // On a page and in details a missing figure says why.
    match place {
        Place::Page | Place::Cell => table,
        Place::Glance | Place::Table => table.without_empty(),
    }
}

fn rate(of: &Of<'_>, _: &View) -> Shown {
    if let Some(reason) = of.row.impossible() {
        return Shown::impossible(reason.text.clone());
    }
    let estimate = &of.row.tokens_per_second_per_gpu;
    Shown {
        detail: Some(spread(estimate)),
        ..Shown::of(number(estimate.value), estimate.value)
    }
}

/// `99,891–104,979`, or why there is no interval.
fn spread(estimate: &Estimate) -> String {
    match estimate.ci95 {
        Some([low, high]) if low.is_finite() && high.is_finite() => {
            format!("{}–{}", number(low), number(high))
        }
        _ if estimate.values.len() == 1 => "one repeat".to_owned(),
        _ => "no interval".to_owned(),
    }
}

/// `102,403 (99,891–104,979)`
pub(super) fn estimated(estimate: &Estimate) -> String {
    format!("{} ({})", number(estimate.value), spread(estimate))
}

/// `1.23× (1.10–1.38), faster`, what the two cells do differently, and what may not be concluded from
/// it.
fn against(of: &Of<'_>, view: &View) -> Shown {
    if let Some(other) = &of.row.same_runs_as {
        return Shown::inked(
            format!("the same runs as {other}, imported twice"),
            Ink::Bad,
        );
    }
    let base_is_impossible = of.baseline.and_then(Row::impossible).is_some();
    match of.speedup.filter(|speedup| speedup.b == of.group.baseline) {
        _ if of.is_baseline() => Shown::of("baseline", 1.0),
        Some(speedup) => Shown {
            ink: ink_of(SpeedVerdict::of(speedup)),
            remarks: beside_ratio(speedup, view.place),
            ..Shown::of(times(speedup), speedup.ratio).detailed(interval(speedup, view.intervals))
        },
        None if base_is_impossible || of.row.impossible().is_some() => {
            Shown::inked("not compared: impossible rate", Ink::Bad)
        }
        None => Shown::missing("no comparison with the baseline"),
    }
}

fn beside_ratio(speedup: &Speedup, place: Place) -> Vec<String> {
    let verdict = match SpeedVerdict::of(speedup) {
        SpeedVerdict::Faster => Some("faster".to_owned()),
        SpeedVerdict::Slower => Some("slower".to_owned()),
        // Runs that were added until a decision came to say how small a difference is.
        SpeedVerdict::NoDifference => match speedup.pairs.and_then(|_| at_most(speedup)) {
            Some(at_most) => Some(format!("differs by less than {at_most} %")),
            None => Some("no significant difference".to_owned()),
        },
        _ if place == Place::Glance => Some("no verdict".to_owned()),
        _ => None,
    };
    let mut remarks: Vec<String> = verdict.into_iter().collect();
    // The notes say why.
    remarks.extend((!speedup.doubts.is_empty()).then(|| "in doubt".to_owned()));
    // The page shows the settings that are compared across beside the cell's name.
    if place != Place::Page {
        let crossed = speedup.labels.iter().filter(|label| is_crossed(label));
        remarks.extend(crossed.map(|label| label.text.clone()));
    }
    if place == Place::Glance {
        return remarks;
    }
    let reason = speedup.reason.as_ref();
    remarks.extend(reason.map(|reason| format!("no verdict: {reason}")));
    remarks.extend(speedup.apart_seconds.map(apart_words));
    remarks
}

pub(super) fn ink_of(verdict: SpeedVerdict) -> Ink {
    match verdict {
        SpeedVerdict::Faster => Ink::Good,
        SpeedVerdict::Slower | SpeedVerdict::Refused => Ink::Bad,
        SpeedVerdict::NoDifference | SpeedVerdict::NotAssessed | SpeedVerdict::Alone => Ink::Plain,
    }
}

/// `2/3, 1 failed`, and whether the log attests what ran.
fn repeats(of: &Of<'_>, view: &View) -> Shown {
    let row = of.row;
    let estimate = &row.tokens_per_second_per_gpu;
    let of_units = (estimate.unit != Unit::Repeat).then(|| {
        format!(
            "{} count as one each",
            estimate.unit.counted(estimate.units.len())
        )
    });
    let mut remarks = match view.place {
        Place::Page => Vec::new(),
        Place::Table | Place::Cell => marks(row),
        Place::Glance => marks(row)
            .into_iter()
            .filter(|mark| mark != NOT_ATTESTED)
            .collect(),
    };
    // Only names fit here: the notes say what each is, and the page has them beside the cell's name.
    if view.place != Place::Page {
        let names = row.warnings.iter().map(|warning| match &*warning.code {
            SUPPLIED => "supplied settings".to_owned(),
            code => {
                let name = warning.values.get("name").and_then(|name| name.as_str());
                name.unwrap_or(code).to_owned()
            }
        });
        let names: Vec<String> = names.collect();
        remarks.extend((!names.is_empty()).then(|| few(&names)));
    }
    let is_whole =
        row.uncounted.failed == 0 && row.warnings.is_empty() && row.standing.earlier.is_none();
    let ink = match row.uncounted.contradicted {
        0 if is_whole => Ink::Plain,
        0 => Ink::Bad,
        _ => Ink::Alarm,
    };
    let remarks = (!remarks.is_empty()).then(|| remarks.join(", "));
    Shown {
        remarks: remarks.into_iter().collect(),
        ink,
        ..Shown::of(format!("{}/{}", row.n, row.repeats_wanted), row.n as f64).detailed(of_units)
    }
}

const NOT_ATTESTED: &str = "not attested";

/// What a reader must know of a cell's runs before its figures.
pub(super) fn marks(row: &Row) -> Vec<String> {
    let counts = row
        .uncounted
        .by_why()
        .into_iter()
        .filter(|(_, count)| *count > 0);
    let mut marks: Vec<String> = counts
        .map(|(why, count)| format!("{count} {why}"))
        .collect();
    marks.extend(row.standing.words());
    if row.repeats_added_later {
        marks.push("repeats added later".to_owned());
    }
    marks.extend(dropped_words(&row.dropped));
    if row.attestation != AttestationStatus::Attested {
        marks.push(NOT_ATTESTED.to_owned());
    }
    marks
}

/// The mean, with the spread of steps.
fn step_time(of: &Of<'_>, _: &View) -> Shown {
    let time = &of.row.step_time;
    let spread = time.cv.filter(|cv| cv.is_finite()).map(percent);
    Shown::of(seconds(time.mean_seconds), time.mean_seconds).detailed(spread)
}

fn mfu(of: &Of<'_>, view: &View) -> Shown {
    let peak = view
        .has_several_precisions
        .then(|| format!("{} peak", of.row.precision));
    let shown = figure(&of.row.mfu, "fraction", "MFU");
    let is_share = shown.value.is_some();
    shown.detailed(peak.filter(|_| is_share))
}

fn memory(of: &Of<'_>, view: &View) -> Shown {
    let Some(Memory {
        kind, bytes: used, ..
    }) = of.row.memory.first()
    else {
        return Shown::missing("the log states no memory");
    };
    let kind = (view.place != Place::Glance).then(|| kind.replace('_', " "));
    Shown::of(bytes(*used), *used as f64).detailed(kind)
}

fn loss(of: &Of<'_>, view: &View) -> Shown {
    if let Some(Figure::Error { reason }) = of.row.metrics.get("loss_at_end") {
        return Shown::impossible(reason.text.clone());
    }
    let Some(loss) = of.row.loss_at_end else {
        return Shown::missing("a counted repeat logs no loss at its last step");
    };
    let apart = of.baseline.and_then(|base| loss_apart(of.row, base));
    let step = of.row.last_step.map(|step| format!("step {step}"));
    let shown = Shown::of(number(loss), loss);
    match view.place {
        Place::Table => shown.detailed(apart.map(|_| "not comparable".to_owned())),
        _ => Shown {
            warning: apart,
            ..shown.detailed(step)
        },
    }
}

/// Metrics that have columns of their own, and those that are multiples of another one, which only files
/// and pages have.
const OWN: [&str; 2] = ["mfu", "loss_at_end"];
const MULTIPLES: [&str; 2] = ["tokens_per_second", "gpu_hours_per_trillion_tokens"];

/// Names of the metrics that any of the rows has, in their order.
pub(super) fn shown_metrics<'a>(rows: &[&'a Row], place: Place) -> Vec<&'a str> {
    let longest = rows.iter().max_by_key(|row| row.metrics.0.len());
    let all = longest.map_or(&[][..], |row| &row.metrics.0[..]);
    let is_own =
        |name: &str| OWN.contains(&name) || place != Place::Page && MULTIPLES.contains(&name);
    let is_known = |name: &str| {
        let mut figures = rows.iter().filter_map(|row| row.metrics.get(name));
        figures.any(|figure| !matches!(figure, Figure::Absent { .. }))
    };
    let names = all.iter().map(|metric| metric.name.as_str());
    names
        .filter(|name| !is_own(name) && is_known(name))
        .collect()
}

/// The named metrics of some cells: cost, efficiency, time.
pub(super) fn metrics(all: &[Of<'_>], place: Place) -> Table {
    let rows = rows_of(all);
    let names = shown_metrics(&rows, place);
    let of = |row: &Row, name: &str| row.metrics.0.iter().find(|m| m.name == name).cloned();
    // Titles that are not the same in all rows (another currency) are told in the cells.
    let title = |name: &str| {
        let mut titles: Vec<String> = rows
            .iter()
            .filter_map(|row| Some(of(row, name)?.title))
            .collect();
        titles.dedup();
        match &titles[..] {
            [one] => one.clone(),
            _ => name.replace('_', " "),
        }
    };
    let titles: Vec<String> = names.iter().map(|name| title(name)).collect();
    let shown = |row: &Row| {
        let word = |(name, title): (&&str, &String)| match of(row, name) {
            Some(Metric {
                figure: of, unit, ..
            }) => figure(&of, &unit, title),
            None => Shown::missing("not computed"),
        };
        names.iter().zip(&titles).map(word).collect()
    };
    Table {
        rows: rows.iter().map(|row| shown(row)).collect(),
        heads: titles.iter().cloned().map(|title| (title, true)).collect(),
    }
}

pub(super) fn figure(figure: &Figure, unit: &str, title: &str) -> Shown {
    match figure {
        Figure::Ok { value, .. } => Shown::of(in_unit(*value, unit, title), *value),
        Figure::Absent { reason } => Shown::missing(reason.text.clone()),
        Figure::Error { reason } => Shown::impossible(reason.text.clone()),
    }
}

/// The differences across which a cell is compared: they stand wherever its figures do.
pub(super) fn crossed(row: &Row) -> Vec<String> {
    let crossed = row.labels.iter().filter(|label| is_crossed(label));
    crossed.map(|label| label.text.clone()).collect()
}
