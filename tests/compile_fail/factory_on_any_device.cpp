// error: a_device_is_a_type__as_in_x_to_Cuda_0_with_braces__or_try_gpu_and_visit_at_run_time<(situ::)?([a-z0-9_]+::)?AnyDevice>
#include <situ/device/any.hpp>
#include <situ/tensor.hpp>

void misuse(situ::AnyDevice const& device) {
#ifdef SITU_EXPECT_ERROR
  (void)situ::zeros({2, 3}, device);
#else
  situ::visit<situ::Cpu, situ::Emulated<0>>(device, [&](auto d) { (void)situ::zeros({2, 3}, d), (void)situ::full({2}, 7, d); });
#endif
}
