/// Adam, and AdamW, whose weight decay does not pass through the moments.
#pragma once

#include <situ/optim/optimizer.hpp>

#if defined(__CUDACC__)
#pragma nv_diagnostic push
#pragma nv_diag_suppress 20011, 20012, 20013, 20014, 20015
#endif

namespace situ::inline SITU_ABI {
namespace optim {

/// The shares of the past in the averages of the gradient and of its square.
struct Betas {
  double first = 0.9, second = 0.999;
};

struct AdamOptions {
  double lr = 1e-3;
  Betas betas = {};
  double eps = 1e-8;
  double weight_decay = 0;
  bool amsgrad = false;
  bool maximize = false;
  bool master_weights = false;  ///< of float16 and bfloat16 parameters
};
struct AdamWOptions {
  double lr = 1e-3;
  Betas betas = {};
  double eps = 1e-8;
  double weight_decay = 1e-2;
  bool amsgrad = false;
  bool maximize = false;
  bool master_weights = false;  ///< of float16 and bfloat16 parameters
};

}  // namespace optim

namespace detail {

template <class T>
struct AdamUpdate {
  using element = T;
  using C = compute_t<T>;
  C sign, decay, keep, beta1, rest1, beta2, rest2, root_scale, eps, step_size;
  bool amsgrad;

  template <class Cell>
  SITU_HOST_DEVICE SITU_INLINE void operator()(Cell const& at) const {
    using X = typename Cell::number;
    X const p = at.parameter();
    X const g = decayed_gradient(at, p, sign, decay);
    X const m = at.state(0) * beta1 + g * rest1;
    X v = at.state(1) * beta2 + g * g * rest2;
    at.set_state(0, m);
    at.set_state(1, v);
    if (amsgrad) {
      v = math::maximum(at.state(2), v);
      at.set_state(2, v);
    }
    at.set_parameter(p * keep - m * step_size / (math::sqrt(v) * root_scale + eps));
  }
};

template <class O, bool Decoupled>
struct AdamRules {
  using Options = O;
  static constexpr char const* name = Decoupled ? "AdamW" : "Adam";
  static constexpr int states = 3;
  static constexpr char const* state_names[] = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
  static constexpr char const* momentum_name = "beta1";

  static void check(Options const& o) {
    check_option(name, "lr", o.lr);
    check_option(name, "betas.first", o.betas.first, 0, 1);
    check_option(name, "betas.second", o.betas.second, 0, 1);
    check_option(name, "eps", o.eps);
    check_option(name, "weight_decay", o.weight_decay);
  }
  static bool has_state(Options const& o, int k) { return k < 2 || o.amsgrad; }
  static double initial_state(Options const&) { return 0; }
  static bool counts_steps(Options const&) { return true; }
  static double* momentum(Options& o) { return &o.betas.first; }

  template <class T>
  static AdamUpdate<T> update(Options const& o, int64_t step, double factor) {
    using C = compute_t<T>;
    double const count = static_cast<double>(step);
    double const correction1 = 1 - SITU_LIBM(pow)(o.betas.first, count), correction2 = 1 - SITU_LIBM(pow)(o.betas.second, count);
    AdamUpdate<T> u;
    u.sign = static_cast<C>(o.maximize ? -factor : factor);
    u.decay = static_cast<C>(Decoupled ? 0 : o.weight_decay);
    u.keep = static_cast<C>(Decoupled ? 1 - o.lr * o.weight_decay : 1);
    u.beta1 = static_cast<C>(o.betas.first), u.rest1 = static_cast<C>(1 - o.betas.first);
    u.beta2 = static_cast<C>(o.betas.second), u.rest2 = static_cast<C>(1 - o.betas.second);
    u.root_scale = static_cast<C>(1 / SITU_LIBM(sqrt)(correction2));
    u.eps = static_cast<C>(o.eps);
    u.step_size = static_cast<C>(o.lr / correction1);
    u.amsgrad = o.amsgrad;
    return u;
  }
};
using AdamRule = AdamRules<optim::AdamOptions, false>;
using AdamWRule = AdamRules<optim::AdamWOptions, true>;

}  // namespace detail

namespace optim {

/// Adam: steps of about lr for each element, by running averages of its gradient and of the gradient's square.
///
///     g = ∇ + weight_decay p        ∇ with the other sign where `maximize`
///     m = β₁ m + (1 − β₁) g,   v = β₂ v + (1 − β₂) g²
///     p = p − lr m̂ / (√v̂ + eps),   m̂ = m / (1 − β₁ᵗ),  v̂ = v / (1 − β₂ᵗ);  with amsgrad, the greatest v so far
///
/// State     step t, exp_avg m, exp_avg_sq v, and max_exp_avg_sq with amsgrad.
/// Throws    Error for options out of range, with the value.
/// Cost      4 numbers read and 3 written for each element, once; the powers of β are taken on the host, in double.
/// Source    Kingma & Ba 2015; Reddi, Kale & Kumar 2018; in the form of torch.optim.Adam.
SITU_OPTIMIZER(Adam, detail::AdamRule, AdamOptions)

/// Adam whose weight decay shrinks the parameters themselves:
///
///     p = (1 − lr weight_decay) p − lr m̂ / (√v̂ + eps),   with g = ∇
///
/// Otherwise as Adam; weight_decay is 0.01 unless it is given.
/// Source    Loshchilov & Hutter 2019, in the form of torch.optim.AdamW.
SITU_OPTIMIZER(AdamW, detail::AdamWRule, AdamWOptions)

}  // namespace optim
}  // namespace situ::inline SITU_ABI

#if defined(__CUDACC__)
#pragma nv_diagnostic pop
#endif
