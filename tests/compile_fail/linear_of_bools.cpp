// error: bool_tensors_have_no_product__use_cast<bool, bool>
#include <situ/ops/linear.hpp>

void misuse(situ::Tensor<float>& x) {
#ifdef SITU_EXPECT_ERROR
  (void)situ::linear(x > 0, x > 0);
#else
  (void)situ::linear(x, x), (void)situ::linear(x > 0, x);
#endif
}
