/// situ's gradients: one kernel forward and one backward for each formula. Compiled with a plain -O2.
#include <situ/situ.hpp>

#include "gradients.hpp"

namespace workloads {
namespace {

using situ::Tensor;
using situ::Variable;

Tensor<float> filled(Input which, situ::Shape const& shape) {
  Tensor<float> x = situ::empty<float>(shape);
  fill(which, x.data(), static_cast<std::size_t>(x.size()));
  return x;
}
std::int64_t count(State const& state) { return static_cast<std::int64_t>(size(state)); }

}  // namespace

void gradient_tanh(State& state) {
  std::int64_t n = count(state);
  Variable x{filled(Input::a, {n})}, w{filled(Input::b, {n})}, b{filled(Input::c, {n})}, y{filled(Input::positive, {n})};
  repeat(state, [&] {
    for (Variable<float>* v : {&x, &w, &b, &y}) v->zero_grad();
    sum(tanh(x * w + b) * y).backward();
    keep(x.grad());
  });
  verify_gradient_tanh(state, x.grad().data(), y.grad().data());
}

void gradient_gelu(State& state) {
  Variable x{filled(Input::a, {count(state)})};
  repeat(state, [&] {
    x.zero_grad();
    sum(gelu(x)).backward();
    keep(x.grad());
  });
  verify_gradient_gelu(state, x.grad().data());
}

void gradient_layer_norm(State& state) {
  constexpr auto m = static_cast<std::int64_t>(row_length);
  Variable x{filled(Input::a, {count(state) / m, m})};
  Tensor<float> y = filled(Input::b, {count(state) / m, m});
  repeat(state, [&] {
    x.zero_grad();
    sum(layer_norm(x, {m}) * y).backward();
    keep(x.grad());
  });
  verify_gradient_layer_norm(state, x.grad().data());
}

void gradient_cross_entropy(State& state) {
  constexpr auto m = static_cast<std::int64_t>(row_length);
  std::int64_t const rows = count(state) / m;
  Variable x{filled(Input::a, {rows, m})};
  Tensor<std::int64_t> labels = situ::arange<std::int64_t>(rows) % m;
  repeat(state, [&] {
    x.zero_grad();
    cross_entropy(x, labels).backward();
    keep(x.grad());
  });
  verify_gradient_cross_entropy(state, x.grad().data());
}

void gradient_perceptron(State& state) {
  using P = Perceptron;
  auto of = [](Input which, situ::Shape const& shape) { return Variable<float>(filled(which, shape) * 0.1f); };
  Tensor<float> x = filled(Input::a, {P::batch, P::inputs});
  Variable w1 = of(Input::b, {P::inputs, P::hidden}), b1 = of(Input::b, {P::hidden});
  Variable w2 = of(Input::c, {P::hidden, P::hidden}), b2 = of(Input::c, {P::hidden});
  Variable w3 = of(Input::a, {P::hidden, P::outputs}), b3 = of(Input::a, {P::outputs});
  Tensor<std::int64_t> labels = situ::arange<std::int64_t>(static_cast<std::int64_t>(P::batch)) % static_cast<int>(P::outputs);
  repeat(state, [&] {
    for (Variable<float>* v : {&w1, &b1, &w2, &b2, &w3, &b3}) v->zero_grad();
    Variable h1 = relu(matmul(x, w1) + b1);
    Variable h2 = relu(matmul(h1, w2) + b2);
    cross_entropy(matmul(h2, w3) + b3, labels).backward();
    keep(w1.grad());
  });
  verify_gradient_perceptron(state, b1.grad().data(), b3.grad().data());
}

}  // namespace workloads
