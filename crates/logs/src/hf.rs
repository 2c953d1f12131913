//! The format `hf-trainer`: Hugging Face's Trainer and those built on it (Axolotl, LLaMA-Factory, TRL, notebooks).
//!
//! Its lines are Python dictionaries without a step number: that is taken from the progress bar
//! that is drawn again behind each, from `logging_steps`, or from the epoch; where there is none of them, lines are counted and this is said.

mod fields;
mod numbering;
mod settings;
mod state;
#[cfg(test)]
pub(super) mod tests;
mod times;

use tprimat_base::words::part;

use super::{
    RunningAverage,
    builder::{Builder, MAX_STEPS},
    dates,
    deepspeed::{Config, overflow},
    format::{Evidence, Reader},
    lines::Line,
    process::{self, Said},
    tqdm::{Bar, bars, may_be_bar},
    values::{clock, count_after, has, once},
};
use fields::{Fields, Kind, Table, classify, dictionaries, is_header, whole_number};
use numbering::{Around, End, Line as Moment, Previous, Ranks, Redrawn, begins_late, rank_of};
use settings::Settings;
use state::State;

pub fn evidence(line: &str) -> Evidence {
    let mut stated = dictionaries(line);
    if stated.any(|(_, pairs, _)| classify(&pairs) != Kind::Other)
        || is_header(line)
        || has(line, "TrainOutput(global_step=")
        || has(line, "\"log_history\": [")
        || has(line, "Total train batch size (w. parallel")
    {
        return Evidence::Strong;
    }
    let is_begin = has(line, "***** Running training *****") || has(line, "[INFO|trainer.py");
    Evidence::Weak.only_if(is_begin)
}

#[derive(Default)]
pub struct HuggingFace {
    settings: Settings,
    deepspeed: Config,
    table: Table,
    started: bool,
    /// The newest bar of training, and the total by which it is known.
    bar: Option<BarState>,
    bar_total: Option<u64>,
    /// The total of the bar that was drawn first, and its newest count.
    length: Option<(u64, u64)>,
    /// A line whose step the next bar may tell, and the bar before it.
    pending: Option<Pending>,
    previous: Option<Previous>,
    redrawn: Redrawn,
    ranks: Ranks,
    last_step: u64,
    /// Steps between the last two lines, where their numbers followed from something.
    gap: Option<u64>,
    /// Ways in which step numbers were assumed, each told once.
    assumed: Vec<&'static str>,
    /// Lines of this process were counted.
    counted: bool,
    /// The last epoch, as a summary states it.
    last_epoch: Option<String>,
    clock: times::Elapsed,
    /// Steps, and seconds since the beginning when they ended, by bars or by the lines.
    ends: Vec<(u64, f64)>,
    /// The same by the dates of lines, since the first of them.
    dated: times::Dated,
    /// A process has begun, and its bar may go back.
    has_begun: bool,
    /// Bars since one of training's length was drawn at 0 again.
    anew: Option<Anew>,
    /// Epochs of lines as they are printed, with their steps, in the order of the log.
    epochs: Vec<(String, u64)>,
    state: State,
    summaries: Vec<f64>,
    /// The mean of a bar that was drawn to its end, and how far it is from elapsed / count.
    finished_bar: Option<f64>,
    over: bool,
    second_run: bool,
    /// The run goes on from an earlier one: its summary counts the earlier steps, and no time of theirs.
    goes_on: bool,
    /// The last step of the earlier run, where the log says it.
    resumed: Option<u64>,
}

struct Pending {
    fields: Fields,
    before: Option<BarState>,
    date: Option<f64>,
}

#[derive(Clone, Copy)]
struct BarState {
    count: u64,
    seconds_per_iteration: Option<f64>,
}

/// Bars that began anew at 0 behind a line of training: those of a process that goes on from a checkpoint, or of an evaluation
/// that has as many parts as training has steps. The latter's are drawn to their end before the next line of training.
struct Anew {
    /// What was drawn before them.
    before: Option<BarState>,
    /// The first step that was drawn behind the 0.
    first: Option<u64>,
    newest: u64,
    ends: Vec<(u64, f64)>,
}

impl Anew {
    /// Takes a bar in; false if it is another one.
    fn draws(&mut self, bar: &Bar<'_>) -> bool {
        if bar.count < self.newest {
            return false;
        }
        self.newest = bar.count;
        if bar.count > 0 {
            self.first.get_or_insert(bar.count);
        }
        let next = bar.elapsed_seconds.map(|seconds| (bar.count, seconds));
        self.ends
            .extend(next.filter(|_| self.ends.len() < MAX_STEPS));
        true
    }

    /// The first step of the process that has begun.
    fn first_step(&self, total: Option<u64>) -> Option<u64> {
        self.first.filter(|_| Some(self.newest) != total)
    }
}

impl Reader for HuggingFace {
    fn line(&mut self, line: &Line<'_>, out: &mut Builder) {
        let whole = match self.state.line(&line.text, out) {
            state::Found::Nothing => None,
            state::Found::Part => return,
            state::Found::Whole(object) => Some(object),
        };
        let text = whole.as_deref().unwrap_or(&line.text);
        let mut at = 0;
        for (start, pairs, end) in dictionaries(text) {
            let kind = classify(&pairs);
            if kind == Kind::Other {
                continue;
            }
            let prefix = part(text, at..start);
            self.bars(prefix, out);
            at = end;
            if let Some(n) = count_after(part(text, ..start), "TrainOutput(global_step=") {
                out.total("global_step", n as f64);
            }
            self.logged(kind, &Fields::of(&pairs), rank_of(prefix), out);
        }
        let stated = at > 0;
        let drawn = self.bars(part(text, at..), out);
        if let Some(detail) = overflow(text) {
            let after = self.bar.map_or(self.last_step, |bar| bar.count);
            out.notes
                .add("overflow_skip", || format!("after step {after}: {detail}"));
        }
        if stated || drawn {
            // A launcher's words stand behind the bar that was drawn last.
            return self.process(text, out);
        }
        if let Some(at) = self.table.line(text, out) {
            self.last_step = self.last_step.max(at);
            return;
        }
        if has(text, "Training completed.") {
            out.trace.finished = true;
        }
        self.process(text, out);
        self.metrics(text, out);
        if !self.deepspeed.line(text, out) {
            self.settings.line(text, out);
        }
    }

    fn settle(&mut self, out: &mut Builder) {
        self.give(out);
    }

    fn forget(&mut self) {
        self.settings = Settings::default();
    }

    fn end(&mut self, out: &mut Builder) {
        self.give(out);
        self.end_process(out);
        if let Some(what) = begins_late(&self.epochs) {
            self.goes_on = true;
            out.notes.add("begins_late", || what);
        }
        if !self.second_run {
            self.whole_run(out);
            let last = out.trace.steps.last().map(|step| step.step);
            let done = self.bar.map(|bar| bar.count).max(last);
            let mean = done.and_then(|done| self.settings.mean_batch(done, out));
            times::fewer_sequences(mean, out);
        }
        out.trace.clock.take_if(|clock| clock.ends.is_empty());
        self.state.end(out);
    }
}

impl HuggingFace {
    /// What the summary at the end says of the speed of the whole run.
    fn whole_run(&self, out: &mut Builder) {
        let after = match (self.goes_on, self.resumed) {
            (false, _) => 0,
            (true, Some(after)) => after,
            // It is not known how many of the steps are its own.
            (true, None) => return,
        };
        if self.bar.is_none() && self.settings.total_steps.is_none() {
            times::asked_for(out);
        }
        times::of_whole_run(after, self.done(out), self.bar.is_some(), out);
    }

    /// A bar that was not drawn to its end is of a run that stopped before it.
    fn done(&self, out: &Builder) -> times::Done {
        let drawn = self.bar.map(|bar| bar.count);
        let epoch = self.last_epoch.as_deref();
        let by_epoch = epoch.and_then(|epoch| self.settings.steps_of_epoch(epoch, out));
        times::done(drawn.or(self.settings.total_steps), by_epoch, out)
    }

    /// A process begins, or says after which step it goes on.
    fn process(&mut self, text: &str, out: &mut Builder) {
        if has(text, "***** Running training *****") && self.last_step > 0 {
            self.restart(out);
        } else if let Some(said) = process::said(text) {
            self.has_begun = true;
            if let Said::After(step) = said {
                self.goes_on |= step > 0;
                self.resumed = Some(step).filter(|_| out.trace.steps.is_empty());
                self.last_step = step;
            }
        }
    }

    /// What follows is numbered as from the beginning of a log.
    fn restart(&mut self, out: &mut Builder) {
        self.give(out);
        self.end_process(out);
        (self.bar, self.previous, self.gap) = (None, None, None);
        (self.last_step, self.clock, self.ranks) = (0, times::Elapsed::default(), Ranks::default());
        self.has_begun = false;
    }

    /// A line of training stands behind bars that began anew and are not at their end: a process goes on from a checkpoint.
    fn take_restart(&mut self, out: &mut Builder) {
        let total = self.bar_total.or(self.settings.total_steps);
        let Some(anew) = self.anew.take() else { return };
        let Some(first) = anew.first_step(total) else {
            self.bar = anew.before;
            return;
        };
        let bar = self.bar;
        self.restart(out);
        out.begins(Said::After(first - 1));
        (self.bar, self.ends, self.last_step) = (bar, anew.ends, first - 1);
        self.goes_on |= first > 1;
    }

    /// Seconds since the beginning that go back from one step's line to another's are those of a process that goes on.
    fn seconds_go_back(&mut self, fields: &Fields, out: &mut Builder) {
        let clocks = fields.elapsed().zip(self.clock.at);
        let steps = fields.step().zip(self.gap);
        let Some((((now, resolution), (then_step, then)), (step, gap))) = clocks.zip(steps) else {
            return;
        };
        if now + resolution >= then || step == then_step || self.over || self.second_run {
            return;
        }
        let before = step.saturating_sub(gap);
        self.restart(out);
        out.begins(Said::After(before));
        (self.gap, self.last_step) = (Some(gap), before);
        self.goes_on |= before > 0;
    }

    /// The step of an earlier line of this epoch: a process that goes on from a checkpoint repeats lines.
    fn repeated(&self, epoch: &str) -> Option<u64> {
        let at = self.epochs.iter().rposition(|(then, _)| then == epoch)?;
        // As printed, an epoch may be that of many steps.
        let alone = at == 0 || self.epochs[at - 1].0 != epoch;
        alone.then(|| self.epochs[at].1)
    }

    fn end_process(&mut self, out: &mut Builder) {
        let redrawn = std::mem::take(&mut self.redrawn);
        let end = End {
            epoch: self.last_epoch.as_deref(),
            interval: self
                .settings
                .logging_steps
                .filter(|_| !self.settings.logging_first_step),
            has_differences: self.clock.at.is_some() || self.clock.tokens.is_some(),
        };
        let own = self
            .length
            .filter(|(total, _)| !times::is_of_another(*total, out));
        let done = own.map(|(_, count)| count);
        let are_late = done.is_some_and(|done| redrawn.late(done, &end, out));
        let counted = std::mem::take(&mut self.counted);
        if are_late {
            self.assumed.clear();
        } else {
            out.trace.steps_assumed |= counted;
            redrawn.end(out);
        }
        let dated = std::mem::take(&mut self.dated).ends();
        let mut ends = std::mem::take(&mut self.ends);
        if ends.len() < 2 && !are_late {
            ends = dated;
        }
        times::of_bars(&ends, self.done(out), out);
        times::derive(&ends, out);
    }

    fn logged(&mut self, kind: Kind, fields: &Fields, rank: Option<u64>, out: &mut Builder) {
        if !self.started {
            self.started = true;
            out.averages = true;
        }
        if let Some(total) = fields.total_steps() {
            self.settings.total_steps.get_or_insert(total);
            once("train_iters", total, out);
        }
        if kind == Kind::Step {
            // A process that has a line has drawn its first bars: later ones that go back are another's.
            self.has_begun = false;
            self.take_restart(out);
            self.seconds_go_back(fields, out);
        }
        // The same line of another handler or rank.
        if self.previous.as_ref().is_some_and(|p| p.fields == *fields)
            || self.ranks.held.contains(fields)
            || kind == Kind::Step && self.said_again(fields, out)
        {
            return;
        }
        match kind {
            Kind::Step => {
                let then = self.previous.as_ref().and_then(|p| p.fields.get("epoch"));
                let epochs = fields.get("epoch").zip(then);
                let again = epochs.is_some_and(|(now, then)| now < then);
                if self.over && again && !std::mem::replace(&mut self.second_run, true) {
                    out.notes.add("second_run", || {
                        "another training follows in this log; the first one counts".to_owned()
                    });
                }
                if self.second_run {
                    return;
                }
                if again && self.bar.is_none() {
                    self.give(out);
                    let step = fields.text("epoch").and_then(|epoch| self.repeated(epoch));
                    let before = step.map(|step| step.saturating_sub(self.gap.unwrap_or(1)));
                    self.last_step = before.unwrap_or(self.last_step);
                }
                match self.moment(fields, rank, out) {
                    Moment::OfRank => return Ranks::tell(fields, out),
                    Moment::Open if self.ranks.hold(fields) => return,
                    _ => {}
                }
                let is_bare = self.pending.is_some() && self.bar.is_some();
                self.redrawn.bare += usize::from(is_bare);
                if self.previous.is_none() {
                    let at_end = self.length.is_some_and(|(total, count)| count == total);
                    self.redrawn.begins_at_end = at_end;
                }
                self.give(out);
                self.begin(fields.clone(), rank, out);
            }
            Kind::Summary => {
                self.give(out);
                self.over = true;
                if let (None, Some(epoch)) = (&self.last_epoch, fields.text("epoch")) {
                    self.last_epoch = Some(epoch.to_owned());
                }
                self.summary(fields, out);
            }
            Kind::Evaluation => {
                self.give(out);
                let step = fields.step().or(Some(self.last_step).filter(|n| *n > 0));
                if !self.second_run {
                    fields
                        .evaluations()
                        .for_each(|(name, value)| out.evaluated(step, name, value));
                }
            }
            Kind::Other => {}
        }
    }

    /// Is it the line before, as another handler prints it? What it says more is taken.
    fn said_again(&mut self, fields: &Fields, out: &Builder) -> bool {
        let Some(previous) = &mut self.previous else {
            return false;
        };
        let is_again = previous.fields.is_said_again_by(fields);
        if is_again {
            previous.fields.add(fields);
            if let Some(pending) = &mut self.pending {
                pending.fields.add(fields);
                pending.date = pending.date.or_else(|| dates::of(&out.beginning));
            }
        }
        is_again
    }

    fn begin(&mut self, fields: Fields, rank: Option<u64>, out: &mut Builder) {
        let has_number = fields.step().is_some();
        self.previous = Some(Previous {
            fields: fields.clone(),
            rank,
            bar: self.bar.map(|bar| bar.count),
        });
        self.pending = Some(Pending {
            fields,
            before: self.bar,
            date: dates::of(&out.beginning),
        });
        if has_number {
            self.resolve(None, out);
        }
    }

    /// Gives the pending line its number, and lines that were held back theirs, if they are steps.
    fn give(&mut self, out: &mut Builder) {
        self.resolve(None, out);
        for fields in self.ranks.release(out) {
            self.begin(fields, None, out);
            self.resolve(None, out);
        }
    }

    /// Is it a line of another step than the one before?
    fn moment(&mut self, fields: &Fields, rank: Option<u64>, out: &Builder) -> Moment {
        let Some(previous) = &self.previous else {
            return Moment::Step;
        };
        let bar = self.bar.map(|bar| bar.count);
        let stands = bar == previous.bar || bar == Some(self.last_step) && self.redrawn.seen();
        let around = Around {
            ranks: [previous.rank, rank],
            epochs_are_steps: fields
                .text("epoch")
                .is_some_and(|e| self.settings.step_of_epoch(e, out).is_some()),
            // A bar that is hardly ever drawn stands still over many steps.
            moved: bar
                .map(|_| !stands)
                .filter(|moved| *moved || self.redrawn.seen()),
        };
        self.ranks.judge(&previous.fields, fields, &around)
    }

    /// Takes the bars of a piece of text in; false if there are none.
    fn bars(&mut self, text: &str, out: &mut Builder) -> bool {
        if !may_be_bar(text) {
            return false;
        }
        let mut any = false;
        for bar in bars(text) {
            any = true;
            let total = self.settings.total_steps.or(self.bar_total);
            // `Map: 12%|…` and bars of other lengths are of something else.
            let is_other = bar.label.ends_with(':') || total.is_some_and(|t| t != bar.total);
            if is_other || self.second_run {
                continue;
            }
            let drawn = BarState {
                count: bar.count,
                seconds_per_iteration: bar.seconds_per_iteration,
            };
            if self.has_begun && self.bar.is_some_and(|before| drawn.count < before.count) {
                self.restart(out);
            }
            let (length, _) = *self.length.get_or_insert((bar.total, 0));
            if length == bar.total {
                self.length = Some((length, bar.count));
            }
            if self.pending.is_some() {
                self.bar_total = Some(bar.total);
            }
            if bar.count == 0 && self.last_step > 0 && !self.over && !self.has_begun {
                self.anew = Some(Anew {
                    before: self.bar,
                    first: None,
                    newest: 0,
                    ends: Vec::new(),
                });
            }
            if self.anew.as_mut().is_some_and(|anew| !anew.draws(&bar)) {
                self.anew = None;
            }
            if self.anew.is_some() {
                self.resolve(None, out);
                self.bar = Some(drawn);
                continue;
            }
            if let Some(elapsed) = bar.elapsed_seconds {
                if self.has_begun && self.ends.last().is_some_and(|(_, then)| elapsed < *then) {
                    times::derive(&std::mem::take(&mut self.ends), out);
                }
                self.ended(bar.count, elapsed);
            }
            self.resolve(Some(drawn), out);
            self.bar = Some(drawn);
            if bar.count == bar.total && self.settings.total_steps.is_some() {
                self.full_bar(&bar, out);
            }
        }
        any
    }

    /// Notes how many seconds after the beginning a step ended. A bar is drawn several times for one step; the first time counts.
    fn ended(&mut self, step: u64, seconds: f64) {
        let is_next = self
            .ends
            .last()
            .is_none_or(|(last, then)| *last < step && *then <= seconds);
        if is_next && self.ends.len() < MAX_STEPS {
            self.ends.push((step, seconds));
        }
    }

    /// When it is closed, a bar shows its mean over all steps instead of the smoothed one.
    fn full_bar(&mut self, bar: &Bar<'_>, out: &mut Builder) {
        let Some((elapsed, mean)) = bar.elapsed_seconds.zip(bar.seconds_per_iteration) else {
            return;
        };
        let distance = (elapsed / bar.count.max(1) as f64 - mean).abs();
        // Where ranks differ by a rounding, the first one counts.
        let is_better = |best| distance + 5e-3 * mean < best;
        if self.finished_bar.is_none_or(is_better) {
            self.finished_bar = Some(distance);
            out.total("progress_bar_seconds_per_step", mean);
            out.total("progress_bar_elapsed_seconds", elapsed);
        }
    }

    /// Gives the pending line its step number; `after` is the bar that is drawn behind it.
    fn resolve(&mut self, after: Option<BarState>, out: &mut Builder) {
        let Some(Pending {
            fields,
            before,
            date,
        }) = self.pending.take()
        else {
            return;
        };
        let new = |n: &u64| *n > self.last_step;
        let interval = self.settings.logging_steps;
        let drawn = [after, before].map(|bar| bar.filter(|b| new(&b.count)));
        let by_interval = interval.map(|i| match self.last_step {
            0 if self.settings.logging_first_step => 1,
            last => last / i * i + i,
        });
        let by_epoch = fields
            .text("epoch")
            .and_then(|e| self.settings.step_of_epoch(e, out))
            .filter(new);
        let first = |fits: &dyn Fn(u64) -> bool| {
            let mut bars = drawn.into_iter().flatten();
            bars.find(|bar| fits(bar.count))
        };
        let drawn_at = |step: Option<u64>| first(&|count| Some(count) == step);
        let on_interval = first(&|count| interval.is_some_and(|i| count.is_multiple_of(i)));
        let fitting = drawn_at(by_interval).or_else(|| drawn_at(by_epoch));
        let bar = fitting.or(on_interval).or(drawn[0]).or(drawn[1]);
        let taken = before.filter(|b| {
            after.is_none_or(|a| a.count == b.count) && self.redrawn.was_taken(b.count)
        });
        let mut counted = false;
        let stated = fields
            .step()
            .or(bar.map(|b| b.count))
            .or(taken.map(|b| b.count + 1));
        let at = stated.unwrap_or_else(|| {
            let by_gap = self.gap.map(|gap| self.last_step + gap);
            let derived = by_interval.or(by_epoch).or(by_gap);
            counted = derived.is_none();
            let why = match (by_interval, by_epoch, by_gap) {
                (Some(_), ..) => "lines have no step numbers; they follow from logging_steps",
                (None, Some(_), _) => "lines have no step numbers; they follow from the epochs",
                (None, None, Some(_)) => {
                    "an epoch fits no step: the distance of the lines before it is gone on with"
                }
                (None, None, None) => {
                    "lines have no step numbers and no interval is stated; they are counted"
                }
            };
            if !self.assumed.contains(&why) {
                self.assumed.push(why);
                out.notes.add("step_numbers_assumed", || why.to_owned());
            }
            derived.unwrap_or(self.last_step + 1)
        });
        self.counted |= counted;
        if !counted && at > self.last_step && self.last_step > 0 {
            self.gap = Some(at - self.last_step);
        }
        let mut step = fields.to_step(at, &mut out.notes);
        step.ended_at = date;
        if let Some(seconds) = bar.and_then(|b| b.seconds_per_iteration) {
            let average = RunningAverage {
                step_time_seconds: Some(seconds),
                ..RunningAverage::default()
            };
            step.running_average = Some(Box::new(average));
        }
        if !counted {
            self.clock.differences(&mut step, &fields, out);
            if let Some((seconds, _)) = fields.elapsed() {
                self.ended(at, seconds);
            }
            self.dated.ended(at, date);
        }
        self.last_step = self.last_step.max(at);
        if let Some(epoch) = fields
            .text("epoch")
            .filter(|_| self.epochs.len() < MAX_STEPS)
        {
            self.epochs.push((epoch.to_owned(), at));
        }
        let settled = fields.step().is_some() || fitting.is_some();
        let total = self.settings.total_steps.or(self.bar_total);
        self.redrawn.line(
            (at, &fields),
            [before, after].map(|bar| bar.map(|b| b.count)),
            total,
            settled,
        );
        out.step(step);
    }

    /// The figures at the end; every rank prints them, so the first ones count.
    fn summary(&mut self, fields: &Fields, out: &mut Builder) {
        out.trace.finished = true;
        if self.second_run || self.summaries.len() >= 256 {
            return;
        }
        self.summaries.extend(fields.get("train_runtime"));
        if self.summaries.len() <= 1 {
            let totals = fields.totals();
            totals.for_each(|(name, value)| out.total(name, value));
        }
    }

    /// `  train_runtime            = 0:07:05.42`, below `***** train metrics *****`: rank 0's.
    fn metrics(&mut self, text: &str, out: &mut Builder) {
        let Some((key, value)) = text.split_once(" = ") else {
            return;
        };
        let key = key.rsplit(">> ").next().unwrap_or(key).trim();
        let value = value.trim();
        if self.second_run || key.contains(' ') {
            return;
        }
        if key == "train_runtime" {
            let Some(stated) = clock(value) else { return };
            let mut summaries = self.summaries.iter();
            let exact = summaries.find(|s| (*s - stated).abs() < 0.02);
            out.total("train_runtime_seconds", *exact.unwrap_or(&stated));
        } else if let Some(name) = key.strip_prefix("eval_").filter(|n| !Fields::is_speed(n))
            && let Some(value) = whole_number(value)
        {
            let mut known = out.trace.evaluations.iter().filter(|e| e.name == key);
            let is_known = known.any(|e| (e.value - value).abs() <= 1e-3 * value.abs());
            if !is_known && name != "samples" {
                let step = Some(self.last_step).filter(|n| *n > 0);
                out.evaluated(step, key, value);
            }
        } else if key.starts_with("train_")
            && let Some(value) = whole_number(value)
            && !out.trace.totals.contains_key(key)
        {
            out.total(key, value);
        }
    }
}
