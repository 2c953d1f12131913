"""A mock of Megatron-LM's pretrain_gpt.py (core_v0.16.1, unless said otherwise): takes the arguments that the real one has and
no others, and prints what the real one prints of them.

- A NullTokenizer has one token more than it is told up to core 0.17 (megatron/training/tokenizer/tokenizer.py,
  _NullTokenizer; core 0.17: megatron/core/tokenizers/text/libraries/null_tokenizer.py), and as many from core 0.18 on.
- Arguments are printed as they were given; the tokenizer's own size is in the line on the padded vocabulary
  (_vocab_size_with_padding).
- fused_kernels.load runs nvcc (megatron/legacy/fused_kernels/__init__.py), and is gone in core 0.17.
- The schedule asserts that the warm-up ends before the decay (megatron/core/optimizer_param_scheduler.py).
"""

import argparse
import math

from megatron.training.arguments import NullTokenizer, load_kernels

parser = argparse.ArgumentParser(allow_abbrev=False)
WHOLE = """num-layers hidden-size ffn-hidden-size num-attention-heads num-query-groups kv-channels max-position-embeddings
rotary-base vocab-size seq-length micro-batch-size global-batch-size train-iters lr-decay-iters lr-warmup-iters lr-wsd-decay-iters seed
fp8-amax-history-len tensor-model-parallel-size pipeline-model-parallel-size context-parallel-size recompute-num-layers
log-interval eval-iters eval-interval num-experts moe-router-topk moe-ffn-hidden-size expert-model-parallel-size"""
REAL = """norm-epsilon attention-dropout hidden-dropout init-method-std rope-scaling-factor lr min-lr weight-decay adam-beta1
adam-beta2 adam-eps clip-grad optimizer-offload-fraction"""
TEXT = """position-embedding-type normalization tokenizer-type data-path split data-cache-path optimizer lr-decay-style lr-wsd-decay-style
fp8-recipe fp8-amax-compute-algo recompute-granularity recompute-method transformer-impl
moe-router-load-balancing-type moe-token-dispatcher-type"""
FLAGS = """group-query-attention swiglu disable-bias-linear add-qkv-bias use-rope-scaling
untie-embeddings-and-output-weights mock-data no-create-attention-mask-in-dataloader bf16 fp8-param-gather sequence-parallel
overlap-grad-reduce overlap-param-gather use-distributed-optimizer use-precision-aware-optimizer optimizer-cpu-offload
no-persist-layer-norm no-masked-softmax-fusion no-rope-fusion cross-entropy-loss-fusion log-throughput
no-gradient-accumulation-fusion qk-layernorm moe-grouped-gemm"""
for names, kind in ((WHOLE, int), (REAL, float), (TEXT, str)):
    for name in names.split():
        parser.add_argument(f"--{name}", type=kind)
for name in FLAGS.split():
    parser.add_argument(f"--{name}", action="store_true")
parser.add_argument("--fp8-format", dest="fp8")
parser.add_argument("--fp4-format", dest="fp4", choices=["e2m1"])
parser.add_argument("--fp4-recipe", choices=["nvfp4"])
args = parser.parse_args()
load_kernels(args)
print("------------------------ arguments ------------------------")
for name, value in sorted(vars(args).items()):
    print(f"  {name} {'.' * (48 - len(name))} {value}")
print("-------------------- end of arguments ---------------------")
assert args.lr_warmup_iters < args.lr_decay_iters
size, multiple = NullTokenizer(args.vocab_size).vocab_size, 128 * args.tensor_model_parallel_size
after = math.ceil(size / multiple) * multiple
print(f" > padded vocab (size: {size}) with {after - size} dummy tokens (new size: {after})", flush=True)
