// error: operands_on_different_devices__move_one_with_to<(situ::)?([a-z0-9_]+::)?Cpu, (situ::)?([a-z0-9_]+::)?Emulated<(\(int\))?0?> ?>
#include <situ/ops.hpp>

void misuse(situ::Tensor<float> const& a, situ::Tensor<float, situ::Emulated<0>> const& x) {
#ifdef SITU_EXPECT_ERROR
  (void)situ::conv2d(a, x, {.stride = 2});
#else
  (void)situ::conv2d(a, x.cpu(), {.stride = 2});
#endif
}
