#include <doctest/doctest.h>

#include <cuda/compare.hpp>
#include <situ/ops/conv2d.hpp>
#include <situ/ops/pool2d.hpp>
#include <situ/tensor.hpp>

using namespace situ;
using situ_test::differs;
using situ_test::numbers;
using Gpu = Cuda<0>;

TEST_CASE_TEMPLATE("conv2d is the same on a GPU as on the host", T, float, float16) {
  double const tolerance = sizeof(T) == 2 ? 2e-2 : 1e-4;
  Tensor<T> const a = numbers<T>({3, 6, 17, 21}), w = numbers<T>({9, 2, 3, 5}), b = numbers<T>({9});
  Tensor<T, Gpu> const x{a}, v{w}, c{b};
  CHECK(differs(conv2d(x, v, {.bias = c, .stride = {1, 2}, .padding = {2, 1}, .groups = 3}),
                conv2d(a, w, {.bias = b, .stride = {1, 2}, .padding = {2, 1}, .groups = 3}), tolerance) == "");
  CHECK(differs(conv2d(x.flip(3), v, {.dilation = 2, .groups = 3}), conv2d(a.flip(3), w, {.dilation = 2, .groups = 3}), tolerance) == "");
  CHECK(differs(conv2d(x[1] * 2, v, {.groups = 3}), conv2d(a[1] * 2, w, {.groups = 3}), tolerance) == "");
}

TEST_CASE("poolings are the same on a GPU as on the host") {
  Tensor<float> const a = numbers<float>({2, 3, 9, 12});
  Tensor<float, Gpu> const x{a};
  CHECK(differs(max_pool2d(x, 2), max_pool2d(a, 2)) == "");
  CHECK(differs(max_pool2d(-x, {3, 2}, {.stride = 1, .padding = 1}), max_pool2d(-a, {3, 2}, {.stride = 1, .padding = 1})) == "");
  CHECK(differs(avg_pool2d(x.flip(2), 3, {.stride = 2, .padding = 1, .count_padding = false}),
                avg_pool2d(a.flip(2), 3, {.stride = 2, .padding = 1, .count_padding = false}), 1e-6) == "");
  CHECK(differs(adaptive_avg_pool2d(x, {4, 5}), adaptive_avg_pool2d(a, {4, 5}), 1e-6) == "");
}
