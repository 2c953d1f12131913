"""What tprimat has measured, as pandas frames, and the callback by which a training script prints events.

    found = tprimat.results("output")        the folder that the last line of a build names
    found.cells       a row a cell           platform, framework, axes, tokens_per_second_per_gpu, …
    found.repeats     a row a run            also those that do not count: `state` and `reason` say why
    found.steps       a row a line of a log  step_time_seconds, loss, learning_rate

    transformers.Trainer(..., callbacks=[tprimat.Callback(seq_length=4096)])
    lightning.Trainer(callbacks=[tprimat.Callback(global_batch_size=128)])

Units end the names of columns; docs/METRICS.md says what each figure means. Only `results` needs pandas.
"""

import json
import pathlib
import sys
import typing
import warnings

from .callback import Events, lightning_callback, trainer_callback

__all__ = ["Callback", "Events", "Results", "lightning_callback", "results", "trainer_callback"]

# Columns of text, also where every value looks like a number or none is known. All others hold numbers or true and false.
TEXT = (
    "cell platform framework model parallelism host attempt state reason imported_from workload baseline labels warnings "
    "same_launch_as same_runs_as environment attestation declared_only precision device standing dropped speedup_same_as "
    "speedup_reason mfu_absent metrics_absent steady_state_method steady_state_not_assessed energy_method"
).split()
# A file has an apostrophe before text that a spreadsheet would take for a formula.
GUARD = r"^'(?=\s*[=+\-@＝＋－＠])"
# A line of a log may stand for several steps (`steps_averaged`), and has their mean.
STEPS = {"cell": "string", "repeat": "Int64", "state": "string", "step": "Int64", "steps_averaged": "Int64"}
STEPS.update({"step_time_seconds": "Float64", "loss": "Float64", "learning_rate": "Float64"})


class Results(typing.NamedTuple):
    """Three pandas frames; `cell` and `repeat` join them."""

    cells: typing.Any
    repeats: typing.Any
    steps: typing.Any


def results(folder="output"):
    """Reads a folder that `tprimat build` or `tprimat report` wrote."""
    folder = pathlib.Path(folder)
    if not (folder / "compare.csv").is_file():
        raise FileNotFoundError(f"{folder} has no compare.csv: name the folder that the last line of a build names")
    outdated = folder / "OUTDATED.txt"
    if outdated.is_file():
        warnings.warn(outdated.read_text(encoding="utf-8").strip(), stacklevel=2)
    return Results(table(folder / "compare.csv"), table(folder / "compare_repeats.csv"), steps(folder))


def table(path):
    """A CSV file with the types of its values; what is empty there is <NA>."""
    import pandas

    if not path.read_bytes().strip():
        return pandas.DataFrame()
    frame = pandas.read_csv(path, dtype=dict.fromkeys(TEXT, "string"), keep_default_na=False, na_values=[""]).convert_dtypes()
    for name in frame:
        column = frame[name]
        if isinstance(column.dtype, pandas.StringDtype):
            column = column.str.replace(GUARD, "", regex=True)
            frame[name] = column if name in TEXT else numbers(column)
        elif column.isna().all():
            frame[name] = column.astype("Float64")
    return frame


def numbers(text):
    """An axis below zero is guarded as well."""
    import pandas

    try:
        return pandas.to_numeric(text)
    except ValueError:
        return text


def steps(folder):
    """The series of all runs below each other, in the order of their cells' files."""
    import pandas

    parts = []
    for path in sorted(folder.glob("train_*.json")):
        file = json.loads(path.read_text(encoding="utf-8"))
        if file.get("schema_version") != "tprimat.unified/1":
            continue
        for run in file["repeats"]:
            values = (run["repeat"], run["status"], run["steps"], run.get("steps_averaged", 1))
            values += (run["step_times"], run["loss_values"], run["learning_rates"])
            parts.append(pandas.DataFrame(dict(zip(STEPS, (file["cell"], *values)))))
    parts = [part.astype(STEPS) for part in parts if len(part)]
    return pandas.concat(parts, ignore_index=True) if parts else pandas.DataFrame(columns=list(STEPS)).astype(STEPS)


def Callback(**settings):
    """The callback for the trainer that this process has loaded: that of transformers, or Lightning (NeMo as well).

    `settings` are what the script knows of its own, by the job's names: seq_length, global_batch_size, …
    """
    of_transformers = "transformers.trainer" in sys.modules
    of_lightning = "lightning.pytorch" in sys.modules or "pytorch_lightning" in sys.modules
    if of_transformers == of_lightning:
        loaded = "both transformers' Trainer and Lightning" if of_lightning else "neither transformers' Trainer nor Lightning"
        raise RuntimeError(f"this process has loaded {loaded}: use tprimat.trainer_callback or tprimat.lightning_callback")
    return trainer_callback(**settings) if of_transformers else lightning_callback(**settings)
