/// The CPU's sweeps: packs of neighbours, the last ones through buffers of a register's size.
#pragma once

#include <situ/expr/cpu/tail.hpp>
#include <situ/optim/sweep.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// N neighbours of each operand, from element `at` on. Operands that are null are not touched.
template <class T, class Isa>
struct PackCell {
  using C = compute_t<T>;
  static constexpr int N = Isa::bytes / static_cast<int>(sizeof(C));
  using number = pack<C, N, Isa>;
  T* p;
  T const* g;
  C* states[sweep_states];
  C* master;
  int64_t at = 0;

  SITU_INLINE explicit PackCell(void* const* data)
      : p(static_cast<T*>(data[sweep_parameter])), g(static_cast<T const*>(data[sweep_gradient])), master(static_cast<C*>(data[sweep_master])) {
    for (int k = 0; k < sweep_states; ++k) states[k] = static_cast<C*>(data[sweep_state + k]);
  }
  SITU_INLINE number parameter() const {
    if constexpr (!std::is_same_v<T, C>) {
      if (master) return number::load(master + at);
    }
    return load_lanes<T, N, Isa>(p + at);
  }
  SITU_INLINE number gradient() const { return load_lanes<T, N, Isa>(g + at); }
  SITU_INLINE number state(int k) const { return number::load(states[k] + at); }
  SITU_INLINE void set_parameter(number const& x) const {
    store_lanes<T, N, Isa>(x, p + at);
    if constexpr (!std::is_same_v<T, C>) {
      if (master) x.store(master + at);
    }
  }
  SITU_INLINE void set_state(int k, number const& x) const { x.store(states[k] + at); }
};

/// The last elements of a tensor, in buffers of a register's size while the rule is at them.
struct SweepTail {
  alignas(64) unsigned char buffers[sweep_operands][64];
  void* moved[sweep_operands];
  char* home[sweep_operands];
  int64_t count, bytes_of_element, bytes_of_state;

  SITU_NOINLINE void begin(void* const* data, int64_t at, int64_t elements, int64_t element, int64_t state) {
    count = elements, bytes_of_element = element, bytes_of_state = state;
    for (int o = 0; o < sweep_operands; ++o) {
      moved[o] = data[o] ? buffers[o] : nullptr;
      home[o] = static_cast<char*>(data[o]) + (data[o] ? at * bytes_of(o) : 0);
      if (data[o]) pad_short(buffers[o], home[o], static_cast<int>(count), static_cast<int>(bytes_of(o)));
    }
  }
  SITU_NOINLINE void end() const {
    for (int o = 0; o < sweep_operands; ++o) {
      if (moved[o] && o != sweep_gradient) copy_short(home[o], buffers[o], count * bytes_of(o));
    }
  }
  int64_t bytes_of(int operand) const { return operand < sweep_state ? bytes_of_element : bytes_of_state; }
};

template <class Rule>
struct SweepBody {
  using T = typename Rule::element;
  using C = compute_t<T>;

  template <class Isa>
  SITU_INLINE static int run(Sweep<Rule> const* sweep, int64_t first, int64_t last) {
    constexpr int N = PackCell<T, Isa>::N;
    Rule rule = sweep->rule;  // a copy, which no store can change
    if constexpr (requires { rule.begin(); }) {
      if (!rule.begin()) return 0;
    }
    Span const* span = sweep->spans.all;
    int64_t begin = 0;
    for (int64_t chunk = first; chunk < last; ++span) {
      int64_t const end = span->end;
      if (end > chunk) {
        int64_t const stop = end < last ? end : last;
        int64_t const n = stop == end ? span->size : (stop - begin) * sweep_chunk;
        PackCell<T, Isa> cell(span->data);
        for (cell.at = (chunk - begin) * sweep_chunk; cell.at + N <= n; cell.at += N) rule(cell);
        if (cell.at < n) {
          SweepTail tail;
          tail.begin(span->data, cell.at, n - cell.at, sizeof(T), sizeof(C));
          rule(PackCell<T, Isa>(tail.moved));
          tail.end();
        }
        chunk = stop;
      }
      begin = end;
    }
    return 0;
  }
};

/// Items are chunks.
template <class Rule>
struct SweepKernel {
  Sweep<Rule> const& sweep;
  char const* operation = sweep.operation;
  void operator()(int64_t first, int64_t last) const { dispatch<SweepBody<Rule>>(&sweep, first, last); }
};
/// The same with its own table, for devices whose launches return before they have run.
template <class Rule>
struct OwnSweepKernel {
  Sweep<Rule> sweep;
  char const* operation = sweep.operation;
  void operator()(int64_t first, int64_t last) const { dispatch<SweepBody<Rule>>(&sweep, first, last); }
};

/// Σ x², Σ |x| or the greatest |x| of each chunk; other powers element by element. `Squares`: no others than Σ x².
template <class T, bool Squares>
struct NormBody {
  using C = compute_t<T>;

  template <class Isa>
  SITU_INLINE static int run(NormParts<T> const* work, int64_t first, int64_t last) {
    Span const* span = work->spans.all;
    [[maybe_unused]] double const p = work->p;
    int64_t begin = 0;
    for (int64_t chunk = first; chunk < last; ++chunk) {
      while (span->end <= chunk) begin = span->end, ++span;
      int64_t const i = (chunk - begin) * sweep_chunk;
      int64_t const n = span->size - i < sweep_chunk ? span->size - i : sweep_chunk;
      T const* const x = static_cast<T const*>(span->data[sweep_parameter]) + i;
      if constexpr (Squares) work->parts[chunk] = total<Isa, 2>(x, n);
      else work->parts[chunk] = p == 2 ? total<Isa, 2>(x, n) : p == 1 ? total<Isa, 1>(x, n) : p >= greatest_norm ? total<Isa, 0>(x, n) : powers(x, n, p);
    }
    return 0;
  }

 private:
  /// What goes on: 2 for squares, 1 for magnitudes, 0 for the greatest one, whose bits are compared as integers, so that NaN is the greatest.
  template <class Isa, int Kind>
  SITU_INLINE static double total(T const* x, int64_t n) {
    constexpr int N = Isa::bytes / static_cast<int>(sizeof(C));
    using P = pack<C, N, Isa>;
    P sums[4] = {P(C(0)), P(C(0)), P(C(0)), P(C(0))};
    int64_t i = 0;
    for (; i + 4 * N <= n; i += 4 * N) {
      for (int k = 0; k < 4; ++k) sums[k] = joined<Kind>(sums[k], load_lanes<T, N, Isa>(x + i + k * N));
    }
    for (; i + N <= n; i += N) sums[0] = joined<Kind>(sums[0], load_lanes<T, N, Isa>(x + i));
    if (i < n) {
      alignas(64) unsigned char buffer[64] = {};
      copy_short(buffer, x + i, (n - i) * static_cast<int64_t>(sizeof(T)));
      sums[1] = joined<Kind>(sums[1], load_lanes<T, N, Isa>(reinterpret_cast<T const*>(buffer)));
    }
    for (int k = 1; k < 4; ++k) sums[0] = merged<Kind>(sums[0], sums[k]);
    alignas(64) C lanes[N];
    sums[0].store(lanes);
    return total_of_lanes(lanes, N, Kind == 0 ? greatest_norm : 1);
  }
  template <int Kind, int N, class Isa>
  SITU_INLINE static pack<C, N, Isa> merged(pack<C, N, Isa> const& a, pack<C, N, Isa> const& b) {
    if constexpr (Kind == 0) return joined<0>(a, b);
    else return a + b;
  }
  template <int Kind, int N, class Isa>
  SITU_INLINE static pack<C, N, Isa> joined(pack<C, N, Isa> const& sum, pack<C, N, Isa> const& x) {
    if constexpr (Kind == 2) {
      return multiply_add(x, x, sum);
    } else {
      auto const size = math::detail::magnitude_of(x);
      if constexpr (Kind == 1) return sum + bitcast<C>(size);
      else {
        auto const before = math::detail::magnitude_of(sum);
        return bitcast<C>(select(size > before, size, before));
      }
    }
  }
  static SITU_NOINLINE double total_of_lanes(C const* lanes, int count, double p) {
    double result = 0;
    for (int k = 0; k < count; ++k) result = joined_parts(result, static_cast<double>(lanes[k]), p);
    return result;
  }
  static SITU_NOINLINE double powers(T const* x, int64_t n, double p) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += SITU_LIBM(pow)(SITU_LIBM(fabs)(static_cast<double>(static_cast<C>(x[i]))), p);
    return sum;
  }
};
template <class T, bool Squares>
struct NormPartsKernel {
  NormParts<T> work;
  char const* operation = work.operation;
  void operator()(int64_t first, int64_t last) const { dispatch<NormBody<T, Squares>>(&work, first, last); }
};
template <class T>
struct NormsJoinedKernel {
  NormsJoined<T> work;
  char const* operation = work.operation;
  void operator()(int64_t, int64_t) const {
    double total = 0;
    for (int64_t k = 0; k < work.count; ++k) total = joined_parts(total, work.parts[k], work.p);
    write_norm(work, total);
  }
};

inline constexpr int64_t sweep_grain = 16;  ///< chunks that are worth another thread

}  // namespace detail::cpu

namespace detail {

template <class D, class Rule>
void launch_sweep(cpu_kernels, Sweep<Rule> const& sweep) {
  if constexpr (is_immediate<D>) device_traits<D>::launch(cpu::SweepKernel<Rule>{sweep}, sweep.spans.chunks(), cpu::sweep_grain);
  else device_traits<D>::launch(cpu::OwnSweepKernel<Rule>{sweep}, sweep.spans.chunks(), cpu::sweep_grain);
}
template <class D, class T>
void launch_sweep(cpu_kernels, NormParts<T> const& work) {
  device_traits<D>::launch(cpu::NormPartsKernel<T, false>{work}, work.spans.chunks(), cpu::sweep_grain);
}
template <class D, class T>
void launch_sweep(cpu_kernels, SquareParts<T> const& work) {
  device_traits<D>::launch(cpu::NormPartsKernel<T, true>{work}, work.spans.chunks(), cpu::sweep_grain);
}
template <class D, class T>
void launch_sweep(cpu_kernels, NormsJoined<T> const& work) {
  device_traits<D>::launch(cpu::NormsJoinedKernel<T>{work}, 1, 1);
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
