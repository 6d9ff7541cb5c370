/// Launching kernels on a GPU: checked, on the device's current stream, with numbers that were looked up once.
#pragma once

#include <situ/device/cuda/stream.hpp>

#if defined(__CUDACC__)

namespace situ::inline SITU_ABI {
namespace detail::cuda {

inline constexpr int block_threads = 256;

/// Unsigned division by a number that is known before the launch, for numerators below 2^31:
/// q = (high(n * multiplier) + n) >> shift.
struct FastDivisor {
  uint32_t divisor, multiplier, shift;

  static FastDivisor of(int64_t d) {
    FastDivisor result{static_cast<uint32_t>(d), 0, 0};
    while (result.shift < 32 && (uint64_t{1} << result.shift) < static_cast<uint64_t>(d)) ++result.shift;
    result.multiplier =
        static_cast<uint32_t>((uint64_t{1} << 32) * ((uint64_t{1} << result.shift) - static_cast<uint64_t>(d)) / static_cast<uint64_t>(d) + 1);
    return result;
  }
  SITU_DEVICE uint32_t quotient(uint32_t n) const { return (__umulhi(n, multiplier) + n) >> shift; }
};

/// How many blocks fill the device once, at eight blocks for each multiprocessor.
inline int64_t full_grid(int device) {
  require_device(device);
  return int64_t{8} * __atomic_load_n(&process_state().devices[device].multiprocessors, __ATOMIC_RELAXED);
}

/// Starts kernel(argument). `what` names it in messages. Throws CudaError, DeviceUnavailable.
template <class Argument>
void launch(int device, char const* what, void (*kernel)(Argument), dim3 blocks, int threads, std::remove_cv_t<Argument> const& argument) {
  DeviceGuard const guard(device);
  void* arguments[] = {const_cast<void*>(static_cast<void const*>(&argument))};
  cudaError_t const code = cudaLaunchKernel(reinterpret_cast<void const*>(kernel), blocks, dim3(static_cast<unsigned>(threads)), arguments, 0, current_stream(device));
  check(device, code, "launching ", what);
}

}  // namespace detail::cuda
}  // namespace situ::inline SITU_ABI

#endif
