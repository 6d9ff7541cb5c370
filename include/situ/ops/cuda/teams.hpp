/// Teams of threads: how a block is shared out between outputs, rows or lines, and how a team joins what its threads have found.
///
/// How work is cut depends on shapes, strides and constants alone, never on the GPU, and nothing is atomic: results are the same from run to run.
#pragma once

#include <situ/device/cuda/launch.hpp>

#if defined(__CUDACC__)

namespace situ::inline SITU_ABI {
namespace detail::cuda {

inline constexpr int64_t reduction_blocks = 1024;  // work is cut into parts until there are this many blocks
inline constexpr int chain_length = 32;            // steps of a thread before a floating sum is put aside, in double

/// How the threads of a block are shared out: `lanes` of them work on one output.
struct Teams {
  int lanes;          ///< a power of 2
  bool side_by_side;  ///< the lanes of an output are neighbours; else the outputs are

  SITU_HOST_DEVICE int outputs() const { return block_threads / lanes; }
  SITU_DEVICE int lane() const { return static_cast<int>(side_by_side ? threadIdx.x % static_cast<unsigned>(lanes) : threadIdx.x / static_cast<unsigned>(outputs())); }
  SITU_DEVICE int output() const { return static_cast<int>(side_by_side ? threadIdx.x / static_cast<unsigned>(lanes) : threadIdx.x % static_cast<unsigned>(outputs())); }
  SITU_DEVICE int stride() const { return side_by_side ? 1 : outputs(); }
  /// The blocks that so many outputs take.
  int64_t blocks(int64_t count) const { return (count + outputs() - 1) / outputs(); }
};

/// The least power of 2 that is no less than n, at most `limit`.
inline int power_of_2_above(int64_t n, int limit) {
  int result = 1;
  while (result < limit && result < n) result *= 2;
  return result;
}

/// How many parts each output's `steps` are cut into: enough for `blocks` blocks to become `wanted`, and four steps or more for each lane.
inline int64_t parts_of(int64_t blocks, int64_t wanted, int64_t steps, int64_t lanes) {
  int64_t const parts = blocks < wanted ? (wanted + blocks - 1) / blocks : 1, most = steps / (4 * lanes);
  return parts <= most ? parts : most > 1 ? most : 1;
}

struct larger_of {
  template <class C>
  SITU_DEVICE C operator()(C a, C b) const {
    return a > b || !(a == a) ? a : b;
  }
};
struct sum_of_two {
  template <class C>
  SITU_DEVICE C operator()(C a, C b) const {
    return a + b;
  }
};

/// Joins a value of every thread of a team, in an order that is always the same: lane 0 returns the whole; with ToAll every lane does, which
/// wants an f that commutes. For all threads of a block.
template <bool ToAll, class C, class F>
SITU_DEVICE C join_team(Teams const& teams, C mine, F f) {
  if constexpr (std::is_arithmetic_v<C>) {
    if (teams.side_by_side && teams.lanes <= 32) {
#pragma unroll 1
      for (int step = teams.lanes / 2; step > 0; step /= 2) mine = f(mine, static_cast<C>(__shfl_xor_sync(0xffffffffu, mine, step)));
      return mine;
    }
  }
  __shared__ C parts[block_threads];
  int const me = static_cast<int>(threadIdx.x), lane = teams.lane(), stride = teams.stride();
  parts[me] = mine;
#pragma unroll 1
  for (int half = teams.lanes / 2; half > 0; half /= 2) {
    __syncthreads();
    if (lane < half) parts[me] = mine = f(mine, parts[me + half * stride]);
  }
  if constexpr (ToAll) {
    __syncthreads();
    mine = parts[me - lane * stride];
    __syncthreads();  // until all have read it
  }
  return mine;
}

}  // namespace detail::cuda
}  // namespace situ::inline SITU_ABI

#endif
