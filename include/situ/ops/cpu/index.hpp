/// Gathering and scattering on the CPU.
///
/// Rows are copied whole. Scattered elements arrive at every place of the target in an order that does not depend on the number
/// of threads: work is cut by lines that do not meet, or each thread goes through all indices and takes those of its own part,
/// or chunks of a fixed length are added to targets of their own.
#pragma once

#include <situ/core/storage.hpp>
#include <situ/expr/cpu/launch.hpp>
#include <situ/ops/index_program.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

inline constexpr int64_t index_grain = 16384;  ///< elements that are worth a thread of their own

/// A place in an index space, and where its operands are.
template <int Operands>
struct IndexPlace {
  IndexSpace<Operands> const& space;
  int64_t at[max_rank];
  int64_t offset[Operands] = {};

  IndexPlace(IndexSpace<Operands> const& all, int64_t place) : space(all) {
    for (int k = space.rank - 1; k >= 0; --k) {
      at[k] = place % space.sizes[k];
      place /= space.sizes[k];
      move(k, at[k]);
    }
  }
  /// To the first place of the next row.
  SITU_INLINE void next_row() {
    int const inner = space.rank - 1;
    if (at[inner] != 0) move(inner, -at[inner]), at[inner] = 0;
    for (int k = inner - 1; k >= 0; --k) {
      if (++at[k] < space.sizes[k]) return move(k, 1);
      move(k, 1 - at[k]);
      at[k] = 0;
    }
  }

 private:
  SITU_INLINE void move(int axis, int64_t steps) {
    for (int o = 0; o < Operands; ++o) offset[o] += steps * space.strides[o][axis];
  }
};

template <class Word, class Ix>
struct GatherKernel : GatherProgram<Word, Ix> {
  using Base = GatherProgram<Word, Ix>;

  void operator()(int64_t first, int64_t last) const {
    auto const& all = this->space;
    int const inner = all.rank - 1;
    IndexPlace<3> place(all, first);
    int64_t steps[few];
    bool const same = last - first >= 4 * all.sizes[inner] && is_same_in_every_row(steps);
    for (int64_t p = first; p < last;) {
      int64_t const left = all.sizes[inner] - place.at[inner], count = left < last - p ? left : last - p;
      Word* const to = this->out + p;
      Word const* const values = this->from + place.offset[Base::source];
      if (same && count == all.sizes[inner]) {
        SITU_UNROLL
        for (int64_t k = 0; k < count; ++k) to[k] = values[steps[k]];
      } else {
        row(to, values, place.offset[Base::indices], count);
      }
      p += count;
      place.next_row();
    }
  }

 private:
  static constexpr int64_t few = 2048;
  /// Whether rows of not too many elements have the same indices, all of them good: then also how far from the beginning of a row its elements come from.
  bool is_same_in_every_row(int64_t* steps) const {
    auto const& all = this->space;
    int const inner = all.rank - 1;
    if (all.sizes[inner] > few) return false;
    for (int k = 0; k < inner; ++k) {
      if (all.strides[Base::indices][k] != 0) return false;
    }
    for (int64_t k = 0; k < all.sizes[inner]; ++k) {
      int64_t i = static_cast<int64_t>(this->index[k * all.strides[Base::indices][inner]]);
      if (!this->bounds.resolve(i)) return false;
      steps[k] = i * this->axis_stride + k * all.strides[Base::source][inner];
    }
    return true;
  }
  void row(Word* to, Word const* values, int64_t position, int64_t count) const {
    int const inner = this->space.rank - 1;
    int64_t const step = this->space.strides[Base::source][inner], index_step = this->space.strides[Base::indices][inner];
    if (step == 0 && this->axis_stride == 1 && index_step == 1) pick(to, values, 0, 1, position, 1, count);
    else pick(to, values, step, this->axis_stride, position, index_step, count);
  }
  SITU_INLINE void pick(Word* to, Word const* values, int64_t step, int64_t stride, int64_t position, int64_t index_step, int64_t count) const {
    Ix const* at = this->index + position;
    int64_t const extent = this->bounds.extent;  // a copy of its own, which no store can change
    for (int64_t k = 0; k < count; ++k, at += index_step, values += step) {
      int64_t i = static_cast<int64_t>(*at);
      if (i < 0) i += extent;
      to[k] = SITU_LIKELY(static_cast<uint64_t>(i) < static_cast<uint64_t>(extent)) ? values[i * stride] : left_out(position + k * index_step);
    }
  }
  SITU_NOINLINE Word left_out(int64_t position) const {
    record_fault(this->bounds, static_cast<int64_t>(this->index[position]), position);
    return Word{};
  }
};

/// Joins `count` elements to others, one by one.
template <class Join, class T>
inline void join_run(T* to, int64_t step, T const* from, int64_t from_step, int64_t count) {
  int64_t k = 0;
  if constexpr (Join::adds && !std::is_same_v<T, bool>) {
    using P = pack<T, 16 / static_cast<int>(sizeof(T)), isa::baseline>;
    for (; step == 1 && from_step == 1 && k + P::lanes <= count; k += P::lanes) (P::load(to + k) + P::load(from + k)).store(to + k);
  }
  for (; k < count; ++k) Join::join(to[k * step], from[k * from_step]);
}

template <class Join, class Ix>
struct ScatterKernel : ScatterProgram<Join, Ix> {
  using Base = ScatterProgram<Join, Ix>;
  using T = typename Join::value_type;
  enum Cut { outermost, innermost, targets } cut;  ///< what the parts of a launch are ranges of

  void operator()(int64_t first, int64_t last) const {
    auto const& places = this->space;
    int const inner = places.rank - 1;
    int64_t begin = 0, end = places.count(), column = 0, columns = places.sizes[inner], low = 0, high = this->bounds.extent;
    if (cut == outermost) {
      int64_t const block = end / places.sizes[0];
      begin = first * block, end = last * block;
      if (places.rank == 1) columns = last - first, end = begin + 1;
    } else if (cut == innermost) {
      column = first, columns = last - first;
    } else {
      low = first, high = last;
    }
    int64_t const step = places.strides[Base::target][inner], from_step = places.strides[Base::source][inner], index_step = places.strides[Base::indices][inner];
    bool const all = low == 0 && high == this->bounds.extent;
    IndexPlace<3> place(places, begin);
    for (int64_t p = begin; p < end; p += places.sizes[inner]) {
      T* const out = this->to + place.offset[Base::target] + column * step;
      T const* const in = this->from + place.offset[Base::source] + column * from_step;
      Ix const* const at = this->index + place.offset[Base::indices] + column * index_step;
      if (all) row<false>(out, step, in, from_step, at, p + column, columns, 0, 0);
      else row<true>(out, step, in, from_step, at, p + column, columns, low, static_cast<uint64_t>(high - low));
      place.next_row();
    }
  }

  /// Places [position, position + count), or those of them whose indices point to [low, low + width).
  template <bool Filtered>
  SITU_INLINE void row(T* out, int64_t step, T const* in, int64_t from_step, Ix const* at, int64_t position, int64_t count, int64_t low, uint64_t width) const {
    int64_t const stride = this->axis_stride, extent = this->bounds.extent;  // copies of their own, which no store can change
    int64_t const index_step = this->space.strides[Base::indices][this->space.rank - 1];
    auto const resolved = [extent](Ix found) {
      int64_t const i = static_cast<int64_t>(found);
      return i < 0 ? i + extent : i;
    };
    if (index_step == 0 && count > 0) {
      int64_t const i = resolved(*at);
      if (SITU_UNLIKELY(static_cast<uint64_t>(i) >= static_cast<uint64_t>(extent))) left_out(*at, position);
      else if (!Filtered || static_cast<uint64_t>(i - low) < width) join_run<Join>(out + i * stride, step, in, from_step, count);
      return;
    }
    if constexpr (Filtered) {
      constexpr int64_t block = 256;
      unsigned char mine[block];
      for (int64_t base = 0; base < count; base += block) {
        int const m = static_cast<int>(count - base < block ? count - base : block);
        int found = 0;
        bool outside = false;
        for (int k = 0; k < m; ++k) {  // a branch for each would be mispredicted every other time
          int64_t const i = resolved(at[(base + k) * index_step]);
          outside |= static_cast<uint64_t>(i) >= static_cast<uint64_t>(extent);
          mine[found] = static_cast<unsigned char>(k);
          found += static_cast<uint64_t>(i - low) < width;
        }
        for (int f = 0; f < found; ++f) {
          int64_t const k = base + mine[f];
          Join::join(out[resolved(at[k * index_step]) * stride + k * step], in[k * from_step]);
        }
        for (int k = 0; SITU_UNLIKELY(outside) && k < m; ++k) {
          if (static_cast<uint64_t>(resolved(at[(base + k) * index_step])) >= static_cast<uint64_t>(extent)) left_out(at[(base + k) * index_step], position + base + k);
        }
      }
    } else {
      for (int64_t k = 0; k < count; ++k, at += index_step, out += step, in += from_step) {
        int64_t const i = resolved(*at);
        if (SITU_UNLIKELY(static_cast<uint64_t>(i) >= static_cast<uint64_t>(extent))) left_out(*at, position + k);
        else Join::join(out[i * stride], *in);
      }
    }
  }
  SITU_NOINLINE void left_out(Ix found, int64_t position) const { record_fault(this->bounds, static_cast<int64_t>(found), position); }
};

inline constexpr int64_t private_chunk = int64_t{1} << 16;  ///< elements that are added to a target of their own

/// One row of many elements for few places: every chunk is added to zeros of its own, and these to the target in order. Neighbours are added to
/// different zeros, so that one sum need not wait for the one before.
template <class Join, class Ix>
struct PrivateScatterKernel : ScatterKernel<Join, Ix> {
  using Base = ScatterKernel<Join, Ix>;
  using T = typename Join::value_type;
  T* targets;

  void operator()(int64_t first, int64_t last) const {
    int64_t const from_step = this->space.strides[Base::source][0], index_step = this->space.strides[Base::indices][0], count = this->space.sizes[0];
    for (int64_t c = first; c < last; ++c) {
      T* const mine = targets + c * ways * this->target_size;
      for (int64_t k = 0; k < ways * this->target_size; ++k) mine[k] = T(0);
      int64_t const begin = c * private_chunk, left = count - begin;
      add(mine, this->from + begin * from_step, from_step, this->index + begin * index_step, index_step, begin, left < private_chunk ? left : private_chunk);
    }
  }
  static constexpr int64_t ways = 2;

 private:
  SITU_INLINE void add(T* mine, T const* in, int64_t from_step, Ix const* at, int64_t index_step, int64_t position, int64_t count) const {
    if (from_step == 1 && index_step == 1 && this->axis_stride == 1) add_stepping(mine, in, 1, at, 1, 1, position, count);
    else add_stepping(mine, in, from_step, at, index_step, this->axis_stride, position, count);
  }
  SITU_INLINE void add_stepping(T* mine, T const* in, int64_t from_step, Ix const* at, int64_t index_step, int64_t stride, int64_t position, int64_t count) const {
    uint64_t const extent = static_cast<uint64_t>(this->bounds.extent);
    T* const other = mine + this->target_size;
    int64_t k = 0;
    for (; k + ways <= count; k += ways) {
      uint64_t const i = static_cast<uint64_t>(at[k * index_step]), j = static_cast<uint64_t>(at[(k + 1) * index_step]);
      if (SITU_UNLIKELY(i >= extent || j >= extent)) {
        this->template row<false>(mine, 0, in + k * from_step, from_step, at + k * index_step, position + k, 1, 0, 0);
        this->template row<false>(other, 0, in + (k + 1) * from_step, from_step, at + (k + 1) * index_step, position + k + 1, 1, 0, 0);
        continue;
      }
      Join::join(mine[static_cast<int64_t>(i) * stride], in[k * from_step]);
      Join::join(other[static_cast<int64_t>(j) * stride], in[(k + 1) * from_step]);
    }
    if (k < count) this->template row<false>(mine, 0, in + k * from_step, from_step, at + k * index_step, position + k, 1, 0, 0);
  }
};
template <class Join>
struct JoinTargetsKernel {
  using T = typename Join::value_type;
  T* to;
  T const* targets;
  int64_t size, chunks;

  void operator()(int64_t first, int64_t last) const {
    for (int64_t c = 0; c < chunks; ++c) join_run<Join>(to + first, 1, targets + c * size + first, 1, last - first);
  }
};

template <class Word, class Ix>
struct OneHotKernel : OneHotProgram<Word, Ix> {
  void operator()(int64_t first, int64_t last) const {
    for (int64_t p = first; p < last; ++p) {
      Word* const row = this->out + p * this->classes;
      int64_t const i = static_cast<int64_t>(this->index[p]);
      if (this->classes > 0) __builtin_memset(row, 0, static_cast<std::size_t>(this->classes) * sizeof(Word));
      if (SITU_LIKELY(static_cast<uint64_t>(i) < static_cast<uint64_t>(this->classes))) row[i] = this->one;
      else record_fault(this->bounds, i, p);
    }
  }
};

/// Rows [first, last) of the selection, where rows are contiguous: `bytes` from each.
template <class Ix>
struct CopyRowsKernel {
  char* out;
  char const* from;
  Ix const* index;
  int64_t selected, bytes, outer_step, axis_step;  ///< in bytes
  IndexBounds bounds;

  void operator()(int64_t first, int64_t last) const {
    switch (bytes) {
      case 4: return rows<4>(first, last);
      case 8: return rows<8>(first, last);
      case 16: return rows<16>(first, last);
      case 32: return rows<32>(first, last);
      case 64: return rows<64>(first, last);
      case 128: return rows<128>(first, last);
      default: return rows<0>(first, last);
    }
  }

 private:
  template <int Bytes>
  void rows(int64_t first, int64_t last) const {
    std::size_t const size = Bytes > 0 ? Bytes : static_cast<std::size_t>(bytes);
    int64_t outer = first / selected, j = first % selected;
    for (int64_t r = first; r < last; ++r) {
      int64_t i = static_cast<int64_t>(index[j]);
      char* const to = out + r * static_cast<int64_t>(size);
      if (j + ahead < selected) {  // a row that comes soon; an address that is wrong does no harm here
        __builtin_prefetch(reinterpret_cast<void const*>(reinterpret_cast<std::uintptr_t>(from + outer * outer_step) +
                                                         static_cast<std::uintptr_t>(index[j + ahead]) * static_cast<std::uintptr_t>(axis_step)));
      }
      if (SITU_LIKELY(bounds.resolve(i))) {
        __builtin_memcpy(to, from + outer * outer_step + i * axis_step, size);
      } else {
        left_out(to, j);
      }
      if (++j == selected) j = 0, ++outer;
    }
  }
  SITU_NOINLINE void left_out(char* to, int64_t j) const {
    record_fault(bounds, static_cast<int64_t>(index[j]), j);
    __builtin_memset(to, 0, static_cast<std::size_t>(bytes));
  }
  static constexpr int64_t ahead = 8;
};

/// Rows [first, last) of a selection from a formula: it is computed for the selected rows, and for no others.
template <int Operands, int TreeBytes, class Ix>
struct SelectRowsKernel {
  BoundTree<Operands, TreeBytes> bound;
  Ix const* index;
  int64_t selected;
  IndexBounds bounds;
  int outer_rank, inner_rank;
  int64_t outer_sizes[max_rank], inner_sizes[max_rank];
  int64_t outer_strides[Operands][max_rank], inner_strides[Operands][max_rank];
  int64_t axis_strides[Operands];
  int64_t inner_count;
  bool dense;  ///< every operand is contiguous along a row
  TileGrid grid;

  StridedSpace space(void* const* data) const {
    StridedSpace space(inner_rank, Operands, inner_sizes, &inner_strides[0][0], data, bound.movers);
    space.grid = grid;
    for (int o = 0; o < Operands; ++o) space.element_sizes[o] = bound.sizes[o];
    return space;
  }

  void operator()(int64_t first, int64_t last) const {
    int64_t outer_now = first / selected, next = first % selected;
    for (int64_t r = first; r < last; ++r) {
      int64_t const j = next;
      int64_t outer = outer_now, i = static_cast<int64_t>(index[j]);
      if (++next == selected) next = 0, ++outer_now;
      bool const good = bounds.resolve(i);
      if (SITU_UNLIKELY(!good)) record_fault(bounds, static_cast<int64_t>(index[j]), j);
      int64_t offsets[Operands];
      for (int o = 0; o < Operands; ++o) offsets[o] = (o == 0 ? j : good ? i : 0) * axis_strides[o];
      for (int k = outer_rank - 1; k >= 0; --k) {
        int64_t const at = outer % outer_sizes[k];
        outer /= outer_sizes[k];
        for (int o = 0; o < Operands; ++o) offsets[o] += at * outer_strides[o][k];
      }
      Run<Operands> run;
      for (int o = 0; o < Operands; ++o) {
        run.data[o] = static_cast<char*>(bound.data[o]) + offsets[o] * bound.sizes[o];
        run.mask[o] = -1;
      }
      if (SITU_UNLIKELY(!good)) {
        __builtin_memset(run.data[0], 0, static_cast<std::size_t>(inner_count * bound.sizes[0]));
      } else if (dense) {
        if (j + 4 < selected) fetch(run.data, static_cast<std::uintptr_t>(index[j + 4]) - static_cast<std::uintptr_t>(i));
        run.count = inner_count;
        run.origin = 0;
        bound.run(run, false);
      } else {
        StridedSpace const row = space(run.data);
        run_tiles(row, 0, grid.tiles, &run_part, this);
      }
    }
  }

 private:
  /// Of a row that comes soon, the beginnings; an address that is wrong does no harm here.
  SITU_INLINE void fetch(void* const* data, std::uintptr_t rows_ahead) const {
    for (int o = 1; o < Operands; ++o) {
      auto const row = reinterpret_cast<std::uintptr_t>(data[o]) + rows_ahead * static_cast<std::uintptr_t>(axis_strides[o] * bound.sizes[o]);
      __builtin_prefetch(reinterpret_cast<void const*>(row));
    }
  }
  static void run_part(void const* self, void* const* data, int64_t const* mask, int64_t count, bool) {
    Run<Operands> run;
    for (int o = 0; o < Operands; ++o) run.data[o] = data[o], run.mask[o] = mask[o];
    run.count = count;
    run.origin = 0;
    static_cast<SelectRowsKernel const*>(self)->bound.run(run, false);
  }
};

}  // namespace detail::cpu

namespace detail {

template <class D, class Word, class Ix>
void launch_gather(cpu_kernels, GatherProgram<Word, Ix> program) {
  if (!program.from) program.from = program.out;  // nothing is read where there is nothing, but places are computed
  device_traits<D>::launch(cpu::GatherKernel<Word, Ix>{program}, program.space.count(), cpu::index_grain);
}

template <class D, class Join, class Ix>
void launch_scatter(cpu_kernels, ScatterProgram<Join, Ix> program) {
  using Kernel = cpu::ScatterKernel<Join, Ix>;
  if (!program.to) program.to = const_cast<typename Join::value_type*>(program.from);  // nothing is written where there is nothing, but places are computed
  auto const& space = program.space;
  int const inner = space.rank - 1;
  int64_t const count = space.count(), outer = space.sizes[0], columns = space.sizes[inner];
  auto const at_least_one = [](int64_t n) { return n > 0 ? n : 1; };
  if constexpr (Join::adds) {
    if (space.rank == 1 && space.strides[Kernel::target][0] == 0 && count >= 4 * cpu::private_chunk && program.target_size <= cpu::private_chunk / 8) {
      using T = typename Join::value_type;
      int64_t const chunks = (count + cpu::private_chunk - 1) / cpu::private_chunk;
      using Adds = cpu::PrivateScatterKernel<Join, Ix>;
      Temporary<D> const targets(static_cast<std::size_t>(Adds::ways * chunks * program.target_size) * sizeof(T));
      Adds const adds{{program, Kernel::outermost}, static_cast<T*>(targets.get())};
      device_traits<D>::launch(adds, chunks, 1);
      device_traits<D>::launch(cpu::JoinTargetsKernel<Join>{program.to, adds.targets, program.target_size, Adds::ways * chunks}, program.target_size, cpu::index_grain);
      return;
    }
  }
  bool const by_rows = space.strides[Kernel::target][0] != 0, in_cache = program.target_size * static_cast<int64_t>(sizeof(typename Join::value_type)) < cpu::streaming_bytes;
  if (count <= 2 * cpu::index_grain || (space.rank == 1 && program.bounds.extent <= 4096)) {  // few places: sharing them out costs more
    device_traits<D>::launch(Kernel{program, Kernel::outermost}, outer, outer);
  } else if (by_rows && outer >= 64) {
    device_traits<D>::launch(Kernel{program, Kernel::outermost}, outer, at_least_one(cpu::index_grain / (count / outer)));
  } else if (space.strides[Kernel::target][inner] != 0 && columns >= 256) {
    int64_t const grain = cpu::index_grain / (count / columns);
    device_traits<D>::launch(Kernel{program, Kernel::innermost}, columns, grain > 64 ? grain : 64);
  } else if (space.strides[Kernel::indices][inner] != 0 && in_cache) {  // for ranges of targets each thread would look at every index, most of the work here
    device_traits<D>::launch(Kernel{program, Kernel::outermost}, outer, by_rows ? 0 : outer);
  } else {
    device_traits<D>::launch(Kernel{program, Kernel::targets}, program.bounds.extent, at_least_one(program.bounds.extent / 64));
  }
}

template <class D, class Word, class Ix>
void launch_one_hot(cpu_kernels, OneHotProgram<Word, Ix> const& program) {
  device_traits<D>::launch(cpu::OneHotKernel<Word, Ix>{program}, program.count, cpu::index_grain / (program.classes + 1) + 1);
}

/// Elements of e along `axis` to a contiguous result. Gives false where e must be a tensor first: rows of few elements.
template <class D, class T, class E, class Ix>
bool launch_index_select(cpu_kernels, T* out, E const& e, int axis, Ix const* index, int64_t selected, IndexBounds const& bounds) {
  constexpr int operands = leaf_count<E> + 1;
  constexpr bool is_tensor = leaf_count<E> == 1 && std::is_same_v<tree_of<E>, Input<value_of<E>, 0>>;
  Shape const& shape = e.shape();
  cpu::SelectRowsKernel<operands, cpu::tree_bytes<tree_of<E>>, Ix> kernel;
  kernel.outer_rank = axis;
  kernel.inner_rank = shape.rank() - axis - 1;
  int64_t outer = 1;
  kernel.inner_count = 1;
  for (int k = 0; k < axis; ++k) outer *= kernel.outer_sizes[k] = shape[k];
  for (int k = 0; k < kernel.inner_rank; ++k) kernel.inner_count *= kernel.inner_sizes[k] = shape[axis + 1 + k];
  if (outer == 0 || kernel.inner_count == 0 || selected == 0) return true;
  if (!is_tensor && kernel.inner_count < 8) return false;

  Shape selection = shape;
  selection[axis] = selected;
  Layout const result{selection};
  kernel.bound.data[0] = out;
  int o = 0;
  auto const bind = [&](int64_t const* strides) {
    for (int k = 0; k < axis; ++k) kernel.outer_strides[o][k] = strides[k];
    for (int k = axis + 1; k < shape.rank(); ++k) kernel.inner_strides[o][k - axis - 1] = strides[k];
    kernel.axis_strides[o++] = strides[axis];
  };
  bind(result.strides.data());
  for_each_leaf(e, [&](auto const& leaf) {
    kernel.bound.data[o] = const_cast<void*>(static_cast<void const*>(leaf.data()));
    int64_t strides[max_rank];
    broadcast_strides(leaf.layout(), shape, strides);
    bind(strides);
  });
  kernel.inner_rank = coalesce(kernel.inner_sizes, &kernel.inner_strides[0][0], operands, kernel.inner_rank);
  kernel.dense = kernel.inner_rank <= 1;
  for (o = 0; o < operands && kernel.inner_rank == 1; ++o) kernel.dense = kernel.dense && kernel.inner_strides[o][0] == 1;
  int64_t const rows = outer * selected;

  if constexpr (is_tensor) {
    constexpr auto size = static_cast<int64_t>(sizeof(T));
    kernel.outer_rank = coalesce(kernel.outer_sizes, &kernel.outer_strides[0][0], operands, kernel.outer_rank);
    if (kernel.dense && kernel.inner_count > 1 && kernel.outer_rank <= 1) {
      cpu::CopyRowsKernel<Ix> const copies{reinterpret_cast<char*>(out), static_cast<char const*>(kernel.bound.data[1]), index, selected,
                                          kernel.inner_count * size, (kernel.outer_rank == 1 ? kernel.outer_strides[1][0] : 0) * size,
                                          kernel.axis_strides[1] * size, bounds};
      device_traits<D>::launch(copies, rows, 8 * cpu::index_grain / (copies.bytes + 8) + 1);
      return true;
    }
    if (kernel.inner_count < 16) {
      using Word = moved_as<T>;
      Shape steps[3] = {result.strides, e.strides(), Shape::filled(shape.rank(), 0)};
      int64_t const axis_stride = steps[1][axis];
      steps[1][axis] = 0, steps[2][axis] = 1;
      launch_gather<D>(cpu_kernels{}, GatherProgram<Word, Ix>{reinterpret_cast<Word*>(out), static_cast<Word const*>(kernel.bound.data[1]), index, axis_stride, bounds,
                                                             IndexSpace<3>(selection, steps)});
      return true;
    }
  }
  cpu::bind_tree<T>(kernel.bound, lower<0>(e));
  kernel.index = index;
  kernel.selected = selected;
  kernel.bounds = bounds;
  kernel.grid = {};
  if (!kernel.dense) {
    cpu::StridedSpace space = kernel.space(kernel.bound.data);
    space.choose_grid();
    kernel.grid = space.grid;
  }
  device_traits<D>::launch(kernel, rows, kernel.bound.grain / kernel.inner_count + 1);
  return true;
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
