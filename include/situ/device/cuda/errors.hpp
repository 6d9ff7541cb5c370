/// What CUDA's error codes mean for a program: which end it, which only say that it is ending, and how destructors report them.
#pragma once

#include <cstdio>

#include <situ/config.hpp>

#if defined(SITU_WITH_CUDA)
#include <cuda_runtime_api.h>
#endif

namespace situ::inline SITU_ABI {
namespace detail::cuda {

/// Whether a destructor has reported an error: one is enough. One per process.
SITU_PROCESS_STATE bool& destructor_has_reported() {
  static constinit bool reported = false;
  return reported;
}

inline namespace SITU_ABI_CUDA {

#if defined(SITU_WITH_CUDA)

/// Errors after which every call of this process fails with the same code.
inline bool is_sticky(cudaError_t code) noexcept {
  switch (code) {
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorIllegalInstruction:
    case cudaErrorHardwareStackError:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContextIsDestroyed: return true;
    default: return false;
  }
}

/// The driver or the context is gone because the program is ending: what was held there is gone too.
inline bool is_unloading(cudaError_t code) noexcept { return code == cudaErrorCudartUnloading || code == cudaErrorContextIsDestroyed; }

/// What to do about an error; goes to the end of its message.
inline char const* advice(cudaError_t code) noexcept {
  if (is_sticky(code)) {
    return "; the CUDA context of this process is dead: every further call fails, and the process must be started again. The error may "
           "come from an earlier launch: run with SITU_CHECK_LAUNCHES=1 to see which, or under compute-sanitizer";
  }
  switch (code) {
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion: return ": compile for this GPU, with -arch=native or -arch=sm_XY";
    case cudaErrorCudartUnloading: return "; the program is ending: end work with GPUs before main returns";
    case cudaErrorStreamCaptureUnsupported:
    case cudaErrorStreamCaptureInvalidated:
    case cudaErrorStreamCaptureUnjoined:
    case cudaErrorStreamCaptureIsolation:
    case cudaErrorStreamCaptureImplicit: return "; this cannot be captured into a graph: do it before the capture";
    default: return "";
  }
}

/// For destructors, which do not throw: says once per process that a call failed, and nothing when the program is ending. `device` is -1
/// for page-locked memory.
inline void report(int device, char const* call, cudaError_t code) noexcept {
  if (code == cudaSuccess || is_unloading(code)) return;
  (void)cudaGetLastError();
  if (__atomic_exchange_n(&destructor_has_reported(), true, __ATOMIC_RELAXED)) return;
  char name[24] = "pinned";
  if (device >= 0) std::snprintf(name, sizeof name, "cuda:%d", device);
  std::fprintf(stderr, "situ: %s: %s failed: %s (%s)%s\n", name, call, cudaGetErrorName(code), cudaGetErrorString(code), advice(code));
}

#endif

}  // namespace SITU_ABI_CUDA
}  // namespace detail::cuda
}  // namespace situ::inline SITU_ABI
