/// The gradients of pooling on the CPU, plane by plane. Sums of 16-bit floats are made in float.
///
/// Each element gathers from the windows that it belongs to: rows of gradients, and of the places of the largest elements, with room around them.
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
  using Ix = signed_of_size<typename P::value_type>;
  typedef Ix indices __attribute__((vector_size(sizeof(a.v))));
  return P(__builtin_shuffle(a.v, b.v, indices{static_cast<Ix>(Upper * (N / 2) + K / 2 + K % 2 * N)...}));
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

/// What is gathered from in one plane: rows of windows with `before` columns, of which no window is, in front of them and enough behind.
template <class C>
struct PoolGatherPlan {
  static constexpr int64_t longest_pack = 64 / static_cast<int>(sizeof(C));
  WindowAxis y, x;
  int64_t before, step;      ///< of a row of windows
  int64_t image_step;        ///< of a row of the image with its padding

  PoolGatherPlan(WindowAxis const& rows, WindowAxis const& columns) : y(rows), x(columns) {
    int64_t const reach = (x.kernel - 1) * x.dilation + 1, most = x.extent / x.stride + 1 > x.windows ? x.extent / x.stride + 1 : x.windows;
    before = reach;
    step = before + most + x.padding + reach + 2 * longest_pack;
    image_step = x.stride * (most + longest_pack) + reach + x.padding + x.extent % x.stride + longest_pack;
  }
  /// Places in windows are counted in C. Windows that are few beside the image are read one by one.
  static bool takes(PoolPlan const& plan) {
    WindowAxis const &y = plan.y.axis, &x = plan.x.axis;
    return !plan.y.adaptive && plan.pads_rows() && x.stride <= 2 && y.kernel * x.kernel < (int64_t{1} << 24) && y.padding <= y.extent + 64 &&
           16 * y.windows * x.windows >= y.extent * x.extent;
  }
  int64_t windows_size() const { return y.windows * step + longest_pack; }
  int64_t image_size() const { return y.extent * image_step + longest_pack; }
};

/// For a row of windows: which of a window's elements is the largest, counted by rows; the first that stands in the image, and less than 0 where none does, are
/// in `begin`.
template <class C>
struct PoolLargestBody {
  template <class Isa>
  SITU_INLINE static int run(C* chosen, C const* image, C const* begin, int64_t first, int64_t last, PoolGatherPlan<C> const& plan) {
    if (plan.x.stride == 1) strided<Isa, 1>(chosen, image, begin, first, last, plan);
    else strided<Isa, 2>(chosen, image, begin, first, last, plan);
    return 0;
  }

 private:
  template <class Isa, int Stride>
  SITU_INLINE static void strided(C* chosen, C const* image, C const* begin, int64_t first, int64_t last, PoolGatherPlan<C> const& plan) {
    constexpr int lanes = Isa::bytes / static_cast<int>(sizeof(C));
    using P = pack<C, lanes, Isa>;
    WindowAxis const& x = plan.x;
    for (int64_t j = 0; j < x.windows; j += lanes) {
      P most(max_pooling::least<C>()), at = P::load(begin + j) + P(static_cast<C>(first * x.kernel));
      C const* row = image + Stride * j;
      for (int64_t u = first; u < last; ++u, row += plan.y.dilation * plan.image_step) {
        for (int64_t v = 0; v < x.kernel; ++v) {
          P const value = strided_lanes<Stride, P>(row + v * x.dilation);
          auto const larger = (value > most) | math::isnan(value);
          most = select(larger, value, most);
          at = select(larger, P(static_cast<C>(u * x.kernel + v)), at);
        }
      }
      at.store(chosen + j);
    }
  }
};

/// A row of the image: the sum of the gradients of its windows, where Largest of those that have chosen the element.
template <class C, bool Largest>
struct PoolGatherBody {
  /// `gradients` and `chosen` are those of row 0, column 0 of the windows.
  template <class Isa>
  SITU_INLINE static int run(C* to, C const* gradients, C const* chosen, int64_t row, PoolGatherPlan<C> const& plan) {
    if (plan.x.stride == 1) strided<Isa, 1>(to, gradients, chosen, row, plan);
    else strided<Isa, 2>(to, gradients, chosen, row, plan);
    return 0;
  }

 private:
  /// For columns Stride m + Phase.
  template <class P, int Stride, int Phase>
  SITU_INLINE static P sum(C const* gradients, C const* chosen, int64_t row, int64_t m, PoolGatherPlan<C> const& plan) {
    P result(C(0));
    WindowAxis const &y = plan.y, &x = plan.x;
    for (int64_t u = y.kernel - 1; u >= 0; --u) {  // windows in their order
      int64_t const behind = row + y.padding - u * y.dilation, i = behind / y.stride;
      if (behind < 0 || behind % y.stride != 0 || i >= y.windows) continue;
      for (int64_t v = x.kernel - 1; v >= 0; --v) {
        int64_t const shift = Phase + x.padding - v * x.dilation;
        if constexpr (Stride == 2) {
          if (shift & 1) continue;
        }
        int64_t const at = i * plan.step + m + (Stride == 2 ? shift >> 1 : shift);
        P const g = P::load(gradients + at);
        if constexpr (Largest) result = result + select(P::load(chosen + at) == P(static_cast<C>(u * x.kernel + v)), g, P(C(0)));
        else result = result + g;
      }
    }
    return result;
  }
  template <class Isa, int Stride>
  SITU_INLINE static void strided(C* to, C const* gradients, C const* chosen, int64_t row, PoolGatherPlan<C> const& plan) {
    constexpr int lanes = Isa::bytes / static_cast<int>(sizeof(C)), some = Stride * lanes;
    using P = pack<C, lanes, Isa>;
    for (int64_t k = 0; k < plan.x.extent; k += some) {
      C last[some];
      C* const at = k + some <= plan.x.extent ? to + k : last;
      P const even = sum<P, Stride, 0>(gradients, chosen, row, k / Stride, plan);
      if constexpr (Stride == 1) {
        even.store(at);
      } else {
        constexpr std::make_integer_sequence<int, lanes> steps{};
        P const odd = sum<P, Stride, 1>(gradients, chosen, row, k / Stride, plan);
        interleaved<0>(even, odd, steps).store(at);
        interleaved<1>(even, odd, steps).store(at + lanes);
      }
      if (at == last) std::memcpy(to + k, last, static_cast<std::size_t>(plan.x.extent - k) * sizeof(C));
    }
  }
};

/// Where in its plane the largest element of window (i, j) is, the first of them or the last NaN; -1 for a window without elements: dilated ones may lie in
/// the padding. `value(place)` gives an element.
template <class F>
int64_t place_of_largest(PoolPlan const& plan, int64_t i, int64_t j, F const& value) {
  WindowAxis const &y = plan.y.axis, &x = plan.x.axis;
  int64_t top, bottom, left, right;
  plan.y.range(i, top, bottom);
  plan.x.range(j, left, right);
  int64_t place = -1;
  decltype(value(int64_t{})) largest{};
  for (int64_t row = top; row < bottom; row += y.dilation) {
    for (int64_t column = left; column < right; column += x.dilation) {
      int64_t const at = row * x.extent + column;
      auto const here = value(at);
      if (place >= 0 && !(here > largest) && !math::isnan(here)) continue;
      largest = here, place = at;
    }
  }
  return place;
}

/// Items are planes: of each window of x, what stands in `from` in the place of the largest element; 0 for windows without elements.
template <class C>
struct MaxPoolPickKernel {
  PoolPlan plan;
  C const *x, *from;  ///< [planes, height, width]
  C* result;          ///< [planes, windows]
  void operator()(int64_t first, int64_t last) const {
    int64_t const size = plan.y.axis.extent * plan.x.axis.extent;
    C* to = result + first * plan.y.axis.windows * plan.x.axis.windows;
    for (int64_t plane = first; plane < last; ++plane) {
      for (int64_t i = 0; i < plan.y.axis.windows; ++i) {
        for (int64_t j = 0; j < plan.x.axis.windows; ++j) {
          int64_t const place = place_of_largest(plan, i, j, [&](int64_t at) { return x[plane * size + at]; });
          *to++ = place < 0 ? C(0) : from[plane * size + place];
        }
      }
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
    if (!in_fours && PoolGatherPlan<C>::takes(plan) && gather(first, last)) return;
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
  /// By packs; false where there is no memory for it.
  bool gather(int64_t first, int64_t last) const {
    WindowAxis const &y = plan.y.axis, &x = plan.x.axis;
    PoolGatherPlan<C> const shape(y, x);
    int64_t const windows_size = shape.windows_size(), image_size = shape.image_size(), all = 2 * windows_size + image_size + shape.step;
    PackingBuffer const memory(all * static_cast<int64_t>(sizeof(C)));
    C* const buffer = static_cast<C*>(memory.get());
    if (!buffer) return false;
    C *const chosen = buffer + shape.before, *const g = chosen + windows_size, *const image = buffer + 2 * windows_size, *const begin = image + image_size;
    for (int64_t k = 0; k < all; ++k) buffer[k] = k < windows_size ? C(-1) : k < 2 * windows_size ? C(0) : max_pooling::least<C>();
    for (int64_t j = 0; j < x.windows; ++j) {
      int64_t left, right;
      plan.x.range(j, left, right);
      begin[j] = left < right ? static_cast<C>((left - x.start(j)) / x.dilation) : -static_cast<C>(y.kernel * x.kernel);
    }
    for (int64_t plane = first; plane < last; ++plane) {
      for (int64_t row = 0; row < y.extent; ++row) {
        int64_t const offset = (plane * y.extent + row) * x.extent;
        C* const to = image + row * shape.image_step + x.padding;
        if (direct) std::memcpy(to, static_cast<C const*>(bound.data[1]) + offset, static_cast<std::size_t>(x.extent) * sizeof(C));
        else read(to, offset, x.extent);
      }
      T const* from = gradients + plane * y.windows * x.windows;
      for (int64_t i = 0; i < y.windows; ++i, from += x.windows) {
        int64_t top, bottom;
        plan.y.range(i, top, bottom);
        C *const places = chosen + i * shape.step, *const values = g + i * shape.step;
        for (int64_t j = 0; j < x.windows; ++j) values[j] = static_cast<C>(from[j]);
        int64_t const skipped = (top - y.start(i)) / y.dilation, rows = top < bottom ? (bottom - top + y.dilation - 1) / y.dilation : 0;
        dispatch<PoolLargestBody<C>>(places, image + top * shape.image_step, begin, skipped, skipped + rows, shape);
        for (int64_t j = x.windows; j < x.windows + shape.longest_pack; ++j) places[j] = C(-1);
        if (rows == 0) for (int64_t j = 0; j < x.windows; ++j) places[j] = C(-1);
      }
      C* const to = result + plane * y.extent * x.extent;
      for (int64_t row = 0; row < y.extent; ++row) dispatch<PoolGatherBody<C, true>>(to + row * x.extent, g, chosen, row, shape);
    }
    return true;
  }
  /// Window by window; `from` is the plane, or null where there was no memory to evaluate it.
  void scatter(C* to, C const* from, T const* g, int64_t offset) const {
    for (int64_t i = 0; i < plan.y.axis.windows; ++i) {
      for (int64_t j = 0; j < plan.x.axis.windows; ++j, ++g) {
        int64_t const place = place_of_largest(plan, i, j, [&](int64_t at) {
          alignas(64) C one[64 / sizeof(C)];
          return from ? from[at] : *read(one, offset + at, 1);
        });
        if (place >= 0) to[place] += static_cast<C>(*g);
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
    if (PoolGatherPlan<C>::takes(plan) && gather(first, last)) return;
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

 private:
  /// By packs; false where there is no memory for it.
  bool gather(int64_t first, int64_t last) const {
    WindowAxis const &y = plan.y.axis, &x = plan.x.axis;
    PoolGatherPlan<C> const shape(y, x);
    int64_t const all = shape.windows_size() + x.windows;
    PackingBuffer const memory(all * static_cast<int64_t>(sizeof(C)));
    C* const buffer = static_cast<C*>(memory.get());
    if (!buffer) return false;
    C *const shares = buffer + shape.before, *const columns = buffer + shape.windows_size();
    for (int64_t k = 0; k < all; ++k) buffer[k] = C(0);
    auto const count = [this](PoolAxis const& axis, int64_t window) {
      if (plan.count_padding) return axis.padded_count(window);
      int64_t from, behind;
      axis.range(window, from, behind);
      return behind - from;
    };
    for (int64_t j = 0; j < x.windows; ++j) columns[j] = static_cast<C>(count(plan.x, j));
    for (int64_t plane = first; plane < last; ++plane) {
      T const* from = gradients + plane * y.windows * x.windows;
      for (int64_t i = 0; i < y.windows; ++i, from += x.windows) {
        C const rows = static_cast<C>(count(plan.y, i));
        for (int64_t j = 0; j < x.windows; ++j) shares[i * shape.step + j] = static_cast<C>(from[j]) / (rows * columns[j]);
      }
      C* const to = result + plane * y.extent * x.extent;
      for (int64_t row = 0; row < y.extent; ++row) dispatch<PoolGatherBody<C, false>>(to + row * x.extent, shares, shares, row, shape);
    }
    return true;
  }
};

}  // namespace detail::cpu

namespace detail {

inline int64_t planes_at_once(PoolPlan const& plan) {
  int64_t const work = plan.y.axis.extent * plan.x.axis.extent + plan.y.axis.windows * plan.x.axis.windows * (plan.y.axis.kernel < plan.y.axis.extent ? plan.y.axis.kernel : plan.y.axis.extent);
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
/// What stands in the places of x's largest elements.
template <class D, class C>
void launch_max_pool_pick(cpu_kernels, PoolPlan const& plan, Tensor<C, D> const& x, C const* from, C* result) {
  device_traits<D>::launch(cpu::MaxPoolPickKernel<C>{plan, x.data(), from, result}, plan.planes, planes_at_once(plan));
}
/// That of means.
template <class D, class T, class C>
void launch_mean_pool_gradient(cpu_kernels, PoolPlan const& plan, T const* gradients, C* result) {
  device_traits<D>::launch(cpu::MeanPoolGradientKernel<T>{plan, gradients, result}, plan.planes, planes_at_once(plan));
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
