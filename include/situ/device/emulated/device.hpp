/// What `Emulated<N>` can do: a pretended accelerator that runs the CPU's kernels on memory and threads of its own.
///
/// Its memory faults when the host touches it, or a kernel of another device; launches, frees and copies within and
/// between devices are enqueued on its stream and run later; it runs out of memory, and faults can be injected. Code
/// that works here does not lean on anything that a GPU would not give.
#pragma once

#include <situ/core/device.hpp>
#include <situ/core/error.hpp>
#include <situ/device/emulated/jobs.hpp>
#include <situ/device/host_functions.hpp>

namespace situ::inline SITU_ABI {
namespace detail::emulated {

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

inline void check(int ordinal) {
  Lock const lock;
  check(ordinal, find(ordinal));
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
    HostFunction* const called = static_cast<CallJob*>(job)->function;
    called->end(called);
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

/// Makes the emulated devices anew, with counts that start at 0. Waits for what they still do. While memory of a device is allocated
/// their number and memory stay as they are: then `fail_at` and `delays` change, and the counts start again.
///
/// Throws    Error for another number or memory while memory of a device is allocated, or when there are to be less than 0 or more than 256; nothing
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
  bool const same = asked.devices == all.device_count && asked.memory == all.memory;
  bool keeps = false;
  for (int k = 0; k < all.device_count; ++k) {
    auto* const device = all.devices[k];
    if (!device) continue;
    if (device->pool.blocks > 0) {
      if (keeps = same; keeps) break;
      throw Error(detail::emulated::message({"emulated::configure: emulated:", k, " still holds ", device->pool.blocks,
                                             device->pool.blocks == 1 ? " allocation" : " allocations", " of ",
                                             device->counts.bytes, " bytes in all: destroy the tensors on it first"}));
    }
  }
  for (int k = 0; k < all.device_count; ++k) {
    auto* const device = all.devices[k];
    if (keeps) {
      if (device) device->counts = {.bytes = device->counts.bytes, .peak = device->counts.bytes};
      continue;
    }
    detail::memory_counters(detail::emulated::place(k)).clear();
    if (!device) continue;
    device->for_each_queue([](detail::emulated::Queue& queue) {
      queue.stop();
      queue.random = 0;
    });
    device->pool.unmap();
    device->pool = {};
    device->counts = {};
    device->fault = {};
    for (uint64_t& senders : device->senders) senders = 0;
    device->has_lost_work = false;
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
  /// Throws for a bad index that was found. What is waited for has been waited for.
  static void check() { detail::emulated::check(N); }
};

}  // namespace situ::inline SITU_ABI
