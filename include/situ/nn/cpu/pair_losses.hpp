/// Losses of pairs of elements on the CPU: one pass in each direction, by packs. Sums are taken block by block, in double, so that they do not
/// depend on the number of threads.
#pragma once

#include <situ/nn/cpu/loss_parts.hpp>
#include <situ/nn/pair_functions.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

inline constexpr int64_t pair_block = int64_t{1} << 15;

/// A block of pairs.
template <class T>
struct Pairs {
  using C = compute_t<T>;
  T const *x, *y, *a, *b;
  int64_t count;
  int64_t readable;  ///< elements from their first on that may be read
  C parameter;
  T* losses;         ///< or null
  double total;
  T const* slopes;   ///< backward: of single losses; or null
  C slope;           ///< that of all of them
  T *dx, *dy;        ///< null where not wanted
};

template <class Kind, class T, class Isa>
struct PairLanes {
  using C = compute_t<T>;
  static constexpr int N = Isa::bytes / static_cast<int>(sizeof(C));
  using P = pack<C, N, Isa>;
  P x, y, a, b;

  SITU_INLINE static P load(T const* from, int64_t i, Pairs<T> const& p) {
    if (SITU_LIKELY(i + N <= p.readable)) return P(load_lanes<T, N, Isa>(from + i));
    return P(load_last<T, N, Isa>(from + i, p.count - i, p.readable - i));
  }
  SITU_INLINE PairLanes(Pairs<T> const& p, int64_t i) : x(load(p.x, i, p)), y(load(p.y, i, p)), a(p.parameter), b(C(1)) {
    if constexpr (Kind::weighs) {
      if (p.a) a = load(p.a, i, p);
      if (p.b) b = load(p.b, i, p);
    }
  }
  SITU_INLINE P value() const { return Kind::value(x, y, a, b); }
  SITU_INLINE static void store(P const& v, T* to, int64_t left) {
    if (SITU_LIKELY(left >= N)) return store_lanes<T, N, Isa>(v, to);
    T lanes[N];
    store_lanes<T, N, Isa>(v, lanes);
    copy_short(to, lanes, left * static_cast<int64_t>(sizeof(T)));
  }
};

template <class Kind, class T>
struct PairForwardBody {
  using C = compute_t<T>;
  template <class Isa>
  SITU_INLINE static int run(Pairs<T>* given) {
    using Lanes = PairLanes<Kind, T, Isa>;
    using P = typename Lanes::P;
    constexpr int N = Lanes::N;
    Pairs<T> const p = *given;
    int64_t const n = p.count;
    if (p.losses) {
      for (int64_t i = 0; i < n; i += N) Lanes::store(Lanes(p, i).value(), p.losses + i, n - i);
      return 0;
    }
    double total = 0;
    for (int64_t i = 0; i < n;) {
      int64_t const stop = i + row_block < n ? i + row_block : n;
      P s(C(0)), s1 = s;
      for (; i + 2 * N <= stop; i += 2 * N) {
        s = s + Lanes(p, i).value();
        s1 = s1 + Lanes(p, i + N).value();
      }
      for (; i < stop; i += N) {
        P const v = Lanes(p, i).value();
        s = s + (stop - i < N ? select(lanes_below<C, N, Isa>(stop - i), v, P(C(0))) : v);
      }
      total += static_cast<double>(sum_of_lanes(s + s1));
    }
    given->total = total;
    return 0;
  }
};

template <class Kind, class T>
struct PairBackwardBody {
  using C = compute_t<T>;
  template <class Isa>
  SITU_INLINE static int run(Pairs<T> const* given) {
    using Lanes = PairLanes<Kind, T, Isa>;
    using P = typename Lanes::P;
    constexpr int N = Lanes::N;
    Pairs<T> const p = *given;
    int64_t const n = p.count;
    P const all(p.slope);
    if (!p.dy) {
      for (int64_t i = 0; i < n; i += N) {
        Lanes const at(p, i);
        P const g = p.slopes ? Lanes::load(p.slopes, i, p) : all;
        Lanes::store(g * losses::slope_of_x<Kind>(at.x, at.y, at.a, at.b), p.dx + i, n - i);
      }
      return 0;
    }
    for (int64_t i = 0; i < n; i += N) {
      Lanes const at(p, i);
      P const g = p.slopes ? Lanes::load(p.slopes, i, p) : all;
      P dx, dy;
      Kind::slopes(at.x, at.y, at.a, at.b, dx, dy);
      if (p.dx) Lanes::store(g * dx, p.dx + i, n - i);
      Lanes::store(g * dy, p.dy + i, n - i);
    }
    return 0;
  }
};

/// Items are blocks.
template <class Kind, class T>
struct PairForward {
  using C = compute_t<T>;
  PairProgram<T> p;
  LossPart* parts;  ///< of blocks; null where there is one block

  int64_t elements(int64_t) const { return p.count; }
  void operator()(int64_t first, int64_t last) const {
    for (int64_t block = first; block < last; ++block) {
      Pairs<T> a = pairs_of(p, block);
      a.losses = p.how == reduction::none ? p.losses + block * pair_block : nullptr;
      dispatch<PairForwardBody<Kind, T>>(&a);
      if (parts) parts[block] = {a.total, 0};
      else p.finish({a.total, 0});
    }
  }
  static Pairs<T> pairs_of(PairProgram<T> const& p, int64_t block) {
    int64_t const at = block * pair_block;
    Pairs<T> a{};
    a.x = p.x + at, a.y = p.y + at;
    if (p.a) a.a = p.a + at;
    if (p.b) a.b = p.b + at;
    a.readable = p.count - at;
    a.count = a.readable < pair_block ? a.readable : pair_block;
    a.parameter = static_cast<C>(p.parameter);
    return a;
  }
};
template <class Kind, class T>
struct PairBackward {
  using C = compute_t<T>;
  PairProgram<T> p;
  T const* g;
  T *dx, *dy;

  int64_t elements(int64_t) const { return p.count; }
  void operator()(int64_t first, int64_t last) const {
    for (int64_t block = first; block < last; ++block) {
      Pairs<T> a = PairForward<Kind, T>::pairs_of(p, block);
      if (p.how == reduction::none) a.slopes = g + block * pair_block;
      else a.slope = static_cast<C>(static_cast<double>(static_cast<C>(*g)) / p.divisor);
      a.dx = dx ? dx + block * pair_block : nullptr;
      a.dy = dy ? dy + block * pair_block : nullptr;
      dispatch<PairBackwardBody<Kind, T>>(const_cast<Pairs<T> const*>(&a));
    }
  }
};

}  // namespace detail::cpu

namespace detail {

/// Runs a loss of pairs on D, which has the CPU's kernels: one launch, or two when it is cut into blocks.
template <class D, class Kind, class T>
void launch_pair_loss(cpu_kernels, PairProgram<T> const& p) {
  int64_t const blocks = p.count > cpu::pair_block ? (p.count + cpu::pair_block - 1) / cpu::pair_block : 1;
  bool const joins = blocks > 1 && p.how != reduction::none;
  Temporary<D> const memory(joins ? static_cast<std::size_t>(blocks) * sizeof(LossPart) : 0);
  auto* const parts = static_cast<LossPart*>(memory.get());
  cpu::PairForward<Kind, T> const kernel{p, parts};
  device_traits<D>::launch(kernel, blocks, 2);
  if (joins) device_traits<D>::launch(cpu::JoinLosses<PairProgram<T>>{p, parts, blocks}, 1, 1);
}
template <class D, class Kind, class T>
void launch_pair_gradient(cpu_kernels, PairProgram<T> const& p, T const* g, T* dx, T* dy) {
  device_traits<D>::launch(cpu::PairBackward<Kind, T>{p, g, dx, dy}, (p.count + cpu::pair_block - 1) / cpu::pair_block, 2);
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
