/// What the vector functions of mathematics are made of: fused and compensated arithmetic, powers of two, slow lanes.
///
/// Nothing here relies on the compiler's own contraction of a*b + c, and what depends on the order of operations is
/// fenced, so that -O0, -ffp-contract=off and -ffast-math give the same accuracy.
#pragma once

#include <utility>

#include <situ/expr/pack.hpp>

namespace situ::inline SITU_ABI {
namespace math {
namespace detail {

#if defined(__CUDA_ARCH__)
// What a GPU has for results of 16 bits.
/// 2^x to 22 bits, 0 where that is subnormal.
__device__ inline float approximate_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float approximate_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#endif

// Inline assembly for one vector operation, spelled for both assembler dialects, where g++ has no spelling of its own.
// Clang judges an operand's size by the flags of the file, not of the kernel, and gets none.
#if SITU_X86 && !defined(__clang__)
#define SITU_MATH_X86_ASM 1
#else
#define SITU_MATH_X86_ASM 0
#endif

template <class T, int N, class Isa>
inline constexpr bool in_register =
    (sizeof(T) * N == 16 || sizeof(T) * N == 32 || sizeof(T) * N == 64) && sizeof(T) * N <= Isa::bytes;
/// vscalef, vgetexp and vgetmant can be used.
template <class T, int N, class Isa>
inline constexpr bool has_avx512 = SITU_MATH_X86_ASM && Isa::bytes == 64 && in_register<T, N, Isa>;

/// vmaxps and vminps can be used with the result apart from the operands; g++ 12 makes a comparison and a blend of a selection.
template <class T, int N, class Isa>
inline constexpr bool has_extrema = SITU_MATH_X86_ASM && Isa::bytes >= 32 && in_register<T, N, Isa>;

/// ±(a*b) ± c, rounded once. Only where Isa::fma.
enum class sign { plus, minus };
template <sign Product = sign::plus, sign Addend = sign::plus, class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> fused(pack<T, N, Isa> const& a, pack<T, N, Isa> const& b, pack<T, N, Isa> const& c) {
  static_assert(Isa::fma);
#if SITU_MATH_X86_ASM
  if constexpr (in_register<T, N, Isa>) {
    static_assert(Product == sign::plus || Addend == sign::plus);
    auto r = a.v;
    auto const bv = b.v;
    auto const cv = c.v;
#define SITU_MATH_FUSED(name) __asm__(name " {%2, %1, %0|%0, %1, %2}" : "+v"(r) : "v"(bv), "v"(cv))
    if constexpr (sizeof(T) == 4 && Product == sign::minus) SITU_MATH_FUSED("vfnmadd213ps");
    else if constexpr (sizeof(T) == 4 && Addend == sign::minus) SITU_MATH_FUSED("vfmsub213ps");
    else if constexpr (sizeof(T) == 4) SITU_MATH_FUSED("vfmadd213ps");
    else if constexpr (Product == sign::minus) SITU_MATH_FUSED("vfnmadd213pd");
    else if constexpr (Addend == sign::minus) SITU_MATH_FUSED("vfmsub213pd");
    else SITU_MATH_FUSED("vfmadd213pd");
#undef SITU_MATH_FUSED
    return pack<T, N, Isa>(r);
  }
#endif
  auto const av = Product == sign::minus ? -a.v : a.v;
  auto r = Addend == sign::minus ? -c.v : c.v;
#if defined(__clang__) && __has_builtin(__builtin_elementwise_fma)
  return pack<T, N, Isa>(__builtin_elementwise_fma(av, b.v, r));
#else
#if !defined(__clang__) && defined(__aarch64__)
  if constexpr (sizeof(T) * N == 16) {
    if constexpr (sizeof(T) == 4) __asm__("fmla %0.4s, %1.4s, %2.4s" : "+w"(r) : "w"(av), "w"(b.v));
    else __asm__("fmla %0.2d, %1.2d, %2.2d" : "+w"(r) : "w"(av), "w"(b.v));
    return pack<T, N, Isa>(r);
  }
#endif
  for (int k = 0; k < N; ++k) {
    if constexpr (sizeof(T) == 4) r[k] = __builtin_fmaf(av[k], b.v[k], r[k]);
    else r[k] = __builtin_fma(av[k], b.v[k], r[k]);
  }
  return pack<T, N, Isa>(r);
#endif
}

#if defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__ && SITU_X86
#define SITU_MATH_ESTIMATES 1  // compilers may replace quotients and square roots by estimates
#else
#define SITU_MATH_ESTIMATES 0
#endif

#if SITU_MATH_ESTIMATES
enum class exact { quotient, square_root };
/// One instruction on 16 bytes: clang, too, accepts that size in every file.
template <exact Operation, class T, class V>
SITU_INLINE void by_instruction(V& r, V const& a) {
#if !defined(__AVX__)
  if constexpr (Operation == exact::quotient && sizeof(T) == 4)
    __asm__("divps {%1, %0|%0, %1}" : "+x"(r) : "x"(a));
  else if constexpr (Operation == exact::quotient)
    __asm__("divpd {%1, %0|%0, %1}" : "+x"(r) : "x"(a));
  else if constexpr (sizeof(T) == 4)
    __asm__("sqrtps {%1, %0|%0, %1}" : "=x"(r) : "x"(a));
  else
    __asm__("sqrtpd {%1, %0|%0, %1}" : "=x"(r) : "x"(a));
#else
  constexpr bool divides = Operation == exact::quotient;
  if constexpr (divides && sizeof(T) == 4)
    __asm__("vdivps {%1, %0, %0|%0, %0, %1}" : "+x"(r) : "x"(a));
  else if constexpr (divides)
    __asm__("vdivpd {%1, %0, %0|%0, %0, %1}" : "+x"(r) : "x"(a));
  else if constexpr (sizeof(T) == 4)
    __asm__("vsqrtps {%1, %0|%0, %1}" : "=x"(r) : "x"(a));
  else
    __asm__("vsqrtpd {%1, %0|%0, %1}" : "=x"(r) : "x"(a));
#endif
}
template <exact Operation, class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> by_sixteen_bytes(pack<T, N, Isa> const& x, pack<T, N, Isa> const& a) {
  using V = typename situ::detail::vector_of<T, static_cast<int>(16 / sizeof(T))>::type;
  constexpr int size = static_cast<int>(sizeof(T)) * N, step = size < 16 ? size : 16;
  pack<T, N, Isa> r(x);
  for (int from = 0; from < size; from += step) {
    V part = V{} + T(1), operand = part;
    __builtin_memcpy(&part, reinterpret_cast<char const*>(&x.v) + from, step);
    __builtin_memcpy(&operand, reinterpret_cast<char const*>(&a.v) + from, step);
    by_instruction<Operation, T>(part, operand);
    __builtin_memcpy(reinterpret_cast<char*>(&r.v) + from, &part, step);
  }
  return r;
}
#endif

/// a / b, correctly rounded also where -ffast-math would multiply by an approximate reciprocal.
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> divide(pack<T, N, Isa> const& a, pack<T, N, Isa> const& b) {
#if SITU_MATH_ESTIMATES
  if constexpr (!(SITU_MATH_X86_ASM && in_register<T, N, Isa>)) {
    return by_sixteen_bytes<exact::quotient>(a, b);
  } else {
    auto r = a.v;
    auto const bv = b.v;
#if !defined(__AVX__)
    if constexpr (Isa::bytes == 16) {
      if constexpr (sizeof(T) == 4) __asm__("divps {%1, %0|%0, %1}" : "+x"(r) : "x"(bv));
      else __asm__("divpd {%1, %0|%0, %1}" : "+x"(r) : "x"(bv));
      return pack<T, N, Isa>(r);
    }
#endif
    if constexpr (sizeof(T) == 4) __asm__("vdivps {%1, %0, %0|%0, %0, %1}" : "+v"(r) : "v"(bv));
    else __asm__("vdivpd {%1, %0, %0|%0, %0, %1}" : "+v"(r) : "v"(bv));
    return pack<T, N, Isa>(r);
  }
#else
#if defined(__clang__) && __clang_major__ >= 18
#pragma clang fp reciprocal(off)
#endif
  return pack<T, N, Isa>(typename pack<T, N, Isa>::vector(a.v / b.v));
#endif
}

/// 1 / a to within 2^-14 or better, for a in [2^-100, 2^100]: `residual` tells the rest.
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> near_reciprocal(pack<T, N, Isa> const& a) {
#if SITU_MATH_X86_ASM
  if constexpr (sizeof(T) == 4 && has_avx512<T, N, Isa>) {
    auto const v = a.v;
    auto r = v;
    __asm__("vrcp14ps {%1, %0|%0, %1}" : "=v"(r) : "v"(v));
    return pack<T, N, Isa>(r);
  }
#endif
  return divide(pack<T, N, Isa>(T(1)), a);
}

/// True if any lane is; one or two instructions.
template <int Bytes, int N, class Isa>
SITU_INLINE bool any(lane_mask<Bytes, N, Isa> const& m) {
#if SITU_MATH_X86_ASM
  auto const v = m.v;
  if constexpr (Bytes * N == 64 && Isa::bytes == 64) {
    unsigned short k;
    __asm__("vptestmd {%1, %1, %0|%0, %1, %1}" : "=Yk"(k) : "v"(v));
    return k != 0;
  } else if constexpr (Bytes * N == 32 && Isa::bytes >= 32) {
    int r;
    __asm__("vpmovmskb {%1, %0|%0, %1}" : "=r"(r) : "x"(v));
    return r != 0;
  } else if constexpr (Bytes * N == 16) {
    int r;
#if !defined(__AVX__)
    if constexpr (Isa::bytes == 16) __asm__("pmovmskb {%1, %0|%0, %1}" : "=r"(r) : "x"(v));
    else
#endif
      __asm__("vpmovmskb {%1, %0|%0, %1}" : "=r"(r) : "x"(v));
    return r != 0;
  }
#endif
  return any_of(m);
}

/// True if any lane of x is below the bound; NaN is not.
template <int N, class Isa>
SITU_INLINE bool any_below(pack<float, N, Isa> const& x, float bound) {
  pack<float, N, Isa> const b(bound);
#if SITU_MATH_X86_ASM
  if constexpr (has_avx512<float, N, Isa> && N == 16) {
    auto const xv = x.v;
    auto const bv = b.v;
    unsigned short k;
    __asm__("vcmpps {$1, %2, %1, %0|%0, %1, %2, 1}" : "=Yk"(k) : "v"(xv), "v"(bv));
    return k != 0;
  }
#endif
  return any(x < b);
}

/// True if a sign bit is set, also that of a NaN.
template <int N, class Isa>
SITU_INLINE bool any_negative(pack<float, N, Isa> const& x) {
#if SITU_MATH_X86_ASM
  if constexpr (N == 8 && in_register<float, N, Isa>) {
    auto const v = x.v;
    int r;
    __asm__("vmovmskps {%1, %0|%0, %1}" : "=r"(r) : "x"(v));
    return r != 0;
  }
#endif
  return any(bitcast<int32_t>(x) < pack<int32_t, N, Isa>(0));
}

/// hi + lo, not rounded: lo holds what hi lost.
template <class P>
struct two {
  P hi, lo;
};

/// a + b exactly, for a whose last digit weighs no less than that of b; so for |a| >= |b|, or a == 0.
template <class T, int N, class Isa>
SITU_INLINE two<pack<T, N, Isa>> fast_two_sum(pack<T, N, Isa> const& a, pack<T, N, Isa> const& b) {
  pack<T, N, Isa> const s = keep_order(a + b);
  return {s, b - keep_order(s - a)};
}

/// a + b exactly.
template <class T, int N, class Isa>
SITU_INLINE two<pack<T, N, Isa>> two_sum(pack<T, N, Isa> const& a, pack<T, N, Isa> const& b) {
  pack<T, N, Isa> const s = keep_order(a + b);
  pack<T, N, Isa> const from_b = keep_order(s - a);
  pack<T, N, Isa> const from_a = keep_order(s - from_b);
  return {s, keep_order(a - from_a) + keep_order(b - from_b)};
}

/// The upper half of the digits of a, so that products of such halves are exact.
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> upper_half(pack<T, N, Isa> const& a) {
  if constexpr (sizeof(T) == 4) return bitcast<float>(bitcast<int32_t>(a) & pack<int32_t, N, Isa>(-0x1000));
  else return bitcast<double>(bitcast<int64_t>(a) & pack<int64_t, N, Isa>(-0x8000000));
}

/// a * b exactly, unless the low part underflows.
template <class T, int N, class Isa>
SITU_INLINE two<pack<T, N, Isa>> two_prod(pack<T, N, Isa> const& a, pack<T, N, Isa> const& b) {
  using P = pack<T, N, Isa>;
  P const p = keep_order(a * b);
  if constexpr (Isa::fma) {
    return {p, fused<sign::plus, sign::minus>(a, b, p)};
  } else {
    P const a1 = upper_half(a), b1 = upper_half(b), a2 = keep_order(a - a1), b2 = keep_order(b - b1);
    P const e1 = keep_order(a1 * b1 - p);
    P const e2 = keep_order(e1 + keep_order(a1 * b2));
    P const e3 = keep_order(e2 + keep_order(a2 * b1));
    return {p, keep_order(e3 + keep_order(a2 * b2))};
  }
}

/// c + a b to twice the precision, for c whose last digit weighs no less than that of a b.
template <class T, int N, class Isa>
SITU_INLINE two<pack<T, N, Isa>> sum_of_product(pack<T, N, Isa> const& c, pack<T, N, Isa> const& a,
                                                pack<T, N, Isa> const& b) {
  auto const product = two_prod(a, b);
  auto const sum = fast_two_sum(c, product.hi);
  return {sum.hi, keep_order(sum.lo) + product.lo};
}

/// 1 − a b as if in one rounding, for b close to 1/a.
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> residual(pack<T, N, Isa> const& a, pack<T, N, Isa> const& b) {
  pack<T, N, Isa> const one(T(1));
  if constexpr (Isa::fma) {
    return fused<sign::minus>(a, b, one);
  } else {
    auto const [high, low] = two_prod(a, b);
    return keep_order(one - high) - low;
  }
}

/// a + a b, which -ffast-math would otherwise turn into a (1 + b).
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> add_share(pack<T, N, Isa> const& a, pack<T, N, Isa> const& b) {
#if defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__
  return multiply_add(a, b, keep_order(a));
#else
  return multiply_add(a, b, a);
#endif
}

/// The polynomial whose coefficients are given from the highest power down.
template <class T, int N, class Isa, class... C>
SITU_INLINE pack<T, N, Isa> horner(pack<T, N, Isa> const& x, T highest, C... lower) {
  pack<T, N, Isa> r(highest);
  ((r = multiply_add(r, x, pack<T, N, Isa>(static_cast<T>(lower)))), ...);
  return r;
}

/// The same in two chains, of even and of odd powers: half as many steps that wait for each other.
template <class T, int N, class Isa, class... C>
SITU_INLINE pack<T, N, Isa> horner_in_two(pack<T, N, Isa> const& x, T highest, T second, C... lower) {
  using P = pack<T, N, Isa>;
  P const square = x * x;
  P before(highest), last(second), next;
  ((next = multiply_add(before, square, P(static_cast<T>(lower))), before = last, last = next), ...);
  return multiply_add(before, x, last);
}

/// 1.5 · 2^23 or 1.5 · 2^52: added to a small number it leaves the nearest integer in the low bits.
template <class T>
inline constexpr T round_magic = sizeof(T) == 4 ? T(12582912.0) : T(6755399441055744.0);

/// The nearest integer, for |x| < 2^22 or 2^51.
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> round_small(pack<T, N, Isa> const& x) {
  pack<T, N, Isa> const magic(round_magic<T>);
  return keep_order(keep_order(x + magic) - magic);
}

/// 2^n for integers n in the range of normal numbers.
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> power_of_two(pack<T, N, Isa> const& n) {
  if constexpr (sizeof(T) == 4) {
    return bitcast<float>(bitcast<int32_t>(keep_order(n + pack<T, N, Isa>(round_magic<T> + 127))) << 23);
  } else {
    return bitcast<double>(bitcast<int64_t>(keep_order(n + pack<T, N, Isa>(round_magic<T> + 1023))) << 52);
  }
}

/// Where x · 2^n is 0 for |x| < 2^20, with room to spare.
template <class T>
inline constexpr T vanishing_power = sizeof(T) == 4 ? T(-171) : T(-1120);
/// x · 2^n for integers n, |n| <= 250 or 2000, |x| < 2^20, rounded once; overflow and denormal results as in ldexp. From vanishing_power down the result is a
/// zero that is not computed (+0 with AVX-512): many a processor takes a hundred times as long where a product is too small for a normal number.
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> scale(pack<T, N, Isa> const& x, pack<T, N, Isa> const& n) {
#if SITU_MATH_X86_ASM
  if constexpr (has_avx512<T, N, Isa>) {
    auto r = x.v;
    auto const nv = n.v;
    auto const least = pack<T, N, Isa>(vanishing_power<T>).v;
    typename std::conditional_t<sizeof(r) / sizeof(T) == 16, std::type_identity<uint16_t>, std::type_identity<uint8_t>>::type kept;
    if constexpr (sizeof(T) == 4) {
      __asm__(
          "vcmpps {$21, %3, %2, %1|%1, %2, %3, 21}\n\t"
          "vscalefps {%2, %0, %0%{%1%}%{z%}|%0%{%1%}%{z%}, %0, %2}"
          : "+v"(r), "=&Yk"(kept)
          : "v"(nv), "v"(least));
    } else {
      __asm__(
          "vcmppd {$21, %3, %2, %1|%1, %2, %3, 21}\n\t"
          "vscalefpd {%2, %0, %0%{%1%}%{z%}|%0%{%1%}%{z%}, %0, %2}"
          : "+v"(r), "=&Yk"(kept)
          : "v"(nv), "v"(least));
    }
    return pack<T, N, Isa>(r);
  }
#endif
  // The exponent in two halves: their biased numbers are the low bits of those of n + 2 · bias + round_magic.
  using U = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  constexpr int bias = sizeof(T) == 4 ? 127 : 1023, digits = sizeof(T) == 4 ? 23 : 52;
  auto const both = bitcast<U>(keep_order(n + pack<T, N, Isa>(round_magic<T> + 2 * bias)));
  auto const half = both >> 1;
  pack<T, N, Isa> const rest = bitcast<T>((both - half) << digits);
  return keep_order(x * bitcast<T>(half << digits)) * select(n < pack<T, N, Isa>(vanishing_power<T>), pack<T, N, Isa>(T(0)), rest);
}

/// |x| and the sign of x, as bits.
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> magnitude(pack<T, N, Isa> const& x) {
  if constexpr (sizeof(T) == 4) return bitcast<float>(bitcast<int32_t>(x) & pack<int32_t, N, Isa>(0x7fffffff));
  else return bitcast<double>(bitcast<int64_t>(x) & pack<int64_t, N, Isa>(0x7fffffffffffffff));
}
/// x with its sign flipped where that of `sign` is set.
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> flip_sign(pack<T, N, Isa> const& x, pack<T, N, Isa> const& sign) {
  using Ix = situ::detail::signed_of_bytes<sizeof(T)>;
  pack<Ix, N, Isa> const bit(std::numeric_limits<Ix>::min());
  return bitcast<T>(bitcast<Ix>(x) ^ (bitcast<Ix>(sign) & bit));
}

/// y, which is positive or has the sign of x already unless it is 0, with the sign of x.
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> with_sign_of(pack<T, N, Isa> const& x, pack<T, N, Isa> const& y) {
  using Ix = situ::detail::signed_of_bytes<sizeof(T)>;
  pack<Ix, N, Isa> const bit(std::numeric_limits<Ix>::min());
#if SITU_MATH_X86_ASM
  if constexpr (has_avx512<T, N, Isa>) {
    auto r = y.v;
    auto const xv = x.v;
    auto const bv = bit.v;
    __asm__("vpternlogd {$0xf8, %2, %1, %0|%0, %1, %2, 0xf8}" : "+v"(r) : "v"(xv), "v"(bv));
    return pack<T, N, Isa>(r);
  }
#endif
  return bitcast<T>(bitcast<Ix>(y) | (bitcast<Ix>(x) & bit));
}

/// −|x|.
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> negative_magnitude(pack<T, N, Isa> const& x) {
  using Ix = situ::detail::signed_of_bytes<sizeof(T)>;
  return bitcast<T>(bitcast<Ix>(x) | pack<Ix, N, Isa>(std::numeric_limits<Ix>::min()));
}

/// x where it is not below / not above the bound; a NaN in x stays.
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> at_least(pack<T, N, Isa> const& x, T bound) {
  pack<T, N, Isa> const b(bound);
#if SITU_MATH_X86_ASM
  if constexpr (has_extrema<T, N, Isa>) {  // g++ 12 makes a comparison and a blend of it
    auto r = x.v;
    auto const bv = b.v;
    if constexpr (sizeof(T) == 4) __asm__("vmaxps {%0, %1, %0|%0, %1, %0}" : "+v"(r) : "v"(bv));
    else __asm__("vmaxpd {%0, %1, %0|%0, %1, %0}" : "+v"(r) : "v"(bv));
    return pack<T, N, Isa>(r);
  }
#endif
  return select(x < b, b, x);
}
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> at_most(pack<T, N, Isa> const& x, T bound) {
  pack<T, N, Isa> const b(bound);
#if SITU_MATH_X86_ASM
  if constexpr (has_extrema<T, N, Isa>) {
    auto r = x.v;
    auto const bv = b.v;
    if constexpr (sizeof(T) == 4) __asm__("vminps {%0, %1, %0|%0, %1, %0}" : "+v"(r) : "v"(bv));
    else __asm__("vminpd {%0, %1, %0|%0, %1, %0}" : "+v"(r) : "v"(bv));
    return pack<T, N, Isa>(r);
  }
#endif
  return select(x > b, b, x);
}

#if SITU_MATH_X86_ASM
// With AVX-512: only some lanes, as zeros elsewhere, of which nothing that is made of infinities or of what is far away sees the light.
template <int N>
using lanes_in_mask = std::conditional_t<N == 16, uint16_t, uint8_t>;
/// The lanes that are not below the bound; those with NaN are among them.
template <int N, class Isa>
SITU_INLINE lanes_in_mask<N> lanes_from(pack<float, N, Isa> const& x, float bound) {
  auto const xv = x.v, b = pack<float, N, Isa>(bound).v;
  lanes_in_mask<N> result;
  __asm__("vcmpps {$21, %2, %1, %0|%0, %1, %2, 21}" : "=Yk"(result) : "v"(xv), "v"(b));
  return result;
}
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> at_most_in(lanes_in_mask<N> lanes, pack<float, N, Isa> const& x, float bound) {
  auto r = x.v;
  auto const b = pack<float, N, Isa>(bound).v;
  __asm__("vminps {%0, %1, %0%{%2%}%{z%}|%0%{%2%}%{z%}, %1, %0}" : "+v"(r) : "v"(b), "Yk"(lanes));
  return pack<float, N, Isa>(r);
}
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> scale_in(lanes_in_mask<N> lanes, pack<float, N, Isa> const& x, pack<float, N, Isa> const& n) {
  auto r = x.v;
  auto const nv = n.v;
  __asm__("vscalefps {%1, %0, %0%{%2%}%{z%}|%0%{%2%}%{z%}, %0, %1}" : "+v"(r) : "v"(nv), "Yk"(lanes));
  return pack<float, N, Isa>(r);
}
#endif

/// The rest of a kernel never shares its registers with a call: lanes go through memory, in a function of their own.
template <class F, class T, int N>
SITU_NOINLINE void call_lanes(T const* x, T* y, signed char const* wanted) {
  for (int k = 0; k < N; ++k) {
    if (wanted[k]) y[k] = F::value(x[k]);
  }
}
template <class F, class T, int N>
SITU_NOINLINE void call_lanes(T const* x1, T const* x2, T* y, signed char const* wanted) {
  for (int k = 0; k < N; ++k) {
    if (wanted[k]) y[k] = F::value(x1[k], x2[k]);
  }
}

/// y with the lanes of m replaced by F::value(x), a function of numbers. For rare lanes.
template <class F, class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> by_lane(lane_mask<static_cast<int>(sizeof(T)), N, Isa> const& m, pack<T, N, Isa> const& x,
                                    pack<T, N, Isa> const& y) {
  T from[N], to[N];
  signed char wanted[N];
  x.store(from);
  y.store(to);
  for (int k = 0; k < N; ++k) wanted[k] = m[k];
  call_lanes<F, T, N>(from, to, wanted);
  return pack<T, N, Isa>::load(to);
}
template <class F, class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> by_lane(lane_mask<static_cast<int>(sizeof(T)), N, Isa> const& m, pack<T, N, Isa> const& x1,
                                    pack<T, N, Isa> const& x2, pack<T, N, Isa> const& y) {
  T from1[N], from2[N], to[N];
  signed char wanted[N];
  x1.store(from1);
  x2.store(from2);
  y.store(to);
  auto const whole = m.held();  // with -O3 g++ 12 would join the loop to what made the mask, and fail
  for (int k = 0; k < N; ++k) wanted[k] = whole[k];
  call_lanes<F, T, N>(from1, from2, to, wanted);
  return pack<T, N, Isa>::load(to);
}
/// y, with F::value(x) where `size`, often x, is not from `least`, which is above -1, to `greatest`, or is NaN.
template <class F, int N, class Isa>
SITU_INLINE pack<double, N, Isa> by_lane_outside(pack<double, N, Isa> const& size, double least, double greatest,
                                                 pack<double, N, Isa> const& x, pack<double, N, Isa> const& y) {
  using P = pack<double, N, Isa>;
  auto const special = select(size <= P(greatest), size, P(-1.0)) < P(least);
  if (SITU_UNLIKELY(any(special))) return by_lane<F>(special, x, y);
  return y;
}
/// F::value on every lane, for functions that have no vector form.
template <class F, class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> every_lane(pack<T, N, Isa> const& x) {
  return by_lane<F>(lane_mask<static_cast<int>(sizeof(T)), N, Isa>(true), x, x);
}
template <class F, class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> every_lane(pack<T, N, Isa> const& x1, pack<T, N, Isa> const& x2) {
  return by_lane<F>(lane_mask<static_cast<int>(sizeof(T)), N, Isa>(true), x1, x2, x1);
}

/// The halves of a pack, widened, and back: for functions that compute their hard parts in double. The indices are
/// written out because nvcc loses a pack expansion among the builtin's arguments.
template <int N, class Isa>
SITU_INLINE pack<double, N / 2, Isa> widen_lower(pack<float, N, Isa> const& x) {
  static_assert(N == 4 || N == 8 || N == 16);
  using half = typename situ::detail::vector_of<float, N / 2>::type;
  half h;
  if constexpr (N == 4) h = __builtin_shufflevector(x.v, x.v, 0, 1);
  else if constexpr (N == 8) h = __builtin_shufflevector(x.v, x.v, 0, 1, 2, 3);
  else h = __builtin_shufflevector(x.v, x.v, 0, 1, 2, 3, 4, 5, 6, 7);
  return convert_unchecked<double>(pack<float, N / 2, Isa>(h));
}
template <int N, class Isa>
SITU_INLINE pack<double, N / 2, Isa> widen_upper(pack<float, N, Isa> const& x) {
  static_assert(N == 4 || N == 8 || N == 16);
  using half = typename situ::detail::vector_of<float, N / 2>::type;
  half h;
  if constexpr (N == 4) h = __builtin_shufflevector(x.v, x.v, 2, 3);
  else if constexpr (N == 8) h = __builtin_shufflevector(x.v, x.v, 4, 5, 6, 7);
  else h = __builtin_shufflevector(x.v, x.v, 8, 9, 10, 11, 12, 13, 14, 15);
  return convert_unchecked<double>(pack<float, N / 2, Isa>(h));
}
template <int N, class Isa>
SITU_INLINE pack<float, 2 * N, Isa> narrow(pack<double, N, Isa> const& lower, pack<double, N, Isa> const& upper) {
  static_assert(N == 2 || N == 4 || N == 8);
  auto const a = convert_unchecked<float>(lower).v, b = convert_unchecked<float>(upper).v;
  typename situ::detail::vector_of<float, 2 * N>::type whole;
  if constexpr (N == 2) whole = __builtin_shufflevector(a, b, 0, 1, 2, 3);
  else if constexpr (N == 4) whole = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7);
  else whole = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return pack<float, 2 * N, Isa>(whole);
}

}  // namespace detail
}  // namespace math
}  // namespace situ::inline SITU_ABI
