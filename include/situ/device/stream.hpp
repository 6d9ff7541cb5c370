/// Streams: where a device's work is enqueued, and the functions that the host runs in between.
///
/// Work on one stream runs in its order, work on several side by side. Whatever stream a tensor is used on, situ orders that use behind
/// what wrote it, writes behind what reads it, and frees its memory after all of them (device/order.hpp); a program with one stream pays
/// one comparison per operand for it.
#pragma once

#include <situ/device/cuda/device.hpp>
#include <situ/device/emulated/device.hpp>
#include <situ/device/host_functions.hpp>

struct CUstream_st;  // cudaStream_t points to one

namespace situ::inline SITU_ABI {

/// How urgent the work of a stream is, where a device can prefer some work to other. Lower numbers go first, as in CUDA.
enum class priority : int { high = -1, normal = 0 };

template <device D>
class Event;

namespace detail {
/// Throws Error while this thread records a graph on D.
template <class D>
void refuse_while_recording(char const* who) {
  if constexpr (asynchronous<D>) {
    if (device_traits<D>::current_stream().recorder) fail<Error>(who, ": this thread records a graph on ", device_traits<D>::name(), ", and a graph records one stream");
  }
}
/// What `native` of a stream gives.
template <class D>
using native_stream_t = std::conditional_t<std::is_same_v<typename device_traits<D>::kernels, cuda_kernels>, CUstream_st*, void*>;
}  // namespace detail

/// What a stream is made with: Stream<Cuda<0>> s({.priority = -1});
struct StreamOptions {
  int priority = 0;  ///< clamped to what the device knows
};

/// A stream of device D. Handles are counted, and a copy is the same stream. A stream that the last handle has left finishes its work, and may
/// then be handed out again.
///
/// Device    `Cuda<N>`: a CUDA stream that does not wait for the default one. `Emulated<N>`: a host thread with a queue. `Cpu`, `Pinned`:
///           there is one, and work is done when its function returns.
/// Throws    DeviceUnavailable, CudaError; from wait Error while this thread records a graph on D.
/// Example   Stream<Cuda<0>> s;  { StreamGuard guard{s}; y = x * 2; }  z = y + 1;   // z waits for y by itself
template <device D = Cpu>
class Stream {
 public:
  using device_type = D;

  /// A new stream, on which nothing is enqueued.
  Stream() : Stream(StreamOptions{}) {}
  explicit Stream(enum priority p) : Stream(StreamOptions{static_cast<int>(p)}) {}
  explicit Stream(StreamOptions options) {
    if constexpr (detail::asynchronous<D>) handle_ = detail::open_stream(device_traits<D>::stream_driver(), D::ordinal, options.priority);
    else (void)options;
  }

  /// The one that this thread's work on D goes to.
  static Stream current() {
    if constexpr (detail::asynchronous<D>) return Stream(detail::current_stream_of(device_traits<D>::stream_driver(), D::ordinal, device_traits<D>::current_stream()));
    else return Stream(detail::StreamHandle());
  }
  /// The one that it goes to where no guard says otherwise: the legacy default stream of a GPU.
  static Stream default_stream() {
    if constexpr (detail::asynchronous<D>) return Stream(detail::default_stream_of(device_traits<D>::stream_driver(), D::ordinal));
    else return Stream(detail::StreamHandle());
  }
  /// A stream that somebody else made, and destroys when no handle of it is left: a cudaStream_t of this GPU that is not being captured; of an
  /// emulated device, what native() of a stream gives.
  static Stream wrap(detail::native_stream_t<D> native)
    requires detail::asynchronous<D>
  {
    return Stream(detail::wrap_stream(device_traits<D>::stream_driver(), D::ordinal, native));
  }

  /// Waits on the host until everything that was enqueued has run. Throws what a host function on this stream threw, and IndexError for what a
  /// kernel of the device found.
  void synchronize() const {
    if constexpr (detail::asynchronous<D>) {
      state().driver->synchronize(state());
      detail::throw_failure(state());
    }
    detail::free_what_copies_left();
  }
  /// Whether everything that was enqueued has run.
  bool query() const {
    if constexpr (detail::asynchronous<D>) return state().driver->idle(state());
    else return true;
  }
  /// What is enqueued here from now on waits for an event, which may be another device's of the same kind. The host does not wait.
  template <device Other>
  void wait(Event<Other> const& event) const {
    detail::refuse_while_recording<D>("Stream::wait");
    detail::Moment const& moment = event.moment();
    if constexpr (!detail::asynchronous<D>) moment.wait();  // work here is the host's
    else if (moment.state() && moment.state()->driver != state().driver) moment.wait();
    else if (moment.state()) state().driver->wait_for(state(), *moment.state());
  }
  /// The same for everything that is enqueued on another stream now.
  void wait(Stream const& other) const {
    detail::refuse_while_recording<D>("Stream::wait");
    if constexpr (detail::asynchronous<D>) {
      if (&state() != &other.state()) state().driver->wait_for(state(), *detail::record_moment(other.state()).state());
    }
  }

  /// For a GPU, the cudaStream_t: what is launched there directly should take its pointers from data() under a guard of this stream.
  detail::native_stream_t<D> native() const {
    if constexpr (detail::asynchronous<D>) return static_cast<detail::native_stream_t<D>>(state().native);
    else return nullptr;
  }
  D device() const { return {}; }
  friend bool operator==(Stream const& a, Stream const& b) {
    if constexpr (detail::asynchronous<D>) return &a.state() == &b.state();
    else return true;
  }

  /// For situ's own use.
  detail::StreamState& state() const { return handle_.state(); }

 private:
  explicit Stream(detail::StreamHandle&& handle) : handle_(static_cast<detail::StreamHandle&&>(handle)) {}
  detail::StreamHandle handle_;
};

/// Makes a stream this thread's current one of its device; in the end the one that was it before. Guards nest, and end in the order in which
/// C++ ends scopes.
template <device D>
class [[nodiscard]] StreamGuard {
 public:
  explicit StreamGuard(Stream<D> const& stream) : stream_(stream) {
    if constexpr (detail::asynchronous<D>) {
      detail::refuse_while_recording<D>("StreamGuard");
      device_traits<D>::stream_driver()->require(D::ordinal);
      previous_ = device_traits<D>::current_stream().state;
      detail::change_stream(device_traits<D>::current_stream(), &stream.state());
    }
  }
  StreamGuard(StreamGuard const&) = delete;
  StreamGuard& operator=(StreamGuard const&) = delete;
  ~StreamGuard() {
    if constexpr (detail::asynchronous<D>) detail::change_stream(device_traits<D>::current_stream(), previous_);
  }

 private:
  Stream<D> stream_;
  detail::StreamState* previous_ = nullptr;
};

/// Runs f() on a host thread when everything that is enqueued on the stream has run, and holds up what is enqueued later until it
/// returns. What it throws, the next synchronisation with the stream throws.
///
/// Device    `Cuda<N>`: f must not call CUDA, and so nothing of situ's on a GPU; page-locked and ordinary memory are its own. What was copied on
///           its own stream before has arrived; a copy of another stream that the host has not waited for throws Error. `Emulated<N>`: it must
///           not wait for its own stream. `Cpu`, `Pinned`: f is called here and now, and its exception passes through.
/// Example   StreamGuard guard{s};  auto h = g.to_async(Pinned{});  enqueue(s, [h] { log(h.get()(0)); });
template <device D, class F>
  requires std::is_invocable_v<F&>
void enqueue(Stream<D> const& stream, F f) {
  if constexpr (detail::asynchronous<D>) {
    detail::StreamState& state = stream.state();
    auto* const function = new detail::HostFunctionOf<F>(static_cast<F&&>(f));
    function->stream = &state;
    try {
      state.driver->call(state, function);
    } catch (...) {
      delete function;
      throw;
    }
  } else {
    f();
  }
}
/// The same on this thread's current stream of the device.
template <device D, class F>
  requires std::is_invocable_v<F&>
void enqueue(D, F f) {
  enqueue(Stream<D>::current(), static_cast<F&&>(f));
}

namespace emulated {
/// Makes a stream stand still for a while, behind what is enqueued: what is not ordered behind it overtakes it.
template <int N>
void delay(Stream<Emulated<N>> const& stream, double milliseconds) {
  enqueue(stream, [milliseconds] { detail::emulated::sleep_for(static_cast<int64_t>(milliseconds * 1000)); });
}
}  // namespace emulated

/// Waits until everything that was enqueued on the device, on whichever stream, has run. Throws what host functions threw, and IndexError for
/// what kernels found.
template <device D>
void synchronize(D) {
  device_traits<D>::synchronize();
  detail::free_what_copies_left();
}

}  // namespace situ::inline SITU_ABI
