// error: a_Tensor_is_made_of_values_in_braces__or_of_a_shape_by_zeros_or_empty<(situ::)?(v[0-9_]+::)?Cpu>
#include <situ/tensor.hpp>

void misuse() {
#ifdef SITU_EXPECT_ERROR
  situ::Tensor<float> x({2, 3}, situ::Cpu{});
  (void)x;
#else
  situ::Tensor<float> x = situ::empty({2, 3}, situ::Cpu{});
  (void)x;
#endif
}
