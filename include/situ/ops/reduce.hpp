/// Reductions over all axes or chosen ones, fused with the expression that they reduce.
///
///     sum(x)   sum(x, 0)   sum(square(a - b), {0, 1}, keepdim)
///
/// Shape     over all axes: []; over chosen ones: the shape without them, or with extent 1 there under `keepdim`. Negative axes
///           count from the end.
/// Device    runs where x lives; enqueued, not waited for.
/// Throws    ShapeError when x has no such axis, an axis is named twice, or an extremum of nothing is asked for.
/// Special   NaN in, NaN out; argmin and argmax give the place of the first NaN.
/// Cost      reads every input once; one launch, or two when few outputs are reduced from many elements. Results are the same
///           from run to run, and for any number of threads.
#pragma once

#include <situ/ops/cpu/reduce.hpp>
#include <situ/tensor/tensor.hpp>
#if defined(__CUDACC__)
#include <situ/ops/cuda/reduce.hpp>
#endif

namespace situ::inline SITU_ABI {

/// Keeps reduced axes with extent 1: sum(x, 0, keepdim).
struct keepdim_t {
  explicit constexpr keepdim_t(int) {}  // not from {}: sum(x, {}) names no axes
};
inline constexpr keepdim_t keepdim{0};

namespace detail {

#if !defined(__CUDACC__)
inline namespace SITU_ABI_COMPILER {
template <class D, class P>
void launch_reduce(cuda_kernels, P const&) {
  static_assert(compiled_by_nvcc<P>, "situ: reducing_on_Cuda_needs_nvcc: this file is not compiled by nvcc; name it .cu, or move the tensor to the host");
}
}  // namespace SITU_ABI_COMPILER
#endif

/// The axes as a set of bits. Throws ShapeError.
inline unsigned axis_bits(Shape const& axes, Shape const& shape, char const* who) {
  unsigned bits = 0;
  for (int64_t axis : axes) {
    unsigned const bit = 1u << checked_axis(axis, shape.rank(), shape, who);
    if (bits & bit) fail<ShapeError>(who, ": axis ", axis, " appears twice in ", axes);
    bits |= bit;
  }
  return bits;
}

template <class Reducer, class E>
auto reduce(E const& e, unsigned reduced, bool keep) {
  using D = result_device_t<device_of<E>>;
  Shape shape, source = e.shape();
  int64_t count = 1;
  for (int k = 0; k < source.rank(); ++k) {
    bool const gone = reduced >> k & 1u;
    if (gone) count *= source[k];
    if (!gone) shape.push_back(source[k]);
    else if (keep) shape.push_back(1);
  }
  auto result = Tensor<typename Reducer::result, D>::uninitialized(shape, Reducer::name);
  if constexpr (!Reducer::empty_is_defined) {
    if (count == 0 && result.size() > 0) {
      fail<ShapeError>(Reducer::name, ": shape ", source, " has no elements along the reduced axes: the extremum of nothing is not defined");
    }
  }
  ReduceProgram<Reducer, tree_of<E>, leaf_count<E>> program(lower<0>(e));
  bind_reduction(program, result.data(), e, reduced);
  launch_reduce<D>(typename device_traits<D>::kernels{}, program);
  return result;
}

/// x in a floating type: x itself when it has one.
template <class E>
decltype(auto) as_floating(E const& e) {
  if constexpr (floating<value_of<E>>) return (e);
  else return cast<float>(e);
}

inline unsigned all_axes(Shape const& shape) { return (1u << shape.rank()) - 1u; }

}  // namespace detail

#define SITU_REDUCTION(NAME, REDUCER, INPUT)                                                            \
  template <class E>                                                                                    \
    requires expression<E>                                                                              \
  auto NAME(E const& x) {                                                                               \
    return detail::reduce<reducers::REDUCER<value_of<decltype(INPUT)>>>(INPUT, detail::all_axes(x.shape()), false); \
  }                                                                                                     \
  template <class E>                                                                                    \
    requires expression<E>                                                                              \
  auto NAME(E const& x, keepdim_t) {                                                                    \
    return detail::reduce<reducers::REDUCER<value_of<decltype(INPUT)>>>(INPUT, detail::all_axes(x.shape()), true); \
  }                                                                                                     \
  template <class E>                                                                                    \
    requires expression<E>                                                                              \
  auto NAME(E const& x, Shape const& axes) {                                                            \
    return detail::reduce<reducers::REDUCER<value_of<decltype(INPUT)>>>(INPUT, detail::axis_bits(axes, x.shape(), #NAME), false); \
  }                                                                                                     \
  template <class E>                                                                                    \
    requires expression<E>                                                                              \
  auto NAME(E const& x, Shape const& axes, keepdim_t) {                                                 \
    return detail::reduce<reducers::REDUCER<value_of<decltype(INPUT)>>>(INPUT, detail::axis_bits(axes, x.shape(), #NAME), true); \
  }

/// Σ x. Integers and bools give int64; 16-bit floats are summed in float. The sum of nothing is 0.
SITU_REDUCTION(sum, sum, x)
/// Σ x / n. Integers give float. The mean of nothing is NaN.
SITU_REDUCTION(mean, mean, x)
/// The smallest element.
SITU_REDUCTION(min, min, x)
/// The largest element.
SITU_REDUCTION(max, max, x)
/// The index of the first smallest element along the reduced axes, in row-major order; int64.
SITU_REDUCTION(argmin, argmin, x)
/// The index of the first largest element along the reduced axes, in row-major order; int64.
SITU_REDUCTION(argmax, argmax, x)
/// The Euclidean norm, sqrt(Σ x²). Integers give float.
SITU_REDUCTION(norm, root_of_sum, square(detail::as_floating(x)))
#undef SITU_REDUCTION

}  // namespace situ::inline SITU_ABI
