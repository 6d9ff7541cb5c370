// error: only float, double, float16 and bfloat16 have gradients; keep other elements in a Tensor
// in-header
#include <situ/autograd/backward.hpp>

#ifdef SITU_EXPECT_ERROR
void misuse(situ::Tensor<int>& t) {
  situ::Variable<int> v(t);
  (void)v;
}
#else
void misuse(situ::Tensor<float>& t) {
  situ::Variable<float> v(t);
  (void)v;
}
#endif
