/// Attention on a GPU: batched products of cuBLAS, and between them one kernel, in place, that makes weights of scores; another makes the
/// gradient of the scores from that of the weights. A team of threads works on a query, whose row stays in the first cache.
#pragma once

#include <situ/expr/math/exp.hpp>
#include <situ/ops/attention_plan.hpp>
#include <situ/ops/cuda/teams.hpp>
#include <situ/ops/matmul.hpp>

#if defined(__CUDACC__)

namespace situ::inline SITU_ABI {
namespace detail::cuda {

/// -inf as a number of C.
template <class C>
SITU_DEVICE C nothing_seen() {
  return static_cast<C>(-__builtin_huge_valf());
}

template <class T>
struct ScoreArguments {
  T* x;        ///< in: q kᵀ; out: weights. Backward: the weights, which stay
  T* slopes;   ///< backward. In: g vᵀ; out: the gradient of q kᵀ
  T* dropped;  ///< the weights after dropout; null without
  int64_t batches, rows, keys;
  AttentionSettings<T> settings;
  int mask_kind;
  void const* mask;
  int64_t mask_row, mask_column;
  int rank;
  int64_t sizes[max_rank - 2], mask_steps[max_rank - 2];
  Teams teams;
};

/// What is added to a row's scores.
template <class T>
struct MaskRow {
  using C = compute_t<T>;
  int kind;
  void const* first;
  int64_t step;
  SITU_DEVICE MaskRow(ScoreArguments<T> const& a, int64_t batch, int64_t row) : kind(a.mask_kind), first(nullptr), step(a.mask_column) {
    if (kind == 0) return;
    int64_t offset = row * a.mask_row;
#pragma unroll 1
    for (int axis = a.rank - 1; axis >= 0; --axis) {
      int64_t const outer = batch / a.sizes[axis];
      offset += (batch - outer * a.sizes[axis]) * a.mask_steps[axis];
      batch = outer;
    }
    first = kind == 1 ? static_cast<void const*>(static_cast<bool const*>(a.mask) + offset) : static_cast<void const*>(static_cast<T const*>(a.mask) + offset);
  }
  SITU_DEVICE C at(int64_t j) const {
    if (kind == 0) return C(0);
    if (kind == 1) return static_cast<bool const*>(first)[j * step] ? C(0) : nothing_seen<C>();
    return convert_scalar<C>(static_cast<T const*>(first)[j * step]);
  }
};

template <class T>
SITU_DEVICE compute_t<T> dropout_factor(AttentionSettings<T> const& settings, int64_t first_word, int64_t j) {
  auto const& op = settings.dropout.op;
  return op.keeps.happens(op.stream.word(first_word + j)) ? op.scale : compute_t<T>(0);
}

template <class T, bool Backward>
__global__ void __launch_bounds__(block_threads) scores_kernel(const __grid_constant__ ScoreArguments<T> a) {
  using C = compute_t<T>;
  Teams const teams = a.teams;
  int const lane = teams.lane(), step = teams.lanes;
  int64_t const item = static_cast<int64_t>(blockIdx.x) * teams.outputs() + teams.output();
  bool const mine = item < a.batches * a.rows;  // all threads of a block stay: teams meet
  int64_t const batch = mine ? item / a.rows : 0, row = mine ? item - batch * a.rows : 0;
  int64_t const n = !mine ? 0 : a.settings.causal && row + 1 < a.keys ? row + 1 : a.keys;
  int64_t const end = mine ? a.keys : 0, words = item * a.settings.dropout.row_words;
  T* const x = a.x + (mine ? item * a.keys : 0);
  T* const dropped = a.dropped ? a.dropped + (mine ? item * a.keys : 0) : nullptr;
  if constexpr (Backward) {
    T* const slopes = a.slopes + (mine ? item * a.keys : 0);
    C total = 0;
#pragma unroll 1
    for (int64_t j = lane; j < n; j += step) {
      C h = convert_scalar<C>(slopes[j]);
      C const w = convert_scalar<C>(x[j]);
      if (dropped) {
        C const factor = dropout_factor(a.settings, words, j);
        h *= factor;
        dropped[j] = convert_scalar<T>(w * factor);
      }
      total += w * h;
    }
    total = join_team<true>(teams, total, sum_of_two{});
#pragma unroll 1
    for (int64_t j = lane; j < end; j += step) {
      C slope = 0;
      if (j < n) {
        C h = convert_scalar<C>(slopes[j]);
        if (dropped) h *= dropout_factor(a.settings, words, j);
        slope = convert_scalar<C>(x[j]) * (h - total) * a.settings.scale;
      } else if (dropped) {
        dropped[j] = convert_scalar<T>(C(0));
      }
      slopes[j] = convert_scalar<T>(slope);
    }
  } else {
    MaskRow<T> const mask(a, batch, row);
    C largest = nothing_seen<C>();
#pragma unroll 1
    for (int64_t j = lane; j < n; j += step) largest = larger_of{}(convert_scalar<C>(x[j]) * a.settings.scale + mask.at(j), largest);
    largest = join_team<true>(teams, largest, larger_of{});
    C const shift = largest == nothing_seen<C>() ? C(0) : largest;
    C total = 0;
#pragma unroll 1
    for (int64_t j = lane; j < n; j += step) total += math::exp(convert_scalar<C>(x[j]) * a.settings.scale + mask.at(j) - shift);
    total = join_team<true>(teams, total, sum_of_two{});
    C const inverse = total == C(0) ? C(0) : C(1) / total;  // a query that sees no key gives 0
#pragma unroll 1
    for (int64_t j = lane; j < end; j += step) {
      C const w = j < n ? math::exp(convert_scalar<C>(x[j]) * a.settings.scale + mask.at(j) - shift) * inverse : C(0);
      x[j] = convert_scalar<T>(w);
      if (dropped) dropped[j] = convert_scalar<T>(w * dropout_factor(a.settings, words, j));
    }
  }
}

template <class T, bool Backward>
void launch_scores(int device, AttentionPlan const& plan, ScoreArguments<T>& a) {
  a.batches = plan.batches, a.rows = plan.rows, a.keys = plan.keys;
  int const lanes = power_of_2_above((plan.keys + 7) / 8, block_threads);
  a.teams = {lanes > 8 ? lanes : 8, true};
  int64_t const blocks = a.teams.blocks(plan.batches * plan.rows);
  launch(device, Backward ? "scaled_dot_product_attention (backward)" : "scaled_dot_product_attention", scores_kernel<T, Backward>, dim3(static_cast<unsigned>(blocks)),
         block_threads, a);
}

}  // namespace detail::cuda

namespace detail {
inline namespace SITU_ABI_COMPILER {

/// Gives the weights, for backward.
template <class T, class D>
Tensor<T, D> run_attention(cuda_kernels, AttentionPlan const& plan, AttentionSettings<T> const& settings, AttentionMask<T, D> const& mask, Tensor<T, D> const& q,
                           Tensor<T, D> const& k, Tensor<T, D> const& v, Tensor<T, D>& out) {
  AttentionSettings<T> scores = settings;
  Tensor<T, D> queries = q;
  if constexpr (std::is_same_v<T, float16>) {  // whose products may be out of range before they are scaled
    queries = Tensor<T, D>(q * settings.scale);
    scores.scale = 1;
  }
  Tensor<T, D> weights = product<T>(queries, k.transpose(-2, -1), "scaled_dot_product_attention"), dropped = weights;
  if (weights.size() > 0) {
    cuda::ScoreArguments<T> a{};
    if (settings.dropout.row_words != 0) dropped = Tensor<T, D>::uninitialized(weights.shape(), "scaled_dot_product_attention"), a.dropped = dropped.data();
    a.x = weights.data();
    a.settings = scores;
    a.mask_kind = mask.kind();
    if (mask.kind() != 0) {
      Layout const layout = expanded(mask.layout(), weights.shape());
      a.rank = plan.batch.rank();
      a.mask = mask.data(), a.mask_row = layout.strides[a.rank], a.mask_column = layout.strides[a.rank + 1];
      for (int axis = 0; axis < a.rank; ++axis) a.sizes[axis] = plan.batch[axis], a.mask_steps[axis] = layout.strides[axis];
    }
    cuda::launch_scores<T, false>(device_traits<D>::ordinal, plan, a);
  }
  Tensor<T, D> const value = product<T>(dropped, v, "scaled_dot_product_attention");
  if (out.is_contiguous()) out = value;
  else out.assign(value);
  return weights;
}

template <class T, class D, class Gradients>
void run_attention_gradient(cuda_kernels, AttentionPlan const& plan, AttentionSettings<T> const& settings, AttentionMask<T, D> const&, Tensor<T, D> const& q,
                            Tensor<T, D> const& k, Tensor<T, D> const& v, Tensor<T, D> const& weights, Tensor<T, D> const& g, Gradients& to) {
  Tensor<T, D> slopes = product<T>(g, v.transpose(-2, -1), "backward"), dropped = weights;
  if (slopes.size() > 0) {
    cuda::ScoreArguments<T> a{};
    if (settings.dropout.row_words != 0) dropped = Tensor<T, D>::uninitialized(weights.shape(), "backward"), a.dropped = dropped.data();
    a.x = const_cast<T*>(weights.data());
    a.slopes = slopes.data();
    a.settings = settings;
    cuda::launch_scores<T, true>(device_traits<D>::ordinal, plan, a);
  }
  auto const put = [](Tensor<T, D>& place, Tensor<T, D> const& value) {
    if (place.is_contiguous() && place.use_count() == 1) place = value;
    else place.assign(value);
  };
  if (to.v.size() > 0) put(to.v, product<T>(dropped.transpose(-2, -1), g, "backward"));
  if (to.q.size() > 0) put(to.q, product<T>(slopes, k, "backward"));
  if (to.k.size() > 0) put(to.k, product<T>(slopes.transpose(-2, -1), q, "backward"));
}

}  // namespace SITU_ABI_COMPILER
}  // namespace detail
}  // namespace situ::inline SITU_ABI

#endif
