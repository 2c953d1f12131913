"""Events as JSON lines on stdout (start, step, end, error), and the Trainer callback that prints them."""

import json
import math
import os
import platform
import sys
import time

import torch
import transformers

IS_PRINTER = os.environ.get("RANK", "0") == "0"


def emit(event, **fields):
    if IS_PRINTER:
        print(json.dumps({"event": event, "time": time.time()} | fields), flush=True)


def stop(code, failure_class, message):
    emit("error", **{"class": failure_class}, message=message)
    print(f"train.py: {message}", file=sys.stderr)
    sys.exit(code)


class Events(transformers.TrainerCallback):
    """Prints `start` and `step`; a step's time runs from the end of the step before it, data included."""

    def __init__(self, job, trainer, from_file):
        self.job, self.trainer, self.from_file = job, trainer, from_file
        self.found_nan = False

    def on_train_begin(self, args, state, control, model=None, optimizer=None, **_):
        start = describe(self, args, model, optimizer, self.trainer.train_dataset)
        emit("start", schema="tprimat.events/1", trainer="transformers", **start)
        self.tokens = start["effective"]["global_batch_size"] * start["effective"]["seq_length"]
        self.last = time.perf_counter()

    def on_log(self, args, state, control, logs=None, **_):
        if "loss" not in logs:  # the summary of the whole run
            return
        if args.device.type == "cuda":
            torch.cuda.synchronize()
        now = time.perf_counter()
        seconds, self.last = now - self.last, now
        values = {name: logs[name] for name in ("loss", "learning_rate", "grad_norm") if name in logs}
        values = {name: value if math.isfinite(value) else None for name, value in values.items()}  # JSON has no NaN
        self.found_nan = math.isnan(logs["loss"])
        if self.found_nan:
            values["anomaly"] = "nan_loss"
        emit("step", step=state.global_step, step_time_seconds=seconds, tokens=self.tokens, **values, **memory(args))
        control.should_training_stop |= self.found_nan


def memory(args):
    if args.device.type == "cuda":
        peak = torch.cuda.max_memory_allocated()
        return {"memory_bytes": peak, "memory_kind": "peak_allocated", "memory_source": "torch"}
    try:
        with open("/proc/self/status") as status:
            peak = next(line for line in status if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return {}
    return {"memory_bytes": int(peak.split()[1]) * 1024, "memory_kind": "peak_rss", "memory_source": "proc"}


def describe(events, args, model, optimizer, data):
    """What the start event says: read back from the objects that train."""
    job, config, decayed = events.job, model.config, optimizer.param_groups[0]
    dtype = {torch.float32: "fp32", torch.bfloat16: "bf16"}[next(model.parameters()).dtype]
    drop = [v for k, v in config.to_dict().items() if k.endswith(("dropout", "_pdrop")) and isinstance(v, (int, float))]
    on_gpu = args.device.type == "cuda"
    compiled = hasattr(events.trainer.model_wrapped, "_orig_mod")
    effective = {
        "micro_batch_size": args.per_device_train_batch_size,
        "global_batch_size": args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size,
        "gradient_accumulation_steps": args.gradient_accumulation_steps,
        "seq_length": len(data[0]["input_ids"]),
        "train_iters": args.max_steps,
        "precision": "bf16" if args.bf16 else dtype,
        "optimizer": type(getattr(optimizer, "optimizer", optimizer)).__name__.lower(),
        "optimizer_state_precision": dtype,
        "learning_rate": decayed["initial_lr"],
        "min_learning_rate": job["optimizer"]["min_learning_rate"],
        "warmup_steps": job["optimizer"]["warmup_steps"],
        "weight_decay": decayed["weight_decay"],
        "beta1": decayed["betas"][0],
        "beta2": decayed["betas"][1],
        "eps": decayed["eps"],
        "clip_grad": args.max_grad_norm,
        "seed": args.seed,
        "tensor_model_parallel_size": 1,
        "pipeline_model_parallel_size": 1,
        "context_parallel_size": 1,
        "data_parallel_size": args.world_size,
        "num_gpus": args.world_size,
        "compile": compiled,
        **({"compile_mode": args.torch_compile_mode or "default"} if compiled else {}),
        "activation_checkpointing": any(getattr(m, "gradient_checkpointing", False) for m in model.modules()),
        "offload": False,
        "dropout": max(drop, default=0.0),
        "architecture": config.model_type,
        "num_layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "ffn_hidden_size": getattr(config, "intermediate_size", None) or config.n_inner,
        "num_attention_heads": config.num_attention_heads,
        "num_kv_heads": getattr(config, "num_key_value_heads", config.num_attention_heads),
        "head_dim": getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        "vocab_size": config.vocab_size,
        "tie_embeddings": config.tie_word_embeddings,
        "qkv_bias": any(name.endswith(("q_proj.bias", "c_attn.bias")) for name, _ in model.named_parameters()),
        "data": "random",
        "mask": "causal",
        "packing": "none",
        "initialisation": "file" if events.from_file else "random",
    }
    name = torch.cuda.get_device_name() if on_gpu else cpu_name()
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    versions |= {"python": platform.python_version()}
    versions |= {k: v for k, v in {"cuda": torch.version.cuda, "rocm": torch.version.hip}.items() if on_gpu and v}
    device = {"type": args.device.type, "count": args.world_size if on_gpu else 1} | ({"name": name} if name else {})
    return {
        "effective": effective,
        "num_parameters": sum(p.numel() for p in model.parameters()),
        "device": device,
        "versions": versions,
        "threads": torch.get_num_threads(),
    }


def cpu_name():
    try:
        with open("/proc/cpuinfo") as info:
            return next(line for line in info if line.startswith("model name")).split(":", 1)[1].strip()
    except (OSError, StopIteration):
        return None
