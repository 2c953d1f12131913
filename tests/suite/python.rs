//! The Python package of the wheel, on what a build published. Its Python needs pandas (`make test` installs it).

use std::process::Command;

use serde_json::{Value, json};

use crate::support::{ONE_RUN, Project, Ran};

/// What `tprimat.results` has of the output folder, by the given expressions.
fn python(project: &Project, shown: &str) -> Ran {
    let package = concat!(env!("CARGO_MANIFEST_DIR"), "/python");
    let python = std::env::var("TPRIMAT_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let script = format!(
        "import json, sys, tprimat; lazy = 'pandas' not in sys.modules; found = tprimat.results(sys.argv[1]); print(json.dumps({shown}))"
    );
    let mut command = Command::new(python);
    command
        .env("PYTHONPATH", package)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .args(["-c", &script])
        .arg(project.path("output"));
    command.output().unwrap().into()
}

#[test]
fn what_was_published_is_three_frames_with_types() {
    let axis = "[matrix.axes.seed]\npath = \"training.seed\"\nvalues = [3, 4]\n";
    let project = Project::new(&format!("{ONE_RUN}{axis}"));
    // A cell without figures has rows as well.
    let fails = "[[ $seed = 4 ]] && exit 1\nfor step in";
    project.edit("trainer.sh", "for step in", fails);
    project.run(&["build"]).ends_with(1);
    let found = python(
        &project,
        r"{
  'lazy': lazy,
  'cells': json.loads(found.cells[['cell', 'axis_seed', 'state', 'n']].to_json(orient='values')),
  'rate': found.cells.tokens_per_second.dropna().tolist(),
  'repeats': json.loads(found.repeats[['cell', 'repeat', 'state']].to_json(orient='values')),
  'steps': found.steps[found.steps.cell.str.endswith('seed=3')][['repeat', 'step', 'step_time_seconds', 'loss']].astype(float).values.tolist(),
  'types': {name: str(found.cells[name].dtype) for name in ['axis_seed', 'reason', 'mfu', 'identical_config', 'n']},
  'others': [name for frame in (found.cells, found.repeats) for name in frame
             if name not in tprimat.TEXT and str(frame[name].dtype) not in ('Int64', 'Float64', 'boolean')],
}",
    );
    let found: Value = found.ends_with(0).json();
    let compared: Value = serde_json::from_str(&project.read("output/compare.json")).unwrap();
    let [three, four] = [3, 4].map(|seed| format!("cpu/cmd/tiny/single@seed={seed}"));
    assert_eq!(found["lazy"], true);
    assert_eq!(
        found["cells"],
        json!([[three, 3, "ok", 1], [four, 4, "failed", null]])
    );
    assert_eq!(
        found["rate"],
        json!([compared["rows"][0]["tokens_per_second"]])
    );
    assert_eq!(
        found["repeats"],
        json!([[three, 1, "ok"], [four, 1, "failed"]])
    );
    // As the stub printed them.
    let step = |step: u32| {
        json!([
            1,
            step,
            0.03 + 0.001 * f64::from(step),
            9.5 - f64::from(step)
        ])
    };
    let steps: Vec<Value> = found["steps"].as_array().unwrap().clone();
    assert_eq!(steps.len(), 6);
    for (own, number) in steps.iter().zip(1..) {
        let printed = step(number);
        for (a, b) in own
            .as_array()
            .unwrap()
            .iter()
            .zip(printed.as_array().unwrap())
        {
            assert!(
                (a.as_f64().unwrap() - b.as_f64().unwrap()).abs() < 1e-9,
                "{own} {printed}"
            );
        }
    }
    let types = json!({
        "axis_seed": "Int64", "reason": "string", "mfu": "Float64", "identical_config": "boolean", "n": "Int64",
    });
    assert_eq!(found["types"], types);
    assert_eq!(
        found["others"],
        json!([]),
        "a new column of text belongs into TEXT"
    );
}

#[test]
fn a_folder_without_results_and_one_of_earlier_results_say_so() {
    let project = Project::new(ONE_RUN);
    let none = python(&project, "1").ends_with(1);
    assert!(none.stderr.contains("has no compare.csv"), "{none:?}");
    project.run(&["build"]).ends_with(0);
    project.edit("trainer.sh", "for step in", "exit 1\nfor step in");
    project.run(&["build"]).ends_with(1);
    let earlier = python(&project, "len(found.cells)").ends_with(0);
    assert!(
        earlier
            .stderr
            .contains("figures here are of an earlier build"),
        "{earlier:?}"
    );
}
