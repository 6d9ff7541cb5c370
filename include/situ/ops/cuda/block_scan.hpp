/// Sums over the threads of a block, and running sums over an array: what selecting and scattering need to know where to write.
#pragma once

#include <situ/device/cuda/launch.hpp>

#if defined(__CUDACC__)

namespace situ::inline SITU_ABI {
namespace detail::cuda {

/// The sum of what the threads before this one bring; `total` is the sum of all. For all threads of a block.
template <int Threads, class T>
SITU_DEVICE T block_sum_before(T mine, T& total) {
  constexpr unsigned all = 0xffffffffu;
  constexpr int warps = Threads / 32;
  __shared__ T sums[warps];
  unsigned const lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  T through = mine;
#pragma unroll
  for (unsigned step = 1; step < 32; step *= 2) {
    T const other = __shfl_up_sync(all, through, step);
    if (lane >= step) through += other;
  }
  __syncthreads();  // `sums` may still be read by an earlier call
  if (lane == 31) sums[warp] = through;
  __syncthreads();
  T before = 0;
  total = 0;
#pragma unroll
  for (unsigned w = 0; w < warps; ++w) {
    if (w < warp) before += sums[w];
    total += sums[w];
  }
  return before + through - mine;
}

inline constexpr int total_before_threads = 1024;

template <class T>
struct TotalBeforeArguments {
  T* values;  ///< `count` of them become the sums of those before; behind them stands the sum of all
  int64_t count;
};

/// By one block, for arrays of block sums.
template <class T>
__global__ void __launch_bounds__(total_before_threads) total_before_kernel(const __grid_constant__ TotalBeforeArguments<T> arguments) {
  T carried = 0;
#pragma unroll 1
  for (int64_t base = 0; base < arguments.count; base += total_before_threads) {
    int64_t const k = base + static_cast<int>(threadIdx.x);
    T const mine = k < arguments.count ? arguments.values[k] : T(0);
    T total;
    T const before = block_sum_before<total_before_threads>(mine, total);
    if (k < arguments.count) arguments.values[k] = carried + before;
    carried += total;
  }
  if (threadIdx.x == 0) arguments.values[arguments.count] = carried;
}

}  // namespace detail::cuda
}  // namespace situ::inline SITU_ABI

#endif
