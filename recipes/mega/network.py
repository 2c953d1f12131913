"""The job's model on megatron-core: its configuration, its layers, and the padding of its vocabulary."""

import math

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import (
    HAVE_TE,
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.tensor_parallel import param_is_not_tensor_parallel_duplicate
from megatron.core.transformer.module import param_is_not_shared
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.utils import init_method_normal

# Rows of the embedding on each tensor-parallel rank are a multiple of this, so that the head's GEMM stays aligned.
VOCAB_MULTIPLE = 64
# The only values of Llama 3's scaling that megatron-core's RotaryEmbedding has.
ROPE_SCALING = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}

if not HAVE_TE:
    moe_utils.te_general_gemm = None  # routers ask for it, and megatron-core 0.16 defines it with Transformer Engine only


class Sdpa(torch.nn.Module):
    """Causal attention by torch's fused kernels; megatron-core's own local one keeps every score in memory. The start event states this name."""

    def __init__(self, config, layer_number, attn_mask_type, attention_type, softmax_scale=None, **_):
        super().__init__()
        self.softmax_scale = softmax_scale

    def forward(self, query, key, value, attention_mask, **_):
        query, key, value = (x.permute(1, 2, 0, 3) for x in (query, key, value))  # from sequence, batch, heads, width
        grouped = query.shape[1] != key.shape[1]
        out = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=self.softmax_scale, enable_gqa=grouped
        )
        return out.permute(2, 0, 1, 3).flatten(2)


class Norm:
    """torch's norm, marked so that megatron-core sums its gradient over the sequence-parallel ranks."""

    def __new__(cls, config, hidden_size, eps=1e-5, **_):
        kind = torch.nn.RMSNorm if config.normalization == "RMSNorm" else torch.nn.LayerNorm
        norm = kind(hidden_size, eps=eps)
        for parameter in norm.parameters():
            parameter.sequence_parallel = config.sequence_parallel
        return norm


def kinds(config):
    """What a specification of layers is made for."""
    return {
        "num_experts": config.num_moe_experts,
        "moe_grouped_gemm": config.moe_grouped_gemm,
        "qk_layernorm": config.qk_layernorm,
    }


def local_layers(config):
    layer = get_gpt_layer_local_spec(normalization=config.normalization, **kinds(config))
    layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = Norm
    attention = layer.submodules.self_attention.submodules
    attention.core_attention = Sdpa
    if config.qk_layernorm:
        attention.q_layernorm = attention.k_layernorm = Norm
    return TransformerBlockSubmodules(layer_specs=[layer] * get_num_layers_to_build(config), layer_norm=Norm)


def refusals(job):
    """(applies, reason) for what megatron-core, or this use of it, cannot do."""
    model, parallel, data = job["model"], job["parallelism"], job["data"]
    tp, cp = parallel["tensor_model_parallel_size"], parallel["context_parallel_size"]
    scaling = model["rope_scaling"] or ROPE_SCALING
    odd_scaling = any(scaling[name] != value for name, value in ROPE_SCALING.items())
    is_gpt2 = model["architecture"] == "gpt2"
    known = ("llama", "qwen2", "mistral", "gpt2", "qwen3", "mixtral", "qwen3_moe")
    divided = tp * cp * parallel["pipeline_model_parallel_size"] > 1
    return [
        (model["architecture"] not in known, f"architecture {model['architecture']!r}"),
        (bool(model["num_experts"]) and divided, "experts with TP, PP or CP"),
        (bool(model["num_experts"]) and job["precision"] == "fp8", "experts in FP8"),
        (parallel["expert_model_parallel_size"] > 1 and not model["num_experts"], "EP without experts"),
        (odd_scaling, f"megatron-core scales RoPE with {ROPE_SCALING} only"),
        (tp > 1 and data["seq_length"] % tp, "sequence parallelism needs a seq_length that is a multiple of TP"),
        (cp > 1 and data["seq_length"] % (2 * cp * tp), "CP needs a seq_length that is a multiple of 2 x CP x TP"),
        (is_gpt2 and not model["qkv_bias"], "gpt2 without QKV bias"),
        (is_gpt2 and data["seq_length"] > model["max_position_embeddings"] > 0, "more tokens than learned positions"),
        (job["precision"] == "fp8" and not HAVE_TE, "FP8 needs transformer_engine, and megatron-core finds none"),
        (job["precision"] == "fp8" and job["fp8_param"], "parameters kept in FP8"),
        (cp > 1 and not HAVE_TE, "context parallelism needs transformer_engine, and megatron-core finds none"),
    ]


def configure(job):
    model, parallel = job["model"], job["parallelism"]
    tp, pp = parallel["tensor_model_parallel_size"], parallel["pipeline_model_parallel_size"]
    is_gpt2 = model["architecture"] == "gpt2"
    half = job["precision"] != "fp32"
    dtype = torch.bfloat16 if half else torch.float32
    init = init_method_normal(job["initialisation"]["std"])
    return TransformerConfig(
        num_layers=model["num_layers"],
        hidden_size=model["hidden_size"],
        ffn_hidden_size=model["ffn_hidden_size"],
        num_attention_heads=model["num_attention_heads"],
        num_query_groups=model["num_kv_heads"],
        kv_channels=model["head_dim"],
        normalization="LayerNorm" if is_gpt2 else "RMSNorm",
        layernorm_epsilon=model["norm_eps"],
        add_bias_linear=is_gpt2,
        add_qkv_bias=model["qkv_bias"],
        gated_linear_unit=not is_gpt2,
        activation_func=F.gelu if is_gpt2 else F.silu,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        init_method_std=job["initialisation"]["std"],
        init_method=init,
        output_layer_init_method=init,  # the job has one deviation for all matrices
        bf16=half,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=pp,
        context_parallel_size=parallel["context_parallel_size"],
        sequence_parallel=tp > 1,
        qk_layernorm=model["architecture"] in ("qwen3", "qwen3_moe"),
        **(experts(model, parallel) if model["num_experts"] else {}),
        deallocate_pipeline_outputs=pp > 1,
        bias_activation_fusion=True,
        bias_dropout_fusion=True,
        apply_rope_fusion=HAVE_TE,
        gradient_accumulation_fusion=False,
        cross_entropy_loss_fusion=half,  # its gradient is always bf16
        **recompute(job),
        **(fp8(job) if job["precision"] == "fp8" else {}),
    )


def experts(model, parallel):
    """Without Transformer Engine megatron-core computes one expert after the other; no loss balances them, as elsewhere."""
    return {
        "num_moe_experts": model["num_experts"],
        "moe_router_topk": model["num_experts_per_tok"],
        "moe_ffn_hidden_size": model["moe_intermediate_size"],
        "moe_router_load_balancing_type": "none",
        "moe_token_dispatcher_type": "alltoall",
        "moe_grouped_gemm": HAVE_TE,
        "expert_model_parallel_size": parallel["expert_model_parallel_size"],
    }


def experts_in_effect(network, config):
    if not config.num_moe_experts:
        return {}
    return {
        "num_experts": config.num_moe_experts,
        "num_experts_per_tok": config.moe_router_topk,
        "moe_intermediate_size": config.moe_ffn_hidden_size,
        "expert_model_parallel_size": parallel_state.get_expert_model_parallel_world_size(),
        "mlp": type(network.decoder.layers[0].mlp.experts).__name__,
    }


def fp8(job):
    """Transformer Engine's own default of delayed scaling, as in all recipes; megatron-core's looks one step back."""
    scaling = {"fp8_recipe": "delayed", "fp8_amax_history_len": 1024, "fp8_amax_compute_algo": "max"}
    return {"fp8": "hybrid" if job["fp8_hybrid"] else "e4m3"} | scaling


def recompute(job):
    """Whole layers. One in k of them: megatron-core takes as many, but the first ones of each stage."""
    if not job["activation_checkpointing"]:
        return {}
    if job["sac_frequency"] == 1:
        return {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    layers = job["model"]["num_layers"] // job["parallelism"]["pipeline_model_parallel_size"]
    return {
        "recompute_granularity": "full",
        "recompute_method": "block",
        "recompute_num_layers": -(-layers // job["sac_frequency"]),
    }


def recompute_in_effect(config):
    if config.recompute_granularity is None:
        return {"activation_checkpointing": False}
    layers = get_num_layers_to_build(config)
    count = layers if config.recompute_method == "uniform" else config.recompute_num_layers
    frequency = {"sac_frequency": layers // count} if layers % count == 0 else {}
    extent = f"the first {count} of {layers} layers of a stage"
    return {"activation_checkpointing": True, "recompute": extent} | frequency


def build(job, config):
    """This rank's stage of the model, on its device and in the config's dtype."""
    model = job["model"]
    is_gpt2 = model["architecture"] == "gpt2"
    multiple = VOCAB_MULTIPLE * config.tensor_model_parallel_size
    padded = -(-model["vocab_size"] // multiple) * multiple
    scaling = dict(model["rope_scaling"] or {})
    if is_gpt2:
        positions = {"position_embedding_type": "learned_absolute"}
    else:
        positions = {"position_embedding_type": "rope", "rotary_base": model["rope_theta"]}
    if scaling and not is_gpt2:
        positions |= {"rope_scaling": True, "rope_scaling_factor": scaling["factor"]}
    network = GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_with_transformer_engine_spec(**kinds(config)) if HAVE_TE else local_layers(config),
        vocab_size=padded,
        max_sequence_length=model["max_position_embeddings"] or job["data"]["seq_length"],
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=model["tie_embeddings"],
        **positions,
    )
    return network.to(device=torch.cuda.current_device(), dtype=config.params_dtype)


def rope_in_effect(network, config):
    """Base and scaling as the frequencies show them; nothing without RoPE, no factor where the slowest would be kept."""
    if network.position_embedding_type != "rope":
        return {}
    width, base = config.kv_channels, network.rotary_base
    slowest, found = base ** (2 / width - 1), network.rotary_pos_emb.inv_freq[-1].item()
    ratio = round(slowest / found, 3)
    wavelength = 2 * math.pi / slowest
    is_scaled = wavelength > ROPE_SCALING["original_max_position_embeddings"] / ROPE_SCALING["low_freq_factor"]
    return {"rope_theta": base} | ({"rope_scaling_factor": ratio} if is_scaled else {})


def padding(network, model):
    """Parameters of the rows that no token uses."""
    return (network.vocab_size - model["vocab_size"]) * model["hidden_size"] * (1 if model["tie_embeddings"] else 2)


def count_parameters(network):
    """Parameters of the whole model, padding included; each once, however many ranks hold it."""
    once = (p for p in network.parameters() if param_is_not_shared(p) and param_is_not_tensor_parallel_duplicate(p))
    own = [0, 0]
    for p in once:
        own[not getattr(p, "allreduce", True)] += p.numel()  # experts are those that data parallelism does not sum
    everywhere, experts = (torch.tensor([n], device=torch.cuda.current_device()) for n in own)
    torch.distributed.all_reduce(everywhere, group=parallel_state.get_model_parallel_group())
    torch.distributed.all_reduce(experts, group=parallel_state.get_expert_model_parallel_group())
    return int(everywhere + experts)
