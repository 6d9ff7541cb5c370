// error: operands_on_different_devices__move_one_with_to<(situ::)?([a-z0-9_]+::)?Cuda<(\(int\))?0?>, (situ::)?([a-z0-9_]+::)?Cpu ?>
#include <situ/tensor.hpp>

void misuse(situ::Tensor<float, situ::Cpu>& a, situ::Tensor<float, situ::Cuda<0>>& b) {
#ifdef SITU_EXPECT_ERROR
  (void)maximum(b, a);
#else
  (void)maximum(a, a), (void)maximum(b, b), (void)maximum(b, 0);
#endif
}
