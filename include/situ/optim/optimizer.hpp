/// What all optimisers share: groups of parameters with options of their own, state, and the step.
///
///     optim::Adam optimizer{net, {.lr = 1e-3f}};             // all parameters of a module,
///     optim::SGD sgd{{w, b}, {.lr = 0.1, .momentum = 0.9}};  // or these
///     sgd.add_param_group({head}, {.lr = 0.01, .momentum = 0.9});
///     loss.backward();
///     optimizer.step();
///     optimizer.zero_grad();
///
/// Formulas, names, defaults and the names of states are those of torch.optim. A step is one launch for up to 60 parameters, in which every element
/// of parameter, gradient and state is moved once; it allocates nothing, and waits for nothing.
///
/// *Parameters* that have no gradient are skipped, and their count of steps stays as it is. State is computed and kept in float for float16 and
/// bfloat16; with `.master_weights = true` the parameters too, and what the model sees are rounded copies of them
/// that each step writes anew: load or initialise parameters before the optimiser is made.
/// *Copies* of an optimiser share parameters, state and learning rates, as copies of a module do.
/// A step writes in place: a backward through what was recorded before it throws GradientError.
/// What a gpu::Graph captures replays the numbers of the step that was captured: capture forward and backward, and call step() outside.
#pragma once

#include <initializer_list>

#include <situ/autograd/state.hpp>
#include <situ/nn/module.hpp>
#include <situ/optim/cpu/sweep.hpp>
#include <situ/optim/cuda/sweep.hpp>

namespace situ::inline SITU_ABI {
namespace error {
template <class Rate>
struct a_learning_rate_is_set_by_set_lr {};
}  // namespace error

namespace detail {

/// Throws unless a number is in [least, below).
[[gnu::cold]] inline void check_option(char const* who, char const* option, double value, double least = 0, double below = 1.7976931348623157e308) {
  if (value >= least && value < below) return;
  if (below > greatest_norm) fail_with<Error>({who, ": ", option, " is ", value, "; it must be a number that is at least ", least});
  fail_with<Error>({who, ": ", option, " is ", value, "; it must be at least ", least, " and less than ", below});
}

/// The learning rates of an optimiser's groups, and its momenta where it has some, shared with schedules.
struct Rates {
  std::vector<Tensor<double>> lr, momentum;
};
inline Tensor<double> one_number(double value) {
  Tensor<double> result = Tensor<double>::uninitialized({});
  result.data()[0] = value;
  return result;
}

/// Tensors for one launch after the other: whenever the table is full.
template <class D, class Work>
struct Launches {
  Work work;
  template <class Spare>
  void launch_if_full(Spare const& done) {
    if (work.spans.count == sweep_room) launch(done);
  }
  template <class Spare>
  void launch(Spare const& done) {
    if (work.spans.chunks() > 0) launch_sweep<D>(typename device_traits<D>::kernels{}, work);
    done(work.spans.chunks());
    work.spans.count = 0;
    work.spans.vectors = true;
  }
};

/// The elements of a tensor that is about to be written in place.
template <class T, class D>
T* written_data(Tensor<T, D>& x, char const* who) {
  T* const data = x.data();
  if (StorageHead* const head = x.body() ? x.body()->storage.head() : nullptr) head->note_write(who);
  return data;
}

namespace parts {  // bases of public types; see expr/node.hpp

/// A Rule offers
///     Options, with lr                                   template <class T> Update(options, step, factor): a rule of a sweep
///     name, check(options)                               states, state_names, has_state(options, k), initial_state(options)
///     counts_steps(options)                              momentum(options): what schedules may change, or null
template <class Rule, class T, class D>
class Optimizer {
 public:
  using Options = typename Rule::Options;
  using parameter_type = Variable<T, D>;
  using value_type = T;
  using device_type = D;
  using situ_has_state = void;

  /// Throws    Error for options out of range; for no parameters, results of operations, and a parameter that stands in a group already.
  explicit Optimizer(std::vector<Variable<T, D>> const& parameters, Options const& options = {}) { add_param_group(parameters, options); }

  /// Parameters with options of their own: those that are not named are the defaults, not the first group's. To change one of those, copy them:
  /// `auto slower = sgd.options(); slower.lr = 0.01; sgd.add_param_group(net.head, slower);`.
  /// Throws    what the constructors throw; nothing has been added then.
  [[gnu::cold]] void add_param_group(std::vector<Variable<T, D>> const& parameters, Options const& options) {
    Rule::check(options);
    if (parameters.empty()) fail_with<Error>({Rule::name, ": there are no parameters to optimise; give a module or a list that has some"});
    for (std::size_t k = 0; k < parameters.size(); ++k) check(parameters, k);
    List<Variable<T, D>> all;
    for (Variable<T, D> const& v : values_) all.push_back(v);
    for (Variable<T, D> const& v : parameters) all.push_back(v);
    std::vector<Variable<T, D>> values(std::as_const(all).begin(), std::as_const(all).end());
    Options own = options;
    double const* const momentum = Rule::momentum(own);
    groups_.push_back({options, one_number(options.lr), momentum ? one_number(*momentum) : Tensor<double>()});
    std::size_t const before = parameters_.size();
    try {
      parameters_.reserve(values.size());
      for (Variable<T, D> const& v : parameters) {
        parameters_.push_back({static_cast<int64_t>(groups_.size()) - 1, {}, {}, {}});
        if (v.requires_grad()) complete(parameters_.back(), *v.state(), options);
      }
    } catch (...) {  // nothing has been added then
      parameters_.truncate(before);
      groups_.pop_back();
      throw;
    }
    values_.swap(values);
  }
  template <any_module M>
  void add_param_group(M const& net, Options const& options) {
    add_param_group(situ::parameters<T>(net), options);
  }
  /// With the options of the first group.
  void add_param_group(std::vector<Variable<T, D>> const& parameters) { add_param_group(parameters, options()); }
  template <any_module M>
  void add_param_group(M const& net) {
    add_param_group(net, options());
  }

  /// Changes each parameter that has a gradient, by one launch for up to 60 of them.
  /// Throws    OutOfMemory where state is missing, LayoutError for a parameter that is a broadcast view; nothing has been changed then.
  void step() { step(1); }
  /// The same with gradients multiplied by a factor first, in the precision of the state: 1 / scale where the loss was scaled.
  void step(double gradient_factor) {
    take_over_schedules();
    for (std::size_t at = 0; at < parameters_.size(); ++at) {
      State<T, D> const& state = *values_[at].state();
      if (!state.has_grad) continue;
      complete(parameters_[at], state, groups_[static_cast<std::size_t>(parameters_[at].group)].options);
      if (SITU_UNLIKELY(state.value.layout().is_broadcast())) fail_broadcast_write(Rule::name, state.value.layout());
      if (SITU_UNLIKELY(state.value.storage_head() && state.value.storage_head()->read_only)) fail_read_only(Rule::name);
    }
    Launches<D, Sweep<Update>> launches;
    launches.work.operation = Rule::name;
    List<Tensor<T, D>> copies;  // of what is not contiguous; its results go back after the launch
    List<std::size_t> copied;
    std::size_t launched = 0, next = 0;  // those between are in the launch that is being put together; their steps count when it is made
    auto const finish = [&](int64_t) {
      for (; launched < next; ++launched) {
        Parameter const& p = parameters_[launched];
        bool const counts = values_[launched].state()->has_grad && Rule::counts_steps(groups_[static_cast<std::size_t>(p.group)].options);
        if (counts) ++*const_cast<int64_t*>(p.step.tensor().data());
      }
      for (std::size_t k = 0; k < copied.size(); ++k) values_[copied[k]].value().assign(copies[2 * k]);
      copies.clear();
      copied.clear();
    };
    int64_t group = -1, steps = -1;
    for (std::size_t at = 0; at < parameters_.size(); ++at) {
      Parameter& p = parameters_[at];
      State<T, D>& state = *values_[at].state();
      if (!state.has_grad) continue;
      int64_t const step = *p.step.tensor().data() + Rule::counts_steps(groups_[static_cast<std::size_t>(p.group)].options);
      if (p.group != group || step != steps) {
        if (launches.work.spans.count > 0) launches.launch(finish);
        group = p.group, steps = step;
        launches.work.rule = Rule::template update<T>(groups_[static_cast<std::size_t>(group)].options, steps, gradient_factor);
      }
      Span& span = launches.work.spans.add(state.value.size());
      if (SITU_LIKELY(state.value.is_contiguous() && state.grad.is_contiguous())) {
        span.data[sweep_parameter] = written_data(state.value, Rule::name);
        span.data[sweep_gradient] = const_cast<T*>(std::as_const(state.grad).data());
      } else {
        copied.push_back(at);
        copies.push_back(state.value.clone());
        copies.push_back(state.grad.contiguous());
        span.data[sweep_parameter] = copies[copies.size() - 2].data();
        span.data[sweep_gradient] = copies.back().data();
      }
      for (int k = 0; k < Rule::states; ++k) {
        if (p.states[k].size() > 0) span.data[sweep_state + k] = p.states[k].data();
      }
      if constexpr (is_small) {
        if (p.master.size() > 0) span.data[sweep_master] = p.master.data();
      }
      launches.work.spans.note_alignment();
      next = at + 1;
      launches.launch_if_full(finish);
    }
    if (launches.work.spans.count > 0) launches.launch(finish);
  }

  /// Forgets the gradients of all parameters.
  void zero_grad() {
    for (Variable<T, D>& v : values_) v.zero_grad();
  }

  int groups() const { return static_cast<int>(groups_.size()); }
  /// The options of a group as they are now, with what schedules have changed.
  Options options(int group = 0) const { return at(group).now(); }
  void set_options(int group, Options const& options) {
    Rule::check(options);
    Group& g = groups_[index(group)];
    Options own = g.options = options;
    g.lr.data()[0] = options.lr;
    if (double const* const momentum = Rule::momentum(own)) g.momentum.data()[0] = *momentum;
  }
  [[nodiscard]] double lr(int group = 0) const { return at(group).lr.data()[0]; }
  template <std::floating_point F, class Error = error::a_learning_rate_is_set_by_set_lr<F>>
  void lr(F) const = delete;
  /// Sets the learning rate of all groups, or of one.
  void set_lr(double lr) {
    check_option(Rule::name, "lr", lr);
    for (Group& g : groups_) g.lr.data()[0] = lr;
  }
  void set_lr(int group, double lr) {
    check_option(Rule::name, "lr", lr);
    groups_[index(group)].lr.data()[0] = lr;
  }

  /// Of all groups, in their order.
  std::vector<Variable<T, D>> const& parameters() const { return values_; }
  /// What schedules change; shared with this optimiser.
  [[gnu::cold]] Rates rates() const {
    Rates result;
    for (Group const& g : groups_) {
      result.lr.push_back(g.lr);
      if (g.momentum.size() > 0) result.momentum.push_back(g.momentum);
    }
    return result;
  }

  /// See for_each_state below.
  template <class F>
  void visit_state(F const& f) {
    visit(*this, f);
  }
  template <class F>
  void visit_state(F const& f) const {
    visit(*this, f);
  }

 private:
  using C = compute_t<T>;
  using Update = decltype(Rule::template update<T>(Options{}, 0, 0));
  static constexpr bool is_small = !std::is_same_v<T, C>;

  struct Parameter {
    int64_t group;
    nn::Counter step;
    Tensor<C, D> states[Rule::states];
    Tensor<C, D> master;
  };
  struct Group {
    Options options;
    Tensor<double> lr, momentum;
    /// With what schedules have changed.
    Options now() const {
      Options result = options;
      result.lr = lr.data()[0];
      if (double* const own = Rule::momentum(result)) *own = momentum.data()[0];
      return result;
    }
  };

  [[gnu::cold]] std::size_t index(int group) const {
    if (group < 0 || group >= groups()) fail_with<IndexError>({Rule::name, ": there is no group ", group, ": it has ", groups(), groups() == 1 ? " group" : " groups"});
    return static_cast<std::size_t>(group);
  }
  Group const& at(int group) const { return groups_[index(group)]; }

  [[gnu::cold]] void check(std::vector<Variable<T, D>> const& parameters, std::size_t k) const {
    if (!parameters[k].is_leaf()) {
      fail_with<Error>({Rule::name, ": parameter ", k, ", of shape ", parameters[k].shape(), ", is the result of ", parameters[k].grad_fn(), "; only leaves can be optimised"});
    }
    bool seen = false;
    for (std::size_t before = 0; before < k; ++before) seen = seen || parameters[before].state() == parameters[k].state();
    for (Variable<T, D> const& v : values_) seen = seen || v.state() == parameters[k].state();
    if (seen) fail_with<Error>({Rule::name, ": parameter ", k, ", of shape ", parameters[k].shape(), ", is given twice; a parameter belongs to one group"});
  }
  /// A schedule may have given a momentum where there was none: then there is state to keep, and steps to count.
  void take_over_schedules() {
    for (Group& g : groups_) g.options = g.now();
  }
  /// Makes the state that a parameter does not have yet.
  [[gnu::cold]] static void complete(Parameter& p, State<T, D> const& state, Options const& options) {
    if (state.value.size() == 0) return;
    for (int k = 0; k < Rule::states; ++k) {
      if (p.states[k].size() == 0 && Rule::has_state(options, k)) p.states[k] = full<C>(state.shape, static_cast<C>(Rule::initial_state(options)), D{});
    }
    if constexpr (is_small) {
      if (p.master.size() == 0 && options.master_weights) p.master = Tensor<C, D>(cast<C>(state.value));
    }
  }

  [[gnu::cold]] void complete_all() {
    take_over_schedules();
    for (std::size_t at = 0; at < parameters_.size(); ++at) {
      Parameter& p = parameters_[at];
      if (values_[at].requires_grad()) complete(p, *values_[at].state(), groups_[static_cast<std::size_t>(p.group)].options);
    }
  }

  template <class Self, class F>
  [[gnu::cold]] static void visit(Self& self, F const& f) {
    const_cast<Optimizer&>(self).complete_all();  // so that what is loaded into an optimiser that made no step is what was saved from one that did
    for (std::size_t at = 0; at < self.parameters_.size(); ++at) {
      auto& p = self.parameters_[at];
      if (Rule::counts_steps(self.groups_[static_cast<std::size_t>(p.group)].options)) f(message({at, ".step"}), p.step);
      for (int k = 0; k < Rule::states; ++k) {
        if (p.states[k].size() > 0) f(message({at, ".", Rule::state_names[k]}), p.states[k]);
      }
      if (p.master.size() > 0) f(message({at, ".master"}), p.master);
    }
    for (std::size_t at = 0; at < self.groups_.size(); ++at) {
      f(message({"groups.", at, ".lr"}), self.groups_[at].lr);
      if (self.groups_[at].momentum.size() > 0) f(message({"groups.", at, ".", Rule::momentum_name}), self.groups_[at].momentum);
    }
  }

  std::vector<Variable<T, D>> values_;
  List<Parameter> parameters_;  ///< the state of each
  List<Group> groups_;
};

}  // namespace parts
using parts::Optimizer;

}  // namespace detail

namespace optim {

/// Whether it is an optimiser, a schedule or a GradScaler: what has state for for_each_state.
template <class X>
concept has_state = requires { typename std::remove_cvref_t<X>::situ_has_state; };
/// Whether it has groups of parameters with learning rates.
template <class X>
concept any_optimizer = has_state<X> && requires(X const& x) { x.rates(); };

/// Calls f(name, x) for everything that training goes on from: x is a Tensor or an nn::Counter. Names are those of PyTorch's state_dict: "0.step",
/// "0.exp_avg" of parameter 0, counted through all groups, and "groups.0.lr". What is written to x in place is what the optimiser goes on with.
template <has_state X, class F>
void for_each_state(X& x, F const& f) {
  x.visit_state(f);
}

}  // namespace optim
using optim::for_each_state;

/// The class NAME<T, D> of a Rule, made from a module, a vector or a list of Variables, and options.
#define SITU_OPTIMIZER(NAME, RULE, OPTIONS)                                                                                      \
  template <class T = float, class D = Cpu>                                                                                      \
  class NAME : public ::situ::detail::Optimizer<RULE, T, D> {                                                                    \
   public:                                                                                                                       \
    using Base = ::situ::detail::Optimizer<RULE, T, D>;                                                                          \
    using Base::Base;                                                                                                            \
    template <any_module M>                                                                                                      \
    explicit NAME(M const& net, OPTIONS const& options = {}) : Base(::situ::parameters<T>(net), options) {}                      \
    template <class M, number X, class Error = error::options_are_named__as_in_SGD_of_net_and_lr_in_braces<X>>                   \
    NAME(M const&, X) = delete;                                                                                                  \
  };                                                                                                                             \
  template <any_module M>                                                                                                        \
  NAME(M const&, OPTIONS = {}) -> NAME<value_of<::situ::detail::parameter_type<M>>, device_of<::situ::detail::parameter_type<M>>>; \
  template <any_module M>                                                                                                        \
  NAME(M const&, number auto) -> NAME<value_of<::situ::detail::parameter_type<M>>, device_of<::situ::detail::parameter_type<M>>>; \
  template <class T, class D>                                                                                                    \
  NAME(std::vector<Variable<T, D>>, OPTIONS = {}) -> NAME<T, D>;                                                                 \
  template <class T, class D>                                                                                                    \
  NAME(std::initializer_list<Variable<T, D>>, OPTIONS = {}) -> NAME<T, D>;

}  // namespace situ::inline SITU_ABI
