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
void launch_backward(cuda_kernels, P const&) {
  static_assert(compiled_by_nvcc<P>, "situ: gradients_on_Cuda_need_nvcc: this file is not compiled by nvcc; name it .cu, or move the Variable to the host");
}
}  // namespace SITU_ABI_COMPILER
#endif

/// Formula and seed as trees, and where the gradients and the inputs lie.
template <class F, class S, class Slots, int Inputs>
struct BackwardProgram;
template <class F, class S, class... Ts, int Inputs>
struct BackwardProgram<F, S, Fields<Ts...>, Inputs> {
  using formula_type = F;
  using seed_type = S;
  using slots = Fields<Ts...>;
  static constexpr int outputs = static_cast<int>(sizeof...(Ts)), inputs = Inputs, operands = outputs + Inputs;
  F formula;
  S seed;
  Geometry<operands> where;
  uint64_t needed = 0, accumulated = 0;
  BackwardProgram(F const& f, S const& s) : formula(f), seed(s) {}
};

/// The Variables of a formula, from left to right, as f(variable).
template <class T, class D, class F>
void for_each_variable(Variable<T, D> const& v, F&& f) {
  f(v);
}
template <class E, class F>
  requires(!is_recorded<E>)
void for_each_variable(E const&, F&&) {}
template <class Op, class... Es, class F>
void for_each_variable(Map<Op, Es...> const& map, F&& f);
template <class F>
void for_each_variable(Fields<> const&, F&&) {}
template <class E, class... Es, class F>
void for_each_variable(Fields<E, Es...> const& fields, F&& f) {
  for_each_variable(fields.head, f);
  for_each_variable(fields.tail, f);
}
template <class Op, class... Es, class F>
  requires(is_recorded<Es> || ...)
void for_each_variable(Map<Op, Es...> const& map, F&& f) {
  for_each_variable(map.operands, f);
}

/// Variables as arguments: f(v0, v1, ...).
template <class F, class... Done>
auto with_variables(F const& f, Fields<> const&, Done const&... done) {
  return f(done...);
}
template <class F, class V, class... Vs, class... Done>
auto with_variables(F const& f, Fields<V, Vs...> const& rest, Done const&... done) {
  return with_variables(f, rest.tail, done..., rest.head);
}
/// The Variables of a formula, from left to right.
template <class T, class D>
Fields<Variable<T, D>> variables_of(Variable<T, D> const& v) {
  return {v, {}};
}
template <class E>
  requires(!is_recorded<E>)
Fields<> variables_of(E const&) {
  return {};
}
template <class Op, class... Es>
  requires(is_recorded<Es> || ...)
auto variables_of(Map<Op, Es...> const& map);
inline Fields<> variables_of(Fields<> const&) { return {}; }
template <class... Bs>
Fields<Bs...> joined(Fields<> const&, Fields<Bs...> const& b) {
  return b;
}
template <class A, class... As, class... Bs>
Fields<A, As..., Bs...> joined(Fields<A, As...> const& a, Fields<Bs...> const& b) {
  return {a.head, joined(a.tail, b)};
}
template <class E, class... Es>
auto variables_of(Fields<E, Es...> const& fields) {
  return joined(variables_of(fields.head), variables_of(fields.tail));
}
template <class Op, class... Es>
  requires(is_recorded<Es> || ...)
auto variables_of(Map<Op, Es...> const& map) {
  return variables_of(map.operands);
}

/// Where the gradient of one slot goes: memory of the formula's shape; null where it is not needed.
struct SlotTarget {
  void* memory = nullptr;
  bool accumulates = false;       ///< on top of what is there
  Layout const* sum = nullptr;    ///< of a Variable that was broadcast: memory for one such sum of each group of the space, in the computing type
};

/// In how many groups the CPU sums the gradients of a Variable that was broadcast to `whole` elements, while it computes them; 0 where
/// there are so many sums that it is better done afterwards. No matter how many threads there are.
inline int64_t sum_groups(int64_t whole, int64_t sums) {
  constexpr int64_t fewest = 1 << 14, most = 64;  // elements of a group, groups
  if (sums * 4 > whole) return 0;
  int64_t groups = whole / (sums * 4 > fewest ? sums * 4 : fewest);
  return groups < 1 ? 1 : groups < most ? groups : most;
}

/// Whether one element stands for all of a layout.
inline bool repeats_one(Layout const& layout) {
  for (int k = 0; k < layout.rank(); ++k) {
    if (layout.shape[k] != 1 && layout.strides[k] != 0) return false;
  }
  return true;
}
/// Whether every tensor of a formula is contiguous and of this shape, or of one element.
template <class D, class E>
bool is_plain(E const& e, Shape const& shape) {
  bool result = true;
  for_each_leaf(e, [&](auto const& leaf) { result = result && ((leaf.is_contiguous() && same_shape(leaf.shape(), shape)) || repeats_one(leaf.layout())); });
  return result;
}

/// Runs the backward kernel of a marked formula over `whole`. `plain`: that everything is contiguous; else nothing accumulates.
template <class D, class F, class S, class... Ts>
void propagate(F const& formula, S const& seed, Layout const& whole, bool plain, [[maybe_unused]] int64_t groups, SlotTarget const* targets, Fields<Ts...>*) {
  constexpr int outputs = static_cast<int>(sizeof...(Ts)), inputs = leaf_count<F> + leaf_count<S>, operands = outputs + inputs;
  void* data[operands];
  Layout const* all_layouts[operands + 1] = {&whole};
  Layout const** const layouts = all_layouts + 1;
  void* any = nullptr;
  uint64_t needed = 0, accumulated = 0, summed = 0;
  for (int j = 0; j < outputs; ++j) {
    if (!targets[j].memory) continue;
    any = targets[j].memory;
    needed |= uint64_t{1} << j;
    if (targets[j].accumulates) accumulated |= uint64_t{1} << j;
    if (targets[j].sum) summed |= uint64_t{1} << j;
  }
  if (!any || whole.size() == 0) return;
  for (int j = 0; j < outputs; ++j) data[j] = targets[j].memory ? targets[j].memory : any, layouts[j] = targets[j].sum ? targets[j].sum : &whole;
  int o = outputs;
  auto const collect = [&](auto const& leaf) {
    data[o] = const_cast<void*>(static_cast<void const*>(leaf.data()));
    layouts[o] = &leaf.layout();
    ++o;
  };
  for_each_leaf(formula, collect);
  for_each_leaf(seed, collect);
  auto const f = lower<0>(formula);
  auto const s = lower<leaf_count<F>>(seed);
  using FTree = std::remove_cv_t<decltype(f)>;
  using STree = std::remove_cv_t<decltype(s)>;
  if constexpr (std::is_same_v<typename device_traits<D>::kernels, cpu_kernels>) {
    cpu::BoundBackward<operands, cpu::tree_bytes<cpu::BackwardTrees<FTree, STree>>> bound;
    cpu::bind_backward<FTree, STree, inputs>(bound, f, s, static_cast<Fields<Ts...>*>(nullptr));
    bound.masks = {needed, accumulated, summed};
    constexpr int computed[] = {static_cast<int>(sizeof(compute_t<Ts>))...};
    for (int k = 0; k < operands; ++k) {
      if (k < outputs && (summed >> k & 1u)) bound.sizes[k] = computed[k];
      bound.data[k] = data[k];
      if (k < outputs && !(needed >> k & 1u)) bound.movers[k] = nullptr;
      if (plain && k >= outputs && whole.size() > 1 && repeats_one(*layouts[k])) bound.repeated |= uint64_t{1} << k;
    }
    if (plain && !summed) cpu::launch_contiguous_backward<D>(bound, whole.size());
    else cpu::launch_strided_backward<D>(bound, all_layouts, groups);
  } else {
    BackwardProgram<FTree, STree, Fields<Ts...>, inputs> program(f, s);
    auto& where = program.where;
    program.needed = needed;
    program.accumulated = accumulated;
    for (int k = 0; k < operands; ++k) where.data[k] = data[k];
    where.contiguous = plain;
    for (int k = outputs; k < operands; ++k) where.contiguous = where.contiguous && (whole.size() == 1 || !repeats_one(*layouts[k]));
    where.rank = 1;
    where.sizes[0] = whole.size();
    if (!where.contiguous) where.rank = bind_strides(layouts, operands, where.sizes, &where.strides[0][0]);
    launch_backward<D>(typename device_traits<D>::kernels{}, program);
  }
}

/// A marked formula with the versions of what it reads: the backward of a formula, for any gradient of its value.
template <class Marked>
class SavedFormula {
 public:
  explicit SavedFormula(Marked formula) : formula_(std::move(formula)) {
    int k = 0;
    for_each_leaf(formula_, [&](auto const& leaf) { versions_[k++] = leaf.storage_head() ? leaf.storage_head()->version : 0; });
  }
  /// The formula of tensors, for seeds that need its value; only where it was marked as read.
  Marked const& values() const { return formula_; }
  void check() const {
    int k = 0;
    for_each_leaf(formula_, [&](auto const& leaf) { check_unchanged(leaf.storage_head(), versions_[k++], leaf.shape()); });
  }
  /// Sends seed × derivative to the Variables of the formula, whose shape is given. The seed is a tensor or an expression that broadcasts
  /// to it, or a Constant. Variables that were broadcast get sums.
  template <class D, class Seed, class... Intos>
  void send(Shape const& shape, Seed const& seed, Intos const&... intos) const {
    SlotTarget targets[sizeof...(Intos)];
    Layout sum_layouts[sizeof...(Intos)];
    Layout const whole(shape);
    int64_t groups = 0, sums = 0;
    if constexpr (std::is_same_v<typename device_traits<D>::kernels, cpu_kernels>) {
      ((sums += into_sum(intos, shape)), ...);
      if (sums > 0) groups = sum_groups(whole.size(), sums);
    }
    bool const plain = groups == 0 && is_plain<D>(formula_, shape) && is_plain<D>(seed, shape);
    slots<D, 0>(whole, seed, plain, groups, targets, sum_layouts, static_cast<Fields<value_of<Intos>...>*>(nullptr), intos...);
  }

 private:
  /// How many sums the gradient of a Variable has that was broadcast.
  template <class I>
  static int64_t into_sum(I const& into, Shape const& whole) {
    return into.needed() && !same_shape(into.shape(), whole) ? product(into.shape()) : 0;
  }

  template <class D, int J, class Seed, class Types, class I, class... Is>
  void slots(Layout const& whole, Seed const& seed, bool plain, int64_t groups, SlotTarget* targets, Layout* sum_layouts, Types* types, I const& into, Is const&... rest) const {
    using T = value_of<I>;
    using Gradient = Tensor<T, device_of<I>>;
    using Sums = Tensor<compute_t<T>, result_device_t<device_of<I>>>;
    Gradient apart;  // what cannot be written where it belongs
    Sums sums;       // of each group
    if (into.needed()) {
      auto* const state = into.state();
      bool const fits = same_shape(into.shape(), whole.shape);
      if (!fits && groups > 0) {
        sum_layouts[J] = Layout(Shape(into.shape()));
        sums = Sums::uninitialized(Shape{groups, sum_layouts[J].size()}, "backward");
        targets[J] = {sums.data(), false, sum_layouts + J};
      } else if (fits && !state->queued) {
        state->incoming = Gradient::uninitialized(whole.shape, "backward");
        into.flow().arrived(state);
        targets[J].memory = state->incoming.data();
      } else if (fits && plain && state->is_own(state->incoming)) {
        targets[J] = {state->incoming.data(), true};
      } else {
        apart = Gradient::uninitialized(whole.shape, "backward");
        targets[J].memory = apart.data();
      }
    }
    if constexpr (sizeof...(Is) > 0) slots<D, J + 1>(whole, seed, plain, groups, targets, sum_layouts, types, rest...);
    else propagate<D>(formula_, seed, whole, plain, groups, targets, types);
    if (!into.needed()) return;
    if (sums.body()) into.add_sum((groups == 1 ? sums : situ::sum(sums, 0)).reshape(into.shape()));
    else if (apart.body()) into.add(apart);
  }

  Marked formula_;
  uint32_t versions_[leaf_count<Marked> > 0 ? leaf_count<Marked> : 1];
};

/// A rule that has a second derivative, or has not.
struct differentiable_rule {
  using twice = void;
};
struct final_rule {};

/// The rule of an operation on a formula: Seed says the gradient of the formula's value, an expression, from that of the result.
template <class D, bool Read, class Marked, class Seed>
struct FormulaRule
    : std::conditional_t<differentiable_seed<Seed, compute_t<value_of<Marked>>, D> && !maps_functions<Marked>, differentiable_rule, final_rule> {
  SavedFormula<Marked> saved;
  Shape shape;
  Seed seed;
  FormulaRule(Marked&& formula, Shape const& whole, Seed const& s) : saved(static_cast<Marked&&>(formula)), shape(whole), seed(s) {}
  template <class G, class... Intos>
  void operator()(G const& g, Intos const&... intos) const {
    saved.check();
    if constexpr (is_recorded<G>) send_recorded<Read, D>(saved.values(), shape, seed, g, intos...);
    else saved.template send<D>(shape, seed(g, saved.values()), intos...);
  }
};
/// The same for a Variable alone.
template <class T, class D, bool Read, class Seed>
struct VariableRule : std::conditional_t<differentiable_seed<Seed, compute_t<T>, result_device_t<D>>, differentiable_rule, final_rule> {
  Saved<T, D> saved;
  Seed seed;
  VariableRule(Saved<T, D>&& x, Seed const& s) : saved(std::move(x)), seed(s) {}
  template <class G, class I>
  void operator()(G const& g, I const& into) const {
    if (!into.needed()) return;
    if constexpr (is_recorded<G>) {
      using C = compute_t<T>;
      using Where = result_device_t<D>;
      Lane<C, Where> x(C(0));
      if constexpr (Read) x = lane_of<C>(record_transfer<Where>(saved.variable()));
      add_lane<G>(recorded_seed(seed, g, x, into), into.shape(), into);
    } else {
      into.add(seed(g, saved.tensor()));
    }
  }
};

/// Records `value`, an operation's result on the formula e. In backward, seed(g, x) gives the gradient of e's value from that of the
/// result: an expression, that reads x, the value of e as an expression, only if `Read` says so. It becomes part of the one kernel
/// that computes the gradients of all Variables in e.
template <bool Read, class T, class D, class E, class Seed>
Variable<T, D> record_on(char const* name, Tensor<T, D> value, E const& e, Seed const& seed) {
  if constexpr (is_recorded<E> && slot_count<E> == 1 && requires { e.state(); }) {
    using Rule = VariableRule<value_of<E>, device_of<E>, Read, Seed>;
    if (!is_recording(e)) return Variable<T, D>(std::move(value), false);
    if constexpr (Read) return record(name, std::move(value), Rule(Saved<value_of<E>, device_of<E>>(e), seed), e);
    else return record(name, std::move(value), Rule(Saved<value_of<E>, device_of<E>>(), seed), e);
  } else {
    return with_variables(
        [&](auto const&... vs) {
          if (!is_recording(vs...)) return Variable<T, D>(std::move(value), false);
          using Marked = decltype(marked<0, Read>(e));
          using Rule = FormulaRule<result_device_t<device_of<E>>, Read, Marked, Seed>;
          return record(name, std::move(value), Rule(marked<0, Read>(e), e.shape(), seed), vs...);
        },
        variables_of(e));
  }
}

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
