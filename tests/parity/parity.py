"""Does tprimat-native compute what transformers computes? Prints the figures, exits 1 on disagreement.

    python parity.py --binary target/debug/tprimat-native [--device cuda]

For a tiny Llama (grouped queries, Llama-3.1 RoPE scaling), a tiny Qwen2.5 (QKV bias, tied embeddings) a tiny Mistral
(heads wider than hidden size / heads, full window) and a tiny GPT-2, from one set of weights: the logits, then 50 steps of
loss, gradient norm and learning rate. The reference is a plain training loop written here from the definitions; only the network
itself is transformers'. In bf16 the yardstick is how far such loops are apart that differ in nothing but roundings.
On a GPU the shapes are wider, native must take its fused step in bf16, and GPT-2, which has none, is left out.
"""

import argparse
import copy
import functools
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
# Threads that spin while they wait make steps of such small models many times slower as soon as anything else runs.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
import transformers
from safetensors.torch import load_file, save_file

# Largest relative error allowed.
LOGITS = 1e-4
CURVE = 1e-4
# In bf16, of the largest distance between two of four reference loops. They differ in their attention and in weights moved by less
# than bf16 can tell; native rounds at other places as well, and how far apart two loops are depends on the CPU's own kernels.
NOISE = 2.0
# Of each weight: bf16 keeps 8 bits, so this changes how one weight in four is rounded.
NUDGE = 2.0**-10

JOB = {
    "vendor": "cpu",
    "data": {"micro_batch_size": 4, "global_batch_size": 8, "gradient_accumulation_steps": 2, "seq_length": 64},
    "task": "pretrain",
    "lora_rank": 0,
    "train_iters": 50,
    "optimizer": {
        "type": "adamw",
        "learning_rate": 3e-3,
        "min_learning_rate": 3e-4,
        "warmup_steps": 5,
        "lr_decay_style": "cosine",
        "wsd_decay_steps": 0,
        "weight_decay": 0.1,
        "beta1": 0.9,
        "beta2": 0.95,
        "eps": 1e-8,
        "clip_grad": 1.0,
        "state_precision": "fp32",
    },
    "precision": "fp32",
    "fp8_hybrid": False,
    "fp8_param": False,
    "compile": False,
    "compile_mode": "",
    "activation_checkpointing": False,
    "sac_frequency": 1,
    "offload": False,
    "seed": 20261,
    "initialisation": {"std": 0.02},
    "parallelism": {
        "tensor_model_parallel_size": 1,
        "pipeline_model_parallel_size": 1,
        "context_parallel_size": 1,
        "data_parallel_size": 1,
        "expert_model_parallel_size": 1,
        "num_gpus": 1,
        "sharding": "",
    },
    "framework": {},
}
SHAPE = {
    "num_layers": 3,
    "hidden_size": 64,
    "ffn_hidden_size": 176,
    "num_experts": 0,
    "num_experts_per_tok": 0,
    "moe_intermediate_size": 0,
    "shared_expert_intermediate_size": 0,
    "first_k_dense_replace": 0,
    "num_nextn_predict_layers": 0,
    "q_lora_rank": 0,
    "kv_lora_rank": 0,
    "qk_nope_head_dim": 0,
    "qk_rope_head_dim": 0,
    "v_head_dim": 0,
    "sliding_window": 0,
    "sliding_window_pattern": 0,
    "num_attention_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 16,
    "vocab_size": 331,
    "max_position_embeddings": 64,
    "num_parameters": 0,
    "dataset": None,
    "tokenizer": None,
}
MODELS = {
    "llama": SHAPE
    | {
        "architecture": "llama",
        "rope_theta": 5e5,
        # With 32 original positions all three ranges of the scaling are met.
        "rope_scaling": {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
        "norm_eps": 1e-5,
        "tie_embeddings": False,
        "qkv_bias": False,
    },
    "qwen2": SHAPE
    | {
        "architecture": "qwen2",
        "rope_theta": 1e6,
        "rope_scaling": None,
        "norm_eps": 1e-6,
        "tie_embeddings": True,
        "qkv_bias": True,
    },
    "mistral": SHAPE
    | {
        "architecture": "mistral",
        "head_dim": 24,
        "rope_theta": 1e4,
        "rope_scaling": None,
        "norm_eps": 1e-5,
        "tie_embeddings": False,
        "qkv_bias": False,
    },
}


MODELS["gpt2"] = SHAPE | {
    "architecture": "gpt2",
    "num_kv_heads": 4,
    "max_position_embeddings": 96,
    "rope_theta": 0.0,
    "rope_scaling": None,
    "norm_eps": 1e-5,
    "tie_embeddings": True,
    "qkv_bias": True,
}


MODELS["qwen3"] = MODELS["qwen2"] | {"architecture": "qwen3", "qkv_bias": False, "head_dim": 24}


# What native does not train: experts, latent attention and windows.
LATENT = {"kv_lora_rank": 24, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 16}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
OTHERS = {
    "mixtral": MODELS["mistral"] | EXPERTS | {"architecture": "mixtral", "ffn_hidden_size": 48},
    "qwen2_moe": MODELS["qwen2"] | EXPERTS | {"architecture": "qwen2_moe", "shared_expert_intermediate_size": 80},
    "qwen3_moe": MODELS["mistral"] | EXPERTS | {"architecture": "qwen3_moe"},
    "window": MODELS["mistral"] | {"sliding_window": 24},
}
OTHERS["deepseek_v2"] = MODELS["mistral"] | EXPERTS | LATENT | {
    "architecture": "deepseek_v2",
    "shared_expert_intermediate_size": 96,
    "first_k_dense_replace": 1,
    "num_kv_heads": 4,
    "head_dim": 20,
    "norm_eps": 1e-6,
}
OTHERS["deepseek_v3"] = OTHERS["deepseek_v2"] | {"architecture": "deepseek_v3", "q_lora_rank": 32}
OTHERS["gpt_oss"] = OTHERS["mixtral"] | {
    "architecture": "gpt_oss",
    "qkv_bias": True,
    "sliding_window": 24,
    "sliding_window_pattern": 2,
}
KINDS = {
    "llama": "Llama",
    "qwen2": "Qwen2",
    "mistral": "Mistral",
    "qwen3": "Qwen3",
    "mixtral": "Mixtral",
    "qwen2_moe": "Qwen2Moe",
    "qwen3_moe": "Qwen3Moe",
    "deepseek_v2": "DeepseekV2",
    "deepseek_v3": "DeepseekV3",
    "gpt_oss": "GptOss",
}


DEVICE = torch.device("cpu")
# Sizes that native's kernels take.
GPU_SHAPE = {"hidden_size": 256, "ffn_hidden_size": 704, "head_dim": 64, "vocab_size": 1328}


def on_gpu():
    """Everything that follows runs on a GPU."""
    global DEVICE
    DEVICE = torch.device("cuda")
    JOB["vendor"] = "nvd"
    # Where the loss falls more steeply, wider networks magnify fp32's roundings a thousandfold in 50 steps.
    JOB["optimizer"] |= {"learning_rate": 1e-3, "min_learning_rate": 1e-4}
    # What has no kernels.
    del MODELS["gpt2"]
    OTHERS["qwen3"] = MODELS.pop("qwen3")
    for name, shape in MODELS.items():
        MODELS[name] = shape | GPU_SHAPE | ({"head_dim": 96} if name == "mistral" else {})


def gpt2(shape):
    config = transformers.GPT2Config(
        n_layer=shape["num_layers"],
        n_embd=shape["hidden_size"],
        n_inner=shape["ffn_hidden_size"],
        n_head=shape["num_attention_heads"],
        n_positions=shape["max_position_embeddings"],
        vocab_size=shape["vocab_size"],
        layer_norm_epsilon=shape["norm_eps"],
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="eager",
    )
    return transformers.GPT2LMHeadModel(config)


def reference_model(shape):
    model = gpt2(shape) if shape["architecture"] == "gpt2" else rotary(shape)
    # Larger than a usual initialisation, and nothing at 0 or 1: every weight must matter to the logits.
    torch.manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            centre, spread = (0.0, 1.2 / math.sqrt(shape["hidden_size"])) if parameter.ndim > 1 else (1.0, 0.3)
            parameter.normal_(centre, spread)
    return model.to(DEVICE)


def rotary(shape):
    rope = {"rope_type": "default", "rope_theta": shape["rope_theta"]}
    if shape["rope_scaling"]:
        rope |= {"rope_type": "llama3"} | shape["rope_scaling"]
    kind = KINDS[shape["architecture"]]
    more = {name: shape[name] for name in EXPERTS} if shape["num_experts"] else {}
    if kind in ("Mixtral", "GptOss"):
        more["num_local_experts"] = more.pop("num_experts")
    if kind == "Qwen2Moe":
        more["shared_expert_intermediate_size"] = shape["shared_expert_intermediate_size"]
    if kind in ("Mistral", "Mixtral", "Qwen3", "Qwen3Moe"):
        more |= {"head_dim": shape["head_dim"], "sliding_window": shape["sliding_window"] or None}
    if kind == "GptOss":  # whose second layer is the one that attends to all tokens
        more |= {"head_dim": shape["head_dim"], "sliding_window": shape["sliding_window"]}
    if shape["kv_lora_rank"]:
        more |= {name: shape[name] for name in LATENT} | {"q_lora_rank": shape["q_lora_rank"] or None}
        more |= {"n_routed_experts": more.pop("num_experts"), "n_shared_experts": 2, "first_k_dense_replace": 1}
        more |= {"routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1, "norm_topk_prob": kind == "DeepseekV3"}
    if kind == "Qwen3Moe":
        more["norm_topk_prob"] = True
    config = getattr(transformers, f"{kind}Config")(
        num_hidden_layers=shape["num_layers"],
        hidden_size=shape["hidden_size"],
        intermediate_size=shape["ffn_hidden_size"],
        num_attention_heads=shape["num_attention_heads"],
        num_key_value_heads=shape["num_kv_heads"],
        vocab_size=shape["vocab_size"],
        max_position_embeddings=shape["max_position_embeddings"],
        rms_norm_eps=shape["norm_eps"],
        tie_word_embeddings=shape["tie_embeddings"],
        rope_parameters=rope,
        **more,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="eager",
    )
    return getattr(transformers, f"{kind}ForCausalLM")(config)


def save_weights(model, folder):
    path = folder / "weights.safetensors"
    save_file({k: v.detach().contiguous() for k, v in model.named_parameters()}, path)
    return path


def tokens(seed, sequence, length, vocab_size):
    """The synthetic tokens from their definition, in plain integers."""
    gamma, word = 0x9E3779B97F4A7C15, 2**64

    def mix(z):
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % word
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % word
        return z ^ (z >> 31)

    stream = mix((mix(seed) + gamma * (sequence + 1)) % word)
    uniform = [mix((stream + gamma * position) % word) >> 32 for position in range(1, length + 1)]
    return [(((u * u >> 32) ** 2 >> 32) * vocab_size) >> 32 for u in uniform]


@functools.cache
def tokens_of(*arguments):
    return tokens(*arguments)


def batch(job, number):
    """Micro-batch `number` of the run, from 0."""
    rows = job["data"]["micro_batch_size"]
    sequences = range(number * rows, (number + 1) * rows)
    length, vocab_size = job["data"]["seq_length"], job["model"]["vocab_size"]
    return torch.tensor([tokens_of(job["seed"], s, length, vocab_size) for s in sequences], device=DEVICE)


def learning_rate(job, step):
    o, steps = job["optimizer"], job["train_iters"]
    if step <= o["warmup_steps"]:
        return o["learning_rate"] * step / o["warmup_steps"]
    turn = math.pi * (step - o["warmup_steps"]) / (steps - o["warmup_steps"])
    return o["min_learning_rate"] + (o["learning_rate"] - o["min_learning_rate"]) * (1 + math.cos(turn)) / 2


def reference_curve(model, job, network=None):
    """A plain loop: per step (loss, gradient norm before clipping, learning rate).

    `network`: a copy of the model in bf16 that goes forward and backward, while the model keeps weights and gradients in fp32.
    """
    o, micro_steps = job["optimizer"], job["data"]["gradient_accumulation_steps"]
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": o["weight_decay"]},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(o["beta1"], o["beta2"]), eps=o["eps"], foreach=False, fused=False)
    curve = []
    for step in range(1, job["train_iters"] + 1):
        rate = learning_rate(job, step)
        for group in optimizer.param_groups:
            group["lr"] = rate
        losses = []
        for micro_step in range(micro_steps):
            inputs = batch(job, (step - 1) * micro_steps + micro_step)
            if network is not None:
                with torch.no_grad():
                    for copied, parameter in zip(network.parameters(), parameters):
                        copied.copy_(parameter)
            logits = (network or model)(input_ids=inputs).logits.float()
            loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), inputs[:, 1:].flatten())
            (loss / micro_steps).backward()
            losses.append(loss.item())
            if network is not None:
                for copied, parameter in zip(network.parameters(), parameters):
                    gradient = copied.grad.float()
                    parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
                    copied.grad = None
        limit = o["clip_grad"] or math.inf
        norm = torch.nn.utils.clip_grad_norm_(parameters, limit).item()
        optimizer.step()
        optimizer.zero_grad()
        curve.append((sum(losses) / micro_steps, norm, rate))
    return curve


def run(command, job, folder):
    """Runs a trainer on `job`; its events."""
    path = folder / "job.json"
    path.write_text(json.dumps(job))
    environment = os.environ | {"TPRIMAT_JOB": str(path), "TPRIMAT_RUN_DIR": str(folder)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        print(" ".join(map(str, command)), f"exited {done.returncode}", done.stdout[-2000:], done.stderr[-2000:], sep="\n")
        sys.exit(1)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"event"')]


def curve_of(events):
    return [(e["loss"], e["grad_norm"], e["learning_rate"]) for e in events if e["event"] == "step"]


class Report:
    def __init__(self):
        self.failed = []

    def check(self, what, figure, limit):
        self.require(f"{what:<66} {figure:.2e}  (limit {limit:.1e})", figure <= limit)  # a NaN is not good

    def require(self, what, good):
        if not good:
            self.failed.append(what)
        print(f"{'ok  ' if good else 'FAIL'} {what}", flush=True)

    def exit(self):
        """Names what failed once more: whoever reads a long log begins at its end."""
        for what in self.failed:
            print(f"FAIL {what}", flush=True)
        sys.exit(1 if self.failed else 0)

    def curves(self, what, got, want, loss_limit=CURVE, norm_limit=CURVE):
        if len(got) != len(want):
            return self.require(f"{what}: {len(got)} of {len(want)} steps", False)
        for name, column, limit in (("loss", 0, loss_limit), ("grad norm", 1, norm_limit), ("learning rate", 2, 1e-9)):
            self.check(f"{what}: {name}, {len(want)} steps", distance(got, want, column), limit)

    def within_noise(self, what, got, references):
        """Is the curve as near to one of the references as they are to each other?"""
        if len(got) != len(references[0]):
            return self.require(f"{what}: {len(got)} of {len(references[0])} steps", False)
        for name, column in (("loss", 0), ("grad norm", 1)):
            noise = max(typical_distance(*pair, column) for pair in itertools.combinations(references, 2))
            nearest = min(typical_distance(got, reference, column) for reference in references)
            self.check(f"{what}: {name}, {len(got)} steps", nearest, NOISE * noise)
        self.check(f"{what}: learning rate, {len(got)} steps", distance(got, references[0], 2), 1e-9)


def distance(got, want, column):
    """The largest relative difference of any step."""
    return max(abs(g[column] - w[column]) / abs(w[column]) for g, w in zip(got, want))


def typical_distance(got, want, column):
    """The root of the mean squared relative difference of a step; the largest one of two noisy curves is chance."""
    squares = [((g[column] - w[column]) / w[column]) ** 2 for g, w in zip(got, want)]
    return math.sqrt(sum(squares) / len(squares))


def bf16_curve(model, job, attention, nudge):
    master = copy.deepcopy(model)
    torch.manual_seed(11)
    with torch.no_grad():
        for parameter in master.parameters():
            parameter.mul_(1 + nudge * (2 * torch.rand_like(parameter) - 1))
    network = copy.deepcopy(master).bfloat16()
    network.set_attn_implementation(attention)
    return reference_curve(master, job, network)


def compare(report, name, shape, binary, folder):
    job = JOB | {"model": shape}
    model = reference_model(shape)
    weights, dump = save_weights(model, folder), folder / "logits.safetensors"
    native = [binary, "--weights", weights]

    run([*native, "--dump-logits", dump], job, folder)
    dumped = load_file(dump, device=str(DEVICE))
    report.require(f"{name}: the same tokens", torch.equal(dumped["tokens"], batch(job, 0)))
    with torch.no_grad():
        expected = model(input_ids=batch(job, 0)).logits
    report.check(f"{name}: fp32 logits", ((dumped["logits"] - expected).norm() / expected.norm()).item(), LOGITS)

    curve = reference_curve(copy.deepcopy(model), job)
    other = copy.deepcopy(model)
    other.set_attn_implementation("sdpa")
    other = reference_curve(other, job)
    print(f"     {name}: two reference loops in fp32 are {distance(other, curve, 0):.1e} apart in loss, {distance(other, curve, 1):.1e} in norm")
    clipped = sum(norm > job["optimizer"]["clip_grad"] for _, norm, _ in curve)
    print(f"     {name}: loss {curve[0][0]:.3f} to {curve[-1][0]:.3f}, norm {curve[0][1]:.3f} to {curve[-1][1]:.3f}")
    report.require(f"{name}: clipping is active in some steps ({clipped}), not in all", 0 < clipped < len(curve))
    events = run(native, job, folder)
    count = sum(p.numel() for p in model.parameters())
    report.require(f"{name}: {count} parameters", events[0]["num_parameters"] == count)
    report.curves(f"{name}: native", curve_of(events), curve)

    checkpointed = job | {"activation_checkpointing": True, "sac_frequency": 2}
    report.curves(f"{name}: native, every 2nd layer recomputed", curve_of(run(native, checkpointed, folder)), curve)
    whole = copy.deepcopy(job)
    whole["data"] |= {"micro_batch_size": 8, "gradient_accumulation_steps": 1}
    report.curves(f"{name}: native, no accumulation", curve_of(run(native, whole, folder)), curve)
    fused = {} if DEVICE.type == "cpu" else {"step": "fused"}
    bf16 = curve_of(run(native, job | {"precision": "bf16", "framework": fused}, folder))
    references = [bf16_curve(model, job, attention, nudge) for attention in ("eager", "sdpa") for nudge in (0.0, NUDGE)]
    report.within_noise(f"{name}: native, bf16 with fp32 masters", bf16, references)

    # What native has trained, as Hugging Face's library loads it, and as native itself does.
    saving = job | {"framework": {"checkpoint_every": job["train_iters"]}}
    run([*native, "--checkpoints", folder], saving, folder)
    saved = folder / f"step-{job['train_iters']}"
    run([binary, "--resume", saved, "--dump-logits", dump], job | {"train_iters": job["train_iters"] + 1}, folder)
    dumped = load_file(dump, device=str(DEVICE))
    loaded = transformers.AutoModelForCausalLM.from_pretrained(saved, attn_implementation="eager").to(DEVICE)
    with torch.no_grad():
        expected = loaded(input_ids=dumped["tokens"]).logits
    report.check(f"{name}: logits of a checkpoint", ((dumped["logits"] - expected).norm() / expected.norm()).item(), LOGITS)

    unclipped = copy.deepcopy(job)
    unclipped["optimizer"]["clip_grad"] = 0.0
    free = reference_curve(copy.deepcopy(model), unclipped)
    report.require(f"{name}: clipping changes the curve", free[-1] != curve[-1])
    report.curves(f"{name}: native, no clipping", curve_of(run(native, unclipped, folder)), free)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", required=True, type=Path, help="tprimat-native")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    arguments = parser.parse_args()
    if arguments.device == "cuda":
        on_gpu()
    report = Report()
    for name, shape in MODELS.items():
        with tempfile.TemporaryDirectory() as folder:
            compare(report, name, shape, arguments.binary.resolve(), Path(folder))
    report.exit()


if __name__ == "__main__":
    main()
