"""What every trainer here must agree on: the tokens, their order over ranks, and the learning rate of each step."""

import math
import os

import numpy as np
import torch

from tprimat_callback import stop

GAMMA = 0x9E3779B97F4A7C15


def mix(z):
    """splitmix64's finaliser, modulo 2^64."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
    return z ^ (z >> 31)


class SyntheticTokens(torch.utils.data.Dataset):
    """The tokens of src/bin/tprimat-native/tokens.rs: vocab_size * u^4, u uniform by (seed, sequence, position)."""

    def __init__(self, job):
        self.seed, self.vocab_size = job["seed"], job["model"]["vocab_size"]
        self.length = job["train_iters"] * job["data"]["global_batch_size"]
        self.offsets = np.arange(1, job["data"]["seq_length"] + 1, dtype=np.uint64) * np.uint64(GAMMA)

    def __len__(self):
        return self.length

    def __getitem__(self, sequence):
        z = self.offsets + np.uint64(mix((mix(self.seed) + GAMMA * (sequence + 1)) % 2**64))
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        u = (z ^ (z >> np.uint64(31))) >> np.uint64(32)
        fourth = ((u * u) >> np.uint64(32)) ** np.uint64(2) >> np.uint64(32)
        tokens = torch.from_numpy(((fourth * np.uint64(self.vocab_size)) >> np.uint64(32)).astype(np.int64))
        return {"input_ids": tokens, "labels": tokens}

    def effective(self):
        return {"data": "random"}


def open_dataset(job):
    """All sequences of the run, in order: `[i]` → input_ids and labels. Synthetic, or those of $TPRIMAT_DATASET."""
    if job["model"]["dataset"] is None:
        return SyntheticTokens(job)
    prefix = os.environ.get("TPRIMAT_DATASET")
    if not prefix:
        stop(2, "launch", "the job has a dataset, and $TPRIMAT_DATASET does not say where it is")
    from data import IndexedTokens

    job.ignore("model.tokenizer", "the dataset holds tokens, no text")
    return IndexedTokens(prefix, job)


def micro_batch(dataset, number, rows, replica=0, replicas=1):
    """Micro-batch `number` (from 0, over the whole run) of a data-parallel replica: replicas take turns."""
    first = (number * replicas + replica) * rows
    examples = [dataset[i] for i in range(first, first + rows)]
    return {name: torch.stack([example[name] for example in examples]) for name in examples[0]}


class LearningRate:
    """As in crates/job/src/schedule.rs: linear from step 1, then as lr_decay_style says; unless that is constant, the
    last step is at the minimum."""

    def __init__(self, job):
        optimizer = job["optimizer"]
        self.high, self.low = optimizer["learning_rate"], optimizer["min_learning_rate"]
        self.warmup, self.steps = optimizer["warmup_steps"], job["train_iters"]
        self.style, self.falling = optimizer["lr_decay_style"], optimizer["wsd_decay_steps"]

    def at(self, step):
        """The rate of `step`, counted from 1."""
        if step <= self.warmup:
            return self.high * step / self.warmup
        progress = min(1.0, (step - self.warmup) / max(1, self.steps - self.warmup))
        left = {
            "cosine": 0.5 * (1.0 + math.cos(math.pi * progress)),
            "linear": 1.0 - progress,
            "constant": 1.0,
            "wsd": min(1.0, max(0, self.steps - step) / max(1, self.falling)),
        }[self.style]
        return self.low + (self.high - self.low) * left

    def factor(self, done):
        """For torch's LambdaLR: the rate of the step after `done` steps, over the highest one."""
        return self.at(done + 1) / self.high if self.high else 0.0

    def apply(self, optimizer, step):
        """Sets the rate of `step` in every group, and returns it."""
        rate = self.at(step)
        for group in optimizer.param_groups:
            group["lr"] = rate
            group.setdefault("initial_lr", self.high)
        return rate
