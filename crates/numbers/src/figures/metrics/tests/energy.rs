//! Energy and power: of the measured steps, of all devices, or of none.

use super::*;

#[test]
fn energy_that_is_not_of_these_steps_and_devices_makes_no_figure() {
    let Figure::Ok { basis, .. } = get(
        &metered(3_190_200.0, 613.5, 8),
        &catalogue(),
        "tokens_per_joule",
    ) else {
        panic!()
    };
    assert_eq!(
        basis,
        "GPU board energy over the measured steps of 1 of 3 repeats (nvml, counter)"
    );
    is_absent(
        &metered(3_190_200.0, 613.5, 4),
        &catalogue(),
        "tokens_per_joule",
        "of 4 devices",
    );
    is_absent(
        &metered(3_190_200.0, 900.0, 8),
        &catalogue(),
        "tokens_per_joule",
        "energy is of 900 s",
    );
    is_absent(
        &metered(3_190_200.0, f64::NAN, 8),
        &catalogue(),
        "tokens_per_joule",
        "energy is of",
    );
    // Millijoules, and a counter that stood still.
    is_error(
        &metered(3_190_200_000.0, 613.5, 8),
        &catalogue(),
        "tokens_per_joule",
        "made for 700 W",
    );
    is_error(
        &metered(0.0, 613.5, 8),
        &catalogue(),
        "tokens_per_joule",
        "0 J",
    );
}
