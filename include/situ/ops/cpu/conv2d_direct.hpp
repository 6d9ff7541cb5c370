/// Direct convolution on the CPU: sums of shifted rows of a padded copy of the image.
#pragma once

#include <situ/core/device.hpp>
#include <situ/ops/cpu/gemm.hpp>
#include <situ/ops/cpu/padded_lines.hpp>

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
  /// Items that are images x groups x bands of so many rows, element by element: where there is no memory.
  SITU_NOINLINE void sum_by_sum(int64_t rows, int64_t bands, int64_t first, int64_t last) const {
    using C = product_t<T>;
    WindowAxis const &y = pixels.windows.y, &x = pixels.windows.x;
    int64_t const windows = y.windows * x.windows, size = y.kernel * x.kernel;
    for (int64_t item = first; item < last; ++item) {
      int64_t const band = item % bands, image = item / bands / groups, group = item / bands % groups;
      int64_t const begin = band * rows * x.windows, behind = band + 1 < bands ? begin + rows * x.windows : windows;
      T const* const from = pixels.image + image * step_image + group * channels * pixels.step_c;
      for (int64_t o = group * outputs; o < (group + 1) * outputs; ++o) {
        for (int64_t at = begin; at < behind; ++at) {
          C sum = bias ? static_cast<C>(bias[o]) : C(0);
          for (int64_t t = 0; t < depth(); ++t) {
            int64_t const line = y.start(at / x.windows) + t / x.kernel % y.kernel * y.dilation, column = x.start(at % x.windows) + t % x.kernel * x.dilation;
            if (line < 0 || line >= y.extent || column < 0 || column >= x.extent) continue;
            sum += static_cast<C>(weights[o * depth() + t]) * static_cast<C>(from[t / size * pixels.step_c + line * pixels.step_y + column * pixels.step_x]);
          }
          result[(image * groups * outputs + o) * windows + at] = convert_scalar<T>(sum);
        }
      }
    }
  }
};

template <class T>
struct DirectKernel;

/// Convolution without a product: sums of shifted rows of a padded copy of the image, for some outputs at a time. For windows of up to `most_depth`
/// elements, of fewer where they have strides. Of narrow images, and where there is a stride of 3 or more along the rows, the copy has the rows once for each column of the kernel, cut to
/// the windows, and in the order of the windows' rows: then the windows of several rows follow each other.
template <class T>
struct DirectConvolution {
  using C = product_t<T>;
  static constexpr int together = 8;               ///< outputs whose weights lie beside each other
  static constexpr int64_t most_depth = 2304;  ///< from where on a product is as fast
  static constexpr int64_t most_strided_depth = 160, most_strided_outputs = 64;  ///< and, of narrow images and windows with strides, with both
  static constexpr int64_t most_product_depth = 1280, least_product_outputs = 128;  ///< and of many windows and outputs
  static constexpr int64_t least_pointwise_depth = 128;  ///< from where on a product is faster of windows that are one pixel
  static constexpr int64_t most_weights = int64_t{1} << 20;              ///< that are packed at once
  static constexpr int64_t band_bytes = 128 << 10;  ///< of the padded copy, about
  C const* image;         ///< the padded copy of the rows that are needed
  int64_t const* offsets;  ///< in it, of the elements of a window
  C const* weights;       ///< [blocks of outputs, depth, together]
  C const* bias;          ///< [blocks of outputs, together]
  T* result;              ///< of the first row
  int64_t depth, outputs, plane, windows, rows, row_step;

  static constexpr int64_t vector = 64 / static_cast<int64_t>(sizeof(C));  ///< elements of the widest
  /// Whether rows are copied for each column of the kernel.
  static bool is_flat(Convolution<T> const& c) {
    WindowAxis const &y = c.pixels.windows.y, &x = c.pixels.windows.x;
    return y.stride <= y.kernel && x.stride <= x.kernel && (x.windows < 2 * vector || x.stride > 2);
  }
  static bool suits(Convolution<T> const& c) {
    WindowAxis const &y = c.pixels.windows.y, &x = c.pixels.windows.x;
    if (c.outputs < 4 || c.channels == 0 || c.outputs * c.depth() > most_weights || (c.is_pointwise() && c.depth() >= least_pointwise_depth)) return false;
    if (!reads_closely(y) || !reads_closely(x)) return false;
    bool const flat = is_flat(c), strided = y.stride != 1 || x.stride != 1;
    int64_t most = most_depth;
    if (flat && strided && c.outputs > most_strided_outputs) most = most_strided_depth;
    else if (c.outputs >= least_product_outputs && c.pixels.windows.outputs() >= least_product_outputs) most = most_product_depth;
    return c.depth() <= most && (flat ? c.pixels.windows.outputs() : x.windows) >= vector;
  }
  /// Bands of rows, the same for any number of threads.
  static DirectKernel<T> cut(Convolution<T> const& c) {
    WindowAxis const &y = c.pixels.windows.y, &x = c.pixels.windows.x;
    bool const flat = is_flat(c);
    int64_t const line = c.channels * (flat ? x.windows * x.kernel : PaddedLine(x, vector).size()) * y.stride * static_cast<int64_t>(sizeof(C));
    int64_t const least = flat ? (vector + x.windows - 1) / x.windows : 4;
    int64_t rows = band_bytes / line;
    if (rows < least) rows = least;
    int64_t bands = (y.windows + rows - 1) / rows;
    if (flat && bands > 1 && y.windows / bands < least) bands = y.windows / least;
    return {c, (y.windows + bands - 1) / bands, bands, flat};
  }
};

/// Writes the padded copy: `rows` rows of every channel, from row `first` of the padded image on. May write a register's worth behind them.
template <class T>
struct PadBody {
  using C = product_t<T>;
  template <class Isa>
  SITU_INLINE static int run(PixelMatrix<T> const* matrix_, C* to, int64_t channels, int64_t first, int64_t rows) {
    constexpr int lanes = Isa::bytes / static_cast<int>(sizeof(C));
    if (lanes > 8 && matrix_->windows.x.windows > 8) copy<Isa, lanes>(matrix_, to, channels, first, rows);
    else copy<Isa, lanes < 8 ? lanes : 8>(matrix_, to, channels, first, rows);
    return 0;
  }

 private:
  template <class Isa, int N>
  SITU_INLINE static void copy(PixelMatrix<T> const* matrix_, C* to, int64_t channels, int64_t first, int64_t rows) {
    PixelMatrix<T> const m = *matrix_;
    WindowAxis const y = m.windows.y, x = m.windows.x;
    PaddedLine const line(x, 64 / static_cast<int64_t>(sizeof(C)));
    PaddedLine::Part const parts[2] = {line.part(x, 0), line.part(x, 1)};
    for (int64_t channel = 0; channel < channels; ++channel) {
      for (int64_t r = 0; r < rows; ++r) {
        int64_t const row = first + r - y.padding;
        bool const inside = row >= 0 && row < y.extent;
        T const* const from = m.image + channel * m.step_c + row * m.step_y;
        for (int64_t k = 0; k < line.copies; ++k, to += line.pitch) {
          PaddedLine::Part const part = k < 2 ? parts[k] : line.part(x, k);
          copy_shifted<Isa, N>(to, from + part.shift * m.step_x, x.stride * m.step_x, inside ? part.low : 0, inside ? part.high : 0, line.pitch, m.end);
        }
      }
    }
  }
};

/// Writes the copy for each column of the kernel: for every channel and column, and for every line that windows begin with before they begin with the
/// first one again (stride of them), `rows` rows of as many elements as there are windows.
template <class T>
struct PadFlatBody {
  using C = product_t<T>;
  template <class Isa>
  SITU_INLINE static int run(PixelMatrix<T> const* matrix_, C* to, int64_t channels, int64_t first, int64_t rows) {
    PixelMatrix<T> const& m = *matrix_;
    int64_t const width = m.windows.x.windows;
    constexpr int lanes = Isa::bytes / static_cast<int>(sizeof(C));
    if (lanes > 8 && width > 8) copy<Isa, lanes>(m, to, channels, first, rows);
    else if (lanes > 4 && width > 4) copy<Isa, lanes < 8 ? lanes : 8>(m, to, channels, first, rows);
    else copy<Isa, lanes < 4 ? lanes : 4>(m, to, channels, first, rows);
    return 0;
  }

 private:
  /// In packs of N, which may write behind a row what the next one overwrites.
  template <class Isa, int N>
  SITU_INLINE static void copy(PixelMatrix<T> const& m, C* to, int64_t channels, int64_t first, int64_t rows) {
    int64_t const width = m.windows.x.windows, kernel = m.windows.x.kernel, dilation = m.windows.x.dilation, padding = m.windows.x.padding;
    int64_t const extent = m.windows.x.extent, step_c = m.step_c, step_y = m.step_y, stride = m.windows.x.stride, step_x = m.step_x * stride, phases = m.windows.y.stride;
    int64_t const top = m.windows.y.padding - first, bottom = top + m.windows.y.extent;  // of the lines that lie inside
    T const *image = m.image + (first - m.windows.y.padding) * step_y, *const end = m.end;
    // Lines [begin, behind) lie inside; where the lines of windows lie as those of the image do, they are copied as one.
    int64_t const begin = top < 0 ? 0 : top < rows ? top : rows, behind = bottom < begin ? begin : bottom < rows ? bottom : rows;
    bool const together = width == extent && step_y == extent && behind > begin && phases == 1 && step_x == 1;
    for (int64_t channel = 0; channel < channels; ++channel, image += step_c) {
      for (int64_t kx = 0; kx < kernel; ++kx) {
        int64_t const shift = kx * dilation - padding;  // elements [low, high) lie inside of the image
        int64_t low = shift < 0 ? (stride - 1 - shift) / stride : 0, high = shift < extent ? (extent - shift + stride - 1) / stride : 0;
        if (high > width) high = width;
        if (low > high) low = high;
        T const* const corner = image + shift * m.step_x;
        if (together && low < high) {  // else nothing of the image is read
          plane<Isa>(to, corner + begin * width, end, begin, behind, rows, width, low, high);
          to += rows * width;
          continue;
        }
        for (int64_t phase = 0; phase < phases; ++phase) {
          for (int64_t r = phase; r < rows * phases; r += phases, to += width) {
            bool const inside = r >= top && r < bottom;
            copy_shifted<Isa, N>(to, corner + r * step_y, step_x, inside ? low : 0, inside ? high : 0, width, end);
          }
        }
      }
    }
  }
  /// All lines of a channel, shifted; then zeros where one ran into the next.
  template <class Isa>
  SITU_INLINE static void plane(C* to, T const* from, T const* end, int64_t begin, int64_t behind, int64_t rows, int64_t width, int64_t low, int64_t high) {
    constexpr int N = Isa::bytes / static_cast<int>(sizeof(C));
    pack<C, N, Isa> const zero(C(0));
    C* const inside = to + begin * width;
    int64_t const count = (behind - begin) * width, last = count - (width - high);
    for (int64_t k = 0; k < begin * width; k += N) zero.store(to + k);
    int64_t k = low;
    for (; k < last && end - (from + k) >= N; k += N) pack<C, N, Isa>(load_lanes<T, N, Isa>(from + k)).store(inside + k);
    for (; k < last; ++k) inside[k] = static_cast<C>(from[k]);
    for (int64_t j = 0; j < low; ++j) {
      for (int64_t r = 0; r < count; r += width) inside[r + j] = C(0);
    }
    for (int64_t j = high; j < width; ++j) {
      for (int64_t r = 0; r < count; r += width) inside[r + j] = C(0);
    }
    for (k = count; k < (rows - begin) * width; k += N) zero.store(inside + k);
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
        int64_t const vectors = (a.windows + lanes - 1) / lanes;
        for (int64_t v = 0; v < vectors;) {
          int64_t const left = vectors - v, end = a.windows - lanes;  // the last vector overlaps the one before
          auto const at = [&](int64_t k) { return (v + k) * lanes < end ? (v + k) * lanes : end; };
          C const* const from = a.image + row * a.row_step;
          constexpr std::make_integer_sequence<int, step> each{};
          if (left == 3 || left > 4) tile<Isa, 3>(a, weights, a.bias + o, from, to, at(0), at(1), at(2), count, each), v += 3;
          else if (left > 1) tile<Isa, 2>(a, weights, a.bias + o, from, to, at(0), at(1), at(1), count, each), v += 2;
          else tile<Isa, 1>(a, weights, a.bias + o, from, to, end, end, end, count, each), ++v;
        }
      }
    }
    return 0;
  }

 private:
  template <class Isa, int N, int... K>
  SITU_INLINE static void tile(Arguments const& a, C const* weights, C const* bias, C const* image, T* to, int64_t first, int64_t second, int64_t third,
                               int64_t count, std::integer_sequence<int, K...>) {
    constexpr int lanes = Isa::bytes / static_cast<int>(sizeof(C));
    using P = pack<C, lanes, Isa>;
    using V = typename P::vector;
    V sums[sizeof...(K)][N];
    (start<Isa>(sums[K], bias + K), ...);
    int64_t const* offsets = a.offsets;
    for (int64_t t = a.depth; t > 0; --t, weights += Arguments::together, ++offsets) {
      C const* const from = image + *offsets;
      V x[N];
      __builtin_memcpy(&x[0], from + first, sizeof(V));
      if constexpr (N > 1) __builtin_memcpy(&x[1], from + second, sizeof(V));
      if constexpr (N > 2) __builtin_memcpy(&x[2], from + third, sizeof(V));
      (add<Isa>(sums[K], weights + K, x), ...);
    }
    ((K < count ? put<Isa, P>(sums[K], to + K * a.plane, first, second, third) : void()), ...);
  }
  template <class Isa, class V, int N>
  SITU_INLINE static void start(V (&sums)[N], C const* bias) {
    V all{};
    spread<Isa>(all, bias);
    sums[0] = all;
    if constexpr (N > 1) sums[1] = all;
    if constexpr (N > 2) sums[2] = all;
  }
  template <class Isa, class V, int N>
  SITU_INLINE static void add(V (&sums)[N], C const* weight, V const (&x)[N]) {
    V all{};
    spread<Isa>(all, weight);
    add_product<Isa, C>(sums[0], all, x[0]);
    if constexpr (N > 1) add_product<Isa, C>(sums[1], all, x[1]);
    if constexpr (N > 2) add_product<Isa, C>(sums[2], all, x[2]);
  }
  template <class Isa, class P, class V, int N>
  SITU_INLINE static void put(V const (&sums)[N], T* to, int64_t first, int64_t second, int64_t third) {
    store_lanes<T, P::lanes, Isa>(P(sums[0]), to + first);
    if constexpr (N > 1) store_lanes<T, P::lanes, Isa>(P(sums[1]), to + second);
    if constexpr (N > 2) store_lanes<T, P::lanes, Isa>(P(sums[2]), to + third);
  }
};

/// Items are images x groups x bands of rows.
template <class T>
struct DirectKernel {
  using C = product_t<T>;
  Convolution<T> convolution;
  int64_t rows, bands;  ///< of a band; bands of an image
  bool flat;

  void operator()(int64_t first, int64_t last) const {
    using Arguments = DirectConvolution<T>;
    Convolution<T> const& c = convolution;
    WindowAxis const y = c.pixels.windows.y, x = c.pixels.windows.x;
    PaddedLine const line(x, Arguments::vector);
    int64_t const line_size = flat ? x.windows * x.kernel : line.size();
    int64_t const reach = (y.kernel - 1) * y.dilation + 1, high = flat ? (rows + (reach - 1) / y.stride) * y.stride : (rows - 1) * y.stride + reach;
    int64_t const blocks = (c.outputs + Arguments::together - 1) / Arguments::together, depth = c.depth();
    int64_t const packed = blocks * Arguments::together * depth, biases = blocks * Arguments::together, room = c.channels * high * line_size + Arguments::vector;
    int64_t const bytes = (room + packed + biases) * static_cast<int64_t>(sizeof(C)) + depth * static_cast<int64_t>(sizeof(int64_t)) + 64;
    PackingBuffer const buffer(bytes);
    if (SITU_UNLIKELY(!buffer.get())) return c.sum_by_sum(rows, bands, first, last);
    auto* const memory = static_cast<C*>(buffer.get());
    C* const weights = memory + (room + Arguments::vector - 1) / Arguments::vector * Arguments::vector;
    C* const bias = weights + packed;
    auto* const offsets = reinterpret_cast<int64_t*>(bias + biases);
    int64_t group = -1;
    for (int64_t item = first; item < last; ++item) {
      int64_t const band = item % bands, image = item / bands / c.groups, before = band * rows;
      // The last band of a narrow image reaches back, so that it fills a vector.
      int64_t const begin = flat && before > y.windows - rows ? y.windows - rows : before;
      if (item / bands % c.groups != group) pack_weights(weights, bias, group = item / bands % c.groups);
      Arguments a{memory, offsets, weights, bias, nullptr, depth, c.outputs, y.windows * x.windows, x.windows, 0, y.stride * line_size};
      a.rows = y.windows - begin < rows ? y.windows - begin : rows;
      a.result = c.result + (image * c.groups + group) * c.outputs * a.plane + begin * x.windows;
      int64_t const needed = flat ? a.rows + (reach - 1) / y.stride : (a.rows - 1) * y.stride + reach;
      if (item == first || bands > 1) {
        if (flat) set_flat_offsets(offsets, needed);
        else set_offsets(offsets, needed, line);
      }
      PixelMatrix<T> pixels = c.pixels;
      pixels.image += image * c.step_image + group * c.channels * pixels.step_c;
      if (flat) {
        dispatch<PadFlatBody<T>>(const_cast<PixelMatrix<T> const*>(&pixels), memory, c.channels, begin * y.stride, needed);
        a.windows *= a.rows, a.rows = 1;
      } else {
        dispatch<PadBody<T>>(const_cast<PixelMatrix<T> const*>(&pixels), memory, c.channels, begin * y.stride, needed);
      }
      dispatch<DirectBody<T>>(const_cast<Arguments const*>(&a));
    }
  }

 private:
  /// Where the elements of a window lie in a copy that has so many lines of a channel.
  void set_offsets(int64_t* offsets, int64_t lines, PaddedLine const& padded) const {
    WindowAxis const &y = convolution.pixels.windows.y, &x = convolution.pixels.windows.x;
    for (int64_t channel = 0; channel < convolution.channels; ++channel) {
      for (int64_t ky = 0; ky < y.kernel; ++ky) {
        for (int64_t kx = 0; kx < x.kernel; ++kx) *offsets++ = (channel * lines + ky * y.dilation) * padded.size() + padded.place(x, kx);
      }
    }
  }
  /// Where the elements of a window lie in a copy for each column of the kernel, which has `lines` lines for every line that windows begin with.
  void set_flat_offsets(int64_t* offsets, int64_t lines) const {
    WindowAxis const &y = convolution.pixels.windows.y, &x = convolution.pixels.windows.x;
    for (int64_t channel = 0; channel < convolution.channels; ++channel) {
      for (int64_t ky = 0; ky < y.kernel; ++ky) {
        int64_t const line = ky * y.dilation;
        for (int64_t kx = 0; kx < x.kernel; ++kx) *offsets++ = (((channel * x.kernel + kx) * y.stride + line % y.stride) * lines + line / y.stride) * x.windows;
      }
    }
  }
  void pack_weights(C* weights, C* bias, int64_t group) const {
    constexpr int together = DirectConvolution<T>::together;
    Convolution<T> const& c = convolution;
    int64_t const depth = c.depth();
    for (int64_t o = 0; o < c.outputs; o += together) {
      T const* from[together];
      C* const to = weights + o * depth;
      for (int k = 0; k < together; ++k) {
        bool const exists = o + k < c.outputs;
        from[k] = c.weights + (group * c.outputs + (exists ? o + k : 0)) * depth;
        bias[o + k] = exists && c.bias ? static_cast<C>(c.bias[group * c.outputs + o + k]) : C(0);
      }
      for (int64_t t = 0; t < depth; ++t) {
        for (int k = 0; k < together; ++k) to[t * together + k] = static_cast<C>(from[k][t]);
      }
      for (int64_t k = c.outputs - o; k < together; ++k) {
        for (int64_t t = 0; t < depth; ++t) to[t * together + k] = C(0);
      }
    }
  }
};

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI
