// Public names survive `using namespace situ;` beside the headers that CUDA programs include.
#include <cmath>
#include <cublas_v2.h>
#include <cub/cub.cuh>
#include <cuda_fp16.h>

#include <situ/situ.hpp>

#include <doctest/doctest.h>

#include <vector>

using namespace situ;

namespace {

__global__ void numbers_on_the_device(float* out, int n) {
  float const x = out[0];
  out[1] = exp(x) + log(x) + sqrt(x) + rsqrt(x) + pow(x, 2.0f) + tanh(x) + erf(x) + abs(x) + fmod(x, 2.0f) + hypot(x, x) + atan2(x, x);
  out[2] = static_cast<float>(min(n, 3)) + max(x, 2.0f) + floor(x) + ceil(x) + round(x) + trunc(x) + remainder(x, 2.0f);
  out[3] = isnan(x) || isinf(x) ? __half2float(__float2half(x)) : 0.0f;
}

}  // namespace

TEST_CASE("functions of numbers and of tensors stand side by side, unqualified") {
  float const number = exp(1.0f) + sqrt(4.0f) + pow(2.0f, 3.0f) + floor(1.5f) + abs(-1.0f) + hypot(3.0f, 4.0f) + round(0.5f);
  CHECK(number == doctest::Approx(std::exp(1.0) + 2 + 8 + 1 + 1 + 5 + 1));
  CHECK(min(1, 2) + max(1, 2) == 3);
  CHECK(max(1.0, 2.0) == 2.0);
  CHECK(!isnan(1.0f));

  Tensor<float> x{{1, 2, 3}, {4, 5, 6}};
  Tensor<float> y = exp(x) + log(x) + sqrt(x) + rsqrt(x) + pow(x, 2) + tanh(x) + erf(x) + abs(x) + fmod(x, 2) + hypot(x, x) + atan2(x, x);
  y = floor(y) + ceil(x) + round(x) + trunc(x) + remainder(x, 2) + reciprocal(x) + square(x) + sign(x) + lgamma(x);
  CHECK(y.shape() == x.shape());
  CHECK(min(x).item() == 1.0f);
  CHECK(max(x, 0).item(2) == 6.0f);
  CHECK(sum(x).item() == 21.0f);
  CHECK(mean(x, {0, 1}, keepdim).size() == 1);
  CHECK(norm(Tensor<float>{3, 4}).item() == 5.0f);
  CHECK(x(all(), range(1, end())).size() == 4);
  CHECK(x(ellipsis(), newaxis()).rank() == 3);
  CHECK(sum(isnan(x)).item() == 0);
  CHECK(maximum(x, 3).item(0, 0) == 3.0f);
  CHECK(where(x > 2, x, 0).item(0, 0) == 0.0f);
  CHECK(empty({2, 3}).size() + zeros({2}).size() + ones({2}).size() + full({2}, 7).size() + arange(3).size() + eye(2).size() == 19);
  CHECK(cast<int32_t>(x).item(1, 2) == 6);
  CHECK(static_cast<float>(float16(1.5f)) == __half2float(__float2half(1.5f)));

  std::vector<int> const list{1, 2, 3};
  int total = 0;
  for (int each : list) total += each;
  CHECK(total == 6);
  [[maybe_unused]] void (*const kernel)(float*, int) = numbers_on_the_device;  // compiled for the device
}
