/// Transfers: the only way from one device to another.
///
/// A transfer is one copy. What is strided on the host is packed there first. What is strided on a device crosses without a kernel, which a file of
/// the host's compiler does not have: as it lies where that has no gaps, as rows that the copy packs, and otherwise as the span of memory that it covers.
/// What is broadcast crosses once, and is repeated by copies where it arrives: what arrives can be written to.
#pragma once

#include <situ/device/pinned.hpp>
#include <situ/device/stream.hpp>
#include <situ/tensor/tensor.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// How the elements of a layout cross: what lies in memory, from the lowest address on, and how it lies there afterwards.
struct Crossing {
  int64_t first = 0;     ///< the offset of the lowest element
  int64_t elements = 0;  ///< that arrive
  int64_t origin = 0;    ///< where the first element of the tensor is then
  Shape strides;         ///< then
  bool whole = true;     ///< it lies in one piece
  PitchedCopy rows{};    ///< otherwise, with a count of 0 where no copy can pack it
};

SITU_NOINLINE inline Crossing crossing_of(Layout const& layout, std::size_t item) {
  Crossing result;
  result.strides = layout.strides;
  int axes[max_rank];
  int count = 0;
  auto const step = [&](int k) { return layout.strides[k] < 0 ? -layout.strides[k] : layout.strides[k]; };
  for (int k = 0; k < layout.rank(); ++k) {
    if (layout.shape[k] == 0) return result;
    if (layout.shape[k] == 1 || layout.strides[k] == 0) continue;
    int at = count++;
    for (; at > 0 && step(axes[at - 1]) > step(k); --at) axes[at] = axes[at - 1];
    axes[at] = k;
  }
  int64_t packed = 1;
  int64_t sizes[max_rank], steps[max_rank];  // joined, from the innermost on
  int joined = 0;
  for (int j = 0; j < count; ++j) {
    int const k = axes[j];
    int64_t const n = layout.shape[k];
    result.whole = result.whole && step(k) == packed;
    result.strides[k] = layout.strides[k] < 0 ? -packed : packed;
    if (layout.strides[k] < 0) {
      result.first += (n - 1) * layout.strides[k];
      result.origin += (n - 1) * packed;
    }
    if (joined > 0 && step(k) == steps[joined - 1] * sizes[joined - 1]) sizes[joined - 1] *= n;
    else sizes[joined] = n, steps[joined++] = step(k);
    packed *= n;
  }
  result.elements = packed;
  if (result.whole) return result;
  bool const one = joined == 1 || (joined == 2 && steps[0] == 1 && steps[1] >= sizes[0]);
  if (!one) return result;
  int64_t const width = joined == 1 ? 1 : sizes[0], pitch = steps[joined - 1];
  std::size_t const bytes = static_cast<std::size_t>(width) * item;
  // A copy engine moves short rows one by one: those are left to a kernel or to the host, unless they are few in much else.
  if ((bytes < 64 && pitch < 16 * width) || pitch >= (int64_t{1} << 31) / static_cast<int64_t>(item)) return result;
  result.rows = {bytes, static_cast<std::size_t>(pitch) * item, static_cast<std::size_t>(sizes[joined - 1])};
  return result;
}

/// How often what crosses is repeated by axes of stride 0.
SITU_NOINLINE inline int64_t repetitions(Layout const& layout) {
  int64_t count = 1;
  for (int k = 0; k < layout.rank(); ++k) {
    if (layout.strides[k] == 0) count *= layout.shape[k];
  }
  return count;
}
/// Gives each repetition elements of its own, one behind the other.
SITU_NOINLINE inline void lay_apart(Layout& layout, int64_t elements) {
  for (int k = layout.rank() - 1; k >= 0; --k) {
    if (layout.strides[k] != 0) continue;
    layout.strides[k] = elements;
    elements *= layout.shape[k];
  }
}
/// Repeats the `bytes` at `first` behind them, until there are `count` of them: each copy doubles what is there.
template <class D>
void repeat_bytes(void* first, std::size_t bytes, int64_t count) {
  for (int64_t have = 1; have < count; have *= 2) {
    int64_t const more = have < count - have ? have : count - have;
    device_traits<D>::copy(static_cast<char*>(first) + static_cast<std::size_t>(have) * bytes, first, static_cast<std::size_t>(more) * bytes);
  }
}

/// D packs rows on their way to the host: `copy_rows_to_host`, done when it returns.
template <class D>
concept copies_rows_to_host = requires(void* to, void const* from, PitchedCopy const& rows) { device_traits<D>::copy_rows_to_host(to, from, rows); };
template <class To, class From>
concept copies_rows_directly = requires(void* to, void const* from, PitchedCopy const& rows) { device_traits<To>::template copy_rows_from<From>(to, from, rows); };

template <class To, class From>
concept copies_directly = requires(void* to, void const* from, std::size_t n) { device_traits<To>::template copy_from<From>(to, from, n); };

/// Copies bytes between the memories of two devices, by the shortest way.
template <class To, class From>
void copy_bytes(void* to, void const* from, std::size_t bytes) {
  if (bytes == 0) return;
  if constexpr (std::is_same_v<To, From>) device_traits<To>::copy(to, from, bytes);
  else if constexpr (std::is_same_v<To, Cpu>) device_traits<From>::copy_to_host(to, from, bytes);
  else if constexpr (host_device<From>) device_traits<To>::copy_from_host(to, from, bytes);
  else if constexpr (host_device<To>) device_traits<From>::copy_to_host(to, from, bytes);
  else if constexpr (copies_directly<To, From>) device_traits<To>::template copy_from<From>(to, from, bytes);
  else {
    Temporary<Cpu> const staged(bytes);
    device_traits<From>::copy_to_host(staged.get(), from, bytes);
    device_traits<To>::copy_from_host(to, staged.get(), bytes);
  }
}

/// Where a tensor begins, for a copy that To's stream makes when the devices exchange memory directly, and else From's.
template <class To, class T, class From>
T const* copied_from(Tensor<T, From> const& from) {
  if constexpr (copies_directly<To, From> && asynchronous<To>) {
    before_read<To>(from.storage_head());
    return from.body() ? static_cast<T const*>(from.body()->first) : nullptr;
  } else {
    return from.data();
  }
}

/// `from` on device To: itself when it is there already.
template <class To, class T, class From>
Tensor<T, To> transfer(Tensor<T, From> const& from) {
  if constexpr (std::is_same_v<To, From>) return from;
  else if constexpr (host_device<From>) {
    Tensor<T, From> const packed = from.contiguous();
    Tensor<T, To> result = Tensor<T, To>::uninitialized(from.shape(), "to");
    copy_bytes<To, From>(result.data(), packed.data(), static_cast<std::size_t>(from.size()) * sizeof(T));
    return result;
  } else {
    if (from.is_contiguous()) {
      Tensor<T, To> result = Tensor<T, To>::uninitialized(from.shape(), "to");
      copy_bytes<To, From>(result.data(), copied_from<To>(from), static_cast<std::size_t>(from.size()) * sizeof(T));
      return result;
    }
    constexpr bool takes_rows = host_device<To> ? copies_rows_to_host<From> : copies_rows_directly<To, From>;
    Layout layout = from.layout();
    Crossing crossing = crossing_of(layout, sizeof(T));
    if (!crossing.whole && !(takes_rows && crossing.rows.count > 0)) {
      auto const span = layout.extent();
      crossing = {span.first, span.last - span.first + 1, -span.first, layout.strides, true, {}};
    }
    layout.strides = crossing.strides;
    int64_t const repeated = host_device<To> ? 1 : repetitions(layout);  // the host packs the result below
    Tensor<T, To> flat = Tensor<T, To>::uninitialized({repeated, crossing.elements}, "to");
    if (repeated > 1) lay_apart(layout, crossing.elements);
    T* const to = flat.data();
    if (crossing.elements > 0) {
      T const* const first = copied_from<To>(from) + crossing.first;
      if (crossing.whole) copy_bytes<To, From>(to, first, static_cast<std::size_t>(crossing.elements) * sizeof(T));
      else if constexpr (takes_rows && host_device<To>) device_traits<From>::copy_rows_to_host(to, first, crossing.rows);
      else if constexpr (takes_rows) device_traits<To>::template copy_rows_from<From>(to, first, crossing.rows);
      if constexpr (!host_device<To>) repeat_bytes<To>(to, static_cast<std::size_t>(crossing.elements) * sizeof(T), repeated);
    }
    auto strided = Tensor<T, To>::from_handle(make_view(flat.storage(), crossing.elements > 0 ? to + crossing.origin : nullptr, layout));
    if constexpr (host_device<To>) return strided.contiguous();
    else return strided;
  }
}

template <class U, class T, class D>
Tensor<U, D> converted(Tensor<T, D> const& from) {
  if constexpr (std::is_same_v<U, T>) return from;
  else return Tensor<U, D>(cast<U>(from));
}

/// The value of an expression as elements of U: one kernel, but of formulas in 16-bit floats two, since their values are rounded before they are converted.
template <class U, class E>
Tensor<U, typename value_device<E>::type> evaluated_as(E const& e) {
  using T = value_of<E>;
  if constexpr (std::is_same_v<E, Tensor<T, device_of<E>>> || std::is_same_v<U, T> || !std::is_same_v<T, compute_t<T>>) return converted<U>(evaluated(e));
  else return Tensor<U, typename value_device<E>::type>(cast<U>(e));
}

/// Narrowing happens before the copy, widening after it: the fewer bytes cross.
template <class U, class To, class E>
Tensor<U, To> convert_and_transfer(E const& from) {
  if constexpr (sizeof(U) <= sizeof(value_of<E>) || std::is_same_v<To, result_device_t<device_of<E>>>) return transfer<To>(evaluated_as<U>(from));
  else return converted<U>(transfer<To>(evaluated(from)));
}

}  // namespace detail

/// A copy in page-locked host memory, from which asynchronous transfers start.
template <class E>
  requires expression<E>
Tensor<value_of<E>, Pinned> pin(E const& e, detail::CallSite site = detail::CallSite::here()) {
  return e.to(Pinned{}, site);
}

}  // namespace situ::inline SITU_ABI
