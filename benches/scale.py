#!/usr/bin/env python3
"""What many cells cost: CPU and peak memory of `build`, `compare`, `report` and `plan`, and the bytes that are published.

    cargo build --release --bin tprimat --example fill
    python3 benches/scale.py [--cells 100,1000,10000] [--repeats 1] [--workloads] [--bin target/release/tprimat]

A cell is one value of an axis: of `seed`, so that all cells are one workload, or with `--workloads` of the global batch, so
that each cell is a workload of its own. The trainings are filled in by `fill`; `build` does all the rest. To compare two
versions give their binaries one after the other; the figures should grow with the number of cells, not with its square.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import orchestration

BATCHES = """
[matrix.axes.batch]
path   = "training.data.global_batch_size"
values = [{values}]
"""


def main():
    args = arguments()
    binary = pathlib.Path(args.bin).resolve()
    fill = pathlib.Path(args.fill).resolve() if args.fill else binary.parent / "examples" / "fill"
    print(orchestration.machine(binary) if shutil.which("ninja") else binary)
    print(f"{'cells':>7} {'command':<9} {'CPU s':>8} {'peak MiB':>9} {'published MiB':>14}")
    for cells in args.cells:
        with tempfile.TemporaryDirectory(prefix="tprimat-scale-", dir=args.dir) as folder:
            project = pathlib.Path(folder) / "project"
            prepare(project, binary, fill, cells, args)
            for command in ("build", "compare", "report", "plan"):
                seconds, peak = measured([str(binary), command], project)
                print(f"{cells:>7} {command:<9} {seconds:>8.2f} {peak:>9.0f} {published(project):>14.1f}", flush=True)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sizes = lambda text: [int(size) for size in text.split(",")]
    target = os.environ.get("CARGO_TARGET_DIR", "target")
    parser.add_argument("--cells", type=sizes, default=[100, 1_000, 10_000])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--workloads", action="store_true", help="each cell is a workload of its own")
    parser.add_argument("--bin", default=f"{target}/release/tprimat", help="the tprimat to measure")
    parser.add_argument("--fill", help="the `fill` of the same version, where it is not beside it")
    parser.add_argument("--dir", help="where the temporary folder goes")
    return parser.parse_args()


def prepare(project, binary, fill, cells, args):
    subprocess.run([str(binary), "init", "--example", "amd-vs-nvidia", str(project)], check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(project / "pipelines")
    seeds = "0" if args.workloads else ", ".join(map(str, range(cells)))
    text = orchestration.MATRIX.format(repeats=args.repeats, seeds=seeds)
    if args.workloads:
        batches = ", ".join(str(4 * (cell + 1)) for cell in range(cells))
        at = text.index("[[override]]")
        text = text[:at] + BATCHES.format(values=batches) + "\n" + text[at:].replace(" global_batch_size = 8,", "")
    (project / "matrix.toml").write_text(text)
    subprocess.run([str(fill), str(project)], check=True, stdout=subprocess.DEVNULL)


def measured(command, project):
    """CPU seconds and peak resident MiB of a command, its output thrown away."""
    with open(os.devnull, "wb") as nothing:
        child = subprocess.Popen(command, cwd=project, stdout=nothing, stderr=subprocess.PIPE)
        said = child.stderr.read()
        _, status, usage = os.wait4(child.pid, 0)
    if os.waitstatus_to_exitcode(status) not in (0, 1):
        sys.exit(f"{' '.join(command)} failed:\n{said.decode(errors='replace')[-2000:]}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def published(project):
    return sum(file.stat().st_size for file in (project / "output").rglob("*") if file.is_file()) / 2**20


if __name__ == "__main__":
    main()
