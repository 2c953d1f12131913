#!/usr/bin/env python3
"""Reading speed and memory of `tprimat parse`, beside a Python loop over lines with `re` that takes the same fields.

    cargo build --release --bin tprimat
    python3 benches/parse.py [--size 1000] [--garbage 4000] [--bin target/release/tprimat] [--rounds 3] [--keep]

Writes a Megatron log of SIZE MB into $TMPDIR (iteration lines of the last rank, memory lines of others, timers, warnings),
which is in the page cache when it is read. Both programs run in turn, on one core each (`taskset` where there is one); the
best of the rounds counts. Where others use the machine, go by CPU time. Further logs come through a pipe: a line of 10 MB, GARBAGE MB without line ends and as
many of random bytes; what counts there is that memory stays flat and the message is clear.
"""

import argparse
import os
import pathlib
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time

NOISE = [
    "WARNING:some_library.module:the fused kernel is not there, using the slow path for this shape\n",
    "(min, max) time across ranks (ms):\n",
    "    forward-backward ...............................: (811.52, 812.96)\n",
    "    optimizer ......................................: (21.11, 23.48)\n",
    "/usr/lib/python3/site-packages/torch/utils/checkpoint.py:91: UserWarning: None of the inputs have requires_grad=True\n",
    "node17: NCCL INFO Channel 03/0 : 5[5] -> 6[6] via P2P/IPC\n",
]


def write_log(path, megabytes):
    """A log as a long run leaves it: a line in two is an iteration."""
    rng = random.Random(1)
    size, step, wanted = 0, 0, megabytes * 1_000_000
    with open(path, "w", buffering=1 << 20) as out:
        while size < wanted:
            step += 1
            text = (
                f"31: [2026-01-{step % 28 + 1:02d} {step % 24:02d}:{step % 60:02d}:07] iteration {step:8d}/ 9000000 | "
                f"consumed samples: {step * 512:12d} | elapsed time per iteration (ms): {rng.gauss(812, 9):.1f} | "
                f"throughput per GPU (TFLOP/s/GPU): {rng.gauss(402, 4):.1f} | learning rate: {3e-4 * rng.random():.6E} | "
                f"global batch size: {512:5d} | lm loss: {2 + rng.random():.6E} | loss scale: 1.0 | "
                f"grad norm: {rng.random():.3f} | number of skipped iterations: {0:3d} | number of nan iterations: {0:3d} |\n"
            )
            text += NOISE[step % len(NOISE)]
            if step % 50 == 0:
                rank = rng.randrange(32)
                text += (
                    f"[Rank {rank}] (after {step} iterations) memory (MB) | allocated: 9100.25 | "
                    f"max allocated: {50000 + rank}.5 | reserved: 53386.0 | max reserved: 53386.0\n"
                )
            out.write(text)
            size += len(text)
    return step


def python_loop(path):
    """The baseline: what one writes in ten minutes."""
    line = re.compile(
        r"iteration\s+(\d+)/\s*(\d+) \| consumed samples:\s+(\d+) \| elapsed time per iteration \(ms\): ([\d.]+) \| "
        r"throughput per GPU \(TFLOP/s/GPU\): ([\d.]+) \| learning rate: ([\dE.+-]+) \| global batch size:\s+(\d+) \| "
        r"lm loss: ([\dE.+-]+) \| loss scale: ([\d.]+) \| grad norm: ([\d.]+) \| number of skipped iterations:\s+(\d+) \| "
        r"number of nan iterations:\s+(\d+)"
    )
    memory = re.compile(r"\[Rank (\d+)\] \(after (\d+) iterations\) memory \(MB\) \| allocated: ([\d.]+) \| max allocated: ([\d.]+)")
    failed = re.compile(r"Error|Exception|out of memory|Watchdog|Traceback")
    steps = []
    with open(path, errors="replace") as log:
        for text in log:
            if found := line.search(text):
                steps.append([float(v) for v in found.groups()])
            elif found := memory.search(text):
                [float(v) for v in found.groups()]
            elif failed.search(text):
                pass
    return len(steps)


def measured(command, stdin=None):
    """Seconds, seconds of CPU, peak resident MB of `command`, its exit code and what it says on stderr."""
    start = time.perf_counter()
    child = subprocess.Popen(command, stdin=stdin, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    said = child.stderr.read().decode(errors="replace")
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    cpu = used.ru_utime + used.ru_stime
    return time.perf_counter() - start, cpu, used.ru_maxrss / 1024, child.returncode, said


def one_core(command):
    return ["taskset", "-c", "0", *command] if shutil.which("taskset") else command


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=1000, help="MB of the Megatron log")
    parser.add_argument("--garbage", type=int, default=4000, help="MB of garbage")
    parser.add_argument("--bin", default="target/release/tprimat")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", action="store_true", help="leave the log in its place")
    parser.add_argument("--python-loop", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.python_loop:
        print(python_loop(options.python_loop), file=sys.stderr)
        return
    path = pathlib.Path(tempfile.gettempdir()) / f"megatron-{options.size}.log"
    steps = write_log(path, options.size)
    size = path.stat().st_size / 1e6
    print(f"{path}: {size:.0f} MB, {steps} iterations")
    programs = {
        "tprimat parse --json": one_core([options.bin, "parse", "--json", str(path)]),
        "python re": one_core([sys.executable, __file__, "--python-loop", str(path)]),
    }
    best = dict.fromkeys(programs, (float("inf"), float("inf"), 0.0))
    for _ in range(options.rounds):
        for name, command in programs.items():
            *used, code, said = measured(command)
            if code != 0:
                sys.exit(f"{name} ended with {code}: {said}")
            best[name] = min(best[name], tuple(used))
    for name, (seconds, cpu, peak) in best.items():
        rate = f"{size / seconds:6.0f} MB/s  {size / cpu:6.0f} MB per second of CPU"
        print(f"{name:22} {seconds:7.2f} s  {rate}  peak {peak:5.0f} MB")
    ours, theirs = (best[name][1] for name in programs)
    print(f"{'':22} {theirs / ours:.1f} times as fast, by CPU time")
    if not options.keep:
        path.unlink()
    parse = [options.bin, "parse", "-"]
    for name, make in {
        "a line of 10 MB": "head -c 10000000 /dev/zero | tr '\\0' x; echo",
        f"{options.garbage} MB of zeros": f"head -c {options.garbage}000000 /dev/zero",
        f"{options.garbage} MB of random bytes": f"head -c {options.garbage}000000 /dev/urandom",
    }.items():
        source = subprocess.Popen(["sh", "-c", make], stdout=subprocess.PIPE)
        seconds, cpu, peak, code, said = measured(parse, source.stdout)
        source.stdout.close()
        source.wait()
        words = " ".join(said.split())[:90]
        print(f"{name:28} {seconds:6.2f} s, CPU {cpu:.2f} s  peak {peak:4.0f} MB  exit {code}  {words}")


if __name__ == "__main__":
    # The children's peak is what is asked for, not this program's.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
