// What PyTorch gives stands in expected/rows.hpp; long rows and all layouts are compared with plain loops in double.
#include <doctest/doctest.h>

#include <cmath>
#include <ops/expected/rows.hpp>
#include <situ/ops/compare.hpp>
#include <situ/ops/softmax.hpp>
#include <situ/tensor.hpp>
#include <support/compare.hpp>
#include <support/devices.hpp>
#include <support/probe.hpp>

using namespace situ;

namespace {

/// The numbers of rows.py.
template <class T>
Tensor<T> numbers(Shape const& shape) {
  auto result = empty<T>(shape);
  for (int64_t k = 0; k < result.size(); ++k) result.data()[k] = detail::convert_scalar<T>(static_cast<double>((k * 37 + 11) % 97) / 16 - 3);
  return result;
}

/// Softmax, or its logarithm, along an axis, by its definition.
template <class T>
std::vector<double> by_loops(Tensor<T> const& x, int axis, bool logarithm) {
  auto const values = x.contiguous().to_vector();
  std::vector<double> result(values.size());
  int64_t const n = x.shape()[axis];
  int64_t inner = 1;
  for (int k = axis + 1; k < x.rank(); ++k) inner *= x.shape()[k];
  for (int64_t first = 0; first < x.size(); ++first) {
    if (first / inner % n != 0) continue;
    auto at = [&](int64_t k) { return static_cast<std::size_t>(first + k * inner); };
    auto value = [&](int64_t k) { return static_cast<double>(static_cast<compute_t<T>>(static_cast<T>(values[at(k)]))); };
    double most = -INFINITY, sum = 0;
    for (int64_t k = 0; k < n; ++k) most = std::fmax(most, value(k));
    for (int64_t k = 0; k < n; ++k) sum += std::exp(value(k) - most);
    for (int64_t k = 0; k < n; ++k) result[at(k)] = logarithm ? value(k) - most - std::log(sum) : std::exp(value(k) - most) / sum;
  }
  return result;
}

/// The largest error, relative to |expected| (of logarithms: to 1 + |expected|), in units of T's last place.
template <class T, class D>
double worst(Tensor<T, D> const& y, std::vector<double> const& expected, bool logarithm) {
  auto const values = y.cpu().to_vector();
  REQUIRE(values.size() == expected.size());
  double const ulp = std::is_same_v<T, double> ? 0x1p-52 : std::is_same_v<T, float> ? 0x1p-23 : std::is_same_v<T, float16> ? 0x1p-10 : 0x1p-7;
  double const least = std::is_same_v<T, float16> ? 0x1p-14 : 1e-30;
  double result = 0;
  for (std::size_t k = 0; k < values.size(); ++k) {
    double const got = static_cast<double>(static_cast<compute_t<T>>(static_cast<T>(values[k])));
    double const scale = logarithm ? 1 + std::fabs(expected[k]) : std::fmax(std::fabs(expected[k]), least);
    double const error = std::fabs(got - expected[k]) / scale / ulp;
    result = situ_test::worse(result, error);
  }
  return result;
}

/// Of elements up to 6 apart: each of those exponents is rounded at 2^-22, which is 2 ULP; the rest is that of exp, the sum and the product.
constexpr double allowed = 5;

}  // namespace

TEST_CASE_TEMPLATE("softmax and log_softmax give what PyTorch gives along every axis", D, SITU_TEST_DEVICES) {
  situ_test::with_every_instruction_set<D>([] {
    std::vector<double> const* const expected[] = {&expected::softmax_0, &expected::softmax_1, &expected::softmax_2};
    std::vector<double> const* const logarithms[] = {&expected::log_softmax_0, &expected::log_softmax_1, &expected::log_softmax_2};
    Tensor<float, D> const x = numbers<float>({3, 4, 5}).to(D{});
    for (int axis = 0; axis < 3; ++axis) {
      CAPTURE(axis);
      CHECK(worst(softmax(x, axis), *expected[axis], false) <= allowed);
      CHECK(worst(softmax(x, axis - 3), *expected[axis], false) <= allowed);
      CHECK(worst(log_softmax(x, axis), *logarithms[axis], true) <= allowed);
    }
    CHECK(worst(softmax(x * 0.5f + x[0], 2), expected::softmax_of_expression, false) <= allowed);
  });
}

TEST_CASE_TEMPLATE("softmax keeps the floating type and makes float of integers", T, double, float16, bfloat16) {
  situ_test::with_every_instruction_set<Cpu>([] {
    auto const x = numbers<T>({3, 4, 5});
    static_assert(std::is_same_v<value_of<decltype(softmax(x, 0))>, T>);
    for (int axis = 0; axis < 3; ++axis) {
      CHECK(worst(softmax(x, axis), by_loops(x, axis, false), false) <= (sizeof(T) == 8 ? allowed : 1));
      CHECK(worst(log_softmax(x, axis), by_loops(x, axis, true), true) <= (sizeof(T) == 8 ? allowed : 1));
    }
  });
}

TEST_CASE("softmax makes float of integers and bools") {
  auto const k = Tensor<int32_t>{{1, 2, 3}, {0, 0, 0}};
  static_assert(std::is_same_v<value_of<decltype(softmax(k, 1))>, float>);
  CHECK(worst(softmax(k, 1), by_loops(k.to<double>(), 1, false), false) <= allowed);
  CHECK(softmax(Tensor<bool>{true, true}, 0).item(1) == 0.5f);
}

TEST_CASE("every layout gives the same softmax, for short rows, rows of some registers, rows of parts, and strips") {
  situ_test::with_every_instruction_set<Cpu>([] {
    for (Shape const& s : {Shape{64, 10}, Shape{7, 33}, Shape{40, 1000}, Shape{3, 40000}, Shape{9000, 3}, Shape{300, 70}, Shape{1, 17}, Shape{5, 1}}) {
      CAPTURE(to_string(s));
      auto const x = numbers<float>(s);
      auto const sliced = numbers<float>({2 * s[0], 3 * s[1]}).slice(0, 0, end(), 2).slice(1, 1, end(), 3);
      auto const repeated = numbers<float>({s[0], 1}).expand(s);
      for (auto const& view : {x, x.t(), x.flip(0), x.flip(1), x.t().flip(1), sliced, sliced.t(), repeated, repeated.t()}) {
        for (int axis : {0, 1}) {
          CAPTURE(axis);
          CAPTURE(to_string(view.strides()));
          CHECK(worst(softmax(view, axis), by_loops(view, axis, false), false) <= allowed);
          CHECK(worst(log_softmax(view * 1.0f, axis), by_loops(view, axis, true), true) <= allowed);
        }
      }
    }
  });
}

TEST_CASE("axes that are not neighbours, and formulas of several layouts, are read as they lie") {
  auto const x = numbers<float>({6, 5, 4, 7});
  for (int axis = 0; axis < 4; ++axis) {
    auto const view = x.permute({2, 0, 3, 1});
    CHECK(worst(softmax(view, axis), by_loops(view, axis, false), false) <= allowed);
    auto const row = numbers<float>({7, 1});
    Tensor<float> const formula = view * 0.5f + row;
    CHECK(worst(softmax(view * 0.5f + row, axis), by_loops(formula, axis, false), false) <= allowed);
  }
}

TEST_CASE("infinities and NaN in a row give what PyTorch gives") {
  situ_test::with_every_instruction_set<Cpu>([] {
    float const inf = INFINITY, nan = NAN;
    auto const x = Tensor<float>{{-inf, -inf, -inf}, {1, -inf, 1}, {inf, 0, 1}, {nan, 0, 1}, {0, -200, -80}};
    for (auto const& y : {softmax(x, 1), softmax(x.t(), 0).t(), exp(log_softmax(x, 1)).to(Cpu{}), exp(log_softmax(x.t(), 0)).to(Cpu{}).t()}) {
      for (int k = 0; k < 3; ++k) {
        CHECK(std::isnan(y.item(0, k)));
        CHECK(std::isnan(y.item(2, k)));
        CHECK(std::isnan(y.item(3, k)));
      }
      CHECK(std::abs(y.item(1, 0) - 0.5f) < 1e-6f);
      CHECK(y.item(1, 1) == 0);
      CHECK(y.item(4, 0) == 1);
      CHECK(y.item(4, 1) == 0);
      CHECK(std::abs(y.item(4, 2) / std::exp(-80.0) - 1) < 1e-4);
    }
    auto wide = full<float>({2, 50000}, -inf);  // in parts, most of them of -inf alone
    wide(1, 49999) = 3;
    auto const parts = softmax(wide, 1);
    CHECK(std::isnan(parts.item(0, 17)));
    CHECK(parts.item(1, 49999) == 1);
    CHECK(parts.item(1, 0) == 0);
  });
}

TEST_CASE("softmax of nothing is nothing, and of one element 1") {
  CHECK(softmax(empty<float>({0, 3}), 1).shape() == Shape{0, 3});
  CHECK(softmax(empty<float>({3, 0}), 1).shape() == Shape{3, 0});
  CHECK(softmax(Tensor<float>{-7}, 0).item() == 1);
  CHECK(log_softmax(numbers<float>({4, 1}), 1).item(2, 0) == 0);
  for (int axis : {0, -1}) {
    CHECK(softmax(full({}, -7.f), axis).shape() == Shape{});
    CHECK(softmax(full({}, -7.f), axis).item() == 1);
    CHECK(log_softmax(full({}, -7.f), axis).item() == 0);
    CHECK(std::isnan(softmax(full({}, INFINITY), axis).item()));
  }
}

TEST_CASE("softmax of a formula is one launch into one allocation") {
  Tensor<float, Probe> const x = numbers<float>({30, 200}).to(Probe{}), mask = numbers<float>({30, 200}).to(Probe{});
  Probe::reset();
  auto const y = softmax(x * 0.125f + mask, -1);
  CHECK(Probe::launches == 1);
  CHECK(Probe::allocations == 1);
}

TEST_CASE("results do not depend on the number of threads") {
  int const threads = num_threads();
  for (Shape const& s : {Shape{1000, 300}, Shape{2, 100000}, Shape{100000, 2}}) {
    auto const x = numbers<float>(s);
    for (int axis : {0, 1}) {
      set_num_threads(1);
      auto const one = softmax(x, axis);
      set_num_threads(threads > 1 ? threads : 2);
      CHECK(equal(one, softmax(x, axis)));
    }
  }
  set_num_threads(threads);
}

TEST_CASE("an axis that is not there is named") {
  auto const x = numbers<float>({2, 3});
  CHECK(situ_test::thrown<ShapeError>([&] { softmax(x, 2); }, "softmax: axis 2 is out of range for shape [2, 3]: axes are -2 to 1") == "");
  CHECK(situ_test::thrown<ShapeError>([&] { softmax(full({}, 1.f), 1); }, "softmax: axis 1 is out of range for shape []: it has no axes") == "");
  CHECK(situ_test::thrown<ShapeError>([&] { log_softmax(x, -3); }, "log_softmax: axis -3 is out of range for shape [2, 3]: axes are -2 to 1") == "");
}
