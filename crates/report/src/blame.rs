//! Which difference changed the speed, as text.

use tprimat_numbers::figures::blame::{Alone, Answer, Blame, Cause, ERROR, Effect};

use tprimat_base::words::plain::counted;

use super::{
    paint::{Ink, Page},
    sheet::Text,
};

/// The differences of two cells, numbered as the names of the cells in between count them.
#[must_use]
pub fn blame_differences(blame: &Blame) -> String {
    let mut text = format!("A: {}\nB: {}\n", blame.a, blame.b);
    for (at, one) in blame.differences.iter().enumerate() {
        text += &format!("{:>4}  {}\n", at + 1, one.words());
    }
    for one in &blame.not_varied {
        text += &format!(
            "   –  {} (cannot be varied: the same in A and B)\n",
            one.words()
        );
    }
    for command in &blame.varied_by {
        text += &format!("      `{command}` measures the versions between\n");
    }
    text
}

#[must_use]
pub fn blame_text(blame: &Blame, page: &Page) -> String {
    let mut out = Text::new(page);
    out.say(&format!("A: {}", blame.a));
    out.say(&format!("B: {}", blame.b));
    out.gap();
    out.inked(Ink::Strong, &sentence(blame));
    let is_told = |cause: &&Cause| {
        blame.answer != Answer::Found || blame.causes.len() > 1 || cause.differences.len() > 1
    };
    let items = blame.causes.iter().filter(is_told);
    let items = items.map(|cause| item(blame, cause));
    items.for_each(|line| out.item("  ", Ink::Plain, &line));
    out.gap();
    notes(blame).iter().for_each(|note| out.say(note));
    out.finish()
}

fn percent(value: f64) -> String {
    format!("{:.1}", value * 100.0)
}

/// `8.3 % longer (95 % …)`
fn longer(effect: &Effect) -> String {
    let way = if effect.value < 0.0 { "less" } else { "longer" };
    format!("{} % {way}", percent(effect.value.abs()))
}

fn bounds(effect: &Effect) -> String {
    let side = |value: f64| format!("{:+.1}", value * 100.0).replace('-', "−");
    format!("{} to {} %", side(effect.low), side(effect.high))
}

fn signed(effect: &Effect) -> String {
    format!("{:+.1} %", effect.value * 100.0).replace('-', "−")
}

fn named(blame: &Blame, differences: &[usize]) -> String {
    let words = differences
        .iter()
        .filter_map(|at| blame.differences.get(*at));
    let words: Vec<String> = words.map(|one| format!("`{}`", one.words())).collect();
    words.join(", ")
}

fn sentence(blame: &Blame) -> String {
    let total = blame.total.as_ref();
    let takes = total.map(|total| format!("A step of B takes {} than one of A", longer(total)));
    let margin = percent(blame.margin);
    match (blame.answer, &blame.causes[..]) {
        (Answer::OtherWork, _) => format!(
            "A and B do not do the same work, so their speeds are not compared: they differ in {}.",
            blame.other_work.join(", ")
        ),
        (Answer::Noise, _) => format!(
            "Nothing changed the speed: the steps of A and B take the same time within {margin} %{}.",
            total.map_or_else(String::new, |total| format!(" ({})", bounds(total)))
        ),
        (Answer::HostChanged, _) => format!(
            "The host changed, or something that cannot be varied: measured now, the steps of A and B take the same \
             time within {margin} %, although they took {} % {} then.",
            percent(blame.recorded.unwrap_or_default().abs()),
            // What takes longer now took less then.
            if blame.recorded > Some(0.0) {
                "less"
            } else {
                "longer"
            },
        ),
        (Answer::Found, [one]) => format!(
            "{}: {} {} ({}).",
            takes.unwrap_or_default(),
            which(blame, one),
            share(&one.effect, total),
            bounds(&one.effect)
        ),
        (Answer::Found, all) => format!(
            "{}. {} causes make it, together:",
            takes.unwrap_or_default(),
            all.len()
        ),
        (Answer::Undecided, found) => {
            let takes = match (takes, total) {
                (Some(takes), Some(total)) => format!("{takes} ({})", bounds(total)),
                _ => "How A and B differ in speed is not known".to_owned(),
            };
            let some = match found.len() {
                0 => String::new(),
                _ => " What was found makes a part of it.".to_owned(),
            };
            let among = match &blame.among[..] {
                [] => String::new(),
                // All that differs is the whole, which is told.
                [_] if blame.differences.len() == 1 => String::new(),
                [one] => format!(" What {} does alone is not decided.", named(blame, &[*one])),
                all => format!(
                    " A cause is among these {}, which were not told apart: {}.",
                    all.len(),
                    named(blame, all)
                ),
            };
            format!("{takes}.{some}{among}")
        }
    }
}

fn which(blame: &Blame, cause: &Cause) -> String {
    let are_none = |all: &[Alone]| all.iter().all(|one| *one == Alone::Nothing);
    let names = named(blame, &cause.differences);
    match &cause.differences[..] {
        [_] => format!("{names} makes"),
        [_, _] if are_none(&cause.alone) => format!("{names} together, neither alone, make"),
        _ => format!("{names} together make"),
    }
}

/// `8.1 % of the 8.3 %`
fn share(effect: &Effect, total: Option<&Effect>) -> String {
    let of = total.map_or_else(String::new, |total| format!(" of the {}", signed(total)));
    format!("{}{of}", signed(effect)).replace('+', "")
}

fn item(blame: &Blame, cause: &Cause) -> String {
    let mut line = format!(
        "{} {} ({})",
        which(blame, cause),
        signed(&cause.effect),
        bounds(&cause.effect)
    );
    for (one, alone) in cause.differences.iter().zip(&cause.alone) {
        let name = named(blame, &[*one]);
        match alone {
            Alone::NotMeasured(why) if !why.is_empty() => {
                line += &format!("; {name} alone was not measured: {why}");
            }
            Alone::Makes(effect) if cause.differences.len() > 1 => {
                line += &format!("; {name} alone {}", signed(effect));
            }
            _ => {}
        }
    }
    line
}

fn notes(blame: &Blame) -> Vec<String> {
    let mut notes = Vec::new();
    if blame.answer == Answer::Found {
        let found: usize = blame
            .causes
            .iter()
            .map(|cause| cause.differences.len())
            .sum();
        let others = blame.differences.len().saturating_sub(found);
        let margin = percent(blame.margin);
        match others {
            0 => {}
            1 => notes.push(format!("The other one makes less than {margin} %.")),
            _ => notes.push(format!(
                "The other {others} differences make less than {margin} % together."
            )),
        }
    }
    if let Some(rounds) = blame.more_rounds {
        notes.push(format!(
            "About {} of the last question would answer it, if they go on like these: a larger --max-runs goes on where this ended.",
            counted(rounds, "more round")
        ));
    }
    for failed in &blame.fails {
        notes.push(format!(
            "A does not run with {}: {}",
            named(blame, &failed.with),
            failed.why
        ));
    }
    for one in &blame.not_varied {
        notes.push(format!(
            "{} cannot be varied, so it is the same in A and B here.",
            one.words()
        ));
    }
    for command in &blame.varied_by {
        notes.push(format!("`{command}` measures the versions between."));
    }
    if let (Some(recorded), Answer::Found) = (blame.recorded, blame.answer) {
        let way = if recorded < 0.0 { "less" } else { "longer" };
        notes.push(format!(
            "Against what was measured then, a step takes {} % {way} now.",
            percent(recorded.abs())
        ));
    }
    if blame.verdicts > 0 {
        let hours = match blame.gpu_hours {
            0.0 => String::new(),
            hours => format!(", {hours:.2} GPU-hours"),
        };
        let intervals = match blame.total {
            Some(_) => format!(
                " All intervals hold together with {:.0} % confidence, however many runs were made.",
                (1.0 - ERROR) * 100.0
            ),
            None => String::new(),
        };
        notes.push(format!(
            "{} made for {}{hours}, in turns.{intervals}",
            counted(blame.runs, "run"),
            counted(blame.verdicts, "question"),
        ));
    }
    notes
}
