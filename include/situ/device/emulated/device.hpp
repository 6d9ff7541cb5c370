/// What `Emulated<N>` can do: a pretended accelerator that runs the CPU's kernels on memory and threads of its own.
///
/// Its memory faults when the host touches it, or a kernel of another device; launches, frees and copies within and
/// between devices are enqueued on its stream and run later; it runs out of memory, and faults can be injected. Code
/// that works here does not lean on anything that a GPU would not give.
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

/// Throws what a kernel wrote down.
inline void check(int ordinal, Device& device) {
  throw_fault(device.fault, [ordinal] { return message({"emulated:", ordinal}); });
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

// ---- streams -------------------------------------------------------------------------------------------------------------

struct WaitJob : Job {
  Queue* queue;
  int64_t number;
};
struct StampJob : Job {
  Moment moment;
};
struct CallJob : Job {
  HostFunction* function;
};

inline Queue& queue_of(StreamState const& state) { return *static_cast<Queue*>(state.native); }

inline void wait_in_stream(StreamState& later, MomentState const& moment) {
  constexpr auto run = [](Job* job) noexcept {
    auto const& self = *static_cast<WaitJob*>(job);
    Lock const lock;
    while (self.queue->finished < self.number) ::pthread_cond_wait(&state().progress, &state().mutex);
  };
  Lock const lock;
  Queue& queue = *static_cast<Queue*>(moment.native);
  if (&queue == later.native || queue.finished >= moment.number) return;
  queue_of(later).enqueue(new WaitJob{{+run, &end_job<WaitJob>, false}, &queue, moment.number});
}

/// The number of the last job; for a timed moment that of one more, which looks at the clock.
inline void record_moment(StreamState& stream, Moment const& moment) {
  constexpr auto run = [](Job* job) noexcept { static_cast<StampJob*>(job)->moment.state()->time = milliseconds_now(); };
  MomentState& to = *moment.state();
  Lock const lock;
  (void)find(stream.ordinal);
  Queue& queue = queue_of(stream);
  if (to.timed) queue.enqueue(new StampJob{{+run, &end_job<StampJob>, false}, moment});
  to.native = &queue;
  to.number = queue.enqueued;
}

inline void synchronize(int ordinal) {
  if (is_recording(ordinal)) fail_recording(ordinal, "synchronize was called");
  ObservedWait const wait(place(ordinal));
  Lock const lock;
  Device& device = find(ordinal);
  device.for_each_queue([](Queue& queue) { queue.drain(); });
  check(ordinal, device);
}

inline IndexFault* fault(int ordinal) {
  Lock const lock;
  return &find(ordinal).fault;
}

inline void require_device(int ordinal) {
  Lock const lock;
  (void)find(ordinal);
}
inline void open_queue(StreamState& stream, int /*priority*/) {
  Lock const lock;
  Device& device = find(stream.ordinal);
  auto* const queue = new Queue(device.pool);
  queue->next_of_device = device.queues;
  device.queues = queue;
  stream.native = queue;
}
inline void open_default_queue(StreamState& stream) {
  Lock const lock;
  stream.native = &find(stream.ordinal).stream;
}
inline bool has_passed(MomentState const& moment) {
  Lock const lock;
  return static_cast<Queue*>(moment.native)->finished >= moment.number;
}
inline void wait_on_host(MomentState const& moment) {
  Lock const lock;
  Queue& queue = *static_cast<Queue*>(moment.native);
  if (queue.finished >= moment.number) return;
  ObservedWait const wait(place(moment.stream->ordinal), "Event::synchronize", moment.native);
  queue.wait(moment.number);
}
inline void drop(MomentState&) noexcept {}
inline double milliseconds_between(MomentState const& from, MomentState const& to) { return to.time - from.time; }
inline bool is_idle(StreamState& stream) {
  Lock const lock;
  return queue_of(stream).finished == queue_of(stream).enqueued;
}
inline void synchronize_stream(StreamState& stream) {
  if (is_recording(stream.ordinal)) fail_recording(stream.ordinal, "a stream was synchronised");
  ObservedWait const wait(place(stream.ordinal), "Stream::synchronize", stream.native);
  Lock const lock;
  queue_of(stream).drain();
  check(stream.ordinal, find(stream.ordinal));
}
inline void call(StreamState& stream, HostFunction* function) {
  constexpr auto run = [](Job* job) noexcept { run_host_function(static_cast<CallJob*>(job)->function); };
  constexpr auto end = [](Job* job) noexcept {
    HostFunction* const function = static_cast<CallJob*>(job)->function;
    function->end(function);
    delete static_cast<CallJob*>(job);
  };
  if (is_recording(stream.ordinal)) fail_host_function_in_graph(place(stream.ordinal));
  Lock const lock;
  (void)find(stream.ordinal);
  queue_of(stream).enqueue(new CallJob{{+run, +end, false}, function});
}
inline void free_after(int ordinal, StorageHead& head, uint64_t const* notes, int count) noexcept {
  Lock const lock;
  Device& device = *state().devices[ordinal];
  device.counts.bytes -= static_cast<int64_t>(head.bytes);
  uncount(ordinal, head.bytes);
  auto* const freed = new (std::nothrow) FreedMemory{&device.pool, head.memory, head.bytes, count};
  FreeJob* jobs = nullptr;  // all of them are made before the first is enqueued
  bool complete = freed != nullptr;
  for (int k = 0; complete && k < count; ++k) {
    FreeJob* const job = make_free_job(freed);
    complete = job != nullptr;
    if (job) job->next = std::exchange(jobs, job);
  }
  for (int k = 0; jobs; ++k) {
    FreeJob* const job = std::exchange(jobs, static_cast<FreeJob*>(jobs->next));
    job->next = nullptr;
    if (complete) queue_of(state_of(notes[k])).enqueue(job);
    else end_job<FreeJob>(job);
  }
  if (complete) return;
  delete freed;
  drain_all();
  device.pool.give(head.memory, head.bytes);
}

inline StreamDriver const* driver() {
  static constexpr StreamDriver functions{&require_device, &open_queue, &open_default_queue,   &record_moment, &wait_in_stream,     &has_passed,
                                          &wait_on_host,   &drop,       &milliseconds_between, &is_idle,       &synchronize_stream, &call, &free_after};
  return &functions;
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
  detail::emulated::drain_all();
  for (int k = 0; k < all.device_count; ++k) {
    auto* const device = all.devices[k];
    if (!device) continue;
    if (device->pool.blocks > 0) {
      throw Error(detail::emulated::message({"emulated::configure: emulated:", k, " still holds ", device->pool.blocks,
                                             device->pool.blocks == 1 ? " allocation" : " allocations", " of ",
                                             device->counts.bytes, " bytes in all: destroy the tensors on it first"}));
    }
  }
  for (int k = 0; k < all.device_count; ++k) {
    detail::memory_counters(detail::emulated::place(k)).clear();
    auto* const device = all.devices[k];
    if (!device) continue;
    device->for_each_queue([](detail::emulated::Queue& queue) {
      queue.stop();
      queue.random = 0;
    });
    device->pool.unmap();
    device->pool = {};
    device->counts = {};
    device->fault = {};
  }
  all.device_count = asked.devices;
  all.memory = asked.memory;
  all.operations = 0;
  all.fail_at = asked.fail_at;
  all.delays = asked.delays;
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
    detail::emulated::copy(N, to, from, bytes, &emulated::counts::copies_within, false);
  }
  static void copy_from_host(void* to, void const* from, std::size_t bytes) {
    detail::emulated::copy(N, to, from, bytes, &emulated::counts::copies_from_host, true);
  }
  static void copy_to_host(void* to, void const* from, std::size_t bytes) {
    detail::emulated::copy(N, to, from, bytes, &emulated::counts::copies_to_host, true);
  }
  /// Between the device and page-locked memory: enqueued.
  static void copy_from_pinned(void* to, void const* from, std::size_t bytes) {
    detail::emulated::copy(N, to, from, bytes, &emulated::counts::copies_from_host, false);
  }
  static void copy_to_pinned(void* to, void const* from, std::size_t bytes) {
    detail::emulated::copy(N, to, from, bytes, &emulated::counts::copies_to_host, false);
  }
  /// The same for rows, which arrive side by side.
  static void copy_rows_from_pinned(void* to, void const* from, detail::PitchedCopy const& rows) {
    detail::emulated::copy(N, to, from, rows.width * rows.count, &emulated::counts::copies_from_host, false, rows);
  }
  static void copy_rows_to_pinned(void* to, void const* from, detail::PitchedCopy const& rows) {
    detail::emulated::copy(N, to, from, rows.width * rows.count, &emulated::counts::copies_to_host, false, rows);
  }
  static void copy_rows_to_host(void* to, void const* from, detail::PitchedCopy const& rows) {
    detail::emulated::copy(N, to, from, rows.width * rows.count, &emulated::counts::copies_to_host, true, rows);
  }
  template <class From>
    requires(detail::emulated::ordinal_of<From> >= 0)
  static void copy_from(void* to, void const* from, std::size_t bytes) {
    detail::emulated::copy_from_peer(N, detail::emulated::ordinal_of<From>, to, from, bytes);
  }
  template <class From>
    requires(detail::emulated::ordinal_of<From> >= 0)
  static void copy_rows_from(void* to, void const* from, detail::PitchedCopy const& rows) {
    detail::emulated::copy_from_peer(N, detail::emulated::ordinal_of<From>, to, from, rows.width * rows.count, rows);
  }
  /// The kernel is copied, and runs later on the thread of the device's stream.
  template <class Kernel>
  static void launch(Kernel const& kernel, int64_t items, int64_t /*grain*/) {
    static_assert(std::is_trivially_copyable_v<Kernel>,
                  "situ: a kernel is trivially copyable: it holds pointers and numbers, no owners");
    using Job = detail::emulated::KernelJob<Kernel>;
    detail::LaunchName const name = detail::launch_name(kernel);
    detail::emulated::count_launch(N, name);
    detail::Mark const mark = detail::queue_launch(detail::emulated::place(N), name, detail::emulated::is_recording(N));
    detail::emulated::enqueue(N, new Job{{&Job::run_kernel, &detail::emulated::end_job<Job>}, kernel, items, N, mark});
    if (detail::launches_are_checked()) detail::emulated::check_launch(N);
  }
  static void synchronize() {
    detail::emulated::synchronize(N);
    detail::throw_failures(stream_driver(), N);
  }

  static detail::StreamDriver const* stream_driver() { return detail::emulated::driver(); }
  static detail::CurrentStream& current_stream() { return detail::emulated::current_stream(N); }
  static uint64_t use_stream() {
    detail::CurrentStream& current = current_stream();
    uint64_t const segment = detail::begin_segment(stream_driver(), N, current);
    current.used = true;
    return segment;
  }
  static void order_after_others(detail::StorageHead& head, bool writes) { detail::order_after_others(stream_driver(), N, current_stream(), head, writes); }
  static void end_uses(detail::StorageHead& head) noexcept { detail::end_uses(stream_driver(), N, current_stream(), head); }
  static bool used_by_others(detail::StorageHead const& head) { return detail::used_by_others(current_stream(), head); }
  static void deallocate_after_others(detail::StorageHead& head) noexcept {
    detail::deallocate_after_others(stream_driver(), N, current_stream(), head, &detail::emulated::deallocate);
  }
  static detail::IndexFault* fault() { return detail::emulated::fault(N); }
};

}  // namespace situ::inline SITU_ABI
