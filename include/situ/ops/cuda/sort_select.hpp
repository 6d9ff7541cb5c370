/// The k best of every row on a GPU: a block finds the k-th best key digit by digit, collects what is no worse in order, and the k are sorted.
#pragma once

#include <situ/ops/cuda/sort.hpp>

#if defined(__CUDACC__)

namespace situ::inline SITU_ABI {
namespace detail::cuda {

template <class T>
struct TopkArguments {
  TopkProblem<T> problem;
  T* values;         ///< k of each row, in the order in which they stand
  int64_t* indices;
};

template <class T>
__global__ void __launch_bounds__(block_threads) topk_kernel(const __grid_constant__ TopkArguments<T> a) {
  using K = sort_key_t<T>;
  __shared__ uint32_t counts[256];
  __shared__ unsigned chosen;
  __shared__ uint32_t smaller;
  int const me = static_cast<int>(threadIdx.x);
  int64_t const n = a.problem.n, row = blockIdx.x;
  T const* const from = a.problem.source + row * n;
  K const flip = a.problem.largest ? static_cast<K>(~K(0)) : K(0);
  K prefix = 0;
  uint32_t rank = static_cast<uint32_t>(a.problem.k);  // of the k-th best among those that share the digits above
#pragma unroll 1
  for (int shift = 8 * static_cast<int>(sizeof(K)) - 8; shift >= 0; shift -= 8) {
    K const above = shift + 8 >= 8 * static_cast<int>(sizeof(K)) ? K(0) : static_cast<K>(static_cast<K>(~K(0)) << (shift + 8));
    counts[me] = 0;
    __syncthreads();
    for (int64_t i = me; i < n; i += block_threads) {
      K const key = static_cast<K>(sort_key(from[i]) ^ flip);
      if (((key ^ prefix) & above) == 0) atomicAdd(&counts[static_cast<unsigned>(key >> shift) & 255u], 1u);
    }
    __syncthreads();
    uint32_t const here = counts[me], before = block_exclusive_sum(here);
    if (before < rank && rank <= before + here) chosen = static_cast<unsigned>(me), smaller = before;
    __syncthreads();
    rank -= smaller;
    prefix = static_cast<K>(prefix | static_cast<K>(static_cast<K>(chosen) << shift));
    __syncthreads();
  }
  int64_t taken = row * a.problem.k;  // `rank` of those that equal the k-th best are taken: the first ones
  for (int64_t base = 0; base < n; base += block_threads) {
    int64_t const i = base + me;
    K const key = i < n ? static_cast<K>(sort_key(from[i]) ^ flip) : static_cast<K>(~K(0));
    bool const better = i < n && key < prefix, equal = i < n && key == prefix;
    if (!__syncthreads_or(better || equal)) continue;
    uint32_t const equal_before = block_exclusive_sum(equal ? 1u : 0u);
    bool const take = better || (equal && equal_before < rank);
    uint32_t const place = block_exclusive_sum(take ? 1u : 0u);
    if (take) {
      a.values[taken + place] = from[i];
      a.indices[taken + place] = i;
    }
    taken += __syncthreads_count(take);
    uint32_t const equals = static_cast<uint32_t>(__syncthreads_count(equal));
    rank -= equals < rank ? equals : rank;
  }
}

template <class Index>
struct ComposeArguments {
  Index const* of;   ///< rows of k
  Index* places;     ///< in rows of `of`; become the elements there
  int64_t count, k;
};
template <class Index>
__global__ void __launch_bounds__(block_threads) compose_kernel(const __grid_constant__ ComposeArguments<Index> a) {
  int64_t const t = static_cast<int64_t>(blockIdx.x) * block_threads + threadIdx.x;
  if (t < a.count) a.places[t] = a.of[t / a.k * a.k + a.places[t]];
}

}  // namespace detail::cuda

namespace detail {
inline namespace SITU_ABI_COMPILER {

/// The k best of every row on D, which has CUDA's kernels. 2 k <= n. A few long rows, which a block each would take long for, are sorted.
template <class D, class T>
void launch_topk(cuda_kernels, TopkProblem<T> const& problem) {
  constexpr int device = device_traits<D>::ordinal;
  int64_t const count = problem.rows * problem.k;
  bool const select = problem.rows >= 16 || problem.n <= 65536;
  int64_t const width = select ? problem.k : problem.n;
  auto const elements = static_cast<std::size_t>(problem.rows * width);
  Temporary<D> const values(elements * sizeof(T)), indices(elements * sizeof(int64_t));
  if (!select) {
    launch_sort<true, D>(cuda_kernels{}, SortProblem<T>{problem.source, static_cast<T*>(values.get()), static_cast<int64_t*>(indices.get()), problem.rows, problem.n, 1, problem.largest});
    for (int64_t row = 0; row < problem.rows; ++row) {
      device_traits<D>::copy(problem.values + row * problem.k, static_cast<T*>(values.get()) + row * width, static_cast<std::size_t>(problem.k) * sizeof(T));
      device_traits<D>::copy(problem.indices + row * problem.k, static_cast<int64_t*>(indices.get()) + row * width, static_cast<std::size_t>(problem.k) * sizeof(int64_t));
    }
    return;
  }
  cuda::TopkArguments<T> const found{problem, static_cast<T*>(values.get()), static_cast<int64_t*>(indices.get())};
  cuda::launch(device, "topk", cuda::topk_kernel<T>, dim3(static_cast<unsigned>(problem.rows)), cuda::block_threads, found);
  launch_sort<true, D>(cuda_kernels{}, SortProblem<T>{found.values, problem.values, problem.indices, problem.rows, problem.k, 1, problem.largest});
  cuda::ComposeArguments<int64_t> const compose{found.indices, problem.indices, count, problem.k};
  cuda::launch(device, "topk", cuda::compose_kernel<int64_t>, dim3(static_cast<unsigned>((count + cuda::block_threads - 1) / cuda::block_threads)), cuda::block_threads, compose);
}

}  // namespace SITU_ABI_COMPILER
}  // namespace detail
}  // namespace situ::inline SITU_ABI

#endif
