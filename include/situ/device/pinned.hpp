/// What `Pinned` can do: host memory that GPUs reach directly. Page-locked where CUDA is compiled in and there is a GPU.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <new>

#include <situ/device/cpu/device.hpp>
#include <situ/device/cuda/stream.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// How page-locked memory is had: set by files that are compiled with CUDA, so that all others share it. One per process.
struct PinnedHooks {
  void* (*allocate)(std::size_t bytes);  ///< null where nothing can be locked; throws OutOfMemory
  void (*deallocate)(void* memory) noexcept;
};

SITU_PROCESS_STATE PinnedHooks& pinned_hooks() {
  static constinit PinnedHooks hooks{};
  return hooks;
}

/// In front of every block: how it is freed, since blocks may be older than the hooks.
struct PinnedHead {
  static constexpr std::size_t bytes = 64;
  void (*deallocate)(void* memory) noexcept;  ///< null: ordinary memory
};

inline void* allocate_pinned(std::size_t bytes) {
  PinnedHooks const hooks = pinned_hooks();
  void* block = nullptr;
  auto deallocate = hooks.deallocate;
  if (bytes > SIZE_MAX - PinnedHead::bytes) cpu::out_of_memory(bytes);
  if (hooks.allocate) block = hooks.allocate(bytes + PinnedHead::bytes);
  if (!block) {
    block = cpu::allocate(bytes + PinnedHead::bytes);
    deallocate = nullptr;
  }
  ::new (block) PinnedHead{deallocate};
  return static_cast<char*>(block) + PinnedHead::bytes;
}

inline void deallocate_pinned(void* memory, std::size_t bytes) noexcept {
  void* const block = static_cast<char*>(memory) - PinnedHead::bytes;
  auto const deallocate = static_cast<PinnedHead*>(block)->deallocate;
  if (deallocate) deallocate(block);
  else cpu::deallocate(block, bytes + PinnedHead::bytes);
}

#if defined(SITU_WITH_CUDA)
namespace cuda {
inline namespace SITU_ABI_CUDA {

inline void* allocate_page_locked(std::size_t bytes) {
  if (device_count() == 0) return nullptr;
  void* memory = nullptr;
  cudaError_t const code = cudaHostAlloc(&memory, bytes, cudaHostAllocPortable);
  if (code == cudaSuccess) return memory;
  (void)cudaGetLastError();
  if (code == cudaErrorMemoryAllocation) {
    fail<OutOfMemory>("pinned: cudaHostAlloc of ", bytes, " bytes failed: the system cannot lock that much memory: free pinned tensors, raise the limit "
                      "(ulimit -l), or use Cpu");
  }
  fail<CudaError>("pinned: cudaHostAlloc of ", bytes, " bytes failed: ", cudaGetErrorName(code), " (", cudaGetErrorString(code), ")");
}

inline void deallocate_page_locked(void* memory) noexcept {
  cudaError_t const code = cudaFreeHost(memory);
  if (code == cudaSuccess || code == cudaErrorCudartUnloading || code == cudaErrorContextIsDestroyed) return;
  (void)cudaGetLastError();
  std::fprintf(stderr, "situ: pinned: cudaFreeHost failed: %s (%s)\n", cudaGetErrorName(code), cudaGetErrorString(code));
}

inline bool const pinned_hooks_are_set = [] {
  pinned_hooks() = {&allocate_page_locked, &deallocate_page_locked};
  return true;
}();

}  // namespace SITU_ABI_CUDA
}  // namespace cuda
#endif

}  // namespace detail

template <>
struct device_traits<Pinned> {
  static constexpr bool host_memory = true;
  static constexpr bool immediate = true;
  static constexpr bool head_before_data = true;
  using kernels = cpu_kernels;
  using result_device = Cpu;

  static std::string name() { return "pinned"; }
  static void* allocate(std::size_t bytes) { return detail::allocate_pinned(bytes); }
  static void deallocate(void* memory, std::size_t bytes) noexcept { detail::deallocate_pinned(memory, bytes); }
  static void copy(void* to, void const* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
  static void copy_from_host(void* to, void const* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
  static void copy_to_host(void* to, void const* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
  template <class Kernel>
  static void launch(Kernel const& kernel, int64_t items, int64_t grain) {
    detail::cpu::launch(kernel, items, grain);
  }
  static void synchronize() {}
};

}  // namespace situ::inline SITU_ABI
