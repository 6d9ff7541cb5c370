/// Residual: a module around which its input is led.
#pragma once

#include <situ/nn/flatten.hpp>

namespace situ::inline SITU_ABI {
namespace nn {

/// x + fn(x): nn::Residual{nn::Sequential{...}}. A formula, which the next layer evaluates; a formula given as x is evaluated once.
/// In a state file the module's members stand under "fn.".
template <class M>
struct Residual {
  M fn;
  auto forward(auto const& x) const {
    auto const input = detail::settled(x);
    return input + fn(input);
  }
  SITU_MODULE(fn)
};
template <class M>
Residual(M) -> Residual<M>;

}  // namespace nn
}  // namespace situ::inline SITU_ABI
