// error: keepdim_is_a_tag__as_in_sum_of_x_and_0_and_keepdim<bool>
#include <situ/ops/reduce.hpp>

void misuse(situ::Tensor<float>& x) {
#ifdef SITU_EXPECT_ERROR
  (void)situ::max(x, 0, true);
#else
  (void)situ::max(x, 0, situ::keepdim), (void)situ::stddev(x, situ::keepdim);
#endif
}
