/// Comparisons of whole tensors, and isclose.
#pragma once

#include <situ/ops/reduce.hpp>

namespace situ::inline SITU_ABI {
namespace functions {

/// |a - b| <= atol + rtol * |b|, or equal (infinities); see situ::isclose.
template <bool EqualNan>
struct isclose {
  static constexpr char const* name = "isclose";
  static constexpr int cost = 6;
  template <class A, class B, class R, class L>
  struct types {
    using result = bool;
    using common = floating_t<promote_t<A, B>>;
    template <int>
    using operand = common;
  };
  template <class X>
  SITU_HOST_DEVICE SITU_INLINE static auto value(X const& a, X const& b, X const& rtol, X const& atol) {
    auto const close = ((math::abs(a - b) <= atol + rtol * math::abs(b)) & math::isfinite(b) & math::isfinite(a)) | (a == b);
    if constexpr (EqualNan) return close | (math::isnan(a) & math::isnan(b));
    else return close;
  }
};

}  // namespace functions

/// What isclose and allclose allow; the defaults are PyTorch's and NumPy's.
struct close_options {
  double rtol = 1e-5;
  double atol = 1e-8;
  bool equal_nan = false;
};

namespace detail {
template <class E>
auto all_of(E const& e) -> bool {
  return e.size() == 0 || min(e).item();
}
/// Integers, and what they are compared with, in double, as tolerances are.
template <class E>
auto in_double(E const& e) {
  return cast<double>(e);
}
template <class C>
Constant<double> in_double(Constant<C> const& number) {
  return {static_cast<double>(number.value)};
}
template <bool EqualNan, class A, class B>
auto close_map(A const& a, B const& b, close_options const& allowed) {
  using T = promote_t<value_of<A>, value_of<B>>;
  using C = compute_t<T>;
  if constexpr (!floating<value_of<A>> || !floating<value_of<B>>) return close_map<EqualNan>(in_double(a), in_double(b), allowed);
  else return make_map(functions::isclose<EqualNan>{}, a, b, Constant<T>{static_cast<C>(allowed.rtol)}, Constant<T>{static_cast<C>(allowed.atol)});
}
template <class A, class B>
inline constexpr bool can_be_close = (expression<A> && number<B>) || (number<A> && expression<B>);
template <expression A, expression B>
inline constexpr bool can_be_close<A, B> = on_same_device<A, B>;
/// A number to compare elements of E with.
template <class E, number S>
auto number_compared(S value) {
  using C = std::conditional_t<floating<value_of<E>>, number_beside_t<true, value_of<E>, S>, double>;
  return Constant<C>{compute_scalar<C>(value)};
}
}  // namespace detail

/// Where |a - b| <= atol + rtol * |b|; equal infinities are close, NaN to nothing. Integers are compared as double, as in NumPy. One of the
/// operands may be a number: isclose(x, 1).
template <class A, class B>
  requires(expression<A> && expression<B> && on_same_device<A, B>)
auto isclose(A const& a, B const& b, close_options const& allowed = {}) {
  auto const close = detail::close_map<false>(a, b, allowed);
  return close || (isnan(a) && isnan(b) && allowed.equal_nan);
}
template <class A, number B>
  requires expression<A>
auto isclose(A const& a, B b, close_options const& allowed = {}) {
  auto const close = detail::close_map<false>(a, detail::number_compared<A>(b), allowed);
  return close || (isnan(a) && (allowed.equal_nan && math::isnan(static_cast<double>(b))));
}
template <number A, class B>
  requires expression<B>
auto isclose(A a, B const& b, close_options const& allowed = {}) {
  auto const close = detail::close_map<false>(detail::number_compared<B>(a), b, allowed);
  return close || (isnan(b) && (allowed.equal_nan && math::isnan(static_cast<double>(a))));
}

/// Whether all elements are close, after broadcasting; true for no elements. One of the operands may be a number. Waits for the device.
template <class A, class B>
  requires(expression<A> && expression<B> && on_same_device<A, B>)
bool allclose(A const& a, B const& b, close_options const& allowed = {}) {
  return allowed.equal_nan ? detail::all_of(detail::close_map<true>(a, b, allowed)) : detail::all_of(detail::close_map<false>(a, b, allowed));
}

template <class A, number B>
  requires expression<A>
bool allclose(A const& a, B b, close_options const& allowed = {}) {
  return detail::all_of(isclose(a, b, allowed));
}
template <number A, class B>
  requires expression<B>
bool allclose(A a, B const& b, close_options const& allowed = {}) {
  return detail::all_of(isclose(a, b, allowed));
}

/// The same with the tolerances in the order in which NumPy and PyTorch take them.
template <class A, class B>
  requires detail::can_be_close<A, B>
auto isclose(A const& a, B const& b, double rtol, double atol = close_options{}.atol, bool equal_nan = false) {
  return isclose(a, b, close_options{rtol, atol, equal_nan});
}
template <class A, class B>
  requires detail::can_be_close<A, B>
bool allclose(A const& a, B const& b, double rtol, double atol = close_options{}.atol, bool equal_nan = false) {
  return allclose(a, b, close_options{rtol, atol, equal_nan});
}

/// Whether shapes and all elements are equal; NaN equals nothing. Waits for the device.
template <class A, class B>
  requires(expression<A> && expression<B> && on_same_device<A, B>)
bool equal(A const& a, B const& b) {
  return a.shape() == b.shape() && detail::all_of(a == b);
}

template <class A, class B, class Error = error::operands_on_different_devices__move_one_with_to<device_of<A>, device_of<B>>>
  requires(expression<A> && expression<B> && !on_same_device<A, B>)
void isclose(A const&, B const&, close_options const& = {}) = delete;
template <class A, class B, class Error = error::operands_on_different_devices__move_one_with_to<device_of<A>, device_of<B>>>
  requires(expression<A> && expression<B> && !on_same_device<A, B>)
void isclose(A const&, B const&, double, double = 0, bool = false) = delete;
template <class A, class B, class Error = error::operands_on_different_devices__move_one_with_to<device_of<A>, device_of<B>>>
  requires(expression<A> && expression<B> && !on_same_device<A, B>)
void allclose(A const&, B const&, close_options const& = {}) = delete;
template <class A, class B, class Error = error::operands_on_different_devices__move_one_with_to<device_of<A>, device_of<B>>>
  requires(expression<A> && expression<B> && !on_same_device<A, B>)
void allclose(A const&, B const&, double, double = 0, bool = false) = delete;
template <class A, class B, class Error = error::operands_on_different_devices__move_one_with_to<device_of<A>, device_of<B>>>
  requires(expression<A> && expression<B> && !on_same_device<A, B>)
void equal(A const&, B const&) = delete;

}  // namespace situ::inline SITU_ABI
