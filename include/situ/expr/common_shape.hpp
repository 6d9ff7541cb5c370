/// The shape that a formula carries.
#pragma once

#include <situ/core/shape.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// The shape of a formula: that of a tensor in it while all of them have the same, else one of its own.
class CommonShape {
 public:
  /// `leaf` is held by a tensor of the formula, wherever the formula is moved.
  explicit CommonShape(Shape const* leaf) noexcept : shape_(leaf) {}
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // own_ is set where shape_ is null, which g++ does not always see
#endif
  // Nothing here takes the address of a formula: the compiler then keeps what is between two operators in registers.
  CommonShape(CommonShape const& other) noexcept : shape_(other.shape_) {
    if (SITU_UNLIKELY(!shape_)) own_ = other.own_;
  }
  CommonShape& operator=(CommonShape const& other) noexcept {
    shape_ = other.shape_;
    if (SITU_UNLIKELY(!shape_)) own_ = other.own_;
    return *this;
  }
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
  Shape const& get() const { return SITU_LIKELY(shape_ != nullptr) ? *shape_ : own_; }
  /// That of all tensors; a null pointer where something is broadcast.
  Shape const* leaf() const { return shape_; }
  /// Whether nothing is broadcast.
  bool uniform() const { return shape_ != nullptr; }

  /// The shapes of operands, broadcast. Throws ShapeError that names two of them.
  static SITU_NOINLINE CommonShape broadcast(Shape const* operands, int count, char const* who) {
    CommonShape result(nullptr);
    result.own_ = operands[0];
    for (int k = 1; k < count; ++k) result.own_ = detail::broadcast(result.own_, operands[k], who);
    return result;
  }

 private:
  Shape const* shape_;  ///< a null pointer: its own
  union {
    Shape own_;
  };
};

}  // namespace detail
}  // namespace situ::inline SITU_ABI
