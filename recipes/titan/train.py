"""Trains the job on torchtitan: its Trainer, its parallelism, its log lines.

titan.toml has the settings that torchtitan has a place for. This program adds what it has none for: the job's shape,
synthetic or indexed tokens, the job's schedule and weight decay; and prints one start event with what is in effect.
"""

import importlib.util
import logging
import os
import sys

import torch

sys.dont_write_bytecode = True  # the recipe's folder is an input of the run: leave nothing in it
import stand_ins

STOOD_IN = stand_ins.install()

import network
import torchtitan.train
from events import Events, dtype_name, plain_name, runs_out_of_memory, stop, world
from job import Job
from network import is_deepseek, is_qwen3
from torch.distributed.tensor import DTensor
from torchtitan.protocols.train_spec import register_train_spec

PLAIN = ("ddp", "none", "no_shard")
SHARDED = ("", "fsdp", "fsdp2", "zero3", "full_shard", "zero2", "shard_grad_op")


def refuse(job):
    model, parallel, data = job["model"], job["parallelism"], job["data"]
    tp, pp = parallel["tensor_model_parallel_size"], parallel["pipeline_model_parallel_size"]
    cp, dp, ep = (parallel[name] for name in ("context_parallel_size", "data_parallel_size", "expert_model_parallel_size"))
    _, processes, _ = world()
    backend = {"nvd": torch.version.cuda, "amd": torch.version.hip}.get(job["vendor"])
    product, batch = tp * pp * cp * dp, data["micro_batch_size"] * data["gradient_accumulation_steps"] * dp
    mixed = job["precision"] != "fp32" and job["optimizer"]["state_precision"] == "fp32"
    whole = dp == 1 or parallel["sharding"] in PLAIN
    width, shared = model["moe_intermediate_size"], model["shared_expert_intermediate_size"]
    head = model["qk_nope_head_dim"] + model["qk_rope_head_dim"]
    known = ("llama", "mistral", "qwen3", "qwen3_moe", "deepseek_v2", "deepseek_v3")
    job.refuse(
        [
            (model["architecture"] not in known, f"architecture {model['architecture']!r}"),
            (model["qkv_bias"], "a QKV bias: torchtitan's models have none"),
            (
                not (is_qwen3(job) or head) and model["head_dim"] * model["num_attention_heads"] != model["hidden_size"],
                "a head_dim of its own",
            ),
            (head > 0 and model["head_dim"] != head, f"a head_dim that is not qk_nope_head_dim + qk_rope_head_dim = {head}"),
            (is_qwen3(job) and bool(model["rope_scaling"]), "scaled RoPE: torchtitan's Qwen3 has none"),
            (is_deepseek(job) and bool(model["rope_scaling"]), "Llama 3's scaled RoPE in a DeepSeek: torchtitan has YaRN's there"),
            (is_deepseek(job) and model["num_kv_heads"] != model["num_attention_heads"], "latent attention with grouped queries"),
            (bool(shared) and shared % width > 0, "a shared expert that is not a whole number of experts wide"),
            (bool(model["num_nextn_predict_layers"]), "layers that predict further tokens"),
            (bool(model["sliding_window"]), "a sliding window"),
            (bool(model["num_experts"]) and tp * pp * cp > 1, "experts with TP, PP or CP"),
            (bool(model["num_experts"]) and job["precision"] == "fp8", "experts in FP8"),
            (ep > 1 and (whole or not model["num_experts"]), "EP without experts or FSDP"),
            (model["tie_embeddings"] and tp * pp * cp * ep > 1, "tied embeddings with TP, PP, CP or EP"),
            (not (torch.cuda.is_available() and backend), f"this PyTorch sees no device of vendor {job['vendor']!r}"),
            (product != processes, f"TP x PP x CP x DP = {product} with {processes} processes"),
            (parallel["num_gpus"] != processes, f"{parallel['num_gpus']} GPUs with {processes} processes"),
            (batch != data["global_batch_size"], "a global_batch_size that is not MBS x DP x GA"),
            (data["seq_length"] % (tp * 2 * cp if cp > 1 else tp), "a seq_length that TP and CP do not divide"),
            (parallel["sharding"] not in PLAIN + SHARDED, f"sharding {parallel['sharding']!r}"),
            (whole and dp > 1, "DDP: torchtitan 0.2.2 averages gradients of losses that it has averaged already"),
            (mixed and whole and cp == 1 and (tp > 1 or pp > 1), "mixed precision under TP or PP without FSDP"),
            (job["offload"] and whole, "offload without FSDP"),
            (job["optimizer"]["type"] != "adamw", f"optimizer {job['optimizer']['type']!r}"),
            (job["compile"] and job["compile_mode"] not in ("", "default"), f"compile_mode {job['compile_mode']!r}"),
            (job["precision"] == "fp8" and job["fp8_param"], "parameters kept in FP8"),
            (job["precision"] == "fp8" and importlib.util.find_spec("torchao") is None, "FP8 without torchao"),
        ]
    )
    job.ignore("model.nemo_recipe", "NeMo's name of the model")
    job.ignore("model.primus_config", "Primus' name of the model")
    job.ignore("model.max_position_embeddings", "no learned positions")
    job.ignore("framework", "nothing there is for this program")


class Trainer(torchtitan.train.Trainer):
    def __init__(self, config):
        rank, processes, _ = world()
        pp = config.parallelism.pipeline_parallel_degree
        speaker = processes // pp * (pp - 1)  # the first rank that knows the loss
        os.environ["LOG_RANK"] = str(speaker)  # torchtitan warns if this is not the one that is listened to
        if rank != speaker:
            logging.getLogger().setLevel(logging.WARNING)
        super().__init__(config)

    def train(self):
        effective, count = in_effect(self), self.count_parameters()
        expected = JOB["model"]["num_parameters"]
        if expected and count != expected:
            stop(2, "launch", f"the model has {count} parameters, the job's shape {expected}")
        pairs = [(name, effective[name], value) for name, value in asked(JOB)]
        different = [f"{name} is {there!r}, not {value!r}" for name, there, value in pairs if there != value]
        if different:
            stop(2, "launch", "torchtitan's configuration is not the job's: " + ", ".join(different))
        JOB.refuse_unread()
        self.events = Events("torchtitan")
        self.events.start(effective, count)
        super().train()
        self.events.end_profile()

    def train_step(self, batches):
        super().train_step(batches)
        self.events.profile_step()

    def count_parameters(self):
        own = sum(p.numel() for part in self.model_parts for p in part.parameters())
        count = torch.tensor([own], device=self.device)
        if self.parallel_dims.pp_enabled:
            torch.distributed.all_reduce(count, group=self.parallel_dims.get_mesh("pp").get_group())
        return int(count)


def asked(job):
    """What titan.toml was rendered from, by the names of the start event."""
    for name in ("train_iters", "seed", "precision", "compile", "activation_checkpointing", "offload"):
        yield name, job[name]
    for name in ("seq_length", "micro_batch_size", "global_batch_size", "gradient_accumulation_steps"):
        yield name, job["data"][name]
    for name in ("learning_rate", "warmup_steps", "weight_decay", "beta1", "beta2", "eps", "clip_grad"):
        yield name, job["optimizer"][name]
    yield "optimizer_state_precision", job["optimizer"]["state_precision"]
    for name in ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size", "expert_model_parallel_size"):
        yield name, job["parallelism"][name]
    yield "data_parallel_size", job["parallelism"]["data_parallel_size"]
    if job["precision"] == "fp8":
        yield "fp8_hybrid", job["fp8_hybrid"]
    if job["activation_checkpointing"] and job["sac_frequency"] == 1:
        yield "sac_frequency", 1


def in_effect(trainer):
    """Read back from what torchtitan built."""
    config, dims, args = trainer.job_config, trainer.parallel_dims, trainer.model_args
    training, part = config.training, trainer.model_parts[0]
    groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
    decayed = max(groups, key=lambda group: group["weight_decay"])
    cuts = training.local_batch_size // config.parallelism.pipeline_parallel_microbatch_size if dims.pp_enabled else 1
    dp, micro_steps = dims.dp_replicate * dims.dp_shard, trainer.gradient_accumulation_steps * cuts
    names = {plain_name(name): parameter for name, parameter in part.named_parameters()}
    ep = 1
    # The configuration's, where no layer is dense.
    width = {"ffn_hidden_size": getattr(args, "inter_dim", None) or getattr(args, "hidden_dim", None)}
    for name, weight in names.items():
        if name.endswith("feed_forward.w1.weight"):
            width["ffn_hidden_size"] = weight.shape[0]
        elif name.endswith("moe.experts.w1"):
            width |= {"num_experts": weight.shape[0], "moe_intermediate_size": weight.shape[1]}
            width["num_experts_per_tok"] = args.moe_args.top_k
            if isinstance(weight, DTensor) and "ep" in (weight.device_mesh.mesh_dim_names or ()):
                ep = weight.device_mesh["ep"].size()
        elif name.endswith("moe.shared_experts.w1.weight"):
            width["shared_expert_intermediate_size"] = weight.shape[0]
    # torchtitan compiles a dense layer as a whole, and a layer with experts part by part.
    compiled = {"compile": any(hasattr(module, "_orig_mod") for module in part.modules())}
    compiled |= {"compile_mode": "default"} if compiled["compile"] else {}
    return precision(trainer) | recomputed(part) | compiled | {
        "architecture": JOB["model"]["architecture"],
        "num_layers": args.n_layers,
        "hidden_size": args.dim,
        **width,
        "num_attention_heads": args.n_heads,
        **(latent(part) if is_deepseek(JOB) else heads(args)),
        "vocab_size": args.vocab_size,
        "tie_embeddings": args.tie_embeddings,
        "qkv_bias": any(name.endswith(("wq.bias", "wk.bias", "wv.bias")) for name in names),
        "norm_eps": args.norm_eps,
        "rope_theta": args.rope_theta,
        "rope_scaling_factor": args.rope_scaling_args.scaling_factor if hasattr(args, "rope_scaling_args") else 1.0,
        "seq_length": training.seq_len,
        "micro_batch_size": training.local_batch_size // cuts,
        "gradient_accumulation_steps": micro_steps,
        "global_batch_size": training.local_batch_size // cuts * micro_steps * dp,
        "train_iters": training.steps,
        "optimizer": type(next(iter(trainer.optimizers))).__name__.lower(),
        "learning_rate": decayed["initial_lr"],
        "min_learning_rate": JOB["optimizer"]["min_learning_rate"],
        "warmup_steps": config.lr_scheduler.warmup_steps,
        "weight_decay": decayed["weight_decay"],
        "beta1": decayed["betas"][0],
        "beta2": decayed["betas"][1],
        "eps": decayed["eps"],
        "clip_grad": 0.0 if training.max_norm == float("inf") else training.max_norm,
        "seed": config.debug.seed,
        "init_std": args.init_std,
        "dropout": 0.0,
        "tensor_model_parallel_size": dims.tp,
        "pipeline_model_parallel_size": dims.pp,
        "context_parallel_size": dims.cp,
        "expert_model_parallel_size": ep,
        "data_parallel_size": dp,
        "num_gpus": dims.world_size,
        "sharding": sharding(trainer),
        "offload": training.enable_cpu_offload,
        **trainer.dataloader.dataset.effective(),
        "attention_mask": args.attn_mask_type,
        "packing": getattr(trainer.dataloader.dataset, "packing", "none"),
        "initialisation": "random",
        "attention": args.attn_type,
        "stood_in_for": STOOD_IN,
    }


def heads(args):
    return {"num_kv_heads": args.n_kv_heads, "head_dim": getattr(args, "head_dim", args.dim // args.n_heads)}


def latent(part):
    """DeepSeek's attention, and what its routers do with scores."""
    layers = list(part.layers.values())
    attention, routers = layers[0].attention, [layer.moe.router for layer in layers if layer.moe_enabled]
    names = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    found = {name: getattr(attention, name) for name in names}
    found |= {"num_kv_heads": attention.n_heads, "head_dim": attention.qk_head_dim}
    found |= {"first_k_dense_replace": len(layers) - len(routers)}
    for router in routers:
        found |= {"router_scores": router.score_func, "router_normalised": router.route_norm}
        found |= {"router_scale": router.route_scale, "router_groups": router.num_expert_groups or 1}
    return found


def precision(trainer):
    config, dims = trainer.job_config, trainer.parallel_dims
    own = dtype_name(next(trainer.model_parts[0].parameters()).dtype)
    mixes = dims.fsdp_enabled or not (dims.tp_enabled or dims.pp_enabled)
    computes = {"bfloat16": "bf16", "float32": "fp32"}[config.training.mixed_precision_param] if mixes else own
    if not any(type(m).__name__ == "Float8Linear" for m in trainer.model_parts[0].modules()):
        return {"precision": computes, "optimizer_state_precision": own}
    hybrid = config.quantize.linear.float8.recipe_name in (None, "tensorwise")
    return {"precision": "fp8", "fp8_hybrid": hybrid, "fp8_param": False, "optimizer_state_precision": own}


def recomputed(part):
    layers = [getattr(layer, "_orig_mod", layer) for layer in part.layers.values()]
    count = sum(hasattr(layer, "_checkpoint_wrapped_module") for layer in layers)
    if not count:
        return {"activation_checkpointing": False}
    frequency = {"sac_frequency": len(layers) // count} if len(layers) % count == 0 else {}
    return {"activation_checkpointing": True, "recompute": f"{count} of {len(layers)} layers"} | frequency


def sharding(trainer):
    """In the job's word where it says the same."""
    dims, asked_for = trainer.parallel_dims, JOB["parallelism"]["sharding"]
    if not dims.fsdp_enabled:
        return asked_for or "none"  # one replica: nothing to shard, whatever was asked for
    never = trainer.job_config.parallelism.fsdp_reshard_after_forward == "never"
    words = ("zero2", "shard_grad_op") if never else ("fsdp", "fsdp2", "zero3", "full_shard")
    return asked_for if asked_for in words else words[0]


if __name__ == "__main__":
    JOB = Job.load()
    refuse(JOB)
    register_train_spec("tprimat", network.train_spec(JOB))
    with runs_out_of_memory():
        torchtitan.train.main(Trainer)
