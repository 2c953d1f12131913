// The few calls into libtorch that tch does not bind. Each returns 0, or 1 with the reason in `message`.

#include <ATen/Version.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_adamw.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

namespace {

void put(const std::string& text, char* buffer, size_t capacity) {
    if (capacity == 0) return;
    const size_t length = std::min(text.size(), capacity - 1);
    std::memcpy(buffer, text.data(), length);
    buffer[length] = '\0';
}

template <typename F>
int guarded(char* message, size_t capacity, F body) {
    try {
        body();
        return 0;
    } catch (const std::exception& error) {
        put(error.what(), message, capacity);
    } catch (...) {
        put("unknown C++ exception", message, capacity);
    }
    return 1;
}

}  // namespace

extern "C" {

// One fused AdamW update of one tensor and its state; `grad_scale` divides the gradient, null = 1.
int tprimat_fused_adamw(at::Tensor* weight, at::Tensor* grad, at::Tensor* exp_avg, at::Tensor* exp_avg_sq,
                        at::Tensor* step, at::Tensor* grad_scale, double learning_rate, double beta1, double beta2,
                        double weight_decay, double eps, char* message, size_t capacity) {
    return guarded(message, capacity, [&] {
        std::optional<at::Tensor> scale;
        if (grad_scale != nullptr) scale = *grad_scale;
        at::_fused_adamw_({*weight}, {*grad}, {*exp_avg}, {*exp_avg_sq}, {}, {*step}, learning_rate, beta1, beta2,
                          weight_decay, eps, /*amsgrad=*/false, /*maximize=*/false, scale);
    });
}

// Highest number of bytes that the caching allocator has had in use on a CUDA (or HIP) device.
int tprimat_peak_allocated(int8_t device, int64_t* bytes, char* message, size_t capacity) {
    return guarded(message, capacity, [&] {
        const auto stats = c10::getDeviceAllocator(c10::DeviceType::CUDA)->getDeviceStats(device);
        const auto aggregate = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
        *bytes = stats.allocated_bytes[aggregate].peak;
    });
}

// How the libtorch that is loaded now was built, in its own words.
int tprimat_build_settings(char* text, size_t text_capacity, char* message, size_t capacity) {
    return guarded(message, capacity, [&] { put(at::show_config(), text, text_capacity); });
}
}
