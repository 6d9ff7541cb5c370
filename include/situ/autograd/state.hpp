/// What stands behind a Variable: its state, what its operation saved, and where gradients are sent.
#pragma once

#include <situ/autograd/variable.hpp>
#include <situ/tensor/factories.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// Throws GradientError when a saved tensor has been written in place.
SITU_NOINLINE inline void check_unchanged(StorageHead const* head, uint32_t version, Shape const& shape) {
  if (SITU_LIKELY(!head || head->version == version)) return;
  fail<GradientError>("backward: ", running_operation ? running_operation : "an operation", " needs a tensor of shape ", shape,
                      " as it was when it was recorded, but ", head->writer ? head->writer : "a function",
                      " has written to it in place since; write to a clone() of it, or after the backward");
}

/// What check_unchanged compares with.
inline uint32_t version_of(StorageHead const* head) { return head ? head->version : 0; }

/// The writer of a storage that the write of a Variable's part was recorded in.
inline constexpr char recorded_write[] = "a recorded write";

template <class T, class D>
struct State;

/// Whether it is a view of a Variable that was written since, and recorded: its own history does not know what it is made of.
template <class T, class D>
bool is_outdated(State<T, D> const& state) {
  StorageHead const* const head = state.value.storage_head();
  return SITU_UNLIKELY(state.is_view && head && static_cast<int32_t>(head->recorded - state.version) > 0);
}
/// Throws GradientError for such a view.
template <class T, class D>
void check_view(State<T, D> const& state) {
  if (!is_outdated(state)) return;
  fail<GradientError>("a view of shape ", state.shape, " is used after the Variable that it is a view of was written: its gradient would go astray; take the view again");
}
template <class V>
void check_view(V const& v) {
  if constexpr (requires { v.state()->is_view; }) {
    if (auto const* const state = v.state(); SITU_UNLIKELY(state && state->is_view)) check_view(*state);
  }
}

/// Numbers of hooks.
SITU_PROCESS_STATE constinit int64_t hooks_added = 0;

template <class T, class D>
struct HooksBefore;

/// A Variable's place in the graph, with its value while handles can read it.
template <class T, class D>
struct State : Node {
  int64_t handles = 1;
  Tensor<T, D> value;
  Tensor<T, D> grad;      ///< what the user sees
  Tensor<T, D> incoming;  ///< what has arrived in this pass
  Tensor<T, D> captured;  ///< what grad() asked for
  Variable<T, D>* incoming_recorded = nullptr;  ///< the same under create_graph
  Variable<T, D>* captured_recorded = nullptr;
  Hook<T, D>* hooks = nullptr;
  int hooks_called = 0;   ///< passes that call them now
  bool has_grad = false, retains_grad = false;
  uint32_t version = 0;   ///< of a view: how often that had been written

  /// A leaf.
  explicit State(Tensor<T, D>&& v) noexcept : value(std::move(v)) { shape = value.shape(); }
  /// The result of an operation, whose inputs are still to be connected.
  SITU_NOINLINE State(char const* operation, Tensor<T, D>&& v, Node** edges, int count) noexcept : value(std::move(v)) {
    shape = value.shape();
    name = operation;
    inputs = edges;
    input_count = count;
    requires_grad = true;
    for (int k = 0; k < count; ++k) edges[k] = nullptr;
  }
  SITU_NOINLINE ~State() override {
    forget_recorded(incoming_recorded);
    forget_recorded(captured_recorded);
    while (hooks) delete std::exchange(hooks, hooks->next);
  }

  /// Adds to what has arrived. Memory that others see is not written.
  template <class E>
  void add(Flow& flow, E const& gradient) {
    if (!queued) incoming = Tensor<T, D>(gradient);
    else if constexpr (std::is_same_v<value_of<E>, T>) incoming = incoming + gradient;
    else incoming = incoming + cast<T>(gradient);
    flow.arrived(this);
  }
  /// The same of this shape, or of one that it was broadcast to.
  SITU_NOINLINE void add_tensor(Flow& flow, Tensor<T, D> const& gradient) {
    if (gradient.shape() == shape) add(flow, gradient);
    else add(flow, summed_to(gradient, shape));
  }
  __attribute__((noinline, cold)) void add_recorded(Flow& flow, Variable<T, D> const& gradient) {
    auto* const sum = new Variable<T, D>(incoming_recorded ? Variable<T, D>(*incoming_recorded + gradient) : gradient);
    forget_recorded(incoming_recorded);
    incoming_recorded = sum;
    flow.arrived(this);
  }
  __attribute__((noinline, cold)) void add_recorded_sum(Flow& flow, Variable<T, D> const& gradient) { add_recorded(flow, summed_to(gradient, shape)); }

  /// A hook may start a pass of its own that comes by here, and may remove hooks: itself, too.
  void call_hooks() override {
    struct Calling {
      State& state;
      Tensor<T, D> gradient;
      Variable<T, D>* recorded;
      explicit Calling(State& s) : state(s), gradient(std::move(s.incoming)), recorded(std::exchange(s.incoming_recorded, nullptr)) {
        state.incoming = {};
        ++state.hooks_called;
        if (recorded) gradient = recorded->value();
      }
      ~Calling() {
        state.forget();
        state.incoming = std::move(gradient);
        state.incoming_recorded = recorded;
        if (--state.hooks_called == 0) state.drop_removed_hooks();
      }
    } calling{*this};
    for (Hook<T, D>* hook = hooks; hook; hook = hook->next) {
      if (!hook->removed) hook->call(calling.gradient, calling.recorded);
    }
  }
  /// Sections that are run again may give a gradient in several parts; recorded ones come at once.
  void capture() override {
    captured = captured.body() ? Tensor<T, D>(captured + incoming) : incoming;
    if (!incoming_recorded) return;
    forget_recorded(captured_recorded);
    captured_recorded = new Variable<T, D>(*incoming_recorded);
  }
  void forget_captured() noexcept override {
    captured = {};
    forget_recorded(captured_recorded);
  }
  void forget() noexcept override {
    incoming = {};
    forget_recorded(incoming_recorded);
  }
  void backward(Flow&) override { keep_grad(true); }
  void release() noexcept override {}

  /// grad += incoming. The user's gradient is contiguous, and nobody else's memory.
  SITU_NOINLINE void keep_grad(bool last_use) {
    if (has_grad) {
      // grad += incoming, of which is known that it may be done.
      if (StorageHead* const head = grad.body()->storage.head()) head->note_write("operator+=");
      evaluate<D>(grad.data(), grad.layout(), true, grad + incoming);
    } else {
      grad = last_use && is_own(incoming) ? std::move(incoming) : incoming.clone();
      has_grad = true;
    }
  }
  /// For the user who asked for it; a grad() is nobody's business.
  void keep_retained(Flow const& flow) {
    if (SITU_UNLIKELY(retains_grad) && !flow.for_targets()) keep_grad(false);
  }
  /// Whether nobody can tell when a gradient is written.
  static bool is_own(Tensor<T, D> const& gradient) {
    return gradient.is_contiguous() && gradient.use_count() == 1 && gradient.storage_head() && gradient.storage_head()->allocated_here;
  }

  int64_t add_hook(Hook<T, D>* hook) {
    Hook<T, D>** last = &hooks;
    while (*last) last = &(*last)->next;
    *last = hook;
    hooked = true;
    return hook->number = __atomic_add_fetch(&hooks_added, 1, __ATOMIC_RELAXED);
  }
  void remove_hook(int64_t number) noexcept {
    for (State *state = this, *before = nullptr; state; state = std::exchange(before, nullptr)) {
      for (Hook<T, D>* hook = state->hooks; hook; hook = hook->next) {
        if (hook->before()) before = hook->before();
        else hook->removed = hook->removed || hook->number == number;
      }
      if (state->hooks_called == 0) state->drop_removed_hooks();
    }
  }
  /// A recorded write makes its Variable's name that of `written`, which keeps the gradient if this one would have, and knows the hooks of this one.
  __attribute__((noinline, cold)) void pass_wishes(State& written) {
    if (retains_grad) written.retains_grad = true, written.takes_late = false;
    if (!hooks) return;
    State* const known = hooks->next ? nullptr : hooks->before();
    written.add_hook(new HooksBefore<T, D>(known ? *known : *this));
  }

 private:
  void drop_removed_hooks() noexcept {
    for (Hook<T, D>** at = &hooks; *at;) {
      if ((*at)->removed) delete std::exchange(*at, (*at)->next);
      else at = &(*at)->next;
    }
    hooked = hooks != nullptr;
  }
  static void forget_recorded(Variable<T, D>*& variable) noexcept { delete std::exchange(variable, nullptr); }
};

/// The hooks of a Variable from before a recorded write: they see the gradient of the value that was there, and are removed by the Variable's name.
template <class T, class D>
struct HooksBefore final : Hook<T, D> {
  State<T, D>& state;
  explicit HooksBefore(State<T, D>& s) : state(s) { count_up(state.references); }
  ~HooksBefore() override { drop(&state); }
  void call(Tensor<T, D>&, bool) override {}
  State<T, D>* before() override { return &state; }
};

/// What second derivatives are computed with (lane.hpp).
template <class C, class D>
class Lane;
template <class G>
inline constexpr bool is_lane = false;
template <class C, class D>
inline constexpr bool is_lane<Lane<C, D>> = true;
/// Whether a rule is given a gradient that is itself recorded: a Variable, or a Lane.
template <class G>
inline constexpr bool has_history = is_recorded<G> || is_lane<G>;
/// What a rule names as `twice` when its body works on Lanes too.
struct on_lanes {};

/// Where an operation's backward sends the gradient of one of its inputs.
template <class T, class D>
class Into {
 public:
  using value_type = T;
  using device_type = D;
  Into(Flow& flow, Node* input) : flow_(flow), input_(input), state_(flow.wants(input) ? static_cast<State<T, D>*>(input) : nullptr) {}
  bool needed() const { return state_ != nullptr; }
  /// Of the input.
  Shape const& shape() const { return state_->shape; }
  /// Adds a gradient: a tensor or an expression of the input's shape, or of one that it was broadcast to.
  template <class E>
  void add(E const& gradient) const {
    if (!needed()) return;
    if constexpr (is_lane<E>) gradient.send(gradient.shape(), *this, true);
    else if constexpr (std::is_same_v<E, Variable<T, D>>) state_->add_recorded_sum(flow_, gradient);
    else if constexpr (is_recorded<E>) state_->add_recorded(flow_, summed_to(gradient, shape()));
    else if constexpr (std::is_same_v<E, Tensor<T, D>>) state_->add_tensor(flow_, gradient);
    else if (gradient.shape() == shape()) state_->add(flow_, gradient);
    else state_->add(flow_, summed_to(gradient, shape()));
  }
  /// Adds a gradient of the input's shape in the type that it was summed in.
  void add_sum(Tensor<compute_t<T>, result_device_t<D>> const& gradient) const {
    if constexpr (std::is_same_v<compute_t<T>, T>) state_->add(flow_, gradient);
    else state_->add(flow_, cast<T>(gradient));
  }
  /// Adds a gradient to the part of the input's that `view` shows.
  template <class View, class U, class From>
  void add_part(View const& view, Tensor<U, From> const& gradient) const {
    if (!needed()) return;
    Tensor<T, D>& all = state_->incoming;
    if (!state_->queued) all = zeros<T>(shape(), D{});
    else if (!State<T, D>::is_own(all)) all = all.clone();
    Tensor<T, D> part = view(all);
    part.assign(part + gradient);
    flow_.arrived(state_);
  }
  template <class View, class U, class From>
  void add_part(View const& view, Variable<U, From> const& gradient) const {
    if (needed()) state_->add_recorded(flow_, record_placed(view, gradient, shape()));
  }

  State<T, D>* state() const { return state_; }
  /// The input's node, needed or not; null where it is a constant.
  Node* input() const { return input_; }
  Flow& flow() const { return flow_; }

 private:
  Flow& flow_;
  Node* input_;
  State<T, D>* state_;
};

/// A tensor that a backward needs, as it is now. Throws GradientError when it has been written in place since.
template <class T, class D>
class Saved {
 public:
  Saved() = default;
  /// What an operation was called with.
  explicit Saved(Variable<T, D> const& v) : Saved(v.value()) {
    if (v.requires_grad()) {
      state_ = v.state();
      count_up(state_->references);
    }
  }
  /// What is not differentiated: a constant, or the operation's own result.
  explicit Saved(Tensor<T, D> const& t) : value_(t), version_(version_of(t.storage_head())) {}
  Saved(Saved const& other) : value_(other.value_), version_(other.version_), state_(other.state_) {
    if (state_) count_up(state_->references);
  }
  Saved(Saved&& other) noexcept : value_(std::move(other.value_)), version_(other.version_), state_(std::exchange(other.state_, nullptr)) {}
  Saved& operator=(Saved other) noexcept {
    std::swap(value_, other.value_);
    std::swap(version_, other.version_);
    std::swap(state_, other.state_);
    return *this;
  }
  ~Saved() { drop(state_); }

  Tensor<T, D> const& tensor() const {
    check_unchanged(value_.storage_head(), version_, value_.shape());
    return value_;
  }
  /// With its history.
  Variable<T, D> variable() const {
    tensor();
    if (!state_) return Variable<T, D>(value_, false);
    if (!state_->value.body()) state_->value = value_;
    return Variable<T, D>::from_state(state_);
  }
  /// As the gradient is: a Tensor beside a Tensor, a Variable beside a Variable, a Lane beside a Lane.
  template <class G>
  auto beside(G const&) const {
    if constexpr (is_lane<G>) return G::of(variable());
    else if constexpr (is_recorded<G>) return variable();
    else return tensor();
  }

 private:
  Tensor<T, D> value_;
  uint32_t version_ = 0;
  State<T, D>* state_ = nullptr;
};

/// Indices, weights or a mask that a backward needs, as they are now: what has no history.
template <class T, class D>
class SavedConstant {
 public:
  explicit SavedConstant(Tensor<T, D> const& t) : value_(t), version_(version_of(t.storage_head())) {}
  Tensor<T, D> const& tensor() const {
    check_unchanged(value_.storage_head(), version_, value_.shape());
    return value_;
  }

 private:
  Tensor<T, D> value_;
  uint32_t version_;
};

[[noreturn]] __attribute__((noinline, cold)) inline void fail_second_derivative(char const* operation) {
  fail<GradientError>("grad: ", operation, " has no second derivative here; call grad without create_graph");
}

/// Whether a rule reads nothing but the gradient: numbers and shapes at most.
template <class Rule>
inline constexpr bool is_stateless = std::is_trivially_destructible_v<Rule> || requires { requires Rule::stateless; };

/// The result of an operation on Variables of the types Vs: a node with the operation's backward in it.
template <class T, class D, class Rule, class... Vs>
struct Recorded final : State<T, D> {
  static constexpr int count = static_cast<int>(sizeof...(Vs));
  /// Lanes are of types that are computed in, on devices that results live on.
  static constexpr bool takes_lanes = std::is_same_v<compute_t<T>, T> && std::is_same_v<result_device_t<D>, D> && requires { requires std::is_same_v<typename Rule::twice, on_lanes>; };
  Node* edges[count];
  union {
    Rule rule;
  };

  /// From the inputs' states, null where an input is a constant.
  Recorded(char const* operation, Tensor<T, D>&& result, Rule&& r, decltype(std::declval<Vs>().state())... from) noexcept
      : State<T, D>(operation, std::move(result), edges, count), rule(std::move(r)) {
    this->saves_nothing = is_stateless<Rule>;
    int k = 0;
    ((from && from->requires_grad ? connect_input(*this, k, from) : void(), ++k), ...);
  }
  ~Recorded() override {}  // release() has been called

  void backward(Flow& flow) override {
    this->keep_retained(flow);
    if (SITU_UNLIKELY(flow.creates_graph())) send_recorded(flow, std::make_index_sequence<sizeof...(Vs)>{});
    else send(flow, std::make_index_sequence<sizeof...(Vs)>{});
  }
  void release() noexcept override {
    if (std::exchange(this->released, true)) return;
    rule.~Rule();
    drop_inputs(*this);
  }

 private:
  template <std::size_t... Ks>
  void send(Flow& flow, std::index_sequence<Ks...>) {
    rule(std::as_const(this->incoming), Into<value_of<Vs>, device_of<Vs>>(flow, edges[Ks])...);
  }
  template <std::size_t... Ks>
  __attribute__((noinline, cold)) void send_recorded(Flow& flow, std::index_sequence<Ks...>) {
    if constexpr (!requires { typename Rule::twice; }) fail_second_derivative(this->name);
    else if constexpr (takes_lanes) rule(Lane<T, D>(*this->incoming_recorded), Into<value_of<Vs>, device_of<Vs>>(flow, edges[Ks])...);
    else rule(*this->incoming_recorded, Into<value_of<Vs>, device_of<Vs>>(flow, edges[Ks])...);
  }
};

}  // namespace detail
}  // namespace situ::inline SITU_ABI
