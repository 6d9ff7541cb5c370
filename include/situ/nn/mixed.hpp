/// Mixed precision: a network that computes in bfloat16 or float16, with parameters in float.
///
///     Variable y = mixed<bfloat16>(net)(cast<bfloat16>(x));
///     Variable loss = cross_entropy(y.to<float>(), labels);   // a loss is a sum: in float, as by torch.autocast
///     loss.backward();                                        // the gradients of net's own parameters, in float
#pragma once

#include <situ/nn/move.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

template <class T>
struct MixWith {
  using shares_buffers = void;
  template <class X>
  using type = typename cast_type<X, T>::type;
  template <class U, class D>
  auto parameter(Variable<U, D> const& v) const {
    return v.template to<T>();
  }
  template <class H, class U, class D>
  static auto buffer(H const& x, Tensor<U, D> const*) {
    return CastBuffer<T, U, D, H>{x};
  }
};

}  // namespace detail

/// The network with its parameters rounded to T, as one recorded step: a backward through it gives the gradients of net's own parameters.
///
/// Running statistics, which stay float, are net's own, and move with the batches that the result sees. Sums within normalisations are float as ever.
/// Cost      one pass over the parameters, at each call: call it once for a step.
/// Source    Micikevicius et al., Mixed Precision Training, 2018.
template <floating T, any_module M>
auto mixed(M const& net) {
  if constexpr (std::is_same_v<value_of<detail::parameter_type<M>>, T>) {
    return net;
  } else {
    static_assert(!std::is_same_v<typename detail::cast_type<M, T>::type, M>,
                  "situ::mixed<T>(net): this module's type names no element type to replace: make it a template, as in template <class T, class Device> struct Net");
    return detail::changed_module(net, detail::MixWith<T>{});
  }
}

}  // namespace situ::inline SITU_ABI
