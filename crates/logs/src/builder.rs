//! Puts together what a format's reader finds: steps in order, each once, settings, notes.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use serde_json::{Map, Value};

use super::{
    Anomaly, Evaluation, Failure, FailureClass, MAX_REPORTS, MemoryReport, RunningAverage, Step,
    TelemetrySample, Trace, UNREADABLE, UnreadableLines, dates, numbers::stated,
    process::Processes, trace::NAN_LOSSES,
};

/// A group of settings: those of the trainer that nothing here has a name for.
pub const ARGUMENTS: &str = "arguments";
/// Megatron has some 600.
const MOST_ARGUMENTS: usize = 1024;

/// Steps that a trace holds. A longer series is condensed: two neighbours become one entry that is
/// the mean of both, so that a log of any length is read in the same memory.
pub const MAX_STEPS: usize = 1 << 17;

/// Numbers up to here are exact in JSON as well, and arithmetic with them cannot overflow; no
/// training has more steps.
pub const LAST_STEP: u64 = 1 << 53;

/// Lines that a step may come late: each one that does costs as many moves.
const MAX_LATE: usize = 4096;

/// A run whose last steps, so many of them, have no finite loss has diverged; a single one may be
/// an overflow that it survives.
const NAN_STEPS: u64 = 3;

/// Values of one step that two lines state are the same up to this.
const SAME: f64 = 0.02;

/// Hears of a line by its number, and of the kind of line that has read it.
pub type Tell = Box<dyn FnMut(u64, &str) + Send>;

/// Collects one log's trace.
#[derive(Default)]
pub struct Builder {
    pub trace: Trace,
    pub notes: Notes,
    /// Values of a line are means since the line before it (Megatron, NeMo): how many steps each
    /// stands for follows from the step numbers.
    pub averages: bool,
    /// Where two lines state the same step, the later one counts: the step was done again after a
    /// resume, and that is what the rest of the log builds on.
    pub latest: bool,
    pub processes: Processes,
    /// Settings of attempts that ended before their first step.
    pub former: BTreeMap<String, Value>,
    /// The beginning of the line that is read now, where its date is.
    pub beginning: String,
    /// When the line that is read now was seen in the log: seconds since 1970.
    pub clock: Option<f64>,
    /// Hears which kind of line has read a line, by the line's number.
    pub tell: Option<Tell>,
    told: u64,
    condensed: u32,
    nan: NanEnd,
    /// The newest evaluations whose values are not finite.
    nan_evaluations: BTreeSet<(Option<u64>, String)>,
}

/// The steps at the end of the log so far whose losses are stated and are not finite.
#[derive(Default)]
struct NanEnd {
    steps: u64,
    newest: u64,
    /// What the log or the notes say of the first and the newest of them.
    evidence: [String; 2],
    /// NaN notes that were seen to.
    seen: u64,
    any_finite: bool,
}

impl NanEnd {
    fn step(&mut self, step: &Step, notes: &Notes) {
        let told = std::mem::replace(&mut self.seen, notes.nan_losses) < notes.nan_losses;
        if step.loss.is_some() {
            self.any_finite = true;
            // What another rank says of the same step takes nothing back.
            if step.step != self.newest {
                self.steps = 0;
            }
        } else if told && (self.steps == 0 || step.step != self.newest) {
            let at = usize::from(self.steps > 0);
            self.evidence[at].clone_from(&notes.newest_nan);
            (self.steps, self.newest) = (self.steps + 1, step.step);
        }
    }

    fn failure(self, trace: &Trace) -> Option<Failure> {
        let is_last = trace
            .steps
            .last()
            .is_some_and(|step| step.step == self.newest);
        let last_word = is_last && trace.ended() || !self.any_finite;
        let diverged = self.steps >= NAN_STEPS || last_word && self.steps > 0;
        diverged.then(|| {
            let [first, newest] = self.evidence;
            let lines = [Some(first), Some(newest).filter(|_| self.steps > 1)];
            Failure {
                class: FailureClass::Nan,
                evidence: lines.into_iter().flatten().collect(),
            }
        })
    }
}

/// Settings that a rate is made with.
const RATE: [&str; 4] = [
    "num_gpus",
    "data_parallel_size",
    "seq_length",
    "global_batch_size",
];

impl Builder {
    /// One line's step. Of a step that was stated before, only what is new is taken: ranks and
    /// resumed runs repeat.
    pub fn step(&mut self, mut step: Step) {
        if step.step > LAST_STEP {
            return self
                .notes
                .add("absurd_value", || format!("step {}", step.step));
        }
        self.take_former();
        self.trace.step_lines += 1;
        step.ended_at = step.ended_at.or_else(|| dates::of(&self.beginning));
        if step.ended_at.is_none() {
            step.ended_at = self.clock;
            self.trace.dated_by_lines |= self.clock.is_some();
        } else {
            step.seen_at = self.clock;
        }
        if !self.is_over() {
            self.nan.step(&step, &self.notes);
            self.enter(step);
        }
    }

    /// Puts a step in its place, or takes what is new of one that is there.
    pub fn put(&mut self, step: Step) {
        let steps = &mut self.trace.steps;
        if steps.last().is_none_or(|last| last.step < step.step) {
            steps.push(step);
            if steps.len() > MAX_STEPS {
                self.condense();
            }
            return;
        }
        match steps.binary_search_by_key(&step.step, |s| s.step) {
            Ok(at) => {
                let number = step.step;
                // What another process did says nothing of this one.
                if step.process > steps[at].process {
                    steps[at] = step;
                    return;
                }
                let (which, other) = if self.latest {
                    let known = std::mem::replace(&mut steps[at], step);
                    steps[at].process = known.process;
                    steps[at].ended_at = steps[at].ended_at.or(known.ended_at);
                    ("last", known)
                } else {
                    ("first", step)
                };
                if merge(&mut steps[at], other) {
                    self.notes.add("duplicate_step", || {
                        format!("step {number} again; the {which} one counts")
                    });
                }
            }
            Err(at) if self.condensed == 0 && steps.len() - at <= MAX_LATE => {
                steps.insert(at, step);
                if steps.len() > MAX_STEPS {
                    self.condense();
                }
            }
            // Far too late, or between two entries that are means already and cannot be told apart.
            Err(_) => self.notes.add("late_step", || {
                format!("step {} out of order; it is left out", step.step)
            }),
        }
    }

    /// The line that is read now is of this kind; the first one that is told of a line counts.
    pub fn tell_reader(&mut self, kind: &str) {
        let line = self.notes.line;
        if let Some(tell) = &mut self.tell
            && std::mem::replace(&mut self.told, line) != line
        {
            tell(line, kind);
        }
    }

    /// Forgets the step of the newest line, which is about to be stated again with the rest of that
    /// line.
    pub fn take_back(&mut self, step: u64) {
        if self.condensed == 0 {
            self.leave(step);
        }
    }

    /// The line that stated a step whose loss is not finite: better evidence than what the notes
    /// say of it.
    pub fn nan_line(&mut self, line: &str) {
        let nan = &mut self.nan;
        let lower = line.to_ascii_lowercase();
        if nan.seen == self.notes.nan_losses
            && nan.steps > 0
            && ["nan", "inf"].iter().any(|word| lower.contains(word))
        {
            line.clone_into(&mut nan.evidence[usize::from(nan.steps > 1)]);
        }
    }

    /// A setting by the job's name, as the trainer states it. What is stated first counts.
    pub fn set(&mut self, name: &str, value: impl Into<Value>) {
        let value = value.into();
        if value.is_null() || self.is_over() {
            return;
        }
        match self.trace.effective.0.get(name) {
            None => drop(self.trace.effective.0.insert(name.to_owned(), value)),
            Some(first)
                if *first == value
                    || first
                        .as_f64()
                        .is_some_and(|first| Some(first) == value.as_f64()) => {}
            Some(first) => {
                let detail = format!("{name} is {first}, later {value}; the first one counts");
                self.notes.add("setting_restated", || detail);
                // What a rate is divided by has one value before the first step, or nobody knows it.
                if RATE.contains(&name) && self.trace.steps.is_empty() {
                    let restated = &mut self.trace.restated.0;
                    restated.entry(name.to_owned()).or_insert(value.clone());
                }
                self.states_again(name, &value);
            }
        }
    }

    /// A setting that nothing here has a name for. The first value counts; another one of a later process is mostly a path.
    pub fn argument(&mut self, name: &str, text: &str) {
        let is_name = name.len() <= 80
            && name.starts_with(|c: char| c.is_ascii_alphabetic())
            && name
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b));
        let is_heading = text.ends_with(':');
        let Some(value) = stated(text).filter(|_| is_name && !is_heading && !self.is_over()) else {
            return;
        };
        let settings = &mut self.trace.effective.0;
        let group = settings.entry(ARGUMENTS.to_owned());
        if let Value::Object(known) = group.or_insert_with(|| Value::Object(Map::new()))
            && known.len() < MOST_ARGUMENTS
        {
            known.entry(name).or_insert(value);
        }
    }

    pub fn memory(&mut self, report: MemoryReport) {
        if self.is_over() {
            return;
        }
        self.trace.memory_lines += 1;
        if self.trace.memory.len() < MAX_REPORTS {
            self.trace.memory.push(report);
        }
    }

    pub fn evaluation(&mut self, evaluation: Evaluation) {
        if self.trace.evaluations.len() < MAX_REPORTS && !self.is_over() {
            self.trace.evaluations.push(evaluation);
        }
    }

    /// A value of an evaluation after `step`; one that is not finite is noted instead, once however
    /// many ranks print it.
    pub fn evaluated(&mut self, step: Option<u64>, name: impl Into<String>, value: f64) {
        let name = name.into();
        if value.is_finite() {
            return self.evaluation(Evaluation {
                step,
                samples: None,
                name,
                value,
            });
        }
        if self.nan_evaluations.len() >= MAX_REPORTS {
            self.nan_evaluations.clear();
        }
        if step.is_some() && !self.nan_evaluations.insert((step, name.clone())) {
            return;
        }
        let (kind, what) = ("nan_evaluation", || format!("{name} is {value}"));
        match step {
            Some(step) => self.notes.add_at(step, kind, what),
            None => self.notes.add(kind, what),
        }
    }

    pub fn sample(&mut self, sample: TelemetrySample) {
        if self.trace.telemetry.len() < MAX_REPORTS {
            self.trace.telemetry.push(sample);
        } else {
            self.notes.add("samples_left_out", || {
                format!("more than {MAX_REPORTS} readings")
            });
        }
    }

    /// Gives all steps other numbers, which leave them in order.
    pub fn renumber(&mut self, of: impl Fn(u64) -> u64) {
        let steps = self.trace.steps.iter_mut();
        steps.for_each(|step| step.step = of(step.step));
        let evaluations = self.trace.evaluations.iter_mut();
        evaluations.for_each(|e| e.step = e.step.map(&of));
        self.nan.newest = of(self.nan.newest);
    }

    /// A figure of the whole run; the last one counts.
    pub fn total(&mut self, name: &str, value: f64) {
        if value.is_finite()
            && !self.is_over()
            && (self.trace.totals.len() < 64 || self.trace.totals.contains_key(name))
        {
            self.trace.totals.insert(name.to_owned(), value);
        }
    }

    /// What the trainer itself says of its end. The first one is the cause, later ones follow from
    /// it.
    pub fn failure(&mut self, failure: Failure) {
        self.trace.failure.get_or_insert(failure);
    }

    pub fn finish(mut self) -> Trace {
        self.take_former();
        self.settle_back(None);
        self.choose_beginning();
        if self.averages {
            self.spread();
        }
        self.tell_missing();
        if let Some(failure) = std::mem::take(&mut self.nan).failure(&self.trace) {
            self.failure(failure);
        }
        self.trace.unreadable = self.notes.unreadable;
        self.trace.anomalies.extend(self.notes.finish());
        self.trace
    }

    /// Two neighbours → their mean, over the whole series.
    fn condense(&mut self) {
        self.condensed += 1;
        let steps = &mut self.trace.steps;
        // In place: a second list would be memory again.
        for pair in 0..steps.len() / 2 {
            let (first, second) = (
                std::mem::take(&mut steps[2 * pair]),
                std::mem::take(&mut steps[2 * pair + 1]),
            );
            steps[pair] = mean_of(&first, second);
        }
        let (half, odd) = (steps.len() / 2, steps.len() % 2);
        if odd == 1 {
            steps.swap(half, 2 * half);
        }
        steps.truncate(half + odd);
        if self.condensed == 1 {
            self.notes.add("condensed", || {
                format!("more than {MAX_STEPS} steps: neighbours stand together as means (steps_averaged)")
            });
        }
    }

    /// How many steps each line is the mean of: the distance to the line before it, but never more
    /// than the usual one, for lines may be missing.
    fn spread(&mut self) {
        let steps = &mut self.trace.steps;
        if self.condensed > 0 {
            return;
        }
        let gaps: Vec<u64> = steps.windows(2).map(|w| w[1].step - w[0].step).collect();
        let Some(usual) = steps.first().and_then(|first| interval(first.step, &gaps)) else {
            return;
        };
        for at in 0..steps.len() {
            let number = steps[at].step;
            let is_first = at == 0 || steps[at].process > steps[at - 1].process;
            let process = self.trace.processes.get(steps[at].process as usize);
            let stated = process.and_then(|process| process.first_step);
            let gap = match stated {
                _ if !is_first => gaps[at - 1],
                Some(first) if first < number => number + 1 - first,
                // Lines that stand at the interval's multiples count from there; so does an odd one before them.
                _ if gaps.get(at).is_some_and(|gap| *gap < usual) => match number % usual {
                    0 => usual,
                    odd => odd,
                },
                Some(_) if at > 0 => gaps[at - 1],
                _ => number.max(1),
            };
            if steps[at].steps_averaged.is_none() {
                steps[at].steps_averaged = Some(gap.min(usual)).filter(|n| *n > 1);
            }
        }
    }

    fn tell_missing(&mut self) {
        let steps = &self.trace.steps;
        let gaps: Vec<u64> = steps.windows(2).map(|w| w[1].step - w[0].step).collect();
        let usual = steps
            .first()
            .and_then(|first| interval(first.step, &gaps))
            .unwrap_or(1);
        let (mut told, notes) = (0u32, &mut self.notes);
        let mut missing = |first: u64, last: u64| {
            told += 1;
            if told <= 64 {
                notes.add("missing_steps", || {
                    if first == last {
                        format!("{last}")
                    } else {
                        format!("{first}–{last}")
                    }
                });
            }
        };
        if usual == 1
            && let Some(first) = steps
                .first()
                .filter(|s| s.step > 1 && s.steps_averaged.is_none())
        {
            let began = self.trace.processes.first().and_then(|p| p.first_step);
            if began != Some(first.step) {
                missing(began.unwrap_or(1), first.step - 1);
            }
        }
        for (pair, gap) in steps.windows(2).zip(&gaps) {
            if *gap > usual {
                missing(pair[0].step + usual, pair[1].step - 1);
            }
        }
    }
}

/// Every how many steps the log has a line: the most common distance; `None` for a single line.
pub fn interval(first: u64, gaps: &[u64]) -> Option<u64> {
    if let [gap] = gaps {
        // Two lines: an interval counts from the beginning, so it divides the step numbers; else
        // lines are missing.
        return Some(if first.is_multiple_of(*gap) { *gap } else { 1 });
    }
    let mut counts = std::collections::BTreeMap::<u64, usize>::new();
    gaps.iter()
        .for_each(|gap| *counts.entry(*gap).or_default() += 1);
    // The smaller one of two that are as common: the larger one has a line missing.
    counts
        .into_iter()
        .rev()
        .max_by_key(|(_, n)| *n)
        .map(|(gap, _)| gap)
}

/// Do two lines about one step contradict each other?
pub fn differs(a: &Step, b: &Step) -> bool {
    let mut differs = false;
    macro_rules! hold {
        ($($field:ident),*) => {$(
            if let (Some(a), Some(b)) = (a.$field, b.$field) {
                let (a, b) = (a as f64, b as f64);
                differs |= (a - b).abs() > SAME * a.abs().max(b.abs());
            }
        )*};
    }
    hold!(step_time_seconds, loss, learning_rate, grad_norm, tokens);
    hold!(tokens_per_second_per_gpu, tflops_per_gpu);
    hold!(global_batch_size, consumed_samples, steps_averaged);
    differs
}

/// Takes what `a` lacks from `b`; true if they contradict each other.
pub fn merge(a: &mut Step, b: Step) -> bool {
    let differs = differs(a, &b);
    macro_rules! take {
        ($($field:ident),*) => {$(
            a.$field = a.$field.or(b.$field);
        )*};
    }
    take!(
        step_time_seconds,
        loss,
        learning_rate,
        grad_norm,
        tokens,
        tokens_per_second_per_gpu,
        tflops_per_gpu
    );
    take!(global_batch_size, consumed_samples, steps_averaged);
    // Memory is each rank's own: the largest one is what counts.
    if b.memory_bytes > a.memory_bytes {
        (a.memory_bytes, a.memory_kind, a.memory_source) =
            (b.memory_bytes, b.memory_kind, b.memory_source);
    }
    if a.running_average.is_none() {
        a.running_average = b.running_average;
    }
    if a.memory_figures.is_empty() {
        a.memory_figures = b.memory_figures;
    }
    for (name, value) in b.other {
        a.other.entry(name).or_insert(value);
    }
    differs
}

/// One entry for two neighbours, weighted by the steps that each stands for.
fn mean_of(first: &Step, mut second: Step) -> Step {
    let (n, m) = (first.count(), second.count());
    let all = n + m;
    let mean = |a: Option<f64>, b: Option<f64>| Some((a? * n as f64 + b? * m as f64) / all as f64);
    let larger = first.memory_bytes > second.memory_bytes;
    second.steps_averaged = Some(all);
    second.process = second.process.min(first.process);
    second.step_time_seconds = mean(first.step_time_seconds, second.step_time_seconds);
    second.loss = mean(first.loss, second.loss);
    second.grad_norm = mean(first.grad_norm, second.grad_norm);
    second.tokens_per_second_per_gpu = mean(
        first.tokens_per_second_per_gpu,
        second.tokens_per_second_per_gpu,
    );
    second.tflops_per_gpu = mean(first.tflops_per_gpu, second.tflops_per_gpu);
    if larger {
        second.memory_bytes = first.memory_bytes;
        second.memory_kind = first.memory_kind.clone();
        second.memory_source = first.memory_source.clone();
    }
    second.running_average = None::<Box<RunningAverage>>;
    second.memory_figures = Vec::new();
    second.other = std::collections::BTreeMap::<Cow<'static, str>, f64>::new();
    second
}

/// A kind, the steps and words of its first cases, and how many more there are.
type Told = (String, Vec<(Option<u64>, String)>, usize);

/// Anomalies by kind, each told a few times and then counted.
#[derive(Default)]
pub struct Notes {
    kinds: Vec<Told>,
    /// How often a loss was not finite, and what was said of the newest one.
    pub nan_losses: u64,
    newest_nan: String,
    /// The number of the line that is read now; 0 where the log has no lines.
    pub line: u64,
    unreadable: Option<UnreadableLines>,
    last_unreadable: u64,
}

impl Notes {
    const TOLD: usize = 8;
    const KINDS: usize = 32;

    pub fn add(&mut self, kind: &str, detail: impl FnOnce() -> String) {
        self.note(None, kind, detail);
    }

    /// `what` is odd about a step.
    pub fn add_at(&mut self, step: u64, kind: &str, what: impl FnOnce() -> String) {
        self.note(Some(step), kind, || format!("step {step}: {}", what()));
    }

    fn note(&mut self, step: Option<u64>, kind: &str, detail: impl FnOnce() -> String) {
        if NAN_LOSSES.contains(&kind) {
            self.nan_losses += 1;
            let detail = detail();
            self.newest_nan = format!("{kind}: {detail}");
            return self.keep(kind, step, || detail);
        }
        if UNREADABLE.contains(&kind) && self.line > 0 {
            let line = self.line;
            if std::mem::replace(&mut self.last_unreadable, line) != line {
                let first = UnreadableLines {
                    count: 0,
                    first: line,
                };
                self.unreadable.get_or_insert(first).count += 1;
            }
            return self.keep(kind, step, || format!("line {line}: {}", detail()));
        }
        self.keep(kind, step, detail);
    }

    fn keep(&mut self, kind: &str, step: Option<u64>, detail: impl FnOnce() -> String) {
        let at = self.kinds.iter().position(|(k, ..)| k == kind).or_else(|| {
            (self.kinds.len() < Self::KINDS).then(|| {
                self.kinds.push((kind.to_owned(), Vec::new(), 0));
                self.kinds.len() - 1
            })
        });
        if let Some((_, told, more)) = at.and_then(|at| self.kinds.get_mut(at)) {
            if told.len() < Self::TOLD {
                told.push((step, detail()))
            } else {
                *more += 1
            }
        }
    }

    /// Takes back what was said of this kind.
    pub fn forget(&mut self, kind: &str) {
        self.kinds.retain(|(known, ..)| known != kind);
    }

    pub fn has(&self, kind: &str) -> bool {
        self.kinds.iter().any(|(k, ..)| k == kind)
    }

    pub fn finish(self) -> Vec<Anomaly> {
        let mut all = Vec::new();
        for (kind, told, more) in self.kinds {
            all.extend(told.into_iter().map(|(step, detail)| Anomaly {
                kind: kind.clone(),
                detail,
                step,
            }));
            if more > 0 {
                all.push(Anomaly {
                    kind,
                    detail: format!("and {more} more"),
                    step: None,
                });
            }
        }
        all
    }
}

#[cfg(test)]
mod tests;
