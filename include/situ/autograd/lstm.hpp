/// A layer of an LSTM as one recorded operation.
#pragma once

#include <situ/autograd/operands.hpp>
#include <situ/ops/lstm.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// ∂L/∂x = d W_ih, ∂L/∂W_ih = dᵀ x, ∂L/∂W_hh = dᵀ h, ∂L/∂b = Σ d, with d the gradient by the gates, which runs from the last step to the first.
template <class T, class D>
struct LstmRule {
  Saved<T, D> x, w_ih, w_hh, all;
  LstmRun<T, D> run;
  bool has_state;

  template <class IntoX, class IntoH, class IntoC, class IntoW, class IntoR, class IntoB>
  void operator()(Tensor<T, D> const& g, IntoX const& into_x, IntoH const& into_h, IntoC const& into_c, IntoW const& into_w, IntoR const& into_r, IntoB const& into_b,
                  IntoB const& into_b2) const {
    static_cast<void>(all.tensor());  // for what it throws
    auto const gradients = run_lstm_gradient<T, D>(run, w_hh.tensor(), g.contiguous(), into_h.needed());
    Tensor<T, D> const& d = gradients.gates;
    if (into_x.needed()) into_x.add(product<T>(d, w_ih.tensor(), "backward").reshape(into_x.shape()));
    if (into_h.needed()) into_h.add(gradients.state);
    if (into_c.needed()) into_c.add(gradients.cell);
    if (into_w.needed()) into_w.add(product<T>(d.t(), x.tensor().reshape({run.steps * run.batch, x.tensor().size(2)}), "backward"));
    if (into_r.needed()) into_r.add(product<T>(d.t(), run.states_before(), "backward"));
    if (into_b.needed() || into_b2.needed()) {
      Tensor<T, D> const sums = sum(d, 0);
      into_b.add(sums);
      into_b2.add(sums);
    }
  }
};

/// Runs a layer: h_1, …, h_steps, c_steps, [steps + 1, batch, hidden]. x is [steps, batch, in], contiguous; h and c, and both biases, may be empty.
template <class T, class D>
Variable<T, D> recorded_lstm(Variable<T, D> const& x, Variable<T, D> const& h, Variable<T, D> const& c, Variable<T, D> const& w_ih, Variable<T, D> const& w_hh,
                             Variable<T, D> const& b_ih, Variable<T, D> const& b_hh) {
  Tensor<T, D> bias;
  if (b_ih.size() > 0) bias = b_ih.value() + b_hh.value();
  Tensor<T, D> const input_weights = w_ih.value().contiguous(), state_weights = w_hh.value().contiguous();
  LstmRun<T, D> run = run_lstm<T, D>(x.value(), h.value(), c.value(), input_weights, state_weights, bias);
  Tensor<T, D> results = run.results();
  if (!is_recording(x, h, c, w_ih, w_hh, b_ih, b_hh)) return Variable<T, D>(std::move(results), false);
  Saved<T, D> const all(run.all);
  return record("Lstm", std::move(results), LstmRule<T, D>{Saved<T, D>(x), Saved<T, D>(w_ih), Saved<T, D>(w_hh), all, std::move(run), h.size() > 0}, x, h, c, w_ih, w_hh,
                b_ih, b_hh);
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
