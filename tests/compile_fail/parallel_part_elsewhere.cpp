// error: situ::DataParallel: an input holds a tensor of another device than the first one
// in-header
#include <situ/parallel/data_parallel.hpp>

template <class Device>
struct Net {
  situ::Variable<float, Device> weight;
  auto forward(auto const& x) const { return x.first * weight; }
  SITU_MODULE(weight)
};

void misuse(situ::DataParallel<Net, situ::Emulated<0>, situ::Emulated<1>>& parallel, situ::Tensor<float>& x) {
#ifdef SITU_EXPECT_ERROR
  (void)parallel(std::pair{x, 1});
#else
  (void)parallel(std::pair{x.to(situ::Emulated<0>{}), 1});
#endif
}
