// error: element_access_on_a_device__use_item_for_one_element_or_cpu_for_all<(situ::)?([a-z0-9_]+::)?Emulated<(\(int\))?0?> ?>
#include <situ/tensor.hpp>

void misuse(situ::Tensor<float>& a, situ::Tensor<float, situ::Emulated<0>>& b) {
#ifdef SITU_EXPECT_ERROR
  b(1, 2) = 5.0f;
#else
  a(1, 2) = 5.0f, (void)b;
#endif
}
