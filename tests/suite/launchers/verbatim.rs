//! Any string of a job reaches the trainer as it was written, whatever a shell or a config reader
//! would make of it.

use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};
use tprimat::{job::Job, recipe::Recipe};

use super::render::{PLAN, Stage, cell, ended_well, python, render};

/// Prints its arguments, each ended by a NUL.
const PRINTER: &str = "#!/bin/bash\nprintf '%s\\0' \"$0\" \"$@\"\n";

/// Strings that shells, YAML readers and careless scripts trip over.
const TRAPS: &[&str] = &[
    "two words",
    " leading and trailing ",
    "it's \"quoted\"",
    "$(touch pwned) `touch pwned` ${HOME} $HOME",
    "line\nbreak\ttab\r",
    "Zürich 東京 🚀 \u{85}\u{2028}\u{feff}",
    "-n",
    "*?[a-z]~!{1,2}",
    "a;b&c|d>e<f#g\\h",
    "null",
    "1e5",
    "%s%n",
    "",
];

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => proptest::sample::select(TRAPS).prop_map(str::to_owned),
        1 => "[^\0]{0,30}",
    ]
}

/// The strings of a job, by dotted path.
fn strings(value: &Value, path: &str, found: &mut Vec<(String, String)>) {
    match value {
        Value::String(text) => found.push((path.to_owned(), text.clone())),
        Value::Object(fields) => fields
            .iter()
            .for_each(|(name, value)| strings(value, &format!("{path}.{name}"), found)),
        _ => {}
    }
}

/// Fills every string field that may hold any text.
fn filled(job: &Job, texts: &[String; 4]) -> Job {
    let mut job = job.clone();
    let [a, b, c, d] = texts.clone();
    (job.model.dataset, job.model.tokenizer) = (Some(a), Some(b));
    (job.model.nemo_recipe, job.model.primus_config) = (Some(c), Some(d));
    job.parallelism.sharding.clone_from(&texts[0]);
    job.compile_mode.clone_from(&texts[1]);
    job
}

/// Runs the launcher with a printer in place of every trainer; what the printers said.
fn printed(recipe: &Recipe, job: &Job) -> String {
    let mut stage = Stage::new(recipe, job);
    for name in [
        "python3",
        "torchrun",
        "tprimat-native",
        "deepspeed",
        "trainer",
    ] {
        stage.program(name, PRINTER);
    }
    for checkout in &recipe.file.require.checkouts {
        let folder = stage.path("checkout");
        let file = folder.join(&checkout.file);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "printf '%s\\0' \"$0\" \"$@\"\n").unwrap();
        stage.set(&checkout.variable, folder.to_str().unwrap());
    }
    stage.set("TPRIMAT_DATASET", "/data/c4");
    if recipe.file.id == "prim" {
        let arguments =
            stage.path("checkout/third_party/Megatron-LM/megatron/training/arguments.py");
        std::fs::create_dir_all(arguments.parent().unwrap()).unwrap();
        std::fs::write(arguments, "").unwrap();
    }
    if recipe.file.id == "native" {
        // The script asks a real interpreter where libtorch is.
        stage.program("python3", "#!/bin/sh\necho /lib\n");
    }
    let said = ended_well(&stage.run(recipe));
    let made: Vec<_> = walk(&stage.path(""))
        .into_iter()
        .filter(|p| p.contains("pwned"))
        .collect();
    assert!(made.is_empty(), "a string was executed: {made:?}");
    said
}

fn walk(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap().flatten();
    entries
        .flat_map(|e| {
            if e.path().is_dir() {
                walk(&e.path())
            } else {
                vec![e.path().display().to_string()]
            }
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// The words of a user's own command arrive as they are, as a list and as a text for bash.
    #[test]
    fn words_of_a_command_arrive_verbatim(words in prop::collection::vec(text(), 1..5)) {
        let recipe = &PLAN.recipes.recipes["cmd"];
        let mut job = Job::default();
        let mut command = vec!["trainer".to_owned()];
        command.extend(words.clone());
        job.framework.insert("command".into(), json!(command));
        let said = printed(recipe, &job);
        let arrived: Vec<&str> = said.split('\0').skip(1).collect();
        prop_assert_eq!(&arrived[..words.len()], &words[..]);

        let quoted: Vec<_> = command.iter().map(|w| shlex::try_quote(w).unwrap()).collect();
        job.framework.insert("command".into(), json!(quoted.join(" ")));
        let said = printed(recipe, &job);
        let arrived: Vec<&str> = said.split('\0').skip(1).collect();
        prop_assert_eq!(&arrived[..words.len()], &words[..]);
    }

    /// Whatever the job's strings are, a launcher runs what it is to run and nothing else; a
    /// template may only refuse.
    #[test]
    fn strings_of_a_job_are_never_executed(texts in [text(), text(), text(), text()]) {
        for prefix in ["amd/prim", "amd/mgds", "nvd/nemo", "amd/tran"] {
            let (recipe, job) = cell(prefix);
            let job = filled(&job, &texts);
            if render(recipe, &job).is_ok() {
                printed(recipe, &job);
            }
        }
    }
}

/// What the templates write, read back by a YAML 1.1 reader and by a trainer that reads the job.
#[test]
fn traps_reach_primus_and_the_job_file_verbatim() {
    let (recipe, job) = cell("amd/prim");
    for trap in TRAPS.iter().filter(|t| !t.is_empty()) {
        let mut job = job.clone();
        job.framework.insert("model".into(), json!(trap));
        job.framework.insert(
            "overrides".into(),
            json!({ "wandb_project": trap, "enable_primus_turbo": [trap] }),
        );
        let is_refused = trap.contains("${");
        let rendered = render(recipe, &job);
        assert_eq!(rendered.is_err(), is_refused, "{trap:?}");
        if is_refused {
            continue;
        }
        let stage = Stage::new(recipe, &job);
        let script = "import json, sys, yaml; print(json.dumps(yaml.safe_load(open(sys.argv[1], encoding='utf-8'))))";
        let yaml = stage.path("run/primus.yaml");
        let output = std::process::Command::new(python())
            .args(["-c", script])
            .arg(yaml)
            .output()
            .unwrap();
        let read: Value = serde_json::from_str(&ended_well(&output)).unwrap();
        let trainer = &read["modules"]["pre_trainer"];
        assert_eq!(trainer["model"], *trap);
        assert_eq!(trainer["overrides"]["wandb_project"], *trap);
        assert_eq!(trainer["overrides"]["enable_primus_turbo"], json!([trap]));
    }
    let (recipe, job) = cell("nvd/nemo");
    let job = filled(&job, &["a b", "$(x)", "'\"", "東\n京"].map(str::to_owned));
    let stage = Stage::new(recipe, &job);
    let read: Value =
        serde_json::from_slice(&std::fs::read(stage.path("run/job.json")).unwrap()).unwrap();
    let (mut wanted, mut found) = (Vec::new(), Vec::new());
    strings(&serde_json::to_value(&job).unwrap(), "", &mut wanted);
    strings(&read, "", &mut found);
    assert_eq!(wanted, found);
}
