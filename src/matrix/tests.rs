//! Tests of the whole: expansion, messages, selection.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::{
    config::tests::{load as load_config, shipped, show},
    error::Problem,
    job::Vendor,
};

const RECIPES: [&str; 3] = ["native", "tran", "cmd"];

fn load_with(text: &str, config: &Config, auto: Option<&str>) -> Result<Matrix, Vec<Problem>> {
    load(
        Source::new("pipelines/m.toml", text),
        config,
        &RECIPES,
        auto,
        &[],
    )
    .map_err(|error| match error {
        Error::Invalid(problems) => problems,
        other => panic!("{other}"),
    })
}

fn ids(matrix: &Matrix) -> Vec<String> {
    matrix.cells.iter().map(ToString::to_string).collect()
}

#[track_caller]
fn refused(text: &str, config: &Config, expected: &str) {
    let problems = load_with(text, config, None).expect_err("it should be refused");
    assert_eq!(show(&problems), expected);
}

const HEAD: &str = "\
[matrix]
platform = 'nvidia'
framework = ['native', 'transformers']
model = ['llama', 'llama-3.1-70b-proxy']
parallelism = 'single'
[matrix.axes.precision]
path = 'training.precision.default'
values = ['bf16', 'fp8']
[matrix.axes.lr]
path = 'training.optimizer.learning_rate'
values = [3e-4, 1]
";

#[test]
fn cells_come_in_matrix_order_with_their_settings() {
    let text = format!(
        "{HEAD}
[[exclude]]
where = {{ framework = 'transformers', precision = 'fp8', lr = [1, 3e-4] }}
reason = 'not of interest'
[[override]]
where = {{ model = 'llama' }}
set = {{ training.data.micro_batch_size = 2, \"training.duration.max_steps\" = 9.0 }}
[[override]]
where = {{ platform = 'cuda', framework = 'tran' }}
set = {{ 'training.data' = {{ micro_batch_size = 3, seq_length = 64 }} }}
[[include]]
platform = 'auto'
framework = 'tran'
model = 'llama'
parallelism = 'identical_config'
precision = 'fp32'
"
    );
    let config = shipped();
    let matrix = load_with(&text, &config, Some("rocm")).unwrap();
    assert_eq!(
        (
            matrix.name.as_str(),
            matrix.cells.len(),
            matrix.excluded.len()
        ),
        ("m", 13, 4)
    );
    let ids = ids(&matrix);
    assert_eq!(ids[0], "nvd/native/llama/single@precision=bf16,lr=0.0003");
    assert_eq!(ids[1], "nvd/native/llama/single@precision=bf16,lr=1");
    assert_eq!(ids[2], "nvd/native/llama/single@precision=fp8,lr=0.0003");
    assert_eq!(
        ids[4],
        "nvd/native/llama-3.1-70b-proxy/single@precision=bf16,lr=0.0003"
    );
    assert_eq!(ids[8], "nvd/tran/llama/single@precision=bf16,lr=0.0003");
    assert_eq!(ids[12], "amd/tran/llama/identical_config@precision=fp32");
    assert_eq!(
        (
            matrix.cells[CellId::from(12)].vendor,
            matrix.cells[CellId::from(12)].repeats
        ),
        (Vendor::Amd, 5)
    );
    assert_eq!(
        matrix.excluded[0].0.to_string(),
        "nvd/tran/llama/single@precision=fp8,lr=0.0003"
    );
    assert_eq!(matrix.excluded[0].1, "not of interest");
    let overlay: Vec<String> = matrix.cells[CellId::from(8)]
        .overlay
        .iter()
        .map(|s| format!("{}={} {}", s.path, s.value, s.origin))
        .collect();
    assert_eq!(
        overlay,
        [
            "training.precision.default=\"bf16\" pipelines/m.toml:8:11",
            "training.optimizer.learning_rate=0.0003 pipelines/m.toml:11:11",
            "training.data.micro_batch_size=3 pipelines/m.toml:21:48",
            "training.duration.train_iters=9 pipelines/m.toml:18:77",
            "training.data.seq_length=64 pipelines/m.toml:21:64",
        ]
    );
}

#[test]
fn all_problems_are_reported_at_once_with_their_places() {
    let config = load_config(
        crate::config::tests::SHIPPED,
        &[],
        &["training.optimizer.learning_rate=1"],
    );
    refused(
        &format!(
            "{}
[matrix.axes.model]
path = 'training.data.seq_length'
values = [1]
[matrix.axes.compile]
path = 'training.compile'
values = ['yes', true, true]
[matrix.axes.data]
path = 'models.llama.dataset_path'
values = ['/data/a b']
[[exclude]]
where = {{ framwork = 'native', precision = 'fp16', model = 'lama', platform = 'amd' }}
[[override]]
wher = {{}}
set = {{ training.precision.default = 'fp32', training.sed = 1, training.data.micro_batch_size = 'x', models.llama.rope_scaling = 3 }}
[[include]]
platform = 'auto'
framework = 'fsdp3'
precison = 'bf16'
[exclud]
",
            HEAD.replace("[matrix]", "[matrix]\nrepeats = 0\nnmae = 'x'").replace("'single'", "['single', 'single', 'singel']")
        ),
        &config.unwrap(),
        "\
pipelines/m.toml:33:2: unknown key `exclud` in a matrix file | not a key of a matrix file | did you mean `exclude`?
pipelines/m.toml:3:1: unknown key `nmae` in [matrix] | not a key of [matrix] | did you mean `name`?
pipelines/m.toml:7:26: `parallelism` has `single` twice | two cells would have one name | -
pipelines/m.toml:7:36: unknown strategy `singel` | no strategy has this name | did you mean `single`?
--set:1:1: --set gives `training.optimizer.learning_rate` one value, but the axis `lr` names cells after it | set by an axis | select with --where lr=VALUE
pipelines/m.toml:15:14: an axis cannot be called `model` | the name means something else | -
pipelines/m.toml:20:11: `training.compile` must be true or false, not the text \"yes\" | expected true or false | -
pipelines/m.toml:20:24: `compile` has `true` twice | two cells would have one name | -
pipelines/m.toml:23:11: `/data/a b` cannot stand in a cell's name | not a plain value | leave out spaces, quotes and / , @ # { } * ? [ ] !
pipelines/m.toml:2:11: `repeats` must be a whole number from 1 to 10000 | expected a whole number from 1 to 10000 | -
pipelines/m.toml:32:1: unknown key `precison` in [[include]] | not a key of [[include]] | did you mean `precision`?
pipelines/m.toml:30:12: this host's platform is not known | cannot be resolved | config.yaml declares no platform of this host's kind below hardware.platforms, as in `cpu: { vendor: cpu, num_gpus: 1 }`
pipelines/m.toml:31:13: unknown framework `fsdp3` | no framework has this name | did you mean `fsdp`?
pipelines/m.toml:29:1: [[include]] has no `model` | expected one | -
pipelines/m.toml:29:1: [[include]] has no `parallelism` | expected one | -
pipelines/m.toml:25:11: `where` names an unknown axis `framwork` | no axis has this name | did you mean `framework`?
pipelines/m.toml:25:44: no cell has the precision `fp16` | matches nothing | did you mean `bf16`?
pipelines/m.toml:25:60: no cell has the model `lama` | matches nothing | did you mean `llama`?
pipelines/m.toml:25:79: no cell has the platform `amd` | matches nothing | there are nvd
pipelines/m.toml:24:1: [[exclude]] has no `reason` | say why | -
pipelines/m.toml:27:1: unknown key `wher` in [[override]] | not a key of [[override]] | did you mean `where`?
pipelines/m.toml:26:1: [[override]] has no `where` | of which cells? | -
pipelines/m.toml:28:28: the override sets `training.precision.default`, but the axis `precision` names cells after it | set by an axis | leave it to the axis, or give the axis another value
pipelines/m.toml:28:55: unknown key `training.sed` | not a key of `training` | did you mean `seed`?
pipelines/m.toml:28:97: `training.data.micro_batch_size` must be a whole number of at least 1, not the text \"x\" | expected a whole number of at least 1 | -
pipelines/m.toml:28:130: `models.llama.rope_scaling` is a table, not a value | set one of its keys | -",
    );
}

#[test]
fn files_that_make_no_matrix_say_why() {
    let config = shipped();
    refused(
        "[matrix\nx = 1\ny = = 2\n",
        &config,
        "pipelines/m.toml:1:8: not TOML: unclosed table, expected `]` | here | -",
    );
    refused(
        "[matrix]\nname = \"m\" # a [\nframework = [\"a\", 'b'\nmodel = [\"x\"]\nplatform = [\"cpu\"]\n",
        &config,
        "pipelines/m.toml:3:13: not TOML: this bracket is never closed | its other half is missing | -",
    );
    refused(
        "",
        &config,
        "pipelines/m.toml:1:1: there is no [matrix] |  | a file begins with [matrix]",
    );
    refused(
        "repeats = 2\n[matrix]\nplatform = 'nvd'\nframework = 'fsdp'\nmodel = 'llama'\nparallelism = 'single'\ntrain_iters = 8\nmodels = 'llama'\n[matrix.axes]\nseed = [1, 2]\n",
        &config,
        "\
pipelines/m.toml:1:1: unknown key `repeats` in a matrix file | not a key of a matrix file | `repeats` stands below [matrix]
pipelines/m.toml:7:1: unknown key `train_iters` in [matrix] | not a key of [matrix] | it is a setting, `training.duration.train_iters`: \
`set` of an [[override]] gives it one value, an axis several ([matrix.axes.train_iters] with `path` and `values`)
pipelines/m.toml:8:1: unknown key `models` in [matrix] | not a key of [matrix] | did you mean `model`?
pipelines/m.toml:10:8: the axis `seed` must be a table | expected a table with `path` and `values` | \
an axis is a table below [matrix.axes]: `[matrix.axes.compile]`, then `path = \"training.compile\"` and `values = [false, true]`",
    );
    refused(
        "[matrix]\nplatform = 'nvd'\nmodel = 7\nframework = []\n[matrix.axes.seq]\nvalues = []\n[exclude]\nwhere = {}\n",
        &config,
        "\
pipelines/m.toml:4:13: `framework` is empty | expected at least one | -
pipelines/m.toml:3:9: `model` must be a text or a list of texts, not a value of type integer | expected a text or a list of texts | -
pipelines/m.toml:1:1: [matrix] has no `parallelism` | expected one | -
pipelines/m.toml:6:10: `values` is empty | expected at least one | -
pipelines/m.toml:5:14: axis `seq` has no `path` | expected one | -
pipelines/m.toml:7:1: `exclude` must be a list of tables | a single one | write [[exclude]]",
    );
    let all = format!("{HEAD}[[exclude]]\nwhere = {{}}\nreason = 'all'\n");
    refused(
        &all,
        &config,
        &format!(
            "pipelines/m.toml:{}:1: the matrix has no cells | excludes every cell, alone or with others | \
             narrow `where` of an [[exclude]], or remove it",
            1 + HEAD.lines().count()
        ),
    );
    let twice = format!(
        "{HEAD}[[include]]\nplatform = 'nvd'\nframework = 'hf'\nmodel = 'llama'\nparallelism = 'single'\n\
        precision = 'fp8'\nlr = 1.0\n"
    );
    refused(
        &twice,
        &config,
        "pipelines/m.toml:12:1: [[include]] makes nvd/tran/llama/single@precision=fp8,lr=1, which is there already | a second one | -",
    );
    let two = load_config(
        "hardware: { platforms: { h100: { vendor: nvd }, h200: { vendor: nvd } } }",
        &[],
        &[],
    )
    .unwrap();
    refused(
        "[matrix]\nplatform = ['nvidia', 'h20', 'h100']\nframework = 'tran'\nmodel = 'a'\nparallelism = 'b'\n",
        &two,
        "\
pipelines/m.toml:2:13: platform `nvidia` may be any of h100, h200 | which one? | name it by its id
pipelines/m.toml:2:23: unknown platform `h20` | no platform has this name | did you mean `h200`?
pipelines/m.toml:4:9: unknown model `a` | no model has this name | declare it under `models` in config.yaml
pipelines/m.toml:5:15: unknown strategy `b` | no strategy has this name | declare it under `parallelism` in config.yaml",
    );
    let seeds = (0..1001)
        .map(|seed| seed.to_string())
        .collect::<Vec<_>>()
        .join(",");
    let axis = |name: &str, path: &str| {
        format!("[matrix.axes.{name}]\npath = '{path}'\nvalues = [{seeds}]\n")
    };
    let huge = format!(
        "{HEAD}{}{}",
        axis("seed", "training.seed"),
        axis("warm", "training.optimizer.warmup_steps")
    );
    refused(
        &huge,
        &config,
        "pipelines/m.toml:1:1: the matrix has more than 1000000 cells |  | -",
    );
}

fn shipped_matrix(name: &str) -> Matrix {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("pipelines")
        .join(name);
    let text = crate::files::read_to_string(&path).unwrap();
    load_with(&text, &shipped(), None).unwrap_or_else(|problems| panic!("{}", show(&problems)))
}

#[test]
fn shipped_matrices_hold_what_they_promise() {
    let matrix = shipped_matrix("matrix.toml");
    assert_eq!(
        (matrix.name.as_str(), matrix.cells.len()),
        ("amd-vs-nvidia", 9 * 2 * 2 * 2 - 4)
    );
    assert_eq!(matrix.excluded.len(), 4, "tran on 80 GB cards");
    assert!(ids(&matrix).contains(&"amd/prim/llama/maximum_performance".to_owned()));
    let quick = shipped_matrix("quickstart.toml");
    assert_eq!(
        ids(&quick),
        [
            "cpu/native/llama-tiny/single",
            "cpu/native/qwen-tiny/single",
            "cpu/tran/llama-tiny/single",
            "cpu/tran/qwen-tiny/single"
        ]
    );
    assert!(quick.cells.iter().all(|cell| cell.repeats == 3));
    let (config, defaults) = (shipped(), crate::config::Values::default());
    let view = config.view(&defaults, &quick.cells[CellId::from(0)].overlay);
    let training: crate::config::schema::Training = view.section();
    assert_eq!(training.data.seq_length, Some(128));
    assert_eq!(training.optimizer.learning_rate, Some(3e-3));
    assert_eq!(training.precision.default, "fp32");
    assert_eq!(training.optimizer.beta2.to_bits(), 0.95_f64.to_bits());
    let single = ids(&shipped_matrix("single-gpu.toml"));
    assert_eq!(
        (single.len(), single[3].as_str()),
        (12, "nvd/tran/llama-1b/single@compile=true")
    );
    let multi = ids(&shipped_matrix("multi-gpu.toml"));
    let frameworks = ["tran/llama-1b", "fsdp/llama", "deep/llama", "mega/llama"];
    assert_eq!(multi, frameworks.map(|f| format!("h200/{f}/four_gpus")));
}

fn selected(matrix: &Matrix, selection: &Selection) -> Result<Vec<String>, String> {
    let keep = selection
        .select(&matrix.cells)
        .map_err(|error| match error {
            Error::NothingSelected { message, help } => {
                format!("{message} | {}", help.unwrap_or_default())
            }
            Error::Invalid(problems) => show(&problems),
            other => panic!("{other}"),
        })?;
    Ok(matrix
        .cells
        .iter()
        .zip(keep)
        .filter(|(_, keep)| *keep)
        .map(|(cell, _)| cell.to_string())
        .collect())
}

fn only(patterns: &[&str]) -> Selection {
    Selection {
        only: patterns.iter().map(|p| (*p).to_owned()).collect(),
        ..Selection::default()
    }
}

#[test]
fn patterns_select_by_leading_segments_globs_axes_and_aliases() {
    let matrix = shipped_matrix("matrix.toml");
    let count = |patterns: &[&str]| selected(&matrix, &only(patterns)).unwrap().len();
    assert_eq!(count(&[]), 68);
    assert_eq!(count(&["amd/prim/llama"]), 2);
    assert_eq!(
        count(&["rocm/primus/llama", "amd/prim/llama/identical_config"]),
        2
    );
    assert_eq!(count(&["nvd/*/qwen"]), 16);
    assert_eq!(count(&["*/{fsdp,transformers}"]), 12);
    assert_eq!(count(&["{nvidia,amd}/t*/"]), 12);
    assert_eq!(count(&["*/*/*/max*"]), 34);
    let single = shipped_matrix("single-gpu.toml");
    let named = |pattern: &str| selected(&single, &only(&[pattern])).unwrap();
    assert_eq!(
        named("nvd/tran@compile=true"),
        ["nvd/tran/llama-1b/single@compile=true"]
    );
    assert_eq!(named("@compile={false,no}").len(), 6);
    assert_eq!(named("compile={false,no}"), named("@compile={false,no}"));
    let selection = Selection {
        skip: vec!["*/{native,fsdp,deep,mega,titan}".into()],
        where_: vec!["compile=f*".into()],
        ..Selection::default()
    };
    assert_eq!(
        selected(&single, &selection).unwrap(),
        ["nvd/tran/llama-1b/single@compile=false"]
    );
    let either = Selection {
        where_: vec!["compile=true".into(), "compile=false".into()],
        ..Selection::default()
    };
    assert_eq!(selected(&single, &either).unwrap().len(), 12);
}

#[test]
fn the_environment_filters() {
    let matrix = shipped_matrix("matrix.toml");
    let env = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    };
    let all = only(&["amd"]).with_environment(&env(&[
        ("FRAMEWORKS", "nemo,transformers, later"),
        ("PARALLEL", "identical_config"),
    ]));
    assert_eq!(selected(&matrix, &all).unwrap().len(), 4);
    let none = Selection::default().with_environment(&env(&[("PARALLEL", "identical_confg")]));
    assert_eq!(
        selected(&matrix, &none).unwrap_err(),
        "PARALLEL=identical_confg: no cell has the parallelism `identical_confg` | did you mean `identical_config`?"
    );
}

#[test]
fn what_selects_nothing_names_the_nearest() {
    let (matrix, single) = (
        shipped_matrix("matrix.toml"),
        shipped_matrix("single-gpu.toml"),
    );
    let none =
        |matrix: &Matrix, pattern: &str| selected(matrix, &only(&["nvd", pattern])).unwrap_err();
    assert_eq!(
        none(&matrix, "amd/prmi/llama"),
        "--only amd/prmi/llama: no cell has the framework `prmi` | did you mean `prim`?"
    );
    assert_eq!(
        none(&matrix, "llama"),
        "--only llama: no cell has the platform `llama` | `llama` is a model: --only '*/*/llama'"
    );
    assert_eq!(
        none(&matrix, "zzzzzzzz"),
        "--only zzzzzzzz: no cell has the platform `zzzzzzzz` | there are nvd, amd"
    );
    assert_eq!(
        selected(
            &shipped_matrix("multi-gpu.toml"),
            &only(&["h200/tran/llama"])
        )
        .unwrap_err(),
        "--only h200/tran/llama: no cell has all of these | the nearest cell is h200/tran/llama-1b/four_gpus"
    );
    assert_eq!(
        none(&single, "nvd@compil=true"),
        "--only nvd@compil=true: there is no axis `compil` | did you mean `compile`?"
    );
    assert_eq!(
        none(&matrix, "a/b/c/d/e"),
        "--only:1:1: --only a/b/c/d/e: platform/framework/model/parallelism is all there is | not a selection | -"
    );
    assert_eq!(
        none(&matrix, "{nvd"),
        "--only:1:1: --only {nvd: unclosed alternate group; missing '}' (maybe escape '{' with '[{]'?) | not a pattern | -"
    );
    let where_ = |text: &str| {
        selected(
            &single,
            &Selection {
                where_: vec![text.into()],
                ..Selection::default()
            },
        )
        .unwrap_err()
    };
    assert_eq!(
        where_("compil=true"),
        "--where:1:1: unknown axis `compil` | no axis has this name | did you mean `compile`?"
    );
    assert_eq!(
        where_("compile"),
        "--where:1:1: --where compile has no value | expected AXIS=VALUE | as in --where precision=fp8"
    );
    assert_eq!(
        where_("compile=tru"),
        "--where compile=tru: no cell has the compile `tru` | did you mean `true`?"
    );
}

#[test]
fn shards_part_the_matrix() {
    let matrix = shipped_matrix("matrix.toml");
    let shard = |i, n| {
        Selection {
            shard: Some((i, n)),
            ..Selection::default()
        }
        .select(&matrix.cells)
    };
    let mut times = vec![0; matrix.cells.len()];
    for i in 1..=5 {
        shard(i, 5)
            .unwrap()
            .iter()
            .zip(&mut times)
            .for_each(|(keep, times)| *times += u32::from(*keep));
    }
    assert!(times.iter().all(|times| *times == 1));
    assert!(!shard(73, 100).unwrap().contains(&true));
    assert_eq!(Selection::parse_shard("2/8").unwrap(), (2, 8));
    for text in ["0/8", "9/8", "2", "a/b", "1/0", "-1/2"] {
        assert!(Selection::parse_shard(text).is_err(), "{text}");
    }
}

/// What a cell is, said naively.
type Naive = (String, Vec<(String, String)>);

const PLATFORMS: [&str; 3] = ["nvd", "amd", "cpu"];
const FRAMEWORKS: [&str; 3] = ["native", "tran", "fsdp"];
const PRECISIONS: [&str; 3] = ["fp32", "bf16", "fp8"];

/// `where` of a random exclude or override: values by index, `None` = any.
type Condition = (Option<usize>, Option<usize>, Option<usize>);

proptest! {
    #[test]
    fn expansion_is_the_nested_loop(
        sizes in (1..4_usize, 1..4_usize, 0..4_usize),
        excludes in prop::collection::vec((prop::option::of(0..3_usize), prop::option::of(0..3_usize), prop::option::of(0..3_usize)), 0..3),
        overrides in prop::collection::vec(((prop::option::of(0..3_usize), prop::option::of(0..3_usize), prop::option::of(0..3_usize)), 0..2_usize, 1..9_u32), 0..4),
    ) {
        let (platforms, frameworks, precisions) = (&PLATFORMS[..sizes.0], &FRAMEWORKS[..sizes.1], &PRECISIONS[..sizes.2]);
        let in_range = |(p, f, v): &Condition| {
            p.is_none_or(|p| p < sizes.0) && f.is_none_or(|f| f < sizes.1) && v.is_none_or(|v| v < sizes.2)
        };
        let excludes: Vec<Condition> = excludes.into_iter().filter(in_range).collect();
        let overrides: Vec<_> = overrides.into_iter().filter(|(condition, ..)| in_range(condition)).collect();
        const PATHS: [&str; 2] = ["training.seed", "training.sac_frequency"];

        let condition = |(p, f, v): &Condition| {
            let mut parts = Vec::new();
            parts.extend(p.map(|p| format!("platform = '{}'", PLATFORMS[p])));
            parts.extend(f.map(|f| format!("framework = ['{}']", FRAMEWORKS[f])));
            parts.extend(v.map(|v| format!("precision = '{}'", PRECISIONS[v])));
            format!("where = {{ {} }}\n", parts.join(", "))
        };
        let mut text = format!("[matrix]\nplatform = {platforms:?}\nframework = {frameworks:?}\nmodel = 'llama'\nparallelism = 'single'\n");
        if sizes.2 > 0 {
            text += &format!("[matrix.axes.precision]\npath = 'training.precision.default'\nvalues = {precisions:?}\n");
        }
        for exclude in &excludes {
            text += &format!("[[exclude]]\n{}reason = 'r'\n", condition(exclude));
        }
        for (place, path, value) in &overrides {
            text += &format!("[[override]]\n{}set = {{ '{}' = {value} }}\n", condition(place), PATHS[*path]);
        }

        let mut expected: Vec<Naive> = Vec::new();
        for (p, platform) in platforms.iter().enumerate() {
            for (f, framework) in frameworks.iter().enumerate() {
                for v in 0..sizes.2.max(1) {
                    let holds = |c: &Condition| c.0.is_none_or(|x| x == p) && c.1.is_none_or(|x| x == f) && c.2.is_none_or(|x| x == v);
                    if excludes.iter().any(&holds) {
                        continue;
                    }
                    let axis = precisions.get(v).map_or(String::new(), |value| format!("@precision={value}"));
                    let mut settings = BTreeMap::new();
                    settings.extend(precisions.get(v).map(|value| ("training.precision.default".to_owned(), format!("{value:?}"))));
                    for (_, path, value) in overrides.iter().filter(|(place, ..)| holds(place)) {
                        settings.insert(PATHS[*path].to_owned(), value.to_string());
                    }
                    let id = format!("{platform}/{framework}/llama/single{axis}");
                    expected.push((id, settings.into_iter().collect()));
                }
            }
        }
        match load_with(&text, &shipped(), None) {
            Err(problems) => {
                prop_assert!(expected.is_empty(), "{}", show(&problems));
                prop_assert_eq!(&problems[0].message, "the matrix has no cells");
            }
            Ok(matrix) => {
                let found: Vec<Naive> = matrix.cells.iter().map(|cell| {
                    let mut settings: Vec<_> = cell.overlay.iter().map(|s| (s.path.to_string(), s.value.to_string())).collect();
                    settings.sort();
                    (cell.to_string(), settings)
                }).collect();
                prop_assert_eq!(&found, &expected);
                prop_assert_eq!(matrix.cells.len() + matrix.excluded.len(), sizes.0 * sizes.1 * sizes.2.max(1));
            }
        }
    }

    #[test]
    fn no_mutation_makes_it_panic(at in 0..FULL.len(), len in 0..30_usize, new in "[a-z0-9={}\\[\\], \n\"'.#]{0,6}|\\PC{0,3}") {
        let end = (at + len).min(FULL.len());
        exercise(&format!("{}{new}{}", &FULL[..at], &FULL[end..]));
    }

    #[test]
    fn no_text_makes_it_panic(text in "\\PC{0,60}|[a-z={}\\[\\], \n\"'.#]{0,80}") {
        exercise(&text);
        let _ = only(&[&text]).select(&[]);
        let matrix = shipped_matrix("single-gpu.toml");
        let _ = only(&[&text]).select(&matrix.cells);
        let _ = Selection { where_: vec![text], ..Selection::default() }.select(&matrix.cells);
    }
}

const FULL: &str = "\
[matrix]
name = 'x'
platform = ['nvd', 'auto']
framework = ['native', 'tran']
model = 'llama'
parallelism = ['single']
repeats = 2
[matrix.axes.precision]
path = 'training.precision.default'
values = ['bf16', 'fp8']
[[exclude]]
where = { framework = 'tran', precision = ['fp8'] }
reason = 'r'
[[override]]
where = { platform = 'amd' }
set = { 'training.seed' = 2, training.data = { seq_length = 64 } }
[[include]]
platform = 'cpu'
framework = 'native'
model = 'llama-tiny'
parallelism = 'single'
";

/// Whatever it says, every caret is inside its text.
fn exercise(text: &str) {
    std::thread_local!(static CONFIG: Config = shipped());
    CONFIG.with(|config| match load_with(text, config, Some("amd")) {
        Ok(matrix) => assert!(!matrix.cells.is_empty()),
        Err(problems) => {
            assert!(!problems.is_empty());
            for (source, span) in problems.iter().filter_map(|problem| problem.place.as_ref()) {
                assert!(source.text.get(span.clone()).is_some());
            }
        }
    });
}

#[test]
fn a_matrix_says_across_which_fields_its_comparison_goes() {
    let of = |line: &str| {
        format!(
            "[matrix]\n{line}\n{}",
            HEAD.trim_start_matches("[matrix]\n")
        )
    };
    let matrix = load_with(
        &of("across = ['seq_length', 'precision']"),
        &shipped(),
        None,
    );
    assert_eq!(matrix.unwrap().across, ["seq_length", "precision"]);
    let problems = load_with(&of("across = 'seq_lenght'"), &shipped(), None).unwrap_err();
    let said = show(&problems);
    assert!(
        said.contains("no field of a workload is called `seq_lenght`"),
        "{said}"
    );
    assert!(said.contains("seq_length"), "{said}");
}

#[test]
fn the_schema_has_the_keys_that_the_reader_takes() {
    let schema: serde_json::Value = serde_json::from_str(SCHEMA).unwrap();
    let keys = |properties: &serde_json::Value| -> Vec<String> {
        let mut keys: Vec<String> = properties.as_object().unwrap().keys().cloned().collect();
        keys.sort();
        keys
    };
    let sorted = |keys: &[&str]| {
        let mut keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
        keys.sort();
        keys
    };
    assert_eq!(keys(&schema["properties"]), sorted(file::FILE_KEYS));
    let table = &schema["$defs"]["MatrixTable"];
    assert_eq!(keys(&table["properties"]), sorted(file::KEYS));
    assert_eq!(table["required"], serde_json::json!(cell::BASE));
}
