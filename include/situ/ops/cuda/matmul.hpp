/// Running products on a GPU: floating types by cuBLAS, with an epilogue by cuBLASLt; integers by a kernel of tiles in shared memory.
#pragma once

#include <situ/expr/evaluate.hpp>
#include <situ/ops/cuda/cublas.hpp>
#include <situ/ops/matmul_plan.hpp>

#if defined(__CUDACC__)

namespace situ::inline SITU_ABI {
namespace detail::cuda {

inline constexpr int tile_side = 16;

/// Integers are multiplied as unsigned numbers, which wrap.
template <class T>
using wrapping_t = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

template <class T>
struct TiledArguments {
  T const* a;
  T const* b;
  T* c;
  int64_t m, n, k, a_i, a_k, b_k, b_j;
  int64_t tiles_across, tiles, batches;
  int rank;
  int64_t sizes[max_rank], a_step[max_rank], b_step[max_rank], c_step[max_rank];
};

template <class T>
__global__ void __launch_bounds__(block_threads) tiled_product_kernel(const __grid_constant__ TiledArguments<T> p) {
  using W = wrapping_t<T>;
  __shared__ W x[tile_side][tile_side + 1], y[tile_side][tile_side + 1];
  int const row = static_cast<int>(threadIdx.x) / tile_side, column = static_cast<int>(threadIdx.x) % tile_side;
#pragma unroll 1
  for (int64_t item = blockIdx.x; item < p.tiles * p.batches; item += gridDim.x) {
    int64_t batch = item / p.tiles;
    int64_t const tile = item - batch * p.tiles;
    int64_t const i = tile / p.tiles_across * tile_side + row, j = tile % p.tiles_across * tile_side + column;
    T const* a = p.a;
    T const* b = p.b;
    T* c = p.c;
#pragma unroll 1
    for (int axis = p.rank - 1; axis >= 0; --axis) {
      int64_t const place = batch % p.sizes[axis];
      batch /= p.sizes[axis];
      a += place * p.a_step[axis], b += place * p.b_step[axis], c += place * p.c_step[axis];
    }
    W sum = 0;
#pragma unroll 1
    for (int64_t k = 0; k < p.k; k += tile_side) {
      x[row][column] = i < p.m && k + column < p.k ? static_cast<W>(a[i * p.a_i + (k + column) * p.a_k]) : W(0);
      y[row][column] = j < p.n && k + row < p.k ? static_cast<W>(b[(k + row) * p.b_k + j * p.b_j]) : W(0);
      __syncthreads();
#pragma unroll
      for (int l = 0; l < tile_side; ++l) sum += x[row][l] * y[l][column];
      __syncthreads();
    }
    if (i < p.m && j < p.n) c[i * p.n + j] = static_cast<T>(sum);
  }
}

template <class T>
void tiled_product(int device, ProductPlan const& plan, T const* a, T const* b, T* c) {
  TiledArguments<T> p{a, b, c, plan.m, plan.n, plan.k, plan.a_i, plan.a_k, plan.b_k, plan.b_j, 0, 0, plan.batches(), plan.rank, {}, {}, {}, {}};
  for (int axis = 0; axis < plan.rank; ++axis) {
    p.sizes[axis] = plan.sizes[axis];
    p.a_step[axis] = plan.a[axis], p.b_step[axis] = plan.b[axis], p.c_step[axis] = plan.c[axis];
  }
  p.tiles_across = (plan.n + tile_side - 1) / tile_side;
  p.tiles = p.tiles_across * ((plan.m + tile_side - 1) / tile_side);
  int64_t const blocks = p.tiles * p.batches < (int64_t{1} << 30) ? p.tiles * p.batches : int64_t{1} << 30;
  launch(device, "matmul", tiled_product_kernel<T>, dim3(static_cast<unsigned>(blocks)), block_threads, p);
}

}  // namespace detail::cuda
}  // namespace situ::inline SITU_ABI

#endif

namespace situ::inline SITU_ABI {
namespace functions {
struct relu;
struct gelu_tanh;
}  // namespace functions

namespace detail {
inline namespace SITU_ABI_COMPILER {

#if defined(SITU_WITH_CUDA)

/// Runs a planned product of floating numbers whose matrices cuBLAS can take. Gives whether the epilogue has been applied.
template <class Activation, class T>
bool cublas_launch(int device, ProductPlan const& plan, cuda::CublasProduct one, T const* a, T const* b, T* c, T const* bias) {
  constexpr uint32_t activation = std::is_same_v<Activation, functions::relu> ? 2 : std::is_same_v<Activation, functions::gelu_tanh> ? 32 : 0;
  int longest = 0;  // this axis is the batch of one call
  for (int axis = 1; axis < plan.rank; ++axis) longest = plan.sizes[axis] > plan.sizes[longest] ? axis : longest;
  int64_t calls = 1;
  for (int axis = 0; axis < plan.rank; ++axis) calls *= axis == longest ? 1 : plan.sizes[axis];
  one.batches = plan.rank > 0 ? plan.sizes[longest] : 1;
  one.a_step = plan.rank > 0 ? plan.a[longest] : 0, one.b_step = plan.rank > 0 ? plan.b[longest] : 0;
  one.c_step = plan.rank > 0 ? plan.c[longest] : plan.m * plan.n;
  bool epilogue = bias || activation != 0;
#if defined(__CUDACC__)
  if (activation == 32 && sizeof(T) == 8) epilogue = false;  // cuBLASLt's gelu of double is right to 32 bits only; a kernel of situ's does better
#endif
  for (int64_t call = 0; call < calls; ++call) {
    int64_t rest = call, at_a = 0, at_b = 0, at_c = 0;
    for (int axis = plan.rank - 1; axis >= 0; --axis) {
      if (axis == longest) continue;
      int64_t const place = rest % plan.sizes[axis];
      rest /= plan.sizes[axis];
      at_a += place * plan.a[axis], at_b += place * plan.b[axis], at_c += place * plan.c[axis];
    }
    one.a = a + at_a, one.b = b + at_b, one.c = c + at_c;
    cuda::ObservedWork work(device, cuda::current_stream(device), "matmul (cuBLAS)");
    if (epilogue && cuda::cublas_lt_product<T>(device, one, bias, activation)) {
      work.enqueued();
      continue;
    }
    if (epilogue && call > 0) fail<CudaError>("cuda:", device, ": cublasLtMatmulAlgoGetHeuristic finds an algorithm for some of these products only");
    epilogue = false;
    cuda::cublas_product<T>(device, one);
    work.enqueued();
  }
  return epilogue || (!bias && activation == 0);
}

/// Runs a planned product on D, which has CUDA's kernels; enqueued on the device's current stream. `c` is contiguous; `bias` is null or has
/// an element for each column. Gives whether bias and activation have been applied.
template <class D, class Activation, class T>
bool launch_product(cuda_kernels, ProductPlan const& plan, T const* a, T const* b, T* c, T const* bias) {
  constexpr int device = device_traits<D>::ordinal;
  int64_t const count = extended(extended(plan.batches(), plan.m), plan.n);
  constexpr bool plain = std::is_same_v<Activation, identity>;
  if (count == 0) return true;
  if (plan.k == 0) {
    cuda::DeviceGuard const guard(device);
    cuda::check(device, cudaMemsetAsync(c, 0, static_cast<std::size_t>(count) * sizeof(T), cuda::current_stream(device)), "cudaMemsetAsync");
    return plain && !bias;
  }
  if constexpr (floating<T>) {
    auto const bound = [&](ProductPlan const& p) {
      return cuda::CublasProduct{p.m, p.n, p.k, {p.m, p.k, p.a_i, p.a_k}, {p.k, p.n, p.b_k, p.b_j}, nullptr, nullptr, nullptr, 0, 0, 0, 1};
    };
    cuda::CublasProduct const product = bound(plan);
    if (product.left.how >= 0 && product.right.how >= 0) return cublas_launch<Activation>(device, plan, product, a, b, c, bias);
#if defined(__CUDACC__)
    // Packed once: each operand with its own batches, row-major.
    ProductPlan packed = plan;
    auto const pack = [&](T const* from, int64_t rows, int64_t columns, int64_t& row_step, int64_t& column_step, int64_t* steps, int64_t* old) {
      Layout source{Shape{}, Shape{}};
      int64_t size = rows * columns;
      for (int axis = 0; axis < plan.rank; ++axis) source.shape.push_back(old[axis] == 0 ? 1 : plan.sizes[axis]), source.strides.push_back(old[axis]);
      for (int axis = plan.rank - 1; axis >= 0; --axis) steps[axis] = old[axis] == 0 ? 0 : size, size *= source.shape[axis];
      source.shape.push_back(rows), source.strides.push_back(row_step);
      source.shape.push_back(columns), source.strides.push_back(column_step);
      row_step = columns, column_step = 1;
      auto result = Tensor<T, D>::uninitialized(source.shape, "matmul");
      evaluate<D>(result.data(), result.layout(), true, Tensor<T, D>::from_handle(make_view({}, const_cast<T*>(from), source)));
      return result;
    };
    Tensor<T, D> packed_a, packed_b;
    if (product.left.how < 0) packed_a = pack(a, plan.m, plan.k, packed.a_i, packed.a_k, packed.a, packed.a), a = packed_a.data();
    if (product.right.how < 0) packed_b = pack(b, plan.k, plan.n, packed.b_k, packed.b_j, packed.b, packed.b), b = packed_b.data();
    return cublas_launch<Activation>(device, packed, bound(packed), a, b, c, bias);
#else
    fail<LayoutError>("matmul: cuBLAS takes matrices with one axis without gaps, and an operand has strides ", Shape{plan.a_i, plan.a_k}, " or ",
                      Shape{plan.b_k, plan.b_j}, ": compile the file with nvcc, which makes a kernel that packs it, or pass a contiguous tensor");
#endif
  } else {
#if defined(__CUDACC__)
    cuda::tiled_product(device, plan, a, b, c);
    return plain && !bias;
#else
    static_assert(compiled_by_nvcc<T>, "situ: multiplying_integers_on_Cuda_needs_nvcc: this file is not compiled by nvcc; name it .cu, or move the tensors "
                                       "to the host; floating types need no nvcc");
    return false;
#endif
  }
}

#else

/// Without SITU_WITH_CUDA there are no such tensors: making one is the error.
template <class D, class Activation, class T>
bool launch_product(cuda_kernels, ProductPlan const&, T const*, T const*, T*, T const*) {
  return true;
}

#endif

}  // namespace SITU_ABI_COMPILER
}  // namespace detail
}  // namespace situ::inline SITU_ABI
