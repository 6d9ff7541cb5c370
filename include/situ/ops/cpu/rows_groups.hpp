/// Short rows in groups, on the CPU: the sums of as many rows as a register has lanes are made side by side, so that no row waits for the
/// sums and the square root of the one before. What becomes of a row does not depend on its neighbours.
#pragma once

#include <situ/ops/cpu/rows_math.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

inline constexpr int64_t group_elements = row_block;  ///< of a group; longer rows are taken one by one
inline constexpr int64_t least_grouped_rows = 4;      ///< fewer of them are taken one by one

/// How a row of n elements is cut into packs: whole ones, and one for the rest of it, which reaches back into them. Rows shorter than a pack are
/// copied to rows as long as one, by `padded`, before anything is done with them.
template <class C, class Isa>
struct RowCut {
  static constexpr int N = Isa::bytes / static_cast<int>(sizeof(C));
  using P = pack<C, N, Isa>;
  int64_t n, whole, last;
  bool is_short;
  typename P::mask_type inside;  ///< lanes of the last pack that no whole one has

  SITU_INLINE explicit RowCut(int64_t count)
      : n(count), whole(count / N * N), last(count >= N ? count - N : 0), is_short(count < N),
        inside(count >= N ? !lanes_below<C, N, Isa>(N - (count - whole)) : lanes_below<C, N, Isa>(count)) {}
  bool has_rest() const { return whole < n; }
  SITU_INLINE P rest(C const* row) const { return P::load(row + last); }
  SITU_INLINE P inside_only(P const& x) const { return select(inside, x, P(C(0))); }
};
/// Rows of n < N elements as rows of N, and back.
template <int N, class T>
SITU_NOINLINE T const* padded(T const* from, int64_t pitch, int64_t n, int64_t rows, T* to) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t k = 0; k < N; ++k) to[r * N + k] = k < n ? from[r * pitch + k] : T(0.0f);
  }
  return to;
}
template <int N, class T>
SITU_NOINLINE void unpadded(T const* from, int64_t n, int64_t rows, T* to, int64_t pitch) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t k = 0; k < n; ++k) to[r * pitch + k] = from[r * N + k];
  }
}

/// Rows of a group.
template <class C, class Isa>
SITU_INLINE int64_t rows_of_group(int64_t n) {
  int64_t rows = Isa::bytes / static_cast<int64_t>(sizeof(C));
  while (rows > 1 && rows * n > group_elements) rows /= 2;
  return rows;
}

/// What the elements of a normalised row are made with, for a group of rows; see RowCoefficients.
template <bool Centred, class C, class Isa>
struct NormGroup {
  using Cut = RowCut<C, Isa>;
  using P = typename Cut::P;
  static constexpr int N = Cut::N;
  alignas(64) C shift[N], low[N], scale[N];

  /// Reads the rows once: what is summed is about a guess of the mean, which costs no digits while it is no further from it than the elements are in
  /// their root mean square. Else it is summed again, about what was found; of the other rows nothing changes by that.
  SITU_INLINE void gather(Cut const& cut, C const* x, int64_t pitch, int64_t rows, double eps) {
    P const zero(C(0)), one_in_n(C(1) / static_cast<C>(cut.n));
    P sums[N], squares[N];
    if constexpr (Centred) {
      int64_t const middle = cut.last / 2;
      for (int64_t r = 0; r < rows; ++r) {
        C const* const row = x + r * pitch;
        sums[r] = (P::load(row) + P::load(row + middle)) + P::load(row + cut.last);
      }
      for (int64_t r = rows; SITU_UNLIKELY(rows < N) && r < N; ++r) sums[r] = zero;
      (sums_of_packs(sums) * P(C(1) / static_cast<C>(3 * (cut.is_short ? cut.n : N)))).store(shift);
    }
    for (bool guessed = Centred;; guessed = false) {
      for (int64_t r = 0; r < rows; ++r) add_row(cut, x + r * pitch, P(Centred ? shift[r] : C(0)), sums[r], squares[r]);
      for (int64_t r = rows; SITU_UNLIKELY(rows < N) && r < N; ++r) sums[r] = squares[r] = zero;
      P const square = sums_of_packs(squares);
      if constexpr (!Centred) {
        finish(square * one_in_n, eps);
        zero.store(shift);
        zero.store(low);
        return;
      } else {
        P const guess = P::load(shift), rest = sums_of_packs(sums), off = rest * one_in_n, variance = (square - rest * off) * one_in_n;
        P const mean = keep_order(guess + off);
        auto const is_far = off * off > variance;
        if (SITU_UNLIKELY(guessed && any_of(is_far))) {
          select(is_far, mean, guess).store(shift);
          continue;
        }
        finish(variance, eps);
        mean.store(shift);
        ((keep_order(mean - guess) - off) * P::load(scale)).store(low);
        return;
      }
    }
  }
  /// To [shift, low, scale][row], and from there.
  SITU_INLINE void keep(C* to, int64_t all, int64_t rows) const {
    for (C const* field : {shift, low, scale}) {
      if (SITU_LIKELY(rows == N)) P::load(field).store(to);
      else for (int64_t r = 0; r < rows; ++r) to[r] = field[r];
      to += all;
    }
  }
  SITU_INLINE void restore(C const* from, int64_t all, int64_t rows) {
    for (C* field : {shift, low, scale}) {
      if (SITU_LIKELY(rows == N)) P::load(from).store(field);
      else for (int64_t r = 0; r < N; ++r) field[r] = r < rows ? from[r] : C(0);
      from += all;
    }
  }

 private:
  /// The sums of x - centre and of its square.
  SITU_INLINE static void add_row(Cut const& cut, C const* row, P const& centre, P& sum, P& square) {
    P const zero(C(0));
    P s(zero), t(zero), q0(zero), q1(zero), q2(zero), q3(zero);  // as many as hide how long an addition takes
    if (cut.has_rest()) {
      s = cut.inside_only(from_centre(cut.rest(row), centre));
      q0 = s * s;
    }
    int64_t i = 0;
    for (; i + 4 * N <= cut.whole; i += 4 * N) {
      P const a = from_centre(P::load(row + i), centre), b = from_centre(P::load(row + i + N), centre);
      P const c = from_centre(P::load(row + i + 2 * N), centre), d = from_centre(P::load(row + i + 3 * N), centre);
      if constexpr (Centred) s = s + (a + b), t = t + (c + d);
      q0 = multiply_add(a, a, q0);
      q1 = multiply_add(b, b, q1);
      q2 = multiply_add(c, c, q2);
      q3 = multiply_add(d, d, q3);
    }
    for (; i < cut.whole; i += N) {
      P const d = from_centre(P::load(row + i), centre);
      if constexpr (Centred) t = t + d;
      q1 = multiply_add(d, d, q1);
    }
    sum = s + t;
    square = (q0 + q1) + (q2 + q3);
  }
  SITU_INLINE static P from_centre(P const& x, P const& centre) {
    if constexpr (Centred) return keep_order(x - centre);
    else return x;
  }
  SITU_INLINE void finish(P const& variance, double eps) {
    (P(C(1)) / math::sqrt(variance + P(static_cast<C>(eps)))).store(scale);
  }
};

/// `count` elements past the cache, from a buffer in it. What lies at `next`, if anything does, is asked for meanwhile.
template <class Isa, class T>
SITU_INLINE void stream_block(T const* from, T* to, int64_t count, T const* next) {
  constexpr int N = Isa::bytes / static_cast<int>(sizeof(T));
  int64_t i = 0;
  for (; i < count && reinterpret_cast<std::uintptr_t>(to + i) % static_cast<std::uintptr_t>(Isa::bytes) != 0; ++i) to[i] = from[i];
  for (; i + N <= count; i += N) {
    __builtin_prefetch(reinterpret_cast<void const*>(reinterpret_cast<std::uintptr_t>(next) + static_cast<std::uintptr_t>(i) * sizeof(T)));
    stream_to(pack<T, N, Isa>::load(from + i), to + i);
  }
  for (; i < count; ++i) to[i] = from[i];
}

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI
