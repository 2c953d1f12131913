// Stands in for the CUDA language, so that the tests can run kernels/*.cu on a CPU: the threads of a block are fibres that
// take turns at each __syncthreads(), and blocks run one after the other.

#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(...)
#define DYNAMIC_SHARED(type, name) type* name = (type*)dynamic_shared

struct uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(16) float4 { float x, y, z, w; };
struct Index { unsigned x, y, z; };

static Index threadIdx, blockIdx, blockDim, gridDim;
static void* dynamic_shared;

inline float __uint_as_float(unsigned bits) { float f; std::memcpy(&f, &bits, 4); return f; }
inline unsigned __float_as_uint(float f) { unsigned bits; std::memcpy(&bits, &f, 4); return bits; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float x) { return std::exp(x); }

// Byte i of the result is the byte of `low` (0 to 3) or `high` (4 to 7) that hexadecimal digit i of `which` names.
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned which) {
    const uint64_t both = (uint64_t)high << 32 | low;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) result |= (unsigned)(both >> 8 * (which >> 4 * i & 7) & 0xff) << 8 * i;
    return result;
}
// One thread runs at a time.
inline unsigned atomicMax(unsigned* at, unsigned value) {
    const unsigned before = *at;
    if (value > before) *at = value;
    return before;
}

static ucontext_t scheduler;
static ucontext_t* running;
inline void __syncthreads() { swapcontext(running, &scheduler); }

// Runs one launch; `body` is what a thread does.
struct Launch {
    void (*body)(void**);
    void** arguments;
};
static Launch current;

static void thread_main() { current.body(current.arguments); }

static void run_block(unsigned threads) {
    constexpr size_t STACK = 64 << 10;
    static std::vector<char> stacks(STACK * 1024);
    std::vector<ucontext_t> fibres(threads);
    std::vector<bool> done(threads, false);
    for (unsigned t = 0; t < threads; t++) {
        getcontext(&fibres[t]);
        fibres[t].uc_stack.ss_sp = &stacks[t * STACK];
        fibres[t].uc_stack.ss_size = STACK;
        fibres[t].uc_link = nullptr;
        makecontext(&fibres[t], [] {
            thread_main();
            running->uc_link = &scheduler;
            swapcontext(running, &scheduler);
        }, 0);
    }
    for (unsigned left = threads; left > 0;) {
        for (unsigned t = 0; t < threads; t++) {
            if (done[t]) continue;
            threadIdx = {t, 0, 0};
            running = &fibres[t];
            swapcontext(&scheduler, running);
            // The end of a thread is marked by its link.
            if (fibres[t].uc_link != nullptr) {
                done[t] = true;
                left--;
            }
        }
    }
}

template <typename... Arguments, size_t... At>
void call(void (*kernel)(Arguments...), void** arguments, std::index_sequence<At...>) {
    kernel(*(std::remove_reference_t<Arguments>*)arguments[At]...);
}

template <auto Kernel>
struct Entry;
template <typename... Arguments, void (*Kernel)(Arguments...)>
struct Entry<Kernel> {
    static void run(void** arguments) { call(Kernel, arguments, std::index_sequence_for<Arguments...>{}); }
};

static void run_grid(void (*body)(void**), unsigned columns, unsigned rows, unsigned threads, size_t shared,
                     void** arguments) {
    static std::mutex one_at_a_time;
    std::lock_guard<std::mutex> lock(one_at_a_time);
    std::vector<uint4> memory(shared / sizeof(uint4) + 1);
    dynamic_shared = memory.data();
    current = {body, arguments};
    blockDim = {threads, 1, 1};
    gridDim = {columns, rows, 1};
    for (unsigned y = 0; y < rows; y++) {
        for (unsigned x = 0; x < columns; x++) {
            blockIdx = {x, y, 0};
            run_block(threads);
        }
    }
}
