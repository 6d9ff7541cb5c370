// What PyTorch gives stands in expected/norms.hpp.
#include <doctest/doctest.h>

#include <cmath>
#include <nn/expected/norms.hpp>
#include <situ/device/emulated/device.hpp>
#include <situ/nn/batch_norm.hpp>
#include <situ/nn/normalization.hpp>
#include <support/compare.hpp>

using namespace situ;

namespace {

template <class F>
Tensor<double> made(Shape const& shape, F const& f) {
  auto result = empty<double>(shape);
  for (int64_t k = 0; k < result.size(); ++k) result.data()[k] = f(k);
  return result;
}
/// The numbers of norms.py.
Tensor<double> numbers(Shape const& shape, int64_t step = 0) {
  return made(shape, [&](int64_t k) { return static_cast<double>((k * 37 + 11 + 8 * step) % 97) / 16 - 3 + static_cast<double>(step) / 2; });
}
Tensor<double> gradients(Shape const& shape, int64_t step = 0) {
  return made(shape, [&](int64_t k) { return static_cast<double>((k * 29 + 5 + step) % 83) / 32 - 1; });
}
Tensor<double> weights(Shape const& shape) {
  return made(shape, [](int64_t k) { return 1 + static_cast<double>(k) / 8; });
}
Tensor<double> biases(Shape const& shape) {
  return made(shape, [](int64_t k) { return 0.5 - static_cast<double>(k) / 16; });
}

template <class T, class D>
double worst(Tensor<T, D> const& got, std::vector<double> const& expected) {
  auto const values = got.cpu().to_vector();
  if (values.size() != expected.size()) return HUGE_VAL;
  double result = 0;
  for (std::size_t k = 0; k < values.size(); ++k) {
    double const e = std::fabs(static_cast<double>(values[k]) - expected[k]) / (1 + std::fabs(expected[k]));
    result = situ_test::worse(result, e);
  }
  return result;
}
template <class T, class D>
Tensor<T, D> gradient_of(std::optional<Variable<T, D>> const& v) {
  return v && v->has_grad() ? v->grad() : Tensor<T, D>();
}

/// A step: the result, the gradients of x, weight and bias.
template <class Net, class T, class D>
std::array<Tensor<T, D>, 4> stepped(Net const& net, Tensor<T, D> const& x_, Tensor<T, D> const& g) {
  zero_grad(net);
  Variable<T, D> x(x_);
  Variable<T, D> const y = net(x);
  y.backward(g);
  std::array<Tensor<T, D>, 4> result{y.value(), x.grad(), gradient_of(net.weight), {}};
  if constexpr (requires { net.bias; }) result[3] = gradient_of(net.bias);
  return result;
}

template <class T, class D>
void give(std::optional<Variable<T, D>>& to, Tensor<double> const& values) {
  if (to) Tensor<T, D>(to->value()).assign(values.to<T>().to(D{}));
}

template <class Net, class T, class D>
void check_batch_norm(Shape const& shape, nn::batch_norm_options const& options, expected::Norm const& expected, double tolerance) {
  Net net(shape[1], options);
  give(net.weight, weights({shape[1]}));
  give(net.bias, biases({shape[1]}));
  std::array<Tensor<T, D>, 4> results;
  auto const step = [&](int64_t number) { results = stepped(net, numbers(shape, number).template to<T>().to(D{}), gradients(shape, number).template to<T>().to(D{})); };
  for (int64_t number = 0; number < 3; ++number) step(number);
  for (std::size_t k = 0; k < 4; ++k) CHECK(worst(results[k], expected.values[k]) < tolerance);
  CHECK(net.num_batches_tracked.has_value() == options.track_running_stats);
  if (options.track_running_stats) {
    CHECK(worst(*net.running_mean, expected.values[4]) < tolerance);
    CHECK(worst(*net.running_var, expected.values[5]) < tolerance);
    CHECK(net.num_batches_tracked->value() == 3);
  }
  net.eval();
  step(3);
  for (std::size_t k = 0; k < 4; ++k) CHECK(worst(results[k], expected.values[k + 6]) < tolerance);
  if (options.track_running_stats) CHECK(net.num_batches_tracked->value() == 3);
}

template <class T, class D>
void check_batch_norms(double tolerance) {
  nn::batch_norm_options const options[] = {{}, {.momentum = std::nullopt}, {.eps = 1e-2, .affine = false}, {.track_running_stats = false}};
  for (std::size_t k = 0; k < expected::batch_norms.size(); ++k) {
    CAPTURE(k);
    auto const& expected = expected::batch_norms[k];
    Shape const shape = k < 4 ? Shape{6, 5} : k < 8 ? Shape{3, 2, 7} : Shape{3, 2, 3, 3};
    if (k < 8) check_batch_norm<nn::BatchNorm1d<T, D>, T, D>(shape, options[k % 4], expected, tolerance);
    else check_batch_norm<nn::BatchNorm2d<T, D>, T, D>(shape, options[k % 4], expected, tolerance);
  }
}

template <class Net>
struct Around {
  Net norm;
  auto forward(auto const& x) const { return norm(x); }
  SITU_MODULE(norm)
};

std::vector<std::string> state_names(auto const& net) {
  std::vector<std::string> result;
  for_each_state(net, [&]<class X>(std::string const& name, X const& x) {
    if constexpr (std::is_same_v<X, nn::Counter>) result.push_back(name + " counter");
    else result.push_back(name + " " + to_string(x.shape()));
  });
  return result;
}

}  // namespace

TEST_CASE("batch normalisation's results, gradients and running statistics are PyTorch's, over three steps and in evaluation") {
  check_batch_norms<double, Cpu>(1e-12);
  check_batch_norms<float, Emulated<0>>(1e-5);
}

TEST_CASE("layer normalisation's results and gradients are PyTorch's") {
  Shape const shape{2, 3, 4};
  auto const check = [&](std::size_t k, Shape const& normalized, nn::layer_norm_options const& options) {
    CAPTURE(k);
    nn::LayerNorm<double> net(normalized, options);
    give(net.weight, weights(normalized));
    give(net.bias, biases(normalized));
    auto const results = stepped(net, numbers(shape), gradients(shape));
    for (std::size_t j = 0; j < 4; ++j) CHECK(worst(results[j], expected::layer_norms[k].values[j]) < 1e-12);
  };
  check(0, {4}, {});
  check(1, {3, 4}, {});
  check(2, {4}, {.bias = false});
  check(3, {4}, {.elementwise_affine = false});
}

TEST_CASE("root-mean-square normalisation's results and gradients are those of its formula") {
  Shape const shape{2, 3, 4};
  auto const check = [&](std::size_t k, Shape const& normalized, nn::rms_norm_options const& options) {
    CAPTURE(k);
    nn::RMSNorm<double> net(normalized, options);
    give(net.weight, weights(normalized));
    auto const results = stepped(net, numbers(shape), gradients(shape));
    for (std::size_t j = 0; j < 3; ++j) CHECK(worst(results[j], expected::rms_norms[k].values[j]) < 1e-12);
  };
  check(0, {4}, {});
  check(1, {3, 4}, {.eps = 1e-2});
  check(2, {4}, {.elementwise_affine = false});
}

TEST_CASE("norms have PyTorch's names and shapes in state files, and copies share them") {
  nn::BatchNorm2d<float> net{3};
  CHECK(state_names(net) == std::vector<std::string>{"weight [3]", "bias [3]", "running_mean [3]", "running_var [3]", "num_batches_tracked counter"});
  CHECK(state_names(nn::BatchNorm1d<float>{3, {.affine = false, .track_running_stats = false}}).empty());
  CHECK(state_names(nn::LayerNorm<float>{{2, 3}}) == std::vector<std::string>{"weight [2, 3]", "bias [2, 3]"});
  CHECK(state_names(nn::LayerNorm<float>{4, {.bias = false}}) == std::vector<std::string>{"weight [4]"});
  CHECK(state_names(nn::RMSNorm<float>{4}) == std::vector<std::string>{"weight [4]"});
  nn::BatchNorm2d<float> const copy = net;
  net(Variable(ones({2, 3, 1, 1})));
  CHECK(copy.num_batches_tracked->value() == 1);
  CHECK(copy.running_mean->item(1) == doctest::Approx(0.1));
}

TEST_CASE("a norm is moved, cast and cloned with its statistics, its mode and its options") {
  Around<nn::BatchNorm1d<float>> net{nn::BatchNorm1d<float>{2, {.eps = 0.5, .momentum = 0.5}}};
  Tensor<float> const x{{1, 2}, {3, 6}};
  net(x);
  net.eval();
  auto const there = to(net, Emulated<0>{});
  auto const wide = to<double>(net);
  auto const copy = clone(net);
  Variable const y = net(x);
  CHECK(worst(Tensor<float>(y.value()), {0, 2 / std::sqrt(2.) * 0, 2 / std::sqrt(2.), 4 / std::sqrt(5.)}) < 1e-6);
  CHECK(worst(there(x.to(Emulated<0>{})).value(), {0, 0, 2 / std::sqrt(2.), 4 / std::sqrt(5.)}) < 1e-6);
  CHECK(worst(wide(x.to<double>()).value(), {0, 0, 2 / std::sqrt(2.), 4 / std::sqrt(5.)}) < 1e-6);
  CHECK(worst(copy(x).value(), {0, 0, 2 / std::sqrt(2.), 4 / std::sqrt(5.)}) < 1e-6);
  CHECK(there.norm.num_batches_tracked->value() == 1);
  CHECK(there.norm.options.eps == 0.5);
  net.train();
  net(x);
  CHECK(copy.norm.num_batches_tracked->value() == 1);
  CHECK(copy.norm.running_mean->item(0) == 1);
}

TEST_CASE("a layer of float normalises 16-bit inputs, whose type the result has") {
  nn::BatchNorm1d<float> net{2};
  Variable<bfloat16> x(Tensor<bfloat16>{{1, 2}, {3, 6}});
  auto const y = net(x);
  static_assert(std::is_same_v<value_of<decltype(y)>, bfloat16>);
  CHECK(worst(y.value().to<float>(), {-1, -1, 1, 1}) < 1e-2);
  y.backward(Tensor<bfloat16>{{1, 0}, {0, 1}});
  CHECK(worst(net.weight->grad(), {-1, 1}) < 1e-2);
  CHECK(worst(net.bias->grad(), {1, 1}) == 0);
}

TEST_CASE("the shape to normalise is an extent or braces of extents, also in parentheses") {
  int64_t const n = 4;
  std::size_t const unsigned_n = 4;
  struct Holder {
    nn::LayerNorm<float> layer;
    nn::RMSNorm<float> root;
    explicit Holder(int64_t extent) : layer({extent}), root({extent}, {.eps = 1e-6}) {}
  };
  Holder const holder(n);
  CHECK(holder.layer.normalized_shape == Shape{4});
  CHECK(holder.root.normalized_shape == Shape{4});
  CHECK(nn::LayerNorm<float>({3, 5}).normalized_shape == Shape{3, 5});
  CHECK(nn::LayerNorm<float>({unsigned_n}, {.bias = false}).normalized_shape == Shape{4});
  CHECK(nn::LayerNorm<float>({3, n}, {.eps = 1e-3}).normalized_shape == Shape{3, 4});
  CHECK(nn::LayerNorm<float>(unsigned_n).normalized_shape == Shape{4});
  CHECK(nn::RMSNorm<float>{{3, 5}}.normalized_shape == Shape{3, 5});
  nn::LayerNorm<float> const copy{holder.layer};
  CHECK(copy.weight->state() == holder.layer.weight->state());
}

TEST_CASE("norms say which inputs they take") {
  using situ_test::thrown;
  nn::BatchNorm1d<float> one{3};
  nn::BatchNorm2d<float> two{3};
  CHECK(thrown<ShapeError>([&] { one(ones({3})); }, "BatchNorm1d: an input of shape [3] was given; it takes [N, C] or [N, C, L]") == "");
  CHECK(thrown<ShapeError>([&] { two(ones({2, 3, 4})); }, "BatchNorm2d: an input of shape [2, 3, 4] was given; it takes [N, C, H, W]") == "");
  CHECK(thrown<ShapeError>([&] { two(ones({2, 5, 4, 4})); }, "BatchNorm2d: an input of shape [2, 5, 4, 4] has 5 channels, but this layer is for 3") == "");
  CHECK(thrown<ShapeError>([&] { one(ones({1, 3})); }, "BatchNorm1d: an input of shape [1, 3] has 1 value for each channel, and training needs their variance: "
                                                       "give 2 or more, or normalise with the running statistics (net.eval())") == "");
  CHECK(one.num_batches_tracked->value() == 0);
  one.eval();
  CHECK(worst(one(ones({1, 3})).value(), std::vector<double>(3, 1 / std::sqrt(1.00001))) < 1e-6);
  CHECK(thrown<ShapeError>([&] { nn::LayerNorm<float>{4}(ones({4, 3})); }, "LayerNorm: an input of shape [4, 3] does not end with [4], the shape that this layer normalises") == "");
  CHECK(thrown<ShapeError>([&] { nn::RMSNorm<float>{{2, 4}}(ones({4})); }, "RMSNorm: an input of shape [4] does not end with [2, 4], the shape that this layer normalises") == "");
  CHECK(thrown<ShapeError>([] { nn::LayerNorm<float>{Shape{}}; }, "LayerNorm: no extents were given; name those of the axes to normalise, as in {128}") == "");
}

// A layer on one device rejects inputs on another.
template <class X>
concept takes = requires(nn::BatchNorm1d<float> const& net, X const& x) { net(x); };
static_assert(takes<Tensor<float>> && takes<Variable<float>> && !takes<Tensor<float, Emulated<0>>>);
