"""Writes seeded synthetic tokens as a Megatron data set: PREFIX.bin and PREFIX.idx (the MMIDIDX format)."""

import argparse
import struct
import sys

sys.dont_write_bytecode = True  # the recipe's folder is an input of the run: leave nothing in it

import numpy as np
from workload import SyntheticTokens

# The format's codes of element types.
CODES = {np.dtype(np.uint16): 8, np.dtype(np.int32): 4}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--prefix", required=True)
    for name in ("--seed", "--vocab-size", "--seq-length", "--sequences"):
        parser.add_argument(name, type=int, required=True)
    args = parser.parse_args()
    # One sequence more than is trained on: a sample needs the token after its last one.
    job = {
        "seed": args.seed,
        "train_iters": args.sequences + 1,
        "model": {"vocab_size": args.vocab_size},
        "data": {"global_batch_size": 1, "seq_length": args.seq_length},
    }
    tokens = SyntheticTokens(job)
    dtype = np.dtype(np.uint16 if args.vocab_size < 65500 else np.int32)
    with open(f"{args.prefix}.bin", "wb") as file:
        for sequence in range(len(tokens)):
            file.write(tokens[sequence]["input_ids"].numpy().astype(dtype).tobytes())
    count, length = len(tokens), args.seq_length
    with open(f"{args.prefix}.idx", "wb") as file:
        # Magic, version, element type, sequences, document bounds; lengths, byte offsets, bounds: a document a sequence.
        file.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, CODES[dtype], count, count + 1))
        file.write(np.full(count, length, np.int32).tobytes())
        file.write((np.arange(count, dtype=np.int64) * length * dtype.itemsize).tobytes())
        file.write(np.arange(count + 1, dtype=np.int64).tobytes())


if __name__ == "__main__":
    main()
