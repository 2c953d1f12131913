//! `report --tensorboard`: each run's curves as an event file of TensorBoard.

use std::path::Path;

use crate::{
    cli::targets::refuse_folder,
    error::Result,
    figures::{Comparison, RepeatSummary},
    files::{Durability, create_dir_all, write_atomically},
    logs::{Scalar, event_file},
    plan::Plan,
    publish,
};

/// Writes `CELL/repeat-1/events.out.tfevents.…` below `folder` for every run with curves, and
/// returns how many, and how many of these do not say when they began.
pub fn write(plan: &Plan, comparison: &Comparison, folder: &Path) -> Result<(usize, usize)> {
    refuse_folder(plan, "--tensorboard", folder)?;
    let rows = comparison.rows.iter().map(|row| (&row.cell, &row.repeats));
    let absent = comparison
        .absent
        .iter()
        .map(|cell| (&cell.cell, &cell.repeats));
    let (mut written, mut undated) = (0, 0);
    for (cell, repeats) in rows.chain(absent) {
        for repeat in repeats {
            let scalars = scalars(repeat);
            if scalars.is_empty() {
                continue;
            }
            let begun_at = repeat.started_at.unwrap_or(0.0);
            let run = folder
                .join(as_folder(cell))
                .join(format!("repeat-{}", repeat.repeat));
            create_dir_all(&run)?;
            let name = format!("events.out.tfevents.{:010}.tprimat", begun_at as u64);
            let bytes = event_file(begun_at, &scalars);
            write_atomically(&run.join(name), &bytes, Durability::Plain)?;
            written += 1;
            undated += usize::from(repeat.started_at.is_none());
        }
    }
    Ok((written, undated))
}

/// A cell's name as one folder.
fn as_folder(cell: &str) -> String {
    let fit = |ch: char| {
        if ch.is_alphanumeric() || "-_.=,@".contains(ch) {
            ch
        } else {
            '_'
        }
    };
    let name: String = cell.chars().map(fit).collect();
    // No name is a way out of the folder.
    publish::short_name(if name.starts_with('.') {
        format!("_{name}")
    } else {
        name
    })
}

/// Under the tags that tprimat reads too, so that `import --tfevents` takes the file.
fn scalars(repeat: &RepeatSummary) -> Vec<Scalar<'static>> {
    let curve = &repeat.curve;
    let tags = [
        ("train/loss", &curve.loss),
        ("train/learning_rate", &curve.learning_rate),
        ("perf/step_time_seconds", &curve.step_time_seconds),
    ];
    let mut time = repeat.started_at.unwrap_or(0.0);
    let mut found = Vec::new();
    for (at, step) in curve.step.iter().enumerate() {
        time += curve
            .step_time_seconds
            .get(at)
            .copied()
            .flatten()
            .unwrap_or(0.0);
        for (tag, values) in &tags {
            if let Some(value) = values.get(at).copied().flatten() {
                found.push(Scalar {
                    tag,
                    step: *step,
                    time,
                    value,
                });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::as_folder;

    #[test]
    fn a_name_is_one_folder() {
        assert_eq!(
            as_folder("cpu/cmd/m/single@a=1,b=x/y"),
            "cpu_cmd_m_single@a=1,b=x_y"
        );
        assert_eq!(as_folder("../../x"), "_.._.._x");
    }
}
