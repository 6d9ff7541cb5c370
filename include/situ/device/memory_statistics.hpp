/// What is counted of every device's memory, and what is said when it runs out.
#pragma once

#include <cstddef>
#include <cstdlib>

#include <sched.h>

#include <situ/core/error.hpp>
#include <situ/core/scalar.hpp>
#include <situ/device/place.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// A lock that is held for a few instructions; 0 is free.
class SpinLock {
 public:
  explicit SpinLock(int64_t& lock) : lock_(lock) {
    for (int tries = 0; __atomic_exchange_n(&lock_, 1, __ATOMIC_ACQUIRE); ++tries) {
      if (tries > 64) ::sched_yield();
    }
  }
  SpinLock(SpinLock const&) = delete;
  SpinLock& operator=(SpinLock const&) = delete;
  ~SpinLock() { __atomic_store_n(&lock_, 0, __ATOMIC_RELEASE); }

 private:
  int64_t& lock_;
};

/// How many blocks of each size are in use: a hash table. Starts as zeros, and is never destroyed.
class SizeTable {
 public:
  struct Entry {
    int64_t bytes, count;
  };

  SITU_NOINLINE void add(int64_t bytes) noexcept {
    if (bytes <= 0 || (2 * (used_ + 1) > room_ && !grow())) return;
    Entry& entry = find(entries_, room_, bytes);
    if (entry.bytes == 0) entry.bytes = bytes, ++used_;
    ++entry.count;
  }
  void remove(int64_t bytes) noexcept {
    if (room_ == 0) return;
    Entry& entry = find(entries_, room_, bytes);
    if (entry.count > 0) --entry.count;
  }
  void clear() noexcept {
    std::free(entries_);
    *this = {};
  }
  /// The largest sizes, from the largest on; gives how many.
  int largest(Entry* to, int wanted) const {
    int found = 0;
    for (int64_t k = 0; k < room_; ++k) {
      Entry const& entry = entries_[k];
      if (entry.count == 0) continue;
      int at = wanted - 1;
      if (found < wanted) at = found++;
      else if (to[at].bytes > entry.bytes) continue;
      for (; at > 0 && to[at - 1].bytes < entry.bytes; --at) to[at] = to[at - 1];
      to[at] = entry;
    }
    return found;
  }

 private:
  SITU_NOINLINE static Entry& find(Entry* entries, int64_t room, int64_t bytes) {
    auto at = static_cast<int64_t>(static_cast<uint64_t>(bytes) * 0x9E3779B97F4A7C15u >> 20) & (room - 1);
    while (entries[at].bytes != 0 && entries[at].bytes != bytes) at = (at + 1) & (room - 1);
    return entries[at];
  }
  /// Leaves out the sizes that no block has any more. False without memory: then what is new is not counted.
  __attribute__((noinline, cold)) bool grow() noexcept {
    int64_t live = 0;
    for (int64_t k = 0; k < room_; ++k) live += entries_[k].count > 0;
    int64_t room = 64;
    while (room < 4 * (live + 1)) room *= 2;
    auto* const entries = static_cast<Entry*>(std::calloc(static_cast<std::size_t>(room), sizeof(Entry)));
    if (!entries) return false;
    for (int64_t k = 0; k < room_; ++k) {
      if (entries_[k].count > 0) find(entries, room, entries_[k].bytes) = entries_[k];
    }
    std::free(entries_);
    entries_ = entries;
    room_ = room;
    used_ = live;
    return true;
  }

  Entry* entries_ = nullptr;
  int64_t room_ = 0, used_ = 0;
};

/// What is known of one device's memory. Starts as zeros.
struct MemoryCounters {
  int64_t lock = 0;
  int64_t allocated = 0, peak = 0;  ///< bytes in use, and the most there were
  int64_t allocations = 0;          ///< how many there were
  int64_t live = 0;                 ///< how many blocks are in use
  int64_t retries = 0;              ///< how often what was kept had to be given back first
  int64_t failures = 0;             ///< how often there was not enough all the same
  int64_t limit = 0;                ///< of this process, in bytes; 0 for none
  SizeTable sizes;

  SITU_NOINLINE void add(int64_t bytes) noexcept {
    SpinLock const guard(lock);
    int64_t const now = allocated + bytes;
    __atomic_store_n(&allocated, now, __ATOMIC_RELAXED);
    if (now > peak) __atomic_store_n(&peak, now, __ATOMIC_RELAXED);
    ++allocations;
    ++live;
    sizes.add(bytes);
  }
  SITU_NOINLINE void remove(int64_t bytes) noexcept {
    SpinLock const guard(lock);
    __atomic_store_n(&allocated, allocated - bytes, __ATOMIC_RELAXED);
    --live;
    sizes.remove(bytes);
  }
  /// As at the start.
  void clear() noexcept {
    sizes.clear();
    *this = {};
  }
  bool within_limit(std::size_t bytes) const noexcept {
    int64_t const most = __atomic_load_n(&limit, __ATOMIC_RELAXED);
    return most == 0 || (bytes <= static_cast<std::size_t>(most) && __atomic_load_n(&allocated, __ATOMIC_RELAXED) <= most - static_cast<int64_t>(bytes));
  }
};

inline constexpr int max_cuda_devices = 64, max_emulated_devices = 256;

/// One per device and process: of cpu, pinned, the GPUs, the emulated devices, and of all others together.
SITU_PROCESS_STATE MemoryCounters* all_memory_counters() {
  static constinit MemoryCounters counters[3 + max_cuda_devices + max_emulated_devices];
  return counters;
}
inline MemoryCounters& memory_counters(Place place) noexcept {
  MemoryCounters* const all = all_memory_counters();
  switch (place.kind) {
    case device_kind::cpu: return all[0];
    case device_kind::pinned: return all[1];
    case device_kind::cuda:
      if (place.ordinal >= 0 && place.ordinal < max_cuda_devices) return all[3 + place.ordinal];
      break;
    case device_kind::emulated:
      if (place.ordinal >= 0 && place.ordinal < max_emulated_devices) return all[3 + max_cuda_devices + place.ordinal];
      break;
    case device_kind::other: break;
  }
  return all[2];
}

/// `1.5 GiB`; below 1 KiB, `12 bytes`.
struct Bytes {
  int64_t count;
};
SITU_REPORTS void append_to(MessageText& to, Bytes const& bytes) {
  constexpr char const* units[] = {" KiB", " MiB", " GiB", " TiB", " PiB"};
  if (bytes.count > -1024 && bytes.count < 1024) return add_to(to, bytes.count, bytes.count == 1 ? " byte" : " bytes");
  double amount = static_cast<double>(bytes.count) / 1024;
  int unit = 0;
  while ((amount >= 1023.95 || amount <= -1023.95) && unit < 4) amount /= 1024, ++unit;
  to.add_floating(amount, 1, true);
  to.add(units[unit]);
}
SITU_REPORTS std::string bytes_text(int64_t bytes) { return text(Bytes{bytes}); }

/// `3 x 256.0 MiB, 1 x 64.0 MiB`: the largest blocks in use.
SITU_REPORTS void append_largest(MessageText& to, MemoryCounters& counters, int wanted = 5) {
  SizeTable::Entry largest[16];
  int found = 0;
  {
    SpinLock const guard(counters.lock);
    found = counters.sizes.largest(largest, wanted < 16 ? wanted : 16);
  }
  for (int k = 0; k < found; ++k) add_to(to, k ? ", " : "", largest[k].count, " x ", Bytes{largest[k].bytes});
  if (found == 0) to.add("none");
}

/// What is said of an allocation that failed.
struct MemoryShortage {
  Place place;
  std::size_t requested = 0;
  int64_t free = 0, total = 0;
  int64_t reserved = 0;
  int64_t largest_free = -1;     ///< -1 where it is not known
  char const* call = nullptr;    ///< of the system; null where situ itself refuses
  char const* advice = nullptr;
};

/// Throws OutOfMemory: what was asked, free, total, allocated by situ, kept, the largest blocks in use, and what to try.
[[noreturn]] __attribute__((noinline, cold)) inline void fail_memory(MemoryShortage const& s, int64_t allocated) {
  MemoryCounters& counters = memory_counters(s.place);
  __atomic_fetch_add(&counters.failures, 1, __ATOMIC_RELAXED);
  int64_t const limit = __atomic_load_n(&counters.limit, __ATOMIC_RELAXED);
  auto const requested = static_cast<int64_t>(s.requested > static_cast<std::size_t>(INT64_MAX) ? INT64_MAX : s.requested);
  MessageText message;
  add_to(message, s.place, ": out of memory: ", Bytes{requested}, " were asked for (", s.requested, " bytes)");
  if (s.call) add_to(message, " and ", s.call, " failed");
  add_to(message, ": ", Bytes{s.free}, " of ", Bytes{s.total}, " are free");
  if (s.largest_free >= 0) add_to(message, ", the largest free block has ", Bytes{s.largest_free});
  if (limit > 0) add_to(message, ", this process is limited to ", Bytes{limit}, " by set_memory_fraction");
  add_to(message, "; situ has allocated ", Bytes{allocated}, " and holds ", Bytes{s.reserved}, allocated > 0 ? "; the largest live allocations are " : "; live allocations: ");
  append_largest(message, counters);
  add_to(message, ". ", s.advice);
  OutOfMemory error(message.c_str());
  error.requested = requested;
  error.free = s.free;
  error.total = s.total;
  error.allocated = allocated;
  error.reserved = s.reserved;
  throw error;
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
