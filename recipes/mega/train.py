"""Trains the job in $TPRIMAT_JOB on megatron-core: tensor, sequence, pipeline and data parallel, with ZeRO-1.

Started by torchrun, one process a GPU. Uses what megatron-core has by itself; transformer_engine where it is
installed, and without it torch's own kernels for attention, norms and AdamW. The start event says which.
"""

import sys

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
from megatron.core.utils import get_batch_on_this_cp_rank

sys.dont_write_bytecode = True  # the recipe's folder is an input of the run: leave nothing in it
import network
from events import Events, dtype_name, runs_out_of_memory, stop, world
from job import Job
from workload import LearningRate, micro_batch, open_dataset

# Small pieces that megatron-core itself hands to torch.compile.
FUSED = ("bias_activation_fusion", "bias_dropout_fusion", "cross_entropy_loss_fusion")
PLAIN = ("ddp", "none", "no_shard")
ZERO_1 = ("", "zero1", "distributed_optimizer", "optim")


def refuse(job):
    model, optimizer, parallel = job["model"], job["optimizer"], job["parallelism"]
    _, processes, _ = world()
    degrees = [parallel[f"{name}_size"] for name in ("tensor_model_parallel", "pipeline_model_parallel")]
    degrees += [parallel["context_parallel_size"], parallel["data_parallel_size"]]
    product = degrees[0] * degrees[1] * degrees[2] * degrees[3]
    batch = [job["data"][name] for name in ("micro_batch_size", "gradient_accumulation_steps")]
    wrong_batch = batch[0] * batch[1] * degrees[3] != job["data"]["global_batch_size"]
    backend = {"nvd": torch.version.cuda, "amd": torch.version.hip}.get(job["vendor"])
    job.refuse(
        network.refusals(job)
        + [
            (not (torch.cuda.is_available() and backend), f"this PyTorch sees no device of vendor {job['vendor']!r}"),
            (product != processes, f"TP x PP x CP x DP = {product} with {processes} processes"),
            (parallel["num_gpus"] != processes, f"{parallel['num_gpus']} GPUs, and {processes} processes run"),
            (model["num_layers"] % degrees[1], "num_layers is no multiple of PP"),
            (model["num_attention_heads"] % degrees[0], "num_attention_heads is no multiple of TP"),
            (model["num_kv_heads"] % degrees[0], "num_kv_heads is no multiple of TP"),
            (model["ffn_hidden_size"] % degrees[0], "ffn_hidden_size is no multiple of TP"),
            (wrong_batch, "a global_batch_size that is not MBS x DP x GA"),
            (optimizer["type"] != "adamw", f"optimizer {optimizer['type']!r}"),
            (optimizer["state_precision"] != "fp32", "master weights and moments in anything but fp32"),
            (parallel["sharding"] not in PLAIN + ZERO_1, f"sharding {parallel['sharding']!r}"),
            (job["precision"] not in ("fp32", "bf16", "fp8"), f"precision {job['precision']!r}"),
            (job["compile"], "torch.compile of the whole model"),
            (job["offload"], "offload"),
        ]
    )
    job.ignore("model.nemo_recipe", "NeMo's name of the model")
    job.ignore("model.primus_config", "Primus' name of the model")
    job.ignore("framework", "nothing there is for this program")


def start_groups(job):
    parallel = job["parallelism"]
    _, _, local_rank = world()
    torch.cuda.set_device(local_rank)
    torch.distributed.init_process_group("nccl")
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=parallel["tensor_model_parallel_size"],
        pipeline_model_parallel_size=parallel["pipeline_model_parallel_size"],
        context_parallel_size=parallel["context_parallel_size"],
        expert_model_parallel_size=parallel["expert_model_parallel_size"],
        create_gloo_process_groups=False,
    )
    torch.manual_seed(job["seed"])
    model_parallel_cuda_manual_seed(job["seed"])


def build_optimizer(job, config, model):
    o = job["optimizer"]
    settings = OptimizerConfig(
        optimizer="adam",
        lr=o["learning_rate"],
        min_lr=o["min_learning_rate"],
        weight_decay=o["weight_decay"],
        adam_beta1=o["beta1"],
        adam_beta2=o["beta2"],
        adam_eps=o["eps"],
        clip_grad=o["clip_grad"],
        bf16=config.bf16,
        params_dtype=config.params_dtype,
        use_distributed_optimizer=model.ddp_config.use_distributed_optimizer,
        overlap_param_gather=model.ddp_config.overlap_param_gather,
    )
    optimizer = get_megatron_optimizer(settings, [model], use_gloo_process_groups=False)
    for one in optimizer.chained_optimizers:
        for group in one.optimizer.param_groups:
            # megatron-core leaves both to its scheduler, which has another cosine than the job.
            group["weight_decay"] = settings.weight_decay * group["wd_mult"]
            group["initial_lr"] = settings.lr
            if type(one.optimizer) is torch.optim.AdamW:  # no apex and no transformer_engine here
                group["fused"], group["foreach"] = True, False
    return settings, optimizer


def wrap(job, config, stage):
    shards = job["parallelism"]["sharding"] not in PLAIN
    overlap = parallel_state.get_data_parallel_world_size(with_context_parallel=True) > 1
    settings = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        use_distributed_optimizer=shards,
        overlap_grad_reduce=overlap,
        overlap_param_gather=overlap and shards,
    )
    model = DistributedDataParallel(config=config, ddp_config=settings, module=stage)
    model.broadcast_params()
    config.finalize_model_grads_func = finalize_model_grads
    if overlap:
        config.no_sync_func = model.no_sync
    return model


class Batches:
    """Micro-batches of this data-parallel rank; the last token of a sequence has no next one to predict."""

    def __init__(self, job):
        self.dataset, self.rows = open_dataset(job), job["data"]["micro_batch_size"]
        self.number, self.device = 0, torch.cuda.current_device()
        self.replica = parallel_state.get_data_parallel_rank(), parallel_state.get_data_parallel_world_size()

    def __iter__(self):
        return self

    def __next__(self):
        tokens = micro_batch(self.dataset, self.number, self.rows, *self.replica)["input_ids"]
        self.number += 1
        tokens = tokens.pin_memory().to(self.device, non_blocking=True)
        predicted = torch.ones(tokens.shape, dtype=torch.float32, device=self.device)
        predicted[:, -1] = 0.0
        batch = {
            "tokens": tokens,
            "labels": tokens.roll(-1, dims=1),
            "weights": predicted / predicted.sum(),
            "positions": torch.arange(tokens.shape[1], device=self.device).expand_as(tokens),
        }
        return get_batch_on_this_cp_rank(batch)


def forward_step(batches, model):
    batch = next(batches)
    output = model(batch["tokens"], batch["positions"], None, labels=batch["labels"])

    def mean(losses):
        loss = (losses.float() * batch["weights"]).sum()
        return loss, loss.detach().clone()  # the schedule scales the first in place

    return output, mean


def in_effect(job, config, model, settings, optimizer, batches):
    """What the start event says: read back from the objects that train."""
    stage, groups = model.module, [g for one in optimizer.chained_optimizers for g in one.optimizer.param_groups]
    dtypes = {p.dtype for group in groups for p in group["params"]}
    micro_steps, dp = job["data"]["gradient_accumulation_steps"], parallel_state.get_data_parallel_world_size()
    inner = type(optimizer.chained_optimizers[0].optimizer)
    state = {"optimizer_state_precision": dtype_name(*dtypes)} if len(dtypes) == 1 else {}
    if config.fp8:
        state |= {"fp8_hybrid": config.fp8 == "hybrid", "fp8_param": config.fp8_param, "fp8_recipe": config.fp8_recipe}
        state |= {name: getattr(config, name) for name in ("fp8_amax_history_len", "fp8_amax_compute_algo")}
    return state | network.recompute_in_effect(config) | network.experts_in_effect(stage, config) | {
        "architecture": job["model"]["architecture"],
        "num_layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "ffn_hidden_size": config.ffn_hidden_size,
        "num_attention_heads": config.num_attention_heads,
        "num_kv_heads": config.num_query_groups,
        "head_dim": config.kv_channels,
        "vocab_size": job["model"]["vocab_size"],
        "padded_vocab_size": stage.vocab_size,
        "tie_embeddings": stage.share_embeddings_and_output_weights,
        "qkv_bias": stage.decoder.layers[0].self_attention.linear_qkv.bias is not None,
        "norm_eps": config.layernorm_epsilon,
        **network.rope_in_effect(stage, config),
        "seq_length": batches.dataset[0]["input_ids"].numel(),
        "micro_batch_size": batches.rows,
        "gradient_accumulation_steps": micro_steps,
        "global_batch_size": batches.rows * micro_steps * dp,
        "train_iters": job["train_iters"],
        "precision": "fp8" if config.fp8 else "bf16" if config.bf16 else "fp32",
        "optimizer": "adamw" if settings.decoupled_weight_decay else "adam",
        "learning_rate": settings.lr,
        "min_learning_rate": settings.min_lr,
        "warmup_steps": job["optimizer"]["warmup_steps"],
        "weight_decay": max(group["weight_decay"] for group in groups),
        "beta1": groups[0]["betas"][0],
        "beta2": groups[0]["betas"][1],
        "eps": groups[0]["eps"],
        "clip_grad": settings.clip_grad,
        "seed": job["seed"],
        "init_std": config.init_method_std,
        "dropout": max(config.hidden_dropout, config.attention_dropout),
        "tensor_model_parallel_size": parallel_state.get_tensor_model_parallel_world_size(),
        "pipeline_model_parallel_size": parallel_state.get_pipeline_model_parallel_world_size(),
        "context_parallel_size": parallel_state.get_context_parallel_world_size(),
        "data_parallel_size": dp,
        "num_gpus": torch.distributed.get_world_size(),
        "sequence_parallel": config.sequence_parallel,
        "sharding": sharding(job, settings),
        "compile": False,
        "offload": settings.optimizer_cpu_offload or config.cpu_offloading,
        **batches.dataset.effective(),
        "attention_mask": "causal",
        "packing": getattr(batches.dataset, "packing", "none"),
        "initialisation": "random",
        "layers": "transformer_engine" if network.HAVE_TE else "megatron.core local",
        "jit_fused": [name for name in FUSED if getattr(config, name)],
        "attention": type(stage.decoder.layers[0].self_attention.core_attention).__name__,
        "adam": f"{inner.__module__}.{inner.__name__}" + (" fused" if groups[0].get("fused") else ""),
    }


def sharding(job, settings):
    """In the job's word where it says the same."""
    words = ZERO_1 if settings.use_distributed_optimizer else PLAIN
    asked = job["parallelism"]["sharding"]
    return asked if asked and asked in words else "zero1" if settings.use_distributed_optimizer else "ddp"


def mean_over_all(losses):
    """The loss of the whole global batch, on every rank: only the last stage has any, once for each TP rank."""
    total = torch.zeros([], dtype=torch.float32, device=torch.cuda.current_device())
    if losses:
        total += torch.stack(losses).mean()
    torch.distributed.all_reduce(total)
    ranks = parallel_state.get_data_parallel_world_size() * parallel_state.get_tensor_model_parallel_world_size()
    return total.item() / ranks


def highest_memory():
    """The peak of the rank that needed most: pipeline stages differ."""
    peak = torch.tensor([torch.cuda.max_memory_allocated()], device=torch.cuda.current_device())
    torch.distributed.all_reduce(peak, op=torch.distributed.ReduceOp.MAX)
    return int(peak)


def train(job):
    start_groups(job)
    config = network.configure(job)
    stage = network.build(job, config)
    num_parameters, expected = network.count_parameters(stage), job["model"]["num_parameters"]
    if expected and num_parameters - network.padding(stage, job["model"]) != expected:
        stop(2, "launch", f"the model has {num_parameters} parameters with its padding, the job's shape {expected}")
    model = wrap(job, config, stage)
    settings, optimizer = build_optimizer(job, config, model)
    batches, rate, data = Batches(job), LearningRate(job), job["data"]
    effective = in_effect(job, config, model, settings, optimizer, batches)
    job.refuse_unread()

    run, events = get_forward_backward_func(), Events("megatron-core")
    model.train()
    torch.distributed.barrier()
    events.start(effective, num_parameters)
    for step in range(1, job["train_iters"] + 1):
        learning_rate = rate.at(step)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        model.zero_grad_buffer()
        optimizer.zero_grad()
        losses = run(
            forward_step_func=forward_step,
            data_iterator=batches,
            model=[model],
            num_microbatches=data["gradient_accumulation_steps"],
            seq_length=data["seq_length"],
            micro_batch_size=data["micro_batch_size"],
            forward_only=False,
        )
        _, grad_norm, _ = optimizer.step()
        loss = mean_over_all(losses)
        events.step(
            step,
            loss=loss,
            step_time_seconds=events.lap(),
            learning_rate=learning_rate,
            grad_norm=grad_norm,
            tokens=effective["global_batch_size"] * effective["seq_length"],
            memory_bytes=highest_memory(),
        )
        if events.found_nan:
            break
    events.end()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    job = Job.load()
    refuse(job)
    with runs_out_of_memory():
        train(job)
