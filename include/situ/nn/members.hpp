/// What modules are made of: the kinds of members, the types of their parameters, their device, and whether SITU_MODULE lists them all.
#pragma once

#include <array>
#include <concepts>
#include <optional>
#include <string>
#include <vector>

#include <situ/autograd/record.hpp>
#include <situ/core/list.hpp>

namespace situ::inline SITU_ABI {

namespace error {
template <class Model, class Input>
struct the_model_and_its_input_are_on_different_devices__move_one_with_to;
}  // namespace error

namespace nn {

/// A count that belongs to a module's state, such as the number of batches seen: int64 of no axes in a file, shared by copies of the module.
class Counter {
 public:
  Counter() { set(0); }
  int64_t value() const { return value_.item(); }
  void set(int64_t value) const { Tensor<int64_t>(value_).data()[0] = value; }
  /// Its tensor, which shares the storage.
  Tensor<int64_t> const& tensor() const { return value_; }
  Counter clone() const {
    Counter result;
    result.set(value());
    return result;
  }

 private:
  Tensor<int64_t> value_ = empty<int64_t>({});
};

/// The first argument of a constructor that makes a module of its members, all of them, in the order of SITU_MODULE: what a module that is no
/// aggregate needs for to(net, device).
struct from_members_t {};
inline constexpr from_members_t from_members{};

}  // namespace nn

namespace detail {

template <class... Ms>
struct Types {
  static constexpr int count = sizeof...(Ms);
};
template <class... Ms>
Types<Ms...> types_of(Ms const&...);

}  // namespace detail

/// What has a SITU_MODULE.
template <class M>
concept any_module = requires { typename std::remove_cvref_t<M>::situ_member_types; };

namespace detail {

// ---- what a member is --------------------------------------------------------------------------------------------------

template <class X>
inline constexpr bool is_parameter = false;
template <class T, class D>
inline constexpr bool is_parameter<Variable<T, D>> = true;
template <class X>
inline constexpr bool is_buffer = std::is_same_v<X, nn::Counter>;
template <class T, class D>
inline constexpr bool is_buffer<Tensor<T, D>> = true;
template <class X>
inline constexpr bool is_optional = false;
template <class X>
inline constexpr bool is_optional<std::optional<X>> = true;
/// The elements' type of a vector or an array.
template <class X>
struct element_of_several {};
template <class X, class A>
struct element_of_several<std::vector<X, A>> : std::type_identity<X> {};
template <class X, std::size_t N>
struct element_of_several<std::array<X, N>> : std::type_identity<X> {};
template <class X>
concept several = requires { typename element_of_several<X>::type; };

/// Whether there is state in an X: whether a visit has to look into it.
template <class X>
inline constexpr bool holds_state = any_module<X> || is_parameter<X> || is_buffer<X>;
template <class X>
inline constexpr bool holds_state<std::optional<X>> = holds_state<X>;
template <several X>
inline constexpr bool holds_state<X> = holds_state<typename element_of_several<X>::type>;

// ---- the types of all parameters ---------------------------------------------------------------------------------------------

template <class List, class X>
struct with_type;
template <class... Xs, class X>
struct with_type<Types<Xs...>, X> : std::conditional<(std::is_same_v<Xs, X> || ...), Types<Xs...>, Types<Xs..., X>> {};

/// List, and the parameters' types of X which are not yet in it.
template <class List, class X>
struct parameter_types_in : std::type_identity<List> {};
template <class List, class T, class D>
struct parameter_types_in<List, Variable<T, D>> : with_type<List, Variable<T, D>> {};
template <class List, class X>
struct parameter_types_in<List, std::optional<X>> : parameter_types_in<List, X> {};
template <class List, several X>
struct parameter_types_in<List, X> : parameter_types_in<List, typename element_of_several<X>::type> {};
template <class List, class Members>
struct parameter_types_in_all : std::type_identity<List> {};
template <class List, class M, class... Ms>
struct parameter_types_in_all<List, Types<M, Ms...>> : parameter_types_in_all<typename parameter_types_in<List, M>::type, Types<Ms...>> {};
template <class List, any_module X>
struct parameter_types_in<List, X> : parameter_types_in_all<List, typename X::situ_member_types> {};

/// The Variable that the parameters of a module are; Variable<float, Cpu> for one that has none.
template <class List>
struct one_parameter_type {
  static_assert(List::count <= 1, "situ::parameters: this module has parameters of several types; name one, as in parameters<float>(net)");
  using type = Variable<float, Cpu>;
};
template <class V>
struct one_parameter_type<Types<V>> : std::type_identity<V> {};
template <class M>
using parameter_type = typename one_parameter_type<typename parameter_types_in<Types<>, M>::type>::type;
template <class M, class T>
struct parameter_type_of_dtype;
template <class List, class T>
struct one_of_dtype : std::type_identity<Variable<T, Cpu>> {};
template <class U, class D, class... Vs, class T>
struct one_of_dtype<Types<Variable<U, D>, Vs...>, T>
    : std::conditional_t<std::is_same_v<U, T>, std::type_identity<Variable<T, D>>, one_of_dtype<Types<Vs...>, T>> {};

// ---- the device ------------------------------------------------------------------------------------------------------------

struct no_device {};
template <class X>
struct device_of_member : std::type_identity<no_device> {};
template <class T, class D>
struct device_of_member<Variable<T, D>> : std::type_identity<D> {};
template <class T, class D>
struct device_of_member<Tensor<T, D>> : std::type_identity<D> {};
template <class X>
struct device_of_member<std::optional<X>> : device_of_member<X> {};
template <several X>
struct device_of_member<X> : device_of_member<typename element_of_several<X>::type> {};
template <class Members>
struct device_of_members : std::type_identity<no_device> {};
template <class M, class... Ms>
struct device_of_members<Types<M, Ms...>>
    : std::conditional_t<std::is_same_v<typename device_of_member<M>::type, no_device>, device_of_members<Types<Ms...>>, device_of_member<M>> {};
template <any_module X>
struct device_of_member<X> : device_of_members<typename X::situ_member_types> {};

/// The device that a module is on: that of its first parameter or buffer; Cpu for one that has none.
template <class M>
using module_device = std::conditional_t<std::is_same_v<typename device_of_member<M>::type, no_device>, Cpu, typename device_of_member<M>::type>;

/// Whether an input may be fed to a module of these members.
template <class Members, class X, class D = typename device_of_members<Members>::type>
inline constexpr bool input_fits = true;
template <class Members, any_formula X, device D>
inline constexpr bool input_fits<Members, X, D> = mixes_with<device_of<X>, D>;

/// The device of an input; of one that has none, such as a network's state, nothing.
template <class X>
struct device_of_input : std::type_identity<no_device> {};
template <any_formula X>
struct device_of_input<X> : std::type_identity<device_of<X>> {};

/// The first input that does not fit, for the message.
template <class Members, class... Xs>
struct wrong_input;
template <class Members, class X, class... Xs>
struct wrong_input<Members, X, Xs...>
    : std::conditional_t<input_fits<Members, X>, wrong_input<Members, Xs...>,
                         std::type_identity<error::the_model_and_its_input_are_on_different_devices__move_one_with_to<
                             typename device_of_members<Members>::type, typename device_of_input<X>::type>>> {};
template <class Members>
struct wrong_input<Members> {};

// ---- whether SITU_MODULE lists all members --------------------------------------------------------------------------------------

struct anything {
  template <class X>
  operator X() const {  // never called; clang wants a body
    __builtin_trap();
  }
};
template <class M, std::size_t... Ks>
constexpr bool takes_members(std::index_sequence<Ks...>) {
  return requires { M{(static_cast<void>(Ks), anything{})...}; };
}
/// What is no aggregate cannot be counted: its constructor from members says what they are.
template <class M>
constexpr bool lists_all_members() {
  if constexpr (!std::is_aggregate_v<M>) return true;
  else return takes_members<M>(std::make_index_sequence<M::situ_member_types::count>{}) && !takes_members<M>(std::make_index_sequence<M::situ_member_types::count + 1>{});
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
