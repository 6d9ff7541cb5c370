/// A backward pass of a formula bound to memory, for every device's kernels.
#pragma once

#include <situ/expr/lower.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// The marked tree of a formula, and that of the gradient of its value.
template <class F, class S>
struct BackwardTrees {
  F formula;
  S seed;
};

/// Where the gradients, which come first, and the inputs of a backward kernel lie.
template <int Outputs, int Inputs>
struct BackwardPlaces {
  Geometry<Outputs + Inputs> where;
  uint64_t needed = 0, accumulated = 0;
};

/// What backward kernels are made for: trees, of so many inputs, and the types of the gradients.
template <class F, class S, class Slots, int Inputs>
struct BackwardProgram;
template <class F, class S, class... Ts, int Inputs>
struct BackwardProgram<F, S, Fields<Ts...>, Inputs> {
  using formula_type = F;
  using seed_type = S;
  using slot_types = Fields<Ts...>;
  using trees = BackwardTrees<F, S>;
  static constexpr int outputs = static_cast<int>(sizeof...(Ts)), inputs = Inputs, operands = outputs + Inputs;
};

}  // namespace detail
}  // namespace situ::inline SITU_ABI
