/// Convolution with few outputs for each group of channels on the CPU: of every channel with a kernel of its own, for the most part.
#pragma once

#include <situ/core/device.hpp>
#include <situ/ops/cpu/conv2d_direct.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// One output of a band of rows, from a padded copy: a vector of windows of six rows at a time.
template <class T>
struct FewOutputs {
  using C = product_t<T>;
  static constexpr int64_t most = 3;                ///< outputs of a group; more are summed together
  static constexpr int together = 6;               ///< rows
  static constexpr int64_t band_bytes = 24 << 10;  ///< of the padded copy of a channel, about
  static constexpr int64_t vector = 64 / static_cast<int64_t>(sizeof(C));  ///< elements of the widest
  C const* image;         ///< the padded copy
  int64_t const* places;  ///< in it, of a window's columns
  C const* weights;       ///< [channels, kernel rows, kernel columns]
  C bias;
  T* to;
  int64_t channels, kernel_rows, kernel_columns;
  int64_t windows, rows;
  int64_t step_channel, step_kernel, step_row;  ///< in the copy

  static bool suits(Convolution<T> const& c) { return c.outputs <= most && c.channels > 0 && reads_closely(c.pixels.windows.y) && reads_closely(c.pixels.windows.x) && (c.channels == 1 || !c.is_pointwise()); }
};

/// Calls Body::line for `together` rows at a time, and for what is left row by row, in packs of N windows.
template <class Body, class Isa, int N, class Arguments>
SITU_INLINE void walk_rows_in(Arguments const& arguments) {
  Arguments const a = arguments;
  constexpr std::make_integer_sequence<int, Arguments::together> all{};
  constexpr std::make_integer_sequence<int, 1> one{};
  int64_t row = 0;
  for (; row + Arguments::together <= a.rows; row += Arguments::together) Body::template line<Isa, N>(a, row, all);
  for (; row < a.rows; ++row) Body::template line<Isa, N>(a, row, one);
}
/// In the widest packs, with AVX-512 in half as wide ones where a row has no more windows.
template <class Body, class Isa, class Arguments>
SITU_INLINE void walk_rows(Arguments const& a) {
  constexpr int lanes = static_cast<int>(Arguments::vector) * Isa::bytes / 64;
  if (Isa::bytes == 64 && a.windows <= lanes / 2) walk_rows_in<Body, Isa, Isa::bytes == 64 ? lanes / 2 : lanes>(a);
  else walk_rows_in<Body, Isa, lanes>(a);
}

template <class T>
struct FewOutputsBody {
  using C = product_t<T>;
  using Arguments = FewOutputs<T>;

  template <class Isa>
  SITU_INLINE static int run(Arguments const* arguments) {
    walk_rows<FewOutputsBody, Isa>(*arguments);
    return 0;
  }
  template <class Isa, int N, int... R>
  SITU_INLINE static void line(Arguments const& a, int64_t row, std::integer_sequence<int, R...> rows) {
    C const* const from = a.image + row * a.step_row;
    T* const to = a.to + row * a.windows;
    int64_t const last = a.windows > N ? a.windows - N : 0;  // the last vector overlaps the one before, or hangs over
    for (int64_t window = 0; window < last; window += N) tile<Isa, N>(a, from + window, to + window, rows);
    tile<Isa, N>(a, from + last, to + last, rows);
  }

 private:
  template <class Isa, int N, int... R>
  SITU_INLINE static void tile(Arguments const& a, C const* image, T* to, std::integer_sequence<int, R...>) {
    using P = pack<C, N, Isa>;
    using V = typename P::vector;
    constexpr int count = sizeof...(R);
    V sums[count];
    ((sums[R] = P(a.bias).v), ...);
    C const* weights = a.weights;
    int64_t const step = a.step_kernel, columns = a.kernel_columns;
    // Whether windows of a row read what those of the row before read, one line or two lines on.
    int const apart = a.step_row == step ? 1 : a.step_row == 2 * step ? 2 : 0;
    for (int64_t channel = 0; channel < a.channels; ++channel, image += a.step_channel) {
      C const* from = image;
      int64_t left = a.kernel_rows;
      if (apart > 0) {
        for (; left >= 3; left -= 3, from += 3 * step, weights += 3 * columns) {
          for (int64_t k = 0; k < columns; ++k) {
            V w[3];
            spread<Isa>(w[0], weights + k), spread<Isa>(w[1], weights + columns + k), spread<Isa>(w[2], weights + 2 * columns + k);
            if (apart == 1) three<Isa, 1>(sums, w, from + a.places[k], step, std::make_integer_sequence<int, count + 2>{});
            else three<Isa, 2>(sums, w, from + a.places[k], step, std::make_integer_sequence<int, 2 * count + 1>{});
          }
        }
      }
      for (; left > 0; --left, from += step, weights += columns) {
        for (int64_t k = 0; k < columns; ++k) {
          V w{};
          spread<Isa>(w, weights + k);
          C const* const line = from + a.places[k];
          (add_line<Isa>(sums[R], w, line + R * a.step_row), ...);
        }
      }
    }
    (put<Isa, P>(a, sums[R], to + R * a.windows), ...);
  }
  /// Line L of those that the rows read, which begin Apart lines behind each other, is row L - R * Apart of the kernel for row R.
  template <class Isa, int Apart, class V, int Rows, int... L>
  SITU_INLINE static void three(V (&sums)[Rows], V const (&w)[3], C const* from, int64_t step, std::integer_sequence<int, L...>) {
    (of_line<Isa, Apart, L>(sums, w, from + L * step), ...);
  }
  template <class Isa, int Apart, int L, class V, int Rows>
  SITU_INLINE static void of_line(V (&sums)[Rows], V const (&w)[3], C const* from) {
    V x;
    __builtin_memcpy(&x, from, sizeof(V));
    for_kernel_row<Isa, Apart, L, 0>(sums, w, x);
    for_kernel_row<Isa, Apart, L, 1>(sums, w, x);
    for_kernel_row<Isa, Apart, L, 2>(sums, w, x);
  }
  template <class Isa, int Apart, int L, int K, class V, int Rows>
  SITU_INLINE static void for_kernel_row(V (&sums)[Rows], V const (&w)[3], V const& x) {
    if constexpr (L >= K && (L - K) % Apart == 0 && (L - K) / Apart < Rows) add_product<Isa, C>(sums[(L - K) / Apart], w[K], x);
  }
  template <class Isa, class V>
  SITU_INLINE static void add_line(V& sum, V const& weight, C const* from) {
    V x;
    __builtin_memcpy(&x, from, sizeof(V));
    add_product<Isa, C>(sum, weight, x);
  }
  /// What hangs over the end of a row is overwritten by the next one, that of the last rows is not written.
  template <class Isa, class P, class V>
  SITU_INLINE static void put(Arguments const& a, V const& sum, T* to) {
    if (SITU_LIKELY(a.windows >= P::lanes || a.to + a.rows * a.windows - to >= P::lanes)) return store_lanes<T, P::lanes, Isa>(P(sum), to);
    T all[P::lanes];
    store_lanes<T, P::lanes, Isa>(P(sum), all);
    for (int64_t k = 0; k < a.windows; ++k) to[k] = all[k];
  }
};

/// The rows of a band of which all channels of a group are copied: the same for any number of threads.
template <class T>
int64_t few_rows(Windows const& windows, int64_t channels) {
  using C = product_t<T>;
  WindowAxis const &y = windows.y, &x = windows.x;
  int64_t const line = PaddedLine(x, FewOutputs<T>::vector).size() * static_cast<int64_t>(sizeof(C)), reach = (y.kernel - 1) * y.dilation + 1;
  int64_t const lines = (channels < 4 ? channels : 4) * FewOutputs<T>::band_bytes / (channels * line), least = 2 * reach > 8 ? 2 * reach : 8;
  int64_t rows = (lines - reach) / y.stride + 1;
  if (rows < least) rows = least;
  if (rows >= y.windows) return y.windows;
  int64_t const bands = (y.windows + rows - 1) / rows;
  rows = (y.windows + bands - 1) / bands;
  return (rows + FewOutputs<T>::together - 1) / FewOutputs<T>::together * FewOutputs<T>::together;
}

/// Items are images x groups x bands of rows.
template <class T>
struct FewOutputsKernel {
  using C = product_t<T>;
  Convolution<T> convolution;
  int64_t rows, bands;  ///< of a band; bands of an image

  explicit FewOutputsKernel(Convolution<T> const& c) : convolution(c), rows(few_rows<T>(c.pixels.windows, c.channels)), bands((c.pixels.windows.y.windows + rows - 1) / rows) {}

  void operator()(int64_t first, int64_t last) const {
    Convolution<T> const& c = convolution;
    WindowAxis const &y = c.pixels.windows.y, &x = c.pixels.windows.x;
    PaddedLine const line(x, FewOutputs<T>::vector);
    int64_t const depth = c.depth(), plane = y.windows * x.windows, reach = (y.kernel - 1) * y.dilation + 1;
    int64_t const high = (rows - 1) * y.stride + reach, room = c.channels * high * line.size() + FewOutputs<T>::vector;
    PackingBuffer const buffer((room + depth + FewOutputs<T>::vector) * static_cast<int64_t>(sizeof(C)) + x.kernel * static_cast<int64_t>(sizeof(int64_t)));
    if (SITU_UNLIKELY(!buffer.get())) return c.sum_by_sum(rows, bands, first, last);
    auto* const memory = static_cast<C*>(buffer.get());
    C* const weights = memory + (room + FewOutputs<T>::vector - 1) / FewOutputs<T>::vector * FewOutputs<T>::vector;
    auto* const places = reinterpret_cast<int64_t*>(weights + (depth + 1) / 2 * 2);
    for (int64_t k = 0; k < x.kernel; ++k) places[k] = line.place(x, k);
    for (int64_t item = first; item < last; ++item) {
      int64_t const begin = item % bands * rows, image = item / bands / c.groups, group = item / bands % c.groups;
      int64_t const some = y.windows - begin < rows ? y.windows - begin : rows, lines = (some - 1) * y.stride + reach;
      FewOutputs<T> a{memory, places, weights, C(0), nullptr, c.channels, y.kernel, x.kernel, x.windows, some, lines * line.size(), y.dilation * line.size(), y.stride * line.size()};
      PixelMatrix<T> pixels = c.pixels;
      pixels.image += image * c.step_image + group * c.channels * pixels.step_c;
      dispatch<PadBody<T>>(const_cast<PixelMatrix<T> const*>(&pixels), memory, c.channels, begin * y.stride, lines);
      for (int64_t o = group * c.outputs; o < (group + 1) * c.outputs; ++o) {
        for (int64_t t = 0; t < depth; ++t) weights[t] = static_cast<C>(c.weights[o * depth + t]);
        a.bias = c.bias ? static_cast<C>(c.bias[o]) : C(0);
        a.to = c.result + (image * c.groups * c.outputs + o) * plane + begin * x.windows;
        dispatch<FewOutputsBody<T>>(const_cast<FewOutputs<T> const*>(&a));
      }
    }
  }
};

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI
