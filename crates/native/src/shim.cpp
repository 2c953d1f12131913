// The few calls into libtorch that tch does not bind. Each returns 0, or 1 with the reason in `message`.

#include <ATen/Context.h>
#include <ATen/Version.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <set>
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

using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

const std::set<ActivityType> PROFILED{ActivityType::CPU, ActivityType::CUDA};

// The mark around the step that is being profiled.
std::unique_ptr<at::RecordFunction> step_mark;

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

// A copy on a device, sent from pinned memory without waiting for what is queued there.
int tprimat_send(at::Tensor* host, int8_t device, at::Tensor** out, char* message, size_t capacity) {
    return guarded(message, capacity, [&] {
        const c10::Device to(c10::DeviceType::CUDA, device);
        *out = new at::Tensor(host->pin_memory().to(to, host->scalar_type(), /*non_blocking=*/true));
    });
}

// From now on libtorch takes only algorithms that give the same bits every time.
int tprimat_only_deterministic(char* message, size_t capacity) {
    return guarded(message, capacity, [&] {
        at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
        // New memory is written before it is read; filling it with not-a-number as well would cost a pass each time.
        at::globalContext().setDeterministicFillUninitializedMemory(false);
    });
}

// Causal attention by cuDNN, or by flash attention, whose backward pass can be deterministic. `out` gets four new tensors:
// the output, the log of the sum of exponentials, and the seed and offset of a dropout that is not used.
int tprimat_attention(at::Tensor* q, at::Tensor* k, at::Tensor* v, int is_flash, at::Tensor** out, char* message,
                      size_t capacity) {
    return guarded(message, capacity, [&] {
        const auto put = [&](const auto& result) {
            out[0] = new at::Tensor(std::get<0>(result));
            out[1] = new at::Tensor(std::get<1>(result));
            out[2] = new at::Tensor(std::get<6>(result));
            out[3] = new at::Tensor(std::get<7>(result));
        };
        if (is_flash) {
            put(at::_scaled_dot_product_flash_attention(*q, *k, *v, /*dropout_p=*/0.0, /*is_causal=*/true));
        } else {
            put(at::_scaled_dot_product_cudnn_attention(*q, *k, *v, std::nullopt, /*compute_log_sumexp=*/true,
                                                        /*dropout_p=*/0.0, /*is_causal=*/true));
        }
    });
}

// The gradients of q, k and v, as three new tensors, by the same library as the forward pass.
int tprimat_attention_backward(at::Tensor* gradient, at::Tensor* q, at::Tensor* k, at::Tensor* v, at::Tensor* output,
                               at::Tensor* log_sum, at::Tensor* seed, at::Tensor* offset, int is_flash,
                               at::Tensor** out, char* message, size_t capacity) {
    return guarded(message, capacity, [&] {
        const at::Tensor none;
        const auto put = [&](const auto& result) {
            out[0] = new at::Tensor(std::get<0>(result));
            out[1] = new at::Tensor(std::get<1>(result));
            out[2] = new at::Tensor(std::get<2>(result));
        };
        if (is_flash) {
            put(at::_scaled_dot_product_flash_attention_backward(*gradient, *q, *k, *v, *output, *log_sum, none, none,
                                                                 q->size(2), k->size(2), /*dropout_p=*/0.0,
                                                                 /*is_causal=*/true, *seed, *offset));
        } else {
            put(at::_scaled_dot_product_cudnn_attention_backward(*gradient, *q, *k, *v, *output, *log_sum, *seed,
                                                                 *offset, none, none, none, q->size(2), k->size(2),
                                                                 /*dropout_p=*/0.0, /*is_causal=*/true));
        }
    });
}

// Makes a CUDA (or HIP) device the current one.
int tprimat_set_device(int8_t device, char* message, size_t capacity) {
    return guarded(message, capacity, [&] {
        c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).setDevice(c10::Device(c10::DeviceType::CUDA, device));
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

// Readies torch's profiler; its first events are late, so a step passes before it is started.
int tprimat_profile_prepare(char* message, size_t capacity) {
    return guarded(message, capacity, [&] {
        torch::autograd::profiler::prepareProfiler(ProfilerConfig(ProfilerState::KINETO), PROFILED);
    });
}

int tprimat_profile_start(char* message, size_t capacity) {
    return guarded(message, capacity, [&] {
        torch::autograd::profiler::enableProfiler(ProfilerConfig(ProfilerState::KINETO), PROFILED);
    });
}

// A step begins, marked as Python's `profiler.step()` marks it; the one before it has ended.
int tprimat_profile_step(int64_t number, char* message, size_t capacity) {
    return guarded(message, capacity, [&] {
        step_mark.reset();
        step_mark = std::make_unique<at::RecordFunction>(at::RecordScope::USER_SCOPE);
        step_mark->before("ProfilerStep#" + std::to_string(number));
    });
}

// Ends the last step and the profile, and writes it as a trace.
int tprimat_profile_stop(const char* path, char* message, size_t capacity) {
    return guarded(message, capacity, [&] {
        step_mark.reset();
        torch::autograd::profiler::disableProfiler()->save(path);
    });
}
}
