"""Progress of a training as JSON lines that tprimat reads (`tprimat print schema events`), for any training script.

Copy this file beside your script. It needs the standard library only; torch, transformers and lightning are used
where the script uses them already.

A plain loop:                     transformers' Trainer, Lightning, NeMo:
    events = Events("mine")           trainer = Trainer(..., callbacks=[trainer_callback(seq_length=4096)])
    events.start({"seq_length": …})   trainer = Trainer(callbacks=[lightning_callback(global_batch_size=128, …)])
    for n in range(1, steps + 1):
        …
        events.step(n, loss=loss, tokens=tokens)
    events.end()

State in `start` what the script really uses, by the job's names: tprimat checks it against the job.
"""

import json
import math
import os
import platform
import sys
import time

SCHEMA = "tprimat.events/1"


def rank():
    names = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
    return next((int(os.environ[name]) for name in names if os.environ.get(name, "").isdigit()), 0)


def emit(event, **fields):
    """One line from rank 0; an `error` from any rank, because the others may outlive the one that knows why."""
    if rank() == 0 or event == "error":
        line = json.dumps({"event": event, "time": time.time()} | {k: finite(v) for k, v in fields.items()})
        sys.stdout.write(line + "\n")  # in one piece, so that ranks do not cut each other's lines
        sys.stdout.flush()


def finite(value):
    """JSON has no NaN and no infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def stop(code, failure_class, message):
    """Ends this process with an `error` event: launch, oom, nan, nccl, import, port, …"""
    emit("error", **{"class": failure_class}, message=message)
    print(f"{os.path.basename(sys.argv[0])}: {message}", file=sys.stderr)
    sys.exit(code)


def cuda():
    """torch.cuda, also on ROCm, if this process computes there."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized() else None


def synchronize():
    if cuda():
        cuda().synchronize()


def memory(kind="peak_allocated"):
    """The memory fields of a step: torch's `peak_allocated` or `peak_reserved` bytes, else the peak resident set."""
    if cuda():
        peak = cuda().max_memory_reserved() if kind == "peak_reserved" else cuda().max_memory_allocated()
        return {"memory_bytes": peak, "memory_kind": kind, "memory_source": "torch"}
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            peak = next(line for line in status if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return {}
    return {"memory_bytes": int(peak.split()[1]) * 1024, "memory_kind": "peak_rss", "memory_source": "proc"}


def device(count=None):
    """The device field of the start event; `count` = devices of the whole run."""
    if cuda():
        torch = sys.modules["torch"]
        if count is None:
            count = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
        return {"type": "cuda", "count": count, "name": cuda().get_device_name()}
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as info:
            name = next(line for line in info if line.startswith("model name")).split(":", 1)[1].strip()
    except (OSError, StopIteration):
        return {"type": "cpu", "count": 1}
    return {"type": "cpu", "count": 1, "name": name}


def profiler():
    """torch's profiler over steps 3 to 5, started, where `tprimat build --set experiment.profiling=torch` asks for its trace."""
    folder, torch = os.environ.get("TPRIMAT_PROFILE_DIR"), sys.modules.get("torch")
    if not folder or torch is None or rank() != 0:
        return None
    write = lambda profile: profile.export_chrome_trace(os.path.join(folder, "trace.json"))
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=3, repeat=1)
    profile = torch.profiler.profile(schedule=schedule, on_trace_ready=write)
    profile.start()
    return profile


def versions():
    """Versions of Python and of the frameworks that this process has loaded."""
    names = ("torch", "transformers", "accelerate", "deepspeed", "lightning", "nemo", "transformer_engine")
    names += ("megatron.core", "torchtitan", "numpy")
    found = {name: getattr(sys.modules.get(name), "__version__", None) for name in names}
    found["python"] = platform.python_version()
    torch = sys.modules.get("torch")
    if cuda():
        found |= {"cuda": torch.version.cuda, "rocm": torch.version.hip}
    return {name: str(version) for name, version in found.items() if version}


def model_in_effect(config):
    """The shape of a transformers model, by its config object."""
    get = lambda *names: next((v for v in (getattr(config, n, None) for n in names) if v is not None), None)
    heads, hidden = get("num_attention_heads", "n_head"), get("hidden_size", "n_embd")
    kind = get("model_type")
    found = {
        "architecture": kind,
        "num_layers": get("num_hidden_layers", "n_layer"),
        "hidden_size": hidden,
        "ffn_hidden_size": get("intermediate_size", "n_inner") or (4 * hidden if kind == "gpt2" else None),
        "num_experts": get("num_experts", "num_local_experts", "n_routed_experts"),
        "num_experts_per_tok": get("num_experts_per_tok"),
        # Mixtral and GPT-OSS have one width, that of their experts.
        "moe_intermediate_size": get("moe_intermediate_size", *(("intermediate_size",) if kind in ("mixtral", "gpt_oss") else ())),
        "shared_expert_intermediate_size": get("shared_expert_intermediate_size"),
        "num_attention_heads": heads,
        "num_kv_heads": get("num_key_value_heads") or heads,
        "head_dim": get("head_dim") or (hidden // heads if hidden and heads else None),
        "vocab_size": get("vocab_size"),
        "tie_embeddings": get("tie_word_embeddings"),
        "norm_eps": get("rms_norm_eps", "layer_norm_epsilon"),
        "rope_theta": (get("rope_parameters") or {}).get("rope_theta") or get("rope_theta"),
        "rope_scaling_factor": rope_scaling_in_effect(get("rope_parameters") or get("rope_scaling") or {}, kind),
    }
    if kind in ("deepseek_v2", "deepseek_v3"):
        found |= deepseek_in_effect(config)
    if kind in ("mistral", "mixtral", "gpt_oss"):
        found |= window_in_effect(config)
    return {name: value for name, value in found.items() if value is not None}


def deepseek_in_effect(config):
    """What its latent attention, its experts and their router are; its config's head_dim is that of RoPE's part."""
    names = ("first_k_dense_replace", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    is_v3 = config.model_type == "deepseek_v3"
    return {name: getattr(config, name) for name in names} | {
        "shared_expert_intermediate_size": config.n_shared_experts * config.moe_intermediate_size,
        "head_dim": config.qk_nope_head_dim + config.qk_rope_head_dim,
        "router_scores": "sigmoid" if is_v3 else "softmax",
        "router_normalised": is_v3 and bool(config.norm_topk_prob),  # transformers' V2 never does
        "router_scale": config.routed_scaling_factor,
        "router_groups": config.n_group or 1,
    }


def window_in_effect(config):
    """How many tokens are attended to; where only some layers have such a window, every how many-th has none."""
    kinds, window = getattr(config, "layer_types", None) or [], getattr(config, "sliding_window", None)
    whole = [number for number, kind in enumerate(kinds, 1) if kind == "full_attention"]
    if not window or (kinds and len(whole) == len(kinds)):
        return {}
    is_even = whole and whole == list(range(whole[0], len(kinds) + 1, whole[0]))
    return {"sliding_window": window, "sliding_window_pattern": whole[0] if is_even else None}


def rope_scaling_in_effect(rope, kind):
    """1 for frequencies as they are, Llama 3's factor, and nothing for other ways to scale or without RoPE."""
    dense, experts = ("llama", "qwen2", "mistral", "qwen3"), ("mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss")
    if kind not in (*dense, *experts, "deepseek_v2", "deepseek_v3"):
        return None
    return {"default": 1.0, "llama3": rope.get("factor")}.get(rope.get("rope_type", rope.get("type", "default")))


def optimizer_in_effect(optimizer):
    """What an AdamW-like optimizer of torch holds; weight decay is that of the group that decays most."""
    optimizer = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
    group = max(optimizer.param_groups, key=lambda g: g.get("weight_decay", 0.0))
    found = {
        "optimizer": type(optimizer).__name__.lower(),
        "learning_rate": group.get("initial_lr"),
        "weight_decay": group.get("weight_decay"),
        "beta1": group["betas"][0] if "betas" in group else None,
        "beta2": group["betas"][1] if "betas" in group else None,
        "eps": group.get("eps"),
    }
    return {name: value for name, value in found.items() if value is not None}


class Events:
    """Prints `start`, `step`, `end`. A step's time runs from the end of the step before it, data included."""

    def __init__(self, trainer):
        self.trainer, self.last, self.steps, self.found_nan = trainer, None, 0, False
        self.profiler = None

    def start(self, effective, num_parameters=None, **more):
        """Just before the first step. `effective`: settings in effect, by the job's names."""
        if cuda():
            cuda().reset_peak_memory_stats()
        synchronize()
        known = {"schema": SCHEMA, "trainer": self.trainer, "effective": effective}
        known |= {"num_parameters": num_parameters} if num_parameters else {}
        emit("start", **known | {"device": device(), "versions": versions()} | more)
        self.profiler = profiler()
        self.last = time.perf_counter()

    def lap(self):
        """Seconds since the step before ended; device work included."""
        synchronize()
        now = time.perf_counter()
        seconds, self.last = (now - self.last) if self.last is not None else None, now
        return seconds

    def step(self, step, loss=None, step_time_seconds=None, **more):
        """After an optimiser step, counted from 1. `more`: tokens, learning_rate, grad_norm, …"""
        values = {"step_time_seconds": step_time_seconds if step_time_seconds is not None else self.lap()}
        values |= {name: number(value) for name, value in more.items()}
        values = {name: value for name, value in values.items() if value is not None}
        if loss is not None:
            values["loss"] = number(loss)
            if not math.isfinite(values["loss"]):
                self.found_nan, values["anomaly"] = True, "nan_loss"
        self.steps = step
        self.profile_step()
        emit("step", step=step, **memory() | values)

    def profile_step(self):
        if self.profiler:
            self.profiler.step()

    def end_profile(self):
        if self.profiler:
            self.profiler.stop()

    def end(self, status="ok"):
        self.end_profile()
        if self.found_nan:
            stop(1, "nan", f"the loss is not a number at step {self.steps}")
        emit("end", status=status, steps=self.steps)

    def error(self, failure_class, message):
        emit("error", **{"class": failure_class}, message=message)


def number(value):
    """A Python number of a number or of a tensor with one element."""
    return value.item() if hasattr(value, "item") else value


def trainer_callback(describe=None, events=None, tokens=None, **effective):
    """A transformers.TrainerCallback.

    `describe(args, model, optimizer)` → keywords of `Events.start`, `tokens()` → those of the step that has ended;
    without them it states what the Trainer's own objects say, and `effective` over that.
    """
    import transformers

    def known(args, model, optimizer):
        accumulation, world = args.gradient_accumulation_steps, args.world_size
        stated = {
            "micro_batch_size": args.per_device_train_batch_size,
            "gradient_accumulation_steps": accumulation,
            "global_batch_size": args.per_device_train_batch_size * accumulation * world,
            "data_parallel_size": world,
            "num_gpus": world,
            "clip_grad": args.max_grad_norm,
            "seed": args.seed,
        }
        stated |= model_in_effect(model.config) | optimizer_in_effect(optimizer) | effective
        return {"effective": stated, "num_parameters": sum(p.numel() for p in model.parameters())}

    class TrainerEvents(transformers.TrainerCallback):
        def __init__(self):
            self.events, self.ended, self.logged = events or Events("transformers"), None, 0

        def on_train_begin(self, args, state, control, model=None, optimizer=None, **_):
            self.logged = state.global_step
            self.events.start(**(describe or known)(args, model, optimizer))

        def on_step_begin(self, args, state, control, **_):
            self.flush()

        def on_step_end(self, args, state, control, **_):
            self.ended = {"step": state.global_step, "step_time_seconds": self.events.lap()}
            if tokens:
                self.ended["tokens"] = tokens()

        def on_log(self, args, state, control, logs=None, **_):
            if self.ended is None or "loss" not in logs:  # the summary of the whole run
                return
            names = ("loss", "learning_rate", "grad_norm")
            self.ended |= {name: float(logs[name]) for name in names if name in logs}
            # The logged loss is the mean over the steps since the line before.
            averaged, self.logged = state.global_step - self.logged, state.global_step
            if averaged > 1:
                self.ended["loss_steps_averaged"] = averaged
            # The Trainer leaves losses that are not numbers out of its mean, and 0 is what stays.
            if self.ended["loss"] == 0 and math.isnan(self.ended.get("grad_norm", 0)):
                self.ended["loss"] = math.nan
            control.should_training_stop |= not math.isfinite(self.ended["loss"])

        def on_train_end(self, args, state, control, **_):
            self.flush()
            self.events.end()

        def flush(self):
            if self.ended:
                self.events.step(**self.ended)
            self.ended = None

    return TrainerEvents()


def lightning_callback(loss_names=("reduced_train_loss", "train_loss", "loss"), tokens_per_step=None, **effective):
    """A Lightning callback, for NeMo as well; `effective` is what the script knows of its settings."""
    try:
        import lightning.pytorch as lightning
    except ImportError:
        import pytorch_lightning as lightning

    class LightningEvents(lightning.Callback):
        def __init__(self):
            self.events, self.rate = Events("lightning"), None

        def on_train_start(self, trainer, module):
            stated = {"num_gpus": trainer.world_size, "train_iters": trainer.max_steps}
            if trainer.optimizers:
                stated |= optimizer_in_effect(trainer.optimizers[0])
            self.events.start(stated | effective)

        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            groups = trainer.optimizers[0].param_groups if trainer.optimizers else []
            self.rate = next((group["lr"] for group in groups), None)  # the schedule moves on before the batch's end

        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            if trainer.global_step <= self.events.steps:
                return  # a micro-step
            metrics = trainer.callback_metrics
            found = {"loss": next((metrics[name] for name in loss_names if name in metrics), None)}
            found |= {"grad_norm": metrics.get("grad_norm"), "learning_rate": self.rate, "tokens": tokens_per_step}
            self.events.step(trainer.global_step, **found)

        def on_train_end(self, trainer, module):
            self.events.end()

        def on_exception(self, trainer, module, exception):
            out_of_memory = "OutOfMemory" in type(exception).__name__
            self.events.error("oom" if out_of_memory else "unknown", str(exception)[:300])

    return LightningEvents()
