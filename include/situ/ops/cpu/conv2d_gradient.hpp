/// The gradients of convolution on the CPU.
///
/// weights  products of the results' gradients with the matrix of pixels, transposed, which is gathered while it is packed; all images of
///          a part are one product, and few parts, in a fixed order, are added up
/// images   products of the transposed weights with the results' gradients: what every window sends back to its pixels, for some rows of
///          windows at a time; then sums over the windows of each pixel, in a fixed order
#pragma once

#include <situ/ops/conv2d_plan.hpp>
#include <situ/ops/cpu/conv2d.hpp>
#include <situ/ops/cpu/conv2d_few_weights.hpp>
#include <situ/ops/cpu/conv2d_weights.hpp>
#include <situ/tensor/tensor.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// The pixels of images [first, ...) as the matrix [windows of all images, channels * kernel height * kernel width].
template <class T>
struct TransposedPixels {
  PixelMatrix<T> matrix;  ///< of the first image
  int64_t step_image;
  bool is_matrix;         ///< pixels lie in memory as the matrix has them, `matrix.step_x` apart
};

/// See Product::pack_b. Rows of the matrix that is not transposed are gathered, so that they stay in the first cache, and turned over.
template <class T>
void pack_transposed_pixels(void const* source, product_t<T>* to, int64_t width, int64_t first_k, int64_t depth, int64_t first_j, int64_t count) {
  using C = product_t<T>;
  auto const& all = *static_cast<TransposedPixels<T> const*>(source);
  int64_t const windows = all.matrix.windows.outputs(), image = first_k / windows;
  int64_t window = first_k % windows;
  PixelMatrix<T> pixels = all.matrix;
  pixels.image += image * all.step_image;
  if (all.is_matrix) {
    pack_panel<T>(to, width, pixels.image + first_j * pixels.step_c + window * pixels.step_x, pixels.step_c, pixels.step_x, count, depth);
    return;
  }
  constexpr int64_t step = 64;  // windows at a time
  constexpr int64_t most = 64;  // panels are narrower
  alignas(64) C rows[most * step + 64];
  for (int64_t done = 0; done < depth; done += step) {
    int64_t const part = depth - done < step ? depth - done : step;
    for (int64_t j = 0; j < count; j += most) {
      int64_t const some = count - j < most ? count - j : most, wide = j + most < count ? most : width - j;
      dispatch<PixelBody<T>>(const_cast<PixelMatrix<T> const*>(&pixels), &rows[0], step, first_j + j, some, window + done, part);
      if (wide == width) pack_panel<C>(to + done * width, width, static_cast<C const*>(&rows[0]), step, 1, some, part);
      else for (int64_t p = 0; p < part; ++p) for (int64_t l = 0; l < wide; ++l) to[(done + p) * width + j + l] = l < some ? rows[l * step + p] : C(0);
    }
  }
}

/// Items are groups x parts of the images x blocks of columns.
template <class T>
struct WeightGradientKernel {
  TransposedPixels<T> pixels;  ///< of the first image and group
  WindowGradients<T> gradients;
  int64_t images, groups, channels, outputs, parts, columns, column_items;
  T* result;  ///< [parts, groups * outputs, channels * kernel height * kernel width]

  void operator()(int64_t first, int64_t last) const {
    int64_t const windows = pixels.matrix.windows.outputs();
    int64_t const width = channels * pixels.matrix.windows.y.kernel * pixels.matrix.windows.x.kernel;
    for (int64_t item = first; item < last; ++item) {
      int64_t const column = item % column_items * columns, part = item / column_items % parts, group = item / column_items / parts;
      int64_t const from = images * part / parts, to = images * (part + 1) / parts;
      TransposedPixels<T> source = pixels;
      source.matrix.image += from * pixels.step_image + group * channels * pixels.matrix.step_c;
      Product<T> product{outputs, width, (to - from) * windows, gradients.data + from * gradients.step_image + group * outputs * gradients.step_output,
                         gradients.step_output, gradients.step_window, nullptr, 0, 0, result + (part * groups + group) * outputs * width, width, 1};
      product.pack_b = &pack_transposed_pixels<T>;
      product.source = &source;
      product.piece = windows, product.piece_step = gradients.step_image;
      multiply(product, 0, outputs, column, column + columns < width ? column + columns : width);
    }
  }
};

/// What is left of a row, fewer than 2 N elements, in packs of N, N / 2, … 4: f.run<N>(index). Gives the index behind them.
template <int N, class F>
SITU_INLINE int64_t for_each_rest(F const& f, int64_t j, int64_t end) {
  if constexpr (N >= 4) {
    if (end - j >= N) f.template run<N>(j), j += N;
    return for_each_rest<N / 2>(f, j, end);
  } else {
    return j;
  }
}

/// to[j * stride] += from[j], in packs where stride is 1 or 2.
template <class T>
struct AddRowBody {
  template <class Isa>
  SITU_INLINE static int run(T* to, T const* from, int64_t stride, int64_t count) {
    constexpr int lanes = Isa::bytes / static_cast<int>(sizeof(T));
    int64_t j = 0;
    if (stride == 1) {
      for (; j + lanes <= count; j += lanes) {
        auto const sum = pack<T, lanes, Isa>::load(to + j) + pack<T, lanes, Isa>::load(from + j);
        sum.store(to + j);
      }
      j = for_each_rest<lanes / 2>(Rest<Isa>{to, from}, j, count);
    } else if (stride == 2) {
      for (; j + lanes < count; j += lanes) {  // the element behind the last one is written, too
        using P = pack<T, lanes, Isa>;
        constexpr std::make_integer_sequence<int, lanes> steps{};
        P const row = P::load(from + j), zero(T(0));
        (P::load(to + 2 * j) + interleaved<0>(row, zero, steps)).store(to + 2 * j);
        (P::load(to + 2 * j + lanes) + interleaved<1>(row, zero, steps)).store(to + 2 * j + lanes);
      }
    }
    for (T* at = to + j * stride; j < count; ++j, at += stride) *at += from[j];
    return 0;
  }

 private:
  template <class Isa>
  struct Rest {
    T* to;
    T const* from;
    template <int N>
    SITU_INLINE void run(int64_t j) const {
      (pack<T, N, Isa>::load(to + j) + pack<T, N, Isa>::load(from + j)).store(to + j);
    }
  };
};

/// Sends what windows [first_row, last_row) x all columns return, `rows` of the matrix [rows, windows] from number first_k on, to their pixels.
template <class T>
struct ScatterBody {
  template <class Isa>
  SITU_INLINE static int run(Windows const* windows_, T* image, T const* from, int64_t pitch, int64_t first_k, int64_t rows, int64_t first_row, int64_t last_row) {
    WindowAxis const y = windows_->y, x = windows_->x;
    int64_t const plane = y.extent * x.extent;
    for (int64_t r = 0; r < rows; ++r, from += pitch) {
      int64_t const k = first_k + r, kx = k % x.kernel, ky = k / x.kernel % y.kernel, channel = k / x.kernel / y.kernel;
      int64_t const at = kx * x.dilation - x.padding;  // of window 0
      int64_t const low = at < 0 ? (-at + x.stride - 1) / x.stride : 0;
      int64_t high = x.extent > at ? (x.extent - at + x.stride - 1) / x.stride : 0;
      if (high > x.windows) high = x.windows;
      if (high <= low) continue;
      for (int64_t row = first_row; row < last_row; ++row) {
        int64_t const line = y.start(row) + ky * y.dilation;
        if (line < 0 || line >= y.extent) continue;
        AddRowBody<T>::template run<Isa>(image + channel * plane + line * x.extent + at + low * x.stride, from + (row - first_row) * x.windows + low, x.stride, high - low);
      }
    }
    return 0;
  }
};

/// Items are images x groups x blocks of channels.
template <class T>
struct ImageGradientKernel {
  Windows windows;
  WindowGradients<T> gradients;
  T const* weights;  ///< [groups * outputs, channels, kernel height, kernel width]
  int64_t groups, channels, outputs, block, block_items;
  int64_t window_rows;  ///< rows of windows at a time
  T* result;            ///< [images, groups * channels, height, width]

  void operator()(int64_t first, int64_t last) const {
    int64_t const size = windows.y.kernel * windows.x.kernel, depth = channels * size, plane = windows.y.extent * windows.x.extent;
    int64_t const pitch = window_rows * windows.x.windows;
    PackingBuffer const buffer(block * size * pitch * static_cast<int64_t>(sizeof(T)) + 64);
    for (int64_t item = first; item < last; ++item) {
      int64_t const channel = item % block_items * block, group = item / block_items % groups, image = item / block_items / groups;
      int64_t const some = channels - channel < block ? channels - channel : block;
      T* const to = result + ((image * groups + group) * channels + channel) * plane;
      for (int64_t k = 0; k < some * plane; ++k) to[k] = T(0);
      Product<T> product{some * size, 0, outputs, weights + group * outputs * depth + channel * size, 1, depth,
                         gradients.data + image * gradients.step_image + group * outputs * gradients.step_output, gradients.step_output,
                         gradients.step_window, static_cast<T*>(buffer.get()), 0, 1};
      for (int64_t row = 0; row < windows.y.windows; row += window_rows) {
        int64_t const end = row + window_rows < windows.y.windows ? row + window_rows : windows.y.windows;
        product.n = (end - row) * windows.x.windows;
        if (SITU_LIKELY(buffer.get() != nullptr)) {
          product.c_i = product.n;
          multiply(product, 0, product.m, 0, product.n);
          dispatch<ScatterBody<T>>(&windows, to, const_cast<T const*>(product.c), product.n, int64_t{0}, product.m, row, end);
        } else {
          without_memory(product, to, row, end);
        }
        product.b += product.n * gradients.step_window;
      }
    }
  }

 private:
  /// One row of the matrix at a time, as many windows as the stack holds.
  SITU_NOINLINE void without_memory(Product<T> product, T* to, int64_t first_row, int64_t last_row) const {
    for (int64_t row = first_row; row < last_row; ++row) {
      for (int64_t k = 0; k < product.m; ++k) {
        int64_t const kx = k % windows.x.kernel, ky = k / windows.x.kernel % windows.y.kernel, channel = k / windows.x.kernel / windows.y.kernel;
        int64_t const line = windows.y.start(row) + ky * windows.y.dilation;
        if (line < 0 || line >= windows.y.extent) continue;
        for (int64_t j = 0; j < windows.x.windows; ++j) {
          int64_t const at = windows.x.start(j) + kx * windows.x.dilation;
          if (at < 0 || at >= windows.x.extent) continue;
          T sum = T(0);
          T const* g = product.b + ((row - first_row) * windows.x.windows + j) * product.b_j;
          for (int64_t o = 0; o < product.k; ++o) sum += product.a[k + o * product.a_k] * g[o * product.b_k];
          to[(channel * windows.y.extent + line) * windows.x.extent + at] += sum;
        }
      }
    }
  }
};

}  // namespace detail::cpu

namespace detail {

/// How far the windows of gradients are apart, whose last two axes can be walked as one; that of an axis of one element says nothing.
inline int64_t step_of_windows(Layout const& gradients) {
  int const last = gradients.rank() - 1;
  return gradients.strides[gradients.shape[last] == 1 ? last - 1 : last];
}

/// The gradient of the weights, of a shape [parts, groups * outputs, channels * kernel height * kernel width], to be summed over the parts.
/// `windows` are axes that can be walked as one. Where it costs little, also that of the bias, of a shape [parts, groups * outputs].
template <class D, class T>
Tensor<T, D> weight_gradient_parts(cpu_kernels, ConvolutionPlan const& plan, Tensor<T, D> const& x, Tensor<T, D> const& g, int64_t groups,
                                   Tensor<T, D>* biases = nullptr) {
  Layout const &layout = x.layout(), &from = g.layout();
  int const at = layout.rank() - 3;
  cpu::WeightGradientKernel<T> kernel{};
  kernel.pixels.matrix = {plan.windows, x.data(), x.data() + layout.extent().last + 1, layout.strides[at], layout.strides[at + 1], layout.strides[at + 2]};
  kernel.pixels.step_image = at == 1 ? layout.strides[0] : 0;
  cpu::Convolution<T> probe{};
  probe.pixels = kernel.pixels.matrix;
  kernel.pixels.is_matrix = probe.is_pointwise();
  kernel.gradients = {g.data(), at == 1 ? from.strides[0] : 0, from.strides[at], step_of_windows(from)};
  kernel.images = plan.images, kernel.groups = groups, kernel.channels = plan.channels, kernel.outputs = plan.outputs;
  if (cpu::FewWeightsKernel<T>::suits(plan.windows, plan.channels, plan.outputs)) {
    Windows const& w = plan.windows;
    // What is copied counts as much as four multiplications with it.
    int64_t const one = (plan.outputs * plan.channels + 4) * w.y.kernel * w.x.kernel * w.outputs();
    int64_t parts = groups < 32 ? 32 / groups : 1;  // the same for any number of threads, and worth adding up
    if (parts > plan.images * one / (1 << 18) + 1) parts = plan.images * one / (1 << 18) + 1;
    if (parts > plan.images) parts = plan.images;
    auto result = Tensor<T, D>::uninitialized({parts, groups * plan.outputs, plan.channels, w.y.kernel, w.x.kernel}, "conv2d");
    cpu::FewWeightsKernel<T> const few{kernel.pixels.matrix, kernel.pixels.step_image, kernel.gradients, g.data() + from.extent().last + 1, plan.images, groups, plan.channels,
                                       plan.outputs, parts, result.data()};
    device_traits<D>::launch(few, groups * parts, cpu::convolution_grain(plan.images / parts * one));
    return result;
  }
  if (!kernel.pixels.is_matrix && cpu::WindowRunsKernel<T>::suits(plan.windows, plan.channels, plan.outputs)) {
    Windows const& w = plan.windows;
    int64_t const one = plan.outputs * plan.channels * w.y.kernel * w.x.kernel * w.outputs();
    int64_t parts = one < (1 << 21) ? plan.images * one / (1 << 21) + 1 : plan.images;  // the same for any number of threads, and worth adding up
    if (groups * parts > 32) parts = groups < 32 ? 32 / groups : 1;
    if (parts > plan.images) parts = plan.images;
    auto result = Tensor<T, D>::uninitialized({parts, groups * plan.outputs, plan.channels, w.y.kernel, w.x.kernel}, "conv2d");
    int64_t const work = plan.images / parts * one;
    if (biases) *biases = Tensor<T, D>::uninitialized({parts, groups * plan.outputs}, "conv2d");
    cpu::WindowRunsKernel<T> const runs{kernel.pixels.matrix, kernel.pixels.step_image, kernel.gradients, plan.images, groups, plan.channels,
                                        plan.outputs, parts, result.data(), biases ? biases->data() : nullptr};
    device_traits<D>::launch(runs, groups * parts, cpu::convolution_grain(work));
    return result;
  }
  int64_t const width = plan.channels * plan.windows.y.kernel * plan.windows.x.kernel, windows = plan.windows.outputs();
  // The cut does not depend on the number of threads: about 32 items, of which each is worth packing for.
  kernel.columns = width > 2 * cpu::block_columns ? cpu::block_columns : width;
  kernel.column_items = (width + kernel.columns - 1) / kernel.columns;
  int64_t const items = groups * kernel.column_items, work = plan.outputs * kernel.columns * windows;
  kernel.parts = items >= 32 ? 1 : 32 / items;
  if (kernel.parts > plan.images) kernel.parts = plan.images;
  if (work < (1 << 16)) {  // too little in an image for a part of its own
    int64_t const most = plan.images * work / (1 << 16) + 1;
    if (kernel.parts > most) kernel.parts = most;
  }
  auto result = Tensor<T, D>::uninitialized({kernel.parts, groups * plan.outputs, width}, "conv2d");
  kernel.result = result.data();
  int64_t const one = plan.images / kernel.parts * work;
  device_traits<D>::launch(kernel, items * kernel.parts, cpu::convolution_grain(one));
  return result;
}

/// The gradient of the images, contiguous. The weights are contiguous.
template <class D, class T>
Tensor<T, D> image_gradient(cpu_kernels, ConvolutionPlan const& plan, Shape const& shape, Tensor<T, D> const& g, Tensor<T, D> const& w, int64_t groups) {
  Layout const& from = g.layout();
  int const at = from.rank() - 3;
  T const* const weights = w.data();
  auto result = Tensor<T, D>::uninitialized(shape, "conv2d");
  // each channel by its kernel turned around, where no pixel is passed over
  auto const turned = [](WindowAxis const& a) { return WindowAxis{a.windows, a.extent, a.kernel, 1, (a.kernel - 1) * a.dilation - a.padding, a.dilation}; };
  cpu::Convolution<T> c{};
  c.pixels = {{turned(plan.windows.y), turned(plan.windows.x)}, g.data(), g.data() + from.extent().last + 1, from.strides[at], from.strides[at + 1], from.strides[at + 2]};
  bool const fits = plan.windows.y.stride == 1 && plan.windows.x.stride == 1 && c.pixels.windows.x.padding >= 0 && c.pixels.windows.y.padding >= 0;
  c.step_image = at == 1 ? from.strides[0] : 0;
  c.groups = groups, c.channels = plan.outputs, c.outputs = plan.channels, c.result = result.data();
  bool const few = plan.channels <= cpu::FewOutputs<T>::most;
  // As one product of many channels, where there are enough pixels for the copy of the weights that it takes.
  bool const as_product = (c.is_pointwise() || c.depth() > cpu::DirectConvolution<T>::most_product_depth) && (plan.images >= 4 || plan.windows.outputs() >= 128);
  if (fits && (few ? plan.outputs <= cpu::FewOutputs<T>::most : as_product || cpu::DirectConvolution<T>::suits(c))) {
    Shape const& s = w.shape();
    Tensor<T, D> const split = w.view({groups, plan.outputs, plan.channels, s[2], s[3]});
    Tensor<T, D> const kernels = split.transpose(1, 2).flip(3).flip(4).contiguous();
    c.weights = kernels.data(), c.bias = nullptr;
    cpu::run_convolution<D>(c, plan.images);
    return result;
  }
  cpu::ImageGradientKernel<T> kernel{plan.windows, {g.data(), at == 1 ? from.strides[0] : 0, from.strides[at], step_of_windows(from)}, weights, groups, plan.channels,
                                     plan.outputs, 0, 0, 0, result.data()};
  int64_t const size = plan.windows.y.kernel * plan.windows.x.kernel, across = plan.windows.x.windows;
  // A block of the matrix fits the second cache; enough items for many threads.
  kernel.block = size < 512 ? 512 / size : 1;
  if (plan.images * groups < 32) {
    int64_t const part = (plan.channels * plan.images * groups + 31) / 32;
    if (part < kernel.block) kernel.block = part;
  }
  if (kernel.block > plan.channels) kernel.block = plan.channels;
  if (kernel.block < 1) kernel.block = 1;
  kernel.block_items = (plan.channels + kernel.block - 1) / kernel.block;
  kernel.window_rows = (int64_t{1} << 17) / (kernel.block * size * across * static_cast<int64_t>(sizeof(T)) + 1) + 1;
  if (kernel.window_rows > plan.windows.y.windows) kernel.window_rows = plan.windows.y.windows;
  int64_t const work = kernel.block * size * plan.windows.outputs() * (plan.outputs < (1 << 16) ? plan.outputs + 1 : 1 << 16);
  device_traits<D>::launch(kernel, plan.images * groups * kernel.block_items, cpu::convolution_grain(work));
  return result;
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
