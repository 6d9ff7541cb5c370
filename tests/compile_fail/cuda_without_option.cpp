// error: Cuda_needs_SITU_WITH_CUDA
// host-only
// in-header
#include <situ/tensor.hpp>

void misuse(situ::Tensor<float>& a) {
#ifdef SITU_EXPECT_ERROR
  (void)a.to(situ::Cuda<0>{});
#else
  (void)a.to(situ::Cpu{});
#endif
}
