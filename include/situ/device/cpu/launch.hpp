/// The host cores: how many are used, which instruction set, and how a kernel is spread over them.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>

#include <situ/core/error.hpp>
#include <situ/core/scalar.hpp>
#include <situ/device/cpu/system.hpp>
#include <situ/device/observe.hpp>

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace situ::inline SITU_ABI {

/// The instruction sets that CPU kernels exist for.
enum class instruction_set : int { baseline, avx2, avx512 };

namespace detail::cpu {

inline instruction_set best_instruction_set() noexcept {
#if SITU_X86 && !defined(SITU_TEST_BASELINE_ONLY)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("fma")) {
    return instruction_set::avx512;
  }
#if defined(__clang__)
  bool const halves = true;  // clang's kernels do not use F16C
#else
  bool const halves = __builtin_cpu_supports("f16c");
#endif
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && halves) return instruction_set::avx2;
#endif
  return instruction_set::baseline;
}

/// SITU_INSTRUCTION_SET=baseline|avx2|avx512 in the environment lowers the choice; avx512 is then without tiles (AMX).
inline instruction_set initial_instruction_set() noexcept {
  instruction_set const best = best_instruction_set();
  if (char const* asked = std::getenv("SITU_INSTRUCTION_SET")) {
    if (std::strcmp(asked, "baseline") == 0) return instruction_set::baseline;
    if (std::strcmp(asked, "avx2") == 0 && best >= instruction_set::avx2) return instruction_set::avx2;
  }
  return best;
}

/// 0: not looked up yet; else the instruction set + 1. One per process.
SITU_PROCESS_STATE int& instruction_set_state() {
  static constinit int state = 0;
  return state;
}

__attribute__((noinline, cold)) inline int look_up_instruction_set() noexcept {
  int const state = static_cast<int>(initial_instruction_set()) + 1;
  __atomic_store_n(&instruction_set_state(), state, __ATOMIC_RELAXED);
  return state;
}

inline instruction_set current_instruction_set() noexcept {
  int state = __atomic_load_n(&instruction_set_state(), __ATOMIC_RELAXED);
  if (SITU_UNLIKELY(state == 0)) state = look_up_instruction_set();
  return static_cast<instruction_set>(state - 1);
}

/// The last cache is counted with at most so much for each core; most processors have 2 to 12 MiB. A virtual machine with a few cores may be told the size
/// of the whole cache, most of which is full of what others use.
inline constexpr int64_t most_last_cache_bytes_of_a_core = int64_t{16} << 20;

/// The size of the last cache, or of the second one, 0 where the system does not tell. Linux knows what the cores of this system share; the C library may count the
/// last caches of all groups of cores of the processor, or of the one that a virtual machine has a part of.
__attribute__((noinline, cold)) inline int64_t look_up_cache_bytes([[maybe_unused]] bool last) noexcept {
  int64_t bytes = 0;
#if defined(_SC_LEVEL3_CACHE_SIZE)
  bytes = ::sysconf(last ? _SC_LEVEL3_CACHE_SIZE : _SC_LEVEL2_CACHE_SIZE);
#endif
#if defined(__linux__)
  char content[32];
  char const* const file = last ? "/sys/devices/system/cpu/cpu0/cache/index3/size" : "/sys/devices/system/cpu/cpu0/cache/index2/size";
  if (!read_text(file, content, sizeof content)) return bytes;
  char* unit = content;
  int64_t const shared = std::strtoll(content, &unit, 10) * (*unit == 'K' ? 1024 : *unit == 'M' ? 1024 * 1024 : 1);
  if (shared > 0) bytes = shared;
#endif
  return bytes;
}
/// The size of the last cache; 0: not known.
__attribute__((noinline, cold)) inline int64_t look_up_last_cache_bytes() noexcept {
  int64_t bytes = look_up_cache_bytes(true);
#if defined(_SC_NPROCESSORS_ONLN)
  int64_t const share = ::sysconf(_SC_NPROCESSORS_ONLN) * most_last_cache_bytes_of_a_core;
  if (share > 0 && bytes > share) bytes = share;
#endif
  return bytes;
}
/// The size of the second cache, which a core has for itself; 0: not known.
inline int64_t second_cache_bytes() noexcept {
  static int64_t const bytes = look_up_cache_bytes(false);
  return bytes;
}
inline int64_t& last_cache_bytes() noexcept {
  static int64_t bytes = look_up_last_cache_bytes();
  return bytes;
}

/// 0: as many as OpenMP would use. One per process.
SITU_PROCESS_STATE int& thread_limit() {
  static constinit int limit = 0;
  return limit;
}

}  // namespace detail::cpu

/// The instruction set that kernels run with.
inline instruction_set get_instruction_set() { return detail::cpu::current_instruction_set(); }

/// Makes kernels run with `set`; for tests and comparisons. Throws DeviceUnavailable when this processor lacks it.
inline void set_instruction_set(instruction_set set) {
  constexpr char const* names[] = {"baseline", "avx2", "avx512"};
  instruction_set const best = detail::cpu::best_instruction_set();
  if (set > best) {
    detail::fail<DeviceUnavailable>("set_instruction_set: this processor has no ", names[static_cast<int>(set)],
                                    ": the best it offers is ", names[static_cast<int>(best)]);
  }
  __atomic_store_n(&detail::cpu::instruction_set_state(), static_cast<int>(set) + 1, __ATOMIC_RELAXED);
}

inline namespace SITU_ABI_THREADS {

/// How many host threads a kernel may use: 1 in a file that is compiled without OpenMP, and on the threads that make a DataLoader's batches.
inline int num_threads() {
#if defined(_OPENMP)
  if (detail::cpu::thread_use().alone) return 1;
  int const limit = __atomic_load_n(&detail::cpu::thread_limit(), __ATOMIC_RELAXED);
  return limit > 0 ? limit : omp_get_max_threads();
#else
  return 1;
#endif
}

}  // namespace SITU_ABI_THREADS

/// Sets how many host threads kernels use; results do not depend on it. Throws ShapeError unless n is at least 1.
inline void set_num_threads(int n) {
  if (n < 1) detail::fail<ShapeError>("set_num_threads: ", n, " threads were asked for; at least 1 is needed");
  __atomic_store_n(&detail::cpu::thread_limit(), n, __ATOMIC_RELAXED);
}

namespace detail::cpu {

/// No fewer bytes are written past the caches.
inline constexpr int64_t streaming_bytes = int64_t{8} << 20;

inline namespace SITU_ABI_THREADS {

/// Whether `written` bytes that are made from `read` others go past the caches. Those that fit the last one together stay there, for what reads them next. One
/// thread alone fills the way to memory, which several share: it leaves half the cache to others. So do, with a third, processors without AVX-512 (measured).
SITU_NOINLINE inline bool goes_past_caches(int64_t written, int64_t read) {
  if (written < streaming_bytes) return false;
  int64_t const room = current_instruction_set() == instruction_set::avx512 ? last_cache_bytes() : last_cache_bytes() / 3 * 2;
  return written + read > (num_threads() == 1 ? room / 2 : room);
}

/// So many elements are worth a team of two that is ready.
inline constexpr int64_t elements_of_team = int64_t{1} << 16;

#if defined(_OPENMP)

/// How items are shared out: to `threads` of a team, in steps of which a thread has many, so that none has much more than another. The team is always the
/// same: GNU's OpenMP ends threads that a smaller one leaves out, and begins new ones for the next one.
struct Shares {
  int threads, team;
  int64_t step, steps;
};

/// The thread whose launches follow each other closely, and when the last one was: where several threads are at work, each with a team of its own, there
/// is none to spare.
struct BusyThread {
  ThreadUse* thread = nullptr;
  int64_t launched = 0;
};
SITU_PROCESS_STATE BusyThread& busy_thread() {
  static constinit BusyThread busy;
  return busy;
}

/// Whether this is one of many launches that closely follow each other: then the threads of a team still look out for work, and begin without a delay.
SITU_NOINLINE inline bool is_in_a_row() {
  constexpr int64_t close = 1'000'000;
  constexpr int enough = 4;
  ThreadUse& mine = thread_use();
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  int64_t const time = int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
  mine.in_a_row = time - mine.launched < close ? mine.in_a_row + (mine.in_a_row < enough) : 0;
  mine.launched = time;
  if (mine.in_a_row < enough) return false;
  BusyThread& busy = busy_thread();
  ThreadUse* thread = __atomic_load_n(&busy.thread, __ATOMIC_RELAXED);
  if (thread != &mine) {
    if (thread && time - __atomic_load_n(&busy.launched, __ATOMIC_RELAXED) < 10 * close) return false;
    if (!__atomic_compare_exchange_n(&busy.thread, &thread, &mine, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return false;
  }
  __atomic_store_n(&busy.launched, time, __ATOMIC_RELAXED);
  return true;
}

/// Of few items, and within a region, one share. `grain` items are worth a thread of their own that has to be woken, and twice as many a team. Of launches
/// that closely follow each other a fifth of `grain` will do, and otherwise `elements` decide: kernels of one size, cheap and dear, are shared out alike, so
/// that each core finds in its cache what it left there. A team of many takes longer to meet. A power of two stays whole that is in `grain` and no more
/// than a small part of a share: lines of the cache, of elements.
SITU_NOINLINE inline Shares shares_of(int64_t items, int64_t grain, int64_t elements) {
  static int const processors = omp_get_num_procs();
  int const team = num_threads();
  Shares shares{1, team, 1, items};
  if (team == 1 || omp_in_parallel()) return shares;
  int64_t parts = grain > 0 ? (items + grain - 1) / grain : items;
  if (elements >= elements_of_team / 10 * (8 + team) && 50 * items >= grain * (8 + team) && is_in_a_row() && team <= processors) {
    int64_t const early = elements / (elements_of_team / 4);
    if (parts < early) parts = early < items ? early : items;
  } else if (items <= 2 * grain) {
    return shares;
  }
  shares.threads = parts < team ? static_cast<int>(parts) : team;
  if (team > processors) shares.team = shares.threads;  // which would wait for each other
  if (grain > 0) shares.step = grain & -grain;
  while (shares.step > 1 && items / shares.step < 32 * shares.threads) shares.step /= 2;
  shares.steps = (items + shares.step - 1) / shares.step;
  return shares;
}

#endif

/// Keeps what is being handled, unless there is something already: the threads of a region end it together, and then it is thrown.
__attribute__((noinline, cold)) inline void keep_exception(std::exception_ptr& kept) {
#if defined(_OPENMP)
#pragma omp critical(situ_exception)
#endif
  if (!kept) kept = std::current_exception();
}

/// Runs a Kernel, whose type is forgotten. What it throws on any thread (a function of the user's, or for want of memory) is thrown by the caller's.
using Spread = void (*)(void const* kernel, int64_t items, int64_t grain);
template <class Kernel>
SITU_NOINLINE void spread(void const* given, int64_t items, [[maybe_unused]] int64_t grain) {
  Kernel const& kernel = *static_cast<Kernel const*>(given);
#if defined(_OPENMP)
  int64_t elements = 0;
  if constexpr (requires { kernel.elements(items); }) elements = kernel.elements(items);
  if (items > 2 * grain || (items > 1 && elements >= elements_of_team)) {  // a region costs more than a small kernel, also one that is serialised
    Shares const shares = shares_of(items, grain, elements);
    if (shares.threads > 1) {
      std::exception_ptr thrown;
      thread_use().used_others = true;
#pragma omp parallel num_threads(shares.team)
      {
        int64_t const me = omp_get_thread_num(), all = omp_get_num_threads() < shares.threads ? omp_get_num_threads() : shares.threads;
        int64_t const first = shares.steps * me / all * shares.step, end = shares.steps * (me + 1) / all * shares.step;
        try {
          if (me < all && first < end) kernel(first, end < items ? end : items);
        } catch (...) {
          keep_exception(thrown);
        }
      }
      if (SITU_UNLIKELY(static_cast<bool>(thrown))) std::rethrow_exception(thrown);
      return;
    }
  } else if (elements >= elements_of_team && items == 1) {
    thread_use().in_a_row = 0;  // what it leaves lies in the cache of one core
  }
#endif
  kernel(int64_t{0}, items);
}

__attribute__((noinline, cold)) inline void launch_observed(LaunchName const& name, Spread run, void const* kernel, int64_t items, int64_t grain) {
  Observed const launch(place_of<Cpu>, name);
  run(kernel, items, grain);
}

/// Runs kernel(first, last) on [0, items), on one thread when that is not much more than `grain` items, which are worth a thread of their own. With
/// grain 0 every item is, also one of two. A kernel that has `elements(items)`, how many elements they are, is shared out sooner among threads that are awake.
template <class Kernel>
void launch(Kernel const& kernel, int64_t items, int64_t grain) {
  if (is_observed(profiles | ranges)) return launch_observed(launch_name(kernel), &spread<Kernel>, &kernel, items, grain);
  spread<Kernel>(&kernel, items, grain);
}

/// Bytes by the page.
struct CopyKernel {
  static constexpr int64_t page = 4096;
  char* to;
  char const* from;
  int64_t bytes;

  int64_t elements(int64_t) const { return bytes / 4; }
  void operator()(int64_t first, int64_t last) const {
    int64_t const begin = first * page, end = last * page < bytes ? last * page : bytes;
    std::memcpy(to + begin, from + begin, static_cast<std::size_t>(end - begin));
  }
};
/// memcpy, of much by several threads. It is no launch that a profile shows.
inline void copy_bytes(void* to, void const* from, std::size_t bytes) {
  constexpr std::size_t little = 128 * 1024;
  if (bytes <= little) {
    std::memcpy(to, from, bytes);
    return;
  }
  CopyKernel const kernel{static_cast<char*>(to), static_cast<char const*>(from), static_cast<int64_t>(bytes)};
  spread<CopyKernel>(&kernel, (kernel.bytes + CopyKernel::page - 1) / CopyKernel::page, 256);
}

}  // namespace SITU_ABI_THREADS
}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI
