//! Two lines of one moment of a Hugging Face log: two ranks, or two steps?
//!
//! Lines have neither. Ranks agree on epoch, learning rate and gradient norm, and differ in the
//! loss of their own samples.

use super::{builder::Builder, hf_fields::Fields};

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
            self.changes = Some(rate.0 != rate.1)
                .filter(|c| *c)
                .or(self.changes)
                .or(Some(false));
            return Line::Step;
        }
        if let [Some(a), Some(b)] = around.ranks {
            return if a == b { Line::Step } else { Line::OfRank };
        }
        if around.epochs_are_steps {
            return Line::OfRank;
        }
        let norm = |fields: &Fields| {
            fields
                .get("grad_norm")
                .filter(|n| n.is_finite() && *n > 0.0)
        };
        if let (Some(a), Some(b)) = (norm(before), norm(now)) {
            return if a == b { Line::OfRank } else { Line::Step };
        }
        match (around.moved, self.changes) {
            (Some(true), _) => Line::Step,
            (Some(false), _) | (None, Some(true)) => Line::OfRank,
            (None, Some(false)) => Line::Step,
            (None, None) => Line::Open,
        }
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
                let epoch = held[0].epoch_text().unwrap_or("");
                format!("lines of epoch {epoch} with one learning rate may be of several ranks; each counts as a step")
            });
        }
        held
    }

    pub fn tell(fields: &Fields, out: &mut Builder) {
        let (epoch, loss) = (
            fields.epoch_text().unwrap_or(""),
            fields.text("loss").unwrap_or(""),
        );
        out.notes.add("duplicate_step", || {
            format!("epoch {epoch} again with loss {loss}, of another rank; the first one counts")
        });
    }
}

/// The rank in a prefix: `[rank1]:`, `[default0]:`, `1:`.
pub fn rank_of(prefix: &str) -> Option<u64> {
    let prefix = prefix.trim();
    let number = |text: &str| {
        text.trim_start_matches([' ', '-', '=', ':'])
            .split(|c: char| !c.is_ascii_digit())
            .next()?
            .parse()
            .ok()
    };
    for word in ["[rank", "[default", "[Rank"] {
        if let Some((_, rest)) = prefix.rsplit_once(word) {
            return number(rest);
        }
    }
    prefix
        .strip_suffix(':')
        .filter(|digits| digits.len() < 6)?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::super::{hf::tests::parse, testing::all_kinds};

    #[test]
    fn two_ranks_are_not_two_steps() {
        let line = |loss: f64, rest: &str| format!("{{'loss': {loss}, {rest}}}\n");
        let read = |log: String| {
            let trace = parse(&log);
            let kinds = all_kinds(&trace)
                .into_iter()
                .map(ToOwned::to_owned)
                .filter(|k| k != "step_numbers_assumed");
            (
                trace
                    .steps
                    .iter()
                    .filter_map(|s| s.loss)
                    .collect::<Vec<_>>(),
                kinds.collect::<Vec<_>>(),
            )
        };
        let pairs = |rest: &dyn Fn(u32) -> String, prefixes: [&str; 2]| -> String {
            (1..4u32)
                .flat_map(|n| {
                    [0u32, 1].map(|r| {
                        prefixes[r as usize].to_owned()
                            + &line(f64::from(n) + 0.25 * f64::from(r), &rest(n))
                    })
                })
                .collect()
        };
        let (ranks, steps) = (vec![1.0, 2.0, 3.0], vec![1.0, 1.25, 2.0, 2.25, 3.0, 3.25]);
        let decaying = |n: u32| format!("'learning_rate': {n}e-06, 'epoch': 0.0{n}");
        assert_eq!(
            read(pairs(&decaying, ["", ""])),
            (ranks.clone(), vec!["duplicate_step".to_owned(); 3])
        );
        let normed = |n: u32| format!("'grad_norm': {n}.5, 'learning_rate': 1e-06, 'epoch': 0.01");
        assert_eq!(read(pairs(&normed, ["", ""])).0, ranks);
        let constant = |_| "'learning_rate': 1e-06, 'epoch': 0.01".to_owned();
        assert_eq!(
            read(pairs(&constant, ["", ""])),
            (steps.clone(), vec!["ranks_or_steps".to_owned()])
        );
        assert_eq!(read(pairs(&constant, ["[rank0]:", "[rank0]:"])).0, steps);
        let tagged = read(pairs(
            &|n| format!("'learning_rate': 1e-06, 'epoch': 0.0{n}"),
            ["[rank0]:", "[rank1]:"],
        ));
        assert_eq!(tagged.0, ranks);
        let other_norms = |norm: u32, n: u32| {
            line(
                f64::from(n),
                &format!("'grad_norm': {norm}.5, 'learning_rate': 1e-06, 'epoch': 0.01"),
            )
        };
        assert_eq!(
            read((1..4).map(|n| other_norms(n, n)).collect()),
            (ranks.clone(), vec![]),
            "steps of a coarse epoch"
        );
        // Bars stand still between ranks.
        let bar = |n: u32| format!(" 5%|# | {n}/40 [00:02<01:12, 2.00s/it]\r");
        let both = |n: u32| {
            bar(n)
                + &line(f64::from(n), &constant(n))
                + &bar(n)
                + &line(f64::from(n) + 0.25, &constant(n))
                + &bar(n)
        };
        assert_eq!(read((1..4).map(both).collect()).0, ranks);
        let one = |n: u32| bar(n) + &line(f64::from(n), &constant(n)) + &bar(n);
        assert_eq!(read((1..4).map(one).collect()), (ranks, vec![]));
        // One bar for all of the log says nothing of steps.
        let still = bar(0)
            + &(1..4)
                .map(|n| line(f64::from(n), &constant(n)))
                .collect::<String>();
        assert_eq!(read(still).1, ["ranks_or_steps"]);
    }

    #[test]
    fn ranks_by_their_prefixes() {
        let known = [
            ("[rank3]:", 3),
            ("[default12]:", 12),
            (" 7: ", 7),
            ("2024-01-02 [rank 4] ", 4),
        ];
        for (prefix, rank) in known {
            assert_eq!(super::rank_of(prefix), Some(rank), "{prefix}");
        }
        for prefix in [
            "",
            "2024-01-02 10:00:01,123 ",
            "loss:",
            "[rank]:",
            "10%|#| 4/40",
        ] {
            assert_eq!(super::rank_of(prefix), None, "{prefix}");
        }
    }
}
