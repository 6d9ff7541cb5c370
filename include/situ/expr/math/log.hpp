/// log, log2, log10 and log1p of packs and numbers.
#pragma once

#include <situ/expr/math/piecewise.hpp>

namespace situ::inline SITU_ABI {
namespace math {

// Numbers: libm on the host, CUDA's own functions on a device.
SITU_HOST_DEVICE inline float log(float x) { return SITU_LIBM(logf)(x); }
SITU_HOST_DEVICE inline double log(double x) { return SITU_LIBM(log)(x); }
SITU_HOST_DEVICE inline float log2(float x) { return SITU_LIBM(log2f)(x); }
SITU_HOST_DEVICE inline double log2(double x) { return SITU_LIBM(log2)(x); }
SITU_HOST_DEVICE inline float log10(float x) { return SITU_LIBM(log10f)(x); }
SITU_HOST_DEVICE inline double log10(double x) { return SITU_LIBM(log10)(x); }
SITU_HOST_DEVICE inline float log1p(float x) { return SITU_LIBM(log1pf)(x); }
SITU_HOST_DEVICE inline double log1p(double x) { return SITU_LIBM(log1p)(x); }

namespace detail {

#if defined(__CUDA_ARCH__)
/// log(1 + t) / log(base) to 18 bits, for 16-bit floats, x = 1 + t and unit = 1 / log(base): by a polynomial for |t| < 1/16, where the logarithm that a
/// GPU has would lose too much.
__device__ inline float log_of_narrow(float t, float x, float unit) {
  float const near = t * ::fmaf(::fmaf(::fmaf(-0.250816315f, t, 0.334116638f), t, -0.499999195f), t, 0.999999642f);
  return unit * (::fabsf(t) < 0.0625f ? near : 0.693147181f * ::__log2f(x));
}
#endif

/// x = 2^e (1 + f), −1/4 <= f < 1/2. Where `special` is set, some lane is no positive normal number: such lanes hold
/// what they need for the answer to be right (has_avx512), or `log_special` puts it right.
template <class P>
struct log_parts {
  P f, e;
  bool special;
};

#if SITU_MATH_X86_ASM
/// x = 2^e m, 3/4 <= m < 3/2. e = ±inf and NaN come out of these instructions as the logarithm needs them.
template <class P>
struct scientific {
  P m, e;
};
template <int N, class Isa>
SITU_INLINE scientific<pack<float, N, Isa>> mantissa_and_exponent(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  auto const v = x.v;
  typename P::vector m, e;
  __asm__("vgetmantps {$11, %1, %0|%0, %1, 11}" : "=v"(m) : "v"(v));
  __asm__("vgetexpps {%1, %0|%0, %1}" : "=v"(e) : "v"(v));
  P const mantissa(m), exponent(e), one(1.0f);
  return {mantissa, select(mantissa < one, exponent + one, exponent)};
}
#endif

template <int N, class Isa>
SITU_INLINE log_parts<pack<float, N, Isa>> split_log(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  using Ix = pack<int32_t, N, Isa>;
#if SITU_MATH_X86_ASM
  if constexpr (has_avx512<float, N, Isa>) {
    auto const [m, e] = mantissa_and_exponent(x);
    return {m - P(1.0f), e, false};
  }
#endif
  Ix bits = bitcast<int32_t>(x);
  bool const special = any(bits + Ix(0x7f800000) > Ix(-0x01000001));  // positive normal numbers become the least integers
  if (SITU_UNLIKELY(special)) bits = select(bits < Ix(0x00800000), bitcast<int32_t>(x * 8388608.0f) - Ix(23 << 23), bits);
  Ix const from = bits - Ix(0x3f400000);
  P const f = bitcast<float>(bits - (from & Ix(-0x00800000))) - P(1.0f);
  return {f, convert_unchecked<float>(from >> 23), special};
}

/// y with the logarithms of 0, of inf, of negative numbers and of NaN put right.
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> log_special(pack<T, N, Isa> const& x, pack<T, N, Isa> const& y) {
  using P = pack<T, N, Isa>;
  P const zero(T(0)), infinity(std::numeric_limits<T>::infinity()), nan(std::numeric_limits<T>::quiet_NaN());
  P const above = select(x > zero, select(x < infinity, y, x), select(x < zero, nan, x));
  return select(x == zero, -infinity, above);
}

/// log(1 + f) − f;  log(1 + f) = f − f²/2 + f³ p(f), p erring by 2^-27.6 of the whole.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> log_rest(pack<float, N, Isa> const& f) {
  using P = pack<float, N, Isa>;
  P const u = f * f;
  P const high = by_pairs(f, u, -0.0450761728f, 0.104631938f, -0.13161242f, 0.14478381f, -0.166473061f, 0.199908614f, -0.250000954f);
  return u * multiply_add(u, high, multiply_add(f, P(0.333334506f), P(-0.5f)));
}

/// e log 2 + log(1 + f). The float nearest to log 2 is within 2^-28.4 of it: that does where the product is not rounded.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> join_log(pack<float, N, Isa> const& f, pack<float, N, Isa> const& e) {
  using P = pack<float, N, Isa>;
  if constexpr (Isa::fma && !has_avx512<float, N, Isa>) {
    return fused(e, P(0.693147182f), f + log_rest(f));
  } else {  // the product with the upper part of log 2 is exact
    P const rest = multiply_add(e, P(1.42860677e-06f), log_rest(f));
    return multiply_add(e, P(0.693145751953125f), keep_order(f + rest));
  }
}

/// a + b + c log(1 + f), for a = 0 or |a| > c |log(1 + f)|. c is given as c1 + c2, where c1 has 12 digits.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> join_scaled_log(pack<float, N, Isa> const& f, pack<float, N, Isa> const& a,
                                                pack<float, N, Isa> const& b, float c1, float c2, float c) {
  using P = pack<float, N, Isa>;
  P const f1 = upper_half(f), f2 = keep_order(f - f1);
  auto const [high, lost] = fast_two_sum(a, keep_order(f1 * c1));
  P const low = multiply_add(f1, P(c2), multiply_add(f2 + log_rest(f), P(c), b));
  P const y = high + keep_order(keep_order(lost) + low);
  // The parts of 0, inf, a negative number and NaN: a or f tells, but inf − inf has spoilt y.
  if constexpr (has_avx512<float, N, Isa>) return select(magnitude(a) < P(1000.0f), y, a + f);
  return y;
}

/// For m in [3/4, 3/2), by k = round(16 m), at k mod 16: a number close to 16/k, and the negative of its logarithm, which is
/// within 2^-34 of a multiple of 2^-17.
struct log_table {
  alignas(64) float inverse[16];
  alignas(64) float log[16];
};
inline constexpr log_table log_pieces{
    {1.0f, 0.94219804f, 0.88983244f, 0.8423222f, 0.8002678f, 0.76497954f, 0.7278798f, 0.69387513f, 0.6634757f, 0.0f, 0.0f,
     0.0f, 1.33066f, 1.2286048f, 1.1477572f, 1.0719025f},
    {0.0f, 0.059539795f, 0.11672211f, 0.17159271f, 0.22280884f, 0.2679062f, 0.31761932f, 0.36546326f, 0.41026306f, 0.0f,
     0.0f, 0.0f, -0.28567505f, -0.20587921f, -0.13780975f, -0.06943512f}};

#if SITU_MATH_X86_ASM
/// log(x) for every x, where numbers can be looked up in registers.
///
///     x = 2^e m,   r = m c − 1,   log(x) = (e log 2 − log(c)) + log(1 + r),   |r| < 0.0402,   c = 1 for m near 1
///
/// log 2 is split so that the first sum is exact; the polynomial errs by 2^-29.6 of log(1 + r).
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> log_by_table(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  auto const [m, e] = mantissa_and_exponent(x);
  auto const index = bitcast<int32_t>(keep_order(m + P(round_magic<float> / 16)));
  P const r = fused<sign::plus, sign::minus>(m, look_up(index, log_pieces.inverse), P(1.0f));
  P const whole = fused(e, P(0.693145751953125f), look_up(index, log_pieces.log));
  P const u = r * r;
  P const a = fused(r, P(0.33333325f), P(-0.49999985f));
  P const p = fused(u, fused(r, P(0.20024663f), P(-0.2503525f)), a);
  return whole + fused(e, P(1.42860677e-06f), fused(u, p, r));
}
#endif

struct scalar_log {
  static double value(double x) { return math::log(x); }
};
struct scalar_log2 {
  static double value(double x) { return math::log2(x); }
};
struct scalar_log10 {
  static double value(double x) { return math::log10(x); }
};
struct scalar_log1p {
  static double value(double x) { return math::log1p(x); }
};

}  // namespace detail

/// Natural logarithm.
///
/// Special   log(±0) = −inf, log(inf) = inf, of a negative number NaN, NaN stays.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> log(pack<float, N, Isa> const& x) {
#if SITU_MATH_X86_ASM
  if constexpr (detail::has_avx512<float, N, Isa>) return detail::log_by_table(x);
#endif
  auto const [f, e, special] = detail::split_log(x);
  pack<float, N, Isa> const y = detail::join_log(f, e);
  if (SITU_UNLIKELY(special)) return detail::log_special(x, y);
  return y;
}

/// Logarithm to base 2; exact at powers of two.
///
/// Special   as log.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> log2(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  auto const [f, e, special] = detail::split_log(x);
  P const y = detail::join_scaled_log(f, e, P(0.0f), 1.4423828125f, 0.000312228396f, 1.44269502f);
  if (SITU_UNLIKELY(special)) return detail::log_special(x, y);
  return y;
}

/// Logarithm to base 10.
///
/// Special   as log.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> log10(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  auto const [f, e, special] = detail::split_log(x);
  P const y = detail::join_scaled_log(f, e * 0.301025390625f, e * 4.60503907e-06f, 0.4342041015625f, 9.03803375e-05f,
                                      0.434294492f);
  if (SITU_UNLIKELY(special)) return detail::log_special(x, y);
  return y;
}

/// log(1 + x), accurate near 0.
///
///     1 + x = 2^e m,   f = m − 1 = 2^-e x + (2^-e − 1)
///
/// Special   log1p(±0) = ±0, log1p(−1) = −inf, log1p(inf) = inf, below −1 NaN, NaN stays.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> log1p(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  using Ix = pack<int32_t, N, Isa>;
  P const one(1.0f), infinity(std::numeric_limits<float>::infinity());
  Ix const from = bitcast<int32_t>(keep_order(x + one)) - Ix(0x3f400000);
  P const e = convert_unchecked<float>(from >> 23);
  P const m = bitcast<float>((from & Ix(0x007fffff)) + Ix(0x3f400000)) - one;
  P const s = detail::power_of_two(-e);
  P const f = select(e > P(60.0f), m, multiply_add(s, x, keep_order(s - one)));
  P y = detail::join_log(f, e);
  y = select(x == P(0.0f), x, y);
  if (SITU_UNLIKELY(detail::any(select(x > -one, x, infinity) >= infinity))) {
    P const nan(std::numeric_limits<float>::quiet_NaN());
    y = select(x > -one, select(x < infinity, y, x), select(x < -one, nan, x));
    y = select(x == -one, -infinity, y);
  }
  return y;
}

namespace detail {

/// x = 2^e (1 + f), −0.293 <= f < 0.415, for positive normal x.
template <int N, class Isa>
SITU_INLINE log_parts<pack<double, N, Isa>> split_log(pack<double, N, Isa> const& x) {
  using P = pack<double, N, Isa>;
  using Ix = pack<int64_t, N, Isa>;
  using U = pack<uint64_t, N, Isa>;
  constexpr int64_t low = 0x3fe6a09e00000000;  // just below sqrt(1/2)
  Ix const from = bitcast<int64_t>(x) + Ix(0x3ff0000000000000 - low);
  P const biased = bitcast<double>((bitcast<uint64_t>(from) >> 52) | U(0x4330000000000000));  // 2^52 + exponent
  P const e = keep_order(biased) - 4503599627371519.0;
  P const f = keep_order(bitcast<double>((from & Ix(0x000fffffffffffff)) + Ix(low)) - 1.0);
  return {f, e, false};
}

/// log(1 + f) = f − (half_square − product);  f²/2 and s (f²/2 + R(s²)) + c, s = f / (2 + f).
template <class P>
struct log_terms {
  P half_square, product;
};
template <int N, class Isa>
SITU_INLINE log_terms<pack<double, N, Isa>> terms_of_log(pack<double, N, Isa> const& f, pack<double, N, Isa> const& c) {
  using P = pack<double, N, Isa>;
  P const s = divide(f, f + 2.0);
  P const z = s * s, w = z * z;
  P const odd = horner(w, 1.531383769920937332e-01, 2.222219843214978396e-01, 3.999999999940941908e-01);
  P const even = horner(w, 1.479819860510658591e-01, 1.818357216161805012e-01, 2.857142874366239149e-01,
                        6.666666666666735130e-01);
  P const r = multiply_add(z, even, w * odd);
  P const half_square = keep_order(f * f * 0.5);
  return {half_square, keep_order(multiply_add(s, half_square + r, c))};
}

/// e log 2 + log(1 + f) + c.
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> join_log(pack<double, N, Isa> const& f, pack<double, N, Isa> const& e,
                                          pack<double, N, Isa> const& c) {
  using P = pack<double, N, Isa>;
  auto const [half_square, product] = terms_of_log(f, multiply_add(e, P(1.90821492927058770002e-10), c));
  P const rest = keep_order(half_square - product);
  return multiply_add(e, P(6.93147180369123816490e-01), -keep_order(rest - f));
}

/// a + b + c log(1 + f), for a = 0 or |a| > c |log(1 + f)|. c is given as c1 + c2, where c1 has 26 digits.
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> join_scaled_log(pack<double, N, Isa> const& f, pack<double, N, Isa> const& a,
                                                 pack<double, N, Isa> const& b, double c1, double c2, double c) {
  using P = pack<double, N, Isa>;
  auto const [half_square, product] = terms_of_log(f, P(0.0));
  P const f1 = upper_half(keep_order(f - half_square));
  P const f2 = keep_order(keep_order(f - f1) - half_square) + product;
  auto const [high, lost] = fast_two_sum(a, keep_order(f1 * c1));
  return high + keep_order(keep_order(lost) + multiply_add(f1, P(c2), multiply_add(f2, P(c), b)));
}

/// log(1 + x + low), for −1 < x < 2^1000, where x and low, which x lost in rounding, are not close to −1.
///
///     1 + x = 2^e m,   f = m − 1 = 2^-e x + (2^-e − 1)
template <bool WithLow, int N, class Isa>
SITU_INLINE pack<double, N, Isa> log1p_of(pack<double, N, Isa> const& x, pack<double, N, Isa> const& low) {
  using P = pack<double, N, Isa>;
  P const one(1.0);
  P const e = split_log(keep_order(x + one)).e, s = power_of_two(-e);
  P const f = multiply_add(s, x, keep_order(s - one));
  if constexpr (WithLow) return join_log(f, e, keep_order(s * low) * (one - f));
  else return join_log(f, e, P(0.0));
}

/// y, with F::value(x) where x is no positive normal number.
template <class F, int N, class Isa>
SITU_INLINE pack<double, N, Isa> where_normal(pack<double, N, Isa> const& x, pack<double, N, Isa> const& y) {
  return by_lane_outside<F>(x, std::numeric_limits<double>::min(), std::numeric_limits<double>::max(), x, y);
}

}  // namespace detail

/// In double:
///
///     f = m − 1 in [−0.293, 0.414],   s = f / (2 + f),   log(1 + f) = f − (f²/2 − s (f²/2 + R(s²)))
///
/// Cost      lanes that are 0, denormal, negative, infinite or NaN go through libm.
/// Source    the scheme and the coefficients of R are those of log in FreeBSD's msun, e_log.c (Sun Microsystems 1993).
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> log(pack<double, N, Isa> const& x) {
  auto const [f, e, special] = detail::split_log(x);
  return detail::where_normal<detail::scalar_log>(x, detail::join_log(f, e, pack<double, N, Isa>(0.0)));
}
/// f − f²/2 is cut in two, so that its upper part times that of the factor is exact, as in e_log2.c and e_log10.c.
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> log2(pack<double, N, Isa> const& x) {
  using P = pack<double, N, Isa>;
  auto const [f, e, special] = detail::split_log(x);
  return detail::where_normal<detail::scalar_log2>(
      x, detail::join_scaled_log(f, e, P(0.0), 1.4426950514316559, -1.0542692476429138e-08, 1.4426950408889634));
}
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> log10(pack<double, N, Isa> const& x) {
  auto const [f, e, special] = detail::split_log(x);
  return detail::where_normal<detail::scalar_log10>(
      x, detail::join_scaled_log(f, e * 0.3010299956640665, e * -8.532344317057107e-14, 0.4342944845557213,
                                 -2.6524694553078553e-09, 0.4342944819032518));
}
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> log1p(pack<double, N, Isa> const& x) {
  using P = pack<double, N, Isa>;
  P const y = select(x == P(0.0), x, detail::log1p_of<false>(x, x));
  return detail::by_lane_outside<detail::scalar_log1p>(x, -0x1.fffffffffffffp-1, 0x1p1000, x, y);
}

}  // namespace math
}  // namespace situ::inline SITU_ABI
