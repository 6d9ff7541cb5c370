/// Gathering on a GPU: an element for each thread; index_select moves 16 bytes of a row at a time, from any formula.
///
/// A bad index is recorded in page-locked memory, which the host looks into when it waits for the device the next time.
#pragma once

#include <situ/device/cuda/device.hpp>
#include <situ/expr/cuda/launch.hpp>
#include <situ/ops/cuda/scatter.hpp>
#include <situ/ops/cuda/walk.hpp>

#if defined(__CUDACC__)

namespace situ::inline SITU_ABI {
namespace detail::cuda {

template <class Word, class Ix>
struct GatherArguments {
  GatherProgram<Word, Ix> program;
  IndexWalk<3> walk;
};

template <class Word, class Ix>
__global__ void __launch_bounds__(block_threads) gather_kernel(const __grid_constant__ GatherArguments<Word, Ix> arguments) {
  using Program = GatherProgram<Word, Ix>;
  auto const& program = arguments.program;
  int64_t const p = global_thread();
  if (p >= arguments.walk.count) return;
  int64_t offsets[3];
  arguments.walk.offsets(p, offsets);
  int64_t const position = offsets[Program::indices], given = static_cast<int64_t>(program.index[position]);
  int64_t i = given;
  if (program.bounds.resolve(i)) {
    program.out[p] = program.from[offsets[Program::source] + i * program.axis_stride];
  } else {
    record(program.bounds, given, position);
    program.out[p] = Word{};
  }
}

template <class Word, class Ix>
struct OneHotArguments {
  OneHotProgram<Word, Ix> program;
  int64_t size;
  bool wide;
  WalkedAxis classes;
};

template <class Word, class Ix>
__global__ void __launch_bounds__(block_threads) one_hot_kernel(const __grid_constant__ OneHotArguments<Word, Ix> arguments) {
  auto const& program = arguments.program;
  int64_t const k = global_thread();
  if (k >= arguments.size) return;
  int64_t const p = arguments.classes.quotient(k, arguments.wide);
  int64_t const column = k - p * program.classes, i = static_cast<int64_t>(program.index[p]);
  program.out[k] = i == column ? program.one : Word{};
  if (column == 0 && (i < 0 || i >= program.classes)) record(program.bounds, i, p);
}

/// Rows of the result, `run` elements each; dimension `axis` counts the selected slices, those before and behind it the rest.
template <class P, class Ix>
struct SelectRowsArguments {
  static constexpr int operands = P::leaves + 1;
  typename P::tree_type tree;
  void* data[operands];
  Ix const* index;
  IndexBounds bounds;
  int rank, axis;  ///< of the rows
  bool wide;       ///< more threads than fast division reaches
  int64_t threads, run;
  WalkedAxis chunks;
  WalkedAxis sizes[max_rank];
  int64_t strides[operands][max_rank];
  int64_t run_strides[operands];
  uint64_t vectors;  ///< bit o: operand o takes 16-byte accesses
  explicit SelectRowsArguments(typename P::tree_type const& formula) : tree(formula) {}
  SITU_DEVICE int64_t run_stride(int operand) const { return run_strides[operand]; }
};

template <class P, class Ix>
__global__ void __launch_bounds__(block_threads) select_rows_kernel(const __grid_constant__ SelectRowsArguments<P, Ix> arguments) {
  using A = SelectRowsArguments<P, Ix>;
  using Out = typename P::out_type;
  constexpr int N = lanes_of<P>;
  int64_t const thread = global_thread();
  if (thread >= arguments.threads) return;
  int64_t row = arguments.chunks.quotient(thread, arguments.wide);
  int64_t const column = (thread - row * arguments.chunks.size) * N, left = arguments.run - column;
  int const count = left < N ? static_cast<int>(left) : N;

  int64_t offsets[A::operands];
#pragma unroll
  for (int o = 0; o < A::operands; ++o) offsets[o] = arguments.run_strides[o] * column;
  bool good = true;
#pragma unroll 1
  for (int k = arguments.rank - 1; k >= 0; --k) {
    int64_t const q = arguments.sizes[k].quotient(row, arguments.wide);
    int64_t const place = row - q * arguments.sizes[k].size;
    int64_t from = place;
    row = q;
    if (k == arguments.axis) {
      int64_t const given = static_cast<int64_t>(arguments.index[place]);
      from = given;
      good = arguments.bounds.resolve(from);
      if (!good) record(arguments.bounds, given, place), from = 0;
    }
    offsets[0] += arguments.strides[0][k] * place;
#pragma unroll
    for (int o = 1; o < A::operands; ++o) offsets[o] += arguments.strides[o][k] * from;
  }

  Lanes<Out, N> result;
  result.clear();
  if (good) {
    Held<typename P::tree_type, N> held;
    hold(held, WalkSource<A>{arguments, offsets, count});
#pragma unroll
    for (int j = 0; j < N; ++j) result.insert(j, to_word<Out>(convert_scalar<compute_t<Out>>(Evaluator::value(arguments.tree, held, j, int64_t{0}))));
  }
  Out* const to = static_cast<Out*>(arguments.data[0]) + offsets[0];
  if (count == N && (arguments.vectors & 1)) result.store(to);
  else result.store_each(to, 1, count);
}

}  // namespace detail::cuda

namespace detail {
inline namespace SITU_ABI_COMPILER {

template <class D, class Word, class Ix>
void launch_gather(cuda_kernels, GatherProgram<Word, Ix> const& program) {
  cuda::GatherArguments<Word, Ix> const arguments{program, cuda::IndexWalk<3>(program.space)};
  cuda::launch(device_traits<D>::ordinal, program.bounds.operation, cuda::gather_kernel<Word, Ix>, cuda::blocks_for(arguments.walk.count), cuda::block_threads, arguments);
}

template <class D, class Word, class Ix>
void launch_one_hot(cuda_kernels, OneHotProgram<Word, Ix> const& program) {
  // Without classes every index is wrong, and nothing is there to be written: the kernel looks at the first of them.
  int64_t const size = program.classes > 0 ? program.count * program.classes : program.count;
  cuda::OneHotArguments<Word, Ix> arguments{program, size, size >= cuda::index_limit, {}};
  if (program.classes == 0) return cuda::record_on_host(program.bounds, 0, 0);
  arguments.classes = cuda::WalkedAxis::of(program.classes);
  cuda::launch(device_traits<D>::ordinal, "one_hot", cuda::one_hot_kernel<Word, Ix>, cuda::blocks_for(size), cuda::block_threads, arguments);
}

/// Elements of e along `axis` to a contiguous result; only what is selected is computed.
template <class D, class T, class E, class Ix>
bool launch_index_select(cuda_kernels, T* out, E const& e, int axis, Ix const* index, int64_t selected, IndexBounds const& bounds) {
  using P = Program<tree_of<E>, T, leaf_count<E>>;
  constexpr int N = cuda::lanes_of<P>, operands = P::leaves + 1;
  static_assert(P::leaves < 64, "situ: an expression reads at most 63 tensors; evaluate a part of it first");
  Shape const& shape = e.shape();
  Shape selection = shape;
  selection[axis] = selected;
  int64_t const size = product(selection);
  if (size == 0) return true;
  cuda::SelectRowsArguments<P, Ix> arguments(lower<0>(e));

  // Axes before and behind the selected one are joined among themselves.
  Layout const result{selection};
  int64_t strides[operands][max_rank];
  arguments.data[0] = out;
  for (int k = 0; k < shape.rank(); ++k) strides[0][k] = result.strides[k];
  int o = 1;
  for_each_leaf(e, [&](auto const& leaf) {
    arguments.data[o] = const_cast<void*>(static_cast<void const*>(leaf.data()));
    broadcast_strides(leaf.layout(), shape, strides[o]);
    ++o;
  });
  int const behind = shape.rank() - axis - 1;
  int64_t sizes[max_rank], inner_sizes[max_rank], inner_strides[operands][max_rank];
  arguments.rank = 0;
  for (int k = 0; k < axis; ++k) {
    sizes[k] = shape[k];
    for (o = 0; o < operands; ++o) arguments.strides[o][k] = strides[o][k];
  }
  for (int k = 0; k < behind; ++k) {
    inner_sizes[k] = shape[axis + 1 + k];
    for (o = 0; o < operands; ++o) inner_strides[o][k] = strides[o][axis + 1 + k];
  }
  arguments.axis = coalesce(sizes, &arguments.strides[0][0], operands, axis);
  int const inner_rank = coalesce(inner_sizes, &inner_strides[0][0], operands, behind);
  arguments.rank = arguments.axis;
  auto const add_axis = [&](int64_t extent, auto const& stride) {
    sizes[arguments.rank] = extent;
    for (int p = 0; p < operands; ++p) arguments.strides[p][arguments.rank] = stride(p);
    ++arguments.rank;
  };
  add_axis(selected, [&](int p) { return strides[p][axis]; });
  for (int k = 0; k + 1 < inner_rank; ++k) add_axis(inner_sizes[k], [&](int p) { return inner_strides[p][k]; });
  arguments.run = inner_rank > 0 ? inner_sizes[inner_rank - 1] : 1;
  arguments.chunks = cuda::WalkedAxis::of((arguments.run + N - 1) / N);
  arguments.threads = size / arguments.run * arguments.chunks.size;
  arguments.wide = arguments.threads >= cuda::index_limit;
  for (int k = 0; k < arguments.rank; ++k) arguments.sizes[k] = cuda::WalkedAxis::of(sizes[k]);
  arguments.vectors = 0;
  for (int p = 0; p < operands; ++p) {
    arguments.run_strides[p] = inner_rank > 0 ? inner_strides[p][inner_rank - 1] : 1;
    bool const fits = cuda::takes_vectors(arguments.data[p], cuda::element_sizes<P>.of[p], N, arguments.run_strides[p], arguments.strides[p], arguments.rank);
    if (arguments.run >= N && fits) arguments.vectors |= uint64_t{1} << p;
  }
  arguments.index = index;
  arguments.bounds = bounds;
  cuda::launch(device_traits<D>::ordinal, "index_select", cuda::select_rows_kernel<P, Ix>, cuda::blocks_for(arguments.threads), cuda::block_threads, arguments);
  return true;
}

}  // namespace SITU_ABI_COMPILER
}  // namespace detail
}  // namespace situ::inline SITU_ABI

#endif
