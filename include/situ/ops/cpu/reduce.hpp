/// Reductions on the CPU: one pass over the inputs, in packs.
///
/// A reduction is cut into *units* by its shape alone, so results do not depend on the number of threads. Where the last reduced
/// axis is the fastest in memory, a unit reduces rows to one number each; where the last kept axis is, it adds rows into a
/// strip of accumulators. Floats are added in float for at most a few hundred times in a row, then in double.
#pragma once

#include <situ/core/storage.hpp>
#include <situ/expr/cpu/evaluate.hpp>
#include <situ/expr/cpu/tiles.hpp>
#include <situ/ops/reduce_program.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// Whether a reducer remembers where it found its element.
template <class R>
inline constexpr bool finds_index = std::is_same_v<typename R::accumulator, reducers::indexed<typename R::element>>;

/// What parts of a reduction are merged in: sums of floats in double.
template <class R>
struct merged_in {
  using type = std::conditional_t<std::is_same_v<typename R::accumulator, float>, double, typename R::accumulator>;
};
template <class R>
  requires(requires { R::empty_is_defined; } && !R::empty_is_defined)
struct merged_in<R> {
  using type = typename R::accumulator;
};

inline constexpr int64_t strip_columns = 4096;  ///< accumulators that a unit keeps side by side
inline constexpr int64_t strip_rows = 64;       ///< rows added in float before they are added in double
inline constexpr int64_t row_run = 16384;       ///< elements added in float before they are added in double

/// How a reduction is cut. `by_strips`: the kept axis `rank - 1` of the reordered space is the fastest one.
struct ReducePlan {
  bool by_strips;
  int64_t units_per_output;  ///< by rows: parts of one output; by strips: parts of one strip
  int64_t rows_per_unit, run_per_unit;
  int64_t outer, strips, columns;  ///< by strips
  int64_t units() const { return by_strips ? outer * strips * units_per_output : outer * units_per_output; }
};

/// The strided space of a reduction's inputs; operand 0 is not used.
struct ReduceSpace {
  int rank, kept, operands;
  int64_t const* sizes;
  int64_t const* strides;
  void* const* data;
  int element_sizes[max_operands];
  int64_t outputs, count;

  int64_t stride(int o, int axis) const { return strides[o * max_rank + axis]; }

  /// Adds the offset of the `index`-th position of axes [first, last) to every operand's place.
  void advance(char** place, int first, int last, int64_t index) const {
    for (int k = last - 1; k >= first; --k) {
      int64_t const at = index % sizes[k];
      index /= sizes[k];
      if (at == 0) continue;
      for (int o = 1; o < operands; ++o) place[o] += at * stride(o, k) * element_sizes[o];
    }
  }

  ReducePlan plan(int64_t grain) const {
    ReducePlan plan{};
    int const last_kept = kept - 1, last_reduced = rank - 1;
    if (kept > 0 && kept < rank && sizes[last_kept] >= 8) {
      int votes = 0;
      for (int o = 1; o < operands; ++o) {
        if (element_sizes[o] == 0) continue;
        int64_t const a = stride(o, last_kept) < 0 ? -stride(o, last_kept) : stride(o, last_kept);
        int64_t const b = stride(o, last_reduced) < 0 ? -stride(o, last_reduced) : stride(o, last_reduced);
        if (a != 0 && b != 0) votes += a < b ? 1 : -1;
        else if (a != 0) votes += a == 1 ? 1 : 0;
        else if (b != 0) votes -= b == 1 ? 1 : 0;
      }
      plan.by_strips = votes > 0;
    }
    if (plan.by_strips) {
      plan.columns = sizes[last_kept];
      plan.strips = (plan.columns + strip_columns - 1) / strip_columns;
      plan.outer = outputs / plan.columns;
      int64_t const wide = plan.columns < strip_columns ? plan.columns : strip_columns;
      int64_t rows = (grain + wide - 1) / wide;
      if (rows < 2 * strip_rows) rows = 2 * strip_rows;
      if (count * outputs < 2 * grain) rows = count;
      plan.rows_per_unit = rows < count ? rows : (count > 0 ? count : 1);
      plan.units_per_output = count > 0 ? (count + plan.rows_per_unit - 1) / plan.rows_per_unit : 1;
      return plan;
    }
    plan.outer = outputs;
    int64_t const run = kept < rank ? sizes[last_reduced] : 1;
    int64_t const rows = run > 0 ? count / run : 0;
    plan.rows_per_unit = rows > 0 ? rows : 1;
    plan.run_per_unit = run > 0 ? run : 1;
    plan.units_per_output = 1;
    if (count >= 2 * grain && outputs < 64) {  // few outputs: several units each
      if (run >= grain) {
        plan.run_per_unit = (grain + row_run - 1) / row_run * row_run;
        plan.rows_per_unit = 1;
        plan.units_per_output = rows * ((run + plan.run_per_unit - 1) / plan.run_per_unit);
      } else {
        plan.rows_per_unit = (grain + run - 1) / run;
        plan.units_per_output = (rows + plan.rows_per_unit - 1) / plan.rows_per_unit;
      }
    }
    return plan;
  }
};

/// Brings `count` elements from `place` on, `axis` apart, to a form that kernels read. Returns how many were brought.
struct ReduceFeed {
  void* data[max_operands];
  int64_t mask[max_operands];
  alignas(64) unsigned char splats[max_operands][64];

  int64_t bring(ReduceSpace const& space, char* const* place, int axis, int64_t count, unsigned char* scratch) {
    bool gathers = false;
    for (int o = 1; o < space.operands; ++o) {
      int64_t const s = axis >= 0 ? space.stride(o, axis) : 0;
      gathers = gathers || (s != 0 && s != 1 && count > 1);
    }
    if (gathers && count > tile_columns) count = tile_columns;
    for (int o = 1; o < space.operands; ++o) {
      int const size = space.element_sizes[o];
      int64_t const s = axis >= 0 ? space.stride(o, axis) : 0;
      data[o] = place[o];
      mask[o] = -1;
      if (s == 1 || (count == 1 && s != 0)) continue;
      auto const gather = movers_for(size).gather;
      if (s == 0) {
        gather(splats[o], place[o], 0, 64 / (size > 0 ? size : 1));
        data[o] = splats[o], mask[o] = 0;
      } else {
        data[o] = scratch;
        gather(scratch, place[o], s, count);
        scratch += (count * size + 63) / 64 * 64;
      }
    }
    return count;
  }
};

/// The pack code of a reducer that combines values alone.
template <class R, class Tree, int Operands>
struct CombineBody {
  using T = typename Tree::value_type;
  using A = typename R::element;
  static constexpr int widest_lane = widest<Tree> > static_cast<int>(sizeof(A)) ? widest<Tree> : static_cast<int>(sizeof(A));
  static constexpr int unroll = cost_of<Tree> <= 24 ? 4 : 1;

  template <class Isa, int N>
  SITU_INLINE static pack<A, N, Isa> value(Tree const& tree, Run<Operands> const& run, int64_t i) {
    return convert_lanes<A, T, Isa, N>(Evaluator<Isa, N>::value(tree, Source<Isa, N>{run.data, run.mask, i, run.origin}));
  }

  /// The sum of a block, which -ffast-math may not dissolve into one long sum.
  template <class P>
  SITU_INLINE static P apart(P const& block) {
    if constexpr (std::is_floating_point_v<A>) return keep_order(block);
    else return block;
  }

  /// A row of elements to one number.
  struct Row {
    template <class Isa>
    SITU_INLINE static void run(Tree const* tree_, Run<Operands> const* run_, A* result) {
      constexpr int N = Isa::bytes / widest_lane;
      using P = pack<A, N, Isa>;
      Tree const tree = *tree_;
      Run<Operands> run = *run_;
      int64_t i = 0;
      P const none(R::identity());
      P a = none;
      if constexpr (unroll == 4) {
        while (i + 4 * N <= run.count) {  // few additions in a row, then their sum: rounding errors stay small
          int64_t const whole = (run.count - i) / (4 * N) * (4 * N);
          int64_t const stop = i + (whole < 64 * N ? whole : 64 * N);
          P b = none, c = none, d = none, e = none;
          for (; i < stop; i += 4 * N) {
            b = R::combine(b, value<Isa, N>(tree, run, i));
            c = R::combine(c, value<Isa, N>(tree, run, i + N));
            d = R::combine(d, value<Isa, N>(tree, run, i + 2 * N));
            e = R::combine(e, value<Isa, N>(tree, run, i + 3 * N));
          }
          a = R::combine(a, apart(R::combine(R::combine(b, c), R::combine(d, e))));
        }
      }
      while (i + N <= run.count) {
        int64_t const whole = (run.count - i) / N * N;
        int64_t const stop = i + (whole < 64 * N ? whole : 64 * N);
        P b = none;
        for (; i < stop; i += N) b = R::combine(b, value<Isa, N>(tree, run, i));
        a = R::combine(a, apart(b));
      }
      alignas(64) unsigned char buffers[Operands][64];
      if (i < run.count) {
        int const tail = static_cast<int>(run.count - i);
        buffer_tail<N>(std::type_identity<Tree>{}, run, buffers, i, tail);
        A lanes[N];
        value<Isa, N>(tree, run, 0).store(lanes);
        for (int k = tail; k < N; ++k) lanes[k] = R::identity();
        a = R::combine(a, P::load(lanes));
      }
      A lanes[N];
      a.store(lanes);
      for (int half = N / 2; half > 0; half /= 2) {
        for (int k = 0; k < half; ++k) lanes[k] = R::merge(lanes[k], lanes[k + half]);
      }
      *result = lanes[0];
    }
  };

  /// Four rows of elements, or as many as `rows` says, into a strip of accumulators that is padded to whole packs. Rows lie `row_bytes`
  /// apart, operand by operand.
  struct Strip {
    template <class Isa>
    SITU_INLINE static int run(Tree const* tree_, Run<Operands> const* run_, A* strip, int64_t const* row_bytes, int rows) {
      constexpr int N = Isa::bytes / widest_lane;
      using P = pack<A, N, Isa>;
      Tree const tree = *tree_;
      Run<Operands> run = *run_;
      int64_t i = 0;
      if constexpr (unroll == 4) {
        if (rows == 4) {
          Run<Operands> second = run, third = run, fourth = run;
          for (int o = 1; o < Operands; ++o) {
            second.data[o] = static_cast<char*>(run.data[o]) + row_bytes[o];
            third.data[o] = static_cast<char*>(run.data[o]) + 2 * row_bytes[o];
            fourth.data[o] = static_cast<char*>(run.data[o]) + 3 * row_bytes[o];
          }
          for (; i + N <= run.count; i += N) {
            P const ab = R::combine(value<Isa, N>(tree, run, i), value<Isa, N>(tree, second, i));
            P const cd = R::combine(value<Isa, N>(tree, third, i), value<Isa, N>(tree, fourth, i));
            R::combine(P::load(strip + i), R::combine(ab, cd)).store(strip + i);
          }
          if (i >= run.count) return 0;
          // The last columns of four rows are left to the loop below, row by row.
          for (int row = 0; row < 4; ++row) {
            Run<Operands>& at = row == 0 ? run : row == 1 ? second : row == 2 ? third : fourth;
            add_row<Isa, N>(tree, at, strip, i);
          }
          return 0;
        }
      }
      add_row<Isa, N>(tree, run, strip, i);
      return 0;
    }

    template <class Isa, int N>
    SITU_INLINE static void add_row(Tree const& tree, Run<Operands> run, A* strip, int64_t i) {
      using P = pack<A, N, Isa>;
      alignas(64) unsigned char buffers[Operands][64];
      int64_t n = run.count;
      for (;;) {
        for (; i + N <= n; i += N) R::combine(P::load(strip + i), value<Isa, N>(tree, run, i)).store(strip + i);
        if (i >= n) return;
        buffer_tail<N>(std::type_identity<Tree>{}, run, buffers, i, static_cast<int>(n - i));
        strip += i;
        i = 0, n = N;
      }
    }
  };
};

/// The pack code of argmin and argmax: values and, beside them, indices as lanes of the same size.
template <class R, class Tree, int Operands>
struct IndexBody {
  using T = typename Tree::value_type;
  using E = typename R::element;
  using A = std::conditional_t<(sizeof(E) < 4), int32_t, E>;
  using I = signed_of_size<A>;
  static constexpr int sign = std::is_same_v<R, reducers::argmax<T>> ? 1 : -1;
  static constexpr int widest_lane = widest<Tree> > static_cast<int>(sizeof(A)) ? widest<Tree> : static_cast<int>(sizeof(A));

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

  struct Row {
    template <class Isa>
    SITU_INLINE static void run(Tree const* tree_, Run<Operands> const* run_, reducers::indexed<A>* result) {
      constexpr int N = Isa::bytes / widest_lane;
      using P = pack<A, N, Isa>;
      using Q = pack<I, N, Isa>;
      Tree const tree = *tree_;
      Run<Operands> run = *run_;
      alignas(64) unsigned char buffers[Operands][64];
      P best(A(0));
      Q where(I(0)), here;
      for (int k = 0; k < N; ++k) here.set(k, static_cast<I>(k));
      bool first = true;
      int64_t i = 0, n = run.count;
      int lanes_used = static_cast<int>(n < N ? n : N);
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
        buffer_tail<N>(std::type_identity<Tree>{}, run, buffers, i, static_cast<int>(n - i));  // repeats lose: they come later
        i = 0, n = N;
      }
      A values[N];
      I indices[N];
      best.store(values);
      where.store(indices);
      reducers::indexed<A> found{values[0], indices[0]};
      for (int k = 1; k < lanes_used; ++k) found = merged(found, {values[k], indices[k]});
      *result = found;
    }
  };

  struct Strip {
    template <class Isa>
    SITU_INLINE static void run(Tree const* tree_, Run<Operands> const* run_, A* bests, I* wheres, I row) {
      constexpr int N = Isa::bytes / widest_lane;
      using P = pack<A, N, Isa>;
      using Q = pack<I, N, Isa>;
      Tree const tree = *tree_;
      Run<Operands> run = *run_;
      alignas(64) unsigned char buffers[Operands][64];
      int64_t i = 0, n = run.count;
      for (;;) {
        for (; i + N <= n; i += N) {
          P const x = value<Isa, N>(tree, run, i), best = P::load(bests + i);
          auto const m = beats(x, best);
          select(row == 0 ? typename P::mask_type(true) : m, x, best).store(bests + i);
          select(row == 0 ? typename P::mask_type(true) : m, Q(row), Q::load(wheres + i)).store(wheres + i);
        }
        if (i >= n) return;
        buffer_tail<N>(std::type_identity<Tree>{}, run, buffers, i, static_cast<int>(n - i));
        bests += i, wheres += i;
        i = 0, n = N;
      }
    }
  };

  static reducers::indexed<A> merged(reducers::indexed<A> a, reducers::indexed<A> b) {
    using Wide = reducers::arg_extremum<A, sign>;
    return Wide::merge(a, b);
  }
};

/// The kernel of a reduction: units [first, last) of its plan. Several units of one output leave their parts in `parts`.
template <class P>
struct ReduceKernel {
  using R = typename P::reducer;
  using Tree = typename P::tree_type;
  static constexpr int operands = P::leaves + 1;
  static constexpr bool indexed = finds_index<R>;
  using Body = std::conditional_t<indexed, IndexBody<R, Tree, operands>, CombineBody<R, Tree, operands>>;
  using Elementwise = ElementwiseBody<Tree, typename Tree::value_type, operands>;
  using A = typename Body::A;
  using Total = typename merged_in<R>::type;
  using I = signed_of_size<A>;
  /// Costly expressions are added row by row, not four at a time: fewer rows keep the rounding error as small.
  static constexpr int64_t block_rows = cost_of<Tree> <= 24 ? strip_rows : strip_rows / 4;

  P program;
  ReducePlan plan;
  Total* parts;  ///< null when every output is one unit

  ReduceSpace space() const {
    ReduceSpace space{program.where.rank, program.kept_rank, operands, program.where.sizes, &program.where.strides[0][0], program.where.data, {},
                      program.outputs, program.count};
    for (int o = 1; o < operands; ++o) space.element_sizes[o] = Elementwise::element_size(o);
    return space;
  }

  void operator()(int64_t first, int64_t last) const {
    ReduceSpace const space = this->space();
    alignas(64) unsigned char fixed[16 * 1024];
    int64_t needed = 64;
    for (int o = 1; o < operands; ++o) needed += tile_columns * space.element_sizes[o] + 64;
    unsigned char* const scratch = needed <= static_cast<int64_t>(sizeof fixed) ? fixed : static_cast<unsigned char*>(::operator new(static_cast<std::size_t>(needed), std::align_val_t{64}));
    ReduceFeed feed;
    if (plan.by_strips) {
      auto* const strip = static_cast<unsigned char*>(::operator new((strip_columns + 64) * (sizeof(A) + sizeof(I) + sizeof(Total)), std::align_val_t{64}));
      for (int64_t unit = first; unit < last; ++unit) run_strip(space, feed, scratch, strip, unit);
      ::operator delete(strip, std::align_val_t{64});
    } else {
      for (int64_t unit = first; unit < last; ++unit) run_rows(space, feed, scratch, unit);
    }
    if (scratch != fixed) ::operator delete(scratch, std::align_val_t{64});
  }

  static Total widened(A a) { return static_cast<Total>(a); }
  static Total widened(reducers::indexed<A> a) { return {static_cast<typename R::element>(a.value), a.index}; }
  static Total empty() { return static_cast<Total>(R::identity()); }
  static Total merged(Total const& a, Total const& b) {
    if constexpr (std::is_same_v<Total, typename R::accumulator>) return R::merge(a, b);
    else return a + b;  // float sums, in double
  }

 private:
  void start(Run<operands>& run, ReduceFeed const& feed, int64_t count) const {
    for (int o = 1; o < operands; ++o) run.data[o] = feed.data[o], run.mask[o] = feed.mask[o];
    run.data[0] = nullptr;
    run.mask[0] = 0;
    run.count = count;
    run.origin = 0;
  }

  void run_rows(ReduceSpace const& space, ReduceFeed& feed, unsigned char* scratch, int64_t unit) const {
    int64_t const output = unit / plan.units_per_output, part = unit % plan.units_per_output;
    int const axis = space.kept < space.rank ? space.rank - 1 : -1;
    int64_t const run_length = axis >= 0 ? space.sizes[axis] : 1;
    int64_t const runs_per_row = run_length > 0 ? (run_length + plan.run_per_unit - 1) / plan.run_per_unit : 1;
    int64_t const rows = run_length > 0 ? space.count / run_length : 0;
    int64_t row = part / runs_per_row * plan.rows_per_unit;
    int64_t const end = row + plan.rows_per_unit < rows ? row + plan.rows_per_unit : rows;
    int64_t const begin = part % runs_per_row * plan.run_per_unit;
    int64_t const stop = begin + plan.run_per_unit < run_length ? begin + plan.run_per_unit : run_length;
    char* base[max_operands];
    for (int o = 1; o < operands; ++o) base[o] = static_cast<char*>(space.data[o]);
    space.advance(base, 0, space.kept, output);
    Total total = empty();
    for (; row < end; ++row) {
      char* place[max_operands];
      for (int o = 1; o < operands; ++o) place[o] = base[o];
      if (axis >= 0) space.advance(place, space.kept, axis, row);
      for (int64_t i = begin; i < stop;) {
        char* from[max_operands];
        for (int o = 1; o < operands; ++o) from[o] = place[o] + (axis >= 0 ? i * space.stride(o, axis) : 0) * space.element_sizes[o];
        int64_t const wanted = stop - i < row_run ? stop - i : row_run;
        int64_t const count = feed.bring(space, from, axis, wanted, scratch);
        Run<operands> run;
        start(run, feed, count);
        if constexpr (indexed) {
          reducers::indexed<A> found;
          dispatch<typename Body::Row>(&program.tree, const_cast<Run<operands> const*>(&run), &found);
          found.index += row * run_length + i;
          total = merged(total, widened(found));
        } else {
          A sum;
          dispatch<typename Body::Row>(&program.tree, const_cast<Run<operands> const*>(&run), &sum);
          total = merged(total, widened(sum));
        }
        i += count;
      }
    }
    deliver(output, part, total);
  }

  void run_strip(ReduceSpace const& space, ReduceFeed& feed, unsigned char* scratch, unsigned char* memory, int64_t unit) const {
    int64_t const part = unit % plan.units_per_output;
    int64_t const strip = unit / plan.units_per_output % plan.strips;
    int64_t const outer = unit / plan.units_per_output / plan.strips;
    int const axis = space.kept - 1;
    int64_t const column = strip * strip_columns;
    int64_t const columns = plan.columns - column < strip_columns ? plan.columns - column : strip_columns;
    int64_t const first = part * plan.rows_per_unit;
    int64_t const end = first + plan.rows_per_unit < space.count ? first + plan.rows_per_unit : space.count;
    auto* const totals = reinterpret_cast<Total*>(memory);
    auto* const values = reinterpret_cast<A*>(memory + (strip_columns + 64) * sizeof(Total));
    auto* const wheres = reinterpret_cast<I*>(memory + (strip_columns + 64) * (sizeof(Total) + sizeof(A)));
    char* base[max_operands];
    for (int o = 1; o < operands; ++o) base[o] = static_cast<char*>(space.data[o]) + column * space.stride(o, axis) * space.element_sizes[o];
    space.advance(base, 0, axis, outer);
    for (int64_t c = 0; c < columns; ++c) totals[c] = empty();
    for (int64_t block = first; block < end; block += block_rows) {
      int64_t const block_end = block + block_rows < end ? block + block_rows : end;
      if constexpr (!indexed) {
        for (int64_t c = 0; c < columns + 64; ++c) values[c] = R::identity();
      } else {
        for (int64_t c = 0; c < columns + 64; ++c) values[c] = A(0), wheres[c] = 0;
      }
      for (int64_t row = block; row < block_end;) {
        int64_t row_bytes[operands] = {};
        int const rows = rows_together(space, row, block_end, row_bytes);
        char* place[max_operands];
        for (int o = 1; o < operands; ++o) place[o] = base[o];
        space.advance(place, space.kept, space.rank, row);
        for (int64_t i = 0; i < columns;) {
          char* from[max_operands];
          for (int o = 1; o < operands; ++o) from[o] = place[o] + i * space.stride(o, axis) * space.element_sizes[o];
          int64_t const count = feed.bring(space, from, axis, columns - i, scratch);
          Run<operands> run;
          start(run, feed, count);
          if constexpr (indexed) {
            dispatch<typename Body::Strip>(&program.tree, const_cast<Run<operands> const*>(&run), values + i, wheres + i, static_cast<I>(row - block));
          } else {
            dispatch<typename Body::Strip>(&program.tree, const_cast<Run<operands> const*>(&run), values + i, static_cast<int64_t const*>(row_bytes), rows);
          }
          i += count;
        }
        row += rows;
      }
      for (int64_t c = 0; c < columns; ++c) {
        if constexpr (indexed) totals[c] = merged(totals[c], widened(reducers::indexed<A>{values[c], wheres[c] + block}));
        else totals[c] = merged(totals[c], widened(values[c]));
      }
    }
    int64_t const output = outer * plan.columns + column;
    for (int64_t c = 0; c < columns; ++c) deliver(output + c, part, totals[c]);
  }

  /// How many rows from `row` on a strip's kernel may take at once, four or one, and how far apart they lie: four where they follow
  /// each other along one axis and every operand is read where it lies.
  static int rows_together(ReduceSpace const& space, int64_t row, int64_t end, int64_t* row_bytes) {
    if (indexed || cost_of<Tree> > 24 || row + 4 > end || space.kept >= space.rank) return 1;
    int const last = space.rank - 1;
    if (row % space.sizes[last] + 4 > space.sizes[last]) return 1;
    for (int o = 1; o < operands; ++o) {
      int64_t const step = space.stride(o, space.kept - 1);
      row_bytes[o] = space.stride(o, last) * space.element_sizes[o];
      if (step != 1 && !(step == 0 && row_bytes[o] == 0)) return 1;
    }
    return 4;
  }

  void deliver(int64_t output, int64_t part, Total const& total) const {
    if (parts) parts[output * plan.units_per_output + part] = total;
    else static_cast<typename R::result*>(program.where.data[0])[output] = R::finish(total, program.count);
  }
};

/// Merges the parts of outputs [first, last), as a balanced tree.
template <class K>
struct MergeKernel {
  typename K::Total* parts;
  typename K::R::result* out;
  int64_t units_per_output, count;

  void operator()(int64_t first, int64_t last) const {
    for (int64_t output = first; output < last; ++output) {
      auto* const mine = parts + output * units_per_output;
      for (int64_t n = units_per_output; n > 1; n = (n + 1) / 2) {
        for (int64_t k = 0; k < n / 2; ++k) mine[k] = K::merged(mine[2 * k], mine[2 * k + 1]);
        if (n % 2) mine[n / 2] = mine[n - 1];
      }
      out[output] = K::R::finish(mine[0], count);
    }
  }
};

}  // namespace detail::cpu

namespace detail {

/// Runs a bound reduction on D, which has the CPU's kernels: one launch, or two when outputs are cut into parts.
template <class D, class P>
void launch_reduce(cpu_kernels, P const& program) {
  using Kernel = cpu::ReduceKernel<P>;
  if (program.outputs == 0) return;
  constexpr int64_t cost = cost_of<typename P::tree_type> + 2;
  constexpr int64_t grain = (int64_t{4000000} / cost + cpu::row_run - 1) / cpu::row_run * cpu::row_run;  // about 40 microseconds
  Kernel kernel{program, {}, nullptr};
  kernel.plan = kernel.space().plan(grain);
  int64_t const units = kernel.plan.units();
  bool const in_parts = kernel.plan.units_per_output > 1;
  Temporary<D> const parts(in_parts ? static_cast<std::size_t>(program.outputs * kernel.plan.units_per_output) * sizeof(typename Kernel::Total) : 0);
  kernel.parts = static_cast<typename Kernel::Total*>(parts.get());
  int64_t const elements_per_unit = program.outputs * program.count / units + 1;
  device_traits<D>::launch(kernel, units, grain / elements_per_unit + 1);
  if (!kernel.parts) return;
  cpu::MergeKernel<Kernel> const merge{kernel.parts, static_cast<typename P::out_type*>(program.where.data[0]), kernel.plan.units_per_output, program.count};
  device_traits<D>::launch(merge, program.outputs, grain / kernel.plan.units_per_output + 1);
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
