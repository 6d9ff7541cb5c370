/// The main program of every library's benchmarks: `<program> --threads=N` and Google Benchmark's own options.
#include "training.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace workloads {
namespace {

constexpr std::size_t side = 4096, cached_side = 1008;  // of matrices; 4 MB are in the last cache

double at(Input which, std::size_t i) { return static_cast<double>(value(which, i)); }

double expected(Row row, std::size_t n, std::size_t i) {
  double a = at(Input::a, i), b = at(Input::b, i), c = at(Input::c, i);
  std::size_t r = i / n, k = i % n;
  switch (row) {
    case Row::chain: return a * b + c - 0.5 * a;
    case Row::exp: return std::exp(a);
    case Row::log: return std::log(at(Input::positive, i));
    case Row::tanh: return std::tanh(a * b + c);
    case Row::sigmoid: return 1 / (1 + std::exp(-a));
    case Row::gelu_tanh: return 0.5 * a * (1 + std::tanh(std::sqrt(2 / M_PI) * (a + 0.044715 * a * a * a)));
    case Row::gelu_erf: return 0.5 * a * (1 + std::erf(a / std::sqrt(2.0)));
    case Row::fresh: return a * b + c;
    case Row::add_row: return a + at(Input::b, k);
    case Row::add_column: return a + at(Input::b, r);
    case Row::outer: return at(Input::a, r) * at(Input::b, k);
    case Row::add_transposed: return a + at(Input::b, k * n + r);
    case Row::row_sums:
    case Row::column_sums: {
      double total = 0;
      for (std::size_t j = 0; j < n; ++j) total += at(Input::a, row == Row::row_sums ? i * n + j : j * n + i);
      return total;
    }
    case Row::product: {
      double total = 0;
      for (std::size_t j = 0; j < n; ++j) total += at(Input::a, r * n + j) * at(Input::b, j * n + k);
      return total;
    }
    case Row::softmax: {
      double total = 0;
      for (std::size_t j = 0; j < n; ++j) total += std::exp(at(Input::a, r * n + j) - a);
      return static_cast<double>(n) / total;  // of the size of 1
    }
    case Row::layer_norm: {
      double mean = 0, square = 0;
      for (std::size_t j = 0; j < n; ++j) mean += at(Input::a, r * n + j) / static_cast<double>(n);
      for (std::size_t j = 0; j < n; ++j) square += std::pow(at(Input::a, r * n + j) - mean, 2) / static_cast<double>(n);
      return (a - mean) / std::sqrt(square + 1e-5);
    }
    default: std::abort();
  }
}

/// The scalar results, and the size of a rounding error in them.
double expected(Row row, std::size_t n, double& scale) {
  double total = 0, largest = -1e30;
  scale = 0;
  for (std::size_t i = 0; i < n; ++i) {
    double a = at(Input::a, i);
    total += row == Row::norm ? a * a : row == Row::power ? std::pow(at(Input::near_one, i), 2002) : a;
    largest = std::max(largest, a);
    scale += std::abs(a);
  }
  if (row == Row::sum) return total;
  scale = 1;
  return row == Row::max ? largest : std::sqrt(total);
}

void fail(State& state, double found, double wanted, std::size_t i) {
  char text[160];
  std::snprintf(text, sizeof text, "wrong result: element %zu is %.9g instead of %.9g", i, found, wanted);
  state.SkipWithError(text);
}

}  // namespace

void verify(State& state, Row row, const float* result) {
  std::size_t n = size(state), count = n;
  if (row == Row::add_row || row == Row::add_column || row == Row::outer || row == Row::add_transposed) count = n * n;
  std::size_t step = count > 1000 ? count / 997 : 1;
  bool rows = row == Row::product || row == Row::softmax || row == Row::layer_norm;
  if (rows) count = n * n, step = count / 97;
  if (row == Row::sort) {
    std::vector<float> wanted(n);
    fill(Input::a, wanted.data(), n);
    std::sort(wanted.begin(), wanted.end());
    for (std::size_t i = 0; i < n; ++i) {
      // Compilers may round the inputs differently, by using fused multiplication or not.
      if (!(std::abs(result[i] - wanted[i]) <= 1e-6f) || (i > 0 && result[i] < result[i - 1])) return fail(state, static_cast<double>(result[i]), static_cast<double>(wanted[i]), i);
    }
    return;
  }
  bool sums = row == Row::row_sums || row == Row::column_sums;
  for (std::size_t i = 0; i < count; i += step * (sums ? 100 : 1)) {
    double wanted = expected(row, n, i), found = static_cast<double>(result[i]) * (row == Row::softmax ? static_cast<double>(n) : 1);
    double allowed = row == Row::product ? 1e-5 * static_cast<double>(n) : rows ? 2e-5 * (1 + std::abs(wanted)) : sums ? 1e-5 * static_cast<double>(n) : 4e-6 * (1 + std::abs(wanted));
    if (!(std::abs(found - wanted) <= allowed)) return fail(state, found, wanted, i);
  }
}

void verify(State& state, Row row, float result) {
  double scale = 1, wanted = expected(row, size(state), scale), found = static_cast<double>(result);
  // A norm from one running float sum, as xtensor has it, is off by 0.7 % at 10^7 elements.
  double allowed = row == Row::sum ? 1e-6 * scale : row == Row::max ? 0 : 1e-2 * wanted;
  if (!(std::abs(found - wanted) <= allowed)) fail(state, found, wanted, 0);
}

namespace {

void add(const char* name, void (*workload)(State&), std::initializer_list<std::int64_t> sizes) {
  auto* row = benchmark::RegisterBenchmark(name, workload)->UseRealTime();
  for (std::int64_t n : sizes) row->Arg(n);
}

void add_all() {
  add("chain", chain, {1000, 100000, 10000000});
  add("exp", exp, {100000, 10000000});
  add("log", log, {100000, 10000000});
  add("tanh", tanh, {100000, 10000000});
  add("sigmoid", sigmoid, {100000, 10000000});
  add("gelu_tanh", gelu_tanh, {100000, 10000000});
  add("gelu_erf", gelu_erf, {100000, 10000000});
  add("fresh", fresh, {4, 64});
  add("power", power, {4, 10000});
  add("add_row", add_row, {cached_side, side});
  add("add_column", add_column, {cached_side, side});
  add("outer", outer, {cached_side, side});
  add("add_transposed", add_transposed, {side});
  add("sum", sum, {10000000});
  add("max", max, {10000000});
  add("norm", norm, {10000000});
  add("row_sums", row_sums, {side});
  add("column_sums", column_sums, {side});
  add("softmax", softmax, {2048});
  add("layer_norm", layer_norm, {2048});
  add("product", product, {64, 256, 1024, 2048});
  add("sort", sort, {1000000});
  add("argmax", argmax, {10000000});
  add("cumsum", cumsum, {10000000});
  add("cumsum_rows", cumsum_rows, {side});
  add("cumsum_columns", cumsum_columns, {side});
  add("softmax_columns", softmax_columns, {2048});
  add("layer_norm_cached", layer_norm_cached, {512});
  add("small_product", small_product, {2, 3, 4});
  add("batched_product", batched_product, {4, 16, 64});
  add("convolution", convolution, {32});
  add("convolution_block", convolution_block, {32});
  add("masked_select", masked_select, {10000000});
  add("gather", gather, {1000000});
  add("index_select", index_select, {10000});
  add("scatter_add", scatter_add, {1000000});
  add("argsort", argsort, {1000000});
  add("topk", topk, {1000000});
  add("unique", unique, {1000000});
  add("product_power", product_power, {100});
  add("bfloat16_product", bfloat16_product, {256, 1024});
  add("variance", variance, {10000000});
  add("pad", pad, {side});
  add("roll", roll, {10000000});
  add("stack", stack, {1000000});
  add("stack_last", stack_last, {1000000});
  add("nonzero", nonzero, {10000000});
}

}  // namespace
}  // namespace workloads

int main(int argc, char** argv) {
  int threads = 1, kept = 1;
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], "--threads=", 10) == 0) threads = std::atoi(argv[i] + 10);
    else argv[kept++] = argv[i];
  }
  argc = kept;
  workloads::set_threads(threads);
  workloads::add_all();
  workloads::add_gradients();
  workloads::add_training();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::AddCustomContext("library", workloads::library);
  benchmark::AddCustomContext("threads", std::to_string(threads));
  benchmark::RunSpecifiedBenchmarks();
}
