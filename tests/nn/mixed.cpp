// Networks in mixed precision: what they compute in, whose gradients they give, whose statistics they move.
#include <doctest/doctest.h>

#include <situ/nn/batch_norm.hpp>
#include <situ/nn/linear.hpp>
#include <situ/nn/mixed.hpp>
#include <situ/ops/compare.hpp>
#include <situ/ops/random.hpp>

using namespace situ;

namespace {
template <class T, class D>
struct Net {
  nn::Linear<T, D> fc1{4, 8}, fc2{8, 2};
  nn::BatchNorm1d<T, D> norm{8};
  Tensor<T, D> scale = full<T>({1}, 2).to(D{});
  auto forward(auto const& x) const { return fc2(norm(fc1(x)) * scale); }
  SITU_MODULE(fc1, fc2, norm, scale)
};
}  // namespace

TEST_CASE("mixed<bfloat16> rounds the parameters, and gives the gradients of the network's own") {
  manual_seed(3);
  Net<float, Cpu> net;
  auto const low = mixed<bfloat16>(net);
  static_assert(std::is_same_v<decltype(low), Net<bfloat16, Cpu> const>);
  CHECK(equal(low.fc1.weight.value(), net.fc1.weight.value().to<bfloat16>()));
  CHECK(equal(low.scale, net.scale.to<bfloat16>()));
  CHECK_FALSE(low.fc1.weight.is_leaf());

  auto const x = randn({16, 4});
  Variable y = low(x);  // the first layer converts
  static_assert(std::is_same_v<decltype(y), Variable<bfloat16, Cpu>>);
  y.backward(ones<bfloat16>({16, 2}));
  // The bias of the last layer: one from each row. Those of all parameters are float, and there.
  CHECK(equal(net.fc2.bias->grad(), full({2}, 16.f)));
  for (auto const& each : named_parameters(net)) {
    CAPTURE(each.name);
    CHECK(each.value.has_grad());
  }

  // The same in float, to bfloat16's precision.
  Net<float, Cpu> reference = clone(net);
  reference.norm = nn::BatchNorm1d<float, Cpu>{8};
  Variable z = reference(x);
  CHECK(allclose(y.value().to<float>(), z.value(), {.rtol = 0.05, .atol = 0.08}));
}

TEST_CASE("running statistics stay float, and are the network's own") {
  Net<float, Cpu> net;
  auto const low = mixed<bfloat16>(net);
  static_assert(std::is_same_v<decltype(low.norm.running_mean)::value_type, Tensor<float, Cpu>>);
  Variable y = low(rand({32, 4}));
  CHECK(net.norm.num_batches_tracked->value() == 1);
  CHECK(low.norm.running_var->data() == net.norm.running_var->data());
  CHECK(net.norm.running_var->item(0) != 1);
  auto const whole = to<bfloat16>(net);
  static_assert(std::is_same_v<decltype(whole.norm.running_mean)::value_type, Tensor<float, Cpu>>);
  CHECK(whole.fc1.weight.is_leaf());
  CHECK(parameters(whole).size() == 6);
}

TEST_CASE("in its own type a network is itself") {
  Net<float, Cpu> net;
  CHECK(mixed<float>(net).fc1.weight.state() == net.fc1.weight.state());
}
