/// Host memory: aligned to 64 bytes, large blocks on huge pages and kept for the next tensor of their size.
#pragma once

#include <pthread.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <situ/core/error.hpp>
#include <situ/core/scalar.hpp>
#include <situ/device/cpu/system.hpp>
#include <situ/device/memory_statistics.hpp>
#include <situ/device/observe.hpp>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace situ::inline SITU_ABI {
namespace detail::cpu {

inline constexpr std::size_t alignment = 64;
inline constexpr std::size_t large_block = std::size_t{1} << 17;
inline constexpr std::size_t huge_page = std::size_t{2} << 20;

/// What one thread holds in small blocks, more or less: it may free what others made. Counted without a lock or an atomic
/// operation; the sum over all threads is exact. And the last blocks that it freed, in lists by size: a tensor that is made anew in a
/// loop, and all that a step of training makes, then cost no malloc.
struct ThreadMemory {
  static constexpr std::size_t spare_lists = 64 + large_block / 2048, most_spare = std::size_t{16} << 20;  ///< bytes, of all lists
  int64_t balance = 0;         ///< since it was last added to the process's
  int64_t high = INT64_MIN;    ///< the most it was since then; INT64_MIN before the thread is known
  int64_t low = INT64_MAX;     ///< INT64_MIN when the thread is known
  ThreadMemory* next = nullptr;
  ThreadMemory* previous = nullptr;
  bool has_ended = false;      ///< what comes now is told at once
  std::size_t spare_bytes = 0;

  /// A block in a list begins with its size; before it stand the next one of the list, and malloc's pointer.
  using Size [[gnu::may_alias]] = std::size_t;
  using Link [[gnu::may_alias]] = void*;
  Link spares[spare_lists] = {};
  Link none = nullptr;  ///< the end of a search that took too long

  /// The list of blocks of about that size.
  Link* spares_for(std::size_t bytes) { return spares + (bytes < 4096 ? bytes / 64 : 64 + bytes / 2048); }
  static Size& size_of(void* spare) { return *static_cast<Size*>(spare); }
  static Link* next_of(void* spare) { return static_cast<Link*>(spare) - 2; }
  bool is_known() const { return low == INT64_MIN; }
};

/// Counts and a few freed large blocks: a fresh result then costs no page faults. One per process. Large blocks in use are counted in
/// memory_counters(place_of<Cpu>).
struct MemoryState {
  static constexpr int kept_blocks = 64;
  int64_t lock = 0;
  std::size_t small_limit = large_block;  ///< what is as large takes the longer way; 0 while a profile runs
  int64_t small = 0;                      ///< bytes of small blocks that no thread has in its balance
  int64_t peak = 0, kept = 0;
  int64_t keep_limit = int64_t{1} << 30;
  ThreadMemory* threads = nullptr;
  struct Block {
    void* memory;
    std::size_t bytes;
  } blocks[kept_blocks] = {};  ///< the last freed is the last
  int block_count = 0;
  int watches_forks = 0;  ///< 1 while its handlers are registered, 2 when they are

  Block take_out(int which) {
    Block const block = blocks[which];
    --block_count;
    for (int k = which; k < block_count; ++k) blocks[k] = blocks[k + 1];
    kept -= static_cast<int64_t>(block.bytes);
    return block;
  }
  [[gnu::cold]] SITU_NOINLINE int64_t all_small() const {
    int64_t sum = small;
    for (ThreadMemory const* t = threads; t; t = t->next) sum += __atomic_load_n(&t->balance, __ATOMIC_RELAXED);
    return sum;
  }
};

SITU_PROCESS_STATE MemoryState& memory_state() {
  static constinit MemoryState state;
  return state;
}
SITU_PROCESS_STATE ThreadMemory& thread_memory() {
  static thread_local constinit ThreadMemory memory;
  return memory;
}

/// Adds this thread's balance to the process's; the lock is held. The peak is exact while one thread allocates.
[[gnu::cold]] SITU_NOINLINE inline void settle(MemoryState& state, ThreadMemory& mine) noexcept {
  int64_t const now = memory_counters(place_of<Cpu>).allocated + state.all_small();
  int64_t const high = mine.high > mine.balance ? now - mine.balance + mine.high : now;
  if (high > state.peak) state.peak = high;
  state.small += mine.balance;
  __atomic_store_n(&mine.balance, 0, __ATOMIC_RELAXED);
  if (mine.is_known()) mine.high = 0;
}

SITU_INLINE void give_small(void* memory) noexcept { std::free(reinterpret_cast<void**>(memory)[-1]); }
[[gnu::cold]] SITU_NOINLINE inline void free_spares(ThreadMemory& mine) noexcept {
  for (auto& list : mine.spares) {
    while (void* const spare = list) {
      list = *ThreadMemory::next_of(spare);
      give_small(spare);
    }
  }
  mine.spare_bytes = 0;
}

// A child process has the one thread that called fork, and would wait for ever for a lock that another one held.
inline void before_fork() noexcept {
  while (__atomic_exchange_n(&memory_state().lock, 1, __ATOMIC_ACQUIRE)) ::sched_yield();
}
inline void after_fork() noexcept { __atomic_store_n(&memory_state().lock, 0, __ATOMIC_RELEASE); }
inline void in_forked_child() noexcept {
  MemoryState& state = memory_state();
  ThreadMemory& mine = thread_memory();
  for (ThreadMemory* t = state.threads; t; t = t->next) {
    if (t != &mine) state.small += t->balance;
  }
  state.threads = mine.is_known() ? &mine : nullptr;
  mine.previous = mine.next = nullptr;
  thread_use().alone |= thread_use().used_others;  // OpenMP's threads for this one are gone, and it would wait for them
  after_fork();
}
/// Handlers that take other locks, under which this one is taken, are registered behind: they come before. No lock is held.
__attribute__((noinline, cold)) inline void watch_forks() noexcept {
  int& state = memory_state().watches_forks;
  int none = 0;
  if (__atomic_compare_exchange_n(&state, &none, 1, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    ::pthread_atfork(&before_fork, &after_fork, &in_forked_child);
    __atomic_store_n(&state, 2, __ATOMIC_RELEASE);
  }
  for (int tries = 0; __atomic_load_n(&state, __ATOMIC_ACQUIRE) != 2 && tries < 1000; ++tries) ::sched_yield();
}

/// Ends with its thread.
struct ThreadEnd {
  ~ThreadEnd() {
    MemoryState& state = memory_state();
    ThreadMemory& mine = thread_memory();
    SpinLock const guard(state.lock);
    if (mine.has_ended) return;  // in each shared object that hides its symbols there is such an end
    settle(state, mine);
    (mine.previous ? mine.previous->next : state.threads) = mine.next;
    if (mine.next) mine.next->previous = mine.previous;
    mine.high = INT64_MIN;
    mine.low = INT64_MAX;
    mine.has_ended = true;
    free_spares(mine);
  }
};

/// The first block of a thread, a new high, or a thread that is ending.
__attribute__((noinline, cold)) inline void count_closely(ThreadMemory& mine) noexcept {
  constexpr int64_t worth_telling = int64_t{1} << 20;
  if (mine.is_known() && mine.balance < worth_telling) {
    mine.high = mine.balance;
    return;
  }
  [[maybe_unused]] static thread_local ThreadEnd const end;
  watch_forks();
  MemoryState& state = memory_state();
  SpinLock const guard(state.lock);
  if (!mine.is_known() && !mine.has_ended) {
    mine.previous = nullptr;
    mine.next = state.threads;
    if (mine.next) mine.next->previous = &mine;
    state.threads = &mine;
    mine.low = INT64_MIN;
    mine.high = mine.balance > 0 ? mine.balance : 0;
    if (mine.balance < worth_telling) return;
  }
  if (!mine.is_known()) {  // its end has come: it is no longer among the threads
    state.small += mine.balance;
    mine.balance = 0;
    int64_t const now = memory_counters(place_of<Cpu>).allocated + state.all_small();
    if (now > state.peak) state.peak = now;
    return;
  }
  if (mine.balance > mine.high) mine.high = mine.balance;
  settle(state, mine);
}
SITU_INLINE void count_small(ThreadMemory& mine, std::size_t bytes) noexcept {
  int64_t const now = mine.balance + static_cast<int64_t>(bytes);
  __atomic_store_n(&mine.balance, now, __ATOMIC_RELAXED);
  if (SITU_UNLIKELY(now > mine.high)) count_closely(mine);
}
SITU_INLINE void uncount_small(ThreadMemory& mine, std::size_t bytes) noexcept {
  int64_t const now = mine.balance - static_cast<int64_t>(bytes);
  __atomic_store_n(&mine.balance, now, __ATOMIC_RELAXED);
  if (SITU_UNLIKELY(now < mine.low)) count_closely(mine);
}

/// What tensors hold, and the most that was.
struct MemoryUse {
  int64_t allocated, peak, kept;
};
inline MemoryUse memory_use(bool forget_peak = false) noexcept {
  MemoryState& state = memory_state();
  SpinLock const guard(state.lock);
  settle(state, thread_memory());
  int64_t const now = memory_counters(place_of<Cpu>).allocated + state.all_small();
  if (forget_peak || now > state.peak) state.peak = now;
  return {now, state.peak, state.kept};
}

/// Counts a large block: in use with a positive number of bytes, freed with a negative one.
[[gnu::cold]] SITU_NOINLINE inline void count_large(int64_t bytes) noexcept {
  MemoryState& state = memory_state();
  SpinLock const guard(state.lock);
  settle(state, thread_memory());
  MemoryCounters& counters = memory_counters(place_of<Cpu>);
  if (bytes > 0) counters.add(bytes);
  else counters.remove(-bytes);
  int64_t const now = counters.allocated + state.all_small();
  if (now > state.peak) state.peak = now;
}

constexpr std::size_t rounded_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

inline void release_block(MemoryState::Block const& block) noexcept {
#if defined(__linux__)
  ::munmap(block.memory, block.bytes);
#else
  std::free(block.memory);
#endif
}

/// Gives what is kept back to the system, but for the few small blocks that other threads have at hand.
[[gnu::cold]] SITU_NOINLINE inline void empty_cache() noexcept {
  free_spares(thread_memory());
  MemoryState& state = memory_state();
  MemoryState::Block released[MemoryState::kept_blocks];
  int count = 0;
  {
    SpinLock const guard(state.lock);
    while (state.block_count > 0) released[count++] = state.take_out(state.block_count - 1);
  }
  while (count > 0) release_block(released[--count]);
}

/// Keeps no more than that many bytes from now on.
inline void set_release_threshold(int64_t bytes) noexcept {
  MemoryState& state = memory_state();
  bool exceeded = false;
  {
    SpinLock const guard(state.lock);
    state.keep_limit = bytes;
    exceeded = state.kept > bytes;
  }
  if (exceeded) empty_cache();
}

/// The memory of the machine: what could be had without swapping, and all of it. Zeros where the system does not tell.
struct SystemMemory {
  int64_t free = 0, total = 0;
};
__attribute__((noinline, cold)) inline SystemMemory system_memory() noexcept {
  SystemMemory result;
#if defined(_SC_PHYS_PAGES) && defined(_SC_AVPHYS_PAGES)
  int64_t const page = ::sysconf(_SC_PAGESIZE);
  result = {page * ::sysconf(_SC_AVPHYS_PAGES), page * ::sysconf(_SC_PHYS_PAGES)};
#endif
  char content[512];
  if (!read_text("/proc/meminfo", content, sizeof content)) return result;
  if (char const* const line = std::strstr(content, "MemAvailable:")) result.free = std::strtoll(line + 13, nullptr, 10) * 1024;
  return result;
}

[[noreturn]] __attribute__((noinline, cold)) inline void out_of_memory(std::size_t bytes, Place place = place_of<Cpu>, char const* call = "malloc") {
  MemoryUse const use = memory_use();
  SystemMemory const system = system_memory();
  int64_t const other = place == place_of<Cpu> ? 0 : memory_counters(place).allocated;
  fail_memory({place, bytes, system.free, system.total, (place == place_of<Cpu> ? use.allocated + use.kept : other), -1, call,
               "Free tensors, write to tensors that exist, or work on smaller parts"},
              place == place_of<Cpu> ? use.allocated : other);
}

/// The size of a large block: similar sizes share blocks.
constexpr std::size_t large_size(std::size_t bytes) { return rounded_up(bytes, bytes >= 4 * huge_page ? huge_page : std::size_t{1} << (bytes < (std::size_t{1} << 20) ? 14 : 16)); }

/// New pages; a null pointer where there are none.
[[gnu::cold]] SITU_NOINLINE inline void* map_large(std::size_t size) noexcept {
  watch_forks();
#if defined(__linux__)
  std::size_t const slack = size >= 4 * huge_page ? huge_page : 0;
  void* const mapped = ::mmap(nullptr, size + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
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
  return memory;
#else
  return std::aligned_alloc(huge_page, rounded_up(size, huge_page));
#endif
}

/// A large block: one that was kept, else new pages; what is kept is given back when there are none. Not counted.
[[gnu::cold]] SITU_NOINLINE inline void* take_large(std::size_t bytes) {
  if (bytes > (std::size_t{1} << 62)) return nullptr;
  std::size_t const size = large_size(bytes);
  MemoryState& state = memory_state();
  {
    SpinLock const guard(state.lock);
    for (int k = state.block_count; k-- > 0;) {
      if (state.blocks[k].bytes == size) return state.take_out(k).memory;
    }
  }
  void* memory = map_large(size);
  if (SITU_UNLIKELY(!memory)) {
    __atomic_fetch_add(&memory_counters(place_of<Cpu>).retries, 1, __ATOMIC_RELAXED);
    empty_cache();
    memory = map_large(size);
  }
  return memory;
}

/// Keeps a block in place of those that were freed long ago: sizes that are no longer asked for make room.
[[gnu::cold]] SITU_NOINLINE inline void give_large(void* memory, std::size_t bytes) noexcept {
  MemoryState& state = memory_state();
  MemoryState::Block const block{memory, large_size(bytes)};
  auto const size = static_cast<int64_t>(block.bytes);
  for (MemoryState::Block evicted = block;; evicted = block) {
    {
      SpinLock const guard(state.lock);
      if (!SITU_ASAN && size <= state.keep_limit) {
        if (state.block_count < MemoryState::kept_blocks && state.kept + size <= state.keep_limit) {
          state.blocks[state.block_count++] = block;
          state.kept += size;
          return;
        }
        evicted = state.take_out(0);
      }
    }
    release_block(evicted);
    if (evicted.memory == memory) return;
  }
}

/// How many bytes to ask malloc for. Loads that follow stores to nearby addresses, but for multiples of a page, wait for them in
/// vain, so tensors of one size that are made one after the other should not lie a page and a little apart.
constexpr std::size_t spread_size(std::size_t bytes) {
  constexpr std::size_t page = 4096, apart = 1024;
  if (SITU_LIKELY(bytes < page)) return bytes;
  std::size_t const beyond = (bytes + 16) % page;  // what malloc adds itself
  return bytes + (beyond < apart ? apart - beyond : beyond > page - apart ? page - beyond : 0);
}

__attribute__((noinline, cold)) inline void* malloc_again(std::size_t bytes) {
  empty_cache();
  return std::malloc(bytes);
}

// malloc is several times faster than aligned_alloc on small blocks: align by hand, with malloc's pointer in front.
SITU_INLINE void* take_small(std::size_t bytes) {
  if (bytes < sizeof(ThreadMemory::Size)) bytes = sizeof(ThreadMemory::Size);  // a spare block holds its size
  void* raw = std::malloc(spread_size(bytes + alignment));
  if (SITU_UNLIKELY(!raw) && !(raw = malloc_again(bytes + alignment))) return nullptr;
  auto const address = reinterpret_cast<std::uintptr_t>(raw);
  char* const memory = static_cast<char*>(raw) + (alignment - address % alignment);
  reinterpret_cast<void**>(memory)[-1] = raw;
  return memory;
}

/// Memory that is not counted as the CPU's; a null pointer when there is none.
inline void* take(std::size_t bytes) { return bytes >= large_block ? take_large(bytes) : take_small(bytes); }
inline void give(void* memory, std::size_t bytes) noexcept {
  if (bytes >= large_block) give_large(memory, bytes);
  else give_small(memory);
}

/// What the thread has at hand, else malloc's; counted. A null pointer when there is none.
SITU_INLINE void* allocate_small(std::size_t bytes) {
  ThreadMemory& mine = thread_memory();
  auto* place = mine.spares_for(bytes);
  for (int looks = 32; *place && ThreadMemory::size_of(*place) != bytes;) place = --looks > 0 ? ThreadMemory::next_of(*place) : &mine.none;
  void* memory = *place;
  if (memory) {
    *place = *ThreadMemory::next_of(memory);
    mine.spare_bytes -= bytes;
  }
  if (SITU_UNLIKELY(!memory) && !(memory = take_small(bytes))) return nullptr;
  count_small(mine, bytes);
  return memory;
}
SITU_INLINE void deallocate_small(void* memory, std::size_t bytes) noexcept {
  ThreadMemory& mine = thread_memory();
  uncount_small(mine, bytes);
  if (SITU_UNLIKELY(SITU_ASAN || !mine.is_known())) return give_small(memory);
  mine.spare_bytes += bytes;
  if (SITU_UNLIKELY(mine.spare_bytes > ThreadMemory::most_spare)) {  // sizes that are no longer asked for would stay for ever
    free_spares(mine);
    mine.spare_bytes = bytes;
  }
  auto* const list = mine.spares_for(bytes);
  ThreadMemory::size_of(memory) = bytes;
  *ThreadMemory::next_of(memory) = *list;
  *list = memory;
}

/// Large blocks, and all blocks while a profile runs, which are malloc's then.
[[gnu::cold]] SITU_NOINLINE inline void* allocate_closely(std::size_t bytes) {
  ObservedAllocation allocation(place_of<Cpu>, bytes);
  void* memory = nullptr;
  if (bytes < large_block) {
    memory = take_small(bytes);
    if (!memory) out_of_memory(bytes);
    count_small(thread_memory(), bytes);
  } else {
    MemoryCounters& counters = memory_counters(place_of<Cpu>);
    if (SITU_UNLIKELY(counters.limit != 0) && !counters.within_limit(bytes)) out_of_memory(bytes, place_of<Cpu>, nullptr);
    memory = take_large(bytes);
    if (!memory) out_of_memory(bytes, place_of<Cpu>, "mmap");
    count_large(static_cast<int64_t>(large_size(bytes)));
  }
  return allocation.done(memory);
}
[[gnu::cold]] SITU_NOINLINE inline void deallocate_closely(void* memory, std::size_t bytes) noexcept {
  ObservedAllocation::released(place_of<Cpu>, bytes);
  if (bytes < large_block) {
    deallocate_small(memory, bytes);
  } else {
    count_large(-static_cast<int64_t>(large_size(bytes)));
    give_large(memory, bytes);
  }
}

/// Throws OutOfMemory.
inline void* allocate(std::size_t bytes) {
  if (SITU_UNLIKELY(bytes >= __atomic_load_n(&memory_state().small_limit, __ATOMIC_RELAXED))) return allocate_closely(bytes);
  void* const memory = allocate_small(bytes);
  if (SITU_UNLIKELY(!memory)) out_of_memory(bytes);
  return memory;
}

inline void deallocate(void* memory, std::size_t bytes) noexcept {
  if (SITU_UNLIKELY(bytes >= __atomic_load_n(&memory_state().small_limit, __ATOMIC_RELAXED))) return deallocate_closely(memory, bytes);
  deallocate_small(memory, bytes);
}

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI
