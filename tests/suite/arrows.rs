//! Who may import whom: the dependencies allowed to each crate, and the order of the modules of `src/`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// The folder of the workspace.
pub const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Every crate, and the crates that its manifest depends on.
pub const ALLOWED: &[(&str, &[&str])] = &[
    ("base", &["job"]),
    ("job", &[]),
    ("logs", &["base", "job"]),
    ("native", &["job"]),
    ("numbers", &["base", "job", "logs"]),
    ("report", &["base", "job", "numbers"]),
];

/// The modules of `src/`, in an order in which each imports only those before it.
const MODULES: &[&str] = &[
    "cache", "shipped", "config", "matrix", "data", "recipe", "host", "plan", "import", "publish",
    "graph", "run", "execute", "cli",
];

fn crates() -> PathBuf {
    Path::new(ROOT).join("crates")
}

/// The names of all that a crate's manifest depends on, sorted.
fn dependencies(folder: &Path) -> Vec<String> {
    let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
    let manifest: toml::Table = manifest.parse().unwrap();
    let mut names: Vec<String> = manifest["dependencies"]
        .as_table()
        .map_or_else(Vec::new, |found| found.keys().cloned().collect());
    names.sort();
    names
}

/// The crates of this workspace among them, without their common prefix.
fn own_dependencies(name: &str) -> Vec<String> {
    let names = dependencies(&crates().join(name)).into_iter();
    names
        .filter_map(|name| Some(name.strip_prefix("tprimat-")?.to_owned()))
        .collect()
}

#[test]
fn each_crate_depends_on_those_it_may_and_no_others() {
    let folders = fs::read_dir(crates()).unwrap();
    let mut found: Vec<String> = folders
        .map(|folder| folder.unwrap().file_name().into_string().unwrap())
        .collect();
    found.sort();
    assert_eq!(
        found,
        ALLOWED.iter().map(|(name, _)| *name).collect::<Vec<_>>()
    );
    for (name, may) in ALLOWED {
        assert_eq!(own_dependencies(name), *may, "{name}");
    }
}

/// ARCHITECTURE.md has the same list.
#[test]
fn the_table_of_crates_is_as_the_manifests_are() {
    let page = fs::read_to_string(Path::new(ROOT).join("ARCHITECTURE.md")).unwrap();
    for (name, may) in ALLOWED {
        let start = format!("| `{name}` | ");
        let row = page.lines().find_map(|line| line.strip_prefix(&start));
        let listed = row.and_then(|row| row.strip_suffix(" |")?.rsplit(" | ").next());
        let listed = listed.unwrap_or_else(|| panic!("no row of {name}"));
        let mut listed: Vec<&str> = listed.split('`').skip(1).step_by(2).collect();
        listed.sort_unstable();
        assert_eq!(listed, *may, "{name}");
    }
}

#[test]
fn only_the_native_trainer_links_libtorch() {
    let links_it = |name: &String| ["tch", "torch-sys", "tprimat-native"].contains(&&**name);
    let folders = ALLOWED.iter().map(|(name, _)| crates().join(name));
    for folder in folders.chain([ROOT.into()]) {
        let is_native = folder.ends_with("native");
        assert_eq!(
            dependencies(&folder).iter().any(links_it),
            is_native,
            "{}",
            folder.display()
        );
    }
}

/// The first names of all paths that begin at the root of the crate.
fn modules_used(code: &str) -> Vec<String> {
    let name_at = |text: &str| -> String {
        text.chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect()
    };
    let mut found = Vec::new();
    for (at, start) in code.match_indices("crate::") {
        let rest = &code[at + start.len()..];
        let Some(group) = rest.strip_prefix('{') else {
            found.push(name_at(rest));
            continue;
        };
        let mut depth = 0;
        let mut is_first = true;
        for (at, ch) in group.char_indices() {
            match ch {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => is_first = true,
                _ if is_first && ch.is_alphanumeric() => {
                    found.push(name_at(&group[at..]));
                    is_first = false;
                }
                _ => {}
            }
        }
    }
    found
}

/// Rust files below a folder or beside it (`config/`, `config.rs`), without comments and tests.
/// Tests are at the end of a file, in files whose names end in `tests.rs`, or in folders `tests`.
fn product_sources(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut sources = Vec::new();
    let mut waiting = vec![folder.to_owned(), folder.with_extension("rs")];
    while let Some(path) = waiting.pop() {
        if path.ends_with("tests") {
            continue;
        }
        if path.is_dir() {
            waiting.extend(
                fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
            continue;
        }
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.ends_with("tests.rs") || !name.ends_with(".rs") || !path.exists() {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let product = text
            .lines()
            .take_while(|line| !line.ends_with("mod tests {"));
        let code: Vec<&str> = product
            .filter(|line| !line.trim_start().starts_with("//"))
            .collect();
        sources.push((path, code.join("\n")));
    }
    sources
}

/// What a framework needs is in its recipe.toml, so that a user's copy of a recipe, under whatever
/// name, is treated as the shipped one.
#[test]
fn no_code_knows_a_shipped_framework_by_its_id() {
    // Words that mean something else too: a way of sharding, a log format. And a picture's palette:
    // which colour is whose decides nothing, and other recipes get theirs by name.
    const OTHER_MEANINGS: &[(&str, &str)] = &[
        ("job/src/sharding.rs", "fsdp"),
        ("logs/src/format.rs", "nemo"),
        ("logs/src/nemo.rs", "nemo"),
        ("plot/style.rs", "*"),
        // The recipe of commands that have no recipe.
        ("recipe/load.rs", "cmd"),
    ];
    let root = Path::new(ROOT);
    let ids: Vec<String> = fs::read_dir(root.join("recipes"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|folder| folder.join("recipe.toml").is_file())
        .map(|folder| folder.file_name().unwrap().to_str().unwrap().to_owned())
        .collect();
    assert!(ids.len() > 10, "{ids:?}");
    let mut folders = vec![root.join("src")];
    for (name, _) in ALLOWED {
        folders.push(crates().join(name).join("src"));
    }
    for (path, code) in folders.iter().flat_map(|folder| product_sources(folder)) {
        for id in &ids {
            let means_another = OTHER_MEANINGS
                .iter()
                .any(|(file, word)| path.ends_with(file) && (word == id || *word == "*"));
            let named = code.contains(&format!("\"{id}\""));
            assert!(!named || means_another, "{}: \"{id}\"", path.display());
        }
    }
}

#[test]
fn each_module_uses_those_before_it_and_none_later() {
    let src = Path::new(ROOT).join("src");
    let mut declared: Vec<String> = fs::read_to_string(src.join("lib.rs"))
        .unwrap()
        .lines()
        .filter_map(|line| Some(line.strip_prefix("pub mod ")?.strip_suffix(';')?.to_owned()))
        .collect();
    declared.sort();
    let mut listed = MODULES.to_vec();
    listed.sort_unstable();
    assert_eq!(declared, listed);
    let mut imports = 0;
    for (place, module) in MODULES.iter().enumerate() {
        for (path, code) in product_sources(&src.join(module)) {
            for used in modules_used(&code) {
                let Some(at) = MODULES.iter().position(|known| *known == used) else {
                    continue;
                };
                imports += 1;
                assert!(at <= place, "{}: {module} uses {used}", path.display());
            }
        }
    }
    assert!(imports > 100, "{imports} imports");
}

/// A part of a crate that others stand on knows nothing of them.
#[test]
fn results_know_no_figures_and_pictures_no_tables() {
    for (name, part) in [("numbers", "results"), ("report", "plot")] {
        let sources = product_sources(&crates().join(name).join("src").join(part));
        assert!(sources.len() > 10, "{name}: {part}");
        for (path, code) in sources {
            for used in modules_used(&code) {
                let is_of_tests = used.ends_with("stand_ins");
                assert!(used == part || is_of_tests, "{}: {used}", path.display());
            }
        }
    }
}

/// The tables at the head of a module name its files.
#[test]
fn files_in_the_lists_of_modules_exist() {
    for name in ["figures", "results"] {
        let folder = crates().join("numbers/src").join(name);
        let text = fs::read_to_string(folder.with_extension("rs")).unwrap();
        let files: Vec<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix("//! | `")?.split(" | ").next())
            .flat_map(|cell| cell.split(['`', ',', ' ']))
            .filter(|file| !file.is_empty())
            .collect();
        assert!(files.len() > 10, "{files:?}");
        for file in files {
            let path = folder.join(file);
            let exists = path.is_dir() || path.with_extension("rs").exists();
            assert!(exists, "{}", path.display());
        }
    }
}

/// All paths of a file that begin at `crate` or `super`, with the groups of `use` written out.
fn paths_of(code: &str) -> Vec<String> {
    let starts = ["crate::", "super::"];
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(next) = starts.iter().filter_map(|s| code[at..].find(s)).min() {
        let begin = at + next;
        let before = code[..begin].chars().next_back();
        at = begin + starts[0].len();
        if before.is_none_or(|c| !c.is_alphanumeric() && c != '_' && c != ':') {
            at = begin + tree(&code[begin..], "", &mut found);
        }
    }
    found
}

/// Writes out one path or group at the start of `text`; how many bytes it has.
fn tree(text: &str, prefix: &str, found: &mut Vec<String>) -> usize {
    let is_of_path = |c: char| c.is_alphanumeric() || "_:".contains(c);
    let length = text.find(|c| !is_of_path(c)).unwrap_or(text.len());
    let path = format!("{prefix}{}", &text[..length]);
    if !text[length..].starts_with('{') || !path.ends_with("::") {
        found.push(path);
        return length;
    }
    let mut at = length + 1;
    while let Some(part) = text[at..].find(|c: char| is_of_path(c) || c == '}') {
        at += part;
        if text[at..].starts_with('}') {
            return at + 1;
        }
        at += tree(&text[at..], &path, found);
    }
    text.len()
}

/// For each file of a module of `src/`, by its path in modules: the files that it uses.
fn uses_of(module: &str) -> BTreeMap<String, BTreeSet<String>> {
    let src = Path::new(ROOT).join("src");
    let name = |path: &Path| {
        let path = path.strip_prefix(&src).unwrap().with_extension("");
        let path = path.to_str().unwrap().replace('/', "::");
        path.strip_suffix("::mod").unwrap_or(&path).to_owned()
    };
    let sources = product_sources(&src.join(module));
    let names: BTreeSet<String> = sources.iter().map(|(path, _)| name(path)).collect();
    let uses = sources.iter().map(|(path, code)| {
        let own = name(path);
        let used = paths_of(code).into_iter().filter_map(|path| {
            let mut base = String::new();
            let mut rest = path.as_str();
            if let Some(path) = rest.strip_prefix("crate::") {
                rest = path;
            } else {
                base.clone_from(&own);
                while let Some(path) = rest.strip_prefix("super::") {
                    base.truncate(base.rfind("::").unwrap_or(0));
                    rest = path;
                }
                base += "::";
            }
            let mut whole = format!("{base}{rest}");
            while !names.contains(&whole) {
                whole.truncate(whole.rfind("::")?);
            }
            (whole != own && whole != module).then_some(whole)
        });
        (own.clone(), used.collect())
    });
    uses.collect()
}

/// What a file reaches through those that it uses.
fn reached(from: &str, uses: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<String> {
    let (mut seen, mut waiting) = (BTreeSet::new(), vec![from]);
    while let Some(next) = waiting.pop() {
        for used in &uses[next] {
            if seen.insert(used.clone()) {
                waiting.push(used);
            }
        }
    }
    seen
}

/// A file can be read without all the others: at most two need each other.
#[test]
fn no_more_than_two_files_of_a_run_need_each_other() {
    for module in ["run", "execute"] {
        let uses = uses_of(module);
        let all: BTreeMap<&String, BTreeSet<String>> = uses
            .keys()
            .map(|file| (file, reached(file, &uses)))
            .collect();
        assert!(
            uses.values().map(BTreeSet::len).sum::<usize>() > 50,
            "{module}"
        );
        for (file, below) in &all {
            let circle: Vec<&String> = below
                .iter()
                .filter(|other| all[other].contains(*file))
                .collect();
            assert!(circle.len() <= 2, "{file}: {circle:?}");
        }
    }
}

#[test]
fn a_path_is_written_out() {
    let code =
        "use crate::{a::{B, c::D}, e};\nuse super::f;\nlet x = crate::g::h(super::super::i::J);";
    let expected = [
        "crate::a::B",
        "crate::a::c::D",
        "crate::e",
        "super::f",
        "crate::g::h",
        "super::super::i::J",
    ];
    assert_eq!(paths_of(code), expected);
}
