// error: one_index_is_an_integer__masked_select_takes_a_mask_and_index_select_a_tensor_of_indices<
#include <situ/ops/select.hpp>

void misuse(situ::Tensor<float>& x) {
#ifdef SITU_EXPECT_ERROR
  (void)x(x > 0);
#else
  (void)masked_select(x, x > 0), (void)x(situ::all(), 1);
#endif
}
