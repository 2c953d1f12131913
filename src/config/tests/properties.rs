//! Layers and blocks against a naive reading, and texts that nobody would write.

use proptest::prelude::*;
use serde_json::Map;

use super::*;

/// Layers, weakest first, with the values that a path has in each.
type Stack = [Option<u16>; 5];

const LAYERED: [(&str, Option<&str>, Option<u16>); 6] = [
    ("training.duration.train_iters", Some("TRAIN_ITERS"), None),
    (
        "hardware.platforms.nvd.num_gpus",
        Some("CONFIG_NVD_NUM_GPUS"),
        None,
    ),
    ("training.sac_frequency", None, Some(1)),
    ("frameworks.tran.a", None, None),
    ("frameworks.tran.b.c-1.5", None, None),
    ("frameworks.tran.b.d", None, None),
];

/// Puts a value into nested objects; keys are given one by one.
fn put(object: &mut Map<String, Value>, keys: &[&str], value: u16) {
    match keys {
        [last] => drop(object.insert((*last).to_owned(), json!(value))),
        [first, rest @ ..] => {
            let below = object.entry(*first).or_insert_with(|| json!({}));
            put(below.as_object_mut().unwrap(), rest, value);
        }
        [] => {}
    }
}

fn keys(path: &str) -> Vec<&str> {
    if path.ends_with("c-1.5") {
        vec!["frameworks", "tran", "b", "c-1.5"]
    } else {
        path.split('.').collect()
    }
}

proptest! {
    #[test]
    fn the_strongest_layer_wins(stacks in prop::array::uniform6(prop::array::uniform5(prop::option::of(1_u16..1000)))) {
        let base = json!({"hardware": {"platforms": {"nvd": {"vendor": "nvd"}}}, "frameworks": {"tran": {"b": {"c-1.5": {}}}}});
        let (mut recipe, mut file) = (json!({}), base);
        let (mut env, mut sets, mut overlay) = (Vec::new(), Vec::new(), Vec::new());
        let texts: Vec<[String; 5]> = stacks.iter().map(|s| s.map(|v| v.unwrap_or(0).to_string())).collect();
        for (((path, variable, _), stack), text) in LAYERED.iter().zip(&stacks).zip(&texts) {
            let [in_recipe, in_file, in_env, in_matrix, in_set]: Stack = *stack;
            in_recipe.into_iter().for_each(|v| put(recipe.as_object_mut().unwrap(), &keys(path), v));
            in_file.into_iter().for_each(|v| put(file.as_object_mut().unwrap(), &keys(path), v));
            if let (Some(_), Some(variable)) = (in_env, variable) {
                env.push((*variable, text[2].as_str()));
            }
            in_set.into_iter().for_each(|v| sets.push(format!("{path}={v}")));
            let origin = Origin::Matrix { source: Source::new("m.toml", ""), span: 0..0 };
            overlay.extend(in_matrix.map(|v| Setting { path: (*path).into(), value: json!(v), origin }));
        }
        let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
        let config = load(&file.to_string(), &env, &sets).unwrap();
        let mut defaults = Values::new("tran");
        for (table, values) in recipe.as_object().unwrap() {
            defaults.add(table, values).unwrap();
        }
        let view = config.view(&defaults, &overlay);
        for ((path, variable, built_in), stack) in LAYERED.iter().zip(&stacks) {
            let [in_recipe, in_file, in_env, in_matrix, in_set] = *stack;
            let in_env = in_env.filter(|_| variable.is_some());
            let expected = in_set.or(in_matrix).or(in_env).or(in_file).or(in_recipe).or(*built_in).map(u64::from);
            prop_assert_eq!(view.get(path).and_then(Value::as_u64), expected, "{}", path);
            let nested = view.nested("frameworks").unwrap();
            if path.starts_with("frameworks") {
                let there = keys(path)[1..].iter().fold(&nested, |at, key| &at[*key]);
                prop_assert_eq!(there.as_u64(), expected, "{}", path);
            }
        }
    }

    #[test]
    fn the_most_specific_block_wins_whole(blocks in prop::collection::btree_set((0..3_usize, 0..4_usize, 0..3_usize), 0..12)) {
        const MODELS: [&str; 3] = ["", "llama", "gpt2-1.5b"];
        const PLATFORMS: [&str; 4] = ["", "h200", "nvd", "amd"];
        const FRAMEWORKS: [&str; 3] = ["", "tran", "transformers"];
        let mut strategy = json!({});
        for (index, (model, platform, framework)) in blocks.iter().enumerate() {
            let names = [MODELS[*model], PLATFORMS[*platform], FRAMEWORKS[*framework], "num_gpus"];
            let names: Vec<&str> = names.into_iter().filter(|name| !name.is_empty()).collect();
            put(strategy.as_object_mut().unwrap(), &names, u16::try_from(index).unwrap() + 1);
        }
        let text = SMALL.split("parallelism").next().unwrap().to_owned()
            + &format!("frameworks: {{ tran: {{}} }}\nparallelism: {{ s: {strategy} }}\n");
        let config = load(&text, &[], &[]).unwrap();
        for model in ["llama", "gpt2-1.5b"] {
            for (platform, vendor) in [("h200", Vendor::Nvd), ("nvd", Vendor::Nvd), ("amd", Vendor::Amd)] {
                // Naively: of all blocks that speak of this cell, the one with the best (model,
                // platform, framework).
                let speaks = |(m, p, f): &(usize, usize, usize)| {
                    let by_platform = match PLATFORMS[*p] {
                        "" => Some(0),
                        name if name == platform => Some(2),
                        "nvd" if vendor == Vendor::Nvd => Some(1),
                        _ => None,
                    };
                    (*m == 0 || MODELS[*m] == model).then_some(())?;
                    Some((u8::from(*m > 0), by_platform?, [0, 2, 1][*f]))
                };
                let ranked = blocks.iter().enumerate().filter_map(|(i, block)| Some((speaks(block)?, i as u64 + 1)));
                let expected = ranked.max().map(|(_, index)| index);
                let found = config.general().parallelism("s", model, platform, vendor, "tran");
                // A platform of the id's own may hold no block for the framework while the vendor's
                // does.
                prop_assert_eq!(found.and_then(|(_, block)| block.num_gpus), expected, "{} {}", model, platform);
            }
        }
    }

    #[test]
    fn no_text_makes_it_panic(text in "\\PC{0,60}|[a-z:{}&*<\\-\\[\\], \n\"'$|>]{0,80}") {
        exercise(&text);
    }

    #[test]
    fn no_set_makes_it_panic(set in "\\PC{0,20}=\\PC{0,20}|(training|parallelism|models|frameworks)(\\.(fast|llama|gpt2-1\\.5b|tran|data|x|)){0,4}[.=]{0,2}[a-z0-9{:, ]{0,9}") {
        let _ = load(SMALL, &[], &[&set]);
    }

    #[test]
    fn no_mutation_makes_it_panic(at in 0..SMALL.len(), len in 0..30_usize, new in "[a-z0-9:{}&*<\\-\\[\\] \n\"'$]{0,6}|\\PC{0,3}") {
        let end = (at + len).min(SMALL.len());
        exercise(&format!("{}{new}{}", &SMALL[..at], &SMALL[end..]));
    }
}

/// Whatever it says, every caret is inside its text.
fn exercise(text: &str) {
    let (config, problems) = Config::read(Source::new("config.yaml", text), &BTreeMap::new(), &[]);
    for problem in &problems {
        if let Some((source, span)) = &problem.place {
            assert!(source.text.get(span.clone()).is_some(), "{problem}");
        }
    }
    assert!(config.is_some() || !problems.is_empty());
    for (path, _, origin) in config.iter().flat_map(Config::effective) {
        assert!(!path.is_empty() && !origin.to_string().is_empty());
    }
}
