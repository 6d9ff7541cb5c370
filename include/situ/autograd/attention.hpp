/// Attention of Variables: scaled_dot_product_attention as one recorded operation.
///
/// Shapes, dtypes, devices, options and what is thrown are those of ops/attention.hpp.
#pragma once

#include <situ/autograd/operands.hpp>
#include <situ/ops/attention.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// Views that the gradients by queries, keys and values are written to; one without data is not wanted. The last axis has no gaps.
template <class T, class D>
struct AttentionGradients {
  Tensor<T, D> q, k, v;
};

inline namespace SITU_ABI_THREADS {

template <class T, class D>
void run_attention_gradient(cpu_kernels, AttentionPlan const& plan, AttentionSettings<T> const& settings, AttentionMask<T, D> const& mask, Tensor<T, D> const& q,
                            Tensor<T, D> const& k, Tensor<T, D> const& v, attention_memory_t<T, D> const& statistics, Tensor<T, D> const& g,
                            AttentionGradients<T, D>& to) {
  if (plan.batches * plan.rows * plan.keys == 0) {
    for (Tensor<T, D>* each : {&to.q, &to.k, &to.v}) {
      if (each->size() > 0) each->assign(T(0.f));
    }
    return;
  }
  cpu::AttentionKernel<T, true> kernel{};
  cpu::plan_kernel(kernel, plan, settings);
  kernel.mask_kind = mask.kind();
  if (mask.kind() != 0) kernel.mask = {mask.data(), expanded(mask.layout(), plan.with(plan.rows, plan.keys))};
  kernel.q = {q.data(), q.layout()}, kernel.k = {k.data(), k.layout()}, kernel.v = {v.data(), v.layout()}, kernel.g = {g.data(), g.layout()};
  if (to.q.size() > 0) kernel.dq = {to.q.data(), to.q.layout()};
  if (to.k.size() > 0) kernel.dk = {to.k.data(), to.k.layout()};
  if (to.v.size() > 0) kernel.dv = {to.v.data(), to.v.layout()};
  kernel.statistics = const_cast<compute_t<T>*>(statistics.data());
  cpu::launch_attention<D>(kernel, plan.batches);
}

}  // namespace SITU_ABI_THREADS

#if !defined(__CUDACC__)
inline namespace SITU_ABI_COMPILER {
template <class T, class D>
void run_attention_gradient(cuda_kernels, AttentionPlan const&, AttentionSettings<T> const&, AttentionMask<T, D> const&, Tensor<T, D> const&, Tensor<T, D> const&,
                            Tensor<T, D> const&, attention_memory_t<T, D> const&, Tensor<T, D> const&, AttentionGradients<T, D>&) {
  static_assert(compiled_by_nvcc<T>, "situ: gradients_on_Cuda_need_nvcc: this file is not compiled by nvcc; name it .cu, or move the Variables to the host");
}
}  // namespace SITU_ABI_COMPILER
#endif

/// With w the weights and h = g vᵀ:   ∂L/∂v = wᵀ g,   s = w (h - Σ w h) scale,   ∂L/∂q = s k,   ∂L/∂k = sᵀ q
template <class T, class D, class DQ, class DK, class DV>
struct AttentionRule {
  Saved<T, DQ> q;
  Saved<T, DK> k;
  Saved<T, DV> v;
  attention_memory_t<T, D> memory;
  AttentionPlan plan;
  AttentionSettings<T> settings;
  AttentionMask<T, D> mask;
  uint32_t mask_version;

  template <class IntoQ, class IntoK, class IntoV>
  void operator()(Tensor<T, D> const& g, IntoQ const& into_q, IntoK const& into_k, IntoV const& into_v) const {
    Tensor<T, D> const queries(q.tensor()), keys(k.tensor()), values(v.tensor());
    check_unchanged(mask.storage_head(), mask_version, mask.layout().shape);
    Shape const of_q = plan.with(plan.rows, plan.depth), of_k = plan.with(plan.keys, plan.depth), of_v = plan.with(plan.keys, plan.width);
    AttentionGradients<T, D> to;
    if (into_q.needed()) to.q = uninitialized_in_order_of<T, D>(queries.layout(), of_q, "backward");
    if (into_k.needed()) to.k = uninitialized_in_order_of<T, D>(keys.layout(), of_k, "backward");
    if (into_v.needed()) to.v = uninitialized_in_order_of<T, D>(values.layout(), of_v, "backward");
    run_attention_gradient<T, D>(typename device_traits<D>::kernels{}, plan, settings, mask, queries.expand(of_q), keys.expand(of_k), values.expand(of_v), memory, g, to);
    if (into_q.needed()) into_q.add(to.q);
    if (into_k.needed()) into_k.add(to.k);
    if (into_v.needed()) into_v.add(to.v);
  }
};

/// Queries, keys and values of all heads side by side: x [batch, tokens, 3 heads depth] → [batch, tokens, heads depth]; the gradient is written
/// where it belongs, in one tensor of the shape of x.
template <class T, class D>
struct PackedHeads {
  int64_t heads;
  /// Part 0, 1 or 2 of x: [batch, heads, tokens, depth].
  Tensor<T, D> part(Tensor<T, D> const& x, int k) const {
    int64_t const depth = x.size(-1) / (3 * heads);
    return x.view({x.size(0), x.size(1), 3, heads, depth}).select(2, k).transpose(1, 2);
  }
  Tensor<T, D> joined(Tensor<T, D> const& y) const { return y.transpose(1, 2).reshape({y.size(0), y.size(2), y.size(1) * y.size(3)}); }
  Tensor<T, D> split(Tensor<T, D> const& g) const { return g.reshape({g.size(0), g.size(1), heads, g.size(-1) / heads}).transpose(1, 2); }
};
template <class T, class D>
struct PackedAttentionRule {
  Saved<T, D> x;
  attention_memory_t<T, D> memory;
  AttentionPlan plan;
  AttentionSettings<T> settings;
  AttentionMask<T, D> mask;
  uint32_t mask_version;
  PackedHeads<T, D> heads;

  template <class IntoX>
  void operator()(Tensor<T, D> const& g, IntoX const& into) const {
    if (!into.needed()) return;
    Tensor<T, D> const& packed = x.tensor();
    check_unchanged(mask.storage_head(), mask_version, mask.layout().shape);
    auto result = Tensor<T, D>::uninitialized(packed.shape(), "backward");
    AttentionGradients<T, D> to{heads.part(result, 0), heads.part(result, 1), heads.part(result, 2)};
    run_attention_gradient<T, D>(typename device_traits<D>::kernels{}, plan, settings, mask, heads.part(packed, 0), heads.part(packed, 1), heads.part(packed, 2), memory,
                                 heads.split(g), to);
    into.add(result);
  }
};

/// The self-attention of packed heads. `x` is contiguous.
template <class T, class D>
auto packed_attention(Tensor<T, D> const& x, int64_t heads, attention_options<T, D> const& options, auto const& make) {
  PackedHeads<T, D> const of{heads};
  Tensor<T, D> const q = of.part(x, 0), k = of.part(x, 1), v = of.part(x, 2);
  AttentionPlan const plan = plan_attention<T, D>(q.shape(), k.shape(), v.shape(), options);
  AttentionSettings<T> settings = attention_settings<T, D>(plan, options);
  auto result = attention<T, D>(plan, settings, options.mask, q, k, v);
  return make(of.joined(result.value), result.memory, plan, settings);
}
template <class T, class D>
Tensor<T, D> packed_attention(Tensor<T, D> const& x, int64_t heads, attention_options<T, D> const& options) {
  return packed_attention<T, D>(x, heads, options, [](auto value, auto const&...) { return value; });
}
template <class T, class D>
Variable<T, D> packed_attention(Variable<T, D> const& x, int64_t heads, attention_options<T, D> const& options) {
  return packed_attention<T, D>(x.value(), heads, options, [&](Tensor<T, D> value, auto const& memory, auto const& plan, auto const& settings) {
    if (!is_recording(x)) return Variable<T, D>(std::move(value), false);
    return record("PackedAttention", std::move(value), PackedAttentionRule<T, D>{Saved<T, D>(x), memory, plan, settings, options.mask, version_of(options.mask.storage_head()), {heads}}, x);
  });
}

}  // namespace detail

/// softmax(q kᵀ scale + mask) v of operands one of which records; see ops/attention.hpp.
///
/// Gradient  five products for each head and one pass over its scores; the same from run to run and for any number of threads. No second derivative.
template <class Q, class K, class V>
  requires(detail::recorded_operands<Q, K, V> && floating<detail::attended_t<Q, K, V>>)
auto scaled_dot_product_attention(Q const& q_, K const& k_, V const& v_,
                                  attention_options<detail::attended_t<Q, K, V>, detail::attention_device_t<Q, K, V>> const& options = {}) {
  using T = detail::attended_t<Q, K, V>;
  using D = detail::attention_device_t<Q, K, V>;
  auto const q = detail::operation_input<T>(q_);
  auto const k = detail::operation_input<T>(k_);
  auto const v = detail::operation_input<T>(v_);
  detail::AttentionPlan const plan = detail::plan_attention<T, D>(q.shape(), k.shape(), v.shape(), options);
  auto settings = detail::attention_settings<T, D>(plan, options);
  auto result = detail::attention<T, D>(plan, settings, options.mask, Tensor<T, D>(q.value()), Tensor<T, D>(k.value()), Tensor<T, D>(v.value()));
  if (!detail::is_recording(q, k, v)) return Variable<T, D>(std::move(result.value), false);
  using Rule = detail::AttentionRule<T, D, device_of<decltype(q)>, device_of<decltype(k)>, device_of<decltype(v)>>;
  return detail::record("ScaledDotProductAttention", std::move(result.value),
                        Rule{detail::saved_input(q), detail::saved_input(k), detail::saved_input(v), result.memory, plan, settings, options.mask,
                             detail::version_of(options.mask.storage_head())},
                        q, k, v);
}
template <class Q, class K, class V, class Error = detail::different_devices_of<Q, K, V>>
  requires detail::strange_recorded_operands<Q, K, V>
void scaled_dot_product_attention(Q const&, K const&, V const&, auto const&...) = delete;

}  // namespace situ::inline SITU_ABI
