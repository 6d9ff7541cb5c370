/// Lanes: what gradients that are themselves recorded are computed with.
///
/// The derivatives of functions, the entries of expr/functions.hpp, are formulas of lanes. In kernels these are packs; here each is a
/// Variable, or a number that all elements share, and each function of Lanes is a node whose own gradient is again made of Lanes. So
/// derivatives of any order need no formula of their own, and no kernel per formula: kernels are those of single functions, which a
/// program shares. Numbers are folded: 1 * x is x.
#pragma once

#include <situ/autograd/derivative.hpp>
#include <situ/autograd/record.hpp>

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
struct LaneMask;
template <class C, class D>
struct lane_value<Lane<C, D>> {
  using type = C;
};

template <class Op, class C, class D, class... Xs>
SITU_SELDOM Lane<C, D> applied(Lane<C, D> const& x, Xs const&... xs);
template <class C, class D>
SITU_SELDOM Lane<C, D> select(LaneMask<D> const& mask, Lane<C, D> const& a, Lane<C, D> const& b);

/// Truth values: constants.
template <class D>
struct LaneMask {
  Tensor<bool, D> values;
  explicit LaneMask(Tensor<bool, D> const& t) : values(t) {}
  SITU_SELDOM friend LaneMask operator&(LaneMask const& a, LaneMask const& b) { return LaneMask(Tensor<bool, D>(a.values && b.values)); }
  SITU_SELDOM friend LaneMask operator|(LaneMask const& a, LaneMask const& b) { return LaneMask(Tensor<bool, D>(a.values || b.values)); }
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

/// Adds a gradient of `whole`'s shape to an input's; G tells whether with its history.
template <class G, class C, class D, class I>
SITU_SELDOM void add_lane(Lane<C, D> const& gradient, Shape const& whole, I const& into) {
  if (!into.needed()) return;
  Lane<value_of<I>, D> const as_input = [&] {
    if constexpr (std::is_same_v<value_of<I>, C>) return gradient;
    else return lane_of<value_of<I>>(gradient.variable());
  }();
  auto const add = [&](auto const& v) {
    if constexpr (is_recorded<G>) into.add(v);
    else into.add(v.value());
  };
  auto const v = as_input.variable();
  if (v.shape() == whole) add(v);
  else add(v.expand(whole));
}

/// seed × slope. Where `guarded`, a seed of 0 says that the value did not matter; a function that chooses says the same by a slope of 0.
template <class C, class D>
SITU_SELDOM Lane<C, D> guarded_product(Lane<C, D> const& seed, Lane<C, D> const& slope, bool guarded, bool chooses) {
  if (seed.is_number() || slope.is_number() || !(guarded || chooses)) return seed * slope;
  Lane<C, D> const zero(C(0));
  if (guarded && chooses) return select((seed == zero) | (slope == zero), zero, seed * slope);
  return select((guarded ? seed : slope) == zero, zero, seed * slope);
}

/// What a node's rule may ask for beside a gradient: the node's own result, as the gradient is.
template <class T, class D, class G, class I>
auto own_result(Saved<T, D> const& value, G const&, I const& into) {
  if constexpr (!is_recorded<G>) return value.tensor();
  else {
    auto* const state = static_cast<State<T, D>*>(into.flow().running());
    if (!state->value.body()) state->value = value.tensor();
    return Variable<T, D>::from_state(state);
  }
}

/// A function of N Lanes as its rule sees it: its derivatives, and what they read.
template <class C, class D>
struct LaneFunction {
  void (*slopes)(Lane<C, D> const* xs, Lane<C, D> const& y, Lane<C, D>* partials);
  bool reads_operands, reads_value, chooses;
};
template <class Op, class C, class D, std::size_t... Ks>
SITU_SELDOM void slopes_of(Lane<C, D> const* xs, Lane<C, D> const& y, Lane<C, D>* result, std::index_sequence<Ks...>) {
  auto const partials = Op::derivative(xs[Ks]..., y);
  ((result[Ks] = partial<static_cast<int>(Ks)>(partials)), ...);
}
template <class Op, class C, class D, int N>
inline constexpr LaneFunction<C, D> lane_function{
    [](Lane<C, D> const* xs, Lane<C, D> const& y, Lane<C, D>* result) { slopes_of<Op>(xs, y, result, std::make_index_sequence<N>{}); },
    !functions::is_linear<Op>, functions::reads_result<Op>, functions::chooses<Op>};

/// The backward of a function of Lanes.
template <class C, class D, int N>
struct LaneRule {
  using twice = void;
  LaneFunction<C, D> const* function;
  Saved<C, D> operands[N];
  Saved<C, D> value;
  template <class G, class I, class... Is>
  SITU_SELDOM void operator()(G const& g, I const& into, Is const&... intos) const {
    send(g, std::make_index_sequence<N>{}, into, intos...);
  }

 private:
  template <class G, std::size_t... Ks, class I, class... Is>
  SITU_SELDOM void send(G const& g, std::index_sequence<Ks...>, I const& into, Is const&... intos) const {
    Lane<C, D> const seed = lane_of<C>(g);
    Lane<C, D> xs[] = {(static_cast<void>(Ks), Lane<C, D>(C(0)))...}, y(C(0)), slopes[] = {(static_cast<void>(Ks), Lane<C, D>(C(0)))...};
    if (function->reads_operands) ((xs[Ks] = lane_of<C>(operands[Ks].beside(g))), ...);
    if (function->reads_value) y = lane_of<C>(own_result(value, g, into));
    function->slopes(xs, y, slopes);
    int k = 0;
    auto const add = [&](auto const& to) {
      Lane<C, D> const& slope = slopes[k++];
      if (to.needed()) add_lane<G>(guarded_product(seed, slope, false, function->chooses), g.shape(), to);
    };
    add(into);
    (add(intos), ...);
  }
};

template <class C, class D, class... Vs>
SITU_SELDOM Lane<C, D> record_lanes(char const* name, Tensor<C, D> const& value, LaneFunction<C, D> const& function, Vs const&... vs) {
  if (!is_recording(vs...)) return Lane<C, D>(value);
  LaneRule<C, D, static_cast<int>(sizeof...(Vs))> rule{&function, {}, {}};
  int k = 0;
  if (function.reads_operands) ((rule.operands[k++] = Saved<C, D>(vs)), ...);
  if (function.reads_value) rule.value = Saved<C, D>(value);
  return Lane<C, D>(record(name, value, std::move(rule), vs...));
}

/// Op of Lanes: one kernel and one node.
template <class Op, class C, class D, class... Xs>
Lane<C, D> applied(Lane<C, D> const& x, Xs const&... xs) {
  constexpr int n = 1 + static_cast<int>(sizeof...(Xs));
  return [](auto const&... vs) {
    return record_lanes(node_name_of<Op, n == 1>.text, Tensor<C, D>(make_map(Op{}, vs.value()...)), lane_function<Op, C, D, n>, vs...);
  }(x.variable(), xs.variable()...);
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
  return Lane<C, D>(record("Where", Tensor<C, D>(where(mask.values, x.value(), y.value())), SelectRule<C, D>{mask}, x, y));
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI

#if defined(__CUDACC__)
#pragma nv_diagnostic pop
#endif

#undef SITU_SELDOM
