/// The gates of an LSTM on the CPU: one step of all sequences of a batch, forward and backward.
#pragma once

#include <situ/expr/cpu/dispatch.hpp>
#include <situ/expr/lanes.hpp>
#include <situ/expr/math/sigmoid.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// One step. Rows are sequences; gates have 4 `hidden` elements in a row (input, forget, cell, output), all else `hidden`; everything is contiguous.
template <class T>
struct LstmStep {
  T* gates;            ///< forward. In: of the input, with biases; out: after their functions. Backward: those
  T const* recurrent;  ///< forward: of the state before, or null
  T const* cell_before;
  T* cell;
  T* output;           ///< forward
  T const* d_output;   ///< backward: by the output
  T const* d_state;    ///< by the state that the next step read, or null
  T* d_cell;           ///< in: by the cell; out: by that before
  T* d_gates;          ///< out: by the gates before their functions
  int64_t rows, hidden;
};

namespace cpu {

template <class T, bool Backward>
struct LstmStepBody {
  using C = compute_t<T>;

  template <class Isa>
  SITU_INLINE static int run(LstmStep<T> const* given, int64_t first, int64_t last) {
    constexpr int N = Isa::bytes / static_cast<int>(sizeof(C));
    LstmStep<T> const s = *given;
    for (int64_t row = first; row < last; ++row) {
      int64_t j = 0;
      for (; j + N <= s.hidden; j += N) lanes<Isa, N>(s, row, j, N);
      if (j < s.hidden) lanes<Isa, N>(s, row, j, static_cast<int>(s.hidden - j));
    }
    return 0;
  }

 private:
  template <class Isa, int N>
  SITU_INLINE static pack<C, N, Isa> load(T const* from, int count) {
    if (SITU_LIKELY(count == N)) return load_lanes<T, N, Isa>(from);
    T few[N] = {};
    for (int k = 0; k < count; ++k) few[k] = from[k];
    return load_lanes<T, N, Isa>(few);
  }
  template <class Isa, int N>
  SITU_INLINE static void store(pack<C, N, Isa> const& x, T* to, int count) {
    if (SITU_LIKELY(count == N)) return store_lanes<T, N, Isa>(x, to);
    T few[N];
    store_lanes<T, N, Isa>(x, few);
    for (int k = 0; k < count; ++k) to[k] = few[k];
  }

  template <class Isa, int N>
  SITU_INLINE static void lanes(LstmStep<T> const& s, int64_t row, int64_t j, int count) {
    using P = pack<C, N, Isa>;
    int64_t const h = s.hidden, at = row * h + j, gate = row * 4 * h + j;
    T* const gates = s.gates + gate;
    P i = load<Isa, N>(gates, count), f = load<Isa, N>(gates + h, count), g = load<Isa, N>(gates + 2 * h, count), o = load<Isa, N>(gates + 3 * h, count);
    P const before = load<Isa, N>(s.cell_before + at, count);
    if constexpr (!Backward) {
      if (s.recurrent) {
        T const* const r = s.recurrent + gate;
        i = i + load<Isa, N>(r, count), f = f + load<Isa, N>(r + h, count), g = g + load<Isa, N>(r + 2 * h, count), o = o + load<Isa, N>(r + 3 * h, count);
      }
      i = math::sigmoid(i), f = math::sigmoid(f), g = math::tanh(g), o = math::sigmoid(o);
      P const cell = multiply_add(f, before, i * g);
      store<Isa, N>(i, gates, count), store<Isa, N>(f, gates + h, count), store<Isa, N>(g, gates + 2 * h, count), store<Isa, N>(o, gates + 3 * h, count);
      store<Isa, N>(cell, s.cell + at, count);
      store<Isa, N>(o * math::tanh(cell), s.output + at, count);
    } else {
      P const one(C(1)), t = math::tanh(load<Isa, N>(s.cell + at, count));
      P d = load<Isa, N>(s.d_output + at, count);
      if (s.d_state) d = d + load<Isa, N>(s.d_state + at, count);
      P const d_cell = load<Isa, N>(s.d_cell + at, count) + d * o * (one - t * t);
      T* const to = s.d_gates + gate;
      store<Isa, N>(d_cell * g * i * (one - i), to, count);
      store<Isa, N>(d_cell * before * f * (one - f), to + h, count);
      store<Isa, N>(d_cell * i * (one - g * g), to + 2 * h, count);
      store<Isa, N>(d * t * o * (one - o), to + 3 * h, count);
      store<Isa, N>(d_cell * f, s.d_cell + at, count);
    }
  }
};

template <class T, bool Backward>
struct LstmStepKernel {
  LstmStep<T> step;
  void operator()(int64_t first, int64_t last) const { dispatch<LstmStepBody<T, Backward>>(&step, first, last); }
};

}  // namespace cpu

template <class D, bool Backward, class T>
void launch_lstm_step(cpu_kernels, LstmStep<T> const& step) {
  device_traits<D>::launch(cpu::LstmStepKernel<T, Backward>{step}, step.rows, 4096 / (step.hidden + 1) + 1);
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
