/// The linear layer, alone and with an activation in the same pass.
///
///     y = x wᵀ + b,   yᵢⱼ = Σₖ xᵢₖ wⱼₖ + bⱼ
///
/// Shape     x (…, in), w [out, in], b [out] → (…, out); w of one axis, [in], gives (…), with b of no axes.
/// Dtype     operands promote; 16-bit floats are summed in float, bias and activation included, and rounded once.
/// Device    runs where the operands live; enqueued.
/// Throws    ShapeError when the extents do not fit.
/// Cost      that of the product: on the CPU bias and activation are applied while a tile is in the cache, on CUDA by the epilogue of
///           one call of cuBLASLt (but gelu of double, which is right to 32 bits only there: nvcc's files make a kernel of it).
/// Gradient  ∂L/∂x = g w,  ∂L/∂w = gᵀ x,  ∂L/∂b = Σ g, with g = ∂L/∂y times the activation's slope.
#pragma once

#include <situ/ops/matmul.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// Bias and activation where the product has not applied them, in a kernel of their own.
template <class Activation, class R, class... B>
void finish_product(cpu_kernels, R const&, B const&...) {}
#if defined(__CUDACC__)
template <class Activation, class R>
void finish_product(cuda_kernels, R& result) {
  if constexpr (!std::is_same_v<Activation, identity>) result.assign(make_map(Activation{}, result));
}
template <class Activation, class R, class B>
void finish_product(cuda_kernels, R& result, B const& bias) {
  if constexpr (std::is_same_v<Activation, identity>) result.assign(result + bias);
  else result.assign(make_map(Activation{}, result + bias));
}
#else
inline namespace SITU_ABI_COMPILER {
template <class Activation, class R, class... B>
void finish_product(cuda_kernels, R const&, B const&...) {
  if constexpr (sizeof...(B) > 0 || !std::is_same_v<Activation, identity>) {
    fail<TypeError>("linear: cuBLASLt has no epilogue for ", dtype_name<value_of<R>>(), " and this shape: compile the file with nvcc, which makes a kernel for it");
  }
}
}  // namespace SITU_ABI_COMPILER
#endif

/// activation(x wᵀ + b). `b` is an expression or no_bias.
struct no_bias {};

inline namespace SITU_ABI_BLAS {
template <class Activation, class X, class W, class B>
auto linear_with_epilogue(X const& x_, W const& w_, B const& b_, char const* who) {
  using Product = promote_t<value_of<X>, value_of<W>>;
  using D = result_device_t<typename common_device<device_of<X>, device_of<W>>::type>;
  auto const run = [&]<class T>(std::type_identity<T>) {
    auto const& x = product_operand<T>(x_);
    auto const& w = product_operand<T>(w_);
    if (x.rank() < 1 || w.rank() < 1 || w.rank() > 2) {
      fail<ShapeError>(who, ": shapes ", x.shape(), " and ", w.shape(), " were given: x needs an axis, and the weights are [out, in] or [in]");
    }
    if (x.shape().back() != w.shape().back()) {
      fail<ShapeError>(who, ": shapes ", x.shape(), " and ", w.shape(), " cannot be multiplied: ", x.shape().back(), " != ", w.shape().back(),
                       "; the weights are [out, in]");
    }
    ProductPlan const plan = plan_product(x.layout(), matrix_transposed(w.layout()), who);
    auto result = Tensor<T, D>::uninitialized(plan.shape, who);
    typename device_traits<D>::kernels const kernels;
    if constexpr (std::is_same_v<B, no_bias>) {
      if (!launch_product<D, Activation, T>(kernels, plan, x.data(), w.data(), result.data(), nullptr)) finish_product<Activation>(kernels, result);
    } else {
      if (b_.rank() != w.rank() - 1 || (b_.rank() == 1 && b_.size() != w.size(0))) {
        fail<ShapeError>(who, ": a bias of shape ", b_.shape(), " does not fit weights of shape ", w.shape(), ": it has one element for each output");
      }
      auto const b = without_gaps<T, D>(product_operand<T>(b_), who, "a bias");
      if (!launch_product<D, Activation, T>(kernels, plan, x.data(), w.data(), result.data(), b.data())) finish_product<Activation>(kernels, result, b);
    }
    return result;
  };
  if constexpr (std::is_same_v<B, no_bias>) return run(std::type_identity<Product>{});
  else return run(std::type_identity<promote_t<Product, value_of<B>>>{});
}
}  // namespace SITU_ABI_BLAS

template <class X, class W, class B>
concept linear_operands = factors<X, W> && expression<B> && on_same_device<X, B> && on_same_device<W, B> && !bool_factors<X, W>;

}  // namespace detail

inline namespace SITU_ABI_BLAS {

// NAME(x, w), NAME(x, w, b) and what is rejected.
#define SITU_LINEAR(NAME, ACTIVATION)                                                                                      \
  template <class X, class W>                                                                                              \
    requires(detail::factors<X, W> && !detail::bool_factors<X, W>)                                                         \
  auto NAME(X const& x, W const& w) {                                                                                      \
    return detail::linear_with_epilogue<ACTIVATION>(x, w, detail::no_bias{}, #NAME);                                       \
  }                                                                                                                        \
  template <class X, class W, class B>                                                                                     \
    requires detail::linear_operands<X, W, B>                                                                              \
  auto NAME(X const& x, W const& w, B const& b) {                                                                          \
    return detail::linear_with_epilogue<ACTIVATION>(x, w, b, #NAME);                                                       \
  }                                                                                                                        \
  template <class X, class W, class Error = detail::different_devices_of<X, W>>                                            \
    requires(expression<X> && expression<W>)                                                                               \
  void NAME(X const&, W const&) = delete;                                                                                  \
  template <class X, class W, class B, class Error = detail::different_devices_of<X, W, B>>                                \
    requires(expression<X> && expression<W> && expression<B>)                                                              \
  void NAME(X const&, W const&, B const&) = delete;                                                                        \
  template <class X, class W, class... B, class Error = error::bool_tensors_have_no_product__use_cast<value_of<X>, value_of<W>>> \
    requires(detail::factors<X, W> && detail::bool_factors<X, W>)                                                          \
  void NAME(X const&, W const&, B const&...) = delete;

/// x wᵀ + b; the bias may be left out. See the top of this file.
SITU_LINEAR(linear, detail::identity)
/// relu(x wᵀ + b) in one pass.
SITU_LINEAR(linear_relu, functions::relu)
/// gelu(x wᵀ + b, approximate_tanh) in one pass: the form of gelu that cuBLASLt has.
SITU_LINEAR(linear_gelu_tanh, functions::gelu_tanh)
#undef SITU_LINEAR

}  // namespace SITU_ABI_BLAS

}  // namespace situ::inline SITU_ABI
