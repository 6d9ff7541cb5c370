// error: element_access_on_a_device__use_item_for_one_element_or_cpu_for_all<(situ::)?([a-z0-9_]+::)?Cuda<(\(int\))?0?> ?>
#include <situ/tensor.hpp>

void misuse(situ::Tensor<float, situ::Cpu>& a, situ::Tensor<float, situ::Cuda<0>>& b) {
#ifdef SITU_EXPECT_ERROR
  (void)b(1, 2);
#else
  (void)a(1, 2), (void)b(situ::all(), 2);
#endif
}
