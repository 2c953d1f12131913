//! Where a process of the trainer begins: by what is printed then, or by step numbers that go back.
//!
//! A step that a later process does again counts once, as the later one did it: the rest of the log builds on that. Of a
//! run that begins anew in the same log, the longer part counts. What follows a run that has ended, or states other
//! settings, is another run; it is left out and told.

use std::{collections::BTreeSet, sync::LazyLock};

use aho_corasick::AhoCorasick;
use serde_json::Value;

use super::{
    Process, Step, TOTAL_RATE,
    builder::{Builder, differs, merge},
    pattern::Pattern,
    trace::{RESTART, SECOND_RUN},
    values::{count_after, has},
};

/// What a line says of the process that prints it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Said {
    Begins,
    /// The last step that was done before.
    After(u64),
    /// The first step that it does.
    First(u64),
}

/// What is printed when a process begins, by trainers and their launchers.
const BEGINS: [&str; 19] = [
    "Training starts at step ",
    "***** Running training *****",
    "will start from random",
    "[before the start of training",
    " device mesh with",
    "Trainer is initialized with local batch size",
    "tarting worker group",
    "Rendezvous complete for workers",
    "DeepSpeed info: version=",
    "using world size:",
    "- arguments -",
    "tokens per iteration will be:",
    "==((====))==  Unsloth",
    "# Primus Benchmark Run",
    "Config param ",
    "\"init_start\"",
    "*** JOB ",
    "*** STEP ",
    // A process has died: a step that follows is another one's.
    "closing signal SIG",
];
/// Words of lines that may say so, or may not.
const MAY_BEGIN: [&str; 7] = [
    "estart",
    "ESTART",
    "esum",
    "estor",
    "ontinuing",
    "oad",
    "srun: error: ",
];

static FINDER: LazyLock<AhoCorasick> =
    LazyLock::new(|| AhoCorasick::new(BEGINS.iter().chain(&MAY_BEGIN)).expect("a few short words"));

/// `successfully loaded checkpoint from … at iteration 50`, `Continuing training from global step 900`
static NUMBERED: Pattern = Pattern::new(
    r"(?i)\b(?:resum|restor|continu|load)\w*\b.{0,300}?\b(?:step|iteration|iter)s?[ =:_-]{0,3}([0-9][0-9,]*)",
);
static AGAIN: Pattern = Pattern::new(
    r"(?i)\b(?:restart(?:ed|ing)?|resum(?:ed|ing)|restor(?:ed|ing))\b|srun: error: .*(?:Exited with|Killed|Out Of Memory|Terminated|Aborted|Segmentation)",
);

/// Does a line that states no step say that a process begins?
pub fn said(text: &str) -> Option<Said> {
    let mut found = FINDER.find_iter(text).peekable();
    found.peek()?;
    if let Some(first) = count_after(text, BEGINS[0]) {
        return Some(Said::First(first));
    }
    let is_of_training = || {
        ["heckpoint", "ckpt", "raining", "esum"]
            .iter()
            .any(|word| has(text, word))
    };
    if let Some([number]) = NUMBERED.groups(text).filter(|_| is_of_training()) {
        return number.replace(',', "").parse().ok().map(Said::After);
    }
    let is_plain = found.any(|word| word.pattern().as_usize() < BEGINS.len());
    // Workers that load data come and go.
    (is_plain || AGAIN.is_match(text) && !has(text, "ata")).then_some(Said::Begins)
}

/// Does a line that says that a process begins say that those before it are gone?
pub fn starts_again(text: &str) -> bool {
    let gone = ["will restart worker group", "*** JOB ", "*** STEP "];
    gone.iter().any(|words| has(text, words))
}

/// A process that has stated no step yet.
#[derive(Clone, Copy)]
struct Begun {
    line: u64,
    said: Said,
}

impl Begun {
    /// The first step that it does, where it says so and its first line bears it out.
    fn first(&self, line: u64) -> Option<u64> {
        let first = match self.said {
            Said::Begins => return None,
            Said::First(first) => first,
            // Logs that count from 0 name the step that comes next.
            Said::After(last) => last.saturating_add(1).min(line),
        };
        (first <= line).then_some(first)
    }
}

/// The processes of a log, as far as it has been read.
#[derive(Default)]
pub struct Processes {
    begun: Option<Begun>,
    /// The newest step of the process that goes on.
    newest: Option<u64>,
    back: Back,
    /// The steps of a run that has begun anew since.
    before: Vec<Step>,
    /// The line with which it did so.
    anew: u64,
    /// Lines were another rank's copies.
    has_copies: bool,
    copies_told: bool,
    /// What follows is of the same processes: the log of another rank.
    of_ranks: bool,
    /// Values that the same process states of a setting besides the first one.
    others: BTreeSet<String>,
    /// A setting that the process that begins states otherwise than the one before.
    differs: Option<String>,
    /// A step before which the log stood still and whose time is yet to come, and its line.
    late: Option<(u64, u64)>,
    is_over: bool,
}

/// Lines whose steps are not new, until it is known whether another rank or another process repeats
/// them; with each the number of its line.
#[derive(Default)]
struct Back {
    lines: Vec<(u64, Step)>,
    begun: Option<Begun>,
    /// Training had come to its end before them.
    had_ended: bool,
}

/// Values of settings that are kept besides the first ones.
const MOST_OTHERS: usize = 256;
/// Lines that may wait until it is known whose they are.
const MOST_BACK: usize = 4096;
/// So few lines of steps that were there before are another rank's, or would be start-up anyway.
const LEAST_BACK: usize = 3;
/// A step that takes this many times as long as it took before was the first one of a process.
const SLOW_START: f64 = 1.5;
/// Where a line is a mean over several steps: a time above all of its steps at their usual length by this many of them is a start.
const SLOW_START_STEPS: f64 = 2.0;
/// A log that stood still for this many times its usual pace before a step that is known goes on with another process.
const STILL: f64 = 10.0;
/// Steps that differ by this factor from those before are no other rank's.
const OTHER_PACE: f64 = 1.25;
/// Relative difference of the pace at which two beginnings of one run go, up to which they are of one run.
const SAME_PACE: f64 = 0.1;
/// Steps of a beginning that show its pace, and those at its start that do not.
const PACE_STEPS: usize = 4;
const PACE_AFTER: usize = 2;
/// Steps whose dates and times show what was usual before one that comes late.
const RECENT: usize = 16;

/// Settings that a process may state otherwise, and the run is the same.
const MAY_DIFFER: [&str; 6] = [
    "train_iters",
    "learning_rate",
    "min_learning_rate",
    "warmup_steps",
    "seed",
    "data_epochs",
];

impl Builder {
    /// The line that is read now says that a process begins.
    pub fn begins(&mut self, said: Said) {
        let line = self.notes.line;
        let begun = self.processes.begun.get_or_insert(Begun { line, said });
        if said != Said::Begins {
            begun.said = said;
        }
    }

    /// The processes so far are gone. If they have trained nothing, their settings say nothing against those of the next ones,
    /// and count only where these state none; false if a step was done.
    pub fn forget_attempt(&mut self) -> bool {
        let is_untrained = self.trace.step_lines == 0;
        if is_untrained {
            let mut stated = std::mem::take(&mut self.trace.effective.0);
            let former = std::mem::take(&mut self.former);
            former.into_iter().for_each(|(name, value)| {
                stated.entry(name).or_insert(value);
            });
            self.former = stated;
            self.trace.restated = super::Effective::default();
            self.trace.num_parameters = None;
            self.notes.forget("setting_restated");
        }
        is_untrained
    }

    /// Takes back what only attempts without a step stated.
    pub fn take_former(&mut self) {
        for (name, value) in std::mem::take(&mut self.former) {
            self.trace.effective.0.entry(name).or_insert(value);
        }
    }

    /// A process has begun, and has stated no step yet.
    pub fn has_begun(&self) -> bool {
        self.processes.begun.is_some() && !self.processes.of_ranks
    }

    /// What is read from now on is what another rank of the same processes says.
    pub fn next_rank(&mut self) {
        self.settle_back(None);
        self.processes.of_ranks = true;
    }

    /// What comes is of another run, of which nothing is kept.
    pub fn is_over(&self) -> bool {
        self.processes.is_over
    }

    /// A setting that is known is stated otherwise.
    pub fn states_again(&mut self, name: &str, later: &Value) {
        let is_of_next = self.has_begun() && self.processes.newest.is_some();
        let value = format!("{name} {later}");
        if !is_of_next && self.processes.others.len() < MOST_OTHERS {
            self.processes.others.insert(value);
        } else if is_of_next
            && !MAY_DIFFER.contains(&name)
            && !self.processes.others.contains(&value)
        {
            let first = &self.trace.effective.0[name];
            let told = format!("{name} is {first} before, and {later} then");
            self.processes.differs.get_or_insert(told);
        }
    }

    /// The step of the line that is read now, of which a later line may say more.
    pub fn last_step(&mut self) -> Option<&mut Step> {
        match self.processes.back.lines.last_mut() {
            Some((_, step)) => Some(step),
            None => self.trace.steps.last_mut(),
        }
    }

    /// Forgets a line's step, which is about to be stated again.
    pub fn leave(&mut self, step: u64) {
        let is_it = |last: Option<&Step>| last.is_some_and(|last| last.step == step);
        if is_it(self.processes.back.lines.last().map(|(_, step)| step)) {
            self.processes.back.lines.pop();
        } else if is_it(self.trace.steps.last()) {
            self.trace.steps.pop();
            self.processes.newest = self.trace.steps.last().map(|s| s.step);
        } else {
            return;
        }
        self.trace.step_lines -= 1;
    }

    /// Finds the process of a step, and hands the step on; it may have to wait.
    pub fn enter(&mut self, step: Step) {
        if self.processes.of_ranks {
            return self.put(step);
        }
        let number = step.step;
        let goes_back = |of: &Processes| of.newest.is_some_and(|newest| number <= newest);
        let goes_on = |back: &Back| back.lines.last().is_none_or(|(_, last)| last.step < number);
        // A step of several lines, as OLMo-core's.
        if let Some((_, last)) = self.processes.back.lines.last_mut()
            && last.step == number
            && self.processes.begun.is_none()
        {
            if merge(last, step) {
                let what = || format!("step {number} again; the first one counts");
                self.notes.add("duplicate_step", what);
            }
            return;
        }
        if self.completes(&step) {
            self.put(step);
            return self.begins_late();
        }
        if goes_back(&self.processes)
            && (self.has_begun()
                || !goes_on(&self.processes.back)
                || self.processes.back.lines.len() >= MOST_BACK)
        {
            self.settle_back(None);
        }
        if goes_back(&self.processes) {
            if self.processes.back.lines.is_empty() {
                self.processes.back.begun = self.processes.begun.take();
                self.processes.back.had_ended = self.trace.ended();
            }
            return self.processes.back.lines.push((self.notes.line, step));
        }
        self.settle_back(Some(number));
        if self.processes.is_over {
            return;
        }
        self.processes.late = None;
        if self.stood_still_before(&step) {
            match time(&step) {
                None => self.processes.late = Some((number, self.notes.line)),
                Some(_) if self.is_slower_than_usual(&step) => self.begins(Said::Begins),
                Some(_) => {}
            }
        }
        let newest = self.processes.newest;
        // A line that another rank prints late names a step that is done.
        let is_late = |begun: &Begun| {
            newest.is_some_and(|newest| begun.first(number).is_some_and(|first| first <= newest))
        };
        if let Some(begun) = self.processes.begun.take().filter(|begun| !is_late(begun)) {
            let had_ended = self.trace.ended();
            self.open(begun, number, had_ended);
        }
        self.take(step);
    }

    fn take(&mut self, mut step: Step) {
        if self.processes.is_over {
            return;
        }
        self.processes.newest = self.processes.newest.max(Some(step.step));
        step.process =
            u32::try_from(self.trace.processes.len().saturating_sub(1)).unwrap_or(u32::MAX);
        self.put(step);
    }

    /// Decides of what process the lines are that went back; `next`: a new step that comes after them.
    pub fn settle_back(&mut self, next: Option<u64>) {
        let Back {
            lines,
            begun,
            had_ended,
        } = std::mem::take(&mut self.processes.back);
        let (Some((line, first)), Some((_, last))) = (lines.first(), lines.last()) else {
            return;
        };
        // Another rank that is late goes on behind the one that is ahead.
        let is_behind = next.is_some() && Some(last.step) < self.processes.newest;
        let is_of_one = self.is_of_one(first);
        let may_be_copy = self.processes.has_copies || is_of_one;
        let is_same = may_be_copy && self.is_copy(&lines);
        let is_copy = begun.is_none() && is_same;
        // A rank ends a step when the others do, and says the same of it.
        let is_later = !self.processes.has_copies
            && (self.is_slow(first) && self.trace.steps.len() > LEAST_BACK
                || self.is_long_after(first));
        let is_few = lines.len() < LEAST_BACK && !is_later;
        let is_rank = is_copy || begun.is_none() && (is_few || is_behind);
        // A process that says that it begins, and then goes beyond what was known or has values of its own, is no rank's copy.
        let goes_on = match begun {
            Some(_) if next.is_none() => is_of_one && !is_same,
            Some(_) => !is_behind,
            None => next.is_some() && !is_behind && is_of_one,
        };
        if is_rank || !(goes_on || self.is_again(&lines, begun.is_some())) {
            self.processes.has_copies |= begun.is_none();
            self.tell_copies(first.step, is_copy || begun.is_some());
            return lines.into_iter().for_each(|(_, step)| self.put(step));
        }
        let (line, said) = (*line, Said::Begins);
        self.open(begun.unwrap_or(Begun { line, said }), first.step, had_ended);
        for (_, step) in lines {
            self.take(step);
        }
    }

    /// Does one process print the log, as far as it tells, with lines that have no dates of their own? The values of
    /// steps that are done once more may be the same to the last digit.
    fn is_of_one(&self, first: &Step) -> bool {
        let has_dates = first.ended_at.is_some() && !self.trace.dated_by_lines;
        let settings = &self.trace.effective.0;
        let mut devices = ["num_gpus", "world_size", "data_parallel_size"].into_iter();
        let many = |name| settings.get(name).and_then(Value::as_u64) > Some(1);
        let is_one = !devices.any(many);
        let states_values = first.loss.is_some()
            || first.step_time_seconds.is_some()
            || first.tokens_per_second_per_gpu.is_some()
            || first.other.contains_key(TOTAL_RATE);
        !has_dates && !self.processes.has_copies && is_one && states_values
    }

    /// Says that steps come again, where that may be more than the lines of ranks that write in turn; the first
    /// time only.
    fn tell_copies(&mut self, first: u64, is_told: bool) {
        if is_told && !std::mem::replace(&mut self.processes.copies_told, true) {
            self.notes.add("copied_steps", || {
                format!(
                    "from step {first} on, steps stand there again with the same values: another rank's lines, or the same steps done \
                     again; they count once"
                )
            });
        }
    }

    /// Are these the steps that are known, with the same losses to the last digit or with the same times, and none of
    /// them is the slow one with which a process begins? Another rank prints them, or they were done again to the same
    /// end; the figures are the same.
    fn is_copy(&self, lines: &[(u64, Step)]) -> bool {
        let are_same = |value: fn(&Step) -> Option<f64>| {
            let both =
                |(_, step): &(u64, Step)| Some((value(step)?, value(self.known(step.step)?)?));
            let all: Option<Vec<(f64, f64)>> = lines.iter().map(both).collect();
            // A value that never changes tells nothing.
            let varies = |all: &Vec<(f64, f64)>| all.iter().any(|(value, _)| *value != all[0].0);
            all.is_some_and(|all| varies(&all) && all.iter().all(|(now, then)| now == then))
        };
        lines.len() >= LEAST_BACK
            && !self.is_slow(&lines[0].1)
            && !self.is_other_pace(lines)
            && (are_same(|step| step.loss) || are_same(time))
    }

    /// Do most of the steps take another time than they took before? Ranks of one run end their steps together.
    fn is_other_pace(&self, lines: &[(u64, Step)]) -> bool {
        let pair =
            |(_, step): &(u64, Step)| Some((time(step)?, self.known(step.step).and_then(time)?));
        let pairs: Vec<(f64, f64)> = lines.iter().filter_map(pair).collect();
        let is_other =
            |(now, then): &&(f64, f64)| !(1.0 / OTHER_PACE..OTHER_PACE).contains(&(now / then));
        2 * pairs.iter().filter(is_other).count() > pairs.len()
    }

    /// Does a step take so much longer than it took before that it is a process's first one?
    fn is_slow(&self, first: &Step) -> bool {
        let then = self.known(first.step).and_then(time);
        let times = then.zip(time(first));
        times.is_some_and(|(then, now)| now > SLOW_START * then)
    }

    /// By the dates of the lines, did the log stand still for the time of many steps before this one, of which it says something else
    /// than before?
    fn is_long_after(&self, first: &Step) -> bool {
        let steps = &self.trace.steps;
        let known = self.known(first.step);
        if known.is_some_and(|known| !differs(known, first)) {
            return false;
        }
        let ends = || steps.iter().filter_map(|step| step.ended_at);
        let (Some(began), Some(newest), Some(now)) =
            (ends().next(), ends().next_back(), first.ended_at)
        else {
            return false;
        };
        let each = (newest - began) / (ends().count().max(2) - 1) as f64;
        each > 0.0 && now - newest > STILL * each
    }

    /// Does a line only say more of the newest step, and nothing that is known?
    fn completes(&self, step: &Step) -> bool {
        let Some(known) = self.trace.steps.last().filter(|s| s.step == step.step) else {
            return false;
        };
        let is_stated = |value: fn(&Step) -> bool| value(known) && value(step);
        let values: [fn(&Step) -> bool; 7] = [
            |s| s.step_time_seconds.is_some(),
            |s| s.loss.is_some(),
            |s| s.learning_rate.is_some(),
            |s| s.grad_norm.is_some(),
            |s| s.tokens_per_second_per_gpu.is_some(),
            |s| s.tflops_per_gpu.is_some(),
            |s| s.memory_bytes.is_some(),
        ];
        let has_other = |name| known.other.contains_key(name);
        Some(step.step) == self.processes.newest
            && self.processes.begun.is_none()
            && self.processes.back.lines.is_empty()
            && !values.into_iter().any(is_stated)
            && !step.other.keys().any(has_other)
            && !self.is_long_after(step)
    }

    /// The time of a step before which the log stood still has come: was it the slow first one of a process?
    fn begins_late(&mut self) {
        let Some((number, line)) = self.processes.late else {
            return;
        };
        let Some(at) = self.trace.steps.iter().rposition(|s| s.step == number) else {
            return;
        };
        if time(&self.trace.steps[at]).is_none() {
            return;
        }
        self.processes.late = None;
        let step = self.trace.steps.remove(at);
        match self.is_slower_than_usual(&step) {
            false => self.trace.steps.insert(at, step),
            true => {
                self.processes.newest = self.trace.steps.last().map(|s| s.step);
                let had_ended = self.trace.ended();
                let said = Said::Begins;
                self.open(Begun { line, said }, number, had_ended);
                self.take(step);
            }
        }
    }

    /// Does a step come long after the one before, by the dates of their lines? An evaluation between them is stated.
    fn stood_still_before(&self, step: &Step) -> bool {
        let steps = &self.trace.steps;
        let recent = &steps[steps.len().saturating_sub(RECENT)..];
        let ends = || recent.iter().filter_map(|s| Some((s.step, s.ended_at?)));
        let (Some((first, began)), Some((before, last)), Some(now)) =
            (ends().next(), ends().next_back(), step.ended_at)
        else {
            return false;
        };
        let each = (last - began) / before.saturating_sub(first).max(1) as f64;
        let since = step.step.saturating_sub(before) as f64;
        let own = step.step_time_seconds.unwrap_or_default() * since;
        let evaluated = self.trace.evaluations.last().and_then(|last| last.step);
        let is_evaluated = evaluated >= steps.last().map(|last| last.step);
        !self.trace.dated_by_lines && !is_evaluated && each > 0.0 && now - last - own > STILL * each
    }

    /// Is the next step so slow that a process begins with it? One that was paused goes on as before. In a mean over several steps
    /// the first one stands out less.
    fn is_slower_than_usual(&self, step: &Step) -> bool {
        let steps = &self.trace.steps;
        let recent = &steps[steps.len().saturating_sub(RECENT)..];
        let since = recent
            .last()
            .map_or(1, |last| step.step.saturating_sub(last.step));
        let mean_of = if self.averages { since.max(1) } else { 1 };
        let slow = (SLOW_START - 1.0).min(SLOW_START_STEPS / mean_of as f64);
        let is_slow = |(now, usual)| now > (1.0 + slow) * usual;
        time(step).zip(usual_time(recent)).is_some_and(is_slow)
    }

    /// Were these steps done once more? Else another rank says what is known; without words that a process begins, its
    /// dates decide.
    fn is_again(&self, lines: &[(u64, Step)], is_said: bool) -> bool {
        let first = &lines[0].1;
        let at = self.trace.steps.partition_point(|s| s.step < first.step);
        let then = self.trace.steps.get(at).and_then(|s| s.ended_at);
        let newest = self.processes.newest.and_then(|n| self.known(n)?.ended_at);
        if let (Some(now), Some(then), Some(newest)) = (first.ended_at, then, newest)
            && now > then
        {
            let is_later = (now - newest).abs() < (now - then).abs();
            // The newest step is compared with itself, so that the two dates say nothing.
            let is_newest = Some(first.step) == self.processes.newest;
            if is_later || !is_said && !is_newest {
                return is_later || self.is_long_after(first);
            }
        }
        // A rank has a line where the others have one.
        let is_other = |step: &Step| {
            self.known(step.step)
                .is_none_or(|known| differs(known, step))
        };
        let other = lines.iter().filter(|(_, step)| is_other(step));
        self.is_slow(first) || 2 * other.count() >= lines.len()
    }

    fn known(&self, step: u64) -> Option<&Step> {
        let steps = &self.trace.steps;
        steps
            .binary_search_by_key(&step, |s| s.step)
            .ok()
            .map(|at| &steps[at])
    }

    /// A process begins whose first line is of step `number`.
    fn open(&mut self, begun: Begun, number: u64, had_ended: bool) {
        let differs = self.processes.differs.take();
        let (line, first_step) = (begun.line, begun.first(number));
        let Some(of_run) = self.trace.steps.first().map(|s| s.step) else {
            let goes_on = first_step.filter(|first| *first > 1);
            let process = goes_on.map(|_| Process { line, first_step });
            return self.trace.processes.extend(process);
        };
        let is_anew = number <= of_run;
        let why = differs.or_else(|| {
            let why = || format!("the one before it has ended, and step {number} comes again");
            // A run that goes on after its end has steps beyond it.
            (had_ended && Some(number) <= self.processes.newest).then(why)
        });
        if let Some(why) = why {
            return self.second_run(line, &why);
        }
        let processes = &mut self.trace.processes;
        if processes.is_empty() {
            processes.push(Process::default());
        }
        let first_step = match is_anew {
            true => processes[0].first_step,
            false => first_step.or(Some(number)),
        };
        processes.push(Process { line, first_step });
        self.trace.finished = false;
        let last = self.processes.newest.unwrap_or(of_run);
        self.notes.add_at(number, RESTART, || match is_anew {
            true => format!("the run begins anew in line {line}, after step {last}"),
            false => format!("a process begins in line {line}, after step {last}"),
        });
        self.latest = true;
        self.processes.newest = None;
        if is_anew {
            self.choose_beginning();
            self.processes.anew = line;
            self.processes.before = std::mem::take(&mut self.trace.steps);
        }
    }

    fn second_run(&mut self, line: u64, why: &str) {
        self.processes.is_over = true;
        let steps = self.trace.steps.len();
        self.notes.add(SECOND_RUN, || {
            format!("another run begins in line {line}: {why}; only the first one, of {steps} logged steps, is read")
        });
    }

    /// Decides between two beginnings of one run. At one pace they are attempts at the same run, and the
    /// longer one is kept; at two paces they are two runs, and the first one is kept.
    pub fn choose_beginning(&mut self) {
        let before = std::mem::take(&mut self.processes.before);
        if before.is_empty() {
            return;
        }
        if let (Some(a), Some(b)) = (pace(&before), pace(&self.trace.steps))
            && (a / b).ln().abs() > SAME_PACE
        {
            let why = format!(
                "it begins with step {} again, and goes at another pace",
                before[0].step
            );
            self.trace.steps = before;
            return self.second_run(self.processes.anew, &why);
        }
        // Two that came to the same end, step for step, have both been run to it, unless the log shows that more was asked for.
        let ends = [&before, &self.trace.steps].map(|steps| steps.last().map(|step| step.step));
        let asked = self.trace.effective.0.get("train_iters");
        let is_last = |step: u64| {
            let asked = asked.and_then(Value::as_u64);
            asked.is_none_or(|all| step + 1 >= all)
        };
        if let [Some(last), Some(again)] = ends
            && last == again
            && is_last(last)
        {
            self.trace.steps = before;
            let why = format!("it begins anew, and ends with step {last} as the first one does");
            return self.second_run(self.processes.anew, &why);
        }
        if before.len() > self.trace.steps.len() {
            self.trace.steps = before;
        }
    }
}

/// The time of a step, or its inverse rate.
fn time(step: &Step) -> Option<f64> {
    let of_rate = || step.tokens_per_second_per_gpu.map(f64::recip);
    step.step_time_seconds.or_else(of_rate)
}

/// The usual time of steps, or their inverse rate, without the first ones.
fn pace(steps: &[Step]) -> Option<f64> {
    usual_time(steps.get(PACE_AFTER..)?)
}

/// The median time or inverse rate of several steps.
fn usual_time(steps: &[Step]) -> Option<f64> {
    let mut times: Vec<f64> = (steps.iter().filter_map(time))
        .filter(|t| *t > 0.0)
        .collect();
    times.sort_by(f64::total_cmp);
    (times.len() >= PACE_STEPS).then(|| times[times.len() / 2])
}

#[cfg(test)]
mod tests;
