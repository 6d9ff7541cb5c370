/// The kernel of contiguous operands: every thread moves 16 bytes of the widest one at a time, several of them in flight.
#pragma once

#include <situ/device/cuda/launch.hpp>
#include <situ/expr/cuda/arguments.hpp>

#if defined(__CUDACC__)

namespace situ::inline SITU_ABI {
namespace detail::cuda {

/// How many times a thread of the contiguous kernel does so: about four loads are in flight, and few registers are held.
template <class P>
inline constexpr int rounds_of = lanes_of<P> > 4 || P::leaves > 3 ? 1 : P::leaves <= 1 ? 4 : 2;

/// What a kernel that moves contiguous elements is told but its tree and its operands, and how it is launched.
struct ContiguousSpace {
  int64_t count;
  bool vectors;  ///< every operand is aligned to its lanes
};

/// Plans one whose threads handle `lanes` neighbours `rounds` times; `repeated` has the bits of operands that are one element. Gives the
/// number of threads in a block.
SITU_NOINLINE inline int bind_contiguous(ContiguousSpace& space, int device, void* const* data, int const* element_sizes, int operands, uint64_t repeated, int64_t count,
                                         int lanes, int rounds) {
  space.count = count;
  space.vectors = true;
  for (int o = 0; o < operands; ++o) {
    bool const aligned = reinterpret_cast<std::uintptr_t>(data[o]) % static_cast<std::size_t>(lanes * element_sizes[o]) == 0;
    space.vectors = space.vectors && (aligned || (repeated >> o & 1u));
  }
  int threads = block_threads;
  int64_t const full = full_grid(device);
  while (threads > 64 && count <= full / 2 * threads * rounds * lanes / 4) threads /= 2;  // spread small work over more multiprocessors
  return threads;
}
/// The blocks that it takes.
inline dim3 contiguous_blocks(ContiguousSpace const& space, int threads, int lanes, int rounds) {
  int64_t const chunk = int64_t{threads} * rounds * lanes;
  return dim3(static_cast<unsigned>((space.count + chunk - 1) / chunk));
}

template <int Operands>
struct ContiguousOperands : ContiguousSpace {
  void* data[Operands];
};

/// The chunk of elements that a block handles, `lanes` of them at a time and `rounds` times; and those that it handles one at a time, side by
/// side: what is behind the last whole vector, or all where operands do not take vectors. Places in it are 32 bits wide.
struct ContiguousChunk {
  int64_t first;  ///< the number of its first element
  int left;       ///< how many there are
  SITU_DEVICE __forceinline__ ContiguousChunk(ContiguousSpace const& space, int lanes, int rounds) {
    int const most = static_cast<int>(blockDim.x) * lanes * rounds;
    first = static_cast<int64_t>(blockIdx.x) * most;
    left = space.count - first < most ? static_cast<int>(space.count - first) : most;
  }
  SITU_DEVICE __forceinline__ int first_single(ContiguousSpace const& space, int lanes) const {
    return (space.vectors ? left - left % lanes : 0) + static_cast<int>(threadIdx.x);
  }
};

/// The elements of the operands from that place of a chunk on.
struct ContiguousSource {
  void* const* data;
  int64_t first;
  int place;
  template <class T, int K, int N>
  SITU_DEVICE __forceinline__ void load(Lanes<T, N>& lanes) const {
    lanes.load(static_cast<T const*>(data[K + 1]) + first + place);
  }
};

template <class P>
using ContiguousArguments = FormulaArguments<ContiguousOperands<P::leaves + 1>, typename P::tree_type>;
template <class P>
__global__ void __launch_bounds__(block_threads) contiguous_kernel(const __grid_constant__ ContiguousArguments<P> arguments) {
  using Tree = typename P::tree_type;
  auto const& operands = arguments.operands;
  using Out = typename P::out_type;
  constexpr int N = lanes_of<P>, rounds = rounds_of<P>;
  ContiguousChunk const chunk(operands, N, rounds);
  int const step = static_cast<int>(blockDim.x) * N, origin = static_cast<int>(threadIdx.x) * N;
  Out* const to = static_cast<Out*>(operands.data[0]) + chunk.first;
  if (operands.vectors) {
    Held<Tree, N> held[rounds];
#pragma unroll
    for (int r = 0; r < rounds; ++r) {  // all loads come before the first store, which might write to the same memory
      int const at = origin + r * step;
      if (at + N <= chunk.left) hold(held[r], ContiguousSource{operands.data, chunk.first, at});
    }
#pragma unroll
    for (int r = 0; r < rounds; ++r) {
      int const at = origin + r * step;
      if (at + N <= chunk.left) values_of_lanes<Out>(arguments.tree, held[r], chunk.first + at).store(to + at);
    }
  }
#pragma unroll 1
  for (int at = chunk.first_single(operands, N); at < chunk.left; at += static_cast<int>(blockDim.x)) {
    Held<Tree, 1> held;
    hold(held, ContiguousSource{operands.data, chunk.first, at});
    values_of_lanes<Out>(arguments.tree, held, chunk.first + at).store(to + at);
  }
}

}  // namespace detail::cuda
}  // namespace situ::inline SITU_ABI

#endif
