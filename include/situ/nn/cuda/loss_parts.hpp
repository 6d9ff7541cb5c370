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

struct add_loss_parts {
  SITU_DEVICE LossPart operator()(LossPart const& a, LossPart const& b) const { return {a.loss + b.loss, a.weight + b.weight}; }
};

/// A block's part of the sum. For all threads of a block.
SITU_DEVICE inline void leave_part(LossPart const& mine, LossPart* parts) {
  Teams const whole{block_threads, true};
  LossPart const all = join_team<false>(whole, mine, add_loss_parts{});
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
  for (int64_t k = static_cast<int>(threadIdx.x); k < arguments.blocks; k += block_threads) mine = add_loss_parts{}(mine, arguments.parts[k]);
  Teams const whole{block_threads, true};
  LossPart const all = join_team<false>(whole, mine, add_loss_parts{});
  if (threadIdx.x == 0) arguments.whole.finish(all);
}

}  // namespace detail::cuda
}  // namespace situ::inline SITU_ABI

#endif
