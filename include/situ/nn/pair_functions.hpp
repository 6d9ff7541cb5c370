/// Losses of pairs of elements and their slopes, from one definition for packs, for CUDA's threads, and for lanes that record.
#pragma once

#include <situ/expr/recorded_lanes.hpp>

#if defined(__CUDACC__)
#pragma nv_diagnostic push
#pragma nv_diag_suppress 186, 20011, 20012, 20013, 20014, 20015
#endif

namespace situ::inline SITU_ABI {
namespace detail::losses {

using situ::select;

/// -1, 0 or 1; NaN stays.
template <class X>
SITU_HOST_DEVICE SITU_INLINE X sign_of(X const& d) {
  if constexpr (recording_lanes<X>) {
    return math::sign(d);
  } else {
    X const zero(0), one(1);
    return select(d > zero, one, select(d < zero, -one, d));
  }
}
/// 1 / (1 + exp(-x)) and log(1 + exp(-x)), of which e = exp(-|x|) is known: without overflow.
template <class X>
SITU_HOST_DEVICE SITU_INLINE X sigmoid_of(X const& x, X const& e) {
  if constexpr (recording_lanes<X>) {
    return math::sigmoid(x);
  } else {
    X const one(1), zero(0);
    return select(x < zero, e, one) / (one + e);
  }
}
template <class X>
SITU_HOST_DEVICE SITU_INLINE X softplus_of_negative(X const& x, X const& e) {
  if constexpr (recording_lanes<X>) {
    return math::softplus(-x);
  } else {
    X const zero(0);
    return math::log1p(e) + select(x < zero, -x, zero);
  }
}

/// (x - y)²
struct mse {
  static constexpr char const *name = "mse_loss", *node = "MseLoss";
  static constexpr bool weighs = false;
  template <class X>
  SITU_HOST_DEVICE SITU_INLINE static X value(X const& x, X const& y, X const&, X const&) {
    X const d = x - y;
    return d * d;
  }
  template <class X>
  SITU_HOST_DEVICE SITU_INLINE static void slopes(X const& x, X const& y, X const&, X const&, X& dx, X& dy) {
    X const d = x - y;
    dx = d + d;
    dy = -dx;
  }
};

/// |x - y|; slope 0 where they are equal.
struct l1 {
  static constexpr char const *name = "l1_loss", *node = "L1Loss";
  static constexpr bool weighs = false;
  template <class X>
  SITU_HOST_DEVICE SITU_INLINE static X value(X const& x, X const& y, X const&, X const&) {
    return math::abs(x - y);
  }
  template <class X>
  SITU_HOST_DEVICE SITU_INLINE static void slopes(X const& x, X const& y, X const&, X const&, X& dx, X& dy) {
    dx = sign_of(X(x - y));
    dy = -dx;
  }
};

/// (x - y)² / (2 beta) below beta, |x - y| - beta / 2 from there on. `beta` comes in a's place.
struct smooth_l1 {
  static constexpr char const *name = "smooth_l1_loss", *node = "SmoothL1Loss";
  static constexpr bool weighs = false;
  template <class X>
  SITU_HOST_DEVICE SITU_INLINE static X value(X const& x, X const& y, X const& beta, X const&) {
    X const z = math::abs(x - y), half(0.5f);
    return select(z < beta, X(half * z * z / beta), X(z - half * beta));
  }
  template <class X>
  SITU_HOST_DEVICE SITU_INLINE static void slopes(X const& x, X const& y, X const& beta, X const&, X& dx, X& dy) {
    X const d = x - y;
    if constexpr (recording_lanes<X>) {  // 1 / 0 is no slope of what is not chosen
      X const zero(0), one(1);
      dx = select(math::abs(d) < beta, X(d / select(beta > zero, beta, one)), sign_of(d));
    } else {
      dx = select(math::abs(d) < beta, X(d / beta), sign_of(d));
    }
    dy = -dx;
  }
};

/// a ((1 - y) x + (1 + (b - 1) y) log(1 + exp(-x))), without overflow.
struct bce_with_logits {
  static constexpr char const *name = "binary_cross_entropy_with_logits", *node = "BinaryCrossEntropyWithLogits";
  static constexpr bool weighs = true;
  template <class X>
  SITU_HOST_DEVICE SITU_INLINE static X value(X const& x, X const& y, X const& a, X const& b) {
    X const one(1);
    return a * ((one - y) * x + (one + (b - one) * y) * softplus_of_negative(x, X(math::exp(-math::abs(x)))));
  }
  template <class X>
  SITU_HOST_DEVICE SITU_INLINE static void slopes(X const& x, X const& y, X const& a, X const& b, X& dx, X& dy) {
    X const one(1), e = math::exp(-math::abs(x)), t = b * y;
    dx = a * ((t + (one - y)) * sigmoid_of(x, e) - t);
    dy = a * ((b - one) * softplus_of_negative(x, e) - x);
  }
  /// Of x alone.
  template <class X>
  SITU_HOST_DEVICE SITU_INLINE static X slope(X const& x, X const& y, X const& a, X const& b) {
    X const one(1), e = math::exp(-math::abs(x)), t = b * y;
    return a * ((t + (one - y)) * sigmoid_of(x, e) - t);
  }
};

/// y (log y - x), 0 for y = 0.
struct kl_div {
  static constexpr char const *name = "kl_div", *node = "KlDiv";
  static constexpr bool weighs = false;
  template <class X>
  SITU_HOST_DEVICE SITU_INLINE static X value(X const& x, X const& y, X const&, X const&) {
    X const zero(0);
    return select(y == zero, zero, X(y * math::log(y))) - y * x;
  }
  template <class X>
  SITU_HOST_DEVICE SITU_INLINE static void slopes(X const& x, X const& y, X const&, X const&, X& dx, X& dy) {
    dx = -y;
    dy = math::log(y) + X(1) - x;
  }
  template <class X>
  SITU_HOST_DEVICE SITU_INLINE static X slope(X const&, X const& y, X const&, X const&) {
    return -y;
  }
};
/// exp(y) (y - x).
struct kl_div_log {
  static constexpr char const *name = "kl_div", *node = "KlDiv";
  static constexpr bool weighs = false;
  template <class X>
  SITU_HOST_DEVICE SITU_INLINE static X value(X const& x, X const& y, X const&, X const&) {
    return math::exp(y) * (y - x);
  }
  template <class X>
  SITU_HOST_DEVICE SITU_INLINE static void slopes(X const& x, X const& y, X const&, X const&, X& dx, X& dy) {
    X const e = math::exp(y);
    dx = -e;
    dy = e * (y - x + X(1));
  }
};

/// The slope of x alone, where that takes less.
template <class Kind, class X>
SITU_HOST_DEVICE SITU_INLINE X slope_of_x(X const& x, X const& y, X const& a, X const& b) {
  if constexpr (requires { Kind::slope(x, y, a, b); }) {
    return Kind::slope(x, y, a, b);
  } else {
    X dx(0), dy(0);
    Kind::slopes(x, y, a, b, dx, dy);
    return dx;
  }
}

}  // namespace detail::losses
}  // namespace situ::inline SITU_ABI

#if defined(__CUDACC__)
#pragma nv_diagnostic pop
#endif
