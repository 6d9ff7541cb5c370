/// The kernel of operands of any strides: axes are walked with fast division; along the innermost one a thread handles as many neighbours as the contiguous
/// kernel, with 16-byte accesses for the operands that allow it. Operands that run across the rows go through shared memory.
#pragma once

#include <situ/device/cuda/launch.hpp>
#include <situ/expr/cuda/arguments.hpp>

#if defined(__CUDACC__)

namespace situ::inline SITU_ABI {
namespace detail::cuda {

inline constexpr int64_t index_limit = int64_t{1} << 31;  // what 32-bit indices and FastDivisor reach

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

}  // namespace detail::cuda
}  // namespace situ::inline SITU_ABI

#endif
