/// Shapes: up to eight extents, held inline. Also used for strides and lists of axes.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

#include <situ/core/error.hpp>
#include <situ/core/scalar.hpp>

namespace situ::inline SITU_ABI {

/// The most dimensions a tensor may have.
inline constexpr int max_rank = 8;

/// A short list of integers: the extents of a tensor, its strides, or axes of it. Written {2, 3}, with any integer
/// types, or converted from a range of integers such as std::vector. Throws ShapeError beyond eight entries.
class Shape {
 public:
  constexpr Shape() : values_{}, rank_(0) {}

  template <std::integral... Is>
    requires(sizeof...(Is) > 0)
  constexpr Shape(Is... extents) : values_{}, rank_(static_cast<int>(sizeof...(Is))) {
    if constexpr (sizeof...(Is) > max_rank) too_many(static_cast<int64_t>(sizeof...(Is)));
    else {
      int k = 0;
      ((values_[k++] = static_cast<int64_t>(extents)), ...);
    }
  }

  /// From any sized contiguous range of integers; not from a tensor, whose elements may lie on a device.
  template <class Range>
    requires(!std::same_as<Range, Shape> && !requires { typename Range::device_type; } && requires(Range const& r) {
      requires std::integral<std::remove_cvref_t<decltype(*r.data())>>;
      r.size();
    })
  constexpr Shape(Range const& extents) : Shape(extents.data(), static_cast<int64_t>(extents.size())) {}

  template <std::integral Ix>
  constexpr Shape(Ix const* first, int64_t count) : values_{}, rank_(0) {
    if (count > max_rank || count < 0) too_many(count);
    rank_ = static_cast<int>(count);
    for (int k = 0; k < rank_; ++k) values_[k] = static_cast<int64_t>(first[k]);
  }

  /// `rank` entries of the same value.
  static constexpr Shape filled(int rank, int64_t value) {
    Shape result;
    if (rank > max_rank || rank < 0) too_many(rank);
    result.rank_ = rank;
    for (int k = 0; k < rank; ++k) result.values_[k] = value;
    return result;
  }

  /// A copy by moves of 16 bytes. In code that g++ takes for rarely run its own is a string instruction, which costs more than all else of a small tensor.
  struct By16 {};
  constexpr Shape(Shape const& other, By16) {
    if (std::is_constant_evaluated()) {
      *this = other;
    } else {
      static_assert(max_rank == 8);
      __builtin_memcpy(values_, other.values_, 16);
      __builtin_memcpy(values_ + 2, other.values_ + 2, 16);
      __builtin_memcpy(values_ + 4, other.values_ + 4, 16);
      __builtin_memcpy(values_ + 6, other.values_ + 6, 16);
      rank_ = other.rank_;
    }
  }

  constexpr int rank() const { return rank_; }
  constexpr std::size_t size() const { return static_cast<std::size_t>(rank_); }
  constexpr bool empty() const { return rank_ == 0; }
  /// Entry k; of a negative k the one that far from the end. Throws IndexError where there is none; beyond the rank, but below eight, there is 0.
  constexpr int64_t operator[](std::integral auto k) const { return values_[static_cast<uint64_t>(k) < max_rank ? static_cast<int>(k) : from_end(static_cast<int64_t>(k))]; }
  constexpr int64_t& operator[](std::integral auto k) { return values_[static_cast<uint64_t>(k) < max_rank ? static_cast<int>(k) : from_end(static_cast<int64_t>(k))]; }
  constexpr int64_t const* data() const { return values_; }
  constexpr int64_t const* begin() const { return values_; }
  constexpr int64_t const* end() const { return values_ + rank_; }
  constexpr int64_t front() const { return values_[0]; }
  constexpr int64_t back() const { return values_[rank_ - 1]; }

  constexpr void push_back(int64_t value) {
    if (rank_ == max_rank) too_many(rank_ + 1);
    values_[rank_++] = value;
  }
  constexpr void insert(int at, int64_t value) {
    push_back(value);
    for (int k = rank_ - 1; k > at; --k) values_[k] = values_[k - 1];
    values_[at] = value;
  }
  constexpr void erase(int at) {
    for (int k = at; k + 1 < rank_; ++k) values_[k] = values_[k + 1];
    values_[--rank_] = 0;
  }

  friend constexpr bool operator==(Shape const& a, Shape const& b) {
    if (a.rank_ != b.rank_) return false;
    for (int k = 0; k < a.rank_; ++k) {
      if (a.values_[k] != b.values_[k]) return false;
    }
    return true;
  }

  /// `[2, 3]`
  friend std::string to_string(Shape const& shape);
  friend void append_to(detail::MessageText& to, Shape const& shape);

 private:
  __attribute__((noinline, cold)) constexpr int from_end(int64_t k) const {
    if (k >= 0 || k < -rank_) detail::fail<IndexError>("shape: there is no entry ", k, " of ", rank_);
    return static_cast<int>(k) + rank_;
  }
  [[noreturn]] static void too_many(int64_t count) {
    detail::fail<ShapeError>("shape: ", count, " dimensions were given: a tensor has at most ", max_rank);
  }

  int64_t values_[max_rank];
  int rank_;
};

SITU_REPORTS void append_to(detail::MessageText& to, Shape const& shape) {
  to.add("[");
  for (int k = 0; k < shape.rank(); ++k) detail::add_to(to, k > 0 ? ", " : "", shape[k]);
  to.add("]");
}
SITU_REPORTS std::string to_string(Shape const& shape) { return detail::text(shape); }

/// Writes `[2, 3]`; works with any stream, so that no stream header is needed here.
template <detail::text_stream Stream, class S>
  requires std::is_same_v<S, Shape>  // and nothing that converts to a Shape
Stream& operator<<(Stream& stream, S const& shape) {
  std::string const text = to_string(shape);
  return detail::write_text(stream, text.data(), static_cast<std::ptrdiff_t>(text.size()));
}

namespace detail {

/// 0 where an extent of 0 follows a product that overflows; what else the plain product cannot say is an error.
SITU_NOINLINE inline int64_t count_of_unusual(Shape const& shape, char const* who) {
  bool empty = false;
  for (int64_t extent : shape) {
    if (extent < 0) fail<ShapeError>(who, ": shape ", shape, " has a negative extent: ", extent, "; sizes are 0 or more");
    empty = empty || extent == 0;
  }
  if (!empty) fail<ShapeError>(who, ": shape ", shape, " has more elements than can be addressed: the product of the sizes overflows");
  return 0;
}

/// The product of the extents. Throws ShapeError on a negative extent and when bytes would not fit 63 bits.
inline int64_t count_of(Shape const& shape, char const* who, int64_t element_size = 1) {
  int64_t count = 1;
  int64_t bytes = element_size;
  for (int64_t extent : shape) {
    if (SITU_UNLIKELY(extent < 0 || __builtin_mul_overflow(bytes, extent, &bytes))) return count_of_unusual(shape, who);
    count *= extent;
  }
  return count;
}

/// A product of extents of a checked shape, by one more of them. It may wrap where another extent is 0.
constexpr int64_t extended(int64_t count, int64_t extent) { return static_cast<int64_t>(static_cast<uint64_t>(count) * static_cast<uint64_t>(extent)); }

/// The product of the extents of a shape that has been checked.
constexpr int64_t product(Shape const& shape) {
  int64_t count = 1;
  for (int64_t extent : shape) count = extended(count, extent);
  return count;
}

/// An axis counted from the front. Throws AxisError when `shape` has no such axis.
inline int checked_axis(int64_t axis, int rank, Shape const& shape, char const* who) {
  if (axis < -rank || axis >= rank) {
    if (rank == 0) fail<AxisError>(who, ": axis ", axis, " is out of range for shape ", shape, ": it has no axes");
    fail<AxisError>(who, ": axis ", axis, " is out of range for shape ", shape, ": axes are ", -rank, " to ", rank - 1);
  }
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}

/// As checked_axis, but that a shape without axes counts as one of length 1, as in PyTorch: 0 and -1 give 0.
inline int line_axis(int64_t axis, Shape const& shape, char const* who) {
  if (shape.rank() == 0 && (axis == 0 || axis == -1)) return 0;
  return checked_axis(axis, shape.rank(), shape, who);
}

/// A shape without axes as one of length 1, others as they are.
inline Shape line_shape(Shape const& shape) { return shape.rank() == 0 ? Shape(1) : shape; }

/// The shape with the axes from `first` to `last` as one. Throws AxisError where an axis is out of range, ShapeError where the first one is behind the last.
SITU_NOINLINE inline Shape flattened(Shape const& shape, int64_t first, int64_t last) {
  Shape const from = line_shape(shape);
  int const begin = line_axis(first, shape, "flatten"), end = line_axis(last, shape, "flatten");
  if (begin > end) fail<ShapeError>("flatten: axis ", first, " is behind axis ", last, " in shape ", shape, "; the first of the axes to join comes first");
  Shape result = Shape::filled(from.rank() - (end - begin), 1), joined_axes = Shape::filled(end - begin + 1, 1);
  for (int k = begin; k <= end; ++k) joined_axes[k - begin] = from[k];
  int64_t const joined = count_of(joined_axes, "flatten");
  for (int k = 0; k < result.rank(); ++k) result[k] = k < begin ? from[k] : k == begin ? joined : from[k + end - begin];
  return result;
}

/// The axis as a set of bits: none for a shape without axes.
inline unsigned axis_bit(int64_t axis, Shape const& shape, char const* who) {
  unsigned const bit = 1u << line_axis(axis, shape, who);
  return shape.rank() == 0 ? 0 : bit;
}

/// NumPy broadcasting of two shapes. Throws ShapeError that names both.
inline Shape broadcast(Shape const& a, Shape const& b, char const* who) {
  if (SITU_LIKELY(a == b)) return a;
  int const rank = a.rank() > b.rank() ? a.rank() : b.rank();
  Shape result = Shape::filled(rank, 1);
  for (int k = 0; k < rank; ++k) {
    int const ka = k - (rank - a.rank()), kb = k - (rank - b.rank());
    int64_t const na = ka < 0 ? 1 : a[ka], nb = kb < 0 ? 1 : b[kb];
    if (na != nb && na != 1 && nb != 1) {
      fail<ShapeError>(who, ": shapes ", a, " and ", b, " do not broadcast: ", na, " != ", nb, " in dimension ", k);
    }
    result[k] = na == 1 ? nb : na;
  }
  count_of(result, who);
  return result;
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
