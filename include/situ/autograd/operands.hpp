/// The operands of operations that record: Variables, formulas that become Variables, and constants.
#pragma once

#include <situ/autograd/backward.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// An operand without a history, in the place of a Variable.
template <class T, class D>
struct ConstantInput {
  using value_type = T;
  using device_type = D;
  Tensor<T, D> tensor;
  Tensor<T, D> const& value() const { return tensor; }
  Shape const& shape() const { return tensor.shape(); }
  static constexpr bool requires_grad() { return false; }
  static State<T, D>* state() { return nullptr; }
};

/// An operand as elements of T: a Variable, or a constant.
template <class T, class E>
auto operation_input(E const& e) {
  using D = result_device_t<device_of<E>>;
  if constexpr (!differentiable<E>) {
    if constexpr (std::is_same_v<E, Tensor<T, device_of<E>>>) return ConstantInput<T, device_of<E>>{e};
    else return ConstantInput<T, D>{Tensor<T, D>(e)};
  } else if constexpr (std::is_same_v<value_of<E>, T>) {
    return recorded(e);
  } else {
    return recorded(cast<T>(e));
  }
}

template <class T, class D>
Saved<T, D> saved_input(Variable<T, D> const& v) {
  return Saved<T, D>(v);
}
template <class T, class D>
Saved<T, D> saved_input(ConstantInput<T, D> const& c) {
  return Saved<T, D>(c.tensor);
}
/// An operand for backward, or nothing where no gradient needs it.
template <class V>
Saved<value_of<V>, device_of<V>> saved_if(bool needed, V const& input) {
  return needed ? saved_input(input) : Saved<value_of<V>, device_of<V>>();
}

/// Either of them, while it lives: an operation on these is compiled once for both.
template <class T, class D>
struct InputRef {
  using value_type = T;
  using device_type = D;
  Tensor<T, D> tensor;
  State<T, D>* node = nullptr;
  InputRef() = default;
  explicit InputRef(Variable<T, D> const& v) : tensor(v.value()), node(v.state()) {}
  explicit InputRef(ConstantInput<T, D> const& c) : tensor(c.tensor) {}
  Tensor<T, D> const& value() const { return tensor; }
  Shape const& shape() const { return tensor.shape(); }
  bool requires_grad() const { return node && node->requires_grad; }
  State<T, D>* state() const { return node; }
};
template <class T, class D>
Saved<T, D> saved_input(InputRef<T, D> const& input) {
  return input.requires_grad() ? Saved<T, D>(Variable<T, D>::from_state(input.node)) : Saved<T, D>(input.tensor);
}

/// Operands of an operation on one device, one of which records.
template <class... Es>
concept recorded_operands = (any_formula<Es> && ...) && (differentiable<Es> || ...) && all_mix<operand_device_t<Es>...>::value;
/// The same on several devices: rejected.
template <class... Es>
concept strange_recorded_operands = (any_formula<Es> && ...) && (differentiable<Es> || ...) && !all_mix<operand_device_t<Es>...>::value;

/// The message about them; none for anything else, so that other overloads are tried.
template <class... Es>
struct recorded_apart {};
template <class... Es>
  requires strange_recorded_operands<Es...>
struct recorded_apart<Es...> : different_devices<device_of<Es>...> {};
template <class... Es>
using recorded_apart_t = typename recorded_apart<Es...>::type;

}  // namespace detail
}  // namespace situ::inline SITU_ABI
