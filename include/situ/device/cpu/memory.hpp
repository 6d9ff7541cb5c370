/// Host memory: aligned to 64 bytes, large blocks on huge pages and kept for the next tensor of their size.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <utility>

#include <situ/core/error.hpp>
#include <situ/core/scalar.hpp>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace situ::inline SITU_ABI {
namespace detail::cpu {

inline constexpr std::size_t alignment = 64;
inline constexpr std::size_t large_block = std::size_t{1} << 20;
inline constexpr std::size_t huge_page = std::size_t{2} << 20;

/// Counts and a few freed large blocks: a fresh result then costs no page faults. One per process.
struct MemoryState {
  static constexpr int kept_blocks = 8;
  int64_t lock = 0;
  int64_t allocated = 0, peak = 0, kept = 0;
  int64_t keep_limit = int64_t{1} << 30;
  struct Block {
    void* memory;
    std::size_t bytes;
  } blocks[kept_blocks] = {};
};

SITU_PROCESS_STATE MemoryState& memory_state() {
  static constinit MemoryState state;
  return state;
}

struct MemoryLock {
  MemoryState& state;
  explicit MemoryLock(MemoryState& s) : state(s) {
    while (__atomic_exchange_n(&state.lock, 1, __ATOMIC_ACQUIRE)) {
    }
  }
  MemoryLock(MemoryLock const&) = delete;
  MemoryLock& operator=(MemoryLock const&) = delete;
  ~MemoryLock() { __atomic_store_n(&state.lock, 0, __ATOMIC_RELEASE); }
};

constexpr std::size_t rounded_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

inline void release_block(MemoryState::Block const& block) noexcept {
#if defined(__linux__)
  ::munmap(block.memory, block.bytes);
#else
  std::free(block.memory);
#endif
}

[[noreturn]] __attribute__((noinline, cold)) inline void out_of_memory(std::size_t bytes) {
  fail<OutOfMemory>("cpu: allocation of ", bytes, " bytes failed: the system has no memory of that size left; ", memory_state().allocated,
                    " bytes are in use by situ and ", memory_state().kept,
                    " are kept for reuse: free tensors, call empty_cache(), or work on smaller parts");
}

/// A large block: one that was kept, else new pages. Block sizes are rounded so that similar sizes share blocks.
inline void* allocate_large(std::size_t bytes) {
  std::size_t const unit = bytes >= 4 * huge_page ? huge_page : std::size_t{1} << 16;
  if (bytes > (std::size_t{1} << 62)) out_of_memory(bytes);
  std::size_t const size = rounded_up(bytes, unit);
  MemoryState& state = memory_state();
  {
    MemoryLock guard(state);
    for (auto& block : state.blocks) {
      if (block.memory && block.bytes == size) {
        state.kept -= static_cast<int64_t>(size);
        state.allocated += static_cast<int64_t>(size);
        if (state.allocated > state.peak) state.peak = state.allocated;
        return std::exchange(block, {}).memory;
      }
    }
  }
#if defined(__linux__)
  std::size_t const slack = unit == huge_page ? huge_page : 0;
  void* const mapped = ::mmap(nullptr, size + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) out_of_memory(bytes);
  char* memory = static_cast<char*>(mapped);
  if (slack) {
    auto const address = reinterpret_cast<std::uintptr_t>(memory);
    std::size_t const before = rounded_up(address, huge_page) - address;
    if (before) ::munmap(memory, before);
    if (slack - before) ::munmap(memory + before + size, slack - before);
    memory += before;
#if defined(MADV_HUGEPAGE)
    ::madvise(memory, size, MADV_HUGEPAGE);
#endif
  }
#else
  void* const memory = std::aligned_alloc(huge_page, rounded_up(size, huge_page));
  if (!memory) out_of_memory(bytes);
#endif
  MemoryLock guard(state);
  state.allocated += static_cast<int64_t>(size);
  if (state.allocated > state.peak) state.peak = state.allocated;
  return memory;
}

inline void deallocate_large(void* memory, std::size_t bytes) noexcept {
  std::size_t const unit = bytes >= 4 * huge_page ? huge_page : std::size_t{1} << 16;
  std::size_t const size = rounded_up(bytes, unit);
  MemoryState& state = memory_state();
  MemoryState::Block evicted{memory, size};
  {
    MemoryLock guard(state);
    state.allocated -= static_cast<int64_t>(size);
    if (!SITU_ASAN && state.kept + static_cast<int64_t>(size) <= state.keep_limit) {
      MemoryState::Block* place = &state.blocks[0];
      for (auto& block : state.blocks) {
        if (!block.memory) {
          place = &block;
          break;
        }
        if (block.bytes < place->bytes) place = &block;
      }
      state.kept += static_cast<int64_t>(size) - static_cast<int64_t>(place->bytes);
      evicted = std::exchange(*place, evicted);
    }
  }
  if (evicted.memory) release_block(evicted);
}

/// How many bytes to ask malloc for. Loads that follow stores to nearby addresses, but for multiples of a page, wait for them in
/// vain, so tensors of one size that are made one after the other should not lie a page and a little apart.
constexpr std::size_t spread_size(std::size_t bytes) {
  constexpr std::size_t page = 4096, apart = 1024;
  if (SITU_LIKELY(bytes < page)) return bytes;
  std::size_t const beyond = (bytes + 16) % page;  // what malloc adds itself
  return bytes + (beyond < apart ? apart - beyond : beyond > page - apart ? page - beyond : 0);
}

inline void* allocate(std::size_t bytes) {
  if (SITU_UNLIKELY(bytes >= large_block)) return allocate_large(bytes);
  // malloc is several times faster than aligned_alloc on small blocks: align by hand, with malloc's pointer in front.
  void* const raw = std::malloc(spread_size(bytes + alignment));
  if (SITU_UNLIKELY(!raw)) out_of_memory(bytes);
  auto const address = reinterpret_cast<std::uintptr_t>(raw);
  char* const memory = static_cast<char*>(raw) + (alignment - address % alignment);
  reinterpret_cast<void**>(memory)[-1] = raw;
  return memory;
}

inline void deallocate(void* memory, std::size_t bytes) noexcept {
  if (SITU_UNLIKELY(bytes >= large_block)) return deallocate_large(memory, bytes);
  std::free(reinterpret_cast<void**>(memory)[-1]);
}

inline void empty_cache() noexcept {
  MemoryState& state = memory_state();
  MemoryState::Block released[MemoryState::kept_blocks];
  {
    MemoryLock guard(state);
    for (int k = 0; k < MemoryState::kept_blocks; ++k) released[k] = std::exchange(state.blocks[k], {});
    state.kept = 0;
  }
  for (auto& block : released) {
    if (block.memory) release_block(block);
  }
}

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI
