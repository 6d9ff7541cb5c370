// error: situ: bitwise operators take integer and bool tensors
// in-header
#include <situ/tensor.hpp>

#ifdef SITU_EXPECT_ERROR
void misuse(situ::Tensor<float>& a, situ::Tensor<float>& b) { (void)situ::eval(a & b); }
#else
void misuse(situ::Tensor<float>& a, situ::Tensor<float>& b) { (void)situ::eval(situ::cast<int32_t>(a) & situ::cast<int32_t>(b)); }
#endif
