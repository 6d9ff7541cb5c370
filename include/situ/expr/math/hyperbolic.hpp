/// Hyperbolic functions of numbers and of packs, without `tanh`.
///
/// Packs are computed in vectors from an exponential or a logarithm that carries its low part, near zero some by minimax
/// polynomials.
#pragma once


#include <situ/expr/math/basic.hpp>
#include <situ/expr/math/exp.hpp>
#include <situ/expr/math/log.hpp>

namespace situ::inline SITU_ABI {
namespace math {

SITU_HOST_DEVICE inline double sinh(double x) { return SITU_LIBM(sinh)(x); }
SITU_HOST_DEVICE inline double cosh(double x) { return SITU_LIBM(cosh)(x); }
SITU_HOST_DEVICE inline double asinh(double x) { return SITU_LIBM(asinh)(x); }
SITU_HOST_DEVICE inline double acosh(double x) { return SITU_LIBM(acosh)(x); }
SITU_HOST_DEVICE inline double atanh(double x) { return SITU_LIBM(atanh)(x); }
// The C library's float forms are less accurate than its double forms, rounded.
#if defined(__CUDA_ARCH__)
SITU_HOST_DEVICE inline float sinh(float x) { return SITU_LIBM(sinhf)(x); }
SITU_HOST_DEVICE inline float cosh(float x) { return SITU_LIBM(coshf)(x); }
SITU_HOST_DEVICE inline float asinh(float x) { return SITU_LIBM(asinhf)(x); }
SITU_HOST_DEVICE inline float acosh(float x) { return SITU_LIBM(acoshf)(x); }
SITU_HOST_DEVICE inline float atanh(float x) { return SITU_LIBM(atanhf)(x); }
#else
SITU_HOST_DEVICE inline float sinh(float x) { return static_cast<float>(SITU_LIBM(sinh)(static_cast<double>(x))); }
SITU_HOST_DEVICE inline float cosh(float x) { return static_cast<float>(SITU_LIBM(cosh)(static_cast<double>(x))); }
SITU_HOST_DEVICE inline float asinh(float x) { return static_cast<float>(SITU_LIBM(asinh)(static_cast<double>(x))); }
SITU_HOST_DEVICE inline float acosh(float x) { return static_cast<float>(SITU_LIBM(acosh)(static_cast<double>(x))); }
SITU_HOST_DEVICE inline float atanh(float x) { return static_cast<float>(SITU_LIBM(atanh)(static_cast<double>(x))); }
#endif

namespace detail {

struct asinh_lanes {
  static double value(double x) { return SITU_LIBM(asinh)(x); }
};
struct acosh_lanes {
  static double value(double x) { return SITU_LIBM(acosh)(x); }
};
struct atanh_lanes {
  static double value(double x) { return SITU_LIBM(atanh)(x); }
};

/// exp(x)/4 as high + low for 0 <= x <= 89.6, a quarter so that it never overflows before the result does.
template <int N, class Isa>
SITU_INLINE two<pack<float, N, Isa>> quarter_exp(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  P const n = round_small(x * P(0x1.715476p0f));
  P const coarse = keep_order(x - keep_order(n * P(0x1.62e4p-1f)));  // exact: the constant has 15 bits
  P const r = keep_order(coarse - n * P(0x1.7f7d1cp-20f));
  P const p =
      multiply_add(keep_order(r * r), horner(r, 0.00139506313f, 0.00836896989f, 0.0416662022f, 0.166665182f, 0.5f), r);
  two<P> const e = fast_two_sum(P(1.f), p);
  P const scale = power_of_two(n - P(2.f));
  return {e.hi * scale, e.lo * scale};
}

template <int N, class Isa>
SITU_INLINE two<pack<double, N, Isa>> quarter_exp(pack<double, N, Isa> const& x) {
  using P = pack<double, N, Isa>;
  auto const [t, n] = split_exp(x);
  two<P> const e = fast_two_sum(P(1.0), t);
  P const scale = power_of_two(n - P(2.0));
  return {e.hi * scale, e.lo * scale};
}

/// The minimax polynomial p of sinh(x) = x + x³·p(x²), for z = x² < 1.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> sinh_rest(pack<float, N, Isa> const& z) {
  return horner(z, 2.81695134e-06f, 0.000198361595f, 0.0083333496f, 0.166666672f);
}
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> sinh_rest(pack<double, N, Isa> const& z) {
  return horner_in_two(z, 7.776468110184546e-13, 1.6056662387835633e-10, 2.5052130970713866e-08, 2.755731910685866e-06,
                       0.0001984126984159328, 0.008333333333332912, 0.16666666666666669);
}
/// Where sinh and cosh have overflowed.
template <class T>
inline constexpr T hyperbolic_end = sizeof(T) == 4 ? T(89.6f) : T(710.5);

/// log(high + low) + n·log 2 for positive normal high below 2^127 and |low| at most half an ulp of it.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> log_of_two(pack<float, N, Isa> const& high, pack<float, N, Isa> const& low,
                                           pack<float, N, Isa> const& n) {
  using P = pack<float, N, Isa>;
  using Ix = pack<int32_t, N, Isa>;
  Ix const bits = bitcast<int32_t>(high);
  Ix const exponent = (bits - Ix(0x3f3504f3)) >> 23;
  P const m = bitcast<float>(bits - (exponent << 23));  // between √½ and √2
  P const scale = bitcast<float>((Ix(127) - exponent) << 23);
  two<P> const f = fast_two_sum(keep_order(m - P(1.f)), keep_order(low * scale));
  P const k = convert_unchecked<float>(exponent) + n;
  P const square = f.hi * f.hi;
  P const p = horner(f.hi, -0.0763632208f, 0.127636597f, -0.131604999f, 0.14201504f, -0.166233018f, 0.200012356f,
                     -0.250008225f, 0.333333313f);
  P const tail = multiply_add(square * f.hi, p, multiply_add(k, P(0x1.7f7d1cp-20f), f.lo));
  P const rest = multiply_add(square, P(-0.5f), tail);
  // k · log 2 to 15 bits is exact, and is zero or larger than the high part.
  P const whole = keep_order(k * P(0x1.62e4p-1f));
  two<P> const s = fast_two_sum(whole, f.hi);
  return s.hi + keep_order(s.lo + rest);
}

}  // namespace detail

template <class T, int N, class Isa>
  requires std::is_floating_point_v<T>
SITU_INLINE pack<T, N, Isa> sinh(pack<T, N, Isa> const& x) {
  using P = pack<T, N, Isa>;
  P const size = abs(x), z = size * size;
  P const near = multiply_add(keep_order(size * z), detail::sinh_rest(z), size);
  auto const e = detail::quarter_exp(detail::at_most(size, detail::hyperbolic_end<T>));
  P const inverse = detail::quotient(P(T(0.0625)), e.hi);
  P const far = keep_order(e.hi + keep_order(e.lo - inverse)) * P(T(2));
  return detail::flip_sign(select(size < P(T(1)), near, far), x);
}
template <class T, int N, class Isa>
  requires std::is_floating_point_v<T>
SITU_INLINE pack<T, N, Isa> cosh(pack<T, N, Isa> const& x) {
  using P = pack<T, N, Isa>;
  auto const e = detail::quarter_exp(detail::at_most(abs(x), detail::hyperbolic_end<T>));
  P const inverse = detail::quotient(P(T(0.0625)), e.hi);
  return keep_order(e.hi + keep_order(e.lo + inverse)) * P(T(2));
}

/// log(x + √(x² + 1)) with x + √(x² + 1) = 1 + (x + x²/(1 + √(x² + 1))); log(2x) for large x.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> asinh(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  P const size = abs(x), zero(0.f), one(1.f);
  auto const large = size > P(0x1p13f);
  P const moderate = select(large, one, size), z = moderate * moderate;
  P const p = detail::horner(z, -0.0132375266f, 0.0281691235f, -0.0443845168f, 0.0749865249f, -0.166666433f);
  P const near = multiply_add(keep_order(moderate * z), p, moderate);
  P const more = keep_order(detail::quotient(z, one + sqrt(z + one)));
  auto const sum = detail::fast_two_sum(moderate, more);
  auto const argument = detail::two_sum(one, sum.hi);
  P const far = detail::log_of_two(select(large, size * P(0.25f), argument.hi),
                                   select(large, zero, argument.lo + sum.lo), select(large, P(3.f), zero));
  P const r = select(size < P(0.5f), near, far);
  return detail::flip_sign(select(isfinite(size), r, size), x);
}

/// log(1 + (t + √(t·(t + 2)))) with t = x - 1; log(2x) for large x.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> acosh(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  P const zero(0.f), one(1.f), two(2.f);
  auto const large = x > P(0x1p13f);
  P const t = keep_order(select(large, one, x) - one);
  P const root = sqrt(t * keep_order(t + two));
  auto const sum = detail::fast_two_sum(root, t);
  auto const argument = detail::two_sum(one, sum.hi);
  P const r = detail::log_of_two(select(large, x * P(0.25f), argument.hi), select(large, zero, argument.lo + sum.lo),
                                 select(large, P(3.f), zero));
  return select(x < one, detail::not_a_number<float, N, Isa>(), select(isfinite(x), r, x));
}

/// Beyond 1/2: half of log((1 + x)/(1 - x)).
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> atanh(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  P const size = abs(x), z = size * size, zero(0.f), one(1.f), half(0.5f);
  P const near = multiply_add(
      keep_order(size * z),
      detail::horner(z, 0.1766911f, 0.0513582975f, 0.118237287f, 0.14222762f, 0.200025186f, 0.333333015f), size);
  P const argument = detail::quotient(one + size, one - size);
  P r = select(size < half, near, half * detail::log_of_two(argument, zero, zero));
  r = select(size == one, detail::infinite<float, N, Isa>(), r);
  r = select(size > one, detail::not_a_number<float, N, Isa>(), r);
  return detail::flip_sign(select(isnan(size), size, r), x);
}

/// In double, log1p with the low part of its argument:
///
///     asinh x = log1p(x + x²/(1 + √(x² + 1))),   acosh x = log1p(t + √(t² + 2t)),   atanh x = log1p(2x + 2x·x/(1 - x))/2
///
/// Cost      lanes beyond 2^500, or where the result is infinite or NaN, go through libm.
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> asinh(pack<double, N, Isa> const& x) {
  using P = pack<double, N, Isa>;
  P const size = abs(x), z = size * size, one(1.0);
  P const more = keep_order(detail::quotient(z, one + sqrt(z + one)));
  auto const sum = detail::fast_two_sum(size, more);
  P const r = detail::flip_sign(detail::log1p_of<true>(sum.hi, sum.lo), x);
  return detail::by_lane_outside<detail::asinh_lanes>(size, 0.0, 0x1p500, x, r);
}
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> acosh(pack<double, N, Isa> const& x) {
  using P = pack<double, N, Isa>;
  P const t = x - P(1.0);
  P const root = sqrt(multiply_add(t, t, keep_order(t + t)));
  auto const sum = detail::fast_two_sum(root, t);
  return detail::by_lane_outside<detail::acosh_lanes>(x, 1.0, 0x1p500, x, detail::log1p_of<true>(sum.hi, sum.lo));
}
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> atanh(pack<double, N, Isa> const& x) {
  using P = pack<double, N, Isa>;
  P const size = abs(x), twice = keep_order(size + size);
  P const more = keep_order(detail::quotient(keep_order(twice * size), P(1.0) - size));
  auto const sum = detail::fast_two_sum(twice, more);
  P const r = detail::flip_sign(detail::log1p_of<true>(sum.hi, sum.lo) * 0.5, x);
  return detail::by_lane_outside<detail::atanh_lanes>(size, 0.0, 0x1.fffffffffffffp-1, x, r);
}

}  // namespace math
}  // namespace situ::inline SITU_ABI
