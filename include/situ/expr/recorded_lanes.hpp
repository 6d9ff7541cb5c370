/// Lanes that record: what the formulas of derivatives compute with when derivatives are themselves to be differentiated.
///
/// Derivatives (expr/functions.hpp) are formulas of lanes: of packs on the CPU, of scalars on CUDA. A type that says
/// `using records = void;` may stand there too; it has operators, and `x.template apply<functions::NAME>()` for the functions
/// that derivatives use. The autograd layer has such a type.
#pragma once

#include <situ/expr/math.hpp>

#if defined(__CUDACC__)
#pragma nv_diagnostic push
#pragma nv_diag_suppress 20011, 20012, 20013, 20014, 20015
#endif

namespace situ::inline SITU_ABI {
template <class X>
concept recording_lanes = requires { typename X::records; };

#define SITU_OF_RECORDING_LANES(NAME)                            \
  namespace functions {                                          \
  struct NAME;                                                   \
  }                                                              \
  namespace math {                                               \
  template <recording_lanes X>                           \
  SITU_HOST_DEVICE X NAME(X const& x) {                          \
    return x.template apply<functions::NAME>();                  \
  }                                                              \
  }
SITU_OF_RECORDING_LANES(abs)
SITU_OF_RECORDING_LANES(sign)
SITU_OF_RECORDING_LANES(floor)
SITU_OF_RECORDING_LANES(trunc)
SITU_OF_RECORDING_LANES(exp)
SITU_OF_RECORDING_LANES(expm1)
SITU_OF_RECORDING_LANES(log)
SITU_OF_RECORDING_LANES(rsqrt)
SITU_OF_RECORDING_LANES(sin)
SITU_OF_RECORDING_LANES(cos)
SITU_OF_RECORDING_LANES(sinh)
SITU_OF_RECORDING_LANES(cosh)
SITU_OF_RECORDING_LANES(tanh)
SITU_OF_RECORDING_LANES(erfc)
SITU_OF_RECORDING_LANES(sigmoid)
SITU_OF_RECORDING_LANES(softplus)
#undef SITU_OF_RECORDING_LANES

namespace functions {
struct pow;
struct polygamma;
}  // namespace functions
namespace math {
template <recording_lanes X>
SITU_HOST_DEVICE X pow(X const& a, X const& b) {
  return a.template apply<functions::pow>(b);
}
template <recording_lanes X>
SITU_HOST_DEVICE X digamma(X const& x) {
  return x.template apply<functions::polygamma>(X(0));
}
}  // namespace math
namespace detail {
template <recording_lanes X>
SITU_HOST_DEVICE X polygamma(X const& x, X const& n) {
  return x.template apply<functions::polygamma>(n);
}
}  // namespace detail

}  // namespace situ::inline SITU_ABI

#if defined(__CUDACC__)
#pragma nv_diagnostic pop
#endif
