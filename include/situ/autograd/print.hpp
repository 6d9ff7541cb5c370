/// Printing Variables, as PyTorch prints: std::cout << v.
#pragma once

#include <situ/autograd/formula.hpp>
#include <situ/tensor/print.hpp>

namespace situ::inline SITU_ABI {

/// The text that `<<` writes: that of the value, with `requires_grad=True` of a leaf that wants a gradient, `grad_fn=<Mul>` of what
/// was made of one. A formula is recorded for it, and printed as the Variable that it becomes. Waits for the device.
template <class E>
  requires differentiable<E>
std::string to_string(E const& e) {
  auto const v = detail::recorded(e);
  std::vector<std::string> suffixes;
  if (v.grad_fn()) suffixes.push_back(std::string("grad_fn=<") + v.grad_fn() + ">");
  else if (v.requires_grad()) suffixes.push_back("requires_grad=True");
  return detail::printed(v.value(), suffixes);
}

/// Writes a Variable, or the value of a formula with one in it, to a stream.
template <detail::text_stream Stream, class E>
  requires differentiable<E>
Stream& operator<<(Stream& stream, E const& e) {
  std::string const text = to_string(e);
  return detail::write_text(stream, text.data(), static_cast<std::ptrdiff_t>(text.size()));
}

}  // namespace situ::inline SITU_ABI
