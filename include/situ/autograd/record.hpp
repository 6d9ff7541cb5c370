/// Recording operations: views, transfers, and whatever has a rule for its gradient.
#pragma once

#include <situ/autograd/state.hpp>
#include <situ/ops/reduce.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// Whether an operation on these is recorded.
template <class... Vs>
bool is_recording(Vs const&... inputs) {
  return records_gradients && (inputs.requires_grad() || ...);
}

/// The same of their nodes, types forgotten.
SITU_NOINLINE inline bool records_any(Node const* const* variables, int count) {
  bool result = false;
  for (int k = 0; k < count; ++k) result = result || variables[k]->requires_grad;
  return result && records_gradients;
}

/// `value` as the result of an operation named `name` on `inputs`. In a backward pass its rule is called as rule(g, into...): g is the
/// gradient of the result, and into... take those of the inputs, in their order (see Into). A rule serves second derivatives when its body
/// works on Lanes too (and on Variables, for 16-bit types), which it says by `using twice = on_lanes`: what they are computed by is then
/// compiled where it is asked for. `using twice = void` says that the body works on Variables; programs that record carry that.
template <class T, class D, class Rule, class... Vs>
Variable<T, D> record(char const* name, Tensor<T, D> value, Rule rule, Vs const&... inputs) {
  if (!is_recording(inputs...)) return Variable<T, D>(std::move(value), false);
  (check_view(inputs), ...);
  return Variable<T, D>::adopt(new Recorded<T, D, Rule, Variable<value_of<Vs>, device_of<Vs>>...>(name, std::move(value), std::move(rule), inputs.state()...));
}

/// The name of a node: that of the formula's outermost function, as PyTorch writes names.
struct NodeName {
  char text[40] = {};
};
constexpr NodeName node_name(char const* function, bool unary) {
  NodeName result;
  char const* const text = function;
  if (text[0] == 'o' && text[1] == 'p' && text[2] == 'e' && text[8] != '\0') {
    char const* const name = text[8] == '+' ? "Add" : text[8] == '-' ? (unary ? "Neg" : "Sub") : text[8] == '*' ? "Mul" : text[8] == '/' ? "Div" : "Remainder";
    for (int k = 0; name[k]; ++k) result.text[k] = name[k];
    return result;
  }
  int at = 0;
  bool upper = true;
  for (int k = 0; text[k] && at < 39; ++k) {
    if (text[k] == '_') {
      upper = true;
      continue;
    }
    bool const small = text[k] >= 'a' && text[k] <= 'z';
    result.text[at++] = upper && small ? static_cast<char>(text[k] - 'a' + 'A') : text[k];
    upper = false;
  }
  return result;
}
template <class Op, bool Unary>
inline constexpr NodeName node_name_of = node_name(Op::name, Unary);

/// A rule that works on Variables too.
template <class F>
struct Twice : F {
  using twice = void;
};
template <class F>
Twice<F> twice(F f) {
  return {std::move(f)};
}

template <class T, class D>
Tensor<T, D> values_of(Variable<T, D> const& variable) {
  return variable.value();
}
/// What reads a formula where it stands needs no handles of its own.
template <class T, class D, class F>
SITU_INLINE void for_each_leaf(Variable<T, D> const& leaf, F&& f) {
  f(std::as_const(leaf.state()->value));
}

/// The axes that `shape` was broadcast along to `whole`.
SITU_NOINLINE inline Shape broadcast_axes(Shape const& whole, Shape const& shape) {
  Shape axes;
  int const lead = whole.rank() - shape.rank();
  for (int k = 0; k < whole.rank(); ++k) {
    if (k < lead || (shape[k - lead] == 1 && whole[k] != 1)) axes.push_back(k);
  }
  return axes;
}
/// A gradient summed over the axes that `shape` was broadcast along.
template <class G>
auto summed_to(G const& gradient, Shape const& shape) {
  if constexpr (is_lane<G>) {
    return gradient.shape() == shape ? gradient : sum(gradient, broadcast_axes(gradient.shape(), shape)).reshape(shape);
  } else {
    using Result = std::conditional_t<is_recorded<G>, Variable<value_of<G>, result_device_t<device_of<G>>>, Tensor<value_of<G>, result_device_t<device_of<G>>>>;
    if (gradient.shape() == shape) return Result(gradient);
    return Result(sum(gradient, broadcast_axes(gradient.shape(), shape), keepdim).reshape(shape));
  }
}

inline Shape inverse_permutation(Shape const& axes) {
  Shape result = axes;
  for (int k = 0; k < axes.rank(); ++k) result[checked_axis(axes[k], axes.rank(), axes, "permute")] = k;
  return result;
}

/// What a backward pass from one number begins with.
template <class T, class D>
Tensor<T, D> one_gradient(Shape const& shape) {
  if constexpr (is_immediate<D>) {
    Tensor<T, D> one = Tensor<T, D>::uninitialized(shape, "backward");
    *one.data() = T(1.f);
    return one;
  } else {
    return full<T>(shape, T(1.f), D{});
  }
}

/// Notes where a Variable's value lies in that of one of others: where that one is written, its history no longer tells what it is made of. What is not
/// a Variable does not count.
template <class T, class D, class... Es>
Variable<T, D> noted_view(Variable<T, D> result, Es const&... of) {
  auto* const state = result.state();
  StorageHead const* const head = state->value.storage_head();
  auto const note = [&](auto const& each) {
    if constexpr (requires { each.state()->value; }) {
      if (head && head == each.state()->value.storage_head()) state->is_view = true, state->version = head->version;
    }
  };
  (note(of), ...);
  return result;
}
/// The rule of a view of every element: Back::of(g, whole, parameters) undoes it. One type for all views.
template <class T, class D>
struct ViewRule {
  using twice = on_lanes;
  /// As Recorded gives them.
  using History = std::conditional_t<std::is_same_v<compute_t<T>, T> && std::is_same_v<result_device_t<D>, D>, Lane<T, D>, Variable<T, D>>;
  Shape whole;
  signed char axes[max_rank];  ///< the parameters
  int count;
  Tensor<T, D> (*back)(Tensor<T, D> const&, Shape const& whole, Shape const& parameters);
  History (*back_recorded)(History const&, Shape const& whole, Shape const& parameters);
  template <class Ix>
  void operator()(Tensor<T, D> const& g, Ix const& into) const {
    if (into.needed()) into.add(back(g, whole, Shape(axes, count)));
  }
  template <class Ix>
  void operator()(History const& g, Ix const& into) const {
    if (into.needed()) into.add(back_recorded(g, whole, Shape(axes, count)));
  }
};
template <class Back, class G>
G undo_view(G const& g, Shape const& whole, [[maybe_unused]] Shape const& parameters) {
  return Back::of(g, whole, parameters);
}
/// Records `value`, a view of every element of v. The parameters are axes.
template <class Back, class T, class D>
Variable<T, D> record_view(Variable<T, D> const& v, char const* name, Tensor<T, D> value, Shape const& parameters) {
  ViewRule<T, D> rule{v.shape(), {}, parameters.rank(), &undo_view<Back, Tensor<T, D>>, &undo_view<Back, typename ViewRule<T, D>::History>};
  for (int k = 0; k < rule.count; ++k) rule.axes[k] = static_cast<signed char>(parameters[k]);
  return noted_view(record(name, std::move(value), std::move(rule), v), v);
}
/// `value`, the view of some elements that `view` shows in tensors that lie as gradients do.
template <class T, class D, class View>
Variable<T, D> record_part(Variable<T, D> const& v, char const* name, Tensor<T, D> value, View const& view) {
  return noted_view(record(name, std::move(value), twice([view](auto const& g, auto const& into) { into.add_part(view, g); }), v), v);
}
template <class T, class D, class View>
Variable<T, D> record_part(Variable<T, D> const& v, char const* name, View const& view) {
  return record_part(v, name, Tensor<T, D>(view(v.value())), view);
}
/// The opposite: zeros of shape `whole`, with v where the view is.
template <class View, class T, class D>
Variable<T, D> record_placed(View const& view, Variable<T, D> const& v, Shape const& whole) {
  Tensor<T, D> value = zeros<T>(whole, D{});
  Tensor<T, D> part = view(value);
  part.assign(v.value());
  return record("Place", std::move(value), twice([view](auto const& g, auto const& into) {
                  if (into.needed()) into.add(view(g));
                }),
                v);
}
/// What second derivatives on D are computed by, from now on (lane_machine.hpp).
template <class D>
void use_lanes();
/// A Variable's value on another device. Second derivatives may be asked for on either side: both are told what computes them.
template <class To, class T, class D>
Variable<T, To> record_transfer(Variable<T, D> const& v) {
  if constexpr (std::is_same_v<To, D>) return v;
  else {
    if (is_recording(v)) use_lanes<D>(), use_lanes<To>();
    return record("To", v.value().to(To{}), twice([](auto const& g, auto const& into) {
                    if (into.needed()) into.add(g.to(D{}, CallSite{nullptr, 0, "backward"}));
                  }),
                  v);
  }
}

}  // namespace detail

/// A tensor, said to be a constant: an operand of formulas that gets no gradient.
template <class E>
  requires expression<E>
auto constant(E&& e) {
  return detail::evaluated(static_cast<E&&>(e));
}
/// A Variable's value, said to be a constant.
template <class E>
  requires differentiable<E>
auto constant(E const& e) {
  return detail::evaluated(detail::values_of(e));
}

}  // namespace situ::inline SITU_ABI
