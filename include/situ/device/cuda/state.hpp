/// What a process knows about its GPUs: the same data in every build, so that all files share one of it.
#pragma once

#include <cstdint>

#include <situ/core/scalar.hpp>
#include <situ/device/fault.hpp>
#include <situ/device/host_functions.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cuda {

inline constexpr int max_devices = 64;

struct DeviceState {
  uint64_t peers = 0;               ///< bit m: cuda:m may read this device's pool, or was found not to
  uint64_t senders = 0;             ///< bit m: cuda:m has sent something to this device, so that its faults are this one's, too
  int multiprocessors = 0;
  int ready = 0;                    ///< 1 when the pool is set up and the properties are known
  IndexFault* fault = nullptr;      ///< page-locked and mapped; made with the pool
  int captures = 0;                 ///< graphs that threads are capturing
  int context = 0;                  ///< 1 when it is known to have one
};

struct ProcessState {
  int device_count = -1;  ///< -1: not looked up yet
  int probe_error = 0;    ///< why there is none: a cudaError_t, or -1 for no driver
  DeviceState devices[max_devices];
  StreamDriver const* stream_driver = nullptr;  ///< set by files that are compiled with CUDA, so that all others share it
  HostFunction* called = nullptr;               ///< host functions that have returned
  StreamState* freeing[max_devices] = {};       ///< the streams of frees that wait for several others
};

/// One per process.
SITU_PROCESS_STATE ProcessState& process_state() {
  static constinit ProcessState state;
  return state;
}

/// The current stream of each device in this thread. Where it is not set it is the device's legacy default stream, whatever the flags of a file.
SITU_PROCESS_STATE CurrentStream* current_streams() {
  static thread_local constinit CurrentStream streams[max_devices] = {};
  return streams;
}

/// Where the kernels of a device write down what they find wrong; null before its first use.
inline IndexFault* fault_of(int device) noexcept {
  return __atomic_load_n(&process_state().devices[device].fault, __ATOMIC_ACQUIRE);
}

/// Throws what a kernel wrote down, here or where something was sent from; the device has been waited for.
inline void check_fault(int device) {
  uint64_t left = __atomic_load_n(&process_state().devices[device].senders, __ATOMIC_ACQUIRE);
  for (int from = device;; left &= left - 1) {
    if (IndexFault* const fault = fault_of(from)) {
      throw_fault(*fault, [from] { return text("cuda:", from); });
    }
    if (left == 0) return;
    from = __builtin_ctzll(left);
  }
}

}  // namespace detail::cuda
}  // namespace situ::inline SITU_ABI
