/// Reductions, softmax and layer norm on a GPU, beside a copy that moves as many bytes. Results are checked against sums in double.
#include "gpu.hpp"

#include <situ/ops/normalization.hpp>
#include <situ/ops/reduce.hpp>
#include <situ/ops/softmax.hpp>

namespace {

using namespace bench;

template <class T>
void reductions(int bits) {
  std::int64_t const n = std::int64_t{1} << bits, side = std::int64_t{1} << bits / 2;
  double const bytes = static_cast<double>(n) * sizeof(T);
  std::string const type = type_name<T>, size = "/" + type + "/2^" + std::to_string(bits), square = "/" + type + "/" + std::to_string(side) + "^2";
  auto const label = [&](char const* formula) { return std::string(formula) + ", " + type + ", 2^" + std::to_string(bits); };
  Tensor<T, Gpu> const a = input<T>({n}, 0), b = input<T>({n}, 1), A = a.view({side, side});
  Tensor<T, Gpu> result;
  Tensor<std::int64_t, Gpu> place;

  double total = 0, squares = 0, largest = -1e30, of_row = 0, of_column = 0;
  if (std::is_same_v<T, float>) {
    for (std::int64_t i = 0; i < n; ++i) {
      double const x = static_cast<double>(value(i, 0));
      total += x, squares += x * x, largest = x > largest ? x : largest;
      if (i / side == 5) of_row += x;
      if (i % side == 5) of_column += x;
    }
  }
  auto const checked = [&](std::string const& key, double found, double wanted, double tolerance) {
    if (std::is_same_v<T, float>) expect(key, found, wanted, tolerance);
  };
  memory_row("sum" + size, label("sum"), 0.92, bytes, [&] { result = sum(a); });
  checked("sum" + size, static_cast<double>(static_cast<float>(result.item())), total, 1e-3);
  memory_row("max" + size, label("max"), 0.92, bytes, [&] { result = max(a); });
  checked("max" + size, static_cast<double>(static_cast<float>(result.item())), largest, 0);
  memory_row("norm" + size, label("norm"), 0.92, bytes, [&] { result = norm(a); });
  checked("norm" + size, static_cast<double>(static_cast<float>(result.item())), std::sqrt(squares), 1e-5);
  memory_row("argmax" + size, label("argmax"), 0, bytes, [&] { place = argmax(a); });
  memory_row("sum_product" + size, label("sum(a*b), one pass"), 0.92, 2 * bytes, [&] { result = sum(a * b); });
  memory_row("row_sums" + square, label("row sums"), 0.92, bytes, [&] { result = sum(A, 1); });
  checked("row_sums" + square, static_cast<double>(static_cast<float>(result.item(5))), of_row, 1e-4);
  memory_row("column_sums" + square, label("column sums"), 0.92, bytes, [&] { result = sum(A, 0); });
  checked("column_sums" + square, static_cast<double>(static_cast<float>(result.item(5))), of_column, 1e-4);
  memory_row("var" + square, label("variance of rows"), 0, bytes, [&] { result = var(A, 1); });
}

template <class T>
void rows_of(int bits, int column_bits) {
  std::int64_t const m = std::int64_t{1} << (bits - column_bits), n = std::int64_t{1} << column_bits;
  double const bytes = static_cast<double>(m * n) * sizeof(T), exact = sizeof(T) == 4 ? 1e-5 : 1e-2;
  std::string const type = type_name<T>, shape = std::to_string(m) + "x" + std::to_string(n), size = "/" + type + "/" + shape;
  auto const label = [&](char const* operation) { return std::string(operation) + ", " + type + ", " + shape; };
  Tensor<T, Gpu> const x = input<T>({m, n}, 0), w = input<T>({n}, 1), b = input<T>({n}, 2);
  Tensor<T, Gpu> y;

  double total = 0, mean = 0, spread = 0;  // of row 3
  auto at = [&](std::int64_t j) { return static_cast<double>(static_cast<float>(static_cast<T>(value(3 * n + j, 0)))); };
  for (std::int64_t j = 0; j < n; ++j) total += std::exp(at(j)), mean += at(j) / static_cast<double>(n);
  for (std::int64_t j = 0; j < n; ++j) spread += (at(j) - mean) * (at(j) - mean) / static_cast<double>(n);
  memory_row("softmax" + size, label("softmax"), 0.88, 2 * bytes, [&] { y = softmax(x, 1); });
  for (std::int64_t j : {std::int64_t{0}, n / 2, n - 1}) expect("softmax" + size, static_cast<double>(static_cast<float>(y.item(3, j))), std::exp(at(j)) / total, exact);
  memory_row("layer_norm" + size, label("layer norm"), 0.88, 2 * bytes, [&] { y = layer_norm(x, Shape{n}, w, b); });
  for (std::int64_t j : {std::int64_t{0}, n / 2, n - 1}) {
    expect("layer_norm" + size, static_cast<double>(static_cast<float>(y.item(3, j))),
           (at(j) - mean) / std::sqrt(spread + 1e-5) * static_cast<double>(static_cast<float>(static_cast<T>(value(j, 1)))) +
               static_cast<double>(static_cast<float>(static_cast<T>(value(j, 2)))),
           exact);
  }
}

void rows() {
  int const bits = large();
  reductions<float>(bits);
  reductions<float16>(bits);
  rows_of<float>(bits, 10);
  rows_of<float>(bits, 12);
  rows_of<float>(bits, 15);
  rows_of<float>(bits, 17);
  rows_of<float16>(bits, 12);
  rows_of<float16>(bits, 17);
}

}  // namespace

int main() { return bench::run(rows); }
