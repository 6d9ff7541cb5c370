// error: a_Tensor_would_lose_the_gradient__use_a_Variable_or_value_or_detach<float, (situ::)?([a-z0-9_]+::)?Cpu ?>
#include <situ/autograd/backward.hpp>

void misuse(situ::Tensor<float>& t, situ::Variable<float>& v) {
#ifdef SITU_EXPECT_ERROR
  t = v + 1;
#else
  t = (v + 1).value();
#endif
}
