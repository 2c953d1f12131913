"""Runs a performance recipe of Megatron-Bridge, changed as bridge.json says.

    train.py bridge.json ARGUMENTS OF scripts/performance/run_script.py

Bridge's script makes the recipe's configuration and hands it to `pretrain`. In between, the job's settings are put into it, and
a start event states what the configuration then holds. A field that this version of Bridge does not have ends the run.
"""

import json
import math
import os
import runpy
import sys

sys.dont_write_bytecode = True  # the checkout is a fact of the lock: leave nothing in it

import torch
from megatron.bridge.training import mixed_precision, pretrain

from tprimat_callback import stop

STATES = ("main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")


def place(config, path):
    group, _, name = path.partition(".")
    owner = getattr(config, group, None)
    if not hasattr(owner, name):
        stop(2, "launch", f"this Megatron-Bridge has no {path} in its configuration")
    return owner, name


def precision(config):
    mixed = config.mixed_precision
    mixed = mixed_precision.get_mixed_precision_config(mixed) if isinstance(mixed, str) else mixed
    if getattr(mixed, "fp4", None):
        return getattr(mixed, "fp4_recipe", None) or "fp4"
    return {"mxfp8": "mxfp8"}.get(mixed.fp8_recipe, "fp8") if mixed.fp8 else "bf16" if mixed.bf16 else "fp32"


def changed(config, settings):
    """The configuration with the job's settings, and what it holds of them."""
    stated = settings["stated"]
    for path, value in [*stated.values(), *settings["silent"].items()]:
        setattr(*place(config, path), value)
    for name in STATES:
        setattr(*place(config, f"optimizer.{name}"), torch.float32)
    effective = {name: getattr(*place(config, path)) for name, (path, _) in stated.items()}
    states = {getattr(config.optimizer, name) for name in STATES}
    processes = int(os.environ["WORLD_SIZE"])
    degrees = (f"{kind}_size" for kind in ("tensor_model_parallel", "pipeline_model_parallel", "context_parallel"))
    return effective | {
        "num_gpus": processes,
        "data_parallel_size": processes // math.prod(getattr(config.model, name) for name in degrees),
        "precision": precision(config),
        "optimizer_state_precision": "fp32" if states == {torch.float32} else "mixed",
        "sharding": "zero1" if config.ddp.use_distributed_optimizer else "ddp",
        "activation_checkpointing": config.model.recompute_granularity is not None,
        "data": "random",
    }


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        settings = json.load(file)
    own = pretrain.pretrain

    def started(config, *args, **kwargs):
        effective = changed(config, settings)
        if os.environ.get("RANK", "0") == "0":
            # Without a schema, so that the log as a whole stays Megatron's to who detects its format.
            print(json.dumps({"event": "start", "trainer": "megatron-bridge", "effective": effective}), flush=True)
        return own(config, *args, **kwargs)

    pretrain.pretrain = started
    scripts = os.path.join(os.environ["BRIDGE_CHECKOUT"], "scripts", "performance")
    program = os.path.join(scripts, "run_script.py")
    with open(program, encoding="utf-8") as file:
        if "os.exec" in file.read():  # it would leave this program, and with it the job's settings, behind
            stop(2, "launch", "this Megatron-Bridge starts its script anew with another environment; 0.3 does not")
    sys.path.insert(0, scripts)
    sys.argv = [program, *sys.argv[2:]]
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
