/// Convolution on the CPU: a product of the weights with a matrix of pixels that is gathered while it is packed; for few channels sums of
/// shifted rows, for some outputs together or, for one channel by one, alone.
#pragma once

#include <situ/core/device.hpp>
#include <situ/ops/cpu/gemm.hpp>
#include <situ/ops/window2d.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// One image's channels, as the matrix [channels * kernel height * kernel width, windows].
template <class T>
struct PixelMatrix {
  Windows windows;
  T const* image;
  T const* end;  ///< behind the last element of all images
  int64_t step_c, step_y, step_x;
};

/// Gathers a block of the matrix; see Product::pack_b.
template <class T>
struct PixelBody {
  using C = product_t<T>;

  template <class Isa>
  SITU_INLINE static int run(PixelMatrix<T> const* matrix_, C* to, int64_t width, int64_t first_k, int64_t depth, int64_t first_j, int64_t count) {
    PixelMatrix<T> const m = *matrix_;
    WindowAxis const y = m.windows.y, x = m.windows.x;
    int64_t const first_row = first_j / x.windows, first_column = first_j % x.windows;
    int64_t kx = first_k % x.kernel, ky = first_k / x.kernel % y.kernel, channel = first_k / x.kernel / y.kernel;
    for (int64_t k = 0; k < depth; ++k, to += width) {
      int64_t row = first_row, column = first_column;
      for (int64_t at = 0; at < count; ++row, column = 0) {
        int64_t const n = x.windows - column < count - at ? x.windows - column : count - at;
        int64_t const from_y = y.start(row) + ky * y.dilation;
        if (from_y < 0 || from_y >= y.extent) {
          zeros<Isa>(to + at, n);
        } else {
          T const* const line = m.image + channel * m.step_c + from_y * m.step_y;
          gather<Isa>(to + at, line, x, column, kx, n, m);
        }
        at += n;
      }
      zeros<Isa>(to + count, width - count);
      if (++kx < x.kernel) continue;
      kx = 0;
      if (++ky < y.kernel) continue;
      ky = 0, ++channel;
    }
    return 0;
  }

 private:
  /// Pixels of one line for windows [column, column + n); zeros beyond its ends. May write a register's worth behind them.
  template <class Isa>
  SITU_INLINE static void gather(C* to, T const* line, WindowAxis const& x, int64_t column, int64_t kx, int64_t n, PixelMatrix<T> const& m) {
    int64_t const first = x.start(column) + kx * x.dilation;  // of window `column`; may lie outside
    int64_t low = first < 0 ? (-first + x.stride - 1) / x.stride : 0;
    int64_t high = x.extent > first ? (x.extent - first + x.stride - 1) / x.stride : 0;
    if (low > n) low = n;
    if (high > n) high = n;
    if (high < low) high = low;
    zeros<Isa>(to, low);
    constexpr int lanes = Isa::bytes / static_cast<int>(sizeof(C));
    int64_t const step = x.stride * m.step_x;
    T const* from = line + first * m.step_x;
    int64_t t = low;
    if (step == 1) {
      for (; t < high && m.end - (from + t) >= lanes; t += lanes) {
        pack<C, lanes, Isa> const pixels = load_lanes<T, lanes, Isa>(from + t);
        pixels.store(to + t);
      }
    }
    for (; t < high; ++t) to[t] = static_cast<C>(from[t * step]);
    zeros<Isa>(to + high, n - high);
  }
  /// n zeros; may write a register's worth behind them.
  template <class Isa>
  SITU_INLINE static void zeros(C* to, int64_t n) {
    constexpr int lanes = Isa::bytes / static_cast<int>(sizeof(C));
    for (int64_t t = 0; t < n; t += lanes) pack<C, lanes, Isa>(C(0)).store(to + t);
  }
};
template <class T>
void pack_pixels(void const* source, product_t<T>* to, int64_t width, int64_t first_k, int64_t depth, int64_t first_j, int64_t count) {
  dispatch<PixelBody<T>>(static_cast<PixelMatrix<T> const*>(source), to, width, first_k, depth, first_j, count);
}

/// Adds bias[i] to row i of a tile.
template <class T>
struct RowBiasBody {
  using C = product_t<T>;
  template <class Isa>
  SITU_INLINE static int run(T const* bias, C* tile, int64_t stride, int64_t rows, int64_t columns) {
    constexpr int lanes = Isa::bytes / static_cast<int>(sizeof(C));
    using P = pack<C, lanes, Isa>;
    for (int64_t r = 0; r < rows; ++r, tile += stride) {
      C const one = static_cast<C>(bias[r]);
      P const all(one);
      int64_t s = 0;
      for (; s + lanes <= columns; s += lanes) (P::load(tile + s) + all).store(tile + s);
      for (; s < columns; ++s) tile[s] += one;
    }
    return 0;
  }
};
template <class T>
void add_row_bias(Product<T> const& product, product_t<T>* tile, int64_t stride, int64_t i, int64_t, int64_t rows, int64_t columns) {
  dispatch<RowBiasBody<T>>(product.bias + i, tile, stride, rows, columns);
}

/// What is convolved: images x groups x blocks of windows are the items of the kernel.
template <class T>
struct Convolution {
  PixelMatrix<T> pixels;       ///< of the first image and group
  int64_t step_image;          ///< of the input
  int64_t groups, channels;    ///< input channels of a group
  int64_t outputs;             ///< output channels of a group
  T const* weights;            ///< [groups * outputs, channels, kernel height, kernel width]
  T const* bias;               ///< [groups * outputs], or null
  T* result;                   ///< [images, groups * outputs, windows]
  int64_t columns, column_items;  ///< windows of an item, and how many items one group of one image has

  int64_t depth() const { return channels * pixels.windows.y.kernel * pixels.windows.x.kernel; }
  /// Whether the matrix of pixels lies in memory as it is.
  bool is_pointwise() const {
    auto const plain = [](WindowAxis const& axis) { return axis.kernel == 1 && axis.stride == 1 && axis.padding == 0; };
    Windows const& w = pixels.windows;
    return plain(w.y) && plain(w.x) && pixels.step_y == w.x.extent * pixels.step_x;
  }
};

/// Convolution as a product.
template <class T>
struct ConvolutionKernel {
  Convolution<T> convolution;

  void operator()(int64_t first, int64_t last) const {
    Convolution<T> const& c = convolution;
    int64_t const windows = c.pixels.windows.outputs(), depth = c.depth();
    for (int64_t item = first; item < last; ++item) {
      int64_t const column = item % c.column_items * c.columns, group = item / c.column_items % c.groups, image = item / c.column_items / c.groups;
      PixelMatrix<T> pixels = c.pixels;
      pixels.image += image * c.step_image + group * c.channels * pixels.step_c;
      Product<T> product{c.outputs, windows, depth, c.weights + group * c.outputs * depth, depth, 1, nullptr, 0, 0, nullptr, windows, 1};
      product.c = c.result + (image * c.groups + group) * c.outputs * windows;
      if (c.is_pointwise()) {
        product.b = pixels.image, product.b_k = pixels.step_c, product.b_j = pixels.step_x;
      } else {
        product.pack_b = &pack_pixels<T>;
        product.source = &pixels;
      }
      if (c.bias) {
        product.bias = c.bias + group * c.outputs;
        product.finish = &add_row_bias<T>;
      }
      multiply(product, 0, c.outputs, column, column + c.columns < windows ? column + c.columns : windows);
    }
  }
};

/// One row of windows over one channel, for T that is computed in itself.
template <class T>
struct ChannelBody {
  template <class Isa>
  SITU_INLINE static int run(PixelMatrix<T> const* matrix_, T const* weights, T bias, T* to, int64_t row) {
    PixelMatrix<T> const m = *matrix_;
    WindowAxis const y = m.windows.y, x = m.windows.x;
    constexpr int lanes = Isa::bytes / static_cast<int>(sizeof(T));
    // Kernel rows [first, last) lie inside the image; for windows [low, high) so do all kernel columns.
    int64_t const top = y.start(row);
    int64_t const first = top < 0 ? (-top + y.dilation - 1) / y.dilation : 0;
    int64_t last = y.extent > top ? (y.extent - top + y.dilation - 1) / y.dilation : 0;
    if (last > y.kernel) last = y.kernel;
    int64_t low = (x.padding + x.stride - 1) / x.stride;
    int64_t const reach = x.extent + x.padding - (x.kernel - 1) * x.dilation;
    int64_t high = reach > 0 ? (reach + x.stride - 1) / x.stride : 0;
    if (high > x.windows) high = x.windows;
    if (low > high) low = high;
    T const* const image = m.image + top * m.step_y;
    int64_t j = low;
    if (x.stride == 1 && m.step_x == 1) {
      for (; j + 2 * lanes <= high; j += 2 * lanes) inside<Isa, 2>(m, weights, bias, to, image, first, last, j);
      for (; j + lanes <= high; j += lanes) inside<Isa, 1>(m, weights, bias, to, image, first, last, j);
      if (j < high && high - low >= lanes) inside<Isa, 1>(m, weights, bias, to, image, first, last, high - lanes), j = high;
    }
    edge(m, weights, bias, to, image, first, last, 0, low);
    edge(m, weights, bias, to, image, first, last, j, x.windows);
    return 0;
  }

 private:
  /// N packs of windows that lie inside of the image's columns.
  template <class Isa, int N>
  SITU_INLINE static void inside(PixelMatrix<T> const& m, T const* weights, T bias, T* to, T const* image, int64_t first, int64_t last, int64_t j) {
    WindowAxis const y = m.windows.y, x = m.windows.x;
    constexpr int lanes = Isa::bytes / static_cast<int>(sizeof(T));
    using P = pack<T, lanes, Isa>;
    P sums[N];
    for (int k = 0; k < N; ++k) sums[k] = P(bias);
    for (int64_t ky = first; ky < last; ++ky) {
      T const* from = image + ky * y.dilation * m.step_y + x.start(j);
      for (int64_t kx = 0; kx < x.kernel; ++kx, from += x.dilation) {
        P const weight(weights[ky * x.kernel + kx]);
        for (int k = 0; k < N; ++k) add_product<Isa, T>(sums[k].v, weight.v, P::load(from + k * lanes).v);
      }
    }
    for (int k = 0; k < N; ++k) sums[k].store(to + j + k * lanes);
  }
  SITU_INLINE static void edge(PixelMatrix<T> const& m, T const* weights, T bias, T* to, T const* image, int64_t first, int64_t last, int64_t begin,
                               int64_t end) {
    WindowAxis const y = m.windows.y, x = m.windows.x;
    for (int64_t j = begin; j < end; ++j) {
      T sum = bias;
      for (int64_t ky = first; ky < last; ++ky) {
        for (int64_t kx = 0; kx < x.kernel; ++kx) {
          int64_t const from = x.start(j) + kx * x.dilation;
          if (from >= 0 && from < x.extent) sum += weights[ky * x.kernel + kx] * image[ky * y.dilation * m.step_y + from * m.step_x];
        }
      }
      to[j] = sum;
    }
  }
};

/// Convolution of every channel with its own kernel: items are images x channels.
template <class T>
struct ChannelKernel {
  Convolution<T> convolution;

  void operator()(int64_t first, int64_t last) const {
    Convolution<T> const& c = convolution;
    Windows const& windows = c.pixels.windows;
    for (int64_t item = first; item < last; ++item) {
      int64_t const group = item % c.groups, image = item / c.groups;
      PixelMatrix<T> pixels = c.pixels;
      pixels.image += image * c.step_image + group * pixels.step_c;
      T const bias = c.bias ? c.bias[group] : T(0);
      T* const to = c.result + item * windows.outputs();
      for (int64_t row = 0; row < windows.y.windows; ++row) {
        dispatch<ChannelBody<T>>(const_cast<PixelMatrix<T> const*>(&pixels), c.weights + group * c.depth(), bias, to + row * windows.x.windows, row);
      }
    }
  }
};

/// Convolution without a product: sums of shifted rows of a padded copy of the image, for some outputs at a time. For few channels, and windows
/// that follow each other along a row.
template <class T>
struct DirectConvolution {
  using C = product_t<T>;
  static constexpr int together = 8;               ///< outputs whose weights lie beside each other
  static constexpr int64_t most_depth = 160;       ///< from where on a product is as fast
  static constexpr int64_t band_bytes = 128 << 10;  ///< of the padded copy, about
  C const* image;         ///< the padded copy of the rows that are needed
  int64_t const* offsets;  ///< in it, of the elements of a window
  C const* weights;       ///< [blocks of outputs, depth, together]
  C const* bias;          ///< [blocks of outputs, together]
  T* result;              ///< of the first row
  int64_t depth, outputs, plane, windows, rows, row_step;

  static bool suits(Convolution<T> const& c) {
    return c.pixels.windows.x.stride == 1 && c.depth() <= most_depth && c.outputs >= 4 && c.pixels.windows.x.windows >= 64 / static_cast<int>(sizeof(C));
  }
  /// A row of the padded copy has this many elements.
  static int64_t pitch(WindowAxis const& x) { return x.windows + (x.kernel - 1) * x.dilation + 64 / static_cast<int64_t>(sizeof(C)); }
};

/// Writes the padded copy: `rows` rows of every channel, from row `first` of the padded image on.
template <class T>
struct PadBody {
  using C = product_t<T>;
  template <class Isa>
  SITU_INLINE static int run(PixelMatrix<T> const* matrix_, C* to, int64_t channels, int64_t first, int64_t rows, int64_t pitch) {
    PixelMatrix<T> const m = *matrix_;
    WindowAxis const y = m.windows.y, x = m.windows.x;
    constexpr int lanes = Isa::bytes / static_cast<int>(sizeof(C));
    for (int64_t channel = 0; channel < channels; ++channel) {
      for (int64_t r = 0; r < rows; ++r, to += pitch) {
        int64_t const row = first + r - y.padding;
        bool const inside = row >= 0 && row < y.extent;
        int64_t const left = inside ? (x.padding < pitch ? x.padding : pitch) : pitch, room = pitch - left, count = x.extent < room ? x.extent : room;
        int64_t k = 0;
        for (; k < left; ++k) to[k] = C(0);
        if (!inside) continue;
        T const* const from = m.image + channel * m.step_c + row * m.step_y;
        int64_t t = 0;
        if (m.step_x == 1) {
          for (; t + lanes <= count; t += lanes) pack<C, lanes, Isa>(load_lanes<T, lanes, Isa>(from + t)).store(to + left + t);
        }
        for (; t < count; ++t) to[left + t] = static_cast<C>(from[t * m.step_x]);
        for (k = left + count; k < pitch; ++k) to[k] = C(0);
      }
    }
    return 0;
  }
};

/// The rows of a band, for all outputs.
template <class T>
struct DirectBody {
  using C = product_t<T>;
  using Arguments = DirectConvolution<T>;

  template <class Isa>
  SITU_INLINE static int run(Arguments const* arguments) {
    Arguments const a = *arguments;
    constexpr int lanes = Isa::bytes / static_cast<int>(sizeof(C));
    constexpr int step = Isa::bytes == 64 ? Arguments::together : Arguments::together / 2;  // as many sums as find registers
    for (int64_t o = 0; o < a.outputs; o += step) {
      C const* const weights = a.weights + o / Arguments::together * Arguments::together * a.depth + o % Arguments::together;
      int64_t const count = a.outputs - o < step ? a.outputs - o : step;
      for (int64_t row = 0; row < a.rows; ++row) {
        T* const to = a.result + o * a.plane + row * a.windows;
        for (int64_t j = 0; j < a.windows; j += 2 * lanes) {  // the last packs overlap those before
          int64_t const last = a.windows - lanes, first = j < last ? j : last, second = j + lanes < last ? j + lanes : last;
          tile<Isa>(a, weights, a.bias + o, a.image + row * a.row_step, to, first, second, count, std::make_integer_sequence<int, step>{});
        }
      }
    }
    return 0;
  }

 private:
  template <class Isa, int... K>
  SITU_INLINE static void tile(Arguments const& a, C const* weights, C const* bias, C const* image, T* to, int64_t first, int64_t second, int64_t count,
                               std::integer_sequence<int, K...>) {
    constexpr int lanes = Isa::bytes / static_cast<int>(sizeof(C));
    using P = pack<C, lanes, Isa>;
    using V = typename P::vector;
    V sums[sizeof...(K)][2];
    (start<Isa>(sums[K], bias + K), ...);
    for (int64_t t = 0; t < a.depth; ++t, weights += Arguments::together) {
      C const* const from = image + a.offsets[t];
      V x, y;
      __builtin_memcpy(&x, from + first, sizeof(V));
      __builtin_memcpy(&y, from + second, sizeof(V));
      (add<Isa>(sums[K], weights + K, x, y), ...);
    }
    ((K < count ? put<Isa, P>(sums[K], to + K * a.plane + first, to + K * a.plane + second) : void()), ...);
  }
  template <class Isa, class V>
  SITU_INLINE static void start(V (&sums)[2], C const* bias) {
    V all{};
    spread<Isa>(all, bias);
    sums[0] = sums[1] = all;
  }
  template <class Isa, class V>
  SITU_INLINE static void add(V (&sums)[2], C const* weight, V const& x, V const& y) {
    V all{};
    spread<Isa>(all, weight);
    add_product<Isa, C>(sums[0], all, x);
    add_product<Isa, C>(sums[1], all, y);
  }
  template <class Isa, class P, class V>
  SITU_INLINE static void put(V const (&sums)[2], T* first, T* second) {
    store_lanes<T, P::lanes, Isa>(P(sums[0]), first);
    store_lanes<T, P::lanes, Isa>(P(sums[1]), second);
  }
};

/// Items are images x groups x bands of rows.
template <class T>
struct DirectKernel {
  using C = product_t<T>;
  Convolution<T> convolution;
  int64_t rows, bands;  ///< of a band; bands of an image

  void operator()(int64_t first, int64_t last) const {
    using Arguments = DirectConvolution<T>;
    Convolution<T> const& c = convolution;
    WindowAxis const y = c.pixels.windows.y, x = c.pixels.windows.x;
    int64_t const pitch = Arguments::pitch(x), reach = (y.kernel - 1) * y.dilation + 1, high = (rows - 1) * y.stride + reach;
    int64_t const blocks = (c.outputs + Arguments::together - 1) / Arguments::together, depth = c.depth();
    int64_t const packed = blocks * Arguments::together * depth, biases = blocks * Arguments::together;
    auto* const memory = static_cast<C*>(::operator new(static_cast<std::size_t>(c.channels * high * pitch + packed + biases) * sizeof(C), std::align_val_t{64}));
    C* const weights = memory + c.channels * high * pitch;
    C* const bias = weights + packed;
    int64_t offsets[Arguments::most_depth];
    int64_t group = -1;
    for (int64_t item = first; item < last; ++item) {
      int64_t const band = item % bands, image = item / bands / c.groups, begin = band * rows;
      if (item / bands % c.groups != group) pack_weights(weights, bias, group = item / bands % c.groups);
      Arguments a{memory, offsets, weights, bias, nullptr, depth, c.outputs, y.windows * x.windows, x.windows, 0, y.stride * pitch};
      a.rows = y.windows - begin < rows ? y.windows - begin : rows;
      a.result = c.result + (image * c.groups + group) * c.outputs * a.plane + begin * x.windows;
      int64_t const needed = (a.rows - 1) * y.stride + reach;
      for (int64_t t = 0; t < depth; ++t) {
        offsets[t] = t / (y.kernel * x.kernel) * needed * pitch + t / x.kernel % y.kernel * y.dilation * pitch + t % x.kernel * x.dilation;
      }
      PixelMatrix<T> pixels = c.pixels;
      pixels.image += image * c.step_image + group * c.channels * pixels.step_c;
      dispatch<PadBody<T>>(const_cast<PixelMatrix<T> const*>(&pixels), memory, c.channels, begin * y.stride, needed, pitch);
      dispatch<DirectBody<T>>(const_cast<Arguments const*>(&a));
    }
    ::operator delete(memory, std::align_val_t{64});
  }

 private:
  void pack_weights(C* weights, C* bias, int64_t group) const {
    constexpr int together = DirectConvolution<T>::together;
    Convolution<T> const& c = convolution;
    int64_t const depth = c.depth();
    for (int64_t o = 0; o < (c.outputs + together - 1) / together * together; ++o) {
      T const* const from = c.weights + (group * c.outputs + o) * depth;
      C* const to = weights + o / together * together * depth + o % together;
      bool const exists = o < c.outputs;
      for (int64_t t = 0; t < depth; ++t) to[t * together] = exists ? static_cast<C>(from[t]) : C(0);
      bias[o] = exists && c.bias ? static_cast<C>(c.bias[group * c.outputs + o]) : C(0);
    }
  }
};

/// Runs a convolution of `images` images on D.
template <class D, class T>
void run_convolution(Convolution<T>& c, int64_t images) {
  int64_t const windows = c.pixels.windows.outputs();
  if (images * c.groups * c.outputs * windows == 0) return;
  if constexpr (std::is_same_v<T, compute_t<T>>) {
    if (c.channels == 1 && c.outputs == 1) {
      int64_t const work = windows * c.depth();
      return device_traits<D>::launch(ChannelKernel<T>{c}, images * c.groups, (int64_t{1} << 17) / (work < (1 << 17) ? work : 1 << 17) + 1);
    }
  }
  if (DirectConvolution<T>::suits(c)) {
    using C = product_t<T>;
    WindowAxis const& y = c.pixels.windows.y;
    int64_t const line = c.channels * DirectConvolution<T>::pitch(c.pixels.windows.x) * y.stride * static_cast<int64_t>(sizeof(C));
    int64_t rows = DirectConvolution<T>::band_bytes / line;  // the same for any number of threads
    if (rows < 4) rows = 4;
    int64_t const bands = (y.windows + rows - 1) / rows;
    rows = (y.windows + bands - 1) / bands;
    int64_t const work = c.outputs * rows * c.pixels.windows.x.windows * c.depth();
    return device_traits<D>::launch(DirectKernel<T>{c, rows, bands}, images * c.groups * bands, (int64_t{1} << 19) / (work < (1 << 19) ? work : 1 << 19) + 1);
  }
  // The cut does not depend on the number of threads: enough items for many, each worth packing the weights for.
  c.columns = windows;
  if (images * c.groups < 32) {
    int64_t const part = (windows + 31) / 32;
    c.columns = part < 768 ? 768 : (part + 95) / 96 * 96;
    if (c.columns > windows) c.columns = windows;
  }
  c.column_items = (windows + c.columns - 1) / c.columns;
  int64_t const work = c.outputs * c.columns * (c.depth() < (1 << 16) ? c.depth() + 1 : 1 << 16);
  device_traits<D>::launch(ConvolutionKernel<T>{c}, images * c.groups * c.column_items, (int64_t{1} << 19) / (work < (1 << 19) ? work : 1 << 19) + 1);
}

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI
