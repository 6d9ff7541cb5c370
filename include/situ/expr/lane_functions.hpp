/// What the elementwise functions are made of, lane by lane: small helpers that serve packs, masks and CUDA scalars.
#pragma once

#include <situ/expr/math.hpp>
#include <situ/expr/recorded_lanes.hpp>
#include <situ/expr/types.hpp>

#if defined(__CUDACC__)
#pragma nv_diagnostic push
#pragma nv_diag_suppress 186, 20011, 20012, 20013, 20014, 20015
#endif

namespace situ::inline SITU_ABI {
namespace detail {

// Signed overflow wraps, also on CUDA, where operands are scalars.
template <class X>
SITU_HOST_DEVICE SITU_INLINE X added(X const& a, X const& b) {
  if constexpr (std::is_integral_v<X>) return static_cast<X>(static_cast<unsigned_of_size<X>>(a) + static_cast<unsigned_of_size<X>>(b));
  else return a + b;
}
template <class X>
SITU_HOST_DEVICE SITU_INLINE X subtracted(X const& a, X const& b) {
  if constexpr (std::is_integral_v<X>) return static_cast<X>(static_cast<unsigned_of_size<X>>(a) - static_cast<unsigned_of_size<X>>(b));
  else return a - b;
}
template <class X>
SITU_HOST_DEVICE SITU_INLINE X multiplied(X const& a, X const& b) {
  if constexpr (std::is_integral_v<X>) return static_cast<X>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  else return a * b;
}

template <class X>
struct isa_of;
template <int B, int N, class Isa>
struct isa_of<lane_mask<B, N, Isa>> {
  using type = Isa;
};

/// f of every lane; for what has no vector form.
template <class F, int N, class T, class Isa, class... More>
SITU_INLINE pack<T, N, Isa> each_lane(F f, pack<T, N, Isa> const& a, More const&... more) {
  pack<T, N, Isa> result;
  for (int k = 0; k < N; ++k) result.set(k, f(a[k], more[k]...));
  return result;
}

template <class T>
  requires std::is_integral_v<T>
SITU_HOST_DEVICE constexpr T integer_power(T base, T exponent) {
  if (exponent < 0) {
    if (base == 1) return 1;
    if (std::is_signed_v<T> && base == static_cast<T>(-1)) return exponent % 2 == 0 ? T(1) : base;
    return 0;
  }
  uint64_t result = 1, factor = static_cast<uint64_t>(base);
  for (auto left = static_cast<uint64_t>(exponent); left != 0; left >>= 1) {
    if (left & 1) result *= factor;
    factor *= factor;
  }
  return static_cast<T>(result);
}
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> integer_power(pack<T, N, Isa> const& a, pack<T, N, Isa> const& b) {
  if (b[0] == T(2) && !math::detail::any(b != pack<T, N, Isa>(T(2)))) return a * a;
  return each_lane([](T x, T n) { return integer_power(x, n); }, a, b);
}

/// Shifts by counts outside [0, bits) give what shifting bit by bit would: 0, or -1 for negative numbers to the right.
template <class T>
  requires std::is_integral_v<T>
SITU_HOST_DEVICE constexpr T shifted_left(T x, T count) {
  constexpr int bits = static_cast<int>(8 * sizeof(T));
  if (count < 0 || count >= static_cast<T>(bits)) return 0;
  return static_cast<T>(static_cast<uint64_t>(x) << static_cast<int>(count));
}
template <class T>
  requires std::is_integral_v<T>
SITU_HOST_DEVICE constexpr T shifted_right(T x, T count) {
  constexpr int bits = static_cast<int>(8 * sizeof(T));
  if (count < 0 || count >= static_cast<T>(bits)) return x < 0 ? static_cast<T>(-1) : T(0);
  return static_cast<T>(x >> static_cast<int>(count));
}
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> shifted_left(pack<T, N, Isa> const& a, pack<T, N, Isa> const& b) {
  return each_lane([](T x, T n) { return shifted_left(x, n); }, a, b);
}
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> shifted_right(pack<T, N, Isa> const& a, pack<T, N, Isa> const& b) {
  return each_lane([](T x, T n) { return shifted_right(x, n); }, a, b);
}

/// The sum of (q + k)^-s over all k >= 0, Hurwitz's zeta function, for q >= 1/2 and whole s >= 2: the first terms one by one, then Euler and Maclaurin's formula.
SITU_HOST_DEVICE inline double hurwitz_zeta(double s, double q) {
  double result = 0;
  for (double const enough = 10 + 2 * s; q < enough; q += 1) result += math::pow(q, -s);
  double const r = 1 / (q * q), last = math::pow(q, -s);
  double const a = s * (s + 1) * r, b = a * (s + 2) * (s + 3) * r, c = b * (s + 4) * (s + 5) * r, d = c * (s + 6) * (s + 7) * r;
  return result + math::pow(q, 1 - s) / (s - 1) +
         last * (0.5 + (s / 12 - a * (s + 2) / 720 + b * (s + 4) / 30240 - c * (s + 6) / 1209600 + d * (s + 8) / 47900160) / q);
}
/// The derivative of order n of digamma, (-1)^(n+1) n! times the sum of (x + k)^-(n+1) over all k >= 0; below 1/2 with the terms on either side of the
/// nearest pole apart. At poles infinite: of odd n inf, of even n as digamma.
SITU_HOST_DEVICE inline double polygamma(double x, double n) {
  if (n == 0.0) return math::digamma(x);
  double const s = n + 1, sign = s - 2 * math::floor(s / 2) == 0.0 ? 1 : -1;  // (-1)^s
  double factorial = 1, sum = 0;
  for (double k = 2; k <= n; k += 1) factorial *= k;
  if (x >= 0.5) {
    if (x < __builtin_inf()) sum = hurwitz_zeta(s, x);
  } else {
    double const turns = x - math::round(x);
    if (turns == 0.0) return sign > 0 ? __builtin_inf() : math::digamma(x);
    if (!(math::abs(turns) <= 0.5)) return __builtin_nan("");  // of NaN and -inf
    sum = math::pow(turns, -s) + hurwitz_zeta(s, 1 + turns) + sign * (hurwitz_zeta(s, 1 - turns) - hurwitz_zeta(s, 1 - x));
  }
  return sign * factorial * sum;
}
SITU_HOST_DEVICE inline float polygamma(float x, float n) { return static_cast<float>(polygamma(static_cast<double>(x), static_cast<double>(n))); }
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> polygamma(pack<T, N, Isa> const& a, pack<T, N, Isa> const& b) {
  if (b[0] == T(0) && !math::detail::any(b != pack<T, N, Isa>(T(0)))) return math::digamma(a);
  return each_lane([](T x, T n) { return polygamma(x, n); }, a, b);
}

/// A choice that is made before the next one: g++ would join their masks, which AVX-512 kernels then take apart lane by lane.
template <class X>
SITU_HOST_DEVICE SITU_INLINE X on_its_own(X const& x) {
  return x;
}
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> on_its_own(pack<T, N, Isa> const& x) {
  return keep_order(x);
}

}  // namespace detail

namespace functions {
template <class X, class Z>
SITU_HOST_DEVICE SITU_INLINE auto sum_of(X const& a, Z const& b) {
  if constexpr (detail::bool_lanes<X>) return a | b;
  else return detail::added(a, b);
}
template <class X, class Z>
SITU_HOST_DEVICE SITU_INLINE auto difference_of(X const& a, Z const& b) {
  return detail::subtracted(a, b);
}
template <class X, class Z>
SITU_HOST_DEVICE SITU_INLINE auto product_of(X const& a, Z const& b) {
  if constexpr (detail::bool_lanes<X>) return a & b;
  else return detail::multiplied(a, b);
}
template <class X>
SITU_HOST_DEVICE SITU_INLINE auto negative_of(X const& x) {
  if constexpr (detail::integer_lanes<X>) return detail::subtracted(X(detail::lane_value_t<X>(0)), x);
  else return -x;
}
/// Functions that leave integers and bools as they are.
#define SITU_ROUNDING(NAME)                                                                  \
  template <class X>                                                                         \
  SITU_HOST_DEVICE SITU_INLINE auto NAME##_of(X const& x) {                                  \
    if constexpr (std::is_floating_point_v<detail::lane_value_t<X>>) return math::NAME(x);   \
    else return x;                                                                           \
  }
SITU_ROUNDING(floor)
SITU_ROUNDING(ceil)
SITU_ROUNDING(round)
SITU_ROUNDING(trunc)
#undef SITU_ROUNDING
template <class X>
SITU_HOST_DEVICE SITU_INLINE auto abs_of(X const& x) {
  if constexpr (detail::bool_lanes<X>) return x;
  else return math::abs(x);
}

/// a < b and a <= b; false comes before true. Masks may have lanes of different sizes.
template <class X, class Z>
SITU_HOST_DEVICE SITU_INLINE auto less_lanes(X const& a, Z const& b) {
  if constexpr (detail::is_mask<X>) return (!a) & b;
  else return a < b;
}
template <class X, class Z>
SITU_HOST_DEVICE SITU_INLINE auto less_equal_lanes(X const& a, Z const& b) {
  if constexpr (detail::is_mask<X>) return (!a) | b;
  else return a <= b;
}
template <class X, class Z>
SITU_HOST_DEVICE SITU_INLINE auto same_lanes(X const& a, Z const& b) {
  if constexpr (detail::is_mask<X>) return !(a ^ b);
  else return a == b;
}
template <class X, class Z>
SITU_HOST_DEVICE SITU_INLINE auto minimum_of(X const& a, Z const& b) {
  if constexpr (std::is_same_v<X, bool>) return a && b;
  else if constexpr (detail::bool_lanes<X>) return a & b;
  else return math::minimum(a, b);
}
template <class X, class Z>
SITU_HOST_DEVICE SITU_INLINE auto maximum_of(X const& a, Z const& b) {
  if constexpr (std::is_same_v<X, bool>) return a || b;
  else if constexpr (detail::bool_lanes<X>) return a | b;
  else return math::maximum(a, b);
}
template <class X>
SITU_HOST_DEVICE SITU_INLINE auto power_of(X const& a, X const& b) {
  if constexpr (detail::integer_lanes<X>) return detail::integer_power(a, b);
  else return math::pow(a, b);
}
/// a to the power of b by b: 0 to a power that is not negative does not depend on it. `slope` is the derivative elsewhere.
template <class X>
SITU_HOST_DEVICE SITU_INLINE X exponent_slope(X const& a, X const& b, X const& slope) {
  X const zero = X(detail::lane_value_t<X>(0));
  return select(a == zero, detail::on_its_own(select(b >= zero, zero, slope)), slope);
}
/// The squared distance of (b, a) from the origin, or 1 at the origin: an angle has the derivative 0 there, but not where squares are too small for X.
template <class X>
SITU_HOST_DEVICE SITU_INLINE X square_or_one(X const& a, X const& b) {
  X const zero = X(detail::lane_value_t<X>(0)), square = a * a + b * b;
  return select(a == zero, detail::on_its_own(select(b == zero, X(detail::lane_value_t<X>(1)), square)), square);
}
/// The share of the gradient that an operand gets: half at a tie, and all where the other one was not chosen before it. Where either is NaN both get all.
template <class M1, class M2, class X>
SITU_HOST_DEVICE SITU_INLINE X tie_share(M1 const& passed_over, M2 const& tie, X const& one) {
  return detail::on_its_own(select(tie, one * X(detail::lane_value_t<X>(0.5)), detail::on_its_own(select(passed_over, one - one, one))));
}
/// 1 where m holds, else 0.
template <class X, class M>
SITU_HOST_DEVICE SITU_INLINE X one_where(M const& m) {
  return detail::on_its_own(select(m, X(detail::lane_value_t<X>(1)), X(detail::lane_value_t<X>(0))));
}
/// The functions below have no name in `math`: they are short formulas.
template <class X>
SITU_HOST_DEVICE SITU_INLINE auto sign_of(X const& x) {
  if constexpr (detail::bool_lanes<X>) return x;
  else return math::sign(x);
}
template <class M, class X, class Z>
SITU_HOST_DEVICE SITU_INLINE X chosen(M const& m, X const& a, Z const& b) {
  if constexpr (detail::bool_lanes<X>) return a ^ ((a ^ b) & !m);
  else return select(m, a, b);
}
/// Exact at both ends: from a below the middle, from b above it.
template <class X>
SITU_HOST_DEVICE SITU_INLINE X lerp_of(X const& a, X const& b, X const& t) {
  using T = detail::lane_value_t<X>;
  return select(t < X(T(0.5)), a + t * (b - a), b - (b - a) * (X(T(1)) - t));
}
/// x t, of a factor that is 0 long before x is infinite: 0 there.
template <class X>
SITU_HOST_DEVICE SITU_INLINE X fading(X const& x, X const& t) {
  X const zero(detail::lane_value_t<X>(0));
  return select(t == zero, zero, x * t);
}
/// d silu / dx = s + x s (1 - s), s = sigmoid(x)
template <class X>
SITU_HOST_DEVICE SITU_INLINE X silu_slope(X const& x) {
  X const one(detail::lane_value_t<X>(1)), s = math::sigmoid(x);
  return s + fading(x, s * (one - s));
}
/// Φ(x) + x φ(x)
template <class X>
SITU_HOST_DEVICE SITU_INLINE X gelu_slope(X const& x) {
  using T = detail::lane_value_t<X>;
  if constexpr (detail::is_pack<X>) return math::gelu_slope(x);
#if defined(__CUDA_ARCH__)
  else if constexpr (std::is_same_v<X, float>) return math::detail::gelu_slope_of_device(x);
#endif
  else return X(T(0.5)) * math::erfc(x * X(T(-0.70710678118654752440))) + fading(x, X(T(0.39894228040143267794)) * math::exp(X(T(-0.5)) * x * x));
}
template <class X>
SITU_HOST_DEVICE SITU_INLINE X gelu_tanh_slope(X const& x) {
  using T = detail::lane_value_t<X>;
  X const one(T(1)), c(T(0.79788456080286535588)), k(T(0.044715));
  X const t = math::tanh(c * (x + k * x * x * x));
  return X(T(0.5)) * (one + t) + fading(x * (one + X(T(3)) * k * x * x), X(T(0.5)) * c * (one - t * t));
}
}  // namespace functions

}  // namespace situ::inline SITU_ABI

#if defined(__CUDACC__)
#pragma nv_diagnostic pop
#endif
