/// Small blocks of a GPU's memory that were freed, for the next tensor of their size: two calls of the driver less for each.
///
/// What was freed in a stream is used again in the same stream alone, where the order of work is the order of calls: as the driver's pool does it.
/// Nothing is kept or taken while a graph is captured, whose memory is its own, of a stream that situ has not made, nor where launches are checked
/// (SITU_CHECK_LAUNCHES): compute-sanitizer then sees each block end.
#pragma once

#include <cstddef>

#include <situ/device/cuda/launch.hpp>
#include <situ/device/memory_statistics.hpp>
#include <situ/device/observe.hpp>
#include <situ/device/order.hpp>

#if defined(SITU_WITH_CUDA)

namespace situ::inline SITU_ABI {
namespace detail::cuda {

struct KeptBlock {
  void* memory;
  std::size_t bytes;
  void* stream;
};
/// Of a device; the oldest first.
struct KeptBlocks {
  static constexpr int places = 32;
  static constexpr std::size_t largest = std::size_t{1} << 20, most = 8 * largest;
  int64_t lock = 0;
  int count = 0;
  std::size_t bytes = 0, limit = most;
  KeptBlock blocks[places] = {};

  KeptBlock take_out(int k) {
    KeptBlock const block = blocks[k];
    for (--count; k < count; ++k) blocks[k] = blocks[k + 1];
    bytes -= block.bytes;
    return block;
  }
};
SITU_PROCESS_STATE KeptBlocks* kept_blocks() {
  static constinit KeptBlocks kept[max_devices] = {};
  return kept;
}

/// Whether a block of the thread's current stream on a device can be one of them. The device is the current one.
inline bool can_be_kept(int device, std::size_t bytes, cudaStream_t stream) noexcept {
  CurrentStream const& current = current_streams()[device];
  return bytes <= KeptBlocks::largest && !current.recorder && !(current.state && current.state->foreign) &&
         __atomic_load_n(&process_state().devices[device].captures, __ATOMIC_RELAXED) == 0 && !launches_are_checked() && !is_capturing(stream);
}

/// A block that was freed in the stream; null where there is none of that size.
inline void* take_kept(int device, std::size_t bytes, cudaStream_t stream) noexcept {
  KeptBlocks& kept = kept_blocks()[device];
  if (__atomic_load_n(&kept.count, __ATOMIC_RELAXED) == 0 || !can_be_kept(device, bytes, stream)) return nullptr;
  SpinLock const guard(kept.lock);
  for (int k = kept.count; k-- > 0;) {
    if (kept.blocks[k].bytes == bytes && kept.blocks[k].stream == stream) return kept.take_out(k).memory;
  }
  return nullptr;
}

/// Gives back what is kept beyond so many bytes, or to make a place.
inline cudaError_t give_back_kept(int device, std::size_t beyond, int places = KeptBlocks::places) noexcept {
  KeptBlocks& kept = kept_blocks()[device];
  KeptBlock blocks[KeptBlocks::places];
  int count = 0;
  {
    SpinLock const guard(kept.lock);
    while (kept.count > 0 && (kept.count > places || kept.bytes > beyond)) blocks[count++] = kept.take_out(0);
  }
  cudaError_t result = cudaSuccess;
  for (int k = 0; k < count; ++k) {
    cudaError_t const code = cudaFreeAsync(blocks[k].memory, static_cast<cudaStream_t>(blocks[k].stream));
    if (code != cudaSuccess) result = code;
  }
  return result;
}

/// Frees a block in the current stream on the current device, or keeps it.
inline cudaError_t free_or_keep(int device, void* memory, std::size_t bytes, cudaStream_t stream) noexcept {
  KeptBlocks& kept = kept_blocks()[device];
  if (bytes > __atomic_load_n(&kept.limit, __ATOMIC_RELAXED) || !can_be_kept(device, bytes, stream)) return cudaFreeAsync(memory, stream);
  cudaError_t code = cudaSuccess;
  for (;;) {
    {
      SpinLock const guard(kept.lock);
      if (kept.count < KeptBlocks::places && kept.bytes + bytes <= kept.limit) {
        kept.blocks[kept.count] = {memory, bytes, stream};
        __atomic_store_n(&kept.count, kept.count + 1, __ATOMIC_RELAXED);
        kept.bytes += bytes;
        return code;
      }
    }
    if (cudaError_t const lost = give_back_kept(device, kept.limit - bytes, KeptBlocks::places - 1); lost != cudaSuccess) code = lost;
  }
}

}  // namespace detail::cuda
}  // namespace situ::inline SITU_ABI

#endif
