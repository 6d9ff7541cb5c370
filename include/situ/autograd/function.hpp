/// autograd::apply: operations of one's own, with their gradients.
///
///     struct Linear {
///       static auto forward(auto& ctx, auto const& x, auto const& w) {
///         ctx.save(x, w);
///         return matmul(x, w);
///       }
///       static auto backward(auto& ctx, auto const& g) {
///         auto const [x, w] = ctx.template saved<Tensor<float>, Tensor<float>>();
///         return std::tuple(matmul(g, w.t()), matmul(x.t(), g));
///       }
///     };
///     Variable y = autograd::apply<Linear>(x, w);
#pragma once

#include <string_view>
#include <tuple>

#include <situ/autograd/backward.hpp>

namespace situ::inline SITU_ABI {
namespace autograd {
/// What a backward returns for an argument that gets no gradient.
struct none_t {};
inline constexpr none_t none{};
}  // namespace autograd

namespace detail {

/// A type in words: of other things than tensors, as the compiler writes it.
template <class X>
std::string type_in_words() {
  if constexpr (is_tensor<X>) {
    return text("a Tensor of ", dtype_name<value_of<X>>(), " on ", device_traits<device_of<X>>::name());
  } else {
    std::string_view all = __PRETTY_FUNCTION__;
    all.remove_prefix(all.find("X = ") + 4);
    return std::string(all.substr(0, all.find_first_of(";]")));
  }
}
template <class Op>
constexpr NodeName operation_name() {
  NodeName result;
  constexpr TypeName name = type_name<Op>();
  for (int k = 0; k < name.length && k < static_cast<int>(sizeof result.text) - 1; ++k) result.text[k] = name.begin[k];
  return result;
}
template <class Op>
inline constexpr NodeName operation_name_of = operation_name<Op>();
/// The name of a node: what the operation says, or its type's.
template <class Op>
constexpr char const* node_name() {
  if constexpr (requires { static_cast<char const*>(Op::name); }) return Op::name;
  else return operation_name_of<Op>.text;
}

/// A value that a forward saved, with its type forgotten.
struct SavedValue {
  virtual ~SavedValue() = default;
  virtual void const* type() const = 0;
  virtual std::string type_name() const = 0;
};
template <class X>
inline constexpr char type_mark = 0;
template <class X>
struct SavedCopy final : SavedValue {
  X value;
  explicit SavedCopy(X const& x) : value(x) {}
  void const* type() const override { return &type_mark<X>; }
  std::string type_name() const override { return type_in_words<X>(); }
  X const& get() const { return value; }
};
template <class T, class D>
struct SavedCopy<Tensor<T, D>> final : SavedValue {
  Tensor<T, D> value;
  uint32_t version;
  explicit SavedCopy(Tensor<T, D> const& x) : value(x), version(x.storage_head() ? x.storage_head()->version : 0) {}
  void const* type() const override { return &type_mark<Tensor<T, D>>; }
  std::string type_name() const override { return type_in_words<Tensor<T, D>>(); }
  Tensor<T, D> const& get() const {
    check_unchanged(value.storage_head(), version, value.shape());
    return value;
  }
};

}  // namespace detail

namespace autograd {

/// What an operation's forward leaves for its backward.
class Context {
 public:
  Context() = default;
  Context(Context const&) = delete;
  Context& operator=(Context const&) = delete;
  ~Context() { clear(); }

  /// Keeps values: tensors (which must not be written in place until the backward has read them), expressions, which are evaluated, and
  /// anything that can be copied.
  template <class... Xs>
  void save(Xs const&... values) {
    (add(values), ...);
  }
  template <class... Xs>
  void save_for_backward(Xs const&... values) {
    save(values...);
  }

  /// Value number k as what it was saved as. Throws TypeError when that was something else, IndexError when fewer were saved, GradientError when
  /// a tensor has been written in place since.
  template <class X>
  X saved(int k) const {
    if (k < 0 || k >= static_cast<int>(values_.size())) {
      detail::fail<IndexError>("saved: value ", k, " was asked for, but ", values_.size(), " were saved");
    }
    detail::SavedValue const* const value = values_[static_cast<std::size_t>(k)];
    if (value->type() != &detail::type_mark<X>) {
      detail::fail<TypeError>("saved: value ", k, " was saved as ", value->type_name(), " and asked for as ", detail::type_in_words<X>());
    }
    return static_cast<detail::SavedCopy<X> const*>(value)->get();
  }
  /// All values from the first on: `auto [x, w] = ctx.template saved<Tensor<float>, Tensor<float>>();`
  template <class... Xs>
    requires(sizeof...(Xs) > 0)
  std::tuple<Xs...> saved() const {
    return [this]<std::size_t... Ks>(std::index_sequence<Ks...>) { return std::tuple<Xs...>{this->template saved<Xs>(static_cast<int>(Ks))...}; }(std::index_sequence_for<Xs...>{});
  }

  /// Becomes what it is assigned to: `Tensor<float> x = ctx.saved(0);`
  class Asked {
   public:
    template <class X>
    operator X() const {
      return context_.saved<X>(number_);
    }

   private:
    friend class Context;
    Asked(Context const& context, int number) : context_(context), number_(number) {}
    Context const& context_;
    int number_;
  };
  Asked saved(int k) const { return {*this, k}; }

  /// Whether the gradient of tensor argument k is wanted: in a forward, whether it may be; in a backward, whether it is.
  bool needs_gradient(int k) const { return k >= 0 && k < 64 && (needed_ >> k & 1u); }

  /// For situ's own use.
  void clear() noexcept {
    for (detail::SavedValue* value : values_) delete value;
    values_.clear();
  }
  void set_needed(uint64_t bits) { needed_ = bits; }

 private:
  template <class X>
  void add(X const& x) {
    static_assert(!differentiable<X>, "situ: a forward works on tensors: save v.value(), not a Variable");
    if constexpr (expression<X>) keep(detail::evaluated(x));
    else keep(x);
  }
  template <class X>
  void keep(X const& x) {
    values_.push_back(nullptr);
    values_.back() = new detail::SavedCopy<std::remove_cvref_t<X>>(x);
  }
  std::vector<detail::SavedValue*> values_;
  uint64_t needed_ = 0;
};

}  // namespace autograd

namespace detail {

// An argument as the forward gets it, and as it is recorded.
template <class A>
auto as_input(A const& argument) {
  if constexpr (differentiable<A>) return recorded(argument);
  else return argument;
}
template <class A>
decltype(auto) as_tensor(A const& argument) {
  if constexpr (differentiable<A>) return argument.value();
  else return (argument);
}

template <class Op, class... As>
concept has_forward = requires(autograd::Context& context, As const&... arguments) { Op::forward(context, as_tensor(arguments)...); };
template <class Op, class... Gs>
concept has_backward = requires(autograd::Context& context, Gs const&... gradients) { Op::backward(context, gradients...); };

/// An argument that is a tensor, constant or not.
template <class A>
inline constexpr bool is_tensor_argument = any_formula<A>;

/// A constant among the arguments takes no gradient.
struct IntoNothing {
  static bool needed() { return false; }
};

/// Sends what a backward returned for one argument.
template <class G, class Ix>
void send_gradient(char const* name, std::size_t k, G const& gradient, Ix const& into) {
  if constexpr (!std::is_same_v<G, autograd::none_t> && !std::is_same_v<Ix, IntoNothing>) {
    static_assert(any_formula<G>, "situ::autograd::apply: backward returns tensors, expressions, or autograd::none");
    if (!into.needed()) return;
    Shape const& shape = into.shape();
    bool fits = gradient.rank() >= shape.rank();
    for (int a = 0; fits && a < shape.rank(); ++a) {
      int64_t const found = gradient.shape()[a + gradient.rank() - shape.rank()];
      fits = shape[a] == found || shape[a] == 1;
    }
    if (!fits) fail<GradientError>(name, ": backward gave a gradient of shape ", gradient.shape(), " for tensor argument ", k, " of shape ", shape, "; it must have that shape");
    if constexpr (std::is_same_v<value_of<G>, value_of<Ix>>) into.add(gradient);
    else into.add(cast<value_of<Ix>>(gradient));
  }
}
/// What a backward returned for the tensors among the arguments As. It may have returned autograd::none for the others too, as in PyTorch.
template <class... As, class... Rs>
auto for_tensors(std::type_identity<std::tuple<As...>>, std::tuple<Rs...> const& results) {
  if constexpr (sizeof...(Rs) == sizeof...(As)) {
    constexpr bool fits = ((is_tensor_argument<As> || std::is_same_v<Rs, autograd::none_t>) && ...);
    static_assert(fits, "situ::autograd::apply: backward returns autograd::none for an argument that is no tensor, or leaves it out");
    auto const kept = []<class A>(std::type_identity<A>, auto const& result) {
      if constexpr (is_tensor_argument<A>) return std::tuple(result);
      else return std::tuple();
    };
    return std::apply([&](auto const&... each) { return std::tuple_cat(kept(std::type_identity<As>{}, each)...); }, results);
  } else {
    return results;
  }
}
template <class As, class Gradient>
Gradient const& for_tensors(As, Gradient const& result) {
  return result;
}
/// Calls the backward with the gradients of the outputs, and sends what it returns.
template <class Op, class As, class... Is, class... Gs>
void run_operation_backward(As arguments, autograd::Context& context, char const* name, std::tuple<Is...> const& intos, Gs const&... gradients) {
  uint64_t needed = 0;
  int k = 0;
  std::apply([&](auto const&... into) { ((needed |= into.needed() ? uint64_t{1} << k : 0, ++k), ...); }, intos);
  context.set_needed(needed);
  auto const returned = Op::backward(context, gradients...);
  auto const& result = for_tensors(arguments, returned);
  if constexpr (requires { std::tuple_size<std::remove_cvref_t<decltype(result)>>::value; }) {
    static_assert(std::tuple_size_v<std::remove_cvref_t<decltype(result)>> == sizeof...(Is),
                  "situ::autograd::apply: backward_returns_as_many_gradients_as_there_are_tensor_arguments: one for each, autograd::none where there is none");
    if constexpr (std::tuple_size_v<std::remove_cvref_t<decltype(result)>> == sizeof...(Is)) {
      [&]<std::size_t... Ks>(std::index_sequence<Ks...>) { (send_gradient(name, Ks, std::get<Ks>(result), std::get<Ks>(intos)), ...); }(std::index_sequence_for<Is...>{});
    }
  } else {
    static_assert(sizeof...(Is) == 1,
                  "situ::autograd::apply: backward_returns_as_many_gradients_as_there_are_tensor_arguments: a std::tuple with one for each, autograd::none where there is none");
    send_gradient(name, 0, result, std::get<0>(intos));
  }
}

/// The operation itself, when its outputs have nodes of their own: it waits for their gradients, and calls the backward once.
template <class Op, class Outputs, class... As>
struct Operation;
template <class Op, class... Ts, class... Ds, class... As>
struct Operation<Op, std::tuple<Tensor<Ts, Ds>...>, As...> final : Node {
  static constexpr int count = (0 + ... + static_cast<int>(differentiable<As>));
  Node* edges[count];
  autograd::Context context;
  std::tuple<Tensor<Ts, Ds>...> gradients;
  Shape shapes[sizeof...(Ts)];

  explicit Operation(As const&... arguments) : edges{} {
    name = node_name<Op>();
    requires_grad = true;
    inputs = edges;
    input_count = count;
    (check_view(arguments), ...);
    int k = 0;
    (connect(k, arguments), ...);
  }
  ~Operation() override { drop_inputs(*this); }

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
    context.clear();
    drop_inputs(*this);
  }
  void backward(Flow& flow) override {
    OperationName const guard(name);
    if (flow.creates_graph()) fail<GradientError>("grad: ", name, " has no second derivative here; call grad without create_graph");
    int k = 0;
    auto const into = [&]<class A>(std::type_identity<A>) {
      if constexpr (differentiable<A>) return std::tuple(Into<value_of<A>, device_of<A>>(flow, edges[k++]));
      else if constexpr (is_tensor_argument<A>) return std::tuple(IntoNothing{});
      else return std::tuple();
    };
    std::tuple<decltype(into(std::type_identity<As>{}))...> const all{into(std::type_identity<As>{})...};  // in their order, because they stand in braces
    auto const intos = std::apply([](auto const&... each) { return std::tuple_cat(each...); }, all);
    [&]<std::size_t... Ks>(std::index_sequence<Ks...>) {
      (fill<Ks>(), ...);
      run_operation_backward<Op>(std::type_identity<std::tuple<As...>>{}, context, name, intos, std::as_const(std::get<Ks>(gradients))...);
    }(std::index_sequence_for<Ts...>{});
  }

 private:
  template <class A>
  void connect(int& k, A const& argument) {
    if constexpr (differentiable<A>) {
      auto* const state = argument.state();
      if (state->requires_grad) {
        edges[k] = state;
        count_up(state->references);
        if (state->depth >= depth) depth = depth_beyond(*state);
      }
      ++k;
    }
  }
  /// An output that was not used has the gradient 0.
  template <std::size_t K>
  void fill() {
    using G = std::tuple_element_t<K, decltype(gradients)>;
    if (!std::get<K>(gradients).body()) std::get<K>(gradients) = zeros<value_of<G>>(shapes[K], device_of<G>{});
  }
};

/// A node that is being made.
template <class N>
struct HeldNode {
  N* node;
  ~HeldNode() { drop(node); }
};

/// An output of an operation.
template <class T, class D, class Op, std::size_t K>
struct OutputOf final : State<T, D> {
  Node* edge[1];
  OutputOf(Tensor<T, D>&& output, Op* operation) : State<T, D>(std::move(output)), edge{operation} {
    count_up(operation->references);
    this->name = operation->name;
    this->inputs = edge;
    this->input_count = 1;
    this->requires_grad = true;
    this->depth = operation->depth + 1;
  }
  ~OutputOf() override { drop_inputs(*this); }
  void backward(Flow& flow) override {
    this->keep_retained(flow);
    if (flow.wants(edge[0])) static_cast<Op*>(edge[0])->template take<K>(flow, this->incoming);
  }
  void release() noexcept override {
    this->released = true;
    drop_inputs(*this);
  }
};

/// The floating outputs, which are recorded, among those of a forward.
template <class Y>
inline constexpr bool is_recorded_output = floating<value_of<Y>>;
template <class... Ys>
auto recorded_outputs(std::tuple<Ys...> const&) {
  auto const one = []<class Y>(std::type_identity<Y>) {
    if constexpr (is_recorded_output<Y>) return std::type_identity<std::tuple<Y>>{};
    else return std::type_identity<std::tuple<>>{};
  };
  return std::type_identity<decltype(std::tuple_cat(std::declval<typename decltype(one(std::type_identity<Ys>{}))::type>()...))>{};
}
/// The place of output K among those.
template <std::size_t K, class... Ys>
constexpr std::size_t recorded_place(std::type_identity<std::tuple<Ys...>>) {
  int k = 0;
  std::size_t place = 0;
  ((place += k++ < static_cast<int>(K) && is_recorded_output<Ys> ? 1u : 0u), ...);
  return place;
}

template <class Operation, class Y>
auto leaf_or_tensor(Y const& y) {
  if constexpr (is_recorded_output<Y>) return Variable<value_of<Y>, device_of<Y>>(y, false);
  else return y;
}

/// Runs the forward, and records what it returns. Arguments are Variables, or constants.
template <class Op, class... As>
auto apply_operation(As const&... arguments) {
  auto const wants = [](auto const& argument) {
    if constexpr (differentiable<decltype(argument)>) return records_gradients && argument.requires_grad();
    else return false;
  };
  bool const records = (wants(arguments) || ...);
  uint64_t needed = 0;
  int number = 0;
  auto const note = [&](auto const& argument) {
    if constexpr (is_tensor_argument<decltype(argument)>) needed |= wants(argument) ? uint64_t{1} << number++ : (++number, uint64_t{0});
  };
  (note(arguments), ...);
  auto const run = [&](autograd::Context& context) {
    no_grad const guard;
    context.set_needed(needed);
    auto const result = Op::forward(context, as_tensor(arguments)...);
    if constexpr (expression<decltype(result)>) {
      return std::tuple(evaluated(result));
    } else {
      static_assert(requires { std::tuple_size<std::remove_cvref_t<decltype(result)>>::value; },
                    "situ::autograd::apply: forward returns a tensor or an expression, or a std::tuple of them");
      return std::apply([](auto const&... each) { return std::tuple(evaluated(each)...); }, result);
    }
  };
  autograd::Context unused;
  using Outputs = decltype(run(unused));
  using Floats = typename decltype(recorded_outputs(std::declval<Outputs>()))::type;
  constexpr bool usable = []<class... Ys>(std::type_identity<std::tuple<Ys...>>) { return has_backward<Op, Ys...>; }(std::type_identity<Floats>{});
  static_assert(usable, "situ::autograd::apply: this_operation_has_no_backward: give it `static auto backward(auto& ctx, gradients...)`, with one gradient for each "
                        "floating output of forward");
  if constexpr (usable) {
    auto const finish = []<class... Rs>(std::tuple<Rs...>&& results) {
      if constexpr (sizeof...(Rs) == 1) return std::get<0>(std::move(results));
      else return std::tuple<Rs...>(std::move(results));
    };
    if (!records) {
      Outputs const outputs = run(unused);
      return finish(std::apply([](auto const&... each) { return std::tuple(leaf_or_tensor<Op>(each)...); }, outputs));
    }
    using Made = Operation<Op, Floats, As...>;
    HeldNode<Made> const held{new Made(arguments...)};
    Made* const node = held.node;
    Outputs const outputs = run(node->context);
    return [&]<std::size_t... Ks>(std::index_sequence<Ks...>) {
      auto const record_output = [&]<std::size_t K>(std::integral_constant<std::size_t, K>) {
        auto const& y = std::get<K>(outputs);
        using Y = std::remove_cvref_t<decltype(y)>;
        if constexpr (is_recorded_output<Y>) {
          constexpr std::size_t place = recorded_place<K>(std::type_identity<Outputs>{});
          node->shapes[place] = y.shape();
          return noted_view(Variable<value_of<Y>, device_of<Y>>::adopt(new OutputOf<value_of<Y>, device_of<Y>, Made, place>(Y(y), node)), arguments...);
        } else {
          return y;
        }
      };
      return finish(std::tuple(record_output(std::integral_constant<std::size_t, Ks>{})...));
    }(std::make_index_sequence<std::tuple_size_v<Outputs>>{});
  }
}

/// The same without a Variable among the arguments: nothing but the forward.
template <class Op, class... As>
auto run_operation(As const&... arguments) {
  autograd::Context context;
  auto const result = Op::forward(context, arguments...);
  if constexpr (expression<decltype(result)>) return evaluated(result);
  else return std::apply([](auto const&... each) { return std::tuple(evaluated(each)...); }, result);
}

}  // namespace detail

namespace autograd {

/// Runs the operation Op: a struct with
///
///     static auto forward(auto& ctx, arguments...)   that returns a tensor, an expression, or a std::tuple of them
///     static auto backward(auto& ctx, g...)          that returns the gradient of the tensor argument, or a std::tuple with one for each
///
/// (`autograd::Context& ctx` will do as well.) forward gets the value of a Variable or of a formula with Variables, as a Tensor, and other
/// arguments as they are; nothing in it is recorded. What ctx.save(...) keeps, backward reads as ctx.saved. backward gets the gradients of the
/// floating outputs (0 for one that was not used), and returns one gradient for each argument that is a tensor, constants too:
/// autograd::none where there is none. It may return autograd::none for the other arguments as well.
///
/// Gives a Variable for each floating output, and a Tensor for others; Tensors where no argument is a Variable. The node's name is
/// `Op::name`, or the name of the type.
/// Throws    GradientError from a backward pass when a gradient has another shape than its argument, or when a tensor that was saved was
///           written in place.
template <class Op, class... As>
auto apply(As const&... arguments) {
  static_assert(detail::has_forward<Op, As...>,
                "situ::autograd::apply: this_operation_has_no_forward: give it `static auto forward(auto& ctx, arguments...)` that takes these arguments, Variables as Tensors");
  if constexpr (detail::has_forward<Op, As...>) {
    if constexpr ((differentiable<As> || ...)) return detail::apply_operation<Op>(detail::as_input(arguments)...);
    else return detail::run_operation<Op>(arguments...);
  }
}

}  // namespace autograd
}  // namespace situ::inline SITU_ABI
