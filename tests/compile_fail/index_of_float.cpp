// error: an_index_is_an_integer<double>
#include <situ/tensor.hpp>

void misuse(situ::Tensor<float>& x) {
#ifdef SITU_EXPECT_ERROR
  (void)x[1.9];
#else
  (void)x[1], (void)x[std::size_t{1}];
#endif
}
