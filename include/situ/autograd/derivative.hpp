/// Derivatives of whole formulas, at compile time: reverse mode in registers.
///
/// A formula that records becomes a *marked* tree: each Variable in it is a *slot*, numbered from left to right, whose gradient will be
/// asked for; what no derivative reads is left out, so that it need not be kept. From the marked tree and a *seed*, the
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

/// How many tensors a formula keeps for its backward. `Read` tells whether its value is wanted.
template <bool Read, class E>
inline constexpr int kept_count = Read ? leaf_count<E> : 0;
template <bool Read, class T, class D>
inline constexpr int kept_count<Read, Variable<T, D>> = Read ? 1 : 0;
template <bool Read, class Op, class... Es>
  requires(is_recorded<Es> || ...)
inline constexpr int kept_count<Read, Map<Op, Es...>> = [] {
  constexpr unsigned read = Read ? ~0u : operands_read<Op, is_recorded<Es>...>();
  return []<std::size_t... Ks>(std::index_sequence<Ks...>) { return (0 + ... + kept_count<(read >> Ks & 1u) != 0, Es>); }(std::index_sequence_for<Es...>{});
}();

template <class Op, class... Ts>
inline constexpr bool is_differentiable = true;
template <class F, class R, class... Ts>
inline constexpr bool is_differentiable<functions::mapped<F>, R, Ts...> = has_derivative<F, Ts..., R>;

/// A formula as a marked tree, the first slot with number J and the first tensor that is kept with number First.
template <int J, int First, bool Read, class E>
  requires(!is_recorded<E>)
auto marked(E const& e) {
  if constexpr (Read || is_constant<E>) return lower<First>(e);
  else return Constant<value_of<E>>{};
}
template <int J, int First, bool Read, class T, class D>
auto marked(Variable<T, D> const&) {
  if constexpr (Read) return Apply<functions::slot<J>, Input<T, First>>{};
  else return Apply<functions::slot<J>, Constant<T>>{};
}
template <int J, int First, bool Read, class Op, class... Es>
  requires(is_recorded<Es> || ...)
auto marked(Map<Op, Es...> const& map);

template <int J, int First, unsigned Read>
Fields<> marked_fields(Fields<> const&) {
  return {};
}
template <int J, int First, unsigned Read, class E, class... Es>
auto marked_fields(Fields<E, Es...> const& fields) {
  return prepend(marked<J, First, (Read & 1u) != 0>(fields.head),
                 marked_fields<J + slot_count<E>, First + kept_count<(Read & 1u) != 0, E>, (Read >> 1)>(fields.tail));
}
template <int J, int First, bool Read, class Op, class... Es>
  requires(is_recorded<Es> || ...)
auto marked(Map<Op, Es...> const& map) {
  static_assert(is_differentiable<Op, typename Map<Op, Es...>::value_type, typename Es::value_type...>,
                "situ::map: this_function_has_no_derivative: give its type a `static derivative(x..., y)` beside its value, or map it over v.value()");
  constexpr unsigned read = Read ? ~0u : operands_read<Op, is_recorded<Es>...>();
  return make_apply(map.op, marked_fields<J, First, read>(map.operands));
}

/// The tensors that a marked formula keeps, in their order, as f(tensor).
template <bool Read, class T, class D, class F>
SITU_INLINE void for_each_kept(Variable<T, D> const& variable, F const& f) {
  if constexpr (Read) f(variable.state()->value);
}
template <bool Read, class E, class F>
  requires(!is_recorded<E>)
SITU_INLINE void for_each_kept(E const& e, F const& f) {
  if constexpr (Read) for_each_leaf(e, f);
}
template <bool Read, class Op, class... Es, class F>
  requires(is_recorded<Es> || ...)
SITU_INLINE void for_each_kept(Map<Op, Es...> const& map, F const& f);
template <unsigned Read, class F>
SITU_INLINE void for_each_kept_of(Fields<> const&, F const&) {}
template <unsigned Read, class E, class... Es, class F>
SITU_INLINE void for_each_kept_of(Fields<E, Es...> const& fields, F const& f) {
  for_each_kept<(Read & 1u) != 0>(fields.head, f);
  for_each_kept_of<(Read >> 1)>(fields.tail, f);
}
template <bool Read, class Op, class... Es, class F>
  requires(is_recorded<Es> || ...)
SITU_INLINE void for_each_kept(Map<Op, Es...> const& map, F const& f) {
  for_each_kept_of<(Read ? ~0u : operands_read<Op, is_recorded<Es>...>())>(map.operands, f);
}

/// The Variables of a formula, from left to right, as f(variable).
template <class T, class D, class F>
SITU_INLINE void for_each_variable(Variable<T, D> const& v, F&& f) {
  f(v);
}
template <class E, class F>
  requires(!is_recorded<E>)
SITU_INLINE void for_each_variable(E const&, F&&) {}
template <class F>
SITU_INLINE void for_each_variable(Fields<> const&, F&&) {}
template <class Op, class... Es, class F>
  requires(is_recorded<Es> || ...)
SITU_INLINE void for_each_variable(Map<Op, Es...> const& map, F&& f);
template <class E, class... Es, class F>
SITU_INLINE void for_each_variable(Fields<E, Es...> const& fields, F&& f) {
  for_each_variable(fields.head, f);
  for_each_variable(fields.tail, f);
}
template <class Op, class... Es, class F>
  requires(is_recorded<Es> || ...)
SITU_INLINE void for_each_variable(Map<Op, Es...> const& map, F&& f) {
  for_each_variable(map.operands, f);
}

/// The types of a formula's Variables, from left to right.
template <class... As, class... Bs>
Fields<As..., Bs...> joined_types(Fields<As...>*, Fields<Bs...>*);
template <class E>
struct variable_types {
  using type = Fields<>;
};
template <class T, class D>
struct variable_types<Variable<T, D>> {
  using type = Fields<Variable<T, D>>;
};
template <class... Es>
struct variable_types<Fields<Es...>> {
  using type = Fields<>;
};
template <class E, class... Es>
struct variable_types<Fields<E, Es...>> {
  using type = decltype(joined_types(static_cast<typename variable_types<E>::type*>(nullptr), static_cast<typename variable_types<Fields<Es...>>::type*>(nullptr)));
};
template <class T, class D>
struct variable_types<VariablePart<T, D>> : variable_types<Variable<T, D>> {};
template <class Op, class... Es>
struct variable_types<Map<Op, Es...>> : variable_types<Fields<Es...>> {};

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
    if constexpr (Guarded && Chooses) return select(seed == zero, zero, on_its_own(select(slope == zero, zero, seed * slope)));
    else if constexpr (Guarded) return select(seed == zero, zero, seed * slope);
    else if constexpr (Chooses) return select(slope == zero, zero, seed * slope);
    else return seed * slope;
  }
};

}  // namespace detail
}  // namespace situ::inline SITU_ABI
