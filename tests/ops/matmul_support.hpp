/// What tests of products share: numbers, plain loops, and how far results may be from them.
#pragma once

#include <situ/ops/matmul.hpp>
#include <situ/tensor/factories.hpp>

#include <cmath>
#include <vector>

namespace situ_test {
using namespace situ;

/// The element with index i in row-major order is (7 i + 3 seed) mod 11 - 5, or its absolute value for unsigned T.
template <class T>
Tensor<T> numbers(Shape const& shape, int64_t seed) {
  auto result = empty<T>(shape);
  for (int64_t i = 0; i < result.size(); ++i) {
    int64_t const x = (7 * i + 3 * seed) % 11 - 5;
    result.data()[i] = detail::convert_scalar<T>(std::is_same_v<T, uint8_t> && x < 0 ? -x : x);
  }
  return result;
}

template <class T>
using wide = std::conditional_t<floating<T>, double, uint64_t>;
template <class T>
wide<T> widened(T x) {
  if constexpr (floating<T>) return static_cast<double>(static_cast<compute_t<T>>(x));
  else return static_cast<uint64_t>(x);
}

/// The product by plain loops over elements, in double or wrapping integers; matrices of any strides.
template <class T>
std::vector<wide<T>> plain_product(Tensor<T> const& a, Tensor<T> const& b) {
  std::vector<wide<T>> result;
  for (int64_t i = 0; i < a.size(0); ++i) {
    for (int64_t j = 0; j < b.size(1); ++j) {
      wide<T> sum = 0;
      for (int64_t k = 0; k < a.size(1); ++k) {
        sum += widened(a.data()[i * a.strides()[0] + k * a.strides()[1]]) * widened(b.data()[k * b.strides()[0] + j * b.strides()[1]]);
      }
      result.push_back(sum);
    }
  }
  return result;
}

/// Elements that differ from the expected ones by more than rounding a sum of `terms` products of numbers up to 5 allows.
template <class T, class Expected>
int64_t wrong_elements(std::vector<T> const& got, std::vector<Expected> const& expected, int64_t terms) {
  if (got.size() != expected.size()) return -1;
  int64_t wrong = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if constexpr (floating<T>) {
      double const unit = std::is_same_v<T, double> ? 2.3e-16 : std::is_same_v<T, float> ? 1.2e-7 : std::is_same_v<T, float16> ? 1e-3 : 8e-3;
      double const x = static_cast<double>(static_cast<compute_t<T>>(got[i])), y = static_cast<double>(expected[i]);
      double const slack = unit * std::fabs(y) + 25e-7 * static_cast<double>(terms) * (std::is_same_v<T, double> ? 1e-9 : 1e-1);
      wrong += !(std::fabs(x - y) <= slack);
    } else {
      wrong += got[i] != static_cast<T>(static_cast<int64_t>(expected[i]));
    }
  }
  return wrong;
}

}  // namespace situ_test
