/// Recording a formula: one node, whose backward is one kernel for the gradients of all Variables in it.
#pragma once

#include <situ/autograd/cpu/backward.hpp>
#include <situ/autograd/record.hpp>
#include <situ/autograd/second_order.hpp>
#if defined(__CUDACC__)
#include <situ/autograd/cuda/backward.hpp>
#endif

namespace situ::inline SITU_ABI {
namespace detail {

#if !defined(__CUDACC__)
inline namespace SITU_ABI_COMPILER {
template <class D, class P>
void launch_backward(cuda_kernels, typename P::trees const&, BackwardPlaces<P::outputs, P::inputs> const&) {
  static_assert(compiled_by_nvcc<P>, "situ: gradients_on_Cuda_need_nvcc: this file is not compiled by nvcc; name it .cu, or move the Variable to the host");
}
}  // namespace SITU_ABI_COMPILER
#endif

/// What a backward pass asks of a Variable, with its type forgotten: a node's State<T, D> behind functions that formulas share.
struct SlotFunctions {
  int size;                                                     ///< of an element
  void* (*begin)(Node* node, Shape const& shape);               ///< memory for its first gradient, which becomes what has arrived
  void* (*own)(Node* node);                                     ///< of what has arrived, where nobody else sees it; else null
  Handle (*fresh)(Shape const& shape, void*& memory);           ///< a gradient apart
  Handle (*fresh_sums)(Shape const& shape, void*& memory);      ///< sums of gradients
  void (*add)(Flow& flow, Node* node, Handle const& gradient);  ///< of its shape, or of one that it was broadcast to
  void (*add_sums)(Flow& flow, Node* node, Handle const& sums);
  void (*check)(Node const* node);                              ///< that a view may still be used
};
template <class T, class D>
struct SlotOf {
  using Gradient = Tensor<T, D>;
  using Sums = Tensor<compute_t<T>, result_device_t<D>>;
  static void* begin(Node* node, Shape const& shape) {
    auto* const state = static_cast<State<T, D>*>(node);
    state->incoming = Gradient::uninitialized(shape, "backward");
    return state->incoming.data();
  }
  static void* own(Node* node) {
    auto* const state = static_cast<State<T, D>*>(node);
    return state->is_own(state->incoming) ? state->incoming.data() : nullptr;
  }
  static Handle fresh(Shape const& shape, void*& memory) { return made(Gradient::uninitialized(shape, "backward"), memory); }
  static Handle fresh_sums(Shape const& shape, void*& memory) { return made(Sums::uninitialized(shape, "backward"), memory); }
  static void add(Flow& flow, Node* node, Handle const& gradient) { Into<T, D>(flow, node).add(Gradient::from_handle(gradient)); }
  static void add_sums(Flow& flow, Node* node, Handle const& handle) {
    Sums const sums = Sums::from_handle(handle);
    Into<T, D>(flow, node).add_sum((sums.size(0) == 1 ? sums : situ::sum(sums, 0)).reshape(node->shape));
  }
  static void check(Node const* node) { check_view(*static_cast<State<T, D> const*>(node)); }

 private:
  template <class G>
  static Handle made(G gradient, void*& memory) {
    memory = gradient.data();
    return gradient.handle();
  }
};
template <class T, class D>
inline constexpr SlotFunctions slot_functions{static_cast<int>(sizeof(T)),    &SlotOf<T, D>::begin, &SlotOf<T, D>::own,      &SlotOf<T, D>::fresh,
                                              &SlotOf<T, D>::fresh_sums, &SlotOf<T, D>::add,   &SlotOf<T, D>::add_sums, &SlotOf<T, D>::check};

/// Where the gradient of one slot goes: memory of the formula's shape, or for sums over it; null where it is not needed.
struct SlotTarget {
  void* memory = nullptr;
  bool accumulates = false;  ///< on top of what is there
  bool sums = false;         ///< of a Variable that was broadcast: one for each group of the space, in the computing type
  Handle apart;              ///< what cannot be written where it belongs
  Layout sum_layout;
};

/// Those of a formula's slots, in memory for any number of them: only what a formula has is made, and given back, in one place for all formulas.
template <int Most>
struct SlotTargets {
  alignas(SlotTarget) unsigned char memory[Most * sizeof(SlotTarget)];
  SlotTarget* const first = reinterpret_cast<SlotTarget*>(memory);
  int const count;
  explicit SlotTargets(int slot_count) : count(slot_count) {
    for (int j = 0; j < count; ++j) ::new (static_cast<void*>(memory + static_cast<std::size_t>(j) * sizeof(SlotTarget))) SlotTarget();
  }
  SlotTargets(SlotTargets const&) = delete;
  ~SlotTargets() {
    for (int j = count - 1; j >= 0; --j) first[j].~SlotTarget();
  }
};

inline Layout const& layout_of(Body const* body) { return body ? body->layout : empty_layout; }
/// Whether every tensor of a formula is contiguous and of this shape, or of one element.
inline bool is_plain(Body const* const* bodies, int count, Shape const& shape) {
  for (int k = 0; k < count; ++k) {
    Layout const& layout = layout_of(bodies[k]);
    if (!((!bodies[k] || bodies[k]->contiguous) && same_shape(layout.shape, shape)) && !repeats_one(layout)) return false;
  }
  return true;
}

/// What a node of a formula is made of, beside its State: arrays behind it, in one block with it.
struct FormulaParts {
  Shape whole;                ///< of the formula
  Node** edges;               ///< the Variables
  Handle* kept;               ///< the tensors that derivatives read
  uint32_t* versions;         ///< of these, as they were
  void* payload;              ///< the marked tree, the seed, and the formula where the seed reads it
  SlotFunctions const* const* functions;
  int slot_count, kept_count;
  uint64_t passed;            ///< the slots whose gradient is that of the result: those of terms
};

/// One backward pass of a formula: where its gradients go. Nothing of it depends on the formula.
template <class D>
struct FormulaPass {
  FormulaParts const& formula;
  Flow& flow;
  Body const* const* bodies;  ///< of all tensors that are read
  int count;
  SlotTarget* targets;
  Layout whole;
  int64_t groups = 0;
  uint64_t passed = 0;               ///< the slots that get the result's gradient as it is, shared, not a copy of it
  bool plain = false, late = false;  ///< late: the node that the one gradient reaches computes it; not unless `may_be_late`

  /// `targets`: one for each slot. `gradient`: the result's.
  SITU_NOINLINE FormulaPass(FormulaParts const& parts, Handle const& gradient, Flow& f, Body const* const* read, int read_count, SlotTarget* to, bool may_be_late = false)
      : formula(parts), flow(f), bodies(read), count(read_count), targets(to), whole(parts.whole) {
    for (int k = 0; k < count; ++k) {
      if (!bodies[k]) continue;
      before_read<D>(bodies[k]->storage.head());
      if constexpr (std::is_same_v<D, Cpu>) before_read<Pinned>(bodies[k]->storage.head());
    }
    int64_t sums = 0;
    bool narrow = false;
    if constexpr (std::is_same_v<typename device_traits<D>::kernels, cpu_kernels>) {
      for (int j = 0; j < formula.slot_count; ++j) {
        Node const* const to_node = formula.edges[j];
        if (!flow.wants(to_node) || same_shape(to_node->shape, whole.shape)) continue;
        int64_t const own = product(to_node->shape);
        sums += own;
        narrow = narrow || (formula.functions[j]->size == 2 && own * 4 <= whole.size());
      }
      if (sums > 0) groups = sum_groups(whole.size(), sums, narrow);
    }
    plain = groups == 0 && is_plain(bodies, count, whole.shape);
    for (int j = 0; formula.passed != 0 && j < formula.slot_count; ++j) {
      if ((formula.passed >> j & 1) != 0 && may_share(j, gradient.body())) passed |= uint64_t{1} << j;
    }
    late = may_be_late && passed == 0 && plain && takes_late(flow, formula.edges, formula.slot_count, whole.shape);
    for (int j = 0; j < formula.slot_count; ++j) {
      if ((passed >> j & 1) != 0) formula.functions[j]->add(flow, formula.edges[j], gradient);
      else choose(formula.edges[j], *formula.functions[j], targets[j]);
    }
  }
  /// Sends what could not be written where it belongs.
  SITU_NOINLINE void finish() {
    for (int j = formula.slot_count - 1; j >= 0; --j) {
      if (!targets[j].apart.body()) continue;
      if (targets[j].sums) formula.functions[j]->add_sums(flow, formula.edges[j], targets[j].apart);
      else formula.functions[j]->add(flow, formula.edges[j], targets[j].apart);
    }
  }

 private:
  /// Whether slot j's Variable reads its gradient and passes it on, where nothing else of this formula adds to it: a leaf keeps its own, and so do hooks
  /// and grad().
  bool may_share(int j, Body const* gradient) const {
    Node const* const node = formula.edges[j];
    if (!flow.wants(node) || !node->name || node->queued || node->hooked || node->target || !same_shape(node->shape, whole.shape)) return false;
    for (int k = 0; k < formula.slot_count; ++k) {
      if (k != j && formula.edges[k] == node) return false;
    }
    return gradient && gradient->contiguous && same_shape(gradient->layout.shape, whole.shape);
  }
  void choose(Node* node, SlotFunctions const& functions, SlotTarget& target) {
    if (!flow.wants(node)) return;
    bool const fits = same_shape(node->shape, whole.shape);
    if (!fits && groups > 0) {
      target.sums = true, target.sum_layout = Layout(node->shape);
      target.apart = functions.fresh_sums(Shape{groups, target.sum_layout.size()}, target.memory);
    } else if (late) {
      target.memory = node;  // which is not written
    } else if (fits && !node->queued) {
      target.memory = functions.begin(node, whole.shape);
      flow.arrived(node);
    } else if (void* const own = fits && plain ? functions.own(node) : nullptr) {
      target.memory = own, target.accumulates = true;
    } else {
      target.apart = functions.fresh(whole.shape, target.memory);
    }
  }
};

/// Where the operands of a backward kernel lie: gradients first, then what is read. `memory` of a gradient that is not needed is any.
struct BackwardOperands {
  void** data;
  Layout const** layouts;  ///< of the space, then of the operands
  uint64_t needed = 0, accumulated = 0, summed = 0;

  /// False where nothing is to be done.
  template <class D>
  bool bind(FormulaPass<D> const& pass) {
    void* any = nullptr;
    int const slot_count = pass.formula.slot_count;
    layouts[0] = &pass.whole;
    for (int j = 0; j < slot_count; ++j) {
      SlotTarget const& target = pass.targets[j];
      if (!target.memory) continue;
      any = target.memory;
      needed |= uint64_t{1} << j;
      if (target.accumulates) accumulated |= uint64_t{1} << j;
      if (target.sums) summed |= uint64_t{1} << j;
    }
    if (!any || pass.whole.size() == 0) return false;
    for (int j = 0; j < slot_count; ++j) {
      SlotTarget const& target = pass.targets[j];
      data[j] = target.memory ? target.memory : any;
      layouts[j + 1] = target.sums ? &target.sum_layout : &pass.whole;
    }
    for (int k = 0; k < pass.count; ++k) {
      data[slot_count + k] = pass.bodies[k] ? pass.bodies[k]->first : nullptr;
      layouts[slot_count + k + 1] = &layout_of(pass.bodies[k]);
    }
    return true;
  }
};

/// Runs a formula's backward kernel on the CPU.
template <class D, int Most, int TreeBytes>
SITU_NOINLINE void propagate(FormulaParts const& parts, Handle const& gradient, Flow& flow, cpu::BackwardCode const& code, void const* trees, int tree_bytes, Body const* const* bodies) {
  SlotTargets<Most> targets(parts.slot_count);
  FormulaPass<D> pass(parts, gradient, flow, bodies, code.operands - code.outputs, targets.first, is_immediate<D> && Most <= 12);
  cpu::BoundBackward<Most, TreeBytes> bound;
  Layout const* layouts[Most + 1];
  BackwardOperands operands{bound.data, layouts};
  if (operands.bind(pass)) {
    bound.code = &code, bound.formula = code.formula;
    bound.masks = {operands.needed, operands.accumulated, operands.summed};
    bound.repeated = 0;
    __builtin_memcpy(bound.trees, trees, static_cast<std::size_t>(tree_bytes));
    if (pass.plain && !operands.summed) {
      for (int k = code.outputs; k < code.operands && pass.whole.size() > 1; ++k) {
        if (repeats_one(*layouts[k + 1])) bound.repeated |= uint64_t{1} << k;
      }
      if (SITU_LIKELY(!pass.late)) cpu::launch_contiguous_backward<D>(bound, pass.whole.size());
      else if constexpr (Most <= 12) flow.arrived_late(new cpu::LateBackward<D, Most, TreeBytes>(bound, bodies, parts.edges, [&](int j) { return parts.functions[j]->begin; }));
    } else {
      cpu::launch_strided_backward<D>(bound, layouts, pass.groups);
    }
  }
  pass.finish();
}

/// The same elsewhere.
template <class D, int Outputs, int Inputs>
SITU_NOINLINE void propagate_elsewhere(FormulaParts const& parts, Handle const& gradient, Flow& flow, Body const* const* bodies, void const* trees,
                                       void (*launch)(void const* trees, BackwardPlaces<Outputs, Inputs> const& places)) {
  constexpr int count = Outputs + Inputs;
  SlotTarget targets[Outputs];
  FormulaPass<D> pass(parts, gradient, flow, bodies, Inputs, targets);
  BackwardPlaces<Outputs, Inputs> places;
  auto& where = places.where;
  Layout const* layouts[count + 1];
  BackwardOperands operands{where.data, layouts};
  if (operands.bind(pass)) {
    places.needed = operands.needed, places.accumulated = operands.accumulated;
    where.contiguous = pass.plain;
    for (int k = Outputs; k < count; ++k) where.contiguous = where.contiguous && (pass.whole.size() == 1 || !repeats_one(*layouts[k + 1]));
    where.rank = 1;
    where.sizes[0] = pass.whole.size();
    if (!where.contiguous) where.rank = bind_strides(layouts + 1, count, where.sizes, &where.strides[0][0]);
    launch(trees, places);
  }
  pass.finish();
}

template <class T, class D>
struct FormulaState;

/// What is known of a node of a formula when it is compiled.
template <class T, class D>
struct FormulaCode {
  void (*send)(FormulaState<T, D>& node, Flow& flow);
  void (*send_recorded)(FormulaState<T, D>& node, Flow& flow);  ///< under create_graph; null where there is no second derivative
  void (*destroy)(void* payload) noexcept;                        ///< null where there is nothing to be done
  SlotFunctions const* const* functions;
  int slot_count, kept, payload_bytes;
  uint64_t passed;
};

/// The node of an operation on a formula: its result, and what its backward needs, types forgotten.
template <class T, class D>
struct FormulaState final : State<T, D>, FormulaParts {
  FormulaCode<T, D> const* code;

  /// The payload is still to be made.
  static FormulaState* make(char const* name, Tensor<T, D>&& value, Shape const& whole, FormulaCode<T, D> const& code) {
    auto const slot_count = static_cast<std::size_t>(code.slot_count), kept = static_cast<std::size_t>(code.kept), payload = static_cast<std::size_t>(code.payload_bytes + 15) / 16 * 16;
    std::size_t const own = (sizeof(FormulaState) + 15) / 16 * 16;
    char* const block = static_cast<char*>(take_block(own + payload + slot_count * sizeof(Node*) + kept * (sizeof(Handle) + sizeof(uint32_t))));
    auto* const state = ::new (static_cast<void*>(block)) FormulaState(std::move(value), whole, code);
    state->name = name, state->payload = block + own;
    state->inputs = state->edges = reinterpret_cast<Node**>(block + own + payload);
    state->FormulaParts::kept = reinterpret_cast<Handle*>(state->edges + slot_count);
    state->versions = reinterpret_cast<uint32_t*>(state->FormulaParts::kept + kept);
    state->input_count = code.slot_count;
    for (int k = 0; k < code.slot_count; ++k) state->edges[k] = nullptr;
    for (int k = 0; k < code.kept; ++k) ::new (static_cast<void*>(state->FormulaParts::kept + k)) Handle();
    state->requires_grad = true, state->saves_nothing = code.kept == 0 && !code.destroy;
    return state;
  }
  ~FormulaState() override {
    if (!this->released) end_parts();
  }

  /// To the Variables of the formula, and to the tensors that derivatives read.
  SITU_NOINLINE void connect(Node* const* variables, Handle const* const* tensors) {
    for (int k = 0; k < slot_count; ++k) {
      Node* const from = variables[k];
      if (SITU_UNLIKELY(from->is_view)) functions[k]->check(from);
      if (from->requires_grad) connect_input(*this, k, from);
    }
    for (int k = 0; k < kept_count; ++k) {
      Handle const& tensor = this->FormulaParts::kept[k] = *tensors[k];
      versions[k] = tensor.body() && tensor.body()->storage ? tensor.body()->storage.head()->version : 0;
    }
  }

  void backward(Flow& flow) override {
    this->keep_retained(flow);
    OperationName const guard(this->name);
    for (int k = 0; k < kept_count; ++k) {
      if (Body const* const body = this->FormulaParts::kept[k].body()) check_unchanged(body->storage.head(), versions[k], body->layout.shape);
    }
    if (!flow.creates_graph()) code->send(*this, flow);
    else if (code->send_recorded) code->send_recorded(*this, flow);
    else fail<GradientError>("grad: ", this->name, " has no second derivative here; call grad without create_graph");
  }
  void release() noexcept override {
    if (!std::exchange(this->released, true)) end_parts();
  }

 private:
  FormulaState(Tensor<T, D>&& result, Shape const& formula, FormulaCode<T, D> const& c)
      : State<T, D>(std::move(result)), FormulaParts{formula, nullptr, nullptr, nullptr, nullptr, c.functions, c.slot_count, c.kept, c.passed}, code(&c) {}
  SITU_NOINLINE void end_parts() noexcept {
    if (code->destroy) code->destroy(payload);
    for (int k = 0; k < kept_count; ++k) this->FormulaParts::kept[k] = Handle();
    drop_inputs(*this);
  }
};

/// In place of a formula that a seed does not read.
struct no_values {
  int shape() const;
};
/// A formula and the seed of the operation on it, as its node keeps them. Seed says the gradient of the formula's value, an expression, from that of
/// the result.
template <bool Read, class E, class Seed>
struct FormulaPayload {
  using Tree = decltype(marked<0, 0, Read>(std::declval<E const&>()));
  using Values = std::conditional_t<Read, std::remove_cvref_t<decltype(values_of(std::declval<E const&>()))>, no_values>;
  using Variables = typename variable_types<E>::type;
  static constexpr int kept = kept_count<Read, E>;
  Tree tree;
  Seed seed;
  Values values;
};

/// The tensors that a seed reads.
struct SeedCollector {
  Body const** next;
  template <class X>
  SITU_INLINE void operator()(X const& tensor) {
    *next++ = tensor.body();
  }
};

/// The seed of what is the formula's value.
struct gradient_itself {
  template <class G, class X>
  G const& operator()(G const& g, X const&) const {
    return g;
  }
  template <class L>
  L twice(L const& g, L const&, L const&) const {
    return g;
  }
};

/// The slots of a tree that are terms of it: their derivative is 1.
template <class Tree>
inline constexpr uint64_t terms_of = 0;
template <int K, class X>
inline constexpr uint64_t terms_of<Apply<functions::slot<K>, X>> = uint64_t{1} << K;
template <class A, class B>
inline constexpr uint64_t terms_of<Apply<functions::add, A, B>> = terms_of<A> | terms_of<B>;
template <class A, class B>
inline constexpr uint64_t terms_of<Apply<functions::subtract, A, B>> = terms_of<A>;

template <class T, class D, bool Read, class Where, class Payload, class Variables>
struct FormulaRule;
template <class T, class D, bool Read, class Where, class Payload, class... Vs>
struct FormulaRule<T, D, Read, Where, Payload, Fields<Vs...>> {
  using Tree = typename Payload::Tree;
  static constexpr int slot_count = static_cast<int>(sizeof...(Vs)), kept = Payload::kept;
  static_assert(alignof(Payload) <= 16);

  static void send(FormulaState<T, D>& node, Flow& flow) {
    auto const& payload = *static_cast<Payload const*>(node.payload);
    auto const gradient = payload.seed(std::as_const(node.incoming), payload.values);
    auto const seed = lower<kept>(gradient);
    using S = std::remove_cv_t<decltype(seed)>;
    constexpr int inputs = kept + leaf_count<std::remove_cv_t<decltype(gradient)>>;
    Body const* bodies[inputs > 0 ? inputs : 1];
    for (int k = 0; k < kept; ++k) bodies[k] = node.FormulaParts::kept[k].body();
    SeedCollector read{bodies + kept};
    for_each_leaf(gradient, read);
    using Types = Fields<value_of<Vs>...>;
    BackwardTrees<Tree, S> const trees{payload.tree, seed};
    if constexpr (std::is_same_v<typename device_traits<Where>::kernels, cpu_kernels>) {
      constexpr int bytes = static_cast<int>(sizeof(trees)), operands = slot_count + inputs;
      constexpr bool small = operands <= 12 && bytes <= 128;
      propagate<Where, small ? 12 : cpu::max_operands, small ? 128 : (bytes + 511) / 512 * 512>(node, node.incoming.handle(), flow, cpu::backward_code<Tree, S, Types, inputs>, &trees, bytes, bodies);
    } else {
      propagate_elsewhere<Where, slot_count, inputs>(node, node.incoming.handle(), flow, bodies, &trees, &launch_trees<Tree, S, Types, inputs>);
    }
  }
  template <class F, class S, class Types, int Inputs>
  static void launch_trees(void const* trees, BackwardPlaces<slot_count, Inputs> const& places) {
    launch_backward<Where, BackwardProgram<F, S, Types, Inputs>>(typename device_traits<Where>::kernels{}, *static_cast<BackwardTrees<F, S> const*>(trees), places);
  }
  static void send_twice(FormulaState<T, D>& node, Flow& flow) {
    auto const& payload = *static_cast<Payload const*>(node.payload);
    send_recorded(lane_formula<Read, Where, Tree, decltype(Payload::seed), Variable<T, D>, Vs...>, &payload.tree, &payload.seed, node.FormulaParts::kept, node.edges, node.whole, *node.incoming_recorded, flow);
  }
  static void destroy(void* payload) noexcept { static_cast<Payload*>(payload)->~Payload(); }

  static constexpr SlotFunctions const* functions[] = {&slot_functions<value_of<Vs>, device_of<Vs>>...};
  static constexpr bool has_second = differentiable_seed<decltype(Payload::seed), compute_t<typename Tree::value_type>, Where> && !maps_functions<Tree>;
  static constexpr auto second() {
    if constexpr (has_second) return &send_twice;
    else return static_cast<void (*)(FormulaState<T, D>&, Flow&)>(nullptr);
  }
  static constexpr auto end() {
    if constexpr (std::is_trivially_destructible_v<Payload>) return static_cast<void (*)(void*) noexcept>(nullptr);
    else return &destroy;
  }
  static constexpr uint64_t passed() {
    if constexpr (std::is_same_v<decltype(Payload::seed), gradient_itself>) {
      uint64_t same = 0;
      int k = 0;
      ((same |= uint64_t{std::is_same_v<Vs, Variable<T, D>>} << k++), ...);
      return terms_of<Tree> & same;
    } else {
      return 0;
    }
  }
  static constexpr FormulaCode<T, D> code{&send, second(), end(), functions, slot_count, kept, static_cast<int>(sizeof(Payload)), passed()};
};

/// The rule of an operation on a Variable alone, whose gradient is a tensor.
struct differentiable_rule {
  using twice = on_lanes;
};
struct final_rule {};
template <class T, class D, bool Read, class Seed>
struct VariableRule : std::conditional_t<differentiable_seed<Seed, compute_t<T>, result_device_t<D>>, differentiable_rule, final_rule> {
  static constexpr bool stateless = !Read && is_stateless<Seed>;
  Saved<T, D> saved;
  Seed seed;
  VariableRule(Saved<T, D>&& x, Seed const& s) : saved(std::move(x)), seed(s) {}
  template <class G, class Ix>
  void operator()(G const& g, Ix const& into) const {
    if (!into.needed()) return;
    if constexpr (has_history<G>) {
      using C = compute_t<T>;
      using L = Lane<C, result_device_t<D>>;
      L x(C(0));
      if constexpr (Read) x = L::of(saved.variable());
      add_lane<G>(recorded_seed(seed, g, x, into), into.shape(), into);
    } else {
      into.add(seed(g, saved.tensor()));
    }
  }
};
template <class E>
inline constexpr bool is_tensor = false;
template <class T, class D>
inline constexpr bool is_tensor<Tensor<T, D>> = true;

/// What collects the parts of formulas: see for_each_kept on why they have names.
struct NodeCollector {
  Node** next;
  template <class V>
  SITU_INLINE void operator()(V const& variable) {
    *next++ = variable.state();
  }
};
struct HandleCollector {
  Handle const** next;
  template <class X>
  SITU_INLINE void operator()(X const& tensor) {
    *next++ = &tensor.handle();
  }
};

/// Records `value`, an operation's result on the formula e. In backward, seed(g, x) gives the gradient of e's value from that of the
/// result: an expression, that reads x, the value of e as an expression, only if `Read` says so. It becomes part of the one kernel
/// that computes the gradients of all Variables in e.
template <bool Read, class T, class D, class E, class Seed>
Variable<T, D> record_on(char const* name, Tensor<T, D> value, E const& e, Seed const& seed) {
  Node* variables[slot_count<E>];
  NodeCollector nodes{variables};
  for_each_variable(e, nodes);
  if (!records_any(variables, slot_count<E>)) return Variable<T, D>(std::move(value), false);
  constexpr bool alone = requires { e.state(); };
  if constexpr (alone && is_tensor<std::remove_cvref_t<decltype(seed(std::declval<Tensor<T, D> const&>(), values_of(e)))>>) {
    using Rule = VariableRule<value_of<E>, device_of<E>, Read, Seed>;
    Variable<value_of<E>, device_of<E>> const& v = e;
    if constexpr (Read) return record(name, std::move(value), Rule(Saved<value_of<E>, device_of<E>>(v), seed), v);
    else return record(name, std::move(value), Rule(Saved<value_of<E>, device_of<E>>(), seed), v);
  } else {
    using Payload = FormulaPayload<Read, E, Seed>;
    using Rule = FormulaRule<T, D, Read, result_device_t<device_of<E>>, Payload, typename Payload::Variables>;
    auto* const state = FormulaState<T, D>::make(name, std::move(value), e.shape(), Rule::code);
    if constexpr (Read) ::new (state->payload) Payload{marked<0, 0, Read>(e), seed, values_of(e)};
    else ::new (state->payload) Payload{marked<0, 0, Read>(e), seed, {}};
    Variable<T, D> result = Variable<T, D>::adopt(state);
    Handle const* kept[Payload::kept + 1] = {};
    HandleCollector handles{kept};
    for_each_kept<Read>(e, handles);
    state->connect(variables, kept);
    return result;
  }
}

/// A formula's value as a Variable: one node. A Variable is given back as it is.
template <class T, class D>
Variable<T, D> recorded(Variable<T, D> const& v) {
  return v;
}
template <class Op, class... Es>
auto recorded(Map<Op, Es...> const& e) {
  using T = value_of<Map<Op, Es...>>;
  using D = result_device_t<device_of<Map<Op, Es...>>>;
  return record_on<false>(node_name_of<Op, sizeof...(Es) == 1>.text, Tensor<T, D>(values_of(e)), e, gradient_itself{});
}
template <class T, class D, class E>
Variable<T, D> recorded_as(E const& e) {
  if constexpr (std::is_same_v<decltype(recorded(e)), Variable<T, D>>) return recorded(e);
  else if constexpr (std::is_same_v<value_of<E>, T>) return record_transfer<D>(recorded(e));
  else return recorded_as<T, D>(cast<T>(e));
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
