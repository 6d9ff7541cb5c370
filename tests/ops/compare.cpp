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
  // in NumPy's order: rtol, atol, equal_nan
  CHECK(eval(isclose(a, b, 1e-4, 1e-6)).to_vector() == std::vector<bool>{true, true, false, true, false, false, true});
  CHECK(eval(isclose(a, b, 1e-4)).to_vector() == std::vector<bool>{true, false, false, true, false, false, true});
  CHECK(allclose(x, x + 1e-3f, 1e-2));
  CHECK(allclose(x, x + 1e-3f, 0, 1e-2));
  CHECK_FALSE(allclose(x, x + 1e-3f, 0.0));
  CHECK(allclose(a, a, 1e-5, 1e-8, true));
  CHECK(allclose(x, 2, 0, 1));
}

TEST_CASE("integers are compared as double") {
  // np.isclose(np.int32([16777217, 2**31 - 1]), np.int32([16777216, 2**31 - 2]), 0, 0), np.isclose(np.int64(2**40 + 1), np.int64(2**40), 0, 1)
  Tensor<int32_t> const a{16777217, 2147483647}, b{16777216, 2147483646};
  CHECK(eval(isclose(a, b, 0, 0)).to_vector() == std::vector<bool>{false, false});
  CHECK_FALSE(allclose(a, b, 0, 0));
  CHECK(allclose(a, b, 0, 1));
  Tensor<int64_t> const wide{(int64_t{1} << 40) + 1};
  CHECK_FALSE(allclose(wide, wide - 1, 0, 0.5));
  CHECK(allclose(wide, wide - 1, 0, 1));
  CHECK_FALSE(allclose(a, 16777216.0, 0, 0));
  CHECK_FALSE(allclose(16777216, Tensor<int32_t>{16777217}, 0, 0));
  CHECK(allclose(Tensor<int32_t>{16777217}, 16777217.0, 0, 0));
  CHECK_FALSE(allclose(Tensor<int32_t>{16777217}, Tensor<float>{16777216}, 0, 0));
}

TEST_CASE("a number is close to elements as a tensor of it is") {
  double const inf = INFINITY, nan = NAN;
  Tensor<double> const x{1, 1.00002, 1.000001, nan, inf, -inf};
  // np.isclose(x, 1.0), np.isclose(1.0, x, rtol=1e-4), np.isclose(x, inf), np.isclose(x, nan, equal_nan=True)
  CHECK(eval(isclose(x, 1.0)).to_vector() == std::vector<bool>{true, false, true, false, false, false});
  CHECK(eval(isclose(1, x, {.rtol = 1e-4})).to_vector() == std::vector<bool>{true, true, true, false, false, false});
  CHECK(eval(isclose(x, inf)).to_vector() == std::vector<bool>{false, false, false, false, true, false});
  CHECK(eval(isclose(x, nan)).to_vector() == std::vector<bool>(6, false));
  CHECK(eval(isclose(x, nan, {.equal_nan = true})).to_vector() == std::vector<bool>{false, false, false, true, false, false});
  // np.isclose(0.0, 1e-9), np.isclose(1e-9, 0.0), np.isclose(99999.0, 100000.0), np.isclose(100000.0, 99998.9)
  CHECK(allclose(zeros({2}), 1e-9));
  CHECK(allclose(0, full({2}, 1e-9)));
  CHECK(allclose(full<double>({2}, 99999), 100000));
  CHECK_FALSE(allclose(100000, full<double>({2}, 99998.9)));
  CHECK(allclose(full({2, 3}, 0.1), 0.1));
  CHECK_FALSE(allclose(full<int8_t>({2}, 44), 300));  // 300 is no int8
  CHECK(allclose(ones<int>({2}) * 2, 2.00001f));
  CHECK(allclose(zeros({0}), 7));
  Tensor<float, Emulated<0>> const there = ones({3}, Emulated<0>{});
  CHECK(allclose(there * 2, 2));
  CHECK(allclose(2, there * 2, {.atol = 0.5}));
  CHECK_FALSE(allclose(there, 2));
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
