//! Finds the step of a log line behind which the progress bar was not drawn again.
//!
//! The Trainer draws its bar again behind each line, with the step of that line. Where the two go
//! to different streams, the next bar is already that of a later step. Which of the two a log does,
//! only its lines together show.

use super::builder::{Builder, MAX_STEPS, interval};

#[derive(Default)]
pub struct Redrawn {
    lines: Vec<Numbered>,
    /// A bar was drawn again with the count that it had before the line.
    seen: bool,
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

    pub fn seen(&self) -> bool {
        self.seen
    }

    /// Is the bar at `count` that of the line to come, although it was taken for that of the line
    /// before?
    pub fn was_taken(&self, count: u64) -> bool {
        self.lines
            .last()
            .is_some_and(|last| last.chosen == count && last.before.is_some())
    }

    /// Gives lines the number of the bar before them where only that fits all lines, and says so
    /// where both may be.
    pub fn end(self, out: &mut Builder) {
        let Some(first) = self.lines.iter().find(|line| line.before.is_some()) else {
            return;
        };
        let numbers = [Numbered::earliest, |line: &Numbered| line.chosen];
        let all = numbers
            .iter()
            .find_map(|number| self.all(self.every(number)?));
        let Some(new) = all.filter(|new| self.renumber(new, out)) else {
            out.trace.steps_assumed = true;
            let (chosen, before) = (first.chosen, first.earliest());
            return out.notes.add("step_numbers_uncertain", || {
                format!(
                    "no bar is drawn again behind the lines: what is step {chosen} here may be step {before}, and so on"
                )
            });
        };
        if new
            .iter()
            .zip(&self.lines)
            .any(|(new, line)| *new != line.chosen)
        {
            out.notes.add("step_numbers_assumed", || {
                "no bar is drawn again behind the lines; their steps are those of the bars before them".to_owned()
            });
        }
    }

    /// Every how many steps there is a line, if lines have the numbers `of`.
    fn every(&self, of: &impl Fn(&Numbered) -> u64) -> Option<u64> {
        let numbers: Vec<u64> = self.lines.iter().map(of).collect();
        let gaps: Option<Vec<u64>> = numbers.windows(2).map(|w| w[1].checked_sub(w[0])).collect();
        interval(*numbers.first()?, &gaps?).filter(|every| *every > 0 && numbers.len() > 1)
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
            self.lines
                .binary_search_by_key(&step, |line| line.chosen)
                .map_or(step, |at| new[at])
        };
        let steps = &mut out.trace.steps;
        let in_order = steps.windows(2).all(|w| of(w[0].step) < of(w[1].step));
        if in_order {
            steps.iter_mut().for_each(|step| step.step = of(step.step));
            out.trace
                .evaluations
                .iter_mut()
                .for_each(|e| e.step = e.step.map(of));
        }
        in_order
    }
}

#[cfg(test)]
mod tests {
    use super::super::{hf::tests::parse, testing::all_kinds};

    /// A log of bars (numbers) and lines (`L`, each with its own learning rate), of 40 steps.
    fn drawn(log: &str) -> (Vec<u64>, Vec<String>) {
        let piece = |(at, word): (usize, &str)| match word {
            "L" => format!("{{'loss': 2.5, 'learning_rate': {at}e-06, 'epoch': 0.01}}\n"),
            count => format!("  5%|#         | {count}/40 [00:08<01:12,  2.00s/it]\r"),
        };
        let trace = parse(&log.split(' ').enumerate().map(piece).collect::<String>());
        let kinds = all_kinds(&trace)
            .iter()
            .filter(|k| **k != "missing_steps")
            .map(|k| (*k).to_owned())
            .collect();
        (trace.steps.iter().map(|s| s.step).collect(), kinds)
    }

    #[test]
    fn a_bar_that_is_not_drawn_again_is_of_a_later_step() {
        let (assumed, uncertain) = ("step_numbers_assumed", "step_numbers_uncertain");
        for (log, steps, told) in [
            ("9 10 L 10 11 20 L 20 21 30 L 30", vec![10, 20, 30], None),
            (
                "9 10 L 11 19 20 L 21 29 30 L 31",
                vec![10, 20, 30],
                Some(assumed),
            ),
            (
                "10 L 11 20 L 21 30 L 31 40 L",
                vec![10, 20, 30, 40],
                Some(assumed),
            ),
            ("10 L 12 20 L 21 30 L 33", vec![10, 20, 30], Some(assumed)),
            // Bars that come too fast are not drawn before the line.
            ("9 L 10 19 L 20 29 L 30", vec![10, 20, 30], None),
            ("0 L 1 L 2 L 3", vec![1, 2, 3], None),
            ("0 1 L 1 2 L 2 3 L 3", vec![1, 2, 3], None),
            ("0 1 L 2 L 3 L 4", vec![1, 2, 3], Some(assumed)),
            (
                "37 L 38 L 39 L 40 L 40",
                vec![38, 39, 40, 41],
                Some(uncertain),
            ),
            ("10 L 12 25 L 26 33 L 34", vec![12, 26, 34], Some(uncertain)),
            ("7 L 8", vec![8], Some(uncertain)),
        ] {
            let (found, kinds) = drawn(log);
            assert_eq!(
                (found, kinds.first().map(String::as_str)),
                (steps, told),
                "{log}: {kinds:?}"
            );
        }
    }

    #[test]
    fn with_an_interval_or_fine_epochs_a_bar_that_is_not_drawn_again_shifts_nothing() {
        let log = " 3%|# | 1/40 [00:02<01:12, 2.00s/it]\r{'loss': 2.5, 'epoch': 0.25}\n 5%|# | 2/40 [00:04<01:12, 2.00s/it]\r{'loss': 2.5, 'epoch': 0.5}\n";
        let steps = |before: &str| {
            let trace = parse(&format!("{before}{log}"));
            (
                trace.steps.iter().map(|s| s.step).collect::<Vec<_>>(),
                trace.steps_assumed,
            )
        };
        assert_eq!(steps("logging_steps: 1\n"), (vec![1, 2], false));
        let banner = "  Num examples = 32\n  Total train batch size (w. parallel, distributed & accumulation) = 8\n";
        assert_eq!(steps(banner), (vec![1, 2], false));
    }
}
