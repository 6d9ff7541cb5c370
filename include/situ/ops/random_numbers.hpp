/// What random tensors are filled with: one type for each distribution, which makes element i for a CUDA thread, and the elements of
/// several blocks at once in packs.
#pragma once

#include <situ/ops/cpu/philox.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// The largest T below `high`, but no less than `low`.
template <class T>
compute_t<T> largest_below(double high, double low) {
  using C = compute_t<T>;
  T nearest = convert_scalar<T>(high);
  if (static_cast<double>(static_cast<C>(nearest)) >= high) {  // one down
    using Ix = signed_of_size<T>;
    Ix const bits = bits_to<Ix>(nearest);
    if (static_cast<C>(nearest) == C(0)) nearest = bits_to<T>(static_cast<Ix>(std::numeric_limits<Ix>::min() + 1));
    else nearest = bits_to<T>(static_cast<Ix>(bits < 0 ? bits + 1 : bits - 1));
  }
  C const result = static_cast<C>(nearest), least = static_cast<C>(low);
  return result < least ? least : result;
}

/// Whether an event of probability p > 0 happens, from a word: p to within 2^-32, 1 exactly.
struct Chance {
  uint32_t last;  ///< the largest word with which it happens

  static Chance of(double p) {
    double const words = p * 4294967296.0;
    return {words >= 4294967295.0 ? 0xffffffffu : static_cast<uint32_t>(words > 0.5 ? words - 0.5 : 0)};
  }
  SITU_HOST_DEVICE bool happens(uint32_t word) const { return word <= last; }
  template <int N, class Isa>
  SITU_INLINE auto happens(pack<uint32_t, N, Isa> const& words) const {
    return words <= cpu::every_lane<uint32_t, N, Isa>(last);
  }
};

/// Stores `values`, in the type that T computes in, as elements of T.
template <class T, int N, class Isa>
SITU_INLINE void store_numbers(pack<compute_t<T>, N, Isa> const& first, pack<compute_t<T>, N, Isa> const& second, T* to) {
  store_lanes<T, N, Isa>(first, to);
  store_lanes<T, N, Isa>(second, to + N);
}

/// Uniform in [low, low + scale), at most `below`. `plain`: in [0, 1).
template <class T>
struct uniform_numbers {
  using element = T;
  using C = compute_t<T>;
  static constexpr int per_block = takes_draws<T> ? 2 : 4;
  RandomStream stream;
  C scale = 1, low = 0, below = 0;
  bool plain = true;

  SITU_HOST_DEVICE T operator()(int64_t i) const {
    C const u = uniform_at<T>(stream, i);
    if (plain) return convert_scalar<T>(u);
    C const y = scaled_and_shifted(u, scale, low);
    return convert_scalar<T>(y < below ? y : below);
  }
  template <class Isa>
  SITU_INLINE void make(cpu::PhiloxLanes<Isa> const& blocks, T* to) const {
    cpu::UniformLanes<T, Isa> const u(blocks);
    if (plain) return store_numbers<T>(u.first, u.second, to);
    using P = decltype(u.first);
    P const s(scale), l(low);
    store_numbers<T>(math::detail::at_most(scaled_and_shifted(P(u.first), s, l), below), math::detail::at_most(scaled_and_shifted(P(u.second), s, l), below), to);
  }
};

/// Normal numbers times `deviation` plus `mean`. `plain`: neither.
template <class T>
struct normal_numbers {
  using element = T;
  using C = compute_t<T>;
  static constexpr int per_block = takes_draws<T> ? 2 : 4;
  RandomStream stream;
  C deviation = 1, mean = 0;
  bool plain = true;

  SITU_HOST_DEVICE T operator()(int64_t i) const {
    C const z = normal_at<T>(stream, i);
    return convert_scalar<T>(plain ? z : scaled_and_shifted(z, deviation, mean));
  }
  template <class Isa>
  SITU_INLINE void make(cpu::PhiloxLanes<Isa> const& blocks, T* to) const {
    cpu::NormalLanes<T, Isa> const z(blocks);
    if (plain) return store_numbers<T>(z.first, z.second, to);
    using P = decltype(z.first);
    P const s(deviation), m(mean);
    store_numbers<T>(scaled_and_shifted(P(z.first), s, m), scaled_and_shifted(P(z.second), s, m), to);
  }
};

/// Integers in [low, low + span).
template <class T>
struct whole_numbers {
  using element = T;
  static constexpr int per_block = 2;
  RandomStream stream;
  int64_t low;
  uint64_t span;

  SITU_HOST_DEVICE T operator()(int64_t i) const {
    return convert_scalar<T>(static_cast<int64_t>(static_cast<uint64_t>(low) + scaled_draw(stream.draw(i), span)));
  }
  template <class Isa>
  SITU_INLINE void make(cpu::PhiloxLanes<Isa> const& blocks, T* to) const {
    constexpr int N = cpu::PhiloxLanes<Isa>::N;
    auto const a = blocks.draws01(), b = blocks.draws23();
    store<Isa>(drawn(cpu::interleave<false>(a, b)), to);
    store<Isa>(drawn(cpu::interleave<true>(a, b)), to + N);
  }

 private:
  /// As scaled_draw.
  template <int N, class Isa>
  SITU_INLINE pack<int64_t, N, Isa> drawn(pack<uint64_t, N, Isa> const& bits) const {
    using U = pack<uint64_t, N, Isa>;
    using cpu::multiply_low_halves;
    U const upper = bits >> 32, s0 = cpu::every_lane<uint64_t, N, Isa>(span & 0xffffffffu), s1 = cpu::every_lane<uint64_t, N, Isa>(span >> 32);
    U const middle0 = multiply_low_halves(upper, s0) + (multiply_low_halves(bits, s0) >> 32);
    U result = middle0 >> 32;
    if (span >> 32 != 0) {
      U const middle1 = multiply_low_halves(bits, s1) + (middle0 & U(uint64_t{0xffffffffu}));
      result = multiply_low_halves(upper, s1) + result + (middle1 >> 32);
    }
    return bitcast<int64_t>(result + cpu::every_lane<uint64_t, N, Isa>(static_cast<uint64_t>(low)));
  }
  template <class Isa, int N>
  SITU_INLINE static void store(pack<int64_t, N, Isa> const& x, T* to) {
    store_lanes<T, N, Isa>(convert_lanes<T, int64_t, Isa, N>(x), to);
  }
};

/// 1 with probability p, else 0.
template <class T>
struct coins {
  using element = T;
  static constexpr int per_block = 4;
  RandomStream stream;
  Chance chance;

  SITU_HOST_DEVICE T operator()(int64_t i) const { return convert_scalar<T>(chance.happens(stream.word(i)) ? 1 : 0); }
  template <class Isa>
  SITU_INLINE void make(cpu::PhiloxLanes<Isa> const& blocks, T* to) const {
    constexpr int N = 2 * cpu::PhiloxLanes<Isa>::N;
    auto const a = blocks.words01(), b = blocks.words23();
    auto const first = chance.happens(cpu::as_words(cpu::interleave<false>(a, b))), second = chance.happens(cpu::as_words(cpu::interleave<true>(a, b)));
    store_lanes<T, N, Isa>(convert_lanes<T, bool, Isa, N>(first), to);
    store_lanes<T, N, Isa>(convert_lanes<T, bool, Isa, N>(second), to + N);
  }
};

// What follows changes elements that are there already: the second argument of a CUDA thread's function is the index.

/// 1 with the probability that the element tells, else 0.
template <class T>
struct told_coins {
  using element = T;
  using C = compute_t<T>;
  static constexpr int cost = 10;
  static constexpr int per_block = takes_draws<T> ? 2 : 4;
  RandomStream stream;

  SITU_HOST_DEVICE T operator()(T p, int64_t i) const { return convert_scalar<T>(uniform(i) < static_cast<C>(p) ? 1 : 0); }
  template <class Isa>
  SITU_INLINE void make(cpu::PhiloxLanes<Isa> const& blocks, T* to) const {
    using Bits = std::conditional_t<takes_draws<T>, double, float>;
    cpu::UniformLanes<Bits, Isa> const u(blocks);
    using P = std::remove_cvref_t<decltype(u.first)>;
    constexpr int N = P::lanes;
    P const zero(C(0)), one(C(1));
    store_lanes<T, N, Isa>(select(u.first < load_lanes<T, N, Isa>(to), one, zero), to);
    store_lanes<T, N, Isa>(select(u.second < load_lanes<T, N, Isa>(to + N), one, zero), to + N);
  }

 private:
  SITU_HOST_DEVICE C uniform(int64_t i) const {
    if constexpr (takes_draws<T>) return uniform_at<double>(stream, i);
    else return uniform_at<float>(stream, i);
  }
};

/// The element times `scale`, or 0 where chance does not keep it.
template <class T>
struct dropped {
  using element = T;
  using C = compute_t<T>;
  static constexpr int cost = 10;
  static constexpr int per_block = 4;
  RandomStream stream;
  Chance keeps;
  C scale;

  SITU_HOST_DEVICE T operator()(T x, int64_t i) const { return convert_scalar<T>(keeps.happens(stream.word(i)) ? static_cast<C>(x) * scale : C(0)); }
  template <class Isa>
  SITU_INLINE void make(cpu::PhiloxLanes<Isa> const& blocks, T* to) const {
    constexpr int N = 2 * cpu::PhiloxLanes<Isa>::N;
    auto const a = blocks.words01(), b = blocks.words23();
    change<Isa, N>(chance_of(cpu::as_words(cpu::interleave<false>(a, b))), to);
    change<Isa, N>(chance_of(cpu::as_words(cpu::interleave<true>(a, b))), to + N);
  }

 private:
  template <class U>
  SITU_INLINE auto chance_of(U const& words) const {
    return keeps.happens(words);
  }
  template <class Isa, int N, class M>
  SITU_INLINE void change(M const& kept, T* to) const {
    auto const x = load_lanes<T, N, Isa>(to);
    using P = std::remove_cvref_t<decltype(x)>;
    store_lanes<T, N, Isa>(select(kept, x * P(scale), P(C(0))), to);
  }
};

}  // namespace detail
}  // namespace situ::inline SITU_ABI
