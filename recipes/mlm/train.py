"""Runs pretrain_gpt.py of the Megatron-LM checkout in $MEGATRON_PATH.

    train.py ARGUMENTS OF pretrain_gpt.py

It changes two things. The job's vocabulary is what --vocab-size says here, whichever way this version counts; and no
CUDA compiler is looked for, since none of the layers used here has kernels that Megatron-LM would build.
"""

import importlib.util
import json
import os
import runpy
import sys

sys.dont_write_bytecode = True  # the checkout is a fact of the lock: leave nothing in it

from tprimat_callback import stop


def tokenizer_size(told):
    """Tokens of a NullTokenizer: up to core 0.17 one more than it is told, the end of a document; from 0.18 on as many."""
    try:
        from megatron.training.tokenizer.tokenizer import _NullTokenizer as NullTokenizer
    except ImportError:  # core 0.17 and later
        from megatron.core.tokenizers.text.libraries.null_tokenizer import NullTokenizer
    return NullTokenizer(told).vocab_size


def build_no_kernels():
    """Up to core 0.16 `load` runs nvcc, to build nothing; on a host without the CUDA toolkit it fails."""
    try:
        from megatron.legacy import fused_kernels
    except ImportError:  # core 0.17 and later
        return
    fused_kernels.load = lambda args: None


def route_without_te():
    """Routers of core 0.16 ask for a product of Transformer Engine's, by a name that is only there with it."""
    try:
        from megatron.core.transformer.moe import moe_utils
    except ImportError:  # as old as to have no experts
        return
    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None


def main():
    checkout = os.environ["MEGATRON_PATH"]
    sys.path.insert(0, checkout)
    arguments = sys.argv[1:]
    layers = arguments[arguments.index("--transformer-impl") + 1]
    if layers == "transformer_engine" and importlib.util.find_spec(layers) is None:
        stop(2, "launch", "there is no Transformer Engine; `frameworks.mlm.transformer_impl: local` runs without it")
    build_no_kernels()
    if layers == "local" and "--num-experts" in arguments:
        route_without_te()
    at = arguments.index("--vocab-size") + 1
    wanted = int(arguments[at])
    told = wanted - (tokenizer_size(wanted) - wanted)
    arguments[at] = str(told)
    if os.environ.get("RANK", "0") == "0":
        # Without a schema, so that the log as a whole stays Megatron's to who detects its format.
        effective = {"vocab_size": tokenizer_size(told)}
        print(json.dumps({"event": "start", "trainer": "megatron-lm", "effective": effective}), flush=True)
    program = os.path.join(checkout, "pretrain_gpt.py")
    sys.argv = [program, *arguments]
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
