// error: to_async_joins_Pinned_and_devices__pin_the_source_or_use_to<(situ::)?([a-z0-9_]+::)?Emulated<(\(int\))?0?>, (situ::)?([a-z0-9_]+::)?Cpu ?>
#include <situ/tensor.hpp>

void misuse(situ::Tensor<float, situ::Emulated<0>>& x) {
#ifdef SITU_EXPECT_ERROR
  (void)(x * 2).to_async<double>(situ::Cpu{});
#else
  (void)(x * 2).to_async<double>(situ::Pinned{}), (void)x.to(situ::Cpu{});
#endif
}
