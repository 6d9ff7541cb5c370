/// layer_norm and rms_norm, fused with the expression that they take.
#pragma once

#include <situ/ops/rows.hpp>

namespace situ::inline SITU_ABI {

/// Names the axes that are normalised over, where they are not the last ones: layer_norm(x, normalized_axes{{0, 2}}).
struct normalized_axes {
  Shape axes;
};

namespace detail {

/// The last axes of `shape`, whose extents must be `normalized`, as a set of bits. Throws ShapeError.
inline unsigned last_axes(Shape const& normalized, Shape const& shape, char const* who) {
  int const lead = shape.rank() - normalized.rank();
  bool same = lead >= 0 && normalized.rank() > 0;
  for (int k = 0; same && k < normalized.rank(); ++k) same = normalized[k] == shape[lead + k];
  if (!same) {
    fail<ShapeError>(who, ": normalized shape ", normalized, " is not the end of shape ", shape, "; give the extents of the last axes, or normalized_axes{{...}}");
  }
  return ((1u << normalized.rank()) - 1u) << lead;
}
inline unsigned chosen_axes(Shape const& axes, Shape const& shape, char const* who) {
  unsigned bits = 0;
  if (axes.empty()) fail<ShapeError>(who, ": no axes were given for shape ", shape, "; name at least one");
  for (int64_t axis : axes) {
    unsigned const bit = 1u << checked_axis(axis, shape.rank(), shape, who);
    if (bits & bit) fail<ShapeError>(who, ": axis ", axis, " appears twice in ", axes);
    bits |= bit;
  }
  return bits;
}
inline unsigned norm_axes(Shape const& normalized, Shape const& shape, char const* who) { return last_axes(normalized, shape, who); }
inline unsigned norm_axes(normalized_axes const& chosen, Shape const& shape, char const* who) { return chosen_axes(chosen.axes, shape, who); }

/// What stands for a weight or a bias that is not there.
struct no_parameter {};

/// A weight or bias as the kernels read it: contiguous, of type C. Throws ShapeError unless it has the extents of
/// the axes in `along`.
template <class C, class W>
auto norm_parameter(W const& parameter, char const* what, unsigned along, Shape const& shape, char const* who) {
  Shape wanted;
  for (int k = 0; k < shape.rank(); ++k) {
    if (along >> k & 1u) wanted.push_back(shape[k]);
  }
  if (!(parameter.shape() == wanted)) {
    fail<ShapeError>(who, ": the ", what, " has shape ", parameter.shape(), ", but the normalized axes of ", shape, " have shape ", wanted);
  }
  if constexpr (std::is_same_v<value_of<W>, C>) return evaluated(parameter).contiguous();
  else return evaluated(cast<C>(parameter));
}

/// What the kernels of D read a weight as, beside elements of type T: in the type of the arithmetic, but as it is where it is a tensor of 16-bit floats like
/// them and D has CUDA's kernels. A formula is not rounded.
template <class W, class T, class D>
using norm_parameter_type =
    std::conditional_t<std::is_same_v<W, Tensor<T, D>> && sizeof(T) == 2 && std::is_same_v<typename device_traits<D>::kernels, cuda_kernels>, T, compute_t<T>>;

template <template <class> class Op, class E, class W, class B>
auto normalize(E const& e, unsigned along, W const& weight, B const& bias, double eps, typename Op<value_of<E>>::compute* found = nullptr) {
  using Operation = Op<value_of<E>>;
  using C = typename Operation::compute;
  Operation op{};
  op.eps = eps;
  op.found = found;
  auto const bound = [&]<class P>(P const& parameter, char const* what) {
    if constexpr (std::is_same_v<P, no_parameter>) return no_parameter{};
    else return norm_parameter<norm_parameter_type<P, value_of<E>, device_of<E>>>(parameter, what, along, e.shape(), Operation::name);
  };
  auto const bind = [](auto const& bound_one, auto& wide, auto& narrow) {
    using P = std::remove_cvref_t<decltype(bound_one)>;
    if constexpr (!std::is_same_v<P, no_parameter>) {
      if constexpr (std::is_same_v<value_of<P>, C>) wide = bound_one.data();
      else narrow = bound_one.data();
    }
  };
  auto const w = bound(weight, "weight");
  auto const b = bound(bias, "bias");
  bind(w, op.weight, op.narrow_weight);
  bind(b, op.bias, op.narrow_bias);
  return operate_on_rows<Op>(e, along, op);  // what it enqueues comes before w and b are given back
}

/// What may say over which axes is normalised.
template <class A>
concept axes_to_normalize = std::is_same_v<std::remove_cvref_t<A>, Shape> || std::is_same_v<std::remove_cvref_t<A>, normalized_axes>;

}  // namespace detail

/// Every row made to have mean 0 and variance 1, then weighed and shifted.
///
///     y = (x - mean) / sqrt(var + eps) * weight + bias,   var = sum (x - mean)^2 / n
///
///     layer_norm(x, {768})   layer_norm(x, {768}, weight, bias)   layer_norm(x, normalized_axes{{0, 2}}, eps)
///
/// Shape     that of x. Rows run along the last axes, whose extents are given as in PyTorch, or along the axes that are named; weight and
///           bias have the extents of these axes.
/// Dtype     that of x (integers and bools give float), 16-bit floats computed in float; weight and bias may be of any type.
/// Device    all on one device, runs there; enqueued, not waited for.
/// Throws    AxisError when x has no such axis; ShapeError when the extents are not those of the last axes, one is named twice, or the weight or bias has another shape.
/// Special   a row with NaN or an infinity in it gives NaN.
/// Cost      one launch; every input is read once and every element written once where a row fits the chip (some 65000 floats on a CPU;
///           on a GPU 8192, and 131072 where blocks can form clusters, where it lies along one axis or axes that join), else the input is read twice, in the launches of softmax. The
///           variance is summed about the mean, or about a guess that is near it: without cancellation.
///           The same results for any number of threads.
/// Gradient  with z = (x - mean) r, r = 1 / sqrt(var + eps), g = dy weight: dx = r (g - mean(g) - z mean(g z)); dweight = sum dy z, dbias = sum dy.
template <class E, detail::axes_to_normalize A = Shape>
  requires expression<E>
auto layer_norm(E const& x, A const& normalized, double eps = 1e-5) {
  return detail::normalize<detail::rows::layer_norm>(detail::real_elements(x), detail::norm_axes(normalized, x.shape(), "layer_norm"), detail::no_parameter{}, detail::no_parameter{}, eps);
}
template <class E, detail::axes_to_normalize A = Shape, class W>
  requires(expression<E> && expression<W> && on_same_device<E, W>)
auto layer_norm(E const& x, A const& normalized, W const& weight, double eps = 1e-5) {
  return detail::normalize<detail::rows::layer_norm>(detail::real_elements(x), detail::norm_axes(normalized, x.shape(), "layer_norm"), weight, detail::no_parameter{}, eps);
}
template <class E, detail::axes_to_normalize A = Shape, class W, class B>
  requires(expression<E> && expression<W> && expression<B> && detail::one_device_of_three<E, W, B>)
auto layer_norm(E const& x, A const& normalized, W const& weight, B const& bias, double eps = 1e-5) {
  return detail::normalize<detail::rows::layer_norm>(detail::real_elements(x), detail::norm_axes(normalized, x.shape(), "layer_norm"), weight, bias, eps);
}
template <class E, detail::axes_to_normalize A = Shape, class W, class Error = detail::different_devices_of<E, W>>
  requires(expression<E> && expression<W> && !on_same_device<E, W>)
void layer_norm(E const&, A const&, W const&, double = 1e-5) = delete;
template <class E, detail::axes_to_normalize A = Shape, class W, class B, class Error = detail::different_devices_of<E, W, B>>
  requires(expression<E> && expression<W> && expression<B> && !detail::one_device_of_three<E, W, B>)
void layer_norm(E const&, A const&, W const&, B const&, double = 1e-5) = delete;

/// Every row divided by its root mean square, then weighed.
///
///     y = x / sqrt(sum x^2 / n + eps) * weight
///
/// All else as layer_norm. Source: Zhang & Sennrich 2019, arXiv:1910.07467.
template <class E, detail::axes_to_normalize A = Shape>
  requires expression<E>
auto rms_norm(E const& x, A const& normalized, double eps = 1e-5) {
  return detail::normalize<detail::rows::rms_norm>(detail::real_elements(x), detail::norm_axes(normalized, x.shape(), "rms_norm"), detail::no_parameter{}, detail::no_parameter{}, eps);
}
template <class E, detail::axes_to_normalize A = Shape, class W>
  requires(expression<E> && expression<W> && on_same_device<E, W>)
auto rms_norm(E const& x, A const& normalized, W const& weight, double eps = 1e-5) {
  return detail::normalize<detail::rows::rms_norm>(detail::real_elements(x), detail::norm_axes(normalized, x.shape(), "rms_norm"), weight, detail::no_parameter{}, eps);
}
template <class E, detail::axes_to_normalize A = Shape, class W, class Error = detail::different_devices_of<E, W>>
  requires(expression<E> && expression<W> && !on_same_device<E, W>)
void rms_norm(E const&, A const&, W const&, double = 1e-5) = delete;

}  // namespace situ::inline SITU_ABI
