/// Joining tensors and cutting them up.
///
///     concat({a, b, c}, 1)   concat(0, a * 2, b)   stack({a, b})   split(x, 3)   split(x, {2, 3}, 1)   chunk(x, 4)
///
/// Device    runs where x lives; enqueued, not waited for.
/// Throws    AxisError when x has no such axis, ShapeError when shapes do not fit.
/// Cost      every input is read once: expressions are evaluated straight into their place in the result. `split` and `chunk` copy
///           nothing: of a tensor they give views of its storage, of a formula formulas over views.
/// Gradient  the same arrangement, backwards: slices of the gradient of what was joined, the joined gradients of what was cut.
#pragma once

#include <initializer_list>
#include <vector>

#include <situ/core/list.hpp>
#include <situ/ops/cpu/join.hpp>
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
  if (__builtin_add_overflow(joined[k], part[k], &joined[k])) {
    fail<ShapeError>(who, ": shape ", part, " cannot be joined along axis ", k, ": the axis would have more elements than can be addressed");
  }
}

inline Shape joined_shape(Shape const* const* parts, int64_t count, int64_t axis, char const* who) {
  if (count == 0) fail<ShapeError>(who, ": no tensors were given; at least one is needed");
  Shape joined(0);
  bool started = false;
  for (int64_t k = 0; k < count; ++k) join_part(joined, started, *parts[k], axis, who);
  if (!started) (void)checked_axis(axis, 1, joined, who);
  return joined;
}

/// How many rows a tensor of this shape has where what follows axis `axis - 1` is one.
inline int64_t rows_before(Shape const& shape, int64_t axis) {
  int64_t rows = 1;
  for (int k = 0; k < axis; ++k) rows *= shape[k];
  return rows;
}

/// Writes parts one behind the other.
template <class T, class D>
struct Concatenation {
  Tensor<T, D> result;
  int axis;
  int64_t at = 0;
  Concatenation(Shape const& shape, int64_t along, char const* who)
      : result(Tensor<T, D>::uninitialized(shape, who)), axis(checked_axis(along, shape.rank(), shape, who)) {}

  /// Whether the parts were written all at once.
  template <class E>
  bool joins_rows(E const* parts, int64_t count) {
    return result.size() > 0 && join_dense(result.data(), D{}, rows_before(result.shape(), axis), parts, count);
  }

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
  List<Shape const*> shapes;
  shapes.resize(static_cast<std::size_t>(count));
  for (int64_t k = 0; k < count; ++k) shapes[static_cast<std::size_t>(k)] = &parts[k].shape();
  Shape const shape = joined_shape(shapes.data(), count, axis, "concat");
  Concatenation<value_of<E>, result_device_t<device_of<E>>> joined(shape, axis, "concat");
  if (joined.joins_rows(parts, count)) return joined.result;
  for (int64_t k = 0; k < count; ++k) joined.append(parts[k]);
  return joined.result;
}

template <class... Es>
auto concat_all(int64_t axis, Es const&... parts) {
  Shape const* const shapes[] = {&parts.shape()...};
  Shape const shape = joined_shape(shapes, sizeof...(Es), axis, "concat");
  Concatenation<promoted_t<value_of<Es>...>, result_device_of<Es...>> joined(shape, axis, "concat");
  using Part = Tensor<promoted_t<value_of<Es>...>, result_device_of<Es...>>;
  if constexpr ((std::is_same_v<Es, Part> && ...)) {
    Part const list[] = {parts...};
    if (joined.joins_rows(list, sizeof...(Es))) return joined.result;
  }
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
    fail<AxisError>("stack: axis ", axis, " is out of range for shape ", first, " and one more axis: axes are ", -first.rank() - 1, " to ", first.rank());
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

  /// Whether the parts were written all at once.
  template <class E>
  bool joins_rows(E const* parts, int64_t count) {
    return result.size() > 0 && join_dense(result.data(), D{}, rows_before(result.shape(), axis < 0 ? axis + result.rank() : axis), parts, count);
  }
  template <class E>
  void append(E const& part) {
    write_into(result, select_view(result.layout(), axis, at++), part);
  }
};

template <class E>
auto stack_range(E const* parts, int64_t count, int64_t axis) {
  List<Shape const*> shapes;
  shapes.resize(static_cast<std::size_t>(count));
  for (int64_t k = 0; k < count; ++k) shapes[static_cast<std::size_t>(k)] = &parts[k].shape();
  Stack<value_of<E>, result_device_t<device_of<E>>> stacked(stacked_shape(shapes.data(), count, axis), axis);
  if (stacked.joins_rows(parts, count)) return stacked.result;
  for (int64_t k = 0; k < count; ++k) stacked.append(parts[k]);
  return stacked.result;
}

template <class... Es>
auto stack_all(int64_t axis, Es const&... parts) {
  Shape const* const shapes[] = {&parts.shape()...};
  Stack<promoted_t<value_of<Es>...>, result_device_of<Es...>> stacked(stacked_shape(shapes, sizeof...(Es), axis), axis);
  using Part = Tensor<promoted_t<value_of<Es>...>, result_device_of<Es...>>;
  if constexpr ((std::is_same_v<Es, Part> && ...)) {
    Part const list[] = {parts...};
    if (stacked.joins_rows(list, sizeof...(Es))) return stacked.result;
  }
  (stacked.append(parts), ...);
  return stacked.result;
}

/// Throws ShapeError where an axis would be cut into more parts than a list of them can be for.
inline void check_part_count(int64_t count, int64_t extent, char const* who) {
  if (count > INT32_MAX) {
    fail<ShapeError>(who, ": ", count, count == 1 ? " part" : " parts", " of an axis of ", extent, extent == 1 ? " element" : " elements",
                     count == 1 ? " was" : " were", " asked for; there are at most ", INT32_MAX);
  }
}

/// The first of Es that is not an E; `type` is missing where all are.
template <class E, class... Es>
struct first_unlike {};
template <class E, class First, class... Es>
struct first_unlike<E, First, Es...> : std::conditional_t<std::is_same_v<E, First>, first_unlike<E, Es...>, std::type_identity<First>> {};

/// A list of parts that has no type: on devices that do not mix, or of several types.
struct UnlikeParts {
  template <class E, class... Es, class Error = typename different_devices<device_of<E>, device_of<Es>...>::type>
    requires(any_formula<E> && (any_formula<Es> && ...))
  UnlikeParts(E const&, Es const&...) = delete;
  template <class E, class... Es, class Error = error::the_parts_of_a_list_have_one_type__give_the_axis_first_and_then_the_parts<E, typename first_unlike<E, Es...>::type>>
    requires(any_formula<E> && (any_formula<Es> && ...) && all_mix<device_of<E>, device_of<Es>...>::value)
  UnlikeParts(E const&, Es const&...) = delete;
};

}  // namespace detail

// What PyTorch's users would write.
#define SITU_AXIS_BEHIND(NAME)                                                                                                          \
  template <class A, class B, std::integral Axis,                                                                                       \
            class Error = error::the_axis_stands_first__as_in_concat_of_1_and_a_and_b__or_behind_parts_in_braces<Axis>>                 \
    requires((expression<A> || differentiable<A>) && (expression<B> || differentiable<B>))                                              \
  void NAME(A const&, B const&, Axis) = delete;                                                                                         \
  template <class A, class B, class C, std::integral Axis,                                                                              \
            class Error = error::the_axis_stands_first__as_in_concat_of_1_and_a_and_b__or_behind_parts_in_braces<Axis>>                 \
    requires((expression<A> || differentiable<A>) && (expression<B> || differentiable<B>) && (expression<C> || differentiable<C>))      \
  void NAME(A const&, B const&, C const&, Axis) = delete;

/// Tensors one behind the other along an existing axis.
///
/// Takes a list or a vector of tensors, or of expressions of one type, then the axis; or the axis, then any expressions. Each is evaluated
/// straight into its slice of the result. Without an axis, along axis 0.
/// Shape     equal but for `axis`, along which extents add up; parts of shape [0] are left out, whatever the other shapes are.
/// Dtype     the parts promote together.
/// Example   concat({a, b}, 1); concat({a * 2, b * 3}); concat(1, a, b * 2); concat(split(x, 2)) is x
template <element T, device D>
auto concat(std::initializer_list<Tensor<T, D>> parts, int64_t axis = 0) {
  return detail::concat_range(parts.begin(), static_cast<int64_t>(parts.size()), axis);
}
template <expression E>
auto concat(std::initializer_list<E> parts, int64_t axis = 0) {
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
void concat(detail::UnlikeParts parts, int64_t axis = 0);
template <class... Es, class Error = detail::apart_t<Es...>>
void concat(int64_t, Es const&...) = delete;
template <class E, class... Es, class Error = detail::apart_t<E, Es...>>
void concat(E const&, Es const&...) = delete;
SITU_AXIS_BEHIND(concat)

/// Tensors of one shape side by side along a new axis, which stands at `axis` of the result (0 where none is given).
/// Takes what concat takes.
template <element T, device D>
auto stack(std::initializer_list<Tensor<T, D>> parts, int64_t axis = 0) {
  return detail::stack_range(parts.begin(), static_cast<int64_t>(parts.size()), axis);
}
template <expression E>
auto stack(std::initializer_list<E> parts, int64_t axis = 0) {
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
void stack(detail::UnlikeParts parts, int64_t axis = 0);
template <class... Es, class Error = detail::apart_t<Es...>>
void stack(int64_t, Es const&...) = delete;
template <class E, class... Es, class Error = detail::apart_t<E, Es...>>
void stack(E const&, Es const&...) = delete;
SITU_AXIS_BEHIND(stack)
#undef SITU_AXIS_BEHIND

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
  if (extent > 0) detail::check_part_count((extent - 1) / step + 1, extent, "split");
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
  if (extent == 0) {
    detail::check_part_count(count, extent, "chunk");
    return split(x, std::vector<int64_t>(static_cast<std::size_t>(count), 0), axis);
  }
  return split(x, (extent - 1) / count + 1, axis);
}

}  // namespace situ::inline SITU_ABI
