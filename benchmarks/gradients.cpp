/// Registers the workloads with gradients and checks what they computed.
#include "gradients.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace workloads {
namespace {

double at(Input which, std::size_t i) { return static_cast<double>(value(which, i)); }

bool compare(State& state, std::size_t i, double found, double wanted, double scale) {
  if (std::abs(found - wanted) <= 2e-5 * scale + 1e-4 * std::abs(wanted)) return true;
  char text[160];
  std::snprintf(text, sizeof text, "wrong gradient: element %zu is %.9g instead of %.9g", i, found, wanted);
  state.SkipWithError(text);
  return false;
}
std::size_t step(std::size_t n) { return n > 1000 ? n / 997 : 1; }

}  // namespace

void verify_gradient_tanh(State& state, const float* by_x, const float* by_y) {
  std::size_t n = size(state);
  for (std::size_t i = 0; i < n; i += step(n)) {
    double w = at(Input::b, i), t = std::tanh(at(Input::a, i) * w + at(Input::c, i));
    if (!compare(state, i, static_cast<double>(by_x[i]), (1 - t * t) * at(Input::positive, i) * w, 10)) return;
    if (!compare(state, i, static_cast<double>(by_y[i]), t, 1)) return;
  }
}

void verify_gradient_gelu(State& state, const float* by_x) {
  std::size_t n = size(state);
  for (std::size_t i = 0; i < n; i += step(n)) {
    double x = at(Input::a, i);
    if (!compare(state, i, static_cast<double>(by_x[i]), 0.5 * std::erfc(-x / std::sqrt(2.0)) + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI), 1)) return;
  }
}

void verify_gradient_layer_norm(State& state, const float* by_x) {
  constexpr std::size_t m = row_length;
  for (std::size_t r = 0; r < size(state) / m; r += step(size(state) / m)) {
    double mean = 0, variance = 0, g_mean = 0, gx_mean = 0;
    for (std::size_t k = 0; k < m; ++k) mean += at(Input::a, r * m + k) / m;
    for (std::size_t k = 0; k < m; ++k) variance += std::pow(at(Input::a, r * m + k) - mean, 2) / m;
    double scale = 1 / std::sqrt(variance + 1e-5);
    for (std::size_t k = 0; k < m; ++k) {
      double g = at(Input::b, r * m + k);
      g_mean += g / m;
      gx_mean += g * (at(Input::a, r * m + k) - mean) * scale / m;
    }
    for (std::size_t k = 0; k < m; k += 7) {
      double x = (at(Input::a, r * m + k) - mean) * scale;
      if (!compare(state, r * m + k, static_cast<double>(by_x[r * m + k]), scale * (at(Input::b, r * m + k) - g_mean - x * gx_mean), 1)) return;
    }
  }
}

void verify_gradient_cross_entropy(State& state, const float* by_x) {
  constexpr std::size_t m = row_length;
  std::size_t rows = size(state) / m;
  for (std::size_t r = 0; r < rows; r += step(rows)) {
    double total = 0;
    for (std::size_t k = 0; k < m; ++k) total += std::exp(at(Input::a, r * m + k));
    for (std::size_t k = 0; k < m; k += 7) {
      double wanted = std::exp(at(Input::a, r * m + k)) / total - (k == r % m ? 1 : 0);
      if (!compare(state, r * m + k, static_cast<double>(by_x[r * m + k]) * static_cast<double>(rows), wanted, 1)) return;
    }
  }
}

void verify_gradient_perceptron(State& state, const float* by_first_bias, const float* by_last_bias) {
  using P = Perceptron;
  std::vector<double> first(P::hidden), last(P::outputs);
  for (std::size_t s = 0; s < P::batch; ++s) {
    std::vector<double> h1(P::hidden), h2(P::hidden), z(P::outputs), d1(P::hidden), d2(P::hidden);
    auto layer = [](std::vector<double>& to, auto from, std::size_t inputs, Input w, Input b, bool relu) {
      for (std::size_t j = 0; j < to.size(); ++j) {
        to[j] = at(b, j) * 0.1;
        for (std::size_t i = 0; i < inputs; ++i) to[j] += from(i) * at(w, i * to.size() + j) * 0.1;
        if (relu && to[j] < 0) to[j] = 0;
      }
    };
    layer(h1, [&](std::size_t i) { return at(Input::a, s * P::inputs + i); }, P::inputs, Input::b, Input::b, true);
    layer(h2, [&](std::size_t i) { return h1[i]; }, P::hidden, Input::c, Input::c, true);
    layer(z, [&](std::size_t i) { return h2[i]; }, P::hidden, Input::a, Input::a, false);
    double total = 0, largest = *std::max_element(z.begin(), z.end());
    for (double x : z) total += std::exp(x - largest);
    for (std::size_t k = 0; k < P::outputs; ++k) z[k] = (std::exp(z[k] - largest) / total - (k == s % P::outputs ? 1 : 0)) / P::batch, last[k] += z[k];
    for (std::size_t j = 0; j < P::hidden; ++j) {
      for (std::size_t k = 0; k < P::outputs; ++k) d2[j] += z[k] * at(Input::a, j * P::outputs + k) * 0.1;
      if (h2[j] == 0) d2[j] = 0;
    }
    for (std::size_t j = 0; j < P::hidden; ++j) {
      for (std::size_t k = 0; k < P::hidden; ++k) d1[j] += d2[k] * at(Input::c, j * P::hidden + k) * 0.1;
      if (h1[j] == 0) d1[j] = 0;
      first[j] += d1[j];
    }
  }
  for (std::size_t j = 0; j < P::hidden; ++j) {
    if (!compare(state, j, static_cast<double>(by_first_bias[j]), first[j], 1)) return;
  }
  for (std::size_t k = 0; k < P::outputs; ++k) {
    if (!compare(state, k, static_cast<double>(by_last_bias[k]), last[k], 1)) return;
  }
}

void add_gradients() {
  auto add = [](const char* name, void (*workload)(State&), std::initializer_list<std::int64_t> sizes) {
    auto* row = benchmark::RegisterBenchmark(name, workload)->UseRealTime();
    for (std::int64_t n : sizes) row->Arg(n);
  };
  add("gradient_tanh", gradient_tanh, {1000, 100000, 10000000});
  add("gradient_gelu", gradient_gelu, {1000, 100000, 10000000});
  add("gradient_layer_norm", gradient_layer_norm, {1000, 100000, 10000000});
  add("gradient_cross_entropy", gradient_cross_entropy, {1000, 100000, 10000000});
  add("gradient_perceptron", gradient_perceptron, {64});
}

}  // namespace workloads
