/// A layer of an LSTM over whole sequences, and its gradients: what nn::LSTM is made of.
///
///     i, f, g, o = the parts of x_t W_ihᵀ + b + h_{t-1} W_hhᵀ      c_t = σ(f) c_{t-1} + σ(i) tanh(g)      h_t = σ(o) tanh(c_t)
///
/// Shape     x [steps, batch, in], h_0 and c_0 [batch, hidden], W_ih [4 hidden, in], W_hh [4 hidden, hidden], b [4 hidden].
/// Cost      one product for the inputs of all steps; for each step one product and one kernel, forward and backward; then one product for the gradient of
///           each of x, W_ih and W_hh. Kept are the gates after their functions, states and cells.
#pragma once

#include <situ/ops/cpu/lstm.hpp>
#include <situ/ops/linear.hpp>
#include <situ/ops/reduce.hpp>
#if defined(__CUDACC__)
#include <situ/ops/cuda/lstm.hpp>
#endif

namespace situ::inline SITU_ABI {
namespace detail {

#if !defined(__CUDACC__)
inline namespace SITU_ABI_COMPILER {
template <class D, bool Backward, class T>
void launch_lstm_step(cuda_kernels, LstmStep<T> const&) {
  static_assert(compiled_by_nvcc<T>, "situ: an_LSTM_on_Cuda_needs_nvcc: this file is not compiled by nvcc; name it .cu, or move the tensors to the host");
}
}  // namespace SITU_ABI_COMPILER
#endif

/// A layer's run. `all` is [2 steps + 2, batch, hidden]: h_0, …, h_steps, c_steps, …, c_0, so that what a user sees, h_1 to c_steps, stands together.
template <class T, class D>
struct LstmRun {
  int64_t steps, batch, hidden;
  Tensor<T, D> gates, all;

  int64_t slab() const { return batch * hidden; }
  int64_t cell(int64_t step) const { return 2 * steps + 1 - step; }
  /// h_1, …, h_steps, c_steps.
  Tensor<T, D> results() const { return all.slice(0, 1, steps + 2); }
  /// h_0, …, h_{steps-1} as rows.
  Tensor<T, D> states_before() const { return all.slice(0, 0, steps).reshape({steps * batch, hidden}); }
};

inline namespace SITU_ABI_BLAS {

/// h and c may be empty, for zeros; bias too, for none.
template <class T, class D>
LstmRun<T, D> run_lstm(Tensor<T, D> const& x, Tensor<T, D> const& h, Tensor<T, D> const& c, Tensor<T, D> const& w_ih, Tensor<T, D> const& w_hh, Tensor<T, D> const& bias) {
  LstmRun<T, D> run{x.size(0), x.size(1), w_hh.size(1), {}, {}};
  int64_t const rows = run.steps * run.batch;
  Tensor<T, D> const inputs = x.reshape({rows, x.size(2)});
  run.gates = bias.size() > 0 ? linear(inputs, w_ih, bias) : linear(inputs, w_ih);
  run.all = Tensor<T, D>::uninitialized({2 * run.steps + 2, run.batch, run.hidden}, "LSTM");
  auto const begin = [&](int64_t place, Tensor<T, D> const& from) {
    if (from.size() > 0) run.all.select(0, place).assign(from);
    else run.all.select(0, place).assign(T(0.f));
  };
  begin(0, h);
  begin(run.cell(0), c);
  auto recurrent = Tensor<T, D>::uninitialized({run.batch, 4 * run.hidden}, "LSTM");
  Tensor<T, D> const weights = w_hh.t().contiguous();  // read by every step: rows of it are packed faster
  ProductPlan const plan = plan_product(Layout(Shape{run.batch, run.hidden}), weights.layout(), "LSTM");
  typename device_traits<D>::kernels const kernels;
  T *const gates = run.gates.data(), *const all = run.all.data(), *const product = recurrent.data();
  int64_t const slab = run.slab();
  for (int64_t t = 0; t < run.steps; ++t) {
    bool const from_zero = t == 0 && h.size() == 0;
    if (!from_zero) (void)launch_product<D, identity, T>(kernels, plan, static_cast<T const*>(all + t * slab), weights.data(), product, static_cast<T const*>(nullptr));
    LstmStep<T> step{};
    step.gates = gates + t * 4 * slab, step.recurrent = from_zero ? nullptr : product;
    step.cell_before = all + run.cell(t) * slab, step.cell = all + run.cell(t + 1) * slab;
    step.output = all + (t + 1) * slab;
    step.rows = run.batch, step.hidden = run.hidden;
    launch_lstm_step<D, false>(kernels, step);
  }
  return run;
}

/// The gradients: by the gates [steps, batch, 4 hidden], the first state and the first cell. `g` is that by the results, contiguous.
template <class T, class D>
struct LstmGradients {
  Tensor<T, D> gates, state, cell;
};
template <class T, class D>
LstmGradients<T, D> run_lstm_gradient(LstmRun<T, D> const& run, Tensor<T, D> const& w_hh, Tensor<T, D> const& g, bool wants_state) {
  LstmGradients<T, D> result;
  result.gates = Tensor<T, D>::uninitialized({run.steps * run.batch, 4 * run.hidden}, "backward");
  result.state = Tensor<T, D>::uninitialized({run.batch, run.hidden}, "backward");
  result.cell = g.select(0, run.steps).clone();
  ProductPlan const plan = plan_product(Layout(Shape{run.batch, 4 * run.hidden}), w_hh.layout(), "LSTM");
  typename device_traits<D>::kernels const kernels;
  T *const d_gates = result.gates.data(), *const d_state = result.state.data(), *const d_cell = result.cell.data();
  int64_t const slab = run.slab();
  T *const gates = const_cast<T*>(run.gates.data()), *const all = const_cast<T*>(run.all.data());
  for (int64_t t = run.steps - 1; t >= 0; --t) {
    LstmStep<T> step{};
    step.gates = gates + t * 4 * slab, step.cell_before = all + run.cell(t) * slab, step.cell = all + run.cell(t + 1) * slab;
    step.d_output = g.data() + t * slab, step.d_state = t + 1 == run.steps ? nullptr : d_state, step.d_cell = d_cell;
    step.d_gates = d_gates + t * 4 * slab;
    step.rows = run.batch, step.hidden = run.hidden;
    launch_lstm_step<D, true>(kernels, step);
    if (t > 0 || wants_state) (void)launch_product<D, identity, T>(kernels, plan, static_cast<T const*>(step.d_gates), w_hh.data(), d_state, static_cast<T const*>(nullptr));
  }
  if (run.steps == 0) result.state.assign(T(0.f));
  return result;
}

}  // namespace SITU_ABI_BLAS
}  // namespace detail
}  // namespace situ::inline SITU_ABI
