/// Elementwise functions and operators: one entry each, with its value and its derivative.
///
/// An entry is a functor type in `situ::functions`: `value(x...)` computes lanes from lanes and serves packs on the CPU
/// and scalars on CUDA; `derivative(x..., y)` gives dy/dx (for several operands, one after the other in `Fields`), of
/// which y = value(x...). `types` is its typing rule (expr/types.hpp), `cost` its weight in tens of picoseconds.
/// Conventions at kinks follow PyTorch: relu'(0) = 0, abs'(0) = 0, minimum and maximum share the gradient at ties,
/// clamp passes it inside the closed interval.
///
/// Shape     operands broadcast as in NumPy; ShapeError names both shapes when they do not.
/// Dtype     operands promote (array API); numbers are weak; real functions of integers give float.
/// Device    all operands on one device (Pinned mixes with Cpu); anything else does not compile.
/// Cost      nothing until the expression becomes a tensor; then one kernel for the whole of it.
#pragma once

#include <situ/expr/lane_functions.hpp>
#include <situ/expr/math.hpp>
#include <situ/expr/node.hpp>
#include <situ/expr/types.hpp>

#if defined(__CUDACC__)
#pragma nv_diagnostic push
#pragma nv_diag_suppress 20011, 20012, 20013, 20014, 20015
#endif

namespace situ::inline SITU_ABI {

namespace functions {
struct minimum;
struct maximum;
}  // namespace functions

namespace detail {

template <class L, class R>
concept operand_pair = (any_formula<L> && (any_formula<R> || number<std::remove_cvref_t<R>>)) ||
                       (any_formula<R> && number<std::remove_cvref_t<L>>);

/// An operand as a node holds it: expressions as they are, numbers as constants beside T. What may be the result is rounded once.
template <class Op, class T, class X>
SITU_INLINE decltype(auto) operand(X&& x) {
  constexpr bool compares = requires { Op::compares; };
  using S = std::remove_cvref_t<X>;
  if constexpr (any_formula<X>) return static_cast<X&&>(x);
  else {
    using C = number_beside_t<compares, T, S>;
    if constexpr (compares) return Constant<C>{convert_scalar<compute_t<C>>(compared_number<C>(x))};  // as the tensor would hold it
    else if constexpr (is_one_of<Op, functions::minimum, functions::maximum>) return Constant<C>{bound_number<C>(x)};
    else return Constant<C>{convert_scalar<compute_t<C>>(x)};
  }
}

template <class Op, class L, class R>
SITU_INLINE auto make_binary(L&& l, R&& r) {
  if constexpr (any_formula<L> && any_formula<R>) return make_map(Op{}, static_cast<L&&>(l), static_cast<R&&>(r));
  else if constexpr (any_formula<L>) return make_map(Op{}, static_cast<L&&>(l), operand<Op, value_of<L>>(r));
  else return make_map(Op{}, operand<Op, value_of<R>>(l), static_cast<R&&>(r));
}

}  // namespace detail

#define SITU_VALUE SITU_HOST_DEVICE SITU_INLINE static auto value
#define SITU_DERIVATIVE SITU_HOST_DEVICE SITU_INLINE static auto derivative

// NAME(x): VALUE and DERIVATIVE are formulas in x, and y = NAME(x).
#define SITU_UNARY(NAME, TYPES, COST, VALUE, DERIVATIVE)                                            \
  namespace functions {                                                                             \
  struct NAME {                                                                                     \
    static constexpr char const* name = #NAME;                                                      \
    static constexpr int cost = COST;                                                               \
    template <class... Ts>                                                                          \
    using types = detail::TYPES<Ts...>;                                                             \
    template <class X>                                                                              \
    SITU_VALUE([[maybe_unused]] X const& x) {                                                       \
      return VALUE;                                                                                 \
    }                                                                                               \
    template <class X, class Y>                                                                     \
    SITU_DERIVATIVE([[maybe_unused]] X const& x, [[maybe_unused]] Y const& y) {                     \
      using T [[maybe_unused]] = detail::lane_value_t<X>;                                           \
      return DERIVATIVE;                                                                            \
    }                                                                                               \
  };                                                                                                \
  }                                                                                                 \
  template <any_formula E>                                                                           \
  SITU_INLINE auto NAME(E&& x) {                                                                    \
    return detail::make_map(functions::NAME{}, static_cast<E&&>(x));                                \
  }

// The functor of a function of two operands a, b: DA and DB are the partial derivatives.
#define SITU_BINARY_FUNCTOR(NAME, TEXT, TYPES, COST, VALUE, DA, DB)                                 \
  namespace functions {                                                                             \
  struct NAME {                                                                                     \
    static constexpr char const* name = TEXT;                                                       \
    static constexpr int cost = COST;                                                               \
    template <class... Ts>                                                                          \
    using types = detail::TYPES<Ts...>;                                                             \
    template <class X, class Z>                                                                     \
    SITU_VALUE(X const& a, Z const& b) {                                                            \
      return VALUE;                                                                                 \
    }                                                                                               \
    template <class X, class Y>                                                                     \
    SITU_DERIVATIVE([[maybe_unused]] X const& a, [[maybe_unused]] X const& b,                       \
                    [[maybe_unused]] Y const& y) {                                                  \
      using T [[maybe_unused]] = detail::lane_value_t<X>;                                           \
      return detail::fields_of(DA, DB);                                                             \
    }                                                                                               \
  };                                                                                                \
  }

// A function (or operator) of two operands, and the deleted twin that carries the message about devices.
#define SITU_BINARY_NAME(FUNCTION, FUNCTOR)                                                         \
  template <class L, class R>                                                                       \
    requires(detail::operand_pair<L, R> && on_same_device<L, R>)                                    \
  SITU_INLINE auto FUNCTION(L&& l, R&& r) {                                                                     \
    return detail::make_binary<functions::FUNCTOR>(static_cast<L&&>(l), static_cast<R&&>(r));       \
  }                                                                                                 \
  template <class L, class R,                                                                       \
            class Error = error::operands_on_different_devices__move_one_with_to<device_of<L>, device_of<R>>> \
    requires(any_formula<L> && any_formula<R> && !on_same_device<L, R>)                               \
  void FUNCTION(L&&, R&&) = delete;

#define SITU_BINARY(NAME, TYPES, COST, VALUE, DA, DB)             \
  SITU_BINARY_FUNCTOR(NAME, #NAME, TYPES, COST, VALUE, DA, DB)    \
  SITU_BINARY_NAME(NAME, NAME)

#define SITU_OPERATOR(SYMBOL, NAME, TYPES, COST, VALUE, DA, DB)                \
  SITU_BINARY_FUNCTOR(NAME, "operator" #SYMBOL, TYPES, COST, VALUE, DA, DB)    \
  SITU_BINARY_NAME(operator SYMBOL, NAME)

// Comparisons, logical and bitwise operators have no derivative.
#define SITU_DISCRETE(SYMBOL, NAME, TYPES, EXTRA, VALUE)                                            \
  namespace functions {                                                                             \
  struct NAME {                                                                                     \
    static constexpr char const* name = "operator" #SYMBOL;                                         \
    static constexpr int cost = 1;                                                                  \
    EXTRA template <class... Ts>                                                                    \
    using types = detail::TYPES<Ts...>;                                                             \
    template <class X, class Z>                                                                     \
    SITU_VALUE(X const& a, Z const& b) {                                                            \
      return VALUE;                                                                                 \
    }                                                                                               \
  };                                                                                                \
  }                                                                                                 \
  SITU_BINARY_NAME(operator SYMBOL, NAME)


// ---- arithmetic ---------------------------------------------------------------------------------------------------

SITU_OPERATOR(+, add, arithmetic, 1, sum_of(a, b), X(T(1)), X(T(1)))
SITU_OPERATOR(-, subtract, numeric, 1, difference_of(a, b), X(T(1)), X(T(-1)))
SITU_OPERATOR(*, multiply, arithmetic, 1, product_of(a, b), b, a)
/// True division: integers give float.
SITU_OPERATOR(/, divide, real_valued, 4, a / b, X(T(1)) / b, -(y / b))
/// The remainder with the divisor's sign, as Python's %; an integer divisor of 0 gives 0. Of an infinite divisor (half of which is the same) it is the
/// dividend or the divisor.
SITU_OPERATOR(%, remainder, division, 20, math::remainder(a, b), X(T(1)),
              select(b == b * X(T(0.5)), select(y == b, X(T(1)), y - y), -math::floor((a - y) / b + X(T(0.5)))))
SITU_BINARY_NAME(remainder, remainder)
/// The whole number of times that b goes into a, rounded down, which a % b is the rest of, as in Python and PyTorch: 2 // 0.001 is 1999, where
/// floor(2 / 0.001) is 2000. An integer divisor of 0 gives 0.
SITU_BINARY(floor_divide, division, 10, math::floor_divide(a, b), X(T(0)), X(T(0)))
/// The remainder with the dividend's sign, as C's fmod.
SITU_BINARY(fmod, division, 20, math::fmod(a, b), X(T(1)), -math::trunc(a / b))
/// The smaller one; NaN where either is NaN.
SITU_BINARY(minimum, arithmetic, 2, minimum_of(a, b), tie_share(a > b, a == b, X(T(1))), tie_share(b > a, a == b, X(T(1))))
/// The larger one; NaN where either is NaN.
SITU_BINARY(maximum, arithmetic, 2, maximum_of(a, b), tie_share(a < b, a == b, X(T(1))), tie_share(b < a, a == b, X(T(1))))
/// a to the power of b, with C99's special cases; integers to a negative power give 0 unless a is 1 or -1.
SITU_BINARY(pow, numeric, 80, power_of(a, b),
            select(b == X(T(0)), X(T(0)), b * math::pow(a, b - X(T(1)))),
            exponent_slope(a, b, y * math::log(a)))
/// The angle of the point (b, a) from the first axis, in [-pi, pi].
SITU_BINARY(atan2, real_valued, 60, math::atan2(a, b), b / square_or_one(a, b), -(a / square_or_one(a, b)))
/// sqrt(a*a + b*b) without overflow.
SITU_BINARY(hypot, real_valued, 20, math::hypot(a, b), a / y, b / y)
/// x where x > 0, slope * x elsewhere.
SITU_BINARY(leaky_relu, arithmetic, 3, select(a > X(detail::lane_value_t<X>(0)), a, a * b), select(a > X(T(0)), X(T(1)), b),
            select(a > X(T(0)), X(T(0)), a))
/// x where x > 0, alpha * expm1(x) elsewhere.
SITU_BINARY(elu, real_valued, 40, math::elu(a, b), select(a > X(T(0)), X(T(1)), b * math::exp(select(a > X(T(0)), X(T(0)), a))),
            select(a > X(T(0)), X(T(0)), math::expm1(a)))

// ---- comparisons, logic, bits -------------------------------------------------------------------------------------

#define SITU_COMPARES static constexpr bool compares = true;
SITU_DISCRETE(==, equal_to, predicate, SITU_COMPARES, same_lanes(a, b))
SITU_DISCRETE(!=, not_equal_to, predicate, SITU_COMPARES, !same_lanes(a, b))
SITU_DISCRETE(<, less, predicate, SITU_COMPARES, less_lanes(a, b))
SITU_DISCRETE(<=, less_equal, predicate, SITU_COMPARES, less_equal_lanes(a, b))
SITU_DISCRETE(>, greater, predicate, SITU_COMPARES, less_lanes(b, a))
SITU_DISCRETE(>=, greater_equal, predicate, SITU_COMPARES, less_equal_lanes(b, a))
#undef SITU_COMPARES
/// Elementwise: both sides are evaluated.
SITU_DISCRETE(&&, logical_and, logical, , a & b)
SITU_DISCRETE(||, logical_or, logical, , a | b)
SITU_DISCRETE(&, bitwise_and, bitwise, , a & b)
SITU_DISCRETE(|, bitwise_or, bitwise, , a | b)
SITU_DISCRETE(^, bitwise_xor, bitwise, , a ^ b)
SITU_DISCRETE(<<, shift_left, shifts, , detail::shifted_left(a, b))
SITU_DISCRETE(>>, shift_right, shifts, , detail::shifted_right(a, b))

// ---- functions of one operand -------------------------------------------------------------------------------------

#define SITU_CONSTANT(VALUE) X(static_cast<T>(VALUE))

/// -x; integers wrap.
namespace functions {
struct negative {
  static constexpr char const* name = "operator-";
  static constexpr int cost = 1;
  template <class... Ts>
  using types = detail::numeric<Ts...>;
  template <class X>
  SITU_VALUE(X const& x) {
    return negative_of(x);
  }
  template <class X, class Y>
  SITU_DERIVATIVE(X const&, Y const&) {
    return X(detail::lane_value_t<X>(-1));
  }
};
/// Not, of truth values (numbers: x == 0).
struct logical_not {
  static constexpr char const* name = "operator!";
  static constexpr int cost = 1;
  template <class... Ts>
  using types = detail::logical<Ts...>;
  template <class X>
  SITU_VALUE(X const& x) {
    return !x;
  }
};
/// All bits inverted; not, of bools.
struct bitwise_not {
  static constexpr char const* name = "operator~";
  static constexpr int cost = 1;
  template <class... Ts>
  using types = detail::bitwise<Ts...>;
  template <class X>
  SITU_VALUE(X const& x) {
    if constexpr (detail::bool_lanes<X>) return !x;
    else return ~x;
  }
};
}  // namespace functions
/// x itself, as in PyTorch: of a tensor a handle to the same storage.
template <any_formula E>
std::remove_cvref_t<E> operator+(E&& x) {
  static_assert(!std::is_same_v<value_of<E>, bool>, "situ: bool tensors have no + of one operand; make numbers of them: cast<int32_t>(x)");
  return static_cast<E&&>(x);
}
template <any_formula E>
auto operator-(E&& x) {
  return detail::make_map(functions::negative{}, static_cast<E&&>(x));
}
template <any_formula E>
auto operator!(E&& x) {
  return detail::make_map(functions::logical_not{}, static_cast<E&&>(x));
}
template <any_formula E>
auto operator~(E&& x) {
  return detail::make_map(functions::bitwise_not{}, static_cast<E&&>(x));
}

SITU_UNARY(abs, arithmetic, 1, abs_of(x), math::sign(x))
/// -1, 0 or 1; NaN of NaN.
SITU_UNARY(sign, arithmetic, 2, sign_of(x), SITU_CONSTANT(0))
SITU_UNARY(square, arithmetic, 1, product_of(x, x), x + x)
/// 1/x; integers give float.
SITU_UNARY(reciprocal, real_valued, 4, X(detail::lane_value_t<X>(1)) / x, -(y * y))
SITU_UNARY(exp, real_valued, 25, math::exp(x), y)
SITU_UNARY(exp2, real_valued, 25, math::exp2(x), y * SITU_CONSTANT(0.69314718055994530942))
/// exp(x) - 1 without cancellation.
SITU_UNARY(expm1, real_valued, 30, math::expm1(x), y + SITU_CONSTANT(1))
SITU_UNARY(log, real_valued, 30, math::log(x), SITU_CONSTANT(1) / x)
SITU_UNARY(log2, real_valued, 30, math::log2(x), SITU_CONSTANT(1.44269504088896340736) / x)
SITU_UNARY(log10, real_valued, 30, math::log10(x), SITU_CONSTANT(0.43429448190325182765) / x)
/// log(1 + x) without cancellation.
SITU_UNARY(log1p, real_valued, 30, math::log1p(x), SITU_CONSTANT(1) / (x + SITU_CONSTANT(1)))
SITU_UNARY(sqrt, real_valued, 8, math::sqrt(x), SITU_CONSTANT(0.5) / y)
/// 1/sqrt(x)
SITU_UNARY(rsqrt, real_valued, 12, math::rsqrt(x), SITU_CONSTANT(-0.5) * y / x)
SITU_UNARY(sin, real_valued, 40, math::sin(x), math::cos(x))
SITU_UNARY(cos, real_valued, 40, math::cos(x), -math::sin(x))
SITU_UNARY(tan, real_valued, 60, math::tan(x), SITU_CONSTANT(1) + y * y)
SITU_UNARY(asin, real_valued, 40, math::asin(x), math::rsqrt(SITU_CONSTANT(1) - x * x))
SITU_UNARY(acos, real_valued, 40, math::acos(x), -math::rsqrt(SITU_CONSTANT(1) - x * x))
SITU_UNARY(atan, real_valued, 40, math::atan(x), SITU_CONSTANT(1) / (SITU_CONSTANT(1) + x * x))
SITU_UNARY(sinh, real_valued, 50, math::sinh(x), math::cosh(x))
SITU_UNARY(cosh, real_valued, 50, math::cosh(x), math::sinh(x))
SITU_UNARY(tanh, real_valued, 40, math::tanh(x), SITU_CONSTANT(1) - y * y)
SITU_UNARY(asinh, real_valued, 60, math::asinh(x), math::rsqrt(x * x + SITU_CONSTANT(1)))
SITU_UNARY(acosh, real_valued, 60, math::acosh(x), math::rsqrt(x * x - SITU_CONSTANT(1)))
SITU_UNARY(atanh, real_valued, 60, math::atanh(x), SITU_CONSTANT(1) / (SITU_CONSTANT(1) - x * x))
SITU_UNARY(erf, real_valued, 60, math::erf(x), SITU_CONSTANT(1.12837916709551257390) * math::exp(-(x * x)))
/// 1 - erf(x) without cancellation.
SITU_UNARY(erfc, real_valued, 80, math::erfc(x), SITU_CONSTANT(-1.12837916709551257390) * math::exp(-(x * x)))
// Derivatives of log|Gamma| only: of order n of digamma.
SITU_BINARY_FUNCTOR(polygamma, "polygamma", real_valued, 1000, detail::polygamma(a, b), detail::polygamma(a, b + X(T(1))), X(T(0)))
/// log|Gamma(x)|
SITU_UNARY(lgamma, real_valued, 400, math::lgamma(x), math::digamma(x))
/// 1 / (1 + exp(-x))
SITU_UNARY(sigmoid, real_valued, 40, math::sigmoid(x), y * (SITU_CONSTANT(1) - y))
SITU_UNARY(relu, arithmetic, 1, maximum_of(x, X(detail::lane_value_t<X>(0))), detail::on_its_own(select(x <= SITU_CONSTANT(0), SITU_CONSTANT(0), SITU_CONSTANT(1))))
/// x * sigmoid(x)
SITU_UNARY(silu, real_valued, 40, math::silu(x), silu_slope(x))
/// log(1 + exp(x))
SITU_UNARY(softplus, real_valued, 60, math::softplus(x), math::sigmoid(x))
/// x * Phi(x), with Phi(x) = (1 + erf(x / sqrt 2)) / 2, the distribution function of the normal distribution.
SITU_UNARY(gelu, real_valued, 60, math::gelu(x), gelu_slope(x))
/// x * (1 + tanh(u)) / 2, with u = sqrt(2 / pi) * (x + 0.044715 x^3).
SITU_UNARY(gelu_tanh, real_valued, 50, math::gelu_tanh(x), gelu_tanh_slope(x))
SITU_UNARY(floor, arithmetic, 2, floor_of(x), SITU_CONSTANT(0))
SITU_UNARY(ceil, arithmetic, 2, ceil_of(x), SITU_CONSTANT(0))
/// To the nearest integer, halves to even.
SITU_UNARY(round, arithmetic, 2, round_of(x), SITU_CONSTANT(0))
SITU_UNARY(trunc, arithmetic, 2, trunc_of(x), SITU_CONSTANT(0))

/// Selects the tanh form: gelu(x, approximate_tanh).
struct approximate_tanh_t {};
inline constexpr approximate_tanh_t approximate_tanh{};
template <any_formula E>
auto gelu(E&& x, approximate_tanh_t) {
  return gelu_tanh(static_cast<E&&>(x));
}

/// leaky_relu(x) with PyTorch's slope of 0.01; elu(x) with alpha = 1.
template <any_formula E>
auto leaky_relu(E&& x) {
  return leaky_relu(static_cast<E&&>(x), 0.01);
}
template <any_formula E>
auto elu(E&& x) {
  return elu(static_cast<E&&>(x), 1.0);
}

#define SITU_PREDICATE(NAME, OF_INTEGERS)                                                                   \
  namespace functions {                                                                                     \
  struct NAME {                                                                                             \
    static constexpr char const* name = #NAME;                                                              \
    static constexpr int cost = 1;                                                                          \
    template <class... Ts>                                                                                  \
    using types = detail::predicate<Ts...>;                                                                 \
    template <class X>                                                                                      \
    SITU_VALUE(X const& x) {                                                                                \
      if constexpr (std::is_floating_point_v<detail::lane_value_t<X>>) return math::NAME(x);                \
      else return decltype(same_lanes(x, x))(OF_INTEGERS);                                                  \
    }                                                                                                       \
  };                                                                                                        \
  }                                                                                                         \
  template <any_formula E>                                                                                   \
  auto NAME(E&& x) {                                                                                        \
    return detail::make_map(functions::NAME{}, static_cast<E&&>(x));                                        \
  }
SITU_PREDICATE(isnan, false)
SITU_PREDICATE(isinf, false)
SITU_PREDICATE(isfinite, true)
#undef SITU_PREDICATE

// ---- functions of three operands ----------------------------------------------------------------------------------

#define SITU_TERNARY_FUNCTOR(NAME, TYPES, COST, VALUE, DA, DB, DC)                                          \
  namespace functions {                                                                                     \
  struct NAME {                                                                                             \
    static constexpr char const* name = #NAME;                                                              \
    static constexpr int cost = COST;                                                                       \
    template <class... Ts>                                                                                  \
    using types = detail::TYPES<Ts...>;                                                                     \
    template <class A, class B, class C>                                                                    \
    SITU_VALUE(A const& a, B const& b, C const& c) {                                                        \
      return VALUE;                                                                                         \
    }                                                                                                       \
    template <class A, class X, class Y>                                                                    \
    SITU_DERIVATIVE([[maybe_unused]] A const& a, [[maybe_unused]] X const& b, [[maybe_unused]] X const& c,  \
                    [[maybe_unused]] Y const& y) {                                                          \
      using T [[maybe_unused]] = detail::lane_value_t<X>;                                                   \
      return detail::fields_of(DA, DB, DC);                                                                 \
    }                                                                                                       \
  };                                                                                                        \
  }

SITU_TERNARY_FUNCTOR(where, choice, 1, chosen(a, b, c), SITU_CONSTANT(0), one_where<X>(a), SITU_CONSTANT(1) - one_where<X>(a))
SITU_TERNARY_FUNCTOR(clamp, arithmetic, 2, minimum_of(maximum_of(a, b), c),
                     select(a >= b, one_where<X>(a <= c), SITU_CONSTANT(0)), select(a < b, one_where<X>(b < c), SITU_CONSTANT(0)),
                     select(a > c, SITU_CONSTANT(1), one_where<X>(b > c)))
SITU_TERNARY_FUNCTOR(lerp, real_valued, 2, lerp_of(a, b, c), SITU_CONSTANT(1) - c, c, b - a)

namespace detail {

template <class X>
concept operand_like = any_formula<X> || number<std::remove_cvref_t<X>>;

/// The type that numbers among operands stand beside: that of the expressions, promoted.
template <class... Xs>
struct beside {
  using type = void;
};
template <class X, class... Xs>
struct beside<X, Xs...> {
  using rest = typename beside<Xs...>::type;
  static auto pick() {
    if constexpr (!any_formula<X>) return std::type_identity<rest>{};
    else if constexpr (std::is_void_v<rest>) return std::type_identity<value_of<X>>{};
    else return std::type_identity<promote_t<value_of<X>, rest>>{};
  }
  using type = typename decltype(pick())::type;
};

/// As beside; for two numbers alone, their common type.
template <class B, class C>
struct where_context : beside<B, C> {};
template <class B, class C>
  requires(!any_formula<B> && !any_formula<C>)
struct where_context<B, C> {
  using type = number_alone_t<std::common_type_t<std::remove_cvref_t<B>, std::remove_cvref_t<C>>>;
};

/// Operands after the first ones that were given: numbers become constants of the common type, which may be the result.
template <class Context, class Op = void, class X>
SITU_INLINE decltype(auto) operand_among(X&& x) {
  if constexpr (any_formula<X>) return static_cast<X&&>(x);
  else {
    using C = number_beside_t<false, Context, std::remove_cvref_t<X>>;
    if constexpr (std::is_same_v<Op, functions::clamp>) return Constant<C>{bound_number<C>(x)};
    else return Constant<C>{compute_scalar<C>(x)};
  }
}

template <class A, class B, class C>
concept one_device_of_three = on_same_device<A, B> && on_same_device<A, C> && on_same_device<B, C>;

}  // namespace detail

#define SITU_TERNARY_NAME(NAME, FIRST, ...)                                                                          \
  template <class A, class B, class C>                                                                               \
    requires((any_formula<A> || any_formula<B> || any_formula<C>)&&detail::operand_like<A> && detail::operand_like<B> && \
             detail::operand_like<C> && detail::one_device_of_three<A, B, C>)                                        \
  auto NAME(A&& a, B&& b, C&& c) {                                                                                   \
    using Context = __VA_ARGS__;                                                                                        \
    return detail::make_map(functions::NAME{}, FIRST, detail::operand_among<Context, functions::NAME>(static_cast<B&&>(b)), \
                            detail::operand_among<Context, functions::NAME>(static_cast<C&&>(c)));                   \
  }                                                                                                                  \
  template <class A, class B, class C, class Error = detail::different_devices_of<A, B, C>>                          \
    requires((any_formula<A> || any_formula<B> || any_formula<C>)&&detail::operand_like<A> && detail::operand_like<B> && \
             detail::operand_like<C> && !detail::one_device_of_three<A, B, C>)                                       \
  void NAME(A&&, B&&, C&&) = delete;

/// b where the condition a is true, c elsewhere; the condition may be of any element type (0 is false).
SITU_TERNARY_NAME(where, detail::operand_among<bool>(static_cast<A&&>(a)), typename detail::where_context<B, C>::type)
/// min(max(a, b), c): a limited to the interval [b, c].
SITU_TERNARY_NAME(clamp, (detail::operand_among<Context, functions::clamp>(static_cast<A&&>(a))), typename detail::beside<A, B, C>::type)
/// a + c * (b - a), exact at c = 0 and c = 1.
SITU_TERNARY_NAME(lerp, detail::operand_among<Context>(static_cast<A&&>(a)), typename detail::beside<A, B, C>::type)

#undef SITU_TERNARY_NAME
#undef SITU_TERNARY_FUNCTOR
#undef SITU_CONSTANT
}  // namespace situ::inline SITU_ABI

#undef SITU_UNARY
#undef SITU_BINARY
#undef SITU_BINARY_NAME
#undef SITU_BINARY_FUNCTOR
#undef SITU_OPERATOR
#undef SITU_DISCRETE
#undef SITU_VALUE
#undef SITU_DERIVATIVE
#if defined(__CUDACC__)
#pragma nv_diagnostic pop
#endif
