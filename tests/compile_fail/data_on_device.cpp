// error: a_TensorDataset_is_read_by_the_host__use_cpu.*Emulated
#include <situ/data.hpp>

void misuse(situ::Tensor<float, situ::Emulated<0>> const& x) {
#ifdef SITU_EXPECT_ERROR
  situ::data::TensorDataset dataset{x};
#else
  situ::data::TensorDataset dataset{x.cpu()};
#endif
}
