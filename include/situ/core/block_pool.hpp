/// Blocks for small objects of the library's own: what a thread frees, it keeps for the next object of the same size.
///
/// The nodes of a graph and the views of a step then cost no malloc in the next one. Blocks may be freed by another thread than they were
/// taken by, which keeps them then. A thread that ends gives its blocks back.
#pragma once

#include <cstddef>
#include <new>
#include <utility>

#include <situ/config.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

struct BlockPool {
  static constexpr std::size_t step = 64, places = 16;  ///< blocks of up to a kilobyte
  static constexpr int most = 256;                      ///< of each size
  struct Free {
    Free* next;
  };
  Free* first[places] = {};
  int count[places] = {};
  bool keeps = false;  ///< false before the first block is freed, and when the thread ends
  bool has_ended = false;
};
SITU_PROCESS_STATE BlockPool& block_pool() {
  static thread_local constinit BlockPool pool;
  return pool;
}

/// Ends with its thread.
struct BlockPoolEnd {
  ~BlockPoolEnd() {
    BlockPool& pool = block_pool();
    pool.keeps = false;
    pool.has_ended = true;
    for (BlockPool::Free*& first : pool.first) {
      while (first) ::operator delete(std::exchange(first, first->next));
    }
  }
};
__attribute__((noinline, cold)) inline void keep_blocks(BlockPool& pool) noexcept {
  [[maybe_unused]] static thread_local BlockPoolEnd const end;
  pool.keeps = !pool.has_ended;
}

/// In front of a block: its size.
struct alignas(16) BlockHead {
  std::size_t place;
};

inline void* take_block(std::size_t bytes) {
  std::size_t const place = (bytes + sizeof(BlockHead) - 1) / BlockPool::step;
  if (SITU_LIKELY(place < BlockPool::places)) {
    BlockPool& pool = block_pool();
    if (BlockPool::Free* const block = pool.first[place]; SITU_LIKELY(block != nullptr)) {
      pool.first[place] = block->next;
      --pool.count[place];
      reinterpret_cast<BlockHead*>(block)->place = place;
      return reinterpret_cast<BlockHead*>(block) + 1;
    }
    bytes = (place + 1) * BlockPool::step - sizeof(BlockHead);
  }
  auto* const head = static_cast<BlockHead*>(::operator new(bytes + sizeof(BlockHead)));
  head->place = place;
  return head + 1;
}
inline void give_block(void* memory) noexcept {
  if (!memory) return;
  BlockHead* const head = static_cast<BlockHead*>(memory) - 1;
  std::size_t const place = head->place;
  if (SITU_LIKELY(!SITU_ASAN && place < BlockPool::places)) {
    BlockPool& pool = block_pool();
    if (SITU_UNLIKELY(!pool.keeps)) keep_blocks(pool);
    if (SITU_LIKELY(pool.keeps && pool.count[place] < BlockPool::most)) {
      auto* const block = ::new (static_cast<void*>(head)) BlockPool::Free{pool.first[place]};
      pool.first[place] = block;
      ++pool.count[place];
      return;
    }
  }
  ::operator delete(head);
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
