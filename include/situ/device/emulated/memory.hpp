/// The memory of an emulated device: a private range of addresses that the host cannot touch.
///
/// A pool is *open* while work of its device runs, and closed (every access faults) the rest of the time. What is free
/// is written down outside of the pool. In an AddressSanitizer build freed blocks and a margin behind every block are
/// poisoned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include <sys/mman.h>

#include <situ/config.hpp>
#include <situ/device/memory_statistics.hpp>
#include <situ/device/observe.hpp>
#if SITU_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace situ::inline SITU_ABI {
namespace detail::emulated {

/// Blocks of one device. Callers hold the lock of the process state.
class Pool {
 public:
  static constexpr std::size_t alignment = 256;
  static constexpr std::size_t margin = SITU_ASAN ? 256 : 0;

  std::size_t capacity = 0;  ///< what blocks may take in all
  std::size_t used = 0;      ///< what they take, rounded up to the alignment
  std::size_t reserved = 0;  ///< what a driver would hold: used, and kept for what comes
  std::size_t keep = SIZE_MAX;  ///< how much of what is freed is kept
  int64_t blocks = 0;        ///< how many there are

  static constexpr std::size_t rounded(std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

  /// Takes a range of addresses without memory behind it. False when there is none of that length.
  bool map(std::size_t bytes) {
    constexpr std::size_t page = std::size_t{2} << 20;
    if (bytes > SIZE_MAX / 4 || !make_room()) return false;
    bytes = rounded(bytes);
    std::size_t const range = SITU_ASAN ? 2 * bytes + margin : bytes;  // margins are not part of the capacity
    mapped_ = (range + page - 1) / page * page + page;
    void* const memory = ::mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return false;
    mapping_ = memory;
    base_ = static_cast<char*>(memory) + (page - reinterpret_cast<std::uintptr_t>(memory) % page) % page;
    open_bytes_ = mapped_ - page;
#if defined(MADV_HUGEPAGE)
    ::madvise(base_, open_bytes_, MADV_HUGEPAGE);  // opening and closing cost by the page
#endif
    if (opened_ > 0) ::mprotect(base_, open_bytes_, PROT_READ | PROT_WRITE);
    capacity = bytes;
    if (range > 0) insert(0, {0, range});
    return true;
  }
  void unmap() noexcept {
    std::free(pieces_);
    if (!mapping_) return;
#if SITU_ASAN
    __asan_unpoison_memory_region(base_, touched_);
#endif
    ::munmap(mapping_, mapped_);
    mapping_ = nullptr;
  }
  bool is_mapped() const { return mapping_ != nullptr; }

  /// The first place that is large enough; nullptr when there is none.
  void* take(std::size_t bytes) {
    if (bytes > capacity || rounded(bytes) > capacity - used || !make_room()) return nullptr;
    std::size_t const size = rounded(bytes);
    for (std::size_t k = 0; k < count_; ++k) {
      Piece& piece = pieces_[k];
      if (piece.size < size + margin) continue;
      char* const memory = base_ + piece.offset;
      piece.offset += size + margin;
      piece.size -= size + margin;
#if SITU_ASAN
      if (piece.offset > touched_) touched_ = piece.offset;
      __asan_poison_memory_region(memory, size + margin);
      __asan_unpoison_memory_region(memory, bytes);
#endif
      if (piece.size == 0) erase(k);
      used += size;
      if (used > reserved) reserved = used;
      ++blocks;
      return memory;
    }
    return nullptr;
  }
  void give(void* memory, std::size_t bytes) noexcept {
    std::size_t const size = rounded(bytes);
    Piece const piece{static_cast<std::size_t>(static_cast<char*>(memory) - base_), size + margin};
#if SITU_ASAN
    __asan_poison_memory_region(memory, size + margin);
#endif
    used -= size;
    --blocks;
    trim(keep);
    std::size_t low = 0, high = count_;  // to the first piece behind this one
    while (low < high) {
      std::size_t const middle = (low + high) / 2;
      if (pieces_[middle].offset < piece.offset)
        low = middle + 1;
      else
        high = middle;
    }
    if (low < count_ && piece.offset + piece.size == pieces_[low].offset) {
      pieces_[low] = {piece.offset, piece.size + pieces_[low].size};
    } else {
      insert(low, piece);
    }
    if (low > 0 && pieces_[low - 1].offset + pieces_[low - 1].size == piece.offset) {
      pieces_[low - 1].size += pieces_[low].size;
      erase(low);
    }
  }
  std::size_t largest_free() const {
    std::size_t largest = 0;
    for (std::size_t k = 0; k < count_; ++k) {
      if (pieces_[k].size > largest + margin) largest = pieces_[k].size - margin;
    }
    return largest < capacity - used ? largest : capacity - used;
  }

  /// Keeps no more than that many bytes, or what is used.
  void trim(std::size_t kept) {
    std::size_t const most = kept > used ? kept : used;
    if (reserved > most) reserved = most;
  }

  void open() {
    if (opened_++ == 0 && mapping_) ::mprotect(base_, open_bytes_, PROT_READ | PROT_WRITE);
  }
  void close() {
    if (--opened_ == 0 && mapping_) ::mprotect(base_, open_bytes_, PROT_NONE);
  }

 private:
  struct Piece {
    std::size_t offset, size;
  };

  /// There are at most one more pieces than blocks, so that a block can always be given back.
  bool make_room() {
    std::size_t const needed = static_cast<std::size_t>(blocks) + 3;
    if (needed <= room_) return true;
    void* const grown = std::realloc(pieces_, 2 * needed * sizeof(Piece));
    if (!grown) return false;
    pieces_ = static_cast<Piece*>(grown);
    room_ = 2 * needed;
    return true;
  }
  void insert(std::size_t at, Piece piece) {
    std::memmove(pieces_ + at + 1, pieces_ + at, (count_++ - at) * sizeof(Piece));
    pieces_[at] = piece;
  }
  void erase(std::size_t at) { std::memmove(pieces_ + at, pieces_ + at + 1, (--count_ - at) * sizeof(Piece)); }

  void* mapping_ = nullptr;
  char* base_ = nullptr;
  std::size_t mapped_ = 0, open_bytes_ = 0;
  [[maybe_unused]] std::size_t touched_ = 0;
  int opened_ = 0;
  Piece* pieces_ = nullptr;  ///< what is free, by offset; no two touch
  std::size_t count_ = 0, room_ = 0;
};

inline constexpr Place place(int ordinal) { return {device_kind::emulated, ordinal}; }

/// Throws OutOfMemory with what the pool knows.
[[noreturn]] __attribute__((noinline, cold)) inline void fail_pool(int ordinal, Pool const& pool, std::size_t bytes) {
  int64_t const allocated = __atomic_load_n(&memory_counters(place(ordinal)).allocated, __ATOMIC_RELAXED);
  fail_memory({place(ordinal), bytes, static_cast<int64_t>(pool.capacity - pool.used), static_cast<int64_t>(pool.capacity), static_cast<int64_t>(pool.reserved),
               static_cast<int64_t>(pool.largest_free()), nullptr,
               "Free tensors, work on smaller parts, or give the device more with emulated::configure({.memory = ...})"},
              allocated);
}

/// What a tensor gave back, which the pool gets later.
inline void uncount(int ordinal, std::size_t bytes) noexcept {
  ObservedAllocation::released(place(ordinal), bytes);
  memory_counters(place(ordinal)).remove(static_cast<int64_t>(bytes));
}

}  // namespace detail::emulated
}  // namespace situ::inline SITU_ABI
