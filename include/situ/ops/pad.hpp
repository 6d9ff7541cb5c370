/// More elements around a tensor, and elements moved around its ends.
///
///     pad(x, {1, 1}, 0)   pad(x, {1, 1}, pad_mode::reflect)   roll(x, 1, 0)
///
/// Device    runs where x lives; enqueued, not waited for.
/// Throws    AxisError when x has no such axis, ShapeError when widths do not fit.
/// Gradient  the same arrangement, backwards: slices of the gradient, and sums of them where elements are repeated.
#pragma once

#include <vector>

#include <situ/ops/cpu/join.hpp>
#include <situ/ops/cpu/pad.hpp>
#include <situ/ops/formula_view.hpp>

namespace situ::inline SITU_ABI {

/// How pad fills what it adds.
enum class pad_mode {
  reflect,    ///< mirrored at the outermost element, which is not repeated: c b | a b c | b a
  replicate,  ///< the outermost element: a a | a b c | c c
  circular,   ///< from the other end: b c | a b c | a b
};

namespace detail {

/// The widths of pad, checked: how many indices are added before and after each axis; negative ones take away.
struct Padding {
  int64_t before[max_rank] = {}, after[max_rank] = {};
  Shape kept;    ///< what is left of x
  Shape padded;  ///< the result

  Padding(Shape const& shape, std::vector<int64_t> const& widths) : kept(shape), padded(shape) {
    int const pairs = static_cast<int>(widths.size() / 2);
    if (widths.size() % 2 != 0 || pairs > shape.rank()) {
      fail<ShapeError>("pad: ", widths.size(), widths.size() == 1 ? " width was" : " widths were", " given for shape ", shape, ": a pair for each axis is needed, from the last axis on, at most ",
                       2 * shape.rank());
    }
    for (int p = 0; p < pairs; ++p) {
      int const k = shape.rank() - 1 - p;
      int64_t const b = widths[static_cast<std::size_t>(2 * p)], a = widths[static_cast<std::size_t>(2 * p + 1)];
      before[k] = b, after[k] = a;
      bool const fits = b >= -shape[k] && a >= -shape[k];
      if (fits) kept[k] = shape[k] + (b < 0 ? b : 0) + (a < 0 ? a : 0);
      if (!fits || kept[k] < 0 || __builtin_add_overflow(shape[k], b, &padded[k]) ||
          __builtin_add_overflow(padded[k], a, &padded[k])) {
        fail<ShapeError>("pad: widths ", b, " and ", a, " do not fit axis ", k, " of shape ", shape);
      }
    }
  }
  int64_t added_before(int k) const { return before[k] > 0 ? before[k] : 0; }
  int64_t added_after(int k) const { return after[k] > 0 ? after[k] : 0; }

  void check(pad_mode mode) const {
    constexpr char const* names[] = {"reflect", "replicate", "circular"};
    for (int k = 0; k < kept.rank(); ++k) {
      int64_t const most = mode == pad_mode::reflect ? kept[k] - 1 : mode == pad_mode::circular ? kept[k] : kept[k] > 0 ? INT64_MAX : 0;
      int64_t const widest = added_before(k) > added_after(k) ? added_before(k) : added_after(k);
      if (widest > 0 && widest > most) {
        fail<ShapeError>("pad: a width of ", widest, " is too much for mode ", names[static_cast<int>(mode)], ": axis ", k, " has ", kept[k],
                         kept[k] == 1 ? " element" : " elements", mode == pad_mode::replicate ? "" : "; at most ", 
                         mode == pad_mode::replicate ? std::string() : text(most > 0 ? most : 0), mode == pad_mode::replicate ? "" : " can be added");
      }
    }
  }
};

/// Evaluates x into the middle of the result; then `fill(view of the part that is added, axis, whether before)` for each side of
/// each axis. Parts of later axes lie over what earlier ones have added.
template <class E, class F>
auto pad_with(E const& x, Padding const& padding, F const& fill) {
  using D = result_device_t<device_of<E>>;
  auto result = Tensor<value_of<E>, D>::uninitialized(padding.padded, "pad");
  if (result.size() == 0) return result;
  int const rank = padding.kept.rank();
  Viewed window{Layout(padding.kept, result.strides()), 0};
  for (int k = 0; k < rank; ++k) window.offset += padding.added_before(k) * result.strides()[k];
  write_into(result, window, view_of(x, [&](Layout const& layout) {
    Viewed kept{layout, 0};
    for (int k = 0; k < rank; ++k) {
      if (padding.before[k] < 0) kept.offset -= padding.before[k] * layout.strides[k];
      kept.layout.shape[k] = padding.kept[k];
    }
    return kept;
  }));
  for (int k = 0; k < rank; ++k) {
    int64_t const step = result.strides()[k];
    for (bool const before : {true, false}) {
      int64_t const width = before ? padding.added_before(k) : padding.added_after(k);
      if (width == 0) continue;
      Viewed part = window;
      part.layout.shape[k] = width;
      part.offset += before ? -width * step : padding.kept[k] * step;
      fill(result, window, part, k, before);
    }
    window.offset -= padding.added_before(k) * step;
    window.layout.shape[k] = padding.padded[k];
  }
  return result;
}

/// Whether a tensor of T is padded with numbers V.
template <class T, class V>
concept pads_with = floating<T> || !floating<typename canonical<V>::type>;

/// A large result, padded with a constant, from a dense x: rows with a little before and behind each, and whole rows before and behind all of
/// them. Empty where it is no such.
template <class T, class D, class E>
Tensor<T, D> pad_rows(E const& x, Padding const& padding, Constant<T> const& constant, T value) {
  if constexpr (is_immediate<D> && std::is_same_v<value_of<E>, T> && requires { x.storage(); }) {
    constexpr auto size = static_cast<int64_t>(sizeof(T));
    Shape const &kept = padding.kept, &padded = padding.padded;
    if (x.size() * size < cpu::streaming_bytes || !x.is_contiguous() || !(kept == x.shape())) return {};
    int axis = kept.rank() - 1, outer = 0;  // the last axis that is padded, and the first one
    while (axis > 0 && padded[axis] == kept[axis]) --axis;
    while (outer < axis && padded[outer] == 1) ++outer;
    for (int k = outer + 1; k < axis; ++k) {
      if (padded[k] != kept[k]) return {};
    }
    constexpr int64_t most = 256;
    int64_t const step = Layout(kept).strides[axis], before = padding.before[axis] * step, after = padding.after[axis] * step, length = kept[axis] * step;
    if (before > most || after > most) return {};
    auto result = Tensor<T, D>::uninitialized(padded, "pad");
    T around[most];
    for (int64_t k = 0; k < (before > after ? before : after); ++k) around[k] = value;
    auto const *const edge = reinterpret_cast<char const*>(around), *const rows = reinterpret_cast<char const*>(x.data());
    cpu::JoinedPiece const pieces[] = {{edge, 0, before * size}, {rows, length * size, length * size}, {edge, 0, after * size}};
    bool const one_axis = outer == axis;
    int64_t const above = one_axis ? 0 : padding.before[outer] * result.strides()[outer], below = one_axis ? 0 : padding.after[outer] * result.strides()[outer];
    int const first = before > 0 ? 0 : 1;
    if (!launch_join<D>(typename device_traits<D>::kernels{}, result.data() + above, x.size() / length, pieces + first, (after > 0 ? 3 : 2) - first)) return {};
    write_into(result, Viewed{Layout(Shape{above}), 0}, constant);
    write_into(result, Viewed{Layout(Shape{below}), result.size() - below}, constant);
    return result;
  } else {
    return {};
  }
}

/// A result that the caches hold, padded with a constant along two axes that follow each other, or one, from a dense x. Empty where it is no such.
template <class T, class D, class E>
Tensor<T, D> pad_planes(E const& x, Padding const& padding, T value) {
  if constexpr (is_immediate<D> && std::is_same_v<value_of<E>, T> && requires { x.storage(); }) {
    Shape const &kept = padding.kept, &padded = padding.padded;
    if (x.size() == 0 || kept.rank() == 0 || !x.is_contiguous() || !(kept == x.shape())) return {};
    int axis = kept.rank() - 1;
    while (axis > 0 && padded[axis] == kept[axis]) --axis;
    for (int k = 0; k < axis - 1; ++k) {
      if (padded[k] != kept[k]) return {};
    }
    auto result = Tensor<T, D>::uninitialized(padded, "pad");
    constexpr auto size = static_cast<int64_t>(sizeof(T));
    int64_t const bytes = result.size() * size;
    if (cpu::goes_past_caches(bytes, x.size() * size)) return {};
    int64_t const step = result.strides()[axis] * size;
    cpu::PadPlanesKernel kernel{reinterpret_cast<char*>(result.data()), reinterpret_cast<char const*>(x.data()), {}, static_cast<int>(size), 0, 1, 1, padding.before[axis] * step,
                                kept[axis] * step, padded[axis] * step};
    __builtin_memcpy(kernel.value, &value, sizeof value);
    if (axis > 0) kernel.top = padding.before[axis - 1], kernel.rows = kept[axis - 1], kernel.padded_rows = padded[axis - 1];
    device_traits<D>::launch(kernel, bytes / kernel.padded_row, (int64_t{1} << 20) / kernel.padded_row + 1);
    return result;
  } else {
    return {};
  }
}

}  // namespace detail

/// x with more elements around it, all of them `value`. Widths come in pairs (before, after) from the last axis on, as in
/// PyTorch: {left, right, top, bottom}; negative ones take elements away.
/// Dtype     that of x, which the value becomes; floating values of integers and bools do not compile.
/// Throws    ShapeError for widths that do not fit; TypeError for an integer that the element type does not hold.
/// Cost      x is read once; one launch on the CPU for a dense x with two padded axes at most, beside each other, in the caches; else one more for each side that is
///           padded, or fewer.
template <class E, number V = int>
  requires(expression<E> && detail::pads_with<value_of<E>, V>)
auto pad(E const& x, std::vector<int64_t> const& widths, V value = 0) {
  using T = value_of<E>;
  detail::Padding const padding(x.shape(), widths);
  T const filling = detail::convert_scalar<T>(detail::fitting<T>(value, "pad"));
  detail::Constant<T> const constant{detail::convert_scalar<compute_t<T>>(filling)};
  if (auto whole = detail::pad_rows<T, detail::result_device_t<device_of<E>>>(x, padding, constant, filling); whole.size() > 0) return whole;
  if (auto whole = detail::pad_planes<T, detail::result_device_t<device_of<E>>>(x, padding, filling); whole.size() > 0) return whole;
  return detail::pad_with(x, padding, [&](auto const& result, detail::Viewed const&, detail::Viewed const& part, int, bool) {
    detail::write_into(result, part, constant);
  });
}
template <class E, number V, class Error = error::conversion_would_lose_values__use_cast<V, value_of<E>>>
  requires(expression<E> && !detail::pads_with<value_of<E>, V>)
void pad(E const&, std::vector<int64_t> const&, V) = delete;

/// x with more elements around it, taken from x itself.
/// Throws    ShapeError where an axis is too short: reflect adds fewer elements than there are, circular no more.
template <class E>
  requires expression<E>
auto pad(E const& x, std::vector<int64_t> const& widths, pad_mode mode) {
  using T = value_of<E>;
  using D = detail::result_device_t<device_of<E>>;
  detail::Padding const padding(x.shape(), widths);
  padding.check(mode);
  return detail::pad_with(x, padding, [&](Tensor<T, D> const& result, detail::Viewed const& window, detail::Viewed const& part, int k, bool before) {
    int64_t const step = window.layout.strides[k], width = part.layout.shape[k], last = padding.kept[k] - 1;
    detail::Viewed from{part.layout, window.offset};
    switch (mode) {
      case pad_mode::reflect:  // the part's first element lies `width` from the edge, or one
        from.offset += (before ? width : last - 1) * step;
        from.layout.strides[k] = -step;
        break;
      case pad_mode::replicate:
        from.offset += (before ? 0 : last) * step;
        from.layout.strides[k] = 0;
        break;
      case pad_mode::circular: from.offset += before ? (last + 1 - width) * step : 0; break;
    }
    T* const first = const_cast<T*>(result.data()) + from.offset;
    detail::write_into(result, part, Tensor<T, D>::from_handle(detail::make_view(result.storage(), first, from.layout)));
  });
}

/// The elements moved by `shifts[k]` along `axes[k]`; what leaves at one end comes in at the other.
/// Cost      x is read once; a launch for each of the 2^k pieces that k shifted axes make.
template <class E>
  requires expression<E>
auto roll(E const& x, Shape const& shifts, Shape const& axes) {
  Shape const shape = x.shape();
  if (shifts.rank() != axes.rank()) {
    detail::fail<ShapeError>("roll: ", shifts.rank(), shifts.rank() == 1 ? " shift was" : " shifts were", " given for ", axes.rank(),
                             axes.rank() == 1 ? " axis" : " axes", "; each axis needs one");
  }
  int64_t by[max_rank] = {};
  for (int k = 0; k < axes.rank(); ++k) {
    int const axis = detail::checked_axis(axes[k], shape.rank(), shape, "roll");
    int64_t const n = shape[axis];
    if (n > 0) by[axis] = ((by[axis] + shifts[k] % n) % n + n) % n;
  }
  auto result = Tensor<value_of<E>, detail::result_device_t<device_of<E>>>::uninitialized(shape, "roll");
  if (result.size() == 0) return result;
  unsigned cut = 0;
  for (int k = 0; k < shape.rank(); ++k) cut |= by[k] > 0 ? 1u << k : 0u;
  if (cut != 0 && (cut & (cut - 1)) == 0) {  // along one axis
    int64_t rows = 1, length = 1, shift = 1;
    for (int k = 0; k < shape.rank(); ++k) (1u << k < cut ? rows : length) *= shape[k], shift *= 1u << k < cut ? 1 : 1u << k == cut ? by[k] : shape[k];
    if (detail::roll_dense<typename decltype(result)::device_type>(result.data(), x, rows, length, shift)) return result;
  }
  unsigned piece = cut;
  for (;;) {  // bit k: the end of axis k, which comes in first; without it: the beginning, which moves on
    auto const cropped = [&](Layout const& layout, bool is_result) {
      detail::Viewed view{layout, 0};
      for (int k = 0; k < shape.rank(); ++k) {
        if (!(cut >> k & 1u)) continue;
        bool const wraps = piece >> k & 1u;
        int64_t const size = wraps ? by[k] : shape[k] - by[k];
        int64_t const at = wraps == is_result ? 0 : is_result ? by[k] : shape[k] - by[k];
        view.offset += at * layout.strides[k];
        view.layout.shape[k] = size;
      }
      return view;
    };
    detail::write_into(result, cropped(result.layout(), true), detail::view_of(x, [&](Layout const& layout) { return cropped(layout, false); }));
    if (piece == 0) return result;
    piece = (piece - 1) & cut;
  }
}
/// As if x were one row of all its elements.
template <class E>
  requires expression<E>
auto roll(E const& x, int64_t shift) {
  Shape const shape = x.shape(), row(x.size());
  bool flattens = true;
  detail::for_each_leaf(x, [&](auto const& leaf) {
    Layout flat;
    flattens = flattens && detail::viewed_as(leaf.shape() == shape ? leaf.layout() : detail::expanded(leaf.layout(), shape), row, flat);
  });
  if (!flattens) return roll(detail::evaluated(x).reshape({-1}), shift, 0).reshape(shape);
  return roll(detail::view_of(x, [&](Layout const& layout) {
           detail::Viewed flat;
           (void)detail::viewed_as(layout, row, flat.layout);
           return flat;
         }), shift, 0).reshape(shape);
}

}  // namespace situ::inline SITU_ABI
