//! Time to a loss: of smoothed losses, and of every repeat.

use super::*;

/// A run with these steps: number, seconds, loss.
fn curve_of(lines: &[(u64, f64, f64)]) -> Curve {
    let mut curve = Curve::default();
    for (step, seconds, loss) in lines {
        curve.step.push(*step);
        curve.step_time_seconds.push(Some(*seconds));
        curve.loss.push(Some(*loss));
    }
    curve
}

/// A cell all of whose repeats logged this.
fn logged(lines: &[(u64, f64, f64)]) -> CellInput {
    let mut cell = h100();
    summary(&mut cell)
        .repeats
        .iter_mut()
        .for_each(|r| r.curve = curve_of(lines));
    cell
}

#[test]
fn time_to_loss_is_of_smoothed_losses_and_of_every_repeat() {
    let losses = [6.0, 4.0, 3.0, 1.0, 2.5, 2.0, 1.5, 2.0];
    let lines = |every: u64| -> Vec<(u64, f64, f64)> {
        (1..)
            .zip(losses)
            .map(|(i, loss)| (i * every, if i == 1 { 20.0 } else { 10.0 }, loss))
            .collect()
    };
    // Means of five: 3.3, 2.5, 2.0: the seventh line. One slow step and six others.
    is(&logged(&lines(1)), "time_to_loss", 80.0);
    is(&logged(&lines(10)), "time_to_loss", 800.0);
    let mut cell = logged(&lines(1));
    summary(&mut cell).repeats[1].curve = curve_of(&lines(1)[..6]);
    is_absent(
        &cell,
        &catalogue(),
        "time_to_loss",
        "2 of 3 repeats reached a loss of 2",
    );
    let mut cell = logged(&lines(1));
    summary(&mut cell).repeats[1].curve.step_time_seconds[2] = None;
    is_absent(&cell, &catalogue(), "time_to_loss", "no step time");
    // An absurd step is no panic.
    let _ = get(
        &logged(&[(u64::MAX, 1.0, 1.0); 6]),
        &catalogue(),
        "time_to_loss",
    );
    let mut excerpt = lines(1);
    excerpt.iter_mut().skip(4).for_each(|line| line.0 += 40);
    is_absent(
        &logged(&excerpt),
        &catalogue(),
        "time_to_loss",
        "not logged",
    );
    // Counted from 0.
    let from_0: Vec<_> = lines(1)
        .into_iter()
        .map(|(step, time, loss)| (step - 1, time, loss))
        .collect();
    let mut cell = logged(&from_0);
    summary(&mut cell).workload.as_mut().unwrap().counts_from = 0;
    is(&cell, "time_to_loss", 80.0);
}
