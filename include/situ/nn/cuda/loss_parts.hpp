/// What the losses share on a GPU: elements as numbers, sums of blocks, and the launch that joins them. Sums do not depend on the GPU.
#pragma once

#include <situ/core/storage.hpp>
#include <situ/nn/loss_program.hpp>
#include <situ/ops/cuda/scatter.hpp>
#include <situ/ops/cuda/teams.hpp>

#if defined(__CUDACC__)

namespace situ::inline SITU_ABI {
namespace detail::cuda {

template <class T>
SITU_DEVICE __forceinline__ compute_t<T> number_at(T const* from, int64_t i) {
  return from_word<T>(reinterpret_cast<word_of<T> const*>(from)[i]);
}
template <class T>
SITU_DEVICE __forceinline__ void put_number(T* to, int64_t i, compute_t<T> value) {
  reinterpret_cast<word_of<T>*>(to)[i] = to_word<T>(value);
}

/// Calls use(numbers, index) for those of n numbers in a row that are a thread's, N neighbours at a time. Four times as many are read before the first
/// are used.
template <int N, class T, class F>
SITU_DEVICE __forceinline__ void for_neighbours(Teams const& teams, T const* from, int64_t n, F const& use) {
  constexpr int rounds = 4;
#pragma unroll 1
  for (int64_t first = int64_t{teams.lane()} * N; first < n; first += rounds * N * teams.lanes) {
    Lanes<T, N> held[rounds];
#pragma unroll
    for (int r = 0; r < rounds; ++r) {
      int64_t const at = first + r * N * teams.lanes;
      if (at < n) held[r].load(from + at);
    }
#pragma unroll
    for (int r = 0; r < rounds; ++r) {
      int64_t const at = first + r * N * teams.lanes;
      if (at >= n) continue;
      compute_t<T> x[N];
#pragma unroll
      for (int j = 0; j < N; ++j) x[j] = from_word<T>(held[r].bits(j));
      use(x, at);
    }
  }
}
/// The same for vectors of 16 bytes, or for one element at a time.
template <class T, class F>
SITU_DEVICE __forceinline__ void for_numbers(Teams const& teams, T const* from, int64_t n, bool vectors, F const& use) {
  if (vectors) for_neighbours<16 / static_cast<int>(sizeof(T))>(teams, from, n, use);
  else for_neighbours<1>(teams, from, n, use);
}

/// For all threads of a block: the sum of what each has, in thread 0.
SITU_DEVICE inline LossPart join_parts(LossPart const& mine) {
  Teams const whole{block_threads, true};
  double sums[] = {mine.loss, mine.weight};
  join_team<false>(whole, sums, sum_of_two{});
  return {sums[0], sums[1]};
}
/// A block's part of the sum. For all threads of a block.
SITU_DEVICE inline void leave_part(LossPart const& mine, LossPart* parts) {
  LossPart const all = join_parts(mine);
  if (threadIdx.x == 0) parts[blockIdx.x] = all;
}

template <class Program>
struct JoinLossesArguments {
  Program whole;
  LossPart const* parts;
  int64_t blocks;
};
template <class Program>
__global__ void __launch_bounds__(block_threads) join_losses_kernel(const __grid_constant__ JoinLossesArguments<Program> arguments) {
  LossPart mine{0, 0};
#pragma unroll 1
  for (int64_t k = static_cast<int>(threadIdx.x); k < arguments.blocks; k += block_threads) {
    mine.loss += arguments.parts[k].loss;
    mine.weight += arguments.parts[k].weight;
  }
  LossPart const all = join_parts(mine);
  if (threadIdx.x == 0) arguments.whole.finish(all);
}

}  // namespace detail::cuda
}  // namespace situ::inline SITU_ABI

#endif
