/// Element types: which there are, the 16-bit floats, promotion between them, and their names.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include <situ/config.hpp>

namespace situ::inline SITU_ABI {

using std::int16_t;
using std::int32_t;
using std::int64_t;
using std::int8_t;
using std::uint16_t;
using std::uint32_t;
using std::uint64_t;
using std::uint8_t;

namespace detail {

template <class To, class From>
SITU_HOST_DEVICE constexpr To bits_to(From const& from) {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, from);
}

// GPUs have instructions for the conversions of 16-bit floats.

/// binary32 to binary16, round to nearest even; NaN stays NaN, beyond 65504 + half an ulp becomes infinite.
SITU_HOST_DEVICE constexpr uint16_t half_bits(float value) {
#if defined(__CUDA_ARCH__)
  if (!__builtin_is_constant_evaluated()) {
    uint16_t result = 0;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result) : "f"(value));
    return result;
  }
#endif
  uint32_t const bits = bits_to<uint32_t>(value);
  uint32_t const sign = (bits >> 16) & 0x8000u;
  uint32_t const magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {  // subnormal in binary16: add the magic number that aligns the mantissa
    float const shifted = bits_to<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (bits_to<uint32_t>(shifted) - 0x3f000000u));
  }
  uint32_t const rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u;
  return static_cast<uint16_t>(sign | (rounded >> 13));
}

SITU_HOST_DEVICE constexpr float half_value(uint16_t half) {
#if defined(__CUDA_ARCH__)
  if (!__builtin_is_constant_evaluated()) {
    float result = 0;
    asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(half));
    return result;
  }
#endif
  uint32_t const sign = (static_cast<uint32_t>(half) & 0x8000u) << 16;
  uint32_t const magnitude = static_cast<uint32_t>(half) & 0x7fffu;
  if (magnitude >= 0x7c00u) return bits_to<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  if (magnitude < 0x400u) {
    float const value = static_cast<float>(magnitude) * 5.9604644775390625e-8f;  // 2^-24
    return bits_to<float>(sign | bits_to<uint32_t>(value));
  }
  return bits_to<float>(sign | ((magnitude << 13) + 0x38000000u));
}

SITU_HOST_DEVICE constexpr uint16_t bfloat_bits(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if (!__builtin_is_constant_evaluated()) {
    uint16_t result = 0;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result) : "f"(value));
    return result;
  }
#endif
  uint32_t const bits = bits_to<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/// The float that a number is rounded to on its way to a 16-bit float. A double is rounded to odd: where it lies between two floats, to the one
/// whose last bit is set. That one lies on the same side of every 16-bit float, and of every middle between two, so that only the second rounding counts.
template <class From>
SITU_HOST_DEVICE constexpr float float_to_round(From value) {
  auto const nearest = static_cast<float>(value);
  if constexpr (std::is_floating_point_v<From> && sizeof(From) > sizeof(float)) {
    auto const back = static_cast<From>(nearest);
    auto const bits = bits_to<uint32_t>(nearest);
    if (back == value || value != value || (bits & 1u)) return nearest;
    bool const further = (value < 0 ? -value : value) > (back < 0 ? -back : back);
    return bits_to<float>(further ? bits + 1 : bits - 1);
  } else {
    return nearest;
  }
}

}  // namespace detail

/// IEEE 754 binary16, stored as 16 bits. Arithmetic is done in float and rounded when it is stored.
struct float16 {
  uint16_t bits = 0;
  constexpr float16() = default;
  template <class U>
    requires std::is_arithmetic_v<U>
  SITU_HOST_DEVICE constexpr explicit(!std::is_same_v<U, float>) float16(U value)
      : bits(detail::half_bits(detail::float_to_round(value))) {}
  template <class U>
    requires(std::is_arithmetic_v<U> && !std::is_same_v<U, float>)
  SITU_HOST_DEVICE constexpr float16& operator=(U value) {
    return *this = float16(value);
  }
  SITU_HOST_DEVICE constexpr operator float() const { return detail::half_value(bits); }
};

/// The upper half of a binary32: 8 bits of exponent, 8 of precision.
struct bfloat16 {
  uint16_t bits = 0;
  constexpr bfloat16() = default;
  template <class U>
    requires std::is_arithmetic_v<U>
  SITU_HOST_DEVICE constexpr explicit(!std::is_same_v<U, float>) bfloat16(U value)
      : bits(detail::bfloat_bits(detail::float_to_round(value))) {}
  template <class U>
    requires(std::is_arithmetic_v<U> && !std::is_same_v<U, float>)
  SITU_HOST_DEVICE constexpr bfloat16& operator=(U value) {
    return *this = bfloat16(value);
  }
  SITU_HOST_DEVICE constexpr operator float() const {
    return detail::bits_to<float>(static_cast<uint32_t>(bits) << 16);
  }
};

namespace detail {
template <class T, class... Us>
inline constexpr bool is_one_of = (std::is_same_v<T, Us> || ...);
}

/// The types a tensor may hold.
template <class T>
concept element = detail::is_one_of<T, float, double, float16, bfloat16, bool, int8_t, int16_t, int32_t, int64_t, uint8_t>;

template <class T>
concept floating = detail::is_one_of<T, float, double, float16, bfloat16>;

template <class T>
concept integer = element<T> && !floating<T> && !std::is_same_v<T, bool>;

/// A C++ number that may stand beside a tensor in an expression; its type is weak.
template <class T>
concept number = std::is_arithmetic_v<T> || detail::is_one_of<T, float16, bfloat16>;

// a += b and its like, of a 16-bit float and a number: computed as with a float, in double where b is one; the result is rounded to 16 bits.
#define SITU_ASSIGNED(OP)                                                                     \
  template <class F, number U>                                                                \
    requires detail::is_one_of<F, float16, bfloat16>                                          \
  SITU_HOST_DEVICE constexpr F& operator OP##=(F & a, U b) {                                  \
    using C = decltype(0.0f + b);                                                             \
    return a = F(static_cast<C>(static_cast<float>(a)) OP static_cast<C>(b));                 \
  }
SITU_ASSIGNED(+)
SITU_ASSIGNED(-)
SITU_ASSIGNED(*)
SITU_ASSIGNED(/)
#undef SITU_ASSIGNED

namespace detail {

template <class T>
using signed_of_size = std::conditional_t<
    sizeof(T) == 1, int8_t,
    std::conditional_t<sizeof(T) == 2, int16_t, std::conditional_t<sizeof(T) == 4, int32_t, int64_t>>>;

/// `long long` and `long` are both 64 bits: map what a user wrote to the element type of its size.
template <class T>
struct canonical {
  using type = T;
};
template <class T>
  requires(std::is_integral_v<T> && !std::is_same_v<T, bool> && !element<T>)
struct canonical<T> {
  using type = signed_of_size<T>;
};
template <>
struct canonical<long double> {
  using type = double;
};

template <class T, class U>
constexpr auto promote() {
  if constexpr (std::is_same_v<T, U>) return T{};
  else if constexpr (std::is_same_v<T, bool>) return U{};
  else if constexpr (std::is_same_v<U, bool>) return T{};
  else if constexpr (floating<T> && !floating<U>) return T{};
  else if constexpr (floating<U> && !floating<T>) return U{};
  else if constexpr (floating<T>) {
    if constexpr (sizeof(T) != sizeof(U)) return std::conditional_t<(sizeof(T) > sizeof(U)), T, U>{};
    else return float{};  // float16 with bfloat16: neither holds the other
  } else if constexpr (std::is_signed_v<T> == std::is_signed_v<U>) {
    return std::conditional_t<(sizeof(T) > sizeof(U)), T, U>{};
  } else {
    using S = std::conditional_t<std::is_signed_v<T>, T, U>;
    return std::conditional_t<sizeof(S) == 1, int16_t, S>{};  // the unsigned one is uint8
  }
}

}  // namespace detail

/// The element type that tensors of T and U combine to, by the array API's table; an integer with a floating type
/// gives the floating type, float16 with bfloat16 gives float.
template <class T, class U>
using promote_t = decltype(detail::promote<T, U>());

/// The element type of a tensor of T combined with a C++ number of type S. Numbers are weak: they keep T unless T
/// cannot be of their kind (an integer tensor with a floating number gives float, bool with an integer int64).
template <class T, class S>
using weak_t = std::conditional_t<
    (floating<S> || std::is_floating_point_v<S>) && !floating<T>, float,
    std::conditional_t<std::is_same_v<T, bool> && !std::is_same_v<S, bool>, int64_t, T>>;

/// T where it is floating, float otherwise: what `/`, `exp` and their like give.
template <class T>
using floating_t = std::conditional_t<floating<T>, T, float>;

/// The type that values of T are computed in: float for the 16-bit floats, T otherwise.
template <class T>
using compute_t = std::conditional_t<detail::is_one_of<T, float16, bfloat16>, float, T>;

/// Whether a T becomes a U without being asked: only where no promotion is lost.
template <class T, class U>
concept implicitly_converts_to = std::is_same_v<promote_t<T, U>, U>;

namespace detail {
/// -1 or 1 for an integer below or above all of the integer type T, else 0.
template <class T, class S>
constexpr int side_of(S const& value) {
  if constexpr (std::is_integral_v<T> && std::is_integral_v<S> && !std::is_same_v<T, bool> && !std::is_same_v<S, bool>) {
    if constexpr (std::is_signed_v<S>) {
      if (value < 0) return static_cast<int64_t>(value) < static_cast<int64_t>(std::numeric_limits<T>::min()) ? -1 : 0;
    }
    return static_cast<uint64_t>(value) > static_cast<uint64_t>(std::numeric_limits<T>::max()) ? 1 : 0;
  } else {
    return 0;
  }
}
}  // namespace detail

/// The name as PyTorch and NumPy print it: `float32`, `bfloat16`, `int64`.
template <element T>
constexpr const char* dtype_name() {
  if constexpr (std::is_same_v<T, float>) return "float32";
  else if constexpr (std::is_same_v<T, double>) return "float64";
  else if constexpr (std::is_same_v<T, float16>) return "float16";
  else if constexpr (std::is_same_v<T, bfloat16>) return "bfloat16";
  else if constexpr (std::is_same_v<T, bool>) return "bool";
  else if constexpr (std::is_same_v<T, int8_t>) return "int8";
  else if constexpr (std::is_same_v<T, int16_t>) return "int16";
  else if constexpr (std::is_same_v<T, int32_t>) return "int32";
  else if constexpr (std::is_same_v<T, int64_t>) return "int64";
  else return "uint8";
}

/// The run-time name of an element type; what `x.dtype()` returns.
enum class dtype : unsigned char { float32, float64, float16, bfloat16, boolean, int8, int16, int32, int64, uint8 };

template <element T>
inline constexpr dtype dtype_of = std::is_same_v<T, float>      ? dtype::float32
                                  : std::is_same_v<T, double>   ? dtype::float64
                                  : std::is_same_v<T, float16>  ? dtype::float16
                                  : std::is_same_v<T, bfloat16> ? dtype::bfloat16
                                  : std::is_same_v<T, bool>     ? dtype::boolean
                                  : std::is_same_v<T, int8_t>   ? dtype::int8
                                  : std::is_same_v<T, int16_t>  ? dtype::int16
                                  : std::is_same_v<T, int32_t>  ? dtype::int32
                                  : std::is_same_v<T, int64_t>  ? dtype::int64
                                                                : dtype::uint8;

/// The name of a run-time element type, as PyTorch and NumPy print it.
constexpr const char* name(dtype type) {
  constexpr const char* names[] = {"float32", "float64", "float16", "bfloat16", "bool",
                                   "int8",    "int16",   "int32",   "int64",    "uint8"};
  return names[static_cast<int>(type)];
}

namespace detail {
/// What `<<` writes to: any stream of characters, so that no stream header is needed here.
template <class S>
concept text_stream = requires(S& s, char const* t) {
  s.write(t, 1);
  s.flush();
};
/// Writes a text as std::string's `<<` does: filled up to the stream's width, which is 0 from then on.
template <text_stream S>
S& write_text(S& stream, char const* text, std::ptrdiff_t size) {
  if constexpr (requires { static_cast<std::ptrdiff_t>(stream.width(0)), static_cast<char>(stream.fill()), static_cast<bool>((stream.flags() & S::adjustfield) != S::left); }) {
    std::ptrdiff_t missing = static_cast<std::ptrdiff_t>(stream.width(0)) - size;
    char const filling = static_cast<char>(stream.fill());
    bool const text_first = (stream.flags() & S::adjustfield) == S::left;
    if (text_first) stream.write(text, size);
    for (; missing > 0; --missing) stream.write(&filling, 1);
    if (!text_first) stream.write(text, size);
  } else {
    stream.write(text, size);
  }
  return stream;
}
}  // namespace detail

/// Writes the name; works with any stream.
template <detail::text_stream Stream, class Type>
  requires std::is_same_v<Type, dtype>
Stream& operator<<(Stream& stream, Type const& type) {
  char const* const text = name(type);
  return detail::write_text(stream, text, static_cast<std::ptrdiff_t>(__builtin_strlen(text)));
}

namespace detail {

/// Variables, because device code may not call std::numeric_limits.
template <class T>
inline constexpr T least_integer = std::numeric_limits<T>::min();
template <class T>
inline constexpr T greatest_integer = std::numeric_limits<T>::max();

/// C++ conversion between element types without undefined behaviour: a float becomes an integer by truncation that
/// saturates, NaN becomes 0; integers wrap; anything but zero is true.
template <class To, class From>
SITU_HOST_DEVICE constexpr To convert_scalar(From const& from) {
  if constexpr (std::is_same_v<To, From>) return from;
  else if constexpr (is_one_of<From, float16, bfloat16>) return convert_scalar<To>(static_cast<float>(from));
  else if constexpr (is_one_of<To, float16, bfloat16>) return To(from);
  else if constexpr (std::is_same_v<To, bool>) return from != From(0);
  else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    constexpr To low = least_integer<To>, high = greatest_integer<To>;
    if (!(from == from)) return To(0);
    if (from <= static_cast<From>(low)) return low;
    if (from >= static_cast<From>(high)) return high;
    return static_cast<To>(from);
  } else {
    return static_cast<To>(from);
  }
}

/// A number as an element of T is computed with, for one that is then stored.
template <class T, class From>
SITU_HOST_DEVICE constexpr compute_t<T> compute_scalar(From const& from) {
  if constexpr (is_one_of<T, float16, bfloat16> && std::is_arithmetic_v<From>) return float_to_round(from);
  else return convert_scalar<compute_t<T>>(from);
}

/// What there is to know of a 16-bit float with so many bits of precision, the hidden one included.
template <class F, int Digits>
struct LimitsOf16Bits {
  static constexpr bool is_specialized = true, is_signed = true, is_integer = false, is_exact = false, is_bounded = true, is_modulo = false;
  static constexpr bool has_infinity = true, has_quiet_NaN = true, has_signaling_NaN = true, is_iec559 = true, traps = false, tinyness_before = false;
  static constexpr auto round_style = std::round_to_nearest;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // by C++23
  static constexpr auto has_denorm = std::denorm_present;
  static constexpr bool has_denorm_loss = false;
#pragma GCC diagnostic pop
  static constexpr int radix = 2, digits = Digits, digits10 = (Digits - 1) * 30103 / 100000, max_digits10 = 2 + Digits * 30103 / 100000;
  static constexpr int max_exponent = 1 << (15 - Digits), min_exponent = 3 - max_exponent;
  static constexpr int max_exponent10 = max_exponent * 30103 / 100000, min_exponent10 = (min_exponent - 1) * 30103 / 100000;

  SITU_HOST_DEVICE static constexpr F min() noexcept { return of_bits(1 << (Digits - 1)); }
  SITU_HOST_DEVICE static constexpr F max() noexcept { return of_bits(infinite - 1); }
  SITU_HOST_DEVICE static constexpr F lowest() noexcept { return of_bits(0x8000 | (infinite - 1)); }
  SITU_HOST_DEVICE static constexpr F epsilon() noexcept { return of_bits((max_exponent - Digits) << (Digits - 1)); }
  SITU_HOST_DEVICE static constexpr F round_error() noexcept { return of_bits((max_exponent - 2) << (Digits - 1)); }
  SITU_HOST_DEVICE static constexpr F infinity() noexcept { return of_bits(infinite); }
  SITU_HOST_DEVICE static constexpr F quiet_NaN() noexcept { return of_bits(infinite | 1 << (Digits - 2)); }
  SITU_HOST_DEVICE static constexpr F signaling_NaN() noexcept { return of_bits(infinite | 1 << (Digits - 3)); }
  SITU_HOST_DEVICE static constexpr F denorm_min() noexcept { return of_bits(1); }

 private:
  static constexpr int infinite = (2 * max_exponent - 1) << (Digits - 1);
  SITU_HOST_DEVICE static constexpr F of_bits(int bits) noexcept {
    F value;
    value.bits = static_cast<uint16_t>(bits);
    return value;
  }
};

}  // namespace detail
}  // namespace situ::inline SITU_ABI

template <>
struct std::numeric_limits<situ::float16> : situ::detail::LimitsOf16Bits<situ::float16, 11> {};
template <>
struct std::numeric_limits<situ::bfloat16> : situ::detail::LimitsOf16Bits<situ::bfloat16, 8> {};
