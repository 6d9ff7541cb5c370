// error: a_device_is_a_type__as_in_x_to_Cuda_0_with_braces__or_try_gpu_and_visit_at_run_time<char>
#include <situ/tensor.hpp>

void misuse(situ::Tensor<float>& x) {
#ifdef SITU_EXPECT_ERROR
  (void)x.to("cuda");
#else
  (void)x.to(situ::Cpu{}), (void)(x * 2).to(situ::Emulated<0>{});
#endif
}
