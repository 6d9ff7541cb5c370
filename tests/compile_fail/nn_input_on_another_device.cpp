// error: the_model_and_its_input_are_on_different_devices__move_one_with_to<(situ::)?([a-z0-9_]+::)?Cpu, (situ::)?([a-z0-9_]+::)?Emulated<(\(int\))?1> ?>
#include <situ/autograd/backward.hpp>
#include <situ/device/emulated/device.hpp>
#include <situ/nn/move.hpp>

template <class Device>
struct Net {
  situ::Variable<float, Device> weight;
  auto forward(auto const& x) const { return x * weight; }
  SITU_MODULE(weight)
};

void misuse(Net<situ::Cpu>& net, situ::Tensor<float, situ::Emulated<1>>& x) {
#ifdef SITU_EXPECT_ERROR
  (void)net(x);
#else
  (void)net(x.to(situ::Cpu{}));
  (void)to(net, situ::Emulated<1>{})(x);
#endif
}
