/// A device as a value: what statistics, logs and messages name devices by.
#pragma once

#include <string>

#include <situ/core/device.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

enum class device_kind : unsigned char { cpu, pinned, cuda, emulated, other };

struct Place {
  device_kind kind = device_kind::cpu;
  int ordinal = 0;
  friend constexpr bool operator==(Place const&, Place const&) = default;
  bool is_host() const { return kind == device_kind::cpu || kind == device_kind::pinned; }
};

/// Devices that situ does not know are one place.
template <class D>
inline constexpr Place place_of{device_kind::other, 0};
template <>
inline constexpr Place place_of<Cpu>{device_kind::cpu, 0};
template <>
inline constexpr Place place_of<Pinned>{device_kind::pinned, 0};
template <int N>
inline constexpr Place place_of<Cuda<N>>{device_kind::cuda, N};
template <int N>
inline constexpr Place place_of<Emulated<N>>{device_kind::emulated, N};

inline std::string to_string(Place const& place) {
  switch (place.kind) {
    case device_kind::cpu: return "cpu";
    case device_kind::pinned: return "pinned";
    case device_kind::cuda: return "cuda:" + std::to_string(place.ordinal);
    case device_kind::emulated: return "emulated:" + std::to_string(place.ordinal);
    case device_kind::other: break;
  }
  return "other";
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
