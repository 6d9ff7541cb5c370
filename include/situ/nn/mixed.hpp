/// Mixed precision: a network that computes in bfloat16 or float16, with parameters in float.
///
///     Variable loss = cross_entropy(mixed<bfloat16>(net)(cast<bfloat16>(x)), labels);
///     loss.backward();                                    // the gradients of net's own parameters, in float
#pragma once

#include <situ/nn/move.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// What stays as it is in mixed precision: normalisations, whose sums and running statistics need float.
template <class X>
concept keeps_precision = requires { requires X::keeps_precision; };

/// cast_type, but for what keeps its precision.
template <class X, class T>
struct mixed_type : std::type_identity<X> {};
template <floating X, class T>
struct mixed_type<X, T> : std::type_identity<T> {};
template <class X, class T>
  requires requires { typename X::template of_dtype<T>; }
struct mixed_type<X, T> : std::type_identity<typename X::template of_dtype<T>> {};
template <template <class...> class M, class... As, class T>
  requires(!requires { typename M<As...>::template of_dtype<T>; } && !floating<M<As...>> && !keeps_precision<M<As...>>)
struct mixed_type<M<As...>, T> : std::type_identity<M<typename mixed_type<As, T>::type...>> {};
template <class X, std::size_t N, class T>
struct mixed_type<std::array<X, N>, T> : std::type_identity<std::array<typename mixed_type<X, T>::type, N>> {};

template <class T>
struct MixWith {
  template <class X>
  using type = typename mixed_type<X, T>::type;
  template <class U, class D>
  auto parameter(Variable<U, D> const& v) const {
    return v.template to<T>();
  }
  template <class U, class D>
  auto changed(Tensor<U, D> const& x) const {
    if constexpr (floating<U>) return x.template to<T>();
    else return x;
  }
};

}  // namespace detail

/// The network with its parameters rounded to T, as one recorded step: a backward through it gives the gradients of net's own parameters.
///
/// Normalisation layers (what has a member `static constexpr bool keeps_precision = true`) are net's own, and compute in float.
/// Cost      one pass over the parameters, at each call: call it once for a step.
/// Source    Micikevicius et al., Mixed Precision Training, 2018.
template <floating T, any_module M>
auto mixed(M const& net) {
  if constexpr (std::is_same_v<value_of<detail::parameter_type<M>>, T>) {
    return net;
  } else {
    static_assert(!std::is_same_v<typename detail::mixed_type<M, T>::type, M>,
                  "situ::mixed<T>(net): this module's type names no element type to replace: make it a template, as in template <class T, class Device> struct Net");
    return detail::changed_module(net, detail::MixWith<T>{});
  }
}

}  // namespace situ::inline SITU_ABI
