// error: dlpack_knows_the_devices_Cpu_Pinned_and_Cuda__move_it_with_to<(situ::)?([a-z0-9_]+::)?Emulated<(\(int\))?0> ?>
#include <situ/device/emulated/device.hpp>
#include <situ/interop/dlpack.hpp>
#include <situ/tensor/transfer.hpp>

void misuse(situ::Tensor<float, situ::Emulated<0>>& x) {
#ifdef SITU_EXPECT_ERROR
  (void)situ::interop::to_dlpack(x);
#else
  (void)x.to(situ::Cpu{});
#endif
}
