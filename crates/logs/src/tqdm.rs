//! Progress bars of tqdm, one or several in a line, with whatever text is glued to them.

use super::{numbers::grouped_number, values::clock};
use tprimat_base::words::part;

/// ` 14%|█▍   | 377/2724 [13:55:57<86:19:20, 132.41s/it, loss=2.1]`
#[derive(Clone, Debug, PartialEq)]
pub struct Bar<'a> {
    /// What stands before the percentage: `Epoch 0:`; empty for most bars.
    pub label: &'a str,
    pub count: u64,
    pub total: u64,
    pub elapsed_seconds: Option<f64>,
    /// The bar's own smoothed mean, of `it/s` and `s/it` alike.
    pub seconds_per_iteration: Option<f64>,
    /// `key=value` pairs behind the rate.
    pub postfix: &'a str,
    /// What follows the bar.
    pub rest: &'a str,
}

pub fn may_be_bar(line: &str) -> bool {
    memchr::memmem::find(line.as_bytes(), b"%|").is_some()
}

/// The bars of a line, from left to right.
pub fn bars(line: &str) -> impl Iterator<Item = Bar<'_>> {
    let mut left = line;
    std::iter::from_fn(move || {
        while let Some(at) = memchr::memmem::find(left.as_bytes(), b"%|") {
            let (before, bar) = (part(left, ..at), part(left, at + 2..));
            match parse(before, bar) {
                Some(bar) => {
                    left = bar.rest;
                    return Some(bar);
                }
                None => left = bar,
            }
        }
        None
    })
}

fn parse<'a>(before: &'a str, bar: &'a str) -> Option<Bar<'a>> {
    let label = before.trim_end_matches(|c: char| c.is_ascii_digit()).trim();
    // All of a bar is close together: what is further away belongs to other text.
    let find = |byte: u8, text: &str, within: usize| {
        memchr::memchr(byte, &text.as_bytes()[..text.len().min(within)])
    };
    let close = find(b'|', bar, 1024)?;
    let counts = part(bar, close + 1..).trim_start();
    let slash = find(b'/', counts, 16)?;
    let count = part(counts, ..slash).trim().parse().ok()?;
    let open = find(b'[', counts, 40).filter(|at| *at > slash)?;
    let total = part(counts, slash + 1..open).trim().parse().ok()?;
    let inner = part(counts, open + 1..);
    // A line that was cut off ends within its bar.
    let end = find(b']', inner, 4096).or_else(|| (inner.len() < 4096).then_some(inner.len()))?;
    let (text, rest) = (part(inner, ..end), inner.get(end + 1..).unwrap_or(""));
    // There may be no rate yet: `[00:41<13:13]` or `[00:00<?]`.
    let (times, tail) = text.split_once(',').unwrap_or((text, ""));
    let elapsed_seconds = clock(times.split('<').next().unwrap_or(""));
    let (rate, postfix) = match tail.split_once(',') {
        Some((rate, postfix)) => (rate, postfix),
        None => (tail, ""),
    };
    let seconds_per_iteration = seconds(rate);
    let postfix = if rate.contains('=') { tail } else { postfix };
    Some(Bar {
        label,
        count,
        total,
        elapsed_seconds,
        seconds_per_iteration,
        postfix,
        rest,
    })
}

/// `132.41s/it`, `1.27it/s` → seconds.
fn seconds(rate: &str) -> Option<f64> {
    let (value, unit) = grouped_number(rate)?;
    let value = Some(value).filter(|v| v.is_finite() && *v > 0.0)?;
    match unit.trim() {
        "s/it" => Some(value),
        "it/s" => Some(1.0 / value),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bars_with_text_glued_to_both_ends() {
        let line = "x  5%|▌         | 3/60 [01:05<20:35, 21.7s/it][2024-01-01] [INFO] 10%|#| 6/60 [02:00<18:00, 0.50it/s, loss=2]";
        let all: Vec<_> = bars(line).collect();
        assert_eq!((all[0].label, all[0].count, all[0].total), ("x", 3, 60));
        assert_eq!(
            (all[0].elapsed_seconds, all[0].seconds_per_iteration),
            (Some(65.0), Some(21.7))
        );
        assert_eq!(
            (all[1].seconds_per_iteration, all[1].postfix, all[1].rest),
            (Some(2.0), " loss=2", "")
        );
        assert_eq!(all.len(), 2);
    }

    #[test]
    fn the_first_ones_have_no_rate() {
        let bar = bars("Epoch 0: :   5%|▌ | 1/20 [00:41<13:13, v_num=None, step=0.0]")
            .next()
            .unwrap();
        assert_eq!(
            (bar.label, bar.seconds_per_iteration, bar.postfix),
            ("Epoch 0: :", None, " v_num=None, step=0.0")
        );
        assert_eq!(
            bars("  0%|          | 0/16 [00:00<?, ?it/s]")
                .next()
                .unwrap()
                .count,
            0
        );
        assert_eq!(
            bars("100%|x| y/z [").count() + bars("50%| 1/2").count() + bars("%|%|%|").count(),
            0
        );
    }

    #[test]
    fn hostile_lines_are_read_in_linear_time() {
        for piece in ["%||", "%|| 1/2 [", "%| | 1/2 [00:01<00:01, 1it/s"] {
            let line = piece.repeat((1 << 20) / piece.len());
            assert!(bars(&line).count() <= line.len() / piece.len());
        }
    }

    proptest! {
        #[test]
        fn never_panics(line in "[ %|█0-9/\\[\\]<:,.its=?é]{0,80}") {
            let _ = bars(&line).count();
        }
    }
}
