/// Windows that slide over images: what convolution and pooling have in common.
#pragma once

#include <situ/core/shape.hpp>

namespace situ::inline SITU_ABI {

/// A height and a width: 3 for both, or {3, 5}.
struct extent2d {
  int64_t height, width;
  template <std::integral Ix>
  constexpr extent2d(Ix both) : height(static_cast<int64_t>(both)), width(static_cast<int64_t>(both)) {}
  template <std::integral Ix, std::integral J>
  constexpr extent2d(Ix h, J w) : height(static_cast<int64_t>(h)), width(static_cast<int64_t>(w)) {}
  friend constexpr bool operator==(extent2d const&, extent2d const&) = default;
};

namespace detail {

/// Where windows lie along one axis: window i starts at i * stride - padding and takes every `dilation`-th index.
struct WindowAxis {
  int64_t extent, windows;
  int64_t kernel, stride, padding, dilation;

  SITU_HOST_DEVICE int64_t start(int64_t window) const { return window * stride - padding; }
};

/// The windows over images of height x width.
struct Windows {
  WindowAxis y, x;
  SITU_HOST_DEVICE int64_t outputs() const { return y.windows * x.windows; }
};

inline std::string by(extent2d const& extent) { return std::to_string(extent.height) + " x " + std::to_string(extent.width); }

/// Counts the windows that fit. `ceil` counts one more where it starts inside the image or its padding on the left. Throws ShapeError.
inline Windows slide(extent2d image, extent2d kernel, extent2d stride, extent2d padding, extent2d dilation, bool ceil, char const* who) {
  auto const refuse = [who](char const* what, extent2d const& found, int64_t least) {
    fail<ShapeError>(who, ": ", what, " of ", by(found), " was given; both must be ", least, " or more");
  };
  if (kernel.height < 1 || kernel.width < 1) refuse("a kernel", kernel, 1);
  if (stride.height < 1 || stride.width < 1) refuse("a stride", stride, 1);
  if (dilation.height < 1 || dilation.width < 1) refuse("a dilation", dilation, 1);
  if (padding.height < 0 || padding.width < 0) refuse("a padding", padding, 0);
  auto const axis = [&](int64_t extent, int64_t k, int64_t s, int64_t p, int64_t d) {
    int64_t reach, padded;
    if (k == 1) d = 1;
    bool const overflow = __builtin_mul_overflow(k - 1, d, &reach) || __builtin_add_overflow(reach, int64_t{1}, &reach) ||
                          __builtin_mul_overflow(p, int64_t{2}, &padded) || __builtin_add_overflow(padded, extent, &padded);
    // A single window may hang over the end, as the last of many may.
    bool const fits = !overflow && (padded >= reach || (ceil && padded > 0 && reach - padded < s));
    if (!fits) {
      fail<ShapeError>(who, ": a kernel of ", by(kernel), " with dilation ", by(dilation), " does not fit images of ", by(image), " with padding ",
                       by(padding), ": pad more, or take a smaller kernel");
    }
    if (padded < reach) return WindowAxis{extent, 1, k, s, p, d};
    if (s > padded) s = padded + 1;  // to the first window alone, in either case
    int64_t windows = (padded - reach) / s + 1;
    if (ceil && (padded - reach) % s != 0 && windows * s < extent + p) ++windows;
    return WindowAxis{extent, windows, k, s, p, d};
  };
  return {axis(image.height, kernel.height, stride.height, padding.height, dilation.height),
          axis(image.width, kernel.width, stride.width, padding.width, dilation.width)};
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
