"""held.py MATRIX [PROJECT...]: was any GPU held by two runs at once, be they of one build or of several?

Reads what tprimat recorded of each run: when it began and ended, and its own samples with the names of the GPUs. Where the
first project has holders.jsonl (a watcher of its own that asks the driver), that is compared as well. Exit 1: held twice.
"""

import itertools
import json
import pathlib
import subprocess
import sys

matrix, projects = sys.argv[1], [pathlib.Path(name) for name in sys.argv[2:] or ["."]]


def tprimat(project, *arguments):
    done = subprocess.run(["tprimat", "-C", project, "--json", *arguments], capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else None


runs = []
for project, cell in [(at, cell) for at in projects for cell in tprimat(at, "list", matrix)["cells"]]:
    for repeat in range(1, cell["repeats"] + 1):
        result = tprimat(project, "show", f"{cell['cell']}#{repeat}", matrix)
        if result is None or "telemetry" not in result:
            continue  # the build left it out
        samples = result["telemetry"]
        times = ([samples["begin"]] if samples.get("begin") else []) + [point["time"] for point in samples.get("points", [])]
        runs.append(
            {
                "name": f"{project.resolve().name}: {cell['cell'].split('/', 2)[2]}#{repeat}",
                "gpus": samples.get("device_names", []),
                "run": (result["started_at"], result["ended_at"]),
                "sampled": (min(times), max(times)) if times else None,
                "suspect": result.get("suspect"),
            }
        )

runs.sort(key=lambda run: run["run"])
names = sorted({gpu for run in runs for gpu in run["gpus"]})
short = {name: f"GPU {n}" for n, name in enumerate(names)}
start = runs[0]["run"][0] if runs else 0
print(f"{len(runs)} runs on {len(names)} GPUs: " + ", ".join(f"{short[name]} = {name}" for name in names))
for run in runs:
    span = " to ".join(f"{at - start:6.2f}" for at in run["run"])
    held = ", ".join(short[gpu] for gpu in run["gpus"])
    note = f"  suspect: {run['suspect']}" if run["suspect"] else ""
    print(f"{span} s  {run['name']:<40} {held}{note}")


def overlap(a, b):
    return min(a[1], b[1]) - max(a[0], b[0])


beside, twice = 0, 0
for a, b in itertools.combinations(runs, 2):
    together = overlap(a["run"], b["run"]) > 0
    beside += together
    for gpu in set(a["gpus"]) & set(b["gpus"]):
        sampled = a["sampled"] and b["sampled"] and overlap(a["sampled"], b["sampled"]) > 0
        if together or sampled:
            twice += 1
            print(f"HELD TWICE: {gpu} by {a['name']} and {b['name']}")
print(f"{beside} pairs of runs overlap in time; {twice} of them on one GPU")

watched = projects[0] / "holders.jsonl"
if watched.exists():
    checks = busy = shared = 0
    for line in watched.read_text().splitlines():
        try:
            seen = json.loads(line)["gpus"]
        except ValueError:
            continue
        checks += 1
        for gpu, holders in seen.items():
            here = {run for _, run in holders if run not in ("ended", "another")}
            busy += bool(here)
            if len(here) > 1:
                shared += 1
                print(f"TWO RUNS SEEN on {gpu}: {sorted(here)}")
    print(f"the driver was asked {checks} times: {busy} times a GPU had a run's processes, {shared} times those of two runs")
    twice += shared
sys.exit(1 if twice or not runs else 0)
