/// Scans on the CPU: each element is read once, in packs, and written once.
///
/// Lines that are dense in memory are scanned one by one, or a few together; where they lie side by side, and where they are short, a strip of
/// them at once. Several threads take the parts of long lines in turns: the total of a part, which lets the next part begin, then the part itself,
/// from a cache, while the thread's next part is asked for: memory reads that while it writes this one (three quarters of the time with two threads). A
/// thread that finds all before its part added up scans it at once, while the others add up what comes next.
#pragma once

#include <sched.h>

#include <situ/core/storage.hpp>
#include <situ/expr/cpu/tiles.hpp>
#include <situ/ops/cpu/reduce_plan.hpp>
#include <situ/ops/cpu/scan_lanes.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// How a scan is cut: groups of lines, or strips of them, and parts of their length.
struct ScanPlan {
  bool by_strips, stream;
  int64_t groups, group_lines;  ///< by strips: strips side by side are groups, of group_lines columns
  int64_t strips, columns;      ///< by strips: how many to a row of columns
  int64_t parts, part_length;
};

/// The kernel of a scan: groups of lines [first, last), or parts of groups.
template <class P>
struct ScanKernel {
  using S = typename P::scanner;
  using Tree = typename P::tree_type;
  using A = typename S::element;
  using Out = typename S::result;
  static constexpr int operands = P::leaves + 1;
  using Body = ScanBody<S, Tree, operands>;
  using Elementwise = ElementwiseBody<Tree, Out, operands>;
  static constexpr int64_t strip_columns = 1024, rows_together = 8, most_lines = 16;
  static constexpr int64_t many_lines = 4096;  ///< enough to be shared out 64 at a time; no more make a strip
  static constexpr int64_t short_line = sizeof(typename S::lane) == 4 ? 32 : 6;  ///< by itself it would take as long as one of several packs
  static constexpr int64_t short_strided_line = 128;
  static constexpr int64_t part_elements = int64_t{1} << 16;  ///< what is read twice stays in a cache
  static constexpr int64_t panel_pitch = tile_columns + 64 / static_cast<int64_t>(sizeof(float));  ///< of elements; not a power of two

  P program;
  ScanPlan plan{};
  A* bases = nullptr;      ///< where threads share lines: those of the first part, then of the next one
  int64_t next_part = 0;     ///< how many elements on a thread's next part begins, if all threads take turns
  int64_t* taken = nullptr;  ///< how many parts are taken; then for each part whether the base of the next one is there

  explicit ScanKernel(P const& p) : program(p) {}
  int kept() const { return program.where.rank - 1; }
  int64_t stride(int o, int axis) const { return program.where.strides[o][axis]; }

  ReduceSpace space() const {
    ReduceSpace space(program.where, kept(), operands, program.lines, program.length, input_movers<Tree, operands>.of);
    for (int o = 0; o < operands; ++o) space.element_sizes[o] = Elementwise::element_size(o);
    return space;
  }

  /// Cuts the work by shapes and strides alone.
  void cut() {
    int const along = kept();
    bool dense = true;  // along the scanned axis
    for (int o = 0; o < operands; ++o) dense = dense && (stride(o, along) == 1 || (o > 0 && stride(o, along) == 0));
    bool const across = along > 0 && stride(0, along - 1) == 1 && stride(0, along) != 1;
    plan.by_strips = along > 0 && program.where.sizes[along - 1] >= (across ? 8 : 64) && (across || program.length <= (dense ? short_line : short_strided_line));
    plan.stream = program.lines * program.length * static_cast<int64_t>(sizeof(Out)) >= (int64_t{8} << 20) && (across || program.length >= 1024);
    if (plan.by_strips) {
      plan.columns = program.where.sizes[along - 1];
      plan.group_lines = program.lines < many_lines ? strip_columns : 64;
      plan.strips = (plan.columns + plan.group_lines - 1) / plan.group_lines;
      plan.groups = program.lines / plan.columns * plan.strips;
    } else {
      plan.group_lines = dense ? 1 : most_lines;
      plan.groups = (program.lines + plan.group_lines - 1) / plan.group_lines;
    }
    int64_t const wide = plan.by_strips && plan.columns < plan.group_lines ? plan.columns : plan.group_lines;
    plan.part_length = program.length;
    if (plan.groups < 64 && (plan.stream || !plan.by_strips)) {  // few groups: parts, which columns in the caches do not need
      int64_t const rows = ((part_elements + wide - 1) / wide + 63) / 64 * 64;
      if (rows < program.length) plan.part_length = rows;
    }
    plan.parts = (program.length + plan.part_length - 1) / plan.part_length;
  }

  int64_t elements(int64_t) const { return taken ? 0 : program.lines * program.length; }
  void operator()(int64_t first, int64_t last) const {
    ReduceSpace const space = this->space();
    int64_t gathered = 64;
    for (int o = 1; o < operands; ++o) gathered += is_boxed(o) ? most_lines * panel_pitch * space.element_sizes[o] : tile_columns * space.element_sizes[o] + 64;
    std::size_t const chains = static_cast<std::size_t>(plan.by_strips ? padded(most_columns()) : most_lines) * sizeof(A);
    std::size_t const held = static_cast<std::size_t>(most_lines * tile_columns) * sizeof(Out);
    Scratch const block(static_cast<int64_t>(2 * chains + held) + gathered);
    unsigned char* const memory = block.get();
    Work work{space, {}, reinterpret_cast<A*>(memory), reinterpret_cast<A*>(memory + chains), reinterpret_cast<Out*>(memory + 2 * chains), memory + 2 * chains + held, true};
    if (!taken) {
      if (plan.group_lines == 1 && plan.parts == 1) {
        run_dense_lines(work, first, last);
      } else if (plan.by_strips && plan.parts == 1) {
        run_strips(work, lines_of(first).first, lines_of(last - 1));
      } else {
        for (int64_t group = first; group < last; ++group) run_group(work, lines_of(group));
      }
    } else {
      int64_t const units = plan.groups * plan.parts;
      try {
        for (int64_t unit; (unit = __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED)) < units;) run_part(work, unit);
      } catch (...) {  // a user's function: nobody waits for what does not come
        for (int64_t unit = 1; unit <= units; ++unit) __atomic_store_n(taken + unit, 1, __ATOMIC_RELEASE);
        throw;
      }
    }
    if (plan.stream) finish_streaming();
  }

 private:
  /// Whether a kernel cannot read an operand where it lies: lines, or rows of a strip, are copied beside each other, a box of them at a time.
  bool is_boxed(int o) const {
    int const along = kept();
    int64_t const s = stride(o, plan.by_strips ? along - 1 : along);
    if (s == 1 || Elementwise::element_size(o) == 0) return false;
    return s != 0 || operands == 2 || (plan.by_strips && stride(o, along) != 0);
  }
  bool is_boxed() const {
    bool any = is_output_boxed();
    for (int o = 1; o < operands; ++o) any = any || is_boxed(o);
    return any;
  }

  /// Whether the rows of a strip are written to a box first.
  bool is_output_boxed() const { return plan.by_strips && stride(0, kept() - 1) != 1; }

  /// The columns of a strip.
  int64_t most_columns() const {
    int64_t const most = plan.parts == 1 && !is_boxed() ? many_lines : strip_columns;
    return plan.columns < most ? plan.columns : most;
  }
  /// The chains of a group: of strips, whole packs.
  int64_t padded(int64_t lines) const { return plan.by_strips ? (lines + 63) / 64 * 64 : lines; }

  struct Work {
    ReduceSpace const& space;
    ReduceFeed feed;
    A* bases;
    A* chains;
    Out* held;
    unsigned char* scratch;
    bool writes;
    int64_t next = 0;  ///< next_part while the part at hand is read from a cache
  };

  /// What the pack code is told: 1 to write, 2 to do so past the caches. Besides, 4: of lines, to ask for what comes next; of strips, that there
  /// is but one base. Of lines, from 8 on: to ask for what comes so many eighths elements on instead.
  int flags(Work const& work, void const* to) const {
    if (!work.writes) return 0;
    return plan.stream && reinterpret_cast<std::uintptr_t>(to) % 64 == 0 ? 3 : 1;
  }
  void start(Work const& work, Run<operands>& run, void* to, int64_t count) const {
    for (int o = 1; o < operands; ++o) run.data[o] = work.feed.data[o], run.mask[o] = work.feed.mask[o];
    run.data[0] = to;
    run.mask[0] = -1;
    run.count = count;
    run.origin = 0;
  }

  /// Whole lines, each dense: several at a time.
  void run_dense_lines(Work& work, int64_t first, int64_t last) const {
    int const along = kept();
    int64_t const width = along > 0 ? program.where.sizes[along - 1] : 1;
    bool in_step = true;
    for (int o = 1; o < operands; ++o) in_step = in_step && (stride(o, along) == 1 || (operands > 2 && along > 0 && stride(o, along - 1) == 0));
    for (int64_t line = first; line < last;) {
      int64_t rows = width - line % width;
      if (rows > last - line) rows = last - line;
      if (!in_step || (plan.stream && program.length * static_cast<int64_t>(sizeof(Out)) % 64 != 0)) rows = 1;
      char* place[max_operands];
      for (int o = 0; o < operands; ++o) place[o] = static_cast<char*>(program.where.data[o]);
      work.space.advance(place, 0, along, line);
      place[0] += output_offset(line, 0);
      A chain = S::identity();
      for (int64_t i = 0; i < program.length;) {
        char* from[max_operands];
        for (int o = 1; o < operands; ++o) from[o] = place[o] + i * stride(o, along) * work.space.element_sizes[o];
        int64_t const count = work.feed.bring(work.space, from, along, program.length - i, work.scratch);
        Run<operands> run;
        char* const to = place[0] + i * static_cast<int64_t>(sizeof(Out));
        start(work, run, to, count);
        int64_t bytes[operands];
        for (int o = 0; o < operands; ++o) bytes[o] = along > 0 ? stride(o, along - 1) * work.space.element_sizes[o] : 0;
        int64_t const together = count == program.length ? rows : 1;
        dispatch<typename Body::Line>(&program.tree, const_cast<Run<operands> const*>(&run), together, static_cast<int64_t const*>(bytes), S::identity(), &chain, flags(work, to) | (plan.stream ? 4 : 0));
        rows = together;
        i += count;
      }
      line += rows;
    }
  }

  /// Bytes from the output's first element to that of a line, `index` along it.
  int64_t output_offset(int64_t line, int64_t index) const {
    int64_t offset = index * stride(0, kept());
    for (int k = kept() - 1; k >= 0; --k) {
      offset += line % program.where.sizes[k] * stride(0, k);
      line /= program.where.sizes[k];
    }
    return offset * static_cast<int64_t>(sizeof(Out));
  }

  /// The lines of a group.
  struct Lines {
    int64_t first, count;
  };
  Lines lines_of(int64_t group) const {
    int64_t const column = plan.by_strips ? group % plan.strips * plan.group_lines : 0, all = plan.by_strips ? plan.columns : program.lines;
    int64_t const first = plan.by_strips ? group / plan.strips * plan.columns + column : group * plan.group_lines, left = all - (plan.by_strips ? column : first);
    return {first, left < plan.group_lines ? left : plan.group_lines};
  }

  /// A part of a group of lines, behind work.bases; leaves its totals in work.chains.
  void scan_part(Work& work, Lines const& lines, int64_t part) const {
    int64_t const first = part * plan.part_length;
    int64_t const stop = first + plan.part_length < program.length ? first + plan.part_length : program.length;
    for (int64_t k = 0; k < padded(lines.count); ++k) work.chains[k] = S::identity();
    if (plan.by_strips) run_strip(work, lines.first, lines.count, first, stop);
    else run_lines(work, lines.first, lines.count, first, stop);
  }
  void start_bases(Work& work, Lines const& lines) const {
    for (int64_t k = 0; k < padded(lines.count); ++k) work.bases[k] = S::identity();
  }

  /// All parts of a group of lines, one after the other.
  void run_group(Work& work, Lines const& lines) const {
    start_bases(work, lines);
    for (int64_t part = 0; part < plan.parts; ++part) {
      scan_part(work, lines, part);
      for (int64_t k = 0; k < lines.count; ++k) work.bases[k] = S::combine(work.bases[k], work.chains[k]);
    }
  }

  /// Strips of any width, each in one part: those of neighbouring groups are joined.
  void run_strips(Work& work, int64_t line, Lines const& last) const {
    for (int64_t const stop = last.first + last.count; line < stop;) {
      int64_t count = plan.columns - line % plan.columns;
      if (count > stop - line) count = stop - line;
      if (count > most_columns()) count = most_columns();
      run_group(work, {line, count});
      line += count;
    }
  }

  /// One part of a group. Those before it are taken, by threads that run: their bases will come.
  void run_part(Work& work, int64_t unit) const {
    int64_t const part = unit % plan.parts;
    Lines const lines = lines_of(unit / plan.parts);
    A* const mine = bases + part * program.lines + lines.first;
    A* const next = mine + program.lines;
    bool const last = part + 1 == plan.parts;
    auto const is_known = [&](int tries) {  // whether what stands in front is known; a negative number waits until it is
      for (; part > 0 && __atomic_load_n(taken + unit, __ATOMIC_ACQUIRE) == 0; tries -= tries > -1000) {
        if (tries == 0) return false;
#if SITU_X86
        __builtin_ia32_pause();
#endif
        if (tries <= -1000) ::sched_yield();
      }
      return true;
    };
    auto const tell_next = [&] {
      for (int64_t k = 0; !last && k < lines.count; ++k) next[k] = S::combine(work.bases[k], work.chains[k]);
      if (!last) __atomic_store_n(taken + unit + 1, 1, __ATOMIC_RELEASE);
    };
    bool const at_once = is_known(8) || last;
    if (!at_once) {
      work.writes = false;
      scan_part(work, lines, part);
      work.writes = true;
    }
    is_known(-1);
    start_bases(work, lines);
    for (int64_t k = 0; part > 0 && k < lines.count; ++k) work.bases[k] = mine[k];
    if (!at_once) {
      tell_next();
      work.next = next_part;
    }
    scan_part(work, lines, part);
    work.next = 0;
    if (at_once) tell_next();
  }

  /// Fills the boxes: `rows` rows of `count` elements, `down` and `step` being the axes along which these lie, from `places` on.
  void fill_boxes(Work& work, char* const* places, int down, int step, int64_t rows, int64_t count) const {
    unsigned char* panel = work.scratch;
    for (int o = 1; o < operands; ++o) {
      if (!is_boxed(o)) continue;
      int const size = work.space.element_sizes[o];
      work.space.movers[o]->move({panel, panel_pitch, 1, places[o], down < 0 ? 0 : stride(o, down), stride(o, step), rows, count});
      panel += most_lines * panel_pitch * size;
    }
  }
  /// Binds the operands of a run of `count` elements along `step`: row `row` of the boxes, and others where they lie.
  void bind(Work& work, Run<operands>& run, char* const* places, int step, int64_t row, int64_t count) const {
    unsigned char* panel = work.scratch;
    for (int o = 1; o < operands; ++o) {
      int const size = work.space.element_sizes[o];
      run.data[o] = places[o];
      run.mask[o] = -1;
      if (is_boxed(o)) {
        run.data[o] = panel + row * panel_pitch * size;
        panel += most_lines * panel_pitch * size;
      } else if (stride(o, step) == 0 && size > 0) {
        work.space.movers[o]->gather(work.feed.splats[o], places[o], 0, 64 / size);
        run.data[o] = work.feed.splats[o], run.mask[o] = 0;
      }
    }
    run.mask[0] = -1;
    run.count = count;
    run.origin = 0;
  }

  void run_lines(Work& work, int64_t line, int64_t lines, int64_t first, int64_t stop) const {
    int const along = kept();
    int64_t const out_stride = stride(0, along);
    bool const boxes = is_boxed();
    int64_t const tile = plan.group_lines == 1 && !boxes ? row_run : tile_columns;
    int64_t const width = along > 0 ? program.where.sizes[along - 1] : 1;
    // Lines that lie side by side in the output are held, and written together, a few places of all of them at a time.
    bool const side_by_side = along > 0 && stride(0, along - 1) == 1 && line % width + lines <= width;
    MoverFunctions const& movers = *mover_of<Out>;
    for (int64_t begin = first; begin < stop; begin += tile) {
      int64_t const count = begin + tile < stop ? tile : stop - begin;
      char* place[max_operands];
      int64_t boxed = 0, behind = 0;  // lines in the boxes
      for (int64_t k = 0; k < lines; ++k) {
        for (int o = 1; o < operands; ++o) place[o] = static_cast<char*>(program.where.data[o]) + begin * stride(o, along) * work.space.element_sizes[o];
        work.space.advance(place, 0, along, line + k);
        if (k == behind) {
          boxed = k;
          behind = k + width - (line + k) % width;
          if (behind > lines) behind = lines;
          fill_boxes(work, place, along - 1, along, behind - boxed, count);
        }
        char* const to = static_cast<char*>(program.where.data[0]) + output_offset(line + k, begin);
        Out* const out = out_stride == 1 ? reinterpret_cast<Out*>(to) : work.held + k * tile_columns;
        Run<operands> run;
        bind(work, run, place, along, k - boxed, count);
        run.data[0] = out;
        int64_t const bytes[operands] = {};
        int const told = (out_stride == 1 ? flags(work, out) : flags(work, out) & 1) | (plan.stream && !boxes ? 4 | static_cast<int>(8 * work.next) : 0);
        dispatch<typename Body::Line>(&program.tree, const_cast<Run<operands> const*>(&run), int64_t{1}, static_cast<int64_t const*>(bytes), work.bases[k], &work.chains[k], told);
        if (out_stride != 1 && !side_by_side && work.writes) movers.move({to, 0, out_stride, out, 0, 1, 1, count});
      }
      if (out_stride == 1 || !side_by_side || !work.writes) continue;
      char* const to = static_cast<char*>(program.where.data[0]) + output_offset(line, begin);
      constexpr int64_t places = 16;
      for (int64_t i = 0; i < count; i += places) {
        int64_t const rows = count - i < places ? count - i : places;
        movers.move({to + i * out_stride * static_cast<int64_t>(sizeof(Out)), out_stride, 1, work.held + i, 1, tile_columns, rows, lines});
      }
    }
  }

  void run_strip(Work& work, int64_t line, int64_t lines, int64_t first, int64_t stop) const {
    int const along = kept(), across = along - 1;
    bool const boxed = is_boxed();
    int64_t const narrow = 16384 / lines < 32 ? 16384 / lines : 32;  // rows of a narrow strip lie close
    int64_t const most_rows = boxed ? most_lines : narrow > rows_together && lines == plan.columns ? narrow : rows_together, most_count = boxed ? tile_columns : lines;
    int64_t bytes[operands];
    for (int o = 0; o < operands; ++o) bytes[o] = (o > 0 && is_boxed(o) ? panel_pitch : stride(o, along)) * work.space.element_sizes[o];
    bool const out_boxed = is_output_boxed();
    if (out_boxed) bytes[0] = tile_columns * static_cast<int64_t>(sizeof(Out));
    for (int64_t row = first; row < stop;) {
      int64_t const rows = stop - row < most_rows ? stop - row : most_rows;
      char* place[max_operands];
      for (int o = 0; o < operands; ++o) place[o] = static_cast<char*>(program.where.data[o]) + (o > 0 ? row * stride(o, along) * work.space.element_sizes[o] : 0);
      work.space.advance(place, 0, along, line);
      place[0] = static_cast<char*>(program.where.data[0]) + output_offset(line, row);
      for (int64_t i = 0; i < lines;) {
        int64_t const count = lines - i < most_count ? lines - i : most_count;
        Run<operands> run;
        if (boxed) fill_boxes(work, place, along, across, rows, count);
        bind(work, run, place, across, 0, count);
        run.data[0] = out_boxed ? static_cast<void*>(work.held) : place[0];
        int const told = (bytes[0] % 64 == 0 && !out_boxed ? flags(work, place[0]) : flags(work, place[0]) & 1) | (plan.parts == 1 ? 4 : 0);
        dispatch<typename Body::Strip>(&program.tree, const_cast<Run<operands> const*>(&run), static_cast<int>(rows), static_cast<int64_t const*>(bytes),
                                       static_cast<A const*>(work.bases + (plan.parts == 1 ? 0 : i)), work.chains + i, told);
        if (out_boxed && work.writes) mover_of<Out>->move({place[0], stride(0, along), stride(0, across), work.held, tile_columns, 1, rows, count});
        for (int o = 0; o < operands; ++o) place[o] += count * stride(o, across) * work.space.element_sizes[o];
        i += count;
      }
      row += rows;
    }
  }
};

}  // namespace detail::cpu

namespace detail {
inline namespace SITU_ABI_THREADS {

/// Runs a bound scan on D, which has the CPU's kernels: in one launch, also where several threads share long lines.
template <class D, class P>
void launch_scan(cpu_kernels, P const& program) {
  using A = typename P::scanner::element;
  int64_t const grain = cpu::grain_of(time_of<typename P::tree_type> + Cost{static_cast<int>(sizeof(typename P::out_type)), 4}, cpu::row_run);
  cpu::ScanKernel<P> kernel(program);
  kernel.cut();
  auto const& plan = kernel.plan;
  int64_t const units = plan.groups * plan.parts, unit = program.lines * program.length / units + 1;
  bool const shared = host_device<D> && plan.parts > 1 && plan.groups < num_threads() && plan.stream;  // in the caches, waiting costs more than it gains
  if (!shared) return device_traits<D>::launch(kernel, plan.groups, grain / (unit * plan.parts) + 1);
  Temporary<D> const bases(static_cast<std::size_t>(program.lines * plan.parts) * sizeof(A)), taken(static_cast<std::size_t>(units + 1) * sizeof(int64_t));
  kernel.bases = static_cast<A*>(bases.get());
  kernel.taken = static_cast<int64_t*>(taken.get());
  kernel.next_part = (num_threads() < 64 ? num_threads() : 64) * plan.part_length;
  for (int64_t k = 0; k <= units; ++k) kernel.taken[k] = 0;
  device_traits<D>::launch(kernel, units, grain / unit + 1);
}

}  // namespace SITU_ABI_THREADS
}  // namespace detail
}  // namespace situ::inline SITU_ABI
