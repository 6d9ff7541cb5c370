/// Numbers in text: decimal, correctly rounded, with a dot whatever the locale.
#pragma once

#include <charconv>
#include <limits>
#include <string>
#include <string_view>

#if !defined(__cpp_lib_to_chars)
#include <locale.h>
#include <stdlib.h>
#endif

#include <situ/core/scalar.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

enum class parsed : unsigned char { number, missing, wrong, too_large };

inline bool is_word(std::string_view text, char const* word) {
  for (char c : text) {
    if (*word == '\0' || (c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c) != *word++) return false;
  }
  return *word == '\0';
}

/// Digits as far as they go: a number m * 10^e, which is exact unless `many`.
struct Decimal {
  uint64_t digits = 0;
  int exponent = 0;
  bool negative = false, many = false, has_point = false, good = false;
};
/// Reads a decimal number, and returns where it ends. Not `good`: there is none.
SITU_INLINE char const* scan_decimal(char const* at, char const* end, Decimal& number) {
  if (at != end && (*at == '-' || *at == '+')) number.negative = *at++ == '-';
  char const* const first = at;
  uint64_t digits = 0;
  for (; at != end && static_cast<unsigned char>(*at - '0') < 10; ++at) digits = 10 * digits + static_cast<unsigned char>(*at - '0');
  auto count = at - first;
  if (at != end && *at == '.') {
    number.has_point = true;
    char const* const point = ++at;
    for (; at != end && static_cast<unsigned char>(*at - '0') < 10; ++at) digits = 10 * digits + static_cast<unsigned char>(*at - '0');
    count += at - point;
    number.exponent = static_cast<int>(point - at);
  }
  if (count == 0) return at;
  number.good = true;
  number.digits = digits;
  for (char const* zero = first; count > 19 && (*zero == '0' || *zero == '.'); ++zero) count -= *zero == '0';  // those in front tell nothing
  number.many = count > 19;
  if (at == end || (*at != 'e' && *at != 'E')) return at;
  number.has_point = true;
  ++at;
  bool const down = at != end && *at == '-';
  if (at != end && (*at == '-' || *at == '+')) ++at;
  if (at == end || static_cast<unsigned char>(*at - '0') >= 10) {
    number.good = false;
    return at;
  }
  int power = 0;
  for (; at != end && static_cast<unsigned char>(*at - '0') < 10; ++at) power = power < 100000 ? 10 * power + (*at - '0') : power;
  number.exponent += down ? -power : power;
  return at;
}

/// Any decimal number, correctly rounded; the text is known to be one.
template <class F>
SITU_NOINLINE F parse_decimal_closely(char const* first, char const* last) {
  F value = 0;
#if defined(__cpp_lib_to_chars)
  if (*first == '+') ++first;
  auto const result = std::from_chars(first, last, value);
  if (result.ec != std::errc::result_out_of_range) return value;
  // Too large or too small: infinity or zero.
  int64_t magnitude = 0, power = 0;
  bool after_point = false, begun = false;
  char const* at = *first == '-' ? first + 1 : first;
  for (; at != last && *at != 'e' && *at != 'E'; ++at) {
    if (*at == '.') {
      after_point = true;
      continue;
    }
    begun = begun || *at != '0';
    if (begun && !after_point) ++magnitude;
    if (!begun && after_point) --magnitude;
  }
  bool const down = at != last && at[1] == '-';
  for (; at != last; ++at) {
    if (static_cast<unsigned char>(*at - '0') < 10 && power < 1000000) power = 10 * power + (*at - '0');
  }
  value = magnitude + (down ? -power : power) > 0 ? std::numeric_limits<F>::infinity() : F(0);
  return *first == '-' ? -value : value;
#else
  static locale_t const plain = ::newlocale(LC_ALL_MASK, "C", nullptr);
  std::string const text(first, last);
  if constexpr (std::is_same_v<F, float>) value = ::strtof_l(text.c_str(), nullptr, plain);
  else value = ::strtod_l(text.c_str(), nullptr, plain);
  return value;
#endif
}

/// m * 10^e, correctly rounded where that is one operation of exact numbers. False elsewhere.
/// Source    Clinger 1990, doi:10.1145/93548.93557.
template <class F>
SITU_INLINE bool decimal_to(Decimal const& number, F& value) {
  static constexpr double powers[] = {1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
  if (number.many || number.digits > uint64_t{1} << 53 || number.exponent < -22 || number.exponent > 22) return false;
  double const digits = static_cast<double>(static_cast<int64_t>(number.digits));
  double const wide = number.exponent < 0 ? digits / powers[-number.exponent] : digits * powers[number.exponent];
  if constexpr (std::is_same_v<F, float>) {
    // Rounded twice, to a value between two floats: then only a closer look tells which is nearer.
    uint64_t const bits = bits_to<uint64_t>(wide);
    if ((bits & 0x1fffffff) == 0x10000000 || (wide < 1.2e-38 && wide > 0) || wide > 3.4e38) return false;
  }
  value = static_cast<F>(number.negative ? -wide : wide);
  return true;
}

/// The element that a field says, without quotes and spaces around it.
template <element T>
parsed parse_field(std::string_view field, T& value) {
  std::string_view const unsigned_field = field.substr(!field.empty() && (field[0] == '-' || field[0] == '+'));
  if (field.empty() || is_word(unsigned_field, "nan") || is_word(field, "na") || is_word(field, "n/a") || is_word(field, "null") || is_word(field, "none")) return parsed::missing;
  char const *const first = field.data(), *const last = first + field.size();
  Decimal number;
  bool const whole = scan_decimal(first, last, number) == last && number.good;
  if constexpr (floating<T>) {
    using F = std::conditional_t<std::is_same_v<T, double>, double, float>;
    F result;
    if (whole) {
      if (!decimal_to(number, result)) result = parse_decimal_closely<F>(first, last);
    } else {
      if (!is_word(unsigned_field, "inf") && !is_word(unsigned_field, "infinity")) return parsed::wrong;
      result = std::numeric_limits<F>::infinity();
      if (*first == '-') result = -result;
    }
    value = convert_scalar<T>(result);
  } else if constexpr (std::is_same_v<T, bool>) {
    if (is_word(field, "true") || field == "1") value = true;
    else if (is_word(field, "false") || field == "0") value = false;
    else return parsed::wrong;
  } else {
    if (!whole || number.has_point) return parsed::wrong;
    using Limits = std::numeric_limits<T>;
    uint64_t const most = number.negative ? static_cast<uint64_t>(-(static_cast<int64_t>(Limits::min()) + 1)) + (std::is_signed_v<T> ? 1 : 0) : static_cast<uint64_t>(Limits::max());
    uint64_t const largest = number.negative && !std::is_signed_v<T> ? 0 : most;
    if (number.many || number.digits > largest) return parsed::too_large;
    value = static_cast<T>(number.negative ? 0 - number.digits : number.digits);
  }
  return parsed::number;
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
