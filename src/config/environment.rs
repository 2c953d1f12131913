//! The environment variables that stand above config.yaml.

/// Variable → the path that it sets. To honour one more variable, add a line.
pub const VARIABLES: [(&str, &str); 9] = [
    ("TRAIN_ITERS", "training.duration.train_iters"),
    ("CONFIG_OUTPUT_DIR", "paths.output"),
    ("CONFIG_AMD_NUM_GPUS", "hardware.platforms.amd.num_gpus"),
    ("CONFIG_NVD_NUM_GPUS", "hardware.platforms.nvd.num_gpus"),
    ("PRIMUS_PATH", "paths.primus"),
    ("MEGATRON_PATH", "paths.megatron"),
    ("MEGATRON_DEEPSPEED_PATH", "paths.megatron_deepspeed"),
    ("TPRIMAT_PYTHON", "paths.python"),
    ("TPRIMAT_REMOTE", "paths.remote"),
];
