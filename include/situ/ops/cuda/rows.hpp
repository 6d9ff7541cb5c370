/// Operations on rows on a GPU: one kernel, in which a warp, a part of one, or a block works on each row.
///
/// A row that fits the registers of its team is read once: up to 32 floats for each thread, in runs of neighbours with 16-byte accesses where
/// memory allows it. A longer row is read twice: once for its statistics, which every thread gathers on line, and once for its elements. Where
/// such rows are too few to fill the GPU, each is cut into parts for several blocks, and the kernel is launched twice: for the statistics of
/// the parts, then to join them, in every block, and write. Rows that lie side by side in the output are taken by neighbouring threads, so
/// that accesses coalesce.
#pragma once

#include <situ/core/storage.hpp>
#include <situ/ops/cuda/row_math.hpp>
#include <situ/ops/cuda/teams.hpp>
#include <situ/ops/cuda/walk.hpp>
#include <situ/ops/row_program.hpp>

#if defined(__CUDACC__)

namespace situ::inline SITU_ABI {
namespace detail::cuda {

/// Bytes of a row that a thread keeps; fewer in strips, where each element has an address of its own.
template <bool Strips>
inline constexpr int row_registers = Strips ? 64 : 128;

enum class row_pass { whole, statistics, elements };

template <class P>
struct RowArguments {
  static constexpr int operands = P::leaves + 1;
  using Part = typename TeamMath<typename P::op_type>::Part;
  typename P::tree_type tree;
  typename P::op_type op;
  void* data[operands];
  int64_t strides[operands][max_rank];  ///< the axes that number the rows, then those along them
  WalkedAxis sizes[max_rank];
  int kept, run_axis;       ///< run_axis is the last one
  bool wide;                ///< numbers exceed 31 bits
  row_pass pass;
  int64_t rows, length;
  int64_t run, runs, steps; ///< the last extent; how many threads' worth of neighbours it is; of a whole row
  int64_t steps_per_part;
  int count;                ///< of parts
  Part* parts;              ///< of all rows
  Teams teams;
  uint64_t vectors;         ///< bit o: operand o takes 16-byte accesses
  RowArguments(typename P::tree_type const& tree, typename P::op_type const& op) : tree(tree), op(op) {}
  SITU_DEVICE int64_t run_stride(int operand) const { return strides[operand][run_axis]; }
};

/// How many neighbours a thread takes at once.
template <class P, bool Strips>
inline constexpr int row_lanes = Strips ? 1 : lanes_of<P>;

/// N neighbouring elements of a row: where they lie, and how many there are.
template <class P, int N>
struct RowStep {
  int64_t offsets[P::leaves + 1];
  int64_t first;
  int count;

  SITU_DEVICE __forceinline__ RowStep(RowArguments<P> const& arguments, int64_t const* base, int64_t step) {
    int64_t line = 0, at = step;
    if (arguments.runs < arguments.steps) line = step / arguments.runs, at = step - line * arguments.runs;
    int64_t const left = step < arguments.steps ? arguments.run - at * N : 0;
    count = left < N ? static_cast<int>(left) : N;
    first = line * arguments.run + at * N;
#pragma unroll
    for (int o = 0; o <= P::leaves; ++o) offsets[o] = base[o] + arguments.run_stride(o) * (at * N);
    if (line > 0) walk<0>(arguments, arguments.kept, arguments.run_axis, line, offsets);
  }
  template <class C>
  SITU_DEVICE __forceinline__ void read(RowArguments<P> const& arguments, C* x) const {
    Held<typename P::tree_type, N> held;
    hold(held, WalkSource<RowArguments<P>>{arguments, offsets, count});
#pragma unroll
    for (int j = 0; j < N; ++j) x[j] = C(0);
    if (count <= 0) return;  // what a map calls is not called for what is not there
#pragma unroll
    for (int j = 0; j < N; ++j) x[j] = convert_scalar<C>(convert_scalar<typename P::tree_type::value_type>(Evaluator::value(arguments.tree, held, j, first)));
  }
  template <class C>
  SITU_DEVICE __forceinline__ void write(RowArguments<P> const& arguments, C const* y) const {
    using Out = typename P::out_type;
    Lanes<Out, N> result;
    result.clear();
#pragma unroll
    for (int j = 0; j < N; ++j) result.insert(j, to_word<Out>(y[j]));
    Out* const to = static_cast<Out*>(arguments.data[0]) + offsets[0];
    if (N > 1 && count == N && (arguments.vectors & 1)) result.store(to);
    else result.store_each(to, arguments.run_stride(0), count);
  }
};

template <class P, bool Strips, bool Once>
__global__ void __launch_bounds__(block_threads) rows_kernel(const __grid_constant__ RowArguments<P> arguments) {
  using Op = typename P::op_type;
  using C = typename Op::compute;
  constexpr int N = row_lanes<P, Strips>, K = row_registers<Strips> / (N * static_cast<int>(sizeof(C)));
  Teams const teams = arguments.teams;
  int const lane = teams.lane();
  int64_t const row = static_cast<int64_t>(blockIdx.x) * teams.outputs() + teams.output();
  bool const mine = row < arguments.rows;  // all threads of a block stay: teams meet
  int64_t base[P::leaves + 1] = {};
  if (mine) walk<0>(arguments, 0, arguments.kept, row, base);
  TeamMath<Op> math;
  if constexpr (Once) {
    C x[K][N];
    int counts[K];
#pragma unroll
    for (int c = 0; c < K; ++c) {
      int64_t const number = lane + static_cast<int64_t>(c) * teams.lanes;
      counts[c] = 0;
#pragma unroll
      for (int j = 0; j < N; ++j) x[c][j] = 0;
      if (!mine || number >= arguments.steps) continue;
      RowStep<P, N> const step(arguments, base, number);
      counts[c] = step.count;
      step.read(arguments, x[c]);
    }
    math.gather(arguments.op, teams, x, counts, arguments.length);
#pragma unroll
    for (int c = 0; c < K; ++c) {
      if (counts[c] == 0) continue;
      RowStep<P, N> const step(arguments, base, lane + static_cast<int64_t>(c) * teams.lanes);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        if (j < counts[c]) x[c][j] = math.value_of_held(arguments.op, x[c][j], step.first + j);
      }
      step.write(arguments, x[c]);
    }
  } else {
    int64_t const first = static_cast<int64_t>(blockIdx.y) * arguments.steps_per_part, last = first + arguments.steps_per_part;
    int64_t const end = !mine ? 0 : last < arguments.steps ? last : arguments.steps;
    C x[N] = {};
    if (mine) RowStep<P, N>(arguments, base, 0).read(arguments, x);
    math.start(arguments.op, x[0]);
    typename TeamMath<Op>::Part part = TeamMath<Op>::nothing();
    if (arguments.pass == row_pass::elements) {
#pragma unroll 1
      for (int k = lane; mine && k < arguments.count; k += teams.lanes) part = TeamMath<Op>::merge(part, arguments.parts[row * arguments.count + k]);
    } else {
      int chain = 0;
#pragma unroll 1
      for (int64_t number = first + lane; number < end; number += teams.lanes) {
        RowStep<P, N> const step(arguments, base, number);
        step.read(arguments, x);
        math.step(arguments.op, x, step.count);
        if (++chain % chain_length == 0) math.flush();
      }
      part = math.collected();
    }
    part = TeamMath<Op>::join(teams, part);
    if (arguments.pass == row_pass::statistics) {
      if (mine && lane == 0) arguments.parts[row * arguments.count + blockIdx.y] = part;
      return;
    }
    math.finish(arguments.op, part, arguments.length);
#pragma unroll 1
    for (int64_t number = first + lane; number < end; number += teams.lanes) {
      RowStep<P, N> const step(arguments, base, number);
      step.read(arguments, x);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        if (j < step.count) x[j] = math.value(arguments.op, x[j], step.first + j);
      }
      step.write(arguments, x);
    }
  }
}

template <class D, class P, bool Strips>
void launch_rows(P const& program) {
  constexpr int device = device_traits<D>::ordinal;
  using C = typename P::op_type::compute;
  constexpr int operands = P::leaves + 1, N = row_lanes<P, Strips>, K = row_registers<Strips> / (N * static_cast<int>(sizeof(C)));
  RowArguments<P> arguments(program.tree, program.op);
  int order[max_rank];  // the axis across a strip numbers rows, too
  for (int k = 0; k < program.where.rank; ++k) order[k] = !Strips || k < program.kept ? k : k == program.kept ? program.where.rank - 1 : k - 1;
  arguments.kept = program.kept + (Strips ? 1 : 0);
  arguments.run_axis = program.where.rank - 1;
  arguments.rows = program.rows * program.columns;
  arguments.length = program.length;
  arguments.wide = arguments.rows >= index_limit || arguments.length >= index_limit;
  for (int k = 0; k < program.where.rank; ++k) {
    arguments.sizes[k] = WalkedAxis::of(program.where.sizes[order[k]]);
    for (int o = 0; o < operands; ++o) arguments.strides[o][k] = program.where.strides[o][order[k]];
  }
  arguments.run = arguments.sizes[arguments.run_axis].size;
  arguments.runs = (arguments.run + N - 1) / N;
  arguments.steps = arguments.length / arguments.run * arguments.runs;
  arguments.vectors = 0;
  for (int o = 0; o < operands; ++o) {
    arguments.data[o] = program.where.data[o];
    auto const& strides = arguments.strides[o];
    if (takes_vectors(arguments.data[o], element_sizes<P>.of[o], N, strides[arguments.run_axis], strides, arguments.run_axis)) arguments.vectors |= uint64_t{1} << o;
  }
  Teams& teams = arguments.teams;
  teams.side_by_side = !Strips;
  if (Strips) {
    teams.lanes = block_threads / power_of_2_above(program.columns, 32);
  } else {  // a warp or a part of it where that holds a row, else as many threads as hold one
    teams.lanes = power_of_2_above(arguments.steps, 32);
    while (teams.lanes < block_threads && teams.lanes * K < arguments.steps) teams.lanes *= 2;
  }
  int64_t const blocks = teams.blocks(arguments.rows);
  dim3 const grid(static_cast<unsigned>(blocks));
  arguments.pass = row_pass::whole;
  arguments.steps_per_part = arguments.steps;
  arguments.count = 1;
  arguments.parts = nullptr;
  char const* const name = P::op_type::name;
  if (arguments.steps <= int64_t{teams.lanes} * K) return launch(device, name, rows_kernel<P, Strips, true>, grid, block_threads, arguments);

  // Twice the blocks cost a second launch: rows are cut where they leave half of the GPU idle.
  int64_t parts = blocks <= reduction_blocks / 4 ? parts_of(blocks, reduction_blocks, arguments.steps, teams.lanes) : 1;
  arguments.steps_per_part = (arguments.steps + parts - 1) / parts;
  parts = (arguments.steps + arguments.steps_per_part - 1) / arguments.steps_per_part;
  arguments.count = static_cast<int>(parts);
  if (parts == 1) return launch(device, name, rows_kernel<P, Strips, false>, grid, block_threads, arguments);
  Temporary<D> const memory(static_cast<std::size_t>(arguments.rows * parts) * sizeof(typename RowArguments<P>::Part));
  arguments.parts = static_cast<typename RowArguments<P>::Part*>(memory.get());
  for (row_pass pass : {row_pass::statistics, row_pass::elements}) {
    arguments.pass = pass;
    launch(device, name, rows_kernel<P, Strips, false>, dim3(grid.x, static_cast<unsigned>(parts)), block_threads, arguments);
  }
}

}  // namespace detail::cuda

namespace detail {
inline namespace SITU_ABI_COMPILER {

/// Runs a bound operation on rows on D, which has CUDA's kernels: one launch, or two for few long rows; enqueued on the device's current stream.
template <class D, class P>
void launch_rows(cuda_kernels, P const& program) {
  if (program.rows == 0 || program.length == 0 || program.columns == 0) return;
  if (program.strips) cuda::launch_rows<D, P, true>(program);
  else cuda::launch_rows<D, P, false>(program);
}

}  // namespace SITU_ABI_COMPILER
}  // namespace detail
}  // namespace situ::inline SITU_ABI

#endif
