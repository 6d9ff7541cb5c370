// error: makes a module of its members: an aggregate, or one with a constructor
// in-header
#include <situ/device/emulated/device.hpp>
#include <situ/nn/linear.hpp>

template <class Device>
struct Net {
  situ::nn::Linear<float, Device> fc;
  explicit Net(int width) : fc(width, width) {}
#ifndef SITU_EXPECT_ERROR
  Net(situ::nn::from_members_t, situ::nn::Linear<float, Device> moved) : fc(std::move(moved)) {}
#endif
  SITU_MODULE(fc)
};

void misuse(Net<situ::Cpu>& net) { (void)situ::to(net, situ::Emulated<0>{}); }
