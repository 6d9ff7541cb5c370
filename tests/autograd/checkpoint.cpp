/// Checkpoints: the same gradients from less memory.
#include <doctest/doctest.h>

#include <situ/autograd/checkpoint.hpp>
#include <situ/autograd/gradcheck.hpp>
#include <situ/device/query.hpp>
#include <situ/device/emulated/device.hpp>
#include <situ/ops/random_ops.hpp>
#include <support/compare.hpp>

using namespace situ;

namespace {

using V = Variable<double>;

V numbers(int64_t n) { return V(Tensor<double>(sin(arange<double>(n) + 1))); }

/// Multiplies by random numbers of the default generator.
struct Noisy {
  template <class E>
  auto operator()(E const& x) const {
    return x * dropout(ones<double>(x.shape()), 0.5) + tanh(x);
  }
};

}  // namespace

TEST_CASE("a section is run again for its gradient") {
  int runs = 0;
  auto const f = [&](V const& x, V const& w) {
    ++runs;
    V const h = tanh(x * w);
    return h * h + x;
  };
  V const x = numbers(5), w = numbers(5), x2(x.value()), w2(w.value());
  V const y = checkpoint(f, x, w);
  CHECK(runs == 1);
  CHECK(std::string(y.grad_fn()) == "Checkpoint");
  sum(y * y).backward();
  CHECK(runs == 2);
  V const z = f(x2, w2);
  CHECK(y.to_vector() == z.to_vector());
  sum(z * z).backward();
  CHECK(x.grad().to_vector() == x2.grad().to_vector());
  CHECK(w.grad().to_vector() == w2.grad().to_vector());
  CHECK(gradcheck([](V const& a, V const& b) { return checkpoint([](V const& c, V const& d) { return tanh(c * d) + c; }, a * 2, b); }, {x, w}));
  CHECK(gradcheck([](V const& a, V const& b) { return checkpoint([](V const& c, V const& d) { return std::tuple(c * d, sin(c), V(cos(d))); }, a, b); }, {x, w}));
}

TEST_CASE("random numbers are the same in the second run, and go on as if there had been one") {
  V const x = numbers(1000), x2(x.value());
  manual_seed(7);
  V const y = checkpoint(Noisy{}, x);
  auto const next = rand<double>({4}).to_vector();
  sum(y).backward();
  auto const later = rand<double>({4}).to_vector();
  manual_seed(7);
  V const z = Noisy{}(x2);
  CHECK(y.to_vector() == z.to_vector());
  CHECK(next == rand<double>({4}).to_vector());
  CHECK(later == rand<double>({4}).to_vector());
  sum(z).backward();
  CHECK(x.grad().to_vector() == x2.grad().to_vector());
}

TEST_CASE("what a section refers to gets its gradient too, and grad() touches nobody") {
  V const x = numbers(4), w = numbers(4), data(x.value(), false);
  auto const f = [&](V const& a) { return a * w; };
  sum(checkpoint(f, data)).backward();
  CHECK(w.grad().to_vector() == x.to_vector());
  CHECK(!data.has_grad());
  auto const g = grad(sum(checkpoint(f, x)), x);
  CHECK(g.to_vector() == w.to_vector());
  CHECK(!x.has_grad());
  CHECK(w.grad().to_vector() == x.to_vector());
}

TEST_CASE("grad by what a section refers to is the whole gradient, whichever use of it comes first") {
  V const x = numbers(4), w = numbers(4), data(x.value(), false);
  Tensor<double> const values = w.value();
  auto const same = [](Tensor<double> const& a, Tensor<double> const& b) { return max(abs(a - b)).item() < 1e-14; };
  auto const f = [&](V const& a) { return a * w; };
  CHECK(same(grad(sum(checkpoint(f, data)), w), x.value()));
  CHECK(same(grad(sum(checkpoint(f, data) + w), w), Tensor<double>(x.value() + 1)));
  CHECK(same(grad(sum(checkpoint(f, w * 2)), w), Tensor<double>(4 * values)));  // 2 w^2
  auto const [gx, gw] = grad(sum(checkpoint(f, w * x) * w + x), {x, w});         // x w^3 + x
  CHECK(same(gx, Tensor<double>(values * values * values + 1)));
  CHECK(same(gw, Tensor<double>(3 * x.value() * values * values)));
  CHECK(!w.has_grad());
  V const deep = exp(exp(w) * 0.1);  // which the section gives back before the rest of the formula comes to it
  auto const g = [&](V const& a) { return a * deep; };
  CHECK(situ_test::thrown<GradientError>([&] { (void)grad(sum(checkpoint(g, x) + deep), w); },
                                         "backward: what Exp saved for its gradient was given back by the backward before; call that one as backward(retain_graph)") == "");
  V const again = exp(exp(w) * 0.1);
  auto const k = [&](V const& a) { return a * again; };
  Tensor<double> const inner = exp(values);
  CHECK(same(grad(sum(checkpoint(k, x) + again), w, retain_graph), Tensor<double>((x.value() + 1) * exp(inner * 0.1) * 0.1 * inner)));
}

TEST_CASE("no gradient is recorded inside of a no_grad, and second derivatives are refused") {
  V const x = numbers(4);
  auto const f = [](V const& a) { return V(a * a); };
  {
    no_grad const guard;
    CHECK(!checkpoint(f, x).requires_grad());
  }
  CHECK(situ_test::thrown<GradientError>([&] { grad(sum(checkpoint(f, x)), x, create_graph); },
                                         "grad: a checkpoint has no second derivative; call grad without create_graph") == "");
  V const y = checkpoint(f, x);
  Tensor<double> t = x.value();
  t += 1;
  CHECK_THROWS_AS(sum(y).backward(), GradientError);
}

TEST_CASE("memory between the inputs and the outputs is not kept") {
  using D = Emulated<0>;
  Variable<float, D> const x(ones({1 << 18}, D{}));
  auto const f = [](auto a) {
    for (int k = 0; k < 8; ++k) a = std::remove_cvref_t<decltype(a)>(tanh(a * a));
    return a;
  };
  auto const held_by = [&](auto const& make) {
    synchronize(D{});
    auto const before = gpu::memory_allocated(D{});
    auto const y = make();
    synchronize(D{});
    auto const held = gpu::memory_allocated(D{}) - before;
    sum(y).backward();
    return static_cast<int64_t>(held);
  };
  CHECK(held_by([&] { return f(x); }) >= 8 * 4 * (1 << 18));
  CHECK(held_by([&] { return checkpoint(f, x); }) < 2 * 4 * (1 << 18));
}
