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
    let by_option = ["why", "--trace", "quick.json", "--trace", "slow.json"];
    let by_option = project.run(&by_option).ends_with(0);
    assert_eq!(by_option.stdout, told.stdout);
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

/// What the profiler adds is in some part, and nobody knows in which.
#[test]
fn parts_that_the_profilers_own_time_may_be_in_are_those_of_profiled_steps() {
    let axis = "\n[matrix.axes.SEED]\npath = \"training.seed\"\nvalues = [1, 2]\n";
    let project = Project::new(&(ONE_RUN.to_owned() + axis));
    let built = project.json(&["build"]);
    let output = built["output"].as_str().unwrap();
    let [a, b] = [1, 2].map(|seed| format!("cpu/cmd/tiny/single@SEED={seed}"));
    let told = |[of_a, of_b]: [u64; 2]| {
        // The stub takes 14 and 24 ms a step.
        for (seed, attention) in [(1, of_a), (2, of_b)] {
            let name = format!("{output}/profile_cpu_cmd_tiny_single_SEED-{seed}.json");
            std::fs::write(name, trace(2_000, attention)).unwrap();
        }
        let told = project.run(&["why", &a, &b]).ends_with(0).stdout;
        told.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let near = told([12_000, 22_000]);
    assert!(near.contains("): attention +10.0"), "{near}");
    assert!(near.contains("step, measured"), "{near}");
    let far = told([40_000, 52_000]);
    assert!(
        far.contains("known of profiled steps alone")
            && far.contains("takes 12.0 ms more: attention +12.0"),
        "{far}"
    );
}

/// Three steps of products on one stream and a collective on another, each from and for so many microseconds,
/// and in the last one `more` of the products.
fn overlap(product: u64, [from, lasts]: [u64; 2], more: u64) -> String {
    let step = product.max(from + lasts) + 1000;
    let of_step = |n: u64| {
        let at = n * step;
        let product = product + if n == 2 { more } else { 0 };
        let event = |cat: &str, name: &str, ts: u64, dur: u64| json!({"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": {"device": 0}});
        [
            event(
                "user_annotation",
                &format!("ProfilerStep#{n}"),
                at,
                step.max(product),
            ),
            event("kernel", "nvjet_tst_128x256", at, product),
            event(
                "kernel",
                "ncclDevKernel_AllReduce_Sum_bf16",
                at + from,
                lasts,
            ),
        ]
    };
    let events: Vec<_> = (0..3).flat_map(of_step).collect();
    json!({ "traceEvents": events }).to_string()
}

/// Beside a collective the products take longer. One step was disturbed, which is of no part.
#[test]
fn an_overlap_that_is_lost_is_exposed_exchange_and_no_faster_kernel() {
    let project = Project::new(ONE_RUN);
    project
        .write("hidden.json", &overlap(110_000, [40_000, 50_000], 0))
        .write("exposed.json", &overlap(90_000, [90_000, 45_000], 300_000));
    let told = project
        .run(&["why", "hidden.json", "exposed.json"])
        .ends_with(0);
    let told = told.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "takes 25.0 ms more",
        "exchange, exposed +45.0 (45.0 ms of it is hidden behind what computes in hidden)",
        "matrix products −20.0 (in hidden, 50.0 ms more of it shares the device with exchange)",
        "exposed: the median of 3 profiled steps, which took 136.0 to 390.0 ms",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
}

/// Two steps of a product and an attention, as both vendors' tables have them; rocprofv3's copies lie beside.
#[test]
fn tables_of_nsys_and_rocprofv3_are_divided_and_held_against_each_other() {
    let project = Project::new(ONE_RUN);
    let kernels = [
        ("nvjet_tst_128x256", 0, 70),
        ("flash_fwd_kernel", 70, 20),
        ("nvjet_tst_128x256", 100, 70),
        ("flash_fwd_kernel", 170, 30),
    ];
    let mut nsys = "Start (ns),Duration (ns),CorrId,Device,Strm,Name\n".to_owned();
    let mut rocprof =
        "\"Kind\",\"Agent_Id\",\"Kernel_Name\",\"Start_Timestamp\",\"End_Timestamp\"\n".to_owned();
    for (name, millis, lasts) in kernels {
        let (start, lasts) = (millis * 1_000_000, lasts * 1_000_000);
        nsys += &format!("{start},{lasts},1,NVIDIA H200 (0),7,{name}\n");
        rocprof += &format!(
            "\"KERNEL_DISPATCH\",\"Agent 4\",\"{name}\",{start},{}\n",
            start + lasts
        );
    }
    let copies = "\"Kind\",\"Direction\",\"Start_Timestamp\",\"End_Timestamp\"\n\
        \"MEMORY_COPY\",\"HOST_TO_DEVICE\",92000000,98000000\n";
    project
        .write("nsys.csv", &nsys)
        .write("7_kernel_trace.csv", &rocprof)
        .write("7_memory_copy_trace.csv", copies);
    let two = ["why", "nsys.csv", "7_kernel_trace.csv"];
    let unmarked = project.run(&two).ends_with(2).stderr;
    assert!(unmarked.contains("--steps N"), "{unmarked}");
    let told = project.json(&[&two[..], &["--steps", "2"]].concat());
    let millis = |table: usize, part: &str| {
        let found = &told["breakdowns"][table]["breakdown"];
        let parts = found["parts"].as_array().unwrap();
        let part = parts.iter().find(|of| of["part"] == part).unwrap();
        (part["seconds"].as_f64().unwrap() * 1e3).round()
    };
    for (table, copies, idle) in [(0, 0.0, 5.0), (1, 3.0, 2.0)] {
        let parts = ["matrix_products", "attention", "copies", "idle"];
        let found = parts.map(|part| millis(table, part));
        assert_eq!(found, [70.0, 25.0, copies, idle]);
    }
}

#[test]
fn what_is_no_trace_and_a_cell_without_one_are_told_with_what_makes_one() {
    let project = Project::new(ONE_RUN);
    project.write("train.log", "step 3 loss 2.5\n");
    let no_trace = project.run(&["why", "train.log"]).ends_with(2).stderr;
    assert!(
        no_trace.contains("neither one of PyTorch's profiler"),
        "{no_trace}"
    );
    let cell = project
        .run(&["why", "cpu/cmd/tiny/single"])
        .ends_with(1)
        .stderr;
    assert!(cell.contains("experiment.profiling=torch"), "{cell}");
}
