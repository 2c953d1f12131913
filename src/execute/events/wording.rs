//! An event as a person reads it.

use super::{Event, Outcome};
use crate::{
    secrets::masked,
    words::plain::{self, counted},
};

pub(super) fn step_words(event: &Event) -> String {
    let Event::Step {
        step,
        steps_total,
        loss,
        tokens_per_second,
        power_watts,
        ..
    } = event
    else {
        return String::new();
    };
    let mut words = match steps_total {
        Some(total) => format!("step {step}/{total}"),
        None => format!("step {step}"),
    };
    if let Some(loss) = loss {
        words += &format!("  loss {loss:.4}");
    }
    if let Some(rate) = tokens_per_second {
        words += &format!("  {} tokens/s", crate::report::number(*rate));
    }
    if let Some(watts) = power_watts {
        words += &format!("  {watts:.0} W");
    }
    words
}

/// The event as a person reads it. Names, reasons and lines of logs are strangers' words.
pub(super) fn sentence(event: &Event) -> String {
    let words = words(event);
    plain::without_commands(&masked(&plain::lines(&words))).into_owned()
}

fn words(event: &Event) -> String {
    match event {
        Event::BuildStarted { queue, .. } => {
            let runs = queue.iter().filter(|name| name.starts_with("train "));
            match runs.count() {
                0 => "no run to do".to_owned(),
                runs => format!("{} to do", counted(runs, "run")),
            }
        }
        Event::TaskStarted { task, reason, .. } => format!("{task}: started ({reason})"),
        Event::TaskWaiting { task, what_for } => format!("{task}: waiting for {what_for}"),
        Event::Step { task, .. } => format!("{task}: {}", step_words(event)),
        Event::TaskFinished {
            task,
            outcome: Outcome::Cached,
            ..
        } => format!("{task}: not run, another task has made the same"),
        Event::TaskFinished {
            task,
            outcome: Outcome::Waiting,
            ..
        } => format!("{task}: not run, something before it failed or is missing"),
        // The run did nothing wrong, and why the build ends is said at its end.
        Event::TaskFinished {
            task,
            outcome: Outcome::Interrupted,
            seconds,
            ..
        } => format!("{task}: interrupted after {seconds:.1} s; the next build runs it again"),
        Event::TaskFinished {
            task,
            outcome,
            seconds,
            class,
            evidence,
            what_to_do,
        } => {
            let name = class.map_or_else(String::new, crate::job::FailureClass::in_brackets);
            let mut text = format!("{task}: {}{name} after {seconds:.1} s", outcome.name());
            for line in evidence {
                text += &format!("\n    {line}");
            }
            if let Some(advice) = what_to_do {
                text += &format!("\n    what to do: {advice}");
            }
            text
        }
        Event::TaskGoesOn { task, job, cancels } => {
            format!("note: {task}: {job} goes on: the next build takes it up, `{cancels}` ends it")
        }
        Event::Note { message } => format!("note: {message}"),
        Event::BuildFinished {
            cells,
            runs,
            nan,
            log_failed,
            contradicted,
            suspect,
            unmeasured,
            seconds,
            ..
        } => {
            let others = [
                (cells.failed, "failed"),
                (cells.not_counted, "not counted"),
                (cells.waiting, "waiting"),
                (cells.unsupported, "unsupported"),
                (cells.not_measured, "not measured"),
            ];
            let others: Vec<String> = (others.into_iter())
                .filter(|(count, _)| *count > 0)
                .map(|(count, word)| format!("{count} {word}"))
                .collect();
            let mut text = format!(
                "{} of {} measured",
                cells.done,
                counted(cells.all(), "selected cell")
            );
            if !others.is_empty() {
                text += &format!(" ({})", others.join(", "));
            }
            text += &match *runs {
                0 if cells.done == cells.all() => {
                    format!("; every run was in the cache ({seconds:.1} s)")
                }
                0 => format!("; no run was made ({seconds:.1} s)"),
                runs => format!("; {} made in {seconds:.1} s", counted(runs, "run")),
            };
            let uncounted = [
                (nan, "with a loss that is not finite"),
                (log_failed, "whose log reports a failure"),
                (contradicted, "contradicted by their logs"),
                (suspect, "disturbed"),
                (unmeasured, "with nothing to measure"),
            ];
            let uncounted = uncounted.into_iter().filter(|(count, _)| **count > 0);
            let uncounted: Vec<String> = uncounted
                .map(|(count, what)| format!("{count} {what}"))
                .collect();
            if !uncounted.is_empty() {
                text += &format!(
                    "; runs that ended well and do not count: {}",
                    uncounted.join(", ")
                );
            }
            text
        }
    }
}
