"""Trains the job in $TPRIMAT_JOB with the Hugging Face Trainer, and prints its progress as JSON lines.

One process, or plain data parallelism under torchrun. Weights are random (or --weights), tokens are synthetic,
nothing is downloaded and nothing but $TPRIMAT_RUN_DIR is written to. Settings are reported as the Trainer, the
optimizer and the model have them, not as the job asked for them.
"""

import argparse
import json
import os
import sys

RUN_DIR = os.environ.get("TPRIMAT_RUN_DIR", ".")
# Before transformers is imported, which reads them once.
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "TOKENIZERS_PARALLELISM": "false"}
os.environ.setdefault("HF_HOME", os.path.join(RUN_DIR, "huggingface"))

import torch
import transformers
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainingArguments

sys.dont_write_bytecode = True  # the recipe's folder is an input of the run: leave nothing in it
from events import Events, emit, stop
from workload import SyntheticTokens, learning_rate_factor


def refusals(job):
    """Why this program cannot run the job as it stands."""
    model, optimizer, parallel = job["model"], job["optimizer"], job["parallelism"]
    world = int(os.environ.get("WORLD_SIZE", "1"))
    data = job["data"]
    checks = [
        (model["architecture"] not in ("llama", "qwen2", "mistral", "gpt2"), f"architecture {model['architecture']!r}"),
        (model["qkv_bias"] and model["architecture"] in ("llama", "mistral"), "a QKV bias in this architecture"),
        (not model["qkv_bias"] and model["architecture"] == "qwen2", "qwen2 without QKV bias"),
        (model["dataset"] is not None, "real data sets"),
        (job["precision"] not in ("fp32", "bf16"), f"precision {job['precision']!r}"),
        (optimizer["state_precision"] not in ("fp32", job["precision"]), "optimizer states below the precision"),
        (optimizer["type"] != "adamw", f"optimizer {optimizer['type']!r}"),
        (job["offload"], "offload"),
        (job["activation_checkpointing"] and job["sac_frequency"] > 1, "checkpointing only some of the layers"),
        (parallel["tensor_model_parallel_size"] != 1, "tensor parallelism"),
        (parallel["pipeline_model_parallel_size"] != 1, "pipeline parallelism"),
        (parallel["context_parallel_size"] != 1, "context parallelism"),
        (parallel["data_parallel_size"] != world, f"another data_parallel_size than the {world} processes started"),
        (
            data["global_batch_size"] != data["micro_batch_size"] * world * data["gradient_accumulation_steps"],
            "a global_batch_size that is not micro_batch_size x data_parallel_size x gradient_accumulation_steps",
        ),
    ]
    reasons = [f"not supported: {what}" for applies, what in checks if applies]
    if job["vendor"] == "nvd" and not (torch.cuda.is_available() and torch.version.cuda):
        reasons.append("this PyTorch sees no CUDA device, and there is no falling back to the CPU")
    if job["vendor"] == "amd" and not (torch.cuda.is_available() and torch.version.hip):
        reasons.append("this PyTorch sees no ROCm device, and there is no falling back to the CPU")
    return reasons


def build_model(job):
    m = job["model"]
    common = {
        "vocab_size": m["vocab_size"],
        "tie_word_embeddings": m["tie_embeddings"],
        "attn_implementation": "sdpa",
        "use_cache": False,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    if m["architecture"] == "gpt2":
        config = transformers.GPT2Config(
            n_layer=m["num_layers"],
            n_embd=m["hidden_size"],
            n_inner=m["ffn_hidden_size"],
            n_head=m["num_attention_heads"],
            n_positions=m["max_position_embeddings"] or job["data"]["seq_length"],
            layer_norm_epsilon=m["norm_eps"],
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            **common,
        )
        return transformers.GPT2LMHeadModel(config)
    name = {"llama": "Llama", "qwen2": "Qwen2", "mistral": "Mistral"}[m["architecture"]]
    rope = {"rope_type": "default", "rope_theta": m["rope_theta"]}
    if m["rope_scaling"]:
        rope |= {"rope_type": "llama3"} | m["rope_scaling"]
    config = getattr(transformers, f"{name}Config")(
        num_hidden_layers=m["num_layers"],
        hidden_size=m["hidden_size"],
        intermediate_size=m["ffn_hidden_size"],
        num_attention_heads=m["num_attention_heads"],
        num_key_value_heads=m["num_kv_heads"],
        max_position_embeddings=m["max_position_embeddings"] or job["data"]["seq_length"],
        rms_norm_eps=m["norm_eps"],
        rope_parameters=rope,
        **({"head_dim": m["head_dim"]} if m["head_dim"] and name != "Qwen2" else {}),
        **({"sliding_window": None} if name == "Mistral" else {}),
        **common,
    )
    return getattr(transformers, f"{name}ForCausalLM")(config)


def load_weights(model, path):
    from safetensors.torch import load_file

    missing, unexpected = model.load_state_dict(load_file(path), strict=False)
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    if set(missing) - tied or unexpected:
        stop(2, "launch", f"{path} does not fit the model: missing {missing}, unexpected {unexpected}")


def build_optimizer(job, model, on_gpu):
    o = job["optimizer"]
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": o["weight_decay"]},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    betas = (o["beta1"], o["beta2"])
    optimizer = torch.optim.AdamW(groups, lr=o["learning_rate"], betas=betas, eps=o["eps"], fused=on_gpu)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, learning_rate_factor(job))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", help="safetensors to start from instead of random weights")
    weights = parser.parse_args().weights
    try:
        with open(os.environ["TPRIMAT_JOB"]) as file:
            job = json.load(file)
        reasons = refusals(job)
    except (KeyError, OSError, ValueError) as error:
        stop(2, "launch", f"cannot read the job from $TPRIMAT_JOB: {error!r}")
    if reasons:
        stop(2, "launch", "cannot run this job: " + "; ".join(reasons))

    on_gpu = job["vendor"] != "cpu"
    pure_bf16 = job["optimizer"]["state_precision"] == "bf16"
    args = TrainingArguments(
        output_dir=RUN_DIR,
        per_device_train_batch_size=job["data"]["micro_batch_size"],
        gradient_accumulation_steps=job["data"]["gradient_accumulation_steps"],
        max_steps=job["train_iters"],
        max_grad_norm=job["optimizer"]["clip_grad"],
        bf16=job["precision"] == "bf16" and not pure_bf16,
        torch_compile=job["compile"],
        torch_compile_mode=(job["compile_mode"] or None) if job["compile"] else None,
        train_sampling_strategy="sequential",
        seed=job["seed"],
        use_cpu=not on_gpu,
        logging_steps=1,
        logging_nan_inf_filter=False,
        dataloader_pin_memory=on_gpu,
        ddp_find_unused_parameters=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    torch.manual_seed(job["seed"])
    model = build_model(job)
    if weights:
        load_weights(model, weights)
    model.to(args.device, torch.bfloat16 if pure_bf16 else torch.float32)
    if job["activation_checkpointing"]:
        # transformers 5.17 knows the older name only.
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable({"use_reentrant": False})
    optimizers = build_optimizer(job, model, on_gpu)
    trainer = Trainer(model=model, args=args, train_dataset=SyntheticTokens(job), optimizers=optimizers)
    for callback in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(callback)
    events = Events(job, trainer, from_file=bool(weights))
    trainer.add_callback(events)
    try:
        trainer.train()
    except torch.OutOfMemoryError as error:
        stop(1, "oom", str(error).splitlines()[0])
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    if events.found_nan:
        stop(1, "nan", f"the loss is not a number at step {trainer.state.global_step}")
    emit("end", status="ok", steps=trainer.state.global_step)


if __name__ == "__main__":
    main()
