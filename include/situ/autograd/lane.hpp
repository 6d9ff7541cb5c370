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
SITU_READS_RESULT(remainder)
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

template <class D>
struct AnyLane;
template <class D>
struct LaneNode;
template <class C, class D>
struct LaneFunction;

/// Views of Lanes. Their parameters are a shape, a shape, axes, two axes, axes, an axis, an axis.
enum class LaneView { reshape, expand, permute, transpose, flip, unsqueeze, squeeze };

/// What Lanes are computed by. Gradients that keep no history need none of it, so programs carry pointers to it only: grad(..., create_graph) has it
/// compiled and puts it in its place, for the whole process (use_lanes), and so do transfers, behind which a graph goes on on another device.
template <class C, class D>
struct LaneMachine {
  using L = Lane<C, D>;
  using Mask = LaneMask<D>;
  using Step = void (*)(AnyLane<D>* values, AnyLane<D>* seeds, LaneNode<D> const& node);
  L (*add)(L const& a, L const& b);
  L (*subtract)(L const& a, L const& b);
  L (*multiply)(L const& a, L const& b);
  L (*divide)(L const& a, L const& b);
  L (*negative)(L const& a);
  Mask (*equal)(L const& a, L const& b);
  Mask (*less)(L const& a, L const& b);
  Mask (*both)(Mask const& a, Mask const& b);
  Mask (*either)(Mask const& a, Mask const& b);
  L (*select)(Mask const& mask, L const& a, L const& b);
  L (*record)(LaneFunction<C, D> const& function, L const* xs);
  Tensor<C, D> (*number)(C value);
  L (*view)(L const& x, LaneView view, Shape const& parameters);
  L (*summed)(L const& x, unsigned axes);
  void (*send)(L const& gradient, Shape const& whole, Into<C, D> const& into, bool records);
  Step up[3], down[3];  ///< of a LaneNode's steps
};
template <class C, class D>
SITU_PROCESS_STATE LaneMachine<C, D> const*& lane_machine_place() {
  static LaneMachine<C, D> const* machine = nullptr;
  return machine;
}
template <class C, class D>
SITU_SELDOM LaneMachine<C, D> const& lane_machine() {
  LaneMachine<C, D> const* const machine = __atomic_load_n(&lane_machine_place<C, D>(), __ATOMIC_ACQUIRE);
  if (!machine) fail<GradientError>("grad: create_graph was asked for on another device than that of this part of the graph; ask for it on an output or an input of that device");
  return *machine;
}

template <class Op, class C, class D, class... Xs>
SITU_SELDOM Lane<C, D> applied(Lane<C, D> const& x, Xs const&... xs);
template <class C, class D>
Lane<C, D> select(LaneMask<D> const& mask, Lane<C, D> const& a, Lane<C, D> const& b) {
  return lane_machine<C, D>().select(mask, a, b);
}

template <class C, class T, class D>
Lane<C, D> lane_of(Variable<T, D> const& v);

/// Truth values: constants. For both sides in name, as Lanes are.
template <class D>
class LaneMask {
 public:
  SITU_SELDOM explicit LaneMask(Tensor<bool, D> const& t) : values_(new Tensor<bool, D>(t)) {}
  SITU_HOST_DEVICE LaneMask(LaneMask const& other) : values_(copied(other.values_)) {}
  LaneMask& operator=(LaneMask const&) = delete;
  SITU_HOST_DEVICE ~LaneMask() { end(values_); }
  Tensor<bool, D> const& values() const { return *values_; }
  SITU_SELDOM friend LaneMask operator&(LaneMask const& a, LaneMask const& b) { return lane_machine<float, D>().both(a, b); }
  SITU_SELDOM friend LaneMask operator|(LaneMask const& a, LaneMask const& b) { return lane_machine<float, D>().either(a, b); }

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
  SITU_SELDOM Tensor<C, D> tensor() const { return state_ ? state_->value : lane_machine<C, D>().number(number_); }
  C number() const { return number_; }

  // What rules ask of a gradient; of no number.
  Shape const& shape() const { return state_->shape; }
  int rank() const { return shape().rank(); }
  int64_t size() const { return product(shape()); }
  Lane transpose(int64_t axis0, int64_t axis1) const { return view(LaneView::transpose, Shape(axis0, axis1)); }
  Lane t() const { return rank() == 2 ? transpose(0, 1) : *this; }
  Lane permute(Shape const& axes) const { return view(LaneView::permute, axes); }
  Lane flip(int64_t axis) const { return view(LaneView::flip, Shape(axis)); }
  friend Lane flip(Lane const& x, Shape const& axes) { return x.view(LaneView::flip, axes); }
  Lane unsqueeze(int64_t axis) const { return view(LaneView::unsqueeze, Shape(axis)); }
  Lane squeeze(int64_t axis) const { return view(LaneView::squeeze, Shape(axis)); }
  Lane reshape(Shape const& to) const { return view(LaneView::reshape, to); }
  Lane expand(Shape const& to) const { return view(LaneView::expand, to); }
  SITU_SELDOM Lane view(LaneView which, Shape const& parameters) const { return lane_machine<C, D>().view(*this, which, parameters); }
  /// Sums over the axes whose bit is set, which are kept.
  SITU_SELDOM Lane summed(unsigned axes) const { return lane_machine<C, D>().summed(*this, axes); }
  /// The same without these axes.
  SITU_SELDOM friend Lane sum(Lane const& x, Shape const& axes) {
    unsigned const summed = axis_bits(axes, x.shape(), "sum");
    Shape left;
    for (int k = 0; k < x.rank(); ++k) {
      if (!(summed >> k & 1u)) left.push_back(x.shape()[k]);
    }
    return x.summed(summed).reshape(left);
  }

  /// A Variable's value, whatever its type and where it lives; a constant's.
  template <class T, class E>
  SITU_SELDOM static Lane of(Variable<T, E> const& v) {
    return lane_of<C>(record_transfer<D>(v));
  }
  static Lane of(Tensor<C, D> const& t) { return Lane(t); }
  /// Adds this, a gradient of `whole`'s shape, to an input's, with its history or without.
  template <class T, class E>
  void send(Shape const& whole, Into<T, E> const& into, bool with_history) const;

  template <class Op, class... Xs>
  Lane apply(Xs const&... xs) const {
    return applied<Op>(*this, xs...);
  }

  friend Lane operator+(Lane const& a, Lane const& b) { return lane_machine<C, D>().add(a, b); }
  friend Lane operator-(Lane const& a, Lane const& b) { return lane_machine<C, D>().subtract(a, b); }
  friend Lane operator*(Lane const& a, Lane const& b) { return lane_machine<C, D>().multiply(a, b); }
  friend Lane operator/(Lane const& a, Lane const& b) { return lane_machine<C, D>().divide(a, b); }
  friend Lane operator-(Lane const& a) { return lane_machine<C, D>().negative(a); }
  friend LaneMask<D> operator==(Lane const& a, Lane const& b) { return lane_machine<C, D>().equal(a, b); }
  friend LaneMask<D> operator<(Lane const& a, Lane const& b) { return lane_machine<C, D>().less(a, b); }
  friend LaneMask<D> operator>(Lane const& a, Lane const& b) { return b < a; }
  friend LaneMask<D> operator<=(Lane const& a, Lane const& b) { return (a < b) | (a == b); }
  friend LaneMask<D> operator>=(Lane const& a, Lane const& b) { return b <= a; }

 private:
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
template <class C, class D>
Lane<C, D> const& lane_of(Lane<C, D> const& x) {
  return x;
}
template <class To, class From, class D>
Lane<To, D> converted_lane(Lane<From, D> const& x) {
  if constexpr (std::is_same_v<To, From>) return x;
  else return Lane<To, D>(x.variable().template to<To>());
}

template <class C, class D>
template <class T, class E>
void Lane<C, D>::send(Shape const& whole, Into<T, E> const& into, bool with_history) const {
  if (!into.needed()) return;
  if constexpr (std::is_same_v<C, T> && std::is_same_v<D, E>) {
    lane_machine<C, D>().send(*this, whole, into, with_history);
  } else {
    auto v = lane_of<T>(variable()).variable();
    if (!(v.shape() == whole)) v = v.expand(whole);
    if (with_history) into.add(v);
    else into.add(v.value());
  }
}
/// Adds Lanes of C, a gradient of `whole`'s shape, to an input's; G tells whether with its history.
template <class G, class C, class D, class T, class E>
void add_lane(Lane<C, D> const& gradient, Shape const& whole, Into<T, E> const& into) {
  gradient.send(whole, into, has_history<G>);
}

template <class T, class D>
SITU_SELDOM Variable<T, D> own_variable(Saved<T, D> const& value, Flow const& flow) {
  auto* const state = static_cast<State<T, D>*>(flow.running());
  if (!state->value.body()) state->value = value.tensor();
  return Variable<T, D>::from_state(state);
}
/// What a node's rule may ask for beside a gradient: the node's own result, as the gradient is.
template <class T, class D, class G, class Ix>
auto own_result(Saved<T, D> const& value, G const&, Ix const& into) {
  if constexpr (!has_history<G>) return value.tensor();
  else return own_variable(value, into.flow());
}
/// A function of Lanes with its type forgotten: its value, its derivatives, and what they read. A product of matrices, which has no `slopes`,
/// is one too, with `evaluate` alone.
template <class C, class D>
struct LaneFunction {
  using L = Lane<C, D>;
  char const* name;
  int operands;
  bool reads_operands, reads_value, chooses;
  L (*value)(L const* xs);                                ///< numbers are folded
  void (*slopes)(L const* xs, L const& y, L* partials);
  Tensor<C, D> (*evaluate)(Tensor<C, D> const* xs) = nullptr;  ///< null where the CPU has a kernel
  cpu::TreeLoops<4> const* start = nullptr;                    ///< the CPU's kernel
  Formula const* formula = nullptr;
  int cost = 0;
};

/// Functions whose kernels come with the machine.
template <class Op>
inline constexpr bool is_arithmetic = is_one_of<Op, functions::add, functions::subtract, functions::multiply, functions::divide, functions::negative>;

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
  SITU_SELDOM static Tensor<C, D> evaluate(Tensor<C, D> const* xs) { return Tensor<C, D>(make_map(Op{}, xs[Ks]...)); }
  static constexpr LaneFunction<C, D> get(std::bool_constant<false>) {
    return {node_name_of<Op, n == 1>.text, n, !functions::is_linear<Op>, functions::reads_result<Op>, functions::chooses<Op>, &value, &slopes};
  }
  static constexpr LaneFunction<C, D> get(std::bool_constant<true>) {
    LaneFunction<C, D> result = get(std::bool_constant<false>());
    if constexpr (std::is_same_v<typename device_traits<D>::kernels, cpu_kernels>) {
      using Tree = Apply<Op, Input<C, static_cast<int>(Ks)>...>;
      result.start = cpu::tree_loops<Tree, C, 4>;
      result.formula = &formula_of<Tree>;
      result.cost = Op::cost;
    } else {
      result.evaluate = &evaluate;
    }
    return result;
  }
};
template <class Op, class C, class D, int N, bool WithKernel = !is_arithmetic<Op>>
inline constexpr LaneFunction<C, D> lane_function = LaneFunctionOf<Op, C, D, std::make_index_sequence<static_cast<std::size_t>(N)>>::get(std::bool_constant<WithKernel>());

template <class Op, class C, class D, class... Xs>
Lane<C, D> applied(Lane<C, D> const& x, Xs const&... xs) {
  Lane<C, D> const all[] = {x, xs...};
  return lane_machine<C, D>().record(lane_function<Op, C, D, 1 + static_cast<int>(sizeof...(Xs))>, all);
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI

#if defined(__CUDACC__)
#pragma nv_diagnostic pop
#endif

#undef SITU_SELDOM
