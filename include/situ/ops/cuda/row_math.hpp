/// What a team of threads does with a row on a GPU, apart from where it lies: softmax, its logarithm, and the normalisations.
///
/// `TeamMath<Op>` holds the statistics of the row that a team works on. A row that lies in the team's registers goes through gather(), and
/// held_values() makes its elements; of a longer one every thread collects a `Part` with start(), step() and collected(), parts are joined, also with
/// those of other blocks, and finish() makes the statistics from the whole. Then values() gives the elements of the output.
#pragma once

#include <situ/expr/cuda/evaluate.hpp>
#include <situ/ops/cuda/teams.hpp>
#include <situ/ops/row_program.hpp>

#if defined(__CUDACC__)

namespace situ::inline SITU_ABI {
namespace detail::cuda {

/// The part of a row that a thread holds: every `lanes`-th step of `steps`.
struct RowShare {
  int lane, lanes, steps;
  SITU_DEVICE __forceinline__ int number(int c) const { return lane + c * lanes; }
  SITU_DEVICE __forceinline__ bool has(int c) const { return number(c) < steps; }
  /// Whether no thread of the team has step c, asked once for 8 elements.
  template <int N>
  SITU_DEVICE __forceinline__ bool ends_before(int c) const {
    return c * N % 8 == 0 && c * lanes >= steps;
  }
};

/// The numbers of a row that a thread holds: N neighbours, `steps` times.
template <class C, int K, int N>
struct HeldNumbers {
  static constexpr int steps = K, lanes = N;
  static constexpr bool takes_results = true;  ///< what is made of a number can take its place
  C numbers[K][N];
  SITU_DEVICE __forceinline__ C get(int c, int j) const { return numbers[c][j]; }
};
/// The same of 16-bit floats as they lie in memory, two in a register.
template <class T, int K, int N>
struct PackedNumbers {
  static constexpr int steps = K, lanes = N;
  static constexpr bool takes_results = false;
  Lanes<T, N> numbers[K];
  SITU_DEVICE __forceinline__ compute_t<T> get(int c, int j) const { return from_word<T>(numbers[c].bits(j)); }
};

/// N neighbours of a row of numbers beside it, from the 16-byte grid where N is more than 1: of type C, or as `narrow`, where that is not null, which is
/// 16-bit floats. They are held as memory has them, so that several loads are under way before the first number is used.
template <class C, class T, int N>
struct Beside {
  C const* wide;
  T const* narrow;
  unsigned words[N * sizeof(C) / 4];

  SITU_DEVICE __forceinline__ explicit Beside(C const* wide_ones, T const* narrow_ones = nullptr) : wide(wide_ones), narrow(sizeof(T) == 2 ? narrow_ones : nullptr) {}
  /// Those from number `index` on.
  SITU_DEVICE __forceinline__ void load(int64_t index) {
    if (narrow) load_words<T>(narrow + index);
    else if (wide) load_words<C>(wide + index);
  }
  /// Calls use(j, number) for all, where there are any.
  template <class F>
  SITU_DEVICE __forceinline__ void for_each(F const& use) const {
    if (narrow) use_words<T>(use);
    else if (wide) use_words<C>(use);
  }

 private:
  template <class X>
  static constexpr int at_once = N * sizeof(X) < 16 ? N : 16 / static_cast<int>(sizeof(X));
  template <class X>
  static constexpr int words_at_once = static_cast<int>(sizeof(Lanes<X, at_once<X>>) / 4);
  template <class X>
  SITU_DEVICE __forceinline__ void load_words(X const* from) {
#pragma unroll
    for (int k = 0; k < N / at_once<X>; ++k) {
      Lanes<X, at_once<X>> lanes;
      lanes.load_read_only(from + k * at_once<X>);
#pragma unroll
      for (int w = 0; w < words_at_once<X>; ++w) words[k * words_at_once<X> + w] = lanes.words[w];
    }
  }
  template <class X, class F>
  SITU_DEVICE __forceinline__ void use_words(F const& use) const {
#pragma unroll
    for (int k = 0; k < N / at_once<X>; ++k) {
      Lanes<X, at_once<X>> lanes;
#pragma unroll
      for (int w = 0; w < words_at_once<X>; ++w) lanes.words[w] = words[k * words_at_once<X> + w];
#pragma unroll
      for (int j = 0; j < at_once<X>; ++j) use(k * at_once<X> + j, from_word<X>(lanes.bits(j)));
    }
  }
};

/// Softmax and its logarithm.
template <class Op>
struct TeamMath {
  using C = typename Op::compute;
  static constexpr bool logarithmic = std::is_same_v<Op, rows::log_softmax<typename Op::result>>;

  struct Part {
    C best;        ///< the maximum
    double total;  ///< the sum of exp(x - best)
  };

  /// e^x.
  SITU_DEVICE __forceinline__ static C power(C x) {
#if defined(__CUDA_ARCH__)
    if constexpr (sizeof(typename Op::result) < sizeof(float)) return math::detail::exp_of_narrow(x);
#endif
    return math::exp(x);
  }

  SITU_DEVICE static C least() { return -static_cast<C>(__builtin_huge_val()); }

  /// What stands where a thread has no element.
  SITU_DEVICE static C absent() { return least(); }
  static bool takes_vectors(Op const&) { return true; }

  /// From all elements that this thread holds. A NaN is no maximum, but makes the sum NaN.
  template <class Team, class X>
  SITU_DEVICE __forceinline__ void gather(Op const&, Team& teams, X& x, RowShare const& share, int64_t) {
    constexpr int K = X::steps, N = X::lanes;
    best = least();
#pragma unroll
    for (int c = 0; c < K; ++c) {
      if (share.ends_before<N>(c)) break;
#pragma unroll
      for (int j = 0; j < N; ++j) best = larger_number_of{}(x.get(c, j), best);
    }
    best = Op::shift_of(join_team<true>(teams, best, larger_number_of{}));
    total = 0;
#pragma unroll
    for (int c = 0; c < K; ++c) {
      if (share.ends_before<N>(c)) break;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        C const e = power(x.get(c, j) - best);
        total += e;
        if constexpr (!logarithmic && X::takes_results) x.numbers[c][j] = e;
      }
    }
    finish(join_team<true>(teams, total, sum_of_two{}));
  }
  template <class X>
  SITU_DEVICE __forceinline__ void held_values(Op const& op, X const& x, int c, C (&y)[X::lanes], int64_t index) const {
#pragma unroll
    for (int j = 0; j < X::lanes; ++j) y[j] = x.get(c, j);
    if constexpr (logarithmic || !X::takes_results) {
      values(op, y, index);
    } else {
#pragma unroll
      for (int j = 0; j < X::lanes; ++j) y[j] *= total;
    }
  }
  template <int N>
  SITU_DEVICE __forceinline__ void values(Op const&, C (&x)[N], int64_t) const {
#pragma unroll
    for (int j = 0; j < N; ++j) x[j] = logarithmic ? x[j] - best - total : power(x[j] - best) * total;
  }

  SITU_DEVICE static Part nothing() { return {least(), 0}; }
  SITU_DEVICE __forceinline__ void start(Op const&, C) {
    best = least();
    total = 0;
    wide_total = 0;
  }
  template <int N>
  SITU_DEVICE __forceinline__ void step(Op const&, C const (&x)[N]) {
    C larger = best;
#pragma unroll
    for (int j = 0; j < N; ++j) larger = larger_number_of{}(x[j], larger);
    if (larger > best) {
      C const share = best == least() ? C(0) : power(best - larger);
      total *= share;
      wide_total *= static_cast<double>(share);
      best = larger;
    }
    C const shift = Op::shift_of(best);
#pragma unroll
    for (int j = 0; j < N; ++j) total += power(x[j] - shift);
  }
  SITU_DEVICE __forceinline__ void flush() {
    wide_total += static_cast<double>(total);
    total = 0;
  }
  SITU_DEVICE __forceinline__ Part collected() {
    flush();
    return {best, wide_total};
  }
  SITU_DEVICE static Part merge(Part const& x, Part const& y) {
    C const larger = larger_number_of{}(x.best, y.best);
    return {larger, scaled(x, Op::shift_of(larger)) + scaled(y, Op::shift_of(larger))};
  }
  SITU_DEVICE __forceinline__ static Part join(Teams const& teams, Part const& mine) {
    C const larger = join_team<true>(teams, mine.best, larger_number_of{});
    return {larger, join_team<true>(teams, scaled(mine, Op::shift_of(larger)), sum_of_two{})};
  }
  SITU_DEVICE __forceinline__ void finish(Op const&, Part const& whole, int64_t) {
    best = Op::shift_of(whole.best);
    finish(static_cast<C>(whole.total));
  }

 private:
  /// The sum of a part about another maximum.
  SITU_DEVICE __forceinline__ static double scaled(Part const& part, C shift) {
    if (part.total == 0) return 0;
    return part.total * (part.best == least() ? 0.0 : static_cast<double>(power(part.best - shift)));
  }
  SITU_DEVICE __forceinline__ void finish(C sum) {
    if constexpr (logarithmic) total = math::log(sum);
    else total = C(1) / sum;
  }

  C best, total;
  double wide_total;
};

/// The normalisations, layer_norm about the mean.
template <class Op>
struct NormTeamMath {
  using C = typename Op::compute;
  static constexpr bool centred = std::is_same_v<Op, rows::layer_norm<typename Op::result>>;

  SITU_DEVICE static C absent() { return 0; }
  static bool takes_vectors(Op const& op) {
    void const* const beside[] = {op.weight, op.bias, op.narrow_weight, op.narrow_bias};
    for (void const* from : beside) {
      if (reinterpret_cast<std::uintptr_t>(from) % 16 != 0) return false;
    }
    return true;
  }

  /// About the first element of the row: what is summed is small where the row is far from 0.
  struct Part {
    double sum, squares;
  };

  template <class Team, class X>
  SITU_DEVICE __forceinline__ void gather(Op const& op, Team& teams, X const& x, RowShare const& share, int64_t length) {
    constexpr int K = X::steps, N = X::lanes;
    shift = low = 0;
    C const n = static_cast<C>(length);
    if constexpr (centred) {
      C total = 0;
#pragma unroll
      for (int c = 0; c < K; ++c) {
        if (share.ends_before<N>(c)) break;
#pragma unroll
        for (int j = 0; j < N; ++j) total += x.get(c, j);
      }
      shift = join_team<true>(teams, total, sum_of_two{}) / n;
    }
    C sums[centred ? 2 : 1] = {};  // of d², d
#pragma unroll
    for (int c = 0; c < K; ++c) {
      if (share.ends_before<N>(c)) break;
      if (!share.has(c)) continue;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        C const d = x.get(c, j) - shift;
        sums[0] += d * d;
        if constexpr (centred) sums[1] += d;
      }
    }
    join_team<true>(teams, sums, sum_of_two{});
    if constexpr (centred) {
      low = sums[1] / n;
      sums[0] -= sums[1] * low;
    }
    finish(op, sums[0] / n);
  }
  template <class X>
  SITU_DEVICE __forceinline__ void held_values(Op const& op, X const& x, int c, C (&y)[X::lanes], int64_t index) const {
#pragma unroll
    for (int j = 0; j < X::lanes; ++j) y[j] = x.get(c, j);
    values(op, y, index);
  }
  template <int N>
  SITU_DEVICE __forceinline__ void values(Op const& op, C (&x)[N], int64_t index) const {
    Beside<C, typename Op::result, N> weight(op.weight, op.narrow_weight), bias(op.bias, op.narrow_bias);
    weight.load(index);
    bias.load(index);
#pragma unroll
    for (int j = 0; j < N; ++j) x[j] = (x[j] - shift) * scale + low;
    weight.for_each([&](int j, C w) { x[j] *= w; });
    bias.for_each([&](int j, C b) { x[j] += b; });
  }

  SITU_DEVICE static Part nothing() { return {0, 0}; }
  SITU_DEVICE __forceinline__ void start(Op const&, C first) {
    shift = centred ? first : C(0);
    sum = squares = 0;
    wide = nothing();
  }
  template <int N>
  SITU_DEVICE __forceinline__ void step(Op const&, C const (&x)[N]) {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      C const d = x[j] - shift;
      sum += d;
      squares += d * d;
    }
  }
  SITU_DEVICE __forceinline__ void flush() {
    wide.sum += static_cast<double>(sum);
    wide.squares += static_cast<double>(squares);
    sum = squares = 0;
  }
  SITU_DEVICE __forceinline__ Part collected() {
    flush();
    return wide;
  }
  SITU_DEVICE static Part merge(Part const& x, Part const& y) { return {x.sum + y.sum, x.squares + y.squares}; }
  SITU_DEVICE __forceinline__ static Part join(Teams const& teams, Part const& mine) {
    if constexpr (centred) {
      double sums[] = {mine.sum, mine.squares};
      join_team<true>(teams, sums, sum_of_two{});
      return {sums[0], sums[1]};
    } else {
      return {0, join_team<true>(teams, mine.squares, sum_of_two{})};
    }
  }
  SITU_DEVICE __forceinline__ void finish(Op const& op, Part const& whole, int64_t length) {
    double const n = static_cast<double>(length), off = whole.sum / n, mean = static_cast<double>(shift) + off;
    shift = static_cast<C>(mean);
    low = static_cast<C>(mean - static_cast<double>(shift));
    double const variance = whole.squares / n - off * off;
    finish(op, static_cast<C>(variance > 0 ? variance : variance == variance ? 0.0 : variance));
  }

 private:
  SITU_DEVICE __forceinline__ void finish(Op const& op, C variance) {
    scale = C(1) / math::sqrt(variance + static_cast<C>(op.eps));
    low = -low * scale;
  }

  C shift, low, scale, sum, squares;
  Part wide;
};
template <class Out>
struct TeamMath<rows::layer_norm<Out>> : NormTeamMath<rows::layer_norm<Out>> {};
template <class Out>
struct TeamMath<rows::rms_norm<Out>> : NormTeamMath<rows::rms_norm<Out>> {};

}  // namespace detail::cuda
}  // namespace situ::inline SITU_ABI

#endif
