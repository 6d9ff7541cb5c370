/// The gradient of a convolution's weights on the CPU, from images whose channels lie beside each other.
///
/// Of a padded copy of the image [line, column, channel] the elements of a window's row are one run of kernel width x channels numbers. So the
/// gradient of output o is, for each row of the kernel, a sum of such runs times g[o, window]: tiles of outputs x vectors stay in registers
/// over all windows of an image, and are added up over the images of a part in memory.
#pragma once

#include <situ/ops/cpu/conv2d_direct.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// The gradients of a convolution's results: windows lie `step_window` apart.
template <class T>
struct WindowGradients {
  T const* data;
  int64_t step_image, step_output, step_window;
};

/// One image, for WindowRunsBody.
template <class C>
struct WindowRuns {
  static constexpr int64_t vector = 64 / static_cast<int64_t>(sizeof(C));  ///< runs are padded to whole ones in `sums`
  C const* image;      ///< the padded copy
  C const* gradients;  ///< of the first output
  C* sums;             ///< [outputs, kernel height, run]
  int64_t outputs, kernel_rows, run;
  int64_t rows, columns;                    ///< of windows
  int64_t step_kernel, step_row, step_column;  ///< in the copy
  int64_t step_output, step_window;         ///< of the gradients
};

template <class C>
struct WindowRunsBody {
  template <class Isa>
  SITU_INLINE static int run(WindowRuns<C> const* arguments) {
    WindowRuns<C> const a = *arguments;
    constexpr int lanes = Isa::bytes / static_cast<int>(sizeof(C));
    constexpr int height = Isa::bytes == 64 ? 8 : 4;
    constexpr std::make_integer_sequence<int, height> each{};
    int64_t const in_run = a.run / lanes, vectors = in_run * a.kernel_rows;
    for (int64_t v = 0; v < vectors;) {
      int64_t const left = vectors - v, count = left == 3 || left > 4 ? 3 : left > 1 ? 2 : 1;
      int64_t at[3];  // in the copy
      for (int64_t k = 0; k < 3; ++k) {
        int64_t const one = k < count ? v + k : v;
        at[k] = one / in_run * a.step_kernel + one % in_run * lanes;
      }
      for (int64_t o = 0; o < a.outputs; o += height) {
        int64_t const first = o + height <= a.outputs ? o : a.outputs - height;  // the last tile overlaps the one before, and keeps what is new
        if (count == 3) tile<Isa, 3>(a, at, v * lanes, first, static_cast<int>(o - first), each);
        else if (count == 2) tile<Isa, 2>(a, at, v * lanes, first, static_cast<int>(o - first), each);
        else tile<Isa, 1>(a, at, v * lanes, first, static_cast<int>(o - first), each);
      }
      v += count;
    }
    return 0;
  }

 private:
  template <class Isa, int N, int... R>
  SITU_INLINE static void tile(WindowRuns<C> const& a, int64_t const* at, int64_t place, int64_t o, int skipped, std::integer_sequence<int, R...>) {
    using V = typename vector_of<C, Isa::bytes / static_cast<int>(sizeof(C))>::type;
    V sums[sizeof...(R)][N];
    C* const to = a.sums + o * a.kernel_rows * a.run + place;
    int64_t const step = a.kernel_rows * a.run, step_o = a.step_output, step_window = a.step_window, step_column = a.step_column;
    (clear(sums[R]), ...);
    C const* const g = a.gradients + o * step_o;
    C const* p[] = {g, g + 3 * step_o, g + 6 * step_o};  // a third of the addresses is computed, the rest is base + index * scale
    C const* from = a.image + at[0];
    int64_t const second = at[1] - at[0], third = at[2] - at[0], back = a.step_row - a.columns * step_column;
    for (int64_t row = a.rows; row > 0; --row, from += back) {
      for (int64_t column = a.columns; column > 0; --column, from += step_column) {
        V x[N];
        __builtin_memcpy(&x[0], from, sizeof(V));
        if constexpr (N > 1) __builtin_memcpy(&x[1], from + second, sizeof(V));
        if constexpr (N > 2) __builtin_memcpy(&x[2], from + third, sizeof(V));
        (add<Isa>(sums[R], p[R / 3] + R % 3 * step_o, x), ...);
        p[0] += step_window, p[1] += step_window, p[2] += step_window;
      }
    }
    ((R >= skipped ? put(sums[R], to + R * step) : void()), ...);
  }
  template <class V, int N>
  SITU_INLINE static void clear(V (&sums)[N]) {
    sums[0] = V{};
    if constexpr (N > 1) sums[1] = V{};
    if constexpr (N > 2) sums[2] = V{};
  }
  template <class Isa, class V, int N>
  SITU_INLINE static void add(V (&sums)[N], C const* gradient, V const (&x)[N]) {
    V all{};
    spread<Isa>(all, gradient);
    add_product<Isa, C>(sums[0], all, x[0]);
    if constexpr (N > 1) add_product<Isa, C>(sums[1], all, x[1]);
    if constexpr (N > 2) add_product<Isa, C>(sums[2], all, x[2]);
  }
  template <class V, int N>
  SITU_INLINE static void put(V (&sums)[N], C* to) {
    constexpr int64_t lanes = sizeof(V) / sizeof(C);
    add_to(sums[0], to);
    if constexpr (N > 1) add_to(sums[1], to + lanes);
    if constexpr (N > 2) add_to(sums[2], to + 2 * lanes);
  }
  template <class V>
  SITU_INLINE static void add_to(V const& sum, C* to) {
    V all;
    __builtin_memcpy(&all, to, sizeof(V));
    all += sum;
    __builtin_memcpy(to, &all, sizeof(V));
  }
};

/// Adds up the gradients of every output's windows, `step` apart, in as many sums as there are lanes: to sums[output, lane].
template <class C>
struct PlaneSumsBody {
  template <class Isa>
  SITU_INLINE static int run(C* sums, C const* from, int64_t outputs, int64_t step_output, int64_t step, int64_t count) {
    constexpr int lanes = Isa::bytes / static_cast<int>(sizeof(C));
    using P = pack<C, lanes, Isa>;
    for (int64_t o = 0; o < outputs; ++o, from += step_output, sums += WindowRuns<C>::vector) {
      P even(C(0)), odd(C(0));
      C rest = C(0);
      int64_t k = 0;
      if (step == 1) {
        for (; k + 2 * lanes <= count; k += 2 * lanes) even = even + P::load(from + k), odd = odd + P::load(from + k + lanes);
        if (k + lanes <= count) even = even + P::load(from + k), k += lanes;
      }
      for (; k < count; ++k) rest += from[k * step];
      (P::load(sums) + (even + odd)).store(sums);
      sums[0] += rest;
    }
    return 0;
  }
};

/// Items are groups x parts of the images. For T that is computed in itself.
template <class T>
struct WindowRunsKernel {
  PixelMatrix<T> pixels;  ///< of the first image and group
  int64_t step_image;
  WindowGradients<T> gradients;
  int64_t images, groups, channels, outputs, parts;
  T* result;  ///< [parts, groups * outputs, channels, kernel height, kernel width]
  T* biases;  ///< the gradients of biases, [parts, groups * outputs], or null

  static bool suits(Windows const& windows, int64_t channels, int64_t outputs) {
    if (!reads_closely(windows.y) || !reads_closely(windows.x)) return false;
    int64_t const run = windows.x.kernel * channels, copy = channels * lines(windows) * pitch(windows);
    bool const fills = 2 * run >= padded(run) || windows.outputs() <= 256;  // enough of the vectors
    return fills && windows.x.dilation == 1 && outputs >= 8 && outputs * windows.y.kernel * padded(run) <= (int64_t{1} << 18) && copy <= (int64_t{1} << 17);
  }

  void operator()(int64_t first, int64_t last) const {
    WindowAxis const &y = pixels.windows.y, &x = pixels.windows.x;
    constexpr int64_t vector = WindowRuns<T>::vector;
    // Channels are turned over by fours, where that makes no run longer.
    int64_t const fours = (channels + 3) / 4 * 4, beside = padded(x.kernel * fours) == padded(x.kernel * channels) ? fours : channels;
    int64_t const down = lines(pixels.windows), across = pitch(pixels.windows), room = padded(down * across * beside) + vector;
    WindowRuns<T> a{nullptr, nullptr, nullptr, outputs, y.kernel, padded(x.kernel * beside), y.windows, x.windows, y.dilation * across * beside,
                    y.stride * across * beside, x.stride * beside, gradients.step_output, gradients.step_window};
    int64_t const places = outputs * y.kernel * a.run, totals = biases ? outputs * vector : 0;
    PackingBuffer const buffer((room + places + totals) * static_cast<int64_t>(sizeof(T)));
    if (SITU_UNLIKELY(!buffer.get())) return without_memory(first, last);
    auto* const memory = static_cast<T*>(buffer.get());
    for (int64_t k = 0; k < room; ++k) memory[k] = T(0);  // the padding stays
    a.image = memory, a.sums = memory + room;
    T* const total = a.sums + places;
    int64_t const height = y.extent < down - y.padding ? y.extent : down - y.padding, width = x.extent < across - x.padding ? x.extent : across - x.padding;
    for (int64_t item = first; item < last; ++item) {
      int64_t const part = item % parts, group = item / parts, end = images * (part + 1) / parts;
      for (int64_t k = 0; k < places + totals; ++k) a.sums[k] = T(0);
      for (int64_t image = images * part / parts; image < end; ++image) {
        T const* const from = pixels.image + image * step_image + group * channels * pixels.step_c;
        for (int64_t line = 0; line < height && width > 0; ++line) copy_line(memory + ((line + y.padding) * across + x.padding) * beside, beside, from + line * pixels.step_y, width);
        a.gradients = gradients.data + image * gradients.step_image + group * outputs * gradients.step_output;
        dispatch<WindowRunsBody<T>>(const_cast<WindowRuns<T> const*>(&a));
        if (biases) dispatch<PlaneSumsBody<T>>(total, a.gradients, outputs, gradients.step_output, gradients.step_window, pixels.windows.outputs());
      }
      T* to = result + (part * groups + group) * outputs * channels * y.kernel * x.kernel;
      for (int64_t o = 0; o < outputs; ++o) {
        for (int64_t channel = 0; channel < channels; ++channel) {
          for (int64_t ky = 0; ky < y.kernel; ++ky) {
            T const* const run = a.sums + (o * y.kernel + ky) * a.run + channel;
            for (int64_t kx = 0; kx < x.kernel; ++kx) *to++ = run[kx * beside];
          }
        }
        if (!biases) continue;
        T sum = T(0);
        for (int64_t k = 0; k < vector; ++k) sum += total[o * vector + k];
        biases[(part * groups + group) * outputs + o] = sum;
      }
    }
  }

 private:
  /// Sum by sum.
  SITU_NOINLINE void without_memory(int64_t first, int64_t last) const {
    WindowAxis const &y = pixels.windows.y, &x = pixels.windows.x;
    int64_t const depth = channels * y.kernel * x.kernel, windows = y.windows * x.windows;
    for (int64_t item = first; item < last; ++item) {
      int64_t const part = item % parts, group = item / parts, begin = images * part / parts, end = images * (part + 1) / parts;
      for (int64_t place = 0; place < outputs * (depth + 1); ++place) {
        int64_t const o = place / (depth + 1), t = place % (depth + 1), channel = group * channels + t / (y.kernel * x.kernel);
        bool const all = t == depth;  // what is added up for the bias
        if (all && !biases) continue;
        T sum = T(0);
        for (int64_t k = begin * windows; k < end * windows; ++k) {
          int64_t const image = k / windows, window = k % windows;
          int64_t const line = y.start(window / x.windows) + t / x.kernel % y.kernel * y.dilation, column = x.start(window % x.windows) + t % x.kernel;
          if (!all && (line < 0 || line >= y.extent || column < 0 || column >= x.extent)) continue;
          T const one = gradients.data[image * gradients.step_image + (group * outputs + o) * gradients.step_output + window * gradients.step_window];
          sum += all ? one : one * pixels.image[image * step_image + channel * pixels.step_c + line * pixels.step_y + column * pixels.step_x];
        }
        int64_t const row = (part * groups + group) * outputs + o;
        if (all) biases[row] = sum;
        else result[row * depth + t] = sum;
      }
    }
  }
  /// One line of the copy, `beside` elements for each column; those of channels that do not exist are any elements of the images, or zeros.
  void copy_line(T* to, int64_t beside, T const* from, int64_t width) const {
    bool const more = beside > channels && pixels.step_c > 0 && pixels.end - from > (beside - 1) * pixels.step_c + (width - 1) * pixels.step_x && pixels.step_x > 0;
    pack_panel<T>(to, beside, from, pixels.step_c, pixels.step_x, more ? beside : channels, width);
  }
  static int64_t padded(int64_t count) { return (count + WindowRuns<T>::vector - 1) / WindowRuns<T>::vector * WindowRuns<T>::vector; }
  /// The lines and columns of the copy: what windows read.
  static int64_t lines(Windows const& w) { return (w.y.windows - 1) * w.y.stride + (w.y.kernel - 1) * w.y.dilation + 1; }
  static int64_t pitch(Windows const& w) { return (w.x.windows - 1) * w.x.stride + w.x.kernel; }
};

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI
