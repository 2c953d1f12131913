#!/usr/bin/env python3
"""Planning, no-op and running times of tprimat beside ninja's, on graphs with the same tasks and edges.

    cargo build --release --bin tprimat --example fill
    python3 benches/orchestration.py [--sizes 1000,10000,100000] [--rounds 7] [--runs 10000] [--bin target/release/tprimat]

A cell is one value of the axis `seed`: render, four repeats of train → parse, aggregate; compare, plot and
report close the graph. So N tasks are N / 10 cells. Runs of tprimat and ninja alternate, files are in the
page cache, and times are medians.

The trainings themselves are not run: `fill` records one attempt for each, with a log of its own. Everything
else is really built by `tprimat build`, and ninja really runs every command of its graph.

The last table is of runs that are really started (`share = true`): one `tprimat build` of that many trivial trainings, which
print the same few lines, beside ninja with the same commands at the same -j, and beside two floors: starting the
script from as many threads of Python, and writing and syncing two files. Each is done once, since it takes minutes. How long the
build took until all runs were summed up is told as well: the tables, pictures and pages come after that.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

REPEATS = 4
TASKS_PER_CELL = 2 + 2 * REPEATS

MATRIX = """\
[matrix]
name        = "bench"
platform    = "cpu"
framework   = "cmd"
model       = "llama-tiny"
parallelism = "single"
repeats     = {repeats}

[matrix.axes.seed]
path   = "training.seed"
values = [{seeds}]

[[override]]
where = {{ platform = "cpu" }}

[override.set]
training.data = {{ micro_batch_size = 4, global_batch_size = 8, seq_length = 128 }}
training.duration.train_iters = 12
training.optimizer.warmup_steps = 2
training.precision.default = "fp32"
benchmarking.runs.cooldown_seconds = 0
frameworks.cmd.command = ["./train", "--quiet"]
frameworks.cmd.share = true
"""

CHANGE = """
[[override]]
where = {{ seed = {seed} }}
set   = {{ "training.optimizer.learning_rate" = 0.0017 }}
"""

# The shell's own redirection: the cheapest command that makes a file.
RULES = """\
rule make
  command = : > $out
  description = $out
"""


def main():
    args = arguments()
    binary = pathlib.Path(args.bin).resolve()
    fill = binary.parent / "examples" / "fill"
    for program in (binary, fill) if args.sizes else (binary,):
        if not program.exists():
            sys.exit(f"{program} is not there: cargo build --release --bin tprimat --example fill")
    if not shutil.which("ninja"):
        sys.exit("ninja is not installed")
    print(machine(binary))
    rows = []
    with tempfile.TemporaryDirectory(prefix="tprimat-bench-", dir=args.dir) as folder:
        rows.append(version(binary, folder, args.rounds))
        for size in args.sizes:
            project = pathlib.Path(folder) / str(size)
            rows += measure(Case(project, size, binary, fill, args.rounds))
            shutil.rmtree(project)
        print_table(rows)
        if args.runs:
            print_runs(Runs(pathlib.Path(folder) / "runs", args.runs, args.jobs, binary))
    print(f"A peak of {floor_mib():.0f} MiB or less is shown as that: this script's own, which a child starts from.")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sizes = lambda text: [int(size) for size in text.split(",") if size]
    target = os.environ.get("CARGO_TARGET_DIR", "target")
    parser.add_argument("--sizes", type=sizes, default=[1_000, 10_000, 100_000], help="numbers of tasks; empty: none")
    parser.add_argument("--rounds", type=int, default=7, help="runs of each command")
    parser.add_argument("--runs", type=int, default=10_000, help="trainings that are really started; 0: none")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="how many of them at once")
    parser.add_argument("--bin", default=f"{target}/release/tprimat", help="the tprimat to measure")
    parser.add_argument("--dir", help="where the temporary folder goes")
    return parser.parse_args()


def machine(binary):
    versions = [output([str(binary), "--version"]), "ninja " + output(["ninja", "--version"])]
    cores = len(os.sched_getaffinity(0))
    return f"{', '.join(versions)}; {cores} cores, {platform.system()} {platform.release()}, load {os.getloadavg()[0]:.1f}"


class Case:
    """One project and one ninja graph of the same shape."""

    def __init__(self, project, size, binary, fill, rounds):
        self.size, self.cells, self.rounds = size, max(1, round(size / TASKS_PER_CELL)), rounds
        self.binary, self.fill_program = binary, fill
        self.project, self.graph = project / "tprimat", project / "ninja"
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(project)}
        self.graph.mkdir(parents=True)
        self.call([str(binary), "init", "--example", "amd-vs-nvidia", str(self.project)], project)
        shutil.rmtree(self.project / "pipelines")
        # Never started, but cells whose command is not there are blocked.
        trainer = self.project / "train"
        trainer.write_text("#!/bin/sh\n")
        trainer.chmod(0o755)
        self.write_matrix("")
        self.write_ninja()

    def write_matrix(self, more):
        seeds = ", ".join(str(seed) for seed in range(self.cells))
        text = MATRIX.format(repeats=REPEATS, seeds=seeds) + more
        (self.project / "matrix.toml").write_text(text)

    def write_ninja(self):
        """Each cell has one input of its own, the job, beside the template that all share."""
        (self.graph / "template").write_text("")
        (self.graph / "job").mkdir()
        with open(self.graph / "build.ninja", "w") as out:
            out.write(RULES)
            for cell in range(self.cells):
                (self.graph / "job" / str(cell)).write_text("")
                out.write(f"build render/{cell}: make job/{cell} template\n")
                for repeat in range(1, REPEATS + 1):
                    out.write(f"build train/{cell}-{repeat}: make render/{cell}\n")
                    out.write(f"build parse/{cell}-{repeat}: make train/{cell}-{repeat}\n")
                results = " ".join(f"parse/{cell}-{repeat}" for repeat in range(1, REPEATS + 1))
                out.write(f"build aggregate/{cell}: make {results}\n")
            out.write("build compare: make")
            for cell in range(self.cells):
                out.write(f" aggregate/{cell}")
            out.write("\nbuild plot: make compare\nbuild report: make compare plot\n")

    def call(self, command, folder):
        """The end of what a command says. All of it would make this script large, and with it its children's peaks."""
        with tempfile.TemporaryFile() as said:
            code = subprocess.run(command, cwd=folder, env=self.environment, stdout=said, stderr=said).returncode
            said.seek(max(0, said.seek(0, os.SEEK_END) - 2000))
            text = said.read().decode(errors="replace")
        if code != 0:
            sys.exit(f"{' '.join(command)} failed:\n{text}")
        return text

    def tprimat(self, *words):
        return [str(self.binary), *words]

    def build_all(self):
        """Makes everything fresh on both sides, and checks that both say so."""
        trainings = int(self.call([str(self.fill_program), str(self.project)], self.project))
        started = time.perf_counter()
        self.call(self.tprimat("build"), self.project)
        seconds = time.perf_counter() - started
        self.call(["ninja", "--quiet"], self.graph)
        # Files that are younger than this when looked at are read again instead of trusted.
        time.sleep(2.5)
        said = self.call(self.tprimat("build"), self.project)
        if "nothing to do" not in said:
            sys.exit(f"a second build has something to do:\n{said}")
        if "no work to do" not in self.call(["ninja"], self.graph):
            sys.exit("a second ninja has something to do")
        other = self.cells * TASKS_PER_CELL + 3 - trainings
        print(f"{self.size} tasks: {trainings} trainings filled in, {other} other tasks built by tprimat in {seconds:.0f} s")

    def pair(self, what, tprimat_command, ninja_command, expect):
        """Alternates the two commands; one run of each before the measured ones."""
        said = self.call(tprimat_command, self.project)
        if expect not in said:
            sys.exit(f"{' '.join(tprimat_command)} does not say `{expect}`:\n{said}")
        self.call(ninja_command, self.graph)
        ours, theirs = [], []
        for _ in range(self.rounds):
            ours.append(timed(tprimat_command, self.project, self.environment))
            theirs.append(timed(ninja_command, self.graph, self.environment))
        return Row(self.size, what, ours, theirs)


def measure(case):
    """All figures of one size."""
    cells = f"{case.cells} cells"
    rows = [case.pair("plan, nothing built", case.tprimat("plan"), ["ninja", "-n"], f"{cells}, all stale")]
    case.build_all()
    rows.append(case.pair("build, nothing to do", case.tprimat("build"), ["ninja"], "nothing to do"))
    rows.append(case.pair("plan, all fresh", case.tprimat("plan"), ["ninja", "-n"], f"{cells}, all fresh"))
    changed = case.cells // 2
    case.write_matrix(CHANGE.format(seed=changed))
    os.utime(case.graph / "job" / str(changed))
    stale = f"{cells} ({case.cells - 1} fresh, 1 stale)"
    rows.append(case.pair("plan, one cell changed", case.tprimat("plan"), ["ninja", "-n"], stale))
    return rows


def version(binary, folder, rounds):
    runs = [timed([str(binary), "--version"], folder, {}) for _ in range(3 * rounds)]
    return Row("", "--version", runs, None)


# Steps that fit into a run of a few milliseconds: a log that claims more is not counted.
STEPS = "".join(
    [
        '{"event":"start","schema":"tprimat.events/1","trainer":"stub","effective":{"seq_length":128,"global_batch_size":8,"num_gpus":1}}\n',
        *(
            f'{{"event":"step","step":{step},"step_time_seconds":0.00001{step:02},"loss":{20 - step}.5,"tokens":1024}}\n'
            for step in range(1, 13)
        ),
        '{"event":"end","status":"ok","steps":12}\n',
    ]
)
# What tprimat renders for a command of one's own, and ninja runs as it is.
SCRIPT = "set -euo pipefail\nexec cat steps.jsonl\n"


class Runs:
    """One matrix of trivial trainings, and a ninja graph with the same commands."""

    def __init__(self, folder, count, jobs, binary):
        self.cells = max(1, count // REPEATS)
        self.count, self.jobs, self.folder, self.binary = self.cells * REPEATS, jobs, folder, binary
        self.project, self.graph = folder / "tprimat", folder / "ninja"
        # Locks of devices are the whole host's: other builds must not be waited for.
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "TPRIMAT_LOCK_DIR": str(folder / "locks"),
        }
        self.graph.mkdir(parents=True)

    def tprimat(self):
        subprocess.run([str(self.binary), "init", "--example", "amd-vs-nvidia", str(self.project)], check=True, capture_output=True)
        shutil.rmtree(self.project / "pipelines")
        seeds = ", ".join(str(seed) for seed in range(self.cells))
        matrix = MATRIX.format(repeats=REPEATS, seeds=seeds).replace('["./train", "--quiet"]', '["cat", "steps.jsonl"]')
        (self.project / "matrix.toml").write_text(matrix)
        (self.project / "steps.jsonl").write_text(STEPS)
        events, begun = self.folder / "events", time.time()
        build = [str(self.binary), "-q", "build", "-j", str(self.jobs), "--events", str(events)]
        seconds = self.seconds(build, self.project)
        planned = subprocess.run(
            [str(self.binary), "plan"], cwd=self.project, env=self.environment, capture_output=True, text=True
        ).stdout
        if f"{self.cells} cells, all fresh" not in planned:
            sys.exit(f"{self.count} runs did not all end well:\n{planned[-2000:]}")
        return seconds, last_summed_up(events) - begun

    def ninja(self):
        (self.graph / "steps.jsonl").write_text(STEPS)
        (self.graph / "cmd.sh").write_text(SCRIPT)
        with open(self.graph / "build.ninja", "w") as out:
            out.write("rule run\n  command = bash cmd.sh > $out\n")
            for run in range(self.count):
                out.write(f"build run/{run}: run\n")
        return self.seconds(["ninja", "--quiet", "-j", str(self.jobs)], self.graph)

    def spawn_floor(self):
        """Executing the script for each run, and nothing else."""
        (self.graph / "cmd.sh").write_text(SCRIPT)

        def start(_):
            subprocess.run(["bash", "cmd.sh"], cwd=self.graph, stdout=subprocess.DEVNULL, check=True)

        return self.side_by_side(start)

    def sync_floor(self):
        """The log of a run and the record of its end, each in a file of its own and on disk."""
        folder = self.folder / "synced"
        folder.mkdir()

        def write(run):
            for name in ("log", "exit"):
                with open(folder / f"{run}.{name}", "w") as out:
                    out.write(STEPS)
                    out.flush()
                    os.fsync(out.fileno())

        return self.side_by_side(write)

    def side_by_side(self, work):
        """Of fewer runs, scaled: a floor does not change with their number."""
        some = min(self.count, 1000)
        started = time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            for _ in pool.map(work, range(some)):
                pass
        return (time.perf_counter() - started) * self.count / some

    def seconds(self, command, folder):
        return timed(command, folder, self.environment)[0]


def last_summed_up(events):
    """When the last cell was summed up: what comes after it, ninja has nothing like."""
    ended = (json.loads(line) for line in events.open() if '"task_finished"' in line)
    return max(event["time"] for event in ended if event["task"].startswith("aggregate"))


def print_runs(runs):
    ninja, (ours, summed_up) = runs.ninja(), runs.tprimat()
    spawns, syncs = runs.spawn_floor(), runs.sync_floor()
    print(f"\n{runs.count} runs, -j {runs.jobs}, once each")
    for what, seconds in [
        ("tprimat build", ours),
        ("  to the last cell's summary", summed_up),
        ("ninja", ninja),
        ("starting the processes", spawns),
        ("writing and syncing two files each", syncs),
    ]:
        print(f"| {what:<36} | {seconds:7.1f} s | {1e3 * seconds / runs.count:6.2f} ms a run | {seconds / ninja:5.2f} of ninja |")


class Row:
    def __init__(self, size, what, ours, theirs):
        self.size, self.what, self.ours, self.theirs = size, what, ours, theirs

    def cells(self):
        ours = [milliseconds(self.ours), spread(self.ours), peak(self.ours)]
        if self.theirs is None:
            return [str(self.size), self.what, *ours, "", "", "", ""]
        ratio = median_of(self.ours) / median_of(self.theirs)
        theirs = [milliseconds(self.theirs), spread(self.theirs), peak(self.theirs)]
        return [str(self.size), self.what, *ours, *theirs, f"{ratio:.2f}"]


def timed(command, folder, environment):
    """Wall seconds and peak resident bytes of one run, its output thrown away."""
    started = time.perf_counter()
    child = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - started
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        sys.exit(f"{' '.join(command)} failed with {child.returncode}")
    return seconds, usage.ru_maxrss * 1024


def median_of(runs):
    return statistics.median(seconds for seconds, _ in runs)


def milliseconds(runs):
    return f"{median_of(runs) * 1e3:.1f}"


def spread(runs):
    seconds = [seconds for seconds, _ in runs]
    return f"{min(seconds) * 1e3:.1f}–{max(seconds) * 1e3:.1f}"


def peak(runs):
    return f"{statistics.median(peak for _, peak in runs) / 2**20:.0f}"


def floor_mib():
    """A child's peak begins with that of the process which started it."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def print_table(rows):
    head = ["tasks", "what", "tprimat ms", "min–max", "MiB", "ninja ms", "min–max", "MiB", "tprimat / ninja"]
    lines = [head, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    for number, line in enumerate(lines):
        cells = [f"{c:<{w}}" if i == 1 else f"{c:>{w}}" for i, (c, w) in enumerate(zip(line, widths))]
        print("| " + " | ".join(cells) + " |")
        if number == 0:
            print("|" + "|".join("-" * (w + 2) for w in widths) + "|")


def output(command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
