/// Lines of images with their padding, arranged so that windows that follow each other read elements that do. For convolutions and pools on the CPU.
#pragma once

#include <situ/core/device.hpp>
#include <situ/expr/lanes.hpp>
#include <situ/ops/window2d.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// Lanes Offset, Offset + 2, Offset + 4, … of two packs.
template <int Offset, class P, int... K>
SITU_INLINE P every_second(P const& a, P const& b, std::integer_sequence<int, K...>) {
#if defined(__clang__)
  return P(__builtin_shufflevector(a.v, b.v, (2 * K + Offset)...));
#else
  using Ix = signed_of_size<typename P::value_type>;
  typedef Ix indices __attribute__((vector_size(sizeof(a.v))));
  return P(__builtin_shuffle(a.v, b.v, indices{static_cast<Ix>(2 * K + Offset)...}));
#endif
}
template <class P>
SITU_INLINE P even_lanes(P const& a, P const& b) {
  return every_second<0>(a, b, std::make_integer_sequence<int, P::lanes>{});
}
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

/// Elements [0, width) of a line that begins at `corner`, which may lie outside of the image, with `step` between them: those in [low, high), and `fill` for
/// the others. In packs of N, which may write behind the last one.
template <class Isa, int N, class T, class C>
SITU_INLINE void copy_shifted(C* to, T const* corner, int64_t step, int64_t low, int64_t high, int64_t width, T const* end, C fill = C(0)) {
  using P = pack<C, N, Isa>;
  P const others = keep_order(P(fill));  // g++ would call memset
  int64_t k = 0;
  for (; k < low; k += N) others.store(to + k);
  k = low;
  if (step == 1) {
    for (; k < high && end - (corner + k) >= N; k += N) P(load_lanes<T, N, Isa>(corner + k)).store(to + k);
  } else if (step == 2) {
    for (; k < high && end - (corner + 2 * k) >= 2 * N; k += N) {
      P const first = load_lanes<T, N, Isa>(corner + 2 * k), second = load_lanes<T, N, Isa>(corner + 2 * k + N);
      even_lanes(first, second).store(to + k);
    }
  } else if (step == 4) {
    for (; k < high && end - (corner + 4 * k) >= 4 * N; k += N) {
      T const* const from = corner + 4 * k;
      P const a = load_lanes<T, N, Isa>(from), b = load_lanes<T, N, Isa>(from + N), c = load_lanes<T, N, Isa>(from + 2 * N), d = load_lanes<T, N, Isa>(from + 3 * N);
      even_lanes(even_lanes(a, b), even_lanes(c, d)).store(to + k);
    }
  }
  for (T const* from = corner + k * step; k < high; ++k, from += step) to[k] = static_cast<C>(*from);
  for (k = high; k < width; k += N) others.store(to + k);
}

/// Whether what windows read along an axis is not much more than the image or the result: padded copies of lines are made of such only, and their sizes do not
/// overflow.
inline bool reads_closely(WindowAxis const& a) {
  double const reach = static_cast<double>(a.kernel - 1) * static_cast<double>(a.dilation) + 1, most = static_cast<double>(a.extent > a.windows ? a.extent : a.windows);
  return reach <= most + 16 && static_cast<double>(a.stride) <= 2 * reach + 8;
}

/// How a line of an image lies in a padded copy: where windows have a stride of 2 the elements with even and those with odd numbers lie apart, where it is
/// larger those that each column of the kernel reads.
struct PaddedLine {
  int64_t copies, pitch;  ///< parts, and the elements of one

  /// Parts begin with whole vectors, and not so that many lie in the same places of a cache; one vector, or of few windows half of one, can be read from any column.
  PaddedLine(WindowAxis const& x, int64_t vector) : copies(x.stride > 2 ? x.kernel : x.stride) {
    int64_t const most = x.windows > vector ? x.windows : x.windows > vector / 2 ? vector : vector / 2;
    pitch = (most + (x.stride > 2 ? 0 : (x.kernel - 1) * x.dilation / x.stride) + vector - 1) / vector * vector;
    if (pitch % (8 * vector) == 0) pitch += vector;
  }
  int64_t size() const { return copies * pitch; }
  /// Where window 0 finds the element for column kx of the kernel.
  int64_t place(WindowAxis const& x, int64_t kx) const {
    if (x.stride > 2) return kx * pitch;
    return kx * x.dilation % x.stride * pitch + kx * x.dilation / x.stride;
  }

  /// A part begins with pixel `shift`; its elements [low, high) lie inside of the image.
  struct Part {
    int64_t shift, low, high;
  };
  SITU_INLINE Part part(WindowAxis const& x, int64_t k) const {
    Part p{(x.stride > 2 ? k * x.dilation : k) - x.padding, 0, 0};
    p.low = p.shift < 0 ? (-p.shift - 1) / x.stride + 1 : 0, p.high = p.shift < x.extent ? (x.extent - p.shift - 1) / x.stride + 1 : 0;
    if (p.high > pitch) p.high = pitch;
    if (p.low > p.high) p.low = p.high;
    return p;
  }
};

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI
