/// log|Γ(x)| of numbers and of packs.
#pragma once


#include <situ/expr/math/detail.hpp>
#include <situ/expr/pack.hpp>

#if defined(__GLIBC__) && !defined(__CUDACC__)
// As glibc declares them; not every compiler has them as builtins.
extern "C" double lgamma_r(double, int*) noexcept;
extern "C" long double lgammal_r(long double, int*) noexcept;
#endif

namespace situ::inline SITU_ABI {
namespace math {

/// log|Γ(x)|; +∞ at 0, at the negative integers and at both infinities.
#if defined(__CUDA_ARCH__)
SITU_HOST_DEVICE inline double lgamma(double x) { return SITU_LIBM(lgamma)(x); }
SITU_HOST_DEVICE inline float lgamma(float x) { return SITU_LIBM(lgammaf)(x); }
#else
SITU_HOST_DEVICE inline double lgamma(double x) {
#if defined(__GLIBC__)
  int sign = 0;  // lgamma itself would write the sign into a variable that threads share
  // Between its poles the double function errs by up to 5 ulps.
  if (x < 0) return static_cast<double>(::lgammal_r(static_cast<long double>(x), &sign));
  return ::lgamma_r(x, &sign);
#else
  return SITU_LIBM(lgamma)(x);
#endif
}
SITU_HOST_DEVICE inline float lgamma(float x) { return static_cast<float>(math::lgamma(static_cast<double>(x))); }
#endif

namespace detail {
struct lgamma_lanes {
  template <class T>
  static T value(T x) {
    return math::lgamma(x);
  }
};
}  // namespace detail

template <class T, int N, class Isa>
  requires std::is_floating_point_v<T> SITU_INLINE pack<T, N, Isa> lgamma(pack<T, N, Isa> const& x) {
    return detail::every_lane<detail::lgamma_lanes>(x);
  }

}  // namespace math
}  // namespace situ::inline SITU_ABI
