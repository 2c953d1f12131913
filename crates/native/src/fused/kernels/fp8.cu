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

