/// A reduction bound to memory, for every device's kernels.
#pragma once

#include <situ/expr/lower.hpp>
#include <situ/ops/reducers.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// The tree of the input, and where the output (operand 0, contiguous) and the inputs lie. Axes [0, kept_rank) are those of the
/// output, in its order; axes [kept_rank, rank) are reduced, and the output's strides along them are 0. Axes are joined
/// inside each of the two groups; an empty group counts as one index. Elements are numbered 0 .. count-1 in the order of the
/// reduced axes: that is the index a reducer sees.
template <class Reducer_, class Tree, int Leaves>
struct ReduceProgram {
  using reducer = Reducer_;
  using tree_type = Tree;
  using value_type = typename Tree::value_type;
  using out_type = typename Reducer_::result;
  static constexpr int leaves = Leaves;
  Tree tree;
  Geometry<Leaves + 1> where;
  int kept_rank;
  int64_t outputs;  ///< elements of the output
  int64_t count;    ///< elements that each of them is reduced from
  double parameter = 0;  ///< what the caller chose, for reducers that ask for it
  explicit ReduceProgram(Tree const& formula) : tree(formula) {}  // a lambda in it can be copied, but not assigned
};

/// The result of an output's elements.
template <class R, class A>
SITU_HOST_DEVICE SITU_INLINE typename R::result finished(A const& total, int64_t count, [[maybe_unused]] double parameter) {
  if constexpr (requires { typename R::parameter; }) return R::finish(total, count, parameter);
  else return R::finish(total, count);
}

/// Binds the reduction of `e` over the axes whose bit is set in `reduced` to an output at `data`.
template <class Reducer, class E>
void bind_reduction(ReduceProgram<Reducer, tree_of<E>, leaf_count<E>>& program, typename Reducer::result* data, E const& e, unsigned reduced) {
  Shape const& shape = e.shape();
  int const rank = shape.rank();
  constexpr int operands = leaf_count<E> + 1;
  auto& where = program.where;
  where.data[0] = data;
  where.contiguous = false;
  int order[max_rank];
  int kept = 0, at = 0;
  for (int k = 0; k < rank; ++k) {
    if (!(reduced >> k & 1u)) order[at++] = k;
  }
  kept = at;
  for (int k = 0; k < rank; ++k) {
    if (reduced >> k & 1u) order[at++] = k;
  }
  if constexpr (!requires { Reducer::order_matters; }) {  // the reduced axes in the order of memory, by the first input
    bool first = true;
    for_each_leaf(e, [&](auto const& leaf) {
      if (!std::exchange(first, false)) return;
      int64_t strides[max_rank];
      broadcast_strides(leaf.layout(), shape, strides);
      auto magnitude = [&](int axis) { return strides[axis] < 0 ? -strides[axis] : strides[axis]; };
      for (int k = kept + 1; k < rank; ++k) {
        for (int j = k; j > kept && magnitude(order[j]) > magnitude(order[j - 1]); --j) std::swap(order[j], order[j - 1]);
      }
    });
  }
  program.outputs = program.count = 1;
  int64_t step = 1;
  for (int k = kept - 1; k >= 0; --k) {
    where.strides[0][k] = step;
    step *= shape[order[k]];
  }
  for (int k = 0; k < rank; ++k) {
    where.sizes[k] = shape[order[k]];
    (k < kept ? program.outputs : program.count) *= where.sizes[k];
    if (k >= kept) where.strides[0][k] = 0;
  }
  int o = 1;
  for_each_leaf(e, [&](auto const& leaf) {
    where.data[o] = const_cast<void*>(static_cast<void const*>(leaf.data()));
    int64_t strides[max_rank];
    broadcast_strides(leaf.layout(), shape, strides);
    for (int k = 0; k < rank; ++k) where.strides[o][k] = strides[order[k]];
    ++o;
  });
  program.kept_rank = kept;
  where.rank = coalesce(where.sizes, &where.strides[0][0], operands, rank, &program.kept_rank);
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
