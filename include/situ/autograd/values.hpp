/// What functions without a gradient give of what records: whole-tensor comparisons, the places of elements, tensors of the same shape,
/// descriptions. They read the values; shapes, types, options and errors are those of the functions of tensors.
///
///     allclose(v, t);   nonzero(v > 0);   unique(v);   zeros_like(v);   explain(v * 2);   eval(v * 2)
///
/// Device    where the values live; operands on different devices do not compile.
/// Gradient  none: the results are Tensors, bools and texts. eval keeps the history.
#pragma once

#include <situ/autograd/operands.hpp>
#include <situ/expr/explain.hpp>
#include <situ/ops/compare.hpp>
#include <situ/ops/searchsorted.hpp>
#include <situ/ops/select.hpp>
#include <situ/ops/unique.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// Operands of which one records at least.
template <class A, class B>
concept recorded_pair = any_formula<A> && any_formula<B> && (differentiable<A> || differentiable<B>);

}  // namespace detail

/// A formula that records, as the Variable that it becomes; a Variable as it is. Its gradient is that of the formula.
template <class E>
  requires differentiable<E>
auto eval(E const& e) {
  return detail::recorded(e);
}

#define SITU_VALUES_OF_TWO(NAME)                                                                                              \
  template <class A, class B, class... Options>                                                                               \
    requires(detail::recorded_pair<A, B> && on_same_device<A, B>)                                                             \
  auto NAME(A const& a, B const& b, Options const&... options) {                                                              \
    return NAME(detail::values_of(a), detail::values_of(b), options...);                                                      \
  }                                                                                                                           \
  template <class A, class B, class... Options, class Error = detail::different_devices_of<A, B>>                             \
    requires(detail::recorded_pair<A, B> && !on_same_device<A, B>)                                                            \
  void NAME(A const&, B const&, Options const&...) = delete;
SITU_VALUES_OF_TWO(equal)
SITU_VALUES_OF_TWO(searchsorted)
#undef SITU_VALUES_OF_TWO

// With the tolerance spelled out, so that it can be written in braces.
#define SITU_CLOSE_VALUES(NAME)                                                                  \
  template <class A, class B>                                                                    \
    requires(detail::recorded_pair<A, B> && on_same_device<A, B>)                                \
  auto NAME(A const& a, B const& b, close_options const& allowed = {}) {                         \
    return NAME(detail::values_of(a), detail::values_of(b), allowed);                            \
  }                                                                                              \
  template <class A, number B>                                                                   \
    requires differentiable<A>                                                                   \
  auto NAME(A const& a, B b, close_options const& allowed = {}) {                                \
    return NAME(detail::values_of(a), b, allowed);                                               \
  }                                                                                              \
  template <number A, class B>                                                                   \
    requires differentiable<B>                                                                   \
  auto NAME(A a, B const& b, close_options const& allowed = {}) {                                \
    return NAME(a, detail::values_of(b), allowed);                                               \
  }                                                                                              \
  template <class A, class B, class Error = detail::different_devices_of<A, B>>                  \
    requires(detail::recorded_pair<A, B> && !on_same_device<A, B>)                               \
  void NAME(A const&, B const&, close_options const& = {}) = delete;
SITU_CLOSE_VALUES(isclose)
SITU_CLOSE_VALUES(allclose)
#undef SITU_CLOSE_VALUES

#define SITU_VALUES_OF(NAME)                         \
  template <class E, class... Options>               \
    requires differentiable<E>                       \
  auto NAME(E const& x, Options const&... options) { \
    return NAME(detail::values_of(x), options...);   \
  }
SITU_VALUES_OF(nonzero)
SITU_VALUES_OF(unique)
SITU_VALUES_OF(unique_counts)
SITU_VALUES_OF(unique_inverse)
SITU_VALUES_OF(unique_all)
SITU_VALUES_OF(empty_like)
SITU_VALUES_OF(zeros_like)
SITU_VALUES_OF(ones_like)
SITU_VALUES_OF(full_like)
SITU_VALUES_OF(explain)
#undef SITU_VALUES_OF

}  // namespace situ::inline SITU_ABI
