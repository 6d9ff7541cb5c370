/// Running sums and products along an axis: cumsum, cumprod.
#pragma once

#include <situ/ops/cpu/scan.hpp>
#include <situ/tensor/tensor.hpp>
#if defined(__CUDACC__)
#include <situ/ops/cuda/scan.hpp>
#endif

namespace situ::inline SITU_ABI {
namespace detail {

#if !defined(__CUDACC__)
inline namespace SITU_ABI_COMPILER {
template <class D, class P>
void launch_scan(cuda_kernels, P const&) {
  static_assert(compiled_by_nvcc<P>, "situ: scanning_on_Cuda_needs_nvcc: this file is not compiled by nvcc; name it .cu, or move the tensor to the host");
}
}  // namespace SITU_ABI_COMPILER
#endif

template <class Scanner, class E>
auto scan(E const& e, int64_t axis) {
  using D = result_device_t<device_of<E>>;
  using Out = typename Scanner::result;
  int const along = line_axis(axis, e.shape(), Scanner::name);
  auto result = Tensor<Out, D>::uninitialized(e.shape(), Scanner::name);
  if (result.size() == 0) return result;
  ScanProgram<Scanner, tree_of<E>, leaf_count<E>> program(lower<0>(e));
  bind_scan(program, result.data(), result.layout(), e, along);
  launch_scan<D>(typename device_traits<D>::kernels{}, program);
  return result;
}

}  // namespace detail

/// Running sums along an axis: y_k = Σ x_i, i ≤ k.
///
/// Shape     that of x; a negative axis counts from the end. One number is its own sum, along axis 0.
/// Dtype     floating types stay as they are; integers and bools give int64, which wraps.
/// Device    runs where x lives; enqueued, not waited for.
/// Throws    AxisError when x has no such axis.
/// Special   floats are added in double, but for up to 16 neighbours, which are added in float: a result is off by its rounding and by what all groups of
///           neighbours up to it are off, each by up to a few units in the last place of the sum of its magnitudes: of n numbers around zero that grows
///           as the square root of n, as the running sum itself. A NaN is in every later result. Neighbours whose sum leaves the
///           range of their type make a result infinite or NaN, also where what stands in front of them would bring it back.
/// Cost      reads x once and writes y once, on the CPU with one thread and on any device where an axis is short or the others are many;
///           else x is read twice, on the CPU in part only, and the second time from a cache. The results are the same from run to run, and for any number of threads.
/// Gradient  the running sum of the gradient, from the end.
template <class E>
  requires expression<E>
auto cumsum(E const& x, int64_t axis) {
  return detail::scan<scanners::cumsum<value_of<E>>>(x, axis);
}

/// Running products along an axis: y_k = Π x_i, i ≤ k. As cumsum; floats are multiplied in double, and rounded once. Neighbours are multiplied first, and
/// 65 536 of them in a long line: where the product of such a group leaves the range of double, results are infinite, 0 or (behind a 0) NaN, though the
/// running product itself may stay in it.
template <class E>
  requires expression<E>
auto cumprod(E const& x, int64_t axis) {
  return detail::scan<scanners::cumprod<value_of<E>>>(x, axis);
}

SITU_NO_AXIS_LEFT_OUT(cumsum)
SITU_NO_AXIS_LEFT_OUT(cumprod)

}  // namespace situ::inline SITU_ABI
