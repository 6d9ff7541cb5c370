// error: the_order_of_a_norm_is_named__as_in_norm_of_x_and_p_1_in_braces<double>
#include <situ/ops/reduce.hpp>

void misuse(situ::Tensor<float>& x) {
#ifdef SITU_EXPECT_ERROR
  (void)situ::norm(x, 2.0);
#else
  (void)situ::norm(x, {.p = 2.0}), (void)situ::norm(x, 0, {.p = 1}), (void)situ::norm(x, 0);
#endif
}
