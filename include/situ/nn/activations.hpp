/// Activations as modules: ReLU, LeakyReLU, GELU, SiLU, Tanh, Sigmoid, Softmax.
///
/// Each gives the function's formula, which the next layer evaluates, together with what surrounds it: in a Sequential nothing is computed twice, and
/// pooling reads it straight from the layer before. Shapes, types and gradients are those of the functions.
#pragma once

#include <situ/autograd/backward.hpp>
#include <situ/autograd/rows.hpp>
#include <situ/expr/functions.hpp>
#include <situ/nn/flatten.hpp>

namespace situ::inline SITU_ABI {
namespace nn {

/// max(x, 0).
struct ReLU {
  auto forward(auto const& x) const { return relu(x); }
  SITU_MODULE()
};
/// x where it is positive, else negative_slope x.
struct LeakyReLU {
  double negative_slope = 0.01;
  auto forward(auto const& x) const { return leaky_relu(x, negative_slope); }
  SITU_MODULE(negative_slope)
};
/// x Φ(x) by the error function, or GELU{approximate_tanh}: its approximation by tanh. A tensor or a Variable, not a formula: which form is known at run time.
struct GELU {
  GELU() = default;
  explicit GELU(approximate_tanh_t) : approximate_(true) {}
  GELU(from_members_t, bool approximate) : approximate_(approximate) {}
  auto forward(auto const& x) const { return approximate_ ? detail::settled(gelu(x, approximate_tanh)) : detail::settled(gelu(x)); }

 private:
  bool approximate_ = false;

 public:
  SITU_MODULE(approximate_)
};
/// x sigmoid(x).
struct SiLU {
  auto forward(auto const& x) const { return silu(x); }
  SITU_MODULE()
};
struct Tanh {
  auto forward(auto const& x) const { return tanh(x); }
  SITU_MODULE()
};
struct Sigmoid {
  auto forward(auto const& x) const { return sigmoid(x); }
  SITU_MODULE()
};
/// Exponentials that sum to 1 along axis `dim`.
struct Softmax {
  int64_t dim;
  auto forward(auto const& x) const { return softmax(x, dim); }
  SITU_MODULE(dim)
};

}  // namespace nn
}  // namespace situ::inline SITU_ABI
