//! Where the time of a step goes, as text: one breakdown, or from one to another.

use tprimat_numbers::figures::{Breakdown, PartTime, StepPart};

use tprimat_base::words::plain::counted;

use super::{
    paint::{Ink, Page},
    sheet::{Sheet, Text, Word},
};

/// Columns of a bar that is the whole step.
const BAR: f64 = 30.0;
/// Parts below this share of a step are left out of a sentence.
const LEAST: f64 = 0.005;
/// Of two breakdowns, so many parts are told with their kernels.
const DECISIVE: usize = 2;
/// A kernel's name is cut to so many characters.
const NAME: usize = 70;
/// What says nothing of a kernel of PyTorch's own.
const NAMESPACES: [&str; 3] = [
    "at::native::",
    "(anonymous namespace)::",
    "at::cuda::detail::",
];

/// The row of what the profiler adds to one step and not to the other.
const AGAINST_PROFILED: &str = "measured against profiled";

/// Breakdowns with their names: one, or two of which the second is held against the first.
#[must_use]
pub fn why_text(all: &[(String, Breakdown)], page: &Page) -> String {
    let mut out = Text::new(page);
    match all {
        [(a_name, a), (b_name, b)] => {
            out.inked(Ink::Strong, &difference(a_name, a, b_name, b));
            out.gap();
            out.sheet(&waterfall(a_name, a, b_name, b));
        }
        _ => {
            for (name, of) in all {
                out.inked(Ink::Strong, &one(name, of));
                out.gap();
                out.sheet(&bars(of));
            }
        }
    }
    out.gap();
    let named = match all {
        [(_, a), (_, b)] => decisive(a, b),
        _ => StepPart::ALL.into(),
    };
    for (name, of) in all {
        let notes = notes(name, of, &named);
        notes.iter().for_each(|note| out.item("  ", Ink::Dim, note));
    }
    out.finish()
}

fn milliseconds(seconds: f64) -> String {
    format!("{:.1}", seconds * 1e3).replace('-', "−")
}

fn signed(seconds: f64) -> String {
    // No zero has a sign.
    let tenths = (seconds * 1e4).round();
    match tenths == 0.0 {
        true => "0.0".to_owned(),
        false => format!("{:+.1}", tenths / 10.0).replace('-', "−"),
    }
}

/// What the profiler adds to a step, where the step is measured without it.
fn cost(of: &Breakdown) -> Option<f64> {
    Some(of.step_seconds - of.measured_step_seconds?)
}

fn one(name: &str, of: &Breakdown) -> String {
    let unit = if of.is_by_step {
        "a step takes"
    } else {
        "the trace spans"
    };
    let mut parts: Vec<&PartTime> = of.parts.iter().collect();
    parts.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let share = |part: &&PartTime| part.seconds / of.step_seconds;
    let told: Vec<String> = parts
        .iter()
        .filter(|part| share(part) >= LEAST)
        .map(|part| format!("{} {:.0} %", part.part.words(), 100.0 * share(part)))
        .collect();
    format!(
        "{name}: {unit} {} ms under the profiler: {}.",
        milliseconds(of.step_seconds),
        told.join(", ")
    )
}

/// Both steps: as measured where both are, else under the profiler.
fn steps(a: &Breakdown, b: &Breakdown) -> [f64; 2] {
    match (a.measured_step_seconds, b.measured_step_seconds) {
        (Some(a), Some(b)) => [a, b],
        _ => [a.step_seconds, b.step_seconds],
    }
}

/// What leads from the first of [`steps`] to the second: the parts that either has, and what the profiler
/// added less.
fn changes(a: &Breakdown, b: &Breakdown) -> Vec<(&'static str, f64)> {
    let parts = a.parts.iter().zip(&b.parts);
    let there = parts.filter(|(a, b)| a.seconds > 0.0 || b.seconds > 0.0);
    let mut changes: Vec<_> = there
        .map(|(a, b)| (a.part.words(), b.seconds - a.seconds))
        .collect();
    if let (Some(of_a), Some(of_b)) = (cost(a), cost(b)) {
        changes.push((AGAINST_PROFILED, of_a - of_b));
    }
    changes
}

/// The parts whose kernels are named: the [`DECISIVE`] that differ most.
fn decisive(a: &Breakdown, b: &Breakdown) -> Vec<StepPart> {
    let more = |part: &StepPart| {
        let seconds = |of: &Breakdown| {
            of.parts
                .iter()
                .find(|p| p.part == *part)
                .map_or(0.0, |p| p.seconds)
        };
        (seconds(b) - seconds(a)).abs()
    };
    let mut parts = StepPart::ALL;
    parts.sort_by(|x, y| more(y).total_cmp(&more(x)));
    let mut named = parts[..DECISIVE].to_vec();
    named.push(StepPart::Other);
    named
}

/// `B's step takes 80.1 ms more than A's (319.7, not 239.6; 33.4 %): attention +38.0, …`
fn difference(a_name: &str, a: &Breakdown, b_name: &str, b: &Breakdown) -> String {
    let both_measured = a.measured_step_seconds.is_some() && b.measured_step_seconds.is_some();
    let [of_a, of_b] = steps(a, b);
    let total = of_b - of_a;
    let mut changes = changes(a, b);
    changes.sort_by(|x, y| y.1.abs().total_cmp(&x.1.abs()));
    let told: Vec<String> = changes
        .iter()
        .filter(|(words, seconds)| *words != AGAINST_PROFILED && seconds.abs() >= LEAST * of_a)
        .map(|(words, seconds)| format!("{words} {}", signed(*seconds)))
        .collect();
    let profiled = match (cost(a), cost(b)) {
        (Some(a), Some(b)) => format!(
            "; profiled, the two took {} and {} ms more",
            signed(a),
            signed(b)
        ),
        _ => String::new(),
    };
    let than = if total < 0.0 { "less" } else { "more" };
    let of = if both_measured {
        ""
    } else {
        " under the profiler"
    };
    let parts = if told.is_empty() {
        "no part differs by half a per cent of it".to_owned()
    } else {
        told.join(", ")
    };
    format!(
        "A step of {b_name} takes {} ms {than}{of} than one of {a_name} ({} for {} ms, {}): {parts}{profiled}.",
        milliseconds(total.abs()),
        milliseconds(of_b),
        milliseconds(of_a),
        format!("{:+.1} %", 100.0 * total / of_a).replace('-', "−")
    )
}

fn bars(of: &Breakdown) -> Sheet {
    let columns = [("part", false), ("ms", true), ("share", true), ("", false)];
    let mut sheet = Sheet::new(&columns, 1);
    sheet.rows = of
        .parts
        .iter()
        .filter(|part| part.seconds > 0.0)
        .map(|part| {
            let share = part.seconds / of.step_seconds;
            vec![
                Word::plain(part.part.words()),
                Word::plain(milliseconds(part.seconds)),
                Word::plain(format!("{:.1} %", 100.0 * share)),
                Word::inked("█".repeat((share * BAR).round() as usize), Ink::Dim),
            ]
        })
        .collect();
    sheet
}

fn waterfall(a_name: &str, a: &Breakdown, b_name: &str, b: &Breakdown) -> Sheet {
    let columns = [
        ("part", false),
        (a_name, true),
        (b_name, true),
        ("difference", true),
        ("", false),
    ];
    let mut sheet = Sheet::new(&columns, 1);
    let longest = a.step_seconds.max(b.step_seconds);
    let row = |name: &str, [a, b]: [Option<f64>; 2], more: f64| {
        let ms = |seconds: Option<f64>| {
            seconds.map_or_else(Word::missing, |s| Word::plain(milliseconds(s)))
        };
        let bar = "█".repeat((more.abs() / longest * BAR).round() as usize);
        let ink = if more > 0.0 { Ink::Bad } else { Ink::Good };
        vec![
            Word::plain(name),
            ms(a),
            ms(b),
            Word::plain(signed(more)),
            Word::inked(bar, ink),
        ]
    };
    let seconds = |of: &Breakdown, name: &str| {
        let part = of.parts.iter().find(|part| part.part.words() == name);
        part.map_or_else(|| cost(of).map(|cost| -cost), |part| Some(part.seconds))
    };
    let changes = changes(a, b).into_iter();
    sheet.rows = changes
        .map(|(name, more)| row(name, [seconds(a, name), seconds(b, name)], more))
        .collect();
    let both = steps(a, b);
    let name = match cost(a).and(cost(b)) {
        Some(_) => "step, measured",
        None => "step, profiled",
    };
    sheet
        .rows
        .push(row(name, both.map(Some), both[1] - both[0]));
    sheet
}

/// What a reader must know of a breakdown besides, and the largest kernels of what takes the most.
fn notes(name: &str, of: &Breakdown, named: &[StepPart]) -> Vec<String> {
    let mut notes = Vec::new();
    if of.is_by_step {
        notes.push(format!(
            "{name}: means over {}",
            counted(of.steps, "profiled step")
        ));
    } else {
        notes.push(format!(
            "{name}: the trace marks no steps, so its times are of all of it; `profiler.step()` after each step marks them"
        ));
    }
    if let (Some(cost), Some(measured)) = (cost(of), of.measured_step_seconds) {
        notes.push(format!(
            "{name}: measured without the profiler, a step takes {} ms; the profiled steps took {:.1} % {}",
            milliseconds(measured),
            100.0 * cost.abs() / measured,
            if cost < 0.0 { "less" } else { "more" }
        ));
    }
    if of.hidden_exchange_seconds > 0.0 {
        notes.push(format!(
            "{name}: {} ms of exchange a step are hidden behind what computes",
            milliseconds(of.hidden_exchange_seconds)
        ));
    }
    for part in &of.parts {
        let is_small = part.seconds < LEAST * of.step_seconds;
        if is_small || part.part == StepPart::Idle || !named.contains(&part.part) {
            continue;
        }
        let kernels: Vec<String> = part
            .largest
            .iter()
            .map(|kernel| {
                let each = kernel.seconds / kernel.launches * 1e6;
                let launches = kernel.launches;
                format!(
                    "{} ms {} ({launches:.0} × {each:.0} µs)",
                    milliseconds(kernel.seconds),
                    cut(&kernel.name)
                )
            })
            .collect();
        // Its kernels are told whole, also where something computes beside them.
        let what = match part.part {
            StepPart::Exchange => "exchange, hidden or not",
            part => part.words(),
        };
        notes.push(format!("{name}: {what}: {}", kernels.join("; ")));
    }
    notes
}

fn cut(kernel: &str) -> String {
    let kernel = NAMESPACES.iter().fold(
        kernel.trim_start_matches("void ").to_owned(),
        |name, part| name.replace(part, ""),
    );
    let mut name: String = kernel.chars().take(NAME).collect();
    if name.len() < kernel.len() {
        name.push('…');
    }
    name
}
