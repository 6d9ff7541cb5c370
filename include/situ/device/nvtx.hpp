/// Ranges for Nsight: with SITU_NVTX defined in one file of a program, every launch of the program and every ProfileRange is an NVTX range,
/// named after its formula. Needs the CUDA Toolkit's nvtx3 headers, which load the tool's library where there is one.
///
/// This header belongs into that one file when the file includes no umbrella; all umbrellas include it.
#pragma once

#include <situ/device/cpu/system.hpp>
#include <situ/device/observe.hpp>

#if defined(SITU_NVTX)

#if !__has_include(<nvtx3/nvToolsExt.h>)
#error "situ: SITU_NVTX needs nvtx3/nvToolsExt.h of the CUDA Toolkit: add its include folder, or link situ::cuda"
#endif
#include <nvtx3/nvToolsExt.h>

namespace situ::inline SITU_ABI {
namespace detail {

inline void push_nvtx_range(LaunchName const& name) noexcept {
  try {
    (void)nvtxRangePushA(to_string(name).c_str());
  } catch (...) {  // no memory for the name
    (void)nvtxRangePushA("");
  }
}
inline void pop_nvtx_range() noexcept { (void)nvtxRangePop(); }

[[maybe_unused]] static bool const nvtx_ranges_are_on = [] {
  Observers& observers = observers_state();
  (void)read_environment();
  if (!observers.push_range) {
    cpu::stay_loaded(reinterpret_cast<void const*>(&push_nvtx_range));
    observers.pop_range = &pop_nvtx_range;
    observers.push_range = &push_nvtx_range;
  }
  __atomic_fetch_or(&observers.active, static_cast<unsigned>(ranges), __ATOMIC_RELEASE);
  return true;
}();

}  // namespace detail
}  // namespace situ::inline SITU_ABI

#endif
