#!/usr/bin/env python3
"""`tprimat build` of everything after the trainings, `compare` and `report`, on a cache of 200 cells × 5 repeats × 500 steps.

    cargo build --release --bin tprimat --example fill
    python3 benches/compare.py [--cells 200] [--repeats 5] [--steps 500] [--rounds 5] [--bin target/release/tprimat]

`fill` records one attempt for each training, as if its trainer had run. The build parses, aggregates, compares and
draws; `compare` then reads the summaries of the cache. Its best round counts; beside it `json.load` of the comparison
that it prints with `--json`, in Python and in the same run. `report` is asked for another baseline in every round, so
that all pictures, tables and the page are made anew: the product shows 60 cells in a picture, so measure with
`--cells 60`.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from orchestration import MATRIX


def main():
    target = os.environ.get("CARGO_TARGET_DIR", "target")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in [("cells", 200), ("repeats", 5), ("steps", 500), ("rounds", 5)]:
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--bin", default=f"{target}/release/tprimat", help="the tprimat to measure")
    args = parser.parse_args()
    binary = pathlib.Path(args.bin).resolve()
    with tempfile.TemporaryDirectory(prefix="tprimat-bench-") as folder:
        project = pathlib.Path(folder) / "project"
        run([binary, "init", "--example", "amd-vs-nvidia", project], folder)
        shutil.rmtree(project / "pipelines")
        matrix = MATRIX.format(repeats=args.repeats, seeds=", ".join(map(str, range(args.cells))))
        matrix = matrix.replace("train_iters = 12", f"train_iters = {args.steps}")
        (project / "matrix.toml").write_text(matrix)
        # What the command names, which no run of this bench starts.
        (project / "train").write_text("#!/bin/sh\n")
        (project / "train").chmod(0o755)
        count = run([binary.parent / "examples" / "fill", project], project)[1].strip()
        print(f"{count} trainings of {args.steps} steps filled in, {args.cells} cells")
        print(f"build, without trainings   {run([binary, 'build'], project)[0]:8.2f} s")
        best, text = min(run([binary, "compare", "--json"], project) for _ in range(args.rounds))
        started = time.perf_counter()
        rows = json.loads(text)["rows"]
        seconds = time.perf_counter() - started
        if len(rows) != args.cells:
            sys.exit(f"{len(rows)} rows")
        print(f"compare --json             {best:8.2f} s, {len(text) / 1e6:.1f} MB")
        print(f"Python reading that JSON   {seconds:8.2f} s")
        print(f"compare                    {min(run([binary, 'compare'], project) for _ in range(args.rounds))[0]:8.2f} s")
        baselines = [row["cell"] for row in rows[1 : args.rounds + 1]]
        seconds, _ = min(run([binary, "report", "--baseline", cell], project) for cell in baselines)
        page = (project / "output" / "report.html").stat().st_size
        print(f"report                     {seconds:8.2f} s, page of {page / 2**20:.2f} MiB")


def run(command, folder):
    """Seconds of one run, and what it prints."""
    started = time.perf_counter()
    done = subprocess.run([str(word) for word in command], cwd=folder, capture_output=True, text=True)
    seconds = time.perf_counter() - started
    if done.returncode != 0:
        sys.exit(f"{command} failed with {done.returncode}:\n{done.stderr[-2000:]}")
    return seconds, done.stdout


if __name__ == "__main__":
    main()
