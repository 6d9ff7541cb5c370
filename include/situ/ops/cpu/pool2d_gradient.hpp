/// The gradients of pooling on the CPU: planes, window by window. Sums of 16-bit floats are made in float.
#pragma once

#include <situ/ops/cpu/gemm.hpp>
#include <situ/ops/cpu/pool2d.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// The lower or the upper half of a₀ b₀ a₁ b₁ ….
template <int Upper, class P, int... K>
SITU_INLINE P interleaved(P const& a, P const& b, std::integer_sequence<int, K...>) {
  constexpr int N = static_cast<int>(sizeof...(K));
#if defined(__clang__)
  return P(__builtin_shufflevector(a.v, b.v, (Upper * (N / 2) + K / 2 + K % 2 * N)...));
#else
  using I = signed_of_size<typename P::value_type>;
  typedef I indices __attribute__((vector_size(sizeof(a.v))));
  return P(__builtin_shuffle(a.v, b.v, indices{static_cast<I>(Upper * (N / 2) + K / 2 + K % 2 * N)...}));
#endif
}

/// Windows of 2 x 2 that lie side by side, of pairs of rows behind each other: their gradients go to the first of the largest elements.
template <class C>
struct LargestOfFourBody {
  static constexpr int least = 16 / static_cast<int>(sizeof(C));  ///< of a pack

  template <class Isa>
  SITU_INLINE static int run(C* to, C const* from, C const* g, int64_t rows, int64_t extent, int64_t windows) {
    if (windows < least) narrow<Isa>(to, from, g, rows, extent, windows);
    else wide<Isa, Isa::bytes / static_cast<int>(sizeof(C))>(to, from, g, rows, extent, windows);
    return 0;
  }

 private:
  template <class P>
  struct Four {
    P a0, a1, b0, b1;
  };
  template <class P>
  SITU_INLINE static void share(P const& a0, P const& a1, P const& b0, P const& b1, P const& gradient, Four<P>& shares) {
    P const zero(C(0));
    auto const second = (a1 > a0) | math::isnan(a1);
    P const top = select(second, a1, a0);
    auto const third = (b0 > top) | math::isnan(b0);
    P const most = select(third, b0, top);
    auto const fourth = (b1 > most) | math::isnan(b1);
    P const left = select(fourth, zero, gradient), rest = select(third, zero, left);
    shares.b1 = select(fourth, gradient, zero), shares.b0 = select(third, left, zero);
    shares.a1 = select(second, rest, zero), shares.a0 = select(second, zero, rest);
  }
  /// In the widest packs that fit a row; the last one of a row reaches back.
  template <class Isa, int N>
  SITU_INLINE static void wide(C* to, C const* from, C const* g, int64_t rows, int64_t extent, int64_t windows) {
    if constexpr (N > least) {
      if (windows < N) return wide<Isa, N / 2>(to, from, g, rows, extent, windows);
    }
    using P = pack<C, N, Isa>;
    constexpr std::make_integer_sequence<int, N> steps{};
    for (int64_t row = 0; row < rows; ++row, from += 2 * extent, to += 2 * extent, g += windows) {
      for (int64_t j = 0; j < windows; j += N) {
        int64_t const at = j + N <= windows ? j : windows - N;
        C const *const a = from + 2 * at, *const b = a + extent;
        P const al = P::load(a), ah = P::load(a + N), bl = P::load(b), bh = P::load(b + N), gradient = P::load(g + at);
        Four<P> shares;
        share(every_second<0>(al, ah, steps), every_second<1>(al, ah, steps), every_second<0>(bl, bh, steps), every_second<1>(bl, bh, steps), gradient, shares);
        C *const to_a = to + 2 * at, *const to_b = to_a + extent;
        interleaved<0>(shares.a0, shares.a1, steps).store(to_a);
        interleaved<1>(shares.a0, shares.a1, steps).store(to_a + N);
        interleaved<0>(shares.b0, shares.b1, steps).store(to_b);
        interleaved<1>(shares.b0, shares.b1, steps).store(to_b + N);
      }
    }
  }
  /// A pack of windows from several rows.
  template <class Isa>
  SITU_INLINE static void narrow(C* to, C const* from, C const* g, int64_t rows, int64_t extent, int64_t windows) {
    using P = pack<C, least, Isa>;
    int64_t column = 0;
    for (int64_t left = rows * windows; left > 0; left -= least, g += least) {
      C lanes[4][least] = {}, gradients[least] = {};
      int64_t places[least];
      int64_t const some = left < least ? left : least;
      C const* const begin = from;
      for (int64_t l = 0; l < some; ++l) {
        C const* const a = from + 2 * column;
        places[l] = a - begin, gradients[l] = g[l];
        lanes[0][l] = a[0], lanes[1][l] = a[1], lanes[2][l] = a[extent], lanes[3][l] = a[extent + 1];
        if (++column == windows) column = 0, from += 2 * extent;
      }
      Four<P> shares;
      share(P::load(lanes[0]), P::load(lanes[1]), P::load(lanes[2]), P::load(lanes[3]), P::load(gradients), shares);
      for (int l = 0; l < some; ++l) {
        C* const a = to + places[l];
        a[0] = shares.a0[l], a[1] = shares.a1[l], a[extent] = shares.b0[l], a[extent + 1] = shares.b1[l];
      }
      to += from - begin;
    }
  }
};

/// Items are planes. The places of the largest elements are found again.
template <class T, int Operands, int TreeBytes>
struct MaxPoolGradientKernel {
  using C = compute_t<T>;
  BoundTree<Operands, TreeBytes> bound;  ///< of the first row of the first plane; contiguous inputs, into C
  PoolPlan plan;
  T const* gradients;  ///< [planes, windows]
  C* result;           ///< [planes, height, width]
  bool direct;         ///< the input is a tensor of C

  void operator()(int64_t first, int64_t last) const {
    WindowAxis const &y = plan.y.axis, &x = plan.x.axis;
    int64_t const size = y.extent * x.extent, inside = 2 * y.windows * x.extent;
    bool const in_fours = std::is_same_v<T, C> && y.kernel == 2 && x.kernel == 2 && y.stride == 2 && x.stride == 2 && y.padding == 0 && x.padding == 0 &&
                          y.dilation == 1 && x.dilation == 1 && y.windows * 2 <= y.extent && x.windows * 2 <= x.extent;
    PackingBuffer const buffer(direct ? 0 : size * static_cast<int64_t>(sizeof(C)));
    for (int64_t plane = first; plane < last; ++plane) {
      C* const to = result + plane * size;
      T const* const g = gradients + plane * y.windows * x.windows;
      C const* from = nullptr;  // the plane, where there is one in memory
      if (direct || buffer.get()) from = read(static_cast<C*>(buffer.get()), plane * size, size);
      if (!in_fours || !from || 2 * x.windows < x.extent) {
        for (int64_t k = 0; k < size; ++k) to[k] = C(0);
      }
      if constexpr (std::is_same_v<T, C>) {
        if (in_fours && from) {
          dispatch<LargestOfFourBody<C>>(to, from, g, y.windows, x.extent, x.windows);
          for (int64_t k = inside; k < size; ++k) to[k] = C(0);
          continue;
        }
      }
      scatter(to, from, g, plane * size);
    }
  }

 private:
  /// Window by window; `from` is the plane, or null where there was no memory to evaluate it.
  void scatter(C* to, C const* from, T const* g, int64_t offset) const {
    WindowAxis const &y = plan.y.axis, &x = plan.x.axis;
    for (int64_t i = 0; i < y.windows; ++i, g += x.windows) {
      int64_t top, bottom;
      plan.y.range(i, top, bottom);
      for (int64_t j = 0; j < x.windows; ++j) {
        int64_t left, right;
        plan.x.range(j, left, right);
        int64_t place = top * x.extent + left;
        C largest{};
        bool any = false;
        for (int64_t row = top; row < bottom; row += y.dilation) {
          for (int64_t column = left; column < right; column += x.dilation) {
            alignas(64) C one[64 / sizeof(C)];
            int64_t const at = row * x.extent + column;
            C const value = from ? from[at] : *read(one, offset + at, 1);
            if (any && !(value > largest) && !math::isnan(value)) continue;
            largest = value, place = at, any = true;
          }
        }
        to[place] += static_cast<C>(g[j]);
      }
    }
  }
  /// Elements of the input: where they lie, or evaluated into `to`.
  C const* read(C* to, int64_t offset, int64_t count) const {
    if (direct) return static_cast<C const*>(bound.data[1]) + offset;
    Run<Operands> run;
    run.data[0] = to;
    for (int o = 1; o < Operands; ++o) run.data[o] = static_cast<char*>(bound.data[o]) + offset * bound.sizes[o];
    run.count = count;
    run.origin = offset;
    bound.run_contiguous(run, false);
    return to;
  }
};

/// Items are planes: every window gives each of its elements an equal share.
template <class T>
struct MeanPoolGradientKernel {
  using C = compute_t<T>;
  PoolPlan plan;
  T const* gradients;  ///< [planes, windows]
  C* result;           ///< [planes, height, width]

  void operator()(int64_t first, int64_t last) const {
    WindowAxis const &y = plan.y.axis, &x = plan.x.axis;
    int64_t const size = y.extent * x.extent;
    for (int64_t plane = first; plane < last; ++plane) {
      C* const to = result + plane * size;
      T const* g = gradients + plane * y.windows * x.windows;
      for (int64_t k = 0; k < size; ++k) to[k] = C(0);
      for (int64_t i = 0; i < y.windows; ++i, g += x.windows) {
        int64_t top, bottom;
        plan.y.range(i, top, bottom);
        for (int64_t j = 0; j < x.windows; ++j) {
          int64_t left, right;
          plan.x.range(j, left, right);
          int64_t const count = plan.count_padding ? plan.y.padded_count(i) * plan.x.padded_count(j) : (bottom - top) * (right - left);
          C const share = static_cast<C>(g[j]) / static_cast<C>(count);
          for (int64_t row = top; row < bottom; ++row) {
            C* const line = to + row * x.extent;
            for (int64_t column = left; column < right; ++column) line[column] += share;
          }
        }
      }
    }
  }
};

}  // namespace detail::cpu

namespace detail {

inline int64_t planes_at_once(PoolPlan const& plan) {
  int64_t const work = plan.y.axis.extent * plan.x.axis.extent + plan.y.axis.windows * plan.x.axis.windows * plan.y.axis.kernel;
  return (int64_t{1} << 15) / (work < (1 << 15) ? work + 1 : 1 << 15) + 1;
}

/// The gradient of the largest elements, from contiguous gradients of the windows and a formula of contiguous tensors of one shape.
template <class D, class T, class E, class C>
void launch_max_pool_gradient(cpu_kernels, PoolPlan const& plan, E const& e, T const* gradients, C* result) {
  constexpr int operands = leaf_count<E> + 1;
  cpu::MaxPoolGradientKernel<T, operands, cpu::tree_bytes<tree_of<E>>> kernel;
  cpu::bind_tree<C>(kernel.bound, lower<0>(e));
  collect_places(e, kernel.bound.data);
  kernel.plan = plan, kernel.gradients = gradients, kernel.result = result;
  kernel.direct = std::is_same_v<tree_of<E>, Input<C, 0>>;
  device_traits<D>::launch(kernel, plan.planes, planes_at_once(plan));
}
/// That of means.
template <class D, class T, class C>
void launch_mean_pool_gradient(cpu_kernels, PoolPlan const& plan, T const* gradients, C* result) {
  device_traits<D>::launch(cpu::MeanPoolGradientKernel<T>{plan, gradients, result}, plan.planes, planes_at_once(plan));
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
