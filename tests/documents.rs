//! What documents say is true: commands exist, tables are complete, examples work.

mod support;

use serde_yaml::Value;
use support::{CONFIG, ONE_RUN, Project};

const CI: &str = include_str!("../docs/ci.md");
const RECIPES: &str = include_str!("../docs/recipes.md");

/// The text of the first code block of a language after a heading or sentence.
#[track_caller]
fn block<'a>(page: &'a str, after: &str, language: &str) -> &'a str {
    let rest = page.split_once(after).unwrap_or_else(|| panic!("no `{after}`")).1;
    let code = rest.split_once(&format!("```{language}\n")).expect("a code block").1;
    code.split_once("```").expect("the end of the block").0
}

/// The commands of all `run:` steps, each on one line.
fn commands(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Mapping(map) => {
            for (key, value) in map {
                match (key.as_str(), value.as_str()) {
                    (Some("run"), Some(script)) => {
                        found.extend(script.replace("\\\n", " ").lines().map(|line| line.trim().to_owned()));
                    }
                    _ => commands(value, found),
                }
            }
        }
        Value::Sequence(items) => items.iter().for_each(|item| commands(item, found)),
        _ => {}
    }
}

#[test]
fn the_commands_of_the_workflow_exist() {
    let yaml = CI.split("```yaml\n").nth(1).and_then(|rest| rest.split("\n```").next()).unwrap();
    let mut all = Vec::new();
    commands(&serde_yaml::from_str(yaml).unwrap(), &mut all);
    let plain = CI.split("```\n").nth(1).unwrap().lines().map(|l| l.split('#').next().unwrap().trim().to_owned());
    let mut tprimat: Vec<String> = plain.chain(all).filter(|c| c.starts_with("tprimat ")).collect();
    tprimat.sort();
    tprimat.dedup();
    assert!(tprimat.len() >= 6, "{tprimat:?}");
    let project = Project::empty();
    project.run(&["init"]).ends_with(0);
    for command in &tprimat {
        let words = shlex::split(command).unwrap();
        let help = project.run(&[&words[1], "--help"]).ends_with(0).stdout;
        for option in words.iter().filter(|w| w.starts_with('-')) {
            assert!(
                help.contains(&format!("{option} "))
                    || help.contains(&format!("{option},"))
                    || help.contains(&format!("{option}\n")),
                "{command}: {option}"
            );
        }
        assert!(!words.contains(&"--locked".to_owned()) || words[1] == "build" || words[1] == "plan", "{command}");
    }
}

#[test]
fn the_exit_codes_are_the_programs() {
    use tprimat::error::exit;
    let table = CI.split("## Exit codes").nth(1).unwrap();
    let codes: std::collections::BTreeSet<i32> =
        table.lines().filter_map(|l| l.strip_prefix("| ")?.split(" |").next()?.trim().parse().ok()).collect();
    let known = [
        exit::OK,
        exit::FAILED,
        exit::USAGE,
        exit::REGRESSION,
        exit::NOTHING_SELECTED,
        exit::STALE,
        exit::INCONCLUSIVE,
    ];
    assert_eq!(codes, known.into());
}

/// Paths of the keys of an object schema: `launch.templates`. Keys below a list or a free table are left out.
fn keys(schema: &serde_json::Value, root: &serde_json::Value, prefix: &str, found: &mut Vec<String>) {
    for (name, value) in schema["properties"].as_object().into_iter().flatten() {
        let target = match value["$ref"].as_str() {
            Some(reference) => &root["$defs"][reference.rsplit('/').next().unwrap()],
            None => value,
        };
        if target["properties"].is_object() {
            keys(target, root, &format!("{prefix}{name}."), found);
        } else {
            found.push(format!("{prefix}{name}"));
        }
    }
}

#[test]
fn every_key_of_a_recipe_is_explained() {
    let schema = Project::empty().run(&["schema", "recipe"]).ends_with(0).json();
    let mut found = Vec::new();
    keys(&schema, &schema, "", &mut found);
    assert!(found.contains(&"launch.reads_job".to_owned()), "{found:?}");
    for key in found.into_iter().filter(|key| !key.ends_with(".cpu") && !key.ends_with(".nvd")) {
        let by_vendor = key.strip_suffix(".amd").map(|table| format!("{table}.<vendor>"));
        let key = by_vendor.unwrap_or(key);
        let is_row = |line: &str| line.starts_with(&format!("| `{key}` |")) || line.starts_with(&format!("| `{key}."));
        assert!(RECIPES.lines().any(is_row), "docs/recipes.md has no row for `{key}`");
    }
    for format in tprimat::parse::names() {
        assert!(RECIPES.contains(&format!("`{format}`")), "docs/recipes.md does not name the format `{format}`");
    }
}

#[test]
fn every_variable_of_a_run_is_explained() {
    let project = Project::new(ONE_RUN);
    project.edit("trainer.sh", "job() {", "compgen -e TPRIMAT_ > \"$TPRIMAT_PROJECT_DIR/variables\"\njob() {");
    project.run(&["build"]).ends_with(0);
    let variables = project.read("variables");
    assert!(variables.contains("TPRIMAT_RUN_DIR"), "{variables}");
    for name in variables.lines() {
        assert!(RECIPES.contains(&format!("`{name}`")), "docs/recipes.md does not name ${name}");
    }
}

#[test]
fn the_recipe_of_the_document_works_as_it_stands() {
    let project = Project::empty();
    let matrix = ONE_RUN.replace("\"cmd\"", "\"mine\"");
    project.write("config.yaml", CONFIG).write("matrix.toml", &matrix);
    project.write("recipes/mine/recipe.toml", block(RECIPES, "`recipes/mine/recipe.toml`", "toml"));
    project.write("recipes/mine/mine.sh.j2", block(RECIPES, "`recipes/mine/mine.sh.j2`", "sh"));
    // A stub in the place of the reader's own trainer: it prints the line that the document's pattern reads.
    let trainer = "for step in range(1, 7): print(f'step {step} loss {9 - step}.5 time 0.0{step + 1}', flush=True)\n";
    project.write("recipes/mine/train.py", trainer);
    project.run(&["check"]).ends_with(0);
    // Its pre-flight looks for PyTorch, which is not what this test is about.
    project.edit("recipes/mine/recipe.toml", "python_modules = [\"torch\"]", "");
    project.run(&["build"]).ends_with(0);
    let shown = project.run(&["show", "cpu/mine/tiny/single#1", "--json"]).ends_with(0).json();
    let steps = shown["trace"]["steps"].as_array().cloned().unwrap_or_default();
    let losses: Vec<f64> = steps.iter().filter_map(|step| step["loss"].as_f64()).collect();
    assert_eq!(losses, [8.5, 7.5, 6.5, 5.5, 4.5, 3.5], "{shown}");
}

#[test]
fn a_copied_recipe_stands_alone_under_its_new_name() {
    let project = Project::new(ONE_RUN);
    let listed = project.run(&["recipe", "list", "--json"]).ends_with(0).json();
    assert!(listed.as_array().unwrap().iter().any(|row| row["id"] == "tran" && row["source"] == "shipped"));
    project.run(&["recipe", "copy", "cmd", "--as", "mine"]).ends_with(0);
    assert_eq!(project.names_in("recipes/mine"), ["cmd.sh.j2", "recipe.toml"]);
    project.write("matrix.toml", &ONE_RUN.replace("\"cmd\"", "\"mine\""));
    project.edit("config.yaml", "  cmd:", "  mine:");
    project.run(&["check"]).ends_with(0);
    project.run(&["build"]).ends_with(0);
    project.run(&["recipe", "copy", "cmd", "--as", "mine"]).ends_with(2);
    for wrong in ["../mine", "", "a/b"] {
        project.run(&["recipe", "copy", "cmd", "--as", wrong]).ends_with(2);
    }
    let script = project.run(&["recipe", "show", "mine", "cmd.sh.j2"]).ends_with(0).stdout;
    assert_eq!(script, project.read("recipes/mine/cmd.sh.j2"));
    assert!(project.run(&["recipe", "show", "tram"]).ends_with(2).stderr.contains("did you mean `tran`?"));
    assert!(
        Project::empty().run(&["recipe", "show", "lib", "tprimat_callback.py"]).ends_with(0).stdout.contains("class")
    );
}

/// docs/config.md has every key with its type, default and meaning, as the schema has them.
#[test]
fn the_page_of_keys_is_the_schemas() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/config.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (head, keys) = page.split_once("<!-- keys -->\n").expect("the page has a mark where its keys begin");
    let expected = format!("\n{}", tprimat::config::reference());
    if std::env::var_os("TPRIMAT_WRITE_DOCS").is_some() {
        let text = format!("{head}<!-- keys -->\n{expected}");
        tprimat::files::write_atomically(path.as_ref(), text.as_bytes(), tprimat::files::Durability::Plain).unwrap();
        return;
    }
    let (found, wanted) = (keys.trim_end(), expected.trim_end());
    let line = wanted.lines().zip(found.lines()).find(|(a, b)| a != b);
    assert!(found == wanted, "TPRIMAT_WRITE_DOCS=1 cargo test --test documents writes docs/config.md anew: {line:?}");
}
