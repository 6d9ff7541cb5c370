/// A reduction bound to memory, for every device's kernels.
#pragma once

#include <situ/expr/lower.hpp>
#include <situ/ops/reducers.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// Where the output (operand 0, contiguous) and the inputs lie. Axes [0, kept_rank) are those of the
/// output, in its order; axes [kept_rank, rank) are reduced, and the output's strides along them are 0. Axes are joined
/// inside each of the two groups; an empty group counts as one index. Elements are numbered 0 .. count-1 in the order of the
/// reduced axes: that is the index a reducer sees.
template <int Operands>
struct ReducePlaces {
  Geometry<Operands> where;
  int kept_rank;
  int64_t outputs;  ///< elements of the output
  int64_t count;    ///< elements that each of them is reduced from
  double parameter = 0;  ///< what the caller chose, for reducers that ask for it
};
/// And the tree of the input.
template <class Reducer_, class Tree, int Leaves>
struct ReduceProgram : ReducePlaces<Leaves + 1> {
  using reducer = Reducer_;
  using tree_type = Tree;
  using value_type = typename Tree::value_type;
  using out_type = typename Reducer_::result;
  static constexpr int leaves = Leaves;
  Tree tree;
  explicit ReduceProgram(Tree const& formula) : tree(formula) {}  // a lambda in it can be copied, but not assigned
};

/// The result of an output's elements.
template <class R, class A>
SITU_HOST_DEVICE SITU_INLINE typename R::result finished(A const& total, int64_t count, [[maybe_unused]] double parameter) {
  if constexpr (requires { typename R::parameter; }) return R::finish(total, count, parameter);
  else return R::finish(total, count);
}

/// Where the operands of a reduction lie, with the types forgotten: see ReduceProgram.
struct ReductionPlaces {
  int64_t* sizes;
  int64_t* strides;  ///< of operand o along axis k at [o * max_rank + k]
  int rank = 0, kept_rank = 0;
  int64_t outputs = 1, count = 1;

  /// layouts: of the inputs, numbers 1 to operands - 1. The reduced axes stay in order, or get into that of memory, by the first input.
  SITU_NOINLINE void bind(Layout const* const* layouts, int operands, Shape const& shape, unsigned reduced, bool order_matters) {
    int const all = shape.rank();
    int order[max_rank];
    int kept = 0, at = 0;
    for (int k = 0; k < all; ++k) {
      if (!(reduced >> k & 1u)) order[at++] = k;
    }
    kept = at;
    for (int k = 0; k < all; ++k) {
      if (reduced >> k & 1u) order[at++] = k;
    }
    int64_t own[max_rank];
    if (!order_matters && operands > 1) {
      broadcast_strides(*layouts[1], shape, own);
      auto magnitude = [&](int axis) { return own[axis] < 0 ? -own[axis] : own[axis]; };
      for (int k = kept + 1; k < all; ++k) {
        for (int j = k; j > kept && magnitude(order[j]) > magnitude(order[j - 1]); --j) std::swap(order[j], order[j - 1]);
      }
    }
    int64_t step = 1;
    for (int k = kept - 1; k >= 0; --k) {
      strides[k] = step;
      step = extended(step, shape[order[k]]);
    }
    for (int k = 0; k < all; ++k) {
      sizes[k] = shape[order[k]];
      int64_t& all_of_kind = k < kept ? outputs : count;
      all_of_kind = extended(all_of_kind, sizes[k]);
      if (k >= kept) strides[k] = 0;
    }
    for (int o = 1; o < operands; ++o) {
      broadcast_strides(*layouts[o], shape, own);
      for (int k = 0; k < all; ++k) strides[o * max_rank + k] = own[order[k]];
    }
    kept_rank = kept;
    rank = coalesce(sizes, strides, operands, all, &kept_rank);
  }
};

}  // namespace detail
}  // namespace situ::inline SITU_ABI
