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
    let more = match (cost(of), of.measured_step_seconds) {
        (Some(cost), Some(measured)) => format!(
            ", {:.1} % {} than measured",
            100.0 * cost.abs() / measured,
            if cost < 0.0 { "less" } else { "more" }
        ),
        _ => String::new(),
    };
    format!(
        "{name}: {unit} {} ms under the profiler{more}: {}.",
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

/// How a part differs between two breakdowns, in seconds.
struct Change {
    part: StepPart,
    more: f64,
    /// More time of it beside a collective; of exchange, less time of it hidden.
    beside: f64,
}

/// The parts that either has.
fn changes(a: &Breakdown, b: &Breakdown) -> Vec<Change> {
    let parts = a.parts.iter().zip(&b.parts);
    let there = parts.filter(|(a, b)| a.seconds > 0.0 || b.seconds > 0.0);
    let change = |(of_a, of_b): (&PartTime, &PartTime)| Change {
        part: of_a.part,
        more: of_b.seconds - of_a.seconds,
        beside: match of_a.part {
            StepPart::Exchange => a.hidden_exchange_seconds - b.hidden_exchange_seconds,
            _ => of_b.beside_exchange_seconds - of_a.beside_exchange_seconds,
        },
    };
    there.map(change).collect()
}

impl Change {
    /// `exchange, exposed +40.0 (38.0 of it is hidden in A)`: what was hidden is new as time of the step, and
    /// not as exchange; and a kernel takes longer beside a collective, because the two share the device.
    fn words(&self, least: f64, names: [&str; 2]) -> String {
        let told = format!("{} {}", self.part.words(), signed(self.more));
        if self.beside.abs() < least || (self.beside > 0.0) != (self.more > 0.0) {
            return told;
        }
        let [less, more] = if self.more > 0.0 {
            names
        } else {
            [names[1], names[0]]
        };
        match self.part {
            StepPart::Exchange => format!(
                "{told} ({} ms of it is hidden behind what computes in {less})",
                milliseconds(self.beside.abs().min(self.more.abs()))
            ),
            _ => format!(
                "{told} (in {more}, {} ms more of it shares the device with exchange)",
                milliseconds(self.beside.abs())
            ),
        }
    }
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

/// `A step of B takes 80.1 ms more than one of A (319.7 for 239.6 ms, +33.4 %): attention +38.0, …`
fn difference(a_name: &str, a: &Breakdown, b_name: &str, b: &Breakdown) -> String {
    let told = of_difference(a_name, a, b_name, b);
    let [of_a, of_b] = steps(a, b);
    let range = |of: &Breakdown| {
        of.step_range_seconds
            .map(|[shortest, longest]| longest - shortest)
    };
    let widest = [a, b].into_iter().filter_map(range).fold(0.0, f64::max);
    match (of_b - of_a).abs() < widest {
        true => format!(
            "{told} The profiled steps of one trace differ by up to {} ms among themselves, which is more.",
            milliseconds(widest)
        ),
        false => told,
    }
}

fn of_difference(a_name: &str, a: &Breakdown, b_name: &str, b: &Breakdown) -> String {
    let [of_a, of_b] = steps(a, b);
    let least = LEAST * of_a;
    let mut changes = changes(a, b);
    changes.retain(|change| change.more.abs() >= least);
    changes.sort_by(|x, y| y.more.abs().total_cmp(&x.more.abs()));
    let told = changes.iter().map(|of| of.words(least, [a_name, b_name]));
    let told: Vec<String> = told.collect();
    let told = if told.is_empty() {
        "no part differs by half a per cent of it".to_owned()
    } else {
        told.join(", ")
    };
    let takes = format!(
        "A step of {b_name} takes {} than one of {a_name}",
        more_or_less(of_b - of_a)
    );
    let both = format!(
        "({} for {} ms, {})",
        milliseconds(of_b),
        milliseconds(of_a),
        format!("{:+.1} %", 100.0 * (of_b / of_a - 1.0)).replace('-', "−")
    );
    let (Some(cost_a), Some(cost_b)) = (cost(a), cost(b)) else {
        return format!("{takes} under the profiler {both}: {told}.");
    };
    let costs = format!("{} and {} ms", signed(cost_a), signed(cost_b));
    let smallest = changes
        .last()
        .map_or(f64::INFINITY, |change| change.more.abs());
    if cost_a.abs().max(cost_b.abs()) < smallest {
        return format!("{takes} {both}: {told}; profiled, the two took {costs} more.");
    }
    format!(
        "{takes} {both}. Its parts are known of profiled steps alone, which the profiler changed by {costs}, as much as a \
         part that is named here: under it, one of {b_name} takes {}: {told}.",
        more_or_less(b.step_seconds - a.step_seconds)
    )
}

/// `80.1 ms more`
fn more_or_less(seconds: f64) -> String {
    let than = if seconds < 0.0 { "less" } else { "more" };
    format!("{} ms {than}", milliseconds(seconds.abs()))
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
    let seconds = |of: &Breakdown, part: StepPart| {
        let part = of.parts.iter().find(|found| found.part == part);
        part.map(|part| part.seconds)
    };
    let changes = changes(a, b).into_iter();
    sheet.rows = changes
        .map(|of| {
            let both = [a, b].map(|breakdown| seconds(breakdown, of.part));
            row(of.part.words(), both, of.more)
        })
        .collect();
    let profiled = [a, b].map(|of| Some(of.step_seconds));
    let more = b.step_seconds - a.step_seconds;
    sheet.rows.push(row("step, profiled", profiled, more));
    if let (Some(of_a), Some(of_b)) = (cost(a), cost(b)) {
        let less = [-of_a, -of_b].map(Some);
        sheet.rows.push(row(AGAINST_PROFILED, less, of_a - of_b));
        let both = steps(a, b);
        let row = row("step, measured", both.map(Some), both[1] - both[0]);
        sheet.rows.push(row);
    }
    sheet
}

/// Which steps the times are of, and by how much steps differ.
fn which_steps(of: &Breakdown) -> String {
    let steps = counted(of.steps, "profiled step");
    match of.step_range_seconds {
        Some([shortest, longest]) => format!(
            "{} {steps}, which took {} to {} ms",
            if of.steps > 2 {
                "the median of"
            } else {
                "the mean of"
            },
            milliseconds(shortest),
            milliseconds(longest)
        ),
        None if of.steps > 1 => format!(
            "means over {steps}, which are not known one by one: the trace does not show where each begins on the device"
        ),
        None => steps,
    }
}

/// What a reader must know of a breakdown besides, and the largest kernels of what takes the most.
fn notes(name: &str, of: &Breakdown, named: &[StepPart]) -> Vec<String> {
    let mut notes = Vec::new();
    if of.is_by_step {
        notes.push(format!("{name}: {}", which_steps(of)));
    } else {
        notes.push(format!(
            "{name}: the trace marks no steps, so its times are of all of it; `profiler.step()` after each step marks them"
        ));
    }
    if let (Some(cost), Some(measured)) = (cost(of), of.measured_step_seconds) {
        notes.push(format!(
            "{name}: measured without the profiler, a step takes {} ms, so the profiler changed it by {} ms ({:.1} %); which parts \
             these are in is not known",
            milliseconds(measured),
            signed(cost),
            100.0 * cost.abs() / measured
        ));
    }
    if of.hidden_exchange_seconds > 0.0 {
        notes.push(format!(
            "{name}: {} ms of exchange a step are hidden behind what computes, and no time of the step; kernels that share the \
             device with it may take longer than alone",
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
