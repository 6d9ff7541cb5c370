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

#include <string>
#include <vector>

#include <situ/core/list.hpp>
#include <situ/nn/members.hpp>

namespace situ::inline SITU_ABI {

namespace detail {

/// situ::eval, for those that have an eval of their own.
template <class E>
auto eval_of(E const& e) {
  return eval(e);
}

// ---- the members ------------------------------------------------------------------------------------------------------

/// The name of member k in "fc1, fc2".
__attribute__((noinline, cold)) inline std::string member_name(char const* names, int k) {
  for (; k > 0; ++names) {
    if (*names == ',') --k;
  }
  while (*names == ' ') ++names;
  char const* end = names;
  while (*end != '\0' && *end != ',' && *end != ' ') ++end;
  return std::string(names, static_cast<std::size_t>(end - names));
}

[[noreturn]] __attribute__((noinline, cold)) inline void fail_order_of_members(char const* names) {
  fail<TypeError>("SITU_MODULE(", names, "): the members stand in another order in the struct; list them in that order");
}

/// Calls f(member) for each, in order, after checking that this is the order in which they stand in the struct.
template <class M, class F>
void for_each_member(M& m, F const& f) {
  using Module = std::remove_const_t<M>;
  if constexpr (std::is_aggregate_v<Module>) static_cast<void>(std::is_void_v<decltype(m.situ_check_members())>);
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
  return message({path, path.empty() || name.empty() ? "" : ".", name});
}
__attribute__((noinline, cold)) inline std::string path_of_member(std::string const& path, char const* names, int k) { return path_below(path, member_name(names, k)); }
__attribute__((noinline, cold)) inline std::string path_of_element(std::string const& path, int64_t k) { return path_below(path, message({k})); }

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

/// Calls f(x) for each parameter and buffer of x, without making names: nothing is allocated.
template <class X, class F>
void for_each_held(X& x, F const& f) {
  using Plain = std::remove_const_t<X>;
  if constexpr (is_parameter<Plain> || is_buffer<Plain>) {
    f(x);
  } else if constexpr (any_module<Plain>) {
    for_each_member(x, [&](auto& member) { for_each_held(member, f); });
  } else if constexpr (is_optional<Plain>) {
    if (x) for_each_held(*x, f);
  } else if constexpr (several<Plain>) {
    for (auto& each : x) for_each_held(each, f);
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
template <class V, class M>
std::vector<V> parameters_of(M const& net) {
  if constexpr (may_lack_state<M>()) for_each_state(net, [](std::string const&, auto const&) {});  // throws where there is none yet
  List<V> found;
  for_each_held(net, [&]<class X>(X const& x) {
    if constexpr (std::is_same_v<X, V>) {
      for (V const& earlier : found) {
        if (earlier.state() == x.state()) return;
      }
      found.push_back(x);
    }
  });
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
  detail::for_each_held(net, []<class X>(X const& x) {
    if constexpr (detail::is_parameter<X>) X(x).zero_grad();
  });
}

// ---- the macro ---------------------------------------------------------------------------------------------------------------

/// Makes a struct a module; see the top of this file. It stands inside of the struct, after the data members.
#define SITU_MODULE(...)                                                                                                          \
  static constexpr char const* situ_member_names() { return #__VA_ARGS__; }                                                       \
  using situ_member_types = decltype(::situ::detail::types_of(__VA_ARGS__));                                                      \
  auto situ_check_members() const { /* asked for its type, which needs its body: then all of the struct is known */               \
    static_assert(::situ::detail::lists_all_members<::std::remove_cvref_t<decltype(*this)>>(),                                    \
                  "situ: SITU_MODULE(" #__VA_ARGS__ ") does not list all data members of this struct");                           \
  }                                                                                                                               \
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
  void eval() { train(false); }                                                                                                   \
  template <class SituE>                                                                                                          \
    requires(::situ::any_formula<SituE>)                                                                                          \
  static auto eval(SituE const& situ_e) { /* which the member hides in its forward */                                             \
    return ::situ::detail::eval_of(situ_e);                                                                                       \
  }

}  // namespace situ::inline SITU_ABI
