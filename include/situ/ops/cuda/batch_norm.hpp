/// Batch normalisation on a GPU, and its gradient: sums of channels in parts, one small launch that makes every channel's coefficients of them,
/// and one over all elements.
///
/// A block, or a part of one, sums a channel along its images; where images are single values neighbouring threads take neighbouring channels. Sums
/// are chains in the computing type, which are put aside in double. How work is cut depends on shapes alone, and nothing is atomic.
#pragma once

#include <situ/core/storage.hpp>
#include <situ/ops/batch_norm_plan.hpp>
#include <situ/ops/cuda/teams.hpp>
#include <situ/ops/cuda/walk.hpp>

#if defined(__CUDACC__)

namespace situ::inline SITU_ABI {
namespace detail::cuda {

/// The sums of d = x - shift and of d², or of g and of g d.
struct ChannelSums {
  double sum, products;
};

template <class T>
struct BatchNormArguments {
  using C = compute_t<T>;
  static constexpr int lanes = 16 / static_cast<int>(sizeof(T));
  BatchNormPlan plan;
  T const* x;
  T const* g;
  T* out;
  ChannelValues weight_gradient, bias_gradient;
  ChannelSums* parts;          ///< [channels, count]
  ChannelCoefficients<C>* by;  ///< [channels]
  WalkedAxis runs;             ///< steps of `lanes` neighbours in a run: an image of a channel, or the channels of an image where these lie side by side
  WalkedAxis channels;
  int64_t run, steps, steps_per_part;
  int count;
  bool vectors, wide, across;
  Teams teams;

  /// About what differences of a channel are summed.
  template <bool HasG>
  SITU_DEVICE __forceinline__ C shift_of(int64_t c) const {
    if constexpr (HasG) return plan.template centre<C>(c);
    else return convert_scalar<C>(x[c * plan.inner]);
  }
  SITU_DEVICE __forceinline__ void load(T const* from, int64_t offset, int existing, Lanes<T, lanes>& to) const {
    if (vectors && existing == lanes) to.load(from + offset);
    else to.load_each(from + offset, 1, existing);
  }
};

template <class T, bool HasG>
__global__ void __launch_bounds__(block_threads) channel_sums_kernel(const __grid_constant__ BatchNormArguments<T> arguments) {
  using C = compute_t<T>;
  constexpr int N = BatchNormArguments<T>::lanes;
  BatchNormPlan const& plan = arguments.plan;
  Teams const teams = arguments.teams;
  int64_t const c = static_cast<int64_t>(blockIdx.x) * teams.outputs() + teams.output();
  bool const mine = c < plan.channels;  // all threads of a block stay: teams meet
  int64_t const first = static_cast<int64_t>(blockIdx.y) * arguments.steps_per_part, last = first + arguments.steps_per_part;
  int64_t const end = !mine ? 0 : last < arguments.steps ? last : arguments.steps;
  C const shift = mine ? arguments.template shift_of<HasG>(c) : C(0);
  C sum = C(0), products = C(0);
  double wide_sum = 0, wide_products = 0;
  int chain = 0;
#pragma unroll 2
  for (int64_t number = first + teams.lane(); number < end; number += teams.lanes) {
    int64_t const image = arguments.runs.quotient(number, arguments.wide), at = (number - image * arguments.runs.size) * N;
    int64_t const offset = (image * plan.channels + c) * plan.inner + at;
    int const existing = plan.inner - at < N ? static_cast<int>(plan.inner - at) : N;
    Lanes<T, N> x, g;
    arguments.load(arguments.x, offset, existing, x);
    if constexpr (HasG) arguments.load(arguments.g, offset, existing, g);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      C const d = j < existing ? from_word<T>(x.bits(j)) - shift : C(0);
      C h = d;
      if constexpr (HasG) h = from_word<T>(g.bits(j));  // 0 where there is none
      sum += h;
      products += h * d;
    }
    if (++chain % chain_length == 0) {
      wide_sum += static_cast<double>(sum), wide_products += static_cast<double>(products);
      sum = products = C(0);
    }
  }
  wide_sum = join_team<false>(teams, wide_sum + static_cast<double>(sum), sum_of_two{});
  __syncthreads();  // until the first sums have been read
  wide_products = join_team<false>(teams, wide_products + static_cast<double>(products), sum_of_two{});
  if (mine && teams.lane() == 0) arguments.parts[c * arguments.count + blockIdx.y] = {wide_sum, wide_products};
}

/// A warp for each channel joins its parts.
template <class T, bool HasG>
__global__ void __launch_bounds__(block_threads) channel_coefficients_kernel(const __grid_constant__ BatchNormArguments<T> arguments) {
  using C = compute_t<T>;
  BatchNormPlan const& plan = arguments.plan;
  Teams const teams{32, true};
  int64_t const c = static_cast<int64_t>(blockIdx.x) * teams.outputs() + teams.output();
  bool const mine = c < plan.channels;
  double sum = 0, products = 0;
#pragma unroll 1
  for (int k = teams.lane(); mine && k < arguments.count; k += teams.lanes) {
    ChannelSums const part = arguments.parts[c * arguments.count + k];
    sum += part.sum, products += part.products;
  }
  sum = join_team<false>(teams, sum, sum_of_two{});
  products = join_team<false>(teams, products, sum_of_two{});
  if (!mine || teams.lane() != 0) return;
  if constexpr (HasG) {
    arguments.by[c] = plan.template differentiating<C>(c, sum, products, arguments.weight_gradient, arguments.bias_gradient);
  } else {
    ChannelMoments moments;
    if (plan.training) {
      double const n = static_cast<double>(plan.count()), squares = products - sum * (sum / n);
      moments = {static_cast<double>(arguments.template shift_of<false>(c)) + sum / n, squares < 0 ? 0.0 : squares};
    }
    arguments.by[c] = plan.template normalizing<C>(c, moments);
  }
}

/// (x - shift) scale + low, with g slope.
template <class T, bool HasG>
__global__ void __launch_bounds__(block_threads) scale_channels_kernel(const __grid_constant__ BatchNormArguments<T> arguments) {
  using C = compute_t<T>;
  constexpr int N = BatchNormArguments<T>::lanes;
  int64_t const threads = static_cast<int64_t>(gridDim.x) * block_threads;
#pragma unroll 1
  for (int64_t number = static_cast<int64_t>(blockIdx.x) * block_threads + threadIdx.x; number < arguments.steps; number += threads) {
    int64_t const run = arguments.runs.quotient(number, arguments.wide), at = (number - run * arguments.runs.size) * N;
    int64_t const offset = run * arguments.run + at;
    int const existing = arguments.run - at < N ? static_cast<int>(arguments.run - at) : N;
    int64_t const c = arguments.across ? at : run - arguments.channels.quotient(run, arguments.wide) * arguments.channels.size;
    Lanes<T, N> x, g, y;
    arguments.load(arguments.x, offset, existing, x);
    if constexpr (HasG) arguments.load(arguments.g, offset, existing, g);
    ChannelCoefficients<C> by = arguments.by[c];
    y.clear();
#pragma unroll
    for (int j = 0; j < N; ++j) {
      if (arguments.across && j > 0 && j < existing) by = arguments.by[c + j];
      C value = (from_word<T>(x.bits(j)) - by.shift) * by.scale + by.low;
      if constexpr (HasG) value += from_word<T>(g.bits(j)) * by.slope;
      y.insert(j, to_word<T>(value));
    }
    if (arguments.vectors && existing == N) y.store(arguments.out + offset);
    else y.store_each(arguments.out + offset, 1, existing);
  }
}

template <class T>
bool is_aligned(T const* p) {
  return reinterpret_cast<std::uintptr_t>(p) % 16 == 0;
}

/// Sets how far runs go and in how many steps.
template <class T>
void cut(BatchNormArguments<T>& arguments, int64_t run, int64_t runs) {
  constexpr int N = BatchNormArguments<T>::lanes;
  arguments.run = run;
  arguments.runs = WalkedAxis::of((run + N - 1) / N);
  arguments.steps = runs * arguments.runs.size;
  arguments.wide = arguments.steps >= index_limit;
  arguments.vectors = run % N == 0 && is_aligned(arguments.x) && (!arguments.g || is_aligned(arguments.g)) && (!arguments.out || is_aligned(arguments.out));
}

template <class D, bool HasG, class T>
void launch_batch_norm(BatchNormPlan const& plan, T const* x, T const* g, T* out, ChannelValues const& weight_gradient, ChannelValues const& bias_gradient) {
  using C = compute_t<T>;
  constexpr int device = device_traits<D>::ordinal;
  BatchNormArguments<T> arguments{};
  arguments.plan = plan, arguments.x = x, arguments.g = g, arguments.out = out;
  arguments.weight_gradient = weight_gradient, arguments.bias_gradient = bias_gradient;
  arguments.channels = WalkedAxis::of(plan.channels);
  bool const sums = HasG ? plan.training || weight_gradient.data || bias_gradient.data : plan.training;
  cut(arguments, plan.inner, plan.images);
  Teams& teams = arguments.teams;
  teams.side_by_side = plan.inner > 1;
  if (teams.side_by_side) teams.lanes = power_of_2_above((arguments.steps + 3) / 4, block_threads);
  else teams.lanes = block_threads / power_of_2_above(plan.channels, 32);
  int64_t const blocks = teams.blocks(plan.channels);
  if (sums) {
    int64_t const parts = blocks <= reduction_blocks / 2 ? parts_of(blocks, reduction_blocks, arguments.steps, teams.lanes) : 1;
    arguments.steps_per_part = (arguments.steps + parts - 1) / parts;
    arguments.count = static_cast<int>((arguments.steps + arguments.steps_per_part - 1) / arguments.steps_per_part);
  }
  std::size_t const of_sums = static_cast<std::size_t>(plan.channels * arguments.count) * sizeof(ChannelSums);
  std::size_t const of_coefficients = static_cast<std::size_t>(plan.channels) * sizeof(ChannelCoefficients<C>);
  Temporary<D> const memory(of_coefficients + of_sums);
  arguments.by = static_cast<ChannelCoefficients<C>*>(memory.get());
  arguments.parts = reinterpret_cast<ChannelSums*>(static_cast<char*>(memory.get()) + of_coefficients);
  if (sums) {
    dim3 const grid(static_cast<unsigned>(blocks), static_cast<unsigned>(arguments.count));
    launch(device, "batch_norm", channel_sums_kernel<T, HasG>, grid, block_threads, arguments);
  }
  launch(device, "batch_norm", channel_coefficients_kernel<T, HasG>, dim3(static_cast<unsigned>((plan.channels + 7) / 8)), block_threads, arguments);
  if (!out) return;
  arguments.across = plan.inner == 1;
  cut(arguments, arguments.across ? plan.channels : plan.inner, arguments.across ? plan.images : plan.images * plan.channels);
  int64_t const wanted = (arguments.steps + block_threads - 1) / block_threads;
  dim3 const grid(static_cast<unsigned>(wanted < index_limit ? wanted : index_limit - 1));
  if constexpr (HasG) {
    if (plan.training) return launch(device, "batch_norm", scale_channels_kernel<T, true>, grid, block_threads, arguments);
    arguments.x = g;
  }
  launch(device, "batch_norm", scale_channels_kernel<T, false>, grid, block_threads, arguments);
}

}  // namespace detail::cuda

namespace detail {
inline namespace SITU_ABI_COMPILER {

/// Runs a plan on D, which has CUDA's kernels: three launches, two without the batch's statistics.
template <class D, class T>
void launch_batch_norm(cuda_kernels, BatchNormPlan const& plan, T const* x, T* y) {
  cuda::launch_batch_norm<D, false>(plan, x, static_cast<T const*>(nullptr), y, {}, {});
}
template <class D, class T>
void launch_batch_norm_gradient(cuda_kernels, BatchNormPlan const& plan, T const* g, T const* x, T* out, ChannelValues const& weight_gradient, ChannelValues const& bias_gradient) {
  cuda::launch_batch_norm<D, true>(plan, x, g, out, weight_gradient, bias_gradient);
}

}  // namespace SITU_ABI_COMPILER
}  // namespace detail
}  // namespace situ::inline SITU_ABI

#endif
