/// situ's steps of training. Compiled with a plain -O2.
#include <situ/situ.hpp>

#include "training.hpp"

#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace workloads {
namespace {

using situ::Cpu;
using situ::Tensor;
using situ::Variable;
namespace nn = situ::nn;

std::int64_t extent(std::size_t n) { return static_cast<std::int64_t>(n); }
Tensor<float> filled(Input which, situ::Shape const& shape, float scale = 1) {
  Tensor<float> x = situ::empty<float>(shape);
  fill(which, x.data(), static_cast<std::size_t>(x.size()));
  return x * scale;
}
void set(Variable<float>& parameter, Input which, float scale) { parameter.value().assign(filled(which, parameter.shape(), scale)); }
void clear(std::optional<Variable<float>>& bias) { bias->value().assign(situ::zeros(bias->shape())); }
Tensor<std::int64_t> labels(std::size_t count, std::size_t classes) { return situ::arange<std::int64_t>(extent(count)) % extent(classes); }

struct Net {
  nn::Linear<float> fc1, fc2;
  auto forward(auto const& x) const { return fc2(relu(fc1(x))); }
  SITU_MODULE(fc1, fc2)
};
struct ConvolutionNet {
  nn::Conv2d<float> conv{extent(ImageStep::channels), extent(ImageStep::filters), 3, {.padding = 1}};
  nn::MaxPool2d pool{2};
  nn::Linear<float> fc{extent(ImageStep::features), extent(ImageStep::outputs)};
  auto forward(auto const& x) const {
    Variable maps = pool(relu(conv(x)));
    return fc(maps.reshape({x.size(0), -1}));
  }
  SITU_MODULE(conv, pool, fc)
};

void train(State& state, Step const& p) {
  Net net{{extent(p.inputs), extent(p.hidden)}, {extent(p.hidden), extent(p.outputs)}};
  set(net.fc1.weight, Input::b, p.scale), set(net.fc2.weight, Input::c, p.scale);
  clear(net.fc1.bias), clear(net.fc2.bias);
  situ::optim::Adam optimizer{net, {.lr = learning_rate}};
  auto const x = filled(Input::a, {extent(p.batch), extent(p.inputs)});
  auto const y = labels(p.batch, p.outputs);
  int steps = 0;
  double compared = 0;
  auto step = [&] {
    optimizer.zero_grad();
    Variable loss = cross_entropy(net(x), y);
    loss.backward();
    optimizer.step();
    if (steps++ == compared_steps) compared = static_cast<double>(loss.item());
  };
  for (int k = 0; k <= compared_steps; ++k) step();
  for (auto _ : state) step();
  verify_training(state, p, compared);
}

}  // namespace

void training_small(State& state) { train(state, small_step); }
void training_wide(State& state) { train(state, wide_step); }

void training_images(State& state) {
  using P = ImageStep;
  ConvolutionNet net;
  set(net.conv.weight, Input::b, 0.05f), set(net.fc.weight, Input::c, 0.005f);
  clear(net.conv.bias), clear(net.fc.bias);
  situ::optim::Adam optimizer{net, {.lr = learning_rate}};
  auto const x = filled(Input::a, {extent(P::batch), extent(P::channels), extent(P::extent), extent(P::extent)});
  auto const y = labels(P::batch, P::outputs);
  double first = -1, last = 0;
  auto step = [&] {
    optimizer.zero_grad();
    Variable loss = cross_entropy(net(x), y);
    loss.backward();
    optimizer.step();
    last = static_cast<double>(loss.item());
    if (first < 0) first = last;
  };
  for (int k = 0; k < 30; ++k) step();
  for (auto _ : state) step();
  verify_images(state, first, last);
}

void training_transformer(State& state) {
  using P = Encoder;
  nn::TransformerEncoderLayer<float> layer{extent(P::width), extent(P::heads), {.dim_feedforward = extent(P::hidden), .dropout = 0}};
  set(layer.self_attn.in_proj_weight, Input::b, 0.03f), set(layer.self_attn.out_proj.weight, Input::c, 0.03f);
  set(layer.linear1.weight, Input::a, 0.03f), set(layer.linear2.weight, Input::c, 0.03f);
  for (auto* bias : {&layer.self_attn.in_proj_bias, &layer.self_attn.out_proj.bias, &layer.linear1.bias, &layer.linear2.bias}) clear(*bias);
  Variable x{filled(Input::a, {extent(P::sequences), extent(P::tokens), extent(P::width)})};
  auto const g = filled(Input::b, x.shape());
  Variable y = layer(x);
  repeat(state, [&] {
    zero_grad(layer);
    x.zero_grad();
    y = layer(x);
    y.backward(g);
    keep(x.grad());
  });
  verify_transformer(state, y.value().data());
}

void training_digits(State& state) {
  std::string const folder = std::string(__FILE__).substr(0, std::string(__FILE__).rfind('/') + 1) + "../examples/data/";
  Tensor<float> const images = situ::io::load_npy<std::uint8_t>(folder + "digits_images.npy").reshape({-1, 64}) / 16;
  auto const labels = situ::io::load_npy<std::uint8_t>(folder + "digits_labels.npy").to<std::int64_t>();
  auto const rows = nonzero(situ::arange<std::int64_t>(images.size(0)) % 5 != 4).flatten();
  situ::data::DataLoader loader{situ::data::TensorDataset{index_select(images, 0, rows), index_select(labels, 0, rows)},
                                {.batch_size = 64, .shuffle = true, .seed = 1, .workers = static_cast<int>(state.range(0))}};
  situ::manual_seed(1);
  Net net{{64, 128}, {128, 10}};
  situ::optim::Adam optimizer{net, {.lr = learning_rate}};
  auto const now = [] { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); };
  double waited = 0, all = 0, loss = 0;
  int epochs = 0;
  auto const epoch = [&] {
    double const begun = now();
    double asked = begun;
    for (auto const& [x, y] : loader) {
      waited += now() - asked;
      optimizer.zero_grad();
      Variable now_lost = cross_entropy(net(x), y);
      now_lost.backward();
      optimizer.step();
      loss = static_cast<double>(now_lost.item());
      asked = now();
    }
    double const ended = now();
    waited += ended - asked, all += ended - begun;
    ++epochs;
  };
  for (int k = 0; k < 20; ++k) epoch();
  waited = all = 0;
  for (auto _ : state) epoch();
  state.counters["waiting"] = 100 * waited / all;
  if (!(loss < 0.5)) state.SkipWithError("the digits are not learned");
}

void loading(State& state) {
  std::int64_t const tensors = state.range(0), side = tensors == 500 ? 64 : 512;
  std::vector<situ::io::NamedTensor> saved, loaded;
  for (std::int64_t k = 0; k < tensors; ++k) {
    std::string const name = "layers." + std::to_string(k) + ".attention.weight";
    saved.push_back({name, situ::rand<float>({side, side})});
    loaded.push_back({name, situ::zeros<float>({side, side})});
  }
  std::string const path = loaded_path();
  situ::io::save_safetensors(path, saved);
  for (auto _ : state) situ::io::load_safetensors(path, loaded);
  std::remove(path.c_str());
  for (std::size_t k = 0; k < saved.size(); ++k) {
    if (std::memcmp(saved[k].first(), loaded[k].first(), static_cast<std::size_t>(side * side) * sizeof(float)) != 0) return state.SkipWithError("what was loaded is not what was saved");
  }
}

}  // namespace workloads
