/// Launching a tree on the CPU: contiguous operands at once, everything else through tiles.
///
/// What is instantiated per expression is its loop, once for every instruction set, and little else: the kernels below know a tree
/// by its bytes and by the function that runs it, so that expressions with as many operands share them.
#pragma once

#include <situ/expr/cpu/evaluate.hpp>
#include <situ/expr/cpu/tiles.hpp>
#include <situ/expr/formula.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// The loops of a tree for each instruction set: of a pack or more.
template <int Operands>
using TreeLoops = Variants<void, void const*, Run<Operands> const*>;
template <class Tree, class Out, int Operands>
inline constexpr TreeLoops<Operands> const* tree_loops = &variants_of<ElementwiseBody<Tree, Out, Operands>, void, void const*, Run<Operands> const*>;

/// How many elements are worth a thread of their own with each instruction set: about 40 microseconds.
struct Grain {
  int32_t of[3];
  SITU_INLINE operator int64_t() const { return of[static_cast<int>(current_instruction_set())]; }
};
/// Narrower registers compute fewer elements at a time, and without AVX2 nothing is fused. A multiple of `whole`.
constexpr Grain grain_of(Cost const& cost, int64_t whole = 1024) {
  auto const elements = [&](int times) { return static_cast<int32_t>((int64_t{4000000} / (cost.moved + times * cost.computed) + whole - 1) / whole * whole); };
  return {{elements(8), elements(2), elements(1)}};
}

/// What a tree does, whatever its operands.
template <int Operands>
struct TreeCode {
  TreeLoops<Operands> const* start;
  RowsLoops const* rows = nullptr;  ///< whose rows lie anywhere; null where it has none
  Grain grain;
  Formula const* formula;
  MoverFunctions const* movers[Operands];
  int sizes[Operands];  ///< of an element
  int lanes;            ///< elements of an AVX-512 pack
  bool copies = false;  ///< its value is its input
  instruction_set short_loop = instruction_set::avx512;  ///< the set for what needs no longer registers

  SITU_INLINE int pack_lanes(instruction_set set) const { return lanes >> (2 - static_cast<int>(set)); }
};

/// A place for the elements of a result from number `first` on, as a loop takes it.
SITU_INLINE void* as_if_from(void* place, int64_t first, int size) {
  return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(place) - static_cast<std::uintptr_t>(first * size));
}
/// Whether an input is the output.
template <int Operands>
SITU_INLINE bool is_in_place(Run<Operands> const& run) {
  for (int o = 1; o < Operands; ++o) {
    if (run.data[o] == run.data[0]) return true;
  }
  return false;
}
/// What a loop cannot do. Where the output is an input, the last pack's worth is done first, kept, and stored in the end. What is less than a pack is
/// done in shorter ones or on padded copies.
template <int Operands>
SITU_NOINLINE void run_rest(TreeCode<Operands> const& code, void const* tree, Run<Operands>& run, instruction_set set) {
  auto* const loop = code.start->of[static_cast<int>(set)];
  int const lanes = code.pack_lanes(set), size = code.sizes[0];
  int64_t const count = run.count, last = count - lanes;
  void* const out = run.data[0];
  if (SITU_LIKELY(last > 0)) {
    alignas(64) unsigned char kept[64];
    run.begin = last;
    run.data[0] = as_if_from(kept, last, size);
    loop(tree, &run);
    run.begin = 0;
    run.data[0] = out;
    run.count = count - count % lanes;
    loop(tree, &run);
    run.count = count;
    return copy_short(static_cast<char*>(out) + last * size, kept, lanes * size);
  }
  if (count == 0) return;
  if (set > code.short_loop && count >= lanes / 2) {
    if (count == lanes / 2 || !is_in_place(run)) return code.start->of[static_cast<int>(code.short_loop)](tree, &run);
    return run_rest(code, tree, run, code.short_loop);
  }
  alignas(64) unsigned char buffers[Operands][64];
  Run<Operands> padded;
  for (int o = 0; o < Operands; ++o) padded.data[o] = buffers[o];
  load_tails<Operands>(set, padded.data, run.data, code.sizes, 0, static_cast<int>(count));
  padded.count = lanes;
  padded.origin = run.origin;
  loop(tree, &padded);
  copy_short(static_cast<char*>(out), buffers[0], count * size);
}
/// Runs a tree over contiguous inputs on this thread.
template <int Operands>
SITU_INLINE void run_contiguous(TreeCode<Operands> const& code, void const* tree, Run<Operands>& run) {
  instruction_set const set = current_instruction_set();
  int64_t const lanes = code.pack_lanes(set);
  if (SITU_LIKELY(run.count >= lanes && ((run.count & (lanes - 1)) == 0 || !is_in_place(run)))) code.start->of[static_cast<int>(set)](tree, &run);
  else run_rest(code, tree, run, set);
}
/// Spreads inputs that repeat over buffers of so many bytes each; gives how many elements those hold, `count` when nothing repeats.
SITU_NOINLINE inline int64_t spread_repeated(void** data, int64_t const* mask, int const* sizes, int operands, int64_t count, unsigned char* buffers, int64_t bytes) {
  int64_t longest = count;
  for (int o = 1; o < operands; ++o) {
    if (mask[o] == 0 && bytes / sizes[o] < longest) longest = bytes / sizes[o];
  }
  longest = longest < count ? longest / 64 * 64 : longest;
  for (int o = 1; o < operands; ++o, buffers += bytes) {
    if (mask[o] != 0) continue;
    splat_rows(reinterpret_cast<char*>(buffers), 0, static_cast<char const*>(data[o]), 0, sizes[o], 1, (longest * sizes[o] + 63) / 64 * 64);
    data[o] = buffers;
  }
  return longest;
}
/// Steps over `count` elements of the output and of the inputs that do not repeat.
SITU_NOINLINE inline void advance(void** data, int64_t const* mask, int const* sizes, int operands, int64_t count) {
  for (int o = 0; o < operands; ++o) {
    if (o == 0 || mask[o] != 0) data[o] = static_cast<char*>(data[o]) + count * sizes[o];
  }
}

/// Runs a tree over contiguous inputs, whole lines of the output past the caches, and steps over them. Inputs that repeat, where the mask is 0, hold
/// `longest` elements.
template <int Operands>
SITU_NOINLINE void run_streamed(TreeCode<Operands> const& code, void const* tree, Run<Operands>& run, int64_t longest) {
  instruction_set const set = current_instruction_set();
  auto* const streaming = code.start->of[static_cast<int>(set < code.short_loop ? set : code.short_loop)];
  int64_t const line = 64 / code.sizes[0];
  for (int64_t left = run.count; left > 0; left -= run.count) {
    auto const before = static_cast<int64_t>(-reinterpret_cast<std::uintptr_t>(run.data[0]) & 63);
    run.count = smaller(left, longest);
    run.streams = before == 0 && run.count >= line;
    if (run.streams) {
      run.count = run.count / line * line;
      streaming(tree, &run);
    } else {
      if (before != 0) run.count = smaller(run.count, before / code.sizes[0] + (before % code.sizes[0] != 0 ? left : 0));
      run_contiguous(code, tree, run);
    }
    advance(run.data, run.mask, code.sizes, Operands, run.count);
    run.origin += run.count;
  }
}

/// A tree with its type forgotten, and where its operands lie. Trivially copyable: a device may run it later.
template <int Operands, int TreeBytes>
struct BoundTree : Run<Operands>, TreeCode<Operands> {
  static_assert(Operands <= max_operands, "situ: an expression reads at most 63 tensors; evaluate a part of it first");
  using TreeCode<Operands>::start, TreeCode<Operands>::sizes, TreeCode<Operands>::lanes;
  alignas(16) unsigned char tree[TreeBytes];

  /// Contiguous inputs.
  SITU_INLINE void run_contiguous(Run<Operands>& run, bool stream) const {
    if (SITU_UNLIKELY(stream)) return run_streamed(*this, tree, run, run.count);
    cpu::run_contiguous(*this, tree, run);
  }

  /// Contiguous or repeated inputs. Those that repeat are spread over a buffer, and the run is cut to its length.
  void run(Run<Operands>& run, bool stream) const {
    constexpr int64_t bytes = Operands <= 8 ? 2048 : Operands <= 32 ? 16384 / Operands / 64 * 64 : 512;  // of any element at least 64
    alignas(64) unsigned char buffers[Operands * bytes];
    int64_t const longest = spread_repeated(run.data, run.mask, sizes, Operands, run.count, buffers, bytes);
    if (SITU_UNLIKELY(stream)) return run_streamed(*this, tree, run, longest);
    for (int64_t left = run.count; left > 0; left -= longest) {
      run.count = left < longest ? left : longest;
      run_contiguous(run, false);
      run.origin += run.count;
      advance(run.data, run.mask, sizes, Operands, run.count);
    }
  }
};

/// All operands contiguous: elements [first, last).
template <int Operands, int TreeBytes>
struct ContiguousKernel {
  static constexpr char const* operation = nullptr;  // the formula is all
  BoundTree<Operands, TreeBytes> bound;
  bool stream;

  int64_t elements(int64_t items) const { return items; }
  void operator()(int64_t first, int64_t last) const {
    Run<Operands> run;
    for (int o = 0; o < Operands; ++o) run.data[o] = static_cast<char*>(bound.data[o]) + first * bound.sizes[o], run.mask[o] = -1;
    run.count = last - first;
    run.origin = first;
    bound.run_contiguous(run, stream);
    if (SITU_UNLIKELY(stream)) finish_streaming();
  }
};

/// Any strides: tiles [first, last) of the grid.
template <int Operands, int TreeBytes>
struct StridedKernel {
  static constexpr char const* operation = nullptr;
  BoundTree<Operands, TreeBytes> bound;
  bool stream;
  TileGrid grid;
  int rank;
  int64_t sizes[max_rank];
  int64_t strides[Operands][max_rank];

  StridedSpace space() const {
    StridedSpace space(rank, Operands, sizes, &strides[0][0], bound.data, bound.movers);
    space.grid = grid;
    space.stream = stream;
    space.copies = bound.copies;
    if (!stream && bound.rows) space.rows_loop = bound.rows->of[static_cast<int>(current_instruction_set())];
    space.tree = bound.tree, space.rows_from = bound.lanes;
    for (int o = 0; o < Operands; ++o) space.element_sizes[o] = bound.sizes[o];
    return space;
  }
  int64_t elements(int64_t) const { return grid.tiles * grid.elements; }
  void operator()(int64_t first, int64_t last) const {
    run_tiles(space(), first, last, &run_strided, this);
    if (SITU_UNLIKELY(stream)) finish_streaming();
  }

 private:
  static void run_strided(void const* self_, void* const* data, int64_t const* mask, int64_t count, bool stream) {
    auto const& self = *static_cast<StridedKernel const*>(self_);
    Run<Operands> run;
    run.set_operands(data, mask);
    run.count = count;
    run.origin = 0;
    self.bound.run(run, stream);
  }
};

inline namespace SITU_ABI_THREADS {

/// Whether operand 0, of n elements, is written past the caches, which it is not where it is an input, too. Operands that are contiguous need no strides.
SITU_NOINLINE inline bool streams(void* const* data, int const* element_sizes, int operands, int64_t n, int rank = 0, int64_t const* sizes = nullptr, int64_t const* strides = nullptr) {
  int64_t const written = n * element_sizes[0];
  if (written < streaming_bytes) return false;
  int64_t read = 0;
  for (int o = 1; o < operands; ++o) {
    if (data[o] == data[0]) return false;
    int earlier = 1;
    while (data[earlier] != data[o]) ++earlier;
    int64_t elements = earlier < o ? 0 : strides ? 1 : n;
    for (int k = 0; k < rank; ++k) elements *= strides[o * max_rank + k] != 0 ? sizes[k] : 1;
    read += elements * element_sizes[o];
  }
  return goes_past_caches(written, read);
}

}  // namespace SITU_ABI_THREADS

/// Runs a tree whose operands are contiguous on D, which has the CPU's kernels.
template <class D, int Operands, int TreeBytes>
SITU_NOINLINE void launch_contiguous(BoundTree<Operands, TreeBytes>& bound, int64_t n) {
  if (SITU_UNLIKELY(n == 0)) return;
  if constexpr (is_immediate<D>) {
    if (SITU_LIKELY(n <= bound.grain && n < elements_of_team) && !is_observed(profiles | ranges)) {
      bound.count = n;
      bound.origin = 0;
      return bound.run_contiguous(bound, false);
    }
  }
  ContiguousKernel<Operands, TreeBytes> const kernel{bound, streams(bound.data, bound.sizes, Operands, n)};
  device_traits<D>::launch(kernel, n, bound.grain);
}

/// Runs a tree over operands of any layout: layouts[0] is the output's.
template <class D, int Operands, int TreeBytes>
SITU_NOINLINE void launch_strided(BoundTree<Operands, TreeBytes> const& bound, Layout const* const* layouts) {
  StridedKernel<Operands, TreeBytes> kernel;
  kernel.bound = bound;
  kernel.grid = {};
  kernel.rank = bind_strides(layouts, Operands, kernel.sizes, &kernel.strides[0][0]);
  int64_t n = 1;
  for (int k = 0; k < kernel.rank; ++k) n *= kernel.sizes[k];
  if (n == 0) return;
  kernel.stream = streams(bound.data, bound.sizes, Operands, n, kernel.rank, kernel.sizes, &kernel.strides[0][0]);
  StridedSpace space = kernel.space();
  space.choose_grid();
  kernel.grid = space.grid;
  device_traits<D>::launch(kernel, kernel.grid.tiles, bound.grain / kernel.grid.elements + 1);
}

/// The mover for elements of T: only those that a program's expressions need are compiled.
template <class T>
inline constexpr MoverFunctions const* mover_of =
    &movers_of<std::conditional_t<sizeof(T) == 8, uint64_t, std::conditional_t<sizeof(T) == 4, uint32_t, std::conditional_t<sizeof(T) == 2, uint16_t, uint8_t>>>>;

/// The movers of all inputs of a tree: that of operand o at [o], null where nothing is read.
template <int Operands>
struct InputMovers {
  MoverFunctions const* of[Operands];
};
template <class T>
constexpr MoverFunctions const* mover_or_none() {
  if constexpr (std::is_void_v<T>) return nullptr;
  else return mover_of<T>;
}
template <class Tree, int Operands>
inline constexpr InputMovers<Operands> input_movers = []<int... Ks>(std::integer_sequence<int, Ks...>) {
  return InputMovers<Operands>{{nullptr, mover_or_none<typename input_type<Tree, Ks>::type>()...}};
}(std::make_integer_sequence<int, Operands - 1>{});

/// What loops compute for a tree: 16-bit floats that are only copied are words, of which no bit changes.
template <class Tree, class Out>
struct Looped {
  using tree = Tree;
  using out = Out;
};
template <class T>
  requires(floating<T> && sizeof(T) == 2)
struct Looped<Input<T, 0>, T> {
  using tree = Input<int16_t, 0>;
  using out = int16_t;
};

template <class Tree, class Out, int Operands>
inline constexpr TreeCode<Operands> tree_code = []<int... Os>(std::integer_sequence<int, Os...>) {
  using In = Looped<Tree, Out>;
  using Body = ElementwiseBody<typename In::tree, typename In::out, Operands>;
  return TreeCode<Operands>{tree_loops<typename In::tree, typename In::out, Operands>,
                            &rows_loops<typename In::tree, typename In::out, Operands>,
                            grain_of(time_of<typename In::tree> + Cost{static_cast<int>(sizeof(Out)), 0}),
                            &formula_of<Tree>,
                            {Os == 0 ? mover_of<Out> : input_movers<Tree, Operands>.of[Os]...},
                            {Body::element_size(Os)...},
                            64 / Body::widest_lane,
                            std::is_same_v<Tree, Input<Out, 0>>,
                            Body::short_loop};
}(std::make_integer_sequence<int, Operands>{});

/// Binds a tree; the operands' places are still to be set.
template <class Out, int Operands, class Tree, int TreeBytes>
SITU_INLINE void bind_tree(BoundTree<Operands, TreeBytes>& bound, Tree const& tree) {
  static_assert(std::is_trivially_copyable_v<Tree>, "situ: what is mapped over tensors must be trivially copyable");
  ::new (static_cast<void*>(bound.tree)) Tree(tree);
  static_cast<TreeCode<Operands>&>(bound) = tree_code<Tree, Out, Operands>;
}

template <class Tree>
inline constexpr int tree_bytes = static_cast<int>((sizeof(Tree) + 63) / 64 * 64);

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI
