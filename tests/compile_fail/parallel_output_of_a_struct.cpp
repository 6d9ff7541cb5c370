// error: situ::DataParallel: outputs are joined that are tensors, Variables and formulas
// in-header
#include <situ/parallel/data_parallel.hpp>

template <class Device>
struct Output {
  situ::Variable<float, Device> scores;
};

template <class Device>
struct Net {
  situ::Variable<float, Device> weight;
#ifdef SITU_EXPECT_ERROR
  auto forward(auto const& x) const { return Output<Device>{x * weight}; }
#else
  auto forward(auto const& x) const { return std::pair{x * weight, x}; }
#endif
  SITU_MODULE(weight)
};

void misuse(situ::DataParallel<Net, situ::Emulated<0>, situ::Emulated<1>>& parallel, situ::Tensor<float, situ::Emulated<0>>& x) {
  (void)parallel(x);
}
