// error: a_Tensor_is_made_of_values_in_braces__or_of_a_shape_by_zeros_or_empty<int>
#include <situ/tensor.hpp>

void misuse() {
#ifdef SITU_EXPECT_ERROR
  situ::Tensor<float> x(2, 3);
  (void)x;
#else
  situ::Tensor<float> x{2, 3}, y = situ::zeros({2, 3}), z = situ::full(3, 1.0f);
  (void)x, (void)y, (void)z;
#endif
}
