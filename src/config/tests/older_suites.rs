//! Files of the suites that came before are read as they are meant.

use super::*;

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
        notes.contains(
            "the fp8 peak of nvidia_h100 is 1978.9 TFLOP/s (NVIDIA H100 SXM datasheet, dense)"
        ),
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
            "platforms: [nvidia, amd]",
            "platforms: [nvidia, adm]",
            "config.yaml:30:50: unknown platform `adm` in `frameworks.nemo.platforms` | no platform has this name | did you mean `amd`?",
        ),
    ] {
        refused(&OLD.replace(old, new), &[], &[], expected);
    }
}
