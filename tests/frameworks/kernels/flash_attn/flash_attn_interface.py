"""FlashAttention 2's interface over torch's scaled_dot_product_attention, for sequences of one length."""

import torch.nn.functional as F


def flash_attn_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, causal=False
):
    """q, k, v: (tokens of all sequences, heads, width)."""
    sequences = len(cu_seqlens_q) - 1
    assert q.shape[0] == sequences * max_seqlen_q, "sequences of different lengths"
    q, k, v = (x.unflatten(0, (sequences, -1)).transpose(1, 2) for x in (q, k, v))
    grouped = q.shape[1] != k.shape[1]
    out = F.scaled_dot_product_attention(
        q, k, v, dropout_p=dropout_p, is_causal=causal, scale=softmax_scale, enable_gqa=grouped
    )
    return out.transpose(1, 2).flatten(0, 1)
