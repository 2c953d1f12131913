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
// eighth position, and the slices are added up in order. `gradient` has `count` elements of the whole matrix from
// `first` on, both multiples of 8; what lies beside them is another rank's.
KERNEL(256) embedding_backward(const bf16* dx, const int* order, const int* starts, const int* tokens, void* gradient,
                               int cols, int is_bf16, i64 first, i64 count) {
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
    const i64 at = (i64)tokens[blockIdx.x] * cols + c - first;
    if (at < 0 || at >= count) return;
    for (int k = 0; k < 8; k++) put_gradient(gradient, at + k, sum[k], is_bf16, 1);
}

