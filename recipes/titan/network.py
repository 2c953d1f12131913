"""The job's model in torchtitan's llama3, qwen3 or deepseek_v3 family, and the parts of its train spec that the job decides."""

import itertools
from dataclasses import dataclass

import torch
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.loss import IGNORE_INDEX, build_cross_entropy_loss
from torchtitan.components.lr_scheduler import LRSchedulersContainer
from torchtitan.components.optimizer import OptimizersContainer
from torchtitan.config import TORCH_DTYPE_MAP
from torchtitan.distributed.activation_checkpoint import apply_ac
from torchtitan.distributed.pipeline_parallel import pipeline_llm
from torchtitan.models.deepseek_v3 import DeepSeekV3Model, DeepSeekV3ModelArgs, parallelize_deepseekv3
from torchtitan.models.deepseek_v3.model.model import precompute_freqs_cis
from torchtitan.models.llama3 import Transformer, TransformerModelArgs, parallelize_llama
from torchtitan.models.llama3.infra import parallelize as llama_parallelize
from torchtitan.models.llama3.model.args import RoPEScalingArgs
from torchtitan.models.moe import MoE, MoEArgs
from torchtitan.models.qwen3 import Qwen3Model, Qwen3ModelArgs, parallelize_qwen3
from torchtitan.protocols.train_spec import TrainSpec

from workload import LearningRate, micro_batch, open_dataset


class CountsTiedHead:
    def get_nparams_and_flops(self, model, seq_len):
        count, flops = super().get_nparams_and_flops(model, seq_len)
        if self.tie_embeddings:  # torchtitan leaves the embedding out of its FLOPs, but here the head multiplies by it
            flops += 6 * model.tok_embeddings.weight.numel()
        return count, flops


@dataclass
class ModelArgs(CountsTiedHead, TransformerModelArgs):
    tie_embeddings: bool = False
    init_std: float = 0.02


@dataclass
class Qwen3Args(CountsTiedHead, Qwen3ModelArgs):
    tie_embeddings: bool = False
    init_std: float = 0.02


@dataclass
class DeepSeekArgs(CountsTiedHead, DeepSeekV3ModelArgs):
    tie_embeddings: bool = False
    init_std: float = 0.02


class Beginning:
    """Tied embeddings where the job has them, and first weights as the job says."""

    def __init__(self, model_args):
        super().__init__(model_args)
        self.tie()

    def tie(self):
        if self.model_args.tie_embeddings:
            self.output.weight = self.tok_embeddings.weight

    def begin(self):
        self.tie()  # leaving the meta device has made two of them
        for parameter in self.parameters():
            if parameter.ndim < 2:
                torch.nn.init.ones_(parameter)  # norms: these families have no biases
            else:
                torch.nn.init.normal_(parameter, std=self.model_args.init_std)
        for module in self.modules():
            if isinstance(module, MoE):
                module.tokens_per_expert.zero_()  # a count, which leaving the meta device has left undefined


class Network(Beginning, Transformer):
    def init_weights(self, buffer_device=None):
        with torch.device(buffer_device or self.freqs_cis.device):
            self.freqs_cis = self._precompute_freqs_cis()
        self.begin()


class Qwen3Network(Beginning, Qwen3Model):
    def init_weights(self, buffer_device=None):
        with torch.device(buffer_device or self.rope_cache.device):
            self.rope_cache = self._precompute_rope_cache()
        self.begin()


class DeepSeekNetwork(Beginning, DeepSeekV3Model):
    def __init__(self, model_args):
        super().__init__(model_args)
        self.norm.eps = model_args.norm_eps  # torchtitan gives the last norm none, and torch then takes the dtype's

    def init_weights(self, buffer_device=None):
        with torch.device(buffer_device or self.freqs_cis.device):
            self.freqs_cis = precompute_freqs_cis(self.model_args)
        self.begin()


def is_qwen3(job):
    return job["model"]["architecture"] in ("qwen3", "qwen3_moe")


def is_deepseek(job):
    return job["model"]["architecture"] in ("deepseek_v2", "deepseek_v3")


def experts(job):
    """Routers without a loss or a bias that balances, without groups of experts and with a scale of 1: what the job's other
    trainers compute. What they do with scores is as in the config.json of the architecture's own models."""
    model = job["model"]
    if not model["num_experts"]:
        return {}
    architecture = model["architecture"]
    routed = MoEArgs(
        num_experts=model["num_experts"],
        num_shared_experts=model["shared_expert_intermediate_size"] // model["moe_intermediate_size"],
        top_k=model["num_experts_per_tok"],
        score_func="sigmoid" if architecture == "deepseek_v3" else "softmax",
        route_norm=architecture != "deepseek_v2",
        route_scale=1.0,
        score_before_experts=False,
        use_grouped_mm=job["precision"] != "fp32",  # it always computes in bf16
        load_balance_coeff=None,
    )
    return {"moe_inter_dim": model["moe_intermediate_size"], "moe_args": routed}


def qwen3_args(job):
    model = job["model"]
    return Qwen3Args(
        **experts(job),
        moe_enabled=bool(model["num_experts"]),
        dim=model["hidden_size"],
        n_layers=model["num_layers"],
        n_heads=model["num_attention_heads"],
        n_kv_heads=model["num_kv_heads"],
        vocab_size=model["vocab_size"],
        head_dim=model["head_dim"],
        hidden_dim=model["ffn_hidden_size"],
        norm_eps=model["norm_eps"],
        rope_theta=model["rope_theta"],
        max_seq_len=job["data"]["seq_length"],
        tie_embeddings=model["tie_embeddings"],
        init_std=job["initialisation"]["std"],
    )


def deepseek_args(job):
    model, length = job["model"], job["data"]["seq_length"]
    return DeepSeekArgs(
        **experts(job),
        dim=model["hidden_size"],
        inter_dim=model["ffn_hidden_size"],
        n_layers=model["num_layers"],
        n_dense_layers=model["first_k_dense_replace"],
        n_heads=model["num_attention_heads"],
        vocab_size=model["vocab_size"],
        q_lora_rank=model["q_lora_rank"],
        kv_lora_rank=model["kv_lora_rank"],
        qk_nope_head_dim=model["qk_nope_head_dim"],
        qk_rope_head_dim=model["qk_rope_head_dim"],
        v_head_dim=model["v_head_dim"],
        norm_eps=model["norm_eps"],
        rope_theta=model["rope_theta"],
        rope_factor=1.0,
        original_seq_len=length,  # longer sequences than this would get YaRN's frequencies and its scale of scores
        max_seq_len=length,
        tie_embeddings=model["tie_embeddings"],
        init_std=job["initialisation"]["std"],
    )


def llama_args(job):
    model = job["model"]
    width, rope = model["hidden_size"], model["rope_scaling"]
    scaling = {"scaling_factor": rope["factor"]} if rope else {"scaling_factor": 1.0}  # 1 = frequencies as they are
    if rope:
        scaling |= {name: rope[name] for name in ("low_freq_factor", "high_freq_factor")}
        scaling["original_max_position_embeddings"] = rope["original_max_position_embeddings"]
    return ModelArgs(
        dim=width,
        n_layers=model["num_layers"],
        n_heads=model["num_attention_heads"],
        n_kv_heads=model["num_kv_heads"],
        vocab_size=model["vocab_size"],
        # torchtitan derives the hidden size from the width; half a unit more, so that rounding down hits it.
        multiple_of=1,
        ffn_dim_multiplier=(model["ffn_hidden_size"] + 0.5) / int(2 * 4 * width / 3),
        norm_eps=model["norm_eps"],
        rope_theta=model["rope_theta"],
        rope_scaling_args=RoPEScalingArgs(**scaling),
        max_seq_len=job["data"]["seq_length"],
        tie_embeddings=model["tie_embeddings"],
        init_std=job["initialisation"]["std"],
    )


FAMILIES = {
    Network: (llama_args, parallelize_llama),
    Qwen3Network: (qwen3_args, parallelize_qwen3),
    DeepSeekNetwork: (deepseek_args, parallelize_deepseekv3),
}


def family(job):
    return Qwen3Network if is_qwen3(job) else DeepSeekNetwork if is_deepseek(job) else Network


def parallelize(model, parallel_dims, job_config):
    """As torchtitan does it; a tied weight must be in one FSDP group, which its own function would put into two."""
    if not (model.model_args.tie_embeddings and parallel_dims.fsdp_enabled):
        _, own = FAMILIES[type(model)]
        return own(model, parallel_dims, job_config)
    compiles = job_config.compile.enable and "model" in job_config.compile.components
    if job_config.activation_checkpoint.mode != "none":
        apply_ac(model, job_config.activation_checkpoint, model_compile_enabled=compiles)
    if compiles:
        llama_parallelize.apply_compile(model, job_config.compile)
    training = job_config.training
    policy = MixedPrecisionPolicy(
        param_dtype=TORCH_DTYPE_MAP[training.mixed_precision_param],
        reduce_dtype=TORCH_DTYPE_MAP[training.mixed_precision_reduce],
    )
    options = {"mesh": parallel_dims.get_mesh(["fsdp"]), "mp_policy": policy}
    if training.enable_cpu_offload:
        options["offload_policy"] = CPUOffloadPolicy()
    for layer in model.layers.values():
        reshards = job_config.parallelism.fsdp_reshard_after_forward != "never"
        fully_shard(layer, **options, reshard_after_forward=reshards)
    fully_shard(model, **options)  # embedding, last norm and head
    llama_parallelize.disable_fsdp_gradient_division(model)
    return model


class Batches(BaseDataLoader):
    """The job's sequences; the last token of each has no next one to predict."""

    def __init__(self, job, replica, replicas, rows):
        self.dataset, self.rows, self.place = open_dataset(job), rows, (replica, replicas)

    def __iter__(self):
        for number in itertools.count():
            tokens = micro_batch(self.dataset, number, self.rows, *self.place)["input_ids"]
            labels = tokens.roll(-1, dims=1)
            labels[:, -1] = IGNORE_INDEX
            yield {"input": tokens}, labels

    def state_dict(self):
        return {}

    def load_state_dict(self, state_dict):
        pass


class DecayOnMatrices(OptimizersContainer):
    """torchtitan's optimizers, but weight decay is on tensors of two or more dimensions only."""

    def __init__(self, model_parts, optimizer_class, settings):
        def build(parameters, **settings):
            groups = [
                {"params": [p for p in parameters if p.ndim >= 2]},
                {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
            ]
            return optimizer_class([group for group in groups if group["params"]], **settings)

        super().__init__(model_parts, build, settings)


def build_optimizers(model_parts, config, parallel_dims):
    settings = {
        "lr": config.lr,
        "betas": (config.beta1, config.beta2),
        "eps": config.eps,
        "weight_decay": config.weight_decay,
        "fused": config.implementation == "fused",
    }
    return DecayOnMatrices(model_parts, getattr(torch.optim, config.name), settings)


def pipeline(model, parallel_dims, job_config, device, args, parallelize_fn, loss_fn):
    """As torchtitan does it; there the gradient is that of the sum over all tokens, and clipping always bites."""
    training = job_config.training
    tokens = training.global_batch_size * (training.seq_len - 1)

    def mean_gradient(predictions, labels):
        total = loss_fn(predictions, labels)
        mean = total / tokens
        return mean + (total - mean).detach()  # the value that torchtitan divides when it logs

    return pipeline_llm(model, parallel_dims, job_config, device, args, parallelize_fn, mean_gradient)


def train_spec(job):
    rates, network = LearningRate(job), family(job)  # torchtitan's own cosine is one step behind the job's
    model_args, _ = FAMILIES[network]
    return TrainSpec(
        model_cls=network,
        model_args={"job": model_args(job)},
        parallelize_fn=parallelize,
        pipelining_fn=pipeline,
        build_optimizers_fn=build_optimizers,
        build_lr_schedulers_fn=lambda optimizers, config, steps: LRSchedulersContainer(optimizers, rates.factor),
        build_dataloader_fn=lambda dp_world_size, dp_rank, tokenizer, job_config: Batches(
            job, dp_rank, dp_world_size, job_config.training.local_batch_size
        ),
        build_tokenizer_fn=None,
        build_loss_fn=build_cross_entropy_loss,
    )
