"""The job of $TPRIMAT_JOB, as a mapping that remembers what was read of it.

    job = Job.load()
    job["data"]["seq_length"]                     a leaf: noted as read
    dict(job["model"]["rope_scaling"] or {})      reads all of them
    job.ignore("model.nemo_recipe", "NeMo's name of the model")
    job.refuse_unread()                           ends the run if something was asked for that nobody looked at

A trainer reads a field where it applies it. What the start event says of the settings is read back from live objects.
Needs nothing but the standard library.
"""

import json
import os
from collections.abc import Mapping

from tprimat_callback import stop

# Values that ask for nothing, beside null, "", 0, false and empty lists.
DEFAULTS = {
    "vendor": "cpu",
    "task": "pretrain",
    "optimizer.lr_decay_style": "cosine",
    "sac_frequency": 1,
    "initialisation.std": 0.02,
    "parallelism.tensor_model_parallel_size": 1,
    "parallelism.pipeline_model_parallel_size": 1,
    "parallelism.context_parallel_size": 1,
    "parallelism.data_parallel_size": 1,
    "parallelism.expert_model_parallel_size": 1,
    "parallelism.num_gpus": 1,
}
# Fields that mean nothing while another one is as it is.
IDLE = {
    "fp8_hybrid": lambda job: job["precision"] != "fp8",
    "fp8_param": lambda job: job["precision"] != "fp8",
    "compile_mode": lambda job: not job["compile"],
    "sac_frequency": lambda job: not job["activation_checkpointing"],
    "model.rope_theta": lambda job: job["model"]["architecture"] == "gpt2",
    "model.tokenizer": lambda job: job["model"]["dataset"] is None,
}


class Fields(Mapping):
    """A group of the job's fields; reading a leaf notes its dotted path."""

    def __init__(self, values, prefix="", read=None):
        self._values, self._prefix = values, prefix
        self._read = set() if read is None else read

    def __getitem__(self, name):
        value, path = self._values[name], self._prefix + name
        if isinstance(value, dict):
            return Fields(value, path + ".", self._read)
        self._read.add(path)
        return value

    def __contains__(self, name):
        return name in self._values

    def __iter__(self):
        return iter(self._values)

    def __len__(self):
        return len(self._values)

    def __repr__(self):
        return repr(self._values)


class Job(Fields):
    def __init__(self, values):
        super().__init__(values)
        self._ignored = {}

    @classmethod
    def load(cls, path=None):
        """The job of `path`, or of $TPRIMAT_JOB; ends the run with a `launch` error if there is none."""
        try:
            with open(path or os.environ["TPRIMAT_JOB"], encoding="utf-8") as file:
                return cls(json.load(file))
        except (KeyError, OSError, ValueError) as error:
            stop(2, "launch", f"cannot read the job from $TPRIMAT_JOB: {error!r}")

    def plain(self):
        """A copy as plain dicts, for handing on; notes nothing as read."""
        return json.loads(json.dumps(self._values))

    def ignore(self, path, reason):
        """The field, or the group of fields, at `path` has no meaning for this trainer, because of `reason`."""
        self._ignored[path] = reason

    def unread(self):
        """Fields that ask for something and that nobody read: dotted path → value."""
        quiet = Job(self._values)  # asking must not count as reading
        return {
            path: value
            for path, value in leaves(self._values)
            if path not in self._read
            and value not in (None, "", 0, False, [])
            and (path not in DEFAULTS or value != DEFAULTS[path])
            and not (path in IDLE and IDLE[path](quiet))
            and not any(path == one or path.startswith(one + ".") for one in self._ignored)
        }

    def refuse(self, checks):
        """Ends the run with the reasons of all `(applies, reason)` that apply."""
        reasons = [reason for applies, reason in checks if applies]
        if reasons:
            stop(2, "launch", "cannot run this job: " + "; ".join(reasons))

    def refuse_unread(self):
        """Ends the run if the job asks for something that this trainer never looked at."""
        unread = self.unread()
        if unread:
            fields = ", ".join(f"{path} = {json.dumps(value)}" for path, value in unread.items())
            stop(2, "launch", f"this trainer never read what the job asks for: {fields}")


def device_refusals(job, torch):
    """There is no falling back to the CPU."""
    seen, vendor = torch.cuda.is_available(), job["vendor"]
    return [
        (vendor == "nvd" and not (seen and torch.version.cuda), "this PyTorch sees no CUDA device"),
        (vendor == "amd" and not (seen and torch.version.hip), "this PyTorch sees no ROCm device"),
    ]


def batch_refusals(job, replicas):
    data = job["data"]
    product = data["micro_batch_size"] * replicas * data["gradient_accumulation_steps"]
    stated = job["parallelism"]["data_parallel_size"]
    return [
        (stated != replicas, f"data_parallel_size is {stated}, and {replicas} replicas were started"),
        (data["global_batch_size"] != product, f"global_batch_size is not MBS × DP × GA = {product}"),
    ]


def data_parallel_refusals(job, processes, shardings):
    """For trainers that are data parallel only, and keep AdamW states in fp32 or with pure bf16 weights."""
    parallel, optimizer, precision = job["parallelism"], job["optimizer"], job["precision"]
    sharding, states = parallel["sharding"], optimizer["state_precision"]
    return batch_refusals(job, processes) + [
        (parallel["tensor_model_parallel_size"] != 1, "tensor parallelism"),
        (parallel["pipeline_model_parallel_size"] != 1, "pipeline parallelism"),
        (parallel["context_parallel_size"] != 1, "context parallelism"),
        (parallel["num_gpus"] != processes, f"num_gpus is {parallel['num_gpus']}, not {processes}"),
        (sharding not in shardings, f"sharding {sharding!r}"),
        (precision not in ("fp32", "bf16", "fp8"), f"precision {precision!r}"),
        (precision == "fp8" and job["compile"], "FP8 and compile together"),
        (precision == "fp8" and job["activation_checkpointing"], "FP8 and recomputed layers together"),
        (optimizer["type"] != "adamw", f"optimizer {optimizer['type']!r}"),
        (states != "fp32" and (states, precision) != ("bf16", "bf16"), f"{states} optimizer states at {precision}"),
    ]


def leaves(values, prefix=""):
    for name, value in values.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
