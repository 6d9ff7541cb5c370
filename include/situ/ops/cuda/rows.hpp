/// Operations on rows on a GPU: one kernel, in which a warp, a part of one, or a block works on each row.
///
/// A row that fits the registers of its team is read once: up to 32 floats for each thread, in runs of neighbours with 16-byte accesses where
/// memory allows it. A longer row is read twice: once for its statistics, which every thread gathers on line, and once for its elements.
/// Rows that lie side by side in the output are taken by neighbouring threads, so that accesses coalesce. Nothing is atomic, and how work is
/// shared out depends on shapes and strides alone: results are the same from run to run.
#pragma once

#include <situ/expr/cuda/launch.hpp>
#include <situ/ops/cuda/reduce.hpp>
#include <situ/ops/row_program.hpp>

#if defined(__CUDACC__)

namespace situ::inline SITU_ABI {
namespace detail::cuda {

/// Bytes of a row that a thread keeps; fewer in strips, where each element has an address of its own.
template <bool Strips>
inline constexpr int row_registers = Strips ? 64 : 128;

template <class P>
struct RowArguments {
  static constexpr int operands = P::leaves + 1;
  typename P::tree_type tree;
  typename P::op_type op;
  void* data[operands];
  int64_t strides[operands][max_rank];  ///< the axes that number the rows, then those along them
  WalkedAxis sizes[max_rank];
  int kept, run_axis;       ///< run_axis is the last one
  bool wide;                ///< numbers exceed 31 bits
  int64_t rows, length;
  int64_t run, runs, steps; ///< the last extent; how many threads' worth of neighbours it is; of a whole row
  ReductionTeams teams;
  uint64_t vectors;         ///< bit o: operand o takes 16-byte accesses
  RowArguments(typename P::tree_type const& tree, typename P::op_type const& op) : tree(tree), op(op) {}
};

/// How many neighbours a thread takes at once.
template <class P, bool Strips>
inline constexpr int row_lanes = Strips ? 1 : lanes_of<P>;

template <class A>
struct RowSource {
  A const& arguments;
  int64_t const* offsets;
  int count;
  template <class T, int K, int N>
  SITU_DEVICE __forceinline__ void load(Lanes<T, N>& lanes) const {
    T const* const from = static_cast<T const*>(arguments.data[K + 1]) + offsets[K + 1];
    if (N > 1 && count == N && (arguments.vectors >> (K + 1) & 1)) lanes.load(from);
    else lanes.load_each(from, arguments.strides[K + 1][arguments.run_axis], count);
  }
};

/// Adds to all operands' offsets what index i of the axes [first, last) does, the last one running fastest.
template <class A>
SITU_DEVICE __forceinline__ void walk_row(A const& arguments, int first, int last, int64_t i, int64_t* offsets) {
#pragma unroll 1
  for (int k = last - 1; k >= first; --k) {
    int64_t q;
    if (arguments.wide) q = i / arguments.sizes[k].size;
    else q = arguments.sizes[k].fast.quotient(static_cast<uint32_t>(i));
    int64_t const place = i - q * arguments.sizes[k].size;
    i = q;
#pragma unroll
    for (int o = 0; o < A::operands; ++o) offsets[o] += arguments.strides[o][k] * place;
  }
}

/// Joins a number of every thread of a team; all of them get the result. For all threads of a block.
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
template <class C, class F>
SITU_DEVICE C join_team(ReductionTeams const& teams, C mine, F f) {
  if (teams.side_by_side && teams.lanes <= 32) {
#pragma unroll 1
    for (int step = teams.lanes / 2; step > 0; step /= 2) mine = f(mine, __shfl_xor_sync(0xffffffffu, mine, step));
    return mine;
  }
  __shared__ C parts[block_threads];
  int const me = static_cast<int>(threadIdx.x), lane = teams.lane(), stride = teams.stride();
  parts[me] = mine;
#pragma unroll 1
  for (int half = teams.lanes / 2; half > 0; half /= 2) {
    __syncthreads();
    if (lane < half) parts[me] = f(parts[me], parts[me + half * stride]);
  }
  __syncthreads();
  C const result = parts[me - lane * stride];
  __syncthreads();
  return result;
}

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
    for (int o = 0; o <= P::leaves; ++o) offsets[o] = base[o] + arguments.strides[o][arguments.run_axis] * (at * N);
    if (line > 0) walk_row(arguments, arguments.kept, arguments.run_axis, line, offsets);
  }
  template <class C>
  SITU_DEVICE __forceinline__ void read(RowArguments<P> const& arguments, C* x) const {
    Held<typename P::tree_type, N> held;
    hold(held, RowSource<RowArguments<P>>{arguments, offsets, count});
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
    else result.store_each(to, arguments.strides[0][arguments.run_axis], count);
  }
};

/// What a team does with a row, apart from where it lies. Softmax and its logarithm.
template <class Op>
struct TeamMath {
  using C = typename Op::compute;
  static constexpr bool logarithmic = std::is_same_v<Op, rows::log_softmax<typename Op::result>>;
  C best, total;

  SITU_DEVICE static C least() { return -static_cast<C>(__builtin_huge_val()); }

  /// From all elements that this thread holds; `present(c, j)` tells which exist.
  template <int K, int N>
  SITU_DEVICE __forceinline__ void gather(Op const&, ReductionTeams const& teams, C (&x)[K][N], int const (&counts)[K], int64_t) {
    best = least();
#pragma unroll
    for (int c = 0; c < K; ++c) {
#pragma unroll
      for (int j = 0; j < N; ++j) best = j < counts[c] ? larger_of{}(x[c][j], best) : best;
    }
    best = Op::shift_of(join_team(teams, best, larger_of{}));
    total = 0;
#pragma unroll
    for (int c = 0; c < K; ++c) {
#pragma unroll
      for (int j = 0; j < N; ++j) {
        C const e = j < counts[c] ? math::exp(x[c][j] - best) : C(0);
        total += e;
        if constexpr (!logarithmic) x[c][j] = e;
      }
    }
    finish(join_team(teams, total, sum_of_two{}));
  }
  SITU_DEVICE __forceinline__ C value_of_held(Op const& op, C x, int64_t index) const {
    if constexpr (logarithmic) return value(op, x, index);
    else return x * total;
  }
  SITU_DEVICE __forceinline__ C value(Op const&, C x, int64_t) const {
    if constexpr (logarithmic) return x - best - total;
    else return math::exp(x - best) * total;
  }

  // Rows that are read twice: a few elements at a time.
  double wide_total;
  SITU_DEVICE __forceinline__ void start(Op const&, C) {
    best = least();
    total = 0;
    wide_total = 0;
  }
  template <int N>
  SITU_DEVICE __forceinline__ void step(Op const&, C const (&x)[N], int count) {
    C larger = best;
#pragma unroll
    for (int j = 0; j < N; ++j) larger = j < count ? larger_of{}(x[j], larger) : larger;
    if (larger > best || !(larger == larger)) {
      C const share = best == least() ? C(0) : math::exp(best - larger);
      total *= share;
      wide_total *= static_cast<double>(share);
      best = larger;
    }
    C const shift = Op::shift_of(best);
#pragma unroll
    for (int j = 0; j < N; ++j) total += j < count ? math::exp(x[j] - shift) : C(0);
  }
  SITU_DEVICE __forceinline__ void flush() {
    wide_total += static_cast<double>(total);
    total = 0;
  }
  SITU_DEVICE __forceinline__ void join(Op const&, ReductionTeams const& teams, int64_t) {
    flush();
    C const mine = best;
    best = Op::shift_of(join_team(teams, mine, larger_of{}));
    double const share = mine == least() ? 0.0 : static_cast<double>(math::exp(mine - best));
    finish(static_cast<C>(join_team(teams, wide_total == 0 ? 0.0 : wide_total * share, sum_of_two{})));
  }

 private:
  SITU_DEVICE __forceinline__ void finish(C sum) {
    if constexpr (logarithmic) total = math::log(sum);
    else total = C(1) / sum;
  }
};

template <class Op>
struct NormTeamMath {
  using C = typename Op::compute;
  static constexpr bool centred = std::is_same_v<Op, rows::layer_norm<typename Op::result>>;
  C shift, low, scale;

  template <int K, int N>
  SITU_DEVICE __forceinline__ void gather(Op const& op, ReductionTeams const& teams, C (&x)[K][N], int const (&counts)[K], int64_t length) {
    shift = low = 0;
    C const n = static_cast<C>(length);
    if constexpr (centred) {
      C sum = 0;
#pragma unroll
      for (int c = 0; c < K; ++c) {
#pragma unroll
        for (int j = 0; j < N; ++j) sum += j < counts[c] ? x[c][j] : C(0);
      }
      shift = join_team(teams, sum, sum_of_two{}) / n;
    }
    C rest = 0, squares = 0;
#pragma unroll
    for (int c = 0; c < K; ++c) {
#pragma unroll
      for (int j = 0; j < N; ++j) {
        C const d = j < counts[c] ? x[c][j] - shift : C(0);
        rest += d;
        squares += d * d;
      }
    }
    squares = join_team(teams, squares, sum_of_two{});
    if constexpr (centred) {
      rest = join_team(teams, rest, sum_of_two{});
      squares -= rest * (rest / n);
      low = rest / n;
    }
    finish(op, squares / n);
  }
  SITU_DEVICE __forceinline__ C value_of_held(Op const& op, C x, int64_t index) const { return value(op, x, index); }
  SITU_DEVICE __forceinline__ C value(Op const& op, C x, int64_t index) const {
    C y = (x - shift) * scale + low;
    if (op.weight) y *= op.weight[index];
    if (op.bias) y += op.bias[index];
    return y;
  }

  // About the first element: what is summed is small where the row is far from 0.
  C sum, squares;
  double wide_sum, wide_squares;
  SITU_DEVICE __forceinline__ void start(Op const&, C first) {
    shift = centred ? first : C(0);
    sum = squares = 0;
    wide_sum = wide_squares = 0;
  }
  template <int N>
  SITU_DEVICE __forceinline__ void step(Op const&, C const (&x)[N], int count) {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      C const d = j < count ? x[j] - shift : C(0);
      sum += d;
      squares += d * d;
    }
  }
  SITU_DEVICE __forceinline__ void flush() {
    wide_sum += static_cast<double>(sum);
    wide_squares += static_cast<double>(squares);
    sum = squares = 0;
  }
  SITU_DEVICE __forceinline__ void join(Op const& op, ReductionTeams const& teams, int64_t length) {
    flush();
    double const n = static_cast<double>(length), all = join_team(teams, wide_squares, sum_of_two{});
    double const off = centred ? join_team(teams, wide_sum, sum_of_two{}) / n : 0.0;
    double const mean = static_cast<double>(shift) + off;
    shift = static_cast<C>(mean);
    low = static_cast<C>(mean - static_cast<double>(shift));
    double const variance = all / n - off * off;
    finish(op, static_cast<C>(variance > 0 ? variance : variance == variance ? 0.0 : variance));
  }

 private:
  SITU_DEVICE __forceinline__ void finish(Op const& op, C variance) {
    scale = C(1) / math::sqrt(variance + static_cast<C>(op.eps));
    low = -low * scale;
  }
};
template <class Out>
struct TeamMath<rows::layer_norm<Out>> : NormTeamMath<rows::layer_norm<Out>> {};
template <class Out>
struct TeamMath<rows::rms_norm<Out>> : NormTeamMath<rows::rms_norm<Out>> {};

template <class P, bool Strips, bool Once>
__global__ void __launch_bounds__(block_threads) rows_kernel(const __grid_constant__ RowArguments<P> arguments) {
  using Op = typename P::op_type;
  using C = typename Op::compute;
  constexpr int N = row_lanes<P, Strips>, K = row_registers<Strips> / (N * static_cast<int>(sizeof(C)));
  ReductionTeams const teams = arguments.teams;
  int const lane = teams.lane();
  int64_t const row = static_cast<int64_t>(blockIdx.x) * teams.outputs() + teams.output();
  bool const mine = row < arguments.rows;  // all threads of a block stay: teams meet
  int64_t base[P::leaves + 1] = {};
  if (mine) walk_row(arguments, 0, arguments.kept, row, base);
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
    int64_t const end = mine ? arguments.steps : 0;
    C x[N] = {};
    if (mine) RowStep<P, N>(arguments, base, 0).read(arguments, x);
    math.start(arguments.op, x[0]);
    int chain = 0;
#pragma unroll 1
    for (int64_t number = lane; number < end; number += teams.lanes) {
      RowStep<P, N> const step(arguments, base, number);
      step.read(arguments, x);
      math.step(arguments.op, x, step.count);
      if (++chain % chain_length == 0) math.flush();
    }
    math.join(arguments.op, teams, arguments.length);
#pragma unroll 1
    for (int64_t number = lane; number < end; number += teams.lanes) {
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

template <class P, bool Strips>
void launch_rows(int device, P const& program) {
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
    int64_t const size = program.where.sizes[order[k]];
    arguments.sizes[k].size = size;
    arguments.sizes[k].fast = FastDivisor::of(size < index_limit ? size : 1);
    for (int o = 0; o < operands; ++o) arguments.strides[o][k] = program.where.strides[o][order[k]];
  }
  arguments.run = arguments.sizes[arguments.run_axis].size;
  arguments.runs = (arguments.run + N - 1) / N;
  arguments.steps = arguments.length / arguments.run * arguments.runs;
  arguments.vectors = 0;
  for (int o = 0; o < operands; ++o) {
    arguments.data[o] = program.where.data[o];
    auto const bytes = static_cast<std::uintptr_t>(N * element_size<P>(o));
    bool fits = arguments.strides[o][arguments.run_axis] == 1 && reinterpret_cast<std::uintptr_t>(arguments.data[o]) % bytes == 0;
    for (int k = 0; k < arguments.run_axis; ++k) fits = fits && arguments.strides[o][k] % N == 0;
    if (fits) arguments.vectors |= uint64_t{1} << o;
  }
  ReductionTeams& teams = arguments.teams;
  teams.side_by_side = !Strips;
  if (Strips) {
    teams.lanes = block_threads / power_of_2_above(program.columns, 32);
  } else {  // a warp or a part of it where that holds a row, else as many threads as hold one
    teams.lanes = power_of_2_above(arguments.steps, 32);
    while (teams.lanes < block_threads && teams.lanes * K < arguments.steps) teams.lanes *= 2;
  }
  int64_t const blocks = (arguments.rows + teams.outputs() - 1) / teams.outputs();
  auto* const kernel = arguments.steps <= int64_t{teams.lanes} * K ? rows_kernel<P, Strips, true> : rows_kernel<P, Strips, false>;
  launch(device, P::op_type::name, kernel, dim3(static_cast<unsigned>(blocks)), block_threads, arguments);
}

}  // namespace detail::cuda

namespace detail {
inline namespace SITU_ABI_COMPILER {

/// Runs a bound operation on rows on D, which has CUDA's kernels: one launch, enqueued on the device's current stream.
template <class D, class P>
void launch_rows(cuda_kernels, P const& program) {
  if (program.rows == 0 || program.length == 0 || program.columns == 0) return;
  constexpr int device = device_traits<D>::ordinal;
  if (program.strips) cuda::launch_rows<P, true>(device, program);
  else cuda::launch_rows<P, false>(device, program);
}

}  // namespace SITU_ABI_COMPILER
}  // namespace detail
}  // namespace situ::inline SITU_ABI

#endif
