/// Operations on rows on a GPU: one kernel, in which a warp, a part of one, or a block works on each row.
///
/// A row that lies along one axis and fits the registers of its team is read once: 32 floats for each thread, up to 16384 for a block, and up to 131072
/// for a cluster of blocks where the GPU has clusters; twice as many 16-bit floats. A longer row is read twice: once for its statistics, which every thread gathers on line, and
/// once for its elements. Where such rows are too few to fill the GPU, each is cut into parts for several blocks, and the kernel is launched twice: for
/// the statistics of the parts, then to join them, in every block, and write.
///
/// Neighbouring threads take neighbouring vectors of 16 bytes where every operand lets them, else neighbouring elements; where rows lie side by side
/// in the output, elements of neighbouring rows. So accesses coalesce.
#pragma once

#include <situ/core/storage.hpp>
#include <situ/ops/cuda/clusters.hpp>
#include <situ/ops/cuda/row_math.hpp>
#include <situ/ops/cuda/teams.hpp>
#include <situ/ops/cuda/walk.hpp>
#include <situ/ops/row_program.hpp>

#if defined(__CUDACC__)

namespace situ::inline SITU_ABI {
namespace detail::cuda {

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
  int kept, run_axis;        ///< run_axis is the last one
  bool wide;                 ///< numbers exceed 31 bits
  row_pass pass;
  int64_t rows, length;
  int64_t run, steps;        ///< the last extent; how many vectors, or else elements, a row is
  int64_t steps_per_part;
  int count;                 ///< of parts
  Part* parts;               ///< of all rows
  Teams teams;
  uint64_t repeated;         ///< bit o: of operand o, of several inputs, a row is one element
  RowArguments(typename P::tree_type const& tree, typename P::op_type const& op) : tree(tree), op(op) {}
  SITU_DEVICE int64_t run_stride(int operand) const { return strides[operand][run_axis]; }
};

/// How many neighbours a thread takes at once: a vector of each operand, or one element.
template <class P, bool Vectors>
inline constexpr int row_lanes = Vectors ? lanes_of<P> : 1;

/// N neighbours of leaf K, which is operand K + 1, from its offset on.
template <class P>
struct RowSource {
  RowArguments<P> const& arguments;
  int64_t const* offsets;
  template <class T, int K, int N>
  SITU_DEVICE __forceinline__ void load(Lanes<T, N>& lanes) const {
    T const* const from = static_cast<T const*>(arguments.data[K + 1]) + offsets[K + 1];
    if (N > 1 && P::leaves > 1 && (arguments.repeated >> (K + 1) & 1)) lanes.load_one(from);
    else lanes.load(from);
  }
};

/// Where step `number` of a row lies in each operand, whose row begins at `base`. Vectors lie side by side, or are one element; rows of several lines
/// are walked.
template <class P, bool Vectors, bool OneLine>
struct RowOffsets {
  int64_t of[P::leaves + 1];
  SITU_DEVICE __forceinline__ RowOffsets(RowArguments<P> const& arguments, int64_t const* base, int64_t number) {
#pragma unroll
    for (int o = 0; o <= P::leaves; ++o) {
      bool const stays = Vectors && P::leaves > 1 && (arguments.repeated >> o & 1);
      of[o] = base[o] + (stays ? 0 : Vectors ? number * row_lanes<P, true> : OneLine ? number * arguments.run_stride(o) : 0);
    }
    if constexpr (!Vectors && !OneLine) walk<0>(arguments, arguments.kept, arguments.run_axis + 1, number, of);
  }
};

/// What the tree makes of N neighbours that are held, as it is computed: 16-bit floats are not rounded on the way.
template <class P, int N, class C>
SITU_DEVICE __forceinline__ void evaluate_held(RowArguments<P> const& arguments, Held<typename P::tree_type, N> const& held, int64_t first, C (&x)[N]) {
#pragma unroll
  for (int j = 0; j < N; ++j) x[j] = convert_scalar<C>(Evaluator::value(arguments.tree, held, j, first));
}
/// N neighbours of the output.
template <class P, int N, class C>
SITU_DEVICE __forceinline__ void write_row(RowArguments<P> const& arguments, int64_t offset, C const (&y)[N]) {
  store_neighbours(static_cast<typename P::out_type*>(arguments.data[0]) + offset, y);
}

/// Reads the numbers of a row of one line that fits the registers of its team; what a thread has not is absent.
template <class P, bool Vectors, class C, int K, int N>
SITU_DEVICE __forceinline__ void read_row(RowArguments<P> const& arguments, RowShare const& share, int64_t const* base, HeldNumbers<C, K, N>& x) {
  using Tree = typename P::tree_type;
  constexpr int at_once = P::leaves <= 2 ? K : 8 < P::leaves * N ? 1 : 8 / (P::leaves * N);  // steps whose loads come first: registers are few
#pragma unroll
  for (int first = 0; first < K; first += at_once) {
    if (share.ends_before<1>(first)) break;
    Held<Tree, N> held[at_once];
#pragma unroll
    for (int c = 0; c < at_once; ++c) {
      if (share.ends_before<N>(first + c)) break;
      if (share.has(first + c)) hold(held[c], RowSource<P>{arguments, RowOffsets<P, Vectors, true>(arguments, base, share.number(first + c)).of});
    }
#pragma unroll
    for (int c = 0; c < at_once; ++c) {
      if (share.ends_before<N>(first + c)) break;
#pragma unroll
      for (int j = 0; j < N; ++j) x.numbers[first + c][j] = TeamMath<typename P::op_type>::absent();
      if (share.has(first + c)) evaluate_held(arguments, held[c], int64_t{share.number(first + c)} * N, x.numbers[first + c]);  // no map is called for what is not there
    }
  }
}
template <class P, bool Vectors, class T, int K, int N>
SITU_DEVICE __forceinline__ void read_row(RowArguments<P> const& arguments, RowShare const& share, int64_t const* base, PackedNumbers<T, K, N>& x) {
#pragma unroll
  for (int c = 0; c < K; ++c) {
    if (share.ends_before<N>(c)) break;
#pragma unroll
    for (int j = 0; j < N; ++j) x.numbers[c].words[j / 2] = to_word<T>(TeamMath<typename P::op_type>::absent()) * 0x10001u;  // in both halves
    if (share.has(c)) x.numbers[c].load(static_cast<T const*>(arguments.data[1]) + base[1] + int64_t{share.number(c)} * N);
  }
}

/// A row of one line that fits the registers of its team.
template <class P, bool Vectors, class X, class Team>
SITU_DEVICE __forceinline__ void hold_row(RowArguments<P> const& arguments, Team& teams, RowShare const& share, int64_t row) {
  int64_t base[P::leaves + 1] = {};
  if (share.steps > 0) walk<0>(arguments, 0, arguments.kept, row, base);
  X x;
  read_row<P, Vectors>(arguments, share, base, x);
  TeamMath<typename P::op_type> math;
  math.gather(arguments.op, teams, x, share, arguments.length);
#pragma unroll
  for (int c = 0; c < X::steps; ++c) {
    if (share.ends_before<X::lanes>(c)) break;
    if (!share.has(c)) continue;
    typename P::op_type::compute y[X::lanes];
    math.held_values(arguments.op, x, c, y, int64_t{share.number(c)} * X::lanes);
    write_row(arguments, RowOffsets<P, Vectors, true>(arguments, base, share.number(c)).of[0], y);
  }
}

/// How a thread holds its numbers of a row: 32 floats, or 64 16-bit floats that nothing is done to before.
template <class P, bool Vectors, class Tree = typename P::tree_type>
struct HeldRow {
  using type = HeldNumbers<typename P::op_type::compute, 128 / (row_lanes<P, Vectors> * static_cast<int>(sizeof(typename P::op_type::compute))), row_lanes<P, Vectors>>;
};
template <class P, class T, int K>
  requires(sizeof(T) == 2 && std::is_same_v<typename P::op_type::compute, float>)
struct HeldRow<P, true, Input<T, K>> {
  using type = PackedNumbers<T, 64 / row_lanes<P, true>, row_lanes<P, true>>;
};

template <class P, bool Vectors>
__global__ void __launch_bounds__(block_threads) held_rows_kernel(const __grid_constant__ RowArguments<P> arguments) {
  Teams const teams = arguments.teams;
  int64_t const row = static_cast<int64_t>(blockIdx.x) * teams.outputs() + teams.output();
  bool const mine = row < arguments.rows;  // all threads of a block stay: teams meet
  hold_row<P, Vectors, typename HeldRow<P, Vectors>::type>(arguments, teams, RowShare{teams.lane(), teams.lanes, mine ? static_cast<int>(arguments.steps) : 0}, row);
}
template <class P, bool Vectors>
__global__ void __launch_bounds__(cluster_threads) cluster_rows_kernel(const __grid_constant__ RowArguments<P> arguments) {
  ClusterTeam team;
  hold_row<P, Vectors, typename HeldRow<P, Vectors>::type>(arguments, team, RowShare{team.lane(), team.lanes(), static_cast<int>(arguments.steps)}, blockIdx.x / team.blocks);
}

/// Longer rows, or rows of several lines.
template <class P, bool Vectors>
__global__ void __launch_bounds__(block_threads) long_rows_kernel(const __grid_constant__ RowArguments<P> arguments) {
  using Op = typename P::op_type;
  using C = typename Op::compute;
  using Tree = typename P::tree_type;
  using Offsets = RowOffsets<P, Vectors, false>;
  constexpr int N = row_lanes<P, Vectors>, rounds = P::leaves > 1 ? 2 : 4;
  Teams const teams = arguments.teams;
  int const lane = teams.lane();
  int64_t const row = static_cast<int64_t>(blockIdx.x) * teams.outputs() + teams.output();
  bool const mine = row < arguments.rows;
  int64_t base[P::leaves + 1] = {};
  if (mine) walk<0>(arguments, 0, arguments.kept, row, base);
  int64_t const first = static_cast<int64_t>(blockIdx.y) * arguments.steps_per_part, last = first + arguments.steps_per_part;
  int64_t const end = !mine ? 0 : last < arguments.steps ? last : arguments.steps;
  TeamMath<Op> math;
  // Calls use(x, number, offset of the output) for every step of this thread.
  auto const for_each_step = [&](auto const& use) {
#pragma unroll 1
    for (int64_t number = first + lane; number < end; number += rounds * teams.lanes) {
      Held<Tree, N> held[rounds];
      int64_t to[rounds];
#pragma unroll
      for (int r = 0; r < rounds; ++r) {
        int64_t const at = number + r * teams.lanes;
        if (at >= end) continue;
        Offsets const offsets(arguments, base, at);
        to[r] = offsets.of[0];
        hold(held[r], RowSource<P>{arguments, offsets.of});
      }
#pragma unroll
      for (int r = 0; r < rounds; ++r) {
        int64_t const at = number + r * teams.lanes;
        if (at >= end) continue;
        C x[N];
        evaluate_held(arguments, held[r], at * N, x);
        use(x, at * N, to[r]);
      }
    }
  };
  {
    C begin[N] = {};
    if (mine) {
      Held<Tree, N> held;
      hold(held, RowSource<P>{arguments, base});
      evaluate_held(arguments, held, 0, begin);
    }
    math.start(arguments.op, begin[0]);
  }
  typename TeamMath<Op>::Part part = TeamMath<Op>::nothing();
  if (arguments.pass == row_pass::elements) {
#pragma unroll 1
    for (int k = lane; mine && k < arguments.count; k += teams.lanes) part = TeamMath<Op>::merge(part, arguments.parts[row * arguments.count + k]);
  } else {
    int chain = 0;
    for_each_step([&](C(&x)[N], int64_t, int64_t) {
      math.step(arguments.op, x);
      if (++chain % chain_length == 0) math.flush();
    });
    part = math.collected();
  }
  part = TeamMath<Op>::join(teams, part);
  if (arguments.pass == row_pass::statistics) {
    if (mine && lane == 0) arguments.parts[row * arguments.count + blockIdx.y] = part;
    return;
  }
  math.finish(arguments.op, part, arguments.length);
  for_each_step([&](C(&x)[N], int64_t index, int64_t to) {
    math.values(arguments.op, x, index);
    write_row(arguments, to, x);
  });
}

/// Whether every operand of the rows, and what the operation reads beside them, takes `lanes` neighbours at once. Tells which are one element.
template <class P>
bool rows_take_vectors(RowArguments<P>& arguments, int lanes) {
  arguments.repeated = 0;
  if (arguments.run != arguments.length || arguments.run % lanes != 0) return false;
  for (int o = 0; o <= P::leaves; ++o) {
    auto const& strides = arguments.strides[o];
    if (P::leaves > 1 && o > 0 && strides[arguments.run_axis] == 0) arguments.repeated |= uint64_t{1} << o;
    else if (!takes_vectors(arguments.data[o], element_sizes<P>.of[o], lanes, strides[arguments.run_axis], strides, arguments.run_axis)) return false;
  }
  return TeamMath<typename P::op_type>::takes_vectors(arguments.op);
}

template <class D, class P, bool Vectors>
void launch_rows(RowArguments<P>& arguments, bool strips, int64_t columns) {
  constexpr int device = device_traits<D>::ordinal, N = row_lanes<P, Vectors>, K = HeldRow<P, Vectors>::type::steps;
  char const* const name = P::op_type::name;
  arguments.steps = arguments.length / N;
  Teams& teams = arguments.teams;
  teams.side_by_side = !strips;
  if (strips) {
    teams.lanes = block_threads / power_of_2_above(columns, 32);
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
  if (arguments.run == arguments.length) {
    if (arguments.steps <= int64_t{teams.lanes} * K) return launch(device, name, held_rows_kernel<P, Vectors>, grid, block_threads, arguments);
    int const held_by = strips ? 0 : blocks_that_hold<cluster_rows_kernel<P, Vectors>>(device, arguments.rows, (arguments.steps + K - 1) / K);
    if (held_by > 0) return launch_clusters(device, name, cluster_rows_kernel<P, Vectors>, arguments.rows, held_by, arguments);
  }

  // Twice the blocks cost a second launch: rows that are too long to be held are cut where they leave half of the GPU idle.
  bool const short_lines = arguments.steps <= int64_t{teams.lanes} * K;
  int64_t parts = !short_lines && blocks <= reduction_blocks / 4 ? parts_of(blocks, reduction_blocks, arguments.steps, teams.lanes) : 1;
  arguments.steps_per_part = (arguments.steps + parts - 1) / parts;
  parts = (arguments.steps + arguments.steps_per_part - 1) / arguments.steps_per_part;
  arguments.count = static_cast<int>(parts);
  if (parts == 1) return launch(device, name, long_rows_kernel<P, Vectors>, grid, block_threads, arguments);
  Temporary<D> const memory(static_cast<std::size_t>(arguments.rows * parts) * sizeof(typename RowArguments<P>::Part));
  arguments.parts = static_cast<typename RowArguments<P>::Part*>(memory.get());
  for (row_pass pass : {row_pass::statistics, row_pass::elements}) {
    arguments.pass = pass;
    launch(device, name, long_rows_kernel<P, Vectors>, dim3(grid.x, static_cast<unsigned>(parts)), block_threads, arguments);
  }
}

template <class D, class P>
void launch_rows(P const& program) {
  RowArguments<P> arguments(program.tree, program.op);
  int order[max_rank];  // the axis across a strip numbers rows, too
  for (int k = 0; k < program.where.rank; ++k) order[k] = !program.strips || k < program.kept ? k : k == program.kept ? program.where.rank - 1 : k - 1;
  arguments.kept = program.kept + (program.strips ? 1 : 0);
  arguments.run_axis = program.where.rank - 1;
  arguments.rows = program.rows * program.columns;
  arguments.length = program.length;
  arguments.wide = arguments.rows >= index_limit || arguments.length >= index_limit;
  for (int k = 0; k < program.where.rank; ++k) {
    arguments.sizes[k] = WalkedAxis::of(program.where.sizes[order[k]]);
    for (int o = 0; o <= P::leaves; ++o) arguments.strides[o][k] = program.where.strides[o][order[k]];
  }
  for (int o = 0; o <= P::leaves; ++o) arguments.data[o] = program.where.data[o];
  arguments.run = arguments.sizes[arguments.run_axis].size;
  if (!program.strips && lanes_of<P> > 1 && rows_take_vectors(arguments, lanes_of<P>)) launch_rows<D, P, true>(arguments, false, 1);
  else launch_rows<D, P, false>(arguments, program.strips, program.columns);
}

}  // namespace detail::cuda

namespace detail {
inline namespace SITU_ABI_COMPILER {

/// Runs a bound operation on rows on D, which has CUDA's kernels: one launch, or two for few long rows; enqueued on the device's current stream.
template <class D, class P>
void launch_rows(cuda_kernels, P const& program) {
  if (program.rows == 0 || program.length == 0 || program.columns == 0) return;
  cuda::launch_rows<D>(program);
}

}  // namespace SITU_ABI_COMPILER
}  // namespace detail
}  // namespace situ::inline SITU_ABI

#endif
