//! What documents say is true: commands exist, tables are complete, examples work.

mod ci;

use crate::support::{ONE_RUN, Project};
use serde_yaml::Value;

const CI: &str = include_str!("../../docs/ci.md");

const RECIPES: &str = include_str!("../../docs/recipes.md");

/// The text of the first code block of a language after a heading or sentence.
#[track_caller]
fn block<'a>(page: &'a str, after: &str, language: &str) -> &'a str {
    let rest = page
        .split_once(after)
        .unwrap_or_else(|| panic!("no `{after}`"))
        .1;
    let code = rest
        .split_once(&format!("```{language}\n"))
        .expect("a code block")
        .1;
    code.split_once("```").expect("the end of the block").0
}

/// Paths of the keys of an object schema: `launch.templates`. Keys below a list or a free table are
/// left out.
fn keys(
    schema: &serde_json::Value,
    root: &serde_json::Value,
    prefix: &str,
    found: &mut Vec<String>,
) {
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
    let schema = Project::empty()
        .run(&["print", "schema", "recipe"])
        .ends_with(0)
        .json();
    let mut found = Vec::new();
    keys(&schema, &schema, "", &mut found);
    assert!(found.contains(&"launch.reads_job".to_owned()), "{found:?}");
    for key in found
        .into_iter()
        .filter(|key| !key.ends_with(".cpu") && !key.ends_with(".nvd"))
    {
        let by_vendor = key
            .strip_suffix(".amd")
            .map(|table| format!("{table}.<vendor>"));
        let key = by_vendor.unwrap_or(key);
        let is_row = |line: &str| {
            line.starts_with(&format!("- `{key}`")) || line.starts_with(&format!("- `{key}."))
        };
        assert!(
            RECIPES.lines().any(is_row),
            "docs/recipes.md has no row for `{key}`"
        );
    }
    for format in tprimat::logs::names() {
        assert!(
            RECIPES.contains(&format!("`{format}`")),
            "docs/recipes.md does not name the format `{format}`"
        );
    }
}

#[test]
fn every_variable_of_a_run_is_explained() {
    let project = Project::new(ONE_RUN);
    project.edit(
        "trainer.sh",
        "job() {",
        "compgen -e TPRIMAT_ > \"$TPRIMAT_PROJECT_DIR/variables\"\njob() {",
    );
    project.run(&["build"]).ends_with(0);
    let variables = project.read("variables");
    assert!(variables.contains("TPRIMAT_RUN_DIR"), "{variables}");
    for name in variables.lines() {
        assert!(
            RECIPES.contains(&format!("`{name}`")),
            "docs/recipes.md does not name ${name}"
        );
    }
}

#[test]
fn the_events_of_the_document_are_read_as_they_stand() {
    let project = Project::empty();
    project.write(
        "e.log",
        block(RECIPES, "needs no more than `echo`", "jsonl"),
    );
    let trace = project
        .run(&["parse", "e.log", "--json"])
        .ends_with(0)
        .json();
    assert_eq!(trace["steps"].as_array().unwrap().len(), 2, "{trace}");
    assert_eq!(trace["steps"][1]["step_time_seconds"], 0.479);
    assert_eq!(trace["effective"]["global_batch_size"], 8);
}

/// The quarter of an hour, as it is told: from an empty folder, with nothing but the binary.
#[test]
fn the_recipe_of_the_document_works_as_it_stands() {
    let project = Project::empty();
    project
        .run(&["init", "--example", "amd-vs-nvidia"])
        .ends_with(0);
    project.write(
        "recipes/mine/recipe.toml",
        block(RECIPES, "`recipes/mine/recipe.toml`", "toml"),
    );
    project.write(
        "recipes/mine/mine.sh.j2",
        block(RECIPES, "`recipes/mine/mine.sh.j2`", "sh"),
    );
    // A stub in the place of the reader's own trainer: it prints the line that the document's
    // pattern reads.
    let trainer = "import time\nfor step in range(1, 61):\n    time.sleep(0.01)\n    print(f'step {step} loss {9 - step / 10:.1f} time 0.0102', flush=True)\n";
    project.write("recipes/mine/train.py", trainer);
    let quickstart = project.read("pipelines/quickstart.toml");
    let mine = quickstart
        .replace("\"quickstart\"", "\"mine\"")
        .replace(r#"["native", "tran"]"#, r#"["mine"]"#);
    project.write("pipelines/mine.toml", &mine);
    project.run(&["check", "mine.toml"]).ends_with(0);
    let rendered = project
        .run(&["show", "--launch", "cpu/mine/llama-tiny", "mine.toml"])
        .ends_with(0)
        .stdout;
    assert!(rendered.contains("--length 128"), "{rendered}");
    // Its pre-flight looks for PyTorch, which is not what this test is about.
    project.edit(
        "recipes/mine/recipe.toml",
        "python_modules = [\"torch\"]",
        "",
    );
    project
        .run(&[
            "build",
            "mine.toml",
            "--only",
            "cpu/mine/llama-tiny",
            "--repeats",
            "1",
        ])
        .ends_with(0);
    let shown = project
        .run(&[
            "show",
            "cpu/mine/llama-tiny/single#1",
            "mine.toml",
            "--json",
        ])
        .ends_with(0)
        .json();
    let steps = shown["trace"]["steps"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let losses: Vec<f64> = steps
        .iter()
        .filter_map(|step| step["loss"].as_f64())
        .collect();
    assert!(
        losses.len() == 60 && losses[..2] == [8.9, 8.8],
        "{losses:?}"
    );
}

#[test]
fn a_copied_recipe_stands_alone_under_its_new_name() {
    let project = Project::new(ONE_RUN);
    let listed = project
        .run(&["recipe", "list", "--json"])
        .ends_with(0)
        .json();
    assert!(
        listed["recipes"]
            .as_array()
            .unwrap()
            .iter()
            .any(|row| row["id"] == "tran" && row["source"] == "shipped")
    );
    project
        .run(&["recipe", "copy", "cmd", "--as", "mine"])
        .ends_with(0);
    assert_eq!(
        project.names_in("recipes/mine"),
        ["cmd.sh.j2", "recipe.toml"]
    );
    project.write("matrix.toml", &ONE_RUN.replace("\"cmd\"", "\"mine\""));
    project.edit("config.yaml", "  cmd:", "  mine:");
    project.run(&["check"]).ends_with(0);
    project.run(&["build"]).ends_with(0);
    project
        .run(&["recipe", "copy", "cmd", "--as", "mine"])
        .ends_with(2);
    for wrong in ["../mine", "", "a/b"] {
        project
            .run(&["recipe", "copy", "cmd", "--as", wrong])
            .ends_with(2);
    }
    // What a copy keeps in memory is still known; the long names stay with the shipped recipe.
    project
        .run(&["recipe", "copy", "tran", "--as", "ours"])
        .ends_with(0);
    let ours = project.read("recipes/ours/recipe.toml");
    assert!(ours.contains("[memory]") && !ours.contains("aliases"));
    project.run(&["check"]).ends_with(0);
    let script = project
        .run(&["recipe", "show", "mine", "cmd.sh.j2"])
        .ends_with(0)
        .stdout;
    assert_eq!(script, project.read("recipes/mine/cmd.sh.j2"));
    assert!(
        project
            .run(&["recipe", "show", "tram"])
            .ends_with(2)
            .stderr
            .contains("did you mean `tran`?")
    );
    assert!(
        Project::empty()
            .run(&["recipe", "show", "lib", "tprimat_callback.py"])
            .ends_with(0)
            .stdout
            .contains("class")
    );
}

/// docs/config.md has every key with its type, default and meaning, as the schema has them.
#[test]
fn the_page_of_keys_is_the_schemas() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/config.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (head, keys) = page
        .split_once("<!-- keys -->\n")
        .expect("the page has a mark where its keys begin");
    let expected = format!("\n{}", crate::page_of_keys::page_of_keys());
    if std::env::var_os("TPRIMAT_WRITE_DOCS").is_some() {
        let text = format!("{head}<!-- keys -->\n{expected}");
        tprimat::files::write_atomically(
            path.as_ref(),
            text.as_bytes(),
            tprimat::files::Durability::Plain,
        )
        .unwrap();
        return;
    }
    let (found, wanted) = (keys.trim_end(), expected.trim_end());
    let line = wanted.lines().zip(found.lines()).find(|(a, b)| a != b);
    assert!(
        found == wanted,
        "TPRIMAT_WRITE_DOCS=1 cargo test --test suite documents writes docs/config.md anew: {line:?}"
    );
}

/// `schemas/` of the repository is what `init` writes into a project, and each shipped file that
/// people edit names its schema for their editor.
#[test]
fn editors_find_the_schemas_of_shipped_files() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let project = Project::empty();
    project
        .run(&["init", "--example", "amd-vs-nvidia"])
        .ends_with(0);
    for name in ["config", "matrix", "recipe"] {
        let schema = project.run(&["print", "schema", name]).ends_with(0).stdout;
        let file = format!("schemas/{name}.json");
        assert_eq!(project.read(&file), schema);
        // config.yaml may say `DP`, and a validator knows it only as a key of its own.
        assert!(name != "config" || schema.contains("\"DP\": {"));
        let committed = root.join(&file);
        // The matrix's is written by hand, and ships as it is.
        if std::env::var_os("TPRIMAT_WRITE_DOCS").is_some() && name != "matrix" {
            let durability = tprimat::files::Durability::Plain;
            tprimat::files::write_atomically(&committed, schema.as_bytes(), durability).unwrap();
        }
        assert!(
            std::fs::read_to_string(&committed).unwrap_or_default() == schema,
            "TPRIMAT_WRITE_DOCS=1 cargo test --test suite editors writes {file} anew"
        );
    }
    let first_line = |path: &std::path::Path| {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().next().unwrap().to_owned()
    };
    let files_in = |folder: &str| {
        let entries = std::fs::read_dir(root.join(folder)).unwrap();
        entries.map(|entry| entry.unwrap().path())
    };
    assert_eq!(
        first_line(&root.join("config.yaml")),
        "# yaml-language-server: $schema=schemas/config.json"
    );
    for matrix in files_in("pipelines") {
        assert_eq!(first_line(&matrix), "#:schema ../schemas/matrix.json");
    }
    for recipe in files_in("recipes").map(|folder| folder.join("recipe.toml")) {
        if recipe.exists() {
            assert_eq!(first_line(&recipe), "#:schema ../../schemas/recipe.json");
        }
    }
}

/// The pages that people read, without the one that is made from the schema.
pub(crate) fn pages() -> Vec<(String, String)> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = vec![
        root.join("README.md"),
        root.join("MIGRATING.md"),
        root.join("ARCHITECTURE.md"),
    ];
    for folder in ["docs", "docs/design"] {
        let entries = std::fs::read_dir(root.join(folder)).unwrap();
        files.extend(entries.map(|entry| entry.unwrap().path()));
    }
    files
        .retain(|path| path.extension().is_some_and(|e| e == "md") && !path.ends_with("config.md"));
    let named = |path: std::path::PathBuf| {
        (
            path.display().to_string(),
            std::fs::read_to_string(&path).unwrap(),
        )
    };
    files.into_iter().map(named).collect()
}

/// What stands between single backticks, outside of code blocks.
pub(crate) fn code_of(page: &str) -> Vec<String> {
    let prose: Vec<&str> = page.split("```").step_by(2).collect();
    prose
        .join("")
        .split('`')
        .skip(1)
        .step_by(2)
        .map(|code| code.replace('\n', " "))
        .collect()
}

pub(crate) fn files_below(folder: &std::path::Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
    {
        if entry.is_dir() {
            files_below(&entry, found)
        } else {
            found.push(entry)
        }
    }
}

/// Paths from the root must exist, and a source file may be named by the end of its path. `mine` is
/// what a reader is about to make.
#[test]
fn files_named_in_documents_exist() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut sources = Vec::new();
    for folder in ["src", "crates", "tests", "benches", "fuzz"] {
        files_below(&root.join(folder), &mut sources);
    }
    let mut pages = pages();
    let contributing = std::fs::read_to_string(root.join("CONTRIBUTING.md")).unwrap();
    pages.push(("CONTRIBUTING.md".to_owned(), contributing));
    let (mut seen, mut absent) = (0, Vec::new());
    for (page, text) in &pages {
        for word in code_of(text) {
            let is_plain = word
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c));
            let parts: Vec<&str> = word.split('/').collect();
            if !is_plain || parts.iter().any(|part| part.starts_with("mine")) {
                continue;
            }
            let is_ours = parts.len() > 1
                && ["src", "crates", "tests", "docs", "benches", "fuzz"].contains(&parts[0]);
            if is_ours || word.ends_with(".rs") {
                seen += 1;
                if !root.join(&word).exists() && !sources.iter().any(|file| file.ends_with(&word)) {
                    absent.push(format!("{page}: {word}"));
                }
            }
        }
    }
    assert!(seen > 50, "{seen} paths");
    assert!(absent.is_empty(), "{absent:#?}");
}

/// ARCHITECTURE.md: each step of a cell's path is a function of the file that the step names.
#[test]
fn functions_on_the_path_of_a_cell_exist() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let steps: Vec<_> = code_of(&text)
        .into_iter()
        .filter(|code| code.contains(".rs::"))
        .collect();
    assert!(steps.len() > 8, "{steps:?}");
    for step in &steps {
        let (file, function) = step.split_once("::").unwrap();
        let source = std::fs::read_to_string(root.join("src").join(file));
        let source = source.unwrap_or_else(|e| panic!("{step}: {e}"));
        let mut declared = ["(", "<"]
            .map(|next| format!("fn {function}{next}"))
            .into_iter();
        assert!(declared.any(|words| source.contains(&words)), "{step}");
    }
}

/// docs/matrix.md: its example makes the cells that it lists, and every key has a row.
#[test]
fn the_matrix_file_is_as_its_page_says() {
    let page = include_str!("../../docs/matrix.md");
    let project = Project::empty();
    project
        .run(&["init", "--example", "amd-vs-nvidia"])
        .ends_with(0);
    let study = block(page, "## A whole one", "toml");
    project.write("pipelines/study.toml", study);
    let listed = project.run(&["list", "study"]).ends_with(0).stdout;
    let cells = page.split("```\n").find(|code| code.starts_with("nvd/"));
    assert_eq!(listed, cells.unwrap());
    let plan = project.run(&["plan", "study"]).ends_with(0).stdout;
    assert!(plan.contains("measured in another study"), "{plan}");
    let cell = "nvd/tran/llama/single@compile=true";
    let job = project
        .run(&["show", "--launch", cell, "study", "--json"])
        .ends_with(0);
    assert_eq!(job.json()["job"]["data"]["micro_batch_size"], 2);
    let longer = block(page, "Longer ones read better", "toml");
    project.write("pipelines/study.toml", &format!("{study}\n{longer}"));
    let job = project
        .run(&["show", "--launch", cell, "study", "--json"])
        .ends_with(0);
    assert_eq!(job.json()["job"]["data"]["micro_batch_size"], 4);

    let odd = "zzzzzzzzzzzz = 1\n";
    for (table, heading) in [
        ("[matrix]", "[matrix]"),
        ("[matrix.axes.compile]", "[matrix.axes.NAME]"),
        ("[[override]]", "[[override]]"),
        ("[[exclude]]", "[[exclude]]"),
    ] {
        let text = study.replacen(table, &format!("{table}\n{odd}"), 1);
        project.write("pipelines/study.toml", &text);
        let told = project.run(&["check", "study"]).ends_with(2).stderr;
        let told = told.split_whitespace().collect::<Vec<_>>().join(" ");
        let keys = told.split("help: known: ").nth(1).unwrap();
        let section = page.split(&format!("## `{heading}`")).nth(1).unwrap();
        let section = section.split("\n## ").next().unwrap();
        for key in keys.split(", ") {
            let key = key.split_whitespace().next().unwrap();
            assert!(
                section.contains(&format!("| `{key}` |")),
                "{heading}: {key}"
            );
        }
    }
}
