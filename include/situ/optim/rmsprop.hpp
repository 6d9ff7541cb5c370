/// RMSprop.
#pragma once

#include <situ/optim/optimizer.hpp>

#if defined(__CUDACC__)
#pragma nv_diagnostic push
#pragma nv_diag_suppress 20011, 20012, 20013, 20014, 20015
#endif

namespace situ::inline SITU_ABI {
namespace optim {

struct RMSpropOptions {
  double lr = 1e-2;
  double alpha = 0.99;
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum = 0;
  bool centered = false;
  bool maximize = false;
  bool master_weights = false;  ///< of float16 and bfloat16 parameters
};

}  // namespace optim

namespace detail {

template <class T>
struct RMSpropUpdate {
  using element = T;
  using C = compute_t<T>;
  C sign, decay, alpha, rest, eps, momentum, lr;
  bool centered, moves;

  template <class Cell>
  SITU_HOST_DEVICE SITU_INLINE void operator()(Cell const& at) const {
    using X = typename Cell::number;
    X const p = at.parameter();
    X const g = decayed_gradient(at, p, sign, decay);
    X const square = at.state(0) * alpha + g * g * rest;
    at.set_state(0, square);
    X variance = square;
    if (centered) {
      X const mean = at.state(2) * alpha + g * rest;
      at.set_state(2, mean);
      variance = square - mean * mean;
    }
    X way = g / (math::sqrt(variance) + eps);
    if (moves) {
      way = at.state(1) * momentum + way;
      at.set_state(1, way);
    }
    at.set_parameter(p - way * lr);
  }
};

struct RMSpropRule {
  using Options = optim::RMSpropOptions;
  static constexpr char const* name = "RMSprop";
  static constexpr int states = 3;
  static constexpr char const* state_names[] = {"square_avg", "momentum_buffer", "grad_avg"};
  static constexpr char const* momentum_name = "momentum";

  static void check(Options const& o) {
    check_option(name, "lr", o.lr);
    check_option(name, "alpha", o.alpha);
    check_option(name, "eps", o.eps);
    check_option(name, "weight_decay", o.weight_decay);
    check_option(name, "momentum", o.momentum);
  }
  static bool has_state(Options const& o, int k) { return k == 0 || (k == 1 ? o.momentum > 0 : o.centered); }
  static double initial_state(Options const&) { return 0; }
  static bool counts_steps(Options const&) { return true; }
  static double* momentum(Options& o) { return &o.momentum; }

  template <class T>
  static RMSpropUpdate<T> update(Options const& o, int64_t, double factor) {
    using C = compute_t<T>;
    RMSpropUpdate<T> u;
    u.sign = static_cast<C>(o.maximize ? -factor : factor);
    u.decay = static_cast<C>(o.weight_decay);
    u.alpha = static_cast<C>(o.alpha), u.rest = static_cast<C>(1 - o.alpha);
    u.eps = static_cast<C>(o.eps);
    u.momentum = static_cast<C>(o.momentum);
    u.lr = static_cast<C>(o.lr);
    u.centered = o.centered;
    u.moves = o.momentum > 0;
    return u;
  }
};

}  // namespace detail

namespace optim {

/// RMSprop: the gradient over the root of its running mean square.
///
///     g = ∇ + weight_decay p        ∇ with the other sign where `maximize`
///     v = α v + (1 − α) g²;  where `centered`, a = α a + (1 − α) g and v − a² stands for v below
///     p = p − lr g / (√v + eps);  with momentum, b = momentum b + g / (√v + eps) and p = p − lr b
///
/// State     step, square_avg v, momentum_buffer b, grad_avg a.
/// Throws    Error for options out of range, with the value.
/// Source    Tieleman & Hinton 2012; Graves 2013 (centered); in the form of torch.optim.RMSprop.
SITU_OPTIMIZER(RMSprop, detail::RMSpropRule, RMSpropOptions)

}  // namespace optim
}  // namespace situ::inline SITU_ABI

#if defined(__CUDACC__)
#pragma nv_diagnostic pop
#endif
