/// Small blocks of a GPU's memory that were freed in its default stream, for the next tensor of their size there: two calls of the driver less for each.
///
/// The default stream cannot be captured, and what is enqueued on it runs in the order of the calls: the next tensor is written when the last one has
/// been read, as with the driver's pool. Nothing is kept while a graph is recorded, whose memory is its own, with a release threshold, and with
/// SITU_KEEP_BLOCKS=0 in the environment: compute-sanitizer then sees each block end.
#pragma once

#include <cstddef>
#include <cstdlib>

#include <situ/device/cuda/launch.hpp>
#include <situ/device/memory_statistics.hpp>

#if defined(SITU_WITH_CUDA)

namespace situ::inline SITU_ABI {
namespace detail::cuda {

/// Of a device; the oldest first.
struct KeptBlocks {
  static constexpr int places = 32;
  static constexpr std::size_t largest = std::size_t{4} << 20, most = 8 * largest;
  struct Block {
    void* memory;
    std::size_t bytes;
  };
  int64_t lock = 0;
  bool off = false;  ///< the pool was told to give memory back
  int count = 0;
  std::size_t bytes = 0;
  Block blocks[places] = {};

  Block take_out(int k) {
    Block const block = blocks[k];
    int const left = count - 1;
    for (; k < left; ++k) blocks[k] = blocks[k + 1];
    __atomic_store_n(&count, left, __ATOMIC_RELAXED);
    bytes -= block.bytes;
    return block;
  }
};
SITU_PROCESS_STATE KeptBlocks* kept_blocks() {
  static constinit KeptBlocks kept[max_devices] = {};
  return kept;
}

inline bool blocks_are_kept() noexcept {
  static bool const wanted = [] {
    char const* const said = std::getenv("SITU_KEEP_BLOCKS");
    return !said || *said != '0';
  }();
  return wanted;
}
/// Whether a block that this thread takes or frees in a stream can be one of them.
inline bool can_be_kept(int device, std::size_t bytes, cudaStream_t stream) noexcept {
  return bytes <= KeptBlocks::largest && stream == cudaStreamLegacy && !current_streams()[device].recorder && blocks_are_kept() &&
         __atomic_load_n(&process_state().devices[device].captures, __ATOMIC_RELAXED) == 0;
}

/// A block that was kept; null where there is none of that size.
inline void* take_kept(int device, std::size_t bytes, cudaStream_t stream) noexcept {
  KeptBlocks& kept = kept_blocks()[device];
  if (__atomic_load_n(&kept.count, __ATOMIC_RELAXED) == 0 || !can_be_kept(device, bytes, stream)) return nullptr;
  SpinLock const guard(kept.lock);
  for (int k = kept.count; k-- > 0;) {
    if (kept.blocks[k].bytes == bytes) return kept.take_out(k).memory;
  }
  return nullptr;
}

/// Gives back all that is kept on the current device. Where `off` says so, nothing is kept from now on, or again.
inline cudaError_t give_back_kept(int device, bool const* off = nullptr) noexcept {
  KeptBlocks& kept = kept_blocks()[device];
  cudaError_t result = cudaSuccess;
  SpinLock const guard(kept.lock);
  if (off) kept.off = *off;
  while (kept.count > 0) {
    if (cudaError_t const code = cudaFreeAsync(kept.take_out(0).memory, cudaStreamLegacy); code != cudaSuccess) result = code;
  }
  return result;
}

/// Frees a block in a stream of the current device, or keeps it, in the place of the oldest one where there is none.
inline cudaError_t free_or_keep(int device, void* memory, std::size_t bytes, cudaStream_t stream) noexcept {
  if (!can_be_kept(device, bytes, stream)) return cudaFreeAsync(memory, stream);
  KeptBlocks& kept = kept_blocks()[device];
  cudaError_t result = cudaSuccess;
  SpinLock const guard(kept.lock);
  if (kept.off) return cudaFreeAsync(memory, stream);
  while (kept.count == KeptBlocks::places || kept.bytes + bytes > KeptBlocks::most) {
    if (cudaError_t const code = cudaFreeAsync(kept.take_out(0).memory, stream); code != cudaSuccess) result = code;
  }
  kept.blocks[kept.count] = {memory, bytes};
  __atomic_store_n(&kept.count, kept.count + 1, __ATOMIC_RELAXED);
  kept.bytes += bytes;
  return result;
}

}  // namespace detail::cuda
}  // namespace situ::inline SITU_ABI

#endif
