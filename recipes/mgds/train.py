"""pretrain_gpt.py of the checkout in $MEGATRON_DEEPSPEED_PATH, with Llama 3's scaled RoPE, which it lacks.

    train.py [--synthetic] [--rope-scaling FACTOR LOW HIGH ORIGINAL] ARGUMENTS OF pretrain_gpt.py

--synthetic: --data-path is what tokens.py wrote. Megatron prints a path either way, so the log is told here.
A checkout that cannot run the job's attention is refused before anything is built.
"""

import json
import math
import os
import runpy
import sys

sys.dont_write_bytecode = True  # the checkout is a fact of the lock: leave nothing in it

from tprimat_callback import stop


def scaled(inverse_frequencies, factor, low, high, original):
    """Long waves are slowed by `factor`, short ones stay, those between are blended."""
    import torch

    waves = 2 * math.pi / inverse_frequencies
    blend = ((original / waves - low) / (high - low)).clamp(0.0, 1.0)
    return torch.lerp(inverse_frequencies / factor, inverse_frequencies, blend)


def scale_rope(numbers):
    from megatron.model import rotary_pos_embedding as rotary

    plain = rotary.RotaryEmbedding.__init__

    def initialise(self, *args, **kwargs):
        plain(self, *args, **kwargs)
        self.inv_freq = scaled(self.inv_freq, *numbers)

    rotary.RotaryEmbedding.__init__ = initialise


def refuse(checkout, arguments):
    """Commits from 676a482c on split Q, K and V into equal thirds, also where there are fewer heads of K and V."""
    heads, kv_heads = (arguments[arguments.index(name) + 1] for name in ("--num-attention-heads", "--num-key-value-heads"))
    with open(os.path.join(checkout, "megatron/model/transformer.py"), encoding="utf-8") as file:
        splits_in_thirds = "mixed_x_layer.shape[-1] // 3" in file.read()
    if splits_in_thirds and heads != kv_heads:
        message = f"this Megatron-DeepSpeed cannot run {heads} attention heads with {kv_heads} K/V heads; "
        stop(2, "launch", message + f"`git -C {checkout} checkout 6acc370a` has the last commit that can")


def build_no_kernels():
    """`load` asks nvcc for its version and builds softmax kernels, which flash attention takes the place of."""
    from megatron import fused_kernels

    fused_kernels.load = lambda args: None


def main():
    checkout = os.environ["MEGATRON_DEEPSPEED_PATH"]
    sys.path.insert(0, checkout)
    arguments = sys.argv[1:]
    if arguments[:1] == ["--synthetic"]:
        arguments = arguments[1:]
        if os.environ.get("RANK", "0") == "0":
            # Without a schema, so that the log as a whole stays Megatron's to who detects its format.
            start = {"event": "start", "trainer": "megatron-deepspeed", "effective": {"data": "random"}}
            print(json.dumps(start), flush=True)
    if arguments[:1] == ["--rope-scaling"]:
        scale_rope([float(number) for number in arguments[1:5]])
        arguments = arguments[5:]
    refuse(checkout, arguments)
    build_no_kernels()
    program = os.path.join(checkout, "pretrain_gpt.py")
    sys.argv = [program, *arguments]
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
