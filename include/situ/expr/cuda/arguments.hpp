/// What the kernels of formulas take: operands and, behind them, the tree, whose type the host forgets.
#pragma once

#include <situ/expr/cuda/evaluate.hpp>
#include <situ/expr/formula.hpp>

#if defined(__CUDACC__)

namespace situ::inline SITU_ABI {
namespace detail::cuda {

/// How many neighbouring elements a thread handles at once.
template <class P>
inline constexpr int lanes_of =
    16 / (widest_input<typename P::tree_type> > static_cast<int>(sizeof(typename P::out_type)) ? widest_input<typename P::tree_type>
                                                                                                : static_cast<int>(sizeof(typename P::out_type)));

inline constexpr int max_tree_bytes = 4096;

/// What a kernel of a formula takes: its operands, and behind them its tree. The host makes it with the tree's type forgotten.
template <class Operands, class Tree>
struct FormulaArguments {
  Operands operands;
  alignas(16) Tree tree;
  static_assert(sizeof(Tree) <= max_tree_bytes, "situ: the numbers and functions of an expression take at most 4096 bytes; evaluate a part of it first");
  static_assert(alignof(Tree) <= 16, "situ: what is mapped over tensors must be aligned to at most 16 bytes");
};

/// How many bytes an element of each operand has.
template <int Operands>
struct ElementSizes {
  int of[Operands];
};
template <class P>
constexpr ElementSizes<P::leaves + 1> element_sizes_of_program() {
  ElementSizes<P::leaves + 1> sizes{{static_cast<int>(sizeof(typename P::out_type))}};
  for (int k = 0; k < P::leaves; ++k) sizes.of[k + 1] = input_size(std::type_identity<typename P::tree_type>{}, k);
  return sizes;
}
template <class P>
inline constexpr auto element_sizes = element_sizes_of_program<P>();

/// A formula that a kernel takes, with the type of its tree forgotten.
struct KernelTree {
  Formula const* formula;
  void const* tree;
  std::size_t bytes;
  int const* element_sizes;  ///< of the operands
  int lanes;                 ///< neighbouring elements that a thread handles at once
  bool counts;               ///< it reads the numbers of elements
};

/// What the kernel takes.
template <class Operands>
struct FormulaBytes {
  Operands operands;
  alignas(16) unsigned char tree[max_tree_bytes];
  explicit FormulaBytes(KernelTree const& from) { __builtin_memcpy(tree, from.tree, from.bytes); }
};

/// N values of a tree, as what memory holds.
template <class Out, class Tree, int N>
SITU_DEVICE __forceinline__ Lanes<Out, N> values_of_lanes(Tree const& tree, Held<Tree, N> const& held, int64_t index) {
  Lanes<Out, N> result;
  result.clear();
#pragma unroll
  for (int j = 0; j < N; ++j) {
    result.insert(j, to_word<Out>(convert_scalar<compute_t<Out>>(Evaluator::value(tree, held, j, index))));
  }
  return result;
}

}  // namespace detail::cuda
}  // namespace situ::inline SITU_ABI

#endif
