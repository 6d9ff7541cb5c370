#include <doctest/doctest.h>

#include <nn/losses.hpp>

using namespace situ;
using namespace situ_test;

namespace {

template <class T, class D>
void check_pairs() {
  for (expected::PairCase const& c : expected::pair_cases) {
    CAPTURE(c.loss); CAPTURE(c.reduction); CAPTURE(c.parameter);
    Variable<T, D> const x{tensor_of<T, D>(expected::pair_x, {2, 4})}, y{tensor_of<T, D>(expected::pair_y, {2, 4})};
    reduction const how = named(c.reduction);
    std::string const name = c.loss;
    auto const loss = [&] {
      if (name == "mse") return mse_loss(x, y, {.reduction = how});
      if (name == "l1") return l1_loss(x, y, {.reduction = how});
      if (name == "smooth_l1") return smooth_l1_loss(x, y, {.reduction = how, .beta = c.parameter});
      if (name == "bce") return binary_cross_entropy_with_logits(x, y, {.reduction = how});
      if (name == "bce_weights") return binary_cross_entropy_with_logits(x, y, {.weight = tensor_of<T, D>(expected::element_weight, {4}), .reduction = how, .pos_weight = tensor_of<T, D>(expected::pos_weight, {4})});
      return kl_div(x, y, {.reduction = how, .log_target = name == "kl_div_log"});
    }();
    go_back(loss);
    CHECK(apart(loss.value(), c.value, tolerance_of<T>) == "");
    CHECK(apart(x.grad(), c.gradient, tolerance_of<T>) == "");
    CHECK(apart(y.grad(), c.target_gradient, tolerance_of<T>) == "");
  }
}

template <class X, class Y>
concept takes_pair = requires(X const& x, Y const& y) { mse_loss(x, y), kl_div(x, y), binary_cross_entropy_with_logits(x, y); };

}  // namespace

TEST_CASE("losses of pairs and both gradients are PyTorch's") {
  with_every_instruction_set<Cpu>([] { check_pairs<float, Cpu>(); });
}

TEST_CASE("losses of pairs of other types and on other devices") {
  using D = Emulated<0>;
  Variable<double> const x{tensor_of<double, Cpu>(expected::pair_x, {8})};
  mse_loss(x, tensor_of<float, Cpu>(expected::pair_y, {8})).backward();
  CHECK(apart(x.grad(), expected::pair_cases[0].gradient, 1e-13) == "");
  Variable<float16, D> const h{tensor_of<float16, D>(expected::pair_x, {8})};
  auto const loss = mse_loss(h, tensor_of<float16, D>(expected::pair_y, {8}));
  loss.backward();
  CHECK(apart(loss.value(), expected::pair_cases[0].value, 1e-3) == "");
  CHECK(apart(h.grad(), expected::pair_cases[0].gradient, 1e-3) == "");
}

TEST_CASE("a loss of many pairs is summed accurately, and alike by any number of threads") {
  std::int64_t const n = 1000003;
  auto x = empty<float>({n}), y = empty<float>({n});
  double total = 0;
  for (std::int64_t k = 0; k < n; ++k) {
    x.data()[k] = static_cast<float>(k * 7919 % 10007) / 100, y.data()[k] = static_cast<float>(k % 97);
    double const d = static_cast<double>(x.data()[k]) - static_cast<double>(y.data()[k]);
    total += d * d;
  }
  int const before = num_threads();
  std::vector<float> results[2];
  for (int k : {0, 1}) {
    set_num_threads(k == 0 ? 1 : 3);
    Variable<float> const v{x};
    auto const loss = mse_loss(v, y);
    loss.backward();
    results[k] = v.grad().to_vector();
    results[k].push_back(loss.value().item());
  }
  set_num_threads(before);
  CHECK(results[0] == results[1]);
  CHECK(std::abs(static_cast<double>(results[0].back()) - total / static_cast<double>(n)) <= 1e-7 * total / static_cast<double>(n));
}

TEST_CASE("a formula is a part of the pass over a loss") {
  Tensor<float> const a{{1, 2, 3}, {4, 5, 7}}, b{{2, 2, 2}, {0, 1, 9}};
  CHECK(mse_loss(a, b, {.reduction = reduction::batchmean}).item() == doctest::Approx(19));
  CHECK(mse_loss(a + 1, b).item() == doctest::Approx(mse_loss(eval(a + 1), b).item()));
  Variable<float> const v{a};
  auto const loss = nn::mse_loss(v * 2, b);
  loss.backward();
  CHECK(loss.value().item() == doctest::Approx(nn::mse_loss(eval(a * 2), b).item()));
  CHECK(apart(v.grad(), {0, 4. / 3, 8. / 3, 16. / 3, 6, 10. / 3}, 1e-6) == "");
}

TEST_CASE("a backward notices weights that were written since") {
  Variable<float> const x{ones({2, 3})};
  Tensor<float> weight = ones({2, 3});
  auto const loss = binary_cross_entropy_with_logits(x, ones({2, 3}), {.weight = weight});
  weight.assign(2.f);
  CHECK_THROWS_AS(loss.backward(), GradientError);
}

TEST_CASE("pairs that do not fit are refused in words") {
  Tensor<float> const x = ones({2, 3});
  CHECK(thrown<ShapeError>([&] { (void)mse_loss(x, ones({2, 1})); }, "mse_loss: shapes [2, 3] and [2, 1] differ; a loss broadcasts nothing: expand() or reshape() one of them") == "");
  CHECK(thrown<ShapeError>([&] { (void)smooth_l1(x, x, {.beta = -1}); }, "smooth_l1_loss: beta is -1; it must be 0 or more") == "");
  CHECK(thrown<ShapeError>([&] { (void)binary_cross_entropy_with_logits(x, x, {.weight = ones({5})}); }, "binary_cross_entropy_with_logits: a weight of shape [5] does not broadcast to inputs of shape [2, 3]") == "");
  CHECK(thrown<ShapeError>([&] { (void)binary_cross_entropy_with_logits(x, x, {.pos_weight = ones({1, 2, 3})}); }, "binary_cross_entropy_with_logits: a pos_weight of shape [1, 2, 3] does not broadcast to inputs of shape [2, 3]") == "");
  static_assert(takes_pair<Variable<float>, Tensor<float>> && !takes_pair<Variable<float>, Tensor<float, Emulated<0>>>);
  float const none = mse_loss(zeros({0, 3}), zeros({0, 3})).item();
  CHECK(none != none);
}
