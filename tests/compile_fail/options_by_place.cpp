// error: options_stand_in_braces__as_in_conv2d_of_x_and_w_and_braces_dot_bias<float>
#include <situ/ops/conv2d.hpp>
#include <situ/ops/pool2d.hpp>

void misuse(situ::Tensor<float> const& x, situ::Tensor<float> const& w, situ::Tensor<float> const& b) {
#ifdef SITU_EXPECT_ERROR
  (void)situ::conv2d(x, w, b, 1, 1);
#else
  (void)situ::conv2d(x, w, {.bias = b, .stride = 1, .padding = 1}), (void)situ::max_pool2d(x, 2, {.stride = 2});
#endif
}
