//! `why`: where the time of a step goes, from what torch's profiler exports.

use serde_json::json;

use crate::support::{ONE_RUN, Project};

/// Two steps, each of one product and one attention, of so many microseconds, and a gap of ten.
pub fn trace(product: u64, attention: u64) -> String {
    let step = product + attention + 10;
    let of_step = |n: u64| {
        let from = n * step;
        let event = |cat: &str, name: &str, ts: u64, dur: u64| json!({"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": {"device": 0}});
        [
            event("user_annotation", &format!("ProfilerStep#{n}"), from, step),
            event("kernel", "nvjet_tst_128x256", from, product),
            event("kernel", "flash_fwd_kernel", from + product, attention),
        ]
    };
    let events: Vec<_> = (0..2).flat_map(of_step).collect();
    json!({ "traceEvents": events }).to_string()
}

#[test]
fn of_two_traces_the_parts_of_the_difference_add_up_to_it() {
    let project = Project::new(ONE_RUN);
    project
        .write("quick.json", &trace(70_000, 20_000))
        .write("slow.json", &trace(75_000, 45_000));
    let told = project
        .run(&["why", "quick.json", "slow.json"])
        .ends_with(0);
    let sentence = told.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "takes 30.0 ms more",
        "attention +25.0, matrix products +5.0",
    ] {
        assert!(sentence.contains(part), "{sentence}");
    }
    let parts = &project.json(&["why", "slow.json"])["breakdowns"][0]["breakdown"];
    let sum: f64 = parts["parts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|part| part["seconds"].as_f64().unwrap())
        .sum();
    assert!(
        (sum - parts["step_seconds"].as_f64().unwrap()).abs() < 1e-9,
        "{parts}"
    );
}

#[test]
fn what_is_no_trace_and_a_cell_without_one_are_told_with_what_makes_one() {
    let project = Project::new(ONE_RUN);
    project.write("train.log", "step 3 loss 2.5\n");
    let no_trace = project.run(&["why", "train.log"]).ends_with(2).stderr;
    assert!(
        no_trace.contains("is no trace of PyTorch's profiler"),
        "{no_trace}"
    );
    let cell = project
        .run(&["why", "cpu/cmd/tiny/single"])
        .ends_with(1)
        .stderr;
    assert!(cell.contains("experiment.profiling=torch"), "{cell}");
}
