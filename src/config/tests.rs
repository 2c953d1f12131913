//! Tests of the whole: layers, places and messages.

mod older_suites;
mod properties;
mod shipped;

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::{
    error::{Error, Problem, Source},
    job::Vendor,
};

pub(crate) const SHIPPED: &str = include_str!("../../config.yaml");

pub(crate) fn shipped() -> Config {
    load(SHIPPED, &[], &[]).unwrap()
}

pub(crate) fn load(
    text: &str,
    env: &[(&str, &str)],
    sets: &[&str],
) -> Result<Config, Vec<Problem>> {
    let env = env
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect();
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    Config::load(Source::new("config.yaml", text), &env, &sets).map_err(|error| match error {
        Error::Invalid(problems) => problems,
        other => panic!("{other}"),
    })
}

/// `file:line:column: message | label | help`, a line a problem.
pub(crate) fn show(problems: &[Problem]) -> String {
    let line = |p: &Problem| format!("{p} | {} | {}", p.label, p.help.as_deref().unwrap_or("-"));
    problems.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[track_caller]
fn refused(text: &str, env: &[(&str, &str)], sets: &[&str], expected: &str) {
    let problems = load(text, env, sets).expect_err("it should be refused");
    assert_eq!(show(&problems), expected);
}

const SMALL: &str = "\
hardware:
  platforms:
    nvd: { num_gpus: 8 }
    h200: { vendor: nvidia, num_gpus: 4 }
    amd: { vendor: rocm, num_gpus: 8 }
models:
  gpt2-1.5b: { num_layers: 48 }
  llama: { num_layers: 32, num_parameters: 8.0e9 }
training:
  data: { micro_batch_size: 2, seq_length: 2048 }
  duration: { max_steps: 50 }
parallelism:
  fast:
    llama: { TP: 2, nvidia: { TP: 4, transformers: { DP: 8 } } }
frameworks:
  tran: { full_name: Transformers, extra: { depth: 1 } }
";

/// Where the effective value comes from, in words.
fn origin(config: &Config, path: &str) -> String {
    config
        .effective()
        .find(|(p, ..)| *p == path)
        .unwrap()
        .2
        .to_string()
}

#[test]
fn aliases_numbers_and_ids_with_dots_are_read_as_meant() {
    let config = load(
        SMALL,
        &[],
        &[
            "models.gpt2-1.5b.num_layers=12",
            "training.duration.max_steps=7",
        ],
    )
    .unwrap();
    assert_eq!(
        config.get("models.llama.num_parameters"),
        Some(&json!(8_000_000_000_u64))
    );
    assert_eq!(config.get("models.gpt2-1.5b.num_layers"), Some(&json!(12)));
    assert_eq!(config.get("training.duration.train_iters"), Some(&json!(7)));
    assert_eq!(config.get("training.optimizer.beta2"), Some(&json!(0.95)));
    assert_eq!(origin(&config, "training.optimizer.beta2"), "built in");
    assert_eq!(
        origin(&config, "training.data.seq_length"),
        "config.yaml:10:44"
    );
    assert_eq!(
        config.children("models").collect::<Vec<_>>(),
        ["gpt2-1.5b", "llama"]
    );
    assert_eq!(config.vendor("h200"), Some(Vendor::Nvd));
    assert_eq!(config.platforms_named("nvidia"), ["nvd"]);
    assert_eq!(config.platforms_named("rocm"), ["amd"]);
    assert!(config.platforms_named("tpu").is_empty());
    // The file spells it `max_steps`; the caret must find it all the same.
    let file = load(SMALL, &[], &[]).unwrap();
    assert_eq!(
        origin(&file, "training.duration.train_iters"),
        "config.yaml:11:26"
    );
}

#[test]
fn variables_expand_before_typing() {
    let text = "training: { seed: \"${N:-8}\" }\npaths: { primus: \"${ROOT}/primus\", output: \"${N:-8}\" }\n\
        frameworks:\n  tran:\n    quoted: \"${N:-8}\"\n    plain: ${N:-8}\n    list: [\"${ROOT}\", 2]\n    many: ${ROOT} ${N:-1}\n";
    let config = load(text, &[("ROOT", "/opt"), ("CONFIG_OUTPUT_DIR", "")], &[]).unwrap();
    let values = ["training.seed", "paths.primus", "paths.output"]
        .map(|path| config.get(path).unwrap().clone());
    assert_eq!(values, [json!(8), json!("/opt/primus"), json!("8")]);
    let open = ["quoted", "plain", "list", "many"]
        .map(|k| config.get(&format!("frameworks.tran.{k}")).unwrap().clone());
    assert_eq!(
        open,
        [json!("8"), json!(8), json!(["/opt", 2]), json!("/opt 1")]
    );
}

#[test]
fn anchors_and_merges_give_values_with_places() {
    let text = "models:\n  a: &a\n    num_layers: 2\n    hidden_size: 64\n  b:\n    <<: *a\n    num_layers: 3\n  c: *a\n";
    let config = load(text, &[], &[]).unwrap();
    let get = |path: &str| {
        (
            config.get(path).unwrap().as_u64().unwrap(),
            origin(&config, path),
        )
    };
    assert_eq!(get("models.b.num_layers"), (3, "config.yaml:7:17".into()));
    assert_eq!(get("models.b.hidden_size"), (64, "config.yaml:4:18".into()));
    assert_eq!(get("models.c.num_layers"), (2, "config.yaml:3:17".into()));
}

#[test]
fn all_problems_are_reported_at_once_with_their_places() {
    refused(
        "training:\n  data:\n    seq_lenght: 4096\n    micro_batch_size: two\n  compile: \"yes\"\n  precision: { default: bf61 }\n\
        modles: {}\nmodels: { llama: { num_layers: 0, name: 7, num_heads: 3 } }\nhardware: { platforms: { tpu: {} } }\n",
        &[("TRAIN_ITERS", "many")],
        &["training.data.seq_len=1", "duration.train_iters=1", "train_iters=1", "training.seed=x", "models.lama.num_layers=3", "training"],
        "\
config.yaml:3:5: unknown key `training.data.seq_lenght` | not a key of `training.data` | did you mean `seq_length`?
config.yaml:4:23: `training.data.micro_batch_size` must be a whole number of at least 1, not the text \"two\" | expected a whole number of at least 1 | -
config.yaml:5:12: `training.compile` must be true or false, not the text \"yes\" | expected true or false | -
config.yaml:6:25: `training.precision.default` must be one of fp32, bf16, fp16, fp8, mxfp8, nvfp4, mxfp4, not the text \"bf61\" | expected one of fp32, bf16, fp16, fp8, mxfp8, nvfp4, mxfp4 | did you mean `bf16`?
config.yaml:7:1: unknown key `modles` | not a section | did you mean `models`?
config.yaml:8:32: `models.llama.num_layers` must be a whole number of at least 1, not 0 | expected a whole number of at least 1 | -
config.yaml:8:41: `models.llama.name` must be a text, not 7 | expected a text | write \"7\" in quotes
config.yaml:8:44: unknown key `models.llama.num_heads` | not a key of `models.llama` | write `num_attention_heads`
environment:1:13: `training.duration.train_iters` must be a whole number of at least 1, not the text \"many\" | expected a whole number of at least 1 | -
--set:1:1: unknown key `training.data.seq_len` | not a key of `training.data` | write `seq_length`
--set:1:1: unknown key `duration` | not a section | known: experiment, hardware, models, training, parallelism, platform_optimizations, frameworks, execution, benchmarking, comparison, paths, profiling, validation
--set:1:1: unknown key `train_iters` | not a section | write `training.duration.train_iters`
--set:1:15: `training.seed` must be a whole number of at least 0, not the text \"x\" | expected a whole number of at least 0 | -
--set:1:1: unknown id `lama` in `models` | `models` has no `lama` | did you mean `llama`?
--set:1:1: --set training has no value | expected PATH=VALUE | as in --set training.seed=7
config.yaml:9:26: `hardware.platforms.tpu` has no vendor | whose hardware is it? | add `vendor: nvd`, `vendor: amd` or `vendor: cpu`",
    );
}

#[test]
fn what_is_not_yaml_says_where() {
    refused(
        "a: [1, 2\nb: 3\n",
        &[],
        &[],
        "config.yaml:2:2: not YAML: did not find expected ',' or ']' | here | -",
    );
    refused(
        "training:\n\tseed: 1\n",
        &[],
        &[],
        "config.yaml:2:1: not YAML: found character that cannot start any token | here | this is a tab: YAML is indented with spaces",
    );
    refused(
        "training:\n  seed: 1\n  seed: 2\nmodels: {}\nmodels: {}\n",
        &[],
        &[],
        "config.yaml:3:3: the key `seed` is given twice | again here | line 2 has it already: leave one of the two out\n\
        config.yaml:5:1: the key `models` is given twice | again here | line 4 has it already: leave one of the two out",
    );
    refused(
        "- 1\n",
        &[],
        &[],
        "config.yaml:1:1: config.yaml must be a table | expected a table | -",
    );
    assert!(load("", &[], &[]).is_ok());
}

#[test]
fn values_that_cannot_be_meant_are_refused() {
    refused(
        "training: { seed: \"${SEED}\", duration: { max_steps: 3, train_iters: 4 }, optimizer: { eps: .nan } }\n\
        paths: { output: !here x }\nbenchmarking: { warmup: 3 }\nfrom: 1\n",
        &[],
        &[],
        "\
config.yaml:1:19: `training.seed`: the environment variable SEED is not set | cannot be expanded | `${NAME:-default}` stands in where it is not set; `$NAME` or `$${NAME}` is left to the shell of the run
config.yaml:1:56: `training.duration.train_iters` is given twice, as `training.duration.max_steps` too | the same key, with another value | leave one of them out
config.yaml:1:92: `training.optimizer.eps` is not a finite number | is not a finite number | -
config.yaml:2:18: `paths.output` has the tag !here, and tags mean nothing here | has the tag !here, and tags mean nothing here | -
config.yaml:3:25: `benchmarking.warmup` must be a table, not 3 | expected a table | -
config.yaml:4:1: unknown key `from` | not a section | known: experiment, hardware, models, training, parallelism, \
platform_optimizations, frameworks, execution, benchmarking, comparison, paths, profiling, validation",
    );
}

/// What would take more of the stack, or of the night, than there is.
#[test]
fn what_is_nested_without_end_is_refused_with_the_bound() {
    let told =
        |text: &str, sets: &[&str]| show(&load(text, &[], sets).expect_err("it should be refused"));
    let brackets = told(&format!("models: {}", "[".repeat(200_000)), &[]);
    assert!(
        brackets.contains("brackets are nested more than 64 deep"),
        "{brackets}"
    );
    let path = format!("frameworks{}=1", ".a".repeat(20_000));
    assert!(told(SMALL, &[&path]).contains("a path has at most 32 keys"));
}

#[test]
fn figures_that_are_none_are_refused() {
    let costs = "benchmarking:\n  enhanced_metrics:\n    cloud_costs:\n";
    let with = |below: &str| format!("{SMALL}{costs}{below}");
    for (below, expected) in [
        (
            "      nvd: { per_gpu_hour: -1 }\n",
            "20:28: `benchmarking.enhanced_metrics.cloud_costs.nvd.per_gpu_hour` must be a number of at least 0, not -1 | expected a number of at least 0 | -",
        ),
        (
            "      nvd: 32\n",
            "20:12: `benchmarking.enhanced_metrics.cloud_costs.nvd` must be a table, not 32 | expected a table | an hour of one GPU: `nvd: { per_gpu_hour: 32 }`",
        ),
        (
            "      nvd: { per_gpu_hour: 0 }\n",
            "20:28: `benchmarking.enhanced_metrics.cloud_costs.nvd.per_gpu_hour` must be above 0, not 0 | not a quantity | leave the platform out if you have no price for it",
        ),
        (
            "      nvd: { per_gpu_hour: three }\n",
            "20:28: `benchmarking.enhanced_metrics.cloud_costs.nvd.per_gpu_hour` must be a number of at least 0, not the text \"three\" | expected a number of at least 0 | -",
        ),
        (
            "      nvd: { per_gpu_hour: .inf }\n",
            "20:28: `benchmarking.enhanced_metrics.cloud_costs.nvd.per_gpu_hour` is not a finite number | is not a finite number | -",
        ),
        (
            "      nvd: { per_gpu_hour: 2, currency: US $ }\n",
            "20:41: `benchmarking.enhanced_metrics.cloud_costs.nvd.currency` must be a code of three letters, not `US $` | no currency code | write EUR for euros, USD for US dollars",
        ),
        (
            "      nvd: { per_gpu_hour: 2, currency: € }\n",
            "20:41: `benchmarking.enhanced_metrics.cloud_costs.nvd.currency` must be a code of three letters, not `€` | no currency code | write EUR for euros, USD for US dollars",
        ),
        (
            "      nvd: {}\n    hardware_specs: { nvd: { tdp_watts: 700 } }\n",
            "21:30: the TDP of `nvd` has no source | state its source | add `benchmarking.enhanced_metrics.hardware_specs.nvd.source`: a data sheet or a measurement",
        ),
        (
            "      nvd: {}\n    hardware_specs: { nvd: { peak_flops: { bf16: 989.4 }, source: x } }\n",
            "21:50: `benchmarking.enhanced_metrics.hardware_specs.nvd.peak_flops.bf16` is 989.4 FLOP/s | not a quantity | FLOP/s of one device, dense: 989.4 TFLOP/s is 989.4e12",
        ),
        (
            "      nvd: {}\ncomparison: { target_loss: low }\n",
            "21:28: `comparison.target_loss` must be a number above 0, not \"low\" | no loss | nats per token, as trainers log it",
        ),
        (
            "      nvd: {}\ncomparison: { target_loss: { llama: 0, lama: 2.5 } }\n",
            "21:37: `comparison.target_loss.llama` must be a number above 0, not 0 | no loss | nats per token, as trainers log it\nconfig.yaml:21:40: unknown model `lama` in `comparison.target_loss` | no model has this name | did you mean `llama`?",
        ),
    ] {
        refused(&with(below), &[], &[], &format!("config.yaml:{expected}"));
    }
    load(
        &with(
            "      nvd: { per_gpu_hour: 2.5, currency: EUR }\ncomparison: { target_loss: 2.5 }\n",
        ),
        &[],
        &[],
    )
    .unwrap();
}

#[test]
fn names_that_nothing_declares_are_refused() {
    let text = format!(
        "{SMALL}platform_optimizations: {{ adm: {{}} }}\nbenchmarking:\n  enhanced_metrics:\n    hardware_specs: {{ amd: {{ peak_flops: {{ bf16: 1.0e15 }} }} }}\n"
    )
    .replace("transformers:", "trann:")
    .replace("llama: { TP", "lama: { TQ: 1, TP")
    .replace("  llama: { num", "  \"a/b\": {}\n  llama: { num");
    refused(
        &text,
        &[],
        &[],
        "\
config.yaml:15:13: unknown key `parallelism.fast.lama.TQ` | not a key of `parallelism.fast.lama` | did you mean `TP`?
config.yaml:8:3: `a/b` in `models` cannot be a name | not a plain name | call it `b`; a matrix may say `a/b` all the same
config.yaml:18:27: unknown platform `adm` in `platform_optimizations` | no platform has this name | did you mean `amd`?
config.yaml:21:30: the peak rates of `amd` name no source | state its source | add `benchmarking.enhanced_metrics.hardware_specs.amd.source`: a data sheet or a measurement
config.yaml:15:5: unknown key `parallelism.fast.lama` | no model, platform or framework has this name | did you mean `llama`?",
    );
    refused(
        &SMALL.replace("transformers:", "trann:"),
        &[],
        &[],
        "config.yaml:14:38: unknown key `parallelism.fast.llama.nvidia.trann` | no framework has this name | did you mean `tran`?",
    );
}

#[test]
fn a_table_is_not_a_value_and_a_value_no_table() {
    refused(
        SMALL,
        &[],
        &["training.data=3", "frameworks.tran.extra=3", "frameworks.tran.full_name.x=3", "training.data={seq_length: x}"],
        "\
--set:1:15: `training.data` is a table, not a value | set one of its keys | -
--set:1:23: `frameworks.tran.extra` is a table, not a value | set one of its keys | -
--set:1:1: `frameworks.tran.full_name` is a value, not a table | nothing is below `frameworks.tran.full_name` | -
--set:1:15: `training.data.seq_length` must be a whole number of at least 1, not the text \"x\" | expected a whole number of at least 1 | -",

    );
}

#[test]
fn a_set_may_narrow_a_strategy_for_what_is_declared() {
    let sets = [
        "parallelism.fast.gpt2-1.5b.rocm.DP=8",
        "parallelism.fast.num_gpus=3",
        "parallelism.fast.deep.GA=2",
    ];
    let config = load(SMALL, &[], &sets).unwrap();
    let (path, block) = config
        .general()
        .parallelism("fast", "gpt2-1.5b", "amd", Vendor::Amd, "tran")
        .unwrap();
    assert_eq!(
        (&*path, block.data_parallel_size, block.num_gpus),
        ("parallelism.fast.gpt2-1.5b.rocm", Some(8), None)
    );
    refused(
        SMALL,
        &[],
        &[
            "parallelism.fast.lama.DP=8",
            "parallelism.fst.DP=8",
            "parallelism.fast.TPP=8",
            "parallelism.fast.amd.llama.DP=1",
        ],
        "\
--set:1:1: unknown key `parallelism.fast.lama` | no model, platform or framework has this name | did you mean `llama`?
--set:1:1: unknown id `fst` in `parallelism` | `parallelism` has no `fst` | did you mean `fast`?
--set:1:1: unknown key `parallelism.fast.TPP` | no model, platform or framework has this name | did you mean `PP`?
--set:1:31: unknown key `parallelism.fast.amd.llama` | out of order | the order is model, platform, framework",
    );
}

#[test]
fn set_of_nothing_unsets() {
    let text = "models: { a: { rope_scaling: { factor: 8 }, rope_theta: 1 } }\n";
    let config = load(
        text,
        &[],
        &["models.a.rope_scaling=", "models.a.rope_theta=null"],
    )
    .unwrap();
    let model = &config.settings().models["a"];
    assert_eq!(
        model.rope_scaling.as_ref().map(|scaling| scaling.factor),
        Some(None)
    );
    assert_eq!(model.rope_theta, None);
}

#[test]
fn problems_point_at_whoever_gave_the_value() {
    let config = load(
        SMALL,
        &[("CONFIG_NVD_NUM_GPUS", "3")],
        &["training.seed = 9"],
    )
    .unwrap();
    let at = |path: &str| config.problem_at(path, "bad", "here").to_string();
    assert_eq!(
        at("hardware.platforms.nvd.num_gpus"),
        "environment:1:21: bad"
    );
    assert_eq!(at("training.seed"), "--set:1:16: bad");
    assert_eq!(at("models.llama.num_layers"), "config.yaml:8:24: bad");
    assert_eq!(at("models.llama.vocab_size"), "config.yaml:8:3: bad");
    assert_eq!(
        at("parallelism.fast.llama.nvidia.tensor_model_parallel_size"),
        "config.yaml:14:35: bad"
    );
    assert_eq!(at("nowhere"), "config.yaml:1:1: bad");
    let setting = Setting {
        path: "training.seed".into(),
        value: json!("x"),
        origin: Origin::Matrix {
            source: Source::new("m.toml", "\nseed = 'x'"),
            span: 8..11,
        },
    };
    let (defaults, overlay) = (Values::default(), [setting]);
    let plain = load(SMALL, &[], &[]).unwrap();
    let view = plain.view(&defaults, &overlay);
    let problem = view.problem_at("training.seed", "bad", "here");
    assert_eq!(problem.to_string(), "m.toml:2:8: bad");
}

#[test]
fn a_wrong_value_is_as_good_as_none_and_known_to_be_wrong() {
    let text = "training: { seed: x, duration: { train_iters: 9 } }\nmodels: { a: { num_layers: 2, head_dim: [] } }\n";
    let read = |sets: &[&str]| {
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        let source = Source::new("config.yaml", text);
        let (config, problems) = Config::read(source, &BTreeMap::new(), &sets);
        assert_eq!(problems.len(), 2, "{}", show(&problems));
        config.unwrap()
    };
    let config = read(&[]);
    let (training, model) = (&config.settings().training, &config.settings().models["a"]);
    assert_eq!(
        (training.seed, training.duration.train_iters),
        (1234, Some(9))
    );
    assert_eq!((model.num_layers, model.head_dim), (Some(2), None));
    let guessed = [
        "training",
        "models.a",
        "models.a.num_layers",
        "benchmarking.warmup",
    ];
    let is_guessed = |config: &Config| guessed.map(|path| config.general().is_guessed(path));
    assert_eq!(is_guessed(&config), [true, true, false, false]);
    assert!(
        !is_guessed(&read(&["training.seed=7"]))[0],
        "a stronger layer has stated it"
    );
}

#[test]
fn a_list_of_texts_holds_nothing_else() {
    let text = "frameworks: { cmd: { inputs: [a, 4] }, tran: { settings: { list: [a, 4] } } }\n";
    refused(
        text,
        &[],
        &[],
        "config.yaml:1:30: `frameworks.cmd.inputs` must be a text or a list of texts, not a list with 4 | expected a text or a list of texts | -",
    );
    let config = load(&text.replace("[a, 4] }, tran", "a }, tran"), &[], &[]).unwrap();
    let inputs = config.settings().frameworks["cmd"].inputs.as_deref();
    assert_eq!(inputs, Some(&["a".to_owned()][..]));
}

#[test]
fn exports_hold_what_is_effective() {
    let config = load(
        "paths: { output: \"it's $HOME\" }\nmodels: { gpt2-1.5b: {}, gpt2_1.5b: {} }\n",
        &[],
        &[],
    )
    .unwrap();
    assert_eq!(
        config.to_json()["paths"],
        json!({"output": "it's $HOME", "cache": "cache"})
    );
    for line in config
        .shell_export()
        .lines()
        .filter(|line| !line.starts_with('#'))
    {
        let words = shlex::split(line).unwrap();
        assert_eq!(words[0], "export");
        assert_eq!(words.len(), 2);
    }
    assert!(
        shlex::split(&config.shell_export())
            .unwrap()
            .contains(&"TPRIMAT_PATHS_OUTPUT=it's $HOME".to_owned())
    );
}

/// What a shell makes of a value is the value, and no line of it is a command to a CI system.
#[test]
fn a_shell_gets_every_value_unaltered_or_not_at_all() {
    let odd = "it's\n::error::x\t\\n \u{1b}]0;y\u{7}\u{202e}$HOME `id`\n\n";
    let env = format!(
        "frameworks: {{ cmd: {{ env: {{ ODD: {}, HF_TOKEN: hf_literal, DSN: \"postgres://u:pw@h/x\" }} }} }}\n",
        json!(odd)
    );
    let config = load(&env, &[], &[]).unwrap();
    let exported = config.shell_export();
    assert!(
        !exported.contains("hf_literal") && !exported.contains("u:pw"),
        "{exported}"
    );
    assert!(
        exported
            .lines()
            .all(|line| !line.contains(crate::words::plain::is_active))
    );
    assert!(
        exported
            .lines()
            .all(|line| line.starts_with("export ") || line.starts_with("# left out"))
    );
    let script = format!("{exported}printf %s \"$TPRIMAT_FRAMEWORKS_CMD_ENV_ODD\"");
    let output = std::process::Command::new("sh")
        .args(["-c", &script])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), odd);
    let shown = &config.to_json()["frameworks"]["cmd"]["env"];
    assert_eq!(shown["HF_TOKEN"], "(secret)");
    assert_eq!(shown["DSN"], "postgres://(secret)@h/x");
    assert_eq!(shown["ODD"], odd);
}

#[test]
fn a_matrix_may_set_a_variable_where_the_file_has_no_block_for_it() {
    let config = load(SMALL, &[], &[]).unwrap();
    let overlay = [Setting {
        path: "platform_optimizations.h200.env.CUDA_LAUNCH_BLOCKING".into(),
        value: json!(1),
        origin: Origin::Matrix {
            source: Source::new("m.toml", "x"),
            span: 0..1,
        },
    }];
    let defaults = Values::default();
    let env = config
        .view(&defaults, &overlay)
        .platform_env("h200", Vendor::Nvd);
    assert_eq!(env, [("CUDA_LAUNCH_BLOCKING", "1".into())].into());
}

/// A dot in a name is no step down: what is set for one model is no key of another whose name it
/// begins with.
#[test]
fn a_model_whose_name_begins_another_keeps_its_own_settings() {
    let text = SMALL.replacen(
        "models:\n",
        "models:\n  qwen2: { num_layers: 1 }\n  qwen2.5: { num_layers: 2 }\n",
        1,
    );
    let config = load(&text, &[], &[]).unwrap();
    let overlay = [Setting {
        path: "models.qwen2.5.num_layers".into(),
        value: json!(3),
        origin: Origin::Matrix {
            source: Source::new("m.toml", "x"),
            span: 0..1,
        },
    }];
    let defaults = Values::default();
    let view = config.view(&defaults, &overlay);
    let layers = |id: &str| view.entry::<super::schema::Model>(id).num_layers;
    assert_eq!((layers("qwen2"), layers("qwen2.5")), (Some(1), Some(3)));
}

#[test]
fn platform_environment_is_the_vendors_with_the_platforms_own_above() {
    let text = format!(
        "{SMALL}platform_optimizations: {{ nvidia: {{ env: {{ A: 1, B: true, C: x }} }} }}\n"
    )
    .replace("num_gpus: 4", "num_gpus: 4, env: { B: \"0\", C: null }");
    let config = load(&text, &[], &["platform_optimizations.nvidia.env.A=2"]).unwrap();
    let env = config.general().platform_env("h200", Vendor::Nvd);
    assert_eq!(env, [("A", "2".into()), ("B", "0".into())].into());
}

/// A config.yaml as the older suites write it: both dialects of degrees, prices of a box, peaks by
/// GPU.
pub(crate) const OLD: &str = include_str!("../../tests/fixtures/older-suite.yaml");

#[test]
fn the_name_of_a_secret_is_expanded_in_env_tables_only() {
    let env = [("MY_TOKEN", "hush")];
    refused(
        "experiment: { name: \"a ${MY_TOKEN}\" }\n",
        &env,
        &[],
        "config.yaml:1:21: `experiment.name` would publish the variable MY_TOKEN, whose name is that of a secret | only `env` tables may name it | a trainer gets secrets through an `env` table",
    );
    let text = "hardware: { platforms: { nvd: { env: { HF_TOKEN: \"${MY_TOKEN}\" } } } }\n";
    let config = load(text, &env, &[]).unwrap();
    assert_eq!(
        config.get("hardware.platforms.nvd.env.HF_TOKEN"),
        Some(&json!("hush"))
    );
}

#[test]
fn one_setting_in_two_places_must_have_one_value() {
    refused(
        &format!(
            "{SMALL}platform_optimizations: {{ nvd: {{ cuda_alloc_conf: a, env: {{ PYTORCH_CUDA_ALLOC_CONF: b }} }} }}\n"
        ),
        &[],
        &[],
        "config.yaml:17:51: `platform_optimizations.nvd.cuda_alloc_conf` and `platform_optimizations.nvd.env.PYTORCH_CUDA_ALLOC_CONF` say different things | one variable | leave one of them out",
    );
}
