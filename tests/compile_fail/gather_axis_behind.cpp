// error: the_axis_stands_before_the_index__as_in_gather_of_x_and_1_and_index<int>
#include <situ/ops/index.hpp>

void misuse(situ::Tensor<float>& x, situ::Tensor<int64_t>& index) {
#ifdef SITU_EXPECT_ERROR
  (void)situ::gather(x, index, 0);
#else
  (void)situ::gather(x, 0, index), (void)situ::index_select(x, 0, index);
#endif
}
