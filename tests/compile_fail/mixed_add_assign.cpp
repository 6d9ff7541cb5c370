// error: operands_on_different_devices__move_one_with_to<(situ::)?([a-z0-9_]+::)?Cpu, (situ::)?([a-z0-9_]+::)?Cuda<(\(int\))?0?> ?>
#include <situ/tensor.hpp>

void misuse(situ::Tensor<float, situ::Cpu>& a, situ::Tensor<float, situ::Cuda<0>>& b) {
#ifdef SITU_EXPECT_ERROR
  a += b;
#else
  a += a, (void)b;
#endif
}
