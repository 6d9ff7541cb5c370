/// Derivatives that kernels compute in a way of their own, in float, against formulas in long double.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include <situ/autograd/matmul.hpp>
#include <situ/autograd/reduce.hpp>
#include <situ/autograd/backward.hpp>
#include <support/devices.hpp>
#include <support/compare.hpp>

using namespace situ;

namespace {

/// Phi(x) + x phi(x)
long double gelu_slope(long double x) {
  return 0.5L * std::erfc(-x * 0.707106781186547524400844362104849039L) + x * 0.398942280401432677939946059934381868L * std::exp(-0.5L * x * x);
}

std::vector<float> points() {
  std::vector<float> result;
  for (int k = -7000; k <= 7000; ++k) result.push_back(static_cast<float>(k) * 0.001f + 1e-4f);  // over every piece of the table
  for (float x = 6.9f; x < 16; x += 0.13f) result.push_back(x), result.push_back(-x);
  return result;
}

}  // namespace

TEST_CASE("the derivative of gelu is right to the last digits, everywhere and on every path") {
  std::vector<float> const xs = points();
  situ_test::with_every_instruction_set<Cpu>([&] {
    auto values = empty<float>({static_cast<int64_t>(xs.size())});
    for (std::size_t k = 0; k < xs.size(); ++k) values.data()[k] = xs[k];
    Variable x{values};
    sum(gelu(x)).backward();
    auto const slopes = x.grad().to_vector();
    long double worst = 0, worst_share = 0;
    for (std::size_t k = 0; k < xs.size(); ++k) {
      long double const want = gelu_slope(static_cast<long double>(xs[k])), off = std::fabs(static_cast<long double>(slopes[k]) - want);
      worst = situ_test::worse(worst, off);
      // Small where x is far below 0; the slope has been 0 at -0.75.
      if (xs[k] < -1 && want < -1e-37L) worst_share = situ_test::worse(worst_share, off / std::fabs(want));
    }
    CHECK(static_cast<double>(worst) < 1.6e-7);
    CHECK(static_cast<double>(worst_share) < 8e-7);
  });
}

TEST_CASE("the derivative of gelu at the ends") {
  float const inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  situ_test::with_every_instruction_set<Cpu>([&] {
    Variable x{Tensor<float>{inf, -inf, nan, 0.0f, -0.0f, 40.0f, -40.0f, 3e38f, -3e38f}};
    sum(gelu(x)).backward();
    auto const slopes = x.grad().to_vector();
    CHECK(slopes[0] == 1);
    CHECK(slopes[1] == 0);
    CHECK(std::isnan(slopes[2]));
    CHECK(slopes[3] == 0.5f);
    CHECK(slopes[4] == 0.5f);
    CHECK(slopes[5] == 1);
    CHECK(slopes[6] == 0);
    CHECK(slopes[7] == 1);
    CHECK(slopes[8] == 0);
  });
}

TEST_CASE("the derivative of gelu in double") {
  // 0.5 erfc(-x / sqrt(2)) + x exp(-x^2 / 2) / sqrt(2 pi), by mpmath
  std::vector<double> const xs{-38.5, -30, -12.5, -4.75, -1.5, -0.25, 0, 0.125, 0.75, 2.5, 9, 40, std::numeric_limits<double>::infinity(),
                               -std::numeric_limits<double>::infinity()};
  std::vector<double> const slopes{-2.085e-321, -4.41603169070849437e-195, -5.831668554480155366e-34, -0.00002287307637824541223, -0.1274691922299795254, 0.304626645116363974, 0.5, 0.5992179356982065785, 0.9992257217392351044, 1.037611085908145208, 1.000000000000000009, 1.0, 1, 0};
  situ_test::with_every_instruction_set<Cpu>([&] {
    Variable x{Tensor<double>(xs, {static_cast<int64_t>(xs.size())})};
    sum(gelu(x)).backward();
    auto const found = x.grad().to_vector();
    for (std::size_t k = 0; k < xs.size(); ++k) {
      CAPTURE(xs[k]);
      CHECK(std::fabs(found[k] - slopes[k]) <= 1e-15 * std::fabs(slopes[k]) + 1e-315);
    }
  });
}

TEST_CASE("the derivative of elu does not cancel far below 0, and that of % by an infinite divisor is of the one it gives") {
  // alpha exp(x), by mpmath; a % b: torch 1.13
  std::vector<double> const xs{-90, -37.5, -18, -4, -0.5, 0, 3, 800};
  std::vector<double> const slopes{8.194012623990514689e-40, 5.175555005801868771e-17, 1.522997974471262915e-8, 0.01831563888873417867, 0.6065306597126334243, 1, 1, 1};
  double const inf = std::numeric_limits<double>::infinity();
  situ_test::with_every_instruction_set<Cpu>([&] {
    Variable x{Tensor<double>(xs)};
    Variable y{eval(cast<float>(Tensor<double>(xs)))};
    sum(elu(x)).backward();
    sum(elu(y, 1.0f)).backward();
    for (std::size_t k = 0; k < xs.size(); ++k) {
      CAPTURE(xs[k]);
      CHECK(std::fabs(x.grad().to_vector()[k] - slopes[k]) <= 1e-15 * slopes[k]);
      CHECK(std::fabs(static_cast<double>(y.grad().to_vector()[k]) - slopes[k]) <= 3e-7 * slopes[k] + 1e-44);
    }
    Variable<double> a{Tensor<double>{3, -3, -3, 3, 7, -7, 0}}, b{Tensor<double>{-inf, inf, -inf, inf, 2, 2, -inf}};
    sum(a % b).backward();
    CHECK(a.grad().to_vector() == std::vector<double>(7, 1.0));
    CHECK(b.grad().to_vector() == std::vector<double>{1, 1, 0, 0, -3, 4, 0});
  });
}

TEST_CASE("kinks, ties and NaN of what chooses have the gradients of PyTorch") {
  // torch 1.13: maximum, minimum, clamp and relu, gradients of the sum
  using Row = std::vector<double>;
  double const inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  Row const a{1, 2, 3, 1, nan, 1, nan, inf, -inf, 0, 1, 4}, b{1, 1, 5, nan, 1, 1, nan, inf, -inf, -0., 3, 2}, c{1, 3, 4, 2, 2, nan, nan, inf, inf, 0, 3, 2};
  auto const variable = [](Row const& values) { return Variable<double>{Tensor<double>(values, {static_cast<int64_t>(values.size())})}; };
  situ_test::with_every_instruction_set<Cpu>([&] {
    {
      auto const x = variable(a), y = variable(b);
      sum(maximum(x, y)).backward();
      CHECK(x.grad().to_vector() == Row{0.5, 1, 0, 1, 1, 0.5, 1, 0.5, 0.5, 0.5, 0, 1});
      CHECK(y.grad().to_vector() == Row{0.5, 0, 1, 1, 1, 0.5, 1, 0.5, 0.5, 0.5, 1, 0});
    }
    {
      auto const x = variable(a), y = variable(b);
      sum(minimum(x, y)).backward();
      CHECK(x.grad().to_vector() == Row{0.5, 0, 1, 1, 1, 0.5, 1, 0.5, 0.5, 0.5, 1, 0});
      CHECK(y.grad().to_vector() == Row{0.5, 1, 0, 1, 1, 0.5, 1, 0.5, 0.5, 0.5, 0, 1});
    }
    {
      auto const x = variable(a), low = variable(b), high = variable(c);
      sum(clamp(x, low, high)).backward();
      CHECK(x.grad().to_vector() == Row{1, 1, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0});
      CHECK(low.grad().to_vector() == Row{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
      CHECK(high.grad().to_vector() == Row{0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1});
    }
    auto const x = variable({1, -1, 0, -0., nan, inf, -inf});
    sum(relu(x)).backward();
    CHECK(x.grad().to_vector() == Row{1, 0, 0, 0, 1, 1, 0});
    Variable<double> const row{Tensor<double>{{1, -1, nan}}}, other{Tensor<double>{{1, -1, nan}}}, w{Tensor<double>{{1.}}};
    sum(linear_relu(row.t(), w)).backward();
    sum(relu(linear(other.t(), w))).backward();
    CHECK(row.grad().to_vector() == other.grad().to_vector());
  });
}

TEST_CASE("steps have the gradient 0, whatever comes, and a remainder that of the quotient which it belongs to") {
  Variable<double> const x{Tensor<double>{0.5, 0.25}};
  sum(sqrt(floor(x)) + log(round(x)) + 1 / trunc(x) + sqrt(ceil(x) - 1) + 1 / sign(x - x)).backward();
  CHECK(x.grad().to_vector() == std::vector<double>{0, 0});
  // PyTorch 1.13: a - floor(a / b) b, by b.
  Variable<double> const a{Tensor<double>{1.0, 7., 7., -7.}}, b{Tensor<double>{0.1, 3., -3., 2.5}};
  sum(a % b).backward();
  CHECK(b.grad().to_vector() == std::vector<double>{-9, -2, 3, 3});
  CHECK(a.grad().to_vector() == std::vector<double>{1, 1, 1, 1});
}

TEST_CASE("powers of 0 and angles of the origin have the gradients of PyTorch") {
  // torch 1.13: pow by its exponent, and torch 2: atan2, which gives NaN in 1.13; gradients of the sum
  using Row = std::vector<double>;
  double const inf = std::numeric_limits<double>::infinity();
  auto const variable = [](Row const& values) { return Variable<double>{Tensor<double>(values, {static_cast<int64_t>(values.size())})}; };
  situ_test::with_every_instruction_set<Cpu>([&] {
    {
      auto const x = variable({0, 0, 0, 0, 0, -0., 1, 1, 0}), power = variable({-2, -1, -0.5, 0, 1, -1, -2, 2, 3});
      sum(pow(x, power)).backward();
      CHECK(x.grad().to_vector() == Row{-inf, -inf, -inf, 0, 1, -inf, -2, 2, 0});
      CHECK(power.grad().to_vector() == Row{-inf, -inf, -inf, 0, 0, inf, 0, 0, 0});
      auto const exponent = variable({-2, 0, 3});
      sum(pow(0., exponent)).backward();
      CHECK(exponent.grad().to_vector() == Row{-inf, 0, 0});
    }
    auto const y = variable({0, 0, -0., -0., 2, 0, 0, -4, 0}), x = variable({0, -0., 0, -0., 0, 4, -4, 0, 0});
    sum(atan2(y, x)).backward();
    CHECK(y.grad().to_vector() == Row{0, 0, 0, 0, 0, 0.25, -0.25, 0, 0});
    CHECK(x.grad().to_vector() == Row{0, 0, 0, 0, -0.5, 0, 0, 0.25, 0});
    auto const near = variable({1e-200, -1e-200}), beside = variable({1e-200, 1e-200});  // whose slopes of 5e199 have squares that are too small
    sum(atan2(near, beside)).backward();
    CHECK(near.grad().to_vector() == Row{inf, inf});
    CHECK(beside.grad().to_vector() == Row{-inf, inf});
  });
}
