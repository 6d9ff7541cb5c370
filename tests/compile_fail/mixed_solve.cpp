// error: operands_on_different_devices__move_one_with_to
#define SITU_WITH_LAPACK 1
#include <situ/ops.hpp>
#include <situ/ops/linalg.hpp>
#include <situ/device/emulated/device.hpp>

void misuse(situ::Tensor<float>& a, situ::Tensor<float, situ::Emulated<0>>& b) {
#ifdef SITU_EXPECT_ERROR
  auto y = solve(a, b);
#else
  auto y = solve(a, b.cpu());
#endif
  (void)a, (void)b, (void)y;
}
