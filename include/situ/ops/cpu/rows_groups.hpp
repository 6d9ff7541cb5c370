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
  /// Packs of a row that has code of its own, without loops, whose ends are what processors guess wrong: 2 to 8 of them; 0 for any other row.
  SITU_INLINE int packs() const {
    if constexpr (Isa::bytes < 64) return 0;
    else return n > N && n <= 8 * N ? static_cast<int>((n + N - 1) / N) : 0;
  }
  /// Where the second pack of such a row begins for the others to fill lines, as far as the last one lets them.
  template <class T>
  SITU_INLINE int64_t second(T const* memory) const {
    int64_t const rest = n - (n - 1) / N * N, line = N - static_cast<int64_t>(reinterpret_cast<std::uintptr_t>(memory) / sizeof(T) % static_cast<std::uintptr_t>(N));
    return line > rest ? line : rest;
  }
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

/// c - a*b, fused where the instruction set fuses it.
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> multiply_subtracted(pack<T, N, Isa> const& a, pack<T, N, Isa> const& b, pack<T, N, Isa> const& c) {
  return pack<T, N, Isa>(typename pack<T, N, Isa>::vector(c.v - a.v * b.v));
}

/// Two sums for each row of a group, put together as the rows come.
template <class C, class Isa>
struct GroupSums {
  using P = typename RowCut<C, Isa>::P;
  static constexpr int N = RowCut<C, Isa>::N, lanes = Isa::bytes / 16, rows_in_lane = 8 / static_cast<int>(sizeof(C));
  P parts[2 * lanes], before;  ///< of 128 bits, each of whose halves stands for a row or two

  SITU_INLINE GroupSums() : before(C(0)) {
    for (P& part : parts) part = before;
  }
  SITU_INLINE void put(int64_t row, P const& first, P const& second) {
    P const both = woven_sums<static_cast<int>(sizeof(C))>(first, second);
    if constexpr (rows_in_lane == 1) {
      parts[row] = both;
    } else {
      if (row & 1) parts[row / 2] = woven_sums<8>(before, both);
      else before = both;
    }
  }
  SITU_INLINE void end(int64_t rows, P& first, P& second) {
    if (SITU_UNLIKELY(rows % rows_in_lane != 0)) parts[rows / 2] = woven_sums<8>(before, before);
    P const a = sums_of_parts(parts, 2), b = sums_of_parts(parts + 1, 2);
    first = every_other<0>(a, b);
    second = every_other<1>(a, b);
  }
};

/// What the elements of a normalised row are made with, for a group of rows; see RowCoefficients.
template <class C, class Isa>
struct GroupCoefficients {
  using P = typename RowCut<C, Isa>::P;
  static constexpr int N = RowCut<C, Isa>::N;
  alignas(64) C shift[N], low[N], scale[N];

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
};

/// How they are found. The rows are read once: what is summed is about a guess of the mean, which costs no digits while it is no further from it than the
/// elements are in their root mean square. Else it is summed again, about what was found; of the other rows nothing changes by that.
template <bool Centred, class C, class Isa>
struct NormGroup {
  using Cut = RowCut<C, Isa>;
  using P = typename Cut::P;
  static constexpr int N = Cut::N;
  alignas(64) C about[N];  ///< what is summed about
  GroupSums<C, Isa> sums;
  bool again = false;

  SITU_INLINE P guess(Cut const& cut, C const* x, int64_t pitch, int64_t rows) {
    constexpr int few = 16 / static_cast<int>(sizeof(C));  // rows
    if constexpr (!Centred) return P(C(0));
    P parts[GroupSums<C, Isa>::lanes];
    for (P& part : parts) part = P(C(0));
    for (int64_t r = 0; r < rows; r += few) {
      int64_t const last = rows - 1 - r;
      C const* const row = x + r * pitch;
      P a = ends(cut, row), b = ends(cut, row + (last < 1 ? last : 1) * pitch);
      if constexpr (few == 4) {
        P const c = ends(cut, row + (last < 2 ? last : 2) * pitch), d = ends(cut, row + (last < 3 ? last : 3) * pitch);
        a = woven_sums<4>(a, b), b = woven_sums<4>(c, d);
      }
      parts[r / few] = woven_sums<8>(a, b);
    }
    return sums_of_parts(parts) * P(C(1) / static_cast<C>(3 * (cut.is_short ? cut.n : N)));
  }
  template <int Packs>
  SITU_INLINE void add(Cut const& cut, C const* row, int64_t r) {
    P const centre(Centred ? about[r] : C(0)), zero(C(0));
    P sum(zero), square(zero);
    if constexpr (Packs > 0) {
      P t(zero), q1(zero), q2(zero), q3(zero);
      P const last = to_centre(row + cut.last, centre);
      sum = cut.has_rest() ? cut.inside_only(last) : last;
      square = sum * sum;
      add_packs<1, Packs>(row, centre, t, sum, q1, q2, q3, square);
      sum = sum + t;
      square = (square + q1) + (q2 + q3);
    } else {
      add_row(cut, row, centre, sum, square);
    }
    sums.put(r, sum, square);
  }
  /// Whether that was all.
  SITU_INLINE bool finish(Cut const& cut, int64_t rows, double eps, GroupCoefficients<C, Isa>& to) {
    P const zero(C(0)), one_in_n(C(1) / static_cast<C>(cut.n));
    P rest(zero), square(zero);
    sums.end(rows, rest, square);
    if constexpr (!Centred) {
      scale_of(square * one_in_n, eps).store(to.scale);
      zero.store(to.shift);
      zero.store(to.low);
      return true;
    } else {
      P const guess = P::load(about), off = zero - rest * one_in_n, variance = (square + rest * off) * one_in_n;
      P const mean = keep_order(guess + off);
      auto const is_far = off * off > variance;
      if (SITU_UNLIKELY(!again && any_of(is_far))) {
        select(is_far, mean, guess).store(about);
        again = true;
        return false;
      }
      again = false;
      P const scale = scale_of(variance, eps);
      mean.store(to.shift);
      ((keep_order(mean - guess) - off) * scale).store(to.low);
      scale.store(to.scale);
      return true;
    }
  }
  /// All of it.
  SITU_INLINE void gather(Cut const& cut, C const* x, int64_t pitch, int64_t rows, double eps, GroupCoefficients<C, Isa>& to) {
    guess(cut, x, pitch, rows).store(about);
    do {
      for (int64_t r = 0; r < rows; ++r) add<0>(cut, x + r * pitch, r);
    } while (!finish(cut, rows, eps, to));
  }

 private:
  SITU_INLINE static P ends(Cut const& cut, C const* row) { return (P::load(row) + P::load(row + cut.last / 2)) + P::load(row + cut.last); }
  template <int K, int Packs>
  SITU_INLINE static void add_packs(C const* row, P const& centre, P& s, P& t, P& q0, P& q1, P& q2, P& q3) {
    if constexpr (K < Packs) {
      P const d = to_centre(row + (K - 1) * N, centre);
      if constexpr (Centred) s = s + d;
      q0 = multiply_add(d, d, q0);
      add_packs<K + 1, Packs>(row, centre, t, s, q1, q2, q3, q0);
    }
  }
  /// The sums of centre - x and of its square.
  SITU_INLINE static void add_row(Cut const& cut, C const* row, P const& centre, P& sum, P& square) {
    P const zero(C(0));
    P s(zero), t(zero), q0(zero), q1(zero), q2(zero), q3(zero);  // as many as hide how long an addition takes
    if (cut.has_rest()) {
      s = cut.inside_only(to_centre(row + cut.last, centre));
      q0 = s * s;
    }
    int64_t i = 0;
    for (; i + 4 * N <= cut.whole; i += 4 * N) {
      P const a = to_centre(row + i, centre), b = to_centre(row + i + N, centre), c = to_centre(row + i + 2 * N, centre), d = to_centre(row + i + 3 * N, centre);
      if constexpr (Centred) s = s + (a + b), t = t + (c + d);
      q0 = multiply_add(a, a, q0);
      q1 = multiply_add(b, b, q1);
      q2 = multiply_add(c, c, q2);
      q3 = multiply_add(d, d, q3);
    }
    for (; i < cut.whole; i += N) {
      P const d = to_centre(row + i, centre);
      if constexpr (Centred) t = t + d;
      q1 = multiply_add(d, d, q1);
    }
    sum = s + t;
    square = (q0 + q1) + (q2 + q3);
  }
  /// What is subtracted from may be no register.
  SITU_INLINE static P to_centre(C const* x, P const& centre) {
    if constexpr (Centred) return keep_order(centre - P::load(x));
    else return P::load(x);
  }
  SITU_INLINE static P scale_of(P const& variance, double eps) { return P(C(1)) / math::sqrt(variance + P(static_cast<C>(eps))); }
};

/// Whether three groups of so many elements, and what is made of one, fit the nearest cache.
template <class C>
constexpr bool overlapped_groups(int64_t elements) {
  return 4 * elements * static_cast<int64_t>(sizeof(C)) <= 32 << 10;
}
/// Calls f(number) with the number of packs, 0 or 2 to 8, as a type.
template <class Isa, class F>
SITU_INLINE void with_packs(int packs, F const& f) {
  if constexpr (Isa::bytes >= 64) {
    if (packs == 2) return f.template rows<2>();
    if (packs == 3) return f.template rows<3>();
    if (packs == 4) return f.template rows<4>();
    if (packs == 5) return f.template rows<5>();
    if (packs == 6) return f.template rows<6>();
    if (packs == 7) return f.template rows<7>();
    if (packs == 8) return f.template rows<8>();
  }
  f.template rows<0>();
}

/// Where the steps of three groups at once stand: one group is written, the sums of the next are made, the mean of the one behind it is guessed, so that
/// none waits for another. Where three groups are more than the nearest cache holds, one group is taken through all steps before the next.
struct GroupSteps {
  int64_t all, most;
  bool overlap;
  int64_t guessed = 0, gathered = 0, written = 0;  ///< rows
  int64_t to_guess = 0, to_gather = 0, to_write = 0;  ///< in this step

  SITU_INLINE bool next() {
    if (written >= all) return false;
    to_write = least(gathered - written);
    to_gather = overlap || written == gathered ? least(guessed - gathered) : 0;
    to_guess = overlap ? (guessed - gathered <= most ? least(all - guessed) : 0) : written == guessed ? least(all - guessed) : 0;
    return true;
  }
  SITU_INLINE void end(bool has_gathered) {
    guessed += to_guess, written += to_write;
    if (has_gathered) gathered += to_gather;
  }

 private:
  SITU_INLINE int64_t least(int64_t n) const { return n < most ? n : most; }
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
