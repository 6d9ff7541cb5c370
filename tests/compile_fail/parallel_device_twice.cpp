// error: situ::DataParallel: the devices must be different ones
// in-header
#include <situ/parallel/data_parallel.hpp>

template <class Device>
struct Net {
  situ::Variable<float, Device> weight;
  auto forward(auto const& x) const { return x * weight; }
  SITU_MODULE(weight)
};

void misuse(Net<situ::Emulated<0>>& net) {
#ifdef SITU_EXPECT_ERROR
  situ::DataParallel<Net, situ::Emulated<0>, situ::Emulated<0>> parallel{net};
#else
  situ::DataParallel<Net, situ::Emulated<0>, situ::Emulated<1>> parallel{net};
#endif
}
