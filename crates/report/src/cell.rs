//! All that is known of one cell: its figures, each with what it is made of, its repeats, and what
//! went wrong.

use std::fmt::Write;

use tprimat_figures::{
    AbsentCell, AbsentState, Comparison, Figure, NoteKind, RepeatStatus, RepeatSummary, Row,
    host_named, rate_unit,
};
use tprimat_results::{AttestationStatus, Reason, Tier};
use tprimat_words::plain::counted;

use super::{
    advice::advice,
    environment::following_words,
    format::{MISSING, bytes, metric, number, percent, seconds},
    headline::{headlines, same_as},
    mark,
    notes::steady_state,
    paint::{Ink, Page},
    sheet::{Sheet, Word, paragraph},
    table::{ink_of, rate, repeats},
};

/// None where the comparison has no such cell.
#[must_use]
pub fn cell_text(
    comparison: &Comparison,
    name: &str,
    command: impl Fn(&str, &[&str]) -> String,
    page: &Page,
) -> Option<String> {
    let mut out = String::new();
    let repeats = if let Some(row) = comparison.rows.iter().find(|r| r.cell == name) {
        figures(&mut out, comparison, row, page);
        &row.repeats
    } else {
        let absent = comparison.absent.iter().find(|a| a.cell == name)?;
        without_figures(&mut out, absent, page);
        &absent.repeats
    };
    if !repeats.is_empty() {
        _ = write!(out, "\nRepeats:\n{}\n", sheet(repeats).show_in_parts(page));
        repeats
            .iter()
            .for_each(|repeat| what_went_wrong(&mut out, name, repeat, &command, page));
    }
    // Told above, with the cell's figures.
    let above = [NoteKind::Environment, NoteKind::Same];
    let notes = comparison
        .notes
        .iter()
        .filter(|note| note.cell.as_deref() == Some(name));
    let mut notes: Vec<_> = notes.filter(|note| !above.contains(&note.kind)).collect();
    notes.sort_by_key(|note| note.kind);
    if !notes.is_empty() {
        out.push('\n');
    }
    for note in notes {
        paragraph(
            &mut out,
            "- ",
            &format!("{}.", note.reason),
            page,
            Ink::Plain,
        );
    }
    Some(out)
}

fn without_figures(out: &mut String, absent: &AbsentCell, page: &Page) {
    let ink = if absent.state == AbsentState::Contradicted {
        Ink::Alarm
    } else {
        Ink::Bad
    };
    paragraph(
        out,
        "",
        &format!("{}{}", absent.cell, mark(&absent.imported)),
        page,
        Ink::Strong,
    );
    paragraph(out, "", &absent.told(), page, ink);
}

fn figures(out: &mut String, comparison: &Comparison, row: &Row, page: &Page) {
    paragraph(
        out,
        "",
        &format!("{}{}", row.cell, mark(&row.imported)),
        page,
        Ink::Strong,
    );
    if let Some(group) = comparison.groups.get(row.group) {
        paragraph(
            out,
            "",
            &format!("{}: {}", group.model, group.workload),
            page,
            Ink::Plain,
        );
        if let Some(headline) = headlines(comparison)
            .iter()
            .find(|h| h.group == Some(row.group) && h.a == row.cell)
        {
            paragraph(out, "", &headline.text, page, ink_of(headline.verdict));
        } else if group.baseline == row.cell && group.cells.len() > 1 {
            paragraph(
                out,
                "",
                "Other cells of this workload are compared with this one.",
                page,
                Ink::Plain,
            );
        }
    }
    out.push('\n');
    let attestation = match row.attestation {
        AttestationStatus::Attested if !row.declared_only.is_empty() => {
            let settings = row
                .contract
                .0
                .iter()
                .filter(|field| field.tier == Tier::Workload)
                .count();
            let confirmed = settings.saturating_sub(row.declared_only.len());
            let others = if row.imported.is_empty() {
                "the job asked"
            } else {
                "the labels say"
            };
            Word::plain(format!(
                "{confirmed} of {settings} settings confirmed by the log; the others are as {others}"
            ))
        }
        AttestationStatus::Attested => Word::plain("attested by the log"),
        AttestationStatus::Contradicted => Word::inked("CONTRADICTED by the log", Ink::Alarm),
        AttestationStatus::NotStated => Word::plain("not attested: the workload is as declared"),
    };
    let time = &row.step_time;
    let spread = match (time.sd_seconds, time.cv) {
        (Some(sd), Some(cv)) => format!(", sd {} (cv {})", seconds(sd), percent(cv)),
        _ => String::new(),
    };
    let plain = |name: &str, text: String| (name.to_owned(), Word::plain(text));
    let mut lines: Vec<(String, Word)> = vec![
        plain(
            "device",
            row.device.clone().unwrap_or_else(|| "not stated".into()),
        ),
        plain(
            "precision",
            if row.precision.is_empty() {
                "not stated".into()
            } else {
                row.precision.clone()
            },
        ),
        ("workload".into(), attestation),
        plain("repeats", repeats(row).text),
        (format!("{} (95 % CI)", rate_unit(std::iter::once(row))), {
            row.impossible().map_or_else(
                || Word::plain(rate(&row.tokens_per_second_per_gpu)),
                impossible,
            )
        }),
        plain(
            "step time",
            format!(
                "mean {}, median {}, p95 {}{spread}",
                seconds(time.mean_seconds),
                seconds(time.median_seconds),
                seconds(time.p95_seconds)
            ),
        ),
    ];
    for memory in &row.memory {
        let kind = memory.kind.replace('_', " ");
        let text = format!("{} (source: {})", bytes(memory.bytes), memory.source);
        lines.push(plain(&format!("memory, {kind}"), text));
    }
    if let Some(loss) = row.loss_at_end {
        let at = row
            .last_step
            .map(|step| format!(" (step {step})"))
            .unwrap_or_default();
        let is_error = matches!(row.metrics.get("loss_at_end"), Some(Figure::Error { .. }));
        let shown = if is_error {
            "impossible".to_owned()
        } else {
            number(loss)
        };
        let ink = if shown == MISSING {
            Ink::Dim
        } else {
            Ink::Plain
        };
        lines.push((
            "loss at end".into(),
            Word::inked(format!("{shown}{at}"), ink),
        ));
    }
    let shown = |m: &&tprimat_figures::Metric| m.name != "loss_at_end";
    lines.extend(row.metrics.0.iter().filter(shown).map(|m| {
        let word = match &m.figure {
            Figure::Ok { value, basis } => {
                let text = metric(*value, &m.unit, &m.title);
                let ink = if text == MISSING {
                    Ink::Dim
                } else {
                    Ink::Plain
                };
                Word::inked(format!("{text}  = {basis}"), ink)
            }
            Figure::Absent { reason } => absent(reason),
            Figure::Error { reason } => impossible(reason),
        };
        (m.title.clone(), word)
    }));
    let width = lines
        .iter()
        .map(|(name, _)| name.chars().count())
        .max()
        .unwrap_or(0)
        .min(page.width / 3);
    for (name, word) in lines {
        paragraph(
            out,
            &format!("{name:<width$}  "),
            &word.text,
            page,
            word.ink,
        );
    }
    for line in steady_state(&[row]) {
        paragraph(out, "", &line, page, Ink::Plain);
    }
    // The sentence above says it where it is why the comparison is another cell's.
    let is_told = |twin: &&String| {
        comparison
            .speedups
            .iter()
            .any(|s| s.a == row.cell && s.same_as.as_ref() == Some(twin))
    };
    if let Some(twin) = row.same_launch_as.as_ref().filter(|twin| !is_told(twin)) {
        let found = comparison.rows.iter().find(|other| other.cell == *twin);
        paragraph(
            out,
            "",
            &format!("{} {}.", row.cell, same_as(row, twin, found)),
            page,
            Ink::Bad,
        );
    }
    environment(out, comparison, row, page);
}

fn absent(reason: &Reason) -> Word {
    Word::inked(format!("{MISSING}  {reason}"), Ink::Dim)
}

fn impossible(reason: &Reason) -> Word {
    Word::inked(format!("impossible: {reason}"), Ink::Alarm)
}

/// In what the cell ran, where that is not as in the baseline; dangerous differences first, and
/// what merely follows from another vendor, platform or framework as a count.
fn environment(out: &mut String, comparison: &Comparison, row: &Row, page: &Page) {
    let mut all: Vec<_> = comparison
        .environment
        .iter()
        .filter(|e| e.cell_a == row.cell)
        .collect();
    all.sort_by_key(|e| e.dangerous.is_none());
    if let Some(first) = all.first() {
        paragraph(
            out,
            "",
            &format!("Different from {}:", first.cell_b),
            page,
            Ink::Plain,
        );
    }
    let (own, following): (Vec<_>, Vec<_>) = all
        .into_iter()
        .partition(|e| e.dangerous.is_some() || e.follows.is_none());
    for found in own {
        let ink = if found.dangerous.is_none() {
            Ink::Plain
        } else {
            Ink::Bad
        };
        paragraph(
            out,
            "  ",
            &format!("{} {}", found.kind, found.words()),
            page,
            ink,
        );
    }
    if let Some(text) = following_words(&following) {
        paragraph(
            out,
            "  ",
            &format!("{text} (--json of `compare` has them)"),
            page,
            Ink::Dim,
        );
    }
}

fn sheet(repeats: &[RepeatSummary]) -> Sheet {
    let mut sheet = Sheet::default();
    type Of = fn(&RepeatSummary) -> Word;
    let columns: [(&str, bool, Of); 12] = [
        ("repeat", false, |r| Word::plain(format!("#{}", r.repeat))),
        ("state", false, state),
        ("tokens/s/GPU", true, |r| {
            known(
                r.steady
                    .as_ref()
                    .map(|s| number(s.tokens_per_second_per_gpu)),
            )
        }),
        ("step time", true, |r| {
            known(r.steady.as_ref().map(|s| seconds(s.step_time.mean_seconds)))
        }),
        ("steps", true, |r| {
            known(r.steady.as_ref().map(|s| s.steps.to_string()))
        }),
        ("first step", true, |r| {
            known(cut(r).map(|c| c.first_step.to_string()))
        }),
        ("extra warm-up steps", true, |r| {
            known(extra(r).map(|c| c.dropped_steps.to_string()))
        }),
        ("tokens/s/GPU with them", true, |r| {
            known(extra(r).map(|c| number(c.declared_tokens_per_second_per_gpu)))
        }),
        ("energy", true, |r| {
            let energy = r.telemetry.as_ref().and_then(|t| t.energy.as_ref());
            known(energy.map(|e| format!("{} J ({})", number(e.joules), e.method)))
        }),
        ("mean power", true, |r| {
            known(
                r.telemetry
                    .as_ref()
                    .and_then(|t| t.mean_power_watts)
                    .map(|w| format!("{} W", number(w))),
            )
        }),
        ("others on its GPUs", false, |r| {
            let looks = r.telemetry.as_ref().map(|t| t.processes_known);
            known(looks.map(|n| {
                if n == 0 {
                    "not known".to_owned()
                } else {
                    format!(
                        "none seen in {}",
                        counted(usize::try_from(n).unwrap_or(usize::MAX), "check")
                    )
                }
            }))
        }),
        ("host", false, |r| {
            Word::plain(host_named(&r.host).unwrap_or(MISSING))
        }),
    ];
    let has = |of: Of| repeats.iter().any(|r| of(r).text != MISSING);
    let columns: Vec<_> = columns.into_iter().filter(|(.., of)| has(*of)).collect();
    columns
        .iter()
        .for_each(|(name, figures, _)| sheet.column(*name, *figures));
    sheet.rows = repeats
        .iter()
        .map(|r| columns.iter().map(|(.., of)| of(r)).collect())
        .collect();
    sheet
}

fn known(text: Option<String>) -> Word {
    text.filter(|t| t != MISSING)
        .map_or_else(Word::missing, Word::plain)
}

fn cut(repeat: &RepeatSummary) -> Option<&tprimat_figures::Cut> {
    repeat.steady.as_ref()?.cut.as_ref()
}

/// Where more was warm-up than is declared.
fn extra(repeat: &RepeatSummary) -> Option<&tprimat_figures::Cut> {
    cut(repeat).filter(|cut| cut.dropped_steps > 0)
}

fn state(repeat: &RepeatSummary) -> Word {
    match &repeat.status {
        RepeatStatus::Ok => Word::plain("ok"),
        RepeatStatus::Failed { class, .. } => {
            Word::inked(format!("failed ({})", class.name()), Ink::Bad)
        }
        RepeatStatus::Contradicted { .. } => Word::inked("CONTRADICTED", Ink::Alarm),
        RepeatStatus::Suspect { .. } => Word::inked("suspect", Ink::Bad),
        RepeatStatus::Unmeasured { .. } => Word::inked("not counted", Ink::Dim),
    }
}

fn what_went_wrong(
    out: &mut String,
    cell: &str,
    repeat: &RepeatSummary,
    command: impl Fn(&str, &[&str]) -> String,
    page: &Page,
) {
    let n = repeat.repeat;
    match &repeat.status {
        RepeatStatus::Ok => {}
        RepeatStatus::Failed { class, evidence } => {
            paragraph(
                out,
                "",
                &format!("#{n} failed ({}):", class.name()),
                page,
                Ink::Bad,
            );
            evidence
                .iter()
                .for_each(|line| paragraph(out, "    ", line, page, Ink::Plain));
            paragraph(
                out,
                "    ",
                &format!("What to do: {}.", advice(*class, cell, command)),
                page,
                Ink::Plain,
            );
        }
        status => {
            let (is, ink) = match status {
                RepeatStatus::Contradicted { .. } => ("CONTRADICTED, not counted", Ink::Alarm),
                _ => ("is not counted", Ink::Plain),
            };
            let why = status.why_not().unwrap_or_default();
            paragraph(out, "", &format!("#{n} {is}: {why}"), page, ink);
        }
    }
    let telemetry = repeat.telemetry.as_ref();
    let no_energy = telemetry.and_then(|t| t.energy_absent.as_ref());
    if let Some(why) = repeat.telemetry_absent.as_ref().or(no_energy) {
        paragraph(
            out,
            "",
            &format!("#{n} has no energy: {why}"),
            page,
            Ink::Dim,
        );
    }
    if let Some(told) = telemetry.filter(|t| !t.throttled.is_empty()) {
        paragraph(
            out,
            "",
            &format!(
                "#{n} ran with lowered clocks: {}",
                told.throttled.join(", ")
            ),
            page,
            Ink::Bad,
        );
    }
    if !repeat.log_tail.is_empty() {
        _ = writeln!(out, "  the end of its log:");
        repeat
            .log_tail
            .iter()
            .for_each(|line| paragraph(out, "    | ", line, page, Ink::Plain));
    }
}
