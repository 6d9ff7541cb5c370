/// Lanes: what gradients that are themselves recorded are computed with.
///
/// The derivatives of functions, the entries of expr/functions.hpp, are formulas of lanes. In kernels these are packs; here each is a
/// Variable, or a number that all elements share, and each function of Lanes is a node whose own gradient is again made of Lanes. So
/// derivatives of any order need no formula of their own, and no kernel per formula: kernels are those of single functions, which a
/// program shares, and functions are told by data (LaneFunction): one node serves all. Numbers are folded: 1 * x is x.
#pragma once

#include <situ/autograd/derivative.hpp>
#include <situ/autograd/record.hpp>
#include <situ/expr/cpu/launch.hpp>

// Small code rather than fast code: most programs carry this, few run it, and kernels take the time.
#define SITU_SELDOM __attribute__((noinline, cold))

#if defined(__CUDACC__)
#pragma nv_diagnostic push
#pragma nv_diag_suppress 20011, 20012, 20013, 20014, 20015
#endif

namespace situ::inline SITU_ABI {
namespace functions {

/// Functions whose derivatives read what the function gave.
template <class Op>
inline constexpr bool reads_result = false;
#define SITU_READS_RESULT(NAME) \
  template <>                   \
  inline constexpr bool reads_result<NAME> = true;
SITU_READS_RESULT(divide)
SITU_READS_RESULT(pow)
SITU_READS_RESULT(hypot)
SITU_READS_RESULT(elu)
SITU_READS_RESULT(reciprocal)
SITU_READS_RESULT(exp)
SITU_READS_RESULT(exp2)
SITU_READS_RESULT(expm1)
SITU_READS_RESULT(sqrt)
SITU_READS_RESULT(rsqrt)
SITU_READS_RESULT(tan)
SITU_READS_RESULT(tanh)
SITU_READS_RESULT(sigmoid)
#undef SITU_READS_RESULT

}  // namespace functions

namespace detail {

template <class C, class D>
class Lane;
template <class D>
class LaneMask;
template <class C, class D>
struct lane_value<Lane<C, D>> {
  using type = C;
};

template <class Op, class C, class D, class... Xs>
SITU_SELDOM Lane<C, D> applied(Lane<C, D> const& x, Xs const&... xs);
template <class C, class D>
SITU_SELDOM Lane<C, D> select(LaneMask<D> const& mask, Lane<C, D> const& a, Lane<C, D> const& b);

/// Truth values: constants. For both sides in name, as Lanes are.
template <class D>
class LaneMask {
 public:
  SITU_SELDOM explicit LaneMask(Tensor<bool, D> const& t) : values_(new Tensor<bool, D>(t)) {}
  SITU_HOST_DEVICE LaneMask(LaneMask const& other) : values_(copied(other.values_)) {}
  LaneMask& operator=(LaneMask const&) = delete;
  SITU_HOST_DEVICE ~LaneMask() { end(values_); }
  Tensor<bool, D> const& values() const { return *values_; }
  SITU_SELDOM friend LaneMask operator&(LaneMask const& a, LaneMask const& b) { return LaneMask(Tensor<bool, D>(a.values() && b.values())); }
  SITU_SELDOM friend LaneMask operator|(LaneMask const& a, LaneMask const& b) { return LaneMask(Tensor<bool, D>(a.values() || b.values())); }

 private:
  SITU_SELDOM static Tensor<bool, D>* copied(Tensor<bool, D> const* values) { return new Tensor<bool, D>(*values); }
  SITU_SELDOM static void end(Tensor<bool, D>* values) noexcept { delete values; }
  Tensor<bool, D>* values_;
};

/// Elements of C, float or double, with their history, or one number. Shapes broadcast.
template <class C, class D>
class Lane {
 public:
  using records = void;
  // What is created, copied and destroyed in derivatives, which are for both sides, is so for both, in name: on the device none exists.
  SITU_HOST_DEVICE explicit Lane(C number) : number_(number), state_(nullptr) {}
  SITU_HOST_DEVICE Lane(Lane const& other) : number_(other.number_), state_(other.state_) { retain(state_); }
  SITU_HOST_DEVICE Lane(Lane&& other) noexcept : number_(other.number_), state_(other.state_) { other.state_ = nullptr; }
  SITU_HOST_DEVICE Lane& operator=(Lane const& other) noexcept {
    State<C, D>* const before = state_;
    number_ = other.number_, state_ = other.state_;
    retain(state_);
    release(before);
    return *this;
  }
  SITU_HOST_DEVICE ~Lane() { release(state_); }
  explicit Lane(Variable<C, D> const& v) : number_(0), state_(v.state()) { retain(state_); }
  explicit Lane(Tensor<C, D> const& t) : Lane(Variable<C, D>(t, false)) {}

  bool is(C number) const { return !state_ && number_ == number; }
  bool is_number() const { return !state_; }
  SITU_SELDOM Variable<C, D> variable() const { return state_ ? Variable<C, D>::from_state(state_) : Variable<C, D>(tensor(), false); }
  SITU_SELDOM Tensor<C, D> tensor() const { return state_ ? state_->value : one_number(); }

  SITU_SELDOM Lane reshape(Shape const& to) const { return Lane(variable().reshape(to)); }
  SITU_SELDOM Lane expand(Shape const& to) const { return Lane(variable().expand(to)); }
  /// Sums over the axes whose bit is set, which are kept.
  SITU_SELDOM Lane summed(unsigned axes) const {
    Shape chosen;
    Variable<C, D> const v = variable();
    for (int k = 0; k < v.rank(); ++k) {
      if (axes >> k & 1u) chosen.push_back(k);
    }
    return Lane(Variable<C, D>(sum(v, chosen, keepdim)));
  }

  template <class Op, class... Xs>
  Lane apply(Xs const&... xs) const {
    return applied<Op>(*this, xs...);
  }
  template <class Op>
  Lane no_derivative() const {
    fail<GradientError>("grad: the derivative of ", Op::name, " has no derivative here; call grad without create_graph");
  }

  SITU_SELDOM friend Lane operator+(Lane const& a, Lane const& b) {
    if (a.is(0)) return b;
    if (b.is(0)) return a;
    if (a.is_number() && b.is_number()) return Lane(a.number_ + b.number_);
    return applied<functions::add>(a, b);
  }
  SITU_SELDOM friend Lane operator-(Lane const& a, Lane const& b) {
    if (b.is(0)) return a;
    if (a.is(0)) return -b;
    if (a.is_number() && b.is_number()) return Lane(a.number_ - b.number_);
    return applied<functions::subtract>(a, b);
  }
  SITU_SELDOM friend Lane operator*(Lane const& a, Lane const& b) {
    if (a.is(0) || b.is(1)) return a;
    if (b.is(0) || a.is(1)) return b;
    if (a.is(-1)) return -b;
    if (b.is(-1)) return -a;
    if (a.is_number() && b.is_number()) return Lane(a.number_ * b.number_);
    return applied<functions::multiply>(a, b);
  }
  SITU_SELDOM friend Lane operator/(Lane const& a, Lane const& b) {
    if (b.is(1)) return a;
    if (a.is_number() && b.is_number()) return Lane(a.number_ / b.number_);
    return applied<functions::divide>(a, b);
  }
  SITU_SELDOM friend Lane operator-(Lane const& a) {
    if (a.is_number()) return Lane(-a.number_);
    return applied<functions::negative>(a);
  }
  SITU_SELDOM friend LaneMask<D> operator==(Lane const& a, Lane const& b) { return LaneMask<D>(Tensor<bool, D>(a.tensor() == b.tensor())); }
  SITU_SELDOM friend LaneMask<D> operator<(Lane const& a, Lane const& b) { return LaneMask<D>(Tensor<bool, D>(a.tensor() < b.tensor())); }
  SITU_SELDOM friend LaneMask<D> operator>(Lane const& a, Lane const& b) { return b < a; }
  SITU_SELDOM friend LaneMask<D> operator<=(Lane const& a, Lane const& b) { return LaneMask<D>(Tensor<bool, D>(a.tensor() <= b.tensor())); }
  SITU_SELDOM friend LaneMask<D> operator>=(Lane const& a, Lane const& b) { return b <= a; }

 private:
  Tensor<C, D> one_number() const { return full<C>({}, number_, D{}); }
  SITU_SELDOM static void retain(State<C, D>* state) {
    if (state) __atomic_fetch_add(&state->handles, 1, __ATOMIC_ACQ_REL);
  }
  SITU_SELDOM static void release(State<C, D>* state) noexcept {
    if (state) Variable<C, D>::adopt(state);
  }

  C number_;
  State<C, D>* state_;  ///< a handle; null for numbers
};

template <class C, class D>
Lane<C, D> exp(Lane<C, D> const& x) {
  return math::exp(x);
}
template <class C, class D>
Lane<C, D> abs(Lane<C, D> const& x) {
  return math::abs(x);
}
template <class C, class D>
Lane<C, D> sign(Lane<C, D> const& x) {
  return math::sign(x);
}
template <class C, class D>
Lane<C, D> pow(Lane<C, D> const& a, Lane<C, D> const& b) {
  return math::pow(a, b);
}

/// A Variable as a Lane of C, and back as elements of T.
template <class C, class T, class D>
Lane<C, D> lane_of(Variable<T, D> const& v) {
  if constexpr (std::is_same_v<C, T>) return Lane<C, D>(v);
  else return Lane<C, D>(v.template to<C>());
}
template <class C, class T, class D>
Lane<C, D> lane_of(Tensor<T, D> const& t) {
  if constexpr (std::is_same_v<C, T>) return Lane<C, D>(t);
  else return Lane<C, D>(Tensor<C, D>(cast<C>(t)));
}
template <class To, class From, class D>
Lane<To, D> converted_lane(Lane<From, D> const& x) {
  if constexpr (std::is_same_v<To, From>) return x;
  else return Lane<To, D>(x.variable().template to<To>());
}

/// Adds a gradient of `whole`'s shape to an input's, with its history or without.
template <class T, class D>
SITU_SELDOM void add_lane_to(Lane<T, D> const& gradient, Shape const& whole, Into<T, D> const& into, bool records) {
  Variable<T, D> v = gradient.variable();
  if (!(v.shape() == whole)) v = v.expand(whole);
  if (records) into.add(v);
  else into.add(v.value());
}
/// The same from Lanes of C; G tells whether with its history.
template <class G, class C, class D, class T, class E>
void add_lane(Lane<C, D> const& gradient, Shape const& whole, Into<T, E> const& into) {
  if (!into.needed()) return;
  if constexpr (std::is_same_v<C, T> && std::is_same_v<D, E>) {
    add_lane_to(gradient, whole, into, is_recorded<G>);
  } else {
    auto v = lane_of<T>(gradient.variable()).variable();
    if (!(v.shape() == whole)) v = v.expand(whole);
    if constexpr (is_recorded<G>) into.add(v);
    else into.add(v.value());
  }
}

/// Where a gradient of 0 meets a slope that is no number: of a value that did not matter. Where the slope is a number the product is 0 by itself, and its
/// own derivative by the gradient is that number.
template <class C, class D>
SITU_SELDOM LaneMask<D> are_dead(Lane<C, D> const& gradient, Lane<C, D> const& slope) {
  return LaneMask<D>(Tensor<bool, D>(gradient.tensor() == C(0) && !isfinite(slope.tensor())));
}
/// seed × slope. Where `guarded`, a seed of 0 says that the value did not matter; a function that chooses says the same by a slope of 0.
template <class C, class D>
SITU_SELDOM Lane<C, D> guarded_product(Lane<C, D> const& seed, Lane<C, D> const& slope, bool guarded, bool chooses) {
  if (seed.is_number() || slope.is_number() || !(guarded || chooses)) return seed * slope;
  Lane<C, D> const zero(C(0));
  Lane<C, D> const product = seed * (guarded ? select(are_dead(seed, slope), zero, slope) : slope);
  return chooses ? select(slope == zero, zero, product) : product;
}
/// The same where nothing chooses.
template <class C, class D>
SITU_SELDOM Lane<C, D> plain_product(Lane<C, D> const& seed, Lane<C, D> const& slope, bool, bool) {
  return seed * slope;
}

template <class T, class D>
SITU_SELDOM Variable<T, D> own_variable(Saved<T, D> const& value, Flow const& flow) {
  auto* const state = static_cast<State<T, D>*>(flow.running());
  if (!state->value.body()) state->value = value.tensor();
  return Variable<T, D>::from_state(state);
}
/// What a node's rule may ask for beside a gradient: the node's own result, as the gradient is.
template <class T, class D, class G, class I>
auto own_result(Saved<T, D> const& value, G const&, I const& into) {
  if constexpr (!is_recorded<G>) return value.tensor();
  else return own_variable(value, into.flow());
}
/// A function of Lanes with its type forgotten: its value, its derivatives, and what they read.
template <class C, class D>
struct LaneFunction {
  using L = Lane<C, D>;
  char const* name;
  int operands;
  bool reads_operands, reads_value, chooses;
  L (*value)(L const* xs);                                ///< numbers are folded
  void (*slopes)(L const* xs, L const& y, L* partials);
  L (*product)(L const& seed, L const& slope, bool guarded, bool chooses);
  Tensor<C, D> (*evaluate)(LaneFunction const& function, Tensor<C, D> const* xs);
  cpu::TreeLoops<4> const* start = nullptr;  ///< the CPU's kernel
  Formula const* formula = nullptr;
  int cost = 0;
};

/// On the CPU all functions share what brings operands to a kernel.
template <class C, class D>
SITU_SELDOM Tensor<C, D> evaluate_lanes(LaneFunction<C, D> const& function, Tensor<C, D> const* xs) {
  Shape const* shapes[3];
  Layout const* layouts[4];
  int const n = function.operands;
  bool uniform = true;
  for (int k = 0; k < n; ++k) shapes[k] = &xs[k].shape(), uniform = uniform && same_shape(*shapes[0], *shapes[k]);
  CommonShape const common = uniform ? CommonShape(&xs[0].shape()) : CommonShape::broadcast(shapes, n, function.name);
  Tensor<C, D> result = Tensor<C, D>::uninitialized(common.get(), function.name);
  cpu::BoundTree<4, 64> bound;
  bound.start = function.start;
  bound.formula = function.formula;
  bound.lanes = 64 / static_cast<int>(sizeof(C));
  bound.grain = (int64_t{4000000} / (function.cost + static_cast<int>(sizeof(C)) * (n + 1)) + 1023) / 1024 * 1024;
  bool contiguous = uniform;
  bound.data[0] = result.data();
  layouts[0] = &result.layout();
  for (int o = 0; o < 4; ++o) bound.sizes[o] = static_cast<int>(sizeof(C)), bound.movers[o] = cpu::mover_of<C>;
  for (int o = 1; o < 4; ++o) {  // places that the kernel does not know repeat the last one
    Tensor<C, D> const& x = xs[o <= n ? o - 1 : n - 1];
    bound.data[o] = const_cast<C*>(x.data());
    layouts[o] = &x.layout();
    contiguous = contiguous && x.is_contiguous();
  }
  if (contiguous) cpu::launch_contiguous<D>(bound, result.size());
  else cpu::launch_strided<D>(bound, layouts);
  return result;
}
template <class C, class D>
SITU_SELDOM Lane<C, D> record_lanes(LaneFunction<C, D> const& function, Lane<C, D> const* xs);

template <class Op, class C, class D, class Ks>
struct LaneFunctionOf;
template <class Op, class C, class D, std::size_t... Ks>
struct LaneFunctionOf<Op, C, D, std::index_sequence<Ks...>> {
  using L = Lane<C, D>;
  static constexpr int n = static_cast<int>(sizeof...(Ks));
  SITU_SELDOM static L value(L const* xs) {
    if constexpr (std::is_same_v<Op, functions::negative>) return -xs[0];
    else if constexpr (std::is_same_v<Op, functions::add>) return xs[0] + xs[1];
    else if constexpr (std::is_same_v<Op, functions::subtract>) return xs[0] - xs[1];
    else if constexpr (std::is_same_v<Op, functions::multiply>) return xs[0] * xs[1];
    else if constexpr (std::is_same_v<Op, functions::divide>) return xs[0] / xs[1];
    else return applied<Op>(xs[Ks]...);
  }
  SITU_SELDOM static void slopes(L const* xs, L const& y, L* result) {
    auto const partials = Op::derivative(xs[Ks]..., y);
    ((result[Ks] = partial<static_cast<int>(Ks)>(partials)), ...);
  }
  SITU_SELDOM static Tensor<C, D> evaluate(LaneFunction<C, D> const&, Tensor<C, D> const* xs) { return Tensor<C, D>(make_map(Op{}, xs[Ks]...)); }
  static constexpr LaneFunction<C, D> get() {
    LaneFunction<C, D> result{node_name_of<Op, n == 1>.text, n, !functions::is_linear<Op>, functions::reads_result<Op>, functions::chooses<Op>, &value, &slopes,
                              functions::chooses<Op> ? &guarded_product<C, D> : &plain_product<C, D>, nullptr};
    if constexpr (std::is_same_v<typename device_traits<D>::kernels, cpu_kernels>) {
      using Tree = Apply<Op, Input<C, static_cast<int>(Ks)>...>;
      result.evaluate = &evaluate_lanes<C, D>;
      result.start = cpu::tree_loops<Tree, C, 4>;
      result.formula = &formula_of<Tree>;
      result.cost = Op::cost;
    } else {
      result.evaluate = &evaluate;
    }
    return result;
  }
};
template <class Op, class C, class D, int N>
inline constexpr LaneFunction<C, D> lane_function = LaneFunctionOf<Op, C, D, std::make_index_sequence<static_cast<std::size_t>(N)>>::get();

/// The node of a function of Lanes.
template <class C, class D>
struct LaneState final : State<C, D> {
  LaneFunction<C, D> const& function;
  Node* edges[3] = {};
  Saved<C, D> operands[3];
  Saved<C, D> own;

  SITU_SELDOM LaneState(LaneFunction<C, D> const& f, Tensor<C, D>&& value, Variable<C, D> const* xs) : State<C, D>(std::move(value)), function(f) {
    this->name = f.name;
    this->inputs = edges;
    this->input_count = f.operands;
    this->requires_grad = true;
    if (f.reads_value) own = Saved<C, D>(this->value);
    for (int k = 0; k < f.operands; ++k) {
      if (f.reads_operands) operands[k] = Saved<C, D>(xs[k]);
      if (!xs[k].requires_grad()) continue;
      auto* const state = xs[k].state();
      edges[k] = state;
      count_up(state->references);
      if (state->depth >= this->depth) this->depth = state->depth + 1;
    }
  }
  ~LaneState() override { drop_inputs(*this); }
  SITU_SELDOM void backward(Flow& flow) override {
    if (this->retains_grad) this->keep_grad(false);
    OperationName const guard(this->name);
    using L = Lane<C, D>;
    bool const records = flow.creates_graph();
    L const seed = records ? L(*this->incoming_recorded) : L(this->incoming), zero(C(0));
    L xs[] = {zero, zero, zero}, slopes[] = {zero, zero, zero}, y = zero;
    for (int k = 0; function.reads_operands && k < function.operands; ++k) xs[k] = records ? L(operands[k].variable()) : L(operands[k].tensor());
    if (function.reads_value) y = records ? L(own_variable(own, flow)) : L(own.tensor());
    function.slopes(xs, y, slopes);
    Shape const whole = this->shape;
    for (int k = 0; k < function.operands; ++k) {
      Into<C, D> const into(flow, edges[k]);
      if (into.needed()) add_lane_to(function.product(seed, slopes[k], false, function.chooses), whole, into, records);
    }
  }
  SITU_SELDOM void release() noexcept override {
    if (std::exchange(this->released, true)) return;
    for (Saved<C, D>& saved : operands) saved = Saved<C, D>();
    own = Saved<C, D>();
    drop_inputs(*this);
  }
};

/// A function of Lanes: one kernel and one node.
template <class C, class D>
SITU_SELDOM Lane<C, D> record_lanes(LaneFunction<C, D> const& function, Lane<C, D> const* xs) {
  Variable<C, D> const none = xs[0].variable();
  Variable<C, D> const vs[] = {none, function.operands > 1 ? xs[1].variable() : none, function.operands > 2 ? xs[2].variable() : none};
  Tensor<C, D> const values[] = {vs[0].value(), vs[1].value(), vs[2].value()};
  Tensor<C, D> result = function.evaluate(function, values);
  if (!is_recording(vs[0], vs[1], vs[2])) return Lane<C, D>(result);
  return Lane<C, D>(Variable<C, D>::adopt(new LaneState<C, D>(function, std::move(result), vs)));
}
template <class Op, class C, class D, class... Xs>
Lane<C, D> applied(Lane<C, D> const& x, Xs const&... xs) {
  Lane<C, D> const all[] = {x, xs...};
  return record_lanes(lane_function<Op, C, D, 1 + static_cast<int>(sizeof...(Xs))>, all);
}

template <class C, class D>
struct SelectRule {
  using twice = void;
  LaneMask<D> mask;
  template <class G, class I, class J>
  SITU_SELDOM void operator()(G const& g, I const& into_a, J const& into_b) const {
    Lane<C, D> const seed = lane_of<C>(g), zero(C(0));
    if (into_a.needed()) add_lane<G>(select(mask, seed, zero), g.shape(), into_a);
    if (into_b.needed()) add_lane<G>(select(mask, zero, seed), g.shape(), into_b);
  }
};
template <class C, class D>
Lane<C, D> select(LaneMask<D> const& mask, Lane<C, D> const& a, Lane<C, D> const& b) {
  Variable<C, D> const x = a.variable(), y = b.variable();
  return Lane<C, D>(record("Where", Tensor<C, D>(where(mask.values(), x.value(), y.value())), SelectRule<C, D>{mask}, x, y));
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI

#if defined(__CUDACC__)
#pragma nv_diagnostic pop
#endif

#undef SITU_SELDOM
