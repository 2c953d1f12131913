//! Megatron-LM, and what is built on it: Megatron-DeepSpeed, GPT-NeoX, epfLLM, Primus,
//! Megatron-Bridge.
//!
//! One reader for all: their iteration lines are one grammar with more or fewer fields.

use std::sync::LazyLock;
use tprimat_words::part;

use aho_corasick::{AhoCorasick, MatchKind};

use super::{
    MemoryFigure, MemoryReport,
    arguments::Arguments,
    builder::Builder,
    format::{Evidence, Reader},
    lines::{Line, cut},
    megatron_line::{self, Header, Iteration, count, header},
    numbers::{MIB, finite_number, number},
    step_time_lines::StepTimeLines,
    values::{bytes, has},
};

/// Bytes before and behind a mark that may belong to it. All of the line at every mark would be
/// quadratic.
const BEFORE: usize = 200;
const BEHIND: usize = 1024;

#[derive(Clone, Copy, PartialEq)]
enum Mark {
    Validation,
    Saving,
    Evaluating,
    Memory,
    PerRank,
    Parameters,
    PaddedVocab,
    World,
    Theoretical,
    Started,
    Done,
    EndOfArguments,
    StepTime,
    IterTime,
    Iteration,
    Dots,
}

/// Texts that lines are known by. The first counts where several begin at one place.
const MARKS: &[(&str, Mark)] = &[
    ("validation loss at", Mark::Validation),
    ("validation results at", Mark::Validation),
    ("test loss at", Mark::Validation),
    ("test results at", Mark::Validation),
    ("saving checkpoint at", Mark::Saving),
    ("save-checkpoint ", Mark::Saving),
    ("is about to be saved", Mark::Saving),
    ("Saving model checkpoint", Mark::Saving),
    ("evaluate ..", Mark::Evaluating),
    ("Evaluating on", Mark::Evaluating),
    ("memory (MB)", Mark::Memory),
    ("memory (GB)", Mark::Memory),
    ("number of parameters on", Mark::PerRank),
    ("Total number of parameters in billions", Mark::Parameters),
    ("padded vocab (size:", Mark::PaddedVocab),
    ("using world size:", Mark::World),
    ("Theoretical memory footprints:", Mark::Theoretical),
    ("[before the start of training", Mark::Started),
    ("[after training is done]", Mark::Done),
    ("exits successfully", Mark::Done),
    ("end of arguments", Mark::EndOfArguments),
    ("Step Time", Mark::StepTime),
    ("iter time (s):", Mark::IterTime),
    ("iteration", Mark::Iteration),
    (" ..", Mark::Dots),
];

static FINDER: LazyLock<AhoCorasick> = LazyLock::new(|| {
    let words = MARKS.iter().map(|(word, _)| word);
    AhoCorasick::builder()
        .match_kind(MatchKind::LeftmostFirst)
        .build(words)
        .expect("a few short words")
});

/// The first iteration line, and whether the second one has come.
struct Begin {
    number: u64,
    /// It is the first of the run, not only of this piece of a log.
    of_run: bool,
    microseconds: bool,
    second: bool,
}

#[derive(Default)]
pub struct Megatron {
    arguments: Arguments,
    begin: Option<Begin>,
    started: bool,
    /// What took time since the last iteration line, besides training.
    between: Option<&'static str>,
    last: (u64, u64),
    step_time_lines: StepTimeLines,
}

impl Reader for Megatron {
    fn line(&mut self, line: &Line<'_>, out: &mut Builder) {
        let text = &*line.text;
        let (mut at, memory_lines) = (0, out.trace.memory_lines);
        while let Some(found) = FINDER.find(part(text, at..)) {
            let (start, end) = (at + found.start(), at + found.end());
            at = match MARKS[found.pattern().as_usize()].1 {
                Mark::Iteration => match header(text, start) {
                    Some(head) => self.iteration(text, &head, line.ended, out),
                    None => end,
                },
                Mark::Memory => memory(text, start, line.ended, out),
                Mark::Dots => {
                    self.arguments.line(text, start);
                    return;
                }
                mark => {
                    self.other(mark, text, end, out);
                    end
                }
            };
        }
        // Ranks whose reports share a line.
        out.trace.memory_lines = out.trace.memory_lines.min(memory_lines + 1);
    }

    fn end(&mut self, out: &mut Builder) {
        self.arguments.tell(out);
        self.step_time_lines.end(out);
    }
}

fn before(text: &str, at: usize) -> &str {
    part(
        text,
        text.floor_char_boundary(at.saturating_sub(BEFORE))..at,
    )
}

/// What stands behind `at`; a word that would be cut in two is left out.
fn behind(text: &str, at: usize) -> &str {
    let rest = part(text, at..);
    if rest.len() <= BEHIND {
        return rest;
    }
    let near = part(rest, ..rest.floor_char_boundary(BEHIND));
    part(near, ..near.rfind([' ', '|', ',']).unwrap_or(0))
}

/// Primus' prefix says which rank of how many writes: `[rank-7/8]`.
fn ranks_of(text: &str) -> Option<u64> {
    let (_, after) = part(text, ..text.floor_char_boundary(BEHIND)).split_once("[rank-")?;
    let (rank, ranks) = after.split_once(']')?.0.split_once('/')?;
    let (rank, ranks): (u64, u64) = (rank.parse().ok()?, ranks.parse().ok()?);
    (rank < ranks).then_some(ranks)
}

impl Megatron {
    fn iteration(&mut self, text: &str, head: &Header, ended: bool, out: &mut Builder) -> usize {
        self.arguments.tell(out);
        let mut found = Iteration::default();
        let end = megatron_line::read(text, head, ended, &mut found, &mut out.notes);
        if !found.has_fields() {
            // Somebody else's words.
            return end;
        }
        let number = head.number;
        let step = &mut found.step;
        out.averages = true;
        step.steps_averaged = self.averaged(head, found.has_pairs);
        let stated = (step.global_batch_size.unwrap_or(0), head.total);
        if stated != self.last {
            self.last = stated;
            if let Some(batch) = step.global_batch_size {
                out.set("global_batch_size", batch);
            }
            out.set("train_iters", head.total);
            if let Some(ranks) = ranks_of(text) {
                out.set("num_gpus", ranks);
            }
        }
        if let Some(what) = self.between.take() {
            out.notes.add_at(number, "checkpoint_in_interval", || {
                format!("{what} since the line before; its time may be counted in")
            });
        }
        if found.skipped > 0 {
            out.notes.add_at(number, "skipped_iterations", || {
                format!("{}", found.skipped)
            });
        }
        if found.nan_grad_norm {
            out.notes
                .add_at(number, "nan_grad_norm", || "grad norm is nan".to_owned());
        }
        // A mean that is NaN is not printed at all.
        let dropped = step.loss.is_none() && found.skipped == 0 && found.has_time;
        if found.nan_loss || found.nan_iterations > 0 || dropped && found.nan_grad_norm {
            out.notes
                .add_at(number, "nan_loss", || match found.nan_iterations {
                    0 => "the loss is nan".to_owned(),
                    n => format!("{n} iterations with nan"),
                });
        } else if dropped && ended {
            out.notes.add_at(number, "missing_loss", || {
                "no loss is stated, and none was skipped".to_owned()
            });
        }
        self.step_time_lines.joins(step, out);
        out.step(found.step);
        end
    }

    /// Core 0.16 and later print the first iteration without starting its sums anew: the line after
    /// it is the mean of both and all between.
    fn averaged(&mut self, head: &Header, has_pairs: bool) -> Option<u64> {
        let Some(begin) = &mut self.begin else {
            let (number, microseconds) = (head.number, head.microseconds);
            let of_run = number == 1 || self.started;
            self.begin = Some(Begin {
                number,
                of_run,
                microseconds,
                second: false,
            });
            return None;
        };
        if begin.second || head.number <= begin.number {
            return None;
        }
        begin.second = true;
        (begin.microseconds && begin.of_run && !has_pairs).then(|| head.number - begin.number + 1)
    }

    fn other(&mut self, mark: Mark, text: &str, end: usize, out: &mut Builder) {
        let rest = behind(text, end);
        match mark {
            Mark::Validation => {
                self.between = Some("an evaluation");
                validation(part(text, ..end), rest, out);
            }
            Mark::Saving => self.between = Some("a checkpoint"),
            Mark::Evaluating => self.between = Some("an evaluation"),
            Mark::PerRank => per_rank(rest, out),
            Mark::Parameters => {
                if let Some(billions) = rest.strip_prefix(':').and_then(finite_number) {
                    out.total("parameters_billions", billions);
                }
            }
            Mark::PaddedVocab => {
                let stated = out.trace.effective.0.contains_key("vocab_size");
                if let Some(size) = count(rest).filter(|_| !stated) {
                    out.set("vocab_size", size);
                }
                if let Some(size) = rest
                    .split_once("new size:")
                    .and_then(|(_, size)| count(size))
                {
                    out.set("padded_vocab_size", size);
                }
            }
            // NeoX' launcher says so of itself.
            Mark::World if before(text, end).contains("NeoXArgs") => {}
            Mark::World => world(rest, out),
            Mark::Theoretical => {
                for part in rest.split(',') {
                    let Some((name, value)) = part.split_once('=') else {
                        continue;
                    };
                    let Some((value, unit)) = number(value) else {
                        continue;
                    };
                    if value.is_finite() && unit.trim_start().starts_with("MB") {
                        out.total(
                            &format!(
                                "theoretical_{}_mib",
                                cut(&name.trim().replace(' ', "_"), 40)
                            ),
                            value,
                        );
                    }
                }
            }
            Mark::Started => {
                self.started = true;
                // A run that goes on in the same log averages anew, and what it repeats is what the
                // rest builds on.
                if out.trace.step_lines > 1 {
                    self.begin = None;
                    out.latest = true;
                }
            }
            Mark::Done => out.trace.finished = true,
            Mark::EndOfArguments => self.arguments.tell(out),
            Mark::StepTime => self.step_time_lines.step_time(rest, out),
            Mark::IterTime => self.step_time_lines.iter_time(before(text, end), rest, out),
            Mark::Memory | Mark::Iteration | Mark::Dots => {}
        }
    }
}

/// `[Rank N] (after K iterations) memory (MB) | allocated: A | …`; returns where the next one may
/// begin.
fn memory(text: &str, at: usize, ended: bool, out: &mut Builder) -> usize {
    // "MB" are MiB; Bridge divides by 10⁹.
    let unit = if part(text, at..).starts_with("memory (GB)") {
        1e9
    } else {
        MIB
    };
    let before = before(text, at);
    let value_after = |word: &str| {
        before
            .rfind(word)
            .and_then(|p| count(part(before, p + word.len()..).trim_start()))
    };
    let mut report = MemoryReport {
        rank: value_after("[Rank "),
        after_step: value_after("after "),
        figures: Vec::new(),
    };
    let mut start = at + "memory (MB)".len();
    // Only so far, whatever the fields are: the search for marks goes on where this ends.
    let reach = text.floor_char_boundary(start + BEHIND);
    while start < reach {
        let end = memchr::memchr(b'|', &text.as_bytes()[start..reach]).map_or(reach, |p| start + p);
        let field = part(text, start..end);
        let whole = end < reach || ended && end == text.len();
        let (key, value) = field.split_once(':').unwrap_or((field, ""));
        if let Some((kind, unit)) = memory_kind(key.trim(), unit)
            && let Some(bytes) = number(value)
                .filter(|_| whole)
                .and_then(|(value, _)| bytes(value, unit))
        {
            report.figures.push(MemoryFigure {
                kind: kind.into(),
                source: "torch".into(),
                bytes,
            });
        }
        if value.contains("memory (") || value.contains("iteration ") {
            // The next rank's text, without a line end between.
            start = end - value.len() + value.find('[').unwrap_or(0);
            break;
        }
        if end == reach && reach < text.len() {
            break;
        }
        start = (end + 1).min(text.len());
    }
    if !report.figures.is_empty() {
        out.memory(report);
    }
    start
}

fn memory_kind(key: &str, unit: f64) -> Option<(&'static str, f64)> {
    let kind = match key {
        "allocated" | "mem-allocated-gigabytes" => "allocated",
        "max allocated" | "mem-max-allocated-gigabytes" => "peak_allocated",
        "reserved" | "cached" | "mem-reserved-gigabytes" => "reserved",
        "max reserved" | "max cached" | "mem-max-reserved-gigabytes" => "peak_reserved",
        _ => return None,
    };
    Some((
        kind,
        if key.ends_with("gigabytes") {
            1e9
        } else {
            unit
        },
    ))
}

/// ` at iteration 50 | lm loss value: 8.9 | lm loss PPL: 7.3E+03 |`
fn validation(mark: &str, rest: &str, out: &mut Builder) {
    let step = rest
        .split_once("iteration")
        .and_then(|(_, step)| count(step));
    let test = ["test loss at", "test results at"]
        .iter()
        .any(|word| mark.ends_with(word));
    let kind = if test { "test" } else { "validation" };
    for field in rest.split('|').skip(1) {
        let Some((key, value)) = field.split_once(':') else {
            continue;
        };
        let Some((value, _)) = number(value) else {
            continue;
        };
        let key = key.trim();
        let name = match key {
            "lm loss value" | "lm_loss value" | "lm-loss value" => "loss",
            _ if key.ends_with("PPL") || key.ends_with("_ppl value") => "perplexity",
            _ => continue,
        };
        out.evaluated(step, format!("{kind}_{name}"), value);
    }
}

/// ` (tensor, pipeline) model parallel rank (0, 0): N`, NeoX: ` model parallel rank 0: N`.
fn per_rank(rest: &str, out: &mut Builder) {
    let Some(parameters) = rest
        .rsplit_once(':')
        .and_then(|(_, n)| count(n))
        .filter(|n| *n > 0)
    else {
        return;
    };
    let trace = &mut out.trace;
    trace.num_parameters_per_rank = trace.num_parameters_per_rank.max(Some(parameters));
    let is_one = |name: &str| {
        trace
            .effective
            .0
            .get(name)
            .and_then(serde_json::Value::as_u64)
            == Some(1)
    };
    let experts =
        trace.effective.0.contains_key("num_experts") && !is_one("expert_model_parallel_size");
    if is_one("tensor_model_parallel_size") && is_one("pipeline_model_parallel_size") && !experts {
        trace.num_parameters.get_or_insert(parameters);
    }
}

/// ` 8, data-parallel size: 4, …, tensor-model-parallel size: 2, pipeline-model-parallel size: 1`
fn world(rest: &str, out: &mut Builder) {
    for (i, part) in rest.split(',').enumerate() {
        let (name, value) = if i == 0 {
            ("", part)
        } else {
            part.split_once(':').unwrap_or((part, ""))
        };
        let name = match name
            .trim()
            .trim_end_matches("size")
            .trim_end_matches([' ', '-'])
        {
            "" => "num_gpus",
            "data-parallel" => "data_parallel_size",
            "context-parallel" => "context_parallel_size",
            "tensor-model-parallel" => "tensor_model_parallel_size",
            "pipeline-model-parallel" => "pipeline_model_parallel_size",
            _ => continue,
        };
        if let Some(value) = count(value).filter(|n| *n > 0) {
            out.set(name, value);
        }
    }
}

/// Does the text say who wrote it, besides that Megatron is below?
fn dialect(text: &str) -> Option<&'static str> {
    let any = |words: &[&str]| words.iter().any(|w| has(text, w));
    if any(&["hip mem usage", "rocm mem usage"]) || is_primus_prefixed(text) {
        Some("primus")
    } else if any(&["MODEL_TFLOP/s/GPU", "mem-max-allocated-gigabytes"]) {
        Some("megatron-bridge")
    } else if any(&["iter time (s):", "approx flops per GPU"]) {
        Some("gpt-neox")
    } else if any(&["consumed tokens:", "consumed_tokens=", "lm-loss:"]) {
        Some("megatron-deepspeed")
    } else {
        None
    }
}

/// `[20260101 00:00:00][rank-7/8][INFO ] …`
fn is_primus_prefixed(text: &str) -> bool {
    let rank = text
        .strip_prefix('[')
        .and_then(|rest| rest.split_once("][rank-"));
    rank.is_some_and(|(_, rest)| {
        rest.split_once(']')
            .is_some_and(|(rank, _)| rank.contains('/'))
    })
}

/// A line that only this family has; cheap for all others, since every line of a log's beginning is
/// asked.
fn is_step(text: &str) -> bool {
    FINDER.is_match(text)
        && (megatron_line::find_header(text).is_some()
            || has(text, "iterations) memory (") && has(text, "llocated")
            || has(text, "Step Time") && has(text, "MODEL_TFLOP")
            || has(text, "iter time (s):") && has(text, "steps: "))
}

fn of_dialect(text: &str, name: &str) -> Evidence {
    if is_step(text) && dialect(text) == Some(name) {
        Evidence::Strong
    } else {
        Evidence::None
    }
}

fn weak_if(said: bool) -> Evidence {
    if said { Evidence::Weak } else { Evidence::None }
}

pub fn primus(text: &str) -> Evidence {
    // Files of ranks that print no steps have its prefix all the same.
    of_dialect(text, "primus").max(weak_if(is_primus_prefixed(text)))
}

pub fn bridge(text: &str) -> Evidence {
    of_dialect(text, "megatron-bridge")
}

pub fn neox(text: &str) -> Evidence {
    // A run that ended before its first step leaves nothing but its arguments.
    if text.starts_with("NeoXArgs.") {
        Evidence::Strong
    } else {
        of_dialect(text, "gpt-neox")
    }
}

pub fn deepspeed(text: &str) -> Evidence {
    of_dialect(text, "megatron-deepspeed")
}

pub fn megatron(text: &str) -> Evidence {
    if is_step(text) {
        return Evidence::Strong;
    }
    let settings = [
        "number of parameters on (tensor, pipeline)",
        "- end of arguments -",
        "using world size:",
    ];
    weak_if(FINDER.is_match(text) && settings.iter().any(|w| has(text, w)))
}

#[cfg(test)]
mod tests {
    use crate::{LogSection, parse};

    /// Each mark, over and over in one line of a megabyte: half an hour if all of the line were
    /// searched at every one.
    #[test]
    fn a_line_full_of_marks_is_read_in_linear_time() {
        let words = super::MARKS.iter().map(|(word, _)| *word);
        let values = [
            "memory (MB):",
            "iter time (s): 1 steps: 1 loss: ",
            "iteration 1/ 2 |",
            "Step Time : 1s tok/s/gpu ",
        ];
        for piece in words.chain(values) {
            for filler in ["", ": 1,", "[ "] {
                let line =
                    format!("{piece}{filler}").repeat((1 << 20) / (piece.len() + filler.len()));
                let trace = parse(&LogSection::named("megatron"), line.as_bytes());
                assert!(trace.memory.is_empty(), "{piece}{filler}");
            }
        }
    }

    #[test]
    fn what_one_mark_is_given_does_not_grow_with_the_line() {
        let line = "é1 | ".repeat(1 << 16);
        for at in [0, 3, 300, 300_000] {
            assert!(super::before(&line, at).len() <= super::BEFORE + 3);
            let behind = super::behind(&line, at);
            assert!(
                behind.len() < super::BEHIND && (behind.is_empty() || behind.ends_with(['1', '|'])),
                "{behind}"
            );
        }
        assert_eq!(super::behind("a 12", 1), " 12");
    }

    #[test]
    fn reports_of_many_ranks_share_a_line() {
        let report = |rank: u32| {
            format!(
                "[Rank {rank}] (after 5 iterations) memory (MB) | allocated: {rank}.5 | max allocated: {rank}.0"
            )
        };
        let line: String = (1..=64).map(report).collect();
        let trace = parse(
            &LogSection::named("megatron"),
            format!("{line}\n").as_bytes(),
        );
        let told: Vec<_> = trace
            .memory
            .iter()
            .map(|m| (m.rank, m.after_step, m.figures[0].bytes >> 19))
            .collect();
        let expected: Vec<_> = (1..=64)
            .map(|rank| (Some(rank), Some(5), 2 * rank + 1))
            .collect();
        assert_eq!((told, trace.memory_lines), (expected, 1));
        assert!(trace.memory.iter().all(|m| m.figures.len() == 2));
    }

    #[test]
    fn a_run_that_goes_on_in_the_same_log_counts_from_where_it_goes_on() {
        let line = |n: u64, ms: f64| {
            format!(
                " [2026-01-02 03:04:05.000001] iteration {n}/ 6 | consumed samples: {} | elapsed time per iteration (ms): {ms} | lm loss: 2.0E+00 |\n",
                n * 8
            )
        };
        let start = "[before the start of training step] datetime: 2026-01-02 03:04:05\n";
        let log = [
            start.to_owned(),
            line(1, 9000.0),
            line(2, 5000.0),
            line(3, 1000.0),
            line(4, 1000.0),
        ]
        .concat()
            + start
            + &[
                line(3, 8000.0),
                line(4, 5000.0),
                line(5, 2000.0),
                line(6, 2000.0),
            ]
            .concat();
        let trace = parse(&LogSection::named("megatron"), log.as_bytes());
        let times: Vec<_> = trace
            .steps
            .iter()
            .map(|s| (s.step, s.step_time_seconds, s.steps_averaged))
            .collect();
        let expected = [
            (1, 9.0, None),
            (2, 5.0, Some(2)),
            (3, 8.0, None),
            (4, 5.0, Some(2)),
            (5, 2.0, None),
            (6, 2.0, None),
        ];
        assert_eq!(times, expected.map(|(n, t, k)| (n, Some(t), k)));
    }
}
