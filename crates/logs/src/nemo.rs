//! NeMo 2's progress lines, which terminals wrap, beside the bars and lines of `nemo_bars`;
//! formats.toml has the names of their values and the other lines.

use super::{
    builder::Builder,
    engine::Engine,
    format::{Evidence, Reader, shipped},
    lines::Line,
    nemo_bars::Bars,
    numbers::{after, as_count, grouped_number},
    table::About,
    values::{count_after, has, once},
};
use tprimat_base::words::part;

pub fn evidence(line: &str) -> Evidence {
    let progress = has(line, "Training epoch ") && has(line, ", iteration ");
    // The rest of a progress line that was wrapped.
    let rest = has(line, "train_step_timing in s:") && has(line, " | ");
    let is_step = progress || rest || Bars::is_step(line);
    Evidence::Strong
        .only_if(is_step)
        .max(shipped("nemo").evidence(line))
}

pub struct Nemo {
    table: Engine,
    bars: Bars,
    /// Lines of the trainer's own were seen; a callback's count other steps.
    own: bool,
    /// The last iteration's index and the epochs that were seen.
    last_index: Option<u64>,
    epochs: (u64, u64),
    /// A progress line that breaks off before its first field or within one: a terminal or a
    /// document wrapped it.
    broken: Option<String>,
    /// The last progress line, while the next line may still be the rest of it, and the step that
    /// it was taken for.
    whole: Option<(String, u64)>,
}

impl Default for Nemo {
    fn default() -> Self {
        Self {
            table: Engine::new(shipped("nemo")),
            bars: Bars::default(),
            own: false,
            last_index: None,
            epochs: (0, 0),
            broken: None,
            whole: None,
        }
    }
}

/// Lines over which one progress line may be wrapped, in bytes.
const MAX_WRAPPED: usize = 2000;

impl Reader for Nemo {
    fn line(&mut self, line: &Line<'_>, out: &mut Builder) {
        let broken = self.broken.take();
        let goes_on = !has(&line.text, "Training epoch ") && !has(&line.text, "[NeMo ");
        let is_rest = goes_on && is_rest(&line.text);
        let whole = self
            .whole
            .take()
            .filter(|(text, _)| is_rest && text.len() <= MAX_WRAPPED);
        // A line that was wrapped before a `|` looks whole until the next one comes. It is taken at
        // once all the same, as its time counts, and taken again with its rest.
        if let Some((_, step)) = &whole {
            out.take_back(*step);
        }
        let before = broken
            .as_deref()
            .or(whole.as_ref().map(|(text, _)| text.as_str()))
            .filter(|_| goes_on);
        let joined = before.map(|before| format!("{before} {}", line.text.trim_start()));
        if let Some(before) = broken.filter(|_| !goes_on) {
            self.progress(before.trim_start_matches("Training epoch "), out);
        }
        let text = joined.as_deref().unwrap_or(&line.text);
        if let Some(after) =
            after(text, "Training epoch ").filter(|after| line.ended && is_broken(after))
        {
            self.broken =
                Some(format!("Training epoch {after}")).filter(|text| text.len() <= MAX_WRAPPED);
            if self.broken.is_some() {
                return;
            }
        }
        let mut left = after(text, "Training epoch ");
        if left.is_some() {
            while let Some(segment) = left {
                left = after(segment, "Training epoch ");
                let end = segment.len() - left.map_or(0, |l| l.len() + "Training epoch ".len());
                self.progress(part(segment, ..end), out);
            }
        } else if self.bars.line(text, &mut self.table, out) {
            self.own = true;
        } else {
            let line = Line {
                text: text.into(),
                ..*line
            };
            // A callback's lines count other steps than the trainer's own.
            let of = match self.own {
                true => |about| about != About::Step,
                false => |_| true,
            };
            self.table.read(&line, of, out);
        }
    }

    fn settle(&mut self, out: &mut Builder) {
        self.bars.flush(out);
    }

    fn end(&mut self, out: &mut Builder) {
        if let Some(before) = self.broken.take() {
            self.progress(before.trim_start_matches("Training epoch "), out);
        }
        self.bars.flush(out);
        // `iteration 5/99` counts within an epoch: of several epochs it says nothing of the whole.
        if let Some(last) = self.last_index.filter(|_| self.epochs.0 == self.epochs.1) {
            once("train_iters", last.saturating_add(1), out);
        }
    }
}

/// Is this the rest of a progress line that was wrapped before a `|`: `| reduced_train_loss: 10.5 |
/// …`?
fn is_rest(line: &str) -> bool {
    let Some(fields) = line.trim_start().strip_prefix('|') else {
        return false;
    };
    let (first, is_last) = fields
        .split_once('|')
        .map_or((fields, true), |(first, _)| (first, false));
    match first.split_once(':') {
        // A figure without a name is none of the progress bar's.
        Some((name, _)) if name.trim().is_empty() => false,
        Some((_, value)) if value.trim().is_empty() => is_last,
        Some((_, value)) => grouped_number(value.trim()).is_some_and(|(_, tail)| tail.is_empty()),
        // Wrapped once more, within the only name that has spaces.
        None => {
            is_last
                && !first.trim().is_empty()
                && "train_step_timing in s".starts_with(first.trim())
        }
    }
}

/// Does the text behind `Training epoch ` break off: has it no field, or a last one without a
/// value?
fn is_broken(text: &str) -> bool {
    if after(text, "Training epoch ").is_some() {
        return false;
    }
    let last = text.rsplit_once('|').map(|(_, field)| field);
    last.is_none_or(|field| {
        field
            .split_once(':')
            .is_none_or(|(_, value)| value.trim().is_empty())
    })
}

impl Nemo {
    /// `0, iteration 5/99 | lr: 1e-05 | global_step: 5 | …`
    fn progress(&mut self, segment: &str, out: &mut Builder) {
        let mut parts = segment.split('|');
        let head = parts.next().unwrap_or_default();
        let (epoch, index) = (
            grouped_number(head).and_then(|(n, _)| as_count(n)),
            count_after(head, "iteration "),
        );
        let last = head
            .split_once('/')
            .and_then(|(_, last)| grouped_number(last))
            .and_then(|(n, _)| as_count(n));
        let (Some(epoch), Some(index), Some(last)) = (epoch, index, last) else {
            return;
        };
        if !self.own {
            (out.averages, out.latest) = (true, true);
            self.own = true;
            self.epochs = (epoch, epoch);
        }
        self.epochs = (self.epochs.0.min(epoch), self.epochs.1.max(epoch));
        self.last_index = Some(last);
        let fields: Vec<_> = parts
            .filter_map(|p| p.split_once(':'))
            .map(|(k, v)| (k.trim(), v.trim()))
            .take(64)
            .collect();
        let earlier = epoch.saturating_mul(last.saturating_add(1));
        let global = fields
            .iter()
            .find(|(k, _)| *k == "global_step")
            .and_then(|(_, v)| grouped_number(v))
            .and_then(|(n, _)| as_count(n));
        let step = global.unwrap_or_else(|| earlier.saturating_add(index));
        self.whole = Some((format!("Training epoch {}", segment.trim_end()), step));
        let stated = self.table.named_step(step, fields.into_iter(), out);
        if let Some(n) = stated.global_batch_size {
            once("global_batch_size", n, out);
        }
        out.step(stated);
    }
}

#[cfg(test)]
mod tests;
