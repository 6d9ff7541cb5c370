/// to(net, device), to<T>(net), clone(net): a module with its parameters and buffers elsewhere, in another type, or copied.
///
/// A Net<Cpu> moved to Cuda<0> is a Net<Cuda<0>>: Cpu is replaced by Cuda<0> among the template arguments of the module, and of the modules that are its
/// template arguments; the new module is made of its moved members, in braces, so that no member is initialised twice. The arguments are types, or one or two
/// types and then numbers; a module of others, or that is to be something else, has a member `template <class D> using on_device = …;` (and
/// `template <class T> using of_dtype = …;`).
#pragma once

#include <situ/nn/module.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

// ---- the type ------------------------------------------------------------------------------------------------------------------

/// X with every device replaced by D.
template <class X, class D>
struct moved_type : std::type_identity<X> {};
template <device X, class D>
struct moved_type<X, D> : std::type_identity<D> {};
template <class X, class D>
  requires requires { typename X::template on_device<D>; }
struct moved_type<X, D> : std::type_identity<typename X::template on_device<D>> {};
template <template <class...> class M, class... As, class D>
  requires(!requires { typename M<As...>::template on_device<D>; } && !device<M<As...>>)
struct moved_type<M<As...>, D> : std::type_identity<M<typename moved_type<As, D>::type...>> {};
template <template <class, auto...> class M, class A, auto V, auto... Vs, class D>
  requires(!requires { typename M<A, V, Vs...>::template on_device<D>; })
struct moved_type<M<A, V, Vs...>, D> : std::type_identity<M<typename moved_type<A, D>::type, V, Vs...>> {};
template <template <class, class, auto...> class M, class A, class B, auto V, auto... Vs, class D>
  requires(!requires { typename M<A, B, V, Vs...>::template on_device<D>; })
struct moved_type<M<A, B, V, Vs...>, D> : std::type_identity<M<typename moved_type<A, D>::type, typename moved_type<B, D>::type, V, Vs...>> {};
template <class X, std::size_t N, class D>
struct moved_type<std::array<X, N>, D> : std::type_identity<std::array<typename moved_type<X, D>::type, N>> {};

/// X with every floating element type replaced by T.
template <class X, class T>
struct cast_type : std::type_identity<X> {};
template <floating X, class T>
struct cast_type<X, T> : std::type_identity<T> {};
template <class X, class T>
  requires requires { typename X::template of_dtype<T>; }
struct cast_type<X, T> : std::type_identity<typename X::template of_dtype<T>> {};
template <template <class...> class M, class... As, class T>
  requires(!requires { typename M<As...>::template of_dtype<T>; } && !floating<M<As...>>)
struct cast_type<M<As...>, T> : std::type_identity<M<typename cast_type<As, T>::type...>> {};
template <template <class, auto...> class M, class A, auto V, auto... Vs, class T>
  requires(!requires { typename M<A, V, Vs...>::template of_dtype<T>; })
struct cast_type<M<A, V, Vs...>, T> : std::type_identity<M<typename cast_type<A, T>::type, V, Vs...>> {};
template <template <class, class, auto...> class M, class A, class B, auto V, auto... Vs, class T>
  requires(!requires { typename M<A, B, V, Vs...>::template of_dtype<T>; })
struct cast_type<M<A, B, V, Vs...>, T> : std::type_identity<M<typename cast_type<A, T>::type, typename cast_type<B, T>::type, V, Vs...>> {};
template <class X, std::size_t N, class T>
struct cast_type<std::array<X, N>, T> : std::type_identity<std::array<typename cast_type<X, T>::type, N>> {};

// ---- what happens to a parameter and a buffer ------------------------------------------------------------------------------------

/// Parameters that were seen, so that one in two places stays one.
template <class Change>
struct Changed {
  struct Pair {
    void const* from;
    void* to;  // a State, which the new module holds
  };
  mutable List<Pair> pairs;

  template <class T, class D>
  auto parameter(Variable<T, D> const& v) const {
    using Result = decltype(static_cast<Change const&>(*this).changed(v.value()));
    using V = Variable<value_of<Result>, device_of<Result>>;
    for (Pair const& pair : pairs) {
      if (pair.from == v.state()) return V::from_state(static_cast<State<value_of<Result>, device_of<Result>>*>(pair.to));
    }
    V result(static_cast<Change const&>(*this).changed(v.value()), v.requires_grad());
    pairs.push_back({v.state(), result.state()});
    return result;
  }
};
template <class D>
struct MoveTo : Changed<MoveTo<D>> {
  template <class X>
  using type = typename moved_type<X, D>::type;
  template <class T, class From>
  Tensor<T, D> changed(Tensor<T, From> const& x) const {
    return x.to(D{});
  }
  template <class H, class T, class From>
  static auto buffer(H const& x, Tensor<T, From> const*) {
    if constexpr (is_optional<H>) return x ? std::optional<Tensor<T, D>>(x->to(D{})) : std::optional<Tensor<T, D>>();
    else return x.to(D{});
  }
};
/// A buffer for a member that is of another element type, or of its own: modules of 16-bit floats keep their running statistics in float. `H` is Tensor,
/// or an optional one.
template <class T, class U, class D, class H = Tensor<U, D>>
struct CastBuffer {
  H x;
  using Other = typename cast_type<H, T>::type;
  operator H() const { return x; }
  template <class V>
    requires(std::is_same_v<V, Other> && !std::is_same_v<V, H>)
  operator V() const {
    if constexpr (is_optional<H>) return x ? V(x->template to<T>()) : V();
    else return x.template to<T>();
  }
};
template <class T>
struct CastTo : Changed<CastTo<T>> {
  template <class X>
  using type = typename cast_type<X, T>::type;
  template <class U, class D>
  auto changed(Tensor<U, D> const& x) const {
    return x.template to<T>();
  }
  template <class H, class U, class D>
  static auto buffer(H const& x, Tensor<U, D> const*) {
    return CastBuffer<T, U, D, H>{x};
  }
};
struct Clone : Changed<Clone> {
  template <class X>
  using type = X;
  template <class T, class D>
  Tensor<T, D> changed(Tensor<T, D> const& x) const {
    return x.clone();
  }
};

// ---- the new module -------------------------------------------------------------------------------------------------------------

template <class R, class... Ms>
R module_from(Ms&&... members) {
  if constexpr (std::is_constructible_v<R, nn::from_members_t, Ms...>) {
    return R(nn::from_members, static_cast<Ms&&>(members)...);
  } else {
    static_assert(std::is_aggregate_v<R>, "situ: to(net, device) makes a module of its members: an aggregate, or one with a constructor (nn::from_members_t, members...)");
    if constexpr (std::is_aggregate_v<R>) return R{static_cast<Ms&&>(members)...};
    else __builtin_unreachable();  // so that the sentence above is the only error
  }
}

template <class X, class Change>
auto changed_module(X const& x, Change const& change) {
  using R = typename Change::template type<X>;
  if constexpr (any_module<X> && std::is_same_v<R, X>) {
    if constexpr (requires { change.unchanged(x); }) return change.unchanged(x);
    else return x;  // nothing in it changes
  } else if constexpr (is_parameter<X>) {
    return change.parameter(x);
  } else if constexpr (std::is_same_v<X, nn::Counter>) {
    if constexpr (requires { typename Change::shares_buffers; }) return x;
    else return x.clone();
  } else if constexpr (is_buffer<X>) {
    return change.buffer(x, &x);
  } else if constexpr (any_module<X>) {
    for_each_member(x, [](auto const&) {});  // their order
    return x.situ_members([&](auto const&... members) { return module_from<R>(changed_module(members, change)...); });
  } else if constexpr (is_optional<X>) {
    using Held = typename X::value_type;
    if constexpr (is_buffer<Held> && !std::is_same_v<Held, nn::Counter>) return change.buffer(x, static_cast<Held const*>(nullptr));
    else return x ? R(changed_module(*x, change)) : R();
  } else if constexpr (several<X>) {
    if constexpr (holds_state<X>) {
      if constexpr (requires { x.get_allocator(); }) {
        R result;
        result.reserve(x.size());
        for (auto const& each : x) result.push_back(changed_module(each, change));
        return result;
      } else {
        return [&]<std::size_t... Ks>(std::index_sequence<Ks...>) { return R{{changed_module(x[Ks], change)...}}; }(std::make_index_sequence<std::tuple_size_v<X>>{});
      }
    } else {
      return x;
    }
  } else {
    return x;
  }
}

/// A module that is on D, or nowhere.
template <class M, class D>
inline constexpr bool stays_on = std::is_same_v<module_device<M>, D> || std::is_same_v<typename device_of_member<M>::type, no_device>;

}  // namespace detail

/// The module on another device: a module of another type, whose parameters and buffers are copies there. On its own device, the module itself: a copy that
/// shares them.
///
/// Gradients, and what was recorded, stay behind; parameters that are one in several places stay one; frozen ones stay frozen.
/// Throws    DeviceUnavailable, OutOfMemory; the module is unchanged.
/// Cost      one copy for each parameter and buffer.
template <any_module M, device D>
std::conditional_t<detail::stays_on<M, D>, M, typename detail::moved_type<M, D>::type> to(M const& net, D) {
  if constexpr (detail::stays_on<M, D>) {
    return net;
  } else {
    static_assert(!std::is_same_v<typename detail::moved_type<M, D>::type, M>,
                  "situ: to(net, device): this module's type names no device to replace: make it a template, as in template <class Device> struct Net, or give it a member template <class D> using on_device");
    return detail::changed_module(net, detail::MoveTo<D>{});
  }
}
/// The module with parameters and buffers of floating type T.
template <floating T, any_module M>
typename detail::cast_type<M, T>::type to(M const& net) {
  using R = typename detail::cast_type<M, T>::type;
  if constexpr (std::is_same_v<R, M>) {
    static_assert(std::is_same_v<value_of<detail::parameter_type<M>>, T>,
                  "situ: to<T>(net): this module's type names no element type to replace: make it a template, as in template <class T, class Device> struct Net");
    return net;
  } else {
    return detail::changed_module(net, detail::CastTo<T>{});
  }
}
template <floating T, any_module M, device D>
auto to(M const& net, D device) -> decltype(to(to<T>(net), device)) {
  return to(to<T>(net), device);
}

/// A copy with parameters and buffers of its own; the mode, and what is frozen, are the same. Gradients are not copied.
template <any_module M>
M clone(M const& net) {
  M result = net;
  detail::Clone const change;
  for_each_state(result, [&]<class X>(std::string const&, X& x) {
    if constexpr (std::is_same_v<X, nn::Counter>) x = x.clone();
    else if constexpr (detail::is_parameter<X>) x = change.parameter(x);
    else x = x.clone();
  });
  return result;
}

}  // namespace situ::inline SITU_ABI
