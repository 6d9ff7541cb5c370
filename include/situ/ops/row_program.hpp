/// An operation on rows bound to memory, for every device's kernels: softmax and the normalisations.
///
/// A *row* is what one result of a statistic is made from: all elements along the chosen axes. The operation makes the statistics
/// of a row, three numbers of them, and then every element of the output from the element of the input in the same place.
#pragma once

#include <situ/expr/lower.hpp>
#include <situ/expr/math.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// The statistics of a row or of a part of it: what parts are merged in.
struct RowStatistics {
  double a, b;    ///< softmax: the maximum, and the sum of exp(x - a); norms: the mean, and the sum of squares about it (rms: about 0)
  int64_t count;  ///< elements
};

/// What an element of the output is made with.
template <class C>
struct RowCoefficients {
  C shift;  ///< what is subtracted: the maximum or the mean
  C low;    ///< what is added at the end: for the part of the mean that its rounding lost
  C scale;  ///< what the difference is multiplied by; log_softmax: what is subtracted, too
};

/// The operations. `Out` is the element type of the result, `compute` the type of all arithmetic.
namespace rows {

template <class Out>
struct softmax {
  using result = Out;
  using compute = compute_t<Out>;
  static constexpr char const* name = "softmax";
  static constexpr int cost = 40;

  SITU_HOST_DEVICE static RowStatistics none() { return {-__builtin_huge_val(), 0, 0}; }
  /// What is subtracted: the maximum; 0 where all is -inf, so that the exponentials are 0 and only their quotient is NaN.
  SITU_HOST_DEVICE static compute shift_of(compute maximum) { return maximum == -static_cast<compute>(__builtin_huge_val()) ? compute(0) : maximum; }
  SITU_HOST_DEVICE static RowStatistics merge(RowStatistics const& x, RowStatistics const& y) {
    if (x.count == 0) return y;
    if (y.count == 0) return x;
    RowStatistics const& more = x.a >= y.a ? x : y;
    RowStatistics const& less = x.a >= y.a ? y : x;
    double const share = less.b == 0 ? 0 : less.b * math::exp(less.a == more.a ? 0.0 : less.a - more.a);
    return {more.a, more.b + share, x.count + y.count};
  }
  SITU_HOST_DEVICE static RowCoefficients<compute> finish(RowStatistics const& row) {
    return {shift_of(static_cast<compute>(row.a)), compute(0), compute(1) / static_cast<compute>(row.b)};
  }
};

template <class Out>
struct log_softmax : softmax<Out> {
  using typename softmax<Out>::compute;
  static constexpr char const* name = "log_softmax";
  SITU_HOST_DEVICE static RowCoefficients<compute> finish(RowStatistics const& row) {
    return {softmax<Out>::shift_of(static_cast<compute>(row.a)), compute(0), math::log(static_cast<compute>(row.b))};
  }
};

/// weight and bias: contiguous, one for each element of a row; null where there is none.
template <class Out>
struct layer_norm {
  using result = Out;
  using compute = compute_t<Out>;
  static constexpr char const* name = "layer_norm";
  static constexpr int cost = 12;
  compute const* weight = nullptr;
  compute const* bias = nullptr;
  Out const* narrow_weight = nullptr;  ///< instead of `weight` where it is of 16-bit floats, on CUDA; and so on
  Out const* narrow_bias = nullptr;
  double eps = 1e-5;
  compute* found = nullptr;  ///< takes what rows are made with, [shift, low, scale][row], where groups of short rows are; else not looked at

  SITU_HOST_DEVICE static RowStatistics none() { return {0, 0, 0}; }
  /// Chan, Golub & LeVeque 1979: the mean and the sum of squares of two parts.
  SITU_HOST_DEVICE static RowStatistics merge(RowStatistics const& x, RowStatistics const& y) {
    if (x.count == 0) return y;
    if (y.count == 0) return x;
    double const n = static_cast<double>(x.count + y.count), delta = y.a - x.a, share = static_cast<double>(y.count) / n;
    return {x.a + delta * share, x.b + y.b + delta * delta * share * static_cast<double>(x.count), x.count + y.count};
  }
  SITU_HOST_DEVICE RowCoefficients<compute> finish(RowStatistics const& row) const {
    compute const shift = static_cast<compute>(row.a);
    compute const scale = compute(1) / math::sqrt(static_cast<compute>(row.b) / static_cast<compute>(row.count) + static_cast<compute>(eps));
    return {shift, static_cast<compute>(static_cast<double>(shift) - row.a) * scale, scale};
  }
};

/// As layer_norm, about 0 instead of the mean.
template <class Out>
struct rms_norm : layer_norm<Out> {
  using typename layer_norm<Out>::compute;
  static constexpr char const* name = "rms_norm";
  static constexpr int cost = 8;
  SITU_HOST_DEVICE static RowStatistics merge(RowStatistics const& x, RowStatistics const& y) { return {0, x.b + y.b, x.count + y.count}; }
};

}  // namespace rows

/// The tree of the input, and where the output (operand 0) and the inputs lie. Axes [0, kept) number the rows, axes [kept, kept + along)
/// run along them in row-major order, at least one. With `strips`, rows lie side by side in the output: one more axis, the last and the
/// densest one, runs across `columns` of them. Axes are joined inside each of these groups.
template <class Op, class Tree, int Leaves>
struct RowProgram {
  using op_type = Op;
  using tree_type = Tree;
  using out_type = typename Op::result;
  static constexpr int leaves = Leaves;
  Tree tree;
  Op op;
  Geometry<Leaves + 1> where;
  int kept, along;
  bool strips;
  int64_t rows, length, columns;  ///< rows of `columns` side by side each; the length of a row
  RowProgram(Tree const& formula, Op const& operation) : tree(formula), op(operation) {}  // a lambda in it can be copied, but not assigned
};

/// Joins the axes of one group; returns how many are left.
inline int join_axes(int64_t* sizes, int64_t* strides, int operands, int rank) {
  int in_place = 0;
  return coalesce(sizes, strides, operands, rank, &in_place);
}

/// Orders and joins the axes of operands whose strides stand in `strides`: what bind_rows does that does not depend on types. `along`
/// has the bits of the axes that rows run along.
SITU_NOINLINE inline void order_row_axes(Shape const& shape, unsigned along, int operands, int64_t const (*from)[max_rank], int64_t* sizes, int64_t* to,
                                         int* counts, bool* strips) {
  int last = -1;  // the last axis along the rows
  for (int k = 0; k < shape.rank(); ++k) {
    if ((along >> k & 1u) && shape[k] > 1) last = k;
  }
  int rank = 0;
  auto take = [&](auto wanted) {
    int const begin = rank;
    for (int k = 0; k < shape.rank(); ++k) {
      if (shape[k] == 1 || !wanted(k)) continue;
      sizes[rank] = shape[k];
      for (int o = 0; o < operands; ++o) to[o * max_rank + rank] = from[o][k];
      ++rank;
    }
    int const joined = join_axes(sizes + begin, to + begin, operands, rank - begin);
    rank = begin + joined;
    return joined;
  };
  int kept = take([&](int k) { return !(along >> k & 1u) && k < last; });
  int const side = take([&](int k) { return !(along >> k & 1u) && k > last; });
  *strips = side > 0;
  int64_t column_size = 0, column_strides[64];
  if (side > 0) {  // all but the densest of them count as kept; that one stands at the end
    --rank;
    kept += side - 1;
    column_size = sizes[rank];
    for (int o = 0; o < operands; ++o) column_strides[o] = to[o * max_rank + rank];
  }
  int joined = take([&](int k) { return (along >> k & 1u) != 0; });
  if (joined == 0) {
    sizes[rank] = 1;
    for (int o = 0; o < operands; ++o) to[o * max_rank + rank] = 1;
    ++rank;
    joined = 1;
  }
  if (side > 0) {
    sizes[rank] = column_size;
    for (int o = 0; o < operands; ++o) to[o * max_rank + rank] = column_strides[o];
    ++rank;
  }
  counts[0] = kept, counts[1] = joined, counts[2] = rank;
}

/// Binds the operation on `e` along the axes whose bit is set to a contiguous output at `data`, of the shape of e.
template <class Op, class E>
void bind_rows(RowProgram<Op, tree_of<E>, leaf_count<E>>& program, typename Op::result* data, Layout const& out, E const& e, unsigned along) {
  constexpr int operands = leaf_count<E> + 1;
  static_assert(operands <= 64, "situ: an operation on rows reads at most 63 tensors; evaluate a part of its input first");
  auto& where = program.where;
  where.data[0] = data;
  where.contiguous = false;
  int64_t strides[operands][max_rank];
  broadcast_strides(out, out.shape, strides[0]);
  int o = 1;
  for_each_leaf(e, [&](auto const& leaf) {
    where.data[o] = const_cast<void*>(static_cast<void const*>(leaf.data()));
    broadcast_strides(leaf.layout(), out.shape, strides[o]);
    ++o;
  });
  int counts[3];
  order_row_axes(out.shape, along, operands, strides, where.sizes, &where.strides[0][0], counts, &program.strips);
  program.kept = counts[0], program.along = counts[1], where.rank = counts[2];
  program.rows = program.length = 1;
  for (int k = 0; k < program.kept; ++k) program.rows *= where.sizes[k];
  for (int k = program.kept; k < program.kept + program.along; ++k) program.length *= where.sizes[k];
  program.columns = program.strips ? where.sizes[where.rank - 1] : 1;
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
