// error: linear_algebra_is_for_float_and_double__use_to_or_cast_first<int>
#define SITU_WITH_LAPACK 1
#include <situ/ops.hpp>
#include <situ/ops/linalg.hpp>

void misuse(situ::Tensor<int>& a) {
#ifdef SITU_EXPECT_ERROR
  auto y = inv(a);
#else
  auto y = inv(a.to<double>());
#endif
  (void)a, (void)y;
}
