// error: a_const_tensor_is_not_written_to__take_it_without_const<.*Tensor<.*> ?>
#include <situ/tensor.hpp>

void misuse(situ::Tensor<float> const& fixed, situ::Tensor<float>& other, situ::Tensor<float> const& value) {
#ifdef SITU_EXPECT_ERROR
  fixed[0] += value;
#else
  other[0] += value, (void)fixed;
#endif
}
