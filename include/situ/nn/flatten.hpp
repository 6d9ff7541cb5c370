/// Flatten: several axes made one.
#pragma once

#include <situ/autograd/backward.hpp>
#include <situ/nn/module.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// The value of a formula: a Variable where it records, else a Tensor.
template <class X>
  requires any_formula<X>
auto settled(X const& x) {
  if constexpr (differentiable<X>) return recorded(x);
  else return evaluated(x);
}

}  // namespace detail

namespace nn {

/// The axes from start_dim to end_dim as one: of [N, C, H, W], [N, C H W] where nothing is written. A view where the strides allow it.
/// Throws    ShapeError when there is no such axis, or start_dim lies behind end_dim.
struct Flatten {
  int64_t start_dim = 1, end_dim = -1;

  auto forward(auto const& x) const {
    Shape const shape = x.shape();
    if (shape.rank() == 0) return detail::settled(x).reshape({1});
    int const first = detail::checked_axis(start_dim, shape.rank(), shape, "Flatten"), last = detail::checked_axis(end_dim, shape.rank(), shape, "Flatten");
    if (first > last) detail::fail<ShapeError>("Flatten: axis ", first, " lies behind axis ", last, " of shape ", shape, "; start_dim must not be above end_dim");
    Shape to;
    int64_t joined = 1;
    for (int k = 0; k < shape.rank(); ++k) {
      if (k < first || k > last) to.push_back(shape[k]);
      else joined *= shape[k];
      if (k == last) to.push_back(joined);
    }
    return detail::settled(x).reshape(to);
  }
  SITU_MODULE(start_dim, end_dim)
};

}  // namespace nn
}  // namespace situ::inline SITU_ABI
