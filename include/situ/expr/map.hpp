/// cast, and user-defined elementwise functions.
#pragma once

#include <situ/expr/lanes.hpp>
#include <situ/expr/node.hpp>
#include <situ/expr/types.hpp>

namespace situ::inline SITU_ABI {
namespace functions {

/// Conversion to U; see situ::cast.
template <class U>
struct cast {
  static constexpr char const* name = "cast";
  static constexpr int cost = 1;
  template <class T>
  struct types {
    using result = U;
    template <int>
    using operand = T;
  };
  template <class X>
  SITU_HOST_DEVICE SITU_INLINE static X value(X const& x) {
    return x;  // the evaluator converts what a function returns to its result type
  }
  template <class X, class Y>
  SITU_HOST_DEVICE SITU_INLINE static X derivative(X const&, Y const&) {
    return X(detail::lane_value_t<X>(1));
  }
};
template <class Op>
inline constexpr bool is_cast = false;
template <class U>
inline constexpr bool is_cast<cast<U>> = true;

}  // namespace functions

/// The elements converted to U: floats are truncated towards zero when U is an integer type, saturate at its ends, and NaN
/// becomes 0; integers wrap; anything but 0 is true; 16-bit floats are rounded to nearest even, here and now.
template <element U, any_formula E>
auto cast(E&& x) {
  return detail::make_map(functions::cast<U>{}, static_cast<E&&>(x));
}

namespace detail {

/// How F is called: an entry of its own `F::value(x...)`, or a callable.
template <class F, class... Xs>
concept has_static_value = requires(Xs const&... x) { std::remove_cvref_t<F>::value(x...); };

template <class F, class... Xs>
struct map_result;
template <class F, class... Xs>
  requires has_static_value<F, Xs...>
struct map_result<F, Xs...> {
  using type = std::remove_cvref_t<decltype(F::value(std::declval<Xs const&>()...))>;
};
template <class F, class... Xs>
  requires(!has_static_value<F, Xs...> && requires(F const& f, Xs const&... x) { f(x...); })
struct map_result<F, Xs...> {
  using type = std::remove_cvref_t<decltype(std::declval<F const&>()(std::declval<Xs const&>()...))>;
};

template <class F, class... Xs>
concept maps = requires { typename map_result<F, Xs...>::type; } && element<typename canonical<typename map_result<F, Xs...>::type>::type>;

template <int K, class T, class... Ts>
struct nth_type : nth_type<K - 1, Ts...> {};
template <class T, class... Ts>
struct nth_type<0, T, Ts...> {
  using type = T;
};

/// What explain calls a user's function: its `name` where it has one.
template <class F>
constexpr char const* name_of_function() {
  if constexpr (requires { std::string(F::name); }) return F::name;
  else return "map";
}

template <class F>
inline constexpr bool wants_packs = requires { typename F::packed; };

/// Partial derivative number K among those that a derivative gave: one by itself, or several in Fields or in anything tuple-like.
template <int K, class P, class... Ps>
SITU_HOST_DEVICE SITU_INLINE auto const& partial(Fields<P, Ps...> const& partials) {
  if constexpr (K == 0) return partials.head;
  else return partial<K - 1>(partials.tail);
}
template <int K, class P>
SITU_HOST_DEVICE SITU_INLINE decltype(auto) partial(P const& partials) {
  if constexpr (requires { get<K>(partials); }) return get<K>(partials);
  else return (partials);
}

/// Whether F says its derivative, of elements and of its value.
template <class F, class... Xs>
concept has_derivative = requires(Xs const&... x) { std::remove_cvref_t<F>::derivative(x...); };

/// What a function of elements costs, in tens of picoseconds: a user's is taken for a light one.
template <class F>
inline constexpr int cost_of_function = 20;

}  // namespace detail

namespace functions {

/// A user's function of elements; see situ::map.
template <class F>
struct mapped {
  static constexpr char const* name = detail::name_of_function<F>();
  static constexpr int cost = detail::cost_of_function<F>;
  template <class... Ts>
  struct types {
    using result = typename detail::canonical<typename detail::map_result<F, Ts...>::type>::type;
    template <int K>
    using operand = typename detail::nth_type<K, Ts...>::type;
  };

  F f;

  // How elements convert to what a user's function takes is the user's affair, not a warning about situ.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wdouble-promotion"
  template <class... Xs>
  SITU_INLINE auto call(Xs const&... x) const {
    if constexpr (detail::has_static_value<F, Xs...>) return F::value(x...);
    else return f(x...);
  }
#pragma GCC diagnostic pop

#if defined(__CUDACC__)
  /// Device only, so that a function that cannot run on the device is an error at compile time.
  template <class... Xs>
  SITU_DEVICE auto device_value(Xs const&... x) const {
    static_assert(!std::is_pointer_v<F>, "situ: map on Cuda takes a function object or an extended lambda: a pointer is to the host's function");
    if constexpr (detail::has_static_value<F, Xs...>) return F::value(x...);
    else return f(x...);
  }
  template <class... Xs>
  SITU_DEVICE auto device_derivative(Xs const&... x) const {
    return F::derivative(x...);
  }
#endif

  /// Host only: N lanes at once on opt-in, else one lane after the other.
  template <class R, int N, class Isa, class... Ts, class... Xs>
  SITU_INLINE detail::lanes_t<R, N, Isa> lanes_value(std::type_identity<detail::Fields<Ts...>>, Xs const&... x) const {
    if constexpr (detail::wants_packs<F>) {
      return detail::convert_lanes<R, R, Isa, N>(call(x...));
    } else {
      using U = std::conditional_t<std::is_same_v<R, bool>, int8_t, compute_t<R>>;
      alignas(64) U results[N];
      for (int k = 0; k < N; ++k) results[k] = static_cast<U>(static_cast<compute_t<R>>(call(detail::lane<Ts>(x, k)...)));
      if constexpr (std::is_same_v<R, bool>) return pack<int8_t, N, Isa>::load(results) != pack<int8_t, N, Isa>(int8_t{0});
      else return pack<U, N, Isa>::load(results);
    }
  }

  /// Host only: the partial derivatives of N lanes, in Fields, from the value and the operands.
  template <int N, class Isa, class R, class... Ts, class Y, class... Xs>
  SITU_INLINE auto lanes_derivative(std::type_identity<detail::Fields<R, Ts...>>, Y const& y, Xs const&... x) const {
    if constexpr (!detail::has_derivative<F, Ts..., R>) {
      return detail::fields_of((static_cast<void>(x), pack<compute_t<R>, N, Isa>(compute_t<R>(0)))...);  // refused elsewhere, with a message
    } else if constexpr (detail::wants_packs<F>) {
      return F::derivative(x..., y);
    } else {
      alignas(64) compute_t<R> slopes[sizeof...(Ts)][N];
      for (int k = 0; k < N; ++k) slopes_of_lane<R>(slopes, k, std::make_index_sequence<sizeof...(Ts)>{}, detail::lane<Ts>(x, k)..., detail::lane<R>(y, k));
      return loaded_slopes<N, Isa>(slopes, std::make_index_sequence<sizeof...(Ts)>{});
    }
  }

 private:
  template <class R, int Count, int N, std::size_t... Is, class... Xs>
  SITU_INLINE static void slopes_of_lane(compute_t<R> (&slopes)[Count][N], int k, std::index_sequence<Is...>, Xs const&... x) {
    auto const partials = F::derivative(x...);
    ((slopes[Is][k] = static_cast<compute_t<R>>(detail::partial<static_cast<int>(Is)>(partials))), ...);
  }
  template <int N, class Isa, class U, int Count, std::size_t... Is>
  SITU_INLINE static auto loaded_slopes(U const (&slopes)[Count][N], std::index_sequence<Is...>) {
    return detail::fields_of(pack<U, N, Isa>::load(slopes[Is])...);
  }
};
template <class Op>
inline constexpr bool is_mapped = false;
template <class F>
inline constexpr bool is_mapped<mapped<F>> = true;

}  // namespace functions

namespace detail {

/// The type and value of an operand of map: numbers keep the element type of their C++ type, or have one that holds its values.
template <class X>
struct map_operand {
  using type = typename canonical<holding_t<std::remove_cvref_t<X>>>::type;
};
template <any_formula X>
struct map_operand<X> {
  using type = value_of<X>;
};
template <class X>
using map_operand_t = typename map_operand<X>::type;

template <class... Ds>
struct all_mix {
  static constexpr bool value = true;
};
template <class D, class... Ds>
struct all_mix<D, Ds...> {
  static constexpr bool value = (may_mix<D, Ds> && ...) && all_mix<Ds...>::value;
};

}  // namespace detail

/// f applied to every element of broadcast operands: a lambda, a function, a function object, or an entry with `static value`.
///
///     y_i = f(a_i, b_i, ...)
///
/// f gets scalars of the operands' element types and returns any element type; it must be pure. What it throws on the host reaches the
/// caller, and results are then half written; on a device it must not throw. A type that says `using packed = void;` is called
/// with `pack`s on the CPU and with scalars on CUDA. On `Cuda` f is a function
/// object at namespace scope whose operator() is SITU_HOST_DEVICE, or an extended lambda.
/// Shape     operands broadcast; ShapeError names both shapes when they do not.
/// Cost      fuses like every other function; without packs, one call per element.
template <class F, class... Xs>
  requires((any_formula<Xs> || ...) && ((any_formula<Xs> || number<std::remove_cvref_t<Xs>>)&&...) &&
           detail::all_mix<detail::operand_device_t<Xs>...>::value &&
           detail::maps<std::decay_t<F>, detail::map_operand_t<Xs>...>)
auto map(F&& f, Xs&&... xs) {
  auto held = []<class X>(X&& x) -> decltype(auto) {
    if constexpr (any_formula<X>) return static_cast<X&&>(x);
    else {
      using T = detail::map_operand_t<X>;
      return detail::Constant<T>{detail::convert_scalar<compute_t<T>>(x)};
    }
  };
  return detail::make_map(functions::mapped<std::decay_t<F>>{static_cast<F&&>(f)}, held(static_cast<Xs&&>(xs))...);
}
template <class F, class... Xs, class Error = detail::different_devices_of<Xs...>>
  requires(((any_formula<Xs> || number<std::remove_cvref_t<Xs>>)&&...) && !detail::all_mix<detail::operand_device_t<Xs>...>::value)
void map(F&&, Xs&&...) = delete;
template <class F, class... Xs, class Error = error::map_takes_a_function_of_the_operands_elements_that_returns_an_element<std::decay_t<F>>>
  requires((any_formula<Xs> || ...) && ((any_formula<Xs> || number<std::remove_cvref_t<Xs>>)&&...) &&
           detail::all_mix<detail::operand_device_t<Xs>...>::value &&
           !detail::maps<std::decay_t<F>, detail::map_operand_t<Xs>...>)
void map(F&&, Xs&&...) = delete;

}  // namespace situ::inline SITU_ABI
