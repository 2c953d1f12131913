//! The same numbers as SciPy and NumPy: vectors.json is made by vectors.py.

use serde_json::Value;
use tprimat::{
    figures::bootstrap_interval,
    results::{deviation, geometric_mean, holm, quantile, sd, t_interval, welch},
};

fn vectors() -> Value {
    serde_json::from_str(include_str!("vectors.json")).unwrap()
}

fn list(value: &Value) -> Vec<f64> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|v| v.as_f64().unwrap())
        .collect()
}

fn same(what: &str, ours: f64, theirs: f64) {
    assert!(
        (ours - theirs).abs() <= 1e-9 * theirs.abs(),
        "{what}: {ours:e}, SciPy {theirs:e}"
    );
}

#[test]
fn of_one_sample() {
    for case in vectors()["one"].as_array().unwrap() {
        let values = list(&case["values"]);
        let number = |name: &str| case[name].as_f64().unwrap();
        same(
            "geometric mean",
            geometric_mean(&values).unwrap(),
            number("geometric_mean"),
        );
        same("sd", sd(&values).unwrap(), number("sd"));
        same(
            "deviation",
            deviation(&values, quantile(&values, 0.5).unwrap()).unwrap(),
            number("deviation"),
        );
        for (ours, theirs) in t_interval(&values)
            .unwrap()
            .into_iter()
            .zip(list(&case["t_interval"]))
        {
            same("t interval", ours, theirs);
        }
        for pair in case["quantiles"].as_array().unwrap() {
            let pair = list(pair);
            same("quantile", quantile(&values, pair[0]).unwrap(), pair[1]);
        }
        assert_eq!(
            bootstrap_interval(&values).is_some(),
            !case["bootstrap_t"].is_null()
        );
        for (ours, theirs) in bootstrap_interval(&values)
            .into_iter()
            .flatten()
            .zip(case["bootstrap_t"].as_array().into_iter().flatten())
        {
            same("bootstrap-t", ours, theirs.as_f64().unwrap());
        }
    }
}

#[test]
fn of_two_samples() {
    for case in vectors()["two"].as_array().unwrap() {
        let test = welch(&list(&case["a"]), &list(&case["b"])).unwrap();
        same("p", test.p, case["p"].as_f64().unwrap());
        same("freedom", test.freedom, case["freedom"].as_f64().unwrap());
        for interval in case["intervals"].as_array().unwrap() {
            let theirs = list(interval);
            let ours = test.interval(theirs[0]).unwrap();
            same("lower bound", ours[0], theirs[1]);
            same("upper bound", ours[1], theirs[2]);
        }
    }
}

#[test]
fn of_several_tests() {
    for case in vectors()["holm"].as_array().unwrap() {
        for (ours, theirs) in holm(&list(&case["p"]))
            .into_iter()
            .zip(list(&case["adjusted"]))
        {
            same("holm", ours, theirs);
        }
    }
}
