/// Streams of GPUs, as device/order.hpp asks for them.
#pragma once

#include <utility>

#include <situ/device/host_functions.hpp>
#include <situ/device/cuda/memory.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cuda {
inline namespace SITU_ABI_CUDA {

#if defined(SITU_WITH_CUDA)

inline StreamDriver const* stream_driver();

/// What a program asks of a stream. Every call makes the stream's device the current one for its time: the default stream has the same name on
/// all of them.
struct Streams {
  static cudaStream_t native(StreamState const& stream) { return static_cast<cudaStream_t>(stream.native); }

  static void open(StreamState& stream, int priority) {
    DeviceGuard const guard(stream.ordinal);
    int least = 0, greatest = 0;
    check(stream.ordinal, cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
    int const clamped = priority > least ? least : priority < greatest ? greatest : priority;
    cudaStream_t made = nullptr;
    check(stream.ordinal, cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking, clamped), "cudaStreamCreateWithPriority");
    stream.native = made;
  }
  static void open_default(StreamState& stream) {
    require_device(stream.ordinal);
    stream.native = cudaStreamLegacy;
  }
  static void record(StreamState& stream, Moment const& moment) {
    MomentState& to = *moment.state();
    DeviceGuard const guard(stream.ordinal);
    auto event = static_cast<cudaEvent_t>(to.native);
    if (event && to.number != stream.ordinal) {  // an event belongs to one device
      (void)cudaEventDestroy(event);
      to.native = event = nullptr;
    }
    if (!event) {
      check(stream.ordinal, cudaEventCreateWithFlags(&event, to.timed ? cudaEventDefault : cudaEventDisableTiming), "cudaEventCreate");
      to.native = event;
      to.number = stream.ordinal;
    }
    check(stream.ordinal, cudaEventRecord(event, native(stream)), "cudaEventRecord");
    to.place = __atomic_add_fetch(&stream.places, 1, __ATOMIC_ACQ_REL);  // after it, and a function's before that: a smaller place was enqueued earlier
  }
  static void wait_for(StreamState& later, MomentState const& moment) {
    DeviceGuard const guard(later.ordinal);
    check(later.ordinal, cudaStreamWaitEvent(native(later), static_cast<cudaEvent_t>(moment.native), 0), "cudaStreamWaitEvent");
  }
  /// A host function must not ask CUDA. Whatever its stream did before it has passed; of others it knows what the host has seen.
  static bool passed(MomentState const& moment) {
    if (!moment.native) return true;
    if (StreamState const* const here = host_function_stream()) return moment.stream == here && moment.place < here->running;
    DeviceSwitch const there(moment.number);
    return is_done(static_cast<int>(moment.number), cudaEventQuery(static_cast<cudaEvent_t>(moment.native)), "cudaEventQuery");
  }
  static void wait(MomentState const& moment) {
    if (host_function_stream()) {
      if (passed(moment)) return;
      fail<Error>("cuda:", moment.number, ": a host function waits for another stream, or for what its own does after it, which CUDA does not allow: let its own stream wait "
                  "(stream.wait(event)), and the host for the copy that it reads (get()), before it is enqueued");
    }
    if (!moment.native || (SITU_UNLIKELY(is_observed(profiles)) && passed(moment))) return;  // what has passed is no wait
    int const device = static_cast<int>(moment.number);
    ObservedWait const wait(place(device), "Event::synchronize", moment.stream->native);
    DeviceSwitch const there(device);
    check(device, cudaEventSynchronize(static_cast<cudaEvent_t>(moment.native)), "cudaEventSynchronize");
  }
  static void drop(MomentState& moment) noexcept {
    if (!moment.native) return;
    DeviceSwitch const there(moment.number);
    if (cudaEventDestroy(static_cast<cudaEvent_t>(moment.native)) != cudaSuccess) (void)cudaGetLastError();
  }
  static double milliseconds(MomentState const& from, MomentState const& to) {
    float result = 0;
    DeviceSwitch const there(to.number);
    check(static_cast<int>(to.number), cudaEventElapsedTime(&result, static_cast<cudaEvent_t>(from.native), static_cast<cudaEvent_t>(to.native)), "cudaEventElapsedTime");
    return result;
  }
  static bool idle(StreamState& stream) {
    DeviceGuard const guard(stream.ordinal);
    return is_done(stream.ordinal, cudaStreamQuery(native(stream)), "cudaStreamQuery");
  }
  static void synchronize(StreamState& stream) {
    refuse_while_recording(stream.ordinal, "a stream was synchronised");
    DeviceGuard const guard(stream.ordinal);
    {
      ObservedWait const wait(place(stream.ordinal), "Stream::synchronize", stream.native);
      check(stream.ordinal, cudaStreamSynchronize(native(stream)), "cudaStreamSynchronize");
    }
    end_called();
    check_fault(stream.ordinal);
  }

  /// A function that has been called is kept until the host comes by: what it holds may not be freed on a thread of the driver's.
  static void call(StreamState& stream, HostFunction* function) {
    constexpr auto run = [](void* given) {
      auto* const called = static_cast<HostFunction*>(given);
      called->stream->running = called->place;
      run_host_function(called);
      HostFunction*& head = process_state().called;
      called->next = __atomic_load_n(&head, __ATOMIC_RELAXED);
      while (!__atomic_compare_exchange_n(&head, &called->next, called, true, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
      }
    };
    DeviceGuard const guard(stream.ordinal);
    if (current_streams()[stream.ordinal].recorder) fail_host_function_in_graph(place(stream.ordinal));
    end_called();
    function->place = __atomic_add_fetch(&stream.places, 1, __ATOMIC_ACQ_REL);
    check(stream.ordinal, cudaLaunchHostFunc(native(stream), +run, function), "cudaLaunchHostFunc");
  }
  static void end_called() noexcept {
    HostFunction* called = __atomic_exchange_n(&process_state().called, nullptr, __ATOMIC_ACQUIRE);
    while (called) {
      HostFunction* const ended = std::exchange(called, called->next);
      ended->end(ended);
    }
  }

  /// On the only stream that used the memory; where there are several, on one that does nothing else, so that none of them waits for another.
  static void free_after(int device, StorageHead& head, uint64_t const* notes, int count) noexcept {
    CurrentStream& current = current_streams()[device];
    void* const before = std::exchange(current.native, nullptr);
    StreamHandle held;  // while there is one, nobody begins to capture the stream
    try {
      if (count == 1) held = handle_of(state_of(notes[0]), device);
      current.native = held ? held.state().native : freeing_stream(device, notes, count);
    } catch (...) {  // without an event nothing orders it but the host
      wait_without_event(device);
    }
    Runtime::deallocate(device, head.memory, head.bytes);
    current.native = before;
  }

  // ---- copies that page-locked memory takes part in, in this thread's stream

  static void copy_pinned(int device, void* to, void const* from, std::size_t bytes, bool to_device) {
    DeviceGuard const guard(device);
    cudaStream_t const stream = current_stream(device);
    ObservedWork work(device, stream, to_device ? place(device) : place_of<Pinned>, to_device ? place_of<Pinned> : place(device), bytes);
    check(device, cudaMemcpyAsync(to, from, bytes, to_device ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync of ", bytes, " bytes");
    work.enqueued();
  }
  static void copy_pinned_rows(int device, void* to, void const* from, PitchedCopy const& rows, bool to_device) {
    DeviceGuard const guard(device);
    cudaStream_t const stream = current_stream(device);
    ObservedWork work(device, stream, to_device ? place(device) : place_of<Pinned>, to_device ? place_of<Pinned> : place(device), rows.width * rows.count);
    check(device,
          cudaMemcpy2DAsync(to, rows.width, from, rows.pitch, rows.width, rows.count, to_device ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost, stream),
          "cudaMemcpy2DAsync of ", rows.count, " rows of ", rows.width, " bytes");
    work.enqueued();
  }
  static StreamDriver const* driver() { return stream_driver(); }

 private:
  static void wait_without_event(int device) noexcept {
    DeviceSwitch const there(device);
    try {
      if (wait_for_all_streams(device) == cudaSuccess) return;
    } catch (...) {
    }
    (void)cudaGetLastError();
  }
  static constexpr Place place(int device) { return {device_kind::cuda, device}; }

  /// Empty where the stream is another device's, being captured, or perhaps no longer there.
  static StreamHandle handle_of(StreamState& stream, int device) {
    StreamLock const lock;
    bool const is_there = !stream.foreign || __atomic_load_n(&stream.handles, __ATOMIC_ACQUIRE) > 0;
    return stream.ordinal == device && is_there && !__atomic_load_n(&stream.recorded, __ATOMIC_ACQUIRE) ? StreamHandle(&stream) : StreamHandle();
  }

  /// Behind everything that the notes stand for.
  static void* freeing_stream(int device, uint64_t const* notes, int count) {
    StreamLock const lock;
    StreamState*& stream = process_state().freeing[device];
    if (!stream) {
      StreamState* const made = new_stream(stream_driver(), device);
      try {
        open(*made, 0);
      } catch (...) {
        delete made;
        throw;
      }
      made->handles = 1;  // nobody else gets it
      stream = add_stream(made);
    }
    for (int k = 0; k < count; ++k) {
      if (Moment const moment = moment_of(notes[k])) wait_for(*stream, *moment.state());
    }
    return stream->native;
  }

  static bool is_done(int device, cudaError_t code, char const* call) {
    if (code == cudaErrorNotReady) {
      (void)cudaGetLastError();
      return false;
    }
    check(device, code, call);
    return true;
  }
};

inline StreamDriver const* stream_driver() {
  static constexpr StreamDriver functions{&require_device, &Streams::open, &Streams::open_default, &Streams::record, &Streams::wait_for,    &Streams::passed,
                                          &Streams::wait,  &Streams::drop, &Streams::milliseconds, &Streams::idle,   &Streams::synchronize, &Streams::call, &Streams::free_after};
  return &functions;
}
template <int>
using streams_of = Streams;
inline bool const stream_driver_is_set = [] {
  process_state().stream_driver = stream_driver();
  return true;
}();

#else

/// In a build without CUDA, a stream of a GPU is one error.
template <int N>
struct MissingStreams {
  static_assert(N < 0, "situ: Cuda_needs_SITU_WITH_CUDA: this file is compiled without CUDA; link the CMake target situ::cuda (or define "
                       "SITU_WITH_CUDA and link cudart), or compile with nvcc");
  static StreamDriver const* driver();
  static void end_called();
  static void copy_pinned(int, void*, void const*, std::size_t, bool);
  static void copy_pinned_rows(int, void*, void const*, PitchedCopy const&, bool);
};
template <int N>
using streams_of = MissingStreams<N>;

#endif

/// Waits for all of a device, and throws what its host functions and kernels have left.
template <int N>
void wait_for_device(int ordinal) {
  runtime_of<N>::synchronize(ordinal);
  streams_of<N>::end_called();
  throw_failures(process_state().stream_driver, ordinal);
  check_fault(ordinal);
}

}  // namespace SITU_ABI_CUDA
}  // namespace detail::cuda
}  // namespace situ::inline SITU_ABI
