/// Joining and cutting what records: concat, stack, split, chunk. Shapes, types and errors are those of ops/concat.hpp.
///
///     concat({a, b}, 1)   concat(1, a, b * 2, tensor)   stack(a, b)   split(y, {2, 3}, 1)   chunk(y, 4)
///
/// Gradient  of concat and stack: slices of the result's, which copy nothing. Of split and chunk: the parts', each added in its place of one
///           tensor.
/// Cost      as without gradients: formulas are evaluated straight into their place in the result.
#pragma once

#include <situ/autograd/operands.hpp>
#include <situ/autograd/reduce.hpp>
#include <situ/ops/concat.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

template <class Op, class... Es>
constexpr char const* formula_node_name(Map<Op, Es...> const&) {
  return node_name_of<Op, sizeof...(Es) == 1>.text;
}
/// A part of a joined tensor as a node's input: a formula's value is where it was joined to.
template <class T, class D, class E>
auto joined_input(E const& e, Tensor<T, D> const& part) {
  if constexpr (!differentiable<E>) {
    return ConstantInput<T, D>{part};
  } else if constexpr (!std::is_same_v<value_of<E>, T>) {
    auto const formula = cast<T>(e);
    return record_on<false>(formula_node_name(formula), part, formula, gradient_itself{});
  } else if constexpr (requires { e.state(); }) {
    return recorded(e);
  } else {
    return record_on<false>(formula_node_name(e), part, e, gradient_itself{});
  }
}

/// Where the parts lie along an axis: the first indices, and the end. Stacked parts have an index each, and not the axis.
struct JoinRule {
  using twice = void;
  static constexpr bool stateless = true;
  int axis;
  bool stacked;
  std::vector<int64_t> ends;

  template <class G, class Ix>
  void send(G const& g, std::size_t k, Ix const& into) const {
    if (!into.needed()) return;
    if (stacked) into.add(g.select(axis, static_cast<int64_t>(k)));
    else if (int64_t const first = k > 0 ? ends[k - 1] : 0; into.shape().rank() == g.rank()) into.add(g.slice(axis, first, ends[k]));
  }
  template <class G, class... Is>
  void operator()(G const& g, Is const&... intos) const {
    std::size_t k = 0;
    (send(g, k++, intos), ...);
  }
  template <class V>
  void note(V const& part, int rank) {
    int64_t const before = ends.empty() ? 0 : ends.back();
    ends.push_back(stacked || part.rank() != rank ? before : before + part.shape()[axis]);
  }
  template <class T, class D>
  Tensor<T, D> part_of(Tensor<T, D> const& whole, std::size_t k, Shape const& shape) const {
    if (stacked) return whole.select(axis, static_cast<int64_t>(k));
    if (shape.rank() != whole.rank()) return Tensor<T, D>::uninitialized(shape);
    return whole.slice(axis, k > 0 ? ends[k - 1] : 0, ends[k]);
  }
};

/// Records a result of any number of inputs of one type: rule.send(g, k, into).
template <class T, class D, class Rule>
struct RecordedList final : State<T, D> {
  std::vector<Node*> edges;
  Rule rule;
  RecordedList(char const* node, Tensor<T, D>&& output, Rule&& r, Variable<T, D> const* from, std::size_t count)
      : State<T, D>(std::move(output)), edges(count), rule(std::move(r)) {
    this->name = node;
    this->inputs = edges.data();
    this->input_count = static_cast<int>(count);
    this->requires_grad = true;
    this->saves_nothing = is_stateless<Rule>;
    for (std::size_t k = 0; k < count; ++k) check_view(from[k]);
    for (std::size_t k = 0; k < count; ++k) {
      auto* const state = from[k].state();
      if (!state->requires_grad) continue;
      edges[k] = state;
      count_up(state->references);
      if (state->depth >= this->depth) this->depth = depth_beyond(*state);
    }
  }
  ~RecordedList() override { drop_inputs(*this); }
  void backward(Flow& flow) override {
    this->keep_retained(flow);
    for (std::size_t k = 0; k < edges.size(); ++k) {
      Into<T, D> const into(flow, edges[k]);
      if (flow.creates_graph()) rule.send(*this->incoming_recorded, k, into);
      else rule.send(std::as_const(this->incoming), k, into);
    }
  }
  void release() noexcept override {
    this->released = true;
    drop_inputs(*this);
  }
};

template <class T, class D>
Variable<T, D> join_list(char const* name, Variable<T, D> const* parts, std::size_t count, int64_t axis, bool stacked) {
  std::vector<Tensor<T, D>> values;
  bool records = false;
  for (std::size_t k = 0; k < count; ++k) {
    values.push_back(parts[k].value());
    records = records || parts[k].requires_grad();
  }
  Tensor<T, D> value = stacked ? stack_range(values.data(), static_cast<int64_t>(count), axis) : concat_range(values.data(), static_cast<int64_t>(count), axis);
  if (!records_gradients || !records) return Variable<T, D>(std::move(value), false);
  int const rank = value.rank();
  JoinRule rule{checked_axis(axis, rank, value.shape(), name), stacked, {}};
  for (std::size_t k = 0; k < count; ++k) rule.note(parts[k], rank);
  return Variable<T, D>::adopt(new RecordedList<T, D, JoinRule>(name, std::move(value), std::move(rule), parts, count));
}

template <class... Es>
auto join_all(char const* name, int64_t axis, bool stacked, Es const&... parts) {
  using T = promoted_t<value_of<Es>...>;
  using D = result_device_of<Es...>;
  Tensor<T, D> value = stacked ? stack_all(axis, values_of(parts)...) : concat_all(axis, values_of(parts)...);
  int const rank = value.rank();
  JoinRule rule{checked_axis(axis, rank, value.shape(), name), stacked, {}};
  (rule.note(parts, rank), ...);
  return [&]<std::size_t... Ks>(std::index_sequence<Ks...>) {
    return record(name, value, rule, joined_input(parts, rule.part_of(value, Ks, parts.shape()))...);
  }(std::index_sequence_for<Es...>{});
}

/// The values of formulas of one type, as Variables.
template <class E>
auto recorded_list(std::initializer_list<E> parts) {
  std::vector<decltype(recorded(*parts.begin()))> variables;
  for (E const& part : parts) variables.push_back(recorded(part));
  return variables;
}

}  // namespace detail

/// Variables one behind the other along an existing axis: of a list or a vector; or, with the axis in front, of Variables, formulas and tensors, which
/// are constants.
template <class T, class D>
Variable<T, D> concat(std::initializer_list<Variable<T, D>> parts, int64_t axis = 0) {
  return detail::join_list("Cat", parts.begin(), parts.size(), axis, false);
}
template <class E>
  requires detail::recorded_operands<E>
auto concat(std::initializer_list<E> parts, int64_t axis = 0) {
  return concat(detail::recorded_list(parts), axis);
}
template <class T, class D>
Variable<T, D> concat(std::vector<Variable<T, D>> const& parts, int64_t axis = 0) {
  return detail::join_list("Cat", parts.data(), parts.size(), axis, false);
}
template <class... Es>
  requires detail::recorded_operands<Es...>
auto concat(int64_t axis, Es const&... parts) {
  return detail::join_all("Cat", axis, false, parts...);
}
template <class... Es>
  requires(sizeof...(Es) > 1 && detail::recorded_operands<Es...>)
auto concat(Es const&... parts) {
  return detail::join_all("Cat", 0, false, parts...);
}
template <class... Es, class Error = detail::recorded_apart_t<Es...>>
  requires detail::strange_recorded_operands<Es...>
void concat(int64_t, Es const&...) = delete;
template <class... Es, class Error = detail::recorded_apart_t<Es...>>
  requires detail::strange_recorded_operands<Es...>
void concat(Es const&...) = delete;

/// Variables of one shape side by side along a new axis. Takes what concat takes.
template <class T, class D>
Variable<T, D> stack(std::initializer_list<Variable<T, D>> parts, int64_t axis = 0) {
  return detail::join_list("Stack", parts.begin(), parts.size(), axis, true);
}
template <class E>
  requires detail::recorded_operands<E>
auto stack(std::initializer_list<E> parts, int64_t axis = 0) {
  return stack(detail::recorded_list(parts), axis);
}
template <class T, class D>
Variable<T, D> stack(std::vector<Variable<T, D>> const& parts, int64_t axis = 0) {
  return detail::join_list("Stack", parts.data(), parts.size(), axis, true);
}
template <class... Es>
  requires detail::recorded_operands<Es...>
auto stack(int64_t axis, Es const&... parts) {
  return detail::join_all("Stack", axis, true, parts...);
}
template <class... Es>
  requires(sizeof...(Es) > 1 && detail::recorded_operands<Es...>)
auto stack(Es const&... parts) {
  return detail::join_all("Stack", 0, true, parts...);
}
template <class... Es, class Error = detail::recorded_apart_t<Es...>>
  requires detail::strange_recorded_operands<Es...>
void stack(int64_t, Es const&...) = delete;
template <class... Es, class Error = detail::recorded_apart_t<Es...>>
  requires detail::strange_recorded_operands<Es...>
void stack(Es const&...) = delete;

namespace detail {

/// Parts of a tensor that lie one behind the other, as views that are recorded.
template <class T, class D>
std::vector<Variable<T, D>> recorded_parts(Variable<T, D> const& whole, int64_t axis, std::vector<Tensor<T, D>> const& views) {
  int const k = checked_axis(axis, whole.rank(), whole.shape(), "split");
  std::vector<Variable<T, D>> parts;
  int64_t at = 0;
  for (auto const& part : views) {
    int64_t const first = at;
    at += part.shape()[k];
    parts.push_back(record_part(whole, "Split", [k, first, end = at](auto const& t) { return t.slice(k, first, end); }));
  }
  return parts;
}

}  // namespace detail

/// Consecutive slices: of the given sizes, of `size` indices each, or `count` of equal size. Views, recorded.
template <class E>
  requires differentiable<E>
auto split(E const& x, std::vector<int64_t> const& sizes, int64_t axis = 0) {
  auto const whole = detail::recorded(x);
  return detail::recorded_parts(whole, axis, split(whole.value(), sizes, axis));
}
template <class E>
  requires differentiable<E>
auto split(E const& x, std::integral auto size, int64_t axis = 0) {
  auto const whole = detail::recorded(x);
  return detail::recorded_parts(whole, axis, split(whole.value(), size, axis));
}
template <class E>
  requires differentiable<E>
auto chunk(E const& x, int64_t count, int64_t axis = 0) {
  auto const whole = detail::recorded(x);
  return detail::recorded_parts(whole, axis, chunk(whole.value(), count, axis));
}

}  // namespace situ::inline SITU_ABI
