#include <situ/autograd/index.hpp>
#include <situ/autograd/random.hpp>
#include <situ/autograd/reduce.hpp>
#include <situ/autograd/values.hpp>

#include <doctest/doctest.h>

#include <support/devices.hpp>

using namespace situ;

namespace {

template <class D>
void values_only(D) {
  using V = std::vector<float>;
  using I = std::vector<int64_t>;
  Tensor<float, D> const t(std::vector<float>{1, 2, 0, 2}, {4});
  Variable const v{t.clone()};
  CHECK(equal(v, t));
  CHECK(equal(t, v));
  CHECK(!equal(v * 2, v));
  CHECK(allclose(v, v + 1e-9));
  CHECK(!allclose(t, v * 1.01));
  CHECK(allclose(t, v * 1.01, {.rtol = 0.1}));
  CHECK(eval(isclose(v, t)).to_vector() == std::vector<bool>{true, true, true, true});
  CHECK(nonzero(v).to_vector() == I{0, 1, 3});
  CHECK(unique(v).to_vector() == V{0, 1, 2});
  CHECK(unique_counts(v * 1).counts.to_vector() == I{1, 1, 2});
  CHECK(searchsorted(t(range(0, 2)), v).to_vector() == I{0, 1, 0, 1});
  CHECK(zeros_like(v).to_vector() == V{0, 0, 0, 0});
  CHECK(full_like(v * 2, 3).to_vector() == V{3, 3, 3, 3});
  static_assert(std::is_same_v<decltype(ones_like(v)), Tensor<float, D>>);
  Generator one{7}, same{7};
  CHECK(equal(randn_like(v * 2, one), randn({4}, same, D{})));
  CHECK(equal(rand_like(v, one), rand({4}, same, D{})));
  static_assert(std::is_same_v<decltype(rand_like(v)), Tensor<float, D>>);
  CHECK(explain(v * 2) == explain(t * 2));
  CHECK(allclose(v * 0 + 2, 2));
  CHECK(allclose(2, v * 0 + 1, {.atol = 1}));
  CHECK_FALSE(allclose(v, 1e6));
  static_assert(std::is_same_v<decltype(eval(isclose(v, 1.5))), Tensor<bool, D>>);
}

template <class D>
void formulas(D d) {
  using V = std::vector<float>;
  Variable v{arange(6, d).view({2, 3})};
  auto const w = eval(v * 2);
  static_assert(std::is_same_v<decltype(w), Variable<float, D> const>);
  CHECK(eval(v).value().data() == v.value().data());
  sum(w * w).backward();
  CHECK(v.grad().to_vector() == V{0, 8, 16, 24, 32, 40});
  v.zero_grad();
  auto const row = (v * v)[1];
  static_assert(std::is_same_v<decltype(row), Variable<float, D> const>);
  sum(row + relu(v * 2).reshape({-1})(range(0, 3))).backward();
  CHECK(v.grad().to_vector() == V{0, 2, 2, 6, 8, 10});
}

template <class A, class B>
concept comparable = requires(A a, B b) { equal(a, b); } || requires(A a, B b) { allclose(a, b); } || requires(A a, B b) { isclose(a, b); };

}  // namespace

TEST_CASE("functions without gradients read the values of Variables") {
  values_only(Cpu{});
  values_only(Emulated<0>{});
  static_assert(comparable<Variable<float, Cpu>, Tensor<float>>);
  static_assert(!comparable<Variable<float, Cpu>, Tensor<float, Emulated<0>>>);
  static_assert(!comparable<Variable<float, Emulated<0>>, Variable<float, Emulated<1>>>);
}

TEST_CASE("a formula that records is evaluated to a Variable, and so are views of it") {
  formulas(Cpu{});
  formulas(Emulated<0>{});
}

#if !defined(__clang__) || __clang_major__ > 14  // which takes constructors whose constraints are not satisfied for guides
TEST_CASE("a Variable of numbers is one of floats, as a Tensor is") {
  Variable x{3.0};
  Variable const y{1, 2};
  static_assert(std::is_same_v<decltype(x), Variable<float>> && std::is_same_v<decltype(y), Variable<float> const>);
  CHECK(x.shape() == Shape(1));
  CHECK(x.requires_grad());
  CHECK(y.to_vector() == std::vector<float>{1, 2});
}
#endif

TEST_CASE_TEMPLATE("a gradient that several share is written by nobody", D, Cpu, Emulated<0>) {
  using V = Variable<float, D>;
  auto const host = [](auto const& x) { return x.to(Cpu{}).clone(); };
  auto const same = [&](Tensor<float, D> const& x, Tensor<float> const& expected) { return max(abs(host(x) - expected)).item() <= 1e-6f; };
  V a(Tensor<float>{1, 2, 3}.to(D{})), b(Tensor<float>{4, 5, 6}.to(D{}));
  Tensor<float, D> seed = Tensor<float>{1, 10, 100}.to(D{});
  Tensor<float> const g{1, 10, 100};
  // x = 2a gets g from x + y, then 3 g, 2 g times itself and 5 g, in kernels of their own.
  auto const graph = [&](V& x, V& y) {
    V first = x + y, second = x * 3, third = x * x, fourth = first + second + third - y * 5;
    V fifth = fourth + x * 5;
    return fifth;
  };
  V x = a * 2, y = b * 7;
  V result = graph(x, y);
  V inner = x;
  inner.retain_grad();
  result.backward(seed);
  CHECK(same(seed, g));
  CHECK(same(a.grad(), 2 * g * (1 + 3 + 2 * Tensor<float>{2, 4, 6} + 5)));
  CHECK(same(b.grad(), 7 * g * (1 - 5)));
  CHECK(same(inner.grad(), g * (1 + 3 + 2 * Tensor<float>{2, 4, 6} + 5)));
  // The sum, which is deeper, shares before the product adds.
  x = a * 2, y = b * 7;
  a.zero_grad(), b.zero_grad();
  V deep = (V(y * 1) * 1) * 1, late = x * 3, early = x - deep;
  V(early + late).backward(seed);
  CHECK(same(seed, g));
  CHECK(same(a.grad(), 8 * g));
  CHECK(same(b.grad(), -7 * g));
  x = a * 2, y = b * 7;
  a.zero_grad(), b.zero_grad();
  V(x - y).backward(seed);
  CHECK(same(a.grad(), 2 * g));
  CHECK(same(b.grad(), -7 * g));
  // What grad() gives is the caller's.
  x = a * 2, y = b * 7;
  result = x + y;
  auto [gx, gy] = grad(result, {x, y}, seed);
  gx += 1;
  CHECK(same(seed, g));
  CHECK(same(gy, g));
  // Hooks see a gradient of their own, and may give another one.
  x = a * 2, y = b * 7;
  a.zero_grad(), b.zero_grad();
  x.register_hook([](auto const& gradient) { return gradient * 10; });
  V(x + y).backward(seed);
  CHECK(same(seed, g));
  CHECK(same(a.grad(), 20 * g));
  CHECK(same(b.grad(), 7 * g));
  // One Variable twice, a strided gradient, and one that is broadcast.
  x = a * 2, y = b * 7;
  a.zero_grad(), b.zero_grad();
  V(x + x + y).backward(seed);
  CHECK(same(a.grad(), 4 * g));
  x = a * 2, y = b * 7;
  a.zero_grad(), b.zero_grad();
  V((x + y).flip(0)).backward(seed);
  CHECK(same(a.grad(), Tensor<float>{200, 20, 2}));
  CHECK(same(b.grad(), Tensor<float>{700, 70, 7}));
  x = a * 2, y = b * 7;
  a.zero_grad(), b.zero_grad();
  mean(x + y.unsqueeze(1)).backward();
  CHECK(same(a.grad(), full({3}, 2.f / 3)));
  CHECK(same(b.grad(), full({3}, 7.f / 3)));
}
