/// sigmoid, silu, softplus, elu and tanh of packs and numbers.
#pragma once

#include <situ/expr/math/exp.hpp>
#include <situ/expr/math/log.hpp>

namespace situ::inline SITU_ABI {
namespace math {

// Numbers: libm on the host, CUDA's own functions on a device.
SITU_HOST_DEVICE inline float tanh(float x) { return SITU_LIBM(tanhf)(x); }
SITU_HOST_DEVICE inline double tanh(double x) { return SITU_LIBM(tanh)(x); }
namespace detail {
/// n / d for 1 <= d < 2^100; on a device in float without the cases that a division looks for, to 1.5 ULP.
template <class T>
SITU_HOST_DEVICE inline T quotient(T n, T d) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) == 4) {
    T r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(d));
    return n * ::fmaf(r, ::fmaf(-d, r, T(1)), r);
  }
#endif
  return n / d;
}
}  // namespace detail
/// 1 / (1 + e⁻ˣ), without overflow.
template <class T>
  requires std::is_floating_point_v<T>
SITU_HOST_DEVICE inline T sigmoid(T x) {
  T const e = math::exp(x < 0 ? x : -x);
  return detail::quotient(x < 0 ? e : T(1), 1 + e);
}
/// x / (1 + e⁻ˣ). e⁻ᵃ is squared from its half, so that x e⁻ᵃ is rounded once where e⁻ᵃ alone is denormal.
template <class T>
  requires std::is_floating_point_v<T>
SITU_HOST_DEVICE inline T silu(T x) {
  T const h = math::exp((x < 0 ? x : -x) / 2);
  if (x < T(-2000)) return T(-0.0);
  T const y = detail::quotient(x < 0 ? x * h : x, 1 + h * h);
  return x < 0 ? y * h : y;
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

/// g · sigmoid(z), where z < 0 where `negative` is set, and exp(−|z|) = 2^n (1 + t).
///
///     z >= 0:  g / (1 + e),   z < 0:  g (1 + t) / (1 + e) · 2^n,   e = 2^n (1 + t)
///
/// The quotient is near_reciprocal's u, put right by 1 − u (1 + e) = (1 − u) − u e, whose first difference is exact.
/// The power of two comes last, so that a small result is rounded once.
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> times_sigmoid(pack<T, N, Isa> const& g,
                                          lane_mask<static_cast<int>(sizeof(T)), N, Isa> const& negative,
                                          exp_parts<pack<T, N, Isa>> const& parts) {
  using P = pack<T, N, Isa>;
  auto const [t, n] = parts;
  P const one(T(1));
  P const s = power_of_two(at_least(n, T(-100)));
  P const e = add_share(s, t);
  P const u = near_reciprocal(one + e);
  P const w = keep_order(one - u) - u * e;
  // Not 0 but far below one ulp of 1, and more than w where g may be infinite: inf times it is inf.
  P const f = select(negative, t, P(T(4e-30)));
  P const p = g * u;
  return scale(add_share(p, multiply_add(one + f, w, f)), select(negative, n, P(T(0))));
}
/// sigmoid(x) = q / d with q = 2^n, where one rounding of d matters: d = (q + 1) + t, e⁻ˣ = 2^-n (1 + t).
template <class P>
struct sigmoid_quotient {
  P q, d, n;
};
/// For |x| < 87.3; where powers of two that are denormal cost nothing, for −150 < x < 88.
///
/// q + 1 is exact but where q is far from 1; what it loses then joins t.
template <int N, class Isa>
SITU_INLINE sigmoid_quotient<pack<float, N, Isa>> split_sigmoid(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  P const one(1.0f), magic(round_magic<float> + 127.0f);
  P const shifted = keep_order(multiply_add(x, P(1.44269504f), magic));
  P const n = keep_order(shifted - magic);
  P q;
  if constexpr (has_avx512<float, N, Isa>) q = scale(one, n);
  else q = bitcast<float>(bitcast<int32_t>(shifted) << 23);
  P const r = keep_order(multiply_add(n, P(0.693359375f), -x)) - n * P(2.12194440e-4f);
  P const sum = keep_order(q + one);
  P const lost = q - keep_order(sum - one);
  P const t = exp_rest(r, keep_order(r + lost));
  return {q, sum + keep_order(t), n};
}
/// Beyond it sigmoid may be denormal, and exp(−x) overflow.
inline constexpr float sigmoid_bound = 87.0f;

/// Where exp's argument is cut off: x eˣ is 0 in T from well above it.
template <class T>
inline constexpr T least_exponent = sizeof(T) == 4 ? T(-173) : T(-1380);

// Named functions, because nvcc loses the attribute that inlines a lambda.
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> sigmoid_anywhere(pack<T, N, Isa> const& x) {
  using P = pack<T, N, Isa>;
  P const a = at_least(negative_magnitude(x), least_exponent<T>);
  return times_sigmoid(P(T(1)), x < P(T(0)), split_exp(a));
}
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> silu_anywhere(pack<T, N, Isa> const& x) {
  using P = pack<T, N, Isa>;
  P const a = at_least(negative_magnitude(x), least_exponent<T>);
  // Below its bound the result is −0 whatever g is.
  P const g = at_least(x, sizeof(T) == 4 ? T(-200) : T(-1000));
  return with_sign_of(x, times_sigmoid(g, x < P(T(0)), split_exp(a)));
}

/// tanh(x) where products are fused.
///
///     h = (1 − e^(−2|x|)) / 2 = (1 − 2^n) / 2 − 2^n q,   tanh(x) = ±h / (1 − h)
///
/// with n = round(−2|x| / ln 2), r = −|x| − n ln(2) / 2 and q = r + r² p(r). What the rounding of ln 2 adds grows with n, and counts for less as fast.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> tanh_by_expm1(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  P const c = at_least(negative_magnitude(x), -9.1f), half(0.5f);
  P const shifted = keep_order(multiply_add(c, P(2.88539008f), P(round_magic<float> + 127.0f)));
  P const n = keep_order(shifted - P(round_magic<float> + 127.0f));
  P const r = fused(n, P(-0.346573591f), c);
  P const s = bitcast<float>(bitcast<int32_t>(shifted) << 23);
  P const p = horner(r, 0.0441666134f, 0.133941308f, 0.33335048f, 0.666659951f, 0.999999821f);
  P const h = fused<sign::minus>(s, multiply_add(r * r, p, r), keep_order(multiply_add(s, -half, half)));
  return with_sign_of(x, divide(h, P(1.0f) - h));
}

}  // namespace detail

/// 1 / (1 + e⁻ˣ), also where that is denormal.
template <class T, int N, class Isa>
  requires std::is_floating_point_v<T>
SITU_INLINE pack<T, N, Isa> sigmoid(pack<T, N, Isa> const& x) {
  using P = pack<T, N, Isa>;
  if constexpr (detail::has_avx512<float, N, Isa> && sizeof(T) == 4) {
    auto const [q, d, n] = detail::split_sigmoid(detail::at_least(detail::at_most(x, 87.5f), -125.0f));
    return detail::divide(q, d);
  } else if constexpr (sizeof(T) == 4) {
    auto const [q, d, n] = detail::split_sigmoid(detail::at_least(detail::at_most(x, detail::sigmoid_bound), -detail::sigmoid_bound));
    P const y = detail::divide(q, d);
    if (SITU_UNLIKELY(detail::any_below(x, -detail::sigmoid_bound))) {
      return select(x < P(-detail::sigmoid_bound), detail::sigmoid_anywhere(x), y);
    }
    return y;
  } else {
    return detail::sigmoid_anywhere(x);
  }
}

/// x / (1 + e⁻ˣ); −0 at −inf.
template <class T, int N, class Isa>
  requires std::is_floating_point_v<T>
SITU_INLINE pack<T, N, Isa> silu(pack<T, N, Isa> const& x) {
  using P = pack<T, N, Isa>;
  if constexpr (detail::has_avx512<float, N, Isa> && sizeof(T) == 4) {
    P const g = detail::at_least(x, -125.0f);
    auto const [q, d, n] = detail::split_sigmoid(detail::at_most(g, 87.5f));
    return detail::with_sign_of(x, detail::scale(detail::divide(g, d), n));
  } else if constexpr (sizeof(T) == 4) {
    P const c = detail::at_least(detail::at_most(x, 80.0f), -detail::sigmoid_bound);  // c q must not overflow
    auto const [q, d, n] = detail::split_sigmoid(c);
    P const y = detail::divide(c * q, d);
    auto const tail = x != c;
    if (SITU_UNLIKELY(detail::any(tail))) return select(tail, detail::silu_anywhere(x), y);
    return y;
  } else {
    return detail::silu_anywhere(x);
  }
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
  P const g = select(detail::magnitude(f) < P(0x1p-40f), zero, f);  // whose square is no denormal number, nor counts beside f
  P const y = f + (detail::log_rest(g) + select(big, P(1.42860677e-06f), zero));
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
///     with tables in registers:  ± a polynomial in |x| for each of 16 intervals
///     where products are fused:  (e^(2x) − 1) / (e^(2x) + 1)
///     elsewhere, |x| < 0.6:      x + x³ p(x²),   otherwise ±(1 − 2 / (e^(2|x|) + 1))
///
/// Special   tanh(±0) = ±0, tanh(±inf) = ±1, NaN stays.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> tanh(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  if constexpr (Isa::fma && !detail::has_avx512<float, N, Isa>) return detail::tanh_by_expm1(x);
  P const a = detail::magnitude(x);
#if SITU_MATH_X86_ASM
  if constexpr (detail::has_avx512<float, N, Isa>) {
    P const c = detail::at_most(a, 9.1f);
    auto const index = bitcast<int32_t>(keep_order(c + P(0.625f))) >> 21;
    return detail::with_sign_of(x, detail::look_up_value(index, c, detail::tanh_pieces));
  }
#endif
  P const one(1.0f);
  auto const [t, n] = detail::split_exp(detail::at_most(a + a, 20.0f));
  P const s = detail::power_of_two(n);
  P const large = one - detail::divide(P(2.0f), multiply_add(s, t, s + one));
  P const u = x * x;
  P const p = detail::horner(u, -0.00585642783f, 0.020775415f, -0.0537828915f, 0.133319989f, -0.333333045f);
  P const small = multiply_add(a * u, p, a);
  return detail::flip_sign(select(a < P(0.6f), small, large), x);
}

template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> tanh(pack<double, N, Isa> const& x) {
  using P = pack<double, N, Isa>;
  P const one(1.0), a = detail::magnitude(x);
  auto const [t, n] = detail::split_exp(detail::at_most(a + a, 45.0));
  P const s = detail::power_of_two(n);
  P const large = one - detail::divide(P(2.0), multiply_add(s, t, s + one));
  P const u = x * x;
  P const p = detail::horner(u, 6.477581866197033e-06, -3.11403341907711e-05, 9.247128195651618e-05,
                             -0.00023751361412136432, 0.0005896266047842966, -0.001455766104783872,
                             0.003592120140358819, -0.008863234928490647, 0.021869488507630066, -0.053968253967490894,
                             0.13333333333332378, -0.3333333333333333);
  P const small = multiply_add(a * u, p, a);
  return detail::flip_sign(select(a < P(0.6), small, large), x);
}

/// e carries its low part.
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> softplus(pack<double, N, Isa> const& x) {
  using P = pack<double, N, Isa>;
  auto const [t, n] = detail::split_exp(detail::at_least(detail::negative_magnitude(x), -750.0));
  auto const e = detail::fast_two_sum(P(1.0), t);
  return detail::log1p_of<true>(detail::scale(e.hi, n), detail::scale(e.lo, n)) + detail::at_least(x, 0.0);
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
