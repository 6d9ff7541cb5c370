/// Convolution of Variables.
///
/// Shapes, dtypes, devices and what is thrown are those of ops/conv2d.hpp; a bias may be a Variable too.
#pragma once

#include <optional>

#include <situ/autograd/operands.hpp>
#include <situ/ops/conv2d.hpp>
#include <situ/ops/cpu/conv2d_gradient.hpp>
#include <situ/ops/reduce.hpp>
#if defined(__CUDACC__)
#include <situ/ops/cuda/conv2d_gradient.hpp>
#endif

namespace situ::inline SITU_ABI {
namespace detail {

/// A bias that may record, and may be missing.
template <class T, class D>
class OptionalInput {
 public:
  using value_type = T;
  using device_type = D;
  OptionalInput() = default;
  OptionalInput(Tensor<T, D> const& tensor) : tensor_(tensor) {}
  OptionalInput(Variable<T, D> const& variable) : tensor_(variable.value()), variable_(variable) {}
  template <class E>
    requires(any_formula<E> && mixes_with<device_of<E>, D> && !std::is_same_v<E, Tensor<T, D>> && !std::is_same_v<E, Variable<T, D>>)
  OptionalInput(E const& e) : OptionalInput(as_operand(e)) {}
  Tensor<T, D> const& value() const { return tensor_; }
  Shape const& shape() const { return tensor_.shape(); }
  bool requires_grad() const { return variable_ && variable_->requires_grad(); }
  State<T, D>* state() const { return variable_ ? variable_->state() : nullptr; }

 private:
  template <class E>
  static auto as_operand(E const& e) {
    if constexpr (differentiable<E>) return Variable<T, D>(e);
    else return Tensor<T, D>(e);
  }
  Tensor<T, D> tensor_;
  std::optional<Variable<T, D>> variable_;
};

}  // namespace detail

/// The options of conv2d, of Variables: conv2d(x, w, {.bias = b, .stride = 2, .padding = {1, 0}}).
template <element T, device D>
struct recorded_conv2d_options {
  detail::OptionalInput<T, D> bias = {};  ///< [O]; empty for none
  extent2d stride = 1, padding = 0, dilation = 1;
  int64_t groups = 1;
};

namespace detail {

#if !defined(__CUDACC__)
inline namespace SITU_ABI_COMPILER {
template <class D, class T>
Tensor<T, D> weight_gradient_parts(cuda_kernels, ConvolutionPlan const&, Tensor<T, D> const& x, Tensor<T, D> const&, int64_t) {
  static_assert(compiled_by_nvcc<T>, "situ: gradients_on_Cuda_need_nvcc: this file is not compiled by nvcc; name it .cu, or move the Variables to the host");
  return x;
}
template <class D, class T>
Tensor<T, D> image_gradient(cuda_kernels, ConvolutionPlan const&, Shape const&, Tensor<T, D> const& g, Tensor<T, D> const&, int64_t) {
  return g;
}
}  // namespace SITU_ABI_COMPILER
#endif

/// ∂L/∂w = Σ g pixelsᵀ,   ∂L/∂x = the windows' shares wᵀ g, summed,   ∂L/∂bias = Σ g
template <class T, class D, class DX, class DW>
struct ConvolutionRule {
  Saved<T, DX> x;
  Saved<T, DW> w;
  Shape x_shape, w_shape;
  ConvolutionPlan plan;
  int64_t groups;

  template <class IntoX, class IntoW, class IntoB>
  void operator()(Tensor<T, D> const& gradient, IntoX const& into_x, IntoW const& into_w, IntoB const& into_b) const {
    using kernels = typename device_traits<D>::kernels;
    Shape const windows = x_shape.rank() == 4 ? Shape{0, 2, 3} : Shape{1, 2};
    bool const empty = gradient.size() == 0 || detail::product(x_shape) == 0 || detail::product(w_shape) == 0;
    if (into_b.needed() && (empty || !into_w.needed())) into_b.add(sum(gradient, windows));
    if (!into_x.needed() && !into_w.needed()) return;
    if (empty) {
      if (into_x.needed()) into_x.add(zeros<T>(x_shape, D{}));
      if (into_w.needed()) into_w.add(zeros<T>(w_shape, D{}));
      return;
    }
    Tensor<T, D> const g = window_gradients(kernels{}, gradient);
    if (into_w.needed()) {
      Tensor<T, D> biases;
      Tensor<T, D> const parts = weight_parts(kernels{}, g, into_b.needed() ? &biases : nullptr);
      into_w.add(parts.size(0) == 1 ? parts.reshape(w_shape) : sum(parts, 0).reshape(w_shape));
      if (into_b.needed()) into_b.add(biases.size() > 0 ? sum(biases, 0) : sum(gradient, windows));
    }
    if (into_x.needed()) {
      Tensor<T, D> const weights = Tensor<T, D>(w.tensor()).contiguous();
      auto const result = image_gradient<D, T>(kernels{}, plan, x_shape, g, weights, groups);
      if constexpr (std::is_same_v<value_of<decltype(result)>, T>) into_x.add(result);
      else into_x.add(cast<T>(result));
    }
  }

 private:
  Tensor<T, D> weight_parts(cpu_kernels, Tensor<T, D> const& g, Tensor<T, D>* biases) const {
    return weight_gradient_parts<D, T>(cpu_kernels{}, plan, Tensor<T, D>(x.tensor()), g, groups, biases);
  }
  Tensor<T, D> weight_parts(cuda_kernels, Tensor<T, D> const& g, Tensor<T, D>*) const {
    return weight_gradient_parts<D, T>(cuda_kernels{}, plan, Tensor<T, D>(x.tensor()), g, groups);
  }
  /// As kernels take it: on the host any strides whose last two axes can be walked as one.
  static Tensor<T, D> window_gradients(cpu_kernels, Tensor<T, D> const& g) {
    int const at = g.rank() - 2;
    return g.strides()[at] == g.strides()[at + 1] * g.shape()[at + 1] ? g : g.contiguous();
  }
  static Tensor<T, D> window_gradients(cuda_kernels, Tensor<T, D> const& g) { return g.contiguous(); }
};

template <class X, class W>
using recorded_convolution_options = recorded_conv2d_options<convolved_t<X, W>, convolution_device_t<X, W>>;

}  // namespace detail

/// The convolution of images with weights, one of which records; see ops/conv2d.hpp.
///
/// Gradient  two products with the matrix of pixels, which is gathered while it is packed, and a sum for the bias. The same from run to
///           run and for any number of threads. On Cuda by cuBLAS.
template <class X, class W>
  requires(detail::recorded_operands<X, W> && floating<detail::convolved_t<X, W>>)
auto conv2d(X const& x_, W const& w_, detail::recorded_convolution_options<X, W> const& options = {}) {
  using T = detail::convolved_t<X, W>;
  using D = detail::convolution_device_t<X, W>;
  auto const x = detail::operation_input<T>(x_);
  auto const w = detail::operation_input<T>(w_);
  auto const& bias = options.bias;
  auto value = conv2d(x.value(), w.value(), {.bias = bias.value(), .stride = options.stride, .padding = options.padding, .dilation = options.dilation, .groups = options.groups});
  if (!detail::is_recording(x, w, bias)) return Variable<T, D>(std::move(value), false);
  detail::ConvolutionPlan const plan = detail::plan_convolution(x.shape(), w.shape(), bias.shape(), bias.value().size() > 0, options.stride, options.padding,
                                                                options.dilation, options.groups);
  using Rule = detail::ConvolutionRule<T, D, device_of<decltype(x)>, device_of<decltype(w)>>;
  return detail::record("Conv2d", std::move(value),
                        Rule{detail::saved_if(w.requires_grad(), x), detail::saved_if(x.requires_grad(), w), x.shape(), w.shape(), plan, options.groups}, x, w, bias);
}
template <class X, class W, class Error = detail::different_devices_of<X, W>>
  requires detail::strange_recorded_operands<X, W>
void conv2d(X const&, W const&, auto const&...) = delete;
template <class X, class W, class Error = detail::different_devices_of<X, W>>
  requires detail::strange_recorded_operands<X, W>
void conv2d(X const&, W const&, conv2d_options<value_of<X>, device_of<X>> const&) = delete;  // in braces

}  // namespace situ::inline SITU_ABI
