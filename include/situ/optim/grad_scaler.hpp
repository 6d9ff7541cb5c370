/// GradScaler: losses scaled up, so that gradients of float16 do not vanish.
///
///     optim::GradScaler scaler;
///     scaler.scale(loss).backward();
///     scaler.unscale(optimizer);                           // only where gradients are to be clipped
///     optim::clip_grad_norm(net, 1.0);
///     scaler.step(optimizer);                              // skipped where a gradient is infinite or NaN
///     scaler.update();                                     // halves the scale then; doubles it after 2000 steps without
#pragma once

#include <situ/core/list.hpp>
#include <situ/optim/clip_grad.hpp>

namespace situ::inline SITU_ABI {
namespace optim {

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;
  bool enabled = true;  ///< false: everything passes as if there were no scaler
};

/// The scale of losses, found by trying: as torch.cuda.amp.GradScaler.
///
/// The check for infinities reads the gradients once, and waits for the device, once for each optimiser and step. Where unscale was not called, gradients are
/// unscaled within the optimiser's own pass, in the precision of its state; so parameters may be float16 themselves.
class GradScaler {
 public:
  using situ_has_state = void;

  /// Throws    Error for factors on the wrong side of 1, a scale or an interval that is not positive.
  [[gnu::cold]] explicit GradScaler(GradScalerOptions const& options = {}) : options_(options), scale_(detail::one_number(options.init_scale)) {
    auto const wrong = [](char const* option, double value, char const* what) { detail::fail_with<Error>({"GradScaler: ", option, " is ", value, "; it must be ", what}); };
    if (!(options.init_scale > 0)) wrong("init_scale", options.init_scale, "greater than 0");
    if (!(options.growth_factor > 1)) wrong("growth_factor", options.growth_factor, "greater than 1");
    if (!(options.backoff_factor > 0 && options.backoff_factor < 1)) wrong("backoff_factor", options.backoff_factor, "between 0 and 1");
    if (options.growth_interval < 1) wrong("growth_interval", static_cast<double>(options.growth_interval), "at least 1");
  }

  /// What losses are multiplied by.
  double get_scale() const { return options_.enabled ? scale_.data()[0] : 1; }
  /// The loss, or any formula, times the scale.
  template <any_formula E>
  auto scale(E const& loss) const {
    return loss * get_scale();
  }

  /// Divides the optimiser's gradients by the scale, in place, and notes whether one of them is infinite or NaN.
  /// Throws    Error when it was called since the last update(), or after the step.
  template <any_optimizer O>
  void unscale(O& optimizer) {
    if (!options_.enabled) return;
    Seen& seen = look_up(optimizer);
    if (seen.stepped) detail::fail_with<Error>({"GradScaler: unscale was called after step; call it before, or call update() first"});
    if (seen.unscaled) detail::fail_with<Error>({"GradScaler: unscale was called twice for this optimizer; call it once between two calls of update()"});
    auto const& parameters = optimizer.parameters();
    seen.finite = all_finite(parameters);
    seen.checked = seen.unscaled = true;
    using T = typename O::value_type;
    detail::sweep_gradients(parameters, detail::ClipUpdate<T>{static_cast<compute_t<T>>(1 / get_scale())}, "unscale");
  }

  /// The optimiser's step, unless a gradient is infinite or NaN. Whether it was made.
  /// Throws    Error when it was called since the last update().
  template <any_optimizer O>
  bool step(O& optimizer) {
    if (!options_.enabled) {
      optimizer.step();
      return true;
    }
    Seen& seen = look_up(optimizer);
    if (seen.stepped) detail::fail_with<Error>({"GradScaler: step was called twice for this optimizer; call update() after each step"});
    if (!seen.checked) {
      seen.finite = all_finite(optimizer.parameters());
      seen.checked = true;
    }
    seen.stepped = true;
    if (seen.finite) optimizer.step(seen.unscaled ? 1 : 1 / get_scale());
    return seen.finite;
  }

  /// Changes the scale: to be called at the end of each step of training.
  /// Throws    Error when no gradients were looked at since the last one.
  void update() {
    if (!options_.enabled) return;
    bool checked = false, finite = true;
    for (Seen const& seen : seen_) checked = checked || seen.checked, finite = finite && seen.finite;
    if (!checked) detail::fail_with<Error>({"GradScaler: update was called, but no gradients were looked at since the last one; call step(optimizer) before"});
    double& scale = scale_.data()[0];
    int64_t const growth = growth_tracker_.value() + 1;
    if (!finite) {
      scale *= options_.backoff_factor;
      growth_tracker_.set(0);
    } else if (growth == options_.growth_interval) {
      if (scale * options_.growth_factor < 3.4e38) scale *= options_.growth_factor;
      growth_tracker_.set(0);
    } else {
      growth_tracker_.set(growth);
    }
    seen_.clear();
  }

  template <class F>
  void visit_state(F const& f) {
    f(std::string("scale"), scale_);
    f(std::string("growth_tracker"), growth_tracker_);
  }
  template <class F>
  void visit_state(F const& f) const {
    f(std::string("scale"), scale_);
    f(std::string("growth_tracker"), growth_tracker_);
  }

 private:
  struct Seen {
    void const* optimizer;
    bool checked, finite, unscaled, stepped;
  };
  Seen& look_up(auto const& optimizer) {
    for (Seen& seen : seen_) {
      if (seen.optimizer == &optimizer) return seen;
    }
    seen_.push_back({&optimizer, false, true, false, false});
    return seen_.back();
  }
  template <class T, class D>
  static bool all_finite(std::vector<Variable<T, D>> const& parameters) {
    return math::isfinite(detail::gradient_norm<false>(parameters, 2 * detail::greatest_norm, 0, nullptr, "isfinite").item());
  }

  GradScalerOptions options_;
  Tensor<double> scale_;
  nn::Counter growth_tracker_;
  detail::List<Seen> seen_;
};

}  // namespace optim
}  // namespace situ::inline SITU_ABI
