/// What the tests of attention and LSTMs share.
#pragma once

#include <cmath>
#include <vector>

#include <nn/expected/attention.hpp>
#include <situ/tensor/factories.hpp>
#include <support/compare.hpp>

namespace situ_test {

/// The pattern of expected/attention.py.
template <class T = double, class D = situ::Cpu>
situ::Tensor<T, D> pattern(int64_t seed, situ::Shape const& shape) {
  std::vector<T> values(static_cast<std::size_t>(situ::detail::product(shape)));
  for (std::size_t k = 0; k < values.size(); ++k) values[k] = static_cast<T>(static_cast<double>((7 * static_cast<int64_t>(k) + 13 * seed) % 23 - 11) / 16);
  return situ::Tensor<T, D>(values, shape);
}
/// The largest difference of an element; large where shapes differ, NaN where one is.
template <class T, class D>
double largest_difference(situ::Tensor<T, D> const& x, std::vector<double> const& y) {
  auto const values = x.to_vector();
  if (values.size() != y.size()) return 1e9;
  double result = 0;
  for (std::size_t k = 0; k < y.size(); ++k) {
    double const error = std::abs(static_cast<double>(static_cast<situ::compute_t<T>>(values[k])) - y[k]);
    result = situ_test::worse(result, error);
  }
  return result;
}

}  // namespace situ_test
