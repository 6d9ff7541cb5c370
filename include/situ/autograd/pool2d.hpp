/// Pooling of Variables, and of formulas with Variables in them.
///
/// Shapes, dtypes, devices and what is thrown are those of ops/pool2d.hpp.
#pragma once

#include <situ/autograd/backward.hpp>
#include <situ/ops/cpu/pool2d_gradient.hpp>
#include <situ/ops/pool2d.hpp>
#if defined(__CUDACC__)
#include <situ/ops/cuda/pool2d_gradient.hpp>
#endif

namespace situ::inline SITU_ABI {
namespace detail {

#if !defined(__CUDACC__)
inline namespace SITU_ABI_COMPILER {
template <class D, class T, class E>
void launch_max_pool_gradient(cuda_kernels, PoolPlan const&, E const&, T const*, T*) {
  static_assert(compiled_by_nvcc<E>, "situ: gradients_on_Cuda_need_nvcc: this file is not compiled by nvcc; name it .cu, or move the Variables to the host");
}
template <class D, class T>
void launch_max_pool_pick(cuda_kernels, PoolPlan const&, Tensor<T, D> const&, T const*, T*) {}
template <class D, class T>
void launch_mean_pool_gradient(cuda_kernels, PoolPlan const&, T const*, T*) {
  static_assert(compiled_by_nvcc<T>, "situ: gradients_on_Cuda_need_nvcc: this file is not compiled by nvcc; name it .cu, or move the Variables to the host");
}
}  // namespace SITU_ABI_COMPILER
#endif

/// What the host sums 16-bit floats in; a GPU's threads hold their sums.
template <class T, class D>
using pool_gradient_t = std::conditional_t<std::is_same_v<typename device_traits<D>::kernels, cpu_kernels>, compute_t<T>, T>;

/// The gradient of pooling, as a tensor of the images' shape; `run` fills it, from contiguous gradients of the windows.
template <class T, class D, class Run>
Tensor<T, D> pool_gradient(Tensor<T, D> const& g, Shape const& shape, Run const& run) {
  auto result = Tensor<pool_gradient_t<T, D>, D>::uninitialized(shape, "pool2d");
  if (result.size() == 0) return Tensor<T, D>(cast<T>(result));
  Tensor<T, D> const gradients = g.contiguous();
  run(gradients.data(), result.data());
  if constexpr (std::is_same_v<pool_gradient_t<T, D>, T>) return result;
  else return Tensor<T, D>(cast<T>(result));
}

/// The gradient goes to the largest element, the first where there are several, the last NaN where there are.
struct max_pool_gradient {
  PoolPlan plan;
  Shape shape;
  template <class T, class D, class X>
  Tensor<T, D> operator()(Tensor<T, D> const& g, X const& x) const {
    using kernels = typename device_traits<D>::kernels;
    return pool_gradient(g, shape, [&](T const* gradients, auto* result) {
      bool plain = is_uniform(x);
      for_each_leaf(x, [&](auto const& leaf) { plain = plain && leaf.is_contiguous(); });
      if (plain) launch_max_pool_gradient<D, T>(kernels{}, plan, x, gradients, result);
      else launch_max_pool_gradient<D, T>(kernels{}, plan, Tensor<T, D>(x).contiguous(), gradients, result);
    });
  }
  template <class C, class D>
  Lane<C, D> twice(Lane<C, D> const& g, Lane<C, D> const& x, Lane<C, D> const&) const;
};
/// A gradient on its way to the places of x's largest elements, and the other way round: what is picked from there.
template <class T, class D>
struct MaxPoolWayRule {
  using twice = void;
  max_pool_gradient of;
  SavedConstant<T, D> x;
  bool picks;
  template <class Ix>
  void operator()(Tensor<T, D> const& g, Ix const& into) const {
    if (into.needed()) into.add(way_back(g));
  }
  template <class Ix>
  [[gnu::cold]] SITU_NOINLINE void operator()(Variable<T, D> const& g, Ix const& into) const {
    if (into.needed()) into.add(record("MaxPool2d", way_back(g.value()), MaxPoolWayRule{of, x, !picks}, g));
  }

 private:
  Tensor<T, D> way_back(Tensor<T, D> const& g) const {
    Tensor<T, D> const values = x.tensor().contiguous();
    if (picks) return of(g, values);
    Shape shape = of.shape;
    shape[shape.rank() - 2] = of.plan.y.axis.windows, shape[shape.rank() - 1] = of.plan.x.axis.windows;
    auto result = Tensor<T, D>::uninitialized(shape, "max_pool2d");
    Tensor<T, D> const from = g.contiguous();
    if (result.size() > 0) launch_max_pool_pick<D, T>(typename device_traits<D>::kernels{}, of.plan, values, from.data(), result.data());
    return result;
  }
};
template <class C, class D>
[[gnu::cold]] SITU_NOINLINE Lane<C, D> max_pool_gradient::twice(Lane<C, D> const& g, Lane<C, D> const& x, Lane<C, D> const&) const {
  Tensor<C, D> const values = x.tensor();
  return Lane<C, D>(record("MaxPool2d", (*this)(g.tensor(), values), MaxPoolWayRule<C, D>{*this, SavedConstant<C, D>(values), false}, g.variable()));
}
/// Every element of a window gets an equal share.
struct mean_pool_gradient {
  PoolPlan plan;
  Shape shape;
  template <class T, class D, class X>
  Tensor<T, D> operator()(Tensor<T, D> const& g, X const&) const {
    using kernels = typename device_traits<D>::kernels;
    return pool_gradient(g, shape, [&](T const* gradients, auto* result) { launch_mean_pool_gradient<D, T>(kernels{}, plan, gradients, result); });
  }
  template <class C, class D>
  Lane<C, D> twice(Lane<C, D> const& g, Lane<C, D> const&, Lane<C, D> const&) const;
};
/// The other way round: the shares' gradient is pooled.
struct MeanPoolSharesRule {
  using twice = void;
  static constexpr bool stateless = true;
  mean_pool_gradient of;
  template <class T, class D, class Ix>
  void operator()(Tensor<T, D> const& g, Ix const& into) const {
    if (into.needed()) into.add(pool<mean_pooling>(g, of.plan, "avg_pool2d"));
  }
  template <class T, class D, class Ix>
  void operator()(Variable<T, D> const& g, Ix const& into) const {
    if (into.needed()) into.add(record_on<false>("AvgPool2d", pool<mean_pooling>(g.value(), of.plan, "avg_pool2d"), g, of));
  }
};
template <class C, class D>
[[gnu::cold]] SITU_NOINLINE Lane<C, D> mean_pool_gradient::twice(Lane<C, D> const& g, Lane<C, D> const&, Lane<C, D> const&) const {
  return Lane<C, D>(record("AvgPool2d", (*this)(g.tensor(), 0), MeanPoolSharesRule{*this}, g.variable()));
}

/// A plan with the number of planes of images of a shape.
inline PoolPlan with_planes(PoolPlan plan, Shape const& shape) {
  plan.planes = shape[shape.rank() - 3] * (shape.rank() == 4 ? shape[0] : 1);
  return plan;
}

}  // namespace detail

/// The largest element of every window; see ops/pool2d.hpp.
///
/// Gradient  to the place of the largest element, the first where there are several, as PyTorch's. Nothing is stored for it: places are found
///           again from the input, of which a formula is evaluated again. The formula's own gradient follows in one kernel.
template <class E>
  requires differentiable<E>
auto max_pool2d(E const& x, extent2d kernel, pool2d_options const& options = {}) {
  auto const plan = detail::plan_windows(x.shape(), kernel, options, "max_pool2d");
  return detail::record_on<true>("MaxPool2d", max_pool2d(detail::values_of(x), kernel, options), x,
                                 detail::max_pool_gradient{detail::with_planes(plan, x.shape()), x.shape()});
}

/// The mean of every window.
///
/// Gradient  g / count to every element, together with the formula's own gradient.
template <class E>
  requires differentiable<E>
auto avg_pool2d(E const& x, extent2d kernel, pool2d_options const& options = {}) {
  auto const plan = detail::plan_means(x.shape(), kernel, options);
  return detail::record_on<false>("AvgPool2d", avg_pool2d(detail::values_of(x), kernel, options), x,
                                  detail::mean_pool_gradient{detail::with_planes(plan, x.shape()), x.shape()});
}

/// The means of windows that cut the image into `size` parts.
///
/// Gradient  as avg_pool2d.
template <class E>
  requires differentiable<E>
auto adaptive_avg_pool2d(E const& x, extent2d size) {
  auto const plan = detail::plan_parts(x.shape(), size);
  return detail::record_on<false>("AdaptiveAvgPool2d", adaptive_avg_pool2d(detail::values_of(x), size), x,
                                  detail::mean_pool_gradient{detail::with_planes(plan, x.shape()), x.shape()});
}

}  // namespace situ::inline SITU_ABI
