// error: a_Tensor_would_lose_the_gradient__use_a_Variable_or_value_or_detach<float, (situ::)?([a-z0-9_]+::)?Cpu ?>
#include <situ/autograd/backward.hpp>

void misuse(situ::Variable<float>& v) {
#ifdef SITU_EXPECT_ERROR
  situ::Tensor<float> t = v;
#else
  situ::Tensor<float> t = v.detach();
#endif
  (void)t;
}
