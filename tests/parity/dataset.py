"""Do tprimat-native and recipes/lib/data.py see the same samples of a dataset? Exits 1 if not.

    python dataset.py --binary target/debug/tprimat-native --library recipes/lib
"""

import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from parity import JOB, MODELS

CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}


def write_dataset(prefix, documents, dtype):
    """From the format's definition: one sequence a document."""
    lengths = np.array([len(d) for d in documents], np.int32)
    pointers = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64) * np.dtype(dtype).itemsize
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, CODES[dtype], len(lengths), len(lengths) + 1)
    indices = np.arange(len(lengths) + 1, dtype=np.int64)
    Path(f"{prefix}.idx").write_bytes(head + lengths.tobytes() + pointers.tobytes() + indices.tobytes())
    Path(f"{prefix}.bin").write_bytes(np.concatenate(documents).astype(dtype).tobytes())


def run(binary, job, folder, prefix, *arguments):
    path = folder / "job.json"
    path.write_text(json.dumps(job))
    environment = os.environ | {"TPRIMAT_JOB": str(path), "TPRIMAT_DATASET": str(prefix)}
    return subprocess.run([binary, *arguments], env=environment, capture_output=True, text=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", required=True, type=Path, help="tprimat-native")
    parser.add_argument("--library", required=True, type=Path, help="recipes/lib")
    arguments = parser.parse_args()
    sys.path.insert(0, str(arguments.library.resolve()))
    from data import IndexedTokens

    random = np.random.default_rng(5)
    job = JOB | {"model": MODELS["llama"] | {"dataset": "words"}, "train_iters": 3}
    # 8 rows of a dataset with 5 sequences: they begin again within the first micro-batch.
    job |= {"data": JOB["data"] | {"micro_batch_size": 8, "gradient_accumulation_steps": 1, "seq_length": 24}}
    for dtype in CODES:
        vocab = min(job["model"]["vocab_size"], np.iinfo(dtype).max + 1)
        documents = [random.integers(0, vocab, n) for n in (50, 0, 7, 70, 13)]
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            prefix, dump = folder / "words.v1", folder / "dump.safetensors"
            write_dataset(prefix, documents, dtype)
            done = run(arguments.binary, job, folder, prefix, "--dump-logits", dump)
            assert done.returncode == 0, done.stderr
            samples = IndexedTokens(prefix, job)
            assert len(samples) == 24 and samples.num_sequences == 5
            ours = torch.stack([samples[i]["input_ids"] for i in range(8)])
            expected = torch.from_numpy(np.concatenate(documents)[:120].reshape(5, 24))[[0, 1, 2, 3, 4, 0, 1, 2]]
            assert torch.equal(ours, expected), dtype
            assert torch.equal(load_file(dump)["tokens"], expected), dtype
            done = run(arguments.binary, job, folder, prefix)
            assert done.returncode == 0, done.stderr
            effective = json.loads(done.stdout.splitlines()[0])["effective"]
            assert {key: effective[key] for key in samples.effective()} == samples.effective(), effective
            print(f"ok   {dtype}: the same samples, the same words for them: {samples.effective()}")

            # Both refuse a token beyond the vocabulary, and a .bin that is not what its .idx says.
            beyond = job | {"model": job["model"] | {"vocab_size": int(expected.max())}}
            assert "vocabulary" in run(arguments.binary, beyond, folder, prefix).stderr
            refused(lambda: [IndexedTokens(prefix, beyond)[i] for i in range(5)], "vocabulary")
            Path(f"{prefix}.bin").write_bytes(b"12")
            assert run(arguments.binary, job, folder, prefix).returncode == 2
            refused(lambda: IndexedTokens(prefix, job), "describes")


def refused(attempt, word):
    try:
        attempt()
    except ValueError as error:
        assert word in str(error), error
    else:
        raise AssertionError(f"not refused: {word}")


if __name__ == "__main__":
    main()
