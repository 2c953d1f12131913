"""A mock of NeMo 2 and of what it stands on: refuses arguments that the real classes do not have, records those it gets.

    mock_nemo.py PROGRAM     runs PROGRAM against the mock; $MOCK_RECORD gets every argument as JSON

Its trainer computes no network. What it does as NeMo 2.3.2 and 2.4.0 do, in which file of theirs:
- n counts from 0, the warm-up is (n + 1) / (warmup_steps + 1), the cosine runs from warmup_steps to max_steps, after
  which the rate is min_lr (nemo/core/optim/lr_scheduler.py, WarmupAnnealHoldPolicy and CosineAnnealing);
- `setup` of the strategy overwrites the schedule's max_steps with the trainer's, after the callbacks' own `setup`; then the
  schedule makes its scheduler (nemo/lightning/pytorch/strategies/megatron_strategy.py, `setup`);
- a configuration refuses to read a default that is made by a factory, with a ValueError (fiddle/_src/config.py); Mistral's
  window_size has one (nemo/collections/llm/gpt/model/mistral.py, MistralConfig7B);
- Qwen's and Mistral's configurations fuse neither RoPE nor activations by themselves; Llama's do (gpt/model/llama.py).
"""

import inspect
import json
import math
import os
import runpy
import sys
import types


def module(name, **members):
    made = types.ModuleType(name)
    made.__dict__.update(members)
    sys.modules[name] = made
    parent, _, child = name.rpartition(".")
    if parent:
        if parent not in sys.modules:
            module(parent)
        setattr(sys.modules[parent], child, made)
    return made


def class_of(name, /, *bases, **fields):
    """A class whose constructor takes exactly `fields`, with their defaults; Ellipsis: required."""
    parameters = [
        inspect.Parameter(f, inspect.Parameter.KEYWORD_ONLY, default=inspect.Parameter.empty if d is ... else d)
        for f, d in fields.items()
    ]
    signature = inspect.Signature(parameters)

    def initialise(self, **given):
        bound = signature.bind(**given)
        bound.apply_defaults()
        made = {n: v() if callable(v) and v is fields[n] else v for n, v in bound.arguments.items()}
        self.__dict__.update(made)

    made = type(name, bases or (object,), {"__init__": initialise, "fields": fields})
    return made


class Config:
    """As nemo_run's: attributes are arguments of the class, and no others can be set."""

    def __init__(self, what, /, **given):
        object.__setattr__(self, "what", what)
        object.__setattr__(self, "given", {})
        for name, value in given.items():
            setattr(self, name, value)

    def known(self):
        fields = getattr(self.what, "fields", None)
        return fields if fields is not None else {p: ... for p in inspect.signature(self.what).parameters}

    def __getattr__(self, name):
        if name in self.given:
            return self.given[name]
        default = self.known().get(name, ...)
        if callable(default):
            raise ValueError(f"Can't get default value for dataclass field {name} since it uses a default_factory.")
        if default is not ...:
            return default
        raise AttributeError(f"{self.what.__name__} has no {name}")

    def __setattr__(self, name, value):
        if name not in self.known():
            raise AttributeError(f"no parameter named {name!r} exists for {self.what.__name__}")
        self.given[name] = value


def build(value):
    if isinstance(value, Config):
        return value.what(**{name: build(v) for name, v in value.given.items()})
    if isinstance(value, list):
        return [build(v) for v in value]
    return value


def record(value):
    if isinstance(value, Config):
        return {"class": value.what.__name__} | {name: record(v) for name, v in value.given.items()}
    if isinstance(value, list):
        return [record(v) for v in value]
    return value if isinstance(value, (int, float, str, bool, type(None))) else f"{type(value).__name__}: {value}"


def run(recipe, direct=False):
    assert direct, "under torchrun a recipe runs in this process"
    with open(os.environ["MOCK_RECORD"], "w") as file:
        json.dump(record(recipe), file)
    build(recipe)


module("nemo_run", Config=Config, Partial=Config, run=run)

Callback = type("Callback", (), {n: lambda self, *_: None for n in ("setup", "on_train_start", "on_train_end")})
module("lightning.pytorch", Callback=Callback)
module("megatron.core.models.gpt.gpt_layer_specs", get_gpt_layer_local_spec=lambda normalization: f"local {normalization}")
module("megatron.core.optimizer.distrib_optimizer")
module("nemo.collections.llm.gpt.model.base", HAVE_TE="MOCK_NO_TE" not in os.environ)
module("megatron.core.tensor_parallel", model_parallel_cuda_manual_seed=lambda seed: None)
ddp_fields = dict.fromkeys(("grad_reduce_in_fp32", "overlap_grad_reduce", "overlap_param_gather"), False)
ddp_fields |= {"use_distributed_optimizer": False, "check_for_nan_in_grad": False, "average_in_collective": False}
DDP = class_of("DistributedDataParallelConfig", **ddp_fields)
module("megatron.core.distributed", DistributedDataParallelConfig=DDP)
optimizer_fields = {"optimizer": "adam", "lr": None, "weight_decay": 0.01, "bf16": False, "fp16": False}
optimizer_fields |= {"adam_beta1": 0.9, "adam_beta2": 0.999, "adam_eps": 1e-8, "clip_grad": 1.0}
OptimizerConfig = class_of("OptimizerConfig", **optimizer_fields, use_distributed_optimizer=False)

NullTokenizer = class_of("NullTokenizer", vocab_size=...)
module("nemo.collections.common.tokenizers.null_tokenizer", NullTokenizer=NullTokenizer)


class Dtypes:
    def __init__(self, plugin):
        self.bf16, self.fp8, self.fp8_param_gather = plugin.precision == "bf16-mixed", plugin.fp8, plugin.fp8_param_gather
        self.fp8_recipe, self.fp8_amax_history_len = plugin.fp8_recipe, plugin.fp8_amax_history_len
        self.fp8_amax_compute_algo = plugin.fp8_amax_compute_algo


precision_fields = {"precision": ..., "params_dtype": None, "pipeline_dtype": None, "autocast_enabled": False}
precision_fields |= {"grad_reduce_in_fp32": True, "fp8": None, "fp8_recipe": "delayed", "fp8_amax_history_len": 1}
precision_fields |= {"fp8_amax_compute_algo": "most_recent", "fp8_param_gather": False, "fp8_margin": 0}
Precision = class_of("MegatronMixedPrecision", **precision_fields)
module("nemo.lightning.pytorch.plugins.mixed_precision", MegatronMixedPrecision=Precision)

strategy_fields = {"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1, "pipeline_dtype": None}
strategy_fields |= {"virtual_pipeline_model_parallel_size": None, "context_parallel_size": 1, "ddp": "megatron"}
strategy_fields |= {"sequence_parallel": False, "gradient_as_bucket_view": False}
Strategy = class_of("MegatronStrategy", **strategy_fields)
trainer_fields = {"accelerator": "auto", "accumulate_grad_batches": 1, "callbacks": None, "devices": "auto"}
trainer_fields |= {"limit_test_batches": 1.0, "limit_val_batches": 1.0, "log_every_n_steps": 50, "max_steps": -1}
trainer_fields |= {"num_nodes": 1, "plugins": None, "strategy": "auto", "val_check_interval": 1.0}
Trainer = class_of("Trainer", **trainer_fields, use_distributed_sampler=True, enable_checkpointing=None)

schedule_fields = {"max_steps": 10, "warmup_steps": 750, "constant_steps": 80000, "min_lr": 6e-5}
Schedule = class_of("CosineAnnealingScheduler", **schedule_fields)
Schedule.scheduler = lambda self, model, optimizer: CosineAnnealing(self)
module("nemo.lightning.pytorch.optim", CosineAnnealingScheduler=Schedule)


class CosineAnnealing:
    def __init__(self, schedule):
        self.warmup_steps, self.max_steps, self.min_lr = schedule.warmup_steps, schedule.max_steps, schedule.min_lr
        assert schedule.constant_steps == 0

    def rate(self, n, high):
        if self.warmup_steps > 0 and n <= self.warmup_steps:
            return high * (n + 1) / (self.warmup_steps + 1)
        if n > self.max_steps:
            return self.min_lr
        done = (n - self.warmup_steps) / (self.max_steps - self.warmup_steps)
        return self.min_lr + (high - self.min_lr) * (1 + math.cos(math.pi * done)) / 2


Optimizer = class_of("MegatronOptimizerModule", config=..., lr_scheduler=None)

data_fields = {"seq_length": 2048, "micro_batch_size": 4, "global_batch_size": 8, "tokenizer": None, "num_workers": 8}
MockData = class_of("MockDataModule", **data_fields, num_train_samples=10_000_000)
real_fields = {"paths": ..., "seed": 1234, "split": "900,50,50", "index_mapping_dir": None}
RealData = class_of("PreTrainingDataModule", **data_fields, **real_fields)
module("nemo.collections.llm.gpt.data.mock", MockDataModule=MockData)
module("nemo.collections.llm.gpt.data.pre_training", PreTrainingDataModule=RealData)

config_fields = {"num_layers": 1, "hidden_size": 1, "ffn_hidden_size": 1, "num_attention_heads": 1, "seq_length": 8192}
config_fields |= {"num_query_groups": 1, "kv_channels": None, "vocab_size": None, "init_method_std": 0.01}
config_fields |= {"share_embeddings_and_output_weights": False, "add_qkv_bias": False, "layernorm_epsilon": 1e-5}
config_fields |= {"rotary_base": 10000, "hidden_dropout": 0.1, "attention_dropout": 0.1, "recompute_method": None}
config_fields |= {"recompute_granularity": None, "recompute_num_layers": None}
config_fields |= {"transformer_layer_spec": None, "masked_softmax_fusion": True, "persist_layer_norm": True}
config_fields |= {"normalization": "RMSNorm"}
config_fields |= {"apply_rope_fusion": False, "bias_activation_fusion": False}
fused = {"apply_rope_fusion": True, "bias_activation_fusion": True}
scaling = {"scale_factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "old_context_len": 8192}
LlamaConfig = class_of("Llama31Config8B", **(config_fields | fused), **scaling)
QwenConfig = class_of("Qwen25Config7B", **config_fields)
MistralConfig = class_of("MistralConfig7B", **config_fields, window_size=lambda: [4096, 0])
MODELS = {
    "llama31_8b": ("LlamaModel", LlamaConfig),
    "llama32_1b": ("LlamaModel", LlamaConfig),
    "qwen25_7b": ("Qwen2Model", QwenConfig),
    "mistral_7b": ("MistralModel", MistralConfig),
}
log_fields = {"ckpt": None, "tensorboard": None, "wandb": None, "log_dir": None, "name": None}
Logger = class_of("NeMoLogger", **log_fields)
Resume = class_of("AutoResume", resume_if_exists=True)


def pretrain(model, data, trainer, log, optim, resume):
    assert trainer.enable_checkpointing is False and log.ckpt is None and resume is None, "nothing is written or resumed"
    world = trainer.devices * trainer.num_nodes
    assert world == int(os.environ.get("WORLD_SIZE", world))
    sampler = {"micro_batch_size": data.micro_batch_size, "global_batch_size": data.global_batch_size}
    data.data_sampler = types.SimpleNamespace(seq_len=data.seq_length, **sampler)
    data.tokenizer.vocab_size += 1  # the real one adds the end of document
    trainer.datamodule, trainer.world_size, trainer.global_step = data, world, 0
    trainer.precision_plugin = types.SimpleNamespace(dtype_config=Dtypes(trainer.plugins))
    group = {"lr": 0.0, "weight_decay": optim.config.weight_decay}
    trainer.optimizers = [types.SimpleNamespace(param_groups=[group])]
    model.optim, model.parameters = optim, lambda: []
    ours = trainer.callbacks[-1]
    ours.setup(trainer, model, "fit")
    optim.lr_scheduler.max_steps = trainer.max_steps
    print(f"Copying Trainer's 'max_steps' ({trainer.max_steps}) to LR scheduler's 'max_steps'.")
    scheduler = optim.lr_scheduler.scheduler(model, None)
    ours.on_train_start(trainer, model)
    for n in range(trainer.max_steps):
        group["lr"] = scheduler.rate(n, optim.config.lr)
        ours.on_train_batch_start(trainer, model, None, n)
        trainer.global_step = n + 1
        trainer.callback_metrics = {"reduced_train_loss": 11.0 - 0.1 * n, "grad_norm": 1.5}
        print(f"Training epoch 0, iteration {n}/{trainer.max_steps - 1} | lr: {group['lr']:.4} | global_step: {n}")
        ours.on_train_batch_end(trainer, model, None, None, n)
    ours.on_train_end(trainer, model)


def recipe(kind, config):
    def pretrain_recipe(dir=None, name="default", num_nodes=1, num_gpus_per_node=8):
        model = class_of(kind, config=...)
        return Config(
            pretrain,
            model=Config(model, config=Config(config)),
            trainer=Config(
                Trainer,
                callbacks=[Config(Callback)],
                devices=num_gpus_per_node,
                num_nodes=num_nodes,
                max_steps=1168251,
                strategy=Config(Strategy, context_parallel_size=2),
            ),
            data=Config(MockData, seq_length=8192, global_batch_size=512, micro_batch_size=1),
            log=Config(Logger, ckpt="keep", log_dir=dir, name=name),
            optim=Config(Optimizer, config=Config(OptimizerConfig, lr=3e-4), lr_scheduler=Config(Schedule)),
            resume=Config(Resume),
        )

    return types.SimpleNamespace(pretrain_recipe=pretrain_recipe)


module("nemo.collections.llm").__dict__.update({name: recipe(*of) for name, of in MODELS.items()})

if __name__ == "__main__":
    program = sys.argv[1]
    sys.argv = sys.argv[1:]
    sys.path.insert(0, os.path.dirname(program))
    runpy.run_path(program, run_name="__main__")
