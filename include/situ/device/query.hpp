/// Questions about GPUs and memory. They work in every build: without CUDA there is no GPU, and it holds nothing.
#pragma once

#include <string>

#include <situ/device/any.hpp>
#include <situ/device/cpu/memory.hpp>
#include <situ/device/cuda/memory.hpp>

namespace situ::inline SITU_ABI {
namespace gpu {

/// Bytes of a GPU's memory.
struct MemoryInfo {
  int64_t free = 0, total = 0;
};

inline namespace SITU_ABI_CUDA {

/// How many GPUs this program can use: 0 in a build without CUDA, without a driver, and without a GPU.
inline int device_count() noexcept { return detail::cuda::device_count(); }

/// Whether there is a GPU.
inline bool is_available() noexcept { return device_count() > 0; }

/// The name of GPU i, as its maker calls it. Throws DeviceUnavailable when there is no such GPU.
inline std::string device_name([[maybe_unused]] int i = 0) {
#if defined(SITU_WITH_CUDA)
  detail::cuda::require_device(i);
  cudaDeviceProp properties;
  detail::cuda::check(i, cudaGetDeviceProperties(&properties, i), "cudaGetDeviceProperties");
  return properties.name;
#else
  detail::fail<DeviceUnavailable>("cuda:", i, ": there is no such device: this program was built without CUDA");
#endif
}

/// The free and the total memory of GPU i; zeros where there is no such GPU. What situ's pool keeps counts as used.
inline MemoryInfo memory_info([[maybe_unused]] int i = 0) {
#if defined(SITU_WITH_CUDA)
  if (i >= 0 && i < device_count()) {
    detail::cuda::DeviceGuard const guard(i);
    std::size_t free = 0, total = 0;
    detail::cuda::check(i, cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return {static_cast<int64_t>(free), static_cast<int64_t>(total)};
  }
#endif
  return {};
}

/// Bytes of the device's memory that are held for tensors, those in use and those kept for reuse. The host's count is of blocks from
/// 1 MiB on.
inline int64_t memory_reserved(AnyDevice const& d) {
  if (d.is_cuda()) return detail::cuda::reserved_bytes(d.ordinal());
  if (d.type() != AnyDevice::kind::cpu) return 0;
  detail::cpu::MemoryState const& state = detail::cpu::memory_state();
  return __atomic_load_n(&state.allocated, __ATOMIC_RELAXED) + __atomic_load_n(&state.kept, __ATOMIC_RELAXED);
}
inline int64_t memory_reserved(int i) { return memory_reserved(AnyDevice::cuda(i)); }

/// Gives memory that is kept for reuse back to the system: the host's, and that of the GPUs that were used. Waits for those.
inline void empty_cache() {
  detail::cpu::empty_cache();
#if defined(SITU_WITH_CUDA)
  for (int i = 0; i < device_count(); ++i) {
    if (!__atomic_load_n(&detail::cuda::process_state().devices[i].ready, __ATOMIC_ACQUIRE)) continue;
    detail::cuda::DeviceGuard const guard(i);
    cudaMemPool_t pool = nullptr;
    detail::cuda::check(i, cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    detail::cuda::check(i, cudaDeviceGetDefaultMemPool(&pool, i), "cudaDeviceGetDefaultMemPool");
    detail::cuda::check(i, cudaMemPoolTrimTo(pool, 0), "cudaMemPoolTrimTo");
  }
#endif
}

}  // namespace SITU_ABI_CUDA

/// Bytes that tensors hold on the device (a tag, an AnyDevice, or the number of a GPU). The host's count is of blocks from 1 MiB on.
inline int64_t memory_allocated(AnyDevice const& d) {
  if (d.is_cuda() && d.ordinal() >= 0 && d.ordinal() < detail::cuda::max_devices) {
    return __atomic_load_n(&detail::cuda::process_state().devices[d.ordinal()].allocated, __ATOMIC_RELAXED);
  }
  return d.type() == AnyDevice::kind::cpu ? __atomic_load_n(&detail::cpu::memory_state().allocated, __ATOMIC_RELAXED) : 0;
}

/// The most that memory_allocated has been.
inline int64_t max_memory_allocated(AnyDevice const& d) {
  if (d.is_cuda() && d.ordinal() >= 0 && d.ordinal() < detail::cuda::max_devices) {
    return __atomic_load_n(&detail::cuda::process_state().devices[d.ordinal()].peak, __ATOMIC_RELAXED);
  }
  return d.type() == AnyDevice::kind::cpu ? __atomic_load_n(&detail::cpu::memory_state().peak, __ATOMIC_RELAXED) : 0;
}
inline int64_t memory_allocated(int i) { return memory_allocated(AnyDevice::cuda(i)); }
inline int64_t max_memory_allocated(int i) { return max_memory_allocated(AnyDevice::cuda(i)); }

}  // namespace gpu
}  // namespace situ::inline SITU_ABI
