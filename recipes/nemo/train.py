"""Trains the job in $TPRIMAT_JOB with a NeMo 2 recipe, and prints its progress as JSON lines.

NeMo's recipe gives the model's class and what the job does not speak of; every setting of the job is put into it, and
the start event says what the built objects hold.
"""

import os
import random
import sys

sys.dont_write_bytecode = True  # the recipe's folder is an input of the run: leave nothing in it

import nemo_run as run
import numpy
import torch
from job import Job
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import distrib_optimizer
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
from nemo.collections import llm
from nemo.collections.common.tokenizers.null_tokenizer import NullTokenizer
from nemo.collections.llm.gpt.data.mock import MockDataModule
from nemo.collections.llm.gpt.data.pre_training import PreTrainingDataModule
from nemo.collections.llm.gpt.model.base import HAVE_TE
from nemo.lightning.pytorch.optim import CosineAnnealingScheduler
from nemo.lightning.pytorch.plugins.mixed_precision import MegatronMixedPrecision
from tprimat_callback import lightning_callback, stop

RUN_DIR = os.environ["TPRIMAT_RUN_DIR"]
ARCHITECTURES = {"LlamaModel": "llama", "Qwen2Model": "qwen2", "MistralModel": "mistral"}


def find_recipe(job):
    name = job["model"]["nemo_recipe"]
    module = getattr(llm, name, None)
    if not hasattr(module, "pretrain_recipe"):
        stop(2, "launch", f"this NeMo has no recipe {name!r}")
    gpus = job["parallelism"]["num_gpus"]
    return module.pretrain_recipe(dir=RUN_DIR, name="nemo", num_nodes=1, num_gpus_per_node=gpus)


def set_if_known(config, **values):
    """Sets the arguments that the class has. It is not asked first: a default that is made by a factory cannot be read."""
    for name, value in values.items():
        try:
            setattr(config, name, value)
        except AttributeError:
            pass


def set_model(job, config):
    """The shape, whatever the recipe's own is."""
    model, tensor_parallel = job["model"], job["parallelism"]["tensor_model_parallel_size"]
    config.num_layers = model["num_layers"]
    config.hidden_size = model["hidden_size"]
    config.ffn_hidden_size = model["ffn_hidden_size"]
    config.num_attention_heads = model["num_attention_heads"]
    config.num_query_groups = model["num_kv_heads"]
    config.kv_channels = model["head_dim"]
    config.vocab_size = -(-model["vocab_size"] // tensor_parallel) * tensor_parallel  # its rows are split evenly
    config.share_embeddings_and_output_weights = model["tie_embeddings"]
    config.add_qkv_bias = model["qkv_bias"]
    config.layernorm_epsilon = model["norm_eps"]
    config.rotary_base = model["rope_theta"]
    config.init_method_std = job["initialisation"]["std"]
    config.seq_length = job["data"]["seq_length"]
    config.hidden_dropout = config.attention_dropout = 0.0
    # A job's attention is causal, without a window; what Llama's configurations fuse, those of Qwen and Mistral do as well.
    set_if_known(config, window_size=None, apply_rope_fusion=True, bias_activation_fusion=True)
    set_layers(job, config)
    scaling = model["rope_scaling"]
    if scaling is None and hasattr(config, "scale_factor"):
        config.scale_factor = 1.0
    elif scaling is not None:
        if not hasattr(config, "scale_factor"):
            stop(2, "launch", "the model of this NeMo recipe has no scaled RoPE")
        config.scale_factor = scaling["factor"]
        config.low_freq_factor = scaling["low_freq_factor"]
        config.high_freq_factor = scaling["high_freq_factor"]
        config.old_context_len = scaling["original_max_position_embeddings"]
    is_recomputed = job["activation_checkpointing"]
    config.recompute_granularity = "full" if is_recomputed else None
    config.recompute_method = "uniform" if is_recomputed else None
    config.recompute_num_layers = job["sac_frequency"] if is_recomputed else None


def local_layers(config):
    return get_gpt_layer_local_spec(normalization=config.normalization)


def set_layers(job, config):
    """NeMo takes Megatron's own layers wherever Transformer Engine is missing; here they are asked for, or not used."""
    wanted = job["framework"].get("transformer_impl", "transformer_engine")
    if wanted not in ("transformer_engine", "local"):
        stop(2, "launch", f"frameworks.nemo.transformer_impl is transformer_engine or local, not {wanted!r}")
    if wanted == "local":
        config.transformer_layer_spec = local_layers
        # These fusions are kernels of Transformer Engine or apex.
        config.apply_rope_fusion = config.masked_softmax_fusion = config.persist_layer_norm = False
        if not HAVE_TE:
            # megatron-core 0.12 has Transformer Engine quantise the FP8 shards of an optimizer, also where there are none.
            distrib_optimizer.quantize_param_shard = lambda *_, **__: None
    elif not HAVE_TE:
        stop(2, "launch", "NeMo finds no Transformer Engine; `frameworks.nemo.transformer_impl: local` runs without it")


def set_trainer(job, trainer):
    parallel, strategy = job["parallelism"], trainer.strategy
    trainer.devices = parallel["num_gpus"]
    trainer.num_nodes = 1
    trainer.max_steps = job["train_iters"]
    trainer.accumulate_grad_batches = 1  # Megatron's own micro-steps make up the global batch
    trainer.limit_val_batches = 0
    trainer.limit_test_batches = 0
    trainer.val_check_interval = None
    trainer.log_every_n_steps = 1
    trainer.enable_checkpointing = False
    trainer.plugins = precision(job)
    strategy.tensor_model_parallel_size = parallel["tensor_model_parallel_size"]
    strategy.pipeline_model_parallel_size = parallel["pipeline_model_parallel_size"]
    strategy.pipeline_dtype = torch.bfloat16
    strategy.virtual_pipeline_model_parallel_size = None
    strategy.context_parallel_size = parallel["context_parallel_size"]
    strategy.sequence_parallel = parallel["tensor_model_parallel_size"] > 1
    strategy.ddp = run.Config(
        DistributedDataParallelConfig,
        check_for_nan_in_grad=True,
        grad_reduce_in_fp32=True,
        overlap_grad_reduce=True,
        overlap_param_gather=True,
        use_distributed_optimizer=True,
    )


def precision(job):
    plugin = run.Config(
        MegatronMixedPrecision,
        precision="bf16-mixed",
        params_dtype=torch.bfloat16,
        pipeline_dtype=torch.bfloat16,
        autocast_enabled=False,
        grad_reduce_in_fp32=True,
    )
    if job["precision"] == "fp8":
        plugin.fp8 = "hybrid" if job["fp8_hybrid"] else "e4m3"
        plugin.fp8_recipe = "delayed"
        plugin.fp8_amax_history_len = 1024
        plugin.fp8_amax_compute_algo = "max"
        plugin.fp8_param_gather = job["fp8_param"]
    return plugin


def set_optimizer(job, optim):
    wanted, config = job["optimizer"], optim.config
    config.optimizer = {"adamw": "adam"}[wanted["type"]]  # Megatron's adam decays weights as AdamW does
    config.lr = wanted["learning_rate"]
    config.weight_decay = wanted["weight_decay"]
    config.adam_beta1 = wanted["beta1"]
    config.adam_beta2 = wanted["beta2"]
    config.adam_eps = wanted["eps"]
    config.clip_grad = wanted["clip_grad"]
    config.bf16, config.fp16 = True, False
    config.use_distributed_optimizer = True
    # NeMo counts from 0 and warms up over one step more than it is told.
    optim.lr_scheduler = run.Config(
        schedule_of(job),
        warmup_steps=wanted["warmup_steps"] - 1,
        max_steps=job["train_iters"] - 1,
        constant_steps=0,
        min_lr=wanted["min_learning_rate"],
    )


def schedule_of(job):
    last = job["train_iters"] - 1

    class JobSchedule(CosineAnnealingScheduler):
        """Ends at the job's last step, counted from 0: MegatronStrategy.setup has put the trainer's number of steps in its place."""

        def scheduler(self, model, optimizer):
            self.max_steps = last
            return super().scheduler(model, optimizer)

    return JobSchedule


class MaskedMockData(MockDataModule):
    """NeMo 2.3 and 2.4 give the switch for the mask, which is on without Transformer Engine, to the dataset as its seed."""

    def setup(self, stage=""):
        super().setup(stage)
        length = self.seq_length
        for dataset in (self._train_ds, self._validation_ds, self._test_ds):
            dataset.create_attention_mask = True
            dataset.attention_mask = torch.ones((1, length, length), dtype=torch.bool).triu(1)


def data(job):
    sizes = job["data"]
    common = {
        "seq_length": sizes["seq_length"],
        "micro_batch_size": sizes["micro_batch_size"],
        "global_batch_size": sizes["global_batch_size"],
        # One token more than it is told: the end of a document.
        "tokenizer": run.Config(NullTokenizer, vocab_size=job["model"]["vocab_size"] - 1),
    }
    if job["model"]["dataset"] is None:
        module = MockDataModule if HAVE_TE else MaskedMockData
        return run.Config(module, num_train_samples=job["train_iters"] * sizes["global_batch_size"], **common)
    prefix = os.environ.get("TPRIMAT_DATASET")
    if not prefix:
        stop(2, "launch", "the job has a dataset, and $TPRIMAT_DATASET does not say where it is")
    cache = os.path.join(RUN_DIR, "data-cache")
    split = "100,0,0"
    return run.Config(
        PreTrainingDataModule, paths=[prefix], seed=job["seed"], split=split, index_mapping_dir=cache, **common
    )


def callback(job, tokens):
    seed = job["seed"]

    class NemoEvents(type(lightning_callback(tokens_per_step=tokens))):
        """Seeds before weights are made, and says what the objects that train hold."""

        def setup(self, trainer, module, stage):
            random.seed(seed)
            numpy.random.seed(seed % 2**32)
            torch.manual_seed(seed)
            if torch.cuda.is_available():
                model_parallel_cuda_manual_seed(seed)

        def on_train_start(self, trainer, module):
            self.events.trainer = "nemo"
            effective = in_effect(trainer, module)
            one_piece = effective["tensor_model_parallel_size"] * effective["pipeline_model_parallel_size"] == 1
            count = sum(p.numel() for p in module.parameters()) if one_piece else None
            self.events.start(effective, count)

    return NemoEvents()


def in_effect(trainer, module):
    strategy, config, optim = trainer.strategy, module.config, module.optim
    sampler, dtypes = trainer.datamodule.data_sampler, trainer.precision_plugin.dtype_config
    tensor, pipeline = strategy.tensor_model_parallel_size, strategy.pipeline_model_parallel_size
    context, world = strategy.context_parallel_size, trainer.world_size
    replicas = world // (tensor * pipeline * context)
    tokens = trainer.datamodule.tokenizer.vocab_size
    found = {
        "architecture": ARCHITECTURES.get(type(module).__name__, type(module).__name__),
        "num_layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "ffn_hidden_size": config.ffn_hidden_size,
        "num_attention_heads": config.num_attention_heads,
        "num_kv_heads": config.num_query_groups,
        "head_dim": config.kv_channels,
        "vocab_size": tokens,
        "padded_vocab_size": config.vocab_size,
        "tie_embeddings": config.share_embeddings_and_output_weights,
        "qkv_bias": config.add_qkv_bias,
        "norm_eps": config.layernorm_epsilon,
        "rope_theta": config.rotary_base,
        **({"rope_scaling_factor": config.scale_factor} if hasattr(config, "scale_factor") else {}),
        "init_std": config.init_method_std,
        "dropout": max(config.hidden_dropout, config.attention_dropout),
        "attention_mask": "causal",
        "transformer_impl": "local" if config.transformer_layer_spec is local_layers else "transformer_engine",
        "activation_checkpointing": config.recompute_granularity == "full",
        "micro_batch_size": sampler.micro_batch_size,
        "global_batch_size": sampler.global_batch_size,
        "gradient_accumulation_steps": sampler.global_batch_size // (sampler.micro_batch_size * replicas),
        "seq_length": sampler.seq_len,
        "data": "random" if isinstance(trainer.datamodule, MockDataModule) else "real",
        "train_iters": trainer.max_steps,
        "num_gpus": world,
        "tensor_model_parallel_size": tensor,
        "pipeline_model_parallel_size": pipeline,
        "context_parallel_size": context,
        "data_parallel_size": replicas,
        "precision": "fp8" if dtypes.fp8 else "bf16" if dtypes.bf16 else "fp32",
        "optimizer": {"adam": "adamw"}.get(optim.config.optimizer, optim.config.optimizer),
        "optimizer_state_precision": "fp32",
        "learning_rate": optim.config.lr,
        "min_learning_rate": optim.lr_scheduler.min_lr,
        "warmup_steps": optim.lr_scheduler.warmup_steps + 1,
        "weight_decay": optim.config.weight_decay,
        "beta1": optim.config.adam_beta1,
        "beta2": optim.config.adam_beta2,
        "eps": optim.config.adam_eps,
        "clip_grad": optim.config.clip_grad,
        "seed": torch.initial_seed(),
        "compile": False,
        "offload": False,
    }
    if config.recompute_granularity == "full":
        found["sac_frequency"] = config.recompute_num_layers
    if dtypes.fp8:
        found |= {"fp8_hybrid": dtypes.fp8 == "hybrid", "fp8_param": dtypes.fp8_param_gather}
        found |= {name: getattr(dtypes, name) for name in ("fp8_recipe", "fp8_amax_history_len", "fp8_amax_compute_algo")}
    return found


def main():
    job = Job.load()
    recipe = find_recipe(job)
    set_model(job, recipe.model.config)
    set_trainer(job, recipe.trainer)
    set_optimizer(job, recipe.optim)
    recipe.data = data(job)
    recipe.log.ckpt = recipe.log.tensorboard = recipe.log.wandb = None
    recipe.resume = None
    tokens = job["data"]["global_batch_size"] * job["data"]["seq_length"]
    recipe.trainer.callbacks = [*(recipe.trainer.callbacks or []), callback(job, tokens)]
    job.ignore("vendor", "NeMo runs on whatever torch finds")
    job.ignore("model.architecture", "the recipe's class, which the start event states")
    job.ignore("model.primus_config", "Primus' name of the model")
    job.ignore("model.tokenizer", "the data set holds tokens, no text")
    job.ignore("model.num_parameters", "counted from the shape")
    job.ignore("data.gradient_accumulation_steps", "derived by Megatron, and stated in the start event")
    job.ignore("parallelism.data_parallel_size", "derived by Megatron, and stated in the start event")
    job.ignore("optimizer.state_precision", "fp32; recipe.toml refuses the rest")
    job.refuse_unread()
    run.run(recipe, direct=True)


if __name__ == "__main__":
    main()
