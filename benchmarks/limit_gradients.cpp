/// The perceptron's gradients written by hand: OpenBLAS's products and plain loops, memory allocated once.
#include "gradients.hpp"

#include <cblas.h>

#include <algorithm>
#include <cmath>

namespace workloads {
namespace {

using P = Perceptron;

std::vector<float> filled(Input which, std::size_t n, float scale) {
  std::vector<float> x(n);
  fill(which, x.data(), n);
  for (float& v : x) v *= scale;
  return x;
}
/// C = op(A) op(B), row after row.
void product(bool ta, bool tb, std::size_t m, std::size_t n, std::size_t k, const float* a, const float* b, float* c) {
  cblas_sgemm(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans, static_cast<int>(m), static_cast<int>(n), static_cast<int>(k), 1, a,
              static_cast<int>(ta ? m : k), b, static_cast<int>(tb ? k : n), 0, c, static_cast<int>(n));
}
void bias_and_relu(float* h, const float* b, std::size_t columns, bool relu) {
  for (std::size_t s = 0; s < P::batch; ++s) {
    for (std::size_t j = 0; j < columns; ++j) {
      float y = h[s * columns + j] + b[j];
      h[s * columns + j] = relu && y < 0 ? 0 : y;
    }
  }
}
void through_relu(float* d, const float* h, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) d[i] = h[i] > 0 ? d[i] : 0;
}
void column_sums(const float* d, float* to, std::size_t columns) {
  std::fill(to, to + columns, 0.f);
  for (std::size_t s = 0; s < P::batch; ++s) {
    for (std::size_t j = 0; j < columns; ++j) to[j] += d[s * columns + j];
  }
}

}  // namespace

void gradient_tanh(State& state) { lacking(state); }
void gradient_gelu(State& state) { lacking(state); }
void gradient_layer_norm(State& state) { lacking(state); }
void gradient_cross_entropy(State& state) { lacking(state); }

void gradient_perceptron(State& state) {
  auto x = filled(Input::a, P::batch * P::inputs, 1);
  auto w1 = filled(Input::b, P::inputs * P::hidden, 0.1f), b1 = filled(Input::b, P::hidden, 0.1f);
  auto w2 = filled(Input::c, P::hidden * P::hidden, 0.1f), b2 = filled(Input::c, P::hidden, 0.1f);
  auto w3 = filled(Input::a, P::hidden * P::outputs, 0.1f), b3 = filled(Input::a, P::outputs, 0.1f);
  std::vector<float> h1(P::batch * P::hidden), h2(h1), z(P::batch * P::outputs), d1(h1), d2(h1);
  std::vector<float> g1(w1), g2(w2), g3(w3), gb1(b1), gb2(b2), gb3(b3);
  float loss = 0;
  for (auto _ : state) {
    product(false, false, P::batch, P::hidden, P::inputs, x.data(), w1.data(), h1.data());
    bias_and_relu(h1.data(), b1.data(), P::hidden, true);
    product(false, false, P::batch, P::hidden, P::hidden, h1.data(), w2.data(), h2.data());
    bias_and_relu(h2.data(), b2.data(), P::hidden, true);
    product(false, false, P::batch, P::outputs, P::hidden, h2.data(), w3.data(), z.data());
    bias_and_relu(z.data(), b3.data(), P::outputs, false);
    loss = 0;
    for (std::size_t s = 0; s < P::batch; ++s) {
      float* row = &z[s * P::outputs];
      float largest = *std::max_element(row, row + P::outputs), total = 0, right = row[s % P::outputs] - largest;
      for (std::size_t k = 0; k < P::outputs; ++k) total += row[k] = std::exp(row[k] - largest);
      for (std::size_t k = 0; k < P::outputs; ++k) row[k] /= total * P::batch;
      row[s % P::outputs] -= 1.f / P::batch;
      loss += (std::log(total) - right) / P::batch;
    }
    product(true, false, P::hidden, P::outputs, P::batch, h2.data(), z.data(), g3.data());
    column_sums(z.data(), gb3.data(), P::outputs);
    product(false, true, P::batch, P::hidden, P::outputs, z.data(), w3.data(), d2.data());
    through_relu(d2.data(), h2.data(), d2.size());
    product(true, false, P::hidden, P::hidden, P::batch, h1.data(), d2.data(), g2.data());
    column_sums(d2.data(), gb2.data(), P::hidden);
    product(false, true, P::batch, P::hidden, P::hidden, d2.data(), w2.data(), d1.data());
    through_relu(d1.data(), h1.data(), d1.size());
    product(true, false, P::inputs, P::hidden, P::batch, x.data(), d1.data(), g1.data());
    column_sums(d1.data(), gb1.data(), P::hidden);
    keep(loss);
    keep(*g1.data());
  }
  verify_gradient_perceptron(state, gb1.data(), gb3.data());
}

}  // namespace workloads
