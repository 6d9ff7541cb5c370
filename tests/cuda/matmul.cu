#include <doctest/doctest.h>

#include <cublasLt.h>
#include <cublas_v2.h>

#include <cuda/compare.hpp>
#include <cuda/prototypes.hpp>
#include <situ/ops/einsum.hpp>
#include <situ/ops/linear.hpp>
#include <situ/tensor.hpp>
#include <vector>

using namespace situ;
using situ_test::called_alike;
using situ_test::differs;
using situ_test::numbers;
using Gpu = Cuda<0>;

namespace {

// ---- the hand-written prototypes are those of the headers ------------------------------------------------------------

using Blas = detail::cuda::CublasFunctions;
using Lt = detail::cuda::CublasLtFunctions;
static_assert(called_alike<decltype(Blas::create), decltype(&cublasCreate_v2)>);
static_assert(called_alike<decltype(Blas::set_stream), decltype(&cublasSetStream_v2)>);
static_assert(called_alike<decltype(Blas::set_workspace), decltype(&cublasSetWorkspace_v2)>);
static_assert(called_alike<decltype(Blas::set_math_mode), decltype(&cublasSetMathMode)>);
static_assert(called_alike<decltype(Blas::status_string), decltype(&cublasGetStatusString)>);
using gemm_64 = cublasStatus_t (*)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int64_t, int64_t, int64_t, const void*, const void*, cudaDataType,
                                   int64_t, long long, const void*, cudaDataType, int64_t, long long, const void*, void*, cudaDataType, int64_t, long long,
                                   int64_t, cublasComputeType_t, cublasGemmAlgo_t);
static_assert(std::is_same_v<decltype(static_cast<gemm_64>(&cublasGemmStridedBatchedEx_64)), gemm_64>);  // one of two overloads in C++
static_assert(called_alike<decltype(Blas::gemm), gemm_64>);
static_assert(called_alike<decltype(Lt::create), decltype(&cublasLtCreate)>);
static_assert(called_alike<decltype(Lt::description_create), decltype(&cublasLtMatmulDescCreate)>);
static_assert(called_alike<decltype(Lt::description_set), decltype(&cublasLtMatmulDescSetAttribute)>);
static_assert(called_alike<decltype(Lt::description_destroy), decltype(&cublasLtMatmulDescDestroy)>);
static_assert(called_alike<decltype(Lt::layout_create), decltype(&cublasLtMatrixLayoutCreate)>);
static_assert(called_alike<decltype(Lt::layout_set), decltype(&cublasLtMatrixLayoutSetAttribute)>);
static_assert(called_alike<decltype(Lt::layout_destroy), decltype(&cublasLtMatrixLayoutDestroy)>);
static_assert(called_alike<decltype(Lt::preference_create), decltype(&cublasLtMatmulPreferenceCreate)>);
static_assert(called_alike<decltype(Lt::preference_set), decltype(&cublasLtMatmulPreferenceSetAttribute)>);
static_assert(called_alike<decltype(Lt::preference_destroy), decltype(&cublasLtMatmulPreferenceDestroy)>);
static_assert(called_alike<decltype(Lt::heuristic), decltype(&cublasLtMatmulAlgoGetHeuristic)>);
static_assert(called_alike<decltype(Lt::matmul), decltype(&cublasLtMatmul)>);
static_assert(sizeof(detail::cuda::CublasLtHeuristic) == sizeof(cublasLtMatmulHeuristicResult_t));
static_assert(offsetof(detail::cuda::CublasLtHeuristic, workspace) == offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
static_assert(offsetof(detail::cuda::CublasLtHeuristic, state) == offsetof(cublasLtMatmulHeuristicResult_t, state));
static_assert(CUBLAS_OP_N == 0 && CUBLAS_OP_T == 1);
static_assert(CUBLAS_COMPUTE_32F == detail::cuda::cublas_compute_32f && CUBLAS_COMPUTE_64F == detail::cuda::cublas_compute_64f);
static_assert((CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION) == detail::cuda::cublas_whole_sums);
static_assert(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE == detail::cuda::cublas_lt_sums_in_float && CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK == 3);
static_assert(CUBLAS_GEMM_DEFAULT == detail::cuda::cublas_default_algorithm && CUBLAS_STATUS_NOT_SUPPORTED == detail::cuda::cublas_not_supported);
static_assert(CUDA_R_32F == detail::cuda::cublas_type<float> && CUDA_R_64F == detail::cuda::cublas_type<double>);
static_assert(CUDA_R_16F == detail::cuda::cublas_type<float16> && CUDA_R_16BF == detail::cuda::cublas_type<bfloat16>);
static_assert(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT == 5 && CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET == 6);
static_assert(CUBLASLT_MATMUL_DESC_TRANSA == 3 && CUBLASLT_MATMUL_DESC_TRANSB == 4 && CUBLASLT_MATMUL_DESC_EPILOGUE == 7);
static_assert(CUBLASLT_MATMUL_DESC_BIAS_POINTER == 8 && CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE == 26);
static_assert(CUBLASLT_EPILOGUE_DEFAULT == 1 && CUBLASLT_EPILOGUE_RELU == 2 && CUBLASLT_EPILOGUE_GELU == 32 && CUBLASLT_EPILOGUE_BIAS == 4);
static_assert(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES == 1 && CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES == 5);

// ---- the same on both devices ----------------------------------------------------------------------------------------

template <class T>
double tolerance() {
  return std::is_same_v<T, double> ? 1e-12 : std::is_same_v<T, float> ? 1e-4 : std::is_same_v<T, float16> ? 4e-3 : integer<T> ? 0 : 3e-2;
}

template <class T>
Tensor<T> factor(Shape const& shape, unsigned seed) {
  if constexpr (floating<T>) return (numbers<T>(shape, seed) * 0.1).template to<T>();
  else return numbers<T>(shape, seed);
}

template <class T>
void check(Tensor<T> const& a, Tensor<T> const& b) {
  Tensor<T, Gpu> const x{a}, y{b};
  CHECK(differs(matmul(x, y), matmul(a, b), tolerance<T>()) == "");
}

template <class T>
void check_layouts() {
  auto const a = factor<T>({33, 20}, 1), b = factor<T>({20, 47}, 2);
  check(a, b);
  Tensor<T, Gpu> const x{a}, y{b};
  CHECK(differs(matmul(x, factor<T>({47, 20}, 3).to(Gpu{}).t()), matmul(a, factor<T>({47, 20}, 3).t()), tolerance<T>()) == "");
  CHECK(differs(matmul(x(all(), range(2, 12)), y(range(0, 10), all())), matmul(a(all(), range(2, 12)), b(range(0, 10), all())), tolerance<T>()) == "");
  CHECK(differs(matmul(x.flip(1), y(range(0, 20), range(0, 47, 3))), matmul(a.flip(1), b(range(0, 20), range(0, 47, 3))), tolerance<T>()) == "");
  CHECK(differs(matmul(x[0].expand({5, 20}), y), matmul(a[0].expand({5, 20}), b), tolerance<T>()) == "");
  check(factor<T>({20}, 4), b);
  check(a, factor<T>({20}, 5));
  check(factor<T>({20}, 4), factor<T>({20}, 5));
  check(factor<T>({3, 1, 5, 6}, 6), factor<T>({4, 6, 7}, 7));
  check(factor<T>({2, 0}, 1), factor<T>({0, 3}, 1));
  CHECK(matmul(zeros<T>({0, 3}, Gpu{}), zeros<T>({3, 4}, Gpu{})).shape() == Shape{0, 4});
}

}  // namespace

TEST_CASE("products of any layout are those of the host") {
  check_layouts<float>();
  check_layouts<double>();
  check_layouts<float16>();
  check_layouts<bfloat16>();
  check_layouts<int32_t>();
  check_layouts<int64_t>();
}

TEST_CASE("permuted batches need no copy") {
  auto const q = factor<float>({2, 7, 3, 8}, 1), k = factor<float>({2, 9, 3, 8}, 2);
  Tensor<float, Gpu> const x{q}, y{k};
  CHECK(differs(matmul(x.permute({0, 2, 1, 3}), y.permute({0, 2, 3, 1})), matmul(q.permute({0, 2, 1, 3}), k.permute({0, 2, 3, 1})), 1e-4) == "");
}

TEST_CASE("products on streams of their own bring their working memory, and give what those on the default stream give") {
  Tensor<float16, Gpu> const x{factor<float16>({8, 20000}, 1)}, y{factor<float16>({20000, 8}, 2)};
  Tensor<float16> const expected = matmul(x, y).cpu();
  CHECK(differs(expected, matmul(x.cpu(), y.cpu()), tolerance<float16>()) == "");
  Stream<Gpu> const streams[3];
  std::vector<Tensor<float16, Gpu>> results;
  synchronize(Gpu{});
  int64_t const before = gpu::memory_allocated();
  gpu::reset_peak_memory_stats();
  for (int round = 0; round < 30; ++round) {
    StreamGuard const guard{streams[round % 3]};
    results.push_back(matmul(x, y));
  }
  synchronize(Gpu{});
  CHECK(gpu::max_memory_allocated() - before >= int64_t{4} << 20);
  CHECK(gpu::memory_allocated() - before < int64_t{4} << 20);
  for (auto const& each : results) CHECK(differs(each, expected, 0.0) == "");
}

TEST_CASE_TEMPLATE("linear applies bias and activation", T, float, float16, double) {
  auto const x = factor<T>({5, 33, 64}, 1), w = factor<T>({48, 64}, 2), b = factor<T>({48}, 3);
  Tensor<T, Gpu> const gx{x}, gw{w}, gb{b};
  CHECK(differs(linear(gx, gw), linear(x, w), tolerance<T>()) == "");
  CHECK(differs(linear(gx, gw, gb), linear(x, w, b), tolerance<T>()) == "");
  Tensor<T, Gpu> const packed{factor<T>({49}, 3)};
  CHECK(differs(linear(gx, gw, packed(range(1, 49))), linear(x, w, packed.cpu()(range(1, 49))), tolerance<T>()) == "");  // not on a line of 16 bytes
  CHECK(differs(linear_relu(gx, gw, gb), linear_relu(x, w, b), tolerance<T>()) == "");
  CHECK(differs(linear_relu(gx, gw), linear_relu(x, w), tolerance<T>()) == "");
  CHECK(differs(linear_gelu_tanh(gx, gw, gb), linear_gelu_tanh(x, w, b), 2 * tolerance<T>()) == "");
  CHECK(differs(linear(gx(all(), all(), range(0, 0)), gw(all(), range(0, 0)), gb), linear(x(all(), all(), range(0, 0)), w(all(), range(0, 0)), b)) == "");
}

TEST_CASE("einsum, dot and outer") {
  auto const a = factor<float>({4, 5, 6}, 1), b = factor<float>({4, 6, 7}, 2);
  Tensor<float, Gpu> const x{a}, y{b};
  CHECK(differs(einsum("bij,bjk->bik", x, y), einsum("bij,bjk->bik", a, b), 1e-4) == "");
  CHECK(differs(einsum("bij,cjk->ibck", x, y), einsum("bij,cjk->ibck", a, b), 1e-4) == "");
  CHECK(differs(einsum("bij->jb", x), einsum("bij->jb", a), 1e-4) == "");
  CHECK(differs(dot(x[0][0], y[0](all(), 0)), dot(a[0][0], b[0](all(), 0)), 1e-4) == "");
  CHECK(differs(outer(x[0][0], y[0][0]), outer(a[0][0], b[0][0]), 1e-6) == "");
}

TEST_SUITE("without a gpu") {
  TEST_CASE("a product says that there is no device") { CHECK_THROWS_AS((void)matmul(zeros({2, 3}, Gpu{}), zeros({3, 2}, Gpu{})), DeviceUnavailable); }
}
