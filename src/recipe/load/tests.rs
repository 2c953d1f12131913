use super::*;
use crate::recipe::Nodes;

fn shipped() -> BTreeSet<&'static str> {
    shipped_under("recipes/")
        .filter_map(|(path, _)| path.strip_suffix("/recipe.toml"))
        .collect()
}

#[test]
fn shipped_recipes_load_without_a_project() {
    let set = RecipeSet::load(Path::new("/nonexistent")).unwrap();
    assert_eq!(set.ids().into_iter().collect::<BTreeSet<_>>(), shipped());
    assert!(shipped().is_superset(&["cmd", "mgds", "native", "nemo", "prim", "tran"].into()));
}

/// On the index many a module's name is another package's: `nemo` is a laboratory's, `megatron`
/// is nobody's.
#[test]
fn advice_to_install_names_what_the_requirements_pin() {
    let plain = |name: &str| {
        let end = name
            .find(|c: char| !c.is_ascii_alphanumeric() && !"-_.".contains(c))
            .unwrap_or(name.len());
        name[..end].to_lowercase().replace('_', "-")
    };
    for (id, recipe) in RecipeSet::load(Path::new("/nonexistent")).unwrap().recipes {
        let folder = format!("recipes/{id}/");
        let files = shipped_under(&folder).filter(|(path, _)| path.starts_with("requirements."));
        let pinned: BTreeSet<String> = files
            .flat_map(|(_, text)| {
                String::from_utf8_lossy(text)
                    .lines()
                    .map(plain)
                    .collect::<Vec<_>>()
            })
            .collect();
        let require = &recipe.file.require;
        for module in &require.python_modules {
            let package = require.pip.get(module).unwrap_or(module);
            let is_source = package.contains("git+https://");
            let is_named = pinned.contains(&plain(package.trim_matches('\'')))
                || id == "prim" && module == "torch";
            assert!(
                is_source || is_named,
                "{id}: `pip install {package}` for {module}; pinned: {pinned:?}"
            );
        }
    }
}

#[test]
fn a_project_overrides_a_recipe_by_name_and_adds_its_own() {
    let root = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        crate::files::write_atomically(
            &root.path().join(path),
            text.as_bytes(),
            crate::files::Durability::Plain,
        )
        .unwrap();
    };
    let recipe = |id: &str| {
        format!(
            "id = \"{id}\"\nname = \"n\"\nvendors = [\"cpu\"]\n[launch]\ntemplates = [\"x.sh.j2\"]\ncommand = [\"bash\", \"x.sh\"]\n[log]\nformat = \"tprimat\"\n"
        )
    };
    write("recipes/native/recipe.toml", &recipe("native"));
    write("recipes/mine/recipe.toml", &recipe("mine"));
    write("recipes/mine/lib/a.py", "pass");
    write("recipes/mine/x.sh.j2", "own");
    write("templates/x.sh.j2", "shared");
    let set = RecipeSet::load(root.path()).unwrap();
    let all: BTreeSet<_> = shipped().into_iter().chain(["mine"]).collect();
    assert_eq!(set.ids().into_iter().collect::<BTreeSet<_>>(), all);
    assert_eq!(set.recipes["native"].templates[0].1, Digest::of("shared"));
    assert_eq!(set.recipes["mine"].templates[0].1, Digest::of("own"));
    assert_eq!(
        set.recipes["mine"]
            .files
            .iter()
            .map(|f| f.0.as_str())
            .collect::<Vec<_>>(),
        ["lib/a.py"]
    );

    write("recipes/bad/recipe.toml", "id = \"bad\"\nnaem = \"x\"\n");
    let Err(Error::Invalid(problems)) = RecipeSet::load(root.path()) else {
        panic!("must not load")
    };
    assert_eq!(
        problems[0].position(),
        Some(("recipes/bad/recipe.toml".into(), 2, 1))
    );
}

#[test]
fn a_module_that_no_import_can_name_is_an_error_with_its_place() {
    let root = tempfile::tempdir().unwrap();
    let problem = |require: &str| {
        let text = format!(
            "id = \"mine\"\nname = \"n\"\nvendors = [\"cpu\"]\n[launch]\ntemplates = []\ncommand = [\"true\"]\n[log]\nformat = \"tprimat\"\n[require]\n{require}\n"
        );
        let path = root.path().join("recipes/mine/recipe.toml");
        crate::files::write_atomically(&path, text.as_bytes(), crate::files::Durability::Plain)
            .unwrap();
        let Err(Error::Invalid(problems)) = RecipeSet::load(root.path()) else {
            return None;
        };
        let (_, line, _) = problems[0].position().unwrap();
        Some((problems[0].message.clone(), line))
    };
    assert_eq!(
        problem("python_modules = [\"torch\", \"megatron.core\", \"_six\"]"),
        None
    );
    let hyphen = problem("python_modules = [\"torch\", \"transformer-engine\"]").unwrap();
    assert_eq!(
        hyphen,
        (
            "`transformer-engine` is not the name of a Python module".into(),
            10
        )
    );
    assert!(
        problem("python_modules = [\"3d\"]").is_some()
            && problem("python_modules = [\"\"]").is_some()
    );
    let unused = problem("python_modules = [\"torch\"]\npip = { yaml = \"PyYAML\" }").unwrap();
    assert_eq!(
        unused,
        (
            "`pip` names `yaml`, which `python_modules` does not list".into(),
            11
        )
    );
}

/// NVIDIA's images have a Transformer Engine; a bound would have pip compile another one there.
#[test]
fn megatron_takes_the_transformer_engine_of_the_image() {
    let recipes = RecipeSet::load(Path::new("/nonexistent")).unwrap().recipes;
    let mut files = recipes["mlm"].files.iter();
    let (_, bytes, _) = files
        .find(|(name, ..)| name == "requirements.nvd.txt")
        .unwrap();
    let listed = String::from_utf8_lossy(bytes);
    let engine = listed
        .lines()
        .find(|line| line.starts_with("transformer_engine"));
    assert_eq!(engine, Some("transformer_engine[pytorch]"));
}

/// Whoever installs what a requirements file lists has all that is looked for before a run.
#[test]
fn requirements_files_name_every_module_that_is_looked_for() {
    let plain = |text: &str| text.to_lowercase().replace('_', "-");
    for recipe in RecipeSet::load(Path::new("/nonexistent"))
        .unwrap()
        .recipes
        .values()
    {
        let files = recipe
            .files
            .iter()
            .filter(|(name, ..)| name.starts_with("requirements."));
        for (file, bytes, _) in files {
            let listed = plain(&String::from_utf8_lossy(bytes));
            for module in &recipe.file.require.python_modules {
                let pip = recipe.file.require.pip.get(module).unwrap_or(module);
                let spec = pip
                    .split_whitespace()
                    .find(|word| !word.starts_with("--"))
                    .unwrap();
                let name = spec.trim_start_matches('\'').rsplit('/').next().unwrap();
                let name = name.split(['[', '<', '>', '=', '\'']).next().unwrap();
                assert!(
                    listed.contains(&plain(name)),
                    "recipes/{}/{file} does not name {name}",
                    recipe.file.id
                );
            }
        }
    }
}

#[test]
fn defaults_that_go_through_each_other_are_one_problem() {
    let root = tempfile::tempdir().unwrap();
    let deep = vec!["a"; 50_000].join(".");
    for defaults in [
        "\"frameworks.mine.a\" = 1\n\"frameworks.mine.a.b\" = 2",
        "\"frameworks.mine.a.b\" = 1\n\"frameworks.mine.a\" = 2",
        "\"frameworks.mine\" = { a = 1 }\n\"frameworks.mine.a\" = 2",
        &format!("\"{deep}\" = 1"),
    ] {
        let text = format!(
            "id = \"mine\"\nname = \"n\"\nvendors = [\"cpu\"]\n[launch]\ntemplates = []\ncommand = [\"true\"]\n[log]\nformat = \"tprimat\"\n[defaults]\n{defaults}\n"
        );
        let path = root.path().join("recipes/mine/recipe.toml");
        crate::files::write_atomically(&path, text.as_bytes(), crate::files::Durability::Plain)
            .unwrap();
        let Err(Error::Invalid(problems)) = RecipeSet::load(root.path()) else {
            panic!("must not load")
        };
        assert!(
            problems.len() == 1 && problems[0].position().is_some(),
            "{problems:?}"
        );
    }
}

#[test]
fn a_refusal_that_nobody_wrote_is_an_error_with_its_place() {
    let root = tempfile::tempdir().unwrap();
    let problem = |names: &str| {
        let text = format!(
            "id = \"mine\"\nname = \"n\"\nvendors = [\"cpu\"]\nrefuses = {names}\n[launch]\ntemplates = []\ncommand = [\"true\"]\n[log]\nformat = \"tprimat\"\n"
        );
        let path = root.path().join("recipes/mine/recipe.toml");
        crate::files::write_atomically(&path, text.as_bytes(), crate::files::Durability::Plain)
            .unwrap();
        match RecipeSet::load(root.path()) {
            Ok(set) => Ok(set.recipes["mine"].file.unsupported.len()),
            Err(Error::Invalid(problems)) => Err(problems[0].position().unwrap()),
            Err(other) => panic!("{other}"),
        }
    };
    assert_eq!(problem("[\"no_offload\", \"data_parallel_only\"]"), Ok(5));
    assert_eq!(
        problem("[\"no_ofload\"]"),
        Err(("recipes/mine/recipe.toml".into(), 4, 13))
    );
}

#[test]
fn a_project_s_own_refusals_stand_beside_the_shipped_ones() {
    let root = tempfile::tempdir().unwrap();
    let refused = || {
        let set = RecipeSet::load(root.path()).unwrap();
        let reasons = set.recipes["tran"].file.unsupported.iter();
        reasons.map(|of| of.reason.clone()).collect::<Vec<_>>()
    };
    let shipped = refused();
    let path = root.path().join("recipes/lib/refusals.toml");
    let own = "[[mine]]\nreason = \"r\"\nwhen = { offload = \">0\" }\n[[adamw_only]]\nreason = \"ours\"\nwhen = { \"optimizer.type\" = \"sgd\" }\n";
    crate::files::write_atomically(&path, own.as_bytes(), crate::files::Durability::Plain).unwrap();
    let ours = refused();
    assert_eq!(ours.len(), shipped.len());
    let differs = ours.iter().zip(&shipped).filter(|(own, old)| own != old);
    assert_eq!(
        differs.map(|(own, _)| own.as_str()).collect::<Vec<_>>(),
        ["ours"]
    );
}

#[test]
fn a_shared_refusal_that_could_never_hold_is_an_error_with_its_place() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("recipes/lib/refusals.toml");
    for (when, message) in [
        (
            "\"paralelism.num_gpus\" = \">1\"",
            "a job has no field `paralelism.num_gpus`",
        ),
        ("offload = \">one\"", "`>one` is not a condition"),
    ] {
        let text = format!("[[mine]]\nreason = \"r\"\nwhen = {{ {when} }}\n");
        crate::files::write_atomically(&path, text.as_bytes(), crate::files::Durability::Plain)
            .unwrap();
        let Err(Error::Invalid(problems)) = RecipeSet::load(root.path()) else {
            panic!("must not load")
        };
        assert_eq!(problems[0].message, message);
        assert_eq!(problems[0].position().unwrap().1, 3);
    }
}

/// A render task is fresh by these digests: without the shared text an edit of it would reach
/// no launcher.
#[test]
fn a_template_s_digest_covers_the_shared_templates_that_it_includes() {
    let root = tempfile::tempdir().unwrap();
    let digest = |recipe: &str| {
        let set = RecipeSet::load(root.path()).unwrap();
        set.recipes[recipe].templates[0].1
    };
    let before = [digest("tran"), digest("native")];
    let path = root.path().join("recipes/lib/torchrun.sh.j2");
    crate::files::write_atomically(&path, b"exec other", crate::files::Durability::Plain).unwrap();
    assert_ne!(digest("tran"), before[0]);
    assert_eq!(digest("native"), before[1]);
}

#[test]
fn a_default_is_checked_as_a_value_of_config_yaml_is() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("recipes/mine/recipe.toml");
    for (default, expected) in [
        (
            "\"training.compile\" = \"yes\"",
            "recipes/mine/recipe.toml:10:2: `training.compile` must be true or false, not the text \"yes\"",
        ),
        (
            "\"training.data\" = { seq_len = 1 }",
            "recipes/mine/recipe.toml:10:2: unknown key `training.data.seq_len`",
        ),
    ] {
        let text = format!(
            "id = \"mine\"\nname = \"n\"\nvendors = [\"cpu\"]\n[launch]\ntemplates = []\ncommand = [\"true\"]\n[log]\nformat = \"tprimat\"\n[defaults]\n{default}\n"
        );
        crate::files::write_atomically(&path, text.as_bytes(), crate::files::Durability::Plain)
            .unwrap();
        let Err(Error::Invalid(problems)) = RecipeSet::load(root.path()) else {
            panic!("must not load")
        };
        assert_eq!(problems[0].to_string(), expected);
    }
}

#[test]
fn on_how_many_nodes_a_recipe_starts_is_one_of_three_words() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("recipes/mine/recipe.toml");
    let loaded = |line: &str| {
        let text = format!(
            "id = \"mine\"\nname = \"n\"\nvendors = [\"cpu\"]\n[launch]\ntemplates = []\ncommand = [\"true\"]\n{line}\n[log]\nformat = \"tprimat\"\n"
        );
        crate::files::write_atomically(&path, text.as_bytes(), crate::files::Durability::Plain)
            .unwrap();
        match RecipeSet::load(root.path()) {
            Ok(set) => Ok(set.recipes["mine"].file.launch.nodes),
            Err(Error::Invalid(problems)) => Err(problems[0].to_string()),
            Err(error) => panic!("{error}"),
        }
    };
    for (line, nodes) in [
        ("", Nodes::One),
        ("nodes = false", Nodes::One),
        ("nodes = true", Nodes::FirstRankSpeaks),
        ("nodes = \"last\"", Nodes::LastRankSpeaks),
    ] {
        assert_eq!(loaded(line), Ok(nodes), "{line}");
        // As the schema and `recipe show` have it.
        let word = serde_json::to_value(nodes).unwrap();
        assert_eq!(serde_json::from_value::<Nodes>(word).unwrap(), nodes);
    }
    for (line, what) in [
        ("nodes = \"first\"", "string \"first\""),
        ("nodes = 2", "integer `2`"),
        ("nodes = [true]", "sequence"),
    ] {
        let why = loaded(line).unwrap_err();
        assert!(
            why.starts_with("recipes/mine/recipe.toml:7:")
                && why.contains(what)
                && why.contains("expected true, false or \"last\""),
            "{why}"
        );
    }
}

#[test]
fn the_node_whose_log_is_read_has_the_rank_that_prints_the_steps() {
    let ranks = |nodes: Nodes| [0, 1, 2].map(|node| nodes.rank_of(node, 3));
    assert_eq!(ranks(Nodes::FirstRankSpeaks), [0, 1, 2]);
    assert_eq!(ranks(Nodes::LastRankSpeaks), [2, 1, 0]);
    assert_eq!(Nodes::LastRankSpeaks.rank_of(0, 1), 0);
}

#[test]
fn what_could_never_hold_or_be_left_out_is_refused_with_its_place() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("recipes/mine/recipe.toml");
    let refused = |more: &str, optional: &str| {
        let text = format!(
            "id = \"mine\"\nname = \"n\"\nvendors = [\"cpu\"]\noptional = [{optional}]\n[launch]\ntemplates = []\ncommand = [\"true\"]\n[log]\nformat = \"tprimat\"\n{more}\n"
        );
        crate::files::write_atomically(&path, text.as_bytes(), crate::files::Durability::Plain)
            .unwrap();
        match RecipeSet::load(root.path()) {
            Err(Error::Invalid(problems)) => {
                let help = problems[0].help.clone().unwrap_or_default();
                Some(format!("{} | {help}", problems[0]))
            }
            _ => None,
        }
    };
    let when = |when: &str| {
        refused(
            &format!("[[unsupported]]\nreason = \"r\"\nwhen = {when}"),
            "",
        )
    };
    for right in [
        "{ \"model.rope_scaling.factor\" = \">1\" }",
        "{ \"framework.anything\" = \"*\" }",
        "{ \"model.dataset\" = { not = [\"\", \"<2\"] } }",
    ] {
        assert_eq!(when(right), None, "{right}");
    }
    assert_eq!(
        when("{ \"paralelism.num_gpus\" = \">1\" }").unwrap(),
        "recipes/mine/recipe.toml:12:11: a job has no field `paralelism.num_gpus` | did you mean `parallelism.num_gpus`?"
    );
    let condition = |text: &str| when(&format!("{{ sac_frequency = {text} }}")).unwrap();
    assert!(
        condition("[1, \">one\"]")
            .starts_with("recipes/mine/recipe.toml:12:31: `>one` is not a condition"),
        "{}",
        condition("[1, \">one\"]")
    );
    assert!(condition("{ nor = 1 }").contains("`nor` is not a condition"));
    let ignored = refused("[[ignored]]\nfield = \"seeed\"\nreason = \"r\"", "");
    assert_eq!(
        ignored.unwrap(),
        "recipes/mine/recipe.toml:11:10: a job has no field `seeed` | did you mean `seed`?"
    );
    let facts = refused("[lock]\nfacts = [\"accelerator\", \"core\"]", "");
    assert_eq!(
        facts.unwrap(),
        "recipes/mine/recipe.toml:11:26: no host has the fact `core` | did you mean `cores`?"
    );
    assert_eq!(
        refused("", "\"training.seed\"").unwrap(),
        "recipes/mine/recipe.toml:4:14: `training.seed` cannot be optional | only `training.optimizer.learning_rate` can"
    );
}

/// Nothing looks up the aliases of a project's recipe, so they would name nothing.
#[test]
fn an_alias_of_a_recipe_that_does_not_ship_is_an_error_with_its_place() {
    let root = tempfile::tempdir().unwrap();
    let problem = |id: &str, aliases: &str| {
        let text = format!(
            "id = \"{id}\"\nname = \"n\"\nvendors = [\"cpu\"]\naliases = {aliases}\n[launch]\ntemplates = []\ncommand = [\"true\"]\n[log]\nformat = \"tprimat\"\n"
        );
        let path = root.path().join(format!("recipes/{id}/recipe.toml"));
        crate::files::write_atomically(&path, text.as_bytes(), crate::files::Durability::Plain)
            .unwrap();
        match RecipeSet::load(root.path()) {
            Err(Error::Invalid(problems)) => problems[0].position(),
            _ => None,
        }
    };
    assert_eq!(problem("tran", "[\"transformers\"]"), None);
    assert_eq!(
        problem("mine", "[\"ours\"]"),
        Some(("recipes/mine/recipe.toml".into(), 4, 1))
    );
}

#[test]
fn a_log_section_that_reads_nothing_is_one_error_with_its_place() {
    let root = tempfile::tempdir().unwrap();
    let problem = |log: &str| {
        let text = format!(
            "id = \"mine\"\nname = \"n\"\nvendors = [\"cpu\"]\n[launch]\ntemplates = []\ncommand = [\"true\"]\n[log]\n{log}\n"
        );
        let path = root.path().join("recipes/mine/recipe.toml");
        crate::files::write_atomically(&path, text.as_bytes(), crate::files::Durability::Plain)
            .unwrap();
        match RecipeSet::load(root.path()) {
            Err(Error::Invalid(problems)) => {
                let problem = problems.into_iter().next().unwrap();
                let (_, line, column) = problem.position().unwrap();
                Some((problem.message, line, column))
            }
            _ => None,
        }
    };
    assert_eq!(
        problem("format = \"regex\"\npatterns = ['s (?P<step>\\d+)', '(?P<loss>\\S+)']"),
        None
    );
    assert_eq!(
        problem("format = \"tpirmat\""),
        Some(("`tpirmat` is not a log format".into(), 8, 10))
    );
    let unknown =
        problem("format = \"regex\"\npatterns = [\n  's (?P<step>\\d+)',\n  '(?P<los>\\S+)',\n]");
    assert_eq!(
        unknown,
        Some(("`los` is not a field of a step".into(), 11, 3))
    );
    let broken = problem("format = \"regex\"\npatterns = ['(']");
    assert_eq!(
        broken,
        Some(("not a pattern: unclosed group".into(), 9, 13))
    );
    assert_eq!(problem("format = \"regex\"").unwrap().1, 8);
    assert!(
        problem("format = \"tprimat\"\npatterns = ['(?P<loss>x)']")
            .unwrap()
            .0
            .contains("takes no patterns")
    );
}
