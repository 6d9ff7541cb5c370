/// Philox in packs, and the loops that fill memory with random numbers. The numbers are those of ops/philox.hpp.
#pragma once

#include <cstring>

#include <situ/expr/cpu/evaluate.hpp>
#include <situ/ops/philox.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// An integer in every lane, by way of the floats of its size: g++ 12 makes a chain of masked moves of an integer's.
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> every_lane(T value) {
  using F = std::conditional_t<sizeof(T) == 4, float, double>;
  return bitcast<T>(pack<F, N, Isa>(bits_to<F>(value)));
}

/// The product of the lower halves of 64-bit lanes.
template <int N, class Isa>
SITU_INLINE pack<uint64_t, N, Isa> multiply_low_halves(pack<uint64_t, N, Isa> const& a, pack<uint64_t, N, Isa> const& b) {
#if SITU_X86 && !defined(__clang__)
  if constexpr (8 * N == Isa::bytes) {
    auto r = a.v;
    auto const bv = b.v;
#if !defined(__AVX__)
    if constexpr (Isa::bytes == 16) __asm__("pmuludq {%1, %0|%0, %1}" : "+x"(r) : "x"(bv));
    else
#endif
      __asm__("vpmuludq {%1, %0, %0|%0, %0, %1}" : "+v"(r) : "v"(bv));
    return pack<uint64_t, N, Isa>(r);
  }
#endif
  pack<uint64_t, N, Isa> const half(uint64_t{0xffffffffu});
  return (a & half) * (b & half);
}

/// Lanes of a and b in turns: inside each 16 bytes, the lower (High = false) or the upper half of both.
template <bool High, class P>
SITU_INLINE P interleave(P const& a, P const& b) {
  constexpr int N = P::lanes, group = 16 / static_cast<int>(sizeof(typename P::value_type));
#if defined(__clang__)
  return [&]<int... K>(std::integer_sequence<int, K...>) __attribute__((always_inline)) {
    return P(typename P::vector(__builtin_shufflevector(a.v, b.v, (K / group * group + (High ? group / 2 : 0) + K % group / 2 + (K % 2) * N)...)));
  }(std::make_integer_sequence<int, N>{});
#else
  using Ix = typename P::mask_type::vector;
  Ix order = Ix{};
  for (int k = 0; k < N; ++k) order[k] = static_cast<typename P::mask_type::lane_type>(k / group * group + (High ? group / 2 : 0) + k % group / 2 + (k % 2) * N);
  return P(typename P::vector(__builtin_shuffle(a.v, b.v, order)));
#endif
}

/// Consecutive blocks of a stream: word k of each stands in the lower halves of the lanes of c[k]. Lane 2 g has block g, lane 2 g + 1 block
/// G + g, where G is half the number of lanes: interleaved, they are in order.
template <class Isa>
struct PhiloxLanes {
  static constexpr int N = Isa::bytes / 8;  ///< blocks
  using U = pack<uint64_t, N, Isa>;
  U c0, c1, c2, c3;

  SITU_INLINE static U upper(U const& x) { return x & U(~uint64_t{0xffffffffu}); }
  SITU_INLINE static U lower(U const& x) { return x & U(uint64_t{0xffffffffu}); }
  /// Words: 0, 1 and 2, 3 of each block, as memory holds them.
  SITU_INLINE U words01() const { return lower(c0) | (c1 << 32); }
  SITU_INLINE U words23() const { return lower(c2) | (c3 << 32); }
  SITU_INLINE U draws01() const { return lower(c1) | (c0 << 32); }
  SITU_INLINE U draws23() const { return lower(c3) | (c2 << 32); }
  /// Radius and angle words of pairs, side by side.
  SITU_INLINE U words02() const { return lower(c0) | (c2 << 32); }
  SITU_INLINE U words13() const { return lower(c1) | (c3 << 32); }
};

/// The keys of the ten rounds.
template <class Isa>
struct PhiloxKeys {
  using U = typename PhiloxLanes<Isa>::U;
  typename U::vector k0[10], k1[10];
  SITU_INLINE explicit PhiloxKeys(uint64_t seed) {
    uint32_t a = static_cast<uint32_t>(seed), b = static_cast<uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round) {
      k0[round] = every_lane<uint64_t, U::lanes, Isa>(a).v;
      k1[round] = every_lane<uint64_t, U::lanes, Isa>(b).v;
      a += philox_weyl0, b += philox_weyl1;
    }
  }
};

template <class Isa>
SITU_INLINE PhiloxLanes<Isa> philox_lanes(PhiloxKeys<Isa> const& keys, uint64_t block, uint64_t call) {
  using Lanes = PhiloxLanes<Isa>;
  using U = typename Lanes::U;
  U steps;
  for (int k = 0; k < Lanes::N; ++k) steps.set(k, static_cast<uint64_t>(k / 2 + k % 2 * (Lanes::N / 2)));
  U const index = steps + every_lane<uint64_t, U::lanes, Isa>(block), m0(uint64_t{philox_multiplier0}), m1(uint64_t{philox_multiplier1});
  auto c0 = index.v, c1 = (index >> 32).v, c2 = every_lane<uint64_t, U::lanes, Isa>(call & 0xffffffffu).v, c3 = every_lane<uint64_t, U::lanes, Isa>(call >> 32).v;
#define SITU_PHILOX_ROUND(R)                                                      \
  {                                                                               \
    auto const p0 = multiply_low_halves(U(c0), m0).v, p1 = multiply_low_halves(U(c2), m1).v; \
    c0 = (p1 >> 32) ^ c1 ^ keys.k0[R];                                            \
    c1 = p1;                                                                      \
    c2 = (p0 >> 32) ^ c3 ^ keys.k1[R];                                            \
    c3 = p0;                                                                      \
  }
  SITU_PHILOX_ROUND(0) SITU_PHILOX_ROUND(1) SITU_PHILOX_ROUND(2) SITU_PHILOX_ROUND(3) SITU_PHILOX_ROUND(4)
  SITU_PHILOX_ROUND(5) SITU_PHILOX_ROUND(6) SITU_PHILOX_ROUND(7) SITU_PHILOX_ROUND(8) SITU_PHILOX_ROUND(9)
#undef SITU_PHILOX_ROUND
  return {U(c0), U(c1), U(c2), U(c3)};
}

template <int N, class Isa>
SITU_INLINE pack<uint32_t, 2 * N, Isa> as_words(pack<uint64_t, N, Isa> const& x) {
  return pack<uint32_t, 2 * N, Isa>(reinterpret_cast<typename pack<uint32_t, 2 * N, Isa>::vector>(x.v));
}

/// Uniform numbers in [0, 1) from the words of blocks, in order: the first half of the lanes' elements in `first`.
template <class T, class Isa>
struct UniformLanes {
  static constexpr int N = takes_draws<T> ? Isa::bytes / 8 : Isa::bytes / 4;  ///< elements of a half
  using P = pack<compute_t<T>, N, Isa>;
  P first, second;
  SITU_INLINE explicit UniformLanes(PhiloxLanes<Isa> const& blocks) {
    if constexpr (takes_draws<T>) {
      auto const a = blocks.draws01(), b = blocks.draws23();
      first = from_draws(interleave<false>(a, b));
      second = from_draws(interleave<true>(a, b));
    } else {
      auto const a = blocks.words01(), b = blocks.words23();
      first = from_words(as_words(interleave<false>(a, b)));
      second = from_words(as_words(interleave<true>(a, b)));
    }
  }
  SITU_INLINE static P from_draws(pack<uint64_t, Isa::bytes / 8, Isa> const& draws) {
    return convert_unchecked<double>(bitcast<int64_t>(draws >> 11)) * (1.0 / 9007199254740992.0);
  }
  SITU_INLINE static P from_words(pack<uint32_t, Isa::bytes / 4, Isa> const& words) {
    return convert_unchecked<float>(bitcast<int32_t>(words >> (32 - uniform_bits<T>))) * (1.f / static_cast<float>(1 << uniform_bits<T>));
  }
};

/// Normal numbers from the words of blocks, in order.
template <class T, class Isa>
struct NormalLanes {
  static constexpr int N = takes_draws<T> ? Isa::bytes / 8 : Isa::bytes / 4;
  using P = pack<compute_t<T>, N, Isa>;
  P first, second;
  SITU_INLINE explicit NormalLanes(PhiloxLanes<Isa> const& blocks) {
    if constexpr (takes_draws<T>) {
      using Ix = pack<int64_t, N, Isa>;
      using U = pack<uint64_t, N, Isa>;
      P const u = P(1.0) - convert_unchecked<double>(bitcast<int64_t>(blocks.draws01() >> 11)) * (1.0 / 9007199254740992.0);
      U const angle = blocks.draws23() & U(~uint64_t{0x7ff}), quarter = (angle + U(uint64_t{1} << 61)) >> 62;
      P const x = convert_unchecked<double>(bitcast<int64_t>(angle - (quarter << 62))) * (6.28318530717958647692 / 18446744073709551616.0);
      P const radius = math::sqrt(math::log(u) * -2.0);
      turned(radius * math::sin(x), radius * math::cos(x), bitcast<int64_t>(quarter), Ix(1), 62);
    } else {
      using U = pack<uint32_t, N, Isa>;
      P const u = convert_unchecked<float>(bitcast<int32_t>((as_words(blocks.words02()) >> 1) | U(1u))) * 4.65661287e-10f;
      U const angle = as_words(blocks.words13()) & U(0xffffff00u), quarter = (angle + U(0x20000000u)) >> 30;
      P const r = convert_unchecked<float>(bitcast<int32_t>(angle - (quarter << 30))) * 2.32830644e-10f;
      auto const radius = normal_radius(u);
      turned(product_of_parts(radius, sine_of_turns(r)), product_of_parts(radius, cosine_of_turns(r)), bitcast<int32_t>(quarter), pack<int32_t, N, Isa>(1), 30);
    }
  }

 private:
  template <class Ix>
  SITU_INLINE void turned(P const& s, P const& c, Ix const& quarter, Ix const& one, int sign) {
    auto const swap = (quarter & one) != (one - one);
    using C = typename P::value_type;
    P const x = select(swap, s, c), y = select(swap, c, s);
    P const cosine = bitcast<C>(bitcast<typename Ix::value_type>(x) ^ (((quarter + one) & (one + one)) << sign));
    P const sine = bitcast<C>(bitcast<typename Ix::value_type>(y) ^ ((quarter & (one + one)) << sign));
    first = interleave<false>(cosine, sine);
    second = interleave<true>(cosine, sine);
  }
};

/// Fills memory, or changes it in place: op.make<Isa>(blocks, to) does so with the elements of as many blocks as there are lanes, of which
/// F::per_block come from each.
template <class F>
struct RandomBody {
  template <class Isa>
  SITU_INLINE static int run(F const* op_, typename F::element* to, int64_t first, int64_t count) {
    constexpr int64_t step = PhiloxLanes<Isa>::N * F::per_block;
    F const op = *op_;
    PhiloxKeys<Isa> const keys(op.stream.seed);
    for (int64_t i = -(first % F::per_block); i < count; i += step) {
      PhiloxLanes<Isa> const blocks = philox_lanes(keys, static_cast<uint64_t>((first + i) / F::per_block), op.stream.call);
      if (SITU_LIKELY(i >= 0 && i + step <= count)) {
        op.template make<Isa>(blocks, to + i);
      } else {  // some of these elements are not asked for
        alignas(64) typename F::element buffer[step] = {};
        int64_t const from = i < 0 ? 0 : i, end = i + step < count ? i + step : count;
        std::memcpy(buffer + (from - i), to + from, static_cast<std::size_t>(end - from) * sizeof(typename F::element));
        op.template make<Isa>(blocks, buffer);
        std::memcpy(to + from, buffer + (from - i), static_cast<std::size_t>(end - from) * sizeof(typename F::element));
      }
    }
    return 0;
  }
};

/// The kernel that fills a fresh tensor.
template <class F>
struct RandomKernel {
  F op;
  typename F::element* to;
  void operator()(int64_t first, int64_t last) const { dispatch<RandomBody<F>>(&op, to + first, first, last - first); }
};

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI
