/// The elementwise and reduction workloads on a GPU, on arrays that exceed its caches.
///
/// Each line: the median time of an operation, the bytes it has to move (every input read once, every result written
/// once) per second, and that rate beside a device-to-device copy that moves as many bytes. Each result is checked at
/// a few elements. Without a GPU the program says so and returns 77.
#include <situ/situ.hpp>

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

using namespace situ;

using Gpu = Cuda<0>;
using Matrix = Tensor<float, Gpu>;

constexpr std::size_t side = 8192, count = side * side;  // 256 MiB in float
int failures = 0;

void check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(error));
  std::exit(1);
}
#define CHECKED(call) check(call, #call)

/// Seconds for one call of `operation`: the median of 15 batches, each between two events on the stream.
template <class Operation>
double seconds(cudaStream_t stream, int batch, Operation operation) {
  cudaEvent_t start, stop;
  CHECKED(cudaEventCreate(&start));
  CHECKED(cudaEventCreate(&stop));
  for (int i = 0; i < 3; ++i) operation();
  std::vector<float> times;
  for (int i = 0; i < 15; ++i) {
    CHECKED(cudaEventRecord(start, stream));
    for (int k = 0; k < batch; ++k) operation();
    CHECKED(cudaEventRecord(stop, stream));
    CHECKED(cudaEventSynchronize(stop));
    float milliseconds = 0;
    CHECKED(cudaEventElapsedTime(&milliseconds, start, stop));
    times.push_back(milliseconds);
  }
  CHECKED(cudaEventDestroy(start));
  CHECKED(cudaEventDestroy(stop));
  std::nth_element(times.begin(), times.begin() + 7, times.end());
  return static_cast<double>(times[7]) * 1e-3 / batch;
}

/// A copy that moves `bytes` in all: half of them read, half written.
double copy_seconds(cudaStream_t stream, double bytes) {
  auto half = static_cast<std::size_t>(bytes / 2);
  void *from = nullptr, *to = nullptr;
  CHECKED(cudaMalloc(&from, half));
  CHECKED(cudaMalloc(&to, half));
  CHECKED(cudaMemsetAsync(from, 0, half, stream));
  double time =
      seconds(stream, 10, [=] { CHECKED(cudaMemcpyAsync(to, from, half, cudaMemcpyDeviceToDevice, stream)); });
  CHECKED(cudaFree(from));
  CHECKED(cudaFree(to));
  return time;
}

void expect(const char* name, double found, double wanted, double tolerance) {
  if (std::abs(found - wanted) <= tolerance * (1 + std::abs(wanted))) return;
  std::printf("%s: WRONG: %.9g instead of %.9g\n", name, found, wanted);
  ++failures;
}

/// Measures `operation`, which assigns to `y`; `bytes` is what it has to move.
template <class Operation>
void measure(cudaStream_t stream, const char* name, double bytes, Operation operation) {
  double time = seconds(stream, 10, operation), copy = copy_seconds(stream, bytes);
  std::printf("| %-28s | %9.1f | %9.0f | %9.0f | %5.2f |\n", name, time * 1e6, bytes / time * 1e-9,
              bytes / copy * 1e-9, copy / time);
}

double host_value(std::size_t i, unsigned seed) {
  auto h = static_cast<std::uint32_t>(i) * 0x9E3779B9u + seed * 0x85EBCA6Bu + 1u;
  h = (h ^ (h >> 16)) * 0x7FEB352Du;
  h = (h ^ (h >> 15)) * 0x846CA68Bu;
  h ^= h >> 16;
  return static_cast<double>(6.0f * (static_cast<float>(h >> 8) * 0x1p-24f) - 3.0f);
}

Tensor<float> host_values(std::size_t n, unsigned seed) {
  Tensor<float> x = empty<float>({n});
  for (std::size_t i = 0; i < n; ++i) x.data()[i] = static_cast<float>(host_value(i, seed));
  return x;
}

template <class Formula>
void expect_elements(const char* name, const Matrix& y, Formula formula) {
  std::vector<float> values = y.to_vector();
  for (std::size_t i = 0; i < values.size(); i += values.size() / 101 + 1) {
    expect(name, static_cast<double>(values[i]), formula(i), 4e-6);
  }
}

void run() {
  cudaStream_t stream = detail::cuda::current_stream(0);  // that of Gpu
  Matrix a = host_values(count, 0).to(Gpu{}), b = host_values(count, 1).to(Gpu{}), c = host_values(count, 2).to(Gpu{});
  Matrix positive = abs(a) + 0.01f, y = zeros<float>({count}, Gpu{});
  double bytes = static_cast<double>(count) * sizeof(float);
  auto at = [](std::size_t i) { return host_value(i, 0); };
  auto at_b = [](std::size_t i) { return host_value(i, 1); };
  auto at_c = [](std::size_t i) { return host_value(i, 2); };

  std::printf("%s, float32, %zu elements or %zu x %zu\n\n", gpu::device_name(0).c_str(), count, side, side);
  std::printf("| %-28s | %9s | %9s | %9s | %5s |\n", "workload", "us", "GB/s", "copy GB/s", "ratio");
  std::printf("|------------------------------|----------:|----------:|----------:|------:|\n");

  measure(stream, "a*b + c - 0.5f*a", 4 * bytes, [&] { y = a * b + c - 0.5f * a; });
  expect_elements("chain", y, [&](std::size_t i) { return at(i) * at_b(i) + at_c(i) - 0.5 * at(i); });
  measure(stream, "exp(a)", 2 * bytes, [&] { y = exp(a); });
  expect_elements("exp", y, [&](std::size_t i) { return std::exp(at(i)); });
  measure(stream, "log(a)", 2 * bytes, [&] { y = log(positive); });
  expect_elements("log", y, [&](std::size_t i) { return std::log(std::abs(at(i)) + 0.01); });
  measure(stream, "tanh(a*b + c)", 4 * bytes, [&] { y = tanh(a * b + c); });
  expect_elements("tanh", y, [&](std::size_t i) { return std::tanh(at(i) * at_b(i) + at_c(i)); });
  measure(stream, "sigmoid(a)", 2 * bytes, [&] { y = sigmoid(a); });
  expect_elements("sigmoid", y, [&](std::size_t i) { return 1 / (1 + std::exp(-at(i))); });
  measure(stream, "gelu(a), tanh form", 2 * bytes, [&] { y = gelu(a, approximate_tanh); });
  expect_elements("gelu, tanh form", y, [&](std::size_t i) {
    double x = at(i);
    return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
  });
  measure(stream, "gelu(a), erf form", 2 * bytes, [&] { y = gelu(a); });
  expect_elements("gelu, erf form", y,
                  [&](std::size_t i) { return 0.5 * at(i) * (1 + std::erf(at(i) * 0.7071067811865476)); });
  measure(stream, "a*b + c, fresh result", 4 * bytes, [&] { Matrix fresh = a * b + c; });

  Matrix A = a.view({side, side}), B = b.view({side, side}), Y = y.view({side, side});
  Matrix row = host_values(side, 3).to(Gpu{}), column = host_values(side, 4).to(Gpu{});
  auto at_row = [](std::size_t i) { return host_value(i % side, 3); };
  auto at_column = [](std::size_t i) { return host_value(i / side, 4); };
  y = Matrix{};  // A, B and Y are the only owners now
  measure(stream, "matrix + row", 2 * bytes, [&] { Y = A + row; });
  expect_elements("matrix + row", Y, [&](std::size_t i) { return at(i) + at_row(i); });
  measure(stream, "matrix + column", 2 * bytes, [&] { Y = A + column.unsqueeze(1); });
  expect_elements("matrix + column", Y, [&](std::size_t i) { return at(i) + at_column(i); });
  measure(stream, "outer product, fresh result", bytes, [&] { Matrix fresh = column.unsqueeze(1) * row.unsqueeze(0); });
  expect_elements("outer product", column.unsqueeze(1) * row.unsqueeze(0),
                  [&](std::size_t i) { return at_column(i) * at_row(i); });
  measure(stream, "A + transpose of B", 3 * bytes, [&] { Y = A + B.t(); });
  expect_elements("A + transpose of B", Y,
                  [&](std::size_t i) { return at(i) + at_b(i % side * side + i / side); });

  double total = 0, squares = 0, largest = -1e30;
  std::vector<double> rows(side), columns(side);
  for (std::size_t i = 0; i < count; ++i) {
    double x = at(i);
    total += x, squares += x * x, largest = std::max(largest, x);
    rows[i / side] += x, columns[i % side] += x;
  }
  Matrix result;
  measure(stream, "sum", bytes, [&] { result = sum(a); });
  expect("sum", static_cast<double>(result.item()), total, 1e-3);
  measure(stream, "max", bytes, [&] { result = max(a); });
  expect("max", static_cast<double>(result.item()), largest, 0);
  measure(stream, "norm", bytes, [&] { result = norm(a); });
  expect("norm", static_cast<double>(result.item()), std::sqrt(squares), 1e-5);
  measure(stream, "sum(a*b), one pass", 2 * bytes, [&] { result = sum(a * b); });
  measure(stream, "row sums", bytes, [&] { result = sum(A, 1); });
  expect_elements("row sums", result, [&](std::size_t i) { return rows[i]; });
  measure(stream, "column sums", bytes, [&] { result = sum(A, 0); });
  expect_elements("column sums", result, [&](std::size_t i) { return columns[i]; });

  Matrix x = host_values(10000, 5).to(Gpu{}), z = x;
  double launch = seconds(stream, 1000, [&] { z = z * x; });
  std::printf("\nz = z*x on 100 x 100 elements: %.2f us each, 1000 in a row\n", launch * 1e6);
}

}  // namespace

int main() {
  if (!gpu::is_available()) {
    std::printf("no GPU was found: nothing is measured\n");
    return 77;
  }
  run();
  return failures == 0 ? 0 : 1;
}
