// error: a_map_of_Eigen_is_of_host_memory__move_the_tensor_with_cpu<(situ::)?([a-z0-9_]+::)?Emulated<(\(int\))?0> ?>
#include <situ/device/emulated/device.hpp>
#include <situ/interop/eigen.hpp>
#include <situ/tensor/transfer.hpp>

void misuse(situ::Tensor<float, situ::Emulated<0>>& x) {
#ifdef SITU_EXPECT_ERROR
  (void)situ::interop::to_eigen(x);
#else
  (void)x.cpu();
#endif
}
