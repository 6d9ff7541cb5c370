#include <doctest/doctest.h>

#include <cuda/compare.hpp>
#include <situ/ops/scan.hpp>
#include <situ/tensor.hpp>

using namespace situ;
using situ_test::differs;
using situ_test::many;
using situ_test::numbers;
using Gpu = Cuda<0>;

TEST_CASE_TEMPLATE("scans of this type are the same on a GPU as on the host", T, float, float16, int8_t) {
  double const tolerance = sizeof(T) == 2 ? 1e-2 : 2e-3;  // sums pass through thousands on their way, where floats are 2e-4 apart
  for (Shape const& s : {Shape{1, 1}, Shape{5, 1000}, Shape{1000, 5}, Shape{3, 100000}, Shape{100000, 3}, Shape{300, 301}}) {
    CAPTURE(to_string(s));
    Tensor<T> const a = numbers<T>(s);
    Tensor<T, Gpu> const x{a};
    for (int axis : {0, 1}) {
      CHECK(differs(cumsum(x, axis), cumsum(a, axis), tolerance) == "");
      CHECK(differs(cumsum(x.t(), axis), cumsum(a.t(), axis), tolerance) == "");
      CHECK(differs(cumsum(x.flip(1), axis), cumsum(a.flip(1), axis), tolerance) == "");
    }
  }
}

TEST_CASE("a scan fuses the expression that it scans") {
  Tensor<float> const a = numbers<float>({20, 30, 17}), b = numbers<float>({30, 1}, 2);
  Tensor<float, Gpu> const x{a}, y{b};
  for (int axis : {0, 1, 2}) CHECK(differs(cumprod(x * 0.125f + y, axis), cumprod(a * 0.125f + b, axis), 1e-5) == "");  // the product is exact: a GPU rounds once
}

TEST_CASE("a long scan is the same from run to run") {
  Tensor<float, Gpu> const x{numbers<float>({many(5'000'000)})};
  Tensor<float> const first = cumsum(x, 0).cpu();
  for (int k = 0; k < 3; ++k) CHECK(differs(cumsum(x, 0), first, 0.0) == "");
}

TEST_CASE("a scan calls a function for elements alone") {
  CHECK(situ_test::looks_up<Gpu>([](auto const& y) { return cumsum(y, 1); }, 1e-5) == "");
}
