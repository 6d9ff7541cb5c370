/// Gradient clipping: by the norm of all gradients together, and by value.
#pragma once

#include <initializer_list>

#include <situ/optim/optimizer.hpp>

#if defined(__CUDACC__)
#pragma nv_diagnostic push
#pragma nv_diag_suppress 20011, 20012, 20013, 20014, 20015
#endif

namespace situ::inline SITU_ABI {
namespace detail {

/// Times a number, which may lie on the device, and into [-limit, limit]; NaN stays NaN. One rule for both, so that one kernel is compiled.
template <class T>
struct ClipUpdate {
  using element = T;
  using C = compute_t<T>;
  C by = C(1);
  C const* coefficient = nullptr;  ///< or null
  C limit = C(0);
  bool clamps = false;
  SITU_HOST_DEVICE bool begin() {
    if (coefficient) by = *coefficient;
    return clamps || by != C(1);
  }
  template <class Cell>
  SITU_HOST_DEVICE SITU_INLINE void operator()(Cell const& at) const {
    using X = typename Cell::number;
    X x = at.parameter() * by;
    if (clamps) x = math::maximum(math::minimum(x, X(limit)), X(-limit));
    at.set_parameter(x);
  }
};

/// The gradients that there are, launch by launch.
template <class T, class D>
class Gradients {
 public:
  Gradients(std::vector<Variable<T, D>> const& parameters, char const* name, bool writes) : parameters_(parameters), name_(name), writes_(writes) {}

  /// The next ones, as many as a launch takes; false where there are none left. What was written to copies is brought home before.
  SITU_NOINLINE bool next(Spans& spans) {
    for (std::size_t k = 0; writes_ && k < copies_.size(); k += 2) copies_[k].assign(copies_[k + 1]);
    copies_.clear();
    spans.count = 0;
    spans.vectors = true;
    for (; at_ < parameters_.size() && spans.count < sweep_room; ++at_) {
      State<T, D>& state = *parameters_[at_].state();
      if (!state.has_grad || state.grad.size() == 0) continue;
      Span& span = spans.add(state.grad.size());
      if (SITU_UNLIKELY(!state.grad.is_contiguous())) {
        copies_.push_back(state.grad);
        copies_.push_back(state.grad.clone());
        span.data[sweep_parameter] = copies_.back().data();
      } else {
        span.data[sweep_parameter] = writes_ ? written_data(state.grad, name_) : const_cast<T*>(std::as_const(state.grad).data());
      }
      spans.note_alignment();
    }
    return spans.count > 0;
  }

 private:
  std::vector<Variable<T, D>> const& parameters_;
  char const* name_;
  bool writes_;
  std::size_t at_ = 0;
  List<Tensor<T, D>> copies_;  ///< of what is not contiguous, each behind its gradient
};

/// Changes the gradients in place.
template <class Update, class T, class D>
void sweep_gradients(std::vector<Variable<T, D>> const& parameters, Update const& rule, char const* name) {
  Sweep<Update> work;
  work.rule = rule;
  work.operation = name;
  for (Gradients<T, D> gradients(parameters, name, true); gradients.next(work.spans);) launch_sweep<D>(typename device_traits<D>::kernels{}, work);
}

/// The p-norm of all gradients as one vector, and min(1, max_norm / (norm + 1e-6)) where a place is given for it. `Squares`: p is 2.
template <bool Squares, class T, class D>
Tensor<compute_t<T>, result_device_t<D>> gradient_norm(std::vector<Variable<T, D>> const& parameters, double p, double max_norm, compute_t<T>* coefficient, char const* name) {
  int64_t chunks = 0;
  for (Variable<T, D> const& v : parameters) {
    if (v.state()->has_grad) chunks += (v.state()->grad.size() + sweep_chunk - 1) / sweep_chunk;
  }
  auto result = Tensor<compute_t<T>, result_device_t<D>>::uninitialized({}, name);
  Temporary<D> const parts(static_cast<std::size_t>(chunks) * sizeof(double));
  std::conditional_t<Squares, SquareParts<T>, NormParts<T>> work;
  work.parts = static_cast<double*>(parts.get());
  work.p = p;
  work.operation = name;
  for (Gradients<T, D> gradients(parameters, name, false); gradients.next(work.spans); work.parts += work.spans.chunks()) {
    launch_sweep<D>(typename device_traits<D>::kernels{}, work);
  }
  launch_sweep<D>(typename device_traits<D>::kernels{}, NormsJoined<T>{static_cast<double const*>(parts.get()), chunks, p, max_norm, result.data(), coefficient, name});
  return result;
}

[[gnu::cold]] SITU_NOINLINE inline void check_clip_norm(double max_norm, double p) {
  if (!(p > 0)) fail_with<Error>({"clip_grad_norm: norm_type is ", p, "; it must be greater than 0, infinity for the greatest magnitude"});
  if (!(max_norm >= 0)) fail_with<Error>({"clip_grad_norm: max_norm is ", max_norm, "; it must be at least 0"});
}
[[gnu::cold]] SITU_NOINLINE inline void check_finite_norm(double norm) {
  if (math::isfinite(norm)) return;
  fail_with<Error>({"clip_grad_norm: the norm of the gradients is ", math::isnan(norm) ? "nan" : "infinite", ", so they cannot be clipped by it; pass error_if_nonfinite = false to go on"});
}

/// clip_grad_norm; the Trainer's asks for p = 2 when it is compiled.
template <bool Squares, class T, class D>
auto clip_norm(std::vector<Variable<T, D>> const& parameters, double max_norm, double p, bool error_if_nonfinite) {
  check_clip_norm(max_norm, p);
  using C = compute_t<T>;
  Temporary<D> const coefficient(sizeof(C));
  auto norm = gradient_norm<Squares>(parameters, p, max_norm, static_cast<C*>(coefficient.get()), "clip_grad_norm");
  if (error_if_nonfinite) check_finite_norm(static_cast<double>(norm.item()));
  sweep_gradients(parameters, ClipUpdate<T>{C(1), static_cast<C const*>(coefficient.get())}, "clip_grad_norm");
  return norm;
}

}  // namespace detail

namespace optim {

/// Scales all gradients by the same number where their norm, as that of one vector, exceeds max_norm.
///
///     norm = (Σ |g|^p)^(1/p), the greatest |g| for p = infinity;   g = g min(1, max_norm / (norm + 1e-6))
///
/// Returns   the norm as it was, on the device; nothing is waited for. float for float16 and bfloat16; 0 where there are no gradients.
/// Throws    Error unless norm_type > 0; with error_if_nonfinite, which waits, Error for a norm that is not finite, before anything is changed.
/// Cost      one pass that reads all gradients, and, where they are too long, one that scales them; launches as a step's. Deterministic.
/// Source    torch.nn.utils.clip_grad_norm_.
template <class T, class D>
auto clip_grad_norm(std::vector<Variable<T, D>> const& parameters, double max_norm, double norm_type = 2, bool error_if_nonfinite = false) {
  return detail::clip_norm<false>(parameters, max_norm, norm_type, error_if_nonfinite);
}
template <class T, class D>
auto clip_grad_norm(std::initializer_list<Variable<T, D>> parameters, double max_norm, double norm_type = 2, bool error_if_nonfinite = false) {
  return clip_grad_norm(std::vector<Variable<T, D>>(parameters), max_norm, norm_type, error_if_nonfinite);
}
template <any_module M>
auto clip_grad_norm(M const& net, double max_norm, double norm_type = 2, bool error_if_nonfinite = false) {
  return clip_grad_norm(situ::parameters(net), max_norm, norm_type, error_if_nonfinite);
}

/// Brings each element of all gradients into [-clip_value, clip_value].
/// Throws    Error unless clip_value is at least 0.
/// Source    torch.nn.utils.clip_grad_value_.
template <class T, class D>
void clip_grad_value(std::vector<Variable<T, D>> const& parameters, double clip_value) {
  if (!(clip_value >= 0)) detail::fail_with<Error>({"clip_grad_value: clip_value is ", clip_value, "; it must be at least 0"});
  detail::sweep_gradients(parameters, detail::ClipUpdate<T>{compute_t<T>(1), nullptr, static_cast<compute_t<T>>(clip_value), true}, "clip_grad_value");
}
template <class T, class D>
void clip_grad_value(std::initializer_list<Variable<T, D>> parameters, double clip_value) {
  clip_grad_value(std::vector<Variable<T, D>>(parameters), clip_value);
}
template <any_module M>
void clip_grad_value(M const& net, double clip_value) {
  clip_grad_value(situ::parameters(net), clip_value);
}

}  // namespace optim
}  // namespace situ::inline SITU_ABI

#if defined(__CUDACC__)
#pragma nv_diagnostic pop
#endif
