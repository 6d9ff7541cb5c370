/// Teams of threads: how a block is shared out between outputs, rows or lines, and how a team joins what its threads have found.
///
/// How work is cut depends on shapes, strides, alignment and constants alone; of rows that only a cluster holds, also on whether the GPU has clusters, and of
/// sums of columns, on how many blocks it runs at once. Nothing is atomic: results are the same from run to run.
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

  SITU_HOST_DEVICE int outputs() const { return block_threads >> bits(); }
  SITU_DEVICE int lane() const { return side_by_side ? thread() & (lanes - 1) : thread() >> (block_bits - bits()); }
  SITU_DEVICE int output() const { return side_by_side ? thread() >> bits() : thread() & (outputs() - 1); }
  SITU_DEVICE int stride() const { return side_by_side ? 1 : outputs(); }
  /// The blocks that so many outputs take.
  int64_t blocks(int64_t count) const { return (count + outputs() - 1) / outputs(); }

 private:
  static constexpr int block_bits = __builtin_ctz(block_threads);
  SITU_HOST_DEVICE int bits() const {
#if defined(__CUDA_ARCH__)
    return 31 - __clz(lanes);
#else
    return __builtin_ctz(static_cast<unsigned>(lanes));
#endif
  }
  SITU_DEVICE static int thread() { return static_cast<int>(threadIdx.x); }
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

/// The same for a kernel of which so many blocks run `at_once`: what makes nearly whole rounds of them, so that none is waited for by a GPU that is
/// mostly idle; up to twice as many blocks as are wanted.
inline int64_t parts_that_fill(int64_t blocks, int64_t at_once, int64_t wanted, int64_t steps, int64_t lanes) {
  int64_t const most = parts_of(blocks, 2 * wanted, steps, lanes);
  if (blocks * most < at_once) return parts_of(blocks, wanted, steps, lanes);
  int64_t best = 1;
  double best_share = 0;
  for (int64_t parts = 1; parts <= most; ++parts) {
    int64_t const all = blocks * parts, rounds = (all + at_once - 1) / at_once;
    double const share = static_cast<double>(all) / static_cast<double>(rounds * at_once);
    if (share > best_share + 0.02) best = parts, best_share = share;
  }
  return best;
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

/// The larger one; a NaN only where both are.
struct larger_number_of {
  SITU_DEVICE float operator()(float a, float b) const { return ::fmaxf(a, b); }
  SITU_DEVICE double operator()(double a, double b) const { return ::fmax(a, b); }
};

/// What several values of a thread become in one meeting.
template <class C, int M>
struct Several {
  C of[M];
};

/// Joins M values of every thread of a team, each in an order that is always the same: lane 0 gets the whole; with ToAll every lane does, which
/// wants an f that commutes. For all threads of a block.
template <bool ToAll, int M, class C, class F>
SITU_DEVICE void join_team(Teams const& teams, C (&mine)[M], F f) {
  int const me = static_cast<int>(threadIdx.x);
  if constexpr (std::is_arithmetic_v<C>) {
    if (teams.side_by_side) {  // in warps, then what the warps of a team have
      int const in_warp = teams.lanes < 32 ? teams.lanes : 32;
#pragma unroll
      for (int step = 16; step > 0; step /= 2) {
        if (step >= in_warp) continue;
#pragma unroll
        for (int m = 0; m < M; ++m) mine[m] = f(mine[m], static_cast<C>(__shfl_xor_sync(0xffffffffu, mine[m], step)));
      }
      if (teams.lanes <= 32) return;
      __shared__ Several<C, M> of_warps[block_threads / 32];
      if (me % 32 == 0) {
#pragma unroll
        for (int m = 0; m < M; ++m) of_warps[me / 32].of[m] = mine[m];
      }
      __syncthreads();
      int const first = teams.output() * (teams.lanes / 32);
#pragma unroll
      for (int m = 0; m < M; ++m) mine[m] = of_warps[first].of[m];
#pragma unroll 1
      for (int k = 1; k < teams.lanes / 32; ++k) {
#pragma unroll
        for (int m = 0; m < M; ++m) mine[m] = f(mine[m], of_warps[first + k].of[m]);
      }
      if constexpr (ToAll) __syncthreads();  // until all have read it
      return;
    }
  }
  __shared__ Several<C, block_threads> parts[M];
  int const lane = teams.lane(), stride = teams.stride();
#pragma unroll
  for (int m = 0; m < M; ++m) parts[m].of[me] = mine[m];
#pragma unroll 1
  for (int half = teams.lanes / 2; half > 0; half /= 2) {
    __syncthreads();
    if (lane >= half) continue;
#pragma unroll
    for (int m = 0; m < M; ++m) parts[m].of[me] = mine[m] = f(mine[m], parts[m].of[me + half * stride]);
  }
  if constexpr (ToAll) {
    __syncthreads();
#pragma unroll
    for (int m = 0; m < M; ++m) mine[m] = parts[m].of[me - lane * stride];
    __syncthreads();  // until all have read it
  }
}
/// The same for one value of every thread.
template <bool ToAll, class Team, class C, class F>
  requires(!std::is_array_v<C>)
SITU_DEVICE C join_team(Team&& team, C const& mine, F f) {
  C all[1] = {mine};
  join_team<ToAll>(team, all, f);
  return all[0];
}

}  // namespace detail::cuda
}  // namespace situ::inline SITU_ABI

#endif
