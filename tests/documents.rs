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

/// Constructions over which readers stumble, and what to say instead.
const STUMBLES: [(&str, &str); 11] = [
    (r"\b(\w+) (?:is|are|was|were) no (\w+)", "\"is not a …\""),
    (r"\bso many\b", "the number"),
    (r"\b(?:[Ss]uch)\b", "name the thing"),
    (r"\bof nobody\b", "\"nobody's\""),
    (r"\b(?:stated|told|named) by neither\b", "\"neither log states …\""),
    (r"\bis called so\b", "\"has this name\""),
    (r"\b(?:is|are) wanted\b", "\"expected …\""),
    (r"\bstand beside\b", "\"compare\""),
    (r"\bnames no\b", "\"has no …\""),
    (r"\bwhoever\b", "name the person"),
    (r"^Of (?:the|all|what)\b", "begin with the subject"),
];

static PATTERNS: std::sync::LazyLock<Vec<(regex::Regex, &'static str)>> = std::sync::LazyLock::new(|| {
    STUMBLES.iter().map(|(pattern, better)| (regex::Regex::new(pattern).unwrap(), *better)).collect()
});

/// The first construction of the list in a sentence, with its better words.
fn stumble(sentence: &str) -> Option<(String, &'static str)> {
    PATTERNS.iter().find_map(|(pattern, better)| {
        pattern.captures_iter(sentence).find_map(|found| {
            let word = |at: usize| found.get(at).map_or("", |word| word.as_str());
            // "There is no matrix" and "is no longer" are plain words; "No such file" is the operating system's, "no such container" Docker's.
            let is_plain =
                word(1).eq_ignore_ascii_case("there") || ["longer", "more", "less", "larger"].contains(&word(2));
            let is_of_others =
                ["No such file", "no such file", "no such container"].iter().any(|said| sentence.contains(said));
            (!is_plain && !is_of_others).then(|| (found[0].to_owned(), *better))
        })
    })
}

/// The string literals of a source's own code: no comments, no tests.
fn literals(source: &str) -> Vec<String> {
    static TESTS: std::sync::LazyLock<regex::Regex> =
        std::sync::LazyLock::new(|| regex::Regex::new(r"#\[cfg\(test\)\]\n(pub(\(\w+\))? )?mod \w+ \{").unwrap());
    let code = TESTS.split(source).next().unwrap_or_default();
    let (mut found, mut chars) = (Vec::new(), code.chars().peekable());
    while let Some(c) = chars.next() {
        match c {
            '/' if chars.peek() == Some(&'/') => {
                chars.by_ref().find(|c| *c == '\n');
            }
            // A quote as a character, not a lifetime.
            '\'' if matches!(chars.peek(), Some('"' | '\\')) => {
                chars.next().filter(|c| *c == '\\').and_then(|_| chars.next());
            }
            'r' if chars.peek() == Some(&'#') => {
                let hashes: String = std::iter::from_fn(|| chars.next_if_eq(&'#')).collect();
                if chars.next_if_eq(&'"').is_some() {
                    let mut text = String::new();
                    let end = format!("\"{hashes}");
                    while !text.ends_with(&end) {
                        let Some(c) = chars.next() else { break };
                        text.push(c);
                    }
                    found.push(text.trim_end_matches(&end).to_owned());
                }
            }
            '"' => {
                let mut text = String::new();
                while let Some(c) = chars.next().filter(|c| *c != '"') {
                    match c {
                        '\\' if chars.peek() == Some(&'\n') => while chars.next_if(|c| c.is_whitespace()).is_some() {},
                        '\\' => text.extend(chars.next()),
                        c => text.push(c),
                    }
                }
                found.push(text);
            }
            _ => {}
        }
    }
    found
}

fn files_below(folder: &std::path::Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() { files_below(&entry, found) } else { found.push(entry) }
    }
}

/// What tprimat says, in its sources and in the snapshots of its messages, is said in words that are understood at once.
#[test]
fn messages_have_no_constructions_that_readers_stumble_over() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    ["src", "crates", "tests"].iter().for_each(|folder| files_below(&root.join(folder), &mut files));
    let (mut wrong, mut read) = (Vec::new(), 0);
    for path in files {
        let name = path.strip_prefix(root).unwrap().display().to_string();
        let is_source = !name.starts_with("tests/") && name.ends_with(".rs");
        let is_of_messages = name.ends_with(".snap") && !name.contains("__rendered__") && !name.contains("__feature_");
        let is_left_out = is_source && (name.contains("/tests") || name.starts_with("crates/native/"));
        if is_left_out || !(is_source || is_of_messages) {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let said = if is_source { literals(&text) } else { text.lines().map(str::to_owned).collect() };
        read += said.len();
        let found = said.iter().filter_map(|said| Some((said, stumble(said)?)));
        wrong.extend(found.map(|(said, (words, better))| format!("{name}: \"{words}\" (say {better}) in: {said}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(read > 3000, "only {read} texts were read");
    for (said, is_bad) in
        [("a.json is no baseline", true), ("there is no baseline", false), ("it is no longer there", false)]
    {
        assert_eq!(stumble(said).is_some(), is_bad, "{said}");
    }
    assert_eq!(literals("f(\"a\"); // \"b\"\n'\"' \"c\\\"d\""), ["a", "c\"d"]);
}
