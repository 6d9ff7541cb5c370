/// Schedules: learning rates as functions of how often step() was called.
///
///     optim::StepLR schedule{optimizer, {.step_size = 10, .gamma = 0.5}};
///     for (…) { train(); schedule.step(); }
///     schedule.lr();                                            // of group 0, as the optimiser's next step will use it
///
///     optim::CosineAnnealingLR cosine{optimizer, {.T_max = 90}};
///     optim::LinearWarmup schedule{optimizer, {.total_iters = 10}, cosine};   // ten steps of warm-up, then the cosine from its start
///
/// With t the number of calls of step(), and base the learning rate that a group had when the schedule was made, each is the closed form of the
/// schedule of torch.optim.lr_scheduler of the same name; so a schedule goes on after loading from t alone. A schedule is valid for the groups that
/// the optimiser has when it is made. It shares their learning rates, and does not hold the optimiser itself.
#pragma once

#include <situ/optim/optimizer.hpp>

namespace situ::inline SITU_ABI {
namespace optim {

/// What all schedules share.
class Schedule {
 public:
  using situ_has_state = void;
  /// The learning rate of a group, as it is now.
  double lr(int group = 0) const {
    if (group < 0 || group >= groups()) detail::fail<IndexError>("lr: there is no group ", group, ": this schedule is for ", groups(), groups() == 1 ? " group" : " groups");
    return rates_.lr[static_cast<std::size_t>(group)].data()[0];
  }
  int groups() const { return static_cast<int>(rates_.lr.size()); }
  /// How often step() was called.
  int64_t last_epoch() const { return position_.value(); }

  template <class F>
  void visit_state(F const& f, std::string const& path = {}) {
    f(path + "last_epoch", position_);
    f(path + "base_lrs", base_);
  }
  template <class F>
  void visit_state(F const& f, std::string const& path = {}) const {
    f(path + "last_epoch", position_);
    f(path + "base_lrs", base_);
  }

 protected:
  explicit Schedule(detail::Rates rates) : rates_(std::move(rates)), base_(Tensor<double>::uninitialized({groups()})) {
    for (int k = 0; k < groups(); ++k) base_.data()[k] = lr(k);
  }
  double base(int group) const { return base_.data()[group]; }
  void set_base(int group, double lr) { base_.data()[group] = lr; }
  void set_lr(int group, double lr) { rates_.lr[static_cast<std::size_t>(group)].data()[0] = lr; }
  void set_momentum(double momentum) {
    for (Tensor<double>& each : rates_.momentum) each.data()[0] = momentum;
  }
  bool has_momentum() const { return !rates_.momentum.empty(); }
  void set_position(int64_t t) { position_.set(t); }
  /// Goes to t: f(base, group) gives the learning rate. Throws Error for one that is no number, and for a t below 0; nothing has changed then.
  template <class F>
  void go_to(int64_t t, F const& f) {
    if (t < 0) detail::fail<Error>("go_to: step ", t, " was asked for; steps count from 0");
    std::vector<double> rates;
    for (int k = 0; k < groups(); ++k) {
      rates.push_back(f(base(k), k));
      if (!(rates.back() - rates.back() == 0)) detail::fail<Error>("at step ", t, " of the schedule the learning rate of group ", k, " would be ", rates.back(), "; it must be a finite number");
    }
    for (int k = 0; k < groups(); ++k) set_lr(k, rates[static_cast<std::size_t>(k)]);
    set_position(t);
  }

 private:
  detail::Rates rates_;
  Tensor<double> base_;
  nn::Counter position_;
};

struct StepLROptions {
  int64_t step_size = 1;
  double gamma = 0.1;
};
/// base γ^⌊t / step_size⌋
class StepLR : public Schedule {
 public:
  template <any_optimizer O>
  StepLR(O const& optimizer, StepLROptions const& options) : Schedule(optimizer.rates()), options_(options) {
    if (options.step_size < 1) detail::fail<Error>("StepLR: step_size is ", options.step_size, "; it must be at least 1");
    detail::check_option("StepLR", "gamma", options.gamma);
    go_to(0);
  }
  void step() { go_to(last_epoch() + 1); }
  void go_to(int64_t t) {
    Schedule::go_to(t, [&](double base, int) { return base * SITU_LIBM(pow)(options_.gamma, static_cast<double>(t / options_.step_size)); });
  }

 private:
  StepLROptions options_;
};

struct MultiStepLROptions {
  std::vector<int64_t> milestones;
  double gamma = 0.1;
};
/// base γ^(the number of milestones up to t)
class MultiStepLR : public Schedule {
 public:
  template <any_optimizer O>
  MultiStepLR(O const& optimizer, MultiStepLROptions const& options) : Schedule(optimizer.rates()), options_(options) {
    detail::check_option("MultiStepLR", "gamma", options.gamma);
    go_to(0);
  }
  void step() { go_to(last_epoch() + 1); }
  void go_to(int64_t t) {
    int passed = 0;
    for (int64_t milestone : options_.milestones) passed += milestone <= t;
    Schedule::go_to(t, [&](double base, int) { return base * SITU_LIBM(pow)(options_.gamma, static_cast<double>(passed)); });
  }

 private:
  MultiStepLROptions options_;
};

struct ExponentialLROptions {
  double gamma = 0.1;
};
/// base γᵗ
class ExponentialLR : public Schedule {
 public:
  template <any_optimizer O>
  ExponentialLR(O const& optimizer, ExponentialLROptions const& options) : Schedule(optimizer.rates()), options_(options) {
    detail::check_option("ExponentialLR", "gamma", options.gamma);
    go_to(0);
  }
  void step() { go_to(last_epoch() + 1); }
  void go_to(int64_t t) {
    Schedule::go_to(t, [&](double base, int) { return base * SITU_LIBM(pow)(options_.gamma, static_cast<double>(t)); });
  }

 private:
  ExponentialLROptions options_;
};

struct CosineAnnealingLROptions {
  int64_t T_max = 1;
  double eta_min = 0;
};
/// eta_min + (base − eta_min) (1 + cos(π t / T_max)) / 2
/// Source    Loshchilov & Hutter 2017.
class CosineAnnealingLR : public Schedule {
 public:
  template <any_optimizer O>
  CosineAnnealingLR(O const& optimizer, CosineAnnealingLROptions const& options) : Schedule(optimizer.rates()), options_(options) {
    if (options.T_max < 1) detail::fail<Error>("CosineAnnealingLR: T_max is ", options.T_max, "; it must be at least 1");
    detail::check_option("CosineAnnealingLR", "eta_min", options.eta_min);
    go_to(0);
  }
  void step() { go_to(last_epoch() + 1); }
  void go_to(int64_t t) {
    double const share = (1 + SITU_LIBM(cos)(3.14159265358979323846 * static_cast<double>(t) / static_cast<double>(options_.T_max))) / 2;
    Schedule::go_to(t, [&](double base, int) { return options_.eta_min + (base - options_.eta_min) * share; });
  }

 private:
  CosineAnnealingLROptions options_;
};

enum class anneal { cos, linear };
struct OneCycleLROptions {
  double max_lr = 0;
  int64_t total_steps = 0;
  double pct_start = 0.3;
  anneal anneal_strategy = anneal::cos;
  bool cycle_momentum = true;  ///< the first β of Adam and AdamW
  double base_momentum = 0.85;
  double max_momentum = 0.95;
  double div_factor = 25;
  double final_div_factor = 1e4;
  bool three_phase = false;
};
/// From max_lr / div_factor up to max_lr in the first pct_start of all steps, then down to (max_lr / div_factor) / final_div_factor; momentum the other way.
/// Throws    Error for options out of range, where momentum is to be cycled and there is none, and at more than total_steps steps.
/// Source    Smith & Topin 2019, in the form of torch.optim.lr_scheduler.OneCycleLR.
class OneCycleLR : public Schedule {
 public:
  template <any_optimizer O>
  OneCycleLR(O const& optimizer, OneCycleLROptions const& options) : Schedule(optimizer.rates()), options_(options) {
    detail::check_option("OneCycleLR", "max_lr", options.max_lr);
    if (options.total_steps < 1) detail::fail<Error>("OneCycleLR: total_steps is ", options.total_steps, "; it must be at least 1");
    if (!(options.pct_start >= 0 && options.pct_start <= 1)) detail::fail<Error>("OneCycleLR: pct_start is ", options.pct_start, "; it must be between 0 and 1");
    if (!(options.div_factor > 0)) detail::fail<Error>("OneCycleLR: div_factor is ", options.div_factor, "; it must be greater than 0");
    if (!(options.final_div_factor > 0)) detail::fail<Error>("OneCycleLR: final_div_factor is ", options.final_div_factor, "; it must be greater than 0");
    if (options.cycle_momentum && !has_momentum()) {
      detail::fail<Error>("OneCycleLR: this optimizer has no momentum to cycle; pass .cycle_momentum = false");
    }
    for (int k = 0; k < groups(); ++k) set_base(k, options.max_lr / options.div_factor);
    go_to(0);
  }
  void step() { go_to(last_epoch() + 1); }
  void go_to(int64_t t) {
    OneCycleLROptions const& o = options_;
    if (t > o.total_steps) detail::fail<Error>("OneCycleLR: step ", t, " was asked for, but total_steps is ", o.total_steps);
    double const total = static_cast<double>(o.total_steps), low = o.max_lr / o.div_factor, last = low / o.final_div_factor;
    struct Phase {
      double end, lr_from, lr_to, momentum_from, momentum_to;
    };
    double const up = o.pct_start * total - 1;
    Phase const two[] = {{up, low, o.max_lr, o.max_momentum, o.base_momentum}, {total - 1, o.max_lr, last, o.base_momentum, o.max_momentum}};
    Phase const three[] = {{up, low, o.max_lr, o.max_momentum, o.base_momentum},
                           {2 * o.pct_start * total - 2, o.max_lr, low, o.base_momentum, o.max_momentum},
                           {total - 1, low, last, o.max_momentum, o.max_momentum}};
    Phase const* phase = o.three_phase ? three : two;
    Phase const* const final_phase = o.three_phase ? three + 2 : two + 1;
    double begin = 0;
    double const at = static_cast<double>(t);
    for (; phase < final_phase && at > phase->end; ++phase) begin = phase->end;
    double const share = phase->end == begin ? 1 : (at - begin) / (phase->end - begin);
    auto const between = [&](double from, double to) {
      if (o.anneal_strategy == anneal::linear) return (to - from) * share + from;
      return to + (from - to) / 2 * (SITU_LIBM(cos)(3.14159265358979323846 * share) + 1);
    };
    Schedule::go_to(t, [&](double, int) { return between(phase->lr_from, phase->lr_to); });
    if (o.cycle_momentum) set_momentum(between(phase->momentum_from, phase->momentum_to));
  }

 private:
  OneCycleLROptions options_;
};

/// base f(t), or base f(t, group)
template <class F>
class LambdaLR : public Schedule {
 public:
  template <any_optimizer O>
  LambdaLR(O const& optimizer, F f) : Schedule(optimizer.rates()), f_(std::move(f)) {
    go_to(0);
  }
  void step() { go_to(last_epoch() + 1); }
  void go_to(int64_t t) {
    Schedule::go_to(t, [&](double base, int group) {
      if constexpr (requires { f_(t, group); }) return base * static_cast<double>(f_(t, group));
      else return base * static_cast<double>(f_(t));
    });
  }

 private:
  F f_;
};
template <any_optimizer O, class F>
LambdaLR(O const&, F) -> LambdaLR<F>;

struct LinearWarmupOptions {
  double start_factor = 1. / 3;
  double end_factor = 1;
  int64_t total_iters = 5;
};
struct no_schedule {};
/// base (start_factor + (end_factor − start_factor) min(1, t / total_iters)); with another schedule behind it, that one from t = total_iters on, where
/// it begins at its own 0.
/// Source    LinearLR, and SequentialLR of it and another one.
template <class Then = no_schedule>
class LinearWarmup : public Schedule {
  static constexpr bool alone = std::is_same_v<Then, no_schedule>;

 public:
  template <any_optimizer O>
    requires alone
  LinearWarmup(O const& optimizer, LinearWarmupOptions const& options) : LinearWarmup(optimizer.rates(), options, Then{}) {}
  template <any_optimizer O>
  LinearWarmup(O const& optimizer, LinearWarmupOptions const& options, Then then) : LinearWarmup(optimizer.rates(), options, std::move(then)) {}

  void step() { go_to(last_epoch() + 1); }
  void go_to(int64_t t) {
    if constexpr (!alone) {
      if (t >= options_.total_iters) {
        then_.go_to(t - options_.total_iters);
        set_position(t);
        return;
      }
    }
    double const share = t >= options_.total_iters ? 1 : static_cast<double>(t) / static_cast<double>(options_.total_iters);
    Schedule::go_to(t, [&](double base, int) { return base * (options_.start_factor + (options_.end_factor - options_.start_factor) * share); });
  }

  template <class F>
  void visit_state(F const& f, std::string const& path = {}) {
    Schedule::visit_state(f, path);
    if constexpr (!alone) then_.visit_state(f, path + "then.");
  }
  template <class F>
  void visit_state(F const& f, std::string const& path = {}) const {
    Schedule::visit_state(f, path);
    if constexpr (!alone) then_.visit_state(f, path + "then.");
  }

 private:
  LinearWarmup(detail::Rates rates, LinearWarmupOptions const& options, Then then) : Schedule(std::move(rates)), options_(options), then_(std::move(then)) {
    if (!(options.start_factor > 0 && options.start_factor <= 1)) detail::fail<Error>("LinearWarmup: start_factor is ", options.start_factor, "; it must be greater than 0 and at most 1");
    if (!(options.end_factor >= 0 && options.end_factor <= 1)) detail::fail<Error>("LinearWarmup: end_factor is ", options.end_factor, "; it must be between 0 and 1");
    if (options.total_iters < 1) detail::fail<Error>("LinearWarmup: total_iters is ", options.total_iters, "; it must be at least 1");
    go_to(0);
  }
  LinearWarmupOptions options_;
  [[no_unique_address]] Then then_;
};
template <any_optimizer O>
LinearWarmup(O const&, LinearWarmupOptions) -> LinearWarmup<>;
template <any_optimizer O, std::derived_from<Schedule> Then>
LinearWarmup(O const&, LinearWarmupOptions, Then) -> LinearWarmup<Then>;

}  // namespace optim
}  // namespace situ::inline SITU_ABI
