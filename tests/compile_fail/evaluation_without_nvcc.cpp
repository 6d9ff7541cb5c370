// error: evaluating_on_Cuda_needs_nvcc
// with-cuda
// in-header
#include <situ/tensor.hpp>

void misuse(situ::Tensor<float, situ::Cuda<0>>& b) {
#ifdef SITU_EXPECT_ERROR
  situ::Tensor<float, situ::Cuda<0>> y = tanh(b * 2 + 1);
#else
  situ::Tensor<float> y = b.to(situ::Cpu{});
#endif
  (void)b, (void)y;
}
