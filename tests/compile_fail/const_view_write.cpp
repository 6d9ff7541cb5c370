// error: a_const_tensor_is_not_written_to__take_it_without_const<int>
#include <situ/tensor.hpp>

void misuse(situ::Tensor<float> const& fixed, situ::Tensor<float> const& value) {
#ifdef SITU_EXPECT_ERROR
  fixed[0] = 1;
#else
  situ::Tensor<float> other = fixed;
  other[0] = 1, other[0] = value, other[0] += value;
#endif
}
