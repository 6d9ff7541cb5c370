/// Devices chosen while the program runs: AnyDevice names one, try_gpu finds one, visit goes back to types.
#pragma once

#include <iosfwd>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <situ/core/device.hpp>
#include <situ/core/error.hpp>
#include <situ/device/cpu/device.hpp>
#include <situ/device/cuda/device.hpp>
#include <situ/device/place.hpp>

namespace situ::inline SITU_ABI {

/// The name of a device, known at run time. Converts from every device, prints as `cpu`, `pinned`, `cuda:0`, `emulated:1`.
class AnyDevice {
 public:
  using kind = detail::device_kind;

  constexpr AnyDevice() = default;
  constexpr AnyDevice(Cpu) {}
  constexpr AnyDevice(Pinned) : AnyDevice(kind::pinned, 0) {}
  template <int N>
  constexpr AnyDevice(Cuda<N>) : AnyDevice(kind::cuda, N) {}
  template <int N>
  constexpr AnyDevice(Emulated<N>) : AnyDevice(kind::emulated, N) {}
  /// A device that the user has added.
  template <device D>
    requires(std::is_empty_v<D>)
  constexpr AnyDevice(D) : AnyDevice(kind::other, 0) {
    name_ = &device_traits<D>::name;
    synchronize_ = &device_traits<D>::synchronize;
  }
  /// For situ's own use: devices that it does not know have no name there.
  explicit constexpr AnyDevice(detail::Place const& place) : AnyDevice(place.kind, place.ordinal) {}
  /// GPU number `ordinal`, whether it is there or not.
  static constexpr AnyDevice cuda(int ordinal) { return {kind::cuda, ordinal}; }

  constexpr kind type() const { return kind_; }
  /// The number in the name; 0 for devices without one.
  constexpr int ordinal() const { return ordinal_; }
  constexpr bool is_cuda() const { return kind_ == kind::cuda; }
  constexpr detail::Place place() const { return {kind_, ordinal_}; }
  /// For situ's own use: waits for a device that the user has added.
  void synchronize_own() const {
    if (synchronize_) synchronize_();
  }

  friend bool operator==(AnyDevice const& a, AnyDevice const& b) {
    if (a.kind_ != b.kind_ || a.ordinal_ != b.ordinal_) return false;
    return a.name_ == b.name_ || (a.name_ && b.name_ && a.name_() == b.name_());
  }

  friend std::string to_string(AnyDevice const& d) {
    return d.name_ ? d.name_() : detail::to_string(d.place());
  }
  template <class Traits>
  friend std::basic_ostream<char, Traits>& operator<<(std::basic_ostream<char, Traits>& out, AnyDevice const& d) {
    return out << to_string(d).c_str();
  }

 private:
  constexpr AnyDevice(kind k, int ordinal) : kind_(k), ordinal_(ordinal) {}

  kind kind_ = kind::cpu;
  int ordinal_ = 0;
  std::string (*name_)() = nullptr;  ///< of a device that situ does not know
  void (*synchronize_)() = nullptr;
};

/// A device prints as its name: std::cout << x.device().
template <class Traits, device D>
  requires std::is_empty_v<D>
std::basic_ostream<char, Traits>& operator<<(std::basic_ostream<char, Traits>& out, D d) {
  return out << AnyDevice(d);
}

inline namespace SITU_ABI_CUDA {

/// Cuda i where it is present, else Cpu. Never throws.
inline AnyDevice try_gpu(int i = 0) noexcept {
  if (i >= 0 && i < detail::cuda::device_count()) return AnyDevice::cuda(i);
  return Cpu{};
}

/// All GPUs, in their order; { Cpu } where there is none.
template <class Device = AnyDevice>  // a template, so that std::vector is instantiated by those who call it
std::vector<Device> try_all_gpus() {
  std::vector<Device> result;
  for (int i = 0; i < detail::cuda::device_count(); ++i) result.push_back(AnyDevice::cuda(i));
  if (result.empty()) result.push_back(Cpu{});
  return result;
}

}  // namespace SITU_ABI_CUDA

namespace detail {

template <class...>
struct device_list {};

inline namespace SITU_ABI_CUDA {

/// Whether this build can make tensors on D.
template <class D>
inline constexpr bool in_this_build = true;
#if !defined(SITU_WITH_CUDA)
template <int N>
inline constexpr bool in_this_build<Cuda<N>> = false;
#endif

template <class... Ds>
[[noreturn]] __attribute__((noinline, cold)) void fail_visit(AnyDevice const& d, device_list<Ds...>) {
  std::string list;
  bool left_out = false;
  ((list += (list.empty() ? "" : ", ") + to_string(AnyDevice(Ds{})), left_out = left_out || (d == AnyDevice(Ds{}) && !in_this_build<Ds>)), ...);
  if (left_out) fail<DeviceUnavailable>("visit: ", d, " is in the list, but not in this build: link situ::cuda, or compile with nvcc");
  fail<DeviceUnavailable>("visit: ", d, " is not among the devices that this call lists: ", list, "; add it to the template arguments of visit");
}

/// What f returns for the first listed device that this build has.
template <class F, class... Ds>
struct visit_result {
  static_assert(sizeof...(Ds) > 0, "situ::visit: this build has none of the listed devices");
  using type = void;  // so that this is the only error
};
template <class F, class D, class... Ds>
struct visit_result<F, D, Ds...> : visit_result<F, Ds...> {};
template <class F, class D, class... Ds>
  requires in_this_build<D>
struct visit_result<F, D, Ds...> {
  using type = decltype(std::declval<F>()(D{}));
};

template <class R, class List, class D, class... Ds, class F>
R visit_from(AnyDevice const& d, F&& f) {
  if constexpr (in_this_build<D>) {
    if (d == AnyDevice(D{})) return static_cast<F&&>(f)(D{});
  }
  if constexpr (sizeof...(Ds) > 0) return visit_from<R, List, Ds...>(d, static_cast<F&&>(f));
  else fail_visit(d, List{});
}

}  // namespace SITU_ABI_CUDA
}  // namespace detail

inline namespace SITU_ABI_CUDA {

/// Calls f with the tag of the device that d names: visit<Cpu, Cuda<0>>(d, [&](auto device) { train(device); }).
///
/// f is instantiated for the listed devices that this build has (without a list: Cpu and Cuda<0>), and returns one type for all
/// of them. Throws DeviceUnavailable for a device that is not in the list.
template <device... Ds, class F>
decltype(auto) visit(AnyDevice const& d, F&& f) {
  if constexpr (sizeof...(Ds) == 0) {
    return visit<Cpu, Cuda<0>>(d, static_cast<F&&>(f));
  } else {
    using R = typename detail::visit_result<F&&, Ds...>::type;
    return detail::visit_from<R, detail::device_list<Ds...>, Ds...>(d, static_cast<F&&>(f));
  }
}

}  // namespace SITU_ABI_CUDA
}  // namespace situ::inline SITU_ABI
