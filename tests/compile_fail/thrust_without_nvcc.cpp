// error: Thrust_needs_nvcc__name_the_file_cu<(situ::)?([a-z0-9_]+::)?Cuda<(\(int\))?0> ?>
// host-only
#include <situ/interop/thrust.hpp>

void misuse(situ::Tensor<float, situ::Cuda<0>>& x) {
#ifdef SITU_EXPECT_ERROR
  (void)situ::interop::thrust_end(x);
#else
  (void)x.size();
#endif
}
