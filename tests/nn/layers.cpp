/// Layers: what they make of given weights is what PyTorch's make of them, and so are their gradients.
#include <doctest/doctest.h>

#include <nn/expected/layers.hpp>
#include <situ/nn/activations.hpp>
#include <situ/nn/conv2d.hpp>
#include <situ/nn/dropout.hpp>
#include <situ/nn/embedding.hpp>
#include <situ/nn/flatten.hpp>
#include <situ/nn/init.hpp>
#include <situ/nn/linear.hpp>
#include <situ/nn/pool2d.hpp>
#include <situ/nn/residual.hpp>
#include <situ/nn/sequential.hpp>
#include <situ/ops/compare.hpp>
#include <support/compare.hpp>
#include <support/devices.hpp>

using namespace situ;
using situ_test::thrown;

namespace {

/// The numbers of expected/layers.py.
template <class T = double, class D = Cpu>
Tensor<T, D> numbers(Shape const& shape, uint64_t seed) {
  std::vector<T> values;
  for (int64_t i = 0; i < detail::product(shape); ++i) {
    uint64_t const word = (seed * 7919 + (static_cast<uint64_t>(i) + 1) * 2654435761u) & 0xffffffffu;
    values.push_back(static_cast<T>(static_cast<double>(word / 256 % 2001) / 1000 - 1));
  }
  return Tensor<T>(values, shape).to(D{});
}

template <class X>
std::string differs(X const& x, std::vector<double> const& expected, double tolerance) {
  auto const values = x.to_vector();
  if (values.size() != expected.size()) return std::to_string(values.size()) + " elements, expected " + std::to_string(expected.size());
  for (std::size_t k = 0; k < values.size(); ++k) {
    double const error = std::abs(static_cast<double>(values[k]) - expected[k]);
    if (!(error <= tolerance * std::fmax(1.0, std::abs(expected[k])))) {
      return "element " + std::to_string(k) + " is " + std::to_string(values[k]) + ", expected " + std::to_string(expected[k]);
    }
  }
  return "";
}

situ_test::LayerCase const& case_named(std::string const& name) {
  for (auto const& each : situ_test::layer_cases()) {
    if (each.name == name) return each;
  }
  FAIL("there is no case ", name);
  return situ_test::layer_cases()[0];
}

/// Gives a layer the weights of the script, and compares what it makes of x, a Variable or indices, and the gradients.
template <class T, class D, class Layer, class X>
void check(char const* name, Layer const& layer, X const& x, double tolerance) {
  CAPTURE(name);
  situ_test::LayerCase const& expected = case_named(name);
  auto const weights = [&] {
    if constexpr (std::is_same_v<detail::parameter_type<Layer>, Variable<T, D>>) return parameters(layer);
    else return std::vector<Variable<T, D>>();
  }();
  uint64_t seed = 100;
  for (auto const& weight : weights) weight.value().assign(numbers<T, D>(weight.shape(), seed++));
  Variable<T, D> const y = layer(x);
  CHECK(y.shape() == expected.shape);
  CHECK(differs(y, expected.values[0], tolerance) == "");
  y.backward(numbers<T, D>(y.shape(), 2));
  std::size_t at = 1;
  if constexpr (differentiable<X>) CHECK(differs(x.grad(), expected.values[at++], tolerance) == "");
  for (auto const& weight : weights) CHECK(differs(weight.grad(), expected.values[at++], tolerance) == "");
  CHECK(at == expected.values.size());
}

/// Layers with parameters: for every type and device.
template <class T, class D>
void check_layers_with_weights(double tolerance) {
  auto const input = [](Shape const& shape) { return Variable<T, D>(numbers<T, D>(shape, 1)); };
  check<T, D>("Linear", nn::Linear<T, D>{3, 4}, input({2, 3}), tolerance);
  check<T, D>("Linear of three axes", nn::Linear<T, D>{3, 2, {.bias = false}}, input({2, 2, 3}), tolerance);
  check<T, D>("Conv2d", nn::Conv2d<T, D>{2, 3, 3, {.padding = 1}}, input({2, 2, 4, 3}), tolerance);
  check<T, D>("Conv2d with options",
              nn::Conv2d<T, D>{4, 2, {2, 3}, {.stride = {2, 1}, .padding = {1, 0}, .dilation = {1, 2}, .groups = 2, .bias = false}}, input({4, 4, 6}), tolerance);
  check<T, D>("Embedding", nn::Embedding<T, D>{5, 3}, Tensor<int64_t>{{1, 4, 1}, {0, 2, 1}}.to(D{}), tolerance);
  check<T, D>("Embedding with padding", nn::Embedding<T, D>{4, 2, {.padding_idx = 1}}, Tensor<int32_t>{3, 1, 0, 1, 3}.to(D{}), tolerance);
  check<T, D>("Sequential", nn::Sequential{nn::Conv2d<T, D>{1, 2, 2}, nn::ReLU{}, nn::MaxPool2d{2}, nn::Flatten{}, nn::Linear<T, D>{8, 3}}, input({2, 1, 5, 5}), tolerance);
}

}  // namespace

TEST_CASE("layers with weights compute what PyTorch's do, and so do their gradients") {
  check_layers_with_weights<double, Cpu>(1e-12);
  check_layers_with_weights<double, Emulated<0>>(1e-12);
}

TEST_CASE("layers without weights compute what PyTorch's do, and so do their gradients") {
  auto const run = [](char const* name, auto const& layer, Shape const& shape) { check<double, Cpu>(name, layer, Variable<double>(numbers(shape, 1)), 1e-12); };
  run("MaxPool2d", nn::MaxPool2d{2}, {1, 2, 4, 5});
  run("MaxPool2d with options", nn::MaxPool2d{3, {.stride = 2, .padding = 1}}, {2, 5, 4});
  run("AvgPool2d", nn::AvgPool2d{{2, 3}}, {1, 2, 4, 6});
  run("AvgPool2d with options", nn::AvgPool2d{3, {.stride = 2, .padding = 1, .count_include_pad = false}}, {1, 1, 5, 4});
  run("AdaptiveAvgPool2d", nn::AdaptiveAvgPool2d{{2, 3}}, {1, 2, 5, 4});
  run("ReLU", nn::ReLU{}, {2, 3});
  run("LeakyReLU", nn::LeakyReLU{}, {2, 3});
  run("LeakyReLU of 0.25", nn::LeakyReLU{0.25}, {2, 3});
  run("GELU", nn::GELU{}, {2, 3});
  run("GELU by tanh", nn::GELU{approximate_tanh}, {2, 3});
  run("SiLU", nn::SiLU{}, {2, 3});
  run("Tanh", nn::Tanh{}, {2, 3});
  run("Sigmoid", nn::Sigmoid{}, {2, 3});
  run("Softmax", nn::Softmax{-1}, {2, 3});
  run("Softmax of the first axis", nn::Softmax{0}, {2, 3});
  run("Flatten", nn::Flatten{}, {2, 2, 3});
  run("Flatten of two axes", nn::Flatten{0, 1}, {2, 2, 3});
  run("Residual", nn::Residual{nn::Sequential{nn::Linear<double>{3, 4}, nn::SiLU{}, nn::Linear<double>{4, 3}}}, {2, 3});
}

TEST_CASE("layers take tensors, Variables and formulas of either") {
  nn::Linear<double> const layer{3, 4};
  Tensor<double> const x = numbers({2, 3}, 1);
  Variable<double> const v(x);
  auto const expected = layer(x * 2).to_vector();
  CHECK(layer(Tensor<double>(x * 2)).to_vector() == expected);
  CHECK(layer(v * 2).to_vector() == expected);
  CHECK(layer(Variable<double>(v * 2)).to_vector() == expected);
  // Without weights a tensor stays one.
  Tensor<double> const y = nn::Flatten{0}(nn::ReLU{}(x));
  CHECK(y.to_vector() == Tensor<double>(relu(x)).to_vector());
  Tensor<double> const z = nn::Residual{nn::Tanh{}}(x + 1);
  CHECK(equal(z, x + 1 + tanh(x + 1)));
  CHECK(equal(nn::GELU{}(x), gelu(x)));
  Tensor<double> const pooled = nn::Sequential{nn::ReLU{}, nn::MaxPool2d{1}, nn::Dropout{0}}(x.reshape({1, 2, 3}));
  CHECK(pooled.shape() == Shape{1, 2, 3});
}

TEST_CASE("an input of another shape is refused in the layer's name") {
  nn::Linear<double> const linear{64, 128};
  CHECK(thrown<ShapeError>([&] { linear(zeros<double>({3, 5})); }, "Linear: an input of shape [3, 5] does not fit weights of shape [128, 64]: its last extent must be 64") == "");
  CHECK(thrown<ShapeError>([&] { linear(zeros<double>({})); }, "Linear: an input of shape [] does not fit weights of shape [128, 64]: its last extent must be 64") == "");
  nn::Conv2d<double> const conv{4, 6, 3, {.groups = 2}};
  CHECK(thrown<ShapeError>([&] { conv(zeros<double>({1, 3, 8, 8})); },
                           "Conv2d: an input of shape [1, 3, 8, 8] does not fit weights of shape [6, 2, 3, 3]: images are [N, 4, H, W] or [4, H, W]") == "");
  CHECK(thrown<ShapeError>([&] { conv(zeros<double>({4, 8})); },
                           "Conv2d: an input of shape [4, 8] does not fit weights of shape [6, 2, 3, 3]: images are [N, 4, H, W] or [4, H, W]") == "");
  CHECK(thrown<ShapeError>([] { nn::Conv2d<double>{3, 4, 3, {.groups = 2}}; },
                           "Conv2d: 3 input and 4 output channels do not form 2 groups: both must be multiples of them") == "");
  CHECK(thrown<ShapeError>([] { nn::Flatten{2, 1}(zeros<double>({1, 2, 3})); }, "Flatten: axis 2 lies behind axis 1 of shape [1, 2, 3]; start_dim must not be above end_dim") == "");
  CHECK(thrown<ShapeError>([] { nn::Flatten{3}(zeros<double>({1, 2, 3})); }, "Flatten: axis 3 is out of range for shape [1, 2, 3]: axes are -3 to 2") == "");
  CHECK(thrown<ShapeError>([] { nn::Embedding<double>{5, 2, {.padding_idx = 5}}; }, "Embedding: a padding_idx of 5 was given; there are 5 rows") == "");
  CHECK(thrown<ShapeError>([] { nn::Dropout{1.5}(zeros<double>({2})); }, "dropout: the probability is 1.5; it must be in [0, 1]") == "");
  CHECK(thrown<ShapeError>([] { nn::LazyLinear<double>{-1}; }, "LazyLinear: -1 outputs were asked for; there are 0 or more") == "");
}

TEST_CASE("an index that is no row is an IndexError") {
  nn::Embedding<double> const table{5, 2};
  CHECK(thrown<IndexError>([&] { table(Tensor<int64_t>{1, 5}); },
                           "Embedding: index 5 at [1] is out of range for axis 0 of shape [5, 2]: indices are 0 to 4") == "");
  CHECK(thrown<IndexError>([&] { table(Tensor<int32_t>{{0, 4}, {-1, 2}}); },
                           "Embedding: index -1 at [2] is out of range for axis 0 of shape [5, 2]: indices are 0 to 4") == "");
  nn::Embedding<double, Emulated<0>> const far{5, 2};
  CHECK_THROWS_AS(far(Tensor<int64_t, Emulated<0>>{1, 5}).item(0, 0), IndexError);
  CHECK_THROWS_AS(far(Tensor<int64_t, Emulated<0>>{1, -1}).item(0, 0), IndexError);
}

TEST_CASE("the row of padding_idx begins as zeros and gets no gradient, in second derivatives neither") {
  nn::Embedding<double> const table{4, 2, {.padding_idx = -3}};
  CHECK(table.weight.value()[1].to_vector() == std::vector<double>{0, 0});
  CHECK(table.weight.item(0, 0) != 0);
  CHECK(table(zeros<int64_t>({0, 3})).shape() == Shape{0, 3, 2});
  table.weight.value().assign(numbers({4, 2}, 7));
  Tensor<int64_t> const index{3, 1, 0, 1, 3};
  auto const y = table(index);
  Variable<double> const first = grad(sum(square(y) * y), table.weight, create_graph);  // 3 y² for each use
  sum(square(first)).backward();  // d/dw Σ (n 3 w²)² = 36 n² w³ where a row is used n times
  std::vector<double> const w = table.weight.to_vector(), g = table.weight.grad().to_vector();
  double const uses[] = {1, 0, 0, 2};
  for (std::size_t k = 0; k < 8; ++k) CHECK(g[k] == doctest::Approx(36 * uses[k / 2] * uses[k / 2] * w[k] * w[k] * w[k]));
}

TEST_CASE("dropout drops in training alone") {
  nn::Dropout layer{0.5};
  Tensor<double> const x = ones<double>({1000});
  manual_seed(3);
  auto const y = layer(x).to_vector();
  int dropped = 0;
  for (double each : y) {
    dropped += each == 0;
    CHECK((each == 0 || each == 2));
  }
  CHECK(dropped > 400);
  CHECK(dropped < 600);
  layer.eval();
  CHECK(equal(layer(x), x));
  layer.train();
  CHECK(layer.training);
}

TEST_CASE("a LazyLinear takes its width from the first input, for all of its copies") {
  nn::LazyLinear<double> lazy{3};
  nn::LazyLinear<double> const copy = lazy;
  CHECK(!copy.has_weights());
  lazy.eval();
  CHECK(thrown<TypeError>([&] { parameters(copy); }, "LazyLinear: it has no weights before its first input: call the module once, then use its parameters") == "");
  nn::Sequential const net{nn::ReLU{}, lazy};
  CHECK(thrown<TypeError>([&] { num_parameters(net); }, "LazyLinear: 1 has no weights before its first input: call the module once, then use its parameters") == "");
  CHECK(thrown<ShapeError>([&] { copy(zeros<double>({})); }, "LazyLinear: an input of shape [] was given; it needs an axis") == "");
  auto const far = to(net, Emulated<1>{});  // moved before it has weights
  CHECK(net(ones<double>({2, 7})).shape() == Shape{2, 3});
  CHECK(copy.weight.shape() == Shape{3, 7});
  CHECK(copy.bias->shape() == Shape{3});
  CHECK(equal(copy.weight.value(), lazy.weight.value()));
  CHECK(num_parameters(net) == 24);
  CHECK(far(ones<double>({2, 5}, Emulated<1>{})).shape() == Shape{2, 3});
  CHECK(get<1>(far).weight.shape() == Shape{3, 5});
  CHECK(thrown<ShapeError>([&] { copy(zeros<double>({2, 5})); }, "LazyLinear: an input of shape [2, 5] does not fit weights of shape [3, 7]: its last extent must be 7") == "");
  sum(copy(ones<double>({2, 7}))).backward();
  CHECK(lazy.weight.grad().to_vector() == std::vector<double>(21, 2.0));
  nn::LazyLinear<double> bare{3, {.bias = false}};
  bare(zeros<double>({1, 2}));
  CHECK(named_parameters(bare).size() == 1);
}

TEST_CASE("a Sequential numbers its modules, gives them, and moves between devices") {
  nn::Sequential net{nn::Linear<double>{4, 3}, nn::ReLU{}, nn::Sequential{nn::Linear<double>{3, 3}, nn::Dropout{0.1}}, nn::LeakyReLU{0.2}};
  static_assert(std::is_same_v<decltype(net), nn::Sequential<nn::Linear<double>, nn::ReLU, nn::Sequential<nn::Linear<double>, nn::Dropout>, nn::LeakyReLU>>);
  CHECK(net.size() == 4);
  std::vector<std::string> names;
  for (auto const& each : named_parameters(net)) names.push_back(each.name);
  CHECK(names == std::vector<std::string>{"0.weight", "0.bias", "2.0.weight", "2.0.bias"});
  net.eval();
  CHECK(!get<1>(get<2>(net)).training);
  get<3>(net).negative_slope = 0.5;
  CHECK(std::as_const(net).size() == 4);
  auto const far = to(net, Emulated<0>{});
  static_assert(std::is_same_v<decltype(far), nn::Sequential<nn::Linear<double, Emulated<0>>, nn::ReLU, nn::Sequential<nn::Linear<double, Emulated<0>>, nn::Dropout>, nn::LeakyReLU> const>);
  CHECK(!get<1>(get<2>(far)).training);
  CHECK(get<3>(far).negative_slope == 0.5);
  Tensor<double> const x = numbers<double>({2, 4}, 1);
  Variable<double> const near_result = net(x);
  Variable<double, Emulated<0>> const far_result = far(x.to(Emulated<0>{}));
  CHECK(allclose(far_result.value().cpu(), near_result.value()));
  CHECK(get<0>(to<float>(net)).weight.dtype() == dtype::float32);
  nn::Sequential<> const none;
  CHECK(equal(none(x), x));
  CHECK(std::string(detail::counted_names<12>.text) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11");
}

TEST_CASE("layers begin with PyTorch's distributions, the same numbers on every device") {
  auto const within = [](auto const& v, double bound) {
    double least = 0, most = 0, squares = 0;
    for (float x : v.to_vector()) {
      least = std::fmin(least, static_cast<double>(x)), most = std::fmax(most, static_cast<double>(x));
      squares += static_cast<double>(x) * static_cast<double>(x);
    }
    double const variance = squares / static_cast<double>(v.size());
    return least >= -bound && most <= bound && least < -0.9 * bound && most > 0.9 * bound && std::abs(variance * 3 / (bound * bound) - 1) < 0.1;
  };
  manual_seed(5);
  nn::Linear<float> const linear{400, 300};
  CHECK(within(linear.weight, 1 / std::sqrt(400.0)));
  CHECK(within(*linear.bias, 1 / std::sqrt(400.0)));
  nn::Conv2d<float> const conv{8, 400, {3, 5}, {.groups = 4}};
  CHECK(within(conv.weight, 1 / std::sqrt(2.0 * 15)));
  CHECK(within(*conv.bias, 1 / std::sqrt(2.0 * 15)));
  CHECK(conv.in_channels() == 8);
  nn::Embedding<float> const table{100, 200};
  double sum = 0, squares = 0;
  for (float x : table.weight.to_vector()) sum += static_cast<double>(x), squares += static_cast<double>(x) * static_cast<double>(x);
  CHECK(std::abs(sum / 20000) < 0.03);
  CHECK(std::abs(squares / 20000 - 1) < 0.03);
  manual_seed(5);
  nn::Linear<float, Emulated<1>> const far{400, 300};
  CHECK(far.weight.to_vector() == linear.weight.to_vector());
  nn::Linear<double> const empty{0, 2};
  CHECK(empty.bias->to_vector() == std::vector<double>{0, 0});
  CHECK(empty(zeros<double>({3, 0})).to_vector() == std::vector<double>(6, 0.0));
  nn::Linear<bfloat16> const narrow{4, 4};
  CHECK(narrow.weight.dtype() == dtype::bfloat16);
}
