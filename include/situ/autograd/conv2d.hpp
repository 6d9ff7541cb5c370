/// Convolution of Variables.
///
/// Shapes, dtypes, devices and what is thrown are those of ops/conv2d.hpp; a bias may be a Variable too.
#pragma once

#include <optional>

#include <situ/autograd/operands.hpp>
#include <situ/autograd/reduce.hpp>
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

/// A convolution's shapes and windows.
struct ConvolutionShapes {
  Shape x, w;
  ConvolutionPlan plan;
  int64_t groups;
  bool empty() const { return detail::product(x) == 0 || detail::product(w) == 0 || detail::product(plan.shape) == 0; }
};

/// Σ g conv2d(x, w) is linear in each of the three: what one of them is multiplied by, which is its gradient, is made of the other two.
enum class ConvolutionPart { result, image, weight };

/// The result's gradient as kernels take it: on the host any strides whose last two axes can be walked as one.
template <class T, class D>
Tensor<T, D> window_gradients(cpu_kernels, Tensor<T, D> const& g) {
  int const at = g.rank() - 2;
  bool const is_line = g.shape()[at] == 1 || g.shape()[at + 1] == 1;
  return is_line || g.strides()[at] == g.strides()[at + 1] * g.shape()[at + 1] ? g : g.contiguous();
}
template <class T, class D>
Tensor<T, D> window_gradients(cuda_kernels, Tensor<T, D> const& g) {
  return g.contiguous();
}
/// [k, weights]: what sums to Σ g pixelsᵀ.
template <class T, class D>
Tensor<T, D> weight_parts(cpu_kernels, ConvolutionShapes const& c, Tensor<T, D> const& x, Tensor<T, D> const& g, Tensor<T, D>* biases) {
  return weight_gradient_parts<D, T>(cpu_kernels{}, c.plan, x, g, c.groups, biases);
}
template <class T, class D>
Tensor<T, D> weight_parts(cuda_kernels, ConvolutionShapes const& c, Tensor<T, D> const& x, Tensor<T, D> const& g, Tensor<T, D>*) {
  return weight_gradient_parts<D, T>(cuda_kernels{}, c.plan, x, g, c.groups);
}
/// Of x and w; of w and g; of x and g.
template <class T, class D>
SITU_NOINLINE Tensor<T, D> convolution_part(ConvolutionPart part, ConvolutionShapes const& c, Tensor<T, D> const& a, Tensor<T, D> const& b, Tensor<T, D>* biases = nullptr) {
  typename device_traits<D>::kernels const kernels{};
  if (c.empty()) return zeros<T>(part == ConvolutionPart::result ? c.plan.shape : part == ConvolutionPart::image ? c.x : c.w, D{});
  if (part == ConvolutionPart::result) {
    auto result = Tensor<T, D>::uninitialized(c.plan.shape, "conv2d");
    Tensor<T, D> const weights = b.contiguous();
    launch_convolution<D, T>(kernels, c.plan, a, weights.data(), nullptr, result.data(), c.groups);
    return result;
  }
  if constexpr (std::is_same_v<typename device_traits<D>::kernels, cpu_kernels> && !std::is_same_v<T, compute_t<T>>) {  // sums of sums are rounded once
    using C = compute_t<T>;
    Tensor<C, D> parts;
    Tensor<T, D> const result(cast<T>(convolution_part<C, D>(part, c, Tensor<C, D>(a), Tensor<C, D>(b), biases ? &parts : nullptr)));
    if (parts.size() > 0) *biases = cast<T>(sum(parts, 0, keepdim));
    return result;
  } else {
    Tensor<T, D> const g = window_gradients(kernels, b);
    if (part == ConvolutionPart::image) {
      Tensor<T, D> const weights = a.contiguous();
      return image_gradient<D, T>(kernels, c.plan, c.x, g, weights, c.groups);
    }
    Tensor<T, D> const parts = weight_parts(kernels, c, a, g, biases);
    return parts.size(0) == 1 ? parts.reshape(c.w) : sum(parts, 0).reshape(c.w);
  }
}

/// The same with history: its gradients are such parts again.
template <class T, class D>
[[gnu::cold]] SITU_NOINLINE Variable<T, D> convolution_part(ConvolutionPart part, ConvolutionShapes const& c, Variable<T, D> const& a, Variable<T, D> const& b);
template <class T, class D>
struct ConvolutionPartRule {
  using twice = void;
  ConvolutionPart part;
  Saved<T, D> a, b;
  ConvolutionShapes shapes;
  template <class G, class IntoA, class IntoB>
  void operator()(G const& g, IntoA const& into_a, IntoB const& into_b) const {
    using enum ConvolutionPart;
    if (into_a.needed()) {
      G const other = b.beside(g);
      into_a.add(part == result ? convolution_part(image, shapes, other, g) : convolution_part(part == image ? weight : image, shapes, g, other));
    }
    if (into_b.needed()) {
      G const other = a.beside(g);
      into_b.add(part == image ? convolution_part(result, shapes, g, other) : convolution_part(part == result ? weight : result, shapes, other, g));
    }
  }
};
template <class T, class D>
Variable<T, D> convolution_part(ConvolutionPart part, ConvolutionShapes const& c, Variable<T, D> const& a, Variable<T, D> const& b) {
  return record("Conv2d", convolution_part(part, c, a.value(), b.value()), ConvolutionPartRule<T, D>{part, saved_if(b.requires_grad(), a), saved_if(a.requires_grad(), b), c}, a, b);
}

/// ∂L/∂w = Σ g pixelsᵀ,   ∂L/∂x = the windows' shares wᵀ g, summed,   ∂L/∂bias = Σ g
template <class T, class D, class DX, class DW>
struct ConvolutionRule {
  using twice = void;
  Saved<T, DX> x;
  Saved<T, DW> w;
  ConvolutionShapes shapes;

  template <class IntoX, class IntoW, class IntoB>
  void operator()(Tensor<T, D> const& g, IntoX const& into_x, IntoW const& into_w, IntoB const& into_b) const {
    Tensor<T, D> biases;
    if (into_w.needed()) into_w.add(convolution_part(ConvolutionPart::weight, shapes, Tensor<T, D>(x.tensor()), g, into_b.needed() ? &biases : nullptr));
    if (into_b.needed()) into_b.add(biases.size() > 0 ? sum(biases, 0) : sum(g, windows()));
    if (into_x.needed()) into_x.add(convolution_part(ConvolutionPart::image, shapes, Tensor<T, D>(w.tensor()), g));
  }
  template <class IntoX, class IntoW, class IntoB>
  [[gnu::cold]] SITU_NOINLINE void operator()(Variable<T, D> const& g, IntoX const& into_x, IntoW const& into_w, IntoB const& into_b) const {
    if (into_w.needed()) into_w.add(convolution_part(ConvolutionPart::weight, shapes, record_transfer<D>(x.variable()), g));
    if (into_b.needed()) into_b.add(sum(g, windows()));
    if (into_x.needed()) into_x.add(convolution_part(ConvolutionPart::image, shapes, record_transfer<D>(w.variable()), g));
  }

 private:
  Shape windows() const { return shapes.x.rank() == 4 ? Shape{0, 2, 3} : Shape{1, 2}; }
};

template <class X, class W>
using recorded_convolution_options = recorded_conv2d_options<convolved_t<X, W>, convolution_device_t<X, W>>;

}  // namespace detail

/// The convolution of images with weights, one of which records; see ops/conv2d.hpp.
///
/// Gradient  two products with the matrix of pixels, which is gathered while it is packed, and a sum for the bias. The same from run to
///           run and for any number of threads. 16-bit floats are widened to float for it, and its sums rounded once. On Cuda by cuBLAS, which
///           rounds them before those of several images, and of several windows, are added up. Differentiable any number of times: gradients of gradients are such again.
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
                        Rule{detail::saved_if(w.requires_grad(), x), detail::saved_if(x.requires_grad(), w), {x.shape(), w.shape(), plan, options.groups}}, x, w, bias);
}
template <class X, class W, class Error = detail::different_devices_of<X, W>>
  requires detail::strange_recorded_operands<X, W>
void conv2d(X const&, W const&, auto const&...) = delete;
template <class X, class W, class Error = detail::different_devices_of<X, W>>
  requires detail::strange_recorded_operands<X, W>
void conv2d(X const&, W const&, conv2d_options<value_of<X>, device_of<X>> const&) = delete;  // in braces

}  // namespace situ::inline SITU_ABI
