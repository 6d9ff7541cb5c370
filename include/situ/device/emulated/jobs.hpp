/// What the emulated devices do: memory, copies and launches, each enqueued on the stream of the thread that asks for it.
#pragma once

#include <cstring>
#include <initializer_list>
#include <new>

#include <situ/device/host_functions.hpp>
#include <situ/core/device.hpp>
#include <situ/core/error.hpp>
#include <situ/core/scalar.hpp>
#include <situ/device/emulated/stream.hpp>

namespace situ::inline SITU_ABI {
namespace emulated {

/// What configure() sets.
struct configuration {
  int devices = 2;                            ///< how many there are: 0 to 256
  std::size_t memory = std::size_t{1} << 30;  ///< of each, in bytes
  int64_t fail_at = -1;  ///< the operation that fails, counted from 0 over all devices; -1 for none
  uint64_t delays = 0;   ///< not 0: streams pause now and then before a job, as drawn from this number
};

/// A launch or a copy that failed because configure() was told so. An allocation fails with OutOfMemory instead.
struct SITU_EXCEPTION InjectedFault : Error {
  using Error::Error;
};

}  // namespace emulated

namespace detail::emulated {

/// A piece of a message. A list of them compiles faster than an overload for each.
struct Part {
  char const* words = nullptr;
  long long number = 0;
  constexpr Part(char const* text) : words(text) {}
  constexpr Part(int64_t value) : number(value) {}
  constexpr Part(std::size_t value) : number(static_cast<long long>(value)) {}
  constexpr Part(int value) : number(value) {}
};
inline std::string message(std::initializer_list<Part> parts) {
  std::string result;
  for (Part const& part : parts) part.words ? result.append(part.words) : result.append(std::to_string(part.number));
  return result;
}

/// The device of a number. Callers hold the lock here and below, unless a function takes it.
inline Device& find(int ordinal) {
  State& all = state();
  if (ordinal >= all.device_count) {
    throw DeviceUnavailable(message({"emulated:", ordinal, ": there is no such device: ", all.device_count,
                                     all.device_count == 1 ? " device is" : " devices are",
                                     " configured; emulated::configure({.devices = ", ordinal + 1, "}) makes more"}));
  }
  Device*& device = all.devices[ordinal];
  if (!device) device = new Device;
  return *device;
}

/// The device, for an operation that is counted. Throws E when it is the one that was told to fail.
template <class E>
Device& begin(int ordinal, char const* what, int64_t situ::emulated::counts::*counter, LaunchName const* name = nullptr) {
  Device& device = find(ordinal);
  int64_t const number = state().operations++;
  if (number == state().fail_at) {
    throw E(message({"emulated:", ordinal, ": ", what, (name ? " of " + to_string(*name) : std::string()).c_str(), " failed: operation ", number,
                     " was made to fail by emulated::configure({.fail_at = ", number, "}); the next operation works"}));
  }
  ++(device.counts.*counter);
  return device;
}

inline void* allocate(int ordinal, std::size_t bytes) {
  ObservedAllocation allocation(place(ordinal), bytes);
  Lock const lock;
  Device& device = begin<OutOfMemory>(ordinal, "allocation", &situ::emulated::counts::allocations);
  Pool& pool = device.pool;
  auto& counts = device.counts;
  if (!pool.is_mapped() && !pool.map(state().memory)) {
    --counts.allocations;
    throw OutOfMemory(
        message({"emulated:", ordinal, ": allocation of ", bytes, " bytes failed: the system has no address range of ",
                 state().memory, " bytes for this device; emulated::configure({.memory = ...}) makes it smaller"}));
  }
  MemoryCounters& counters = memory_counters(place(ordinal));
  bool const allowed = counters.within_limit(bytes);
  void* memory = allowed ? pool.take(bytes) : nullptr;
  if (!memory && allowed) {
    ++counters.retries;
    drain_all();  // frees may be waiting there
    memory = pool.take(bytes);
  }
  if (!memory) {
    --counts.allocations;
    fail_pool(ordinal, pool, bytes);
  }
  counters.add(static_cast<int64_t>(bytes));
  counts.bytes += static_cast<int64_t>(bytes);
  if (counts.bytes > counts.peak) counts.peak = counts.bytes;
  return allocation.done(memory);
}

/// Where this thread's work on the device goes.
inline Queue& current_queue(int ordinal, Device& device) {
  CurrentStream const& current = current_streams()[ordinal];
  return current.state ? *static_cast<Queue*>(current.state->native) : device.stream;
}
/// Whether this thread's work on the device is recorded instead of being run.
inline bool is_recording(int ordinal) { return ordinal >= 0 && ordinal < max_devices && current_streams()[ordinal].recorder != nullptr; }
[[noreturn]] __attribute__((noinline, cold)) inline void fail_recording(int ordinal, char const* what) {
  throw Error(message({"emulated:", ordinal, ": ", what, " while work on this device is recorded: what is recorded has not run"}));
}

/// The job's number in the queue of this thread; 0 where it is recorded.
inline int64_t enqueue_here(int ordinal, Device& device, Job* job) {
  if (StreamRecorder* const recorder = current_streams()[ordinal].recorder) {
    recorder->enqueue(recorder, job);
    return 0;
  }
  return current_queue(ordinal, device).enqueue(job);
}

/// Freed memory is full of NaN, so that what is still read there shows. The first part of a large block is enough.
inline void poison(void* memory, std::size_t bytes) {
  constexpr std::size_t most = std::size_t{1} << 20;
  std::memset(memory, 0xff, bytes < most ? bytes : most);
}

/// Memory that is given back when the last of `left` streams comes to it.
struct FreedMemory {
  Pool* pool;
  void* memory;
  std::size_t bytes;
  int left;
};
struct FreeJob : Job {
  FreedMemory* freed;
};
inline void run_free(Job* job) noexcept {
  FreedMemory* const freed = static_cast<FreeJob*>(job)->freed;
  if (__atomic_sub_fetch(&freed->left, 1, __ATOMIC_ACQ_REL) > 0) return;
  {
    Lock const lock;
    freed->pool->open();  // the stream may be another device's
  }
  poison(freed->memory, freed->bytes);
  {
    Lock const lock;
    freed->pool->close();
    freed->pool->give(freed->memory, freed->bytes);
  }
  delete freed;
}
inline FreeJob* make_free_job(FreedMemory* freed) { return new (std::nothrow) FreeJob{{&run_free, &end_job<FreeJob>, false, true}, freed}; }

/// Takes effect when everything that is enqueued in this thread's stream has run.
inline void deallocate(int ordinal, void* memory, std::size_t bytes) noexcept {
  Lock const lock;
  Device& device = *state().devices[ordinal];
  device.counts.bytes -= static_cast<int64_t>(bytes);
  uncount(ordinal, bytes);
  auto* const freed = new (std::nothrow) FreedMemory{&device.pool, memory, bytes, 1};
  if (FreeJob* const job = freed ? make_free_job(freed) : nullptr) {
    enqueue_here(ordinal, device, job);
  } else {  // the host has no memory left to enqueue it
    delete freed;
    drain_all();
    device.pool.give(memory, bytes);
  }
}

struct CopyJob : Job {
  void* to;
  void const* from;
  std::size_t bytes;
  Place target{}, source{};
  Mark mark = 0;
  PitchedCopy rows{};
};
inline void run_copy(Job* job) noexcept {
  auto* const self = static_cast<CopyJob*>(job);
  PitchedCopy const& rows = self->rows;
  Mark const mark = self->mark ? start_queued(self->mark, transfer_happening(self->target, self->source, self->bytes, nullptr)) : 0;
  if (rows.count == 0) std::memcpy(self->to, self->from, self->bytes);
  for (std::size_t k = 0; k < rows.count; ++k) {
    std::memcpy(static_cast<char*>(self->to) + k * rows.width, static_cast<char const*>(self->from) + k * rows.pitch, rows.width);
  }
  end_queued(mark);
}

/// Throws what a kernel wrote down, here or where something was sent from.
inline void check(int ordinal, Device& device) {
  if (SITU_UNLIKELY(device.has_lost_work)) {
    throw Error(message({"emulated:", ordinal, ": work was under way when the process was forked, and is lost in the child; wait for it before: synchronize(Emulated<", ordinal, ">{})"}));
  }
  throw_fault(device.fault, [ordinal] { return message({"emulated:", ordinal}); });
  for (int word = 0; word < max_devices / 64; ++word) {
    for (uint64_t left = device.senders[word]; left != 0; left &= left - 1) {
      int const sender = 64 * word + __builtin_ctzll(left);
      throw_fault(state().devices[sender]->fault, [sender] { return message({"emulated:", sender}); });
    }
  }
}

/// A copy on this thread's stream of the device, of rows where there are any. `waits`: until it has run.
inline void copy(int ordinal, void* to, void const* from, std::size_t bytes, int64_t situ::emulated::counts::*direction, bool waits, PitchedCopy const& rows = {}) {
  if (bytes == 0) return;
  if (waits && is_recording(ordinal)) fail_recording(ordinal, "a copy that the host waits for was asked for");
  Lock const lock;
  Device& device = begin<situ::emulated::InjectedFault>(ordinal, "copy", direction);
  Place const host = waits ? place_of<Cpu> : place_of<Pinned>;
  Place const target = direction == &situ::emulated::counts::copies_to_host ? host : place(ordinal);
  Place const source = direction == &situ::emulated::counts::copies_from_host ? host : place(ordinal);
  Mark const mark = queue_transfer(target, source, bytes, is_recording(ordinal));
  int64_t const number = enqueue_here(ordinal, device, new CopyJob{{&run_copy, &end_job<CopyJob>}, to, from, bytes, target, source, mark, rows});
  if (!waits) return;
  current_queue(ordinal, device).wait(number);
  if (direction == &situ::emulated::counts::copies_to_host) check(ordinal, device);
}

struct PeerCopyJob : CopyJob {
  Pool* pool;
};

/// On the receiver's stream, which has been ordered behind the sender's.
inline void copy_from_peer(int ordinal, int source_ordinal, void* to, void const* from, std::size_t bytes, PitchedCopy const& rows = {}) {
  constexpr auto run = [](Job* job) noexcept {
    Pool& source = *static_cast<PeerCopyJob*>(job)->pool;
    {
      Lock const lock;
      source.open();
    }
    run_copy(job);
    Lock const lock;
    source.close();
  };
  if (bytes == 0) return;
  Lock const lock;
  Device& source = find(source_ordinal);
  Device& target = begin<situ::emulated::InjectedFault>(ordinal, "copy", &situ::emulated::counts::copies_from_peer);
  ++source.counts.copies_to_peer;
  for (int word = 0; word < max_devices / 64; ++word) target.senders[word] |= source.senders[word];
  target.senders[source_ordinal / 64] |= uint64_t{1} << source_ordinal % 64;
  Mark const mark = queue_transfer(place(ordinal), place(source_ordinal), bytes, is_recording(ordinal));
  enqueue_here(ordinal, target, new PeerCopyJob{{{+run, &end_job<PeerCopyJob>}, to, from, bytes, place(ordinal), place(source_ordinal), mark, rows}, &source.pool});
}

template <class Kernel>
struct KernelJob : Job {
  Kernel kernel;
  int64_t items;
  int ordinal;
  Mark mark = 0;

  static void run_kernel(Job* job) noexcept {
    auto* const self = static_cast<KernelJob*>(job);
    Mark const mark = self->mark ? start_queued(self->mark, launch_happening(place(self->ordinal), launch_name(self->kernel))) : 0;
    self->kernel(int64_t{0}, self->items);
    end_queued(mark);
  }
};

inline void count_launch(int ordinal, LaunchName const& name) {
  Lock const lock;
  begin<situ::emulated::InjectedFault>(ordinal, "launch", &situ::emulated::counts::launches, &name);
}
inline void enqueue(int ordinal, Job* job) {
  Lock const lock;
  enqueue_here(ordinal, *state().devices[ordinal], job);
}
/// Where launches are checked: waits for the last one, and throws what it found wrong.
__attribute__((noinline, cold)) inline void check_launch(int ordinal) {
  if (is_recording(ordinal)) return;
  Lock const lock;
  Device& device = find(ordinal);
  current_queue(ordinal, device).drain();
  check(ordinal, device);
}

}  // namespace detail::emulated
}  // namespace situ::inline SITU_ABI
