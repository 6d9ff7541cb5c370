/// Lowering: from an expression, which owns its tensors, to a *tree*, which is trivially copyable and goes into a kernel.
///
/// A tree refers to the tensors by number, from left to right: `Input<T, 2>` is the third. Where they lie is told by a
/// `Program`: pointers, and strides after dimensions have been joined. Equal formulas on different tensors have the
/// same type, so they share their kernels, whatever the number of the device is.
#pragma once

#include <situ/core/layout.hpp>
#include <situ/expr/map.hpp>
#include <situ/expr/node.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

template <class T, int K>
struct Input {
  using value_type = T;
};

/// The index of an element in row-major order; for trees that fill fresh, contiguous tensors.
struct Index {
  using value_type = int64_t;
};

template <class Op, class... Ts>
struct Apply {
  using types = typename Op::template types<typename Ts::value_type...>;
  using value_type = typename types::result;
  Op op;
  Fields<Ts...> operands;
};

template <int First, class T, class D>
Input<T, First> lower(Tensor<T, D> const&) {
  return {};
}
template <int First, class T, class D>
Input<T, First> lower(Variable<T, D> const&) {  // read like its value, where nothing is recorded
  return {};
}
template <int First>
Index lower(Index const&) {
  return {};
}
template <int First, class T>
Constant<T> lower(Constant<T> const& constant) {
  return constant;
}
template <int First, class Op, class... Es>
auto lower(Map<Op, Es...> const& map);

template <class T, class... Ts>
Fields<T, Ts...> prepend(T const& head, Fields<Ts...> const& tail) {
  return {head, tail};
}
template <class Op, class... Ts>
Apply<Op, Ts...> make_apply(Op const& op, Fields<Ts...> const& operands) {
  return {op, operands};
}

template <int First>
Fields<> lower_fields(Fields<> const&) {
  return {};
}
template <int First, class E, class... Es>
auto lower_fields(Fields<E, Es...> const& fields) {
  auto head = lower<First>(fields.head);
  auto tail = lower_fields<First + leaf_count<E>>(fields.tail);
  return prepend(head, tail);
}
template <int First, class Op, class... Es>
auto lower(Map<Op, Es...> const& map) {
  return make_apply(map.op, lower_fields<First>(map.operands));
}

template <>
inline constexpr int leaf_count<Index> = 0;

template <class E>
using tree_of = decltype(lower<0>(std::declval<E const&>()));

/// f(tensor) for every tensor of an expression, from left to right.
template <class T, class D, class F>
SITU_INLINE void for_each_leaf(Tensor<T, D> const& leaf, F&& f) {
  f(leaf);
}
template <class T, class D, class F>
SITU_INLINE void for_each_leaf(Variable<T, D> const& leaf, F&& f);  // its value; defined by the autograd layer
template <class T, class F>
SITU_INLINE void for_each_leaf(Constant<T> const&, F&&) {}
template <class F>
SITU_INLINE void for_each_leaf(Index const&, F&&) {}
template <class F>
SITU_INLINE void for_each_leaf(Fields<> const&, F&&) {}
template <class E, class... Es, class F>
SITU_INLINE void for_each_leaf(Fields<E, Es...> const& fields, F&& f);
template <class Op, class... Es, class F>
SITU_INLINE void for_each_leaf(Map<Op, Es...> const& map, F&& f) {
  for_each_leaf(map.operands, f);
}
template <class E, class... Es, class F>
SITU_INLINE void for_each_leaf(Fields<E, Es...> const& fields, F&& f) {
  for_each_leaf(fields.head, f);
  for_each_leaf(fields.tail, f);
}

/// Whether a node compares integers with a whole number that stands beside them in a wider type, to be what it says; the integers need not be widened for it.
template <class Tree>
inline constexpr bool compares_with_wider_number = false;
template <class Op, class A, class C>
  requires(requires { Op::compares; } && std::is_integral_v<typename A::value_type> && !std::is_same_v<typename A::value_type, bool> && std::is_integral_v<C>)
inline constexpr bool compares_with_wider_number<Apply<Op, A, Constant<C>>> = sizeof(C) > sizeof(typename A::value_type);

/// The size of the widest type that a tree computes in: it decides how many lanes a kernel has.
template <class Tree>
inline constexpr int widest = static_cast<int>(sizeof(compute_t<typename Tree::value_type>));
template <class Op, class A, class C>
  requires(compares_with_wider_number<Apply<Op, A, Constant<C>>>)
inline constexpr int widest<Apply<Op, A, Constant<C>>> = widest<A>;
template <class Op, class... Ts>
inline constexpr int widest<Apply<Op, Ts...>> = [] {
  using types = typename Apply<Op, Ts...>::types;
  int result = static_cast<int>(sizeof(compute_t<typename types::result>));
  if constexpr (requires { typename types::computed; } && std::is_integral_v<typename types::result>) result = static_cast<int>(sizeof(typename types::computed));
  for (int w : {widest<Ts>...}) result = w > result ? w : result;
  return result;
}();

/// What an element costs: bytes that are moved, and what is computed in floats, both in tens of picoseconds where registers have 64 bytes.
struct Cost {
  int moved = 0, computed = 0;
  /// Lanes of 8 bytes are half as many, and functions take longer formulas in them.
  constexpr Cost in_lanes_of(int bytes) const { return {moved, bytes > 4 ? 3 * computed : computed}; }
  constexpr int all() const { return moved + computed; }
  constexpr Cost operator+(Cost const& other) const { return {moved + other.moved, computed + other.computed}; }
};
template <class Tree>
inline constexpr Cost cost_of{};
template <class T, int K>
inline constexpr Cost cost_of<Input<T, K>>{static_cast<int>(sizeof(T)), 0};
template <class Op, class... Ts>
inline constexpr Cost cost_of<Apply<Op, Ts...>> = (Cost{0, Op::cost} + ... + cost_of<Ts>);
/// What it takes with the lanes that the tree has.
template <class Tree>
inline constexpr Cost time_of = cost_of<Tree>.in_lanes_of(widest<Tree>);

/// Whether a node computes in numbers of one type, which are those of its operands and its own.
template <class Tree>
inline constexpr bool computes_in_one_type = false;
template <class Op, class... Ts>
  requires(!functions::is_mapped<Op> && !functions::is_cast<Op> && !std::is_same_v<typename Apply<Op, Ts...>::value_type, bool>)
inline constexpr bool computes_in_one_type<Apply<Op, Ts...>> = [] {
  using C = compute_t<typename Apply<Op, Ts...>::value_type>;
  return (std::is_same_v<C, compute_t<typename Ts::value_type>> && ...) && std::is_same_v<C, compute_t<typename Apply<Op, Ts...>::types::template operand<0>>>;
}();

/// How many operations a tree does per element.
template <class Tree>
inline constexpr int operation_count = 0;
template <class Op, class... Ts>
inline constexpr int operation_count<Apply<Op, Ts...>> = 1 + (0 + ... + operation_count<Ts>);

/// Where the operands of a kernel lie: number 0 is the output, the inputs follow. Strides are in elements.
/// When everything is contiguous, `rank` is 1 and nothing else than the pointers and `sizes[0]` is set.
template <int Operands>
struct Geometry {
  void* data[Operands];
  int64_t sizes[max_rank];
  int64_t strides[Operands][max_rank];
  int rank;
  bool contiguous;

  int64_t size() const {
    int64_t n = 1;
    for (int k = 0; k < rank; ++k) n *= sizes[k];
    return n;
  }
};

/// Puts axis `from` in the place of axis `to`.
SITU_NOINLINE inline void replace_axis(int64_t* sizes, int64_t* strides, int operands, int to, int from) {
  sizes[to] = sizes[from];
  for (int o = 0; o < operands; ++o) strides[o * max_rank + to] = strides[o * max_rank + from];
}
SITU_NOINLINE inline void swap_axes(int64_t* sizes, int64_t* strides, int operands, int a, int b) {
  std::swap(sizes[a], sizes[b]);
  for (int o = 0; o < operands; ++o) std::swap(strides[o * max_rank + a], strides[o * max_rank + b]);
}

/// Drops axes of one index, orders the others by the output's strides (outer first), and joins neighbours that every
/// operand steps through alike. Axes below `fixed` keep their place and are joined only among themselves.
/// Operand o's stride along axis k stands in strides[o * max_rank + k].
SITU_NOINLINE inline int coalesce(int64_t* sizes, int64_t* strides, int operands, int rank, int* fixed = nullptr) {
  int const cut = fixed ? *fixed : 0;
  int kept = 0, kept_fixed = 0;
  for (int k = 0; k < rank; ++k) {
    if (sizes[k] == 1) continue;
    replace_axis(sizes, strides, operands, kept, k);
    ++kept;
    if (k < cut) kept_fixed = kept;
  }
  auto magnitude = [strides](int k) { return strides[k] < 0 ? -strides[k] : strides[k]; };  // of the output's
  for (int k = 1; !fixed && k < kept; ++k) {
    for (int j = k; j > 0 && magnitude(j) > magnitude(j - 1); --j) swap_axes(sizes, strides, operands, j, j - 1);
  }
  int joined = 0;
  for (int k = 0; k < kept; ++k) {
    bool join = joined > 0 && !(fixed && k == kept_fixed);
    for (int o = 0; join && o < operands; ++o) join = strides[o * max_rank + joined - 1] == strides[o * max_rank + k] * sizes[k];
    int64_t const outer = join ? sizes[joined - 1] : 1;
    if (!join) ++joined;
    replace_axis(sizes, strides, operands, joined - 1, k);
    sizes[joined - 1] *= outer;
    if (fixed && k < kept_fixed) *fixed = joined;
  }
  if (fixed && kept_fixed == 0) *fixed = 0;
  return joined;
}

/// The strides of `leaf` when it is broadcast to `shape`, written to `strides`.
inline void broadcast_strides(Layout const& leaf, Shape const& shape, int64_t* strides) {
  int const lead = shape.rank() - leaf.rank();
  for (int k = 0; k < shape.rank(); ++k) {
    strides[k] = k < lead || (leaf.shape[k - lead] == 1 && shape[k] != 1) ? 0 : leaf.strides[k - lead];
  }
}

/// What kernels are made for: a tree, of so many inputs, and the type of the output.
template <class Tree, class Out, int Leaves>
struct Program {
  using tree_type = Tree;
  using out_type = Out;
  static constexpr int leaves = Leaves;
};

/// The joined sizes and strides of operands whose layouts broadcast to the first one, the output's. Returns the rank, at least 1.
inline int bind_strides(Layout const* const* layouts, int operands, int64_t* sizes, int64_t* strides) {
  Layout const& out = *layouts[0];
  for (int k = 0; k < out.rank(); ++k) sizes[k] = out.shape[k], strides[k] = out.strides[k];
  for (int o = 1; o < operands; ++o) broadcast_strides(*layouts[o], out.shape, strides + o * max_rank);
  int const rank = coalesce(sizes, strides, operands, out.rank());
  if (rank > 0) return rank;
  sizes[0] = 1;
  for (int o = 0; o < operands; ++o) strides[o * max_rank] = 1;
  return 1;
}

/// Collects where the inputs lie, from data[1] on; returns whether all are contiguous.
template <class E>
SITU_INLINE bool collect_places(E const& e, void** data) {
  bool contiguous = true;
  int o = 1;
  for_each_leaf(e, [&](auto const& leaf) {
    data[o++] = const_cast<void*>(static_cast<void const*>(leaf.data()));
    contiguous = contiguous && leaf.is_contiguous();
  });
  return contiguous;
}

/// Collects the layouts of the inputs, from layouts[1] on.
template <class E>
SITU_INLINE void collect_layouts(E const& e, Layout const** layouts) {
  int o = 1;
  for_each_leaf(e, [&](auto const& leaf) { layouts[o++] = &leaf.layout(); });
}

/// Both; returns whether all operands are contiguous and of the output's shape.
template <class E>
SITU_INLINE bool collect_operands(E const& e, Layout const& out, bool out_is_contiguous, void** data, Layout const** layouts) {
  layouts[0] = &out;
  collect_layouts(e, layouts);
  Shape const* const shape = shape_of(e);
  return collect_places(e, data) && out_is_contiguous && is_uniform(e) && (!shape || same_shape(*shape, out.shape));
}

/// The size of an element of input number k of a tree.
template <class T, int K>
constexpr int input_size(std::type_identity<Input<T, K>>, int k) {
  return k == K ? static_cast<int>(sizeof(T)) : 0;
}
template <class Leaf>
constexpr int input_size(std::type_identity<Leaf>, int) {
  return 0;
}
template <class Op, class... Ts>
constexpr int input_size(std::type_identity<Apply<Op, Ts...>>, int k) {
  return (0 + ... + input_size(std::type_identity<Ts>{}, k));
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
