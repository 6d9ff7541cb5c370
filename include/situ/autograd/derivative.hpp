/// Derivatives of whole formulas, at compile time: reverse mode in registers.
///
/// A formula that records is *marked*: each Variable in it becomes a *slot*, numbered from left to right, whose gradient will be
/// asked for; what no derivative reads is left out, so that it need not be kept. From the marked formula and a *seed*, the
/// gradient of the result (a formula too), one pass computes the gradients of all slots: values on the way up, kept in
/// registers, derivatives on the way down. Nothing is stored between the two.
///
/// Where a formula chooses (where, clamp, minimum, relu, ...), the branch that was not taken gets 0 and not 0 times its
/// derivative there, which may be infinite: where(x > 0, sqrt(x), 0) has the gradient 0 at 0.
#pragma once

#include <situ/expr/formula.hpp>
#include <situ/expr/functions.hpp>
#include <situ/expr/lower.hpp>

namespace situ::inline SITU_ABI {
namespace functions {

/// The identity, which marks a Variable of a formula.
template <int J>
struct slot {
  static constexpr char const* name = "slot";
  static constexpr int cost = 0;
  template <class T>
  struct types {
    using result = T;
    template <int>
    using operand = T;
  };
  template <class X>
  SITU_HOST_DEVICE SITU_INLINE static X value(X const& x) {
    return x;
  }
};

/// Functions whose derivatives read none of their operands.
template <class Op>
inline constexpr bool is_linear = false;
template <>
inline constexpr bool is_linear<add> = true;
template <>
inline constexpr bool is_linear<subtract> = true;
template <>
inline constexpr bool is_linear<negative> = true;
template <class U>
inline constexpr bool is_linear<cast<U>> = true;
template <int J>
inline constexpr bool is_linear<slot<J>> = true;

/// Functions that choose: a derivative of 0 means that an operand did not matter.
template <class Op>
inline constexpr bool chooses = false;
template <>
inline constexpr bool chooses<where> = true;
template <>
inline constexpr bool chooses<clamp> = true;
template <>
inline constexpr bool chooses<minimum> = true;
template <>
inline constexpr bool chooses<maximum> = true;
template <>
inline constexpr bool chooses<relu> = true;
template <>
inline constexpr bool chooses<leaky_relu> = true;
template <>
inline constexpr bool chooses<elu> = true;

}  // namespace functions

namespace detail {

/// Which operands the derivatives of Op by the recorded ones read: bit k for operand k.
template <class Op, bool... Recorded>
constexpr unsigned operands_read() {
  constexpr bool recorded[] = {Recorded...};
  constexpr unsigned everything = (1u << sizeof...(Recorded)) - 1u;
  if constexpr (functions::is_linear<Op>) return 0;
  else if constexpr (std::is_same_v<Op, functions::multiply>) return (recorded[0] ? 2u : 0u) | (recorded[1] ? 1u : 0u);
  else if constexpr (std::is_same_v<Op, functions::where>) return 1u;
  else if constexpr (std::is_same_v<Op, functions::divide>) return recorded[1] ? 3u : 2u;
  else return everything;
}

/// How many Variables a formula has.
template <class E>
inline constexpr int slot_count = 0;
template <class T, class D>
inline constexpr int slot_count<Variable<T, D>> = 1;
template <class T, class D>
inline constexpr int slot_count<VariablePart<T, D>> = 1;
template <class Op, class... Es>
inline constexpr int slot_count<Map<Op, Es...>> = (0 + ... + slot_count<Es>);

/// A formula marked, the first slot with number J. `Read` tells whether its value is wanted.
template <int J, bool Read, class E>
  requires(!is_recorded<E>)
auto marked(E const& e) {
  if constexpr (Read || is_constant<E>) return e;
  else return Constant<value_of<E>>{};
}
template <int J, bool Read, class T, class D>
auto marked(Variable<T, D> const& variable) {
  CommonShape const shape(&variable.shape());
  if constexpr (Read) return map_of(functions::slot<J>{}, Fields<Tensor<T, D>>{values_of(variable), {}}, shape);
  else return map_of(functions::slot<J>{}, Fields<Constant<T>>{Constant<T>{}, {}}, shape);
}
template <int J, bool Read, class Op, class... Es>
  requires(is_recorded<Es> || ...)
auto marked(Map<Op, Es...> const& map);

template <int J, unsigned Read>
Fields<> marked_fields(Fields<> const&) {
  return {};
}
template <int J, unsigned Read, class E, class... Es>
auto marked_fields(Fields<E, Es...> const& fields) {
  auto head = marked<J, (Read & 1u) != 0>(fields.head);
  auto tail = marked_fields<J + slot_count<E>, (Read >> 1)>(fields.tail);
  return [&]<class... Vs>(Fields<Vs...>&& rest) {
    return Fields<decltype(head), Vs...>{static_cast<decltype(head)&&>(head), static_cast<Fields<Vs...>&&>(rest)};
  }(static_cast<decltype(tail)&&>(tail));
}
template <class Op, class... Ts>
inline constexpr bool is_differentiable = true;
template <class F, class R, class... Ts>
inline constexpr bool is_differentiable<functions::mapped<F>, R, Ts...> = has_derivative<F, Ts..., R>;

template <int J, bool Read, class Op, class... Es>
  requires(is_recorded<Es> || ...)
auto marked(Map<Op, Es...> const& map) {
  static_assert(is_differentiable<Op, typename Map<Op, Es...>::value_type, typename Es::value_type...>,
                "situ::map: this_function_has_no_derivative: give its type a `static derivative(x..., y)` beside its value, or map it over v.value()");
  constexpr unsigned read = Read ? ~0u : operands_read<Op, is_recorded<Es>...>();
  return map_of(map.op, marked_fields<J, read>(map.operands), map.common);
}

/// Whether a tree has a slot.
template <class Tree>
inline constexpr bool has_slot = false;
template <class Op, class... Ts>
inline constexpr bool has_slot<Apply<Op, Ts...>> = (has_slot<Ts> || ...);
template <int J, class T>
inline constexpr bool has_slot<Apply<functions::slot<J>, T>> = true;

/// In the names of kernels a slot is what it marks.
template <int J, class T>
inline constexpr Formula formula_of<Apply<functions::slot<J>, T>> = formula_of<T>;

/// A value on the way up, with those of the operands.
template <class V, class Kids>
struct Kept {
  V value;
  Kids kids;
};

/// Both ways through a tree. P says what lanes are: P::value<Leaf>(leaf, source), P::operand<Wanted, From>(lanes),
/// P::convert<To, From>(lanes), P::apply(node, operands...), P::derivative(node, value, operands...).
template <class P>
struct Reverse {
  /// Values of every node that a derivative may ask for.
  template <class Leaf, class S>
  SITU_HOST_DEVICE SITU_INLINE static auto up(Leaf const& leaf, S const& source) {
    auto const value = P::value(leaf, source);
    return Kept<std::remove_cv_t<decltype(value)>, Fields<>>{value, {}};
  }
  template <class Op, class... Ts, class S>
  SITU_HOST_DEVICE SITU_INLINE static auto up(Apply<Op, Ts...> const& node, S const& source) {
    if constexpr (!has_slot<Apply<Op, Ts...>>) {
      auto const value = P::value(node, source);
      return Kept<std::remove_cv_t<decltype(value)>, Fields<>>{value, {}};
    } else {
      return up_operands(node, node.operands, source);
    }
  }

  /// Sends seed × derivative to every slot: sink.put<J, T>(lanes).
  template <class Op, class... Ts, class K, class Seed, class Sink>
  SITU_HOST_DEVICE SITU_INLINE static void down(Apply<Op, Ts...> const& node, K const& kept, Seed const& seed, Sink& sink) {
    down_from<false>(node, kept, seed, sink);
  }

 private:
  template <class Node, class T, class... Ts, class S, class... Kids>
  SITU_HOST_DEVICE SITU_INLINE static auto up_operands(Node const& node, Fields<T, Ts...> const& rest, S const& source, Kids const&... kids) {
    auto const kid = up(rest.head, source);
    if constexpr (sizeof...(Ts) > 0) return up_operands(node, rest.tail, source, kids..., kid);
    else return finish(node, std::make_index_sequence<sizeof...(Kids) + 1>{}, kids..., kid);
  }
  template <class Op, class... Ts, std::size_t... Is, class... Kids>
  SITU_HOST_DEVICE SITU_INLINE static auto finish(Apply<Op, Ts...> const& node, std::index_sequence<Is...>, Kids const&... kids) {
    using Types = typename Apply<Op, Ts...>::types;
    auto const value = P::apply(node, P::template operand<typename Types::template operand<static_cast<int>(Is)>, typename Ts::value_type>(kids.value)...);
    return Kept<std::remove_cv_t<decltype(value)>, Fields<Kids...>>{value, fields_of(kids...)};
  }

  template <bool Guarded, class Op, class... Ts, class K, class Seed, class Sink>
  SITU_HOST_DEVICE SITU_INLINE static void down_from(Apply<Op, Ts...> const& node, K const& kept, Seed const& seed, Sink& sink) {
    down_operands<Guarded, 0>(node, kept, kept.kids, seed, sink);
  }
  template <bool Guarded, int J, class T, class K, class Seed, class Sink>
  SITU_HOST_DEVICE SITU_INLINE static void down_from(Apply<functions::slot<J>, T> const&, K const&, Seed const& seed, Sink& sink) {
    sink.template put<J, typename T::value_type>(seed);
  }

  /// Collects the operands as the function took them.
  template <bool Guarded, int I, class Op, class... Ts, class K, class Kid, class... Kids, class Seed, class Sink, class... Xs>
  SITU_HOST_DEVICE SITU_INLINE static void down_operands(Apply<Op, Ts...> const& node, K const& kept, Fields<Kid, Kids...> const& rest, Seed const& seed,
                                                         Sink& sink, Xs const&... xs) {
    using Types = typename Apply<Op, Ts...>::types;
    using From = typename nth_type<I, Ts...>::type::value_type;
    auto const x = P::template operand<typename Types::template operand<I>, From>(rest.head.value);
    if constexpr (sizeof...(Kids) > 0) {
      down_operands<Guarded, I + 1>(node, kept, rest.tail, seed, sink, xs..., x);
    } else if constexpr (functions::is_cast<Op>) {
      down_to<Guarded, 0, From>(node.operands.head, kept.kids.head, P::template convert<From, typename Apply<Op, Ts...>::value_type>(seed), sink);
    } else {
      auto const partials = P::derivative(node, kept.value, xs..., x);
      send<Guarded, 0>(node, node.operands, kept.kids, partials, seed, sink);
    }
  }
  template <bool Guarded, int I, class Op, class... Ts, class E, class... Es, class Kid, class... Kids, class Partials, class Seed, class Sink>
  SITU_HOST_DEVICE SITU_INLINE static void send(Apply<Op, Ts...> const& node, Fields<E, Es...> const& operands, Fields<Kid, Kids...> const& kids,
                                                Partials const& partials, Seed const& seed, Sink& sink) {
    if constexpr (has_slot<E>) {
      using R = typename Apply<Op, Ts...>::value_type;
      using Wanted = typename Apply<Op, Ts...>::types::template operand<I>;
      auto const slope = P::template convert<R, Wanted>(partial<I>(partials));
      auto const share = times<Guarded, functions::chooses<Op>>(seed, slope);
      down_to<Guarded || functions::chooses<Op>, I, typename E::value_type>(operands.head, kids.head, P::template convert<typename E::value_type, R>(share), sink);
    }
    if constexpr (sizeof...(Es) > 0) send<Guarded, I + 1>(node, operands.tail, kids.tail, partials, seed, sink);
  }
  template <bool Guarded, int, class T, class Tree, class K, class Seed, class Sink>
  SITU_HOST_DEVICE SITU_INLINE static void down_to(Tree const& tree, K const& kept, Seed const& seed, Sink& sink) {
    if constexpr (has_slot<Tree> && floating<T>) down_from<Guarded>(tree, kept, seed, sink);
  }

  template <bool Guarded, bool Chooses, class X>
  SITU_HOST_DEVICE SITU_INLINE static X times(X const& seed, X const& slope) {
    X const zero(lane_value_t<X>(0));
    if constexpr (Guarded && Chooses) return select((seed == zero) | (slope == zero), zero, seed * slope);
    else if constexpr (Guarded) return select(seed == zero, zero, seed * slope);
    else if constexpr (Chooses) return select(slope == zero, zero, seed * slope);
    else return seed * slope;
  }
};

}  // namespace detail
}  // namespace situ::inline SITU_ABI
