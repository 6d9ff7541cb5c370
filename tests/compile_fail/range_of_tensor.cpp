// error: a_tensor_is_no_range__read_rows_as_x_of_i_and_elements_by_to_vector<
#include <situ/tensor.hpp>

void misuse(situ::Tensor<float>& x) {
#ifdef SITU_EXPECT_ERROR
  for (auto const& row : x) (void)row;
#else
  for (int64_t i = 0; i < x.size(0); ++i) (void)x[i];
  for (float const element : x.to_vector()) (void)element;
#endif
}
