/// Forward and backward of formulas and of rows on a GPU, beside a copy of as many bytes as both have to move when nothing but the leaves is stored.
/// Gradients are checked at a few elements.
#include "gpu.hpp"

#include <situ/autograd.hpp>
#include <situ/nn.hpp>

namespace {

using namespace bench;

template <class G, class F>
void expect_gradient(std::string const& key, G const& gradient, double tolerance, F formula) {
  auto const flat = gradient.flatten();
  for (std::int64_t i = 0; i < flat.size(); i += flat.size() / 23 + 1) expect(key, static_cast<double>(flat.item(i)), formula(i), tolerance);
}

void rows() {
  int const bits = 26;
  std::int64_t const n = std::int64_t{1} << bits;
  double const bytes = static_cast<double>(n) * sizeof(float);
  std::string const size = "/f32/2^" + std::to_string(bits);
  auto at = [](std::int64_t i, unsigned seed) { return static_cast<double>(value(i, seed)); };
  {
    Variable<float, Gpu> x(input({n}, 0)), w(input({n}, 1)), b(input({n}, 2)), y(input({n}, 3));
    auto const step = [&] {
      for (auto* v : {&x, &w, &b, &y}) v->zero_grad();
      sum(tanh(x * w + b) * y).backward();
    };
    memory_row("grad_tanh" + size, "gradients of sum(tanh(x*w + b)*y), f32, 2^26", 0, 12 * bytes, step);
    expect_gradient("grad_tanh" + size, w.grad(), 1e-4, [&](std::int64_t i) {
      double const t = std::tanh(at(i, 0) * at(i, 1) + at(i, 2));
      return (1 - t * t) * at(i, 0) * at(i, 3);
    });
  }
  {
    Variable<float, Gpu> x(input({n}, 0));
    memory_row("grad_gelu" + size, "gradient of sum(gelu(x)), f32, 2^26", 0, 3 * bytes, [&] {
      x.zero_grad();
      sum(gelu(x)).backward();
    });
    expect_gradient("grad_gelu" + size, x.grad(), 1e-5, [&](std::int64_t i) {
      double const v = at(i, 0);
      return 0.5 * std::erfc(-v * 0.7071067811865476) + v * std::exp(-v * v / 2) * 0.3989422804014327;
    });
  }
  std::int64_t const columns = 1024, lines = n / columns;
  {
    Variable<float, Gpu> x(input({lines, columns}, 0));
    Tensor<float, Gpu> const y = input({lines, columns}, 1);
    memory_row("grad_layer_norm/f32/65536x1024", "gradient of sum(layer_norm(x)*y), f32, 65536x1024", 0, 7 * bytes, [&] {
      x.zero_grad();
      sum(layer_norm(x, {columns}) * y).backward();
    });
    double mean = 0, spread = 0, slope = 0, share = 0;
    for (std::int64_t j = 0; j < columns; ++j) mean += at(j, 0) / static_cast<double>(columns);
    for (std::int64_t j = 0; j < columns; ++j) spread += (at(j, 0) - mean) * (at(j, 0) - mean) / static_cast<double>(columns);
    double const r = 1 / std::sqrt(spread + 1e-5);
    for (std::int64_t j = 0; j < columns; ++j) slope += at(j, 1) / static_cast<double>(columns), share += at(j, 1) * (at(j, 0) - mean) * r / static_cast<double>(columns);
    for (std::int64_t j : {std::int64_t{0}, std::int64_t{511}, columns - 1}) {
      expect("grad_layer_norm", static_cast<double>(x.grad().item(0, j)), r * (at(j, 1) - slope - (at(j, 0) - mean) * r * share), 1e-4);
    }
  }
  {
    Variable<float, Gpu> x(input({lines, columns}, 0));
    Tensor<std::int64_t, Gpu> const labels = arange<std::int64_t>(lines, Gpu{}) % columns;
    memory_row("grad_cross_entropy/f32/65536x1024", "gradient of the cross entropy, f32, 65536x1024", 0, 3 * bytes, [&] {
      x.zero_grad();
      cross_entropy(x, labels).backward();
    });
    double total = 0;
    for (std::int64_t j = 0; j < columns; ++j) total += std::exp(at(3 * columns + j, 0));
    for (std::int64_t j : {std::int64_t{3}, std::int64_t{511}}) {
      expect("grad_cross_entropy", static_cast<double>(x.grad().item(3, j)) * static_cast<double>(lines), std::exp(at(3 * columns + j, 0)) / total - (j == 3 ? 1 : 0), 1e-4);
    }
  }
}

}  // namespace

int main() { return bench::run(rows); }
