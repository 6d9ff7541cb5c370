// `Tensor y = e;` deduces the element type and the device of e, in every way that C++ initialises.
#include <doctest/doctest.h>

#include <situ/ops.hpp>
#include <situ/tensor.hpp>

using namespace situ;

template <class T, class X>
constexpr bool is = std::is_same_v<T, X>;

TEST_CASE("a tensor without template arguments takes those of what it is made from") {
  Tensor<float, Emulated<0>> a{1, 2, 3};
  Tensor<double> d{1, 2};
  auto const constant = d;
  auto const formula = d * d;
  auto const elsewhere = a + a;

  Tensor from_tensor = d, from_constant = constant, from_braces{d};
  static_assert(is<decltype(from_tensor), Tensor<double>> && is<decltype(from_constant), Tensor<double>>);
  static_assert(is<decltype(from_braces), Tensor<double>>);
  CHECK(from_tensor.use_count() == d.use_count());

  Tensor rvalue = d * 2, lvalue = formula, direct(formula), braced{formula}, braced_rvalue{constant + 1};
  static_assert(is<decltype(rvalue), Tensor<double>> && is<decltype(lvalue), Tensor<double>>);
  static_assert(is<decltype(direct), Tensor<double>> && is<decltype(braced), Tensor<double>>);
  static_assert(is<decltype(braced_rvalue), Tensor<double>>);
  CHECK(braced.to_vector() == std::vector<double>{1, 4});

  Tensor on_device = elsewhere, squared = a * a, braced_on_device{elsewhere};
  static_assert(is<decltype(on_device), Tensor<float, Emulated<0>>> && is<decltype(squared), Tensor<float, Emulated<0>>>);
  static_assert(is<decltype(braced_on_device), Tensor<float, Emulated<0>>>);
  CHECK(on_device.to_vector() == std::vector<float>{2, 4, 6});

  Tensor compared = d > 1;
  Tensor total = sum(d);
  Tensor pinned_with_cpu = pin(d) + 1;
  static_assert(is<decltype(compared), Tensor<bool>> && is<decltype(total), Tensor<double>>);
  static_assert(is<decltype(pinned_with_cpu), Tensor<double>>);

  Tensor values{{1, 2}, {3, 4}};
  Tensor row{1, 2.5}, one{3}, copied = {1, 2, 3};  // float, whatever the numbers are
  static_assert(is<decltype(values), Tensor<float>> && is<decltype(row), Tensor<float>> && is<decltype(one), Tensor<float>> && is<decltype(copied), Tensor<float>>);
  CHECK(row.to_vector() == std::vector<float>{1, 2.5f});
  CHECK(one.to_vector() == std::vector<float>{3});
  CHECK(copied.shape() == Shape{3});
  CHECK(values.shape() == Shape{2, 2});
  Tensor from_vector{std::vector<int>{1, 2, 3}, {3}};
  static_assert(is<decltype(from_vector), Tensor<int>>);
}
