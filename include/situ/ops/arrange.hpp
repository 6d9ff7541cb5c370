/// Arranging: joining and cutting tensors, repeating them, and turning them around.
///
///     concat({a, b, c}, 1)   concat(0, a * 2, b)   stack({a, b})   split(x, 3)   split(x, {2, 3}, 1)   chunk(x, 4)
///     tile(x, {2, 3})   repeat(x, 2, 0)   pad(x, {1, 1}, pad_mode::reflect)   roll(x, 1, 0)   flip(x, {0, 1})
///
/// Device    runs where x lives; enqueued, not waited for.
/// Throws    ShapeError when x has no such axis, or shapes do not fit.
/// Cost      every input is read once: expressions are evaluated straight into their place in the result. `split`, `chunk`,
///           `flip` and `meshgrid` copy nothing: of a tensor they give views of its storage, of a formula formulas over views.
/// Gradient  the same arrangement, backwards: slices of the gradient, and sums of them where elements are repeated.
#pragma once

#include <initializer_list>
#include <vector>

#include <situ/ops/formula_view.hpp>

namespace situ::inline SITU_ABI {

namespace detail {

/// Rebinds `joined` to what it and one more part make along `axis`. Parts of shape [0] join with everything, as in PyTorch.
SITU_NOINLINE inline void join_part(Shape& joined, bool& started, Shape const& part, int64_t axis, char const* who) {
  if (part == Shape(0)) return;
  int const k = started ? checked_axis(axis, joined.rank(), joined, who) : checked_axis(axis, part.rank(), part, who);
  if (!started) {
    joined = part;
    started = true;
    return;
  }
  if (part.rank() != joined.rank()) {
    fail<ShapeError>(who, ": shapes ", joined, " and ", part, " cannot be joined along axis ", k, ": they have ", joined.rank(), " and ",
                     part.rank(), " axes");
  }
  for (int d = 0; d < part.rank(); ++d) {
    if (d != k && part[d] != joined[d]) {
      fail<ShapeError>(who, ": shapes ", joined, " and ", part, " cannot be joined along axis ", k, ": ", joined[d], " != ", part[d],
                       " in dimension ", d);
    }
  }
  joined[k] += part[k];
}

inline Shape joined_shape(Shape const* const* parts, int64_t count, int64_t axis, char const* who) {
  if (count == 0) fail<ShapeError>(who, ": no tensors were given; at least one is needed");
  Shape joined(0);
  bool started = false;
  for (int64_t k = 0; k < count; ++k) join_part(joined, started, *parts[k], axis, who);
  if (!started) (void)checked_axis(axis, 1, joined, who);
  return joined;
}

/// Writes parts one behind the other.
template <class T, class D>
struct Concatenation {
  Tensor<T, D> result;
  int axis;
  int64_t at = 0;
  Concatenation(Shape const& shape, int64_t along, char const* who)
      : result(Tensor<T, D>::uninitialized(shape, who)), axis(checked_axis(along, shape.rank(), shape, who)) {}

  template <class E>
  void append(E const& part) {
    if (part.rank() != result.rank() || part.size() == 0) return;
    int64_t const end = at + part.shape()[axis];
    write_into(result, slice_view(result.layout(), axis, at, end, 1), part);
    at = end;
  }
};

template <class E>
auto concat_range(E const* parts, int64_t count, int64_t axis) {
  std::vector<Shape const*> shapes(static_cast<std::size_t>(count));
  for (int64_t k = 0; k < count; ++k) shapes[static_cast<std::size_t>(k)] = &parts[k].shape();
  Shape const shape = joined_shape(shapes.data(), count, axis, "concat");
  Concatenation<value_of<E>, result_device_t<device_of<E>>> joined(shape, axis, "concat");
  for (int64_t k = 0; k < count; ++k) joined.append(parts[k]);
  return joined.result;
}

template <class... Es>
auto concat_all(int64_t axis, Es const&... parts) {
  Shape const* const shapes[] = {&parts.shape()...};
  Shape const shape = joined_shape(shapes, sizeof...(Es), axis, "concat");
  Concatenation<promoted_t<value_of<Es>...>, result_device_of<Es...>> joined(shape, axis, "concat");
  (joined.append(parts), ...);
  return joined.result;
}

inline Shape stacked_shape(Shape const* const* parts, int64_t count, int64_t axis) {
  if (count == 0) fail<ShapeError>("stack: no tensors were given; at least one is needed");
  Shape const& first = *parts[0];
  for (int64_t k = 1; k < count; ++k) {
    if (!(*parts[k] == first)) {
      fail<ShapeError>("stack: tensors 0 and ", k, " have shapes ", first, " and ", *parts[k], "; all must have the same, or use concat");
    }
  }
  if (axis < -first.rank() - 1 || axis > first.rank()) {
    fail<ShapeError>("stack: axis ", axis, " is out of range for shape ", first, " and one more axis: axes are ", -first.rank() - 1, " to ", first.rank());
  }
  Shape result = first;
  result.insert(static_cast<int>(axis < 0 ? axis + first.rank() + 1 : axis), count);
  return result;
}

template <class T, class D>
struct Stack {
  Tensor<T, D> result;
  int64_t axis;
  int64_t at = 0;
  Stack(Shape const& shape, int64_t along) : result(Tensor<T, D>::uninitialized(shape, "stack")), axis(along) {}
  template <class E>
  void append(E const& part) {
    write_into(result, select_view(result.layout(), axis, at++), part);
  }
};

template <class E>
auto stack_range(E const* parts, int64_t count, int64_t axis) {
  std::vector<Shape const*> shapes(static_cast<std::size_t>(count));
  for (int64_t k = 0; k < count; ++k) shapes[static_cast<std::size_t>(k)] = &parts[k].shape();
  Stack<value_of<E>, result_device_t<device_of<E>>> stacked(stacked_shape(shapes.data(), count, axis), axis);
  for (int64_t k = 0; k < count; ++k) stacked.append(parts[k]);
  return stacked.result;
}

template <class... Es>
auto stack_all(int64_t axis, Es const&... parts) {
  Shape const* const shapes[] = {&parts.shape()...};
  Stack<promoted_t<value_of<Es>...>, result_device_of<Es...>> stacked(stacked_shape(shapes, sizeof...(Es), axis), axis);
  (stacked.append(parts), ...);
  return stacked.result;
}

}  // namespace detail

/// Tensors one behind the other along an existing axis.
///
/// Takes a list or a vector of tensors, then the axis; or the axis, then any expressions, each evaluated straight into its
/// slice of the result. Without an axis, along axis 0.
/// Shape     equal but for `axis`, along which extents add up; parts of shape [0] are left out, whatever the other shapes are.
/// Dtype     the parts promote together.
/// Example   concat({a, b}, 1); concat(1, a, b * 2); concat(split(x, 2)) is x
template <element T, device D>
auto concat(std::initializer_list<Tensor<T, D>> parts, int64_t axis = 0) {
  return detail::concat_range(parts.begin(), static_cast<int64_t>(parts.size()), axis);
}
template <expression E>
auto concat(std::vector<E> const& parts, int64_t axis = 0) {
  return detail::concat_range(parts.data(), static_cast<int64_t>(parts.size()), axis);
}
template <class... Es>
  requires(sizeof...(Es) > 0 && (expression<Es> && ...) && detail::on_one_device<Es...>)
auto concat(int64_t axis, Es const&... parts) {
  return detail::concat_all(axis, parts...);
}
template <class... Es>
  requires(sizeof...(Es) > 1 && (expression<Es> && ...) && detail::on_one_device<Es...>)
auto concat(Es const&... parts) {
  return detail::concat_all(0, parts...);
}
template <class... Es, class Error = detail::apart_t<Es...>>
void concat(int64_t, Es const&...) = delete;
template <class E, class... Es, class Error = detail::apart_t<E, Es...>>
void concat(E const&, Es const&...) = delete;

/// Tensors of one shape side by side along a new axis, which stands at `axis` of the result (0 where none is given).
/// Takes what concat takes.
template <element T, device D>
auto stack(std::initializer_list<Tensor<T, D>> parts, int64_t axis = 0) {
  return detail::stack_range(parts.begin(), static_cast<int64_t>(parts.size()), axis);
}
template <expression E>
auto stack(std::vector<E> const& parts, int64_t axis = 0) {
  return detail::stack_range(parts.data(), static_cast<int64_t>(parts.size()), axis);
}
template <class... Es>
  requires(sizeof...(Es) > 0 && (expression<Es> && ...) && detail::on_one_device<Es...>)
auto stack(int64_t axis, Es const&... parts) {
  return detail::stack_all(axis, parts...);
}
template <class... Es>
  requires(sizeof...(Es) > 1 && (expression<Es> && ...) && detail::on_one_device<Es...>)
auto stack(Es const&... parts) {
  return detail::stack_all(0, parts...);
}
template <class... Es, class Error = detail::apart_t<Es...>>
void stack(int64_t, Es const&...) = delete;
template <class E, class... Es, class Error = detail::apart_t<E, Es...>>
void stack(E const&, Es const&...) = delete;

/// Consecutive slices of the given sizes, which add up to the extent of the axis: views.
template <class E>
  requires expression<E>
auto split(E const& x, std::vector<int64_t> const& sizes, int64_t axis = 0) {
  Shape const shape = x.shape();
  int const k = detail::checked_axis(axis, shape.rank(), shape, "split");
  int64_t total = 0;
  for (int64_t size : sizes) {
    if (size < 0) detail::fail<ShapeError>("split: a size of ", size, " was asked for; sizes are 0 or more");
    if (__builtin_add_overflow(total, size, &total)) total = INT64_MAX;
  }
  if (total != shape[k]) {
    detail::fail<ShapeError>("split: the sizes add up to ", total, ", but axis ", k, " of shape ", shape, " has ", shape[k], shape[k] == 1 ? " element" : " elements");
  }
  std::vector<detail::view_of_t<E>> parts;
  parts.reserve(sizes.size());
  int64_t at = 0;
  for (int64_t size : sizes) {
    parts.push_back(detail::view_of(x, [=](Layout const& layout) { return detail::slice_view(layout, k, at, at + size, 1); }));
    at += size;
  }
  return parts;
}
/// Consecutive slices of `size` indices each, the last one shorter where it must be: views.
template <class E>
  requires expression<E>
auto split(E const& x, std::integral auto size, int64_t axis = 0) {
  int64_t const extent = x.shape()[detail::checked_axis(axis, x.rank(), x.shape(), "split")], step = static_cast<int64_t>(size);
  if (step < 0 || (step == 0 && extent > 0)) {
    detail::fail<ShapeError>("split: slices of ", step, " indices cannot cover ", extent, "; a size is 1 or more");
  }
  std::vector<int64_t> sizes;
  for (int64_t left = extent; left > 0; left -= step) sizes.push_back(left < step ? left : step);
  if (extent == 0) sizes.push_back(0);
  return split(x, sizes, axis);
}
/// At most `count` slices of equal size, the last one shorter where it must be: views. As in PyTorch there are fewer where
/// slices of ceil(extent / count) cover the axis sooner.
template <class E>
  requires expression<E>
auto chunk(E const& x, int64_t count, int64_t axis = 0) {
  int64_t const extent = x.shape()[detail::checked_axis(axis, x.rank(), x.shape(), "chunk")];
  if (count < 1) detail::fail<ShapeError>("chunk: ", count, " chunks were asked for; there is at least 1");
  if (extent == 0) return split(x, std::vector<int64_t>(static_cast<std::size_t>(count), 0), axis);
  return split(x, (extent - 1) / count + 1, axis);
}

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
      fail<ShapeError>("pad: ", widths.size(), " widths were given for shape ", shape, ": a pair for each axis is needed, from the last axis on, at most ",
                       2 * shape.rank());
    }
    for (int p = 0; p < pairs; ++p) {
      int const k = shape.rank() - 1 - p;
      int64_t const b = widths[static_cast<std::size_t>(2 * p)], a = widths[static_cast<std::size_t>(2 * p + 1)];
      before[k] = b, after[k] = a;
      kept[k] = shape[k] + (b < 0 ? b : 0) + (a < 0 ? a : 0);
      if (b < -shape[k] || a < -shape[k] || kept[k] < 0 || __builtin_add_overflow(shape[k], b, &padded[k]) ||
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

}  // namespace detail

/// x with more elements around it, all of them `value`. Widths come in pairs (before, after) from the last axis on, as in
/// PyTorch: {left, right, top, bottom}; negative ones take elements away.
/// Cost      x is read once; one launch, and one more for each side that is padded.
template <class E, number V = int>
  requires expression<E>
auto pad(E const& x, std::vector<int64_t> const& widths, V value = 0) {
  using T = value_of<E>;
  detail::Padding const padding(x.shape(), widths);
  detail::Constant<T> const constant{detail::convert_scalar<compute_t<T>>(detail::convert_scalar<T>(value))};
  return detail::pad_with(x, padding, [&](auto const& result, detail::Viewed const&, detail::Viewed const& part, int, bool) {
    detail::write_into(result, part, constant);
  });
}
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

/// The elements in reverse order along the given axes: a view.
template <class E>
  requires expression<E>
detail::view_of_t<E> flip(E const& x, Shape const& axes) {
  unsigned seen = 0;
  for (int64_t axis : axes) {
    unsigned const bit = 1u << detail::checked_axis(axis, x.rank(), x.shape(), "flip");
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

}  // namespace situ::inline SITU_ABI
