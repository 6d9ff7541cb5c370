/// The gates of an LSTM on a GPU: a thread for each cell of the batch.
#pragma once

#include <situ/device/cuda/launch.hpp>
#include <situ/ops/cpu/lstm.hpp>

#if defined(__CUDACC__)

namespace situ::inline SITU_ABI {
namespace detail::cuda {

template <class T, bool Backward>
__global__ void __launch_bounds__(block_threads) lstm_step_kernel(const __grid_constant__ LstmStep<T> s) {
  using C = compute_t<T>;
  int64_t const at = static_cast<int64_t>(blockIdx.x) * block_threads + threadIdx.x, h = s.hidden;
  if (at >= s.rows * h) return;
  int64_t const row = at / h, gate = row * 4 * h + (at - row * h);
  T* const gates = s.gates + gate;
  C i = convert_scalar<C>(gates[0]), f = convert_scalar<C>(gates[h]), g = convert_scalar<C>(gates[2 * h]), o = convert_scalar<C>(gates[3 * h]);
  C const before = convert_scalar<C>(s.cell_before[at]);
  if constexpr (!Backward) {
    if (s.recurrent) {
      T const* const r = s.recurrent + gate;
      i += convert_scalar<C>(r[0]), f += convert_scalar<C>(r[h]), g += convert_scalar<C>(r[2 * h]), o += convert_scalar<C>(r[3 * h]);
    }
    i = math::sigmoid(i), f = math::sigmoid(f), g = math::tanh(g), o = math::sigmoid(o);
    C const cell = f * before + i * g;
    gates[0] = convert_scalar<T>(i), gates[h] = convert_scalar<T>(f), gates[2 * h] = convert_scalar<T>(g), gates[3 * h] = convert_scalar<T>(o);
    s.cell[at] = convert_scalar<T>(cell);
    s.output[at] = convert_scalar<T>(o * math::tanh(cell));
  } else {
    C const t = math::tanh(convert_scalar<C>(s.cell[at]));
    C d = convert_scalar<C>(s.d_output[at]);
    if (s.d_state) d += convert_scalar<C>(s.d_state[at]);
    C const d_cell = convert_scalar<C>(s.d_cell[at]) + d * o * (C(1) - t * t);
    T* const to = s.d_gates + gate;
    to[0] = convert_scalar<T>(d_cell * g * i * (C(1) - i));
    to[h] = convert_scalar<T>(d_cell * before * f * (C(1) - f));
    to[2 * h] = convert_scalar<T>(d_cell * i * (C(1) - g * g));
    to[3 * h] = convert_scalar<T>(d * t * o * (C(1) - o));
    s.d_cell[at] = convert_scalar<T>(d_cell * f);
  }
}

}  // namespace detail::cuda

namespace detail {
inline namespace SITU_ABI_COMPILER {
template <class D, bool Backward, class T>
void launch_lstm_step(cuda_kernels, LstmStep<T> const& step) {
  int64_t const blocks = (step.rows * step.hidden + cuda::block_threads - 1) / cuda::block_threads;
  if (blocks == 0) return;
  cuda::launch(device_traits<D>::ordinal, Backward ? "lstm (backward)" : "lstm", cuda::lstm_step_kernel<T, Backward>, dim3(static_cast<unsigned>(blocks)),
               cuda::block_threads, step);
}
}  // namespace SITU_ABI_COMPILER
}  // namespace detail
}  // namespace situ::inline SITU_ABI

#endif
