/// Pooling of images.
///
///     max_pool2d(x, 2)   avg_pool2d(x, {3, 2}, {.stride = 2, .padding = 1})   adaptive_avg_pool2d(x, {7, 7})
///
/// Shape     x [N, C, H, W] or [C, H, W] → [N, C, H', W'] or [C, H', W'], H' = ⌊(H + 2 p - d (k - 1) - 1) / s⌋ + 1, or ⌈…⌉ + 1 with
///           `ceil_mode`, without windows that would start behind the image.
/// Dtype     that of x: floating for means (16-bit floats are summed in float), any but bool for the largest.
/// Device    runs where x lives; enqueued.
/// Throws    ShapeError when ranks or extents do not fit, or padding is more than half of the kernel.
/// Special   NaN in, NaN out. Padding is no candidate for the largest element; it counts as zeros in means unless `count_include_pad` is false.
/// Cost      reads x once for windows that do not overlap; one launch, fused with a formula whose tensors are contiguous.
/// Gradient  of the largest to its place, the first where there are several; of means to all elements alike.
#pragma once

#include <situ/ops/cpu/pool2d.hpp>
#include <situ/tensor/tensor.hpp>
#if defined(__CUDACC__)
#include <situ/ops/cuda/pool2d.hpp>
#endif

namespace situ::inline SITU_ABI {

/// The options of max_pool2d and avg_pool2d. Without a stride windows lie side by side.
struct pool2d_options {
  extent2d stride = 0, padding = 0, dilation = 1;  ///< avg_pool2d has no dilation
  bool ceil_mode = false;
  bool count_include_pad = true;
};

namespace error {
template <class Element>
struct pooling_of_these_elements_is_not_defined__use_cast {};
template <class Given>
struct options_stand_in_braces__as_in_max_pool2d_of_x_and_3_and_braces_dot_stride {};
}  // namespace error

namespace detail {

#if !defined(__CUDACC__)
inline namespace SITU_ABI_COMPILER {
template <class D, class Pooling, class T, class E>
void launch_pooling(cuda_kernels, PoolPlan const&, E const&, T*) {
  static_assert(compiled_by_nvcc<E>, "situ: pooling_on_Cuda_needs_nvcc: this file is not compiled by nvcc; name it .cu, or move the tensor to the host");
}
}  // namespace SITU_ABI_COMPILER
#endif

template <class D, class Pooling, class T, class E>
void launch_pooling(cpu_kernels, PoolPlan const& plan, E const& e, T* result) {
  constexpr int operands = leaf_count<E> + 1;
  cpu::PoolKernel<Pooling, T, operands, cpu::tree_bytes<tree_of<E>>> kernel;
  cpu::bind_tree<compute_t<T>>(kernel.bound, lower<0>(e));
  collect_places(e, kernel.bound.data);
  kernel.plan = plan;
  kernel.result = result;
  kernel.direct = std::is_same_v<tree_of<E>, Input<compute_t<T>, 0>>;
  int64_t const rows = plan.planes * plan.y.axis.windows;
  WindowAxis const& y = plan.y.axis;
  int64_t const work = ((y.kernel < y.extent ? y.kernel : y.extent) + 1) * plan.x.axis.extent;
  device_traits<D>::launch(kernel, rows, (int64_t{1} << 15) / (work < (1 << 15) ? work + 1 : 1 << 15) + 1);
}

inline void check_images(Shape const& shape, char const* who) {
  if (shape.rank() != 4 && shape.rank() != 3) fail<ShapeError>(who, ": shape ", shape, " was given: images are [N, C, H, W] or [C, H, W]");
}

/// Pools an expression. Formulas of contiguous tensors of one shape are read as they are, others become a tensor first.
template <class Pooling, class E>
auto pool(E const& e, PoolPlan plan, char const* who) {
  using T = value_of<E>;
  using D = result_device_t<device_of<E>>;
  Shape shape = e.shape();
  int const at = shape.rank() - 2;
  plan.planes = shape[at - 1] * (at == 2 ? shape[0] : 1);
  shape[at] = plan.y.axis.windows, shape[at + 1] = plan.x.axis.windows;
  auto result = Tensor<T, D>::uninitialized(shape, who);
  if (result.size() == 0) return result;
  bool plain = is_uniform(e);
  for_each_leaf(e, [&](auto const& leaf) { plain = plain && leaf.is_contiguous(); });
  if (plain) {
    launch_pooling<D, Pooling, T>(typename device_traits<D>::kernels{}, plan, e, result.data());
  } else {
    Tensor<T, D> value = Tensor<T, D>::uninitialized(e.shape(), who);
    evaluate<D>(value.data(), value.layout(), true, e);
    launch_pooling<D, Pooling, T>(typename device_traits<D>::kernels{}, plan, value, result.data());
  }
  return result;
}

/// The windows of max_pool2d and avg_pool2d over images of this shape. Throws ShapeError.
inline PoolPlan plan_windows(Shape const& shape, extent2d kernel, pool2d_options const& options, char const* who) {
  check_images(shape, who);
  extent2d const stride(options.stride.height == 0 ? kernel.height : options.stride.height, options.stride.width == 0 ? kernel.width : options.stride.width);
  if (kernel.height > INT32_MAX || kernel.width > INT32_MAX) fail<ShapeError>(who, ": a kernel of ", by(kernel), " was given; neither may be more than 2^31 - 1");
  bool const within_half = options.padding.height <= kernel.height / 2 && options.padding.width <= kernel.width / 2;
  if (kernel.height > 0 && kernel.width > 0 && !within_half) fail<ShapeError>(who, ": a padding of ", by(options.padding), " is more than half of the kernel of ", by(kernel));
  int const at = shape.rank() - 2;
  Windows windows = slide({shape[at], shape[at + 1]}, kernel, stride, options.padding, options.dilation, options.ceil_mode, who);
  for (WindowAxis* const axis : {&windows.y, &windows.x}) {  // the second element of a window lies behind the image from here on
    if (axis->dilation > axis->extent + 2 * axis->padding) axis->dilation = axis->extent + 2 * axis->padding + 1;
  }
  return {{windows.y, false}, {windows.x, false}, options.count_include_pad, 0};
}
/// Those of avg_pool2d.
inline PoolPlan plan_means(Shape const& shape, extent2d kernel, pool2d_options const& options) {
  if (!(options.dilation == extent2d(1))) fail<ShapeError>("avg_pool2d: a dilation of ", by(options.dilation), " was given; it has none");
  return plan_windows(shape, kernel, options, "avg_pool2d");
}
/// Those of adaptive_avg_pool2d.
inline PoolPlan plan_parts(Shape const& shape, extent2d size) {
  check_images(shape, "adaptive_avg_pool2d");
  int const at = shape.rank() - 2;
  if (size.height < 1 || size.width < 1 || shape[at] < 1 || shape[at + 1] < 1) {
    fail<ShapeError>("adaptive_avg_pool2d: images of shape ", shape, " cannot become ", by(size), ": all extents must be 1 or more");
  }
  auto const axis = [](int64_t extent, int64_t windows) {
    int64_t const longest = (extent - 1) / windows + 1;
    if (longest * windows == extent) return PoolAxis{{extent, windows, longest, longest, 0, 1}, false};
    return PoolAxis{{extent, windows, longest, 1, 0, 1}, true};
  };
  return {axis(shape[at], size.height), axis(shape[at + 1], size.width), false, 0};
}

template <class E>
concept has_largest = expression<E> && !std::is_same_v<value_of<E>, bool>;
template <class E>
concept has_mean = expression<E> && floating<value_of<E>>;

}  // namespace detail

/// The largest element of every window; see the top of this file.
template <class E>
  requires detail::has_largest<E>
auto max_pool2d(E const& x, extent2d kernel, pool2d_options const& options = {}) {
  return detail::pool<detail::max_pooling>(x, detail::plan_windows(x.shape(), kernel, options, "max_pool2d"), "max_pool2d");
}

/// The mean of every window.
template <class E>
  requires detail::has_mean<E>
auto avg_pool2d(E const& x, extent2d kernel, pool2d_options const& options = {}) {
  return detail::pool<detail::mean_pooling>(x, detail::plan_means(x.shape(), kernel, options), "avg_pool2d");
}

/// The means of windows that cut the image into `size` parts: window i covers [⌊i H / H'⌋, ⌈(i + 1) H / H'⌉).
template <class E>
  requires detail::has_mean<E>
auto adaptive_avg_pool2d(E const& x, extent2d size) {
  return detail::pool<detail::mean_pooling>(x, detail::plan_parts(x.shape(), size), "adaptive_avg_pool2d");
}

#define SITU_POOLING_REJECTION(NAME, CONCEPT)                                                                              \
  template <class E, class Error = error::pooling_of_these_elements_is_not_defined__use_cast<value_of<E>>>                 \
    requires(expression<E> && !detail::CONCEPT<E>)                                                                         \
  void NAME(E const&, auto const&...) = delete;
// What PyTorch's users would write: the stride, and what follows it, by place.
template <any_formula X, std::integral Ix, class... Options, class Error = error::options_stand_in_braces__as_in_max_pool2d_of_x_and_3_and_braces_dot_stride<Ix>>
void max_pool2d(X const&, extent2d, Ix, Options...) = delete;
template <any_formula X, std::integral Ix, class... Options, class Error = error::options_stand_in_braces__as_in_max_pool2d_of_x_and_3_and_braces_dot_stride<Ix>>
void avg_pool2d(X const&, extent2d, Ix, Options...) = delete;
SITU_POOLING_REJECTION(max_pool2d, has_largest)
SITU_POOLING_REJECTION(avg_pool2d, has_mean)
SITU_POOLING_REJECTION(adaptive_avg_pool2d, has_mean)
#undef SITU_POOLING_REJECTION

}  // namespace situ::inline SITU_ABI
