#include <doctest/doctest.h>

#include <cuda/conv2d_cases.hpp>
#include <situ/ops/pool2d.hpp>
#include <situ/tensor.hpp>

using namespace situ;
using situ_test::differs;
using situ_test::numbers;
using Gpu = Cuda<0>;

TEST_CASE_TEMPLATE("conv2d is the same on a GPU as on the host", T, float, double, float16, bfloat16) {
  CHECK(convolution_differences<T>() == "");
}

TEST_CASE("poolings are the same on a GPU as on the host") {
  Tensor<float> const a = numbers<float>({2, 3, 9, 12});
  Tensor<float, Gpu> const x{a};
  CHECK(differs(max_pool2d(x, 2), max_pool2d(a, 2)) == "");
  CHECK(differs(max_pool2d(-x, {3, 2}, {.stride = 1, .padding = 1}), max_pool2d(-a, {3, 2}, {.stride = 1, .padding = 1})) == "");
  // Windows in the padding alone, over the end, and far larger than the image.
  CHECK(differs(max_pool2d(x, 2, {.stride = 1, .padding = 1, .dilation = 10}), max_pool2d(a, 2, {.stride = 1, .padding = 1, .dilation = 10})) == "");
  CHECK(differs(max_pool2d(x, {10, 3}, {.stride = 4, .ceil_mode = true}), max_pool2d(a, {10, 3}, {.stride = 4, .ceil_mode = true})) == "");
  CHECK(differs(avg_pool2d(x, {3, 1001}, {.stride = 2, .padding = {0, 500}}), avg_pool2d(a, {3, 1001}, {.stride = 2, .padding = {0, 500}}), 1e-6) == "");
  CHECK(differs(avg_pool2d(x.flip(2), 3, {.stride = 2, .padding = 1, .count_include_pad = false}),
                avg_pool2d(a.flip(2), 3, {.stride = 2, .padding = 1, .count_include_pad = false}), 1e-6) == "");
  CHECK(differs(adaptive_avg_pool2d(x, {4, 5}), adaptive_avg_pool2d(a, {4, 5}), 1e-6) == "");
}
