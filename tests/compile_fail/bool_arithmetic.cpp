// error: situ: bool tensors have no - % << >> floor_divide fmod pow
// in-header
#include <situ/tensor.hpp>

#ifdef SITU_EXPECT_ERROR
void misuse(situ::Tensor<bool>& a, situ::Tensor<bool>& b) { (void)situ::eval(a % b); }
#else
void misuse(situ::Tensor<bool>& a, situ::Tensor<bool>& b) { (void)situ::eval((a ^ b) + situ::cast<int>(a) % 2); }
#endif
