// error: the_module_is_not_on_the_first_of_the_devices__move_it_with_to<(situ::)?([a-z0-9_]+::)?Emulated<(\(int\))?0> ?, (situ::)?([a-z0-9_]+::)?Cpu>
#include <situ/parallel/data_parallel.hpp>

template <class Device>
struct Net {
  situ::Variable<float, Device> weight;
  auto forward(auto const& x) const { return x * weight; }
  SITU_MODULE(weight)
};

void misuse(Net<situ::Cpu>& net) {
#ifdef SITU_EXPECT_ERROR
  situ::DataParallel<Net, situ::Emulated<0>, situ::Emulated<1>> parallel{net};
#else
  situ::DataParallel<Net, situ::Emulated<0>, situ::Emulated<1>> parallel{to(net, situ::Emulated<0>{})};
#endif
}
