// PyTorch: tensors without axes take the axes 0 and -1.
#include <doctest/doctest.h>

#include <situ/autograd.hpp>
#include <situ/ops.hpp>

#include "support/compare.hpp"
#include "support/devices.hpp"

using namespace situ;
using situ_test::thrown;

TEST_CASE_TEMPLATE("a tensor without axes is reduced, scanned and flipped along axis 0 and -1", D, SITU_TEST_DEVICES) {
  Tensor<float, D> const x = full({}, -3, D{});
  for (int axis : {0, -1}) {
    CHECK(max(x, axis).item() == -3);
    CHECK(min(x * 2, axis, keepdim).item() == -6);
    CHECK(sum(x, axis).item() == -3);
    CHECK(sum(x, {axis}, keepdim).shape() == Shape{});
    CHECK(prod(x, axis).item() == -3);
    CHECK(mean(x, axis).item() == -3);
    CHECK(argmax(x, axis).item() == 0);
    CHECK(argmin(x, axis).item() == 0);
    CHECK(any(x, axis).item());
    CHECK(all(x, axis).item());
    CHECK(count_nonzero(x, axis).item() == 1);
    CHECK(norm(x, axis).item() == 3);
    CHECK(logsumexp(x, axis).item() == -3);
    CHECK(var(x, axis, {.correction = 0}).item() == 0);
    CHECK(cumsum(x, axis).item() == -3);
    CHECK(cumprod(x * 2, axis).item() == -6);
    CHECK(cumsum(x, axis).shape() == Shape{});
    CHECK(softmax(x, axis).item() == 1);
    CHECK(sort(x, axis).values.item() == -3);
    CHECK(x.squeeze(axis).item() == -3);
    CHECK(x.flip(axis).item() == -3);
    CHECK(flip(x, axis).item() == -3);
  }
  CHECK(thrown<ShapeError>([&] { cumsum(x, 1); }, "cumsum: axis 1 is out of range for shape []: it has no axes") == "");
  CHECK(thrown<ShapeError>([&] { (void)x.squeeze(-2); }, "squeeze: axis -2 is out of range for shape []: it has no axes") == "");
}

TEST_CASE("gradients pass the axis of a tensor without axes") {
  Variable x{full({}, 2)};
  (max(x, 0) + 3 * cumsum(x, -1) + 5 * cumprod(x, 0) + sum(x, 0, keepdim)).backward();
  CHECK(x.grad().shape() == Shape{});
  CHECK(x.grad().item() == 10);
}
