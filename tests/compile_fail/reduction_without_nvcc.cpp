// error: reducing_on_Cuda_needs_nvcc
// with-cuda
// in-header
#include <situ/ops.hpp>
#include <situ/tensor.hpp>

void misuse(situ::Tensor<float, situ::Cuda<0>>& b) {
#ifdef SITU_EXPECT_ERROR
  auto y = sum(b);
#else
  auto y = sum(b.cpu());
#endif
  (void)b, (void)y;
}
