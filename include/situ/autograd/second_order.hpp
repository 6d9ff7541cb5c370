/// Gradients that are themselves recorded: formulas differentiated function by function, to any order.
///
/// In a backward pass that keeps no history a formula is one kernel (derivative.hpp). Under create_graph its functions are gone through
/// one by one, on Lanes (lane.hpp). The way is told by data, not by types: formulas share the code for their functions.
#pragma once

#include <situ/autograd/lane.hpp>

// As in lane.hpp.
#define SITU_SELDOM __attribute__((noinline, cold))

namespace situ::inline SITU_ABI {
namespace detail {

template <class E>
inline constexpr bool has_marked_slot = false;
template <class Op, class... Es>
inline constexpr bool has_marked_slot<Map<Op, Es...>> = (has_marked_slot<Es> || ...);
template <int J, class E>
inline constexpr bool has_marked_slot<Map<functions::slot<J>, E>> = true;

/// Whether a user's function is in a formula: its second derivative is not known.
template <class E>
inline constexpr bool maps_functions = false;
template <class Op, class... Es>
inline constexpr bool maps_functions<Map<Op, Es...>> = functions::is_mapped<Op> || (maps_functions<Es> || ...);

/// A value on the way: in the type that it is computed in, or truth values.
template <class D>
struct AnyLane {
  Lane<float, D> in_float{0.f};
  Lane<double, D> in_double{0.0};
  Tensor<bool, D> truth;
  bool guarded = false;  ///< of a seed: where it is 0, the value did not matter
  template <class C>
  auto& of() {
    if constexpr (std::is_same_v<C, float>) return in_float;
    else return in_double;
  }
};

/// A node of a formula as data: children come before their parent, which is the only one. Formulas share the functions.
template <class D>
struct LaneNode {
  using Function = void (*)(AnyLane<D>* values, AnyLane<D>* seeds, LaneNode const& node);
  Function up = nullptr, down = nullptr;
  int self = 0, operands[3] = {};
  bool is_read = false;
};

/// Op on Lanes of C. Froms: the types that the operands were computed in; void for constants, which are of C already.
template <class D, class Op, class C, class... Froms>
struct LaneStep {
  using L = Lane<C, D>;
  using Values = AnyLane<D>*;

  SITU_SELDOM static void up(Values values, Values, LaneNode<D> const& node) {
    values[node.self].template of<C>() = value(values, node, std::index_sequence_for<Froms...>{});
  }
  SITU_SELDOM static void down(Values values, Values seeds, LaneNode<D> const& node) {
    L const& seed = seeds[node.self].template of<C>();
    if constexpr (functions::is_cast<Op>) {
      give<0>(seed, seeds, seeds[node.self].guarded, node);
    } else if constexpr (std::is_same_v<Op, functions::where>) {
      LaneMask<D> const mask(values[node.operands[0]].truth);
      L const zero(C(0));
      give<1>(select(mask, seed, zero), seeds, true, node);
      give<2>(select(mask, zero, seed), seeds, true, node);
    } else {
      share(seed, values, seeds, node, std::index_sequence_for<Froms...>{});
    }
  }

 private:
  template <int K>
  using from = typename nth_type<K, Froms...>::type;
  template <int K>
  static L taken(Values values, LaneNode<D> const& node) {
    if constexpr (std::is_void_v<from<K>>) return values[node.operands[K]].template of<C>();
    else return converted_lane<C>(values[node.operands[K]].template of<from<K>>());
  }
  template <std::size_t... Ks>
  static L value(Values values, LaneNode<D> const& node, std::index_sequence<Ks...>) {
    if constexpr (functions::is_cast<Op>) return taken<0>(values, node);
    else if constexpr (std::is_same_v<Op, functions::where>) return select(LaneMask<D>(values[node.operands[0]].truth), taken<1>(values, node), taken<2>(values, node));
    else if constexpr (std::is_same_v<Op, functions::negative>) return -taken<0>(values, node);
    else if constexpr (std::is_same_v<Op, functions::add>) return taken<0>(values, node) + taken<1>(values, node);
    else if constexpr (std::is_same_v<Op, functions::subtract>) return taken<0>(values, node) - taken<1>(values, node);
    else if constexpr (std::is_same_v<Op, functions::multiply>) return taken<0>(values, node) * taken<1>(values, node);
    else if constexpr (std::is_same_v<Op, functions::divide>) return taken<0>(values, node) / taken<1>(values, node);
    else return applied<Op>(taken<static_cast<int>(Ks)>(values, node)...);
  }
  template <std::size_t... Ks>
  static void share(L const& seed, Values values, Values seeds, LaneNode<D> const& node, std::index_sequence<Ks...>) {
    L const xs[] = {taken<static_cast<int>(Ks)>(values, node)...};
    L slopes[] = {(static_cast<void>(Ks), L(C(0)))...};
    lane_function<Op, C, D, static_cast<int>(sizeof...(Ks))>.slopes(xs, values[node.self].template of<C>(), slopes);
    bool const guard = seeds[node.self].guarded;
    (give_product<static_cast<int>(Ks)>(seed, slopes[Ks], seeds, guard, node), ...);
  }
  template <int K>
  static void give_product(L const& seed, L const& slope, Values seeds, bool guard, LaneNode<D> const& node) {
    if constexpr (!std::is_void_v<from<K>>) give<K>(guarded_product(seed, slope, guard, functions::chooses<Op>), seeds, guard || functions::chooses<Op>, node);
  }
  template <int K>
  static void give(L const& seed, Values seeds, bool guard, LaneNode<D> const& node) {
    if constexpr (!std::is_void_v<from<K>>) {
      seeds[node.operands[K]].template of<from<K>>() = converted_lane<from<K>>(seed);
      seeds[node.operands[K]].guarded = guard;
    }
  }
};

/// What a part of a marked formula was computed in; void for constants.
template <class E>
struct lane_type {
  using type = void;
};
template <class E>
  requires(has_marked_slot<E> && floating<value_of<E>>)
struct lane_type<E> {
  using type = compute_t<value_of<E>>;
};

/// A marked formula as a row of nodes.
template <class D, class E>
struct LaneTable {
  static constexpr int count = 1;
  static constexpr void fill(LaneNode<D>* nodes, int self, bool is_read, int*) { nodes[0].self = self, nodes[0].is_read = is_read; }
};
template <class D, int J, class E>
struct LaneTable<D, Map<functions::slot<J>, E>> {
  static constexpr int count = 1;
  static constexpr void fill(LaneNode<D>* nodes, int self, bool is_read, int* slots) { nodes[0].self = slots[J] = self, nodes[0].is_read = is_read; }
};
template <class D, class Op, class... Es>
  requires has_marked_slot<Map<Op, Es...>>
struct LaneTable<D, Map<Op, Es...>> {
  static constexpr int count = (1 + ... + LaneTable<D, Es>::count);
  /// `self` is the number of the first node.
  static constexpr void fill(LaneNode<D>* nodes, int self, bool is_read, int* slots) {
    using Step = LaneStep<D, Op, compute_t<value_of<Map<Op, Es...>>>, typename lane_type<Es>::type...>;
    LaneNode<D>& root = nodes[count - 1];
    unsigned const reads = is_read ? ~0u : operands_read<Op, has_marked_slot<Es>...>();
    int at = 0, k = 0;
    ((LaneTable<D, Es>::fill(nodes + at, self + at, (reads >> k & 1u) != 0, slots), at += LaneTable<D, Es>::count, root.operands[k++] = self + at - 1), ...);
    root.self = self + at;
    root.is_read = is_read || functions::reads_result<Op>;
    root.up = &Step::up;
    root.down = &Step::down;
  }
};
template <class D, class E, int Slots>
struct LaneNodes {
  static constexpr int count = LaneTable<D, E>::count;
  LaneNode<D> nodes[count];
  int slots[Slots] = {};
  constexpr explicit LaneNodes(bool is_read) { LaneTable<D, E>::fill(nodes, 0, is_read, slots); }
};
template <class D, class E, int Slots, bool Read>
inline constexpr LaneNodes<D, E, Slots> lane_nodes{Read};

/// A constant part of a formula, as elements of W.
template <class W, class D, class E>
SITU_SELDOM void set_constant(AnyLane<D>& value, E const& e) {
  using C = compute_t<W>;
  if constexpr (std::is_same_v<W, bool>) {
    if constexpr (is_constant<E>) value.truth = full<bool>({}, e.value != 0, D{});
    else value.truth = Tensor<bool, D>(cast<bool>(e));
  } else if constexpr (is_constant<E>) {
    value.template of<C>() = Lane<C, D>(static_cast<C>(e.value));
  } else {
    value.template of<C>() = Lane<C, D>(Tensor<C, D>(cast<C>(e)));
  }
}
/// A Variable, from its node and its value.
template <class T, class D, class E>
SITU_SELDOM void set_variable(AnyLane<D>& value, Tensor<T, E> const& tensor, Node* input) {
  auto* const state = static_cast<State<T, E>*>(input);
  if (state && !state->value.body()) state->value = tensor;
  auto const variable = state ? Variable<T, E>::from_state(state) : Variable<T, E>(tensor, false);
  value.template of<compute_t<T>>() = lane_of<compute_t<T>>(record_transfer<D>(variable));
}
/// Sets the leaves of a formula, whose first node is at `nodes` and `values`.
template <class W, class D, class E>
void set_leaves(E const& e, LaneNode<D> const* nodes, AnyLane<D>* values, Node* const*) {
  if (nodes->is_read || std::is_same_v<W, bool>) set_constant<W>(*values, e);
}
template <class W, class D, int J, class E>
void set_leaves(Map<functions::slot<J>, E> const& map, LaneNode<D> const* nodes, AnyLane<D>* values, Node* const* inputs) {
  if constexpr (!is_constant<E>) {
    if (nodes->is_read) set_variable(*values, map.operands.head, inputs[J]);
  }
}
template <class Op, int K, class... Es, class D, class E, class... Rest>
void set_leaves_of(Fields<E, Rest...> const& operands, LaneNode<D> const* nodes, AnyLane<D>* values, Node* const* inputs) {
  using W = typename Map<Op, Es...>::types::template operand<K>;
  set_leaves<W>(operands.head, nodes, values, inputs);
  if constexpr (sizeof...(Rest) > 0) set_leaves_of<Op, K + 1, Es...>(operands.tail, nodes + LaneTable<D, E>::count, values + LaneTable<D, E>::count, inputs);
}
template <class W, class D, class Op, class... Es>
  requires has_marked_slot<Map<Op, Es...>>
void set_leaves(Map<Op, Es...> const& map, LaneNode<D> const* nodes, AnyLane<D>* values, Node* const* inputs) {
  set_leaves_of<Op, 0, Es...>(map.operands, nodes, values, inputs);
}

/// Runs up through the nodes.
template <class D>
SITU_SELDOM void run_up(LaneNode<D> const* nodes, int count, AnyLane<D>* values) {
  for (int k = 0; k < count; ++k) {
    if (nodes[k].up && nodes[k].is_read) nodes[k].up(values, nullptr, nodes[k]);
  }
}
/// Runs down through the nodes; the root's seed is set.
template <class D>
SITU_SELDOM void run_down(LaneNode<D> const* nodes, int count, AnyLane<D>* values, AnyLane<D>* seeds) {
  for (int k = count - 1; k >= 0; --k) {
    if (nodes[k].down) nodes[k].down(values, seeds, nodes[k]);
  }
}

/// Whether a seed of record_on can be differentiated: it has `L twice(L const& g, L const& x, L const& y)`, of the result's gradient, the formula's
/// value (0 where it is not read) and the result (where seed.result() gives it as it was saved; 0 elsewhere).
template <class Seed, class C, class D>
concept differentiable_seed = requires(Seed const& seed, Lane<C, D> const& lane) { seed.twice(lane, lane, lane); };

template <class Seed, class C, class D, class G, class I>
Lane<C, D> recorded_seed(Seed const& seed, G const& g, Lane<C, D> const& x, I const& into) {
  Lane<C, D> y(C(0));
  if constexpr (requires { seed.result(); }) y = lane_of<C>(own_result(seed.result(), g, into));
  return seed.twice(lane_of<C>(g), x, y);
}

/// Sends the gradients of a marked formula to its Variables, recorded.
template <bool Read, class D, class Marked, class Seed, class G, class I, class... Is>
SITU_SELDOM void send_recorded(Marked const& formula, Shape const& whole, Seed const& seed, G const& g, I const& into, Is const&... rest) {
  using C = compute_t<value_of<Marked>>;
  constexpr auto const& table = lane_nodes<D, Marked, 1 + static_cast<int>(sizeof...(Is)), Read>;
  constexpr int count = table.count;
  Node* const inputs[] = {into.input(), rest.input()...};
  std::vector<AnyLane<D>> values(count), seeds(count);
  set_leaves<value_of<Marked>>(formula, table.nodes, values.data(), inputs);
  run_up(table.nodes, count, values.data());
  seeds[count - 1].template of<C>() = recorded_seed(seed, g, values[count - 1].template of<C>(), into);
  run_down(table.nodes, count, values.data(), seeds.data());
  int j = 0;
  auto const send = [&](auto const& to) { add_lane<G>(seeds[static_cast<std::size_t>(table.slots[j++])].template of<compute_t<value_of<decltype(to)>>>(), whole, to); };
  send(into);
  (send(rest), ...);
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI

#undef SITU_SELDOM
