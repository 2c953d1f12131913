"""A trainer of one's own, with the faults of such scripts: it trains the job's shape with plain PyTorch, but forgets
gradient accumulation at micro-batch 2 (and says the batch that it ran), and dies at micro-batch 8."""

import json
import os
import time

import torch
from transformers import AutoConfig, AutoModelForCausalLM

job = json.load(open(os.environ["TPRIMAT_JOB"]))
shape, data, opt = job["model"], job["data"], job["optimizer"]


def emit(event, **fields):
    print(json.dumps({"event": event, "time": time.time()} | fields), flush=True)


micro, sequence = data["micro_batch_size"], data["seq_length"]
steps = 1 if micro == 2 else data["global_batch_size"] // micro
torch.manual_seed(job["seed"])
family = {"qwen2": "qwen2", "llama": "llama"}[shape["architecture"]]
config = AutoConfig.for_model(
    family,
    num_hidden_layers=shape["num_layers"],
    hidden_size=shape["hidden_size"],
    intermediate_size=shape["ffn_hidden_size"],
    num_attention_heads=shape["num_attention_heads"],
    num_key_value_heads=shape["num_kv_heads"],
    vocab_size=shape["vocab_size"],
    tie_word_embeddings=shape["tie_embeddings"],
)
model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").cuda()
adamw = torch.optim.AdamW(model.parameters(), lr=opt["learning_rate"], weight_decay=opt["weight_decay"], fused=True)
emit(
    "start",
    schema="tprimat.events/1",
    trainer="mine",
    device=torch.cuda.get_device_name(),
    num_parameters=sum(p.numel() for p in model.parameters()),
    effective={"micro_batch_size": micro, "global_batch_size": micro * steps, "seq_length": sequence, "num_gpus": 1, "precision": "bf16", "optimizer": "adamw", "optimizer_state_precision": "fp32", "seed": job["seed"]},
)
for step in range(1, job["train_iters"] + 1):
    if micro == 8 and step == 7:
        raise RuntimeError("the data loader's worker is gone")
    torch.cuda.synchronize()
    began, total = time.perf_counter(), 0.0
    for _ in range(steps):
        tokens = torch.randint(shape["vocab_size"], (micro, sequence), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens).loss / steps
        loss.backward()
        total += loss.item()
    adamw.step()
    adamw.zero_grad()
    torch.cuda.synchronize()
    emit("step", step=step, step_time_seconds=time.perf_counter() - began, loss=total, tokens=steps * micro * sequence)
emit("end", status="ok", steps=job["train_iters"])
