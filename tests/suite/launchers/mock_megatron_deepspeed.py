"""A mock of Megatron-DeepSpeed's pretrain_gpt.py (commit 6acc370a, megatron/arguments.py): takes the arguments that the real
one has and no others, and prints them as JSON, with the rotary frequencies that a model would be built with. As
megatron/initialize.py does on CUDA, it calls fused_kernels.load, which needs nvcc."""

import argparse
import json
import sys

from megatron import fused_kernels
from megatron.model.rotary_pos_embedding import RotaryEmbedding

parser = argparse.ArgumentParser(allow_abbrev=False)
WHOLE = """train-iters micro-batch-size global-batch-size seq-length max-position-embeddings seed lr-warmup-iters
lr-decay-iters tensor-model-parallel-size pipeline-model-parallel-size zero-stage num-layers hidden-size ffn-hidden-size
num-attention-heads num-key-value-heads kv-channels rotary-position-embeddings-theta vocab-size eval-iters log-interval
checkpoint-num-layers"""
REAL = """lr min-lr weight-decay adam-beta1 adam-beta2 adam-eps clip-grad layernorm-epsilon attention-dropout
hidden-dropout init-method-std"""
TEXT = "optimizer lr-decay-style distributed-backend deepspeed_config normalization data-impl data-cache-path split tokenizer-type"
FLAGS = """bf16 no-pipeline-parallel deepspeed deepspeed-activation-checkpointing checkpoint-activations
use-rotary-position-embeddings swiglu disable-bias-linear untie-embeddings-and-output-weights no-query-key-layer-scaling
use-flash-attn-v2 no-gradient-accumulation-fusion no-masked-softmax-fusion"""
for names, kind in ((WHOLE, int), (REAL, float), (TEXT, str)):
    for name in names.split():
        parser.add_argument(f"--{name}", type=kind)
for name in FLAGS.split():
    parser.add_argument(f"--{name}", action="store_true")
parser.add_argument("--data-path", nargs="*")
args = parser.parse_args()
fused_kernels.load(args)
with open(args.deepspeed_config) as file:
    deepspeed = json.load(file)
rotary = RotaryEmbedding(args.kv_channels, theta=args.rotary_position_embeddings_theta).inv_freq.tolist()
print(json.dumps({"args": vars(args), "deepspeed": deepspeed, "rotary": rotary, "program": sys.argv[0]}))
