/// Views of formulas: the same formula over views of its operands, so that arranging an expression computes nothing.
#pragma once

#include <situ/tensor/tensor.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// What a view of an expression is: the tensor type for a tensor, the same formula for a formula.
template <class E>
using view_of_t = std::remove_cvref_t<E>;

/// A tensor, broadcast to `whole`, seen through f, which maps a layout to a view of it.
template <class T, class D, class F>
Tensor<T, D> view_of(Tensor<T, D> const& leaf, Shape const& whole, F const& f) {
  Viewed const view = f(leaf.shape() == whole ? leaf.layout() : expanded(leaf.layout(), whole));
  T* const first = const_cast<T*>(leaf.data());
  return Tensor<T, D>::from_handle(make_view(leaf.storage(), first ? first + view.offset : nullptr, view.layout));
}
template <class T, class F>
Constant<T> view_of(Constant<T> const& constant, Shape const&, F const&) {
  return constant;
}
template <class Op, class... Es, class F>
Map<Op, Es...> view_of(Map<Op, Es...> const& formula, Shape const& whole, F const& f);

template <class F>
Fields<> view_of(Fields<> const&, Shape const&, F const&) {
  return {};
}
template <class E, class... Es, class F>
Fields<E, Es...> view_of(Fields<E, Es...> const& fields, Shape const& whole, F const& f) {
  return {view_of(fields.head, whole, f), view_of(fields.tail, whole, f)};
}
template <class Op, class... Es, class F>
Map<Op, Es...> view_of(Map<Op, Es...> const& formula, Shape const& whole, F const& f) {
  Fields<Es...> operands = view_of(formula.operands, whole, f);
  Shape const* shape = nullptr;  // all tensors of the formula have it now
  for_each_leaf(operands, [&](auto const& leaf) { shape = &leaf.shape(); });
  return Map<Op, Es...>(Op(formula.op), static_cast<Fields<Es...>&&>(operands), CommonShape(shape));
}

/// A view of an expression: f maps a layout of e's shape to a view of it, by its strides alone.
template <class E, class F>
view_of_t<E> view_of(E const& e, F const& f) {
  return view_of(e, Shape(e.shape()), f);
}

/// Writes the values of e into a view of a tensor that nobody else knows yet: any element type that e promotes to.
template <class T, class D, class E>
void write_into(Tensor<T, D> const& result, Viewed const& where, E const& e) {
  if (where.layout.size() == 0) return;
  evaluate<D>(const_cast<T*>(result.data()) + where.offset, where.layout, where.layout.is_contiguous(), e);
}

/// The device that results of these expressions live on.
template <class... Es>
using result_device_of = result_device_t<typename common_device<device_of<Es>...>::type>;

template <class... Es>
concept on_one_device = all_mix<device_of<Es>...>::value;

/// The message about expressions on devices that do not mix; none for anything else, so that other overloads are tried.
template <class... Es>
struct apart {};
template <class... Es>
  requires(expression<Es> && ...)
struct apart<Es...> : different_devices<device_of<Es>...> {};
template <class... Es>
using apart_t = typename apart<Es...>::type;

}  // namespace detail
}  // namespace situ::inline SITU_ABI
