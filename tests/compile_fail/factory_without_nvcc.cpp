// error: evaluating_on_Cuda_needs_nvcc
// with-cuda
// in-header
#include <situ/tensor.hpp>

void misuse(situ::Tensor<float, situ::Cuda<0>>& b) {
#ifdef SITU_EXPECT_ERROR
  auto y = situ::ones({2, 3}, situ::Cuda<0>{});
#else
  auto y = situ::empty({2, 3}, situ::Cuda<0>{});
#endif
  (void)b, (void)y;
}
