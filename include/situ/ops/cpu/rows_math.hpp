/// The arithmetic of operations on rows, by packs: statistics of a row, and the elements that are made with them.
///
/// Elements come from memory or from a buffer in the cache, already in the type of the arithmetic; nothing here depends on the
/// expression that they are made from.
#pragma once

#include <situ/expr/cpu/evaluate.hpp>
#include <situ/ops/row_program.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

inline constexpr int64_t row_block = 4096;  ///< elements that are added in a row before they are added in double

/// The larger of two lanes, b where one is NaN.
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> larger(pack<T, N, Isa> const& a, pack<T, N, Isa> const& b) {
#if SITU_MATH_X86_ASM
  if constexpr (math::detail::has_avx512<T, N, Isa>) {  // g++ 12 makes a comparison and a blend of it
    auto r = a.v;
    auto const bv = b.v;
    if constexpr (sizeof(T) == 4) __asm__("vmaxps {%1, %0, %0|%0, %0, %1}" : "+v"(r) : "v"(bv));
    else __asm__("vmaxpd {%1, %0, %0|%0, %0, %1}" : "+v"(r) : "v"(bv));
    return pack<T, N, Isa>(r);
  }
#endif
  return select(a > b, a, b);
}

/// exp(x) for x <= 0, -inf and NaN; 0 where that is below 2^-126, the least normal number.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> exp_of_negative(pack<float, N, Isa> const& given) {
  using P = pack<float, N, Isa>;
  using V = typename P::vector;  // g++ 12 writes named packs to the stack, where nobody reads them
  V const x = math::detail::at_least(given, -88.0f).v, magic = P(math::detail::round_magic<float> + 127.0f).v;
  V const sum = keep_order(P(x * 1.44269504f + magic)).v;
  V const n = keep_order(P(sum - magic)).v;
  V const r = keep_order(P(n * -0.693359375f + x)).v - n * -2.12194440e-4f;
  V const s = bitcast<float>(bitcast<int32_t>(P(sum)) << 23).v;  // 2^n, 0 for the least x
  V const u = r * r;
  V const a = r * 0.166665196f + 0.49999994f, b = r * 0.00836881157f + 0.0416683964f;
  V const t = u * (u * (u * 0.00138143916f + b) + a) + r;  // as in math::exp
  return P(V(s * t + s));
}
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> exp_of_negative(pack<double, N, Isa> const& x) {
  return math::exp(x);
}

/// All lanes to one: halves on halves.
template <class T, int N, class Isa>
SITU_INLINE T sum_of_lanes(pack<T, N, Isa> const& a) {
  if constexpr (N == 2) {
    return a[0] + a[1];
  } else {
    typename vector_of<T, N / 2>::type low, high;
    __builtin_memcpy(&low, &a.v, sizeof low);
    __builtin_memcpy(&high, reinterpret_cast<char const*>(&a.v) + sizeof low, sizeof low);
    return sum_of_lanes(pack<T, N / 2, Isa>(low) + pack<T, N / 2, Isa>(high));
  }
}
/// One step of sums_of_packs: lanes of a and b in turns, `Unit` bytes of each, added to those that are left out. Only within 128 bits, or whole
/// 128 bits, which is what vectors shuffle best. The indices are written out because nvcc loses a pack expansion among the builtin's arguments.
template <int Unit, class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> woven_sums(pack<T, N, Isa> const& a, pack<T, N, Isa> const& b) {
  using V = typename pack<T, N, Isa>::vector;
  V even, odd;
  if constexpr (Unit == 4) {
    if constexpr (N == 4) even = __builtin_shufflevector(a.v, b.v, 0, 4, 1, 5), odd = __builtin_shufflevector(a.v, b.v, 2, 6, 3, 7);
    else if constexpr (N == 8) {
      even = __builtin_shufflevector(a.v, b.v, 0, 8, 1, 9, 4, 12, 5, 13), odd = __builtin_shufflevector(a.v, b.v, 2, 10, 3, 11, 6, 14, 7, 15);
    } else {
      even = __builtin_shufflevector(a.v, b.v, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
      odd = __builtin_shufflevector(a.v, b.v, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
    }
  } else {
    constexpr int M = N * static_cast<int>(sizeof(T)) / 8;
    using D = typename vector_of<double, M>::type;
    D const c = D(a.v), d = D(b.v);
    if constexpr (M == 2) even = V(__builtin_shufflevector(c, d, 0, 2)), odd = V(__builtin_shufflevector(c, d, 1, 3));
    else if constexpr (M == 4 && Unit == 8) even = V(__builtin_shufflevector(c, d, 0, 4, 2, 6)), odd = V(__builtin_shufflevector(c, d, 1, 5, 3, 7));
    else if constexpr (M == 4) even = V(__builtin_shufflevector(c, d, 0, 1, 4, 5)), odd = V(__builtin_shufflevector(c, d, 2, 3, 6, 7));
    else if constexpr (Unit == 8) {
      even = V(__builtin_shufflevector(c, d, 0, 8, 2, 10, 4, 12, 6, 14)), odd = V(__builtin_shufflevector(c, d, 1, 9, 3, 11, 5, 13, 7, 15));
    } else {
      even = V(__builtin_shufflevector(c, d, 0, 1, 4, 5, 8, 9, 12, 13)), odd = V(__builtin_shufflevector(c, d, 2, 3, 6, 7, 10, 11, 14, 15));
    }
  }
  return pack<T, N, Isa>(V(even + odd));
}
/// The sums over the 128 bits of each of as many packs, `step` apart, as a pack has 128 bits: one after the other. The packs are overwritten.
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> sums_of_parts(pack<T, N, Isa>* parts, int step = 1) {
  if constexpr (N * sizeof(T) > 16) {
    for (int m = N * static_cast<int>(sizeof(T)) / 32; m > 0; m /= 2) {
      for (int k = 0; k < m; ++k) parts[k * step] = woven_sums<16>(parts[2 * k * step], parts[(2 * k + 1) * step]);
    }
  }
  return parts[0];
}
/// The sum of each of N packs, which are overwritten.
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> sums_of_packs(pack<T, N, Isa>* parts) {
  int m = N / 2;
  if constexpr (sizeof(T) == 4) {
    for (int k = 0; k < m; ++k) parts[k] = woven_sums<4>(parts[2 * k], parts[2 * k + 1]);
    m /= 2;
  }
  for (int k = 0; k < m; ++k) parts[k] = woven_sums<8>(parts[2 * k], parts[2 * k + 1]);
  return sums_of_parts(parts);
}
/// Every other lane, from number First on, of each 128 bits of a, then of b.
template <int First, class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> every_other(pack<T, N, Isa> const& a, pack<T, N, Isa> const& b) {
  using P = pack<T, N, Isa>;
  constexpr int F = First;
  if constexpr (sizeof(T) == 4) {
    if constexpr (N == 4) return P(__builtin_shufflevector(a.v, b.v, F, F + 2, F + 4, F + 6));
    else if constexpr (N == 8) return P(__builtin_shufflevector(a.v, b.v, F, F + 2, F + 8, F + 10, F + 4, F + 6, F + 12, F + 14));
    else {
      return P(__builtin_shufflevector(a.v, b.v, F, F + 2, F + 16, F + 18, F + 4, F + 6, F + 20, F + 22, F + 8, F + 10, F + 24, F + 26, F + 12, F + 14, F + 28, F + 30));
    }
  } else {
    if constexpr (N == 2) return P(__builtin_shufflevector(a.v, b.v, F, F + 2));
    else if constexpr (N == 4) return P(__builtin_shufflevector(a.v, b.v, F, F + 4, F + 2, F + 6));
    else return P(__builtin_shufflevector(a.v, b.v, F, F + 8, F + 2, F + 10, F + 4, F + 12, F + 6, F + 14));
  }
}

template <class T, int N, class Isa>
SITU_INLINE T largest_lane(pack<T, N, Isa> const& a) {
  if constexpr (N == 2) {
    return a[0] > a[1] ? a[0] : a[1];
  } else {
    typename vector_of<T, N / 2>::type low, high;
    __builtin_memcpy(&low, &a.v, sizeof low);
    __builtin_memcpy(&high, reinterpret_cast<char const*>(&a.v) + sizeof low, sizeof low);
    return largest_lane(larger(pack<T, N / 2, Isa>(low), pack<T, N / 2, Isa>(high)));
  }
}

/// The lanes below `count`.
template <class T, int N, class Isa>
SITU_INLINE typename pack<T, N, Isa>::mask_type lanes_below(int64_t count) {
  using P = pack<T, N, Isa>;
  P steps;
  for (int k = 0; k < N; ++k) steps.set(k, static_cast<T>(k));
  auto inside = steps < P(static_cast<T>(count));
  hold<Isa>(inside.v);  // without it g++ 12 stops with an internal error in some kernels, in others with -ffast-math
  return inside;
}

/// The last `left` < N elements and fillers behind them. `readable` elements may be touched.
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> load_tail(T const* from, int64_t left, int64_t readable, T filler) {
  using P = pack<T, N, Isa>;
  if (readable >= N) return select(lanes_below<T, N, Isa>(left), P::load(from), P(filler));
  T lanes[N];
  P(filler).store(lanes);
  copy_short(lanes, from, left * static_cast<int64_t>(sizeof(T)));
  return P::load(lanes);
}
/// The first `left` < N lanes to memory, of which `writable` elements may be overwritten.
template <class Out, class T, int N, class Isa>
SITU_INLINE void store_tail(pack<T, N, Isa> const& x, Out* to, int64_t left, int64_t writable) {
  if (writable >= N) return store_lanes<Out, N, Isa>(x, to);
  alignas(64) Out lanes[N];
  store_lanes<Out, N, Isa>(x, lanes);
  copy_short(to, lanes, left * static_cast<int64_t>(sizeof(Out)));
}

/// Where the inputs of the next row lie: they are asked for while this one is computed, so that memory does not wait for arithmetic.
struct NextRow {
  char const* of[2] = {};
  int64_t sizes[2] = {};  ///< of an element; 0 for none
  SITU_INLINE void prefetch(int64_t i) const {
    __builtin_prefetch(of[0] + i * sizes[0]);
    if (of[1]) __builtin_prefetch(of[1] + i * sizes[1]);
  }
};

/// What the operations do to one row, by packs.
template <class Op>
struct RowMath;

template <class Op>
struct SoftmaxMath {
  using C = typename Op::compute;
  using Out = typename Op::result;
  static constexpr bool logarithmic = std::is_same_v<Op, rows::log_softmax<Out>>;
  static constexpr C infinity = std::numeric_limits<C>::infinity();
  /// Whether the elements of the output are made from what `gather` has kept, not from the input again.
  static constexpr bool keeps = !logarithmic;

  template <class Isa, bool Keep>
  SITU_INLINE static RowStatistics gather(Op const&, C const* x, int64_t readable, C* work, int64_t n, NextRow const& next) {
    constexpr int N = Isa::bytes / static_cast<int>(sizeof(C));
    using P = pack<C, N, Isa>;
    int64_t const whole = n / N * N;
    int64_t i = 0;
    P m(-infinity);
    if (n >= 4 * N) {
      P m1 = m, m2 = m, m3 = m;
      for (; i + 4 * N <= n; i += 4 * N) {
        m = larger(P::load(x + i), m);
        m1 = larger(P::load(x + i + N), m1);
        m2 = larger(P::load(x + i + 2 * N), m2);
        m3 = larger(P::load(x + i + 3 * N), m3);
      }
      m = larger(larger(m, m1), larger(m2, m3));
    }
    for (; i < whole; i += N) m = larger(P::load(x + i), m);
    P tail(-infinity);
    if (i < n) {
      tail = load_tail<C, N, Isa>(x + i, n - i, readable - i, -infinity);
      m = larger(tail, m);
    }
    C const maximum = largest_lane(m);
    P const shift(Op::shift_of(maximum));
    double total = 0;
    for (i = 0; i < whole;) {
      int64_t const stop = i + row_block < whole ? i + row_block : whole;
      P s(C(0)), s1(C(0));
      for (; i + 2 * N <= stop; i += 2 * N) {
        next.prefetch(i);
        next.prefetch(i + N);
        P const e = exp_of_negative(P::load(x + i) - shift), e1 = exp_of_negative(P::load(x + i + N) - shift);
        if constexpr (Keep) e.store(work + i), e1.store(work + i + N);
        s = s + e;
        s1 = s1 + e1;
      }
      if (i < stop) {
        P const e = exp_of_negative(P::load(x + i) - shift);
        if constexpr (Keep) e.store(work + i);
        s = s + e;
        i += N;
      }
      total += static_cast<double>(sum_of_lanes(s + s1));
    }
    if (i < n) {
      P const e = exp_of_negative(tail - shift);
      if constexpr (Keep) e.store(work + i);
      total += static_cast<double>(sum_of_lanes(e));
    }
    return {static_cast<double>(maximum), total, n};
  }

  /// Element by element, from what was kept (`Kept`) or from the input.
  template <class Isa, bool Kept, int N>
  SITU_INLINE static pack<C, N, Isa> value(pack<C, N, Isa> const& x, pack<C, N, Isa> const& shift, pack<C, N, Isa> const&, pack<C, N, Isa> const& scale) {
    if constexpr (logarithmic) return keep_order(x - shift) - scale;
    else if constexpr (Kept) return x * scale;
    else return exp_of_negative(x - shift) * scale;
  }

  /// a, b, c become shift, low, scale.
  template <class Isa, int N>
  SITU_INLINE static void finish_columns(Op const&, int64_t, C* a, C* b, C* c) {
    using P = pack<C, N, Isa>;
    P const m = P::load(a), s = P::load(b);
    select(m == P(-infinity), P(C(0)), m).store(a);
    P(C(0)).store(b);
    if constexpr (logarithmic) math::log(s).store(c);
    else (P(C(1)) / s).store(c);
  }
  static RowStatistics column(C a, C b, C, int64_t n) { return {static_cast<double>(a), static_cast<double>(b), n}; }
};
template <class Out>
struct RowMath<rows::softmax<Out>> : SoftmaxMath<rows::softmax<Out>> {};
template <class Out>
struct RowMath<rows::log_softmax<Out>> : SoftmaxMath<rows::log_softmax<Out>> {};

/// The mean in two passes: about the rounded mean the rest is small, so nothing cancels.
template <class Op>
struct NormMath {
  using C = typename Op::compute;
  using Out = typename Op::result;
  static constexpr bool centred = std::is_same_v<Op, rows::layer_norm<Out>>;
  static constexpr bool keeps = false;

  template <class Isa, bool Keep>
  SITU_INLINE static RowStatistics gather(Op const&, C const* x, int64_t readable, C*, int64_t n, NextRow const& next) {
    constexpr int N = Isa::bytes / static_cast<int>(sizeof(C));
    using P = pack<C, N, Isa>;
    int64_t const whole = n / N * N;
    P tail(C(0));
    if (whole < n) tail = load_tail<C, N, Isa>(x + whole, n - whole, readable - whole, C(0));
    double mean = 0;
    if constexpr (centred) {
      double total = static_cast<double>(sum_of_lanes(tail));
      for (int64_t i = 0; i < whole;) {
        int64_t const stop = i + row_block < whole ? i + row_block : whole;
        P s(C(0)), s1 = s, s2 = s, s3 = s;
        for (; i + 4 * N <= stop; i += 4 * N) {
          s = s + P::load(x + i);
          s1 = s1 + P::load(x + i + N);
          s2 = s2 + P::load(x + i + 2 * N);
          s3 = s3 + P::load(x + i + 3 * N);
        }
        for (; i < stop; i += N) s = s + P::load(x + i);
        total += static_cast<double>(sum_of_lanes((s + s1) + (s2 + s3)));
      }
      mean = total / static_cast<double>(n);  // rounded to C: what is lost is found again below
    }
    P const shift(static_cast<C>(mean));
    double rest = 0, squares = 0;
    if (whole < n) {
      P const d = centred ? select(lanes_below<C, N, Isa>(n - whole), tail - shift, P(C(0))) : tail;
      rest = static_cast<double>(sum_of_lanes(d));
      squares = static_cast<double>(sum_of_lanes(d * d));
    }
    for (int64_t i = 0; i < whole;) {
      int64_t const stop = i + row_block < whole ? i + row_block : whole;
      P s(C(0)), s1 = s, q = s, q1 = s, q2 = s, q3 = s;
      for (; i + 4 * N <= stop; i += 4 * N) {
        for (int k = 0; k < 4; ++k) next.prefetch(i + k * N);
        P d = P::load(x + i), d1 = P::load(x + i + N), d2 = P::load(x + i + 2 * N), d3 = P::load(x + i + 3 * N);
        if constexpr (centred) {
          d = d - shift, d1 = d1 - shift, d2 = d2 - shift, d3 = d3 - shift;
          s = s + (d + d1);
          s1 = s1 + (d2 + d3);
        }
        q = multiply_add(d, d, q);
        q1 = multiply_add(d1, d1, q1);
        q2 = multiply_add(d2, d2, q2);
        q3 = multiply_add(d3, d3, q3);
      }
      for (; i < stop; i += N) {
        P d = P::load(x + i);
        if constexpr (centred) d = d - shift, s = s + d;
        q = multiply_add(d, d, q);
      }
      if constexpr (centred) rest += static_cast<double>(sum_of_lanes(s + s1));
      squares += static_cast<double>(sum_of_lanes((q + q1) + (q2 + q3)));
    }
    if constexpr (!centred) return {0, squares, n};
    double const off = rest / static_cast<double>(n);
    return {static_cast<double>(static_cast<C>(mean)) + off, squares - rest * off, n};
  }

  template <class Isa, bool Kept, int N>
  SITU_INLINE static pack<C, N, Isa> value(pack<C, N, Isa> const& x, pack<C, N, Isa> const& shift, pack<C, N, Isa> const& low, pack<C, N, Isa> const& scale) {
    if constexpr (centred) return multiply_add(keep_order(x - shift), scale, low);
    else return x * scale;
  }

  template <class Isa, int N>
  SITU_INLINE static void finish_columns(Op const& op, int64_t n, C*, C* b, C* c) {
    using P = pack<C, N, Isa>;
    P const variance = P::load(c) / P(static_cast<C>(n)) + P(static_cast<C>(op.eps));
    P const scale = P(C(1)) / math::sqrt(variance);
    (-(P::load(b) * scale)).store(b);
    scale.store(c);
  }
  static RowStatistics column(C a, C b, C c, int64_t n) { return {static_cast<double>(a) + static_cast<double>(b), static_cast<double>(c), n}; }
};
template <class Out>
struct RowMath<rows::layer_norm<Out>> : NormMath<rows::layer_norm<Out>> {};
template <class Out>
struct RowMath<rows::rms_norm<Out>> : NormMath<rows::rms_norm<Out>> {};

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI
