// error: the_model_and_its_input_are_on_different_devices__move_one_with_to<(situ::)?([a-z0-9_]+::)?Emulated<(\(int\))?0> ?, (situ::)?([a-z0-9_]+::)?Cpu>
#include <situ/parallel/data_parallel.hpp>

template <class Device>
struct Net {
  situ::Variable<float, Device> weight;
  auto forward(auto const& x) const { return x * weight; }
  SITU_MODULE(weight)
};

void misuse(situ::DataParallel<Net, situ::Emulated<0>, situ::Emulated<1>>& parallel, situ::Tensor<float>& x) {
#ifdef SITU_EXPECT_ERROR
  (void)parallel(x);
#else
  (void)parallel(x.to(situ::Emulated<0>{}));
#endif
}
