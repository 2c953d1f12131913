#!/usr/bin/env python3
"""CPU time of a training step of the quickstart's jobs: native and Transformers.

    cargo build --release --workspace
    python3 benches/native.py --python .venv/bin/python [--bin target/release] [--threads 1,2] [--rounds 3]

The trainers run in turns. CPU time of all threads is read when a trainer prints step 10 and step 60, so its start does not
count, and neither does the time in which other programs had the core. Ratios are Transformers' time over native's, of the
medians.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TICKS = os.sysconf("SC_CLK_TCK")
FIRST, LAST = 10, 60


def main():
    args = arguments()
    torch = subprocess.run(
        [args.python, "-c", "import os, torch; print(os.path.join(os.path.dirname(torch.__file__), 'lib'))"],
        check=True, capture_output=True, text=True,
    ).stdout.strip()
    with tempfile.TemporaryDirectory() as folder:
        for model in ["llama-tiny", "qwen-tiny"]:
            job = rendered(args.bin, model, pathlib.Path(folder))
            trainers = {
                "native": [args.bin / "tprimat-native", "--job", job],
                "Transformers": [args.python, ROOT / "recipes/tran/train.py"],
            }
            for threads in args.threads.split(","):
                environment = os.environ | {
                    "OMP_NUM_THREADS": threads,
                    "OMP_WAIT_POLICY": "passive",
                    "LD_LIBRARY_PATH": torch,
                    "PYTHONPATH": str(ROOT / "recipes/lib"),
                    "TPRIMAT_JOB": str(job),
                    "TPRIMAT_RUN_DIR": folder,
                }
                times = {name: [] for name in trainers}
                for _ in range(args.rounds):
                    for name, command in trainers.items():
                        times[name].append(step_ms(command, environment, folder))
                report(f"{model}, {threads} thread(s)", times)


def rendered(binaries, model, folder):
    """The job of the quickstart's cell of that model."""
    out = folder / model
    command = [binaries / "tprimat", "show", f"cpu/native/{model}", "pipelines/quickstart.toml", "--launch", "-o", out]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return out / "job.json"


def step_ms(command, environment, folder):
    process = subprocess.Popen(
        command, env=environment, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    at = {}
    for line in process.stdout:
        event = json.loads(line) if line.startswith("{") else {}
        if event.get("event") == "step":
            at[event["step"]] = cpu_seconds(process.pid)
    if process.wait() != 0 or LAST not in at:
        raise SystemExit(f"{command[0]} failed")
    return (at[LAST] - at[FIRST]) / (LAST - FIRST) * 1000


def cpu_seconds(pid):
    """User and system time of the process; the name before them may have spaces."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def report(title, times):
    middle = {name: statistics.median(values) for name, values in times.items()}
    print(title)
    for name, values in times.items():
        each = ", ".join(f"{value:.1f}" for value in values)
        ratio = middle["Transformers"] / middle[name]
        print(f"  {name:17} {middle[name]:6.1f} ms a step ({each}); {ratio:.2f}x Transformers", flush=True)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="python3", help="a Python with recipes/tran/requirements.cpu.txt")
    parser.add_argument("--bin", type=lambda path: pathlib.Path(path).resolve(), default=ROOT / "target/release")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
