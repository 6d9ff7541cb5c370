/// Printing, as PyTorch prints: std::cout << x.
#pragma once

#include <situ/tensor/format.hpp>
#include <situ/tensor/transfer.hpp>

namespace situ::inline SITU_ABI {

/// The text that `<<` writes; waits for the device.
template <class E>
  requires expression<E>
std::string to_string(E const& e) {
  auto const host = detail::evaluated(e).cpu().contiguous();
  std::string const name = device_traits<device_of<E>>::name();
  return detail::format_tensor(host.data(), host.rank(), host.shape().data(), name == "cpu" ? std::string() : name);
}

/// Writes a tensor, or the value of an expression, to a stream.
template <detail::text_stream Stream, class E>
  requires expression<E>
Stream& operator<<(Stream& stream, E const& e) {
  std::string const text = to_string(e);
  return detail::write_text(stream, text.data(), static_cast<std::ptrdiff_t>(text.size()));
}

}  // namespace situ::inline SITU_ABI
