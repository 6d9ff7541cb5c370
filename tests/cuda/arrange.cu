#include <doctest/doctest.h>

#include <cuda/compare.hpp>
#include <situ/ops/arrange.hpp>
#include <situ/ops/concat.hpp>
#include <situ/ops/pad.hpp>
#include <situ/ops/matrix_parts.hpp>
#include <situ/tensor.hpp>

using namespace situ;
using situ_test::differs;
using situ_test::numbers;
using Gpu = Cuda<0>;

TEST_CASE("arranging gives on a GPU what it gives on the host") {
  Tensor<float> const a = numbers<float>({30, 41}), b = numbers<float>({30, 41}, 2);
  Tensor<float, Gpu> const x{a}, y{b};
  for (int axis : {0, 1}) {
    CHECK(differs(concat({x, y}, axis), concat({a, b}, axis)) == "");
    CHECK(differs(concat(axis, x * 2, y), concat(axis, a * 2, b)) == "");
    CHECK(differs(stack({x, y}, axis), stack({a, b}, axis)) == "");
    CHECK(differs(concat(split(x, 7, axis), axis), a) == "");
    CHECK(differs(repeat(x, 3, axis), repeat(a, 3, axis)) == "");
    CHECK(differs(roll(x, 5, axis), roll(a, 5, axis)) == "");
    CHECK(differs(flip(x, axis), flip(a, axis)) == "");
  }
  CHECK(differs(tile(x, {3, 2}), tile(a, {3, 2})) == "");
  CHECK(differs(pad(x, {1, 2, 3, 4}, 7), pad(a, {1, 2, 3, 4}, 7)) == "");
  for (pad_mode mode : {pad_mode::reflect, pad_mode::replicate, pad_mode::circular}) CHECK(differs(pad(x, {1, 2, 3, 4}, mode), pad(a, {1, 2, 3, 4}, mode)) == "");
  CHECK(differs(triu(x, 3), triu(a, 3)) == "");
  CHECK(differs(tril(x, -3), tril(a, -3)) == "");
  CHECK(differs(diag(x, 2), diag(a, 2)) == "");
  CHECK(differs(diag(diag(x), -1), diag(diag(a), -1)) == "");
  CHECK(differs(trace(x), trace(a), 1e-5) == "");
}
