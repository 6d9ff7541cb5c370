/// Comparison of prototypes that are written by hand with those of a library's headers.
#pragma once

#include <type_traits>

namespace situ_test {

/// Whether values of both types are passed alike: pointers with pointers, numbers and enumerations with those of their size.
template <class A, class B>
constexpr bool passed_alike = std::is_same_v<A, B> || (std::is_pointer_v<A> && std::is_pointer_v<B>) ||
                              (!std::is_pointer_v<A> && !std::is_pointer_v<B> && std::is_floating_point_v<A> == std::is_floating_point_v<B> &&
                               sizeof(A) == sizeof(B));
template <class F, class G>
constexpr bool called_alike = false;
template <class R, class... As, class S, class... Bs>
  requires(sizeof...(As) == sizeof...(Bs))
constexpr bool called_alike<R (*)(As...), S (*)(Bs...)> = passed_alike<R, S> && (passed_alike<As, Bs> && ...);

}  // namespace situ_test
