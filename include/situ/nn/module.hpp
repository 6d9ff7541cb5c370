/// Modules: plain structs whose members are parameters, buffers and other modules.
///
///     template <class Device> struct Net {
///       nn::Linear<float, Device> fc1{784, 128}, fc2{128, 10};
///       auto forward(const auto& x) const { return fc2(relu(fc1(x))); }
///       SITU_MODULE(fc1, fc2)
///     };
///
/// SITU_MODULE stands after the data members, and lists all of them in their order. A member is
///
///     a parameter         Variable<T, D>, in a state file under its name, trained
///     a buffer            Tensor<T, D> or nn::Counter, in a state file under its name, not trained
///     a module            its own members, under "name."
///     several             std::vector, std::array or std::optional of any of these, under "name.0", "name.1", …; an optional under "name"
///     anything else       a plain value, such as a number of heads: copied with the module, in no list
///
/// The macro gives the module `net(x...)`, which calls forward, `net.train()` and `net.eval()`. Copies of a module share parameters and
/// buffers, as Tensors do; clone(net) copies them.
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

/// A class, so that what is wrong is said once.
template <class M>
struct CheckedMembers {
  static_assert(lists_all_members<M>(), "situ: SITU_MODULE does not list all data members of this module");
};

/// The name of member k in "fc1, fc2".
__attribute__((noinline, cold)) inline std::string member_name(char const* names, int k) {
  for (; k > 0; ++names) {
    if (*names == ',') --k;
  }
  while (*names == ' ') ++names;
  char const* end = names;
  while (*end != '\0' && *end != ',' && *end != ' ') ++end;
  return std::string(names, end);
}

[[noreturn]] __attribute__((noinline, cold)) inline void fail_order_of_members(char const* names) {
  fail<TypeError>("SITU_MODULE(", names, "): the members stand in another order in the struct; list them in that order");
}

/// Calls f(member) for each, in order, after checking that this is the order in which they stand in the struct.
template <class M, class F>
void for_each_member(M& m, F const& f) {
  using Module = std::remove_const_t<M>;
  static_cast<void>(sizeof(CheckedMembers<Module>));
  m.situ_members([&](auto&... members) {
    if constexpr (std::is_aggregate_v<Module> && sizeof...(members) > 1) {
      void const* const addresses[] = {static_cast<void const*>(&members)...};
      for (std::size_t k = 1; k < sizeof...(members); ++k) {
        if (addresses[k - 1] >= addresses[k]) {
          fail_order_of_members(Module::situ_member_names());
        }
      }
    }
    (f(members), ...);
  });
}

// ---- visiting ------------------------------------------------------------------------------------------------------------------

/// The name that a module gives element k of a vector or an array.
template <class M>
std::string element_name(M const& net, int64_t k) {
  return net.situ_element_name(k);
}

__attribute__((noinline, cold)) inline std::string path_below(std::string const& path, std::string const& name) {
  return path.empty() || name.empty() ? path + name : path + "." + name;
}
__attribute__((noinline, cold)) inline std::string path_of_member(std::string const& path, char const* names, int k) { return path_below(path, member_name(names, k)); }
__attribute__((noinline, cold)) inline std::string path_of_element(std::string const& path, int64_t k) { return path_below(path, std::to_string(k)); }

/// Calls f(name, x) for each parameter and buffer of x, which stands at `path`; lists in the order of the members.
template <class X, class F>
__attribute__((cold)) void visit_state(std::string const& path, X& x, F const& f) {
  using Plain = std::remove_const_t<X>;
  if constexpr (is_parameter<Plain> || is_buffer<Plain>) {
    f(path, x);
  } else if constexpr (any_module<Plain>) {
    if constexpr (requires { x.situ_check_state(path); }) x.situ_check_state(path);  // throws where there is no state yet
    int k = 0;
    for_each_member(x, [&]<class Member>(Member& member) {
      if constexpr (holds_state<std::remove_const_t<Member>>) {
        if constexpr (requires { Plain::situ_member_is_nameless; }) {
          visit_state(path, member, f);
        } else if constexpr (several<std::remove_const_t<Member>> && requires { x.situ_element_name(int64_t{}); }) {
          int64_t j = 0;  // names of its own, such as weight_ih_l0
          for (auto& each : member) visit_state(path_below(path, element_name(x, j++)), each, f);
        } else {
          visit_state(path_of_member(path, Plain::situ_member_names(), k), member, f);
        }
      }
      ++k;
    });
  } else if constexpr (is_optional<Plain>) {
    if constexpr (holds_state<Plain>) {
      if (x) visit_state(path, *x, f);
    }
  } else if constexpr (several<Plain>) {
    if constexpr (holds_state<Plain>) {
      int64_t k = 0;
      for (auto& each : x) visit_state(path_of_element(path, k++), each, f);
    }
  }
}

/// net.forward(inputs...); only what is called needs to have one.
template <class M, class... Xs>
auto forwarded(M& net, Xs const&... inputs) {
  return net.forward(inputs...);
}

/// Sets the mode of everything below x: of what has a member `bool training`.
template <class X>
void set_training(X& x, bool on) {
  if constexpr (any_module<X>) {
    if constexpr (requires { x.training = on; }) x.training = on;
    for_each_member(x, [&](auto& member) { set_training(member, on); });
  } else if constexpr (is_optional<X>) {
    if (x) set_training(*x, on);
  } else if constexpr (several<X>) {
    for (auto& each : x) set_training(each, on);
  }
}

/// Of everything below x, without making names: nothing is allocated.
template <class X>
void forget_gradients(X const& x) {
  if constexpr (is_parameter<X>) {
    X(x).zero_grad();
  } else if constexpr (any_module<X>) {
    for_each_member(x, [](auto const& member) { forget_gradients(member); });
  } else if constexpr (is_optional<X>) {
    if (x) forget_gradients(*x);
  } else if constexpr (several<X>) {
    for (auto const& each : x) forget_gradients(each);
  }
}

}  // namespace detail

// ---- what a module gives ----------------------------------------------------------------------------------------------------

/// A parameter with its path, as "fc1.weight".
template <class V>
struct Named {
  std::string name;
  V value;
};

/// Calls f(name, x) for each parameter and buffer x: a Variable, a Tensor or an nn::Counter. One that stands in two places is visited twice.
template <any_module M, class F>
void for_each_state(M& net, F const& f) {
  detail::visit_state({}, net, f);
}

namespace detail {
template <class V>
__attribute__((noinline, cold)) void add_parameter(std::vector<Named<V>>& to, std::string const& name, V const& x) {
  for (Named<V> const& earlier : to) {
    if (earlier.value.state() == x.state()) return;  // one parameter in two places
  }
  to.push_back({name, x});
}
template <class V, class M>
std::vector<Named<V>> named_parameters_of(M const& net) {
  std::vector<Named<V>> result;
  for_each_state(net, [&]<class X>(std::string const& name, X const& x) {
    if constexpr (std::is_same_v<X, V>) add_parameter(result, name, x);
  });
  return result;
}
/// Whether a module in X may have no state yet.
template <class X>
constexpr bool may_lack_state() {
  if constexpr (is_optional<X>) {
    return may_lack_state<typename X::value_type>();
  } else if constexpr (several<X>) {
    return may_lack_state<typename element_of_several<X>::type>();
  } else if constexpr (any_module<X>) {
    if constexpr (requires(X const& x) { x.situ_check_state(std::string()); }) return true;
    else return []<class... Ms>(Types<Ms...>*) { return (may_lack_state<Ms>() || ...); }(static_cast<typename X::situ_member_types*>(nullptr));
  } else {
    return false;
  }
}
/// Without making names.
template <class X, class V>
void collect_parameters(X const& x, List<V>& to) {
  if constexpr (is_parameter<X>) {
    if constexpr (std::is_same_v<X, V>) {
      for (V const& earlier : to) {
        if (earlier.state() == x.state()) return;
      }
      to.push_back(x);
    }
  } else if constexpr (any_module<X>) {
    for_each_member(x, [&](auto const& member) { collect_parameters(member, to); });
  } else if constexpr (is_optional<X>) {
    if (x) collect_parameters(*x, to);
  } else if constexpr (several<X>) {
    for (auto const& each : x) collect_parameters(each, to);
  }
}
template <class V, class M>
std::vector<V> parameters_of(M const& net) {
  if constexpr (may_lack_state<M>()) for_each_state(net, [](std::string const&, auto const&) {});  // throws where there is none yet
  List<V> found;
  collect_parameters(net, found);
  return std::vector<V>(std::as_const(found).begin(), std::as_const(found).end());
}
}  // namespace detail

/// The parameters with their names, in the order of the members; one that stands in several places once, under its first name.
/// What is changed through them is changed in the module.
template <any_module M>
auto named_parameters(M const& net) {
  return detail::named_parameters_of<detail::parameter_type<M>>(net);
}
/// Those of element type T.
template <floating T, any_module M>
auto named_parameters(M const& net) {
  return detail::named_parameters_of<typename detail::one_of_dtype<typename detail::parameter_types_in<detail::Types<>, M>::type, T>::type>(net);
}
/// The same without names.
template <any_module M>
auto parameters(M const& net) {
  return detail::parameters_of<detail::parameter_type<M>>(net);
}
template <floating T, any_module M>
auto parameters(M const& net) {
  return detail::parameters_of<typename detail::one_of_dtype<typename detail::parameter_types_in<detail::Types<>, M>::type, T>::type>(net);
}

/// The buffers of element type T, with their names: what belongs to the state and is not trained, as a running mean.
template <element T, any_module M>
auto named_buffers(M const& net) {
  using Buffer = Tensor<T, detail::module_device<M>>;
  std::vector<Named<Buffer>> result;
  for_each_state(net, [&]<class X>(std::string const& name, X const& x) {
    if constexpr (std::is_same_v<X, Buffer>) result.push_back({name, x});
  });
  return result;
}
/// Those of the parameters' element type.
template <any_module M>
auto named_buffers(M const& net) {
  return named_buffers<value_of<detail::parameter_type<M>>>(net);
}
template <element T, any_module M>
auto buffers(M const& net) {
  std::vector<Tensor<T, detail::module_device<M>>> result;
  for (auto& each : named_buffers<T>(net)) result.push_back(std::move(each.value));
  return result;
}
template <any_module M>
auto buffers(M const& net) {
  return buffers<value_of<detail::parameter_type<M>>>(net);
}

/// The number of elements of all parameters.
template <any_module M>
int64_t num_parameters(M const& net) {
  int64_t result = 0;
  detail::List<void const*> seen;
  for_each_state(net, [&]<class X>(std::string const&, X const& x) {
    if constexpr (detail::is_parameter<X>) {
      for (void const* state : seen) {
        if (state == x.state()) return;
      }
      seen.push_back(x.state());
      result += x.size();
    }
  });
  return result;
}

/// Forgets the gradients of all parameters.
template <any_module M>
void zero_grad(M const& net) {
  detail::forget_gradients(net);
}

// ---- the macro ---------------------------------------------------------------------------------------------------------------

/// Makes a struct a module; see the top of this file. It stands inside of the struct, after the data members.
#define SITU_MODULE(...)                                                                                                          \
  static constexpr char const* situ_member_names() { return #__VA_ARGS__; }                                                       \
  using situ_member_types = decltype(::situ::detail::types_of(__VA_ARGS__));                                                      \
  template <class SituF>                                                                                                          \
  decltype(auto) situ_members(SituF&& situ_f) const {                                                                             \
    return situ_f(__VA_ARGS__);                                                                                                   \
  }                                                                                                                               \
  template <class SituF>                                                                                                          \
  decltype(auto) situ_members(SituF&& situ_f) {                                                                                   \
    return situ_f(__VA_ARGS__);                                                                                                   \
  }                                                                                                                               \
  SITU_MODULE_CALLS

/// The second half of SITU_MODULE, for a module that says its members itself.
#define SITU_MODULE_CALLS                                                                                                         \
  template <class... SituX>                                                                                                       \
    requires(::situ::detail::input_fits<situ_member_types, SituX> && ...)                                                         \
  auto operator()(SituX const&... situ_x) const {                                                                                 \
    return ::situ::detail::forwarded(*this, situ_x...);                                                                           \
  }                                                                                                                               \
  template <class... SituX>                                                                                                       \
    requires(::situ::detail::input_fits<situ_member_types, SituX> && ...)                                                         \
  auto operator()(SituX const&... situ_x) {                                                                                       \
    return ::situ::detail::forwarded(*this, situ_x...);                                                                           \
  }                                                                                                                               \
  template <class... SituX, class SituError = typename ::situ::detail::wrong_input<situ_member_types, SituX...>::type>            \
  void operator()(SituX const&...) const = delete;                                                                                \
  void train(bool situ_on = true) { ::situ::detail::set_training(*this, situ_on); }                                               \
  void eval() { train(false); }

}  // namespace situ::inline SITU_ABI
