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

/// Whether a user's function is in a tree: its second derivative is not known.
template <class E>
inline constexpr bool maps_functions = false;
template <class Op, class... Es>
inline constexpr bool maps_functions<Apply<Op, Es...>> = functions::is_mapped<Op> || (maps_functions<Es> || ...);

/// Whether what is recorded on this thread is a part of a formula that another function chooses from: then a gradient of 0 says that its value did not
/// matter, also where it is differentiated again.
SITU_PROCESS_STATE constinit thread_local bool lanes_are_guarded = false;
class LanesGuarded {
 public:
  explicit LanesGuarded(bool guarded) : before_(std::exchange(lanes_are_guarded, guarded)) {}
  LanesGuarded(LanesGuarded const&) = delete;
  LanesGuarded& operator=(LanesGuarded const&) = delete;
  ~LanesGuarded() { lanes_are_guarded = before_; }

 private:
  bool before_;
};

/// A value on the way: in the type that it is computed in, or truth values.
template <class D>
struct AnyLane {
  Lane<float, D> in_float{0.f};
  Lane<double, D> in_double{0.0};
  Tensor<bool, D> truth;
  template <class C>
  auto& of() {
    if constexpr (std::is_same_v<C, float>) return in_float;
    else return in_double;
  }
};

/// What is done at a node, a number in LaneMachine's lists.
enum : int { lane_function_step, lane_cast_step, lane_where_step, lane_leaf };

/// A node of a formula as data: children come before their parent, which is the only one. Formulas share the steps.
template <class D>
struct LaneNode {
  int step = lane_leaf;
  bool in_double = false;          ///< what it is computed in
  void const* function = nullptr;  ///< a LaneFunction<C, D>
  int count = 0, self = 0, operands[3] = {};
  bool is_read = false;
  bool guarded = false;                                           ///< a function chooses from it: where its seed is 0, its value did not matter
  bool takes_seed[3] = {};                                        ///< whether an operand leads to a slot
  AnyLane<D> (*taken[3])(AnyLane<D> const&) = {};                 ///< where an operand was computed in another type
  AnyLane<D> (*given[3])(AnyLane<D> const&) = {};                 ///< the way back
};

/// Between the types that parts of a formula are computed in.
template <class D, class To, class From>
SITU_SELDOM AnyLane<D> as_lane(AnyLane<D> const& from) {
  AnyLane<D> result;
  result.template of<To>() = converted_lane<To>(const_cast<AnyLane<D>&>(from).template of<From>());
  return result;
}

/// What a part of a marked tree was computed in; void for constants.
template <class E>
struct lane_type {
  using type = void;
};
template <class E>
  requires(has_slot<E> && floating<typename E::value_type>)
struct lane_type<E> {
  using type = compute_t<typename E::value_type>;
};

/// A marked tree as a row of nodes.
template <class D, class E>
struct LaneTable {
  static constexpr int count = 1;
  static constexpr void fill(LaneNode<D>* nodes, int self, bool is_read, bool, int*) {
    nodes[0].self = self, nodes[0].is_read = is_read;
  }
};
template <class D, int J, class E>
struct LaneTable<D, Apply<functions::slot<J>, E>> {
  static constexpr int count = 1;
  static constexpr void fill(LaneNode<D>* nodes, int self, bool is_read, bool, int* slot_nodes) {
    nodes[0].self = slot_nodes[J] = self, nodes[0].is_read = is_read;
  }
};
template <class D, class Op, class... Es>
  requires has_slot<Apply<Op, Es...>>
struct LaneTable<D, Apply<Op, Es...>> {
  using C = compute_t<typename Apply<Op, Es...>::value_type>;
  static constexpr int count = (1 + ... + LaneTable<D, Es>::count);
  /// `self` is the number of the first node.
  static constexpr void fill(LaneNode<D>* nodes, int self, bool is_read, bool guarded, int* slot_nodes) {
    LaneNode<D>& root = nodes[count - 1];
    unsigned const reads = is_read ? ~0u : operands_read<Op, has_slot<Es>...>();
    int at = 0, k = 0;
    ((LaneTable<D, Es>::fill(nodes + at, self + at, (reads >> k & 1u) != 0, guarded || functions::chooses<Op>, slot_nodes), at += LaneTable<D, Es>::count,
      root.operands[k] = self + at - 1, tell<typename lane_type<Es>::type>(root, k), ++k),
     ...);
    root.self = self + at;
    root.guarded = guarded;
    root.count = k;
    root.is_read = is_read || functions::reads_result<Op>;
    root.in_double = std::is_same_v<C, double>;
    if constexpr (functions::is_cast<Op>) root.step = lane_cast_step;
    else if constexpr (std::is_same_v<Op, functions::where>) root.step = lane_where_step;
    else root.step = lane_function_step, root.function = &lane_function<Op, C, D, static_cast<int>(sizeof...(Es))>;
  }

 private:
  template <class From>
  static constexpr void tell(LaneNode<D>& root, int k) {
    if constexpr (!std::is_void_v<From>) {
      root.takes_seed[k] = true;
      if constexpr (!std::is_same_v<From, C>) root.taken[k] = &as_lane<D, C, From>, root.given[k] = &as_lane<D, From, C>;
    }
  }
};
template <class D, class E, int Slots>
struct LaneNodes {
  static constexpr int count = LaneTable<D, E>::count;
  LaneNode<D> nodes[count];
  int slot_nodes[Slots] = {};
  constexpr explicit LaneNodes(bool is_read) { LaneTable<D, E>::fill(nodes, 0, is_read, false, slot_nodes); }
};
template <class D, class E, int Slots, bool Read>
inline constexpr LaneNodes<D, E, Slots> lane_nodes{Read};

/// A part of a tree as an expression again.
template <class D, class T, int K>
Tensor<T, D> expression_of(Input<T, K> const&, Handle const* kept) {
  return Tensor<T, D>::from_handle(kept[K]);
}
template <class D, class T>
Constant<T> expression_of(Constant<T> const& constant, Handle const*) {
  return constant;
}
template <class D, class Op, class... Ts>
auto expression_of(Apply<Op, Ts...> const& node, Handle const* kept);
template <class D, class Op, class... Done>
auto map_of_parts(Op const& op, Fields<> const&, Handle const*, Done const&... done) {
  return make_map(op, done...);
}
template <class D, class Op, class E, class... Es, class... Done>
auto map_of_parts(Op const& op, Fields<E, Es...> const& rest, Handle const* kept, Done const&... done) {
  return map_of_parts<D>(op, rest.tail, kept, done..., expression_of<D>(rest.head, kept));
}
template <class D, class Op, class... Ts>
auto expression_of(Apply<Op, Ts...> const& node, Handle const* kept) {
  return map_of_parts<D>(node.op, node.operands, kept);
}

/// A constant part of a formula, as elements of W.
template <class W, class D, class E>
SITU_SELDOM void set_constant(AnyLane<D>& value, E const& e) {
  using C = compute_t<W>;
  if constexpr (std::is_same_v<W, bool>) {
    if constexpr (is_constant<E>) value.truth = full<bool>({}, e.value != 0, D{});
    else if constexpr (std::is_same_v<E, Tensor<bool, D>>) value.truth = e;
    else value.truth = Tensor<bool, D>(cast<bool>(e));
  } else if constexpr (is_constant<E>) {
    value.template of<C>() = Lane<C, D>(static_cast<C>(e.value));
  } else if constexpr (std::is_same_v<E, Tensor<C, D>>) {
    value.template of<C>() = Lane<C, D>(e);
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
/// What a formula keeps, and its nodes.
template <class D, class Variables>
struct LaneLeaves {
  LaneNode<D> const* nodes;
  AnyLane<D>* values;
  Handle const* kept;
  Node* const* inputs;

  /// Sets the leaves of the part whose first node is number `at`.
  template <class W, class Leaf>
  void set(Leaf const& leaf, int at) const {
    if (nodes[at].is_read || std::is_same_v<W, bool>) set_constant<W>(values[at], expression_of<D>(leaf, kept));
  }
  template <class W, int J, class T, int K>
  void set(Apply<functions::slot<J>, Input<T, K>> const&, int at) const {
    using E = device_of<typename nth_in<J, Variables>::type>;
    if (nodes[at].is_read) set_variable(values[at], Tensor<T, E>::from_handle(kept[K]), inputs[J]);
  }
  template <class W, int J, class T>
  void set(Apply<functions::slot<J>, Constant<T>> const&, int) const {}
  template <class W, class Op, class... Es>
    requires has_slot<Apply<Op, Es...>>
  void set(Apply<Op, Es...> const& node, int at) const {
    set_operands<Apply<Op, Es...>, 0>(node.operands, at);
  }

 private:
  template <int K, class List>
  struct nth_in;
  template <int K, class... Vs>
  struct nth_in<K, Fields<Vs...>> : nth_type<K, Vs...> {};

  template <class Parent, int K, class E, class... Es>
  void set_operands(Fields<E, Es...> const& operands, int at) const {
    set<typename Parent::types::template operand<K>>(operands.head, at);
    if constexpr (sizeof...(Es) > 0) set_operands<Parent, K + 1>(operands.tail, at + LaneTable<D, E>::count);
  }
};

/// Runs up through the nodes.
template <class D>
SITU_SELDOM void run_up(LaneNode<D> const* nodes, int count, AnyLane<D>* values) {
  for (LaneNode<D> const* node = nodes; node < nodes + count; ++node) {
    if (node->step == lane_leaf || !node->is_read) continue;
    LanesGuarded const guarded(node->guarded);
    (node->in_double ? lane_machine<double, D>().up : lane_machine<float, D>().up)[node->step](values, nullptr, *node);
  }
}
/// Runs down through the nodes; the root's seed is set.
template <class D>
SITU_SELDOM void run_down(LaneNode<D> const* nodes, int count, AnyLane<D>* values, AnyLane<D>* seeds) {
  for (LaneNode<D> const* node = nodes + count; node-- > nodes;) {
    if (node->step == lane_leaf) continue;
    LanesGuarded const guarded(node->guarded);
    (node->in_double ? lane_machine<double, D>().down : lane_machine<float, D>().down)[node->step](values, seeds, *node);
  }
}

/// Whether a seed of record_on can be differentiated: it has `L twice(L const& g, L const& x, L const& y)`, of the result's gradient, the formula's
/// value (0 where it is not read) and the result (where seed.result() gives it as it was saved; 0 elsewhere).
template <class Seed, class C, class D>
concept differentiable_seed = requires(Seed const& seed, Lane<C, D> const& lane) { seed.twice(lane, lane, lane); };

/// Where a rule looks for the node that it belongs to, where it has no Into.
struct RunningNode {
  Flow& running;
  Flow& flow() const { return running; }
};
template <class Seed, class C, class D, class G, class Ix>
Lane<C, D> recorded_seed(Seed const& seed, G const& g, Lane<C, D> const& x, Ix const& into) {
  Lane<C, D> y(C(0));
  if constexpr (requires { seed.result(); }) y = lane_of<C>(own_result(seed.result(), g, into));
  return seed.twice(lane_of<C>(g), x, y);
}

/// The seed of a formula. Formulas share it.
template <class Seed, class C, class D, class G>
SITU_SELDOM Lane<C, D> seed_of(void const* seed, G const& g, Lane<C, D> const& x, Flow& flow) {
  return recorded_seed(*static_cast<Seed const*>(seed), g, x, RunningNode{flow});
}
/// The gradient of one Variable, on its way.
template <class D, class V, class G>
SITU_SELDOM void send_lane(AnyLane<D>& gradient, Shape const& whole, Flow& flow, Node* input) {
  add_lane<G>(gradient.template of<compute_t<value_of<V>>>(), whole, Into<value_of<V>, device_of<V>>(flow, input));
}
template <class D, class G, class... Vs>
inline constexpr void (*lane_sends[])(AnyLane<D>& gradient, Shape const& whole, Flow& flow, Node* input) = {&send_lane<D, Vs, G>...};

/// A formula that is computed in C, with a result like G, as data.
template <class D, class C, class G>
struct LaneFormula {
  LaneNode<D> const* nodes;
  int const* slot_nodes;
  int count, slot_count;
  void (*set_leaves)(void const* tree, LaneNode<D> const* nodes, AnyLane<D>* values, Handle const* kept, Node* const* inputs);
  Lane<C, D> (*seed)(void const* seed, G const& g, Lane<C, D> const& x, Flow& flow);
  void (*const* send)(AnyLane<D>& gradient, Shape const& whole, Flow& flow, Node* input);
};
template <class D, class Tree, class... Vs>
SITU_SELDOM void set_leaves(void const* tree, LaneNode<D> const* nodes, AnyLane<D>* values, Handle const* kept, Node* const* inputs) {
  LaneLeaves<D, Fields<Vs...>>{nodes, values, kept, inputs}.template set<typename Tree::value_type>(*static_cast<Tree const*>(tree), 0);
}
template <bool Read, class D, class Tree, class Seed, class G, class... Vs>
inline constexpr LaneFormula<D, compute_t<typename Tree::value_type>, G> lane_formula{
    lane_nodes<D, Tree, static_cast<int>(sizeof...(Vs)), Read>.nodes,
    lane_nodes<D, Tree, static_cast<int>(sizeof...(Vs)), Read>.slot_nodes,
    LaneTable<D, Tree>::count,
    static_cast<int>(sizeof...(Vs)),
    &set_leaves<D, Tree, Vs...>,
    &seed_of<Seed, compute_t<typename Tree::value_type>, D, G>,
    lane_sends<D, G, Vs...>};

/// Sends the gradients of a marked tree to the Variables of its formula, recorded. Formulas share it.
template <class D, class C, class G>
SITU_SELDOM void send_recorded(LaneFormula<D, C, G> const& formula, void const* tree, void const* seed, Handle const* kept, Node* const* inputs, Shape const& whole, G const& g,
                               Flow& flow) {
  struct Row {
    AnyLane<D>* lanes;
    explicit Row(int count) : lanes(new AnyLane<D>[static_cast<std::size_t>(count)]) {}
    Row(Row const&) = delete;
    Row& operator=(Row const&) = delete;
    ~Row() { delete[] lanes; }
  };
  int const root = formula.count - 1;
  Row const values(formula.count), seeds(formula.count);
  formula.set_leaves(tree, formula.nodes, values.lanes, kept, inputs);
  run_up(formula.nodes, formula.count, values.lanes);
  seeds.lanes[root].template of<C>() = formula.seed(seed, g, values.lanes[root].template of<C>(), flow);
  run_down(formula.nodes, formula.count, values.lanes, seeds.lanes);
  for (int j = 0; j < formula.slot_count; ++j) formula.send[j](seeds.lanes[formula.slot_nodes[j]], whole, flow, inputs[j]);
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI

#undef SITU_SELDOM
