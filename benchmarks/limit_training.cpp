/// Steps of the perceptrons written by hand: OpenBLAS's products, vector loops, memory allocated once.
#include "training.hpp"

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include "limit_simd.hpp"

namespace workloads {
namespace {

struct Parameter {
  std::vector<float> value, gradient, first, second;
  explicit Parameter(std::vector<float> v) : value(std::move(v)), gradient(value.size()), first(value.size()), second(value.size()) {}

  void adam(int step) {
    auto const c1 = static_cast<float>(learning_rate / (1 - std::pow(0.9, step))), c2 = static_cast<float>(1 / std::sqrt(1 - std::pow(0.999, step)));
    float *p = value.data(), *m = first.data(), *v = second.data();
    const float* g = gradient.data();
#pragma GCC ivdep
    for (std::size_t i = 0; i < value.size(); ++i) {
      m[i] = 0.9f * m[i] + 0.1f * g[i];
      v[i] = 0.999f * v[i] + 0.001f * g[i] * g[i];
      p[i] -= c1 * m[i] / (__builtin_sqrtf(v[i]) * c2 + 1e-8f);
    }
  }
};
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
void column_sums(const float* d, float* to, std::size_t rows, std::size_t columns) {
  std::fill(to, to + columns, 0.f);
  for (std::size_t s = 0; s < rows; ++s) {
    for (std::size_t j = 0; j < columns; ++j) to[j] += d[s * columns + j];
  }
}

void train(State& state, Step const& p) {
  auto x = filled(Input::a, p.batch * p.inputs, 1);
  Parameter w1(filled(Input::b, p.hidden * p.inputs, p.scale)), b1(std::vector<float>(p.hidden));
  Parameter w2(filled(Input::c, p.outputs * p.hidden, p.scale)), b2(std::vector<float>(p.outputs));
  std::vector<float> h(p.batch * p.hidden), z(p.batch * p.outputs), d(h);
  int steps = 0;
  float compared = 0;
  auto step = [&] {
    product(false, true, p.batch, p.hidden, p.inputs, x.data(), w1.value.data(), h.data());
    for (std::size_t s = 0; s < p.batch; ++s) {
      for (std::size_t j = 0; j < p.hidden; ++j) {
        float y = h[s * p.hidden + j] + b1.value[j];
        h[s * p.hidden + j] = y < 0 ? 0 : y;
      }
    }
    product(false, true, p.batch, p.outputs, p.hidden, h.data(), w2.value.data(), z.data());
    float loss = 0;
    for (std::size_t s = 0; s < p.batch; ++s) {
      alignas(64) float row[16];
      float largest = -1e30f, total = 0;
      for (std::size_t k = 0; k < p.outputs; ++k) largest = std::max(largest, row[k] = z[s * p.outputs + k] + b2.value[k]);
      for (std::size_t k = p.outputs; k < 16; ++k) row[k] = -80;
      float const right = row[s % p.outputs] - largest;
      for (float& each : row) each = std::max(each - largest, -80.f);
      for (std::size_t k = 0; k < 16; k += limit::width) limit::store(row + k, limit::exp(limit::load(row + k)));
      for (std::size_t k = 0; k < p.outputs; ++k) total += row[k];
      float const share = 1 / (total * static_cast<float>(p.batch));
      for (std::size_t k = 0; k < p.outputs; ++k) z[s * p.outputs + k] = row[k] * share;
      z[s * p.outputs + s % p.outputs] -= 1 / static_cast<float>(p.batch);
      loss += (std::log(total) - right) / static_cast<float>(p.batch);
    }
    product(true, false, p.outputs, p.hidden, p.batch, z.data(), h.data(), w2.gradient.data());
    column_sums(z.data(), b2.gradient.data(), p.batch, p.outputs);
    product(false, false, p.batch, p.hidden, p.outputs, z.data(), w2.value.data(), d.data());
    for (std::size_t i = 0; i < d.size(); ++i) d[i] = h[i] > 0 ? d[i] : 0;
    product(true, false, p.hidden, p.inputs, p.batch, d.data(), x.data(), w1.gradient.data());
    column_sums(d.data(), b1.gradient.data(), p.batch, p.hidden);
    if (steps == compared_steps) compared = loss;
    ++steps;
    for (Parameter* each : {&w1, &b1, &w2, &b2}) each->adam(steps);
    keep(loss);
  };
  for (int k = 0; k <= compared_steps; ++k) step();
  for (auto _ : state) step();
  verify_training(state, p, static_cast<double>(compared));
}

}  // namespace

void training_small(State& state) { train(state, small_step); }
void training_wide(State& state) { train(state, wide_step); }
void training_images(State& state) { lacking(state); }
void training_transformer(State& state) { lacking(state); }

void training_digits(State& state) { lacking(state); }

void loading(State& state) {
  std::string const path = loaded_path();
  std::vector<char> memory(loaded_bytes(state.range(0)) + 65536, 1);
  std::FILE* const file = std::fopen(path.c_str(), "wb");
  if (!file || std::fwrite(memory.data(), 1, memory.size(), file) != memory.size() || std::fclose(file) != 0) return state.SkipWithError("no file can be written");
  for (auto _ : state) {
    int const opened = ::open(path.c_str(), O_RDONLY);
    std::size_t at = 0;
    for (ssize_t got; at < memory.size() && (got = ::read(opened, memory.data() + at, memory.size() - at)) > 0;) at += static_cast<std::size_t>(got);
    ::close(opened);
    if (at != memory.size()) return state.SkipWithError("the file cannot be read");
  }
  std::remove(path.c_str());
}

}  // namespace workloads
