/// Reductions on the CPU: one pass over the inputs, in packs.
///
/// A reduction is cut into *units* by shapes and strides alone, so results do not depend on the number of threads. Where the last reduced
/// axis is the fastest in memory, a unit reduces rows to one number each; where a kept axis is, it adds rows into a strip of accumulators
/// along that axis. Floats are added in float for at most a few hundred times in a row, then in double.
#pragma once

#include <situ/core/storage.hpp>
#include <situ/expr/cpu/launch.hpp>
#include <situ/ops/cpu/reduce_centred.hpp>
#include <situ/ops/cpu/reduce_index.hpp>
#include <situ/ops/cpu/reduce_lanes.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// Whether a reducer remembers where it found its element.
template <class R>
inline constexpr bool finds_index = std::is_same_v<typename R::accumulator, reducers::indexed<typename R::element>>;

/// What is known of a reduction's kernels when it is compiled. All that formulas have of their own is this, and the kernels.
template <int Operands, class Row, class Strip>
struct ReduceCode {
  Row row;
  Strip strip;
  void const* packs;  ///< a PackLoops, for rows that are taken pack by pack
  int together;       ///< rows that the strip's kernel takes at once
  Grain grain;
  int element_sizes[Operands];
  Formula const* formula;
  MoverFunctions const* const* movers;
  TreeLoops<Operands> const* evaluate;  ///< the tree; null where it is read where it is reduced
  int value_size, lanes;                ///< of what is evaluated; of an AVX-512 pack
};
/// A reduction with its tree forgotten. Trivially copyable. What reduces `Whole` shapes has rows alone, and is compiled without strips.
template <class R_, int Leaves, int TreeBytes, bool Whole>
struct BoundReduction : ReducePlaces<Leaves + 1> {
  using reducer = R_;
  static constexpr bool whole = Whole;
  static constexpr int leaves = Leaves, operands = Leaves + 1, tree_bytes = TreeBytes;
  static constexpr bool indexed = finds_index<R_>;
  using E = typename R_::element;
  using A = std::conditional_t<indexed && (sizeof(E) < 4), int32_t, E>;
  using Ix = signed_of_size<A>;
  using Found = std::conditional_t<indexed, reducers::indexed<A>, A>;
  using Row = void (*)(void const* code, void const* tree, void const* run, Found* results, int64_t const* row_bytes, int rows);
  using Strip = std::conditional_t<indexed, void (*)(void const* tree, void const* run, A* bests, Ix* wheres, Ix row, int64_t const* row_bytes, int rows),
                                   void (*)(void const* tree, void const* run, A* strip, int64_t const* row_bytes, int rows)>;
  using Code = ReduceCode<operands, Row, Strip>;

  Code const* code;
  Formula const* formula;
  alignas(16) unsigned char tree[TreeBytes];
};

/// Whether rows are reduced by loops of single packs.
template <class Body>
inline constexpr bool by_packs = [] {
  if constexpr (requires { Body::by_packs; }) return Body::by_packs;
  else return false;
}();

template <class Bound, class Tree, int Operands>
using reduction_body = std::conditional_t<Bound::indexed, IndexBody<typename Bound::reducer, Tree, Operands>, CombineBody<typename Bound::reducer, Tree, Operands>>;

/// `run` is a Run of as many operands as the kernel has.
template <class Body, class Tree, class Run, class... Args>
SITU_NOINLINE void reduce_row(void const*, void const* tree, void const* run, Args... args) {
  dispatch<typename Body::Row>(static_cast<Tree const*>(tree), static_cast<Run const*>(run), args...);
}
template <class Bound>
SITU_NOINLINE void reduce_rows_by_packs(void const* code_, void const* tree, void const* run, typename Bound::A* results, int64_t const* row_bytes, int rows) {
  using R = typename Bound::reducer;
  constexpr int operands = Bound::operands;
  auto const& code = *static_cast<typename Bound::Code const*>(code_);
  dispatch<RowsByPacks<R, operands>>(static_cast<PackLoops<typename Bound::A, operands> const*>(code.packs), static_cast<int const*>(code.element_sizes), code.lanes, tree,
                                     static_cast<Run<operands> const*>(run), results, row_bytes, rows);
}
template <class Body, class Tree, class Run, class... Args>
SITU_NOINLINE void reduce_strip(void const* tree, void const* run, Args... args) {
  dispatch<typename Body::Strip>(static_cast<Tree const*>(tree), static_cast<Run const*>(run), args...);
}
template <class Bound, class Tree>
inline constexpr typename Bound::Code reduce_code = [] {
  static_assert(std::is_trivially_copyable_v<Tree>, "situ: what is mapped over tensors must be trivially copyable");
  using T = typename Tree::value_type;
  using Value = std::conditional_t<std::is_same_v<T, bool>, bool, compute_t<T>>;
  constexpr bool as_read = is_light_to_reduce<Tree> || (Bound::whole && by_packs<reduction_body<Bound, Tree, Bound::operands>>);
  using Read = std::conditional_t<as_read, Tree, Input<Value, 0>>;
  constexpr int operands = as_read ? Bound::operands : 2;
  using Body = reduction_body<Bound, Read, operands>;
  using Evaluated = ElementwiseBody<Tree, Value, Bound::operands>;
  typename Bound::Code code{nullptr, nullptr, nullptr, Body::together, grain_of(time_of<Tree> + Cost{0, 2}, row_run), {}, &formula_of<Tree>, input_movers<Tree, Bound::operands>.of, nullptr, 0, 64 / Evaluated::widest_lane};
  if constexpr (by_packs<Body>) {
    using A = typename Bound::A;
    code.row = &reduce_rows_by_packs<Bound>;
    code.packs = &variants_of<PacksBody<typename Bound::reducer, Read, operands>, void, void const*, PackPlaces<operands> const*, int64_t const*, A*, int64_t, int64_t>;
    code.lanes = 64 / Body::widest_lane;
  } else {
    code.row = &reduce_row<Body, Read, Run<operands>>;
  }
  if constexpr (!Bound::whole) code.strip = &reduce_strip<Body, Read, Run<operands>>;
  for (int o = 1; o < Bound::operands; ++o) code.element_sizes[o] = Evaluated::element_size(o);
  if constexpr (!as_read) {
    code.evaluate = tree_loops<Tree, Value, Bound::operands>;
    code.value_size = static_cast<int>(sizeof(Value));
  }
  return code;
}();

/// The kernel of a reduction: units [first, last) of its plan. Several units of one output leave their parts in `parts`.
template <class P>
struct ReduceKernel {
  using R = typename P::reducer;
  static constexpr int operands = P::operands;
  static constexpr bool indexed = P::indexed;
  using A = typename P::A;
  using Ix = typename P::Ix;
  using Total = typename R::total;
  static constexpr int64_t strip_columns = 4096;  ///< accumulators that a unit keeps side by side
  static constexpr int times_dearer = indexed ? 4 : 1;  ///< than a sum, of several outputs

  P bound;
  ReducePlan plan;
  short ahead;   ///< bytes that a loop which looks for an extremum asks for ahead, where the inputs are more than the last cache holds
  Total* parts;  ///< those of one part for all outputs, then of the next one; null when every output is one unit

  int64_t elements(int64_t) const { return bound.outputs * bound.count; }

  /// Trees that are evaluated first: a piece of their values at a time, in the nearest cache.
  static constexpr int64_t piece_bytes = 8192;
  struct Evaluation {
    BoundTree<operands, P::tree_bytes> tree;
    Run<2> values;
    alignas(64) unsigned char memory[piece_bytes + 4096];

    explicit Evaluation(P const& bound) {
      tree.start = bound.code->evaluate;
      if (!tree.start) return;
      tree.lanes = bound.code->lanes;
      tree.sizes[0] = bound.code->value_size;
      for (int o = 1; o < operands; ++o) tree.sizes[o] = bound.code->element_sizes[o];
      __builtin_memcpy(tree.tree, bound.tree, sizeof tree.tree);
      values.data[0] = nullptr;
      values.mask[0] = values.mask[1] = -1;
      values.origin = 0;
    }
    /// At most so many elements at a time.
    int64_t longest(int64_t otherwise) const { return tree.start ? piece_bytes / tree.sizes[0] : otherwise; }
    /// What a kernel reads: the operands as they are, or the values of the tree.
    void const* read(Run<operands>& run) {
      if (!tree.start) return &run;
      values.count = run.count;
      // As far into a page as the first operand: the processor takes a load for one of a store before it where the two differ in their pages alone.
      values.data[1] = run.data[0] = memory + ((reinterpret_cast<std::uintptr_t>(run.data[1]) - reinterpret_cast<std::uintptr_t>(memory)) & 4032);
      tree.run(run, false);
      return &values;
    }
  };

  /// Rows added in float before they are added in double.
  int64_t block_rows() const { return 16 * bound.code->together; }
  ReduceSpace space() const {
    ReduceSpace space(bound.where, bound.kept_rank, operands, bound.outputs, bound.count, bound.code->movers);
    for (int o = 1; o < operands; ++o) space.element_sizes[o] = bound.code->element_sizes[o];
    return space;
  }
  static constexpr bool selects = indexed || requires { R::extremum; };
  void cut(int64_t grain) {
    ReduceSpace const space = this->space();
    int64_t const short_rows = indexed ? 32 : space.run() % bound.code->lanes == 0 ? 0 : 16;  // whole packs are fast
    plan = cut_reduction(bound, space, grain, strip_columns, 2 * block_rows(), short_rows, !indexed);
    ahead = selects && space.is_beyond_caches() ? asked_ahead() : short(0);
  }

  void operator()(int64_t first, int64_t last) const {
    ReduceSpace const space = this->space();
    alignas(64) unsigned char fixed[16 * 1024];
    int64_t needed = 64;
    for (int o = 1; o < operands; ++o) needed += tile_columns * space.element_sizes[o] + 64;
    int64_t strip_bytes = plan.by_strips ? (strip_columns + 64) * static_cast<int64_t>(sizeof(A) + sizeof(Ix) + sizeof(Total)) : 0;
    for (int o = 1; o < operands && plan.fold > 1; ++o) strip_bytes += padded_row(space, o);
    bool const fits = needed <= static_cast<int64_t>(sizeof fixed);
    Scratch const block((fits ? 0 : needed) + strip_bytes);
    unsigned char* const scratch = fits ? fixed : block.get() + strip_bytes;
    ReduceFeed feed;
    Evaluation evaluation(bound);
    if constexpr (P::whole) {
      for (int64_t unit = first; unit < last;) unit += run_rows(space, feed, evaluation, scratch, unit, last);
    } else if (plan.by_strips) {
      for (int64_t unit = first; unit < last; ++unit) run_strip(space, feed, evaluation, scratch, block.get(), unit);
    } else {
      for (int64_t unit = first; unit < last;) {
        int64_t const rows = rows_side_by_side(space, unit, last);
        if (rows > 1) run_rows_side_by_side(space, unit, rows), unit += rows;
        else unit += run_rows(space, feed, evaluation, scratch, unit, last);
      }
    }
  }

  static Total widened(A a) { return static_cast<Total>(a); }
  static Total widened(reducers::indexed<A> a) { return {static_cast<typename R::element>(a.value), a.index}; }
  static Total empty() { return static_cast<Total>(R::identity()); }
  static A first_value() {
    if constexpr (indexed) return A(0);
    else return static_cast<A>(R::identity());
  }
  static Total merged(Total const& a, Total const& b) {
    if constexpr (std::is_same_v<Total, typename R::accumulator>) return R::merge(a, b);
    else return R::combine(a, b);  // float sums, in double
  }

 private:
  void start(Run<operands>& run, ReduceFeed const& feed, int64_t count) const {
    for (int o = 1; o < operands; ++o) run.data[o] = feed.data[o], run.mask[o] = feed.mask[o];
    run.data[0] = nullptr;
    run.mask[0] = 0;
    run.count = count;
    run.origin = 0;
    run.ahead = ahead;
  }

  /// The totals of rows one after the other, merged as a balanced tree: however short the rows are, the error grows with the logarithm of their number.
  class RowTotals {
   public:
    SITU_INLINE void add(Total const& row) {
      waiting_[depth_++] = row;
      for (int64_t k = ++rows_; (k & 1) == 0; k >>= 1) merge_last();
    }
    SITU_INLINE Total merge() {
      if (depth_ == 0) return empty();
      while (depth_ > 1) merge_last();
      return merged(empty(), waiting_[0]);
    }

   private:
    SITU_INLINE void merge_last() {
      --depth_;
      waiting_[depth_ - 1] = merged(waiting_[depth_ - 1], waiting_[depth_]);
    }
    Total waiting_[64];
    int64_t rows_ = 0;
    int depth_ = 0;
  };

  static constexpr int64_t most_pieces = 64;
  /// Runs a unit, or as one those of [unit, last) that are parts of one row, where the result is the same. Returns how many it ran.
  int64_t run_rows(ReduceSpace const& space, ReduceFeed& feed, Evaluation& evaluation, unsigned char* scratch, int64_t unit, int64_t last) const {
    int64_t const output = unit / plan.units_per_output, part = unit % plan.units_per_output;
    int64_t units = 1;
    if constexpr (selects) {  // of others rounding errors stay small, as sums go on as Total
      int64_t const along = space.runs_per_row(plan), left = along - part % along;
      units = left < last - unit ? left : last - unit;
    }
    ReduceSpace::Rows const rows = space.rows_of(plan, part, units);
    int const axis = rows.axis;
    char* base[max_operands];
    for (int o = 1; o < operands; ++o) base[o] = static_cast<char*>(space.data[o]);
    if (rows.end > rows.first) space.advance(base, 0, space.kept, output);
    int64_t const longest = evaluation.longest(selects ? int64_t{1} << 24 : bound.code->packs ? row_run / 4 : row_run);
    bool const copies = space.copies_rows(rows);
    feed.boxed = 0;
    RowTotals totals;
    for (int64_t row = rows.first; row < rows.end; ++row) {
      char* place[max_operands];
      for (int o = 1; o < operands; ++o) place[o] = base[o];
      if (axis >= 0) space.advance(place, space.kept, axis, row);
      if (copies) {
        int64_t const most = tile_columns / rows.length, next = space.ahead(axis - 1, row, rows.end), together = next < most ? next : most;
        int64_t const count = feed.bring_rows(space, place, axis, together, scratch);
        Run<operands> run;
        start(run, feed, count);
        typename P::Found found;
        int64_t const row_bytes[operands] = {};
        bound.code->row(bound.code, bound.tree, evaluation.read(run), &found, row_bytes, 1);
        if constexpr (indexed) found.index += row * rows.length;
        totals.add(widened(found));
        row += together - 1;
        continue;
      }
      for (int64_t i = rows.begin; i < rows.stop;) {
        char* from[max_operands];
        for (int o = 1; o < operands; ++o) from[o] = place[o] + (axis >= 0 ? i * space.stride(o, axis) : 0) * space.element_sizes[o];
        int64_t const wanted = rows.stop - i < longest ? rows.stop - i : longest;
        int64_t const count = feed.bring(space, from, axis, wanted, scratch);
        Run<operands> run;
        start(run, feed, count);
        if constexpr (indexed) {
          reducers::indexed<A> found;
          int64_t const row_bytes[operands] = {};
          bound.code->row(bound.code, bound.tree, evaluation.read(run), &found, row_bytes, 1);
          found.index += row * rows.length + i;
          totals.add(widened(found));
          i += count;
        } else {  // pieces one after the other are rows to the kernel, and so are whole rows at equal distances
          int64_t row_bytes[operands] = {};
          A sums[most_pieces];
          bool const by_rows = count == rows.length && axis > space.kept;
          int64_t pieces = 1;
          if (by_rows) pieces = space.ahead(axis - 1, row, rows.end);
          else if (!bound.code->packs) pieces = (rows.stop - i) / count;
          if (pieces > most_pieces) pieces = most_pieces;
          if (bound.code->evaluate) pieces = 1;
          for (int o = 1; o < operands; ++o) {
            row_bytes[o] = (by_rows ? space.stride(o, axis - 1) : run.mask[o] & count) * space.element_sizes[o];
            if (row_bytes[o] != 0 && run.data[o] != from[o]) pieces = 1;
          }
          bound.code->row(bound.code, bound.tree, evaluation.read(run), sums, row_bytes, static_cast<int>(pieces));
          for (int64_t k = 0; k < pieces; ++k) totals.add(widened(sums[k]));
          i += (by_rows ? 1 : pieces) * count;
          row += by_rows ? pieces - 1 : 0;
        }
      }
    }
    deliver(output, part, totals.merge());
    for (int64_t k = 1; k < units; ++k) deliver(output, part + k, empty());
    return units;
  }

  /// How many outputs from `output` on are short rows at equal distances, which the kernel reads where they lie: it takes them at once.
  int64_t rows_side_by_side(ReduceSpace const& space, int64_t output, int64_t end) const {
    constexpr int64_t most = most_pieces, longest = 4096;
    if (parts || bound.code->evaluate || space.kept == 0 || space.kept + 1 != space.rank) return 1;
    if (space.sizes[space.kept] > longest || space.sizes[space.kept] == 0) return 1;
    for (int o = 1; o < operands; ++o) {
      if (space.stride(o, space.kept) != 1) return 1;
    }
    int64_t const rows = space.ahead(space.kept - 1, output, end);
    return rows < most ? rows : most;
  }
  void run_rows_side_by_side(ReduceSpace const& space, int64_t output, int64_t rows) const {
    char* place[max_operands];
    int64_t row_bytes[operands] = {};
    Run<operands> run{};
    for (int o = 1; o < operands; ++o) place[o] = static_cast<char*>(space.data[o]);
    space.advance(place, 0, space.kept, output);
    for (int o = 1; o < operands; ++o) {
      run.data[o] = place[o];
      run.mask[o] = -1;
      row_bytes[o] = space.stride(o, space.kept - 1) * space.element_sizes[o];
    }
    run.count = space.sizes[space.kept];
    typename P::Found results[most_pieces];
    bound.code->row(bound.code, bound.tree, &run, results, row_bytes, static_cast<int>(rows));
    for (int64_t k = 0; k < rows; ++k) deliver(output + k, 0, merged(empty(), widened(results[k])));
  }

  /// Bytes of a row of operand o in which a strip takes several as one.
  int64_t padded_row(ReduceSpace const& space, int o) const { return (plan.columns * space.element_sizes[o] + 63) / 64 * 64; }

  void run_strip(ReduceSpace const& space, ReduceFeed& feed, Evaluation& evaluation, unsigned char* scratch, unsigned char* memory, int64_t unit) const {
    char* base[max_operands];
    auto const [axis, part, output, columns, first, end] = space.strip_of(plan, unit, base);
    int64_t const padded = (columns + 63) / 64 * 64;
    auto* const totals = reinterpret_cast<Total*>(memory);
    auto* const values = reinterpret_cast<A*>(memory + (strip_columns + 64) * sizeof(Total));
    auto* const wheres = reinterpret_cast<Ix*>(memory + (strip_columns + 64) * (sizeof(Total) + sizeof(A)));
    int64_t const together = block_rows(), longest = evaluation.longest(strip_columns);
    bool const at_once = !indexed && end - first <= together && plan.fold == 1;
    for (int64_t c = 0; !at_once && c < padded; ++c) totals[c] = empty();
    for (int64_t c = 0; !indexed && c < padded; ++c) values[c] = first_value();
    unsigned char* repeated = memory + (strip_columns + 64) * static_cast<int64_t>(sizeof(A) + sizeof(Ix) + sizeof(Total));
    for (int o = 1; o < operands && plan.fold > 1; ++o) {
      if (!space.repeats_rows(o)) continue;
      int64_t const width = columns / plan.fold;
      space.movers[o]->move({repeated, width, 1, base[o], 0, 1, plan.fold, width});
      base[o] = reinterpret_cast<char*>(repeated);
      repeated += padded_row(space, o);
    }
    // A last row that is not full comes first: what its last pack adds to the columns behind it is taken back.
    int64_t const left_over = bound.count % plan.fold, shift = left_over > 0 && end * plan.fold > bound.count ? 1 : 0;
    for (int64_t block = first; block < end; block += together) {
      int64_t const block_end = block + together < end ? block + together : end;
      for (int64_t row = block; row < block_end;) {
        int64_t row_bytes[operands] = {};
        bool const is_full = shift == 0 || row > first;
        int64_t const at = is_full ? row - shift : end - 1, stop = is_full ? columns : left_over * (columns / plan.fold);
        int const rows = is_full ? rows_together(space, at, block_end - shift, row_bytes) : 1;
        char* place[max_operands];
        for (int o = 1; o < operands; ++o) place[o] = base[o];
        space.advance(place, space.kept, space.rank, at * plan.fold);
        for (int64_t i = 0; i < stop;) {
          char* from[max_operands];
          for (int o = 1; o < operands; ++o) from[o] = place[o] + i * space.stride(o, axis) * space.element_sizes[o];
          int64_t const count = feed.bring(space, from, axis, stop - i < longest ? stop - i : longest, scratch);
          Run<operands> run;
          start(run, feed, count);
          if constexpr (indexed) {
            bound.code->strip(bound.tree, evaluation.read(run), values + i, wheres + i, static_cast<Ix>(row - block), row_bytes, rows);
          } else {
            bound.code->strip(bound.tree, evaluation.read(run), values + i, row_bytes, rows);
          }
          i += count;
        }
        for (int64_t c = stop; !indexed && !is_full && c < padded; ++c) values[c] = first_value();
        row += rows;
      }
      if constexpr (indexed) {
        for (int64_t c = 0; c < columns; ++c) totals[c] = merged(totals[c], widened(reducers::indexed<A>{values[c], wheres[c] + block}));
      } else if (!at_once) {
        dispatch<SetAsideBody<R, A, Total>>(values, totals, padded);
      }
    }
    int64_t wide = columns;
    for (int64_t f = plan.fold; f > 1; f /= 2) {  // a power of two
      wide /= 2;
      for (int64_t c = 0; c < wide; ++c) totals[c] = merged(totals[c], totals[c + wide]);
    }
    if (!at_once) deliver_strip(output, part, wide, [&](int64_t c) { return totals[c]; });
    else if constexpr (!indexed) deliver_strip(output, part, wide, [&](int64_t c) { return widened(values[c]); });
  }
  template <class TotalOf>
  SITU_INLINE void deliver_strip(int64_t output, int64_t part, int64_t columns, TotalOf const& total) const {
    if (parts) {
      Total* const to = parts + part * bound.outputs + output;
      for (int64_t c = 0; c < columns; ++c) to[c] = total(c);
    } else {
      typename R::result* const to = static_cast<typename R::result*>(bound.where.data[0]) + place_of_output(bound, output);
      int64_t const step = bound.where.strides[0][bound.kept_rank - 1];
      for (int64_t c = 0; c < columns; ++c) to[c * step] = finished<R>(total(c), bound.count, bound.parameter);
    }
  }

  /// How many rows from `row` on a strip's kernel takes at once, and how far apart they lie: several where they follow each
  /// other along one axis and every operand is read where it lies.
  int rows_together(ReduceSpace const& space, int64_t row, int64_t end, int64_t* row_bytes) const {
    int const together = bound.code->together;
    if (bound.code->evaluate || space.kept >= space.rank || (indexed && row + together > end)) return 1;
    int const last = space.rank - 1;
    int64_t const length = plan.fold > 1 ? end : space.sizes[last], left = length - row % length, rows = left < end - row ? left : end - row;
    if (rows < (indexed ? together : 2)) return 1;
    for (int o = 1; o < operands; ++o) {
      int64_t const step = space.stride(o, space.kept - 1);
      row_bytes[o] = space.stride(o, last) * plan.fold * space.element_sizes[o];
      if (step != 1 && !(step == 0 && row_bytes[o] == 0 && operands > 2)) return 1;
    }
    if constexpr (indexed) return together;
    else return static_cast<int>(rows < together ? rows : rows - rows % together);
  }

  void deliver(int64_t output, int64_t part, Total const& total) const {
    if (parts) parts[part * bound.outputs + output] = total;
    else static_cast<typename R::result*>(bound.where.data[0])[output] = finished<R>(total, bound.count, bound.parameter);
  }
};

/// Merges the parts of outputs [first, last), as a balanced tree.
template <class K, class Places>
struct MergeKernel {
  typename K::Total* parts;
  int64_t outputs, parts_per_output;
  Places places;

  void operator()(int64_t first, int64_t last) const {
    for (int64_t n = parts_per_output; n > 1; n = (n + 1) / 2) {
      for (int64_t k = 0; k < (n + 1) / 2; ++k) {
        auto* const into = parts + k * outputs;
        auto const* const a = parts + 2 * k * outputs;
        auto const* const b = a + outputs;
        if (2 * k + 1 < n) {
          for (int64_t o = first; o < last; ++o) into[o] = K::merged(a[o], b[o]);
        } else {
          for (int64_t o = first; o < last; ++o) into[o] = a[o];
        }
      }
    }
    auto* const out = static_cast<typename K::R::result*>(places.where.data[0]);
    for (int64_t o = first; o < last; ++o) out[place_of_output(places, o)] = finished<typename K::R>(parts[o], places.count, places.parameter);
  }
};

/// Cuts a reduction, and runs it: one launch, or two when outputs are cut into parts.
template <class D, class Kernel, int Operands>
SITU_NOINLINE void launch_reduction(Kernel& kernel, ReducePlaces<Operands> const& places, int64_t grain) {
  int64_t const outputs = places.outputs, count = places.count;
  kernel.cut(grain);
  int64_t const units = kernel.plan.units(), parts_per_output = kernel.plan.units_per_output;
  Temporary<D> const parts(parts_per_output > 1 ? static_cast<std::size_t>(outputs * parts_per_output) * sizeof(typename Kernel::Total) : 0);
  kernel.parts = static_cast<typename Kernel::Total*>(parts.get());
  int64_t const elements_per_unit = outputs * count / units + 1;
  device_traits<D>::launch(kernel, units, grain / (outputs > 1 ? Kernel::times_dearer : 1) / elements_per_unit + 1);
  if (!kernel.parts) return;
  MergeKernel<Kernel, ReducePlaces<Operands>> const merge{kernel.parts, outputs, parts_per_output, places};
  device_traits<D>::launch(merge, outputs, grain / parts_per_output + 1);
}

}  // namespace detail::cpu

namespace detail {

/// Runs a bound reduction of a centred reducer on D, which has the CPU's kernels. Whole: over all axes.
template <class D, bool Whole, class P>
void launch_reduce(cpu_kernels, P const& program) {
  if (program.outputs == 0) return;
  int64_t const grain = cpu::grain_of(time_of<typename P::tree_type> + Cost{0, 2}, cpu::row_run);
  cpu::CentredKernel<P, Whole> kernel(program);
  cpu::launch_reduction<D>(kernel, kernel.program, grain);
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
