/// The memory of emulated devices, seen from outside.
#pragma once

#include <situ/device/emulated/device.hpp>

namespace situ::inline SITU_ABI {
namespace detail::emulated {

static_assert(max_devices == max_emulated_devices);

struct PoolUse {
  int64_t reserved = 0, total = 0;
};
/// Zeros where there is no such device.
inline PoolUse pool_use(int ordinal) {
  Lock const lock;
  if (ordinal < 0 || ordinal >= state().device_count) return {};
  Device const* const device = state().devices[ordinal];
  return {device ? static_cast<int64_t>(device->pool.reserved) : 0, static_cast<int64_t>(state().memory)};
}

/// Frees that wait take effect, and nothing is kept.
inline void empty_cache() {
  Lock const lock;
  drain_all();
  for (Device* device : state().devices) {
    if (!device) continue;
    device->pool.trim(0);
  }
}

inline void set_release_threshold(int ordinal, int64_t bytes) {
  Lock const lock;
  Pool& pool = find(ordinal).pool;
  pool.keep = static_cast<std::size_t>(bytes);
  pool.trim(pool.keep);
}

}  // namespace detail::emulated
}  // namespace situ::inline SITU_ABI
