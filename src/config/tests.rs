//! Tests of the whole: layers, places and messages.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Map, Value, json};

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

#[test]
fn every_value_of_the_shipped_file_is_where_its_span_says() {
    let config = shipped();
    let mut seen = 0;
    for (path, value, origin) in config.effective() {
        let Origin::File { source, span } = origin else {
            continue;
        };
        let text = &source.text[span];
        let there: Value =
            serde_yaml::from_str(text).unwrap_or_else(|e| panic!("{path}: {text:?}: {e}"));
        assert!(
            there == *value || there.is_f64() && there.as_f64() == value.as_f64(),
            "{path}: {there} {value}"
        );
        seen += 1;
    }
    assert!(seen > 200, "{seen} values");
}

/// Parameters by the textbook, from the shape alone.
fn count(config: &Config, model: &str) -> u64 {
    let number = |key: &str| {
        config
            .get(&format!("models.{model}.{key}"))
            .and_then(Value::as_u64)
            .unwrap_or(0)
    };
    let flag = |key: &str| {
        config
            .get(&format!("models.{model}.{key}"))
            .and_then(Value::as_bool)
            .unwrap()
    };
    let [layers, h, ffn, heads, kv, vocab] = [
        "num_layers",
        "hidden_size",
        "ffn_hidden_size",
        "num_attention_heads",
        "num_kv_heads",
        "vocab_size",
    ]
    .map(number);
    if config.get(&format!("models.{model}.architecture")).unwrap() == "gpt2" {
        return vocab * h
            + number("max_position_embeddings") * h
            + layers * (12 * h * h + 13 * h)
            + 2 * h;
    }
    let kv_width = h / heads * kv;
    let bias = if flag("qkv_bias") {
        h + 2 * kv_width
    } else {
        0
    };
    let layer = 2 * h * h + 2 * h * kv_width + bias + 3 * h * ffn + 2 * h;
    let embeddings = if flag("tie_embeddings") { 1 } else { 2 };
    embeddings * vocab * h + layers * layer + h
}

#[test]
fn shipped_models_state_their_exact_parameter_counts() {
    let config = shipped();
    let models: Vec<&str> = config.children("models").collect();
    assert!(models.len() >= 10, "{models:?}");
    for model in models {
        // A shape that only exists here, such as a width with fewer layers, need not state its
        // count.
        let Some(stated) = config
            .get(&format!("models.{model}.num_parameters"))
            .and_then(Value::as_u64)
        else {
            continue;
        };
        assert_eq!(stated, count(&config, model), "{model}");
        if model.ends_with("tiny") {
            assert!((1_000_000..3_000_000).contains(&stated));
        }
    }
}

#[test]
fn shipped_strategies_fit_their_gpus_and_divide_every_batch_and_every_head() {
    let config = shipped();
    let defaults = Values::default();
    let view = config.view(&defaults, &[]);
    let batch = view
        .u64("training.data.global_batch_size")
        .unwrap()
        .unwrap();
    for strategy in ["maximum_performance", "identical_config", "single"] {
        for model in config.children("models") {
            for (platform, vendor) in [("nvd", Vendor::Nvd), ("amd", Vendor::Amd)] {
                for framework in config.children("frameworks") {
                    let (path, block) = view
                        .parallelism(strategy, model, platform, vendor, framework)
                        .unwrap();
                    let gpus = if strategy == "single" { 1 } else { 8 };
                    let (tp, dp) = (block.tp.unwrap_or(1), block.dp.unwrap_or(1));
                    let of =
                        |key: &str| view.u64(&format!("models.{model}.{key}")).unwrap().unwrap();
                    assert_eq!(block.num_gpus.unwrap_or(8), gpus, "{path}");
                    assert_eq!(
                        tp * block.pp.unwrap_or(1) * block.cp.unwrap_or(1) * dp,
                        gpus,
                        "{path} {model}"
                    );
                    assert_eq!(batch % dp, 0, "{path}");
                    assert_eq!(
                        (of("num_attention_heads") % tp, of("num_kv_heads") % tp),
                        (0, 0),
                        "{path} {model}"
                    );
                    if strategy == "identical_config" {
                        assert_eq!(
                            tp > 1,
                            matches!(framework, "mega" | "mlm" | "nemo" | "mgds" | "prim")
                                && dp == 2
                        );
                    }
                }
            }
        }
    }
    let mega = |platform, vendor| {
        view.parallelism("maximum_performance", "qwen", platform, vendor, "mega")
            .unwrap()
    };
    assert_eq!(mega("nvd", Vendor::Nvd).1.tp, Some(2));
    assert_eq!(mega("amd", Vendor::Amd).1.tp, None);
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
        &["training.data.seq_len=1", "training.seed=x", "models.lama.num_layers=3", "training"],
        "\
config.yaml:3:5: unknown key `training.data.seq_lenght` | not a key of `training.data` | did you mean `seq_length`?
config.yaml:4:23: `training.data.micro_batch_size` must be a whole number of at least 1, not the text \"two\" | expected a whole number of at least 1 | -
config.yaml:5:12: `training.compile` must be true or false, not the text \"yes\" | expected true or false | -
config.yaml:6:25: `training.precision.default` must be one of fp32, bf16, fp8, not the text \"bf61\" | expected one of fp32, bf16, fp8 | did you mean `bf16`?
config.yaml:7:1: unknown key `modles` | not a section | did you mean `models`?
config.yaml:8:32: `models.llama.num_layers` must be a whole number of at least 1, not 0 | expected a whole number of at least 1 | -
config.yaml:8:41: `models.llama.name` must be a text, not 7 | expected a text | write \"7\" in quotes
config.yaml:8:44: unknown key `models.llama.num_heads` | not a key of `models.llama` | write `num_attention_heads`
environment:1:13: `training.duration.train_iters` must be a whole number of at least 1, not the text \"many\" | expected a whole number of at least 1 | -
--set:1:1: unknown key `training.data.seq_len` | not a key of `training.data` | write `seq_length`
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
config.yaml:1:19: `training.seed`: the environment variable SEED is not set | cannot be expanded | -
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

/// A price that nobody stated is no price: a table of costs would be made of it all the same.
#[test]
fn no_price_is_shipped_and_the_examples_are_valid() {
    let costs = "benchmarking.enhanced_metrics.cloud_costs";
    assert_eq!(
        shipped().children(costs).collect::<Vec<_>>(),
        Vec::<&str>::new()
    );
    let mut is_example = false;
    let mut uncommented = String::new();
    for line in SHIPPED.lines() {
        is_example =
            line.starts_with("  # enhanced_metrics:") || (is_example && line.starts_with("  #   "));
        uncommented += &if is_example {
            line.replacen("# ", "", 1)
        } else {
            line.to_owned()
        };
        uncommented.push('\n');
    }
    let config =
        load(&uncommented, &[], &[]).unwrap_or_else(|problems| panic!("{}", show(&problems)));
    assert_eq!(config.children(costs).collect::<Vec<_>>(), ["nvd", "amd"]);
    assert_eq!(
        config
            .children("benchmarking.enhanced_metrics.hardware_specs")
            .collect::<Vec<_>>(),
        ["nvd"]
    );
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
config.yaml:8:3: `a/b` in `models` cannot be a name | not a plain name | leave out spaces, quotes and / , @ # { } * ? [ ] !
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
    let defaults = Values::default();
    let view = config.view(&defaults, &[]);
    let (path, block) = view
        .parallelism("fast", "gpt2-1.5b", "amd", Vendor::Amd, "tran")
        .unwrap();
    assert_eq!(
        (&*path, block.dp, block.num_gpus),
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
    let defaults = Values::default();
    let view = config.view(&defaults, &[]);
    assert_eq!(view.f64("models.a.rope_scaling.factor"), Ok(None));
    assert_eq!(view.f64("models.a.rope_theta"), Ok(None));
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
    let problem = plain
        .view(&defaults, &overlay)
        .u64("training.seed")
        .unwrap_err();
    assert_eq!(
        problem.to_string(),
        "m.toml:2:8: `training.seed` must be a whole number of at least 0, not the text \"x\""
    );
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

#[test]
fn platform_environment_is_the_vendors_with_the_platforms_own_above() {
    let text = format!(
        "{SMALL}platform_optimizations: {{ nvidia: {{ env: {{ A: 1, B: true, C: x }} }} }}\n"
    )
    .replace("num_gpus: 4", "num_gpus: 4, env: { B: \"0\", C: null }");
    let config = load(&text, &[], &["platform_optimizations.nvidia.env.A=2"]).unwrap();
    let defaults = Values::default();
    let env = config
        .view(&defaults, &[])
        .platform_env("h200", Vendor::Nvd);
    assert_eq!(env, [("A", "2".into()), ("B", "0".into())].into());
}

/// A config.yaml as the older suites write it: both dialects of degrees, prices of a box, peaks by
/// GPU.
pub(crate) const OLD: &str = include_str!("../../tests/fixtures/older-suite.yaml");

#[test]
fn a_file_of_the_older_suites_is_read_as_it_is_meant() {
    let config = load(OLD, &[], &[]).unwrap_or_else(|problems| panic!("{}", show(&problems)));
    let costs = "benchmarking.enhanced_metrics.cloud_costs";
    for (path, value) in [
        ("training.duration.train_iters", json!(10)),
        (&format!("{costs}.nvidia.per_gpu_hour"), json!(4.0)),
        (&format!("{costs}.amd.per_gpu_hour"), json!(3.0)),
        ("paths.primus", json!("/workspace/Primus")),
        (
            "paths.megatron_deepspeed",
            json!("/workspace/Megatron-DeepSpeed"),
        ),
        ("paths.output", json!("./results")),
        ("frameworks.mgds.description", json!("Megatron-DeepSpeed")),
        ("models.llama.ffn_hidden_size", json!(14336)),
        ("models.llama.rope_scaling.factor", json!(8)),
        ("models.qwen.qkv_bias", json!(true)),
    ] {
        assert_eq!(
            config
                .get(path)
                .map(|v| v.as_f64().map_or(v.clone(), |n| json!(n))),
            Some(value.as_f64().map_or(value, |n| json!(n))),
            "{path}"
        );
    }
    assert_eq!(
        origin(&config, "models.qwen.num_layers"),
        "built in: Qwen2.5 7B"
    );
    assert_eq!(
        origin(&config, &format!("{costs}.nvidia.per_gpu_hour")),
        "config.yaml:41:34"
    );
    let notes = show(config.notes());
    assert!(
        notes.contains("32 an hour for 8 GPUs is 4 a GPU-hour on nvidia"),
        "{notes}"
    );
    assert!(
        notes.contains("989 TFLOP/s is the bf16 peak of nvidia_h100, not its fp8 peak"),
        "{notes}"
    );
    assert!(
        !config.contains("benchmarking.enhanced_metrics.hardware_specs.nvidia"),
        "the data sheet's figure is used"
    );
    // Variables of the shipped platform ids reach the platforms of the vendor.
    let config = load(
        OLD,
        &[("CONFIG_NVD_NUM_GPUS", "4"), ("PRIMUS_PATH", "/p")],
        &[],
    )
    .unwrap();
    assert_eq!(
        config.get("hardware.platforms.nvidia.num_gpus"),
        Some(&json!(4))
    );
    assert_eq!(config.get("paths.primus"), Some(&json!("/p")));
    assert_eq!(
        config.descriptive(),
        [
            "hardware.platforms.nvidia.software_stack",
            "hardware.platforms.amd.software_stack",
            "benchmarking.output.filename_format",
            "benchmarking.metrics"
        ]
    );
}

#[test]
fn what_an_older_file_cannot_mean_is_refused_with_its_place() {
    for (old, new, expected) in [
        (
            "max_steps: 10",
            "max_steps: 11",
            "config.yaml:18:5: `training.duration.train_iters` is given twice, as `training.duration.max_steps` too | the same key, with another value | leave one of them out",
        ),
        (
            "amd_mi300x_8gpu",
            "amd_mi200_8gpu",
            "config.yaml:42:7: unknown platform `amd_mi200` in `cloud_costs` | no platform has this GPU | `hardware.platforms` has nvidia, amd; its `gpu_model` says which GPU",
        ),
        (
            "989.0e12",
            "700.0e12",
            "config.yaml:44:7: the fp8 peak of nvidia_h100 has no source, and 700 TFLOP/s is not the data sheet's; its dense fp8 peak is 1978.9 TFLOP/s (NVIDIA H100 SXM datasheet, dense) | state a `source`, or leave the line out | peaks are dense, FLOP/s of one device",
        ),
        (
            "platforms: [nvidia, amd]",
            "platforms: [nvidia, adm]",
            "config.yaml:30:50: unknown platform `adm` in `frameworks.nemo.platforms` | no platform has this name | did you mean `amd`?",
        ),
    ] {
        refused(&OLD.replace(old, new), &[], &[], expected);
    }
}

#[test]
fn an_upgraded_file_says_the_same_in_today_s_keys_and_keeps_its_comments() {
    let block = OLD.replace(
        "  duration:\n    max_steps: 10\n    train_iters: 10\n",
        "  duration: { max_steps: 10, train_iters: 10 } # steps\n",
    );
    let flow = OLD.replace(
        "paths:\n  primus:\n    installation:",
        "paths: { cache: c } # mine\nprofiling:\n  primus:\n    x:",
    );
    for text in [OLD, &block, &flow] {
        let old = load(text, &[], &[]).unwrap_or_else(|problems| panic!("{}", show(&problems)));
        let upgraded = old.upgraded();
        let new = load(&upgraded, &[], &[])
            .unwrap_or_else(|problems| panic!("{}\n{upgraded}", show(&problems)));
        let mut expected = old.to_json();
        expected["training"]["optimizer"]["type"] = json!("adamw");
        assert_eq!(new.to_json(), expected, "{upgraded}");
        assert!(
            new.translations.is_empty() && new.notes().is_empty(),
            "{upgraded}"
        );
        for comment in text
            .split('#')
            .skip(1)
            .filter_map(|after| after.lines().next())
        {
            assert!(
                upgraded.contains(comment.trim_end()),
                "`#{comment}` is lost:\n{upgraded}"
            );
        }
        assert_eq!(
            new.upgraded(),
            upgraded,
            "a second time there is nothing to do"
        );
    }
    assert_eq!(load(SHIPPED, &[], &[]).unwrap().upgraded(), SHIPPED);
}

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
        let defaults = Values::new("tran", &recipe);
        let view = config.view(&defaults, &overlay);
        for ((path, variable, built_in), stack) in LAYERED.iter().zip(&stacks) {
            let [in_recipe, in_file, in_env, in_matrix, in_set] = *stack;
            let in_env = in_env.filter(|_| variable.is_some());
            let expected = in_set.or(in_matrix).or(in_env).or(in_file).or(in_recipe).or(*built_in).map(u64::from);
            prop_assert_eq!(view.u64(path).unwrap(), expected, "{}", path);
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
        let defaults = Values::default();
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
                let found = config.view(&defaults, &[]).parallelism("s", model, platform, vendor, "tran");
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
