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
// Steps: their derivative is 0, whatever comes.
template <>
inline constexpr bool chooses<sign> = true;
template <>
inline constexpr bool chooses<floor> = true;
template <>
inline constexpr bool chooses<ceil> = true;
template <>
inline constexpr bool chooses<round> = true;
template <>
inline constexpr bool chooses<trunc> = true;
template <>
inline constexpr bool chooses<floor_divide> = true;

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

/// The tensors that a marked formula keeps, in their order, as f(tensor). f has a name: it makes a function for each part of a formula, which formulas share.
template <bool Read, class T, class D, class F>
SITU_INLINE void for_each_kept(Variable<T, D> const& variable, F& f) {
  if constexpr (Read) f(variable.state()->value);
}
template <bool Read, class E, class F>
  requires(!is_recorded<E>)
SITU_INLINE void for_each_kept(E const& e, F& f) {
  if constexpr (Read) for_each_leaf(e, f);
}
template <bool Read, class Op, class... Es, class F>
  requires(is_recorded<Es> || ...)
SITU_INLINE void for_each_kept(Map<Op, Es...> const& map, F& f);
template <unsigned Read, class F>
SITU_INLINE void for_each_kept_of(Fields<> const&, F&) {}
template <unsigned Read, class E, class... Es, class F>
SITU_INLINE void for_each_kept_of(Fields<E, Es...> const& fields, F& f) {
  for_each_kept<(Read & 1u) != 0>(fields.head, f);
  for_each_kept_of<(Read >> 1)>(fields.tail, f);
}
template <bool Read, class Op, class... Es, class F>
  requires(is_recorded<Es> || ...)
SITU_INLINE void for_each_kept(Map<Op, Es...> const& map, F& f) {
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

/// The handles in a formula that nobody will read again.
template <class E>
void let_go(E&) {}
template <class T, class D>
void let_go(Variable<T, D>& v) {
  Variable<T, D> const gone(std::move(v));
}
template <class E, class... Es>
void let_go(Fields<E, Es...>& fields) {
  let_go(fields.head);
  let_go(fields.tail);
}
template <class Op, class... Es>
void let_go(Map<Op, Es...>& map) {
  let_go(map.operands);
}
/// Lets an operand go after an operation on it, if it is a temporary: it would live on to the end of the statement, where backward() may be called.
template <class E>
struct LetGo {
  E& operand;
  ~LetGo() {
    if constexpr (!std::is_reference_v<E> && !std::is_const_v<E>) let_go(operand);
  }
};

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

/// The value of a tree, and those of its nodes that a derivative may ask for, in registers. They are made where they stay: a node is one
/// function whatever its operands, and nothing is copied (see Evaluator on what that is worth). P says what lanes are: P::value(tree, source),
/// P::operand<Wanted, From>(lanes), P::convert<To, From>(lanes), P::apply(node, operands...), P::derivative(node, value, operands...).
template <class P, class Tree, class Source>
struct Kept {
  using value_type = std::remove_cvref_t<decltype(P::value(std::declval<Tree const&>(), std::declval<Source const&>()))>;
  value_type value;
  SITU_HOST_DEVICE SITU_INLINE Kept(Tree const& tree, Source const& source) : value(P::value(tree, source)) {}
};
template <class P, int J, class T, class Source>
struct Kept<P, Apply<functions::slot<J>, T>, Source> {
  using value_type = std::remove_cvref_t<decltype(P::value(std::declval<T const&>(), std::declval<Source const&>()))>;
  value_type value;
  SITU_HOST_DEVICE SITU_INLINE Kept(Apply<functions::slot<J>, T> const& slot, Source const& source) : value(P::value(slot.operands.head, source)) {}
};

/// Nodes of one or two operands that are taken as they are.
template <class P, class Op, class A, class Source>
  requires(has_slot<A> && computes_in_one_type<Apply<Op, A>>)
struct Kept<P, Apply<Op, A>, Source> {
  using value_type = std::remove_cvref_t<decltype(Op::value(std::declval<typename Kept<P, A, Source>::value_type const&>()))>;
  Kept<P, A, Source> first;
  value_type value;
  SITU_HOST_DEVICE SITU_INLINE Kept(Apply<Op, A> const& node, Source const& source) : first(node.operands.head, source), value(Op::value(first.value)) {}
};
template <class P, class Op, class A, class B, class Source>
  requires((has_slot<A> || has_slot<B>) && computes_in_one_type<Apply<Op, A, B>>)
struct Kept<P, Apply<Op, A, B>, Source> {
  using value_type = std::remove_cvref_t<decltype(Op::value(std::declval<typename Kept<P, A, Source>::value_type const&>(), std::declval<typename Kept<P, B, Source>::value_type const&>()))>;
  Kept<P, A, Source> first;
  Kept<P, B, Source> second;
  value_type value;
  SITU_HOST_DEVICE SITU_INLINE Kept(Apply<Op, A, B> const& node, Source const& source)
      : first(node.operands.head, source), second(node.operands.tail.head, source), value(Op::value(first.value, second.value)) {}
};

/// All other nodes.
template <class P, class Source, class... Ts>
struct KeptOperands {
  SITU_HOST_DEVICE SITU_INLINE KeptOperands(Fields<> const&, Source const&) {}
  template <class Node, class... Xs>
  SITU_HOST_DEVICE SITU_INLINE auto apply(Node const& node, Xs const&... xs) const {
    return P::apply(node, xs...);
  }
  template <class Node, class Y, class... Xs>
  SITU_HOST_DEVICE SITU_INLINE auto derivative(Node const& node, Y const& y, Xs const&... xs) const {
    return P::derivative(node, y, xs...);
  }
};
template <class P, class Source, class T, class... Ts>
struct KeptOperands<P, Source, T, Ts...> {
  Kept<P, T, Source> head;
  KeptOperands<P, Source, Ts...> tail;
  SITU_HOST_DEVICE SITU_INLINE KeptOperands(Fields<T, Ts...> const& trees, Source const& source) : head(trees.head, source), tail(trees.tail, source) {}

  template <class Node, class... Xs>
  SITU_HOST_DEVICE SITU_INLINE auto apply(Node const& node, Xs const&... xs) const {
    using Wanted = typename Node::types::template operand<static_cast<int>(sizeof...(Xs))>;
    return tail.apply(node, xs..., P::template operand<Wanted, typename T::value_type>(head.value));
  }
  template <class Node, class Y, class... Xs>
  SITU_HOST_DEVICE SITU_INLINE auto derivative(Node const& node, Y const& y, Xs const&... xs) const {
    using Wanted = typename Node::types::template operand<static_cast<int>(sizeof...(Xs))>;
    return tail.derivative(node, y, xs..., P::template operand<Wanted, typename T::value_type>(head.value));
  }
};
template <class P, class Op, class... Ts, class Source>
  requires((has_slot<Ts> || ...) && !computes_in_one_type<Apply<Op, Ts...>>) || ((has_slot<Ts> || ...) && (sizeof...(Ts) > 2))
struct Kept<P, Apply<Op, Ts...>, Source> {
  using operands_type = KeptOperands<P, Source, Ts...>;
  using value_type = std::remove_cvref_t<decltype(std::declval<operands_type const&>().apply(std::declval<Apply<Op, Ts...> const&>()))>;
  operands_type operands;
  value_type value;
  SITU_HOST_DEVICE SITU_INLINE Kept(Apply<Op, Ts...> const& node, Source const& source) : operands(node.operands, source), value(operands.apply(node)) {}
};

/// The way down through a tree whose values are kept.
template <class P>
struct Reverse {
  /// Sends seed × derivative to every slot: sink.put<J, T>(lanes). Guarded: where the seed is 0, what is sent is 0.
  template <bool Guarded = false, int J, class T, class K, class Seed, class Sink>
  SITU_HOST_DEVICE SITU_INLINE static void down(Apply<functions::slot<J>, T> const&, K const&, Seed const& seed, Sink& sink) {
    sink.template put<J, typename T::value_type>(seed);
  }
  template <bool Guarded = false, class Op, class A, class K, class Seed, class Sink>
    requires(computes_in_one_type<Apply<Op, A>>)
  SITU_HOST_DEVICE SITU_INLINE static void down(Apply<Op, A> const& node, K const& kept, Seed const& seed, Sink& sink) {
    constexpr bool chooses = functions::chooses<Op>;
    down<Guarded || chooses>(node.operands.head, kept.first, times<Guarded, chooses>(seed, partial<0>(Op::derivative(kept.first.value, kept.value))), sink);
  }
  template <bool Guarded = false, class Op, class A, class B, class K, class Seed, class Sink>
    requires(computes_in_one_type<Apply<Op, A, B>>)
  SITU_HOST_DEVICE SITU_INLINE static void down(Apply<Op, A, B> const& node, K const& kept, Seed const& seed, Sink& sink) {
    constexpr bool chooses = functions::chooses<Op>;
    auto const partials = Op::derivative(kept.first.value, kept.second.value, kept.value);
    if constexpr (has_slot<A>) down<Guarded || chooses>(node.operands.head, kept.first, times<Guarded, chooses>(seed, partials.head), sink);
    if constexpr (has_slot<B>) down<Guarded || chooses>(node.operands.tail.head, kept.second, times<Guarded, chooses>(seed, partials.tail.head), sink);
  }
  template <bool Guarded = false, class Op, class... Ts, class K, class Seed, class Sink>
    requires(!computes_in_one_type<Apply<Op, Ts...>> || sizeof...(Ts) > 2)
  SITU_HOST_DEVICE SITU_INLINE static void down(Apply<Op, Ts...> const& node, K const& kept, Seed const& seed, Sink& sink) {
    if constexpr (functions::is_cast<Op>) {
      using From = typename nth_type<0, Ts...>::type::value_type;
      if constexpr (floating<From>) down<Guarded>(node.operands.head, kept.operands.head, P::template convert<From, typename Apply<Op, Ts...>::value_type>(seed), sink);
    } else {
      send<Guarded, 0>(node, node.operands, kept.operands, kept.operands.derivative(node, kept.value), seed, sink);
    }
  }

 private:
  /// To operand Ix of a node, and those behind it.
  template <bool Guarded, int Ix, class Op, class... Ts, class E, class... Es, class Kids, class Partials, class Seed, class Sink>
  SITU_HOST_DEVICE SITU_INLINE static void send(Apply<Op, Ts...> const& node, Fields<E, Es...> const& operands, Kids const& kids,
                                                Partials const& partials, Seed const& seed, Sink& sink) {
    if constexpr (has_slot<E> && floating<typename E::value_type>) {
      using R = typename Apply<Op, Ts...>::value_type;
      using Wanted = typename Apply<Op, Ts...>::types::template operand<Ix>;
      auto const share = times<Guarded, functions::chooses<Op>>(seed, P::template convert<R, Wanted>(partial<Ix>(partials)));
      down<Guarded || functions::chooses<Op>>(operands.head, kids.head, P::template convert<typename E::value_type, R>(share), sink);
    }
    if constexpr (sizeof...(Es) > 0) send<Guarded, Ix + 1>(node, operands.tail, kids.tail, partials, seed, sink);
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
