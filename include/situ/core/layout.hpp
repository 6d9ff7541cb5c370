/// Layouts: how the indices of a tensor become offsets into its storage, and how views change that.
///
/// *contiguous* means row-major without gaps; *offset* counts elements from the tensor's first element.
#pragma once

#include <situ/core/shape.hpp>

namespace situ::inline SITU_ABI {

/// A shape and its strides, in elements. Strides may be zero (broadcast) or negative (flipped).
struct Layout {
  Shape shape;
  Shape strides;

  constexpr Layout() : shape(0), strides(1) {}
  constexpr Layout(Shape const& extents, Shape const& steps) : shape(extents), strides(steps) {}
  explicit constexpr Layout(Shape const& extents) : shape(extents, Shape::By16{}), strides(extents, Shape::By16{}) {
    int64_t step = 1;
    bool overflows = false;
    for (int k = shape.rank() - 1; k >= 0; --k) {
      strides[k] = step;
      overflows |= __builtin_mul_overflow(step, shape[k] > 1 ? shape[k] : 1, &step);
    }
    for (int k = 0; overflows && k < shape.rank(); ++k) strides[k] = 1;  // an extent is 0: no stride leads anywhere
  }

  constexpr int rank() const { return shape.rank(); }
  constexpr int64_t size() const { return detail::product(shape); }

  /// The number of elements, and whether they are contiguous, as none are.
  struct Measure {
    int64_t size;
    bool contiguous;
  };
  constexpr Measure measure() const {
    uint64_t size = 1;  // may wrap where an extent is 0
    bool contiguous = true;
    for (int k = rank() - 1; k >= 0; --k) {
      contiguous = contiguous && (shape[k] <= 1 || static_cast<uint64_t>(strides[k]) == size);
      size *= static_cast<uint64_t>(shape[k]);
    }
    return {static_cast<int64_t>(size), contiguous || size == 0};
  }
  constexpr bool is_contiguous() const { return measure().contiguous; }

  /// True when two different indices share an element: an axis of stride 0 with more than one index.
  constexpr bool is_broadcast() const {
    for (int k = 0; k < rank(); ++k) {
      if (strides[k] == 0 && shape[k] > 1) return true;
    }
    return false;
  }

  constexpr void erase(int at) {
    shape.erase(at);
    strides.erase(at);
  }

  /// The smallest and the largest offset reached; {0, -1} when there are no elements.
  struct Extent {
    int64_t first, last;
  };
  constexpr Extent extent() const {
    Extent e{0, 0};
    for (int k = 0; k < rank(); ++k) {
      if (shape[k] == 0) return {0, -1};
    }
    for (int k = 0; k < rank(); ++k) {
      int64_t const reach = (shape[k] - 1) * strides[k];
      (reach < 0 ? e.first : e.last) += reach;
    }
    return e;
  }
};

namespace detail {

/// That of a default-constructed tensor: shape [0].
inline constexpr Layout empty_layout{};

/// The layout after a view operation, and the offset of its first element.
struct Viewed {
  Layout layout;
  int64_t offset = 0;
};

/// A number that x[...] does not take for an index, though it would become one.
template <class Ix>
concept no_index = std::is_floating_point_v<Ix> || std::is_same_v<Ix, bool>;

inline int64_t checked_index(int64_t index, int64_t extent, int axis, Shape const& shape, char const* who) {
  if (SITU_UNLIKELY(index < -extent || index >= extent)) {
    fail<IndexError>(who, ": index ", index, " is out of range for axis ", axis, " of shape ", shape, ": it has ",
                     extent, extent == 1 ? " element" : " elements");
  }
  return index < 0 ? index + extent : index;
}

SITU_NOINLINE inline Viewed select_view(Layout const& from, int64_t axis, int64_t index, char const* who = "select") {
  int const k = checked_axis(axis, from.rank(), from.shape, who);
  int64_t const i = checked_index(index, from.shape[k], k, from.shape, who);
  Viewed result{from, i * from.strides[k]};
  result.layout.erase(k);
  return result;
}

/// x[index]: of the first axis.
SITU_NOINLINE inline Viewed index_first(Layout const& from, int64_t index) {
  if (from.rank() == 0) fail<IndexError>("operator[]: index ", index, " was given for shape ", from.shape, ": it has no axes");
  return select_view(from, 0, index, "operator[]");
}

inline void check_step(int64_t step, int axis, char const* who) {
  if (step == 0) fail<IndexError>(who, ": the step of axis ", axis, " is 0; a step is positive or negative");
}

/// Python's slice rules: negative bounds count from the end, bounds beyond it are clamped, step may be negative.
SITU_NOINLINE inline Viewed slice_view(Layout const& from, int64_t axis, int64_t start, int64_t stop, int64_t step,
                         bool open_start = false, bool open_stop = false, char const* who = "slice") {
  int const k = checked_axis(axis, from.rank(), from.shape, who);
  check_step(step, k, who);
  int64_t const n = from.shape[k];
  auto clamped = [n, step](int64_t i) {
    int64_t const low = step > 0 ? 0 : -1, high = step > 0 ? n : n - 1;
    if (i < 0) i = i < -n ? low : i + n;
    return i < low ? low : i > high ? high : i;
  };
  int64_t const first = open_start ? (step > 0 ? 0 : n - 1) : clamped(start);
  int64_t const last = open_stop ? (step > 0 ? n : -1) : clamped(stop);
  int64_t count = 0;
  if (step > 0 && last > first) count = step == 1 ? last - first : (last - first - 1) / step + 1;
  if (step < 0 && first > last) count = (first - last - 1) / (step == INT64_MIN ? INT64_MAX : -step) + 1;
  Viewed result{from, count > 0 ? first * from.strides[k] : 0};
  result.layout.shape[k] = count;
  result.layout.strides[k] = count > 1 ? from.strides[k] * step : from.strides[k];
  return result;
}

SITU_NOINLINE inline Viewed flip_view(Layout const& from, int64_t axis) {
  int const k = line_axis(axis, from.shape, "flip");
  if (from.rank() == 0) return {from, 0};
  Viewed result{from, from.shape[k] > 0 ? (from.shape[k] - 1) * from.strides[k] : 0};
  result.layout.strides[k] = -from.strides[k];
  return result;
}

SITU_NOINLINE inline Layout transposed(Layout const& from, int64_t axis0, int64_t axis1, char const* who = "transpose") {
  int const i = line_axis(axis0, from.shape, who), j = line_axis(axis1, from.shape, who);
  Layout result = from;
  result.shape[i] = from.shape[j], result.shape[j] = from.shape[i];
  result.strides[i] = from.strides[j], result.strides[j] = from.strides[i];
  return result;
}

SITU_NOINLINE inline Layout matrix_transposed(Layout const& from) {
  if (from.rank() > 2) {
    fail<ShapeError>("t: shape ", from.shape, " has ", from.rank(), " axes: t() takes at most 2; use transpose(axis0, axis1) or permute");
  }
  return from.rank() < 2 ? from : transposed(from, 0, 1, "t");
}

SITU_NOINLINE inline Layout permuted(Layout const& from, Shape const& axes) {
  if (axes.rank() != from.rank()) {
    fail<ShapeError>("permute: ", axes.rank(), axes.rank() == 1 ? " axis " : " axes ", axes, axes.rank() == 1 ? " was" : " were", " given for shape ", from.shape,
                     ": it has ", from.rank());
  }
  Layout result = from;
  unsigned seen = 0;
  for (int k = 0; k < from.rank(); ++k) {
    int const axis = checked_axis(axes[k], from.rank(), from.shape, "permute");
    if (seen & (1u << axis)) fail<ShapeError>("permute: axis ", axis, " appears twice in ", axes);
    seen |= 1u << axis;
    result.shape[k] = from.shape[axis];
    result.strides[k] = from.strides[axis];
  }
  return result;
}

SITU_NOINLINE inline Layout unsqueezed(Layout const& from, int64_t axis) {
  int const rank = from.rank() + 1;
  if (axis < -rank || axis >= rank) {
    fail<AxisError>("unsqueeze: axis ", axis, " is out of range for shape ", from.shape, ": axes are ", -rank, " to ", rank - 1);
  }
  int const k = static_cast<int>(axis < 0 ? axis + rank : axis);
  Layout result = from;
  result.strides.insert(k, k < from.rank() ? from.shape[k] * from.strides[k] : 1);
  result.shape.insert(k, 1);
  return result;
}

SITU_NOINLINE inline Layout squeezed(Layout const& from) {
  Layout result{Shape{}, Shape{}};
  for (int k = 0; k < from.rank(); ++k) {
    if (from.shape[k] == 1) continue;
    result.shape.push_back(from.shape[k]);
    result.strides.push_back(from.strides[k]);
  }
  return result;
}

SITU_NOINLINE inline Layout squeezed(Layout const& from, int64_t axis) {
  int const k = line_axis(axis, from.shape, "squeeze");
  Layout result = from;
  if (from.rank() > 0 && from.shape[k] == 1) result.erase(k);
  return result;
}

/// Strides that repeat `from` over `to`: 0 where an axis is broadcast. -1 in `to` keeps the extent.
SITU_NOINLINE inline Layout expanded(Layout const& from, Shape to, char const* who = "expand") {
  int const lead = to.rank() - from.rank();
  if (lead < 0) fail<ShapeError>(who, ": shape ", from.shape, " cannot be expanded to ", to, ": it has more dimensions");
  Layout result{to, Shape::filled(to.rank(), 0)};
  for (int k = 0; k < to.rank(); ++k) {
    int64_t const have = k < lead ? 1 : from.shape[k - lead];
    if (to[k] == -1 && k >= lead) result.shape[k] = have;
    int64_t const want = result.shape[k];
    if (want < 0) fail<ShapeError>(who, ": shape ", to, " has a negative extent: ", want, "; sizes are 0 or more, -1 keeps an existing one");
    if (have != want && have != 1) {
      fail<ShapeError>(who, ": shape ", from.shape, " cannot be expanded to ", to, ": ", have, " != ", want, " in dimension ", k);
    }
    result.strides[k] = k < lead || (have == 1 && want != 1) ? 0 : from.strides[k - lead];
  }
  count_of(result.shape, who);
  return result;
}

/// With as many axes in front as `from` has more, if those have one index.
SITU_NOINLINE inline Layout led_by_ones(Layout const& to, Shape const& from) {
  Layout result = to;
  for (int k = 0; k < from.rank() - to.rank(); ++k) {
    if (from[k] != 1) return to;
    result = unsqueezed(result, 0);
  }
  return result;
}

/// Throws ShapeError where `from` does not broadcast to `to`.
SITU_NOINLINE inline void check_expands(Shape const& from, Shape const& to, char const* who) { (void)expanded(Layout(from), to, who); }

/// `to` with its single -1 replaced by what is left of `size` elements.
SITU_NOINLINE inline Shape inferred(Shape to, Shape const& from, char const* who) {
  int64_t const size = product(from);
  int unknown = -1;
  int64_t known = 1;
  bool empty = false, overflows = false;
  for (int k = 0; k < to.rank(); ++k) {
    if (to[k] == -1) {
      if (unknown >= 0) fail<ShapeError>(who, ": shape ", to, " has more than one -1; only one extent can be inferred");
      unknown = k;
    } else if (to[k] < 0) {
      fail<ShapeError>(who, ": shape ", to, " has a negative extent: ", to[k], "; sizes are 0 or more, or one -1");
    } else {
      empty = empty || to[k] == 0;
      overflows = overflows || __builtin_mul_overflow(known, to[k], &known);
    }
  }
  if (empty) known = 0;
  else if (overflows) fail<ShapeError>(who, ": shape ", to, " has more elements than can be addressed: the product of the sizes overflows");
  if (unknown >= 0) {
    if (known == 0 && size == 0) {
      fail<ShapeError>(who, ": shape ", from, " (0 elements) cannot become ", to, ": beside an extent of 0 the -1 stands for any number; write the extent");
    }
    if (known == 0 || size % known != 0) {
      fail<ShapeError>(who, ": shape ", from, " (", size, size == 1 ? " element" : " elements", ") cannot become ", to, ": ", size, " is not a multiple of ", known);
    }
    to[unknown] = size / known;
  } else if (known != size) {
    fail<ShapeError>(who, ": shape ", from, " (", size, size == 1 ? " element" : " elements", ") cannot become ", to, " (", known, known == 1 ? " element)" : " elements)");
  }
  return to;
}

/// The strides under which the elements of `from` can be seen as `to`, if there are any.
SITU_NOINLINE inline bool viewed_as(Layout const& from, Shape const& to, Layout& result) {
  result = Layout(to);
  if (from.size() == 0 || from.is_contiguous()) return true;
  // Group axes of `from` that are contiguous with each other, and cut `to` into the same groups (from the last axis).
  int view = to.rank() - 1;
  int64_t group_size = 1, view_size = 1;
  int64_t group_stride = from.rank() ? from.strides[from.rank() - 1] : 1;
  for (int k = from.rank() - 1; k >= 0; --k) {
    if (group_size == 1) group_stride = from.strides[k];
    group_size *= from.shape[k];
    bool const cut = k == 0 || (from.shape[k - 1] != 1 && from.strides[k - 1] != group_size * group_stride);
    if (!cut) continue;
    while (view >= 0 && (view_size < group_size || to[view] == 1)) {
      result.strides[view] = view_size * group_stride;
      view_size *= to[view];
      --view;
    }
    if (view_size != group_size) return false;
    group_size = view_size = 1;
  }
  return view < 0;
}

/// A layout seen as another shape.
struct Reshaped {
  Viewed view;
  bool shares;  ///< false where it takes a copy: then the view is that of a contiguous one
};
/// `to` may have one extent of -1.
SITU_NOINLINE inline Reshaped reshaped(Layout const& from, Shape const& to, char const* who) {
  Reshaped result{{Layout(inferred(to, from.shape, who)), 0}, true};
  if (SITU_LIKELY(from.is_contiguous())) return result;
  Layout strided;
  result.shares = viewed_as(from, result.view.layout.shape, strided);
  if (result.shares) result.view.layout.strides = strided.strides;
  return result;
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
