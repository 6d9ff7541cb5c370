/// The shape that a formula carries.
#pragma once

#include <utility>

#include <situ/core/block_pool.hpp>
#include <situ/core/shape.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// A shape that formulas share.
struct SharedShape {
  Shape shape;
  int64_t holders = 1;

  static void* operator new(std::size_t bytes) { return take_block(bytes); }
  static void operator delete(void* block) noexcept { give_block(block); }
};

/// The shape of a formula: that of a tensor in it while all of them have the same, else one of its own.
class CommonShape {
 public:
  /// `leaf` is held by a tensor of the formula, wherever the formula is moved.
  explicit CommonShape(Shape const* leaf) noexcept : shape_(leaf) {}
  // Nothing here takes the address of a formula: the compiler then keeps what is between two operators in registers.
  CommonShape(CommonShape const& other) noexcept : shape_(other.shape_), own_(other.own_) {
    if (SITU_UNLIKELY(own_ != nullptr)) hold(own_);
  }
  CommonShape(CommonShape&& other) noexcept : shape_(other.shape_), own_(std::exchange(other.own_, nullptr)) {}
  CommonShape& operator=(CommonShape other) noexcept {
    std::swap(shape_, other.shape_);
    std::swap(own_, other.own_);
    return *this;
  }
  ~CommonShape() {
    if (SITU_UNLIKELY(own_ != nullptr)) drop(own_);
  }

  Shape const& get() const { return *shape_; }
  /// That of all tensors; a null pointer where something is broadcast.
  Shape const* leaf() const { return SITU_LIKELY(own_ == nullptr) ? shape_ : nullptr; }
  /// Whether nothing is broadcast.
  bool uniform() const { return own_ == nullptr; }

  /// The shapes of operands, broadcast; a null pointer is that of a constant. Throws ShapeError that names two of them.
  __attribute__((cold)) static SITU_NOINLINE CommonShape broadcast(Shape const* const* operands, int count, char const* who) {
    Shape result;
    for (int k = 0; k < count; ++k) {
      if (operands[k]) result = k == 0 ? *operands[k] : detail::broadcast(result, *operands[k], who);
    }
    return CommonShape(new SharedShape{result});
  }

 private:
  explicit CommonShape(SharedShape* own) noexcept : shape_(&own->shape), own_(own) {}
  __attribute__((cold)) static SITU_NOINLINE void hold(SharedShape* own) noexcept { __atomic_fetch_add(&own->holders, 1, __ATOMIC_RELAXED); }
  __attribute__((cold)) static SITU_NOINLINE void drop(SharedShape* own) noexcept {
    if (__atomic_fetch_sub(&own->holders, 1, __ATOMIC_ACQ_REL) == 1) delete own;
  }

  Shape const* shape_;
  SharedShape* own_ = nullptr;  ///< what shape_ lies in, where no tensor has it
};

}  // namespace detail
}  // namespace situ::inline SITU_ABI
