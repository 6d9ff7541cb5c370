/// sigmoid, silu, softplus, elu and tanh of packs and numbers.
#pragma once

#include <situ/expr/math/exp.hpp>
#include <situ/expr/math/log.hpp>

namespace situ::inline SITU_ABI {
namespace math {

// Numbers: libm on the host, CUDA's own functions on a device.
SITU_HOST_DEVICE inline float tanh(float x) { return ::tanhf(x); }
SITU_HOST_DEVICE inline double tanh(double x) { return ::tanh(x); }
/// 1 / (1 + e⁻ˣ), without overflow.
template <class T>
  requires std::is_floating_point_v<T>
SITU_HOST_DEVICE inline T sigmoid(T x) {
  T const e = math::exp(x < 0 ? x : -x);
  return x < 0 ? e / (1 + e) : 1 / (1 + e);
}
/// x / (1 + e⁻ˣ). e⁻ᵃ is squared from its half, so that x e⁻ᵃ is rounded once where e⁻ᵃ alone is denormal.
template <class T>
  requires std::is_floating_point_v<T>
SITU_HOST_DEVICE inline T silu(T x) {
  T const h = math::exp((x < 0 ? x : -x) / 2);
  return x < 0 ? (x < T(-2000) ? T(-0.0) : x * h / (1 + h * h) * h) : x / (1 + h * h);
}
/// log(1 + eˣ).
template <class T>
  requires std::is_floating_point_v<T>
SITU_HOST_DEVICE inline T softplus(T x) {
  T const y = math::log1p(math::exp(x < 0 ? x : -x));
  return x > 0 ? x + y : y;
}
/// x for x > 0, otherwise alpha (eˣ − 1).
template <class T>
  requires std::is_floating_point_v<T>
SITU_HOST_DEVICE inline T elu(T x, T alpha) {
  return x > 0 ? x : alpha * math::expm1(x);
}

namespace detail {

/// g · sigmoid(z), where exp(−|z|) = 2^n (1 + t).
///
///     z >= 0:  g / (1 + e),   z < 0:  g (1 + t) / (1 + e) · 2^n,   e = 2^n (1 + t)
///
/// The quotient is near_reciprocal's, put right by what it and the sum 1 + e lost. The power of two comes last, so that
/// a small result is rounded once.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> times_sigmoid(pack<float, N, Isa> const& g, pack<float, N, Isa> const& z,
                                              exp_parts<pack<float, N, Isa>> const& parts) {
  using P = pack<float, N, Isa>;
  auto const [t, n] = parts;
  P const zero(0.0f), one(1.0f);
  auto const negative = z < zero;
  P s;
  if constexpr (has_avx512<float, N, Isa>) s = scale(one, n);
  else s = power_of_two(at_least(n, -100.0f));
  P const d = keep_order(one + multiply_add(s, t, s));
  P const lost = multiply_add(s, t, s - keep_order(d - one));
  P const u = near_reciprocal(d);
  P w = -(lost * u);
  if constexpr (Isa::fma) w = multiply_add(-lost, u, residual(d, u));
  P const f = select(negative, t, zero);
  P const p = g * u;
  P const y = multiply_add(at_most(p, 1e30f), multiply_add(f, w, f + w), p);  // inf · 0 is no correction
  return with_sign_of(g, scale(y, select(negative, n, zero)));
}

// In double the sums of several roundings, and libm's tanh, err by more than 2 ULP: a long double is rounded once.
struct scalar_tanh {
  static double value(double x) { return static_cast<double>(std::tanh(static_cast<long double>(x))); }
};
struct scalar_sigmoid {
  static double value(double x) {
    long double const e = std::exp(-std::fabs(static_cast<long double>(x)));
    return static_cast<double>(x < 0 ? e / (1 + e) : 1 / (1 + e));
  }
};
struct scalar_silu {
  static double value(double x) {
    if (x < -2000) return -0.0;
    return static_cast<double>(x / (1 + std::exp(-static_cast<long double>(x))));
  }
};
struct scalar_softplus {
  static double value(double x) {
    long double const y = std::log1p(std::exp(-std::fabs(static_cast<long double>(x))));
    return static_cast<double>(x > 0 ? x + y : y);
  }
};

}  // namespace detail

/// 1 / (1 + e⁻ˣ), also where that is denormal.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> sigmoid(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  return detail::times_sigmoid(P(1.0f), x, detail::split_exp(detail::at_least(detail::negative_magnitude(x), -173.0f)));
}

/// x / (1 + e⁻ˣ).
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> silu(pack<float, N, Isa> const& x) {
  // Below −200 the result is −0 whatever g is.
  return detail::times_sigmoid(detail::at_least(x, -200.0f), x,
                               detail::split_exp(detail::at_least(detail::negative_magnitude(x), -173.0f)));
}

/// log(1 + eˣ).
///
///     max(x, 0) + log(1 + e),   e = exp(−|x|) = 2^n (1 + t)
///
/// 1 + e is f + 1 for e < 1/2, otherwise 2 (f + 1); either f takes one rounding from t.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> softplus(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  P const zero(0.0f), one(1.0f), half(0.5f);
  P const a = detail::negative_magnitude(x);
  auto const [t, n] = detail::split_exp(detail::at_least(a, -125.0f));
  auto const big = a > P(-0.693f);
  P const c = select(big, half, one);
  P const s = detail::scale(c, n);
  P const f = multiply_add(s, t, s - select(big, half, zero));
  P const y = f + (detail::log_rest(f) + select(big, P(1.42860677e-06f), zero));
  return (y + select(big, P(0.693145751953125f), zero)) + select(x < zero, zero, x);
}

/// x for x > 0, otherwise alpha (eˣ − 1).
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> elu(pack<float, N, Isa> const& x, pack<float, N, Isa> const& alpha) {
  using P = pack<float, N, Isa>;
  return select(x > P(0.0f), x, alpha * expm1(x));
}

/// Hyperbolic tangent.
///
///     |x| < 0.6:  x + x³ p(x²),   otherwise ±(1 − 2 / (e^(2|x|) + 1))
///
/// Special   tanh(±0) = ±0, tanh(±inf) = ±1, NaN stays.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> tanh(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  P const one(1.0f), a = detail::magnitude(x);
  auto const [t, n] = detail::split_exp(detail::at_most(a + a, 20.0f));
  P const s = detail::power_of_two(n);
  P const large = one - detail::divide(P(2.0f), multiply_add(s, t, s + one));
  P const u = x * x;
  P const p = detail::horner(u, -0.00585642783f, 0.020775415f, -0.0537828915f, 0.133319989f, -0.333333045f);
  P const small = multiply_add(a * u, p, a);
  return detail::flip_sign(select(a < P(0.6f), small, large), x);
}

// Doubles go through libm, lane by lane.
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> tanh(pack<double, N, Isa> const& x) {
  return detail::every_lane<detail::scalar_tanh>(x);
}
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> sigmoid(pack<double, N, Isa> const& x) {
  return detail::every_lane<detail::scalar_sigmoid>(x);
}
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> silu(pack<double, N, Isa> const& x) {
  return detail::every_lane<detail::scalar_silu>(x);
}
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> softplus(pack<double, N, Isa> const& x) {
  return detail::every_lane<detail::scalar_softplus>(x);
}
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> elu(pack<double, N, Isa> const& x, pack<double, N, Isa> const& alpha) {
  using P = pack<double, N, Isa>;
  return select(x > P(0.0), x, alpha * expm1(x));
}
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> elu(pack<T, N, Isa> const& x, T alpha) {
  return elu(x, pack<T, N, Isa>(alpha));
}

}  // namespace math
}  // namespace situ::inline SITU_ABI
