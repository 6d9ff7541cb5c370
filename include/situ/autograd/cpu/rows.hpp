/// The CPU's gradients of operations on rows: softmax, log_softmax, layer_norm, rms_norm. Rows are contiguous, one after the other.
///
/// A row is read from memory once: statistics first, then the elements, from the cache. Short rows of norms are taken in groups. Work is cut into blocks of rows by
/// shapes alone; the gradients of weight and bias are summed within each block, so results do not depend on the number of threads.
#pragma once

#include <situ/autograd/node.hpp>
#include <situ/device/cpu/scratch.hpp>
#include <situ/ops/cpu/rows.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

enum class RowGradient { softmax, log_softmax, layer_norm, rms_norm };

/// `b` is the result y for the softmaxes, the input x for the norms. Rows are `count` long.
template <class C>
struct RowGradientArguments {
  C const* g;
  C const* b;
  C* out;  ///< null where only weight and bias are wanted; may be g where rows are no shorter than a register
  int64_t rows, count;
  int64_t slack;  ///< elements behind the last row that may be read, of g and b
  C const* weight;
  C *weight_gradient, *bias_gradient;  ///< a row each, on top of which is added; or null
  double eps;
  bool stream;
  C const* found;  ///< of short rows: what the rows of the result were made with, [shift, low, scale][row], `all` of them; or null
  int64_t all;
};

/// The gradient of a norm, for short rows in groups of them. With z the normalised row, r = 1 / sqrt(var + eps), h = g w:
/// r (h - mean(h) - z mean(h z)); without the first mean about 0.
template <bool Centred, class C, class Isa>
struct NormGradientGroups {
  using Cut = RowCut<C, Isa>;
  using P = typename Cut::P;
  static constexpr int N = Cut::N;

  SITU_INLINE static void run(RowGradientArguments<C> const& given) {
    RowGradientArguments<C> a = given;
    Cut const cut(a.count);
    int64_t const n = a.count, most = rows_of_group<C, Isa>(n);
    NormGroup<Centred, C, Isa> group;
    GroupCoefficients<C, Isa> made_with[2];
    GroupSums<C, Isa> sums;
    alignas(64) C slopes[N], bases[N], held[group_elements + 64];
    alignas(64) C short_x[N * N], short_g[N * N], short_weight[N], short_sums[2 * N] = {};
    if (SITU_UNLIKELY(cut.is_short)) {
      if (a.weight) a.weight = padded<N>(a.weight, 0, n, 1, short_weight);
      if (a.weight_gradient) a.weight_gradient = short_sums;
      if (a.bias_gradient) a.bias_gradient = short_sums + N;
    }
    bool const writes = a.out;
    int const packs = cut.packs();
    int64_t const pitch = cut.is_short ? N : n;
    GroupSteps step{a.rows, most, !cut.is_short && overlapped_groups<C>(most * n)};
    step.guessed = a.rows;  // nothing is
    for (int number = 0; step.next(); number ^= 1) {
      C const *x = a.b + step.gathered * n, *g = a.g + step.gathered * n, *x_before = a.b + step.written * n, *g_before = a.g + step.written * n;
      C* out = a.stream ? held : a.out + step.written * n;
      if (SITU_UNLIKELY(cut.is_short)) {
        if (step.to_gather > 0) padded<N>(x, n, n, step.to_gather, short_x), padded<N>(g, n, n, step.to_gather, short_g);
        x = x_before = short_x, g = g_before = short_g, out = held;
      }
      GroupCoefficients<C, Isa>&coefficients = made_with[number], &before = made_with[number ^ 1];
      if (step.to_gather > 0) {
        if (a.found) coefficients.restore(a.found + step.gathered, a.all, step.to_gather);
        else group.gather(cut, x, pitch, step.to_gather, a.eps, coefficients);
        if (a.weight_gradient || a.bias_gradient) add_parameters(a, cut, coefficients, x, g, pitch, step.to_gather);
      }
      if (writes) {
        Pass const pass{cut, coefficients, before, sums, a.weight, x, g, x_before, g_before, out, slopes, bases, pitch, step.to_gather, step.to_write};
        with_packs<Isa>(a.weight ? 0 : packs, pass);
        if (SITU_UNLIKELY(cut.is_short)) unpadded<N>(static_cast<C const*>(held), n, step.to_write, a.out + step.written * n, n);
        else if (a.stream) stream_block<Isa>(static_cast<C const*>(held), a.out + step.written * n, step.to_write * n, x + step.to_gather * n);
        if (step.to_gather > 0) finish(cut, coefficients, sums, step.to_gather, slopes, bases);
      }
      step.end(true);
    }
    for (int64_t k = 0; SITU_UNLIKELY(cut.is_short) && k < n; ++k) {
      if (given.weight_gradient) given.weight_gradient[k] += short_sums[k];
      if (given.bias_gradient) given.bias_gradient[k] += short_sums[N + k];
    }
  }

 private:
  SITU_INLINE static P centred(P const& x, P const& shift) {
    if constexpr (Centred) return keep_order(x - shift);
    else return x;
  }
  template <bool Weighed>
  SITU_INLINE static P weighed(C const* weight, P const& g, int64_t i) {
    if constexpr (Weighed) return g * P::load(weight + i);
    else return g;
  }
  /// Rows of two groups: of one the sums, the other is written.
  struct Pass {
    Cut const& cut;
    GroupCoefficients<C, Isa> const &coefficients, &before;
    GroupSums<C, Isa>& sums;
    C const *weight, *x, *g, *x_before, *g_before;
    C *out, *slopes, *bases;
    int64_t pitch, to_gather, to_write;
    template <int Packs>
    SITU_INLINE void rows() const {
      for (int64_t r = 0; r < to_gather || r < to_write; ++r) {
        int64_t const at = r * pitch;
        if (SITU_LIKELY(r < to_gather)) {
          if constexpr (Packs > 0) add_packs<Packs>(cut, x + at, g + at, P(coefficients.shift[r]), r, sums);
          else if (weight) add_row<true>(weight, cut, x + at, g + at, P(coefficients.shift[r]), r, sums);
          else add_row<false>(weight, cut, x + at, g + at, P(coefficients.shift[r]), r, sums);
        }
        if (SITU_UNLIKELY(r >= to_write)) continue;
        P const shift(before.shift[r]), scale(before.scale[r]), slope(slopes[r]), base(bases[r]);
        if constexpr (Packs > 0) write_packs<Packs>(cut, x_before + at, g_before + at, shift, scale, slope, base, out + at);
        else if (weight) write<true>(weight, cut, x_before + at, g_before + at, shift, scale, slope, base, out + at);
        else write<false>(weight, cut, x_before + at, g_before + at, shift, scale, slope, base, out + at);
      }
    }
  };
  template <int Packs>
  SITU_INLINE static void add_packs(Cut const& cut, C const* x, C const* g, P const& shift, int64_t row, GroupSums<C, Isa>& sums) {
    P const h = cut.rest(g);
    P s = cut.has_rest() ? cut.inside_only(h) : h, t(C(0)), p(C(0));
    P q = s * centred(cut.rest(x), shift);
    add_inner<Packs - 1>(x, g, shift, t, s, p, q);
    sums.put(row, s + t, q + p);
  }
  template <int Packs>
  SITU_INLINE static void add_inner(C const* x, C const* g, P const& shift, P& s, P& t, P& q, P& p) {
    if constexpr (Packs > 0) {
      P h = P::load(g);
      hold<Isa>(h.v);  // which g++ loads twice else
      if constexpr (Centred) s = s + h;
      q = multiply_add(h, centred(P::load(x), shift), q);
      add_inner<Packs - 1>(x + N, g + N, shift, t, s, p, q);
    }
  }
  /// The first and the last pack are made before the others and stored behind them: what is written may be g.
  template <int Packs>
  SITU_INLINE static void write_packs(Cut const& cut, C const* x, C const* g, P const& shift, P const& scale, P const& slope, P const& base, C* out) {
    P const first = gradient<false>(nullptr, x, g, shift, scale, slope, base, 0), last = gradient<false>(nullptr, x, g, shift, scale, slope, base, cut.last);
    int64_t const second = cut.second(out);
    write_inner<Packs - 2>(x + second, g + second, shift, scale, slope, base, out + second);
    first.store(out);
    last.store(out + cut.last);
  }
  template <int Packs>
  SITU_INLINE static void write_inner(C const* x, C const* g, P const& shift, P const& scale, P const& slope, P const& base, C* out) {
    if constexpr (Packs > 0) {
      gradient<false>(nullptr, x, g, shift, scale, slope, base, 0).store(out);
      write_inner<Packs - 1>(x + N, g + N, shift, scale, slope, base, out + N);
    }
  }
  /// The sums of h and of h d,  d = x - shift.
  template <bool Weighed>
  SITU_INLINE static void add_row(C const* weight, Cut const& cut, C const* x, C const* g, P const& shift, int64_t row, GroupSums<C, Isa>& sums) {
    P const zero(C(0));
    P s(zero), q(zero), t(zero), p(zero);
    int64_t const whole = cut.whole;
    if (cut.has_rest()) {
      s = cut.inside_only(weighed<Weighed>(weight, cut.rest(g), cut.last));
      q = s * centred(cut.rest(x), shift);
    }
    int64_t i = 0;
    for (; i + 2 * N <= whole; i += 2 * N) {
      P h = weighed<Weighed>(weight, P::load(g + i), i), k = weighed<Weighed>(weight, P::load(g + i + N), i + N);
      hold<Isa>(h.v), hold<Isa>(k.v);  // which g++ loads twice else
      if constexpr (Centred) s = s + h, t = t + k;
      q = multiply_add(h, centred(P::load(x + i), shift), q);
      p = multiply_add(k, centred(P::load(x + i + N), shift), p);
    }
    if (i < whole) {
      P const h = weighed<Weighed>(weight, P::load(g + i), i);
      if constexpr (Centred) t = t + h;
      p = multiply_add(h, centred(P::load(x + i), shift), p);
    }
    sums.put(row, s + t, q + p);
  }
  /// An element's gradient is  r h + slope d + base.
  SITU_INLINE static void finish(Cut const& cut, GroupCoefficients<C, Isa> const& group, GroupSums<C, Isa>& sums, int64_t rows, C* slopes, C* bases) {
    P const zero(C(0));
    P total(zero), product(zero);
    sums.end(rows, total, product);
    P const one_in_n(C(1) / static_cast<C>(cut.n)), scale(P::load(group.scale)), low(P::load(group.low));
    product = product * scale;  // of h z
    if constexpr (Centred) product = multiply_add(total, low, product);
    else total = zero;
    P const share = product * one_in_n;
    (zero - share * scale * scale).store(slopes);
    (zero - (total * one_in_n + share * low) * scale).store(bases);
  }
  template <bool Weighed>
  SITU_INLINE static void write(C const* weight, Cut const& cut, C const* x, C const* g, P const& shift, P const& scale, P const& slope, P const& base, C* out) {
    P last(base);  // made first: what is written may be g
    if (cut.has_rest()) last = gradient<Weighed>(weight, x, g, shift, scale, slope, base, cut.last);
    SITU_UNROLL
    for (int64_t i = 0; i < cut.whole; i += N) gradient<Weighed>(weight, x, g, shift, scale, slope, base, i).store(out + i);
    if (cut.has_rest()) last.store(out + cut.last);
  }
  template <bool Weighed>
  SITU_INLINE static P gradient(C const* weight, C const* x, C const* g, P const& shift, P const& scale, P const& slope, P const& base, int64_t i) {
    return multiply_add(weighed<Weighed>(weight, P::load(g + i), i), scale, multiply_add(centred(P::load(x + i), shift), slope, base));
  }

  /// The gradients of weight and bias, a pack of the row after the other.
  SITU_INLINE static void add_parameters(RowGradientArguments<C> const& a, Cut const& cut, GroupCoefficients<C, Isa> const& group, C const* x, C const* g, int64_t pitch, int64_t rows) {
    P const zero(C(0));
    for (int64_t i = 0; i < cut.n; i += N) {
      P w(zero), b(zero);
      bool const whole = i < cut.whole;
      int64_t const at = whole ? i : cut.last;
      for (int64_t r = 0; r < rows; ++r) {
        P const d = P::load(g + r * pitch + at);
        b = b + d;
        w = multiply_add(d, multiply_add(centred(P::load(x + r * pitch + at), P(group.shift[r])), P(group.scale[r]), P(group.low[r])), w);
      }
      if (!whole) w = cut.inside_only(w), b = cut.inside_only(b);
      if (a.weight_gradient) (P::load(a.weight_gradient + at) + w).store(a.weight_gradient + at);
      if (a.bias_gradient) (P::load(a.bias_gradient + at) + b).store(a.bias_gradient + at);
    }
  }
};

template <RowGradient Kind, class C>
struct RowGradientBody {
  static constexpr bool is_norm = Kind == RowGradient::layer_norm || Kind == RowGradient::rms_norm;
  static constexpr bool centred = Kind == RowGradient::layer_norm;

  template <class Isa>
  SITU_INLINE static int run(RowGradientArguments<C> const* given) {
    RowGradientArguments<C> const a = *given;
    if constexpr (is_norm) {
      if (a.count <= group_elements) {
        NormGradientGroups<centred, C, Isa>::run(a);
        return 0;
      }
    }
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

/// Rows that a late gradient is computed for are no longer.
inline constexpr int64_t late_elements = group_elements;

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
  bool stream;
  C const* found;
  LateGradient const* late;  ///< in place of g; of short rows of C

  int64_t elements(int64_t) const { return rows * count; }
  void operator()(int64_t first, int64_t last) const {
    for (int64_t block = first; block < last; ++block) {
      int64_t const begin = block * rows_per_block, end = begin + rows_per_block < rows ? begin + rows_per_block : rows;
      RowGradientArguments<C> a{};
      a.count = count;
      a.weight = weight;
      a.eps = eps;
      a.stream = stream && std::is_same_v<T, C>;
      a.found = found ? found + begin : nullptr, a.all = rows;
      if (weight_gradients) a.weight_gradient = zeros_at(weight_gradients + block * count);
      if (bias_gradients) a.bias_gradient = zeros_at(bias_gradients + block * count);
      if constexpr (std::is_same_v<T, C>) {
        if (late) {
          run_late(a, begin, end);
          continue;
        }
        a.g = g + begin * count, a.b = b + begin * count;
        a.out = out ? out + begin * count : nullptr;
        a.rows = end - begin;
        a.slack = (rows - end) * count;
        dispatch<RowGradientBody<Kind, C>>(const_cast<RowGradientArguments<C> const*>(&a));
      } else {
        int64_t const some = count < group_elements ? group_elements / (count > 0 ? count : 1) : 1, room = (some * count + 127) / 64 * 64;
        Scratch const memory(3 * room * static_cast<int64_t>(sizeof(C)));
        C *const g_rows = reinterpret_cast<C*>(memory.get()), *const b_rows = g_rows + room, *const out_rows = b_rows + room;
        a.g = g_rows, a.b = b_rows;
        a.out = out ? out_rows : nullptr;
        for (int64_t row = begin; row < end; row += some) {
          a.rows = end - row < some ? end - row : some;
          a.slack = room - a.rows * count;
          dispatch<ConvertRowBody<T, C>>(g + row * count, g_rows, a.rows * count);
          dispatch<ConvertRowBody<T, C>>(b + row * count, b_rows, a.rows * count);
          dispatch<RowGradientBody<Kind, C>>(const_cast<RowGradientArguments<C> const*>(&a));
          if (out) dispatch<RoundRowBody<T, C>>(static_cast<C const*>(out_rows), out + row * count, a.rows * count);
        }
      }
    }
    if (stream && std::is_same_v<T, C>) finish_streaming();
  }

 private:
  /// Groups of rows, whose gradients are computed where they are read from the nearest cache.
  SITU_NOINLINE void run_late(RowGradientArguments<C>& a, int64_t begin, int64_t end) const {
    alignas(64) C slopes[late_elements];
    int64_t most = 16, some = late_elements / count;  // rows of a register, at most
    while (most > some) most /= 2;
    some -= some % most;
    for (int64_t row = begin; row < end; row += some) {
      a.rows = end - row < some ? end - row : some;
      a.g = slopes, a.b = b + row * count;
      a.out = out ? out + row * count : nullptr;
      late->compute(slopes, row * count, a.rows * count);
      dispatch<RowGradientBody<Kind, C>>(const_cast<RowGradientArguments<C> const*>(&a));
      if (a.found) a.found += some;
    }
  }
  C* zeros_at(C* to) const {
    for (int64_t k = 0; k < count; ++k) to[k] = C(0);
    return to;
  }
};

/// Rows of a block: some thousand elements; at most 128 blocks where each sums gradients of its own.
inline int64_t rows_per_block(int64_t rows, int64_t count, bool sums) {
  int64_t few = 16384 / (count > 0 ? count : 1) + 1, group = 16;  // rows of one, at most
  while (group > 1 && group * count > group_elements) group /= 2;
  few = (few + group - 1) / group * group;
  int64_t const share = (rows + 127) / 128;
  return sums && share > few ? share : few;
}

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI
