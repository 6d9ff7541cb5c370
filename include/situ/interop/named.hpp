/// What views for other libraries are made of: tensors that have a name, and so outlive the call.
#pragma once

#include <situ/tensor/tensor.hpp>

namespace situ::inline SITU_ABI {

namespace error {
template <class X>
struct a_view_is_made_of_a_Tensor_with_a_name__which_keeps_its_elements {};
}  // namespace error

namespace detail {

template <class X>
inline constexpr bool is_a_Tensor = false;
template <class T, class D>
inline constexpr bool is_a_Tensor<Tensor<T, D>> = true;

/// X of a parameter X&& that was given a Tensor by its name, const or not.
template <class X>
concept named_tensor = std::is_lvalue_reference_v<X> && is_a_Tensor<std::remove_cvref_t<X>>;

template <class X>
inline constexpr bool is_const_tensor = std::is_const_v<std::remove_reference_t<X>>;

/// The elements of x for another library: T const* of a const tensor, else T*. Throws TypeError for T* to read-only storage.
template <class T, class D>
T const* data_for(Tensor<T, D> const& x, char const*) {
  return x.data();
}
template <class T, class D>
T* data_for(Tensor<T, D>& x, char const* who) {
  StorageHead const* const head = x.storage_head();
  if (head && head->read_only) fail<TypeError>(who, ": the storage is read-only: it was given as a pointer to const; give std::as_const(x), or a clone() of it");
  return x.data();
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
