/// The pack code of scans: along a line, and across a strip of them.
///
/// Along a line, a pack is scanned in its register, in log2 of its lanes steps, and the chain so far is put in front. Across, rows are added to a
/// strip of chains.
#pragma once

#include <situ/expr/cpu/evaluate.hpp>
#include <situ/ops/scan_program.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// The lanes whose numbers are given: a's, and behind them b's.
template <class P, int... From>
SITU_INLINE P lanes_from(P const& a, P const& b, [[maybe_unused]] std::integer_sequence<int, From...> numbers) {
  P result;
#if defined(__clang__)
  result.v = __builtin_shufflevector(a.v, b.v, From...);
#else
  typedef typename vector_of<signed_of_size<typename P::value_type>, P::lanes>::type Indices;
  Indices const from = {From...};
  result.v = __builtin_shuffle(a.v, b.v, from);
#endif
  return result;
}

/// The lanes of a in groups of `Group`: in every second group the last lane of the group before it, in the others those of `fill`. Of
/// groups that are short this is within 128 bits, which is what vectors shuffle best.
template <int Group, class P, int... K>
SITU_INLINE P lanes_before(P const& a, P const& fill, std::integer_sequence<int, K...>) {
  return lanes_from(a, fill, std::integer_sequence<int, (K & Group ? K / Group * Group - 1 : P::lanes + K)...>{});
}

template <int N, int... K>
constexpr std::integer_sequence<int, (K * 0 + N - 1)...> last_lanes(std::integer_sequence<int, K...>) { return {}; }
/// N times the number of the last of N lanes.
template <int N>
inline constexpr auto numbers_of_last = last_lanes<N>(std::make_integer_sequence<int, N>{});

/// The halves of a's and b's lanes that are number `Half`: a's, then b's.
template <int Half, class P, int... K>
SITU_INLINE P halves_from(P const& a, P const& b, std::integer_sequence<int, K...>) {
  return lanes_from(a, b, std::integer_sequence<int, (K % (P::lanes / 2) + Half * (P::lanes / 2) + (K < P::lanes / 2 ? 0 : P::lanes))...>{});
}

/// In groups of `Group` lanes: the last lane of each.
template <int Group, class P, int... K>
SITU_INLINE P last_of_groups(P const& a, std::integer_sequence<int, K...>) {
  return lanes_from(a, a, std::integer_sequence<int, (K / Group * Group + Group - 1)...>{});
}

/// The scan of the lanes of a pack in groups of `Group` (Sklansky 1960): pairs, then fours of them, and so on.
template <class S, int Group, class P>
SITU_INLINE P scanned_groups(P const& x) {
  constexpr int N = P::lanes;
  static_assert(N <= 16);
  constexpr std::make_integer_sequence<int, N> places{};
  P const none(static_cast<typename P::value_type>(S::identity()));
  P y = x;
  if constexpr (Group > 1 && sizeof(typename P::value_type) == 4 && S::identity() == 0 && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__) {  // zeros are shifted in
    y = S::combine(P(typename P::vector(typename vector_of<uint64_t, N / 2>::type(x.v) << 32)), y);
  } else if constexpr (Group > 1) {
    y = S::combine(lanes_before<1>(y, none, places), y);
  }
  if constexpr (Group > 2) y = S::combine(lanes_before<2>(y, none, places), y);
  if constexpr (Group > 4) y = S::combine(lanes_before<4>(y, none, places), y);
  if constexpr (Group > 8) y = S::combine(lanes_before<8>(y, none, places), y);
  return y;
}
template <class S, class P>
SITU_INLINE P scanned(P const& x) {
  return scanned_groups<S, P::lanes>(x);
}

/// Of a and b, in groups of `Group` lanes: the combinations of the pairs of neighbours of a's, then of b's.
template <class S, int Group, class P, int... K>
SITU_INLINE P pairs_combined(P const& a, P const& b, std::integer_sequence<int, K...>) {
  constexpr int half = Group / 2;
  constexpr std::integer_sequence<int, (K / Group * Group + K % half * 2 + (K % Group < half ? 0 : P::lanes))...> first{};
  constexpr std::integer_sequence<int, (K / Group * Group + K % half * 2 + (K % Group < half ? 0 : P::lanes) + 1)...> second{};
  return S::combine(lanes_from(a, b, first), lanes_from(a, b, second));
}

/// Whether totals may be summed by a loop of their own, which has to round as the scan does: -ffast-math would reorder the two in different ways.
#if defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__)
inline constexpr bool sums_keep_order = false;
#else
inline constexpr bool sums_keep_order = true;
#endif

/// How many packs give their totals together: as many as 128 bits have lanes.
template <class P>
constexpr int totals_together = P::lanes * static_cast<int>(sizeof(typename P::value_type)) < 16 ? P::lanes : 16 / static_cast<int>(sizeof(typename P::value_type));

/// The lanes of a from number `By` on, and then those before it.
template <int By, class P, int... K>
SITU_INLINE P lanes_rotated(P const& a, std::integer_sequence<int, K...>) {
  return lanes_from(a, a, std::integer_sequence<int, (K + By) % P::lanes...>{});
}

/// The totals of `totals_together` packs from what pairs_combined() made of them, which are those of their groups: in the first lanes.
template <class S, int Group, class P>
SITU_INLINE P groups_combined(P const& y) {
  if constexpr (Group == P::lanes) return y;
  else return groups_combined<S, 2 * Group>(S::combine(y, lanes_rotated<Group>(y, std::make_integer_sequence<int, P::lanes>{})));
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
  /// How many elements ahead of a pack memory is asked for: the line, or the next one, goes on there. What processors foresee by themselves
  /// is less, and ends with a page.
  template <int N>
  static constexpr int64_t ahead = N == 16 ? 96 * N : 4096 / static_cast<int64_t>(sizeof(L));
  /// Asks for `Count` elements from index i on: to be kept, or, of locality 0, to be read but once.
  template <int Count, int Locality>
  SITU_INLINE static void ask_for(Run<Operands> const& run, int64_t i) {
    for (int o = 1; o < Operands; ++o) {
      int const size = ElementwiseBody<Tree, Out, Operands>::element_size(o);
      for (int at = 0; at < Count * size; at += 64) __builtin_prefetch(static_cast<char const*>(run.data[o]) + (i & run.mask[o]) * size + at, 0, Locality);
    }
  }
  /// Packs of a line, or joined ones, that are scanned one after the other, before they are put behind what stands in front of them.
  static constexpr int block = 32;
  /// Sums of floats go on in double, but are written as floats: what stands in front of a pack is then two floats, whose sum it is.
  static constexpr bool in_two_floats = std::is_same_v<L, float> && std::is_same_v<A, double> && floating<Out>;

  template <class Isa, int N, class C>
  SITU_INLINE static void put(pack<C, N, Isa> const& y, Out* to, [[maybe_unused]] bool stream) {
    auto const lanes = convert_lanes<Out, C, Isa, N>(y);
    if constexpr (std::is_arithmetic_v<Out> && N * static_cast<int>(sizeof(Out)) >= 16) {
      if (SITU_UNLIKELY(stream)) return stream_to(lanes, to);
    }
    store_lanes<Out, N, Isa>(lanes, to);
  }

  /// So many neighbouring packs share what stands in front of them: at most 16 floats.
  template <int N>
  static constexpr int joined = in_two_floats && N > 1 && N <= 8 ? 2 : 1;

  /// Fronts as two floats each: `base`, then chains. Gives whether all of them are far from what a float cannot hold.
  template <class Isa>
  SITU_INLINE static bool split_fronts(A base, A const* chains, int fronts, L* high, L* low) {
    constexpr int M = Isa::bytes / static_cast<int>(sizeof(A));
    pack<L, M, Isa> const limit(1.5e38f);
    pack<A, M, Isa> const in_front(base);
    auto beyond = limit < -limit;
    for (int k = 0; k < fronts; k += M) {
      auto const front = S::combine(in_front, pack<A, M, Isa>::load(chains + k));
      auto const h = keep_order(convert_unchecked<L>(front));
      beyond = beyond | (h > limit) | (h < -limit);
      h.store(high + k);
      convert_unchecked<L>(front - widened_lanes<A>(h)).store(low + k);
    }
    return !any_of(beyond);
  }
  /// Writes scanned packs, `Joined` of them, behind a front of two floats.
  template <class Isa, int N, int Joined>
  SITU_INLINE static void put_behind_floats(L high, L low, L const* scans, Out* to, bool stream) {
    pack<L, N, Isa> const h(high), l(low);
    put<Isa, N>(h + keep_order(pack<L, N, Isa>::load(scans) + l), to, stream);
    if constexpr (Joined == 2) put<Isa, N>(h + keep_order(pack<L, N, Isa>::load(scans + N) + l), to + N, stream);
  }
  /// Writes scanned packs, `Joined` at a time behind a front: `base`, then their chain.
  template <class Isa, int N, int Joined>
  SITU_INLINE static void put_behind(A base, A const* chains, L const* scans, int fronts, Out* to, bool stream) {
    if constexpr (in_two_floats) {
      alignas(64) L high[block], low[block];
      bool const fit = split_fronts<Isa>(base, chains, fronts, high, low);
      constexpr int group = Joined * N;
      if (SITU_UNLIKELY(!fit)) {
        for (int k = 0; k < fronts; ++k) {
          if (high[k] > 1.5e38f || high[k] < -1.5e38f) put_widened<Isa, N, Joined>(base, chains[k], scans + k * group, to + k * group, stream);
          else put_behind_floats<Isa, N, Joined>(high[k], low[k], scans + k * group, to + k * group, stream);
        }
      } else if (stream) {
        for (int k = 0; k < fronts; ++k) put_behind_floats<Isa, N, Joined>(high[k], low[k], scans + k * group, to + k * group, true);
      } else {
        for (int k = 0; k < fronts; ++k) put_behind_floats<Isa, N, Joined>(high[k], low[k], scans + k * group, to + k * group, false);
      }
    } else {
      for (int k = 0; k < fronts; ++k) put_widened<Isa, N, Joined>(base, chains[k], scans + k * Joined * N, to + k * Joined * N, stream);
    }
  }
  /// Writes packs behind one front, all in the type of chains.
  template <class Isa, int N, int Joined>
  SITU_INLINE static void put_widened(A base, A chain, L const* scans, Out* to, bool stream) {
    constexpr int M = Isa::bytes / widest_strip < N ? Isa::bytes / widest_strip : N;
    pack<A, M, Isa> const front(S::combine(base, chain));
    for (int k = 0; k < Joined * N; k += M) put<Isa, M>(S::combine(front, widened_lanes<A>(pack<L, M, Isa>::load(scans + k))), to + k, stream);
  }
  /// Of `totals_together` packs from index i on: the last lanes of their scans, by groups of lanes. Without the other lanes, but combined in the same
  /// order, thus the same bit for bit.
  template <class Isa, int N>
  SITU_INLINE static pack<L, N, Isa> combined_packs(Tree const& tree, Run<Operands> const& run, int64_t i) {
    constexpr int group = totals_together<pack<L, N, Isa>>;
    static_assert(group == 1 || group == 2 || group == 4);
    constexpr std::make_integer_sequence<int, N> places{};
    if constexpr (group == 1) {
      return value<L, Isa, N>(tree, run, i);
    } else {
      auto const first = pairs_combined<S, group>(value<L, Isa, N>(tree, run, i), value<L, Isa, N>(tree, run, i + N), places);
      if constexpr (group == 2) return first;
      else return pairs_combined<S, 4>(first, pairs_combined<S, 4>(value<L, Isa, N>(tree, run, i + 2 * N), value<L, Isa, N>(tree, run, i + 3 * N), places), places);
    }
  }
  /// Scans `Joined` packs from index i on, without what stands in front of them; gives the first one.
  template <class Isa, int N, int Joined>
  SITU_INLINE static auto scan_group(Tree const& tree, Run<Operands> const& run, int64_t i, L* scans, int flags) {
    if (flags >= 8) ask_for<Joined * N, 2>(run, i + (flags >> 3));
    else if (flags & 4) ask_for<Joined * N, Isa::bytes == 64 ? 3 : 0>(run, i + ahead<N>);
    auto const y = scanned<S>(value<L, Isa, N>(tree, run, i));
    y.store(scans);
    if constexpr (Joined == 2) S::combine(lanes_from(y, y, numbers_of_last<N>), scanned<S>(value<L, Isa, N>(tree, run, i + N))).store(scans + N);
    return y;
  }
  /// Two groups of joined packs are scanned in halves of registers, where most of the steps stay within 128 bits: the same additions, in two thirds of
  /// the instructions.
  template <class Isa, int N, int Joined>
  static constexpr bool in_halves = in_two_floats && Isa::bytes == 32 && N == 8 && Joined == 2;
  template <class Isa, int N>
  SITU_INLINE static void scan_two_groups(Tree const& tree, Run<Operands> const& run, int64_t i, L* scans, int flags) {
    using P = pack<L, N, Isa>;
    constexpr std::make_integer_sequence<int, N> places{};
    constexpr int half = N / 2;
    if (flags >= 8) ask_for<4 * N, 2>(run, i + (flags >> 3));
    else if (flags & 4) ask_for<4 * N, 0>(run, i + ahead<N>);
    P const a = value<L, Isa, N>(tree, run, i), b = value<L, Isa, N>(tree, run, i + N);
    P const c = value<L, Isa, N>(tree, run, i + 2 * N), d = value<L, Isa, N>(tree, run, i + 3 * N);
    P const first = scanned_groups<S, half>(halves_from<0>(a, c, places)), third = scanned_groups<S, half>(halves_from<0>(b, d, places));
    P const second = S::combine(last_of_groups<half>(first, places), scanned_groups<S, half>(halves_from<1>(a, c, places)));
    P const fourth = S::combine(last_of_groups<half>(third, places), scanned_groups<S, half>(halves_from<1>(b, d, places)));
    P const front = last_of_groups<half>(second, places), y = S::combine(front, third), z = S::combine(front, fourth);
    halves_from<0>(first, second, places).store(scans);
    halves_from<0>(y, z, places).store(scans + N);
    halves_from<1>(first, second, places).store(scans + 2 * N);
    halves_from<1>(y, z, places).store(scans + 3 * N);
  }
  /// Scans whole blocks among elements [i, stop), which go past the caches: each is written while the next one is scanned, since memory takes it at
  /// its own pace. Gives where that came to.
  template <class Isa, int N, int Joined>
  SITU_INLINE static int64_t scan_blocks(Tree const& tree, Run<Operands> const& run, int64_t i, int64_t stop, A base, A& chain, int flags) {
    constexpr int group = Joined * N;
    alignas(64) L scans[2][block * group], high[block], low[block];
    alignas(64) A chains[block];
    Out* const out = static_cast<Out*>(run.data[0]);
    bool waits = false;
    L *here = scans[0], *before = scans[1];
    for (; i + block * group <= stop; i += block * group) {
      constexpr int step = in_halves<Isa, N, Joined> ? 2 : 1;
      for (int k = 0; k < block; k += step) {
        if constexpr (step == 2) scan_two_groups<Isa, N>(tree, run, i + k * group, here + k * group, flags);
        else scan_group<Isa, N, Joined>(tree, run, i + k * group, here + k * group, flags);
        if (waits) put_behind_floats<Isa, N, Joined>(high[k], low[k], before + k * group, out + i - (block - k) * group, true);
        chains[k] = chain;
        chain = S::combine(chain, static_cast<A>(here[(k + 1) * group - 1]));
        if constexpr (step == 2) {
          if (waits) put_behind_floats<Isa, N, Joined>(high[k + 1], low[k + 1], before + (k + 1) * group, out + i - (block - k - 1) * group, true);
          chains[k + 1] = chain;
          chain = S::combine(chain, static_cast<A>(here[(k + 2) * group - 1]));
        }
      }
      waits = split_fronts<Isa>(base, chains, block, high, low);
      if (SITU_UNLIKELY(!waits)) put_behind<Isa, N, Joined>(base, chains, here, block, out + i, true);
      L* const written = before;
      before = here, here = written;
    }
    for (int k = 0; waits && k < block; ++k) put_behind_floats<Isa, N, Joined>(high[k], low[k], before + k * group, out + i - (block - k) * group, true);
    return i;
  }
  /// Scans elements [i, stop) of a run, `Joined` packs at a time, and gives where it came to. `flags` says whether to write.
  template <class Isa, int N, int Joined>
  SITU_INLINE static int64_t scan_packs(Tree const& tree, Run<Operands> const& run, int64_t i, int64_t stop, A base, A& chain, int flags) {
    constexpr int group = Joined * N;
    bool const stream = flags & 2;
    Out* const out = static_cast<Out*>(run.data[0]);
    if ((sums_keep_order || std::is_integral_v<A>) && !(flags & 1)) {
      using P = pack<L, N, Isa>;
      constexpr int together = totals_together<P>;
      for (; together % Joined == 0 && i + together * N <= stop; i += together * N) {
        if (flags & 4) ask_for<together * N, 3>(run, i + ahead<N>);
        alignas(64) L totals[N];
        groups_combined<S, together>(combined_packs<Isa, N>(tree, run, i)).store(totals);
        for (int k = 0; k < together; k += Joined) chain = S::combine(chain, static_cast<A>(Joined == 1 ? totals[k] : S::combine(totals[k], totals[k + Joined - 1])));
      }
    }
    if constexpr (in_two_floats && (Isa::bytes == 64 || in_halves<Isa, N, Joined>)) {  // of shorter packs it gains nothing
      if (stream) i = scan_blocks<Isa, N, Joined>(tree, run, i, stop, base, chain, flags);
    }
    alignas(64) L scans[block * group];
    alignas(64) A chains[block] = {};
    while (i + group <= stop) {
      int const fronts = static_cast<int>((stop - i) / group < block ? (stop - i) / group : block);
      int k = 0;
      if constexpr (in_halves<Isa, N, Joined>) {
        for (; k + 2 <= fronts; k += 2) {
          scan_two_groups<Isa, N>(tree, run, i + k * group, scans + k * group, flags);
          chains[k] = chain;
          chain = S::combine(chain, static_cast<A>(scans[(k + 1) * group - 1]));
          chains[k + 1] = chain;
          chain = S::combine(chain, static_cast<A>(scans[(k + 2) * group - 1]));
        }
      }
      for (; k < fronts; ++k) {
        chains[k] = chain;
        [[maybe_unused]] auto const y = scan_group<Isa, N, Joined>(tree, run, i + k * group, scans + k * group, flags);
        if constexpr (std::is_same_v<L, A>) {
          if (flags & 1) put<Isa, N>(S::combine(pack<A, N, Isa>(S::combine(base, chain)), y), out + i + k * N, stream);
        }
        chain = S::combine(chain, static_cast<A>(scans[(k + 1) * group - 1]));
      }
      if ((flags & 1) && !std::is_same_v<L, A>) put_behind<Isa, N, Joined>(base, chains, scans, fronts, out + i, stream);
      i += fronts * group;
    }
    return i;
  }

  /// `rows` lines of run.count elements, `bytes` apart operand by operand, each with `base` in front; `chain` goes on, from line to line it
  /// starts again. `flags` says whether to write.
  struct Line {
    template <class Isa>
    SITU_INLINE static void run(Tree const* tree_, Run<Operands> const* run_, int64_t rows, int64_t const* bytes, A base, A* chain_, int flags) {
      constexpr int N = Isa::bytes / widest_line;
      Tree const tree = *tree_;
      bool const writes = flags & 1, stream = flags & 2;
      int64_t const n = run_->count, rounded = (n + N - 1) / N * N;
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
        int64_t i = 0;
        if constexpr (joined<N> > 1) i = scan_packs<Isa, N, joined<N>>(tree, run, i, n, base, chain, flags);
        i = scan_packs<Isa, N, 1>(tree, run, i, room ? rounded : n, base, chain, flags);
        if (i >= n) continue;
        alignas(64) unsigned char buffers[Operands][64];
        alignas(64) L scans[N];
        int const tail = static_cast<int>(n - i);
        Out* const out = static_cast<Out*>(run.data[0]) + i;
        buffer_tail<Tree>(run, buffers, i, tail);
        scanned<S>(value<L, Isa, N>(tree, run, 0)).store(scans);
        if (writes) {
          alignas(64) Out last[N];
          alignas(64) A const chains[block] = {chain};
          put_behind<Isa, N, 1>(base, chains, scans, 1, last, false);
          copy_short(out, last, tail * static_cast<int64_t>(sizeof(Out)));
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
      Run<Operands> const run = *run_;
      int64_t bytes[Operands];
      for (int o = 0; o < Operands; ++o) bytes[o] = bytes_[o];
      int64_t i = 0;
      int64_t const left = run.count % (2 * N), end = run.count - N;
      bool const overlaps = left % N != 0 && end >= 0;  // the last columns: a pack that begins among those before, done first
      P const last = overlaps ? add_pack<Isa, N>(tree, run, rows, bytes, bases + (end & based), chains, end, writes) : P(S::identity());
      bool const wide = stream || run.count >= 64;  // row by row: as memory lies, and in whole cache lines where it goes past the caches
      if (wide) {  // those that write without bases, as one thread does, have loops of their own
        if ((flags & 7) == 7) i = wide_rows<Isa, N, 7>(tree, run, rows, bytes, bases, chains, flags);
        else if ((flags & 7) == 5) i = wide_rows<Isa, N, 5>(tree, run, rows, bytes, bases, chains, flags);
        else i = wide_rows<Isa, N, -1>(tree, run, rows, bytes, bases, chains, flags);
      }
      for (; i + 2 * N <= run.count; i += 2 * N) {
        P chain = P::load(chains + i), chain2 = P::load(chains + i + N);
        Run<Operands> at = run;
        for (int row = 0; row < rows; ++row) {
          add_pair<Isa, N>(tree, at, rows, bytes, bases + i, chain, chain2, i, flags & 5);
          for (int o = 0; o < Operands; ++o) at.data[o] = static_cast<char*>(at.data[o]) + bytes[o];
        }
        chain.store(chains + i);
        chain2.store(chains + i + N);
      }
      if (left >= N) add_pack<Isa, N>(tree, run, rows, bytes, bases + (i & based), chains, i, writes).store(chains + i);
      if (overlaps) last.store(chains + end);
      else if (left % N != 0) add_columns<Isa, N>(tree, run, rows, bytes, bases, chains, writes);
    }

    /// Whole pairs of packs, row by row, four packs at a time; gives the column that they came to. `Flags` are those of run() where they are known,
    /// otherwise -1.
    template <class Isa, int N, int Flags>
    SITU_INLINE static int64_t wide_rows(Tree const& tree, Run<Operands> at, int rows, int64_t const* bytes, A const* bases, A* chains, int flags) {
      using P = pack<A, N, Isa>;
      if constexpr (Flags >= 0) flags = Flags;
      int64_t const end = at.count / (2 * N) * (2 * N);
      for (int row = 0; row < rows; ++row) {
        int64_t i = 0;
        for (; i + 4 * N <= end; i += 4 * N) {
          P chain = P::load(chains + i), chain2 = P::load(chains + i + N), chain3 = P::load(chains + i + 2 * N), chain4 = P::load(chains + i + 3 * N);
          add_pair<Isa, N>(tree, at, rows, bytes, bases + i, chain, chain2, i, flags);
          add_pair<Isa, N>(tree, at, rows, bytes, bases + i + 2 * N, chain3, chain4, i + 2 * N, flags);
          chain.store(chains + i);
          chain2.store(chains + i + N);
          chain3.store(chains + i + 2 * N);
          chain4.store(chains + i + 3 * N);
        }
        if (i < end) {
          P chain = P::load(chains + i), chain2 = P::load(chains + i + N);
          add_pair<Isa, N>(tree, at, rows, bytes, bases + i, chain, chain2, i, flags);
          chain.store(chains + i);
          chain2.store(chains + i + N);
        }
        for (int o = 0; o < Operands; ++o) at.data[o] = static_cast<char*>(at.data[o]) + bytes[o];
      }
      return end;
    }

    /// Two packs of a row onto their chains: with AVX-512 whole cache lines of floats. The row that comes `rows` later is asked for.
    template <class Isa, int N>
    SITU_INLINE static void add_pair(Tree const& tree, Run<Operands> const& at, int rows, int64_t const* bytes, A const* bases, pack<A, N, Isa>& chain,
                                     pack<A, N, Isa>& chain2, int64_t i, int flags) {
      using P = pack<A, N, Isa>;
      for (int o = 1; o < Operands; ++o) {
        int const size = ElementwiseBody<Tree, Out, Operands>::element_size(o);
        if (size > 0) __builtin_prefetch(static_cast<char const*>(at.data[o]) + (Operands == 2 ? i : i & at.mask[o]) * size + rows * bytes[o], 0, 2);
      }
      chain = S::combine(chain, value<A, Isa, N>(tree, at, i));
      chain2 = S::combine(chain2, value<A, Isa, N>(tree, at, i + N));
      if (!(flags & 1)) return;
      Out* const to = static_cast<Out*>(at.data[0]) + i;
      P y = chain, y2 = chain2;
      if (!(flags & 4)) y = S::combine(P::load(bases), chain), y2 = S::combine(P::load(bases + N), chain2);
      if (flags & 2) {
        put<Isa, N>(y, to, true);
        put<Isa, N>(y2, to + N, true);
      } else {
        __builtin_prefetch(to + rows * (bytes[0] / static_cast<int64_t>(sizeof(Out))), 1, 2);
        put<Isa, N>(y, to, false);
        put<Isa, N>(y2, to + N, false);
      }
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
