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

}  // namespace detail::cpu

namespace detail {

/// Writes e, each element changed by `op`, to fresh memory of D, which has the CPU's kernels. One launch; two where a tensor of e is
/// strided or broadcast.
template <class D, class F, class E>
void randomize(typename F::element* data, Layout const& layout, E const& e, F const& op) {
  using T = typename F::element;
  constexpr int operands = leaf_count<E> + 1;
  cpu::RandomInPlace<F, operands, cpu::tree_bytes<tree_of<E>>> kernel{{}, op};
  cpu::bind_tree<T>(kernel.bound, lower<0>(e));
  kernel.bound.data[0] = data;
  bool const contiguous = collect_places(e, kernel.bound.data) && is_uniform(e) && same_shape(e.shape(), layout.shape);
  if (!contiguous) {
    evaluate<D>(data, layout, true, e);
    return randomize<D>(data, layout, Tensor<T, D>::from_handle(make_view({}, data, layout)), op);
  }
  int64_t const grain = kernel.bound.grain < int64_t{1} << 15 ? kernel.bound.grain : int64_t{1} << 15;
  device_traits<D>::launch(kernel, layout.size(), grain);
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
