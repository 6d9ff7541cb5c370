/// exp, exp2 and expm1 of packs and numbers.
#pragma once

#include <situ/expr/math/piecewise.hpp>

namespace situ::inline SITU_ABI {
namespace math {

// Numbers: libm on the host, CUDA's own functions on a device.
SITU_HOST_DEVICE inline float exp(float x) { return SITU_LIBM(expf)(x); }
SITU_HOST_DEVICE inline double exp(double x) { return SITU_LIBM(exp)(x); }
#if defined(__CUDA_ARCH__)
namespace detail {
/// e^x to as many bits as 16-bit floats have, and some more: off by 2^-24 |x| and 2^-22.
__device__ inline float exp_of_narrow(float x) { return approximate_exp2(1.44269504f * x); }
}  // namespace detail
#endif
SITU_HOST_DEVICE inline float exp2(float x) { return SITU_LIBM(exp2f)(x); }
SITU_HOST_DEVICE inline double exp2(double x) { return SITU_LIBM(exp2)(x); }
SITU_HOST_DEVICE inline float expm1(float x) { return SITU_LIBM(expm1f)(x); }
SITU_HOST_DEVICE inline double expm1(double x) { return SITU_LIBM(expm1)(x); }

namespace detail {

/// exp(x) in parts: 2^n · (1 + t) with |t| < 0.42, for |x| < 175.
template <class P>
struct exp_parts {
  P t, n;
};

/// The same, and n as the low bits of a number, biased as exponents are: shifted up they are 2^n where that is a normal number.
template <class P>
struct shifted_exp_parts {
  P t, n, shifted;
};

/// r² q(r) + c. Not Horner's scheme: how long one element takes matters as much as how many operations it takes.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> exp_rest(pack<float, N, Isa> const& r, pack<float, N, Isa> const& c) {
  using P = pack<float, N, Isa>;
  P const u = r * r;
  P const a = multiply_add(r, P(0.166665196f), P(0.49999994f));
  P const b = multiply_add(r, P(0.00836881157f), P(0.0416683964f));
  return multiply_add(u, multiply_add(u, multiply_add(u, P(0.00138143916f), b), a), c);
}

template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> exp_rest(pack<double, N, Isa> const& r, pack<double, N, Isa> const& c) {
  using P = pack<double, N, Isa>;
  P const u = r * r;
  P const v = u * u;
  P const q0 = multiply_add(r, P(0.16666666666666674), P(0.500000000000001));
  P const q1 = multiply_add(r, P(0.008333333333322087), P(0.04166666666652043));
  P const q2 = multiply_add(r, P(0.00019841269886957503), P(0.00138888889482975));
  P const q3 = multiply_add(r, P(2.755724192264636e-06), P(2.480148678758961e-05));
  P const q4 = multiply_add(r, P(2.5110205749647452e-08), P(2.763285843695327e-07));
  P const high = multiply_add(v, q4, multiply_add(u, q3, q2));
  P const q = multiply_add(v, high, multiply_add(u, q1, q0));
  return multiply_add(u, q, c);
}

/// exp(x) = 2^n exp(r), and n as in shifted_exp_parts.
///
///     n = round(x / ln 2),   r = x − n ln 2
///
/// ln 2 is split so that n times its upper part is exact.
template <class P>
struct reduced_exp {
  P r, n, shifted;
};
template <int N, class Isa>
SITU_INLINE reduced_exp<pack<float, N, Isa>> reduce_exp(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  P const magic(round_magic<float> + 127.0f);
  P const shifted = keep_order(multiply_add(x, P(1.44269504f), magic));
  P const n = keep_order(shifted - magic);
  return {multiply_add(n, P(2.12194440e-4f), keep_order(multiply_add(n, P(-0.693359375f), x))), n, shifted};
}

/// The parts of exp(x): t = r + r² q(r). The polynomial errs by 2^-28.
template <int N, class Isa>
SITU_INLINE shifted_exp_parts<pack<float, N, Isa>> split_exp_shifted(pack<float, N, Isa> const& x) {
  auto const [r, n, shifted] = reduce_exp(x);
  return {exp_rest(r, r), n, shifted};
}
template <int N, class Isa>
SITU_INLINE exp_parts<pack<float, N, Isa>> split_exp(pack<float, N, Isa> const& x) {
  auto const [t, n, shifted] = split_exp_shifted(x);
  return {t, n};
}
/// The parts of exp(x), |x| < 1400, in double. The polynomial errs by 2^-57 of the whole.
template <int N, class Isa>
SITU_INLINE exp_parts<pack<double, N, Isa>> split_exp(pack<double, N, Isa> const& x) {
  using P = pack<double, N, Isa>;
  P const magic(round_magic<double>);
  P const n = keep_order(keep_order(multiply_add(x, P(1.4426950408889634), magic)) - magic);
  P const a = keep_order(multiply_add(n, P(-6.93147180369123816490e-01), x));
  P const b = n * P(-1.90821492927058770002e-10);
  P const r = keep_order(a + b);
  P const lost = keep_order(a - r) + b;
  return {r + exp_rest(r, lost), n};
}

/// The parts of 2^(−x − low), where low is what x lost in rounding. The polynomial is that of exp2 in −r.
template <int N, class Isa>
SITU_INLINE exp_parts<pack<float, N, Isa>> split_exp2_negated(pack<float, N, Isa> const& x,
                                                              pack<float, N, Isa> const& low) {
  using P = pack<float, N, Isa>;
  P const magic(round_magic<float>);
  P const n = keep_order(keep_order(magic - x) - magic);
  P const r = keep_order(x + n) + low;
  P const u = r * r;
  P const a = multiply_add(r, P(-0.0555029698f), P(0.240226507f));
  P const b = multiply_add(r, P(-0.00134101545f), P(0.00961802993f));
  P const q = multiply_add(u, multiply_add(u, P(0.000154698646f), b), a);
  return {multiply_add(u, q, r * -0.693147242f), n};
}

/// The parts of exp(x + low), where low is what x lost in rounding; t = r + rest, a sum that is not yet rounded.
template <class P>
struct exp_twice {
  P r, rest, n;
};
template <int N, class Isa>
SITU_INLINE exp_twice<pack<float, N, Isa>> split_exp_twice(pack<float, N, Isa> const& x,
                                                           pack<float, N, Isa> const& low) {
  using P = pack<float, N, Isa>;
  P const magic(round_magic<float>);
  P const n = keep_order(keep_order(multiply_add(x, P(1.44269504f), magic)) - magic);
  P const a = keep_order(multiply_add(n, P(-0.693359375f), x));
  P const b = multiply_add(n, P(2.12194440e-4f), low);
  P const r = keep_order(a + b);
  return {r, exp_rest(r, keep_order(a - r) + b), n};
}

template <int N, class Isa>
SITU_INLINE exp_twice<pack<double, N, Isa>> split_exp_twice(pack<double, N, Isa> const& x, pack<double, N, Isa> const& low) {
  using P = pack<double, N, Isa>;
  P const magic(round_magic<double>);
  P const n = keep_order(keep_order(multiply_add(x, P(1.4426950408889634), magic)) - magic);
  P const a = keep_order(multiply_add(n, P(-6.93147180369123816490e-01), x));
  P const b = multiply_add(n, P(-1.90821492927058770002e-10), low);
  P const r = keep_order(a + b);
  return {r, exp_rest(r, keep_order(a - r) + b), n};
}

/// 2^(k/16).
alignas(64) inline constexpr float roots_of_two[16] = {1.0f,       1.0442737f, 1.0905077f, 1.1387886f, 1.1892071f, 1.2418578f, 1.2968396f, 1.3542556f,
                                                       1.4142135f, 1.4768262f, 1.5422108f, 1.6104903f, 1.6817929f, 1.7562522f, 1.8340081f, 1.9152066f};

}  // namespace detail

/// eˣ. With AVX-512
///
///     eˣ = 2^(k/16) eʳ,   k = round(16 x / ln 2),   2^((k mod 16)/16) looked up
///
/// whose polynomial is so short that there are three multiplications less. It errs by 2^-29.2.
///
/// Special   exp(−inf) = 0, exp(inf) = inf, NaN stays.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> exp(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
#if SITU_MATH_X86_ASM
  if constexpr (detail::has_avx512<float, N, Isa>) {
    auto const wanted = detail::lanes_from(x, -104.0f);  // those below give 0, and are not computed
    P const y = detail::at_most_in(wanted, x, 89.0f), magic(detail::round_magic<float> / 16);
    P const shifted = keep_order(multiply_add(y, P(1.44269504f), magic));
    P const n = keep_order(shifted - magic);  // k/16, of which scaling takes the whole part
    P const r = multiply_add(n, P(2.12194440e-4f), keep_order(multiply_add(n, P(-0.693359375f), y)));
    P const root = detail::look_up(bitcast<int32_t>(shifted), detail::roots_of_two);
    return detail::scale_in(wanted, multiply_add(root * r, detail::horner(r, 0.16666718f, 0.50001615f, 1.0f), root), n);
  } else
#endif
  {
    bool const special = detail::any_negative(P(87.0f * 87.0f) - x * x);  // beyond 87, 2^n may be no normal number
    P c = x;
    if (SITU_UNLIKELY(special)) c = detail::at_least(detail::at_most(x, 89.0f), -125.0f);
    auto const [t, n, shifted] = detail::split_exp_shifted(c);
    if (SITU_UNLIKELY(special)) return detail::scale(P(1.0f) + t, n);
    P const power = bitcast<float>(bitcast<int32_t>(shifted) << 23);
    if constexpr (Isa::fma) return detail::add_share(power, t);
    else return (P(1.0f) + t) * power;  // 2^n t may be no normal number, which -ffast-math has the processor take for 0
  }
}

/// 2ˣ.
///
/// Special   exp2 of an integer is exact; exp2(−inf) = 0, exp2(inf) = inf, NaN stays.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> exp2(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  P const y = detail::at_least(detail::at_most(x, 129.0f), -180.0f);
  P const n = detail::round_small(y);
  P const r = y - n;
  P const q = detail::horner(r, 0.000154698646f, 0.00134101545f, 0.00961802993f, 0.0555029698f, 0.240226507f,
                             0.693147242f);
  return detail::scale(multiply_add(r, q, P(1.0f)), n);
}

/// eˣ − 1, accurate near 0.
///
///     2^n t + (2^n − 1),   halved so that 2^n does not overflow
///
/// Special   expm1(±0) = ±0, expm1(−inf) = −1, expm1(inf) = inf, NaN stays.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> expm1(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  auto const [t, n] = detail::split_exp(detail::at_least(detail::at_most(x, 89.0f), -18.0f));
  P const s = detail::power_of_two(n - P(1.0f));
  P const y = multiply_add(s, t, keep_order(s - P(0.5f)));
  // n == 0 gives 0.5 t + 0: only there can the result be so small that halving loses digits.
  return select(n == P(0.0f), select(x == P(0.0f), x, t), y + y);
}

template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> exp(pack<double, N, Isa> const& x) {
  using P = pack<double, N, Isa>;
  auto const [t, n] = detail::split_exp(detail::at_least(detail::at_most(x, 710.0), -790.0));
  return detail::scale(P(1.0) + t, n);
}

/// By exp: eʳ with r = (x − n) ln 2.
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> exp2(pack<double, N, Isa> const& x) {
  using P = pack<double, N, Isa>;
  P const y = detail::at_least(detail::at_most(x, 1025.0), -1140.0);
  P const n = detail::round_small(y);
  P const r = (y - n) * P(0.6931471805599453);
  return detail::scale(P(1.0) + detail::exp_rest(r, r), n);
}

/// The sum of 2^n − 1 and 2^n r is not rounded before the rest of 2^n t joins it.
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> expm1(pack<double, N, Isa> const& x) {
  using P = pack<double, N, Isa>;
  auto const [r, rest, n] = detail::split_exp_twice(detail::at_least(detail::at_most(x, 710.0), -40.0), P(0.0));
  P const s = detail::power_of_two(n - P(1.0));
  auto const sum = detail::fast_two_sum(keep_order(s - P(0.5)), keep_order(s * r));
  P const y = sum.hi + multiply_add(s, rest, keep_order(sum.lo));
  return select(n == P(0.0), select(x == P(0.0), x, r + rest), y + y);
}

}  // namespace math
}  // namespace situ::inline SITU_ABI
