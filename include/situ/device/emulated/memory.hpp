/// The memory of an emulated device: a private range of addresses that the host cannot touch.
///
/// A pool is *open* while work of its device runs, and closed (every access faults) the rest of the time. What is free is
/// written down outside of the pool. In an AddressSanitizer build freed blocks and a margin behind every block are poisoned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <sys/mman.h>

#include <situ/config.hpp>
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
  int64_t blocks = 0;        ///< how many there are

  static constexpr std::size_t rounded(std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

  /// Takes a range of addresses without memory behind it. False when there is none of that length.
  bool map(std::size_t bytes) {
    constexpr std::size_t page = std::size_t{2} << 20;
    if (bytes > SIZE_MAX / 4) return false;
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
    if (range > 0) free_.assign(1, {0, range});
    return true;
  }
  void unmap() noexcept {
    if (!mapping_) return;
#if SITU_ASAN
    __asan_unpoison_memory_region(base_, touched_);
#endif
    ::munmap(mapping_, mapped_);
    mapping_ = nullptr;
  }
  bool is_mapped() const { return mapping_ != nullptr; }
  bool contains(void const* memory) const {
    return mapping_ && static_cast<char const*>(memory) >= base_ && static_cast<char const*>(memory) < base_ + open_bytes_;
  }

  /// The first place that is large enough; nullptr when there is none.
  void* take(std::size_t bytes) {
    if (bytes > capacity || rounded(bytes) > capacity - used) return nullptr;
    std::size_t const size = rounded(bytes);
    std::size_t const bound = static_cast<std::size_t>(blocks) + 3;  // pieces are at most one more than blocks: give() then needs no memory
    if (free_.capacity() < bound) free_.reserve(2 * bound);
    for (std::size_t k = 0; k < free_.size(); ++k) {
      if (free_[k].size < size + margin) continue;
      char* const memory = base_ + free_[k].offset;
      free_[k].offset += size + margin;
      free_[k].size -= size + margin;
#if SITU_ASAN
      if (free_[k].offset > touched_) touched_ = free_[k].offset;
      __asan_poison_memory_region(memory, size + margin);
      __asan_unpoison_memory_region(memory, bytes);
#endif
      if (free_[k].size == 0) free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(k));
      used += size;
      ++blocks;
      return memory;
    }
    return nullptr;
  }
  void give(void* memory, std::size_t bytes) noexcept {
    std::size_t const size = rounded(bytes);
    Piece piece{static_cast<std::size_t>(static_cast<char*>(memory) - base_), size + margin};
#if SITU_ASAN
    __asan_poison_memory_region(memory, size + margin);
#endif
    used -= size;
    --blocks;
    std::size_t low = 0, high = free_.size();  // the first piece behind this one
    while (low < high) {
      std::size_t const middle = (low + high) / 2;
      if (free_[middle].offset < piece.offset) low = middle + 1;
      else high = middle;
    }
    bool const joins_next = low < free_.size() && piece.offset + piece.size == free_[low].offset;
    bool const joins_last = low > 0 && free_[low - 1].offset + free_[low - 1].size == piece.offset;
    auto const next = free_.begin() + static_cast<std::ptrdiff_t>(low);
    if (joins_last) {
      free_[low - 1].size += piece.size;
      if (joins_next) {
        free_[low - 1].size += free_[low].size;
        free_.erase(next);
      }
    } else if (joins_next) {
      free_[low] = {piece.offset, piece.size + free_[low].size};
    } else {
      free_.insert(next, piece);
    }
  }
  std::size_t largest_free() const {
    std::size_t largest = 0;
    for (Piece const& piece : free_) largest = piece.size > largest + margin ? piece.size - margin : largest;
    return largest < capacity - used ? largest : capacity - used;
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
  void* mapping_ = nullptr;
  char* base_ = nullptr;
  std::size_t mapped_ = 0, open_bytes_ = 0;
  [[maybe_unused]] std::size_t touched_ = 0;
  int opened_ = 0;
  std::vector<Piece> free_;  ///< by offset, never touching each other
};

}  // namespace detail::emulated
}  // namespace situ::inline SITU_ABI
