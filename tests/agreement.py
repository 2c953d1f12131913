#!/usr/bin/env python3
"""Does `tprimat parse` read a folder of logs as its expected.json says?

    python3 tests/agreement.py FOLDER [--tprimat target/release/tprimat] [--quiet]

FOLDER/expected.json maps a file's name to what its lines say, as strings copied from the log:

    first, last, distinct, lines   the first and last step, how many there are, and on how many lines
    memory_lines                   lines of memory reports apart from steps
    steps                          by step number; in one of three forms:
      Megatron     {"ms": "812.4", "ms_avg": "815.0", "loss": …, "tflops": "X/Y", "tok": …, "gn": …, "lr": …, "gbs": …,
                    "total": train_iters, "hip": "used/free/total/…", "rocm": …}; of X/Y, Y is a running average
      NeMo         "(epoch, iteration)": [last iteration, "key: value | key: value"]; first and last are [epoch, iteration]
      torchtitan   [loss, "grad_norm: 1.1  memory: 4.00GiB(5%)  tps: 1,234 …"]

A value agrees if it is the same up to the digits that are printed; `nan` agrees with a value that is absent.
Prints each value, and totals; exits with 1 if one disagrees.
"""

import argparse
import json
import math
import pathlib
import re
import subprocess
import sys

GIB = 1 << 30


class Count:
    def __init__(self, quiet):
        self.quiet, self.agree, self.disagree = quiet, 0, 0

    def check(self, where, what, expected, got, same):
        self.agree += same
        self.disagree += not same
        if not same or not self.quiet:
            print(f"{'agree' if same else 'DISAGREE':8}  {where}  {what}: expected {expected}, got {got}")


def precision(text):
    """Half of the last digit that `text` prints."""
    digits = re.match(r"[-+]?\d*\.?(\d*)(?:[eE]([-+]?\d+))?", text)
    return 0.5 * 10.0 ** (int(digits[2] or 0) - len(digits[1]))


def same(text, got, scale=1.0):
    """Is `got` what `text` says, in units of 1/`scale`? Up to a hundredth of the last digit printed."""
    text = text.strip().replace(",", "").rstrip("%")
    expected = float(text)
    if not math.isfinite(expected):
        return got is None
    if got is None:
        return False
    return abs(got * scale - expected) <= 0.02 * precision(text) + 1e-12 * abs(expected)


def figure(step, source, kind):
    for f in step.get("memory_figures", []):
        if f["source"] == source and f["kind"] == kind:
            return f["bytes"]
    return None


def memory(step, kind):
    """The amount of memory of that kind that a step states, in bytes."""
    if step.get("memory_kind") == kind:
        return step["memory_bytes"]
    return next((f["bytes"] for f in step.get("memory_figures", []) if f["kind"] == kind), None)


# What NeMo's callbacks call torch's counters; `peak_memory_usage` is max_memory_reserved().
NEMO_MEMORY = {
    "max_memory_allocated": "peak_allocated",
    "max_memory_reserved": "peak_reserved",
    "peak_memory_usage": "peak_reserved",
    "memory_allocated": "allocated",
    "memory_reserved": "reserved",
}


def among(text, values):
    return any(same(text, value) for value in values)


def megatron(count, where, trace, step, expected):
    average = step.get("running_average", {})
    fields = {
        "ms": ("step_time_seconds", 1000.0),
        "loss": ("loss", 1.0),
        "tflops": ("tflops_per_gpu", 1.0),
        "tok": ("tokens_per_second_per_gpu", 1.0),
        "gn": ("grad_norm", 1.0),
        "lr": ("learning_rate", 1.0),
        "gbs": ("global_batch_size", 1.0),
    }
    for name, value in expected.items():
        if name == "total":
            got = trace["effective"].get("train_iters")
            count.check(where, "train_iters", value, got, got == value)
        elif name == "ms_avg":
            got = average.get("step_time_seconds")
            count.check(where, "mean step time", value, got, same(value, got, 1000.0))
        elif name in ("hip", "rocm"):
            source = {"hip": "hip", "rocm": "rocm-smi"}[name]
            for kind, text in zip(("device_used", "device_free", "device_total"), value.split("/")):
                got, number = figure(step, source, kind), re.match(r"[\d.]+", text)[0]
                count.check(where, f"{name} {kind}", text, got, same(number, got, 1 / GIB))
        elif name in fields:
            field, scale = fields[name]
            this, _, mean = value.partition("/")
            got = step.get(field)
            count.check(where, field, this, got, same(this, got, scale))
            if mean:
                got = average.get(field)
                count.check(where, f"mean {field}", mean, got, same(mean, got, scale))
        else:
            count.check(where, name, value, "a field that this script does not know", False)
    if "loss" not in expected:
        count.check(where, "loss", "absent", step.get("loss"), step.get("loss") is None)


def nemo(count, where, trace, step, text):
    fields = {
        "lr": ("learning_rate", 1.0),
        "global_batch_size": ("global_batch_size", 1.0),
        "global_step": ("step", 1.0),
        "reduced_train_loss": ("loss", 1.0),
        "train_step_timing in s": ("step_time_seconds", 1.0),
        "TFLOPS_per_GPU": ("tflops_per_gpu", 1.0),
        "consumed_samples": ("consumed_samples", 1.0),
    }
    for part in text.split(" | "):
        key, _, value = part.rpartition(":")
        key = key.strip()
        if key in fields:
            field, scale = fields[key]
            count.check(where, field, value.strip(), step.get(field), same(value, step.get(field), scale))
        elif key in NEMO_MEMORY:
            got = memory(step, NEMO_MEMORY[key])
            count.check(where, f"{key} ({NEMO_MEMORY[key]})", value.strip(), got, same(value, got))
        elif key == "val_loss":
            values = [e["value"] for e in trace.get("evaluations", []) if "loss" in e["name"]]
            values += [v for k, v in step.get("other", {}).items() if "val_loss" in k]
            count.check(where, "validation loss", value.strip(), values[-3:], among(value, values))
        else:
            count.check(where, key, value, "a field that this script does not know", False)


def torchtitan(count, where, step, loss, text):
    fields = {
        "loss": "loss",
        "grad_norm": "grad_norm",
        "grad": "grad_norm",
        "tps": "tokens_per_second_per_gpu",
        "wps": "tokens_per_second_per_gpu",
        "tflops": "tflops_per_gpu",
        "lr": "learning_rate",
        "iter": "step_time_seconds",
    }
    others = list(step.get("other", {}).values())
    for key, value in [("loss", loss), *re.findall(r"(\w+): *([^\s]+)", text)]:
        if key in fields:
            got = step.get(fields[key])
            count.check(where, fields[key], value, got, same(value, got))
        elif key == "flops":
            got = step.get("tflops_per_gpu")
            count.check(where, key, value, got, same(value, got, 1e12))
        elif key == "memory":
            # It prints max_memory_reserved().
            got, number = memory(step, "peak_reserved"), re.match(r"[\d.]+", value)[0]
            count.check(where, "memory (peak_reserved)", value, got, same(number, got, 1 / GIB))
        elif value != "N/A":
            count.check(where, key, value, others, among(value, others))


def check_file(count, name, path, expected, tprimat):
    ran = subprocess.run([tprimat, "parse", "--json", str(path)], capture_output=True, text=True)
    if ran.returncode != 0:
        count.check(name, "parse", "a trace", ran.stderr.strip().splitlines()[:1], False)
        return
    trace = json.loads(ran.stdout)
    steps = {s["step"]: s for s in trace["steps"]}
    numbers = sorted(steps)
    is_nemo = isinstance(expected["first"], list)
    if not is_nemo:
        for what, got in (("first", numbers[:1]), ("last", numbers[-1:])):
            count.check(name, what, expected[what], got, got == [expected[what]])
    count.check(name, "distinct steps", expected["distinct"], len(steps), len(steps) == expected["distinct"])
    got = trace.get("step_lines", 0)
    count.check(name, "step lines", expected["lines"], got, got == expected["lines"])
    if "memory_lines" in expected:
        got = trace.get("memory_lines", 0)
        count.check(name, "memory lines", expected["memory_lines"], got, got == expected["memory_lines"])
    for at, said in expected["steps"].items():
        if is_nemo:
            # A trace counts the steps of all epochs.
            number = int(re.search(r"global_step: (\d+)", said[1])[1])
        else:
            number = int(at)
        step, where = steps.get(number), f"{name} step {number}"
        if step is None:
            count.check(where, "step", "there", "absent", False)
        elif is_nemo:
            nemo(count, where, trace, step, said[1])
        elif isinstance(said, list):
            torchtitan(count, where, step, *said)
        else:
            megatron(count, where, trace, step, said)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--tprimat", default="target/release/tprimat")
    parser.add_argument("--quiet", action="store_true", help="print only what disagrees, and totals")
    options = parser.parse_args()
    expected = json.loads((options.folder / "expected.json").read_text())
    total = Count(options.quiet)
    for name, said in expected.items():
        before = (total.agree, total.disagree)
        check_file(total, name, options.folder / name, said, options.tprimat)
        agree, disagree = total.agree - before[0], total.disagree - before[1]
        print(f"{name}: {agree} agree, {disagree} disagree")
    print(f"\n{len(expected)} files: {total.agree} values agree, {total.disagree} disagree")
    return 1 if total.disagree else 0


if __name__ == "__main__":
    sys.exit(main())
