/// pow of packs and numbers.
#pragma once

#include <situ/expr/math/basic.hpp>
#include <situ/expr/math/detail.hpp>
#include <situ/expr/math/exp.hpp>
#include <situ/expr/math/log.hpp>

namespace situ::inline SITU_ABI {
namespace math {

// Numbers: libm on the host, CUDA's own functions on a device.
SITU_HOST_DEVICE inline float pow(float x, float y) { return SITU_LIBM(powf)(x, y); }
SITU_HOST_DEVICE inline double pow(double x, double y) { return SITU_LIBM(pow)(x, y); }

namespace detail {

struct scalar_pow {
  static float value(float x, float y) { return math::pow(x, y); }
  static double value(double x, double y) { return math::pow(x, y); }
};

/// The parts of x^y = 2^n (1 + t), computed in double; x is positive and normal.
///
///     log2 x = e + s w(s²),   s = (m − 1) / (m + 1),   x = 2^e m,   w erring by 2^-45
template <int N, class Isa>
struct pow_parts {
  pack<double, N, Isa> r, n;
};
template <int N, class Isa>
SITU_INLINE pow_parts<N, Isa> split_pow(pack<double, N, Isa> const& m, pack<double, N, Isa> const& e,
                                        pack<double, N, Isa> const& y) {
  using P = pack<double, N, Isa>;
  P const one(1.0);
  P const s = divide(m - one, m + one);
  P const w = horner(s * s, 0.2829086468850141, 0.31990513478741683, 0.4122092652538879, 0.5770779422462297,
                     0.961796694113718, 2.88539008177785);
  P const z = y * multiply_add(s, w, e);
  P const limited = select(z > P(200.0), P(200.0), select(z < P(-200.0), P(-200.0), z));
  P const n = round_small(limited);
  return {limited - n, n};
}

/// The exponents 1, 2, 3, 4, -1 and 1/2, whose powers are products, a quotient or a root: twice the number, or 0 for all others. Most of those are told by
/// one look: few digits stand behind the points of these.
template <class T>
SITU_INLINE int simple_exponent(T n) {
  using Bits = situ::detail::unsigned_of_size<T>;
  if (SITU_LIKELY((situ::detail::bits_to<Bits>(n) & ((Bits(1) << (std::numeric_limits<T>::digits - 2)) - 1)) != 0 || !(n >= T(-1) && n <= T(4)))) return 0;
  int const twice = static_cast<int>(n + n);
  bool const known = twice > 0 ? (0b101010110u >> twice & 1u) != 0 : twice == -2;
  return known && T(twice) == n + n ? twice : 0;
}
/// The power of all lanes to such a one; at most two roundings behind each other are in it.
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> simple_power(pack<T, N, Isa> const& x, int twice) {
  using P = pack<T, N, Isa>;
  if (twice == 4) return x * x;
  if (twice == 6) return x * x * x;
  if (twice == 2) return x;
  if (twice == -2) return P(T(1)) / x;
  if (twice == 1) {
    P const infinity(std::numeric_limits<T>::infinity());
    return select(x == -infinity, infinity, math::sqrt(x) + P(T(0)));  // of -0 it is 0
  }
  P const square = x * x;
  return square * square;
}

}  // namespace detail

/// xʸ.
///
///     2^(y log2 x), the logarithm and its product with y in double
///
/// Special   as C99: pow(x, ±0) = 1, pow(1, y) = 1, a negative x with a whole y has its sign, with another y is NaN.
/// Cost      where all of a pack's lanes have one of the exponents 1, 2, 3, 4, -1 and 1/2, a product, quotient or root. Elsewhere lanes where x is not positive
///           and normal, or y is 0, infinite or NaN, go through libm.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> pow(pack<float, N, Isa> const& x, pack<float, N, Isa> const& y) {
  using P = pack<float, N, Isa>;
  using Ix = pack<int32_t, N, Isa>;
  int const simple = detail::simple_exponent(y[0]);
  if (SITU_UNLIKELY(simple != 0) && !detail::any(y != P(y[0]))) return detail::simple_power(x, simple);
  // x = 2^e m with m in [0.707, 1.414].
  Ix const bits = bitcast<int32_t>(x);
  Ix const from = bits - Ix(0x3f3504f3);
  P const m = bitcast<float>((from & Ix(0x007fffff)) + Ix(0x3f3504f3));
  P const e = convert_unchecked<float>(from >> 23);
  P r, n;
  if constexpr (N * 8 <= Isa::bytes) {
    auto const parts = detail::split_pow(convert_unchecked<double>(m), convert_unchecked<double>(e),
                                         convert_unchecked<double>(y));
    r = convert_unchecked<float>(parts.r);
    n = convert_unchecked<float>(parts.n);
  } else {
    auto const lower = detail::split_pow(detail::widen_lower(m), detail::widen_lower(e), detail::widen_lower(y));
    auto const upper = detail::split_pow(detail::widen_upper(m), detail::widen_upper(e), detail::widen_upper(y));
    r = detail::narrow(lower.r, upper.r);
    n = detail::narrow(lower.n, upper.n);
  }
  P const q = detail::horner(r, 0.000154698646f, 0.00134101545f, 0.00961802993f, 0.0555029698f, 0.240226507f,
                             0.693147242f);
  P const z = detail::scale(multiply_add(r, q, P(1.0f)), n);
  // One comparison finds the lanes that libm must do: x outside [2^-126, inf), or y outside ±[2^-126, inf).
  P const infinity(std::numeric_limits<float>::infinity()), least(std::numeric_limits<float>::min());
  P const a = detail::magnitude(y);
  P const x_class = select(x < infinity, x, -infinity);
  P const y_class = select(a < infinity, a, -infinity);
  auto const special = select(x_class < least, x_class, y_class) < least;
  if (SITU_UNLIKELY(detail::any(special))) return detail::by_lane<detail::scalar_pow>(special, x, y, z);
  return z;
}

namespace detail {
/// log(x) = hi + lo to 2^-66 of itself, for positive normal x. Only where Isa::fma.
///
///     x = 2^e (1 + f),   s = f / (2 + f),   log(x) = e log 2 + 2 (s + s³ (1/3 + s² r(s²)))
///
/// All but r is carried to twice the precision; r errs by 2^-73 of the whole.
template <int N, class Isa>
SITU_INLINE two<pack<double, N, Isa>> log_in_two(pack<double, N, Isa> const& x) {
  using P = pack<double, N, Isa>;
  auto const [f, e, special] = split_log(x);
  P const d = keep_order(f + 2.0), lost = f - keep_order(d - 2.0), inverse = divide(P(1.0), d);
  P const s = keep_order(f * inverse), s_low = keep_order(fused<sign::minus>(s, d, f) - s * lost) * inverse;
  auto const [z, z_lost] = two_prod(s, s);
  P const z_low = multiply_add(s + s, s_low, z_lost);
  P const r = horner_in_two(z, 0.05990884851557379, 0.05837889473779088, 0.06668132287444031, 0.07692279213462684,
                            0.09090909422004852, 0.11111111108894836, 0.1428571428572192, 0.1999999999999999);
  auto const [w, w_lost] = fast_two_sum(P(0.3333333333333333), keep_order(z * r));
  auto const [v, v_lost] = two_prod(z, w);
  P const v_low = multiply_add(z, w_lost + 1.850371707708594e-17, multiply_add(z_low, w, v_lost));
  auto const [u, u_lost] = two_prod(s, v);
  auto const [h, h_lost] = fast_two_sum(s, u);
  P const h_low = keep_order(h_lost) + (s_low + multiply_add(s, v_low, multiply_add(s_low, v, u_lost)));
  auto const [a, a_lost] = fast_two_sum(keep_order(e * 6.93147180369123816490e-01), keep_order(h + h));
  return fast_two_sum(a, keep_order(keep_order(a_lost) + multiply_add(e, P(1.90821492927058770002e-10), h_low + h_low)));
}
}  // namespace detail

/// In double e^(y log x), the logarithm and its product with y to twice the precision.
///
/// Cost      as in float; where products are not fused, all lanes go through libm.
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> pow(pack<double, N, Isa> const& x, pack<double, N, Isa> const& y) {
  using P = pack<double, N, Isa>;
  int const simple = detail::simple_exponent(y[0]);
  if (SITU_UNLIKELY(simple != 0) && !detail::any(y != P(y[0]))) return detail::simple_power(x, simple);
  if constexpr (!Isa::fma) {
    return detail::every_lane<detail::scalar_pow>(x, y);
  } else {
    auto const log = detail::log_in_two(x);
    auto const product = detail::two_prod(y, log.hi);  // may be infinite, and its low part then, too
    P const low = multiply_add(y, log.lo, product.lo);
    auto const [r, rest, n] = detail::split_exp_twice(detail::at_least(detail::at_most(product.hi, 800.0), -800.0),
                                                      detail::at_least(detail::at_most(low, 1.0), -1.0));
    P const z = detail::scale(P(1.0) + (r + rest), n);
    P const least(std::numeric_limits<double>::min()), greatest(std::numeric_limits<double>::max()), none(-1.0);
    P const known = select(abs(y) <= greatest, x, none);
    auto const special = select(known <= greatest, known, none) < least;
    if (SITU_UNLIKELY(detail::any(special))) return detail::by_lane<detail::scalar_pow>(special, x, y, z);
    return z;
  }
}

}  // namespace math
}  // namespace situ::inline SITU_ABI
