/// Backward passes: from a number to the leaves, or to chosen Variables.
///
/// A pass writes to the graph that it walks and to its leaves, a grad() too. So threads may run passes at the same time where these share no
/// Variable that wants a gradient; two passes on one leaf are a race, as two writes to one storage are. Give each thread leaves of its own
/// (`Variable{w.value()}` shares the elements), and add their gradients.
#pragma once

#include <array>

#include <situ/autograd/lane_machine.hpp>
#include <situ/autograd/reduce.hpp>
#include <situ/autograd/writes.hpp>

namespace situ::inline SITU_ABI {

/// Records the gradients that grad() gives, so that they can be differentiated again. The graph is kept.
struct create_graph_t {};
inline constexpr create_graph_t create_graph{};

namespace detail {

template <class T, class D>
void run_backward(Variable<T, D> const& root, Tensor<T, D> const& seed, bool keeps_graph) {
  check_not_in_hook("backward");
  check_view(root);
  no_grad const guard;
  Flow flow(keeps_graph, false, 0);
  root.state()->add(flow, seed);
  flow.run();
}

[[noreturn]] __attribute__((noinline, cold)) inline void fail_unused(std::size_t number, Shape const& shape) {
  fail<GradientError>("grad: input ", number, " of shape ", shape, " was not used for the output: it has no gradient; leave it out, or use it");
}

/// Marks Variables as targets of a grad(), until their gradients have been taken. `all_used`: that an output which was not made of all of them is refused.
class Targets {
 public:
  explicit Targets(std::vector<Node*> nodes, bool all_used = true) : nodes_(std::move(nodes)), all_used_(all_used) {
    for (std::size_t k = 0; k < nodes_.size(); ++k) {
      if (!nodes_[k]) fail<GradientError>("grad: input ", k, " requires no gradient; call requires_grad(true) on it before it is used");
    }
    for (Node* node : nodes_) node->target = true;
  }
  Targets(Targets const&) = delete;
  Targets& operator=(Targets const&) = delete;
  ~Targets() {
    for (Node* node : nodes_) {
      node->target = false;
      node->forget_captured();
    }
  }
  /// Marks the nodes between the output and them.
  /// Throws    GradientError where one was not used, if that can be told before anything is given back.
  SITU_NOINLINE void mark_way_from(Node* output, uint64_t run) const {
    if (!mark_way_to_targets(&output, 1, run) || !all_used_) return;
    for (std::size_t k = 0; k < nodes_.size(); ++k) {
      if (nodes_[k]->mark / 2 != run) fail_unused(k, nodes_[k]->shape);
    }
  }

 private:
  std::vector<Node*> nodes_;
  bool all_used_;
};

/// The gradient of input `number`, which may stand among the inputs again.
template <class T, class D>
Tensor<T, D> take_gradient(Variable<T, D> const* inputs, std::size_t count, std::size_t number) {
  auto* const state = inputs[number].state();
  bool again = false;
  for (std::size_t k = number + 1; k < count; ++k) again = again || inputs[k].state() == state;
  if (!state->captured.body()) fail_unused(number, state->shape);
  Tensor<T, D> result = again ? state->captured : std::exchange(state->captured, {});
  return result.is_contiguous() && result.use_count() == 1 ? result : result.clone();
}
template <class T, class D>
Variable<T, D> take_recorded_gradient(Variable<T, D> const* inputs, std::size_t number) {
  auto* const state = inputs[number].state();
  if (!state->captured_recorded) fail_unused(number, state->shape);
  return *state->captured_recorded;
}

/// What second derivatives are computed by comes with CreatesGraph.
template <bool CreatesGraph = false, class T, class D>
void run_grad(Variable<T, D> const& root, Tensor<T, D> const& seed, Targets const& targets, bool keeps_graph) {
  if (!root.requires_grad()) fail<GradientError>("grad: the output requires no gradient: nothing that it was made of does, or nothing was recorded there, as in a no_grad");
  check_not_in_hook("grad");
  check_view(root);
  uint64_t const run = next_gradient_run();
  targets.mark_way_from(root.state(), run);
  Flow flow(keeps_graph || CreatesGraph, CreatesGraph, run);
  if constexpr (CreatesGraph) {
    use_lanes<D>();
    enable_grad const guard;
    root.state()->incoming = seed;
    root.state()->add_recorded(flow, Variable<T, D>(seed, false));
    flow.run();
  } else {
    no_grad const guard;
    root.state()->add(flow, seed);
    flow.run();
  }
}

template <class V>
Node* gradient_node(V const& v) {
  return v.requires_grad() ? v.state() : nullptr;
}

template <class Y>
auto checked_seed(Y const& y) {
  if (y.size() != 1) {
    fail<GradientError>("grad: the output has shape ", y.shape(), ": gradients start at one number; reduce it, as with sum, or give a gradient of this shape");
  }
  return one_gradient<value_of<Y>, device_of<Y>>(y.shape());
}
template <class Y, class E>
auto checked_seed(Y const& y, E const& seed) {
  if (!(seed.shape() == y.shape())) fail<ShapeError>("grad: a gradient of shape ", seed.shape(), " was given for an output of shape ", y.shape());
  return Tensor<value_of<Y>, device_of<Y>>(seed);
}

template <class Y, class S, class V, std::size_t N>
auto grad_array(Y const& y, S const& seed, V const (&inputs)[N], bool keeps_graph) {
  std::vector<Node*> nodes;
  for (V const& v : inputs) nodes.push_back(gradient_node(v));
  Targets const targets(std::move(nodes));
  run_grad(y, seed, targets, keeps_graph);
  return [&]<std::size_t... Ks>(std::index_sequence<Ks...>) {
    return std::array<Tensor<value_of<V>, device_of<V>>, N>{take_gradient(inputs, N, Ks)...};
  }(std::make_index_sequence<N>{});
}
template <class Y, class S, class V, std::size_t N>
auto grad_array_recorded(Y const& y, S const& seed, V const (&inputs)[N]) {
  std::vector<Node*> nodes;
  for (V const& v : inputs) nodes.push_back(gradient_node(v));
  Targets const targets(std::move(nodes));
  use_lanes<device_of<V>>();
  run_grad<true>(y, seed, targets, true);
  return [&]<std::size_t... Ks>(std::index_sequence<Ks...>) {
    return std::array<V, N>{take_recorded_gradient(inputs, Ks)...};
  }(std::make_index_sequence<N>{});
}
template <class Y, class S, class V>
auto grad_row(Y const& y, S const& seed, std::vector<V> const& inputs, bool keeps_graph) {
  std::vector<Node*> nodes;
  for (V const& v : inputs) nodes.push_back(gradient_node(v));
  Targets const targets(std::move(nodes));
  run_grad(y, seed, targets, keeps_graph);
  std::vector<Tensor<value_of<V>, device_of<V>>> result;
  for (std::size_t k = 0; k < inputs.size(); ++k) result.push_back(take_gradient(inputs.data(), inputs.size(), k));
  return result;
}
template <class Y, class S, class V>
std::vector<V> grad_row_recorded(Y const& y, S const& seed, std::vector<V> const& inputs) {
  std::vector<Node*> nodes;
  for (V const& v : inputs) nodes.push_back(gradient_node(v));
  Targets const targets(std::move(nodes));
  use_lanes<device_of<V>>();
  run_grad<true>(y, seed, targets, true);
  std::vector<V> result;
  for (std::size_t k = 0; k < inputs.size(); ++k) result.push_back(take_recorded_gradient(inputs.data(), k));
  return result;
}

}  // namespace detail

/// The gradients of an output by chosen inputs, without touching anybody's `grad()`.
///
///     auto gx = grad(y, x);                   // a Tensor
///     auto [gx, gw] = grad(y, {x, w});        // Tensors, in the order of the inputs
///     auto gs = grad(y, parameters(net));     // the same for a std::vector
///     auto gx = grad(y, x, create_graph);     // a Variable, that can be differentiated again
///     auto gx = grad(y, x, seed);             // from a gradient of y's shape; retain_graph or create_graph may follow
///
/// Throws    GradientError when the output has no history, has more than one element (without a seed), when an input requires no
///           gradient or was not used, when the graph was used up, or something that is needed was written in place; when it is called by a hook
///           of another grad, or while a backward is under way in the same graph.
/// Cost      only what lies between the output and the inputs is computed. What the graph saved is given back, unless retain_graph or
///           create_graph is given.
template <class E, class T, class D>
  requires differentiable<E>
Tensor<T, D> grad(E const& output, Variable<T, D> const& input) {
  auto const y = detail::recorded(output);
  Variable<T, D> const inputs[] = {input};
  return detail::grad_array(y, detail::checked_seed(y), inputs, false)[0];
}
template <class E, class T, class D>
  requires differentiable<E>
Tensor<T, D> grad(E const& output, Variable<T, D> const& input, retain_graph_t) {
  auto const y = detail::recorded(output);
  Variable<T, D> const inputs[] = {input};
  return detail::grad_array(y, detail::checked_seed(y), inputs, true)[0];
}
template <class E, class T, class D>
  requires differentiable<E>
Variable<T, D> grad(E const& output, Variable<T, D> const& input, create_graph_t) {
  auto const y = detail::recorded(output);
  Variable<T, D> const inputs[] = {input};
  return detail::grad_array_recorded(y, detail::checked_seed(y), inputs)[0];
}
/// The same with a gradient of the output to begin with, which is a constant: a vector-Jacobian product.
template <class E, class T, class D, class S>
  requires(differentiable<E> && expression<S>)
Tensor<T, D> grad(E const& output, Variable<T, D> const& input, S const& seed) {
  auto const y = detail::recorded(output);
  Variable<T, D> const inputs[] = {input};
  return detail::grad_array(y, detail::checked_seed(y, seed), inputs, false)[0];
}
template <class E, class T, class D, class S>
  requires(differentiable<E> && expression<S>)
Tensor<T, D> grad(E const& output, Variable<T, D> const& input, S const& seed, retain_graph_t) {
  auto const y = detail::recorded(output);
  Variable<T, D> const inputs[] = {input};
  return detail::grad_array(y, detail::checked_seed(y, seed), inputs, true)[0];
}
template <class E, class T, class D, class S>
  requires(differentiable<E> && expression<S>)
Variable<T, D> grad(E const& output, Variable<T, D> const& input, S const& seed, create_graph_t) {
  auto const y = detail::recorded(output);
  Variable<T, D> const inputs[] = {input};
  return detail::grad_array_recorded(y, detail::checked_seed(y, seed), inputs)[0];
}
template <class E, class T, class D, std::size_t N>
  requires differentiable<E>
std::array<Tensor<T, D>, N> grad(E const& output, Variable<T, D> const (&inputs)[N]) {
  auto const y = detail::recorded(output);
  return detail::grad_array(y, detail::checked_seed(y), inputs, false);
}
template <class E, class T, class D, std::size_t N>
  requires differentiable<E>
std::array<Tensor<T, D>, N> grad(E const& output, Variable<T, D> const (&inputs)[N], retain_graph_t) {
  auto const y = detail::recorded(output);
  return detail::grad_array(y, detail::checked_seed(y), inputs, true);
}
template <class E, class T, class D, std::size_t N>
  requires differentiable<E>
std::array<Variable<T, D>, N> grad(E const& output, Variable<T, D> const (&inputs)[N], create_graph_t) {
  auto const y = detail::recorded(output);
  return detail::grad_array_recorded(y, detail::checked_seed(y), inputs);
}
template <class E, class T, class D, std::size_t N, class S>
  requires(differentiable<E> && expression<S>)
std::array<Tensor<T, D>, N> grad(E const& output, Variable<T, D> const (&inputs)[N], S const& seed) {
  auto const y = detail::recorded(output);
  return detail::grad_array(y, detail::checked_seed(y, seed), inputs, false);
}
template <class E, class T, class D, std::size_t N, class S>
  requires(differentiable<E> && expression<S>)
std::array<Tensor<T, D>, N> grad(E const& output, Variable<T, D> const (&inputs)[N], S const& seed, retain_graph_t) {
  auto const y = detail::recorded(output);
  return detail::grad_array(y, detail::checked_seed(y, seed), inputs, true);
}
template <class E, class T, class D, std::size_t N, class S>
  requires(differentiable<E> && expression<S>)
std::array<Variable<T, D>, N> grad(E const& output, Variable<T, D> const (&inputs)[N], S const& seed, create_graph_t) {
  auto const y = detail::recorded(output);
  return detail::grad_array_recorded(y, detail::checked_seed(y, seed), inputs);
}
template <class E, class T, class D>
  requires differentiable<E>
std::vector<Tensor<T, D>> grad(E const& output, std::vector<Variable<T, D>> const& inputs) {
  auto const y = detail::recorded(output);
  return detail::grad_row(y, detail::checked_seed(y), inputs, false);
}
template <class E, class T, class D>
  requires differentiable<E>
std::vector<Tensor<T, D>> grad(E const& output, std::vector<Variable<T, D>> const& inputs, retain_graph_t) {
  auto const y = detail::recorded(output);
  return detail::grad_row(y, detail::checked_seed(y), inputs, true);
}
template <class E, class T, class D>
  requires differentiable<E>
std::vector<Variable<T, D>> grad(E const& output, std::vector<Variable<T, D>> const& inputs, create_graph_t) {
  auto const y = detail::recorded(output);
  return detail::grad_row_recorded(y, detail::checked_seed(y), inputs);
}
template <class E, class T, class D, class S>
  requires(differentiable<E> && expression<S>)
std::vector<Tensor<T, D>> grad(E const& output, std::vector<Variable<T, D>> const& inputs, S const& seed) {
  auto const y = detail::recorded(output);
  return detail::grad_row(y, detail::checked_seed(y, seed), inputs, false);
}
template <class E, class T, class D, class S>
  requires(differentiable<E> && expression<S>)
std::vector<Tensor<T, D>> grad(E const& output, std::vector<Variable<T, D>> const& inputs, S const& seed, retain_graph_t) {
  auto const y = detail::recorded(output);
  return detail::grad_row(y, detail::checked_seed(y, seed), inputs, true);
}
template <class E, class T, class D, class S>
  requires(differentiable<E> && expression<S>)
std::vector<Variable<T, D>> grad(E const& output, std::vector<Variable<T, D>> const& inputs, S const& seed, create_graph_t) {
  auto const y = detail::recorded(output);
  return detail::grad_row_recorded(y, detail::checked_seed(y, seed), inputs);
}
template <class E, class T, class D, class X, class Error = error::grad_takes_inputs_in_braces__then_a_gradient__and_retain_graph_or_create_graph<X>>
  requires(differentiable<E> && (number<X> || differentiable<X>))
void grad(E const&, Variable<T, D> const&, X const&, auto const&...) = delete;

namespace detail {

/// The outputs as one number: their sum.
template <class T, class D>
Variable<T, D> sum_of_outputs(Variable<T, D> const* outputs, std::size_t count) {
  if (count == 0) fail<GradientError>("grad: no output was given: there is nothing to differentiate");
  enable_grad const guard;
  Variable<T, D> total = outputs[0];
  for (std::size_t k = 0; k < count; ++k) {
    (void)checked_seed(outputs[k]);
    if (k > 0) total = Variable<T, D>(total.reshape({}) + outputs[k].reshape({}));
  }
  return total;
}

}  // namespace detail

/// The same of several outputs, each one number: the sum of their gradients. An output with a gradient of its own to begin with is sum(y * seed).
///
///     auto [gx, gw] = grad({y1, y2}, {x, w});
template <class T, class D, std::size_t M, class U, std::size_t N, class... Options>
auto grad(Variable<T, D> const (&outputs)[M], Variable<U, D> const (&inputs)[N], Options const&... options) {
  return grad(detail::sum_of_outputs(outputs, M), inputs, options...);
}
template <class T, class D, std::size_t M, class Ix, class... Options>
  requires(!std::is_array_v<Ix>)
auto grad(Variable<T, D> const (&outputs)[M], Ix const& inputs, Options const&... options) {
  return grad(detail::sum_of_outputs(outputs, M), inputs, options...);
}
template <class T, class D, class U, std::size_t N, class... Options>
auto grad(std::vector<Variable<T, D>> const& outputs, Variable<U, D> const (&inputs)[N], Options const&... options) {
  return grad(detail::sum_of_outputs(outputs.data(), outputs.size()), inputs, options...);
}
template <class T, class D, class Ix, class... Options>
  requires(!std::is_array_v<Ix>)
auto grad(std::vector<Variable<T, D>> const& outputs, Ix const& inputs, Options const&... options) {
  return grad(detail::sum_of_outputs(outputs.data(), outputs.size()), inputs, options...);
}

}  // namespace situ::inline SITU_ABI
