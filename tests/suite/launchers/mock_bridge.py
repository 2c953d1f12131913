"""A mock of Megatron-Bridge's scripts/performance/run_script.py (0.3.1): takes the arguments that the real one has, and
`group.field=value` of fields that its configuration has; hands a configuration with these fields and no others to `pretrain`.

What else it does as the real one: what no argument is counts as a field (main, parse_known_args); arguments come after fields
(set_cli_overrides, set_user_overrides). Names of fields: megatron/bridge/training/config.py, megatron/bridge/models/gpt_provider.py
and megatron-core's TransformerConfig, MLATransformerConfig and OptimizerConfig.
"""

import argparse
import types

from megatron.bridge.training.pretrain import pretrain

parser = argparse.ArgumentParser(allow_abbrev=False)
for name in ("model_family_name", "model_recipe_name", "gpu", "num_gpus"):
    parser.add_argument(f"--{name}", required=True)
for name in ("seq_length", "vocab_size", "max_steps"):
    parser.add_argument(f"--{name}", type=int)
parser.add_argument("--task", choices=["pretrain", "sft", "lora"])
parser.add_argument("--compute_dtype", choices=["bf16", "fp8_cs", "fp8_mx", "fp8_sc", "nvfp4"])
parser.add_argument("--data", choices=["mock", "rp2", "squad", "squad_packed", "c4"])
parser.add_argument("--tokenizer_type", choices=["NullTokenizer", "HuggingFaceTokenizer", "SentencePieceTokenizer"])
args, fields = parser.parse_known_args()
assert args.gpu in ("h100", "b200", "b300", "gb200", "gb300", "vr200", "r100")
assert args.model_family_name in ("deepseek", "gpt_oss", "kimi", "llama", "nemotronh", "qwen")

MODEL = """num_layers hidden_size ffn_hidden_size num_attention_heads num_query_groups kv_channels num_moe_experts moe_router_topk
moe_ffn_hidden_size vocab_size share_embeddings_and_output_weights add_qkv_bias layernorm_epsilon rotary_base rope_scaling
rope_scaling_factor init_method_std seq_length hidden_dropout attention_dropout qk_layernorm tensor_model_parallel_size
pipeline_model_parallel_size context_parallel_size expert_model_parallel_size virtual_pipeline_model_parallel_size
pipeline_model_parallel_layout sequence_parallel recompute_granularity recompute_method recompute_num_layers recompute_modules
cpu_offloading moe_router_load_balancing_type moe_router_force_load_balancing moe_router_score_function
moe_router_enable_expert_bias moe_router_num_groups moe_router_group_topk moe_router_topk_scaling_factor
moe_shared_expert_intermediate_size moe_layer_freq mtp_num_layers"""
LATENT = "q_lora_rank kv_lora_rank qk_head_dim qk_pos_emb_head_dim v_head_dim rope_type rotary_scaling_factor"
GROUPS = {
    "model": MODEL + (" " + LATENT if args.model_family_name == "deepseek" else ""),
    "train": "micro_batch_size global_batch_size train_iters eval_iters",
    "optimizer": """optimizer lr min_lr weight_decay adam_beta1 adam_beta2 adam_eps clip_grad main_grads_dtype main_params_dtype
        exp_avg_dtype exp_avg_sq_dtype use_precision_aware_optimizer""",
    "scheduler": "lr_decay_style lr_decay_iters lr_warmup_iters",
    "ddp": "use_distributed_optimizer use_megatron_fsdp",
    "rng": "seed",
    "logger": "log_interval log_throughput save_config_filepath",
    "checkpoint": "save load",
}
config = types.SimpleNamespace(**{
    group: types.SimpleNamespace(**dict.fromkeys(names.split(), "the recipe's")) for group, names in GROUPS.items()
})
precision = {"fp8": "e4m3" if args.compute_dtype.startswith("fp8") else None, "fp8_recipe": "mxfp8"}
config.mixed_precision = types.SimpleNamespace(bf16=True, fp4="e2m1" if args.compute_dtype == "nvfp4" else None, fp4_recipe="nvfp4", **precision)
for field in fields:
    path, value = field.split("=", 1)
    group, name = path.split(".")
    assert hasattr(getattr(config, group), name), f"no field {path}"
    setattr(getattr(config, group), name, value)
config.train.train_iters = args.max_steps
pretrain(config=config, forward_step_func=None)
