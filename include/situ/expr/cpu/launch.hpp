/// Launching a tree on the CPU: contiguous operands at once, everything else through tiles.
#pragma once

#include <situ/expr/cpu/evaluate.hpp>
#include <situ/expr/cpu/tiles.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// Outputs beyond this many bytes are written past the caches when no input is the output.
inline constexpr int64_t streaming_bytes = int64_t{8} << 20;

/// What both kernels of a tree share. A kernel is trivially copyable: a device may run it later.
template <class Tree, class Out, int Operands>
struct ElementwiseBase {
  using Body = ElementwiseBody<Tree, Out, Operands>;
  Tree tree;
  void* data[Operands];
  bool stream;

  void start(Run<Operands>& run) const {
    bool const aligned = reinterpret_cast<std::uintptr_t>(run.data[0]) % 64 == 0;
    dispatch<Body>(&tree, const_cast<Run<Operands> const*>(&run), stream && aligned);
  }
};

/// All operands contiguous: elements [first, last).
template <class Tree, class Out, int Operands>
struct ContiguousKernel : ElementwiseBase<Tree, Out, Operands> {
  static_assert(Operands <= max_operands, "situ: an expression reads at most 63 tensors; evaluate a part of it first");
  using typename ElementwiseBase<Tree, Out, Operands>::Body;
  void operator()(int64_t first, int64_t last) const {
    Run<Operands> run;
    for (int o = 0; o < Operands; ++o) {
      run.data[o] = static_cast<char*>(this->data[o]) + first * Body::element_size(o);
      run.mask[o] = -1;
    }
    run.count = last - first;
    run.origin = first;
    this->start(run);
  }
};

/// Any strides: tiles [first, last) of the grid.
template <class Tree, class Out, int Operands>
struct StridedKernel : ElementwiseBase<Tree, Out, Operands> {
  using typename ElementwiseBase<Tree, Out, Operands>::Body;
  TileGrid grid;
  int rank;
  int64_t sizes[max_rank];
  int64_t strides[Operands][max_rank];

  StridedSpace space() const {
    StridedSpace space{grid, rank, Operands, sizes, &strides[0][0], this->data, {}};
    for (int o = 0; o < Operands; ++o) space.element_sizes[o] = Body::element_size(o);
    return space;
  }
  void operator()(int64_t first, int64_t last) const { run_tiles(space(), first, last, &run_strided, this); }

 private:
  static void run_strided(void const* self, void* const* data, int64_t const* mask, int64_t count) {
    Run<Operands> run;
    for (int o = 0; o < Operands; ++o) run.data[o] = data[o], run.mask[o] = mask[o];
    run.count = count;
    run.origin = 0;
    static_cast<StridedKernel const*>(self)->start(run);
  }
};

/// How many elements are worth a thread: about 40 microseconds.
template <class Tree, class Out>
inline constexpr int64_t grain_of = (int64_t{4000000} / (cost_of<Tree> + static_cast<int>(sizeof(Out))) + 1023) / 1024 * 1024;

template <class Kernel>
SITU_INLINE void decide_streaming(Kernel& kernel, int64_t bytes, int operands) {
  kernel.stream = false;
  if (SITU_LIKELY(bytes < streaming_bytes)) return;
  kernel.stream = true;
  for (int o = 1; o < operands; ++o) kernel.stream = kernel.stream && kernel.data[o] != kernel.data[0];
}

}  // namespace detail::cpu

namespace detail {

/// Runs a kernel whose operands are contiguous on D, which has the CPU's kernels.
template <class D, class Tree, class Out, int Operands>
SITU_INLINE void launch_contiguous(cpu::ContiguousKernel<Tree, Out, Operands>& kernel, int64_t n) {
  if (SITU_UNLIKELY(n == 0)) return;
  cpu::decide_streaming(kernel, n * static_cast<int64_t>(sizeof(Out)), Operands);
  device_traits<D>::launch(kernel, n, cpu::grain_of<Tree, Out>);
}

/// Runs a tree over operands of any layout: layouts[0] is the output's.
template <class D, class Tree, class Out, int Operands>
SITU_NOINLINE void launch_strided(cpu::ContiguousKernel<Tree, Out, Operands> const& operands, Layout const* const* layouts) {
  cpu::StridedKernel<Tree, Out, Operands> kernel;
  kernel.tree = operands.tree;
  for (int o = 0; o < Operands; ++o) kernel.data[o] = operands.data[o];
  kernel.rank = bind_strides(layouts, Operands, kernel.sizes, &kernel.strides[0][0]);
  int64_t n = 1;
  for (int k = 0; k < kernel.rank; ++k) n *= kernel.sizes[k];
  if (n == 0) return;
  cpu::decide_streaming(kernel, n * static_cast<int64_t>(sizeof(Out)), Operands);
  cpu::StridedSpace space = kernel.space();
  space.choose_grid();
  kernel.grid = space.grid;
  device_traits<D>::launch(kernel, kernel.grid.count(), cpu::grain_of<Tree, Out> / (kernel.grid.tile_rows * kernel.grid.tile_columns) + 1);
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
