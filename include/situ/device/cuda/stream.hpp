/// Checked calls, the probe for GPUs, the guard of the current device, and the current stream of each device.
#pragma once

#include <new>
#include <string>

#include <situ/core/error.hpp>
#include <situ/device/cuda/errors.hpp>
#include <situ/device/cuda/state.hpp>

#if defined(SITU_WITH_CUDA)
#include <cuda_runtime_api.h>
#endif

namespace situ::inline SITU_ABI {
namespace detail::cuda {
inline namespace SITU_ABI_CUDA {

#if defined(SITU_WITH_CUDA)

/// Throws CudaError for a failed call, after clearing the error that the runtime would report again.
template <class... Parts>
[[noreturn]] __attribute__((noinline, cold)) void fail_call(int device, cudaError_t code, Parts const&... call) {
  (void)cudaGetLastError();
  fail<CudaError>("cuda:", device, ": ", call..., " failed: ", cudaGetErrorName(code), " (", cudaGetErrorString(code), ")", advice(code));
}

/// Throws CudaError unless code is success; `call` says what was called.
template <class... Parts>
void check(int device, cudaError_t code, Parts const&... call) {
  if (code != cudaSuccess) [[unlikely]] fail_call(device, code, call...);
}

/// The number of GPUs; 0 without a driver. Looked up once.
inline int device_count() noexcept {
  ProcessState& state = process_state();
  int count = __atomic_load_n(&state.device_count, __ATOMIC_ACQUIRE);
  if (count >= 0) [[likely]] return count;
  int driver = 0, error = 0;
  count = 0;
  // Without a driver this is the only call that tells it without an error that sticks.
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    error = -1;
  } else {
    cudaError_t const code = cudaGetDeviceCount(&count);
    if (code != cudaSuccess) {
      (void)cudaGetLastError();
      error = static_cast<int>(code);
      count = 0;
    }
  }
  if (count > max_devices) count = max_devices;
  __atomic_store_n(&state.probe_error, error, __ATOMIC_RELAXED);
  __atomic_store_n(&state.device_count, count, __ATOMIC_RELEASE);
  return count;
}

/// Throws DeviceUnavailable, saying why there is no such device.
[[noreturn]] __attribute__((noinline, cold)) inline void fail_unavailable(int device) {
  int const count = device_count();
  int const error = __atomic_load_n(&process_state().probe_error, __ATOMIC_RELAXED);
  char const* const cure = "; try_gpu() finds a device that is there";
  if (error == -1) fail<DeviceUnavailable>("cuda:", device, ": there is no such device: no CUDA driver was found", cure);
  if (error == static_cast<int>(cudaErrorInsufficientDriver)) {
    int driver = 0;
    (void)cudaDriverGetVersion(&driver);
    fail<DeviceUnavailable>("cuda:", device, ": the CUDA driver is too old: it supports CUDA ", driver / 1000, ".", driver % 1000 / 10,
                            ", this program was built with CUDA ", CUDART_VERSION / 1000, ".", CUDART_VERSION % 1000 / 10, "; update the driver");
  }
  if (error != 0 && error != static_cast<int>(cudaErrorNoDevice)) {
    auto const code = static_cast<cudaError_t>(error);
    fail<DeviceUnavailable>("cuda:", device, ": cudaGetDeviceCount failed: ", cudaGetErrorName(code), " (", cudaGetErrorString(code), ")");
  }
  if (count == 0) fail<DeviceUnavailable>("cuda:", device, ": there is no such device: no GPU was found", cure);
  fail<DeviceUnavailable>("cuda:", device, ": there is no such device: ", count, count == 1 ? " GPU was found" : " GPUs were found");
}

/// Whether a device has a context. To make one of those current that have none would give it one, which takes its memory, and fails where another process has
/// it to itself.
__attribute__((noinline)) inline bool look_up_context(int device) noexcept {
#if CUDART_VERSION < 12000  // where that gives it none
  return device >= 0;
#else
  using Get = int (*)(int* result, int ordinal);
  using State = int (*)(int device, unsigned* flags, int* active);
  void *get = nullptr, *state = nullptr;
  cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
  bool known = cudaGetDriverEntryPointByVersion("cuDeviceGet", &get, 7000, cudaEnableDefault, &found) == cudaSuccess && get &&
               cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &state, 7000, cudaEnableDefault, &found) == cudaSuccess && state;
#else
  bool known = cudaGetDriverEntryPoint("cuDeviceGet", &get, cudaEnableDefault, &found) == cudaSuccess && get &&
               cudaGetDriverEntryPoint("cuDevicePrimaryCtxGetState", &state, cudaEnableDefault, &found) == cudaSuccess && state;
#endif
  int number = 0, active = 0;
  unsigned flags = 0;
  known = known && reinterpret_cast<Get>(get)(&number, device) == 0 && reinterpret_cast<State>(state)(number, &flags, &active) == 0;
  if (!known) (void)cudaGetLastError();
  return !known || active != 0;
#endif
}
/// Makes the device that was the current one it again; one that has no context was never used, and stays as it is.
inline void return_to(int device) noexcept {
  int& known = process_state().devices[device].context;
  if (!__atomic_load_n(&known, __ATOMIC_RELAXED)) [[unlikely]] {
    if (!look_up_context(device)) return;
    __atomic_store_n(&known, 1, __ATOMIC_RELAXED);
  }
  if (cudaSetDevice(device) != cudaSuccess) (void)cudaGetLastError();
}

/// Makes a device the current one where that must not throw. Many a runtime call, also one that names an event of another
/// device, would make a context on the current one.
struct DeviceSwitch {
  int device, previous;
  explicit DeviceSwitch(int64_t to) noexcept : device(static_cast<int>(to)), previous(device) {
    if (cudaGetDevice(&previous) == cudaSuccess && previous != device) (void)cudaSetDevice(device);
  }
  DeviceSwitch(DeviceSwitch const&) = delete;
  DeviceSwitch& operator=(DeviceSwitch const&) = delete;
  ~DeviceSwitch() {
    if (previous != device) return_to(previous);
  }
};

/// The first use of a device: its pool keeps what tensors free, its properties are read, and a place is made for what its
/// kernels have to tell.
__attribute__((noinline, cold)) inline void prepare(int device) {
  if (device < 0 || device >= device_count()) fail_unavailable(device);
  int pools = 0, multiprocessors = 0;
  check(device, cudaDeviceGetAttribute(&pools, cudaDevAttrMemoryPoolsSupported, device), "cudaDeviceGetAttribute");
  if (pools == 0) fail<DeviceUnavailable>("cuda:", device, ": the driver offers no stream-ordered memory on this GPU; situ needs it");
  check(device, cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  DeviceSwitch const there(device);
  check(device, cudaSetDevice(device), "cudaSetDevice");
  cudaMemPool_t pool = nullptr;
  uint64_t keep_all = UINT64_MAX;
  check(device, cudaDeviceGetDefaultMemPool(&pool, device), "cudaDeviceGetDefaultMemPool");
  check(device, cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep_all), "cudaMemPoolSetAttribute");
  DeviceState& state = process_state().devices[device];
  if (!__atomic_load_n(&state.fault, __ATOMIC_ACQUIRE)) {
    void* memory = nullptr;  // one address for all devices and the host; kept to the end of the process
    check(device, cudaHostAlloc(&memory, sizeof(IndexFault), cudaHostAllocPortable | cudaHostAllocMapped), "cudaHostAlloc");
    IndexFault* made = ::new (memory) IndexFault;
    IndexFault* expected = nullptr;
    if (!__atomic_compare_exchange_n(&state.fault, &expected, made, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) (void)cudaFreeHost(memory);
  }
  __atomic_store_n(&state.multiprocessors, multiprocessors, __ATOMIC_RELAXED);
  __atomic_store_n(&state.ready, 1, __ATOMIC_RELEASE);
}

/// Throws DeviceUnavailable unless the device can be used.
inline void require_device(int device) {
  if (device < 0 || device >= max_devices) fail_unavailable(device);
  if (!__atomic_load_n(&process_state().devices[device].ready, __ATOMIC_ACQUIRE)) [[unlikely]] prepare(device);
}

/// Makes `device` the current one, and in the end the one that was it before, if that was ever used.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) : device_(device), previous_(device) {
    require_device(device);
    check(device, cudaGetDevice(&previous_), "cudaGetDevice");
    if (previous_ != device) check(device, cudaSetDevice(device), "cudaSetDevice");
  }
  DeviceGuard(DeviceGuard const&) = delete;
  DeviceGuard& operator=(DeviceGuard const&) = delete;
  ~DeviceGuard() {
    if (previous_ != device_) return_to(previous_);
  }

 private:
  int device_, previous_;
};

/// The stream that this thread's work on the device goes to. The legacy default stream orders the work of all threads.
inline cudaStream_t current_stream(int device) noexcept {
  void* const stream = current_streams()[device].native;
  return stream ? static_cast<cudaStream_t>(stream) : cudaStreamLegacy;
}

#else

inline int device_count() noexcept { return 0; }

#endif

}  // namespace SITU_ABI_CUDA
}  // namespace detail::cuda
}  // namespace situ::inline SITU_ABI
