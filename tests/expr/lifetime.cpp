#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <support/devices.hpp>

namespace {

using namespace situ;
using floats = std::vector<float>;

template <class D>
auto formula_of_locals(D device) {
  Tensor<float, D> const a = arange(4, device), b = ones({4}, device);
  float const c = 0.5f;
  return a * b + c;
}

template <class E>
auto wrapped(E e) {
  return -e + 1;
}

}  // namespace

TEST_CASE_TEMPLATE("an expression outlives the tensors and the function it was written in", D, SITU_TEST_DEVICES) {
  auto const e = formula_of_locals(D{});
  CHECK(eval(e).to_vector() == floats{0.5, 1.5, 2.5, 3.5});
  CHECK(eval(e).to_vector() == floats{0.5, 1.5, 2.5, 3.5});
  auto const nested = wrapped(formula_of_locals(D{}) * 2);
  CHECK(eval(nested + e).to_vector() == floats{0.5, -0.5, -1.5, -2.5});
  auto const of_temporaries = Tensor<float, D>{1, 2} + Tensor<float, D>{3, 4}.flip(0);
  CHECK(eval(of_temporaries).to_vector() == floats{5, 5});
}

TEST_CASE_TEMPLATE("a kept expression is a formula: it sees later writes", D, SITU_TEST_DEVICES) {
  Tensor<float, D> x{1, 2, 3};
  auto const e = x * x;
  CHECK(eval(e).to_vector() == floats{1, 4, 9});
  x += 1;
  CHECK(eval(e).to_vector() == floats{4, 9, 16});
  x[0] = 10;
  CHECK(e.item(0) == 100.f);
  x = zeros({3}, D{});  // the name is bound to other storage, the formula keeps its own
  CHECK(eval(e).to_vector() == floats{100, 9, 16});
}

TEST_CASE("an expression holds its storage and lets it go") {
  Tensor<float> const x{1, 2};
  {
    auto const e = x + x;
    CHECK(x.use_count() == 3);
    auto const copy = e;
    CHECK(x.use_count() == 5);
  }
  CHECK(x.use_count() == 1);
}

TEST_CASE("an expression knows its shape, type and device") {
  Tensor<float> const x = zeros({2, 1});
  Tensor<int32_t> const y{1, 2, 3};
  auto const e = x < y;
  CHECK(e.shape() == Shape{2, 3});
  CHECK(e.rank() == 2);
  CHECK(e.size() == 6);
  CHECK(e.size(-1) == 3);
  CHECK(e.device() == Cpu{});
  CHECK(e.dtype() == dtype::boolean);
  CHECK(e.to_vector() == std::vector<bool>(6, true));
  CHECK(e.item(1, 2));
  CHECK((y * 2).to<double>().to_vector() == std::vector<double>{2, 4, 6});
  CHECK((y * 2).to(Emulated<0>{}).item(1) == 4);
}

TEST_CASE("storage that a value is written into stays alive until it is written") {
  Tensor<float> x = arange(1000);
  for (int k = 0; k < 10; ++k) x = x.flip(0) + 1;
  CHECK(x.item(0) == 10.f);
  Tensor<float> y = Tensor<float>{1, 2, 3}.slice(0, 1, 3);
  y = std::move(y) * 2;
  CHECK(y.to_vector() == floats{4, 6});
}
