/// Batch normalisation of Variables, and of formulas with Variables.
///
/// Shapes, types, options and errors are those of ops/batch_norm.hpp. Running statistics are Tensors: they have no gradient.
/// Cost      backward: a channel of g and x is read twice, the second time from the cache where it fits, and its gradient written once.
///           Kept are x, the weight, and two numbers for each channel.
#pragma once

#include <situ/autograd/operands.hpp>
#include <situ/ops/batch_norm.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// With z = (x - mean) r and r = 1 / sqrt(var + eps): w r (g - mean(g) - z mean(g z)), w r g outside of training; Σ g z; Σ g.
template <class T, class D, class DX, class W, class DW>
struct BatchNormRule {
  using twice = on_lanes;
  Saved<T, DX> x;
  Saved<W, DW> weight;
  Tensor<double, D> statistics;
  BatchNormPlan plan;

  template <class IntoX, class IntoW, class IntoB>
  void operator()(Tensor<T, D> const& gradient, IntoX const& into_x, IntoW const& into_w, IntoB const& into_b) const {
    if (!into_x.needed() && !into_w.needed() && !into_b.needed()) return;
    Tensor<T, D> const g = gradient.contiguous();
    Tensor<T, DX> const images = x.tensor().contiguous();
    BatchNormPlan bound = plan;
    bound.statistics = Tensor<double, D>(statistics).data();
    bound.weight = channel_values(weight.tensor(), "weight", g.shape());
    Tensor<T, D> dx;
    Tensor<value_of<IntoW>, D> dw;
    Tensor<value_of<IntoB>, D> db;
    if (into_x.needed()) dx = Tensor<T, D>::uninitialized(g.shape(), "batch_norm");
    auto const weight_gradient = sums(into_w, dw), bias_gradient = sums(into_b, db);
    if (g.size() > 0) {  // without x, g stands for it: what is made of it is not asked for
      launch_batch_norm_gradient<D, T>(typename device_traits<D>::kernels{}, bound, g.data(), images.size() > 0 ? images.data() : g.data(),
                                       into_x.needed() ? dx.data() : nullptr, weight_gradient, bias_gradient);
    }
    if (into_x.needed()) into_x.add(dx);
    if (into_w.needed()) into_w.add(dw);
    if (into_b.needed()) into_b.add(db);
  }
  /// With history.
  template <class G, class IntoX, class IntoW, class IntoB>
    requires has_history<G>
  [[gnu::cold]] SITU_NOINLINE void operator()(G const& gradient, IntoX const& into_x, IntoW const& into_w, IntoB const& into_b) const {
    using C = compute_t<T>;
    using L = Lane<C, D>;
    L const g = lane_of<C>(gradient);
    Shape const& whole = g.shape();
    unsigned const images = all_axes(whole) & ~2u;
    Shape by_channel = Shape::filled(whole.rank(), 1);
    by_channel[1] = plan.channels;
    auto const send = [&](L const& products, auto const& into) {
      if (into.needed()) add_lane<G>(products.summed(images).reshape(into.shape()), into.shape(), into);
    };
    send(g, into_b);
    if (!into_x.needed() && !into_w.needed()) return;
    L const share(static_cast<C>(1.0 / static_cast<double>(plan.count())));
    bool const reads_x = plan.training || into_w.needed();
    L z(C(0)), rate(C(1));
    if (plan.training) {
      L const values = L::of(x.variable()), d = values - values.summed(images) * share;
      rate = ((d * d).summed(images) * share + L(static_cast<C>(plan.eps))).template apply<functions::rsqrt>();
      z = d * rate;
    } else {
      auto const known = [&](int64_t row) { return lane_of<C>(Tensor<double, D>(statistics).select(0, row)).reshape(by_channel); };
      rate = known(1);
      if (reads_x) z = (L::of(x.variable()) - known(0)) * rate;
    }
    if (reads_x) send(g * z, into_w);
    if (!into_x.needed()) return;
    L const h = weight.tensor().size() > 0 ? g * L::of(weight.variable()).reshape(by_channel) : g;
    L const dx = plan.training ? (h - h.summed(images) * share - z * ((h * z).summed(images) * share)) * rate : h * rate;
    add_lane<G>(dx, whole, into_x);
  }

 private:
  /// Zeros where there is nothing to be summed.
  template <class Into, class P>
  ChannelValues sums(Into const& into, Tensor<P, D>& to) const {
    if (!into.needed()) return {};
    to = zeros<P>({plan.channels}, D{});
    return {to.data(), 1, dtype_of<P>};
  }
};

}  // namespace detail

/// Every channel normalised over all images; see ops/batch_norm.hpp. x, weight and bias may record, or not.
template <class E, class R, class V, class W, class B>
  requires(detail::recorded_operands<E, W, B> && detail::is_floating_tensor<R> && std::is_same_v<R, V> && on_same_device<E, R>)
auto batch_norm(E const& x_, R const& running_mean, V const& running_var, W const& weight, B const& bias, batch_norm_options const& options = {}) {
  using T = value_of<E>;
  using D = detail::result_device_t<device_of<E>>;
  detail::BatchNormPlan plan = detail::plan_batch_norm(x_.shape(), options);
  auto const x = detail::operation_input<T>(x_);
  auto const w = detail::operation_input<value_of<W>>(weight);
  auto const b = detail::operation_input<value_of<B>>(bias);
  using Rule = detail::BatchNormRule<T, D, device_of<decltype(x)>, value_of<W>, device_of<decltype(w)>>;
  bool const records = detail::is_recording(x, w, b);
  (detail::check_view(x), detail::check_view(w), detail::check_view(b));  // before running statistics move
  Tensor<double, D> statistics;
  if (records) statistics = Tensor<double, D>::uninitialized({2, plan.channels}, "batch_norm");
  Tensor<T, D> value = detail::batch_norm_values<T, D>(x.value().contiguous(), running_mean, running_var, w.value(), b.value(), plan, statistics);
  if (!records) return Variable<T, D>(std::move(value), false);
  bool const needs_x = w.requires_grad() || (plan.training && x.requires_grad());
  return detail::record("BatchNorm", std::move(value), Rule{detail::saved_if(needs_x, x), detail::saved_if(x.requires_grad(), w), statistics, plan}, x, w, b);
}
template <class E, class R, class V>
  requires(differentiable<E> && detail::is_floating_tensor<R> && std::is_same_v<R, V> && on_same_device<E, R>)
auto batch_norm(E const& x, R const& running_mean, V const& running_var, batch_norm_options const& options = {}) {
  return batch_norm(x, running_mean, running_var, R(), R(), options);
}
template <class E, class R, class V, class W, class B, class Error = detail::different_devices_of<E, R, V, W, B>>
  requires(any_formula<E> && any_formula<W> && any_formula<B> && (differentiable<E> || differentiable<W> || differentiable<B>) && detail::is_floating_tensor<R> && detail::is_floating_tensor<V>)
void batch_norm(E const&, R const&, V const&, W const&, B const&, batch_norm_options const& = {}) = delete;
template <class E, class R, class V, class Error = detail::different_devices_of<E, R, V>>
  requires(differentiable<E> && detail::is_floating_tensor<R> && detail::is_floating_tensor<V>)
void batch_norm(E const&, R const&, V const&, batch_norm_options const& = {}) = delete;

}  // namespace situ::inline SITU_ABI
