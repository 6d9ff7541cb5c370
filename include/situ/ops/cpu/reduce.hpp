/// Reductions on the CPU: one pass over the inputs, in packs.
///
/// A reduction is cut into *units* by its shape alone, so results do not depend on the number of threads. Where the last reduced
/// axis is the fastest in memory, a unit reduces rows to one number each; where the last kept axis is, it adds rows into a
/// strip of accumulators. Floats are added in float for at most a few hundred times in a row, then in double.
#pragma once

#include <situ/core/storage.hpp>
#include <situ/ops/cpu/reduce_centred.hpp>
#include <situ/ops/cpu/reduce_lanes.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// Whether a reducer remembers where it found its element.
template <class R>
inline constexpr bool finds_index = std::is_same_v<typename R::accumulator, reducers::indexed<typename R::element>>;

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
  using Total = typename R::total;
  using I = signed_of_size<A>;
  static constexpr int64_t strip_columns = 4096;               ///< accumulators that a unit keeps side by side
  static constexpr int64_t block_rows = 16 * Body::together;   ///< rows added in float before they are added in double

  P program;
  ReducePlan plan;
  Total* parts;  ///< those of one part for all outputs, then of the next one; null when every output is one unit

  explicit ReduceKernel(P const& bound) : program(bound) {}
  ReduceSpace space() const { return reduce_space(program); }
  void cut(int64_t grain) { plan = space().plan(grain, strip_columns, 2 * block_rows); }

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
  }

  void run_rows(ReduceSpace const& space, ReduceFeed& feed, unsigned char* scratch, int64_t unit) const {
    int64_t const output = unit / plan.units_per_output, part = unit % plan.units_per_output;
    ReduceSpace::Rows const rows = space.rows_of(plan, part);
    int const axis = rows.axis;
    char* base[max_operands];
    for (int o = 1; o < operands; ++o) base[o] = static_cast<char*>(space.data[o]);
    if (rows.end > rows.first) space.advance(base, 0, space.kept, output);
    Total total = empty();
    for (int64_t row = rows.first; row < rows.end; ++row) {
      char* place[max_operands];
      for (int o = 1; o < operands; ++o) place[o] = base[o];
      if (axis >= 0) space.advance(place, space.kept, axis, row);
      for (int64_t i = rows.begin; i < rows.stop;) {
        char* from[max_operands];
        for (int o = 1; o < operands; ++o) from[o] = place[o] + (axis >= 0 ? i * space.stride(o, axis) : 0) * space.element_sizes[o];
        int64_t const wanted = rows.stop - i < row_run ? rows.stop - i : row_run;
        int64_t const count = feed.bring(space, from, axis, wanted, scratch);
        Run<operands> run;
        start(run, feed, count);
        if constexpr (indexed) {
          reducers::indexed<A> found;
          dispatch<typename Body::Row>(&program.tree, const_cast<Run<operands> const*>(&run), &found);
          found.index += row * rows.length + i;
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
    char* base[max_operands];
    auto const [axis, part, output, columns, first, end] = space.strip_of(plan, unit, base);
    int64_t const padded = (columns + 63) / 64 * 64;
    auto* const totals = reinterpret_cast<Total*>(memory);
    auto* const values = reinterpret_cast<A*>(memory + (strip_columns + 64) * sizeof(Total));
    auto* const wheres = reinterpret_cast<I*>(memory + (strip_columns + 64) * (sizeof(Total) + sizeof(A)));
    for (int64_t c = 0; c < padded; ++c) totals[c] = empty();
    for (int64_t c = 0; !indexed && c < padded; ++c) values[c] = first_value();
    for (int64_t block = first; block < end; block += block_rows) {
      int64_t const block_end = block + block_rows < end ? block + block_rows : end;
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
            dispatch<typename Body::Strip>(&program.tree, const_cast<Run<operands> const*>(&run), values + i, wheres + i, static_cast<I>(row - block),
                                                  static_cast<int64_t const*>(row_bytes), rows);
          } else {
            dispatch<typename Body::Strip>(&program.tree, const_cast<Run<operands> const*>(&run), values + i, static_cast<int64_t const*>(row_bytes), rows);
          }
          i += count;
        }
        row += rows;
      }
      if constexpr (indexed) {
        for (int64_t c = 0; c < columns; ++c) totals[c] = merged(totals[c], widened(reducers::indexed<A>{values[c], wheres[c] + block}));
      } else {
        dispatch<SetAsideBody<R, A, Total>>(values, totals, padded);
      }
    }
    for (int64_t c = 0; c < columns; ++c) deliver(output + c, part, totals[c]);
  }

  /// How many rows from `row` on a strip's kernel takes at once, and how far apart they lie: several where they follow each
  /// other along one axis and every operand is read where it lies.
  static int rows_together(ReduceSpace const& space, int64_t row, int64_t end, int64_t* row_bytes) {
    constexpr int together = Body::together;
    if (together == 1 || row + together > end || space.kept >= space.rank) return 1;
    int const last = space.rank - 1;
    if (row % space.sizes[last] + together > space.sizes[last]) return 1;
    for (int o = 1; o < operands; ++o) {
      int64_t const step = space.stride(o, space.kept - 1);
      row_bytes[o] = space.stride(o, last) * space.element_sizes[o];
      if (step != 1 && !(step == 0 && row_bytes[o] == 0 && operands > 2)) return 1;
    }
    return together;
  }

  void deliver(int64_t output, int64_t part, Total const& total) const {
    if (parts) parts[part * program.outputs + output] = total;
    else static_cast<typename R::result*>(program.where.data[0])[output] = finished<R>(total, program.count, program.parameter);
  }
};

/// Merges the parts of outputs [first, last), as a balanced tree.
template <class K>
struct MergeKernel {
  typename K::Total* parts;
  typename K::R::result* out;
  int64_t outputs, units_per_output, count;
  double parameter;

  void operator()(int64_t first, int64_t last) const {
    for (int64_t n = units_per_output; n > 1; n = (n + 1) / 2) {
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
    for (int64_t o = first; o < last; ++o) out[o] = finished<typename K::R>(parts[o], count, parameter);
  }
};

/// The kernel that a reducer asks for.
template <class P>
struct reduce_kernel_of {
  using type = ReduceKernel<P>;
};
template <class P>
  requires reducers::centred<typename P::reducer>
struct reduce_kernel_of<P> {
  using type = CentredKernel<P>;
};
template <class P>
using reduce_kernel_t = typename reduce_kernel_of<P>::type;

}  // namespace detail::cpu

namespace detail {

/// Runs a bound reduction on D, which has the CPU's kernels: one launch, or two when outputs are cut into parts.
template <class D, class P>
void launch_reduce(cpu_kernels, P const& program) {
  using Kernel = cpu::reduce_kernel_t<P>;
  if (program.outputs == 0) return;
  constexpr int64_t cost = cost_of<typename P::tree_type> + 2;
  constexpr int64_t grain = (int64_t{4000000} / cost + cpu::row_run - 1) / cpu::row_run * cpu::row_run;  // about 40 microseconds
  Kernel kernel(program);
  kernel.cut(grain);
  int64_t const units = kernel.plan.units();
  bool const in_parts = kernel.plan.units_per_output > 1;
  Temporary<D> const parts(in_parts ? static_cast<std::size_t>(program.outputs * kernel.plan.units_per_output) * sizeof(typename Kernel::Total) : 0);
  kernel.parts = static_cast<typename Kernel::Total*>(parts.get());
  int64_t const elements_per_unit = program.outputs * program.count / units + 1;
  device_traits<D>::launch(kernel, units, grain / elements_per_unit + 1);
  if (!kernel.parts) return;
  cpu::MergeKernel<Kernel> const merge{kernel.parts, static_cast<typename P::out_type*>(program.where.data[0]), program.outputs,
                                       kernel.plan.units_per_output, program.count, program.parameter};
  device_traits<D>::launch(merge, program.outputs, grain / kernel.plan.units_per_output + 1);
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
