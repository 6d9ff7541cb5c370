/// nn::MultiheadAttention and nn::TransformerEncoderLayer: against PyTorch's values and gradients.
#include <doctest/doctest.h>

#include <cmath>

#include <nn/expected/attention.hpp>
#include <nn/patterns.hpp>
#include <situ/nn/transformer.hpp>
#include <situ/ops/compare.hpp>
#include <support/compare.hpp>
#include <support/devices.hpp>

using namespace situ;
using situ_test::expected;
using situ_test::largest_difference;
using situ_test::pattern;
using situ_test::thrown;

namespace {

template <class T = double, class D = Cpu>
Variable<T, D> leaf(int64_t seed, Shape const& shape) {
  return Variable<T, D>(pattern<T, D>(seed, shape));
}
template <class T>
constexpr double near = std::is_same_v<T, double> ? 2e-9 : 2e-6;

template <class M, class X>
concept takes = requires(M const& net, X const& x) { net(x); };

template <class M>
void fill(M const& net) {
  int64_t seed = 10;
  for (auto& each : named_parameters(net)) {
    auto value = each.value.value();
    value.assign(pattern<value_of<decltype(value)>, device_of<decltype(value)>>(seed++, value.shape()));
  }
}
template <class M>
void check_gradients(std::string const& name, M const& net) {
  for (auto& each : named_parameters(net)) {
    CAPTURE(each.name);
    std::string key = each.name;
    for (char& c : key) c = c == '.' ? '_' : c;
    CHECK(largest_difference(each.value.grad(), expected(name + ".d_" + key)) <= 10 * near<value_of<decltype(each.value)>>);
  }
}

}  // namespace

TEST_CASE("nn::MultiheadAttention is PyTorch's") {
  using T = float;
  using D = Emulated<0>;
  nn::MultiheadAttention<T, D> self(4, 2, {.causal = true}), cross(4, 2);
  fill(self), fill(cross);
  CHECK(named_parameters(self).size() == 4);
  CHECK(named_parameters(self)[2].name == "out_proj.weight");
  auto const q = leaf<T, D>(1, {2, 3, 4}), k = leaf<T, D>(2, {2, 5, 4}), v = leaf<T, D>(3, {2, 5, 4});
  auto const y = self(q);
  y.backward(pattern<T, D>(4, {2, 3, 4}));
  CHECK(largest_difference(y.value(), expected("self.y")) <= near<T>);
  CHECK(largest_difference(q.grad(), expected("self.dq")) <= near<T> * 10);
  check_gradients("self", self);
  q.state()->grad = {}, q.state()->has_grad = false;
  auto const z = cross(q, k, v);
  z.backward(pattern<T, D>(4, {2, 3, 4}));
  CHECK(largest_difference(z.value(), expected("cross.y")) <= near<T>);
  CHECK(largest_difference(q.grad(), expected("cross.dq")) <= near<T> * 10);
  CHECK(largest_difference(k.grad(), expected("cross.dk")) <= near<T> * 10);
  CHECK(largest_difference(v.grad(), expected("cross.dv")) <= near<T> * 10);
  check_gradients("cross", cross);
  auto const x = q.value(), m = k.value();
  CHECK(allclose(self(x, x, x).value(), y.value(), {1e-6, 1e-6}));
  CHECK(allclose(cross(x, m, m).value(), cross(x, m, m.clone()).value(), {1e-6, 1e-6}));
  CHECK(allclose(cross(x, ones<bool>({3, 3}, D{})).value(), cross(x).value(), {1e-6, 1e-6}));
  CHECK(allclose(self(x[0]).value(), y.value()[0], {1e-6, 1e-6}));
  // A key that a mask hides is as if it were not there.
  auto hides_last = ones<bool>({3, 3}, D{});
  hides_last(all(), 2).assign(false);
  auto const others = x(all(), range(0, 2));
  CHECK(allclose(self(x, hides_last).value(), self(x, others, others).value(), {1e-6, 1e-6}));
  CHECK(max(abs(self(x, hides_last).value() - self(x).value())).item() > T(1e-3));
  CHECK(allclose(cross(x[0], m[0], m[0]).value(), cross(x, m, m).value()[0], {1e-6, 1e-6}));
  CHECK(thrown<ShapeError>([] { nn::MultiheadAttention<float>(10, 4); }, "MultiheadAttention: 4 heads were asked for of 10 features: the heads must divide them") == "");
  CHECK(thrown<ShapeError>([&] { self(ones({2, 3, 5}, D{})); }, "MultiheadAttention: an input of shape [2, 3, 5] was given; it takes [batch, tokens, 4] or [tokens, 4]") == "");
}

TEST_CASE("nn::TransformerEncoderLayer is PyTorch's, and moves between devices") {
  nn::TransformerEncoderLayer<double> const after(4, 2, {.dim_feedforward = 6, .dropout = 0});
  nn::TransformerEncoderLayer<double, Cpu, nn::GELU> const before(4, 2, {.dim_feedforward = 6, .dropout = 0, .norm_first = true});
  auto const check = [](std::string const& name, auto const& net, auto const&... mask) {
    CAPTURE(name);
    fill(net);
    auto const x = leaf(1, {2, 3, 4});
    auto const y = net(x, mask...);
    y.backward(pattern(4, {2, 3, 4}));
    CHECK(largest_difference(y.value(), expected(name + ".y")) <= 1e-8);
    CHECK(largest_difference(x.grad(), expected(name + ".dx")) <= 1e-8);
    check_gradients(name, net);
  };
  check("encoder", after);
  check("encoder norm_first gelu", before);
  check("encoder causal", nn::TransformerEncoderLayer<double>(4, 2, {.dim_feedforward = 6, .dropout = 0, .causal = true}));
  check("encoder masked", nn::TransformerEncoderLayer<double>(4, 2, {.dim_feedforward = 6, .dropout = 0, .norm_first = true}),
        Tensor<bool>{{true, false, true}, {true, true, false}, {false, true, true}});
  CHECK(named_parameters(after).size() == 12);
  CHECK(named_parameters(after)[3].name == "self_attn.out_proj.bias");
  CHECK(named_parameters(after)[10].name == "norm2.weight");
  auto const moved = to(to<float>(after), Emulated<0>{});
  CHECK(largest_difference(moved(pattern<float, Emulated<0>>(1, {2, 3, 4})).value(), expected("encoder.y")) <= 1e-5);
  static_assert(takes<decltype(moved), Tensor<float, Emulated<0>>> && !takes<decltype(moved), Tensor<float>>);
}

TEST_CASE("nn::TransformerEncoderLayer drops in four places, in training alone") {
  double const p = 0.4;
  nn::TransformerEncoderLayer<double> after(4, 2, {.dim_feedforward = 6, .dropout = p}), before(4, 2, {.dim_feedforward = 6, .dropout = p, .norm_first = true});
  fill(after), fill(before);
  auto const x = leaf(1, {2, 3, 4});
  // What the layers say that they compute, of their parts.
  auto const attended = [&](auto const& net, Variable<double> const& of) { return Variable<double>(dropout(Variable<double>(net.self_attn(of)), p)); };
  auto const fed = [&](auto const& net, Variable<double> const& of) {
    return Variable<double>(dropout(Variable<double>(net.linear2(dropout(Variable<double>(relu(net.linear1(of))), p))), p));
  };
  manual_seed(5);
  auto const y = after(x), z = before(x);
  manual_seed(5);
  Variable<double> const sum = after.norm1(x + attended(after, x)), expected_y = after.norm2(sum + fed(after, sum));
  Variable<double> const led = x + attended(before, before.norm1(x)), expected_z = led + fed(before, before.norm2(led));
  CHECK(allclose(y.value(), expected_y.value(), {1e-13, 1e-13}));
  CHECK(allclose(z.value(), expected_z.value(), {1e-13, 1e-13}));
  CHECK(max(abs(after(x).value() - y.value())).item() > 0.01);
  after.eval();
  CHECK(largest_difference(after(x).value(), expected("encoder.y")) <= 1e-8);
}
