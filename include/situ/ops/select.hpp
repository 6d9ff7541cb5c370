/// Selecting by a mask: masked_fill, masked_select, nonzero.
///
///     masked_fill(x, x < 0, 0)   masked_select(x, mask)   nonzero(x > 3)
///
/// Device    runs where x lives.
/// Special   how many elements there are depends on the mask, so masked_select and nonzero wait for the device to count them.
#pragma once

#include <situ/ops/cpu/select.hpp>
#include <situ/ops/formula_view.hpp>
#if defined(__CUDACC__)
#include <situ/ops/cuda/select.hpp>
#endif

namespace situ::inline SITU_ABI {
namespace error {
template <class Element>
struct a_mask_is_of_bools__as_in_x_greater_than_0 {};
}  // namespace error

namespace detail {

#if !defined(__CUDACC__)
inline namespace SITU_ABI_COMPILER {
#define SITU_NEEDS_NVCC(P) \
  static_assert(compiled_by_nvcc<P>, "situ: selecting_on_Cuda_needs_nvcc: this file is not compiled by nvcc; name it .cu, or move the tensor to the host")
template <class D>
void launch_count(cuda_kernels, bool const*, int64_t*, int64_t) {
  SITU_NEEDS_NVCC(D);
}
template <class D>
void launch_nonzero(cuda_kernels, int64_t*, bool const*, int64_t const*, Shape const&) {
  SITU_NEEDS_NVCC(D);
}
template <class D, class T, class E>
bool launch_select(cuda_kernels, T*, E const&, Tensor<bool, D> const&, int64_t const*) {
  SITU_NEEDS_NVCC(D);
  return true;
}
#undef SITU_NEEDS_NVCC
}  // namespace SITU_ABI_COMPILER
#endif

/// A mask of one shape, contiguous on D: itself where it is that.
template <class D, class M>
Tensor<bool, D> packed_mask(M const& mask, Shape const& shape) {
  if constexpr (std::is_same_v<M, Tensor<bool, D>>) {
    if (mask.is_contiguous() && mask.shape() == shape) return mask;
  }
  auto result = Tensor<bool, D>::uninitialized(shape, "mask");
  write_into(result, {result.layout(), 0}, mask);
  return result;
}

/// Where each block of a mask writes, and how many ones there are.
template <class D>
class MaskCount {
 public:
  explicit MaskCount(Tensor<bool, D> const& mask) : places_(static_cast<std::size_t>(select_blocks(mask.size()) + 1) * sizeof(int64_t)) {
    if (mask.size() == 0) return;
    launch_count<D>(typename device_traits<D>::kernels{}, mask.data(), places(), mask.size());
    device_traits<D>::copy_to_host(&total_, places() + select_blocks(mask.size()), sizeof total_);
  }
  int64_t* places() const { return static_cast<int64_t*>(places_.get()); }
  int64_t total() const { return total_; }

 private:
  Temporary<D> places_;
  int64_t total_ = 0;
};

/// The indices of the ones of a packed mask.
template <class D>
Tensor<int64_t, D> indices_of_ones(Tensor<bool, D> const& mask) {
  MaskCount<D> const count(mask);
  auto result = Tensor<int64_t, D>::uninitialized({count.total(), mask.rank()}, "nonzero");
  if (result.size() > 0) launch_nonzero<D>(typename device_traits<D>::kernels{}, result.data(), mask.data(), count.places(), mask.shape());
  return result;
}

}  // namespace detail

/// x with `value` where the mask is true: where(mask, value, x), of x's element type. A formula: fuses with what it is part of.
/// Shape     x and the mask broadcast.
/// Throws    TypeError for an integer that the element type does not hold.
/// Gradient  that of x: g where the mask is false, 0 elsewhere.
template <class X, class M, class V>
  requires(expression<X> && expression<M> && std::is_same_v<value_of<M>, bool> && number<V> && on_same_device<X, M> &&
           implicitly_converts_to<weak_t<value_of<X>, typename detail::canonical<V>::type>, value_of<X>>)
auto masked_fill(X const& x, M const& mask, V value) {
  using T = value_of<X>;
  return detail::make_map(functions::where{}, mask, detail::Constant<T>{detail::convert_scalar<compute_t<T>>(detail::convert_scalar<T>(detail::fitting<T>(value, "masked_fill")))}, x);
}
template <class X, class M, class V, class Error = detail::apart_t<X, M>>
void masked_fill(X const&, M const&, V) = delete;
template <class X, class M, class V, class Error = error::conversion_would_lose_values__use_cast<V, value_of<X>>>
  requires(expression<X> && expression<M> && number<V> && on_same_device<X, M> &&
           !implicitly_converts_to<weak_t<value_of<X>, typename detail::canonical<V>::type>, value_of<X>>)
void masked_fill(X const&, M const&, V) = delete;

/// The elements of x where the mask is true, in row-major order.
/// Shape     x and the mask broadcast; the result has one axis.
/// Cost      the mask is read twice and x once; a mask that is an expression is evaluated to one byte an element, an expression x
///           over contiguous tensors is computed as it is selected from.
/// Gradient  g's elements in their places, 0 elsewhere.
template <class X, class M>
  requires(expression<X> && expression<M> && std::is_same_v<value_of<M>, bool> && on_same_device<X, M>)
auto masked_select(X const& x, M const& mask) {
  using T = value_of<X>;
  using D = detail::result_device_t<device_of<X>>;
  using kernels = typename device_traits<D>::kernels;
  Shape const shape = detail::broadcast(x.shape(), mask.shape(), "masked_select");
  auto const packed = detail::packed_mask<D>(mask, shape);
  detail::MaskCount<D> const count(packed);
  auto result = Tensor<T, D>::uninitialized({count.total()}, "masked_select");
  if (count.total() == 0) return result;
  if (!detail::launch_select(kernels{}, result.data(), x, packed, count.places())) {
    auto whole = Tensor<T, D>::uninitialized(shape, "masked_select");
    detail::write_into(whole, {whole.layout(), 0}, x);
    (void)detail::launch_select(kernels{}, result.data(), whole, packed, count.places());
  }
  return result;
}
template <class X, class M, class Error = detail::apart_t<X, M>>
void masked_select(X const&, M const&) = delete;

// A mask of numbers.
template <any_formula X, expression M, class Error = error::a_mask_is_of_bools__as_in_x_greater_than_0<value_of<M>>>
  requires(!std::is_same_v<value_of<M>, bool>)
void masked_select(X const&, M const&) = delete;
template <any_formula X, expression M, number V, class Error = error::a_mask_is_of_bools__as_in_x_greater_than_0<value_of<M>>>
  requires(!std::is_same_v<value_of<M>, bool>)
void masked_fill(X const&, M const&, V) = delete;

/// The indices of the elements that are not 0, in row-major order: one row for each, one column for each axis.
/// Shape     [count, rank of x]; int64
/// Cost      x is read once and one byte an element written, which is read twice; a contiguous bool tensor is read as it is.
template <class X>
  requires expression<X>
auto nonzero(X const& x) {
  using D = detail::result_device_t<device_of<X>>;
  if constexpr (std::is_same_v<value_of<X>, bool>) return detail::indices_of_ones(detail::packed_mask<D>(x, x.shape()));
  else return detail::indices_of_ones(detail::packed_mask<D>(x != value_of<X>(0), x.shape()));
}

}  // namespace situ::inline SITU_ABI
