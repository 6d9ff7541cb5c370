/// Dropout of what records. bernoulli, multinomial, rand_like and randn_like of what records give Tensors: what is drawn has no gradient.
#pragma once

#include <situ/autograd/arrange.hpp>
#include <situ/ops/random_ops.hpp>
#include <situ/ops/sampling.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

template <class T, class D>
Variable<T, D> recorded_dropout(Variable<T, D> const& x, dropped<T> const& op);

/// The same elements are dropped again: which ones is told by the generator's counter, so that nothing is kept.
template <class T>
struct dropout_again {
  dropped<T> op;
  template <class D>
  Tensor<T, D> operator()(Tensor<T, D> const& g) const {
    return randomized(g, op, "dropout");
  }
  template <class D>
  Variable<T, D> operator()(Variable<T, D> const& g) const {
    return recorded_dropout(g, op);
  }
  /// Of Lanes in the computing type of a 16-bit T.
  template <class C, class D>
    requires(!std::is_same_v<C, T>)
  Variable<C, D> operator()(Variable<C, D> const& g) const {
    return recorded_dropout(g.template to<T>(), op).template to<C>();
  }
};
template <class T, class D>
Variable<T, D> recorded_dropout(Variable<T, D> const& x, dropped<T> const& op) {
  return record_on<false>("Dropout", randomized(x.value(), op, "dropout"), x, detail::linear(dropout_again<T>{op}));
}

}  // namespace detail

/// Each element 0 with probability p, else divided by 1 - p; outside of training the elements as they are. See ops/random_ops.hpp.
///
/// Cost      of the gradient: one pass. The mask is made again, not kept.
/// Gradient  g / (1 - p) where the element was kept, else 0.
template <class E>
  requires(differentiable<E> && floating<value_of<E>>)
auto dropout(E const& x, double p, bool training, Generator& generator) {
  using T = value_of<E>;
  using D = detail::result_device_t<device_of<E>>;
  if (!(p >= 0 && p <= 1)) detail::fail<ShapeError>("dropout: the probability is ", p, "; it must be in [0, 1]");
  if (!training || p == 0) return Variable<T, D>(x);
  detail::Draw const draw(generator);
  if (p == 1) {
    return detail::record_on<false>("Dropout", detail::filled<T, D>(x.shape(), 0, "dropout"), x, detail::linear([](auto const& g) { return detail::zeros_as(g, g.shape()); }));
  }
  detail::dropped<T> const op{draw.stream, detail::Chance::of(1 - p), static_cast<compute_t<T>>(1 / (1 - p))};
  return detail::record_on<false>("Dropout", detail::randomized(detail::values_of(x), op, "dropout"), x, detail::linear(detail::dropout_again<T>{op}));
}
template <class E>
  requires(differentiable<E> && floating<value_of<E>>)
auto dropout(E const& x, double p, bool training = true) {
  return dropout(x, p, training, detail::default_generator());
}
template <class E>
  requires(differentiable<E> && floating<value_of<E>>)
auto dropout(E const& x, double p, Generator& generator) {
  return dropout(x, p, true, generator);
}

/// Coins whose probabilities are elements: a Tensor.
template <class E, class... Args>
  requires(differentiable<E> && floating<value_of<E>>)
auto bernoulli(E const& p, Args&... args) {
  return bernoulli(detail::values_of(p), args...);
}

/// Random numbers in the shape of what records: a Tensor.
template <class E, class... Args>
  requires(differentiable<E> && floating<value_of<E>>)
auto rand_like(E const& x, Args&... args) {
  return rand_like(detail::values_of(x), args...);
}
template <class E, class... Args>
  requires(differentiable<E> && floating<value_of<E>>)
auto randn_like(E const& x, Args&... args) {
  return randn_like(detail::values_of(x), args...);
}

/// Indices drawn in proportion to elements: a Tensor.
template <class E, class... Args>
  requires differentiable<E>
auto multinomial(E const& weights, int64_t n, Args&&... args) {
  return multinomial(detail::values_of(weights), n, static_cast<Args&&>(args)...);
}

}  // namespace situ::inline SITU_ABI
