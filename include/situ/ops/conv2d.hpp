/// Convolution of images.
///
///     y[n, o, i, j] = bias[o] + Σ_{c, u, v} w[o, c, u, v] x[n, c, i s - p + u d, j s - p + v d]      (x is 0 outside of the image)
///
/// Shape     x [N, C, H, W] or [C, H, W], w [O, C / groups, kh, kw] → [N, O, H', W'] or [O, H', W'],
///           H' = ⌊(H + 2 p - d (kh - 1) - 1) / s⌋ + 1. Output channel o reads the input channels of its group.
/// Dtype     floating; operands promote. 16-bit floats are summed in float and rounded once.
/// Device    runs where x lives; enqueued.
/// Throws    ShapeError when ranks, channels, groups or the bias do not fit, or the kernel is larger than the padded image.
/// Special   padding counts as zeros: beside it an infinite weight may give NaN.
/// Cost      2 N O H' W' (C / groups) kh kw operations. On the CPU the matrix of pixels is never stored: some rows at a time are copied with their padding, or it is
///           gathered while it is packed for the product. x may have any strides; weights that are not contiguous are copied. On CUDA through a matrix of pixels and
///           cuBLAS, or with SITU_WITH_CUDNN by cuDNN, which is opened at the first call: by the first of its algorithms that gives the same
///           result in every run, in float for float; x without gaps is read where it lies.
/// Gradient  that of the sum: ∂L/∂w correlates x with ∂L/∂y, ∂L/∂x is the transposed convolution of ∂L/∂y, ∂L/∂bias = Σ ∂L/∂y.
#pragma once

#include <situ/ops/conv2d_plan.hpp>
#include <situ/ops/cpu/conv2d.hpp>
#include <situ/ops/matmul.hpp>

namespace situ::inline SITU_ABI {

/// The options of conv2d: conv2d(x, w, {.bias = b, .stride = 2, .padding = {1, 0}}).
template <element T, device D>
struct conv2d_options {
  Tensor<T, D> bias = {};  ///< [O]; empty for none
  extent2d stride = 1, padding = 0, dilation = 1;
  int64_t groups = 1;
};

namespace error {
template <class Image, class Weights>
struct conv2d_needs_floating_elements__use_cast {};
template <class Given>
struct options_stand_in_braces__as_in_conv2d_of_x_and_w_and_braces_dot_bias {};
}  // namespace error

namespace detail {

template <class X, class W>
using convolved_t = promote_t<value_of<X>, value_of<W>>;
template <class X, class W>
using convolution_device_t = result_device_t<typename common_device<device_of<X>, device_of<W>>::type>;

/// Runs a planned convolution on D, which has the CPU's kernels. Weights and bias are contiguous.
template <class D, class T>
void launch_convolution(cpu_kernels, ConvolutionPlan const& plan, Tensor<T, D> const& x, T const* weights, T const* bias, T* result, int64_t groups) {
  Layout const& layout = x.layout();
  int const at = layout.rank() - 3;
  cpu::Convolution<T> c{};
  c.pixels = {plan.windows, x.data(), x.data() + layout.extent().last + 1, layout.strides[at], layout.strides[at + 1], layout.strides[at + 2]};
  c.step_image = at == 1 ? layout.strides[0] : 0;
  c.groups = groups, c.channels = plan.channels, c.outputs = plan.outputs;
  c.weights = weights, c.bias = bias, c.result = result;
  cpu::run_convolution<D>(c, plan.images);
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI

#include <situ/ops/cuda/conv2d.hpp>

namespace situ::inline SITU_ABI {

inline namespace SITU_ABI_CUDNN {

/// The convolution of images with weights; see the top of this file.
///
/// Example   conv2d(x, w);  conv2d(x, w, {.bias = b, .stride = 2, .padding = 1});  conv2d(x, depthwise, {.groups = channels})
template <class X, class W>
  requires(detail::factors<X, W> && floating<detail::convolved_t<X, W>>)
auto conv2d(X const& x_, W const& w_, conv2d_options<detail::convolved_t<X, W>, detail::convolution_device_t<X, W>> const& options = {}) {
  using T = detail::convolved_t<X, W>;
  using D = detail::convolution_device_t<X, W>;
  bool const has_bias = options.bias.size() > 0;
  detail::ConvolutionPlan const plan =
      detail::plan_convolution(x_.shape(), w_.shape(), options.bias.shape(), has_bias, options.stride, options.padding, options.dilation, options.groups);
  Tensor<T, D> const x = detail::product_operand<T>(x_);
  Tensor<T, D> const w = detail::without_gaps<T, D>(detail::product_operand<T>(w_), "conv2d", "a tensor of weights");
  Tensor<T, D> const bias = detail::without_gaps<T, D>(options.bias, "conv2d", "a bias");
  auto result = Tensor<T, D>::uninitialized(plan.shape, "conv2d");
  detail::launch_convolution<D, T>(typename device_traits<D>::kernels{}, plan, x, w.data(), has_bias ? bias.data() : nullptr, result.data(), options.groups);
  return result;
}

}  // namespace SITU_ABI_CUDNN

template <class X, class W, class Error = error::operands_on_different_devices__move_one_with_to<device_of<X>, device_of<W>>>
  requires(expression<X> && expression<W> && !on_same_device<X, W>)
void conv2d(X const&, W const&, auto const&...) = delete;
template <class X, class W, class Error = error::operands_on_different_devices__move_one_with_to<device_of<X>, device_of<W>>>
  requires(expression<X> && expression<W> && !on_same_device<X, W>)
void conv2d(X const&, W const&, conv2d_options<value_of<X>, device_of<X>> const&) = delete;  // in braces
// What PyTorch's users would write.
template <any_formula X, any_formula W, any_formula B, class... Options, class Error = error::options_stand_in_braces__as_in_conv2d_of_x_and_w_and_braces_dot_bias<value_of<B>>>
  requires on_same_device<X, W>
void conv2d(X const&, W const&, B const&, Options const&...) = delete;
template <class X, class W, class Error = error::conv2d_needs_floating_elements__use_cast<value_of<X>, value_of<W>>>
  requires(detail::factors<X, W> && !floating<detail::convolved_t<X, W>>)
void conv2d(X const&, W const&, auto const&...) = delete;

}  // namespace situ::inline SITU_ABI
