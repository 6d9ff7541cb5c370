#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include <situ/expr/functions.hpp>
#include <situ/expr/map.hpp>

namespace {

using namespace situ;
using lanes = pack<double, 2, isa::baseline>;

bool near(double got, double expected) { return std::abs(got - expected) <= 2e-6 * std::fmax(1, std::abs(expected)); }

/// F::derivative at the points, of scalars and of packs, against (F(x + h) - F(x - h)) / 2h.
template <class F>
void check(std::vector<double> const& points) {
  CAPTURE(F::name);
  for (double x : points) {
    CAPTURE(x);
    double const h = 1e-5 * std::fmax(1, std::abs(x));
    double const expected = (F::value(x + h) - F::value(x - h)) / (2 * h);
    CHECK(near(F::derivative(x, F::value(x)), expected));
    lanes const of_pack = F::derivative(lanes(x), F::value(lanes(x)));
    CHECK(near(of_pack[0], expected));
    CHECK(near(of_pack[1], expected));
  }
}

template <class F>
void check_two(std::vector<double> const& first, std::vector<double> const& second) {
  CAPTURE(F::name);
  for (double a : first) {
    for (double b : second) {
      CAPTURE(a);
      CAPTURE(b);
      double const h = 1e-5;
      double const by_a = (F::value(a + h, b) - F::value(a - h, b)) / (2 * h), by_b = (F::value(a, b + h) - F::value(a, b - h)) / (2 * h);
      auto const slopes = F::derivative(a, b, F::value(a, b));
      CHECK(near(slopes.head, by_a));
      CHECK(near(slopes.tail.head, by_b));
      auto const of_packs = F::derivative(lanes(a), lanes(b), F::value(lanes(a), lanes(b)));
      CHECK(near(of_packs.head[1], by_a));
      CHECK(near(of_packs.tail.head[0], by_b));
    }
  }
}

template <class F>
void check_three(std::vector<double> const& as, std::vector<double> const& bs, std::vector<double> const& cs) {
  CAPTURE(F::name);
  for (double a : as) {
    for (double b : bs) {
      for (double c : cs) {
        double const h = 1e-5;
        auto const slopes = F::derivative(a, b, c, F::value(a, b, c));
        CHECK(near(slopes.head, (F::value(a + h, b, c) - F::value(a - h, b, c)) / (2 * h)));
        CHECK(near(slopes.tail.head, (F::value(a, b + h, c) - F::value(a, b - h, c)) / (2 * h)));
        CHECK(near(slopes.tail.tail.head, (F::value(a, b, c + h) - F::value(a, b, c - h)) / (2 * h)));
      }
    }
  }
}

std::vector<double> const anywhere{-3.3, -1.2, -0.4, 0.3, 0.9, 1.7, 4.1}, positive{0.2, 0.7, 1, 1.8, 5.3, 20.5}, inside{-0.9, -0.35, 0.1, 0.6};

}  // namespace

TEST_CASE("derivatives of functions of one operand agree with finite differences") {
  check<functions::negative>(anywhere);
  check<functions::abs>(anywhere);
  check<functions::sign>(anywhere);
  check<functions::square>(anywhere);
  check<functions::reciprocal>(anywhere);
  check<functions::exp>(anywhere);
  check<functions::exp2>(anywhere);
  check<functions::expm1>(anywhere);
  check<functions::log>(positive);
  check<functions::log2>(positive);
  check<functions::log10>(positive);
  check<functions::log1p>(positive);
  check<functions::sqrt>(positive);
  check<functions::rsqrt>(positive);
  check<functions::sin>(anywhere);
  check<functions::cos>(anywhere);
  check<functions::tan>(inside);
  check<functions::asin>(inside);
  check<functions::acos>(inside);
  check<functions::atan>(anywhere);
  check<functions::sinh>(anywhere);
  check<functions::cosh>(anywhere);
  check<functions::tanh>(anywhere);
  check<functions::asinh>(anywhere);
  check<functions::acosh>({1.1, 2.5, 30});
  check<functions::atanh>(inside);
  check<functions::erf>(anywhere);
  check<functions::erfc>(anywhere);
  check<functions::lgamma>({-3.3, -1.2, -0.4, 0.3, 0.9, 1.7, 4.1, 25});
  check<functions::sigmoid>(anywhere);
  check<functions::relu>(anywhere);
  check<functions::silu>(anywhere);
  check<functions::softplus>(anywhere);
  check<functions::gelu>(anywhere);
  check<functions::gelu_tanh>(anywhere);
  check<functions::floor>(anywhere);
  check<functions::ceil>(anywhere);
  check<functions::round>(anywhere);
  check<functions::trunc>(anywhere);
}

TEST_CASE("derivatives of functions of two operands agree with finite differences") {
  check_two<functions::add>(anywhere, anywhere);
  check_two<functions::subtract>(anywhere, anywhere);
  check_two<functions::multiply>(anywhere, anywhere);
  check_two<functions::divide>(anywhere, anywhere);
  check_two<functions::remainder>({-3.35, 1.25, 7.4}, {-1.15, 0.85, 2.6});
  check_two<functions::fmod>({-3.35, 1.25, 7.4}, {-1.15, 0.85, 2.6});
  check_two<functions::floor_divide>({-3.35, 1.25, 7.4}, {-1.15, 0.85, 2.6});
  check_two<functions::minimum>({-1, 0.5, 2}, {-3, 0.7, 4});
  check_two<functions::maximum>({-1, 0.5, 2}, {-3, 0.7, 4});
  check_two<functions::pow>(positive, {-2, -0.5, 0, 1.5, 3});
  check_two<functions::atan2>(anywhere, anywhere);
  check_two<functions::hypot>(anywhere, anywhere);
  check_two<functions::leaky_relu>(anywhere, {0.01, 0.3});
  check_two<functions::elu>(anywhere, {1, 0.3});
}

TEST_CASE("derivatives of functions of three operands agree with finite differences") {
  check_three<functions::lerp>(anywhere, anywhere, inside);
  check_three<functions::clamp>({-3, 0.3, 5}, {-1, 0.1}, {0.7, 2});
  auto const chosen = functions::where::derivative(true, 2., 3., 2.), other = functions::where::derivative(false, 2., 3., 3.);
  CHECK(chosen.tail.head == 1.);
  CHECK(chosen.tail.tail.head == 0.);
  CHECK(other.tail.head == 0.);
  CHECK(other.tail.tail.head == 1.);
}

TEST_CASE("at kinks, derivatives follow PyTorch") {
  CHECK(functions::relu::derivative(0., 0.) == 0.);
  CHECK(functions::abs::derivative(0., 0.) == 0.);
  auto const tie = functions::maximum::derivative(2., 2., 2.);
  CHECK(tie.head == 0.5);
  CHECK(tie.tail.head == 0.5);
  CHECK(functions::clamp::derivative(1., 1., 2., 1.).head == 1.);
  CHECK(functions::clamp::derivative(2., 1., 2., 2.).head == 1.);
  CHECK(functions::pow::derivative(0., 2., 0.).head == 0.);
  CHECK(functions::pow::derivative(0., 0., 1.).head == 0.);
  CHECK(functions::pow::derivative(0., 2., 0.).tail.head == 0.);
  CHECK(functions::pow::derivative(-2., 3., -8.).head == 12.);
}

TEST_CASE("at and beside its poles, digamma follows PyTorch") {
  double const inf = std::numeric_limits<double>::infinity();
  CHECK(math::digamma(0.) == -inf);
  CHECK(math::digamma(-0.) == inf);
  CHECK(math::digamma(0.f) == -std::numeric_limits<float>::infinity());
  CHECK(std::isnan(math::digamma(-1.)));
  for (double x : {1e-6, 1e-9, 1e-20, 1e-300}) {  // -1/x - 0.5772 + ...
    CAPTURE(x);
    CHECK(math::digamma(x) == doctest::Approx(-1 / x - 0.57721566490153286 + 1.6449340668482264 * x).epsilon(1e-14));
    CHECK(math::digamma(-x) == doctest::Approx(1 / x - 0.57721566490153286 - 1.6449340668482264 * x).epsilon(1e-14));
  }
}
