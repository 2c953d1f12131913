"""The start event of our own trainers: settings read back from the objects that train, never from the job's wishes.

    events = Events("fsdp")
    effective = settings(model, optimizer, rates, dataset)
    effective |= {"precision": …, "sharding": …}         what only this trainer can know
    events.start(**checked(job, effective, count))       refuses a job with fields that nobody read
    events.step(1, loss=…, tokens=…, learning_rate=…, grad_norm=…)
    events.end()
"""

import os
import re
import sys

import torch

from tprimat_callback import Events, emit, model_in_effect, optimizer_in_effect, stop

__all__ = ["Events", "checked", "dtype_name", "emit", "plain_name", "runs_out_of_memory", "settings", "stop", "world"]

# What DDP, torch.compile and checkpoint wrappers put into a parameter's name.
WRAPPERS = re.compile(r"(^|\.)(module|_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module)(?=\.)")


def world():
    """(rank, processes of the run, rank on this host), as torchrun says."""
    return tuple(int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0)))


def plain_name(name):
    return WRAPPERS.sub(r"\1", name).replace("..", ".").lstrip(".")


def dtype_name(dtype):
    return {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}.get(dtype, str(dtype))


def settings(model=None, optimizer=None, rates=None, dataset=None):
    """What the given live objects hold. A trainer adds what it knows itself, and drops what does not apply."""
    _, processes, _ = world()
    found = {
        "num_gpus": processes,
        "tensor_model_parallel_size": 1,
        "pipeline_model_parallel_size": 1,
        "context_parallel_size": 1,
        "data_parallel_size": processes,
        "seed": torch.initial_seed(),
    }
    if dataset is not None:
        found |= {"packing": "none", "seq_length": len(dataset[0]["input_ids"])} | dataset.effective()
    if optimizer is not None:
        found |= optimizer_in_effect(optimizer)
        dtypes = {dtype_name(p.dtype) for group in optimizer.param_groups for p in group["params"]}
        found |= {"optimizer_state_precision": dtypes.pop()} if len(dtypes) == 1 else {}
    if rates is not None:
        found |= {"learning_rate": rates.high, "min_learning_rate": rates.low, "warmup_steps": rates.warmup}
        if rates.style != "cosine":
            found |= {"lr_decay_style": rates.style, "wsd_decay_steps": rates.falling}
    if model is not None:
        config = model.config
        names = [plain_name(name) for name, _ in model.named_parameters()]
        found |= model_in_effect(config) | {
            "qkv_bias": any(name.endswith(("q_proj.bias", "c_attn.bias")) for name in names),
            "tie_embeddings": model.get_output_embeddings().weight is model.get_input_embeddings().weight,
            "dropout": dropout(model),
            "attention_mask": "causal",
        }
        found |= getattr(model, "tprimat_effective", {})
    return found


def dropout(model):
    """The largest probability anywhere: in modules, and in what configs hand to attention."""
    modules = [m.p for m in model.modules() if isinstance(m, torch.nn.Dropout)]
    named = [v for k, v in model.config.to_dict().items() if k.endswith(("dropout", "_pdrop"))]
    return max([*modules, *(v for v in named if isinstance(v, (int, float)))], default=0.0)


def checked(job, effective, num_parameters):
    """The keywords of `Events.start`, once the model is the job's and every field that asks for something was read."""
    expected = job["model"]["num_parameters"]
    if expected and expected != num_parameters:
        stop(2, "launch", f"the model has {num_parameters} parameters, the job's shape {expected}")
    job.refuse_unread()
    return {"effective": effective, "num_parameters": num_parameters, "threads": torch.get_num_threads()}


class runs_out_of_memory:
    """`with runs_out_of_memory():` names the failure, on whichever rank it happens."""

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _):
        if kind is not None and issubclass(kind, torch.OutOfMemoryError):
            emit("error", **{"class": "oom"}, message=str(error).splitlines()[0])
            print(f"{os.path.basename(sys.argv[0])}: {error}", file=sys.stderr, flush=True)
            os._exit(1)  # other ranks wait in a collective: leave without joining them
        return False
