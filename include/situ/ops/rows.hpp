/// Operations on rows, for any device: what softmax and the normalisations share.
#pragma once

#include <situ/ops/cpu/rows.hpp>
#include <situ/tensor/tensor.hpp>
#if defined(__CUDACC__)
#include <situ/ops/cuda/rows.hpp>
#endif

namespace situ::inline SITU_ABI {
namespace detail {

#if !defined(__CUDACC__)
inline namespace SITU_ABI_COMPILER {
template <class D, class P>
void launch_rows(cuda_kernels, P const&) {
  static_assert(compiled_by_nvcc<P>, "situ: softmax_and_normalisation_on_Cuda_need_nvcc: this file is not compiled by nvcc; name it .cu, or move the tensor to the host");
}
}  // namespace SITU_ABI_COMPILER
#endif

/// x in a floating type: x itself when it has one.
template <class E>
decltype(auto) real_elements(E const& e) {
  if constexpr (floating<value_of<E>>) return (e);
  else return cast<float>(e);
}

/// A fresh tensor from an operation on the rows of e that run along the axes whose bit is set.
template <template <class> class Op, class E>
auto operate_on_rows(E const& e, unsigned along, Op<value_of<E>> const& op = {}) {
  using D = result_device_t<device_of<E>>;
  auto result = Tensor<value_of<E>, D>::uninitialized(e.shape(), Op<value_of<E>>::name);
  if (result.size() == 0) return result;
  RowProgram<Op<value_of<E>>, tree_of<E>, leaf_count<E>> program(lower<0>(e), op);
  bind_rows(program, result.data(), result.layout(), e, along);
  launch_rows<D>(typename device_traits<D>::kernels{}, program);
  return result;
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
