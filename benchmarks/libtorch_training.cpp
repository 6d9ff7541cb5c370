/// libtorch's steps of training. Its Adam is the formula on each parameter, in place, as torch::optim::Adam has it.
#include "training.hpp"

#include <ATen/ATen.h>

#include <cmath>

namespace workloads {
namespace {

using at::Tensor;

Tensor filled(Input which, at::IntArrayRef shape, float scale = 1) {
  Tensor x = at::empty(shape, at::kFloat);
  fill(which, x.data_ptr<float>(), static_cast<std::size_t>(x.numel()));
  return x * scale;
}
Tensor leaf(Tensor const& x) { return x.detach().clone().requires_grad_(true); }
std::int64_t extent(std::size_t n) { return static_cast<std::int64_t>(n); }
Tensor labels(std::size_t count, std::size_t classes) { return at::arange(extent(count), at::kLong).remainder(extent(classes)); }

struct Adam {
  std::vector<Tensor> parameters, first, second;
  int steps = 0;
  explicit Adam(std::vector<Tensor> list) : parameters(std::move(list)) {
    for (Tensor const& p : parameters) first.push_back(at::zeros_like(p)), second.push_back(at::zeros_like(p));
  }
  void zero_grad() {
    for (Tensor& p : parameters) p.mutable_grad().reset();
  }
  void step() {
    at::NoGradGuard guard;
    ++steps;
    double const c1 = 1 - std::pow(0.9, steps), c2 = 1 - std::pow(0.999, steps);
    for (std::size_t k = 0; k < parameters.size(); ++k) {
      Tensor const g = parameters[k].grad();
      first[k].mul_(0.9).add_(g, 0.1);
      second[k].mul_(0.999).addcmul_(g, g, 0.001);
      Tensor denominator = (second[k].sqrt() / std::sqrt(c2)).add_(1e-8);
      parameters[k].detach().addcdiv_(first[k], denominator, -learning_rate / c1);
    }
  }
};

void train(State& state, Step const& p) {
  Tensor w1 = leaf(filled(Input::b, {extent(p.hidden), extent(p.inputs)}, p.scale)), b1 = leaf(at::zeros({extent(p.hidden)}));
  Tensor w2 = leaf(filled(Input::c, {extent(p.outputs), extent(p.hidden)}, p.scale)), b2 = leaf(at::zeros({extent(p.outputs)}));
  Adam optimizer({w1, b1, w2, b2});
  Tensor const x = filled(Input::a, {extent(p.batch), extent(p.inputs)}), y = labels(p.batch, p.outputs);
  int steps = 0;
  double compared = 0;
  auto step = [&] {
    optimizer.zero_grad();
    Tensor loss = at::cross_entropy_loss(at::linear(at::relu(at::linear(x, w1, b1)), w2, b2), y);
    loss.backward();
    optimizer.step();
    if (steps++ == compared_steps) compared = loss.item<double>();
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
  Tensor w = leaf(filled(Input::b, {extent(P::filters), extent(P::channels), 3, 3}, 0.05f)), b = leaf(at::zeros({extent(P::filters)}));
  Tensor fc = leaf(filled(Input::c, {extent(P::outputs), extent(P::features)}, 0.005f)), fb = leaf(at::zeros({extent(P::outputs)}));
  Adam optimizer({w, b, fc, fb});
  Tensor const x = filled(Input::a, {extent(P::batch), extent(P::channels), extent(P::extent), extent(P::extent)}), y = labels(P::batch, P::outputs);
  double first = -1, last = 0;
  auto step = [&] {
    optimizer.zero_grad();
    Tensor maps = at::max_pool2d(at::relu(at::conv2d(x, w, b, 1, 1)), 2);
    Tensor loss = at::cross_entropy_loss(at::linear(maps.flatten(1), fc, fb), y);
    loss.backward();
    optimizer.step();
    last = loss.item<double>();
    if (first < 0) first = last;
  };
  for (int k = 0; k < 30; ++k) step();
  for (auto _ : state) step();
  verify_images(state, first, last);
}

void training_transformer(State& state) {
  using P = Encoder;
  std::int64_t const n = extent(P::sequences), t = extent(P::tokens), d = extent(P::width), heads = extent(P::heads), hidden = extent(P::hidden);
  Tensor x = leaf(filled(Input::a, {n, t, d})), g = filled(Input::b, {n, t, d});
  Tensor in = leaf(filled(Input::b, {3 * d, d}, 0.03f)), in_b = leaf(at::zeros({3 * d})), out = leaf(filled(Input::c, {d, d}, 0.03f)), out_b = leaf(at::zeros({d}));
  Tensor up = leaf(filled(Input::a, {hidden, d}, 0.03f)), up_b = leaf(at::zeros({hidden})), down = leaf(filled(Input::c, {d, hidden}, 0.03f)), down_b = leaf(at::zeros({d}));
  Tensor w1 = leaf(at::ones({d})), b1 = leaf(at::zeros({d})), w2 = leaf(at::ones({d})), b2 = leaf(at::zeros({d}));
  Tensor y;
  repeat(state, [&] {
    for (Tensor* p : {&x, &in, &in_b, &out, &out_b, &up, &up_b, &down, &down_b, &w1, &b1, &w2, &b2}) p->mutable_grad().reset();
    // As torch.nn.functional.multi_head_attention_forward: heads are batches of one product.
    auto parts = at::linear(x, in, in_b).chunk(3, -1);
    auto split = [&](Tensor const& part) { return part.reshape({n, t, heads, d / heads}).transpose(1, 2).reshape({n * heads, t, d / heads}); };
    Tensor q = split(parts[0]) / std::sqrt(static_cast<double>(d / heads)), k = split(parts[1]), v = split(parts[2]);
    Tensor mixed = at::bmm(at::softmax(at::bmm(q, k.transpose(1, 2)), -1), v).reshape({n, heads, t, d / heads}).transpose(1, 2).reshape({n, t, d});
    Tensor a = at::layer_norm(x + at::linear(mixed, out, out_b), {d}, w1, b1);
    y = at::layer_norm(a + at::linear(at::relu(at::linear(a, up, up_b)), down, down_b), {d}, w2, b2);
    y.backward(g);
    keep(x.grad());
  });
  verify_transformer(state, y.detach().contiguous().data_ptr<float>());
}

void training_digits(State& state) { lacking(state); }
void loading(State& state) { lacking(state); }

}  // namespace workloads
