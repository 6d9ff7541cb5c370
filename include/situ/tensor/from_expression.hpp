/// How expressions become tensors: by construction, implicit where nothing is lost and nothing moves.
#pragma once

#include <situ/core/storage.hpp>
#include <situ/expr/evaluate.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// Whether values of E may become elements of T on D without being asked.
template <class E, class T, class D>
concept becomes = expression<E> && mixes_with<device_of<E>, D> && implicitly_converts_to<value_of<E>, T>;

/// The constructors of Tensor<T, D> that take expressions, and the handle that they fill. They stand apart from Tensor, so that
/// they take no part in deducing its arguments: `Tensor y = e;` has the element type and the device of e.
template <class T, class D>
class FromExpression {
 public:
  FromExpression() = default;

  /// Evaluates an expression on its own device, into one kernel and one allocation.
  template <class E>
    requires(becomes<E, T, D> && !std::is_same_v<std::remove_cvref_t<E>, Tensor<T, D>>)
  FromExpression(E&& e) {
    handle_ = make_fresh<D>(static_cast<std::size_t>(count_of(e.shape(), "Tensor", sizeof(T))) * sizeof(T), Layout(e.shape()));
    evaluate<D>(static_cast<T*>(handle_.body()->first), handle_.body()->layout, true, e);
  }
  /// An expression of another device: direct initialisation is explicit, so it transfers.
  template <class U, class From>
    requires(!mixes_with<From, D> && implicitly_converts_to<U, T>)
  explicit FromExpression(Tensor<U, From> const& from) : handle_(convert_and_transfer<T, D>(from).handle()) {}
  template <class Op, class... Es>
    requires(!mixes_with<device_of<Map<Op, Es...>>, D> && implicitly_converts_to<value_of<Map<Op, Es...>>, T>)
  explicit FromExpression(Map<Op, Es...> const& from) : handle_(convert_and_transfer<T, D>(evaluated(from)).handle()) {}
  /// Without direct initialisation it does not compile.
  template <class E, class Error = error::conversion_across_devices_is_explicit__use_to<D, device_of<E>>>
    requires(expression<E> && !mixes_with<device_of<E>, D>)
  FromExpression(E const&) = delete;
  template <class E, class Error = error::conversion_would_lose_values__use_cast<value_of<E>, T>>
    requires(expression<E> && mixes_with<device_of<E>, D> && !implicitly_converts_to<value_of<E>, T>)
  FromExpression(E&&) = delete;

 protected:
  Handle handle_;
};

}  // namespace detail
}  // namespace situ::inline SITU_ABI
