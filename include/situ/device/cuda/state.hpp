/// What a process knows about its GPUs: the same data in every build, so that all files share one of it.
#pragma once

#include <cstdint>

#include <situ/core/scalar.hpp>
#include <situ/device/fault.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cuda {

inline constexpr int max_devices = 64;

struct DeviceState {
  int64_t allocated = 0, peak = 0;  ///< bytes held by tensors, and the most there were
  uint64_t peers = 0;               ///< bit m: cuda:m may read this device's pool, or was found not to
  int multiprocessors = 0;
  int ready = 0;                    ///< 1 when the pool is set up and the properties are known
  IndexFault* fault = nullptr;      ///< page-locked and mapped; made with the pool
};

struct ProcessState {
  int device_count = -1;  ///< -1: not looked up yet
  int probe_error = 0;    ///< why there is none: a cudaError_t, or -1 for no driver
  DeviceState devices[max_devices];
};

/// One per process.
SITU_PROCESS_STATE ProcessState& process_state() {
  static constinit ProcessState state;
  return state;
}

/// The current stream of each device in this thread; null is the device's legacy default stream, whatever the flags of a file.
SITU_PROCESS_STATE void** current_streams() {
  static thread_local constinit void* streams[max_devices] = {};
  return streams;
}

inline void count_allocation(int device, int64_t bytes) noexcept {
  DeviceState& state = process_state().devices[device];
  int64_t const now = __atomic_add_fetch(&state.allocated, bytes, __ATOMIC_RELAXED);
  int64_t peak = __atomic_load_n(&state.peak, __ATOMIC_RELAXED);
  while (now > peak && !__atomic_compare_exchange_n(&state.peak, &peak, now, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

/// Where the kernels of a device write down what they find wrong; null before its first use.
inline IndexFault* fault_of(int device) noexcept {
  return __atomic_load_n(&process_state().devices[device].fault, __ATOMIC_ACQUIRE);
}

/// Throws what a kernel wrote down; the device has been waited for.
inline void check_fault(int device) {
  if (IndexFault* const fault = fault_of(device)) {
    throw_fault(*fault, [device] { return text("cuda:", device); });
  }
}

}  // namespace detail::cuda
}  // namespace situ::inline SITU_ABI
