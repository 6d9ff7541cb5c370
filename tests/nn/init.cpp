/// Initial values: the bounds, deviations and structure that PyTorch's functions have, the same numbers on every device.
#include <doctest/doctest.h>

#include <nn/expected/layers.hpp>
#include <situ/nn/init.hpp>
#include <situ/ops/matmul.hpp>
#include <situ/autograd/backward.hpp>
#include <support/compare.hpp>
#include <support/devices.hpp>

using namespace situ;
using situ_test::thrown;
namespace init = nn::init;

namespace {

struct Moments {
  double mean = 0, deviation = 0, least = 0, most = 0;
};
template <class V>
Moments moments(V const& v) {
  Moments result;
  double sum = 0, squares = 0;
  for (auto each : v.to_vector()) {
    double const x = static_cast<double>(each);
    sum += x, squares += x * x;
    result.least = std::fmin(result.least, x), result.most = std::fmax(result.most, x);
  }
  double const n = static_cast<double>(v.size());
  result.mean = sum / n;
  result.deviation = std::sqrt(squares / n - result.mean * result.mean);
  return result;
}

/// Whether v looks uniform in ±bound.
template <class V>
bool fills(V const& v, double bound) {
  Moments const m = moments(v);
  return m.least >= -bound && m.most <= bound && m.least < -0.98 * bound && m.most > 0.98 * bound && std::abs(m.deviation * std::sqrt(3.0) / bound - 1) < 0.03;
}
/// Whether v looks normal about 0.
template <class V>
bool spreads(V const& v, double deviation) {
  Moments const m = moments(v);
  return std::abs(m.mean) < 0.05 * deviation && std::abs(m.deviation / deviation - 1) < 0.03 && m.most > 2.5 * deviation;
}

/// How far the shorter side of a matrix is from being orthogonal with this gain.
double error_of(Tensor<double> const& w, double gain) {
  int64_t const rows = w.size(0), columns = w.size() / rows;
  Tensor<double> const matrix = w.reshape({rows, columns});
  Tensor<double> const product = rows <= columns ? matmul(matrix, matrix.t()) : matmul(matrix.t(), matrix);
  double worst = 0;
  for (int64_t i = 0; i < product.size(0); ++i) {
    for (int64_t j = 0; j < product.size(1); ++j) worst = situ_test::worse(worst, std::abs(product(i, j) - (i == j ? gain * gain : 0)));
  }
  return worst;
}

}  // namespace

TEST_CASE("gains and fans are PyTorch's") {
  using init::nonlinearity;
  double const gains[] = {init::calculate_gain(nonlinearity::linear),     init::calculate_gain(nonlinearity::sigmoid),         init::calculate_gain(nonlinearity::tanh),
                          init::calculate_gain(nonlinearity::relu),       init::calculate_gain(nonlinearity::leaky_relu),      init::calculate_gain(nonlinearity::leaky_relu, 0.2),
                          init::calculate_gain(nonlinearity::selu)};
  for (std::size_t k = 0; k < std::size(gains); ++k) CHECK(gains[k] == doctest::Approx(situ_test::init_gains[k]).epsilon(1e-15));
  for (auto const& each : situ_test::fan_cases) {
    CHECK(detail::fans_of(each.shape, "").in == each.in);
    CHECK(detail::fans_of(each.shape, "").out == each.out);
  }
}

TEST_CASE("numbers are those that the generator draws elsewhere, and the same on every device") {
  auto const drawn = [](auto const& v, auto const& write) {
    Generator generator{7};
    write(v, generator);
    return v.to_vector();
  };
  auto const uniforms = [](auto const& v, Generator& generator) { init::uniform(v, -2, 3, generator); };
  auto const normals = [](auto const& v, Generator& generator) { init::normal(v, 1, 2, generator); };
  Variable<float> const near(zeros({1001}));
  Variable<float, Emulated<0>> const far(zeros({1001}, Emulated<0>{}));
  Generator first{7}, second{7};
  auto const u = drawn(near, uniforms);
  CHECK(situ_test::difference(u, uniform(-2, 3, {1001}, first).to_vector()) == "");
  CHECK(drawn(far, uniforms) == u);
  auto const z = drawn(near, normals);
  CHECK(situ_test::difference(z, normal(1, 2, {1001}, second).to_vector(), 16) == "");
  CHECK(drawn(far, normals) == z);
  CHECK(drawn(Tensor<float>(zeros({1001})), uniforms) == u);
  // A strided one gets them in row-major order.
  Variable<float> const strided(zeros({13, 77}).t());
  CHECK(drawn(strided, uniforms) == u);
  CHECK(drawn(Variable<float, Emulated<0>>(zeros({13, 77}, Emulated<0>{}).t()), uniforms) == u);
  manual_seed(7);
  init::uniform(near, -2, 3);
  CHECK(near.to_vector() == u);
  Variable<bfloat16> const narrow(zeros<bfloat16>({4000}));
  CHECK(fills(init::uniform(narrow, -0.5, 0.5), 0.5));
}

TEST_CASE("widths follow from gain and fans") {
  manual_seed(1);
  Variable<float> const w(zeros({64, 16, 3, 3}));  // fans: 144 in, 576 out
  CHECK(fills(init::xavier_uniform(w), std::sqrt(6.0 / 720)));
  CHECK(fills(init::xavier_uniform(w, 3), 3 * std::sqrt(6.0 / 720)));
  CHECK(spreads(init::xavier_normal(w, 2), 2 * std::sqrt(2.0 / 720)));
  CHECK(fills(init::kaiming_uniform(w), std::sqrt(6.0 / 144)));
  CHECK(fills(init::kaiming_uniform(w, {.a = std::sqrt(5.0)}), 1 / std::sqrt(144.0)));
  CHECK(spreads(init::kaiming_normal(w, {.mode = init::fan::out, .nonlinearity = init::nonlinearity::relu}), std::sqrt(2.0 / 576)));
  CHECK(spreads(init::kaiming_normal(w, {.nonlinearity = init::nonlinearity::linear}), std::sqrt(1.0 / 144)));
}

TEST_CASE("constants and identities") {
  Variable<float, Emulated<0>> const far(empty<float>({2, 3}, Emulated<0>{}));
  CHECK(init::ones(far).to_vector() == std::vector<float>(6, 1.f));
  CHECK(init::eye(far).to_vector() == std::vector<float>{1, 0, 0, 0, 1, 0});
  CHECK(init::constant(far, 2.5).to_vector() == std::vector<float>(6, 2.5f));
  CHECK(init::zeros(far).to_vector() == std::vector<float>(6, 0.f));
  Tensor<float16> const t = zeros<float16>({2, 2});
  init::eye(t);
  CHECK(static_cast<float>(t(1, 1)) == 1.f);

  std::optional<Variable<float>> const bias(Variable<float>(empty<float>({4}))), no_bias;
  CHECK(init::ones(bias)->value().to_vector() == std::vector<float>(4, 1.f));
  CHECK(init::zeros(bias)->value().to_vector() == std::vector<float>(4, 0.f));
  CHECK(max(init::uniform(bias, 2, 3)->value()).item() >= 2);
  CHECK(max(init::normal(bias, -9, 0)->value()).item() == -9);
  CHECK(bias->value().item(0) == -9);
  CHECK_FALSE(init::normal(init::uniform(init::ones(init::zeros(no_bias)))));
}

TEST_CASE("a truncated normal distribution") {
  for (auto const& [p, x] : situ_test::quantiles) CHECK(detail::normal_quantile(p) == doctest::Approx(x).epsilon(1e-13));
  manual_seed(2);
  Variable<double> const w(zeros<double>({20000}));
  Moments m = moments(init::trunc_normal(w));
  CHECK(m.least > -2);
  CHECK(m.most < 2);
  CHECK(std::abs(m.mean) < 0.02);
  CHECK(std::abs(m.deviation - 0.87962566103423978) < 0.01);  // √(1 - 4 φ(2) / (2 Φ(2) - 1))
  init::trunc_normal(w, 1, 2, 11, 13);  // 5 to 6 deviations above the mean
  double sum = 0;
  for (double x : w.to_vector()) {
    CHECK_MESSAGE((x >= 11 && x <= 13), x);
    sum += x;
  }
  CHECK(sum / 20000 == doctest::Approx(1 + 2 * 5.1829).epsilon(1e-3));  // (φ(5) - φ(6)) / (Φ(6) - Φ(5))
  CHECK(moments(init::trunc_normal(w, 1, 0, 0, 2)).mean == 1);
}

TEST_CASE("orthogonal matrices") {
  Tensor<double> rows = Tensor<double>(std::vector<double>(std::begin(situ_test::matrix_to_factor), std::end(situ_test::matrix_to_factor)), {6, 4}).t().clone();
  detail::orthonormalize(rows);
  auto const q = Tensor<double>(rows.t()).to_vector();
  for (std::size_t k = 0; k < q.size(); ++k) CHECK(q[k] == doctest::Approx(situ_test::its_q[k]).epsilon(1e-13));
  Generator generator{3};
  for (Shape const& shape : {Shape{5, 5}, Shape{3, 7}, Shape{7, 3}, Shape{100, 90}, Shape{70, 4, 3, 5}, Shape{1, 4}, Shape{4, 1}}) {
    Variable<double> const w(zeros<double>(shape));
    CHECK(error_of(init::orthogonal(w, 1.5, generator).value(), 1.5) < 1e-13);
  }
  CHECK(init::orthogonal(Variable<float>(zeros({0, 3}))).size() == 0);
  // Nearly dependent rows: orthogonal all the same.
  Tensor<double> close = ones<double>({40, 50});
  for (int64_t k = 0; k < 40; ++k) close(k, k) += 1e-7;
  detail::orthonormalize(close);
  CHECK(error_of(close, 1) < 1e-13);
}

TEST_CASE("writing is in place, unrecorded, and noticed by a backward that needs what was there") {
  Variable<float> const w(ones({2, 2}));
  Tensor<float> const shared = w.value();
  auto const same = init::constant(w, 3);
  CHECK(same.state() == w.state());
  CHECK(shared(1, 1) == 3);
  CHECK(w.is_leaf());
  CHECK(w.requires_grad());
  Variable<float> const y = w * w;
  init::zeros(w);
  CHECK(thrown<GradientError>([&] { y.backward(ones({2, 2})); },
                              "backward: Mul needs a tensor of shape [2, 2] as it was when it was recorded, but init::constant has written to it in place since; write "
                              "to a clone() of it, or after the backward") == "");
}

TEST_CASE("what cannot be initialised is refused, and stays as it was") {
  Variable<float> const v(ones({3}));
  auto const fans = [](char const* who) { return std::string(who) + ": shape [3] has no fan in and fan out: a weight has two axes or more, [out, in, window...]"; };
  CHECK(thrown<ShapeError>([&] { init::xavier_uniform(v); }, fans("init::xavier_uniform")) == "");
  CHECK(thrown<ShapeError>([&] { init::xavier_normal(v); }, fans("init::xavier_normal")) == "");
  CHECK(thrown<ShapeError>([&] { init::kaiming_uniform(v); }, fans("init::kaiming_uniform")) == "");
  CHECK(thrown<ShapeError>([&] { init::kaiming_normal(v); }, fans("init::kaiming_normal")) == "");
  CHECK(thrown<ShapeError>([&] { init::orthogonal(v); }, "init::orthogonal: shape [3] was given: a weight has two axes or more, [out, in, window...]") == "");
  CHECK(thrown<ShapeError>([&] { init::eye(v); }, "init::eye: shape [3] was given: a matrix has two axes") == "");
  CHECK(thrown<ShapeError>([&] { init::uniform(v, 1, 0); }, "init::uniform: from 1 to 0: low must not be above high, and both must be finite") == "");
  CHECK(thrown<ShapeError>([&] { init::normal(v, 0, -1); }, "init::normal: the standard deviation is -1; it must not be negative") == "");
  CHECK(thrown<ShapeError>([&] { init::trunc_normal(v, 0, 1, 2, -2); },
                           "init::trunc_normal: from 2 to -2 with a standard deviation of 1: low must be below high, and the deviation must not be negative") == "");
  CHECK(v.to_vector() == std::vector<float>(3, 1.f));
  CHECK_THROWS_AS(init::zeros(Tensor<float>(ones({1}).expand({3}))), LayoutError);
  float const fixed[] = {1, 2};
  CHECK_THROWS_AS(init::zeros(from_blob(fixed, {2})), TypeError);
}
