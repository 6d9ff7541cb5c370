/// Arranging: repeating tensors, and turning them around.
///
///     tile(x, {2, 3})   repeat(x, 2, 0)   flip(x, {0, 1})   meshgrid({x, y})
///
/// Device    runs where x lives; enqueued, not waited for.
/// Throws    AxisError when x has no such axis, ShapeError when shapes do not fit.
/// Cost      every input is read once. `flip` and `meshgrid` copy nothing: of a tensor they give views of its storage, of a formula
///           formulas over views.
/// Gradient  the same arrangement, backwards: views of the gradient, and sums of them where elements are repeated.
#pragma once

#include <initializer_list>
#include <vector>

#include <situ/ops/concat.hpp>
#include <situ/ops/cpu/join.hpp>
#include <situ/ops/formula_view.hpp>

namespace situ::inline SITU_ABI {

namespace detail {

/// Fills [size, total) of an axis of a fresh tensor with repetitions of [0, size). Other axes are cut to `window`.
template <class T, class D>
void repeat_block(Tensor<T, D> const& result, Shape const& window, int axis, int64_t size, int64_t total) {
  Viewed base{result.layout(), 0};
  base.layout.shape = window;
  for (int64_t done = size; done < total;) {
    int64_t const next = done < total - done ? done : total - done;
    Viewed from = base, to = base;
    from.layout.shape[axis] = to.layout.shape[axis] = next;
    to.offset += done * base.layout.strides[axis];
    auto const block = Tensor<T, D>::from_handle(make_view(result.storage(), const_cast<T*>(result.data()), from.layout));
    write_into(result, to, block);
    done += next;
  }
}

}  // namespace detail

/// x as a block, `counts[k]` times along axis k; NumPy's tile and PyTorch's Tensor::repeat. Counts fewer than the axes belong
/// to the last ones, more add axes in front.
/// Cost      x is read once; the rest are copies of what was written, log2(count) launches for each axis.
template <class E>
  requires expression<E>
auto tile(E const& x, Shape const& counts) {
  Shape shape = x.shape(), times = counts;
  while (times.rank() < shape.rank()) times.insert(0, 1);
  while (shape.rank() < times.rank()) shape.insert(0, 1);
  Shape tiled = shape;
  for (int k = 0; k < shape.rank(); ++k) {
    if (times[k] < 0) detail::fail<ShapeError>("tile: ", times[k], " repetitions were asked for along axis ", k, "; counts are 0 or more");
    if (__builtin_mul_overflow(shape[k], times[k], &tiled[k])) {
      detail::fail<ShapeError>("tile: shape ", shape, " repeated ", times, " times has more elements than can be addressed");
    }
  }
  auto result = Tensor<value_of<E>, detail::result_device_t<device_of<E>>>::uninitialized(tiled, "tile");
  if (result.size() == 0) return result;
  detail::write_into(result, {Layout(shape, result.strides()), 0}, x);
  Shape window = shape;
  for (int k = shape.rank() - 1; k >= 0; --k) {
    detail::repeat_block(result, window, k, shape[k], tiled[k]);
    window[k] = tiled[k];
  }
  return result;
}

/// Every index of an axis `count` times in a row; the array API's repeat and PyTorch's repeat_interleave. (Whole blocks: tile.)
template <class E>
  requires expression<E>
auto repeat(E const& x, int64_t count, int64_t axis) {
  using D = detail::result_device_t<device_of<E>>;
  using T = value_of<E>;
  Shape shape = x.shape();
  int const k = detail::checked_axis(axis, shape.rank(), shape, "repeat");
  if (count < 0) detail::fail<ShapeError>("repeat: ", count, " repetitions were asked for; a count is 0 or more");
  if (__builtin_mul_overflow(shape[k], count, &shape[k])) {
    detail::fail<ShapeError>("repeat: axis ", k, " of shape ", x.shape(), " repeated ", count, " times has more elements than can be addressed");
  }
  auto result = Tensor<T, D>::uninitialized(shape, "repeat");
  if (result.size() == 0) return result;
  int64_t rows = 1;
  for (int a = 0; a <= k; ++a) rows *= x.shape()[a];
  if (detail::join_dense(result.data(), D{}, rows, &x, count, 0)) return result;
  Layout first = result.layout();  // the first of the repetitions of every index
  first.shape[k] = x.shape()[k];
  first.strides[k] *= count;
  detail::write_into(result, {first, 0}, x);
  if (count == 1) return result;
  auto const written = Tensor<T, D>::from_handle(detail::make_view(result.storage(), const_cast<T*>(std::as_const(result).data()), first));
  if (shape.rank() < max_rank) {
    Layout others = first;
    int64_t const step = result.strides()[k];
    others.shape.insert(k + 1, count - 1);
    others.strides.insert(k + 1, step);
    detail::write_into(result, {others, step}, written.unsqueeze(k + 1));
  } else {
    for (int64_t j = 1; j < count; ++j) detail::write_into(result, {first, j * result.strides()[k]}, written);
  }
  return result;
}
/// Every element `count` times in a row, in one dimension.
template <class E>
  requires expression<E>
auto repeat(E const& x, int64_t count) {
  if (x.rank() > 0) return repeat(x, count, x.rank() - 1).reshape({-1});
  auto const view = detail::view_of(x, [](Layout const& layout) { return detail::Viewed{detail::unsqueezed(layout, 0), 0}; });
  return repeat(view, count, 0);
}

/// The elements in reverse order along the given axes: a view.
template <class E>
  requires expression<E>
detail::view_of_t<E> flip(E const& x, Shape const& axes) {
  unsigned seen = 0;
  for (int64_t axis : axes) {
    unsigned const bit = detail::axis_bit(axis, x.shape(), "flip");
    if (seen & bit) detail::fail<ShapeError>("flip: axis ", axis, " appears twice in ", axes);
    seen |= bit;
  }
  return detail::view_of(x, [&](Layout const& layout) {
    detail::Viewed view{layout, 0};
    for (int k = 0; k < layout.rank(); ++k) {
      if (!(seen >> k & 1u)) continue;
      detail::Viewed const next = detail::flip_view(view.layout, k);
      view = {next.layout, view.offset + next.offset};
    }
    return view;
  });
}
/// Along all axes.
template <class E>
  requires expression<E>
detail::view_of_t<E> flip(E const& x) {
  Shape axes;
  for (int k = 0; k < x.rank(); ++k) axes.push_back(k);
  return flip(x, axes);
}
template <class E, std::integral Ix, std::integral J, std::integral... Is, class Error = error::axes_stand_in_braces__as_in_permute_of_braces_1_0<Ix>>
  requires(expression<E> || differentiable<E>)
void flip(E const&, Ix, J, Is...) = delete;

/// Which of the first two axes of a grid belongs to the first tensor: `ij`, matrix order, or `xy`, where the two are swapped.
enum class indexing { ij, xy };

/// Coordinates of a grid: of n rows of numbers, n tensors of rank n; the k-th repeats the k-th row along all axes but its own.
/// Views with strides of 0, so they take no memory; write to a clone() of one. `ij` is PyTorch's default, `xy` NumPy's.
template <expression E>
auto meshgrid(std::vector<E> const& rows, indexing order = indexing::ij) {
  int const rank = static_cast<int>(rows.size());
  Shape shape;
  for (E const& row : rows) {
    if (row.rank() > 1) detail::fail<ShapeError>("meshgrid: shape ", row.shape(), " has ", row.rank(), " axes; rows of numbers are needed");
    shape.push_back(row.size());
  }
  bool const swaps = order == indexing::xy && rank > 1;
  if (swaps) std::swap(shape[0], shape[1]);
  (void)detail::count_of(shape, "meshgrid", sizeof(value_of<E>));
  std::vector<detail::view_of_t<E>> grids;
  for (int k = 0; k < rank; ++k) {
    int const axis = swaps && k < 2 ? 1 - k : k;
    grids.push_back(detail::view_of(rows[static_cast<std::size_t>(k)], [&](Layout const& row) {
      Layout grid{shape, Shape::filled(rank, 0)};
      if (row.rank() > 0) grid.strides[axis] = row.strides[0];
      return detail::Viewed{grid, 0};
    }));
  }
  return grids;
}
template <element T, device D>
auto meshgrid(std::initializer_list<Tensor<T, D>> rows, indexing order = indexing::ij) {
  return meshgrid(std::vector<Tensor<T, D>>(rows), order);
}
void meshgrid(detail::UnlikeParts rows, indexing order = indexing::ij);

}  // namespace situ::inline SITU_ABI
