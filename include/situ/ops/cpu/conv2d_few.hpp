/// Convolution with few outputs for each group of channels on the CPU: of every channel with a kernel of its own, for the most part.
#pragma once

#include <situ/core/device.hpp>
#include <situ/ops/cpu/conv2d_direct.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// One output of a band of rows, from a padded copy: six vectors of windows at a time, of several rows where these are short.
template <class T>
struct FewOutputs {
  using C = product_t<T>;
  static constexpr int64_t most = 3;                ///< outputs of a group; more are summed together
  static constexpr int64_t band_bytes = 24 << 10;  ///< of the padded copy of a channel, about
  static constexpr int64_t vector = 64 / static_cast<int64_t>(sizeof(C));  ///< elements of the widest
  C const* image;          ///< the padded copy
  int64_t const* offsets;  ///< in it, of the elements of a window
  C const* weights;        ///< of those
  C bias;
  T *to, *end;             ///< the rows of the result
  int64_t depth, windows, rows, row_step;

  static bool suits(Convolution<T> const& c) { return c.outputs <= most && c.channels > 0; }
};

template <class T>
struct FewOutputsBody {
  using C = product_t<T>;
  using Arguments = FewOutputs<T>;

  template <class Isa>
  SITU_INLINE static int run(Arguments const* arguments) {
    Arguments const a = *arguments;
    constexpr int lanes = Isa::bytes / static_cast<int>(sizeof(C));
    constexpr std::make_integer_sequence<int, 6> six{};
    constexpr std::make_integer_sequence<int, 2> two{};
    int64_t left = (a.windows + lanes - 1) / lanes * a.rows;
    Place place{a.image, a.to, 0};
    for (; left > 5; left -= 6) tile<Isa>(a, place, left, six);
    for (; left > 0; left -= 2) tile<Isa>(a, place, left, two);
    return 0;
  }

 private:
  /// A vector of windows: what its first one reads, a row's place in the result, and the vector's number in the row.
  struct Place {
    C const* row;
    T* to;
    int64_t window;
  };
  template <int Lanes>
  SITU_INLINE static void advance(Arguments const& a, Place& place) {
    place.window += Lanes;
    if (place.window < a.windows) return;
    place.window = 0, place.row += a.row_step, place.to += a.windows;
  }
  /// The last vector of a row overlaps the one before, or hangs over.
  template <int Lanes>
  SITU_INLINE static int64_t first_window(Arguments const& a, Place const& place) {
    int64_t const last = a.windows > Lanes ? a.windows - Lanes : 0;
    return place.window < last ? place.window : last;
  }
  /// As many vectors as there are K, or the first of them once more where fewer are left.
  template <class Isa, int... K>
  SITU_INLINE static void tile(Arguments const& a, Place& place, int64_t left, std::integer_sequence<int, K...>) {
    constexpr int lanes = Isa::bytes / static_cast<int>(sizeof(C)), count = sizeof...(K);
    using P = pack<C, lanes, Isa>;
    using V = typename P::vector;
    C const* from[count];
    T* to[count];
    auto const take = [&](int k) {
      int64_t const window = first_window<lanes>(a, place);
      from[k] = place.row + window, to[k] = place.to + window;
      if (k + 1 < left) advance<lanes>(a, place);
    };
    (take(K), ...);
    V sums[count];
    ((sums[K] = P(a.bias).v), ...);
    C const* weight = a.weights;
    int64_t const* offset = a.offsets;
    for (int64_t t = a.depth; t > 0; --t, ++weight, ++offset) {
      V all{};
      spread<Isa>(all, weight);
      int64_t const at = *offset;
      (add<Isa>(sums[K], all, from[K] + at), ...);
    }
    (put<Isa, P>(a, sums[K], to[K]), ...);
  }
  template <class Isa, class V>
  SITU_INLINE static void add(V& sum, V const& weight, C const* from) {
    V x;
    __builtin_memcpy(&x, from, sizeof(V));
    add_product<Isa, C>(sum, weight, x);
  }
  /// What hangs over the end of a row is overwritten by the next one, that of the last rows is not written.
  template <class Isa, class P, class V>
  SITU_INLINE static void put(Arguments const& a, V const& sum, T* to) {
    if (SITU_LIKELY(a.windows >= P::lanes || a.end - to >= P::lanes)) return store_lanes<T, P::lanes, Isa>(P(sum), to);
    T all[P::lanes];
    store_lanes<T, P::lanes, Isa>(P(sum), all);
    for (int64_t k = 0; k < a.windows; ++k) to[k] = all[k];
  }
};

/// Items are images x groups x bands of rows.
template <class T>
struct FewOutputsKernel {
  using C = product_t<T>;
  Convolution<T> convolution;
  int64_t rows, bands;  ///< of a band; bands of an image

  /// The bands are the same for any number of threads.
  explicit FewOutputsKernel(Convolution<T> const& c) : convolution(c) {
    WindowAxis const &y = c.pixels.windows.y, &x = c.pixels.windows.x;
    int64_t const line = PaddedLine(x, FewOutputs<T>::vector).size() * static_cast<int64_t>(sizeof(C)), reach = (y.kernel - 1) * y.dilation + 1;
    int64_t const lines = (c.channels < 4 ? c.channels : 4) * FewOutputs<T>::band_bytes / (c.channels * line), least = 2 * reach > 8 ? 2 * reach : 8;
    rows = (lines - reach) / y.stride + 1;
    if (rows < least) rows = least;
    bands = (y.windows + rows - 1) / rows;
    rows = (y.windows + bands - 1) / bands;
    bands = (y.windows + rows - 1) / rows;
  }

  void operator()(int64_t first, int64_t last) const {
    Convolution<T> const& c = convolution;
    WindowAxis const &y = c.pixels.windows.y, &x = c.pixels.windows.x;
    PaddedLine const line(x, FewOutputs<T>::vector);
    int64_t const depth = c.depth(), plane = y.windows * x.windows, reach = (y.kernel - 1) * y.dilation + 1;
    int64_t const high = (rows - 1) * y.stride + reach, room = c.channels * high * line.size() + FewOutputs<T>::vector;
    PackingBuffer const buffer((room + depth) * static_cast<int64_t>(sizeof(C)) + depth * static_cast<int64_t>(sizeof(int64_t)) + 64);
    if (SITU_UNLIKELY(!buffer.get())) return c.sum_by_sum(rows, bands, first, last);
    auto* const offsets = static_cast<int64_t*>(buffer.get());
    C* const weights = reinterpret_cast<C*>(offsets + depth);
    C* const memory = weights + (depth + FewOutputs<T>::vector - 1) / FewOutputs<T>::vector * FewOutputs<T>::vector;
    int64_t needed = 0;
    for (int64_t item = first; item < last; ++item) {
      int64_t const begin = item % bands * rows, image = item / bands / c.groups, group = item / bands % c.groups;
      FewOutputs<T> a{memory, offsets, weights, C(0), nullptr, nullptr, depth, x.windows, y.windows - begin < rows ? y.windows - begin : rows, y.stride * line.size()};
      int64_t const lines = (a.rows - 1) * y.stride + reach;
      if (lines != needed) line.set_offsets(offsets, c, needed = lines);
      PixelMatrix<T> pixels = c.pixels;
      pixels.image += image * c.step_image + group * c.channels * pixels.step_c;
      dispatch<PadBody<T>>(const_cast<PixelMatrix<T> const*>(&pixels), memory, c.channels, begin * y.stride, lines);
      for (int64_t o = group * c.outputs; o < (group + 1) * c.outputs; ++o) {
        for (int64_t t = 0; t < depth; ++t) weights[t] = static_cast<C>(c.weights[o * depth + t]);
        a.bias = c.bias ? static_cast<C>(c.bias[o]) : C(0);
        a.to = c.result + (image * c.groups * c.outputs + o) * plane + begin * x.windows, a.end = a.to + a.rows * x.windows;
        dispatch<FewOutputsBody<T>>(const_cast<FewOutputs<T> const*>(&a));
      }
    }
  }
};

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI
