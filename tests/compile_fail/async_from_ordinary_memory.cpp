// error: to_async_joins_Pinned_and_devices__pin_the_source_or_use_to<(situ::)?([a-z0-9_]+::)?Cpu, (situ::)?([a-z0-9_]+::)?Emulated<(\(int\))?0?> ?>
#include <situ/tensor.hpp>

void misuse(situ::Tensor<float, situ::Cpu>& a, situ::Tensor<float, situ::Pinned>& p) {
#ifdef SITU_EXPECT_ERROR
  (void)a.to_async(situ::Emulated<0>{});
#else
  (void)pin(a).to_async(situ::Emulated<0>{}), (void)p.to_async(situ::Emulated<0>{}), (void)a.to(situ::Emulated<0>{});
#endif
}
