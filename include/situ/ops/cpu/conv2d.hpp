/// Convolution on the CPU: sums of shifted rows, for some outputs together or, where a group has few, alone; for very many channels a product of the weights
/// with a matrix of pixels that is gathered while it is packed.
#pragma once

#include <situ/core/device.hpp>
#include <situ/ops/cpu/conv2d_direct.hpp>
#include <situ/ops/cpu/conv2d_few.hpp>
#include <situ/ops/cpu/gemm.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

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

/// Convolution as a product. Items are images x groups x parts of the outputs x blocks of windows.
template <class T>
struct ConvolutionKernel {
  Convolution<T> convolution;
  int64_t row_items = 1, rows = convolution.outputs;  ///< parts, and the outputs of one

  void operator()(int64_t first, int64_t last) const {
    Convolution<T> const& c = convolution;
    int64_t const windows = c.pixels.windows.outputs(), depth = c.depth();
    for (int64_t item = first; item < last; ++item) {
      int64_t const part = item / c.column_items, row = part % row_items, group = part / row_items % c.groups, image = part / row_items / c.groups;
      int64_t const column = item % c.column_items * c.columns;
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
      multiply(product, row * rows, row + 1 < row_items ? (row + 1) * rows : c.outputs, column, column + c.columns < windows ? column + c.columns : windows);
    }
  }
};

/// How many items of so many multiplications are worth a thread of their own; 0: each one is, also where there are two.
inline int64_t convolution_grain(int64_t work) {
  if (work >= 1 << 20) return work < 1 << 21;
  return (int64_t{1} << 19) / (work < (1 << 19) ? work + 1 : 1 << 19) + 1;
}

/// Runs a convolution of `images` images on D.
template <class D, class T>
void run_convolution(Convolution<T>& c, int64_t images) {
  int64_t const windows = c.pixels.windows.outputs();
  if (images * c.groups * c.outputs * windows == 0) return;
  if (!c.pixels.image) c.pixels.image = c.pixels.end = c.result;  // images without elements are never read, but places in them are computed
  if (FewOutputs<T>::suits(c)) {
    FewOutputsKernel<T> const kernel(c);
    // What is copied counts as much as four multiplications with it.
    int64_t const work = (c.outputs + 4) * kernel.rows * c.pixels.windows.x.windows * c.depth();
    return device_traits<D>::launch(kernel, images * c.groups * kernel.bands, convolution_grain(work));
  }
  // By tiles where enough outputs share what packing the pixels costs, and tiles are full.
  bool const by_tiles = has_tiles<T> && c.outputs >= 8 * tile_side && c.depth() >= 64 && windows * c.depth() >= 16384 && multiplies_tiles();
  if (!by_tiles && DirectConvolution<T>::suits(c)) {
    DirectKernel<T> const kernel = DirectConvolution<T>::cut(c);
    int64_t const work = c.outputs * kernel.rows * c.pixels.windows.x.windows * c.depth();
    return device_traits<D>::launch(kernel, images * c.groups * kernel.bands, convolution_grain(work));
  }
  // Blocks of windows for many threads, each worth packing the weights for.
  c.columns = windows;
  if (images * c.groups < 32) {
    int64_t const part = (windows + 31) / 32, blocks = windows / (part < 768 ? 768 : part);
    if (blocks > 1) c.columns = ((windows + blocks - 1) / blocks + 95) / 96 * 96;
  }
  c.column_items = (windows + c.columns - 1) / c.columns;
  ConvolutionKernel<T> kernel{c};
  // Where threads would go without, parts of the outputs, each worth gathering the pixels for. An output is the same sum in any part.
  int64_t const items = images * c.groups * c.column_items, threads = num_threads(), most = c.outputs / 64;
  for (int64_t parts = 1; parts <= most && items * kernel.row_items % threads != 0 && items * kernel.row_items < 4 * threads; ++parts) kernel.row_items = parts;
  kernel.rows = (c.outputs / kernel.row_items + 7) / 8 * 8;
  kernel.row_items = (c.outputs + kernel.rows - 1) / kernel.rows;
  int64_t const work = kernel.rows * c.columns * (c.depth() < (1 << 16) ? c.depth() + 1 : 1 << 16);
  device_traits<D>::launch(kernel, items * kernel.row_items, convolution_grain(work));
}

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI
