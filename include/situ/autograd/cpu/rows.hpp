/// The CPU's gradients of operations on rows: softmax, log_softmax, layer_norm, rms_norm. Rows are contiguous, one after the other.
///
/// A row is read from memory once: statistics first, then the elements, from the cache. Work is cut into blocks of rows by
/// shapes alone; the gradients of weight and bias are summed within each block, so results do not depend on the number of threads.
#pragma once

#include <situ/ops/cpu/rows.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

enum class RowGradient { softmax, log_softmax, layer_norm, rms_norm };

/// `b` is the result y for the softmaxes, the input x for the norms. Rows are `count` long.
template <class C>
struct RowGradientArguments {
  C const* g;
  C const* b;
  C* out;  ///< null where only weight and bias are wanted; may be b
  int64_t rows, count;
  int64_t slack;  ///< elements behind the last row that may be read, of g and b
  C const* weight;
  C *weight_gradient, *bias_gradient;  ///< a row each, on top of which is added; or null
  double eps;
};

template <RowGradient Kind, class C>
struct RowGradientBody {
  static constexpr bool is_norm = Kind == RowGradient::layer_norm || Kind == RowGradient::rms_norm;
  static constexpr bool centred = Kind == RowGradient::layer_norm;

  template <class Isa>
  SITU_INLINE static int run(RowGradientArguments<C> const* given) {
    RowGradientArguments<C> const a = *given;
    for (int64_t row = 0; row < a.rows; ++row) {
      int64_t const at = row * a.count, readable = (a.rows - row) * a.count + a.slack;
      C* const out = a.out ? a.out + at : nullptr;
      if constexpr (!is_norm) softmax_row<Isa>(a, a.g + at, a.b + at, out, readable);
      else if (a.weight_gradient && a.bias_gradient) norm_row<Isa, true>(a, a.g + at, a.b + at, out, readable);
      else norm_row<Isa, false>(a, a.g + at, a.b + at, out, readable);
    }
    return 0;
  }

 private:
  template <class Isa>
  static constexpr int lanes_in = Isa::bytes / static_cast<int>(sizeof(C));

  /// Elements from number i on, 0 behind the end.
  template <class Isa>
  SITU_INLINE static pack<C, lanes_in<Isa>, Isa> load(C const* from, int64_t i, int64_t n, int64_t readable) {
    constexpr int N = lanes_in<Isa>;
    if (SITU_LIKELY(i + N <= n)) return pack<C, N, Isa>::load(from + i);
    return load_tail<C, N, Isa>(from + i, n - i, readable - i, C(0));
  }
  template <class Isa, int N>
  SITU_INLINE static void store(pack<C, N, Isa> const& x, C* to, int64_t i, int64_t n) {
    if (SITU_LIKELY(i + N <= n)) return x.store(to + i);
    store_tail<C>(x, to + i, n - i, n - i);
  }

  /// Softmax: y (g - Σ g y). Log-softmax: g - exp(y) Σ g.
  template <class Isa>
  SITU_INLINE static void softmax_row(RowGradientArguments<C> const& a, C const* g, C const* y, C* out, int64_t readable) {
    constexpr int N = lanes_in<Isa>;
    using P = pack<C, N, Isa>;
    int64_t const n = a.count, whole = n / N * N;
    P g_tail(C(0)), y_tail(C(0));
    if (whole < n) {
      g_tail = load_tail<C, N, Isa>(g + whole, n - whole, readable - whole, C(0));
      y_tail = load_tail<C, N, Isa>(y + whole, n - whole, readable - whole, C(0));
    }
    double total = static_cast<double>(sum_of_lanes(term(g_tail, y_tail)));
    for (int64_t i = 0; i < whole;) {
      int64_t const stop = i + row_block < whole ? i + row_block : whole;
      P s(C(0)), s1(C(0));
      for (; i + 2 * N <= stop; i += 2 * N) {
        s = s + term(P::load(g + i), P::load(y + i));
        s1 = s1 + term(P::load(g + i + N), P::load(y + i + N));
      }
      if (i < stop) s = s + term(P::load(g + i), P::load(y + i)), i += N;
      total += static_cast<double>(sum_of_lanes(s + s1));
    }
    P const shift(static_cast<C>(total));
    for (int64_t i = 0; i < whole; i += N) slope(P::load(g + i), P::load(y + i), shift).store(out + i);
    if (whole < n) store_tail<C>(slope(g_tail, y_tail, shift), out + whole, n - whole, n - whole);
  }
  template <int N, class Isa>
  SITU_INLINE static pack<C, N, Isa> term(pack<C, N, Isa> const& g, pack<C, N, Isa> const& y) {
    if constexpr (Kind == RowGradient::softmax) return g * y;
    else return pack<C, N, Isa>(g);
  }
  template <int N, class Isa>
  SITU_INLINE static pack<C, N, Isa> slope(pack<C, N, Isa> const& g, pack<C, N, Isa> const& y, pack<C, N, Isa> const& shift) {
    if constexpr (Kind == RowGradient::softmax) return y * (g - shift);
    else return g - exp_of_negative(y) * shift;
  }

  /// With z the normalised row, r = 1 / sqrt(var + eps), h = g w: r (h - mean(h) - z mean(h z)); without the first mean about 0.
  template <class Isa, bool Sums>
  SITU_INLINE static void norm_row(RowGradientArguments<C> const& a, C const* g, C const* x, C* out, int64_t readable) {
    constexpr int N = lanes_in<Isa>;
    using P = pack<C, N, Isa>;
    using Op = std::conditional_t<centred, rows::layer_norm<C>, rows::rms_norm<C>>;
    int64_t const n = a.count;
    Op op{};
    op.eps = a.eps;
    RowCoefficients<C> const row = op.finish(RowMath<Op>::template gather<Isa, false>(op, x, readable, nullptr, n, NextRow{}));
    P const shift(row.shift), low(row.low), scale(row.scale);
    C const* const weight = a.weight;
    C *const weight_gradient = a.weight_gradient, *const bias_gradient = a.bias_gradient;
    double total = 0, products = 0;
    for (int64_t i = 0; i < n;) {
      int64_t const stop = i + row_block < n ? i + row_block : n;
      P s(C(0)), q(C(0));
      for (; i < stop; i += N) {
        P const z = RowMath<Op>::template value<Isa, false, N>(load<Isa>(x, i, n, readable), shift, low, scale);
        P const d = load<Isa>(g, i, n, readable);
        P h(d);
        if (weight) h = h * load<Isa>(weight, i, n, n);
        if constexpr (centred) s = s + h;
        q = multiply_add(h, z, q);
        if (Sums || weight_gradient) store<Isa, N>(load<Isa>(weight_gradient, i, n, n) + d * z, weight_gradient, i, n);
        if (Sums || bias_gradient) store<Isa, N>(load<Isa>(bias_gradient, i, n, n) + d, bias_gradient, i, n);
      }
      total += static_cast<double>(sum_of_lanes(s));
      products += static_cast<double>(sum_of_lanes(q));
    }
    if (!out) return;
    P const mean(static_cast<C>(total / static_cast<double>(n))), share(static_cast<C>(products / static_cast<double>(n)));
    for (int64_t i = 0; i < n; i += N) {
      P const z = RowMath<Op>::template value<Isa, false, N>(load<Isa>(x, i, n, readable), shift, low, scale);
      P h(load<Isa>(g, i, n, readable));
      if (weight) h = h * load<Isa>(weight, i, n, n);
      if constexpr (centred) h = h - mean;
      store<Isa, N>((h - z * share) * scale, out, i, n);
    }
  }
};

/// Elements of T as numbers of C, and back.
template <class T, class C>
struct ConvertRowBody {
  template <class Isa>
  SITU_INLINE static int run(T const* from, C* to, int64_t n) {
    constexpr int N = Isa::bytes / static_cast<int>(sizeof(C));
    int64_t i = 0;
    for (; i + N <= n; i += N) store_lanes<C, N, Isa>(load_lanes<T, N, Isa>(from + i), to + i);
    for (; i < n; ++i) to[i] = static_cast<C>(from[i]);
    return 0;
  }
};
template <class T, class C>
struct RoundRowBody {
  template <class Isa>
  SITU_INLINE static int run(C const* from, T* to, int64_t n) {
    constexpr int N = Isa::bytes / static_cast<int>(sizeof(C));
    int64_t i = 0;
    for (; i + N <= n; i += N) store_lanes<T, N, Isa>(load_lanes<C, N, Isa>(from + i), to + i);
    for (; i < n; ++i) to[i] = convert_scalar<T>(from[i]);
    return 0;
  }
};

/// The kernel: items are blocks of `rows_per_block` rows.
template <RowGradient Kind, class T>
struct RowGradientKernel {
  using C = compute_t<T>;
  T const* g;
  T const* b;
  T* out;
  int64_t rows, count, rows_per_block;
  C const* weight;
  C *weight_gradients, *bias_gradients;  ///< of blocks: [block, count], or null
  double eps;

  void operator()(int64_t first, int64_t last) const {
    for (int64_t block = first; block < last; ++block) {
      int64_t const begin = block * rows_per_block, end = begin + rows_per_block < rows ? begin + rows_per_block : rows;
      RowGradientArguments<C> a{};
      a.count = count;
      a.weight = weight;
      a.eps = eps;
      if (weight_gradients) a.weight_gradient = zeros_at(weight_gradients + block * count);
      if (bias_gradients) a.bias_gradient = zeros_at(bias_gradients + block * count);
      if constexpr (std::is_same_v<T, C>) {
        a.g = g + begin * count, a.b = b + begin * count;
        a.out = out ? out + begin * count : nullptr;
        a.rows = end - begin;
        a.slack = (rows - end) * count;
        dispatch<RowGradientBody<Kind, C>>(const_cast<RowGradientArguments<C> const*>(&a));
      } else {
        int64_t const wide = (count + 127) / 64 * 64;
        RowBuffer const memory(2 * wide * static_cast<int64_t>(sizeof(C)));
        C *const g_row = static_cast<C*>(memory.memory), *const b_row = g_row + wide;
        a.g = g_row, a.b = b_row;
        a.out = out ? b_row : nullptr;
        a.rows = 1;
        a.slack = wide - count;
        for (int64_t row = begin; row < end; ++row) {
          dispatch<ConvertRowBody<T, C>>(g + row * count, g_row, count);
          dispatch<ConvertRowBody<T, C>>(b + row * count, b_row, count);
          dispatch<RowGradientBody<Kind, C>>(const_cast<RowGradientArguments<C> const*>(&a));
          if (out) dispatch<RoundRowBody<T, C>>(static_cast<C const*>(b_row), out + row * count, count);
        }
      }
    }
  }

 private:
  C* zeros_at(C* to) const {
    for (int64_t k = 0; k < count; ++k) to[k] = C(0);
    return to;
  }
};

/// Rows of a block: some thousand elements; at most 128 blocks where each sums gradients of its own.
inline int64_t rows_per_block(int64_t rows, int64_t count, bool sums) {
  int64_t const few = 16384 / (count > 0 ? count : 1) + 1;
  int64_t const share = (rows + 127) / 128;
  return sums && share > few ? share : few;
}

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI
