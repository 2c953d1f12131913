//! The sizes that all formulas share, as floating-point counts: no product of them can overflow.

use tprimat_job::{Job, architecture, count_parameters};

#[derive(Clone, Debug)]
pub(super) struct Sizes {
    /// Tokens that one forward pass sees on one rank.
    pub tokens: f64,
    pub hidden: f64,
    /// Heads × head dimension: of queries, and of what attention gives.
    pub q: f64,
    /// Key-value heads × head dimension.
    pub kv: f64,
    /// Width inside what a token passes through: the feed-forward block, or its experts together; the
    /// mean over layers, as what follows.
    pub ffn: f64,
    /// Parameters of the experts of one layer.
    pub experts: f64,
    /// Bytes a token that a layer keeps besides, for norms of Q and K and the way to its experts.
    pub besides: f64,
    pub heads: f64,
    pub layers: f64,
    pub vocab: f64,
    /// All parameters.
    pub parameters: f64,
    /// V × h: parameters of the embedding, and of the head.
    pub embedding: f64,
    pub is_tied: bool,
    pub dp: f64,
    pub tp: f64,
    pub pp: f64,
    pub cp: f64,
    /// Micro-steps of an optimiser step.
    pub micro_steps: f64,
    /// Layers that are recomputed on the way back.
    pub recomputed: f64,
}

impl Sizes {
    /// None where a size is missing.
    pub fn of(job: &Job) -> Option<Self> {
        let (m, p, d) = (&job.model, &job.parallelism, &job.data);
        let degrees = [
            p.tensor_model_parallel_size,
            p.pipeline_model_parallel_size,
            p.context_parallel_size,
            p.data_parallel_size,
        ];
        let batch = [
            d.micro_batch_size,
            d.seq_length,
            d.gradient_accumulation_steps,
        ];
        if degrees.contains(&0) || batch.contains(&0) {
            return None;
        }
        let [tp, pp, cp, dp] = degrees.map(|n| n as f64);
        let [micro_batch, length, micro_steps] = batch.map(|n| n as f64);
        let every = job.sac_frequency.max(1);
        let known = architecture(&m.architecture)?;
        let hidden = m.hidden_size as f64;
        let is_latent = known.has_latent_attention();
        let [q, kv] = if is_latent {
            // Queries and keys are wider than values and outputs: half of both. Each head has keys
            // and values of its own.
            let widths = m.qk_nope_head_dim + m.qk_rope_head_dim + m.v_head_dim;
            [m.num_attention_heads as f64 * widths as f64 / 2.0; 2]
        } else {
            [m.num_attention_heads, m.num_kv_heads].map(|n| n as f64 * m.head_dim as f64)
        };
        let [experts, chosen] = [m.num_experts, m.num_experts_per_tok].map(|n| n as f64);
        let width = m.moe_intermediate_size as f64;
        // Fp32 copy, bf16 product and output of a norm; a copy of a token on its way to each expert
        // and back; the router's logits and their softmax in fp32.
        let normed = match (is_latent, known.has_qk_norm) {
            (true, _) => (m.q_lora_rank + m.kv_lora_rank) as f64,
            (_, true) => q + kv,
            _ => 0.0,
        };
        let mixed = if known.has_experts() {
            1.0 - m.first_k_dense_replace as f64 / m.num_layers as f64
        } else {
            0.0
        };
        let routed = 4.0 * chosen * hidden + 8.0 * experts;
        let mixed_ffn = chosen * width + m.shared_expert_intermediate_size as f64;
        Some(Self {
            tokens: micro_batch * length / cp,
            hidden,
            q,
            kv,
            ffn: mixed * mixed_ffn + (1.0 - mixed) * m.ffn_hidden_size as f64,
            experts: mixed * experts * 3.0 * hidden * width,
            besides: 8.0 * normed + mixed * routed,
            heads: m.num_attention_heads as f64,
            layers: m.num_layers as f64,
            vocab: m.vocab_size as f64,
            parameters: count_parameters(m)? as f64,
            embedding: m.vocab_size as f64 * m.hidden_size as f64,
            is_tied: m.tie_embeddings,
            dp,
            tp,
            pp,
            cp,
            micro_steps,
            recomputed: if job.activation_checkpointing {
                m.num_layers.div_ceil(every) as f64
            } else {
                0.0
            },
        })
    }

    /// Parameters of the embedding and, where it is a matrix of its own, the head.
    pub fn ends(&self) -> f64 {
        if self.is_tied {
            self.embedding
        } else {
            2.0 * self.embedding
        }
    }

    /// Parameters of one decoder layer.
    pub fn layer_parameters(&self) -> f64 {
        (self.parameters - self.ends() - self.hidden) / self.layers
    }

    /// Logits of one micro-batch.
    pub fn logits(&self) -> f64 {
        self.tokens * self.vocab
    }

    /// Bytes that all layers keep from the forward pass, and those that one layer alone keeps while
    /// it runs: `kept` and `input` are bytes a token of a whole layer, and of the input that a
    /// recomputed one keeps in its place.
    pub fn activations(&self, kept: f64, input: f64) -> (f64, f64) {
        // The attention kernel's log-sum-exp, fp32, one a head and token; two fp32 scales a token
        // of the norms.
        let layer = kept + self.besides / self.tp + 4.0 * self.heads / self.tp + 8.0;
        let all = (self.layers - self.recomputed) * layer + self.recomputed * input;
        (self.tokens * all, self.tokens * layer)
    }

    /// Gradients that live while an MLP runs backward: of the product, of the gate and of its other
    /// factor, bf16.
    pub fn working(&self) -> f64 {
        6.0 * self.tokens * self.ffn / self.tp
    }
}
