/// log|Γ(x)| and its derivative, of numbers and of packs.
#pragma once

#include <situ/expr/math/basic.hpp>
#include <situ/expr/math/log.hpp>
#include <situ/expr/math/trig.hpp>

#if defined(__GLIBC__) && !defined(__CUDACC__)
// As glibc declares them; not every compiler has them as builtins.
extern "C" double lgamma_r(double, int*) noexcept;
extern "C" long double lgammal_r(long double, int*) noexcept;
#endif

namespace situ::inline SITU_ABI {
namespace math {

/// log|Γ(x)|; +∞ at 0, at the negative integers and at both infinities.
#if defined(__CUDA_ARCH__)
SITU_HOST_DEVICE inline double lgamma(double x) { return SITU_LIBM(lgamma)(x); }
SITU_HOST_DEVICE inline float lgamma(float x) { return SITU_LIBM(lgammaf)(x); }
#else
SITU_HOST_DEVICE inline double lgamma(double x) {
#if defined(__GLIBC__)
  int sign = 0;  // lgamma itself would write the sign into a variable that threads share
  // Between its poles the double function errs by up to 5 ulps.
  if (x < 0) return static_cast<double>(::lgammal_r(static_cast<long double>(x), &sign));
  return ::lgamma_r(x, &sign);
#else
  return SITU_LIBM(lgamma)(x);
#endif
}
SITU_HOST_DEVICE inline float lgamma(float x) { return static_cast<float>(math::lgamma(static_cast<double>(x))); }
#endif

/// ψ(x), the derivative of log|Γ(x)|: reflection below 1/2, recurrence up to 10, then the asymptotic series. −∞ and ∞ at 0 and −0, NaN at the other poles.
SITU_HOST_DEVICE inline double digamma(double x) {
  double result = 0;
  if (x < 0.5) {
    double const pi = 3.14159265358979323846, turns = x - math::round(x);  // exact, also next to 0 and of large numbers
    if (turns == 0.0) {
      auto const bits = situ::detail::bits_to<uint64_t>(x);  // 0, and denormals that -ffast-math takes for it, keep their sign
      return bits << 1 >= 0x7fe0000000000000 ? __builtin_nan("") : bits >> 63 != 0 ? __builtin_inf() : -__builtin_inf();
    }
    result = -pi / math::tan(pi * turns);
    x = 1 - x;
  }
  for (; x < 10; x += 1) result -= 1 / x;
  double const r = 1 / (x * x);
  return result + math::log(x) - 0.5 / x -
         r * (1.0 / 12 - r * (1.0 / 120 - r * (1.0 / 252 - r * (1.0 / 240 - r * (1.0 / 132 - r * (691.0 / 32760))))));
}
SITU_HOST_DEVICE inline float digamma(float x) { return static_cast<float>(math::digamma(static_cast<double>(x))); }

namespace detail {

/// log Γ(x) for positive normal x and ∞; NaN stays.
///
///     x < 5.5:   log Γ(2 + y) ± log(q),            y = x − k, −3/4 <= y < 1/2:   q is what Γ's recurrence puts between x and 2 + y, and 1 for x in [5/4, 5/2)
///     x >= 5.5:  (x − 1/2) (log(x) − 1) + log(2π)/2 − 1/2 + W(1/x²)/x
///
/// log Γ(2 + y) = y R(y + 1/2): 0 at 2 is exact. For x near 1, where y R(y) − log(1 + y) is 0, too, y = f in log(1 + f) = f − (f²/2 − product), and y R(y) − f is
/// rounded once. R errs by 2^-56 of itself, W/x by 2^-59 of the whole.
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> log_gamma_of_positive(pack<double, N, Isa> const& x) {
  using P = pack<double, N, Isa>;
  P const one(1.0), low(1.25), far(5.5);
  // k is 0, 1, 2, 3, 4 or 5; between them lie 1/2, 5/4, 5/2, 7/2 and 9/2.
  P const k = select(x < low, select(x < P(0.5), P(0.0), one), select(x < P(2.5), P(2.0), select(x < P(3.5), P(3.0), select(x < P(4.5), P(4.0), P(5.0)))));
  P const y = x - k;
  P const above = select(x < P(2.5), one, keep_order((x - one) * select(x < P(3.5), one, x - P(2.0))) * select(x < P(4.5), one, x - P(3.0)));
  P const below = select(x < P(0.5), keep_order(x + one), one) * x;
  P const q = select(x < far, select(x < low, below, above), x);
  auto const [f, e, special] = split_log(q);
  auto const [half_square, product] = terms_of_log(f, e * 1.90821492927058770002e-10);
  P const rest = keep_order(product - half_square), whole = keep_order(e * 6.93147180369123816490e-01);

  P const r = horner_in_two(y + 0.5, -1.7108913209866616e-07, 1.5652552681189751e-06, -6.790960692198281e-06, 1.9007740896906173e-05, -3.999415626596784e-05,
                            7.09417513518514e-05, -0.0001163644197025048, 0.00018723931260242782, -0.00030247193909881077, 0.0004925118688933797,
                            -0.0008086396213378891, 0.001340707349744535, -0.002250616584013339, 0.003840420934398382, -0.006702393516302726,
                            0.01208428740330301, -0.022909938185470772, 0.04725715732410144, -0.11450419537702358, 0.4101490025838277,
                            0.24156447527049044);
  P const side = select(x < low, -one, one);
  P const near = keep_order(keep_order(multiply_add(y, r, side * f)) + side * whole) + side * rest;

  P const z = divide(one, x);
  P const w = horner(z * z, 0.003904253630299569, -0.0018092295446636192, 0.0008392005989991022, -0.000595205063676217, 0.0007936505712621489,
                     -0.0027777777771135, 0.08333333333333276);
  P const factor = keep_order(keep_order(whole - one) + f) + rest;
  return select(x < far, near, multiply_add(x - P(0.5), factor, multiply_add(z, w, P(0.41893853320467274))));
}

/// log(π / (a |sin πa|)), which is log|Γ(−a)| + log Γ(a), for 2^-60 <= a; ∞ where a is whole.
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> log_of_reflection(pack<double, N, Isa> const& a) {
  using P = pack<double, N, Isa>;
  P const limited = at_most(a, 0x1p51);  // whole, as all numbers from there on
  P const t = limited - round_small(limited), u = t * t;
  P const s = magnitude(t) * horner(u, 7.694727410586793e-07, -2.1903185429950325e-05, 0.0004662996887782005, -0.007370430478764195, 0.08214588656989298,
                                    -0.5992645293187383, 2.550164039877294, -5.167712780049969, 3.141592653589793);
  auto const [f, e, special] = split_log(divide(P(3.141592653589793), limited * s));
  return select(t == P(0.0), P(std::numeric_limits<double>::infinity()), join_log(f, e, P(0.0)));
}

/// log|Γ(x)| for all x, its error measured by the larger of 1 and |log Γ(|x|)|.
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> log_gamma_for_narrower(pack<double, N, Isa> const& x) {
  using P = pack<double, N, Isa>;
  P const zero(0.0), a = magnitude(x);
  P y = select(a == zero, P(std::numeric_limits<double>::infinity()), log_gamma_of_positive(a));
  P const reflected = select(a < P(0x1p-60), zero, x);  // so close to the pole it has the same value on both sides
  if (any(reflected < zero)) {
    P const reflection = log_of_reflection(a);
    y = select(reflected < zero, reflection - at_most(y, std::numeric_limits<double>::max()), y);  // of −inf, too, inf
  }
  return y;
}

struct scalar_lgamma {
  static double value(double x) { return math::lgamma(x); }
};

}  // namespace detail

/// In double, the results of floats rounded once.
///
/// Cost      doubles: lanes that are negative, 0, denormal or NaN go through libm, and all lanes where products are not fused.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> lgamma(pack<float, N, Isa> const& x) {
  if constexpr (N * 8 <= Isa::bytes || N < 4) return convert_unchecked<float>(detail::log_gamma_for_narrower(convert_unchecked<double>(x)));
  else return detail::narrow(detail::log_gamma_for_narrower(detail::widen_lower(x)), detail::log_gamma_for_narrower(detail::widen_upper(x)));
}
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> lgamma(pack<double, N, Isa> const& x) {
  if constexpr (!Isa::fma) return detail::every_lane<detail::scalar_lgamma>(x);
  else return detail::by_lane_outside<detail::scalar_lgamma>(x, std::numeric_limits<double>::min(), std::numeric_limits<double>::infinity(), x, detail::log_gamma_of_positive(x));
}

namespace detail {
/// ψ(x) as digamma of numbers computes it, the ten steps of the recurrence as one fraction.
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> digamma_of(pack<double, N, Isa> const& from) {
  using P = pack<double, N, Isa>;
  P const one(1.0), zero(0.0), half(0.5);
  P x = from, y(0.0);
  if (any(from < half)) {
    P const turns = from - math::round(from);
    P const reflection = divide(P(-3.14159265358979323846), math::tan(turns * 3.14159265358979323846));
    P const nan(std::numeric_limits<double>::quiet_NaN());
    // ∓0 and what is too small to be divided by have the poles of their sides.
    P const pole = select(from == zero, divide(-one, from), nan);
    y = select(from < half, select(turns == zero, pole, reflection), y);
    x = select(from < half, one - from, from);
  }
  P above = one, below = x;
  for (int k = 1; k < 10; ++k) {
    P const next = x + static_cast<double>(k);
    above = multiply_add(above, next, below);
    below = below * next;
  }
  P const near = x;
  x = select(near < P(10.0), near + 10.0, near);
  y = y - select(near < P(10.0), divide(above, below), zero);
  P const z = divide(one, x), r = z * z;
  P const series = horner(r, -691.0 / 32760, 1.0 / 132, -1.0 / 240, 1.0 / 252, -1.0 / 120, 1.0 / 12);
  return (y + math::log(x)) - multiply_add(z, half, r * series);
}
}  // namespace detail

template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> digamma(pack<double, N, Isa> const& x) {
  return detail::digamma_of(x);
}
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> digamma(pack<float, N, Isa> const& x) {
  if constexpr (N * 8 <= Isa::bytes || N < 4) return convert_unchecked<float>(detail::digamma_of(convert_unchecked<double>(x)));
  else return detail::narrow(detail::digamma_of(detail::widen_lower(x)), detail::digamma_of(detail::widen_upper(x)));
}

}  // namespace math
}  // namespace situ::inline SITU_ABI
