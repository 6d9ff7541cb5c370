/// Braces that hold values: Tensor<float>{{1, 2}, {3, 4}}.
#pragma once

#include <initializer_list>

#include <situ/core/shape.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// Throws TypeError for an integer that T cannot hold: a number that is written as an element is one.
template <class T, class S>
constexpr S const& fitting(S const& value, [[maybe_unused]] char const* who) {
  if constexpr (std::is_integral_v<T>) {
    using Limits = std::numeric_limits<T>;
    if (side_of<T>(value) != 0) fail<TypeError>(who, ": ", value, " is no ", dtype_name<T>(), ": these are ", static_cast<int64_t>(Limits::min()), " to ", static_cast<int64_t>(Limits::max()),
                                         "; take a wider element type");
  }
  return value;
}

/// A number, or a list of the same; lives as long as the braces it was written with.
template <class T>
class Nested {
 public:
  template <number U>
  constexpr Nested(U value) : value_(convert_scalar<T>(fitting<T>(value, "Tensor"))) {}
  constexpr Nested(std::initializer_list<Nested> list) : list_(list), count_(static_cast<int64_t>(list.size())) {}

  constexpr bool is_list() const { return count_ >= 0; }

  /// Writes the extents from `axis` on, taken from the first element of every list.
  void measure(Shape& shape) const {
    if (!is_list()) return;
    shape.push_back(count_);
    if (count_ > 0) list_.begin()->measure(shape);
  }

  /// Writes the values in row-major order; throws ShapeError unless every list has the extent of its axis.
  T* copy_to(T* to, Shape const& shape, int axis) const {
    if (is_list() != (axis < shape.rank()) || (is_list() && count_ != shape[axis])) {
      if (!is_list() || axis >= shape.rank()) fail<ShapeError>("Tensor: the braces are ragged: numbers and lists stand side by side at depth ", axis);
      fail<ShapeError>("Tensor: the braces are ragged: ", count_, count_ == 1 ? " element stands where " : " elements stand where ", shape[axis],
                       shape[axis] == 1 ? " is" : " are", " needed, in dimension ", axis);
    }
    if (!is_list()) {
      *to = value_;
      return to + 1;
    }
    for (int64_t k = 0; k < count_; ++k) to = list_.begin()[k].copy_to(to, shape, axis + 1);
    return to;
  }

 private:
  T value_{};
  std::initializer_list<Nested> list_;
  int64_t count_ = -1;
};

}  // namespace detail
}  // namespace situ::inline SITU_ABI
