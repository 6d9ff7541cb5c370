/// Launching a Program on the CPU: contiguous runs at once, everything else through tiles.
#pragma once

#include <situ/expr/cpu/evaluate.hpp>
#include <situ/expr/cpu/tiles.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// Outputs beyond this many bytes are written past the caches when no input is the output.
inline constexpr int64_t streaming_bytes = int64_t{8} << 20;

/// The kernel of an elementwise program, as device_traits<D>::launch takes it.
template <class P>
struct ElementwiseKernel {
  static constexpr int operands = P::leaves + 1;
  static_assert(operands <= max_operands, "situ: an expression reads at most 63 tensors; evaluate a part of it first");
  using Body = ElementwiseBody<typename P::tree_type, typename P::out_type, operands>;
  P program;
  TileGrid grid;
  bool stream;

  StridedSpace space() const {
    StridedSpace space{grid, program.where.rank, operands, program.where.sizes, &program.where.strides[0][0], program.where.data, {}};
    for (int o = 0; o < operands; ++o) space.element_sizes[o] = Body::element_size(o);
    return space;
  }

  /// Contiguous: elements [first, last). Otherwise: tiles [first, last) of the grid.
  void operator()(int64_t first, int64_t last) const {
    if (SITU_UNLIKELY(!program.where.contiguous)) return run_tiles(space(), first, last, &run_strided, this);
    Run<operands> run;
    for (int o = 0; o < operands; ++o) {
      run.data[o] = static_cast<char*>(program.where.data[o]) + first * Body::element_size(o);
      run.mask[o] = -1;
    }
    run.count = last - first;
    run.origin = first;
    start(run);
  }

 private:
  void start(Run<operands> const& run) const {
    bool const aligned = reinterpret_cast<std::uintptr_t>(run.data[0]) % 64 == 0;
    dispatch<Body>(&program.tree, &run, stream && aligned);
  }
  static void run_strided(void const* self, void* const* data, int64_t const* mask, int64_t count) {
    Run<operands> run;
    for (int o = 0; o < operands; ++o) run.data[o] = data[o], run.mask[o] = mask[o];
    run.count = count;
    run.origin = 0;
    static_cast<ElementwiseKernel const*>(self)->start(run);
  }
};

}  // namespace detail::cpu

namespace detail {

/// Runs a bound program on D, which has the CPU's kernels.
template <class D, class P>
void launch_elementwise(cpu_kernels, P const& program) {
  using Kernel = cpu::ElementwiseKernel<P>;
  constexpr int64_t cost = cost_of<typename P::tree_type> + static_cast<int>(sizeof(typename P::out_type));
  constexpr int64_t grain = (int64_t{4000000} / cost + 1023) / 1024 * 1024;  // about 40 microseconds
  int64_t const n = program.where.size();
  if (n == 0) return;
  Kernel kernel{program, {}, false};
  if (n * static_cast<int64_t>(sizeof(typename P::out_type)) >= cpu::streaming_bytes) {
    kernel.stream = true;
    for (int o = 1; o < Kernel::operands; ++o) kernel.stream = kernel.stream && program.where.data[o] != program.where.data[0];
  }
  if (SITU_LIKELY(program.where.contiguous)) return device_traits<D>::launch(kernel, n, grain);
  cpu::StridedSpace space = kernel.space();
  space.choose_grid();
  kernel.grid = space.grid;
  device_traits<D>::launch(kernel, kernel.grid.count(), grain / (kernel.grid.tile_rows * kernel.grid.tile_columns) + 1);
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
