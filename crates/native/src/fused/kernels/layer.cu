// -- RMSNorm ------------------------------------------------------------------------------------------------------

// One block a row: y = x * scale * weight, scale = 1 / sqrt(mean(x^2) + eps), which the backward pass wants again.
// A thread owns GROUPS groups of eight columns and keeps them in registers.
template <int GROUPS>
INLINE void rms_norm(const bf16* x, const bf16* weight, bf16* y, float* scales, u32* noted, int cols, float eps) {
    x += (i64)blockIdx.x * cols;
    y += (i64)blockIdx.x * cols;
    float v[GROUPS][8];
    float sum = 0;
#pragma unroll
    for (int k = 0; k < GROUPS; k++) {
        const int c = (threadIdx.x + k * blockDim.x) * 8;
        if (c >= cols) continue;
        load8(x + c, v[k]);
        for (int i = 0; i < 8; i++) sum += v[k][i] * v[k][i];
    }
    const float scale = 1.0f / sqrtf(over_block<true>(sum) / cols + eps);
    if (threadIdx.x == 0) scales[blockIdx.x] = scale;
    float largest = 0;
#pragma unroll
    for (int k = 0; k < GROUPS; k++) {
        const int c = (threadIdx.x + k * blockDim.x) * 8;
        if (c >= cols) continue;
        float w[8];
        load8(weight + c, w);
        for (int i = 0; i < 8; i++) v[k][i] = v[k][i] * scale * w[i];
        largest = largest8(largest, v[k]);
        store8(y + c, v[k]);
    }
    note_largest(noted, largest);
}

// dx = residual + scale * (g - x * scale^2 * mean(g * x)) with g = weight * dy. `residual` may be null, or dx itself.
// Each block takes rows blockIdx.x, + gridDim.x, ... and leaves its share of the weight's gradient in `partial`.
// The next row is on its way from memory while this one is worked on. The normalised rows are written to `normed`, which
// may be null, or dy itself.
template <int GROUPS>
INLINE void rms_norm_backward(const bf16* x, const bf16* weight, const float* scales, const bf16* dy,
                              const bf16* residual, bf16* dx, bf16* normed, float* partial, u32* noted, int rows,
                              int cols) {
    const uint4 zero = {0, 0, 0, 0};
    float dw[GROUPS][8], largest = 0;
    uint4 weights[GROUPS], next_x[GROUPS], next_dy[GROUPS], next_residual[GROUPS];
#pragma unroll
    for (int k = 0; k < GROUPS; k++) {
        const int c = (threadIdx.x + k * blockDim.x) * 8;
        const i64 at = (i64)blockIdx.x * cols + c;
        const bool inside = c < cols;
        for (int i = 0; i < 8; i++) dw[k][i] = 0;
        weights[k] = inside ? *(const uint4*)(weight + c) : zero;
        next_x[k] = inside ? *(const uint4*)(x + at) : zero;
        next_dy[k] = inside ? *(const uint4*)(dy + at) : zero;
        next_residual[k] = inside && residual ? *(const uint4*)(residual + at) : zero;
    }
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        const float scale = scales[row];
        uint4 this_residual[GROUPS];
        float v[GROUPS][8], g[GROUPS][8];
        float dot = 0;
#pragma unroll
        for (int k = 0; k < GROUPS; k++) {
            float w[8];
            unpack8(next_x[k], v[k]);
            unpack8(next_dy[k], g[k]);
            unpack8(weights[k], w);
            this_residual[k] = next_residual[k];
            const int c = (threadIdx.x + k * blockDim.x) * 8;
            if (c < cols && row + (int)gridDim.x < rows) {
                const i64 at = (i64)(row + gridDim.x) * cols + c;
                next_x[k] = *(const uint4*)(x + at);
                next_dy[k] = *(const uint4*)(dy + at);
                if (residual) next_residual[k] = *(const uint4*)(residual + at);
            }
            for (int i = 0; i < 8; i++) {
                dw[k][i] += g[k][i] * v[k][i] * scale;
                g[k][i] *= w[i];
                dot += g[k][i] * v[k][i];
            }
        }
        const float pull = over_block<true>(dot) * scale * scale / cols;
#pragma unroll
        for (int k = 0; k < GROUPS; k++) {
            const int c = (threadIdx.x + k * blockDim.x) * 8;
            if (c >= cols) continue;
            float r[8];
            unpack8(this_residual[k], r);
            for (int i = 0; i < 8; i++) r[i] += scale * (g[k][i] - v[k][i] * pull);
            largest = largest8(largest, r);
            store8(dx + (i64)row * cols + c, r);
            if (normed) {
                float w[8];
                unpack8(weights[k], w);
                for (int i = 0; i < 8; i++) w[i] = v[k][i] * scale * w[i];
                store8(normed + (i64)row * cols + c, w);
            }
        }
    }
#pragma unroll
    for (int k = 0; k < GROUPS; k++) {
        const int c = (threadIdx.x + k * blockDim.x) * 8;
        if (c >= cols) continue;
        for (int i = 0; i < 8; i++) partial[(i64)blockIdx.x * cols + c + i] = dw[k][i];
    }
    note_largest(noted, largest);
}

#define RMS_NORM(GROUPS)                                                                                            \
    KERNEL(512) rms_norm_##GROUPS(const bf16* x, const bf16* weight, bf16* y, float* scales, u32* noted, int cols,   \
                                  float eps) {                                                                       \
        rms_norm<GROUPS>(x, weight, y, scales, noted, cols, eps);                                                    \
    }                                                                                                                \
    KERNEL(512, 2 / GROUPS)                                                                                          \
    rms_norm_backward_##GROUPS(const bf16* x, const bf16* weight, const float* scales, const bf16* dy,               \
                               const bf16* residual, bf16* dx, bf16* normed, float* partial, u32* noted, int rows,   \
                               int cols) {                                                                           \
        rms_norm_backward<GROUPS>(x, weight, scales, dy, residual, dx, normed, partial, noted, rows, cols);          \
    }
RMS_NORM(1)
RMS_NORM(2)

// Second stage of a gradient that is summed over rows: 1024 threads a block, which takes 32 columns.
KERNEL(1024) column_sums(const float* partial, void* gradient, int rows, int cols, int is_bf16, int accumulate) {
    __shared__ float part[32][33];
    const int lane = threadIdx.x % 32, slice = threadIdx.x / 32;
    const int c = blockIdx.x * 32 + lane;
    float sum = 0;
    if (c < cols)
        for (int row = slice; row < rows; row += 32) sum += partial[(i64)row * cols + c];
    part[slice][lane] = sum;
    __syncthreads();
    if (slice == 0 && c < cols) {
        float total = 0;
        for (int i = 0; i < 32; i++) total += part[i][lane];
        put_gradient(gradient, c, total, is_bf16, accumulate);
    }
}

// First stage for the gradient of a bias: blockIdx.y takes every gridDim.y-th row.
KERNEL(256) bias_partials(const bf16* dy, float* partial, int rows, int cols) {
    const int c = (blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (c >= cols) return;
    float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    for (int row = blockIdx.y; row < rows; row += gridDim.y) {
        float v[8];
        load8(dy + (i64)row * cols + c, v);
        for (int i = 0; i < 8; i++) sum[i] += v[i];
    }
    for (int i = 0; i < 8; i++) partial[(i64)blockIdx.y * cols + c + i] = sum[i];
}

// -- rotary embedding ---------------------------------------------------------------------------------------------

INLINE void rotate8(float* a, float* b, const float* cosines, const float* sines) {
    for (int i = 0; i < 8; i++) {
        const float left = a[i] * cosines[i] - b[i] * sines[i];
        b[i] = b[i] * cosines[i] + a[i] * sines[i];
        a[i] = left;
    }
}

// One block a token: rotates its query and key heads in place; `width` is the length of a row of q, k and v together.
// Dimension i of a head pairs with i + half.
KERNEL(512) rope(bf16* qkv, const float* cosines, const float* sines, int sequence, int heads, int half, int width) {
    const int position = blockIdx.x % sequence;
    bf16* row = qkv + (i64)blockIdx.x * width;
    const int units = half / 8;
    for (int unit = threadIdx.x; unit < heads * units; unit += blockDim.x) {
        const int head = unit / units, at = (unit - head * units) * 8;
        bf16* first = row + head * 2 * half + at;
        float a[8], b[8], c[8], s[8];
        load8(first, a);
        load8(first + half, b);
        load4(cosines + position * half + at, c), load4(cosines + position * half + at + 4, c + 4);
        load4(sines + position * half + at, s), load4(sines + position * half + at + 4, s + 4);
        rotate8(a, b, c, s);
        store8(first, a);
        store8(first + half, b);
    }
}

// Turns the gradients of q and k back and joins them with that of v, in the layout of the joint product.
KERNEL(512) rope_backward(const bf16* dq, const bf16* dk, const bf16* dv, bf16* dqkv, u32* noted,
                          const float* cosines, const float* sines, int sequence, int heads, int kv_heads, int half) {
    const int position = blockIdx.x % sequence;
    const i64 token = blockIdx.x;
    const int size = 2 * half, units = half / 8;
    bf16* row = dqkv + token * (heads + 2 * kv_heads) * size;
    float largest = 0;
    for (int unit = threadIdx.x; unit < (heads + kv_heads) * units; unit += blockDim.x) {
        const int head = unit / units, at = (unit - head * units) * 8;
        const bf16* from = head < heads ? dq + (token * heads + head) * size
                                        : dk + (token * kv_heads + head - heads) * size;
        float a[8], b[8], c[8], s[8];
        load8(from + at, a);
        load8(from + at + half, b);
        load4(cosines + position * half + at, c), load4(cosines + position * half + at + 4, c + 4);
        load4(sines + position * half + at, s), load4(sines + position * half + at + 4, s + 4);
        for (int i = 0; i < 8; i++) s[i] = -s[i];
        rotate8(a, b, c, s);
        largest = largest8(largest8(largest, a), b);
        store8(row + head * size + at, a);
        store8(row + head * size + at + half, b);
    }
    uint4* to = (uint4*)(row + (heads + kv_heads) * size);
    const uint4* from = (const uint4*)(dv + token * kv_heads * size);
    for (int i = threadIdx.x; i < kv_heads * 2 * units; i += blockDim.x) {
        float v[8];
        unpack8(to[i] = from[i], v);
        largest = largest8(largest, v);
    }
    note_largest(noted, largest);
}

// -- SwiGLU -------------------------------------------------------------------------------------------------------

INLINE float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

// One block a row of `gate_up`, whose first `cols` values are the gate.
KERNEL(512) swiglu(const bf16* gate_up, bf16* out, u32* noted, int cols) {
    const bf16* gate = gate_up + (i64)blockIdx.x * 2 * cols;
    out += (i64)blockIdx.x * cols;
    float largest = 0;
    for (int c = threadIdx.x * 8; c < cols; c += blockDim.x * 8) {
        float g[8], u[8];
        load8(gate + c, g);
        load8(gate + cols + c, u);
        for (int i = 0; i < 8; i++) u[i] = u[i] * (g[i] * sigmoid(g[i]));
        largest = largest8(largest, u);
        store8(out + c, u);
    }
    note_largest(noted, largest);
}

// Writes the gradients of gate and up over their values, and what `swiglu` made of them to `out`, which may be null, or
// d_out itself.
KERNEL(512) swiglu_backward(bf16* gate_up, const bf16* d_out, bf16* out, u32* noted, int cols) {
    bf16* gate = gate_up + (i64)blockIdx.x * 2 * cols;
    const i64 row = (i64)blockIdx.x * cols;
    float largest = 0;
    for (int c = threadIdx.x * 8; c < cols; c += blockDim.x * 8) {
        float g[8], u[8], d[8];
        load8(gate + c, g);
        load8(gate + cols + c, u);
        load8(d_out + row + c, d);
        for (int i = 0; i < 8; i++) {
            const float s = sigmoid(g[i]), value = u[i] * (g[i] * s);
            const float d_up = d[i] * g[i] * s;
            g[i] = d[i] * u[i] * s * (1.0f + g[i] * (1.0f - s));
            u[i] = d_up;
            d[i] = value;
        }
        if (out) store8(out + row + c, d);
        largest = largest8(largest8(largest, g), u);
        store8(gate + c, g);
        store8(gate + cols + c, u);
    }
    note_largest(noted, largest);
}

