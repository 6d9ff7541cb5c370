// error: dropout_and_bernoulli_take_floating_tensors__use_cast<(int|int32_t)>
#include <situ/ops/random_ops.hpp>

void misuse(situ::Tensor<float>& x) {
#ifdef SITU_EXPECT_ERROR
  (void)situ::dropout(situ::cast<int32_t>(x), 0.5);
#else
  (void)situ::dropout(x, 0.5), (void)situ::bernoulli(x), (void)situ::bernoulli(0.5, {3});
#endif
}
