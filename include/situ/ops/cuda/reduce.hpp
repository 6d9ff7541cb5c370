/// Reductions on a GPU: one kernel for each, and a second one that joins parts when few outputs are made from many elements.
///
/// A thread takes runs of neighbouring elements along the innermost reduced axis; the threads that work on one output stand
/// side by side in a block where that axis is the dense one, and across it where a kept axis is, so that accesses coalesce
/// either way. Where a kept axis is, reducers that keep one number take vectors of it: a thread works on as many outputs.
#pragma once

#include <situ/core/storage.hpp>
#include <situ/device/cuda/device.hpp>
#include <situ/ops/cuda/teams.hpp>
#include <situ/ops/cuda/walk.hpp>
#include <situ/ops/reduce_program.hpp>
#include <situ/ops/reducers_centred.hpp>

#if defined(__CUDACC__)

namespace situ::inline SITU_ABI {
namespace detail::cuda {

/// What a reduction's kernel is told but its tree and its operands.
struct ReducePlan {
  WalkedAxis sizes[max_rank];  ///< kept axes, then reduced ones
  int kept_rank, run_axis;  ///< run_axis is the last one: -1 when nothing is reduced
  bool wide;                ///< numbers of rows or outputs exceed 31 bits
  int64_t outputs, count;
  int64_t run, runs;        ///< the innermost reduced extent, and how many threads' worth of lanes it is
  int64_t steps;            ///< of all lanes together, for one output
  int64_t steps_per_part;                    ///< of vectors of outputs
  int64_t rows_per_stride, runs_per_stride;  ///< `parts` times `lanes` steps further
  int parts;                                 ///< which take turns, so that what is read at a time lies side by side
  bool columns;      ///< a thread takes vectors of outputs; then a step is one place along the reduced axes
  Teams teams;
  uint64_t vectors;  ///< bit o: operand o takes 16-byte accesses
  double parameter;  ///< for reducers that ask for one
  void* result;      ///< outputs, or totals of `parts` parts for each output
};
template <int Operands>
struct ReduceOperands : ReducePlan {
  static constexpr int operands = Operands;  ///< the inputs from number 1 on
  void* data[Operands];
  int64_t strides[Operands][max_rank];
  SITU_DEVICE int64_t run_stride(int operand) const { return run_axis < 0 ? 0 : strides[operand][run_axis]; }
};
template <class P>
using ReduceArguments = FormulaArguments<ReduceOperands<P::leaves + 1>, typename P::tree_type>;

/// Joins what several threads, or steps, have come to; sums of floats in double.
template <class R>
struct merge_totals {
  using Total = typename R::total;
  SITU_DEVICE Total operator()(Total const& a, Total const& b) const {
    if constexpr (std::is_same_v<Total, typename R::accumulator>) return R::merge(a, b);
    else return detail::added(a, b);
  }
};

/// How many neighbouring elements a thread takes at once.
template <class P>
inline constexpr int reduction_lanes = P::leaves == 0 ? 4 : 16 / widest_input<typename P::tree_type>;

template <class A>
concept reports_an_index = requires(A a) { a.index; };

/// What a thread has come to: the elements of a few steps in the accumulator, what came before them in the total. Sums of floats go on in double.
template <class P>
struct ReducedPart {
  using R = typename P::reducer;
  using Tree = typename P::tree_type;
  using Accumulator = typename R::accumulator;
  using Total = typename R::total;
  static constexpr int width = reduction_lanes<P>;
  static constexpr bool floats = std::is_floating_point_v<Accumulator>;
  static constexpr int chain_steps = std::is_same_v<Total, Accumulator> ? chain_length : 16 / width > 1 ? 16 / width : 1;

  static constexpr bool finds = reports_an_index<Accumulator>;

  Total total = static_cast<Total>(R::identity());
  Accumulator sum = R::identity();
  int chain = 0;
  typename R::element bar{};  ///< where an element is looked for: what a later one has to beat

  /// Takes in Steps steps that are held, the counts of whose elements and the numbers of whose first ones are given. Where all threads of a warp come
  /// `together`, each with whole steps of one output, they look for an element side by side: what one has found is a bar for the later steps of all.
  template <int Steps>
    requires(Steps * width <= 32)  // bits
  SITU_DEVICE __forceinline__ void take(Tree const& tree, Held<Tree, width> const (&held)[Steps], int const (&counts)[Steps], int64_t const (&first)[Steps],
                                       bool together = false) {
    using E = typename R::element;
    E values[Steps][width];
    auto const evaluate = [&](int r) {
#pragma unroll
      for (int j = 0; j < width; ++j) values[r][j] = convert_scalar<E>(Evaluator::value(tree, held[r], j, first[r]));
    };
    if constexpr (reducers::centred<R>) {  // all that is held becomes one part
      E flat[Steps * width];
      unsigned valid = 0;
#pragma unroll
      for (int r = 0; r < Steps; ++r) {
        if (counts[r] > 0) valid |= ((1u << counts[r]) - 1u) << (r * width);
#pragma unroll
        for (int j = 0; j < width; ++j) flat[r * width + j] = 0;
        if (counts[r] <= 0) continue;  // what a map calls is not called for what is not there
        evaluate(r);
#pragma unroll
        for (int j = 0; j < width; ++j) flat[r * width + j] = values[r][j];
      }
      sum = R::merge(sum, R::part_of(flat, valid));
    } else {
#pragma unroll
      for (int r = 0; r < Steps; ++r) {
        if (counts[r] <= 0) continue;
        evaluate(r);
        if constexpr (finds) {  // most of what comes later beats nothing
          bool better = sum.index < 0;
#pragma unroll
          for (int j = 0; j < width; ++j) better |= R::may_beat(values[r][j], bar);
          if (together) better = __any_sync(0xffffffffu, better);
          if (!better) continue;
        }
#pragma unroll
        for (int j = 0; j < width; ++j) {
          if (j < counts[r]) sum = R::step(sum, values[r][j], first[r] + j);
        }
        if constexpr (finds) {
          bar = R::bar_of(sum.value);
          if (together) bar = best_of_warp(bar);
        }
        if constexpr (floats) {
          if (++chain % chain_steps == 0) flush();
        }
      }
    }
  }
  /// Of the bars of a warp, the highest.
  SITU_DEVICE __forceinline__ static typename R::element best_of_warp(typename R::element mine) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      auto const other = static_cast<typename R::element>(__shfl_xor_sync(0xffffffffu, mine, step));
      if (R::may_beat(other, mine)) mine = other;
    }
    return mine;
  }
  SITU_DEVICE __forceinline__ void flush() {
    total = merge_totals<R>{}(total, static_cast<Total>(sum));
    sum = R::identity();
  }
  SITU_DEVICE __forceinline__ Total whole() {
    if constexpr (!floats) return static_cast<Total>(sum);
    flush();
    return total;
  }
};

/// Whole: over all axes, to one output.
template <class P, bool Whole>
__global__ void __launch_bounds__(block_threads) reduce_kernel(const __grid_constant__ ReduceArguments<P> arguments) {
  using R = typename P::reducer;
  using Tree = typename P::tree_type;
  using Total = typename R::total;
  constexpr int N = reduction_lanes<P>, inputs = P::leaves, rounds = inputs > 2 ? 1 : inputs == 2 || N > 8 ? 2 : 4;
  auto const& plan = arguments.operands;
  Teams const teams{plan.teams.lanes, Whole || plan.teams.side_by_side};
  int const lane = teams.lane();
  int64_t const output = Whole ? teams.output() : static_cast<int64_t>(blockIdx.x) * teams.outputs() + teams.output();

  Total total = static_cast<Total>(R::identity());
  if (Whole ? output == 0 : output < plan.outputs) {
    ReducedPart<P> part;
    int64_t kept[inputs + 1] = {};
    if constexpr (!Whole) walk<1>(plan, 0, plan.kept_rank, output, kept);
    int64_t step = 0;
    auto const hold_step = [&](Held<Tree, N>& held, int64_t row, int64_t run, int count) {
      int64_t offsets[inputs + 1];
#pragma unroll
      for (int o = 1; o <= inputs; ++o) offsets[o] = kept[o] + plan.run_stride(o) * (run * N);
      if (row > 0) walk<1>(plan, Whole ? 0 : plan.kept_rank, plan.run_axis, row, offsets);
      hold(held, WalkSource<ReduceOperands<inputs + 1>>{plan, offsets, count});
    };
    if (plan.runs == plan.steps) {  // one line for each output: whole steps, several of them in flight
      int const turn = rounds * teams.lanes;
      step = plan.run / N / turn * turn;
      bool const together = ReducedPart<P>::finds && teams.side_by_side && teams.lanes >= 32;
#pragma unroll 1
      for (int64_t base = static_cast<int64_t>(blockIdx.y) * turn; base < step; base += static_cast<int64_t>(plan.parts) * turn) {
        Held<Tree, N> held[rounds];
        int counts[rounds];
        int64_t first[rounds];
#pragma unroll
        for (int r = 0; r < rounds; ++r) {
          int64_t const at = base + r * teams.lanes + lane;
          counts[r] = N;
          first[r] = at * N;
          hold_step(held[r], 0, at, N);
        }
        part.take(arguments.tree, held, counts, first, together);
      }
    }
    step += static_cast<int64_t>(blockIdx.y) * teams.lanes + lane;
    int64_t row = 0, run = step;
    if (plan.runs < plan.steps) row = step / plan.runs, run = step - row * plan.runs;
#pragma unroll 1
    for (; step < plan.steps; step += static_cast<int64_t>(plan.parts) * teams.lanes) {
      Held<Tree, N> held[1];
      int64_t const left = plan.run - run * N;
      int const counts[1] = {left < N ? static_cast<int>(left) : N};
      int64_t const first[1] = {row * plan.run + run * N};
      hold_step(held[0], row, run, counts[0]);
      part.take(arguments.tree, held, counts, first);
      row += plan.rows_per_stride;
      run += plan.runs_per_stride;
      if (run >= plan.runs && plan.runs < plan.steps) run -= plan.runs, ++row;
    }
    total = part.whole();
  }

  total = join_team<false>(teams, total, merge_totals<R>{});
  if (lane != 0 || (Whole ? output != 0 : output >= plan.outputs)) return;
  if (plan.parts > 1) static_cast<Total*>(plan.result)[output * plan.parts + blockIdx.y] = total;
  else static_cast<typename P::out_type*>(plan.result)[output] = finished<R>(total, plan.count, plan.parameter);
}

/// Whether a reducer keeps one number, so that a thread can work on several outputs.
template <class P>
inline constexpr bool reduces_columns = P::leaves > 0 && reduction_lanes<P> > 1 && std::is_arithmetic_v<typename P::reducer::total>;

/// Vectors of neighbouring outputs, whose elements lie side by side.
template <class P>
__global__ void __launch_bounds__(block_threads) reduce_columns_kernel(const __grid_constant__ ReduceArguments<P> arguments) {
  using R = typename P::reducer;
  using Tree = typename P::tree_type;
  using Total = typename R::total;
  constexpr int N = reduction_lanes<P>, inputs = P::leaves, rounds = inputs > 2 ? 1 : inputs == 2 ? 2 : 4, chain_steps = 16;
  auto const& plan = arguments.operands;
  Teams const teams{plan.teams.lanes, false};
  int const lane = teams.lane();
  int64_t const output = (static_cast<int64_t>(blockIdx.x) * teams.outputs() + teams.output()) * N;
  Total totals[N];
  typename R::accumulator sums[N];
#pragma unroll
  for (int j = 0; j < N; ++j) totals[j] = static_cast<Total>(R::identity()), sums[j] = R::identity();
  auto const flush = [&] {
#pragma unroll
    for (int j = 0; j < N; ++j) totals[j] = merge_totals<R>{}(totals[j], static_cast<Total>(sums[j])), sums[j] = R::identity();
  };
  if (output < plan.outputs) {
    int64_t kept[inputs + 1] = {};
    walk<1>(plan, 0, plan.kept_rank, output, kept);
    int64_t const first = static_cast<int64_t>(blockIdx.y) * plan.steps_per_part, last = first + plan.steps_per_part, end = last < plan.steps ? last : plan.steps;
    bool const one_line = plan.run_axis == plan.kept_rank;
    int chain = 0;
#pragma unroll 1
    for (int64_t step = first + lane; step < end; step += rounds * teams.lanes) {
      Held<Tree, N> held[rounds];
#pragma unroll
      for (int r = 0; r < rounds; ++r) {
        int64_t const at = step + r * teams.lanes;
        if (at >= end) continue;
        int64_t offsets[inputs + 1];
#pragma unroll
        for (int o = 1; o <= inputs; ++o) offsets[o] = kept[o] + (one_line ? plan.run_stride(o) * at : 0);
        if (!one_line) walk<1>(plan, plan.kept_rank, plan.run_axis + 1, at, offsets);
        hold(held[r], VectorSource<(inputs > 1)>{plan.data, offsets, plan.vectors});
      }
#pragma unroll
      for (int r = 0; r < rounds; ++r) {
        int64_t const at = step + r * teams.lanes;
        if (at >= end) continue;
#pragma unroll
        for (int j = 0; j < N; ++j) sums[j] = R::step(sums[j], convert_scalar<typename R::element>(Evaluator::value(arguments.tree, held[r], j, at - j)), at);
      }
      chain += rounds;
      if (chain % chain_steps == 0) flush();
    }
    flush();
  }
  constexpr int joined = N < 8 ? N : 8;
#pragma unroll
  for (int j = 0; j < N; j += joined) {
    Total some[joined];
#pragma unroll
    for (int k = 0; k < joined; ++k) some[k] = totals[j + k];
    if (j > 0) __syncthreads();  // until the others have been read
    join_team<false>(teams, some, merge_totals<R>{});
#pragma unroll
    for (int k = 0; k < joined; ++k) totals[j + k] = some[k];
  }
  if (lane != 0 || output >= plan.outputs) return;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    if (plan.parts > 1) static_cast<Total*>(plan.result)[(output + j) * plan.parts + blockIdx.y] = totals[j];
    else static_cast<typename P::out_type*>(plan.result)[output + j] = finished<R>(totals[j], plan.count, plan.parameter);
  }
}

template <class R>
struct JoinArguments {
  typename R::total const* parts;
  typename R::result* result;
  int64_t outputs, count;
  double parameter;
  int parts_per_output;
  Teams teams;
};

/// The second launch: the parts of every output become one.
template <class R>
__global__ void __launch_bounds__(block_threads) join_kernel(const __grid_constant__ JoinArguments<R> arguments) {
  Teams const teams = arguments.teams;
  int64_t const output = static_cast<int64_t>(blockIdx.x) * teams.outputs() + teams.output();
  auto total = static_cast<typename R::total>(R::identity());
  if (output < arguments.outputs) {
#pragma unroll 1
    for (int k = teams.lane(); k < arguments.parts_per_output; k += teams.lanes) {
      total = merge_totals<R>{}(total, arguments.parts[output * arguments.parts_per_output + k]);
    }
  }
  total = join_team<false>(teams, total, merge_totals<R>{});
  if (teams.lane() == 0 && output < arguments.outputs) arguments.result[output] = finished<R>(total, arguments.count, arguments.parameter);
}

/// Orders the reduced axes by the largest stride that an input has along them, outer first, and joins them again. For reducers
/// that do not ask for indices.
inline void order_reduced_axes(int64_t* sizes, int64_t* strides, int operands, int kept, int& rank) {
  auto stride = [strides](int o, int k) -> int64_t& { return strides[o * max_rank + k]; };
  auto reach = [&](int k) {
    int64_t result = 0;
    for (int o = 1; o < operands; ++o) {
      int64_t const s = stride(o, k) < 0 ? -stride(o, k) : stride(o, k);
      if (s > result) result = s;
    }
    return result;
  };
  for (int k = kept + 1; k < rank; ++k) {
    for (int j = k; j > kept && reach(j) > reach(j - 1); --j) {
      std::swap(sizes[j], sizes[j - 1]);
      for (int o = 0; o < operands; ++o) std::swap(stride(o, j), stride(o, j - 1));
    }
  }
  int in_place = 0;  // the order stands; neighbours are only joined
  if (rank > kept) rank = kept + coalesce(sizes + kept, strides + kept, operands, rank - kept, &in_place);
}

/// Whether the innermost reduced axis is denser in memory than the innermost kept one, for most inputs.
inline bool reduced_axis_is_dense(int64_t const* strides, int operands, int kept, int rank) {
  if (kept == 0 || rank == kept) return true;
  int votes = 0;
  for (int o = 1; o < operands; ++o) {
    int64_t along = strides[o * max_rank + rank - 1], across = strides[o * max_rank + kept - 1];
    along = along < 0 ? -along : along;
    across = across < 0 ? -across : across;
    if (along == 0) continue;
    votes += across == 0 || along <= across ? 1 : -1;
  }
  return votes >= 0;
}

/// Whether vectors of `lanes` outputs are made of vectors of every input, or of one element of it: plan.vectors tells which.
template <int Operands>
SITU_NOINLINE bool columns_are_vectors(ReduceOperands<Operands>& plan, int64_t const* sizes, int const* element_sizes, int lanes, int rank) {
  int const across = plan.kept_rank - 1;
  if (across < 0 || sizes[across] % lanes != 0) return false;
  uint64_t vectors = 0;
  for (int o = 1; o < Operands; ++o) {
    auto const& strides = plan.strides[o];
    if (Operands > 2 && strides[across] == 0) continue;
    vectors |= uint64_t{1} << o;
    if (!takes_vectors(plan.data[o], element_sizes[o], lanes, strides[across], strides, across)) return false;
    for (int k = plan.kept_rank; k < rank; ++k) {
      if (strides[k] % lanes != 0) return false;
    }
  }
  plan.vectors = vectors;
  return true;
}

/// Plans the blocks of a reduction of `lanes` elements at a time, of vectors of outputs where these may be. Reduced axes get into the order of memory
/// where `reorders` says so.
template <int Operands>
SITU_NOINLINE dim3 plan_reduction(ReduceOperands<Operands>& plan, ReducePlaces<Operands> const& places, int const* element_sizes, int lanes,
                                  int steps_of_lane, bool reorders, int64_t (*columns_at_once)(int), int device) {
  auto const& where = places.where;
  int const kept = places.kept_rank;
  int rank = where.rank;
  int64_t sizes[max_rank];
  for (int k = 0; k < rank; ++k) sizes[k] = where.sizes[k];
  __builtin_memcpy(plan.data, where.data, sizeof plan.data);
  __builtin_memcpy(plan.strides, where.strides, sizeof plan.strides);
  auto const& strides = plan.strides;
  if (reorders) order_reduced_axes(sizes, plan.strides[0], Operands, kept, rank);
  bool const reduces = rank > kept && places.count > 0;
  plan.kept_rank = kept;
  plan.run_axis = rank > kept ? rank - 1 : -1;
  plan.outputs = places.outputs;
  plan.count = places.count;
  plan.run = places.count == 0 ? 0 : reduces ? sizes[rank - 1] : 1;
  plan.runs = (plan.run + lanes - 1) / lanes;
  int64_t const rows = places.count == 0 ? 0 : places.count / plan.run;
  plan.steps = plan.runs * rows;
  plan.wide = places.outputs >= index_limit || rows >= index_limit;
  plan.vectors = 0;
  for (int k = 0; k < rank; ++k) plan.sizes[k] = WalkedAxis::of(sizes[k]);
  for (int o = 1; o < Operands; ++o) {
    if (reduces && takes_vectors(where.data[o], element_sizes[o], lanes, strides[o][rank - 1], strides[o], rank - 1)) plan.vectors |= uint64_t{1} << o;
  }

  Teams& teams = plan.teams;
  teams.side_by_side = reduced_axis_is_dense(strides[0], Operands, kept, rank);
  if (teams.side_by_side) {  // so many steps for each lane, or one where there are few outputs
    int const most = power_of_2_above(plan.steps, block_threads), line = most < 8 ? most : 8;
    teams.lanes = power_of_2_above((plan.steps + steps_of_lane - 1) / steps_of_lane, block_threads);
    if (teams.lanes < line) teams.lanes = line;
    while (teams.lanes < most && places.outputs * teams.lanes < reduction_blocks * block_threads) teams.lanes *= 2;
  } else {
    teams.lanes = block_threads / power_of_2_above(places.outputs, 32);
  }
  plan.columns = columns_at_once && !teams.side_by_side && reduces && columns_are_vectors(plan, sizes, element_sizes, lanes, rank);
  int64_t groups = places.outputs;
  if (plan.columns) {
    groups /= lanes;
    teams.lanes = block_threads / power_of_2_above(groups, 32);
    plan.steps = places.count;
    plan.wide = plan.wide || plan.steps >= index_limit;
  }
  int64_t const blocks = teams.blocks(groups);
  int64_t parts = parts_of(blocks, reduction_blocks, plan.steps, teams.lanes);
  if (plan.columns && parts > 1) parts = parts_that_fill(blocks, columns_at_once(device), parts * blocks, plan.steps, teams.lanes);
  plan.steps_per_part = (plan.steps + parts - 1) / parts;
  plan.parts = static_cast<int>(parts);
  int64_t const stride = parts * teams.lanes;
  plan.rows_per_stride = plan.runs > 0 && plan.runs < plan.steps ? stride / plan.runs : 0;
  plan.runs_per_stride = stride - plan.rows_per_stride * plan.runs;
  return dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(parts));
}

/// A reduction of a formula, with both types forgotten.
struct ReduceKernels : KernelTree {
  char const* name;
  void const* kernel;
  void const* of_columns;              ///< or null
  int64_t (*columns_at_once)(int device);  ///< how many blocks of it run at once
  std::size_t total_bytes;
  void (*join)(int device, ReducePlan const& plan, void* result);  ///< of the parts that plan.result holds
  int steps_of_lane;                                               ///< for rows: more where parts are dear to join
  bool reorders;                                                   ///< whether reduced axes may get into the order of memory
};

/// Launches a reduction of any formula of so many tensors.
template <class D, int Operands>
SITU_NOINLINE void launch_reduction(ReduceKernels const& kernels, ReducePlaces<Operands> const& places) {
  constexpr int device = device_traits<D>::ordinal;
  FormulaBytes<ReduceOperands<Operands>> arguments(kernels);
  auto& plan = arguments.operands;
  LaunchName const name(kernels.name, kernels.formula);
  dim3 const blocks = plan_reduction(plan, places, kernels.element_sizes, kernels.lanes, kernels.steps_of_lane, kernels.reorders && Operands > 1,
                                       kernels.columns_at_once, device);
  void const* const kernel = plan.columns ? kernels.of_columns : kernels.kernel;
  plan.parameter = places.parameter;
  plan.result = places.where.data[0];
  if (plan.parts == 1) return launch_kernel(device, name, kernel, blocks, block_threads, &arguments);
  Temporary<D> const scratch(static_cast<std::size_t>(plan.outputs) * static_cast<std::size_t>(plan.parts) * kernels.total_bytes);
  plan.result = scratch.get();
  launch_kernel(device, name, kernel, blocks, block_threads, &arguments);
  kernels.join(device, plan, places.where.data[0]);
}

template <class R>
void launch_join(int device, ReducePlan const& plan, void* result) {
  JoinArguments<R> join;
  join.parts = static_cast<typename R::total const*>(plan.result);
  join.result = static_cast<typename R::result*>(result);
  join.outputs = plan.outputs;
  join.count = plan.count;
  join.parameter = plan.parameter;
  join.parts_per_output = plan.parts;
  join.teams = {power_of_2_above(plan.parts, block_threads), true};
  launch(device, R::name, join_kernel<R>, dim3(static_cast<unsigned>(join.teams.blocks(plan.outputs))), block_threads, join);
}

}  // namespace detail::cuda

namespace detail {
inline namespace SITU_ABI_COMPILER {

/// Runs a bound reduction on D, which has CUDA's kernels: one launch, or two; enqueued on the device's current stream. Whole: over all axes.
template <class D, bool Whole, class P>
void launch_reduce(cuda_kernels, P const& program) {
  using R = typename P::reducer;
  static_assert(P::leaves < 63, "situ: a reduction reads at most 62 tensors; evaluate a part of its input first");
  if (program.outputs == 0) return;
  void const* of_columns = nullptr;
  int64_t (*columns_at_once)(int) = nullptr;
  if constexpr (!Whole && cuda::reduces_columns<P>) {
    of_columns = reinterpret_cast<void const*>(&cuda::reduce_columns_kernel<P>);
    columns_at_once = &cuda::blocks_at_once<&cuda::reduce_columns_kernel<P>>;
  }
  cuda::ReduceKernels const kernels{{&formula_of<typename P::tree_type>, &program.tree, sizeof program.tree, cuda::element_sizes<P>.of, cuda::reduction_lanes<P>, true},
                                    R::name,
                                    reinterpret_cast<void const*>(&cuda::reduce_kernel<P, Whole>),
                                    of_columns,
                                    columns_at_once,
                                    sizeof(typename R::total),
                                    &cuda::launch_join<R>,
                                    std::is_arithmetic_v<typename R::total> ? 4 : 32,
                                    !cuda::reports_an_index<typename R::accumulator>};
  cuda::launch_reduction<D, P::leaves + 1>(kernels, program);
}

}  // namespace SITU_ABI_COMPILER
}  // namespace detail
}  // namespace situ::inline SITU_ABI

#endif
