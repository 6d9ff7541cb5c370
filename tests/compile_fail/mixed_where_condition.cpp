// error: operands_on_different_devices__move_one_with_to<(situ::)?([a-z0-9_]+::)?Emulated<(\(int\))?0?>, (situ::)?([a-z0-9_]+::)?Cpu ?>
#include <situ/tensor.hpp>

void misuse(situ::Tensor<bool, situ::Emulated<0>>& m, situ::Tensor<float, situ::Cpu>& a) {
#ifdef SITU_EXPECT_ERROR
  (void)where(m, a, 0);
#else
  (void)where(a > 0, a, 0), (void)where(m, 1, 0);
#endif
}
