//! When a run that has made steps counts as hung, judged by the pace that it has shown itself.
//!
//! Time is handed in, and it is only time in which the run could make steps.

use crate::run::spec::Hang;

/// Lines with a step after which it is known how long one takes.
const KNOWN: usize = 5;
/// The newest lines, of which the median is taken.
const NEWEST: usize = 101;
/// Looks that found steps, before any silence is judged. A log that is written in blocks shows
/// nothing for long and then much: only the second whole block tells how long such a silence is.
const LOOKS: usize = 3;
/// Silence is judged from so many times the longest one on that this run has broken itself.
const LONGEST: f64 = 3.0;

pub(super) struct Pace {
    factor: f64,
    least: f64,
    /// The run's last step.
    steps: u64,
    now: f64,
    /// The newest step, and when it was seen.
    last: Option<(u64, f64)>,
    /// Looks that found steps.
    looks: usize,
    /// Seconds of the newest lines with a step.
    seconds: Vec<f64>,
    /// The longest time between two looks that found steps.
    longest: f64,
    /// The most steps from one such look to the next.
    stride: u64,
}

/// One line of a log that tells of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct StepLine {
    pub step: u64,
    pub seconds: Option<f64>,
}

impl Pace {
    pub fn new(hang: &Hang) -> Self {
        Self {
            factor: hang.factor,
            least: hang.least_seconds,
            steps: hang.steps,
            now: 0.0,
            last: None,
            looks: 0,
            seconds: Vec::new(),
            longest: 0.0,
            stride: 1,
        }
    }

    /// So many seconds went by, and at their end the log had these new lines.
    pub fn look(&mut self, passed: f64, lines: &[StepLine]) {
        self.now += passed;
        let Some(newest) = lines.last() else { return };
        let silence = self.last.map(|(step, seen)| {
            self.stride = self.stride.max(newest.step.saturating_sub(step));
            self.now - seen
        });
        self.longest = self.longest.max(silence.unwrap_or(0.0));
        // A line that stands for several steps comes as seldom as the next one will.
        let of_a_line = silence.map(|silence| silence / lines.len() as f64);
        for line in lines {
            if let Some(seconds) = of_a_line.into_iter().chain(line.seconds).reduce(f64::max) {
                if self.seconds.len() == NEWEST {
                    self.seconds.remove(0);
                }
                self.seconds.push(seconds);
            }
        }
        self.looks += 1;
        self.last = Some((newest.step, self.now));
    }

    fn median(&self) -> f64 {
        let mut sorted = self.seconds.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
    }

    /// In a sentence why the run hangs; none where that is not known, or where no step is due.
    pub fn verdict(&self) -> Option<String> {
        let (step, seen) = self.last?;
        // Logs count from 0 or from 1. The last steps may get no line of their own, or one that
        // stays in the trainer's buffer until it ends, and after them it may save for long.
        if step + self.stride >= self.steps || self.looks < LOOKS || self.seconds.len() < KNOWN {
            return None;
        }
        let (silence, median, longest) = (self.now - seen, self.median(), self.longest);
        let most = (self.factor * median)
            .max(self.least)
            .max(LONGEST * longest);
        (silence > most).then(|| format!(
            "no step in the {silence:.0} s after step {step}; the median step took {median:.3} s, and the longest time without a step before was {longest:.0} s"
        ))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::logs::LogSection;

    const LOOK: f64 = 5.0;

    fn pace(steps: u64) -> Pace {
        Pace::new(&Hang {
            factor: 100.0,
            least_seconds: 600.0,
            steps,
            log: LogSection::named("tprimat"),
        })
    }

    /// A trainer and its log.
    #[derive(Clone, Debug)]
    struct Trainer {
        steps: u64,
        first: u64,
        /// The shortest time of a step; others take up to half as long again.
        step_seconds: f64,
        states_times: bool,
        log_interval: u64,
        /// Lines that its buffer holds, and how many it holds before the first step.
        block: usize,
        before: usize,
        checkpoint: (u64, f64),
        final_save: f64,
        noise: Vec<f64>,
    }

    impl Trainer {
        /// When each line is seen at the earliest, up to `until`; and when the trainer ends.
        fn lines(&self, until: u64) -> (Vec<(f64, StepLine)>, f64) {
            let (mut now, mut buffer, mut seen) = (30.0, Vec::new(), Vec::new());
            let mut room = self.block - self.before.min(self.block - 1);
            for at in 0..self.steps.min(until) {
                let noise = self.noise[at as usize % self.noise.len()];
                let seconds = self.step_seconds * (1.0 + noise / 2.0);
                now += seconds;
                if (at + 1) % self.log_interval == 0 {
                    let seconds = self.states_times.then_some(seconds);
                    let step = at + self.first;
                    buffer.push(StepLine { step, seconds });
                }
                if buffer.len() >= room {
                    seen.extend(buffer.drain(..).map(|line| (now, line)));
                    room = self.block;
                }
                if (at + 1) % self.checkpoint.0 == 0 {
                    now += self.checkpoint.1;
                }
            }
            now += self.final_save;
            seen.extend(buffer.into_iter().map(|line| (now, line)));
            (seen, now)
        }

        fn block_seconds(&self) -> f64 {
            let steps = self.block as u64 * self.log_interval;
            let saves = (steps / self.checkpoint.0 + 1) as f64 * self.checkpoint.1;
            steps as f64 * self.step_seconds * 1.5 + saves
        }
    }

    /// The verdict, and when it came, of looks at these lines until `end`.
    fn judged(trainer: &Trainer, lines: &[(f64, StepLine)], end: f64) -> Option<(f64, String)> {
        let (mut pace, mut now, mut told) = (pace(trainer.steps), 0.0, 0);
        while now < end {
            now += LOOK;
            let news = lines[told..]
                .iter()
                .take_while(|(at, _)| *at <= now)
                .count();
            let new: Vec<StepLine> = lines[told..told + news].iter().map(|l| l.1).collect();
            told += news;
            pace.look(LOOK, &new);
            if let Some(why) = pace.verdict() {
                return Some((now, why));
            }
        }
        None
    }

    prop_compose! {
        fn trainers()(
            steps in 1_u64..2000,
            first in 0_u64..2,
            step_seconds in prop_oneof![0.01..1.0, 1.0..30.0],
            states_times: bool,
            log_interval in prop_oneof![Just(1_u64), 2_u64..60],
            block in prop_oneof![Just(1_usize), 2_usize..200],
            before in 0_usize..200,
            every in 10_u64..500,
            saving in 0.0..300.0,
            final_save in 0.0..7200.0,
            noise in prop::collection::vec(0.0..1.0, 7),
        ) -> Trainer {
            let mut trainer = Trainer {
                steps, first, step_seconds, states_times, log_interval, block, before,
                checkpoint: (every, saving), final_save, noise,
            };
            // What a person declares as a hang is one: a silence of 10 minutes that nothing before
            // has announced.
            let is_announced = |trainer: &Trainer| {
                trainer.block_seconds() + 2.0 * LOOK < 600.0
            };
            if !is_announced(&trainer) {
                trainer.checkpoint.1 = 0.0;
            }
            trainer
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

        #[test]
        fn a_run_that_goes_on_is_never_taken_for_one_that_hangs(trainer in trainers()) {
            let (lines, end) = trainer.lines(u64::MAX);
            prop_assert_eq!(judged(&trainer, &lines, end), None);
        }

        #[test]
        fn a_run_that_hangs_in_its_middle_is_found(trainer in trainers()) {
            let trainer = Trainer { block: 1, checkpoint: (1, 0.0), ..trainer };
            let (lines, end) = trainer.lines(trainer.steps / 2);
            let end = end - trainer.final_save;
            let line = trainer.log_interval as f64 * trainer.step_seconds * 1.5;
            prop_assume!(lines.len() >= KNOWN && end - 30.0 > 4.0 * (LOOK + line));
            let left = trainer.steps - trainer.steps / 2;
            prop_assume!(left as f64 * trainer.step_seconds > 4.0 * (LOOK + line));
            // Two looks that found a step may be a line and a look apart.
            let apart = line + LOOK;
            let most = (100.0 * apart).max(600.0);
            let found = judged(&trainer, &lines, end + 2.0 * most);
            prop_assert!(found.is_some_and(|(at, _)| at > end + 590.0 && at < end + most + 3.0 * apart));
        }
    }

    #[test]
    fn a_log_in_blocks_is_judged_by_the_time_between_them() {
        // 136 lines of 60 bytes fill Python's buffer of 8 KiB: a block comes every 816 s.
        let trainer = Trainer {
            steps: 2000,
            first: 1,
            step_seconds: 6.0,
            states_times: true,
            log_interval: 1,
            block: 136,
            before: 130,
            checkpoint: (1, 0.0),
            final_save: 3600.0,
            noise: vec![0.0],
        };
        let (lines, end) = trainer.lines(u64::MAX);
        assert_eq!(judged(&trainer, &lines, end), None);
        let (mut lines, end) = trainer.lines(1000);
        lines.truncate(6 + 7 * 136);
        let (found, why) = judged(&trainer, &lines, end * 10.0).unwrap();
        assert!(
            why.contains("longest time without a step before was 8"),
            "{why}"
        );
        assert!(found > lines.last().unwrap().0 + 3.0 * 810.0);
    }

    #[test]
    fn the_steps_after_the_last_line_and_the_final_save_are_no_hang() {
        // Every tenth of 1003 steps has a line.
        let mut pace = pace(1003);
        for at in 1..=100 {
            let seconds = Some(0.5);
            pace.look(
                LOOK,
                &[StepLine {
                    step: 10 * at,
                    seconds,
                }],
            );
        }
        for _ in 0..1000 {
            pace.look(LOOK, &[]);
            assert_eq!(pace.verdict(), None);
        }
    }
}
