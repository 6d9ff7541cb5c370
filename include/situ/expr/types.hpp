/// Typing rules of elementwise functions: from the operands' element types to what they are converted to, and to the
/// element type of the result.
#pragma once

#include <situ/core/scalar.hpp>
#include <situ/expr/pack.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

template <class... Ts>
struct promoted {
  using type = void;  // of none: clang 14 asks before it knows that it does not want to know
};
template <class T>
struct promoted<T> {
  using type = T;
};
template <class T, class U, class... Rest>
struct promoted<T, U, Rest...> : promoted<promote_t<T, U>, Rest...> {};
template <class... Ts>
using promoted_t = typename promoted<Ts...>::type;

/// All operands promote together, the result is of that type: `+`, minimum.
template <class... Ts>
struct arithmetic {
  using result = promoted_t<Ts...>;
  template <int>
  using operand = result;
};

/// As arithmetic, for what bools have not: `-`, `%`, pow. (Of bools it goes on with numbers, so that this is the only error.)
template <class... Ts>
struct numeric {
  static_assert(!std::is_same_v<promoted_t<Ts...>, bool>,
                "situ: bool tensors have no - % << >> floor_divide fmod pow; use ^ or !, or make numbers of them: cast<int32_t>(x)");
  using result = std::conditional_t<std::is_same_v<promoted_t<Ts...>, bool>, int32_t, promoted_t<Ts...>>;
  template <int>
  using operand = result;
};

/// As numeric, for what integers compute in floats that hold them: `%`.
template <class... Ts>
struct division : numeric<Ts...> {
  using computed = std::conditional_t<(sizeof(promoted_t<Ts...>) < 4), float, double>;
};

/// As arithmetic, in float when all operands are integers: `/`, exp.
template <class... Ts>
struct real_valued {
  using result = floating_t<promoted_t<Ts...>>;
  template <int>
  using operand = result;
};

/// Compared as their promoted type, bool results: `<`, isnan.
template <class... Ts>
struct predicate {
  using result = bool;
  template <int>
  using operand = promoted_t<Ts...>;
};

/// bool operands, bool result: `&&`.
template <class... Ts>
struct logical {
  using result = bool;
  template <int>
  using operand = bool;
};

/// Integers or bools, which promote together: `&`. (Of floats it goes on with integers, as numeric does of bools.)
template <class... Ts>
struct bitwise {
  static_assert((!floating<Ts> && ...), "situ: bitwise operators take integer and bool tensors; cast<int32_t>(x) makes one");
  using result = std::conditional_t<floating<promoted_t<Ts...>>, int32_t, promoted_t<Ts...>>;
  template <int>
  using operand = result;
};

/// Integers, which promote together: `<<`.
template <class... Ts>
struct shifts : numeric<typename bitwise<Ts...>::result> {};

/// A bool, then operands that promote together: where.
template <class M, class... Ts>
struct choice {
  using result = promoted_t<Ts...>;
  template <int K>
  using operand = std::conditional_t<K == 0, bool, result>;
};

/// The arithmetic type of one lane of X: of a pack, or of a scalar in a CUDA thread.
template <class X>
struct lane_value {
  using type = X;
};
template <class T, int N, class Isa>
struct lane_value<pack<T, N, Isa>> {
  using type = T;
};
template <int B, int N, class Isa>
struct lane_value<lane_mask<B, N, Isa>> {
  using type = bool;
};
template <class X>
using lane_value_t = typename lane_value<X>::type;
template <class X>
inline constexpr bool integer_lanes = std::is_integral_v<lane_value_t<X>> && !std::is_same_v<lane_value_t<X>, bool>;
template <class X>
inline constexpr bool bool_lanes = std::is_same_v<lane_value_t<X>, bool>;

/// A type whose element type holds all values of the integer type S, but the upper half of the 64-bit ones: they count as the greatest integer.
template <class S>
using holding_t = std::conditional_t<std::is_unsigned_v<S> && sizeof(S) == 2, int32_t, std::conditional_t<std::is_unsigned_v<S> && sizeof(S) == 4, int64_t, S>>;

/// The element type that a number of type S takes beside operands of type T. Comparisons are made in a type that
/// holds both, so that `bytes < 300` is what it says.
template <bool Compares, class T, class S>
using number_beside_t = std::conditional_t<Compares && std::is_integral_v<T> && std::is_integral_v<S>,
                                           promote_t<T, typename canonical<holding_t<S>>::type>, weak_t<T, typename canonical<S>::type>>;

/// A number as a comparison takes it, of type C.
template <class C, class S>
constexpr C compared_number(S const& value) {
  if constexpr (std::is_same_v<C, int64_t> && std::is_unsigned_v<S> && sizeof(S) == 8) return value > S{INT64_MAX} ? INT64_MAX : static_cast<C>(value);
  else return convert_scalar<C>(value);
}

/// A bound as the nearest number of type C: an integer beyond its range counts as the end of it.
template <class C, class S>
constexpr compute_t<C> bound_number(S const& value) {
  if constexpr (std::is_integral_v<C>) {
    int const side = side_of<C>(value);
    if (side != 0) return side < 0 ? std::numeric_limits<C>::min() : std::numeric_limits<C>::max();
  }
  return compute_scalar<C>(value);
}

/// The type of an expression made of numbers alone, as in where(mask, 1, 0): float or int64.
template <class S>
using number_alone_t = std::conditional_t<std::is_floating_point_v<S>, float,
                                          std::conditional_t<std::is_integral_v<S> && !std::is_same_v<S, bool>, int64_t, S>>;

}  // namespace detail
}  // namespace situ::inline SITU_ABI
