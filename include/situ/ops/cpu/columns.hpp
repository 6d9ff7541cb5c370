/// The statistics of rows that lie side by side, as the columns of a strip: some rows of the strip at a time, two packs of columns together.
///
/// Where the input is a tensor that is read as it lies, its elements are brought into the strip's buffer while the first statistic is made.
#pragma once

#include <situ/ops/cpu/rows_math.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

inline constexpr int64_t rows_brought = 16;  ///< of a strip: few enough for the sets of a cache, whatever the distance between them
inline constexpr int64_t rows_added = 64;    ///< of a strip, before their sum is added to that of all rows

/// Rows of a strip: the elements x of the buffer, `pitch` apart, that are brought from `from`, `step` apart, where that is asked for.
template <class C>
struct StripRows {
  C const* from;
  int64_t step;
  C* x;
  int64_t pitch, count;
};

/// The two passes over some rows of a few packs of columns. `first` brings elements; `a`, `b` and `c` are the places of these columns in the arrays
/// of statistics, in which passes go on.
template <class Op>
struct ColumnMath;

/// Softmax: the maximum; then the exponentials, which stay in the buffer if `Keep`, and their sum.
template <class Op>
struct SoftmaxColumns {
  using C = typename Op::compute;
  static constexpr bool has_first = true;
  static C start() { return -RowMath<Op>::infinity; }

  template <class Isa, int N, bool Brings, int... G>
  SITU_INLINE static void first(StripRows<C> const& rows, C* a, C*, std::integer_sequence<int, G...>) {
    using P = pack<C, N, Isa>;
    P m[] = {P::load(a + G * N)...};
    C const* from = rows.from;
    C* x = rows.x;
    for (int64_t i = 0; i < rows.count; ++i, x += rows.pitch) {
      if constexpr (Brings) {
        (__builtin_prefetch(from + rows_brought * rows.step + G * N, 0, 2), ...);
        P const v[] = {P::load(from + G * N)...};
        (v[G].store(x + G * N), ...);
        ((m[G] = larger(v[G], m[G])), ...);
        from += rows.step;
      } else {
        ((m[G] = larger(P::load(x + G * N), m[G])), ...);
      }
    }
    (m[G].store(a + G * N), ...);
  }
  template <class Isa, int N>
  SITU_INLINE static void between(int64_t, C*) {}
  template <class Isa, int N, bool Keep, int... G>
  SITU_INLINE static void second(StripRows<C> const& rows, C* a, C* b, C*, std::integer_sequence<int, G...>) {
    using P = pack<C, N, Isa>;
    P m[] = {P::load(a + G * N)...}, s[] = {(void(G), P(C(0)))...};
    ((m[G] = select(m[G] == P(start()), P(C(0)), m[G])), ...);
    C* x = rows.x;
    for (int64_t i = 0; i < rows.count; ++i, x += rows.pitch) {
      P const e[] = {exp_of_negative(P::load(x + G * N) - m[G])...};
      if constexpr (Keep) (e[G].store(x + G * N), ...);
      ((s[G] = s[G] + e[G]), ...);
    }
    ((P::load(b + G * N) + keep_order(s[G])).store(b + G * N), ...);
  }
  template <class Isa, int N>
  SITU_INLINE static void end(int64_t, C*, C*, C*) {}
};
template <class Out>
struct ColumnMath<rows::softmax<Out>> : SoftmaxColumns<rows::softmax<Out>> {};
template <class Out>
struct ColumnMath<rows::log_softmax<Out>> : SoftmaxColumns<rows::log_softmax<Out>> {};

/// The norms: the mean; then the sums of what is left about it, and of its squares.
template <class Op>
struct NormColumns {
  using C = typename Op::compute;
  static constexpr bool centred = RowMath<Op>::centred;
  static constexpr bool has_first = centred;  // else it only brings
  static C start() { return C(0); }

  template <class Isa, int N, bool Brings, int... G>
  SITU_INLINE static void first(StripRows<C> const& rows, C* a, C*, std::integer_sequence<int, G...>) {
    using P = pack<C, N, Isa>;
    P s[] = {(void(G), P(C(0)))...};
    C const* from = rows.from;
    C* x = rows.x;
    for (int64_t i = 0; i < rows.count; ++i, x += rows.pitch) {
      if constexpr (Brings) {
        (__builtin_prefetch(from + rows_brought * rows.step + G * N, 0, 2), ...);
        P const v[] = {P::load(from + G * N)...};
        (v[G].store(x + G * N), ...);
        if constexpr (centred) ((s[G] = s[G] + v[G]), ...);
        from += rows.step;
      } else {
        ((s[G] = s[G] + P::load(x + G * N)), ...);
      }
    }
    ((P::load(a + G * N) + keep_order(s[G])).store(a + G * N), ...);
  }
  /// The mean of `n` rows.
  template <class Isa, int N>
  SITU_INLINE static void between(int64_t n, C* a) {
    using P = pack<C, N, Isa>;
    if constexpr (centred) (P::load(a) / P(static_cast<C>(n))).store(a);
  }
  template <class Isa, int N, bool Keep, int... G>
  SITU_INLINE static void second(StripRows<C> const& rows, C* a, C* b, C* c, std::integer_sequence<int, G...>) {
    using P = pack<C, N, Isa>;
    P const shift[] = {P::load(a + G * N)...};
    P s[] = {(void(G), P(C(0)))...}, q[] = {(void(G), P(C(0)))...};
    C const* x = rows.x;
    for (int64_t i = 0; i < rows.count; ++i, x += rows.pitch) {
      P d[] = {P::load(x + G * N)...};
      if constexpr (centred) ((d[G] = d[G] - shift[G]), ...), ((s[G] = s[G] + d[G]), ...);
      ((q[G] = multiply_add(d[G], d[G], q[G])), ...);
    }
    if constexpr (centred) ((P::load(b + G * N) + keep_order(s[G])).store(b + G * N), ...);
    ((P::load(c + G * N) + keep_order(q[G])).store(c + G * N), ...);
  }
  template <class Isa, int N>
  SITU_INLINE static void end(int64_t n, C*, C* b, C* c) {
    using P = pack<C, N, Isa>;
    P const rest = P::load(b), off = rest / P(static_cast<C>(n));
    off.store(b);
    if constexpr (centred) (P::load(c) - rest * off).store(c);
  }
};
template <class Out>
struct ColumnMath<rows::layer_norm<Out>> : NormColumns<rows::layer_norm<Out>> {};
template <class Out>
struct ColumnMath<rows::rms_norm<Out>> : NormColumns<rows::rms_norm<Out>> {};

/// `n` rows of a strip of `columns` in the buffer x, which is `pitch` wide: whole packs. Statistics go to three arrays. Elements are brought from
/// `from`, where that is not null.
template <class Op, bool Keep>
struct GatherColumnsBody {
  using C = typename Op::compute;
  template <class Isa>
  SITU_INLINE static int run(Op const* op, C const* from, int64_t step, C* x, int64_t pitch, int64_t columns, int64_t n, C* statistics, bool finishes) {
    constexpr int N = Isa::bytes / static_cast<int>(sizeof(C));
    using P = pack<C, N, Isa>;
    using Math = ColumnMath<Op>;
    constexpr std::integer_sequence<int, 0, 1> two{};
    constexpr std::integer_sequence<int, 0> one{};
    C *const a = statistics, *const b = a + pitch, *const c = b + pitch;
    for (int64_t k = 0; k < pitch; k += N) P(Math::start()).store(a + k), P(C(0)).store(b + k), P(C(0)).store(c + k);
    int64_t const brought = from ? columns / (2 * N) * (2 * N) : 0;
    for (int64_t i = 0; i < n && (from || Math::has_first); i += rows_brought) {
      int64_t const rows = n - i < rows_brought ? n - i : rows_brought;
      C const* const source = from ? from + i * step : nullptr;
      C* const to = x + i * pitch;
      int64_t k = 0;
      for (; k < brought; k += 2 * N) Math::template first<Isa, N, true>({source + k, step, to + k, pitch, rows}, a + k, b + k, two);
      if (from) {
        for (int64_t r = 0; k < columns && r < rows; ++r) {
          for (int64_t l = k; l < columns; ++l) to[r * pitch + l] = source[r * step + l];
        }
      }
      if constexpr (Math::has_first) {
        for (; k + 2 * N <= pitch; k += 2 * N) Math::template first<Isa, N, false>({nullptr, 0, to + k, pitch, rows}, a + k, b + k, two);
        if (k < pitch) Math::template first<Isa, N, false>({nullptr, 0, to + k, pitch, rows}, a + k, b + k, one);
      }
    }
    for (int64_t k = 0; k < pitch; k += N) Math::template between<Isa, N>(n, a + k);
    for (int64_t i = 0; i < n; i += rows_added) {
      int64_t const rows = n - i < rows_added ? n - i : rows_added;
      int64_t k = 0;
      for (; k + 2 * N <= pitch; k += 2 * N) Math::template second<Isa, N, Keep>({nullptr, 0, x + i * pitch + k, pitch, rows}, a + k, b + k, c + k, two);
      if (k < pitch) Math::template second<Isa, N, Keep>({nullptr, 0, x + i * pitch + k, pitch, rows}, a + k, b + k, c + k, one);
    }
    for (int64_t k = 0; k < pitch; k += N) {
      Math::template end<Isa, N>(n, a + k, b + k, c + k);
      if (finishes) RowMath<Op>::template finish_columns<Isa, N>(*op, n, a + k, b + k, c + k);
    }
    return 0;
  }
};

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI
