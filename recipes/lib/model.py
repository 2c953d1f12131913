"""transformers' models in the job's shape: built, filled, and changed as the job asks.

`build` gives parameters without storage (device meta), so that a model larger than one device can be sharded first;
`materialise` gives them storage, `initialise` or `load` values. What is in effect is noted in
`model.tprimat_effective`, which the start event takes over.
"""

import contextlib
import functools
import hashlib

import torch
import transformers
from torch.distributed.tensor import DTensor, distribute_tensor

from events import plain_name
from tprimat_callback import stop

# The job's architecture → the name in transformers, and whether Q, K and V have a bias there.
ARCHITECTURES = {
    "llama": ("Llama", False),
    "qwen2": ("Qwen2", True),
    "mistral": ("Mistral", False),
    "gpt2": ("GPT2", True),
    "qwen3": ("Qwen3", False),
    "mixtral": ("Mixtral", False),
    "qwen2_moe": ("Qwen2Moe", True),
    "qwen3_moe": ("Qwen3Moe", False),
    "deepseek_v2": ("DeepseekV2", False),
    "deepseek_v3": ("DeepseekV3", False),
    "gpt_oss": ("GptOss", True),
}
# Heads of hidden size / heads, and no other.
WITHOUT_HEAD_DIM = ("qwen2", "gpt2", "qwen2_moe")
# Latent attention: heads of qk_nope_head_dim + qk_rope_head_dim.
DEEPSEEK = ("deepseek_v2", "deepseek_v3")
# Experts are all that a layer has, of the one width that the config knows.
ONE_WIDTH = ("mixtral", "gpt_oss")


def shape_refusals(job):
    """(applies, reason) of shapes that `build` cannot make."""
    model = job["model"]
    architecture, biased, heads = model["architecture"], model["qkv_bias"], model["num_attention_heads"]
    if architecture not in ARCHITECTURES:
        return [(True, f"architecture {architecture!r}")]
    width = model["moe_intermediate_size"]
    is_wide = architecture in ONE_WIDTH and model["ffn_hidden_size"] != width
    return [
        (biased != ARCHITECTURES[architecture][1], f"{architecture} {'with' if biased else 'without'} QKV bias"),
        (architecture == "gpt2" and model["num_kv_heads"] != heads, "grouped queries in GPT-2"),
        (architecture in WITHOUT_HEAD_DIM and model["head_dim"] * heads != model["hidden_size"], "this head_dim"),
        (is_wide, f"a {architecture} with two widths: ffn_hidden_size must be moe_intermediate_size"),
        *(deepseek_refusals(model) if architecture in DEEPSEEK else []),
    ]


def deepseek_refusals(model):
    width, shared = model["moe_intermediate_size"], model["shared_expert_intermediate_size"]
    head = model["qk_nope_head_dim"] + model["qk_rope_head_dim"]
    return [
        (model["head_dim"] != head, f"a head_dim that is not qk_nope_head_dim + qk_rope_head_dim = {head}"),
        (not shared or shared % width, "a shared expert that is not some whole number of experts wide"),
        (model["num_kv_heads"] != model["num_attention_heads"], "latent attention with grouped queries"),
        (bool(model["num_nextn_predict_layers"]), "layers that predict further tokens: transformers trains none"),
    ]


def experts(m):
    """What a transformers config says of experts."""
    architecture = m["architecture"]
    if not m["num_experts"]:
        return {}
    chosen = {"num_experts_per_tok": m["num_experts_per_tok"], "output_router_logits": False}
    if architecture in ONE_WIDTH:
        return chosen | {"num_local_experts": m["num_experts"], "intermediate_size": m["moe_intermediate_size"]}
    chosen |= {"moe_intermediate_size": m["moe_intermediate_size"]}
    if architecture in DEEPSEEK:
        # A job states neither a scale of the chosen experts' weights nor groups of experts: there are none. Whether the
        # weights are divided by their sum is as in the config.json of DeepSeek's own models.
        routing = {"routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1}
        routing |= {"topk_method": "greedy"} if architecture == "deepseek_v2" else {}
        return chosen | routing | {
            "norm_topk_prob": architecture == "deepseek_v3",
            "n_routed_experts": m["num_experts"],
            "n_shared_experts": m["shared_expert_intermediate_size"] // m["moe_intermediate_size"],
            "first_k_dense_replace": m["first_k_dense_replace"],
        }
    # As in the config.json of Qwen's own models.
    chosen |= {"num_experts": m["num_experts"], "norm_topk_prob": architecture == "qwen3_moe"}
    if architecture == "qwen2_moe":
        chosen |= {"shared_expert_intermediate_size": m["shared_expert_intermediate_size"]}
    return chosen


def heads(m):
    """What a transformers config says of the width of heads, and of the tokens that they attend to."""
    architecture, window = m["architecture"], m["sliding_window"] or None
    if architecture in DEEPSEEK:
        names = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        return {"q_lora_rank": m["q_lora_rank"] or None} | {name: m[name] for name in names}
    found = {"head_dim": m["head_dim"]} if m["head_dim"] and architecture not in WITHOUT_HEAD_DIM else {}
    if architecture in ("mistral", "mixtral"):
        found["sliding_window"] = window
    if architecture == "gpt_oss":
        every = m["sliding_window_pattern"] if window else 1  # each layer of this number attends to all before it
        is_whole = [bool(every) and number % every == 0 for number in range(1, m["num_layers"] + 1)]
        kinds = ["full_attention" if whole else "sliding_attention" for whole in is_whole]
        found |= {"sliding_window": window, "layer_types": kinds}
    return found


def configure(job):
    m, length = job["model"], job["data"]["seq_length"]
    common = {
        "vocab_size": m["vocab_size"],
        "tie_word_embeddings": m["tie_embeddings"],
        "initializer_range": job["initialisation"]["std"],
        # torch's fused attention has no place for the number that GPT-OSS's heads may attend to in place of tokens.
        "attn_implementation": "eager" if m["architecture"] == "gpt_oss" else "sdpa",
        "use_cache": False,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    if m["architecture"] == "gpt2":
        return transformers.GPT2Config(
            n_layer=m["num_layers"],
            n_embd=m["hidden_size"],
            n_inner=m["ffn_hidden_size"],
            n_head=m["num_attention_heads"],
            n_positions=m["max_position_embeddings"] or length,
            layer_norm_epsilon=m["norm_eps"],
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            **common,
        )
    architecture = m["architecture"]
    if not m["rope_theta"]:
        lacks = f"positions of a {architecture} rotate, and the model states no rope_theta"
        stop(2, "launch", f"{lacks}; 10000 is what Transformers takes where a config.json states none")
    rope = {"rope_type": "default", "rope_theta": m["rope_theta"]}
    if m["rope_scaling"]:
        rope |= {"rope_type": "llama3"} | dict(m["rope_scaling"])
    sizes = {"intermediate_size": m["ffn_hidden_size"]} | experts(m) | heads(m)
    return getattr(transformers, f"{ARCHITECTURES[architecture][0]}Config")(
        num_hidden_layers=m["num_layers"],
        hidden_size=m["hidden_size"],
        num_attention_heads=m["num_attention_heads"],
        num_key_value_heads=m["num_kv_heads"],
        max_position_embeddings=m["max_position_embeddings"] or length,
        rms_norm_eps=m["norm_eps"],
        rope_parameters=rope,
        **sizes,
        **common,
    )


def compute_experts_under_autocast():
    """Grouped products heed no autocast: with weights in fp32 they would be computed in fp32 where the job says bf16."""
    from transformers.integrations import moe

    grouped = moe._grouped_mm
    if getattr(grouped, "heeds_autocast", False):
        return

    def heeding(input, weight, *args, **kwargs):
        device = input.device.type
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
            input, weight = input.to(dtype), weight.to(dtype)
        return grouped(input, weight, *args, **kwargs)

    heeding.heeds_autocast = True
    moe._grouped_mm = heeding


def construct(job):
    """The model as transformers makes it, under whatever context the caller set up; its values are to be replaced."""
    config = configure(job)
    if experts(job["model"]):
        compute_experts_under_autocast()
    suffix = "LMHeadModel" if config.model_type == "gpt2" else "ForCausalLM"
    model = getattr(transformers, ARCHITECTURES[config.model_type][0] + suffix)(config).train()
    if config.model_type in DEEPSEEK:
        for module in model.modules():  # the norms within latent attention have 1e-6, whatever the config says
            if hasattr(module, "variance_epsilon"):
                module.variance_epsilon = config.rms_norm_eps
    return model


def build(job, dtype=torch.float32):
    """The model with parameters of `dtype` on the meta device, and its buffers (RoPE's frequencies) on the CPU."""
    from accelerate import init_empty_weights

    with init_empty_weights(include_buffers=False):
        model = construct(job)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            setattr(module, name, torch.nn.Parameter(parameter.to(dtype)))
    tie(model)
    return model


def tie(model):
    if model.config.tie_word_embeddings:
        model.get_output_embeddings().weight = model.get_input_embeddings().weight


def materialise(model, device, buffers_on=None):
    """Gives parameters storage on `device`, with no values yet; buffers keep theirs, on `buffers_on` or `device`."""
    buffers = buffers_of(model)
    model.to_empty(device=device)
    put_buffers(model, buffers, buffers_on or device)
    tie(model)
    return model


def buffers_of(model):
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def put_buffers(model, buffers, device):
    """Buffers as they were, in their own precision: RoPE's frequencies in bf16 are other positions."""
    for name, buffer in buffers.items():
        owner, _, leaf = name.rpartition(".")
        model.get_submodule(owner)._buffers[leaf] = buffer.to(device)


def fill(model, tensor_of, gathered=contextlib.nullcontext):
    """Copies `tensor_of(name, parameter)`, whole tensors, into the parameters; each rank takes its own shard.

    `gathered(parameter)` is a context in which the parameter is whole, where sharding is not torch's own.
    """
    for name, parameter in model.named_parameters():
        with torch.no_grad(), gathered(parameter):
            whole = tensor_of(plain_name(name), parameter)
            if isinstance(parameter, DTensor):
                shard = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
                parameter.to_local().copy_(shard.to_local())
            else:
                parameter.copy_(whole)


def fresh(seed, std, name, shape, device):
    """The first value of a parameter: matrices normal(0, std), norms 1, biases (and what GPT-OSS calls sinks) 0.

    A function of the seed and the name alone: every trainer, however it shards, begins with the same weights on the
    same kind of device.
    """
    if name.endswith(("bias", ".sinks")):
        return torch.zeros(shape, device=device)
    if len(shape) < 2:
        return torch.ones(shape, device=device)
    key = hashlib.blake2b(f"{seed} {name}".encode(), digest_size=7).digest()
    generator = torch.Generator(device).manual_seed(int.from_bytes(key, "little"))
    return torch.empty(shape, device=device).normal_(0.0, std, generator=generator)


def initialise(model, job, device, gathered=contextlib.nullcontext):
    seed, std = job["seed"], job["initialisation"]["std"]
    fill(model, lambda name, parameter: fresh(seed, std, name, parameter.shape, device), gathered)
    note(model, initialisation="random", init_std=std)


def load(model, path, device, gathered=contextlib.nullcontext):
    """Weights from a safetensors file; every parameter must be there, and nothing else."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        there = set(file.keys())
        names = {plain_name(name) for name, _ in model.named_parameters()}
        tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
        if names - there or there - names - tied:
            missing, unexpected = sorted(names - there), sorted(there - names - tied)
            stop(2, "launch", f"{path} does not fit the model: missing {missing}, unexpected {unexpected}")
        fill(model, lambda name, _: file.get_tensor(name).to(device), gathered)
    note(model, initialisation="file")


def note(model, **effective):
    model.tprimat_effective = getattr(model, "tprimat_effective", {}) | effective


def decoder_layers(model):
    return model.transformer.h if model.config.model_type == "gpt2" else model.model.layers


def parameter_groups(model, weight_decay):
    """Weight decay is on tensors of two or more dimensions."""
    trained = [p for p in model.parameters() if p.requires_grad]
    decayed = [len(getattr(p, "ds_shape", p.shape)) >= 2 for p in trained]  # ZeRO-3 leaves an empty vector of each
    groups = [
        {"params": [p for p, yes in zip(trained, decayed) if yes], "weight_decay": weight_decay},
        {"params": [p for p, yes in zip(trained, decayed) if not yes], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def adamw(model, job, fused):
    """torch's AdamW as the job asks; its moments have the dtype of the parameters."""
    o = job["optimizer"]
    groups, betas = parameter_groups(model, o["weight_decay"]), (o["beta1"], o["beta2"])
    return torch.optim.AdamW(groups, lr=o["learning_rate"], betas=betas, eps=o["eps"], fused=fused)


def checkpoint_layers(model, job, reentrant=False):
    """Recomputes every `sac_frequency`-th decoder layer in the backward pass, if the job asks for it."""
    if not job["activation_checkpointing"]:
        return note(model, activation_checkpointing=False)
    every = job["sac_frequency"]
    # transformers 5.17 knows the older name only.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": reentrant})
    for number, layer in enumerate(decoder_layers(model)):
        layer.gradient_checkpointing = number % every == 0
    chosen = [n for n, layer in enumerate(decoder_layers(model)) if layer.gradient_checkpointing]
    steps = {b - a for a, b in zip(chosen, chosen[1:])}
    frequency = steps.pop() if len(steps) == 1 else every
    return note(model, activation_checkpointing=bool(chosen), sac_frequency=frequency)


def compile_layers(model, job):
    """torch.compile, one decoder layer at a time, in the job's mode."""
    if not job["compile"]:
        return note(model, compile=False)
    mode = job["compile_mode"] or "default"
    for layer in decoder_layers(model):
        layer.compile(mode=mode)
    return note(model, compile=True, compile_mode=mode)


def use_fp8(model, job):
    """Transformer Engine: FP8 matrix products in the decoder layers; embeddings and the head stay as they are.

    Before `materialise`. Refuses where the package is missing, or the shape does not divide.
    """
    try:
        import transformer_engine.pytorch as te
        from transformer_engine.common.recipe import DelayedScaling, Format
    except ImportError as error:
        stop(2, "launch", f"precision fp8 needs the Python module transformer_engine: {error}")
    m = job["model"]
    job.refuse(
        [
            (bool(experts(m)), "FP8: Transformer Engine's linear layers do not compute experts"),
            (m["architecture"] == "gpt2", "FP8: GPT-2's Conv1D has no counterpart in Transformer Engine"),
            (m["hidden_size"] % 16 or m["ffn_hidden_size"] % 16, "FP8 needs sizes that are multiples of 16"),
            ((job["data"]["micro_batch_size"] * job["data"]["seq_length"]) % 16, "FP8 needs 16·n tokens a batch"),
            (job["fp8_param"], "weights kept in FP8 (fp8_param)"),
        ]
    )
    hybrid = job["fp8_hybrid"]
    recipe = DelayedScaling(fp8_format=Format.HYBRID if hybrid else Format.E4M3)
    for layer in decoder_layers(model):
        for name, linear in [(n, m) for n, m in layer.named_modules() if isinstance(m, torch.nn.Linear)]:
            owner, _, leaf = name.rpartition(".")
            how = {"bias": linear.bias is not None, "params_dtype": linear.weight.dtype, "device": "meta"}
            other = te.Linear(linear.in_features, linear.out_features, **how)
            setattr(layer.get_submodule(owner), leaf, other)
        layer.forward = under_fp8(te, recipe, layer.forward)
    note(model, precision="fp8", fp8_hybrid=hybrid, fp8_param=False)


def under_fp8(te, recipe, forward):
    @functools.wraps(forward)
    def wrapped(*args, **kwargs):
        # The older name is the one that every release so far has.
        with te.fp8_autocast(enabled=True, fp8_recipe=recipe):
            return forward(*args, **kwargs)

    return wrapped
