// error: Cuda_needs_SITU_WITH_CUDA
// host-only
// in-header
#include <situ/tensor.hpp>

#ifdef SITU_EXPECT_ERROR
auto misuse() { return situ::empty<float, situ::Cuda<0>>({2, 3}); }
#else
auto misuse() { return situ::empty<float, situ::Cpu>({2, 3}); }
#endif
