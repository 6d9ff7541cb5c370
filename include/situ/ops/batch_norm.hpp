/// Batch normalisation: every channel made to have mean 0 and variance 1 over all images of a batch.
#pragma once

#include <situ/ops/cpu/batch_norm.hpp>
#include <situ/tensor/tensor.hpp>
#if defined(__CUDACC__)
#include <situ/ops/cuda/batch_norm.hpp>
#endif

namespace situ::inline SITU_ABI {

/// The options of batch_norm: batch_norm(x, running_mean, running_var, weight, bias, {.training = true}).
struct batch_norm_options {
  bool training = false;  ///< normalises with the batch's own statistics, and moves the running ones towards them
  double momentum = 0.1;  ///< by this part of the way
  double eps = 1e-5;      ///< is added to the variance
};

namespace error {
template <class Element>
struct batch_norm_needs_floating_elements__use_cast {};
}  // namespace error

namespace detail {

#if !defined(__CUDACC__)
inline namespace SITU_ABI_COMPILER {
template <class D, class T>
void launch_batch_norm(cuda_kernels, BatchNormPlan const&, T const*, T*) {
  static_assert(compiled_by_nvcc<T>, "situ: batch_norm_on_Cuda_needs_nvcc: this file is not compiled by nvcc; name it .cu, or move the tensor to the host");
}
template <class D, class T>
void launch_batch_norm_gradient(cuda_kernels, BatchNormPlan const&, T const*, T const*, T*, ChannelValues const&, ChannelValues const&) {
  static_assert(compiled_by_nvcc<T>, "situ: batch_norm_on_Cuda_needs_nvcc: this file is not compiled by nvcc; name it .cu, or move the tensor to the host");
}
}  // namespace SITU_ABI_COMPILER
#endif

/// The plan for images of a shape, without its values. Throws ShapeError.
SITU_NOINLINE inline BatchNormPlan plan_batch_norm(Shape const& shape, batch_norm_options const& options, char const* who = "batch_norm") {
  if (shape.rank() < 2) fail<ShapeError>(who, ": an input of shape ", shape, " was given; inputs are [N, C] or [N, C, ...]");
  BatchNormPlan plan;
  plan.images = shape[0], plan.channels = shape[1], plan.inner = 1;
  for (int k = 2; k < shape.rank(); ++k) plan.inner *= shape[k];
  plan.training = options.training, plan.momentum = options.momentum, plan.eps = options.eps;
  if (plan.training && plan.channels > 0 && plan.count() < 2) {
    fail<ShapeError>(who, ": an input of shape ", shape, " has ", plan.count(), plan.count() == 1 ? " value" : " values",
                     " for each channel, and training needs their variance: give 2 or more, or normalise with the running statistics (net.eval())");
  }
  return plan;
}

SITU_NOINLINE inline void check_channels(char const* what, Shape const& given, Shape const& shape) {
  if (given.rank() == 1 && given[0] == shape[1]) return;
  fail<ShapeError>("batch_norm: the ", what, " has shape ", given, ", but inputs of shape ", shape, " have ", shape[1], shape[1] == 1 ? " channel" : " channels");
}
/// A tensor of one value for each channel as kernels see it; one of no elements stands for none.
template <class T, class D>
ChannelValues channel_values(Tensor<T, D> const& values, char const* what, Shape const& shape) {
  if (values.size() == 0 && shape[1] != 0) return {};
  check_channels(what, values.shape(), shape);
  return {const_cast<T*>(values.data()), values.strides()[0], dtype_of<T>};
}
/// The same, to be written.
template <class T, class D>
ChannelValues written_channel_values(Tensor<T, D> values) {
  if (StorageHead* const head = values.storage().head()) head->note_write("batch_norm");
  return {values.data(), values.strides()[0], dtype_of<T>};
}
template <class T, class D>
void check_writable(Tensor<T, D> const& values, char const* what) {
  if (values.layout().is_broadcast()) fail<LayoutError>("batch_norm: the ", what, " is a broadcast view, which cannot be written; give a clone() of it");
}

/// Normalises x, without gaps. `statistics` [2, C] receives what backward needs, or is empty.
template <class T, class D, class DX, class R, class DR, class P, class DW, class B, class DB>
Tensor<T, D> batch_norm_values(Tensor<T, DX> const& x, Tensor<R, DR> const& running_mean, Tensor<R, DR> const& running_var, Tensor<P, DW> const& weight,
                               Tensor<B, DB> const& bias, BatchNormPlan& plan, Tensor<double, D>& statistics) {
  Shape const& shape = x.shape();
  plan.weight = channel_values(weight, "weight", shape);
  plan.bias = channel_values(bias, "bias", shape);
  plan.running_mean = channel_values(running_mean, "running mean", shape);
  plan.running_var = channel_values(running_var, "running variance", shape);
  if (!plan.training && plan.channels > 0 && !(plan.running_mean.data && plan.running_var.data)) {
    fail<ShapeError>("batch_norm: there are no running statistics to normalise with; give both, or say {.training = true}");
  }
  auto result = Tensor<T, D>::uninitialized(shape, "batch_norm");
  if (plan.training) {
    check_writable(running_mean, "running mean");
    check_writable(running_var, "running variance");
    if (result.size() == 0) return result;
    if (plan.running_mean.data) plan.running_mean = written_channel_values(running_mean);
    if (plan.running_var.data) plan.running_var = written_channel_values(running_var);
  }
  if (result.size() == 0) return result;
  plan.statistics = statistics.data();
  launch_batch_norm<D, T>(typename device_traits<D>::kernels{}, plan, x.data(), result.data());
  return result;
}

template <class X>
inline constexpr bool is_floating_tensor = false;
template <floating T, class D>
inline constexpr bool is_floating_tensor<Tensor<T, D>> = true;

/// Operands of batch_norm on one device, of any element type.
template <class E, class R, class V, class... Ws>
concept batch_norm_operands = is_floating_tensor<R> && std::is_same_v<R, V> && (expression<E> && ... && expression<Ws>) &&
                              all_mix<operand_device_t<E>, operand_device_t<R>, operand_device_t<Ws>...>::value;
template <class E, class R, class V, class... Ws>
concept strange_batch_norm_operands = is_floating_tensor<R> && is_floating_tensor<V> && (expression<E> && ... && expression<Ws>) &&
                                      !all_mix<operand_device_t<E>, operand_device_t<R>, operand_device_t<V>, operand_device_t<Ws>...>::value;

}  // namespace detail

/// Every channel made to have mean 0 and variance 1, then weighed and shifted.
///
///     y = (x - mean) / sqrt(var + eps) * weight + bias,   mean and var = sum (x - mean)² / n over all axes but the second
///
///     batch_norm(x, running_mean, running_var, weight, bias)                          with the running statistics
///     batch_norm(x, running_mean, running_var, weight, bias, {.training = true})      with the batch's, and
///         running_mean += momentum (mean - running_mean),   running_var += momentum (var n / (n - 1) - running_var)
///
/// Shape     x [N, C] or [N, C, ...], the others [C]; without weight and bias these are 1 and 0. An empty tensor stands for none, also for
///           running statistics in training.
/// Dtype     that of x, floating. 16-bit floats are computed in float, the statistics merged in double; the others may be of any floating type.
/// Device    all on one, runs there; enqueued, not waited for.
/// Throws    ShapeError when shapes do not fit, in training when channels have less than two values, else when there are no running statistics;
///           LayoutError and TypeError when running statistics cannot be written.
/// Special   a channel with NaN or an infinity in it gives NaN in training, and running statistics that are NaN.
/// Cost      one launch on the CPU, in which each channel is read twice, the second time from the cache where it fits, and written once; three on a
///           GPU. x with gaps is copied first. Variances are summed about the mean, without cancellation; the same results for any number of threads.
/// Gradient  with r = 1 / sqrt(var + eps), z = (x - mean) r: weight: Σ g z; bias: Σ g; x: weight r (g - mean(g) - z mean(g z)) in training, else weight r g.
/// Source    Ioffe & Szegedy 2015, arXiv:1502.03167.
template <class E, class R, class V, class W, class B>
  requires(detail::batch_norm_operands<E, R, V, W, B> && floating<value_of<E>> && floating<value_of<W>> && floating<value_of<B>>)
auto batch_norm(E const& x_, R const& running_mean, V const& running_var, W const& weight, B const& bias, batch_norm_options const& options = {}) {
  using D = detail::result_device_t<device_of<E>>;
  detail::BatchNormPlan plan = detail::plan_batch_norm(x_.shape(), options);
  auto const x = detail::evaluated(x_).contiguous();
  Tensor<double, D> none;
  return detail::batch_norm_values<value_of<E>, D>(x, running_mean, running_var, detail::evaluated(weight), detail::evaluated(bias), plan, none);
}
template <class E, class R, class V>
  requires(detail::batch_norm_operands<E, R, V> && floating<value_of<E>>)
auto batch_norm(E const& x, R const& running_mean, V const& running_var, batch_norm_options const& options = {}) {
  return batch_norm(x, running_mean, running_var, R(), R(), options);
}
template <class E, class R, class V, class W, class B, class Error = detail::different_devices_of<E, R, V, W, B>>
  requires detail::strange_batch_norm_operands<E, R, V, W, B>
void batch_norm(E const&, R const&, V const&, W const&, B const&, batch_norm_options const& = {}) = delete;
template <class E, class R, class V, class Error = detail::different_devices_of<E, R, V>>
  requires detail::strange_batch_norm_operands<E, R, V>
void batch_norm(E const&, R const&, V const&, batch_norm_options const& = {}) = delete;
template <class E, class R, class V, class Error = error::batch_norm_needs_floating_elements__use_cast<value_of<E>>>
  requires(detail::batch_norm_operands<E, R, V> && !floating<value_of<E>>)
void batch_norm(E const&, R const&, V const&, auto const&...) = delete;

}  // namespace situ::inline SITU_ABI
