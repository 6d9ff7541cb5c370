// error: operands_on_different_devices__move_one_with_to<(situ::)?([a-z0-9_]+::)?Cpu, (situ::)?([a-z0-9_]+::)?Emulated<(\(int\))?1> ?>
#include <situ/autograd/reduce.hpp>
#include <situ/device/emulated/device.hpp>

void misuse(situ::Variable<float>& a, situ::Variable<float, situ::Emulated<1>>& b) {
#ifdef SITU_EXPECT_ERROR
  a[0] = b;
#else
  a[0] = b.to(situ::Cpu{});
#endif
}
