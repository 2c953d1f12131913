//! What logs state beside their steps, and what that means for a summary's figures.

use std::collections::{BTreeMap, BTreeSet};

use crate::results::{RunResult, words::repeats as named};

use tprimat_logs::{ARGUMENTS, MemoryReport, Trace};

use super::notes::{by_repeat, remark};
use crate::figures::{Note, NoteKind, RepeatSummary};

pub(super) fn notes(counted: &[(&RepeatSummary, &RunResult)]) -> Vec<Note> {
    let mut notes: Vec<Note> = other_software(counted).into_iter().collect();
    notes.extend(early_memory(counted));
    notes.extend(profiled(counted));
    notes
}

/// Megatron's profiler, which its arguments switch on for a few steps.
fn profiled(counted: &[(&RepeatSummary, &RunResult)]) -> Vec<Note> {
    let steps = |(repeat, result): &(&RepeatSummary, &RunResult)| {
        let arguments = result.trace.effective.0.get(ARGUMENTS)?;
        let is_on = arguments["profile"] == true;
        let step = |name: &str| arguments[name].as_u64();
        let (first, end) = step("profile_step_start").zip(step("profile_step_end"))?;
        let cut = repeat.steady.as_ref()?.cut.as_ref().filter(|_| is_on)?;
        let is_measured = first < end && end >= cut.first_step && repeat.last_step? > first;
        is_measured.then_some((repeat.repeat, (first, end)))
    };
    by_repeat(counted.iter().filter_map(steps), |(first, end), of| {
        let text = format!(
            "{}: the trainer profiled steps {first} to {end}, which takes time that training does not",
            named(of)
        );
        Note::new(NoteKind::Doubtful, "profiled", text)
    })
}

/// Runs of one key have one software; files that were imported into one cell may not.
fn other_software(counted: &[(&RepeatSummary, &RunResult)]) -> Option<Note> {
    let versions = |(_, result): &(&RepeatSummary, &RunResult)| result.trace.versions.clone();
    let mut by_name: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, version) in counted.iter().flat_map(versions) {
        by_name.entry(name).or_default().insert(version);
    }
    by_name.retain(|_, versions| versions.len() > 1);
    let told = |(name, versions): (&String, &BTreeSet<String>)| {
        let versions: Vec<&str> = versions.iter().map(String::as_str).collect();
        format!("{name} {}", versions.join(" and "))
    };
    let told: Vec<String> = by_name.iter().map(told).collect();
    let text = format!("its repeats ran with {}", told.join(", "));
    (!told.is_empty()).then(|| Note::new(NoteKind::Differs, "other_software", text))
}

/// Megatron states what its allocator has used once, after its first steps.
fn early_memory(counted: &[(&RepeatSummary, &RunResult)]) -> Vec<Note> {
    let after = |trace: &Trace| {
        let is_peak = |of: &&MemoryReport| of.figures.iter().any(|f| f.kind.starts_with("peak_"));
        let peaks = trace.memory.iter().filter(is_peak);
        let after: Option<Vec<u64>> = peaks.map(|report| report.after_step).collect();
        let is_of_steps = trace.steps.iter().any(|step| step.memory_bytes.is_some());
        let after = after?.into_iter().max().filter(|_| !is_of_steps)?;
        let middle = trace.steps.get(trace.steps.len() / 2)?;
        (after < middle.step).then_some(after)
    };
    let found = counted.iter();
    let found = found.filter_map(|(repeat, result)| Some((repeat.repeat, after(&result.trace)?)));
    by_repeat(found, |step, of| {
        let text = format!(
            "{}: the log states its peak of memory after step {step} only, and later steps may use more",
            named(of)
        );
        remark("early_memory", text)
    })
}
