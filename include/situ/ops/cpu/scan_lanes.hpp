/// The pack code of scans: along a line, and across a strip of them.
///
/// Along a line, a pack is scanned in its register, in log2 of its lanes steps, and the chain so far is put in front. Across, rows are added to a
/// strip of chains.
#pragma once

#include <situ/expr/cpu/evaluate.hpp>
#include <situ/ops/scan_program.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// The lanes of a in groups of `Group`: in every second group the last lane of the group before it, in the others those of `fill`. Of
/// groups that are short this is within 128 bits, which is what vectors shuffle best.
template <int Group, class P, int... K>
SITU_INLINE P lanes_before(P const& a, P const& fill, [[maybe_unused]] std::integer_sequence<int, K...> places) {
  constexpr int N = P::lanes;
  P result;
#if defined(__clang__)
  result.v = __builtin_shufflevector(a.v, fill.v, (K & Group ? K / Group * Group - 1 : N + K)...);
#else
  typedef typename vector_of<signed_of_size<typename P::value_type>, N>::type Indices;
  Indices const from = {(K & Group ? K / Group * Group - 1 : N + K)...};
  result.v = __builtin_shuffle(a.v, fill.v, from);
#endif
  return result;
}

/// The scan of the lanes of a pack (Sklansky 1960): pairs, then fours of them, and so on.
template <class S, class P>
SITU_INLINE P scanned(P const& x) {
  constexpr int N = P::lanes;
  static_assert(N <= 16);
  constexpr std::make_integer_sequence<int, N> places{};
  P const none(static_cast<typename P::value_type>(S::identity()));
  P y = x;
  if constexpr (N > 1) y = S::combine(lanes_before<1>(y, none, places), y);
  if constexpr (N > 2) y = S::combine(lanes_before<2>(y, none, places), y);
  if constexpr (N > 4) y = S::combine(lanes_before<4>(y, none, places), y);
  if constexpr (N > 8) y = S::combine(lanes_before<8>(y, none, places), y);
  return y;
}

/// Lanes in another type.
template <class To, class From, int N, class Isa>
SITU_INLINE pack<To, N, Isa> widened_lanes(pack<From, N, Isa> const& x) {
#if SITU_MATH_X86_ASM
  if constexpr (std::is_same_v<From, float> && std::is_same_v<To, double> && N >= 4 && N * 8 == Isa::bytes) {  // g++ 12 takes it apart
    auto const from = x.v;
    pack<double, N, Isa> result;
    __asm__("vcvtps2pd {%1, %0|%0, %1}" : "=v"(result.v) : "v"(from));
    return result;
  }
#endif
  return convert_unchecked<To>(x);
}

template <class S, class Tree, int Operands>
struct ScanBody {
  using T = typename Tree::value_type;
  using A = typename S::element;
  using L = typename S::lane;
  using Out = typename S::result;
  static constexpr int widest_line = widest<Tree> > static_cast<int>(sizeof(L)) ? widest<Tree> : static_cast<int>(sizeof(L));
  static constexpr int widest_strip = widest<Tree> > static_cast<int>(sizeof(A)) ? widest<Tree> : static_cast<int>(sizeof(A));

  template <class To, class Isa, int N>
  SITU_INLINE static pack<To, N, Isa> value(Tree const& tree, Run<Operands> const& run, int64_t i) {
    using From = std::conditional_t<Operands == 2, ContiguousSource<Isa, N>, Source<Isa, N>>;  // one operand is never a repeated element
    auto const x = convert_lanes<compute_t<T>, T, Isa, N>(Evaluator<Isa, N>::value(tree, From{Source<Isa, N>{run.data, run.mask, i, run.origin}}));
    if constexpr (is_mask<std::remove_cvref_t<decltype(x)>>) return convert_lanes<To, bool, Isa, N>(x);
    else return widened_lanes<To>(x);
  }
  /// Asks for `Count` elements from index i on. The line, or the next one, goes on there: processors do not look beyond a page by themselves.
  template <int Count>
  SITU_INLINE static void ask_for(Run<Operands> const& run, int64_t i) {
    for (int o = 1; o < Operands; ++o) {
      int const size = ElementwiseBody<Tree, Out, Operands>::element_size(o);
      for (int at = 0; at < Count * size; at += 64) __builtin_prefetch(static_cast<char const*>(run.data[o]) + (i & run.mask[o]) * size + at, 0, 3);
    }
  }
  /// Packs of a line that are scanned one after the other, before they are put behind what stands in front of them.
  static constexpr int block = 32;
  /// Sums of floats go on in double, but are written as floats: what stands in front of a pack is then two floats, whose sum it is.
  static constexpr bool in_two_floats = std::is_same_v<L, float> && std::is_same_v<A, double> && std::is_same_v<Out, float>;

  /// Writes scanned packs, each behind its front.
  template <class Isa, int N>
  SITU_INLINE static void put_behind(A const* fronts, L const* scans, int packs, Out* to, bool stream) {
    if constexpr (in_two_floats) {
      constexpr int M = Isa::bytes / static_cast<int>(sizeof(A));
      alignas(64) L high[block], low[block];
      pack<L, M, Isa> const limit(1.5e38f);
      auto beyond = limit < -limit;
      for (int k = 0; k < packs; k += M) {
        auto const front = pack<A, M, Isa>::load(fronts + k);
        auto const h = keep_order(convert_unchecked<L>(front));
        beyond = beyond | (h > limit) | (h < -limit);
        h.store(high + k);
        convert_unchecked<L>(front - widened_lanes<A>(h)).store(low + k);
      }
      bool const huge = any_of(beyond);
      for (int k = 0; SITU_LIKELY(!huge) && k < packs; ++k) {
        auto const sum = pack<L, N, Isa>(high[k]) + keep_order(pack<L, N, Isa>::load(scans + k * N) + pack<L, N, Isa>(low[k]));
        if (SITU_UNLIKELY(stream)) stream_to(sum, to + k * N);
        else sum.store(to + k * N);
      }
      if (SITU_LIKELY(!huge)) return;
    }
    constexpr int M = Isa::bytes / widest_strip < N ? Isa::bytes / widest_strip : N;
    for (int k = 0; k < packs * N; k += M) {
      put<Isa, M>(S::combine(pack<A, M, Isa>(fronts[k / N]), widened_lanes<A>(pack<L, M, Isa>::load(scans + k))), to + k, stream);
    }
  }
  template <class Isa, int N>
  SITU_INLINE static void put(pack<A, N, Isa> const& y, Out* to, [[maybe_unused]] bool stream) {
    auto const lanes = convert_lanes<Out, A, Isa, N>(y);
    if constexpr (std::is_arithmetic_v<Out> && N * static_cast<int>(sizeof(Out)) >= 16) {
      if (SITU_UNLIKELY(stream)) return stream_to(lanes, to);
    }
    store_lanes<Out, N, Isa>(lanes, to);
  }

  /// `rows` lines of run.count elements, `bytes` apart operand by operand, each with `base` in front; `chain` goes on, from line to line it
  /// starts again. `output` says whether to write.
  struct Line {
    template <class Isa>
    SITU_INLINE static void run(Tree const* tree_, Run<Operands> const* run_, int64_t rows, int64_t const* bytes, A base, A* chain_, int flags) {
      constexpr int N = Isa::bytes / widest_line;
      Tree const tree = *tree_;
      bool const writes = flags & 1, stream = flags & 2;
      int64_t const n = run_->count, rounded = (n + N - 1) / N * N;
      alignas(64) L scans[block * N];
      alignas(64) A fronts[block] = {};
      A chain = *chain_;
      for (int64_t row = 0; row < rows; ++row) {
        Run<Operands> run = *run_;
        bool room = !stream;  // for whole packs: what they write too much belongs to the next line, which comes later
        for (int o = 0; o < Operands; ++o) {
          if (row > 0) run.data[o] = static_cast<char*>(run.data[o]) + row * bytes[o];
          int const size = ElementwiseBody<Tree, Out, Operands>::element_size(o);
          if (run.mask[o] != 0) room = room && bytes[o] > 0 && (rows - 1 - row) * bytes[o] >= (rounded - n) * size;
        }
        if (row > 0) chain = S::identity();
        Out* out = static_cast<Out*>(run.data[0]);
        int64_t i = 0;
        int64_t const whole = room ? rounded : n / N * N;
        while (i < whole) {
          int const packs = static_cast<int>((whole - i) / N < block ? (whole - i) / N : block);
          for (int k = 0; k < packs; ++k) {
            if (Isa::bytes == 64 && flags & 4) ask_for<N>(run, i + (k + 3 * block) * N);  // others foresee it themselves, and lose by being told
            auto const y = scanned<S>(value<L, Isa, N>(tree, run, i + k * N));
            y.store(scans + k * N);
            fronts[k] = S::combine(base, chain);
            if constexpr (std::is_same_v<L, A>) {
              if (writes) put<Isa, N>(S::combine(pack<A, N, Isa>(fronts[k]), y), out + i + k * N, stream);
            }
            chain = S::combine(chain, static_cast<A>(scans[k * N + N - 1]));
          }
          if (writes && !std::is_same_v<L, A>) put_behind<Isa, N>(fronts, scans, packs, out + i, stream);
          i += packs * N;
        }
        if (i >= n) continue;
        alignas(64) unsigned char buffers[Operands][64];
        int const tail = static_cast<int>(n - i);
        buffer_tail<Tree>(run, buffers, i, tail);
        scanned<S>(value<L, Isa, N>(tree, run, 0)).store(scans);
        if (writes) {
          alignas(64) Out last[N];
          fronts[0] = S::combine(base, chain);
          put_behind<Isa, N>(fronts, scans, 1, last, false);
          copy_short(out + i, last, tail * static_cast<int64_t>(sizeof(Out)));
        }
        chain = S::combine(chain, static_cast<A>(scans[tail - 1]));
      }
      *chain_ = chain;
    }
  };

  /// A few rows onto a strip of chains, with `bases` in front; both are padded to whole packs. The rows that come next are asked for at the
  /// same time. The first pack of bases is that of all columns where `flags` says so.
  struct Strip {
    template <class Isa>
    SITU_INLINE static void run(Tree const* tree_, Run<Operands> const* run_, int rows, int64_t const* bytes_, A const* bases, A* chains, int flags) {
      constexpr int N = Isa::bytes / widest_strip;
      using P = pack<A, N, Isa>;
      Tree const tree = *tree_;
      bool const writes = flags & 1, stream = flags & 2;
      int64_t const based = flags & 4 ? 0 : -1;
      Run<Operands> run = *run_;
      int64_t bytes[Operands];
      for (int o = 0; o < Operands; ++o) bytes[o] = bytes_[o];
      int64_t i = 0;
      int64_t const left = run.count % (2 * N), end = run.count - N;
      bool const overlaps = left % N != 0 && end >= 0;  // the last columns: a pack that begins among those before, done first
      P const last = overlaps ? add_pack<Isa, N>(tree, run, rows, bytes, bases + (end & based), chains, end, writes) : P(S::identity());
      bool const wide = stream || run.count >= 64;  // row by row: as memory lies, and in whole cache lines where it goes past the caches
      for (int row = 0; wide && row < rows; ++row) {
        for (i = 0; i + 2 * N <= run.count; i += 2 * N) {
          P chain = P::load(chains + i), chain2 = P::load(chains + i + N);
          add_pair<Isa, N>(tree, run, 1, bytes, P::load(bases + (i & based)), P::load(bases + ((i + N) & based)), chain, chain2, i, writes, stream);
          chain.store(chains + i);
          chain2.store(chains + i + N);
        }
        for (int o = 0; o < Operands; ++o) run.data[o] = static_cast<char*>(run.data[o]) + bytes[o];
      }
      if (wide) run = *run_;
      for (; i + 2 * N <= run.count; i += 2 * N) {
        P chain = P::load(chains + i), chain2 = P::load(chains + i + N);
        P const base = P::load(bases + (i & based)), base2 = P::load(bases + ((i + N) & based));
        Run<Operands> at = run;
        for (int row = 0; row < rows; ++row) {
          add_pair<Isa, N>(tree, at, rows, bytes, base, base2, chain, chain2, i, writes, stream);
          for (int o = 0; o < Operands; ++o) at.data[o] = static_cast<char*>(at.data[o]) + bytes[o];
        }
        chain.store(chains + i);
        chain2.store(chains + i + N);
      }
      if (left >= N) add_pack<Isa, N>(tree, run, rows, bytes, bases + (i & based), chains, i, writes).store(chains + i);
      if (overlaps) last.store(chains + end);
      else if (left % N != 0) add_columns<Isa, N>(tree, run, rows, bytes, bases, chains, writes);
    }

    /// Two packs of a row onto their chains: whole cache lines of floats. The row that comes `rows` later is asked for.
    template <class Isa, int N>
    SITU_INLINE static void add_pair(Tree const& tree, Run<Operands> const& at, int rows, int64_t const* bytes, pack<A, N, Isa> const& base, pack<A, N, Isa> const& base2,
                                     pack<A, N, Isa>& chain, pack<A, N, Isa>& chain2, int64_t i, bool writes, bool stream) {
      for (int o = 1; o < Operands; ++o) {
        int const size = ElementwiseBody<Tree, Out, Operands>::element_size(o);
        if (size > 0) __builtin_prefetch(static_cast<char const*>(at.data[o]) + (i & at.mask[o]) * size + rows * bytes[o], 0, 2);
      }
      if (!stream) __builtin_prefetch(static_cast<Out*>(at.data[0]) + i + rows * (bytes[0] / static_cast<int64_t>(sizeof(Out))), 1, 2);
      chain = S::combine(chain, value<A, Isa, N>(tree, at, i));
      chain2 = S::combine(chain2, value<A, Isa, N>(tree, at, i + N));
      if (!writes) return;
      put<Isa, N>(S::combine(base, chain), static_cast<Out*>(at.data[0]) + i, stream);
      put<Isa, N>(S::combine(base2, chain2), static_cast<Out*>(at.data[0]) + i + N, stream);
    }

    /// A pack of columns; gives its chains.
    template <class Isa, int N>
    SITU_INLINE static pack<A, N, Isa> add_pack(Tree const& tree, Run<Operands> at, int rows, int64_t const* bytes, A const* bases, A const* chains, int64_t i, bool writes) {
      using P = pack<A, N, Isa>;
      P chain = P::load(chains + i);
      P const base = P::load(bases);
      for (int row = 0; row < rows; ++row) {
        chain = S::combine(chain, value<A, Isa, N>(tree, at, i));
        if (writes) put<Isa, N>(S::combine(base, chain), static_cast<Out*>(at.data[0]) + i, false);
        for (int o = 0; o < Operands; ++o) at.data[o] = static_cast<char*>(at.data[o]) + bytes[o];
      }
      return chain;
    }

    /// Fewer columns than a pack has.
    template <class Isa, int N>
    SITU_INLINE static void add_columns(Tree const& tree, Run<Operands> const& run, int rows, int64_t const* bytes, A const* bases, A* chains, bool writes) {
      using P = pack<A, N, Isa>;
      int const count = static_cast<int>(run.count);
      P chain = P::load(chains);
      P const base = P::load(bases);
      for (int row = 0; row < rows; ++row) {
        Run<Operands> at = run;
        alignas(64) unsigned char buffers[Operands][64];
        for (int o = 0; o < Operands; ++o) at.data[o] = static_cast<char*>(at.data[o]) + row * bytes[o];
        buffer_tail<Tree>(at, buffers, 0, count);
        chain = S::combine(chain, value<A, Isa, N>(tree, at, 0));
        if (!writes) continue;
        alignas(64) Out last[N];
        put<Isa, N>(S::combine(base, chain), last, false);
        copy_short(at.data[0], last, count * static_cast<int64_t>(sizeof(Out)));
      }
      chain.store(chains);
    }
  };
};

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI
