/// The pack code of reductions that keep a number and its place.
#pragma once

#include <situ/ops/cpu/reduce_lanes.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// The pack code of argmin and argmax: the best values first, as without an index; then their places, where they beat those before.
template <class R, class Tree, int Operands>
struct IndexBody {
  using T = typename Tree::value_type;
  using E = typename R::element;
  using A = std::conditional_t<(sizeof(E) < 4), int32_t, E>;
  using Ix = signed_of_size<A>;
  static constexpr int sign = R::sign;
  static constexpr int together = 8;
  static constexpr int widest_lane = widest<Tree> > static_cast<int>(sizeof(A)) ? widest<Tree> : static_cast<int>(sizeof(A));
  using Best = std::conditional_t<(sign > 0), reducers::max<A>, reducers::min<A>>;

  template <class Isa, int N>
  SITU_INLINE static pack<A, N, Isa> value(Tree const& tree, Run<Operands> const& run, int64_t i) {
    return convert_lanes<A, T, Isa, N>(Evaluator<Isa, N>::value(tree, Source<Isa, N>{run.data, run.mask, i, run.origin}));
  }
  template <class P>
  SITU_INLINE static typename P::mask_type beats(P const& x, P const& best) {
    auto const better = sign > 0 ? x > best : x < best;
    if constexpr (std::is_floating_point_v<A>) return better | (math::isnan(x) & !math::isnan(best));
    else return better;
  }
  /// best = the better one; see CombineBody::quickly for floats.
  template <class P>
  SITU_INLINE static void quickly(P& best, [[maybe_unused]] P& odd, P const& x, [[maybe_unused]] P const& zero) {
    if constexpr (std::is_floating_point_v<A>) CombineBody<Best, Tree, Operands>::quickly(best, odd, x, zero);
    else best = select(sign > 0 ? x > best : x < best, x, best);
  }
  /// Whether quickly() met what it cannot compare, or infinities.
  template <class P>
  SITU_INLINE static bool is_odd([[maybe_unused]] P const& odd) {
    if constexpr (std::is_floating_point_v<A>) return any_of(math::isnan(odd));
    else return false;
  }

  /// Rows of elements, `row_bytes` apart operand by operand, to one number and its place each.
  struct Row {
    template <class Isa>
    SITU_INLINE static void run(Tree const* tree_, Run<Operands> const* run_, reducers::indexed<A>* results, int64_t const* row_bytes, int rows) {
      Tree const tree = *tree_;
      Run<Operands> run = CombineBody<Best, Tree, Operands>::bound(run_);
      for (int row = 0; row < rows; ++row) {
        results[row] = one<Isa>(tree, run);
        if (row + 1 == rows) return;
        for (int o = 1; o < Operands; ++o) run.data[o] = static_cast<char*>(run.data[o]) + row_bytes[o];
      }
    }

   private:
    template <class Isa>
    SITU_INLINE static reducers::indexed<A> one(Tree const& tree, Run<Operands> whole) {
      constexpr int N = Isa::bytes / widest_lane;
      using P = pack<A, N, Isa>;
      using Q = pack<Ix, N, Isa>;
      alignas(64) unsigned char buffers[Operands][64];
      if (whole.count < N) {  // repeats lose: they come later
        buffer_tail<Tree>(whole, buffers, 0, static_cast<int>(whole.count));
        whole.count = N;
      }
      Run<Operands> const run = CombineBody<Best, Tree, Operands>::bound(&whole);  // that no function has seen: its mask is known
      reducers::indexed<A> found{A(0), -1};
      int64_t i = 0, blocks = 0;
      P const zero = keep_order(P(A(0))), none(static_cast<A>(Best::identity()));
      P best = none;   // of the blocks in which all numbers are finite, lane by lane
      Q where(Ix(0));  // and the first elements of the blocks that they are from
      while (i < run.count) {
        int64_t const start = i, stop = end_of_block(start, run.count, N);
        P b = none, odd = zero;
        if (i + 4 * N <= stop) {
          P c = none, d = none, e = none, odd2 = zero, odd3 = zero, odd4 = zero;
          for (; i < stop; i += 4 * N) {
            ask_ahead<Isa, Tree, 4 * N>(run, i);
            quickly(b, odd, value<Isa, N>(tree, run, i), zero);
            quickly(c, odd2, value<Isa, N>(tree, run, i + N), zero);
            quickly(d, odd3, value<Isa, N>(tree, run, i + 2 * N), zero);
            quickly(e, odd4, value<Isa, N>(tree, run, i + 3 * N), zero);
          }
          odd = (odd + odd2) + (odd3 + odd4);
          quickly(b, odd2, c, zero);
          quickly(d, odd2, e, zero);
          quickly(b, odd2, d, zero);
        } else {  // the end of a row, whose last pack may begin before it
          for (; i < stop; i += N) quickly(b, odd, value<Isa, N>(tree, run, i + N <= stop ? i : stop - N), zero);
        }
        if (SITU_UNLIKELY(is_odd(odd))) {
          auto const odd_one = search<Isa, N>(tree, run, start, stop);
          if (found.index < 0 || Wide::beats(odd_one.value, found.value)) found = odd_one;
          continue;
        }
        where = blocks++ == 0 ? Q(static_cast<Ix>(start)) : select(sign > 0 ? b > best : b < best, Q(static_cast<Ix>(start)), where);
        quickly(best, odd, b, zero);
      }
      if (blocks == 0) return found;
      A const value = folded<Best>(best);
      int64_t const block = blocks == 1 ? where[0] : folded<reducers::min<Ix>>(select(best == P(value), where, Q(std::numeric_limits<Ix>::max())));
      bool const ties = found.index > block && found.value == value;
      return found.index < 0 || ties || Wide::beats(value, found.value) ? located<Isa, N>(tree, run, value, block) : found;
    }
    /// Where the block ends that begins with element `start` of n: one of groups of packs, or what is left of them.
    SITU_INLINE static int64_t end_of_block(int64_t start, int64_t n, int lanes) {
      int64_t const whole = (n - start) / (4 * lanes) * (4 * lanes), longest = 256 * lanes;
      return whole == 0 ? n : start + (whole < longest ? whole : longest);
    }
    /// The first element of the block from `start` on that is the best one of it. Values that are computed anew may differ from those before, under
    /// -ffast-math: then none equals it.
    template <class Isa, int N>
    SITU_INLINE static reducers::indexed<A> located(Tree const& tree, Run<Operands> const& run, A value_, int64_t start) {
      pack<A, N, Isa> const best(value_);
      int64_t const stop = end_of_block(start, run.count, N);
      int64_t i = start;
      while (i + 4 * N <= stop && !any_of((value<Isa, N>(tree, run, i) == best) | (value<Isa, N>(tree, run, i + N) == best) |
                                          (value<Isa, N>(tree, run, i + 2 * N) == best) | (value<Isa, N>(tree, run, i + 3 * N) == best))) {
        i += 4 * N;
      }
      for (; i < stop; i += N) {
        int64_t const at = i + N <= stop ? i : stop - N;
        auto const here = value<Isa, N>(tree, run, at) == best;
        if (any_of(here)) return {value_, at + first_lane<Isa, N>(here)};
      }
      return search<Isa, N>(tree, run, start, stop);
    }
    template <class Isa, int N, class M>
    SITU_INLINE static Ix first_lane(M const& here) {
      using Q = pack<Ix, N, Isa>;
      Q lanes;
      for (int k = 0; k < N; ++k) lanes.set(k, static_cast<Ix>(k));
      return folded<reducers::min<Ix>>(select(here, lanes, Q(static_cast<Ix>(N))));
    }
    /// Elements [i, n), where any of them may be NaN.
    template <class Isa, int N>
    SITU_INLINE static reducers::indexed<A> search(Tree const& tree, Run<Operands> run, int64_t i, int64_t n) {
      using P = pack<A, N, Isa>;
      using Q = pack<Ix, N, Isa>;
      alignas(64) unsigned char buffers[Operands][64];
      P best(A(0));
      Q where(Ix(0)), here;
      for (int k = 0; k < N; ++k) here.set(k, static_cast<Ix>(i + k));
      bool first = true;
      int const lanes_used = static_cast<int>(n - i < N ? n - i : N);
      for (;;) {
        for (; i + N <= n; i += N) {
          P const x = value<Isa, N>(tree, run, i);
          if (first) best = x, where = here, first = false;
          else {
            auto const m = beats(x, best);
            best = select(m, x, best);
            where = select(m, here, where);
          }
          here = here + Q(static_cast<Ix>(N));
        }
        if (i >= n) break;
        buffer_tail<Tree>(run, buffers, i, static_cast<int>(n - i));  // repeats lose: they come later
        i = 0, n = N;
      }
      A values[N];
      Ix indices[N];
      best.store(values);
      where.store(indices);
      reducers::indexed<A> found{values[0], indices[0]};
      for (int k = 1; k < lanes_used; ++k) found = merged(found, {values[k], indices[k]});
      return found;
    }
  };

  /// `rows` rows, `row_bytes` apart operand by operand, the first of which has the number `row`: 0 starts the strip. Rows that come next are
  /// asked for at the same time.
  struct Strip {
    template <class Isa>
    SITU_INLINE static void run(Tree const* tree_, Run<Operands> const* run_, A* bests, Ix* wheres, Ix row, int64_t const* row_bytes, int rows) {
      constexpr int N = Isa::bytes / widest_lane;
      using P = pack<A, N, Isa>;
      Tree const tree = *tree_;
      Run<Operands> const run = *run_;
      int64_t bytes[Operands];
      for (int o = 1; o < Operands; ++o) bytes[o] = row_bytes[o];
      P const zero = keep_order(P(A(0)));
      pack<Ix, N, Isa> const begin(row == 0 ? Ix(1) : row);
      for (int64_t i = 0; run.count >= N; i = smaller(i + N, run.count - N)) {  // what the last pack sees again changes nothing
        P odd = zero;
        int first = 0;
        P best = P::load(bests + i);
        auto where = pack<Ix, N, Isa>::load(wheres + i);
        Run<Operands> at = run;
        if (row == 0) {
          best = value<Isa, N>(tree, at, i);
          where = pack<Ix, N, Isa>(Ix(0));
          odd = multiply_add(best, zero, odd);
          step(at, bytes, i, rows);
          first = 1;
        }
        pack<Ix, N, Isa> here(begin);
        for (int r = first; r < rows; ++r) {
          P const x = value<Isa, N>(tree, at, i);
          step(at, bytes, i, rows);
          where = select(sign > 0 ? x > best : x < best, here, where);
          quickly(best, odd, x, zero);
          here = here + pack<Ix, N, Isa>(Ix(1));
        }
        if (SITU_UNLIKELY(is_odd(odd))) {
          search<Isa, N>(tree, run, bests + i, wheres + i, row, bytes, rows, i);
        } else {
          best.store(bests + i);
          where.store(wheres + i);
        }
        if (i + N == run.count) return;
      }
      Run<Operands> at = run;
      for (int r = 0; r < rows; ++r) {
        alignas(64) unsigned char buffers[Operands][64];
        Run<Operands> tail = at;
        buffer_tail<Tree>(tail, buffers, 0, static_cast<int>(run.count));
        search<Isa, N>(tree, tail, bests, wheres, static_cast<Ix>(row + r), bytes, 1, 0);
        for (int o = 1; o < Operands; ++o) at.data[o] = static_cast<char*>(at.data[o]) + bytes[o];
      }
    }

   private:
    SITU_INLINE static void step(Run<Operands>& at, int64_t const* bytes, int64_t i, int rows) {
      for (int o = 1; o < Operands; ++o) {
        int const size = ElementwiseBody<Tree, typename Tree::value_type, Operands>::element_size(o);
        if (size > 0) __builtin_prefetch(static_cast<char const*>(at.data[o]) + (i & at.mask[o]) * size + rows * bytes[o], 0, 2);
        at.data[o] = static_cast<char*>(at.data[o]) + bytes[o];
      }
    }
    /// One pack of columns, where any element may be NaN.
    template <class Isa, int N>
    SITU_INLINE static void search(Tree const& tree, Run<Operands> at, A* bests, Ix* wheres, Ix row, int64_t const* bytes, int rows, int64_t i) {
      using P = pack<A, N, Isa>;
      using Q = pack<Ix, N, Isa>;
      for (int r = 0; r < rows; ++r) {
        P const x = value<Isa, N>(tree, at, i);
        Ix const number = static_cast<Ix>(row + r);
        if (number == 0) {
          x.store(bests);
          Q(Ix(0)).store(wheres);
        } else {
          P const best = P::load(bests);
          auto const m = beats(x, best);
          select(m, x, best).store(bests);
          select(m, Q(number), Q::load(wheres)).store(wheres);
        }
        for (int o = 1; o < Operands; ++o) at.data[o] = static_cast<char*>(at.data[o]) + bytes[o];
      }
    }
  };

  using Wide = reducers::arg_extremum<A, sign>;
  static reducers::indexed<A> merged(reducers::indexed<A> a, reducers::indexed<A> b) { return Wide::merge(a, b); }
};

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI
