/// Operations on rows on the CPU: every input is read once, into a buffer that stays in the cache, and every output is written once.
///
/// Rows that are dense in the output are taken one after the other; rows that lie side by side in it in strips of some of them. The
/// buffer is filled by the kernels of elementwise expressions, with their tiles for operands of other strides, so that nothing
/// but those is instantiated per expression. Rows too long for the buffer are cut into parts and read twice: statistics of the parts,
/// their merger, then the elements. How work is cut depends on shapes alone, so results do not depend on the number of threads.
#pragma once

#include <situ/core/storage.hpp>
#include <situ/device/cpu/scratch.hpp>
#include <situ/expr/cpu/launch.hpp>
#include <situ/ops/cpu/columns.hpp>
#include <situ/ops/cpu/rows_bodies.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

inline constexpr int64_t held_bytes = int64_t{256} << 10;  ///< of the largest buffer: a part of the second-level cache
inline constexpr int64_t widest_strip = 256;               ///< rows of a strip
inline constexpr int64_t box_elements = 16384;             ///< what is filled at once with short rows, and the parts of long ones

/// How the rows of a program are cut.
struct RowPlan {
  int rank, kept, along;
  bool strips;
  bool direct;        ///< the input is a tensor of the type of the arithmetic and dense along the rows: no buffer
  bool runs;          ///< every input is dense or repeated along the rows
  bool dense;         ///< every input and the output are contiguous
  bool stream;
  int64_t rows, length, columns;
  int64_t rows_at_once;        ///< that fill a buffer; not in strips
  int64_t width, strip_count;  ///< of strips
  // Parts of long rows: one index of the axes before `cut_axis`, `cut` indices of it, all of the axes behind it.
  int cut_axis;
  int64_t cut, cuts, behind, parts;

  bool in_parts() const { return parts > 1; }
};

/// The kernel: items are rows or strips of them, or the parts of either. `Stage` tells what is done.
enum class RowStage { whole, gather, write };

template <class Op, int Operands, int TreeBytes>
struct RowKernel {
  using C = typename Op::compute;
  using Out = typename Op::result;
  BoundTree<Operands, TreeBytes> bound;  // operand 0 is the buffer
  Op op;
  Out* out;
  RowPlan plan;
  int64_t sizes[max_rank];
  int64_t strides[Operands][max_rank];
  RowStage stage;
  RowStatistics* statistics;  ///< of parts: [row, strip or column, part]
  RowStatistics* totals;      ///< of whole rows

  int64_t elements(int64_t) const { return plan.rows * plan.length * plan.columns; }
  void operator()(int64_t first, int64_t last) const {
    if (plan.strips) {
      int64_t const wide = padded(plan.width), high = plan.in_parts() ? plan.cut * plan.behind : plan.length;
      Scratch const memory((wide * high + 3 * wide + 64) * static_cast<int64_t>(sizeof(C)));
      if (wide != plan.width || plan.columns % plan.width != 0) std::memset(memory.get(), 0, static_cast<std::size_t>(wide * high) * sizeof(C));
      for (int64_t item = first; item < last; ++item) strip(reinterpret_cast<C*>(memory.get()), item);
    } else if (plan.in_parts()) {
      Scratch const memory((plan.cut * plan.behind + 64) * static_cast<int64_t>(sizeof(C)));
      for (int64_t item = first; item < last; ++item) part_of_row(reinterpret_cast<C*>(memory.get()), item);
    } else {
      whole_rows(first, last);
    }
    if (plan.stream && stage != RowStage::gather) finish_streaming();
  }

 private:
  static int64_t padded(int64_t n) { return (n + 15) / 16 * 16; }

  /// Where the operands' elements of a row (or of a line of rows side by side) begin.
  struct Places {
    char* of[Operands];
    int64_t output;  ///< offset, in elements
  };
  Places places(int64_t row) const {
    Places result;
    result.output = 0;
    for (int o = 1; o < Operands; ++o) result.of[o] = static_cast<char*>(bound.data[o]);
    move(result, 0, plan.kept, row);
    return result;
  }
  /// Moves on by the `index`-th position of axes [first, end).
  void move(Places& places, int first, int end, int64_t index) const {
    for (int k = end - 1; k >= first; --k) {
      int64_t at = index;
      if (k > first) at = index % sizes[k], index /= sizes[k];
      if (at == 0) continue;
      places.output += at * strides[0][k];
      for (int o = 1; o < Operands; ++o) places.of[o] += at * strides[o][k] * bound.sizes[o];
    }
  }

  /// Fills the buffer with the elements of axes [axis, rank), of which `extent` along the first and `last_extent` along the last one; lines of
  /// the last axis `pitch` apart.
  void fill(C* to, Places const& from, int axis, int64_t extent, int64_t last_extent, int64_t pitch) const {
    int const rank = plan.rank - axis;
    int64_t box_sizes[max_rank], box_strides[Operands * max_rank];
    void* data[Operands];
    int64_t step = 1, count = 1;
    for (int k = rank - 1; k >= 0; --k) {
      box_sizes[k] = k == rank - 1 ? last_extent : sizes[axis + k];
      if (k == 0) box_sizes[k] = extent;
      count *= box_sizes[k];
      box_strides[k] = step;
      step = k == rank - 1 ? pitch : step * box_sizes[k];
      for (int o = 1; o < Operands; ++o) box_strides[o * max_rank + k] = strides[o][axis + k];
    }
    data[0] = to;
    for (int o = 1; o < Operands; ++o) data[o] = from.of[o];
    StridedSpace space(rank, Operands, box_sizes, box_strides, data, bound.movers);
    for (int o = 0; o < Operands; ++o) space.element_sizes[o] = bound.sizes[o];
    if (count == 0) return;
    space.choose_grid();
    run_tiles(space, 0, space.grid.tiles, &run_strided, this);
  }
  static void run_strided(void const* self_, void* const* data, int64_t const* mask, int64_t count, bool) {
    auto const& self = *static_cast<RowKernel const*>(self_);
    Run<Operands> run;
    run.set_operands(data, mask);
    run.count = count;
    run.origin = 0;
    self.bound.run(run, false);
  }
  /// Fills the buffer with `count` elements of operands that are dense or repeated.
  void fill_run(C* to, Places const& from, int64_t count) const {
    Run<Operands> run;
    alignas(64) unsigned char splats[Operands][64];
    run.data[0] = to;
    run.mask[0] = -1;
    run.count = count;
    run.origin = 0;
    for (int o = 1; o < Operands; ++o) {
      run.data[o] = from.of[o];
      run.mask[o] = -1;
      if (strides[o][plan.kept] != 0 || bound.sizes[o] == 0) continue;
      bound.movers[o]->gather(splats[o], from.of[o], 0, 64 / bound.sizes[o]);
      run.data[o] = splats[o], run.mask[o] = 0;
    }
    bound.run(run, false);
  }

  // ---- rows one after the other ----

  /// The next row of the first operands that are dense.
  NextRow next_row(Places const& from) const {
    NextRow result;
    int found = 0;
    for (int o = 1; o < Operands && found < 2; ++o) {
      int64_t const step = strides[o][plan.kept - 1];
      if (step == 0 || strides[o][plan.kept] == 0) continue;
      result.of[found] = from.of[o] + step * bound.sizes[o];
      result.sizes[found++] = bound.sizes[o];
    }
    return result;
  }

  void whole_rows(int64_t first, int64_t last) const {
    int64_t const n = plan.length;
    bool const buffered = !plan.direct;
    Scratch const memory(((buffered ? plan.rows_at_once * n : 0) + n + 128) * static_cast<int64_t>(sizeof(C)));
    C* const work = reinterpret_cast<C*>(memory.get());
    C* const buffer = work + (n + 79) / 16 * 16;
    int64_t const line = plan.kept > 0 ? sizes[plan.kept - 1] : 1;  // rows that follow each other along one axis
    for (int64_t row = first; row < last;) {
      int64_t rows = line - row % line;
      if (rows > last - row) rows = last - row;
      Places const from = places(row);
      RowsArguments<Op> arguments;
      arguments.work = work;
      arguments.out = out + from.output;
      arguments.count = n;
      arguments.out_pitch = plan.kept > 0 ? strides[0][plan.kept - 1] : 0;
      arguments.slack = 0;
      arguments.next = {};
      arguments.stream = plan.stream;
      arguments.grouped = plan.rows >= least_grouped_rows && n <= group_elements && (plan.direct || plan.rows_at_once > 1);
      arguments.first = row, arguments.all = plan.rows;
      arguments.op = op;
      if (plan.direct) {
        arguments.x = reinterpret_cast<C const*>(from.of[1]);
        arguments.pitch = plan.kept > 0 ? strides[1][plan.kept - 1] : 0;
      } else {
        if (rows > plan.rows_at_once) rows = plan.rows_at_once;
        if (plan.dense) {
          fill_run(buffer, from, rows * n);
          if (rows == 1 && row + 1 < last) arguments.next = next_row(from);
        } else if (plan.runs) {
          rows = 1;
          fill_run(buffer, from, n);
          if (plan.kept > 0 && row + 1 < last) arguments.next = next_row(from);
        } else if (plan.kept > 0) {
          fill_rows(buffer, from, rows);
        } else {
          fill(buffer, from, 0, sizes[0], sizes[plan.rank - 1], sizes[plan.rank - 1]);
        }
        arguments.x = buffer;
        arguments.pitch = n;
        arguments.slack = 64;
      }
      arguments.rows = rows;
      if (plan.along == 1) {
        dispatch<RowsBody<Op>>(const_cast<RowsArguments<Op> const*>(&arguments));
      } else {
        for (int64_t r = 0; r < rows; ++r) row_in_pieces(buffer + r * n, n, from.output + r * arguments.out_pitch);
      }
      row += rows;
    }
  }
  void fill_rows(C* to, Places const& from, int64_t rows) const {
    int const last = plan.rank - 1;
    fill(to, from, plan.kept - 1, rows, sizes[last], sizes[last]);
  }
  /// A row that is dense in the output only along its last axis.
  void row_in_pieces(C* x, int64_t n, int64_t output) const {
    RowStatistics found;
    dispatch<GatherBody<Op>>(&op, const_cast<C const*>(x), n + 64, n, &found);
    RowCoefficients<C> const row = op.finish(found);
    write_pieces(x, n, row, output, 0);
  }
  void write_pieces(C* x, int64_t n, RowCoefficients<C> const& row, int64_t output, int64_t first) const {
    int64_t const run = sizes[plan.rank - 1];
    for (int64_t i = 0; i < n; i += run) {
      Places place{};
      place.output = output;
      move_output(place, first + i);
      int64_t const count = n - i < run ? n - i : run;
      dispatch<WriteBody<Op>>(&op, const_cast<C const*>(x + i), n - i + 64, count, &row, out + place.output, first + i, plan.stream);
    }
  }
  /// The output's place of element `index` of a row.
  void move_output(Places& place, int64_t index) const {
    for (int k = plan.kept + plan.along - 1; k >= plan.kept; --k) {
      place.output += index % sizes[k] * strides[0][k];
      index /= sizes[k];
    }
  }

  // ---- parts of long rows ----

  struct Part {
    int64_t first, extent, count;  ///< the number of its first element in the row; along the cut axis; elements
  };
  Part part(int64_t number, Places& from) const {
    int64_t const outside = number / plan.cuts, begin = number % plan.cuts * plan.cut;
    int64_t const size = sizes[plan.cut_axis];
    int64_t const extent = size - begin < plan.cut ? size - begin : plan.cut;
    move(from, plan.kept, plan.cut_axis, outside);
    for (int o = 1; o < Operands; ++o) from.of[o] += begin * strides[o][plan.cut_axis] * bound.sizes[o];
    return {(outside * size + begin) * plan.behind, extent, extent * plan.behind};
  }
  void part_of_row(C* buffer, int64_t item) const {
    int64_t const row = item / plan.parts;
    Places from = places(row);
    int64_t const output = from.output;
    Part const p = part(item % plan.parts, from);
    C* x = buffer;
    int64_t readable = p.count;
    if (plan.direct) x = reinterpret_cast<C*>(from.of[1]);
    else {
      int64_t const last = plan.cut_axis == plan.rank - 1 ? p.extent : sizes[plan.rank - 1];
      if (plan.runs) fill_run(x, from, p.count);
      else fill(x, from, plan.cut_axis, p.extent, last, last);
      readable += 64;
    }
    if (stage == RowStage::gather) {
      dispatch<GatherBody<Op>>(&op, const_cast<C const*>(x), readable, p.count, statistics + item);
      return;
    }
    RowCoefficients<C> const coefficients = op.finish(totals[row]);
    if (plan.along == 1) dispatch<WriteBody<Op>>(&op, const_cast<C const*>(x), readable, p.count, &coefficients, out + output + p.first * strides[0][plan.kept], p.first, plan.stream);
    else write_pieces(x, p.count, coefficients, output, p.first);
  }

  // ---- strips of rows that lie side by side ----

  void strip(C* buffer, int64_t item) const {
    int64_t const number = item % plan.parts, strip = item / plan.parts % plan.strip_count, row = item / plan.parts / plan.strip_count;
    int64_t const column = strip * plan.width;
    int64_t const columns = plan.columns - column < plan.width ? plan.columns - column : plan.width;
    int64_t const pitch = padded(columns);
    int const last = plan.rank - 1;
    Places from = places(row);
    from.output += column * strides[0][last];
    for (int o = 1; o < Operands; ++o) from.of[o] += column * strides[o][last] * bound.sizes[o];
    int64_t const output = from.output;
    Part p{0, sizes[plan.kept], plan.length};
    if (plan.in_parts()) p = part(number, from);
    C* x = buffer;
    int64_t x_pitch = pitch;
    C const* const source = plan.direct ? reinterpret_cast<C const*>(from.of[1]) : nullptr;
    if (plan.direct && stage == RowStage::write && columns == pitch) x = const_cast<C*>(source), x_pitch = strides[1][plan.kept];
    else if (!plan.direct || stage == RowStage::write) fill(buffer, from, plan.cut_axis, p.extent, columns, pitch);
    int64_t const high = plan.in_parts() ? plan.cut * plan.behind : plan.length;
    C* const found = buffer + padded(plan.width) * high;
    if (stage != RowStage::write) {
      if (stage == RowStage::whole) {
        dispatch<GatherColumnsBody<Op, RowMath<Op>::keeps>>(&op, source, strides[1][plan.kept], buffer, pitch, columns, p.count, found, true);
      } else {
        dispatch<GatherColumnsBody<Op, false>>(&op, source, strides[1][plan.kept], buffer, pitch, columns, p.count, found, false);
        for (int64_t k = 0; k < columns; ++k) {
          statistics[(row * plan.columns + column + k) * plan.parts + number] = RowMath<Op>::column(found[k], found[pitch + k], found[2 * pitch + k], p.count);
        }
        return;
      }
    } else {
      for (int64_t k = 0; k < pitch; ++k) {
        RowCoefficients<C> row_of{};
        if (k < columns) row_of = op.finish(totals[row * plan.columns + column + k]);
        found[k] = row_of.shift, found[pitch + k] = row_of.low, found[2 * pitch + k] = row_of.scale;
      }
    }
    int64_t const run = sizes[plan.rank - 2];  // the last axis along the rows
    for (int64_t i = 0; i < p.count;) {
      Places place{};
      place.output = output;
      move_output(place, p.first + i);
      int64_t const in_run = (p.first + i) % run;
      int64_t const count = p.count - i < run - in_run ? p.count - i : run - in_run;
      C const* const rows = x + i * x_pitch;
      C const* const coefficients = found;
      int64_t const out_pitch = strides[0][plan.rank - 2];
      if (stage == RowStage::whole) dispatch<WriteColumnsBody<Op, RowMath<Op>::keeps>>(&op, rows, x_pitch, pitch, columns, count, coefficients, out + place.output, out_pitch, p.first + i, plan.stream);
      else dispatch<WriteColumnsBody<Op, false>>(&op, rows, x_pitch, pitch, columns, count, coefficients, out + place.output, out_pitch, p.first + i, plan.stream);
      i += count;
    }
  }
};

/// Merges the parts of rows [first, last), in their order.
template <class Op>
struct MergeRowsKernel {
  Op op;
  RowStatistics const* statistics;
  RowStatistics* totals;
  int64_t parts;
  void operator()(int64_t first, int64_t last) const {
    for (int64_t row = first; row < last; ++row) {
      RowStatistics total = Op::none();
      for (int64_t k = 0; k < parts; ++k) total = Op::merge(total, statistics[row * parts + k]);
      totals[row] = total;
    }
  }
};

template <class Tree, class C>
inline constexpr bool is_plain_input = false;
template <class C>
inline constexpr bool is_plain_input<Input<C, 0>, C> = true;

/// Decides how rows are cut. strides: those of the operands, max_rank apart; element_size: of the arithmetic.
SITU_NOINLINE inline RowPlan plan_rows(int rank, int kept, int along, bool strips, int64_t const* sizes, int64_t const* strides, int const* element_sizes, int operands, int64_t rows,
                                       int64_t length, int64_t columns, bool plain, int64_t element_size) {
  RowPlan plan{};
  plan.rank = rank, plan.kept = kept, plan.along = along, plan.strips = strips;
  plan.rows = rows, plan.length = length, plan.columns = columns;
  auto stride = [=](int o, int k) { return strides[o * max_rank + k]; };
  int64_t const held = (strips ? 2 * held_bytes : held_bytes) / element_size;
  plan.parts = plan.cuts = 1;
  plan.cut_axis = kept;
  plan.cut = sizes[kept];
  plan.behind = length / plan.cut;
  int64_t longest = held;
  if (strips) {
    plan.width = held / length / 16 * 16;
    if (plan.width > widest_strip) plan.width = widest_strip;
    if (plan.width < 64) plan.width = columns < widest_strip ? columns : widest_strip, longest = held / ((plan.width + 15) / 16 * 16);
    if (plan.width > columns) plan.width = columns;
    if ((plan.width + 15) / 16 * 16 * length > held && longest == held) longest = held / ((plan.width + 15) / 16 * 16);
    plan.strip_count = (columns + plan.width - 1) / plan.width;
  } else if (rows < 8 && length > 2 * box_elements) {
    longest = length - 1;  // few long rows: parts for all threads
  }
  if (length > longest) {
    int64_t const most = strips ? longest : box_elements;
    while (plan.cut_axis + 1 < kept + along && plan.behind > most) plan.behind /= sizes[++plan.cut_axis];
    int64_t const size = sizes[plan.cut_axis];
    plan.cut = most / plan.behind;
    if (plan.cut < 1) plan.cut = 1;
    if (plan.cut > size) plan.cut = size;
    plan.cuts = (size + plan.cut - 1) / plan.cut;
    plan.parts = length / (size * plan.behind) * plan.cuts;
  }
  if (strips) {
    plan.direct = plain && along == 1 && stride(1, rank - 1) == 1;
    return plan;
  }
  plan.runs = along == 1;
  plan.dense = along == 1;
  bool transposes = false;
  int64_t step = 1;
  for (int k = rank - 1; k >= 0; --k) {
    for (int o = 0; o < operands; ++o) plan.dense = plan.dense && (element_sizes[o] == 0 || stride(o, k) == step);
    step *= sizes[k];
  }
  for (int o = 1; o < operands; ++o) {
    if (element_sizes[o] == 0) continue;
    int64_t const s = stride(o, rank - 1);
    plan.runs = plan.runs && (s == 1 || s == 0);
    transposes = transposes || (kept > 0 && s != 0 && s != 1 && stride(o, kept - 1) == 1);
  }
  plan.direct = plain && plan.runs && stride(1, rank - 1) == 1;
  plan.rows_at_once = (plan.dense ? 4096 : box_elements) / length;
  if (plan.runs && length >= (plan.dense ? 512 : 128)) plan.rows_at_once = 1;
  else if (!plan.dense) plan.runs = false;  // short rows are brought together
  if (plan.parts > 1) plan.runs = along == 1 && !transposes && plan.runs;
  if (transposes && plan.rows_at_once < 16 && length <= held / 16) plan.rows_at_once = 16;
  if (plan.rows_at_once < 1) plan.rows_at_once = 1;
  return plan;
}

}  // namespace detail::cpu

namespace detail {

/// Runs a bound operation on rows on D, which has the CPU's kernels: one launch, or three when rows are cut into parts.
template <class D, class P>
void launch_rows(cpu_kernels, P const& program) {
  using Op = typename P::op_type;
  using Tree = typename P::tree_type;
  using C = typename Op::compute;
  constexpr int operands = P::leaves + 1;
  if (program.rows == 0 || program.length == 0 || program.columns == 0) return;
  cpu::RowKernel<Op, operands, cpu::tree_bytes<Tree>> kernel{{}, program.op, static_cast<typename Op::result*>(program.where.data[0]), {}, {}, {}, cpu::RowStage::whole, nullptr, nullptr};
  cpu::bind_tree<C>(kernel.bound, program.tree);
  kernel.bound.data[0] = nullptr;
  for (int o = 1; o < operands; ++o) kernel.bound.data[o] = program.where.data[o];
  for (int k = 0; k < program.where.rank; ++k) {
    kernel.sizes[k] = program.where.sizes[k];
    for (int o = 0; o < operands; ++o) kernel.strides[o][k] = program.where.strides[o][k];
  }
  kernel.plan = cpu::plan_rows(program.where.rank, program.kept, program.along, program.strips, kernel.sizes, &kernel.strides[0][0], kernel.bound.sizes, operands, program.rows, program.length,
                               program.columns, cpu::is_plain_input<Tree, C>, static_cast<int64_t>(sizeof(C)));
  cpu::RowPlan& plan = kernel.plan;
  int64_t const elements = program.rows * program.length * program.columns, written = elements * static_cast<int64_t>(sizeof(typename Op::result));
  int64_t touched = written;  // what the result replaces may be in the cache, too
  for (int o = 1; o < operands; ++o) touched += elements * kernel.bound.sizes[o];
  plan.stream = cpu::goes_past_caches(written, touched);
  int64_t const grain = cpu::grain_of((cost_of<Tree> + Cost{0, Op::cost}).in_lanes_of(widest<Tree>), 1);
  int64_t const per_strip = plan.strips ? plan.width : 1;
  int64_t const lines = program.rows * (plan.strips ? plan.strip_count : 1);
  if (!plan.in_parts()) return device_traits<D>::launch(kernel, lines, grain / (program.length * per_strip) + 1);
  int64_t const all_rows = program.rows * program.columns;
  Temporary<D> const memory(static_cast<std::size_t>(all_rows * (plan.parts + 1)) * sizeof(RowStatistics));
  kernel.statistics = static_cast<RowStatistics*>(memory.get());
  kernel.totals = kernel.statistics + all_rows * plan.parts;
  int64_t const part_grain = grain / (plan.cut * plan.behind * per_strip) + 1;
  kernel.stage = cpu::RowStage::gather;
  device_traits<D>::launch(kernel, lines * plan.parts, part_grain);
  cpu::MergeRowsKernel<Op> const merge{program.op, kernel.statistics, kernel.totals, plan.parts};
  device_traits<D>::launch(merge, all_rows, 4000 / plan.parts + 1);
  kernel.stage = cpu::RowStage::write;
  device_traits<D>::launch(kernel, lines * plan.parts, part_grain);
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
