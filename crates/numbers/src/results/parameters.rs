//! How many parameters a model has, as logs say and as its shape gives.

use serde_json::Value;
use tprimat_job::ModelShape;
use tprimat_logs::Trace;

use super::{claim, count_parameters, settings::lookup};

/// Names of settings by which trainers state the count of all parameters.
const NAMES: [&str; 5] = [
    "num_parameters",
    "num_params",
    "n_params",
    "total_parameters",
    "total_params",
];
/// A count is never rounded by more than this share.
const MOST_ROUNDED: f64 = 0.02;
/// Trainers pad vocabularies, which adds up to this share.
const PADDING: f64 = 0.002;

/// What a count may be off by because it is rounded: half a unit of its last digit that is not 0.
fn rounding(count: u64) -> f64 {
    let mut unit = 1;
    while count > 0 && count.is_multiple_of(unit * 10) {
        unit *= 10;
    }
    (unit as f64 / 2.0).min(MOST_ROUNDED * count as f64)
}

/// Does a log mean this very count, perhaps rounded?
pub fn rounds_to(exact: u64, stated: u64) -> bool {
    exact.abs_diff(stated) as f64 <= rounding(stated)
}

/// May these be counts of one model?
pub fn same_size(a: u64, b: u64) -> bool {
    let padding = PADDING * a.max(b) as f64;
    a.abs_diff(b) as f64 <= rounding(a).max(rounding(b)).max(padding)
}

/// Every count of all parameters that the log states, with the name that it uses.
pub fn stated(trace: &Trace) -> impl Iterator<Item = (&'static str, u64)> + '_ {
    let settings = NAMES.iter().flat_map(|name| {
        let values = lookup(&trace.effective.0, name);
        values.filter_map(move |value| Some((*name, value.as_f64()?)))
    });
    // With two decimals, which of a smaller model say less than this.
    let is_exact = |billions: &&f64| 0.005 <= MOST_ROUNDED * **billions;
    let billions = trace.totals.get("parameters_billions").filter(is_exact);
    let billions = billions.map(|billions| ("parameters in billions", billions * 1e9));
    let all = settings.chain(billions);
    let whole = |(name, count): (_, f64)| {
        (1.0..1e18)
            .contains(&count)
            .then_some((name, count.round() as u64))
    };
    let own = trace.num_parameters.filter(|count| *count > 0);
    own.map(|count| (NAMES[0], count))
        .into_iter()
        .chain(all.filter_map(whole))
}

/// The parameters of a shape that is stated in full; two counts where it is not stated whether the
/// output matrix is the embedding.
pub fn of_shape(stated: impl Fn(&str) -> Option<Value>) -> Vec<u64> {
    let Ok(Value::Object(mut shape)) = serde_json::to_value(ModelShape::default()) else {
        return Vec::new();
    };
    for (name, value) in &mut shape {
        if let Some(stated) = stated(name).filter(|_| claim::is_of_model(name)) {
            *value = stated;
        }
    }
    let Ok(mut shape) = serde_json::from_value::<ModelShape>(Value::Object(shape)) else {
        return Vec::new();
    };
    if shape.head_dim == 0 {
        shape.head_dim = shape
            .hidden_size
            .checked_div(shape.num_attention_heads)
            .unwrap_or(0);
    }
    let tied = ModelShape {
        tie_embeddings: true,
        ..shape.clone()
    };
    let both = match stated("tie_embeddings") {
        Some(_) => vec![shape],
        None => vec![shape, tied],
    };
    both.iter().filter_map(count_parameters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_held_against_another_as_far_as_it_is_written() {
        let exact = 8_030_261_248;
        for near in [8_030_000_000, 8_000_000_000, 8_030_785_536] {
            assert!(same_size(exact, near) && same_size(near, exact), "{near}");
        }
        assert!(same_size(8_030_000_000, 8_000_000_000));
        for far in [
            7_900_000_000,
            8_200_000_000,
            8_060_000_000,
            7_000_000_000,
            10_000_000_000,
        ] {
            assert!(!same_size(exact, far) && !same_size(far, exact), "{far}");
        }
        assert!(rounds_to(exact, 8_030_000_000) && rounds_to(exact, exact));
        assert!(!rounds_to(exact, exact + 1) && !rounds_to(exact, 8_031_000_000));
    }
}
