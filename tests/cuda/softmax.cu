#include <doctest/doctest.h>

#include <cuda/compare.hpp>
#include <situ/ops/normalization.hpp>
#include <situ/ops/softmax.hpp>
#include <situ/tensor.hpp>

using namespace situ;
using situ_test::differs;
using situ_test::numbers;
using Gpu = Cuda<0>;

TEST_CASE("softmax and the norms are the same on a GPU as on the host") {
  using T = float;
  double const tolerance = 2e-6;
  for (Shape const& s : {Shape{1, 1}, Shape{64, 10}, Shape{1000, 5}, Shape{33, 1024}, Shape{3, 5000}, Shape{2, 50001}, Shape{5000, 3}}) {
    CAPTURE(to_string(s));
    Tensor<T> const a = numbers<T>(s);
    Tensor<T, Gpu> const x{a};
    for (int axis : {0, 1}) {
      CAPTURE(axis);
      CHECK(differs(softmax(x, axis), softmax(a, axis), tolerance) == "");
      CHECK(differs(softmax(x.t(), axis), softmax(a.t(), axis), tolerance) == "");
      CHECK(differs(softmax(x.flip(1), axis), softmax(a.flip(1), axis), tolerance) == "");
      CHECK(differs(log_softmax(x, axis), log_softmax(a, axis), 10 * tolerance) == "");
    }
    Shape const last(s[1]);
    CHECK(differs(layer_norm(x, last), layer_norm(a, last), 10 * tolerance) == "");
    CHECK(differs(rms_norm(x, last), rms_norm(a, last), 10 * tolerance) == "");
  }
}

TEST_CASE("softmax of 16-bit floats is computed in float on a GPU, too") {
  Tensor<float16> const a = numbers<float16>({33, 1000});
  Tensor<float16, Gpu> const x{a};
  CHECK(differs(softmax(x, 1), softmax(a, 1), 2e-3) == "");
}

TEST_CASE("an operation on rows fuses its input, and takes weights and several axes") {
  Tensor<float> const a = numbers<float>({12, 7, 40}), b = numbers<float>({7, 1}, 2), w = numbers<float>({7, 40}, 3);
  Tensor<float, Gpu> const x{a}, y{b}, v{w};
  CHECK(differs(softmax(x * 0.5f + y, 2), softmax(a * 0.5f + b, 2), 2e-6) == "");
  CHECK(differs(layer_norm(x + y, {7, 40}, v, v), layer_norm(a + b, {7, 40}, w, w), 2e-5) == "");
  CHECK(differs(layer_norm(x, normalized_axes{{0, 2}}), layer_norm(a, normalized_axes{{0, 2}}), 2e-5) == "");
  CHECK(differs(rms_norm(x, normalized_axes{{1}}), rms_norm(a, normalized_axes{{1}}), 2e-5) == "");
}
