//! Which step a line is of, where it does not say so: another rank may print of the same step, and
//! the progress bar behind a line may already be that of a later step.

#[cfg(test)]
mod tests;

use super::fields::{Fields, printed};
use crate::{
    builder::{Builder, MAX_STEPS, interval},
    numbers::as_count,
    pattern::Pattern,
};

/// Lines that are held back until it is known what they are.
const HELD: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    Step,
    /// What another rank says of the step of the line before.
    OfRank,
    /// The lines to come will tell.
    Open,
}

/// The newest line of a step.
pub struct Previous {
    pub fields: Fields,
    pub rank: Option<u64>,
    /// The step that the bar showed.
    pub bar: Option<u64>,
}

/// What is known besides the two lines.
pub struct Around {
    /// Ranks by the lines' prefixes.
    pub ranks: [Option<u64>; 2],
    /// An epoch, as it is printed, is that of one step only.
    pub epochs_are_steps: bool,
    /// Did progress bars move on between the lines? Absent where there are none.
    pub moved: Option<bool>,
}

/// Two lines of one moment: two ranks, or two steps? Ranks agree on epoch, learning rate and
/// gradient norm, and differ in the loss of their own samples.
#[derive(Default)]
pub struct Ranks {
    /// Learning rates have changed from step to step; or have not, so that they tell nothing.
    changes: Option<bool>,
    /// Gradient norms have changed from line to line.
    norms_change: bool,
    /// Moments of which one line spoke, and moments of which several did.
    alone: u64,
    together: u64,
    /// Lines of the moment that goes on, besides its first one.
    more: u64,
    pub held: Vec<Fields>,
}

impl Ranks {
    pub fn judge(&mut self, before: &Fields, now: &Fields, around: &Around) -> Line {
        let text = |key: &str| (before.text(key), now.text(key));
        let (epoch, rate) = (text("epoch"), text("learning_rate"));
        if now.step().is_some() || epoch.0.is_none() || rate.0.is_none() {
            return Line::Step;
        }
        let norm = |fields: &Fields| {
            let norm = fields.get("grad_norm");
            norm.filter(|n| n.is_finite() && *n > 0.0)
        };
        let norms = norm(before).zip(norm(now));
        let is_other_norm = norms.is_some_and(|(a, b)| a != b);
        self.norms_change |= is_other_norm;
        if epoch.0 != epoch.1 || rate.0 != rate.1 {
            self.changes = Some(rate.0 != rate.1 || self.changes == Some(true));
            match std::mem::take(&mut self.more) {
                0 => self.alone += 1,
                _ => self.together += 1,
            }
            return Line::Step;
        }
        self.more += 1;
        let of_rank = |is_rank| if is_rank { Line::OfRank } else { Line::Step };
        if let [Some(a), Some(b)] = around.ranks {
            return of_rank(a != b);
        }
        if around.epochs_are_steps {
            return Line::OfRank;
        }
        // Where one line spoke of each moment before, no other rank prints.
        if is_other_norm || self.alone > self.together && around.moved != Some(false) {
            return Line::Step;
        }
        if norms.is_some() && self.norms_change {
            return Line::OfRank;
        }
        let stood = around.moved.map(|moved| !moved);
        stood.or(self.changes).map_or(Line::Open, of_rank)
    }

    /// Holds a line back; false if there are too many.
    pub fn hold(&mut self, fields: &Fields) -> bool {
        let room = self.held.len() < HELD;
        if room {
            self.held.push(fields.clone());
        } else {
            self.changes = Some(false);
        }
        room
    }

    /// The lines held back that are steps; it is said what they were taken for.
    pub fn release(&mut self, out: &mut Builder) -> Vec<Fields> {
        let held = std::mem::take(&mut self.held);
        if self.changes == Some(true) || self.norms_change {
            held.iter().for_each(|fields| Self::tell(fields, out));
            return Vec::new();
        }
        if !held.is_empty() && !out.notes.has("ranks_or_steps") {
            out.trace.steps_assumed = true;
            out.notes.add("ranks_or_steps", || {
                let epoch = held[0].text("epoch").unwrap_or("");
                format!("lines of epoch {epoch} with one learning rate may be of several ranks; each counts as a step")
            });
        }
        held
    }

    pub fn tell(fields: &Fields, out: &mut Builder) {
        let epoch = fields.text("epoch").unwrap_or("");
        let loss = fields.text("loss").unwrap_or("");
        out.notes.add("duplicate_step", || {
            format!("epoch {epoch} again with loss {loss}, of another rank; the first one counts")
        });
    }
}

/// The rank in a prefix: `[rank1]:`, `[default0]:`, `1:`.
static RANK: Pattern =
    Pattern::new(r".*\[(?:rank|default|Rank)[-=: ]*([0-9]+)|^\s*([0-9]{1,5}):\s*$");

/// Lines that show how far apart lines are.
const LEAST_LINES: usize = 4;

/// That more was trained before the first line than lies between two lines, where the epochs of lines show it.
pub fn begins_late(epochs: &[(String, u64)]) -> Option<String> {
    let epochs = epochs.iter().filter_map(|(text, _)| text.parse().ok());
    let epochs: Vec<f64> = epochs.collect();
    let distances = epochs.windows(2).map(|pair| pair[1] - pair[0]);
    // The last line may be closer to the one before it than the others are.
    let each = distances.fold(0.0, f64::max);
    let first = *epochs.first().filter(|_| epochs.len() >= LEAST_LINES)?;
    // Epochs are printed with two digits behind the point, and more.
    (each > 0.0 && first > 1.5 * each + 0.01).then(|| {
        format!(
            "its first line is of epoch {first}, and its lines are at most {each:.3} epochs apart: it went on from a checkpoint, \
             whose steps its summary counts as well, or the beginning of the log is missing"
        )
    })
}

pub fn rank_of(prefix: &str) -> Option<u64> {
    let [tagged, bare] = RANK.groups(prefix)?;
    [tagged, bare][usize::from(tagged.is_empty())].parse().ok()
}

/// What is known at the end of a process.
pub struct End<'a> {
    /// The epoch of the summary.
    pub epoch: Option<&'a str>,
    pub interval: Option<u64>,
    /// Values of steps were computed from the distances of the lines' numbers.
    pub has_differences: bool,
}

impl End<'_> {
    /// The steps of epochs, if the last one's is `done`; `None` where several can be meant.
    fn steps(&self, epochs: &[Option<Box<str>>], done: u64) -> Option<Vec<u64>> {
        let last = printed(self.epoch?)?;
        let epochs = epochs.iter().map(|epoch| printed(epoch.as_deref()?));
        let epochs: Vec<_> = epochs.collect::<Option<_>>()?;
        let all = || epochs.iter().chain([&last]);
        // Zeros at the end are not printed, so the longest numbers tell how they were rounded.
        let decimals = all().map(|(_, decimals, _)| *decimals).max()?;
        let significant = all().map(|(_, _, significant)| *significant).max()?;
        let bounds = |value: f64| {
            let first = match value > 0.0 {
                true => value.log10().floor() as i32,
                false => -decimals,
            };
            let half = 0.5001 * 10f64.powi((first + 1 - significant).max(-decimals));
            (value - half, value + half)
        };
        let (least, most) = bounds(last.0);
        let of_all = |part: f64, all: f64| part / all * done as f64;
        let step = |value: f64| {
            let (low, high) = bounds(value);
            let (low, high) = (of_all(low, most).ceil(), of_all(high, least).floor());
            as_count(low).filter(|_| least > 0.0 && (low - high).abs() < 0.5)
        };
        epochs.iter().map(|(value, ..)| step(*value)).collect()
    }
}

/// Finds the step of a line behind which the progress bar was not drawn again.
///
/// The Trainer draws its bar again behind each line, with the step of that line. Where the two go
/// to different streams, the next bar is already that of a later step. Which of the two a log does,
/// only its lines together show.
#[derive(Default)]
pub struct Redrawn {
    lines: Vec<Numbered>,
    /// Lines behind which a bar was drawn again with the count that it had before the line.
    redrawn: usize,
    /// Lines that others follow with no bar between.
    pub bare: usize,
    /// The first line stands behind a bar that was at its end.
    pub begins_at_end: bool,
    /// A line states its step.
    are_numbered: bool,
}

struct Numbered {
    chosen: u64,
    /// An earlier step that the line may be of: that of the bar before it.
    before: Option<u64>,
    epoch: Option<Box<str>>,
}

impl Numbered {
    fn earliest(&self) -> u64 {
        self.before.unwrap_or(self.chosen)
    }
}

impl Redrawn {
    /// Bars are drawn again behind lines. Of lines that came together from a buffer, only the last one has a bar behind it.
    pub fn seen(&self) -> bool {
        self.redrawn > self.bare
    }

    /// The number that a line was given, and what the bars before and behind it say; `settled`: no
    /// other can be meant.
    pub fn line(
        &mut self,
        (chosen, fields): (u64, &Fields),
        [before, after]: [Option<u64>; 2],
        total: Option<u64>,
        settled: bool,
    ) {
        // A bar is drawn once more when it is closed.
        self.redrawn += usize::from(before.is_some() && before == after && after != total);
        self.are_numbered |= fields.step().is_some();
        let last = self.lines.last().map_or(0, Numbered::earliest);
        let before = before.filter(|b| !settled && (last + 1..chosen).contains(b));
        if self.lines.len() < MAX_STEPS {
            let epoch = fields.text("epoch").map(Into::into);
            self.lines.push(Numbered {
                chosen,
                before,
                epoch,
            });
        }
    }

    /// Is the bar at `count` that of the line to come, although it was taken for that of the line
    /// before?
    pub fn was_taken(&self, count: u64) -> bool {
        let last = self.lines.last();
        last.is_some_and(|last| last.chosen == count && last.before.is_some())
    }

    /// Numbers lines that came out of a buffer, late and many at once, so that no bar tells their steps; false if these are
    /// none. `done`: the steps of the bar when it was drawn last.
    pub fn late(&self, done: u64, end: &End<'_>, out: &mut Builder) -> bool {
        let count = self.lines.len() as u64;
        let are_late = self.begins_at_end || self.bare > 0 && 2 * self.bare >= self.lines.len();
        if !are_late || self.are_numbered || count == 0 {
            return false;
        }
        let every = |interval: u64| (1..=count).map(|n| n * interval).collect::<Vec<u64>>();
        let fits = |new: &Vec<u64>| {
            new.is_sorted_by(|a, b| a < b) && new.first() > Some(&0) && new.last() <= Some(&done)
        };
        // Lines behind a bar that moves on are of its steps, if not even the epochs tell which.
        let spaced = || match end.interval {
            _ if !self.begins_at_end => None,
            Some(interval) => Some(every(interval)).filter(fits),
            None => Some(every(done / count)).filter(|_| done.is_multiple_of(count)),
        };
        let (new, why) = if let Some(new) = end.steps(&self.epochs(), done).filter(fits) {
            (new, "their steps follow from their epochs")
        } else if let Some(new) = spaced() {
            (new, "their steps are spaced evenly up to the last one")
        } else if self.begins_at_end {
            out.trace.steps_assumed |= count > 1;
            (every(1), "they are counted, as their epochs tell no steps")
        } else {
            return false;
        };
        let is_new = !new.iter().eq(self.lines.iter().map(|line| &line.chosen));
        let is_done = is_new && self.renumber(&new, out);
        if is_done {
            let process = out.trace.processes.len().saturating_sub(1);
            let own = out.trace.steps.iter_mut();
            for step in own.filter(|step| step.process as usize == process) {
                // When a line came, and behind which bar, says nothing of its step.
                (step.ended_at, step.seen_at, step.running_average) = (None, None, None);
                if end.has_differences {
                    (step.step_time_seconds, step.tokens) = (None, None);
                }
            }
            out.notes.forget("step_numbers_assumed");
            out.notes.add("step_numbers_assumed", || {
                format!("the lines were printed late, many at once: {why}")
            });
        }
        is_done
    }

    fn epochs(&self) -> Vec<Option<Box<str>>> {
        self.lines.iter().map(|line| line.epoch.clone()).collect()
    }

    /// Gives lines the number of the bar before them where only that fits all lines, and says so
    /// where both may be.
    pub fn end(self, out: &mut Builder) {
        let Some(first) = self.lines.iter().find(|line| line.before.is_some()) else {
            return;
        };
        let numbers = [Numbered::earliest, |line: &Numbered| line.chosen];
        let mut every = numbers.iter().map(|number| self.every(number));
        let all = every.find_map(|every| self.all(every?));
        let Some(new) = all.filter(|new| self.renumber(new, out)) else {
            out.trace.steps_assumed = true;
            let (chosen, before) = (first.chosen, first.earliest());
            return out.notes.add("step_numbers_uncertain", || {
                format!(
                    "no bar is drawn again behind the lines: what is step {chosen} here may be step {before}, and so on"
                )
            });
        };
        if !new.iter().eq(self.lines.iter().map(|line| &line.chosen)) {
            out.notes.add("step_numbers_assumed", || {
                "no bar is drawn again behind the lines; their steps are those of the bars before them".to_owned()
            });
        }
    }

    /// Every how many steps there is a line, if lines have the numbers `of`.
    fn every(&self, of: &impl Fn(&Numbered) -> u64) -> Option<u64> {
        let numbers: Vec<u64> = self.lines.iter().map(of).collect();
        let gaps = numbers.windows(2).map(|w| w[1].checked_sub(w[0]));
        let gaps: Vec<u64> = gaps.collect::<Option<_>>()?;
        interval(*numbers.first()?, &gaps).filter(|every| *every > 0 && numbers.len() > 1)
    }

    /// The numbers of all lines, with one every `every` steps; `None` if that does not tell them.
    fn all(&self, every: u64) -> Option<Vec<u64>> {
        // One line a step: the first step has one, too.
        let from_first = self.lines[0].before == Some(1);
        let number = |line: &Numbered| match line.before {
            None => Some(line.chosen),
            Some(_) if every == 1 && self.seen() => Some(line.chosen),
            Some(before) if every == 1 => Some(before).filter(|_| from_first),
            Some(_) if line.chosen.is_multiple_of(every) => Some(line.chosen),
            Some(before) => Some(before).filter(|before| before.is_multiple_of(every)),
        };
        let numbers: Vec<u64> = self.lines.iter().map(number).collect::<Option<_>>()?;
        numbers.is_sorted_by(|a, b| a < b).then_some(numbers)
    }

    /// False if steps would no longer be in order.
    fn renumber(&self, new: &[u64], out: &mut Builder) -> bool {
        if !self.lines.is_sorted_by(|a, b| a.chosen < b.chosen) {
            return false;
        }
        let of = |step: u64| {
            let line = self.lines.binary_search_by_key(&step, |line| line.chosen);
            line.map_or(step, |at| new[at])
        };
        let trace = &mut out.trace;
        let mut pairs = trace.steps.windows(2);
        let in_order = pairs.all(|w| of(w[0].step) < of(w[1].step));
        if in_order {
            out.renumber(of);
        }
        in_order
    }
}
