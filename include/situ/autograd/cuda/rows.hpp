/// Gradients of operations on rows on a GPU: softmax, log_softmax, layer_norm, rms_norm. Rows are contiguous, one after the other; a warp, a part of
/// one, a block, or a cluster of blocks works on each, as forward. A row of up to 16 floats for each thread is read once, a longer one twice.
#pragma once

#include <situ/autograd/cpu/rows.hpp>
#include <situ/expr/cuda/evaluate.hpp>
#include <situ/ops/cuda/clusters.hpp>
#include <situ/ops/cuda/row_math.hpp>

#if defined(__CUDACC__)

namespace situ::inline SITU_ABI {
namespace detail::cuda {

/// `b` is the result y for the softmaxes, the input x for the norms.
template <class T>
struct RowGradientPlan {
  using C = compute_t<T>;
  T const* g;
  T const* b;
  T* out;           ///< null where only what rows are made with is wanted
  C const* weight;  ///< of the length of a row, or null
  C* made_with;     ///< takes [mean, low, scale][row]: z = (x - mean) scale + low; or null
  bool even;        ///< g is one element, the same for all
  int64_t rows, length;
  int64_t steps;    ///< of a row: vectors, or else elements
  double eps;
  Teams teams;
};

/// With z the normalised row, r = 1 / sqrt(var + eps), h = g w: r (h - mean(h) - z mean(h z)), without the first mean about 0. Softmax: y (g - Σ g y),
/// its logarithm: g - exp(y) Σ g.
template <cpu::RowGradient Kind, class C>
struct RowGradientMath {
  static constexpr bool centred = Kind == cpu::RowGradient::layer_norm, norm = centred || Kind == cpu::RowGradient::rms_norm;
  static constexpr bool logarithmic = Kind == cpu::RowGradient::log_softmax;
  C mean = 0, low = 0, scale = 1;  ///< z = (x - mean) scale + low
  C first = 0, second = 0;

  SITU_DEVICE __forceinline__ C normalized(C x) const { return (x - mean) * scale + low; }
  SITU_DEVICE __forceinline__ C value(C h, C b) const {
    if constexpr (norm) return scale * (h - first - normalized(b) * second);
    else if constexpr (logarithmic) return h - math::exp(b) * first;
    else return b * (h - first);
  }
  /// What a softmax sums.
  SITU_DEVICE __forceinline__ static C summed(C h, C b) { return logarithmic ? h : h * b; }
};

/// N neighbours of g, times the weight.
template <int N, class T, class C>
SITU_DEVICE __forceinline__ void slopes_of(RowGradientPlan<T> const& plan, Lanes<T, N> const& from, int64_t index, C (&h)[N]) {
#pragma unroll
  for (int j = 0; j < N; ++j) h[j] = from_word<T>(from.bits(j));
  if (!plan.weight) return;
  constexpr int at_once = N * sizeof(C) < 16 ? N : 16 / static_cast<int>(sizeof(C));
#pragma unroll
  for (int k = 0; k < N; k += at_once) {
    Lanes<C, at_once> weight;
    weight.load(plan.weight + index + k);
#pragma unroll
    for (int j = 0; j < at_once; ++j) h[k + j] *= from_word<C>(weight.bits(j));
  }
}

/// One row of a plan.
template <cpu::RowGradient Kind, class T, bool Vectors>
struct RowGradientRow {
  using C = compute_t<T>;
  using Math = RowGradientMath<Kind, C>;
  static constexpr int N = Vectors ? 16 / static_cast<int>(sizeof(T)) : 1;       ///< neighbours that a thread takes at once
  static constexpr int K = 64 / (N * static_cast<int>(sizeof(C)));  ///< how often it does so for a row that it holds

  RowGradientPlan<T> const& plan;
  int64_t row;
  T const* from_g;
  T const* from_b;
  T* to;
  Math math;

  SITU_DEVICE __forceinline__ RowGradientRow(RowGradientPlan<T> const& plan, int64_t row)
      : plan(plan), row(row), from_g(plan.g + (plan.even ? 0 : row) * plan.length), from_b(plan.b + row * plan.length), to(plan.out + (plan.out ? row : 0) * plan.length) {}

  SITU_DEVICE __forceinline__ void load_slopes(Lanes<T, N>& lanes, int64_t index) const {
    if (plan.even) lanes.load_one(from_g);
    else lanes.load(from_g + index);
  }
  SITU_DEVICE __forceinline__ void tell(bool first) const {
    if (!first || !plan.made_with) return;
    plan.made_with[row] = math.mean;
    plan.made_with[plan.rows + row] = math.low;
    plan.made_with[2 * plan.rows + row] = math.scale;
  }

  /// For a team that holds it.
  template <class Team>
  SITU_DEVICE __forceinline__ void hold(Team& team, RowShare const& share) {
    C const n = static_cast<C>(plan.length);
    Lanes<T, N> slopes[K], bases[K];
#pragma unroll
    for (int c = 0; c < K; ++c) {  // all loads come first
      if (share.ends_before<N>(c)) break;
      if (!share.has(c)) continue;
      load_slopes(slopes[c], int64_t{share.number(c)} * N);
      bases[c].load(from_b + int64_t{share.number(c)} * N);
    }
    C h[K][N], b[K][N];
#pragma unroll
    for (int c = 0; c < K; ++c) {
      if (share.ends_before<N>(c)) break;
#pragma unroll
      for (int j = 0; j < N; ++j) h[c][j] = b[c][j] = 0;
      if (!share.has(c)) continue;
      slopes_of(plan, slopes[c], int64_t{share.number(c)} * N, h[c]);
#pragma unroll
      for (int j = 0; j < N; ++j) b[c][j] = from_word<T>(bases[c].bits(j));
    }
    // Calls use(c, j) for the elements of this thread.
    auto const for_each = [&](auto const& use) {
#pragma unroll
      for (int c = 0; c < K; ++c) {
        if (share.ends_before<N>(c)) break;
        if (!share.has(c)) continue;
#pragma unroll
        for (int j = 0; j < N; ++j) use(c, j);
      }
    };
    if constexpr (Math::norm) {
      if constexpr (Math::centred) {
        C total = 0;
        for_each([&](int c, int j) { total += b[c][j]; });
        math.mean = join_team<true>(team, total, sum_of_two{}) / n;
      }
      C sums[Math::centred ? 4 : 2] = {};  // of d², h d, d, h
      for_each([&](int c, int j) {
        C const d = b[c][j] - math.mean;
        sums[0] += d * d;
        sums[1] += h[c][j] * d;
        if constexpr (Math::centred) {
          sums[2] += d;
          sums[3] += h[c][j];
        }
      });
      join_team<true>(team, sums, sum_of_two{});
      C off = 0;
      if constexpr (Math::centred) {
        off = sums[2] / n;  // what the mean lost
        sums[0] -= sums[2] * off;
        sums[1] -= sums[3] * off;
        math.first = sums[3] / n;
      }
      math.scale = C(1) / math::sqrt(sums[0] / n + static_cast<C>(plan.eps));
      math.low = -off * math.scale;
      math.second = sums[1] / n * math.scale;
      tell(share.steps > 0 && share.lane == 0);
      if (!plan.out) return;
    } else {
      C sum = 0;
      for_each([&](int c, int j) { sum += Math::summed(h[c][j], b[c][j]); });
      math.first = join_team<true>(team, sum, sum_of_two{});
    }
#pragma unroll
    for (int c = 0; c < K; ++c) {
      if (share.ends_before<N>(c)) break;
      if (!share.has(c)) continue;
#pragma unroll
      for (int j = 0; j < N; ++j) h[c][j] = math.value(h[c][j], b[c][j]);
      store_neighbours(to + int64_t{share.number(c)} * N, h[c]);
    }
  }

  /// For a team that reads it twice.
  SITU_DEVICE __forceinline__ void read_twice(Teams const& teams, bool mine) {
    int64_t const end = mine ? plan.steps : 0;
    // Calls use(h, b, index) for the vectors of this thread.
    auto const for_each = [&](auto const& use) {
      constexpr int rounds = 2;
#pragma unroll 1
      for (int64_t number = teams.lane(); number < end; number += rounds * teams.lanes) {
        Lanes<T, N> slopes[rounds], bases[rounds];
#pragma unroll
        for (int r = 0; r < rounds; ++r) {
          int64_t const index = (number + r * teams.lanes) * N;
          if (index < plan.length) load_slopes(slopes[r], index), bases[r].load(from_b + index);
        }
#pragma unroll
        for (int r = 0; r < rounds; ++r) {
          int64_t const index = (number + r * teams.lanes) * N;
          if (index >= plan.length) continue;
          C h[N], b[N];
          slopes_of(plan, slopes[r], index, h);
#pragma unroll
          for (int j = 0; j < N; ++j) b[j] = from_word<T>(bases[r].bits(j));
          use(h, b, index);
        }
      }
    };
    C sums[4] = {};  // of d = x - shift, d², h, h d; of a softmax the first alone
    double wide[4] = {};
    auto const flush = [&] {
#pragma unroll
      for (int k = 0; k < 4; ++k) wide[k] += static_cast<double>(sums[k]), sums[k] = 0;
    };
    C const shift = Math::centred && mine ? from_word<T>(*reinterpret_cast<word_of<T> const*>(from_b)) : C(0);
    int chain = 0;
    for_each([&](C(&h)[N], C(&b)[N], int64_t) {
#pragma unroll
      for (int j = 0; j < N; ++j) {
        if constexpr (Math::norm) {
          C const d = b[j] - shift;
          sums[0] += d;
          sums[1] += d * d;
          sums[2] += h[j];
          sums[3] += h[j] * d;
        } else {
          sums[0] += Math::summed(h[j], b[j]);
        }
      }
      if (++chain % 8 == 0) flush();
    });
    flush();
    if constexpr (Math::norm) join_team<true>(teams, wide, sum_of_two{});
    else wide[0] = join_team<true>(teams, wide[0], sum_of_two{});
    if constexpr (Math::norm) {
      double const count = static_cast<double>(plan.length), off = Math::centred ? wide[0] / count : 0.0, mean = static_cast<double>(shift) + off;
      double const variance = wide[1] / count - off * off;
      math.mean = static_cast<C>(mean);
      math.scale = C(1) / math::sqrt(static_cast<C>(variance > 0 ? variance : variance == variance ? 0.0 : variance) + static_cast<C>(plan.eps));
      math.low = static_cast<C>(static_cast<double>(math.mean) - mean) * math.scale;
      tell(mine && teams.lane() == 0);
      if (!plan.out) return;
      if constexpr (Math::centred) math.first = static_cast<C>(wide[2] / count);
      math.second = static_cast<C>((wide[3] - off * wide[2]) / count) * math.scale;
    } else {
      math.first = static_cast<C>(wide[0]);
    }
    for_each([&](C(&h)[N], C(&b)[N], int64_t index) {
#pragma unroll
      for (int j = 0; j < N; ++j) h[j] = math.value(h[j], b[j]);
      store_neighbours(to + index, h);
    });
  }
};

template <cpu::RowGradient Kind, class T, bool Vectors, bool Held>
__global__ void __launch_bounds__(block_threads) row_gradient_kernel(const __grid_constant__ RowGradientPlan<T> plan) {
  Teams const teams = plan.teams;
  int64_t const row = static_cast<int64_t>(blockIdx.x) * teams.outputs() + teams.output();
  bool const mine = row < plan.rows;  // all threads of a block stay: teams meet
  RowGradientRow<Kind, T, Vectors> of_row(plan, mine ? row : 0);
  if constexpr (Held) of_row.hold(teams, RowShare{teams.lane(), teams.lanes, mine ? static_cast<int>(plan.steps) : 0});
  else of_row.read_twice(teams, mine);
}
template <cpu::RowGradient Kind, class T, bool Vectors>
__global__ void __launch_bounds__(cluster_threads) cluster_row_gradient_kernel(const __grid_constant__ RowGradientPlan<T> plan) {
  ClusterTeam team;
  RowGradientRow<Kind, T, Vectors>(plan, blockIdx.x / team.blocks).hold(team, RowShare{team.lane(), team.lanes(), static_cast<int>(plan.steps)});
}

template <class D, cpu::RowGradient Kind, class T, bool Vectors>
void launch_row_gradient(RowGradientPlan<T>& plan, char const* name) {
  constexpr int device = device_traits<D>::ordinal, N = RowGradientRow<Kind, T, Vectors>::N, K = RowGradientRow<Kind, T, Vectors>::K;
  plan.steps = plan.length / N;
  Teams& teams = plan.teams;
  teams = {power_of_2_above(plan.steps, 32), true};
  while (teams.lanes < block_threads && teams.lanes * K < plan.steps) teams.lanes *= 2;
  bool const held = plan.steps <= int64_t{teams.lanes} * K;
  if (!held) {
    int const held_by = blocks_that_hold<cluster_row_gradient_kernel<Kind, T, Vectors>>(device, plan.rows, (plan.steps + K - 1) / K);
    if (held_by > 0) return launch_clusters(device, name, cluster_row_gradient_kernel<Kind, T, Vectors>, plan.rows, held_by, plan);
  }
  dim3 const blocks(static_cast<unsigned>(teams.blocks(plan.rows)));
  launch(device, name, held ? row_gradient_kernel<Kind, T, Vectors, true> : row_gradient_kernel<Kind, T, Vectors, false>, blocks, block_threads, plan);
}

}  // namespace detail::cuda

namespace detail {
inline namespace SITU_ABI_COMPILER {

/// The gradient by the input of an operation on contiguous rows on D, which has CUDA's kernels; `even`: g is one element. Enqueued.
template <class D, cpu::RowGradient Kind, class T>
void launch_row_gradient(cuda_kernels, T const* g, bool even, T const* b, T* out, compute_t<T> const* weight, compute_t<T>* made_with, int64_t rows, int64_t length,
                         double eps, char const* name) {
  if (rows == 0 || length == 0) return;
  cuda::RowGradientPlan<T> plan{g, b, out, weight, made_with, even, rows, length, 0, eps, {}};
  constexpr int lanes = 16 / static_cast<int>(sizeof(T));
  auto const on_grid = [](void const* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; };
  if (length % lanes == 0 && (even || on_grid(g)) && on_grid(b) && on_grid(out) && on_grid(weight)) cuda::launch_row_gradient<D, Kind, T, true>(plan, name);
  else cuda::launch_row_gradient<D, Kind, T, false>(plan, name);
}

}  // namespace SITU_ABI_COMPILER
}  // namespace detail
}  // namespace situ::inline SITU_ABI

#endif
