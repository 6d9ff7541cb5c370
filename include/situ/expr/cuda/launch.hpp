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

/// Rows of `inner` elements, the rows numbered over all other axes; a block covers a tile of columns and rows, so that
/// operands which run across the rows find their neighbours in its cache.
struct StridedTiles {
  FastDivisor sizes[max_rank];     ///< of the outer axes
  FastDivisor tile_columns;        ///< tiles side by side
  unsigned rows, inner;
  int outer_rank;                  ///< the innermost axis has this number
  int column_bits;                 ///< a tile is 2^column_bits threads wide
  uint64_t vectors;                ///< bit o: operand o takes 16-byte accesses
};
template <int Operands>
struct StridedOperands : StridedTiles {
  static constexpr int operands = Operands;
  void* data[Operands];
  int strides[Operands][max_rank];
};

template <class P>
using StridedArguments = FormulaArguments<StridedOperands<P::leaves + 1>, typename P::tree_type>;

/// Where a thread stands: how many of its N neighbours exist, the number of the first one, and how far it lies from each operand's first.
template <int N, class A>
SITU_DEVICE __forceinline__ int locate(A const& arguments, int64_t& index, int64_t* offsets) {
  unsigned const tile_row = arguments.tile_columns.quotient(blockIdx.x);
  unsigned const tile_column = blockIdx.x - tile_row * arguments.tile_columns.divisor;
  int const bits = arguments.column_bits;
  unsigned row = tile_row * (static_cast<unsigned>(block_threads) >> bits) + (threadIdx.x >> bits);
  unsigned const column = ((tile_column << bits) + (threadIdx.x & ((1u << bits) - 1))) * N;
  if (row >= arguments.rows || column >= arguments.inner) return 0;
  index = static_cast<int64_t>(row) * arguments.inner + column;
#pragma unroll
  for (int o = 0; o < A::operands; ++o) offsets[o] = static_cast<int64_t>(arguments.strides[o][arguments.outer_rank]) * static_cast<int>(column);
#pragma unroll 1
  for (int k = arguments.outer_rank - 1; k >= 0; --k) {
    unsigned const q = arguments.sizes[k].quotient(row);
    int const place = static_cast<int>(row - q * arguments.sizes[k].divisor);
    row = q;
#pragma unroll
    for (int o = 0; o < A::operands; ++o) offsets[o] += static_cast<int64_t>(arguments.strides[o][k]) * place;
  }
  return arguments.inner - column < N ? static_cast<int>(arguments.inner - column) : N;
}

/// N elements of each input of a tree, neighbours along the innermost axis; number K is operand K + First.
template <class A, int First = 1>
struct StridedSource {
  A const& arguments;
  int64_t const* offsets;
  template <class T, int K, int N>
  SITU_DEVICE __forceinline__ void load(Lanes<T, N>& lanes) const {
    constexpr int o = K + First;
    T const* const from = static_cast<T const*>(arguments.data[o]) + offsets[o];
    int const stride = arguments.strides[o][arguments.outer_rank];
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
  else lanes.store_each(to, arguments.strides[o][arguments.outer_rank], N);
}
/// One element further.
template <class A>
SITU_DEVICE __forceinline__ void step_strided(A const& arguments, int64_t* offsets) {
#pragma unroll
  for (int o = 0; o < A::operands; ++o) offsets[o] += arguments.strides[o][arguments.outer_rank];
}

template <class P>
__global__ void __launch_bounds__(block_threads) strided_kernel(const __grid_constant__ StridedArguments<P> arguments) {
  using Tree = typename P::tree_type;
  using Out = typename P::out_type;
  using Source = StridedSource<StridedOperands<P::leaves + 1>>;
  constexpr int N = lanes_of<P>;
  auto const& operands = arguments.operands;
  int64_t index, offsets[P::leaves + 1];
  int count = locate<N>(operands, index, offsets);
  if (count == N) {
    Held<Tree, N> held;
    hold(held, Source{operands, offsets});
    return store_strided(values_of_lanes<Out>(arguments.tree, held, index), operands, offsets, 0);
  }
#pragma unroll 1
  for (; count > 0; --count, ++index) {  // the end of a row
    Held<Tree, 1> held;
    hold(held, Source{operands, offsets});
    store_strided(values_of_lanes<Out>(arguments.tree, held, index), operands, offsets, 0);
    step_strided(operands, offsets);
  }
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

  /// The width of a tile in threads, as a power of 2: whole rows, or narrow where an operand runs across the rows.
  int column_bits(int64_t columns) const {
    bool across = false;
    for (int o = 0; o < operands; ++o) {
      int64_t const inner = strides[o][rank - 1];
      if (inner <= 1 && inner >= -1) continue;
      for (int k = 0; k + 1 < rank; ++k) across = across || (strides[o][k] != 0 && strides[o][k] < inner && -strides[o][k] < inner);
    }
    int bits = 0;
    while (bits < (across ? 3 : 8) && (int64_t{1} << bits) < columns) ++bits;
    return bits;
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


/// Fills the arguments of a strided kernel whose threads handle `lanes` neighbours; gives the number of its blocks.
SITU_NOINLINE inline dim3 bind_part(StridedTiles& arguments, void** data, int (*strides)[max_rank], StridedSpace const& space, int lanes) {
  arguments.outer_rank = space.rank - 1;
  arguments.inner = static_cast<unsigned>(space.sizes[space.rank - 1]);
  arguments.vectors = 0;
  int64_t rows = 1;
  for (int k = 0; k < space.rank; ++k) {
    if (k + 1 < space.rank) rows *= space.sizes[k], arguments.sizes[k] = FastDivisor::of(space.sizes[k]);
    for (int o = 0; o < space.operands; ++o) strides[o][k] = static_cast<int>(space.strides[o][k]);
  }
  for (int o = 0; o < space.operands; ++o) {
    data[o] = space.data[o];
    if (space.takes_vectors(o, lanes)) arguments.vectors |= uint64_t{1} << o;
  }
  int64_t const columns = (space.sizes[space.rank - 1] + lanes - 1) / lanes;
  int const bits = space.column_bits(columns);
  int64_t const tile_columns = (columns + (int64_t{1} << bits) - 1) >> bits;
  int64_t const tile_rows = (rows + (block_threads >> bits) - 1) / (block_threads >> bits);
  arguments.rows = static_cast<unsigned>(rows);
  arguments.column_bits = bits;
  arguments.tile_columns = FastDivisor::of(tile_columns);
  return dim3(static_cast<unsigned>(tile_columns * tile_rows));
}
template <int Operands>
dim3 bind_part(StridedOperands<Operands>& arguments, StridedSpace const& space, int lanes) {
  return bind_part(arguments, arguments.data, arguments.strides, space, lanes);
}

/// A formula that a kernel takes, with the type of its tree forgotten.
struct KernelTree {
  Formula const* formula;
  void const* tree;
  std::size_t bytes;
  int const* element_sizes;  ///< of the operands
  int lanes;                 ///< neighbouring elements that a thread handles at once
};
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
        dim3 const blocks = bind_part(arguments.operands, part, c.kernels.lanes);
        launch_kernel(c.device, c.kernels.formula, c.kernels.strided, blocks, block_threads, &arguments);
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
  cuda::FormulaKernels const kernels{{&formula_of<typename P::tree_type>, &tree, sizeof tree, cuda::element_sizes<P>.of, cuda::lanes_of<P>},
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
