/// Whether a device that is named at run time is there.
#pragma once

#include <situ/device/any.hpp>
#include <situ/device/emulated/device.hpp>

namespace situ::inline SITU_ABI {
namespace detail {
namespace presence {
inline namespace SITU_ABI_CUDA {

/// Devices that a user has added are there as soon as they are types. Never throws.
inline bool is_there(AnyDevice const& d) {
  if (d.type() == AnyDevice::kind::emulated) return d.ordinal() < situ::emulated::device_count();
  return !d.is_cuda() || try_gpu(d.ordinal()) == d;
}

}  // namespace SITU_ABI_CUDA
}  // namespace presence
using presence::is_there;
}  // namespace detail
}  // namespace situ::inline SITU_ABI
