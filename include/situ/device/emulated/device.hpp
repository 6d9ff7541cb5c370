/// What `Emulated<N>` can do: a pretended accelerator that runs the CPU's kernels on memory and threads of its own.
///
/// Its memory faults when the host touches it, or a kernel of another device; launches, frees and copies within and
/// between devices are enqueued on its stream and run later; it runs out of memory, and faults can be injected. Code
/// that works here does not lean on anything that a GPU would not give.
#pragma once

#include <cstring>
#include <initializer_list>
#include <new>

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
Device& begin(int ordinal, char const* what, int64_t situ::emulated::counts::*counter) {
  Device& device = find(ordinal);
  int64_t const number = state().operations++;
  if (number == state().fail_at) {
    throw E(message({"emulated:", ordinal, ": ", what, " failed: operation ", number,
                     " was made to fail by emulated::configure({.fail_at = ", number, "}); the next operation works"}));
  }
  ++(device.counts.*counter);
  return device;
}

inline void* allocate(int ordinal, std::size_t bytes) {
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
  void* memory = pool.take(bytes);
  if (!memory) {
    device.stream.drain();  // frees may be waiting there
    memory = pool.take(bytes);
  }
  if (!memory) {
    --counts.allocations;
    throw OutOfMemory(message({"emulated:", ordinal, ": allocation of ", bytes,
                               " bytes failed: ", pool.capacity - pool.used, " of ", pool.capacity,
                               " bytes are free, the largest free block has ", pool.largest_free(), ", and ", pool.used,
                               " are allocated by situ: free tensors, work on smaller parts, or give the device more "
                               "with emulated::configure({.memory = ...})"}));
  }
  counts.bytes += static_cast<int64_t>(bytes);
  if (counts.bytes > counts.peak) counts.peak = counts.bytes;
  return memory;
}

struct FreeJob : Job {
  Pool* pool;
  void* memory;
  std::size_t bytes;
};

/// Takes effect when everything that is enqueued has run.
inline void deallocate(int ordinal, void* memory, std::size_t bytes) noexcept {
  constexpr auto run = [](Job* job) noexcept {
    auto* const self = static_cast<FreeJob*>(job);
    {
      Lock const lock;
      self->pool->give(self->memory, self->bytes);
    }
    delete self;
  };
  Lock const lock;
  Device& device = *state().devices[ordinal];
  device.counts.bytes -= static_cast<int64_t>(bytes);
  if (auto* const job = new (std::nothrow) FreeJob{{+run, false}, &device.pool, memory, bytes}) {
    device.stream.enqueue(job);
  } else {
    device.stream.drain();
    device.pool.give(memory, bytes);
  }
}

struct CopyJob : Job {
  void* to;
  void const* from;
  std::size_t bytes;
};

/// Throws what a kernel wrote down.
inline void check(int ordinal, Device& device) {
  throw_fault(device.fault, [ordinal] { return message({"emulated:", ordinal}); });
}

/// A copy on one device's stream; waited for when the host takes part in it.
inline void copy(int ordinal, void* to, void const* from, std::size_t bytes,
                 int64_t situ::emulated::counts::*direction) {
  constexpr auto run = [](Job* job) noexcept {
    auto* const self = static_cast<CopyJob*>(job);
    std::memcpy(self->to, self->from, self->bytes);
    delete self;
  };
  if (bytes == 0) return;
  Lock const lock;
  Device& device = begin<situ::emulated::InjectedFault>(ordinal, "copy", direction);
  int64_t const number = device.stream.enqueue(new CopyJob{{+run}, to, from, bytes});
  if (direction != &situ::emulated::counts::copies_within) device.stream.wait(number);
  if (direction == &situ::emulated::counts::copies_to_host) check(ordinal, device);
}

/// Two streams meet: the source's stands still while the target's copies.
struct Meeting {
  enum { apart, source_is_there, done } stage = apart;
  Pool* source;
};
struct MeetingJob : Job {
  Meeting* meeting;
};
struct PeerCopyJob : CopyJob {
  Meeting* meeting;
};

/// Runs after everything that is enqueued on either device, and before everything that will be.
inline void copy_from_peer(int ordinal, int source_ordinal, void* to, void const* from, std::size_t bytes) {
  constexpr auto wait_for_copy = [](Job* job) noexcept {
    auto* const self = static_cast<MeetingJob*>(job);
    {
      Lock const lock;
      self->meeting->stage = Meeting::source_is_there;
      ::pthread_cond_broadcast(&state().progress);
      while (self->meeting->stage != Meeting::done) ::pthread_cond_wait(&state().progress, &state().mutex);
    }
    delete self->meeting;
    delete self;
  };
  constexpr auto run = [](Job* job) noexcept {
    auto* const self = static_cast<PeerCopyJob*>(job);
    Meeting& meeting = *self->meeting;
    {
      Lock const lock;
      while (meeting.stage != Meeting::source_is_there) ::pthread_cond_wait(&state().progress, &state().mutex);
      meeting.source->open();
    }
    std::memcpy(self->to, self->from, self->bytes);
    {
      Lock const lock;
      meeting.source->close();
      meeting.stage = Meeting::done;
      ::pthread_cond_broadcast(&state().progress);
    }
    delete self;
  };
  if (bytes == 0) return;
  Lock const lock;
  Device& source = find(source_ordinal);
  Device& target = begin<situ::emulated::InjectedFault>(ordinal, "copy", &situ::emulated::counts::copies_from_peer);
  ++source.counts.copies_to_peer;
  bool const threads = source.stream.start() && target.stream.start();
  if (!threads) {
    source.stream.drain();
    target.stream.drain();
    source.pool.open();
    target.pool.open();
    std::memcpy(to, from, bytes);
    source.pool.close();
    target.pool.close();
    return;
  }
  // Both are enqueued under one lock, so that all streams see all meetings in the same order and never wait in a
  // circle.
  auto* const meeting = new Meeting{Meeting::apart, &source.pool};
  auto* const copies = new PeerCopyJob{{{+run}, to, from, bytes}, meeting};
  source.stream.enqueue(new MeetingJob{{+wait_for_copy, false}, meeting});
  target.stream.enqueue(copies);
}

template <class Kernel>
struct KernelJob : Job {
  Kernel kernel;
  int64_t items;

  static void run_kernel(Job* job) noexcept {
    auto* const self = static_cast<KernelJob*>(job);
    self->kernel(int64_t{0}, self->items);
    delete self;
  }
};

inline void count_launch(int ordinal) {
  Lock const lock;
  begin<situ::emulated::InjectedFault>(ordinal, "launch", &situ::emulated::counts::launches);
}
inline void enqueue(int ordinal, Job* job) {
  Lock const lock;
  state().devices[ordinal]->stream.enqueue(job);
}

inline void synchronize(int ordinal) {
  Lock const lock;
  Device& device = find(ordinal);
  device.stream.drain();
  check(ordinal, device);
}

inline IndexFault* fault(int ordinal) {
  Lock const lock;
  return &find(ordinal).fault;
}

template <class D>
inline constexpr int ordinal_of = -1;
template <int N>
inline constexpr int ordinal_of<Emulated<N>> = N;

}  // namespace detail::emulated

namespace emulated {

/// How many emulated devices exist: Emulated<0> to Emulated<device_count() - 1>.
inline int device_count() {
  detail::emulated::Lock const lock;
  return detail::emulated::state().device_count;
}

/// What a device has done since it was configured. Throws DeviceUnavailable.
inline counts statistics(int ordinal) {
  detail::emulated::Lock const lock;
  return detail::emulated::find(ordinal).counts;
}

/// Makes the emulated devices anew, with counts that start at 0. Waits for what they still do.
///
/// Throws    Error while memory of a device is allocated, or when there are to be less than 0 or more than 256; nothing
/// is changed then. Threads   not beside other work with these devices. Example   emulated::configure({.devices = 4,
/// .memory = 1 << 20});
inline void configure(configuration const& asked = {}) {
  detail::emulated::Lock const lock;
  auto& all = detail::emulated::state();
  if (asked.devices < 0 || asked.devices > detail::emulated::max_devices) {
    throw Error(
        detail::emulated::message({"emulated::configure: ", asked.devices,
                                   " devices were asked for; there can be 0 to ", detail::emulated::max_devices}));
  }
  for (int k = 0; k < all.device_count; ++k) {
    auto* const device = all.devices[k];
    if (!device) continue;
    device->stream.drain();
    if (device->pool.blocks > 0) {
      throw Error(detail::emulated::message({"emulated::configure: emulated:", k, " still holds ", device->pool.blocks,
                                             device->pool.blocks == 1 ? " allocation" : " allocations", " of ",
                                             device->counts.bytes, " bytes in all: destroy the tensors on it first"}));
    }
  }
  for (int k = 0; k < all.device_count; ++k) {
    auto*& device = all.devices[k];
    if (!device) continue;
    device->stream.stop();
    device->pool.unmap();
    delete device;
    device = nullptr;
  }
  all.device_count = asked.devices;
  all.memory = asked.memory;
  all.operations = 0;
  all.fail_at = asked.fail_at;
}

}  // namespace emulated

template <int N>
struct device_traits<Emulated<N>> {
  static constexpr bool host_memory = false;
  using kernels = cpu_kernels;

  static std::string name() { return "emulated:" + std::to_string(N); }
  static void* allocate(std::size_t bytes) { return detail::emulated::allocate(N, bytes); }
  static void deallocate(void* memory, std::size_t bytes) noexcept { detail::emulated::deallocate(N, memory, bytes); }
  static void copy(void* to, void const* from, std::size_t bytes) {
    detail::emulated::copy(N, to, from, bytes, &emulated::counts::copies_within);
  }
  static void copy_from_host(void* to, void const* from, std::size_t bytes) {
    detail::emulated::copy(N, to, from, bytes, &emulated::counts::copies_from_host);
  }
  static void copy_to_host(void* to, void const* from, std::size_t bytes) {
    detail::emulated::copy(N, to, from, bytes, &emulated::counts::copies_to_host);
  }
  template <class From>
    requires(detail::emulated::ordinal_of<From> >= 0)
  static void copy_from(void* to, void const* from, std::size_t bytes) {
    detail::emulated::copy_from_peer(N, detail::emulated::ordinal_of<From>, to, from, bytes);
  }
  /// The kernel is copied, and runs later on the thread of the device's stream.
  template <class Kernel>
  static void launch(Kernel const& kernel, int64_t items, int64_t /*grain*/) {
    static_assert(std::is_trivially_copyable_v<Kernel>,
                  "situ: a kernel is trivially copyable: it holds pointers and numbers, no owners");
    using Job = detail::emulated::KernelJob<Kernel>;
    detail::emulated::count_launch(N);
    detail::emulated::enqueue(N, new Job{{&Job::run_kernel}, kernel, items});
  }
  static void synchronize() { detail::emulated::synchronize(N); }
  static detail::IndexFault* fault() { return detail::emulated::fault(N); }
};

}  // namespace situ::inline SITU_ABI
