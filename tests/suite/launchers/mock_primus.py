"""A mock of Primus' loader: reads an experiment as Primus does, and prints what its pre-trainer would be given, as JSON.

It takes $EXP as examples/run_pretrain.sh does, expands ${NAME} from the environment, and refuses overrides that
Primus' own presets do not have. Megatron is given what it has an argument for, and the rest is dropped without a word, as
Primus 26.2 and later do (primus/backends/megatron/argument_builder.py, `update`); up to Megatron core 0.15 one of them is
norm_epsilon, from 0.16 on it is layernorm_epsilon (megatron/core/transformer/transformer_config.py), which no preset has: it
can be given on the command line alone, which earlier versions of Primus refuse for names they do not know.
"""

import json
import os
import re
import sys

import yaml

KNOWN = set(
    """
    accumulate_allreduce_grads_in_fp32 adam_beta1 adam_beta2 adam_eps add_bias_linear add_qkv_bias attention_dropout
    auto_continue_train bf16 clip_grad context_parallel_size disable_last_saving disable_tensorboard disable_wandb
    create_attention_mask_in_dataloader cross_entropy_fusion_impl cross_entropy_loss_fusion dataloader_type
    enable_primus_turbo eod_mask_loss eval_iters expert_model_parallel_size ffn_hidden_size finetune fp16 fp8
    fp8_amax_compute_algo fp8_amax_history_len fp8_param_gather fp8_recipe global_batch_size gradient_accumulation_fusion group_query_attention hidden_dropout hidden_size
    init_method_std kv_channels load log_avg_reset_interval log_avg_skip_iterations log_interval log_throughput lr
    lr_decay_iters lr_decay_style lr_warmup_iters max_position_embeddings micro_batch_size min_lr mock_data
    norm_epsilon normalization num_attention_heads num_layers num_query_groups optimizer overlap_grad_reduce
    overlap_param_gather pipeline_model_parallel_size position_embedding_type recompute_granularity recompute_method
    recompute_num_layers reset_attention_mask reset_position_ids rope_scaling_factor rotary_base rotary_percent save
    save_interval stderr_sink_level use_rocm_mem_info_iters
    seed seq_length sequence_parallel swiglu tensor_model_parallel_size test_data_path tokenizer_model tokenizer_type
    train_data_path train_iters transformer_impl untie_embeddings_and_output_weights use_distributed_optimizer use_rope_scaling
    use_turbo_attention valid_data_path vocab_size wandb_project weight_decay
    """.split()
)


def expand(value):
    if isinstance(value, dict):
        return {expand(name): expand(of) for name, of in value.items()}
    if isinstance(value, list):
        return [expand(of) for of in value]
    if isinstance(value, str):
        return re.sub(r"\${([^:{}]+)(?::([^}]*))?}", lambda m: os.environ[m[1]], value)
    return value


with open(os.environ["EXP"], encoding="utf-8") as file:
    experiment = expand(yaml.safe_load(file))
for key in ("work_group", "user_name", "exp_name", "workspace"):
    assert experiment[key], f"{key} is not set"
trainer = experiment["modules"]["pre_trainer"]
assert (trainer["framework"], trainer["config"]) == ("megatron", "pre_trainer.yaml")
unknown = set(trainer["overrides"]) - KNOWN
assert not unknown, f"can't find key({sorted(unknown)}) in the presets"
with open("third_party/Megatron-LM/megatron/training/arguments.py", encoding="utf-8") as file:
    renamed = "layernorm_epsilon" in file.read()
given = dict(zip((name.removeprefix("--") for name in sys.argv[1::2]), map(float, sys.argv[2::2])))
assert renamed or not set(given) - KNOWN, f"Override key {list(given)} does not exist in pre_trainer config."
dropped = "norm_epsilon" if renamed else "layernorm_epsilon"
megatron = {name: value for name, value in (trainer["overrides"] | given).items() if name != dropped}
names = ("NNODES", "NODE_RANK", "GPUS_PER_NODE", "MASTER_ADDR", "MASTER_PORT", "TRAIN_LOG", "PRIMUS_CACHE_ROOT")
names += ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "PRIMUS_SKIP_PIP")
found = {name: os.environ[name] for name in names if name in os.environ}
said = {"model": trainer["model"], "overrides": trainer["overrides"], "megatron": megatron, "env": found}
print(json.dumps(said | {"cwd": os.getcwd()}))
