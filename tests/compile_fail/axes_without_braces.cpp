// error: axes_stand_in_braces__as_in_permute_of_braces_1_0<int>
#include <situ/ops/reduce.hpp>

void misuse(situ::Tensor<float>& x) {
#ifdef SITU_EXPECT_ERROR
  (void)situ::sum(x, 0, 1);
#else
  (void)situ::sum(x, {0, 1}), (void)situ::sum(x, 0), (void)situ::var(x, {0, 1}, {.correction = 0});
#endif
}
