/// Registers the workloads of training and checks what they computed.
#include "training.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <string>

#include <unistd.h>

namespace workloads {
namespace {

using Numbers = std::vector<double>;

Numbers numbers(Input which, std::size_t n, double scale) {
  Numbers x(n);
  for (std::size_t i = 0; i < n; ++i) x[i] = static_cast<double>(value(which, i)) * scale;
  return x;
}
void compare(State& state, const char* what, double found, double wanted, double tolerance) {
  if (std::abs(found - wanted) <= tolerance * std::max(1.0, std::abs(wanted))) return;
  char text[160];
  std::snprintf(text, sizeof text, "wrong %s: %.9g instead of %.9g", what, found, wanted);
  state.SkipWithError(text);
}
/// The cross entropy of z [rows, n], labels i % n; its gradient takes the place of z.
double cross_entropy(Numbers& z, std::size_t rows, std::size_t n) {
  double loss = 0;
  for (std::size_t s = 0; s < rows; ++s) {
    double* row = &z[s * n];
    double const largest = *std::max_element(row, row + n);
    double total = 0;
    for (std::size_t k = 0; k < n; ++k) total += std::exp(row[k] - largest);
    loss += (largest + std::log(total) - row[s % n]) / static_cast<double>(rows);
    for (std::size_t k = 0; k < n; ++k) row[k] = (std::exp(row[k] - largest) / total - (k == s % n ? 1 : 0)) / static_cast<double>(rows);
  }
  return loss;
}
struct Parameter {
  Numbers value, gradient, first, second;
  explicit Parameter(Numbers v) : value(std::move(v)), gradient(value.size()), first(value.size()), second(value.size()) {}
  void adam(int step) {
    double const c1 = 1 - std::pow(0.9, step), c2 = 1 - std::pow(0.999, step);
    for (std::size_t i = 0; i < value.size(); ++i) {
      first[i] = 0.9 * first[i] + 0.1 * gradient[i];
      second[i] = 0.999 * second[i] + 0.001 * gradient[i] * gradient[i];
      value[i] -= learning_rate * first[i] / c1 / (std::sqrt(second[i] / c2) + 1e-8);
    }
  }
};

/// The loss that step number compared_steps finds.
double loss_of(Step const& p) {
  Numbers const x = numbers(Input::a, p.batch * p.inputs, 1);
  Parameter w1(numbers(Input::b, p.hidden * p.inputs, static_cast<double>(p.scale))), b1(Numbers(p.hidden));
  Parameter w2(numbers(Input::c, p.outputs * p.hidden, static_cast<double>(p.scale))), b2(Numbers(p.outputs));
  double loss = 0;
  for (int step = 0; step <= compared_steps; ++step) {
    Numbers h(p.batch * p.hidden), z(p.batch * p.outputs), d(p.batch * p.hidden);
    for (std::size_t s = 0; s < p.batch; ++s) {
      for (std::size_t j = 0; j < p.hidden; ++j) {
        double y = b1.value[j];
        for (std::size_t i = 0; i < p.inputs; ++i) y += x[s * p.inputs + i] * w1.value[j * p.inputs + i];
        h[s * p.hidden + j] = std::max(y, 0.0);
      }
      for (std::size_t k = 0; k < p.outputs; ++k) {
        double y = b2.value[k];
        for (std::size_t j = 0; j < p.hidden; ++j) y += h[s * p.hidden + j] * w2.value[k * p.hidden + j];
        z[s * p.outputs + k] = y;
      }
    }
    loss = cross_entropy(z, p.batch, p.outputs);
    for (Parameter* each : {&w1, &b1, &w2, &b2}) std::fill(each->gradient.begin(), each->gradient.end(), 0.0);
    for (std::size_t s = 0; s < p.batch; ++s) {
      for (std::size_t k = 0; k < p.outputs; ++k) {
        double const g = z[s * p.outputs + k];
        b2.gradient[k] += g;
        for (std::size_t j = 0; j < p.hidden; ++j) {
          w2.gradient[k * p.hidden + j] += g * h[s * p.hidden + j];
          d[s * p.hidden + j] += g * w2.value[k * p.hidden + j];
        }
      }
      for (std::size_t j = 0; j < p.hidden; ++j) {
        double const g = h[s * p.hidden + j] > 0 ? d[s * p.hidden + j] : 0;
        b1.gradient[j] += g;
        for (std::size_t i = 0; i < p.inputs; ++i) w1.gradient[j * p.inputs + i] += g * x[s * p.inputs + i];
      }
    }
    for (Parameter* each : {&w1, &b1, &w2, &b2}) each->adam(step + 1);
  }
  return loss;
}

}  // namespace

void verify_training(State& state, Step const& step, double loss) {
  static Numbers known(2, -1);  // computed once for each of the two
  double& wanted = known[step.batch == wide_step.batch];
  if (wanted < 0) wanted = loss_of(step);
  compare(state, "loss", loss, wanted, 2e-3);
}

void verify_images(State& state, double first_loss, double last_loss) {
  using P = ImageStep;
  Numbers const x = numbers(Input::a, P::batch * P::channels * P::extent * P::extent, 1), w = numbers(Input::b, P::filters * P::channels * 9, 0.05);
  Numbers const fc = numbers(Input::c, P::outputs * P::features, 0.005);
  Numbers z(P::batch * P::outputs);
  auto pixel = [&](std::size_t s, std::size_t c, std::ptrdiff_t i, std::ptrdiff_t j) {
    auto const n = static_cast<std::ptrdiff_t>(P::extent);
    if (i < 0 || j < 0 || i >= n || j >= n) return 0.0;
    return x[((s * P::channels + c) * P::extent + static_cast<std::size_t>(i)) * P::extent + static_cast<std::size_t>(j)];
  };
  for (std::size_t s = 0; s < P::batch; ++s) {
    for (std::size_t f = 0; f < P::filters; ++f) {
      for (std::size_t i = 0; i < P::extent / 2; ++i) {
        for (std::size_t j = 0; j < P::extent / 2; ++j) {
          double largest = 0;  // relu
          for (std::size_t at = 0; at < 4; ++at) {
            double y = 0;
            for (std::size_t c = 0; c < P::channels; ++c) {
              for (std::size_t k = 0; k < 9; ++k) {
                y += w[(f * P::channels + c) * 9 + k] * pixel(s, c, static_cast<std::ptrdiff_t>(2 * i + at / 2 + k / 3) - 1, static_cast<std::ptrdiff_t>(2 * j + at % 2 + k % 3) - 1);
              }
            }
            largest = std::max(largest, y);
          }
          std::size_t const feature = (f * P::extent / 2 + i) * (P::extent / 2) + j;
          for (std::size_t k = 0; k < P::outputs; ++k) z[s * P::outputs + k] += largest * fc[k * P::features + feature];
        }
      }
    }
  }
  compare(state, "loss", first_loss, cross_entropy(z, P::batch, P::outputs), 2e-3);
  if (!(last_loss < 0.5 * first_loss)) state.SkipWithError("the loss does not become less");
}

void verify_transformer(State& state, const float* output) {
  using P = Encoder;
  constexpr std::size_t n = P::tokens, d = P::width, head = d / P::heads;
  Numbers x = numbers(Input::a, n * d, 1);
  double const scale = 0.03;
  Numbers const in = numbers(Input::b, 3 * d * d, scale), out = numbers(Input::c, d * d, scale), up = numbers(Input::a, P::hidden * d, scale),
                down = numbers(Input::c, d * P::hidden, scale);
  auto linear = [](Numbers const& from, Numbers const& w, std::size_t rows, std::size_t inputs, std::size_t outputs) {
    Numbers y(rows * outputs);
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t j = 0; j < outputs; ++j) {
        for (std::size_t i = 0; i < inputs; ++i) y[r * outputs + j] += from[r * inputs + i] * w[j * inputs + i];
      }
    }
    return y;
  };
  auto norm_of_sum = [&](Numbers const& a, Numbers const& b) {
    Numbers y(n * d);
    for (std::size_t r = 0; r < n; ++r) {
      double mean = 0, variance = 0;
      for (std::size_t i = 0; i < d; ++i) mean += (y[r * d + i] = a[r * d + i] + b[r * d + i]) / d;
      for (std::size_t i = 0; i < d; ++i) variance += (y[r * d + i] - mean) * (y[r * d + i] - mean) / d;
      for (std::size_t i = 0; i < d; ++i) y[r * d + i] = (y[r * d + i] - mean) / std::sqrt(variance + 1e-5);
    }
    return y;
  };
  Numbers const qkv = linear(x, in, n, d, 3 * d);
  Numbers mixed(n * d);
  for (std::size_t h = 0; h < P::heads; ++h) {
    for (std::size_t r = 0; r < n; ++r) {
      Numbers p(n);
      double total = 0, largest = -1e300;
      for (std::size_t c = 0; c < n; ++c) {
        for (std::size_t k = 0; k < head; ++k) p[c] += qkv[r * 3 * d + h * head + k] * qkv[c * 3 * d + d + h * head + k];
        p[c] /= std::sqrt(static_cast<double>(head));
        largest = std::max(largest, p[c]);
      }
      for (double& each : p) total += each = std::exp(each - largest);
      for (std::size_t c = 0; c < n; ++c) {
        for (std::size_t k = 0; k < head; ++k) mixed[r * d + h * head + k] += p[c] / total * qkv[c * 3 * d + 2 * d + h * head + k];
      }
    }
  }
  x = norm_of_sum(x, linear(mixed, out, n, d, d));
  Numbers hidden = linear(x, up, n, d, P::hidden);
  for (double& each : hidden) each = std::max(each, 0.0);
  x = norm_of_sum(x, linear(hidden, down, n, P::hidden, d));
  for (std::size_t i = 0; i < n * d; i += 61) compare(state, "output", static_cast<double>(output[i]), x[i], 2e-3);
}

std::string loaded_path() { return (std::filesystem::temp_directory_path() / ("situ_benchmark_" + std::to_string(::getpid()) + ".safetensors")).string(); }

void add_training() {
  auto add = [](const char* name, void (*workload)(State&), std::int64_t n) { benchmark::RegisterBenchmark(name, workload)->UseRealTime()->Arg(n); };
  add("training_small", training_small, static_cast<std::int64_t>(small_step.batch));
  add("training_wide", training_wide, static_cast<std::int64_t>(wide_step.batch));
  add("training_images", training_images, static_cast<std::int64_t>(ImageStep::batch));
  add("training_transformer", training_transformer, static_cast<std::int64_t>(Encoder::sequences));
  add("training_digits", training_digits, 0);
  add("training_digits", training_digits, 1);
  add("loading", loading, 100);
  add("loading", loading, 500);
}

}  // namespace workloads
