//! A baseline × the cells as they are now → has anything become slower?
//!
//! Per cell, now ÷ then by Student's t on logarithms, with a spread that the cells of a gate lend each
//! other as far as they vary alike (`results::moderated`). It *fails* if the ratio is significantly
//! beyond the limit after Holm's correction over the gate; it *passes* if the whole 95 % interval is
//! within the limit; else it is *inconclusive*. Passing needs no correction, for a gate passes only if
//! every cell does. A verdict needs [`MIN_REPEATS`] units of replication
//! (repeats, or sessions or hosts where there are several) in both measurements; units that do not vary at
//! all are taken as exact. Where the repeats are too few to tell, the reason says about how many
//! would do at their spread.
//!
//! A cell whose repeats are all the baseline's own was not measured anew: nothing speaks against
//! it, so it passes, untested, and says so. Where only some are, the two are not independent
//! samples, and the old ones would hide what is new: inconclusive.
//!
//! A cell that the baseline lacks has nothing to be slower than, but it *fails* as well if it ran
//! and what it gave does not count. One that was not measured is listed, with the reason.

mod baseline;
mod change;
mod verdict;

use std::collections::{BTreeMap, BTreeSet};

use crate::results::{
    AttestationStatus, FieldDifference, MIN_REPEATS, Reason, differences, holm, words::few,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use tprimat_base::words::plain::counted;

pub use baseline::{BASELINE_SCHEMA, Baseline, BaselineCell};

use super::{
    AbsentState, CellInput, CellState, Estimate, Gaps, NoteKind, RepeatStatus, RepeatSummary,
    SESSION_GAP_SECONDS, UncountedRepeats, all_hosts,
    codes::{CONTRADICTED, FAILED, FEW_PAIRS, FEW_UNITS},
    comparability::{forbids, measure_alike, other_warmup},
    compare::candidate,
    dropped_words, environment_differences, environment_words, hours_or_days,
    otherwise::LARGE_SHIFT,
    summary::attempts,
    unstated::{unknown_differences, work_not_known},
    warnings_of,
};
use verdict::{Test, judge, limit, moderate};

pub const GATE_SCHEMA: &str = "tprimat.gate/1";

/// From this ratio on, less work than is declared is as likely a cause as more speed.
const MUCH_FASTER: f64 = 1.25;
/// Where a baseline's rate and that of the same runs differ by more than this share, its file is not of these runs.
const MUCH_ANEW: f64 = 0.01;
/// Two rates nearer than this are one rate, rounded.
pub(super) const ROUNDING: f64 = 1e-9;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GateVerdict {
    Pass,
    /// Slower than the limit allows, missing, failed, contradicted, or another workload: never a
    /// pass.
    Fail,
    Inconclusive,
    /// Not in the baseline; measured or still to be.
    New,
    /// In the baseline, but not among the selected cells.
    NotSelected,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GateReport {
    pub schema_version: String,
    /// `fail` if any cell fails, else `inconclusive` if any is or if none could be compared, else
    /// `pass`.
    pub verdict: GateVerdict,
    /// `tokens_per_second_per_gpu`
    pub metric: String,
    /// A share: 0.03 is 3 %.
    pub max_regression: f64,
    pub cells: Vec<GateCell>,
}

#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GateCell {
    pub cell: String,
    pub verdict: GateVerdict,
    pub reason: Reason,
    pub now: Option<f64>,
    pub then: Option<f64>,
    /// now ÷ then; below 1 is slower. Absent where the two may not be compared.
    pub ratio: Option<f64>,
    pub ci95: Option<[f64; 2]>,
    /// That the ratio is at the limit and not beyond it, after Holm's correction over the gate.
    pub p_value: Option<f64>,
    pub n_now: Option<usize>,
    pub n_then: Option<usize>,
    /// No repeat was measured after the baseline.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub same_measurements: bool,
    /// What has changed since the baseline, and what is dangerous now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Reason>,
}

/// A cell of the matrix, as a gate sees it.
pub struct GateInput {
    pub input: CellInput,
    pub selected: bool,
    pub key: Option<String>,
    /// Why the rate cannot be what it seems.
    pub impossible: Option<Reason>,
}

impl GateInput {
    /// Why a baseline leaves the cell out; none where it has figures.
    #[must_use]
    pub fn left_out(&self) -> Option<Reason> {
        BaselineCell::of(self).err().map(|(_, why)| why)
    }
    fn counts(&self) -> UncountedRepeats {
        match &self.input.state {
            CellState::Ok { summary } => UncountedRepeats::of(&summary.repeats),
            _ => UncountedRepeats::default(),
        }
    }
    /// Repeats that failed after a baseline's last one had ended; all that failed, where that is not known.
    fn failed_since(&self, measured: Option<[f64; 2]>) -> usize {
        let CellState::Ok { summary } = &self.input.state else {
            return 0;
        };
        let is_older = |repeat: &&RepeatSummary| {
            let ended = measured.map(|[_, ended]| ended);
            let is_before = repeat.started_at.zip(ended);
            is_before.is_some_and(|(started, ended)| started < ended)
        };
        let failed = summary.repeats.iter();
        let failed = failed.filter(|repeat| matches!(repeat.status, RepeatStatus::Failed { .. }));
        failed.filter(|repeat| !is_older(repeat)).count()
    }
    fn is_attested(&self) -> bool {
        match &self.input.state {
            CellState::Ok { summary } => summary.attestation != AttestationStatus::NotStated,
            _ => true,
        }
    }
    fn contradicted(&self) -> Option<Reason> {
        let repeats = self.counts().contradicted;
        (repeats > 0).then(|| {
            let text = format!(
                "contradicted: {} did not run what was asked for",
                counted(repeats, "repeat")
            );
            Reason::excludes(CONTRADICTED, text).with("repeats", repeats)
        })
    }
    /// Repeats that do not count although others of the cell do.
    fn notes_on_uncounted(&self) -> impl Iterator<Item = Reason> {
        let UncountedRepeats {
            failed,
            // These decide the verdict: `contradicted`.
            contradicted: _,
            suspect,
            unmeasured,
        } = self.counts();
        let notes = [
            ("failed", failed, "failed"),
            ("suspect", suspect, "disturbed, so not counted"),
            (
                "unmeasured",
                unmeasured,
                "ended with nothing to measure, so not counted",
            ),
        ];
        let note = |(code, repeats, what): (&'static str, usize, &str)| {
            let text = format!("{} {what}", counted(repeats, "repeat"));
            Reason::beside(code, text).with("repeats", repeats)
        };
        notes
            .into_iter()
            .filter(|(_, repeats, _)| *repeats > 0)
            .map(note)
    }
}

/// Compares every cell of the baseline with what it is now. `max_regression`: a share, 0.03 for 3
/// %.
#[must_use]
pub fn gate(baseline: &Baseline, cells: &[GateInput], max_regression: f64) -> GateReport {
    let by_name: BTreeMap<&str, &GateInput> = cells
        .iter()
        .map(|cell| (cell.input.cell.as_str(), cell))
        .collect();
    let (mut all, mut tests): (Vec<GateCell>, Vec<Option<Test>>) = baseline
        .cells
        .iter()
        .map(|then| compared(then, &by_name))
        .unzip();
    let firsts = firsts(&all, baseline, &by_name);
    moderate(&mut tests, &firsts);
    let limit = limit(max_regression);
    for (cell, test) in all.iter_mut().zip(&tests) {
        (cell.ci95, cell.p_value) = (test.map(|t| t.ci95()), test.map(|t| t.p_against(limit)));
    }
    let tested = correct(&mut all, &firsts);
    for (cell, test) in all.iter_mut().zip(tests) {
        if let Some(test) = test {
            judge(cell, &test, max_regression, tested);
        }
    }
    let known: BTreeSet<&str> = baseline
        .cells
        .iter()
        .map(|then| then.cell.as_str())
        .collect();
    all.extend(
        cells
            .iter()
            .filter(|c| c.selected && !known.contains(c.input.cell.as_str()))
            .filter_map(of_new),
    );
    let has = |verdict| all.iter().any(|c| c.verdict == verdict);
    let verdict = if has(GateVerdict::Fail) {
        GateVerdict::Fail
    } else if has(GateVerdict::Inconclusive) || !has(GateVerdict::Pass) {
        GateVerdict::Inconclusive
    } else {
        GateVerdict::Pass
    };
    let metric = "tokens_per_second_per_gpu".to_owned();
    GateReport {
        schema_version: GATE_SCHEMA.to_owned(),
        verdict,
        metric,
        max_regression,
        cells: all,
    }
}

impl GateCell {
    fn new(cell: &str, verdict: GateVerdict, reason: Reason) -> Self {
        Self {
            cell: cell.to_owned(),
            verdict,
            reason,
            now: None,
            then: None,
            ratio: None,
            ci95: None,
            p_value: None,
            n_now: None,
            n_then: None,
            same_measurements: false,
            notes: Vec::new(),
        }
    }
}

/// For each cell the first one that asks the same question, which is that of the cells with the same
/// measurements now and then. Places are those in `all`, which begins with the baseline's cells in their
/// order.
fn firsts(
    all: &[GateCell],
    baseline: &Baseline,
    by_name: &BTreeMap<&str, &GateInput>,
) -> Vec<usize> {
    let mut known: Vec<(Question<'_>, usize)> = Vec::new();
    let mut firsts: Vec<usize> = (0..all.len()).collect();
    for (at, then) in baseline.cells.iter().enumerate() {
        let now = by_name
            .get(then.cell.as_str())
            .filter(|_| all[at].ratio.is_some());
        let Some(question) = now.and_then(|now| question(then, now)) else {
            continue;
        };
        match known.iter().find(|(of, _)| *of == question) {
            Some((_, first)) => firsts[at] = *first,
            None => known.push((question, at)),
        }
    }
    firsts
}

/// Holm's correction over the tests of a gate, and how many these are: one a question.
fn correct(all: &mut [GateCell], firsts: &[usize]) -> usize {
    let is_test = |at: &usize| firsts[*at] == *at && all[*at].p_value.is_some();
    let tests: Vec<usize> = (0..all.len()).filter(is_test).collect();
    let p_values: Vec<f64> = tests.iter().filter_map(|at| all[*at].p_value).collect();
    for (at, p) in tests.iter().zip(holm(&p_values)) {
        all[*at].p_value = Some(p);
    }
    for at in 0..all.len() {
        let of = firsts[at];
        if of == at || all[at].p_value.is_none() {
            continue;
        }
        all[at].p_value = all[of].p_value;
        let text = format!(
            "shares its measurements with {}: one test for both",
            all[of].cell
        );
        let note = Reason::detail("shares_measurements", text);
        all[at].notes.push(note);
    }
    p_values.len()
}

/// What tells the questions of two cells apart: the runs of both measurements, and what these gave. None
/// where the runs now are not known.
fn question<'a>(then: &'a BaselineCell, now: &'a GateInput) -> Option<Question<'a>> {
    let candidate = candidate(&now.input).ok()?;
    let of_now = attempts(&candidate.summary.repeats);
    if of_now.is_empty() {
        return None;
    }
    let bits = |estimate: &Estimate| estimate.units.iter().map(|unit| unit.to_bits()).collect();
    Some((
        of_now,
        bits(candidate.estimate),
        &then.attempts,
        bits(&then.tokens_per_second_per_gpu),
    ))
}

type Question<'a> = (BTreeSet<&'a str>, Vec<u64>, &'a BTreeSet<String>, Vec<u64>);

/// A selected cell that the baseline lacks; none where it cannot be measured, which is no news.
fn of_new(cell: &GateInput) -> Option<GateCell> {
    let of = |verdict, reason| GateCell::new(&cell.input.cell, verdict, reason);
    Some(match (BaselineCell::of(cell), cell.contradicted()) {
        (Ok(_), Some(why)) => of(GateVerdict::Fail, why),
        (Ok(now), None) => GateCell {
            now: Some(now.tokens_per_second_per_gpu.value),
            n_now: Some(now.tokens_per_second_per_gpu.units.len()),
            notes: of_what_is_new(cell, &now),
            ..of(
                GateVerdict::New,
                Reason::detail("not_in_baseline", "not in the baseline"),
            )
        },
        (Err((AbsentState::Unsupported, _)), _) => return None,
        (Err((state, why)), _) if has_failed(state) => of(GateVerdict::Fail, why),
        (Err((_, why)), _) => {
            let text = format!("not in the baseline, nor measured: {why}");
            of(GateVerdict::New, Reason { text, ..why })
        }
    })
}

/// It ran, and what it gave does not count, for a cause of its own.
fn has_failed(state: AbsentState) -> bool {
    matches!(
        state,
        AbsentState::Failed | AbsentState::Contradicted | AbsentState::Unmeasured
    )
}

/// What a reader should know of a rate that is compared with nothing yet: the next baseline will
/// have it.
fn of_what_is_new(cell: &GateInput, now: &BaselineCell) -> Vec<Reason> {
    cell.notes_on_uncounted()
        .chain(warnings_of(&now.environment, &now.contract))
        .chain(choices(now, "repeats"))
        .collect()
}

/// What was chosen after results were seen, which intervals assume not to be. `whose`: the repeats of one
/// measurement.
fn choices(cell: &BaselineCell, whose: &str) -> impl Iterator<Item = Reason> {
    let added_later = cell.repeats_added_later.then(|| {
        let text = format!("some of the {whose} were added after the first results were seen");
        Reason::beside("added_later", text)
    });
    let dropped = dropped_words(&cell.dropped).join(", ");
    let dropped = (!dropped.is_empty()).then(|| {
        let text = format!("beside the {whose} there are runs that do not count: {dropped}");
        Reason::beside("dropped", text)
    });
    added_later.into_iter().chain(dropped)
}

/// One cell, without a verdict on its rate: that needs all p-values.
fn compared(then: &BaselineCell, by_name: &BTreeMap<&str, &GateInput>) -> (GateCell, Option<Test>) {
    let without = |verdict, reason: Reason| GateCell {
        then: Some(then.tokens_per_second_per_gpu.value),
        n_then: Some(then.tokens_per_second_per_gpu.units.len()),
        ..GateCell::new(&then.cell, verdict, reason)
    };
    let fails = |reason: Reason| (without(GateVerdict::Fail, reason), None);
    let Some(cell) = by_name.get(then.cell.as_str()) else {
        let text = "missing: the matrix no longer has it";
        return fails(Reason::excludes("not_in_matrix", text));
    };
    if !cell.selected {
        let text = "not among the selected cells";
        let reason = Reason::detail("not_selected", text);
        return (without(GateVerdict::NotSelected, reason), None);
    }
    let now = match BaselineCell::of(cell) {
        Ok(now) => now,
        Err((_, why)) => return fails(why),
    };
    if let Some(why) = cell.contradicted() {
        return fails(why);
    }
    if now.imported.is_empty() != then.imported.is_empty() {
        let origin = |cell: &BaselineCell| {
            if cell.imported.is_empty() {
                "measured"
            } else {
                "imported"
            }
        };
        let text = format!(
            "not comparable: {} now, {} in the baseline",
            origin(&now),
            origin(then)
        );
        return fails(Reason::excludes("other_origin", text));
    }
    let (other, allowed): (Vec<_>, Vec<_>) = differences(&now.contract, &then.contract)
        .into_iter()
        .filter(FieldDifference::is_known)
        .partition(|d| {
            forbids(d, [&now.parallelism, ""]) || forbids(d, [&now.parallelism, &now.parallelism])
        });
    let (steady_now, steady_then) = (
        (now.warmup_steps, &*now.steady_state),
        (then.warmup_steps, &*then.steady_state),
    );
    let (warm_up, is_alike) = (
        other_warmup(steady_now, steady_then),
        measure_alike(steady_now, steady_then),
    );
    if !other.is_empty() || !is_alike {
        let fields = other.iter().map(FieldDifference::words);
        let all: Vec<String> = fields.chain(warm_up.filter(|_| !is_alike)).collect();
        let text = format!("another workload than the baseline's: {}", all.join("; "));
        return fails(Reason::excludes("other_workload", text));
    }
    let notes = cell_notes(cell, &now, then, &allowed, warm_up);
    let (a, b) = (
        &now.tokens_per_second_per_gpu,
        &then.tokens_per_second_per_gpu,
    );
    let (units_a, units_b) = (&a.units, &b.units);
    let (attested, failed) = (cell.is_attested(), cell.failed_since(then.measured));
    let which = if units_b.len() < MIN_REPEATS {
        ", so the baseline needs more runs"
    } else {
        ""
    };
    let mut cell = GateCell {
        now: Some(a.value),
        ratio: Some(a.value / b.value),
        n_now: Some(units_a.len()),
        notes,
        ..without(
            GateVerdict::Inconclusive,
            Reason::no_verdict(
                FEW_UNITS,
                format!(
                    "{} now and {} then: a verdict needs {MIN_REPEATS} each{which}",
                    a.unit.counted(units_a.len()),
                    b.unit.counted(units_b.len())
                ),
            ),
        )
    };
    let known = now.attempts.intersection(&then.attempts).count();
    if known > 0 && failed == 0 {
        of_known(&mut cell, known, &now, then);
        return (cell, None);
    }
    if failed > 0 {
        let text = format!("{} failed", counted(failed, "repeat"));
        cell.verdict = GateVerdict::Fail;
        cell.reason = Reason::excludes(FAILED, text).with("repeats", failed);
        return (cell, None);
    }
    if let Some(why) = work_not_known(&now.contract, &then.contract) {
        cell.reason = why;
        return (cell, None);
    }
    if !attested {
        let more = if a.value / b.value > MUCH_FASTER {
            ", so it may be this fast because it did less work; a log that states the batch size would show it"
        } else {
            ""
        };
        let text = format!("some settings are only declared: the log does not confirm them{more}");
        cell.notes.push(Reason::beside("not_attested", text));
    }
    // A shift of both alike is in both rates, at the same place or not.
    let size = |of: &BaselineCell| {
        of.level_shift
            .as_ref()
            .map_or(0.0, |shift| shift.ratio.ln())
    };
    let mut test = Test::of(units_a, units_b, a.unit);
    if a.is_until_decided() || b.is_until_decided() {
        test = test.map(|test| test.until_decided(units_a, units_b));
    }
    if let Some(test) = &mut test {
        test.timer_factors = [now.timer_factor, then.timer_factor];
        test.shifts = (size(&now) - size(then)).abs() >= LARGE_SHIFT.ln_1p();
    }
    if test.as_ref().is_some_and(Test::excludes_nothing) {
        let text =
            "runs were added until a decision, and there are too few for any; --decide adds more";
        cell.reason = Reason::no_verdict(FEW_PAIRS, text);
        test = None;
    }
    (cell, test)
}

/// What has changed since the baseline without forbidding a comparison, and what is dangerous now.
fn cell_notes(
    cell: &GateInput,
    now: &BaselineCell,
    then: &BaselineCell,
    allowed: &[FieldDifference],
    warm_up: Option<String>,
) -> Vec<Reason> {
    let fields = allowed.iter().map(|field| {
        let note = Reason::beside("field", field.words());
        note.with("field", &*field.field)
    });
    let mut notes: Vec<Reason> = fields.collect();
    let of_work = Gaps {
        neither: Vec::new(),
        ..Gaps::of(&now.contract, &then.contract)
    };
    let of_speed = Gaps::of_speed(&now.contract, &then.contract);
    for (code, gaps) in [("workload_gaps", of_work), ("execution_gaps", of_speed)] {
        if !gaps.is_empty() {
            let text = gaps.words("the cell now", "the baseline");
            notes.push(Reason::beside(code, text));
        }
    }
    let unknown = unknown_differences(&now.unlisted, &then.unlisted);
    if !unknown.is_empty() {
        let words: Vec<String> = unknown.iter().map(FieldDifference::words).collect();
        let text = format!(
            "settings differ whose meaning is not known, so the work may not be the same: {}",
            few(&words)
        );
        notes.push(Reason::beside("unknown_settings", text));
    }
    notes.extend(warm_up.map(|text| Reason::beside("warm_up", text)));
    if let CellState::Ok { summary } = &cell.input.state {
        let doubtful = summary.notes.iter();
        let doubtful = doubtful.filter(|note| note.kind == NoteKind::Doubtful);
        notes.extend(doubtful.map(|note| note.reason.clone()));
    }
    notes.extend(cell.notes_on_uncounted());
    notes.extend(warnings_of(&now.environment, &now.contract));
    let differing = environment_differences(&now.environment_of(), &then.environment_of());
    let environment = environment_words(&differing, "the baseline");
    notes.extend(environment.map(|text| Reason::beside("environment", text)));
    if let (Some(device), Some(was)) = (&now.device, &then.device)
        && device != was
    {
        let text = format!("device: {device} now, {was} then");
        notes.push(Reason::beside("device", text));
    }
    notes.extend(choices(now, "repeats measured now"));
    notes.extend(choices(then, "baseline's repeats"));
    let hosts = all_hosts(&now.hosts).zip(all_hosts(&then.hosts));
    if let Some((now, then)) = hosts.filter(|(now, then)| now != then)
        && !now.is_empty()
        && !then.is_empty()
    {
        let [now, then] = [now, then].map(|hosts| hosts.into_iter().collect::<Vec<_>>().join(", "));
        let text = format!("hosts: {now} now, {then} then");
        notes.push(Reason::beside("hosts", text));
    }
    if let Some(([start, _], [_, end])) = now.measured.zip(then.measured)
        && start - end > SESSION_GAP_SECONDS
    {
        let (n, unit) = hours_or_days(start - end);
        let text = format!(
            "measured {n:.0} {unit} after the baseline: what else changed on the hosts since then is not in the interval"
        );
        notes.push(Reason::beside("measured_later", text));
    }
    notes
}

/// The verdict where some or all of the repeats are the baseline's own.
fn of_known(cell: &mut GateCell, known: usize, now: &BaselineCell, then: &BaselineCell) {
    let (all, of_then) = (now.attempts.len(), then.attempts.len());
    if known < all {
        let text = format!(
            "{known} of {} are the baseline's own: write a new baseline, or measure all of them anew",
            counted(all, "repeat")
        );
        cell.reason = Reason::no_verdict("some_are_the_baselines", text);
        return;
    }
    (cell.verdict, cell.same_measurements) = (GateVerdict::Pass, true);
    let text = if all == of_then {
        "the same measurements as the baseline: nothing that counts was measured since".to_owned()
    } else {
        format!(
            "the same measurements as the baseline, {all} of its {of_then}: nothing that counts was measured since"
        )
    };
    cell.reason = Reason::detail("same_measurements", text);
    let change = cell.ratio.map_or(0.0, |ratio| (ratio - 1.0).abs());
    if all == of_then && change > ROUNDING {
        let text = "the rate is another one because the same runs are evaluated in another way";
        cell.notes.push(Reason::beside("evaluated_anew", text));
    }
    if all == of_then && change > MUCH_ANEW {
        let text = "the baseline has another rate of the same runs: write a new baseline";
        cell.verdict = GateVerdict::Inconclusive;
        cell.reason = Reason::no_verdict("evaluated_anew", text);
    }
}

#[cfg(test)]
mod tests;
