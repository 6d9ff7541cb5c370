/// A device as a value: what statistics, logs and messages name devices by.
#pragma once

#include <string>

#include <situ/core/device.hpp>
#include <situ/core/error.hpp>

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

SITU_REPORTS void append_to(MessageText& to, Place const& place) {
  constexpr char const* kinds[] = {"cpu", "pinned", "cuda:", "emulated:", "other"};
  to.add(kinds[static_cast<int>(place.kind)]);
  if (place.kind == device_kind::cuda || place.kind == device_kind::emulated) add_to(to, place.ordinal);
}
SITU_REPORTS std::string to_string(Place const& place) { return text(place); }

}  // namespace detail
}  // namespace situ::inline SITU_ABI
