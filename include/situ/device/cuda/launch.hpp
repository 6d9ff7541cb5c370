/// Launching kernels on a GPU: checked, on the device's current stream, with numbers that were looked up once; and what is told of it.
#pragma once

#include <new>

#include <situ/device/cuda/stream.hpp>
#include <situ/device/observe.hpp>

#if defined(SITU_WITH_CUDA)

namespace situ::inline SITU_ABI {
namespace detail::cuda {

/// A moment of a GPU's clock that is known on the host's, for profiles. CUDA tells the time since then as a float of milliseconds: the next ten seconds
/// to a microsecond, an hour to a quarter of a millisecond. So there is another one every ten seconds of a profile.
struct ClockOrigin {
  cudaEvent_t event = nullptr;
  int64_t host = 0;  ///< nanoseconds
  ClockOrigin* earlier = nullptr;
};
/// The latest one of each GPU. One per process.
SITU_PROCESS_STATE ClockOrigin** clock_origins() {
  static constinit ClockOrigin* origins[max_devices] = {};
  return origins;
}
/// Where work began.
struct ClockStart {
  cudaEvent_t event = nullptr;
  ClockOrigin const* origin = nullptr;
  int device = 0;
};

inline bool is_capturing(cudaStream_t stream) noexcept {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  bool const known = cudaStreamIsCapturing(stream, &status) == cudaSuccess;
  if (!known) (void)cudaGetLastError();
  return !known || status != cudaStreamCaptureStatusNone;
}

/// Work that is put into a stream, told to profiles and NVTX, timed by events around it, and waited for where launches are checked.
class ObservedWork {
 public:
  ObservedWork(int device, cudaStream_t stream, LaunchName const& name) : device_(device), stream_(stream) {
    if (is_observed(profiles | ranges | launch_checks)) begin(name);
  }
  /// A copy that is not waited for.
  ObservedWork(int device, cudaStream_t stream, Place to, Place from, std::size_t bytes) : device_(device), stream_(stream) {
    if (is_observed(profiles | transfer_logs)) begin(to, from, bytes);
  }
  ObservedWork(ObservedWork const&) = delete;
  ObservedWork& operator=(ObservedWork const&) = delete;
  ~ObservedWork() {
    if (SITU_UNLIKELY(who_ != 0)) give_up();
  }
  /// The work is in the stream. Throws what it ended with where launches are checked.
  void enqueued() {
    if (SITU_UNLIKELY(who_ != 0)) end();
  }

 private:
  __attribute__((noinline, cold)) void begin(LaunchName const& name) {
    who_ = observing(profiles | ranges | launch_checks);
    if (who_ == 0) return;
    DeviceGuard const guard(device_);
    name_ = name;
    Observers const& observers = observers_state();
    if (who_ & ranges) observers.push_range(name);
    capturing_ = is_capturing(stream_);
    if (!(who_ & profiles) || capturing_) return;
    Happening what;
    what.place = {device_kind::cuda, device_};
    what.name = name;
    what.stream = stream_;
    mark_ = observers.begin(what, true);
    start_clock();
  }
  __attribute__((noinline, cold)) void begin(Place to, Place from, std::size_t bytes) {
    DeviceGuard const guard(device_);
    capturing_ = is_capturing(stream_);
    if (capturing_) return;
    mark_ = begin_transfer(to, from, bytes, true, stream_);
    who_ = mark_ ? static_cast<unsigned>(profiles) : 0;
    start_clock();
  }
  void start_clock() {
    if (!mark_) return;
    started_ = new (std::nothrow) ClockStart;
    if (!started_) return;
    started_->origin = clock_origin();
    started_->device = device_;
    if (cudaEventCreate(&started_->event) != cudaSuccess || cudaEventCreate(&ended_) != cudaSuccess || cudaEventRecord(started_->event, stream_) != cudaSuccess) {
      (void)cudaGetLastError();
    }
  }
  /// One that is not old. Null where there is none.
  ClockOrigin const* clock_origin() const noexcept {
    ClockOrigin*& latest = clock_origins()[device_];
    ClockOrigin* known = __atomic_load_n(&latest, __ATOMIC_ACQUIRE);
    if (known && steady_now() - known->host < int64_t{10'000'000'000}) return known;
    auto* const made = new (std::nothrow) ClockOrigin;
    if (!made) return known;
    cudaStream_t own = nullptr;  // nothing of the program's is waited for
    bool const is_known = cudaStreamCreateWithPriority(&own, cudaStreamNonBlocking, 0) == cudaSuccess && cudaEventCreate(&made->event) == cudaSuccess &&
                          cudaEventRecord(made->event, own) == cudaSuccess && cudaEventSynchronize(made->event) == cudaSuccess;
    made->host = steady_now();
    if (own) (void)cudaStreamDestroy(own);
    made->earlier = known;
    if (is_known && __atomic_compare_exchange_n(&latest, &known, made, false, __ATOMIC_RELEASE, __ATOMIC_ACQUIRE)) return made;
    if (made->event) (void)cudaEventDestroy(made->event);
    (void)cudaGetLastError();
    delete made;
    return known;
  }
  static void drop(ClockStart* started) noexcept {
    if (started && started->event) (void)cudaEventDestroy(started->event);
    delete started;
  }
  __attribute__((noinline, cold)) void end() {
    DeviceGuard const guard(device_);
    Observers const& observers = observers_state();
    unsigned const who = who_;
    if (mark_) {
      if (ended_ && cudaEventRecord(ended_, stream_) != cudaSuccess) (void)cudaGetLastError();
      observers.attach(mark_, started_, ended_, &read_clock);
      mark_ = 0;
    }
    if (who & ranges) observers.pop_range();
    who_ = 0;
    if (!(who & launch_checks) || capturing_) return;
    check(device_, cudaStreamSynchronize(stream_), "running ", name_);
    check_fault(device_);
  }
  __attribute__((noinline, cold)) void give_up() noexcept {
    drop(started_);
    if (ended_) (void)cudaEventDestroy(ended_);
    if (mark_) observers_state().cancel(mark_);
    if (who_ & ranges) observers_state().pop_range();
  }
  /// Waits for the end of the work; gives how long it took, and when it began, in nanoseconds. Ends the events.
  static int64_t read_clock(void* started, void* ended, int, int64_t* begin) noexcept {
    auto* const start = static_cast<ClockStart*>(started);
    auto* const last = static_cast<cudaEvent_t>(ended);
    if (!start) return 0;
    DeviceSwitch const there(start->device);
    float before = 0, took = 0;
    bool const known = start->event && last && cudaEventSynchronize(last) == cudaSuccess && cudaEventElapsedTime(&took, start->event, last) == cudaSuccess;
    if (known && start->origin && cudaEventElapsedTime(&before, start->origin->event, start->event) == cudaSuccess) {
      *begin = start->origin->host + static_cast<int64_t>(static_cast<double>(before) * 1e6);
    }
    drop(start);
    if (last) (void)cudaEventDestroy(last);
    (void)cudaGetLastError();
    return known ? static_cast<int64_t>(static_cast<double>(took) * 1e6) : 0;
  }

  int device_;
  cudaStream_t stream_;
  unsigned who_ = 0;
  bool capturing_ = false;
  LaunchName name_;
  Mark mark_ = 0;
  ClockStart* started_ = nullptr;
  cudaEvent_t ended_ = nullptr;
};

}  // namespace detail::cuda
}  // namespace situ::inline SITU_ABI

#endif

#if defined(__CUDACC__)

namespace situ::inline SITU_ABI {
namespace detail::cuda {

inline constexpr int block_threads = 256;

/// Unsigned division by a number that is known before the launch, for numerators below 2^31:
/// q = (high(n * multiplier) + n) >> shift.
struct FastDivisor {
  uint32_t divisor, multiplier, shift;

  static FastDivisor of(int64_t d) {
    FastDivisor result{static_cast<uint32_t>(d), 0, 0};
    while (result.shift < 32 && (uint64_t{1} << result.shift) < static_cast<uint64_t>(d)) ++result.shift;
    result.multiplier =
        static_cast<uint32_t>((uint64_t{1} << 32) * ((uint64_t{1} << result.shift) - static_cast<uint64_t>(d)) / static_cast<uint64_t>(d) + 1);
    return result;
  }
  SITU_DEVICE uint32_t quotient(uint32_t n) const { return (__umulhi(n, multiplier) + n) >> shift; }
};

/// How many blocks fill the device once, at eight blocks for each multiprocessor.
inline int64_t full_grid(int device) {
  require_device(device);
  return int64_t{8} * __atomic_load_n(&process_state().devices[device].multiprocessors, __ATOMIC_RELAXED);
}

/// How many blocks of block_threads threads of a kernel run at once on a GPU, which is asked once.
template <auto Kernel>
int64_t blocks_at_once(int device) {
  static constinit int known[max_devices] = {};
  int count = __atomic_load_n(&known[device], __ATOMIC_RELAXED);
  if (count == 0) {
    DeviceGuard const guard(device);
    int each = 0;
    check(device, cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, reinterpret_cast<void const*>(Kernel), block_threads, 0),
          "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
    count = (each > 0 ? each : 1) * static_cast<int>(full_grid(device) / 8);
    __atomic_store_n(&known[device], count, __ATOMIC_RELAXED);
  }
  return count;
}

/// Starts kernel(argument), types forgotten; its blocks share `shared` bytes beside what it declares.
SITU_NOINLINE inline void launch_kernel(int device, LaunchName const& what, void const* kernel, dim3 blocks, int threads, void const* argument, int cluster = 1,
                                 unsigned shared = 0) {
  DeviceGuard const guard(device);
  cudaStream_t const stream = current_stream(device);
  void* arguments[] = {const_cast<void*>(argument)};
  ObservedWork work(device, stream, what);
  cudaError_t code = cudaSuccess;
  if (cluster == 1) {
    code = cudaLaunchKernel(kernel, blocks, dim3(static_cast<unsigned>(threads)), arguments, shared, stream);
  } else {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
    cudaLaunchConfig_t const config{blocks, dim3(static_cast<unsigned>(threads)), shared, stream, &attribute, 1};
    code = cudaLaunchKernelExC(&config, kernel, arguments);
  }
  check(device, code, "launching ", what);
  work.enqueued();
}

/// Starts kernel(argument), `cluster` neighbouring blocks as one cluster. `what` names it in messages and profiles, with the formula of the argument's
/// tree where it has one. Throws CudaError, DeviceUnavailable.
template <class Argument>
void launch(int device, LaunchName what, void (*kernel)(Argument), dim3 blocks, int threads, std::remove_cv_t<Argument> const& argument, int cluster = 1) {
  if constexpr (requires { argument.tree; }) what.formula = &formula_of<std::remove_cvref_t<decltype(argument.tree)>>;
  launch_kernel(device, what, reinterpret_cast<void const*>(kernel), blocks, threads, &argument, cluster);
}

}  // namespace detail::cuda
}  // namespace situ::inline SITU_ABI

#endif
