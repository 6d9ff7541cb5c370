/// What Lanes are computed by (LaneMachine, lane.hpp): compiled for programs that ask for create_graph.
#pragma once

#include <situ/autograd/second_order.hpp>
#include <situ/device/cpu/system.hpp>

// As in lane.hpp.
#define SITU_SELDOM __attribute__((noinline, cold))

#if defined(__CUDACC__)
#pragma nv_diagnostic push
#pragma nv_diag_suppress 20011, 20012, 20013, 20014, 20015
#endif

namespace situ::inline SITU_ABI {
namespace detail {

/// Adds a gradient of `whole`'s shape to an input's, with its history or without.
template <class T, class D>
SITU_SELDOM void add_lane_to(Lane<T, D> const& gradient, Shape const& whole, Into<T, D> const& into, bool records) {
  Variable<T, D> v = gradient.variable();
  if (!(v.shape() == whole)) v = v.expand(whole);
  if (records) into.add(v);
  else into.add(v.value());
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

/// The value of a function. On the CPU all functions share what brings operands to a kernel.
template <class C, class D>
SITU_SELDOM Tensor<C, D> evaluate_lanes(LaneFunction<C, D> const& function, Tensor<C, D> const* xs) {
  if constexpr (!std::is_same_v<typename device_traits<D>::kernels, cpu_kernels>) {
    return function.evaluate(xs);
  } else {
    if (function.evaluate) return function.evaluate(xs);
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
    bound.grain = cpu::grain_of(Cost{static_cast<int>(sizeof(C)) * (n + 1), function.cost}.in_lanes_of(static_cast<int>(sizeof(C))));
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
}

template <class C, class D>
SITU_SELDOM Lane<C, D> record_lanes(LaneFunction<C, D> const& function, Lane<C, D> const* xs);
/// Of a product C = A B of matrices, or of batches of them: g Bᵀ, or Aᵀ g, one product where all batches meet the same B.
template <class C, class D>
SITU_SELDOM Lane<C, D> product_gradient(LaneFunction<C, D> const& product_of, int k, Lane<C, D> const& g, Lane<C, D> const* xs) {
  using L = Lane<C, D>;
  L const& a = xs[0];
  bool const folds = a.rank() > 2 && xs[1].rank() == 2;
  auto const rows_of = [&](L const& x) { return folds ? x.reshape({product(x.shape()) / (x.shape().back() > 0 ? x.shape().back() : 1), x.shape().back()}) : x; };
  L const operands[] = {k == 0 ? g : rows_of(a).transpose(-2, -1), k == 0 ? xs[1].transpose(-2, -1) : rows_of(g)};
  return record_lanes(product_of, operands);
}

/// The node of a function of Lanes.
template <class C, class D>
struct LaneState final : State<C, D> {
  LaneFunction<C, D> const& function;
  bool guarded = lanes_are_guarded;
  Node* edges[3] = {};
  Saved<C, D> operands[3];
  Saved<C, D> own;

  SITU_SELDOM LaneState(LaneFunction<C, D> const& f, Tensor<C, D>&& result, Variable<C, D> const* xs) : State<C, D>(std::move(result)), function(f) {
    this->name = f.name;
    this->inputs = edges;
    this->input_count = f.operands;
    this->requires_grad = true;
    if (f.reads_value) own = Saved<C, D>(this->value);
    for (int k = 0; k < f.operands; ++k) {
      if (f.reads_operands) operands[k] = Saved<C, D>(xs[k]);
      if (xs[k].requires_grad()) connect_input(*this, k, xs[k].state());
    }
  }
  ~LaneState() override { drop_inputs(*this); }
  SITU_SELDOM void backward(Flow& flow) override {
    this->keep_retained(flow);
    OperationName const guard(this->name);
    using L = Lane<C, D>;
    bool const records = flow.creates_graph();
    LanesGuarded const scope(guarded);
    L const seed = records ? L(*this->incoming_recorded) : L(this->incoming), zero(C(0));
    L xs[] = {zero, zero, zero}, slopes[] = {zero, zero, zero}, y = zero;
    for (int k = 0; function.reads_operands && k < function.operands; ++k) xs[k] = records ? L(operands[k].variable()) : L(operands[k].tensor());
    if (function.reads_value) y = records ? L(own_variable(own, flow)) : L(own.tensor());
    if (function.slopes) function.slopes(xs, y, slopes);
    Shape const whole = this->shape;
    for (int k = 0; k < function.operands; ++k) {
      Into<C, D> const into(flow, edges[k]);
      if (!into.needed()) continue;
      if (!function.slopes) {
        L const gradient = product_gradient(function, k, seed, xs);
        add_lane_to(gradient, gradient.shape(), into, records);
      } else add_lane_to(guarded_product(seed, slopes[k], guarded, function.chooses), whole, into, records);
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
Lane<C, D> record_lanes(LaneFunction<C, D> const& function, Lane<C, D> const* xs) {
  Variable<C, D> const none = xs[0].variable();
  Variable<C, D> const vs[] = {none, function.operands > 1 ? xs[1].variable() : none, function.operands > 2 ? xs[2].variable() : none};
  Tensor<C, D> const values[] = {vs[0].value(), vs[1].value(), vs[2].value()};
  Tensor<C, D> result = evaluate_lanes(function, values);
  if (!is_recording(vs[0], vs[1], vs[2])) return Lane<C, D>(result);
  return Lane<C, D>(Variable<C, D>::adopt(new LaneState<C, D>(function, std::move(result), vs)));
}
template <class C, class D>
struct SelectRule {
  using twice = void;
  LaneMask<D> mask;
  template <class G, class Ix, class J>
  SITU_SELDOM void operator()(G const& g, Ix const& into_a, J const& into_b) const {
    Lane<C, D> const seed = lane_of<C>(g), zero(C(0));
    if (into_a.needed()) add_lane<G>(select(mask, seed, zero), g.shape(), into_a);
    if (into_b.needed()) add_lane<G>(select(mask, zero, seed), g.shape(), into_b);
  }
};
template <class C, class D>
SITU_SELDOM Lane<C, D> select_lanes(LaneMask<D> const& mask, Lane<C, D> const& a, Lane<C, D> const& b) {
  Variable<C, D> const x = a.variable(), y = b.variable();
  return Lane<C, D>(record("Where", Tensor<C, D>(where(mask.values(), x.value(), y.value())), SelectRule<C, D>{mask}, x, y));
}


/// The arithmetic of Lanes; numbers are folded.
template <class C, class D>
struct LaneArithmetic {
  using L = Lane<C, D>;
  using Mask = LaneMask<D>;
  template <class Op, class... Xs>
  static L record(Xs const&... xs) {
    L const all[] = {xs...};
    return record_lanes(lane_function<Op, C, D, static_cast<int>(sizeof...(Xs)), true>, all);
  }
  SITU_SELDOM static L add(L const& a, L const& b) {
    if (a.is(0)) return b;
    if (b.is(0)) return a;
    if (a.is_number() && b.is_number()) return L(a.number() + b.number());
    return record<functions::add>(a, b);
  }
  SITU_SELDOM static L subtract(L const& a, L const& b) {
    if (b.is(0)) return a;
    if (a.is(0)) return negative(b);
    if (a.is_number() && b.is_number()) return L(a.number() - b.number());
    return record<functions::subtract>(a, b);
  }
  SITU_SELDOM static L multiply(L const& a, L const& b) {
    if (a.is(0) || b.is(1)) return a;
    if (b.is(0) || a.is(1)) return b;
    if (a.is(-1)) return negative(b);
    if (b.is(-1)) return negative(a);
    if (a.is_number() && b.is_number()) return L(a.number() * b.number());
    return record<functions::multiply>(a, b);
  }
  SITU_SELDOM static L divide(L const& a, L const& b) {
    if (b.is(1)) return a;
    if (a.is_number() && b.is_number()) return L(a.number() / b.number());
    return record<functions::divide>(a, b);
  }
  SITU_SELDOM static L negative(L const& a) {
    if (a.is_number()) return L(-a.number());
    return record<functions::negative>(a);
  }
  SITU_SELDOM static Mask equal(L const& a, L const& b) { return Mask(Tensor<bool, D>(a.tensor() == b.tensor())); }
  SITU_SELDOM static Mask less(L const& a, L const& b) { return Mask(Tensor<bool, D>(a.tensor() < b.tensor())); }
  SITU_SELDOM static Mask both(Mask const& a, Mask const& b) { return Mask(Tensor<bool, D>(a.values() && b.values())); }
  SITU_SELDOM static Mask either(Mask const& a, Mask const& b) { return Mask(Tensor<bool, D>(a.values() || b.values())); }
  SITU_SELDOM static Tensor<C, D> number(C value) { return full<C>({}, value, D{}); }
  SITU_SELDOM static L view(L const& x, LaneView which, Shape const& parameters) {
    Variable<C, D> v = x.variable();
    switch (which) {
      case LaneView::reshape: return L(v.reshape(parameters));
      case LaneView::expand: return L(v.expand(parameters));
      case LaneView::permute: return L(v.permute(parameters));
      case LaneView::transpose: return L(v.transpose(parameters[0], parameters[1]));
      case LaneView::unsqueeze: return L(v.unsqueeze(parameters[0]));
      case LaneView::squeeze: return L(v.squeeze(parameters[0]));
      case LaneView::flip: break;
    }
    for (int64_t axis : parameters) v = v.flip(axis);
    return L(v);
  }
  SITU_SELDOM static L summed(L const& x, unsigned axes) {
    Shape chosen;
    Variable<C, D> const v = x.variable();
    for (int k = 0; k < v.rank(); ++k) {
      if (axes >> k & 1u) chosen.push_back(k);
    }
    return L(Variable<C, D>(sum(v, chosen, keepdim)));
  }
};

/// Functions on Lanes of C.
template <class D, class C>
struct LaneStep {
  using L = Lane<C, D>;
  using Values = AnyLane<D>*;

  SITU_SELDOM static L taken(Values values, LaneNode<D> const& node, int k) {
    AnyLane<D>& value = values[node.operands[k]];
    return node.taken[k] ? node.taken[k](value).template of<C>() : value.template of<C>();
  }
  SITU_SELDOM static void give(L const& seed, Values seeds, LaneNode<D> const& node, int k) {
    if (!node.takes_seed[k]) return;
    AnyLane<D>& to = seeds[node.operands[k]];
    to.template of<C>() = seed;
    if (node.given[k]) to = node.given[k](to);
  }
  SITU_SELDOM static void up(Values values, Values, LaneNode<D> const& node) {
    auto const& function = *static_cast<LaneFunction<C, D> const*>(node.function);
    L const zero(C(0));
    L xs[] = {zero, zero, zero};
    bool numbers = true;
    for (int k = 0; k < node.count; ++k) xs[k] = taken(values, node, k), numbers = numbers && xs[k].is_number();
    L value = function.value(xs);
    if (value.is_number() && !numbers) value = LaneArithmetic<C, D>::template record<functions::multiply>(xs[0], xs[1]);  // by 0: has the shape all the same
    values[node.self].template of<C>() = value;
  }
  SITU_SELDOM static void down(Values values, Values seeds, LaneNode<D> const& node) {
    auto const& function = *static_cast<LaneFunction<C, D> const*>(node.function);
    L const seed = seeds[node.self].template of<C>(), zero(C(0));
    L xs[] = {zero, zero, zero}, slopes[] = {zero, zero, zero};
    for (int k = 0; k < node.count; ++k) xs[k] = taken(values, node, k);
    function.slopes(xs, values[node.self].template of<C>(), slopes);
    for (int k = 0; k < node.count; ++k) {
      if (!node.takes_seed[k]) continue;
      give(guarded_product(seed, slopes[k], node.guarded, function.chooses), seeds, node, k);
    }
  }
  SITU_SELDOM static void up_cast(Values values, Values, LaneNode<D> const& node) { values[node.self].template of<C>() = taken(values, node, 0); }
  SITU_SELDOM static void down_cast(Values, Values seeds, LaneNode<D> const& node) {
    give(seeds[node.self].template of<C>(), seeds, node, 0);
  }
  SITU_SELDOM static void up_where(Values values, Values, LaneNode<D> const& node) {
    values[node.self].template of<C>() = select(LaneMask<D>(values[node.operands[0]].truth), taken(values, node, 1), taken(values, node, 2));
  }
  SITU_SELDOM static void down_where(Values values, Values seeds, LaneNode<D> const& node) {
    L const seed = seeds[node.self].template of<C>(), zero(C(0));
    LaneMask<D> const mask(values[node.operands[0]].truth);
    give(select(mask, seed, zero), seeds, node, 1);
    give(select(mask, zero, seed), seeds, node, 2);
  }
};

template <class C, class D>
inline constexpr LaneMachine<C, D> lane_machine_of{
    &LaneArithmetic<C, D>::add,
    &LaneArithmetic<C, D>::subtract,
    &LaneArithmetic<C, D>::multiply,
    &LaneArithmetic<C, D>::divide,
    &LaneArithmetic<C, D>::negative,
    &LaneArithmetic<C, D>::equal,
    &LaneArithmetic<C, D>::less,
    &LaneArithmetic<C, D>::both,
    &LaneArithmetic<C, D>::either,
    &select_lanes<C, D>,
    &record_lanes<C, D>,
    &LaneArithmetic<C, D>::number,
    &LaneArithmetic<C, D>::view,
    &LaneArithmetic<C, D>::summed,
    &add_lane_to<C, D>,
    {&LaneStep<D, C>::up, &LaneStep<D, C>::up_cast, &LaneStep<D, C>::up_where},
    {&LaneStep<D, C>::down, &LaneStep<D, C>::down_cast, &LaneStep<D, C>::down_where}};

/// Puts the machines of a device in their places. Cost: a word read.
template <class D>
void use_lanes() {
  using Where = result_device_t<D>;
  if (__atomic_load_n(&lane_machine_place<double, Where>(), __ATOMIC_ACQUIRE)) return;
  cpu::stay_loaded(&lane_machine_of<float, Where>);
  __atomic_store_n(&lane_machine_place<float, Where>(), &lane_machine_of<float, Where>, __ATOMIC_RELEASE);
  __atomic_store_n(&lane_machine_place<double, Where>(), &lane_machine_of<double, Where>, __ATOMIC_RELEASE);
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI

#if defined(__CUDACC__)
#pragma nv_diagnostic pop
#endif

#undef SITU_SELDOM
