/// How a reduction is cut into units, and how its operands are brought to the kernels.
///
/// Units depend on shapes and strides alone, so results do not depend on the number of threads.
#pragma once

#include <situ/device/cpu/scratch.hpp>
#include <situ/expr/cpu/launch.hpp>
#include <situ/ops/reduce_program.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

inline constexpr int64_t row_run = 16384;  ///< elements whose sum goes on as part of a balanced tree; of floats in double

/// How a reduction is cut. `by_strips`: along the kept axis `strip_axis`, which is to be made the last kept one.
struct ReducePlan {
  bool by_strips;
  int strip_axis;
  int64_t units_per_output;  ///< by rows: parts of one output; by strips: parts of one strip
  int64_t rows_per_unit, run_per_unit;
  int64_t outer, strips, columns, strip_columns;  ///< by strips
  int64_t fold;  ///< rows that a strip takes as one, where they are a few columns close to each other: a power of two
  int64_t units() const { return by_strips ? outer * strips * units_per_output : outer * units_per_output; }
};

/// The strided space of a reduction's inputs; operand 0 is not used.
struct ReduceSpace {
  int rank, kept, operands;
  int64_t const* sizes;
  int64_t const* strides;
  void* const* data;
  int64_t outputs, count;
  MoverFunctions const* const* movers;  ///< that of operand o at [o]; null where nothing is read
  int element_sizes[max_operands];      ///< of `operands` of them; the others are not cleared, which costs more than a small reduction has time for

  template <class Where>
  ReduceSpace(Where const& where, int kept_, int operands_, int64_t outputs_, int64_t count_, MoverFunctions const* const* movers_)
      : rank(where.rank), kept(kept_), operands(operands_), sizes(where.sizes), strides(&where.strides[0][0]), data(where.data), outputs(outputs_), count(count_), movers(movers_) {}

  int64_t stride(int o, int axis) const { return strides[o * max_rank + axis]; }

  /// Adds the offset of the `index`-th position of axes [first, last) to every operand's place.
  void advance(char** place, int first, int last, int64_t index) const {
    if (count == 0) return;  // nothing is read
    for (int k = last - 1; k >= first; --k) {
      int64_t const at = index % sizes[k];
      index /= sizes[k];
      if (at == 0) continue;
      for (int o = 1; o < operands; ++o) place[o] += at * stride(o, k) * element_sizes[o];
    }
  }

  bool is_beyond_caches() const {
    int64_t bytes = 0;
    for (int o = 1; o < operands; ++o) bytes += element_sizes[o];
    bytes *= outputs * count;
    return bytes >= streaming_bytes && bytes > last_cache_bytes();
  }

  /// The rows of a unit that reduces rows, and the part of each: elements [begin, stop) along `axis`.
  struct Rows {
    int axis;  ///< -1 where nothing is reduced
    int64_t length, first, end, begin, stop;
  };
  /// Of `units` of them, where they are parts of one row.
  Rows rows_of(ReducePlan const& plan, int64_t part, int64_t units = 1) const {
    Rows rows{};
    rows.axis = kept < rank ? rank - 1 : -1;
    rows.length = rows.axis >= 0 ? sizes[rows.axis] : 1;
    int64_t const runs_per_row = this->runs_per_row(plan);
    int64_t const all = rows.length > 0 ? count / rows.length : 0;
    rows.first = part / runs_per_row * plan.rows_per_unit;
    rows.end = rows.first + plan.rows_per_unit < all ? rows.first + plan.rows_per_unit : all;
    rows.begin = part % runs_per_row * plan.run_per_unit;
    rows.stop = rows.begin + units * plan.run_per_unit < rows.length ? rows.begin + units * plan.run_per_unit : rows.length;
    return rows;
  }
  /// The length of a row.
  int64_t run() const { return kept < rank ? sizes[rank - 1] : 1; }
  int64_t runs_per_row(ReducePlan const& plan) const {
    int64_t const length = run();
    return length > 0 ? (length - 1) / plan.run_per_unit + 1 : 1;
  }

  /// A unit that adds rows into a strip: `columns` of the outputs from number `output` on, rows [first, end). Its inputs begin at `base`.
  struct Strip {
    int axis;
    int64_t part, output, columns, first, end;
  };
  Strip strip_of(ReducePlan const& plan, int64_t unit, char** base) const {
    Strip strip{};
    strip.axis = kept - 1;
    strip.part = unit % plan.units_per_output;
    int64_t const column = unit / plan.units_per_output % plan.strips * plan.strip_columns, outer = unit / plan.units_per_output / plan.strips;
    int64_t const rows = (count + plan.fold - 1) / plan.fold;
    strip.output = outer * (plan.columns / plan.fold) + column;
    strip.columns = plan.columns - column < plan.strip_columns ? plan.columns - column : plan.strip_columns;
    strip.first = strip.part * plan.rows_per_unit;
    strip.end = strip.first + plan.rows_per_unit < rows ? strip.first + plan.rows_per_unit : rows;
    for (int o = 1; o < operands; ++o) base[o] = static_cast<char*>(data[o]) + column * stride(o, strip.axis) * element_sizes[o];
    advance(base, 0, strip.axis, outer);
    return strip;
  }

  /// The kept axis of at least 8 elements that is densest in memory, of equals the last; -1 where there is none.
  int densest_kept() const {
    int best = -1;
    int64_t best_bytes = 0;
    for (int k = kept - 1; k >= 0; --k) {
      if (sizes[k] < 8) continue;
      int64_t bytes = 0;
      for (int o = 1; o < operands; ++o) {
        int64_t const step = (stride(o, k) < 0 ? -stride(o, k) : stride(o, k)) * element_sizes[o];
        bytes += step < 64 ? step : 64;
      }
      if (best < 0 || bytes < best_bytes) best = k, best_bytes = bytes;
    }
    return best;
  }

  /// How many rows of a few columns make one: rows that are close to each other, or the same again, in every operand.
  int64_t foldable_rows() const {
    constexpr int64_t few = 64, pack = 16, fewest = 16, most = 64, enough = 256;
    if (kept == 0 || kept + 1 != rank || sizes[kept - 1] >= few) return 1;
    if (count < (sizes[kept - 1] < pack ? 4 : 32) * fewest) return 1;  // columns that fill a register pay for what is joined in the end only where rows are many
    for (int o = 1; o < operands; ++o) {
      int64_t const across = stride(o, kept - 1), along = stride(o, kept);
      if (element_sizes[o] > 0 && !(across == 1 && (along == sizes[kept - 1] || along == 0)) && !(across == 0 && along == 0)) return 1;
    }
    int64_t rows = fewest;
    while (rows < most && rows * sizes[kept - 1] < enough && count >= 8 * rows) rows *= 2;
    return rows;
  }
  /// Operand o's row is the same again for every row of a strip that takes several as one.
  bool repeats_rows(int o) const { return element_sizes[o] > 0 && stride(o, kept - 1) == 1 && stride(o, kept) == 0; }

  /// Whether short rows are copied beside each other, a box of them at a time: a kernel takes them as one.
  bool copies_rows(Rows const& rows) const {
    constexpr int64_t shortest = 64, longest = tile_columns / 2;
    if (rows.axis <= kept || rows.begin != 0 || rows.stop != rows.length || rows.end - rows.first < 2 || rows.length > longest) return false;
    bool in_step = true;  // rows that a kernel can take where they lie
    for (int o = 1; o < operands; ++o) {
      int64_t const step = stride(o, rows.axis);
      in_step = in_step && (element_sizes[o] == 0 || step == 1 || (step == 0 && stride(o, rows.axis - 1) == 0 && operands > 2));
    }
    return !in_step || rows.length <= shortest;
  }
  /// How many positions of an axis from number `at` on follow each other, of those before `end`.
  int64_t ahead(int axis, int64_t at, int64_t end) const {
    int64_t const left = sizes[axis] - at % sizes[axis];
    return left < end - at ? left : end - at;
  }

  /// `grain` elements are worth a thread of their own; strips are at most `strip_columns` wide, and cut in no fewer than `least_rows`. Rows of up to
  /// `short_rows` elements are reduced side by side, also where those of each lie together: a row by itself takes as long as one of several packs.
  SITU_NOINLINE ReducePlan plan(int64_t grain, int64_t strip_columns, int64_t least_rows, int64_t short_rows, bool folds) const {
    ReducePlan plan{};
    plan.strip_columns = strip_columns;
    plan.fold = folds ? foldable_rows() : 1;
    int last_kept = densest_kept();
    int const last_reduced = rank - 1;
    if (plan.fold > 1) {
      last_kept = kept - 1;
      plan.by_strips = true;
    } else if (last_kept >= 0 && kept == rank) {
      plan.by_strips = count == 1;  // axes of one element alone
    } else if (last_kept >= 0) {
      int votes = 0;
      for (int o = 1; o < operands; ++o) {
        if (element_sizes[o] == 0) continue;
        int64_t const a = stride(o, last_kept) < 0 ? -stride(o, last_kept) : stride(o, last_kept);
        int64_t const b = stride(o, last_reduced) < 0 ? -stride(o, last_reduced) : stride(o, last_reduced);
        if (a != 0 && b != 0) votes += a < b ? 1 : -1;
        else if (a != 0) votes += a == 1 ? 1 : 0;
        else if (b != 0) votes -= b == 1 ? 1 : 0;
      }
      plan.by_strips = votes > 0 || (sizes[last_reduced] <= short_rows && sizes[last_kept] >= 64);
    }
    // A unit is no more than a quarter of what is shared out at all.
    int64_t const quarter = count * outputs < elements_of_team ? count * outputs : (count * outputs + 3) / 4, least = grain < quarter ? grain : quarter;
    if (plan.by_strips) {
      plan.strip_axis = last_kept;
      plan.outer = outputs / sizes[last_kept];
      plan.columns = sizes[last_kept] * plan.fold;
      plan.strips = (plan.columns + strip_columns - 1) / strip_columns;
      int64_t const wide = plan.columns < strip_columns ? plan.columns : strip_columns, all = (count + plan.fold - 1) / plan.fold;
      int64_t rows = (least + wide - 1) / wide;
      if (rows < least_rows) rows = least_rows;
      plan.rows_per_unit = rows < all ? rows : (all > 0 ? all : 1);
      plan.units_per_output = all > 0 ? (all + plan.rows_per_unit - 1) / plan.rows_per_unit : 1;
      return plan;
    }
    plan.outer = outputs;
    int64_t const run = this->run();
    int64_t const rows = run > 0 ? count / run : 0;
    plan.rows_per_unit = rows > 0 ? rows : 1;
    plan.run_per_unit = run > 0 ? run : 1;
    plan.units_per_output = 1;
    if (least < count && outputs < 64) {  // few outputs: several units each, of which a thread has many, so that none has much more than another
      int64_t const unit = ((grain / 8 < least ? grain / 8 : least) + row_run - 1) / row_run * row_run;
      if (run >= unit) {
        plan.run_per_unit = unit;
        plan.rows_per_unit = 1;
        plan.units_per_output = rows * ((run + plan.run_per_unit - 1) / plan.run_per_unit);
      } else {
        plan.rows_per_unit = (unit + run - 1) / run;
        plan.units_per_output = (rows + plan.rows_per_unit - 1) / plan.rows_per_unit;
      }
    }
    return plan;
  }
};

/// How many bytes ahead reductions ask for inputs beyond all caches (all measured). AVX-512: a page, where one thread gains 5 % and two up to 25 % on an
/// Intel processor, and lose 15 % by a few lines; AMD's lose up to half by more than a few lines where a part of the input is in the last cache, and gain
/// nothing beyond it. With AVX2 one thread loses by more than 512 while others use the memory, and several gain by it.
inline namespace SITU_ABI_THREADS {
inline short asked_ahead() {
#if SITU_X86
  if (current_instruction_set() == instruction_set::avx512) return __builtin_cpu_is("amd") ? 256 : 4096;
#endif
  return num_threads() > 1 ? 2048 : 512;
}
}  // namespace SITU_ABI_THREADS

/// Where in memory output number `output` of a reordered space lies.
template <class Places>
SITU_INLINE int64_t place_of_output(Places const& places, int64_t output) {
  auto const& where = places.where;
  if (places.kept_rank == 0 || where.strides[0][places.kept_rank - 1] == 1) return output;  // in their own order
  int64_t place = 0;
  for (int k = places.kept_rank - 1; k >= 0; --k) {
    place += output % where.sizes[k] * where.strides[0][k];
    output /= where.sizes[k];
  }
  return place;
}

/// Cuts a reduction; puts the axis of its strips last among the kept ones.
template <class Places>
ReducePlan cut_reduction(Places& places, ReduceSpace const& space, int64_t grain, int64_t strip_columns, int64_t least_rows, int64_t short_rows, bool folds) {
  ReducePlan const plan = space.plan(grain, strip_columns, least_rows, short_rows, folds);
  int const last = places.kept_rank - 1;
  if (plan.by_strips && plan.strip_axis != last) swap_axes(places.where.sizes, &places.where.strides[0][0], space.operands, plan.strip_axis, last);
  return plan;
}

template <class P>
ReduceSpace reduce_space(P const& program) {
  constexpr int operands = P::leaves + 1;
  using Elementwise = ElementwiseBody<typename P::tree_type, typename P::value_type, operands>;
  ReduceSpace space(program.where, program.kept_rank, operands, program.outputs, program.count, input_movers<typename P::tree_type, operands>.of);
  for (int o = 1; o < operands; ++o) space.element_sizes[o] = Elementwise::element_size(o);
  return space;
}

/// Brings operands to a form that kernels read.
struct ReduceFeed {
  void* data[max_operands];
  int64_t mask[max_operands];
  int64_t boxed = 0;                     ///< elements in the boxes
  void const* came_from[max_operands];  ///< of what is in the boxes
  alignas(64) unsigned char splats[max_operands][64];

  /// `count` elements from `place` on, `axis` apart. Returns how many were brought.
  int64_t bring(ReduceSpace const& space, char* const* place, int axis, int64_t count, unsigned char* scratch) {
    // Where there is one operand, its kernel takes it as contiguous: a repeated element is written out.
    bool const repeats = space.operands > 2;
    bool gathers = false;
    for (int o = 1; o < space.operands; ++o) {
      int64_t const s = axis >= 0 ? space.stride(o, axis) : 0;
      gathers = gathers || (s != 1 && !(s == 0 && repeats) && count > 1);
    }
    if (gathers && count > tile_columns) count = tile_columns;
    for (int o = 1; o < space.operands; ++o) {
      int const size = space.element_sizes[o];
      int64_t const s = axis >= 0 ? space.stride(o, axis) : 0;
      data[o] = place[o];
      mask[o] = -1;
      if (!space.movers[o] || s == 1 || (count == 1 && (s != 0 || !repeats))) continue;
      auto const gather = space.movers[o]->gather;
      if (s == 0 && repeats) {
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

  /// `rows` short rows along `axis`, which follow each other along the axis before it, as one. The boxes that they are copied to stay the same as long
  /// as nothing else uses the scratch memory.
  SITU_NOINLINE int64_t bring_rows(ReduceSpace const& space, char* const* place, int axis, int64_t rows, unsigned char* scratch) {
    int64_t const length = space.sizes[axis], count = rows * length;
    bool const known = count <= boxed;
    bool moved = false;
    for (int o = 1; o < space.operands; ++o) {
      int const size = space.element_sizes[o];
      int64_t const step = space.stride(o, axis), apart = space.stride(o, axis - 1);
      unsigned char* const box = scratch;
      scratch += tile_columns * size + 64;
      data[o] = place[o];
      mask[o] = -1;
      if (!space.movers[o] || (step == 1 && apart == length)) continue;
      if (step == 0 && apart == 0 && space.operands > 2) {
        space.movers[o]->gather(splats[o], place[o], 0, 64 / (size > 0 ? size : 1));
        data[o] = splats[o], mask[o] = 0;
        continue;
      }
      data[o] = box;
      if (apart == 0 && known && came_from[o] == place[o]) continue;
      space.movers[o]->move({box, length, 1, place[o], apart, step, rows, length});
      came_from[o] = place[o];
      moved = moved || apart == 0;
    }
    if (!known || moved) boxed = count;
    return count;
  }
};

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI
