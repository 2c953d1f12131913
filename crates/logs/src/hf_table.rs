//! The table that Hugging Face's Trainer shows in notebooks: `Step  Training Loss  [Validation Loss
//! …]`, a row a line.

use super::{
    Step,
    builder::Builder,
    numbers::{as_count, grouped_number},
    values::{Checks, has},
};

pub fn is_header(line: &str) -> bool {
    has(line, "Training Loss") && cells(line).next() == Some("Step")
}

#[derive(Default)]
pub struct Table {
    /// Names of the columns, while rows may come.
    columns: Vec<String>,
}

impl Table {
    /// The row's step number, if the line is one.
    pub fn line(&mut self, text: &str, out: &mut Builder) -> Option<u64> {
        if is_header(text) {
            self.columns = cells(text).take(16).map(str::to_owned).collect();
            return None;
        }
        if self.columns.is_empty() {
            return None;
        }
        let row: Vec<_> = cells(text).take(17).collect();
        let at = row
            .first()
            .and_then(|cell| grouped_number(cell))
            .filter(|(_, tail)| tail.is_empty())
            .and_then(|(n, _)| as_count(n));
        let Some(at) = at.filter(|_| row.len() == self.columns.len()) else {
            self.columns.clear();
            return None;
        };
        let mut step = Step {
            step: at,
            ..Step::default()
        };
        for (column, cell) in self.columns.iter().zip(&row).skip(1) {
            // `No log` where the interval has not passed yet.
            let Some((value, "")) = grouped_number(cell) else {
                continue;
            };
            match column.as_str() {
                "Training Loss" => {
                    step.loss = Checks {
                        step: at,
                        notes: &mut out.notes,
                    }
                    .loss(Some(value))
                }
                "Validation Loss" => out.evaluated(Some(at), "eval_loss", value),
                _ => {}
            }
        }
        out.averages = true;
        out.step(step);
        Some(at)
    }
}

/// Parts that are separated by tabs or by several spaces.
fn cells(line: &str) -> impl Iterator<Item = &str> {
    line.split('\t')
        .flat_map(|part| part.split("  "))
        .map(str::trim)
        .filter(|cell| !cell.is_empty())
}

#[cfg(test)]
mod tests {
    use super::super::parse_any;

    #[test]
    fn rows_below_a_header() {
        let trace = parse_any(
            b"[75/75 03:14, Epoch 1/1]\nStep\tTraining Loss\tValidation Loss\n25\tNo log\t2.500000\n50\t2.250000\t2.125000\n75\t2.000000\t2.000000\n\
              done\n100\t1.0\t1.0\nTrainOutput(global_step=75, training_loss=2.1, metrics={'train_runtime': 194.5})\n",
        );
        assert_eq!(trace.format, "hf-trainer");
        let steps: Vec<_> = trace
            .steps
            .iter()
            .map(|s| (s.step, s.loss, s.steps_averaged))
            .collect();
        assert_eq!(
            steps,
            [
                (25, None, Some(25)),
                (50, Some(2.25), Some(25)),
                (75, Some(2.0), Some(25))
            ]
        );
        assert_eq!(
            (
                trace.evaluations.len(),
                trace.totals["train_runtime_seconds"]
            ),
            (3, 194.5)
        );
        let spaced =
            parse_any(b"  Step    Training Loss\n  10      1.500000\n  20      1.250000\n");
        assert_eq!((spaced.steps.len(), spaced.steps[1].loss), (2, Some(1.25)));
    }
}
