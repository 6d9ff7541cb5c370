/// Launching a Program on a GPU. Each expression has two kernels, shared by all devices: one for contiguous operands, one for others.
#pragma once

#include <situ/expr/cuda/contiguous.hpp>
#include <situ/expr/cuda/strided.hpp>

#if defined(__CUDACC__)

namespace situ::inline SITU_ABI {
namespace detail::cuda {

/// With its two kernels.
struct FormulaKernels : KernelTree {
  void const* contiguous;
  void const* strided;
  int rounds;  ///< how many times a thread of the contiguous one handles `lanes` elements
};

/// Launches a formula of so many tensors, where the operands are contiguous and elsewhere.
template <int Operands>
SITU_NOINLINE void launch_contiguous(int device, FormulaKernels const& kernels, Geometry<Operands> const& where) {
  FormulaBytes<ContiguousOperands<Operands>> arguments(kernels);
  auto& to = arguments.operands;
  __builtin_memcpy(to.data, where.data, sizeof to.data);
  int const threads = bind_contiguous(to, device, to.data, kernels.element_sizes, Operands, 0, where.sizes[0], kernels.lanes, kernels.rounds);
  launch_kernel(device, kernels.formula, kernels.contiguous, contiguous_blocks(to, threads, kernels.lanes, kernels.rounds), threads, &arguments);
}
template <int Operands>
SITU_NOINLINE void launch_strided(int device, FormulaKernels const& kernels, Geometry<Operands> const& where) {
  StridedSpace space(where, kernels.element_sizes);
  struct Context {
    int device;
    FormulaKernels const& kernels;
  } context{device, kernels};
  space.for_each_part(
      [](void* self, StridedSpace const& part) {
        auto const& c = *static_cast<Context const*>(self);
        FormulaBytes<StridedOperands<Operands>> arguments(c.kernels);
        launch_part<Operands>(c.device, c.kernels.formula, c.kernels.strided, arguments, part, c.kernels, 1);
      },
      &context);
}

}  // namespace detail::cuda

namespace detail {
inline namespace SITU_ABI_COMPILER {

/// Runs a formula, bound to where its operands lie, on D, which has CUDA's kernels: enqueued on the device's current stream.
template <class D, class P>
void launch_elementwise(cuda_kernels, typename P::tree_type const& tree, Geometry<P::leaves + 1> const& where) {
  static_assert(P::leaves < 64, "situ: an expression reads at most 63 tensors; evaluate a part of it first");
  if (where.size() == 0) return;
  constexpr int device = device_traits<D>::ordinal;
  cuda::FormulaKernels const kernels{{&formula_of<typename P::tree_type>, &tree, sizeof tree, cuda::element_sizes<P>.of, cuda::lanes_of<P>, cuda::counts_elements<typename P::tree_type>},
                                     reinterpret_cast<void const*>(&cuda::contiguous_kernel<P>),
                                     reinterpret_cast<void const*>(&cuda::strided_kernel<P>),
                                     cuda::rounds_of<P>};
  if (where.contiguous) cuda::launch_contiguous(device, kernels, where);
  else cuda::launch_strided(device, kernels, where);
}

}  // namespace SITU_ABI_COMPILER
}  // namespace detail
}  // namespace situ::inline SITU_ABI

#endif
