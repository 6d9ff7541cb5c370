/// Attention: every query takes a mean of the values, weighted by how well its key fits.
///
///     y = w v,   w = softmax(q kᵀ scale + mask)
///
/// Shape     q [..., rows, depth], k [..., keys, depth], v [..., keys, width] → [..., rows, width]; the axes before broadcast, mostly [batch, heads].
/// Dtype     floating; operands promote. 16-bit floats are computed in float on the CPU; on CUDA their scores are rounded, as in PyTorch.
/// Device    runs where the operands live; enqueued.
/// Options   causal: query i sees keys 0 to i. scale: 1 / sqrt(depth) unless given. mask: bool (true is seen) or floating (added), broadcast to
///           [..., rows, keys]; with causal, both count. dropout: weights become 0 with that probability, the others are divided by 1 - p.
/// Throws    ShapeError when shapes do not fit, or dropout is not in [0, 1].
/// Special   a query that sees no key gives 0. NaN in a score gives NaN in its row, masked or not. The weights that dropout drops depend on the generator, its call and
///           the weight's indices alone, not on device or threads.
/// Cost      two products, of operands as they lie: heads that are slices of tokens are not copied, and the result lies in memory as q does. On the
///           CPU scores stay in the cache, and keys that no query of a block sees are not computed. On CUDA two batched products of cuBLAS, and
///           between them scale, mask, softmax and dropout in one kernel, in place.
/// Gradient  with g = ∂L/∂y, h = g vᵀ, s = w (h - Σⱼ w h) scale:   ∂L/∂q = s k,   ∂L/∂k = sᵀ q,   ∂L/∂v = wᵀ g. Kept on the CPU are two numbers
///           for each query, on CUDA the weights. The mask is a constant.
/// Source    Vaswani et al. 2017, arXiv:1706.03762; weights made again in backward: Dao et al. 2022, arXiv:2205.14135.
#pragma once

#include <situ/ops/cpu/attention.hpp>
#include <situ/ops/matmul.hpp>
#if defined(__CUDACC__)
#include <situ/ops/cuda/attention.hpp>
#endif

namespace situ::inline SITU_ABI {
namespace error {
template <class Queries, class Keys, class Values>
struct attention_needs_floating_elements__use_cast {};
}  // namespace error

namespace detail {

/// What backward needs of forward: on the CPU shift and inverse sum of each query, [batches, rows, 2]; on CUDA the weights.
template <class T, class D>
using attention_memory_t = std::conditional_t<std::is_same_v<typename device_traits<D>::kernels, cpu_kernels>, Tensor<compute_t<T>, D>, Tensor<T, D>>;

inline namespace SITU_ABI_THREADS {

/// Writes the attention of operands of equal batch axes to `out`, which is a view of any order whose last axis has no gaps.
template <class T, class D>
attention_memory_t<T, D> run_attention(cpu_kernels, AttentionPlan const& plan, AttentionSettings<T> const& settings, AttentionMask<T, D> const& mask,
                                       Tensor<T, D> const& q, Tensor<T, D> const& k, Tensor<T, D> const& v, Tensor<T, D>& out) {
  auto statistics = Tensor<compute_t<T>, D>::uninitialized({plan.batches, plan.rows, 2}, "scaled_dot_product_attention");
  if (plan.batches * plan.rows == 0) return statistics;
  cpu::AttentionKernel<T, false> kernel{};
  cpu::plan_kernel(kernel, plan, settings);
  kernel.mask_kind = mask.kind();
  if (mask.kind() != 0) kernel.mask = {mask.data(), expanded(mask.layout(), plan.with(plan.rows, plan.keys))};
  kernel.q = {q.data(), q.layout()}, kernel.k = {k.data(), k.layout()}, kernel.v = {v.data(), v.layout()};
  kernel.out = {out.data(), out.layout()};
  kernel.statistics = statistics.data();
  cpu::launch_attention<D>(kernel, plan.batches * kernel.blocks);
  return statistics;
}

}  // namespace SITU_ABI_THREADS

#if !defined(__CUDACC__)
inline namespace SITU_ABI_COMPILER {
template <class T, class D>
attention_memory_t<T, D> run_attention(cuda_kernels, AttentionPlan const&, AttentionSettings<T> const&, AttentionMask<T, D> const&, Tensor<T, D> const& q,
                                       Tensor<T, D> const&, Tensor<T, D> const&, Tensor<T, D>&) {
  static_assert(compiled_by_nvcc<T>, "situ: attention_on_Cuda_needs_nvcc: this file is not compiled by nvcc; name it .cu, or move the tensors to the host");
  return q;
}
}  // namespace SITU_ABI_COMPILER
#endif

/// The value of an attention, and what backward needs.
template <class T, class D>
struct AttentionResult {
  Tensor<T, D> value;
  attention_memory_t<T, D> memory;
};
/// Draws the dropout's numbers, which backward needs again, into `settings`.
template <class T, class D>
AttentionResult<T, D> attention(AttentionPlan const& plan, AttentionSettings<T>& settings, AttentionMask<T, D> const& mask, Tensor<T, D> const& q,
                                Tensor<T, D> const& k, Tensor<T, D> const& v) {
  std::optional<Draw> draw;
  if (settings.dropout.row_words != 0) settings.dropout.op.stream = draw.emplace(default_generator()).stream;
  auto out = uninitialized_in_order_of<T, D>(q.layout(), plan.with(plan.rows, plan.width), "scaled_dot_product_attention");
  auto memory = run_attention<T, D>(typename device_traits<D>::kernels{}, plan, settings, mask, q.expand(plan.with(plan.rows, plan.depth)),
                                    k.expand(plan.with(plan.keys, plan.depth)), v.expand(plan.with(plan.keys, plan.width)), out);
  return {std::move(out), std::move(memory)};
}

template <class Q, class K, class V>
using attended_t = promoted_t<value_of<Q>, value_of<K>, value_of<V>>;
template <class Q, class K, class V>
using attention_device_t = result_device_t<typename common_device<typename common_device<device_of<Q>, device_of<K>>::type, device_of<V>>::type>;
template <class Q, class K, class V>
concept attention_operands = expression<Q> && expression<K> && expression<V> && on_same_device<Q, K> && on_same_device<K, V> && on_same_device<Q, V>;

/// The plan of a call.
template <class T, class D>
AttentionPlan plan_attention(Shape const& q, Shape const& k, Shape const& v, attention_options<T, D> const& options) {
  return plan_attention(q, k, v, options.mask.kind() != 0 ? &options.mask.layout().shape : nullptr, options.dropout);
}

}  // namespace detail

/// softmax(q kᵀ scale + mask) v; see the top of this file.
///
/// Example   scaled_dot_product_attention(q, k, v, {.causal = true});  scaled_dot_product_attention(q, k, v, {.mask = seen});
template <class Q, class K, class V>
  requires(detail::attention_operands<Q, K, V> && floating<detail::attended_t<Q, K, V>>)
auto scaled_dot_product_attention(Q const& q_, K const& k_, V const& v_,
                                  attention_options<detail::attended_t<Q, K, V>, detail::attention_device_t<Q, K, V>> const& options = {}) {
  using T = detail::attended_t<Q, K, V>;
  using D = detail::attention_device_t<Q, K, V>;
  detail::AttentionPlan const plan = detail::plan_attention<T, D>(q_.shape(), k_.shape(), v_.shape(), options);
  Tensor<T, D> const q(q_), k(k_), v(v_);
  detail::AttentionSettings<T> settings = detail::attention_settings<T, D>(plan, options);
  return detail::attention<T, D>(plan, settings, options.mask, q, k, v).value;
}
template <class Q, class K, class V, class Error = detail::different_devices_of<Q, K, V>>
  requires(expression<Q> && expression<K> && expression<V> && !detail::attention_operands<Q, K, V>)
void scaled_dot_product_attention(Q const&, K const&, V const&, auto const&...) = delete;
template <class Q, class K, class V, class Error = error::attention_needs_floating_elements__use_cast<value_of<Q>, value_of<K>, value_of<V>>>
  requires(detail::attention_operands<Q, K, V> && !floating<detail::attended_t<Q, K, V>>)
void scaled_dot_product_attention(Q const&, K const&, V const&, auto const&...) = delete;

}  // namespace situ::inline SITU_ABI
