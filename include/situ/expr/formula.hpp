/// The formula of a tree as data: what profiles call a fused kernel. Read off its type, so that equal kernels have one name.
#pragma once

#include <situ/device/observe.hpp>
#include <situ/expr/lower.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

template <class T, int K>
inline constexpr Formula formula_of<Input<T, K>>{Formula::node::input, K};
template <>
inline constexpr Formula formula_of<Index>{Formula::node::index};

template <class... Ts>
inline constexpr Formula const* formula_operands[] = {&formula_of<Ts>...};

template <class Op, class... Ts>
inline constexpr Formula formula_of<Apply<Op, Ts...>>{Formula::node::function, static_cast<int>(sizeof...(Ts)), Op::name,
                                                      functions::is_cast<Op> ? dtype_name<typename Apply<Op, Ts...>::value_type>() : nullptr,
                                                      formula_operands<Ts...>};

}  // namespace detail
}  // namespace situ::inline SITU_ABI
