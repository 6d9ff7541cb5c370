/// Stochastic gradient descent.
#pragma once

#include <situ/optim/optimizer.hpp>

#if defined(__CUDACC__)
#pragma nv_diagnostic push
#pragma nv_diag_suppress 20011, 20012, 20013, 20014, 20015
#endif

namespace situ::inline SITU_ABI {
namespace optim {

struct SGDOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool maximize = false;
  bool master_weights = false;  ///< of float16 and bfloat16 parameters
};

}  // namespace optim

namespace detail {

template <class T>
struct SGDUpdate {
  using element = T;
  using C = compute_t<T>;
  C sign, decay, momentum, rest, lr;
  bool moves, nesterov;

  template <class Cell>
  SITU_HOST_DEVICE SITU_INLINE void operator()(Cell const& at) const {
    using X = typename Cell::number;
    X const p = at.parameter();
    X const g = decayed_gradient(at, p, sign, decay);
    X way = g;
    if (moves) {
      X const b = at.state(0) * momentum + g * rest;
      at.set_state(0, b);
      way = nesterov ? X(g + b * momentum) : b;
    }
    at.set_parameter(p - way * lr);
  }
};

struct SGDRule {
  using Options = optim::SGDOptions;
  static constexpr char const* name = "SGD";
  static constexpr int states = 1;
  static constexpr char const* state_names[] = {"momentum_buffer"};
  static constexpr char const* momentum_name = "momentum";

  static void check(Options const& o) {
    check_option(name, "lr", o.lr);
    check_option(name, "momentum", o.momentum);
    check_option(name, "weight_decay", o.weight_decay);
    if (o.nesterov && (o.momentum <= 0 || o.dampening != 0)) {
      fail<Error>(name, ": nesterov needs a momentum and no dampening: momentum is ", o.momentum, " and dampening ", o.dampening);
    }
  }
  static bool has_state(Options const& o, int) { return o.momentum != 0; }
  static double initial_state(Options const&) { return 0; }
  static bool counts_steps(Options const& o) { return o.momentum != 0; }
  static double* momentum(Options& o) { return &o.momentum; }

  /// The first step sets the buffer to the gradient, without dampening.
  template <class T>
  static SGDUpdate<T> update(Options const& o, int64_t step, double factor) {
    using C = compute_t<T>;
    SGDUpdate<T> u;
    u.sign = static_cast<C>(o.maximize ? -factor : factor);
    u.decay = static_cast<C>(o.weight_decay);
    u.moves = o.momentum != 0;
    u.nesterov = o.nesterov;
    u.momentum = static_cast<C>(o.momentum);
    u.rest = static_cast<C>(step <= 1 ? 1 : 1 - o.dampening);
    u.lr = static_cast<C>(o.lr);
    return u;
  }
};

}  // namespace detail

namespace optim {

/// Stochastic gradient descent, with momentum or Nesterov's.
///
///     g = ∇ + weight_decay p        ∇ with the other sign where `maximize`
///     b = momentum b + (1 − dampening) g        b = g in the first step
///     p = p − lr b        p = p − lr (g + momentum b) with Nesterov's;  p = p − lr g without momentum
///
/// State     momentum_buffer, where there is a momentum.
/// Throws    Error for options out of range, with the value.
/// Source    Sutskever, Martens, Dahl & Hinton 2013, in the form of torch.optim.SGD.
SITU_OPTIMIZER(SGD, detail::SGDRule, SGDOptions)

}  // namespace optim
}  // namespace situ::inline SITU_ABI

#if defined(__CUDACC__)
#pragma nv_diagnostic pop
#endif
