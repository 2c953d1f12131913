// -- gradient norm and AdamW --------------------------------------------------------------------------------------

template <typename T>
INLINE void squares(const T* gradients, float* partial, i64 count) {
    constexpr int SIZE = Unit<T>::SIZE;
    float sum = 0;
#pragma unroll 4
    for (i64 i = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * SIZE; i < count;
         i += (i64)gridDim.x * blockDim.x * SIZE) {
        float v[SIZE];
        load(gradients + i, v);
        for (int k = 0; k < SIZE; k += 4) sum += (v[k] * v[k] + v[k + 1] * v[k + 1]) + (v[k + 2] * v[k + 2] + v[k + 3] * v[k + 3]);
    }
    sum = over_block<true>(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

// A sum of squares per block; `count` is a multiple of 8.
KERNEL(512) squares_fp32(const float* gradients, float* partial, i64 count) { squares(gradients, partial, count); }
KERNEL(512) squares_bf16(const bf16* gradients, float* partial, i64 count) { squares(gradients, partial, count); }

// Adds up gradients from several ranks, `count` values each, one after another; puts the sum into `out` or adds it there.
template <typename T>
INLINE void add_parts(const T* received, T* out, int parts, i64 count, int accumulate) {
    const i64 i = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * 4;
    if (i >= count) return;
    float sum[4] = {0, 0, 0, 0};
    if (accumulate) load4(out + i, sum);
#pragma unroll 4
    for (int part = 0; part < parts; part++) {
        float v[4];
        load4(received + part * count + i, v);
        for (int k = 0; k < 4; k++) sum[k] += v[k];
    }
    store4(out + i, sum);
}

// `count` is a multiple of 4.
KERNEL(512) add_parts_fp32(const float* received, float* out, int parts, i64 count, int accumulate) {
    add_parts(received, out, parts, count, accumulate);
}
KERNEL(512) add_parts_bf16(const bf16* received, bf16* out, int parts, i64 count, int accumulate) {
    add_parts(received, out, parts, count, accumulate);
}

// What one update is made with; the learning rate and the bias corrections are worked out on the host.
struct AdamW {
    float decay;       // 1 - learning rate * weight decay
    float step_size;   // learning rate / (1 - beta1^t)
    float root_scale;  // 1 / sqrt(1 - beta2^t)
    float beta1, beta2, eps;
    float clip;  // 0 = gradients are taken as they are
    u32 seed;    // of stochastic rounding; 0 = to nearest
};

// 16 random bits for each of four neighbouring values, from the place and the seed of the step.
INLINE u64 random_bits(u64 at, u32 seed) {
    u64 z = at + (u64)seed * 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

// Rounds up with a probability that grows with what is cut off, so that small updates are kept on average.
INLINE u32 narrow_randomly(float value, u32 random) {
    const u32 bits = __float_as_uint(value);
    if ((bits & 0x7f800000u) == 0x7f800000u) return narrow(value);
    return (bits + (random & 0xffffu)) >> 16;
}

template <typename T, bool IS_BF16>
INLINE void adamw(T* masters, bf16* values, const T* gradients, T* first, T* second, const float* norm, i64 count,
                  AdamW options) {
    float scale = 1.0f;
    if (options.clip > 0) scale = fminf(1.0f, options.clip / (*norm + 1e-6f));
    if (*norm != *norm) scale = *norm;  // fminf would hide that the gradients are not numbers.
    constexpr int SIZE = Unit<T>::SIZE;
    const i64 i = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * SIZE;
    if (i >= count) return;
    float w[SIZE], g[SIZE], m[SIZE], v[SIZE];
    load(masters + i, w);
    load(gradients + i, g);
    load(first + i, m);
    load(second + i, v);
#pragma unroll
    for (int k = 0; k < SIZE; k++) {
        g[k] *= scale;
        m[k] = options.beta1 * m[k] + (1 - options.beta1) * g[k];
        v[k] = options.beta2 * v[k] + (1 - options.beta2) * g[k] * g[k];
        w[k] = w[k] * options.decay - options.step_size * m[k] / (sqrtf(v[k]) * options.root_scale + options.eps);
    }
    store(first + i, m);
    store(second + i, v);
    if (IS_BF16 && options.seed != 0) {
#pragma unroll
        for (int k = 0; k < SIZE; k += 4) {
            const u64 random = random_bits(i + k, options.seed);
            for (int j = 0; j < 4; j++) w[k + j] = widen(narrow_randomly(w[k + j], (u32)(random >> (16 * j))));
        }
    }
    store(masters + i, w);
    if (!IS_BF16) store(values + i, w);
}

// Clipping, the update, and the bf16 copy of the weights in one pass over flat buffers.
KERNEL(512) adamw_fp32(float* masters, bf16* values, const float* gradients, float* first, float* second,
                       const float* norm, i64 count, AdamW options) {
    adamw<float, false>(masters, values, gradients, first, second, norm, count, options);
}

// State in bf16: the weights are their own masters.
KERNEL(512) adamw_bf16(bf16* masters, bf16* values, const bf16* gradients, bf16* first, bf16* second,
                       const float* norm, i64 count, AdamW options) {
    adamw<bf16, true>(masters, values, gradients, first, second, norm, count, options);
}
