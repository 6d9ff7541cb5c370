// What PyTorch gives stands in expected/rows.hpp; long rows and all layouts are compared with plain loops in double.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <ops/expected/rows.hpp>
#include <situ/ops/compare.hpp>
#include <situ/ops/normalization.hpp>
#include <situ/ops/random.hpp>
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

/// layer_norm, or rms_norm, of a matrix along an axis, by its definition.
std::vector<double> by_loops(Tensor<float> const& x, int axis, bool centred) {
  std::vector<double> result(static_cast<std::size_t>(x.size()));
  int64_t const n = x.shape()[axis], rows = x.shape()[1 - axis], columns = x.shape()[1];
  auto const packed = x.contiguous();
  for (int64_t r = 0; r < rows; ++r) {
    auto at = [&](int64_t k) { return static_cast<std::size_t>(axis == 1 ? r * columns + k : k * columns + r); };
    double mean = 0, squares = 0;
    for (int64_t k = 0; k < n && centred; ++k) mean += static_cast<double>(packed.data()[at(k)]) / static_cast<double>(n);
    for (int64_t k = 0; k < n; ++k) squares += std::pow(static_cast<double>(packed.data()[at(k)]) - mean, 2);
    for (int64_t k = 0; k < n; ++k) result[at(k)] = (static_cast<double>(packed.data()[at(k)]) - mean) / std::sqrt(squares / static_cast<double>(n) + 1e-5);
  }
  return result;
}

template <class T, class D>
double worst(Tensor<T, D> const& y, std::vector<double> const& expected) {
  auto const values = y.cpu().to_vector();
  REQUIRE(values.size() == expected.size());
  double result = 0;
  for (std::size_t k = 0; k < values.size(); ++k) {
    double const error = std::fabs(static_cast<double>(static_cast<compute_t<T>>(static_cast<T>(values[k]))) - expected[k]) / (1 + std::fabs(expected[k]));
    result = situ_test::worse(result, error);
  }
  return result;
}

}  // namespace

TEST_CASE_TEMPLATE("layer_norm and rms_norm give what PyTorch gives", D, SITU_TEST_DEVICES) {
  situ_test::with_every_instruction_set<D>([] {
    Tensor<float, D> const x = numbers<float>({3, 4, 5}).to(D{}), w = (numbers<float>({4, 5}) + 1.f).to(D{}), b = (numbers<float>({4, 5}) * 0.5f).to(D{});
    CHECK(worst(layer_norm(x, {5}), expected::layer_norm_last) < 1e-6);
    CHECK(worst(layer_norm(x, {4, 5}, w, b, 1e-3), expected::layer_norm_weighed) < 1e-6);
    CHECK(worst(layer_norm(x, normalized_axes{{0, 2}}), expected::layer_norm_axes_0_2) < 1e-6);
    CHECK(worst(layer_norm(x, normalized_axes{{2, -3}}), expected::layer_norm_axes_0_2) < 1e-6);
    CHECK(worst(layer_norm(x, normalized_axes{{0}}, w.reshape({-1}).slice(0, 0, 3)), expected::layer_norm_axis_0) < 1e-6);
    CHECK(worst(rms_norm(x, {5}), expected::rms_norm_last) < 1e-6);
    CHECK(worst(rms_norm(x, {4, 5}, w, 1e-3), expected::rms_norm_weighed) < 1e-6);
  });
}

TEST_CASE("norms keep the floating type, and take weights of another one and as formulas") {
  auto const x = numbers<float16>({3, 4, 5});
  auto const w = numbers<float>({4, 5}), b = numbers<float>({4, 5});
  static_assert(std::is_same_v<value_of<decltype(layer_norm(x, {4, 5}))>, float16>);
  static_assert(std::is_same_v<value_of<decltype(rms_norm(numbers<int64_t>({3}), {3}))>, float>);
  CHECK(worst(layer_norm(x, {4, 5}, w + 1.f, b * 0.5f, 1e-3), expected::layer_norm_weighed) < 1e-3);
  CHECK(worst(layer_norm(numbers<double>({3, 4, 5}), {5}), expected::layer_norm_last) < 1e-15);
}

TEST_CASE("every layout gives the same norms, for short rows, long ones, rows of parts, and strips") {
  situ_test::with_every_instruction_set<Cpu>([] {
    for (Shape const& s : {Shape{64, 10}, Shape{40, 1000}, Shape{3, 40000}, Shape{9000, 3}, Shape{300, 70}, Shape{1, 17}, Shape{5, 1}}) {
      CAPTURE(to_string(s));
      auto const x = numbers<float>(s);
      auto const sliced = numbers<float>({2 * s[0], 3 * s[1]}).slice(0, 0, end(), 2).slice(1, 1, end(), 3);
      for (auto const& view : {x, x.t(), x.flip(1), sliced, sliced.t(), numbers<float>({s[0], 1}).expand(s)}) {
        CAPTURE(to_string(view.strides()));
        for (int axis : {0, 1}) {
          CAPTURE(axis);
          CHECK(worst(layer_norm(view, normalized_axes{{axis}}), by_loops(view, axis, true)) < 3e-6);
          CHECK(worst(rms_norm(view * 1.f, normalized_axes{{axis}}), by_loops(view, axis, false)) < 3e-6);
        }
      }
    }
  });
}

TEST_CASE("weights belong to the elements of a row also where rows are cut into parts or lie side by side") {
  for (Shape const& s : {Shape{2, 50000}, Shape{3, 100}}) {
    auto const x = numbers<float>(s);
    Tensor<float> const w = numbers<float>({s[1]}), b = w * 2.f;
    Tensor<float> const expected = layer_norm(x, Shape(s[1])) * w + b;
    CHECK(allclose(layer_norm(x, Shape(s[1]), w, b), expected, {.rtol = 1e-5, .atol = 1e-5}));
    CHECK(allclose(layer_norm(x.t(), normalized_axes{{0}}, w, b), expected.t(), {.rtol = 1e-5, .atol = 1e-5}));
  }
}

TEST_CASE("a mean far from 0 costs no accuracy") {
  for (int64_t n : {int64_t{1000}, int64_t{100000}}) {
    auto const x = numbers<float>({2, n});
    Tensor<float> const far = x + 4096.f;  // exact: multiples of 1/16
    CHECK(worst(layer_norm(far, Shape(n)), by_loops(far, 1, true)) < 3e-6);
    CHECK(worst(layer_norm(far.t(), normalized_axes{{0}}).t().contiguous(), by_loops(far, 1, true)) < 3e-6);
  }
  CHECK(worst(layer_norm(full<float>({3, 100}, 0.1f), {100}), std::vector<double>(300, 0.0)) < 1e-6);
}

TEST_CASE("elements far from the others, wherever they stand, cost no accuracy, and nothing in the rows beside them") {
  situ_test::with_every_instruction_set<Cpu>([] {
    for (int64_t n : {int64_t{40}, int64_t{1000}, int64_t{4000}}) {
      auto const plain = numbers<float>({37, n});
      auto x = plain.clone();
      for (int64_t at : {int64_t{0}, n / 2 - 4, n - 8}) x(3, range(at, at + 8)) = x(3, range(at, at + 8)) + 100.f;
      x(20, range(0, 1)) = -1000.f;
      auto const y = layer_norm(x, {n}), ordinary = layer_norm(plain, {n});
      CHECK(worst(y, by_loops(x, 1, true)) < 1e-6);
      for (int64_t r = 0; r < 37; ++r) {
        if (r != 3 && r != 20) CHECK(equal(y[r], ordinary[r]));
      }
    }
  });
}

TEST_CASE("NaN and infinities spoil their own row alone") {
  auto const x = Tensor<float>{{NAN, 1, 2}, {INFINITY, 1, 2}, {1, 2, 3}};
  auto const y = layer_norm(x, {3});
  for (int k = 0; k < 3; ++k) {
    CHECK(std::isnan(y.item(0, k)));
    CHECK(std::isnan(y.item(1, k)));
    CHECK(std::abs(y.item(2, k) - 1.22473f * static_cast<float>(k - 1)) < 1e-4f);
  }
}

TEST_CASE("rows of every length, in groups of any number, are normalised by themselves") {
  for (int64_t n = 1; n <= 300; n += n < 140 ? 1 : 7) {
    for (int64_t rows : {4, 15, 16, 17, 33, 52}) {
      Tensor<float> x = randn({rows, n}) * 2 + 1;
      x[rows / 2].assign(x[rows / 2] * 0.5f + 3000);  // far from 0
      if (n > 1) x(rows - 1, 0) = 1e6f;                // far from the guess of the mean
      Tensor<float> const centred = layer_norm(x, {n}), scaled = rms_norm(x, {n});
      auto const want = by_loops(x, 1, true), want_scaled = by_loops(x, 1, false);
      double worst = 0;
      for (int64_t k = 0; k < rows * n; ++k) {
        double const w = want[static_cast<std::size_t>(k)], u = want_scaled[static_cast<std::size_t>(k)];
        worst = situ_test::worse(worst, std::abs(static_cast<double>(centred.data()[k]) - w) / (1 + std::abs(w)));
        worst = situ_test::worse(worst, std::abs(static_cast<double>(scaled.data()[k]) - u) / (1 + std::abs(u)));
      }
      CHECK_MESSAGE(worst < 3e-6, n, " ", rows, " ", worst);
      // Other rows change nothing, whatever they are.
      Tensor<float> spoilt = x.clone();
      spoilt(0, n - 1) = std::numeric_limits<float>::quiet_NaN();
      spoilt(rows - 1, 0) = std::numeric_limits<float>::infinity();
      Tensor<float> const beside = layer_norm(spoilt, {n});
      bool same = true;
      for (int64_t k = n; k < (rows - 1) * n; ++k) same = same && beside.data()[k] == centred.data()[k];
      CHECK_MESSAGE(same, n, " ", rows);
    }
  }
}

TEST_CASE("a norm of a formula is one launch into one allocation") {
  Tensor<float, Probe> const x = numbers<float>({30, 200}).to(Probe{}), w = numbers<float>({200}).to(Probe{});
  Probe::reset();
  auto const y = layer_norm(x + x, {200}, w, w);
  CHECK(Probe::launches == 1);
  CHECK(Probe::allocations == 1);
}

TEST_CASE("what does not fit is named with both shapes") {
  auto const x = numbers<float>({2, 3, 4});
  CHECK(situ_test::thrown<ShapeError>([&] { layer_norm(x, {3}); },
                                      "layer_norm: normalized shape [3] is not the end of shape [2, 3, 4]; give the extents of the last axes, or normalized_axes{{...}}") == "");
  CHECK(situ_test::thrown<ShapeError>([&] { rms_norm(x, {5, 2, 3, 4}); },
                                      "rms_norm: normalized shape [5, 2, 3, 4] is not the end of shape [2, 3, 4]; give the extents of the last axes, or normalized_axes{{...}}") == "");
  CHECK(situ_test::thrown<ShapeError>([&] { layer_norm(x, normalized_axes{{3}}); }, "layer_norm: axis 3 is out of range for shape [2, 3, 4]: axes are -3 to 2") == "");
  CHECK(situ_test::thrown<ShapeError>([&] { layer_norm(x, normalized_axes{{1, -2}}); }, "layer_norm: axis -2 appears twice in [1, -2]") == "");
  CHECK(situ_test::thrown<ShapeError>([&] { layer_norm(x, normalized_axes{}); }, "layer_norm: no axes were given for shape [2, 3, 4]; name at least one") == "");
  CHECK(situ_test::thrown<ShapeError>([&] { layer_norm(x, {4}, numbers<float>({3})); },
                                      "layer_norm: the weight has shape [3], but the normalized axes of [2, 3, 4] have shape [4]") == "");
  CHECK(situ_test::thrown<ShapeError>([&] { layer_norm(x, {4}, numbers<float>({4}), numbers<float>({1, 4})); },
                                      "layer_norm: the bias has shape [1, 4], but the normalized axes of [2, 3, 4] have shape [4]") == "");
}

template <class X, class W>
concept norms_with = requires(X const& x, W const& w) { layer_norm(x, {1}, w); };
static_assert(norms_with<Tensor<float>, Tensor<float, Pinned>>);
static_assert(!norms_with<Tensor<float>, Tensor<float, Emulated<0>>>);
