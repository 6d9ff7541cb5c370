// error: max_and_min_reduce_one_tensor__use_maximum_or_minimum_for_two_operands<.*Tensor<.*>
#include <situ/ops/reduce.hpp>

void misuse(situ::Tensor<float>& x) {
#ifdef SITU_EXPECT_ERROR
  (void)situ::max(x, x);
#else
  (void)situ::maximum(x, x), (void)situ::max(x, 0), (void)situ::min(x, {0});
#endif
}
