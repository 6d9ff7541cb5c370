// error: a_shape_stands_in_braces__as_in_zeros_of_braces_2_3<int>
#include <situ/tensor.hpp>

void misuse(situ::Tensor<float>& x) {
#ifdef SITU_EXPECT_ERROR
  (void)x.reshape(3, -1);
#else
  (void)x.reshape({3, -1}), (void)x.reshape(6), (void)x.view({6}), (void)x.permute({1, 0});
#endif
}
