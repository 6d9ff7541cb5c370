/// Nodes: what an expression is made of before it is evaluated.
///
/// An *expression* is a tensor or a `Map` of expressions. Nodes hold their operands by value (a tensor is a counted
/// handle), so an expression may outlive the tensors it was written with. It is a formula: evaluated at every use.
#pragma once

#include <new>
#include <utility>

#include <situ/core/device.hpp>
#include <situ/core/layout.hpp>
#include <situ/core/scalar.hpp>
#include <situ/core/shape.hpp>
#include <situ/device/observe.hpp>
#include <situ/expr/common_shape.hpp>

namespace situ::inline SITU_ABI {

template <element T = float, device D = Cpu>
class Tensor;
template <class T = float, class D = Cpu>
class Variable;
template <class T, class D>
class VariablePart;
template <class Op, class... Es>
struct Map;

namespace detail {
// Defined by the tensor layer, and found when they are instantiated. What is asked for a type alone compiles nothing: transfers say theirs.
/// Where the value of an expression is: a tensor where it is, a formula's where its result goes.
template <class E>
struct value_device {
  using type = result_device_t<typename E::device_type>;
};
template <class T, class D>
struct value_device<Tensor<T, D>> {
  using type = D;
};
template <class E>
using evaluated_t = Tensor<typename E::value_type, typename value_device<E>::type>;
template <class T, class From, class To>
struct transferred_async;

template <class E>
evaluated_t<std::remove_cvref_t<E>> evaluated(E&& e);
template <class To, class T, class From>
Tensor<T, To> transfer(Tensor<T, From> const& from);
template <class U, class T, class D>
Tensor<U, D> converted(Tensor<T, D> const& from);
template <class U, class To, class E>
Tensor<U, To> convert_and_transfer(E const& from);
template <class U, class E>
Tensor<U, typename value_device<E>::type> evaluated_as(E const& e);
template <class To, class T, class From>
typename transferred_async<T, From, To>::type transfer_async(Tensor<T, From> const& from);
template <class U, class To, class T, class From>
typename transferred_async<U, From, To>::type convert_and_transfer_async(Tensor<T, From> const& from);
template <class E>
auto kept_in_place(E const& e);

/// The one place where a type is declared to be an expression.
template <class E>
inline constexpr bool is_expression = false;
template <class T, class D>
inline constexpr bool is_expression<Tensor<T, D>> = true;
/// Whether E is a Variable, or a formula with one in it: a formula that records.
template <class E>
inline constexpr bool is_recorded = false;
template <class T, class D>
inline constexpr bool is_recorded<Variable<T, D>> = true;
template <class T, class D>
inline constexpr bool is_recorded<VariablePart<T, D>> = true;
template <class Op, class... Es>
inline constexpr bool is_recorded<Map<Op, Es...>> = (is_recorded<Es> || ...);

/// The same formula on tensors: what records is left with its value, without history.
template <class E>
  requires(!is_recorded<E>)
SITU_INLINE E const& values_of(E const& operand) {
  return operand;
}
template <class Op, class... Es>
  requires(is_recorded<Es> || ...)
auto values_of(Map<Op, Es...> const& map);
template <class T, class D>
Tensor<T, D> values_of(Variable<T, D> const& variable);  // defined by the autograd layer
}  // namespace detail

/// A tensor, or a lazy combination of tensors: what functions of tensors take.
template <class E>
concept expression = detail::is_expression<std::remove_cvref_t<E>>;

/// A Variable, or a lazy combination with one in it: what functions that record gradients take.
template <class E>
concept differentiable = detail::is_recorded<std::remove_cvref_t<E>>;

/// Either: what elementwise functions take.
template <class E>
concept any_formula = expression<E> || differentiable<E>;

/// The element type of an expression.
template <class E>
using value_of = typename std::remove_cvref_t<E>::value_type;

/// The device of an expression: where its operands live and its result will.
template <class E>
using device_of = typename std::remove_cvref_t<E>::device_type;

namespace detail {

// Bases and template arguments of public types stand in a namespace without functions: those of `detail` would otherwise be candidates wherever a user calls a
// function of his own with a tensor or a formula (argument-dependent lookup).
namespace parts {
/// A C++ number beside tensors, already of the type that its weakness gives it.
template <class T>
struct Constant {
  using value_type = T;
  compute_t<T> value;
};
}  // namespace parts
using parts::Constant;

template <class E>
inline constexpr bool is_constant = false;
template <class T>
inline constexpr bool is_constant<Constant<T>> = true;

/// Members in a row; trivially copyable when they are, which std::tuple is not.
template <class... Es>
struct Fields {};
template <class E, class... Es>
struct Fields<E, Es...> {
  E head;
  Fields<Es...> tail;
};

template <class E, class... Es>
SITU_HOST_DEVICE SITU_INLINE constexpr Fields<std::remove_cvref_t<E>, std::remove_cvref_t<Es>...> fields_of(E&& e, Es&&... es) {
  if constexpr (sizeof...(Es) == 0) return {static_cast<E&&>(e), {}};
  else return {static_cast<E&&>(e), fields_of(static_cast<Es&&>(es)...)};
}

/// What a formula holds of an operand: itself, but of a part of a Variable that could be written the Variable alone.
template <class E>
struct held {
  using type = E;
};
template <class T, class D>
struct held<VariablePart<T, D>> {
  using type = Variable<T, D>;
};
template <class E>
using held_t = typename held<std::remove_cvref_t<E>>::type;

/// The same for operands that own tensors; host only.
template <class E, class... Es>
SITU_INLINE constexpr Fields<held_t<E>, held_t<Es>...> operand_fields(E&& e, Es&&... es) {
  if constexpr (sizeof...(Es) == 0) return {static_cast<E&&>(e), {}};
  else return {static_cast<E&&>(e), operand_fields(static_cast<Es&&>(es)...)};
}

/// The common device of operands, of which constants have none: void for none at all.
template <class... Ds>
struct common_device {
  using type = void;
};
template <class D>
struct common_device<D> {
  using type = D;
};
template <class D, class... Ds>
  requires(sizeof...(Ds) > 0)
struct common_device<D, Ds...> {
  using rest = typename common_device<Ds...>::type;
  using type = std::conditional_t<std::is_void_v<rest> || std::is_same_v<D, rest>, D,
                                  std::conditional_t<std::is_void_v<D>, rest, result_device_t<std::conditional_t<std::is_void_v<D>, Cpu, D>>>>;
};

/// Of what is neither a formula nor a number there is none.
template <class E>
struct operand_device {};
template <class E>
  requires requires { typename device_of<E>; }
struct operand_device<E> {
  using type = device_of<E>;
};
template <class E>
  requires(is_constant<std::remove_cvref_t<E>> || number<std::remove_cvref_t<E>>)
struct operand_device<E> {
  using type = void;
};
template <class E>
using operand_device_t = typename operand_device<E>::type;

template <class D1, class D2>
inline constexpr bool may_mix = std::is_void_v<D1> || std::is_void_v<D2>;
template <class D1, class D2>
  requires(!std::is_void_v<D1> && !std::is_void_v<D2>)
inline constexpr bool may_mix<D1, D2> = mixes_with<D1, D2>;

/// How many tensors an expression reads.
template <class E>
inline constexpr int leaf_count = 1;
template <class T>
inline constexpr int leaf_count<Constant<T>> = 0;

}  // namespace detail

namespace detail {

/// Ordinary host memory takes no part in asynchronous copies.
template <class From, class To>
concept may_cross_asynchronously = !std::is_same_v<From, Cpu> && !std::is_same_v<To, Cpu>;

// What Python's users would write: `if (sum(x) > 5)`.
#define SITU_NO_TRUTH(E)                                                                                                           \
  template <std::same_as<bool> B, class Error = error::a_tensor_is_no_truth__use_item_of_one_element_or_any_or_all_or_equal<E>>    \
  explicit operator B() const = delete;
// `x.to("cuda")`, and what is known at run time: `x.to(try_gpu())`, `x.to(0)`.
#define SITU_NO_DEVICE_NAME                                                                                                        \
  template <std::same_as<char> C, std::size_t N,                                                                                   \
            class Error = error::a_device_is_a_type__as_in_x_to_Cuda_0_with_braces__or_try_gpu_and_visit_at_run_time<C>>           \
  void to(C const (&)[N]) const = delete;                                                                                          \
  template <class Name, class Error = error::a_device_is_a_type__as_in_x_to_Cuda_0_with_braces__or_try_gpu_and_visit_at_run_time<Name>> \
    requires(!situ::device<Name>)                                                                                                  \
  void to(Name const&) const = delete;
// `softmax(x)`, without the axis. The pack, which is empty, lets a function of one operand of the user's own go before.
#define SITU_NO_AXIS_LEFT_OUT(NAME)                                                                                                \
  template <class E, class... Nothing, class Error = error::the_axis_is_to_be_given__as_in_softmax_of_x_and_1<E>>                  \
    requires((expression<E> || differentiable<E>) && sizeof...(Nothing) == 0)                                                      \
  void NAME(E const&, Nothing const&...) = delete;

}  // namespace detail

// `for (auto row : x)`. Only the first of the two is deleted, so that there is one error; the other one is defined nowhere.
template <any_formula E, class Error = error::a_tensor_is_no_range__read_rows_as_x_of_i_and_elements_by_to_vector<value_of<E>>>
Error* begin(E const&) = delete;
template <any_formula E, class Error = error::a_tensor_is_no_range__read_rows_as_x_of_i_and_elements_by_to_vector<value_of<E>>>
Error* end(E const&);

namespace detail {
namespace parts {

/// What every expression offers beside its shape: the ways out of it. A tensor gives itself, a formula its value.
template <class E, bool Recorded = false>
class ExpressionMembers {
 public:
  SITU_NO_TRUTH(E)
  /// The value on another device: the one way across. Already there, a tensor is returned as it is, with the same storage.
  /// What touches the host is done when this returns; between devices it is enqueued.
  /// A TransferLog names the line that calls.
  template <device To, class Self = E>
  Tensor<value_of<Self>, To> to(To, CallSite site = CallSite::here()) const {
    TransferSite const scope(site, place_of<device_of<E>>, place_of<To>);
    return transfer<To>(evaluated(self()));
  }
  /// The value as elements of U.
  template <element U, class Self = E>
  Tensor<U, typename value_device<Self>::type> to() const {
    return evaluated_as<U>(self());
  }
  SITU_NO_DEVICE_NAME
  /// Both: converted on the side that makes fewer bytes cross.
  template <element U, device To>
  Tensor<U, To> to(To, CallSite site = CallSite::here()) const {
    TransferSite const scope(site, place_of<device_of<E>>, place_of<To>);
    return convert_and_transfer<U, To>(self());
  }
  template <class Self = E>
  Tensor<value_of<Self>, Cpu> cpu(CallSite site = CallSite::here()) const {
    return to(Cpu{}, site);
  }
  template <int N = 0, class Self = E>
  Tensor<value_of<Self>, Cuda<N>> cuda(CallSite site = CallSite::here()) const {
    return to(Cuda<N>{}, site);
  }

  /// The value on another device, enqueued on this thread's current stream of the device: from Pinned and devices to devices as a tensor, and from
  /// devices to Pinned as a Pending one. The source may go at once, and writing to it through situ is ordered behind the copy.
  /// Cost      one copy; what has gaps is packed on the way, or before it on its own side
  template <device To, class Self = E>
    requires may_cross_asynchronously<device_of<Self>, To>
  typename transferred_async<value_of<Self>, device_of<Self>, To>::type to_async(To, CallSite site = CallSite::here()) const {
    TransferSite const scope(site, place_of<device_of<E>>, place_of<To>);
    return transfer_async<To>(kept_in_place(self()));
  }
  /// Also converted, on the side that makes fewer bytes cross.
  template <element U, device To, class Self = E>
    requires may_cross_asynchronously<device_of<Self>, To>
  typename transferred_async<U, device_of<Self>, To>::type to_async(To, CallSite site = CallSite::here()) const {
    TransferSite const scope(site, place_of<device_of<E>>, place_of<To>);
    return convert_and_transfer_async<U, To>(kept_in_place(self()));
  }
  template <device To, class Self = E, class Error = error::to_async_joins_Pinned_and_devices__pin_the_source_or_use_to<device_of<Self>, To>>
    requires(!may_cross_asynchronously<device_of<Self>, To>)
  void to_async(To) const = delete;
  template <element U, device To, class Self = E, class Error = error::to_async_joins_Pinned_and_devices__pin_the_source_or_use_to<device_of<Self>, To>>
    requires(!may_cross_asynchronously<device_of<Self>, To>)
  void to_async(To) const = delete;

 private:
  E const& self() const { return static_cast<E const&>(*this); }
};

}  // namespace parts

template <class Op, class... Es>
auto recorded(Map<Op, Es...> const& e);  // defined by the autograd layer

namespace parts {

/// The members of formulas that record: those of the Variable that such a formula becomes.
template <class E>
class ExpressionMembers<E, true> {
 public:
  SITU_NO_TRUTH(E)
  /// The value alone, without its history.
  auto value() const { return evaluated(values_of(self())); }
  auto detach() const { return value(); }
  /// Records the formula and starts a backward pass from it; see Variable::backward.
  template <class... Options>
  void backward(Options const&... options) const {
    recorded(self()).backward(options...);
  }
  template <class Self = E>
  void backward(evaluated_t<Self> const& seed) const {  // also in braces
    recorded(self()).backward(seed);
  }
  template <class Retain, class Self = E>
  void backward(evaluated_t<Self> const& seed, Retain const& retain) const {
    recorded(self()).backward(seed, retain);
  }
  bool requires_grad() const { return recorded(self()).requires_grad(); }
  template <device To, class Self = E>
  Variable<value_of<Self>, To> to(To device, CallSite site = CallSite::here()) const {
    return recorded(self()).to(device, site);
  }
  template <element U, class Self = E>
  Variable<U, typename value_device<Self>::type> to() const {
    return recorded(self()).template to<U>();
  }
  SITU_NO_DEVICE_NAME
  template <class Self = E>
  Variable<value_of<Self>, Cpu> cpu(CallSite site = CallSite::here()) const {
    return to(Cpu{}, site);
  }
  template <int N = 0, class Self = E>
  Variable<value_of<Self>, Cuda<N>> cuda(CallSite site = CallSite::here()) const {
    return to(Cuda<N>{}, site);
  }

 private:
  E const& self() const { return static_cast<E const&>(*this); }
};

}  // namespace parts
using parts::ExpressionMembers;

/// What a formula becomes where a part of it is asked for: a tensor, or a Variable where it records.
template <class Op, class... Es>
auto formed(Map<Op, Es...> const& e) {
  if constexpr ((is_recorded<Es> || ...)) return recorded(e);
  else return evaluated(e);
}

}  // namespace detail

/// A lazy elementwise function `Op` of operands. Built by the functions and operators of situ, never by hand.
template <class Op, class... Es>
struct Map : detail::ExpressionMembers<Map<Op, Es...>, (detail::is_recorded<Es> || ...)> {
  using types = typename Op::template types<typename Es::value_type...>;
  using value_type = typename types::result;
  using device_type = typename detail::common_device<detail::operand_device_t<Es>...>::type;

  Op op;
  detail::Fields<Es...> operands;
  detail::CommonShape common;

  /// The broadcast shape of the operands.
  Shape const& shape() const { return common.get(); }
  int rank() const { return shape().rank(); }
  /// The number of elements.
  int64_t size() const { return detail::product(shape()); }
  int64_t size(int64_t axis) const { return shape()[detail::checked_axis(axis, rank(), shape(), "size")]; }
  device_type device() const { return {}; }
  static constexpr situ::dtype dtype() { return dtype_of<value_type>; }
  static constexpr bool is_cuda() { return std::is_same_v<typename device_traits<device_type>::kernels, cuda_kernels>; }
  /// One element of the value, which is computed whole.
  template <std::integral... Is>
    requires(sizeof...(Is) > 0)
  value_type item(Is... indices) const {
    return detail::evaluated(detail::values_of(*this)).item(indices...);
  }
  value_type item(detail::CallSite site = detail::CallSite::here("item")) const { return detail::evaluated(detail::values_of(*this)).item(site); }
  auto to_vector(detail::CallSite site = detail::CallSite::here("to_vector")) const { return detail::evaluated(detail::values_of(*this)).to_vector(site); }

  /// The value, in storage of its own: what contiguous() and clone() of a tensor give.
  auto contiguous() const { return detail::formed(*this); }
  auto clone() const { return detail::formed(*this); }

  // Views of the value, which is computed whole: (a + b).t() is eval(a + b).t(). Not to be written to.
#define SITU_FORMULA_VIEW(NAME, PARAMETERS, ...) \
  decltype(auto) NAME PARAMETERS const { auto const value = detail::formed(*this); return value.NAME(__VA_ARGS__); }
  SITU_FORMULA_VIEW(view, (Shape const& to), to)
  SITU_FORMULA_VIEW(reshape, (Shape const& to), to)
  SITU_FORMULA_VIEW(expand, (Shape const& to), to)
  SITU_FORMULA_VIEW(permute, (Shape const& axes), axes)
  SITU_FORMULA_VIEW(flatten, (int64_t first = 0, int64_t last = -1), first, last)
  SITU_FORMULA_VIEW(t, ())
  SITU_FORMULA_VIEW(squeeze, ())
  SITU_FORMULA_VIEW(squeeze, (int64_t axis), axis)
  SITU_FORMULA_VIEW(unsqueeze, (int64_t axis), axis)
  SITU_FORMULA_VIEW(flip, (int64_t axis), axis)
  SITU_FORMULA_VIEW(transpose, (int64_t axis0, int64_t axis1), axis0, axis1)
  SITU_FORMULA_VIEW(select, (int64_t axis, int64_t index), axis, index)
  SITU_FORMULA_VIEW(operator[], (int64_t index), index)
  template <any_formula Ix, class Error = error::one_index_is_an_integer__masked_select_takes_a_mask_and_index_select_a_tensor_of_indices<value_of<Ix>>>
  void operator[](Ix const&) const = delete;
  template <detail::no_index Ix, class Error = error::an_index_is_an_integer<Ix>>
  void operator[](Ix) const = delete;
  template <class Stop>
  SITU_FORMULA_VIEW(slice, (int64_t axis, int64_t start, Stop stop, int64_t step = 1), axis, start, stop, step)
  template <class... Is>
    requires(!(std::integral<Is> && ...))
  SITU_FORMULA_VIEW(operator(), (Is... indices), indices...)
#undef SITU_FORMULA_VIEW
  template <std::integral Ix, std::integral... Is, class Error = error::a_formula_has_no_elements__use_item_or_eval<value_type>>
  void operator()(Ix, Is...) const = delete;

  Map(Op&& f, detail::Fields<Es...>&& es, detail::CommonShape&& shape)
      : op(static_cast<Op&&>(f)), operands(static_cast<detail::Fields<Es...>&&>(es)), common(static_cast<detail::CommonShape&&>(shape)) {}
  Map(Map const&) = default;
  Map(Map&&) = default;
  Map& operator=(Map const&) = default;
  Map& operator=(Map&&) = default;
  // h = h + relu(h), where h was declared auto.
  template <class X, class Error = error::a_formula_keeps_its_type__name_a_Tensor_or_Variable_to_write_results_to<value_type>>
    requires(!std::is_same_v<std::remove_cvref_t<X>, Map>)
  Map& operator=(X&&) = delete;
#define SITU_FORMULA_CHANGED(SYMBOL)                                                                                              \
  template <class X, class Error = error::a_formula_keeps_its_type__name_a_Tensor_or_Variable_to_write_results_to<value_type>>   \
  Map& operator SYMBOL##=(X&&) = delete;
  SITU_FORMULA_CHANGED(+)
  SITU_FORMULA_CHANGED(-)
  SITU_FORMULA_CHANGED(*)
  SITU_FORMULA_CHANGED(/)
#undef SITU_FORMULA_CHANGED
  SITU_INLINE ~Map() = default;
};

namespace detail {
template <class Op, class... Es>
inline constexpr bool is_expression<Map<Op, Es...>> = !is_recorded<Map<Op, Es...>>;
template <class Op, class... Es>
inline constexpr int leaf_count<Map<Op, Es...>> = (0 + ... + leaf_count<Es>);

/// The shape of an operand; a null pointer for constants.
template <class E>
SITU_INLINE Shape const* shape_of(E const& operand) {
  if constexpr (is_constant<E>) return nullptr;
  else return &operand.shape();
}
/// Whether nothing is broadcast in an operand.
template <class E>
SITU_INLINE bool is_uniform(E const& operand) {
  if constexpr (requires { operand.common; }) return operand.common.uniform();
  else return true;
}

/// The shape of an operand in which nothing is broadcast; else a null pointer.
template <class E>
SITU_INLINE Shape const* uniform_shape(E const& operand) {
  if constexpr (requires { operand.common; }) return operand.common.leaf();
  else return &operand.shape();
}

SITU_NOINLINE inline bool same_extents(Shape const& a, Shape const& b) { return a == b; }
/// Every node of every expression asks for it: at hand are the first extents, the others out of line.
SITU_INLINE bool same_shape(Shape const& a, Shape const& b) {
  if (a.rank() != b.rank() || a.data()[0] != b.data()[0]) return false;  // there is a first one, though it says nothing without axes
  return a.rank() <= 1 || same_extents(a, b);
}

/// Whether an operand has the shape of those before it, the first of which sets it.
template <class E>
SITU_INLINE bool agrees(Shape const*& first, E const& operand) {
  if constexpr (is_constant<E>) {
    return true;
  } else {
    Shape const* const shape = uniform_shape(operand);
    if (!first) first = shape;
    else if (shape && shape != first && !same_shape(*first, *shape)) return false;
    return shape != nullptr;
  }
}

inline Fields<> value_fields(Fields<> const&) { return {}; }
template <class E, class... Es>
auto value_fields(Fields<E, Es...> const& fields) {
  return [&]<class... Vs>(Fields<Vs...>&& tail) {
    return Fields<std::remove_cvref_t<decltype(values_of(fields.head))>, Vs...>{values_of(fields.head), static_cast<Fields<Vs...>&&>(tail)};
  }(value_fields(fields.tail));
}
template <class Op, class... Vs>
Map<Op, Vs...> map_of(Op const& op, Fields<Vs...>&& operands, CommonShape common) {
  return Map<Op, Vs...>(Op(op), static_cast<Fields<Vs...>&&>(operands), static_cast<CommonShape&&>(common));
}
template <class Op, class... Es>
  requires(is_recorded<Es> || ...)
auto values_of(Map<Op, Es...> const& map) {
  return map_of(map.op, value_fields(map.operands), map.common);  // the tensors' shapes stay where they are
}

/// Builds a node. Throws ShapeError when the shapes do not broadcast; the message names both.
/// Nothing but floating values carries gradients: comparisons and conversions to integers are constants.
template <class Op, class... Es>
SITU_INLINE auto make_map(Op op, Es&&... es) {
  using Node = Map<Op, held_t<Es>...>;
  if constexpr (is_recorded<Node> && !floating<typename Node::value_type>) {
    return make_map(static_cast<Op&&>(op), values_of(es)...);
  } else {
    Shape const* first = nullptr;
    bool const uniform = (agrees(first, es) && ...);
    CommonShape common(first);
    if (SITU_UNLIKELY(!uniform)) {
      Shape const* const shapes[] = {shape_of(es)...};
      common = CommonShape::broadcast(shapes, sizeof...(Es), Op::name);
    }
    return Node(static_cast<Op&&>(op), operand_fields(static_cast<Es&&>(es)...), static_cast<CommonShape&&>(common));
  }
}

}  // namespace detail

/// Whether expressions (or numbers) live on devices that mix, so that they may stand in one expression.
template <class L, class R>
concept on_same_device = detail::may_mix<detail::operand_device_t<L>, detail::operand_device_t<R>>;

namespace detail {

/// The first of Ds that does not mix with D, or void.
template <class D, class... Ds>
struct stranger_to {
  using type = void;
};
template <class D, class First, class... Ds>
struct stranger_to<D, First, Ds...> : std::conditional_t<may_mix<D, First>, stranger_to<D, Ds...>, std::type_identity<First>> {};

/// The message about the first two devices that do not mix; `type` is missing where all do.
template <class... Ds>
struct different_devices {};
template <class D, class... Ds>
struct different_devices<D, Ds...>
    : std::conditional_t<std::is_void_v<typename stranger_to<D, Ds...>::type>, different_devices<Ds...>,
                         std::type_identity<error::operands_on_different_devices__move_one_with_to<D, typename stranger_to<D, Ds...>::type>>> {};
template <class... Xs>
using different_devices_of = typename different_devices<operand_device_t<Xs>...>::type;

}  // namespace detail

}  // namespace situ::inline SITU_ABI
