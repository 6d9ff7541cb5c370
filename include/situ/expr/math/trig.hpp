/// Trigonometric functions of numbers and of packs.
///
/// Float packs are computed in vectors: sine, cosine and tangent subtract multiples of π/2 exactly and evaluate minimax
/// polynomials; lanes beyond the reach of that subtraction go through the double functions of the C library, as double
/// packs do.
#pragma once


#include <situ/expr/math/basic.hpp>

namespace situ::inline SITU_ABI {
namespace math {

SITU_HOST_DEVICE inline float sin(float x) { return SITU_LIBM(sinf)(x); }
SITU_HOST_DEVICE inline double sin(double x) { return SITU_LIBM(sin)(x); }
SITU_HOST_DEVICE inline float cos(float x) { return SITU_LIBM(cosf)(x); }
SITU_HOST_DEVICE inline double cos(double x) { return SITU_LIBM(cos)(x); }
SITU_HOST_DEVICE inline float tan(float x) { return SITU_LIBM(tanf)(x); }
SITU_HOST_DEVICE inline double tan(double x) { return SITU_LIBM(tan)(x); }
SITU_HOST_DEVICE inline float asin(float x) { return SITU_LIBM(asinf)(x); }
SITU_HOST_DEVICE inline double asin(double x) { return SITU_LIBM(asin)(x); }
SITU_HOST_DEVICE inline float acos(float x) { return SITU_LIBM(acosf)(x); }
SITU_HOST_DEVICE inline double acos(double x) { return SITU_LIBM(acos)(x); }
SITU_HOST_DEVICE inline float atan(float x) { return SITU_LIBM(atanf)(x); }
SITU_HOST_DEVICE inline double atan(double x) { return SITU_LIBM(atan)(x); }
SITU_HOST_DEVICE inline float atan2(float y, float x) { return SITU_LIBM(atan2f)(y, x); }
SITU_HOST_DEVICE inline double atan2(double y, double x) { return SITU_LIBM(atan2)(y, x); }

namespace detail {

// keep_order stands around the first factor of a correction, a*b + c, where -ffast-math would take out c as a factor.

// The C library's double functions, lane by lane.
struct sin_lanes {
  static double value(double x) { return SITU_LIBM(sin)(x); }
  static float value(float x) { return static_cast<float>(SITU_LIBM(sin)(static_cast<double>(x))); }
};
struct cos_lanes {
  static double value(double x) { return SITU_LIBM(cos)(x); }
  static float value(float x) { return static_cast<float>(SITU_LIBM(cos)(static_cast<double>(x))); }
};
struct tan_lanes {
  static double value(double x) { return SITU_LIBM(tan)(x); }
  static float value(float x) { return static_cast<float>(SITU_LIBM(tan)(static_cast<double>(x))); }
};
struct asin_lanes {
  static double value(double x) { return SITU_LIBM(asin)(x); }
};
struct acos_lanes {
  static double value(double x) { return SITU_LIBM(acos)(x); }
};
struct atan_lanes {
  static double value(double x) { return SITU_LIBM(atan)(x); }
};
struct atan2_lanes {
  static double value(double y, double x) { return SITU_LIBM(atan2)(y, x); }
};

inline constexpr float half_pi = 0x1.921fb6p0f, half_pi_rest = -0x1.777a5cp-25f;

// Clang before 15 has no vector form of a fused product that it is sure to keep.
#if defined(__clang__) && __clang_major__ < 15
template <class Isa>
inline constexpr bool reduces_by_fma = false;
#else
template <class Isa>
inline constexpr bool reduces_by_fma = Isa::fma;
#endif

/// x = n·π/2 + high + low for 0 <= x <= reach, with |high| below 0.79 and the sum as precise as its size.
template <class Isa>
inline constexpr float quadrant_reach = reduces_by_fma<Isa> ? 100000.f : 6400.f;
template <int N, class Isa>
struct quadrant {
  pack<int32_t, N, Isa> n;  // its lowest bits only
  pack<float, N, Isa> high, low;
};

template <bool WithLow, int N, class Isa>
SITU_INLINE quadrant<N, Isa> reduce_to_quadrant(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  P const magic(round_magic<float>);
  P const shifted = keep_order(multiply_add(x, P(0x1.45f306p-1f), magic));
  P const n = keep_order(shifted - magic);
  quadrant<N, Isa> r;
  r.n = bitcast<int32_t>(shifted);
  r.low = P(0.f);
  if constexpr (reduces_by_fma<Isa>) {
    P const minus = P(-half_pi_rest), least = P(0x1.ee59dap-50f);
    P const first = fused(n, P(-half_pi), x);  // exact
    if constexpr (WithLow) {
      P const next = keep_order(n * minus);  // `first` is a multiple of its last digit: the sum is split exactly
      r.high = keep_order(first + next);
      r.low = keep_order(keep_order(first - r.high) + next) + fused(n, least, fused(n, minus, -next));
    } else {
      r.high = fused(n, least, fused(n, minus, first));
    }
  } else {
    // Three parts of π/2 so short that their products with n are exact.
    P const first = keep_order(x - keep_order(n * P(0x1.922p0f)));
    P const second = keep_order(first - keep_order(n * P(-0x1.2cp-18f)));
    P const third = keep_order(n * P(0x1.11p-26f)), fourth = keep_order(n * P(0x1.68c234p-39f));
    r.high = keep_order(second - third);
    r.low = keep_order(keep_order(second - r.high) - third) - fourth;
  }
  return r;
}

/// sin for Shift 0, cos for Shift 1, of x >= 0, without its sign for negative arguments.
template <int Shift, int N, class Isa>
SITU_INLINE pack<float, N, Isa> circular(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  using Ix = pack<int32_t, N, Isa>;
  constexpr bool with_low = !reduces_by_fma<Isa>;  // a fused reduction is rounded once and can do without
  quadrant<N, Isa> const q = reduce_to_quadrant<with_low>(x);
  P const z = q.high * q.high, third = keep_order(q.high * z), fourth = keep_order(z * z);
  P const p = horner(z, -0.000195114582f, 0.00833213329f, -0.166666538f);
  P const r = horner(z, 2.44287858e-05f, -0.0013887278f, 0.0416666456f);
  P const start = multiply_add(z, P(-0.5f), P(1.f));
  P sine, cosine;
  if constexpr (with_low) {
    sine = q.high + keep_order(third * p + q.low);
    cosine = start + keep_order(fourth * r - q.high * q.low);
  } else {
    sine = multiply_add(third, p, q.high);
    cosine = multiply_add(fourth, r, start);
  }
  Ix const n = q.n + Ix(Shift);
  P const value = select((n & Ix(1)) == Ix(0), sine, cosine);
  return flip_sign(value, bitcast<float>(n << 30));
}

/// The polynomial p of asin(s) = s + s³·p(s²), for z = s² <= 1/4.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> arcsine_of_half(pack<float, N, Isa> const& z) {
  return horner(z, 0.0421663076f, 0.0241795145f, 0.0454703756f, 0.0749529749f, 0.166667521f);
}

/// atan for 0 <= t <= 1.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> arctangent_of_one(pack<float, N, Isa> const& t) {
  pack<float, N, Isa> const z = t * t;
  return multiply_add(keep_order(t * z),
                      horner(z, -0.00179362227f, 0.0109146088f, -0.0311778504f, 0.0579576008f, -0.08403451f,
                             0.109521858f, -0.142642424f, 0.199985489f, -0.333332986f),
                      t);
}

}  // namespace detail

template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> sin(pack<float, N, Isa> const& x) {
  pack<float, N, Isa> const size = abs(x);
  pack<float, N, Isa> const r = detail::flip_sign(detail::circular<0>(size), x);
  auto const far = size > pack<float, N, Isa>(detail::quadrant_reach<Isa>);
  if (SITU_UNLIKELY(detail::any(far))) return detail::by_lane<detail::sin_lanes>(far, x, r);
  return r;
}
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> cos(pack<float, N, Isa> const& x) {
  pack<float, N, Isa> const size = abs(x);
  pack<float, N, Isa> const r = detail::circular<1>(size);
  auto const far = size > pack<float, N, Isa>(detail::quadrant_reach<Isa>);
  if (SITU_UNLIKELY(detail::any(far))) return detail::by_lane<detail::cos_lanes>(far, x, r);
  return r;
}

/// tan = t with t = tan(r) in even quadrants, -1/t in odd ones; the rounding error of t is carried along.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> tan(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  using Ix = pack<int32_t, N, Isa>;
  P const size = abs(x);
  auto const q = detail::reduce_to_quadrant<true>(size);
  P const z = q.high * q.high;
  P const p = detail::horner(z, 0.00444010738f, -3.70847592e-05f, 0.0109333824f, 0.0212454889f, 0.0540668294f,
                             0.133326039f, 0.333333522f);
  P const small = multiply_add(keep_order(q.high * z), p, multiply_add(q.low, z, q.low));
  P const t = keep_order(q.high + small);
  P const rest = small - keep_order(t - q.high);
  auto const even = (q.n & Ix(1)) == Ix(0);
  P const inverse = detail::quotient(P(-1.f), t);
  P r = select(even, t, multiply_add(inverse * inverse, rest, inverse));
  r = detail::flip_sign(r, x);
  auto const far = size > P(detail::quadrant_reach<Isa>);
  if (SITU_UNLIKELY(detail::any(far))) return detail::by_lane<detail::tan_lanes>(far, x, r);
  return r;
}

/// Beyond 1/2: asin x = π/2 - 2·asin √((1 - x)/2) = 2·(π/4 - asin √((1 - x)/2)).
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> asin(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  P const size = abs(x), half(0.5f);
  auto const large = size > half;
  P const z = select(large, (P(1.f) - size) * half, size * size);
  P const s = select(large, sqrt(z), size);
  P const third = keep_order(s * z), p = detail::arcsine_of_half(z);
  P const rest = keep_order(multiply_add(third, p, P(-0.5f * detail::half_pi_rest)));
  P const beyond = keep_order(P(0.5f * detail::half_pi) - s) - rest;
  return detail::flip_sign(select(large, beyond + beyond, multiply_add(third, p, s)), x);
}
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> acos(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  P const size = abs(x), half(0.5f);
  auto const large = size > half;
  P const z = select(large, (P(1.f) - size) * half, x * x);
  P const s = select(large, sqrt(z), x);
  P const p = multiply_add(keep_order(s * z), detail::arcsine_of_half(z), s);
  P const rest = P(detail::half_pi) - keep_order(p - P(detail::half_pi_rest));
  return select(large, P(2.f), P(1.f)) * select(x > half, p, rest);
}

/// Of the smaller over the larger of |y| and |x|, then moved to its octant.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> atan2(pack<float, N, Isa> const& y, pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  using Ix = pack<int32_t, N, Isa>;
  P const size_y = abs(y), size_x = abs(x), zero(0.f);
  auto const steep = size_y > size_x;
  P const over = select(steep, size_x, size_y), under = select(steep, size_y, size_x);
  P t = detail::quotient(over, under);
  t = select(over == under, select(under == zero, zero, P(1.f)), t);  // 0 / 0 and ∞ / ∞
  P p = detail::arctangent_of_one(t);
  auto const left = bitcast<int32_t>(x) < Ix(0);
  p = select(steep ^ left, -p, p);
  P const high = select(steep, P(detail::half_pi), select(left, P(2 * detail::half_pi), zero));
  P const low = select(steep, P(detail::half_pi_rest), select(left, P(2 * detail::half_pi_rest), zero));
  return detail::flip_sign(high + keep_order(p + low), y);
}
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> atan(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  P const size = abs(x), one(1.f);
  auto const steep = size > one;
  P const p = detail::arctangent_of_one(select(steep, detail::quotient(one, size), size));
  P const beyond = P(detail::half_pi) - keep_order(p - P(detail::half_pi_rest));
  return detail::flip_sign(select(steep, beyond, p), x);
}

template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> sin(pack<double, N, Isa> const& x) {
  return detail::every_lane<detail::sin_lanes>(x);
}
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> cos(pack<double, N, Isa> const& x) {
  return detail::every_lane<detail::cos_lanes>(x);
}
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> tan(pack<double, N, Isa> const& x) {
  return detail::every_lane<detail::tan_lanes>(x);
}
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> asin(pack<double, N, Isa> const& x) {
  return detail::every_lane<detail::asin_lanes>(x);
}
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> acos(pack<double, N, Isa> const& x) {
  return detail::every_lane<detail::acos_lanes>(x);
}
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> atan(pack<double, N, Isa> const& x) {
  return detail::every_lane<detail::atan_lanes>(x);
}
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> atan2(pack<double, N, Isa> const& y, pack<double, N, Isa> const& x) {
  return detail::every_lane<detail::atan2_lanes>(y, x);
}

}  // namespace math
}  // namespace situ::inline SITU_ABI
