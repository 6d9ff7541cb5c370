/// Evaluation: an expression is bound to memory and launched on its device, as one kernel.
#pragma once

#include <situ/core/storage.hpp>
#include <situ/device/cpu/device.hpp>
#include <situ/device/cuda/device.hpp>
#include <situ/expr/cpu/launch.hpp>
#include <situ/expr/lower.hpp>
#if defined(__CUDACC__)
#include <situ/expr/cuda/launch.hpp>
#endif

namespace situ::inline SITU_ABI {
namespace detail {

#if !defined(__CUDACC__)
/// Asked where a kernel of Cuda would be launched. Without SITU_WITH_CUDA the device itself says what is missing.
#if defined(SITU_WITH_CUDA)
template <class>
inline constexpr bool compiled_by_nvcc = false;
#else
template <class>
inline constexpr bool compiled_by_nvcc = true;
#endif

inline namespace SITU_ABI_COMPILER {
template <class D, class P>
void launch_elementwise(cuda_kernels, typename P::tree_type const&, Geometry<P::leaves + 1> const&) {
  static_assert(compiled_by_nvcc<P>,
                "situ: evaluating_on_Cuda_needs_nvcc: this file is not compiled by nvcc; name it .cu, or keep to making, moving and "
                "printing Cuda tensors here");
}
}  // namespace SITU_ABI_COMPILER
#endif

/// The tensors of an expression, from left to right, as what their handles hold.
template <int Leaves>
struct LeafBodies {
  Body* of[Leaves > 0 ? Leaves : 1];
};
/// Collects them, where their values are about to be read. (What formulas share is compiled once: a lambda would be another function for each.)
struct BodyCollector {
  Body** next;
  template <class T, class D>
  SITU_INLINE void operator()(Tensor<T, D> const& leaf) {
    before_read<D>(leaf.storage_head());
    *next++ = leaf.handle().body();
  }
};
template <class E, int Leaves>
SITU_INLINE void collect_bodies(E const& e, LeafBodies<Leaves>& bodies) {
  BodyCollector collector{bodies.of};
  for_each_leaf(e, collector);
}

/// Runs a tree over tensors on a device that has the CPU's kernels, where they are contiguous and it is little work: at once, and from where it is.
/// False, and nothing was done, elsewhere.
template <class D, int Operands>
SITU_INLINE bool run_at_once(void* tree, cpu::TreeCode<Operands> const& code, LeafBodies<Operands - 1>& bodies, void* data, int64_t count, bool contiguous) {
  if constexpr (!is_immediate<D>) {
    return false;
  } else {
    cpu::Run<Operands> run;
    run.data[0] = data;
    SITU_UNROLL
    for (int o = 1; o < Operands; ++o) {
      Body const* const body = bodies.of[o - 1];
      if (SITU_UNLIKELY(!body)) return false;
      run.data[o] = body->first;
      contiguous = contiguous && body->contiguous;
    }
    if (SITU_UNLIKELY(!contiguous || count > code.grain || count >= cpu::elements_of_team || count == 0 || is_observed(profiles | ranges))) return false;
    run.count = count;
    run.origin = 0;
    cpu::run_contiguous(code, tree, run);
    return true;
  }
}
/// The same for any tensors. Programs hold it once for each number of tensors, not for each expression.
template <class D, int Operands, int TreeBytes>
SITU_NOINLINE void run_bound(void* tree, cpu::TreeCode<Operands> const& code, LeafBodies<Operands - 1>& bodies, void* data, Layout const& layout, bool contiguous) {
  cpu::BoundTree<Operands, TreeBytes> bound;
  static_cast<cpu::TreeCode<Operands>&>(bound) = code;
  __builtin_memcpy(bound.tree, tree, TreeBytes);
  bound.data[0] = data;
  Layout const* layouts[Operands] = {&layout};
  for (int o = 1; o < Operands; ++o) {
    Body const* const body = bodies.of[o - 1];
    bound.data[o] = body ? body->first : nullptr;
    contiguous = contiguous && (!body || body->contiguous);
    layouts[o] = body ? &body->layout : &empty_layout;
  }
  if (contiguous) return cpu::launch_contiguous<D>(bound, layout.size());
  cpu::launch_strided<D>(bound, layouts);
}

/// Whether the value of an expression may be written into a tensor's storage unseen: nobody else holds it but the expression, which ends now and
/// reads every element only to compute the one that replaces it.
SITU_INLINE bool can_reuse(Body const* body, Body* const* leaves, int count, bool ends, Shape const& shape) {
  if (!body || !body->contiguous || !body->storage || !body->storage.head()->allocated_here || body->storage.use_count() != 1) return false;
  if (int64_t const handles = __atomic_load_n(&body->handles, __ATOMIC_ACQUIRE); handles != 1) {
    int64_t appearances = 0;  // of this very body: another one would count in the storage
    for (int k = 0; k < count; ++k) appearances += leaves[k] == body;
    if (handles != 1 + appearances || !ends) return false;
  }
  return same_shape(shape, body->layout.shape);
}
/// Whether something is in flight on it: asked before its own appearances in the expression are waited for.
template <class D>
SITU_INLINE bool is_busy(Handle const& to) {
  if constexpr (asynchronous<D> || copied_asynchronously<D>) return to.body() && to.body()->storage && in_flight_elsewhere<D>(to.body()->storage.head());
  else return false;
}

/// A formula of so many tensors on a device with kernels of its own, with the type of its tree forgotten.
template <int Operands>
struct TreeLauncher {
  int sizes[1];  ///< of an element of the output
  void (*launch)(void const* tree, Geometry<Operands> const& where);
};

/// Writes the values of a tree. `contiguous`: the memory is, and nothing is broadcast.
template <class D, int TreeBytes, int Operands>
SITU_NOINLINE void write_bound(void* tree, cpu::TreeCode<Operands> const& code, LeafBodies<Operands - 1>& bodies, void* data, Layout const& layout, bool contiguous) {
  if (!run_at_once<D>(tree, code, bodies, data, layout.size(), contiguous)) run_bound<D, Operands, TreeBytes>(tree, code, bodies, data, layout, contiguous);
}
template <class D, int TreeBytes, int Operands>
SITU_NOINLINE void write_bound(void* tree, TreeLauncher<Operands> const& code, LeafBodies<Operands - 1>& bodies, void* data, Layout const& layout, bool contiguous) {
  Geometry<Operands> where;
  Layout const* layouts[Operands] = {&layout};
  where.data[0] = data;
  for (int o = 1; o < Operands; ++o) {
    Body const* const body = bodies.of[o - 1];
    where.data[o] = body ? body->first : nullptr;
    contiguous = contiguous && (!body || body->contiguous);
    layouts[o] = body ? &body->layout : &empty_layout;
  }
  where.contiguous = contiguous;
  where.rank = 1;
  where.sizes[0] = layout.size();
  if (!contiguous) {
    where.rank = bind_strides(layouts, Operands, where.sizes, &where.strides[0][0]);
    where.contiguous = where.rank == 1;
    for (int o = 0; o < Operands; ++o) where.contiguous = where.contiguous && where.strides[o][0] == 1;
  }
  code.launch(tree, where);
}
/// Gives a handle the value of a tree of that shape: in its storage where nobody can tell, else in a new one.
template <class D, int TreeBytes, int Operands, class Code>
SITU_NOINLINE void assign_bound(Handle& to, void* tree, Code const& code, LeafBodies<Operands>& bodies, Shape const& shape, bool uniform, bool ends, bool busy) {
  if (Body* const body = to.body(); !busy && can_reuse(body, bodies.of, Operands, ends, shape)) {
    before_write<D>(body->storage.head());
    return write_bound<D, TreeBytes>(tree, code, bodies, body->first, body->layout, uniform);
  }
  Handle fresh = make_uninitialized<D>(shape, static_cast<std::size_t>(code.sizes[0]), "Tensor");
  write_bound<D, TreeBytes>(tree, code, bodies, fresh.body()->first, fresh.body()->layout, uniform);
  to.swap(fresh);
}
/// A tree as bytes, with room for as many as are copied.
template <class Tree>
union TreeBytesOf {
  Tree tree;
  unsigned char bytes[cpu::tree_bytes<Tree>];
  SITU_INLINE explicit TreeBytesOf(Tree const& from) : tree(from) {}
};

template <class D, class Tree, class T, int Operands>
void launch_tree(void const* tree, Geometry<Operands> const& where) {
  launch_elementwise<D, Program<Tree, T, Operands - 1>>(typename device_traits<D>::kernels{}, *static_cast<Tree const*>(tree), where);
}
template <class D, class Tree, class T, int Operands>
inline constexpr TreeLauncher<Operands> tree_launcher{{static_cast<int>(sizeof(T))}, &launch_tree<D, Tree, T, Operands>};

/// How D runs a tree whose values become elements of T.
template <class D, class Tree, class T, int Operands>
SITU_INLINE constexpr auto const& code_on() {
  if constexpr (std::is_same_v<typename device_traits<D>::kernels, cpu_kernels>) {
    static_assert(std::is_trivially_copyable_v<Tree>, "situ: what is mapped over tensors must be trivially copyable");
    return cpu::tree_code<Tree, T, Operands>;
  } else {
    return tree_launcher<D, Tree, T, Operands>;
  }
}
/// A tree that D runs. (nvcc wraps some lambdas into what is trivially copyable on the device alone; a launch takes the bytes.)
template <class D, class Tree>
using tree_on = std::conditional_t<std::is_same_v<typename device_traits<D>::kernels, cpu_kernels>, TreeBytesOf<Tree>, Tree>;

/// Writes the values of e, broadcast to the layout's shape, to memory of D. One launch; none for an empty shape.
/// `same`: that nothing is broadcast, and e has this very shape.
template <class D, class T, class E>
void evaluate(T* data, Layout const& layout, bool is_contiguous, E const& e, bool same) {
  using Tree = tree_of<E>;
  tree_on<D, Tree> tree(lower<0>(e));
  LeafBodies<leaf_count<E>> bodies;
  collect_bodies(e, bodies);
  write_bound<D, cpu::tree_bytes<Tree>>(&tree, code_on<D, Tree, T, leaf_count<E> + 1>(), bodies, data, layout, is_contiguous && same);
}
template <class D, class T, class E>
SITU_INLINE void evaluate(T* data, Layout const& layout, bool is_contiguous, E const& e) {
  Shape const* const shape = shape_of(e);
  evaluate<D>(data, layout, is_contiguous, e, is_uniform(e) && (!shape || same_shape(*shape, layout.shape)));
}

/// Gives a handle of D the value of an expression as elements of T: in its storage where nobody can tell, else in a new one. `ends`: that the expression
/// is not used again.
template <class D, class T, class E>
SITU_INLINE void assign_value(Handle& to, E const& e, bool ends) {
  using Tree = tree_of<E>;
  bool const busy = is_busy<D>(to);
  Shape const* const shape = shape_of(e);
  tree_on<D, Tree> tree(lower<0>(e));
  LeafBodies<leaf_count<E>> bodies;
  collect_bodies(e, bodies);
  assign_bound<D, cpu::tree_bytes<Tree>>(to, &tree, code_on<D, Tree, T, leaf_count<E> + 1>(), bodies, *shape, is_uniform(e), ends, busy);
}

/// Fills `count` consecutive elements of D from a tree without inputs.
template <class D, class T, class Tree>
void evaluate_tree(T* data, int64_t count, Tree const& tree) {
  if constexpr (std::is_same_v<typename device_traits<D>::kernels, cpu_kernels>) {
    cpu::BoundTree<1, cpu::tree_bytes<Tree>> bound;
    cpu::bind_tree<T>(bound, tree);
    bound.data[0] = data;
    cpu::launch_contiguous<D>(bound, count);
  } else {
    Geometry<1> where;
    where.data[0] = data;
    where.contiguous = true;
    where.rank = 1;
    where.sizes[0] = count;
    launch_elementwise<D, Program<Tree, T, 0>>(typename device_traits<D>::kernels{}, tree, where);
  }
}

/// The value of an expression as a tensor of its own type and device.
template <class E>
evaluated_t<std::remove_cvref_t<E>> evaluated(E&& e) {
  return evaluated_t<std::remove_cvref_t<E>>(static_cast<E&&>(e));
}

/// Whether memory that is written shares bytes with memory that is read, in another order than index by index.
inline bool overlap_differently(void const* written, std::size_t written_size, Layout const& to, void const* read, std::size_t read_size,
                                Layout const& from) {
  auto const a = to.extent(), b = from.extent();
  if (a.last < a.first || b.last < b.first) return false;
  auto const at = [](void const* p, int64_t offset, std::size_t size) {
    return static_cast<char const*>(p) + offset * static_cast<int64_t>(size);
  };
  char const* const a0 = at(written, a.first, written_size);
  char const* const a1 = at(written, a.last + 1, written_size);
  char const* const b0 = at(read, b.first, read_size);
  char const* const b1 = at(read, b.last + 1, read_size);
  if (a1 <= b0 || b1 <= a0) return false;
  if (written != read || written_size != read_size || !(to.shape == from.shape)) return true;
  for (int k = 0; k < to.rank(); ++k) {
    if (to.shape[k] > 1 && to.strides[k] != from.strides[k]) return true;
  }
  return false;
}

/// The same for what two tensors of elements of so many bytes hold.
SITU_NOINLINE inline bool overlap_differently(Body const* written, std::size_t written_size, Body const* read, std::size_t read_size) {
  if (!written || !read || written->size == 0 || read->size == 0) return false;
  if (SITU_UNLIKELY(!written->contiguous || !read->contiguous)) {
    return overlap_differently(written->first, written_size, written->layout, read->first, read_size, read->layout);
  }
  char const* const a = static_cast<char const*>(written->first);
  char const* const b = static_cast<char const*>(read->first);
  if (a + written->size * static_cast<int64_t>(written_size) <= b || b + read->size * static_cast<int64_t>(read_size) <= a) return false;
  return a != b || written_size != read_size || !(written->layout.shape == read->layout.shape);
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
