/// Parameters and gradients for tests of optimisers.
#pragma once

#include <cmath>
#include <vector>

#include <support/compare.hpp>
#include <support/devices.hpp>

#include <situ/autograd/state.hpp>

namespace situ_test {

/// Gives a leaf a gradient, as a backward pass would.
template <class T, class D>
void set_grad(situ::Variable<T, D> const& v, situ::Tensor<T, D> const& gradient) {
  v.state()->grad = gradient;
  v.state()->has_grad = true;
}
template <class T, class D>
void set_grads(situ::Variable<T, D> const& v, std::vector<double> const& values) {
  std::vector<T> converted;
  for (double x : values) converted.push_back(situ::detail::convert_scalar<T>(x));
  set_grad(v, situ::Tensor<T, D>(converted, v.shape()));
}

/// A leaf of these numbers.
template <class T, class D = situ::Cpu>
situ::Variable<T, D> leaf(situ::Shape const& shape, std::vector<double> const& values) {
  std::vector<T> converted;
  for (double x : values) converted.push_back(situ::detail::convert_scalar<T>(x));
  return situ::Variable<T, D>(situ::Tensor<T, D>(converted, shape));
}
/// 0.1 i - 1.
inline std::vector<double> ramp(std::int64_t n) {
  std::vector<double> result;
  for (std::int64_t i = 0; i < n; ++i) result.push_back(0.1 * static_cast<double>(i) - 1);
  return result;
}
template <class V>
std::vector<double> numbers_of(V const& v) {
  std::vector<double> result;
  for (auto x : v.to_vector()) result.push_back(static_cast<double>(x));
  return result;
}
/// 0.5 cos(0.7 t + i) + 0.2 p[i]: a gradient for step t.
inline std::vector<double> gradient_at(int t, std::vector<double> const& p) {
  std::vector<double> result;
  for (std::size_t i = 0; i < p.size(); ++i) result.push_back(0.5 * std::cos(0.7 * t + static_cast<double>(i)) + 0.2 * p[i]);
  return result;
}

}  // namespace situ_test
