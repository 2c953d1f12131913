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

