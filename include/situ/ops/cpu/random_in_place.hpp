/// Expressions whose elements are changed at random while they are in the cache: one pass over memory.
#pragma once

#include <situ/expr/cpu/launch.hpp>
#include <situ/ops/cpu/philox.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

inline constexpr int64_t random_block = 2048;  ///< elements between their evaluation and their change

/// All operands are contiguous, so an element's number is its place in the output.
template <class F, int Operands, int TreeBytes>
struct RandomInPlace {
  BoundTree<Operands, TreeBytes> bound;
  F op;

  void operator()(int64_t first, int64_t last) const {
    using T = typename F::element;
    for (int64_t i = first; i < last; i += random_block) {
      Run<Operands> run;
      for (int o = 0; o < Operands; ++o) run.data[o] = static_cast<char*>(bound.data[o]) + i * bound.sizes[o];
      run.count = last - i < random_block ? last - i : random_block;
      run.origin = i;
      bound.run_contiguous(run, false);
      dispatch<RandomBody<F>>(&op, static_cast<T*>(run.data[0]), i, run.count);
    }
  }
};

/// The same for operands of any strides. Items are boxes of the index space, contiguous in the output: `part` indices of the axis
/// `cut`, and all of those behind it.
template <class F, int Operands, int TreeBytes>
struct RandomInBoxes {
  BoundTree<Operands, TreeBytes> bound;
  F op;
  int rank, cut;
  int64_t part, inner;  ///< inner: the elements behind an index of the axis `cut`
  int64_t sizes[max_rank];
  int64_t strides[Operands][max_rank];

  void choose_boxes() {
    inner = 1;
    for (cut = rank - 1; cut > 0 && inner * sizes[cut] < random_block; --cut) inner *= sizes[cut];
    part = random_block / inner;
    if (part < 1) part = 1;
    if (part > sizes[cut]) part = sizes[cut];
  }
  int64_t parts() const { return (sizes[cut] + part - 1) / part; }

  void operator()(int64_t first, int64_t last) const {
    using T = typename F::element;
    for (int64_t item = first; item < last; ++item) {
      int64_t const at = item % parts() * part;
      int64_t outer = item / parts(), offsets[Operands], box_sizes[max_rank], box_strides[Operands * max_rank];
      for (int o = 0; o < Operands; ++o) offsets[o] = at * strides[o][cut];
      for (int k = cut - 1; k >= 0; --k) {
        for (int o = 0; o < Operands; ++o) offsets[o] += outer % sizes[k] * strides[o][k];
        outer /= sizes[k];
      }
      void* data[Operands];
      for (int o = 0; o < Operands; ++o) data[o] = static_cast<char*>(bound.data[o]) + offsets[o] * bound.sizes[o];
      for (int k = cut; k < rank; ++k) {
        box_sizes[k - cut] = sizes[k];
        for (int o = 0; o < Operands; ++o) box_strides[o * max_rank + k - cut] = strides[o][k];
      }
      box_sizes[0] = sizes[cut] - at < part ? sizes[cut] - at : part;
      StridedSpace space(rank - cut, Operands, box_sizes, box_strides, data, bound.movers);
      for (int o = 0; o < Operands; ++o) space.element_sizes[o] = bound.sizes[o];
      space.choose_grid();
      run_tiles(space, 0, space.grid.tiles, &run_part, this);
      dispatch<RandomBody<F>>(&op, static_cast<T*>(data[0]), offsets[0], box_sizes[0] * inner);
    }
  }

 private:
  static void run_part(void const* self_, void* const* data, int64_t const* mask, int64_t count, bool) {
    Run<Operands> run;
    for (int o = 0; o < Operands; ++o) run.data[o] = data[o], run.mask[o] = mask[o];
    run.count = count;
    run.origin = 0;
    static_cast<RandomInBoxes const*>(self_)->bound.run(run, false);
  }
};

}  // namespace detail::cpu

namespace detail {

/// Writes e, each element changed by `op`, to fresh memory of D, which has the CPU's kernels. One launch.
template <class D, class F, class E>
void randomize(typename F::element* data, Layout const& layout, E const& e, F const& op) {
  constexpr int operands = leaf_count<E> + 1, bytes = cpu::tree_bytes<tree_of<E>>;
  cpu::RandomInPlace<F, operands, bytes> kernel{{}, op};
  Layout const* layouts[operands];
  cpu::bind_tree<typename F::element>(kernel.bound, lower<0>(e));
  kernel.bound.data[0] = data;
  int64_t const grain = kernel.bound.grain < int64_t{1} << 15 ? kernel.bound.grain : int64_t{1} << 15;
  if (collect_operands(e, layout, true, kernel.bound.data, layouts)) return device_traits<D>::launch(kernel, layout.size(), grain);
  if (layout.size() == 0) return;
  cpu::RandomInBoxes<F, operands, bytes> boxes{kernel.bound, op, 0, 0, 0, 0, {}, {}};
  boxes.rank = bind_strides(layouts, operands, boxes.sizes, &boxes.strides[0][0]);
  boxes.choose_boxes();
  int64_t const size = boxes.part * boxes.inner;
  device_traits<D>::launch(boxes, layout.size() / (boxes.sizes[boxes.cut] * boxes.inner) * boxes.parts(), grain / size + 1);
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
