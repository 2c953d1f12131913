//! Which step a line is of, where it does not say so: another rank may print of the same step, and
//! the progress bar behind a line may already be that of a later step.

#[cfg(test)]
mod tests;

use super::fields::Fields;
use crate::{
    builder::{Builder, MAX_STEPS, interval},
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
    pub held: Vec<Fields>,
}

impl Ranks {
    pub fn judge(&mut self, before: &Fields, now: &Fields, around: &Around) -> Line {
        let text = |key: &str| (before.text(key), now.text(key));
        let (epoch, rate) = (text("epoch"), text("learning_rate"));
        if now.step().is_some() || epoch.0.is_none() || rate.0.is_none() {
            return Line::Step;
        }
        if epoch.0 != epoch.1 || rate.0 != rate.1 {
            self.changes = Some(rate.0 != rate.1 || self.changes == Some(true));
            return Line::Step;
        }
        let of_rank = |is_rank| if is_rank { Line::OfRank } else { Line::Step };
        if let [Some(a), Some(b)] = around.ranks {
            return of_rank(a != b);
        }
        if around.epochs_are_steps {
            return Line::OfRank;
        }
        let norm = |fields: &Fields| {
            let norm = fields.get("grad_norm");
            norm.filter(|n| n.is_finite() && *n > 0.0)
        };
        if let (Some(a), Some(b)) = (norm(before), norm(now)) {
            return of_rank(a == b);
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
        if self.changes == Some(true) {
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

pub fn rank_of(prefix: &str) -> Option<u64> {
    let [tagged, bare] = RANK.groups(prefix)?;
    [tagged, bare][usize::from(tagged.is_empty())].parse().ok()
}

/// Finds the step of a line behind which the progress bar was not drawn again.
///
/// The Trainer draws its bar again behind each line, with the step of that line. Where the two go
/// to different streams, the next bar is already that of a later step. Which of the two a log does,
/// only its lines together show.
#[derive(Default)]
pub struct Redrawn {
    lines: Vec<Numbered>,
    /// A bar was drawn again with the count that it had before the line.
    pub seen: bool,
}

struct Numbered {
    chosen: u64,
    /// An earlier step that the line may be of: that of the bar before it.
    before: Option<u64>,
}

impl Numbered {
    fn earliest(&self) -> u64 {
        self.before.unwrap_or(self.chosen)
    }
}

impl Redrawn {
    /// The number that a line was given, and what the bars before and behind it say; `settled`: no
    /// other can be meant.
    pub fn line(
        &mut self,
        chosen: u64,
        [before, after]: [Option<u64>; 2],
        total: Option<u64>,
        settled: bool,
    ) {
        // A bar is drawn once more when it is closed.
        self.seen |= before.is_some() && before == after && after != total;
        let last = self.lines.last().map_or(0, Numbered::earliest);
        let before = before.filter(|b| !settled && (last + 1..chosen).contains(b));
        if self.lines.len() < MAX_STEPS {
            self.lines.push(Numbered { chosen, before });
        }
    }

    /// Is the bar at `count` that of the line to come, although it was taken for that of the line
    /// before?
    pub fn was_taken(&self, count: u64) -> bool {
        let last = self.lines.last();
        last.is_some_and(|last| last.chosen == count && last.before.is_some())
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
            Some(_) if every == 1 && self.seen => Some(line.chosen),
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
            trace.steps.iter_mut().for_each(|s| s.step = of(s.step));
            let evaluations = trace.evaluations.iter_mut();
            evaluations.for_each(|e| e.step = e.step.map(of));
        }
        in_order
    }
}
