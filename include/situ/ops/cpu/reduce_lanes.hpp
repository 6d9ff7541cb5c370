/// The pack code of reductions that keep one number.
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

/// The lanes of a register of lanes of one or two bytes, so many bytes down; some end with others.
template <int Bytes, class P>
SITU_INLINE P bytes_down(P const& a) {
  constexpr int words = static_cast<int>(sizeof(a.v)) / 8;
  using Words = pack<int64_t, words, typename P::isa_type>;
  Words from;
  __builtin_memcpy(&from.v, &a.v, sizeof a.v);
  if constexpr (Bytes >= 8) from = lanes_down<Bytes / 8>(from, std::make_integer_sequence<int, words>{});
  else from.v = from.v >> (8 * Bytes);
  P result;
  __builtin_memcpy(&result.v, &from.v, sizeof a.v);
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
  } else if constexpr (constexpr int bytes = N * static_cast<int>(sizeof(A)); sizeof(A) < 4 && bytes >= 16 && bytes <= P::isa_type::bytes) {
    P y = a;
    if constexpr (bytes > 32) y = R::combine(y, bytes_down<32>(y));
    if constexpr (bytes > 16) y = R::combine(y, bytes_down<16>(y));
    y = R::combine(y, bytes_down<8>(y));
    y = R::combine(y, bytes_down<4>(y));
    y = R::combine(y, bytes_down<2>(y));
    if constexpr (sizeof(A) == 1) y = R::combine(y, bytes_down<1>(y));
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

/// Bytes of lanes that do not count, then of such as do, then of such as do not.
struct LaneBytes {
  signed char of[192];
};
inline constexpr LaneBytes lane_bytes = [] {
  LaneBytes bytes{};
  for (int k = 64; k < 128; ++k) bytes.of[k] = -1;
  return bytes;
}();
/// The lanes of a that count, from a place of lane_bytes on, and those of b elsewhere. By bits: g++ selects some types lane by lane.
template <class P>
SITU_INLINE P lanes_of(signed char const* counting, P a, P const& b) {
  decltype(P::mask_type::v) counts, from, to;
  __builtin_memcpy(&counts, counting, sizeof counts);
  __builtin_memcpy(&from, &a.v, sizeof from);
  __builtin_memcpy(&to, &b.v, sizeof to);
  from = (from & counts) | (to & ~counts);
  __builtin_memcpy(&a.v, &from, sizeof from);
  return a;
}
/// The last `tail` lanes, or the first ones.
template <class P>
SITU_INLINE P last_lanes(P const& a, int tail, P const& b) {
  return lanes_of(lane_bytes.of + 64 - (P::lanes - tail) * static_cast<int>(sizeof(typename P::value_type)), a, b);
}
template <class P>
SITU_INLINE P first_lanes(P const& a, int tail, P const& b) {
  return lanes_of(lane_bytes.of + 128 - tail * static_cast<int>(sizeof(typename P::value_type)), a, b);
}

/// What a formula has of its own where its rows are reduced pack by pack: `packs` of each row, in turns into two accumulators, of which the one that took
/// the last pack is stored a register behind the other. All else is shared, by RowsByPacks.
template <class R, class Tree, int Operands>
struct PacksBody {
  using A = typename R::element;
  template <class Isa>
  SITU_INLINE static void run(void const* tree_, PackPlaces<Operands> const* from, int64_t const* row_bytes, A* sums, int64_t packs, int64_t rows) {
    constexpr int N = Isa::bytes / (widest<Tree> > static_cast<int>(sizeof(A)) ? widest<Tree> : static_cast<int>(sizeof(A))), behind = 64 / static_cast<int>(sizeof(A));
    using P = pack<A, N, Isa>;
    constexpr numbers_t<1, Operands - 1> inputs{};
    Tree const tree = *static_cast<Tree const*>(tree_);
    PackPlaces<Operands> row = *from;
    P none(static_cast<A>(R::identity()));
    hold<Isa>(none.v);  // which g++ builds lane by lane for every row else
    for (;; row.next_row(row_bytes, inputs), sums += 2 * behind) {
      PackPlaces<Operands> places = row;
      P a = none, b = none;
      int64_t left = packs;
      do {
        P const x = convert_lanes<A, typename Tree::value_type, Isa, N>(Evaluator<Isa, N>::value(tree, PackSource<Isa, N>{places.at + 1, places.i}));
        places.go_on(N, inputs);
        P const sum = R::combine(a, x);
        a = b, b = sum;
      } while (--left != 0);
      a.store(sums);
      b.store(sums + behind);
      if (--rows == 0) return;
    }
  }
};
template <class A, int Operands>
using PackLoops = Variants<void, void const*, PackPlaces<Operands> const*, int64_t const*, A*, int64_t, int64_t>;

/// Rows of elements, `row_bytes` apart operand by operand, to one number each. `loops` are a formula's, whose AVX-512 packs have `lanes_of_avx512` elements.
template <class R, int Operands>
struct RowsByPacks {
  using A = typename R::element;
  static constexpr int behind = 64 / static_cast<int>(sizeof(A)), together = Operands <= 8 ? 8 : 1;  // rows at once
  static constexpr int64_t most = 64;  ///< packs: few additions in a row, then their sum, so that rounding errors stay small
  using Loop = void (*)(void const*, PackPlaces<Operands> const*, int64_t const*, A*, int64_t, int64_t);

  template <class Isa>
  SITU_INLINE static void run(PackLoops<A, Operands> const* loops, int const* sizes, int lanes_of_avx512, void const* tree, Run<Operands> const* run, A* results,
                              int64_t const* row_bytes, int rows) {
    using P = pack<A, Isa::bytes / static_cast<int>(sizeof(A)), Isa>;
    int const lanes = lanes_of_avx512 * Isa::bytes / 64;
    Loop const loop = loops->of[static_cast<int>(current_instruction_set())];
    alignas(64) A sums[2 * together * behind], totals[together * behind];
    P const none(static_cast<A>(R::identity()));
    if (lanes < P::lanes) {
      for (int k = 0; k < 2 * together; ++k) none.store(sums + k * behind);
    }
    int const tail = static_cast<int>(run->count & (lanes - 1));
    PackPlaces<Operands> first{};
    for (int o = 1; o < Operands; ++o) first.at[o] = static_cast<char const*>(run->data[o]), first.step[o] = run->mask[o] & (lanes * sizes[o]);
    first.i = run->origin;
    while (rows > 0) {
      int const now = rows < together ? rows : together;
      PackPlaces<Operands> places = first;
      for (int r = 0; r < now; ++r) none.store(totals + r * behind);
      for (int64_t left = run->count / lanes; left > 0; left -= most) {
        int64_t const packs = left < most ? left : most;
        loop(tree, &places, row_bytes, sums, packs, now);
        for (int r = 0; r < now; ++r) add_to(totals + r * behind, P::load(sums + 2 * r * behind), P::load(sums + (2 * r + 1) * behind));
        for (int o = 1; o < Operands; ++o) places.at[o] += packs * places.step[o];
        places.i += packs * lanes;
      }
      if (tail > 0) {  // a pack that ends with the row, or padded copies
        alignas(64) unsigned char buffers[together][Operands][64];
        int64_t bytes[Operands];
        signed char const* counting = lane_bytes.of + 128 - tail * static_cast<int>(sizeof(A));
        if (run->count < lanes) {
          for (int r = 0; r < now; ++r) {
            void* to[Operands];
            void const* from[Operands];
            for (int o = 1; o < Operands; ++o) to[o] = buffers[r][o], from[o] = places.at[o] + r * row_bytes[o];
            load_tails<Operands>(current_instruction_set(), to, from, sizes, 0, tail);
          }
          for (int o = 1; o < Operands; ++o) places.at[o] = reinterpret_cast<char const*>(buffers[0][o]), bytes[o] = sizeof buffers[0];
        } else {
          int const back = lanes - tail;
          for (int o = 1; o < Operands; ++o) places.at[o] -= places.step[o] / lanes * back, bytes[o] = row_bytes[o];
          places.i -= back;
          counting = lane_bytes.of + 64 - back * static_cast<int>(sizeof(A));
        }
        loop(tree, &places, bytes, sums, 1, now);
        typename P::mask_type counts;
        __builtin_memcpy(&counts.v, counting, sizeof counts.v);
        for (int r = 0; r < now; ++r) add_to(totals + r * behind, select(counts, P::load(sums + (2 * r + 1) * behind), none), none);
      }
      for (int r = 0; r < now; ++r) results[r] = folded<R>(P::load(totals + r * behind));
      for (int o = 1; o < Operands; ++o) first.at[o] += now * row_bytes[o];
      results += now, rows -= now;
    }
  }

 private:
  /// Adds a sum which -ffast-math may not dissolve.
  template <class P>
  SITU_INLINE static void add_to(A* total, P const& a, P const& b) {
    P sum = R::combine(a, b);
    if constexpr (std::is_floating_point_v<A>) sum = keep_order(sum);
    R::combine(P::load(total), sum).store(total);
  }
};

/// Whether a tree may be computed several times in a kernel. One that does more is computed once where rows are reduced pack by pack; elsewhere it is
/// evaluated first, a piece that stays in the nearest cache at a time, so that no kernel is compiled for it but its own.
template <class Tree>
inline constexpr bool is_light_to_reduce = operation_count<Tree> <= 3 && cost_of<Tree>.all() <= 24;

/// Asks for what lies `run.ahead` bytes behind `count` elements from number i on: what is near into the second cache, as far as AVX-512 goes. Inputs beyond
/// all caches come a tenth sooner where a loop checks them; a sum, which does not, gains nothing.
template <class Isa, class Tree, int64_t count, int Operands>
SITU_INLINE void ask_ahead(Run<Operands> const& run, int64_t i) {
  if (Isa::bytes < 32 || run.ahead == 0) return;
  bool const near = Isa::bytes == 64 && run.ahead < 1024;
  for (int o = 1; o < Operands; ++o) {
    int const size = ElementwiseBody<Tree, typename Tree::value_type, Operands>::element_size(o);
    char const* const ahead = static_cast<char const*>(run.data[o]) + (i & run.mask[o]) * size + run.ahead;
    if (near) {
      for (int64_t byte = 0; byte < count * size; byte += 64) __builtin_prefetch(ahead + byte, 0, 2);
    } else {
      for (int64_t byte = 0; byte < count * size; byte += 64) __builtin_prefetch(ahead + byte, 0, 3);
    }
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
  SITU_INLINE static void quickly(P& best, P& odd, P const& from, P const& zero) {
    auto v = from.v;
    hold<typename P::isa_type>(v);  // g++ loads it once for each use else
    P const x(v);
    odd = multiply_add(x, zero, odd);
#if SITU_MATH_X86_ASM
    if constexpr (math::detail::has_extrema<A, P::lanes, typename P::isa_type>) {
      if constexpr (sizeof(A) == 4 && R::extremum > 0) __asm__("vmaxps {%0, %1, %0|%0, %1, %0}" : "+v"(best.v) : "v"(v));
      else if constexpr (sizeof(A) == 4) __asm__("vminps {%0, %1, %0|%0, %1, %0}" : "+v"(best.v) : "v"(v));
      else if constexpr (R::extremum > 0) __asm__("vmaxpd {%0, %1, %0|%0, %1, %0}" : "+v"(best.v) : "v"(v));
      else __asm__("vminpd {%0, %1, %0|%0, %1, %0}" : "+v"(best.v) : "v"(v));
      return;
    }
#endif
    best = select(R::extremum > 0 ? x > best : x < best, x, best);
  }

  /// Rows of elements, `row_bytes` apart operand by operand, to one number each: four packs at a time.
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
        constexpr int64_t longest = finds_extremum ? 256 * N : 128 * N;
        int64_t const stop = i + (whole < longest ? whole : longest);
        P b = none, c = none, d = none, e = none;
        if constexpr (finds_extremum) {  // in half the instructions where all numbers are finite
          int64_t const start = i;
          P const zero = keep_order(P(A(0)));
          P odd = zero, odd2 = zero, odd3 = zero, odd4 = zero;
          for (; i < stop; i += 4 * N) {
            ask_ahead<Isa, Tree, 4 * N>(run, i);
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
      P b = none;
      for (; i + N <= run.count; i += N) b = R::combine(b, value<Isa, N>(tree, run, i));
      hold<Isa>(a.v);  // whose comparisons g++ makes lane by lane else
      a = R::combine(a, apart(b));
      if (i == run.count) return folded<R>(a);
      int const tail = static_cast<int>(run.count - i);
      P last = none;
      if (run.count >= N) {  // a pack that ends with the row, of which some lanes count
        last = last_lanes(value<Isa, N>(tree, run, run.count - N), tail, none);
      } else {
        alignas(64) unsigned char buffers[Operands][64];
        buffer_tail<Tree>(run, buffers, 0, tail);
        last = first_lanes(value<Isa, N>(tree, run, 0), tail, none);
      }
      hold<Isa>(a.v);
      a = R::combine(a, apart(last));
      return folded<R>(a);
    }
  };

  /// Rows of trees that are not next to nothing have loops of single packs: their own work hides what a sum waits for, and an eighth of the code is there
  /// to be compiled.
  static constexpr bool by_packs = !finds_extremum && ((Operands > 2 && operation_count<Tree> >= 2) || (Operands > 1 && !is_light_to_reduce<Tree>));

  /// A multiple of `together` rows of elements, or fewer than that, into a strip of accumulators that is padded to whole packs. Rows lie `row_bytes`
  /// apart, operand by operand. The rows that come next are asked for at the same time.
  struct Strip {
    template <class Isa>
    SITU_INLINE static int run(Tree const* tree_, Run<Operands> const* run_, A* strip, int64_t const* row_bytes, int rows) {
      constexpr int N = Isa::bytes / widest_lane;
      Tree const tree = *tree_;
      Run<Operands> run = bound(run_);
      // Eight rows a power of two apart fill the sets of the nearest cache of many a processor; four leave room (a third faster with AVX2, in the caches).
      constexpr int group = Isa::bytes == 64 ? together : 4;
      constexpr std::make_integer_sequence<int, group> all{};
      int64_t bytes[Operands];
      bool near = false;
      for (int o = 1; o < Operands; ++o) bytes[o] = row_bytes[o], near = near || (bytes[o] < 4096 && bytes[o] > -4096);
      int64_t i = 0;
      for (int first = 0; rows >= together && first + group <= rows; first += group) {
        if (Isa::bytes == 64 || near) i = add_rows<Isa, N, true>(tree, run, first, bytes, strip, all);
        else i = add_rows<Isa, N, false>(tree, run, first, bytes, strip, all);  // where rows are pages long, most processors foresee what comes next
      }
      if (i == run.count && rows >= together) return 0;
      for (int row = 0; row < rows; ++row) {  // of many rows the last columns
        add_row<Isa, N>(tree, run, strip, i);
        if (row + 1 == rows) break;
        for (int o = 1; o < Operands; ++o) run.data[o] = static_cast<char*>(run.data[o]) + row_bytes[o];
      }
      return 0;
    }

    SITU_INLINE static Run<Operands> row_of(Run<Operands> run, int64_t row, int64_t const* bytes) {
      for (int o = 1; o < Operands; ++o) run.data[o] = static_cast<char*>(run.data[o]) + row * bytes[o];
      return run;
    }
    template <class Isa, int N, bool Asks, int... Row>
    SITU_INLINE static int64_t add_rows(Tree const& tree, Run<Operands> const& run, int64_t first, int64_t const* bytes, A* strip, std::integer_sequence<int, Row...> all) {
      using P = pack<A, N, Isa>;
      constexpr int line = 64 / static_cast<int>(sizeof(T)) > N ? 64 / static_cast<int>(sizeof(T)) : N;
      Run<Operands> const at[] = {row_of(run, first + Row, bytes)...};
      int64_t i = 0;
      for (; i + N <= run.count; i += N) {
        if (Asks && i % line == 0) ask_for_next(at, bytes, i, all);
        P const sum = joined<Isa, N>(tree, at, i, all);
        R::combine(P::load(strip + i), sum).store(strip + i);
      }
      if (i == run.count || run.count < N) return i;
      add_last<N>(strip, run.count, joined<Isa, N>(tree, at, run.count - N, all));
      return run.count;
    }
    /// A pack that ends with the columns: some lanes of it are still to be added.
    template <int N, class P>
    SITU_INLINE static void add_last(A* strip, int64_t columns, P const& sum) {
      A* const to = strip + (columns - N);
      R::combine(P::load(to), last_lanes(sum, static_cast<int>(columns % N), P(static_cast<A>(R::identity())))).store(to);
    }
    template <class Isa, int N, int... Row>
    SITU_INLINE static pack<A, N, Isa> joined(Tree const& tree, Run<Operands> const* at, int64_t i, std::integer_sequence<int, Row...>) {
      pack<A, N, Isa> const x[] = {value<Isa, N>(tree, at[Row], i)...};
      auto const first = R::combine(R::combine(x[0], x[1]), R::combine(x[2], x[3]));
      if constexpr (sizeof...(Row) == 4) return first;
      else return R::combine(first, R::combine(R::combine(x[4], x[5]), R::combine(x[6], x[7])));
    }
    template <int... Row>
    SITU_INLINE static void ask_for_next(Run<Operands> const* at, int64_t const* bytes, int64_t i, std::integer_sequence<int, Row...>) {
      (ask_for_next<static_cast<int>(sizeof...(Row))>(at[Row], bytes, i), ...);
    }
    template <int rows>
    SITU_INLINE static void ask_for_next(Run<Operands> const& at, int64_t const* bytes, int64_t i) {
      for (int o = 1; o < Operands; ++o) {
        int const size = ElementwiseBody<Tree, typename Tree::value_type, Operands>::element_size(o);
        if (size > 0) __builtin_prefetch(static_cast<char const*>(at.data[o]) + (i & at.mask[o]) * size + rows * bytes[o], 0, 2);
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
        if (n > N) return add_last<N>(strip, n, value<Isa, N>(tree, run, n - N));
        buffer_tail<Tree>(run, buffers, i, static_cast<int>(n - i));
        strip += i;
        i = 0, n = N;
      }
    }
  };
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
