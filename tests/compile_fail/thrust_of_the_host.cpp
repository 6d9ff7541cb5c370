// error: Thrust_works_on_Cuda_here__move_the_tensor_with_to<(situ::)?([a-z0-9_]+::)?Cpu>
#include <situ/interop/thrust.hpp>

void misuse(situ::Tensor<float>& x) {
#ifdef SITU_EXPECT_ERROR
  (void)situ::interop::thrust_begin(x);
#else
  (void)x.data();
#endif
}
