"""Trains the job in $TPRIMAT_JOB with PyTorch's FSDP2 (fully_shard), and prints its progress as JSON lines.

Parameters, gradients and moments are sharded over all processes, one group a decoder layer. Settings are reported as
the sharded model and the optimizer hold them. With `gradient_sync = "last"` (frameworks.fsdp in config.yaml) the
micro-steps before the last keep whole gradients instead of reducing them: less traffic, 4 bytes a parameter more.
"""

import argparse
import os
import sys

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "TOKENIZERS_PARALLELISM": "false"}
os.environ.setdefault("HF_HOME", os.path.join(os.environ.get("TPRIMAT_RUN_DIR", "."), "huggingface"))
sys.dont_write_bytecode = True  # the recipe's folder is an input of the run: leave nothing in it

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

import loop
import model as models
from events import Events, checked, dtype_name, runs_out_of_memory, settings, world
from job import Job, data_parallel_refusals, device_refusals
from workload import LearningRate, open_dataset

# Names of what this program does; the job may use any of them.
FULL_SHARD = ("full_shard", "fsdp", "fsdp2")
# Up to this size whole gradients are kept between micro-steps, where nothing else is asked for.
SMALL_MODEL = 2_000_000_000


def shard(job, model, device):
    """Each decoder layer is gathered for its own forward and backward pass; the rest of the model is one more group."""
    mixed = job["precision"] != "fp32"
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if mixed else MixedPrecisionPolicy()
    offload = CPUOffloadPolicy(pin_memory=device.type == "cuda") if job["offload"] else OffloadPolicy()
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for layer in models.decoder_layers(model):
        fully_shard(layer, mesh=mesh, mp_policy=policy, offload_policy=offload, reshard_after_forward=True)
    fully_shard(model, mesh=mesh, mp_policy=policy, offload_policy=offload)
    if job["precision"] != "fp8":
        models.note(model, precision=dtype_name(policy.param_dtype or next(model.parameters()).dtype))


def gradient_sync(job, count):
    wish = job["framework"].get("gradient_sync") or ("last" if count <= SMALL_MODEL else "every")
    job.refuse([(wish not in ("last", "every"), f"gradient_sync {wish!r}: expected last or every")])
    return wish


def effective(job, model, device, sync):
    parameters, (_, processes, _) = list(model.parameters()), world()
    whole = all(isinstance(p, DTensor) and p.placements[0].is_shard() for p in parameters)
    asked = job["parallelism"]["sharding"]
    rows, accumulation = job["data"]["micro_batch_size"], job["data"]["gradient_accumulation_steps"]
    return {
        "micro_batch_size": rows,
        "gradient_accumulation_steps": accumulation,
        "global_batch_size": rows * accumulation * processes,
        "train_iters": job["train_iters"],
        "clip_grad": job["optimizer"]["clip_grad"],
        "sharding": (asked if asked in FULL_SHARD else FULL_SHARD[0]) if whole else "none",
        "offload": any(p.to_local().device.type != device.type for p in parameters),
        "gradient_sync": sync,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", help="safetensors to start from instead of random weights")
    weights = parser.parse_args().weights
    job = Job.load()
    job.refuse(
        data_parallel_refusals(job, processes=world()[1], shardings=("", *FULL_SHARD))
        + models.shape_refusals(job)
        + device_refusals(job, torch)
        + [(job["offload"] and job["vendor"] == "cpu", "offload from the CPU to the CPU")]
    )
    job.ignore("model.nemo_recipe", "a name that only NeMo knows")
    job.ignore("model.primus_config", "a name that only Primus knows")

    with runs_out_of_memory():
        device = loop.join(job, "cpu:gloo,cuda:nccl" if job["offload"] else "nccl")
        o = job["optimizer"]
        model = models.build(job, torch.bfloat16 if o["state_precision"] == "bf16" else torch.float32)
        count = sum(p.numel() for p in model.parameters())
        sync_last = gradient_sync(job, count) == "last"
        models.checkpoint_layers(model, job)
        models.compile_layers(model, job)  # before sharding, so that gathering stays outside of the graphs
        if job["precision"] == "fp8":
            models.use_fp8(model, job)
        shard(job, model, device)
        models.materialise(model, "cpu" if job["offload"] else device, buffers_on=device)
        models.load(model, weights, device) if weights else models.initialise(model, job, device)
        rates, dataset = LearningRate(job), open_dataset(job)
        optimizer = models.adamw(model, job, fused=device.type == "cuda")

        accumulation = job["data"]["gradient_accumulation_steps"]
        parameters = list(model.parameters())

        def micro_step(batch, last):
            model.set_requires_gradient_sync(last or not sync_last)
            loss = model(**batch).loss
            (loss / accumulation).backward()
            return loss

        def update(step):
            rate = rates.apply(optimizer, step)
            norm = torch.nn.utils.get_total_norm([p.grad for p in parameters], foreach=True)
            norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
            if o["clip_grad"]:
                torch.nn.utils.clip_grads_with_norm_(parameters, o["clip_grad"], norm.to(parameters[0].device))
            optimizer.step()
            optimizer.zero_grad()
            return rate, norm

        events = Events("fsdp2")
        found = settings(model, optimizer, rates, dataset)
        found |= effective(job, model, device, "last" if sync_last else "every")
        events.start(**checked(job, found, count))
        loop.run(job, events, dataset, device, micro_step, update)
        loop.leave()


if __name__ == "__main__":
    main()
