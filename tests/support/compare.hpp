/// Comparison of results with expected values: in units in the last place, NaN with NaN, zeros with their sign.
#pragma once

#include <cmath>
#include <cstdio>
#include <exception>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include <situ/core/scalar.hpp>

namespace situ_test {

/// The larger one of the worst error so far and another one. NaN is the worst, and stays.
template <class F>
F worse(F worst, std::type_identity_t<F> error) {
  return worst == worst && !(error <= worst) ? error : worst;
}

/// A float's place among all floats of its type, from the most negative to the largest.
template <class T>
std::int64_t place_of(T value) {
  using I = situ::detail::signed_of_size<T>;
  I const bits = situ::detail::bits_to<I>(value);
  return bits < 0 ? static_cast<std::int64_t>(std::numeric_limits<I>::min()) - bits : static_cast<std::int64_t>(bits);
}

/// How many representable values lie between two floats; the largest number where one is NaN and the other is not, or
/// where they are zeros of different signs.
template <class T>
std::int64_t ulps_between(T a, T b) {
  constexpr std::int64_t far = std::numeric_limits<std::int64_t>::max();
  bool const a_is_nan = a != a, b_is_nan = b != b;
  if (a_is_nan || b_is_nan) return a_is_nan && b_is_nan ? 0 : far;
  if (a == T(0) && b == T(0)) return situ::detail::bits_to<situ::detail::signed_of_size<T>>(a) == situ::detail::bits_to<situ::detail::signed_of_size<T>>(b) ? 0 : far;
  std::int64_t const p = place_of(a), q = place_of(b);
  if ((p < 0) != (q < 0) && (std::abs(p) > far / 2 || std::abs(q) > far / 2)) return far;
  return p > q ? p - q : q - p;
}

template <class T>
std::string shown(T value) {
  if constexpr (situ::floating<T>) {
    char text[40];
    std::snprintf(text, sizeof text, "%.17g", static_cast<double>(static_cast<situ::compute_t<T>>(value)));
    return text;
  } else {
    return std::to_string(value);
  }
}

/// Empty when all results are within `ulps` of what is expected (exactly equal for other types than float and double);
/// otherwise the first that is not, in words.
template <class Results, class Expected>
std::string difference(Results const& results, Expected const& expected, std::int64_t ulps = 0) {
  if (static_cast<std::size_t>(results.size()) != static_cast<std::size_t>(expected.size())) {
    return std::to_string(results.size()) + " results for " + std::to_string(expected.size()) + " expected values";
  }
  for (std::size_t k = 0; k < static_cast<std::size_t>(results.size()); ++k) {
    using T = typename Results::value_type;
    T const got = results[k];
    T const wanted = situ::detail::convert_scalar<T>(static_cast<typename Expected::value_type>(expected[k]));
    bool same = false;
    if constexpr (std::is_floating_point_v<T>) same = ulps_between(got, wanted) <= ulps;
    else if constexpr (situ::floating<T>) same = ulps_between(static_cast<float>(got), static_cast<float>(wanted)) == 0;
    else same = got == wanted;
    if (!same) return "element " + std::to_string(k) + " is " + shown(got) + ", expected " + shown(wanted);
  }
  return "";
}

/// Whether f throws E with exactly this message; otherwise what happened instead, in words. Empty when it does.
template <class E, class F>
std::string thrown(F f, std::string const& message) {
  try {
    f();
  } catch (E const& error) {
    return error.what() == message ? "" : std::string("the message is: ") + error.what();
  } catch (std::exception const& error) {
    return std::string("another exception: ") + error.what();
  }
  return "nothing was thrown";
}

}  // namespace situ_test
