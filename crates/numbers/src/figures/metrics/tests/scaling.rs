//! Scaling: against the smallest cell that is otherwise the same.

use super::*;

/// A cell of so many devices and sequences a step.
fn scaled(name: &str, devices: u64, batch: u64, seconds: f64, change: fn(&mut Job)) -> CellInput {
    let mut job = llama_job();
    job.parallelism.num_gpus = devices;
    job.parallelism.data_parallel_size = devices;
    job.data.global_batch_size = batch;
    change(&mut job);
    cell_of(name, &job, seconds, Some(H100))
}

fn scaling_of(comparison: &Comparison, cell: &str) -> Figure {
    let row = comparison.rows.iter().find(|r| r.cell == cell).unwrap();
    row.metrics.get("scaling_efficiency").unwrap().clone()
}

#[test]
fn scaling_is_against_the_smallest_cell_that_is_otherwise_the_same() {
    let same = |_: &mut Job| {};
    let name = |n: &str| format!("nvd/fsdp/llama/{n}");
    let cells = [
        scaled(&name("one"), 1, 16, 12.0, same),
        scaled(&name("two"), 2, 32, 12.5, same),
        scaled(&name("weak"), 8, 128, 13.0, same),
        scaled(&name("strong"), 8, 16, 2.0, same),
        scaled(&name("neither"), 8, 64, 8.0, same),
        scaled(&name("recompute"), 8, 128, 16.0, |job| {
            job.activation_checkpointing = true
        }),
        scaled("nvd/tran/llama/other", 8, 128, 16.0, same),
    ];
    let comparison = compare(&cells, &CompareSettings::default(), &catalogue());
    let of = |n: &str| scaling_of(&comparison, &name(n));
    let is = |n: &str, expected: f64, kind: &str| {
        let Figure::Ok { value, basis } = of(n) else {
            panic!("{n}: {:?}", of(n))
        };
        assert!(
            (value - expected).abs() < 1e-9 && basis.starts_with(kind),
            "{n}: {value} {basis:?}"
        );
        assert!(basis.contains("(nvd/fsdp/llama/one)"), "{basis:?}");
    };
    is("two", 0.96, "weak scaling");
    is("weak", 12.0 / 13.0, "weak scaling");
    is("strong", 0.75, "strong scaling");
    let absent = |figure: Figure, why: &str| {
        let Figure::Absent { reason } = figure else {
            panic!("{why}")
        };
        assert!(reason.text.contains(why), "{reason:?}");
    };
    let reference = |n: &str| {
        let row = comparison.rows.iter().find(|r| r.cell == name(n)).unwrap();
        row.metrics
            .0
            .iter()
            .find(|m| m.name == "scaling_efficiency")
            .unwrap()
            .reference
            .clone()
    };
    assert_eq!(
        (reference("weak"), reference("neither")),
        (Some(name("one")), None)
    );
    absent(of("one"), "has fewer devices");
    absent(
        of("neither"),
        "the batch went from 16 to 64 for 1 → 8 devices: neither",
    );
    absent(of("recompute"), "differs in activation_checkpointing");
    absent(
        scaling_of(&comparison, "nvd/tran/llama/other"),
        "has fewer devices",
    );
}
