/// Runs of equal elements in a sorted row on a GPU: tiles are counted, the counts scanned, and every tile written.
#pragma once

#include <situ/ops/cuda/sort.hpp>

#if defined(__CUDACC__)

namespace situ::inline SITU_ABI {
namespace detail::cuda {

inline constexpr int group_items = 8;
inline constexpr int group_tile = group_items * block_threads;

template <class T>
struct GroupsArguments {
  GroupsProblem<T> problem;
  uint32_t* counts;  ///< of each tile; scanned: how many groups begin before it
};

template <class T>
__global__ void __launch_bounds__(block_threads) count_groups_kernel(const __grid_constant__ GroupsArguments<T> a) {
  int64_t const first = static_cast<int64_t>(blockIdx.x) * group_tile;
  int found = 0;
#pragma unroll
  for (int k = 0; k < group_items; ++k) {
    int64_t const i = first + k * block_threads + threadIdx.x;
    found += __syncthreads_count(i < a.problem.n && a.problem.begins(i));
  }
  if (threadIdx.x == 0) a.counts[blockIdx.x] = static_cast<uint32_t>(found);
}

template <class T>
__global__ void __launch_bounds__(block_threads) write_groups_kernel(const __grid_constant__ GroupsArguments<T> a) {
  int64_t const first = static_cast<int64_t>(blockIdx.x) * group_tile;
  int64_t group = static_cast<int64_t>(a.counts[blockIdx.x]) - 1;
#pragma unroll 1
  for (int k = 0; k < group_items; ++k) {
    int64_t const i = first + k * block_threads + threadIdx.x;
    bool const begins = i < a.problem.n && a.problem.begins(i);
    uint32_t const before = block_exclusive_sum(begins ? 1u : 0u);
    int64_t const mine = group + before + (begins ? 1 : 0);
    if (begins) a.problem.begin_group(mine, i);
    if (i < a.problem.n) a.problem.put(mine, i);
    group += __syncthreads_count(begins);
  }
}

template <class T>
__global__ void __launch_bounds__(block_threads) group_lengths_kernel(const __grid_constant__ GroupsProblem<T> problem) {
  int64_t const g = static_cast<int64_t>(blockIdx.x) * block_threads + threadIdx.x;
  if (g < problem.groups) problem.counts[g] = (g + 1 < problem.groups ? problem.starts[g + 1] : problem.n) - problem.starts[g];
}

}  // namespace detail::cuda

namespace detail {
inline namespace SITU_ABI_COMPILER {

inline int64_t group_parts(cuda_kernels, int64_t n) { return (n + cuda::group_tile - 1) / cuda::group_tile; }

/// Counts the groups. Waits for the device, because their number is read back.
template <class D, class T>
int64_t count_groups(cuda_kernels, GroupsProblem<T>& problem, Temporary<D>& totals, int64_t parts) {
  constexpr int device = device_traits<D>::ordinal;
  problem.totals = static_cast<int64_t*>(totals.get());
  auto* const counts = static_cast<uint32_t*>(totals.get());
  cuda::launch(device, "unique", cuda::count_groups_kernel<T>, dim3(static_cast<unsigned>(parts)), cuda::block_threads, cuda::GroupsArguments<T>{problem, counts});
  cuda::launch(device, "unique", cuda::scan_counts_kernel<uint32_t>, dim3(1), cuda::block_threads,
               cuda::CountScanArguments<uint32_t>{counts, counts + parts, 1, static_cast<uint32_t>(parts)});
  uint32_t groups = 0;
  device_traits<D>::copy_to_host(&groups, counts + parts, sizeof groups);
  return groups;
}

template <class D, class T>
void write_groups(cuda_kernels, GroupsProblem<T> const& problem, int64_t parts) {
  constexpr int device = device_traits<D>::ordinal;
  cuda::launch(device, "unique", cuda::write_groups_kernel<T>, dim3(static_cast<unsigned>(parts)), cuda::block_threads,
               cuda::GroupsArguments<T>{problem, reinterpret_cast<uint32_t*>(problem.totals)});
  if (!problem.counts) return;
  unsigned const blocks = static_cast<unsigned>((problem.groups + cuda::block_threads - 1) / cuda::block_threads);
  cuda::launch(device, "unique", cuda::group_lengths_kernel<T>, dim3(blocks), cuda::block_threads, problem);
}

}  // namespace SITU_ABI_COMPILER
}  // namespace detail
}  // namespace situ::inline SITU_ABI

#endif
