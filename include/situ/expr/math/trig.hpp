/// Trigonometric functions of numbers and of packs.
///
/// Packs are computed in vectors: sine, cosine and tangent subtract multiples of π/2 exactly and evaluate minimax
/// polynomials; lanes beyond the reach of that subtraction, which are rare, are reduced one by one in integers.
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

__extension__ typedef unsigned __int128 uint128;
__extension__ typedef __int128 int128;

/// x = n·π/2 + high + low for any x from 1024 on, |high| below 0.79; a NaN of an infinity.
struct far_angle {
  uint64_t n;  // modulo 4
  double high, low;
};

/// The product of x with those bits of 2/π that matter, in integers: multiples of 4 quadrants are left out on one side, and what is 2^-137 of one
/// on the other.
///
/// Source    Payne and Hanek, Radian reduction for trigonometric functions, SIGNUM Newsletter 18 (1983).
SITU_NOINLINE inline far_angle reduce_far(double x) {
  static constexpr uint64_t two_over_pi[20] = {  // 64 bits before the point, which are 0, then the others
    0x0000000000000000, 0xa2f9836e4e441529, 0xfc2757d1f534ddc0, 0xdb6295993c439041, 0xfe5163abdebbc561,
    0xb7246e3a424dd2e0, 0x06492eea09d1921c, 0xfe1deb1cb129a73e, 0xe88235f52ebb4484, 0xe99c7026b45f7e41,
    0x3991d639835339f4, 0x9c845f8bbdf9283b, 0x1ff897ffde05980f, 0xef2f118b5a0a6d1f, 0x6d367ecf27cb09b7,
    0x4f463f669e5fea2d, 0x7527bac7ebe5f17b, 0x3d0739f78a5292ea, 0x6bfb5fb11f8d5d08, 0x56033046fc7b6bab};
  uint64_t const bits = situ::detail::bits_to<uint64_t>(x), mantissa = (bits & 0x000fffffffffffff) | 0x0010000000000000;
  int const exponent = static_cast<int>(bits >> 52);
  if (exponent == 0x7ff) return {0, situ::detail::bits_to<double>(uint64_t{0x7ff8000000000000}), 0.0};
  int const first = exponent - 1013, word = first / 64, shift = first % 64;  // x is mantissa · 2^(exponent - 1075)
  auto const part = [&](int k) {
    uint64_t const upper = two_over_pi[word + k] << shift;
    return shift == 0 ? upper : upper | two_over_pi[word + k + 1] >> (64 - shift);
  };
  uint128 const least = uint128(mantissa) * part(2), middle = uint128(mantissa) * part(1) + (least >> 64);
  uint64_t const top = mantissa * part(0) + static_cast<uint64_t>(middle >> 64);
  // Two bits of quadrants, and 190 of a part of one, of which 128 do.
  uint128 rest = (uint128(top) << 64 | static_cast<uint64_t>(middle)) << 2 | static_cast<uint64_t>(least) >> 62;
  bool const beyond = top >> 61 & 1;  // half a quadrant: nearer to the next one
  if (beyond) rest = -rest;
  constexpr uint64_t quarter_pi = 0xc90fdaa22168c234, quarter_pi_rest = 0xc4c6628b80dc1cd1;
  auto const upper = static_cast<uint64_t>(rest >> 64), lower = static_cast<uint64_t>(rest);
  uint128 const angle = uint128(upper) * quarter_pi + (uint128(upper) * quarter_pi_rest >> 64) + (uint128(lower) * quarter_pi >> 64);
  double const sign = beyond ? -0x1p-127 : 0x1p-127, high = static_cast<double>(angle);
  double const low = static_cast<double>(static_cast<int128>(angle - static_cast<uint128>(high)));
  return {(top >> 62) + beyond, sign * high, sign * low};
}

// Parts of that, for single lanes.
struct far_number {
  template <class T>
  static T value(T x) {
    return situ::detail::bits_to<T>(static_cast<bits_of<T>>(reduce_far(static_cast<double>(x)).n));
  }
};
struct far_high {
  template <class T>
  static T value(T x) {
    return static_cast<T>(reduce_far(static_cast<double>(x)).high);
  }
};
struct far_low {
  static double value(double x) { return reduce_far(x).low; }
  static float value(float x) {
    far_angle const angle = reduce_far(static_cast<double>(x));
    return static_cast<float>(angle.high - static_cast<double>(static_cast<float>(angle.high)) + angle.low);
  }
};

/// π/2 as the sum of two numbers.
template <class T>
inline constexpr T half_pi = sizeof(T) == 4 ? T(0x1.921fb6p0) : T(0x1.921fb54442d18p0);
template <class T>
inline constexpr T half_pi_rest = sizeof(T) == 4 ? T(-0x1.777a5cp-25) : T(0x1.1a62633145c07p-54);

// Clang before 15 has no vector form of a fused product that it is sure to keep.
#if defined(__clang__) && __clang_major__ < 15
template <class Isa>
inline constexpr bool reduces_by_fma = false;
#else
template <class Isa>
inline constexpr bool reduces_by_fma = Isa::fma;
#endif

/// x = n·π/2 + high + low for x >= 0, with |high| below 0.79 and the sum as precise as its size: in vectors up to the reach.
///
/// Source    the reduction is that of Cody and Waite, Software Manual for the Elementary Functions (1980), by three or four parts of π/2.
template <class T, class Isa>
inline constexpr T quadrant_reach = sizeof(T) == 4 ? (reduces_by_fma<Isa> ? T(100000) : T(6400))
                                                   : (reduces_by_fma<Isa> ? T(0x1p40) : T(0x1.9p20));
template <class T, int N, class Isa>
struct quadrant {
  pack<bits_of<T>, N, Isa> n;  // its lowest bits only
  pack<T, N, Isa> high, low;
};

template <bool WithLow, class T, int N, class Isa>
SITU_INLINE quadrant<T, N, Isa> reduce_to_quadrant(pack<T, N, Isa> const& x) {
  using P = pack<T, N, Isa>;
  constexpr bool narrow = sizeof(T) == 4;
  P const magic(round_magic<T>);
  P const shifted = keep_order(multiply_add(x, P(narrow ? T(0x1.45f306p-1) : T(0x1.45f306dc9c883p-1)), magic));
  P const n = keep_order(shifted - magic);
  quadrant<T, N, Isa> r;
  r.n = bitcast<bits_of<T>>(shifted);
  r.low = P(T(0));
  if constexpr (reduces_by_fma<Isa>) {
    P const minus(-half_pi_rest<T>), least(narrow ? T(0x1.ee59dap-50) : T(0x1.f1976b7ed8fbcp-110));
    P const first = fused(n, P(-half_pi<T>), x);  // exact
    if constexpr (WithLow) {
      P const next = keep_order(n * minus);  // `first` is a multiple of its last digit: the sum is split exactly
      r.high = keep_order(first + next);
      r.low = keep_order(keep_order(first - r.high) + next) + fused(n, least, fused(n, minus, -next));
    } else {
      r.high = fused(n, least, fused(n, minus, first));
    }
  } else {
    // Three parts of π/2 so short that their products with n are exact.
    constexpr T part1 = narrow ? T(0x1.922p0) : T(0x1.921fb544p0), part2 = narrow ? T(-0x1.2cp-18) : T(0x1.0b462p-34);
    constexpr T part3 = narrow ? T(0x1.11p-26) : T(-0x1.cb3b399ep-55);
    constexpr T part4 = narrow ? T(0x1.68c234p-39) : T(0x1.1701b839a252p-88);
    P const first = keep_order(x - keep_order(n * P(part1)));
    P const second = keep_order(first - keep_order(n * P(part2)));
    P const third = keep_order(n * P(part3)), fourth = keep_order(n * P(part4));
    r.high = keep_order(second - third);
    r.low = keep_order(keep_order(second - r.high) - third) - fourth;
  }
  auto const far = x > P(quadrant_reach<T, Isa>);
  if (SITU_UNLIKELY(any(far))) {
    r.n = bitcast<bits_of<T>>(by_lane<far_number>(far, x, bitcast<T>(r.n)));
    r.high = by_lane<far_high>(far, x, r.high);
    if constexpr (WithLow) r.low = by_lane<far_low>(far, x, r.low);
  }
  return r;
}

/// Where n is even. SSE2 compares no integers of 64 bits: 1 and the number after it stand for them.
template <class T, int N, class Isa>
SITU_INLINE auto even_lanes(pack<bits_of<T>, N, Isa> const& n) {
  using Ix = pack<bits_of<T>, N, Isa>;
  if constexpr (sizeof(T) == 4) return (n & Ix(1)) == Ix(0);
  else return bitcast<T>((n & Ix(1)) | Ix(0x3ff0000000000000)) == pack<T, N, Isa>(T(1));
}

/// The minimax polynomials p of sin(r) = r + r³·p(r²), cos(r) = 1 - r²/2 + r⁴·p(r²) and tan(r) = r + r³·p(r²), for
/// z = r² < 0.62.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> sine_rest(pack<float, N, Isa> const& z) {
  return horner(z, -0.000195114582f, 0.00833213329f, -0.166666538f);
}
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> sine_rest(pack<double, N, Isa> const& z) {
  return horner_in_two(z, 1.5895357365916575e-10, -2.5050733216982092e-08, 2.7557313532213567e-06,
                       -0.00019841269829344702, 0.00833333333332183, -0.1666666666666663);
}
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> cosine_rest(pack<float, N, Isa> const& z) {
  return horner(z, 2.44287858e-05f, -0.0013887278f, 0.0416666456f);
}
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> cosine_rest(pack<double, N, Isa> const& z) {
  return horner_in_two(z, -1.1358757743086315e-11, 2.0875705542850076e-09, -2.755731421796057e-07, 2.48015872890045e-05,
                       -0.0013888888888873344, 0.041666666666666595);
}
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> tangent_rest(pack<float, N, Isa> const& z) {
  return horner(z, 0.00444010738f, -3.70847592e-05f, 0.0109333824f, 0.0212454889f, 0.0540668294f, 0.133326039f,
                0.333333522f);
}
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> tangent_rest(pack<double, N, Isa> const& z) {
  return horner_in_two(z, 2.08578756609067e-05, -4.4853430327281064e-05, 8.94078606695996e-05, -2.6335632883896997e-05,
                       0.00013648781778817515, 0.00022239927469109466, 0.0005950576406366233, 0.0014547598053991778,
                       0.0035922887455236397, 0.008863219205522181, 0.021869489605658897, 0.05396825392683208,
                       0.133333333334142, 0.3333333333333278);
}

/// sin for Shift 0, cos for Shift 1, of x >= 0, without its sign for negative arguments.
template <int Shift, class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> circular(pack<T, N, Isa> const& x) {
  using P = pack<T, N, Isa>;
  using Ix = pack<bits_of<T>, N, Isa>;
  constexpr bool with_low = !reduces_by_fma<Isa>;  // a fused reduction is rounded once and can do without
  quadrant<T, N, Isa> const q = reduce_to_quadrant<with_low>(x);
  P const z = q.high * q.high, third = keep_order(q.high * z), fourth = keep_order(z * z);
  P const p = sine_rest(z), r = cosine_rest(z);
  P const start = multiply_add(z, P(T(-0.5)), P(T(1)));
  P sine, cosine;
  if constexpr (with_low) {
    sine = q.high + keep_order(third * p + q.low);
    cosine = start + keep_order(fourth * r - q.high * q.low);
  } else {
    sine = multiply_add(third, p, q.high);
    cosine = multiply_add(fourth, r, start);
  }
  Ix const n = q.n + Ix(Shift);
  P const value = select(even_lanes<T>(n), sine, cosine);
  return flip_sign(value, bitcast<T>(n << (static_cast<int>(sizeof(T)) * 8 - 2)));
}

/// Where the sign is set, also that of a zero.
template <class T, int N, class Isa>
SITU_INLINE auto negative_lanes(pack<T, N, Isa> const& x) {
  using Ix = pack<bits_of<T>, N, Isa>;
  if constexpr (sizeof(T) == 4) return bitcast<int32_t>(x) < Ix(0);
  else return flip_sign(pack<T, N, Isa>(T(1)), x) < pack<T, N, Isa>(T(0));
}

/// The polynomial p of asin(s) = s + s³·p(s²), for z = s² <= 1/4.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> arcsine_of_half(pack<float, N, Isa> const& z) {
  return horner(z, 0.0421663076f, 0.0241795145f, 0.0454703756f, 0.0749529749f, 0.166667521f);
}

template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> arcsine_of_half(pack<double, N, Isa> const& z) {
  return horner_in_two(z, 0.03191407951709055, -0.016226351417089814, 0.019529216674833573, 0.006527786992480451,
                       0.012169212990080157, 0.013885242719600663, 0.01735970313886764, 0.022371758228658993,
                       0.030381959126001848, 0.04464285682869474, 0.0750000000033645, 0.1666666666666541);
}

/// The polynomial p of atan(t) = t + t³·p(t²), for z = t² <= 1.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> arctangent_rest(pack<float, N, Isa> const& z) {
  return horner(z, -0.00179362227f, 0.0109146088f, -0.0311778504f, 0.0579576008f, -0.08403451f, 0.109521858f, -0.142642424f,
                0.199985489f, -0.333332986f);
}
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> arctangent_rest(pack<double, N, Isa> const& z) {
  // In halves, not in even and odd powers, which at 1 would nearly cancel.
  auto const high = horner(z, 1.3169130233995496e-05, -0.00015163126951208084, 0.0008290110166250626,
                           -0.0028787560674574096, 0.0071852759166516145, -0.01388576266042524,
                           0.021970281986499356, -0.029892942630157876, 0.03663563719515988,
                           -0.04218902123285354, 0.047222290595014906, -0.052534950133916215);
  auto const low = horner(z, 0.05880523472976772, -0.06666403502895353, 0.07692279795575409, -0.09090907001643131,
                          0.11111111007110785, -0.14285714282584586, 0.1999999999995176, -0.3333333333333307);
  auto const fourth = (z * z) * (z * z);
  return multiply_add(keep_order(fourth * fourth), high, low);
}
/// atan for 0 <= t <= 1.
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> arctangent_of_one(pack<T, N, Isa> const& t) {
  pack<T, N, Isa> const z = t * t;
  return multiply_add(keep_order(t * z), arctangent_rest(z), t);
}

}  // namespace detail

template <class T, int N, class Isa>
  requires std::is_floating_point_v<T>
SITU_INLINE pack<T, N, Isa> sin(pack<T, N, Isa> const& x) {
  return detail::flip_sign(detail::circular<0>(abs(x)), x);
}
template <class T, int N, class Isa>
  requires std::is_floating_point_v<T>
SITU_INLINE pack<T, N, Isa> cos(pack<T, N, Isa> const& x) {
  return detail::circular<1>(abs(x));
}

/// tan = t with t = tan(r) in even quadrants, -1/t in odd ones; the rounding error of t is carried along.
template <class T, int N, class Isa>
  requires std::is_floating_point_v<T>
SITU_INLINE pack<T, N, Isa> tan(pack<T, N, Isa> const& x) {
  using P = pack<T, N, Isa>;
  P const size = abs(x);
  auto const q = detail::reduce_to_quadrant<true>(size);
  P const z = q.high * q.high;
  P const small = multiply_add(keep_order(q.high * z), detail::tangent_rest(z), multiply_add(q.low, z, q.low));
  P const t = keep_order(q.high + small);
  P const rest = small - keep_order(t - q.high);
  P const inverse = detail::quotient(P(T(-1)), t);
  P const r = select(detail::even_lanes<T>(q.n), t, multiply_add(inverse * inverse, rest, inverse));
  return detail::flip_sign(r, x);
}

/// Beyond 1/2: asin x = π/2 - 2·asin √((1 - x)/2) = 2·(π/4 - asin √((1 - x)/2)).
template <class T, int N, class Isa>
  requires std::is_floating_point_v<T>
SITU_INLINE pack<T, N, Isa> asin(pack<T, N, Isa> const& x) {
  using P = pack<T, N, Isa>;
  P const size = abs(x), half(T(0.5));
  auto const large = size > half;
  P const z = select(large, (P(T(1)) - size) * half, size * size);
  P const s = select(large, sqrt(z), size);
  P const third = keep_order(s * z), p = detail::arcsine_of_half(z);
  P const rest = keep_order(multiply_add(third, p, P(T(-0.5) * detail::half_pi_rest<T>)));
  P const start = keep_order(P(T(0.5) * detail::half_pi<T>) - s);
  P beyond = start - rest;
  if constexpr (sizeof(T) == 8) beyond = start - keep_order(rest - keep_order(keep_order(P(0.5 * detail::half_pi<T>) - start) - s));
  return detail::flip_sign(select(large, beyond + beyond, multiply_add(third, p, s)), x);
}
template <class T, int N, class Isa>
  requires std::is_floating_point_v<T>
SITU_INLINE pack<T, N, Isa> acos(pack<T, N, Isa> const& x) {
  using P = pack<T, N, Isa>;
  P const size = abs(x), half(T(0.5));
  auto const large = size > half;
  P const z = select(large, (P(T(1)) - size) * half, x * x);
  P const s = select(large, sqrt(z), x);
  P const p = multiply_add(keep_order(s * z), detail::arcsine_of_half(z), s);
  P const rest = P(detail::half_pi<T>) - keep_order(p - P(detail::half_pi_rest<T>));
  return select(large, P(T(2)), P(T(1))) * select(x > half, p, rest);
}

/// Of the smaller over the larger of |y| and |x|, then moved to its octant.
template <class T, int N, class Isa>
  requires std::is_floating_point_v<T>
SITU_INLINE pack<T, N, Isa> atan2(pack<T, N, Isa> const& y, pack<T, N, Isa> const& x) {
  using P = pack<T, N, Isa>;
  P const size_y = abs(y), size_x = abs(x), zero(T(0)), one(T(1));
  auto const steep = size_y > size_x;
  P const over = select(steep, size_x, size_y), under = select(steep, size_y, size_x);
  P t = detail::quotient(over, under);
  t = select(over == under, select(under == zero, zero, one), t);  // 0 / 0 and ∞ / ∞
  P const p = detail::flip_sign(detail::arctangent_of_one(t), select(steep, -x, x));
  auto const left = detail::negative_lanes(x);
  P const high = select(steep, P(detail::half_pi<T>), select(left, P(2 * detail::half_pi<T>), zero));
  P const low = select(steep, P(detail::half_pi_rest<T>), select(left, P(2 * detail::half_pi_rest<T>), zero));
  P const r = detail::flip_sign(high + keep_order(p + low), y);
#if defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__
  return select(isnan(x), x, select(isnan(y), y, r));  // the selections above may have become extremes, which lose them
#else
  return r;
#endif
}
template <class T, int N, class Isa>
  requires std::is_floating_point_v<T>
SITU_INLINE pack<T, N, Isa> atan(pack<T, N, Isa> const& x) {
  using P = pack<T, N, Isa>;
  P const size = abs(x), one(T(1));
  auto const steep = size > one;
  P const p = detail::arctangent_of_one(select(steep, detail::quotient(one, size), size));
  P const beyond = P(detail::half_pi<T>) - keep_order(p - P(detail::half_pi_rest<T>));
  return detail::flip_sign(select(steep, beyond, p), x);
}

}  // namespace math
}  // namespace situ::inline SITU_ABI
