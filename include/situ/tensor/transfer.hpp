/// Transfers: the only way from one device to another.
///
/// What crosses is one contiguous piece where the source is contiguous (on the host it is made so first). A strided source
/// on a device crosses as the span of memory that it covers, so that no kernel is needed there.
#pragma once

#include <situ/device/pinned.hpp>
#include <situ/device/stream.hpp>
#include <situ/tensor/tensor.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

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
    auto const span = from.layout().extent();
    std::size_t const elements = span.last < span.first ? 0 : static_cast<std::size_t>(span.last - span.first + 1);
    bool const dense = from.is_contiguous();
    Tensor<T, To> result = Tensor<T, To>::uninitialized(dense ? from.shape() : Shape(static_cast<int64_t>(elements)), "to");
    copy_bytes<To, From>(result.data(), copied_from<To>(from) + (elements ? span.first : 0), elements * sizeof(T));
    if (dense) return result;
    void* const first = elements ? result.data() - span.first : nullptr;
    auto strided = Tensor<T, To>::from_handle(make_view(result.storage(), first, from.layout()));
    if constexpr (host_device<To>) return strided.contiguous();
    else return strided;
  }
}

template <class U, class T, class D>
Tensor<U, D> converted(Tensor<T, D> const& from) {
  if constexpr (std::is_same_v<U, T>) return from;
  else return Tensor<U, D>(cast<U>(from));
}

/// Narrowing happens before the copy, widening after it: the fewer bytes cross.
template <class U, class To, class T, class From>
Tensor<U, To> convert_and_transfer(Tensor<T, From> const& from) {
  if constexpr (std::is_same_v<U, T>) return transfer<To>(from);
  else if constexpr (sizeof(U) <= sizeof(T)) return transfer<To>(converted<U>(from));
  else return converted<U>(transfer<To>(from));
}

}  // namespace detail

/// A copy in page-locked host memory, from which asynchronous transfers start.
template <class E>
  requires expression<E>
auto pin(E const& e, detail::CallSite site = detail::CallSite::here()) {
  return e.to(Pinned{}, site);
}

}  // namespace situ::inline SITU_ABI
