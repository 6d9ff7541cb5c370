/// Lanes: how elements of every type become packs and masks, are converted between types, and are stored again.
///
/// In a kernel a number is a `pack` of compute_t<T>, a bool is a `lane_mask`. 16-bit floats are widened to float when
/// they are loaded and rounded once, when they are stored.
#pragma once

#include <situ/core/scalar.hpp>
#include <situ/expr/math/basic.hpp>
#include <situ/expr/pack.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// What N lanes of element type T are in a kernel for Isa.
template <class T, int N, class Isa>
struct lanes {
  using type = pack<compute_t<T>, N, Isa>;
};
template <int N, class Isa>
struct lanes<bool, N, Isa> {
  using type = lane_mask<1, N, Isa>;
};
template <class T, int N, class Isa>
using lanes_t = typename lanes<T, N, Isa>::type;

/// Whether the instructions for float16 can be used. With AVX2 they are there (F16C is older), and they take no notice of flushed denormals.
template <int N, class Isa>
inline constexpr bool converts_halves = SITU_PACK_CONVERSIONS && Isa::bytes > 16 && (4 * N == 16 || 4 * N == 32 || 4 * N == 64) && 4 * N <= Isa::bytes;

template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> widen_half(pack<uint16_t, N, Isa> const& half) {
  using U = pack<uint32_t, N, Isa>;
  using F = pack<float, N, Isa>;
#if SITU_PACK_CONVERSIONS
  if constexpr (converts_halves<N, Isa>) {
    whole_register<decltype(half.v)> from;
    put_in_register(from, half.v);
    typename F::vector result;
    __asm__("vcvtph2ps {%1, %0|%0, %1}" : "=v"(result) : "v"(from));
    return F(result);
  }
#endif
  U const wide = convert_unchecked<uint32_t>(half);
  U const sign = (wide & U(0x8000u)) << 16;
  U const magnitude = wide & U(0x7fffu);
  // Normal numbers move their exponent; subnormal ones are magnitude * 2^-24; infinities and NaN keep all ones.
  U const normal = (magnitude << 13) + U(0x38000000u);
  U const tiny = bitcast<uint32_t>(convert_unchecked<float>(bitcast<int32_t>(magnitude)) * F(5.9604644775390625e-8f));
  U const special = (magnitude << 13) | U(0x7f800000u);
  U const bits = select(magnitude < U(0x400u), tiny, select(magnitude >= U(0x7c00u), special, normal));
  return bitcast<float>(bits | sign);
}

template <int N, class Isa>
SITU_INLINE pack<uint16_t, N, Isa> narrow_half(pack<float, N, Isa> const& value) {
  using U = pack<uint32_t, N, Isa>;
  using F = pack<float, N, Isa>;
#if SITU_PACK_CONVERSIONS
  if constexpr (converts_halves<N, Isa>) {
    auto const from = value.v;
    whole_register<typename pack<uint16_t, N, Isa>::vector> result;  // of four halves the lower part
    __asm__("vcvtps2ph {$0, %1, %0|%0, %1, 0}" : "=v"(result) : "v"(from));
    pack<uint16_t, N, Isa> half;
    __builtin_memcpy(&half.v, &result, sizeof half.v);
    return half;
  }
#endif
  U const bits = bitcast<uint32_t>(value);
  U const sign = (bits >> 16) & U(0x8000u);
  U const magnitude = bits & U(0x7fffffffu);
  U const normal = (magnitude + U(0xfffu) + ((magnitude >> 13) & U(1u)) - U(0x38000000u)) >> 13;
  F const small = keep_order(bitcast<float>(select(magnitude < U(0x38800000u), magnitude, U(0u))) + F(0.5f));
  U const tiny = bitcast<uint32_t>(small) - U(0x3f000000u);
  U const nan = U(0x7e00u) | ((magnitude >> 13) & U(0x3ffu));
  U const finite = select(magnitude < U(0x38800000u), tiny, select(magnitude >= U(0x477ff000u), U(0x7c00u), normal));
  return convert_unchecked<uint16_t>(select(magnitude > U(0x7f800000u), nan, finite) | sign);
}

template <int N, class Isa>
SITU_INLINE pack<uint16_t, N, Isa> narrow_bfloat(pack<float, N, Isa> const& value) {
  using U = pack<uint32_t, N, Isa>;
  U const bits = bitcast<uint32_t>(value);
  U const rounded = (bits + U(0x7fffu) + ((bits >> 16) & U(1u))) >> 16;
  U const nan = (bits >> 16) | U(0x40u);
  return convert_unchecked<uint16_t>(select((bits & U(0x7fffffffu)) > U(0x7f800000u), nan, rounded));
}

/// N elements from consecutive places, as lanes.
template <class T, int N, class Isa>
SITU_INLINE lanes_t<T, N, Isa> load_lanes(T const* from) {
  if constexpr (std::is_same_v<T, bool>) {
    using P = pack<int8_t, N, Isa>;
    return P::load(reinterpret_cast<int8_t const*>(from)) != P(int8_t{0});
  } else if constexpr (std::is_same_v<T, float16>) {
    return widen_half(pack<uint16_t, N, Isa>::load(reinterpret_cast<uint16_t const*>(from)));
  } else if constexpr (std::is_same_v<T, bfloat16>) {
    auto const raw = pack<uint16_t, N, Isa>::load(reinterpret_cast<uint16_t const*>(from));
    return bitcast<float>(convert_unchecked<uint32_t>(raw) << 16);
  } else {
    return pack<T, N, Isa>::load(from);
  }
}

/// Lanes as N consecutive elements in memory: packs of T, of the bits of 16-bit floats, of the bytes of bools.
template <class T, int N, class Isa>
SITU_INLINE auto stored_lanes(lanes_t<T, N, Isa> const& x) {
  if constexpr (std::is_same_v<T, bool>) return pack<int8_t, N, Isa>(typename pack<int8_t, N, Isa>::vector(-x.v));
  else if constexpr (std::is_same_v<T, float16>) return narrow_half(x);
  else if constexpr (std::is_same_v<T, bfloat16>) return narrow_bfloat(x);
  else return x;
}
/// Lanes to N consecutive elements.
template <class T, int N, class Isa>
SITU_INLINE void store_lanes(lanes_t<T, N, Isa> const& x, T* to) {
  if constexpr (std::is_same_v<T, compute_t<T>> && !std::is_same_v<T, bool>) {
    x.store(to);
  } else {
    auto const stored = stored_lanes<T, N, Isa>(x);
    stored.store(reinterpret_cast<typename decltype(stored_lanes<T, N, Isa>(x))::value_type*>(to));
  }
}

/// The same value in all lanes.
template <class T, int N, class Isa>
SITU_INLINE lanes_t<T, N, Isa> broadcast_lanes(compute_t<T> value) {
  return lanes_t<T, N, Isa>(value);
}

/// One lane as an element.
template <class T, class X>
SITU_INLINE T lane(X const& x, int k) {
  if constexpr (is_mask<X>) return x[k];
  else return static_cast<T>(x[k]);
}

/// Truncated to 64 bits: floats by 32 bits, which they have to fit in, doubles of less than 2^51 by their own.
template <int N, class Isa>
SITU_INLINE pack<int64_t, N, Isa> truncated_lanes(pack<float, N, Isa> const& x) {
  return convert_unchecked<int64_t>(convert_unchecked<int32_t>(x));
}
template <int N, class Isa>
SITU_INLINE pack<int64_t, N, Isa> truncated_lanes(pack<double, N, Isa> const& x) {
  pack<double, N, Isa> const unit(0x1.8p52);  // in the last place
  return bitcast<int64_t>(keep_order(math::detail::rounded<math::detail::towards::zero>(x) + unit)) - bitcast<int64_t>(unit);
}

/// Floating lanes to integers: truncated, saturated, NaN to 0.
template <class To, class From, int N, class Isa>
SITU_INLINE pack<To, N, Isa> saturate(pack<From, N, Isa> const& x) {
  using F = pack<From, N, Isa>;
  using Ix = pack<To, N, Isa>;
  constexpr To low = std::numeric_limits<To>::min(), high = std::numeric_limits<To>::max();
  F const lowest(static_cast<From>(low)), highest(static_cast<From>(high));  // highest may be one too large
  if constexpr (sizeof(To) < 4) {
    F const number = select(x == x, x, F(From(0))), above_low = select(number < lowest, lowest, number);
    return convert_unchecked<To>(select(above_low > highest, highest, above_low));
  }
  if constexpr (sizeof(To) == 8 && Isa::bytes == 32) {  // AVX2 converts to 32 bits at most
    F const bound(sizeof(From) == 4 ? From(0x1p31) : From(0x1p51));
    if (SITU_LIKELY(!any_of(!((x < bound) & (x > -bound))))) return truncated_lanes(x);
  }
  auto const below = x <= lowest, above = x >= highest, number = x == x;
  F const inside = select(number & !(below | above), x, F(From(0)));
  return select(below, Ix(low), select(above, Ix(high), convert_unchecked<To>(inside)));
}

/// Doubles as floats that are then rounded to To, of 16 bits: see float_to_round. The bits that a float has no room for are joined in its last one. A
/// subnormal float has room for fewer, which only bfloat16 can tell: those are rounded to its multiples of 2⁻¹³³ at once.
template <class To, int N, class Isa>
SITU_INLINE pack<float, N, Isa> floats_to_round(pack<double, N, Isa> const& x) {
  using D = pack<double, N, Isa>;
  using U = pack<uint64_t, N, Isa>;
  U const bits = bitcast<uint64_t>(x), left_over((uint64_t{1} << 29) - 1);
  D rounded = bitcast<double>((bits | ((bits & left_over) + left_over)) & ~left_over);
  if constexpr (std::is_same_v<To, bfloat16>) {
    U const sign(uint64_t{1} << 63);
    D const far(0x1.8p-81);  // in units of whose last place
    D const multiple = keep_order(x + far) - far;
    rounded = select(bitcast<double>(bits & ~sign) < D(0x1p-126), bitcast<double>(bitcast<uint64_t>(multiple) | (bits & sign)), rounded);
  }
  return convert_unchecked<float>(rounded);
}

/// Lanes of element type From as lanes of element type To, with the conversions of C++ made total (see cast).
template <class To, class From, class Isa, int N, class X>
SITU_INLINE lanes_t<To, N, Isa> convert_lanes(X const& x) {
  using CTo = compute_t<To>;
  if constexpr (std::is_same_v<To, bool>) {
    if constexpr (is_mask<X>) return x.template as<1>();
    else return (x != X(typename X::value_type(0))).template as<1>();
  } else if constexpr (is_mask<X>) {
    using P = pack<CTo, N, Isa>;
    return select(x, P(CTo(1)), P(CTo(0)));
  } else {
    using V = typename X::value_type;
    if constexpr (std::is_same_v<V, CTo>) return x;
    else if constexpr (std::is_floating_point_v<V> && std::is_integral_v<CTo>) return saturate<CTo>(x);
    else if constexpr (std::is_same_v<V, double> && !std::is_same_v<To, CTo>) return floats_to_round<To>(x);
    else return convert_unchecked<CTo>(x);
  }
}

/// As convert_lanes, for operands: a mask stays as wide as it is when a bool is asked for.
template <class To, class From, class Isa, int N, class X>
SITU_INLINE auto operand_lanes(X const& x) {
  if constexpr (std::is_same_v<To, bool> && is_mask<X>) return x;
  else return convert_lanes<To, From, Isa, N>(x);
}

/// The value as a float16 or bfloat16 would hold it: what cast does in the middle of an expression.
template <class T, int N, class Isa>
SITU_INLINE lanes_t<T, N, Isa> rounded_to(lanes_t<T, N, Isa> const& x) {
  if constexpr (std::is_same_v<T, float16>) return widen_half(narrow_half(x));
  else if constexpr (std::is_same_v<T, bfloat16>) return bitcast<float>(convert_unchecked<uint32_t>(narrow_bfloat(x)) << 16);
  else return x;
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
