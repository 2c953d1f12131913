//! What settings are called elsewhere, so that whoever writes such a name is told the key.

/// Keys of other programs and of older scripts, and the keys of config.yaml that they stand for.
const ELSEWHERE: &[(&[&str], &[&str])] = &[
    (
        &["lr", "max_lr", "peak_lr"],
        &["training.optimizer.learning_rate"],
    ),
    (
        &["min_lr", "lr_min"],
        &["training.optimizer.min_learning_rate"],
    ),
    (
        &["betas", "adam_betas"],
        &["training.optimizer.beta1", "training.optimizer.beta2"],
    ),
    (&["adam_beta1"], &["training.optimizer.beta1"]),
    (&["adam_beta2"], &["training.optimizer.beta2"]),
    (
        &["adam_eps", "epsilon", "adam_epsilon"],
        &["training.optimizer.eps"],
    ),
    (&["wd", "decay"], &["training.optimizer.weight_decay"]),
    (
        &[
            "warmup",
            "warmup_iters",
            "lr_warmup_iters",
            "num_warmup_steps",
        ],
        &["training.optimizer.warmup_steps"],
    ),
    (
        &[
            "grad_clip",
            "gradient_clip",
            "gradient_clip_val",
            "max_grad_norm",
        ],
        &["training.optimizer.clip_grad"],
    ),
    (&["optimizer_type", "optim"], &["training.optimizer.type"]),
    (
        &["gbs", "global_batch", "train_batch_size"],
        &["training.data.global_batch_size"],
    ),
    (
        &[
            "mbs",
            "bsz",
            "micro_batch",
            "batch_size",
            "per_device_train_batch_size",
            "train_micro_batch_size_per_gpu",
        ],
        &["training.data.micro_batch_size"],
    ),
    (
        &[
            "seq_len",
            "seqlen",
            "sequence_length",
            "max_seq_length",
            "max_seq_len",
            "block_size",
            "encoder_seq_length",
        ],
        &["training.data.seq_length"],
    ),
    (
        &[
            "steps",
            "iters",
            "num_steps",
            "total_steps",
            "max_iters",
            "training_steps",
        ],
        &["training.duration.train_iters"],
    ),
    (
        &["dtype", "torch_dtype", "mixed_precision"],
        &["training.precision.default"],
    ),
    (
        &["recompute", "activation_recompute", "recompute_granularity"],
        &["training.activation_checkpointing"],
    ),
    (&["torch_compile", "pt_compile"], &["training.compile"]),
    (
        &["cpu_offload", "optimizer_cpu_offload"],
        &["training.offload"],
    ),
    (
        &["gpus", "gpus_per_node", "devices", "ngpus"],
        &["num_gpus"],
    ),
    (
        &["layers", "n_layers", "n_layer", "num_hidden_layers"],
        &["num_layers"],
    ),
    (&["dim", "d_model", "n_embd"], &["hidden_size"]),
    (
        &["intermediate_size", "ffn_dim", "ffn_size"],
        &["ffn_hidden_size"],
    ),
    (
        &["heads", "n_heads", "n_head", "num_heads"],
        &["num_attention_heads"],
    ),
    (
        &["n_kv_heads", "num_key_value_heads", "num_query_groups"],
        &["num_kv_heads"],
    ),
    (
        &["rms_norm_eps", "norm_epsilon", "layernorm_epsilon"],
        &["norm_eps"],
    ),
    (&["tie_word_embeddings"], &["tie_embeddings"]),
    (&["attention_bias", "add_qkv_bias"], &["qkv_bias"]),
];

/// Degrees of expert parallelism, which are one letter away from `CP` and mean something else.
pub(super) fn is_of_experts(key: &str) -> bool {
    let key = key.to_lowercase();
    key == "ep" || key == "etp" || key.starts_with("expert_")
}

/// The keys of config.yaml that a foreign name stands for, as paths.
pub(super) fn stands_for(key: &str) -> Option<&'static [&'static str]> {
    let key = key.to_lowercase().replace('-', "_");
    ELSEWHERE
        .iter()
        .find(|(names, _)| names.contains(&key.as_str()))
        .map(|(_, keys)| *keys)
}

/// The keys that a foreign name stands for, for people.
pub(super) fn called(key: &str) -> Option<String> {
    Some(
        stands_for(key)?
            .iter()
            .map(|key| format!("`{key}`"))
            .collect::<Vec<_>>()
            .join(" and "),
    )
}
