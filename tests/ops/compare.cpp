#include <doctest/doctest.h>

#include <cmath>
#include <situ/ops.hpp>
#include <situ/tensor.hpp>

using namespace situ;

TEST_CASE("allclose and isclose use |a - b| <= atol + rtol |b|, as NumPy does") {
  // np.isclose([1e10, 1e-7, nan, inf, -inf, inf, 1.0], [1.00001e10, 1e-8, nan, inf, inf, 1.0, 1.0 + 2e-5])
  double const inf = INFINITY, nan = NAN;
  Tensor<double> a{1e10, 1e-7, nan, inf, -inf, inf, 1.0}, b{1.00001e10, 1e-8, nan, inf, inf, 1.0, 1.00002};
  CHECK(eval(isclose(a, b)).to_vector() == std::vector<bool>{true, false, false, true, false, false, false});
  CHECK(eval(isclose(a, b, {.equal_nan = true})).to_vector() == std::vector<bool>{true, false, true, true, false, false, false});
  CHECK(eval(isclose(a, b, {.rtol = 1e-4, .atol = 1e-6})).to_vector() == std::vector<bool>{true, true, false, true, false, false, true});
  Tensor<float> x{1, 2, 3};
  CHECK(allclose(x, x + 1e-6f));
  CHECK_FALSE(allclose(x, x + 1e-3f));
  CHECK_FALSE(allclose(a, a));
  CHECK(allclose(a, a, {.equal_nan = true}));
  CHECK(allclose(zeros({0}), zeros({0})));
}

TEST_CASE("equal compares shapes and all elements") {
  Tensor<int32_t> a{{1, 2}, {3, 4}}, b{{1, 2}, {3, 4}}, c{{1, 2}, {3, 5}};
  CHECK(equal(a, b));
  CHECK_FALSE(equal(a, c));
  CHECK_FALSE(equal(a, b.flatten()));
  CHECK(equal(a.t(), b.t()));
  CHECK_FALSE(equal(Tensor<float>{NAN}, Tensor<float>{NAN}));
  CHECK(equal(zeros({0, 3}), ones({0, 3})));
}
