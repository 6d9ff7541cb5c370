/// Cross entropy on a GPU: a part of a warp, a warp or a block works on each row, whose scores are read once in each direction.
///
/// As on the CPU a row's exponentials are taken about its label's score; a block in which a sum overflows goes through its rows again, about
/// their maximum.
#pragma once

#include <situ/nn/cuda/loss_parts.hpp>

#if defined(__CUDACC__)

namespace situ::inline SITU_ABI {
namespace detail::cuda {

/// How many threads work on a row of so many scores.
inline Teams row_teams(int64_t classes) { return {classes > 4096 ? block_threads : power_of_2_above((classes + 3) / 4, 32), true}; }

/// Whether rows of so many numbers can be read and written in vectors of 16 bytes at these places.
template <class T, class... To>
bool scores_take_vectors(int64_t length, T const* from, To const*... to) {
  return length % (16 / static_cast<int64_t>(sizeof(T))) == 0 && ((reinterpret_cast<std::uintptr_t>(from) | ... | reinterpret_cast<std::uintptr_t>(to))) % 16 == 0;
}

template <class T, class Ix>
struct LabelArguments {
  LabelProgram<T, Ix> p;
  Teams teams;
  bool vectors;     ///< rows are read and written 16 bytes at a time
  LossPart* parts;  ///< of blocks; null for reduction::none
  T const* g;       ///< backward: of the result
  T* out;
};

/// A row's maximum, and the sum of exponentials about it. For all threads of a block; those without a row have n == 0.
template <class T>
struct RowExponentials {
  using C = compute_t<T>;
  C maximum, sum;
  SITU_DEVICE RowExponentials(Teams const& teams, T const* x, int64_t n, bool vectors) {
    C m = -static_cast<C>(__builtin_huge_val());
    for_numbers(teams, x, n, vectors, [&](auto const& numbers, int64_t) {
      for (C number : numbers) m = larger_of{}(number, m);
    });
    maximum = join_team<true>(teams, m, larger_of{});
    sum = about(teams, x, n, vectors, maximum);
  }
  SITU_DEVICE static C about(Teams const& teams, T const* x, int64_t n, bool vectors, C shift) {
    C s = 0;
    for_numbers(teams, x, n, vectors, [&](auto const& numbers, int64_t) {
      for (C number : numbers) s += math::exp(number - shift);
    });
    return join_team<true>(teams, s, sum_of_two{});
  }
};

/// Σ w over all classes. For all threads of a block.
template <class T>
SITU_DEVICE double sum_of_weights(Teams const& teams, T const* weight, int64_t classes) {
  if (!weight) return static_cast<double>(classes);
  double s = 0;
#pragma unroll 1
  for (int64_t c = teams.lane(); c < classes; c += teams.lanes) s += static_cast<double>(number_at(weight, c));
  return join_team<true>(teams, s, sum_of_two{});
}

template <bool Logarithms, class T, class Ix>
__global__ void __launch_bounds__(block_threads) label_loss_kernel(const __grid_constant__ LabelArguments<T, Ix> arguments) {
  using C = compute_t<T>;
  auto const& p = arguments.p;
  Teams const teams = arguments.teams;
  int64_t const row = static_cast<int64_t>(blockIdx.x) * teams.outputs() + teams.output();
  bool const first = teams.lane() == 0;
  int64_t label = -1;
  if (row < p.rows) label = p.label(row);
  if (first && label == p.no_class) record(p.bounds, static_cast<int64_t>(p.labels[row]), row);
  T const* const x = p.x + (label < 0 ? 0 : row) * p.classes;
  C const at = label < 0 ? C(0) : number_at(x, label);
  LossPart part{0, 0};
  if (label >= 0 && first) part.weight = static_cast<double>(p.weight ? number_at(p.weight, label) : C(1));
  C loss = 0;
  if constexpr (Logarithms) {
    if (label >= 0) loss = -at * (p.weight ? number_at(p.weight, label) : C(1));
  } else {
    int64_t const n = label < 0 ? 0 : p.classes;
    C sum = RowExponentials<T>::about(teams, x, n, arguments.vectors, at), base = 0;
    bool const over = label >= 0 && !(sum <= C(1e30));
    if (__syncthreads_or(over)) {
      RowExponentials<T> const again(teams, x, n, arguments.vectors);
      if (over) sum = again.sum, base = again.maximum - at;
    }
    C const log_sum = base + math::log(sum);
    if (label >= 0) loss = log_sum * (p.weight ? number_at(p.weight, label) : C(1));
    if (p.smoothing > 0) {
      double const all = sum_of_weights(teams, p.weight, p.classes);
      C s = 0;
#pragma unroll 1
      for (int64_t c = teams.lane(); c < n; c += teams.lanes) s += (number_at(x, c) - at) * (p.weight ? number_at(p.weight, c) : C(1));
      s = join_team<true>(teams, s, sum_of_two{});
      if (label >= 0) loss = static_cast<C>(label_factors(p, label, all).scale) * log_sum - static_cast<C>(p.share() * static_cast<double>(s));
    }
    if (first && row < p.rows && p.sums) p.sums[row] = label < 0 ? C(0) : log_sum;
  }
  if (p.how == reduction::none) {
    if (first && row < p.rows) put_number(p.losses, row, loss);
    return;
  }
  if (first) part.loss = static_cast<double>(loss);
  leave_part(part, arguments.parts);
}

template <bool Logarithms, class T, class Ix>
__global__ void __launch_bounds__(block_threads) label_gradient_kernel(const __grid_constant__ LabelArguments<T, Ix> arguments) {
  using C = compute_t<T>;
  auto const& p = arguments.p;
  Teams const teams = arguments.teams;
  int64_t const row = static_cast<int64_t>(blockIdx.x) * teams.outputs() + teams.output();
  bool const mine = row < p.rows;
  int64_t const label = mine ? p.label(row) : -1;
  T const* const x = p.x + (mine ? row : 0) * p.classes;
  T* const out = arguments.out + (mine ? row : 0) * p.classes;
  double const all = p.smoothing > 0 ? sum_of_weights(teams, p.weight, p.classes) : 0;
  double slope = 0;
  if (label >= 0) {
    slope = p.how == reduction::none ? static_cast<double>(number_at(arguments.g, row)) : static_cast<double>(number_at(arguments.g, 0)) / static_cast<double>(p.sums[p.rows]);
  }
  LabelFactors const f = label_factors(p, label < 0 ? 0 : label, all);
  C const factor = static_cast<C>(slope * f.scale), hit = static_cast<C>(slope * f.hit), share = static_cast<C>(slope * p.share());
  if constexpr (Logarithms) {
#pragma unroll 4
    for (int64_t c = teams.lane(); mine && c < p.classes; c += teams.lanes) put_number(out, c, c == label ? -hit : C(0));
  } else {
    C shift = label < 0 ? C(0) : number_at(x, label), low = label < 0 ? C(0) : p.sums[row];
    bool const over = label >= 0 && !(low < C(far_label));
    if (__syncthreads_or(over)) {
      RowExponentials<T> const again(teams, x, mine ? p.classes : 0, arguments.vectors);
      if (over) shift = again.maximum, low = math::log(again.sum);
    }
    for_numbers(teams, x, mine ? p.classes : 0, arguments.vectors, [&](auto& numbers, int64_t first) {
      int64_t c = first;
      for (C& y : numbers) {
        y = label < 0 ? C(0) : math::exp((y - shift) - low) * factor;
        if (p.smoothing > 0 && label >= 0) y -= share * (p.weight ? number_at(p.weight, c) : C(1));
        if (c == label) y -= hit;
        ++c;
      }
      store_neighbours(out + first, numbers);
    });
  }
}

template <class T>
struct ProbabilityArguments {
  ProbabilityProgram<T> p;
  Teams teams;
  bool vectors;
  LossPart* parts;
  T const* g;
  T *out, *target_out;
  SITU_DEVICE compute_t<T> target(T const* targets, int64_t c) const {
    using C = compute_t<T>;
    C const t = number_at(targets, c) * static_cast<C>(1 - p.smoothing) + static_cast<C>(p.smoothing / static_cast<double>(p.classes));
    return p.weight ? t * number_at(p.weight, c) : t;
  }
};

template <class T>
__global__ void __launch_bounds__(block_threads) probability_loss_kernel(const __grid_constant__ ProbabilityArguments<T> arguments) {
  using C = compute_t<T>;
  auto const& p = arguments.p;
  Teams const teams = arguments.teams;
  int64_t const row = static_cast<int64_t>(blockIdx.x) * teams.outputs() + teams.output(), n = row < p.rows ? p.classes : 0;
  T const* const x = p.x + (row < p.rows ? row : 0) * p.classes;
  T const* const targets = p.targets + (row < p.rows ? row : 0) * p.classes;
  RowExponentials<T> const all(teams, x, n, arguments.vectors);
  C weights = 0, products = 0;
  for_numbers(teams, x, n, arguments.vectors, [&](auto const& numbers, int64_t c) {
    for (C number : numbers) {
      C const t = arguments.target(targets, c++);
      weights += t;
      products += t * (number - all.maximum);
    }
  });
  weights = join_team<true>(teams, weights, sum_of_two{});
  products = join_team<true>(teams, products, sum_of_two{});
  C const log_sum = math::log(all.sum), loss = weights * log_sum - products;
  bool const first = teams.lane() == 0 && row < p.rows;
  if (first && p.sums) p.sums[2 * row] = all.maximum, p.sums[2 * row + 1] = log_sum;
  if (p.how == reduction::none) {
    if (first) put_number(p.losses, row, loss);
    return;
  }
  leave_part(LossPart{first ? static_cast<double>(loss) : 0.0, 0}, arguments.parts);
}

template <class T>
__global__ void __launch_bounds__(block_threads) probability_gradient_kernel(const __grid_constant__ ProbabilityArguments<T> arguments) {
  using C = compute_t<T>;
  auto const& p = arguments.p;
  Teams const teams = arguments.teams;
  int64_t const row = static_cast<int64_t>(blockIdx.x) * teams.outputs() + teams.output(), n = row < p.rows ? p.classes : 0;
  int64_t const at = (row < p.rows ? row : 0) * p.classes;
  T const *const x = p.x + at, *const targets = p.targets + at;
  C weights = 0;
  if (arguments.out) {
#pragma unroll 4
    for (int64_t c = teams.lane(); c < n; c += teams.lanes) weights += arguments.target(targets, c);
  }
  weights = join_team<true>(teams, weights, sum_of_two{});
  if (row >= p.rows) return;
  C const g = static_cast<C>(static_cast<double>(number_at(arguments.g, p.how == reduction::none ? row : 0)) / p.divisor);
  C const m = p.sums[2 * row], log_sum = p.sums[2 * row + 1], kept = g * static_cast<C>(1 - p.smoothing);
  for_numbers(teams, x, n, arguments.vectors, [&](auto& d, int64_t first) {
    for (C& number : d) number = number - m - log_sum;
    if (arguments.target_out) {
      std::remove_cvref_t<decltype(d)> slopes;
      int64_t c = first;
      for (C& slope : slopes) {
        slope = -kept * d[c - first] * (p.weight ? number_at(p.weight, c) : C(1));
        ++c;
      }
      store_neighbours(arguments.target_out + at + first, slopes);
    }
    if (!arguments.out) return;
    int64_t c = first;
    for (C& y : d) y = g * (math::exp(y) * weights - arguments.target(targets, c++));
    store_neighbours(arguments.out + at + first, d);
  });
}

/// Launches a kernel of rows, and the one that joins the parts of its blocks.
template <class D, class Arguments, class Program>
void launch_loss_rows(char const* name, void (*kernel)(Arguments const), Arguments& arguments, Program const& p) {
  constexpr int device = device_traits<D>::ordinal;
  arguments.teams = row_teams(p.classes);
  int64_t const blocks = p.rows > 0 ? arguments.teams.blocks(p.rows) : 1;
  bool const joins = p.how != reduction::none;
  Temporary<D> const memory(joins ? static_cast<std::size_t>(blocks) * sizeof(LossPart) : 0);
  arguments.parts = static_cast<LossPart*>(memory.get());
  launch(device, name, kernel, dim3(static_cast<unsigned>(blocks)), block_threads, arguments);
  if (joins) launch(device, name, join_losses_kernel<Program>, dim3(1), block_threads, JoinLossesArguments<Program>{p, arguments.parts, blocks});
}

}  // namespace detail::cuda

namespace detail {
inline namespace SITU_ABI_COMPILER {

/// Runs a loss of labels on D, which has CUDA's kernels: two launches, or one without a reduction.
template <class D, bool Logarithms, class T, class Ix>
void launch_label_loss(cuda_kernels, LabelProgram<T, Ix> const& p) {
  cuda::LabelArguments<T, Ix> arguments{p, {}, cuda::scores_take_vectors(p.classes, p.x), nullptr, nullptr, nullptr};
  cuda::launch_loss_rows<D>(p.bounds.operation, cuda::label_loss_kernel<Logarithms, T, Ix>, arguments, p);
}
template <class D, bool Logarithms, class T, class Ix>
void launch_label_gradient(cuda_kernels, LabelProgram<T, Ix> const& p, T const* g, T* out) {
  cuda::LabelArguments<T, Ix> const arguments{p, cuda::row_teams(p.classes), cuda::scores_take_vectors(p.classes, p.x, out), nullptr, g, out};
  cuda::launch(device_traits<D>::ordinal, "cross_entropy", cuda::label_gradient_kernel<Logarithms, T, Ix>, dim3(static_cast<unsigned>(arguments.teams.blocks(p.rows))),
               cuda::block_threads, arguments);
}
template <class D, class T>
void launch_probability_loss(cuda_kernels, ProbabilityProgram<T> const& p) {
  cuda::ProbabilityArguments<T> arguments{p, {}, cuda::scores_take_vectors(p.classes, p.x), nullptr, nullptr, nullptr, nullptr};
  cuda::launch_loss_rows<D>("cross_entropy", cuda::probability_loss_kernel<T>, arguments, p);
}
template <class D, class T>
void launch_probability_gradient(cuda_kernels, ProbabilityProgram<T> const& p, T const* g, T* out, T* target_out) {
  cuda::ProbabilityArguments<T> const arguments{p, cuda::row_teams(p.classes), cuda::scores_take_vectors(p.classes, p.x, out, target_out), nullptr, g, out, target_out};
  cuda::launch(device_traits<D>::ordinal, "cross_entropy", cuda::probability_gradient_kernel<T>, dim3(static_cast<unsigned>(arguments.teams.blocks(p.rows))),
               cuda::block_threads, arguments);
}

}  // namespace SITU_ABI_COMPILER
}  // namespace detail
}  // namespace situ::inline SITU_ABI

#endif
