// error: this module's type names no device to replace: make it a template, as in template <class Device> struct Net
// in-header
#include <situ/autograd/backward.hpp>
#include <situ/device/emulated/device.hpp>
#include <situ/nn/move.hpp>

#ifdef SITU_EXPECT_ERROR
struct Net {
  situ::Variable<float> weight;
  SITU_MODULE(weight)
};
using OnCpu = Net;
#else
template <class Device>
struct Net {
  situ::Variable<float, Device> weight;
  SITU_MODULE(weight)
};
using OnCpu = Net<situ::Cpu>;
#endif

void misuse(OnCpu& net) { (void)situ::to(net, situ::Emulated<0>{}); }
