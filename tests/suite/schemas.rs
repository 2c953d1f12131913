//! What tprimat prints and publishes as JSON is valid against the schemas that it prints itself.

use boon::{Compiler, Schemas};
use serde_json::Value;

use crate::support::{ONE_RUN, Project, TRAINER};

const CELL: &str = "cpu/cmd/tiny/single@seq_length=16";
const FAILED: &str = "cpu/cmd/tiny/single@seq_length=128";

/// Three lengths with figures and one that runs out of memory, three repeats each.
fn project() -> Project {
    let axis = "\n[matrix.axes.seq_length]\npath = \"training.data.seq_length\"\nvalues = [16, 32, 64, 128]\n";
    let project = Project::new(&(ONE_RUN.replace("repeats = 1", "repeats = 3") + axis));
    let seed = "seed=$(job seed)";
    let fails = "[[ $(job seq_length) == 128 ]] && { echo 'CUDA out of memory'; exit 1; }";
    let tokens = "\"tokens\":'$((2 * $(job seq_length)))'}'";
    let trainer = TRAINER.replace(seed, &format!("{fails}\n{seed}"));
    let trainer = trainer.replace("\"tokens\":32}'", tokens);
    assert!(
        trainer.contains(fails) && trainer.contains(tokens),
        "{trainer}"
    );
    project.write("trainer.sh", &trainer);
    project
}

/// Why the document is not valid against `tprimat print schema NAME`; nothing where it is.
fn fault(project: &Project, name: &str, document: &Value) -> Option<String> {
    let schema = project.run(&["print", "schema", name]).ends_with(0).json();
    let (mut compiler, mut schemas) = (Compiler::new(), Schemas::new());
    compiler.add_resource("schema.json", schema).unwrap();
    let compiled = compiler.compile("schema.json", &mut schemas).unwrap();
    let error = schemas.validate(document, compiled).err()?;
    Some(format!("{error:#}"))
}

#[test]
fn every_json_is_valid_against_the_schema_of_its_name() {
    let project = project();
    project.run(&["build"]).ends_with(1);
    project
        .run(&["gate", "--write", "baseline.json"])
        .ends_with(0);
    let event_log = "{\"event\":\"start\",\"schema\":\"tprimat.events/1\",\"trainer\":\"stub\",\"effective\":{}}\n\
        {\"event\":\"step\",\"step\":1,\"step_time_seconds\":0.5,\"loss\":8.5,\"tokens\":32}\n";
    project.write("a.log", event_log);
    let gate = [
        "gate",
        "--baseline",
        "baseline.json",
        "--max-regression",
        "3%",
    ];
    let printed: [(&str, &[&str]); 11] = [
        ("comparison", &["compare"]),
        ("comparison", &["compare", CELL, FAILED]),
        ("summary", &["show", CELL]),
        ("result", &["show", "cpu/cmd/tiny/single@seq_length=16#1"]),
        ("history", &["history"]),
        ("history", &["history", CELL]),
        ("baseline", &["gate", "--write", "-"]),
        ("gate", &gate),
        ("fit", &["fit"]),
        ("fit", &["fit", CELL]),
        ("trace", &["parse", "a.log"]),
    ];
    let mut documents: Vec<(String, &str, Value)> = Vec::new();
    for (schema, arguments) in printed {
        let ran = project.run(&[arguments, &["--json"]].concat());
        documents.push((arguments.join(" "), schema, ran.json()));
    }
    let published = ["output/compare.json", "baseline.json"];
    for (file, schema) in published.into_iter().zip(["comparison", "baseline"]) {
        let text = project.read(file);
        documents.push((
            file.to_owned(),
            schema,
            serde_json::from_str(&text).unwrap(),
        ));
    }
    let mut config: serde_yaml::Value = serde_yaml::from_str(&project.read("config.yaml")).unwrap();
    config.apply_merge().unwrap();
    let config = serde_json::to_value(config).unwrap();
    documents.push(("config.yaml".to_owned(), "config", config));
    let matrix = toml::from_str(&project.read("matrix.toml")).unwrap();
    documents.push(("matrix.toml".to_owned(), "matrix", matrix));
    for line in event_log.lines() {
        let event = serde_json::from_str(line).unwrap();
        documents.push((line.to_owned(), "events", event));
    }
    let faults = documents.iter().filter_map(|(name, schema, document)| {
        let fault = fault(&project, schema, document)?;
        Some(format!("{name}: {fault}"))
    });
    let faults: Vec<String> = faults.collect();
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
}

/// Of thousands of cells, what each one's own file has would be most of the comparison.
#[test]
fn the_published_comparison_leaves_to_each_cells_file_what_that_has() {
    let project = project();
    project.run(&["build"]).ends_with(1);
    let text = project.read("output/compare.json");
    let published: Value = serde_json::from_str(&text).unwrap();
    let whole = project.run(&["compare", "--json"]).json();
    let rows = |of: &Value| of["rows"].as_array().unwrap().clone();
    assert!(!rows(&published).is_empty());
    for (short, whole) in rows(&published).iter().zip(rows(&whole)) {
        let (short, whole) = (short.as_object().unwrap(), whole.as_object().unwrap());
        for (member, value) in whole {
            match member.as_str() {
                "contract" | "attested" | "repeats" | "metrics" | "unlisted" | "declared_only" => {
                    assert!(!short.contains_key(member), "{member}");
                }
                _ => assert_eq!(short.get(member), Some(value), "{member}"),
            }
        }
    }
    for member in ["groups", "speedups", "differences", "absent"] {
        assert_eq!(published[member], whole[member], "{member}");
    }
}

/// A number of a group means the same in every file.
#[test]
fn a_group_has_one_number_in_json_and_csv() {
    let project = project();
    project.run(&["build"]).ends_with(1);
    let comparison: Value = serde_json::from_str(&project.read("output/compare.json")).unwrap();
    // The first columns of a run's row: cell, group, labels, loss_group.
    let text = project.read("output/compare_repeats.csv");
    assert!(text.starts_with("cell,group,labels,loss_group,"), "{text}");
    for row in comparison["rows"].as_array().unwrap() {
        let is_its = |line: &&str| Some(line.split(',').next().unwrap()) == row["cell"].as_str();
        let line: Vec<&str> = text.lines().find(is_its).unwrap().split(',').collect();
        assert_eq!(line[1], row["group"].to_string(), "{row}");
        assert_eq!(line[3], row["loss_group"].to_string(), "{row}");
        let number = usize::try_from(row["group"].as_u64().unwrap()).unwrap();
        let cells = &comparison["groups"][number - 1]["cells"];
        assert!(cells.as_array().unwrap().contains(&row["cell"]), "{row}");
    }
}
