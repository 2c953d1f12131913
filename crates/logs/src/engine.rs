//! Reads logs by a format's table.
//!
//! The first kind of line that a line fits reads it. All values that are found are one step's,
//! unless the kind says otherwise. Where no kind states a step's number, steps are counted: a new
//! one begins when a field is found again. Patterns take time linear in the line.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde_json::Value;
use tprimat_base::words::part;

use super::{
    DeviceLine, MemoryFigure, MemoryReport, Step,
    builder::Builder,
    compile::{Group, Number, Pattern, Rule, Table, Target},
    dump::{Dump, members},
    fields::{Field, choose_memory, figure, fill},
    format::{Evidence, Reader},
    lines::{Line, cut},
    numbers::as_count,
    table::{About, Flag},
    trace::UNREADABLE_FIELD,
    values::{Checks, batch_of_devices, once},
    wild::Wild,
};

pub struct Engine {
    table: Arc<Table>,
    newest: Option<u64>,
    started: bool,
    /// What the newest counted step has, where steps are counted.
    filled: Vec<Field>,
    /// Tokens of each step, once the log says.
    tokens: Option<u64>,
    first_epoch: Option<u64>,
    /// The step of the newest evaluation: the time of its step may include it.
    evaluated_at: Option<u64>,
    /// The newest values of evaluations that lines repeat.
    repeated: BTreeMap<String, f64>,
    /// Settings that count if nothing else states them before the first step.
    late: BTreeMap<String, Value>,
    /// Settings that no other line changes any more.
    fixed: BTreeSet<String>,
    /// An object over several lines, as far as it has come, and what it is called.
    dump: Option<Dump>,
}

/// A text for a field. One that a pattern found is the field's whole text, and odd if it is not a
/// number; the others are what stands at a place where the field may be.
struct Found<'f, 't> {
    field: Cow<'f, Field>,
    target: &'f Target,
    text: &'t str,
    how: How,
}

#[derive(Clone, Copy, PartialEq)]
enum How {
    /// By a pattern.
    Pattern,
    /// As one of the line's pairs.
    Pair,
    /// Behind a known text.
    Behind,
}

/// A line's numbers, by what they are about.
#[derive(Default)]
struct Numbers<'f> {
    of_step: Vec<(Cow<'f, Field>, f64)>,
    evaluations: Vec<(String, f64)>,
    memory: Vec<MemoryFigure>,
    rank: Option<u64>,
    /// Kinds of anomalies, and the numbers that the trainer prints where it has none.
    absent: Vec<(String, f64)>,
    lost_step: bool,
}

impl Numbers<'_> {
    fn stated(&self, field: &Field) -> Option<f64> {
        let mut all = self.of_step.iter();
        all.find(|(known, _)| known.as_ref() == field)
            .map(|(_, value)| *value)
    }
}

impl Table {
    /// How much a line says for the format.
    pub fn evidence(&self, text: &str) -> Evidence {
        let fitting = self
            .rules
            .iter()
            .filter(|rule| rule.table.evidence > Evidence::None && !rule.parts(text).is_empty());
        let evidence = fitting.map(|rule| rule.table.evidence);
        evidence.max().unwrap_or_default()
    }
}

impl Rule {
    /// The parts of a line that are such lines; most often one, from where `when` begins.
    fn parts<'t>(&self, text: &'t str) -> Vec<&'t str> {
        let found = self.when.regex.find_iter(text);
        let most = if self.table.repeats { usize::MAX } else { 1 };
        let mut starts: Vec<usize> = found.take(most).map(|m| m.start()).collect();
        if starts.is_empty() {
            return Vec::new();
        }
        starts.push(text.len());
        let parts = starts.windows(2).map(|ends| part(text, ends[0]..ends[1]));
        parts
            .filter(|part| self.needs.iter().all(|need| need.is_match(part)))
            .collect()
    }
}

impl Engine {
    pub fn new(table: Arc<Table>) -> Self {
        Self {
            first_epoch: table.section.first_epoch,
            table,
            newest: None,
            started: false,
            filled: Vec::new(),
            tokens: None,
            evaluated_at: None,
            repeated: BTreeMap::new(),
            late: BTreeMap::new(),
            fixed: BTreeSet::new(),
            dump: None,
        }
    }

    /// The first step, or an evaluation, has been read.
    pub fn started(&self) -> bool {
        self.started
    }

    fn has(&self, flag: Flag) -> bool {
        self.table.section.flags.contains(&flag)
    }

    /// True if some kind of line, of those that `of` chooses, has read the line.
    pub fn read(&mut self, line: &Line<'_>, of: fn(About) -> bool, out: &mut Builder) -> bool {
        let (table, text) = (Arc::clone(&self.table), &*line.text);
        let settled = self.started && self.has(Flag::SettingsBeforeSteps) && !out.has_begun();
        let mut is_read = false;
        for rule in &table.rules {
            let about = rule.table.about;
            if about == About::Nothing || !of(about) || settled && about == About::Setting {
                continue;
            }
            let parts = rule.parts(text);
            for part in &parts {
                self.part(&table, rule, part, line.ended, out);
            }
            if !parts.is_empty() && !rule.table.name.is_empty() {
                is_read = true;
                out.tell_reader(&rule.table.name);
                if !rule.table.goes_on {
                    return true;
                }
            }
        }
        if !is_read && self.dump.is_some() && of(About::Setting) {
            self.collect(&table, text, out);
            return true;
        }
        is_read
    }

    /// Reads a line, or a part of one, that is of a kind.
    fn part(&mut self, table: &Table, rule: &Rule, text: &str, ended: bool, out: &mut Builder) {
        let is_cut = !ended && rule.complete.is_some();
        if is_cut
            && !rule
                .complete
                .as_ref()
                .is_some_and(|whole| whole.is_match(text))
        {
            let captures = rule.when.regex.captures(text);
            let step = captures.as_ref().and_then(|c| c.name("step"));
            out.notes.add("truncated", || match step {
                Some(step) => format!("step {}", step.as_str()),
                None => cut(text, 80),
            });
            return;
        }
        let mut found = Vec::with_capacity(16);
        let patterns = [&rule.when].into_iter().chain(&rule.patterns);
        for (nth, pattern) in patterns.enumerate() {
            let Some(captures) = captures(pattern, text) else {
                continue;
            };
            if rule.table.name.is_empty() {
                out.tell_reader(&format!("pattern {nth}"));
            }
            let (mut key, mut value) = ("", None);
            for (group, text) in captures {
                match group {
                    Group::Key => key = text.trim(),
                    Group::Value => value = Some(text),
                    Group::Target(target) => found.push(target.found(text, How::Pattern)),
                }
            }
            match value {
                Some(value) if value.starts_with('{') => {
                    self.dump = Some(Dump::new(key));
                    self.collect(table, value, out);
                }
                Some(value) => match table.found(&rule.names, key, value) {
                    None if self.has(Flag::UnknownSettings) => out.argument(key, value),
                    known => found.extend(known),
                },
                None => {}
            }
        }
        for (key, target) in &rule.after {
            let place = key.find(text.as_bytes());
            let behind = place.and_then(|at| text.get(at + key.needle().len()..));
            found.extend(behind.map(|text| target.found(text, How::Behind)));
        }
        if let Some(pairs) = &rule.table.pairs {
            for (key, value) in rest(rule, text)
                .split(pairs.between.as_str())
                .filter_map(|pair| pair.trim().split_once(pairs.of.as_str()))
            {
                found.extend(table.found(&rule.names, key.trim(), value.trim()));
            }
        }
        // A value that reaches the end of a line that was cut off may lack digits.
        let end_of = |text: &str| text.as_bytes().as_ptr_range().end;
        let end = end_of(text);
        found.retain(|f| !is_cut || f.how == How::Behind || end_of(f.text) < end);
        self.take(rule, text, found, out);
    }

    fn take(&mut self, rule: &Rule, text: &str, found: Vec<Found<'_, '_>>, out: &mut Builder) {
        let table = &rule.table;
        for (name, value) in &table.set {
            self.set(name, value.clone(), None, out);
        }
        let source = table.memory_source.as_ref();
        let mut numbers = self.numbers(found, out);
        if let Some(source) = source {
            for figure in &mut numbers.memory {
                figure.source = source.clone().into();
            }
        }
        if let Some(note) = &table.note {
            let text = || note.text.replace("{line}", cut(text.trim(), 100).as_str());
            out.notes.add(&note.kind, text);
        }
        out.trace.finished |= table.finished;
        match table.about {
            About::Setting | About::Nothing => {}
            About::Memory if numbers.memory.is_empty() => {}
            About::Memory => out.memory(MemoryReport {
                rank: numbers.rank,
                after_step: self.newest,
                figures: numbers.memory,
            }),
            About::Evaluation => {
                self.begin(out);
                let step = numbers.stated(&Field::Step).and_then(as_count);
                if self.has(Flag::EvaluationInStep) {
                    self.evaluated_at = step;
                }
                self.evaluated(step.or(self.newest), &numbers, out);
            }
            About::Step => self.step(numbers, table.steps_averaged, out),
        }
    }

    /// Takes what is no number of the line's step, and returns the numbers.
    fn numbers<'f>(&mut self, found: Vec<Found<'f, '_>>, out: &mut Builder) -> Numbers<'f> {
        let mut numbers = Numbers::default();
        let (mut unreadable, mut any_read) = (Vec::new(), false);
        for Found {
            field,
            target,
            text,
            how,
        } in found
        {
            let word = match how {
                How::Behind => word(text),
                _ => text,
            };
            match field.as_ref() {
                Field::Effective(name) => {
                    if let Some(value) = target.setting(word) {
                        any_read = true;
                        self.set(name, value, Some(target), out);
                    }
                    continue;
                }
                Field::Version(name) => {
                    let versions = &mut out.trace.versions;
                    versions
                        .entry(name.clone())
                        .or_insert_with(|| word.to_owned());
                    continue;
                }
                Field::Device(kind) => {
                    out.trace.device.get_or_insert_with(|| DeviceLine {
                        r#type: kind.clone(),
                        name: Some(text.to_owned()),
                        count: None,
                    });
                    continue;
                }
                _ => {}
            }
            // Four digits and an exponent are no count.
            if field.is_count() && how == How::Pair && text.contains('e') {
                continue;
            }
            match target.number(text, how != How::Behind) {
                Number::Stated(value) => {
                    any_read = true;
                    self.number(field, target, value, &mut numbers, out);
                }
                Number::Absent(value) => {
                    any_read = true;
                    let kind = target.conversion.absent_note.clone();
                    numbers.absent.extend(kind.map(|kind| (kind, value)));
                }
                Number::Unreadable(text) if how == How::Pattern => unreadable.push((field, text)),
                Number::Unreadable(_) => {}
            }
        }
        // Without its number, the rest of a line belongs to no step.
        numbers.lost_step = unreadable.iter().any(|(field, _)| **field == Field::Step);
        let kind = match any_read && !numbers.lost_step {
            true => UNREADABLE_FIELD,
            false => "unreadable_line",
        };
        for (_, text) in unreadable {
            out.notes
                .add(kind, || format!("`{}` is not a number", cut(text, 60)));
        }
        numbers
    }

    fn number<'f>(
        &mut self,
        field: Cow<'f, Field>,
        target: &Target,
        value: f64,
        numbers: &mut Numbers<'f>,
        out: &mut Builder,
    ) {
        let positive = as_count(value).filter(|n| *n > 0);
        match field.as_ref() {
            Field::NumParameters => {
                out.trace.num_parameters = positive.or(out.trace.num_parameters)
            }
            Field::NumParametersPerRank => {
                let most = &mut out.trace.num_parameters_per_rank;
                *most = (*most).max(positive);
            }
            Field::TokensOfEachStep => {
                self.tokens = positive;
                self.batch_from_tokens(out);
            }
            Field::Total(name) => out.total(name, value),
            Field::Rank => numbers.rank = as_count(value),
            Field::Memory(..) => {
                let source = &self.table.section.memory_source;
                numbers.memory.extend(figure(&field, value, source));
            }
            Field::Evaluation(name) => {
                let is_same = |last: &f64| *last == value || last.is_nan() && value.is_nan();
                let last = self.repeated.get(name).filter(|_| target.conversion.stale);
                if last.is_none_or(|last| !is_same(last)) {
                    self.repeated.insert(name.clone(), value);
                    numbers.evaluations.push((name.clone(), value));
                }
            }
            Field::Nothing => {}
            _ if numbers.stated(&field).is_none() => numbers.of_step.push((field, value)),
            _ => {}
        }
    }

    fn set(&mut self, name: &str, value: Value, target: Option<&Target>, out: &mut Builder) {
        let is = |flag: fn(&Target) -> bool| target.is_some_and(flag);
        if self.fixed.contains(name) {
            return;
        }
        if is(|target| target.conversion.replaces) {
            self.fixed.insert(name.to_owned());
            out.trace.effective.0.insert(name.to_owned(), value);
        } else if is(|target| target.conversion.late) {
            self.late.entry(name.to_owned()).or_insert(value);
        } else if self.has(Flag::FirstSettingCounts) {
            // A model is offloaded if any of its parts is, so `true` replaces an earlier `false`.
            if value == true && out.trace.effective.0.get(name) == Some(&false.into()) {
                out.trace.effective.0.remove(name);
            }
            once(name, value, out);
        } else {
            out.set(name, value);
        }
        self.batch_from_tokens(out);
    }

    /// Some trainers count tokens where the job counts sequences.
    fn batch_from_tokens(&self, out: &mut Builder) {
        if !self.has(Flag::BatchFromTokens) {
            return;
        }
        let length = out.trace.effective.0.get("seq_length");
        let length = length.and_then(Value::as_u64).filter(|n| *n > 0);
        if let (Some(tokens), Some(length)) = (self.tokens, length)
            && tokens.is_multiple_of(length)
        {
            out.set("global_batch_size", tokens / length);
        }
    }

    fn evaluated(&self, step: Option<u64>, numbers: &Numbers<'_>, out: &mut Builder) {
        for (name, value) in &numbers.evaluations {
            // Every rank may print it.
            let last = out.trace.evaluations.last();
            let is_again = |last: &super::Evaluation| {
                (last.step, &last.name, last.value) == (step, name, *value) && step.is_some()
            };
            if !last.is_some_and(is_again) {
                out.evaluated(step, name.clone(), *value);
            }
        }
    }

    fn step(&mut self, numbers: Numbers<'_>, averaged: Option<u64>, out: &mut Builder) {
        let is_empty = numbers.of_step.is_empty() && numbers.memory.is_empty();
        if numbers.lost_step || is_empty && numbers.evaluations.is_empty() {
            return;
        }
        if is_empty {
            return self.evaluated(self.newest, &numbers, out);
        }
        let Some(number) = self.step_number(&numbers, out) else {
            return;
        };
        self.begin(out);
        self.newest = Some(number);
        let mut step = self.made_of(number, &numbers, out);
        step.steps_averaged = step.steps_averaged.or(averaged);
        self.evaluated(Some(number), &numbers, out);
        out.step(step);
    }

    /// The step that is made of a line's numbers.
    fn made_of(&mut self, number: u64, numbers: &Numbers<'_>, out: &mut Builder) -> Step {
        let mut step = Step {
            step: number,
            tokens: self.tokens,
            ..Step::default()
        };
        let mut checks = Checks {
            step: number,
            notes: &mut out.notes,
        };
        for (kind, value) in &numbers.absent {
            checks
                .notes
                .add_at(number, kind, || format!("the value is {value}"));
        }
        for (field, value) in &numbers.of_step {
            fill(&mut step, field, *value, &mut checks);
        }
        choose_memory(&mut step, &numbers.memory);
        if self.evaluated_at.take_if(|at| *at == number).is_some() {
            step.includes_evaluation = true;
            if let Some(time) = step.step_time_seconds {
                out.notes.add("evaluation_in_interval", || {
                    format!("step {number}: {time} s")
                });
            }
        }
        step
    }

    /// The step that names and values make up by the table's names, for readers that find these
    /// themselves, and its evaluations are told.
    pub fn named_step<'t>(
        &mut self,
        number: u64,
        pairs: impl Iterator<Item = (&'t str, &'t str)>,
        out: &mut Builder,
    ) -> Step {
        let table = Arc::clone(&self.table);
        let found: Vec<_> = pairs
            .filter_map(|(key, text)| table.found(&table.names, key, text))
            .collect();
        let numbers = self.numbers(found, out);
        self.newest = Some(number);
        self.evaluated(Some(number), &numbers, out);
        self.made_of(number, &numbers, out)
    }

    fn step_number(&mut self, numbers: &Numbers<'_>, out: &mut Builder) -> Option<u64> {
        let count = |field: &Field| numbers.stated(field).and_then(as_count);
        if let Some(stated) = numbers.stated(&Field::Step) {
            if as_count(stated).is_none() {
                out.notes
                    .add("unreadable_line", || format!("step number {stated}"));
            }
            return as_count(stated);
        }
        if let Some(step) = count(&Field::StepInEpoch) {
            let (epoch, all) = (count(&Field::Epoch)?, count(&Field::StepsPerEpoch)?);
            let first = *self.first_epoch.get_or_insert(epoch.min(1));
            return epoch
                .saturating_sub(first)
                .checked_mul(all)?
                .checked_add(step);
        }
        if self.table.numbered {
            if self.newest.is_none() {
                out.notes.add("before_first_step", || {
                    "values before any step number are left out".to_owned()
                });
            }
            return self.newest;
        }
        let found = || numbers.of_step.iter().map(|(field, _)| field.as_ref());
        let again = found().any(|field| self.filled.contains(field));
        if again || self.newest.is_none() {
            self.filled.clear();
        }
        if self.newest.is_none() {
            out.notes.add("step_numbers_assumed", || {
                "no pattern finds a step's number: they are counted".to_owned()
            });
        }
        self.filled.extend(found().cloned());
        Some(self.newest.map_or(1, |n| n + u64::from(again)))
    }

    /// The first line of a step or an evaluation.
    fn begin(&mut self, out: &mut Builder) {
        if std::mem::replace(&mut self.started, true) {
            return;
        }
        out.averages |= self.has(Flag::Averages);
        out.latest |= self.has(Flag::LatestCounts);
        self.settle(out);
    }

    /// What depended on lines that may have come later.
    fn settle(&mut self, out: &mut Builder) {
        for (name, value) in std::mem::take(&mut self.late) {
            once(&name, value, out);
        }
    }

    /// A line of an object that is printed over several.
    fn collect(&mut self, table: &Table, text: &str, out: &mut Builder) {
        let Some(dump) = &mut self.dump else { return };
        let Some(whole) = dump.add(text) else { return };
        self.dump = None;
        for (path, text) in members(&whole) {
            let Some((target, _)) = table.settings.get(&path) else {
                if self.has(Flag::UnknownSettings) {
                    out.argument(&path, &text);
                }
                continue;
            };
            if let (Field::Effective(name), Some(value)) = (&target.field, target.setting(&text)) {
                self.set(name, value, Some(target), out);
            }
        }
    }

    /// Takes the time from steps that claim a fraction of the others'.
    fn drop_implausible(&self, percent: u8, out: &mut Builder) {
        let steps = &mut out.trace.steps;
        let mut times: Vec<f64> = steps.iter().filter_map(|s| s.step_time_seconds).collect();
        if times.len() < 4 {
            return;
        }
        times.sort_by(f64::total_cmp);
        let median = times[times.len() / 2];
        for step in steps {
            let least = f64::from(percent) / 100.0 * median;
            let Some(time) = step.step_time_seconds.filter(|t| *t < least) else {
                continue;
            };
            let rate = step.tflops_per_gpu.map(|r| format!(" and {r} TFLOP/s"));
            out.notes.add_at(step.step, "implausible_step_time", || {
                let rate = rate.unwrap_or_default();
                format!("{time} s{rate}, the median is {median} s")
            });
            step.step_time_seconds = None;
            step.tflops_per_gpu = None;
            step.tokens_per_second_per_gpu = None;
        }
    }
}

impl Reader for Engine {
    fn line(&mut self, line: &Line<'_>, out: &mut Builder) {
        self.read(line, |_| true, out);
    }

    fn forget(&mut self) {
        self.late.clear();
        self.fixed.clear();
    }

    fn end(&mut self, out: &mut Builder) {
        self.settle(out);
        if let Some(percent) = self.table.section.implausible_percent {
            self.drop_implausible(percent, out);
        }
        batch_of_devices(out);
    }
}

impl Table {
    /// What a name that the log gives a value stands for.
    fn found<'f, 't>(
        &'f self,
        names: &'f Wild<Target>,
        key: &str,
        text: &'t str,
    ) -> Option<Found<'f, 't>> {
        let names = [names, &self.names, &self.settings];
        let (target, part) = names.into_iter().find_map(|names| names.get(key))?;
        let mut found = target.found(text, How::Pair);
        if target.field.has_wildcard() {
            found.field = Cow::Owned(target.field.with(&cut(part, 60)));
        }
        Some(found)
    }
}

impl Target {
    fn found<'t>(&self, text: &'t str, how: How) -> Found<'_, 't> {
        Found {
            field: Cow::Borrowed(&self.field),
            target: self,
            text,
            how,
        }
    }
}

/// What the groups of a pattern find.
fn captures<'p, 't>(pattern: &'p Pattern, text: &'t str) -> Option<Vec<(&'p Group, &'t str)>> {
    if pattern.groups.is_empty() {
        return None;
    }
    let captures = pattern.regex.captures(text)?;
    let groups = pattern.groups.iter();
    Some(
        groups
            .filter_map(|(place, group)| Some((group, captures.get(*place)?.as_str())))
            .collect(),
    )
}

/// What stands behind the line's `when`.
fn rest<'t>(rule: &Rule, text: &'t str) -> &'t str {
    let end = rule.when.regex.find(text).map_or(0, |found| found.end());
    part(text, end..)
}

/// The word that a text begins with, up to a space or one of `,;)]}|`.
fn word(text: &str) -> &str {
    let text = text.trim_start();
    let end = text.find(|c: char| c.is_whitespace() || ",;)]}|".contains(c));
    part(text, ..end.unwrap_or(text.len())).trim_matches(['\'', '"'])
}
