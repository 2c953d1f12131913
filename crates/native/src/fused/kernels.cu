// The element-wise and row-wise kernels of the fused training step.
//
// One source for three compilers: NVRTC at the start of a run, hipRTC in principle, and the host's C++ compiler in the
// tests, where host.h beside this file stands in for the language. So no header is included, no warp size is assumed, and
// no instruction of one vendor is used without a portable path beside it.
//
// Activations are bf16, arithmetic is fp32. Every sum has a fixed order: the same inputs give the same bits.
// Pointers to activations are aligned to 16 bytes and rows are multiples of 8 values long; the callers check both.

typedef unsigned short bf16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#ifndef DYNAMIC_SHARED
#define DYNAMIC_SHARED(type, name) extern __shared__ type name[]
#endif

// The second argument, where there is one, is how many blocks a multiprocessor must have room for.
#define KERNEL(...) extern "C" __global__ void __launch_bounds__(__VA_ARGS__)
#define INLINE static __device__ __forceinline__

// -- bf16 and vectors ---------------------------------------------------------------------------------------------

INLINE float widen(u32 bits) { return __uint_as_float(bits << 16); }

INLINE u32 narrow(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    bf16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
#else
    const u32 bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fffu;  // not a number
    return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
#endif
}

// Two values in one word, the first one low.
INLINE u32 narrow2(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
#else
    return narrow(low) | narrow(high) << 16;
#endif
}

INLINE void unpack8(uint4 q, float* v) {
    const u32 words[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[2 * i] = widen(words[i] & 0xffffu);
        v[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
}

INLINE uint4 pack8(const float* v) {
    uint4 q;
    q.x = narrow2(v[0], v[1]);
    q.y = narrow2(v[2], v[3]);
    q.z = narrow2(v[4], v[5]);
    q.w = narrow2(v[6], v[7]);
    return q;
}

INLINE void load8(const bf16* from, float* v) { unpack8(*(const uint4*)from, v); }
INLINE void store8(bf16* to, const float* v) { *(uint4*)to = pack8(v); }

INLINE void load4(const float* from, float* v) {
    const float4 q = *(const float4*)from;
    v[0] = q.x, v[1] = q.y, v[2] = q.z, v[3] = q.w;
}

INLINE void load4(const bf16* from, float* v) {
    const uint2 q = *(const uint2*)from;
    v[0] = widen(q.x & 0xffffu), v[1] = widen(q.x >> 16);
    v[2] = widen(q.y & 0xffffu), v[3] = widen(q.y >> 16);
}

INLINE void store4(float* to, const float* v) {
    float4 q;
    q.x = v[0], q.y = v[1], q.z = v[2], q.w = v[3];
    *(float4*)to = q;
}

INLINE void store4(bf16* to, const float* v) {
    uint2 q;
    q.x = narrow2(v[0], v[1]);
    q.y = narrow2(v[2], v[3]);
    *(uint2*)to = q;
}

INLINE void load(const float* from, float (&v)[4]) { load4(from, v); }
INLINE void load(const bf16* from, float (&v)[8]) { load8(from, v); }
INLINE void store(float* to, const float (&v)[4]) { store4(to, v); }
INLINE void store(bf16* to, const float (&v)[4]) { store4(to, v); }
INLINE void store(bf16* to, const float (&v)[8]) { store8(to, v); }

// Values of a buffer that one thread takes at a time: 16 bytes.
template <typename T>
struct Unit {
    static constexpr int SIZE = 16 / sizeof(T);
};

// A gradient that is kept in fp32 or in bf16, as the optimiser state is.
INLINE void put_gradient(void* gradients, i64 at, float value, int is_bf16, int accumulate) {
    if (is_bf16) {
        bf16* p = (bf16*)gradients + at;
        *p = (bf16)narrow(accumulate ? widen(*p) + value : value);
    } else {
        float* p = (float*)gradients + at;
        *p = accumulate ? *p + value : value;
    }
}

// -- reductions over a block --------------------------------------------------------------------------------------

template <bool IS_SUM>
INLINE float combine(float a, float b) {
    return IS_SUM ? a + b : fmaxf(a, b);
}

// The sum (or maximum) over the block's threads, in every thread. All threads of the block must call it, and their
// number is a multiple of 32.
template <bool IS_SUM>
INLINE float over_block(float value) {
    __shared__ float some[32];
#if defined(__CUDA_ARCH__)
    for (int lanes = 16; lanes > 0; lanes /= 2)
        value = combine<IS_SUM>(value, __shfl_xor_sync(0xffffffffu, value, lanes));
    const int count = blockDim.x / 32;
    __syncthreads();  // Readers of an earlier call are done.
    if (threadIdx.x % 32 == 0) some[threadIdx.x / 32] = value;
#else
    // Wherever a warp may have another size, or there is none.
    __shared__ float all[1024];
    const int count = 32;
    __syncthreads();
    all[threadIdx.x] = value;
    __syncthreads();
    if (threadIdx.x < 32) {
        for (u32 i = threadIdx.x + 32; i < blockDim.x; i += 32) value = combine<IS_SUM>(value, all[i]);
        some[threadIdx.x] = value;
    }
#endif
    __syncthreads();
    float total = some[0];
    for (int i = 1; i < count; i++) total = combine<IS_SUM>(total, some[i]);
    return total;
}

// -- fp8 ----------------------------------------------------------------------------------------------------------

// One value as fp8 with MANTISSA bits and the exponent's BIAS, to nearest, at most `most`. Not a number stays so.
template <int MANTISSA, int BIAS>
INLINE u32 narrow_fp8(float value, float most) {
    const u32 bits = __float_as_uint(value), sign = bits >> 24 & 0x80u;
    if ((bits & 0x7fffffffu) > 0x7f800000u) return sign | 0x7fu;
    const float magnitude = fminf(__uint_as_float(bits & 0x7fffffffu), most);
    int exponent = (int)(__float_as_uint(magnitude) >> 23) - 127;
    if (exponent < 1 - BIAS) exponent = 1 - BIAS;
    const float unit = __uint_as_float((u32)(exponent - MANTISSA + 127) << 23);
    return sign | ((u32)(exponent + BIAS - 1) << MANTISSA) + (u32)rintf(magnitude / unit);
}

template <bool IS_E5M2>
INLINE float most_fp8() {
    return IS_E5M2 ? 57344.0f : 448.0f;
}

// Four values in one word, the first one lowest.
template <bool IS_E5M2>
INLINE u32 narrow4_fp8(const float* v) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    unsigned short low, high;
    if (IS_E5M2) {
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(low) : "f"(v[1]), "f"(v[0]));
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(high) : "f"(v[3]), "f"(v[2]));
    } else {
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(v[1]), "f"(v[0]));
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(v[3]), "f"(v[2]));
    }
    return low | (u32)high << 16;
#else
    u32 word = 0;
    for (int i = 0; i < 4; i++) {
        const float most = most_fp8<IS_E5M2>();
        word |= (IS_E5M2 ? narrow_fp8<2, 15>(v[i], most) : narrow_fp8<3, 7>(v[i], most)) << 8 * i;
    }
    return word;
#endif
}

INLINE float largest8(float largest, const float* v) {
    for (int i = 0; i < 8; i++) largest = fmaxf(largest, fabsf(v[i]));
    return largest;
}

// Raises *noted to the largest magnitude that a thread of the block has seen; null = nobody wants to know. The bits of
// numbers that are not negative are in the numbers' order, and a maximum does not depend on the order of the blocks.
INLINE void note_largest(u32* noted, float largest) {
    if (noted == nullptr) return;
    const u32 bits = __float_as_uint(over_block<false>(largest));
    if (threadIdx.x == 0 && bits > *(volatile u32*)noted) atomicMax(noted, bits);
}

// The largest magnitude of a buffer; `groups` of eight values.
KERNEL(512) largest(const bf16* values, u32* noted, i64 groups) {
    float most = 0;
#pragma unroll 4
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < groups; i += (i64)gridDim.x * blockDim.x) {
        float v[8];
        load8(values + 8 * i, v);
        most = largest8(most, v);
    }
    note_largest(noted, most);
}

// Turns four rows of four bytes into four columns.
INLINE void transpose4(u32 a, u32 b, u32 c, u32 d, u32* columns) {
    const u32 ab_low = __byte_perm(a, b, 0x5140), ab_high = __byte_perm(a, b, 0x7362);
    const u32 cd_low = __byte_perm(c, d, 0x5140), cd_high = __byte_perm(c, d, 0x7362);
    columns[0] = __byte_perm(ab_low, cd_low, 0x5410);
    columns[1] = __byte_perm(ab_low, cd_low, 0x7632);
    columns[2] = __byte_perm(ab_high, cd_high, 0x5410);
    columns[3] = __byte_perm(ab_high, cd_high, 0x7632);
}

// Scales a matrix so that its largest magnitude becomes the format's, and writes it as fp8 twice: by rows and by columns,
// because products of fp8 read both factors along the sum. A value is its fp8 times *inverse.
// A block takes 128 x 128 values, a thread 8 x 8 of them; rows and columns are multiples of 8.
template <bool IS_E5M2>
INLINE void quantize(const bf16* x, const u32* noted, unsigned char* by_row, unsigned char* by_column, float* inverse,
                     int rows, int cols) {
    __shared__ uint2 tile[128][16];
    const float scale = most_fp8<IS_E5M2>() / fmaxf(__uint_as_float(*noted), 1e-30f);
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *inverse = 1.0f / scale;
    const int across = threadIdx.x % 16, down = threadIdx.x / 16;
    const int c = blockIdx.x * 128 + across * 8, r = blockIdx.y * 128 + down * 8;
    uint2 q[8];
    if (c < cols && r < rows) {
        uint4 loaded[8];
#pragma unroll
        for (int i = 0; i < 8; i++) loaded[i] = *(const uint4*)(x + (i64)(r + i) * cols + c);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float v[8];
            unpack8(loaded[i], v);
            for (int k = 0; k < 8; k++) v[k] *= scale;
            q[i].x = narrow4_fp8<IS_E5M2>(v);
            q[i].y = narrow4_fp8<IS_E5M2>(v + 4);
            *(uint2*)(by_row + (i64)(r + i) * cols + c) = q[i];
        }
        u32 upper[8], lower[8];
        transpose4(q[0].x, q[1].x, q[2].x, q[3].x, upper);
        transpose4(q[0].y, q[1].y, q[2].y, q[3].y, upper + 4);
        transpose4(q[4].x, q[5].x, q[6].x, q[7].x, lower);
        transpose4(q[4].y, q[5].y, q[6].y, q[7].y, lower + 4);
        // The exclusive or spreads a warp's accesses over all banks of the shared memory.
#pragma unroll
        for (int k = 0; k < 8; k++) {
            q[k].x = upper[k], q[k].y = lower[k];
            tile[across * 8 + k][down ^ across] = q[k];
        }
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const int column = k * 16 + down, from = blockIdx.y * 128 + across * 8;
        const int to = blockIdx.x * 128 + column;
        if (to < cols && from < rows)
            *(uint2*)(by_column + (i64)to * rows + from) = tile[column][across ^ (column / 8)];
    }
}

KERNEL(256) quantize_e4m3(const bf16* x, const u32* noted, unsigned char* by_row, unsigned char* by_column,
                          float* inverse, int rows, int cols) {
    quantize<false>(x, noted, by_row, by_column, inverse, rows, cols);
}

KERNEL(256) quantize_e5m2(const bf16* x, const u32* noted, unsigned char* by_row, unsigned char* by_column,
                          float* inverse, int rows, int cols) {
    quantize<true>(x, noted, by_row, by_column, inverse, rows, cols);
}

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
// The next row is on its way from memory while this one is worked on.
template <int GROUPS>
INLINE void rms_norm_backward(const bf16* x, const bf16* weight, const float* scales, const bf16* dy,
                              const bf16* residual, bf16* dx, float* partial, u32* noted, int rows, int cols) {
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
                               const bf16* residual, bf16* dx, float* partial, u32* noted, int rows, int cols) {     \
        rms_norm_backward<GROUPS>(x, weight, scales, dy, residual, dx, partial, noted, rows, cols);                  \
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
        for (int i = 0; i < 8; i++) u[i] *= g[i] * sigmoid(g[i]);
        largest = largest8(largest, u);
        store8(out + c, u);
    }
    note_largest(noted, largest);
}

// Writes the gradients of gate and up over their values.
KERNEL(512) swiglu_backward(bf16* gate_up, const bf16* d_out, u32* noted, int cols) {
    bf16* gate = gate_up + (i64)blockIdx.x * 2 * cols;
    d_out += (i64)blockIdx.x * cols;
    float largest = 0;
    for (int c = threadIdx.x * 8; c < cols; c += blockDim.x * 8) {
        float g[8], u[8], d[8];
        load8(gate + c, g);
        load8(gate + cols + c, u);
        load8(d_out + c, d);
        for (int i = 0; i < 8; i++) {
            const float s = sigmoid(g[i]);
            const float d_up = d[i] * g[i] * s;
            g[i] = d[i] * u[i] * s * (1.0f + g[i] * (1.0f - s));
            u[i] = d_up;
        }
        largest = largest8(largest8(largest, g), u);
        store8(gate + c, g);
        store8(gate + cols + c, u);
    }
    note_largest(noted, largest);
}

// -- cross entropy ------------------------------------------------------------------------------------------------

// One block a row: the row's loss times `weight`, and its gradient written over the logits. A negative target has
// neither. The first `cached` groups of eight logits stay in shared memory between the two passes.
KERNEL(768, 2) cross_entropy(bf16* logits, const i64* targets, float* losses, int vocabulary, int cached, float weight) {
    constexpr int BATCH = 4;  // loads that are on their way at one time
    DYNAMIC_SHARED(uint4, cache);
    const i64 target = targets[blockIdx.x];
    bf16* start = logits + (i64)blockIdx.x * vocabulary;
    uint4* row = (uint4*)start;
    const int groups = vocabulary / 8;
    const bool counts = target >= 0;
    const float of_target = counts ? widen(start[target]) : 0.0f;
    float top = -__uint_as_float(0x7f800000u), sum = 0;
    for (int first = threadIdx.x; first < groups; first += BATCH * blockDim.x) {
        uint4 batch[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            const int i = first + k * blockDim.x;
            if (i < groups) batch[k] = row[i];
        }
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            const int i = first + k * blockDim.x;
            if (i >= groups) continue;
            if (i < cached) cache[i] = batch[k];
            float v[8];
            unpack8(batch[k], v);
            float most = v[0];
            for (int j = 1; j < 8; j++) most = fmaxf(most, v[j]);
            if (most > top) {
                sum *= __expf(top - most);
                top = most;
            }
            for (int j = 0; j < 8; j++) sum += __expf(v[j] - top);
        }
    }
    const float most = over_block<false>(top);
    // A thread without any logit has nothing to add.
    const float total = over_block<true>(sum > 0 || sum != sum ? sum * __expf(top - most) : 0.0f);
    if (threadIdx.x == 0) losses[blockIdx.x] = counts ? (most - of_target + logf(total)) * weight : 0.0f;
    const float scale = counts ? weight / total : 0.0f;
#pragma unroll 4
    for (int i = threadIdx.x; i < groups; i += blockDim.x) {
        float v[8];
        unpack8(i < cached ? cache[i] : row[i], v);
        for (int k = 0; k < 8; k++) v[k] = __expf(v[k] - most) * scale;
        if (counts && target / 8 == i)
            for (int k = 0; k < 8; k++) v[k] -= k == target % 8 ? weight : 0.0f;
        row[i] = pack8(v);
    }
}

// -- embedding ----------------------------------------------------------------------------------------------------

// Adds the gradients of the positions order[starts[s] .. starts[s + 1]], which all hold token tokens[s], to that
// token's row. Segment s is blockIdx.x. A block of 256 threads takes 256 columns: lane l eight of them, slice i every
// eighth position, and the slices are added up in order.
KERNEL(256) embedding_backward(const bf16* dx, const int* order, const int* starts, const int* tokens, void* gradient,
                               int cols, int is_bf16) {
    __shared__ float part[8][32][8];
    const int lane = threadIdx.x % 32, slice = threadIdx.x / 32;
    const int c = (blockIdx.y * 32 + lane) * 8;
    float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    const int start = starts[blockIdx.x], end = starts[blockIdx.x + 1];
    if (c < cols) {
#pragma unroll 4
        for (int i = start + slice; i < end; i += 8) {
            float v[8];
            load8(dx + (i64)order[i] * cols + c, v);
            for (int k = 0; k < 8; k++) sum[k] += v[k];
        }
    }
    // Most tokens occur once or twice.
    const int slices = end - start < 8 ? end - start : 8;
    if (slices > 1) {
        for (int k = 0; k < 8; k++) part[slice][lane][k] = sum[k];
        __syncthreads();
        if (slice == 0)
            for (int other = 1; other < slices; other++)
                for (int k = 0; k < 8; k++) sum[k] += part[other][lane][k];
    }
    if (slice != 0 || c >= cols) return;
    const i64 at = (i64)tokens[blockIdx.x] * cols + c;
    for (int k = 0; k < 8; k++) put_gradient(gradient, at + k, sum[k], is_bf16, 1);
}

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
