// error: a_mask_is_of_bools__as_in_x_greater_than_0<(long( int)?|std::int64_t|int64_t)>
#include <situ/ops/select.hpp>

void misuse(situ::Tensor<float> const& x, situ::Tensor<std::int64_t> const& mask) {
#ifdef SITU_EXPECT_ERROR
  (void)situ::masked_select(x, mask);
#else
  (void)situ::masked_select(x, mask != 0), (void)situ::masked_fill(x, mask > 0, 0);
#endif
}
