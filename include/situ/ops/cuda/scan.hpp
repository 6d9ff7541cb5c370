/// Scans on a GPU: one kernel, or three where few long lines are cut into parts (totals, their scan, the parts).
///
/// The threads of a team take runs of neighbouring elements of a line and join their totals by shuffles; where the lines lie side by side in
/// memory, each thread has a line of its own. How the work is cut depends on shapes and strides alone, and nothing is atomic: the results are
/// the same from run to run.
#pragma once

#include <situ/core/storage.hpp>
#include <situ/ops/cuda/teams.hpp>
#include <situ/ops/cuda/walk.hpp>
#include <situ/ops/scan_program.hpp>

#if defined(__CUDACC__)

namespace situ::inline SITU_ABI {
namespace detail::cuda {

enum class scan_pass { whole, totals, parts };

/// What the lanes before this one in its team combine to, and all of them: `total`. For all threads of a block.
template <class S>
SITU_DEVICE typename S::element team_scan(int lanes, typename S::element x, typename S::element& total) {
  using A = typename S::element;
  __shared__ A warps[block_threads / 32];
  int const lane = static_cast<int>(threadIdx.x) % lanes, width = lanes < 32 ? lanes : 32;
  A y = x;
#pragma unroll 1
  for (int step = 1; step < width; step *= 2) {
    A const before = __shfl_up_sync(0xffffffffu, y, static_cast<unsigned>(step), width);
    if (lane % width >= step) y = S::combine(before, y);
  }
  A before = __shfl_up_sync(0xffffffffu, y, 1u, width);
  if (lane % width == 0) before = S::identity();
  total = __shfl_sync(0xffffffffu, y, width - 1, width);
  if (lanes <= 32) return before;
  int const warp = static_cast<int>(threadIdx.x) / 32, first = warp - lane / 32;
  __syncthreads();  // what was read in the round before
  if (threadIdx.x % 32 == 31) warps[warp] = y;
  __syncthreads();
  A base = S::identity();
  total = S::identity();
#pragma unroll 1
  for (int k = first; k < first + lanes / 32; ++k) {
    A const other = warps[k];
    if (k < warp) base = S::combine(base, other);
    total = S::combine(total, other);
  }
  return S::combine(base, before);
}

template <class P>
struct ScanArguments {
  static constexpr int operands = P::leaves + 2;  ///< the inputs from number 1 on; the output is the last one
  using A = typename P::element;
  typename P::tree_type tree;
  void const* data[operands];
  int64_t strides[operands][max_rank];
  WalkedAxis sizes[max_rank];
  int run_axis;
  bool wide;  ///< the number of lines exceeds 31 bits
  int64_t lines, length, part_length;
  int parts, lanes;
  scan_pass pass;
  uint64_t vectors;  ///< bit o: input o - 1 takes 16-byte accesses; bit 0: the output does
  typename P::out_type* out;
  A* totals;  ///< of all parts of a line, then of the next line
  explicit ScanArguments(typename P::tree_type const& tree) : tree(tree) {}
  SITU_DEVICE int64_t run_stride(int operand) const { return strides[operand][run_axis]; }
};

/// How many neighbouring elements a thread takes at once.
template <class P>
inline constexpr int scan_lanes = P::leaves == 0 ? 4 : 16 / widest_input<typename P::tree_type>;

template <class P>
__global__ void __launch_bounds__(block_threads) scan_kernel(const __grid_constant__ ScanArguments<P> arguments) {
  using S = typename P::scanner;
  using A = typename P::element;
  using Out = typename P::out_type;
  using Tree = typename P::tree_type;
  constexpr int N = scan_lanes<P>, output = P::leaves + 1;
  constexpr int M = N < 16 / static_cast<int>(sizeof(Out)) ? N : 16 / static_cast<int>(sizeof(Out));
  int const lanes = arguments.lanes, lane = static_cast<int>(threadIdx.x) % lanes;
  int64_t const line = static_cast<int64_t>(blockIdx.x) * (block_threads / lanes) + static_cast<int>(threadIdx.x) / lanes;
  bool const mine = line < arguments.lines;
  int const along = arguments.run_axis;
  int64_t kept[output + 1] = {};
  if (mine) walk<1>(arguments, 0, along, line, kept);

  int64_t first = static_cast<int64_t>(blockIdx.y) * arguments.part_length;
  int64_t const end = first + arguments.part_length < arguments.length ? first + arguments.part_length : arguments.length;
  A base = S::identity(), chain = S::identity();
  if (mine && arguments.pass == scan_pass::parts) base = arguments.totals[line * arguments.parts + blockIdx.y];
#pragma unroll 1
  for (; first < end; first += lanes * N) {
    int64_t const at = first + lane * N, left = end - at;
    int const count = !mine || left <= 0 ? 0 : left < N ? static_cast<int>(left) : N;
    int64_t offsets[output + 1];
#pragma unroll
    for (int o = 1; o <= output; ++o) offsets[o] = kept[o] + arguments.strides[o][along] * at;
    Held<Tree, N> held;
    hold(held, WalkSource<ScanArguments<P>>{arguments, offsets, count});
    A values[N];
    A running = S::identity();
#pragma unroll
    for (int j = 0; j < N; ++j) {
      if (count <= 0) break;  // what a map calls is not called for what is not there
      A const x = convert_scalar<A>(Evaluator::value(arguments.tree, held, j, at));
      if (j < count) running = S::combine(running, x);
      values[j] = running;
    }
    A front = S::identity(), total = running;
    if (lanes > 1) front = team_scan<S>(lanes, running, total);
    if (arguments.pass != scan_pass::totals && count > 0) {
      front = S::combine(base, S::combine(chain, front));
      Out* const to = arguments.out + offsets[output];
      int64_t const step = arguments.strides[output][along];
#pragma unroll
      for (int j = 0; j < N; j += M) {
        Lanes<Out, M> result;
        result.clear();
#pragma unroll
        for (int k = 0; k < M; ++k) {
          result.insert(k, to_word<Out>(convert_scalar<compute_t<Out>>(S::combine(front, values[j + k]))));
        }
        if (count == N && (arguments.vectors & 1)) result.store(to + j);
        else result.store_each(to + j * step, step, count - j);
      }
    }
    chain = S::combine(chain, total);
  }
  if (mine && lane == 0 && arguments.pass == scan_pass::totals) arguments.totals[line * arguments.parts + blockIdx.y] = chain;
}

template <class S>
struct ScanBasesArguments {
  typename S::element* totals;
  int64_t lines;
  int parts, lanes;
};

/// Makes the totals of each line's parts what stands in front of them.
template <class S>
__global__ void __launch_bounds__(block_threads) scan_bases_kernel(const __grid_constant__ ScanBasesArguments<S> arguments) {
  using A = typename S::element;
  int const lanes = arguments.lanes, lane = static_cast<int>(threadIdx.x) % lanes;
  int64_t const line = static_cast<int64_t>(blockIdx.x) * (block_threads / lanes) + static_cast<int>(threadIdx.x) / lanes;
  A* const totals = arguments.totals + line * arguments.parts;
  A chain = S::identity();
#pragma unroll 1
  for (int first = 0; first < arguments.parts; first += lanes) {
    bool const mine = line < arguments.lines && first + lane < arguments.parts;
    A const x = mine ? totals[first + lane] : S::identity();
    A total = x;
    A const before = team_scan<S>(lanes, x, total);
    if (mine) totals[first + lane] = S::combine(chain, before);
    chain = S::combine(chain, total);
  }
}

/// Everything of the arguments that does not depend on memory, and the blocks to launch.
template <class P>
dim3 plan_scan(P const& program, ScanArguments<P>& arguments) {
  constexpr int N = scan_lanes<P>, output = P::leaves + 1;
  auto const& where = program.where;
  int const along = where.rank - 1;
  arguments.run_axis = along;
  arguments.lines = program.lines;
  arguments.length = program.length;
  arguments.wide = program.lines >= index_limit;
  arguments.vectors = 0;
  arguments.totals = nullptr;
  arguments.pass = scan_pass::whole;
  arguments.out = static_cast<typename P::out_type*>(where.data[0]);
  for (int k = 0; k < where.rank; ++k) {
    arguments.sizes[k] = WalkedAxis::of(where.sizes[k]);
    for (int o = 1; o < output; ++o) arguments.strides[o][k] = where.strides[o][k];
    arguments.strides[output][k] = where.strides[0][k];
  }
  arguments.data[0] = arguments.data[output] = nullptr;
  for (int o = 0; o < output; ++o) {
    constexpr int out_lanes = N < 16 / static_cast<int>(sizeof(typename P::out_type)) ? N : 16 / static_cast<int>(sizeof(typename P::out_type));
    int const n = o == 0 ? out_lanes : N;
    int const size = o == 0 ? static_cast<int>(sizeof(typename P::out_type)) : input_size(std::type_identity<typename P::tree_type>{}, o - 1);
    if (o > 0) arguments.data[o] = where.data[o];
    if (takes_vectors(where.data[o], size, n, where.strides[o][along], where.strides[o], along)) arguments.vectors |= uint64_t{1} << o;
  }

  // A thread for each line where lines lie side by side, for most operands; else a team.
  int votes = 0;
  for (int o = 0; o < output && along > 0; ++o) {
    int64_t const a = where.strides[o][along] < 0 ? -where.strides[o][along] : where.strides[o][along];
    int64_t const b = where.strides[o][along - 1] < 0 ? -where.strides[o][along - 1] : where.strides[o][along - 1];
    if (a != 0 && b != 0) votes += b < a ? 1 : -1;
  }
  int64_t const runs = (program.length + N - 1) / N;
  arguments.lanes = votes > 0 && program.lines >= 32 ? 1 : power_of_2_above(runs, block_threads);
  int const teams = block_threads / arguments.lanes;
  int64_t const blocks = (program.lines + teams - 1) / teams;
  int64_t parts = blocks < reduction_blocks ? (reduction_blocks + blocks - 1) / blocks : 1;
  int64_t const most = runs / (arguments.lanes == 1 ? 16 : 4 * arguments.lanes);
  if (parts > most) parts = most > 1 ? most : 1;
  int64_t const step = static_cast<int64_t>(arguments.lanes) * N;
  arguments.part_length = ((program.length + parts - 1) / parts + step - 1) / step * step;
  arguments.parts = static_cast<int>((program.length + arguments.part_length - 1) / arguments.part_length);
  return dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(arguments.parts));
}

}  // namespace detail::cuda

namespace detail {
inline namespace SITU_ABI_COMPILER {

/// Runs a bound scan on D, which has CUDA's kernels; enqueued on the device's current stream.
template <class D, class P>
void launch_scan(cuda_kernels, P const& program) {
  using S = typename P::scanner;
  static_assert(P::leaves < 63, "situ: a scan reads at most 62 tensors; evaluate a part of its input first");
  constexpr int device = device_traits<D>::ordinal;
  cuda::ScanArguments<P> arguments(program.tree);
  dim3 const blocks = cuda::plan_scan(program, arguments);
  if (arguments.parts == 1) return cuda::launch(device, S::name, cuda::scan_kernel<P>, blocks, cuda::block_threads, arguments);
  Temporary<D> const totals(static_cast<std::size_t>(program.lines * arguments.parts) * sizeof(typename S::element));
  arguments.totals = static_cast<typename S::element*>(totals.get());
  arguments.pass = cuda::scan_pass::totals;
  cuda::launch(device, S::name, cuda::scan_kernel<P>, blocks, cuda::block_threads, arguments);
  cuda::ScanBasesArguments<S> bases{arguments.totals, program.lines, arguments.parts, cuda::power_of_2_above(arguments.parts, cuda::block_threads)};
  int const teams = cuda::block_threads / bases.lanes;
  cuda::launch(device, S::name, cuda::scan_bases_kernel<S>, dim3(static_cast<unsigned>((program.lines + teams - 1) / teams)), cuda::block_threads, bases);
  arguments.pass = cuda::scan_pass::parts;
  cuda::launch(device, S::name, cuda::scan_kernel<P>, blocks, cuda::block_threads, arguments);
}

}  // namespace SITU_ABI_COMPILER
}  // namespace detail
}  // namespace situ::inline SITU_ABI

#endif
