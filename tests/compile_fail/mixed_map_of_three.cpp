// error: operands_on_different_devices__move_one_with_to<(situ::)?([a-z0-9_]+::)?Cuda<(\(int\))?0?>, (situ::)?([a-z0-9_]+::)?Cuda<(\(int\))?1> ?>
#include <situ/tensor.hpp>

void misuse(situ::Tensor<float, situ::Cuda<0>>& a, situ::Tensor<float, situ::Cuda<1>>& b) {
#ifdef SITU_EXPECT_ERROR
  (void)situ::map(situ::functions::lerp{}, a, 1.0f, b);
#else
  (void)situ::map(situ::functions::lerp{}, a, 1.0f, a), (void)b;
#endif
}
