/// Parts of matrices: triangles, diagonals and the trace. Matrices are the last two axes; the axes before them are batches.
///
/// Diagonal k starts k columns to the right of the main one, -k rows below it where k is negative.
#pragma once

#include <situ/ops/formula_view.hpp>
#include <situ/ops/reduce.hpp>
#include <situ/tensor/factories.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// The elements of a diagonal, along a last axis that takes the place of two.
inline Viewed diagonal_view(Layout const& from, int64_t k) {
  int const row = from.rank() - 2, column = row + 1;
  int64_t const down = k >= 0 ? 0 : k < -from.shape[row] ? from.shape[row] : -k;
  int64_t const right = k <= 0 ? 0 : k > from.shape[column] ? from.shape[column] : k;
  int64_t const rows = from.shape[row] - down, columns = from.shape[column] - right;
  int64_t const count = rows < columns ? rows : columns;
  Viewed view{from, count > 0 ? down * from.strides[row] + right * from.strides[column] : 0};
  view.layout.shape[row] = count;
  view.layout.strides[row] = from.strides[row] + from.strides[column];
  view.layout.shape.erase(column);
  view.layout.strides.erase(column);
  return view;
}

inline void require_matrix(Shape const& shape, char const* who) {
  if (shape.rank() < 2) fail<ShapeError>(who, ": shape ", shape, " has ", shape.rank(), shape.rank() == 1 ? " axis" : " axes", "; a matrix has two");
}

/// x where column >= row + k holds as `keep` says, 0 elsewhere: two rows of numbers are made, and nothing else until it is evaluated.
template <bool Upper, class E>
auto triangle(E const& x, int64_t k, char const* who) {
  using D = result_device_t<device_of<E>>;
  using T = value_of<E>;
  require_matrix(x.shape(), who);
  int64_t const rows = x.shape()[x.rank() - 2], columns = x.shape()[x.rank() - 1];
  if (rows > INT32_MAX / 2 || columns > INT32_MAX / 2) {
    fail<ShapeError>(who, ": the matrix of shape ", x.shape(), " has more than 2^30 rows or columns; work on parts of it");
  }
  k = k < -rows ? -rows : k > columns ? columns : k;
  auto const first = arange<int32_t>(k, k + rows, 1, D{}).unsqueeze(1);  // the first column on or above the diagonal, for each row
  auto const column = arange<int32_t>(columns, D{});
  if constexpr (Upper) return make_map(functions::where{}, column >= first, x, Constant<T>{});
  else return make_map(functions::where{}, column > first, Constant<T>{}, x);
}

}  // namespace detail

/// The upper triangle: x on diagonal k and above it, 0 below. A formula: fuses with what it is part of.
/// Throws    ShapeError for fewer than two axes.
template <class E>
  requires expression<E>
auto triu(E const& x, int64_t k = 0) {
  return detail::triangle<true>(x, k, "triu");
}
/// The lower triangle: x on diagonal k and below it, 0 above. A formula: fuses with what it is part of.
template <class E>
  requires expression<E>
auto tril(E const& x, int64_t k = 0) {
  return detail::triangle<false>(x, k, "tril");
}

/// The sum of a diagonal, Σᵢ x(i, i + k). Integers give int64. Only the diagonal is read, of an expression too.
/// Shape     (…, m, n) → (…)
template <class E>
  requires expression<E>
auto trace(E const& x, int64_t k = 0) {
  detail::require_matrix(x.shape(), "trace");
  return sum(detail::view_of(x, [k](Layout const& layout) { return detail::diagonal_view(layout, k); }), -1);
}

/// Of a matrix, its diagonal k: a view (of a formula, the diagonal's value, and nothing else is computed). Of a row of n numbers,
/// the matrix of n + |k| rows and columns with these numbers on diagonal k.
/// Throws    ShapeError for other ranks than 1 and 2.
template <class E>
  requires expression<E>
auto diag(E const& x, int64_t k = 0) {
  using Result = decltype(detail::evaluated(x));
  using T = value_of<E>;
  if (x.rank() == 2) return detail::evaluated(detail::view_of(x, [k](Layout const& layout) { return detail::diagonal_view(layout, k); }));
  if (x.rank() != 1) detail::fail<ShapeError>("diag: shape ", x.shape(), " has ", x.rank(), x.rank() == 1 ? " axis" : " axes", "; 1 or 2 are needed");
  int64_t n = 0;
  if (__builtin_add_overflow(x.size(), k < 0 ? (k == INT64_MIN ? INT64_MAX : -k) : k, &n)) n = INT64_MAX;
  Result result = Result::uninitialized({n, n}, "diag");
  detail::write_into(result, {result.layout(), 0}, detail::Constant<T>{});
  detail::write_into(result, detail::diagonal_view(result.layout(), k), x);
  return result;
}

}  // namespace situ::inline SITU_ABI
