/// nn::LSTM: against PyTorch's values and gradients.
#include <doctest/doctest.h>

#include <cmath>

#include <nn/expected/attention.hpp>
#include <nn/patterns.hpp>
#include <situ/nn/lstm.hpp>
#include <situ/ops/compare.hpp>
#include <support/compare.hpp>
#include <support/devices.hpp>

using namespace situ;
using situ_test::expected;
using situ_test::largest_difference;
using situ_test::pattern;
using situ_test::thrown;

namespace {

template <class T, class D>
void check_lstm(std::string const& name, int64_t layers, bool has_state, bool bias) {
  CAPTURE(name);
  double const near = std::is_same_v<T, double> ? 2e-9 : 3e-6;
  nn::LSTM<T, D> const net(3, 4, {.num_layers = layers, .bias = bias});
  int64_t seed = 10;
  for (auto& each : named_parameters(net)) {
    auto value = each.value.value();
    value.assign(pattern<T, D>(seed++, value.shape()));
  }
  Variable<T, D> const x{pattern<T, D>(1, {2, 3, 3})};
  nn::LSTMState<T, D> const before{Variable<T, D>(pattern<T, D>(2, {layers, 2, 4})), Variable<T, D>(pattern<T, D>(3, {layers, 2, 4}))};
  auto const [y, state] = has_state ? net(x, before) : net(x);
  CHECK(largest_difference(y.value(), expected(name + ".y")) <= near);
  CHECK(largest_difference(state.h.value(), expected(name + ".h")) <= near);
  CHECK(largest_difference(state.c.value(), expected(name + ".c")) <= near);
  y.backward(pattern<T, D>(4, y.shape()), retain_graph);
  state.h.backward(pattern<T, D>(5, state.h.shape()), retain_graph);
  state.c.backward(pattern<T, D>(6, state.c.shape()));
  CHECK(largest_difference(x.grad(), expected(name + ".dx")) <= 3 * near);
  if (has_state) {
    CHECK(largest_difference(before.h.grad(), expected(name + ".dh")) <= 3 * near);
    CHECK(largest_difference(before.c.grad(), expected(name + ".dc")) <= 3 * near);
  }
  for (auto& each : named_parameters(net)) {
    CAPTURE(each.name);
    CHECK(largest_difference(each.value.grad(), expected(name + ".d_" + each.name)) <= 10 * near);
  }
}
template <class T, class D>
void check_all() {
  check_lstm<T, D>("lstm", 1, false, true);
  check_lstm<T, D>("lstm of two", 2, true, true);
  check_lstm<T, D>("lstm without bias", 1, true, false);
}

template <class M, class X, class H>
concept takes_state = requires(M const& net, X const& x, H const& h) { net(x, {h, h}); };
static_assert(takes_state<nn::LSTM<float>, Tensor<float>, Tensor<float>> && takes_state<nn::LSTM<float>, Tensor<float>, Variable<float>>);
static_assert(!takes_state<nn::LSTM<float>, Tensor<float>, Tensor<float, Emulated<0>>> && !takes_state<nn::LSTM<float>, Tensor<float, Emulated<0>>, Tensor<float>>);

}  // namespace

TEST_CASE("nn::LSTM and its gradients are PyTorch's") {
  situ_test::with_every_instruction_set<Cpu>([] {
    check_all<double, Cpu>();
    check_all<float, Emulated<0>>();
  });
}

TEST_CASE("in training an LSTM drops what one layer gives the next") {
  nn::LSTM<double> net(3, 5, {.num_layers = 2, .dropout = 0.5});
  nn::LSTM<double> const first(3, 5), second(5, 5);
  for (std::size_t k = 0; k < 4; ++k) {
    first.parameters[k].value().assign(net.parameters[k].value());
    second.parameters[k].value().assign(net.parameters[4 + k].value());
  }
  auto const x = pattern(1, {2, 7, 3});
  manual_seed(3);
  auto const dropped = net(x);
  manual_seed(3);
  auto const between = first(x).output.value();
  // In the order of steps.
  auto const expected = second(eval(dropout(between.transpose(0, 1), 0.5)).transpose(0, 1));
  CHECK(allclose(dropped.output.value(), expected.output.value(), {1e-13, 1e-13}));
  CHECK(allclose(dropped.state.c.value()[1], expected.state.c.value()[0], {1e-13, 1e-13}));
  net.eval();
  CHECK(allclose(net(x).output.value(), second(between).output.value(), {1e-13, 1e-13}));
  CHECK(max(abs(net(x).output.value() - dropped.output.value())).item() > 0.01);
}

TEST_CASE("an LSTM goes on from a state, reads one sequence without a batch, and is named as PyTorch's") {
  nn::LSTM<double> net(3, 5, {.num_layers = 2, .dropout = 0.5});
  net.eval();
  auto const names = named_parameters(net);
  CHECK(names.size() == 8);
  CHECK(names[1].name == "weight_hh_l0");
  CHECK(names[6].name == "bias_ih_l1");
  CHECK(names[4].value.shape() == Shape{20, 5});
  auto const x = pattern(1, {2, 7, 3});
  auto const result = net(x);
  auto const& whole = result.output;
  auto const& last = result.state;
  auto const [first, state] = net(x.slice(1, 0, 3));
  auto const [rest, end] = net(x.slice(1, 3, 7), state);
  CHECK(allclose(rest.value(), whole.value().slice(1, 3, 7), {1e-14, 1e-14}));
  CHECK(allclose(end.c.value(), last.c.value(), {1e-14, 1e-14}));
  auto const of = [](auto const& pair) { return pair.output.value(); };
  nn::LSTM<double> const fixed = net;
  Tensor<double> const h = state.h.value(), c = state.c.value();
  CHECK(equal(of(net(x.slice(1, 3, 7), {state.h, state.c})), rest.value()));
  CHECK(equal(of(fixed(x.slice(1, 3, 7), {h, c})), rest.value()));
  CHECK(equal(of(net(x.slice(1, 3, 7), {h, 1 * state.c})), rest.value()));
  CHECK(equal(of(fixed(x.slice(1, 3, 7), state)), rest.value()));
  // Gradients reach the Variables in braces, as those of a state.
  Variable<double> const h1{h}, c1{c}, h2{h}, c2{c};
  sum(net(x, {h1, c1}).output).backward();
  sum(net(x, nn::LSTMState<double>{h2, c2}).output).backward();
  CHECK(equal(h1.grad(), h2.grad()));
  CHECK(equal(c1.grad(), c2.grad()));
  CHECK(norm(h1.grad()).item() > 0.001);
  CHECK(equal(of(net(x.slice(1, 3, 7), {zeros<double>({2, 2, 5}), 0 * c})), of(net(x.slice(1, 3, 7)))));
  auto const [alone, of_one] = net(x[1]);
  CHECK(allclose(alone.value(), whole.value()[1], {1e-14, 1e-14}));
  CHECK(of_one.h.shape() == Shape{2, 5});
  CHECK(thrown<ShapeError>([&] { net(ones<double>({2, 3, 4})); }, "LSTM: an input of shape [2, 3, 4] was given; it takes [batch, steps, 3] or [steps, 3]") == "");
  CHECK(thrown<ShapeError>([&] { net(x[1], last); }, "LSTM: a state of shapes [2, 2, 5] and [2, 2, 5] does not fit an input of shape [7, 3]: both are [2, 5]") == "");
}
