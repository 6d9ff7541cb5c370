/// Matrix products on a GPU, beside direct calls of cuBLAS on the same memory; and a thousand small ones.
#include "gpu.hpp"

#include <situ/ops/matmul.hpp>
#include <situ/ops/reduce.hpp>

#include <cublas_v2.h>

namespace {

using namespace bench;

cublasHandle_t handle;

void check_cublas(cublasStatus_t status) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  std::fprintf(stderr, "cuBLAS: %s\n", cublasGetStatusString(status));
  std::exit(2);
}

/// c = a b, for row-major matrices without gaps.
template <class T>
void direct(T const* a, T const* b, T* c, std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t batches) {
  using Scale = compute_t<T>;
  Scale const one = Scale(1), zero = Scale(0);
  constexpr cudaDataType_t type = std::is_same_v<T, float>     ? CUDA_R_32F
                                  : std::is_same_v<T, double>  ? CUDA_R_64F
                                  : std::is_same_v<T, float16> ? CUDA_R_16F
                                                               : CUDA_R_16BF;
  constexpr cublasComputeType_t compute = std::is_same_v<T, double> ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F;
  check_cublas(cublasGemmStridedBatchedEx_64(handle, CUBLAS_OP_N, CUBLAS_OP_N, n, m, k, &one, b, type, n, k * n, a, type, k, m * k, &zero, c, type, n, m * n, batches,
                                             compute, CUBLAS_GEMM_DEFAULT));
}

template <class T>
void product(std::int64_t n, std::int64_t batches = 1) {
  Shape const shape = batches == 1 ? Shape{n, n} : Shape{batches, n, n};
  Tensor<T, Gpu> const a = input<T>(shape, 0), b = input<T>(shape, 1);
  Tensor<T, Gpu> y, c = zeros<T>(shape, Gpu{});
  std::string const type = type_name<T>, sizes = (batches > 1 ? std::to_string(batches) + "x" : "") + std::to_string(n) + "^2", key = "matmul/" + type + "/" + sizes;
  double const operations = 2.0 * static_cast<double>(batches) * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n);
  row(key, "matmul, " + type + ", " + sizes,
      on_gpu([&] { y = matmul(a, b); }, [&] { direct(a.data(), b.data(), c.data(), n, n, n, batches); }), "cuBLAS", Claim::ratio, 0.98, 0, operations);
  double wanted = 0;  // row 1, column 2
  for (std::int64_t k = 0; k < n; ++k) {
    wanted += static_cast<double>(static_cast<float>(static_cast<T>(value(n + k, 0)))) * static_cast<double>(static_cast<float>(static_cast<T>(value(k * n + 2, 1))));
  }
  expect(key, static_cast<double>(static_cast<float>(y.flatten().item(n + 2))), wanted, sizeof(T) == 2 ? 1e-2 : 1e-3);
}

/// z = z x, a thousand times, and the norm of the result.
void thousand_products() {
  std::int64_t const n = 100;
  Tensor<float, Gpu> const x = input({n, n}, 0) * 0.05f;  // its powers stay of ordinary size
  Tensor<float, Gpu> z, result, from = x.clone(), to = zeros({n, n}, Gpu{});
  auto const ours = [&] {
    z = x;
    for (int k = 0; k < 1000; ++k) z = matmul(z, x);
    result = norm(z);
    (void)result.item();
  };
  auto const theirs = [&] {
    for (int k = 0; k < 1000; ++k) {
      direct(from.data(), x.data(), to.data(), n, n, n, 1);
      std::swap(from, to);
    }
    float length = 0;
    check_cublas(cublasSnrm2(handle, static_cast<int>(n * n), from.data(), 1, &length));
  };
  row("products_1000/f32/100^2", "z = z @ x 1000 times, norm, f32, 100^2", in_turns([](auto& f, int k) { return wall_time(f, k); }, 9, 1, ours, theirs), "cuBLAS");
}

void rows() {
  check_cublas(cublasCreate(&handle));
  check_cublas(cublasSetStream(handle, stream()));
  for (std::int64_t n : {512, 1024, 4096, 8192, 10000}) product<float>(n);
  for (std::int64_t n : {1024, 4096, 8192, 10000}) product<float16>(n);
  for (std::int64_t n : {1024, 8192}) product<bfloat16>(n);
  product<double>(4096);
  product<float>(512, 64);
  product<float16>(512, 64);
  thousand_products();
  check_cublas(cublasDestroy(handle));
}

}  // namespace

int main() { return bench::run(rows); }
