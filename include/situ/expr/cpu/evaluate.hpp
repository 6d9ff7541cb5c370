/// Evaluation of a tree in packs: the one loop of a CPU kernel.
#pragma once

#include <situ/expr/cpu/dispatch.hpp>
#include <situ/expr/cpu/tail.hpp>
#include <situ/expr/lanes.hpp>
#include <situ/expr/lower.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// What one call of a kernel covers: `count` elements from `data[o]` on. Number 0 is the output. An input is contiguous
/// (mask -1), or repeats (mask 0): `data` then points to a register's worth of copies of its element.
template <int Operands>
struct Run {
  void* data[Operands];
  int64_t mask[Operands];
  int64_t count;
  int64_t origin;  ///< the index of the first element, for trees that ask for it
  int64_t begin = 0;  ///< where a loop begins, so that it can write a part of the result elsewhere
  bool streams = false;  ///< past the caches, from the beginning of a line on
  short ahead = 0;       ///< bytes ahead of where a reduction is that it asks for, if any

  /// Operands as a walk gives them. Word by word: two words that were stored one by one and are read as a vector wait until both have left the processor,
  /// which behind stores past the caches takes some hundred cycles.
  SITU_INLINE void set_operands(void* const* data_, int64_t const* mask_) {
    for (int o = 0; o < Operands; ++o) {
      void* at = data_[o];
      int64_t repeats = mask_[o];
      __asm__("" : "+r"(at), "+r"(repeats));
      data[o] = at, mask[o] = repeats;
    }
  }
};

/// N elements from index i of every input. `data` and `mask` are those of a Run.
template <class Isa, int N>
struct Source {
  void* const* data;
  int64_t const* mask;
  int64_t i;
  int64_t origin;
  template <class T, int K>
  SITU_INLINE lanes_t<T, N, Isa> load() const {
    return load_lanes<T, N, Isa>(static_cast<T const*>(data[K + 1]) + (i & mask[K + 1]));
  }
  SITU_INLINE pack<int64_t, N, Isa> index() const {
    pack<int64_t, N, Isa> steps;
    for (int k = 0; k < N; ++k) steps.set(k, k);
    return steps + pack<int64_t, N, Isa>(origin + i);
  }
};

/// The same where every input is contiguous.
template <class Isa, int N>
struct ContiguousSource : Source<Isa, N> {
  template <class T, int K>
  SITU_INLINE lanes_t<T, N, Isa> load() const {
    return load_lanes<T, N, Isa>(static_cast<T const*>(this->data[K + 1]) + this->i);
  }
};

/// The element type of input number K of a tree; void where it has none.
template <class Tree, int K>
struct input_type {
  using type = void;
};
template <class T, int K>
struct input_type<Input<T, K>, K> {
  using type = T;
};
template <class Op, int K>
struct input_type<Apply<Op>, K> {
  using type = void;
};
template <class Op, class T, class... Ts, int K>
struct input_type<Apply<Op, T, Ts...>, K>
    : std::conditional_t<std::is_void_v<typename input_type<T, K>::type>, input_type<Apply<Op, Ts...>, K>, input_type<T, K>> {};

/// Whether a tree is so light that loads and the reading of instructions decide.
template <class Tree>
inline constexpr bool is_light = cost_of<Tree>.all() <= 32;

/// Whether a test in a pass would cost a tenth of it, and every instruction set computes the functions alike: -ffast-math makes other quotients for each.
template <class Tree>
inline constexpr bool is_lightest = false;
template <class T, int K>
inline constexpr bool is_lightest<Input<T, K>> = true;
template <class T>
inline constexpr bool is_lightest<Constant<T>> = true;
template <class Op, class... Ts>
inline constexpr bool is_lightest<Apply<Op, Ts...>> = Op::cost <= 3 && (is_lightest<Ts> && ...) && is_light<Apply<Op, Ts...>> && cost_of<Apply<Op, Ts...>>.computed <= 6;

/// Whether two loops of one tree round alike. With reordered sums they need not, and `hold`, which keeps equal numbers apart, is nothing to clang.
#if defined(__clang__) || defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__)
inline constexpr bool loops_round_alike = false;
#else
inline constexpr bool loops_round_alike = true;
#endif

/// Whether it has four inputs or more, and the last may be the first one over again, as in `a * b + c - 0.5f * a`: worth a loop of its own.
template <class Tree, int Operands>
inline constexpr bool may_repeat = [] {
  if constexpr (!loops_round_alike || Operands < 5 || !is_light<Tree>) return false;
  else return std::is_same_v<typename input_type<Tree, 0>::type, typename input_type<Tree, Operands - 2>::type>;
}();

/// The same where input number Last is input number 0, which is then loaded once. The compiler is not told that they are equal: what it fuses, and so
/// how a result is rounded, is the same for equal numbers elsewhere.
template <class Isa, int N, class First, int Last>
struct RepeatingSource : ContiguousSource<Isa, N> {
  lanes_t<First, N, Isa> first;
  template <class T, int K>
  SITU_INLINE lanes_t<T, N, Isa> load() const {
    if constexpr (K == 0) {
      return first;
    } else if constexpr (K == Last) {
      auto again = first;
      hold<Isa>(again.v);
      return again;
    } else {
      return ContiguousSource<Isa, N>::template load<T, K>();
    }
  }
};

/// The numbers from First on.
template <int First, int... O>
std::integer_sequence<int, (First + O)...> counted_from(std::integer_sequence<int, O...>);
template <int First, int Count>
using numbers_t = decltype(counted_from<First>(std::make_integer_sequence<int, Count>{}));

/// Where a kernel that goes pack by pack has its operands: a pack, and the bytes from one to the next one.
template <int Operands>
struct PackPlaces {
  char const* at[Operands];
  int64_t step[Operands];
  int64_t i;  ///< the index of the first element

  // By lists of numbers: g++ keeps arrays that it loops over in memory.
  template <int... O>
  SITU_INLINE void start(char const* const* from, int64_t const* steps, int64_t origin, std::integer_sequence<int, O...>) {
    ((at[O] = from[O], step[O] = steps[O]), ...);
    i = origin;
  }
  template <int... O>
  SITU_INLINE void go_on(int lanes, std::integer_sequence<int, O...>) {
    ((at[O] += step[O]), ...);
    i += lanes;
  }
  template <int... O>
  SITU_INLINE void next_row(int64_t const* bytes, std::integer_sequence<int, O...>) {
    ((at[O] += bytes[O]), ...);
  }
};
/// The inputs' packs, whatever kernel they are of.
template <class Isa, int N>
struct PackSource {
  char const* const* at;
  int64_t i;
  template <class T, int K>
  SITU_INLINE lanes_t<T, N, Isa> load() const {
    return load_lanes<T, N, Isa>(reinterpret_cast<T const*>(at[K]));
  }
  SITU_INLINE pack<int64_t, N, Isa> index() const {
    pack<int64_t, N, Isa> steps;
    for (int k = 0; k < N; ++k) steps.set(k, k);
    return steps + pack<int64_t, N, Isa>(i);
  }
};

/// Evaluates trees in packs. A node is one function, whatever its operands: each function that is inlined into the next one is optimised
/// again there, which is what compiling a formula costs.
template <class Isa, int N>
struct Evaluator {
  template <class T, int K, class S>
  SITU_INLINE static lanes_t<T, N, Isa> value(Input<T, K> const&, S const& source) {
    return source.template load<T, K>();
  }
  template <class T, class S>
  SITU_INLINE static lanes_t<T, N, Isa> value(Constant<T> const& constant, S const&) {
    return broadcast_lanes<T, N, Isa>(constant.value);
  }
  template <class S>
  SITU_INLINE static pack<int64_t, N, Isa> value(Index const&, S const& source) {
    return source.index();
  }
  template <class Op, class A, class S>
  SITU_INLINE static auto value(Apply<Op, A> const& node, S const& source) {
    if constexpr (computes_in_one_type<Apply<Op, A>>) return Op::value(value(node.operands.head, source));
    else return apply(node, operand<0, Apply<Op, A>, A>(value(node.operands.head, source)));
  }
  template <class Op, class A, class B, class S>
  SITU_INLINE static auto value(Apply<Op, A, B> const& node, S const& source) {
    using Node = Apply<Op, A, B>;
    if constexpr (computes_in_one_type<Node>) return Op::value(value(node.operands.head, source), value(node.operands.tail.head, source));
    else if constexpr (compares_with_wider_number<Node>) return compared(value(node.operands.head, source), node);
    else return apply(node, operand<0, Node, A>(value(node.operands.head, source)), operand<1, Node, B>(value(node.operands.tail.head, source)));
  }
  template <class Op, class A, class B, class C, class... More, class S>
  SITU_INLINE static auto value(Apply<Op, A, B, C, More...> const& node, S const& source) {
    return operands<0>(node, node.operands, source);
  }

  /// What is to be stored as Out: a cast to a 16-bit float leaves the rounding to the store.
  template <class Out, class Node, class S>
  SITU_INLINE static auto value_to_store(Node const& node, S const& source) {
    return convert_lanes<Out, typename Node::value_type, Isa, N>(value(node, source));
  }
  template <class Out, class A, class S>
    requires(floating<Out> && sizeof(Out) == 2)
  SITU_INLINE static auto value_to_store(Apply<functions::cast<Out>, A> const& node, S const& source) {
    return convert_lanes<Out, typename A::value_type, Isa, N>(value(node.operands.head, source));
  }

  /// Integers beside a whole number of a wider type, in their own type: what is outside of it compares alike with all of them.
  template <class X, class Op, class A, class C>
  SITU_INLINE static auto compared(X const& x, Apply<Op, A, Constant<C>> const& node) {
    using T = typename X::value_type;
    C const number = node.operands.tail.head.value;
    T const narrow = static_cast<T>(number);
    if (SITU_UNLIKELY(narrow != number)) return typename X::mask_type(Op::value(C(0), number));
    return Op::value(x, X(narrow));
  }

  /// The function of a node, of operands that are what it takes.
  template <class Op, class... Ts, class... Xs>
  SITU_INLINE static auto apply(Apply<Op, Ts...> const& node, Xs const&... xs) {
    using R = typename Apply<Op, Ts...>::value_type;
    if constexpr (functions::is_mapped<Op>) {
      return node.op.template lanes_value<R, N, Isa>(std::type_identity<Fields<typename Ts::value_type...>>{}, xs...);
    } else if constexpr (std::is_same_v<R, bool>) {
      return operand_lanes<bool, bool, Isa, N>(Op::value(xs...));
    } else {
      auto const y = convert_lanes<R, R, Isa, N>(Op::value(xs...));
      if constexpr (functions::is_cast<Op>) return rounded_to<R, N, Isa>(y);
      else return y;
    }
  }

 private:
  template <int K, class Node, class T, class X>
  SITU_INLINE static auto operand(X const& x) {
    return operand_lanes<typename Node::types::template operand<K>, typename T::value_type, Isa, N>(x);
  }
  /// Evaluates the operands one after the other, converted to what the function takes, then the function.
  template <int K, class Node, class T, class... Ts, class S, class... Done>
  SITU_INLINE static auto operands(Node const& node, Fields<T, Ts...> const& rest, S const& source, Done const&... done) {
    auto const x = operand<K, Node, T>(value(rest.head, source));
    if constexpr (sizeof...(Ts) > 0) return operands<K + 1>(node, rest.tail, source, done..., x);
    else return apply(node, done..., x);
  }
};

/// A store that goes past the caches; only for whole registers, aligned to their size.
template <class P>
SITU_INLINE void stream_to(P const& x, typename P::value_type* to) {
#if SITU_X86 && defined(__clang__)
  __builtin_nontemporal_store(x.v, reinterpret_cast<typename P::vector*>(to));
#elif SITU_X86
  if constexpr (P::isa_type::bytes == 16) __asm__ volatile("movntps {%1, %0|%0, %1}" : "=m"(*reinterpret_cast<typename P::vector*>(to)) : "x"(x.v));
  else __asm__ volatile("vmovntps {%1, %0|%0, %1}" : "=m"(*reinterpret_cast<typename P::vector*>(to)) : "v"(x.v));
#else
  x.store(to);
#endif
}
/// Lanes to N consecutive elements, past the caches where they fill a register.
template <class T, int N, class Isa>
SITU_INLINE void stream_lanes(lanes_t<T, N, Isa> const& x, T* to) {
  auto const stored = stored_lanes<T, N, Isa>(x);
  if constexpr (sizeof(stored.v) >= 16) stream_to(stored, reinterpret_cast<typename decltype(stored_lanes<T, N, Isa>(x))::value_type*>(to));
}
/// Orders streamed stores before what follows.
inline void finish_streaming() {
#if SITU_X86
  __builtin_ia32_sfence();
#endif
}

/// The sizes of the inputs' elements, in numbers from 1 on.
template <int Operands>
struct InputSizes {
  int of[Operands];
};
template <class Tree, int Operands>
inline constexpr InputSizes<Operands> input_sizes = []<int... Ks>(std::integer_sequence<int, Ks...>) {
  return InputSizes<Operands>{{0, input_size(std::type_identity<Tree>{}, Ks)...}};
}(std::make_integer_sequence<int, Operands - 1>{});

/// Lets `run` read the last `count` elements of every input, those from element i on and fewer than a pack, from `buffers`, with the last one repeated
/// behind them. What is repeated in `run` is so in a buffer.
template <int Operands>
SITU_NOINLINE void buffer_tails(Run<Operands>& run, unsigned char (*buffers)[64], int const* sizes, int64_t i, int count) {
  void const* from[Operands];
  for (int o = 1; o < Operands; ++o) from[o] = static_cast<char const*>(run.data[o]) + (i & run.mask[o]) * sizes[o], run.data[o] = buffers[o];
  load_tails<Operands>(current_instruction_set(), run.data, from, sizes, 0, count);
}
template <class Tree, int Operands>
SITU_INLINE void buffer_tail(Run<Operands>& run, unsigned char (*buffers)[64], int64_t i, int count) {
  if constexpr (Operands > 1) buffer_tails(run, buffers, input_sizes<Tree, Operands>.of, i, count);
}

template <class Tree, class Out, int Operands>
struct ElementwiseBody {
  static constexpr int widest_lane = widest<Tree> > static_cast<int>(sizeof(compute_t<Out>)) ? widest<Tree> : static_cast<int>(sizeof(compute_t<Out>));

  template <class Isa>
  static constexpr int lanes_in = Isa::bytes / widest_lane;

  /// The set whose loop does what needs no registers longer than its own. It streams, which spares the loop of longer ones the question, and it takes what
  /// is less than a longer pack.
  static constexpr instruction_set short_loop =
      is_lightest<Tree> && lanes_in<isa::avx2> * static_cast<int>(sizeof(Out)) >= 16 ? instruction_set::avx2 : instruction_set::avx512;

  /// Contiguous inputs from element `begin` on, at least a pack of them. Where what is left in the end is less than a pack, the last pack begins before
  /// it: the output may then not be an input.
  template <class Isa>
  SITU_INLINE static void run(void const* tree_, Run<Operands> const* run_) {
    Tree const tree = *static_cast<Tree const*>(tree_);
    Run<Operands> const run = *run_;
    if constexpr (Isa::bytes == 32) {
      if (SITU_UNLIKELY(run.streams)) return loop<Isa, false>(tree, run, std::true_type());
    }
    if constexpr (may_repeat<Tree, Operands> && Isa::bytes > 16) {
      if (run.data[Operands - 1] == run.data[1]) return loop<Isa, true>(tree, run, streams<Isa>(run));
    }
    loop<Isa, false>(tree, run, streams<Isa>(run));
  }

  /// The size of an element of operand o.
  SITU_INLINE static constexpr int element_size(int o) {
    return o == 0 ? static_cast<int>(sizeof(Out)) : input_size(std::type_identity<Tree>{}, o - 1);
  }

 private:
  /// Whether a loop streams: wide packs leave time for a test where there is something to compute, those of AVX2 have a loop of their own, and the
  /// processors without it are few.
  template <class Isa>
  SITU_INLINE static auto streams(Run<Operands> const& run) {
    if constexpr (Isa::bytes == 64 && short_loop == instruction_set::avx512) return run.streams;
    else return std::false_type();
  }
  /// Asks for what comes a page later: with AVX2 the processor that computes does not run far enough ahead of itself, and what it foresees ends with
  /// a page. log and tanh of 10⁷ elements come a seventh sooner, from two threads a quarter; light trees gain nothing.
  SITU_INLINE static void ask_a_page_ahead(Run<Operands> const& run, int64_t i) {
    for (int o = 1; o < Operands; ++o) __builtin_prefetch(static_cast<char const*>(run.data[o]) + i * element_size(o) + 4096, 0, 0);
  }
  template <class Isa, bool Repeats, class Streams>
  SITU_INLINE static void loop(Tree const& tree, Run<Operands> const& run, Streams streams) {
    constexpr int N = lanes_in<Isa>;
    constexpr int stored_bytes = N * static_cast<int>(sizeof(Out));
    Out* const out = static_cast<Out*>(run.data[0]);
    int64_t i = run.begin;
    for (int64_t const last = run.count - N;; i = last) {
      if constexpr (is_light<Tree>) {
        SITU_ALIGN_LOOP;
      }
      do {  // tested behind the step, which takes one branch for a pass
        if constexpr (std::is_same_v<Streams, std::true_type> && !is_light<Tree>) ask_a_page_ahead(run, i);
        auto const y = Evaluator<Isa, N>::template value_to_store<Out>(tree, source_at<Isa, Repeats>(run, i));
        if (stored_bytes >= 16 && SITU_UNLIKELY(streams)) stream_lanes<Out, N, Isa>(y, out + i);
        else store_lanes<Out, N, Isa>(y, out + i);
        i += N;
      } while (i <= last);
      if (SITU_LIKELY(i == run.count)) return;
    }
  }

  template <class Isa, bool Repeats>
  SITU_INLINE static auto source_at(Run<Operands> const& run, int64_t i) {
    constexpr int N = lanes_in<Isa>;
    ContiguousSource<Isa, N> const source{{run.data, run.mask, i, run.origin}};
    if constexpr (Repeats) {
      using First = typename input_type<Tree, 0>::type;
      RepeatingSource<Isa, N, First, Operands - 2> repeating{source, source.template load<First, 0>()};
      hold<Isa>(repeating.first.v);
      return repeating;
    } else {
      return source;
    }
  }
};

/// Rows of a result. Operand o begins at data[o], and from row to row it is `row_bytes[o]` further on. Its elements follow each other (step 1), or all of a
/// row are the same one (step 0): a register of copies then lies there.
struct RowsRun {
  void* const* data;
  int64_t const* step;
  int64_t const* row_bytes;
  int64_t rows, count;
};
using RowsLoop = void (*)(void const* tree, RowsRun const* run);

/// A tree over rows, of a pack or more: operands that repeat, and rows that do not follow each other, go without buffers.
template <class Tree, class Out, int Operands>
struct RowLoopBody {
  using Whole = ElementwiseBody<Tree, Out, Operands>;

  /// Whether buffers would take a part of the time that is worth the loop.
  static constexpr bool pays = is_light<Tree> && Operands <= 5 && !std::is_same_v<Tree, Input<Out, 0>>;

  template <class Isa>
  SITU_INLINE static void run(void const* tree_, RowsRun const* run_) {
    constexpr int N = Whole::template lanes_in<Isa>;
    constexpr std::make_integer_sequence<int, Operands> numbers{};
    Tree const tree = *static_cast<Tree const*>(tree_);
    RowsRun const run = *run_;
    int64_t step[Operands], to_last[Operands];
    for (int o = 0; o < Operands; ++o) step[o] = run.step[o] * N * Whole::element_size(o), to_last[o] = run.step[o] * (run.count - N) * Whole::element_size(o);
    PackPlaces<Operands> row;
    row.start(reinterpret_cast<char const* const*>(run.data), step, 0, numbers);
    bool const tail = run.count % N != 0;
    auto kept = Evaluator<Isa, N>::template value_to_store<Out>(tree, PackSource<Isa, N>{row.at + 1, 0});
    for (int64_t left = run.rows; left > 0; --left, row.next_row(run.row_bytes, numbers)) {
      if (tail) {  // what ends with the row first: the output may be an input
        PackPlaces<Operands> last = row;
        last.next_row(to_last, numbers);
        kept = Evaluator<Isa, N>::template value_to_store<Out>(tree, PackSource<Isa, N>{last.at + 1, 0});
      }
      PackPlaces<Operands> places = row;
      int64_t packs = run.count / N;
      SITU_ALIGN_LOOP;
      do {
        store_lanes<Out, N, Isa>(Evaluator<Isa, N>::template value_to_store<Out>(tree, PackSource<Isa, N>{places.at + 1, 0}), reinterpret_cast<Out*>(const_cast<char*>(places.at[0])));
        places.go_on(N, numbers);
      } while (--packs != 0);
      if (tail) store_lanes<Out, N, Isa>(kept, reinterpret_cast<Out*>(const_cast<char*>(row.at[0]) + to_last[0]));
    }
  }
};
/// The loops over rows of a tree for each instruction set; null where there is none. Few processors of x86 run its baseline.
using RowsLoops = Variants<void, void const*, RowsRun const*>;
template <class Tree, class Out, int Operands>
inline constexpr RowsLoops rows_loops = []() -> RowsLoops {
  using Body = RowLoopBody<Tree, Out, Operands>;
  if constexpr (Body::pays) {
#if defined(__CUDA_ARCH__)
    return {};
#elif SITU_X86 && !defined(SITU_TEST_BASELINE_ONLY)
    RowsLoop const short_loop = &run_avx2<Body, void const*, RowsRun const*>;
    if constexpr (Body::Whole::short_loop == instruction_set::avx2) return {{nullptr, short_loop, short_loop}};
    else return {{nullptr, short_loop, &run_avx512<Body, void const*, RowsRun const*>}};
#else
    RowsLoop const loop = &run_baseline<Body, void const*, RowsRun const*>;
    return {{loop, loop, loop}};
#endif
  } else {
    return {};
  }
}();

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI
