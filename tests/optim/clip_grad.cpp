#include <doctest/doctest.h>

#include <limits>

#include <optim/support.hpp>
#include <support/probe.hpp>

#include <situ/autograd.hpp>
#include <situ/optim/grad_scaler.hpp>
#include <situ/optim/sgd.hpp>
#include <support/compare.hpp>

using namespace situ;
using situ_test::leaf;
using situ_test::numbers_of;
using situ_test::ramp;
using situ_test::set_grad;
using situ_test::set_grads;
using situ_test::thrown;

namespace {

double const infinity = std::numeric_limits<double>::infinity();

template <class T, class D>
struct Two {
  Variable<T, D> a = leaf<T, D>({70, 71}, ramp(4970)), b = leaf<T, D>({3}, ramp(3)), none = leaf<T, D>({4}, ramp(4));
  std::vector<Variable<T, D>> all{a, b, none};
  std::vector<double> of_a, of_b{3, -4, 0.5};
  Two() {
    for (int i = 0; i < 4970; ++i) of_a.push_back(static_cast<double>((i * 37 + 11) % 97) / 64 - 0.75);  // exact in 16 bits
    set_grads(a, of_a);
    set_grads(b, of_b);
  }
  double norm(double p) const {
    double sum = 0, most = 0;
    for (auto const* values : {&of_a, &of_b}) {
      for (double x : *values) sum += std::pow(std::abs(x), p), most = std::fmax(most, std::abs(x));
    }
    return p == infinity ? most : std::pow(sum, 1 / p);
  }
};

}  // namespace

TEST_CASE_TEMPLATE("gradients are clipped by the norm of all of them", X, std::pair<float, Cpu>, std::pair<double, Cpu>, std::pair<float, Emulated<0>>, std::pair<bfloat16, Cpu>) {
  using T = typename X::first_type;
  using D = typename X::second_type;
  double const tolerance = std::is_same_v<T, double> ? 1e-14 : 2e-7, rounding = sizeof(T) == 2 ? 4e-3 : 1e-6;
  situ_test::with_every_instruction_set<D>([&] {
    for (double p : {2., 1., 3.5, infinity}) {
      CAPTURE(p);
      Two<T, D> two;
      auto const norm = optim::clip_grad_norm(two.all, 1e6, p);
      static_assert(std::is_same_v<decltype(norm), Tensor<compute_t<T>, D> const>);
      CHECK(norm.rank() == 0);
      CHECK(static_cast<double>(norm.item()) == doctest::Approx(two.norm(p)).epsilon(tolerance));
      CHECK(numbers_of(two.a.grad()) == two.of_a);  // not too long: not a bit is changed
      CHECK(static_cast<double>(optim::clip_grad_norm(two.all, 0.5, p).item()) == doctest::Approx(two.norm(p)).epsilon(tolerance));
      double const by = 0.5 / (two.norm(p) + 1e-6);
      std::vector<double> const a = numbers_of(two.a.grad());
      double worst = 0;
      for (std::size_t k = 0; k < a.size(); ++k) worst = situ_test::worse(worst, std::abs(a[k] - by * two.of_a[k]));
      CHECK(worst <= rounding * by);
      CHECK(numbers_of(two.b.grad())[1] == doctest::Approx(-4 * by).epsilon(rounding));
    }
  });
}

TEST_CASE("gradients are clipped by value") {
  situ_test::with_every_instruction_set<Cpu>([] {
    Two<float, Cpu> two;
    set_grads(two.b, {3, -4, std::nan("")});
    optim::clip_grad_value(two.all, 0.25);
    std::vector<double> const a = numbers_of(two.a.grad());
    bool same = true;
    for (std::size_t k = 0; k < a.size(); ++k) same = same && a[k] == std::fmin(0.25, std::fmax(-0.25, two.of_a[k]));
    CHECK(same);
    CHECK(numbers_of(two.b.grad())[0] == 0.25);
    CHECK(numbers_of(two.b.grad())[1] == -0.25);
    CHECK(std::isnan(numbers_of(two.b.grad())[2]));
  });
}

TEST_CASE("parameters may be written as a list") {
  auto v = leaf<float>({2}, {1, 1}), w = leaf<float>({1}, {1});
  set_grads(v, {3, 0});
  set_grads(w, {-4});
  CHECK(optim::clip_grad_norm({v, w}, 1e6).item() == 5);
  optim::clip_grad_value({v, w}, 2);
  CHECK(numbers_of(v.grad()) == std::vector<double>{2, 0});
  CHECK(numbers_of(w.grad()) == std::vector<double>{-2});
}

TEST_CASE("norms that are not finite, gradients of any strides, and none at all") {
  situ_test::with_every_instruction_set<Cpu>([] {
    for (double p : {2., 1., infinity}) {
      Two<float, Cpu> two;
      two.of_a[2100] = std::nan("");
      set_grads(two.a, two.of_a);
      CHECK(std::isnan(optim::clip_grad_norm(two.all, 1, p).item()));
      set_grads(two.b, {1, -infinity, 1});
      two.of_a[2100] = 0;
      set_grads(two.a, two.of_a);
      CHECK(thrown<Error>([&] { optim::clip_grad_norm(two.all, 1, p, true); },
                          "clip_grad_norm: the norm of the gradients is infinite, so they cannot be clipped by it; pass error_if_nonfinite = false to go on") == "");
      CHECK(numbers_of(two.a.grad()) == two.of_a);
      CHECK(std::isinf(optim::clip_grad_norm(two.all, 1, p).item()));
      CHECK(numbers_of(two.a.grad())[0] == 0);
    }
  });
  CHECK(thrown<Error>([] { optim::clip_grad_norm(std::vector<Variable<float>>{}, 1, 0); },
                      "clip_grad_norm: norm_type is 0; it must be greater than 0, infinity for the greatest magnitude") == "");
  CHECK(thrown<Error>([] { optim::clip_grad_value(std::vector<Variable<float>>{}, -1); }, "clip_grad_value: clip_value is -1; it must be at least 0") == "");
  auto p = leaf<float>({5, 4}, ramp(20));
  CHECK(optim::clip_grad_norm(std::vector{p}, 1).item() == 0);
  Tensor<float> const gradient = leaf<float>({4, 5}, ramp(20)).value().t();
  set_grad(p, gradient);
  float const norm = optim::clip_grad_norm(std::vector{p}, 1).item();
  CHECK(p.grad().item(1, 0) == doctest::Approx(-0.9 / norm));
  CHECK(gradient.item(1, 0) == p.grad().item(1, 0));
}

TEST_CASE("clipping takes three launches and copies nothing") {
  Two<float, Probe> two;
  Probe::reset();
  optim::clip_grad_norm(two.all, 1);
  CHECK(Probe::launches == 3);
  CHECK(Probe::transfers() == 0);
  CHECK(Probe::synchronizations == 0);
}

TEST_CASE_TEMPLATE("a scaled loss takes the same steps, and none where a gradient is not finite", D, Cpu, Emulated<0>) {
  auto p = leaf<float, D>({20}, ramp(20)), q = leaf<float, D>({20}, ramp(20));
  optim::SGD scaled{{p}, {.lr = 0.1, .momentum = 0.9}}, plain{{q}, {.lr = 0.1, .momentum = 0.9}};
  optim::GradScaler scaler{{.init_scale = 1024, .growth_interval = 3}};
  for (int t = 0; t < 4; ++t) {
    scaled.zero_grad(), plain.zero_grad();
    Variable loss = sum(p * p * p);
    scaler.scale(loss).backward();
    sum(q * q * q).backward();
    if (t % 2 == 1) {
      scaler.unscale(scaled);
      CHECK(numbers_of(p.grad()) == numbers_of(q.grad()));
      CHECK(thrown<Error>([&] { scaler.unscale(scaled); }, "GradScaler: unscale was called twice for this optimizer; call it once between two calls of update()") == "");
    }
    CHECK(scaler.step(scaled));
    CHECK(thrown<Error>([&] { scaler.step(scaled); }, "GradScaler: step was called twice for this optimizer; call update() after each step") == "");
    plain.step();
    scaler.update();
    CHECK(numbers_of(p) == numbers_of(q));
  }
  CHECK(scaler.get_scale() == 2048);
  std::vector<double> gradient = ramp(20);
  for (double bad : {infinity, -infinity, std::nan("")}) {
    gradient[18] = bad;
    set_grads(p, gradient);
    CHECK_FALSE(scaler.step(scaled));
    CHECK(numbers_of(p) == numbers_of(q));
    scaler.update();
  }
  CHECK(scaler.get_scale() == 256);
  CHECK(thrown<Error>([&] { scaler.update(); }, "GradScaler: update was called, but no gradients were looked at since the last one; call step(optimizer) before") == "");
  std::string names;
  for_each_state(scaler, [&](std::string const& name, auto&) { names += name + " "; });
  CHECK(names == "scale growth_tracker ");
  CHECK(thrown<Error>([] { optim::GradScaler s{{.growth_factor = 1}}; }, "GradScaler: growth_factor is 1; it must be greater than 1") == "");
}

TEST_CASE("gradients of float16 are unscaled in the precision of the state") {
  auto p = leaf<float16>({4}, {0, 0, 0, 0});
  optim::SGD sgd{{p}, {.lr = 1}};
  optim::GradScaler scaler{{.init_scale = 65536}};
  set_grads(p, {1, 2, 3, 4});  // of a loss times 65536: 2^-16 alone would have no place in float16 but as a subnormal number
  CHECK(scaler.step(sgd));
  CHECK(numbers_of(p)[0] == -1. / 65536);
  optim::GradScaler off{{.enabled = false}};
  CHECK(off.get_scale() == 1);
  CHECK(off.step(sgd));
  off.update();
}
