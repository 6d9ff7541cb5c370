// error: axes_stand_in_braces__as_in_permute_of_braces_1_0<int>
#include <situ/ops/arrange.hpp>

void misuse(situ::Tensor<float>& x) {
#ifdef SITU_EXPECT_ERROR
  (void)situ::flip(x, 0, 1);
#else
  (void)situ::flip(x, {0, 1}), (void)situ::flip(x, 0);
#endif
}
