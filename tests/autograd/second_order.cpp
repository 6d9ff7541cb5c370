/// Gradients of gradients: Hessian-vector products against finite differences of gradients, and against closed forms.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <autograd/inputs.hpp>
#include <situ/autograd/arrange.hpp>
#include <situ/autograd/backward.hpp>
#include <situ/autograd/index.hpp>
#include <situ/autograd/matmul.hpp>
#include <situ/autograd/reduce.hpp>
#include <situ/autograd/rows.hpp>
#include <situ/autograd/scan.hpp>
#include <situ/ops/compare.hpp>
#include <situ/ops/random.hpp>
#include <support/compare.hpp>
#include <support/devices.hpp>

using namespace situ;
using situ_test::numbers;

namespace {

/// Whether H v, for the Hessian H of the number f(x), is the difference of gradients at x + eps v and x - eps v.
template <class F>
bool hessian_is_right(F const& f, Tensor<double> const& at, double tolerance = 1e-5) {
  Tensor<double> const v = numbers(at.shape(), 11);
  Variable x{at};
  Variable<double> const g = grad(f(x), x, create_graph);
  Tensor<double> const product = grad(sum(g * v), x);
  double const eps = 1e-6;
  Variable above{Tensor<double>(at + eps * v)}, below{Tensor<double>(at - eps * v)};
  Tensor<double> const numeric((grad(f(above), above) - grad(f(below), below)) / (2 * eps));
  bool const same_gradient = max(abs(g.value() - grad(f(x), x))).item() < 1e-10;
  bool const right = max(abs(product - numeric)).item() <= tolerance * (1 + max(abs(numeric)).item());
  if (!right) MESSAGE(product << " instead of " << numeric);
  return right && same_gradient;
}

}  // namespace

TEST_CASE("the Hessian of sum(x^3) is diagonal, and so are the next derivatives") {
  Variable x{Tensor<double>{1, 2, 3}};
  Variable<double> const first = grad(sum(x * x * x), x, create_graph);
  CHECK(first.to_vector() == std::vector<double>{3, 12, 27});
  CHECK(grad(sum(first * Tensor<double>{1, 1, 2}), x, retain_graph).to_vector() == std::vector<double>{6, 12, 36});
  Variable<double> const second = grad(sum(first), x, create_graph);
  Variable<double> const third = grad(sum(second), x, create_graph);
  CHECK(third.to_vector() == std::vector<double>{6, 6, 6});
  CHECK(x.has_grad() == false);
}

TEST_CASE("a gradient that was recorded has gradients by everything that it was made of") {
  // g = d/dx sum(w x^2) = 2 w x: its gradient by w, to which no gradient was asked for before, is 2 x
  Variable x{Tensor<double>{1, 2}}, w{Tensor<double>{3, 4}};
  Variable<double> const g = grad(sum(w * square(x)), x, create_graph);
  sum(g * Tensor<double>{1, 10}).backward();
  CHECK(w.grad().to_vector() == std::vector<double>{2, 40});
  CHECK(x.grad().to_vector() == std::vector<double>{6, 80});
}

TEST_CASE("the gradient penalty of a physical loss: u'' by automatic differentiation, then its gradient by parameters") {
  // u(t) = a sin(w t): u'' = -a w^2 sin(w t); L = sum(u''^2)
  Tensor<double> const t{0.1, 0.4, 0.9};
  Variable time{t}, a{full<double>({}, 1.5)}, w{full<double>({}, 2.0)};
  Variable<double> const velocity = grad(sum(a * sin(w * time)), time, create_graph);
  Variable<double> const acceleration = grad(sum(velocity), time, create_graph);
  sum(square(acceleration)).backward();
  double by_a = 0, by_w = 0;
  for (double at : {0.1, 0.4, 0.9}) {
    double const s = std::sin(2 * at), u = -1.5 * 4 * s;
    by_a += 2 * u * (-4 * s);
    by_w += 2 * u * (-1.5 * (4 * s + 4 * at * std::cos(2 * at)));
  }
  CHECK(a.grad().item() == doctest::Approx(by_a));
  CHECK(w.grad().item() == doctest::Approx(by_w));
}

TEST_CASE("Hessian-vector products of formulas agree with finite differences") {
  auto const x = numbers({3, 4});
  auto const c = numbers({4}, 3);
  CHECK(hessian_is_right([&](auto const& v) { return sum(tanh(v * c + 1) * v); }, x));
  CHECK(hessian_is_right([&](auto const& v) { return sum(exp(v) / (1 + v * v) - sqrt(v * v + 1)); }, x));
  CHECK(hessian_is_right([&](auto const& v) { return sum(gelu(v) * sigmoid(v) + silu(v)); }, x));
  CHECK(hessian_is_right([&](auto const& v) { return sum(pow(v * v + 1, 1.5) + log(v * v + 2) * sin(v)); }, x));
  CHECK(hessian_is_right([&](auto const& v) { return sum(where(v > 0, v * v * v, exp(v)) + clamp(v * v, 0.1, 1.0) * v + minimum(v * v, 1 + v)); }, x));
  CHECK(hessian_is_right([&](auto const& v) { return sum(square(cast<float>(v) * 0 + v * v)); }, x));
}

TEST_CASE("Hessian-vector products of reductions agree with finite differences") {
  auto const x = numbers({3, 4});
  CHECK(hessian_is_right([](auto const& v) { return sum(square(mean(v * v, 0))); }, x));
  CHECK(hessian_is_right([](auto const& v) { return sum(logsumexp(v, 1) * logsumexp(v * 2, {0}, keepdim).reshape({4}).select(0, 1)); }, x));
  CHECK(hessian_is_right([](auto const& v) { return sum(square(var(v, 1)) + stddev(v * v, 1)); }, x));
  CHECK(hessian_is_right([](auto const& v) { return norm(v) * norm(v, {.p = 3}) + sum(norm(v, 0, {.p = 1}) * norm(v, 0, {.p = 2})); }, x));
  CHECK(hessian_is_right([](auto const& v) { return sum(square(max(v * v, 1)) + prod(v, 1)) * min(v); }, x));
}

TEST_CASE("Hessian-vector products of products, running products and mirrored borders, where elements are 0 and where they are not") {
  for (Tensor<double> const& x : {Tensor<double>{{2, 0, 3, 5}}, Tensor<double>{{2, 0, 0, 5}}, Tensor<double>{{0, 2, 0, 0}}, Tensor<double>{{1, 2, 0, 4}, {0, 3, 0, 1}}}) {
    CHECK(hessian_is_right([](auto const& v) { return prod(v); }, x));
    CHECK(hessian_is_right([](auto const& v) { return sum(square(prod(v * 2 + v * v, 1) + 3)); }, x));
    CHECK(hessian_is_right([](auto const& v) { return sum(square(cumprod(v, 1) + 1) * Tensor<double>{1, 2, 3, 4}); }, x));
    CHECK(hessian_is_right([](auto const& v) { return sum(pow(pad(v, {2, 1}, pad_mode::reflect) - pad(v, {1, 2}, pad_mode::replicate) + pad(v, {3, 0}, pad_mode::circular), 3)); }, x));
  }
  CHECK(hessian_is_right([](auto const& v) { return sum(square(prod(v, {0, 2}))); }, Tensor<double>{{{1, 0}, {3, 4}}, {{0, 2}, {0, 7}}, {{1, 2}, {3, 4}}}));
  CHECK(hessian_is_right([](auto const& v) { return sum(square(norm(v * v, 1, {.p = static_cast<double>(INFINITY)}))); }, numbers({3, 4})));
  // PyTorch's third derivatives, weighted by 1 2 3 4 each time.
  Variable const x{Tensor<double>{2, 0, 3, 5}};
  Tensor<double> const w{1, 2, 3, 4};
  Variable const first = grad(prod(x), x, create_graph), second = grad(sum(first * w), x, create_graph);
  CHECK(second.value().to_vector() == std::vector<double>{30, 69, 20, 12});
  CHECK(max(abs(grad(sum(second * w), x) - Tensor<double>{108, 102, 52, 36})).item() < 1e-10);
}

TEST_CASE("the gradient of an extremum finds it in a formula of 16-bit floats, whose result was rounded, and where it is recorded, computed anew") {
  for (unsigned seed = 1; seed < 9; ++seed) {
    Variable const a{numbers({37}, seed).to<float16>()};
    Tensor<float16> const b = numbers({37}, seed + 20).to<float16>();
    auto const check = [&](auto const& f, auto const& expected) {
      int64_t const at = argmax(expected).item();
      Tensor<float16> const plain = grad(f(), a);
      CHECK(plain.item(at) != 0);
      CHECK(count_nonzero(plain).item() < 4);  // equals share
      Tensor<float16> const recorded = grad(f(), a, create_graph).value();
      CHECK(recorded.item(at) != 0);
      CHECK(count_nonzero(recorded).item() == 1);
    };
    auto const products = cast<float>(a.value()) * cast<float>(b);
    check([&] { return max(a * b); }, products);
    check([&] { return min(a * b); }, -products);
    check([&] { return norm(a * b, {.p = static_cast<double>(INFINITY)}); }, abs(products));
    check([&] { return norm(a * b, {.p = -static_cast<double>(INFINITY)}); }, -abs(products));
  }
}

TEST_CASE("a part of a formula that is multiplied by the number 0 keeps its shape in recorded gradients") {
  Variable const a{Tensor<double>{{1, 2, 3}, {4, 5, 7}}}, b{Tensor<double>{2, 3, 4}};
  double const none = 0;
  auto const same = [](auto const& f, Variable<double> const& by) {
    Tensor<double> const plain = grad(f(), by);
    return max(abs(grad(f(), by, create_graph).value() - plain)).item() < 1e-12;
  };
  CHECK(grad(var(a * none + b), b, create_graph).value().to_vector()[2] == doctest::Approx(0.8));  // as PyTorch
  CHECK(same([&] { return var(a * none + b); }, b));
  CHECK(same([&] { return stddev(0 * a + b, {0, 1}); }, b));
  CHECK(same([&] { return sum(var(a * 0, 1)); }, a));
  CHECK(same([&] { return sum(var(exp(a * 0) + b, 0)); }, a));
  CHECK(same([&] { return sum(var(b * 0 * a + a, 1)); }, a));
  CHECK(same([&] { return sum(square(softmax(a * 0 + b, 0))); }, b));
}

TEST_CASE("Hessian-vector products of rows, scans and products agree with finite differences") {
  auto const x = numbers({3, 4});
  auto const c = numbers({3, 4}, 3), w = numbers({4}, 4);
  CHECK(hessian_is_right([&](auto const& v) { return sum(softmax(v, 1) * c + log_softmax(v * v, 0) * c); }, x));
  CHECK(hessian_is_right([&](auto const& v) { return sum(square(layer_norm(v, {4}, w, w)) * c + rms_norm(v, {4}, w) * c); }, x));
  CHECK(hessian_is_right([&](auto const& v) { return sum(cumsum(v * v, 1) * cumprod(v, 0)); }, x));
  // A perceptron of two layers, by its first weights.
  auto const batch = numbers({5, 3}, 8), second = numbers({4, 2}, 9);
  CHECK(hessian_is_right([&](auto const& v) { return mean(square(matmul(tanh(matmul(batch, v)), second))); }, x));
}

TEST_CASE_TEMPLATE("second derivatives run on other devices and in other types", D, Emulated<0>, Pinned) {
  Variable x{Tensor<float, D>{1, 2}};
  Variable<float, D> const g = grad(sum(x * x * exp(x)), x, create_graph);
  auto const h = grad(sum(g), x).to_vector();  // (2 + 4 x + x^2) exp(x)
  CHECK(h[0] == doctest::Approx(7 * std::exp(1.0)));
  CHECK(h[1] == doctest::Approx(14 * std::exp(2.0)));
  Variable half{Tensor<float16, D>{2, 4}};
  Variable<float16, D> const slope = grad(sum(half * half * half), half, create_graph);
  CHECK(grad(sum(slope), half).template to<float>().to_vector() == std::vector<float>{12, 24});
}

namespace {
struct cube {
  template <class X>
  static X value(X const& x) {
    return x * x * x;
  }
  template <class X, class Y>
  static X derivative(X const& x, Y const&) {
    return 3 * x * x;
  }
};
}  // namespace

TEST_CASE("a branch that was not taken has the derivatives 0 of every order") {
  auto const check = [](char const* what, auto const& f, double other) {
    CAPTURE(what);
    Variable<double> const x(Tensor<double>{4, other});
    Variable<double> const first = grad(sum(f(x)), x, create_graph), second = grad(sum(first), x, create_graph);
    Tensor<double> const third = grad(sum(second), x);
    Variable<double> const alone(Tensor<double>{4});  // the other element has no part in it
    Variable<double> const first_alone = grad(sum(f(alone)), alone, create_graph), second_alone = grad(sum(first_alone), alone, create_graph);
    Tensor<double> const third_alone = grad(sum(second_alone), alone);
    CHECK(first.to_vector() == std::vector<double>{first_alone.item(), 0});
    CHECK(second.to_vector() == std::vector<double>{second_alone.item(), 0});
    CHECK(third.to_vector() == std::vector<double>{third_alone.item(), 0});
    CHECK(third_alone.item() != 0);
  };
  check("where sqrt", [](auto const& x) { return where(x > 0, sqrt(x), 0); }, -1);
  check("where log", [](auto const& x) { return where(x > 0, log(x), 0); }, 0);
  check("where 1/x", [](auto const& x) { return where(x > 0, 1 / x, 0); }, 0);
  check("masked_fill", [](auto const& x) { return masked_fill(log(x), x.value() <= 0, 0); }, 0);
  check("relu", [](auto const& x) { return relu(sqrt(x)); }, 0);
  check("maximum", [](auto const& x) { return maximum(sqrt(x), 1); }, 0);
  check("clamp", [](auto const& x) { return clamp(1 / x, -2, 2); }, 0);
  // What stands beside a choice is not chosen from: there 0 times an infinite slope is no number.
  Variable<double> const at_zero(Tensor<double>{0, 4}), factor(Tensor<double>{1, 1});
  Variable<double> const beside = grad(sum(sqrt(at_zero) * relu(factor)), at_zero, create_graph);
  CHECK(std::isnan(grad(sum(beside * Tensor<double>{0, 1}), at_zero).to_vector()[0]));
  Variable<float> const tiny(Tensor<float>{4, -1e-20f});
  CHECK(grad(sum(grad(sum(where(tiny > 0, log(tiny), 0)), tiny, create_graph)), tiny).to_vector() == std::vector<float>{-0.0625f, 0});
  Variable<double> u(Tensor<double>{4, -1});
  Variable<double> const penalty = sum(square(grad(sum(where(u > 0, sqrt(u), 0)), u, create_graph)));
  penalty.backward();
  CHECK(u.grad().to_vector() == std::vector<double>{-0.015625, 0});
}

TEST_CASE("recorded gradients at the ends are those that are not recorded") {
  double const inf = std::numeric_limits<double>::infinity();
  Variable<double> const rows(Tensor<double>{{1, 2}, {-inf, -inf}});
  Tensor<double> const plain = grad(sum(logsumexp(rows, 1)), rows);
  Variable<double> const recorded = grad(sum(logsumexp(rows, 1)), rows, create_graph);
  CHECK(equal(recorded.value(), plain));
  CHECK(plain(1, 0) == 0);
  CHECK(grad(sum(recorded * recorded), rows).to_vector()[3] == 0);
  auto const check = [&](char const* what, auto const& f) {
    CAPTURE(what);
    Variable<double> const x(Tensor<double>{-inf, inf, -1e200, 1e200});
    Variable<float> const y(Tensor<float>{-std::numeric_limits<float>::infinity(), std::numeric_limits<float>::infinity(), -1e30f, 1e30f});
    for (bool records : {false, true}) {
      CAPTURE(records);
      CHECK((records ? grad(sum(f(x)), x, create_graph).to_vector() : grad(sum(f(x)), x).to_vector()) == std::vector<double>{0, 1, 0, 1});
      CHECK((records ? grad(sum(f(y)), y, create_graph).to_vector() : grad(sum(f(y)), y).to_vector()) == std::vector<float>{0, 1, 0, 1});
    }
  };
  check("gelu", [](auto const& x) { return gelu(x); });
  check("gelu_tanh", [](auto const& x) { return gelu_tanh(x); });
  check("silu", [](auto const& x) { return silu(x); });
}

TEST_CASE("what has no second derivative says so") {
  Variable x{Tensor<float>{1, 2}};
  CHECK(situ_test::thrown<GradientError>([&] { (void)grad(sum(map(cube{}, x)), x, create_graph); },
                                         "grad: Sum has no second derivative here; call grad without create_graph") == "");
}

TEST_CASE("derivatives of lgamma of any order are digamma and its derivatives") {
  // mpmath 1.2: polygamma(n, x)
  Tensor<double> const at{0.25, -0.75, -3.5, 1.5, 12.0, 300.0};
  std::vector<std::vector<double>> const expected{
      {-4.2274535333762654, -2.8941202000429321, 1.3888709263595289, 0.036489973978576521, 2.442661679975812, 5.7021148820646373},
      {17.197329154507111, 18.975106932284889, 9.6208792980503482, 0.93480220054467931, 0.086901872871768391, 0.0033388950617146777},
      {-129.32773993753692, -124.58699919679618, -0.061556821321027695, -0.82879664423432, -0.0075472053689989119, -1.1148209876314589e-5},
      {1538.7821440091884, 1557.7451069721514, 194.78785955946251, 1.4090910340024372, 0.001310093231070826, 7.4445267485139528e-8}};
  auto const check = [&]<class T>(Variable<T> const& x, double tolerance) {
    Variable<T> slope = grad(sum(lgamma(x)), x, create_graph);
    for (auto const& values : expected) {
      auto const found = slope.to_vector();
      for (std::size_t k = 0; k < found.size(); ++k) CHECK(static_cast<double>(found[k]) == doctest::Approx(values[k]).epsilon(tolerance));
      slope = grad(sum(slope), x, create_graph);
    }
  };
  check(Variable<double>(at), 1e-13);
  check(Variable<float>(Tensor<float>(cast<float>(at))), 2e-6);

  double const inf = std::numeric_limits<double>::infinity();
  Variable<double> const ends(Tensor<double>{0.0, -0.0, -1.0, inf, -inf, std::nan("")});
  auto const second = grad(sum(grad(sum(lgamma(ends)), ends, create_graph)), ends, create_graph);
  CHECK(second.to_vector()[0] == inf);
  CHECK(second.to_vector()[1] == inf);
  CHECK(second.to_vector()[2] == inf);
  CHECK(second.to_vector()[3] == 0);
  CHECK(std::isnan(second.to_vector()[4]));
  CHECK(std::isnan(second.to_vector()[5]));
  auto const third = grad(sum(second), ends).to_vector();
  CHECK(third[0] == -inf);
  CHECK(third[1] == inf);
  CHECK(std::isnan(third[2]));
  CHECK(third[3] == 0);
}

TEST_CASE("the derivative of a gradient by what it began with is the derivative, also where that is 0 and a function chooses") {
  Tensor<double> const points{0.5, -1.0, 2.0};
  auto const jacobian = [&](auto const& f) {
    Variable<double> const x(points, true), v(zeros<double>({3}), true);
    return grad(sum(grad(sum(f(x) * v), x, create_graph)), v);
  };
  Tensor<double> const of_relu = jacobian([](auto const& x) { return relu(exp(x)); });
  Tensor<double> const of_where = jacobian([](auto const& x) { return where(x > 0., log(x), sin(x)); });
  Tensor<double> const of_clamp = jacobian([](auto const& x) { return clamp(x * x, 0.5, 3.0); });
  double const at[] = {0.5, -1.0, 2.0}, clamped[] = {0.0, -2.0, 0.0};
  for (int k = 0; k < 3; ++k) {
    CHECK(of_relu(k) == doctest::Approx(std::exp(at[k])));
    CHECK(of_where(k) == doctest::Approx(at[k] > 0 ? 1 / at[k] : std::cos(at[k])));
    CHECK(of_clamp(k) == doctest::Approx(clamped[k]));
  }
}

TEST_CASE("where a branch was not taken, an infinite derivative of the gradient is cut off as the gradient itself") {
  // torch 1.13: gx by x with create_graph, then sum(sqrt(gx)) by w
  Variable<double> const x{Tensor<double>{-1, 4}}, w{Tensor<double>{2, 3}};
  auto const check = [&](auto const& f) {
    Variable<double> const gx = grad(sum(f(x) * w), x, create_graph);
    std::vector<double> const found = grad(sum(sqrt(gx)), w).to_vector();
    CHECK(found[0] == 0);
    CHECK(found[1] == doctest::Approx(0.28867513459481287).epsilon(1e-14));
  };
  check([](auto const& v) { return relu(v); });
  check([](auto const& v) { return clamp(v, 0, 9); });
  check([](auto const& v) { return where(v > 0, v, 0); });
  check([](auto const& v) { return leaky_relu(v, 0.0); });
}

TEST_CASE("a gradient to begin with goes with retain_graph and with create_graph") {
  Variable const x{Tensor<double>{1, 2, 3}}, w{Tensor<double>{2, 3, 4}};
  Tensor<double> const seed{1, 10, 100};
  Variable const y = x * x * w;
  CHECK(grad(y, x, seed, retain_graph).to_vector() == std::vector<double>{4, 120, 2400});
  CHECK(grad(y, {x, w}, seed, retain_graph)[1].to_vector() == std::vector<double>{1, 40, 900});
  Variable const slope = grad(y, x, seed, create_graph);
  CHECK(grad(slope, {x, w}, seed * 0 + 1)[0].to_vector() == std::vector<double>{4, 60, 800});
  auto const slopes = grad(y, {x, w}, seed, create_graph);
  CHECK(grad(sum(slopes[1]), x).to_vector() == std::vector<double>{2, 40, 600});
}
