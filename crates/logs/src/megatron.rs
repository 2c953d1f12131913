//! Megatron-LM, and what is built on it: Megatron-DeepSpeed, GPT-NeoX, epfLLM, Primus,
//! Megatron-Bridge.
//!
//! One reader for all: their iteration lines are one grammar with more or fewer fields.

#[cfg(test)]
mod tests;

use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, MatchKind};
use tprimat_base::words::part;

use super::{
    MemoryFigure, MemoryReport,
    arguments::Arguments,
    builder::Builder,
    format::{Evidence, Reader},
    lines::{Line, cut},
    megatron_line::{self, Header, Iteration, count, header},
    numbers::{MIB, finite_number, number},
    pattern::Pattern,
    step_time_lines::StepTimeLines,
    values::{bytes, has},
};

/// Bytes before and behind a mark that may belong to it. All of the line at every mark would be
/// quadratic.
const BEFORE: usize = 200;
const BEHIND: usize = 1024;
/// Megatron's relatives differ in whether a step's time includes the evaluation or checkpoint before it.
/// A step behind one of these that took more than this many times as long as the last step behind neither includes it.
const INCLUDED: f64 = 1.25;

/// A mark in a line.
struct Place<'a> {
    text: &'a str,
    /// The line has its end.
    ended: bool,
    start: usize,
    /// Behind the mark; the search for the next one goes on there.
    end: usize,
}

type Take = fn(&mut Megatron, &mut Place<'_>, &mut Builder);

/// Texts that lines are known by, and what is done about each. The first counts where several begin
/// at one place.
const MARKS: &[(&str, Take)] = &[
    ("validation loss at", Megatron::evaluated),
    ("validation results at", Megatron::evaluated),
    ("test loss at", Megatron::evaluated),
    ("test results at", Megatron::evaluated),
    ("saving checkpoint at", Megatron::saves),
    ("save-checkpoint ", Megatron::saves),
    ("is about to be saved", Megatron::saves),
    ("Saving model checkpoint", Megatron::saves),
    ("evaluate ..", Megatron::evaluates),
    ("Evaluating on", Megatron::evaluates),
    ("memory (MB)", memory),
    ("memory (GB)", memory),
    ("number of parameters on", parameters_of_rank),
    ("Total number of parameters in billions", parameters),
    ("padded vocab (size:", padded_vocabulary),
    ("using world size:", world),
    ("Theoretical memory footprints:", theoretical),
    ("[after training is done]", done),
    ("exits successfully", done),
    ("end of arguments", |megatron, _, out| {
        megatron.arguments.tell(out);
    }),
    ("Step Time", |megatron, place, out| {
        megatron.step_time_lines.step_time(place.behind(), out);
    }),
    ("iter time (s):", |megatron, place, out| {
        let lines = &mut megatron.step_time_lines;
        lines.iter_time(place.before(), place.behind(), out);
    }),
    ("iteration", Megatron::iteration),
    (" ..", |megatron, place, out| {
        megatron.arguments.line(place.text, place.start, out);
        place.end = place.text.len();
    }),
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
    /// It is the first of its process, not only of this piece of a log.
    of_process: bool,
    microseconds: bool,
    second: bool,
}

#[derive(Default)]
pub struct Megatron {
    arguments: Arguments,
    begin: Option<Begin>,
    /// What took time since the last iteration line, besides training.
    between: Option<&'static str>,
    /// The step time of the last line that followed neither an evaluation nor a checkpoint.
    usual: Option<f64>,
    last: (u64, u64),
    step_time_lines: StepTimeLines,
}

impl Reader for Megatron {
    fn line(&mut self, line: &Line<'_>, out: &mut Builder) {
        let (mut at, memory_lines) = (0, out.trace.memory_lines);
        while let Some(found) = FINDER.find(part(&line.text, at..)) {
            let mut place = Place {
                text: &line.text,
                ended: line.ended,
                start: at + found.start(),
                end: at + found.end(),
            };
            let (_, take) = MARKS[found.pattern().as_usize()];
            take(self, &mut place, out);
            at = place.end;
        }
        // Ranks whose reports share a line.
        out.trace.memory_lines = out.trace.memory_lines.min(memory_lines + 1);
    }

    fn forget(&mut self) {
        self.arguments = Arguments::default();
    }

    fn end(&mut self, out: &mut Builder) {
        self.arguments.tell(out);
        self.step_time_lines.end(out);
    }
}

impl<'a> Place<'a> {
    fn before(&self) -> &'a str {
        let from = self.start.saturating_sub(BEFORE);
        part(self.text, self.text.floor_char_boundary(from)..self.start)
    }

    /// What stands behind the mark; a word that would be cut in two is left out.
    fn behind(&self) -> &'a str {
        let rest = part(self.text, self.end..);
        if rest.len() <= BEHIND {
            return rest;
        }
        let near = part(rest, ..rest.floor_char_boundary(BEHIND));
        part(near, ..near.rfind([' ', '|', ',']).unwrap_or(0))
    }
}

/// Primus' prefix says which rank of how many writes: `[rank-7/8]`.
static RANK_OF: Pattern = Pattern::new(r"\[rank-([0-9]+)/([0-9]+)\]");

fn ranks_of(text: &str) -> Option<u64> {
    let beginning = part(text, ..text.floor_char_boundary(BEHIND));
    let [rank, ranks] = RANK_OF.groups(beginning)?;
    let (rank, ranks): (u64, u64) = (rank.parse().ok()?, ranks.parse().ok()?);
    (rank < ranks).then_some(ranks)
}

impl Megatron {
    fn iteration(&mut self, place: &mut Place<'_>, out: &mut Builder) {
        let Some(head) = header(place.text, place.start) else {
            return;
        };
        self.arguments.tell(out);
        let mut found = Iteration::default();
        place.end = megatron_line::read(place.text, &head, &mut found, &mut out.notes);
        if !found.has_fields() {
            // Somebody else's words.
            return;
        }
        out.averages = true;
        if out.has_begun() {
            self.begin = None;
        }
        found.step.steps_averaged = self.averaged(&head, found.has_pairs, out);
        let batch = found.step.global_batch_size;
        let stated = (batch.unwrap_or(0), head.total);
        let is_new = std::mem::replace(&mut self.last, stated) != stated;
        if is_new {
            out.set("train_iters", head.total);
            if let Some(ranks) = ranks_of(place.text) {
                out.set("num_gpus", ranks);
            }
        }
        let time = found.step.step_time_seconds;
        match self.between.take() {
            Some(what) => {
                let is_longer = |(time, usual)| time > INCLUDED * usual;
                found.step.includes_evaluation = time.zip(self.usual).is_some_and(is_longer);
                let kind = match found.step.includes_evaluation {
                    true => "evaluation_in_interval",
                    false => "checkpoint_in_interval",
                };
                out.notes.add_at(head.number, kind, || {
                    let is_sure = found.step.includes_evaluation;
                    let may = if is_sure { "is" } else { "may be" };
                    format!("{what} since the line before; its time {may} counted in")
                });
            }
            None => self.usual = time.or(self.usual),
        }
        tell_oddities(&found, place.ended, out);
        self.step_time_lines.joins(&mut found.step, out);
        out.step(found.step);
        if let Some(batch) = batch.filter(|_| is_new) {
            out.set("global_batch_size", batch);
        }
    }

    /// Core 0.16 and later print the first iteration without starting their sums anew: the line
    /// after it is the mean of both and all between.
    fn averaged(&mut self, head: &Header, has_pairs: bool, out: &Builder) -> Option<u64> {
        let Some(begin) = &mut self.begin else {
            self.begin = Some(Begin {
                number: head.number,
                of_process: head.number == 1 || out.has_begun(),
                microseconds: head.microseconds,
                second: false,
            });
            return None;
        };
        if begin.second || head.number <= begin.number {
            return None;
        }
        begin.second = true;
        (begin.microseconds && begin.of_process && !has_pairs)
            .then(|| head.number - begin.number + 1)
    }

    fn saves(&mut self, _: &mut Place<'_>, _: &mut Builder) {
        self.between = Some("a checkpoint");
    }

    fn evaluates(&mut self, _: &mut Place<'_>, _: &mut Builder) {
        self.between = Some("an evaluation");
    }

    /// ` at iteration 50 | lm loss value: 8.9 | lm loss PPL: 7.3E+03 |`
    fn evaluated(&mut self, place: &mut Place<'_>, out: &mut Builder) {
        self.between = Some("an evaluation");
        let rest = place.behind();
        let step = rest.split_once("iteration").and_then(|(_, n)| count(n));
        let is_test = part(place.text, place.start..).starts_with("test");
        let kind = if is_test { "test" } else { "validation" };
        for field in rest.split('|').skip(1) {
            let Some((key, value)) = field.split_once(':') else {
                continue;
            };
            let name = match key.trim() {
                "lm loss value" | "lm_loss value" | "lm-loss value" => "loss",
                key if key.ends_with("PPL") || key.ends_with("_ppl value") => "perplexity",
                _ => continue,
            };
            if let Some((value, _)) = number(value) {
                out.evaluated(step, format!("{kind}_{name}"), value);
            }
        }
    }
}

/// Notes what is odd about an iteration.
fn tell_oddities(found: &Iteration, ended: bool, out: &mut Builder) {
    let mut note = |kind: &str, what: String| out.notes.add_at(found.step.step, kind, || what);
    if found.skipped > 0 {
        note("skipped_iterations", found.skipped.to_string());
    }
    if found.nan_grad_norm {
        note("nan_grad_norm", "grad norm is nan".to_owned());
    }
    // A mean that is NaN is not printed at all.
    let dropped = found.step.loss.is_none() && found.skipped == 0 && found.has_time;
    if found.nan_iterations > 0 {
        let count = found.nan_iterations;
        note("nan_loss", format!("{count} iterations with nan"));
    } else if found.nan_loss || dropped && found.nan_grad_norm {
        note("nan_loss", "the loss is nan".to_owned());
    } else if dropped && ended {
        let what = "no loss is stated, and none was skipped";
        note("missing_loss", what.to_owned());
    }
}

static RANK: Pattern = Pattern::new(r".*\[Rank\s+([0-9]+)");
static AFTER: Pattern = Pattern::new(r".*after\s+([0-9]+)");
/// `| max allocated: 1.5`, Bridge: `| mem-max-allocated-gigabytes: 1.5`.
static FIGURE: Pattern = Pattern::new(
    r"\|\s*(?:mem-)?(max[ -])?(allocated|reserved|cached)(-gigabytes)?\s*:\s*([0-9][0-9.eE+-]*)",
);

/// `[Rank N] (after K iterations) memory (MB) | allocated: A | …`
fn memory(_: &mut Megatron, place: &mut Place<'_>, out: &mut Builder) {
    let text = place.text;
    // "MB" are MiB; Bridge divides by 10⁹.
    let is_decimal = part(text, place.start..).starts_with("memory (GB)");
    // Only so far, whatever the fields are. The next rank's text may stand there, without a line
    // end between.
    let reach = text.floor_char_boundary(place.end + BEHIND);
    let near = part(text, place.end..reach);
    let next = ["memory (", "iteration "];
    let next = next.iter().filter_map(|word| near.find(word)).min();
    let own = part(near, ..next.unwrap_or(near.len()));
    let is_whole = next.is_some() || reach == text.len() && place.ended;
    place.end += own.len();
    let mut figures = Vec::new();
    for found in FIGURE.captures_iter(own) {
        let is_last = !part(own, found.get_match().end()..).contains('|');
        let value = finite_number(&found[4]).filter(|_| is_whole || !is_last);
        let is_decimal = is_decimal || found.get(3).is_some();
        let unit = if is_decimal { 1e9 } else { MIB };
        let Some(bytes) = value.and_then(|value| bytes(value, unit)) else {
            continue;
        };
        let kind = match (found.get(1).is_some(), &found[2]) {
            (false, "allocated") => "allocated",
            (false, _) => "reserved",
            (true, "allocated") => "peak_allocated",
            (true, _) => "peak_reserved",
        };
        figures.push(MemoryFigure {
            kind: kind.into(),
            source: "torch".into(),
            bytes,
        });
    }
    if !figures.is_empty() {
        let before = place.before();
        let numbered = |pattern: &Pattern| -> Option<u64> {
            let [number] = pattern.groups(before)?;
            number.parse().ok()
        };
        out.memory(MemoryReport {
            rank: numbered(&RANK),
            after_step: numbered(&AFTER),
            figures,
        });
    }
}

fn parameters(_: &mut Megatron, place: &mut Place<'_>, out: &mut Builder) {
    let stated = place.behind().strip_prefix(':');
    if let Some(billions) = stated.and_then(finite_number) {
        out.total("parameters_billions", billions);
    }
}

/// ` (tensor, pipeline) model parallel rank (0, 0): N`, NeoX: ` model parallel rank 0: N`.
fn parameters_of_rank(_: &mut Megatron, place: &mut Place<'_>, out: &mut Builder) {
    let stated = place.behind().rsplit_once(':');
    let stated = stated.and_then(|(_, n)| count(n)).filter(|n| *n > 0);
    let Some(parameters) = stated else { return };
    let trace = &mut out.trace;
    trace.num_parameters_per_rank = trace.num_parameters_per_rank.max(Some(parameters));
    let settings = &trace.effective.0;
    let is_one = |name: &str| settings.get(name).is_some_and(|n| n.as_u64() == Some(1));
    let experts = settings.get("num_experts").and_then(|n| n.as_u64());
    let experts = experts.is_some_and(|n| n > 1) && !is_one("expert_model_parallel_size");
    if is_one("tensor_model_parallel_size") && is_one("pipeline_model_parallel_size") && !experts {
        trace.num_parameters.get_or_insert(parameters);
    }
}

/// ` 50257) with 47 dummy tokens (new size: 50304)`
fn padded_vocabulary(_: &mut Megatron, place: &mut Place<'_>, out: &mut Builder) {
    let rest = place.behind();
    let is_stated = out.trace.effective.0.contains_key("vocab_size");
    if let Some(size) = count(rest).filter(|_| !is_stated) {
        out.set("vocab_size", size);
    }
    let padded = rest.split_once("new size:");
    if let Some(size) = padded.and_then(|(_, size)| count(size)) {
        out.set("padded_vocab_size", size);
    }
}

const SIZES: &[(&str, &str)] = &[
    ("data-parallel", "data_parallel_size"),
    ("context-parallel", "context_parallel_size"),
    ("tensor-model-parallel", "tensor_model_parallel_size"),
    ("pipeline-model-parallel", "pipeline_model_parallel_size"),
];

/// ` 8, data-parallel size: 4, …, tensor-model-parallel size: 2, pipeline-model-parallel size: 1`
fn world(_: &mut Megatron, place: &mut Place<'_>, out: &mut Builder) {
    // NeoX' launcher says so of itself.
    if place.before().contains("NeoXArgs") {
        return;
    }
    let size = |text: &str| count(text).filter(|n| *n > 0);
    let (all, sizes) = place
        .behind()
        .split_once(',')
        .unwrap_or((place.behind(), ""));
    if let Some(ranks) = size(all) {
        out.set("num_gpus", ranks);
    }
    for (name, value) in sizes.split(',').filter_map(|part| part.split_once(':')) {
        let name = name.trim().trim_end_matches("size");
        let name = name.trim_end_matches([' ', '-']);
        let known = SIZES.iter().find(|(own, _)| *own == name);
        if let Some(((_, known), value)) = known.zip(size(value)) {
            out.set(known, value);
        }
    }
}

/// ` weight and optimizer=1.50 MB, activation=2.50 MB`
static FOOTPRINT: Pattern = Pattern::new(r"(?:^|,)\s*([^,=]*)=\s*([0-9][0-9.eE+-]*)\s*MB");

fn theoretical(_: &mut Megatron, place: &mut Place<'_>, out: &mut Builder) {
    for found in FOOTPRINT.captures_iter(place.behind()) {
        let name = cut(&found[1].trim().replace(' ', "_"), 40);
        if let Some(value) = finite_number(&found[2]) {
            out.total(&format!("theoretical_{name}_mib"), value);
        }
    }
}

fn done(_: &mut Megatron, _: &mut Place<'_>, out: &mut Builder) {
    out.trace.finished = true;
}

/// `[20260101 00:00:00][rank-7/8][INFO ] …`
static PRIMUS: Pattern = Pattern::new(r"^\[.*?\]\[rank-[^\]/]*/[^\]]*\]");

/// What says who wrote a line, besides that Megatron is below.
static DIALECTS: [(&str, Pattern); 4] = [
    (
        "primus",
        Pattern::new(
            r"hip mem usage|rocm mem usage|inst/harmonic mean|compute per GPU \(TFLOP|^\[.*?\]\[rank-[^\]/]*/[^\]]*\]",
        ),
    ),
    (
        "megatron-bridge",
        Pattern::new("MODEL_TFLOP/s/GPU|mem-max-allocated-gigabytes"),
    ),
    (
        "gpt-neox",
        Pattern::new(r"iter time \(s\):|approx flops per GPU"),
    ),
    (
        "megatron-deepspeed",
        Pattern::new("consumed tokens:|consumed_tokens=|lm-loss:"),
    ),
];

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
    let mut dialects = DIALECTS.iter();
    let is_own = |(dialect, _): &(&str, Pattern)| *dialect == name;
    let first = dialects.find(|(_, words)| is_step(text) && words.is_match(text));
    Evidence::Strong.only_if(first.is_some_and(is_own))
}

pub fn primus(text: &str) -> Evidence {
    // Files of ranks that print no steps have its prefix all the same.
    of_dialect(text, "primus").max(Evidence::Weak.only_if(PRIMUS.is_match(text)))
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
    Evidence::Weak.only_if(FINDER.is_match(text) && settings.iter().any(|w| has(text, w)))
}
