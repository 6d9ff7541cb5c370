/// The gradient of the weights of a convolution with few channels and outputs for each group on the CPU: of every channel with a kernel of its own, for the
/// most part.
#pragma once

#include <situ/ops/cpu/conv2d_few.hpp>
#include <situ/ops/cpu/conv2d_weights.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// The weights between one channel and one output: sums over a band of rows, from padded copies of both. The vectors of windows of six rows at a time meet
/// the lines that these read.
template <class T>
struct FewWeights {
  static constexpr int together = FewOutputs<T>::together;
  static constexpr int64_t vector = FewOutputs<T>::vector;
  T const* image;         ///< the padded copy
  int64_t const* places;  ///< in it, of a window's columns
  T const* gradients;     ///< [rows, pitch], zeros behind the windows
  T* sums;                ///< [kernel rows, kernel columns, vector]
  int64_t kernel_rows, kernel_columns;
  int64_t windows, rows, pitch;
  int64_t step_kernel, step_row;  ///< in the copy

  static int64_t pitch_of(int64_t windows) { return (windows + vector - 1) / vector * vector; }
};

template <class T>
struct FewWeightsBody {
  using Arguments = FewWeights<T>;

  template <class Isa>
  SITU_INLINE static int run(Arguments const* arguments) {
    walk_rows<FewWeightsBody, Isa>(*arguments);
    return 0;
  }
  template <class Isa, int N, int... R>
  SITU_INLINE static void line(Arguments const& a, int64_t row, std::integer_sequence<int, R...> rows) {
    using Mask = pack<signed_of_bytes<sizeof(T)>, N, Isa>;
    T const *image = a.image + row * a.step_row, *gradients = a.gradients + row * a.pitch;
    int64_t window = 0;
    for (; window + N <= a.windows; window += N) tile<Isa, N, false>(a, image + window, gradients + window, Mask(0), rows);
    if (window == a.windows) return;
    // What lies behind the windows may be infinite.
    Mask kept(0);
    for (int k = 0; k < N; ++k) kept.set(k, window + k < a.windows ? -1 : 0);
    tile<Isa, N, true>(a, image + window, gradients + window, kept, rows);
  }

 private:
  template <class Isa, int N, bool Masked, class Mask, int... R>
  SITU_INLINE static void tile(Arguments const& a, T const* image, T const* gradients, Mask const& kept, std::integer_sequence<int, R...>) {
    using P = pack<T, N, Isa>;
    using V = typename P::vector;
    constexpr int count = sizeof...(R);
    constexpr int64_t vector = Arguments::vector;
    V g[count];
    (__builtin_memcpy(&g[R], gradients + R * a.pitch, sizeof(V)), ...);
    int64_t const step = a.step_kernel, columns = a.kernel_columns;
    // Whether windows of a row read what those of the row before read, one line or two lines on.
    int const apart = a.step_row == step ? 1 : a.step_row == 2 * step ? 2 : 0;
    T* sums = a.sums;
    int64_t left = a.kernel_rows;
    if (apart > 0) {
      for (; left >= 3; left -= 3, image += 3 * step, sums += 3 * columns * vector) {
        for (int64_t k = 0; k < columns; ++k) {
          V w[3];
          T* const to = sums + k * vector;
          for (int r = 0; r < 3; ++r) __builtin_memcpy(&w[r], to + r * columns * vector, sizeof(V));
          if (apart == 1) three<Masked, P, 1>(w, g, kept, image + a.places[k], step, std::make_integer_sequence<int, count + 2>{});
          else three<Masked, P, 2>(w, g, kept, image + a.places[k], step, std::make_integer_sequence<int, 2 * count + 1>{});
          for (int r = 0; r < 3; ++r) __builtin_memcpy(to + r * columns * vector, &w[r], sizeof(V));
        }
      }
    }
    for (; left > 0; --left, image += step, sums += columns * vector) {
      for (int64_t k = 0; k < columns; ++k) {
        V w;
        T* const to = sums + k * vector;
        __builtin_memcpy(&w, to, sizeof(V));
        T const* const line = image + a.places[k];
        (add_line<Masked, P>(w, g[R], kept, line + R * a.step_row), ...);
        __builtin_memcpy(to, &w, sizeof(V));
      }
    }
  }
  template <bool Masked, class P, class Mask, class V>
  SITU_INLINE static void load(V& x, Mask const& kept, T const* from) {
    if constexpr (Masked) x = bitcast<T>(bitcast<typename Mask::value_type>(P::load(from)) & kept).v;
    else __builtin_memcpy(&x, from, sizeof(V));
  }
  /// Line L of those that the rows read, which begin Apart lines behind each other, is row L - R * Apart of the kernel for row R.
  template <bool Masked, class P, int Apart, class V, class Mask, int Rows, int... L>
  SITU_INLINE static void three(V (&w)[3], V const (&g)[Rows], Mask const& kept, T const* from, int64_t step, std::integer_sequence<int, L...>) {
    (of_line<Masked, P, Apart, L>(w, g, kept, from + L * step), ...);
  }
  template <bool Masked, class P, int Apart, int L, class V, class Mask, int Rows>
  SITU_INLINE static void of_line(V (&w)[3], V const (&g)[Rows], Mask const& kept, T const* from) {
    V x;
    load<Masked, P>(x, kept, from);
    for_kernel_row<P, Apart, L, 0>(w, g, x);
    for_kernel_row<P, Apart, L, 1>(w, g, x);
    for_kernel_row<P, Apart, L, 2>(w, g, x);
  }
  template <class P, int Apart, int L, int K, class V, int Rows>
  SITU_INLINE static void for_kernel_row(V (&w)[3], V const (&g)[Rows], V const& x) {
    if constexpr (L >= K && (L - K) % Apart == 0 && (L - K) / Apart < Rows) add_product<typename P::isa_type, T>(w[K], g[(L - K) / Apart], x);
  }
  template <bool Masked, class P, class V, class Mask>
  SITU_INLINE static void add_line(V& w, V const& g, Mask const& kept, T const* from) {
    V x;
    load<Masked, P>(x, kept, from);
    add_product<typename P::isa_type, T>(w, g, x);
  }
};

/// Writes `rows` rows of windows, `step` apart, as FewWeights takes them. May write a register's worth behind them.
template <class T>
struct WindowRowsBody {
  template <class Isa>
  SITU_INLINE static int run(T* to, T const* from, int64_t windows, int64_t step, int64_t rows, T const* end) {
    int64_t const pitch = FewWeights<T>::pitch_of(windows);
    for (; rows > 0; --rows, to += pitch, from += windows * step) copy_shifted<Isa, Isa::bytes / static_cast<int>(sizeof(T))>(to, from, step, 0, windows, pitch, end);
    return 0;
  }
};

/// Items are groups x parts of the images. For T that is computed in itself.
template <class T>
struct FewWeightsKernel {
  PixelMatrix<T> pixels;  ///< of the first image and group
  int64_t step_image;
  WindowGradients<T> gradients;
  T const* end;  ///< behind the last gradient
  int64_t images, groups, channels, outputs, parts;
  T* result;  ///< [parts, groups * outputs, channels, kernel height, kernel width]

  static bool suits(Windows const& windows, int64_t channels, int64_t outputs) {
    return channels <= FewOutputs<T>::most && outputs <= FewOutputs<T>::most && reads_closely(windows.y) && reads_closely(windows.x);
  }

  void operator()(int64_t first, int64_t last) const {
    WindowAxis const &y = pixels.windows.y, &x = pixels.windows.x;
    constexpr int64_t vector = FewWeights<T>::vector;
    PaddedLine const line(x, vector);
    int64_t const rows = few_rows<T>(pixels.windows, channels), reach = (y.kernel - 1) * y.dilation + 1, size = y.kernel * x.kernel, pitch = FewWeights<T>::pitch_of(x.windows);
    int64_t const room = channels * ((rows - 1) * y.stride + reach) * line.size() + vector, copied = rows * pitch + vector, places = outputs * channels * size * vector;
    PackingBuffer const buffer((room + copied + places) * static_cast<int64_t>(sizeof(T)) + x.kernel * static_cast<int64_t>(sizeof(int64_t)));
    if (SITU_UNLIKELY(!buffer.get())) return without_memory(first, last);
    auto* const memory = static_cast<T*>(buffer.get());
    T *const copy = memory + room, *const sums = copy + copied;
    auto* const columns = reinterpret_cast<int64_t*>(sums + places);
    for (int64_t k = 0; k < x.kernel; ++k) columns[k] = line.place(x, k);
    for (int64_t item = first; item < last; ++item) {
      int64_t const part = item % parts, group = item / parts, behind = images * (part + 1) / parts;
      for (int64_t k = 0; k < places; ++k) sums[k] = T(0);
      for (int64_t image = images * part / parts; image < behind; ++image) {
        PixelMatrix<T> one = pixels;
        one.image += image * step_image + group * channels * pixels.step_c;
        T const* const from = gradients.data + image * gradients.step_image + group * outputs * gradients.step_output;
        for (int64_t begin = 0; begin < y.windows; begin += rows) {
          int64_t const some = y.windows - begin < rows ? y.windows - begin : rows, lines = (some - 1) * y.stride + reach;
          dispatch<PadBody<T>>(const_cast<PixelMatrix<T> const*>(&one), memory, channels, begin * y.stride, lines);
          for (int64_t o = 0; o < outputs; ++o) {
            dispatch<WindowRowsBody<T>>(copy, from + o * gradients.step_output + begin * x.windows * gradients.step_window, x.windows, gradients.step_window, some, end);
            for (int64_t c = 0; c < channels; ++c) {
              FewWeights<T> const a{memory + c * lines * line.size(), columns, copy, sums + (o * channels + c) * size * vector, y.kernel, x.kernel, x.windows, some, pitch,
                                    y.dilation * line.size(), y.stride * line.size()};
              dispatch<FewWeightsBody<T>>(&a);
            }
          }
        }
      }
      T* const to = result + (part * groups + group) * outputs * channels * size;
      for (int64_t k = 0; k < outputs * channels * size; ++k) {
        T four[4] = {};  // chains
        for (int64_t l = 0; l < vector; l += 4) {
          for (int64_t m = 0; m < 4; ++m) four[m] += sums[k * vector + l + m];
        }
        to[k] = (four[0] + four[1]) + (four[2] + four[3]);
      }
    }
  }

 private:
  /// Sum by sum.
  SITU_NOINLINE void without_memory(int64_t first, int64_t last) const {
    WindowAxis const &y = pixels.windows.y, &x = pixels.windows.x;
    int64_t const size = y.kernel * x.kernel, windows = y.windows * x.windows;
    for (int64_t item = first; item < last; ++item) {
      int64_t const part = item % parts, group = item / parts, begin = images * part / parts, behind = images * (part + 1) / parts;
      for (int64_t place = 0; place < outputs * channels * size; ++place) {
        int64_t const o = group * outputs + place / size / channels, c = group * channels + place / size % channels, ky = place % size / x.kernel, kx = place % x.kernel;
        T sum = T(0);
        for (int64_t k = begin * windows; k < behind * windows; ++k) {
          int64_t const image = k / windows, window = k % windows;
          int64_t const row = y.start(window / x.windows) + ky * y.dilation, column = x.start(window % x.windows) + kx * x.dilation;
          if (row < 0 || row >= y.extent || column < 0 || column >= x.extent) continue;
          sum += gradients.data[image * gradients.step_image + o * gradients.step_output + window * gradients.step_window] *
                 pixels.image[image * step_image + c * pixels.step_c + row * pixels.step_y + column * pixels.step_x];
        }
        result[(part * groups + group) * outputs * channels * size + place] = sum;
      }
    }
  }
};

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI
