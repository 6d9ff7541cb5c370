/// Dropout as a module.
#pragma once

#include <situ/autograd/random.hpp>
#include <situ/nn/module.hpp>

namespace situ::inline SITU_ABI {
namespace nn {

/// In training each element 0 with probability p, else divided by 1 - p, by the default generator; after eval() the elements as they are.
/// Throws    ShapeError, when it is called, unless p is in [0, 1]. See ops/random_ops.hpp.
struct Dropout {
  double p = 0.5;
  bool training = true;
  auto forward(auto const& x) const { return dropout(x, p, training); }
  SITU_MODULE(p, training)
};

}  // namespace nn
}  // namespace situ::inline SITU_ABI
