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

/// Whole packs of windows of 2 x 2 that lie side by side, from rows a and b: their gradients go to the first of the largest elements.
template <class C>
struct LargestOfFourBody {
  template <class Isa>
  SITU_INLINE static int64_t run(C* to_a, C* to_b, C const* a, C const* b, C const* g, int64_t count) {
    constexpr int N = Isa::bytes / static_cast<int>(sizeof(C));
    using P = pack<C, N, Isa>;
    constexpr std::make_integer_sequence<int, N> steps{};
    P const zero(C(0));
    int64_t k = 0;
    for (; k + N <= count; k += N) {
      P const al = P::load(a + 2 * k), ah = P::load(a + 2 * k + N), bl = P::load(b + 2 * k), bh = P::load(b + 2 * k + N), gradient = P::load(g + k);
      P const a0 = every_second<0>(al, ah, steps), a1 = every_second<1>(al, ah, steps), b0 = every_second<0>(bl, bh, steps), b1 = every_second<1>(bl, bh, steps);
      auto const second = (a1 > a0) | math::isnan(a1);
      P const top = select(second, a1, a0);
      auto const third = (b0 > top) | math::isnan(b0);
      P const most = select(third, b0, top);
      auto const fourth = (b1 > most) | math::isnan(b1);
      P const g3 = select(fourth, gradient, zero), left = select(fourth, zero, gradient);
      P const g2 = select(third, left, zero), rest = select(third, zero, left);
      P const g1 = select(second, rest, zero), g0 = select(second, zero, rest);
      interleaved<0>(g0, g1, steps).store(to_a + 2 * k);
      interleaved<1>(g0, g1, steps).store(to_a + 2 * k + N);
      interleaved<0>(g2, g3, steps).store(to_b + 2 * k);
      interleaved<1>(g2, g3, steps).store(to_b + 2 * k + N);
    }
    return k;
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
    int64_t const padded = (x.extent + 63) / 64 * 64 + 64, size = y.extent * x.extent;
    bool const in_fours = std::is_same_v<T, C> && y.kernel == 2 && x.kernel == 2 && y.stride == 2 && x.stride == 2 && y.padding == 0 && x.padding == 0 &&
                          y.dilation == 1 && x.dilation == 1 && y.windows * 2 <= y.extent && x.windows * 2 <= x.extent;
    PackingBuffer const buffer(direct ? 0 : 2 * padded * static_cast<int64_t>(sizeof(C)));
    for (int64_t plane = first; plane < last; ++plane) {
      C* const to = result + plane * size;
      T const* g = gradients + plane * y.windows * x.windows;
      for (int64_t k = 0; k < size; ++k) to[k] = C(0);
      for (int64_t i = 0; i < y.windows; ++i, g += x.windows) {
        int64_t top, bottom, done = 0;
        plan.y.range(i, top, bottom);
        if constexpr (std::is_same_v<T, C>) {
          if (in_fours && (direct || buffer.get())) {
            C* const rows = static_cast<C*>(buffer.get());
            C const* const a = read(rows, plane * size + top * x.extent, x.extent);
            C const* const b = read(rows + padded, plane * size + (top + 1) * x.extent, x.extent);
            done = dispatch<LargestOfFourBody<C>>(to + top * x.extent, to + (top + 1) * x.extent, a, b, g, x.windows);
          }
        }
        for (int64_t j = done; j < x.windows; ++j) {
          int64_t left, right;
          plan.x.range(j, left, right);
          int64_t place = top * x.extent + left;
          C largest{};
          bool any = false;
          for (int64_t row = top; row < bottom; row += y.dilation) {
            for (int64_t column = left; column < right; column += x.dilation) {
              alignas(64) C one[64 / sizeof(C)];
              C const value = *read(one, plane * size + row * x.extent + column, 1);
              if (any && !(value > largest) && !math::isnan(value)) continue;
              largest = value, place = row * x.extent + column, any = true;
            }
          }
          to[place] += static_cast<C>(g[j]);
        }
      }
    }
  }

 private:
  /// Elements of the input: where they lie, or evaluated into `to`, which is padded.
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
