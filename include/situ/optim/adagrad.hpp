/// Adagrad.
#pragma once

#include <situ/optim/optimizer.hpp>

#if defined(__CUDACC__)
#pragma nv_diagnostic push
#pragma nv_diag_suppress 20011, 20012, 20013, 20014, 20015
#endif

namespace situ::inline SITU_ABI {
namespace optim {

struct AdagradOptions {
  double lr = 1e-2;
  double lr_decay = 0;
  double weight_decay = 0;
  double initial_accumulator_value = 0;
  double eps = 1e-10;
  bool maximize = false;
  bool master_weights = false;  ///< of float16 and bfloat16 parameters
};

}  // namespace optim

namespace detail {

template <class T>
struct AdagradUpdate {
  using element = T;
  using C = compute_t<T>;
  C sign, decay, eps, lr;

  template <class Cell>
  SITU_HOST_DEVICE SITU_INLINE void operator()(Cell const& at) const {
    using X = typename Cell::number;
    X const p = at.parameter();
    X const g = decayed_gradient(at, p, sign, decay);
    X const sum = at.state(0) + g * g;
    at.set_state(0, sum);
    at.set_parameter(p - g * lr / (math::sqrt(sum) + eps));
  }
};

struct AdagradRule {
  using Options = optim::AdagradOptions;
  static constexpr char const* name = "Adagrad";
  static constexpr int states = 1;
  static constexpr char const* state_names[] = {"sum"};
  static constexpr char const* momentum_name = "";

  static void check(Options const& o) {
    check_option(name, "lr", o.lr);
    check_option(name, "lr_decay", o.lr_decay);
    check_option(name, "weight_decay", o.weight_decay);
    check_option(name, "initial_accumulator_value", o.initial_accumulator_value);
    check_option(name, "eps", o.eps);
  }
  static bool has_state(Options const&, int) { return true; }
  static double initial_state(Options const& o) { return o.initial_accumulator_value; }
  static bool counts_steps(Options const&) { return true; }
  static double* momentum(Options&) { return nullptr; }

  template <class T>
  static AdagradUpdate<T> update(Options const& o, int64_t step, double factor) {
    using C = compute_t<T>;
    AdagradUpdate<T> u;
    u.sign = static_cast<C>(o.maximize ? -factor : factor);
    u.decay = static_cast<C>(o.weight_decay);
    u.eps = static_cast<C>(o.eps);
    u.lr = static_cast<C>(o.lr / (1 + static_cast<double>(step - 1) * o.lr_decay));
    return u;
  }
};

}  // namespace detail

namespace optim {

/// Adagrad: the gradient over the root of the sum of its squares so far.
///
///     g = ∇ + weight_decay p        ∇ with the other sign where `maximize`
///     s = s + g²        from initial_accumulator_value on
///     p = p − lr / (1 + (t − 1) lr_decay) g / (√s + eps)
///
/// State     step t, sum s.
/// Throws    Error for options out of range, with the value.
/// Source    Duchi, Hazan & Singer 2011, in the form of torch.optim.Adagrad.
SITU_OPTIMIZER(Adagrad, detail::AdagradRule, AdagradOptions)

}  // namespace optim
}  // namespace situ::inline SITU_ABI

#if defined(__CUDACC__)
#pragma nv_diagnostic pop
#endif
