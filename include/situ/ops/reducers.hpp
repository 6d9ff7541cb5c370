/// What a reduction computes, apart from how it walks memory.
///
/// A *reducer* of elements T has an `accumulator` (trivially copyable), `identity()`, `step(a, x, index)` that takes one element in,
/// `merge(a, b)` of two parts of which a comes first, and `finish(a, count)` that gives the `result`; where it says
/// `using parameter = void;`, `finish(a, count, p)` is also given the number that the caller chose. The CPU's kernels run lanes
/// of `element` at once, by `combine` of packs, and merge short parts as `total`: sums of floats go on in double there.
/// Reducers that keep more than one number are *centred* (see `variance`).
#pragma once

#include <situ/expr/lane_functions.hpp>
#include <situ/expr/lanes.hpp>

namespace situ::inline SITU_ABI {
namespace reducers {

/// What sums are kept in: integers in 64 bits, 16-bit floats in float.
template <class T>
using sum_t = std::conditional_t<floating<T>, compute_t<T>, int64_t>;

/// Σ x. Integers and bools give int64.
template <class T>
struct sum {
  static constexpr char const* name = "sum";
  static constexpr bool empty_is_defined = true;
  using element = sum_t<T>;
  using accumulator = element;
  using total = std::conditional_t<floating<T>, double, int64_t>;
  using result = std::conditional_t<floating<T>, T, int64_t>;
  SITU_HOST_DEVICE static constexpr accumulator identity() { return accumulator(0); }
  SITU_HOST_DEVICE static accumulator step(accumulator a, element x, int64_t) { return detail::added(a, x); }
  SITU_HOST_DEVICE static accumulator merge(accumulator a, accumulator b) { return detail::added(a, b); }
  template <class A>
  SITU_HOST_DEVICE static result finish(A a, int64_t) {
    return detail::convert_scalar<result>(a);
  }
  template <class X>
  SITU_INLINE static X combine(X const& a, X const& b) {
    return detail::added(a, b);
  }
};

/// Σ x / n; integers give float. The mean of nothing is NaN.
template <class T>
struct mean : sum<T> {
  static constexpr char const* name = "mean";
  using element = std::conditional_t<floating<T>, compute_t<T>, double>;
  using accumulator = element;
  using total = double;
  using result = floating_t<T>;
  SITU_HOST_DEVICE static constexpr accumulator identity() { return accumulator(0); }
  SITU_HOST_DEVICE static accumulator step(accumulator a, element x, int64_t) { return a + x; }
  SITU_HOST_DEVICE static accumulator merge(accumulator a, accumulator b) { return a + b; }
  template <class A>
  SITU_HOST_DEVICE static result finish(A a, int64_t count) {
    return detail::convert_scalar<result>(a / static_cast<A>(count));
  }
};

/// sqrt(Σ x) of squares x.
template <class T>
struct root_of_sum : sum<T> {
  static constexpr char const* name = "norm";
  using result = T;
  template <class A>
  SITU_HOST_DEVICE static result finish(A a, int64_t) {
    return detail::convert_scalar<result>(math::sqrt(a));
  }
};

/// (Σ x)^(1/p) of powers x = |v|^p; p = 0: how many v are not 0, which is their sum.
template <class T>
struct root_of_powers : sum<T> {
  static constexpr char const* name = "norm";
  using parameter = void;
  using result = T;
  template <class A>
  SITU_HOST_DEVICE static result finish(A a, int64_t, double p) {
    if (p == 0 || p == 1) return detail::convert_scalar<result>(a);
    return detail::convert_scalar<result>(math::pow(a, static_cast<A>(1 / p)));
  }
};

/// Π x. Integers and bools give int64; floats are multiplied in double, so that partial products may leave their range.
template <class T>
struct prod {
  static constexpr char const* name = "prod";
  static constexpr bool empty_is_defined = true;
  using element = std::conditional_t<floating<T>, double, int64_t>;
  using accumulator = element;
  using total = element;
  using result = std::conditional_t<floating<T>, T, int64_t>;
  SITU_HOST_DEVICE static constexpr accumulator identity() { return accumulator(1); }
  SITU_HOST_DEVICE static accumulator step(accumulator a, element x, int64_t) { return detail::multiplied(a, x); }
  SITU_HOST_DEVICE static accumulator merge(accumulator a, accumulator b) { return detail::multiplied(a, b); }
  SITU_HOST_DEVICE static result finish(accumulator a, int64_t) { return detail::convert_scalar<result>(a); }
  template <class X>
  SITU_INLINE static X combine(X const& a, X const& b) {
    return detail::multiplied(a, b);
  }
};

/// How many of the truth values are true: a few at a time in 32 bits, then in 64.
struct count_true {
  static constexpr char const* name = "count_nonzero";
  static constexpr bool empty_is_defined = true;
  using element = int32_t;
  using accumulator = int64_t;
  using total = int64_t;
  using result = int64_t;
  SITU_HOST_DEVICE static constexpr accumulator identity() { return 0; }
  SITU_HOST_DEVICE static accumulator step(accumulator a, element x, int64_t) { return a + x; }
  SITU_HOST_DEVICE static accumulator merge(accumulator a, accumulator b) { return a + b; }
  SITU_HOST_DEVICE static result finish(accumulator a, int64_t) { return a; }
  template <class X>
  SITU_INLINE static X combine(X const& a, X const& b) {
    return detail::added(a, b);
  }
};

/// What is no less, and no greater, than any T. Variables, because device code may not call std::numeric_limits.
template <class T>
inline constexpr T greatest_value = std::is_floating_point_v<T> ? std::numeric_limits<T>::infinity() : std::numeric_limits<T>::max();
template <class T>
inline constexpr T least_value = std::is_floating_point_v<T> ? static_cast<T>(-std::numeric_limits<T>::infinity()) : std::numeric_limits<T>::lowest();

/// The smallest element; NaN where there is one.
template <class T>
struct min {
  static constexpr char const* name = "min";
  static constexpr bool empty_is_defined = false;
  using element = std::conditional_t<std::is_same_v<T, bool>, uint8_t, compute_t<T>>;
  using accumulator = element;
  using total = element;
  using result = T;
  static constexpr int extremum = -1;
  SITU_HOST_DEVICE static constexpr accumulator identity() {
    return greatest_value<element>;
  }
  SITU_HOST_DEVICE static accumulator step(accumulator a, element x, int64_t) { return math::minimum(a, x); }
  SITU_HOST_DEVICE static accumulator merge(accumulator a, accumulator b) { return math::minimum(a, b); }
  SITU_HOST_DEVICE static result finish(accumulator a, int64_t) { return detail::convert_scalar<result>(a); }
  template <class X>
  SITU_INLINE static X combine(X const& a, X const& b) {
    return math::minimum(a, b);
  }
};

/// The largest element; NaN where there is one.
template <class T>
struct max : min<T> {
  static constexpr char const* name = "max";
  static constexpr int extremum = 1;
  using typename min<T>::element;
  using typename min<T>::accumulator;
  SITU_HOST_DEVICE static constexpr accumulator identity() {
    return least_value<element>;
  }
  SITU_HOST_DEVICE static accumulator step(accumulator a, element x, int64_t) { return math::maximum(a, x); }
  SITU_HOST_DEVICE static accumulator merge(accumulator a, accumulator b) { return math::maximum(a, b); }
  template <class X>
  SITU_INLINE static X combine(X const& a, X const& b) {
    return math::maximum(a, b);
  }
};

/// Whether any truth value is true, whether all are; of none: false, true.
struct any : max<bool> {
  static constexpr char const* name = "any";
  static constexpr bool empty_is_defined = true;
  template <class X>
  SITU_INLINE static X combine(X const& a, X const& b) {
    return static_cast<X>(a | b);
  }
};
struct all : min<bool> {
  static constexpr char const* name = "all";
  static constexpr bool empty_is_defined = true;
  template <class X>
  SITU_INLINE static X combine(X const& a, X const& b) {
    return static_cast<X>(a & b);
  }
};
/// The same of what is computed in wider registers than bytes fill: comparisons, mostly.
template <bool All>
struct truth_of_formula {
  static constexpr char const* name = All ? "all" : "any";
  static constexpr bool empty_is_defined = true;
  using element = int32_t;
  using accumulator = int32_t;
  using total = int32_t;
  using result = bool;
  SITU_HOST_DEVICE static constexpr accumulator identity() { return All; }
  SITU_HOST_DEVICE static accumulator step(accumulator a, element x, int64_t) { return combine(a, x); }
  SITU_HOST_DEVICE static accumulator merge(accumulator a, accumulator b) { return combine(a, b); }
  SITU_HOST_DEVICE static result finish(accumulator a, int64_t) { return a != 0; }
  template <class X>
  SITU_HOST_DEVICE SITU_INLINE static X combine(X const& a, X const& b) {
    if constexpr (All) return a & b;
    else return a | b;
  }
};
template <class E>
using any_of = std::conditional_t<requires(E const& e) { e.operands; }, truth_of_formula<false>, any>;
template <class E>
using all_of = std::conditional_t<requires(E const& e) { e.operands; }, truth_of_formula<true>, all>;

/// The norm for p = inf: the largest of magnitudes; for p = -inf, of which the negated magnitudes are given, the smallest one.
template <class T>
struct extreme_magnitude : max<T> {
  static constexpr char const* name = "norm";
  using parameter = void;
  using typename max<T>::accumulator;
  SITU_HOST_DEVICE static T finish(accumulator a, int64_t, double sign) { return detail::convert_scalar<T>(a * static_cast<accumulator>(sign)); }
};

/// An element and where it stands in the order of the reduced axes.
template <class T>
struct indexed {
  T value;
  int64_t index;  ///< -1: none yet
};

/// The index of the first largest (Sign = 1) or smallest (Sign = -1) element; the first NaN where there is one.
template <class T, int Sign>
struct arg_extremum {
  static constexpr char const* name = Sign > 0 ? "argmax" : "argmin";
  static constexpr int sign = Sign;
  static constexpr bool order_matters = true;
  static constexpr bool empty_is_defined = false;
  using element = std::conditional_t<std::is_same_v<T, bool>, uint8_t, compute_t<T>>;
  using accumulator = indexed<element>;
  using total = accumulator;
  using result = int64_t;
  SITU_HOST_DEVICE static constexpr accumulator identity() { return {element(0), -1}; }
  /// Whether x beats the best so far when it comes later: NaN beats all but NaN.
  SITU_HOST_DEVICE static bool beats(element x, element best) {
    if constexpr (std::is_floating_point_v<element>) {
      bool const x_is_nan = math::isnan(x), best_is_nan = math::isnan(best);
      if (x_is_nan || best_is_nan) return x_is_nan && !best_is_nan;
    }
    return Sign > 0 ? x > best : x < best;
  }
  /// Whether it might, in one comparison: always where one is NaN.
  SITU_HOST_DEVICE static bool may_beat(element x, element best) { return !(Sign > 0 ? x <= best : x >= best); }
  /// For may_beat, what has to be beaten where `best` was found: of a NaN, which nothing beats, infinity.
  SITU_HOST_DEVICE static element bar_of(element best) {
    if constexpr (std::is_floating_point_v<element>) {
      if (math::isnan(best)) return static_cast<element>(Sign > 0 ? __builtin_inff() : -__builtin_inff());
    }
    return best;
  }
  SITU_HOST_DEVICE static accumulator step(accumulator a, element x, int64_t index) {
    return a.index < 0 || beats(x, a.value) ? accumulator{x, index} : a;
  }
  SITU_HOST_DEVICE static accumulator merge(accumulator a, accumulator b) {
    if (a.index < 0) return b;
    if (b.index < 0) return a;
    if (beats(b.value, a.value)) return b;
    if (beats(a.value, b.value)) return a;
    return a.index < b.index ? a : b;
  }
  SITU_HOST_DEVICE static result finish(accumulator a, int64_t) { return a.index; }
};
template <class T>
using argmax = arg_extremum<T, 1>;
template <class T>
using argmin = arg_extremum<T, -1>;

}  // namespace reducers
}  // namespace situ::inline SITU_ABI
