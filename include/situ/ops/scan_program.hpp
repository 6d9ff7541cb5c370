/// What a scan computes, and a scan bound to memory, for every device's kernels.
///
/// A *line* is what is scanned: all indices along the axis, the other indices fixed. Long lines are cut into *parts*, by shapes alone.
/// Inside a part a chain starts from `identity()`; the combination of all earlier parts, the *base*, is put in front of it. So the
/// results are the same whether the parts are done one after the other or side by side.
#pragma once

#include <situ/expr/lane_functions.hpp>
#include <situ/expr/lanes.hpp>
#include <situ/expr/lower.hpp>

namespace situ::inline SITU_ABI {
namespace scanners {

/// Sums are kept in double for floats, in int64 for integers and bools. On the CPU up to 16 neighbouring floats are added in float first.
template <class T>
struct cumsum {
  static constexpr char const* name = "cumsum";
  using element = std::conditional_t<floating<T>, double, int64_t>;
  using lane = std::conditional_t<floating<T>, compute_t<T>, int64_t>;  ///< in which neighbours that share a register are combined
  using result = std::conditional_t<floating<T>, T, int64_t>;
  SITU_HOST_DEVICE static constexpr element identity() { return 0; }
  template <class X>
  SITU_HOST_DEVICE SITU_INLINE static X combine(X const& a, X const& b) {
    return detail::added(a, b);
  }
};

template <class T>
struct cumprod : cumsum<T> {
  static constexpr char const* name = "cumprod";
  using typename cumsum<T>::element;
  using lane = element;  // partial products may leave the range of the result
  SITU_HOST_DEVICE static constexpr element identity() { return 1; }
  template <class X>
  SITU_HOST_DEVICE SITU_INLINE static X combine(X const& a, X const& b) {
    return detail::multiplied(a, b);
  }
};

}  // namespace scanners

namespace detail {

/// The tree of the input, and where the output (operand 0) and the inputs lie. The last axis is scanned; the others are in the output's
/// order, joined where they can be.
template <class Scanner, class Tree, int Leaves>
struct ScanProgram {
  using scanner = Scanner;
  using tree_type = Tree;
  using out_type = typename Scanner::result;
  using element = typename Scanner::element;
  static constexpr int leaves = Leaves;
  Tree tree;
  Geometry<Leaves + 1> where;
  int64_t lines, length;
  explicit ScanProgram(Tree const& formula) : tree(formula) {}  // a lambda in it can be copied, but not assigned
};

/// Binds the scan of `e` along `axis`.
template <class S, class E>
void bind_scan(ScanProgram<S, tree_of<E>, leaf_count<E>>& program, typename S::result* data, Layout const& out, E const& e, int axis) {
  Shape const shape = e.shape().rank() == 0 ? Shape{1} : e.shape();  // one number is a line of one
  constexpr int operands = leaf_count<E> + 1;
  auto& where = program.where;
  int64_t strides[max_rank] = {};
  auto put = [&](int o) {
    for (int k = 0, at = 0; k < shape.rank(); ++k) {
      if (k != axis) where.strides[o][at++] = strides[k];
    }
    where.strides[o][shape.rank() - 1] = strides[axis];
  };
  where.data[0] = data;
  where.contiguous = false;
  for (int k = 0; k < shape.rank(); ++k) strides[k] = out.strides[k];
  put(0);
  int o = 1;
  for_each_leaf(e, [&](auto const& leaf) {
    where.data[o] = const_cast<void*>(static_cast<void const*>(leaf.data()));
    broadcast_strides(leaf.layout(), shape, strides);
    put(o++);
  });
  program.length = shape[axis];
  program.lines = 1;
  for (int k = 0, at = 0; k < shape.rank(); ++k) {
    if (k != axis) where.sizes[at++] = shape[k], program.lines *= shape[k];
  }
  where.sizes[shape.rank() - 1] = program.length;
  int fixed = shape.rank() - 1;
  where.rank = coalesce(where.sizes, &where.strides[0][0], operands, shape.rank(), &fixed);
  if (program.length == 1) {  // dropped: it comes back as an axis that the lines lie across
    where.sizes[where.rank] = 1;
    for (o = 0; o < operands; ++o) where.strides[o][where.rank] = program.lines;
    ++where.rank;
  }
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
