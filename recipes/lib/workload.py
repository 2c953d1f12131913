"""What every trainer here must agree on: the synthetic tokens and the learning rate of each step."""

import math

import numpy as np
import torch

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


def learning_rate_factor(job):
    """As in src/bin/tprimat-native/schedule.rs: linear from step 1, then cosine; the last step is at the minimum."""
    optimizer, steps = job["optimizer"], job["train_iters"]
    high, low, warmup = optimizer["learning_rate"], optimizer["min_learning_rate"], optimizer["warmup_steps"]

    def factor(done):
        step = done + 1
        if step <= warmup:
            return step / warmup
        progress = min(1.0, (step - warmup) / max(1, steps - warmup))
        rate = low + (high - low) * 0.5 * (1.0 + math.cos(math.pi * progress))
        return rate / high if high else 0.0

    return factor
