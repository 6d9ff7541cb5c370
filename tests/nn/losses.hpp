/// What the tests of losses share: PyTorch's tables as tensors, and comparisons with them.
#pragma once

#include <nn/expected/losses.hpp>
#include <situ/nn/losses.hpp>
#include <situ/tensor.hpp>
#include <support/compare.hpp>
#include <support/devices.hpp>

namespace situ_test {

using namespace situ;

template <class T, class D>
Tensor<T, D> tensor_of(std::vector<double> const& values, Shape const& shape) {
  auto result = empty<T>(shape);
  for (std::size_t k = 0; k < values.size(); ++k) result.data()[k] = detail::convert_scalar<T>(values[k]);
  return result.to(D{});
}
template <class I, class D>
Tensor<I, D> labels_of(std::vector<std::int64_t> const& values, Shape const& shape) {
  auto result = empty<I>(shape);
  for (std::size_t k = 0; k < values.size(); ++k) result.data()[k] = static_cast<I>(values[k]);
  return result.to(D{});
}

/// Empty when all elements are within `tolerance` of what is expected, relative to max(1, |expected|).
template <class T, class D>
std::string apart(Tensor<T, D> const& got, std::vector<double> const& wanted, double tolerance) {
  auto const values = got.contiguous().cpu().to_vector();
  if (values.size() != wanted.size()) return std::to_string(values.size()) + " elements, expected " + std::to_string(wanted.size());
  for (std::size_t k = 0; k < wanted.size(); ++k) {
    double const x = static_cast<double>(static_cast<compute_t<T>>(values[k])), e = wanted[k];
    bool const near = !std::isinf(x) && !std::isinf(e) && std::abs(x - e) <= tolerance * std::fmax(1, std::abs(e));
    if (!near && !(x != x && e != e) && x != e) return "element " + std::to_string(k) + " is " + std::to_string(x) + ", expected " + std::to_string(e);
  }
  return "";
}

inline reduction named(std::string const& name) {
  return name == "mean" ? reduction::mean : name == "sum" ? reduction::sum : name == "none" ? reduction::none : reduction::batchmean;
}
template <class T>
constexpr double tolerance_of = std::is_same_v<T, double> ? 1e-13 : std::is_same_v<T, float> ? 2e-6 : std::is_same_v<T, float16> ? 4e-3 : 3e-2;

/// backward() of a loss, from the table's slopes where it has several elements.
template <class T, class D>
void go_back(Variable<T, D> const& loss) {
  if (loss.rank() == 0) return loss.backward();
  std::vector<double> slopes(expected::slopes.begin(), expected::slopes.begin() + loss.size());
  loss.backward(tensor_of<T, D>(slopes, loss.shape()));
}

}  // namespace situ_test
