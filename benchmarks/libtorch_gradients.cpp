/// libtorch's gradients, by its autograd.
#include "gradients.hpp"

#include <ATen/ATen.h>

namespace workloads {
namespace {

using at::Tensor;

Tensor filled(Input which, at::IntArrayRef shape) {
  Tensor x = at::empty(shape, at::kFloat);
  fill(which, x.data_ptr<float>(), static_cast<std::size_t>(x.numel()));
  return x;
}
Tensor leaf(Tensor const& x) { return x.detach().clone().requires_grad_(true); }
std::int64_t count(State const& state) { return static_cast<std::int64_t>(size(state)); }

}  // namespace

void gradient_tanh(State& state) {
  std::int64_t n = count(state);
  Tensor x = leaf(filled(Input::a, {n})), w = leaf(filled(Input::b, {n})), b = leaf(filled(Input::c, {n})), y = leaf(filled(Input::positive, {n}));
  repeat(state, [&] {
    for (Tensor* v : {&x, &w, &b, &y}) v->mutable_grad().reset();
    (at::tanh(at::addcmul(b, x, w)) * y).sum().backward();
    keep(x.grad());
  });
  verify_gradient_tanh(state, x.grad().data_ptr<float>(), y.grad().data_ptr<float>());
}

void gradient_gelu(State& state) {
  Tensor x = leaf(filled(Input::a, {count(state)}));
  repeat(state, [&] {
    x.mutable_grad().reset();
    at::gelu(x).sum().backward();
    keep(x.grad());
  });
  verify_gradient_gelu(state, x.grad().contiguous().data_ptr<float>());
}

void gradient_layer_norm(State& state) {
  constexpr auto m = static_cast<std::int64_t>(row_length);
  Tensor x = leaf(filled(Input::a, {count(state) / m, m})), y = filled(Input::b, {count(state) / m, m});
  repeat(state, [&] {
    x.mutable_grad().reset();
    (at::layer_norm(x, {m}) * y).sum().backward();
    keep(x.grad());
  });
  verify_gradient_layer_norm(state, x.grad().data_ptr<float>());
}

void gradient_cross_entropy(State& state) {
  constexpr auto m = static_cast<std::int64_t>(row_length);
  std::int64_t const rows = count(state) / m;
  Tensor x = leaf(filled(Input::a, {rows, m})), labels = at::arange(rows, at::kLong).remainder(m);
  repeat(state, [&] {
    x.mutable_grad().reset();
    at::cross_entropy_loss(x, labels).backward();
    keep(x.grad());
  });
  verify_gradient_cross_entropy(state, x.grad().data_ptr<float>());
}

void gradient_perceptron(State& state) {
  using P = Perceptron;
  auto of = [](Input which, at::IntArrayRef shape) { return leaf(filled(which, shape) * 0.1f); };
  Tensor x = filled(Input::a, {P::batch, P::inputs});
  Tensor w1 = of(Input::b, {P::inputs, P::hidden}), b1 = of(Input::b, {P::hidden});
  Tensor w2 = of(Input::c, {P::hidden, P::hidden}), b2 = of(Input::c, {P::hidden});
  Tensor w3 = of(Input::a, {P::hidden, P::outputs}), b3 = of(Input::a, {P::outputs});
  Tensor labels = at::arange(static_cast<std::int64_t>(P::batch), at::kLong).remainder(static_cast<std::int64_t>(P::outputs));
  repeat(state, [&] {
    for (Tensor* v : {&w1, &b1, &w2, &b2, &w3, &b3}) v->mutable_grad().reset();
    Tensor h1 = at::relu(at::addmm(b1, x, w1));
    Tensor h2 = at::relu(at::addmm(b2, h1, w2));
    at::cross_entropy_loss(at::addmm(b3, h2, w3), labels).backward();
    keep(w1.grad());
  });
  verify_gradient_perceptron(state, b1.grad().data_ptr<float>(), b3.grad().data_ptr<float>());
}

}  // namespace workloads
