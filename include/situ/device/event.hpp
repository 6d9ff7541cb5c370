/// Events: points in what a stream does, to wait for, and to measure the time between.
#pragma once

#include <situ/device/cuda/device.hpp>
#include <situ/device/emulated/device.hpp>
#include <situ/device/host_functions.hpp>
#include <situ/device/stream.hpp>

namespace situ::inline SITU_ABI {

namespace detail {
[[noreturn]] __attribute__((noinline, cold)) inline void fail_not_recorded(char const* who) {
  fail<Error>("Event::", who, ": the event was never recorded; call record() where the time is to be taken");
}
}  // namespace detail

/// A point in a stream of device D, which `record` sets behind everything that is enqueued there: a stream can `wait` for it, the host can
/// `query` it or `synchronize` with it, and `start.elapsed_ms(end)` is the time between two. Handles are counted: a copy is
/// the same event, until one of them is recorded again. An event that was never recorded has passed.
///
/// situ orders the uses of its tensors by itself; events are for what it cannot see, and for measuring.
///
/// Device    on `Cpu` and `Pinned` work is done when its function returns, and so is the event.
/// Throws    CudaError; from synchronize and elapsed_ms IndexError, as other synchronisations do; from elapsed_ms Error when an event was not recorded;
///           from record and wait Error while this thread records a graph on D.
template <device D = Cpu>
class Event {
 public:
  using device_type = D;

  /// Sets the event behind what is enqueued in this thread's current stream, or in another one.
  void record() { record(Stream<D>::current()); }
  void record(Stream<D> const& stream) {
    if constexpr (detail::asynchronous<D>) {
      detail::refuse_while_recording<D>("Event::record");
      detail::StreamState& state = stream.state();
      if (!moment_ || moment_.is_shared()) moment_ = detail::Moment::make(state.driver, true);
      moment_.state()->stream = &state;
      moment_.state()->has_passed = false;
      state.driver->record(state, moment_);
    } else {
      time_ = detail::milliseconds_now();
    }
  }
  /// What is enqueued from now on in this thread's current stream, or in another one, waits for the event. The host does not.
  void wait() const { Stream<D>::current().wait(*this); }
  template <device Other>
  void wait(Stream<Other> const& stream) const {
    stream.wait(*this);
  }
  /// Whether it has passed.
  bool query() const { return moment_.passed(); }
  /// Waits on the host until it has passed. Throws IndexError for a bad index that the device has found by then.
  void synchronize() const {
    moment_.wait();
    if constexpr (detail::reports_faults_later<D>) {
      if (moment_) device_traits<D>::check();
    }
  }
  /// Milliseconds from this event to a later one; waits for both.
  double elapsed_ms(Event const& end) const {
    if constexpr (detail::asynchronous<D>) {
      if (!moment_ || !end.moment_) detail::fail_not_recorded("elapsed_ms");
      synchronize();
      end.synchronize();
      return moment_.state()->driver->milliseconds(*moment_.state(), *end.moment_.state());
    } else {
      if (time_ == 0 || end.time_ == 0) detail::fail_not_recorded("elapsed_ms");
      return end.time_ - time_;
    }
  }

  /// For situ's own use.
  detail::Moment const& moment() const { return moment_; }

 private:
  detail::Moment moment_;
  double time_ = 0;
};

}  // namespace situ::inline SITU_ABI
