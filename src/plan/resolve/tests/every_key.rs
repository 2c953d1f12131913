//! A null in config.yaml is as good as no line, and no key of its schema is accepted without an
//! effect: each is changed in a file that states everything, and what follows from it must change.

use super::*;

/// Everything that follows from a config for the cells of a small project, as text; problems are
/// part of it.
fn seen(file: &Value, recipes: &RecipeSet) -> Result<String, Vec<Problem>> {
    let config = load(file)?;
    let catalogue = format!("{:?}\n", crate::plan::catalogue(&config));
    Ok(catalogue + &seen_of_cells(&config, &[], recipes))
}

/// What follows for the cells alone, where a matrix sets `overlay`.
fn seen_of_cells(config: &Config, overlay: &[Setting], recipes: &RecipeSet) -> String {
    let mut seen = String::new();
    for (platform, framework) in [
        ("nvd", "cmd"),
        ("amd", "cmd"),
        ("amd", "prim"),
        ("nvd", "tran"),
    ] {
        for model in ["m", "n", "e", "d", "g"] {
            let of = Cell {
                overlay: overlay.to_vec(),
                ..cell(platform, framework, model)
            };
            let text = match resolve(config, &of, &recipes.recipes[framework]) {
                Ok(r) => format!(
                    "{:?} {:?} {} {:?} {:?} {:?} {} {:?} {:?} {:?}",
                    r.job,
                    r.env,
                    r.share,
                    r.inputs,
                    r.timeout_seconds,
                    r.hang,
                    r.cooldown_seconds,
                    r.statistics,
                    r.data_paths,
                    r.execution
                ),
                Err(Unresolved::Refused(why)) => why,
                Err(Unresolved::Problems(problems)) => {
                    format!(
                        "{:?}",
                        problems
                            .iter()
                            .map(|p| &p.problem.message)
                            .collect::<Vec<_>>()
                    )
                }
            };
            seen += &format!("{platform}/{framework}/{model}: {text}\n");
        }
    }
    seen
}

/// Paths of the single values of `value`, in parts.
fn leaves(value: &Value, above: &[String], found: &mut Vec<Vec<String>>) {
    match value {
        Value::Object(entries) => {
            for (key, value) in entries {
                leaves(value, &[above, std::slice::from_ref(key)].concat(), found);
            }
        }
        _ => found.push(above.to_vec()),
    }
}

fn at<'a>(file: &'a mut Value, path: &[String]) -> &'a mut Value {
    path.iter().fold(file, |value, key| &mut value[key])
}

#[test]
fn a_null_is_the_same_as_no_line() {
    let (file, recipes) = (full(), recipes());
    let mut paths = Vec::new();
    leaves(&file, &[], &mut paths);
    assert!(paths.len() > 90, "{}", paths.len());
    for path in paths {
        let (mut null, mut absent) = (file.clone(), file.clone());
        *at(&mut null, &path) = Value::Null;
        let (last, above) = path.split_last().unwrap();
        at(&mut absent, above).as_object_mut().unwrap().remove(last);
        let of = |file: &Value| {
            seen(file, &recipes)
                .map_err(|p| p.iter().map(|p| p.message.clone()).collect::<Vec<_>>())
        };
        assert_eq!(of(&null), of(&absent), "{}", path.join("."));
        // In an `env` table the null itself is listed: it takes away what a weaker table sets.
        if above.last().is_none_or(|table| table != "env") {
            let json = |file: &Value| load(file).map(|config| config.to_json()).ok();
            assert_eq!(json(&null), json(&absent), "{}", path.join("."));
        }
    }
}

/// Values that are neither in a job nor in the catalogue, and the source that reads them.
const READ_ELSEWHERE: &[(&str, &str, &str)] = &[
    (
        "experiment.name",
        "experiment.name",
        include_str!("../../../matrix/implied.rs"),
    ),
    (
        "experiment.methodology",
        "experiment.methodology",
        include_str!("../../../matrix/implied.rs"),
    ),
    (
        "experiment.profiling",
        "experiment.profiling",
        include_str!("../../../cli/build/profile.rs"),
    ),
    (
        "frameworks.*.log",
        "frameworks.{id}.log",
        include_str!("../../../recipe/load.rs"),
    ),
    (
        "hardware.platforms.*.framework",
        ".framework",
        include_str!("../../../matrix/implied.rs"),
    ),
    (
        "hardware.platforms.*.gpu_model",
        ".gpu_model",
        include_str!("../../facts.rs"),
    ),
    (
        "hardware.platforms.*.memory_per_gpu_gb",
        ".memory_per_gpu_gb",
        include_str!("../../fit/capacity.rs"),
    ),
    (
        "models.*.hf_config",
        "hf_config",
        include_str!("../../../config/known_models.rs"),
    ),
    (
        "models.*.full_name",
        "full_name",
        include_str!("../../../import/names.rs"),
    ),
    (
        "frameworks.*.platforms",
        ".platforms",
        include_str!("../../../matrix/implied.rs"),
    ),
    (
        "frameworks.*.python",
        ".python",
        include_str!("../../facts.rs"),
    ),
    (
        "frameworks.*.image",
        ".image",
        include_str!("../../../cli/container.rs"),
    ),
    (
        "benchmarking.runs.default_num_runs",
        "default_num_runs",
        include_str!("../../../matrix/file.rs"),
    ),
    (
        "paths.output",
        "paths.output",
        include_str!("../../../config/layers.rs"),
    ),
    (
        "paths.cache",
        "paths.cache",
        include_str!("../../../config/layers.rs"),
    ),
    (
        "paths.remote",
        "paths.remote",
        include_str!("../../../cli/remote.rs"),
    ),
    (
        "paths.python",
        "paths.python",
        include_str!("../../facts.rs"),
    ),
    (
        "paths.primus",
        "paths.primus",
        include_str!("../../../../recipes/prim/recipe.toml"),
    ),
    (
        "paths.megatron",
        "paths.megatron",
        include_str!("../../../../recipes/mlm/recipe.toml"),
    ),
    (
        "paths.megatron_deepspeed",
        "paths.megatron_deepspeed",
        include_str!("../../../../recipes/mgds/recipe.toml"),
    ),
];

/// The single values that the schema of config.yaml knows: the path with `*` for names of the
/// user's, and why it only describes, if it does.
fn schema_leaves() -> Vec<(String, Option<String>)> {
    fn walk(
        schema: &Value,
        root: &Value,
        path: &str,
        descriptive: Option<&str>,
        found: &mut Vec<(String, Option<String>)>,
    ) {
        let own = schema["x-descriptive"].as_str().or(descriptive);
        let inner = schema["anyOf"]
            .as_array()
            .and_then(|any| any.iter().find(|s| s["type"] != "null"))
            .unwrap_or(schema);
        if let Some(name) = inner["$ref"].as_str() {
            return walk(
                &root["$defs"][name.rsplit('/').next().unwrap()],
                root,
                path,
                own,
                found,
            );
        }
        let below = |key: &str| {
            if path.is_empty() {
                key.to_owned()
            } else {
                format!("{path}.{key}")
            }
        };
        let properties = inner["properties"].as_object();
        for (key, schema) in properties.into_iter().flatten() {
            walk(schema, root, &below(key), own, found);
        }
        // A block of parallelism holds blocks of its own kind, and an open table anything.
        let more = &inner["additionalProperties"];
        if more.is_object() && properties.is_none() {
            walk(more, root, &below("*"), own, found);
        } else if properties.is_none() {
            found.push((path.to_owned(), own.map(str::to_owned)));
        }
    }
    let schema = schemars::schema_for!(ConfigFile).to_value();
    let mut found = Vec::new();
    walk(&schema, &schema, "", None, &mut found);
    found
}

#[test]
fn no_key_is_accepted_without_an_effect() {
    let (file, recipes) = (full(), recipes());
    let before = seen(&file, &recipes)
        .map_err(|p| crate::config::tests::show(&p))
        .unwrap();
    let config = load(&file).unwrap();
    let setting = |(path, value)| Setting {
        path,
        value,
        origin: Origin::Matrix {
            source: Source::new("matrix.toml", ""),
            span: 0..0,
        },
    };
    let mut wrong = Vec::new();
    let mut all = Vec::new();
    leaves(&file, &[], &mut all);
    let others = [
        json!(false),
        json!(true),
        json!(1),
        json!(2),
        json!(4),
        json!(16),
        json!(256),
        json!(0.25),
        json!(0.01),
        json!(2e15),
        json!("fp32"),
        json!("bf16"),
        json!("fp8"),
        json!("default"),
        json!("linear"),
        json!("sft"),
        json!("zero2"),
        json!("amd"),
        json!("2h"),
        json!("podman"),
        json!(["/other"]),
        json!("USD"),
        json!("Qwen2.5 7B"),
        json!("other"),
        json!(["other"]),
        json!({ "command": ["false"] }),
    ];
    for (pattern, descriptive) in schema_leaves() {
        let wanted: Vec<&str> = pattern.split('.').collect();
        let fits = |path: &&Vec<String>| {
            path.len() >= wanted.len()
                && wanted
                    .iter()
                    .zip(path.iter())
                    .all(|(want, key)| *want == "*" || want == key)
        };
        let paths: Vec<_> = all
            .iter()
            .filter(fits)
            .map(|path| path[..wanted.len()].to_vec())
            .collect();
        assert!(
            !paths.is_empty(),
            "{pattern} is not in the file of this test"
        );
        let has_effect = paths.iter().any(|path| {
            others.iter().any(|other| {
                let mut changed = file.clone();
                *at(&mut changed, path) = other.clone();
                seen(&changed, &recipes).is_ok_and(|now| now != before)
            })
        });
        let elsewhere = READ_ELSEWHERE.iter().find(|(path, ..)| *path == pattern);
        if let Some((_, key, source)) = elsewhere {
            assert!(
                source.contains(key),
                "{pattern} is no longer read where READ_ELSEWHERE says"
            );
        }
        assert!(
            has_effect || elsewhere.is_some() || descriptive.is_some(),
            "{pattern} changes nothing: use it, refuse it, or mark it x-descriptive with the reason"
        );
        // What a matrix may set are the keys that cells read.
        let has_effect_on_a_cell = paths.iter().any(|path| {
            let before = seen_of_cells(&config, &[], &recipes);
            others.iter().any(|other| {
                let path = path.join(".");
                let Ok(leaves) = config.typed(&path, other.clone()) else {
                    return false;
                };
                let overlay: Vec<Setting> = leaves.into_iter().map(setting).collect();
                seen_of_cells(&config, &overlay, &recipes) != before
            })
        });
        let is_refused = not_of_cell(&paths[0].join(".")).is_some();
        if is_refused == has_effect_on_a_cell {
            wrong.push(format!(
                "{pattern}: a matrix may set it: {}, a cell reads it: {has_effect_on_a_cell}",
                !is_refused
            ));
        }
        assert!(
            !(has_effect && descriptive.is_some()),
            "{pattern} is said to describe only, but it has an effect"
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
