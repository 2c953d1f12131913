#!/usr/bin/env python3
"""Whether `tprimat watch` slows what it shows: the same CPU training with and without it, in turns.

    cargo build --release --workspace
    python3 benches/watch.py [--rounds 8] [--viewers 2] [--bin target/release/tprimat]

Each round trains the quickstart's `cpu/native/llama-tiny/single` twice, as detached builds: alone, and while `watch` serves
its page to viewers who ask for what the page asks for (the board once a second, and the open log). Which of the two comes
first changes from round to round. The ratio is that of the geometric means, its interval Student's t over the rounds. On a
host that does other things as well that interval is wide; the CPU time of `watch` itself, beside the time it was open,
bounds what it can take from a run.
"""

import argparse
import json
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request

CELL = "cpu/native/llama-tiny/single"
# Student's t for 95 %, by degrees of freedom.
T = {2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 11: 2.201, 15: 2.131, 19: 2.093}


def main():
    target = os.environ.get("CARGO_TARGET_DIR", "target")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8, choices=[n + 1 for n in T])
    parser.add_argument("--viewers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200, help="steps of a run")
    parser.add_argument("--bin", default=f"{target}/release/tprimat", help="the tprimat to measure")
    args = parser.parse_args()
    binary = pathlib.Path(args.bin).resolve()
    rates, cost = {"alone": [], "watched": []}, []
    with tempfile.TemporaryDirectory(prefix="tprimat-bench-") as folder:
        project = pathlib.Path(folder) / "project"
        run([binary, "init", project], folder)
        for number in range(args.rounds):
            order = list(rates) if number % 2 == 0 else list(rates)[::-1]
            for how in order:
                answers = build(binary, project, args, args.viewers if how == "watched" else 0, cost)
                rates[how].append(rate(binary, project))
                print(f"round {number + 1}: {how:8} {rates[how][-1]:9.0f} tokens/s, {answers} answers", flush=True)
    report(rates, cost, args)


def build(binary, project, args, viewers, cost):
    """Trains once; returns how often the viewers were answered."""
    settings = ["--set", f"training.duration.train_iters={args.steps}", "--set", "benchmarking.runs.cooldown_seconds=0"]
    command = [binary, "build", "quickstart.toml", "--only", CELL, "--repeats", "1", "--remeasure", "--detach", *settings]
    run(command, project)
    if not viewers:
        run([binary, "attach"], project)
        return 0
    begun = time.monotonic()
    watch = subprocess.Popen([binary, "watch"], cwd=project, stderr=subprocess.PIPE, text=True)
    try:
        address = re.search(r"http://\S+", watch.stderr.readline()).group()
        over, answers = threading.Event(), []
        threads = [threading.Thread(target=view, args=(address, over, answers)) for _ in range(viewers)]
        for thread in threads:
            thread.start()
        run([binary, "attach"], project)
        over.set()
        for thread in threads:
            thread.join()
        # User and system time, the 14th and 15th fields of its stat.
        fields = pathlib.Path(f"/proc/{watch.pid}/stat").read_text().rpartition(")")[2].split()
        used = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        cost.append((used, time.monotonic() - begun))
        return len(answers)
    finally:
        watch.terminate()
        watch.wait()


def view(address, over, answers):
    """Asks as the page does: for the board once a second, and for what is new in the logs that are open."""
    place = {}
    while not over.wait(1):
        board = fetched(urllib.parse.urljoin(address, "board"))
        if board is None:
            continue
        answers.append(1)
        for task in [one["task"] for one in board["running"]]:
            query = urllib.parse.urlencode({"task": task, "from": place.get(task, 0)})
            log = fetched(urllib.parse.urljoin(address, f"log?{query}"))
            if log is not None:
                answers.append(1)
                place[task] = log["next"]


def fetched(address):
    try:
        with urllib.request.urlopen(address, timeout=10) as answer:
            return json.load(answer)
    except OSError:
        return None


def rate(binary, project):
    """Tokens per second of the last run."""
    history = json.loads(run([binary, "history", CELL, "--json"], project))
    runs = [one for cell in history["cells"] for m in cell["measurements"] for one in m["runs"]]
    return max(runs, key=lambda one: one["started_at"])["tokens_per_second_per_gpu"]


def run(command, folder):
    done = subprocess.run([str(part) for part in command], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def report(rates, cost, args):
    pairs = [math.log(w / a) for w, a in zip(rates["watched"], rates["alone"])]
    mean, spread = statistics.mean(pairs), statistics.stdev(pairs)
    half = T[len(pairs) - 1] * spread / math.sqrt(len(pairs))
    for how, values in rates.items():
        print(f"{how:8} median {statistics.median(values):9.0f} tokens/s, {min(values):.0f} to {max(values):.0f}")
    low, mid, high = (math.exp(mean + end) for end in (-half, 0, half))
    print(f"watched by {args.viewers} ÷ alone: {mid:.3f} (95 % CI {low:.3f}–{high:.3f}), {len(pairs)} rounds in turns")
    used, open_for = (sum(values) for values in zip(*cost))
    print(f"CPU time of watch: {used:.2f} s in {open_for:.0f} s, {used / open_for / os.cpu_count():.2%} of {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
