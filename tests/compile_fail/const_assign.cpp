// error: a_const_tensor_is_not_written_to__take_it_without_const<int>
#include <situ/tensor.hpp>

void misuse(situ::Tensor<float> const& fixed, situ::Tensor<float>& other) {
#ifdef SITU_EXPECT_ERROR
  fixed.assign(1);
#else
  other.assign(1), other.assign(fixed);
#endif
}
