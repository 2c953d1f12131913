//! Which difference changed the speed, as text.

use tprimat_numbers::figures::blame::{
    Alone, Answer, Blame, Cause, ERROR, Effect, Measured, PairTold,
};

use tprimat_base::words::plain::counted;
use tprimat_numbers::results::words::few;

use super::{
    paint::{Ink, Page},
    sheet::{Sheet, Text, Word},
};

/// The differences of two cells, numbered as the names of the cells in between count them.
#[must_use]
pub fn blame_differences(blame: &Blame) -> String {
    let mut text = format!("A: {}\nB: {}\n", blame.a, blame.b);
    text += &numbered(blame);
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

fn numbered(blame: &Blame) -> String {
    let all = blame.differences.iter().enumerate();
    all.map(|(at, one)| format!("{:>4}  {}\n", at + 1, one.words()))
        .collect()
}

/// `details`: with the questions that were asked, which are shown of an undecided search anyway.
#[must_use]
pub fn blame_text(blame: &Blame, details: bool, page: &Page) -> String {
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
    if (details || blame.answer == Answer::Undecided) && !blame.questions.is_empty() {
        out.say(
            "What was measured, A with some of these differences against A with others, in turns:",
        );
        numbered(blame)
            .lines()
            .for_each(|line| out.item("  ", Ink::Plain, line.trim_start()));
        out.gap();
        out.sheet(&questions(blame));
        out.gap();
    }
    notes(blame).iter().for_each(|note| out.say(note));
    out.finish()
}

fn percent(value: f64) -> String {
    format!("{:.1}", value * 100.0)
}

/// `8.3 % longer`
fn longer(effect: &Effect) -> String {
    let way = if effect.value < 0.0 { "less" } else { "longer" };
    format!("{} % {way}", percent(effect.value.abs()))
}

/// `+8.3`, `−8.3`, and `0.0`, which has no sign.
fn side(value: f64) -> String {
    match (value * 1000.0).round() {
        0.0 => "0.0".to_owned(),
        tenths => format!("{:+.1}", tenths / 10.0).replace('-', "−"),
    }
}

fn bounds(effect: &Effect) -> String {
    format!("{} to {} %", side(effect.low), side(effect.high))
}

fn signed(effect: &Effect) -> String {
    format!("{} %", side(effect.value))
}

/// The pairs of arms in the order of the questions.
fn questions(blame: &Blame) -> Sheet {
    let columns = [
        ("question", true),
        ("against", false),
        ("of", false),
        ("rounds", true),
        ("a step takes", true),
        ("interval", true),
        ("", false),
    ];
    let mut sheet = Sheet::new(&columns, 1);
    let n = blame.differences.len();
    let row = |of: &Measured| {
        let (told, ink) = match of.told {
            PairTold::Differs => ("differ", Ink::Strong),
            PairTold::Alike => ("alike", Ink::Plain),
            PairTold::Open => ("not decided", Ink::Plain),
            PairTold::Fails => ("does not run", Ink::Plain),
        };
        let word = |text: Option<String>| text.map_or_else(Word::missing, Word::plain);
        // With bounds it is what the sentence and the causes say, by all rounds that tell something of it.
        let takes = of.effect.map(|effect| effect.value).or(of.so_far);
        let told = match (of.rounds, of.effect) {
            (0, Some(_)) => format!("{told} (by the other rows)"),
            _ => told.to_owned(),
        };
        vec![
            Word::plain(of.question.to_string()),
            Word::plain(arm(&of.from, n)),
            Word::plain(arm(&of.to, n)),
            Word::plain(of.rounds.to_string()),
            word(takes.map(|value| format!("{} %", side(value)))),
            word(of.effect.as_ref().map(bounds)),
            Word::inked(told, ink),
        ]
    };
    sheet.rows = blame.questions.iter().map(row).collect();
    sheet
}

/// `A`, `B`, or `A with 1–3, 5`
fn arm(differences: &[usize], all: usize) -> String {
    match differences.len() {
        0 => return "A".to_owned(),
        n if n == all => return "B".to_owned(),
        _ => {}
    }
    let runs = differences.chunk_by(|one, next| one + 1 == *next);
    let told: Vec<String> = runs
        .map(|run| match run {
            [one] => (one + 1).to_string(),
            [first, .., last] => format!("{}–{}", first + 1, last + 1),
            [] => String::new(),
        })
        .collect();
    format!("A with {}", told.join(", "))
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
            "{}. {} {}.",
            takes.unwrap_or_default(),
            which(blame, one),
            share(&one.effect, total)
        ),
        (Answer::Found, all) => format!(
            "{}. {} causes make it:",
            takes.unwrap_or_default(),
            all.len()
        ),
        (Answer::Undecided, found) => {
            let takes = match (takes, total) {
                (Some(takes), Some(total)) => format!("{takes} ({})", bounds(total)),
                _ => format!("How A and B differ in speed is not known{}", so_far(blame)),
            };
            let some: Vec<String> = found
                .iter()
                .map(|one| {
                    format!(
                        "{} ({})",
                        named(blame, &one.differences),
                        signed(&one.effect)
                    )
                })
                .collect();
            let some = match &some[..] {
                [] => String::new(),
                all => format!(" Found so far: {}.", all.join("; ")),
            };
            let among = match &blame.among[..] {
                [] => String::new(),
                // All that differs is the whole, which is told.
                [_] if blame.differences.len() == 1 => String::new(),
                [one] => format!(
                    " What {} does without the others is not decided.",
                    named(blame, &[*one])
                ),
                all => {
                    let one = match blame.causes.is_empty() {
                        true => "cause",
                        false => "further cause",
                    };
                    let (n, names) = (all.len(), named(blame, all));
                    match has_cause(blame, all) {
                        true => format!(" A {one} is among these {n}: {names}."),
                        false => format!(" Whether a {one} is among these {n} is open: {names}."),
                    }
                }
            };
            format!("{takes}.{some}{among}")
        }
    }
}

/// Do two configurations that differ in nothing but some of these take different times?
fn has_cause(blame: &Blame, among: &[usize]) -> bool {
    blame.questions.iter().any(|of| {
        let only =
            |a: &[usize], b: &[usize]| a.iter().all(|one| b.contains(one) || among.contains(one));
        of.told == PairTold::Differs && only(&of.from, &of.to) && only(&of.to, &of.from)
    })
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

/// ` after 3 rounds, in which a step of B took 8.1 % longer`
fn so_far(blame: &Blame) -> String {
    let n = blame.differences.len();
    let is_whole = |of: &&Measured| of.from.is_empty() && of.to.len() == n;
    let Some(of) = blame.questions.iter().find(is_whole) else {
        return String::new();
    };
    let rounds = counted(of.rounds, "round");
    match of.so_far {
        Some(value) => {
            let way = if value < 0.0 { "less" } else { "longer" };
            let value = percent(value.abs());
            format!(" after {rounds}, in which a step of B took {value} % {way}")
        }
        None => format!(" after {rounds}"),
    }
}

/// `7.8 of these 7.9 percentage points (+6.9 to +8.6 %)`
fn share(effect: &Effect, total: Option<&Effect>) -> String {
    match total {
        Some(total)
            if total.value * effect.value > 0.0 && effect.value.abs() >= total.value.abs() =>
        {
            format!(
                "all of these {} percentage points: {} without the others ({})",
                percent(total.value.abs()),
                signed(effect),
                bounds(effect)
            )
        }
        Some(total) if total.value * effect.value > 0.0 => format!(
            "{} of these {} percentage points ({})",
            percent(effect.value.abs()),
            percent(total.value.abs()),
            bounds(effect)
        ),
        _ => format!("{} ({})", signed(effect), bounds(effect)),
    }
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
    let margin = percent(blame.margin);
    // Where nothing acts, that is the answer.
    let is_told = matches!(blame.answer, Answer::Found | Answer::Undecided);
    // While a search is undecided, two differences that only act together may still count as cleared.
    let alone = match blame.answer {
        Answer::Undecided => ", as far as they were measured",
        _ => "",
    };
    match &blame.cleared[..] {
        all if all.is_empty() || !is_told => {}
        [one] => notes.push(format!(
            "{} makes less than {margin} %{}.",
            named(blame, &[*one]),
            alone.replace("they were", "it was")
        )),
        // Nobody measured each of them alone.
        all => notes.push(format!(
            "{} differences make less than {margin} % where they were measured together{alone}; two of them that cancel out would not \
             show: {}.",
            all.len(),
            few(&all
                .iter()
                .map(|one| named(blame, &[*one]))
                .collect::<Vec<_>>())
        )),
    }
    let open: Vec<usize> = blame.remaining();
    let open: Vec<usize> = open
        .into_iter()
        .filter(|one| !blame.among.contains(one))
        .collect();
    if blame.answer == Answer::Undecided && !open.is_empty() {
        notes.push(format!(
            "Not told apart from others yet: {}.",
            few(&open
                .iter()
                .map(|one| named(blame, &[*one]))
                .collect::<Vec<_>>())
        ));
    }
    if let Some(rounds) = blame.more_rounds {
        notes.push(format!(
            "About {} of the last question would answer it, if they go on like these.",
            counted(rounds, "more round")
        ));
    }
    match (&blame.goes_on_by, blame.answer) {
        (Some(command), _) => notes.push(format!(
            "The budget is spent. `{command}` goes on where this ended, with all runs that were made."
        )),
        (None, Answer::Undecided) => {
            let is_open = |of: &Measured| of.told == PairTold::Open;
            notes.push(match blame.questions.iter().any(is_open) {
                _ if !blame.fails.is_empty() => {
                    "What would tell them apart does not run, as is said below.".to_owned()
                }
                true => "A question had all the rounds that one gets; a larger --decide needs fewer.".to_owned(),
                false => format!(
                    "Each part of them makes less than {margin} %; a smaller --decide tells them apart."
                ),
            });
        }
        _ => {}
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
