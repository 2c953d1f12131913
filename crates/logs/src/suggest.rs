//! A line with named places for a log that no format reads, from the lines that it repeats.

use std::{collections::BTreeMap, ops::Range};

use tprimat_base::words::part;

use super::pattern::Pattern;

/// Words before a number, and the field that it then is.
const BEFORE: &[(&str, &str)] = &[
    ("step", "step"),
    ("steps", "step"),
    ("iter", "step"),
    ("iteration", "step"),
    ("it", "step"),
    ("update", "step"),
    ("global_step", "step"),
    ("loss", "loss"),
    ("train_loss", "loss"),
    ("lr", "learning_rate"),
    ("learning_rate", "learning_rate"),
    ("norm", "grad_norm"),
    ("gnorm", "grad_norm"),
    ("grad_norm", "grad_norm"),
    ("tokens/s", "tokens_per_second"),
    ("tokens/sec", "tokens_per_second"),
    ("tok/s", "tokens_per_second"),
    ("tok/sec", "tokens_per_second"),
    ("tps", "tokens_per_second"),
    ("throughput", "tokens_per_second"),
    ("tokens_per_second", "tokens_per_second"),
    ("time", "step_time_seconds"),
    ("dt", "step_time_seconds"),
    ("step_time", "step_time_seconds"),
];
/// Units behind a number, which say what it is where no word before it does.
const BEHIND: &[(&str, &str)] = &[
    ("tokens/s", "tokens_per_second"),
    ("tokens/sec", "tokens_per_second"),
    ("tok/s", "tokens_per_second"),
    ("tok/sec", "tokens_per_second"),
    ("s/it", "step_time_seconds"),
    ("s/step", "step_time_seconds"),
    ("ms/step", "step_time_ms"),
    ("ms", "step_time_ms"),
    ("gib", "memory_gib"),
    ("gb", "memory_gb"),
    ("mib", "memory_mib"),
];
/// Words before a number of tokens. What is another number in each line may count them since the beginning.
const TOKENS: [&str; 4] = ["tok", "toks", "tokens", "num_tokens"];
/// A pattern is proposed only where this many lines are alike.
const ALIKE: usize = 3;

/// What the end of a log looks like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suggestion {
    /// The last of the lines that are alike.
    pub line: String,
    /// How many of them there are.
    pub alike: usize,
    /// The line with places, as `log` of config.yaml takes it.
    pub pattern: String,
    /// Does the line give a rate? Otherwise it says neither how long a step took nor how many tokens
    /// a second there were.
    pub has_rate: bool,
}

/// The lines that are most often alike but for their numbers, as a line with places; none where
/// nothing repeats, or no number is known by the word beside it.
#[must_use]
pub fn suggest(lines: &[String]) -> Option<Suggestion> {
    let mut alike: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for line in lines {
        let places = numbers(line).into_iter().rev();
        let shape = places.fold(line.clone(), |mut shape, number| {
            shape.replace_range(number, "#");
            shape
        });
        alike.entry(shape).or_default().push(line);
    }
    let of_most = alike.into_values().max_by_key(|lines| lines.len())?;
    let is_enough = of_most.len() >= ALIKE;
    let pattern = is_enough.then(|| pattern(&of_most)).flatten()?;
    Some(Suggestion {
        line: (*of_most.last()?).to_owned(),
        alike: of_most.len(),
        has_rate: ["<step_time_", "<tokens_per_second>"]
            .iter()
            .any(|field| pattern.contains(field)),
        pattern,
    })
}

/// Where the numbers of a line are. Digits of a name, such as `gpu0` or `v1.2`, are no number.
fn numbers(line: &str) -> Vec<Range<usize>> {
    static NUMBER: Pattern = Pattern::new(
        r"\d(?:[\d.,]*\d|['\x{2019}\x{a0}\x{2009}\x{202f}]\d{3})*(?:[eE][-+]?\d+)?(?:[kKM]\b)?",
    );
    let is_of_name = |place: &Range<usize>| {
        let before = part(line, ..place.start).chars().next_back();
        before.is_some_and(|c| c.is_alphabetic() || c == '_')
    };
    let found = NUMBER.find_iter(line).map(|found| found.range());
    found.filter(|place| !is_of_name(place)).collect()
}

fn pattern(lines: &[&str]) -> Option<String> {
    let last = *lines.last()?;
    let places = numbers(last);
    let moves = |nth: usize| {
        let text = |line: &str| {
            numbers(line)
                .get(nth)
                .map(|at| part(line, at.clone()).to_owned())
        };
        let first = text(lines[0]);
        lines.iter().any(|line| text(line) != first)
    };
    let mut used: Vec<&str> = Vec::new();
    let mut named: Vec<Option<&str>> = Vec::new();
    for (nth, at) in places.iter().enumerate() {
        let word = part(last, word_before(last, at.start)).to_lowercase();
        let is_of_tokens = TOKENS.contains(&word.as_str()) && !moves(nth);
        let field = match is_of_tokens {
            true => Some("tokens"),
            false => field_of(last, at).filter(|_| moves(nth)),
        };
        let field = field.filter(|field| !used.contains(field));
        used.extend(field);
        named.push(field);
    }
    let first = named.iter().position(Option::is_some)?;
    let last_named = named.iter().rposition(Option::is_some)?;
    // What stands before the word of the first number, such as a date, is another in each line.
    let begin = word_before(last, places[first].start).start;
    let (mut pattern, mut at) = (String::new(), begin);
    for nth in first..=last_named {
        let place = &places[nth];
        pattern.push_str(part(last, at..place.start));
        match named[nth] {
            Some(field) => pattern.push_str(&format!("<{field}>")),
            None if moves(nth) => pattern.push_str(&format!("<other_{nth}>")),
            None => pattern.push_str(part(last, place.clone())),
        }
        at = place.end;
    }
    let unit = part(last, at..);
    let unit = unit
        .find(|c: char| c.is_whitespace() || ",;|)]".contains(c))
        .map_or(unit, |end| part(unit, ..end));
    pattern.push_str(unit);
    Some(pattern)
}

/// The word before a place, with what separates the two.
fn word_before(line: &str, place: usize) -> Range<usize> {
    let before = part(line, ..place);
    let word = before.trim_end_matches(|c: char| c.is_whitespace() || ":=([|".contains(c));
    let begin = word.rfind(|c: char| c.is_whitespace() || ",;|([{".contains(c));
    begin.map_or(0, |at| at + 1)..word.len()
}

fn field_of(line: &str, place: &Range<usize>) -> Option<&'static str> {
    let of = |names: &[(&str, &'static str)], word: &str| {
        let found = names.iter().find(|(name, _)| *name == word);
        found.map(|(_, field)| *field)
    };
    let behind = part(line, place.end..).to_lowercase();
    let mut unit = behind
        .trim_start()
        .split(|c: char| c.is_whitespace() || ",;|)]".contains(c));
    let unit = unit.next().and_then(|unit| of(BEHIND, unit));
    let word = part(line, word_before(line, place.start)).to_lowercase();
    let named = of(BEFORE, word.trim_matches(['\'', '"']));
    match (named, unit) {
        // A unit tells apart what the same word may count: `time 482 ms`.
        (Some("step_time_seconds") | None, Some(unit)) => Some(unit),
        (named, _) => named,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LogSection, parse};

    fn lines(log: &str) -> Vec<String> {
        log.lines().map(str::to_owned).collect()
    }

    fn check(log: &str, pattern: &str) {
        let found = suggest(&lines(log)).unwrap();
        assert_eq!(found.pattern, pattern);
        let section = LogSection {
            format: "regex".to_owned(),
            patterns: vec![found.pattern],
            ..LogSection::default()
        };
        let trace = parse(&section, log.as_bytes());
        assert_eq!(trace.steps.len(), found.alike);
        assert!(trace.steps.iter().all(|step| step.loss.is_some()));
    }

    fn log(line: impl Fn(u32) -> String) -> String {
        let steps: String = (1..=12).map(|step| line(step) + "\n").collect();
        format!("loading weights of v1.2\n{steps}saved 3 files\n")
    }

    #[test]
    fn a_line_that_repeats_is_suggested_and_reads_its_log() {
        let plain = log(|n| format!("step {n} loss 3.{n} tokens/s {}", 12_000 + n));
        check(
            &plain,
            "step <step> loss <loss> tokens/s <tokens_per_second>",
        );
        let dated = log(|n| {
            format!(
                "2026-11-27 10:00:{n:02},123 it {n}/12 | loss=2.{n:02} | 4{n}.2k tok/s | 8.5 GiB"
            )
        });
        check(&dated, "it <step>/12 | loss=<loss> | <tokens_per_second>");
        let timed = log(|n| format!("[gpu0] iter {n}: loss 1.5e-{n}, dt 48{n}ms, x {n}"));
        check(&timed, "iter <step>: loss <loss>, dt <step_time_ms>ms");
        assert!(suggest(&lines(&timed)).unwrap().has_rate);
        let counted = log(|n| format!("step {n} tok 512 loss 3.{n} tokens/s {}", 900 + n));
        check(
            &counted,
            "step <step> tok <tokens> loss <loss> tokens/s <tokens_per_second>",
        );
        let total = log(|n| format!("step {n} tokens {} loss 3.{n}", 512 * n));
        check(&total, "step <step> tokens <other_1> loss <loss>");
        let without = log(|n| format!("step {n} loss 3.{n}"));
        check(&without, "step <step> loss <loss>");
        assert!(!suggest(&lines(&without)).unwrap().has_rate);
        assert_eq!(suggest(&lines("a 1\nb 2\nc 3\n")), None);
    }
}
