/// Philox 4x32-10: the numbers that random tensors are made from, and how an element's index picks them.
///
/// A call of a generator has a stream of 32-bit words: block b of four words is philox(key = seed, counter = (b, call)), and
///
///     word(i) = block(i / 4).word[i % 4]           draw(i) = word(2 i) * 2^32 + word(2 i + 1)
///
/// Element i of a tensor, counted in row-major order, is made from word(i), or from draw(i) where 32 bits are too few; so it depends on
/// the seed, the call and i alone, on every device and for any number of threads.
/// Source    Salmon, Moraes, Dror & Shaw 2011, doi:10.1145/2063384.2063405.
#pragma once

#include <situ/core/scalar.hpp>
#include <situ/expr/math.hpp>

#if defined(__CUDACC__)
#pragma nv_diagnostic push
#pragma nv_diag_suppress 20011, 20012, 20013, 20014, 20015
#endif

namespace situ::inline SITU_ABI {
namespace detail {

inline constexpr uint32_t philox_multiplier0 = 0xD2511F53u, philox_multiplier1 = 0xCD9E8D57u;
inline constexpr uint32_t philox_weyl0 = 0x9E3779B9u, philox_weyl1 = 0xBB67AE85u;

struct PhiloxWords {
  uint32_t word[4];
};

/// Ten rounds of Philox 4x32.
SITU_HOST_DEVICE inline PhiloxWords philox(uint64_t key, uint64_t block, uint64_t call) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  uint32_t c0 = static_cast<uint32_t>(block), c1 = static_cast<uint32_t>(block >> 32);
  uint32_t c2 = static_cast<uint32_t>(call), c3 = static_cast<uint32_t>(call >> 32);
  for (int round = 0; round < 10; ++round) {
    uint64_t const p0 = uint64_t{philox_multiplier0} * c0, p1 = uint64_t{philox_multiplier1} * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(p0);
    k0 += philox_weyl0, k1 += philox_weyl1;
  }
  return {{c0, c1, c2, c3}};
}

/// The stream of one call.
struct RandomStream {
  uint64_t seed, call;
  /// Selected, not indexed: the words stay in registers, and neighbours share their block.
  SITU_HOST_DEVICE uint32_t word(int64_t i) const {
    PhiloxWords const w = philox(seed, static_cast<uint64_t>(i) >> 2, call);
    uint32_t const low = i & 1 ? w.word[1] : w.word[0], high = i & 1 ? w.word[3] : w.word[2];
    return i & 2 ? high : low;
  }
  SITU_HOST_DEVICE uint64_t draw(int64_t i) const {
    PhiloxWords const w = philox(seed, static_cast<uint64_t>(i) >> 1, call);
    return i & 1 ? uint64_t{w.word[2]} << 32 | w.word[3] : uint64_t{w.word[0]} << 32 | w.word[1];
  }
};

/// The bits of a uniform number: 24 for float, 53 for double, as many as the 16-bit types have digits; none is rounded up to 1.
template <class T>
inline constexpr int uniform_bits = std::is_same_v<T, double> ? 53 : std::is_same_v<T, float> ? 24 : std::is_same_v<T, float16> ? 11 : 8;

/// Whether an element takes a draw of 64 bits rather than a word.
template <class T>
inline constexpr bool takes_draws = std::is_same_v<T, double>;

/// Element i of uniform numbers in [0, 1).
template <class T>
SITU_HOST_DEVICE compute_t<T> uniform_at(RandomStream const& stream, int64_t i) {
  if constexpr (takes_draws<T>) return static_cast<double>(static_cast<int64_t>(stream.draw(i) >> 11)) * (1.0 / 9007199254740992.0);
  else return static_cast<float>(static_cast<int32_t>(stream.word(i) >> (32 - uniform_bits<T>))) * (1.f / static_cast<float>(1 << uniform_bits<T>));
}

/// floor(bits * span / 2^64): each value within 2^-64 of its share.
SITU_HOST_DEVICE inline uint64_t scaled_draw(uint64_t bits, uint64_t span) {
  uint64_t const low_product = (bits & 0xffffffffu) * (span & 0xffffffffu);
  uint64_t const middle0 = (bits >> 32) * (span & 0xffffffffu) + (low_product >> 32);
  uint64_t const middle1 = (bits & 0xffffffffu) * (span >> 32) + (middle0 & 0xffffffffu);
  return (bits >> 32) * (span >> 32) + (middle0 >> 32) + (middle1 >> 32);
}

/// a * b + c, rounded twice on every device.
template <class X>
SITU_HOST_DEVICE SITU_INLINE X scaled_and_shifted(X const& a, X const& b, X const& c) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<X, float>) return __fadd_rn(__fmul_rn(a, b), c);
  else return __dadd_rn(__dmul_rn(a, b), c);
#else
  if constexpr (std::is_arithmetic_v<X>) {
    X product = a * b;
    __asm__("" : "+m"(product));
    return product + c;
  } else {
    return keep_order(a * b) + c;
  }
#endif
}

// Floats and packs of them alike.
SITU_HOST_DEVICE SITU_INLINE int32_t bits_of(float x) { return bits_to<int32_t>(x); }
SITU_HOST_DEVICE SITU_INLINE float float_of_bits(int32_t x) { return bits_to<float>(x); }
SITU_HOST_DEVICE SITU_INLINE float float_of(int32_t x) { return static_cast<float>(x); }
SITU_HOST_DEVICE SITU_INLINE float kept(float x) { return x; }
/// c - a b, rounded once.
SITU_HOST_DEVICE SITU_INLINE float remainder_of(float c, float a, float b) { return SITU_LIBM(fmaf)(-a, b, c); }
template <int N, class Isa>
SITU_INLINE pack<int32_t, N, Isa> bits_of(pack<float, N, Isa> const& x) {
  return bitcast<int32_t>(x);
}
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> float_of_bits(pack<int32_t, N, Isa> const& x) {
  return bitcast<float>(x);
}
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> float_of(pack<int32_t, N, Isa> const& x) {
  return convert_unchecked<float>(x);
}
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> kept(pack<float, N, Isa> const& x) {
  return keep_order(x);
}
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> remainder_of(pack<float, N, Isa> const& c, pack<float, N, Isa> const& a, pack<float, N, Isa> const& b) {
  if constexpr (Isa::fma) {
    return math::detail::fused<math::detail::sign::minus>(a, b, c);
  } else {
    auto const [high, low] = math::detail::two_prod(a, b);
    return keep_order(c - high) - low;
  }
}

/// A number in two parts, of which the second is what the first lost in rounding.
template <class X>
struct TwoParts {
  X high, low;
};
/// a + b, for |a| >= |b| or a = 0.
template <class X>
SITU_HOST_DEVICE SITU_INLINE TwoParts<X> in_two_parts(X const& a, X const& b) {
  X const sum = kept(X(a + b));
  return {sum, b - kept(X(sum - a))};
}

/// sqrt(-2 log u) for u in [2^-31, 1].
///
///     u = 2^e (1 + f),   log u = e log 2 + f + f^2 p(f)
template <class X>
SITU_HOST_DEVICE SITU_INLINE TwoParts<X> normal_radius(X const& u) {
  auto const from = bits_of(u) - decltype(bits_of(u))(0x3f400000);
  X const e = float_of(from >> 23);
  X const f = float_of_bits((from & decltype(bits_of(u))(0x007fffff)) + decltype(bits_of(u))(0x3f400000)) - X(1.0f);
  X p = f * X(-0.0450761728f) + X(0.104631938f);  // as in math::log
  p = p * f + X(-0.13161242f);
  p = p * f + X(0.14478381f);
  p = p * f + X(-0.166473061f);
  p = p * f + X(0.199908614f);
  p = p * f + X(-0.250000954f);
  p = p * f + X(0.333334506f);
  X const rest = (f * f) * (p * f + X(-0.5f)) + e * X(1.42860677e-06f);
  auto const sum = in_two_parts(X(e * X(0.693145751953125f)), f);
  auto const logarithm = in_two_parts(sum.high, X(kept(sum.low) + rest));
  X const square = logarithm.high * X(-2.0f), low = logarithm.low * X(-2.0f);
  X const root = math::sqrt(square);
  return {root, (remainder_of(square, root, root) + low) / (root + root + X(1e-30f))};
}

/// The sine and cosine of r turns, |r| <= 1/8, where r has at most 22 digits: 6 r is exact.
template <class X>
SITU_HOST_DEVICE SITU_INLINE TwoParts<X> sine_of_turns(X const& r) {
  X const s = r * r;
  X const q = s * (s * (s * X(41.5895996f) + X(-76.7012863f)) + X(81.6052322f)) + X(-41.3417015f);
  return in_two_parts(X(r * X(6.0f)), X(r * (s * q + X(0.283185307f))));
}
template <class X>
SITU_HOST_DEVICE SITU_INLINE TwoParts<X> cosine_of_turns(X const& r) {
  X const s = r * r;
  return in_two_parts(X(1.0f), X(s * (s * (s * (s * X(59.424225f) + X(-85.44882f)) + X(64.93937f)) + X(-19.739208f))));
}
template <class X>
SITU_HOST_DEVICE SITU_INLINE X product_of_parts(TwoParts<X> const& a, TwoParts<X> const& b) {
  return a.high * b.high + (a.high * b.low + a.low * b.high);
}

/// The elements 2 j and 2 j + 1 of normal numbers: Box and Muller's
///
///     sqrt(-2 log u) cos(2 pi v),   sqrt(-2 log u) sin(2 pi v)
///
/// of u in (0, 1], for float the rounded value of ((word(2 j) >> 1) | 1) / 2^31, and v in [0, 1), the upper 24 bits of word(2 j + 1); for double
/// of draws: u the upper 53 bits of 1 - draw(2 j), v those of draw(2 j + 1). Results err by less than 2 ULP.
struct NormalPair {
  float cosine, sine;
};
SITU_HOST_DEVICE inline NormalPair normal_pair(uint32_t radius_word, uint32_t angle_word) {
  float const u = static_cast<float>(static_cast<int32_t>(radius_word >> 1 | 1u)) * 4.65661287e-10f;
  uint32_t const angle = angle_word & 0xffffff00u, quarter = (angle + 0x20000000u) >> 30;
  float const r = static_cast<float>(static_cast<int32_t>(angle - (quarter << 30))) * 2.32830644e-10f;
  auto const radius = normal_radius(u);
  float const s = product_of_parts(radius, sine_of_turns(r)), c = product_of_parts(radius, cosine_of_turns(r));
  float const x = quarter & 1 ? s : c, y = quarter & 1 ? c : s;
  return {quarter == 1 || quarter == 2 ? -x : x, quarter & 2 ? -y : y};
}
struct WideNormalPair {
  double cosine, sine;
};
SITU_HOST_DEVICE inline WideNormalPair normal_pair(uint64_t radius_draw, uint64_t angle_draw) {
  double const u = 1.0 - static_cast<double>(static_cast<int64_t>(radius_draw >> 11)) * (1.0 / 9007199254740992.0);
  uint64_t const angle = angle_draw & ~uint64_t{0x7ff}, quarter = (angle + (uint64_t{1} << 61)) >> 62;
  double const r = static_cast<double>(static_cast<int64_t>(angle - (quarter << 62))) * (1.0 / 18446744073709551616.0);
  double const radius = math::sqrt(-2.0 * math::log(u)), x0 = 6.28318530717958647692 * r;
  double const s = math::sin(x0), c = math::cos(x0);
  double const x = quarter & 1 ? s : c, y = quarter & 1 ? c : s;
  return {radius * (quarter == 1 || quarter == 2 ? -x : x), radius * (quarter & 2 ? -y : y)};
}

/// Element i of normal numbers, in the type that T computes in.
template <class T>
SITU_HOST_DEVICE compute_t<T> normal_at(RandomStream const& stream, int64_t i) {
  PhiloxWords const w = philox(stream.seed, static_cast<uint64_t>(i) >> (takes_draws<T> ? 1 : 2), stream.call);
  if constexpr (takes_draws<T>) {
    auto const pair = normal_pair(uint64_t{w.word[0]} << 32 | w.word[1], uint64_t{w.word[2]} << 32 | w.word[3]);
    return i & 1 ? pair.sine : pair.cosine;
  } else {
    auto const pair = i & 2 ? normal_pair(w.word[2], w.word[3]) : normal_pair(w.word[0], w.word[1]);
    return i & 1 ? pair.sine : pair.cosine;
  }
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI

#if defined(__CUDACC__)
#pragma nv_diagnostic pop
#endif
