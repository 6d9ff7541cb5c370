/// gradcheck finds wrong gradients, and says where.
#include <doctest/doctest.h>

#include <situ/autograd/gradcheck.hpp>
#include <situ/device/emulated/device.hpp>
#include <support/compare.hpp>

using namespace situ;

namespace {

/// x², with the derivative 2x wrong by a factor where x > 1.
struct wrong_square {
  static double value(double x) { return x * x; }
  static double derivative(double x, double) { return x > 1 ? 3 * x : 2 * x; }
};
/// Says NaN.
struct lost_square {
  static double value(double x) { return x * x; }
  static double derivative(double, double) { return __builtin_nan(""); }
};

Variable<double> three() { return Variable<double>(Tensor<double>{0.5, 1.0, 2.0}); }

}  // namespace

TEST_CASE("a right gradient passes") {
  auto const x = three();
  Variable<double> const w(Tensor<double>{{0.3, -0.2, 0.9}, {1.1, 0.4, -0.7}});
  CHECK(gradcheck([](auto const& v) { return sum(tanh(v) * 2); }, x));
  CHECK(gradcheck([](auto const& v, auto const& m) { return tanh(v * m); }, {x, w}));
  CHECK(gradcheck([](auto const& v, auto const& m) { return std::tuple(exp(v), sum(v * m, 1)); }, {x, w}));
  CHECK(gradcheck([](auto const& v) { return std::vector<Variable<double>>{v * v, sin(v)}; }, x));
  CHECK(gradcheck([](auto const& v, auto const& t, double p) { return v * t * p; }, std::tuple(x, w.value(), 2.0)));
  CHECK(gradcheck([](auto const& v, auto const& m) { return tanh(v * m); }, std::array{x, w}));
  CHECK(gradgradcheck([](auto const& v, auto const& m) { return tanh(v * m); }, std::array{x, w}));
  CHECK(gradcheck([](auto const& v) {  // the penalty of a gradient: differentiated, and by differences, too
    Variable<double> const g = grad(sum(v * v * v), v, create_graph);
    return sum(g * g);
  }, x));
}

TEST_CASE("inputs keep their layout, their elements and their gradients") {
  Variable<double> const w(Tensor<double>{{0.3, -0.2, 0.9}, {1.1, 0.4, -0.7}});
  sum(w * 3).backward();
  Tensor<double> const before = w.value().clone(), gradient = w.grad();
  CHECK(gradcheck([](auto const& v) { return square(v); }, w));
  CHECK((w.value() == before).to_vector() == std::vector<bool>(6, true));
  CHECK(w.grad().body() == gradient.body());
  CHECK(w.grad().item(1, 1) == 3);
  Variable<double> const t(w.value().t()), flipped(w.value().flip(1).slice(1, 0, 3, 2)), repeated(w.value()[0].expand({4, 3}));
  auto const f = [&](auto const& v) {
    if (v.layout().is_broadcast()) return square(v);
    CHECK((v.strides() == t.strides() || v.strides() == flipped.strides() || v.strides() == Shape{3, 1}));
    return square(v);
  };
  CHECK(gradcheck(f, t));
  CHECK(gradcheck(f, flipped));
  CHECK(gradcheck(f, repeated));
}

TEST_CASE("an input that is not used, and an output that is constant, have the gradient 0") {
  auto const x = three(), y = three();
  CHECK(gradcheck([](auto const& a, auto const&) { return square(a); }, {x, y}));
  CHECK(gradcheck([](auto const& a) { return std::tuple(sign(a) + 0.0, Tensor<double>{1., 2.}); }, x));
}

TEST_CASE("a wrong gradient is found, and said where it is") {
  auto const x = three();
  Variable<double> const ones_(Tensor<double>{{1., 1., 1.}, {1., 1., 1.}});
  CHECK(situ_test::thrown<GradientError>([&] { gradcheck([](auto const&, auto const& v) { return map(wrong_square{}, v); }, {ones_, x}, {.eps = 0.25}); },
                                         "gradcheck: the gradient of output 0 at [2] by input 1 at [2] is 6, but finite differences give 4: they are 2 apart, and 0.00401 is allowed") == "");
  CHECK_THROWS_AS(gradcheck([](auto const& v) { return std::tuple(v * 2, sum(map(wrong_square{}, v))); }, x), GradientError);
  CHECK_THROWS_AS(gradcheck([](auto const& v) { return map(lost_square{}, v); }, x), GradientError);
  CHECK(gradcheck([](auto const& v) { return map(wrong_square{}, v); }, x, {.atol = 3}));
}

TEST_CASE("what cannot be checked is refused") {
  auto x = three();
  CHECK(situ_test::thrown<GradientError>(
            [&] {
              gradcheck(
                  [](auto const& v) {
                    Variable<double> y = sum(v * v);
                    if (y.requires_grad()) y.backward(retain_graph);
                    return y;
                  },
                  x);
            },
            "gradcheck: the function wrote to the grad() of an input: it must not call backward() on what is made of them") == "");
  x.requires_grad(false);
  CHECK(situ_test::thrown<GradientError>([&] { gradcheck([](auto const& v) { return v * 2; }, x); },
                                         "gradcheck: no input requires a gradient; make one a Variable of double, or call requires_grad(true)") == "");
}

TEST_CASE("gradients are checked on a device of its own memory") {
  using D = Emulated<0>;
  Variable<double, D> const x(Tensor<double>{{0.3, -0.2, 0.9}, {1.1, 0.4, -0.7}}.to(D{})), y(x.value().t());
  CHECK(gradcheck([](auto const& v) { return mean(tanh(v), 0); }, x));
  CHECK(gradcheck([](auto const& v) { return mean(tanh(v), 0); }, y));
}
