/// The pack code of operations on rows, over memory: whole rows, parts of a row, and strips of rows side by side.
///
/// Elements come from memory or from a buffer in the cache, already in the type of the arithmetic; nothing here depends on the
/// expression that they are made from.
#pragma once

#include <situ/ops/cpu/rows_groups.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// Rows that lie one after the other. Statistics first; then the elements.
template <class Op>
struct RowsArguments {
  using C = typename Op::compute;
  using Out = typename Op::result;
  C const* x;
  C* work;  ///< room for a row and a register; every row uses it again
  Out* out;
  int64_t rows, count;
  int64_t pitch, out_pitch;
  int64_t slack;      ///< elements behind the last row that may be read
  NextRow next;       ///< behind the last of these rows
  bool stream;
  bool grouped;       ///< short rows: taken in groups, where the operation has a way to
  int64_t first, all; ///< number of the first of these rows, and of all rows
  Op op;
};

/// y times the weights and plus the biases of the elements from number k on, `left` of which exist.
template <bool Weighed, class Op, class C, int N, class Isa>
SITU_INLINE pack<C, N, Isa> weighed(Op const& op, pack<C, N, Isa> const& y, int64_t k, int64_t left) {
  using P = pack<C, N, Isa>;
  P result(y);
  if constexpr (Weighed) {
    if (op.weight) result = result * (left >= N ? P::load(op.weight + k) : load_tail<C, N, Isa>(op.weight + k, left, left, C(0)));
    if (op.bias) result = result + (left >= N ? P::load(op.bias + k) : load_tail<C, N, Isa>(op.bias + k, left, left, C(0)));
  }
  return result;
}

/// Writes `n` elements of a row, the first of which has the number `first` in it.
template <class Op, class Isa, bool Kept, bool Weighed>
SITU_INLINE void write_elements(Op const& op, typename Op::compute const* x, int64_t readable, int64_t n, RowCoefficients<typename Op::compute> const& row,
                                typename Op::result* out, int64_t writable, int64_t first, bool stream) {
  using C = typename Op::compute;
  using Out = typename Op::result;
  constexpr int N = Isa::bytes / static_cast<int>(sizeof(C));
  using P = pack<C, N, Isa>;
  using Math = RowMath<Op>;
  P const shift(row.shift), low(row.low), scale(row.scale);
  int64_t i = 0;
  if constexpr (std::is_same_v<C, Out>) {
    if (stream && reinterpret_cast<std::uintptr_t>(out) % static_cast<std::uintptr_t>(Isa::bytes) == 0) {
      for (; i + N <= n; i += N) {
        stream_to(weighed<Weighed>(op, Math::template value<Isa, Kept, N>(P::load(x + i), shift, low, scale), first + i, n - i), out + i);
      }
    }
  }
  for (; i + N <= n; i += N) {
    store_lanes<Out, N, Isa>(weighed<Weighed>(op, Math::template value<Isa, Kept, N>(P::load(x + i), shift, low, scale), first + i, n - i), out + i);
  }
  if (i < n) {
    P const tail = load_tail<C, N, Isa>(x + i, n - i, readable - i, C(0));
    store_tail<Out>(weighed<Weighed>(op, Math::template value<Isa, Kept, N>(tail, shift, low, scale), first + i, n - i), out + i, n - i, writable - i);
  }
}
template <class Op, class Isa, bool Kept>
SITU_INLINE void write_row(Op const& op, typename Op::compute const* x, int64_t readable, int64_t n, RowCoefficients<typename Op::compute> const& row,
                           typename Op::result* out, int64_t writable, int64_t first, bool stream) {
  if constexpr (requires { op.weight; }) {
    if (op.weight || op.bias) return write_elements<Op, Isa, Kept, true>(op, x, readable, n, row, out, writable, first, stream);
  }
  write_elements<Op, Isa, Kept, false>(op, x, readable, n, row, out, writable, first, stream);
}

/// Norms of short rows, in groups of them.
template <class Op>
struct NormGroups {
  using C = typename Op::compute;
  using Out = typename Op::result;
  template <class Isa>
  SITU_INLINE static void run(RowsArguments<Op> const& a) {
    using Cut = RowCut<C, Isa>;
    constexpr int N = Cut::N;
    Cut const cut(a.count);
    int64_t const most = rows_of_group<C, Isa>(a.count);
    bool const streams = a.stream && a.out_pitch == a.count && std::is_same_v<C, Out>;
    bool const weighs = a.op.weight || a.op.bias;
    int const packs = cut.packs();
    NormGroup<RowMath<Op>::centred, C, Isa> group;
    GroupCoefficients<C, Isa> made_with;
    typename Cut::P ahead(C(0));  // the next guess
    alignas(64) Out held[group_elements + 64];
    alignas(64) C short_x[N * N], short_weight[N], short_bias[N];
    C const *weight = a.op.weight, *bias = a.op.bias;
    if (SITU_UNLIKELY(cut.is_short)) {
      if (weight) weight = padded<N>(weight, 0, cut.n, 1, short_weight);
      if (bias) bias = padded<N>(bias, 0, cut.n, 1, short_bias);
    }
    int64_t const pitch = cut.is_short ? N : a.pitch, to_pitch = cut.is_short ? N : a.out_pitch;
    GroupSteps step{a.rows, most, !cut.is_short && overlapped_groups<C>(most * cut.n)};
    while (step.next()) {
      C const *guess_x = a.x + step.guessed * a.pitch, *gather_x = a.x + step.gathered * a.pitch, *write_x = a.x + step.written * a.pitch;
      Out *const out = a.out + step.written * a.out_pitch, *const to = streams || cut.is_short ? held : out;
      if (SITU_UNLIKELY(cut.is_short)) {
        if (step.to_guess > 0) padded<N>(guess_x, a.pitch, cut.n, step.to_guess, short_x);
        guess_x = gather_x = write_x = short_x;
      }
      if (step.to_guess > 0) ahead = group.guess(cut, guess_x, pitch, step.to_guess);
      Pass<Isa> const pass{cut, group, made_with, weight, bias, gather_x, write_x, pitch, to, to_pitch, step.to_gather, step.to_write};
      with_packs<Isa>(weighs ? 0 : packs, pass);
      if (SITU_UNLIKELY(cut.is_short)) {
        unpadded<N>(static_cast<Out const*>(held), cut.n, step.to_write, out, a.out_pitch);
      } else if constexpr (std::is_same_v<C, Out>) {
        if (streams) stream_block<Isa>(static_cast<Out const*>(held), out, step.to_write * a.count, a.x + (step.guessed + step.to_guess) * a.pitch);
      }
      bool const done = step.to_gather == 0 || group.finish(cut, step.to_gather, a.op.eps, made_with);
      if (done) ahead.store(group.about);
      if (a.op.found && done) made_with.keep(a.op.found + a.first + step.gathered, a.all, step.to_gather);
      step.end(done);
    }
  }

 private:
  /// Rows of two groups: of one the sums, the other is written.
  template <class Isa>
  struct Pass {
    RowCut<C, Isa> const& cut;
    NormGroup<RowMath<Op>::centred, C, Isa>& group;
    GroupCoefficients<C, Isa> const& made_with;
    C const *weight, *bias, *gather_x, *write_x;
    int64_t pitch;
    Out* to;
    int64_t to_pitch, to_gather, to_write;
    template <int Packs>
    SITU_INLINE void rows() const {
      for (int64_t r = 0; r < to_gather || r < to_write; ++r) {
        if (SITU_LIKELY(r < to_gather)) group.template add<Packs>(cut, gather_x + r * pitch, r);
        if (SITU_UNLIKELY(r >= to_write)) continue;
        if constexpr (Packs > 0) write_packs<Isa, Packs>(cut, write_x + r * pitch, made_with, r, to + r * to_pitch);
        else if (weight || bias) write<Isa, true>(weight, bias, cut, write_x + r * pitch, made_with, r, to + r * to_pitch);
        else write<Isa, false>(weight, bias, cut, write_x + r * pitch, made_with, r, to + r * to_pitch);
      }
    }
  };
  template <class Isa, int Packs>
  SITU_INLINE static void write_packs(RowCut<C, Isa> const& cut, C const* x, GroupCoefficients<C, Isa> const& group, int64_t row, Out* out) {
    constexpr int N = RowCut<C, Isa>::N;
    using P = pack<C, N, Isa>;
    P const shift(group.shift[row]), low(group.low[row]), scale(group.scale[row]);
    P const first = made<Isa, false>(nullptr, nullptr, P::load(x), shift, low, scale, 0), last = made<Isa, false>(nullptr, nullptr, cut.rest(x), shift, low, scale, 0);
    int64_t const second = cut.second(out);
    write_inner<Isa, Packs - 2>(x + second, shift, low, scale, out + second);
    store_lanes<Out, N, Isa>(first, out);
    store_lanes<Out, N, Isa>(last, out + cut.last);
  }
  template <class Isa, int Packs, int N>
  SITU_INLINE static void write_inner(C const* x, pack<C, N, Isa> const& shift, pack<C, N, Isa> const& low, pack<C, N, Isa> const& scale, Out* out) {
    if constexpr (Packs > 0) {
      store_lanes<Out, N, Isa>(made<Isa, false>(nullptr, nullptr, pack<C, N, Isa>::load(x), shift, low, scale, 0), out);
      write_inner<Isa, Packs - 1>(x + N, shift, low, scale, out + N);
    }
  }
  template <class Isa, bool Weighed, class Group>
  SITU_INLINE static void write(C const* weight, C const* bias, RowCut<C, Isa> const& cut, C const* x, Group const& group, int64_t row, Out* out) {
    constexpr int N = RowCut<C, Isa>::N;
    using P = pack<C, N, Isa>;
    P const shift(group.shift[row]), low(group.low[row]), scale(group.scale[row]);
    P last(shift);
    if (cut.has_rest()) last = made<Isa, Weighed>(weight, bias, cut.rest(x), shift, low, scale, cut.last);
    SITU_UNROLL
    for (int64_t i = 0; i < cut.whole; i += N) store_lanes<Out, N, Isa>(made<Isa, Weighed>(weight, bias, P::load(x + i), shift, low, scale, i), out + i);
    if (cut.has_rest()) store_lanes<Out, N, Isa>(last, out + cut.last);
  }
  template <class Isa, bool Weighed, int N>
  SITU_INLINE static pack<C, N, Isa> made(C const* weight, C const* bias, pack<C, N, Isa> const& x, pack<C, N, Isa> const& shift, pack<C, N, Isa> const& low,
                                          pack<C, N, Isa> const& scale, int64_t i) {
    using P = pack<C, N, Isa>;
    P y(shift);
    if constexpr (RowMath<Op>::centred) y = multiply_subtracted(keep_order(shift - x), scale, low);
    else y = x * scale;
    if constexpr (Weighed) {
      if (weight) y = y * P::load(weight + i);
      if (bias) y = y + P::load(bias + i);
    }
    return y;
  }
};

/// Whole rows: statistics and elements.
template <class Op>
struct RowsBody {
  template <class Isa>
  SITU_INLINE static int run(RowsArguments<Op> const* given) {
    using C = typename Op::compute;
    RowsArguments<Op> const arguments = *given;
    if constexpr (requires { RowMath<Op>::centred; }) {
      if (arguments.grouped) {
        NormGroups<Op>::template run<Isa>(arguments);
        return 0;
      }
    }
    C const* x = arguments.x;
    C* const work = arguments.work;
    auto* out = arguments.out;
    int64_t const n = arguments.count;
    bool const dense = arguments.out_pitch == n;
    for (int64_t row = 0; row < arguments.rows; ++row) {
      int64_t const after = arguments.rows - 1 - row;
      int64_t const readable = n + arguments.slack + (arguments.pitch > 0 ? after * arguments.pitch : 0);
      int64_t const writable = dense ? n + after * n : n;
      NextRow const next = after > 0 ? NextRow{{reinterpret_cast<char const*>(x + arguments.pitch), nullptr}, {static_cast<int64_t>(sizeof(C)), 0}} : arguments.next;
      RowStatistics const statistics = RowMath<Op>::template gather<Isa, RowMath<Op>::keeps>(arguments.op, x, readable, work, n, next);
      C const* const from = RowMath<Op>::keeps ? work : x;
      write_row<Op, Isa, RowMath<Op>::keeps>(arguments.op, from, RowMath<Op>::keeps ? n + 64 : readable, n, arguments.op.finish(statistics), out, writable, 0,
                                             arguments.stream);
      x += arguments.pitch;
      out += arguments.out_pitch;
    }
    return 0;
  }
};

/// The statistics of a part of a row.
template <class Op>
struct GatherBody {
  template <class Isa>
  SITU_INLINE static int run(Op const* op, typename Op::compute const* x, int64_t readable, int64_t n, RowStatistics* result) {
    *result = RowMath<Op>::template gather<Isa, false>(*op, x, readable, nullptr, n, NextRow{});
    return 0;
  }
};
template <class Op>
struct WriteBody {
  using C = typename Op::compute;
  template <class Isa>
  SITU_INLINE static int run(Op const* op, C const* x, int64_t readable, int64_t n, RowCoefficients<C> const* row, typename Op::result* out, int64_t first,
                             bool stream) {
    write_row<Op, Isa, false>(*op, x, readable, n, *row, out, n, first, stream);
    return 0;
  }
};

/// Elements of a strip, row by row: `n` rows, the first of which has the number `first`.
template <class Op, bool Kept>
struct WriteColumnsBody {
  using C = typename Op::compute;
  using Out = typename Op::result;
  template <class Isa>
  SITU_INLINE static int run(Op const* op, C const* x, int64_t x_pitch, int64_t pitch, int64_t columns, int64_t n, C const* statistics, Out* out,
                             int64_t out_pitch, int64_t first, bool stream) {
    constexpr int N = Isa::bytes / static_cast<int>(sizeof(C));
    using P = pack<C, N, Isa>;
    for (int64_t i = 0; i < n; ++i) {
      bool const past = stream && reinterpret_cast<std::uintptr_t>(out) % static_cast<std::uintptr_t>(Isa::bytes) == 0;
      for (int64_t k = 0; k < columns; k += N) {
        __builtin_prefetch(x + 8 * x_pitch + k, 0, 2);
        C const *const a = statistics + k, *const b = a + pitch, *const c = b + pitch;
        P y = RowMath<Op>::template value<Isa, Kept, N>(P::load(x + k), P::load(a), P::load(b), P::load(c));
        if constexpr (requires { op->weight; }) {
          if (op->weight) y = y * P(op->weight[first + i]);
          if (op->bias) y = y + P(op->bias[first + i]);
        }
        if constexpr (std::is_same_v<C, Out>) {
          if (past && columns - k >= N) {
            stream_to(y, out + k);
            continue;
          }
        }
        if (columns - k >= N) store_lanes<Out, N, Isa>(y, out + k);
        else store_tail<Out>(y, out + k, columns - k, columns - k);
      }
      x += x_pitch;
      out += out_pitch;
    }
    return 0;
  }
};

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI
