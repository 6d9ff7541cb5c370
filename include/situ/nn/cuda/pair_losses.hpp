/// Losses of pairs of elements on a GPU: runs of neighbours for each thread, 16 bytes at a time where memory allows it.
#pragma once

#include <situ/nn/cuda/loss_parts.hpp>
#include <situ/nn/pair_functions.hpp>

#if defined(__CUDACC__)

namespace situ::inline SITU_ABI {
namespace detail::cuda {

inline constexpr int64_t pair_blocks = 2048;  ///< at most; each thread then takes several runs

template <class T>
struct PairArguments {
  PairProgram<T> p;
  LossPart* parts;
  T const* g;
  T *dx, *dy;
  bool vectors;  ///< all memory is aligned to 16 bytes
};

/// N neighbours as numbers.
template <class T, int N>
SITU_DEVICE __forceinline__ void read_run(T const* from, int64_t i, int count, bool vectors, compute_t<T>* to) {
  Lanes<T, N> lanes;
  if (vectors && count == N) lanes.load(from + i);
  else lanes.load_each(from + i, 1, count);
#pragma unroll
  for (int j = 0; j < N; ++j) to[j] = from_word<T>(lanes.bits(j));
}
template <class T, int N>
SITU_DEVICE __forceinline__ void write_run(T* to, int64_t i, int count, bool vectors, compute_t<T> const* from) {
  Lanes<T, N> lanes;
  lanes.clear();
#pragma unroll
  for (int j = 0; j < N; ++j) lanes.insert(j, to_word<T>(from[j]));
  if (vectors && count == N) lanes.store(to + i);
  else lanes.store_each(to + i, 1, count);
}

/// The operands of N pairs.
template <class Kind, class T, int N>
struct PairRun {
  using C = compute_t<T>;
  C x[N], y[N], a[N], b[N];
  SITU_DEVICE __forceinline__ PairRun(PairProgram<T> const& p, int64_t i, int count, bool vectors) {
    read_run<T, N>(p.x, i, count, vectors, x);
    read_run<T, N>(p.y, i, count, vectors, y);
#pragma unroll
    for (int j = 0; j < N; ++j) a[j] = static_cast<C>(p.parameter), b[j] = 1;
    if constexpr (Kind::weighs) {
      if (p.a) read_run<T, N>(p.a, i, count, vectors, a);
      if (p.b) read_run<T, N>(p.b, i, count, vectors, b);
    }
  }
};

template <class Kind, class T>
__global__ void __launch_bounds__(block_threads) pair_loss_kernel(const __grid_constant__ PairArguments<T> arguments) {
  using C = compute_t<T>;
  constexpr int N = 16 / static_cast<int>(sizeof(T));
  auto const& p = arguments.p;
  LossPart part{0, 0};
  int64_t const step = static_cast<int64_t>(gridDim.x) * (block_threads * N);
#pragma unroll 1
  for (int64_t i = global_thread() * N; i < p.count; i += step) {
    int const count = p.count - i < N ? static_cast<int>(p.count - i) : N;
    PairRun<Kind, T, N> const run(p, i, count, arguments.vectors);
    C values[N], sum = 0;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      values[j] = Kind::value(run.x[j], run.y[j], run.a[j], run.b[j]);
      if (j < count) sum += values[j];
    }
    if (p.how == reduction::none) write_run<T, N>(p.losses, i, count, arguments.vectors, values);
    else part.loss += static_cast<double>(sum);
  }
  if (p.how != reduction::none) leave_part(part, arguments.parts);
}

template <class Kind, class T>
__global__ void __launch_bounds__(block_threads) pair_gradient_kernel(const __grid_constant__ PairArguments<T> arguments) {
  using C = compute_t<T>;
  constexpr int N = 16 / static_cast<int>(sizeof(T));
  auto const& p = arguments.p;
  C const all = p.how == reduction::none ? C(0) : static_cast<C>(static_cast<double>(number_at(arguments.g, 0)) / p.divisor);
  int64_t const step = static_cast<int64_t>(gridDim.x) * (block_threads * N);
#pragma unroll 1
  for (int64_t i = global_thread() * N; i < p.count; i += step) {
    int const count = p.count - i < N ? static_cast<int>(p.count - i) : N;
    PairRun<Kind, T, N> const run(p, i, count, arguments.vectors);
    C g[N], dx[N], dy[N];
    if (p.how == reduction::none) read_run<T, N>(arguments.g, i, count, arguments.vectors, g);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      C const slope = p.how == reduction::none ? g[j] : all;
      if (arguments.dy) {
        Kind::slopes(run.x[j], run.y[j], run.a[j], run.b[j], dx[j], dy[j]);
        dy[j] *= slope;
      } else {
        dx[j] = losses::slope_of_x<Kind>(run.x[j], run.y[j], run.a[j], run.b[j]);
      }
      dx[j] *= slope;
    }
    if (arguments.dx) write_run<T, N>(arguments.dx, i, count, arguments.vectors, dx);
    if (arguments.dy) write_run<T, N>(arguments.dy, i, count, arguments.vectors, dy);
  }
}

/// Fills in what follows from the memory; gives the blocks.
template <class T>
int64_t plan_pairs(PairArguments<T>& arguments) {
  PairProgram<T> const& p = arguments.p;
  arguments.vectors = true;
  bool const single = p.how == reduction::none;
  T const* const all[] = {p.x, p.y, p.a, p.b, arguments.dx, arguments.dy, single ? p.losses : nullptr, single ? arguments.g : nullptr};
  for (T const* memory : all) arguments.vectors = arguments.vectors && reinterpret_cast<std::uintptr_t>(memory) % 16 == 0;
  int64_t const blocks = (p.count + block_threads * (16 / static_cast<int64_t>(sizeof(T))) - 1) / (block_threads * (16 / static_cast<int64_t>(sizeof(T))));
  return blocks < 1 ? 1 : blocks < pair_blocks ? blocks : pair_blocks;
}

}  // namespace detail::cuda

namespace detail {
inline namespace SITU_ABI_COMPILER {

template <class D, class Kind, class T>
void launch_pair_loss(cuda_kernels, PairProgram<T> const& p) {
  constexpr int device = device_traits<D>::ordinal;
  cuda::PairArguments<T> arguments{p, nullptr, nullptr, nullptr, nullptr, true};
  int64_t const blocks = cuda::plan_pairs(arguments);
  bool const joins = p.how != reduction::none;
  Temporary<D> const memory(joins ? static_cast<std::size_t>(blocks) * sizeof(LossPart) : 0);
  arguments.parts = static_cast<LossPart*>(memory.get());
  cuda::launch(device, Kind::name, cuda::pair_loss_kernel<Kind, T>, dim3(static_cast<unsigned>(blocks)), cuda::block_threads, arguments);
  if (!joins) return;
  cuda::launch(device, Kind::name, cuda::join_losses_kernel<PairProgram<T>>, dim3(1), cuda::block_threads, cuda::JoinLossesArguments<PairProgram<T>>{p, arguments.parts, blocks});
}
template <class D, class Kind, class T>
void launch_pair_gradient(cuda_kernels, PairProgram<T> const& p, T const* g, T* dx, T* dy) {
  cuda::PairArguments<T> arguments{p, nullptr, g, dx, dy, true};
  int64_t const blocks = cuda::plan_pairs(arguments);
  cuda::launch(device_traits<D>::ordinal, Kind::name, cuda::pair_gradient_kernel<Kind, T>, dim3(static_cast<unsigned>(blocks)), cuda::block_threads, arguments);
}

}  // namespace SITU_ABI_COMPILER
}  // namespace detail
}  // namespace situ::inline SITU_ABI

#endif
