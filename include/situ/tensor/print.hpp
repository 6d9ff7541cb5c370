/// Printing, as PyTorch prints: std::cout << x.
#pragma once

#include <situ/tensor/format.hpp>
#include <situ/tensor/transfer.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// A tensor as text. On the host its elements are read where they lie; from a device what is repeated along an axis of stride 0 comes once.
template <class T, class D>
[[gnu::cold]] std::string printed(Tensor<T, D> const& x, std::vector<std::string> const& suffixes = {}) {
  Layout distinct = x.layout();
  for (int k = 0; k < distinct.rank(); ++k) {
    if (distinct.strides[k] == 0 && distinct.shape[k] > 1) distinct.shape[k] = 1;
  }
  Tensor<T, Cpu> const host = Tensor<T, D>::from_handle(make_view(x.handle(), Viewed{distinct, 0}, sizeof(T))).cpu();
  Shape strides = host.strides();
  for (int k = 0; k < strides.rank(); ++k) {
    if (distinct.shape[k] != x.shape()[k]) strides[k] = 0;
  }
  std::string const name = device_traits<D>::name();
  return format_tensor(host.data(), host.rank(), x.shape().data(), name == "cpu" ? std::string() : name, suffixes, strides.data());
}

}  // namespace detail

/// The text that `<<` writes; waits for the device.
template <class E>
  requires expression<E>
std::string to_string(E const& e) {
  return detail::printed(detail::evaluated(e));
}

/// Writes a tensor, or the value of an expression, to a stream.
template <detail::text_stream Stream, class E>
  requires expression<E>
Stream& operator<<(Stream& stream, E const& e) {
  std::string const text = to_string(e);
  return detail::write_text(stream, text.data(), static_cast<std::ptrdiff_t>(text.size()));
}

}  // namespace situ::inline SITU_ABI
