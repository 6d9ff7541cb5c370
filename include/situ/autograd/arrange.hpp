/// Arranging what records: tile, repeat, flip, roll, pad, meshgrid, and parts of matrices. Shapes, types and errors are those of ops/arrange.hpp,
/// ops/pad.hpp and ops/matrix_parts.hpp.
///
/// Gradient  the same arrangement, backwards: slices of the result's gradient, and sums of them where elements were repeated. triu and tril are
///           formulas, which fuse with what they are part of; the others read a formula in their one pass, and its gradient is one kernel.
#pragma once

#include <situ/autograd/backward.hpp>
#include <situ/autograd/reduce.hpp>
#include <situ/ops/arrange.hpp>
#include <situ/ops/matrix_parts.hpp>
#include <situ/ops/pad.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// A seed of record_on that reads the result's gradient alone, by a function of tensors and of Variables.
template <class F>
struct linear_seed {
  static constexpr bool stateless = is_stateless<F>;
  F f;
  template <class G, class X>
  auto operator()(G const& g, X const&) const {
    return f(g);
  }
  template <class L>
  L twice(L const& g, L const&, L const&) const {
    return L(f(g.variable()));
  }
};
template <class F>
linear_seed<F> linear(F f) {
  return {std::move(f)};
}

template <class G>
G zeros_as(G const&, Shape const& shape) {
  Tensor<value_of<G>, device_of<G>> const result = zeros<value_of<G>>(shape, device_of<G>{});
  if constexpr (is_recorded<G>) return G(result, false);
  else return result;
}

/// A tensor's gradient from that of its blocks, tiled: sums over them, axis after axis.
template <class G>
G untiled(G g, Shape const& shape, Shape const& counts) {
  int const rank = g.rank(), shape_from = rank - shape.rank(), counts_from = rank - counts.rank();
  int64_t before = 1, after = product(g.shape());
  if (after == 0) return zeros_as(g, shape);
  for (int k = 0; k < rank; ++k) {
    int64_t const n = k < shape_from ? 1 : shape[k - shape_from], count = k < counts_from ? 1 : counts[k - counts_from];
    after /= n * count;
    if (count != 1) g = G(sum(g.reshape({before, count, n * after}), 1));
    before *= n;
  }
  return g.reshape(shape);
}
template <class G>
G unrepeated(G const& g, Shape const& shape, int axis, int64_t count) {
  int64_t before = 1, after = 1;
  for (int k = 0; k < axis; ++k) before *= shape[k];
  for (int k = axis + 1; k < shape.rank(); ++k) after *= shape[k];
  return G(sum(g.reshape({before * shape[axis], count, after}), 1)).reshape(shape);
}

/// The opposite of a view: zeros of shape `whole`, with g where the view is.
template <class View, class T, class D>
Tensor<T, D> placed(View const& view, Tensor<T, D> const& g, Shape const& whole) {
  Tensor<T, D> result = zeros<T>(whole, D{});
  Tensor<T, D> part = view(result);
  part.assign(g);
  return result;
}
template <class View, class T, class D>
Variable<T, D> placed(View const& view, Variable<T, D> const& g, Shape const& whole) {
  return record_placed(view, g, whole);
}
/// The diagonal of a matrix, or of each in a batch.
struct DiagonalView {
  int64_t k;
  template <class T, class D>
  Tensor<T, D> operator()(Tensor<T, D> const& x) const {
    return view_of(x, [this](Layout const& layout) { return diagonal_view(layout, k); });
  }
  template <class T, class D>
  Variable<T, D> operator()(Variable<T, D> const& x) const {
    return record_part(x, "Diagonal", *this);
  }
};

struct all_flipped_back {
  template <class G>
  static auto of(G const& g, Shape const&, Shape const& axes) {
    return flip(g, axes);
  }
};

inline Shape opposite(Shape const& shifts) {
  Shape result = shifts;
  for (int k = 0; k < shifts.rank(); ++k) result[k] = static_cast<int64_t>(uint64_t{0} - static_cast<uint64_t>(shifts[k]));
  return result;
}

/// What pad added is taken away, and what it took away is 0.
struct unpad {
  static constexpr bool stateless = true;
  std::vector<int64_t> widths;
  template <class G>
  G operator()(G const& g) const {
    std::vector<int64_t> back = widths;
    bool cuts = true;
    for (int64_t& width : back) {
      cuts = cuts && width >= 0;
      width = -width;
    }
    if (!cuts) return G(pad(g, back));
    G result = g;
    for (std::size_t p = 0; p < back.size() / 2; ++p) {
      int64_t const k = g.rank() - 1 - static_cast<int64_t>(p);
      result = std::as_const(result).slice(k, widths[2 * p], g.shape()[static_cast<int>(k)] - widths[2 * p + 1]);
    }
    return result;
  }
};
/// What pad took from inside is added there: from the last axis to the first.
struct unpad_mirrored {
  static constexpr bool stateless = true;
  Shape kept;
  std::vector<int64_t> widths;
  pad_mode mode;
  template <class G, class X>
  G operator()(G const& gradient, X const&) const {
    G g = gradient;
    for (std::size_t p = 0; p < widths.size() / 2; ++p) {
      int const k = kept.rank() - 1 - static_cast<int>(p);
      int64_t const n = kept[k], before = widths[2 * p] > 0 ? widths[2 * p] : 0, after = widths[2 * p + 1] > 0 ? widths[2 * p + 1] : 0;
      if (before == 0 && after == 0) continue;
      G result = std::as_const(g).slice(k, before, before + n).clone();
      auto const add = [&](int64_t first, int64_t count, int64_t from, bool mirrored, bool summed) {
        if (count == 0) return;
        G const added = std::as_const(g).slice(k, from, from + count);
        G to = result.slice(k, first, first + (summed ? 1 : count));
        if (summed) to += sum(added, k, keepdim);
        else if (mirrored) to += added.flip(k);
        else to += added;
      };
      switch (mode) {
        case pad_mode::reflect: add(1, before, 0, true, false), add(n - 1 - after, after, before + n, true, false); break;
        case pad_mode::replicate: add(0, before, 0, false, true), add(n - 1, after, before + n, false, true); break;
        case pad_mode::circular: add(n - before, before, 0, false, false), add(0, after, before + n, false, false); break;
      }
      g = result;
    }
    std::vector<int64_t> taken = widths;
    bool any_taken = false;
    for (int64_t& width : taken) {
      any_taken = any_taken || width < 0;
      width = width < 0 ? -width : 0;
    }
    return any_taken ? G(pad(g, taken)) : g;
  }
  template <class L>
  L twice(L const& g, L const&, L const&) const {
    auto const v = g.variable();
    return L(record("PadBackward", (*this)(v.value(), 0), detail::twice([widths = widths, mode = mode](auto const& h, auto const& into) { into.add(pad(h, widths, mode)); }), v));
  }
};

}  // namespace detail

/// x as a block, `counts[k]` times along axis k. Gradient: the sum over the blocks.
template <class E>
  requires differentiable<E>
auto tile(E const& x, Shape const& counts) {
  return detail::record_on<false>("Repeat", tile(detail::values_of(x), counts), x,
                                  detail::linear([shape = Shape(x.shape()), counts](auto const& g) { return detail::untiled(g, shape, counts); }));
}

/// Every index of an axis, or every element, `count` times in a row. Gradient: the sum over the repetitions.
template <class E>
  requires differentiable<E>
auto repeat(E const& x, int64_t count, int64_t axis) {
  auto value = repeat(detail::values_of(x), count, axis);
  int const k = detail::checked_axis(axis, x.rank(), x.shape(), "repeat");
  return detail::record_on<false>("RepeatInterleave", std::move(value), x,
                                  detail::linear([shape = Shape(x.shape()), k, count](auto const& g) { return detail::unrepeated(g, shape, k, count); }));
}
template <class E>
  requires differentiable<E>
auto repeat(E const& x, int64_t count) {
  return detail::record_on<false>("RepeatInterleave", Tensor<value_of<E>, detail::result_device_t<device_of<E>>>(repeat(detail::values_of(x), count)), x,
                                  detail::linear([shape = Shape(x.shape()), count](auto const& g) {
                                    return std::remove_cvref_t<decltype(g)>(sum(g.reshape({detail::product(shape), count}), 1)).reshape(shape);
                                  }));
}

/// The elements in the opposite order along some axes, or all: of a Variable a view. Gradient: that of the result, flipped.
template <class E>
  requires differentiable<E>
auto flip(E const& x, Shape const& axes) {
  if constexpr (requires { x.state(); }) {
    return detail::record_view<detail::all_flipped_back>(x, "Flip", flip(x.value(), axes), axes);
  } else {
    using Result = Tensor<value_of<E>, detail::result_device_t<device_of<E>>>;
    return detail::record_on<false>("Flip", Result(flip(detail::values_of(x), axes)), x, detail::linear([axes](auto const& g) { return flip(g, axes); }));
  }
}
template <class E>
  requires differentiable<E>
auto flip(E const& x) {
  Shape axes;
  for (int k = 0; k < x.rank(); ++k) axes.push_back(k);
  return flip(x, axes);
}

/// The elements moved along axes, or in row-major order. Gradient: that of the result, moved back.
template <class E>
  requires differentiable<E>
auto roll(E const& x, Shape const& shifts, Shape const& axes) {
  return detail::record_on<false>("Roll", roll(detail::values_of(x), shifts, axes), x,
                                  detail::linear([back = detail::opposite(shifts), axes](auto const& g) { return roll(g, back, axes); }));
}
template <class E>
  requires differentiable<E>
auto roll(E const& x, int64_t shift) {
  using Result = Tensor<value_of<E>, detail::result_device_t<device_of<E>>>;
  return detail::record_on<false>("Roll", Result(roll(detail::values_of(x), shift)), x,
                                  detail::linear([back = detail::opposite(shift)[0]](auto const& g) { return roll(g, back); }));
}

/// x with more elements around it: numbers, whose gradient is nobody's, or elements of x, which get the gradient of their copies too.
template <class E, number V = int>
  requires differentiable<E>
auto pad(E const& x, std::vector<int64_t> const& widths, V value = 0) {
  return detail::record_on<false>("ConstantPadNd", pad(detail::values_of(x), widths, value), x, detail::linear(detail::unpad{widths}));
}
template <class E>
  requires differentiable<E>
auto pad(E const& x, std::vector<int64_t> const& widths, pad_mode mode) {
  constexpr char const* names[] = {"ReflectionPad", "ReplicationPad", "CircularPad"};
  return detail::record_on<false>(names[static_cast<int>(mode)], pad(detail::values_of(x), widths, mode), x,
                                  detail::unpad_mirrored{detail::Padding(x.shape(), widths).kept, widths, mode});
}

/// Coordinates of a grid, as views with strides of 0. Gradient: the sum over the other axes.
template <class T, class D>
auto meshgrid(std::vector<Variable<T, D>> const& rows, indexing order = indexing::ij) {
  std::vector<Tensor<T, D>> values;
  for (auto const& row : rows) values.push_back(row.value());
  auto const grids = meshgrid(values, order);
  std::vector<Variable<T, D>> result;
  for (std::size_t k = 0; k < rows.size(); ++k) {
    int const rank = static_cast<int>(rows.size()), axis = order == indexing::xy && rank > 1 && k < 2 ? 1 - static_cast<int>(k) : static_cast<int>(k);
    Shape one_row = Shape::filled(rank, 1);
    one_row[axis] = rows[k].size();
    result.push_back(rows[k].reshape(one_row).expand(grids[k].shape()));
  }
  return result;
}
template <class T, class D>
auto meshgrid(std::initializer_list<Variable<T, D>> rows, indexing order = indexing::ij) {
  return meshgrid(std::vector<Variable<T, D>>(rows), order);
}

/// The triangle of a matrix on diagonal k and above it, or below. A formula. Gradient: that of the result, in the triangle.
template <class E>
  requires differentiable<E>
auto triu(E const& x, int64_t k = 0) {
  return detail::triangle<true>(x, k, "triu");
}
template <class E>
  requires differentiable<E>
auto tril(E const& x, int64_t k = 0) {
  return detail::triangle<false>(x, k, "tril");
}

/// The sum of a diagonal. Gradient: that of the result, everywhere on the diagonal, 0 elsewhere.
template <class E>
  requires differentiable<E>
auto trace(E const& x, int64_t k = 0) {
  return detail::record_on<false>("Trace", trace(detail::values_of(x), k), x, detail::linear([shape = Shape(x.shape()), view = detail::DiagonalView{k}](auto const& g) {
                                    Shape diagonal = detail::diagonal_view(Layout(shape), view.k).layout.shape;
                                    return detail::placed(view, std::remove_cvref_t<decltype(g)>(g.unsqueeze(-1).expand(diagonal)), shape);
                                  }));
}

/// Of a matrix its diagonal, of a Variable as a view; of a row the matrix with it on the diagonal. Gradient: the opposite of the same.
template <class E>
  requires differentiable<E>
auto diag(E const& x, int64_t k = 0) {
  using V = Variable<value_of<E>, detail::result_device_t<device_of<E>>>;
  if constexpr (requires { x.state(); }) {
    if (x.rank() == 2) return V(detail::DiagonalView{k}(x));
  }
  return V(detail::record_on<false>("Diag", diag(detail::values_of(x), k), x, detail::linear([shape = Shape(x.shape()), view = detail::DiagonalView{k}](auto const& g) {
                                      if (shape.rank() == 2) return detail::placed(view, g, shape);
                                      return std::remove_cvref_t<decltype(g)>(view(g));
                                    })));
}

}  // namespace situ::inline SITU_ABI
