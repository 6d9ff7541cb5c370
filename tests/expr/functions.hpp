/// The checks that functions.cpp and functions_double.cpp make for their element type.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <expr/function_tables.hpp>
#include <support/compare.hpp>
#include <support/devices.hpp>

namespace situ_test {

/// `values` several times over, so that whole registers and what is left after them are computed.
inline std::vector<double> repeated(std::vector<double> const& values) {
  std::vector<double> result;
  for (int k = 0; k < 5; ++k) result.insert(result.end(), values.begin(), values.end());
  return result;
}

template <class T>
std::vector<T> as(std::vector<double> const& values) {
  std::vector<T> result;
  for (double v : values) result.push_back(static_cast<T>(v));
  return result;
}

/// CUDA documents larger errors than the CPU's.
template <class D>
constexpr int more_on_a_device = situ::host_device<D> ? 0 : 4;

#define SITU_CHECK_UNARY(CALL, TABLE, ULPS)                                                                              \
  situ_test::with_every_instruction_set<D>([&] {                                                                         \
    CAPTURE(static_cast<int>(situ::get_instruction_set()));                                                              \
    CHECK(situ_test::difference(eval(CALL).to_vector(), situ_test::repeated(situ_test::tables::TABLE##_values),          \
                                (ULPS) + situ_test::more_on_a_device<D>) == "");                                         \
  });

/// CUDA documents no relative error of lgamma between -23.0001 and -2.2637, where it has zeros; elsewhere 6 ULP.
template <class T>
std::string difference_of_lgamma_on_a_device(std::vector<T> const& results, std::vector<double> const& expected) {
  for (std::size_t k = 0; k < results.size(); ++k) {
    double const x = tables::inputs[k % tables::inputs.size()], off = std::abs(static_cast<double>(results[k]) - expected[k]);
    if (x > -23.0001 && x < -2.2637 && off <= (sizeof(T) == 4 ? 1e-6 : 1e-15) * std::fmax(1.0, std::abs(expected[k]))) continue;
    std::string const found = difference(std::vector<T>{results[k]}, std::vector<double>{expected[k]}, 6);
    if (!found.empty()) return "lgamma of " + std::to_string(x) + ": " + found;
  }
  return results.size() == expected.size() ? "" : "another number of results";
}

template <class T, class D>
void check_exponential_functions() {
  using namespace situ;
  Tensor<T, D> const x(as<T>(repeated(tables::inputs)));
  SITU_CHECK_UNARY(exp(x), exp, 2)
  SITU_CHECK_UNARY(exp2(x), exp2, 2)
  SITU_CHECK_UNARY(expm1(x), expm1, 2)
  SITU_CHECK_UNARY(log(x), log, 2)
  SITU_CHECK_UNARY(log2(x), log2, 2)
  SITU_CHECK_UNARY(log10(x), log10, 2)
  SITU_CHECK_UNARY(log1p(x), log1p, 2)
  SITU_CHECK_UNARY(sigmoid(x), sigmoid, 2)
  SITU_CHECK_UNARY(softplus(x), softplus, 2)
  SITU_CHECK_UNARY(silu(x), silu, 2)
  SITU_CHECK_UNARY(gelu(x), gelu, 2)
  SITU_CHECK_UNARY(gelu(x, approximate_tanh), gelu_tanh, 2)
  SITU_CHECK_UNARY(elu(x), elu, 2)
  SITU_CHECK_UNARY(erf(x), erf, 2)
  SITU_CHECK_UNARY(erfc(x), erfc, 4)
  if constexpr (host_device<D>) SITU_CHECK_UNARY(lgamma(x), lgamma, 4)
  else CHECK(difference_of_lgamma_on_a_device(eval(lgamma(x)).to_vector(), repeated(tables::lgamma_values)) == "");
}

template <class T, class D>
void check_trigonometric_functions() {
  using namespace situ;
  Tensor<T, D> const x(as<T>(repeated(tables::inputs)));
  SITU_CHECK_UNARY(sin(x), sin, 2)
  SITU_CHECK_UNARY(cos(x), cos, 2)
  SITU_CHECK_UNARY(tan(x), tan, 2)
  SITU_CHECK_UNARY(asin(x), asin, 2)
  SITU_CHECK_UNARY(acos(x), acos, 2)
  SITU_CHECK_UNARY(atan(x), atan, 2)
  SITU_CHECK_UNARY(sinh(x), sinh, 2)
  SITU_CHECK_UNARY(cosh(x), cosh, 2)
  SITU_CHECK_UNARY(tanh(x), tanh, 2)
  SITU_CHECK_UNARY(asinh(x), asinh, 2)
  SITU_CHECK_UNARY(acosh(x), acosh, 2)
  SITU_CHECK_UNARY(atanh(x), atanh, 2)
}

template <class T, class D>
void check_simple_functions() {
  using namespace situ;
  Tensor<T, D> const x(as<T>(repeated(tables::inputs)));
  SITU_CHECK_UNARY(sqrt(x), sqrt, 0)
  SITU_CHECK_UNARY(rsqrt(x), rsqrt, 2)
  SITU_CHECK_UNARY(reciprocal(x), reciprocal, 0)
  SITU_CHECK_UNARY(1 / x, reciprocal, 0)
  SITU_CHECK_UNARY(square(x), square, 0)
  SITU_CHECK_UNARY(abs(x), abs, 0)
  SITU_CHECK_UNARY(sign(x), sign, 0)
  SITU_CHECK_UNARY(leaky_relu(x, 0.25), leaky_relu, 0)
  SITU_CHECK_UNARY(floor(x), floor, 0)
  SITU_CHECK_UNARY(ceil(x), ceil, 0)
  SITU_CHECK_UNARY(round(x), round, 0)
  SITU_CHECK_UNARY(trunc(x), trunc, 0)
}

template <class T, class D>
void check_functions_of_two_operands() {
  using namespace situ;
  int64_t const n = static_cast<int64_t>(tables::operands.size());
  Tensor<T, D> const operands(as<T>(tables::operands));
  // Every pair, in storage of its own and as broadcast rows and columns.
  Tensor<T, D> const columns = operands.unsqueeze(1).expand({5, n, n}), rows = operands.expand({5, n, n});
  for (bool broadcast : {false, true}) {
    CAPTURE(broadcast);
    Tensor<T, D> const a = broadcast ? columns : columns.contiguous(), b = broadcast ? rows : rows.contiguous();
    SITU_CHECK_UNARY(a + b, add, 0)
    SITU_CHECK_UNARY(a - b, subtract, 0)
    SITU_CHECK_UNARY(a * b, multiply, 0)
    SITU_CHECK_UNARY(a / b, divide, 0)
    SITU_CHECK_UNARY(a % b, remainder, 0)
    SITU_CHECK_UNARY(remainder(a, b), remainder, 0)
    SITU_CHECK_UNARY(fmod(a, b), fmod, 0)
    SITU_CHECK_UNARY(floor_divide(a, b), floor_divide, 0)
    SITU_CHECK_UNARY(abs(minimum(a, b)) * sign(minimum(a, b)), minimum, 0)  // of two zeros, either
    SITU_CHECK_UNARY(abs(maximum(a, b)) * sign(maximum(a, b)), maximum, 0)
    SITU_CHECK_UNARY(pow(a, b), pow, 4)
    SITU_CHECK_UNARY(atan2(a, b), atan2, 2)
    SITU_CHECK_UNARY(hypot(a, b), hypot, 2)
  }
}

/// Results that are truth values, and functions of three operands; expected as NumPy's operators on the same numbers.
template <class T, class D>
void check_comparisons() {
  using namespace situ;
  int64_t const n = static_cast<int64_t>(tables::operands.size());
  Tensor<T, D> const operands(as<T>(tables::operands));
  Tensor<T, D> const a = operands.unsqueeze(1).expand({n, n}), b = operands.expand({n, n});
  std::vector<bool> less, equal, both, either, neither, nans, infinities, finite;
  std::vector<double> chosen;
  for (double x : tables::operands) {
    for (double y : tables::operands) {
      less.push_back(x < y);
      equal.push_back(x == y);
      both.push_back(x != 0 && y != 0);
      either.push_back(x != 0 || y != 0);
      neither.push_back(x == 0);
      nans.push_back(std::isnan(x));
      infinities.push_back(std::isinf(x));
      finite.push_back(std::isfinite(x));
      chosen.push_back(x != 0 ? y : x);
    }
  }
  with_every_instruction_set<D>([&] {
    CAPTURE(static_cast<int>(situ::get_instruction_set()));
    CHECK(eval(a < b).to_vector() == less);
    CHECK(eval(b > a).to_vector() == less);
    CHECK(eval(a == b).to_vector() == equal);
    CHECK(eval(!(a != b)).to_vector() == equal);
    CHECK(eval((a <= b) ^ (a == b)).to_vector() == less);
    CHECK(eval((b >= a) & !(a == b)).to_vector() == less);
    CHECK(eval(a && b).to_vector() == both);
    CHECK(eval(a || b).to_vector() == either);
    CHECK(eval(!a).to_vector() == neither);
    CHECK(eval(isnan(a) & (b == b || !(b == b))).to_vector() == nans);
    CHECK(eval(isinf(a)).to_vector() == infinities);
    CHECK(eval(isfinite(a)).to_vector() == finite);
    CHECK(situ_test::difference(eval(where(a, b, a)).to_vector(), chosen) == "");
  });
}

}  // namespace situ_test
