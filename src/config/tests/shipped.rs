//! What the shipped config.yaml states, held against textbooks.

use super::*;

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
    let view = config.general();
    let batch = config.settings().training.data.global_batch_size.unwrap();
    for strategy in ["maximum_performance", "identical_config", "single"] {
        for model in config.children("models") {
            for (platform, vendor) in [("nvd", Vendor::Nvd), ("amd", Vendor::Amd)] {
                for framework in config.children("frameworks") {
                    let (path, block) = view
                        .parallelism(strategy, model, platform, vendor, framework)
                        .unwrap();
                    let gpus = if strategy == "single" { 1 } else { 8 };
                    let degree = |stated: Option<u64>| stated.unwrap_or(1);
                    let tp = degree(block.tensor_model_parallel_size);
                    let dp = degree(block.data_parallel_size);
                    let shape = &config.settings().models[model];
                    assert_eq!(block.num_gpus.unwrap_or(8), gpus, "{path}");
                    assert_eq!(
                        tp * degree(block.pipeline_model_parallel_size)
                            * degree(block.context_parallel_size)
                            * dp,
                        gpus,
                        "{path} {model}"
                    );
                    assert_eq!(batch % dp, 0, "{path}");
                    assert_eq!(
                        (
                            shape.num_attention_heads.unwrap() % tp,
                            shape.num_kv_heads.unwrap() % tp
                        ),
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
    assert_eq!(
        mega("nvd", Vendor::Nvd).1.tensor_model_parallel_size,
        Some(2)
    );
    assert_eq!(mega("amd", Vendor::Amd).1.tensor_model_parallel_size, None);
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
