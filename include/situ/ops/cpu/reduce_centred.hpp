/// Centred reductions on the CPU: var, stddev, logsumexp.
///
/// The formula is evaluated into a tile that stays in the cache, or read where it lies when it is a dense tensor; the pack code
/// below then works on plain arrays, so that it is compiled once for each reducer, whatever the formula is.
#pragma once

#include <situ/expr/cpu/launch.hpp>
#include <situ/ops/cpu/reduce_lanes.hpp>
#include <situ/ops/cpu/reduce_plan.hpp>
#include <situ/ops/reducers_centred.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// A row of elements to the two numbers.
template <class R>
struct CentredRow {
  using E = typename R::element;
  using C = typename R::component;
  /// Whether a centre is guessed from some elements first, so that most rows are read once.
  static constexpr bool guesses = requires(C s) { R::is_near(s, s, s, s); };

  template <class Isa>
  SITU_INLINE static int run(E const* x, int64_t count, C* centre, C* spread) {
    constexpr int N = Isa::bytes / static_cast<int>(sizeof(E));
    using P = pack<E, N, Isa>;
    E c;
    bool guessed = false;
    if constexpr (guesses) guessed = count >= 32 * N;
    if (guessed) {  // from places all over a few elements that are at hand, from the beginning of more: what is read out of turn has to be waited for
      int64_t const step = count <= longest_chains ? count / 4 : N;
      P some(R::none());
      for (int k = 0; k < 4; ++k) some = R::gather(some, P::load(x + k * step + (step - N) / 2));
      c = R::centre(folded<Gathered>(some), static_cast<E>(4 * N));
    } else {
      c = gathered<Isa>(x, count);
    }
    C const n = static_cast<C>(count);
    C s, t;
    for (;;) {
      sums_about<Isa>(x, count, c, s, t);
      if constexpr (guesses) {
        if (SITU_UNLIKELY(guessed && !R::is_near(s, t, static_cast<C>(c), n))) {
          c = static_cast<E>(static_cast<C>(c) + t / n);
          guessed = false;
          continue;
        }
      }
      break;
    }
    R::part(*centre, *spread, static_cast<C>(c), s, t, n);
    return 0;
  }

 private:
  using Chains = std::make_integer_sequence<int, 4>;  ///< four sums at a time, each in a register: a loop over them would keep them in memory
  template <class P, int... K>
  SITU_INLINE static void gather_chains(P (&first)[4], E const* x, std::integer_sequence<int, K...>) {
    ((first[K] = R::gather(first[K], P::load(x + K * P::lanes))), ...);
  }
  template <class P, int... K>
  SITU_INLINE static void spread_chains(P (&s)[4], P (&t)[4], E const* x, P const& around, std::integer_sequence<int, K...>) {
    (R::spread(s[K], t[K], P::load(x + K * P::lanes), around), ...);
  }
  template <class Isa>
  SITU_INLINE static E gathered(E const* x, int64_t count) {
    constexpr int N = Isa::bytes / static_cast<int>(sizeof(E));
    using P = pack<E, N, Isa>;
    P first[4] = {P(R::none()), P(R::none()), P(R::none()), P(R::none())};
    int64_t i = 0;
    for (; i + 4 * N <= count; i += 4 * N) {
      if constexpr (!guesses) ask_for<2 * Isa::bytes>(x + count + i / 2);
      gather_chains(first, x + i, Chains{});
    }
    for (; i + N <= count; i += N) first[0] = R::gather(first[0], P::load(x + i));
    if (i < count) first[0] = R::gather(first[0], tail_of<P>(x, i, count, R::none()));
    return R::centre(folded<Gathered>(R::gather(R::gather(first[0], first[1]), R::gather(first[2], first[3]))), static_cast<E>(count));
  }
  /// The elements from number i on, fewer than a pack, and what stands for those that there are not.
  template <class P>
  SITU_INLINE static P tail_of(E const* x, int64_t i, int64_t count, E absent) {
    int const tail = static_cast<int>(count - i);
    if (count >= P::lanes) return last_lanes(P::load(x + count - P::lanes), tail, P(absent));
    E lanes[P::lanes];
    for (int k = 0; k < P::lanes; ++k) lanes[k] = k < tail ? x[i + k] : absent;
    return P::load(lanes);
  }
  struct Gathered {
    template <class X>
    SITU_INLINE static X combine(X const& a, X const& b) {
      return R::gather(a, b);
    }
  };
  struct Added {
    template <class X>
    SITU_INLINE static X combine(X const& a, X const& b) {
      return a + b;
    }
  };
  template <class Isa>
  SITU_INLINE static void sums_about(E const* x, int64_t count, E c, C& total_s, C& total_t) {
    constexpr int N = Isa::bytes / static_cast<int>(sizeof(E));
    using P = pack<E, N, Isa>;
    P const around(c), none(E(0));
    P all_s = none, all_t = none;
    int64_t i = 0;
    while (i + 4 * N <= count) {  // few additions in a row, then their sum: rounding errors stay small
      int64_t const whole = (count - i) / (4 * N) * (4 * N), stop = i + (whole < longest_chains ? whole : longest_chains);
      P s[4] = {none, none, none, none}, t[4] = {none, none, none, none};
      if (guesses && count > longest_chains) {
        for (; i < stop; i += 4 * N) spread_chains(s, t, x + i, around, Chains{});
      } else {
        for (; i < stop; i += 4 * N) {
          if constexpr (guesses) ask_for<4 * Isa::bytes>(x + count + i);
          else ask_for<2 * Isa::bytes>(x + count + (count + i) / 2);
          spread_chains(s, t, x + i, around, Chains{});
        }
      }
      all_s = all_s + keep_order((s[0] + s[1]) + (s[2] + s[3]));
      all_t = all_t + keep_order((t[0] + t[1]) + (t[2] + t[3]));
    }
    for (; i + N <= count; i += N) R::spread(all_s, all_t, P::load(x + i), around);
    if (i < count) R::spread(all_s, all_t, tail_of<P>(x, i, count, R::absent(c)), around);
    if constexpr (std::is_same_v<C, E>) {
      total_s = folded<Added>(all_s), total_t = folded<Added>(all_t);
    } else {
      E lanes[N], other[N];
      all_s.store(lanes);
      all_t.store(other);
      total_s = total_t = 0;
      for (int k = 0; k < N; k += 2) {
        total_s += static_cast<C>(lanes[k]) + static_cast<C>(lanes[k + 1]);
        total_t += static_cast<C>(other[k]) + static_cast<C>(other[k + 1]);
      }
    }
  }
  static constexpr int64_t longest_chains = 4096;
  /// What comes next most often follows: each of two passes over a row asks for half of it, a single one over a short row for all. So the memory works all
  /// the time. (Of a long row the processor foresees what comes next.)
  template <int Bytes>
  SITU_INLINE static void ask_for(E const* next) {
    for (int byte = 0; byte < Bytes; byte += 64) __builtin_prefetch(reinterpret_cast<char const*>(next) + byte, 0, 3);
  }
};

/// A few rows of elements joined to the numbers of every column, of `before` elements each; these are padded to whole packs. The
/// rows `ahead` bytes further are asked for at the same time.
template <class R>
struct CentredStrip {
  using E = typename R::element;
  using C = typename R::component;
  static constexpr int most_rows = 16;

  template <class Isa>
  SITU_INLINE static int run(E const* const* rows, int count, int64_t columns, C* centres, C* spreads, C before, int64_t ahead) {
    constexpr int N = Isa::bytes / static_cast<int>(sizeof(E)), line = 64 / static_cast<int>(sizeof(E));
    E const* from[most_rows];
    for (int r = 0; r < count; ++r) from[r] = rows[r];
    alignas(64) E last[most_rows][line];
    int64_t i = 0, n = columns;
    for (;;) {
      int64_t const stop = n / line * line;
      if (count == most_rows) {
        for (; i < stop; i += line) join_all<Isa, N>(from, i, centres, spreads, before, ahead);
      } else {
        for (; i < stop; i += N) join<Isa, N>(from, count, i, centres, spreads, before);
      }
      if (i >= n) return 0;
      for (int r = 0; r < count; ++r) {
        for (int k = 0; k < line; ++k) last[r][k] = i + k < n ? from[r][i + k] : E(0);
        from[r] = last[r];
      }
      centres += i, spreads += i;
      i = 0, n = line, ahead = 0;
    }
  }

  template <class Isa, int M, class H>
  SITU_INLINE static void settle(H const& c, H const& s, H const& t, int count, C* centres, C* spreads, C before) {
    using Q = pack<C, M, Isa>;
    Q centre(C(0)), spread(C(0));
    C const n = static_cast<C>(count);
    R::part(centre, spread, convert_unchecked<C>(c), convert_unchecked<C>(s), convert_unchecked<C>(t), n);
    if (before > 0) {
      Q a = Q::load(centres), b = Q::load(spreads);
      R::merge(a, b, centre, spread, before, n);
      a.store(centres);
      b.store(spreads);
    } else {
      centre.store(centres);
      spread.store(spreads);
    }
  }

 private:
  /// A line of the cache of as many rows as there can be. Each line is read once, and copied: rows a power of two apart push each other out of the nearest
  /// cache. Sums do not wait for each other.
  template <class Isa, int N>
  SITU_INLINE static void join_all(E const* const* rows, int64_t i, C* centres, C* spreads, C before, int64_t ahead) {
    using P = pack<E, N, Isa>;
    constexpr int packs = 64 / static_cast<int>(sizeof(E)) / N;
    alignas(64) E near[packs][most_rows][N];
    P first[4];
    gather_all(first, rows, i, near, ahead, std::make_integer_sequence<int, 4>{});
    P const together[] = {R::gather(first[0], first[1]), R::gather(first[2], first[3])};
    for (int k = 0; k < packs; ++k) {
      P const c = R::centre(packs == 1 ? R::gather(together[0], together[1]) : packs == 2 ? together[k] : first[k], static_cast<E>(most_rows));
      P s(E(0)), t(E(0));
      spread_all(s, t, near[k], c, std::make_integer_sequence<int, CentredRow<R>::guesses ? 2 : 1>{});
      settle_all<Isa, N>(c, s, t, most_rows, centres + i + k * N, spreads + i + k * N, before);
    }
  }
  template <class P, int N, int packs, int... K>
  SITU_INLINE static void gather_all(P (&first)[4], E const* const* rows, int64_t i, E (&near)[packs][most_rows][N], int64_t ahead, std::integer_sequence<int, K...>) {
    constexpr int chains = 4 / packs;
    P sums[] = {((void)K, P(R::none()))...};
    for (int r = 0; r < most_rows; r += chains) {
      if (ahead > 0) {
        for (int k = 0; k < chains; ++k) __builtin_prefetch(reinterpret_cast<char const*>(rows[r + k] + i) + ahead, 0, 2);
      }
      ((sums[K] = R::gather(sums[K], kept(P::load(rows[r + K % chains] + i + K / chains * N), near[K / chains][r + K % chains]))), ...);
    }
    ((first[K] = sums[K]), ...);
  }
  template <class P>
  SITU_INLINE static P kept(P const& x, E* place) {
    x.store(place);
    return x;
  }
  template <class P, int N, int... K>
  SITU_INLINE static void spread_all(P& all_s, P& all_t, E const (&near)[most_rows][N], P const& c, std::integer_sequence<int, K...>) {
    P s[] = {((void)K, all_s)...}, t[] = {((void)K, all_t)...};
    for (int r = 0; r < most_rows; r += sizeof...(K)) (R::spread(s[K], t[K], P::load(near[r + K]), c), ...);
    if constexpr (sizeof...(K) == 1) all_s = s[0], all_t = t[0];
    else all_s = s[0] + s[1], all_t = t[0] + t[1];
  }

  template <class Isa, int N>
  SITU_INLINE static void join(E const* const* rows, int count, int64_t i, C* centres, C* spreads, C before) {
    using P = pack<E, N, Isa>;
    P first(R::none());
    for (int r = 0; r < count; ++r) first = R::gather(first, P::load(rows[r] + i));
    P const c = R::centre(first, static_cast<E>(count));
    P s(E(0)), t(E(0));
    for (int r = 0; r < count; ++r) R::spread(s, t, P::load(rows[r] + i), c);
    settle_all<Isa, N>(c, s, t, count, centres + i, spreads + i, before);
  }

  template <class Isa, int N, class P>
  SITU_INLINE static void settle_all(P const& c, P const& s, P const& t, int count, C* centres, C* spreads, C before) {
    constexpr int M = sizeof(C) > sizeof(E) ? N / 2 : N;
    if constexpr (M == N) {
      settle<Isa, M>(c, s, t, count, centres, spreads, before);
    } else {
      alignas(64) E found[3][N];
      c.store(found[0]), s.store(found[1]), t.store(found[2]);
      for (int k = 0; k < N; k += M) {
        using H = pack<E, M, Isa>;
        settle<Isa, M>(H::load(found[0] + k), H::load(found[1] + k), H::load(found[2] + k), count, centres + k, spreads + k, before);
      }
    }
  }
};

/// Many rows of elements, `bytes` apart, joined to the numbers of every column: about a guess, the mean of an eighth of them, so that most rows are read once
/// and the numbers are joined seldom. `work` has room for three strips. Where the guess does not serve nothing is changed, and 1 comes back.
template <class R>
struct CentredBlock {
  using E = typename R::element;
  using C = typename R::component;
  static constexpr int rows = 64;

  template <class Isa>
  SITU_INLINE static int run(E const* from, int64_t bytes, int64_t columns, E* work, int64_t room, C* centres, C* spreads, C before) {
    constexpr int N = Isa::bytes / static_cast<int>(sizeof(E));
    constexpr int together = Isa::bytes == 64 ? 8 : 4;  // rows a power of two apart fill the sets of the nearest cache
    Strips const strips{work, work + room, work + 2 * room};
    each_pack<Isa, N, Guess>(row_of(from, 3 * bytes), 8 * bytes, columns, strips, std::make_integer_sequence<int, 8>{});
    for (int row = 0; row < rows; row += together) each_pack<Isa, N, Spread>(row_of(from, row * bytes), bytes, columns, strips, std::make_integer_sequence<int, together>{});
    constexpr int M = sizeof(C) > sizeof(E) ? N / 2 : N;
    auto near = is_near<Isa, M>(strips, 0);
    for (int64_t i = M; i < columns; i += M) near = near & is_near<Isa, M>(strips, i);
    if (SITU_UNLIKELY(any_of(!near))) return 1;
    for (int64_t i = 0; i < columns; i += M) {
      using H = pack<E, M, Isa>;
      CentredStrip<R>::template settle<Isa, M>(H::load(strips.c + i), H::load(strips.s + i), H::load(strips.t + i), rows, centres + i, spreads + i, before);
    }
    return 0;
  }

 private:
  struct Strips {
    E *c, *s, *t;
  };
  SITU_INLINE static E const* row_of(E const* from, int64_t bytes) { return reinterpret_cast<E const*>(reinterpret_cast<char const*>(from) + bytes); }

  template <class Isa, int M>
  SITU_INLINE static auto is_near(Strips const& strips, int64_t i) {
    using H = pack<E, M, Isa>;
    return R::is_near(convert_unchecked<C>(H::load(strips.s + i)), convert_unchecked<C>(H::load(strips.t + i)), convert_unchecked<C>(H::load(strips.c + i)),
                      static_cast<C>(rows));
  }

  struct Guess {
    template <class P, int... Row>
    SITU_INLINE static void join(E const* const* at, int64_t i, Strips const& strips, int64_t place, std::integer_sequence<int, Row...>) {
      P first(R::none());
      ((first = R::gather(first, P::load(at[Row] + i))), ...);
      R::centre(first, static_cast<E>(sizeof...(Row))).store(strips.c + place);
      P(E(0)).store(strips.s + place);
      P(E(0)).store(strips.t + place);
    }
  };
  struct Spread {
    template <class P, int... Row>
    SITU_INLINE static void join(E const* const* at, int64_t i, Strips const& strips, int64_t place, std::integer_sequence<int, Row...>) {
      P const c = P::load(strips.c + place);
      P s = P::load(strips.s + place), t = P::load(strips.t + place);
      (R::spread(s, t, P::load(at[Row] + i), c), ...);
      s.store(strips.s + place);
      t.store(strips.t + place);
    }
  };

  /// Some rows, pack by pack; the last columns from copies, padded with 0.
  template <class Isa, int N, class Step, int... Row>
  SITU_INLINE static void each_pack(E const* from, int64_t bytes, int64_t columns, Strips const& strips, std::integer_sequence<int, Row...> all) {
    using P = pack<E, N, Isa>;
    E const* const at[] = {row_of(from, Row * bytes)...};
    int64_t i = 0;
    for (; i + N <= columns; i += N) Step::template join<P>(at, i, strips, i, all);
    if (i == columns) return;
    E last[sizeof...(Row)][N];
    for (int r = 0; r < static_cast<int>(sizeof...(Row)); ++r) {
      for (int k = 0; k < N; ++k) last[r][k] = i + k < columns ? at[r][i + k] : E(0);
    }
    E const* const copies[] = {last[Row]...};
    Step::template join<P>(copies, 0, strips, i, all);
  }
};

/// The kernel of a centred reduction: units [first, last) of its plan. Several units of one output leave their parts in `parts`.
/// What reduces `Whole` shapes has rows alone.
template <class P, bool Whole>
struct CentredKernel {
  using R = typename P::reducer;
  using Tree = typename P::tree_type;
  using E = typename R::element;
  using C = typename R::component;
  using Total = typename R::accumulator;
  static constexpr int operands = P::leaves + 1, times_dearer = R::times_dearer;
  static constexpr int64_t strip_columns = 1024, padded_columns = strip_columns + 64;
  static constexpr int64_t tile = 16384 / static_cast<int64_t>(sizeof(E));  ///< elements whose centre is found at once
  static constexpr int64_t piece = CentredRow<R>::guesses ? 4 * tile : tile;  ///< the same where they lie: more where they are most often read once
  /// A dense tensor of the right type is read where it lies.
  static constexpr bool in_place = std::is_same_v<Tree, Input<E, 0>>;

  BoundTree<operands, tree_bytes<Tree>> bound;
  P program;
  ReducePlan plan;
  Total* parts;  ///< those of one part for all outputs, then of the next one; null when every output is one unit

  explicit CentredKernel(P const& p) : program(p) { bind_tree<E>(bound, program.tree); }
  ReduceSpace space() const { return reduce_space(program); }
  void cut(int64_t grain) { plan = cut_reduction(program, space(), grain, strip_columns, 8 * CentredStrip<R>::most_rows, 128 / static_cast<int64_t>(sizeof(E)), false); }
  static Total merged(Total const& a, Total const& b) { return R::merge(a, b); }

  int64_t elements(int64_t) const { return program.outputs * program.count; }
  void operator()(int64_t first, int64_t last) const {
    ReduceSpace const space = this->space();
    int64_t gathered = 64;
    for (int o = 1; o < operands; ++o) gathered += tile_columns * space.element_sizes[o] + 64;
    int64_t const elements = plan.by_strips ? CentredStrip<R>::most_rows * strip_columns : tile;
    int64_t const numbers = plan.by_strips ? 2 * padded_columns : 0;
    std::size_t const bytes = static_cast<std::size_t>(elements) * sizeof(E) + static_cast<std::size_t>(numbers) * sizeof(C) + static_cast<std::size_t>(gathered);
    Scratch const memory(static_cast<int64_t>(bytes));
    E* const buffer = reinterpret_cast<E*>(memory.get());
    C* const centres = reinterpret_cast<C*>(buffer + elements);
    unsigned char* const scratch = reinterpret_cast<unsigned char*>(centres + numbers);
    ReduceFeed feed;
    for (int64_t unit = first; unit < last; ++unit) {
      if constexpr (!Whole) {
        if (plan.by_strips) {
          run_strip(space, feed, buffer, centres, scratch, unit);
          continue;
        }
      }
      run_rows(space, feed, buffer, scratch, unit);
    }
  }

 private:
  /// Evaluates up to `wanted` elements to a buffer. Returns how many.
  int64_t evaluate(ReduceSpace const& space, ReduceFeed& feed, char* const* from, int axis, int64_t wanted, E* to, unsigned char* scratch) const {
    int64_t const count = feed.bring(space, from, axis, wanted, scratch);
    evaluate(feed, count, to);
    return count;
  }
  void evaluate(ReduceFeed const& feed, int64_t count, E* to) const {
    Run<operands> run;
    for (int o = 1; o < operands; ++o) run.data[o] = feed.data[o], run.mask[o] = feed.mask[o];
    run.data[0] = to;
    run.mask[0] = -1;
    run.count = count;
    run.origin = 0;
    bound.run(run, false);
  }

  static void join(Total& total, E const* x, int64_t count) {
    Total part{static_cast<double>(count), 0, 0};
    dispatch<CentredRow<R>>(x, count, &part.centre, &part.spread);
    total = R::merge(total, part);
  }

  void run_rows(ReduceSpace const& space, ReduceFeed& feed, E* buffer, unsigned char* scratch, int64_t unit) const {
    int64_t const output = unit / plan.units_per_output, part = unit % plan.units_per_output;
    ReduceSpace::Rows const rows = space.rows_of(plan, part);
    int const axis = rows.axis;
    char* base[max_operands];
    for (int o = 1; o < operands; ++o) base[o] = static_cast<char*>(space.data[o]);
    space.advance(base, 0, space.kept, output);
    Total total = R::identity();
    bool const copies = space.copies_rows(rows);
    feed.boxed = 0;
    int64_t filled = 0;
    for (int64_t row = rows.first; row < rows.end; ++row) {
      char* place[max_operands];
      for (int o = 1; o < operands; ++o) place[o] = base[o];
      if (axis >= 0) space.advance(place, space.kept, axis, row);
      if (copies) {
        int64_t const most = tile_columns / rows.length, next = space.ahead(axis - 1, row, rows.end), together = next < most ? next : most;
        if (tile - filled < together * rows.length) join(total, buffer, filled), filled = 0;
        evaluate(feed, feed.bring_rows(space, place, axis, together, scratch), buffer + filled);
        filled += together * rows.length;
        row += together - 1;
        continue;
      }
      for (int64_t i = rows.begin; i < rows.stop;) {
        char* from[max_operands];
        for (int o = 1; o < operands; ++o) from[o] = place[o] + (axis >= 0 ? i * space.stride(o, axis) : 0) * space.element_sizes[o];
        int64_t wanted = rows.stop - i;
        if constexpr (in_place) {
          if (filled == 0 && axis >= 0 && space.stride(1, axis) == 1 && (wanted >= 256 || rows.end - rows.first == 1)) {
            int64_t const count = wanted < piece ? wanted : piece;
            join(total, reinterpret_cast<E const*>(from[1]), count);
            i += count;
            continue;
          }
        }
        if (wanted > tile - filled) wanted = tile - filled;
        int64_t const count = evaluate(space, feed, from, axis, wanted, buffer + filled, scratch);
        i += count, filled += count;
        if (filled == tile) join(total, buffer, filled), filled = 0;
      }
    }
    if (filled > 0) join(total, buffer, filled);
    deliver(output, part, total);
  }

  void run_strip(ReduceSpace const& space, ReduceFeed& feed, E* buffer, C* centres, unsigned char* scratch, int64_t unit) const {
    char* base[max_operands];
    auto const [axis, part, output, columns, first, end] = space.strip_of(plan, unit, base);
    C* const spreads = centres + padded_columns;
    for (int64_t row = first, guessed = first; row < end;) {
      if constexpr (in_place && CentredRow<R>::guesses) {
        constexpr int block = CentredBlock<R>::rows;
        if (row >= guessed && end - row >= block && space.rank - space.kept == 1 && space.stride(1, axis) == 1) {
          int64_t const bytes = space.stride(1, space.kept) * static_cast<int64_t>(sizeof(E));
          E const* const from = reinterpret_cast<E const*>(base[1] + row * bytes);
          guessed = row + block;
          int const refused = dispatch<CentredBlock<R>>(from, bytes, columns, buffer, padded_columns, centres, spreads, static_cast<C>(row - first));
          if (refused == 0) {
            row += block;
            continue;
          }
        }
      }
      constexpr int most = CentredStrip<R>::most_rows;
      int const rows = end - row < most ? static_cast<int>(end - row) : most;
      E const* from[most];
      int64_t ahead = 0;
      for (int r = 0; r < rows; ++r) {
        char* place[max_operands];
        for (int o = 1; o < operands; ++o) place[o] = base[o];
        space.advance(place, space.kept, space.rank, row + r);
        E* const to = buffer + r * strip_columns;
        from[r] = to;
        if constexpr (in_place) {
          if (space.stride(1, axis) == 1) {
            from[r] = reinterpret_cast<E const*>(place[1]);
            if (space.rank - space.kept == 1) ahead = most * space.stride(1, space.kept) * static_cast<int64_t>(sizeof(E));
            continue;
          }
        }
        for (int64_t i = 0; i < columns;) {
          char* at[max_operands];
          for (int o = 1; o < operands; ++o) at[o] = place[o] + i * space.stride(o, axis) * space.element_sizes[o];
          i += evaluate(space, feed, at, axis, columns - i, to + i, scratch);
        }
      }
      dispatch<CentredStrip<R>>(static_cast<E const* const*>(from), rows, columns, centres, spreads, static_cast<C>(row - first), ahead);
      row += rows;
    }
    for (int64_t c = 0; c < columns; ++c) {
      deliver(output + c, part, end > first ? Total{static_cast<double>(end - first), centres[c], spreads[c]} : R::identity());
    }
  }

  void deliver(int64_t output, int64_t part, Total const& total) const {
    if (parts) parts[part * program.outputs + output] = total;
    else static_cast<typename R::result*>(program.where.data[0])[place_of_output(program, output)] = finished<R>(total, program.count, program.parameter);
  }
};

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI
