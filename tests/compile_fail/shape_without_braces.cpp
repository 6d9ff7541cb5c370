// error: a_shape_stands_in_braces__as_in_zeros_of_braces_2_3<int>
#include <situ/tensor.hpp>

void misuse() {
#ifdef SITU_EXPECT_ERROR
  (void)situ::zeros<double>(2, 3);
#else
  (void)situ::zeros<double>({2, 3}), (void)situ::zeros({3}), (void)situ::zeros(3);
#endif
}
