/// checkpoint: memory for time.
#pragma once

#include <tuple>

#include <situ/autograd/function.hpp>
#include <situ/ops/random.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// The default generator as it was, for as long as it lives; then as it had become.
class GeneratorAgain {
 public:
  explicit GeneratorAgain(Generator const& before) : now_(default_generator()) { default_generator() = before; }
  GeneratorAgain(GeneratorAgain const&) = delete;
  GeneratorAgain& operator=(GeneratorAgain const&) = delete;
  ~GeneratorAgain() { default_generator() = now_; }

 private:
  Generator now_;
};

/// What a section gives: Variables, one or several.
template <class Y>
auto section_outputs(Y const& y) {
  if constexpr (differentiable<Y>) return std::tuple(recorded(y));
  else return std::apply([](auto const&... each) { return std::tuple(recorded(each)...); }, y);
}

/// A section that is run again. It waits for the gradients of its outputs, and sends those of its inputs.
template <class F, class Outputs, class... Vs>
struct Section;
template <class F, class... Ys, class... Vs>
struct Section<F, std::tuple<Ys...>, Vs...> final : Node {
  static constexpr int count = static_cast<int>(sizeof...(Vs));
  Node* edges[count];
  F f;
  std::tuple<Saved<value_of<Vs>, device_of<Vs>>...> saved;
  std::tuple<Tensor<value_of<Ys>, device_of<Ys>>...> gradients;
  Generator generator;  ///< as it was before the first run

  Section(F const& function, Vs const&... from) : edges{}, f(function), saved(Saved<value_of<Vs>, device_of<Vs>>(from.value())...), generator(default_generator()) {
    name = "Checkpoint";
    requires_grad = true;
    calls_others = true;
    inputs = edges;
    input_count = count;
    (check_view(from), ...);
    int k = 0;
    auto const connect = [&](auto const& v) {
      if (v.requires_grad()) {
        auto* const state = v.state();
        edges[k] = state;
        count_up(state->references);
        if (state->depth >= depth) depth = depth_beyond(*state);
      }
      ++k;
    };
    (connect(from), ...);
  }
  ~Section() override { drop_inputs(*this); }

  template <std::size_t K, class G>
  void take(Flow& flow, G const& gradient) {
    std::get<K>(gradients) = gradient;
    flow.arrived(this);
  }
  void call_hooks() override {}
  void capture() override {}
  void forget() noexcept override { gradients = {}; }
  void release() noexcept override {
    released = true;
    saved = {};
    drop_inputs(*this);
  }
  void backward(Flow& flow) override {
    OperationName const guard(name);
    if (flow.creates_graph()) fail<GradientError>("grad: a checkpoint has no second derivative; call grad without create_graph");
    run(flow, std::index_sequence_for<Vs...>{}, std::index_sequence_for<Ys...>{});
  }

 private:
  template <std::size_t... Is, std::size_t... Ks>
  void run(Flow& flow, std::index_sequence<Is...>, std::index_sequence<Ks...>) {
    std::tuple<Vs...> const leaves{Vs(std::get<Is>(saved).tensor(), edges[Is] != nullptr)...};
    std::vector<Node*> targets, roots;
    if (flow.for_targets()) {  // then grad() is nobody's business
      (targets.push_back(edges[Is] ? std::get<Is>(leaves).state() : nullptr), ...);
      std::erase(targets, nullptr);
    }
    Targets const marked(std::move(targets));
    {
      enable_grad const recording;
      auto const outputs = [&] {
        GeneratorAgain const again(generator);
        return section_outputs(std::apply(f, leaves));
      }();
      if (flow.for_targets()) {  // by the number of that grad(): what it has marked stays so
        (roots.push_back(std::get<Ks>(outputs).state()), ...);
        mark_way_to_targets(roots.data(), static_cast<int>(roots.size()), flow.number());
      }
      no_grad const computing;
      Flow inner(flow.keeps_graph(), false, flow.number());
      auto const start = [&](auto const& y, auto const& gradient) {
        if (y.requires_grad() && gradient.body()) y.state()->add(inner, gradient);
      };
      (start(std::get<Ks>(outputs), std::get<Ks>(gradients)), ...);
      inner.run();
    }
    auto const send = [&](auto const& leaf, Node* edge) {
      Into<value_of<decltype(leaf)>, device_of<decltype(leaf)>> const into(flow, edge);
      auto const gradient = flow.for_targets() ? leaf.state()->captured : leaf.grad();
      if (into.needed() && gradient.body()) into.add(gradient);
    };
    (send(std::get<Is>(leaves), edges[Is]), ...);
  }
};

}  // namespace detail

/// f(x...), of which only the inputs are kept: in a backward pass it is run again, and differentiated then. For sections whose
/// results between are large and cheap.
///
///     Variable y = checkpoint([&](auto const& x) { return block2(block1(x)); }, x);
///
/// f takes Variables and gives a Variable, a formula, or a std::tuple of them; it is kept by value, so that what it refers to must live until the
/// backward has run. It must do the same both times; what the default generator draws (dropout) is the same.
/// Throws    GradientError from a backward pass when an input was written in place since; for a second derivative.
/// Gradient  of the inputs, and of Variables that f refers to: a grad() of what the section belongs to runs it again, whatever it asks for.
/// Source    T. Chen et al., Training deep nets with sublinear memory cost, arXiv:1604.06174.
template <class F, class... Es>
  requires(sizeof...(Es) > 0 && (differentiable<Es> && ...))
auto checkpoint(F const& f, Es const&... inputs) {
  return [&]<class... Vs>(Vs const&... vs) {
    using Node = detail::Section<F, decltype(detail::section_outputs(f(vs...))), Vs...>;
    detail::HeldNode<Node> const held{detail::records_gradients ? new Node(f, vs...) : nullptr};
    auto const outputs = [&] {
      no_grad const guard;
      return detail::section_outputs(f(vs...));
    }();
    auto const finish = []<class... Ys>(std::tuple<Ys...>&& results) {
      if constexpr (sizeof...(Ys) == 1) return std::get<0>(std::move(results));
      else return std::tuple<Ys...>(std::move(results));
    };
    if (!held.node) return finish(std::tuple(outputs));
    return [&]<std::size_t... Ks>(std::index_sequence<Ks...>) {
      auto const record = [&]<std::size_t K, class Y>(std::integral_constant<std::size_t, K>, Y const& y) {
        return detail::noted_view(Y::adopt(new detail::OutputOf<value_of<Y>, device_of<Y>, Node, K>(y.value(), held.node)), vs...);
      };
      return finish(std::tuple(record(std::integral_constant<std::size_t, Ks>{}, std::get<Ks>(outputs))...));
    }(std::make_index_sequence<std::tuple_size_v<std::remove_cvref_t<decltype(outputs)>>>{});
  }(detail::recorded(inputs)...);
}

}  // namespace situ::inline SITU_ABI
