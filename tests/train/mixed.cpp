// Networks with normalisations and attention in mixed precision through the Trainer: what float reaches, on devices of both kinds.
#include <doctest/doctest.h>

#include <situ/train.hpp>

#include <situ/nn/activations.hpp>
#include <situ/nn/batch_norm.hpp>
#include <situ/nn/conv2d.hpp>
#include <situ/nn/linear.hpp>
#include <situ/nn/losses.hpp>
#include <situ/nn/pool2d.hpp>
#include <situ/nn/transformer.hpp>
#include <situ/optim/adam.hpp>

using namespace situ;

namespace {

template <class T, class D>
struct Images {
  nn::Conv2d<T, D> conv{1, 4, 3, {.padding = 1}};
  nn::BatchNorm2d<T, D> norm{4};
  nn::MaxPool2d pool{2};
  nn::Linear<T, D> fc{64, 3};
  auto forward(auto const& x) const {
    Variable maps = pool(relu(norm(conv(x))));
    return fc(maps.reshape({x.size(0), -1}));
  }
  SITU_MODULE(conv, norm, pool, fc)
};
template <class T, class D>
struct Tokens {
  nn::Linear<T, D> in{8, 16};
  nn::TransformerEncoderLayer<T, D> layer{16, 2, {.dim_feedforward = 32, .dropout = 0.1}};
  nn::Linear<T, D> out{128, 3};
  auto forward(auto const& x) const {
    Variable y = layer(in(x));
    return out(y.reshape({x.size(0), -1}));
  }
  SITU_MODULE(in, layer, out)
};

/// Noisy pictures with a bright row, which the label names.
data::TensorDataset<Tensor<float>, Tensor<int64_t>> pictures(Shape const& sample) {
  Generator random{5};
  Tensor<float> x = Tensor<float>(0.4f * randn({160, 8, 8}, random));
  auto y = Tensor<int64_t>::uninitialized({160}, "pictures");
  for (int64_t i = 0; i < 160; ++i) {
    y(i) = i % 3;
    for (int64_t k = 0; k < 8; ++k) x(i, 2 * y(i) + 1, k) += 1.f;
  }
  Shape shape{160};
  for (int k = 0; k < sample.rank(); ++k) shape.push_back(sample[k]);
  return {x.reshape(shape), y};
}

template <class Compute, class D, class N>
std::vector<learning::Epoch> trained(N const& begin, Shape const& sample) {
  N net = clone(begin);
  auto const samples = pictures(sample);
  manual_seed(2);
  return learning::Trainer<D>{{.epochs = 4, .batch_size = 16, .seed = 3, .clip_norm = 1, .progress = nullptr}}
      .template fit<Compute>(
          net, samples, samples, [](auto const& scores, auto const& labels) { return cross_entropy(scores, labels); },
          [](auto& model) { return optim::Adam{model, {.lr = 5e-3}}; }, learning::accuracy)
      .epochs;
}
/// Each epoch as in float, to what bfloat16 and float16 leave of a mean over batches.
void check_same(std::vector<learning::Epoch> const& found, std::vector<learning::Epoch> const& expected, std::size_t first = 0) {
  REQUIRE(found.size() == expected.size());
  for (std::size_t k = first; k < found.size(); ++k) {
    CAPTURE(k);
    CHECK(found[k].loss == doctest::Approx(expected[k].loss).epsilon(0.02));
    CHECK(found[k].validation_loss == doctest::Approx(expected[k].validation_loss).epsilon(0.04));
    CHECK(found[k].gradient_norm == doctest::Approx(expected[k].gradient_norm).epsilon(0.1));
  }
  CHECK(found.back().metric > 0.95);
}

}  // namespace

TEST_CASE("a convolutional network with batch normalisation trains in mixed precision as in float") {
  manual_seed(1);
  Images<float, Cpu> const net;
  auto const expected = trained<float, Cpu>(net, {1, 8, 8});
  check_same(trained<bfloat16, Cpu>(net, {1, 8, 8}), expected);
  check_same(trained<float16, Emulated<0>>(net, {1, 8, 8}), expected, 1);  // its first gradients, times 65536, are beyond float16: that step is left out
}

TEST_CASE("a transformer's layer trains in mixed precision as in float") {
  manual_seed(1);
  Tokens<float, Cpu> const net;
  auto const expected = trained<float, Cpu>(net, {8, 8});
  check_same(trained<float16, Cpu>(net, {8, 8}), expected);  // no step is left out
  check_same(trained<bfloat16, Emulated<0>>(net, {8, 8}), expected);
}
