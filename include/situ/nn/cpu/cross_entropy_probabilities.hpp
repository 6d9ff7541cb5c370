/// Cross entropy with a probability for each class, on the CPU: a row is looked at twice, the second time in the cache.
#pragma once

#include <situ/nn/cpu/cross_entropy.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// Up to all rows of a block, with a probability for each class.
template <class T>
struct ProbabilityRows {
  using C = compute_t<T>;
  T const *x, *targets, *weight;
  int64_t rows, classes, readable;
  C keep, share;             ///< targets are taken as keep t + share
  C* sums;                   ///< forward: takes of each row m = max x and log Σ exp(x - m), or null; backward: holds them
  C* losses;                 ///< takes the losses, or null
  double total;              ///< of the losses
  C const* slopes;           ///< backward: one for each row, or one where `same_slope`
  bool same_slope;
  T *out, *target_out;       ///< null where not wanted
};

/// loss = Σ w t (log S + m - x), m = max x, S = Σ exp(x - m).
template <class T>
struct ProbabilityForwardBody {
  using C = compute_t<T>;
  template <class Isa>
  SITU_INLINE static int run(ProbabilityRows<T>* given) {
    constexpr int N = ScoreRow<T>::template lanes_in<Isa>;
    using P = pack<C, N, Isa>;
    ProbabilityRows<T> const a = *given;
    int64_t const n = a.classes;
    P const keep(a.keep), share(a.share), zero(C(0));
    double all = 0;
    for (int64_t row = 0; row < a.rows; ++row) {
      T const *const x = a.x + row * n, *const targets = a.targets + row * n;
      int64_t const readable = a.readable - row * n;
      C const m = maximum<Isa>(x, n, readable);
      P const shift(m);
      double sum = 0, weights = 0, products = 0;
      for (int64_t i = 0; i < n;) {
        int64_t const stop = i + row_block < n ? i + row_block : n;
        P s(zero), w(zero), q(zero);
        for (; i < stop; i += N) {
          P const d = P(load_last<T, N, Isa>(x + i, n - i < N ? n - i : N, readable - i)) - shift;
          P e = exp_of_score(d);
          P t = multiply_add(P(load_last<T, N, Isa>(targets + i, n - i < N ? n - i : N, readable - i)), keep, share);
          if (a.weight) t = t * P(load_last<T, N, Isa>(a.weight + i, n - i < N ? n - i : N, n - i));
          P product = t * d;
          if (n - i < N) {
            auto const inside = lanes_below<C, N, Isa>(n - i);
            e = select(inside, e, zero), t = select(inside, t, zero), product = select(inside, product, zero);
          }
          s = s + e;
          w = w + t;
          q = q + product;
        }
        sum += static_cast<double>(sum_of_lanes(s)), weights += static_cast<double>(sum_of_lanes(w)), products += static_cast<double>(sum_of_lanes(q));
      }
      C const log_sum = math::log(static_cast<C>(sum));
      double const loss = weights * static_cast<double>(log_sum) - products;
      if (a.sums) a.sums[2 * row] = m, a.sums[2 * row + 1] = log_sum;
      if (a.losses) a.losses[row] = static_cast<C>(loss);
      all += loss;
    }
    given->total = all;
    return 0;
  }

 private:
  template <class Isa>
  SITU_INLINE static C maximum(T const* x, int64_t n, int64_t readable) {
    constexpr int N = ScoreRow<T>::template lanes_in<Isa>;
    using P = pack<C, N, Isa>;
    P m(-static_cast<C>(__builtin_huge_val()));
    for (int64_t i = 0; i < n; i += N) {
      P v(load_last<T, N, Isa>(x + i, n - i < N ? n - i : N, readable - i));
      if (n - i < N) v = select(lanes_below<C, N, Isa>(n - i), v, m);
      m = larger(m, v);
    }
    return largest_lane(m);
  }
};

/// With A = Σ w t: of the scores g (A softmax(x) - w t), of the targets g w (log Σ exp - x).
template <class T>
struct ProbabilityBackwardBody {
  using C = compute_t<T>;
  template <class Isa>
  SITU_INLINE static int run(ProbabilityRows<T> const* given) {
    constexpr int N = ScoreRow<T>::template lanes_in<Isa>;
    using P = pack<C, N, Isa>;
    ProbabilityRows<T> const a = *given;
    int64_t const n = a.classes;
    P const keep(a.keep), share(a.share), zero(C(0));
    for (int64_t row = 0; row < a.rows; ++row) {
      T const *const x = a.x + row * n, *const targets = a.targets + row * n;
      int64_t const readable = a.readable - row * n;
      C const g = a.slopes[a.same_slope ? 0 : row];
      double weights = 0;
      for (int64_t i = 0; a.out && i < n;) {
        int64_t const stop = i + row_block < n ? i + row_block : n;
        P w(zero);
        for (; i < stop; i += N) {
          P const t = target<Isa>(a, targets, i, readable, keep, share);
          w = w + (n - i < N ? select(lanes_below<C, N, Isa>(n - i), t, zero) : t);
        }
        weights += static_cast<double>(sum_of_lanes(w));
      }
      P const slope(g), factor(static_cast<C>(weights * static_cast<double>(g))), m(a.sums[2 * row]), log_sum(a.sums[2 * row + 1]), kept(g * a.keep);
      for (int64_t i = 0; i < n; i += N) {
        P const d = keep_order(P(load_last<T, N, Isa>(x + i, n - i < N ? n - i : N, readable - i)) - m) - log_sum;
        if (a.out) store<Isa>(exp_of_score(d) * factor - target<Isa>(a, targets, i, readable, keep, share) * slope, a.out + row * n + i, n - i);
        if (a.target_out) {
          P h = -(d * kept);
          if (a.weight) h = h * P(load_last<T, N, Isa>(a.weight + i, n - i < N ? n - i : N, n - i));
          store<Isa>(h, a.target_out + row * n + i, n - i);
        }
      }
    }
    return 0;
  }

 private:
  template <class Isa, int N>
  SITU_INLINE static pack<C, N, Isa> target(ProbabilityRows<T> const& a, T const* targets, int64_t i, int64_t readable, pack<C, N, Isa> const& keep,
                                            pack<C, N, Isa> const& share) {
    using P = pack<C, N, Isa>;
    int64_t const left = a.classes - i;
    P const t = multiply_add(P(load_last<T, N, Isa>(targets + i, left < N ? left : N, readable - i)), keep, share);
    if (!a.weight) return t;
    return t * P(load_last<T, N, Isa>(a.weight + i, left < N ? left : N, left));
  }
  template <class Isa, int N>
  SITU_INLINE static void store(pack<C, N, Isa> const& v, T* to, int64_t left) {
    if (SITU_LIKELY(left >= N)) return store_lanes<T, N, Isa>(v, to);
    T lanes[N];
    store_lanes<T, N, Isa>(v, lanes);
    copy_short(to, lanes, left * static_cast<int64_t>(sizeof(T)));
  }
};

/// The losses of rows with probabilities, or their gradients. Items are blocks of rows.
template <class T>
struct ProbabilityForward {
  using C = compute_t<T>;
  ProbabilityProgram<T> p;
  int64_t rows_per_block;
  LossPart* parts;  ///< of blocks; null where there is one block

  int64_t elements(int64_t) const { return p.rows * p.classes; }
  void operator()(int64_t first, int64_t last) const {
    for (int64_t block = first; block < last; ++block) {
      LossPart part{};
      int64_t const end = (block + 1) * rows_per_block < p.rows ? (block + 1) * rows_per_block : p.rows;
      for (int64_t row = block * rows_per_block; row < end; row += label_rows) {
        int64_t const count = end - row < label_rows ? end - row : label_rows;
        C losses[label_rows];
        ProbabilityRows<T> a = rows_of(p, row, count);
        a.sums = p.sums ? p.sums + 2 * row : nullptr;
        a.losses = p.how == reduction::none ? losses : nullptr;
        dispatch<ProbabilityForwardBody<T>>(&a);
        part.loss += a.total;
        for (int64_t k = 0; a.losses && k < count; ++k) p.losses[row + k] = convert_scalar<T>(losses[k]);
      }
      if (parts) parts[block] = part;
      else p.finish(part);
    }
  }
  static ProbabilityRows<T> rows_of(ProbabilityProgram<T> const& p, int64_t row, int64_t count) {
    ProbabilityRows<T> a{};
    a.x = p.x + row * p.classes, a.targets = p.targets + row * p.classes, a.weight = p.weight;
    a.rows = count, a.classes = p.classes, a.readable = (p.rows - row) * p.classes;
    a.keep = static_cast<C>(1 - p.smoothing), a.share = static_cast<C>(p.smoothing / static_cast<double>(p.classes));
    return a;
  }
};
template <class T>
struct ProbabilityBackward {
  using C = compute_t<T>;
  ProbabilityProgram<T> p;
  int64_t rows_per_block;
  T const* g;
  T *out, *target_out;

  int64_t elements(int64_t) const { return p.rows * p.classes; }
  void operator()(int64_t first, int64_t last) const {
    bool const same = p.how != reduction::none;
    for (int64_t row = first * rows_per_block; row < last * rows_per_block && row < p.rows; row += label_rows) {
      int64_t const end = last * rows_per_block < p.rows ? last * rows_per_block : p.rows, count = end - row < label_rows ? end - row : label_rows;
      C slopes[label_rows];
      for (int64_t k = 0; k < (same ? 1 : count); ++k) slopes[k] = static_cast<C>(static_cast<double>(static_cast<C>(g[same ? 0 : row + k])) / p.divisor);
      ProbabilityRows<T> a = ProbabilityForward<T>::rows_of(p, row, count);
      a.sums = p.sums + 2 * row;
      a.slopes = slopes, a.same_slope = same;
      a.out = out ? out + row * p.classes : nullptr, a.target_out = target_out ? target_out + row * p.classes : nullptr;
      dispatch<ProbabilityBackwardBody<T>>(const_cast<ProbabilityRows<T> const*>(&a));
    }
  }
};

}  // namespace detail::cpu

namespace detail {

template <class D, class T>
void launch_probability_loss(cpu_kernels, ProbabilityProgram<T> const& p) {
  int64_t const block_rows = cpu::loss_rows_per_block(p.rows, p.classes), blocks = p.rows > block_rows ? (p.rows + block_rows - 1) / block_rows : 1;
  bool const joins = blocks > 1 && p.how != reduction::none;
  Temporary<D> const memory(joins ? static_cast<std::size_t>(blocks) * sizeof(LossPart) : 0);
  auto* const parts = static_cast<LossPart*>(memory.get());
  cpu::ProbabilityForward<T> const kernel{p, block_rows, parts};
  device_traits<D>::launch(kernel, blocks, 1);
  if (joins) device_traits<D>::launch(cpu::JoinLosses<ProbabilityProgram<T>>{p, parts, blocks}, 1, 1);
}
template <class D, class T>
void launch_probability_gradient(cpu_kernels, ProbabilityProgram<T> const& p, T const* g, T* out, T* target_out) {
  int64_t const block_rows = cpu::loss_rows_per_block(p.rows, p.classes);
  device_traits<D>::launch(cpu::ProbabilityBackward<T>{p, block_rows, g, out, target_out}, (p.rows + block_rows - 1) / block_rows, 1);
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
