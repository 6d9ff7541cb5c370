/// Questions about GPUs, and about every device's memory. They work in every build: without CUDA there is no GPU, and it holds nothing. And
/// waiting for a device that is known only at run time.
///
/// A device is a tag (`Cuda<0>{}`, `Cpu{}`), an AnyDevice, or the number of a GPU. *Allocated* is what tensors and operations in flight
/// hold; on the host the heads of the tensors are part of it. *Reserved* is that and what situ keeps for the next allocation.
#pragma once

#include <string>

#include <situ/device/any.hpp>
#include <situ/device/cpu/memory.hpp>
#include <situ/device/cuda/memory.hpp>
#include <situ/device/emulated/statistics.hpp>
#include <situ/device/memory_statistics.hpp>
#include <situ/device/pinned.hpp>
#include <situ/device/stream.hpp>

namespace situ::inline SITU_ABI {
namespace gpu {

/// Bytes of a device's memory.
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

/// The free and the total memory of a device; zeros where there is no such GPU. What situ keeps counts as used; on the host free is what
/// could be had without swapping.
inline MemoryInfo memory_info(AnyDevice const& d) {
  switch (d.type()) {
    case AnyDevice::kind::cuda: {
      auto const [free, total] = detail::cuda::device_memory(d.ordinal());
      return {free, total};
    }
    case AnyDevice::kind::emulated: {
      auto const use = detail::emulated::pool_use(d.ordinal());
      return {use.total - use.reserved, use.total};
    }
    default: {
      auto const [free, total] = detail::cpu::system_memory();
      return {free, total};
    }
  }
}
inline MemoryInfo memory_info(int i = 0) { return memory_info(AnyDevice::cuda(i)); }

/// Bytes that are held for tensors, those in use and those kept for reuse.
inline int64_t memory_reserved(AnyDevice const& d) {
  switch (d.type()) {
    case AnyDevice::kind::cuda: return detail::cuda::reserved_bytes(d.ordinal());
    case AnyDevice::kind::emulated: return detail::emulated::pool_use(d.ordinal()).reserved;
    case AnyDevice::kind::cpu: {
      auto const use = detail::cpu::memory_use();
      return use.allocated + use.kept;
    }
    default: {  // what keeps nothing holds what is in use
      int64_t const kept = d.type() == AnyDevice::kind::pinned ? detail::kept_pinned_bytes() : 0;
      return __atomic_load_n(&detail::memory_counters(d.place()).allocated, __ATOMIC_RELAXED) + kept;
    }
  }
}
inline int64_t memory_reserved(int i = 0) { return memory_reserved(AnyDevice::cuda(i)); }

/// Gives memory that is kept for reuse back to the system: the host's, pinned memory, and that of the GPUs and emulated devices that were used. Waits for
/// those. situ itself does so before an allocation fails.
inline void empty_cache() {
  detail::cpu::empty_cache();
  detail::emulated::empty_cache();
  for (int i = 0; i < device_count(); ++i) detail::cuda::empty_cache(i);
  detail::free_what_copies_left();
  detail::release_pinned(0);
}

/// How many bytes that were freed are kept for reuse rather than given back: on a GPU the release threshold of the driver's pool, which
/// gives back what is beyond it whenever the device is waited for. All are kept at first, small blocks by situ itself; on the host 1 GiB is, and as much
/// pinned memory. A device of your own keeps nothing: there it does nothing.
/// Throws ShapeError for a negative number, DeviceUnavailable.
inline void set_release_threshold(int64_t bytes, AnyDevice const& d) {
  if (bytes < 0) detail::fail<ShapeError>("set_release_threshold: ", bytes, " bytes were asked for; 0 keeps nothing");
  switch (d.type()) {
    case AnyDevice::kind::cuda: return detail::cuda::set_release_threshold(d.ordinal(), bytes);
    case AnyDevice::kind::emulated: return detail::emulated::set_release_threshold(d.ordinal(), bytes);
    case AnyDevice::kind::cpu: return detail::cpu::set_release_threshold(bytes);
    case AnyDevice::kind::pinned: return detail::set_pinned_release_threshold(bytes);
    default: return;
  }
}
inline void set_release_threshold(int64_t bytes, int i = 0) { set_release_threshold(bytes, AnyDevice::cuda(i)); }

/// Limits what this process may hold of a device to a fraction of its memory: an allocation beyond it is OutOfMemory, after what is kept was
/// given back. 1 lifts the limit. What is allocated stays. On the host blocks from 128 KiB on are refused. (PyTorch:
/// set_per_process_memory_fraction.) Throws ShapeError unless 0 < fraction ≤ 1, DeviceUnavailable.
inline void set_memory_fraction(double fraction, AnyDevice const& d) {
  if (!(fraction > 0 && fraction <= 1)) detail::fail<ShapeError>("set_memory_fraction: ", fraction, " is not a fraction: it must be above 0 and at most 1");
  if (d.is_cuda()) detail::cuda::use_device(d.ordinal());
  if (d.type() == AnyDevice::kind::emulated) detail::emulated::require_device(d.ordinal());
  int64_t const total = memory_info(d).total;
  int64_t limit = fraction == 1 ? 0 : static_cast<int64_t>(static_cast<double>(total) * fraction);
  if (fraction < 1 && limit < 1) limit = 1;
  __atomic_store_n(&detail::memory_counters(d.place()).limit, limit, __ATOMIC_RELAXED);
}
inline void set_memory_fraction(double fraction, int i = 0) { set_memory_fraction(fraction, AnyDevice::cuda(i)); }

}  // namespace SITU_ABI_CUDA

/// Bytes that tensors hold on the device, exactly.
inline int64_t memory_allocated(AnyDevice const& d) {
  if (d.type() == AnyDevice::kind::cpu) return detail::cpu::memory_use().allocated;
  return __atomic_load_n(&detail::memory_counters(d.place()).allocated, __ATOMIC_RELAXED);
}
inline int64_t memory_allocated(int i = 0) { return memory_allocated(AnyDevice::cuda(i)); }

/// The most that memory_allocated has been since the start or reset_peak_memory_stats. On the host exact while one thread allocates;
/// with several, small blocks may be missing, at most 1 MiB per thread.
inline int64_t max_memory_allocated(AnyDevice const& d) {
  if (d.type() == AnyDevice::kind::cpu) return detail::cpu::memory_use().peak;
  return __atomic_load_n(&detail::memory_counters(d.place()).peak, __ATOMIC_RELAXED);
}
inline int64_t max_memory_allocated(int i = 0) { return max_memory_allocated(AnyDevice::cuda(i)); }

/// Starts max_memory_allocated again from what is allocated now.
inline void reset_peak_memory_stats(AnyDevice const& d) {
  if (d.type() == AnyDevice::kind::cpu) {
    (void)detail::cpu::memory_use(true);
    return;
  }
  detail::MemoryCounters& counters = detail::memory_counters(d.place());
  detail::SpinLock const guard(counters.lock);
  __atomic_store_n(&counters.peak, counters.allocated, __ATOMIC_RELAXED);
}
inline void reset_peak_memory_stats(int i = 0) { reset_peak_memory_stats(AnyDevice::cuda(i)); }

inline namespace SITU_ABI_CUDA {

/// All of it in words, over several lines.
inline std::string memory_summary(AnyDevice const& d) {
  using detail::bytes_text;
  detail::MemoryCounters& counters = detail::memory_counters(d.place());
  bool const is_cpu = d.type() == AnyDevice::kind::cpu;
  MemoryInfo const info = memory_info(d);
  int64_t const limit = __atomic_load_n(&counters.limit, __ATOMIC_RELAXED);
  std::string result = detail::text(d, ": ", bytes_text(memory_allocated(d)), " allocated, at most ", bytes_text(max_memory_allocated(d)), "; ", bytes_text(memory_reserved(d)),
                                    " reserved\n  ", bytes_text(info.free), " of ", bytes_text(info.total), " free; ");
  result += limit ? "limited to " + bytes_text(limit) + " for this process\n" : "no limit for this process\n";
  result += detail::text("  ", __atomic_load_n(&counters.allocations, __ATOMIC_RELAXED), " allocations", is_cpu ? " of 128 KiB or more" : "", ", ",
                         __atomic_load_n(&counters.live, __ATOMIC_RELAXED), " live; ", __atomic_load_n(&counters.retries, __ATOMIC_RELAXED),
                         " after emptying the cache, ", __atomic_load_n(&counters.failures, __ATOMIC_RELAXED), " failed\n");
  detail::MessageText largest;
  detail::append_largest(largest, counters, 10);
  return result + "  largest: " + largest.c_str() + "\n";
}
inline std::string memory_summary(int i = 0) { return memory_summary(AnyDevice::cuda(i)); }

}  // namespace SITU_ABI_CUDA

/// Has every launch waited for from now on, so that an error is thrown by the operation that caused it and names it: what
/// SITU_CHECK_LAUNCHES=1 in the environment does from the start. For finding mistakes: it costs all overlap.
inline void check_launches(bool on) noexcept { (void)detail::set_launch_checks(on); }

}  // namespace gpu

inline namespace SITU_ABI_CUDA {

/// As synchronize of a tag, for a device that is known only at run time. Throws DeviceUnavailable when it is not there.
inline void synchronize(AnyDevice const& d) {
  switch (d.type()) {
    case AnyDevice::kind::cuda:
#if defined(SITU_WITH_CUDA)
      detail::cuda::require_device(d.ordinal());
      detail::cuda::wait_for_device<0>(d.ordinal());
      break;
#else
      detail::fail<DeviceUnavailable>(d, ": there is no such device: this program was built without CUDA");
#endif
    case AnyDevice::kind::emulated:
      detail::emulated::synchronize(d.ordinal());
      detail::throw_failures(detail::emulated::driver(), d.ordinal());
      break;
    default: d.synchronize_own();
  }
  detail::free_what_copies_left();
}

}  // namespace SITU_ABI_CUDA
}  // namespace situ::inline SITU_ABI
