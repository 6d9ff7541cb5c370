/// Square roots, rounding, signs, tests, extremes and division with remainder: of numbers and of packs.
///
/// Special values are those of IEEE 754 and C99 Annex F; `remainder`, `floor_divide`, `minimum` and `maximum` are
/// NumPy's. Tests look at bits, so that they hold under -ffast-math. Integers wrap and divide by zero to 0.
#pragma once


#include <situ/expr/math/detail.hpp>
#include <situ/expr/pack.hpp>

namespace situ::inline SITU_ABI {
namespace math {
namespace detail {

template <class T>
using bits_of = situ::detail::signed_of_bytes<static_cast<int>(sizeof(T))>;
template <class T>
inline constexpr bits_of<T> magnitude_bits = std::numeric_limits<bits_of<T>>::max();
template <class T>
inline constexpr bits_of<T> infinity_bits = sizeof(T) == 4 ? static_cast<bits_of<T>>(0x7f800000)
                                                           : static_cast<bits_of<T>>(0x7ff0000000000000);

template <class T>
SITU_HOST_DEVICE constexpr bits_of<T> magnitude_of(T x) {
  return static_cast<bits_of<T>>(situ::detail::bits_to<bits_of<T>>(x) & magnitude_bits<T>);
}
template <class T, int N, class Isa>
SITU_INLINE pack<bits_of<T>, N, Isa> magnitude_of(pack<T, N, Isa> const& x) {
  return bitcast<bits_of<T>>(x) & pack<bits_of<T>, N, Isa>(magnitude_bits<T>);
}

/// Infinite, or no number, also where the compiler believes that there is neither.
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> infinite() {
  return bitcast<T>(pack<bits_of<T>, N, Isa>(infinity_bits<T>));
}
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> not_a_number() {
  return bitcast<T>(pack<bits_of<T>, N, Isa>(static_cast<bits_of<T>>(infinity_bits<T> + (infinity_bits<T> >> 9))));
}

enum class towards { nearest = 0, below = 1, above = 2, zero = 3 };

/// Integral values by adding and subtracting 2^23 or 2^52, for instruction sets that cannot round.
template <towards Direction, class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> rounded_by_sum(pack<T, N, Isa> const& x) {
  using P = pack<T, N, Isa>;
  P const size = bitcast<T>(magnitude_of(x)), whole(sizeof(T) == 4 ? T(0x1p23) : T(0x1p52)), zero(T(0)), one(T(1));
  P const nearest = keep_order(size + whole) - whole;
  P r = nearest;
  if constexpr (Direction == towards::zero) {
    r = nearest - select(nearest > size, one, zero);
  } else if constexpr (Direction != towards::nearest) {
    P const sided = flip_sign(nearest, x);
    r = Direction == towards::below ? sided - select(sided > x, one, zero) : sided + select(sided < x, one, zero);
    r = bitcast<T>(magnitude_of(r));
  }
  return select(size < whole, flip_sign(r, x), x);
}

template <towards Direction, class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> rounded(pack<T, N, Isa> const& x) {
  if constexpr (Isa::bytes >= 32) {
#if SITU_MATH_X86_ASM
    if constexpr (in_register<T, N, Isa>) {
      constexpr int quietly = static_cast<int>(Direction) | 8;
      typename pack<T, N, Isa>::vector r;
      auto const v = x.v;
      if constexpr (Isa::bytes == 64 && sizeof(T) == 4) {
        __asm__("vrndscaleps {%2, %1, %0|%0, %1, %2}" : "=v"(r) : "v"(v), "i"(quietly));
      } else if constexpr (Isa::bytes == 64) {
        __asm__("vrndscalepd {%2, %1, %0|%0, %1, %2}" : "=v"(r) : "v"(v), "i"(quietly));
      } else if constexpr (sizeof(T) == 4) {
        __asm__("vroundps {%2, %1, %0|%0, %1, %2}" : "=x"(r) : "x"(v), "i"(quietly));
      } else {
        __asm__("vroundpd {%2, %1, %0|%0, %1, %2}" : "=x"(r) : "x"(v), "i"(quietly));
      }
      return pack<T, N, Isa>(r);
    }
#elif defined(__clang__) && !defined(__CUDACC__)
    if constexpr (Direction == towards::below)
      return pack<T, N, Isa>(__builtin_elementwise_floor(x.v));
    else if constexpr (Direction == towards::above)
      return pack<T, N, Isa>(__builtin_elementwise_ceil(x.v));
    else if constexpr (Direction == towards::zero)
      return pack<T, N, Isa>(__builtin_elementwise_trunc(x.v));
    else
      return pack<T, N, Isa>(__builtin_elementwise_roundeven(x.v));
#endif
  }
  return rounded_by_sum<Direction>(x);
}

#if defined(__clang__)
// Square roots that are free of errno, which clang then joins to vector instructions.
extern "C" float situ_math_sqrtf(float) __asm__("sqrtf") __attribute__((const));
extern "C" double situ_math_sqrt(double) __asm__("sqrt") __attribute__((const));
#endif
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> sqrt_by_lane(pack<T, N, Isa> const& x) {
#if SITU_MATH_ESTIMATES
  return by_sixteen_bytes<exact::square_root>(x, x);
#else
  pack<T, N, Isa> r(x);
  for (int k = 0; k < N; ++k) {
#if defined(__clang__)
    if constexpr (sizeof(T) == 4)
      r.v[k] = situ_math_sqrtf(x.v[k]);
    else
      r.v[k] = situ_math_sqrt(x.v[k]);
#else
    if constexpr (sizeof(T) == 4)
      r.v[k] = SITU_LIBM(sqrtf)(x.v[k]);
    else
      r.v[k] = SITU_LIBM(sqrt)(x.v[k]);
#endif
  }
  return r;
#endif
}

/// a / b, correctly rounded.
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> quotient(pack<T, N, Isa> const& a, pack<T, N, Isa> const& b) {
  return divide(a, b);
}

}  // namespace detail

// Numbers.

SITU_HOST_DEVICE inline float sqrt(float x) { return SITU_LIBM(sqrtf)(x); }
SITU_HOST_DEVICE inline double sqrt(double x) { return SITU_LIBM(sqrt)(x); }
#if defined(__CUDA_ARCH__)
SITU_HOST_DEVICE inline float rsqrt(float x) { return ::rsqrtf(x); }
SITU_HOST_DEVICE inline double rsqrt(double x) { return ::rsqrt(x); }
#else
SITU_HOST_DEVICE inline float rsqrt(float x) { return 1.f / SITU_LIBM(sqrtf)(x); }
SITU_HOST_DEVICE inline double rsqrt(double x) { return 1. / SITU_LIBM(sqrt)(x); }
#endif
SITU_HOST_DEVICE inline float reciprocal(float x) { return 1.f / x; }
SITU_HOST_DEVICE inline double reciprocal(double x) { return 1. / x; }
SITU_HOST_DEVICE inline float abs(float x) { return SITU_LIBM(fabsf)(x); }
SITU_HOST_DEVICE inline double abs(double x) { return SITU_LIBM(fabs)(x); }
SITU_HOST_DEVICE inline float floor(float x) { return SITU_LIBM(floorf)(x); }
SITU_HOST_DEVICE inline double floor(double x) { return SITU_LIBM(floor)(x); }
SITU_HOST_DEVICE inline float ceil(float x) { return SITU_LIBM(ceilf)(x); }
SITU_HOST_DEVICE inline double ceil(double x) { return SITU_LIBM(ceil)(x); }
SITU_HOST_DEVICE inline float round(float x) { return SITU_LIBM(rintf)(x); }
SITU_HOST_DEVICE inline double round(double x) { return SITU_LIBM(rint)(x); }
SITU_HOST_DEVICE inline float trunc(float x) { return SITU_LIBM(truncf)(x); }
SITU_HOST_DEVICE inline double trunc(double x) { return SITU_LIBM(trunc)(x); }
SITU_HOST_DEVICE inline float copysign(float x, float sign) { return SITU_LIBM(copysignf)(x, sign); }
SITU_HOST_DEVICE inline double copysign(double x, double sign) { return SITU_LIBM(copysign)(x, sign); }
SITU_HOST_DEVICE inline float hypot(float x, float y) { return SITU_LIBM(hypotf)(x, y); }
SITU_HOST_DEVICE inline double hypot(double x, double y) { return SITU_LIBM(hypot)(x, y); }
SITU_HOST_DEVICE inline float fmod(float x, float y) { return SITU_LIBM(fmodf)(x, y); }
SITU_HOST_DEVICE inline double fmod(double x, double y) { return SITU_LIBM(fmod)(x, y); }

template <class T>
requires std::is_floating_point_v<T> SITU_HOST_DEVICE constexpr bool isnan(T x) {
  return detail::magnitude_of(x) > detail::infinity_bits<T>;
}
template <class T>
requires std::is_floating_point_v<T> SITU_HOST_DEVICE constexpr bool isinf(T x) {
  return detail::magnitude_of(x) == detail::infinity_bits<T>;
}
template <class T>
requires std::is_floating_point_v<T> SITU_HOST_DEVICE constexpr bool isfinite(T x) {
  return detail::magnitude_of(x) < detail::infinity_bits<T>;
}

/// The smaller; a NaN in either; of equals the first.
template <class T>
requires std::is_arithmetic_v<T> SITU_HOST_DEVICE constexpr T minimum(T x, T y) {
  if constexpr (std::is_floating_point_v<T>)
    return x <= y || x != x ? x : y;
  else
    return x <= y ? x : y;
}
template <class T>
requires std::is_arithmetic_v<T> SITU_HOST_DEVICE constexpr T maximum(T x, T y) {
  if constexpr (std::is_floating_point_v<T>)
    return x >= y || x != x ? x : y;
  else
    return x >= y ? x : y;
}

/// -1, 0 or 1; 0 for both zeros, NaN for NaN.
template <class T>
requires std::is_arithmetic_v<T> SITU_HOST_DEVICE constexpr T sign(T x) {
  if constexpr (std::is_unsigned_v<T>)
    return x != T(0) ? T(1) : T(0);
  else
    return x > T(0) ? T(1) : x < T(0) ? T(-1) : x == T(0) ? T(0) : x;
}

/// |x|; the most negative integer stays itself.
template <class T>
requires std::is_integral_v<T> SITU_HOST_DEVICE constexpr T abs(T x) {
  using U = std::make_unsigned_t<T>;
  if constexpr (std::is_unsigned_v<T>)
    return x;
  else
    return x < 0 ? static_cast<T>(static_cast<U>(U(0) - static_cast<U>(x))) : x;
}

/// The quotient rounded towards minus infinity. By zero: 0.
template <class T>
requires std::is_integral_v<T> SITU_HOST_DEVICE constexpr T floor_divide(T x, T y) {
  using U = std::make_unsigned_t<T>;
  if (y == T(0)) return T(0);
  if constexpr (std::is_unsigned_v<T>) {
    return static_cast<T>(x / y);
  } else {
    if (y == T(-1)) return static_cast<T>(static_cast<U>(U(0) - static_cast<U>(x)));
    T const quotient = static_cast<T>(x / y), rest = static_cast<T>(x % y);
    return rest != 0 && (rest < 0) != (y < 0) ? static_cast<T>(quotient - 1) : quotient;
  }
}
/// x - y · floor(x / y): the divisor's sign, or zero. By zero: 0.
template <class T>
requires std::is_integral_v<T> SITU_HOST_DEVICE constexpr T remainder(T x, T y) {
  if (y == T(0)) return T(0);
  if constexpr (std::is_unsigned_v<T>) {
    return static_cast<T>(x % y);
  } else {
    if (y == T(-1)) return T(0);
    T const rest = static_cast<T>(x % y);
    return rest != 0 && (rest < 0) != (y < 0) ? static_cast<T>(rest + y) : rest;
  }
}
/// x - y · trunc(x / y): the dividend's sign, or zero. By zero: 0.
template <class T>
requires std::is_integral_v<T> SITU_HOST_DEVICE constexpr T fmod(T x, T y) {
  if (y == T(0)) return T(0);
  if constexpr (std::is_signed_v<T>) {
    if (y == T(-1)) return T(0);
  }
  return static_cast<T>(x % y);
}

/// fmod moved to the divisor's sign; a zero has that sign too.
template <class T>
requires std::is_floating_point_v<T> SITU_HOST_DEVICE inline T remainder(T x, T y) {
  T const rest = fmod(x, y);
  if (rest == T(0)) {
    return situ::detail::bits_to<T>(
        static_cast<detail::bits_of<T>>(situ::detail::bits_to<detail::bits_of<T>>(y) & ~detail::magnitude_bits<T>));
  }
  return (rest < T(0)) != (y < T(0)) ? rest + y : rest;
}

/// The quotient rounded towards minus infinity, consistent with `remainder`; by zero: as x / y.
template <class T>
requires std::is_floating_point_v<T> SITU_HOST_DEVICE inline T floor_divide(T x, T y) {
  if (y == T(0)) return x / y;
  T const rest = fmod(x, y);
  T quotient = (x - rest) / y;
  if (rest != T(0) && (rest < T(0)) != (y < T(0))) quotient -= T(1);
  if (quotient == T(0)) {
    using Ix = detail::bits_of<T>;
    return situ::detail::bits_to<T>(
        static_cast<Ix>((situ::detail::bits_to<Ix>(x) ^ situ::detail::bits_to<Ix>(y)) & ~detail::magnitude_bits<T>));
  }
  T const whole = floor(quotient);
  return quotient - whole > T(0.5) ? whole + T(1) : whole;
}

// Packs. Between two selections stands keep_order where g++ would join their masks by |, which AVX-512 kernels then
// do lane by lane.

template <class T, int N, class Isa>
  requires std::is_floating_point_v<T> SITU_INLINE pack<T, N, Isa> sqrt(pack<T, N, Isa> const& x) {
#if SITU_MATH_X86_ASM
    if constexpr (detail::in_register<T, N, Isa>) {
      typename pack<T, N, Isa>::vector r;
      auto const v = x.v;
#if !defined(__AVX__)
      if constexpr (Isa::bytes == 16) {
        if constexpr (sizeof(T) == 4)
          __asm__("sqrtps {%1, %0|%0, %1}" : "=x"(r) : "x"(v));
        else
          __asm__("sqrtpd {%1, %0|%0, %1}" : "=x"(r) : "x"(v));
        return pack<T, N, Isa>(r);
      }
#endif
      if constexpr (sizeof(T) == 4)
        __asm__("vsqrtps {%1, %0|%0, %1}" : "=v"(r) : "v"(v));
      else
        __asm__("vsqrtpd {%1, %0|%0, %1}" : "=v"(r) : "v"(v));
      return pack<T, N, Isa>(r);
    }
#elif !defined(__clang__) && defined(__aarch64__)
    if constexpr (sizeof(T) * N == 16) {
      typename pack<T, N, Isa>::vector r;
      if constexpr (sizeof(T) == 4)
        __asm__("fsqrt %0.4s, %1.4s" : "=w"(r) : "w"(x.v));
      else
        __asm__("fsqrt %0.2d, %1.2d" : "=w"(r) : "w"(x.v));
      return pack<T, N, Isa>(r);
    }
#endif
    return detail::sqrt_by_lane(x);
  }

template <class T, int N, class Isa>
  requires std::is_floating_point_v<T> SITU_INLINE pack<T, N, Isa> reciprocal(pack<T, N, Isa> const& x) {
    return detail::quotient(pack<T, N, Isa>(T(1)), x);
  }
template <class T, int N, class Isa>
  requires std::is_floating_point_v<T> SITU_INLINE pack<T, N, Isa> rsqrt(pack<T, N, Isa> const& x) {
    return reciprocal(sqrt(x));
  }

template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> abs(pack<T, N, Isa> const& x) {
  if constexpr (std::is_floating_point_v<T>)
    return bitcast<T>(detail::magnitude_of(x));
  else if constexpr (std::is_unsigned_v<T>)
    return x;
  else
    return select(x < pack<T, N, Isa>(T(0)), -x, x);
}
template <class T, int N, class Isa>
  requires std::is_floating_point_v<T> SITU_INLINE pack<T, N, Isa> copysign(pack<T, N, Isa> const& x,
                                                                            pack<T, N, Isa> const& sign) {
    return detail::flip_sign(abs(x), sign);
  }
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> sign(pack<T, N, Isa> const& x) {
  using P = pack<T, N, Isa>;
  P const zero(T(0)), one(T(1));
  if constexpr (std::is_floating_point_v<T>) {
    P const r = select(x == zero, zero, copysign(one, x));
    return select(x != x, x, r);
  } else if constexpr (std::is_unsigned_v<T>) {
    return select(x != zero, one, zero);
  } else {
    return select(x > zero, one, select(x < zero, P(T(-1)), zero));
  }
}

template <class T, int N, class Isa>
  requires std::is_floating_point_v<T> SITU_INLINE pack<T, N, Isa> floor(pack<T, N, Isa> const& x) {
    return detail::rounded<detail::towards::below>(x);
  }
template <class T, int N, class Isa>
  requires std::is_floating_point_v<T> SITU_INLINE pack<T, N, Isa> ceil(pack<T, N, Isa> const& x) {
    return detail::rounded<detail::towards::above>(x);
  }
/// To the nearest integer, halves to even.
template <class T, int N, class Isa>
  requires std::is_floating_point_v<T> SITU_INLINE pack<T, N, Isa> round(pack<T, N, Isa> const& x) {
    return detail::rounded<detail::towards::nearest>(x);
  }
template <class T, int N, class Isa>
  requires std::is_floating_point_v<T> SITU_INLINE pack<T, N, Isa> trunc(pack<T, N, Isa> const& x) {
    return detail::rounded<detail::towards::zero>(x);
  }

template <class T, int N, class Isa>
requires std::is_floating_point_v<T> SITU_INLINE auto isnan(pack<T, N, Isa> const& x) {
  return detail::magnitude_of(x) > pack<detail::bits_of<T>, N, Isa>(detail::infinity_bits<T>);
}
template <class T, int N, class Isa>
requires std::is_floating_point_v<T> SITU_INLINE auto isinf(pack<T, N, Isa> const& x) {
  return detail::magnitude_of(x) == pack<detail::bits_of<T>, N, Isa>(detail::infinity_bits<T>);
}
template <class T, int N, class Isa>
requires std::is_floating_point_v<T> SITU_INLINE auto isfinite(pack<T, N, Isa> const& x) {
  return detail::magnitude_of(x) < pack<detail::bits_of<T>, N, Isa>(detail::infinity_bits<T>);
}

template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> minimum(pack<T, N, Isa> const& x, pack<T, N, Isa> const& y) {
  pack<T, N, Isa> const r = select(x <= y, x, y);
  if constexpr (std::is_floating_point_v<T>)
    return select(x != x, x, keep_order(r));
  else
    return r;
}
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> maximum(pack<T, N, Isa> const& x, pack<T, N, Isa> const& y) {
  pack<T, N, Isa> const r = select(x >= y, x, y);
  if constexpr (std::is_floating_point_v<T>)
    return select(x != x, x, keep_order(r));
  else
    return r;
}

/// √(x² + y²) without overflow; infinite where either is, also beside a NaN.
template <class T, int N, class Isa>
  requires std::is_floating_point_v<T> SITU_INLINE pack<T, N, Isa> hypot(pack<T, N, Isa> const& x,
                                                                         pack<T, N, Isa> const& y) {
    using P = pack<T, N, Isa>;
    constexpr bool narrow = sizeof(T) == 4;
    P const size_x = abs(x), size_y = abs(y), one(T(1));
    auto const swapped = size_x < size_y;
    P const larger = select(swapped, size_y, size_x), smaller = select(swapped, size_x, size_y);
    auto const huge = larger > P(narrow ? T(0x1p60) : T(0x1p500));
    auto const tiny = larger < P(narrow ? T(0x1p-40) : T(0x1p-450));
    constexpr T up = narrow ? T(0x1p90f) : T(0x1p600), down = T(1) / up;
    P const scale = select(huge, P(down), select(tiny, P(up), one));
    P const unscale = select(huge, P(up), select(tiny, P(down), one));
    P const a = keep_order(larger * scale), b = keep_order(smaller * scale);
    P const r = keep_order(sqrt(a * a + b * b)) * unscale;
    P const without_x = select(isinf(y), size_y, r);
    return select(isinf(x), size_x, keep_order(without_x));
  }

namespace detail {
/// Division with remainder of numbers: what lanes that packs do not divide are left to.
struct fmod_lanes {
  static constexpr bool floors = false, counts = false;
  template <class T>
  static T value(T x, T y) {
    return math::fmod(x, y);
  }
};
struct remainder_lanes {
  static constexpr bool floors = true, counts = false;
  template <class T>
  static T value(T x, T y) {
    return math::remainder(x, y);
  }
};
struct floor_divide_lanes {
  static constexpr bool floors = true, counts = true;
  template <class T>
  static T value(T x, T y) {
    return math::floor_divide(x, y);
  }
};

/// F of floats, for |y| between 2^-102 and 2^100, or 2^-969 and 2^980, so that the last digit of y is a normal number and nothing overflows, and
/// near = x · (1 / y) up to 2^21 or 2^50, without fma up to 2^10 or 2^24. Of whole numbers, whose products are exact, a zero may have any sign.
///
/// `near` misses x / y by a quarter at most, so that its nearest integer times y is not as far from x as y is from 0: no digit of what is left is lost.
template <class F, bool Whole, class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> divided(pack<T, N, Isa> const& x, pack<T, N, Isa> const& y, pack<T, N, Isa> const& near) {
  using P = pack<T, N, Isa>;
  P const zero(T(0)), times = round_small(near);
  P left;
  if constexpr (Isa::fma) {
    left = fused<sign::minus>(times, y, x);
  } else if constexpr (Whole) {
    left = x - times * y;
  } else {
    P const upper = upper_half(y);
    left = keep_order(x - keep_order(times * upper)) - keep_order(times * keep_order(y - upper));
  }
  if constexpr (F::floors) {
    auto const over = flip_sign(left, y) < zero;
    if constexpr (F::counts) {
      P const floor = times - select(over, P(T(1)), zero);
      if constexpr (Whole) return floor;
      else return with_sign_of(flip_sign(x, y), floor);
    } else {
      P const rest = select(over, left + y, left);
      if constexpr (Whole) return rest;
      else return copysign(rest, y);
    }
  } else {
    if constexpr (!Whole) left = select(times == zero, x, keep_order(left));  // a denormal, also where they are flushed
    P const rest = select(flip_sign(left, x) < zero, left + copysign(y, x), left);
    if constexpr (Whole) return rest;
    else return copysign(rest, x);
  }
}

template <class F, class T, int N, class Isa>
  requires std::is_floating_point_v<T> SITU_INLINE pack<T, N, Isa> division(pack<T, N, Isa> const& x, pack<T, N, Isa> const& y) {
    using Ix = bits_of<T>;
    using B = pack<Ix, N, Isa>;
    constexpr bool narrow = sizeof(T) == 4;
    constexpr int digits = narrow ? 23 : 52;
    constexpr auto power = [](int exponent) { return static_cast<Ix>(static_cast<Ix>((narrow ? 127 : 1023) + exponent) << digits); };
    constexpr Ix least = power(narrow ? -102 : -969), most = power(narrow ? 100 : 980), farthest = power(Isa::fma ? digits - 2 : digits / 2 - 2);
    auto const near = x * divide(pack<T, N, Isa>(T(1)), y);
    B const size = magnitude_of(y), far = magnitude_of(near);
    auto const r = divided<F, false>(x, y, near);
    auto const strange = ((size - B(least)) | (B(most) - size) | (B(farthest) - far)) < B(Ix(0));
    if (SITU_UNLIKELY(any(strange))) return by_lane<F>(strange, x, y, r);
    return r;
  }

/// Integers as floats; of 64 bits those below 2^51.
template <class R, class T, int N, class Isa>
SITU_INLINE pack<R, N, Isa> small_integers(pack<T, N, Isa> const& x) {
  if constexpr (sizeof(T) == 8) {
    pack<R, N, Isa> const magic(round_magic<R>);
    return bitcast<R>(x + bitcast<T>(magic)) - magic;
  } else {
    return convert_unchecked<R>(x);
  }
}

/// Integers as floats that hold them and the products: those of 8 and 16 bits in float, of 32 in double, and of 64 those up to 2^50.
template <class F, class T, int N, class Isa>
  requires std::is_integral_v<T> SITU_INLINE pack<T, N, Isa> division(pack<T, N, Isa> const& x, pack<T, N, Isa> const& y) {
    using R = std::conditional_t<(sizeof(T) < 4), float, double>;
    using P = pack<R, N, Isa>;
    using B = pack<bits_of<R>, N, Isa>;
    if constexpr (sizeof(R) * N > static_cast<std::size_t>(Isa::bytes) || (sizeof(T) == 8 && Isa::bytes == 16)) {
      return every_lane<F>(x, y);
    } else {
      P const magic(round_magic<R>);
      P const a = small_integers<R>(x), b = small_integers<R>(y);
      P const r = divided<F, true>(a, b, a * divide(P(R(1)), b));
      B const whole = bitcast<bits_of<R>>(keep_order(r + magic)) - bitcast<bits_of<R>>(magic);
      pack<T, N, Isa> const zero(T(0)), result = select(y == zero, zero, convert_unchecked<T>(whole));
      if constexpr (sizeof(T) == 8) {
        pack<T, N, Isa> const bound(T(1) << 50), beyond(static_cast<T>(~((T(1) << 51) - 1)));
        auto const strange = (((x + bound) | (y + bound)) & beyond) != zero;
        if (SITU_UNLIKELY(any(strange))) return by_lane<F>(strange, x, y, result);
      }
      return result;
    }
  }
}  // namespace detail

template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> fmod(pack<T, N, Isa> const& x, pack<T, N, Isa> const& y) {
  return detail::division<detail::fmod_lanes>(x, y);
}
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> remainder(pack<T, N, Isa> const& x, pack<T, N, Isa> const& y) {
  return detail::division<detail::remainder_lanes>(x, y);
}
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> floor_divide(pack<T, N, Isa> const& x, pack<T, N, Isa> const& y) {
  return detail::division<detail::floor_divide_lanes>(x, y);
}

}  // namespace math
}  // namespace situ::inline SITU_ABI
