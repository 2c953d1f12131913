"""Token files: Megatron's PREFIX.bin and PREFIX.idx, in the sample order of tprimat's own reader (src/data/samples.rs).

All documents' tokens stand one after the other and are cut into sequences of seq_length; what is left is not used. Sample i
of a run is sequence i modulo their number.
"""

import os
import struct

import numpy as np
import torch

MAGIC = b"MMIDIDX\x00\x00"
HEADER = 34
DTYPES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}


class IndexedTokens(torch.utils.data.Dataset):
    """The samples of a run, as SyntheticTokens has them: labels are the inputs, which the model shifts."""

    def __init__(self, prefix, job):
        self.name, self.vocab_size = job["model"]["dataset"], job["model"]["vocab_size"]
        self.seq_length = job["data"]["seq_length"]
        self.length = job["train_iters"] * job["data"]["global_batch_size"]
        dtype, end = read_index(f"{prefix}.idx")
        size = os.path.getsize(f"{prefix}.bin")
        if size != end:
            raise ValueError(f"{prefix}.bin has {size} bytes, its .idx describes {end}")
        self.num_tokens = size // np.dtype(dtype).itemsize
        self.num_sequences = self.num_tokens // self.seq_length
        if self.num_sequences == 0:
            raise ValueError(f"{prefix} has {self.num_tokens} tokens, less than one sequence of {self.seq_length}")
        self.tokens = np.memmap(f"{prefix}.bin", dtype=np.dtype(dtype).newbyteorder("<"), mode="r")

    def __len__(self):
        return self.length

    def __getitem__(self, sample):
        if not 0 <= sample < self.length:
            raise IndexError(sample)
        first = sample % self.num_sequences * self.seq_length
        tokens = self.tokens[first : first + self.seq_length].astype(np.int64)
        wrong = tokens[(tokens < 0) | (tokens >= self.vocab_size)]
        if wrong.size:
            # A GPU would end the whole process over it, without saying which one.
            raise ValueError(f"sample {sample} has the token {wrong[0]}, the vocabulary {self.vocab_size}")
        tokens = torch.from_numpy(tokens)
        return {"input_ids": tokens, "labels": tokens}

    def effective(self):
        """What the start event says of the data; more than one epoch means that some of it is seen again."""
        return {
            "data": "real",
            "dataset": self.name,
            "dataset_tokens": self.num_tokens,
            "data_epochs": self.length / self.num_sequences,
        }


def read_index(path):
    """The type of a token, and where the .bin ends by the last sequence."""
    with open(path, "rb") as file:
        head = file.read(HEADER)
        if len(head) < HEADER or not head.startswith(MAGIC):
            raise ValueError(f"{path} is not an index of a Megatron dataset")
        version, code, sequences, _ = struct.unpack("<QBQQ", head[len(MAGIC) :])
        if version != 1 or code not in DTYPES:
            raise ValueError(f"{path} has version {version} and token type {code}; 1 and a type of whole numbers are known")
        dtype = DTYPES[code]
        if sequences == 0:
            return dtype, 0
        size = file.seek(0, os.SEEK_END)
        if HEADER + 12 * sequences > size:
            raise ValueError(f"{path} is cut off")
        pointers = HEADER + 4 * sequences
        file.seek(pointers - 4)
        (length, first) = struct.unpack("<iq", file.read(12))
        file.seek(pointers + 8 * (sequences - 1))
        (last,) = struct.unpack("<q", file.read(8))
        if first != 0 or last < 0 or length < 0:
            raise ValueError(f"{path} has sequences out of place; `tprimat data verify` says which")
        return dtype, last + length * np.dtype(dtype).itemsize
