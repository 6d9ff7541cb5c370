/// Launching a Program on a GPU. Each expression has two kernels, shared by all devices:
///
/// contiguous  every thread moves 16 bytes of the widest operand at a time, several of them in flight
/// strided     axes are walked with fast division; along the innermost one a thread still handles as many neighbours,
///             with 16-byte accesses for the operands that allow it
#pragma once

#include <situ/device/cuda/launch.hpp>
#include <situ/expr/cuda/evaluate.hpp>
#include <situ/expr/formula.hpp>

#if defined(__CUDACC__)

namespace situ::inline SITU_ABI {
namespace detail::cuda {

inline constexpr int64_t index_limit = int64_t{1} << 31;  // what 32-bit indices and FastDivisor reach

/// How many neighbouring elements a thread handles at once.
template <class P>
inline constexpr int lanes_of =
    16 / (widest_input<typename P::tree_type> > static_cast<int>(sizeof(typename P::out_type)) ? widest_input<typename P::tree_type>
                                                                                                : static_cast<int>(sizeof(typename P::out_type)));

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

inline constexpr int max_tree_bytes = 4096;

/// What a kernel of a formula takes: its operands, and behind them its tree. The host makes it with the tree's type forgotten.
template <class Operands, class Tree>
struct FormulaArguments {
  Operands operands;
  alignas(16) Tree tree;
  static_assert(sizeof(Tree) <= max_tree_bytes, "situ: the numbers and functions of an expression take at most 4096 bytes; evaluate a part of it first");
  static_assert(alignof(Tree) <= 16, "situ: what is mapped over tensors must be aligned to at most 16 bytes");
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

/// N values of a tree, as what memory holds.
template <class Out, class Tree, int N>
SITU_DEVICE __forceinline__ Lanes<Out, N> values_of_lanes(Tree const& tree, Held<Tree, N> const& held, int64_t index) {
  Lanes<Out, N> result;
  result.clear();
#pragma unroll
  for (int j = 0; j < N; ++j) {
    result.insert(j, to_word<Out>(convert_scalar<compute_t<Out>>(Evaluator::value(tree, held, j, index))));
  }
  return result;
}

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

/// Rows of `inner` elements, the rows numbered over all other axes; a block covers a tile of columns and rows. An operand that runs across the rows is
/// first copied, tile by tile, to shared memory, so that it is read along the axis where its elements are neighbours. Axis 0 is the innermost one here.
struct StridedTiles {
  FastDivisor sizes[max_rank];     ///< of the outer axes
  FastDivisor tile_columns;        ///< tiles side by side
  unsigned rows, inner;
  int outer_rank;
  int column_bits;                 ///< a tile is 2^column_bits threads wide
  int rounds;                      ///< how many rows each of its threads handles
  uint64_t vectors;                ///< bit o: operand o takes 16-byte accesses
  uint64_t staged;                 ///< bit o: operand o goes through shared memory
};
template <int Operands>
struct StridedOperands : StridedTiles {
  static constexpr int operands = Operands;
  void* data[Operands];
  int strides[Operands][max_rank];    ///< 0 along axis 1 where there is none
  unsigned char size_bits[Operands];  ///< elements have 2^size_bits bytes
};

template <class P>
using StridedArguments = FormulaArguments<StridedOperands<P::leaves + 1>, typename P::tree_type>;

inline constexpr int most_rounds = 4;  ///< where no operand runs across
inline constexpr int staged_rows = 64, staged_column_bits = 3;  ///< of a tile where an operand goes through shared memory
/// The bytes from one column of such a tile to the next: a word more than it has, so that the threads of a warp meet in few banks.
SITU_HOST_DEVICE constexpr unsigned staged_pitch(unsigned element_bytes) { return staged_rows * element_bytes + (element_bytes < 4 ? 4 : element_bytes); }
/// What an operand's tile takes at most: as many columns as 16 bytes have elements, for every thread across it.
inline constexpr unsigned staged_bytes = staged_pitch(1) * (16u << staged_column_bits);
inline constexpr int most_staged = 5;  ///< operands: 48 KiB hold their tiles

/// The memory that the threads of a block share, as much as its launch asked for.
SITU_DEVICE __forceinline__ char* memory_of_block() {
#if defined(__CUDA_ARCH__)
  extern __shared__ uint4 shared_by_block[];
#else
  static uint4 shared_by_block[48 * 1024 / 16];  // what compilers of the host see
#endif
  return reinterpret_cast<char*>(shared_by_block);
}

/// What is staged of operand o: columns of staged_rows elements.
SITU_DEVICE __forceinline__ char* staged_tile(uint64_t staged, int o) {
  uint64_t const before = staged & ((uint64_t{1} << o) - 1);
#if defined(__CUDA_ARCH__)
  unsigned count;
  asm volatile("popc.b64 %0, %1;" : "=r"(count) : "l"(before));  // where it is wanted: it is not made ready ahead of a branch
#else
  auto const count = static_cast<unsigned>(__popcll(before));
#endif
  return memory_of_block() + count * staged_bytes;
}

/// Starts to copy 4 bytes to shared memory, where compute capability 8.0 has a way past the registers.
SITU_DEVICE __forceinline__ void start_copy(char* to, char const* from) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(from) : "memory");
#else
  *reinterpret_cast<unsigned*>(to) = *reinterpret_cast<unsigned const*>(from);
#endif
}
/// Until what this thread has started to copy is there.
SITU_DEVICE __forceinline__ void await_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

/// Where a thread stands in a tile: its first element.
struct TilePlace {
  unsigned row, column;
};

/// The tile of a block and the part of it that a thread handles: N neighbours in each of `rounds` rows.
template <int N, class A>
struct StridedTile {
  A const& arguments;
  unsigned first_row, first_column;  ///< of the tile
  SITU_DEVICE __forceinline__ explicit StridedTile(A const& a, unsigned block = blockIdx.x) : arguments(a) {
    unsigned const tile_row = a.tile_columns.quotient(block);
    first_row = tile_row * (rows_of_round() * static_cast<unsigned>(a.rounds));
    first_column = ((block - tile_row * a.tile_columns.divisor) << a.column_bits) * N;
  }
  SITU_DEVICE __forceinline__ unsigned rows_of_round() const { return static_cast<unsigned>(block_threads) >> arguments.column_bits; }

  /// Calls f(integral_constant of how many neighbours, the first one's place, its number, how far it lies from each operand's first) for what this
  /// thread handles: N at a time, but one at the end of a row.
  template <class F>
  SITU_DEVICE __forceinline__ void for_each(F const& f) const {
    constexpr bool steps = A::operands <= 3;  // from row to row
    int64_t index = 0, offsets[A::operands];
    int count = 0;
#pragma unroll 1
    for (int round = 0; round < arguments.rounds; ++round) {
      unsigned block = blockIdx.x, thread = threadIdx.x;
      if constexpr (!steps) asm volatile("" : "+r"(block), "+r"(thread));  // begins anew: many operands leave no registers for what rounds have in common
      StridedTile const here(arguments, block);
      TilePlace const place{(thread >> arguments.column_bits) + static_cast<unsigned>(round) * rows_of_round(), (thread & ((1u << arguments.column_bits) - 1)) * N};
      if (!steps || round == 0 || arguments.outer_rank > 1) {
        count = here.locate(place, index, offsets);
      } else {
        if (count == 0 || first_row + place.row >= arguments.rows) return;
        index += static_cast<int64_t>(rows_of_round()) * arguments.inner;
#pragma unroll
        for (int o = 0; o < A::operands; ++o) offsets[o] += static_cast<int64_t>(arguments.strides[o][1]) * static_cast<int>(rows_of_round());
      }
      if (count == N) {
        f(std::integral_constant<int, N>{}, place, index, offsets);
        continue;
      }
      int64_t single[A::operands];
#pragma unroll
      for (int o = 0; o < A::operands; ++o) single[o] = offsets[o];
#pragma unroll 1
      for (int k = 0; k < count; ++k) {
        f(std::integral_constant<int, 1>{}, TilePlace{place.row, place.column + static_cast<unsigned>(k)}, index + k, single);
#pragma unroll
        for (int o = 0; o < A::operands; ++o) single[o] += arguments.strides[o][0];
      }
    }
  }

  /// How many of the N neighbours at that place exist, the number of the first one, and how far it lies from each operand's first.
  SITU_DEVICE __forceinline__ int locate(TilePlace const& place, int64_t& index, int64_t* offsets) const {
    unsigned const row = first_row + place.row, column = first_column + place.column;
    if (row >= arguments.rows || column >= arguments.inner) return 0;
    index = static_cast<int64_t>(row) * arguments.inner + column;
#pragma unroll
    for (int o = 0; o < A::operands; ++o) offsets[o] = static_cast<int64_t>(arguments.strides[o][0]) * static_cast<int>(column);
    walk_rows(row, [&](int k, unsigned at) {
#pragma unroll
      for (int o = 0; o < A::operands; ++o) offsets[o] += static_cast<int64_t>(arguments.strides[o][k]) * static_cast<int>(at);
    });
    return arguments.inner - column < N ? static_cast<int>(arguments.inner - column) : N;
  }
  /// Calls f(k, place along axis k) for the outer axes, where a row stands.
  template <class F>
  SITU_DEVICE __forceinline__ void walk_rows(unsigned row, F const& f) const {
    if (arguments.outer_rank <= 1) return f(1, row);
    int k = 1;
#pragma unroll 1
    for (; k < arguments.outer_rank; ++k) {
      unsigned const q = arguments.sizes[k].quotient(row);
      f(k, row - q * arguments.sizes[k].divisor);
      row = q;
    }
    f(k, row);
  }

  /// Brings the tile of every operand that wants it to shared memory, in words of 4 bytes: half an element, one, or those of several rows. For all threads
  /// of the block.
  SITU_DEVICE __forceinline__ void stage() const {
    if (arguments.staged == 0) return;
#pragma unroll 1
    for (uint64_t left = arguments.staged; left != 0; left &= left - 1) {
      int const o = __ffsll(static_cast<long long>(left)) - 1;
      static_assert(staged_rows == 1 << 6);
      unsigned const size_bits = arguments.size_bits[o], words_bits = 4 + size_bits;  // a column has 2^words_bits words, one for each of neighbouring threads
      unsigned const byte = (threadIdx.x & ((1u << words_bits) - 1)) * 4, step = static_cast<unsigned>(block_threads) >> words_bits;
      unsigned const row = first_row + (byte >> size_bits), end = arguments.inner - first_column;
      unsigned const columns = end < N << staged_column_bits ? end : N << staged_column_bits;
      if (row >= arguments.rows) continue;
      unsigned column = threadIdx.x >> words_bits;
      int64_t const stride = arguments.strides[o][0];
      int64_t offset = stride * (first_column + column);
      walk_rows(row, [&](int k, unsigned place) { offset += static_cast<int64_t>(arguments.strides[o][k]) * static_cast<int>(place); });
      char const* from = static_cast<char const*>(arguments.data[o]) + (offset << size_bits) + (byte & ((1u << size_bits) - 1));
      char* to = staged_tile(arguments.staged, o) + column * staged_pitch(1u << size_bits) + byte;
#pragma unroll 4
      for (; column < columns; column += step) {
        start_copy(to, from);
        to += step * staged_pitch(1u << size_bits);
        from += stride * static_cast<int64_t>(step << size_bits);
      }
    }
    await_copies();
    __syncthreads();
  }
};

/// N elements of each input of a tree, neighbours along the innermost axis; number K is operand K + First.
template <class A, int First = 1>
struct StridedSource {
  A const& arguments;
  int64_t const* offsets;
  TilePlace place;
  template <class T, int K, int N>
  SITU_DEVICE __forceinline__ void load(Lanes<T, N>& lanes) const {
    constexpr int o = K + First;
    if (arguments.staged >> o & 1) {
      constexpr unsigned pitch = staged_pitch(sizeof(T));
      char const* const tile = staged_tile(arguments.staged, o) + place.column * pitch;
      return lanes.load_each(reinterpret_cast<T const*>(tile) + place.row, pitch / static_cast<unsigned>(sizeof(T)), N);
    }
    T const* const from = static_cast<T const*>(arguments.data[o]) + offsets[o];
    int const stride = arguments.strides[o][0];
    if (N == 1 || (arguments.vectors >> o & 1)) lanes.load(from);
    else if (stride == 0) lanes.load_one(from);
    else lanes.load_each(from, stride, N);
  }
};
/// The way back, to operand o.
template <class T, int N, class A>
SITU_DEVICE __forceinline__ void store_strided(Lanes<T, N> const& lanes, A const& arguments, int64_t const* offsets, int o) {
  T* const to = static_cast<T*>(arguments.data[o]) + offsets[o];
  if (N == 1 || (arguments.vectors >> o & 1)) lanes.store(to);
  else lanes.store_each(to, arguments.strides[o][0], N);
}
template <class P>
__global__ void __launch_bounds__(block_threads) strided_kernel(const __grid_constant__ StridedArguments<P> arguments) {
  using Tree = typename P::tree_type;
  using Out = typename P::out_type;
  using Operands = StridedOperands<P::leaves + 1>;
  auto const& operands = arguments.operands;
  StridedTile<lanes_of<P>, Operands> const tile(operands);
  tile.stage();
  tile.for_each([&]<int N>(std::integral_constant<int, N>, TilePlace const& place, int64_t index, int64_t const* offsets) {
    Held<Tree, N> held;
    hold(held, StridedSource<Operands>{operands, offsets, place});
    store_strided(values_of_lanes<Out>(arguments.tree, held, index), operands, offsets, 0);
  });
}

/// Whether a stride is beyond what 32-bit strides reach.
inline bool is_far(int64_t stride) { return stride >= index_limit || stride <= -index_limit; }

/// The untyped part of a geometry, for what is decided once for all kernels.
struct StridedSpace {
  int operands, rank;
  void* data[64];
  int64_t sizes[max_rank];
  int64_t strides[64][max_rank];
  int const* element_sizes;

  template <int Operands>
  StridedSpace(Geometry<Operands> const& where, int const* element_sizes)
      : StridedSpace(where.data, where.sizes, where.strides, Operands, where.rank, element_sizes) {}
  SITU_NOINLINE StridedSpace(void* const* data_from, int64_t const* sizes_from, int64_t const (*strides_from)[max_rank], int operand_count, int axes,
                             int const* element_sizes)
      : operands(operand_count), rank(axes), element_sizes(element_sizes) {
    for (int k = 0; k < rank; ++k) sizes[k] = sizes_from[k];
    for (int o = 0; o < operands; ++o) {
      data[o] = data_from[o];
      for (int k = 0; k < rank; ++k) strides[o][k] = strides_from[o][k];
    }
  }

  /// Moves operand pointers by `steps` along axis k.
  void advance(int k, int64_t steps) {
    for (int o = 0; o < operands; ++o) data[o] = static_cast<char*>(data[o]) + steps * strides[o][k] * element_sizes[o];
  }

  /// Calls run(context, part) on parts of the space that 32-bit indices and strides reach: nearly always on all of it.
  SITU_NOINLINE void for_each_part(void (*run)(void*, StridedSpace const&), void* context) {
    for (int k = 0; k < rank; ++k) {
      bool far = false;
      for (int o = 0; o < operands; ++o) far = far || is_far(strides[o][k]);
      if (!far) continue;
      int64_t const size = sizes[k];
      for (int o = 0; size == 1 && o < operands; ++o) strides[o][k] = 0;
      if (size == 1) continue;
      for (int64_t i = 0; i < size; ++i) {
        StridedSpace part = *this;
        part.advance(k, i);
        part.sizes[k] = 1;
        for (int o = 0; o < operands; ++o) part.strides[o][k] = 0;
        part.for_each_part(run, context);
      }
      return;
    }
    int64_t count = 1;
    int cut = -1;
    for (int k = rank - 1; k >= 0; --k) {
      if (sizes[k] > 1) cut = k;  // the outermost axis that has anything to cut
      count = sizes[k] < index_limit && count < index_limit ? count * sizes[k] : index_limit;
    }
    if (count < index_limit) return run(context, *this);
    StridedSpace head = *this;
    int64_t const half = sizes[cut] / 2;
    head.sizes[cut] = half;
    head.for_each_part(run, context);
    advance(cut, half);
    sizes[cut] -= half;
    for_each_part(run, context);
  }

  /// Whether operand o may be accessed `lanes` elements at once along the innermost axis.
  bool takes_vectors(int o, int lanes) const {
    bool result = strides[o][rank - 1] == 1 && reinterpret_cast<std::uintptr_t>(data[o]) % static_cast<std::size_t>(lanes * element_sizes[o]) == 0;
    for (int k = 0; k + 1 < rank; ++k) result = result && strides[o][k] % lanes == 0;
    return result;
  }

  /// The outer axis along which operand o, which runs across the rows, has its neighbours; -1 where it does not.
  int axis_across(int o) const {
    int result = -1;
    int64_t least = magnitude(o, rank - 1);
    for (int k = 0; k + 1 < rank; ++k) {
      if (strides[o][k] != 0 && magnitude(o, k) < least) least = magnitude(o, k), result = k;
    }
    return result;
  }
  int64_t magnitude(int o, int k) const { return strides[o][k] < 0 ? -strides[o][k] : strides[o][k]; }

  /// Puts outer axis k behind the other ones.
  void put_last(int k) {
    for (; k + 2 < rank; ++k) {
      std::swap(sizes[k], sizes[k + 1]);
      for (int o = 0; o < operands; ++o) std::swap(strides[o][k], strides[o][k + 1]);
    }
  }

  /// Whether operand o goes through shared memory: its neighbours lie along the last outer axis, in whole words where they are small, and far apart along
  /// the innermost one.
  bool is_staged(int o, int64_t columns) const {
    int const size = element_sizes[o], across = rank - 2;
    if (rank < 2 || sizes[across] < staged_rows / 4 || columns < 1 << staged_column_bits || magnitude(o, rank - 1) * size < 64) return false;
    if (size >= 4) return strides[o][across] != 0 && magnitude(o, across) * size <= 16;
    int const rows = 4 / size;
    bool words = strides[o][across] == 1 && sizes[across] % rows == 0 && reinterpret_cast<std::uintptr_t>(data[o]) % 4 == 0;
    for (int k = 0; k < rank; ++k) words = words && (k == across || strides[o][k] % rows == 0);
    return words;
  }
};

/// Whether a space of so many elements and operands, whose strides are max_rank apart, is launched in parts, each of which counts its elements from 0.
SITU_NOINLINE inline bool needs_parts(int64_t const* strides, int operands, int rank, int64_t size) {
  bool far = size >= index_limit;
  for (int o = 0; o < operands; ++o) {
    for (int k = 0; k < rank; ++k) far = far || is_far(strides[o * max_rank + k]);
  }
  return far;
}

/// How many bytes an element of each operand has.
template <int Operands>
struct ElementSizes {
  int of[Operands];
};
template <class P>
constexpr ElementSizes<P::leaves + 1> element_sizes_of_program() {
  ElementSizes<P::leaves + 1> sizes{{static_cast<int>(sizeof(typename P::out_type))}};
  for (int k = 0; k < P::leaves; ++k) sizes.of[k + 1] = input_size(std::type_identity<typename P::tree_type>{}, k);
  return sizes;
}
template <class P>
inline constexpr auto element_sizes = element_sizes_of_program<P>();


/// A formula that a kernel takes, with the type of its tree forgotten.
struct KernelTree {
  Formula const* formula;
  void const* tree;
  std::size_t bytes;
  int const* element_sizes;  ///< of the operands
  int lanes;                 ///< neighbouring elements that a thread handles at once
  bool counts;               ///< it reads the numbers of elements
};

/// Fills the arguments of a strided kernel of a formula whose inputs are the operands from number `first` on; gives the number of its blocks.
SITU_NOINLINE inline dim3 bind_part(StridedTiles& arguments, void** data, int (*strides)[max_rank], unsigned char* size_bits, StridedSpace& space, int device,
                                    KernelTree const& kernels, int first) {
  int const lanes = kernels.lanes;
  int64_t const columns = (space.sizes[space.rank - 1] + lanes - 1) / lanes;
  bool across = false;
  for (int i = 0; i < space.operands && !across; ++i) {  // inputs first
    int const k = space.axis_across((first + i) % space.operands);
    across = k >= 0;
    if (across && !kernels.counts) space.put_last(k);
  }
  arguments.outer_rank = space.rank - 1;
  arguments.inner = static_cast<unsigned>(space.sizes[space.rank - 1]);
  arguments.vectors = arguments.staged = 0;
  int64_t rows = 1;
  for (int k = 0; k < space.rank; ++k) {
    int const axis = space.rank - 1 - k;
    if (k > 0) rows *= space.sizes[axis], arguments.sizes[k] = FastDivisor::of(space.sizes[axis]);
    for (int o = 0; o < space.operands; ++o) strides[o][k] = static_cast<int>(space.strides[o][axis]);
  }
  int staged = 0;
  for (int o = 0; o < space.operands; ++o) {
    uint64_t const bit = uint64_t{1} << o;
    data[o] = space.data[o];
    size_bits[o] = static_cast<unsigned char>(__builtin_ctz(static_cast<unsigned>(space.element_sizes[o])));
    if (space.rank == 1) strides[o][1] = 0;
    if (space.takes_vectors(o, lanes)) arguments.vectors |= bit;
    if (o < first || staged == most_staged || !space.is_staged(o, columns)) continue;
    ++staged;
    arguments.staged |= bit;
  }
  // A tile is as wide as rows are, but narrow where an operand runs across them, so that its neighbours are found in the cache.
  int bits = 0;
  while (bits < (across ? staged_column_bits : 8) && (int64_t{1} << bits) < columns) ++bits;
  int64_t const rows_of_round = block_threads >> bits, tile_columns = (columns + (int64_t{1} << bits) - 1) >> bits;
  auto const blocks = [&](int rounds) { return tile_columns * ((rows + rows_of_round * rounds - 1) / (rows_of_round * rounds)); };
  int rounds = 1;
  if (arguments.staged) rounds = staged_rows / static_cast<int>(rows_of_round);
  else while (!across && rounds < most_rounds && blocks(2 * rounds) >= 2 * full_grid(device)) rounds *= 2;
  arguments.rows = static_cast<unsigned>(rows);
  arguments.column_bits = bits;
  arguments.rounds = rounds;
  arguments.tile_columns = FastDivisor::of(tile_columns);
  return dim3(static_cast<unsigned>(blocks(rounds)));
}
/// Launches it, by `name`.
template <int Operands, class Arguments>
void launch_part(int device, LaunchName const& name, void const* kernel, Arguments& arguments, StridedSpace const& part, KernelTree const& kernels, int first) {
  StridedOperands<Operands>& to = arguments.operands;
  StridedSpace space = part;
  dim3 const blocks = bind_part(to, to.data, to.strides, to.size_bits, space, device, kernels, first);
  unsigned const shared = static_cast<unsigned>(__builtin_popcountll(to.staged)) * staged_bytes;
  launch_kernel(device, name, kernel, blocks, block_threads, &arguments, 1, shared);
}

/// What the kernel takes.
template <class Operands>
struct FormulaBytes {
  Operands operands;
  alignas(16) unsigned char tree[max_tree_bytes];
  explicit FormulaBytes(KernelTree const& from) { __builtin_memcpy(tree, from.tree, from.bytes); }
};

/// With its two kernels.
struct FormulaKernels : KernelTree {
  void const* contiguous;
  void const* strided;
  int rounds;  ///< how many times a thread of the contiguous one handles `lanes` elements
};

/// Launches a formula of so many tensors, where the operands are contiguous and elsewhere.
template <int Operands>
SITU_NOINLINE void launch_contiguous(int device, FormulaKernels const& kernels, Geometry<Operands> const& where) {
  FormulaBytes<ContiguousOperands<Operands>> arguments(kernels);
  auto& to = arguments.operands;
  __builtin_memcpy(to.data, where.data, sizeof to.data);
  int const threads = bind_contiguous(to, device, to.data, kernels.element_sizes, Operands, 0, where.sizes[0], kernels.lanes, kernels.rounds);
  launch_kernel(device, kernels.formula, kernels.contiguous, contiguous_blocks(to, threads, kernels.lanes, kernels.rounds), threads, &arguments);
}
template <int Operands>
SITU_NOINLINE void launch_strided(int device, FormulaKernels const& kernels, Geometry<Operands> const& where) {
  StridedSpace space(where, kernels.element_sizes);
  struct Context {
    int device;
    FormulaKernels const& kernels;
  } context{device, kernels};
  space.for_each_part(
      [](void* self, StridedSpace const& part) {
        auto const& c = *static_cast<Context const*>(self);
        FormulaBytes<StridedOperands<Operands>> arguments(c.kernels);
        launch_part<Operands>(c.device, c.kernels.formula, c.kernels.strided, arguments, part, c.kernels, 1);
      },
      &context);
}

}  // namespace detail::cuda

namespace detail {
inline namespace SITU_ABI_COMPILER {

/// Runs a formula, bound to where its operands lie, on D, which has CUDA's kernels: enqueued on the device's current stream.
template <class D, class P>
void launch_elementwise(cuda_kernels, typename P::tree_type const& tree, Geometry<P::leaves + 1> const& where) {
  static_assert(P::leaves < 64, "situ: an expression reads at most 63 tensors; evaluate a part of it first");
  if (where.size() == 0) return;
  constexpr int device = device_traits<D>::ordinal;
  cuda::FormulaKernels const kernels{{&formula_of<typename P::tree_type>, &tree, sizeof tree, cuda::element_sizes<P>.of, cuda::lanes_of<P>, cuda::counts_elements<typename P::tree_type>},
                                     reinterpret_cast<void const*>(&cuda::contiguous_kernel<P>),
                                     reinterpret_cast<void const*>(&cuda::strided_kernel<P>),
                                     cuda::rounds_of<P>};
  if (where.contiguous) cuda::launch_contiguous(device, kernels, where);
  else cuda::launch_strided(device, kernels, where);
}

}  // namespace SITU_ABI_COMPILER
}  // namespace detail
}  // namespace situ::inline SITU_ABI

#endif
