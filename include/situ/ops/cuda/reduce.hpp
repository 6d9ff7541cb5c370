/// Reductions on a GPU: one kernel for each, and a second one that joins parts when few outputs are made from many elements.
///
/// A thread takes runs of neighbouring elements along the innermost reduced axis; the threads that work on one output stand
/// side by side in a block where that axis is the dense one, and across it where a kept axis is, so that accesses coalesce
/// either way. How the work is cut depends on shapes, strides and constants alone, never on the GPU, and nothing is
/// atomic: the results are the same from run to run.
#pragma once

#include <situ/device/cuda/device.hpp>
#include <situ/device/cuda/launch.hpp>
#include <situ/expr/cuda/evaluate.hpp>
#include <situ/ops/reduce_program.hpp>
#include <situ/ops/reducers_centred.hpp>

#if defined(__CUDACC__)

namespace situ::inline SITU_ABI {
namespace detail::cuda {

inline constexpr int64_t reduction_blocks = 1024;  // work is cut into parts until there are this many blocks
inline constexpr int chain_length = 128;           // steps of a thread before a floating sum is put aside

/// How the threads of a block are shared out: `lanes` of them work on one output.
struct ReductionTeams {
  int lanes;         ///< a power of 2
  bool side_by_side; ///< the lanes of an output are neighbours; else the outputs are

  SITU_HOST_DEVICE int outputs() const { return block_threads / lanes; }
  SITU_DEVICE int lane() const { return static_cast<int>(side_by_side ? threadIdx.x % static_cast<unsigned>(lanes) : threadIdx.x / static_cast<unsigned>(outputs())); }
  SITU_DEVICE int output() const { return static_cast<int>(side_by_side ? threadIdx.x / static_cast<unsigned>(lanes) : threadIdx.x % static_cast<unsigned>(outputs())); }
  SITU_DEVICE int stride() const { return side_by_side ? 1 : outputs(); }
};

/// Joins the accumulators of a team, in an order that is always the same; lane 0 returns the whole. For all threads of a block.
template <class R>
SITU_DEVICE typename R::accumulator join(ReductionTeams const& teams, typename R::accumulator mine) {
  __shared__ typename R::accumulator parts[block_threads];
  int const lane = teams.lane(), stride = teams.stride();
  int const me = static_cast<int>(threadIdx.x);
  parts[me] = mine;
#pragma unroll 1
  for (int half = teams.lanes / 2; half > 0; half /= 2) {
    __syncthreads();
    if (lane < half) {
      mine = R::merge(mine, parts[me + half * stride]);
      parts[me] = mine;
    }
  }
  return mine;
}

/// An axis of a walk: its extent, divided by quickly where 32 bits suffice.
struct WalkedAxis {
  int64_t size;
  FastDivisor fast;
};

template <class P>
struct ReduceArguments {
  static constexpr int inputs = P::leaves;
  typename P::tree_type tree;
  void const* data[inputs + 1];
  int64_t strides[inputs + 1][max_rank];  ///< kept axes, then reduced ones; of input o - 1
  WalkedAxis sizes[max_rank];
  int kept_rank, run_axis;  ///< run_axis is the last one: -1 when nothing is reduced
  bool wide;                ///< numbers of rows or outputs exceed 31 bits
  int64_t outputs, count;
  int64_t run, runs;        ///< the innermost reduced extent, and how many threads' worth of lanes it is
  int64_t steps;            ///< of all lanes together, for one output
  int64_t steps_per_part;
  int64_t rows_per_stride, runs_per_stride;  ///< `lanes` steps further
  int parts;
  ReductionTeams teams;
  uint64_t vectors;  ///< bit o: input o - 1 takes 16-byte accesses
  double parameter;  ///< for reducers that ask for one
  void* result;      ///< outputs, or accumulators of `parts` parts for each output
  explicit ReduceArguments(typename P::tree_type const& tree) : tree(tree) {}
};

/// How many neighbouring elements a thread takes at once.
template <class P>
inline constexpr int reduction_lanes = P::leaves == 0 ? 4 : 16 / widest_input<typename P::tree_type>;

template <class A>
struct ReduceSource {
  A const& arguments;
  int64_t const* offsets;
  int count;
  template <class T, int K, int N>
  SITU_DEVICE __forceinline__ void load(Lanes<T, N>& lanes) const {
    T const* const from = static_cast<T const*>(arguments.data[K + 1]) + offsets[K + 1];
    if (count == N && (arguments.vectors >> (K + 1) & 1)) lanes.load(from);
    else lanes.load_each(from, arguments.run_axis < 0 ? 0 : arguments.strides[K + 1][arguments.run_axis], count);
  }
};

/// Adds to the offsets of all inputs what index `i` of the axes [first, last) does, the last one running fastest.
template <class A>
SITU_DEVICE __forceinline__ void walk(A const& arguments, int first, int last, int64_t i, int64_t* offsets) {
#pragma unroll 1
  for (int k = last - 1; k >= first; --k) {
    int64_t q;
    if (arguments.wide) q = i / arguments.sizes[k].size;
    else q = arguments.sizes[k].fast.quotient(static_cast<uint32_t>(i));
    int64_t const place = i - q * arguments.sizes[k].size;
    i = q;
#pragma unroll
    for (int o = 1; o <= A::inputs; ++o) offsets[o] += arguments.strides[o][k] * place;
  }
}

template <class P>
__global__ void __launch_bounds__(block_threads) reduce_kernel(const __grid_constant__ ReduceArguments<P> arguments) {
  using R = typename P::reducer;
  using Tree = typename P::tree_type;
  using Accumulator = typename R::accumulator;
  constexpr int N = reduction_lanes<P>, inputs = P::leaves;
  constexpr bool floats = std::is_floating_point_v<Accumulator>;
  constexpr int rounds = N > 4 || inputs > 3 ? 1 : 2;
  ReductionTeams const teams = arguments.teams;
  int const lane = teams.lane();
  int64_t const output = static_cast<int64_t>(blockIdx.x) * teams.outputs() + teams.output();

  Accumulator total = R::identity(), sum = R::identity();
  if (output < arguments.outputs) {
    int64_t kept[inputs + 1] = {};
    walk(arguments, 0, arguments.kept_rank, output, kept);
    int64_t step = static_cast<int64_t>(blockIdx.y) * arguments.steps_per_part;
    int64_t const end = step + arguments.steps_per_part < arguments.steps ? step + arguments.steps_per_part : arguments.steps;
    step += lane;
    int64_t row = 0, run = step;
    if (arguments.runs < arguments.steps) row = step / arguments.runs, run = step - row * arguments.runs;
    for (int chain = 1; step < end; ++chain) {
      Held<Tree, N> held[rounds];
      int counts[rounds];
      int64_t first[rounds];
#pragma unroll
      for (int r = 0; r < rounds; ++r) {
        int64_t offsets[inputs + 1];
        int64_t const left = step < end ? arguments.run - run * N : 0;
        counts[r] = left < N ? static_cast<int>(left) : N;
        first[r] = row * arguments.run + run * N;
#pragma unroll
        for (int o = 1; o <= inputs; ++o) offsets[o] = kept[o] + (arguments.run_axis < 0 ? 0 : arguments.strides[o][arguments.run_axis] * (run * N));
        if (step < end && row > 0) walk(arguments, arguments.kept_rank, arguments.run_axis, row, offsets);
        hold(held[r], ReduceSource<ReduceArguments<P>>{arguments, offsets, counts[r]});
        step += teams.lanes;
        row += arguments.rows_per_stride;
        run += arguments.runs_per_stride;
        if (run >= arguments.runs && arguments.runs < arguments.steps) run -= arguments.runs, ++row;
      }
      if constexpr (reducers::centred<R>) {  // all that is held becomes one part
        typename R::element values[rounds * N];
        unsigned valid = 0;
#pragma unroll
        for (int r = 0; r < rounds; ++r) {
          if (counts[r] > 0) valid |= ((1u << counts[r]) - 1u) << (r * N);
#pragma unroll
          for (int j = 0; j < N; ++j) {
            values[r * N + j] = convert_scalar<typename R::element>(Evaluator::value(arguments.tree, held[r], j, first[r]));
          }
        }
        sum = R::merge(sum, R::part_of(values, valid));
      }
#pragma unroll
      for (int r = 0; r < rounds && !reducers::centred<R>; ++r) {
#pragma unroll
        for (int j = 0; j < N; ++j) {
          auto const x = convert_scalar<typename R::element>(Evaluator::value(arguments.tree, held[r], j, first[r]));
          if constexpr (!reducers::centred<R>) {
            if (j < counts[r]) sum = R::step(sum, x, first[r] + j);
          }
        }
      }
      if constexpr (floats) {
        if (chain % chain_length == 0) {
          total = R::merge(total, sum);
          sum = R::identity();
        }
      }
    }
    if constexpr (floats) total = R::merge(total, sum);
    else total = sum;
  }

  total = join<R>(teams, total);
  if (lane != 0 || output >= arguments.outputs) return;
  if (arguments.parts > 1) static_cast<Accumulator*>(arguments.result)[output * arguments.parts + blockIdx.y] = total;
  else static_cast<typename P::out_type*>(arguments.result)[output] = finished<R>(total, arguments.count, arguments.parameter);
}

template <class R>
struct JoinArguments {
  typename R::accumulator const* parts;
  typename R::result* result;
  int64_t outputs, count;
  double parameter;
  int parts_per_output;
  ReductionTeams teams;
};

/// The second launch: the parts of every output become one.
template <class R>
__global__ void __launch_bounds__(block_threads) join_kernel(const __grid_constant__ JoinArguments<R> arguments) {
  ReductionTeams const teams = arguments.teams;
  int64_t const output = static_cast<int64_t>(blockIdx.x) * teams.outputs() + teams.output();
  typename R::accumulator total = R::identity();
  if (output < arguments.outputs) {
#pragma unroll 1
    for (int k = teams.lane(); k < arguments.parts_per_output; k += teams.lanes) {
      total = R::merge(total, arguments.parts[output * arguments.parts_per_output + k]);
    }
  }
  total = join<R>(teams, total);
  if (teams.lane() == 0 && output < arguments.outputs) arguments.result[output] = finished<R>(total, arguments.count, arguments.parameter);
}

/// The least power of 2 that is no less than n, at most `limit`.
inline int power_of_2_above(int64_t n, int limit) {
  int result = 1;
  while (result < limit && result < n) result *= 2;
  return result;
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

template <class A>
concept reports_an_index = requires(A a) { a.index; };

/// Gives device memory back when the work that uses it has been enqueued.
template <class D>
struct Scratch {
  void* memory;
  std::size_t bytes;
  explicit Scratch(std::size_t n) : memory(device_traits<D>::allocate(n)), bytes(n) {}
  Scratch(Scratch const&) = delete;
  Scratch& operator=(Scratch const&) = delete;
  ~Scratch() { device_traits<D>::deallocate(memory, bytes); }
};

/// Everything of the arguments that does not depend on memory, and the blocks to launch.
template <class P>
dim3 plan_reduction(P const& program, ReduceArguments<P>& arguments) {
  using R = typename P::reducer;
  constexpr int N = reduction_lanes<P>, operands = P::leaves + 1;
  auto where = program.where;
  int const kept = program.kept_rank;
  if constexpr (!reports_an_index<typename R::accumulator> && P::leaves > 0) {
    order_reduced_axes(where.sizes, &where.strides[0][0], operands, kept, where.rank);
  }
  int const rank = where.rank;
  bool const reduces = rank > kept && program.count > 0;
  arguments.kept_rank = kept;
  arguments.run_axis = rank > kept ? rank - 1 : -1;
  arguments.outputs = program.outputs;
  arguments.count = program.count;
  arguments.run = program.count == 0 ? 0 : reduces ? where.sizes[rank - 1] : 1;
  arguments.runs = (arguments.run + N - 1) / N;
  int64_t const rows = program.count == 0 ? 0 : program.count / arguments.run;
  arguments.steps = arguments.runs * rows;
  arguments.wide = program.outputs >= (int64_t{1} << 31) || rows >= (int64_t{1} << 31);
  arguments.vectors = 0;
  for (int k = 0; k < rank; ++k) {
    arguments.sizes[k].size = where.sizes[k];
    if (where.sizes[k] > 0 && where.sizes[k] < (int64_t{1} << 31)) arguments.sizes[k].fast = FastDivisor::of(where.sizes[k]);
    else arguments.sizes[k].fast = FastDivisor::of(1);
    for (int o = 0; o < operands; ++o) arguments.strides[o][k] = where.strides[o][k];
  }
  for (int o = 1; o < operands; ++o) {
    auto const bytes = static_cast<std::uintptr_t>(N * input_size(std::type_identity<typename P::tree_type>{}, o - 1));
    arguments.data[o] = where.data[o];
    bool fits = reduces && where.strides[o][rank - 1] == 1 && reinterpret_cast<std::uintptr_t>(where.data[o]) % bytes == 0;
    for (int k = 0; k + 1 < rank; ++k) fits = fits && where.strides[o][k] % N == 0;
    if (fits) arguments.vectors |= uint64_t{1} << o;
  }
  arguments.data[0] = nullptr;

  ReductionTeams& teams = arguments.teams;
  teams.side_by_side = reduced_axis_is_dense(&where.strides[0][0], operands, kept, rank);
  if (teams.side_by_side) {  // four steps for each lane, or one where there are few outputs
    teams.lanes = power_of_2_above((arguments.steps + 3) / 4, block_threads);
    int const most = power_of_2_above(arguments.steps, block_threads);
    while (teams.lanes < most && program.outputs * teams.lanes < reduction_blocks * block_threads) teams.lanes *= 2;
  } else {
    teams.lanes = block_threads / power_of_2_above(program.outputs, 32);
  }
  int64_t const blocks = (program.outputs + teams.outputs() - 1) / teams.outputs();
  int64_t parts = blocks < reduction_blocks ? (reduction_blocks + blocks - 1) / blocks : 1;
  int64_t const most_parts = arguments.steps / (4 * teams.lanes);
  if (parts > most_parts) parts = most_parts > 1 ? most_parts : 1;
  arguments.steps_per_part = (arguments.steps + parts - 1) / parts;
  arguments.parts = static_cast<int>(parts);
  arguments.rows_per_stride = arguments.runs > 0 && arguments.runs < arguments.steps ? teams.lanes / arguments.runs : 0;
  arguments.runs_per_stride = teams.lanes - arguments.rows_per_stride * arguments.runs;
  return dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(parts));
}

}  // namespace detail::cuda

namespace detail {
inline namespace SITU_ABI_COMPILER {

/// Runs a bound reduction on D, which has CUDA's kernels: one launch, or two; enqueued on the device's current stream.
template <class D, class P>
void launch_reduce(cuda_kernels, P const& program) {
  using R = typename P::reducer;
  using Accumulator = typename R::accumulator;
  static_assert(P::leaves < 63, "situ: a reduction reads at most 62 tensors; evaluate a part of its input first");
  if (program.outputs == 0) return;
  constexpr int device = device_traits<D>::ordinal;
  cuda::ReduceArguments<P> arguments(program.tree);
  dim3 const blocks = cuda::plan_reduction(program, arguments);
  arguments.parameter = program.parameter;
  arguments.result = program.where.data[0];
  if (arguments.parts == 1) return cuda::launch(device, R::name, cuda::reduce_kernel<P>, blocks, cuda::block_threads, arguments);

  cuda::Scratch<D> const scratch(static_cast<std::size_t>(program.outputs) * static_cast<std::size_t>(arguments.parts) * sizeof(Accumulator));
  arguments.result = scratch.memory;
  cuda::launch(device, R::name, cuda::reduce_kernel<P>, blocks, cuda::block_threads, arguments);
  cuda::JoinArguments<R> join;
  join.parts = static_cast<Accumulator const*>(scratch.memory);
  join.result = static_cast<typename R::result*>(program.where.data[0]);
  join.outputs = program.outputs;
  join.count = program.count;
  join.parameter = program.parameter;
  join.parts_per_output = arguments.parts;
  join.teams = {cuda::power_of_2_above(arguments.parts, cuda::block_threads), true};
  unsigned const join_blocks = static_cast<unsigned>((program.outputs + join.teams.outputs() - 1) / join.teams.outputs());
  cuda::launch(device, R::name, cuda::join_kernel<R>, dim3(join_blocks), cuda::block_threads, join);
}

}  // namespace SITU_ABI_COMPILER
}  // namespace detail
}  // namespace situ::inline SITU_ABI

#endif
