/// Derivatives that kernels compute in a way of their own, in float, against formulas in long double.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include <situ/autograd/reduce.hpp>
#include <situ/autograd/backward.hpp>
#include <support/devices.hpp>

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
      worst = std::fmax(worst, off);
      // Small where x is far below 0; the slope has been 0 at -0.75.
      if (xs[k] < -1 && want < -1e-37L) worst_share = std::fmax(worst_share, off / std::fabs(want));
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
