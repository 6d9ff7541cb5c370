/// What `Pinned` can do: host memory that GPUs reach directly. Page-locked where CUDA is compiled in and there is a GPU.
#pragma once

#include <cstdint>
#include <cstring>
#include <new>

#include <situ/device/cpu/device.hpp>
#include <situ/device/cuda/errors.hpp>
#include <situ/device/cuda/stream.hpp>
#include <situ/device/host_functions.hpp>

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
  free_what_copies_left();
  PinnedHooks const hooks = pinned_hooks();
  void* block = nullptr;
  auto deallocate = hooks.deallocate;
  ObservedAllocation allocation(place_of<Pinned>, bytes);
  MemoryCounters& counters = memory_counters(place_of<Pinned>);
  if (bytes > SIZE_MAX - PinnedHead::bytes || !counters.within_limit(bytes)) cpu::out_of_memory(bytes, place_of<Pinned>, nullptr);
  if (hooks.allocate) block = hooks.allocate(bytes + PinnedHead::bytes);
  if (!block) {
    block = cpu::take(bytes + PinnedHead::bytes);
    if (!block) cpu::out_of_memory(bytes, place_of<Pinned>);
    deallocate = nullptr;
  }
  counters.add(static_cast<int64_t>(bytes));
  ::new (block) PinnedHead{deallocate};
  return allocation.done(static_cast<char*>(block) + PinnedHead::bytes);
}

inline void deallocate_pinned(void* memory, std::size_t bytes) noexcept {
  ObservedAllocation::released(place_of<Pinned>, bytes);
  memory_counters(place_of<Pinned>).remove(static_cast<int64_t>(bytes));
  void* const block = static_cast<char*>(memory) - PinnedHead::bytes;
  auto const deallocate = static_cast<PinnedHead*>(block)->deallocate;
  if (deallocate) deallocate(block);
  else cpu::give(block, bytes + PinnedHead::bytes);
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
  if (code == cudaErrorMemoryAllocation) cpu::out_of_memory(bytes, place_of<Pinned>, "cudaHostAlloc");
  fail<CudaError>("pinned: cudaHostAlloc of ", bytes, " bytes failed: ", cudaGetErrorName(code), " (", cudaGetErrorString(code), ")");
}

inline void deallocate_page_locked(void* memory) noexcept {
  report(-1, "cudaFreeHost", cudaFreeHost(memory));
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

  static void await_copies(detail::StorageHead& head, bool writes) { detail::await_copies(head, writes); }
  static void end_uses(detail::StorageHead& head) noexcept { detail::end_copies(head); }
  static bool deallocate_after_copies(detail::StorageHead& head, void* memory, std::size_t bytes) noexcept {
    return detail::deallocate_after_copies(head, memory, bytes, &detail::deallocate_pinned);
  }
};

}  // namespace situ::inline SITU_ABI
