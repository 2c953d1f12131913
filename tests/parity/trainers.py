"""Do the Python trainers compute what a plain loop computes, however many processes share the work? Exits 1 if not.

    python trainers.py tran fsdp deep

Each recipe is laid out as a run lays it out (its own files, and those of recipes/lib that recipe.toml names) and
started as its template starts it, on the CPU: from the same weights, 20 steps of loss, gradient norm and learning rate.
`deep` needs DeepSpeed.
"""

import copy
import json
import shutil
import socket
import sys
import tempfile
import tomllib
from pathlib import Path

import jinja2

import parity

ROOT = Path(__file__).resolve().parents[2]
# A missing weight decay shows at 2e-5.
FP32 = (1e-5, 1e-4)
# Where two experts are as good as equal for a token, the CPU's own roundings choose one. One such choice moved the loss of a step
# by 3e-5 and its norm by 3e-4; a gate that is not normalized moves them by a hundred times that.
ROUTED = (3e-4, 3e-3)
# Loss and gradient norm: what two runs in bf16 with other kernels differ by, and no more.
BF16 = (5e-3, 5e-2)
RECOMPUTED = {"activation_checkpointing": True, "sac_frequency": 2}
# recipe → (model, processes, changes of the job, limits)
CASES = {
    "tran": [
        ("llama", 1, {}, FP32),
        ("qwen2", 2, {}, FP32),
        ("mixtral", 1, {}, ROUTED),
        ("qwen3_moe", 2, {}, ROUTED),
        ("window", 1, {}, FP32),
        ("deepseek_v2", 1, {}, ROUTED),
        ("gpt_oss", 1, {}, ROUTED),
    ],
    "fsdp": [
        ("qwen3", 2, {}, FP32),
        ("mixtral", 2, RECOMPUTED, ROUTED),
        ("qwen2_moe", 1, {}, ROUTED),
        ("qwen3_moe", 2, {}, ROUTED),
        ("deepseek_v3", 2, {}, ROUTED),
        ("gpt_oss", 2, RECOMPUTED, ROUTED),
        ("llama", 1, {}, FP32),
        ("llama", 2, RECOMPUTED, FP32),
        ("qwen2", 2, {"framework": {"gradient_sync": "every"}}, FP32),
        ("llama", 2, {"precision": "bf16"}, BF16),
    ],
    "deep": [
        ("llama", 1, {}, FP32),
        ("llama", 2, RECOMPUTED, FP32),
        ("qwen2", 2, {"sharding": "zero2"}, FP32),
        ("llama", 2, {"precision": "bf16"}, BF16),
    ],
}


def lay_out(recipe, job, folder):
    """The recipe's folder as a run sees it, and the rendered files that are no launch scripts."""
    description = tomllib.loads((ROOT / "recipes" / recipe / "recipe.toml").read_text())
    program = folder / "recipe"
    shutil.copytree(ROOT / "recipes" / recipe, program)
    for name in description["launch"]["library"]:
        shutil.copy(ROOT / "recipes" / "lib" / name, program)
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, finalize=json.dumps)
    for name in description["launch"]["templates"]:
        if not name.endswith(".sh.j2"):
            text = environment.from_string((ROOT / "templates" / name).read_text()).render(job=job)
            (folder / name.removesuffix(".j2")).write_text(text)
    return program / "train.py"


def job_of(model, processes, changes):
    job = copy.deepcopy(parity.JOB) | {"model": (parity.MODELS | parity.OTHERS)[model]}
    changes = dict(changes)
    job["parallelism"] |= {"data_parallel_size": processes, "num_gpus": processes}
    job["parallelism"]["sharding"] = changes.pop("sharding", "")
    # The same sequences in each step, two micro-steps of them on every rank.
    job["data"] |= {"micro_batch_size": 4 // processes, "gradient_accumulation_steps": 2}
    return job | changes


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def train(recipe, processes, job, weights, folder):
    program = lay_out(recipe, job, folder)
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", processes, "--master-port", free_port()]
    command = [sys.executable, *(launcher if processes > 1 else []), program, "--weights", weights]
    return parity.run([str(word) for word in command], job, folder)


def compare(report, recipe, case, curves, weights):
    model, processes, changes, limits = case
    what = f"{model}: {recipe} x {processes} {json.dumps(changes) if changes else ''}"
    job = job_of(model, processes, changes)
    with tempfile.TemporaryDirectory() as folder:
        start, *rest = train(recipe, processes, job, weights[model], Path(folder))
    report.curves(what, parity.curve_of(rest), curves[model], *limits)
    data = job["data"]
    tokens = {e["tokens"] for e in rest if e["event"] == "step"}
    report.require(f"{what}: tokens of a step", tokens == {data["global_batch_size"] * data["seq_length"]})
    stated = start["effective"]
    asked = data | job["optimizer"] | {k: v for k, v in job["parallelism"].items() if v}
    asked |= {name: job[name] for name in ("precision", "compile", "activation_checkpointing", "offload", "train_iters", "seed")}
    asked |= {"optimizer": asked.pop("type"), "optimizer_state_precision": asked.pop("state_precision")}
    # Whoever does not share experts out says nothing of it, nor whoever's rate falls by a cosine of its shape.
    for name in ("expert_model_parallel_size", "lr_decay_style", "wsd_decay_steps"):
        del asked[name]
    asked |= {"sac_frequency": 2} if job["activation_checkpointing"] else {}
    wrong = {name: (value, stated.get(name)) for name, value in asked.items() if stated.get(name) != value}
    report.require(f"{what}: states what the job asks for {wrong or ''}", not wrong)


def main():
    recipes = sys.argv[1:]
    if not recipes or set(recipes) - set(CASES):
        sys.exit(f"usage: trainers.py {' '.join(CASES)}")
    report, weights, curves = parity.Report(), {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for name, shape in (parity.MODELS | parity.OTHERS).items():
            model = parity.reference_model(shape)
            (Path(folder) / name).mkdir()
            weights[name] = parity.save_weights(model, Path(folder) / name)
            curves[name] = parity.reference_curve(model, parity.JOB | {"model": shape})
        for recipe in recipes:
            for case in CASES[recipe]:
                compare(report, recipe, case, curves, weights)
    report.exit()


if __name__ == "__main__":
    main()
