/// What `Pinned` can do: host memory that GPUs reach directly. Page-locked where CUDA is compiled in and there is a GPU.
#pragma once

#include <cstdint>
#include <cstring>
#include <new>

#include <situ/device/cpu/device.hpp>
#include <situ/device/cpu/system.hpp>
#include <situ/device/cuda/errors.hpp>
#include <situ/device/cuda/stream.hpp>
#include <situ/device/host_functions.hpp>
#include <situ/device/memory_statistics.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// How page-locked memory is had: set by files that are compiled with CUDA, so that all others share it. One per process.
struct PinnedHooks {
  void* (*allocate)(std::size_t bytes);  ///< null where nothing can be locked; throws OutOfMemory
  void (*deallocate)(void* memory, std::size_t bytes) noexcept;
  void (*unlock)(void* memory) noexcept;  ///< gives back what was kept
};

SITU_PROCESS_STATE PinnedHooks& pinned_hooks() {
  static constinit PinnedHooks hooks{};
  return hooks;
}

/// Page-locked memory that is kept for the next allocation: to lock pages takes the driver milliseconds, and to unlock them may wait for all that runs on every
/// GPU. No copy uses what is here: it comes here when its copies have ended. One per process.
struct KeptPages {
  KeptPages* next;
  std::size_t bytes;
};
struct PinnedCache {
  int64_t lock = 0;            ///< not held while a driver is called
  KeptPages* first = nullptr;  ///< each stands at the beginning of its block
  int64_t bytes = 0, threshold = int64_t{1} << 30;
};
SITU_PROCESS_STATE PinnedCache& pinned_cache() {
  static constinit PinnedCache cache;
  return cache;
}
inline KeptPages* take_kept_pages(std::size_t bytes) noexcept {
  SpinLock const guard(pinned_cache().lock);
  int tries = 256;  // of the latest ones
  for (KeptPages** link = &pinned_cache().first; *link && tries-- > 0; link = &(*link)->next) {
    if ((*link)->bytes != bytes) continue;
    pinned_cache().bytes -= static_cast<int64_t>(bytes);
    return std::exchange(*link, (*link)->next);
  }
  return nullptr;
}
/// False where so much is kept already, or what this process may hold is limited.
inline bool keep_pages(void* memory, std::size_t bytes) noexcept {
  PinnedCache& cache = pinned_cache();
  SpinLock const guard(cache.lock);
  bool const limited = __atomic_load_n(&memory_counters(place_of<Pinned>).limit, __ATOMIC_RELAXED) != 0;
  if (limited || cache.bytes + static_cast<int64_t>(bytes) > cache.threshold) return false;
  cache.bytes += static_cast<int64_t>(bytes);
  cache.first = ::new (memory) KeptPages{cache.first, bytes};
  return true;
}
inline int64_t kept_pinned_bytes() noexcept {
  SpinLock const guard(pinned_cache().lock);
  return pinned_cache().bytes;
}
/// What is kept beyond so many bytes goes back.
inline void release_pinned(int64_t kept) noexcept {
  for (;;) {
    KeptPages* one = nullptr;
    {
      PinnedCache& cache = pinned_cache();
      SpinLock const guard(cache.lock);
      if (cache.bytes <= kept) return;
      one = std::exchange(cache.first, cache.first->next);
      cache.bytes -= static_cast<int64_t>(one->bytes);
    }
    pinned_hooks().unlock(one);
  }
}
inline void set_pinned_release_threshold(int64_t bytes) noexcept {
  {
    SpinLock const guard(pinned_cache().lock);
    pinned_cache().threshold = bytes;
  }
  release_pinned(bytes);
}

/// In front of every block: how it is freed, since blocks may be older than the hooks.
struct PinnedHead {
  static constexpr std::size_t bytes = 64;
  void (*deallocate)(void* memory, std::size_t bytes) noexcept;  ///< null: ordinary memory
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
  if (SITU_UNLIKELY(host_function_stream() != nullptr)) return free_later(nullptr, memory, bytes, &deallocate_pinned);
  ObservedAllocation::released(place_of<Pinned>, bytes);
  memory_counters(place_of<Pinned>).remove(static_cast<int64_t>(bytes));
  void* const block = static_cast<char*>(memory) - PinnedHead::bytes;
  auto const deallocate = static_cast<PinnedHead*>(block)->deallocate;
  if (deallocate) deallocate(block, bytes + PinnedHead::bytes);
  else cpu::give(block, bytes + PinnedHead::bytes);
}

#if defined(SITU_WITH_CUDA)
namespace cuda {
inline namespace SITU_ABI_CUDA {

/// Whole pages, of 16 sizes to an octave: what is freed serves what is nearly as large.
inline std::size_t page_locked_size(std::size_t bytes) {
  std::size_t step = 4096;
  while (step < bytes / 32) step *= 2;
  return bytes > SIZE_MAX - step ? bytes : (bytes + step - 1) / step * step;
}
/// A device that has been used, the current one first: to lock or unlock pages the driver makes a context where there is none, which takes its memory.
inline int used_device() noexcept {
  int current = 0, used = -1;
  if (cudaGetDevice(&current) != cudaSuccess) (void)cudaGetLastError();
  for (int device = 0; device < device_count(); ++device) {
    if (__atomic_load_n(&process_state().devices[device].ready, __ATOMIC_ACQUIRE) && (used < 0 || device == current)) used = device;
  }
  return used < 0 ? current : used;
}
inline cudaError_t lock_pages(void** memory, std::size_t bytes) noexcept {
  DeviceSwitch const there(used_device());
  return cudaHostAlloc(memory, bytes, cudaHostAllocPortable);
}
inline void* allocate_page_locked(std::size_t bytes) {
  if (device_count() == 0) return nullptr;
  std::size_t const size = page_locked_size(bytes);
  if (__atomic_load_n(&memory_counters(place_of<Pinned>).limit, __ATOMIC_RELAXED) != 0) release_pinned(0);
  if (void* const kept = take_kept_pages(size)) return kept;
  void* memory = nullptr;
  cudaError_t code = lock_pages(&memory, size);
  if (code == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    release_pinned(0);
    code = lock_pages(&memory, size);
  }
  if (code == cudaSuccess) return memory;
  (void)cudaGetLastError();
  if (code == cudaErrorMemoryAllocation) cpu::out_of_memory(bytes, place_of<Pinned>, "cudaHostAlloc");
  fail<CudaError>("pinned: cudaHostAlloc of ", size, " bytes failed: ", cudaGetErrorName(code), " (", cudaGetErrorString(code), ")");
}

inline void unlock_pages(void* memory) noexcept {
  DeviceSwitch const there(used_device());
  report(-1, "cudaFreeHost", cudaFreeHost(memory));
}
inline void deallocate_page_locked(void* memory, std::size_t bytes) noexcept {
  if (!keep_pages(memory, page_locked_size(bytes))) unlock_pages(memory);
}

inline bool const pinned_hooks_are_set = [] {
  if (pinned_hooks().allocate) return true;
  detail::cpu::stay_loaded(reinterpret_cast<void const*>(&allocate_page_locked));
  pinned_hooks() = {&allocate_page_locked, &deallocate_page_locked, &unlock_pages};
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
  static void copy(void* to, void const* from, std::size_t bytes) { detail::cpu::copy_bytes(to, from, bytes); }
  static void copy_from_host(void* to, void const* from, std::size_t bytes) { detail::cpu::copy_bytes(to, from, bytes); }
  static void copy_to_host(void* to, void const* from, std::size_t bytes) { detail::cpu::copy_bytes(to, from, bytes); }
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
