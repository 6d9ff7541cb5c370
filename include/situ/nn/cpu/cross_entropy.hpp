/// Cross entropy on the CPU: the scores are read once, by packs. Where the gradient is wanted, it is written from the exponentials while these
/// are at hand, for the slope that a loss most often has; backward then has nothing to do but to pass it on, or to scale it.
///
/// A row's exponentials are taken about its label's score rather than about its maximum: S = Σ exp(x_c - x_y) is at least 1, and the loss is
/// log S, without a pass for the maximum. Only a row whose scores lie so far above its label's that S overflows is looked at again. Work is
/// cut into blocks of rows by shapes alone, so results do not depend on the number of threads.
#pragma once

#include <situ/expr/cpu/launch.hpp>
#include <situ/nn/cpu/loss_parts.hpp>
#include <situ/ops/cpu/rows_groups.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

inline constexpr int label_rows = 64;  ///< rows that a kernel takes at once

/// Rows of a block: some ten thousand elements.
inline int64_t loss_rows_per_block(int64_t rows, int64_t classes) {
  int64_t const few = (int64_t{1} << 15) / (classes > 0 ? classes : 1) / label_rows * label_rows + label_rows;
  return classes >= 4096 ? (int64_t{1} << 17) / classes + 1 : few < rows || rows == 0 ? few : rows;
}

/// exp(x) for x <= 88 (double: for all x), -inf and NaN; 0 where that is below the least normal number.
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> exp_of_score(pack<T, N, Isa> const& x) {
  return exp_of_negative(x);  // its powers of two reach 127
}

/// Up to label_rows rows. Rows without a label (-1) give 0.
template <class T>
struct LabelRows {
  using C = compute_t<T>;
  T const* x;
  int64_t rows, classes;
  int64_t readable;           ///< elements from x on that may be read
  int64_t const* labels;
  // forward
  C limit;                    ///< rows with a greater S are looked at again
  C* sums;                    ///< takes log S of each row
  C const* scales;            ///< of the losses; null where they are 1
  C* shares;                  ///< takes what is subtracted from the losses: share Σ w_c (x_c - x_y); null where that is 0
  T const* weight;
  double share;
  C* losses;
  double total;               ///< of the losses
  bool all_count;             ///< every row has a label
  bool stream;
  // both
  T* out;                     ///< takes the gradient; forward only where T is C, or null
  int64_t writable;           ///< elements from out on that may be overwritten
  C const *factors, *hits;    ///< of softmax(x), and of the label's element
  int64_t step;               ///< 0 where one factor and one hit are for all rows, else 1
  C const* bases;             ///< what is subtracted from all elements; null where that is 0
};

template <class T>
struct ScoreRow {
  using C = compute_t<T>;

  template <class Isa>
  static constexpr int lanes_in = Isa::bytes / static_cast<int>(sizeof(C));

  /// Σ exp(x - shift), spread over the lanes. The exponentials go to `keep`, where `room` elements may be overwritten; where there is no
  /// room, all to its first N.
  template <class Isa>
  SITU_INLINE static pack<C, lanes_in<Isa>, Isa> sum(T const* x, int64_t n, int64_t readable, C from, C* keep, int64_t room) {
    constexpr int N = lanes_in<Isa>;
    using P = pack<C, N, Isa>;
    P const shift(from);
    int64_t const whole = n / N * N, moves = room > 0 ? -1 : 0;
    P tail(C(0));
    if (whole < n) {
      P const e = term<Isa>(P(load_last<T, N, Isa>(x + whole, n - whole, readable - whole)), shift);
      tail = select(lanes_below<C, N, Isa>(n - whole), e, tail);
      if (room > 0) store_tail<C>(tail, keep + whole, n - whole, room - whole);
    }
    if (whole == 0) return tail;
    double total = 0;
    for (int64_t i = 0; i < whole; i += row_block) {
      P const part = run<Isa>(x + i, whole - i < row_block ? whole - i : row_block, shift, keep + (i & moves), moves);
      if (SITU_LIKELY(whole <= row_block)) return tail + part;
      if (i == 0) total = static_cast<double>(sum_of_lanes(tail));
      total += static_cast<double>(sum_of_lanes(part));
    }
    P result(C(0));
    result.set(0, static_cast<C>(total));
    return result;
  }
  /// The same for rows of at most N scores, one pack each: `rows` of them, whose labels are labels[0], ...; all of x + N may be read for each.
  /// Exponentials go to rows of N.
  template <class Isa>
  SITU_INLINE static void short_sums(T const* x, int64_t n, int64_t rows, int64_t const* labels, C* keep, pack<C, lanes_in<Isa>, Isa>* sums) {
    constexpr int N = lanes_in<Isa>;
    using P = pack<C, N, Isa>;
    auto const inside = lanes_below<C, N, Isa>(n);
    P const zero(C(0));
    for (int64_t k = 0; k < rows; ++k, x += n) {
      int64_t const label = labels[k] < 0 ? 0 : labels[k];
      P const e = term<Isa>(P(load_lanes<T, N, Isa>(x)), P(static_cast<C>(x[label])));
      e.store(keep + k * N);
      sums[k] = select(inside, e, zero);
    }
  }
  /// The place of the maximum; of a NaN where there is one.
  SITU_NOINLINE static int64_t highest(T const* x, int64_t n) {
    int64_t place = 0;
    for (int64_t k = 1; k < n; ++k) {
      if (C const v = static_cast<C>(x[k]); v > static_cast<C>(x[place]) || v != v) place = k;
    }
    return place;
  }
  /// Σ w_c (x_c - shift).
  SITU_NOINLINE static double share(T const* x, int64_t n, C shift, T const* weight) {
    double total = 0;
    for (int64_t k = 0; k < n; k += 64) {
      C part = 0;
      for (int64_t j = k; j < n && j < k + 64; ++j) part += (static_cast<C>(x[j]) - shift) * (weight ? static_cast<C>(weight[j]) : C(1));
      total += static_cast<double>(part);
    }
    return total;
  }

 private:
  template <class Isa, int N>
  SITU_INLINE static pack<C, N, Isa> term(pack<C, N, Isa> const& x, pack<C, N, Isa> const& shift) {
    return exp_of_score(math::detail::at_most(x - shift, C(88)));
  }
  template <class Isa>
  SITU_INLINE static pack<C, lanes_in<Isa>, Isa> run(T const* x, int64_t n, pack<C, lanes_in<Isa>, Isa> const& shift, C* keep, int64_t moves) {
    constexpr int N = lanes_in<Isa>;
    using P = pack<C, N, Isa>;
    P s(C(0)), s1 = s;  // take turns
    for (int64_t i = 0; i < n; i += N) {
      P const e = term<Isa>(P(load_lanes<T, N, Isa>(x + i)), shift);
      e.store(keep + (i & moves));
      P const next = s + e;
      s = s1;
      s1 = next;
    }
    return s + s1;
  }
};

template <class T>
struct LabelForwardBody {
  using C = compute_t<T>;
  template <class Isa>
  SITU_INLINE static int run(LabelRows<T>* given) {
    constexpr int N = ScoreRow<T>::template lanes_in<Isa>;
    using P = pack<C, N, Isa>;
    LabelRows<T> const a = *given;
    int64_t const n = a.classes, padded = (n + N - 1) / N * N;
    bool const holds = N * padded <= group_elements;  // exponentials, of a group of rows; else they go where the gradient will be
    alignas(64) C held[group_elements];
    double total = 0;
    for (int64_t first = 0; first < a.rows; first += N) {
      P parts[N];
      C bases[N] = {}, shifts[N];
      int64_t const end = a.rows - first < N ? a.rows - first : N;
      int64_t k = 0, pitch = holds ? padded : 0;
      C* keep = held;
      if constexpr (std::is_same_v<T, C>) {
        if (!holds && a.out) keep = a.out + first * n, pitch = n;
      }
      P s(C(0));
      if (n <= N) {
        int64_t const room = a.readable - first * n - N;
        int64_t const easy = room < 0 ? 0 : end <= room / n ? end : room / n + 1 < end ? room / n + 1 : end;
        ScoreRow<T>::template short_sums<Isa>(a.x + first * n, n, easy, a.labels + first, held, parts);
        k = easy;
      }
      for (int64_t j = k; j < end; ++j) {
        int64_t const label = a.labels[first + j];
        if (label >= 0) shifts[j] = static_cast<C>(a.x[(first + j) * n + label]);
      }
      for (bool again = false;; again = true) {
        for (; k < end; ++k) {
          int64_t const row = first + k;
          if (a.labels[row] < 0 || (again && s[static_cast<int>(k)] <= a.limit)) continue;
          parts[k] = ScoreRow<T>::template sum<Isa>(a.x + row * n, n, a.readable - row * n, shifts[k], keep + k * pitch, pitch);
          if (again) s.set(static_cast<int>(k), sum_of_lanes(parts[k]));
        }
        if (again) break;
        for (; k < N; ++k) parts[k] = P(C(1) / C(N));
        for (k = 0; SITU_UNLIKELY(!a.all_count) && k < end; ++k) {
          if (a.labels[first + k] < 0) parts[k] = P(C(1) / C(N));
        }
        s = sums_of_packs(parts);
        if (SITU_LIKELY(!math::detail::any(!(s <= P(a.limit))))) break;
        for (k = 0; k < end; ++k) {  // again about the row's maximum
          if (s[static_cast<int>(k)] <= a.limit) continue;
          T const* const x = a.x + (first + k) * n;
          shifts[k] = static_cast<C>(x[ScoreRow<T>::highest(x, n)]);
          bases[k] = shifts[k] - static_cast<C>(x[a.labels[first + k]]);
        }
        k = 0;
      }
      P const log_sums = math::log(s) + P::load(bases);
      P losses(log_sums);
      log_sums.store(a.sums + first);
      if (a.scales) losses = losses * P::load(a.scales + first);
      if (a.shares) losses = losses - P::load(a.shares + first);
      losses.store(a.losses + first);
      total += static_cast<double>(sum_of_lanes(losses));
      if constexpr (std::is_same_v<T, C>) {
        C* const to = a.out + first * n;
        bool const streams = a.stream && holds;
        if (a.out) write<Isa>(a, first, end, P(C(1)) / s, keep, pitch, streams ? held : to, streams ? group_elements : a.writable - first * n);
        if (streams) stream_block<Isa>(static_cast<C const*>(held), to, end * n, a.x + (first + end) * n);
      }
    }
    given->total = total;
    return 0;
  }

 private:
  /// The gradients of rows from their exponentials, `pitch` apart. They may be written over these: a row begins no later than its exponentials.
  template <class Isa, int N>
  SITU_INLINE static void write(LabelRows<T> const& a, int64_t first, int64_t rows, pack<C, N, Isa> const& inverses, C const* from, int64_t pitch, C* out, int64_t writable) {
    using P = pack<C, N, Isa>;
    int64_t const n = a.classes, whole = n / N * N;
    alignas(64) C inverse[N];
    inverses.store(inverse);
    for (int64_t k = 0; k < rows; ++k, from += pitch, out += n) {
      int64_t const row = first + k, label = a.labels[row];
      if (SITU_UNLIKELY(label < 0)) {
        std::memset(out, 0, static_cast<std::size_t>(n) * sizeof(C));
        continue;
      }
      P const factor(inverse[k] * a.factors[row * a.step]), base(a.bases ? a.bases[row] : C(0));
      if (n < N) {
        store_tail<C>(P::load(from) * factor - base, out, n, writable - k * n);  // what is overwritten behind the row is written after it
      } else {
        P const last = P::load(from + n - N) * factor - base;  // made first
        for (int64_t i = 0; i < whole; i += N) (P::load(from + i) * factor - base).store(out + i);
        last.store(out + n - N);
      }
      out[label] -= a.hits[row * a.step];
    }
  }
};

/// Rows of the gradient times factors.
template <class T>
struct LabelScaleBody {
  template <class Isa>
  SITU_INLINE static int run(T* rows, int64_t count, int64_t n, T const* factors) {
    constexpr int N = Isa::bytes / static_cast<int>(sizeof(T));
    using P = pack<T, N, Isa>;
    for (int64_t k = 0; k < count; ++k, rows += n) {
      if (factors[k] == T(1)) continue;
      P const factor(factors[k]);
      int64_t i = 0;
      for (; i + N <= n; i += N) (P::load(rows + i) * factor).store(rows + i);
      for (; i < n; ++i) rows[i] = rows[i] * factors[k];
    }
    return 0;
  }
};

template <class T>
struct LabelBackwardBody {
  using C = compute_t<T>;
  template <class Isa>
  SITU_INLINE static int run(LabelRows<T> const* given) {
    constexpr int N = ScoreRow<T>::template lanes_in<Isa>;
    using P = pack<C, N, Isa>;
    LabelRows<T> const a = *given;
    int64_t const n = a.classes;
    for (int64_t row = 0; row < a.rows; ++row) {
      T const* const x = a.x + row * n;
      T* const out = a.out + row * n;
      int64_t const label = a.labels[row];
      if (label < 0) {
        std::memset(static_cast<void*>(out), 0, static_cast<std::size_t>(n) * sizeof(T));
        continue;
      }
      C at = static_cast<C>(x[label]), low = a.sums[row];
      C const factor_of_row = a.factors[row * a.step], hit = a.hits[row * a.step];
      if (SITU_UNLIKELY(!(low < C(far_label)))) {
        int64_t const highest = ScoreRow<T>::highest(x, n);
        at = static_cast<C>(x[highest]);
        low = log_sum(x, n, a.readable - row * n, highest);
      }
      P const shift(at), less(low), factor(factor_of_row), base(a.bases ? a.bases[row] : C(0));
      bool const fills = n >= N, direct = fills || a.writable - row * n >= N;  // what is overwritten behind the row is written after it
      T lanes[N];
      for (int64_t i = 0, last = n - N;; i = i + N < last ? i + N : last) {
        P const scores = fills ? P(load_lanes<T, N, Isa>(x + i)) : P(load_last<T, N, Isa>(x, n, a.readable - row * n));
        store_lanes<T, N, Isa>(exp_of_score(keep_order(scores - shift) - less) * factor - base, direct ? out + i : lanes);
        if (i >= last) break;
      }
      if (!direct) copy_short(out, lanes, n * static_cast<int64_t>(sizeof(T)));
      if constexpr (std::is_same_v<T, C>) {
        out[label] -= hit;
      } else {  // rounded once
        C const p = math::exp(static_cast<C>(x[label]) - at - low);
        out[label] = convert_scalar<T>(p * factor_of_row - (a.bases ? a.bases[row] : C(0)) - hit);
      }
    }
    return 0;
  }

 private:
  /// log Σ exp(x_c - x_highest), which the forward pass takes of a row with that label.
  SITU_NOINLINE static C log_sum(T const* x, int64_t n, int64_t readable, int64_t highest) {
    alignas(64) C sums[label_rows], losses[label_rows];
    LabelRows<T> row{};
    row.x = x, row.rows = 1, row.classes = n, row.readable = readable, row.labels = &highest, row.all_count = true;
    row.limit = std::numeric_limits<C>::max(), row.sums = sums, row.losses = losses;
    dispatch<LabelForwardBody<T>>(&row);
    return sums[0];
  }
};

/// The labels of rows, -1 where they have no part; gives how many have one. With Tell, bad ones are written down.
template <bool Tell, class T, class Ix>
int64_t find_labels(LabelProgram<T, Ix> const& p, int64_t row, int64_t count, int64_t* labels) {
  int64_t valid = 0, ignored = 0;
  for (int64_t k = 0; k < count; ++k) {
    int64_t const given = static_cast<int64_t>(p.labels[row + k]);
    bool const skip = given == p.ignored, good = !skip & (static_cast<uint64_t>(given) < static_cast<uint64_t>(p.classes));
    labels[k] = good ? given : -1;
    valid += good, ignored += skip;
  }
  for (int64_t k = row; Tell && SITU_UNLIKELY(valid + ignored != count) && k < row + count; ++k) {
    if (p.label(k) == p.no_class) record_fault(p.bounds, static_cast<int64_t>(p.labels[k]), k);
  }
  return valid;
}

/// The losses of rows with labels: cross entropy, or with Logarithms the negative log-likelihood. Items are blocks of rows.
template <bool Logarithms, class T, class Ix>
struct LabelForward {
  using C = compute_t<T>;
  LabelProgram<T, Ix> p;
  int64_t rows_per_block;
  LossPart* parts;  ///< of blocks; null where there is one block
  bool stream;

  int64_t elements(int64_t) const { return p.rows * p.classes; }
  void operator()(int64_t first, int64_t last) const {
    double all_weights = 0;
    if (p.smoothing > 0) {
      for (int64_t c = 0; c < p.classes; ++c) all_weights += static_cast<double>(p.weight_of(c));
    }
    for (int64_t block = first; block < last; ++block) {
      LossPart part{};
      int64_t const end = (block + 1) * rows_per_block < p.rows ? (block + 1) * rows_per_block : p.rows;
      for (int64_t row = block * rows_per_block; row < end; row += label_rows) some(row, end - row < label_rows ? end - row : label_rows, end, all_weights, part);
      if (parts) parts[block] = part;
      else p.finish(part);
    }
    if (stream) finish_streaming();
  }

 private:
  void some(int64_t row, int64_t count, int64_t end, double all_weights, LossPart& part) const {
    alignas(64) C scales[label_rows] = {}, shares[label_rows] = {}, losses[label_rows] = {};
    alignas(64) C factors[label_rows], hits[label_rows], bases[label_rows];
    int64_t labels[label_rows];
    bool const smooths = p.smoothing > 0, scaled = p.weight || smooths;
    T const* const x = p.x + row * p.classes;
    double total = 0, slope = 0;
    if (p.gradient) {
      slope = p.usual_slope();
      factors[0] = hits[0] = static_cast<C>(slope);
    }
    int64_t const valid = find_labels<true>(p, row, count, labels);
    if (!p.weight) part.weight += static_cast<double>(valid);
    for (int64_t k = 0; (Logarithms || scaled) && k < count; ++k) {
      int64_t const label = labels[k];
      if (label < 0) continue;
      C const weight = p.weight_of(label);
      if (p.weight) part.weight += static_cast<double>(weight);
      if constexpr (Logarithms) {
        losses[k] = -static_cast<C>(x[k * p.classes + label]) * weight;
        total += static_cast<double>(losses[k]);
      } else {
        LabelFactors const f = label_factors(p, label, all_weights);
        scales[k] = static_cast<C>(f.scale);
        factors[k] = static_cast<C>(slope * f.scale), hits[k] = static_cast<C>(slope * f.hit), bases[k] = static_cast<C>(slope * p.share());
        if (smooths) shares[k] = static_cast<C>(p.share() * ScoreRow<T>::share(x + k * p.classes, p.classes, static_cast<C>(x[k * p.classes + label]), p.weight));
      }
    }
    if constexpr (!Logarithms) {
      alignas(64) C sums[label_rows];
      LabelRows<T> a{};
      a.x = x, a.rows = count, a.classes = p.classes, a.readable = (p.rows - row) * p.classes, a.labels = labels;
      a.sums = sums, a.losses = losses;
      a.all_count = valid == count;
      a.limit = C(1e30);
      if constexpr (std::is_same_v<T, C>) {
        if (p.gradient) a.out = p.gradient + row * p.classes, a.limit = C(1e7), a.stream = stream;  // somewhat more than exp(far_label)
      }
      a.writable = (end - row) * p.classes;
      a.factors = factors, a.hits = hits, a.step = scaled;
      a.bases = smooths ? bases : nullptr;
      a.scales = scaled ? scales : nullptr;
      a.shares = smooths ? shares : nullptr;
      dispatch<LabelForwardBody<T>>(&a);
      total = a.total;
      if (p.sums) std::memcpy(p.sums + row, sums, static_cast<std::size_t>(count) * sizeof(C));
    }
    part.loss += total;
    if (p.how != reduction::none) return;
    for (int64_t k = 0; k < count; ++k) p.losses[row + k] = convert_scalar<T>(losses[k]);
  }
};

/// The gradient of the scores. Items are blocks of rows.
template <bool Logarithms, class T, class Ix>
struct LabelBackward {
  using C = compute_t<T>;
  LabelProgram<T, Ix> p;
  int64_t rows_per_block;
  T const* g;  ///< of the result
  T* out;

  int64_t elements(int64_t) const { return p.rows * p.classes; }
  void operator()(int64_t first, int64_t last) const {
    double all_weights = 0;
    if (p.smoothing > 0) {
      for (int64_t c = 0; c < p.classes; ++c) all_weights += static_cast<double>(p.weight_of(c));
    }
    double const scalar = p.how == reduction::none ? 0 : static_cast<double>(static_cast<C>(*g)) / static_cast<double>(p.sums[p.rows]);
    if (p.gradient && scalar == p.usual_slope() && p.how != reduction::none) return;
    for (int64_t block = first; block < last; ++block) {
      int64_t const end = (block + 1) * rows_per_block < p.rows ? (block + 1) * rows_per_block : p.rows;
      for (int64_t row = block * rows_per_block; row < end; row += label_rows) some(row, end - row < label_rows ? end - row : label_rows, end, all_weights, scalar);
    }
  }

 private:
  void some(int64_t row, int64_t count, int64_t end, double all_weights, double scalar) const {
    int64_t const n = p.classes;
    alignas(64) C factors[label_rows], hits[label_rows], bases[label_rows] = {};
    int64_t labels[label_rows];
    bool const smooths = p.smoothing > 0, weighed = smooths && p.weight, each = p.weight || smooths || p.how == reduction::none;
    (void)find_labels<false>(p, row, count, labels);
    if constexpr (std::is_same_v<T, C> && !Logarithms) {
      if (p.gradient) {
        for (int64_t k = 0; k < count; ++k) factors[k] = labels[k] < 0 ? C(1) : static_cast<C>((p.how == reduction::none ? static_cast<double>(g[row + k]) : scalar) / p.usual_slope());
        dispatch<LabelScaleBody<C>>(out + row * n, count, n, static_cast<C const*>(factors));
        return;
      }
    }
    for (int64_t k = 0; k < (each ? count : 1); ++k) {
      factors[k] = hits[k] = C(0);
      if (each && labels[k] < 0) continue;
      double const slope = p.how == reduction::none ? static_cast<double>(static_cast<C>(g[row + k])) : scalar;
      LabelFactors const f = label_factors(p, labels[k] < 0 ? 0 : labels[k], all_weights);
      factors[k] = static_cast<C>(slope * f.scale);
      hits[k] = static_cast<C>(slope * f.hit);
      if (smooths) bases[k] = static_cast<C>(slope * p.share());
    }
    if constexpr (Logarithms) {
      std::memset(static_cast<void*>(out + row * n), 0, static_cast<std::size_t>(count * n) * sizeof(T));
      for (int64_t k = 0; k < count; ++k) {
        if (labels[k] >= 0) out[(row + k) * n + labels[k]] = convert_scalar<T>(-hits[each ? k : 0]);
      }
    } else {
      LabelRows<T> a{};
      a.x = p.x + row * n, a.rows = count, a.classes = n, a.readable = (p.rows - row) * n, a.labels = labels;
      a.sums = p.sums + row;
      a.out = out + row * n, a.writable = (end - row) * n;
      a.factors = factors, a.hits = hits, a.step = each;
      a.bases = smooths && !weighed ? bases : nullptr;
      dispatch<LabelBackwardBody<T>>(const_cast<LabelRows<T> const*>(&a));
      for (int64_t k = 0; weighed && k < count; ++k) {
        T* const to = out + (row + k) * n;
        for (int64_t c = 0; labels[k] >= 0 && c < n; ++c) to[c] = convert_scalar<T>(static_cast<C>(to[c]) - bases[k] * p.weight_of(c));
      }
    }
  }
};

}  // namespace detail::cpu

namespace detail {

/// Runs a loss of labels on D, which has the CPU's kernels: one launch, or two when rows are cut into blocks.
template <class D, bool Logarithms, class T, class Ix>
void launch_label_loss(cpu_kernels, LabelProgram<T, Ix> const& p) {
  int64_t const block_rows = cpu::loss_rows_per_block(p.rows, p.classes), blocks = p.rows > block_rows ? (p.rows + block_rows - 1) / block_rows : 1;
  bool const joins = blocks > 1 && p.how != reduction::none;
  Temporary<D> const memory(joins ? static_cast<std::size_t>(blocks) * sizeof(LossPart) : 0);
  auto* const parts = static_cast<LossPart*>(memory.get());
  using Kernel = cpu::LabelForward<Logarithms, T, Ix>;
  int64_t const bytes = p.rows * p.classes * static_cast<int64_t>(sizeof(T));
  Kernel const kernel{p, block_rows, parts, p.gradient && cpu::goes_past_caches(bytes, bytes)};
  device_traits<D>::launch(kernel, blocks, 2);
  if (joins) device_traits<D>::launch(cpu::JoinLosses<LabelProgram<T, Ix>>{p, parts, blocks}, 1, 1);
}
template <class D, bool Logarithms, class T, class Ix>
void launch_label_gradient(cpu_kernels, LabelProgram<T, Ix> const& p, T const* g, T* out) {
  int64_t const block_rows = cpu::loss_rows_per_block(p.rows, p.classes), blocks = (p.rows + block_rows - 1) / block_rows;
  device_traits<D>::launch(cpu::LabelBackward<Logarithms, T, Ix>{p, block_rows, g, out}, blocks, 2);
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
