/// softmax and log_softmax along one axis, fused with the expression that they take.
#pragma once

#include <situ/ops/rows.hpp>

namespace situ::inline SITU_ABI {

/// Exponentials that sum to 1 along an axis.
///
///     y_k = exp(x_k - m) / sum_j exp(x_j - m),   m = max_j x_j
///
/// Shape     that of x; `axis` counts from the end when it is negative.
/// Dtype     floats as they are, 16-bit ones computed in float; integers and bools give float.
/// Device    runs where x lives; enqueued, not waited for.
/// Throws    AxisError when x has no such axis; one element without axes is taken for a slice, whose axis is 0 or -1: it gives 1.
/// Special   a slice of -inf alone, or with NaN or +inf in it, gives NaN, as in PyTorch. What is below 2^-126 of the sum is 0, also in float where it is subnormal.
/// Accuracy  up to 4096 exponentials of floats are summed in float, in lanes, and further ones in double: some 20 ULP for slices of 4096 equal elements, fewer
///           for shorter ones.
/// Cost      one launch; every input is read once and every element written once where a slice fits the chip (some 65000 floats on a
///           CPU; on a GPU 8192, and 131072 where blocks can form clusters), else the input is read twice: in three launches on a CPU, in one
///           on a GPU, or two for few slices, which many blocks share then. The same results for any number of threads.
/// Gradient  dx = y (dy - sum_j dy_j y_j).
template <class E>
  requires expression<E>
auto softmax(E const& x, int64_t axis) {
  return detail::operate_on_rows<detail::rows::softmax>(detail::real_elements(x), detail::axis_bit(axis, x.shape(), "softmax"));
}

/// log(softmax(x)), without overflow and without the logarithm of 0.
///
///     y_k = x_k - m - log(sum_j exp(x_j - m)),   m = max_j x_j
///
/// Gradient  dx = dy - exp(y) sum_j dy_j. All else as softmax.
template <class E>
  requires expression<E>
auto log_softmax(E const& x, int64_t axis) {
  return detail::operate_on_rows<detail::rows::log_softmax>(detail::real_elements(x), detail::axis_bit(axis, x.shape(), "log_softmax"));
}

SITU_NO_AXIS_LEFT_OUT(softmax)
SITU_NO_AXIS_LEFT_OUT(log_softmax)

}  // namespace situ::inline SITU_ABI
