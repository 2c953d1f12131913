"""Trains the job in $TPRIMAT_JOB with DeepSpeed's ZeRO, and prints its progress as JSON lines.

DeepSpeed is configured by deepspeed.json, rendered into $TPRIMAT_RUN_DIR; batch sizes, precision, stage, offload and
clipping are what that file says, and are reported as the engine has them. The optimizer is torch's AdamW, also where
its states are offloaded; `cpu_adam = "deepspeed"` (frameworks.deep in config.yaml) takes DeepSpeedCPUAdam instead,
which DeepSpeed compiles on first use.
"""

import argparse
import json
import os
import sys

RUN_DIR = os.environ.get("TPRIMAT_RUN_DIR", ".")
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "TOKENIZERS_PARALLELISM": "false"}
os.environ.setdefault("HF_HOME", os.path.join(RUN_DIR, "huggingface"))
sys.dont_write_bytecode = True  # the recipe's folder is an input of the run: leave nothing in it

import torch

import loop
import model as models
from events import Events, checked, dtype_name, runs_out_of_memory, settings, world
from job import Job, data_parallel_refusals, device_refusals
from tprimat_callback import stop
from workload import LearningRate, open_dataset

STAGES = ("zero3", "zero2", "zero1")


def build(job, config, device, weights):
    """The model with its first values; for stage 3 each parameter is partitioned as soon as it is made."""
    import deepspeed

    dtype = torch.bfloat16 if config["bf16"]["enabled"] else torch.float32
    if config["zero_optimization"]["stage"] == 3:
        with deepspeed.zero.Init(config_dict_or_path=config):  # with a dtype as well, it takes bf16 on CPUs
            model = models.construct(job)
        fill = {"gathered": lambda parameter: deepspeed.zero.GatheredParameters([parameter], modifier_rank=0)}
    else:
        model, fill = models.materialise(models.build(job, dtype), device), {}
    models.load(model, weights, device, **fill) if weights else models.initialise(model, job, device, **fill)
    return model


def adamw(job, model, device):
    choice = job["framework"].get("cpu_adam") or "torch"
    job.refuse([(choice not in ("torch", "deepspeed"), f"cpu_adam {choice!r}: expected torch or deepspeed")])
    if choice == "torch" or not job["offload"]:
        return models.adamw(model, job, fused=device.type == "cuda" or job["offload"])
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    o = job["optimizer"]
    groups, betas = models.parameter_groups(model, o["weight_decay"]), (o["beta1"], o["beta2"])
    return DeepSpeedCPUAdam(groups, lr=o["learning_rate"], betas=betas, eps=o["eps"], adamw_mode=True)


def effective(engine, device):
    """As the engine has them; the fp32 partition is where AdamW works."""
    inner = engine.optimizer
    masters = getattr(inner, "fp32_partitioned_groups_flat", None) or inner.single_partition_of_fp32_groups
    adam = type(inner.optimizer).__name__
    return {
        "micro_batch_size": engine.train_micro_batch_size_per_gpu(),
        "gradient_accumulation_steps": engine.gradient_accumulation_steps(),
        "global_batch_size": engine.train_batch_size(),
        "precision": "bf16" if engine.bfloat16_enabled() else "fp32",
        "optimizer": "adamw" if adam == "DeepSpeedCPUAdam" else adam.lower(),
        "optimizer_implementation": f"{type(inner.optimizer).__module__}.{adam}",
        "optimizer_state_precision": dtype_name(masters[0].dtype),
        "clip_grad": engine.gradient_clipping(),
        "sharding": f"zero{engine.zero_optimization_stage()}",
        "offload": masters[0].device.type != device.type,
        "gradient_dtype": dtype_name(engine.communication_data_type),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", help="safetensors to start from instead of random weights")
    weights = parser.parse_args().weights
    job = Job.load()
    stage3 = job["parallelism"]["sharding"] in ("", "zero3")
    job.refuse(
        data_parallel_refusals(job, processes=world()[1], shardings=("", *STAGES))
        + models.shape_refusals(job)
        + device_refusals(job, torch)
        + [
            (job["precision"] == "fp8", "FP8"),
            (job["optimizer"]["state_precision"] != "fp32", "weights and moments below fp32"),
            (job["compile"] and stage3, "compile with ZeRO-3"),
            (job["offload"] and job["vendor"] == "cpu", "offload from the CPU to the CPU"),
        ]
    )
    job.ignore("model.nemo_recipe", "a name that only NeMo knows")
    job.ignore("model.primus_config", "a name that only Primus knows")
    job.ignore("optimizer.clip_grad", "DeepSpeed reads it from deepspeed.json")
    if job["vendor"] == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed

    try:
        with open(os.path.join(RUN_DIR, "deepspeed.json"), encoding="utf-8") as file:
            config = json.load(file)
    except (OSError, ValueError) as error:
        stop(2, "launch", f"cannot read deepspeed.json: {error}")

    with runs_out_of_memory():
        device = loop.join(job)
        deepspeed.init_distributed(dist_init_required=False)
        model = build(job, config, device, weights)
        count = sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters())
        # Reentrant: the other kind compares shapes, and a partitioned parameter has none.
        models.checkpoint_layers(model, job, reentrant=stage3)
        models.compile_layers(model, job)
        buffers = models.buffers_of(model)
        rates, dataset = LearningRate(job), open_dataset(job)
        with torch.no_grad():  # its flat copies of the weights must have no history: gloo would not write into them
            engine, *_ = deepspeed.initialize(model=model, optimizer=adamw(job, model, device), config=config)
        models.put_buffers(model, buffers, device)

        accumulation = engine.gradient_accumulation_steps()

        def micro_step(batch, last):
            loss = engine(**batch).loss
            # Its own scaling hangs on every output of the model: in stages 1 and 2 it would count twice.
            engine.backward(loss / accumulation, scale_wrt_gas=False)
            if not last:
                engine.step()  # counts the micro-step
            return loss

        def update(step):
            rate = rates.apply(engine.optimizer, step)
            engine.step()
            return rate, engine.get_global_grad_norm()

        events = Events("deepspeed")
        found = settings(model, engine.optimizer, rates, dataset) | effective(engine, device)
        found["train_iters"] = job["train_iters"]
        events.start(**checked(job, found, count))
        loop.run(job, events, dataset, device, micro_step, update)
        loop.leave()


if __name__ == "__main__":
    main()
