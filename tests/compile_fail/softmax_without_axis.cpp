// error: the_axis_is_to_be_given__as_in_softmax_of_x_and_1<
#include <situ/ops/scan.hpp>
#include <situ/ops/softmax.hpp>

void misuse(situ::Tensor<float>& x) {
#ifdef SITU_EXPECT_ERROR
  (void)situ::softmax(x);
#else
  (void)situ::softmax(x, 1), (void)situ::cumsum(x, 0);
#endif
}
