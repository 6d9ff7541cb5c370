/// The pack code of reductions that keep one number, or a number and its place.
#pragma once

#include <situ/expr/cpu/evaluate.hpp>
#include <situ/ops/reducers.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// The lanes of a, `Steps` places down, those at the end from the beginning.
template <int Steps, class P, int... K>
SITU_INLINE P lanes_down(P const& a, [[maybe_unused]] std::integer_sequence<int, K...> places) {
  constexpr int N = P::lanes;
  P result;
#if defined(__clang__)
  result.v = __builtin_shufflevector(a.v, a.v, ((K + Steps) % N)...);
#else
  typedef typename vector_of<signed_of_size<typename P::value_type>, N>::type Indices;
  Indices const from = {((K + Steps) % N)...};
  result.v = __builtin_shuffle(a.v, from);
#endif
  return result;
}

/// All lanes of a pack in one, as a balanced tree.
template <class R, class P>
SITU_INLINE typename P::value_type folded(P const& a) {
  using A = typename P::value_type;
  constexpr int N = P::lanes;
  if constexpr (sizeof(A) >= 4 && N <= 16) {
    constexpr std::make_integer_sequence<int, N> places{};
    P y = a;
    if constexpr (N > 8) y = R::combine(y, lanes_down<8>(y, places));
    if constexpr (N > 4) y = R::combine(y, lanes_down<4>(y, places));
    if constexpr (N > 2) y = R::combine(y, lanes_down<2>(y, places));
    if constexpr (N > 1) y = R::combine(y, lanes_down<1>(y, places));
    return y[0];
  } else {
    A lanes[N];
    a.store(lanes);
    for (int half = N / 2; half > 0; half /= 2) {
      for (int k = 0; k < half; ++k) lanes[k] = R::combine(lanes[k], lanes[k + half]);
    }
    return lanes[0];
  }
}

/// The pack code of a reducer that combines values alone.
template <class R, class Tree, int Operands>
struct CombineBody {
  using T = typename Tree::value_type;
  using A = typename R::element;
  static constexpr int widest_lane = widest<Tree> > static_cast<int>(sizeof(A)) ? widest<Tree> : static_cast<int>(sizeof(A));
  /// Rows that a strip's kernel takes at once: as many as their pointers find registers.
  static constexpr int together = Operands == 2 ? 8 : 4;

  template <class Isa, int N>
  SITU_INLINE static pack<A, N, Isa> value(Tree const& tree, Run<Operands> const& run, int64_t i) {
    return convert_lanes<A, T, Isa, N>(Evaluator<Isa, N>::value(tree, Source<Isa, N>{run.data, run.mask, i, run.origin}));
  }

  /// A single operand is always contiguous: no mask stands in its loop.
  SITU_INLINE static Run<Operands> bound(Run<Operands> const* run_) {
    Run<Operands> run = *run_;
    if constexpr (Operands == 2) run.mask[1] = -1;
    return run;
  }

  /// The sum of a block, which -ffast-math may not dissolve into one long sum.
  template <class P>
  SITU_INLINE static P apart(P const& block) {
    if constexpr (std::is_floating_point_v<A>) return keep_order(block);
    else return block;
  }

  static constexpr bool finds_extremum = std::is_floating_point_v<A> && requires { R::extremum; };

  /// best = the better one of x and best where x is a number; `odd` becomes NaN where x is none, or infinite. `zero` is a 0 that
  /// went through keep_order: -ffast-math would do without the product.
  template <class P>
  SITU_INLINE static void quickly(P& best, P& odd, P const& x, P const& zero) {
    odd = multiply_add(x, zero, odd);
#if SITU_MATH_X86_ASM
    if constexpr (math::detail::has_extrema<A, P::lanes, typename P::isa_type>) {
      auto const v = x.v;
      if constexpr (sizeof(A) == 4 && R::extremum > 0) __asm__("vmaxps {%0, %1, %0|%0, %1, %0}" : "+v"(best.v) : "v"(v));
      else if constexpr (sizeof(A) == 4) __asm__("vminps {%0, %1, %0|%0, %1, %0}" : "+v"(best.v) : "v"(v));
      else if constexpr (R::extremum > 0) __asm__("vmaxpd {%0, %1, %0|%0, %1, %0}" : "+v"(best.v) : "v"(v));
      else __asm__("vminpd {%0, %1, %0|%0, %1, %0}" : "+v"(best.v) : "v"(v));
      return;
    }
#endif
    best = select(R::extremum > 0 ? x > best : x < best, x, best);
  }

  /// The first `count` lanes, and nothing behind them.
  template <class P>
  SITU_INLINE static P first_lanes(P const& x, int count) {
    A lanes[P::lanes];
    x.store(lanes);
    for (int k = count; k < P::lanes; ++k) lanes[k] = static_cast<A>(R::identity());
    return P::load(lanes);
  }

  /// Rows of elements, `row_bytes` apart operand by operand, to one number each.
  struct Row {
    template <class Isa>
    SITU_INLINE static void run(Tree const* tree_, Run<Operands> const* run_, A* results, int64_t const* row_bytes, int rows) {
      Tree const tree = *tree_;
      Run<Operands> run = bound(run_);
      for (int row = 0; row < rows; ++row) {
        results[row] = one<Isa>(tree, run);
        if (row + 1 == rows) return;
        for (int o = 1; o < Operands; ++o) run.data[o] = static_cast<char*>(run.data[o]) + row_bytes[o];
      }
    }

   private:
    template <class Isa>
    SITU_INLINE static A one(Tree const& tree, Run<Operands> run) {
      constexpr int N = Isa::bytes / widest_lane;
      using P = pack<A, N, Isa>;
      int64_t i = 0;
      P const none(static_cast<A>(R::identity()));
      P a = none;
      while (i + 4 * N <= run.count) {  // few additions in a row, then their sum: rounding errors stay small
        int64_t const whole = (run.count - i) / (4 * N) * (4 * N);
        constexpr int64_t longest = finds_extremum ? 256 * N : 64 * N;
        int64_t const stop = i + (whole < longest ? whole : longest);
        P b = none, c = none, d = none, e = none;
        if constexpr (finds_extremum) {  // in half the instructions where all numbers are finite
          int64_t const start = i;
          P const zero = keep_order(P(A(0)));
          P odd = zero, odd2 = zero, odd3 = zero, odd4 = zero;
          for (; i < stop; i += 4 * N) {
            quickly(b, odd, value<Isa, N>(tree, run, i), zero);
            quickly(c, odd2, value<Isa, N>(tree, run, i + N), zero);
            quickly(d, odd3, value<Isa, N>(tree, run, i + 2 * N), zero);
            quickly(e, odd4, value<Isa, N>(tree, run, i + 3 * N), zero);
          }
          if (SITU_LIKELY(!any_of(math::isnan((odd + odd2) + (odd3 + odd4))))) {
            quickly(b, odd, c, zero);
            quickly(d, odd, e, zero);
            quickly(b, odd, d, zero);
            quickly(a, odd, b, zero);  // a NaN of a stays
            continue;
          }
          i = start, b = c = d = e = none;
        }
        for (; i < stop; i += 4 * N) {
          b = R::combine(b, value<Isa, N>(tree, run, i));
          c = R::combine(c, value<Isa, N>(tree, run, i + N));
          d = R::combine(d, value<Isa, N>(tree, run, i + 2 * N));
          e = R::combine(e, value<Isa, N>(tree, run, i + 3 * N));
        }
        a = R::combine(a, apart(R::combine(apart(R::combine(b, c)), apart(R::combine(d, e)))));
      }
      alignas(64) unsigned char buffers[Operands][64];
      int tail = 0;
      for (int64_t n = run.count;;) {
        P b = none;
        for (; i + N <= n; i += N) b = R::combine(b, value<Isa, N>(tree, run, i));
        if (SITU_UNLIKELY(tail > 0)) b = first_lanes(b, tail);
        a = R::combine(a, apart(b));
        if (i >= n) break;
        tail = static_cast<int>(n - i);  // once more, on padded copies
        buffer_tail<Tree>(run, buffers, i, tail);
        i = 0, n = N;
      }
      return folded<R>(a);
    }
  };

  /// A multiple of `together` rows of elements, or one, into a strip of accumulators that is padded to whole packs. Rows lie `row_bytes`
  /// apart, operand by operand. The rows that come next are asked for at the same time.
  struct Strip {
    template <class Isa>
    SITU_INLINE static int run(Tree const* tree_, Run<Operands> const* run_, A* strip, int64_t const* row_bytes, int rows) {
      constexpr int N = Isa::bytes / widest_lane;
      using P = pack<A, N, Isa>;
      Tree const tree = *tree_;
      Run<Operands> run = bound(run_);
      int64_t i = 0;
      for (int first = 0; first + together <= rows; first += together) {
        Run<Operands> at[together];
        int64_t bytes[Operands];
        bool near = false;
        for (int o = 1; o < Operands; ++o) bytes[o] = row_bytes[o], near = near || (bytes[o] < 4096 && bytes[o] > -4096);
        for (int row = 0; row < together; ++row) {
          at[row] = run;
          for (int o = 1; o < Operands; ++o) at[row].data[o] = static_cast<char*>(run.data[o]) + (first + row) * bytes[o];
        }
        constexpr std::make_integer_sequence<int, together> all{};
        constexpr int line = 64 / static_cast<int>(sizeof(T)) > N ? 64 / static_cast<int>(sizeof(T)) : N;
        bool const asks = Isa::bytes == 64 || near;  // where rows are pages long, most processors foresee what comes next
        for (i = 0; i + N <= run.count; i += N) {
          if (asks && i % line == 0) ask_for_next(at, bytes, i, all);
          P const sum = joined<Isa, N>(tree, at, i, all);
          R::combine(P::load(strip + i), sum).store(strip + i);
        }
      }
      if (i == run.count && rows >= together) return 0;
      for (int row = 0; row < rows; ++row) {  // of several rows the last columns
        add_row<Isa, N>(tree, run, strip, i);
        if (row + 1 == rows) break;
        for (int o = 1; o < Operands; ++o) run.data[o] = static_cast<char*>(run.data[o]) + row_bytes[o];
      }
      return 0;
    }

    template <class Isa, int N, int... Row>
    SITU_INLINE static pack<A, N, Isa> joined(Tree const& tree, Run<Operands> const* at, int64_t i, std::integer_sequence<int, Row...>) {
      pack<A, N, Isa> const x[] = {value<Isa, N>(tree, at[Row], i)...};
      auto const first = R::combine(R::combine(x[0], x[1]), R::combine(x[2], x[3]));
      if constexpr (together == 4) return first;
      else return R::combine(first, R::combine(R::combine(x[4], x[5]), R::combine(x[6], x[7])));
    }
    template <int... Row>
    SITU_INLINE static void ask_for_next(Run<Operands> const* at, int64_t const* bytes, int64_t i, std::integer_sequence<int, Row...>) {
      (ask_for_next(at[Row], bytes, i), ...);
    }
    SITU_INLINE static void ask_for_next(Run<Operands> const& at, int64_t const* bytes, int64_t i) {
      for (int o = 1; o < Operands; ++o) {
        int const size = ElementwiseBody<Tree, typename Tree::value_type, Operands>::element_size(o);
        if (size > 0) __builtin_prefetch(static_cast<char const*>(at.data[o]) + (i & at.mask[o]) * size + together * bytes[o], 0, 2);
      }
    }

    template <class Isa, int N>
    SITU_INLINE static void add_row(Tree const& tree, Run<Operands> run, A* strip, int64_t i) {
      using P = pack<A, N, Isa>;
      alignas(64) unsigned char buffers[Operands][64];
      int64_t n = run.count;
      for (;;) {
        for (; i + N <= n; i += N) R::combine(P::load(strip + i), value<Isa, N>(tree, run, i)).store(strip + i);
        if (i >= n) return;
        buffer_tail<Tree>(run, buffers, i, static_cast<int>(n - i));
        strip += i;
        i = 0, n = N;
      }
    }
  };
};

/// The pack code of argmin and argmax: the best values first, as without an index; then their places, where they beat those before.
template <class R, class Tree, int Operands>
struct IndexBody {
  using T = typename Tree::value_type;
  using E = typename R::element;
  using A = std::conditional_t<(sizeof(E) < 4), int32_t, E>;
  using I = signed_of_size<A>;
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

  struct Row {
    template <class Isa>
    SITU_INLINE static void run(Tree const* tree_, Run<Operands> const* run_, reducers::indexed<A>* result) {
      constexpr int N = Isa::bytes / widest_lane;
      using P = pack<A, N, Isa>;
      Tree const tree = *tree_;
      Run<Operands> run = *run_;
      reducers::indexed<A> found{A(0), -1};
      bool located = true;  // else `found` has the index of its block's first element
      int64_t i = 0;
      P const zero = keep_order(P(A(0))), none(static_cast<A>(Best::identity()));
      while (i + 4 * N <= run.count) {
        int64_t const whole = (run.count - i) / (4 * N) * (4 * N), start = i;
        int64_t const stop = i + (whole < 256 * N ? whole : 256 * N);
        P b = none, c = none, d = none, e = none, odd = zero, odd2 = zero, odd3 = zero, odd4 = zero;
        for (; i < stop; i += 4 * N) {
          quickly(b, odd, value<Isa, N>(tree, run, i), zero);
          quickly(c, odd2, value<Isa, N>(tree, run, i + N), zero);
          quickly(d, odd3, value<Isa, N>(tree, run, i + 2 * N), zero);
          quickly(e, odd4, value<Isa, N>(tree, run, i + 3 * N), zero);
        }
        if (SITU_UNLIKELY(is_odd((odd + odd2) + (odd3 + odd4)))) {
          auto const odd_one = search<Isa, N>(tree, run, start, stop);
          if (found.index < 0 || Wide::beats(odd_one.value, found.value)) found = odd_one, located = true;
          continue;
        }
        quickly(b, odd, c, zero);
        quickly(d, odd, e, zero);
        quickly(b, odd, d, zero);
        A const best = folded<Best>(b);
        if (found.index < 0 || Wide::beats(best, found.value)) found = {best, start}, located = false;
      }
      if (i < run.count) {
        auto const last = search<Isa, N>(tree, run, i, run.count);
        if (found.index < 0 || Wide::beats(last.value, found.value)) found = last, located = true;
      }
      if (!located) {  // among values that are computed anew: under -ffast-math these may differ from those above
        int64_t const whole = (run.count - found.index) / (4 * N) * (4 * N);
        found = search<Isa, N>(tree, run, found.index, found.index + (whole < 256 * N ? whole : 256 * N));
      }
      *result = found;
    }

   private:
    /// Elements [i, n), where any of them may be NaN.
    template <class Isa, int N>
    SITU_INLINE static reducers::indexed<A> search(Tree const& tree, Run<Operands> run, int64_t i, int64_t n) {
      using P = pack<A, N, Isa>;
      using Q = pack<I, N, Isa>;
      alignas(64) unsigned char buffers[Operands][64];
      P best(A(0));
      Q where(I(0)), here;
      for (int k = 0; k < N; ++k) here.set(k, static_cast<I>(i + k));
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
          here = here + Q(static_cast<I>(N));
        }
        if (i >= n) break;
        buffer_tail<Tree>(run, buffers, i, static_cast<int>(n - i));  // repeats lose: they come later
        i = 0, n = N;
      }
      A values[N];
      I indices[N];
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
    SITU_INLINE static void run(Tree const* tree_, Run<Operands> const* run_, A* bests, I* wheres, I row, int64_t const* row_bytes, int rows) {
      constexpr int N = Isa::bytes / widest_lane;
      using P = pack<A, N, Isa>;
      Tree const tree = *tree_;
      Run<Operands> const run = *run_;
      int64_t bytes[Operands];
      for (int o = 1; o < Operands; ++o) bytes[o] = row_bytes[o];
      P const zero = keep_order(P(A(0)));
      pack<I, N, Isa> const begin(row == 0 ? I(1) : row);
      int64_t i = 0;
      for (; i + N <= run.count; i += N) {
        P odd = zero;
        int first = 0;
        P best = P::load(bests + i);
        auto where = pack<I, N, Isa>::load(wheres + i);
        Run<Operands> at = run;
        if (row == 0) {
          best = value<Isa, N>(tree, at, i);
          where = pack<I, N, Isa>(I(0));
          odd = multiply_add(best, zero, odd);
          step(at, bytes, i, rows);
          first = 1;
        }
        pack<I, N, Isa> here(begin);
        for (int r = first; r < rows; ++r) {
          P const x = value<Isa, N>(tree, at, i);
          step(at, bytes, i, rows);
          where = select(sign > 0 ? x > best : x < best, here, where);
          quickly(best, odd, x, zero);
          here = here + pack<I, N, Isa>(I(1));
        }
        if (SITU_UNLIKELY(is_odd(odd))) {
          search<Isa, N>(tree, run, bests + i, wheres + i, row, bytes, rows, i);
        } else {
          best.store(bests + i);
          where.store(wheres + i);
        }
      }
      if (i >= run.count) return;
      Run<Operands> at = run;
      for (int r = 0; r < rows; ++r) {
        alignas(64) unsigned char buffers[Operands][64];
        Run<Operands> tail = at;
        buffer_tail<Tree>(tail, buffers, i, static_cast<int>(run.count - i));
        search<Isa, N>(tree, tail, bests + i, wheres + i, static_cast<I>(row + r), bytes, 1, 0);
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
    SITU_INLINE static void search(Tree const& tree, Run<Operands> at, A* bests, I* wheres, I row, int64_t const* bytes, int rows, int64_t i) {
      using P = pack<A, N, Isa>;
      using Q = pack<I, N, Isa>;
      for (int r = 0; r < rows; ++r) {
        P const x = value<Isa, N>(tree, at, i);
        I const number = static_cast<I>(row + r);
        if (number == 0) {
          x.store(bests);
          Q(I(0)).store(wheres);
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

/// Puts the accumulators of a strip's block aside: merges them into the totals, and starts them again.
template <class R, class A, class Total>
struct SetAsideBody {
  template <class Isa>
  SITU_INLINE static int run(A* values, Total* totals, int64_t padded) {
    constexpr int N = Isa::bytes / static_cast<int>(sizeof(Total) > sizeof(A) ? sizeof(Total) : sizeof(A));
    using P = pack<A, N, Isa>;
    using Q = pack<Total, N, Isa>;
    P const none(static_cast<A>(R::identity()));
    for (int64_t i = 0; i < padded; i += N) {
      R::combine(Q::load(totals + i), convert_unchecked<Total>(P::load(values + i))).store(totals + i);
      none.store(values + i);
    }
    return 0;
  }
};

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI
