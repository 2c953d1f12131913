// The kernels as a library for the CPU; `host_launch` runs one by name.

#include "host.h"
#include "kernels/words.cu"
#include "kernels/fp8.cu"
#include "kernels/layer.cu"
#include "kernels/ends.cu"
#include "kernels/update.cu"

#define NAMED(kernel) {#kernel, &Entry<&kernel>::run}

extern "C" int host_launch(const char* name, unsigned columns, unsigned rows, unsigned threads, size_t shared,
                           void** arguments) {
    static const std::pair<const char*, void (*)(void**)> kernels[] = {
        NAMED(rms_norm_1), NAMED(rms_norm_2), NAMED(rms_norm_backward_1), NAMED(rms_norm_backward_2), NAMED(column_sums), NAMED(bias_partials), NAMED(rope), NAMED(rope_backward), NAMED(swiglu),
        NAMED(swiglu_backward), NAMED(cross_entropy), NAMED(embedding_backward), NAMED(squares_fp32),
        NAMED(largest), NAMED(quantize_e4m3), NAMED(quantize_e5m2),
        NAMED(squares_bf16), NAMED(adamw_fp32), NAMED(adamw_bf16),
        NAMED(add_parts_fp32), NAMED(add_parts_bf16),
    };
    for (const auto& [known, body] : kernels) {
        if (std::strcmp(known, name) != 0) continue;
        run_grid(body, columns, rows, threads, shared, arguments);
        return 0;
    }
    return 1;
}
