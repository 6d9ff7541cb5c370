/// Evaluation: an expression is bound to memory and launched on its device, as one kernel.
#pragma once

#include <situ/device/cpu/device.hpp>
#include <situ/device/cuda/device.hpp>
#include <situ/expr/cpu/launch.hpp>
#include <situ/expr/lower.hpp>
#if defined(__CUDACC__)
#include <situ/expr/cuda/launch.hpp>
#endif

namespace situ::inline SITU_ABI {
namespace detail {

#if !defined(__CUDACC__)
/// Asked where a kernel of Cuda would be launched. Without SITU_WITH_CUDA the device itself says what is missing.
#if defined(SITU_WITH_CUDA)
template <class>
inline constexpr bool compiled_by_nvcc = false;
#else
template <class>
inline constexpr bool compiled_by_nvcc = true;
#endif

inline namespace SITU_ABI_COMPILER {
template <class D, class P>
void launch_elementwise(cuda_kernels, P const&) {
  static_assert(compiled_by_nvcc<P>,
                "situ: evaluating_on_Cuda_needs_nvcc: this file is not compiled by nvcc; name it .cu, or keep to making, moving and "
                "printing Cuda tensors here");
}
}  // namespace SITU_ABI_COMPILER
#endif

/// Writes the values of e, broadcast to the layout's shape, to memory of D. One launch; none for an empty shape.
/// `same`: that nothing is broadcast, and e has this very shape.
template <class D, class T, class E>
void evaluate(T* data, Layout const& layout, bool is_contiguous, E const& e, bool same) {
  constexpr int operands = leaf_count<E> + 1;
  Layout const* layouts[operands];
  if constexpr (std::is_same_v<typename device_traits<D>::kernels, cpu_kernels>) {
    cpu::BoundTree<operands, cpu::tree_bytes<tree_of<E>>> bound;
    cpu::bind_tree<T>(bound, lower<0>(e));
    bound.data[0] = data;
    bool const contiguous = collect_places(e, bound.data) && is_contiguous && same;
    if (SITU_LIKELY(contiguous)) return cpu::launch_contiguous<D>(bound, layout.size());
    collect_layouts(e, layout, layouts);
    cpu::launch_strided<D>(bound, layouts);
  } else {
    Program<tree_of<E>, T, leaf_count<E>> program(lower<0>(e));
    auto& where = program.where;
    where.data[0] = data;
    where.contiguous = collect_places(e, where.data) && is_contiguous && same;
    where.rank = 1;
    where.sizes[0] = layout.size();
    if (!where.contiguous) {
      collect_layouts(e, layout, layouts);
      where.rank = bind_strides(layouts, operands, where.sizes, &where.strides[0][0]);
      where.contiguous = where.rank == 1;
      for (int o = 0; o < operands; ++o) where.contiguous = where.contiguous && where.strides[o][0] == 1;
    }
    launch_elementwise<D>(typename device_traits<D>::kernels{}, program);
  }
}
template <class D, class T, class E>
SITU_INLINE void evaluate(T* data, Layout const& layout, bool is_contiguous, E const& e) {
  Shape const* const own = shape_of(e);
  evaluate<D>(data, layout, is_contiguous, e, is_uniform(e) && (!own || same_shape(*own, layout.shape)));
}

/// Fills `count` consecutive elements of D from a tree without inputs.
template <class D, class T, class Tree>
void evaluate_tree(T* data, int64_t count, Tree const& tree) {
  if constexpr (std::is_same_v<typename device_traits<D>::kernels, cpu_kernels>) {
    cpu::BoundTree<1, cpu::tree_bytes<Tree>> bound;
    cpu::bind_tree<T>(bound, tree);
    bound.data[0] = data;
    cpu::launch_contiguous<D>(bound, count);
  } else {
    Program<Tree, T, 0> program(tree);
    program.where.data[0] = data;
    program.where.contiguous = true;
    program.where.rank = 1;
    program.where.sizes[0] = count;
    launch_elementwise<D>(typename device_traits<D>::kernels{}, program);
  }
}

/// The value of an expression as a tensor of its own type and device.
template <class E>
auto evaluated(E&& e) {
  using Plain = std::remove_cvref_t<E>;
  using Result = Tensor<typename Plain::value_type, result_device_t<typename Plain::device_type>>;
  if constexpr (std::is_same_v<Plain, Tensor<typename Plain::value_type, typename Plain::device_type>>) return Plain(static_cast<E&&>(e));
  else return Result(static_cast<E&&>(e));
}

/// Whether memory that is written shares bytes with memory that is read, in another order than index by index.
inline bool overlap_differently(void const* written, std::size_t written_size, Layout const& to, void const* read, std::size_t read_size,
                                Layout const& from) {
  auto const a = to.extent(), b = from.extent();
  if (a.last < a.first || b.last < b.first) return false;
  auto const at = [](void const* p, int64_t offset, std::size_t size) {
    return static_cast<char const*>(p) + offset * static_cast<int64_t>(size);
  };
  char const* const a0 = at(written, a.first, written_size);
  char const* const a1 = at(written, a.last + 1, written_size);
  char const* const b0 = at(read, b.first, read_size);
  char const* const b1 = at(read, b.last + 1, read_size);
  if (a1 <= b0 || b1 <= a0) return false;
  if (written != read || written_size != read_size || !(to.shape == from.shape)) return true;
  for (int k = 0; k < to.rank(); ++k) {
    if (to.shape[k] > 1 && to.strides[k] != from.strides[k]) return true;
  }
  return false;
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
